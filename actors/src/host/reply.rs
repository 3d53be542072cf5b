//! The caller's end of a round: its events as they arrive, and its outcome.

use crate::{
    conversation::ConversationMsg,
    host::OutcomeError,
    ids::{EventId, RoundId, Scope},
    stream::{RoundEnd, StreamEvent},
};
use std::sync::Arc;

use super::{HostInner, round_watch::RoundWatch};

/// A round that a prompt started. Dropping it does not cancel the round.
pub struct Reply {
    host: Arc<HostInner>,
    replayed: bool,
    watch: RoundWatch,
}

impl Reply {
    pub(super) fn new(
        host: Arc<HostInner>,
        scope: Scope,
        round_id: RoundId,
        replayed: bool,
    ) -> Self {
        let watch = RoundWatch::new(
            host.ports.clone(),
            host.directory.stopped(),
            host.tenants.get(&scope.tenant).reads().clone(),
            scope,
            round_id,
        );
        Self {
            host,
            replayed,
            watch,
        }
    }

    /// Continues after this event, for a caller that reconnects.
    #[must_use]
    pub fn after(self, cursor: EventId) -> Self {
        Self {
            watch: self.watch.after(cursor),
            ..self
        }
    }

    /// The id of the round, which is also the id of its event stream.
    pub fn round_id(&self) -> RoundId {
        self.watch.key().round
    }

    /// Whether the prompt's client key was known already, so that this is the round of an earlier
    /// prompt.
    pub fn is_replayed(&self) -> bool {
        self.replayed
    }

    /// Returns the next event; `None` after the last one, and once the host has stopped. Waits
    /// while the round is open, whether or not its conversation is active, and does not activate
    /// it.
    ///
    /// # Cancel safety
    /// Cancel safe: no event is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<Arc<StreamEvent>> {
        self.watch.next().await
    }

    /// Returns the next event if it is there; `None` otherwise. Does not wait for the round.
    ///
    /// # Cancel safety
    /// Cancel safe: no event is lost when the future is dropped.
    pub async fn next_now(&mut self) -> Option<Arc<StreamEvent>> {
        self.watch.next_now().await
    }

    /// Whether the round has ended and all of its events were returned. Does not wait for the
    /// round.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn is_over(&mut self) -> bool {
        self.watch.is_over().await
    }

    /// Waits for the round's end.
    ///
    /// # Errors
    /// [`OutcomeError::Failed`] carries the text that was generated until the failure.
    ///
    /// # Cancel safety
    /// Dropping the future does not cancel the round.
    pub async fn outcome(&mut self) -> Result<RoundEnd, OutcomeError> {
        self.watch.outcome().await
    }

    /// Requests cancellation of the round: its model call, its tools and their processes. Returns
    /// at once; [`Reply::outcome`] reports the end.
    pub fn interrupt(&self) {
        self.host.directory.send(
            &self.watch.key().scope,
            ConversationMsg::Cancel { failure: None },
        );
    }
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Reply({} {})",
            self.watch.key().scope,
            self.watch.key().round
        )
    }
}
