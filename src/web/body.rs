//! Reads a response body up to a cap, decompressed. Peak memory: 1.5 times the cap while the buffer
//! grows, plus one chunk.

use std::io::{self, Write};

use bytes::Bytes;
use flate2::write::MultiGzDecoder;

use super::error::WebError;

/// Bytes on the wire allowed beyond the cap; useful compression never makes a body longer.
const WIRE_SLACK: u64 = 64 * 1024;

/// A buffer with a cap. Writing beyond it sets `full` and fails.
struct Capped {
    bytes: Vec<u8>,
    cap: usize,
    full: bool,
}

impl Write for Capped {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.cap - self.bytes.len();
        let taken = bytes.get(..room).unwrap_or(bytes);
        let wanted = self.bytes.len() + taken.len();
        if wanted > self.bytes.capacity() {
            // Doubles the capacity, but never beyond the cap.
            let capacity = (self.bytes.capacity() * 2).clamp(wanted, self.cap.max(wanted));
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        self.bytes.extend_from_slice(taken);
        if taken.len() < bytes.len() {
            self.full = true;
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

enum Coding {
    Plain(Capped),
    Gzip(Box<MultiGzDecoder<Capped>>),
}

/// A body that is being read.
pub(super) struct BodyReader {
    coding: Coding,
    wire: u64,
    wire_max: u64,
}

impl BodyReader {
    /// A reader for a body with this `Content-Encoding`.
    pub(super) fn new(encoding: Option<&str>, cap: usize) -> Result<Self, WebError> {
        let capped = Capped {
            bytes: Vec::new(),
            cap,
            full: false,
        };
        let coding = match encoding
            .map(|name| name.trim().to_ascii_lowercase())
            .as_deref()
        {
            None | Some("" | "identity") => Coding::Plain(capped),
            Some("gzip" | "x-gzip") => Coding::Gzip(Box::new(MultiGzDecoder::new(capped))),
            Some(_) => return Err(WebError::Encoding),
        };
        Ok(Self {
            coding,
            wire: 0,
            wire_max: (cap as u64).saturating_add(WIRE_SLACK),
        })
    }

    /// Whether nothing is decoded.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self.coding, Coding::Plain(_))
    }

    /// Adds a chunk; `false` when no more is needed.
    pub(super) fn take(&mut self, chunk: &[u8]) -> Result<bool, WebError> {
        self.wire += chunk.len() as u64;
        let written = match &mut self.coding {
            Coding::Plain(capped) => capped.write_all(chunk),
            Coding::Gzip(decoder) => decoder.write_all(chunk),
        };
        match written {
            Ok(()) => Ok(self.wire <= self.wire_max),
            Err(_) if self.capped().full => Ok(false),
            Err(_) => Err(WebError::Broken("its gzip data is invalid")),
        }
    }

    fn capped(&self) -> &Capped {
        match &self.coding {
            Coding::Plain(capped) => capped,
            Coding::Gzip(decoder) => decoder.get_ref(),
        }
    }

    /// The bytes, and whether the body is longer. `over`: the connection signalled the end of the
    /// body.
    pub(super) fn finish(self, over: bool) -> Result<(Bytes, bool), WebError> {
        match self.coding {
            Coding::Plain(capped) => Ok((capped.bytes.into(), !over)),
            Coding::Gzip(decoder) if !over => {
                let mut decoder = *decoder;
                Ok((std::mem::take(&mut decoder.get_mut().bytes).into(), true))
            }
            Coding::Gzip(mut decoder) => match decoder.try_finish() {
                Ok(()) => Ok((std::mem::take(&mut decoder.get_mut().bytes).into(), false)),
                Err(_) if decoder.get_ref().full => {
                    Ok((std::mem::take(&mut decoder.get_mut().bytes).into(), true))
                }
                Err(_) => Err(WebError::Broken("its gzip data ends early")),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn read(encoding: Option<&str>, cap: usize, wire: &[u8]) -> Result<(Bytes, bool), WebError> {
        let mut reader = BodyReader::new(encoding, cap)?;
        for chunk in wire.chunks(1000) {
            if !reader.take(chunk)? {
                return reader.finish(false);
            }
        }
        reader.finish(true)
    }

    #[test]
    fn a_bomb_stops_at_the_cap_and_takes_no_more_memory() {
        let bomb = gzip(&vec![0; 50_000_000]);
        assert!(bomb.len() < 60_000);
        let mut reader = BodyReader::new(Some("gzip"), 100_000).unwrap();

        assert!(!reader.take(&bomb).unwrap());

        assert!(reader.capped().bytes.capacity() <= 100_000);
        let (bytes, more) = reader.finish(false).unwrap();
        assert_eq!((bytes.len(), more), (100_000, true));
    }

    #[test]
    fn empty_gzip_members_end_too() {
        let nothing = gzip(b"").repeat(20_000);

        assert_eq!(
            read(Some("gzip"), 1000, &nothing).map(|(bytes, more)| (bytes.len(), more)),
            Ok((0, true))
        );
    }

    #[test]
    fn a_body_that_fits_is_whole() {
        let text = b"a body of some length".repeat(500);

        assert_eq!(
            read(None, text.len(), &text),
            Ok((text.clone().into(), false))
        );
        assert_eq!(
            read(Some("GZIP"), text.len(), &gzip(&text)),
            Ok((text.clone().into(), false))
        );
        assert_eq!(
            read(
                Some("gzip"),
                100_000,
                &[gzip(b"one "), gzip(b"two")].concat()
            ),
            Ok((Bytes::from("one two"), false))
        );
        assert_eq!(
            read(None, 10, &text).map(|(bytes, more)| (bytes.len(), more)),
            Ok((10, true))
        );
    }

    #[test]
    fn invalid_gzip_is_an_error_and_other_encodings_are_refused() {
        assert_eq!(
            read(Some("gzip"), 1000, b"not packed at all, by far"),
            Err(WebError::Broken("its gzip data is invalid"))
        );
        let whole = gzip(&b"abcdefgh".repeat(100));
        assert_eq!(
            read(Some("gzip"), 1000, &whole[..whole.len() - 9]),
            Err(WebError::Broken("its gzip data ends early"))
        );
        for encoding in ["br", "zstd", "deflate", "gzip, gzip"] {
            assert_eq!(
                read(Some(encoding), 1000, b""),
                Err(WebError::Encoding),
                "{encoding}"
            );
        }
    }
}
