//! Finds the end of an answer's body (RFC 9112, §6 and §7) and removes the chunk framing. Pure.
//!
//! Promises: the output does not depend on how the bytes were split. A truncated body is never
//! accepted as complete. Framing that breaks the standard is refused, not guessed at. Extensions
//! and trailers are bounded.

/// Bytes of chunk extensions and trailers of one body. They are discarded.
const ASIDE_BYTES_MAX: usize = 16 * 1024;

/// The body breaks the rules of HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(in crate::providers::transport) enum Malformed {
    #[error("the size of a chunk is not valid")]
    Size,
    #[error("a chunk does not end where its size says")]
    Data,
    #[error("extensions and trailers are longer than {ASIDE_BYTES_MAX} bytes")]
    Aside,
    #[error("the connection was closed in the middle of the body")]
    Cut,
}

/// The effect of one call to [`Framing::take`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Taken {
    /// How many bytes of the body now stand at the front of the buffer.
    pub(super) body: usize,
    /// How many bytes were consumed. Less than the input only when the body has ended.
    pub(super) read: usize,
}

/// Follows a body to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Framing {
    state: State,
    aside: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// A body with a known length: the bytes that remain.
    Length(u64),
    /// A body that ends when the connection closes.
    UntilClose,
    /// Within the digits of a chunk's size.
    Size {
        size: u64,
        digits: u8,
    },
    /// Within the extension after a chunk's size.
    Extension {
        size: u64,
    },
    /// Before the line feed that ends a chunk's size.
    SizeEnd {
        size: u64,
    },
    /// Within a chunk: the bytes that remain.
    Chunk(u64),
    ChunkEnd,
    ChunkEndLf,
    /// At the start of a line after the last chunk.
    Trailer,
    InTrailer,
    /// Before the last line feed.
    LastLf,
    Done,
}

impl Framing {
    pub(super) fn none() -> Self {
        Self {
            state: State::Done,
            aside: 0,
        }
    }

    pub(super) fn length(bytes: u64) -> Self {
        Self {
            state: if bytes == 0 {
                State::Done
            } else {
                State::Length(bytes)
            },
            aside: 0,
        }
    }

    pub(super) fn chunked() -> Self {
        Self {
            state: State::Size { size: 0, digits: 0 },
            aside: 0,
        }
    }

    pub(super) fn until_close() -> Self {
        Self {
            state: State::UntilClose,
            aside: 0,
        }
    }

    /// Whether the body has ended.
    pub(super) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Records that the connection was closed.
    ///
    /// # Errors
    /// [`Malformed::Cut`] if the body had not ended.
    pub(super) fn close(&mut self) -> Result<(), Malformed> {
        match self.state {
            State::UntilClose | State::Done => {
                self.state = State::Done;
                Ok(())
            }
            State::Length(_)
            | State::Size { .. }
            | State::Extension { .. }
            | State::SizeEnd { .. }
            | State::Chunk(_)
            | State::ChunkEnd
            | State::ChunkEndLf
            | State::Trailer
            | State::InTrailer
            | State::LastLf => Err(Malformed::Cut),
        }
    }

    /// Moves the bytes of the body to the front, so that they are contiguous.
    ///
    /// # Errors
    /// [`Malformed`]; no more bytes of the body may be taken after that.
    pub(super) fn take(&mut self, bytes: &mut [u8]) -> Result<Taken, Malformed> {
        let mut read = 0;
        let mut body = 0;
        while read < bytes.len() {
            match self.state {
                State::Done => break,
                State::UntilClose => {
                    (read, body) = (bytes.len(), bytes.len());
                }
                State::Length(left) | State::Chunk(left) => {
                    let here = usize::try_from(left)
                        .unwrap_or(usize::MAX)
                        .min(bytes.len() - read);
                    if read != body {
                        bytes.copy_within(read..read + here, body);
                    }
                    (read, body) = (read + here, body + here);
                    let left = left - here as u64;
                    self.state = match self.state {
                        State::Chunk(_) if left == 0 => State::ChunkEnd,
                        State::Chunk(_) => State::Chunk(left),
                        _ if left == 0 => State::Done,
                        _ => State::Length(left),
                    };
                }
                _ => {
                    let Some(byte) = bytes.get(read) else { break };
                    self.state = self.mark(*byte)?;
                    read += 1;
                }
            }
        }
        Ok(Taken { body, read })
    }

    /// Handles one byte of framing, which is not part of the body.
    fn mark(&mut self, byte: u8) -> Result<State, Malformed> {
        let state = match (self.state, byte) {
            (State::Size { size, digits }, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F')
                if digits < 15 =>
            {
                let digit = char::from(byte).to_digit(16).ok_or(Malformed::Size)?;
                State::Size {
                    size: (size << 4) | u64::from(digit),
                    digits: digits + 1,
                }
            }
            (State::Size { size, digits: 1.. }, b'\r') => State::SizeEnd { size },
            (State::Size { size, digits: 1.. }, b';' | b' ' | b'\t') => State::Extension { size },
            (State::Extension { size }, b'\r') => State::SizeEnd { size },
            (State::Extension { .. }, b'\n') => return Err(Malformed::Size),
            (State::Extension { size }, _) => self.aside(State::Extension { size })?,
            (State::SizeEnd { size: 0 }, b'\n') => State::Trailer,
            (State::SizeEnd { size }, b'\n') => State::Chunk(size),
            (State::Size { .. } | State::SizeEnd { .. }, _) => return Err(Malformed::Size),
            (State::ChunkEnd, b'\r') => State::ChunkEndLf,
            (State::ChunkEndLf, b'\n') => State::Size { size: 0, digits: 0 },
            (State::ChunkEnd | State::ChunkEndLf, _) => return Err(Malformed::Data),
            (State::Trailer, b'\r') => State::LastLf,
            (State::LastLf, b'\n') => State::Done,
            (State::LastLf, _) => return Err(Malformed::Data),
            (State::InTrailer, b'\n') => State::Trailer,
            (State::Trailer | State::InTrailer, _) => self.aside(State::InTrailer)?,
            (state @ (State::Length(_) | State::Chunk(_) | State::UntilClose | State::Done), _) => {
                state
            }
        };
        Ok(state)
    }

    fn aside(&mut self, next: State) -> Result<State, Malformed> {
        self.aside += 1;
        if self.aside > ASIDE_BYTES_MAX {
            Err(Malformed::Aside)
        } else {
            Ok(next)
        }
    }
}

/// The body, whether it ended, and the bytes after it.
#[cfg(any(test, feature = "fuzzing"))]
type Followed = Result<(Vec<u8>, bool, Vec<u8>), Malformed>;

#[cfg(any(test, feature = "fuzzing"))]
fn follow<'a>(mut framing: Framing, pieces: impl IntoIterator<Item = &'a [u8]>) -> Followed {
    let mut body = Vec::new();
    let mut rest = Vec::new();
    for piece in pieces {
        let mut piece = piece.to_vec();
        let taken = framing.take(&mut piece)?;
        body.extend_from_slice(piece.get(..taken.body).unwrap_or_default());
        rest.extend_from_slice(piece.get(taken.read..).unwrap_or_default());
    }
    Ok((body, framing.is_done(), rest))
}

/// A chunked body is the same however it is split.
#[cfg(any(test, feature = "fuzzing"))]
pub(in crate::providers) fn fuzz(data: &[u8]) {
    let whole = follow(Framing::chunked(), [data]);
    assert_eq!(follow(Framing::chunked(), data.chunks(1)), whole);
    assert_eq!(follow(Framing::chunked(), data.chunks(7)), whole);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::providers::testing::{SplitMix, random_splits, seed};

    fn check(framing: Framing, bytes: &[u8], expected: Followed) {
        assert_eq!(
            follow(framing, [bytes]),
            expected,
            "whole: {}",
            String::from_utf8_lossy(bytes)
        );
        // Bytes after the end are counted from where the end was noticed.
        assert_eq!(
            follow(framing, bytes.chunks(1)),
            expected,
            "byte by byte: {}",
            String::from_utf8_lossy(bytes)
        );
    }

    #[test]
    fn each_kind_of_body_ends_where_the_standard_says() {
        let whole =
            |body: &str, rest: &str| Ok((body.as_bytes().to_vec(), true, rest.as_bytes().to_vec()));
        check(Framing::length(3), b"abcd", whole("abc", "d"));
        check(Framing::length(0), b"d", whole("", "d"));
        check(Framing::none(), b"d", whole("", "d"));
        check(
            Framing::chunked(),
            b"3\r\nabc\r\n0\r\n\r\nHTTP",
            whole("abc", "HTTP"),
        );
        check(
            Framing::chunked(),
            b"00A ;x=\"y\"\r\n0123456789\r\n1\r\n-\r\n000\r\nx-sum: 1\r\ny: 2\r\n\r\n",
            whole("0123456789-", ""),
        );
        check(
            Framing::until_close(),
            b"abc",
            Ok((b"abc".to_vec(), false, vec![])),
        );
        check(
            Framing::chunked(),
            b"3\r\nabc\r\n0\r\n",
            Ok((b"abc".to_vec(), false, vec![])),
        );
    }

    #[test]
    fn marks_that_break_the_rules_are_refused() {
        for bytes in [
            "\r\n",
            "g\r\n",
            "-1\r\n",
            "3\nabc",
            "3\r\r",
            ";\r\n",
            "3;a\nabc",
            "0123456789abcdef\r\n",
        ] {
            check(Framing::chunked(), bytes.as_bytes(), Err(Malformed::Size));
        }
        for bytes in ["3\r\nabcd\r\n", "3\r\nabc\n", "3\r\nabc\rx", "0\r\n\rx"] {
            check(Framing::chunked(), bytes.as_bytes(), Err(Malformed::Data));
        }
        for before in ["1;", "0\r\nx: "] {
            let endless = format!("{before}{}", "x".repeat(ASIDE_BYTES_MAX + 2));
            assert_eq!(
                follow(Framing::chunked(), [endless.as_bytes()]),
                Err(Malformed::Aside)
            );
        }
    }

    #[test]
    fn a_cut_body_is_never_taken_for_a_whole_one() {
        let bytes = b"3\r\nabc\r\n0\r\nx: y\r\n\r\n";
        for end in 0..bytes.len() {
            let mut framing = Framing::chunked();
            framing.take(&mut bytes[..end].to_vec()).unwrap();
            assert_eq!(framing.close(), Err(Malformed::Cut), "{end}");
        }
        assert_eq!(Framing::length(1).close(), Err(Malformed::Cut));
        assert_eq!(Framing::until_close().close(), Ok(()));
    }

    #[test]
    fn a_chunked_body_does_not_depend_on_its_chunks_or_on_how_it_was_split() {
        let seed = seed("chunked splits");
        let mut random = SplitMix(seed);
        for _ in 0..500 {
            let body: Vec<u8> = (0..random.below(2000))
                .map(|_| b"\r\n0a;x"[random.below(6)])
                .collect();
            let mut wire = Vec::new();
            for chunk in random_splits(&body, &mut random) {
                wire.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                wire.extend_from_slice(chunk);
                wire.extend_from_slice(b"\r\n");
            }
            wire.extend_from_slice(b"0\r\n\r\n");

            let expected = Ok((body, true, vec![]));
            assert_eq!(
                follow(Framing::chunked(), [wire.as_slice()]),
                expected,
                "seed {seed}"
            );
            assert_eq!(
                follow(Framing::chunked(), random_splits(&wire, &mut random)),
                expected,
                "seed {seed}"
            );
        }
    }

    #[test]
    fn any_bytes_are_followed_alike_however_they_are_split() {
        let seed = seed("chunked noise");
        let mut random = SplitMix(seed);
        for _ in 0..5000 {
            let wire: Vec<u8> = (0..random.below(60))
                .map(|_| b"0123af;\r\n\r\n x"[random.below(13)])
                .collect();

            let whole = follow(Framing::chunked(), [wire.as_slice()]);

            assert_eq!(
                follow(Framing::chunked(), random_splits(&wire, &mut random)),
                whole,
                "seed {seed}: {wire:?}"
            );
        }
    }
}
