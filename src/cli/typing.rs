//! What a person types while a round runs: whole lines wait in a queue for their turn, the
//! unfinished one is seen below the answer.

use std::{
    collections::VecDeque,
    fs::File,
    io::Read as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::mpsc;

use super::{
    continued::continues,
    markdown::{Line, Span, Style},
    typed::{Keys, is_readable, is_readable_within},
};

/// Lines that wait; a person who types more has to wait too.
const LINES_MAX: usize = 16;

/// Bytes of the unfinished line.
const LINE_BYTES_MAX: usize = 16 * 1024;

/// Reads of the terminal that are not handled yet.
const READS_MAX: usize = 64;

/// Characters of a waiting line that are shown.
const SHOWN_CHARS: usize = 60;

/// An Escape that nothing follows within this time is the key, not the beginning of another key.
const ALONE: Duration = Duration::from_millis(50);

/// What was typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Typed {
    /// Something that changes the lines, or nothing.
    Text,
    /// The key Escape by itself.
    Escape,
    /// Ctrl-O: the whole output of the last call is wanted.
    Unfold,
}

/// Lines that were typed ahead.
#[derive(Debug, Default)]
pub(super) struct Typing {
    bytes: Vec<u8>,
    waiting: VecDeque<String>,
    /// How much of a sequence of a key, such as an arrow, was read.
    escape: Escape,
    reader: Option<Reader>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Escape {
    #[default]
    None,
    Begun,
    Sequence,
}

/// The thread that reads the terminal.
#[derive(Debug)]
struct Reader {
    reads: mpsc::Receiver<Vec<u8>>,
    is_over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.reads.close();
        self.end();
    }
}

impl Reader {
    /// What was read and not handled yet.
    fn take_read(&mut self, rest: &mut Vec<u8>) {
        while let Ok(bytes) = self.reads.try_recv() {
            rest.extend(bytes);
        }
    }

    /// Ends the thread. The terminal has its usual modes again within 100 ms.
    fn end(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Reads what was typed, up to the end of a key. `None` if the terminal is gone.
pub(super) fn read_keys(terminal: &mut File) -> Option<Vec<u8>> {
    let mut keys = Vec::new();
    loop {
        let mut bytes = [0; 1024];
        match terminal.read(&mut bytes) {
            Ok(0) | Err(_) => return None,
            Ok(read) => keys.extend_from_slice(bytes.get(..read)?),
        }
        let may_go_on = keys.last() == Some(&0x1b) && keys.len() < LINE_BYTES_MAX;
        if !may_go_on || !is_readable_within(terminal, ALONE) {
            return Some(keys);
        }
    }
}

impl Typing {
    /// Begins to read the terminal.
    pub(super) fn listen(&mut self) {
        if self.reader.is_some() {
            return;
        }
        let Ok(mut terminal) = File::open("/dev/tty") else {
            return;
        };
        let (sender, reads) = mpsc::channel(READS_MAX);
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        // Reads of the terminal cannot be cancelled, so a plain thread polls it.
        let thread = std::thread::spawn(move || {
            let Some(_keys) = Keys::of(&terminal) else {
                return;
            };
            while !over.load(Ordering::Relaxed) {
                if !is_readable(&terminal) {
                    continue;
                }
                let sent = read_keys(&mut terminal).map(|bytes| sender.blocking_send(bytes));
                if !matches!(sent, Some(Ok(()))) {
                    return;
                }
            }
        });
        self.reader = Some(Reader {
            reads,
            is_over,
            thread: Some(thread),
        });
    }

    /// Whether the terminal is read.
    pub(super) fn is_listening(&self) -> bool {
        self.reader.is_some()
    }

    /// Stops reading, because the terminal is needed for a question or a prompt.
    pub(super) fn pause(&mut self) {
        if let Some(mut reader) = self.reader.take() {
            let mut rest = Vec::new();
            reader.take_read(&mut rest); // Room for the last read of the thread.
            reader.end();
            reader.take_read(&mut rest);
            self.take(&rest);
        }
    }

    /// Waits for keys and handles them. Never returns while nothing reads the terminal.
    ///
    /// # Cancel safety
    /// Cancel safe: keys that arrive while no future waits are handled by the next call.
    pub(super) async fn typed(&mut self) -> Typed {
        let read = match &mut self.reader {
            Some(reader) => reader.reads.recv().await,
            None => None,
        };
        match read {
            Some(bytes) => self.take(&bytes),
            None => std::future::pending().await,
        }
    }

    /// Takes keys as [`read_keys`] returns them.
    fn take(&mut self, bytes: &[u8]) -> Typed {
        let mut typed = Typed::Text;
        for byte in bytes {
            match (self.escape, *byte) {
                (Escape::None, 0x1b) => self.escape = Escape::Begun,
                (Escape::Begun, b'[' | b'O') => self.escape = Escape::Sequence,
                (Escape::Begun, 0x1b) => typed = Typed::Escape, // Twice.
                (Escape::Begun, _) => self.escape = Escape::None,
                (Escape::Sequence, 0x40..=0x7e) => self.escape = Escape::None,
                (Escape::Sequence, _) => {}
                (Escape::None, b'\n' | b'\r') => self.line_ends(),
                (Escape::None, 0x08 | 0x7f) => self.erase(),
                (Escape::None, 0x15) => self.bytes.clear(),
                (Escape::None, 0x0f) => typed = Typed::Unfold,
                (Escape::None, 0x00..0x20) => {}
                (Escape::None, byte) if self.bytes.len() < LINE_BYTES_MAX => self.bytes.push(byte),
                (Escape::None, _) => {}
            }
        }
        if self.escape == Escape::Begun {
            self.escape = Escape::None;
            typed = Typed::Escape;
        }
        typed
    }

    fn line_ends(&mut self) {
        let line = self.unfinished();
        if continues(&line) {
            self.bytes.pop();
            self.bytes.push(b'\n');
            return;
        }
        if line.trim().is_empty() || self.waiting.len() >= LINES_MAX {
            return;
        }
        self.bytes.clear();
        self.waiting.push_back(line);
    }

    /// Removes the last character.
    fn erase(&mut self) {
        while let Some(byte) = self.bytes.pop() {
            if byte & 0xc0 != 0x80 {
                break;
            }
        }
    }

    fn unfinished(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    /// The next line that was typed ahead.
    pub(super) fn next(&mut self) -> Option<String> {
        self.waiting.pop_front()
    }

    /// Takes the line that has no end yet, so that it can be edited at the prompt.
    pub(super) fn take_unfinished(&mut self) -> Option<String> {
        let line = self.unfinished();
        self.bytes.clear();
        Some(line).filter(|line| !line.is_empty())
    }

    /// Forgets the waiting lines, because the person interrupts.
    pub(super) fn forget(&mut self) -> usize {
        let count = self.waiting.len();
        self.waiting.clear();
        count
    }

    /// What is shown below the answer: the waiting lines on one row, and the unfinished one.
    pub(super) fn rows(&self) -> Vec<Line> {
        let mut rows = Vec::new();
        if let Some(next) = self.waiting.front() {
            let text: String = next
                .chars()
                .take(SHOWN_CHARS)
                .map(|c| on_one_row(&c))
                .collect();
            let more = match self.waiting.len() - 1 {
                0 => String::new(),
                more => format!("  and {more} more"),
            };
            rows.push(vec![Span::new(
                &format!("  queued: {text}{more}"),
                Style::DIM,
            )]);
        }
        if !self.bytes.is_empty() {
            let line: Vec<char> = self.unfinished().chars().collect();
            // The end of the line is where the person types.
            let tail = line.get(line.len().saturating_sub(SHOWN_CHARS)..);
            let text: String = tail.unwrap_or_default().iter().map(on_one_row).collect();
            rows.push(vec![
                Span::new("> ", Style::BOLD),
                Span::new(&(text + "▏"), Style::PLAIN),
            ]);
        }
        rows
    }
}

/// A character as a row shows it: a line break is a sign.
fn on_one_row(c: &char) -> char {
    match c {
        '\n' => '⏎',
        c => *c,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::markdown::text_of;

    fn shown(typing: &Typing) -> Vec<String> {
        typing.rows().iter().map(|row| text_of(row)).collect()
    }

    #[test]
    fn lines_typed_ahead_wait_in_order_and_are_seen() {
        let mut typing = Typing::default();
        for piece in ["one\ntw", "oX\u{7f}\n\n", "\u{1b}[Athr\u{1b}OB", "ée\u{7f}"] {
            typing.take(piece.as_bytes());
        }

        assert_eq!(shown(&typing), ["  queued: one  and 1 more", "> thré▏"]);
        assert_eq!(typing.next().as_deref(), Some("one"));
        assert_eq!(typing.next().as_deref(), Some("two"));
        assert_eq!(typing.next(), None);
        assert_eq!(typing.take_unfinished().as_deref(), Some("thré"));
        assert!(typing.rows().is_empty());
    }

    #[test]
    fn a_line_typed_ahead_goes_on_behind_one_backslash() {
        let mut typing = Typing::default();
        typing.take(b"one\\\ntwo");
        assert_eq!(shown(&typing), ["> one⏎two▏"]);
        typing.take(b"\n");

        assert_eq!(shown(&typing), ["  queued: one⏎two"]);
        assert_eq!(typing.next().as_deref(), Some("one\ntwo"));
    }

    #[test]
    fn escape_alone_is_a_key_and_the_beginning_of_another_is_not() {
        let mut typing = Typing::default();
        for (keys, typed) in [
            ("\u{1b}", Typed::Escape),
            ("ab\u{1b}\u{1b}", Typed::Escape),
            ("\u{1b}[A\u{1b}OB\u{1b}x", Typed::Text),
            ("\u{1b}[", Typed::Text),
            ("5~c", Typed::Text),
            ("\u{f}", Typed::Unfold),
        ] {
            assert_eq!(typing.take(keys.as_bytes()), typed, "{keys:?}");
        }

        assert_eq!(typing.take_unfinished().as_deref(), Some("abc"));
    }

    #[test]
    fn the_queue_is_bounded_and_loses_no_line_that_does_not_fit() {
        let mut typing = Typing::default();
        for number in 0..40 {
            typing.take(format!("{number}\n").as_bytes());
        }

        let first: Vec<String> = std::iter::from_fn(|| typing.next()).collect();
        assert_eq!(first.len(), LINES_MAX);
        assert!(typing.take_unfinished().unwrap().starts_with("1617"));
    }
}
