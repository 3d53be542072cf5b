//! What a host shows of itself: figures for Prometheus, traces and metrics for OpenTelemetry, and the one place where keys are masked.
//! No globals: the application owns registries, providers and subscribers (DESIGN §9).
//!
//! # Layout
//! `prometheus` the text of `/metrics` · `redact` what may not leave.

mod prometheus;
#[cfg(feature = "tools")]
pub mod redact;

pub use prometheus::{PROMETHEUS_CONTENT_TYPE, View, prometheus_text};
#[cfg(feature = "tools")]
pub use redact::Redactor;
