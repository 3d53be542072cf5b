//! What an adapter must keep, as tests that every adapter calls.

mod llm_provider;

pub use llm_provider::{Scene, Stage, TEXT, example_request, llm_provider};
