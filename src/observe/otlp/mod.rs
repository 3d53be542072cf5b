//! Traces and metrics over OTLP (HTTP, protobuf), with the names of `semconv` and without keys. The caller owns it and shuts it down; no
//! global provider is set. Content of prompts and answers is never exported: the kernel's spans hold none.
//!
//! # Layout
//! `export` what is done to spans before they leave, and where exporters run · `figures` instruments.

mod export;
mod figures;

use std::{collections::HashMap, sync::Arc, time::Duration};

use callboard_actors::{
    host::FiguresReader,
    metrics_collector::{FIGURES, SPANS},
    policy::ObservabilityConfig,
};
use opentelemetry::{KeyValue, metrics::MeterProvider as _, trace::TracerProvider as _};
use opentelemetry_otlp::{Compression, MetricExporter, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{
    Resource,
    metrics::{PeriodicReader, SdkMeterProvider},
    trace::{BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider},
};
use tracing::{Level, Subscriber};
use tracing_subscriber::{Layer, filter::Targets, registry::LookupSpan};

use super::{Redactor, semconv::Edition};
use export::{InRuntime, Named};
use figures::Figures;

/// What our spans and instruments belong to.
const SCOPE: &str = "callboard";

/// How long ended spans wait for others at most.
const SPAN_DELAY: Duration = Duration::from_secs(1);

/// Batches of spans that may wait for a slow collector; beyond this spans are dropped: they can be missed, memory cannot.
const BATCHES_WAITING_MAX: usize = 20;

/// Why the exporter cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OtlpError {
    /// There is no tokio runtime to send from.
    #[error("traces and metrics cannot be exported outside a tokio runtime")]
    NoRuntime,
    /// The endpoint or a header cannot be.
    #[error("traces and metrics cannot be exported to `otlp_endpoint`: {0}")]
    Exporter(String),
}

/// The exporter: owns its providers.
#[derive(Debug, Clone)]
pub struct Otlp {
    tracer: Option<SdkTracerProvider>,
    meter: Option<SdkMeterProvider>,
    edition: Edition,
    redactor: Redactor,
}

impl Otlp {
    /// Starts exporting where there is an `otlp_endpoint`; newer names by [`Edition::VARIABLE`].
    ///
    /// # Errors
    /// [`OtlpError`].
    pub fn start(config: &ObservabilityConfig, redactor: &Redactor) -> Result<Option<Self>, OtlpError> {
        let edition = Edition::of(&std::env::var(Edition::VARIABLE).unwrap_or_default());
        Self::with_edition(config, redactor, edition)
    }

    /// As [`Otlp::start`], with the edition of names said outright.
    ///
    /// # Errors
    /// [`OtlpError`].
    pub fn with_edition(config: &ObservabilityConfig, redactor: &Redactor, edition: Edition) -> Result<Option<Self>, OtlpError> {
        let Some(endpoint) = config.otlp_endpoint.as_deref() else { return Ok(None) };
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| OtlpError::NoRuntime)?;
        let failed = |error: &dyn std::error::Error| OtlpError::Exporter(redactor.mask(&error.to_string()));
        let headers: HashMap<String, String> = config.otlp_headers.clone().unwrap_or_default().into_iter().collect();
        // A redirect would carry the headers, and with them a key, to somebody else.
        let client = |timeout: Duration| reqwest::Client::builder().timeout(timeout).redirect(reqwest::redirect::Policy::none()).build();
        let (span_time, metric_time) =
            (Duration::from_millis(config.trace_export_timeout_ms), Duration::from_millis(config.metrics_export_timeout_ms));
        let gzip = config.otlp_compression == "gzip";
        let resource = resource(config);

        let tracer = if config.enable_tracing {
            let builder = SpanExporter::builder().with_http().with_http_client(client(span_time).map_err(|error| failed(&error))?);
            let builder = builder.with_endpoint(signal(endpoint, "v1/traces")).with_timeout(span_time).with_headers(headers.clone());
            let builder = if gzip { builder.with_compression(Compression::Gzip) } else { builder };
            let exporter = builder.build().map_err(|error| failed(&error))?;
            let exporter = Named { inner: InRuntime::new(exporter, runtime.clone()), edition, redactor: redactor.clone() };
            let batch = usize::try_from(config.trace_batch_size).unwrap_or(usize::MAX).max(1);
            let batches = BatchConfigBuilder::default()
                .with_max_export_batch_size(batch)
                .with_max_queue_size(batch.saturating_mul(BATCHES_WAITING_MAX))
                .with_scheduled_delay(SPAN_DELAY)
                .build();
            let processor = BatchSpanProcessor::builder(exporter).with_batch_config(batches).build();
            // The kernel sampled already, once a turn.
            let provider = SdkTracerProvider::builder().with_sampler(Sampler::AlwaysOn).with_resource(resource.clone());
            Some(provider.with_span_processor(processor).build())
        } else {
            None
        };
        let meter = if config.enable_metrics {
            let builder = MetricExporter::builder().with_http().with_http_client(client(metric_time).map_err(|error| failed(&error))?);
            let builder = builder.with_endpoint(signal(endpoint, "v1/metrics")).with_timeout(metric_time).with_headers(headers);
            let builder = if gzip { builder.with_compression(Compression::Gzip) } else { builder };
            let exporter = builder.build().map_err(|error| failed(&error))?;
            let interval = Duration::from_secs(u64::try_from(config.metrics_export_interval_s).unwrap_or(60).max(1));
            let reader = PeriodicReader::builder(InRuntime::new(exporter, runtime)).with_interval(interval).build();
            Some(SdkMeterProvider::builder().with_reader(reader).with_resource(resource).build())
        } else {
            None
        };
        Ok(Some(Self { tracer, meter, edition, redactor: redactor.clone() }))
    }

    /// The layer that takes the kernel's spans; none where tracing is switched off.
    pub fn span_layer<S>(&self) -> Option<Box<dyn Layer<S> + Send + Sync>>
    where
        S: Subscriber + for<'s> LookupSpan<'s> + Send + Sync,
    {
        let tracer = self.tracer.as_ref()?.tracer(SCOPE);
        let layer = tracing_opentelemetry::layer()
            .with_tracer(tracer)
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_level(false)
            .with_tracked_inactivity(false);
        Some(layer.with_filter(Targets::new().with_target(SPANS, Level::INFO)).boxed())
    }

    /// The layer that measures every turn and call, sampled or not; none where metrics are switched off.
    pub fn figures_layer<S>(&self) -> Option<Box<dyn Layer<S> + Send + Sync>>
    where
        S: Subscriber + for<'s> LookupSpan<'s> + Send + Sync,
    {
        let meter = self.meter.as_ref()?.meter(SCOPE);
        let figures = Figures::new(&meter, self.edition, self.redactor.clone());
        Some(figures.with_filter(Targets::new().with_target(FIGURES, Level::DEBUG)).boxed())
    }

    /// Exports what a host counts and carries, too.
    pub fn observe(&self, host: FiguresReader) {
        if let Some(meter) = &self.meter {
            figures::observe(&meter.meter(SCOPE), &Arc::new(host), &self.redactor);
        }
    }

    /// Sends what is not sent yet and ends; at most the time-outs of the configuration.
    pub async fn shutdown(self) {
        // The providers wait on threads of their own: not on one of the runtime that they send from.
        let ended = tokio::task::spawn_blocking(move || {
            let traces = self.tracer.map(|tracer| tracer.shutdown());
            let metrics = self.meter.map(|meter| meter.shutdown());
            [traces, metrics].into_iter().flatten().filter_map(Result::err).for_each(|error| {
                tracing::warn!("the last traces or metrics were not exported: {}", self.redactor.mask(&error.to_string()));
            });
        });
        let _ = ended.await;
    }
}

/// The address of a signal below the endpoint.
fn signal(endpoint: &str, path: &str) -> String {
    format!("{}/{path}", endpoint.trim_end_matches('/'))
}

/// Who speaks.
fn resource(config: &ObservabilityConfig) -> Resource {
    let tags = config.extra_tags.iter().map(|(name, value)| KeyValue::new(name.clone(), value.clone()));
    Resource::builder()
        .with_service_name(config.service_name.clone())
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attribute(KeyValue::new("deployment.environment.name", config.environment.clone()))
        .with_attributes(tags)
        .build()
}
