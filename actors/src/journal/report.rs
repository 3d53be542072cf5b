//! Reports on the figures of conversations, as text for people.
//!
//! Pure.

use std::fmt::Write as _;

use serde::Serialize;

use super::{ConversationMetrics, Durable, ToolAggregate};
use crate::ids::ConversationId;

/// Averages over the calls of one tool.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
#[allow(missing_docs, reason = "the stored names of the figures")]
pub struct ToolStats {
    pub call_count: u64,
    pub avg_duration_ms: f64,
    /// Estimated tokens of arguments and observation together, per call.
    pub avg_tokens: f64,
    /// Share of calls that succeeded, from 0 to 1.
    pub success_rate: f64,
    /// Share of calls that failed, from 0 to 1.
    pub error_rate: f64,
}

impl ToolAggregate {
    /// Returns the averages; all are zero without calls.
    pub(crate) fn stats(&self) -> ToolStats {
        if self.calls == 0 {
            return ToolStats::default();
        }
        let of_calls = |sum: u64| sum as f64 / self.calls as f64;
        let error_rate = of_calls(self.failed);
        ToolStats {
            call_count: self.calls,
            avg_duration_ms: of_calls(self.duration_ms),
            avg_tokens: of_calls(self.tokens),
            success_rate: of_calls(self.calls.saturating_sub(self.failed)),
            error_rate,
        }
    }
}

impl Durable {
    /// Returns the averages of every tool: the most called first, tools with equal counts by name.
    pub fn tool_stats(&self) -> Vec<(&str, ToolStats)> {
        let mut stats: Vec<_> = self
            .tools
            .iter()
            .map(|(name, calls)| (name.as_str(), calls.stats()))
            .collect();
        stats.sort_by_key(|(_, stats)| std::cmp::Reverse(stats.call_count)); // Stable: names stay in order.
        stats
    }

    /// Returns the figures of this conversation as a text of several lines.
    pub fn report(&self, id: &ConversationId) -> String {
        let figures = &self.metrics;
        let mut tools = String::new();
        for (name, stats) in self.tool_stats() {
            let ToolStats {
                call_count,
                avg_duration_ms,
                avg_tokens,
                success_rate,
                error_rate: _,
            } = stats;
            let percent = success_rate * 100.0;
            let _ = write!(
                tools,
                "\n  {name}:\n    - Calls: {call_count}\n    - Avg Duration: {avg_duration_ms:.1}ms\n    - Avg Tokens: {avg_tokens:.0}\n    - Success Rate: {percent:.1}%\n",
            );
        }
        let used: Vec<&str> = self.skills.used.iter().map(|name| name.as_str()).collect();
        let skills = if used.is_empty() {
            "None".to_owned()
        } else {
            used.join(", ")
        };
        format!(
            "Conversation Metrics Report\n\
             ============================\n\
             Conversation ID: {id}\n\
             Duration: {:.1}s\n\
             \n\
             Token Usage:\n  - Input: {}\n  - Output: {}\n  - Total: {}\n\
             \n\
             Tool Calls:\n  - Total: {}\n  - Successful: {}\n  - Failed: {}\n  - Retried: {}\n\
             \n\
             Per-Tool Statistics:\n\
             {tools}\n\
             \n\
             Skills Activated:\n  - Total: {}\n  - Unique: {}\n  - Skills: {skills}\n\
             \n\
             Context Management:\n  - Messages: {}\n  - Compressions: {}\n",
            figures.total_duration_ms() as f64 / 1000.0,
            thousands(figures.total_input_tokens),
            thousands(figures.total_output_tokens),
            thousands(figures.total_tokens()),
            figures.tool_calls,
            figures.successful_calls,
            figures.failed_calls,
            figures.retried_calls,
            figures.skill_activations,
            used.len(),
            figures.messages_count,
            figures.compression_events,
        )
    }
}

/// Figures of several conversations together.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
#[allow(missing_docs, reason = "the stored names of the figures")]
pub struct GlobalStats {
    pub total_conversations: u64,
    pub total_tool_calls: u64,
    pub total_tokens: u64,
    pub total_duration_seconds: f64,
    /// Average tokens per tool call; 0 without calls.
    pub avg_tokens_per_call: f64,
}

impl GlobalStats {
    /// Adds up the figures of conversations.
    pub fn from_conversations<'a>(
        conversations: impl IntoIterator<Item = &'a ConversationMetrics>,
    ) -> Self {
        let mut sum = Self::default();
        let mut duration_ms = 0_u64;
        for figures in conversations {
            sum.total_conversations += 1;
            sum.total_tool_calls = sum.total_tool_calls.saturating_add(figures.tool_calls);
            sum.total_tokens = sum.total_tokens.saturating_add(figures.total_tokens());
            duration_ms = duration_ms.saturating_add(figures.total_duration_ms());
        }
        sum.total_duration_seconds = duration_ms as f64 / 1000.0;
        if sum.total_tool_calls > 0 {
            sum.avg_tokens_per_call = sum.total_tokens as f64 / sum.total_tool_calls as f64;
        }
        sum
    }
}

/// Formats a number with a comma as thousands separator.
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::{skill::SkillName, time::Timestamp};

    fn conversation() -> Durable {
        let metrics = ConversationMetrics {
            start_time: Timestamp(1_000),
            end_time: Timestamp(13_449),
            total_input_tokens: 1_234_567,
            total_output_tokens: 890,
            skill_activations: 3,
            unique_skills: 2,
            messages_count: 12,
            compression_events: 1,
            ..ConversationMetrics::default()
        };
        let mut state = Durable {
            metrics,
            ..Durable::default()
        };
        for (name, failed, retries, ms, tokens) in [
            ("bash", false, 0, 10, 100),
            ("grep_search", false, 1, 4, 30),
            ("grep_search", true, 0, 5, 33),
            ("grep_search", false, 0, 4, 30),
        ] {
            state.metrics.record_tool_call(failed, retries);
            let sum = state.tools.or_default(name.to_owned()).unwrap();
            sum.record(failed, retries, ms, tokens);
        }
        state.skills.used = ["release-notes", "csv-tables"]
            .map(|name| SkillName::new(name).unwrap())
            .into();
        state
    }

    #[test]
    fn the_report_has_the_layout_of_the_requirements() {
        let report = conversation().report(&ConversationId::new("support-42").unwrap());

        expect![[r#"
            Conversation Metrics Report
            ============================
            Conversation ID: support-42
            Duration: 12.4s

            Token Usage:
              - Input: 1,234,567
              - Output: 890
              - Total: 1,235,457

            Tool Calls:
              - Total: 4
              - Successful: 3
              - Failed: 1
              - Retried: 1

            Per-Tool Statistics:

              grep_search:
                - Calls: 3
                - Avg Duration: 4.3ms
                - Avg Tokens: 31
                - Success Rate: 66.7%

              bash:
                - Calls: 1
                - Avg Duration: 10.0ms
                - Avg Tokens: 100
                - Success Rate: 100.0%


            Skills Activated:
              - Total: 3
              - Unique: 2
              - Skills: csv-tables, release-notes

            Context Management:
              - Messages: 12
              - Compressions: 1
        "#]]
        .assert_eq(&report);
        assert_eq!(report.lines().nth(1).unwrap().len(), 28);
    }

    #[test]
    fn without_skills_and_tools_the_report_says_none() {
        let report = Durable::default().report(&ConversationId::new("empty").unwrap());

        assert!(
            report.contains("  - Skills: None\n")
                && report.contains("Per-Tool Statistics:\n\n\nSkills"),
            "{report}"
        );
    }

    #[test]
    fn rates_of_a_tool_are_parts_of_its_calls() {
        let state = conversation();
        let stats = state.tool_stats();

        let [("grep_search", grep), ("bash", bash)] = stats.as_slice() else {
            panic!("{stats:?}")
        };
        assert_eq!((grep.call_count, grep.avg_tokens), (3, 31.0));
        assert!(
            (grep.success_rate + grep.error_rate - 1.0).abs() < 1e-9
                && (grep.error_rate - 1.0 / 3.0).abs() < 1e-9
        );
        assert_eq!(
            (bash.success_rate, bash.error_rate, bash.avg_duration_ms),
            (1.0, 0.0, 10.0)
        );
        assert_eq!(
            ToolAggregate::default().stats(),
            ToolStats::default(),
            "no division by no calls"
        );
    }

    #[test]
    fn global_figures_have_no_average_without_calls() {
        let busy = conversation().metrics;
        let idle = ConversationMetrics {
            end_time: Timestamp(500),
            ..ConversationMetrics::default()
        };

        let both = GlobalStats::from_conversations([&busy, &idle]);

        assert_eq!(
            (
                both.total_conversations,
                both.total_tool_calls,
                both.total_tokens
            ),
            (2, 4, 1_235_457)
        );
        assert_eq!(
            (both.total_duration_seconds, both.avg_tokens_per_call),
            (12.949, 1_235_457.0 / 4.0)
        );
        assert_eq!(
            GlobalStats::from_conversations([&idle]).avg_tokens_per_call,
            0.0
        );
    }

    #[test]
    fn thousands_have_separators() {
        assert_eq!(
            [0, 12, 999, 1_000, 1_234_567].map(thousands),
            ["0", "12", "999", "1,000", "1,234,567"]
        );
    }
}
