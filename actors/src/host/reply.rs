//! What a caller of `send` holds: the round's events as they come, and its outcome.

use crate::{
    conversation::ConversationMsg,
    host::OutcomeError,
    ids::{EventId, RoundId, Scope},
    stream::{RoundEnd, StreamEvent},
};
use std::sync::Arc;

use super::{HostInner, round_watch::RoundWatch};

/// A round as its caller sees it. Dropping it cancels nothing.
pub struct Reply {
    host: Arc<HostInner>,
    replayed: bool,
    watch: RoundWatch,
}

impl Reply {
    pub(super) fn new(host: Arc<HostInner>, scope: Scope, round_id: RoundId, replayed: bool) -> Self {
        let watch = RoundWatch::new(host.ports.clone(), host.directory.stopped(), scope, round_id);
        Self { host, replayed, watch }
    }

    /// The same round, told on behind this event.
    #[must_use]
    pub fn after(self, cursor: EventId) -> Self {
        Self { watch: self.watch.after(cursor), ..self }
    }

    /// The round; also the id of its stream.
    pub fn round_id(&self) -> RoundId {
        self.watch.key().round
    }

    /// Whether the prompt was known already by its client key.
    pub fn is_replayed(&self) -> bool {
        self.replayed
    }

    /// The next event; `None` after the last one, and once the host has stopped. A round that is not over is waited for, whether or not
    /// its conversation is awake; it is not woken.
    ///
    /// # Cancel safety
    /// Cancel safe: no event is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<Arc<StreamEvent>> {
        self.watch.next().await
    }

    /// Whether all of the round was told: it has ended, and nothing stands behind the cursor. A look, not a wait.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn is_over(&mut self) -> bool {
        self.watch.is_over().await
    }

    /// Waits for the round's end.
    ///
    /// # Errors
    /// [`OutcomeError::Failed`] carries what was said until the failure.
    ///
    /// # Cancel safety
    /// Dropping the future does not cancel the round.
    pub async fn outcome(&mut self) -> Result<RoundEnd, OutcomeError> {
        self.watch.outcome().await
    }

    /// Asks the round to end now: model, tools and their processes. Returns at once; the outcome tells the end.
    pub fn interrupt(&self) {
        self.host.directory.send(&self.watch.key().scope, ConversationMsg::Interrupt { failure: None, reply: None });
    }
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reply({} {})", self.watch.key().scope, self.watch.key().round)
    }
}
