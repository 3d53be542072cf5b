//! Summarizes the record of a round in a few lines of text.
//!
//! Pure.

use std::fmt::Write as _;

use super::ConversationRound;

/// Longest excerpt, in characters.
const EXCERPT_CHARS: usize = 100;

/// Returns the lines that replace the messages of a round.
///
/// Every observation is included, shortened. `...` appears only where text was cut.
pub(crate) fn round_summary(round: &ConversationRound) -> String {
    let tools: Vec<&str> = round
        .tool_calls
        .iter()
        .map(|call| call.tool_name.as_str())
        .collect();
    let mut text = format!(
        "Round {}:\n  Request: {}\n  Tools: [{}]",
        round.round_id,
        excerpt(&round.user_message),
        tools.join(", ")
    );
    for observation in &round.tool_observations {
        let _ = write!(text, "\n  Observation: {}", excerpt(observation));
    }
    if let Some(answer) = round
        .final_answer
        .as_deref()
        .filter(|answer| !answer.is_empty())
    {
        let _ = write!(text, "\n  Answer: {}", excerpt(answer));
    }
    text
}

fn excerpt(text: &str) -> String {
    match text.char_indices().nth(EXCERPT_CHARS) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_its_request_its_tools_what_they_saw_and_its_answer() {
        let mut round = crate::journal::rounds::tests::full();
        round.tool_calls.push(round.tool_calls[0].clone());
        let id = round.round_id;

        assert_eq!(
            round_summary(&round),
            format!("Round {id}:\n  Request: q\n  Tools: [n, n]\n  Observation: o\n  Answer: a")
        );
        let bare = ConversationRound {
            final_answer: None,
            tool_calls: vec![],
            tool_observations: vec![],
            ..round
        };
        assert_eq!(
            round_summary(&bare),
            format!("Round {id}:\n  Request: q\n  Tools: []")
        );
    }

    #[test]
    fn an_excerpt_is_cut_by_characters_and_says_so() {
        let fits = "汉".repeat(100);
        let long = "汉".repeat(101);

        assert_eq!(excerpt(&fits), fits);
        assert_eq!(excerpt(&long), format!("{fits}..."));
    }
}
