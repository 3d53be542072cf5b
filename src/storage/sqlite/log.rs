//! Distinguishes a damaged write-ahead log from one that a crash cut short.
//!
//! SQLite reads its log up to the first frame whose checksum differs, and ignores the rest without
//! a word: right for the tail of a crash, and a silent loss of every later commit for a flipped bit.
//! Each frame names the log's generation (two salts), so frames behind the end show what happened:
//!
//! - A crash leaves part of one transaction, the last: it has at most one commit frame, with nothing
//!   of the generation behind it.
//! - A commit frame with more frames behind it belongs to a transaction that was complete when the
//!   next began. It was acknowledged, so the log is damaged.
//! - In the last transaction of the log, a frame that one flipped bit explains is damaged: a write
//!   that was cut short differs in more than a bit.
//!
//! What remains is damage of more than one bit in the last transaction: it looks as a crash does.
//!
//! The format: <https://sqlite.org/fileformat2.html#the_write_ahead_log>.

use std::{
    fs::File,
    io::{self, BufReader, Read},
    path::Path,
    time::Duration,
};

use rusqlite::{Connection, config::DbConfig};

/// Bytes of the log's header.
const HEADER: usize = 32;
/// Bytes of a frame's header.
const FRAME: usize = 24;
/// Magic number of the log, whose lowest bit says in which order checksums read their words.
const MAGIC: u32 = 0x377f_0682;
/// Bytes read from the file at once.
const BUFFER: usize = 256 * 1024;

/// How long emptying the log may block commits while it waits for a reader; after that it is tried
/// again later.
pub(super) const READERS_WAIT: Duration = Duration::from_millis(20);

/// Whether closing this connection, as the last one, leaves the log as it is. Otherwise SQLite
/// copies it into the database and removes it.
pub(super) fn keep(conn: &Connection, keep: bool) -> rusqlite::Result<()> {
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, keep)
        .map(drop)
}

/// What a log holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Log {
    /// Frames that SQLite takes: those up to the last whole commit.
    pub(super) taken: u64,
    /// What it lost, if it is damaged.
    pub(super) damage: Option<Damage>,
}

/// A loss of acknowledged commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Damage {
    /// The first bad frame; 0 for the header.
    pub(super) frame: u64,
    /// Commits behind it that can still be seen.
    pub(super) commits: u64,
}

/// Reads a log. One that is missing or empty holds nothing.
///
/// The caller holds the database's write lock, so that no other process writes meanwhile.
pub(super) fn inspect(path: &Path) -> io::Result<Log> {
    match File::open(path) {
        Ok(file) => read(BufReader::with_capacity(BUFFER, file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Log::default()),
        Err(error) => Err(error),
    }
}

fn read(mut log: impl Read) -> io::Result<Log> {
    let mut header = [0; HEADER];
    if !fill(&mut log, &mut header)? {
        return Ok(Log::default());
    }
    let Some(start) = Header::decode(&header) else {
        // SQLite writes and syncs the header before the first frame.
        return Ok(Log {
            taken: 0,
            damage: holds_anything(log)?.then_some(Damage {
                frame: 0,
                commits: 0,
            }),
        });
    };
    let mut bytes = vec![0; FRAME + start.page];
    let mut sum = start.sum;
    let mut taken = 0;
    let mut frame = 0;
    while fill(&mut log, &mut bytes)? {
        frame += 1;
        let Some(next) = start.follows(sum, &bytes) else {
            let damage = beyond(log, &start, sum, &mut bytes)?;
            return Ok(Log {
                taken,
                damage: damage.map(|commits| Damage { frame, commits }),
            });
        };
        sum = next;
        if word(&bytes, 4) != 0 {
            taken = frame;
        }
    }
    Ok(Log {
        taken,
        damage: None,
    })
}

/// Looks behind the first frame that does not follow, which is in `bytes`. Returns the number of
/// commits from there on if they were lost by damage.
fn beyond(
    mut log: impl Read,
    start: &Header,
    sum: Sum,
    bytes: &mut [u8],
) -> io::Result<Option<u64>> {
    let is_flipped = start.is_flipped(sum, bytes);
    let mut commits = 0;
    let mut is_proven = false;
    loop {
        if start.is_of(bytes) {
            is_proven |= commits > 0;
            commits += u64::from(word(bytes, 4) != 0);
        }
        if !fill(&mut log, bytes)? {
            return Ok((is_flipped || is_proven).then_some(commits));
        }
    }
}

/// Fills the buffer; `false` at the end of the file, also within a frame.
fn fill(log: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    match log.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether the rest of the file is more than zeros.
fn holds_anything(mut log: impl Read) -> io::Result<bool> {
    let mut bytes = [0; 8192];
    loop {
        match log.read(&mut bytes)? {
            0 => return Ok(false),
            read if bytes.iter().take(read).any(|byte| *byte != 0) => return Ok(true),
            _ => {}
        }
    }
}

/// The big-endian number at an offset; 0 behind the end.
fn word(bytes: &[u8], at: usize) -> u32 {
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk);
    found.map_or(0, |four| u32::from_be_bytes(*four))
}

/// A checksum: two sums, the second over the first.
type Sum = (u32, u32);

/// The log's header.
#[derive(Debug)]
struct Header {
    is_big_endian: bool,
    page: usize,
    salts: Sum,
    sum: Sum,
}

impl Header {
    /// Decodes a header; `None` for one that SQLite ignores.
    fn decode(bytes: &[u8; HEADER]) -> Option<Self> {
        let magic = word(bytes, 0);
        let page = word(bytes, 8);
        let is_page = page.is_power_of_two() && (512..=65536).contains(&page);
        if magic & !1 != MAGIC || !is_page {
            return None;
        }
        let mut header = Self {
            is_big_endian: magic & 1 == 1,
            page: usize::try_from(page).ok()?,
            salts: (word(bytes, 16), word(bytes, 20)),
            sum: (0, 0),
        };
        header.sum = header.add((0, 0), bytes.get(..HEADER - 8)?);
        (header.sum == (word(bytes, 24), word(bytes, 28))).then_some(header)
    }

    /// Adds bytes to a checksum.
    fn add(&self, sum: Sum, bytes: &[u8]) -> Sum {
        let (mut one, mut two) = sum;
        let (pairs, _) = bytes.as_chunks::<8>();
        for pair in pairs {
            let [a, b] = self.words(pair);
            one = one.wrapping_add(a).wrapping_add(two);
            two = two.wrapping_add(b).wrapping_add(one);
        }
        (one, two)
    }

    /// The two words of a pair, in the order of the machine that wrote the log.
    fn words(&self, pair: &[u8; 8]) -> [u32; 2] {
        let [a, b, c, d, e, f, g, h] = *pair;
        let pair = [[a, b, c, d], [e, f, g, h]];
        match self.is_big_endian {
            true => pair.map(u32::from_be_bytes),
            false => pair.map(u32::from_le_bytes),
        }
    }

    /// The checksum that a frame has after one whose checksum is `sum`.
    fn sum_of(&self, sum: Sum, frame: &[u8]) -> Sum {
        let (head, page) = frame.split_at(FRAME.min(frame.len()));
        let sum = self.add(sum, head.get(..8).unwrap_or_default());
        self.add(sum, page)
    }

    /// The frame's checksum, if SQLite takes the frame after one whose checksum is `sum`.
    fn follows(&self, sum: Sum, frame: &[u8]) -> Option<Sum> {
        let found = self.sum_of(sum, frame);
        let is_valid = word(frame, 0) != 0
            && (word(frame, 8), word(frame, 12)) == self.salts
            && (word(frame, 16), word(frame, 20)) == found;
        is_valid.then_some(found)
    }

    /// Whether a frame was written in this generation of the log. One salt is enough: the other may
    /// be damaged, and no other generation has either of them.
    fn is_of(&self, frame: &[u8]) -> bool {
        word(frame, 8) == self.salts.0 || word(frame, 12) == self.salts.1
    }

    /// Whether one flipped bit explains why a frame does not follow one whose checksum is `sum`.
    fn is_flipped(&self, sum: Sum, frame: &[u8]) -> bool {
        let kept = (word(frame, 16), word(frame, 20));
        let found = self.sum_of(sum, frame);
        let flips = |a: Sum, b: Sum| (a.0 ^ b.0).count_ones() + (a.1 ^ b.1).count_ones();
        let salts = flips((word(frame, 8), word(frame, 12)), self.salts);
        if salts > 1 {
            return false;
        }
        let sums = flips(kept, found);
        if salts + sums == 1 {
            return true;
        }
        // In the summed bytes, a bit changes its word by a power of two, and the sums by that times
        // the weights of the word: (1, 1) or (0, 1) in the last pair, and one step more for each pair
        // before it.
        let off = (kept.0.wrapping_sub(found.0), kept.1.wrapping_sub(found.1));
        let (mut first, mut second) = ((1_u32, 1_u32), (0_u32, 1_u32));
        let step = |(a, b): Sum| {
            let one = a.wrapping_add(b);
            (one, b.wrapping_add(one))
        };
        let (head, page) = frame.split_at(FRAME.min(frame.len()));
        let (pairs, _) = page.as_chunks::<8>();
        let (head, _) = head.get(..8).unwrap_or_default().as_chunks::<8>();
        salts == 0
            && pairs.iter().rev().chain(head.iter().rev()).any(|pair| {
                let [a, b] = self.words(pair);
                let found = explains(off, first, a) || explains(off, second, b);
                (first, second) = (step(first), step(second));
                found
            })
    }
}

/// Whether flipping one bit of a word with these weights changes the sums by `off`.
fn explains(off: Sum, weights: Sum, word: u32) -> bool {
    (0..u32::BITS).any(|bit| {
        let by = 1_u32 << bit;
        let change = if word & by == 0 {
            by
        } else {
            by.wrapping_neg()
        };
        (
            weights.0.wrapping_mul(change),
            weights.1.wrapping_mul(change),
        ) == off
    })
}

#[cfg(test)]
mod tests;
