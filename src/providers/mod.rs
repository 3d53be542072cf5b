//! Adapters of the `LlmProvider` port: one folder a wire.

pub mod offline;
