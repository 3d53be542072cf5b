//! What a person reads of a journal: its entries as prompts, answers with their tool calls, and
//! notes. A page of entries is enough; what it refers to on an earlier page is shown without that.
//!
//! Pure.

use callboard_actors::{
    chat::{ContentBlock, Message, ProviderStop, RawJson, Usage},
    ids::{RoundId, Seq},
    journal::{ApprovalVerdict, CompactionCause, Entry, EntryBody, ToolExecutionResult},
    stream::{Failure, StopReason},
    time::Timestamp,
    tool::EffectClass,
};

/// One thing to read.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Item {
    /// Position of its first entry.
    pub(super) seq: Seq,
    pub(super) at: Timestamp,
    /// Whether a rewind took it back.
    pub(super) is_taken_back: bool,
    pub(super) kind: Kind,
}

impl Item {
    /// Whether an item can still change.
    pub(super) fn is_unsettled(&self) -> bool {
        match &self.kind {
            Kind::Answer(answer) => answer.calls.iter().any(|call| call.finished.is_none()),
            Kind::Prompt {
                began,
                is_withdrawn,
                ..
            } => began.is_none() && !is_withdrawn,
            _ => false,
        }
    }
}

/// What an item is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    Prompt {
        round: RoundId,
        message: Option<Message>,
        /// When its round began.
        began: Option<Timestamp>,
        is_withdrawn: bool,
    },
    Injected {
        message: Message,
    },
    Answer(Box<Answer>),
    End {
        stop: StopReason,
        latency_ms: u64,
        error: Option<Failure>,
        round: Option<RoundId>,
    },
    Imported {
        messages: Vec<Message>,
    },
    Note {
        class: &'static str,
        text: String,
    },
}

/// A model call and the tool calls of its answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Answer {
    pub(super) step: u32,
    /// When the model was asked.
    pub(super) asked: Option<Timestamp>,
    /// `None` on a page that begins after the answer, and for an answer of which nothing is kept.
    pub(super) message: Option<Message>,
    pub(super) stop: Option<ProviderStop>,
    pub(super) usage: Usage,
    pub(super) cost_micro_usd: Option<u64>,
    pub(super) is_partial: bool,
    pub(super) calls: Vec<Call>,
}

/// A tool call.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Call {
    /// Number within its batch.
    pub(super) index: u32,
    pub(super) id: String,
    pub(super) name: String,
    /// The arguments; `None` on a page that begins after the answer.
    pub(super) input: Option<RawJson>,
    pub(super) effect: Option<EffectClass>,
    pub(super) started: Option<Timestamp>,
    pub(super) finished: Option<(Timestamp, ToolExecutionResult)>,
    pub(super) approval: Option<Approval>,
    /// Entry of the result.
    pub(super) result_seq: Option<Seq>,
    /// Whether it stands in an imported history, which has no times.
    pub(super) is_imported: bool,
}

/// An approval that a tool call needs.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Approval {
    pub(super) asked: Timestamp,
    pub(super) resolved_input: RawJson,
    pub(super) reason: String,
    pub(super) expires_at: Timestamp,
    pub(super) pattern: Option<String>,
    pub(super) answered: Option<(Timestamp, ApprovalVerdict, bool)>,
}

/// The items of a page of entries, oldest first.
pub(super) fn items(entries: &[Entry]) -> Vec<Item> {
    let mut reader = Reader::default();
    for entry in entries {
        reader.take(entry);
    }
    reader.items
}

#[derive(Default)]
struct Reader {
    items: Vec<Item>,
    asked: Option<Timestamp>,
    round: Option<RoundId>,
}

impl Reader {
    fn push(&mut self, entry: &Entry, kind: Kind) {
        self.items.push(Item {
            seq: entry.seq,
            at: entry.at,
            is_taken_back: false,
            kind,
        });
    }

    fn note(&mut self, entry: &Entry, class: &'static str, text: impl Into<String>) {
        let text = text.into();
        self.push(entry, Kind::Note { class, text });
    }

    /// The call of the open batch with this number. An answer that stands on an earlier page gets
    /// an empty item here.
    fn call(&mut self, entry: &Entry, index: u32, id: &str, name: &str) -> Option<&mut Call> {
        let is_open = |item: &Item| matches!(item.kind, Kind::Answer(_));
        if !self.items.iter().any(is_open) {
            self.push(entry, Kind::Answer(Box::default()));
        }
        let answers = self.items.iter_mut().rev();
        let answer = answers
            .filter_map(|item| match &mut item.kind {
                Kind::Answer(answer) => Some(answer),
                _ => None,
            })
            .next()?;
        if !answer.calls.iter().any(|call| call.index == index) {
            answer.calls.push(Call {
                index,
                id: id.to_owned(),
                name: name.to_owned(),
                ..Call::default()
            });
        }
        answer.calls.iter_mut().find(|call| call.index == index)
    }

    fn take(&mut self, entry: &Entry) {
        match &entry.body {
            EntryBody::LifeStarted { .. } | EntryBody::BudgetSettled { .. } => {}
            EntryBody::PromptAccepted {
                round_id, message, ..
            } => {
                let kind = Kind::Prompt {
                    round: *round_id,
                    message: message.clone(),
                    began: None,
                    is_withdrawn: false,
                };
                self.push(entry, kind);
            }
            EntryBody::PromptWithdrawn { .. } => {
                // The newest prompt that waits is the one that can be withdrawn.
                let prompt = self
                    .items
                    .iter_mut()
                    .rev()
                    .find_map(|item| match &mut item.kind {
                        Kind::Prompt { is_withdrawn, .. } => Some(is_withdrawn),
                        _ => None,
                    });
                match prompt {
                    Some(is_withdrawn) => *is_withdrawn = true,
                    None => self.note(entry, "quiet", "A prompt was withdrawn"),
                }
            }
            EntryBody::RoundStarted { round_id, .. } => {
                self.round = Some(*round_id);
                let prompts = self
                    .items
                    .iter_mut()
                    .filter_map(|item| match &mut item.kind {
                        Kind::Prompt { round, began, .. } if round == round_id => Some(began),
                        _ => None,
                    });
                prompts.for_each(|began| *began = Some(entry.at));
            }
            EntryBody::ModelCallStarted { .. } => self.asked = Some(entry.at),
            EntryBody::Assistant {
                step,
                message,
                stop,
                usage,
                cost_micro_usd,
                partial,
                ..
            } => {
                let answer = Answer {
                    step: *step,
                    asked: self.asked.take(),
                    message: message.clone(),
                    stop: Some(*stop),
                    usage: *usage,
                    cost_micro_usd: *cost_micro_usd,
                    is_partial: *partial,
                    calls: message.as_ref().map(calls).unwrap_or_default(),
                };
                self.push(entry, Kind::Answer(Box::new(answer)));
            }
            EntryBody::ToolStarted {
                call,
                tool_call_id,
                name,
                effect,
                input,
                ..
            } => {
                if let Some(call) = self.call(entry, *call, tool_call_id, name) {
                    call.started = call.started.or(Some(entry.at));
                    call.effect = Some(*effect);
                    call.input = input.clone().or(call.input.take());
                }
            }
            EntryBody::ToolFinished {
                call,
                tool_call_id,
                name,
                outcome,
            } => {
                if let Some(call) = self.call(entry, *call, tool_call_id, name) {
                    call.finished = Some((entry.at, outcome.clone()));
                    call.result_seq = Some(entry.seq);
                }
            }
            EntryBody::ApprovalAsked {
                call,
                tool_call_id,
                name,
                resolved_input,
                reason,
                expires_at,
                pattern,
            } => {
                let approval = Approval {
                    asked: entry.at,
                    resolved_input: resolved_input.clone(),
                    reason: reason.clone(),
                    expires_at: *expires_at,
                    pattern: pattern.clone(),
                    answered: None,
                };
                if let Some(call) = self.call(entry, *call, tool_call_id, name) {
                    call.approval = Some(approval);
                }
            }
            EntryBody::ApprovalAnswered {
                call,
                verdict,
                always,
                ..
            } => {
                if let Some(approval) = self
                    .call(entry, *call, "", "")
                    .and_then(|call| call.approval.as_mut())
                {
                    approval.answered = Some((entry.at, *verdict, *always));
                }
            }
            EntryBody::Injected { message, .. } => {
                let message = message.clone();
                self.push(entry, Kind::Injected { message });
            }
            EntryBody::RoundFinished {
                stop_reason,
                latency_ms,
                error,
            } => {
                let kind = Kind::End {
                    stop: *stop_reason,
                    latency_ms: *latency_ms,
                    error: error.clone(),
                    round: self.round.take(),
                };
                self.push(entry, kind);
            }
            EntryBody::Imported { messages, .. } => {
                let messages = messages.clone();
                self.push(entry, Kind::Imported { messages });
            }
            EntryBody::Rewound { round_id, .. } => {
                self.take_back(*round_id);
                self.note(
                    entry,
                    "change",
                    "Taken back: the round above and all after it",
                );
            }
            body => {
                if let Some((class, text)) = note(body) {
                    self.note(entry, class, text);
                }
            }
        }
    }

    fn take_back(&mut self, to: RoundId) {
        let is_prompt =
            |item: &Item| matches!(&item.kind, Kind::Prompt { round, .. } if *round == to);
        let start = self.items.iter().position(is_prompt).unwrap_or_default();
        let gone = self.items.iter_mut().skip(start);
        gone.for_each(|item| item.is_taken_back = true);
    }
}

/// The tool calls of an answer.
pub(super) fn calls(message: &Message) -> Vec<Call> {
    let blocks = message.blocks().into_iter();
    let uses = blocks.filter_map(|block| match block {
        ContentBlock::ToolUse(call) => Some(call),
        _ => None,
    });
    uses.zip(0..)
        .map(|(call, index)| Call {
            index,
            id: call.id,
            name: call.name,
            input: Some(call.input),
            ..Call::default()
        })
        .collect()
}

/// Why an entry makes the next request begin differently from the last, so that the provider's
/// cache does not apply.
pub(super) fn breaks_prefix(body: &EntryBody) -> Option<&'static str> {
    Some(match body {
        EntryBody::Compacted { .. } => "the history was compacted",
        EntryBody::SkillsOffered { message: None, .. } => "the list of skills began",
        EntryBody::SkillActivated { .. } | EntryBody::SkillDeactivated { .. } => "a skill changed",
        EntryBody::Imported { .. } => "a history was imported",
        EntryBody::Rewound { .. } => "rounds were taken back",
        EntryBody::Reset {} => "the conversation was emptied",
        EntryBody::PromptWithdrawn { .. } => "a prompt was withdrawn",
        EntryBody::FellBack { .. } => "another model was asked",
        _ => return None,
    })
}

/// The line about an entry that has no item of its own.
fn note(body: &EntryBody) -> Option<(&'static str, String)> {
    Some(match body {
        EntryBody::OutputRefused { fault } => (
            "warn",
            format!("The answer does not match the requested schema: {fault}"),
        ),
        EntryBody::RequestRefused { bytes } => (
            "warn",
            format!("The provider refused the request as too large ({bytes} bytes)"),
        ),
        EntryBody::FellBack {
            gateway,
            model,
            reason,
            ..
        } => (
            "warn",
            format!("Fell back to {model} at {gateway}, because of {reason}"),
        ),
        EntryBody::SummaryBilled { model, .. } => {
            ("quiet", format!("{model} summarised dropped messages"))
        }
        EntryBody::SkillsOffered { .. } => ("quiet", "The list of skills was offered".to_owned()),
        EntryBody::SkillActivated { name, .. } => ("change", format!("Skill {name} activated")),
        EntryBody::SkillDeactivated { name, .. } => ("change", format!("Skill {name} deactivated")),
        EntryBody::Compacted {
            cause,
            mode,
            before_tokens,
            after_tokens,
            ..
        } => {
            let why = match cause {
                CompactionCause::Full => "the window was nearly full",
                CompactionCause::Bytes => "the request was too large",
                CompactionCause::Asked => "on request",
            };
            (
                "change",
                format!("Compacted ({mode}; {why}): {before_tokens} to {after_tokens} tokens"),
            )
        }
        EntryBody::Pinned { line } => ("change", format!("Pinned: {line}")),
        EntryBody::Reset {} => ("change", "Emptied".to_owned()),
        EntryBody::Forked { from, upto, .. } => {
            ("change", format!("A copy of {from} up to its entry {upto}"))
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use callboard_actors::ids::Epoch;

    fn entries(bodies: Vec<EntryBody>) -> Vec<Entry> {
        let numbered = bodies.into_iter().zip(1..);
        numbered
            .map(|(body, n)| Entry {
                seq: Seq(n),
                epoch: Epoch(1),
                at: Timestamp(n * 1000),
                body,
            })
            .collect()
    }

    fn round(n: u8) -> RoundId {
        RoundId::from_random([n; 16])
    }

    fn prompt(n: u8, text: &str) -> EntryBody {
        EntryBody::PromptAccepted {
            prompt_id: callboard_actors::ids::PromptId::from_random([n; 16]),
            round_id: round(n),
            client_key: None,
            message: Some(Message::user(text)),
            client_tools: None,
            output_schema: None,
            deadline_at: None,
            wait_until: None,
            parameters: None,
        }
    }

    fn answer() -> EntryBody {
        let wire = r#"{"role":"assistant","content":[{"type":"text","text":"I look."},{"type":"tool_use","id":"t1","name":"bash","input":{"command":"ls"}}]}"#;
        EntryBody::Assistant {
            step: 1,
            message: Some(Message::from_wire(wire.as_bytes()).unwrap()),
            stop: ProviderStop::ToolUse,
            raw_stop: None,
            usage: Usage::default(),
            failed_usage: Usage::default(),
            cost_micro_usd: None,
            partial: false,
        }
    }

    fn finished() -> EntryBody {
        EntryBody::ToolFinished {
            call: 0,
            tool_call_id: "t1".into(),
            name: "bash".into(),
            outcome: ToolExecutionResult {
                observation: "a".into(),
                ..ToolExecutionResult::default()
            },
        }
    }

    #[test]
    fn a_tool_call_is_read_with_its_approval_and_its_result() {
        let asked = EntryBody::ApprovalAsked {
            call: 0,
            tool_call_id: "t1".into(),
            name: "bash".into(),
            resolved_input: RawJson::empty_object(),
            reason: "changes".into(),
            expires_at: Timestamp(9),
            pattern: None,
        };
        let allowed = EntryBody::ApprovalAnswered {
            call: 0,
            verdict: ApprovalVerdict::Allowed,
            always: false,
            changed: None,
            pattern: None,
        };

        let all = items(&entries(vec![
            prompt(1, "go"),
            answer(),
            asked,
            allowed,
            finished(),
        ]));

        let Kind::Answer(answer) = &all[1].kind else {
            panic!("{all:?}");
        };
        let call = &answer.calls[0];
        assert_eq!((all.len(), call.name.as_str()), (2, "bash"));
        let verdict = call.approval.as_ref().unwrap().answered.unwrap().1;
        assert_eq!(verdict, ApprovalVerdict::Allowed);
        assert_eq!(call.finished.as_ref().unwrap().1.observation, "a");
    }

    #[test]
    fn a_result_whose_call_stands_on_an_earlier_page_is_shown() {
        let all = items(&entries(vec![finished()]));

        let Kind::Answer(answer) = &all[0].kind else {
            panic!("{all:?}");
        };
        assert_eq!((answer.message.clone(), answer.calls.len()), (None, 1));
    }

    #[test]
    fn what_a_rewind_took_back_is_marked() {
        let rewound = EntryBody::Rewound {
            round_id: round(2),
            keep: 1,
        };
        let all = items(&entries(vec![
            prompt(1, "a"),
            prompt(2, "b"),
            answer(),
            rewound,
        ]));

        let marked: Vec<bool> = all.iter().map(|item| item.is_taken_back).collect();
        assert_eq!(marked, [false, true, true, false]);
    }
}
