//! Where rounds begin in the history of a [`Durable`], as a compaction uses it.
//!
//! Pure.

use super::Durable;
use crate::{chat::Role, journal::plain_user_starts};

impl Durable {
    /// Returns the index in the history of the first message of each round. Without marks, each
    /// message of a person begins a round. A round whose prompt had no message belongs to the one
    /// before it: what it answers stands there.
    pub(crate) fn round_starts(&self) -> Vec<usize> {
        let messages = self.history.messages();
        let begins_with_user = |start: &usize| {
            let first = messages.get(*start);
            first.is_some_and(|first| first.role() == Role::User)
        };
        let marks = self.rounds.as_slice().iter();
        let starts: Vec<usize> = marks
            .map(|mark| mark.start as usize)
            .filter(begins_with_user)
            .collect();
        match starts.as_slice() {
            [] => plain_user_starts(messages).collect(),
            _ => starts,
        }
    }
}
