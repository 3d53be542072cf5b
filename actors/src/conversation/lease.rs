//! A lease: the exclusive claim of one activation to its conversation, and why the activation
//! ended.

use std::sync::Arc;

use super::{ConversationMsg, unsettled::UnsettledAppends};
use crate::{ids::Scope, journal::Head};

/// Why an activation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ExitReason {
    /// The conversation was idle and went to sleep.
    Hibernated,
    /// The conversation went to sleep because the host is stopping.
    Drained,
    /// Another owner writes the journal.
    Conflict,
    /// The journal grew by entries of the epoch that this activation was loaded from: an append of
    /// its own predecessor was stored late. The open round continues in the next activation.
    Overtaken,
    /// Another activation began from the same journal and stored its first append before this one;
    /// holds where the journal ends. It may be the predecessor of a killed process, whose append was
    /// stored late, or another owner.
    Contested(Head),
    /// The store was unavailable for too long.
    StoreAway {
        /// Whether a round is open that must continue when the store is back.
        has_open_round: bool,
    },
    /// The host has no memory for a conversation with an open round; holds the bytes of its history.
    NoMemory(u64),
    /// A newer program wrote the journal; holds the reason.
    NeedsNewerVersion(String),
    /// The journal does not decode or does not apply; holds the reason.
    Unreadable(String),
    /// The actor panicked or was killed.
    Crashed,
}

/// Grants leases and is notified when they end: the directory.
pub(crate) trait LeaseIssuer: Send + Sync {
    /// Holds mail for the next activation.
    fn hold(&self, scope: &Scope, generation: u64, mail: ConversationMsg);

    /// Activation `generation` ended with `end`; the next one may start. After a crash it should
    /// wait until the `appends` of this one are settled.
    fn ended(&self, scope: &Scope, generation: u64, end: &ExitReason, appends: &UnsettledAppends);
}

/// The slot of a conversation in the directory, held by one activation. Dropping the lease reports
/// the end to the directory, whatever happened to the actor.
pub(crate) struct Lease {
    issuer: Arc<dyn LeaseIssuer>,
    scope: Scope,
    generation: u64,
    end: ExitReason,
    appends: UnsettledAppends,
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
            appends: UnsettledAppends::default(),
            released: false,
        }
    }

    /// Sets the exit reason; the default is a crash.
    pub(crate) fn end_with(&mut self, end: ExitReason) {
        self.end = end;
    }

    /// The appends of this activation whose results are not known.
    pub(crate) fn appends(&self) -> &UnsettledAppends {
        &self.appends
    }

    /// Returns mail that arrived after admission was closed; the directory holds it for the next
    /// activation.
    pub(crate) fn give_back(&self, mail: ConversationMsg) {
        self.issuer.hold(&self.scope, self.generation, mail);
    }

    /// Ends the activation: the next one may start. Further calls have no effect.
    pub(crate) fn release(&mut self) {
        if !std::mem::replace(&mut self.released, true) {
            self.issuer
                .ended(&self.scope, self.generation, &self.end, &self.appends);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.release();
    }
}
