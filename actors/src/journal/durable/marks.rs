//! Where rounds begin in the history of a [`Durable`].
//!
//! Pure.

use super::Durable;
use crate::journal::plain_user_starts;

impl Durable {
    /// Returns the indices in the history at which rounds begin, in increasing order. In a history
    /// without marks, each message of a person begins a round.
    pub(crate) fn round_starts(&self) -> Vec<usize> {
        match self.rounds.as_slice() {
            [] => plain_user_starts(self.history.messages()).collect(),
            marks => marks.iter().map(|mark| mark.start as usize).collect(),
        }
    }
}
