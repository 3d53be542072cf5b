//! What an adapter must keep, as tests that every adapter calls.

mod event_store;
mod session_backend;

pub use event_store::event_store;
pub use session_backend::session_backend;
mod llm_provider;
pub use llm_provider::{Scene, Stage, TEXT, example_request, llm_provider};
