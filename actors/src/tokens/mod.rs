//! How many tokens a text has for a model: families, configurations, encodings, the counter. Pure: the tables are part of the program.
//!
//! The encodings are OpenAI's. Their counts are exact for OpenAI's models alone; for others they are an estimate that a margin raises
//! (REQUIREMENTS CON-35). An API that counts is asked by [`crate::model_gateway::exact`].
//!
//! Promises:
//! - counting never fails and never waits
//! - what is registered holds for the next call
//! - a text of any shape is counted in time proportional to its length (`chunk`)
//! - an image or a document is never counted as text (`media`)
//!
//! How full a window is, by what providers report, is another thing (`window`, CON-42).
//!
//! Pure.

mod family;
mod config;
mod chunk;
mod encoder;
mod registry;
mod rough;
mod media;
mod counter;
mod window;

pub use chunk::TOKENS_PER_HARD_CUT;
pub use config::{DEFAULT_ENCODING, EncoderConfig, EncoderConfigError};
pub use counter::{ModelInfo, TokenCounter, count_conversation, count_message, count_text};
pub use encoder::{DecodeError, Encoder, Encoding};
pub use family::ModelFamily;
pub use media::{IMAGE_TOKENS_MAX, PAGE_TOKENS};
pub use registry::{EncoderRegistry, FALLBACK_MARGIN};
pub use rough::{rough_tokens, rough_tokens_by_content};
pub use window::WindowUse;
