//! What rules can extract from messages without a model: the rule summary, a round in a few lines,
//! and the text that replaces a missing summary. `...` appears only where text was cut.
//!
//! Pure.

use std::collections::HashMap;

use crate::chat::{ContentBlock, Role, is_reminder};

use super::importance::CLEARED;

/// Most decisions and tool outcomes in a rule summary.
pub(super) const DECISIONS_MAX: usize = 5;
/// As [`DECISIONS_MAX`].
pub(super) const OUTCOMES_MAX: usize = 10;

/// Most tools and observations shown of one round, which may have hundreds.
pub(super) const ROUND_TOOLS_MAX: usize = 20;
/// As [`ROUND_TOOLS_MAX`].
pub(super) const ROUND_OBSERVED_MAX: usize = 3;

/// Words that mark a decision.
const DECISION_WORDS: [&str; 5] = ["decided", "selected", "chose", "确定", "选择"];

/// The first `chars_max` characters, followed by `...` if text was cut.
pub(super) fn clip(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// A text on one line, with runs of white space replaced by one space. Reads only as much of the
/// text as needed.
pub(super) fn one_line(text: &str, chars_max: usize) -> String {
    let mut line = String::new();
    let mut chars = 0;
    let mut gap = false;
    for char in text.chars() {
        if char.is_whitespace() || char.is_control() {
            gap = chars > 0;
            continue;
        }
        for char in gap.then_some(' ').into_iter().chain([char]) {
            if chars == chars_max {
                line.push_str("...");
                return line;
            }
            line.push(char);
            chars += 1;
        }
        gap = false;
    }
    line
}

/// The text that a user or the model wrote: all text blocks except reminders, joined by line feeds.
pub(super) fn text_of(blocks: &[ContentBlock]) -> String {
    let texts: Vec<&str> = blocks
        .iter()
        .filter_map(ContentBlock::as_text)
        .filter(|text| !is_reminder(text))
        .collect();
    texts.join("\n")
}

/// The last five texts that contain a decision. Pass only texts of users and of the model, not of
/// tools.
pub(super) fn decisions<'a>(texts: impl DoubleEndedIterator<Item = &'a str>) -> Vec<String> {
    let mut found: Vec<String> = texts
        .rev()
        .filter(|text| {
            let lower = text.to_lowercase();
            DECISION_WORDS.iter().any(|word| lower.contains(word))
        })
        .take(DECISIONS_MAX)
        .map(|text| one_line(text, 100))
        .collect();
    found.reverse();
    found
}

/// The outcomes of an exchange, as `name: ✓` or `name: ✗`. Results carry no tool name, so it is
/// looked up by call id.
pub(super) fn outcomes(calls: &[ContentBlock], results: &[ContentBlock]) -> Vec<String> {
    let mut names = HashMap::new();
    for block in calls {
        if let ContentBlock::ToolUse(call) = block {
            names.insert(&call.id, &call.name);
        }
    }
    let outcome = |block: &ContentBlock| {
        let ContentBlock::ToolResult(result) = block else {
            return None;
        };
        let name = names
            .get(&result.tool_use_id)
            .map_or("unknown", |name| name.as_str());
        Some(format!(
            "{}: {}",
            one_line(name, 64),
            if result.is_error { "✗" } else { "✓" }
        ))
    };
    results.iter().filter_map(outcome).collect()
}

/// The rule summary as Markdown.
pub(super) fn rule_summary(decisions: &[String], outcomes: &[String]) -> String {
    let mut text = String::from("## Previous Context Summary\n### Key Decisions\n");
    decisions
        .iter()
        .for_each(|line| push_line(&mut text, "- ", line));
    text.push_str("\n### Tool Outcomes\n");
    outcomes
        .iter()
        .for_each(|line| push_line(&mut text, "- ", line));
    text
}

pub(super) fn push_line(text: &mut String, prefix: &str, line: &str) {
    text.push_str(prefix);
    text.push_str(line);
    text.push('\n');
}

/// One round in a few lines: request, tools, answer, and the beginnings of observations.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct RoundLines {
    /// The number of the round, counted from the conversation's first, or its id.
    pub round: String,
    /// Beginning of the request.
    pub request: String,
    /// Names of the called tools.
    pub tools: Vec<String>,
    /// Beginnings of the observations.
    pub observed: Vec<String>,
    /// Beginning of the answer; `None` without one.
    pub answer: Option<String>,
}

impl RoundLines {
    /// Adds one message.
    pub(crate) fn add(&mut self, role: Role, blocks: &[ContentBlock], observed_chars: usize) {
        let mut text = String::new();
        let mut calls = false;
        for block in blocks {
            match block {
                ContentBlock::Text(block) if !is_reminder(&block.text) => {
                    text.push_str(&block.text)
                }
                ContentBlock::ToolUse(call) => {
                    calls = true;
                    if self.tools.len() < ROUND_TOOLS_MAX {
                        self.tools.push(one_line(&call.name, 64));
                    }
                }
                ContentBlock::ToolResult(result) => {
                    calls = true;
                    let content = result.content.text();
                    if observed_chars > 0
                        && self.observed.len() < ROUND_OBSERVED_MAX
                        && content != CLEARED
                        && !content.trim().is_empty()
                    {
                        self.observed.push(one_line(&content, observed_chars));
                    }
                }
                ContentBlock::Text(_)
                | ContentBlock::Thinking(_)
                | ContentBlock::Image(_)
                | ContentBlock::Document(_)
                | ContentBlock::Other { .. } => {}
            }
        }
        if calls || text.trim().is_empty() {
            return;
        }
        match role {
            Role::User | Role::System if self.request.is_empty() => {
                self.request = one_line(&text, 100)
            }
            Role::User | Role::System => {}
            Role::Assistant => self.answer = Some(one_line(&text, 100)),
        }
    }

    /// The lines as text, each followed by a line feed.
    pub(crate) fn render(&self) -> String {
        let mut text = format!("Round {}:\n", self.round);
        push_line(&mut text, "  Request: ", &self.request);
        text.push_str(&format!("  Tools: [{}]\n", self.tools.join(", ")));
        self.observed
            .iter()
            .for_each(|line| push_line(&mut text, "  Observed: ", line));
        if let Some(answer) = &self.answer {
            push_line(&mut text, "  Answer: ", answer);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::Message;
    use crate::compactor::tests::stories::{call, exchange, failed_exchange, result};

    fn read(round: &str, messages: &[Message], observed_chars: usize) -> RoundLines {
        let mut lines = RoundLines {
            round: round.into(),
            ..RoundLines::default()
        };
        for message in messages {
            lines.add(message.role(), &message.blocks(), observed_chars);
        }
        lines
    }

    #[test]
    fn cuts_are_in_characters_and_only_real_cuts_are_marked() {
        assert_eq!(
            (clip("汉字汉字", 4), clip("汉字汉字", 3)),
            ("汉字汉字".into(), "汉字汉...".into())
        );
        assert_eq!(one_line("  a\n\n b\tc ", 9), "a b c");
        assert_eq!(one_line("ab cd", 3), "ab ...");
        assert_eq!(one_line("abc ", 3), "abc");
    }

    #[test]
    fn the_rule_summary_has_its_form_and_resolves_names_of_tools() {
        let [calls, results] = exchange("a", "fine");
        let [bad_calls, bad_results] = failed_exchange("b", "no");
        let mut all = outcomes(&calls.blocks(), &results.blocks());
        all.extend(outcomes(&bad_calls.blocks(), &bad_results.blocks()));
        all.extend(outcomes(
            &[call("c", "g")],
            &[ContentBlock::ToolResult(result("z", "", false))],
        ));
        let texts = [
            "We DECIDED to\ngo on",
            "nothing",
            "我们选择了它",
            "then chose b",
        ];

        let text = rule_summary(&decisions(texts.into_iter()), &all);

        assert_eq!(
            text,
            "## Previous Context Summary\n### Key Decisions\n- We DECIDED to go on\n- 我们选择了它\n- then chose b\n\n### Tool Outcomes\n- f: ✓\n- f: ✗\n- unknown: ✓\n"
        );
        let many: Vec<String> = (0..9).map(|n| format!("selected {n}")).collect();
        assert_eq!(decisions(many.iter().map(String::as_str)), many[4..]);
        assert_eq!(
            decisions([&*format!("chose {}", "x".repeat(200))].into_iter())[0]
                .chars()
                .count(),
            103
        );
    }

    #[test]
    fn a_round_becomes_lines_with_the_results_of_its_tools() {
        let [calls, results] = exchange("a", "seen");
        let messages = [
            Message::user("do\nit"),
            calls,
            results,
            Message::assistant("done"),
        ];

        let lines = read("7", &messages, 100).render();

        assert_eq!(
            lines,
            "Round 7:\n  Request: do it\n  Tools: [f]\n  Observed: seen\n  Answer: done\n"
        );
        assert_eq!(
            read("8", &messages[..1], 0).render(),
            "Round 8:\n  Request: do it\n  Tools: []\n"
        );
    }
}
