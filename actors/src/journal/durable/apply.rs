//! How an entry changes the state of a conversation.
//!
//! Pure.

use super::{
    AcceptedPrompt, Batch, Call, CallState, Durable, FallbackCall, OpenRound, OutputRequest, Phase,
    client_result_key, result_digest, skills,
};
use crate::{
    chat::{
        ContentBlock, Edit, History, Message, ProviderStop, Role, ToolResultBlock,
        ToolResultContent, Usage, reminder,
    },
    ids::{Epoch, PromptId, RoundId, Seq},
    journal::{
        ActiveSkill, ApprovalVerdict, CompactionNote, Entry, EntryBody, KnownKey, Repeats,
        RoundMarks, ToolExecutionResult, call_digest, metrics::estimate,
        skills::refresh_at_compaction,
    },
    limits::{APPROVED_PATTERNS_MAX, CLIENT_KEY_MS, CLIENT_KEYS_MAX, CLIENT_KEYS_WHOLE},
    time::Timestamp,
    tokens::WindowUse,
};

impl Durable {
    pub(super) fn try_apply(&mut self, entry: &Entry) -> Result<(), String> {
        if entry.seq != self.head.next() {
            return Err(format!("the journal is at {}", self.head));
        }
        if matches!(entry.body, EntryBody::Emptied {}) {
            // Emptied entries stand only at the start of a journal: the reset behind them is the
            // first entry that was kept.
            let is_first = self.epoch == Epoch(0);
            self.head = entry.seq;
            return if is_first {
                Ok(())
            } else {
                Err("an entry before it was not emptied".into())
            };
        }
        if self.epoch == Epoch(0) && self.head > Seq(0) && matches!(entry.body, EntryBody::Reset {})
        {
            self.epoch = entry.epoch; // The `LifeStarted` entry of its activation was emptied.
        }
        // `LifeStarted` begins the next epoch, or any epoch above 0 in an empty journal. Every
        // other entry belongs to the current epoch.
        let is_due = match (
            matches!(entry.body, EntryBody::LifeStarted { .. }),
            self.head,
        ) {
            (true, Seq(0)) => entry.epoch > Epoch(0),
            (true, _) => entry.epoch == self.epoch.next(),
            (false, _) => entry.epoch == self.epoch,
        };
        if !is_due {
            return Err(format!(
                "epoch {} in a journal of epoch {}",
                entry.epoch, self.epoch
            ));
        }
        self.head = entry.seq;
        if self.metrics.start_time == Timestamp::default() {
            self.metrics.start_time = entry.at;
        }
        self.metrics.end_time = entry.at;
        self.spent.apply(&entry.body)?;
        match &entry.body {
            EntryBody::LifeStarted { in_order, .. } => {
                self.epoch = entry.epoch;
                if let Some(round) = &mut self.round
                    && !in_order
                {
                    round.note_crash();
                }
            }
            EntryBody::PromptAccepted {
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
                if let Some(key) = client_key {
                    self.remember(key.key.clone(), key.digest, Some(*round_id), entry.at);
                }
                let message = message.clone();
                let output_schema = output_schema.clone();
                self.inbox.push_back(AcceptedPrompt {
                    id: *prompt_id,
                    round_id: *round_id,
                    message,
                    output_schema,
                    deadline_at: *deadline_at,
                    wait_until: *wait_until,
                    parameters: parameters.clone(),
                    client_tools: client_tools.clone(),
                });
            }
            EntryBody::PromptWithdrawn { prompt_id, .. } => self.withdraw(*prompt_id)?,
            EntryBody::RoundStarted {
                round_id,
                prompt_ids,
            } => self.start_round(*round_id, prompt_ids, entry.at)?,
            EntryBody::ModelCallStarted { step, .. } => {
                self.metrics.api_calls += 1;
                let round = open(&mut self.round)?;
                if matches!(round.phase, Phase::Batch(_)) {
                    return Err("a batch is open".into());
                }
                round.model_calls = *step;
                round.phase = Phase::Model { seq: entry.seq };
            }
            EntryBody::Assistant {
                message,
                usage,
                failed_usage,
                stop,
                partial,
                cost_micro_usd,
                ..
            } => {
                let total = usage.plus(failed_usage);
                let round = open(&mut self.round)?;
                round.usage = round.usage.plus(&total);
                self.metrics.record_usage(&total);
                self.metrics.cost_micro_usd = self
                    .metrics
                    .cost_micro_usd
                    .saturating_add(cost_micro_usd.unwrap_or(0));
                self.assistant(entry.seq, message.as_ref(), usage, *stop, *partial)?;
            }
            EntryBody::BudgetSettled { .. } | EntryBody::Emptied {} => {} // Applied above.
            EntryBody::SummaryBilled {
                usage,
                cost_micro_usd,
                ..
            } => {
                self.metrics.summary_usage = self.metrics.summary_usage.plus(usage);
                self.metrics.cost_micro_usd =
                    self.metrics.cost_micro_usd.saturating_add(*cost_micro_usd);
            }
            EntryBody::RequestRefused { bytes } => self.request_refused(*bytes)?,
            EntryBody::FellBack {
                gateway,
                model,
                failed_usage,
                cost_micro_usd,
                ..
            } => {
                let round = not_made(&mut self.round)?;
                round.usage = round.usage.plus(failed_usage);
                if !failed_usage.is_zero() {
                    self.metrics.record_usage(failed_usage);
                }
                self.metrics.cost_micro_usd = self
                    .metrics
                    .cost_micro_usd
                    .saturating_add(cost_micro_usd.unwrap_or(0));
                round.fallback = Some(FallbackCall {
                    gateway: gateway.clone(),
                    model: model.clone(),
                });
            }
            EntryBody::OutputRefused { fault } => self.output_refused(fault)?,
            EntryBody::ToolStarted {
                call,
                effect,
                attempt,
                input,
                ..
            } => {
                let call = self.call(*call)?;
                let at = match &call.state {
                    CallState::Started { at, .. } => *at,
                    CallState::Waiting | CallState::Allowed { .. } => entry.at,
                    CallState::Asked { .. }
                    | CallState::AtClient { .. }
                    | CallState::Finished(_) => {
                        return Err("the call cannot start now".into());
                    }
                };
                call.state = CallState::Started {
                    effect: *effect,
                    at,
                    attempt: *attempt,
                    input: input.clone(),
                };
            }
            EntryBody::ClientToolCalled {
                call,
                input,
                expires_at,
                ..
            } => {
                let call = self.call(*call)?;
                if call.state != CallState::Waiting {
                    return Err("the call does not wait".into());
                }
                call.state = CallState::AtClient {
                    input: input.clone(),
                    at: entry.at,
                    expires_at: *expires_at,
                };
            }
            EntryBody::ToolFinished {
                call,
                outcome,
                name,
                tool_call_id,
            } => {
                let key = self.client_result_key(*call, tool_call_id)?;
                if let Some((key, round_id)) = key {
                    self.remember(key, result_digest(outcome), Some(round_id), entry.at);
                }
                self.tool_finished(*call, name, outcome)?;
            }
            EntryBody::ApprovalAsked {
                call,
                resolved_input,
                expires_at,
                pattern,
                ..
            } => {
                let call = self.call(*call)?;
                if !matches!(call.state, CallState::Waiting | CallState::Allowed { .. }) {
                    return Err("the call does not wait".into());
                }
                call.state = CallState::Asked {
                    input: resolved_input.clone(),
                    expires_at: *expires_at,
                    pattern: pattern.clone(),
                };
            }
            EntryBody::ApprovalAnswered {
                call,
                verdict,
                always,
                changed,
                pattern: of_changed,
            } => {
                let call = self.call(*call)?;
                let CallState::Asked { input, pattern, .. } = &call.state else {
                    return Err("no approval was asked".into());
                };
                let (input, pattern) = match changed {
                    Some(changed) => (changed.clone(), of_changed.clone()),
                    None => (input.clone(), pattern.clone()),
                };
                call.state = match verdict {
                    ApprovalVerdict::Allowed => CallState::Allowed {
                        input,
                        pattern: pattern.clone(),
                    },
                    ApprovalVerdict::Denied | ApprovalVerdict::Expired => CallState::Waiting,
                };
                let allows = *always && *verdict == ApprovalVerdict::Allowed;
                if let Some(pattern) = pattern.filter(|_| allows) {
                    self.approve_always(pattern);
                }
            }
            EntryBody::Injected {
                id,
                client_key,
                message,
            } => {
                if let Some(id) = id {
                    self.remember(id.clone(), 0, None, entry.at);
                }
                if let Some(key) = client_key {
                    let round_id = open(&mut self.round)?.id;
                    self.remember(key.key.clone(), key.digest, Some(round_id), entry.at);
                }
                self.enter(message)?;
            }
            EntryBody::SkillsOffered { index, message } => {
                self.skills_offered(index, message.as_ref())?
            }
            EntryBody::SkillActivated {
                name,
                activation_id,
                by,
                level,
                modifier,
                message,
                text_digest,
            } => {
                let modifier = modifier.clone();
                let message = message.clone();
                let skill = ActiveSkill {
                    activation_id: *activation_id,
                    by: *by,
                    level: *level,
                    modifier,
                    message,
                };
                self.skill_activated(skills::Activated {
                    name,
                    at: entry.at,
                    skill,
                    text_digest: *text_digest,
                })?;
            }
            EntryBody::SkillDeactivated {
                name,
                activation_id,
            } => self.skill_deactivated(name, *activation_id)?,
            EntryBody::RoundFinished { .. } => {
                let round = self.round.take().ok_or("no round is open")?;
                if matches!(round.phase, Phase::Batch(_)) {
                    return Err("calls without a result are open".into());
                }
                for message in &round.pending {
                    push_user(&mut self.history, &mut self.context.window, message)?;
                }
                self.rounds.cut(self.history.messages().len()); // A round without any message.
                self.skills.round_over();
                self.metrics.rounds += 1;
            }
            EntryBody::Compacted {
                mode,
                edits,
                before_tokens,
                after_tokens,
                ..
            } => {
                self.compact(entry.seq, edits, mode, *before_tokens, *after_tokens)?;
            }
            EntryBody::Pinned { line } => self.context.pinned.push(line.clone()),
            EntryBody::Imported { messages, rounds } => {
                self.idle()?;
                let (history, repairs) = History::repair(messages.iter().cloned());
                if let Some(repair) = repairs.first() {
                    return Err(format!(
                        "imported message {}: {}",
                        repair.index, repair.what
                    ));
                }
                self.rounds = match rounds.as_slice() {
                    [] => RoundMarks::derive(entry.seq, history.messages()),
                    records => RoundMarks::from_records(records, history.messages())?,
                };
                self.history = history;
                self.last_usage = Usage::default(); // It describes the previous history.
                self.replaced();
                self.skills.history_replaced();
            }
            EntryBody::Rewound { round_id, keep } => {
                self.idle()?;
                if self.rounds.start(*round_id) != Some(*keep) {
                    return Err("no such round begins there".into());
                }
                self.history
                    .cut(*keep as usize)
                    .map_err(|error| error.to_string())?;
                self.rounds.cut(*keep as usize);
                self.last_usage = Usage::default(); // `spent` does not go back.
                self.replaced();
                self.skills.history_replaced();
            }
            EntryBody::Reset {} => {
                self.idle()?;
                let epoch = self.epoch;
                let head = self.head;
                *self = Self {
                    epoch,
                    head,
                    reset_at: entry.seq,
                    ..Self::default()
                };
            }
            EntryBody::Forked { in_doubt, .. } => {
                self.idle()?;
                self.in_doubt.clone_from(in_doubt);
            }
        }
        self.metrics.messages_count = self.history.messages().len() as u64;
        Ok(())
    }

    fn compact(
        &mut self,
        seq: Seq,
        edits: &[Edit],
        mode: &str,
        before_tokens: u64,
        after_tokens: u64,
    ) -> Result<(), String> {
        if self
            .round
            .as_ref()
            .is_some_and(|round| round.phase != Phase::Ready)
        {
            return Err("a call is open".into());
        }
        let len = self.history.messages().len();
        self.history = self
            .history
            .edited(edits)
            .map_err(|error| error.to_string())?;
        self.move_marks(edits, len);
        self.context
            .window
            .counted(after_tokens, self.history.messages().estimate_bytes());
        self.repeat_skills(edits)?;
        self.context.last_compaction = Some(CompactionNote {
            seq,
            before_tokens,
            after_tokens,
            mode: mode.to_owned(),
        });
        self.metrics.compression_events += 1;
        Ok(())
    }

    /// Appends the messages of active skills that the edits removed, behind the new start of the
    /// history, so that the model keeps reading them.
    fn repeat_skills(&mut self, edits: &[Edit]) -> Result<(), String> {
        let head = edits
            .iter()
            .take_while(|edit| matches!(edit, Edit::Put(_)))
            .count();
        let head = u32::try_from(head).map_err(|error| error.to_string())?;
        let messages = self.history.messages();
        let gone = |message: &Message| !messages.iter().any(|kept| kept.holds_blocks_of(message));
        let again: Vec<Edit> = refresh_at_compaction(&mut self.skills)
            .into_iter()
            .filter(gone)
            .map(Edit::Put)
            .collect();
        if again.is_empty() {
            return Ok(());
        }
        for edit in &again {
            if let Edit::Put(message) = edit {
                self.context.window.appended(message.estimate_bytes());
            }
        }
        let len = messages.len();
        let edits = [vec![Edit::Keep(head)], again].concat();
        self.history = self
            .history
            .edited(&edits)
            .map_err(|error| error.to_string())?;
        self.move_marks(&edits, len);
        Ok(())
    }

    /// Moves the marks of the rounds after an edit of a history that had `len` messages. An open
    /// round that has no message yet begins at its end.
    fn move_marks(&mut self, edits: &[Edit], len: usize) {
        let open = self.round.as_ref().map(|round| round.id);
        let is_empty = |id: &RoundId| self.rounds.start(*id).map(|at| at as usize) == Some(len);
        let empty = open.filter(is_empty);
        let moved = Edit::moves(edits, len);
        self.rounds
            .edited(len, |old| moved.get(old as usize).copied().flatten());
        if let Some(id) = empty {
            self.rounds.begin(id, self.history.messages().len());
        }
    }

    /// Adds a message at an allowed place: never between a call and its result, and before the
    /// first model call of a round not behind the prompt, which can still be withdrawn.
    pub(super) fn enter(&mut self, message: &Message) -> Result<(), String> {
        match &mut self.round {
            Some(round)
                if round.model_calls == 0
                    || matches!(round.phase, Phase::Model { .. } | Phase::Batch(_)) =>
            {
                round.pending.push(message.clone());
                Ok(())
            }
            _ => push_user(&mut self.history, &mut self.context.window, message),
        }
    }

    /// Resets what depends on the history after it was replaced: no model call has seen the new
    /// one.
    fn replaced(&mut self) {
        let messages = self.history.messages();
        self.context
            .window
            .replaced(messages.len(), messages.estimate_bytes());
    }

    fn idle(&self) -> Result<(), String> {
        if self.round.is_some() {
            Err("a round is open".into())
        } else {
            Ok(())
        }
    }

    fn call(&mut self, index: u32) -> Result<&mut Call, String> {
        match &mut open(&mut self.round)?.phase {
            Phase::Batch(batch) => batch
                .calls
                .get_mut(index as usize)
                .ok_or_else(|| "no such call".into()),
            Phase::Ready | Phase::Ended { .. } | Phase::Model { .. } => {
                Err("no batch is open".into())
            }
        }
    }

    /// The key under which the result of this call is remembered, and its round, if the call is at
    /// the caller: a result that is sent twice is known by it.
    fn client_result_key(
        &mut self,
        call: u32,
        tool_call_id: &str,
    ) -> Result<Option<(String, RoundId)>, String> {
        let is_at_client = matches!(self.call(call)?.state, CallState::AtClient { .. });
        let round_id = open(&mut self.round)?.id;
        Ok(is_at_client.then(|| (client_result_key(tool_call_id), round_id)))
    }

    fn remember(&mut self, key: String, digest: u64, round_id: Option<RoundId>, at: Timestamp) {
        self.keys.push_back(KnownKey {
            key,
            digest,
            round_id,
            at,
        });
        let is_old = |known: &KnownKey| at.ms_since(known.at) > CLIENT_KEY_MS;
        while self.keys.front().is_some_and(is_old) {
            self.keys.pop_front();
        }
        if self.keys.len() > CLIENT_KEYS_WHOLE
            && let Some(known) = self.keys.pop_front()
        {
            self.older_keys
                .push(&known, CLIENT_KEYS_MAX - CLIENT_KEYS_WHOLE, at);
        }
    }

    fn approve_always(&mut self, pattern: String) {
        if !self.approved.contains(&pattern) {
            self.approved.push_back(pattern);
        }
        while self.approved.len() > APPROVED_PATTERNS_MAX {
            self.approved.pop_front();
        }
    }

    fn withdraw(&mut self, id: PromptId) -> Result<(), String> {
        if let Some(place) = self.inbox.iter().position(|prompt| prompt.id == id) {
            self.inbox.remove(place);
            return Ok(());
        }
        let round = self
            .round
            .as_ref()
            .filter(|round| round.prompts.contains(&id) && round.model_calls <= 1)
            .ok_or("no such prompt")?;
        match round.phase {
            Phase::Batch(_) => Err("a batch is open".into()),
            Phase::Ready | Phase::Ended { .. } | Phase::Model { .. } => {
                let len = self.history.messages().len();
                let start = self.rounds.start(round.id).map(|start| start as usize);
                if start == Some(len) {
                    self.rounds.cut(len); // The prompt had no message.
                    return Ok(());
                }
                let prompt = self
                    .history
                    .withdraw_last_user()
                    .ok_or("the prompt is not last")?;
                self.context.window.taken_back(prompt.estimate_bytes());
                self.rounds.cut(self.history.messages().len());
                Ok(())
            }
        }
    }

    fn start_round(
        &mut self,
        id: RoundId,
        prompt_ids: &[PromptId],
        at: Timestamp,
    ) -> Result<(), String> {
        self.idle()?;
        self.rounds.begin(id, self.history.messages().len());
        let mut output = None;
        let mut deadline_at = None;
        let mut parameters = None;
        let mut client_tools = None;
        for prompt_id in prompt_ids {
            let place = self
                .inbox
                .iter()
                .position(|prompt| prompt.id == *prompt_id)
                .ok_or("a prompt is not in the inbox")?;
            if let Some(prompt) = self.inbox.remove(place) {
                if let Some(message) = &prompt.message {
                    push_user(&mut self.history, &mut self.context.window, message)?;
                }
                deadline_at = prompt.deadline_at;
                parameters = prompt.parameters;
                client_tools = prompt.client_tools;
                output = prompt
                    .output_schema
                    .map(|schema| OutputRequest { schema, refused: 0 });
            }
        }
        if self.inbox.is_empty() {
            self.inbox.shrink_to_fit(); // Most conversations are idle and need no capacity.
        }
        self.round = Some(Box::new(OpenRound {
            id,
            prompts: prompt_ids.to_vec(),
            started_at: at,
            model_calls: 0,
            answers: 0,
            batches: 0,
            usage: Usage::default(),
            phase: Phase::Ready,
            pending: Vec::new(),
            assistant_messages: Vec::new(),
            repeats: Repeats::default(),
            output,
            refused_requests: 0,
            fallback: None,
            crashes: 0,
            model_crashes: 0,
            deadline_at,
            parameters,
            client_tools,
        }));
        Ok(())
    }

    fn assistant(
        &mut self,
        seq: Seq,
        message: Option<&Message>,
        usage: &Usage,
        stop: ProviderStop,
        partial: bool,
    ) -> Result<(), String> {
        let round = open(&mut self.round)?;
        if !matches!(round.phase, Phase::Model { .. }) {
            return Err("no model call is open".into());
        }
        round.fallback = None;
        round.model_crashes = 0;
        let bytes = message.map_or(0, Message::estimate_bytes);
        // Usage that the provider reports replaces the estimate of the context. Without a report,
        // the answer is added to the estimate.
        if usage.input() > 0 {
            self.last_usage = *usage;
            self.context.window.answered(
                usage,
                self.history.messages().estimate_bytes() + bytes as u64,
            );
        } else if message.is_some() {
            self.context.window.appended(bytes);
        }
        // The next model call continues an answer that the provider paused.
        let goes_on = stop == ProviderStop::PauseTurn && message.is_some() && !partial;
        round.phase = if goes_on {
            Phase::Ready
        } else {
            Phase::Ended { stop }
        };
        if let Some(message) = message {
            round.answers += 1;
            round.assistant_messages.push(message.clone());
            // A message with calls enters the history only together with their results, when the
            // batch is done: `history` never holds a call without its result.
            let calls = message.tool_uses();
            if calls.is_empty() {
                self.history
                    .push_assistant(message.clone())
                    .map_err(|error| error.to_string())?;
            } else {
                if message.role() != Role::Assistant {
                    return Err("calls in a message of another role".into());
                }
                let calls = calls
                    .into_iter()
                    .map(|tool_use| Call {
                        tool_use,
                        state: CallState::Waiting,
                    })
                    .collect();
                round.phase = Phase::Batch(Batch {
                    seq,
                    message: message.clone(),
                    calls,
                });
            }
        }
        if !matches!(round.phase, Phase::Batch(_)) {
            // Messages injected meanwhile get an answer before the round ends.
            if !round.pending.is_empty() && !partial {
                round.phase = Phase::Ready;
            }
            for message in std::mem::take(&mut round.pending) {
                push_user(&mut self.history, &mut self.context.window, &message)?;
            }
        }
        Ok(())
    }

    /// The call counts as not made: the round may make it again, smaller.
    fn request_refused(&mut self, bytes: u64) -> Result<(), String> {
        not_made(&mut self.round)?.refused_requests += 1;
        self.context.refused_bytes = Some(bytes);
        Ok(())
    }

    fn output_refused(&mut self, fault: &str) -> Result<(), String> {
        let round = open(&mut self.round)?;
        let Phase::Ended { .. } = round.phase else {
            return Err("no answer is there".into());
        };
        round
            .output
            .as_mut()
            .ok_or("no schema was asked for")?
            .refused += 1;
        round.phase = Phase::Ready;
        let text = format!(
            "Your answer is not the JSON that was asked for: {fault}\nAnswer again, with the JSON value and nothing else."
        );
        let message =
            Message::new(Role::User, &[reminder(&text)]).map_err(|error| error.to_string())?;
        push_user(&mut self.history, &mut self.context.window, &message)
    }

    fn tool_finished(
        &mut self,
        index: u32,
        name: &str,
        outcome: &ToolExecutionResult,
    ) -> Result<(), String> {
        let call = self.call(index)?;
        if matches!(call.state, CallState::Finished(_)) {
            return Err("the call already has its result".into());
        }
        let digest = call_digest(name, &call.tool_use.input);
        let tokens = estimate(call.tool_use.input.as_str()) + estimate(&outcome.observation);
        let ran = matches!(call.state, CallState::Started { .. });
        call.state = CallState::Finished(outcome.clone());
        let in_doubt = outcome.error_code.as_deref() == Some("IN_DOUBT");
        if ran {
            // A call that was refused or cancelled before it started leaves an earlier doubt as it
            // was.
            self.in_doubt.retain(|known| *known != digest);
        }
        if in_doubt {
            self.in_doubt.push(digest);
        }
        self.metrics
            .record_tool_call(outcome.is_error, outcome.retry_count);
        if let Some(sum) = self.tools.or_default(name.to_owned()) {
            sum.record(
                outcome.is_error,
                outcome.retry_count,
                outcome.duration_ms,
                tokens,
            );
        }
        let round = open(&mut self.round)?;
        let Phase::Batch(batch) = &round.phase else {
            return Err("no batch is open".into());
        };
        round.repeats.note(digest, batch.seq, outcome);
        if !batch.is_done() {
            return Ok(());
        }
        let results = batch.calls.iter().filter_map(|call| match &call.state {
            CallState::Finished(outcome) => Some(ToolResultBlock {
                tool_use_id: call.tool_use.id.clone(),
                content: ToolResultContent::Text(outcome.observation.clone()),
                is_error: outcome.is_error,
            }),
            CallState::Waiting
            | CallState::Asked { .. }
            | CallState::Allowed { .. }
            | CallState::AtClient { .. }
            | CallState::Started { .. } => None,
        });
        // Messages injected meanwhile join the user message with the results, behind them.
        let after: Vec<ContentBlock> = std::mem::take(&mut round.pending)
            .iter()
            .flat_map(Message::blocks)
            .collect();
        let results = Message::tool_results(results, after);
        self.context.window.appended(results.estimate_bytes()); // The calls themselves are in their model call's usage.
        self.history
            .push_exchange(batch.message.clone(), results)
            .map_err(|error| error.to_string())?;
        round.batches += 1;
        round.phase = Phase::Ready;
        Ok(())
    }
}

fn open(round: &mut Option<Box<OpenRound>>) -> Result<&mut OpenRound, String> {
    round
        .as_deref_mut()
        .ok_or_else(|| "no round is open".into())
}

/// Takes the open model call back: the round makes it again, in another form.
fn not_made(round: &mut Option<Box<OpenRound>>) -> Result<&mut OpenRound, String> {
    let round = open(round)?;
    if !matches!(round.phase, Phase::Model { .. }) {
        return Err("no model call is open".into());
    }
    round.phase = Phase::Ready;
    round.model_crashes = 0;
    round.model_calls = round.model_calls.saturating_sub(1);
    Ok(round)
}

/// Appends a user message that no model call has seen, and counts it as an estimate.
fn push_user(
    history: &mut History,
    window: &mut WindowUse,
    message: &Message,
) -> Result<(), String> {
    window.appended(message.estimate_bytes());
    history
        .push_user(message.clone())
        .map_err(|error| error.to_string())
}
