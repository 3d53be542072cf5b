//! What follows the end of an activation: sleep, a restart, a pause or a refusal. The directory
//! holds the slots and carries the decision out.
//!
//! Pure.

use std::time::Duration;

use crate::{
    conversation::{ConversationError, ExitReason},
    journal::Head,
    policy::Restart,
};

/// Pause before a conversation whose store failed is loaded again. An open round continues within a
/// second after the store is back.
const STORE_RETRY: Duration = Duration::from_millis(500);

/// How often a conversation looks for the memory that it needs to go on.
pub(super) const MEMORY_RETRY: Duration = Duration::from_secs(1);

/// How long a journal that another activation may write is left alone. An owner at work appends
/// within this time, or its round is taken over, which its own next append notices.
const CONTESTED_PAUSE: Duration = Duration::from_secs(5);

/// How long a conversation with an unreadable journal refuses messages.
const UNREADABLE_PAUSE: Duration = Duration::from_secs(60);

/// The next state of a slot whose activation has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AfterExit {
    /// The slot is removed. It holds no messages.
    Sleep,
    /// The slot is removed, and its held messages are refused: the host is draining.
    Drain,
    /// Another activation starts and gets the held messages.
    Activate,
    /// Another activation starts after a pause.
    Backoff { after: Duration, resume: Resume },
    /// Messages are refused for this long, the held ones included.
    Fail {
        error: ConversationError,
        pause: Duration,
    },
}

/// Whether the activation after a pause starts with a `resume` message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resume {
    /// It does.
    Always,
    /// It does if the journal still ends here; otherwise as for [`Resume::Never`].
    IfAt(Head),
    /// It does, as soon as the tenant has memory for a history of this many bytes, or as messages are
    /// held.
    WithMemory(u64),
    /// An activation starts only if messages are held by then.
    Never,
}

/// Decides what follows the end of an activation. `crash` records a crash; it is called only for a
/// crash that may be followed by a restart.
pub(super) fn after_exit(
    end: &ExitReason,
    is_draining: bool,
    holds_mail: bool,
    crash: impl FnOnce() -> Restart,
) -> AfterExit {
    match end {
        ExitReason::Drained => AfterExit::Drain,
        _ if is_draining => AfterExit::Drain,
        ExitReason::Hibernated | ExitReason::Conflict if holds_mail => AfterExit::Activate,
        ExitReason::Hibernated | ExitReason::Conflict => AfterExit::Sleep,
        ExitReason::StoreAway { has_open_round } => AfterExit::Backoff {
            after: STORE_RETRY,
            resume: if *has_open_round {
                Resume::Always
            } else {
                Resume::Never
            },
        },
        ExitReason::Contested(found) => AfterExit::Backoff {
            after: CONTESTED_PAUSE,
            resume: Resume::IfAt(*found),
        },
        ExitReason::NoMemory(bytes) => AfterExit::Backoff {
            after: MEMORY_RETRY,
            resume: Resume::WithMemory(*bytes),
        },
        ExitReason::NeedsNewerVersion(reason) => AfterExit::Fail {
            error: ConversationError::NeedsNewerVersion {
                reason: reason.clone(),
            },
            pause: UNREADABLE_PAUSE,
        },
        ExitReason::Unreadable(reason) => AfterExit::Fail {
            error: ConversationError::Failed {
                reason: reason.clone(),
            },
            pause: UNREADABLE_PAUSE,
        },
        // Bounded like crashes, so that two owners do not take a conversation from each other for
        // ever.
        ExitReason::Crashed | ExitReason::Overtaken => match crash() {
            Restart::After(after) => AfterExit::Backoff {
                after,
                resume: Resume::Always,
            },
            Restart::Fail(pause) => AfterExit::Fail {
                error: ConversationError::Failed {
                    reason: "it crashed again and again".into(),
                },
                pause,
            },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_activation_sleeps_restarts_pauses_or_fails() {
        let ms = Duration::from_millis;
        let fail = |reason: &str, pause| AfterExit::Fail {
            error: ConversationError::Failed {
                reason: reason.into(),
            },
            pause,
        };
        let unreadable = || ExitReason::Unreadable("entry 3".into());
        let again = Restart::After(ms(100));
        let never = Restart::Fail(ms(60_000));
        let head = Head {
            epoch: crate::ids::Epoch(2),
            seq: crate::ids::Seq(5),
        };

        let table = [
            // How it ended, what a crash is followed by, then the decision without and with held
            // mail.
            (
                ExitReason::Hibernated,
                again,
                AfterExit::Sleep,
                AfterExit::Activate,
            ),
            (
                ExitReason::Conflict,
                again,
                AfterExit::Sleep,
                AfterExit::Activate,
            ),
            (
                ExitReason::Drained,
                again,
                AfterExit::Drain,
                AfterExit::Drain,
            ),
            (
                ExitReason::StoreAway {
                    has_open_round: false,
                },
                again,
                AfterExit::Backoff {
                    after: STORE_RETRY,
                    resume: Resume::Never,
                },
                AfterExit::Backoff {
                    after: STORE_RETRY,
                    resume: Resume::Never,
                },
            ),
            (
                ExitReason::StoreAway {
                    has_open_round: true,
                },
                again,
                AfterExit::Backoff {
                    after: STORE_RETRY,
                    resume: Resume::Always,
                },
                AfterExit::Backoff {
                    after: STORE_RETRY,
                    resume: Resume::Always,
                },
            ),
            (
                unreadable(),
                again,
                fail("entry 3", UNREADABLE_PAUSE),
                fail("entry 3", UNREADABLE_PAUSE),
            ),
            (
                ExitReason::Crashed,
                again,
                AfterExit::Backoff {
                    after: ms(100),
                    resume: Resume::Always,
                },
                AfterExit::Backoff {
                    after: ms(100),
                    resume: Resume::Always,
                },
            ),
            (
                ExitReason::Overtaken,
                again,
                AfterExit::Backoff {
                    after: ms(100),
                    resume: Resume::Always,
                },
                AfterExit::Backoff {
                    after: ms(100),
                    resume: Resume::Always,
                },
            ),
            (
                ExitReason::Contested(head),
                never,
                AfterExit::Backoff {
                    after: CONTESTED_PAUSE,
                    resume: Resume::IfAt(head),
                },
                AfterExit::Backoff {
                    after: CONTESTED_PAUSE,
                    resume: Resume::IfAt(head),
                },
            ),
            (
                ExitReason::NoMemory(7),
                never,
                AfterExit::Backoff {
                    after: MEMORY_RETRY,
                    resume: Resume::WithMemory(7),
                },
                AfterExit::Backoff {
                    after: MEMORY_RETRY,
                    resume: Resume::WithMemory(7),
                },
            ),
            (
                ExitReason::Crashed,
                never,
                fail("it crashed again and again", ms(60_000)),
                fail("it crashed again and again", ms(60_000)),
            ),
        ];

        for (end, restart, without_mail, with_mail) in table {
            assert_eq!(
                after_exit(&end, false, false, || restart),
                without_mail,
                "{end:?}"
            );
            assert_eq!(
                after_exit(&end, false, true, || restart),
                with_mail,
                "{end:?} with mail"
            );
            let crash = || -> Restart { unreachable!("a draining host restarts nothing") };
            assert_eq!(
                after_exit(&end, true, true, crash),
                AfterExit::Drain,
                "{end:?} while the host drains"
            );
        }
    }
}
