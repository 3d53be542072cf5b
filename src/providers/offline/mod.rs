//! Models without a network: scripted and rule-based.

mod scripted;
mod rules;

pub use rules::Offline;
pub use scripted::{Scripted, ScriptedCall, ScriptedConfig};
