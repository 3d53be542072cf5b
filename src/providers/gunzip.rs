//! Decodes answers that a server compressed with gzip. Callboard does not ask for it, because
//! compression delays the events of a stream, but proxies compress unasked.

use std::io::{BufRead, ErrorKind, Read};

use callboard_actors::ports::ProviderError;
use flate2::bufread::MultiGzDecoder;
use http::{HeaderMap, header::CONTENT_ENCODING};

use super::errors;

/// Decoded bytes that are handed on at once. They bound the memory for an answer that decodes to a
/// thousand times its length.
const PIECE: usize = 16 * 1024;

/// A decoder that takes the bytes of an answer as they arrive.
pub(super) struct Gunzip(MultiGzDecoder<Arrived>);

/// Bytes that have arrived and were not decoded yet.
#[derive(Default)]
struct Arrived {
    bytes: Vec<u8>,
    at: usize,
    has_ended: bool,
}

impl Gunzip {
    /// Returns the decoder that the headers of an answer ask for; `None` if the body is plain.
    ///
    /// # Errors
    /// `Protocol` for a compression other than gzip.
    pub(super) fn of(headers: &HeaderMap) -> Result<Option<Self>, ProviderError> {
        let Some(encoding) = headers.get(CONTENT_ENCODING) else {
            return Ok(None);
        };
        match encoding.as_bytes().to_ascii_lowercase().as_slice() {
            b"identity" => Ok(None),
            b"gzip" | b"x-gzip" => Ok(Some(Self(MultiGzDecoder::new(Arrived::default())))),
            other => Err(errors::protocol(format_args!(
                "the server compressed its answer ({}), which was not asked for",
                errors::one_line(&String::from_utf8_lossy(other))
            ))),
        }
    }

    /// Decodes what has arrived and hands it on in pieces.
    pub(super) fn take(
        &mut self,
        bytes: &[u8],
        mut each: impl FnMut(&[u8]) -> Result<(), ProviderError>,
    ) -> Result<(), ProviderError> {
        let arrived = self.0.get_mut();
        arrived.bytes.drain(..arrived.at);
        arrived.at = 0;
        arrived.bytes.extend_from_slice(bytes);
        let mut piece = [0; PIECE];
        loop {
            match self.0.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(count) => each(piece.get(..count).unwrap_or_default())?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    return Err(errors::protocol("the compressed answer ends early"));
                }
                Err(_) => return Err(errors::protocol("the answer is no valid gzip")),
            }
        }
    }

    /// Checks that the compressed answer is complete.
    pub(super) fn finish(
        &mut self,
        each: impl FnMut(&[u8]) -> Result<(), ProviderError>,
    ) -> Result<(), ProviderError> {
        self.0.get_mut().has_ended = true;
        self.take(&[], each)
    }

    /// Decodes a whole body, up to `most` bytes. What is no gzip ends the text.
    pub(super) fn whole(mut self, body: &[u8], most: usize) -> Vec<u8> {
        let mut whole = Vec::new();
        // An error ends the text where it occurs: the body of a refusal is read by people.
        drop(self.take(body, |piece| {
            let room = most.saturating_sub(whole.len());
            whole.extend_from_slice(piece.get(..room).unwrap_or(piece));
            if whole.len() < most {
                Ok(())
            } else {
                Err(errors::protocol("the body is too long"))
            }
        }));
        whole
    }
}

impl Read for Arrived {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let count = self.fill_buf()?.read(into)?;
        self.consume(count);
        Ok(count)
    }
}

impl BufRead for Arrived {
    fn fill_buf(&mut self) -> std::io::Result<&[u8]> {
        match self.bytes.get(self.at..) {
            Some(rest) if !rest.is_empty() || self.has_ended => Ok(rest),
            _ => Err(ErrorKind::WouldBlock.into()),
        }
    }

    fn consume(&mut self, count: usize) {
        self.at = self.at.saturating_add(count).min(self.bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn gunzip() -> Gunzip {
        let headers = HeaderMap::from_iter([(CONTENT_ENCODING, "GZIP".parse().unwrap())]);
        Gunzip::of(&headers).unwrap().unwrap()
    }

    /// Compresses each part so that it can be decoded before the next one is written.
    fn gzip(parts: &[&str]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        for part in parts {
            encoder.write_all(part.as_bytes()).unwrap();
            encoder.flush().unwrap();
        }
        encoder.finish().unwrap()
    }

    #[test]
    fn events_are_decoded_as_they_arrive_wherever_the_bytes_are_cut() {
        let body = [
            gzip(&["data: one\n\n", "data: two\n\n"]),
            gzip(&["data: three\n\n"]),
        ]
        .concat();
        for cut in 0..body.len() {
            let mut decoder = gunzip();
            let mut seen = Vec::new();
            let (head, tail) = body.split_at(cut);
            for bytes in [head, tail] {
                decoder
                    .take(bytes, |piece| {
                        seen.extend_from_slice(piece);
                        Ok(())
                    })
                    .unwrap();
            }
            decoder.finish(|_| Ok(())).unwrap();
            assert_eq!(
                seen, b"data: one\n\ndata: two\n\ndata: three\n\n",
                "cut at {cut}"
            );
        }

        let flushed = gzip(&["data: one\n\n"]);
        let mut seen = 0;
        // The trailer of eight bytes is missing, and the event is there.
        let mut decoder = gunzip();
        let head = flushed.get(..flushed.len() - 8).unwrap();
        let count = |piece: &[u8]| {
            seen += piece.len();
            Ok(())
        };
        decoder.take(head, count).unwrap();
        assert_eq!(seen, 11);
        assert!(decoder.finish(|_| Ok(())).is_err(), "it ends early");
    }

    #[test]
    fn a_bomb_is_handed_on_in_small_pieces_and_other_codings_are_refused() {
        let bomb = gzip(&[&"0".repeat(16 << 20)]);
        let mut largest = 0;
        let stopped = gunzip().take(&bomb, |piece| {
            largest = largest.max(piece.len());
            Err(errors::protocol("enough"))
        });
        assert_eq!(stopped, Err(errors::protocol("enough")));
        assert!(bomb.len() < 32 * 1024 && largest <= PIECE, "{largest}");
        assert_eq!(gunzip().whole(&bomb, 1000).len(), 1000);
        assert_eq!(gunzip().whole(b"plain", 1000), b"");

        assert!(gunzip().take(b"data: no gzip\n\n", |_| Ok(())).is_err());
        let brotli = HeaderMap::from_iter([(CONTENT_ENCODING, "br".parse().unwrap())]);
        let refused = Gunzip::of(&brotli).err().unwrap().to_string();
        assert!(refused.contains("compressed its answer (br)"), "{refused}");
    }
}
