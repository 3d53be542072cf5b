//! The state after an entry: what [`Durable::apply`] must make of each, by the requirements alone.

use crate::{
    chat::{ContentBlock, ProviderStop},
    journal::{CallState, Durable, Entry, EntryBody, OpenRound, Phase, call_digest},
};

/// What one entry does to the parts of the state that later decisions use.
pub(super) fn after_entry(
    state: &Durable,
    doubts: &[u64],
    before: Option<&OpenRound>,
    entry: &Entry,
) {
    match &entry.body {
        EntryBody::ToolFinished {
            call,
            outcome,
            name,
            ..
        } => {
            let Some(OpenRound {
                phase: Phase::Batch(batch),
                ..
            }) = before
            else {
                panic!("no batch")
            };
            let call = &batch.calls[*call as usize];
            let digest = call_digest(name, &call.tool_use.input);
            let ran = matches!(call.state, CallState::Started { .. });
            let expected = match outcome.error_code.as_deref() {
                Some("IN_DOUBT") => true,
                _ => !ran && doubts.contains(&digest),
            };
            assert_eq!(
                state.in_doubt.contains(&digest),
                expected,
                "a doubt lasts until the call ran again"
            );
            assert!(
                doubts
                    .iter()
                    .all(|doubt| *doubt == digest || state.in_doubt.contains(doubt))
            );
        }
        EntryBody::ToolStarted {
            call,
            effect,
            attempt,
            input,
            ..
        } => {
            let Some(OpenRound {
                phase: Phase::Batch(batch),
                ..
            }) = before
            else {
                panic!("no batch")
            };
            let at = match &batch.calls[*call as usize].state {
                CallState::Started { at, .. } => *at,
                _ => entry.at,
            };
            let expected = CallState::Started {
                effect: *effect,
                at,
                attempt: *attempt,
                input: input.clone(),
            };
            let started = state
                .batch()
                .map(|batch| batch.calls[*call as usize].state.clone());
            assert_eq!(
                started,
                Some(expected),
                "a start remembers the first one's time"
            );
        }
        EntryBody::Assistant {
            message,
            partial,
            stop,
            usage,
            ..
        } => {
            let round = before.expect("a round was open");
            let now = state.round.as_ref().expect("the round is open").usage;
            assert_eq!(
                (now.input(), now.output),
                (
                    round.usage.input() + usage.input(),
                    round.usage.output + usage.output
                )
            );
            let calls = message
                .as_ref()
                .map_or(0, |message| message.tool_use_ids().len());
            let paused = *stop == ProviderStop::PauseTurn && message.is_some();
            let goes_on = !partial && (paused || !round.pending.is_empty());
            let phase = &state.round.as_ref().expect("the round is open").phase;
            match phase {
                Phase::Batch(batch) => assert!(calls > 0 && batch.calls.len() == calls),
                Phase::Ready => assert!(calls == 0 && goes_on),
                Phase::Ended { stop: because } => assert!(
                    calls == 0 && !goes_on && because == stop,
                    "an injected message is answered"
                ),
                Phase::Model { .. } => panic!("the call is over"),
            }
            assert_eq!(matches!(phase, Phase::Batch(_)), calls > 0);
        }
        EntryBody::Reset {} => {
            let empty = Durable {
                epoch: state.epoch,
                head: state.head,
                reset_at: state.head,
                ..Durable::default()
            };
            assert_eq!(state, &empty, "a reset forgets everything");
        }
        EntryBody::Injected {
            id,
            client_key: Some(key),
            ..
        } => {
            assert!(id.as_ref().is_none_or(|id| state.knows_injected(id)));
            let known = state
                .known_key(&key.key)
                .map(|(digest, round_id)| (digest, Some(round_id)));
            assert_eq!(known, Some((key.digest, before.map(|round| round.id))));
        }
        EntryBody::Injected { id: Some(id), .. } => {
            assert!(state.knows_injected(id), "the same message is taken once");
        }
        EntryBody::PromptAccepted {
            client_key: Some(key),
            round_id,
            ..
        } => {
            let known = state
                .keys
                .iter()
                .rev()
                .find(|known| known.key == key.key && known.round_id.is_some());
            assert_eq!(
                known.map(|known| (known.digest, known.round_id)),
                Some((key.digest, Some(*round_id)))
            );
        }
        EntryBody::Forked { in_doubt, .. } => assert_eq!(
            &state.in_doubt, in_doubt,
            "what is in doubt in the world is in doubt in a copy"
        ),
        _ => assert!(doubts == state.in_doubt.as_slice()),
    }
}

/// The part of an answer that may enter the history: no empty text, no repeated call id, faulty
/// calls in a valid form, no thinking at the end.
pub(super) fn expected_blocks(
    said: &[ContentBlock],
    calls: bool,
    complete: bool,
) -> Option<Vec<ContentBlock>> {
    let mut kept: Vec<ContentBlock> = Vec::new();
    for block in said {
        let stays = match block {
            ContentBlock::Text(text) => !text.text.trim().is_empty(),
            ContentBlock::Thinking(thinking) => complete || thinking.signature.is_some(),
            ContentBlock::ToolUse(call) => {
                let again = kept.iter().any(
                    |other| matches!(other, ContentBlock::ToolUse(other) if other.id == call.id),
                );
                if calls && !again {
                    let call = crate::chat::storable(call.clone());
                    assert!(call.input.is_object() && !call.name.is_empty());
                    kept.push(ContentBlock::ToolUse(call));
                }
                false
            }
            ContentBlock::ToolResult(_) => false,
            ContentBlock::Image(_) | ContentBlock::Document(_) | ContentBlock::Other { .. } => {
                complete
            }
        };
        if stays {
            kept.push(block.clone());
        }
    }
    let is_thinking =
        |block: &ContentBlock| matches!(block.kind(), "thinking" | "redacted_thinking");
    while kept.last().is_some_and(is_thinking) {
        kept.pop();
    }
    (!kept.is_empty()).then_some(kept)
}
