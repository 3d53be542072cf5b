//! What the strategies of compaction leave of ten recorded conversations: the table of
//! `docs/context.md`. `cargo run --example compaction_strategies -- [DIR]`
//!
//! The offline model answers nine questions about the folder in each conversation, with real tools.
//! The window is one that the conversation just fills, and the last three rounds stay whole.

use std::time::Duration;

use callboard::{
    Host,
    chat::{ContentBlock, History, Message},
    compactor::{
        CompactionOutcome, CompactionSettings, CompressionMode, Fixed, Problem, Window, plan,
    },
    providers::offline::Offline,
    tokens::TokenCounter,
    tools,
};

/// The words that the questions of a conversation are about.
const TOPICS: [&str; 10] = [
    "retry", "budget", "journal", "window", "artifact", "approval", "tenant", "summary", "cursor",
    "breaker",
];

/// What one strategy left of one conversation.
struct Left {
    before: u64,
    after: u64,
    results: usize,
    with_words: usize,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    callboard::sandbox::jail_main_if_asked();
    let workspace = std::env::args().nth(1).unwrap_or_else(|| ".".into());
    // No compaction while the conversations are recorded.
    let never = CompactionSettings {
        trigger: 1.0,
        ..CompactionSettings::default()
    };
    let host = Host::builder()
        .provider(Offline)
        .tools(tools::standard(workspace))
        .compaction(never)
        .build()
        .await?;

    let strategies = [
        ("extract", CompressionMode::Extract),
        ("importance", CompressionMode::Importance),
    ];
    let mut all: [Vec<Left>; 2] = [Vec::new(), Vec::new()];
    for topic in TOPICS {
        let conversation = host.tenant("acme").conversation(topic);
        for question in questions(topic) {
            conversation.send(question).await?.outcome().await?;
        }
        let history = History::accept(conversation.messages().await?)?;
        let rounds = conversation.rounds().await?;
        let starts: Vec<usize> = rounds
            .iter()
            .filter_map(|round| round.start)
            .map(|start| start as usize)
            .collect();
        for (lefts, (_, strategy)) in all.iter_mut().zip(strategies) {
            lefts.push(compacted(&history, &starts, strategy));
        }
    }
    host.shutdown(Duration::from_secs(10)).await;

    println!("| Strategy | Tokens before | After, of before | Results with words left |");
    println!("|---|---|---|---|");
    for (lefts, (name, _)) in all.iter().zip(strategies) {
        let sum = |of: fn(&Left) -> u64| lefts.iter().map(of).sum::<u64>();
        let shares = lefts
            .iter()
            .map(|left| left.after * 100 / left.before.max(1));
        println!(
            "| `{}` | {} on average | {} % ({} to {} %) | {} of {} |",
            name,
            sum(|left| left.before) / lefts.len() as u64,
            sum(|left| left.after) * 100 / sum(|left| left.before).max(1),
            shares.clone().min().unwrap_or_default(),
            shares.max().unwrap_or_default(),
            sum(|left| left.with_words as u64),
            sum(|left| left.results as u64),
        );
    }
    Ok(())
}

fn questions(topic: &str) -> Vec<String> {
    [
        "Where is {} defined?",
        "What happens after {} fails?",
        "Which file tests {}?",
        "Where is the bound of {}?",
        "What does {} write?",
        "Who calls {}?",
        "How is {} configured?",
        "Which error does {} return?",
        "What do the documents say about {}?",
    ]
    .map(|question| question.replace("{}", topic))
    .into()
}

fn compacted(history: &History, starts: &[usize], strategy: CompressionMode) -> Left {
    let counter = TokenCounter::default();
    let count = |message: &Message| counter.count_message("rules", message);
    let before: u64 = history.messages().iter().map(count).sum();
    let settings = CompactionSettings {
        strategy,
        keep_rounds: Some(3),
        enable_llm_summarization: false,
        ..CompactionSettings::default()
    };
    let outcome = plan(&Problem {
        history,
        round_starts: starts,
        fixed: Fixed {
            system: 0,
            tools: 0,
            pinned: 0,
        },
        window: Window {
            tokens: before,
            max_tokens: 0,
        },
        settings: &settings,
        pinned: &[],
        count: &count,
        summary: &|_| None,
        may_summarize: None,
        seq_label: "0",
        force: false,
    });
    let left = match &outcome {
        CompactionOutcome::Compacted(plan) => history.edited(&plan.edits).ok(),
        CompactionOutcome::Fits { .. } | CompactionOutcome::TooLarge { .. } => None,
    };
    let left = left.as_ref().unwrap_or(history);
    Left {
        before,
        after: left.messages().iter().map(count).sum(),
        results: results(history).count(),
        with_words: results(left).filter(|has_words| *has_words).count(),
    }
}

/// For each tool result, whether it still has words of its tool.
fn results(history: &History) -> impl Iterator<Item = bool> {
    let blocks = history.messages().iter().flat_map(Message::blocks);
    blocks.filter_map(|block| match block {
        ContentBlock::ToolResult(result) => Some(!result.content.text().contains(CLEARED)),
        _ => None,
    })
}

/// What stands in place of a cleared result.
const CLEARED: &str = "[已壓縮的工具結果]";
