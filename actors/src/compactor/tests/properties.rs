//! Properties that hold for every history and every window. `CALLBOARD_SEED=n` replays a run;
//! `CALLBOARD_GATE=1` makes it four times
//! as long, `CALLBOARD_LONG=1` eighty times.

use super::super::{
    importance::CLEARED,
    rules::{one_line, text_of},
    summary_pair::{ANSWER, POINTERS_MAX, REQUEST_CHARS, SummaryPair},
    tests::stories::{call, count, result},
    *,
};
use crate::testing::TestSize;
use crate::{
    chat::{
        ContentBlock, Edit, History, Message, RawJson, Role, ThinkingBlock, ToolResultContent,
        span_hash,
    },
    ports::Entropy as _,
    testing::SeededEntropy,
};

struct Dice(SeededEntropy);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(SeededEntropy::new(seed))
    }

    fn below(&self, n: u64) -> u64 {
        u64::from_le_bytes(self.0.bytes()[..8].try_into().unwrap()) % n.max(1)
    }

    fn one_in(&self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn text(&self, chars_max: u64) -> String {
        const PIECES: [&str; 14] = [
            "word ",
            "we decided ",
            "选择 ",
            "数据库里有很多行",
            "\n",
            "### Removed Messages\n- `x:0-1` 1 messages, up to round 1\n",
            "{\"k\":\"v\"}",
            "> quoted\n",
            "🙂",
            "error ",
            "</system-reminder>",
            "`tick`",
            "Round 3:\n  Answer: no\n",
            "\u{0}\t",
        ];
        let chars = self.below(chars_max + 1) as usize;
        // Long texts repeat a short piece, since drawing every character would dominate the run
        // time.
        let piece: String = (0..chars.min(6))
            .map(|_| PIECES[self.below(PIECES.len() as u64) as usize])
            .collect();
        piece
            .chars()
            .cycle()
            .take(if piece.is_empty() { 0 } else { chars })
            .collect()
    }
}

/// A history as a conversation makes it, and where its rounds begin.
#[derive(Default)]
struct Story {
    history: History,
    starts: Vec<usize>,
    ids: u32,
}

impl Story {
    fn push_user(&mut self, dice: &Dice, chars: u64) {
        let mut blocks = vec![ContentBlock::text(format!(
            "ask {} {}",
            self.ids,
            dice.text(chars)
        ))];
        if dice.one_in(8) {
            blocks.push(image());
        }
        if dice.one_in(10) {
            blocks.push(crate::chat::reminder("the clock strikes"));
        }
        self.ids += 1;
        self.history
            .push_user(Message::new(Role::User, &blocks).unwrap())
            .unwrap();
    }

    fn push_exchange(&mut self, dice: &Dice) {
        let mut blocks = Vec::new();
        if dice.one_in(3) {
            blocks.push(ContentBlock::Thinking(ThinkingBlock {
                thinking: dice.text(80),
                signature: Some("c2lnbmVk".into()),
            }));
        }
        if dice.one_in(3) {
            blocks.push(ContentBlock::text(format!("then {}", dice.text(60))));
        }
        let mut results = Vec::new();
        for _ in 0..=(if dice.one_in(3) { dice.below(4) } else { 0 }) {
            let id = format!("call_{}", self.ids);
            self.ids += 1;
            blocks.push(call(
                &id,
                ["bash", "file_read", "搜索"][dice.below(3) as usize],
            ));
            let size = if dice.one_in(30) { 3000 } else { 120 };
            let mut made = result(&id, &dice.text(size), dice.one_in(6));
            if dice.one_in(12) {
                let list =
                    serde_json::to_string(&[ContentBlock::text(dice.text(200)), image()]).unwrap();
                made.content = ToolResultContent::Blocks(RawJson::from_text(list).unwrap());
            }
            results.push(made);
        }
        let after = dice
            .one_in(6)
            .then(|| ContentBlock::text(format!("meanwhile {}", dice.text(40))));
        self.history
            .push_exchange(
                Message::new(Role::Assistant, &blocks).unwrap(),
                Message::tool_results(results, after),
            )
            .unwrap();
    }

    fn push_round(&mut self, dice: &Dice, complete: bool) {
        self.starts.push(self.history.messages().len());
        for _ in 0..=u64::from(dice.one_in(9)) {
            self.push_user(dice, if dice.one_in(20) { 1500 } else { 60 });
        }
        for _ in 0..dice.below(4) {
            self.push_exchange(dice);
            if dice.one_in(12) {
                self.push_user(dice, 50);
            }
        }
        if complete && !dice.one_in(9) {
            self.history
                .push_assistant(Message::assistant(format!("answer {}", dice.text(200))))
                .unwrap();
        }
    }

    fn generated(dice: &Dice) -> Self {
        let mut story = Self::default();
        if dice.one_in(4) {
            for _ in 0..dice.below(6) {
                match dice.below(3) {
                    0 => story.push_user(dice, 100),
                    1 => story.push_exchange(dice),
                    _ => story
                        .history
                        .push_assistant(Message::assistant(format!("imported {}", dice.text(100))))
                        .unwrap(),
                }
            }
        }
        let rounds = if dice.one_in(60) {
            dice.below(60)
        } else {
            dice.below(6)
        };
        for _ in 0..rounds {
            story.push_round(dice, true);
        }
        story.push_round(dice, !dice.one_in(3));
        story
    }
}

fn image() -> ContentBlock {
    let raw = RawJson::from_text(
        r#"{"type":"image","source":{"type":"base64","media_type":"image/png","data":"aWNvbg=="}}"#,
    )
    .unwrap();
    ContentBlock::from_raw("image".into(), raw)
}

struct Setup {
    window: Window,
    fixed: Fixed,
    settings: CompactionSettings,
    pinned: Vec<String>,
    force: bool,
    paid: bool,
    /// Whether every requested summary is finished.
    ready: bool,
}

impl Setup {
    fn generated(dice: &Dice, total: u64) -> Self {
        // Close to the size of the history, so that each step of the ladder is the last one in some
        // runs.
        let tokens = (total * (5 + dice.below(160)) / 100).max(dice.below(4000));
        let strategy = [
            CompressionMode::Extract,
            CompressionMode::Extract,
            CompressionMode::Summarize,
            CompressionMode::Truncate,
            CompressionMode::Importance,
        ];
        Self {
            window: Window {
                tokens,
                max_tokens: tokens * dice.below(50) / 100,
            },
            fixed: Fixed {
                system: tokens * dice.below(if dice.one_in(20) { 200 } else { 10 }) / 100,
                tools: dice.below(200),
                pinned: dice.below(50),
            },
            settings: CompactionSettings {
                strategy: strategy[dice.below(5) as usize],
                keep_rounds: dice.one_in(3).then(|| dice.below(20) as u32),
                ..CompactionSettings::default()
            },
            pinned: (0..dice.below(3))
                .map(|n| format!("pinned line {n} 别忘了"))
                .collect(),
            force: dice.one_in(5),
            paid: dice.one_in(2),
            ready: dice.one_in(4),
        }
    }

    fn plan(&self, story: &Story) -> CompactionOutcome {
        plan(&Problem {
            history: &story.history,
            round_starts: &story.starts,
            fixed: self.fixed,
            window: self.window,
            settings: &self.settings,
            pinned: &self.pinned,
            count: &count,
            summary: &|hash| {
                self.ready.then(|| format!("summary of {hash}\n### Removed Messages\n- `y:0-1` 1 messages, up to round 1"))
            },
            may_summarize: Some(&|_| self.paid),
            seq_label: "77",
            force: self.force,
        })
    }

    fn total(&self, history: &History) -> u64 {
        self.fixed.system
            + self.fixed.tools
            + self.fixed.pinned
            + history.messages().iter().map(count).sum::<u64>()
    }
}

/// The user's text in a message, as the summary pair shows it.
fn asked(message: &Message) -> Option<String> {
    Some(one_line(&text_of(&message.blocks()), REQUEST_CHARS))
        .filter(|text| message.role() == Role::User && !text.is_empty())
}

fn check_plan(setup: &Setup, story: &Story, plan: &Plan) -> Story {
    let old = &story.history;
    let new = old.edited(&plan.edits).unwrap();
    assert_eq!(new.messages().first_fault(), None);
    assert_eq!(setup.total(old), plan.before_tokens);
    assert_eq!(setup.total(&new), plan.after_tokens);
    assert!(plan.after_tokens < plan.before_tokens);
    assert!(plan.after_tokens <= setup.window.limit());
    assert!(!plan.steps.is_empty() && plan.steps.is_sorted());

    // New messages: the pair, and results that were cleared.
    let old_messages: Vec<&Message> = old.messages().iter().collect();
    let mut at = 0;
    let mut gone: Vec<usize> = Vec::new();
    let mut pair: Vec<&Message> = Vec::new();
    let mut cleared = 0;
    for (index, edit) in plan.edits.iter().enumerate() {
        match edit {
            Edit::Keep(n) => at += *n as usize,
            Edit::Drop(n) => {
                gone.extend(at..at + *n as usize);
                at += *n as usize;
            }
            Edit::Replace(message) => {
                let was = old_messages[at];
                assert!(plan.steps.contains(&CompactionStep::Importance));
                assert_eq!(
                    (was.role(), message.role()),
                    (Role::Assistant, Role::Assistant)
                );
                assert!(was.tool_use_ids().is_empty());
                assert!(message.text().starts_with("[assistant] "));
                at += 1;
            }
            Edit::Put(message) if message.tool_result_ids().is_empty() => pair.push(message),
            Edit::Put(message) => {
                assert!(matches!(plan.edits[index - 1], Edit::Drop(_)));
                let was = old_messages[gone.pop().unwrap()];
                assert_eq!(was.tool_result_ids(), message.tool_result_ids());
                for (was, is) in was.blocks().into_iter().zip(message.blocks()) {
                    let (ContentBlock::ToolResult(was), ContentBlock::ToolResult(is)) = (&was, &is)
                    else {
                        assert_eq!(was, is, "only results are cleared");
                        continue;
                    };
                    assert_eq!(
                        (&was.tool_use_id, was.is_error),
                        (&is.tool_use_id, is.is_error)
                    );
                    if was.content != is.content {
                        let text = is.content.text();
                        assert!(text == CLEARED || text.starts_with("[Tool Result: "));
                        assert!(
                            !was.is_error || plan.steps.contains(&CompactionStep::CurrentRound)
                        );
                        cleared += 1;
                    }
                }
            }
        }
    }
    assert_eq!(plan.cleared_results, cleared);

    // Rounds begin where they began before; the last one is complete.
    assert!(plan.round_starts.iter().all(|start| {
        let message = new.messages().get(*start).unwrap();
        old_messages.contains(&message)
            && message.role() == Role::User
            && message.tool_result_ids().is_empty()
    }));
    let was = *story.starts.last().unwrap();
    let is = *plan.round_starts.last().unwrap();
    assert_eq!(old_messages.len() - was, new.messages().len() - is);
    assert_eq!(old_messages[was], new.messages().get(is).unwrap());
    if !plan.steps.contains(&CompactionStep::CurrentRound) {
        assert!(
            old.messages()
                .range(was..old_messages.len())
                .eq(new.messages().range(is..new.messages().len()))
        );
    }
    let last_said = |history: &History| history.messages().iter().rev().find_map(asked);
    assert_eq!(last_said(old), last_said(&new));

    let had_pair = old_messages
        .get(1)
        .is_some_and(|message| message.text() == ANSWER);
    assert_eq!(
        plan.summary_used,
        plan.steps.contains(&CompactionStep::Summary)
    );
    let Some(span) = &plan.dropped else {
        assert!(
            plan.summary_used || (pair.is_empty() && gone.is_empty()),
            "{plan:?}"
        );
        return Story {
            history: new,
            starts: plan.round_starts.clone(),
            ids: story.ids,
        };
    };
    let [summary, answer] = pair.as_slice() else {
        panic!("{pair:?}")
    };
    assert_eq!(
        [
            new.messages().get(0).unwrap(),
            new.messages().get(1).unwrap()
        ],
        [*summary, *answer]
    );
    assert_eq!(
        new.messages()
            .iter()
            .filter(|message| message.text() == ANSWER)
            .count(),
        1
    );
    assert!(
        !new.messages()
            .get(2)
            .is_some_and(|first| first.role() == Role::Assistant),
        "the kept part begins with a user message"
    );
    assert!(
        summary
            .text()
            .starts_with("## Previous Context Summary\n### Key Decisions\n")
    );
    assert!(
        setup
            .pinned
            .iter()
            .all(|line| summary.text().contains(&format!("\n- {line}\n")))
    );
    assert!(
        summary
            .text()
            .contains(&format!("`77:{}-{}`", span.from, span.to))
    );
    gone.retain(|index| !had_pair || *index >= 2);
    assert!(
        gone.iter()
            .all(|index| (span.from..span.to).contains(index)),
        "everything that is gone can be read again"
    );
    assert_eq!(span.messages as usize, gone.len());
    assert_eq!(
        span.hash,
        span_hash(old.messages().range(span.from..span.to))
    );
    let pair = SummaryPair::read(summary);
    assert!(pair.pointers.len() <= POINTERS_MAX);
    assert_eq!(
        pair.pointers.last().unwrap().pending.is_some(),
        plan.summarise
    );
    let asked: Vec<String> = gone
        .iter()
        .filter_map(|index| asked(old_messages[*index]))
        .collect();
    for (kept, asked) in pair.requests.iter().rev().zip(asked.iter().rev()) {
        assert!(
            asked.starts_with(kept.trim_end_matches("...").trim_end()),
            "{kept:?} {asked:?}"
        );
    }
    assert!(asked.is_empty() || !pair.requests.is_empty());
    Story {
        history: new,
        starts: plan.round_starts.clone(),
        ids: story.ids,
    }
}

/// Prints the seed of a failing case.
struct Case(u64);

impl Drop for Case {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "failed with seed {0}; replay it with CALLBOARD_SEED={0}",
                self.0
            );
        }
    }
}

fn seed(name: &str) -> u64 {
    let seed = std::env::var("CALLBOARD_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0x0c0f_fee0_u64);
    println!("{name}: CALLBOARD_SEED={seed}");
    seed
}

fn cases(gate: u64) -> u64 {
    TestSize::pick(gate / 10, gate, gate * 20)
}

#[test]
fn every_history_fits_its_outcome_and_loses_no_text_of_a_person() {
    let seed = seed("compaction");
    let mut seen = std::collections::BTreeMap::new();
    for case in 0..cases(5000) {
        let dice = Dice::new(seed.wrapping_add(case));
        let mut story = Story::generated(&dice);
        let total: u64 = story.history.messages().iter().map(count).sum();
        let mut setup = Setup::generated(&dice, total);
        let _case = Case(seed.wrapping_add(case));
        for generation in 0..=dice.below(3) {
            let verdict = setup.plan(&story);
            assert!(
                !dice.one_in(8) || setup.plan(&story) == verdict,
                "the same twice"
            );
            let mut note = |what: String| *seen.entry(what).or_insert(0_u32) += 1;
            match &verdict {
                CompactionOutcome::Fits { tokens } => {
                    note("fits".into());
                    assert_eq!(*tokens, setup.total(&story.history));
                    assert!(*tokens <= setup.window.limit());
                }
                CompactionOutcome::TooLarge {
                    part,
                    part_tokens,
                    tokens,
                    limit,
                } => {
                    note(format!("too large: {part}"));
                    assert!(tokens > limit && part_tokens <= tokens);
                    assert_eq!(*limit, setup.window.limit());
                }
                CompactionOutcome::Compacted(plan) => {
                    plan.steps.iter().for_each(|step| note(format!("{step:?}")));
                    note(format!("generation {generation}"));
                    story = check_plan(&setup, &story, plan);
                    if !setup.force && dice.one_in(2) {
                        let again = setup.plan(&story);
                        assert!(
                            matches!(again, CompactionOutcome::Fits { .. }) || setup.ready,
                            "twice in a row: {again:?}"
                        );
                    }
                }
            }
            for _ in 0..dice.below(4) {
                story.push_round(&dice, true);
            }
            setup.ready = dice.one_in(3);
            setup.force = dice.one_in(5);
        }
    }
    println!("{seen:#?}");
    for what in [
        "fits",
        "ToolResults",
        "Summary",
        "Extract",
        "Truncate",
        "OldestRounds",
        "CurrentRound",
        "generation 2",
    ] {
        assert!(seen.contains_key(what), "{what} was never seen: {seen:?}");
    }
    for part in ["system prompt", "tools", "pinned", "current round"] {
        assert!(
            seen.contains_key(&format!("too large: {part}")),
            "{part} was never too large: {seen:?}"
        );
    }
}

#[test]
fn a_history_may_be_cut_at_every_index() {
    let seed = seed("prefix");
    for case in 0..cases(250) {
        let dice = Dice::new(seed.wrapping_add(case));
        let story = Story::generated(&dice);
        for index in 0..=story.history.messages().len() + 1 {
            let (prefix, border) = story.history.prefix(index);

            assert_eq!(prefix.messages().first_fault(), None);
            assert_eq!(prefix.messages().len(), border);
            assert!(border <= index && index.min(story.history.messages().len()) - border <= 1);
            assert!(
                prefix
                    .messages()
                    .iter()
                    .eq(story.history.messages().range(0..border))
            );
        }
    }
}

#[test]
fn a_rewound_history_is_compacted_as_well_as_any() {
    let seed = seed("rewind");
    for case in 0..cases(100) {
        let dice = Dice::new(seed.wrapping_add(case));
        let mut story = Story::generated(&dice);
        let total: u64 = story.history.messages().iter().map(count).sum();
        let mut setup = Setup::generated(&dice, total);
        for _ in 0..4 {
            if let CompactionOutcome::Compacted(plan) = setup.plan(&story) {
                story = check_plan(&setup, &story, &plan);
            }
            let (prefix, border) = story
                .history
                .prefix(dice.below(story.history.messages().len() as u64 + 1) as usize);
            story.history = prefix;
            story.starts.retain(|start| *start < border);
            story.push_round(&dice, true);
            setup.ready = dice.one_in(2);
        }
    }
}

#[test]
fn three_hundred_rounds_in_a_small_window_always_fit() {
    let seed = seed("long life");
    for case in 0..cases(3) {
        let dice = Dice::new(seed.wrapping_add(case));
        let mut setup = Setup::generated(&dice, 0);
        setup.window = Window {
            tokens: 8000,
            max_tokens: 1000,
        };
        setup.fixed = Fixed {
            system: 300,
            tools: 200,
            pinned: 0,
        };
        setup.force = false;
        let mut story = Story::default();
        let mut compactions = 0;
        for round in 0..300 {
            story.starts.push(story.history.messages().len());
            story.push_user(&dice, 100);
            for _ in 0..dice.below(4) {
                story.push_exchange(&dice);
                setup.ready = dice.one_in(3);
                match setup.plan(&story) {
                    CompactionOutcome::Fits { tokens } => assert!(tokens <= 7000),
                    CompactionOutcome::Compacted(plan) => {
                        compactions += 1;
                        story = check_plan(&setup, &story, &plan);
                        setup.ready = false;
                        assert!(matches!(setup.plan(&story), CompactionOutcome::Fits { .. }));
                    }
                    // A single batch may be larger than the window.
                    CompactionOutcome::TooLarge {
                        part, part_tokens, ..
                    } => {
                        assert_eq!(part, "current round");
                        assert!(part_tokens > 4000, "round {round}: {part_tokens}");
                        story.history = story.history.prefix(*story.starts.last().unwrap() + 1).0;
                    }
                }
            }
            story
                .history
                .push_assistant(Message::assistant(dice.text(300)))
                .unwrap();
        }
        assert!((10..300).contains(&compactions), "{compactions}");
    }
}
