//! Decodes answers that a server compressed with gzip. Callboard does not ask for it, because
//! compression delays the events of a stream, but proxies compress unasked.

use std::{
    io::{BufRead, ErrorKind, Read},
    time::{Duration, Instant},
};

use callboard_actors::ports::ProviderError;
use flate2::bufread::MultiGzDecoder;
use http::{HeaderMap, header::CONTENT_ENCODING};

use super::{errors, pace::SharedIntake};

/// Decoded bytes that are handed on at once. They bound the memory for an answer that decodes to a
/// thousand times its length.
pub(super) const PIECE: usize = 16 * 1024;

/// Compressed bytes that are decoded at once. Bytes that decode to nothing (empty blocks, empty
/// members) take a thousand times as long as others: a millisecond for these.
const PACKED_PIECE: usize = 256;

/// Compressed bytes that [`Gunzip::whole`] decodes at most, and how long it works on them.
const WHOLE_PACKED_MAX: usize = 64 * 1024;
const WHOLE_TIME_MAX: Duration = Duration::from_millis(20);

/// What was decoded in one piece. It may be of no bytes.
pub(super) struct Unpacked<'a> {
    pub(super) bytes: &'a [u8],
    /// How many compressed bytes it took.
    pub(super) packed: usize,
}

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
    /// Where this piece ends at the latest.
    piece_end: usize,
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
    ) -> Result<Option<Unpacked<'a>>, ProviderError> {
        if self.is_drained {
            return Ok(None);
        }
        let arrived = self.decoder.get_mut();
        let from = arrived.at;
        arrived.piece_end = from + PACKED_PIECE;
        let count = match self.decoder.read(piece) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                return Err(errors::protocol("the compressed answer ends early"));
            }
            Err(_) => return Err(errors::protocol("the answer is no valid gzip")),
        };
        let arrived = self.decoder.get_ref();
        if count == 0 && arrived.at == arrived.bytes.len() {
            self.is_drained = true;
        }
        Ok(Some(Unpacked {
            bytes: piece.get(..count).unwrap_or_default(),
            packed: arrived.at - from,
        }))
    }

    /// Decodes a whole body, up to `most` bytes from at most [`WHOLE_PACKED_MAX`]. What is no gzip,
    /// or takes too long, ends the text. Waits for what the server has used of `shared`.
    pub(super) async fn whole(
        mut self,
        body: &[u8],
        most: usize,
        shared: &SharedIntake,
    ) -> Vec<u8> {
        let mut whole = Vec::new();
        let (mut packed, mut time) = (0, Duration::ZERO);
        let mut piece = Box::new([0; PIECE]);
        self.push(body);
        while whole.len() < most && packed < WHOLE_PACKED_MAX && time < WHOLE_TIME_MAX {
            let begun = Instant::now();
            // An error ends the text where it occurs: the body of a refusal is read by people.
            let Ok(Some(next)) = self.next(&mut piece) else {
                break;
            };
            let took = begun.elapsed();
            let room = most - whole.len();
            whole.extend_from_slice(next.bytes.get(..room).unwrap_or(next.bytes));
            (packed, time) = (packed + next.packed, time + took);
            shared.unpack(next.packed, took).await;
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
        let is_all = self.at == self.bytes.len();
        match self
            .bytes
            .get(self.at..self.bytes.len().min(self.piece_end))
        {
            Some(piece) if !piece.is_empty() || (is_all && self.has_ended) => Ok(piece),
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

    async fn whole(body: &[u8], most: usize) -> Vec<u8> {
        gunzip().whole(body, most, &SharedIntake::new()).await
    }

    /// What can be decoded now.
    fn pieces(decoder: &mut Gunzip) -> Result<Vec<u8>, ProviderError> {
        let mut all = Vec::new();
        let mut piece = [0; PIECE];
        while let Some(next) = decoder.next(&mut piece)? {
            all.extend_from_slice(next.bytes);
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

    #[tokio::test]
    async fn bytes_that_decode_to_nothing_are_decoded_some_at_a_time() {
        // Four empty blocks of ten bits each, again and again.
        let header = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
        let empty = [2, 8, 32, 128, 0];
        let body = [header.as_slice(), &empty.repeat(100_000)].concat();
        let mut decoder = gunzip();
        decoder.push(&body);

        let mut piece = [0; PIECE];
        let mut packed = 0;
        while let Some(next) = decoder.next(&mut piece).unwrap() {
            assert!(next.bytes.is_empty() && next.packed <= PACKED_PIECE);
            packed += next.packed;
        }

        assert_eq!(packed, body.len());
        let long = [gzip(&["data"]), body].concat();
        let begun = Instant::now();
        assert_eq!(whole(&long, 1 << 20).await, b"data");
        assert!(begun.elapsed() < Duration::from_secs(1));
    }

    #[tokio::test]
    async fn a_bomb_is_handed_on_in_small_pieces_and_other_codings_are_refused() {
        let bomb = gzip(&[&"0".repeat(16 << 20)]);
        let mut decoder = gunzip();
        decoder.push(&bomb);
        let mut piece = [0; PIECE];
        assert!(bomb.len() < 32 * 1024);
        assert!(decoder.next(&mut piece).unwrap().is_some());
        assert!(!decoder.is_drained());
        assert_eq!(whole(&bomb, 1000).await.len(), 1000);
        assert_eq!(whole(b"plain", 1000).await, b"");

        let mut decoder = gunzip();
        decoder.push(b"data: no gzip\n\n");
        assert!(pieces(&mut decoder).is_err());
        let brotli = HeaderMap::from_iter([(CONTENT_ENCODING, "br".parse().unwrap())]);
        let refused = Gunzip::of(&brotli).err().unwrap().to_string();
        assert!(refused.contains("compressed its answer (br)"), "{refused}");
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_of_a_server_that_decode_to_nothing_share_its_time() {
        let header = [31, 139, 8, 0, 0, 0, 0, 0, 0, 255];
        let body = [header.as_slice(), &[2, 8, 32, 128, 0].repeat(13_000)].concat();
        let shared = SharedIntake::new();
        let begun = tokio::time::Instant::now();

        let refusals = (0..128).map(|_| gunzip().whole(&body, 1 << 16, &shared));
        futures_util::future::join_all(refusals).await;

        let took = begun.elapsed();
        assert!(took > Duration::from_secs(1), "{took:?}");
    }
}
