//! The tables of the built-in encodings. tiktoken-rs embeds them as text that is four times as large;
//! its functions that read that text are used in tests only, so the program does not hold it.
//!
//! A table lists its tokens in the order of their ranks. It begins with the 256 tokens of one byte.
//! Every further token joins two earlier ones, whose places in the table follow in 18 bits each.
//!
//! Pure.

use std::sync::LazyLock;

use tiktoken_rs::{
    CoreBPE, ENDOFPROMPT, ENDOFTEXT, FIM_MIDDLE, FIM_PREFIX, FIM_SUFFIX, O200K_BASE_PAT_STR, Rank,
};

/// r50k_base is the beginning of p50k_base.
const P50K: &[u8] = include_bytes!("tables/p50k.bin");
const CL100K: &[u8] = include_bytes!("tables/cl100k.bin");
const O200K: &[u8] = include_bytes!("tables/o200k.bin");

/// How a text is divided before pairs are merged.
const P50K_PIECES: &str =
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s";
const CL100K_PIECES: &str = concat!(
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+|",
    r" ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
);

/// The special token between the tokens of p50k_base, and the first rank without one.
const P50K_SPECIAL: Rank = 50_256;
const P50K_RANKS: Rank = 50_281;

pub(super) static R50K_BASE: LazyLock<CoreBPE> = LazyLock::new(|| {
    let special = [(ENDOFTEXT, P50K_SPECIAL)];
    table(P50K, 0..P50K_SPECIAL, &special, P50K_PIECES)
});

pub(super) static P50K_BASE: LazyLock<CoreBPE> =
    LazyLock::new(|| p50k(&[(ENDOFTEXT, P50K_SPECIAL)]));

pub(super) static P50K_EDIT: LazyLock<CoreBPE> = LazyLock::new(|| {
    p50k(&[
        (ENDOFTEXT, P50K_SPECIAL),
        (FIM_PREFIX, 50_281),
        (FIM_MIDDLE, 50_282),
        (FIM_SUFFIX, 50_283),
    ])
});

pub(super) static CL100K_BASE: LazyLock<CoreBPE> = LazyLock::new(|| {
    let special = [
        (ENDOFTEXT, 100_257),
        (FIM_PREFIX, 100_258),
        (FIM_MIDDLE, 100_259),
        (FIM_SUFFIX, 100_260),
        (ENDOFPROMPT, 100_276),
    ];
    table(CL100K, 0..100_256, &special, CL100K_PIECES)
});

pub(super) static O200K_BASE: LazyLock<CoreBPE> =
    LazyLock::new(|| o200k(&[(ENDOFTEXT, 199_999), (ENDOFPROMPT, 200_018)]));

pub(super) static O200K_HARMONY: LazyLock<CoreBPE> = LazyLock::new(|| {
    const NAMED: [(&str, Rank); 9] = [
        ("<|startoftext|>", 199_998),
        (ENDOFTEXT, 199_999),
        ("<|return|>", 200_002),
        ("<|constrain|>", 200_003),
        ("<|channel|>", 200_005),
        ("<|start|>", 200_006),
        ("<|end|>", 200_007),
        ("<|message|>", 200_008),
        ("<|call|>", 200_012),
    ];
    let is_named = |rank: &Rank| NAMED.iter().any(|(_, named)| named == rank);
    let reserved: Vec<(String, Rank)> = (200_000..=201_087)
        .filter(|rank| !is_named(rank))
        .map(|rank| (format!("<|reserved_{rank}|>"), rank))
        .collect();
    let reserved = reserved.iter().map(|(name, rank)| (name.as_str(), *rank));
    o200k(&NAMED.into_iter().chain(reserved).collect::<Vec<_>>())
});

fn p50k(special: &[(&str, Rank)]) -> CoreBPE {
    let ranks = (0..P50K_RANKS).filter(|rank| *rank != P50K_SPECIAL);
    table(P50K, ranks, special, P50K_PIECES)
}

fn o200k(special: &[(&str, Rank)]) -> CoreBPE {
    table(O200K, 0..199_998, special, O200K_BASE_PAT_STR)
}

/// As many tokens of a table as there are ranks.
fn table(
    packed: &[u8],
    ranks: impl Iterator<Item = Rank>,
    special: &[(&str, Rank)],
    pieces: &str,
) -> CoreBPE {
    let special = special
        .iter()
        .map(|(name, rank)| ((*name).to_owned(), *rank));
    let tokens = tokens(packed).into_iter().zip(ranks).collect();
    match CoreBPE::new(tokens, special.collect(), pieces) {
        Ok(table) => table,
        Err(error) => unreachable!("an expression of this file: {error}"),
    }
}

/// The tokens of a table. The last may be filling: four places have nine bytes.
fn tokens(packed: &[u8]) -> Vec<Vec<u8>> {
    let (single, joined) = packed.split_at(256);
    let mut tokens: Vec<Vec<u8>> = single.iter().map(|byte| vec![*byte]).collect();
    for places in joined.chunks_exact(9) {
        let places = places
            .iter()
            .fold(0_u128, |places, byte| places << 8 | u128::from(*byte));
        for [first, second] in [[54, 36], [18, 0]] {
            let earlier = |shift: u32| {
                let place = (places >> shift) as usize & 0x3_FFFF;
                tokens.get(place).map(Vec::as_slice).unwrap_or_default()
            };
            let token = [earlier(first), earlier(second)].concat();
            tokens.push(token);
        }
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Beyond the last token of every table.
    const RANKS: std::ops::Range<Rank> = 0..201_100;

    #[test]
    fn each_token_and_each_division_of_a_text_is_that_of_tiktoken_rs() {
        let text =
            "It's 12345 o'CLOCK, isn't it?\r\n\n  Größe: 北京 привет 🙂\t \u{200d}fn main() {}  ";
        for (ours, original) in [
            (&R50K_BASE, tiktoken_rs::r50k_base_singleton()),
            (&P50K_BASE, tiktoken_rs::p50k_base_singleton()),
            (&P50K_EDIT, tiktoken_rs::p50k_edit_singleton()),
            (&CL100K_BASE, tiktoken_rs::cl100k_base_singleton()),
            (&O200K_BASE, tiktoken_rs::o200k_base_singleton()),
            (&O200K_HARMONY, tiktoken_rs::o200k_harmony_singleton()),
        ] {
            for rank in RANKS {
                let (ours, original) = (ours.decode_bytes(&[rank]), original.decode_bytes(&[rank]));
                assert_eq!(ours.ok(), original.ok(), "{rank}");
            }
            assert_eq!(ours.special_tokens(), original.special_tokens());
            for text in [text, include_str!("tables.rs")] {
                assert_eq!(ours.encode_ordinary(text), original.encode_ordinary(text));
            }
        }
    }
}
