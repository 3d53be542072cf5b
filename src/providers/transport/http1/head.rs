//! Parses the head of an answer. Pure.
//!
//! Promises: the standard's rules decide how the body is framed, and a head that contradicts itself
//! is refused. Interim answers (100, 103) are skipped.

use reqwest::header::{
    CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING,
};

use super::framing::Framing;

/// Headers of one answer, at most.
pub(in crate::providers::transport) const HEADERS_MAX: usize = 100;

/// Interim answers before one answer, at most. Some servers send one every few seconds while a call
/// waits.
const INTERIM_MAX: u32 = 256;

/// Empty lines before an answer, in bytes: some servers send one.
const EMPTY_LINES_MAX: usize = 8;

/// Interim answers that were skipped already, so that each is parsed once, and how many bytes there
/// were when the rest was parsed last, and at the last look.
#[derive(Debug, Default)]
pub(super) struct Interim {
    count: u32,
    bytes: usize,
    parsed: usize,
    seen: usize,
}

impl Interim {
    /// Whether the bytes are worth parsing: they may have the end of a head since the last time, or
    /// have doubled. A head that comes byte by byte would otherwise be parsed for each of them.
    fn is_due(&mut self, bytes: &[u8]) -> bool {
        let new = bytes.get(self.seen.saturating_sub(2)..).unwrap_or(bytes);
        self.seen = bytes.len();
        let ends = |at: usize| {
            let next = new.get(at + 1..).unwrap_or_default();
            next.starts_with(b"\n") || next.starts_with(b"\r\n")
        };
        let is_due = bytes.len() >= self.parsed.saturating_mul(2)
            || memchr::memchr_iter(b'\n', new).any(ends);
        if is_due {
            self.parsed = bytes.len();
        }
        is_due
    }
}

/// The head of an answer.
#[derive(Debug)]
pub(in crate::providers::transport) struct Head {
    /// Length of the head in bytes.
    pub(super) bytes: usize,
    pub(in crate::providers::transport) status: u16,
    pub(in crate::providers::transport) headers: HeaderMap,
    pub(super) body: Framing,
    /// Whether the connection may serve another call after this answer.
    pub(super) keeps_open: bool,
}

/// Why a head was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(in crate::providers::transport) enum BadHead {
    #[error("the server's answer is not HTTP/1: {0}")]
    Syntax(httparse::Error),
    #[error("the server's answer declares its length in two ways")]
    Length,
    #[error("the server wants to speak another protocol")]
    Upgrade,
    #[error("the server sent more than {INTERIM_MAX} interim answers")]
    Interim,
    #[error("the server sent empty lines in place of an answer")]
    EmptyLines,
    #[error("the server speaks TLS; does its address begin with https://?")]
    Tls,
}

/// How a TLS alert begins: what a server with TLS answers to a request without.
const TLS_ALERT: &[u8] = &[0x15, 0x03];

/// Parses a head; `None` if more bytes are needed. `bytes` are all bytes since the request, and
/// `interim` what is known of them from the last time.
///
/// # Errors
/// [`BadHead`] for bytes that are not HTTP, or that can be read in two ways.
pub(super) fn read(bytes: &[u8], interim: &mut Interim) -> Result<Option<Head>, BadHead> {
    if bytes.starts_with(TLS_ALERT) {
        return Err(BadHead::Tls);
    }
    if !interim.is_due(bytes) {
        return Ok(None);
    }
    loop {
        let rest = bytes.get(interim.bytes..).unwrap_or_default();
        let empty = rest.iter().take_while(|byte| b"\r\n".contains(byte));
        if empty.count() > EMPTY_LINES_MAX {
            return Err(BadHead::EmptyLines);
        }
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut headers);
        let length = match response.parse(rest).map_err(BadHead::Syntax)? {
            httparse::Status::Complete(length) => length,
            httparse::Status::Partial => return Ok(None),
        };
        let status = response.code.unwrap_or_default();
        match status {
            101 => return Err(BadHead::Upgrade),
            100..=199 if interim.count >= INTERIM_MAX => return Err(BadHead::Interim),
            100..=199 => {
                interim.count += 1;
                interim.bytes += length;
            }
            _ => {
                return whole(
                    interim.bytes + length,
                    status,
                    response.version == Some(1),
                    response.headers,
                )
                .map(Some);
            }
        }
    }
}

fn whole(
    bytes: usize,
    status: u16,
    is_1_1: bool,
    list: &[httparse::Header<'_>],
) -> Result<Head, BadHead> {
    let mut headers = HeaderMap::with_capacity(list.len());
    for header in list {
        let name = HeaderName::from_bytes(header.name.as_bytes())
            .map_err(|_| BadHead::Syntax(httparse::Error::HeaderName))?;
        let value = HeaderValue::from_bytes(header.value)
            .map_err(|_| BadHead::Syntax(httparse::Error::HeaderValue))?;
        headers.append(name, value);
    }
    let (body, clear) = framing(status, is_1_1, &headers)?;
    let closes = tokens(&headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case("close"));
    Ok(Head {
        bytes,
        status,
        body,
        keeps_open: clear && is_1_1 && !closes,
        headers,
    })
}

/// Decides how the body ends, and whether the connection can be reused after it.
fn framing(status: u16, is_1_1: bool, headers: &HeaderMap) -> Result<(Framing, bool), BadHead> {
    if matches!(status, 204 | 304) {
        return Ok((Framing::none(), true));
    }
    if headers.contains_key(TRANSFER_ENCODING) {
        if !is_1_1 {
            return Err(BadHead::Length);
        }
        let last = tokens(headers, &TRANSFER_ENCODING).last();
        let chunked = last.is_some_and(|coding| coding.eq_ignore_ascii_case("chunked"));
        // With both headers, neither the length nor the next answer on this connection can be
        // trusted.
        let clear = !headers.contains_key(CONTENT_LENGTH);
        return Ok(if chunked {
            (Framing::chunked(), clear)
        } else {
            (Framing::until_close(), false)
        });
    }
    let mut declared = None;
    for length in tokens(headers, &CONTENT_LENGTH) {
        let digits = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
        let length = length
            .parse::<u64>()
            .ok()
            .filter(|_| digits)
            .ok_or(BadHead::Length)?;
        if declared
            .replace(length)
            .is_some_and(|before| before != length)
        {
            return Err(BadHead::Length);
        }
    }
    if declared.is_none() && headers.contains_key(CONTENT_LENGTH) {
        return Err(BadHead::Length);
    }
    Ok(declared.map_or((Framing::until_close(), false), |length| {
        (Framing::length(length), true)
    }))
}

/// The members of a list header. A value that is not text counts as empty.
fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers
        .get_all(name)
        .into_iter()
        .map(|value| value.to_str().unwrap_or_default());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_that_comes_byte_by_byte_is_parsed_a_few_times() {
        let head = format!("HTTP/1.1 400 {}\r\na: b\r\n\r\n", "x".repeat(200_000));
        let mut interim = Interim::default();
        let mut parsed = 0;
        for to in 1..=head.len() {
            parsed += usize::from(interim.is_due(&head.as_bytes()[..to]));
        }
        assert!(parsed < 25, "{parsed}");
        assert_eq!(interim.parsed, head.len(), "its end is seen at once");
    }

    #[test]
    fn empty_lines_before_an_answer_are_few() {
        let read = |count: usize| {
            let bytes = format!("{}HTTP/1.1 200 OK\r\n\r\n", "\r\n".repeat(count));
            read(bytes.as_bytes(), &mut Interim::default())
        };
        assert!(read(4).unwrap().is_some());
        assert_eq!(read(5).unwrap_err(), BadHead::EmptyLines);
    }

    fn head(lines: &str) -> Result<Option<(u16, Framing, bool)>, BadHead> {
        let bytes = format!("{}\r\n\r\n", lines.replace('\n', "\r\n"));
        let read = read(bytes.as_bytes(), &mut Interim::default())?;
        Ok(read.map(|head| {
            assert_eq!(head.bytes, bytes.len());
            (head.status, head.body, head.keeps_open)
        }))
    }

    #[test]
    fn the_standard_decides_how_a_body_is_framed() {
        for (lines, expected) in [
            (
                "HTTP/1.1 200 OK\ntransfer-encoding: chunked",
                (200, Framing::chunked(), true),
            ),
            (
                "HTTP/1.1 200\nTransfer-Encoding: gzip, Chunked",
                (200, Framing::chunked(), true),
            ),
            (
                "HTTP/1.1 200 OK\ntransfer-encoding: chunked, gzip",
                (200, Framing::until_close(), false),
            ),
            (
                "HTTP/1.1 200 OK\ntransfer-encoding: chunked\ncontent-length: 3",
                (200, Framing::chunked(), false),
            ),
            (
                "HTTP/1.1 200 OK\ncontent-length: 3",
                (200, Framing::length(3), true),
            ),
            (
                "HTTP/1.1 200 OK\ncontent-length: 3\ncontent-length: 3",
                (200, Framing::length(3), true),
            ),
            (
                "HTTP/1.1 200 OK\ncontent-length: 3\nConnection: x, Close",
                (200, Framing::length(3), false),
            ),
            (
                "HTTP/1.0 200 OK\ncontent-length: 3",
                (200, Framing::length(3), false),
            ),
            ("HTTP/1.1 401 No", (401, Framing::until_close(), false)),
            (
                "HTTP/1.1 204 No\ncontent-length: 3",
                (204, Framing::none(), true),
            ),
            (
                "HTTP/1.1 100 Go on\n\nHTTP/1.1 103 Hints\nlink: x\n\nHTTP/1.1 307 To\ncontent-length: 0",
                (307, Framing::none(), true),
            ),
        ] {
            assert_eq!(head(lines), Ok(Some(expected)), "{lines}");
        }
    }

    #[test]
    fn a_head_that_contradicts_itself_is_refused() {
        for length in [
            "3, 4",
            "+3",
            "-1",
            "",
            "x",
            "3\ncontent-length: 4",
            "99999999999999999999",
        ] {
            assert_eq!(
                head(&format!("HTTP/1.1 200 OK\ncontent-length: {length}")),
                Err(BadHead::Length),
                "{length}"
            );
        }
        assert_eq!(
            head("HTTP/1.0 200 OK\ntransfer-encoding: chunked"),
            Err(BadHead::Length)
        );
        assert_eq!(
            head("HTTP/1.1 101 Switch\nupgrade: x"),
            Err(BadHead::Upgrade)
        );
        for lines in [
            "SSH-2.0-x",
            "HTTP/2 200 OK",
            "HTTP/1.1 200 OK\nno colon",
            "HTTP/1.1 200 OK\n folded: x",
        ] {
            assert!(matches!(head(lines), Err(BadHead::Syntax(_))), "{lines}");
        }
        let many = format!("HTTP/1.1 200 OK{}", "\na: b".repeat(HEADERS_MAX + 1));
        assert_eq!(
            head(&many),
            Err(BadHead::Syntax(httparse::Error::TooManyHeaders))
        );
    }

    #[test]
    fn a_head_is_read_when_it_is_whole_and_not_before() {
        let bytes = b"HTTP/1.1 100 Go on\r\n\r\nHTTP/1.1 429 Slow\r\nretry-after: 7\r\n\r\nbody";
        let end = bytes.len() - 4;
        let mut interim = Interim::default();
        for cut in 0..end {
            assert!(
                read(&bytes[..cut], &mut interim).unwrap().is_none(),
                "{cut}"
            );
        }

        let head = read(bytes, &mut interim).unwrap().unwrap();

        assert_eq!(
            (
                head.bytes,
                head.status,
                head.headers["retry-after"].to_str().unwrap()
            ),
            (end, 429, "7")
        );
    }

    #[test]
    fn interim_answers_are_parsed_once_each_and_are_not_without_end() {
        let one = b"HTTP/1.1 103 Hints\r\n\r\n";
        let mut interim = Interim::default();
        let most = one.repeat(INTERIM_MAX as usize);
        assert!(read(&most, &mut interim).unwrap().is_none());
        assert_eq!((interim.count, interim.bytes), (INTERIM_MAX, most.len()));
        // What was skipped is not looked at again.
        let mut bytes = vec![b'?'; most.len()];
        bytes.extend_from_slice(b"HTTP/1.1 204 No\r\n\r\n");
        let head = read(&bytes, &mut interim).unwrap().unwrap();
        assert_eq!((head.bytes, head.status), (bytes.len(), 204));

        bytes.truncate(most.len());
        bytes.extend_from_slice(one);
        assert_eq!(read(&bytes, &mut interim).unwrap_err(), BadHead::Interim);
    }
}
