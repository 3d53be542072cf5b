//! Finds rounds by number or id, and formats them and their messages for people.

use callboard_actors::{
    chat::{
        ContentBlock, Message, Role,
        attachment::{is_document_text, label},
        is_reminder,
    },
    ids::RoundId,
    journal::{ConversationRound, summary, thousands},
    stream::RoundStatus,
};

use super::{
    failure::Failure,
    terminal::{counted, sanitize},
    view::seconds,
};

/// Maximum length of an excerpt of a prompt, in characters.
const WORDS_CHARS: usize = 60;

/// Finds a round by its number in the list (from 1) or by its id.
pub(super) fn pick(rounds: &[ConversationRound], text: &str) -> Result<RoundId, Failure> {
    let by_number = text
        .parse::<usize>()
        .ok()
        .and_then(|number| rounds.get(number.checked_sub(1)?))
        .map(|round| round.round_id);
    let by_id = || {
        text.parse::<RoundId>()
            .ok()
            .filter(|id| rounds.iter().any(|round| round.round_id == *id))
    };
    by_number.or_else(by_id).ok_or_else(|| {
        let there = match rounds.len() {
            0 => "it has no rounds".to_owned(),
            1 => "it has one round, number 1".to_owned(),
            count => format!("its rounds are numbers 1 to {count}"),
        };
        Failure::work(format!("there is no round `{text}` in this session"))
            .hint(format!("{there}; a round's id works too"))
    })
}

/// Formats a round as one line: number, id, tokens, latency, the stop reason unless it is
/// `end_turn`, and the beginning of the prompt.
pub(super) fn line(number: usize, round: &ConversationRound) -> String {
    let state = match (round.status, &round.stop_reason) {
        (RoundStatus::Pending, _) => " waits".to_owned(),
        (RoundStatus::InProgress, _) => " open".to_owned(),
        (_, Some(reason)) if reason.code() != "end_turn" => format!(" {}", reason.code()),
        (RoundStatus::Completed | RoundStatus::Error, _) => String::new(),
    };
    let mut excerpt = round
        .user_message
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    if let Some((end, _)) = excerpt.char_indices().nth(WORDS_CHARS) {
        excerpt.truncate(end);
        excerpt.push('…');
    }
    let id = round.round_id;
    let tokens = thousands(round.tokens_used);
    let took = seconds(round.latency_ms);
    sanitize(&format!(
        "{number:>3}  {id}  {tokens} tokens, {took}{state}  {excerpt}"
    ))
}

/// Formats all messages, each round's below its line. Rounds whose messages are no longer in the
/// history have only their line, at the beginning.
pub(super) fn describe(rounds: &[ConversationRound], messages: &[Message]) -> String {
    let mut text = String::new();
    let mut numbered = (1..).zip(rounds).peekable();
    let mut put = |part: &str| {
        text.push_str(part);
        text.push('\n');
    };
    while let Some((number, round)) =
        numbered.next_if(|(_, round)| round.start.is_none() && round.is_over())
    {
        put(&line(number, round));
    }
    for (index, message) in messages.iter().enumerate() {
        if let Some((number, round)) =
            numbered.next_if(|(_, round)| round.start.is_some_and(|start| start as usize == index))
        {
            put(&line(number, round));
        }
        put(&describe_message(message));
    }
    numbered.for_each(|(number, round)| put(&line(number, round)));
    text
}

fn describe_message(message: &Message) -> String {
    let who = match message.role() {
        Role::User => "you",
        Role::Assistant => "model",
        Role::System => "system",
    };
    let mut text = String::new();
    for block in message.blocks() {
        let part = match block {
            ContentBlock::Text(text) if is_reminder(&text.text) => continue, // Reminders are the host's words, not the person's.
            ContentBlock::Text(text) => format!("{who}: {}\n", text.text),
            ContentBlock::Thinking(_) => continue,
            ContentBlock::ToolUse(call) => format!("  > {}\n", summary(&call.name, &call.input)),
            ContentBlock::ToolResult(result) => {
                let content = result.content.text();
                let first = content
                    .lines()
                    .find(|line| !line.trim().is_empty())
                    .unwrap_or_default();
                let more = content.lines().count().saturating_sub(1);
                let more = if more > 0 {
                    format!(" (+{})", counted(more, "line"))
                } else {
                    String::new()
                };
                format!(
                    "  {} {first}{more}\n",
                    if result.is_error { "✗" } else { "<" }
                )
            }
            block @ (ContentBlock::Image(_)
            | ContentBlock::Document(_)
            | ContentBlock::Other { .. }) => match label(&block) {
                Some(label) if !is_document_text(&block) => format!("{who}: [{label}]\n"),
                _ => continue,
            },
        };
        text.push_str(&part);
    }
    sanitize(text.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds() -> Vec<ConversationRound> {
        let text = |id: &str| {
            format!(
                r#"{{"round_id":"{id}","conversation_id":"c","user_message":"find\n  {}","thoughts":[],"tool_calls":[],
                "tool_observations":[],"final_answer":"a","tokens_used":12,"usage":{{"input_uncached":10,"cache_read":0,"cache_write":0,
                "output":2}},"latency_ms":1500,"status":"completed","stop_reason":"interrupted"}}"#,
                "x".repeat(80)
            )
        };
        let ids = [
            "00000000-0000-4000-8000-000000000001",
            "00000000-0000-4000-8000-000000000002",
        ];
        ids.iter()
            .map(|id| serde_json::from_str(&text(id)).unwrap())
            .collect()
    }

    #[test]
    fn a_round_is_named_by_its_number_or_its_id() {
        let rounds = rounds();
        let second = rounds[1].round_id;

        assert_eq!(
            (pick(&rounds, "2"), pick(&rounds, &second.to_string())),
            (Ok(second), Ok(second))
        );
        for wrong in ["0", "3", "x", "00000000-0000-4000-8000-000000000009"] {
            assert!(pick(&rounds, wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_line_shows_cost_and_end_of_a_round() {
        let line = line(2, &rounds()[1]);

        assert!(
            line.starts_with(
                "  2  00000000-0000-4000-8000-000000000002  12 tokens, 1.5 s interrupted  find xxx"
            ),
            "{line}"
        );
        assert!(line.ends_with('…') && !line.contains('\n'));
    }
}
