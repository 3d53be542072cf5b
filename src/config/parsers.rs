//! Parsers of the values of keys, from text. Each error is the end of a sentence that starts with
//! the key, and quotes no secret.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use callboard_actors::{ids::TenantId, ports::HostPattern};

use super::{
    error::{hint, quoted},
    tool_names::{TOOL_NAMES, is_of_server},
};

/// Ten years, in seconds: a longer time is probably a mistake, and clock arithmetic cannot
/// overflow.
const SECONDS_MAX: f64 = 315_360_000.0;

/// Hexadecimal digits of a SHA-256.
const HASH_DIGITS: usize = 64;

/// Maximum size in bytes of a text with many lines, such as a system prompt.
const PROSE_BYTES_MAX: usize = 256 * 1024;

/// Largest budget in US dollars: a larger number is probably a typing mistake.
const USD_MAX: f64 = 1e9;

/// Parses a number of seconds.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(number) if (0.001..=SECONDS_MAX).contains(&number) => {
            Ok(Duration::from_secs_f64(number))
        }
        Ok(_) => Err(format!(
            "must be 0.001 to {SECONDS_MAX} seconds, not {}",
            quoted(text)
        )),
        Err(_) => Err(format!(
            "must be a number of seconds, not `{}`",
            quoted(text)
        )),
    }
}

/// Parses a text of one line.
pub(super) fn one_line(text: &str) -> Result<String, String> {
    match text {
        "" => Err("must not be empty".into()),
        _ if text.chars().any(char::is_control) => {
            Err("must be one line without control characters".into())
        }
        _ => Ok(text.to_owned()),
    }
}

/// Parses a name of `known`, or the name of a tool of an MCP server where tools are listed.
pub(super) fn name(name: &str, known: &[&str]) -> Result<String, String> {
    if known.contains(&name) || (known == TOOL_NAMES && is_of_server(name)) {
        return Ok(name.to_owned());
    }
    Err(format!(
        "lists the unknown name `{}`; {}",
        quoted(name),
        hint(name, known.iter().copied())
    ))
}

/// Parses a host name, a pattern of domains, an address or a range.
pub(super) fn host(text: &str) -> Result<String, String> {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b".-_*:/[]".contains(&byte);
    if !text.is_empty() && text.len() <= 255 && text.bytes().all(known) && !text.contains("//") {
        return Ok(text.to_owned());
    }
    Err(format!(
        "must list host names, `*.domains`, IP addresses or ranges such as 10.0.0.0/8, not `{}`",
        quoted(text)
    ))
}

/// Parses the origin of a web page as browsers send it, or `*`.
pub(super) fn origin(text: &str) -> Result<String, String> {
    let rest = text
        .strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"));
    let is_host = |host: &str| {
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !port.contains(']') => (name, Some(port)),
            _ => (host, None),
        };
        let known = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_:[]".contains(&byte)
        };
        let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
        !name.is_empty() && name.bytes().all(known) && port.is_none_or(is_port)
    };
    if text == "*" || rest.is_some_and(is_host) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "must list origins such as `https://app.example` (in lower case, without a path), or `*` alone, not `{}`",
        quoted(text)
    ))
}

/// Parses a host pattern of an allow-list.
pub(super) fn pattern(text: &str) -> Result<HostPattern, String> {
    text.parse().map_err(|_| {
        format!("must list hosts such as `example.org`, `*.example.org`, `example.org:8443` or an IP address, not `{}`", quoted(text))
    })
}

/// Parses a base URL; returns it without a trailing slash.
pub(super) fn base_url(text: &str) -> Result<String, String> {
    let rest = text
        .strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"));
    let Some(rest) = rest else {
        return Err("must start with `http://` or `https://`".into());
    };
    let host = rest.split('/').next().unwrap_or_default();
    if host.is_empty() || host.starts_with(':') {
        Err("names no host".into())
    } else if host.contains('@') {
        // A URL ends up in logs and errors; a password must not.
        Err("must not hold a user name or a password; use `api_key_env` or `api_key_file`".into())
    } else if rest.contains(['?', '#']) {
        Err("must end with the path: the request's path is added to it, so no `?` or `#`".into())
    } else if rest.chars().any(|c| c.is_whitespace() || c.is_control()) {
        Err("must not hold white space".into())
    } else {
        Ok(text.trim_end_matches('/').to_owned())
    }
}

/// Parses the name of an environment variable.
pub(super) fn env_name(text: &str) -> Result<String, String> {
    let fits = !text.is_empty()
        && text.len() <= 128
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    // The error does not quote the text, because people put the key itself here.
    if fits {
        Ok(text.to_owned())
    } else {
        Err("must be the name of an environment variable that holds the key, not the key".into())
    }
}

/// Parses `127.0.0.1:8787`, `[::1]:8787` or `localhost:8787`.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    let local = text
        .strip_prefix("localhost:")
        .and_then(|port| port.parse().ok());
    let local = local.map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    text.parse().ok().or(local).ok_or_else(|| {
        format!(
            "must be an IP address with a port, such as 127.0.0.1:8787, not `{}`",
            quoted(text)
        )
    })
}

/// Parses the SHA-256 of a key; returns it in lower case.
pub(super) fn hash(text: &str) -> Result<String, String> {
    if text.len() == HASH_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(text.to_ascii_lowercase());
    }
    // The error does not quote the text, because people put the key itself here.
    Err("must be the SHA-256 of the key, 64 hexadecimal digits, not the key; `callboard keys new` makes both".into())
}

/// Parses the id of a tenant.
pub(super) fn tenant_id(text: &str) -> Result<String, String> {
    TenantId::new(text)
        .map(|id| id.as_str().to_owned())
        .map_err(|error| format!("is not a valid id: {error}"))
}

/// Parses a text of one or more lines.
pub(super) fn prose(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        Err("must not be empty".into())
    } else if text.len() > PROSE_BYTES_MAX {
        Err(format!(
            "must have at most {PROSE_BYTES_MAX} bytes, not {}",
            text.len()
        ))
    } else if text
        .chars()
        .any(|c| c.is_control() && !['\n', '\t', '\r'].contains(&c))
    {
        Err("must not hold control characters".into())
    } else {
        Ok(text.to_owned())
    }
}

/// Parses US dollars; returns millionths of a dollar.
pub(super) fn micro_usd(text: &str) -> Result<u64, String> {
    match text.replace('_', "").parse::<f64>() {
        Ok(usd) if (0.000_001..=USD_MAX).contains(&usd) => Ok((usd * 1e6).round() as u64),
        Ok(_) | Err(_) => Err(format!(
            "must be US dollars, more than 0, not `{}`",
            quoted(text)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_in_place_of_its_hash_is_refused_and_not_quoted() {
        let problem = hash("cb_not-a-real-key-0000000000000000000000").unwrap_err();

        assert!(!problem.contains("not-a-real"), "{problem}");
        assert_eq!(hash(&"AB".repeat(32)), Ok("ab".repeat(32)));
    }

    #[test]
    fn an_address_is_an_ip_with_a_port() {
        assert_eq!(
            address("localhost:8787"),
            Ok(SocketAddr::from(([127, 0, 0, 1], 8787)))
        );
        assert_eq!(
            address("[::1]:0").map(|address| address.ip().is_loopback()),
            Ok(true)
        );
        for text in [
            "8787",
            "127.0.0.1",
            "example.org:80",
            ":8787",
            "localhost:70000",
            "",
        ] {
            assert!(address(text).is_err(), "{text}");
        }
    }

    #[test]
    fn money_is_counted_in_millionths() {
        assert_eq!(
            (micro_usd("0.000001"), micro_usd("12.5"), micro_usd("1_000")),
            (Ok(1), Ok(12_500_000), Ok(1_000_000_000))
        );
        for text in ["0", "-1", "nan", "inf", "1e12", "much"] {
            assert!(micro_usd(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_base_url_keeps_no_password_and_no_query() {
        assert_eq!(
            base_url("http://127.0.0.1:11434/v1/"),
            Ok("http://127.0.0.1:11434/v1".to_owned())
        );
        for (given, expected) in [
            ("localhost:11434", "must start with `http://` or `https://`"),
            ("http://:80/v1", "names no host"),
            (
                "https://me:secret@example.com",
                "must not hold a user name or a password; use `api_key_env` or `api_key_file`",
            ),
            (
                "https://example.com/v1?key=secret",
                "must end with the path: the request's path is added to it, so no `?` or `#`",
            ),
            ("https://example.com/a b", "must not hold white space"),
        ] {
            assert_eq!(base_url(given), Err(expected.to_owned()), "{given}");
        }
    }

    #[test]
    fn seconds_are_bounded() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["0", "-1", "nan", "inf", "1e300", "soon"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
