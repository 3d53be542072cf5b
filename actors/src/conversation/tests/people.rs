//! Random events: what users, models, tools and the store do next.

use super::{
    Rng, budget_laws,
    cast::{Cast, NAMES},
    client_laws::{self, RESULT_MS},
    skill_laws,
    store::Fault,
    world::{Cut, Sent, World},
};
use std::{sync::Arc, time::Duration};

use crate::{
    chat::{
        ContentBlock, History, Message, ProviderStop, RawJson, Role, ThinkingBlock,
        ToolResultBlock, ToolResultContent, ToolUseBlock, Usage,
    },
    compactor::{
        CompactionOutcome, CompactionSettings, Fixed, Problem, RequestBytes, SummaryBill, Window,
        plan,
    },
    conversation::{
        Command, Consent,
        round::{
            Input, ModelOutcome, NewPrompt, OnBusy,
            input::{ContextOutcome, Draft},
            rules::{ApprovalMode, ContextRules, Recovery, Rules},
        },
    },
    ids::{Epoch, PromptId, RoundId, Seq, WorkId},
    journal::{CallState, ClientKey, Durable, WithdrawReason, digest},
    ports::{Completion, ProviderError},
    stream::Failure,
    tool::{ToolError, ToolErrorType},
    tool_executor::RunResult,
};

/// How often things happen in one world, in percent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weather {
    pub(super) fault: usize,
    crash: usize,
    rival: usize,
    drain: usize,
    idle_work: usize,
    people: usize,
}

impl Weather {
    pub(super) fn of(seed: u64) -> Self {
        let calm = Self {
            fault: 0,
            crash: 0,
            rival: 0,
            drain: 1,
            idle_work: 2,
            people: 30,
        };
        match seed % 8 {
            0 | 1 => calm,
            2 => Self {
                fault: 14,
                idle_work: 8,
                ..calm
            },
            3 => Self { crash: 4, ..calm },
            4 => Self {
                rival: 12,
                fault: 4,
                drain: 4,
                idle_work: 16,
                people: 40,
                ..calm
            },
            5 => Self {
                drain: 12,
                people: 40,
                ..calm
            },
            6 => Self {
                idle_work: 40,
                people: 50,
                ..calm
            },
            _ => Self {
                fault: 6,
                crash: 2,
                rival: 2,
                drain: 2,
                idle_work: 10,
                people: 35,
            },
        }
    }
}

/// Every attachment is sent, and no bound is known.
const SENT: RequestBytes = RequestBytes {
    max: None,
    images: true,
    documents: true,
};

pub(super) fn rules(rng: &mut Rng) -> Rules {
    let modes = [
        ApprovalMode::Ask,
        ApprovalMode::Ask,
        ApprovalMode::Ask,
        ApprovalMode::Deny,
        ApprovalMode::Auto,
    ];
    let unmeasured = ContextRules {
        bytes: SENT,
        ..ContextRules::default()
    };
    Rules {
        call_policy: Arc::new(Cast),
        approval: *rng.pick(&modes),
        has_approver: rng.percent(85),
        tool_iterations_max: 1 + rng.below(4) as u32,
        parallel_tools_max: 1 + rng.below(4),
        subagents_a_round_max: 64,
        subagents_max: 1024,
        client_result_ms: RESULT_MS,
        inbox_prompts_max: 1 + rng.below(3),
        output_level: crate::tool::OutputLevel::Standard,
        window_tokens: 1000,
        context: *rng.pick(&[
            unmeasured,
            unmeasured,
            unmeasured,
            unmeasured,
            ContextRules {
                window: 100_000,
                max_tokens: 100,
                fixed: 10,
                trigger: 80_000,
                bytes: SENT,
                memory_flush: true,
            },
            ContextRules {
                window: 300,
                max_tokens: 50,
                fixed: 10,
                trigger: 240,
                bytes: SENT,
                memory_flush: false,
            },
            ContextRules {
                window: 700,
                max_tokens: 50,
                fixed: 10,
                trigger: 560,
                bytes: SENT,
                memory_flush: true,
            },
        ]),
        identical_calls_max: 1 + rng.below(3) as u32,
        pricing: Arc::new(budget_laws::pricing(rng)),
    }
}

fn recovery(rng: &mut Rng) -> Recovery {
    if rng.percent(60) {
        Recovery::Resume
    } else {
        Recovery::Close
    }
}

impl World {
    /// One random event.
    pub(super) fn happen(&mut self, weather: Weather) -> Result<(), Cut> {
        self.now = match self.rng.below(200) {
            0 => self.now.plus_ms(25 * 3_600_000),
            1 => crate::time::Timestamp(self.now.0 - 3_600_000),
            n if n < 100 => self.now,
            n => self.now.plus_ms(n as u64),
        };
        if self.activations.iter().all(|activation| activation.over)
            || self.rng.percent(weather.rival) && self.activations.len() < 3
        {
            let recovery = recovery(&mut self.rng);
            return self.activate(recovery);
        }
        if self.rng.percent(weather.crash) {
            let stored = self.rng.below(self.store.queue.len() + 1);
            self.crash(stored);
            let recovery = recovery(&mut self.rng);
            return self.activate(recovery);
        }
        if self.rng.percent(weather.people) {
            return self.user_acts(weather);
        }
        if self.rng.percent(2) {
            self.take_snapshot(self.activations.len() - 1);
        }
        self.go_on(weather.fault)
    }

    /// Ends one thing that is under way; does nothing if there is none.
    pub(super) fn go_on(&mut self, fault: usize) -> Result<(), Cut> {
        let index = self.rng.below(self.activations.len());
        let activation = &self.activations[index];
        let mut events: Vec<usize> = Vec::new();
        let mut may = |event: usize, weight: usize, is: bool| {
            events.extend(std::iter::repeat_n(event, if is { weight } else { 0 }))
        };
        may(0, 4, !self.store.queue.is_empty());
        may(1, 4, !activation.notices.is_empty());
        may(
            2,
            3,
            activation.append_queue.is_paused()
                && !activation.over
                && activation.head_read.is_none()
                && activation.trial.is_none(),
        );
        may(3, 3, activation.head_read.is_some());
        may(4, 3, !activation.models.is_empty());
        may(5, 2 + activation.tools.len(), !activation.tools.is_empty());
        may(6, 2, !activation.timers.is_empty());
        may(7, 1, !activation.graces.is_empty());
        may(8, 4, !activation.measures.is_empty());
        may(9, 2, !activation.reserves.is_empty());
        if events.is_empty() {
            return Ok(());
        }
        match *self.rng.pick(&events) {
            0 => {
                let fault = if !self.rng.percent(fault) {
                    Fault::None
                } else if self.rng.percent(50) {
                    Fault::Lost
                } else {
                    Fault::StoredButFailed
                };
                self.store_works(fault)
            }
            1 => self.deliver(index),
            2 => {
                self.read_head(index);
                Ok(())
            }
            3 => self.end_pause(index),
            4 => {
                let place = self.rng.below(self.activations[index].models.len());
                let cancelled = self.activations[index]
                    .cancelled
                    .contains(&self.activations[index].models[place]);
                let outcome = self.model(cancelled);
                self.model_ends(index, place, outcome)
            }
            5 => {
                let place = self.rng.below(self.activations[index].tools.len());
                let cancelled = self.activations[index]
                    .cancelled
                    .contains(&self.activations[index].tools[place].work);
                let result = tool(&mut self.rng, cancelled);
                self.tool_ends(index, place, result)
            }
            6 => {
                let place = self.rng.below(self.activations[index].timers.len());
                let (batch, call) = self.activations[index].timers.remove(place);
                if self.rng.percent(10) {
                    self.activations[index]
                        .late
                        .push(Input::RetryDue { batch, call });
                }
                self.input(index, Input::RetryDue { batch, call })
            }
            8 => {
                let (work, state) = self.activations[index].measures.remove(0);
                let outcome = measured(&mut self.rng, &state, &self.rules);
                self.input(index, Input::Context { work, outcome })
            }
            9 => {
                let work = self.activations[index].reserves.remove(0);
                let answer = budget_laws::answer(&mut self.rng);
                if self.rng.percent(10) {
                    self.activations[index]
                        .late
                        .push(Input::Budget { work, answer });
                }
                self.input(index, Input::Budget { work, answer })
            }
            _ => {
                let round_id = self.activations[index].graces.remove(0);
                self.input(index, Input::GraceOver { round_id })
            }
        }
    }

    fn user_acts(&mut self, weather: Weather) -> Result<(), Cut> {
        // Most mail goes to the newest activation; older ones may still receive some.
        let index = if self.rng.percent(50) {
            self.activations.len() - 1
        } else {
            self.rng.below(self.activations.len())
        };
        if self.rng.percent(weather.drain) {
            return self.input(index, Input::Drain);
        }
        if self.rng.percent(weather.idle_work) {
            let waiter = self.waiter();
            match self.rng.below(5) {
                0 => return self.command(index, Command::Reset, waiter),
                3 => return self.command(index, Command::Compact { summary: false }, waiter),
                1 => return self.rewind(index, waiter),
                2 => return self.fork(index, waiter),
                _ => {}
            }
            let mut messages: Vec<Message> = (0..self.rng.below(5))
                .map(|_| broken(&mut self.rng))
                .collect();
            if self.rng.percent(90) {
                messages = History::repair(messages)
                    .0
                    .messages()
                    .iter()
                    .cloned()
                    .collect();
            }
            let rounds = self.records(&messages);
            return self.command(index, Command::Import { messages, rounds }, waiter);
        }
        let waiter = self.waiter();
        let activation = &self.activations[index];
        let bored = activation.state() == "idle" && self.rng.percent(60);
        match if bored { 0 } else { self.rng.below(130) } {
            0..34 => {
                let on_busy = *self.rng.pick(&[
                    OnBusy::Queue,
                    OnBusy::Queue,
                    OnBusy::Reject,
                    OnBusy::Interrupt,
                    OnBusy::Steer,
                ]);
                let key = self
                    .rng
                    .percent(50)
                    .then(|| format!("k{}", self.rng.below(4)));
                let body = if self.rng.percent(20) {
                    "other"
                } else {
                    "body"
                };
                let message = self.rng.percent(2).then(|| broken(&mut self.rng));
                if self.rng.percent(3) {
                    return self.send(index, key.as_deref(), on_busy, body, None);
                }
                self.prompt(index, key.as_deref(), on_busy, body, message)
            }
            34..42 => {
                if self.rng.percent(60) {
                    return self.command(index, Command::Interrupt, waiter);
                }
                let failure = self.rng.percent(40).then(|| Failure {
                    code: (*self.rng.pick(&["why", "budget"])).into(),
                    message: String::new(),
                    retry_after_ms: None,
                });
                self.input(index, Input::Cancel { failure })
            }
            42..54 => {
                let id = self.rng.percent(50).then(|| {
                    if self.rng.percent(80) { "i" } else { "k" }.to_owned()
                        + &self.rng.below(4).to_string()
                });
                let message = if self.rng.percent(3) {
                    broken(&mut self.rng)
                } else {
                    Message::user(format!("injected {}", waiter.0))
                };
                self.command(index, Command::Inject { id, message }, waiter)
            }
            54..69 => {
                let open = self.activations[index]
                    .durable
                    .batch()
                    .map_or(&[][..], |batch| &batch.calls);
                let asked = open.iter().find(|call| {
                    matches!(call.state, CallState::Asked { .. }) || self.rng.percent(20)
                });
                let tool_call_id = asked.map_or("unknown".into(), |call| call.tool_use.id.clone());
                // Of an older round, of the one that asks, or of any.
                let round = &self.activations[index].durable.round;
                let round_id = match waiter.0 % 8 {
                    0 => Some(RoundId::from_random([9; 16])),
                    1..4 => round.as_ref().map(|round| round.id),
                    _ => None,
                };
                let allow = self.rng.percent(60);
                let always = self.rng.percent(30);
                let input = |text: &str| RawJson::from_text(text).expect("it is JSON");
                let answer = match (allow, always) {
                    (true, true) => Consent::Always,
                    (true, false) => Consent::Once,
                    (false, false) => Consent::Denied(None),
                    (false, true) => match waiter.0 % 3 {
                        0 => Consent::Changed(input(r#"{"path":"changed"}"#)),
                        1 => Consent::Changed(input(r#"{"path":"bad"}"#)),
                        _ => Consent::Denied(Some("not now".into())),
                    },
                };
                self.command(
                    index,
                    Command::Approve {
                        round_id,
                        tool_call_id,
                        answer,
                    },
                    waiter,
                )
            }
            69..76 => {
                let durable = &self.activations[index].durable;
                let waiting = durable.inbox.iter().map(|prompt| prompt.id);
                let running = durable
                    .round
                    .iter()
                    .flat_map(|round| round.prompts.iter().copied());
                let mut known: Vec<PromptId> = waiting.chain(running).collect();
                known.push(PromptId::from_random(self.rng.bytes()));
                let prompt_id = *self.rng.pick(&known);
                let reason = *self
                    .rng
                    .pick(&[WithdrawReason::Caller, WithdrawReason::Deadline]);
                self.input(index, Input::Withdraw { prompt_id, reason })
            }
            90..93 | 115..118 => {
                let usage = Usage {
                    input_uncached: self.rng.below(50) as u64,
                    output: 1,
                    ..Usage::default()
                };
                let bill = SummaryBill {
                    model: std::sync::Arc::default(),
                    usage,
                    cost_micro_usd: 2,
                };
                self.input(index, Input::Summary(bill))
            }
            93..95 => self.command(index, Command::Compact { summary: false }, waiter),
            87..90 => {
                let line = if self.rng.percent(10) {
                    String::new()
                } else {
                    format!("line {}", self.rng.below(9))
                };
                self.command(index, Command::Pin { line }, waiter)
            }
            76..79 => {
                let loaded = Box::new(skill_laws::loaded(&mut self.rng));
                self.command(index, Command::ActivateSkill { loaded }, waiter)
            }
            79..84 => {
                let name = skill_laws::name(&mut self.rng);
                self.command(index, Command::DeactivateSkill { name }, waiter)
            }
            84..87 => {
                if self.rng.percent(40) {
                    self.now = self.now.plus_ms(25 * 3_600_000);
                }
                self.input(index, Input::Tick)
            }
            118.. => self.caller_answers(index),
            _ => self.late_mail(index),
        }
    }

    /// Mail that must have no effect any more.
    fn late_mail(&mut self, index: usize) -> Result<(), Cut> {
        let activation = &self.activations[index];
        if !activation.late.is_empty() && self.rng.percent(50) {
            let place = self.rng.below(activation.late.len());
            let input = self.activations[index].late.remove(place);
            return self.input(index, input);
        }
        let work = WorkId {
            epoch: Epoch(activation.volatile.epoch.0 - self.rng.below(2) as u64),
            seq: Seq(activation.durable.head.0 + 1),
            index: 0,
        };
        let input = match self.rng.below(10) {
            0 => {
                let outcome = self.model(false);
                Input::Model {
                    work,
                    outcome,
                    model: std::sync::Arc::default(),
                    failed: Vec::new(),
                }
            }
            6 | 7 => Input::Context {
                work,
                outcome: ContextOutcome::Fits,
            },
            1 | 2 => Input::Tool {
                work,
                result: tool(&mut self.rng, false),
                duration_ms: 1,
                again: None,
            },
            3 => Input::Budget {
                work,
                answer: budget_laws::answer(&mut self.rng),
            },
            4 | 5 => Input::RetryDue {
                batch: Seq(1),
                call: self.rng.below(3) as u32,
            },
            _ => Input::GraceOver {
                round_id: RoundId::from_random(self.rng.bytes()),
            },
        };
        self.input(index, input)
    }

    /// A client sends a prompt. Under a known key it mostly has the same body.
    pub(super) fn prompt(
        &mut self,
        index: usize,
        key: Option<&str>,
        on_busy: OnBusy,
        body: &str,
        message: Option<Message>,
    ) -> Result<(), Cut> {
        let number = self.number();
        let message = message.unwrap_or_else(|| Message::user(format!("prompt {number}")));
        self.send(index, key, on_busy, body, Some(message))
    }

    /// A client sends a prompt, or asks for an answer to the history as it is.
    fn send(
        &mut self,
        index: usize,
        key: Option<&str>,
        on_busy: OnBusy,
        body: &str,
        message: Option<Message>,
    ) -> Result<(), Cut> {
        let waiter = self.waiter();
        let prompt = NewPrompt {
            id: PromptId::from_random(self.rng.bytes()),
            round_id: RoundId::from_random(self.rng.bytes()),
            client_key: key.map(|key| ClientKey {
                key: key.to_owned(),
                digest: digest(format!("{body} of {key}").as_bytes()),
            }),
            message,
            output_schema: self.rng.percent(20).then(RawJson::empty_object),
            deadline_at: None,
            wait_until: None,
            parameters: None,
            client_tools: client_laws::brought(&mut self.rng),
            on_busy,
            waiter,
        };
        self.sent.push(Sent {
            id: prompt.id,
            round_id: prompt.round_id,
            key: key.map(str::to_owned),
            on_busy,
            waiter,
        });
        self.input(index, Input::Prompt(prompt))
    }

    fn model(&mut self, cancelled: bool) -> ModelOutcome {
        let number = self.number();
        let rng = &mut self.rng;
        if cancelled && rng.percent(60) {
            return ModelOutcome::Cancelled {
                partial: answer(rng, number),
            };
        }
        match rng.below(100) {
            0..5 => ModelOutcome::Failed {
                error: ProviderError::Auth {
                    message: "who".into(),
                },
                partial: answer(rng, number),
            },
            5..11 => {
                let errors = [
                    ProviderError::Connection {
                        message: "cut".into(),
                    },
                    ProviderError::RateLimited {
                        retry_after: Some(Duration::from_secs(90)),
                        message: "slow".into(),
                    },
                    ProviderError::Overloaded,
                    too_large(),
                ];
                let error = rng.pick(&errors).clone();
                let mut partial = answer(rng, number);
                if error.is_too_large() && rng.percent(80) {
                    partial.clear(); // Nothing precedes a refusal, as a rule.
                }
                ModelOutcome::Failed { error, partial }
            }
            11..13 if rng.percent(50) => ModelOutcome::FellBack {
                gateway: "spare".into(),
                model: std::sync::Arc::default(), // The model with the price.
                error: ProviderError::Connection {
                    message: "cut".into(),
                },
            },
            11..13 => ModelOutcome::Cancelled {
                partial: answer(rng, number),
            },
            _ => {
                let blocks = answer(rng, number);
                let calls = blocks
                    .iter()
                    .any(|block| matches!(block, ContentBlock::ToolUse(_)));
                let stops = [
                    ProviderStop::EndTurn,
                    ProviderStop::ToolUse,
                    ProviderStop::MaxTokens,
                    ProviderStop::StopSequence,
                    ProviderStop::PauseTurn,
                    ProviderStop::Refusal,
                    ProviderStop::ContextWindowExceeded,
                    ProviderStop::Other,
                ];
                let expected = if calls {
                    ProviderStop::ToolUse
                } else {
                    ProviderStop::EndTurn
                };
                let stop = if rng.percent(65) {
                    expected
                } else {
                    *rng.pick(&stops)
                };
                let usage = Usage {
                    input_uncached: number,
                    cache_read: 1,
                    cache_write: 2,
                    output: 3,
                };
                let usage = rng.percent(90).then_some(usage);
                ModelOutcome::Completed {
                    blocks,
                    completion: Completion {
                        stop,
                        raw_stop: Some("raw".into()),
                        usage,
                        raw_usage: None,
                    },
                    has_memory: true,
                }
            }
        }
    }
}

fn too_large() -> ProviderError {
    ProviderError::InvalidRequest {
        status: 413,
        message: "large".into(),
    }
}

/// The result of a measurement: mostly the true one.
fn measured(rng: &mut Rng, state: &Durable, rules: &Rules) -> ContextOutcome {
    if rng.percent(8) {
        if rng.percent(20) {
            return ContextOutcome::TooManyBytes { bytes: 9, limit: 3 };
        }
        return ContextOutcome::TooLarge {
            part: "system prompt",
            part_tokens: 5,
            tokens: 9,
            limit: 3,
        };
    }
    if rng.percent(15) {
        return ContextOutcome::Fits;
    }
    let window = Window {
        tokens: rules.context.window.clamp(300, 700),
        max_tokens: 50,
    };
    let verdict = plan(&Problem {
        history: &state.history,
        round_starts: &state.round_starts(),
        fixed: Fixed {
            system: 5,
            tools: 5,
            pinned: 0,
        },
        window,
        settings: &CompactionSettings::default(),
        pinned: &state.context.pinned,
        count: &|message| message.wire().len() as u64 / 3,
        summary: &|_| None,
        may_summarize: None,
        seq_label: &state.head.0.to_string(),
        force: rng.percent(50),
    });
    match verdict {
        CompactionOutcome::Fits { .. } => ContextOutcome::Fits,
        CompactionOutcome::TooLarge {
            part,
            part_tokens,
            tokens,
            limit,
        } => ContextOutcome::TooLarge {
            part,
            part_tokens,
            tokens,
            limit,
        },
        CompactionOutcome::Compacted(plan) => {
            let before = state.history.messages().clone();
            ContextOutcome::Compacted(Box::new(Draft {
                before,
                plans: vec![(plan, "hash".into())],
            }))
        }
    }
}

fn answer(rng: &mut Rng, number: u64) -> Vec<ContentBlock> {
    let mut blocks = Vec::new();
    let thought = |rng: &mut Rng| {
        let signature = rng.percent(60).then(|| "c2ln".to_owned());
        ContentBlock::Thinking(ThinkingBlock {
            thinking: format!("thought {number}"),
            signature,
        })
    };
    if rng.percent(25) {
        blocks.push(thought(rng));
    }
    match rng.below(20) {
        0 => blocks.push(ContentBlock::text(" \n")),
        1 => {}
        2 => blocks.push(ContentBlock::Other {
            kind: "redacted_thinking".into(),
            raw: RawJson::from_text(r#"{"type":"redacted_thinking","data":"x"}"#).unwrap(),
        }),
        3 => {}
        _ => blocks.push(ContentBlock::text(format!("said {number}"))),
    }
    if rng.percent(8) {
        blocks.push(thought(rng));
    }
    if rng.percent(60) {
        for place in 0..1 + rng.below(4) {
            let same = rng.percent(4);
            let id = format!("call {number} {}", if same { 0 } else { place });
            let input = match rng.below(40) {
                0 => r#"{"bad": 1}"#,
                1 => "[1]",
                2..20 => r#"{"path": "a",  "n": 1.0}"#,
                20..30 => r#"{"path":"./a"}"#,
                _ => r#"{"path":"b"}"#,
            };
            let input = RawJson::from_text(input).unwrap();
            blocks.push(ContentBlock::ToolUse(ToolUseBlock {
                id,
                name: (*rng.pick(&NAMES)).to_owned(),
                input,
            }));
        }
    }
    blocks
}

fn tool(rng: &mut Rng, cancelled: bool) -> RunResult {
    if cancelled && rng.percent(60) {
        return if rng.next().is_multiple_of(2) {
            RunResult::Cancelled
        } else {
            RunResult::NotBegun
        };
    }
    match rng.below(100) {
        0..6 => RunResult::Activation(Box::new(skill_laws::loaded(rng))),
        6..50 => RunResult::Output(format!("done {}", rng.next()).as_str().into()),
        50..62 => RunResult::Error(ToolError::new(ToolErrorType::ResourceError, "no room")),
        62..70 => RunResult::Error(ToolError::failed("wrong")),
        70..82 => RunResult::TimedOut {
            after: Duration::from_secs(1),
            partial: rng.percent(30).then(|| "half of it".to_owned()),
        },
        82..86 => RunResult::Panicked {
            message: "oh".into(),
        },
        86..98 => RunResult::Error(
            ToolError::new(ToolErrorType::ResourceError, "not begun").not_started(),
        ),
        _ => RunResult::Cancelled,
    }
}

/// A message that no user may send, or that an import brings.
fn broken(rng: &mut Rng) -> Message {
    let call = |id: &str| {
        ContentBlock::ToolUse(ToolUseBlock {
            id: id.into(),
            name: "read".into(),
            input: RawJson::empty_object(),
        })
    };
    let result = ToolResultBlock {
        tool_use_id: "x".into(),
        content: ToolResultContent::Text("r".into()),
        is_error: false,
    };
    match rng.below(4) {
        0 => Message::assistant("not a user"),
        1 => Message::new(Role::Assistant, &[call("x"), call("x"), call("y")]).unwrap(),
        2 => Message::tool_results([result.clone(), result], []),
        _ => Message::tool_results([result], [ContentBlock::text("and")]),
    }
}
