use std::io::Cursor;

use super::*;

const PAGE: usize = 512;
/// Bytes of a stored frame.
const STEP: usize = FRAME + PAGE;

/// A log of transactions with these numbers of frames, in one generation.
struct Writer {
    header: Header,
    bytes: Vec<u8>,
    sum: Sum,
}

impl Writer {
    fn new(salts: Sum) -> Self {
        let mut bytes = Vec::new();
        for number in [MAGIC, 3_007_000, PAGE as u32, 0, salts.0, salts.1] {
            bytes.extend(number.to_be_bytes());
        }
        let header = Header {
            is_big_endian: false,
            page: PAGE,
            salts,
            sum: (0, 0),
        };
        let sum = header.add((0, 0), &bytes);
        for number in [sum.0, sum.1] {
            bytes.extend(number.to_be_bytes());
        }
        Self { header, bytes, sum }
    }

    fn frame(&mut self, is_commit: bool) {
        let number = (self.bytes.len() / STEP) as u32 + 1;
        let mut frame = vec![0; STEP];
        frame[..4].copy_from_slice(&number.to_be_bytes());
        frame[4..8].copy_from_slice(&(u32::from(is_commit) * number).to_be_bytes());
        frame[8..12].copy_from_slice(&self.header.salts.0.to_be_bytes());
        frame[12..16].copy_from_slice(&self.header.salts.1.to_be_bytes());
        for (at, byte) in frame[FRAME..].iter_mut().enumerate() {
            let mixed = number.wrapping_add(self.header.salts.1);
            *byte = (at as u8).wrapping_mul(31).wrapping_add(mixed as u8);
        }
        self.sum = self.header.sum_of(self.sum, &frame);
        frame[16..20].copy_from_slice(&self.sum.0.to_be_bytes());
        frame[20..24].copy_from_slice(&self.sum.1.to_be_bytes());
        self.bytes.extend(frame);
    }

    fn commit(&mut self, frames: usize) {
        for left in (0..frames).rev() {
            self.frame(left == 0);
        }
    }
}

fn log(transactions: &[usize]) -> Vec<u8> {
    let mut writer = Writer::new((7, 0x1234_5678));
    transactions
        .iter()
        .for_each(|frames| writer.commit(*frames));
    writer.bytes
}

fn found(bytes: &[u8]) -> Log {
    read(Cursor::new(bytes)).unwrap()
}

fn whole(taken: u64) -> Log {
    Log {
        taken,
        damage: None,
    }
}

#[test]
fn a_log_that_was_cut_anywhere_is_torn_and_not_damaged() {
    let bytes = log(&[2, 3, 1]);
    let at = |frames: usize| HEADER + frames * STEP;

    for end in 0..=bytes.len() {
        let taken = match end {
            _ if end >= at(6) => 6,
            _ if end >= at(5) => 5,
            _ if end >= at(2) => 2,
            _ => 0,
        };
        assert_eq!(found(&bytes[..end]), whole(taken), "{end}");
    }
}

#[test]
fn every_flipped_bit_is_damage() {
    let bytes = log(&[2, 3, 1]);

    // A usual run flips one bit of each byte, and another one of the next.
    let step = callboard_actors::testing::TestSize::pick(9, 1, 1);
    for bit in (0..bytes.len() * 8).step_by(step) {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let found = found(&flipped);
        // Bytes 4 to 8 and 12 to 16 of the header are summed too, so each bit of it counts.
        assert!(found.damage.is_some(), "bit {bit}: {found:?}");
    }
}

#[test]
fn a_lost_page_is_damage_if_a_later_commit_began() {
    let zeroed = |frame: usize| {
        let mut bytes = log(&[2, 3, 1]);
        let from = HEADER + frame * STEP;
        bytes[from + FRAME..from + STEP].fill(0);
        found(&bytes)
    };

    for frame in 0..5 {
        let damage = zeroed(frame).damage.unwrap();
        assert_eq!(damage.frame, frame as u64 + 1);
        assert!(damage.commits >= 1, "{damage:?}");
    }
    assert_eq!(zeroed(5), whole(5), "the last transaction may be torn");
}

#[test]
fn frames_of_an_earlier_generation_or_of_a_dropped_transaction_are_no_damage() {
    let mut old = Writer::new((6, 0x9999_0000));
    (0..6).for_each(|_| old.commit(1));
    let mut bytes = log(&[2, 1]);
    let end = bytes.len();
    bytes.extend(&old.bytes[end..]);
    assert_eq!(
        found(&bytes),
        whole(3),
        "an earlier generation lies beneath"
    );

    // A header of the new generation over a page of the old one: the process ended in between.
    let mut torn = log(&[2, 1, 1]);
    torn.truncate(end + FRAME);
    torn.extend(&old.bytes[end + FRAME..]);
    assert_eq!(found(&torn), whole(3));

    // A large transaction was dropped after its frames were written; a short one went over them.
    let mut dropped = Writer::new((7, 0x1234_5678));
    dropped.commit(1);
    let kept = (dropped.bytes.clone(), dropped.sum);
    (0..5).for_each(|_| dropped.frame(false));
    let left = dropped.bytes;
    let mut writer = Writer {
        bytes: kept.0,
        sum: kept.1,
        header: dropped.header,
    };
    writer.commit(2);
    let end = writer.bytes.len();
    writer.bytes.extend(&left[end..]);
    assert_eq!(found(&writer.bytes), whole(3));
}

#[test]
fn an_empty_file_and_one_of_zeros_hold_nothing() {
    for bytes in [&[0; 0][..], &[0; HEADER], &[0; 5000]] {
        assert_eq!(found(bytes), whole(0));
    }
}
