//! What the tests share.

pub mod model_server;
mod random;
mod scratch;

pub use random::{SplitMix, random_splits, seed};
pub use scratch::scratch;
