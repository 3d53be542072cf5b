//! Request and response bodies of the HTTP API. Plain data: the OpenAPI document derives its
//! schemas from these types, so their docs are what API users read.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use callboard_actors::{
    chat::{
        ClientToolResult, ContentBlock, Effort, Message, ModelParameters, RawJson, Temperature,
        Thinking, ToolChoice, ToolDefinition, Usage,
    },
    conversation::round::OnBusy,
    host::{ConversationStatus, StoredFanOut},
    ids::{ConversationId, Epoch, EventId, RoundId, Seq},
    journal::{CompactionNote, ConversationMetrics, MultiRoundConversation, ToolStats},
    ports::SessionSummary,
    skill::{LoadLevel, SkillMessage, SkillName},
    stream::{Failure, Open, RoundEnd, RoundStatus, StopReason},
    time::Timestamp,
};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{SeqAccess, Visitor},
};
use utoipa::{IntoParams, ToSchema};

/// Longest deadline that a request may set, in milliseconds: one day.
pub(super) const DEADLINE_MS_MAX: u64 = 24 * 60 * 60 * 1000;

/// Content of a prompt: a string, or content blocks in the form of Anthropic's Messages API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Content {
    Text(String),
    Blocks(Vec<ContentBlock>),
}

/// Hand-written: an untagged derive would not report which block of the list is wrong.
impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Content;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string or a list of blocks")
            }

            fn visit_str<E>(self, text: &str) -> Result<Content, E> {
                Ok(Content::Text(text.to_owned()))
            }

            fn visit_string<E>(self, text: String) -> Result<Content, E> {
                Ok(Content::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Content, A::Error> {
                let mut blocks = Vec::new();
                while let Some(block) = list.next_element()? {
                    blocks.push(block);
                }
                Ok(Content::Blocks(blocks))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

impl Content {
    pub(super) fn into_blocks(self) -> Vec<ContentBlock> {
        match self {
            Self::Text(text) => vec![ContentBlock::text(text)],
            Self::Blocks(blocks) => blocks,
        }
    }
}

/// What happens to a prompt that arrives while a round is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum WhenBusy {
    /// The prompt waits until the open round has ended.
    #[default]
    Queue,
    /// The prompt is refused with 409 `conversation_busy`.
    Reject,
    /// The open round is interrupted, and the prompt starts the next one.
    Interrupt,
    /// The prompt joins the open round as a user message before its next model call.
    Steer,
}

impl From<WhenBusy> for OnBusy {
    fn from(when: WhenBusy) -> Self {
        match when {
            WhenBusy::Queue => Self::Queue,
            WhenBusy::Reject => Self::Reject,
            WhenBusy::Interrupt => Self::Interrupt,
            WhenBusy::Steer => Self::Steer,
        }
    }
}

/// A prompt for a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Say)]
pub(super) struct MessageRequest {
    /// A string, or a list of blocks in the form of Anthropic's Messages API (`text`, `image`, `document`).
    #[schema(value_type = Object)]
    pub(super) content: Content,
    /// What to do when a round is already open; `queue` if absent.
    #[serde(default)]
    pub(super) on_busy: WhenBusy,
    /// Whether to answer with the round's events as server-sent events (`text/event-stream`);
    /// `Accept: text/event-stream` does the same.
    #[serde(default)]
    pub(super) stream: bool,
    /// Limit of the round's duration in milliseconds, time in the queue included; 1 to 86400000.
    /// Absent: no deadline from the client.
    #[schema(minimum = 1, maximum = 86_400_000)]
    pub(super) deadline_ms: Option<u64>,
    /// How long the prompt may wait for the rounds before it, in milliseconds; 1 to 86400000. It is
    /// withdrawn if its round has not begun then (504 `deadline`). Absent: no bound.
    #[schema(minimum = 1, maximum = 86_400_000)]
    pub(super) wait_ms: Option<u64>,
    /// Tokens of the longest answer, at most those of the model; the tenant's setting if absent.
    #[schema(minimum = 1)]
    pub(super) max_tokens: Option<u32>,
    /// How much the model reasons before it answers; the tenant's setting if absent.
    #[schema(value_type = Option<EffortWord>)]
    pub(super) effort: Option<Effort>,
    /// Extended thinking: `"off"`, `"adaptive"`, or the most tokens of thoughts, from 1024. Refused
    /// with 422 where the provider has none.
    #[schema(value_type = Option<Object>)]
    pub(super) thinking: Option<Thinking>,
    /// 0 to 2.
    #[schema(value_type = Option<f64>, minimum = 0, maximum = 2)]
    pub(super) temperature: Option<Temperature>,
    /// Up to 4 texts that end the answer.
    #[schema(value_type = Option<Vec<String>>, max_items = 4)]
    pub(super) stop: Option<Arc<[String]>>,
    /// Tools that the client brings and runs itself, at most 128: the event `client_tool_call`
    /// announces a call, `POST …/tool_results` brings its result.
    #[serde(default)]
    #[schema(max_items = 128)]
    pub(super) tools: Vec<ClientTool>,
    /// Whether the model may or must call a tool: `"auto"`, `"none"`, `"any"` or `{"named": "…"}`.
    /// All but `none` hold for the first model call of the round.
    #[schema(value_type = Option<Object>)]
    pub(super) tool_choice: Option<ToolChoice>,
}

/// A tool that the client brings and runs itself.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ClientTool {
    /// 1 to 64 of `A-Z a-z 0-9 _ -`, and not the name of a tool of the host.
    pub(super) name: String,
    /// What the tool does and when to use it.
    #[serde(default)]
    pub(super) description: String,
    /// JSON Schema of the arguments, an object.
    #[schema(value_type = Object)]
    pub(super) input_schema: RawJson,
}

impl From<ClientTool> for ToolDefinition {
    fn from(tool: ClientTool) -> Self {
        Self {
            name: tool.name,
            description: tool.description,
            input_schema: tool.input_schema,
        }
    }
}

/// Results of calls of tools that the client brought.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ToolResults {
    /// The results, in any order.
    pub(super) results: Vec<ToolResult>,
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ToolResult {
    /// The id of the call, from the event `client_tool_call`.
    pub(super) tool_call_id: String,
    /// The text that the model reads, at most 1 MiB.
    pub(super) content: String,
    /// Whether the call failed.
    #[serde(default)]
    pub(super) is_error: bool,
}

impl From<ToolResult> for ClientToolResult {
    fn from(result: ToolResult) -> Self {
        Self {
            tool_call_id: result.tool_call_id,
            content: result.content,
            is_error: result.is_error,
        }
    }
}

impl MessageRequest {
    /// How the model is asked to answer.
    pub(super) fn parameters(&self) -> ModelParameters {
        ModelParameters {
            max_tokens: self.max_tokens,
            effort: self.effort,
            thinking: self.thinking,
            temperature: self.temperature,
            stop: self.stop.clone(),
        }
    }
}

/// How much the model reasons before it answers.
#[derive(ToSchema)]
#[schema(as = Effort, rename_all = "lowercase")]
#[allow(dead_code, reason = "only its schema is used")]
enum EffortWord {
    Low,
    Medium,
    High,
}

/// The result of a finished round.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(super) struct Answer {
    /// The conversation in which the round ran.
    #[schema(value_type = String)]
    pub(super) conversation_id: ConversationId,
    /// The round; also the id of its event stream.
    #[schema(value_type = String)]
    pub(super) round_id: RoundId,
    /// `completed`, or `error` when the round failed: then `error` says why, and the texts hold
    /// what the model had written until then.
    #[schema(value_type = String)]
    pub(super) status: RoundStatus,
    /// `end_turn`, `max_tokens`, `stop_sequence`, `refusal`, `iteration_limit`, `loop_guard`, `budget`, `interrupted`,
    /// `context_too_large` or `error`.
    #[schema(value_type = String)]
    pub(super) stop_reason: StopReason,
    /// The last message of the model in this round.
    pub(super) text: String,
    /// All messages of the model in this round.
    pub(super) full_text: String,
    /// Tokens of all model calls of the round: `input_uncached`, `cache_read`, `cache_write`,
    /// `output`.
    #[schema(value_type = Object)]
    pub(super) usage: Usage,
    /// Duration of the round in milliseconds.
    pub(super) latency_ms: u64,
    /// Present only for a failed round: `code`, `message`, and `retry_after_ms` if a retry may
    /// succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub(super) error: Option<Failure>,
}

impl Answer {
    pub(super) fn new(conversation_id: ConversationId, round_id: RoundId, end: RoundEnd) -> Self {
        let RoundEnd {
            status,
            stop_reason,
            text,
            full_text,
            usage,
            latency_ms,
            error,
        } = end;
        Self {
            conversation_id,
            round_id,
            status,
            stop_reason,
            text,
            full_text,
            usage,
            latency_ms,
            error,
        }
    }
}

/// The answer to `Prefer: respond-async`: the prompt was accepted, and its round runs in the
/// background.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct Accepted {
    /// The conversation that accepted the prompt.
    #[schema(value_type = String)]
    pub(super) conversation_id: ConversationId,
    /// The round that the prompt starts; with `on_busy: steer`, the open round that it joined.
    #[schema(value_type = String)]
    pub(super) round_id: RoundId,
    /// The id of the round's event stream; equal to `round_id`.
    #[schema(value_type = String)]
    pub(super) stream_id: RoundId,
    /// Path of the round's events, for `GET`.
    pub(super) events: String,
}

/// Settings of a conversation. An unknown conversation is created.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Configure {
    /// A history that replaces the stored one: messages in the form of Anthropic's Messages API.
    /// Absent: the history stays.
    #[schema(value_type = Option<Vec<Object>>)]
    pub(super) messages: Option<Vec<Message>>,
    /// Texts that stay in the model's context through every compaction; added to those already
    /// pinned.
    #[serde(default)]
    pub(super) pinned: Vec<String>,
}

/// One conversation of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct Listed {
    /// The conversation's id.
    #[schema(value_type = String)]
    pub(super) conversation_id: ConversationId,
    /// Whether a round is open: `none`, `running` or `parked` (for example, for an approval).
    #[schema(value_type = String)]
    pub(super) open: Open,
    /// When the first entry was stored, in milliseconds since 1970.
    #[schema(value_type = u64)]
    pub(super) created_at: Timestamp,
    /// When the newest entry was stored, in milliseconds since 1970.
    #[schema(value_type = u64)]
    pub(super) updated_at: Timestamp,
    /// Number of the newest journal entry.
    #[schema(value_type = u64)]
    pub(super) entries: Seq,
    /// Number of activations that wrote.
    #[schema(value_type = u64)]
    pub(super) epoch: Epoch,
    /// With `titles=true`: the first words of the first prompt, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) title: Option<String>,
    /// Present when the conversation's journal cannot be read: the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failed: Option<String>,
}

impl From<SessionSummary> for Listed {
    fn from(row: SessionSummary) -> Self {
        let SessionSummary {
            conversation,
            open,
            created_at,
            updated_at,
            head,
            failed,
            ..
        } = row;
        Self {
            conversation_id: conversation,
            open,
            created_at,
            updated_at,
            entries: head.seq,
            epoch: head.epoch,
            title: None,
            failed,
        }
    }
}

/// A page of conversations, in order of id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct Conversations {
    /// The conversations of this page.
    pub(super) conversations: Vec<Listed>,
    /// The value of `after` for the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<String>,
}

/// State of a conversation, and what it waits for.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = Standing)]
pub(super) struct ConversationState {
    /// `conversation_id`, `state` (`asleep`, `idle`, `running`, `parked`, `failed`), `round_id`, `waits_for` with its `kind`, `since_ms`,
    /// `prompts_waiting`, `context`, `spent`, `budget_left`, `messages`, `rounds`, `created_at`, `updated_at`, `failure`.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub(super) status: ConversationStatus,
    /// Number of the newest journal entry. If it is the same before and after several reads, they
    /// saw one state.
    #[schema(value_type = u64)]
    pub(super) entries: Seq,
    /// Number of activations that wrote.
    #[schema(value_type = u64)]
    pub(super) epoch: Epoch,
}

/// Selects a page of conversations.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Page {
    /// The page starts after this item: the `next` of the previous page. Absent: the first page.
    pub(super) after: Option<String>,
    /// Largest number of items in the page; 1 to 1000, 100 if absent.
    pub(super) limit: Option<usize>,
    /// Whether to read the beginning of each conversation for its `title`.
    #[serde(default)]
    pub(super) titles: bool,
    /// Whether to list the conversations of subagents too.
    #[serde(default)]
    pub(super) subagents: bool,
}

/// Selects a page of a conversation's messages.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct HistoryPage {
    /// The page starts after the message with this index: the `next` of the previous page. Absent:
    /// the first page.
    pub(super) after: Option<String>,
    /// Largest number of messages in the page; 1 to 1000, 100 if absent.
    pub(super) limit: Option<usize>,
    /// Whether to read all messages, also those that a compaction dropped from the context. Indices
    /// then count all of them.
    #[serde(default)]
    pub(super) whole: bool,
    /// The form of the messages: `wire` (as a provider reads them), `debug` (flat blocks with time and
    /// ids; implies `whole`), or `compressed` (rounds before the last five as a summary while the
    /// context is above its threshold); `wire` if absent.
    #[serde(default)]
    #[param(value_type = String)]
    pub(super) form: MessageForm,
}

/// The form in which messages are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum MessageForm {
    #[default]
    Wire,
    Debug,
    Compressed,
}

/// Selects a page of a conversation's rounds.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct RoundsPage {
    /// The page starts after the round with this index: the `next` of the previous page. Absent: the
    /// first page.
    pub(super) after: Option<usize>,
    /// Largest number of rounds in the page; 1 to 1000, 100 if absent.
    pub(super) limit: Option<usize>,
}

/// A page of a conversation's rounds, and what holds for all of them.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(super) struct Rounds {
    /// `conversation_id`, `user_id` (the tenant), `rounds` (oldest first: prompt, thoughts, tool calls with
    /// their figures, answer, tokens, latency, status), `active_skill_context`, `context_modifiers`,
    /// `context_window_limit`, `compression_threshold` and `context_tokens`.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub(super) conversation: MultiRoundConversation,
    /// Whether the context is above its threshold.
    pub(super) should_compress: bool,
    /// Number of rounds of the conversation.
    pub(super) total: usize,
    /// The value of `after` for the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<usize>,
}

/// The first round to take back.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Rewind {
    /// The id of the round. It and all later ones leave the history; the journal keeps them.
    #[schema(value_type = String)]
    pub(super) to: RoundId,
}

/// What a conversation holds after a rewind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct Rewound {
    /// Number of messages that are left.
    pub(super) messages: usize,
    /// Number of rounds that are left.
    pub(super) rounds: usize,
}

/// The figures of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(super) struct Report {
    /// The conversation.
    #[schema(value_type = String)]
    pub(super) conversation_id: ConversationId,
    /// Milliseconds from its first round to the end of its last.
    pub(super) total_duration_ms: u64,
    /// Input and output tokens of all model calls.
    pub(super) total_tokens: u64,
    /// Tokens, tool calls, skills, messages, compactions and cost.
    #[schema(value_type = Object)]
    pub(super) metrics: ConversationMetrics,
    /// Per tool: `call_count`, `avg_duration_ms`, `avg_tokens`, `success_rate` and `error_rate`.
    #[schema(value_type = Object)]
    pub(super) tools: BTreeMap<String, ToolStats>,
    /// Per tool the sums behind `tools`: calls, failures, durations, tokens.
    #[schema(value_type = Object)]
    pub(super) tool_sums: serde_json::Value,
    /// Every skill that was active at any time.
    #[schema(value_type = Vec<String>)]
    pub(super) skills: BTreeSet<SkillName>,
    /// The same as a text for people.
    pub(super) text: String,
}

/// Tasks to run at once.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FanOutRequest {
    /// One prompt for each subagent; 1 to 10000.
    pub(super) tasks: Vec<String>,
    /// Name of the fan-out: the same name and tasks attach to an earlier one. A random name if
    /// absent.
    pub(super) name: Option<String>,
    /// Model of all tasks; the tenant's if absent.
    pub(super) model: Option<String>,
    /// Tasks at once, at most; the rounds that the tenant may run at once if absent.
    #[schema(minimum = 1)]
    pub(super) parallel: Option<usize>,
    /// Limit of the whole fan-out in milliseconds; 1 to 86400000.
    #[schema(minimum = 1, maximum = 86_400_000)]
    pub(super) deadline_ms: Option<u64>,
    /// Whether to run tasks again that failed in an earlier fan-out of this name.
    #[serde(default)]
    pub(super) retry_failed: bool,
}

/// A fan-out that was started.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct FanOutStarted {
    /// Its name.
    pub(super) name: String,
    /// Number of its tasks.
    pub(super) tasks: usize,
    /// Path of its results, for `GET`.
    pub(super) results: String,
}

/// Selects a page of results, and whether to wait.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct FanOutPage {
    /// The page starts after the task with this index: the `next` of the previous page.
    pub(super) after: Option<usize>,
    /// Largest number of results in the page; 1 to 1000, 100 if absent.
    pub(super) limit: Option<usize>,
    /// Wait this long for more than `ended` results; at most 60000. Absent: do not wait.
    pub(super) wait_ms: Option<u64>,
    /// With `wait_ms`: how many results the client knows; 0 if absent.
    pub(super) ended: Option<usize>,
}

/// A fan-out and its results.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct FanOutShown {
    /// Its name.
    pub(super) name: String,
    /// Number of its tasks.
    pub(super) tasks: usize,
    /// Tasks that have ended.
    pub(super) ended: usize,
    /// Tasks that were answered.
    pub(super) done: usize,
    /// Tasks that failed, were cut or never began.
    pub(super) failed: usize,
    /// Whether every task has ended.
    pub(super) is_over: bool,
    /// A page of results in the order of the tasks; absent in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) results: Option<Vec<TaskShown>>,
    /// The value of `after` for the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<usize>,
}

/// Whether to read the store for fan-outs, and a page of these.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct StoredFanOutsPage {
    /// Whether to list the stored fan-outs too, also those of earlier hosts.
    #[serde(default)]
    pub(super) stored: bool,
    /// With `stored`: the page starts after this subagent, the `next` of the previous page.
    pub(super) after: Option<String>,
}

/// The fan-outs of a tenant.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct FanOuts {
    /// Those that this host runs or has run since its start, oldest first, without results.
    pub(super) fan_outs: Vec<FanOutShown>,
    /// A page of those whose conversations are stored, in no order that means anything; absent
    /// unless the client asks for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stored: Option<Vec<StoredFanOutShown>>,
    /// The value of `after` for the next page of `stored`; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<String>,
}

/// A fan-out whose conversations are stored.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct StoredFanOutShown {
    /// Its name; where no conversation shows it, the start of their ids.
    pub(super) name: String,
    /// Number of its tasks. Of a fan-out that an older host started, only those that began.
    pub(super) tasks: u64,
    /// Tasks that were answered.
    pub(super) done: u64,
    /// Tasks that failed.
    pub(super) failed: u64,
    /// Tasks that run, were interrupted or have not begun.
    pub(super) open: u64,
    /// Tokens of all its model calls.
    pub(super) tokens: u64,
    /// What they have cost, in millionths of a US dollar; 0 for models without a price.
    pub(super) cost_micro_usd: u64,
    /// When its first stored task began, in milliseconds since 1970.
    #[schema(value_type = u64)]
    pub(super) began_at: Timestamp,
    /// When the last entry of a task was stored, in milliseconds since 1970.
    #[schema(value_type = u64)]
    pub(super) updated_at: Timestamp,
}

impl From<StoredFanOut> for StoredFanOutShown {
    fn from(stored: StoredFanOut) -> Self {
        Self {
            tasks: stored.tasks,
            done: stored.done,
            failed: stored.failed,
            open: stored.open(),
            tokens: stored.spent.tokens,
            cost_micro_usd: stored.spent.micro_usd,
            began_at: stored.began_at,
            updated_at: stored.updated_at,
            name: stored.name,
        }
    }
}

/// The end of a task.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct TaskShown {
    /// Position in the list of tasks, from 0.
    pub(super) index: usize,
    /// The subagent's conversation, which can be read like any other.
    #[schema(value_type = String)]
    pub(super) conversation_id: ConversationId,
    /// Whether the task was answered.
    pub(super) ok: bool,
    /// The last message of the model; of a failed task what it had written until then.
    pub(super) text: String,
    /// Whether `text` is left out because the results of this tenant have reached their bound of
    /// memory. The messages of the conversation have it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) text_omitted: bool,
    /// Why the task failed: `code` and `message`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub(super) error: Option<Failure>,
    /// Tokens of its model calls.
    #[schema(value_type = Object)]
    pub(super) usage: Usage,
    /// Whether an earlier fan-out of this name ran it.
    pub(super) attached: bool,
}

/// How much of a skill is activated.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct SkillLevel {
    /// 1: its metadata; 2: also its instructions; 3: also the list of its files. 2 if absent.
    #[serde(default)]
    #[param(value_type = Option<u8>, minimum = 1, maximum = 3)]
    pub(super) level: LoadLevel,
}

/// A skill that was activated.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Activated {
    /// Name of the skill.
    #[schema(value_type = String)]
    pub(super) name: SkillName,
    /// The level at which it was loaded.
    #[schema(value_type = u8)]
    pub(super) level: LoadLevel,
    /// What the model reads of it: `type` (`metadata`, `instruction` or `permissions`), `content` and
    /// `visibility`. A display for people leaves out what is `hidden`.
    #[schema(value_type = Vec<Object>)]
    pub(super) messages: Vec<SkillMessage>,
}

/// A message with its index.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(super) struct Placed {
    /// Index in the history, from 0.
    pub(super) index: usize,
    /// The message in the form of Anthropic's Messages API.
    #[schema(value_type = Object)]
    pub(super) message: Message,
}

/// A page of a conversation's history.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(super) struct History {
    /// The messages, oldest first.
    pub(super) messages: Vec<Placed>,
    /// Number of messages in the whole history.
    pub(super) total: usize,
    /// The value of `after` for the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<usize>,
}

/// Where an event stream starts, and when it ends.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct WatchFrom {
    /// Start after the event with this id. The header `Last-Event-ID`, which browsers send when
    /// they reconnect, takes precedence.
    pub(super) after: Option<String>,
    /// Only the events of this round; the stream ends with the round. Absent: all events, until the
    /// client disconnects.
    pub(super) round: Option<String>,
}

/// One event of a stream, as the `data` of a server-sent event. Further fields depend on `type`;
/// clients must ignore types that they do not know.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[allow(dead_code, reason = "the document's picture of a kernel type")]
pub(super) struct Event {
    /// `epoch.seq.n`: three decimal numbers, compared as numbers. Send it as `Last-Event-ID` to
    /// continue after this event.
    #[schema(value_type = String)]
    pub(super) id: EventId,
    /// The conversation that the event belongs to.
    #[schema(value_type = String)]
    pub(super) conversation_id: ConversationId,
    /// The round that the event belongs to, if any.
    #[schema(value_type = Option<String>)]
    pub(super) round_id: Option<RoundId>,
    /// Kind of the event: `round_started`, `text_delta`, `thinking_delta`, `tool_call`,
    /// `tool_progress`, `tool_result`, `approval_required`, `client_tool_call`, `retry`, `usage`,
    /// `context`, `compaction`, `skill_activated`, `subagent`, `queued`, `message`,
    /// `turn_restarted`, `snapshot`, `round_finished` or `error`.
    #[serde(rename = "type")]
    pub(super) kind: String,
}

/// A server-sent event.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[allow(dead_code, reason = "the document's picture of a frame")]
pub(super) struct EventFrame {
    /// Position in the stream; the compatible APIs have none.
    pub(super) id: Option<String>,
    /// Kind of the event; Chat Completions has none.
    pub(super) event: Option<String>,
    /// The event as JSON: under `/v1/conversations` in the form of `Event`.
    pub(super) data: String,
}

/// A decision on a tool call that awaits approval.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Approval {
    /// Whether the tool call may run.
    pub(super) allow: bool,
    /// With `allow`: approve later calls of the same pattern in this conversation without asking.
    #[serde(default)]
    pub(super) always: bool,
    /// With `allow`: the arguments with which the call runs in place of the model's. They are
    /// checked as the model's were, and the model is shown them.
    #[schema(value_type = Option<Object>)]
    pub(super) input: Option<RawJson>,
    /// With `allow: false`: why, in words for the model. The first 4000 characters count.
    pub(super) reason: Option<String>,
    /// The round that asks, from the event `approval_required`: the answer counts for its call only,
    /// and not for one with the same id after a rewind, a reset or a deletion.
    #[schema(value_type = Option<String>)]
    pub(super) round_id: Option<RoundId>,
}

/// A message that the model reads at its next call.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Inject {
    /// Idempotency key chosen by the client: a second message with the same id is ignored.
    pub(super) id: Option<String>,
    /// Text of the message; must not be empty.
    pub(super) text: String,
}

/// How a context is compacted.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct CompactQuery {
    /// Whether a model summarizes what is removed, whatever the configured strategy is.
    #[serde(default)]
    pub(super) summary: bool,
}

/// The result of a compaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct Compacted {
    /// Whether anything was removed from the context.
    pub(super) compacted: bool,
    /// Tokens of the context before the compaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) before_tokens: Option<u64>,
    /// Tokens of the context after the compaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) after_tokens: Option<u64>,
    /// The compaction steps that were applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mode: Option<String>,
}

impl From<Option<CompactionNote>> for Compacted {
    fn from(note: Option<CompactionNote>) -> Self {
        let compacted = note.is_some();
        let before_tokens = note.as_ref().map(|note| note.before_tokens);
        let after_tokens = note.as_ref().map(|note| note.after_tokens);
        Self {
            compacted,
            before_tokens,
            after_tokens,
            mode: note.map(|note| note.mode),
        }
    }
}

/// A request to copy a conversation.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Fork {
    /// The id of the copy; it must have no stored entries.
    pub(super) conversation_id: String,
    /// The copy ends with this round; with the last finished round if absent.
    #[schema(value_type = Option<String>)]
    pub(super) at: Option<RoundId>,
}

/// A conversation that was created.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Made {
    /// The id of the new conversation.
    #[schema(value_type = String)]
    pub(super) conversation_id: ConversationId,
}

/// A skill that the conversation can activate.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct SkillShown {
    /// Name of the skill, as used in `…/skills/{name}`.
    pub(super) name: String,
    /// What the skill does and when to use it; from its front matter.
    pub(super) description: String,
    /// Whether the skill is active in this conversation.
    pub(super) active: bool,
}

/// The skills that the conversation can activate.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Skills {
    /// All of them, the active ones included.
    pub(super) skills: Vec<SkillShown>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_a_text_or_blocks_and_a_wrong_block_is_named_by_its_place() {
        let parse = |json: &str| {
            let mut json = serde_json::Deserializer::from_str(json);
            serde_path_to_error::deserialize::<_, MessageRequest>(&mut json)
                .map_err(|error| error.path().to_string())
        };

        assert_eq!(
            parse(r#"{"content":"hi"}"#).unwrap().content,
            Content::Text("hi".into())
        );
        let blocks =
            parse(r#"{"content":[{"type":"text","text":"a"},{"type":"image","source":{"x":1}}]}"#)
                .unwrap();
        assert_eq!(blocks.content.into_blocks()[1].kind(), "image");
        assert_eq!(
            parse(r#"{"content":[{"type":"text","text":"a"},{"type":"text"}]}"#),
            Err("content[1]".into())
        );
        assert_eq!(parse(r#"{"content":7}"#), Err("content".into()));
        assert_eq!(
            parse(r#"{"content":"a","on_busy":"sometimes"}"#),
            Err("on_busy".into())
        );
    }
}
