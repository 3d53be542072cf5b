//! Decodes answers that a server compressed with gzip. Callboard does not ask for it, because
//! compression delays the events of a stream, but proxies compress unasked.

use std::io::{BufRead, ErrorKind, Read};

use callboard_actors::ports::ProviderError;
use flate2::bufread::MultiGzDecoder;
use http::{HeaderMap, header::CONTENT_ENCODING};

use super::errors;

/// Decoded bytes that are handed on at once. They bound the memory for an answer that decodes to a
/// thousand times its length.
pub(super) const PIECE: usize = 16 * 1024;

/// A decoder that takes the bytes of an answer as they arrive.
pub(super) struct Gunzip {
    decoder: MultiGzDecoder<Arrived>,
    /// Whether everything that has arrived is decoded.
    is_drained: bool,
}

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
            b"gzip" | b"x-gzip" => Ok(Some(Self {
                decoder: MultiGzDecoder::new(Arrived::default()),
                is_drained: true,
            })),
            other => Err(errors::protocol(format_args!(
                "the server compressed its answer ({}), which was not asked for",
                errors::one_line(&String::from_utf8_lossy(other))
            ))),
        }
    }

    /// Takes bytes that arrived.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let arrived = self.decoder.get_mut();
        arrived.bytes.drain(..arrived.at);
        arrived.at = 0;
        arrived.bytes.extend_from_slice(bytes);
        self.is_drained = false;
    }

    /// Takes the end of the compressed answer.
    pub(super) fn end(&mut self) {
        self.decoder.get_mut().has_ended = true;
        self.is_drained = false;
    }

    pub(super) fn is_drained(&self) -> bool {
        self.is_drained
    }

    /// Decodes the next piece of what has arrived; `None` when more has to arrive, or at the end.
    ///
    /// # Errors
    /// `Protocol` for what is no gzip, or ends early.
    pub(super) fn next<'a>(
        &mut self,
        piece: &'a mut [u8; PIECE],
    ) -> Result<Option<&'a [u8]>, ProviderError> {
        if self.is_drained {
            return Ok(None);
        }
        match self.decoder.read(piece) {
            Ok(count) if count > 0 => return Ok(piece.get(..count)),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                return Err(errors::protocol("the compressed answer ends early"));
            }
            Err(_) => return Err(errors::protocol("the answer is no valid gzip")),
        }
        self.is_drained = true;
        Ok(None)
    }

    /// Decodes a whole body, up to `most` bytes. What is no gzip ends the text.
    pub(super) fn whole(mut self, body: &[u8], most: usize) -> Vec<u8> {
        let mut whole = Vec::new();
        let mut piece = [0; PIECE];
        self.push(body);
        // An error ends the text where it occurs: the body of a refusal is read by people.
        while whole.len() < most
            && let Ok(Some(piece)) = self.next(&mut piece)
        {
            let room = most - whole.len();
            whole.extend_from_slice(piece.get(..room).unwrap_or(piece));
        }
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

    /// What can be decoded now.
    fn pieces(decoder: &mut Gunzip) -> Result<Vec<u8>, ProviderError> {
        let mut all = Vec::new();
        let mut piece = [0; PIECE];
        while let Some(piece) = decoder.next(&mut piece)? {
            all.extend_from_slice(piece);
        }
        Ok(all)
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
                decoder.push(bytes);
                seen.extend(pieces(&mut decoder).unwrap());
            }
            decoder.end();
            assert_eq!(pieces(&mut decoder), Ok(Vec::new()));
            assert_eq!(
                seen, b"data: one\n\ndata: two\n\ndata: three\n\n",
                "cut at {cut}"
            );
        }

        let flushed = gzip(&["data: one\n\n"]);
        // The trailer of eight bytes is missing, and the event is there.
        let mut decoder = gunzip();
        decoder.push(flushed.get(..flushed.len() - 8).unwrap());
        assert_eq!(pieces(&mut decoder).unwrap().len(), 11);
        decoder.end();
        assert!(pieces(&mut decoder).is_err(), "it ends early");
    }

    #[test]
    fn a_bomb_is_handed_on_in_small_pieces_and_other_codings_are_refused() {
        let bomb = gzip(&[&"0".repeat(16 << 20)]);
        let mut decoder = gunzip();
        decoder.push(&bomb);
        let mut piece = [0; PIECE];
        assert!(bomb.len() < 32 * 1024);
        assert!(decoder.next(&mut piece).unwrap().is_some());
        assert!(!decoder.is_drained());
        assert_eq!(gunzip().whole(&bomb, 1000).len(), 1000);
        assert_eq!(gunzip().whole(b"plain", 1000), b"");

        let mut decoder = gunzip();
        decoder.push(b"data: no gzip\n\n");
        assert!(pieces(&mut decoder).is_err());
        let brotli = HeaderMap::from_iter([(CONTENT_ENCODING, "br".parse().unwrap())]);
        let refused = Gunzip::of(&brotli).err().unwrap().to_string();
        assert!(refused.contains("compressed its answer (br)"), "{refused}");
    }
}
