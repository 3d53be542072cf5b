//! Every bound of the system, unit in the name, reason in the doc. Constants are walls; [`Limits`] holds what a host may change.
//!
//! Pure.

use std::time::Duration;

/// Depth of arrays and objects in any JSON we read: beyond this a parser's stack is at risk (DESIGN §10).
pub const JSON_DEPTH_MAX: usize = 64;

/// Bytes of one streamed model reply: an endless stream must end (FAULTS F11).
pub const STREAM_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes of one SSE event: one line must not grow for ever; base64 blocks still fit.
pub const SSE_EVENT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Bytes of a tool call's arguments (REQUIREMENTS T-11: equal is allowed).
pub const TOOL_INPUT_BYTES_MAX: usize = 10 * 1024 * 1024;

/// Bytes of a tool's text before the rest is cut with an account of it: a model's window is dear (REQUIREMENTS G-08).
pub const OBSERVATION_BYTES_MAX: usize = 30 * 1024;

/// Bytes from which data is kept as an artifact at every level (REQUIREMENTS: equal is kept).
pub const DATA_INLINE_BYTES_MAX: u64 = 1024 * 1024;

/// Bytes of one artifact: what a tool returns is in memory as a whole, and many tools run at once.
pub const ARTIFACT_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Artifacts of one tenant: each costs a few hundred bytes beside its content, however small that is.
pub const TENANT_ARTIFACTS_MAX: usize = 100_000;

/// Bytes of a message's JSON that a token has at least, on average: deliberately few, so that an estimate errs on the side of counting.
pub const BYTES_A_TOKEN: u64 = 3;

/// Lines of context that a conversation keeps through every compaction (REQUIREMENTS C-51).
pub const PINNED_LINES_MAX: usize = 64;

/// Bytes of them together: they are sent with every call and cannot be compacted.
pub const PINNED_BYTES_MAX: usize = 16 * 1024;

/// Finished rounds between two reminders of the pinned lines (REQUIREMENTS C-50).
pub const REFOCUS_ROUNDS: u64 = 5;

/// Client keys and injected message ids remembered by a conversation (DESIGN §4.3).
pub const CLIENT_KEYS_MAX: usize = 1000;

/// How long they are remembered, in milliseconds: 24 hours (DESIGN §4.3).
pub const CLIENT_KEY_MS: u64 = 24 * 60 * 60 * 1000;

/// How long an approval may be answered, in milliseconds: 24 hours; then it counts as denied (DESIGN §4.5).
pub const APPROVAL_MS: u64 = 24 * 60 * 60 * 1000;

/// Patterns of calls that a conversation remembers as approved; the oldest are asked for again.
pub const APPROVED_PATTERNS_MAX: usize = 1000;

/// Refusals of the loop guard in one round before the round ends (FAULTS F22).
pub const LOOP_REFUSALS_MAX: u32 = 3;

/// Results of tools that a tenant's cache keeps (REQUIREMENTS T-19).
pub const TOOL_CACHE_ENTRIES_MAX: usize = 10_000;

/// Their bytes: a cache must not become a tenant's largest possession.
pub const TOOL_CACHE_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Bytes of one result that is kept; a larger one is an artifact anyway.
pub const TOOL_CACHED_RESULT_BYTES_MAX: usize = 1024 * 1024;

/// How long a host that shuts down waits for what belongs to its tools.
pub const RESOURCES_CLOSE_MAX: Duration = Duration::from_secs(5);

/// Times that a model is asked again for an answer that fits its schema.
pub const OUTPUT_REFUSALS_MAX: u32 = 2;

/// Tokens of an answer that are reserved of a budget before a call; what it uses beyond is taken afterwards. Its longest answer
/// would refuse small budgets that most answers fit into (DESIGN §4.5).
pub const BUDGET_OUTPUT_TOKENS: u64 = 1024;

/// Tokens that a provider may add to a request of its own, for tools and the like; more is no figure to believe.
pub const REQUEST_SLACK_TOKENS: u64 = 8192;

/// How long results are still taken after a cancel, before work is aborted (DESIGN §4.2).
pub const CANCEL_GRACE: Duration = Duration::from_secs(2);

/// How long a life waits for a store that is away (DESIGN §4.1).
pub const STORE_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Longest wait that a provider's Retry-After may ask for; above it the call fails at once carrying it (DESIGN §4.5).
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// Tokens that a tenant of weight 1 may use of a gateway in one round of its queue, until it is known what calls use: few, so that weights
/// tell from the first calls on.
pub const GATEWAY_QUANTUM_TOKENS: u64 = 64;

/// The most that this becomes: it follows what a call uses, so that a round is about one call of each.
pub const GATEWAY_QUANTUM_TOKENS_MAX: u64 = 4096;

/// How often a call that waits for a gateway tells its place, if it moved: people read it, and thousands may wait.
pub const QUEUED_TOLD_EVERY: Duration = Duration::from_secs(1);

/// Requests that may begin at once where fewer than 60 a minute are allowed: an agent's turn is a few calls in a row.
pub const REQUESTS_BURST_MIN: u64 = 10;

/// Tokens that may be used at once where few a minute are allowed: one call of a usual size.
pub const TOKENS_BURST_MIN: u64 = 10_000;

/// Conversations that load at once: the store serves many small reads well, a thousand at once badly (DESIGN §5).
pub const LOADS_MAX: usize = 64;

/// Conversation supervisors of a host: one falls behind its events at tens of thousands of children (RACTOR).
pub const SUPERVISORS: usize = 16;

/// Bytes of a prompt with its attachments: what providers take in one request at most. Below `journal_backlog_bytes`.
pub const PROMPT_BYTES_MAX: usize = 32_000_000;

/// Bytes of an image: providers take 5 MiB in base64, which is 4/3 of it (REQUIREMENTS W-03).
pub const IMAGE_BYTES_MAX: usize = 5 * 1024 * 1024 / 4 * 3;

/// Pixels of a side of an image: providers refuse more.
pub const IMAGE_SIDE_MAX: u32 = 8000;

/// Bytes of a PDF: in base64 it leaves room for the text of a prompt (REQUIREMENTS W-03).
pub const PDF_BYTES_MAX: usize = 22 * 1024 * 1024;

/// Pages of a PDF: providers refuse more.
pub const PDF_PAGES_MAX: usize = 100;

/// Bytes of the text of a PDF for a model that takes none; the rest is cut with an account of it. More fills any window.
pub const DOCUMENT_TEXT_BYTES_MAX: usize = 1024 * 1024;

/// Events that a watcher reads ahead at most.
pub const WATCHED_EVENTS_MAX: usize = 256;

/// Their bytes, from which on it reads no more: one that stops reading must cost little (FAULTS F17: 1 MiB).
pub const WATCHER_BYTES_MAX: usize = 256 * 1024;

/// Longest run of one subagent: a whole task, with many model calls and tools.
pub const SUBAGENT_TIME_MAX: Duration = Duration::from_secs(3600);

/// Bytes that a parent is shown of the answers of all subagents of one batch of calls, in equal shares; a longer one is an artifact with
/// its first lines. Some 10,000 tokens, a twentieth of a usual window (DESIGN §4.7).
pub const SUBAGENT_BATCH_BYTES: usize = 32 * 1024;

/// The most of one answer, however few they are: with what JSON adds it stays below a page.
pub const SUBAGENT_RESULT_BYTES_MAX: usize = 24 * 1024;

/// The least of one answer, however many they are: a few sentences.
pub const SUBAGENT_RESULT_BYTES_MIN: usize = 512;

/// How often a subagent's parent tells of its progress: people read it (DESIGN §4.6).
pub const SUBAGENT_TOLD_EVERY: Duration = Duration::from_secs(1);

/// Entries after the last snapshot before a new one is written when a conversation goes to sleep.
pub const SNAPSHOT_ENTRIES: u64 = 256;

/// Bounds that a host sets (`[limits]` of the configuration). Defaults in [`Limits::default`].
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Batches of tools a round may run (REQUIREMENTS R-10).
    pub tool_iterations_max: u32,
    /// Tool calls of one batch that run at once; more wait.
    pub parallel_tools_max: usize,
    /// Subagents that a round may begin; the next such call is refused (FAULTS F22).
    pub subagents_a_round_max: usize,
    /// Subagents that all rounds of a conversation together may begin.
    pub subagents_max: u64,
    /// Times that a round may get the same result from the same call; the next such call is refused, and the third refusal ends the
    /// round (FAULTS F22).
    pub identical_calls_max: u32,
    /// Prompts that wait in one conversation's inbox: beyond it callers get `Busy`.
    pub inbox_prompts_max: usize,
    /// Mails held for a conversation that is starting or closing; control mail included.
    pub held_mail_max: usize,
    /// Turns of one tenant that run at once; more wait for a permit.
    pub tenant_turns_max: usize,
    /// Prompts of one tenant between admission and answer: beyond it callers get `Overloaded`.
    pub tenant_seats_max: usize,
    /// Bytes of entries and snapshots that a tenant without a quota of its own may have stored: one tenant must not fill the disk of all.
    pub tenant_stored_bytes_max: u64,
    /// Files and folders in the workspace of a tenant without a quota of its own: one tenant must not use up the inodes of all. Held by the
    /// tools of `callboard serve`, not by the kernel.
    pub tenant_workspace_files_max: u64,
    /// Bytes on the disk of the files in such a workspace. A tebibyte is no bound: to hold one, the size of every file is read before each
    /// command.
    pub tenant_workspace_bytes_max: u64,
    /// Bytes of all prompts of all tenants between admission and the end of their rounds: beyond it callers get `Overloaded`. A caller
    /// can wait, memory cannot.
    pub memory_bytes_max: usize,
    /// Calls of one provider credential that run at once.
    pub model_calls_max: usize,
    /// Callers that wait for a model permit: beyond it they get `Overloaded`.
    pub model_waiting_max: usize,
    /// How long a conversation without work stays in memory.
    pub idle: Duration,
    /// How often idle conversations are looked for.
    pub sweep: Duration,
    /// Longest wait for the next bytes of a model's stream.
    pub model_idle: Duration,
    /// Longest model call.
    pub model_total: Duration,
    /// Bytes of ephemeral events kept for a round's watchers (DESIGN §4.6).
    pub ring_bytes: usize,
    /// How long a finished round's events stay in the ring (DESIGN §4.6; REQUIREMENTS B-09).
    pub ring_age: Duration,
    /// Bytes of one conversation's entries that may wait for the store; beyond it prompts are refused.
    pub journal_backlog_bytes: usize,
}

impl Limits {
    /// The value of `tenant_workspace_bytes_max` that is no bound: a tebibyte.
    pub const WORKSPACE_BYTES_UNBOUNDED: u64 = 1 << 40;
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            tool_iterations_max: 25,
            parallel_tools_max: 16,
            subagents_a_round_max: 64,
            subagents_max: 1024,
            identical_calls_max: 8,
            inbox_prompts_max: 64,
            held_mail_max: 256,
            tenant_turns_max: 1024,
            tenant_seats_max: 8192,
            tenant_stored_bytes_max: 4 * 1024 * 1024 * 1024,
            tenant_workspace_files_max: 1_000_000,
            tenant_workspace_bytes_max: Self::WORKSPACE_BYTES_UNBOUNDED,
            memory_bytes_max: 1024 * 1024 * 1024,
            model_calls_max: 256,
            model_waiting_max: 16_384,
            idle: Duration::from_secs(3600), // H-06
            sweep: Duration::from_secs(300), // H-06
            model_idle: Duration::from_secs(120),
            model_total: Duration::from_secs(900),
            ring_bytes: 256 * 1024,
            ring_age: Duration::from_secs(600),
            journal_backlog_bytes: 32 * 1024 * 1024,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_conversations_are_kept_as_long_as_the_requirements_say() {
        let limits = Limits::default();

        assert_eq!((limits.idle.as_secs(), limits.sweep.as_secs()), (3600, 300));
    }
}
