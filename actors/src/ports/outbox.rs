//! The outbox: messages for receivers outside of the host. The store keeps a message from the
//! transaction that stored the entry it follows from until it is delivered or given up.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{BoxFuture, StoreError};
use crate::{
    ids::{Scope, TenantId},
    time::Timestamp,
};

/// What a receiver outside is informed of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OutboxEvent {
    /// A round ended with an answer, or at a limit of its model calls.
    Finished,
    /// A round ended by a failure, or its prompt was withdrawn before the round began.
    Failed,
    /// A round was interrupted, or its prompt was taken back by its caller.
    Interrupted,
    /// A call waits for a person's approval.
    ApprovalRequired,
    /// A call waits for the client that brought its tool.
    ClientToolCall,
}

/// One message of the outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxMessage {
    /// Names the message. The same for each try, and for no other message.
    pub id: String,
    /// The conversation that it is about.
    pub scope: Scope,
    /// When the entry was decided from which the message follows.
    pub at: Timestamp,
    /// The JSON that the receiver gets: ids and figures, no contents of the conversation.
    pub body: Bytes,
    /// Tries that were begun, with the current one.
    pub tries: u32,
}

/// The messages that wait in a store.
///
/// A claimed message is hidden for a lease, so several hosts of one store do not deliver it at the
/// same time. A host that ends without settling it leaves it to the next claim: messages are
/// delivered at least once.
///
/// Its contract is a part of that of [`SessionBackend`](super::SessionBackend).
pub trait Outbox: Send + Sync + 'static {
    /// Returns the tenants that have messages, each with whether one is due at `now`.
    fn tenants(&self, now: Timestamp) -> BoxFuture<'_, Result<Vec<(TenantId, bool)>, StoreError>>;

    /// Claims at most `count` of a tenant's messages that are due, those that have waited longest
    /// first. They are due again after `lease`.
    fn claim<'a>(
        &'a self,
        tenant: &'a TenantId,
        now: Timestamp,
        lease: Duration,
        count: usize,
    ) -> BoxFuture<'a, Result<Vec<OutboxMessage>, StoreError>>;

    /// Removes a message, or makes it due again a time after `now`. Does nothing if it is gone.
    fn settle<'a>(
        &'a self,
        message: &'a OutboxMessage,
        now: Timestamp,
        again: Option<Duration>,
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Removes the messages of a tenant that are older than `before`, and the oldest beyond `keep`.
    /// Returns how many were removed, and how many are left.
    fn trim<'a>(
        &'a self,
        tenant: &'a TenantId,
        before: Timestamp,
        keep: usize,
    ) -> BoxFuture<'a, Result<(u64, u64), StoreError>>;
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_port_is_dyn_compatible() {
        fn takes(_: &dyn super::Outbox) {}
        let _ = takes;
    }
}
