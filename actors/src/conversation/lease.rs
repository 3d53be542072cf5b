//! A lease: the exclusive claim of one activation to its conversation, and why the activation
//! ended.

use std::sync::Arc;

use super::ConversationMsg;
use crate::ids::Scope;

/// Why an activation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ExitReason {
    /// The conversation was idle and went to sleep.
    Hibernated,
    /// The conversation went to sleep because the host is stopping.
    Drained,
    /// Another activation writes the journal.
    Conflict,
    /// The store was unavailable for too long.
    StoreAway,
    /// The journal does not decode or does not apply; holds the reason.
    Unreadable(String),
    /// The actor panicked or was killed.
    Crashed,
}

/// Grants leases and is notified when they end: the directory.
pub(crate) trait LeaseIssuer: Send + Sync {
    /// Holds mail for the next activation.
    fn hold(&self, scope: &Scope, generation: u64, mail: ConversationMsg);

    /// Activation `generation` ended with `end`; the next one may start.
    fn ended(&self, scope: &Scope, generation: u64, end: &ExitReason);
}

/// The slot of a conversation in the directory, held by one activation. Dropping the lease reports
/// the end to the directory, whatever happened to the actor.
pub(crate) struct Lease {
    issuer: Arc<dyn LeaseIssuer>,
    scope: Scope,
    generation: u64,
    end: ExitReason,
    released: bool,
}

impl Lease {
    /// A lease of activation `generation`. Its exit reason is a crash unless [`Lease::end_with`]
    /// sets another one.
    pub(crate) fn new(issuer: Arc<dyn LeaseIssuer>, scope: Scope, generation: u64) -> Self {
        Self {
            issuer,
            scope,
            generation,
            end: ExitReason::Crashed,
            released: false,
        }
    }

    /// Sets the exit reason; the default is a crash.
    pub(crate) fn end_with(&mut self, end: ExitReason) {
        self.end = end;
    }

    /// Returns mail that arrived after admission was closed; the directory holds it for the next
    /// activation.
    pub(crate) fn give_back(&self, mail: ConversationMsg) {
        self.issuer.hold(&self.scope, self.generation, mail);
    }

    /// Ends the activation: the next one may start. Further calls have no effect.
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
