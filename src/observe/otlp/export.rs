//! Span exporters: renames attributes to the semantic conventions, masks secrets, and runs the
//! SDK's exporters inside of a tokio runtime.

use std::{fmt, time::Duration};

use opentelemetry::{
    KeyValue, StringValue, Value,
    trace::{SpanKind, Status},
};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    metrics::{Temporality, data::ResourceMetrics, exporter::PushMetricExporter},
    trace::{SpanData, SpanExporter},
};

use super::super::{
    Redactor,
    semconv::{self, Edition},
};
use crate::outside::Outside;

/// Wraps an exporter that needs a tokio runtime. The SDK calls exporters on a plain thread.
#[derive(Debug)]
pub(super) struct Served<E> {
    inner: E,
    outside: Outside,
}

impl<E> Served<E> {
    pub(super) fn new(inner: E, outside: &Outside) -> Self {
        Self {
            inner,
            outside: outside.clone(),
        }
    }
}

impl<E: SpanExporter> SpanExporter for Served<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.outside.serve(self.inner.export(batch)).await
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

impl<E: PushMetricExporter> PushMetricExporter for Served<E> {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        self.outside.serve(self.inner.export(metrics)).await
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn temporality(&self) -> Temporality {
        self.inner.temporality()
    }
}

/// Renames spans and attributes to the conventions and masks secrets in them.
pub(super) struct Named<E> {
    pub(super) inner: E,
    pub(super) edition: Edition,
    pub(super) redactor: Redactor,
}

impl<E: fmt::Debug> fmt::Debug for Named<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Named({:?}, {:?})", self.edition, self.inner)
    }
}

impl<E: SpanExporter> SpanExporter for Named<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let batch = batch
            .into_iter()
            .map(|span| named(span, self.edition, &self.redactor))
            .collect();
        self.inner.export(batch).await
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

/// Applies an edition's names to a span. Spans that do not come from the kernel keep their name.
fn named(mut span: SpanData, edition: Edition, redactor: &Redactor) -> SpanData {
    let text = |span: &SpanData, field: &str| {
        span.attributes
            .iter()
            .find(|pair| pair.key.as_str() == field)
            .map(|pair| pair.value.as_str().into_owned())
    };
    let is_tool = span.name.starts_with("tool.");
    let own = match span.name.as_ref() {
        "turn" => Some((semconv::INVOKE_AGENT, None, SpanKind::Internal)),
        "model_call" => Some((semconv::CHAT, text(&span, "model"), SpanKind::Client)),
        _ if is_tool => Some((
            semconv::EXECUTE_TOOL,
            text(&span, "tool.name"),
            SpanKind::Internal,
        )),
        _ => None,
    };
    if let Some((operation, object, kind)) = own {
        span.span_kind = kind;
        if let Some(error) = text(&span, "error") {
            let words = text(&span, "tool.error").unwrap_or(error);
            span.status = Status::error(redactor.mask(&words));
        }
        for pair in &mut span.attributes {
            let Some(name) = semconv::attribute(pair.key.as_str(), edition) else {
                continue;
            };
            if name == semconv::FINISH_REASONS {
                pair.value =
                    Value::Array(vec![StringValue::from(pair.value.as_str().into_owned())].into());
            }
            pair.key = name.into();
        }
        span.attributes
            .push(KeyValue::new(semconv::OPERATION, operation));
        match &object {
            Some(tool) if is_tool => span
                .attributes
                .push(KeyValue::new(semconv::TOOL, tool.clone())),
            Some(_) => {}
            None => span
                .attributes
                .push(KeyValue::new(semconv::AGENT_NAME, "callboard")),
        }
        span.name = redactor
            .mask(&object.map_or(operation.to_owned(), |object| {
                format!("{operation} {object}")
            }))
            .into();
    }
    for pair in &mut span.attributes {
        mask(&mut pair.value, redactor);
    }
    for pair in span
        .events
        .events
        .iter_mut()
        .flat_map(|event| &mut event.attributes)
    {
        mask(&mut pair.value, redactor);
    }
    span
}

fn mask(value: &mut Value, redactor: &Redactor) {
    if let Value::String(text) = value {
        let masked = redactor.mask(text.as_str());
        if masked != text.as_str() {
            *value = masked.into();
        }
    }
}
