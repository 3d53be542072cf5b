//! Observability: Prometheus metrics, traces and metrics for OpenTelemetry, and masking of secrets.
//! There are no globals: the application owns registries, providers and subscribers.
//!
//! # Layout
//! `redact` masks secrets · `process` reads `/proc` · `prometheus` renders `/metrics` ·
//! `semconv` holds the names of OpenTelemetry's conventions · `otlp` exports.

#[cfg(feature = "tools")]
pub mod redact;
pub(crate) mod process;
mod prometheus;
#[cfg(feature = "otel")]
pub mod semconv;
#[cfg(feature = "otel")]
pub mod otlp;

#[cfg(feature = "http")]
pub(crate) use prometheus::webhook_text;
pub use prometheus::{PROMETHEUS_CONTENT_TYPE, View, prometheus_text};
#[cfg(feature = "tools")]
pub use redact::Redactor;
