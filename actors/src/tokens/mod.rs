//! Tokens: how many a text has and how full a window is. Pure.

mod counter;
mod window;

pub use counter::TokenCounter;
pub use window::WindowUse;
