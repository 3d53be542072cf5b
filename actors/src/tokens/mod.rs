//! Token counts of texts and messages for a model: families, configurations, encodings, the
//! counter. The tables are compiled into the program.
//!
//! The encodings are OpenAI's. Their counts are exact for OpenAI's models only; for others they are
//! estimates, raised by a margin. [`crate::model_gateway::exact`] asks providers' APIs for exact
//! counts.
//!
//! Promises:
//! - counting never fails and never waits
//! - a registration applies to the next call
//! - a text of any shape is counted in time proportional to its length (`chunk`)
//! - an image or a document is never counted as text (`media`)
//!
//! How full a window is, as reported by providers, is tracked separately (`window`).
//!
//! Pure.

mod family;
mod config;
mod chunk;
mod encoder;
mod registry;
mod media;
mod counter;
mod window;

pub use config::EncoderConfig;
pub use counter::{ModelInfo, TokenCounter, count_conversation, count_message, count_text};
pub use encoder::{DecodeError, Encoder, Encoding};
pub use family::ModelFamily;

pub use registry::EncoderRegistry;

pub use window::WindowUse;
