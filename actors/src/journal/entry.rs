//! Journal entries and their stored envelope `{v, kind, epoch, at, body}`. An entry records an
//! outcome, never a command that a reader would have to run again.
//!
//! Pure.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{CompactionCause, ConversationRound, ToolExecutionResult};
use crate::{
    chat::{ClientTools, Edit, Message, ModelParameters, ProviderStop, RawJson, Usage},
    ids::{ActivationId, ConversationId, Epoch, PromptId, RoundId, Seq},
    journal::StoredEntry,
    skill::{ContextModifier, LoadLevel, SkillIndex, SkillName},
    stream::{Failure, StopReason},
    time::Timestamp,
    tool::EffectClass,
};

/// Version of the envelope that this program writes, and the newest it reads.
pub(crate) const ENTRY_VERSION: u32 = 1;

/// One fact in a journal.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Position in the journal, from 1.
    pub seq: Seq,
    /// Epoch of the activation that wrote the entry.
    pub epoch: Epoch,
    /// Wall time of the decision that led to the entry.
    pub at: Timestamp,
    /// What happened, in the form in which it is stored.
    pub body: EntryBody,
}

/// A key with which a client names its prompt, and a digest of the prompt. The digest shows when a
/// client uses a key again for another prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientKey {
    /// The key as the client sent it.
    pub key: String,
    /// Digest of the prompt's body.
    pub digest: u64,
}

/// Why a prompt was withdrawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WithdrawReason {
    /// The provider refused the host's credentials at the first model call of the round.
    ProviderAuth,
    /// The caller's deadline passed before the round began.
    Deadline,
    /// The caller withdrew it.
    Caller,
}

/// The outcome of an approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalVerdict {
    /// The call may run.
    Allowed,
    /// The call may not run.
    Denied,
    /// The approval expired without an answer, which counts as a denial.
    Expired,
}

/// The kinds of entries.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", content = "body", rename_all = "snake_case")]
#[allow(missing_docs, reason = "the variant documents its fields")]
pub enum EntryBody {
    /// An activation began. This is the first entry of each activation, and the envelope holds its
    /// epoch. `nonce` is random: it distinguishes two activations that claim the same epoch on the
    /// same journal. `in_order` means that the activation before it ended without a crash although
    /// a round was open, such as while the store was away.
    LifeStarted {
        nonce: u64,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        in_order: bool,
    },
    /// A prompt entered the inbox. `round_id` names the round that the prompt will open.
    PromptAccepted {
        prompt_id: PromptId,
        round_id: RoundId,
        #[serde(skip_serializing_if = "Option::is_none")]
        client_key: Option<ClientKey>,
        /// The user's message. `None` for a prompt that has none: the model answers the history as
        /// it is, which ends with results of tools or another message of a user.
        #[serde(skip_serializing_if = "Option::is_none")]
        message: Option<Message>,
        /// JSON Schema of the answer. `None` for an answer in free text.
        #[serde(skip_serializing_if = "Option::is_none")]
        output_schema: Option<RawJson>,
        /// When the round is canceled, or the prompt is withdrawn. `None` without a deadline.
        #[serde(skip_serializing_if = "Option::is_none")]
        deadline_at: Option<Timestamp>,
        /// When the prompt is withdrawn if its round has not started. `None` waits without a bound.
        #[serde(skip_serializing_if = "Option::is_none")]
        wait_until: Option<Timestamp>,
        /// How the model is asked to answer. `None` for the configuration's way.
        #[serde(skip_serializing_if = "Option::is_none")]
        parameters: Option<Arc<ModelParameters>>,
        /// Tools that the caller brings and runs itself.
        #[serde(skip_serializing_if = "Option::is_none")]
        client_tools: Option<Arc<ClientTools>>,
    },
    /// A prompt was withdrawn, from the inbox or from a round without any answer. Its text stays in
    /// the journal.
    PromptWithdrawn {
        prompt_id: PromptId,
        reason: WithdrawReason,
    },
    /// Prompts moved from the inbox into history; a round is open.
    RoundStarted {
        round_id: RoundId,
        prompt_ids: Vec<PromptId>,
    },
    /// A model call was decided.
    ModelCallStarted {
        step: u32,
        /// Reserved tokens; 0 without a token budget.
        reserved: u64,
        #[serde(skip_serializing_if = "is_zero")]
        reserved_micro_usd: u64,
    },
    /// A model call ended. `message` is absent when no part of the answer can be kept; `partial`
    /// marks an answer that was cut off.
    Assistant {
        step: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        message: Option<Message>,
        stop: ProviderStop,
        #[serde(skip_serializing_if = "Option::is_none")]
        raw_stop: Option<String>,
        usage: Usage,
        /// Tokens of attempts of this call that failed, as the provider reported them.
        #[serde(skip_serializing_if = "Usage::is_zero")]
        failed_usage: Usage,
        /// Cost of the call, failed attempts included. `None` for a model without a price.
        #[serde(skip_serializing_if = "Option::is_none")]
        cost_micro_usd: Option<u64>,
        partial: bool,
    },
    /// The reservation of a model call was replaced by its actual use. `estimated`: the provider
    /// reported no usage, or an impossible one.
    BudgetSettled {
        reserved: u64,
        used_tokens: u64,
        cost_micro_usd: u64,
        estimated: bool,
    },
    /// The answer does not match the requested JSON Schema. The model gets `fault` and is asked
    /// again.
    OutputRefused { fault: String },
    /// The provider refused the request of the open model call as too large. `bytes` is the size of
    /// its messages. The call counts as not made.
    RequestRefused { bytes: u64 },
    /// The open model call failed and goes to a fallback, for whose window the context has to be
    /// measured first. The call counts as not made; the next one asks that fallback.
    FellBack {
        /// The gateway of the fallback.
        gateway: String,
        /// The model that is asked there.
        model: String,
        /// The code of the error that the call failed with.
        reason: String,
        /// Tokens of its failed attempts, as the provider reported them.
        #[serde(skip_serializing_if = "Usage::is_zero")]
        failed_usage: Usage,
        /// Cost of these attempts. `None` without any, or for a model without a price.
        #[serde(skip_serializing_if = "Option::is_none")]
        cost_micro_usd: Option<u64>,
    },
    /// A model wrote a summary of messages that a compaction dropped. A failed one is recorded if
    /// the provider reported usage.
    SummaryBilled {
        /// The model of the last attempt.
        model: String,
        usage: Usage,
        cost_micro_usd: u64,
    },
    /// Call number `call` of the open batch is about to start. `input` is present only if it
    /// differs from the model's input.
    ToolStarted {
        call: u32,
        tool_call_id: String,
        name: String,
        effect: EffectClass,
        attempt: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        input: Option<RawJson>,
    },
    /// Call number `call` of the open batch waits for its caller, who runs it and sends the result.
    /// `input` is present only if it differs from the model's input.
    ClientToolCalled {
        call: u32,
        tool_call_id: String,
        name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        input: Option<RawJson>,
        /// When the call ends without a result.
        expires_at: Timestamp,
    },
    /// A tool call finished. Each call gets exactly one result.
    ToolFinished {
        call: u32,
        tool_call_id: String,
        name: String,
        outcome: ToolExecutionResult,
    },
    /// A call waits for a person's approval, which holds for exactly `resolved_input`.
    ApprovalAsked {
        call: u32,
        tool_call_id: String,
        name: String,
        resolved_input: RawJson,
        reason: String,
        expires_at: Timestamp,
        /// The pattern of calls that "always" would approve. `None` where "always" is not offered.
        #[serde(skip_serializing_if = "Option::is_none")]
        pattern: Option<String>,
    },
    /// The approval was answered or expired. `always`: later calls of the same pattern need no
    /// approval.
    ApprovalAnswered {
        call: u32,
        verdict: ApprovalVerdict,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        always: bool,
        /// The arguments with which the person allowed the call, if they are not those that were
        /// asked about.
        #[serde(skip_serializing_if = "Option::is_none")]
        changed: Option<RawJson>,
        /// The pattern of the call with these arguments.
        #[serde(skip_serializing_if = "Option::is_none")]
        pattern: Option<String>,
    },
    /// A message was injected from outside. An injected message waits for the end of an open model
    /// call or batch.
    Injected {
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// Client key of a prompt that steers the open round. The key leads to that round.
        #[serde(skip_serializing_if = "Option::is_none")]
        client_key: Option<ClientKey>,
        message: Message,
    },
    /// The list of skills offered to the model. The first list stands in the system prompt;
    /// `message` announces a later one.
    SkillsOffered {
        index: SkillIndex,
        #[serde(skip_serializing_if = "Option::is_none")]
        message: Option<Message>,
    },
    /// A skill was activated. Its message enters the history like an injected message.
    /// `text_digest` is the digest of the whole text of the skill, also when `message` only refers
    /// to an earlier copy of it.
    SkillActivated {
        name: SkillName,
        activation_id: ActivationId,
        by: ActivatedBy,
        level: LoadLevel,
        #[serde(skip_serializing_if = "ContextModifier::is_empty")]
        modifier: ContextModifier,
        message: Message,
        text_digest: u64,
    },
    /// The topmost skill was deactivated. The end of a round deactivates the skills of the round
    /// without this entry.
    SkillDeactivated {
        name: SkillName,
        activation_id: ActivationId,
    },
    /// The round is over.
    RoundFinished {
        stop_reason: StopReason,
        latency_ms: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<Failure>,
    },
    /// The history was rewritten to fit the window. Dropped messages stay readable in earlier
    /// entries.
    Compacted {
        cause: CompactionCause,
        /// The steps of the ladder that ran, in order.
        mode: String,
        edits: Vec<Edit>,
        /// Hash of the messages before the compaction. Only recorded, never compared.
        input_hash: String,
        before_tokens: u64,
        after_tokens: u64,
    },
    /// A line was pinned: every compaction keeps it.
    Pinned { line: String },
    /// The history was replaced from outside, by an import or a repair.
    Imported {
        messages: Vec<Message>,
        /// Records of the rounds of the imported history. When empty, each message of a person
        /// begins a round.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        rounds: Vec<ConversationRound>,
    },
    /// The round and all later ones were taken back. The first `keep` messages stay in the history;
    /// the others stay readable in the journal.
    Rewound { round_id: RoundId, keep: u32 },
    /// The conversation was emptied. Before the caller gets its answer, the store erases the
    /// earlier entries, which then read as [`EntryBody::Emptied`].
    Reset {},
    /// An entry that a later reset erased. Never written: an entry without bytes is read as this.
    Emptied {},
    /// The conversation began as a copy of another one, as far as entry `upto` of that journal. An
    /// `Imported` entry with the history follows. Calls whose effect is in doubt in the original
    /// are in doubt in the copy.
    Forked {
        from: ConversationId,
        upto: Seq,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        in_doubt: Vec<u64>,
    },
}

fn is_zero(figure: &u64) -> bool {
    *figure == 0
}

/// Why stored bytes are not a readable entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// A newer program wrote the entry. Such an entry is never skipped.
    #[error("entry {seq} needs a newer version of callboard ({what})")]
    NeedsNewerVersion {
        /// Position of the entry.
        seq: Seq,
        /// The version or kind that this program does not know.
        what: String,
    },
    /// The bytes are not an entry.
    #[error("entry {seq} is damaged: {message}")]
    Damaged {
        /// Position of the entry.
        seq: Seq,
        /// The error of the parser.
        message: String,
    },
}

impl EntryBody {
    /// Returns the `kind` of the envelope.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::LifeStarted { .. } => "life_started",
            Self::PromptAccepted { .. } => "prompt_accepted",
            Self::PromptWithdrawn { .. } => "prompt_withdrawn",
            Self::RoundStarted { .. } => "round_started",
            Self::ModelCallStarted { .. } => "model_call_started",
            Self::Assistant { .. } => "assistant",
            Self::BudgetSettled { .. } => "budget_settled",
            Self::OutputRefused { .. } => "output_refused",
            Self::RequestRefused { .. } => "request_refused",
            Self::FellBack { .. } => "fell_back",
            Self::SummaryBilled { .. } => "summary_billed",
            Self::ToolStarted { .. } => "tool_started",
            Self::ClientToolCalled { .. } => "client_tool_called",
            Self::ToolFinished { .. } => "tool_finished",
            Self::ApprovalAsked { .. } => "approval_asked",
            Self::ApprovalAnswered { .. } => "approval_answered",
            Self::Injected { .. } => "injected",
            Self::SkillsOffered { .. } => "skills_offered",
            Self::SkillActivated { .. } => "skill_activated",
            Self::SkillDeactivated { .. } => "skill_deactivated",
            Self::RoundFinished { .. } => "round_finished",
            Self::Compacted { .. } => "compacted",
            Self::Pinned { .. } => "pinned",
            Self::Imported { .. } => "imported",
            Self::Rewound { .. } => "rewound",
            Self::Reset {} => "reset",
            Self::Emptied {} => "emptied",
            Self::Forked { .. } => "forked",
        }
    }
}

/// Estimated bytes of an entry besides its texts. Only sizes buffers.
const ENVELOPE_BYTES: usize = 192;

/// Adds the fields of `more` to an object that is already written and has at least one field.
fn append(object: &mut Vec<u8>, more: &impl Serialize) {
    object.pop();
    let begin = object.len();
    write(object, more);
    if object.get(begin + 1) == Some(&b'}') {
        object.remove(begin); // `more` has no fields.
    } else if let Some(brace) = object.get_mut(begin) {
        *brace = b',';
    }
}

fn write(bytes: &mut Vec<u8>, value: &impl Serialize) {
    // Serializing our own plain types cannot fail. If it did, the truncated entry would be refused
    // on reading.
    let _ = serde_json::to_writer(bytes, value);
}

/// Adds a message in its wire form, without parsing it.
fn append_message(object: &mut Vec<u8>, message: &Message) {
    object.pop();
    object.extend_from_slice(br#","message":"#);
    object.extend_from_slice(message.wire());
    object.push(b'}');
}

impl EntryBody {
    /// Estimates the bytes of the texts in the body.
    fn size(&self) -> usize {
        match self {
            Self::Injected { message, .. } => message.wire().len(),
            Self::PromptAccepted { message, .. } => {
                message.as_ref().map_or(0, |message| message.wire().len())
            }
            Self::Assistant { message, .. } => {
                message.as_ref().map_or(0, |message| message.wire().len()) + 160
            }
            Self::ToolFinished { outcome, .. } => outcome.observation.len() + 256,
            _ => 64,
        }
    }

    /// Adds `kind` and `body` to the envelope. Kinds that hold a message are written by hand, in
    /// the form that serde would give them, so that messages are copied and not parsed.
    fn append_to(&self, envelope: &mut Vec<u8>) {
        #[derive(Serialize)]
        struct Accepted<'a> {
            prompt_id: &'a PromptId,
            round_id: &'a RoundId,
            #[serde(skip_serializing_if = "Option::is_none")]
            client_key: Option<&'a ClientKey>,
        }
        #[derive(Serialize)]
        struct Output<'a> {
            #[serde(skip_serializing_if = "Option::is_none")]
            output_schema: Option<&'a RawJson>,
            #[serde(skip_serializing_if = "Option::is_none")]
            deadline_at: Option<Timestamp>,
            #[serde(skip_serializing_if = "Option::is_none")]
            wait_until: Option<Timestamp>,
            #[serde(skip_serializing_if = "Option::is_none")]
            parameters: Option<&'a ModelParameters>,
            #[serde(skip_serializing_if = "Option::is_none")]
            client_tools: Option<&'a ClientTools>,
        }
        #[derive(Serialize)]
        struct Step {
            step: u32,
        }
        #[derive(Serialize)]
        struct Answered<'a> {
            stop: ProviderStop,
            #[serde(skip_serializing_if = "Option::is_none")]
            raw_stop: Option<&'a str>,
            usage: &'a Usage,
            #[serde(skip_serializing_if = "Usage::is_zero")]
            failed_usage: &'a Usage,
            #[serde(skip_serializing_if = "Option::is_none")]
            cost_micro_usd: Option<u64>,
            partial: bool,
        }
        let begin = |envelope: &mut Vec<u8>| {
            envelope.pop();
            envelope.extend_from_slice(br#","kind":""#);
            envelope.extend_from_slice(self.kind().as_bytes());
            envelope.extend_from_slice(br#"","body":"#);
        };
        match self {
            Self::PromptAccepted {
                prompt_id,
                round_id,
                client_key,
                message,
                output_schema,
                deadline_at,
                wait_until,
                parameters,
                client_tools,
            } => {
                begin(envelope);
                write(
                    envelope,
                    &Accepted {
                        prompt_id,
                        round_id,
                        client_key: client_key.as_ref(),
                    },
                );
                if let Some(message) = message {
                    append_message(envelope, message);
                }
                append(
                    envelope,
                    &Output {
                        output_schema: output_schema.as_ref(),
                        deadline_at: *deadline_at,
                        wait_until: *wait_until,
                        parameters: parameters.as_deref(),
                        client_tools: client_tools.as_deref(),
                    },
                );
                envelope.push(b'}');
            }
            Self::Assistant {
                step,
                message: Some(message),
                stop,
                raw_stop,
                usage,
                failed_usage,
                cost_micro_usd,
                partial,
            } => {
                begin(envelope);
                write(envelope, &Step { step: *step });
                append_message(envelope, message);
                let raw_stop = raw_stop.as_deref();
                let cost_micro_usd = *cost_micro_usd;
                append(
                    envelope,
                    &Answered {
                        stop: *stop,
                        raw_stop,
                        usage,
                        failed_usage,
                        cost_micro_usd,
                        partial: *partial,
                    },
                );
                envelope.push(b'}');
            }
            _ => append(envelope, self),
        }
    }
}

impl Entry {
    /// Encodes the entry into its envelope.
    pub fn encode(&self) -> StoredEntry {
        let mut bytes = Vec::with_capacity(self.size());
        self.encode_into(&mut bytes);
        StoredEntry {
            seq: self.seq,
            bytes: Bytes::from(bytes.into_boxed_slice()),
        }
    }

    /// Encodes entries that are stored together. They share one allocation.
    pub(crate) fn encode_all(entries: &[Self]) -> Vec<StoredEntry> {
        if let [entry] = entries {
            return vec![entry.encode()];
        }
        let mut bytes = Vec::with_capacity(entries.iter().map(Self::size).sum());
        let mut ends = Vec::with_capacity(entries.len());
        for entry in entries {
            entry.encode_into(&mut bytes);
            ends.push((entry.seq, bytes.len()));
        }
        let mut rest = Bytes::from(bytes.into_boxed_slice());
        let mut begin = 0;
        let each = |(seq, end): (Seq, usize)| StoredEntry {
            seq,
            bytes: rest.split_to(end - std::mem::replace(&mut begin, end)),
        };
        ends.into_iter().map(each).collect()
    }

    /// Estimates the bytes of the envelope.
    fn size(&self) -> usize {
        ENVELOPE_BYTES + self.body.size()
    }

    fn encode_into(&self, bytes: &mut Vec<u8>) {
        #[derive(Serialize)]
        struct Envelope {
            v: u32,
            epoch: Epoch,
            at: Timestamp,
        }
        let envelope = Envelope {
            v: ENTRY_VERSION,
            epoch: self.epoch,
            at: self.at,
        };
        write(bytes, &envelope);
        self.body.append_to(bytes);
    }

    /// Decodes an envelope.
    ///
    /// # Errors
    /// [`DecodeError`] for damaged bytes, and for an unknown kind or a newer version, which are
    /// never skipped.
    pub fn decode(stored: &StoredEntry) -> Result<Self, DecodeError> {
        #[derive(Deserialize)]
        struct Envelope<'a> {
            v: u32,
            #[serde(borrow)]
            kind: Cow<'a, str>,
            epoch: Epoch,
            at: Timestamp,
            #[serde(borrow)]
            body: &'a RawValue,
        }
        let seq = stored.seq;
        if stored.bytes.is_empty() {
            return Ok(Self {
                seq,
                epoch: Epoch(0),
                at: Timestamp(0),
                body: EntryBody::Emptied {},
            });
        }
        let damaged = |message: String| DecodeError::Damaged { seq, message };
        let text =
            std::str::from_utf8(&stored.bytes).map_err(|error| damaged(error.to_string()))?;
        let envelope: Envelope<'_> =
            serde_json::from_str(text).map_err(|error| damaged(error.to_string()))?;
        if envelope.v > ENTRY_VERSION {
            return Err(DecodeError::NeedsNewerVersion {
                seq,
                what: format!("envelope version {}", envelope.v),
            });
        }
        let body = EntryBody::decode(&envelope.kind, envelope.body.get())
            .map_err(|error| damaged(error.to_string()))?
            .ok_or_else(|| DecodeError::NeedsNewerVersion {
                seq,
                what: format!("entry kind {:?}", envelope.kind),
            })?;
        Ok(Self {
            seq,
            epoch: envelope.epoch,
            at: envelope.at,
            body,
        })
    }
}

/// Generates `EntryBody::decode` from one list of kinds. Serde's internally tagged enums buffer
/// their content, which would lose raw JSON text.
macro_rules! decoder {
    ($($kind:literal => $variant:ident { $($field:ident : $type:ty $(= $default:ident)?),* }),* $(,)?) => {
        impl EntryBody {
            fn decode(kind: &str, body: &str) -> Result<Option<Self>, serde_json::Error> {
                Ok(Some(match kind {
                    $($kind => {
                        #[derive(Deserialize)]
                        struct Body { $($(#[serde($default)])? $field: $type),* }
                        let Body { $($field),* } = serde_json::from_str(body)?;
                        Self::$variant { $($field),* }
                    })*
                    _ => return Ok(None),
                }))
            }
        }
    };
}

decoder! {
    "life_started" => LifeStarted { nonce: u64 = default, in_order: bool = default },
    "prompt_accepted" => PromptAccepted {
        prompt_id: PromptId, round_id: RoundId, client_key: Option<ClientKey> = default,
        message: Option<Message> = default, output_schema: Option<RawJson> = default, deadline_at: Option<Timestamp> = default,
        wait_until: Option<Timestamp> = default,
        parameters: Option<Arc<ModelParameters>> = default, client_tools: Option<Arc<ClientTools>> = default
    },
    "prompt_withdrawn" => PromptWithdrawn { prompt_id: PromptId, reason: WithdrawReason },
    "round_started" => RoundStarted { round_id: RoundId, prompt_ids: Vec<PromptId> },
    "model_call_started" => ModelCallStarted { step: u32, reserved: u64 = default, reserved_micro_usd: u64 = default },
    "assistant" => Assistant {
        step: u32, message: Option<Message> = default, stop: ProviderStop, raw_stop: Option<String> = default, usage: Usage,
        failed_usage: Usage = default, cost_micro_usd: Option<u64> = default, partial: bool
    },
    "budget_settled" => BudgetSettled { reserved: u64, used_tokens: u64, cost_micro_usd: u64, estimated: bool },
    "output_refused" => OutputRefused { fault: String },
    "request_refused" => RequestRefused { bytes: u64 },
    "fell_back" => FellBack {
        gateway: String, model: String, reason: String, failed_usage: Usage = default, cost_micro_usd: Option<u64> = default
    },
    "summary_billed" => SummaryBilled { model: String, usage: Usage, cost_micro_usd: u64 },
    "tool_started" => ToolStarted {
        call: u32, tool_call_id: String, name: String, effect: EffectClass, attempt: u32, input: Option<RawJson> = default
    },
    "client_tool_called" => ClientToolCalled {
        call: u32, tool_call_id: String, name: String, input: Option<RawJson> = default, expires_at: Timestamp
    },
    "tool_finished" => ToolFinished { call: u32, tool_call_id: String, name: String, outcome: ToolExecutionResult },
    "approval_asked" => ApprovalAsked {
        call: u32, tool_call_id: String, name: String, resolved_input: RawJson, reason: String, expires_at: Timestamp,
        pattern: Option<String> = default
    },
    "approval_answered" => ApprovalAnswered {
        call: u32, verdict: ApprovalVerdict, always: bool = default, changed: Option<RawJson> = default, pattern: Option<String> = default
    },
    "injected" => Injected { id: Option<String> = default, client_key: Option<ClientKey> = default, message: Message },
    "skills_offered" => SkillsOffered { index: SkillIndex, message: Option<Message> = default },
    "skill_activated" => SkillActivated {
        name: SkillName, activation_id: ActivationId, by: ActivatedBy, level: LoadLevel, modifier: ContextModifier = default,
        message: Message, text_digest: u64
    },
    "skill_deactivated" => SkillDeactivated { name: SkillName, activation_id: ActivationId },
    "round_finished" => RoundFinished { stop_reason: StopReason, latency_ms: u64, error: Option<Failure> = default },
    "compacted" => Compacted {
        cause: CompactionCause, mode: String, edits: Vec<Edit>, input_hash: String, before_tokens: u64, after_tokens: u64
    },
    "pinned" => Pinned { line: String },
    "imported" => Imported { messages: Vec<Message>, rounds: Vec<ConversationRound> = default },
    "rewound" => Rewound { round_id: RoundId, keep: u32 },
    "reset" => Reset {},
    "forked" => Forked { from: ConversationId, upto: Seq, in_doubt: Vec<u64> = default },
}

/// Returns a 64-bit FNV-1a digest, the same in every process and version. Not collision resistant,
/// so not for secrets.
pub fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Returns the digest of a tool call: the tool's name and the text of its input.
pub(crate) fn call_digest(name: &str, input: &RawJson) -> u64 {
    let mut bytes = Vec::with_capacity(name.len() + input.as_str().len() + 1);
    bytes.extend_from_slice(name.as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(input.as_str().as_bytes());
    digest(&bytes)
}

/// Who activated a skill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActivatedBy {
    /// The model activated it by a tool call. It stays active until the round ends.
    Model,
    /// A person or the application activated it. It stays active until it is deactivated.
    User,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::{
        ContentBlock, Role, ThinkingBlock, ToolChoice, ToolDefinition, ToolResultBlock,
        ToolResultContent, ToolUseBlock,
    };

    /// Messages with a block of each type that models and tools write.
    fn all_blocks() -> Vec<Message> {
        let thinking = ContentBlock::Thinking(ThinkingBlock {
            thinking: "let me see".into(),
            signature: Some("signed".into()),
        });
        let call = ContentBlock::ToolUse(ToolUseBlock {
            id: "toolu_1".into(),
            name: "look".into(),
            input: RawJson::from_text(r#"{"b": 1.0,"a":[]}"#).unwrap(),
        });
        let result = ToolResultBlock {
            tool_use_id: "toolu_1".into(),
            content: ToolResultContent::Text("汉 \u{0}".into()),
            is_error: true,
        };
        let said = ContentBlock::text("I look");
        vec![
            Message::user("i"),
            Message::new(Role::Assistant, &[thinking, said, call]).unwrap(),
            Message::tool_results([result], [ContentBlock::text("and this")]),
        ]
    }

    pub(crate) fn samples() -> Vec<EntryBody> {
        let id = PromptId::from_random([7; 16]);
        let round_id = RoundId::from_random([8; 16]);
        let input = RawJson::from_text(r#"{"b": 1.0,"a":[]}"#).unwrap();
        vec![
            EntryBody::LifeStarted {
                nonce: u64::MAX,
                in_order: true,
            },
            EntryBody::PromptAccepted {
                prompt_id: id,
                round_id,
                client_key: Some(ClientKey {
                    key: "k".into(),
                    digest: u64::MAX,
                }),
                message: Some(Message::user("汉 \u{0}")),
                output_schema: Some(input.clone()),
                deadline_at: Some(Timestamp(9)),
                wait_until: Some(Timestamp(8)),
                parameters: Some(Arc::new(ModelParameters {
                    max_tokens: Some(9),
                    ..ModelParameters::default()
                })),
                client_tools: Some(Arc::new(ClientTools {
                    tools: Arc::new([ToolDefinition {
                        name: "mine".into(),
                        description: "d".into(),
                        input_schema: input.clone(),
                    }]),
                    choice: ToolChoice::Named("mine".into()),
                })),
            },
            EntryBody::PromptWithdrawn {
                prompt_id: id,
                reason: WithdrawReason::ProviderAuth,
            },
            EntryBody::RoundStarted {
                round_id,
                prompt_ids: vec![id],
            },
            EntryBody::ModelCallStarted {
                step: 1,
                reserved: 9,
                reserved_micro_usd: u64::MAX,
            },
            EntryBody::BudgetSettled {
                reserved: 9,
                used_tokens: u64::MAX,
                cost_micro_usd: 3,
                estimated: true,
            },
            EntryBody::Assistant {
                step: 1,
                message: Some(Message::assistant("x")),
                stop: ProviderStop::EndTurn,
                raw_stop: Some("end_turn".into()),
                usage: Usage {
                    input_uncached: 1,
                    cache_read: 2,
                    cache_write: 3,
                    output: 4,
                },
                failed_usage: Usage {
                    input_uncached: 6,
                    ..Usage::default()
                },
                cost_micro_usd: Some(5),
                partial: false,
            },
            EntryBody::OutputRefused {
                fault: "no \"a\"".into(),
            },
            EntryBody::RequestRefused { bytes: 33_000_000 },
            EntryBody::FellBack {
                gateway: "spare".into(),
                model: "small".into(),
                reason: "provider_server_error".into(),
                failed_usage: Usage {
                    input_uncached: 7,
                    ..Usage::default()
                },
                cost_micro_usd: Some(8),
            },
            EntryBody::SummaryBilled {
                model: "m".into(),
                usage: Usage {
                    output: 4,
                    ..Usage::default()
                },
                cost_micro_usd: 5,
            },
            EntryBody::ToolStarted {
                call: 0,
                tool_call_id: "t".into(),
                name: "n".into(),
                effect: EffectClass::Once,
                attempt: 0,
                input: Some(input.clone()),
            },
            EntryBody::ClientToolCalled {
                call: 0,
                tool_call_id: "t".into(),
                name: "n".into(),
                input: Some(input.clone()),
                expires_at: Timestamp(7),
            },
            EntryBody::ToolFinished {
                call: 0,
                tool_call_id: "t".into(),
                name: "n".into(),
                outcome: ToolExecutionResult::ok("o"),
            },
            EntryBody::ApprovalAsked {
                call: 0,
                tool_call_id: "t".into(),
                name: "n".into(),
                resolved_input: input,
                reason: "r".into(),
                expires_at: Timestamp(5),
                pattern: None,
            },
            EntryBody::ApprovalAnswered {
                call: 0,
                verdict: ApprovalVerdict::Expired,
                always: false,
                changed: None,
                pattern: None,
            },
            EntryBody::Injected {
                id: None,
                client_key: Some(ClientKey {
                    key: "k".into(),
                    digest: 1,
                }),
                message: Message::user("i"),
            },
            EntryBody::SkillsOffered {
                index: SkillIndex::default(),
                message: Some(Message::user("i")),
            },
            EntryBody::SkillActivated {
                name: SkillName::new("pdf").unwrap(),
                activation_id: ActivationId::from_random([9; 16]),
                by: ActivatedBy::Model,
                level: LoadLevel::Resources,
                modifier: ContextModifier {
                    model: Some("m".into()),
                    ..ContextModifier::default()
                },
                message: Message::user("s"),
                text_digest: u64::MAX,
            },
            EntryBody::SkillDeactivated {
                name: SkillName::new("pdf").unwrap(),
                activation_id: ActivationId::from_random([9; 16]),
            },
            EntryBody::RoundFinished {
                stop_reason: StopReason::EndTurn,
                latency_ms: 3,
                error: None,
            },
            EntryBody::Compacted {
                cause: CompactionCause::Asked,
                mode: "extract".into(),
                edits: vec![Edit::Put(Message::user("s")), Edit::Drop(2), Edit::Keep(1)],
                input_hash: "0123456789abcdef".into(),
                before_tokens: 9,
                after_tokens: 4,
            },
            EntryBody::Pinned { line: "p".into() },
            EntryBody::Imported {
                messages: all_blocks(),
                rounds: Vec::new(),
            },
            EntryBody::Imported {
                messages: Vec::new(),
                rounds: vec![crate::journal::rounds::tests::full()],
            },
            EntryBody::Rewound { round_id, keep: 3 },
            EntryBody::Reset {},
            EntryBody::Forked {
                from: ConversationId::new("c").unwrap(),
                upto: Seq(4),
                in_doubt: vec![u64::MAX],
            },
        ]
    }

    #[test]
    fn entries_that_are_stored_together_are_each_as_alone() {
        let entry = |(seq, body)| Entry {
            seq: Seq(seq),
            epoch: Epoch(u64::MAX),
            at: Timestamp(1_795_300_000_000),
            body,
        };
        let entries: Vec<Entry> = (1..).zip(samples()).map(entry).collect();

        for count in [0, 1, 2, entries.len()] {
            let together: Vec<_> = Entry::encode_all(&entries[..count]);
            let alone: Vec<_> = entries[..count].iter().map(Entry::encode).collect();

            assert_eq!(together, alone);
        }
    }

    #[test]
    fn every_kind_survives_its_encoding() {
        for body in samples() {
            let entry = Entry {
                seq: Seq(3),
                epoch: Epoch(2),
                at: Timestamp(1),
                body,
            };

            let stored = entry.encode();

            assert_eq!(Entry::decode(&stored), Ok(entry.clone()));
            let kind = format!("\"kind\":\"{}\"", entry.body.kind());
            assert!(std::str::from_utf8(&stored.bytes).unwrap().contains(&kind));
        }
    }

    #[test]
    fn what_is_written_by_hand_is_what_serde_writes() {
        let message = Message::user("汉 \u{0}\"\\");
        let bare = EntryBody::PromptAccepted {
            prompt_id: PromptId::from_random([7; 16]),
            round_id: RoundId::from_random([8; 16]),
            client_key: None,
            message: Some(message.clone()),
            output_schema: None,
            deadline_at: None,
            wait_until: None,
            parameters: None,
            client_tools: None,
        };
        let stop = ProviderStop::EndTurn;
        let usage = Usage::default();
        let answered = |message: Option<Message>, raw_stop: Option<String>| EntryBody::Assistant {
            step: 1,
            message,
            stop,
            raw_stop,
            usage,
            failed_usage: usage,
            cost_micro_usd: None,
            partial: true,
        };
        let mut without = bare.clone();
        if let EntryBody::PromptAccepted { message, .. } = &mut without {
            *message = None;
        }
        let more = [
            bare,
            without,
            answered(None, None),
            answered(Some(message), Some("\"".into())),
        ];
        for body in samples().into_iter().chain(more) {
            let by_serde = serde_json::to_string(&body).unwrap();

            let stored = Entry {
                seq: Seq(3),
                epoch: Epoch(2),
                at: Timestamp(1),
                body,
            }
            .encode();

            let expected = format!(
                r#"{{"v":1,"epoch":2,"at":1,{}"#,
                by_serde.strip_prefix('{').unwrap()
            );
            assert_eq!(std::str::from_utf8(&stored.bytes).unwrap(), expected);
        }
    }

    #[test]
    fn newer_entries_are_named_and_never_skipped() {
        let entry = |text: &str| {
            Entry::decode(&StoredEntry {
                seq: Seq(1),
                bytes: Bytes::from(text.to_owned()),
            })
        };

        let newer_kind = entry(r#"{"v":1,"kind":"dreamt","epoch":1,"at":0,"body":{}}"#);
        let newer_version = entry(r#"{"v":2,"kind":"reset","epoch":1,"at":0,"body":{}}"#);

        assert!(matches!(
            newer_kind,
            Err(DecodeError::NeedsNewerVersion { .. })
        ));
        assert!(matches!(
            newer_version,
            Err(DecodeError::NeedsNewerVersion { .. })
        ));
        assert!(matches!(entry("{"), Err(DecodeError::Damaged { .. })));
    }
}
