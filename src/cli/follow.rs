//! Follows a round to its end: prints its events, asks for approvals, and cancels it on Ctrl-C or
//! Escape.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use callboard_actors::{
    host::{ConversationHandle, OutcomeError, Reply},
    stream::{EventKind, RoundEnd, StopReason, StreamEvent},
};

use super::{
    ask::{Asker, Question},
    failure::{Done, Failure},
    held::Held,
    signals::Signals,
    terminal::{Paint, Terminals, err_line, ring_at_question, sanitize},
    typed::Keys,
    typing::{Typed, Typing},
    unfold,
    view::View,
};

/// Time between two drawings of what changes while nothing arrives.
const TICK: Duration = Duration::from_millis(50);

/// The code of the answer to arguments that a tool cannot get.
const INVALID_ARGUMENTS: &str = "invalid_arguments";

/// Approval questions from an earlier process. A resumed stream repeats their events.
#[derive(Debug, Default)]
pub(super) struct OldQuestions {
    /// Questions that a person still has to answer.
    pub(super) open: Vec<Question>,
    /// Ids of the calls of all these questions, answered or not.
    pub(super) seen: HashSet<String>,
}

/// Prints `reply` until its end. A first signal cancels the round; a second one ends the program at
/// once. This is safe: the journal is consistent at any time, and tool processes die with this one.
pub(super) async fn follow(
    mut reply: Reply,
    conversation: &ConversationHandle,
    view: &mut View,
    signals: &mut Signals,
    old: OldQuestions,
    typing: &mut Typing,
) -> Result<Done, Failure> {
    let mut asker = Asker::new(Paint::stderr()).of_model(view.own_folder());
    let mut held = Held::default();
    let begun = Instant::now();
    let has_person = Terminals::detect().has_person();
    let mut interrupted = false;
    let is_listening = typing.is_listening();
    let mut unseen = (!is_listening && has_person && view.has_live())
        .then(Keys::unseen)
        .flatten();
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    view.begin();
    for question in old.open {
        typing.pause();
        view.asks();
        asker.ask(question);
    }
    loop {
        tokio::select! {
            biased;
            () = signals.next() => {
                if interrupted {
                    view.still();
                    typing.pause();
                    drop(unseen.take());
                    std::process::exit(130);
                }
                interrupted = true;
                asker.forget();
                release(&mut held, view);
                typing.forget();
                interrupting(view, typing);
                reply.interrupt();
            }
            (question, answer) = asker.answered() => {
                // The host refuses an answer that arrives too late; the round continues without it.
                let changed = answer.changed_call(&question.name);
                let sent = conversation.approve(&question.tool_call_id, answer.consent()).await;
                match (sent, changed) {
                    (Err(error), _) if error.code() == INVALID_ARGUMENTS => {
                        err_line(&format!("  {}", sanitize(&error.to_string())));
                        asker.ask(question);
                    }
                    (Ok(()), Some(what)) => view.changed(&question.tool_call_id, &what),
                    _ => {}
                }
                if !asker.is_open() {
                    release(&mut held, view);
                    if is_listening {
                        typing.listen();
                    }
                    view.begin(); // The call runs now: show that something happens.
                }
            }
            typed = typing.typed() => match typed {
                // What waits is sent next: the person interrupts to say it.
                Typed::Escape if !interrupted => {
                    interrupted = true;
                    interrupting(view, typing);
                    reply.interrupt();
                }
                Typed::Unfold => {
                    if let Some((call, what)) = view.unfolds()
                        && let Ok(Some(output)) = unfold::output(conversation, &call).await
                    {
                        view.unfold(&what, &output);
                    }
                }
                Typed::Text | Typed::Escape => view.set_below(typing.rows()),
            },
            _ = ticks.tick(), if !asker.is_open() => view.tick(),
            event = reply.next() => {
                let Some(event) = event else { break };
                if let EventKind::ToolResult { tool_call_id, .. } = &event.kind {
                    asker.settled(tool_call_id);
                }
                match asker.is_open() && view.is_at_terminal() {
                    true if !event.kind.is_durable() => continue, // The whole text follows.
                    true => held.push(Arc::clone(&event), event.to_json().len()),
                    false => {
                        release(&mut held, view);
                        view.event(&event);
                    }
                }
                if let EventKind::ApprovalRequired { tool_call_id, name, input, reason, .. } = &event.kind
                    && has_person
                    && !interrupted
                    && !old.seen.contains(tool_call_id)
                {
                    typing.pause();
                    view.set_below(Vec::new());
                    view.asks();
                    ring_at_question(begun);
                    asker.ask(Question {
                        tool_call_id: tool_call_id.clone(),
                        name: name.clone(),
                        input: input.as_str().to_owned(),
                        reason: reason.clone(),
                    });
                }
            }
        }
    }
    drop(unseen);
    drop(asker);
    release(&mut held, view);
    let outcome = reply.outcome().await;
    view.set_below(Vec::new());
    view.end(match &outcome {
        Ok(end) => Some(end),
        Err(OutcomeError::Failed { end }) => Some(end),
        Err(_) => None,
    });
    verdict(outcome, interrupted)
}

/// Says that the round is being interrupted.
pub(super) fn interrupting(view: &mut View, typing: &Typing) {
    view.still();
    view.set_below(typing.rows());
    view.note("interrupting; press Ctrl-C to leave at once");
}

/// Prints what was held back while a question was open.
fn release(held: &mut Held<Arc<StreamEvent>>, view: &mut View) {
    let (events, missed) = held.take();
    for event in &events {
        view.event(event);
    }
    view.missed(missed);
}

/// What a person is shown below an answer that is not whole.
const CUT: &str = "note: the answer was cut: it reached the longest answer allowed; --max-tokens, or `max_tokens` of the provider, allows more";

/// Maps the end of a round to an exit code.
fn verdict(outcome: Result<RoundEnd, OutcomeError>, interrupted: bool) -> Result<Done, Failure> {
    let end = match outcome {
        Ok(end) => end,
        Err(_) if interrupted => return Ok(Done::Interrupted),
        Err(error) => return Err(error.into()),
    };
    if end.stop_reason == StopReason::MaxTokens {
        err_line(CUT);
    }
    if end.stop_reason.is_done() {
        return Ok(Done::Well);
    }
    if interrupted {
        err_line("interrupted; the session is valid and can be continued");
        return Ok(Done::Interrupted);
    }
    if let Some(failure) = &end.error {
        return Err(Failure::round(failure));
    }
    let why = Failure::work(match end.stop_reason {
        StopReason::Refusal => "the model declined to answer",
        StopReason::IterationLimit => "the round was cut: it used all its batches of tool calls",
        StopReason::LoopGuard => "the round was cut: the model repeated itself",
        StopReason::Budget => "the round was cut: its budget is used up",
        StopReason::ContextTooLarge => "the conversation is too large for the model's window",
        StopReason::Interrupted => "the round was interrupted",
        _ => "the round failed",
    });
    Err(match end.stop_reason {
        StopReason::IterationLimit => {
            why.hint("continue with --session, or allow more with --max-tool-iterations")
        }
        StopReason::ContextTooLarge => {
            why.hint("start a new session, or use a model with a larger window")
        }
        _ => why,
    })
}
