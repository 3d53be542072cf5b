//! Views of a history for callers: in full, with earlier rounds shortened, or message by message
//! with metadata. Models always receive the history itself.
//!
//! Pure.

use serde::{Deserialize, Serialize};

use crate::{
    chat::{ContentBlock, History, Message, Role},
    time::Timestamp,
};

use super::{
    importance::MessageImportance,
    rules::{RoundLines, clip},
};

/// Number of recent rounds that the compressed view shows in full.
pub const VIEW_ROUNDS: usize = 5;

/// Characters of an observation in the summary of a round.
const OBSERVED_CHARS: usize = 200;

/// Whether a history should be compressed: its tokens are strictly above the threshold. The agent's
/// loop uses `is_due`.
pub fn should_compress(tokens_sent: u64, window: u64, threshold: f64) -> bool {
    tokens_sent as f64 > window as f64 * threshold
}

/// One round of a view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RoundView {
    /// All messages unchanged: the request, each batch of calls with its results, errors marked,
    /// the answer.
    Full(Vec<Message>),
    /// The round in a few lines, with the beginnings of what tools returned.
    Summary(String),
}

/// The rounds of a history. Messages before the first round form a separate round. With
/// `compressed`, only the last five rounds are in full. `round_id` returns the id of the round at a
/// position.
pub fn round_views(
    history: &History,
    round_starts: &[usize],
    compressed: bool,
    round_id: impl Fn(usize) -> String,
) -> Vec<RoundView> {
    let messages = history.messages();
    let mut starts: Vec<usize> = round_starts
        .iter()
        .copied()
        .filter(|start| *start < messages.len())
        .collect();
    if !messages.is_empty() && starts.first() != Some(&0) {
        starts.insert(0, 0);
    }
    let ends = starts.iter().copied().skip(1).chain([messages.len()]);
    let short = if compressed {
        starts.len().saturating_sub(VIEW_ROUNDS)
    } else {
        0
    };
    let view = |(round, (start, end)): (usize, (usize, usize))| {
        let messages = messages.range(start..end);
        if round < short {
            RoundView::Summary(RoundLines::read(round_id(round), messages, OBSERVED_CHARS).render())
        } else {
            RoundView::Full(messages.cloned().collect())
        }
    };
    starts
        .iter()
        .copied()
        .zip(ends)
        .enumerate()
        .map(view)
        .collect()
}

/// A message with metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageRecord {
    /// The message as it was added.
    pub message: Message,
    /// How important the message is; decides whether it may be shortened.
    pub importance: MessageImportance,
    /// When the message was added.
    pub timestamp: Timestamp,
    /// Tokens of the message in full.
    pub tokens: u64,
    /// Number of the round.
    pub round: u64,
    /// Whether the message is shown in its short form.
    pub is_compressed: bool,
    /// The short form; `None` while the message is shown in full.
    pub compressed_content: Option<String>,
}

/// Messages with metadata. Uses rules only: no model is called, and nothing waits.
#[derive(Debug, Clone, Default)]
pub struct MessageRecords {
    records: Vec<MessageRecord>,
    total_tokens: u64,
}

/// A message with markers, for internal views. The markers are never sent to a provider.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MarkedMessage {
    /// The message as it would be sent.
    #[serde(flatten)]
    pub message: serde_json::Value,
    /// Whether this is the short form.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub compressed: bool,
    /// The round of the message; only for a short form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub original_round_id: Option<u64>,
}

impl MessageRecords {
    /// Adds a message and counts its tokens. Returns whether the total is now above the threshold.
    pub fn add(
        &mut self,
        message: Message,
        round: u64,
        timestamp: Timestamp,
        count: impl Fn(&Message) -> u64,
        window: (u64, f64),
    ) -> bool {
        let tokens = count(&message);
        self.total_tokens = self.total_tokens.saturating_add(tokens);
        let importance = MessageImportance::from_message(&message);
        let record = MessageRecord {
            message,
            importance,
            timestamp,
            tokens,
            round,
            is_compressed: false,
            compressed_content: None,
        };
        self.records.push(record);
        should_compress(self.total_tokens, window.0, window.1)
    }

    /// All records, in order.
    pub fn records(&self) -> &[MessageRecord] {
        &self.records
    }

    /// Total tokens of the current forms: a shortened message counts with its short form.
    pub fn total_tokens(&self) -> u64 {
        self.total_tokens
    }

    /// Shortens old messages. Never shortens the current round, user messages, errors or
    /// observations, nor a message with tool calls, since its results would then have no calls.
    /// Returns the number of shortened messages.
    pub fn compress_by_age(
        &mut self,
        current_round: u64,
        count: impl Fn(&Message) -> u64,
    ) -> usize {
        let mut shortened = 0;
        for record in &mut self.records {
            let age = current_round.saturating_sub(record.round);
            let may = !record.is_compressed
                && record.message.tool_use_ids().is_empty()
                && record.importance.compressible_at(age);
            if !may {
                continue;
            }
            let short = compressed_text(&record.message);
            let tokens = count(&as_sent(&record.message, &short));
            self.total_tokens = self
                .total_tokens
                .saturating_sub(record.tokens)
                .saturating_add(tokens);
            record.compressed_content = Some(short);
            record.is_compressed = true;
            shortened += 1;
        }
        shortened
    }

    /// All messages as a provider would receive them, in their current forms and without markers.
    pub fn compressed_messages(&self) -> Vec<Message> {
        self.records.iter().map(MessageRecord::sent).collect()
    }

    /// All messages with their markers.
    pub fn marked_messages(&self) -> Vec<MarkedMessage> {
        let marked = |record: &MessageRecord| MarkedMessage {
            message: serde_json::from_str(record.sent().wire_str()).unwrap_or_default(),
            compressed: record.is_compressed,
            original_round_id: record.is_compressed.then_some(record.round),
        };
        self.records.iter().map(marked).collect()
    }
}

impl MessageRecord {
    fn sent(&self) -> Message {
        self.compressed_content
            .as_ref()
            .map_or_else(|| self.message.clone(), |text| as_sent(&self.message, text))
    }
}

fn as_sent(message: &Message, text: &str) -> Message {
    match message.role() {
        Role::Assistant => Message::assistant(text),
        Role::User | Role::System => Message::user(text),
    }
}

/// The short form of a message. `...` appears only where text was cut.
pub fn compressed_text(message: &Message) -> String {
    let blocks = message.blocks();
    let result = blocks.iter().find_map(|block| {
        if let ContentBlock::ToolResult(result) = block {
            Some(result)
        } else {
            None
        }
    });
    if let Some(result) = result {
        return format!("[Tool Result: {}]", clip(&result.content.text(), 200));
    }
    let role = match message.role() {
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::System => "system",
    };
    format!("[{role}] {}", clip(&message.text(), 100))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compactor::tests::stories::{count, exchange, failed_exchange};

    fn history(rounds: usize) -> (History, Vec<usize>) {
        let mut history = History::default();
        let mut starts = Vec::new();
        for round in 0..rounds {
            starts.push(history.messages().len());
            history
                .push_user(Message::user(format!("ask {round}")))
                .unwrap();
            let [calls, results] = exchange(&format!("c{round}"), &format!("seen {round}"));
            history.push_exchange(calls, results).unwrap();
            history
                .push_assistant(Message::assistant("a".repeat(101)))
                .unwrap();
        }
        (history, starts)
    }

    #[test]
    fn the_full_view_is_the_history_itself() {
        let (history, starts) = history(7);

        let views = round_views(&history, &starts, false, |round| round.to_string());

        let messages = views.iter().flat_map(|view| {
            if let RoundView::Full(messages) = view {
                messages.clone()
            } else {
                panic!()
            }
        });
        assert!(messages.eq(history.messages().iter().cloned()));
        assert_eq!(views.len(), 7);
        assert_eq!(
            round_views(&History::default(), &[], true, |_| String::new()),
            []
        );
    }

    #[test]
    fn the_compressed_view_shows_five_rounds_whole_and_earlier_ones_with_their_observations() {
        let (history, starts) = history(7);

        let views = round_views(&history, &starts, true, |round| format!("r{round}"));

        let expected = format!(
            "Round r1:\n  Request: ask 1\n  Tools: [f]\n  Observed: seen 1\n  Answer: {}...\n",
            "a".repeat(100)
        );
        assert_eq!(views[1], RoundView::Summary(expected));
        assert!(
            views
                .iter()
                .skip(2)
                .all(|view| matches!(view, RoundView::Full(messages) if messages.len() == 4))
        );
        assert_eq!(views.len(), 7);
    }

    #[test]
    fn a_store_compresses_strictly_above_its_threshold() {
        assert!(!should_compress(160_000, 200_000, 0.8));
        assert!(should_compress(160_001, 200_000, 0.8));
    }

    #[test]
    fn age_shortens_thoughts_and_no_text_of_a_person_or_a_tool() {
        let mut records = MessageRecords::default();
        let long = "想".repeat(300);
        for round in 0..8 {
            let [calls, results] = if round == 0 {
                failed_exchange("x", &long)
            } else {
                exchange("y", &long)
            };
            for message in [
                Message::user(long.clone()),
                calls,
                results,
                Message::assistant(long.clone()),
            ] {
                let due = records.add(message, round, Timestamp(7), count, (1000, 0.8));
                assert_eq!(due, records.total_tokens() > 800);
            }
        }
        let before = records.total_tokens();

        let shortened = records.compress_by_age(7, count);

        assert_eq!(shortened, 2, "rounds 0 and 1 are more than five rounds old");
        assert_eq!(records.compress_by_age(7, count), 0);
        let sent = records.compressed_messages();
        assert_eq!(sent.len(), 32);
        assert!(
            sent.iter()
                .cloned()
                .collect::<crate::chat::MessageList>()
                .first_fault()
                .is_none()
        );
        assert_eq!(
            sent[3].text(),
            format!("[assistant] {}...", "想".repeat(100))
        );
        assert_eq!(
            (sent[0].text(), sent[11].text()),
            (long.clone(), long.clone())
        );
        assert_eq!(records.total_tokens(), sent.iter().map(count).sum::<u64>());
        assert!(records.total_tokens() < before);
        let marked: Vec<String> = records
            .marked_messages()
            .iter()
            .map(|message| serde_json::to_string(message).unwrap())
            .collect();
        assert!(
            marked[7].ends_with(r#""compressed":true,"original_round_id":1}"#),
            "{}",
            marked[7]
        );
        assert!(!marked[0].contains("compressed"));
        assert!(
            sent.iter()
                .all(|message| !message.wire_str().contains("original_round_id"))
        );
        assert_eq!(
            records.records()[2].importance,
            MessageImportance::Critical,
            "an error"
        );
        assert_eq!(records.records()[6].importance, MessageImportance::High);
    }

    #[test]
    fn ages_are_strict_and_only_system_messages_and_thoughts_have_one() {
        use MessageImportance::{Critical, High, Low, Medium};

        assert_eq!([3, 4].map(|age| Low.compressible_at(age)), [false, true]);
        assert_eq!([5, 6].map(|age| Medium.compressible_at(age)), [false, true]);
        assert!(!High.compressible_at(99) && !Critical.compressible_at(99));
        assert_eq!(
            serde_json::to_string(&[Critical, High, Medium, Low]).unwrap(),
            "[1,2,3,4]"
        );
        assert!(serde_json::from_str::<MessageImportance>("5").is_err());
    }

    #[test]
    fn a_short_form_says_what_it_is_and_cuts_only_what_is_long() {
        let [_, results] = exchange("a", "short");

        assert_eq!(compressed_text(&results), "[Tool Result: short]");
        assert_eq!(
            compressed_text(&exchange("a", &"x".repeat(201))[1]),
            format!("[Tool Result: {}...]", "x".repeat(200))
        );
        assert_eq!(compressed_text(&Message::user("hi")), "[user] hi");
    }
}
