//! The Responses API: stateless calls (`store: false`) whose reasoning goes back in a sealed form.
//! [`super::OpenAi`] is its adapter.

mod wire;
pub(super) mod convert;
mod stream;

pub use self::stream::ResponsesAssembler;
