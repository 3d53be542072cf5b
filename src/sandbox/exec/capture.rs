//! Buffers the output of a command: keeps the beginning and the end of a stream in bounded memory
//! and counts the bytes between. Pure.

use std::collections::VecDeque;

/// How far a cut may move back to the nearest white space. Masking looks for whole keys, so a cut
/// must not leave half of one.
const WORD_BYTES_MAX: usize = 1024;

/// Output of a command on one stream.
#[derive(Debug)]
pub(super) struct Capture {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    head_max: usize,
    tail_max: usize,
    total: u64,
}

impl Capture {
    /// Keeps at most `bytes_max` bytes, half of them from each end.
    pub(super) fn new(bytes_max: usize) -> Self {
        let head_max = bytes_max / 2;
        Self {
            head: Vec::new(),
            tail: VecDeque::new(),
            head_max,
            tail_max: bytes_max - head_max,
            total: 0,
        }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.total = self.total.saturating_add(bytes.len() as u64);
        let (head, rest) = bytes.split_at(bytes.len().min(self.head_max - self.head.len()));
        self.head.extend_from_slice(head);
        let rest = rest
            .get(rest.len().saturating_sub(self.tail_max)..)
            .unwrap_or_default();
        let over = (self.tail.len() + rest.len()).saturating_sub(self.tail_max);
        self.tail.drain(..over);
        self.tail.extend(rest);
    }

    /// Bytes received, kept or not.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Returns the text, with a marker where it was cut, and the number of bytes left out.
    pub(super) fn finish(self) -> (String, u64) {
        let mut head = self.head;
        let mut tail = Vec::from(self.tail);
        let mut left_out = self.total - head.len() as u64 - tail.len() as u64;
        if left_out == 0 {
            head.append(&mut tail);
            return (text(&head), 0);
        }
        let blank = |b: &u8| b.is_ascii_whitespace();
        if let Some(back) = head.iter().rev().take(WORD_BYTES_MAX).position(blank) {
            head.truncate(head.len() - back);
            left_out += back as u64;
        }
        if let Some(on) = tail.iter().take(WORD_BYTES_MAX).position(blank) {
            tail.drain(..on);
            left_out += on as u64;
        }
        (
            format!(
                "{}\n[… {left_out} bytes left out …]\n{}",
                text(&head).trim_end_matches('\n'),
                text(&tail).trim_start_matches('\n')
            ),
            left_out,
        )
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_output_is_whole_and_long_output_keeps_both_ends() {
        let mut short = Capture::new(8);
        short.push(b"abc");
        short.push(b"defgh");
        let mut long = Capture::new(16);
        (0..1000).for_each(|n| long.push(format!("{n} ").as_bytes()));

        assert_eq!(short.finish(), ("abcdefgh".to_owned(), 0));
        assert_eq!(
            long.finish(),
            (
                "0 1 2 3 \n[… 3877 bytes left out …]\n 999 ".to_owned(),
                3877
            )
        );
    }

    #[test]
    fn memory_is_bounded_and_a_word_at_the_cut_goes_whole() {
        let mut capture = Capture::new(64);
        capture.push(b"start password=");
        capture.push(&[b'x'; 100_000]);
        capture.push(b" end");

        assert!(capture.head.len() <= 32 && capture.tail.len() <= 32);
        assert_eq!(
            capture.finish().0,
            "start \n[… 100009 bytes left out …]\n end"
        );
    }
}
