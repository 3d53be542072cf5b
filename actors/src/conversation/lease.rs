//! The claim of one activation to be the only one of its conversation, and how it ended.

use std::sync::Arc;

use super::ConversationMsg;
use crate::ids::Scope;

/// How a life ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ExitReason {
    /// It went to sleep.
    Hibernated,
    /// It went to sleep because the host stops.
    Drained,
    /// Another life writes the journal.
    Conflict,
    /// The store was away too long.
    StoreAway,
    /// The journal does not decode or apply.
    Unreadable(String),
    /// It panicked, or was killed.
    Crashed,
}

/// What grants leases and learns of their end: the directory.
pub(crate) trait LeaseIssuer: Send + Sync {
    /// Takes back mail for the next activation.
    fn hold(&self, scope: &Scope, generation: u64, mail: ConversationMsg);

    /// The activation with this number ended; the next one may begin.
    fn ended(&self, scope: &Scope, generation: u64, end: &ExitReason);
}

/// A conversation's place in the directory for one life. Whatever happens to the actor, its drop tells the directory.
pub(crate) struct Lease {
    issuer: Arc<dyn LeaseIssuer>,
    scope: Scope,
    generation: u64,
    end: ExitReason,
    released: bool,
}

impl Lease {
    /// A lease of activation `generation`, which crashed unless it says how it ends.
    pub(crate) fn new(issuer: Arc<dyn LeaseIssuer>, scope: Scope, generation: u64) -> Self {
        Self { issuer, scope, generation, end: ExitReason::Crashed, released: false }
    }

    /// Says how the life ends; without this it crashed.
    pub(crate) fn end_with(&mut self, end: ExitReason) {
        self.end = end;
    }

    /// Gives back a mail that came after admission was closed; it is held for the next life.
    pub(crate) fn give_back(&self, mail: ConversationMsg) {
        self.issuer.hold(&self.scope, self.generation, mail);
    }

    /// Ends the life: the next one may begin.
    pub(crate) fn release(&mut self) {
        if !std::mem::replace(&mut self.released, true) {
            self.issuer.ended(&self.scope, self.generation, &self.end);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.release();
    }
}
