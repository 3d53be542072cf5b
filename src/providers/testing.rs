//! Shared by the unit tests of this folder: seeded randomness and random splits.

use callboard_actors::ports::{ModelEvent, ProviderError};

use super::Assemble;

/// A small random generator (splitmix64). A test prints its seed, which replays a failure.
pub(crate) struct SplitMix(pub(crate) u64);

impl SplitMix {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound.max(1) as u64).unwrap()
    }
}

/// The seed of a property test: `CALLBOARD_SEED`, else the time. It is printed, so that a failing
/// test shows it.
pub(crate) fn seed(name: &str) -> u64 {
    let now = || {
        u64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() & u128::from(u64::MAX))
            .unwrap()
    };
    let seed = std::env::var("CALLBOARD_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(now);
    println!("{name}: CALLBOARD_SEED={seed}");
    seed
}

pub(crate) fn random_splits<'a>(bytes: &'a [u8], random: &mut SplitMix) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let most = if random.below(4) == 0 { 3 } else { 200 };
        let (piece, after) = rest.split_at((1 + random.below(most)).min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces
}

/// Writes the same events as another server would: other line ends, no blank after a field's name,
/// comments.
pub(crate) fn in_another_hand(stream: &[u8], random: &mut SplitMix) -> Vec<u8> {
    const HANDS: [(&str, &str); 4] = [
        ("\r\n", "data: "),
        ("\r", "data: "),
        ("\n", "data:"),
        ("\n", ": x\ndata: "),
    ];
    let (end, field) = HANDS[random.below(HANDS.len())];
    let lines =
        stream
            .split(|byte| *byte == b'\n')
            .map(|line| match line.strip_prefix(b"data: ") {
                Some(data) => [field.as_bytes(), data].concat(),
                None => line.to_vec(),
            });
    lines.collect::<Vec<_>>().join(end.as_bytes())
}

/// Feeds pieces. Adjacent pieces of text are joined, since only they depend on the splits. Early
/// reports of usage are left out: the completion repeats them.
pub(crate) fn assemble<'a>(
    mut assembler: impl Assemble,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<ModelEvent>, Result<(), ProviderError>) {
    let mut out = Vec::new();
    let mut ended = Ok(());
    for piece in pieces {
        ended = ended.and_then(|()| assembler.feed(piece, &mut out));
    }
    let ended = ended.and_then(|()| {
        if assembler.is_complete() {
            Ok(())
        } else {
            assembler.finish(&mut out)
        }
    });
    let mut joined: Vec<ModelEvent> = Vec::new();
    for event in out {
        match (joined.last_mut(), event) {
            (Some(ModelEvent::Text(all)), ModelEvent::Text(text))
            | (Some(ModelEvent::Thinking(all)), ModelEvent::Thinking(text)) => {
                all.push_str(&text);
            }
            (_, ModelEvent::Usage(_)) => {}
            (_, event) => joined.push(event),
        }
    }
    (joined, ended)
}

/// Texts as models write them: plain, escaped, in every script, and some that look like the
/// protocol.
pub(crate) fn random_text(random: &mut SplitMix) -> String {
    const ATOMS: [&str; 12] = [
        "Hello",
        " wor",
        "ld",
        "\"",
        "\\",
        "\n",
        "漢字",
        "é",
        "\u{1F5FC}",
        "{\"}",
        "\u{7f}",
        "\t",
    ];
    let kinds = if random.below(3) == 0 { ATOMS.len() } else { 3 };
    (0..random.below(5))
        .map(|_| ATOMS[random.below(kinds)])
        .collect()
}
