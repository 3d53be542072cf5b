//! A conversation: the turn (pure) and its shell.

mod batch;
pub mod lane;
pub mod turn;
pub mod volatile;
