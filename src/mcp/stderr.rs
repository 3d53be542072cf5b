//! Reads what a server's process writes to its standard error: logs it, and keeps the last line for
//! people.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    time::sleep_until,
};

use crate::{
    intake::{Intake, cost},
    mask::Masker,
    visible::visible_line,
};

/// Longest kept part of a line, in bytes, and of it, in characters, what is shown.
const LINE_BYTES_MAX: usize = 1024;
const LINE_CHARS_MAX: usize = 300;

/// Bytes that are read in a second, and how much at once after a pause; the end of a line counts as
/// many. A server that writes faster waits.
const BYTES_PER_SECOND: u64 = 1024 * 1024;
const BURST: Duration = Duration::from_secs(1);

/// Bytes of one read: hundreds of short lines, which are masked one by one where they are logged.
const READ_BYTES: usize = 1024;

/// The last line that a server wrote.
#[derive(Debug, Clone, Default)]
pub(super) struct LastLine(Arc<Mutex<Line>>);

/// A line as it came, and what masks it.
#[derive(Debug, Default)]
struct Line {
    bytes: Vec<u8>,
    masker: Arc<Masker>,
}

impl LastLine {
    /// The line, masked; empty without one.
    pub(super) fn shown(&self) -> String {
        let last = self.0.lock();
        shown(&last.bytes, &last.masker)
    }

    fn set(&self, line: &[u8], masker: &Arc<Masker>) {
        let mut last = self.0.lock();
        last.bytes.clear();
        last.bytes.extend_from_slice(line);
        last.masker = masker.clone();
    }
}

/// Masked before truncation, since half a secret would not be recognized, and after it, since
/// `visible_line` may join the parts of one.
fn shown(line: &[u8], masker: &Masker) -> String {
    let masked = masker.mask(&String::from_utf8_lossy(line));
    masker.mask(&visible_line(&masked, LINE_CHARS_MAX))
}

/// Reads to the end.
pub(super) async fn read(
    mut stream: impl AsyncRead + Unpin,
    server: Arc<str>,
    masker: Arc<Masker>,
    last: LastLine,
) {
    let pace = Intake::new(BYTES_PER_SECOND, BURST);
    let mut buffer = [0; READ_BYTES];
    let mut line = Vec::new();
    let end = |line: &mut Vec<u8>| {
        if !line.trim_ascii().is_empty() {
            if tracing::enabled!(tracing::Level::DEBUG) {
                let line = shown(line, &masker);
                tracing::debug!(%server, %line, "standard error of an MCP server");
            }
            last.set(line, &masker);
        }
        line.clear();
    };
    while let Ok(read) = stream.read(&mut buffer).await {
        let bytes = buffer.get(..read).unwrap_or_default();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let text = part.strip_suffix(b"\n").unwrap_or(part);
            let room = LINE_BYTES_MAX.saturating_sub(line.len());
            line.extend(text.iter().take(room));
            if text.len() < part.len() {
                end(&mut line);
            }
        }
        if read == 0 {
            end(&mut line);
            return;
        }
        sleep_until(pace.count(cost(bytes))).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncWriteExt as _, time::Instant};

    use super::*;

    async fn read_all(text: &[u8], masker: Masker) -> (String, Duration) {
        let (mut write, stream) = tokio::io::duplex(64 * 1024);
        let last = LastLine::default();
        let begun = Instant::now();
        let reading = read(stream, "s".into(), Arc::new(masker), last.clone());
        tokio::join!(reading, async move {
            write.write_all(text).await.unwrap();
        });
        (last.shown(), begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_line_is_kept_masked_and_short() {
        let masker = Masker::new(["not-a-real-secret".to_owned()]);
        let shown = async |text: &[u8]| read_all(text, masker.clone()).await.0;

        assert_eq!(shown(b"one\ntwo").await, "two");
        assert_eq!(shown(b"one\n \n\n").await, "one");
        let secret = shown(b"the key is not-a-real-secret\n").await;
        assert!(!secret.contains("not-a-real-secret"), "{secret}");
        let long = shown(&[b'x'; 5_000]).await;
        assert_eq!(long.chars().count(), LINE_CHARS_MAX + 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_floods_it_waits() {
        // A second's worth comes at once, the end of a line counts as a hundred bytes and more.
        let (last, took) = read_all(&b"e\n".repeat(100_000), Masker::default()).await;

        assert_eq!(last, "e");
        assert!(took > Duration::from_secs(10), "{took:?}");
        let (_, took) = read_all(&[b'x'; 1_000_000], Masker::default()).await;
        assert_eq!(took, Duration::ZERO);
    }
}
