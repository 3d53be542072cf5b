//! The round that is open: its prompts, its phase and its batch of tool calls.
//!
//! Pure.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::CREATE_SUBAGENT;
use crate::{
    chat::{
        ClientTools, Message, ModelParameters, ProviderStop, RawJson, ToolDefinition, ToolUseBlock,
        Usage,
    },
    ids::{PromptId, RoundId, Seq},
    journal::{Repeats, ToolExecutionResult},
    limits::{MESSAGE_KEPT_BYTES, MODEL_CRASHES_MAX, ROUND_CRASHES_MAX},
    time::Timestamp,
    tool::EffectClass,
};

/// A prompt in the inbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the field names say it")]
pub struct AcceptedPrompt {
    pub id: PromptId,
    /// Id of the round that the prompt will open.
    pub round_id: RoundId,
    /// The prompt as a user message; `None` for a prompt that goes on from the history as it is.
    #[serde(default)]
    pub message: Option<Message>,
    /// JSON Schema of the answer. `None` for free text.
    #[serde(default)]
    pub output_schema: Option<RawJson>,
    /// When the prompt is withdrawn, or its round canceled. `None` without a deadline.
    #[serde(default)]
    pub deadline_at: Option<Timestamp>,
    /// When the prompt is withdrawn if it still waits. `None` waits without a bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_until: Option<Timestamp>,
    /// How the model is asked to answer; `None` for the configuration's way.
    #[serde(default)]
    pub parameters: Option<Arc<ModelParameters>>,
    /// Tools that the caller brings and runs itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_tools: Option<Arc<ClientTools>>,
}

impl AcceptedPrompt {
    /// Bytes of what it holds in memory until its round ends.
    pub(super) fn kept_bytes(&self) -> usize {
        self.message.as_ref().map_or(0, Message::kept_bytes)
            + brought_bytes(self.output_schema.as_ref(), self.client_tools.as_deref())
    }
}

/// Bytes of a schema of the answer and of tools that a caller brings.
fn brought_bytes(schema: Option<&RawJson>, tools: Option<&ClientTools>) -> usize {
    schema.map_or(0, |schema| schema.as_str().len()) + tools.map_or(0, ClientTools::bytes)
}

/// A request that the answer be JSON of a schema.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the field names say it")]
pub struct OutputRequest {
    pub schema: RawJson,
    /// Number of answers so far that did not fit the schema.
    pub refused: u32,
}

/// The fallback that a model call asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FallbackCall {
    /// The gateway of the fallback.
    pub gateway: String,
    /// The model that is asked there.
    pub model: String,
}

/// A round that has not ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the field names say it")]
pub struct OpenRound {
    /// Id of the round, which is also the id of its event stream.
    pub id: RoundId,
    /// The prompts that the round answers.
    pub prompts: Vec<PromptId>,
    pub started_at: Timestamp,
    /// Model calls that were decided.
    #[serde(rename = "steps")]
    pub model_calls: u32,
    /// Model calls that gave an answer.
    pub answers: u32,
    /// Batches of tool calls that are done.
    pub batches: u32,
    /// Tokens of its model calls so far.
    pub usage: Usage,
    /// What the round is doing.
    pub phase: Phase,
    /// Injected messages that wait for the end of the model call or batch.
    pub pending: Vec<Message>,
    /// The assistant messages of the round.
    #[serde(rename = "said")]
    pub assistant_messages: Vec<Message>,
    /// Counts for the loop guard.
    #[serde(default)]
    pub repeats: Repeats,
    /// The requested JSON Schema of the answer; `None` for free text.
    #[serde(default)]
    pub output: Option<OutputRequest>,
    /// Model calls that the provider refused as too large.
    #[serde(default)]
    pub refused_requests: u32,
    /// The fallback that the next model call asks, because the one before it fell back and its
    /// request had to be measured for that model's window. `None` for the model that the
    /// configuration or a skill says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<FallbackCall>,
    /// Activations that crashed while a tool call of the round ran, as far as a later one wrote an
    /// entry.
    #[serde(default)]
    pub crashes: u32,
    /// Activations that crashed during the model call that is open, as far as a later one wrote an
    /// entry. 0 once a model call has ended.
    #[serde(default)]
    pub model_crashes: u32,
    /// When the round is canceled; `None` without a deadline.
    #[serde(default)]
    pub deadline_at: Option<Timestamp>,
    /// How the model is asked to answer; `None` for the configuration's way.
    #[serde(default)]
    pub parameters: Option<Arc<ModelParameters>>,
    /// Tools that the caller brings and runs itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_tools: Option<Arc<ClientTools>>,
}

impl OpenRound {
    /// The tool of that name, if the caller brought it.
    pub(crate) fn client_tool(&self, name: &str) -> Option<&ToolDefinition> {
        self.client_tools.as_ref()?.get(name)
    }

    /// Bytes of injected messages, of an answer with open calls, of their inputs and results, and of
    /// what the round's prompt brought beside its text: the history has none of it yet.
    pub(super) fn waiting_bytes(&self) -> usize {
        let schema = self.output.as_ref().map(|output| &output.schema);
        let injected = self.pending.iter().map(Message::kept_bytes).sum::<usize>()
            + brought_bytes(schema, self.client_tools.as_deref());
        let Phase::Batch(batch) = &self.phase else {
            return injected;
        };
        let kept = |call: &Call| match &call.state {
            CallState::Finished(outcome) => outcome.observation.len(),
            CallState::Asked { input, .. } | CallState::Allowed { input, .. } => {
                input.as_str().len()
            }
            CallState::Started { input, .. } | CallState::AtClient { input, .. } => {
                input.as_ref().map_or(0, |input| input.as_str().len())
            }
            CallState::Waiting => 0,
        };
        // Each call has a copy of its input. The message is not in the history yet.
        let of_model = |call: &Call| call.tool_use.input.as_str().len() + MESSAGE_KEPT_BYTES;
        let calls = batch.calls.iter().map(|call| kept(call) + of_model(call));
        injected + batch.message.kept_bytes() + calls.sum::<usize>()
    }

    /// Returns the text of the last assistant message.
    pub(crate) fn text(&self) -> String {
        self.assistant_messages
            .last()
            .map(Message::text)
            .unwrap_or_default()
    }

    /// Returns the text of the last assistant message, and the texts of all of them joined.
    pub(crate) fn texts(&self) -> (String, String) {
        let texts: Vec<String> = self.assistant_messages.iter().map(Message::text).collect();
        let mut full = String::with_capacity(texts.iter().map(|text| text.len() + 1).sum());
        for text in texts.iter().filter(|text| !text.is_empty()) {
            if !full.is_empty() {
                full.push('\n');
            }
            full.push_str(text);
        }
        (texts.into_iter().next_back().unwrap_or_default(), full)
    }

    /// Whether a tool call had started that has no result. Such a call may be what took the process
    /// down; a subagent's call is not, because the subagent has a round of its own.
    pub(crate) fn runs_a_tool(&self) -> bool {
        let Phase::Batch(batch) = &self.phase else {
            return false;
        };
        let runs = |call: &Call| call.is_started() && call.tool_use.name != CREATE_SUBAGENT;
        batch.calls.iter().any(runs)
    }

    /// Counts a crash of the process that may be due to what the round was doing.
    pub(super) fn note_crash(&mut self) {
        if self.runs_a_tool() {
            self.crashes += 1;
        } else if matches!(self.phase, Phase::Model { .. }) {
            self.model_crashes += 1;
        }
    }

    /// Whether a further crash is one too many for what the round is doing.
    pub(crate) fn is_at_its_last_crash(&self) -> bool {
        match self.phase {
            Phase::Model { .. } => self.model_crashes + 1 >= MODEL_CRASHES_MAX,
            _ => self.runs_a_tool() && self.crashes + 1 >= ROUND_CRASHES_MAX,
        }
    }

    /// Whether the round waits for results of its caller, and nothing of it runs.
    pub fn waits_for_client(&self) -> bool {
        let at_client = |call: &Call| matches!(call.state, CallState::AtClient { .. });
        match &self.phase {
            Phase::Batch(batch) => batch.is_parked() && batch.calls.iter().any(at_client),
            Phase::Ready | Phase::Ended { .. } | Phase::Model { .. } => false,
        }
    }

    /// Whether the round waits only for people's approvals and for results of its caller.
    pub fn is_parked(&self) -> bool {
        match &self.phase {
            Phase::Ready | Phase::Ended { .. } | Phase::Model { .. } => false,
            Phase::Batch(batch) => batch.is_parked(),
        }
    }
}

/// What an open round is doing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The next model call is due.
    Ready,
    /// The model gave its final answer; the round is about to finish.
    Ended {
        /// The provider's stop reason.
        stop: ProviderStop,
    },
    /// A model call is running.
    Model {
        /// Position of the `model_call_started` entry.
        seq: Seq,
    },
    /// Tool calls are running or waiting.
    Batch(Batch),
}

/// The tool calls of one assistant message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// Position of the assistant entry.
    pub seq: Seq,
    /// The assistant message.
    pub message: Message,
    /// The calls, in the order of the message.
    pub calls: Vec<Call>,
}

impl Batch {
    /// Whether every call has its result.
    pub(crate) fn is_done(&self) -> bool {
        self.calls
            .iter()
            .all(|call| matches!(call.state, CallState::Finished(_)))
    }

    /// Whether every unfinished call waits for a person or for the caller.
    pub(crate) fn is_parked(&self) -> bool {
        let waits = |call: &Call| match call.state {
            CallState::Finished(_) | CallState::Asked { .. } | CallState::AtClient { .. } => true,
            CallState::Waiting | CallState::Allowed { .. } | CallState::Started { .. } => false,
        };
        !self.is_done() && self.calls.iter().all(waits)
    }

    /// Returns the earliest expiry of the open approvals and of the calls at the caller.
    pub(crate) fn expires_at(&self) -> Option<Timestamp> {
        let ends = self.calls.iter().filter_map(|call| match &call.state {
            CallState::Asked { expires_at, .. } | CallState::AtClient { expires_at, .. } => {
                Some(*expires_at)
            }
            _ => None,
        });
        ends.min()
    }
}

/// One call of a batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the field names say it")]
pub struct Call {
    /// The `tool_use` block of the model.
    pub tool_use: ToolUseBlock,
    pub state: CallState,
}

impl Call {
    /// Whether the call has started and has no result yet.
    pub(crate) fn is_started(&self) -> bool {
        matches!(self.state, CallState::Started { .. })
    }
}

/// The progress of a tool call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallState {
    /// Not started: queued, or not checked yet.
    Waiting,
    /// Waiting for a person's approval.
    Asked {
        /// The input that the person was shown.
        input: RawJson,
        /// When the approval expires and counts as denied.
        expires_at: Timestamp,
        /// The pattern that "always" would approve.
        #[serde(default)]
        pattern: Option<String>,
    },
    /// Approved for this input, not started yet.
    Allowed {
        /// The approved input.
        input: RawJson,
        /// The pattern of the call when the person was asked. `None` from before it was kept, and
        /// where "always" was not offered.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pattern: Option<String>,
    },
    /// Started, or about to start.
    Started {
        /// The effect class of the call, which decides whether it may start again after a crash.
        effect: EffectClass,
        /// Time of the first start.
        at: Timestamp,
        /// Starts after the first.
        attempt: u32,
        /// The input, where it differs from the model's.
        input: Option<RawJson>,
    },
    /// Waiting for the caller, who runs the call and sends its result.
    AtClient {
        /// The input, where it differs from the model's.
        #[serde(default)]
        input: Option<RawJson>,
        /// When the caller was asked.
        at: Timestamp,
        /// When the call ends without a result.
        expires_at: Timestamp,
    },
    /// Finished, with its one result.
    Finished(ToolExecutionResult),
}
