//! Where rounds begin in the history of a state.
//!
//! Pure.

use super::Durable;
use crate::journal::plain_user_starts;

impl Durable {
    /// Indices in the history at which rounds begin, rising. A history without any mark is taken to begin one with each message of a
    /// person.
    pub fn round_starts(&self) -> Vec<usize> {
        match self.rounds.as_slice() {
            [] => plain_user_starts(self.history.messages()).collect(),
            marks => marks.iter().map(|mark| mark.start as usize).collect(),
        }
    }
}
