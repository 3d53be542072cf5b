//! What the writer is asked to do, and the result of it.

use bytes::Bytes;
#[cfg(feature = "sqlite")]
use callboard_actors::ports::OutboxMessage;
use callboard_actors::{
    ids::{Scope, Seq, TenantId},
    journal::Head,
    policy::Amount,
    ports::{Append, AppendError, Durability, StoreError},
    stream::Open,
};
use tokio::sync::oneshot;

use super::error::{WriteError, unavailable};

/// Result of one member of a commit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::storage) struct Change {
    /// Whether the conversation existed.
    pub(in crate::storage) found: bool,
    /// Change of the tenant's stored bytes.
    pub(in crate::storage) bytes: i64,
    /// The tenant's stored bytes, if they were counted.
    pub(in crate::storage) counted: Option<u64>,
    /// What it cost, in rows and pages. Only that of erasures is counted.
    #[cfg(feature = "sqlite")]
    pub(in crate::storage) work: usize,
    /// Whether [`Job::rest`] is still to be done.
    pub(in crate::storage) is_partial: bool,
    /// What the tenant has spent, if that was asked.
    pub(in crate::storage) spent: Option<Amount>,
    /// The messages that were claimed.
    #[cfg(feature = "sqlite")]
    pub(in crate::storage) claimed: Vec<OutboxMessage>,
    /// The messages that were removed, and those that are left.
    #[cfg(feature = "sqlite")]
    pub(in crate::storage) trimmed: (u64, u64),
}

/// Bytes of a page of a database.
#[cfg(feature = "sqlite")]
const PAGE_BYTES: i64 = 4096;

/// What it costs to remove so much.
#[cfg(feature = "sqlite")]
pub(in crate::storage) fn work(rows: usize, bytes: i64) -> usize {
    rows.saturating_add(usize::try_from(bytes / PAGE_BYTES).unwrap_or_default())
}

/// What erasures that were cut off by the end of a host have left.
#[derive(Debug, Default)]
pub(in crate::storage) struct Unfinished {
    /// Tenants with deleted conversations whose entries are still there.
    pub(in crate::storage) deleted: Vec<TenantId>,
    /// Conversations whose entries are read as empty and still hold bytes.
    pub(in crate::storage) emptied: Vec<Scope>,
}

impl Unfinished {
    /// Most of each kind that one start takes.
    pub(in crate::storage) const MAX: usize = 1000;

    /// The jobs that do the rest. No caller waits for them.
    pub(in crate::storage) fn jobs(self) -> impl Iterator<Item = Job> {
        let deleted = self.deleted.into_iter();
        let deleted = deleted.map(|tenant| Job::Clear(tenant, true, oneshot::channel().0));
        let emptied = self.emptied.into_iter();
        deleted.chain(emptied.map(|scope| Job::Empty(scope, Seq(0), oneshot::channel().0)))
    }
}

/// A change of the messages of a tenant. Times are milliseconds since 1970.
#[cfg(feature = "sqlite")]
#[derive(Debug)]
pub(in crate::storage) enum OutboxChange {
    /// Claims at most `count` messages until a time.
    Claim {
        now: i64,
        until: i64,
        count: i64,
        answer: Answer<Vec<OutboxMessage>>,
    },
    /// Removes a message, or makes it due again at a time.
    Settle {
        id: String,
        again: Option<i64>,
        answer: Answer<()>,
    },
    /// Removes messages from before a time, and the oldest beyond `keep`.
    Trim {
        before: i64,
        keep: i64,
        answer: Answer<(u64, u64)>,
    },
}

impl Change {
    pub(in crate::storage) fn found(bytes: i64) -> Self {
        Self {
            found: true,
            bytes,
            ..Self::default()
        }
    }
}

/// The channel for a job's result.
pub(in crate::storage) type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

/// A change of one conversation or of a whole tenant. All kinds share a tenant's line, which
/// preserves the order of calls.
#[derive(Debug)]
pub(in crate::storage) enum Job {
    Append(Append),
    Delete(Scope, Answer<bool>),
    /// Removes a piece of what deletions of the tenant have left. The flag says whether the
    /// conversation existed whose caller waits.
    Clear(TenantId, bool, Answer<bool>),
    Snapshot(Scope, Seq, Bytes, Answer<()>),
    Mark(Scope, Option<String>, Answer<()>),
    /// Deletes everything of a tenant, including rows whose id is invalid.
    Erase(TenantId, Answer<bool>),
    /// Empties the bodies of all entries up to this one, and deletes a snapshot of them: from its
    /// first piece on they are read as empty, and each piece removes some of their bytes. With 0,
    /// only a piece of what an earlier one has left.
    Empty(Scope, Seq, Answer<()>),
    /// Ends a journal at this head, in this state.
    Cut(Scope, Head, Open, Answer<()>),
    /// Counts a tenant's stored bytes; changes nothing.
    Count(TenantId, Answer<u64>),
    /// Adds to what a tenant has spent.
    Spend(TenantId, Amount, Answer<Option<Amount>>),
    /// Changes messages for receivers outside.
    #[cfg(feature = "sqlite")]
    Outbox(TenantId, OutboxChange),
    /// Gives a conversation up, in a store of several hosts. No one waits for it.
    #[cfg_attr(
        not(feature = "postgres"),
        expect(dead_code, reason = "the other stores belong to one machine")
    )]
    Release(Scope),
}

impl Job {
    pub(in crate::storage) fn tenant(&self) -> &TenantId {
        match self {
            Self::Append(append) => &append.scope.tenant,
            Self::Delete(scope, _)
            | Self::Snapshot(scope, ..)
            | Self::Mark(scope, ..)
            | Self::Empty(scope, ..)
            | Self::Cut(scope, ..)
            | Self::Release(scope) => &scope.tenant,
            Self::Clear(tenant, ..)
            | Self::Erase(tenant, _)
            | Self::Count(tenant, _)
            | Self::Spend(tenant, ..) => tenant,
            #[cfg(feature = "sqlite")]
            Self::Outbox(tenant, _) => tenant,
        }
    }

    #[cfg(feature = "postgres")]
    pub(in crate::storage) fn as_append(&self) -> Option<&Append> {
        match self {
            Self::Append(append) => Some(append),
            _ => None,
        }
    }

    /// The conversation that it changes; `None` if it concerns all of its tenant.
    #[cfg(feature = "postgres")]
    pub(in crate::storage) fn scope(&self) -> Option<&Scope> {
        match self {
            Self::Append(append) => Some(&append.scope),
            Self::Delete(scope, _)
            | Self::Snapshot(scope, ..)
            | Self::Mark(scope, ..)
            | Self::Empty(scope, ..)
            | Self::Cut(scope, ..)
            | Self::Release(scope) => Some(scope),
            Self::Clear(..) | Self::Erase(..) | Self::Count(..) | Self::Spend(..) => None,
            #[cfg(feature = "sqlite")]
            Self::Outbox(..) => None,
        }
    }

    pub(in crate::storage) fn size(&self) -> usize {
        match self {
            Self::Append(append) => append.size(),
            Self::Snapshot(_, _, bytes, _) => bytes.len().saturating_add(256),
            Self::Delete(..)
            | Self::Clear(..)
            | Self::Mark(..)
            | Self::Erase(..)
            | Self::Empty(..)
            | Self::Cut(..)
            | Self::Count(..)
            | Self::Spend(..)
            | Self::Release(_) => 256,
            #[cfg(feature = "sqlite")]
            Self::Outbox(..) => 256,
        }
    }

    pub(in crate::storage) fn is_awaited(&self) -> bool {
        match self {
            Self::Append(append) => append.durability == Durability::Awaited,
            Self::Delete(..)
            | Self::Clear(..)
            | Self::Mark(..)
            | Self::Erase(..)
            | Self::Empty(..)
            | Self::Cut(..)
            | Self::Count(..)
            | Self::Spend(..) => true,
            #[cfg(feature = "sqlite")]
            Self::Outbox(..) => true,
            Self::Snapshot(..) | Self::Release(_) => false,
        }
    }

    /// Whether it stores only what can be computed again.
    pub(in crate::storage) fn is_cache(&self) -> bool {
        matches!(self, Self::Snapshot(..))
    }

    /// What is left of it after a piece. It may be done before or after any other job.
    pub(in crate::storage) fn rest(self, piece: &Change) -> Self {
        match self {
            Self::Delete(scope, answer) => Self::Clear(scope.tenant, piece.found, answer),
            Self::Empty(scope, _, answer) => Self::Empty(scope, Seq(0), answer),
            other => other,
        }
    }

    /// Whether it removes data: work that may be long, and that SQLite's log then still holds.
    pub(in crate::storage) fn is_erasure(&self) -> bool {
        match self {
            Self::Delete(..)
            | Self::Clear(..)
            | Self::Erase(..)
            | Self::Empty(..)
            | Self::Cut(..) => true,
            Self::Append(_)
            | Self::Snapshot(..)
            | Self::Mark(..)
            | Self::Count(..)
            | Self::Spend(..)
            | Self::Release(_) => false,
            #[cfg(feature = "sqlite")]
            Self::Outbox(..) => false,
        }
    }

    /// Sends the result to the caller.
    pub(in crate::storage) fn finish(self, result: Result<Change, WriteError>) {
        match self {
            Self::Release(_) => {}
            #[cfg(feature = "sqlite")]
            Self::Outbox(_, change) => {
                let result = result.map_err(StoreError::from);
                match change {
                    OutboxChange::Claim { answer, .. } => {
                        drop(answer.send(result.map(|change| change.claimed)));
                    }
                    OutboxChange::Settle { answer, .. } => drop(answer.send(result.map(drop))),
                    OutboxChange::Trim { answer, .. } => {
                        drop(answer.send(result.map(|change| change.trimmed)));
                    }
                }
            }
            Self::Append(append) => (append.done)(result.map(drop).map_err(AppendError::from)),
            Self::Delete(_, answer) | Self::Erase(_, answer) => {
                drop(answer.send(result.map(|change| change.found).map_err(StoreError::from)))
            }
            Self::Clear(_, was_there, answer) => {
                drop(answer.send(result.map(|_| was_there).map_err(StoreError::from)));
            }
            Self::Snapshot(_, _, _, answer)
            | Self::Mark(_, _, answer)
            | Self::Empty(_, _, answer)
            | Self::Cut(_, _, _, answer) => {
                drop(answer.send(result.map(drop).map_err(StoreError::from)));
            }
            Self::Spend(_, _, answer) => {
                drop(answer.send(result.map(|change| change.spent).map_err(StoreError::from)));
            }
            Self::Count(_, answer) => drop(
                answer.send(
                    result
                        .map(|change| change.counted.unwrap_or_default())
                        .map_err(StoreError::from),
                ),
            ),
        }
    }

    /// Refuses the job because too many others wait.
    pub(in crate::storage) fn refuse_overload(self, why: &str) {
        match self {
            Self::Append(append) => (append.done)(Err(AppendError::Overloaded {
                message: why.into(),
            })),
            other => other.refuse(why),
        }
    }

    pub(in crate::storage) fn refuse(self, why: &str) {
        match self {
            Self::Append(append) => (append.done)(Err(AppendError::Unavailable {
                message: why.into(),
            })),
            Self::Delete(_, answer) | Self::Clear(_, _, answer) | Self::Erase(_, answer) => {
                drop(answer.send(Err(unavailable(why))))
            }
            Self::Snapshot(_, _, _, answer)
            | Self::Mark(_, _, answer)
            | Self::Empty(_, _, answer)
            | Self::Cut(_, _, _, answer) => drop(answer.send(Err(unavailable(why)))),
            Self::Count(_, answer) => drop(answer.send(Err(unavailable(why)))),
            Self::Spend(_, _, answer) => drop(answer.send(Err(unavailable(why)))),
            #[cfg(feature = "sqlite")]
            Self::Outbox(_, change) => {
                let refusal = unavailable(why);
                match change {
                    OutboxChange::Claim { answer, .. } => drop(answer.send(Err(refusal))),
                    OutboxChange::Settle { answer, .. } => drop(answer.send(Err(refusal))),
                    OutboxChange::Trim { answer, .. } => drop(answer.send(Err(refusal))),
                }
            }
            Self::Release(_) => {}
        }
    }
}
