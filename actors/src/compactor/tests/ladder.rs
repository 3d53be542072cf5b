//! Each step of the ladder, by example.

use std::cell::Cell;

use super::super::{
    importance::{CLEARED, MessagePriority},
    rules::RoundLines,
    summary_pair::{ANSWER, SummaryPair},
    tests::stories::{count, exchange, failed_exchange},
    *,
};
use crate::chat::{ContentBlock, Edit, History, Message, MessageList, span_hash};

/// A text of exactly `tokens` by the count of these tests, wire form included.
fn text(tokens: usize) -> String {
    "x".repeat((tokens * 3).saturating_sub(59))
}

struct Case {
    history: History,
    starts: Vec<usize>,
    window: Window,
    fixed: Fixed,
    settings: CompactionSettings,
    pinned: Vec<String>,
    summary: Option<(String, String)>,
    paid: bool,
    force: bool,
}

impl Case {
    fn new(tokens: u64) -> Self {
        Self {
            history: History::default(),
            starts: Vec::new(),
            window: Window {
                tokens,
                max_tokens: 0,
            },
            fixed: Fixed::default(),
            settings: CompactionSettings {
                keep_rounds: Some(3),
                ..CompactionSettings::default()
            },
            pinned: Vec::new(),
            summary: None,
            paid: true,
            force: false,
        }
    }

    /// Adds a round of a request, exchanges and an answer.
    fn round(mut self, exchanges: impl IntoIterator<Item = [Message; 2]>) -> Self {
        self.starts.push(self.history.messages().len());
        self.history
            .push_user(Message::user(format!("ask {}", self.starts.len())))
            .unwrap();
        for [calls, results] in exchanges {
            self.history.push_exchange(calls, results).unwrap();
        }
        self.history
            .push_assistant(Message::assistant(format!("answer {}", self.starts.len())))
            .unwrap();
        self
    }

    fn plan(&self) -> CompactionOutcome {
        self.with_problem(plan)
    }

    fn with_problem<T>(&self, work: impl FnOnce(&Problem<'_>) -> T) -> T {
        work(&Problem {
            history: &self.history,
            round_starts: &self.starts,
            fixed: self.fixed,
            window: self.window,
            settings: &self.settings,
            pinned: &self.pinned,
            count: &count,
            summary: &|hash| {
                self.summary
                    .as_ref()
                    .filter(|(of, _)| of == hash)
                    .map(|(_, text)| text.clone())
            },
            may_summarize: Some(&|_| self.paid),
            seq_label: "9",
            force: self.force,
        })
    }

    fn compacted(&self) -> Plan {
        match self.plan() {
            CompactionOutcome::Compacted(plan) => plan,
            other => panic!("{other:?}"),
        }
    }

    fn apply(&mut self, plan: &Plan) {
        self.history = self.history.edited(&plan.edits).unwrap();
        self.starts = plan.round_starts.clone();
    }

    fn texts(&self) -> Vec<String> {
        self.history.messages().iter().map(digest).collect()
    }
}

/// A message in short: its text, or the ids and texts of its results, or the ids of its calls.
fn digest(message: &Message) -> String {
    let parts = message.blocks().into_iter().map(|block| match block {
        ContentBlock::ToolResult(result) => {
            format!(
                "{}={}",
                result.tool_use_id,
                result.content.text().chars().take(12).collect::<String>()
            )
        }
        ContentBlock::ToolUse(call) => call.id,
        other => other
            .as_text()
            .unwrap_or_default()
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned(),
    });
    parts.collect::<Vec<_>>().join(" ")
}

fn long(id: &str, tokens: usize) -> [Message; 2] {
    exchange(id, &text(tokens))
}

#[test]
fn nothing_is_done_below_eighty_percent_and_something_at_eighty() {
    let mut case = Case::new(0)
        .round([long("a", 500)])
        .round([])
        .round([])
        .round([]);
    let total: u64 = case.history.messages().iter().map(count).sum();
    case.fixed.system = 800 - total;

    case.window.tokens = 1001;
    assert_eq!(case.plan(), CompactionOutcome::Fits { tokens: 800 });
    case.window.tokens = 1000;
    assert_eq!(case.compacted().before_tokens, 800);
    case.window = Window {
        tokens: 1001,
        max_tokens: 201,
    };
    assert_eq!(
        case.compacted().before_tokens,
        800,
        "no room for the longest answer"
    );
    case.window = Window {
        tokens: 100_000,
        max_tokens: 0,
    };
    assert_eq!(case.plan(), CompactionOutcome::Fits { tokens: 800 });
    case.force = true;
    assert_eq!(case.compacted().before_tokens, 800);
}

#[test]
fn older_results_are_cleared_first_and_only_once() {
    let mut case = Case::new(3000)
        .round([long("a", 1500), failed_exchange("b", &text(100))])
        .round([long("c", 200)])
        .round([long("d", 600)])
        .round([long("e", 10)])
        .round([]);

    let plan = case.compacted();
    case.apply(&plan);

    assert_eq!(plan.steps, [CompactionStep::ToolResults]);
    assert_eq!(
        (plan.cleared_results, plan.dropped.clone(), plan.mode()),
        (2, None, CompressionMode::Extract)
    );
    assert_eq!(case.texts()[2], "a=[已壓縮的工具結果]");
    assert_eq!(case.texts()[4], "b=xxxxxxxxxxxx", "an error keeps its text");
    assert_eq!(case.texts()[8], "c=[已壓縮的工具結果]");
    assert_eq!(
        case.texts()[12],
        "d=xxxxxxxxxxxx",
        "recent rounds are untouched"
    );
    assert_eq!(case.starts, [0, 6, 10, 14, 18]);
    case.force = true;
    assert!(
        !matches!(case.plan(), CompactionOutcome::Compacted(plan) if plan.cleared_results > 0),
        "what is cleared is not cleared again"
    );
}

#[test]
fn extraction_drops_logs_then_answers_then_calls_and_keeps_requests_and_errors() {
    let log = exchange("log", &"line\n".repeat(40));
    let huge = exchange("huge", &"line\n".repeat(2000));
    let case = Case::new(4000)
        .round([
            huge,
            exchange("short", "ok"),
            log,
            failed_exchange("bad", "no"),
        ])
        .round([exchange("new", "ok")]);
    let total: u64 = case.history.messages().iter().map(count).sum();
    let mut seen: Vec<Vec<String>> = Vec::new();

    case.with_problem(|problem| {
        for goal in (0..=total).rev().step_by(10) {
            let mut draft = draft::Draft::new(problem);
            extract::extract(&mut draft, 1, goal);
            let left = draft
                .kept_units(1)
                .map(|(_, unit)| digest(case.history.messages().get(unit.start).unwrap()))
                .collect();
            if seen.last() != Some(&left) {
                seen.push(left);
            }
        }
    });

    let seen: Vec<String> = seen.iter().map(|left| left.join(", ")).collect();
    assert_eq!(
        seen,
        [
            "ask 1, huge, short, log, bad, answer 1",
            "ask 1, short, log, bad, answer 1",
            "ask 1, short, bad, answer 1",
            "ask 1, short, bad",
            "ask 1, bad"
        ],
        "one at a time, and only as far as needed"
    );
}

#[test]
fn priorities_are_ordered_by_what_they_mean() {
    use MessagePriority::{Critical, High, Low, Medium};

    assert!(Critical > High && High > Medium && Medium > Low);
    assert_eq!(
        serde_json::to_string(&[Critical, High, Medium, Low]).unwrap(),
        r#"["critical","high","medium","low"]"#
    );
    let priority = |[_, results]: [Message; 2]| importance::exchange_priority(&results.blocks());
    assert_eq!(priority(exchange("a", "ok")), High);
    assert_eq!(priority(exchange("a", &"x".repeat(2000))), Low);
    assert_eq!(priority(exchange("a", &"x\n".repeat(40))), Low);
    assert_eq!(priority(exchange("a", &"x".repeat(1999))), High);
    assert_eq!(priority(exchange("a", CLEARED)), Low);
    assert_eq!(priority(failed_exchange("a", &"x".repeat(9000))), High);
}

/// Rounds of two messages, 123 tokens each.
fn many_rounds(count: usize, window: u64) -> Case {
    with_rounds(Case::new(window), count)
}

fn with_rounds(case: Case, count: usize) -> Case {
    (case.starts.len()..count).fold(case, |case, round| {
        let mut case = case.round([]);
        let padded = Message::assistant(format!("answer {} {}", round + 1, text(100)));
        case.history = case.history.prefix(case.history.messages().len() - 1).0;
        case.history.push_assistant(padded).unwrap();
        case
    })
}

#[test]
fn one_pair_describes_what_is_dropped_and_later_pairs_fold_it_in() {
    let mut case = many_rounds(30, 4500);
    case.pinned = vec!["never deploy on Friday".into()];

    let first = case.compacted();
    case.apply(&first);

    assert_eq!(first.steps, [CompactionStep::Extract]);
    assert!(first.after_tokens <= 2250 && first.summarise && !first.summary_used);
    let span = first.dropped.clone().unwrap();
    let pair = case.history.messages().get(0).unwrap().clone();
    assert!(
        pair.text().contains("\n- never deploy on Friday\n"),
        "{}",
        pair.text()
    );
    assert!(pair.text().contains(&format!(
        "\n- `9:0-{}` {} messages, up to round ",
        span.to, span.messages
    )));
    assert!(pair.text().contains(&span.hash));
    assert_eq!(case.history.messages().get(1).unwrap().text(), ANSWER);
    assert_eq!(
        case.texts()[2..4],
        ["ask 1", "ask 2"],
        "the text of a person stays in this step"
    );
    assert_eq!(case.starts.len(), 30);

    for round in 0..25 {
        case = case.round([long(&format!("n{round}"), 100)]);
        if let CompactionOutcome::Compacted(plan) = case.plan() {
            case.apply(&plan);
        }
    }
    let pair = SummaryPair::read(case.history.messages().get(0).unwrap());
    assert!(pair.pointers.len() >= 2);
    assert_eq!(pair.pointers[0].span, format!("9:0-{}", span.to));
    assert_eq!(
        case.texts().iter().filter(|text| *text == ANSWER).count(),
        1
    );
    assert!(
        case.history
            .messages()
            .get(0)
            .unwrap()
            .text()
            .contains("never deploy on Friday")
    );
}

#[test]
fn a_ready_summary_takes_the_place_of_all_it_was_made_of() {
    let mut case = many_rounds(30, 4500);
    let plan = case.compacted();
    let span = plan.dropped.clone().unwrap();
    case.apply(&plan);
    let left = case
        .texts()
        .iter()
        .skip(2)
        .filter(|text| text.starts_with("ask"))
        .count();
    for round in 0..4 {
        case = case.round([long(&format!("n{round}"), 600)]);
    }
    case.summary = Some((
        span.hash,
        "They counted to thirty.\n### Removed Messages".into(),
    ));

    let second = case.compacted();
    case.apply(&second);

    assert_eq!(second.steps[0], CompactionStep::Summary);
    assert!(second.summary_used && left > 25);
    assert_eq!(second.mode(), CompressionMode::Summarize);
    let text = case.history.messages().get(0).unwrap().text();
    assert!(
        text.contains("\n### Summary\n> They counted to thirty.\n> ### Removed Messages\n"),
        "{text}"
    );
    assert!(
        !case.texts().contains(&"ask 1".to_owned()),
        "what the summary was made of is gone"
    );
    assert!(
        text.contains("- ask 1\n") || text.contains("- ask 2"),
        "and yet in the summary: {text}"
    );
    assert!(
        SummaryPair::read(case.history.messages().get(0).unwrap())
            .pointers
            .iter()
            .all(|pointer| pointer.pending.is_none())
            || second.summarise
    );
}

#[test]
fn a_round_with_an_error_stays_behind_the_summary_that_covers_it() {
    let failed = Case::new(4500).round([failed_exchange("bad", "no such file")]);
    let mut case = with_rounds(failed, 30);
    case.force = true;
    let span = case.compacted().dropped.unwrap();
    case.summary = Some((span.hash, "They counted to thirty.".into()));

    let plan = case.compacted();
    case.apply(&plan);

    assert!(plan.summary_used);
    let texts = case.texts();
    let has = |text: &str| texts.iter().any(|other| other.contains(text));
    assert!(has("ask 1") && has("bad=no such file"), "{texts:?}");
    assert!(!texts.contains(&"ask 2".to_owned()), "{texts:?}");
}

#[test]
fn a_summary_that_is_waited_for_stands_in_the_first_pair_and_a_cached_one_asks_no_model() {
    let mut case = many_rounds(30, 4500);
    case.force = true;
    let without = case.compacted();
    let span = without.dropped.clone().unwrap();
    assert!(without.summarise);

    case.summary = Some((span.hash.clone(), "Counted.".into()));
    let with = case.compacted();
    case.apply(&with);

    assert!(with.summary_used && !with.summarise);
    assert_eq!(with.dropped.unwrap().hash, span.hash);
    assert!(
        case.history
            .messages()
            .get(0)
            .unwrap()
            .text()
            .contains("> Counted.\n")
    );
    assert!(with.after_tokens < without.after_tokens);
    assert_eq!(
        case.texts()[2],
        "ask 28",
        "all before the three last rounds is in the summary"
    );
}

#[test]
fn a_rewound_remainder_is_not_taken_for_what_was_summarised() {
    let mut case = many_rounds(30, 4500);
    let plan = case.compacted();
    case.apply(&plan);
    let (prefix, border) = case.history.prefix(4);
    case.history = prefix;
    case.starts.retain(|start| *start < border);
    for round in 0..9 {
        case = case.round([long(&format!("n{round}"), 350)]);
    }
    case.summary = Some((plan.dropped.unwrap().hash, "Old.".into()));

    let plan = case.compacted();
    let kept: Vec<String> = case.texts();
    case.apply(&plan);

    assert!(plan.summary_used);
    assert_eq!(
        plan.steps,
        [
            CompactionStep::ToolResults,
            CompactionStep::Summary,
            CompactionStep::Extract
        ]
    );
    assert_eq!(kept[4], "ask 3");
    assert!(
        case.texts().contains(&kept[4]),
        "a new request was dropped for an old summary"
    );
}

#[test]
fn summaries_are_asked_for_by_mode_number_switch_and_purse() {
    let summarise = |case: &Case| case.compacted().summarise;
    let rounds = |count: usize| {
        let mut case = many_rounds(count, 100_000);
        case.force = true;
        case
    };

    // Two messages per round.
    assert!(!summarise(&rounds(24)), "48 messages");
    assert!(summarise(&rounds(25)), "50 messages");
    let mut few = rounds(14);
    few.settings.llm_threshold = 0;
    assert!(!summarise(&few), "28 messages are few");
    few = rounds(15);
    few.settings.llm_threshold = 0;
    assert!(summarise(&few), "30 are not");
    few = rounds(14);
    few.settings.strategy = CompressionMode::Summarize;
    assert!(summarise(&few), "a configured mode is used as it is");
    for spoil in [
        |case: &mut Case| case.paid = false,
        |case: &mut Case| case.settings.enable_llm_summarization = false,
        |case: &mut Case| case.settings.strategy = CompressionMode::Truncate,
    ] {
        let mut case = rounds(25);
        spoil(&mut case);
        assert!(!summarise(&case));
    }
}

#[test]
fn truncation_keeps_the_five_last_rounds() {
    let mut case = many_rounds(30, 4000);
    case.settings.strategy = CompressionMode::Truncate;

    let plan = case.compacted();
    case.apply(&plan);

    assert_eq!(
        (plan.steps.as_slice(), plan.mode()),
        (&[CompactionStep::Truncate][..], CompressionMode::Truncate)
    );
    assert_eq!(case.texts()[2], "ask 26");
    assert_eq!(case.starts, [2, 4, 6, 8, 10]);
}

#[test]
fn by_importance_old_answers_and_results_keep_their_first_words() {
    let long_answer = |mut case: Case, n: usize| {
        case.starts.push(case.history.messages().len());
        let ask = Message::user(format!("ask {n} {}", text(100)));
        case.history.push_user(ask).unwrap();
        let [calls, results] = long(&format!("c{n}"), 400);
        case.history.push_exchange(calls, results).unwrap();
        let answer = Message::assistant(format!("answer {n} {}", text(400)));
        case.history.push_assistant(answer).unwrap();
        case
    };
    let mut case = (1..=9).fold(Case::new(9000), long_answer);
    case.settings.strategy = CompressionMode::Importance;
    case.settings.target = 0.65;
    let before = case.history.messages().len();

    let plan = case.compacted();
    case.apply(&plan);

    assert_eq!(
        (plan.steps.as_slice(), plan.mode()),
        (
            &[CompactionStep::Importance][..],
            CompressionMode::Importance
        )
    );
    assert_eq!(case.history.messages().len(), before, "nothing is dropped");
    let texts: Vec<String> = case.history.messages().iter().map(Message::text).collect();
    let short = |n: usize| texts[4 * n - 1].starts_with("[assistant] answer");
    // Rounds 1 to 3 are more than five rounds old in round 9.
    assert_eq!([1, 2, 3, 4, 9].map(short), [true, true, true, false, false]);
    assert!(texts[0].len() > 100, "a person's words stay");
    let results: Vec<bool> = case
        .texts()
        .iter()
        .filter(|text| text.starts_with('c') && text.contains('='))
        .map(|text| text.contains("=[Tool Result"))
        .collect();
    assert!(results[0] && !results[8], "{results:?}");
    assert!(plan.after_tokens <= case.window.target(&case.settings));
}

#[test]
fn under_twenty_messages_old_rounds_stay_while_they_fit() {
    let mut case = Case::new(1000);
    for _ in 0..4 {
        case = case.round([failed_exchange("a", &text(130))]);
    }
    let total: u64 = case.history.messages().iter().map(count).sum();
    assert!((800..1000).contains(&total), "{total}");

    assert_eq!(case.plan(), CompactionOutcome::Fits { tokens: total });
    case.window.tokens = total - 1;
    assert!(
        case.compacted()
            .steps
            .contains(&CompactionStep::OldestRounds),
        "few huge messages are no reason to exceed the window"
    );
}

#[test]
fn old_rounds_stay_up_to_nineteen_messages_and_not_from_twenty_on() {
    let of = |short_rounds: usize| {
        let mut case = Case::new(0);
        for _ in 0..4 {
            case = case.round([failed_exchange("a", &text(130))]);
        }
        for _ in 0..short_rounds {
            case = case.round([]);
        }
        let total: u64 = case.history.messages().iter().map(count).sum();
        case.window.tokens = total * 10 / 9;
        (case.history.messages().len(), case.plan())
    };

    assert!(matches!(of(1), (18, CompactionOutcome::Fits { .. })));
    let (messages, outcome) = of(2);
    let CompactionOutcome::Compacted(plan) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(messages, 20);
    assert!(plan.steps.contains(&CompactionStep::OldestRounds));
}

#[test]
fn whole_oldest_rounds_go_down_to_one_and_then_its_older_results() {
    let mut case = Case::new(2000).round([long("a", 900)]).round([
        long("b", 900),
        long("c", 900),
        long("d", 300),
    ]);

    let plan = case.compacted();
    case.apply(&plan);

    assert_eq!(
        plan.steps,
        [CompactionStep::OldestRounds, CompactionStep::CurrentRound]
    );
    let texts = case.texts();
    assert_eq!(
        texts[2..],
        [
            "ask 2",
            "b",
            "b=[已壓縮的工具結果]",
            "c",
            "c=[已壓縮的工具結果]",
            "d",
            "d=xxxxxxxxxxxx",
            "answer 2"
        ]
    );
    assert!(plan.after_tokens <= 1000);
    let mut current = Case::new(2000).round([long("b", 1500), long("c", 200), long("d", 300)]);
    current.history = current.history.prefix(7).0;
    current.apply(&current.compacted());
    assert_eq!(
        current.texts()[4],
        "c=xxxxxxxxxxxx",
        "only as far as needed, oldest first"
    );
}

#[test]
fn what_cannot_fit_names_its_largest_part() {
    let large = |change: fn(&mut Case)| {
        let mut case = Case::new(1000).round([]);
        change(&mut case);
        match case.plan() {
            CompactionOutcome::TooLarge {
                part,
                part_tokens,
                tokens,
                limit,
            } => {
                assert!(tokens > limit && part_tokens <= tokens);
                part
            }
            other => panic!("{other:?}"),
        }
    };

    assert_eq!(large(|case| case.fixed.system = 2000), "system prompt");
    assert_eq!(large(|case| case.fixed.tools = 2000), "tools");
    assert_eq!(large(|case| case.fixed.pinned = 2000), "pinned");
    assert_eq!(
        large(|case| *case = Case::new(1000).round([long("a", 2000)])),
        "current round"
    );
}

#[test]
fn imported_messages_are_cut_where_a_person_speaks() {
    let mut case = Case::new(1500);
    case.history
        .push_assistant(Message::assistant("hello"))
        .unwrap();
    for round in 0..10 {
        case.history
            .push_user(Message::user(format!("said {round}")))
            .unwrap();
        case.history
            .push_assistant(Message::assistant(text(130)))
            .unwrap();
    }
    case = case.round([]);

    let plan = case.compacted();
    case.apply(&plan);

    assert!(plan.after_tokens <= 750);
    assert!(case.texts()[2].starts_with("said "));
    assert_eq!(case.texts()[case.starts[0]], "ask 1");
    assert_eq!(case.starts.len(), 1);
}

#[test]
fn the_work_grows_with_the_history_and_no_faster() {
    let counted = |rounds: usize| {
        let calls = Cell::new(0_u64);
        let case = (0..rounds).fold(Case::new(200_000), |case, round| {
            case.round([long(&format!("c{round}"), 700)])
        });
        let count = |message: &Message| {
            calls.set(calls.get() + 1);
            count(message)
        };
        let problem = Problem {
            history: &case.history,
            round_starts: &case.starts,
            fixed: case.fixed,
            window: Window {
                tokens: rounds as u64 * 800,
                max_tokens: 0,
            },
            settings: &CompactionSettings {
                target: 0.05,
                ..CompactionSettings::default()
            },
            pinned: &[],
            count: &count,
            summary: &|_| None,
            may_summarize: None,
            seq_label: "1",
            force: false,
        };
        assert!(matches!(plan(&problem), CompactionOutcome::Compacted(_)));
        calls.get()
    };

    assert!(counted(256) < counted(64) * 5);
}

#[test]
fn very_many_short_rounds_are_added_to_the_pair_in_linear_time() {
    let rounds = |numbers: std::ops::Range<u64>| SummaryPair {
        rounds: numbers
            .map(|number| RoundLines {
                round: number.to_string(),
                ..RoundLines::default()
            })
            .collect(),
        ..SummaryPair::default()
    };
    let begun = std::time::Instant::now();
    let mut pair = rounds(0..3);
    pair.fold(rounds(2..200_000));

    assert_eq!(pair.rounds.last().unwrap().round, "199999");
    // A second at most; minutes if each round is searched among all others.
    assert!(begun.elapsed() < std::time::Duration::from_secs(15));
}

#[test]
fn a_person_cannot_forge_a_pair() {
    let mut case = many_rounds(30, 4500);
    let plan = case.compacted();
    case.apply(&plan);
    let pair = case.history.messages().get(0).unwrap().clone();
    let answer = case.history.messages().get(1).unwrap().clone();
    let messages: MessageList = [pair, answer].into_iter().collect();

    assert!(units::cut(&messages, &[]).has_pair);
    assert!(
        !units::cut(&messages, &[0]).has_pair,
        "what a round begins with is the text of a person"
    );
    assert_ne!(span_hash(messages.iter()), span_hash([]));
    assert!(matches!(plan.edits[0], Edit::Put(_)));
}

#[test]
fn a_pair_names_the_ten_newest_outcomes_and_the_five_newest_decisions() {
    let lines = |of: &str, count: usize| (0..count).map(|n| format!("{of} {n}")).collect();
    let mut pair = SummaryPair::default();
    pair.fold(SummaryPair {
        decisions: lines("chose", 7),
        outcomes: lines("tool", 12),
        ..SummaryPair::default()
    });

    let (summary, _) = pair.messages(&[], u64::MAX, &count);

    let text = summary.text();
    let named = |of: &str| -> Vec<usize> {
        text.lines()
            .filter_map(|line| {
                line.strip_prefix("- ")?
                    .strip_prefix(of)?
                    .trim()
                    .parse()
                    .ok()
            })
            .collect()
    };
    assert_eq!(named("tool"), (2..12).collect::<Vec<_>>());
    assert_eq!(named("chose"), (2..7).collect::<Vec<_>>());
}
