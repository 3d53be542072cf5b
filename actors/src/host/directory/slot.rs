//! The states of a conversation in the directory.

use std::{sync::Arc, time::Duration};

use ractor::ActorRef;
use tokio::{sync::Notify, time::Instant};

use super::after_exit::Resume;
use crate::{
    conversation::{ConversationError, ConversationMsg, UnsettledAppends, WaitStatus},
    policy::RestartHistory,
};

pub(super) type Mail = Vec<ConversationMsg>;
pub(super) type Crashes = Option<Box<RestartHistory>>;

/// The state of a conversation that is not asleep. A sleeping conversation has no slot.
/// `generation` identifies the activation that a callback speaks of: a callback with an older
/// generation is ignored.
pub(super) enum Slot {
    Starting {
        generation: u64,
        held: Mail,
        crashes: Crashes,
    },
    Live {
        generation: u64,
        actor: ActorRef<ConversationMsg>,
        crashes: Crashes,
        used_s: u64,
        wait_status: Arc<WaitStatus>,
    },
    /// `returned` was in the mailbox of the ending actor, so it comes before what was held since.
    Closing {
        generation: u64,
        returned: Mail,
        held: Mail,
        crashes: Crashes,
    },
    Backoff {
        generation: u64,
        held: Mail,
        crashes: Crashes,
    },
    Failed {
        error: ConversationError,
        until: Instant,
    },
    /// `ending` is the generation whose actor has not ended yet, `None` once it has. Holds no
    /// messages: whatever arrives is refused.
    Deleting {
        ending: Option<u64>,
        over: Arc<Notify>,
    },
}

impl Slot {
    pub(super) fn generation(&self) -> Option<u64> {
        match self {
            Self::Starting { generation, .. }
            | Self::Live { generation, .. }
            | Self::Closing { generation, .. }
            | Self::Backoff { generation, .. } => Some(*generation),
            Self::Deleting { ending, .. } => *ending,
            Self::Failed { .. } => None,
        }
    }

    /// Returns what must leave the shard guard with the slot: held messages, crash history, actor.
    pub(super) fn into_parts(self) -> (Mail, Crashes, Option<ActorRef<ConversationMsg>>) {
        match self {
            Self::Closing {
                mut returned,
                held,
                crashes,
                ..
            } => {
                returned.extend(held);
                (returned, crashes, None)
            }
            Self::Starting { held, crashes, .. } | Self::Backoff { held, crashes, .. } => {
                (held, crashes, None)
            }
            Self::Live { actor, crashes, .. } => (Vec::new(), crashes, Some(actor)),
            Self::Failed { .. } | Self::Deleting { .. } => (Vec::new(), None, None),
        }
    }
}

/// The activity of a conversation, as its status shows it.
pub(crate) enum Activity {
    /// The conversation has no slot.
    Asleep,
    /// The conversation is starting, stopping, waiting for a restart or being deleted.
    Changing,
    /// The conversation has an actor, which reports here what it waits for.
    Awake(Arc<WaitStatus>),
    /// The conversation crashed too often, or its journal cannot be read. It accepts no messages
    /// for a while.
    Failed(ConversationError),
}

/// What a slot change requires after the shard guard is released.
pub(super) enum AfterUnlock {
    Nothing,
    Activate(u64),
    Refuse(Mail, ConversationError),
    WakeAfter {
        after: Duration,
        generation: u64,
        resume: Resume,
        /// The activation starts when these are settled.
        appends: UnsettledAppends,
    },
}
