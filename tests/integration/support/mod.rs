//! What the tests share.

pub mod model_server;
mod random;

pub use random::{SplitMix, random_splits, seed};
