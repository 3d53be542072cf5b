//! What senders report to the metrics collector.

use std::time::Duration;

use crate::{chat::Usage, ids::TenantId};

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Figure {
    /// A prompt was accepted.
    PromptAccepted,
    /// A conversation refused a prompt or a command.
    Refused {
        /// The error code of the refusal.
        code: &'static str,
    },
    /// A prompt or a request was refused before it reached a conversation. The tenant counts the
    /// reason itself.
    NotAdmitted,
    /// A round ended.
    RoundEnded {
        /// Whether it ended in an error or at a limit.
        failed: bool,
        /// From its start to its end.
        took: Duration,
    },
    /// A conversation asked for a model call.
    ModelCallRequested,
    /// A model call ended, successfully or not.
    ModelCallEnded(CallTimes),
    /// A call waited for a permit of a gateway.
    WaitedForGateway(Duration),
    /// A gateway tries a model call again.
    ModelRetried,
    /// A model call or a summary used tokens.
    Spent {
        /// Tokens, of failed attempts too.
        usage: Usage,
        /// In millionths of a US dollar; 0 without a price.
        cost_micro_usd: u64,
    },
    /// A call missed the provider's prompt cache.
    PrefixBroken {
        /// Why.
        cause: PrefixBreak,
        /// Input tokens billed again because of it, estimated.
        rebilled_tokens: u64,
    },
    /// A tool call ended.
    ToolCallEnded {
        /// Whether its result is an error.
        failed: bool,
        /// Over all attempts.
        took: Duration,
    },
    /// A tool call is tried again.
    ToolRetried,
    /// A tool call was answered from the result of an earlier one.
    ToolCacheHit,
    /// A tool call joined the run of an identical one.
    ToolRunShared,
    /// A tool's open breaker refused an attempt.
    ToolBreakerRefusal,
    /// A skill was activated.
    SkillActivated,
    /// Messages woke an actor this many times.
    WokeUp(u64),
    /// An activation of a conversation began.
    Activated,
    /// An activation ended in a crash.
    Crashed,
    /// An activation ended with the conversation asleep.
    Hibernated,
    /// A conversation began to wait for a store that is unavailable.
    StorePaused,
    /// A provider was asked for an exact count of tokens.
    CountAsked {
        /// Whether it answered.
        answered: bool,
    },
    /// A compaction was applied.
    Compacted,
    /// A compaction was discarded, because the history had changed meanwhile.
    CompactionDropped,
    /// A background summary ended.
    SummaryEnded {
        /// False if it failed, was refused or was too expensive.
        succeeded: bool,
    },
}

/// How long the parts of a model call took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct CallTimes {
    /// The whole call, waits and retries included.
    pub(crate) took: Duration,
    /// Wait for the permit of the round; `None` if it did not get one.
    pub(crate) queue_wait: Option<Duration>,
    /// Time to the first content; `None` if there was none.
    pub(crate) first_chunk: Option<Duration>,
}

/// Why the prefix of a model call differs from that of the last call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum PrefixBreak {
    /// The history was compacted.
    Compaction,
    /// A skill started or ended that narrows the tools or changes the model, or the list of skills
    /// changed.
    Skill,
    /// History was imported, rewound, withdrawn or reset.
    Edit,
    /// The host has another system prompt, other tools or another model than before.
    Configuration,
    /// No entry announced a change. This must not happen.
    Unknown,
}

/// The figures of one message.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// The tenant to which they belong; `None` for figures of the host alone.
    pub(super) tenant: Option<TenantId>,
    pub(super) figures: Vec<Figure>,
}
