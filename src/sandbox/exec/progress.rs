//! Progress lines of a running command for watchers: its latest line, at most every 500 ms. Pure
//! but for the clock it is given.

use std::time::{Duration, Instant};

use callboard_actors::ports::Progress;

/// Shortest time between two lines. A watcher can read a few lines a second, not thousands.
const PAUSE: Duration = Duration::from_millis(500);

/// Bytes of a line.
const LINE_BYTES_MAX: usize = 200;

/// The current line of one stream.
#[derive(Debug, Default)]
pub(super) struct Line {
    bytes: Vec<u8>,
    /// Whether the line was longer.
    cut: bool,
}

/// Selects the lines to send.
#[derive(Debug)]
pub(super) struct ProgressSender {
    progress: Progress,
    sent: Option<Instant>,
    latest: Option<Vec<u8>>,
}

impl ProgressSender {
    pub(super) fn new(progress: Progress) -> Self {
        Self {
            progress,
            sent: None,
            latest: None,
        }
    }

    /// Takes new output. Only its last complete line is kept.
    pub(super) fn push(&mut self, line: &mut Line, printed: &[u8]) {
        let mut parts = printed.rsplitn(3, |b| *b == b'\n');
        let rest = parts.next().unwrap_or_default();
        match (parts.next(), parts.next()) {
            (None, _) => return line.extend(rest),
            (Some(only), None) => line.extend(only),
            (Some(last), Some(_)) => {
                *line = Line::default();
                line.extend(last);
            }
        }
        let whole = std::mem::take(line).finish();
        if !whole.trim_ascii().is_empty() {
            self.latest = Some(whole);
        }
        line.extend(rest);
    }

    /// Whether a line waits to be sent.
    pub(super) fn has_line(&self) -> bool {
        self.latest.is_some()
    }

    /// Sends the latest line if it is due.
    pub(super) fn send_due(&mut self, now: Instant) {
        if self.sent.is_none_or(|sent| now >= sent + PAUSE)
            && let Some(line) = self.latest.take()
        {
            self.sent = Some(now);
            self.progress
                .report(String::from_utf8_lossy(&line).trim_end().to_owned());
        }
    }
}

impl Line {
    fn extend(&mut self, more: &[u8]) {
        let room = LINE_BYTES_MAX.saturating_sub(self.bytes.len());
        self.cut |= more.len() > room;
        self.bytes
            .extend_from_slice(more.get(..room).unwrap_or(more));
    }

    /// Drops a word that was cut as a whole, since half a key would escape masking. Drops control
    /// words as well.
    fn finish(mut self) -> Vec<u8> {
        if self.cut {
            let end = self
                .bytes
                .iter()
                .rposition(u8::is_ascii_whitespace)
                .unwrap_or(0);
            self.bytes.truncate(end);
            self.bytes.extend_from_slice(" …".as_bytes());
        }
        if self.bytes.contains(&0x1e) {
            Vec::new()
        } else {
            self.bytes
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[test]
    fn the_latest_whole_line_is_sent_at_most_twice_a_second() {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let sink = sent.clone();
        let mut sender = ProgressSender::new(Progress::new(move |line| sink.lock().push(line)));
        let mut line = Line::default();
        let start = Instant::now();

        sender.push(&mut line, b"half");
        sender.send_due(start);
        sender.push(&mut line, b" and half\n");
        sender.send_due(start);
        sender.push(&mut line, b"a\nb\n\nc");
        sender.send_due(start + Duration::from_millis(499));
        sender.push(&mut line, b"d\n");
        sender.send_due(start + Duration::from_millis(500));
        sender.push(&mut line, b"words and ");
        sender.push(&mut line, &[b'x'; 10_000]);
        sender.push(&mut line, b"\n");
        sender.send_due(start + Duration::from_millis(1000));

        assert_eq!(
            *sent.lock(),
            [
                "half and half".to_owned(),
                "cd".to_owned(),
                "words and …".to_owned()
            ]
        );
    }
}
