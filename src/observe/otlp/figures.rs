//! OpenTelemetry instruments: histograms fed by the kernel's figure events, and observable counters
//! of the host's figures.

use std::{fmt, sync::Arc, time::Duration};

use callboard_actors::host::{FiguresReader, HostFigures};
use opentelemetry::{
    KeyValue,
    metrics::{Histogram, Meter},
};
use parking_lot::RwLock;
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, layer::Context};

use super::super::{
    Redactor,
    semconv::{self, Edition},
};

/// Histogram boundaries for durations, in seconds, as the conventions advise for model calls.
const SECONDS: [f64; 14] = [
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
];

/// Histogram boundaries for tokens, as the conventions advise.
const TOKENS: [f64; 14] = [
    1.0,
    4.0,
    16.0,
    64.0,
    256.0,
    1024.0,
    4096.0,
    16384.0,
    65536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];

/// Tokens of a call that are recorded. A provider may report any number, and the sum of a histogram is
/// a plain sum.
const TOKENS_MAX: u64 = u32::MAX as u64;

/// A layer that records the kernel's figure events.
pub(super) struct Figures {
    redactor: Redactor,
    call_duration: Histogram<f64>,
    first_chunk: Histogram<f64>,
    tokens: Histogram<u64>,
    turn_duration: Histogram<f64>,
    tool_duration: Histogram<f64>,
}

impl Figures {
    pub(super) fn new(meter: &Meter, edition: Edition, redactor: Redactor) -> Self {
        let names = semconv::instruments(edition);
        let seconds = |name: &'static str, what: &'static str| {
            meter
                .f64_histogram(name)
                .with_unit("s")
                .with_description(what)
                .with_boundaries(SECONDS.to_vec())
                .build()
        };
        Self {
            redactor,
            call_duration: seconds(names.call_duration, "Duration of model calls."),
            first_chunk: seconds(
                names.first_chunk,
                "Time from a model call's start to its first content.",
            ),
            tokens: meter
                .u64_histogram(names.tokens)
                .with_unit("{token}")
                .with_description("Input and output tokens of model calls.")
                .with_boundaries(TOKENS.to_vec())
                .build(),
            turn_duration: seconds(names.turn_duration, "Duration of rounds."),
            tool_duration: seconds(names.tool_duration, "Duration of tool calls."),
        }
    }

    fn record(&self, figure: &Figure) {
        let label = |name: &'static str, text: &str| KeyValue::new(name, self.redactor.mask(text));
        let error = (!figure.error.is_empty()).then(|| label(semconv::ERROR_TYPE, &figure.error));
        match figure.kind.as_str() {
            "turn" => {
                let labels = [KeyValue::new(semconv::OPERATION, semconv::INVOKE_AGENT)];
                self.turn_duration.record(
                    figure.seconds,
                    &labels.into_iter().chain(error).collect::<Vec<_>>(),
                );
            }
            "tool_call" => {
                let labels = [
                    KeyValue::new(semconv::OPERATION, semconv::EXECUTE_TOOL),
                    label(semconv::TOOL, &figure.tool),
                ];
                self.tool_duration.record(
                    figure.seconds,
                    &labels.into_iter().chain(error).collect::<Vec<_>>(),
                );
            }
            "model_call" => {
                let labels = vec![
                    KeyValue::new(semconv::OPERATION, semconv::CHAT),
                    label(semconv::PROVIDER, &figure.provider),
                    label(semconv::MODEL, &figure.model),
                ];
                for (class, tokens) in [
                    ("input", figure.input_tokens),
                    ("output", figure.output_tokens),
                ] {
                    if tokens > 0 {
                        self.tokens.record(
                            tokens.min(TOKENS_MAX),
                            &[
                                labels.as_slice(),
                                &[KeyValue::new(semconv::TOKEN_TYPE, class)],
                            ]
                            .concat(),
                        );
                    }
                }
                if let Some(seconds) = figure.first_chunk_seconds {
                    self.first_chunk.record(seconds, &labels);
                }
                self.call_duration.record(
                    figure.seconds,
                    &labels.into_iter().chain(error).collect::<Vec<_>>(),
                );
            }
            _ => {}
        }
    }
}

impl<S: Subscriber> Layer<S> for Figures {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut figure = Figure::default();
        event.record(&mut figure);
        self.record(&figure);
    }
}

/// The fields of one figure event.
#[derive(Debug, Default)]
struct Figure {
    kind: String,
    provider: String,
    model: String,
    tool: String,
    error: String,
    seconds: f64,
    first_chunk_seconds: Option<f64>,
    input_tokens: u64,
    output_tokens: u64,
}

impl Visit for Figure {
    fn record_f64(&mut self, field: &Field, value: f64) {
        match field.name() {
            "seconds" => self.seconds = value,
            "first_chunk_seconds" => self.first_chunk_seconds = Some(value),
            _ => {}
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "input_tokens" => self.input_tokens = value,
            "output_tokens" => self.output_tokens = value,
            _ => {}
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let place = match field.name() {
            "figure" => &mut self.kind,
            "provider" => &mut self.provider,
            "model" => &mut self.model,
            "tool" => &mut self.tool,
            "error" => &mut self.error,
            _ => return,
        };
        value.clone_into(place);
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}

/// How often a host is asked for its figures. What is exported is at most that old.
const READ_EVERY: Duration = Duration::from_secs(1);

/// The last figures of a host. Instruments are read by a thread that cannot wait for the host's
/// answer, so a task asks the host and they read what it answered last.
#[derive(Debug)]
pub(super) struct Latest {
    host: FiguresReader,
    figures: RwLock<Option<HostFigures>>,
}

impl Latest {
    /// Asks the host every second, until it or the last instrument is dropped. Needs a tokio
    /// runtime.
    pub(super) fn of(host: FiguresReader) -> Arc<Self> {
        let latest = Arc::new(Self {
            host,
            figures: RwLock::default(),
        });
        let reading = Arc::downgrade(&latest);
        tokio::spawn(async move {
            while let Some(latest) = reading.upgrade() {
                latest.read().await;
                let is_over = latest.figures.read().is_none();
                drop(latest);
                if is_over {
                    return;
                }
                tokio::time::sleep(READ_EVERY).await;
            }
        });
        latest
    }

    /// Asks the host now. Without a host there are no figures.
    pub(super) async fn read(&self) {
        let figures = self.host.read().await;
        *self.figures.write() = figures;
    }

    fn with(&self, observe: impl FnOnce(&HostFigures)) {
        self.figures.read().as_ref().map(observe);
    }
}

/// Exports the host's own figures until the host is dropped.
pub(super) fn observe(meter: &Meter, host: &Arc<Latest>, redactor: &Redactor) {
    let counter = |name: &'static str,
                   unit: &'static str,
                   what: &'static str,
                   of: fn(&HostFigures) -> u64| {
        let host = host.clone();
        let observe = move |observer: &dyn opentelemetry::metrics::AsyncInstrument<u64>| {
            host.with(|figures| observer.observe(of(figures), &[]));
        };
        meter
            .u64_observable_counter(name)
            .with_unit(unit)
            .with_description(what)
            .with_callback(observe)
            .build();
    };
    counter(
        "callboard.prompts",
        "{prompt}",
        "Prompts accepted.",
        |figures| figures.total.prompts,
    );
    counter(
        "callboard.refusals",
        "{prompt}",
        "Prompts refused.",
        |figures| figures.total.refusals,
    );
    counter(
        "callboard.rounds",
        "{round}",
        "Rounds finished.",
        |figures| figures.total.rounds,
    );
    counter(
        "callboard.rounds.failed",
        "{round}",
        "Rounds that ended in an error or at a limit.",
        |figures| figures.total.rounds_failed,
    );
    counter(
        "callboard.tool_calls",
        "{call}",
        "Tool calls finished.",
        |figures| figures.total.tool_calls,
    );
    counter(
        "callboard.tool_calls.failed",
        "{call}",
        "Tool calls that failed.",
        |figures| figures.total.tool_calls_failed,
    );
    counter(
        "callboard.conversation.crashes",
        "{life}",
        "Activations of conversations that ended in a crash.",
        |figures| figures.total.crashes,
    );
    counter(
        "callboard.conversation.lives",
        "{life}",
        "Activations of conversations.",
        |figures| figures.total.lives,
    );
    let reader = host.clone();
    let awake = move |observer: &dyn opentelemetry::metrics::AsyncInstrument<u64>| {
        reader.with(|figures| observer.observe(figures.awake as u64, &[]));
    };
    meter
        .u64_observable_gauge("callboard.conversations.awake")
        .with_unit("{conversation}")
        .with_description("Conversations in memory.")
        .with_callback(awake)
        .build();
    let reader = host.clone();
    let redactor = redactor.clone();
    let gateways = move |observer: &dyn opentelemetry::metrics::AsyncInstrument<u64>| {
        reader.with(|figures| {
            for (name, status) in &figures.gateways {
                let gateway = KeyValue::new("callboard.gateway", redactor.mask(name));
                for (state, calls) in [
                    ("running", status.running),
                    ("waiting", status.waiting),
                    ("free", status.free),
                ] {
                    observer.observe(
                        calls as u64,
                        &[gateway.clone(), KeyValue::new("callboard.state", state)],
                    );
                }
            }
        });
    };
    meter
        .u64_observable_gauge("callboard.gateway.calls")
        .with_unit("{call}")
        .with_description("Model calls of a gateway by state.")
        .with_callback(gateways)
        .build();
}

#[cfg(test)]
mod tests {
    use opentelemetry::metrics::MeterProvider as _;
    use opentelemetry_sdk::{
        error::OTelSdkResult,
        metrics::{
            PeriodicReader, SdkMeterProvider, Temporality, data::ResourceMetrics,
            exporter::PushMetricExporter,
        },
    };

    use super::*;

    struct Nowhere;

    impl PushMetricExporter for Nowhere {
        async fn export(&self, _: &ResourceMetrics) -> OTelSdkResult {
            Ok(())
        }

        fn force_flush(&self) -> OTelSdkResult {
            Ok(())
        }

        fn shutdown_with_timeout(&self, _: std::time::Duration) -> OTelSdkResult {
            Ok(())
        }

        fn temporality(&self) -> Temporality {
            Temporality::Cumulative
        }
    }

    #[test]
    fn tokens_that_a_provider_invents_overflow_no_sum() {
        let reader = PeriodicReader::builder(Nowhere).build();
        let provider = SdkMeterProvider::builder().with_reader(reader).build();
        let meter = provider.meter("callboard");
        let redactor = Redactor::default();
        let figures = Figures::new(&meter, Edition::default(), redactor);
        let figure = Figure {
            kind: "model_call".to_owned(),
            input_tokens: u64::MAX,
            output_tokens: u64::MAX,
            ..Figure::default()
        };

        for _ in 0..3 {
            figures.record(&figure);
        }
        provider.shutdown().unwrap();
    }
}
