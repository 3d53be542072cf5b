//! Every limit of the system, with the unit in its name and the reason in its doc. Constants are
//! fixed; [`Limits`] holds the limits that a host configures.
//!
//! Pure.

use std::time::Duration;

/// Depth of arrays and objects in any JSON input. Deeper nesting could overflow the stack of a
/// recursive parser.
pub const JSON_DEPTH_MAX: usize = 64;

/// Bytes of one streamed model reply. Ends a stream that a broken provider never ends.
pub const STREAM_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes of one SSE event. Bounds a line without an end; blocks in base64 still fit.
pub const SSE_EVENT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Bytes of what one answer of a model says: text, thinking and arguments. The longest answers of
/// models have about 1 MiB, so more comes from a broken provider. The largest allowed arguments
/// still fit.
pub const ANSWER_BYTES_MAX: usize = 12 * 1024 * 1024;

/// Bytes that a block of an answer counts beside its content; bounds the number of blocks.
pub(crate) const ANSWER_BLOCK_BYTES: usize = 256;

/// Bytes of an unfinished answer that enter the history. About as long as the longest answer of a
/// model, so that a broken provider cannot fill the window of a conversation for good.
pub(crate) const PARTIAL_ANSWER_BYTES_MAX: usize = 512 * 1024;

/// Tool calls of one answer. Models write a few; each costs entries, events and a result.
pub const ANSWER_CALLS_MAX: usize = 1024;

/// Bytes of a tool call's arguments; exactly this size is allowed.
pub const TOOL_INPUT_BYTES_MAX: usize = 10 * 1024 * 1024;

/// Most JSON values of a tool call's arguments, and of an answer with a schema. A value of a few bytes
/// of text takes hundreds of bytes while it is checked.
pub const JSON_VALUES_MAX: usize = 100_000;

/// Bytes of a tool's text result; the rest is replaced by a note of its size, because it would fill
/// the model's window.
pub const OBSERVATION_BYTES_MAX: usize = 30 * 1024;

/// Bytes from which data is stored as an artifact at every output level; exactly this size is
/// stored.
pub(crate) const DATA_INLINE_BYTES_MAX: u64 = 1024 * 1024;

/// Bytes of one artifact. A tool's result is in memory as a whole, and many tools run at once.
pub const ARTIFACT_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Artifacts of one tenant. Even an empty artifact costs a few hundred bytes.
pub const TENANT_ARTIFACTS_MAX: usize = 100_000;

/// Minimum average bytes of message JSON per token. Deliberately low, so that estimates rather
/// exceed the real count.
pub(crate) const BYTES_A_TOKEN: u64 = 3;

/// Crashes with a running tool after which a round is not resumed any more. A tool that takes the process down would do
/// so at each start.
pub(crate) const ROUND_CRASHES_MAX: u32 = 3;

/// Crashes during one model call after which its round is not resumed any more: what the provider
/// sends may take the process down. More than for tools, because a model call takes long and most
/// crashes have another cause.
pub(crate) const MODEL_CRASHES_MAX: u32 = 10;

/// Pinned lines of a conversation, which every compaction keeps.
pub(crate) const PINNED_LINES_MAX: usize = 64;

/// Bytes of all pinned lines together. They are sent with every model call and cannot be compacted.
pub(crate) const PINNED_BYTES_MAX: usize = 16 * 1024;

/// Finished rounds between two reminders of the pinned lines.
pub(crate) const REFOCUS_ROUNDS: u64 = 5;

/// Client keys and ids of injected messages that a conversation remembers: more than one a second
/// for 24 hours. Beyond it the oldest is forgotten.
pub(crate) const CLIENT_KEYS_MAX: usize = 100_000;

/// How many of them, the newest, are kept as they came. The others are digests of 49 bytes.
pub(crate) const CLIENT_KEYS_WHOLE: usize = 1000;

/// How long client keys and injected ids are remembered, in milliseconds: 24 hours.
pub(crate) const CLIENT_KEY_MS: u64 = 24 * 60 * 60 * 1000;

/// How long an approval can be answered, in milliseconds: 24 hours. Afterwards the call is denied.
pub(crate) const APPROVAL_MS: u64 = 24 * 60 * 60 * 1000;

/// Tools that a caller brings with a prompt. OpenAI's API takes 128 functions.
pub(crate) const CLIENT_TOOLS_MAX: usize = 128;

/// Bytes of the names, descriptions and schemas of these tools together. They are stored with their
/// prompt and sent with every model call of its round.
pub(crate) const CLIENT_TOOLS_BYTES_MAX: usize = 256 * 1024;

/// Bytes of the result that a caller sends for a call of its tool. More would fill any window.
pub(crate) const CLIENT_RESULT_BYTES_MAX: usize = 1024 * 1024;

/// Patterns of calls that a conversation remembers as approved. Beyond it the oldest is forgotten,
/// and its calls ask again.
pub(crate) const APPROVED_PATTERNS_MAX: usize = 1000;

/// Calls of one round that the loop guard refuses before the round ends.
pub(crate) const LOOP_REFUSALS_MAX: u32 = 3;

/// Tool results in a tenant's cache.
pub(crate) const TOOL_CACHE_ENTRIES_MAX: usize = 10_000;

/// Bytes of the results in a tenant's cache. The cache must stay small beside the tenant's
/// conversations.
pub(crate) const TOOL_CACHE_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Bytes of one cached result. A larger one is stored as an artifact.
pub(crate) const TOOL_CACHED_RESULT_BYTES_MAX: usize = 1024 * 1024;

/// How long a host that shuts down waits for its resources, such as MCP servers, to close.
pub(crate) const RESOURCES_CLOSE_MAX: Duration = Duration::from_secs(5);

/// How often a model is asked again for an answer that fits its schema.
pub(crate) const OUTPUT_REFUSALS_MAX: u32 = 2;

/// Output tokens that are reserved from a budget before a model call; tokens beyond are charged
/// afterwards. Reserving the longest possible answer would refuse small budgets that most answers
/// fit into.
pub(crate) const BUDGET_OUTPUT_TOKENS: u64 = 1024;

/// Input tokens that a provider may add to a request, for tools and the like. A reported usage
/// beyond estimate and slack is not believed.
pub(crate) const REQUEST_SLACK_TOKENS: u64 = 8192;

/// Output tokens of one answer that are believed of a model whose window is not known, if no more were
/// asked for.
pub(crate) const UNKNOWN_OUTPUT_TOKENS: u64 = 131_072;

/// How long results are still accepted after a cancel, before the work is aborted.
pub const CANCEL_GRACE: Duration = Duration::from_secs(2);

/// Probes in a row that may fail while calls of subagents wait for an open circuit breaker. With
/// more, the provider is down for longer, and the calls fail at once like all others. About a
/// minute by default.
pub(crate) const BREAKER_PROBES_MAX: u32 = 6;

/// Longest wait that a provider's Retry-After may ask for. For a longer one the call fails at once
/// and reports the wait.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// The shortest Retry-After that is taken as one.
pub(crate) const RETRY_AFTER_MIN: Duration = Duration::from_millis(100);

/// Initial quantum of a gateway's fair queue: tokens that a tenant of weight 1 may use per turn of
/// the queue. Low, so that weights take effect from the first calls on.
pub(crate) const GATEWAY_QUANTUM_TOKENS: u64 = 64;

/// Largest quantum of a gateway's fair queue. The quantum follows the size of calls, so that a turn
/// of the queue serves about one call per tenant.
pub(crate) const GATEWAY_QUANTUM_TOKENS_MAX: u64 = 4096;

/// How often a waiting call reports its place in a gateway's queue, if the place changed. People
/// read it, and thousands of calls may wait.
pub(crate) const QUEUE_REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Requests that may start at once when the rate is below 60 per minute: one round makes a few
/// calls in a row.
pub(crate) const REQUESTS_BURST_MIN: u64 = 10;

/// Tokens that may be used at once when the rate is low: one call of a usual size.
pub(crate) const TOKENS_BURST_MIN: u64 = 10_000;

/// Conversations that load at the same time. A store serves a few dozen small reads well, a
/// thousand at once badly.
pub(crate) const LOADS_MAX: usize = 64;

/// Conversations of one tenant that load at the same time. While it loads, a conversation of the
/// largest size takes more than a hundred megabytes.
pub(crate) const TENANT_LOADS_MAX: usize = 8;

/// Histories that are counted, compacted or encoded at the same time on threads of their own; the
/// conversations need the processors.
pub(crate) const MEASUREMENTS_MAX: usize = 4;

/// Bytes of a history above which an answer is written into it a few at a time: it is held several
/// times until it is stored.
pub(crate) const LONG_ANSWER_BYTES: usize = 1024 * 1024;

/// Long answers of all tenants, and of one, that are written into histories at a time.
pub(crate) const LONG_ANSWERS_MAX: usize = 4;
pub(crate) const TENANT_LONG_ANSWERS_MAX: usize = 2;

/// Those of one tenant, so that another one never waits behind all that a tenant has.
pub(crate) const TENANT_MEASUREMENTS_MAX: usize = 2;

/// Conversation supervisors of a host. A single supervisor falls behind with tens of thousands of
/// children.
pub(crate) const SUPERVISORS: usize = 16;

/// Bytes of a prompt with its attachments: the most that providers accept in one request. Must be
/// below `journal_backlog_bytes`.
pub const PROMPT_BYTES_MAX: usize = 32_000_000;

/// Bytes that a message takes in memory beside its wire form: its blocks, its links in the history
/// and the record of its round. Without them, a history of very short messages would take fifteen
/// times what is counted.
pub(crate) const MESSAGE_KEPT_BYTES: usize = 512;

/// Injected messages that wait in one round until its model call or its calls of tools have ended.
/// Each decision of the round looks at them.
pub(crate) const PENDING_MESSAGES_MAX: usize = 1024;

/// Bytes of one conversation's messages, beyond which it takes no more: four times what a provider
/// accepts in one request. An activation and every reader of its state hold them in memory.
pub(crate) const HISTORY_BYTES_MAX: usize = 4 * PROMPT_BYTES_MAX;

/// Bytes of an image. Providers accept 5 MiB in base64, which takes 4/3 of the bytes.
pub(crate) const IMAGE_BYTES_MAX: usize = 5 * 1024 * 1024 / 4 * 3;

/// Pixels of the longer side of an image; providers refuse more.
pub(crate) const IMAGE_SIDE_MAX: u32 = 8000;

/// Bytes of a PDF. In base64 it leaves room for the text of the prompt.
pub const PDF_BYTES_MAX: usize = 22 * 1024 * 1024;

/// Pages of a PDF: providers refuse more.
pub const PDF_PAGES_MAX: usize = 100;

/// Bytes of the text of a PDF, for a model that does not read PDFs. The rest is replaced by a note;
/// more would fill any window.
pub const DOCUMENT_TEXT_BYTES_MAX: usize = 1024 * 1024;

/// Events that a watcher reads ahead.
pub(crate) const WATCHED_EVENTS_MAX: usize = 256;

/// Bytes of events that a watcher reads ahead before it stops reading, so that a slow client costs
/// little memory.
pub(crate) const WATCHER_BYTES_MAX: usize = 256 * 1024;

/// Longest run of one subagent: a whole task with many model and tool calls.
pub(crate) const SUBAGENT_TIME_MAX: Duration = Duration::from_secs(3600);

/// Bytes of the subagents' answers that a parent reads per batch of calls, in equal shares. A
/// longer answer becomes an artifact, of which the parent reads the first lines. About 10,000
/// tokens, a twentieth of a usual window.
pub(crate) const SUBAGENT_BATCH_BYTES: usize = 32 * 1024;

/// Upper bound of one answer's share. With the escapes of JSON it stays below a page.
pub(crate) const SUBAGENT_RESULT_BYTES_MAX: usize = 24 * 1024;

/// Lower bound of one answer's share: a few sentences.
pub(crate) const SUBAGENT_RESULT_BYTES_MIN: usize = 512;

/// How often a parent publishes the progress of a subagent; people read it.
pub(crate) const SUBAGENT_PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// When too many conversations are idle, the bound divided by this number of them go to sleep beside
/// the excess.
pub(crate) const RECLAIMED_PART: usize = 4;

/// Entries after the last snapshot from which a conversation writes a new one when it goes to
/// sleep.
pub(crate) const SNAPSHOT_ENTRIES: u64 = 256;

/// Bytes of the entries after the last snapshot from which a conversation writes a new one, if they
/// are twice its history as well. Histories that are replaced, rewound or compacted leave large
/// entries behind, and the next activation would read all of them.
pub(crate) const SNAPSHOT_BYTES: u64 = 8 * 1024 * 1024;

/// Entries after the last snapshot from which a conversation that stays awake writes a new one at
/// the end of a round. A conversation that is never idle would have no snapshot otherwise, and its
/// next activation would read the whole journal. More than for sleep, since a snapshot writes the
/// whole history and the conversation may need it never.
pub(crate) const AWAKE_SNAPSHOT_ENTRIES: u64 = 1024;

/// Reads that wait for one conversation that is awake. Each holds a copy of the state, which shares
/// the history; further reads go to the store.
pub(crate) const CONVERSATION_READS_MAX: usize = 16;

/// How long a read waits for a conversation that is awake before it reads the store. Appends that
/// take longer are rare.
pub(crate) const AWAKE_READ_WAIT: Duration = Duration::from_millis(200);

/// Reads of stored conversations that one tenant runs at once; the others wait. Each holds a journal
/// in memory.
pub(crate) const TENANT_READS_MAX: usize = 4;

/// Limits that a host configures (`[limits]` of the configuration). [`Limits::default`] has the
/// defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Batches of tool calls per round.
    pub tool_iterations_max: u32,
    /// Tool calls of one batch that run at the same time; the others wait.
    pub parallel_tools_max: usize,
    /// Subagents per round; a further call is refused.
    pub subagents_a_round_max: usize,
    /// Subagents per conversation, over all its rounds.
    pub subagents_max: u64,
    /// Times that a round may get the same result from the same call. A further call is refused,
    /// and the third refusal ends the round.
    pub identical_calls_max: u32,
    /// How long a call of a tool that a caller brought waits for its result. Then the model reads
    /// that none came, and the round goes on.
    pub client_result: Duration,
    /// Prompts in one conversation's inbox; further callers get `Busy`.
    pub inbox_prompts_max: usize,
    /// Messages, including control messages, held for a conversation that is starting or stopping.
    pub held_mail_max: usize,
    /// Rounds of one tenant that run at the same time; the others wait for a permit.
    pub tenant_turns_max: usize,
    /// Prompts of one tenant between admission and answer; further callers get `Overloaded`.
    pub tenant_seats_max: usize,
    /// Stored bytes (entries and snapshots) of a tenant without a quota. Keeps one tenant from
    /// filling the disk.
    pub tenant_stored_bytes_max: u64,
    /// Files and folders in the workspace of a tenant without a quota. Keeps one tenant from using
    /// up the inodes. Enforced by the tools of `callboard serve`, not by the kernel.
    pub tenant_workspace_files_max: u64,
    /// Bytes on disk of the files in such a workspace. A tebibyte means no limit: a lower one makes
    /// every command read the size of every file first.
    pub tenant_workspace_bytes_max: u64,
    /// Bytes of the prompts of all tenants between admission and the end of their rounds, and of the
    /// histories of their conversations as long as these work; further callers get `Overloaded`, and
    /// rounds that a host resumes wait. A caller can wait, memory cannot. A tenant gets more of them
    /// only while as much as it has is left: one alone gets half, two get a third each.
    pub memory_bytes_max: usize,
    /// Calls of one provider credential that run at the same time.
    pub model_calls_max: usize,
    /// Calls that wait for a model permit; further calls get `Overloaded`.
    pub model_waiting_max: usize,
    /// How long an idle conversation stays in memory.
    pub idle: Duration,
    /// Idle conversations in memory. Beyond it the least recently used ones go to sleep, a quarter
    /// of this number at a time. Each takes about 10 KB and its history; waking one costs a read of
    /// its journal.
    pub idle_conversations_max: usize,
    /// Bytes of idle conversations in memory: their histories, and 10 KB each. Beyond it the least
    /// recently used ones go to sleep, a quarter of these bytes at a time.
    pub idle_bytes_max: usize,
    /// How often the host looks for idle conversations.
    pub sweep: Duration,
    /// Least time between two text events of a model call, from the first one on. Text that arrives
    /// meanwhile becomes one event. Zero publishes text as it arrives; 25-50 ms save work on a host
    /// with thousands of streams.
    pub flush: Duration,
    /// Longest wait for the first byte of a model's answer.
    pub model_first_byte: Duration,
    /// Longest wait for the next bytes of a model's stream after that.
    pub model_idle: Duration,
    /// Longest duration of a model call.
    pub model_total: Duration,
    /// Bytes of ephemeral events kept for the watchers of one round.
    pub ring_bytes: usize,
    /// Bytes of memory of the events of all rounds. Beyond it the rounds that ended first lose
    /// theirs before `ring_age`, and open rounds keep fewer ephemeral events.
    pub events_bytes_max: usize,
    /// How long the events of a finished round stay in memory. Watchers who come later get its
    /// durable events from the journal.
    pub ring_age: Duration,
    /// Bytes of one conversation's entries that wait for the store; beyond it prompts are refused.
    pub journal_backlog_bytes: usize,
    /// How long a conversation waits for a store that cannot be written. Then its callers get an
    /// error, and its open round continues when the store is back.
    pub store_pause: Duration,
}

impl Limits {
    /// The value of `tenant_workspace_bytes_max` that means no limit: a tebibyte.
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
            client_result: Duration::from_secs(24 * 60 * 60),
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
            idle: Duration::from_secs(300),
            idle_conversations_max: 1000,
            idle_bytes_max: 256 * 1024 * 1024,
            sweep: Duration::from_secs(60),
            flush: Duration::ZERO,
            model_first_byte: Duration::from_secs(120),
            model_idle: Duration::from_secs(120),
            model_total: Duration::from_secs(900),
            ring_bytes: 256 * 1024,
            events_bytes_max: 256 * 1024 * 1024,
            ring_age: Duration::from_secs(60),
            journal_backlog_bytes: 32 * 1024 * 1024,
            store_pause: Duration::from_secs(60),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_conversations_are_kept_as_long_as_the_requirements_say() {
        let limits = Limits::default();

        assert_eq!((limits.idle.as_secs(), limits.sweep.as_secs()), (300, 60));
        assert_eq!(limits.idle_conversations_max, 1000);
        assert_eq!(RECLAIMED_PART, 4, "a quarter at a time");
    }
}
