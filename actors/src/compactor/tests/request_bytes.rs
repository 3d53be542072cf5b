//! The choice of attachments that are left out of a request, for generated histories.
//! `CALLBOARD_SEED=n` replays a run; `CALLBOARD_LONG=1` makes it twenty times as long.

use crate::testing::TestSize;
use crate::{
    chat::{
        Attachment, ContentBlock, Edit, History, Message, Role,
        attachment::{MediaKind, label},
    },
    compactor::RequestBytes,
    ports::{Capabilities, Entropy as _, LlmProvider},
    testing::{
        Reply, ScriptedModel, SeededEntropy,
        media::{padded_png, pdf},
    },
};

fn rules(max: u64) -> RequestBytes {
    RequestBytes {
        max: Some(max),
        images: true,
        documents: true,
    }
}

fn image(bytes: usize) -> ContentBlock {
    Attachment::sniffed(&padded_png(640, 480, bytes))
        .unwrap()
        .block()
}

fn prompt(blocks: Vec<ContentBlock>) -> Message {
    Message::new(Role::User, &blocks).unwrap()
}

/// One round for each of `images`, and an answer behind each but the last.
fn rounds(images: &[usize]) -> History {
    let mut history = History::default();
    for (number, bytes) in images.iter().enumerate() {
        if number > 0 {
            history.push_assistant(Message::assistant("yes")).unwrap();
        }
        let blocks = vec![image(*bytes), ContentBlock::text(format!("see {number}"))];
        history.push_user(prompt(blocks)).unwrap();
    }
    history
}

fn omitted(history: &History, rules: &RequestBytes, refused: Option<u64>) -> Option<History> {
    let start = history.messages().len().saturating_sub(1);
    let edits = rules.omit(history, refused, start, "7")?;
    Some(history.edited(&edits).unwrap())
}

/// The numbers of the messages that still have attachments.
fn shown(history: &History) -> Vec<usize> {
    let messages = history.messages().iter().enumerate();
    messages
        .filter(|(_, message)| !message.attached().is_empty())
        .map(|(index, _)| index)
        .collect()
}

#[test]
fn the_oldest_attachments_go_until_three_quarters_of_the_bound_are_left() {
    let history = rounds(&[30_000; 6]);
    let each = history.messages().get(0).unwrap().wire().len() as u64;
    let all = history.messages().wire_bytes() as u64;

    assert_eq!(omitted(&history, &rules(all), None), None, "it fits");
    let made = omitted(&history, &rules(all - 1), None).unwrap();

    assert_eq!(shown(&made), [4, 6, 8, 10], "two of six are a third");
    let left = made.messages().wire_bytes() as u64;
    assert!(left <= all / 4 * 3 && left > all / 4 * 3 - each, "{left}");
    assert_eq!(
        made.messages().get(2).unwrap().text(),
        "[image: 640x480 image/png, left out of the request because all attachments together are too large; `recall` with the span 7:2-3 brings it back]see 1"
    );
}

#[test]
fn what_the_user_just_attached_goes_only_if_the_request_does_not_fit_without_it() {
    let history = rounds(&[30_000, 30_000, 200_000]);
    let all = history.messages().wire_bytes() as u64;

    let made = omitted(&history, &rules(all - 1), None).unwrap();
    assert_eq!(shown(&made), [4], "the older ones are enough");

    let made = omitted(&history, &rules(100_000), None).unwrap();
    assert_eq!(shown(&made), [] as [usize; 0]);
    let mut many = History::default();
    many.push_user(prompt(vec![image(30_000); 4])).unwrap();
    let all = many.messages().wire_bytes() as u64;
    let made = omitted(&many, &rules(all - 1), None).unwrap();
    let kinds: Vec<_> = made.messages().get(0).unwrap().blocks();
    let kinds: Vec<_> = kinds.iter().map(ContentBlock::kind).collect();
    assert_eq!(kinds, ["text", "image", "image", "image"]);
}

#[test]
fn after_a_refusal_at_most_half_of_the_attachments_are_left() {
    let unbounded = RequestBytes {
        max: None,
        ..rules(0)
    };
    let history = rounds(&[30_000; 8]);
    let all = history.messages().wire_bytes() as u64;

    assert_eq!(omitted(&history, &unbounded, None), None);
    assert_eq!(
        omitted(&history, &unbounded, Some(all + 1)),
        None,
        "the history has become smaller since"
    );
    let made = omitted(&history, &unbounded, Some(all)).unwrap();
    assert_eq!(shown(&made).len(), 3, "with its notes, half would be more");

    let mut alone = History::default();
    alone.push_user(prompt(vec![image(30_000); 4])).unwrap();
    let all = alone.messages().wire_bytes() as u64;
    let made = omitted(&alone, &unbounded, Some(all)).unwrap();
    assert!(made.messages().get(0).unwrap().attached().len() <= 2);
}

#[test]
fn attachments_that_the_model_is_not_sent_do_not_count() {
    let blind = RequestBytes {
        images: false,
        ..rules(50_000)
    };
    let mut history = rounds(&[90_000; 3]);
    assert_eq!(omitted(&history, &blind, None), None);

    let document = Attachment::sniffed(&pdf(["x".repeat(60_000)])).unwrap();
    history.push_assistant(Message::assistant("yes")).unwrap();
    history
        .push_user(prompt(vec![document.block(), ContentBlock::text("read")]))
        .unwrap();
    let made = omitted(&history, &blind, None).unwrap();
    assert_eq!(shown(&made), [0, 2, 4], "the document alone was too large");
}

#[test]
fn a_bound_leaves_room_for_what_stands_beside_the_messages() {
    let model = ScriptedModel::always(Reply::text(""));
    let of = |request_bytes_max, fixed| {
        let capabilities = Capabilities {
            request_bytes_max,
            ..LlmProvider::capabilities(&model, "m")
        };
        RequestBytes::new(&capabilities, fixed).max
    };

    assert_eq!(of(None, 9), None);
    assert_eq!(of(Some(32_000_000), 0), Some(31_500_000));
    assert_eq!(of(Some(32_000_000), 100_000), Some(31_375_000));
    assert_eq!(of(Some(1000), 100_000), Some(0));
}

struct Dice(SeededEntropy);

impl Dice {
    fn below(&self, n: u64) -> u64 {
        u64::from_le_bytes(self.0.bytes()[..8].try_into().unwrap()) % n.max(1)
    }
}

/// A history of texts, images and documents, and where its last round begins.
fn story(dice: &Dice, messages: u64) -> (History, usize) {
    let mut history = History::default();
    let mut start = 0;
    for number in 0..messages {
        if number > 0 && dice.below(3) > 0 {
            let text = "a".repeat(dice.below(3000) as usize);
            history.push_assistant(Message::assistant(text)).unwrap();
        }
        start = if dice.below(4) == 0 {
            start
        } else {
            history.messages().len()
        };
        let mut blocks = vec![ContentBlock::text(format!("prompt {number}"))];
        for _ in 0..dice.below(4) {
            let bytes = dice.below(20_000) as usize;
            let place = dice.below(blocks.len() as u64 + 1) as usize;
            let block = match dice.below(5) {
                0 => Attachment::sniffed(&pdf(["x".repeat(bytes)]))
                    .unwrap()
                    .block(),
                _ => image(bytes),
            };
            blocks.insert(place, block);
        }
        history.push_user(prompt(blocks)).unwrap();
    }
    (history, start)
}

#[test]
fn every_request_fits_and_loses_nothing_but_its_oldest_attachments() {
    let replayed = std::env::var("CALLBOARD_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seeds = match replayed {
        Some(seed) => seed..seed + 1,
        None => 0..TestSize::pick(100, 200, 4000),
    };
    for seed in seeds {
        println!("CALLBOARD_SEED={seed}");
        let dice = Dice(SeededEntropy::new(seed));
        let messages = 1 + dice.below(12);
        let (history, start) = story(&dice, messages);
        let all = history.messages().wire_bytes() as u64;
        let rules = RequestBytes {
            max: (dice.below(8) > 0).then(|| dice.below(all + all / 4)),
            images: dice.below(6) > 0,
            documents: dice.below(6) > 0,
        };
        let refused = (dice.below(3) == 0).then(|| dice.below(all) + 1);
        check(&rules, &history, refused, start);
    }
}

fn check(rules: &RequestBytes, history: &History, refused: Option<u64>, start: usize) {
    let messages = history.messages();
    let sends = |kind| match kind {
        MediaKind::Image => rules.images,
        MediaKind::Document => rules.documents,
    };
    let edits = rules.omit(history, refused, start, "9");
    assert_eq!(
        edits,
        rules.omit(history, refused, start, "9"),
        "always the same"
    );
    let limit = rules.limit(refused);
    let too_large = limit.is_some_and(|limit| rules.sent(messages) > limit.bytes);
    assert_eq!(rules.exceeds(messages, refused), too_large);
    let has_any = messages
        .iter()
        .flat_map(Message::attached)
        .any(|attached| sends(attached.kind));
    assert_eq!(edits.is_some(), too_large && has_any);
    let (Some(edits), Some(limit)) = (edits, limit) else {
        return;
    };
    let moved = Edit::moves(&edits, messages.len());
    assert!(
        moved
            .iter()
            .flatten()
            .map(|to| *to as usize)
            .eq(0..messages.len())
    );
    let made = history.edited(&edits).unwrap();

    // Notes with a pointer stand where attachments were; everything else is as before.
    let mut kept_one = false;
    let mut is_left: Option<(usize, u32)> = None;
    for (index, (was, is)) in messages.iter().zip(made.messages().iter()).enumerate() {
        assert_eq!(was.blocks().len(), is.blocks().len());
        for (block, (was, is)) in was.blocks().iter().zip(is.blocks()).enumerate() {
            let block = block as u32;
            let sent = messages
                .get(index)
                .unwrap()
                .attached()
                .iter()
                .find(|attached| attached.block == block && sends(attached.kind));
            if *was == is {
                kept_one |= sent.is_some();
                is_left = is_left.or(sent.map(|_| (index, block)));
                continue;
            }
            assert!(sent.is_some() && !kept_one, "the oldest go first");
            let note = is.as_text().unwrap();
            assert!(note.contains(&label(was).unwrap()));
            assert!(
                note.contains(&format!("span 9:{index}-{} ", index + 1)),
                "{note}"
            );
        }
    }

    let left = rules.sent(made.messages());
    assert!(
        left < rules.sent(messages),
        "each plan makes the request smaller"
    );
    assert!(
        left <= limit.bytes || !kept_one,
        "it fits, or only text is left"
    );
    match is_left {
        Some((index, _)) if index < start => assert!(left <= limit.target),
        Some(_) => assert!(left <= limit.current_target),
        None => {}
    }
    assert_eq!(
        rules.omit(&made, refused, start, "9"),
        None,
        "what was decided stays"
    );
}
