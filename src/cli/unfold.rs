//! The whole output of a tool call of which only the first lines are shown.

use callboard_actors::{
    chat::{ContentBlock, Message},
    host::ConversationHandle,
    journal::{CallState, Durable},
};

use super::{
    failure::Failure,
    terminal::{counted, sanitize},
};

/// Rows that are printed.
const ROWS_MAX: usize = 400;

/// Characters of a row.
const ROW_CHARS: usize = 2000;

/// The output of a call of this conversation, as the model sees it.
pub(super) async fn output(
    conversation: &ConversationHandle,
    call: &str,
) -> Result<Option<String>, Failure> {
    Ok(of_state(&conversation.state().await?, call))
}

fn of_state(state: &Durable, call: &str) -> Option<String> {
    let open = state.batch().map(|batch| batch.calls.as_slice());
    let ended = open
        .unwrap_or_default()
        .iter()
        .find_map(|one| match &one.state {
            CallState::Finished(outcome) if one.tool_use.id == call => Some(&outcome.observation),
            _ => None,
        });
    match ended {
        Some(text) => Some(text.clone()),
        None => of_messages(state.history.messages().iter(), call),
    }
}

/// The output of a call in messages, of which the last one counts.
pub(super) fn of_messages<'m>(
    messages: impl DoubleEndedIterator<Item = &'m Message>,
    call: &str,
) -> Option<String> {
    messages.rev().find_map(|message| {
        message.blocks().into_iter().find_map(|block| match block {
            ContentBlock::ToolResult(result) if result.tool_use_id == call => {
                Some(result.content.text().into_owned())
            }
            _ => None,
        })
    })
}

/// The output as rows to print; what is left out is named.
pub(super) fn rows(output: &str) -> Vec<String> {
    let lines: Vec<&str> = output.trim_end().lines().collect();
    let mut rows: Vec<String> = lines
        .iter()
        .take(ROWS_MAX)
        .map(|line| {
            let shown: String = line.chars().take(ROW_CHARS).collect();
            let more = if shown.len() < line.len() { " …" } else { "" };
            format!("    {}{more}", sanitize(&shown))
        })
        .collect();
    match lines.len().saturating_sub(ROWS_MAX) {
        0 if rows.is_empty() => rows.push("    (no output)".to_owned()),
        0 => {}
        more => rows.push(format!(
            "    … and {}; `callboard sessions export` has them",
            counted(more, "more line")
        )),
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_is_bounded_and_what_is_left_out_is_named() {
        assert_eq!(rows("a\n  b\u{1b}[2J\n"), ["    a", "      b\\u{1b}[2J"]);
        assert_eq!(rows(" \n"), ["    (no output)"]);

        let many = rows(&"x\n".repeat(ROWS_MAX + 3));
        assert_eq!(many.len(), ROWS_MAX + 1);
        assert!(
            many[ROWS_MAX].contains("3 more lines"),
            "{}",
            many[ROWS_MAX]
        );
        assert!(rows(&"x".repeat(5000))[0].ends_with("x …"));
    }
}
