//! Decodes server-sent events. Pure: no I/O, no clock.
//!
//! Promises: the events do not depend on how the bytes were split. No event and no line is longer
//! than [`SSE_EVENT_BYTES_MAX`]. An event that lies whole in one read is not copied.

use callboard_actors::limits::SSE_EVENT_BYTES_MAX;
use memchr::memchr2;

/// One event. The fields `id` and `retry` are ignored, because a model call is never resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SseEvent<'a> {
    /// The `event` field; empty if absent.
    pub name: &'a [u8],
    /// The `data` lines, joined by line feeds.
    pub data: &'a [u8],
}

/// An event grew beyond [`SSE_EVENT_BYTES_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event is longer than {SSE_EVENT_BYTES_MAX} bytes")]
pub struct SseTooLong;

/// Decodes a stream that arrives in pieces.
#[derive(Debug, Default)]
pub struct SseDecoder {
    /// The start of a line whose end has not arrived.
    line: Vec<u8>,
    /// Data of the event whose end has not arrived.
    data: Vec<u8>,
    has_data: bool,
    name: Vec<u8>,
    /// The last read ended in CR: a LF that comes next belongs to it.
    after_cr: bool,
    /// Whether the first line was seen, and with it a byte order mark.
    begun: bool,
}

impl SseDecoder {
    /// Creates a decoder at the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes of the event whose end has not arrived.
    pub(super) fn kept_bytes(&self) -> usize {
        self.line.len() + self.data.len()
    }

    /// Takes bytes and calls `sink` for every event that they complete.
    ///
    /// # Errors
    /// [`SseTooLong`], or the error of `sink`. The decoder must not be used after an error.
    pub fn feed<E: From<SseTooLong>>(
        &mut self,
        bytes: &[u8],
        sink: &mut impl FnMut(SseEvent<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut rest = bytes;
        while !rest.is_empty() {
            rest = self.feed_event(rest, sink)?;
        }
        Ok(())
    }

    /// Whether the next bytes begin an event: no part of one was read yet.
    pub(super) fn is_between_events(&self) -> bool {
        self.begun
            && !self.after_cr
            && !self.has_data
            && self.line.is_empty()
            && self.name.is_empty()
    }

    /// As [`SseDecoder::feed`], but stops where the next event may begin. Returns the remaining
    /// bytes.
    ///
    /// # Errors
    /// As [`SseDecoder::feed`].
    pub(super) fn feed_event<'a, E: From<SseTooLong>>(
        &mut self,
        bytes: &'a [u8],
        sink: &mut impl FnMut(SseEvent<'_>) -> Result<(), E>,
    ) -> Result<&'a [u8], E> {
        let mut rest = bytes;
        if self.after_cr && !rest.is_empty() {
            self.after_cr = false;
            rest = rest.strip_prefix(b"\n").unwrap_or(rest);
        }
        while let Some(end) = memchr2(b'\n', b'\r', rest) {
            let (line, tail) = rest.split_at(end);
            rest = match tail {
                [b'\r', b'\n', after @ ..] => after,
                [b'\r'] => {
                    self.after_cr = true;
                    &[]
                }
                [_, after @ ..] => after,
                [] => &[],
            };
            if !self.line.is_empty() {
                self.keep_line(line)?;
                let mut whole = std::mem::take(&mut self.line);
                let taken = self.take_line(&whole, sink);
                whole.clear();
                self.line = whole;
                taken?;
            } else if let Some(after) = self.whole_event(line, rest, sink)? {
                rest = after;
            } else {
                self.take_line(line, sink)?;
            }
            if self.is_between_events() {
                return Ok(rest);
            }
        }
        self.keep_line(rest)?;
        Ok(&[])
    }

    /// Ends the stream. Unlike a browser, this accepts an event without its final line end: some
    /// servers omit it, and an event that was cut is not valid JSON.
    ///
    /// # Errors
    /// As [`SseDecoder::feed`].
    pub fn finish<E: From<SseTooLong>>(
        &mut self,
        sink: &mut impl FnMut(SseEvent<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let line = std::mem::take(&mut self.line);
        if !line.is_empty() {
            self.take_line(&line, sink)?;
        }
        self.take_line(&[], sink)
    }

    /// The common case: one data line and the empty line after it in the same read. Returns the
    /// bytes after them.
    fn whole_event<'a, E: From<SseTooLong>>(
        &mut self,
        line: &[u8],
        after: &'a [u8],
        sink: &mut impl FnMut(SseEvent<'_>) -> Result<(), E>,
    ) -> Result<Option<&'a [u8]>, E> {
        if self.has_data || !self.begun || line.len() > SSE_EVENT_BYTES_MAX {
            return Ok(None);
        }
        let Some(data) = line.strip_prefix(b"data:") else {
            return Ok(None);
        };
        let Some(after) = after
            .strip_prefix(b"\n")
            .or_else(|| after.strip_prefix(b"\r\n"))
        else {
            return Ok(None);
        };
        let result = sink(SseEvent {
            name: &self.name,
            data: data.strip_prefix(b" ").unwrap_or(data),
        });
        self.name.clear();
        result.map(|()| Some(after))
    }

    fn keep_line(&mut self, bytes: &[u8]) -> Result<(), SseTooLong> {
        if self.line.len() + bytes.len() > SSE_EVENT_BYTES_MAX {
            return Err(SseTooLong);
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn take_line<E: From<SseTooLong>>(
        &mut self,
        line: &[u8],
        sink: &mut impl FnMut(SseEvent<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if line.len() > SSE_EVENT_BYTES_MAX {
            return Err(SseTooLong.into());
        }
        let line = if std::mem::replace(&mut self.begun, true) {
            line
        } else {
            line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line)
        };
        if line.is_empty() {
            let result = if self.has_data {
                sink(SseEvent {
                    name: &self.name,
                    data: &self.data,
                })
            } else {
                Ok(())
            };
            self.has_data = false;
            self.data.clear();
            self.name.clear();
            return result;
        }
        let (field, value) = match memchr::memchr(b':', line) {
            Some(at) => (
                line.get(..at).unwrap_or_default(),
                line.get(at + 1..).unwrap_or_default(),
            ),
            None => (line, &[][..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => {
                if self.data.len() + value.len() >= SSE_EVENT_BYTES_MAX {
                    return Err(SseTooLong.into());
                }
                if std::mem::replace(&mut self.has_data, true) {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(value);
            }
            b"event" => {
                self.name.clear();
                self.name.extend_from_slice(value);
            }
            // A comment (an empty field name) or a field that is not needed.
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::providers::testing::{SplitMix, random_splits, seed};

    type Owned = Vec<(String, String)>;

    fn decode<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Owned, Result<(), SseTooLong>) {
        let mut events = Owned::new();
        let mut decoder = SseDecoder::new();
        let mut sink = |event: SseEvent<'_>| {
            events.push((
                String::from_utf8_lossy(event.name).into_owned(),
                String::from_utf8_lossy(event.data).into_owned(),
            ));
            Ok(())
        };
        let mut ended = Ok(());
        for piece in pieces {
            ended = ended.and_then(|()| decoder.feed(piece, &mut sink));
        }
        ended = ended.and_then(|()| decoder.finish(&mut sink));
        (events, ended)
    }

    fn check(stream: &[u8], expected: &[(&str, &str)]) {
        let expected: Owned = expected
            .iter()
            .map(|(name, data)| ((*name).into(), (*data).into()))
            .collect();

        assert_eq!(decode([stream]), (expected.clone(), Ok(())), "whole");
        assert_eq!(decode(stream.chunks(1)), (expected, Ok(())), "byte by byte");
    }

    #[test]
    fn fields_comments_and_line_ends_are_read_as_the_standard_says() {
        check(
            b"data: a\n\ndata: b\r\n\r\ndata: c\r\rdata:d\n\n",
            &[("", "a"), ("", "b"), ("", "c"), ("", "d")],
        );
        check(
            b"\xef\xbb\xbfevent: x\ndata: 1\n\ndata: 2\n\n",
            &[("x", "1"), ("", "2")],
        );
        check(
            b": ping\n\nevent: only a name\n\nid: 7\nretry: 3\ndata\n\n",
            &[("", "")],
        );
        check(b"data: one\ndata:  two\ndata:\n\n", &[("", "one\n two\n")]);
        check(
            "data: 汉字 \u{1F5FC}\n\n".as_bytes(),
            &[("", "汉字 \u{1F5FC}")],
        );
        check(
            b"\n\n\ndata: last line end is missing",
            &[("", "last line end is missing")],
        );
    }

    #[test]
    fn events_do_not_depend_on_how_the_bytes_were_split() {
        const ATOMS: [&str; 14] = [
            "data: ",
            "data:",
            "event: ",
            "\n",
            "\r",
            "\r\n",
            "\n\n",
            "\r\n\r\n",
            ": c",
            "{\"a\":\"é漢\"}",
            "x",
            " ",
            "id: 1",
            "\u{feff}",
        ];
        let seed = seed("sse splits");
        let mut random = SplitMix(seed);
        for _ in 0..2000 {
            let stream: String = (0..random.below(30))
                .map(|_| ATOMS[random.below(ATOMS.len())])
                .collect();
            let whole = decode([stream.as_bytes()]);

            assert_eq!(
                decode(stream.as_bytes().chunks(1)),
                whole,
                "seed {seed}, byte by byte: {stream:?}"
            );
            assert_eq!(
                decode(random_splits(stream.as_bytes(), &mut random)),
                whole,
                "seed {seed}: {stream:?}"
            );
        }
    }

    #[test]
    fn an_endless_line_or_event_is_refused_after_the_events_before_it() {
        let line = [
            b"data: ok\n\ndata: ".as_slice(),
            &vec![b'x'; SSE_EVENT_BYTES_MAX + 1],
        ]
        .concat();
        let lines = [
            b"data: ok\n\n".as_slice(),
            &b"data: 0123456789\n".repeat(SSE_EVENT_BYTES_MAX / 10),
        ]
        .concat();

        for stream in [line, lines] {
            let expected = (vec![(String::new(), "ok".to_owned())], Err(SseTooLong));
            assert_eq!(decode([stream.as_slice()]), expected);
            assert_eq!(decode(stream.chunks(65_537)), expected);
        }
    }
}
