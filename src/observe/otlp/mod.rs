//! Exports traces and metrics over OTLP (HTTP, protobuf), with the names in `semconv` and without
//! secrets. The caller owns the exporter and shuts it down; no global provider is set. Prompts and
//! answers are never exported: the kernel's spans do not contain them.
//!
//! # Layout
//! `export` renames and masks spans, and runs exporters in the runtime · `figures` has the
//! instruments.

mod export;
mod figures;

use std::{collections::HashMap, sync::Arc, time::Duration};

use callboard_actors::{
    host::FiguresReader,
    metrics_collector::{FIGURES, SPANS},
    policy::ObservabilityConfig,
};
use opentelemetry::{KeyValue, metrics::MeterProvider as _, trace::TracerProvider as _};
use opentelemetry_otlp::{
    Compression, MetricExporter, SpanExporter, WithExportConfig as _, WithHttpConfig as _,
};
use opentelemetry_sdk::{
    Resource,
    metrics::{PeriodicReader, SdkMeterProvider},
    trace::{BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider},
};
use tracing::{Level, Subscriber};
use tracing_subscriber::{Layer, filter::Targets, registry::LookupSpan};

use super::{Redactor, semconv::Edition};
use crate::outside::Outside;
use export::{Named, Served};
use figures::{Figures, Latest};

/// Instrumentation scope of all spans and instruments.
const SCOPE: &str = "callboard";

/// Longest time that a finished span waits for its batch.
const SPAN_DELAY: Duration = Duration::from_secs(1);

/// Batches of spans that may queue for a slow collector; further spans are dropped, to bound
/// memory.
const BATCHES_WAITING_MAX: usize = 20;

/// Why the exporter could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OtlpError {
    /// The thread of the connections to the collector could not be started.
    #[error("traces and metrics cannot be exported: their thread could not be started")]
    NoThread,
    /// The endpoint, a header or the TLS set-up is invalid.
    #[error("traces and metrics cannot be exported to `otlp_endpoint`: {0}")]
    Exporter(String),
}

/// The exporter; owns its providers.
#[derive(Debug, Clone)]
pub struct Otlp {
    tracer: Option<SdkTracerProvider>,
    meter: Option<SdkMeterProvider>,
    edition: Edition,
    redactor: Redactor,
    /// The hosts whose figures are exported.
    hosts: Arc<parking_lot::Mutex<Vec<Arc<Latest>>>>,
}

impl Otlp {
    /// Starts exporting if the configuration has an `otlp_endpoint`, else returns `None`. The
    /// environment variable [`Edition::VARIABLE`] selects newer names.
    ///
    /// # Errors
    /// [`OtlpError`], such as for an invalid endpoint.
    pub fn start(
        config: &ObservabilityConfig,
        redactor: &Redactor,
    ) -> Result<Option<Self>, OtlpError> {
        let edition = Edition::from_opt_in(&std::env::var(Edition::VARIABLE).unwrap_or_default());
        Self::with_edition(config, redactor, edition)
    }

    /// Like [`Otlp::start`], with an explicit edition of names.
    ///
    /// # Errors
    /// [`OtlpError`], as for [`Otlp::start`].
    pub fn with_edition(
        config: &ObservabilityConfig,
        redactor: &Redactor,
        edition: Edition,
    ) -> Result<Option<Self>, OtlpError> {
        let Some(endpoint) = config.otlp_endpoint.as_deref() else {
            return Ok(None);
        };
        let outside = Outside::start().map_err(|_| OtlpError::NoThread)?;
        let failed =
            |error: &dyn std::error::Error| OtlpError::Exporter(redactor.mask(&error.to_string()));
        let headers: HashMap<String, String> = config
            .otlp_headers
            .clone()
            .unwrap_or_default()
            .into_iter()
            .collect();
        // A redirect would send the headers, which may contain a key, to another host.
        let client = |timeout: Duration| {
            let builder = crate::tls::client_builder().map_err(|error| failed(&error))?;
            builder
                .timeout(timeout)
                .redirect(reqwest::redirect::Policy::none())
                .build()
                .map_err(|error| failed(&error))
        };
        let span_time = Duration::from_millis(config.trace_export_timeout_ms);
        let metric_time = Duration::from_millis(config.metrics_export_timeout_ms);
        let gzip = config.otlp_compression == "gzip";
        let resource = resource(config);

        let tracer = if config.enable_tracing {
            let builder = SpanExporter::builder()
                .with_http()
                .with_http_client(client(span_time)?);
            let builder = builder
                .with_endpoint(signal(endpoint, "v1/traces"))
                .with_timeout(span_time)
                .with_headers(headers.clone());
            let builder = if gzip {
                builder.with_compression(Compression::Gzip)
            } else {
                builder
            };
            let exporter = builder.build().map_err(|error| failed(&error))?;
            let exporter = Named {
                inner: Served::new(exporter, &outside),
                edition,
                redactor: redactor.clone(),
            };
            let batch = usize::try_from(config.trace_batch_size)
                .unwrap_or(usize::MAX)
                .max(1);
            let batches = BatchConfigBuilder::default()
                .with_max_export_batch_size(batch)
                .with_max_queue_size(batch.saturating_mul(BATCHES_WAITING_MAX))
                .with_scheduled_delay(SPAN_DELAY)
                .build();
            let processor = BatchSpanProcessor::builder(exporter)
                .with_batch_config(batches)
                .build();
            // The kernel has already sampled, once per round.
            let provider = SdkTracerProvider::builder()
                .with_sampler(Sampler::AlwaysOn)
                .with_resource(resource.clone());
            Some(provider.with_span_processor(processor).build())
        } else {
            None
        };
        let meter = if config.enable_metrics {
            let builder = MetricExporter::builder()
                .with_http()
                .with_http_client(client(metric_time)?);
            let builder = builder
                .with_endpoint(signal(endpoint, "v1/metrics"))
                .with_timeout(metric_time)
                .with_headers(headers);
            let builder = if gzip {
                builder.with_compression(Compression::Gzip)
            } else {
                builder
            };
            let exporter = builder.build().map_err(|error| failed(&error))?;
            let interval = Duration::from_secs(
                u64::try_from(config.metrics_export_interval_s)
                    .unwrap_or(60)
                    .max(1),
            );
            let reader = PeriodicReader::builder(Served::new(exporter, &outside))
                .with_interval(interval)
                .build();
            Some(
                SdkMeterProvider::builder()
                    .with_reader(reader)
                    .with_resource(resource)
                    .build(),
            )
        } else {
            None
        };
        Ok(Some(Self {
            tracer,
            meter,
            edition,
            redactor: redactor.clone(),
            hosts: Arc::default(),
        }))
    }

    /// The layer that exports the kernel's spans; `None` if tracing is disabled.
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
        Some(
            layer
                .with_filter(Targets::new().with_target(SPANS, Level::INFO))
                .boxed(),
        )
    }

    /// The layer that records every round and call, whether its span is sampled or not; `None` if
    /// metrics are disabled.
    pub fn figures_layer<S>(&self) -> Option<Box<dyn Layer<S> + Send + Sync>>
    where
        S: Subscriber + for<'s> LookupSpan<'s> + Send + Sync,
    {
        let meter = self.meter.as_ref()?.meter(SCOPE);
        let figures = Figures::new(&meter, self.edition, self.redactor.clone());
        Some(
            figures
                .with_filter(Targets::new().with_target(FIGURES, Level::DEBUG))
                .boxed(),
        )
    }

    /// Exports a host's counters and gauges as well, as they were at most a second before. Call
    /// this inside a tokio runtime.
    pub fn observe(&self, host: FiguresReader) {
        if let Some(meter) = &self.meter {
            let latest = Latest::of(host);
            figures::observe(&meter.meter(SCOPE), &latest, &self.redactor);
            self.hosts.lock().push(latest);
        }
    }

    /// Exports what is pending and shuts down; takes at most the configured export timeouts.
    pub async fn shutdown(self) {
        let hosts = std::mem::take(&mut *self.hosts.lock());
        for host in hosts {
            host.read().await;
        }
        // `shutdown` blocks, so it must not run on a worker of the runtime that the exporters send
        // from.
        let ended = tokio::task::spawn_blocking(move || {
            let traces = self.tracer.map(|tracer| tracer.shutdown());
            let metrics = self.meter.map(|meter| meter.shutdown());
            [traces, metrics]
                .into_iter()
                .flatten()
                .filter_map(Result::err)
                .for_each(|error| {
                    tracing::warn!(
                        "the last traces or metrics were not exported: {}",
                        self.redactor.mask(&error.to_string())
                    );
                });
        });
        let _ = ended.await;
    }
}

/// The URL of a signal below the endpoint.
fn signal(endpoint: &str, path: &str) -> String {
    format!("{}/{path}", endpoint.trim_end_matches('/'))
}

/// Attributes of this process: service name, version, environment and the configured extra tags.
fn resource(config: &ObservabilityConfig) -> Resource {
    let tags = config
        .extra_tags
        .iter()
        .map(|(name, value)| KeyValue::new(name.clone(), value.clone()));
    Resource::builder()
        .with_service_name(config.service_name.clone())
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attribute(KeyValue::new(
            "deployment.environment.name",
            config.environment.clone(),
        ))
        .with_attributes(tags)
        .build()
}
