use super::*;
use crate::{
    testing::TestSize,
    tokens::{Encoder, Encoding},
};

const ENCODINGS: [Encoding; 2] = [Encoding::Cl100kBase, Encoding::O200kBase];

/// A seeded generator, so that a failure can be replayed.
struct Random(u64);

impl Random {
    fn below(&mut self, max: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % max
    }

    fn of<'a, T: ?Sized>(&mut self, items: &[&'a T]) -> &'a T {
        items[self.below(items.len())]
    }
}

/// The count of the whole text, without chunks.
fn whole(encoding: Encoding, text: &str) -> u64 {
    encoding.table().encode_ordinary(text).len() as u64
}

/// The number of chunks that end inside a piece.
fn hard_cuts(text: &str) -> u64 {
    let chunks: Vec<&str> = chunks(text).collect();
    chunks
        .windows(2)
        .filter(|pair| {
            !ends_a_piece(
                pair[0].chars().next_back().unwrap(),
                pair[1].chars().next().unwrap(),
            )
        })
        .count() as u64
}

const WORDS: &[&str] = &[
    "the ",
    "Counting",
    " tokens",
    "don't",
    " WE'LL",
    ", ",
    ".\n",
    "\n\n",
    "    let x = ",
    "fn main() {\r\n",
    "}\n",
    "1234567",
    " 3.14",
    "==",
    "!==",
    "\t",
    "//",
    "/* ",
    "汉字",
    "数据处理",
    "。",
    "，",
    "我们需要",
    "テスト",
    "の",
    "한국어",
    " 토큰",
    "Привет ",
    "мир",
    "नमस्ते ",
    "दुनिया",
    "สวัสดี",
    "مرحبا ",
    "é",
    "e\u{301}",
    "👍",
    "👩‍👩‍👧‍👦",
    "🎉 ",
    "<|endoftext|>",
    "a_b_c",
    "CamelCase",
    "https://example.com/a?b=c&d=e",
    "\"key\": ",
    "[1,2,3]",
    "—",
    "…",
    "\u{a0}",
    "\u{3000}",
    "'s",
    "'",
    "’t",
];

#[test]
fn chunks_joined_are_the_text_and_none_is_longer_than_the_bound() {
    let mut random = Random(3);
    let mut texts = vec![
        String::new(),
        "x".into(),
        "汉".repeat(CHUNK_BYTES),
        "x".repeat(CHUNK_BYTES + 1),
        "x".repeat(1_000_000),
    ];
    texts.extend((0..50).map(|_| (0..4_000).map(|_| random.of(WORDS)).collect()));
    for text in &texts {
        let chunks: Vec<&str> = chunks(text).collect();

        assert_eq!(chunks.concat(), *text);
        assert!(
            chunks
                .iter()
                .all(|chunk| !chunk.is_empty() && chunk.len() <= CHUNK_BYTES)
        );
        // Two neighboring chunks together exceed the size of one, so their number is bounded by the
        // length of the text.
        assert!(
            chunks.len() <= 2 + 2 * text.len() / (CHUNK_BYTES - 3),
            "{} chunks of {} bytes",
            chunks.len(),
            text.len()
        );
    }
}

#[test]
fn ordinary_text_has_the_count_of_the_whole() {
    for seed in 0..12 {
        let mut random = Random(seed);
        let text: String = (0..6_000).map(|_| random.of(WORDS)).collect();

        assert_eq!(hard_cuts(&text), 0, "seed {seed}");
        for encoding in ENCODINGS {
            assert_eq!(
                encoding.count_tokens(&text),
                whole(encoding, &text),
                "seed {seed}, {encoding:?}"
            );
        }
    }
    for text in [
        include_str!("tests.rs"),
        include_str!("../registry.rs"),
        include_str!("../encoder/vectors.jsonl"),
    ] {
        for encoding in ENCODINGS {
            assert_eq!(
                encoding.count_tokens(&text.repeat(3)),
                whole(encoding, &text.repeat(3))
            );
        }
    }
}

#[test]
fn a_cut_within_a_piece_costs_no_more_than_what_is_stated() {
    let mut random = Random(11);
    let mut worst = 0;
    let mut runs: Vec<String> = [
        "x",
        "ab",
        "0",
        "12",
        " ",
        "\n",
        " \n",
        "\t",
        "-",
        "=>",
        "─",
        "汉",
        "数据",
        "ก",
        "สวัสดี",
        "🎉",
        "👩‍👧",
        "é",
        "A",
        "aB",
        "ि",
        "\u{3000}",
        "/",
        "\r\n",
    ]
    .iter()
    .map(|unit| format!("{} end", unit.repeat(5 * CHUNK_BYTES / unit.len() + 7)))
    .collect();
    for alphabet in [
        "acgt",
        "abcdefghijklmnopqrstuvwxyz",
        "aAbBcCxXyYzZ",
        "0123456789",
        "+-*/=<>!?",
        " \n\t",
        "数据处理我们需要汉字的是不了",
        "กขคงสวัดีมา",
        "🎉👍🚀é",
    ] {
        let letters: Vec<String> = alphabet.chars().map(String::from).collect();
        let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
        runs.extend(
            (0..TestSize::pick(2, 6, 6))
                .map(|_| (0..5 * CHUNK_BYTES).map(|_| random.of(&letters)).collect()),
        );
    }
    for text in &runs {
        for encoding in ENCODINGS {
            let difference = encoding.count_tokens(text).abs_diff(whole(encoding, text));
            let cuts = hard_cuts(text);

            worst = worst.max(difference.div_ceil(cuts.max(1)));
            assert!(
                difference <= cuts * TOKENS_PER_HARD_CUT,
                "{encoding:?}: {difference} for {cuts} cuts in {:?}…",
                text.get(..8)
            );
        }
    }
    println!("worst: {worst} a cut");
}

#[test]
fn a_million_bytes_of_one_letter_are_counted_as_the_original_counts_them_but_for_the_cuts() {
    let text = "x".repeat(1_000_000);
    let cuts = hard_cuts(&text);

    assert_eq!(cuts, 1_000_000 / CHUNK_BYTES as u64);
    for encoding in ENCODINGS {
        let tokens = encoding.count_tokens(&text);
        assert!(
            tokens > 0 && tokens.abs_diff(1_000_000 / 8) <= cuts * TOKENS_PER_HARD_CUT,
            "{encoding:?}: {tokens}"
        );
    }
}
