//! What a host shows of itself: figures for Prometheus, traces and metrics for OpenTelemetry, and the one place where keys are masked.
//! No globals: the application owns registries, providers and subscribers (DESIGN §9).
//!
//! # Layout
//! `redact` what may not leave · `process` what the system says of us · `prometheus` the text of `/metrics` · `semconv` names · `otlp` the exporter.

#[cfg(feature = "tools")]
pub mod redact;
pub(crate) mod process;
mod prometheus;
#[cfg(feature = "otel")]
pub mod semconv;
#[cfg(feature = "otel")]
pub mod otlp;

pub use prometheus::{PROMETHEUS_CONTENT_TYPE, View, prometheus_text};
#[cfg(feature = "tools")]
pub use redact::Redactor;
