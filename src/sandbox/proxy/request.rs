//! Parses requests to the proxy: `CONNECT host:port`, or plain HTTP in absolute form. Strict: a
//! request that two parsers could read differently is refused.

use tokio::io::{AsyncRead, AsyncReadExt};

use super::Refusal;

/// Bytes of a request's head, with room for cookies and tokens.
const HEAD_BYTES_MAX: usize = 32 * 1024;

/// A parsed request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    /// A name or an address, in lower case; IPv6 in brackets.
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) kind: RequestKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RequestKind {
    /// `CONNECT`: bytes are copied in both directions.
    Tunnel,
    /// Plain HTTP: one request and its answer.
    Plain {
        /// The head as it is sent to the server.
        head: Vec<u8>,
        /// Length of the body in bytes.
        body_bytes: u64,
    },
}

/// Reads a head. Returns the request and the bytes received after its head; `None` if the client
/// sent nothing.
pub(super) async fn read(
    client: &mut (impl AsyncRead + Unpin),
) -> Result<Option<(Request, Vec<u8>)>, Refusal> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 2048];
    loop {
        let count = client.read(&mut buffer).await.unwrap_or(0);
        if count == 0 {
            return if bytes.is_empty() {
                Ok(None)
            } else {
                Err(Refusal::bad("it ends in its head"))
            };
        }
        let seen = bytes.len().saturating_sub(3);
        bytes.extend_from_slice(buffer.get(..count).unwrap_or_default());
        let end = bytes
            .get(seen..)
            .and_then(|new| new.windows(4).position(|four| four == b"\r\n\r\n"));
        match end.map(|at| seen + at + 4) {
            Some(end) if end <= HEAD_BYTES_MAX => {
                let rest = bytes.split_off(end);
                return parse(&bytes).map(|request| Some((request, rest)));
            }
            None if bytes.len() < HEAD_BYTES_MAX => {}
            _ => {
                return Err(Refusal::new(
                    "431 Request Header Fields Too Large",
                    "the head of the request is longer than 32 KiB",
                ));
            }
        }
    }
}

fn parse(head: &[u8]) -> Result<Request, Refusal> {
    let text = std::str::from_utf8(head)
        .ok()
        .and_then(|text| text.strip_suffix("\r\n\r\n"))
        .ok_or(Refusal::bad("it is no text"))?;
    let mut lines = text.split("\r\n");
    let first: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let [method, target, version @ ("HTTP/1.1" | "HTTP/1.0")] = first.as_slice() else {
        return Err(Refusal::bad("it is not HTTP/1.1"));
    };
    if !is_token(method) || !target.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Refusal::bad("its first line"));
    }
    let headers = lines.map(header).collect::<Result<Vec<_>, _>>()?;
    if *method == "CONNECT" {
        let (host, port) =
            authority(target, None).ok_or(Refusal::bad("CONNECT needs a host and a port"))?;
        return Ok(Request {
            host,
            port,
            kind: RequestKind::Tunnel,
        });
    }
    let scheme = target
        .get(..7)
        .filter(|scheme| scheme.eq_ignore_ascii_case("http://"));
    let rest = scheme
        .and_then(|_| target.get(7..))
        .ok_or(Refusal::bad("it needs a whole URL of http, or CONNECT"))?;
    let (place, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let (host, port) = authority(place, Some(80)).ok_or(Refusal::bad("the host of its URL"))?;
    let slash = if path.starts_with('/') { "" } else { "/" };
    let shown_port = if port == 80 {
        String::new()
    } else {
        format!(":{port}")
    };
    // Host is set to the host that was checked, whatever the program wrote.
    let mut head = format!("{method} {slash}{path} {version}\r\nHost: {host}{shown_port}\r\n");
    let named = |name: &'static str| {
        headers
            .iter()
            .filter(move |(own, _)| own.eq_ignore_ascii_case(name))
            .map(|(_, value)| *value)
    };
    let between_two: Vec<&str> = named("connection")
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .collect();
    for (name, value) in &headers {
        let ours = [
            "host",
            "connection",
            "keep-alive",
            "te",
            "trailer",
            "upgrade",
            "proxy-connection",
            "proxy-authorization",
        ];
        if !ours
            .iter()
            .chain(&between_two)
            .any(|own| own.eq_ignore_ascii_case(name))
            || name.eq_ignore_ascii_case("content-length")
        {
            head += &format!("{name}: {value}\r\n");
        }
    }
    head += "Connection: close\r\n\r\n";
    if named("transfer-encoding").next().is_some() {
        return Err(Refusal::new(
            "411 Length Required",
            "over plain HTTP the sandbox's proxy takes bodies with a Content-Length only",
        ));
    }
    let mut lengths = named("content-length");
    let body_bytes = match (lengths.next(), lengths.next()) {
        (None, _) => 0,
        (Some(length), None) if length.bytes().all(|byte| byte.is_ascii_digit()) => length
            .parse()
            .map_err(|_| Refusal::bad("its Content-Length"))?,
        _ => return Err(Refusal::bad("its Content-Length")),
    };
    Ok(Request {
        host,
        port,
        kind: RequestKind::Plain {
            head: head.into_bytes(),
            body_bytes,
        },
    })
}

fn header(line: &str) -> Result<(&str, &str), Refusal> {
    let (name, value) = line
        .split_once(':')
        .ok_or(Refusal::bad("a header without a colon"))?;
    if !is_token(name) || value.chars().any(|c| c.is_control() && c != '\t') {
        return Err(Refusal::bad("a header's name or value"));
    }
    Ok((name, value.trim_matches([' ', '\t'])))
}

fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

fn authority(text: &str, default: Option<u16>) -> Option<(String, u16)> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !text.ends_with(']') => {
            let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
            (host, digits.then(|| port.parse().ok()).flatten()?)
        }
        _ => (text, default?),
    };
    let inside = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let fits = match inside {
        Some(ip) => ip.parse::<std::net::Ipv6Addr>().is_ok(),
        None => host
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)),
    };
    (fits && (1..=254).contains(&host.len()) && port > 0).then(|| (host.to_ascii_lowercase(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Request, &'static str> {
        parse(format!("{text}\r\n\r\n").as_bytes()).map_err(|refusal| refusal.status)
    }

    #[test]
    fn a_request_is_rewritten_for_the_host_that_was_judged() {
        let request = read_text(
            "POST http://Allowed.test:81?a=b HTTP/1.1\r\nHost: other.test\r\nProxy-Authorization: x\r\nConnection: X-Hop, content-length\r\n\
             X-Hop: 1\r\nContent-Length: 3\r\nX-Kept: a, b",
        );

        let head = "POST /?a=b HTTP/1.1\r\nHost: allowed.test:81\r\nContent-Length: 3\r\nX-Kept: a, b\r\nConnection: close\r\n\r\n";
        let kind = RequestKind::Plain {
            head: head.as_bytes().to_vec(),
            body_bytes: 3,
        };
        assert_eq!(
            request,
            Ok(Request {
                host: "allowed.test".to_owned(),
                port: 81,
                kind
            })
        );
        let tunnel = Request {
            host: "[::1]".to_owned(),
            port: 443,
            kind: RequestKind::Tunnel,
        };
        assert_eq!(
            read_text("CONNECT [::1]:443 HTTP/1.1\r\nHost: other.test"),
            Ok(tunnel)
        );
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        for text in [
            "GET / HTTP/1.1",
            "GET https://a.test/ HTTP/1.1",
            "GET http://user@a.test/ HTTP/1.1",
            "GET http://a.test:0/ HTTP/1.1",
            "GET http://a.test:+80/ HTTP/1.1",
            "GET http://a.test\\@b.test/ HTTP/1.1",
            "GET http://a.test#b.test/ HTTP/1.1",
            "GET http:///a HTTP/1.1",
            "GET  http://a.test/ HTTP/1.1",
            "GET http://a.test/ HTTP/2",
            "GET http://a.test/ HTTP/1.1\r\n Folded: 1",
            "GET http://a.test/ HTTP/1.1\r\nName : 1",
            "GET http://a.test/ HTTP/1.1\r\nA: 1\nB: 2",
            "GET http://a.test/ HTTP/1.1\r\nA: 1\rB: 2",
            "GET http://a.test/ HTTP/1.1\r\nno colon",
            "POST http://a.test/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2",
            "POST http://a.test/ HTTP/1.1\r\nContent-Length: +1",
            "POST http://a.test/ HTTP/1.1\r\nContent-Length: ",
            "CONNECT a.test HTTP/1.1",
            "CONNECT ::1:80 HTTP/1.1",
            "CONNECT [::1]x:80 HTTP/1.1",
            "CONNECT a.test:80/ HTTP/1.1",
            "CONNECT a.test:65536 HTTP/1.1",
            "CONNECT \u{2488}.test:80 HTTP/1.1",
        ] {
            assert_eq!(read_text(text), Err("400 Bad Request"), "{text:?}");
        }
        assert_eq!(
            read_text("POST http://a.test/ HTTP/1.1\r\nTransfer-Encoding: chunked"),
            Err("411 Length Required")
        );
    }

    #[tokio::test]
    async fn a_head_without_an_end_is_not_read_for_ever() {
        let endless = vec![b'a'; HEAD_BYTES_MAX + 4096];

        let refused = read(&mut endless.as_slice()).await.unwrap_err();

        assert_eq!(refused.status, "431 Request Header Fields Too Large");
        assert_eq!(read(&mut b"".as_slice()).await, Ok(None));
    }
}
