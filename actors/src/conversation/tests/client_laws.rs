//! Calls of tools that the caller brought: who may end one, and with what.

use super::{
    Rng,
    laws::Law,
    world::{Cut, World},
};
use std::sync::Arc;

use crate::{
    chat::{
        ClientToolResult, ClientTools, ProviderStop, RawJson, Role, ToolChoice, ToolDefinition,
    },
    conversation::{Command, round::Input},
    journal::{Call, CallState, Durable, EntryBody, ToolExecutionResult, result_digest},
};

/// The tool that callers bring.
pub(super) const MINE: &str = "mine";

/// How long a call waits for its caller here, in milliseconds.
pub(super) const RESULT_MS: u64 = 3_600_000;

/// What a prompt brings.
pub(super) fn brought(rng: &mut Rng) -> Option<Arc<ClientTools>> {
    let tool = ToolDefinition {
        name: MINE.to_owned(),
        description: String::new(),
        input_schema: RawJson::empty_object(),
    };
    rng.percent(50).then(|| {
        Arc::new(ClientTools {
            tools: Arc::new([tool]),
            choice: ToolChoice::Auto,
        })
    })
}

/// Whether the caller of the open round brought this tool.
pub(super) fn is_brought(state: &Durable, name: &str) -> bool {
    let round = state.round.as_ref();
    round.is_some_and(|round| round.client_tool(name).is_some())
}

fn at_client(state: &Durable) -> impl Iterator<Item = &Call> {
    let calls = state.batch().map_or(&[][..], |batch| &batch.calls);
    let is = |call: &&Call| matches!(call.state, CallState::AtClient { .. });
    calls.iter().filter(is)
}

/// The digest of a result as it is remembered.
fn digest_of(result: &ClientToolResult) -> u64 {
    let outcome = match result.is_error {
        true => ToolExecutionResult::error_text("CLIENT_ERROR", result.content.as_str()),
        false => ToolExecutionResult::ok(result.content.as_str()),
    };
    result_digest(&outcome)
}

impl World {
    /// A caller sends results: of open calls in any order, again, of calls of others, or twice.
    pub(super) fn caller_answers(&mut self, index: usize) -> Result<(), Cut> {
        let waiter = self.waiter();
        let state = &self.activations[index].durable;
        let mut ids: Vec<String> = at_client(state)
            .map(|call| call.tool_use.id.clone())
            .collect();
        let known = state.keys.iter().filter_map(|known| {
            let id = known.key.strip_prefix("\u{1f}result of ")?;
            Some(id.to_owned())
        });
        ids.extend(known.filter(|_| self.rng.percent(10)));
        ids.extend(self.rng.percent(5).then(|| "another's".to_owned()));
        if self.rng.percent(50) {
            ids.reverse();
        }
        let keep = 1 + self.rng.below(3);
        ids.truncate(keep);
        if self.rng.percent(2) {
            ids.extend(ids.first().cloned());
        }
        let results = ids.into_iter().map(|id| {
            // Mostly the same words for the same call, so that it is a repetition.
            let content = match self.rng.percent(85) {
                true => format!("result of {id}"),
                false => "another result".to_owned(),
            };
            match id.len().is_multiple_of(5) {
                true => ClientToolResult::failed(id, content),
                false => ClientToolResult::new(id, content),
            }
        });
        let results = results.collect();
        self.command(index, Command::ToolResults { results }, waiter)
    }

    /// A caller that comes back at last.
    pub(super) fn caller_returns(&mut self, index: usize) -> bool {
        let state = &self.activations[index].durable;
        let results: Vec<ClientToolResult> = at_client(state)
            .map(|call| ClientToolResult::new(&call.tool_use.id, "at last"))
            .collect();
        if results.is_empty() {
            return false;
        }
        let waiter = self.waiter();
        self.command(index, Command::ToolResults { results }, waiter)
            .expect("no cut");
        true
    }
}

/// The refusal that a caller's results must get; `None` if they are accepted.
pub(super) fn refusal(state: &Durable, results: &[ClientToolResult]) -> Option<&'static str> {
    for (place, result) in results.iter().enumerate() {
        let id = &result.tool_call_id;
        if results[..place]
            .iter()
            .any(|other| other.tool_call_id == *id)
        {
            return Some("already_answered");
        }
        if at_client(state).any(|call| call.tool_use.id == *id) {
            continue;
        }
        match state.client_result(id) {
            None => return Some("not_found"),
            Some(known) if known != digest_of(result) => return Some("already_answered"),
            Some(_) => {}
        }
    }
    None
}

impl Law<'_> {
    /// A call is handed to the caller that brought its tool, with the model's own input.
    pub(super) fn client_call(&self, state: &Durable, body: &EntryBody, cancelling: bool) {
        let EntryBody::ClientToolCalled {
            call,
            input,
            expires_at,
            name,
            tool_call_id,
        } = body
        else {
            return;
        };
        let call = &state.batch().expect("a batch is open").calls[*call as usize];
        assert_eq!(
            (name, tool_call_id),
            (&call.tool_use.name, &call.tool_use.id)
        );
        assert!(call.state == CallState::Waiting && !cancelling);
        assert!(is_brought(state, name) && input.is_none());
        assert_eq!(*expires_at, self.now.plus_ms(RESULT_MS));
    }

    /// A call at its caller ends by the caller's result, or because its time is over.
    pub(super) fn client_call_finished(&self, call: &Call, outcome: &ToolExecutionResult) {
        let CallState::AtClient { expires_at, at, .. } = &call.state else {
            panic!("the call is not at its caller")
        };
        assert_eq!(outcome.duration_ms, self.now.ms_since(*at));
        match self.input {
            Input::Command {
                command: Command::ToolResults { results },
                ..
            } => {
                let own = results
                    .iter()
                    .find(|result| result.tool_call_id == call.tool_use.id)
                    .expect("the caller sent a result of this call");
                assert_eq!(
                    (&outcome.observation, outcome.is_error),
                    (&own.content, own.is_error)
                );
            }
            Input::Tick => {
                assert!(*expires_at <= self.now);
                assert_eq!(outcome.error_code.as_deref(), Some("NO_CLIENT_RESULT"));
            }
            other => panic!("a result out of nothing: {other:?}"),
        }
    }
}

/// Whether a prompt without a message has something to answer.
pub(super) fn ends_with_user(state: &Durable) -> bool {
    let last = state.history.messages().last();
    last.is_some_and(|last| last.role() == Role::User)
}

/// Whether an answer with this stop reason runs its calls.
pub(super) fn is_an_answer(stop: ProviderStop) -> bool {
    !matches!(
        stop,
        ProviderStop::MaxTokens | ProviderStop::Refusal | ProviderStop::ContextWindowExceeded
    )
}
