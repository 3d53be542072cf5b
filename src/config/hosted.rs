//! Parsers of values for hosts with many tenants: addresses, key hashes, ids, money. Each error is
//! the end of a sentence and quotes no secret.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use callboard_actors::ids::TenantId;

use super::error::quoted;

/// Hexadecimal digits of a SHA-256.
const HASH_DIGITS: usize = 64;

/// Maximum size in bytes of a text with many lines, such as a system prompt.
const PROSE_BYTES_MAX: usize = 256 * 1024;

/// Largest budget in US dollars: a larger number is probably a typing mistake.
const USD_MAX: f64 = 1e9;

/// Parses `127.0.0.1:8787`, `[::1]:8787` or `localhost:8787`.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    let local = text.strip_prefix("localhost:").and_then(|port| port.parse().ok());
    let local = local.map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    text.parse().ok().or(local).ok_or_else(|| format!("must be an IP address with a port, such as 127.0.0.1:8787, not `{}`", quoted(text)))
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
    TenantId::new(text).map(|id| id.as_str().to_owned()).map_err(|error| format!("is not a valid id: {error}"))
}

/// Parses a text of one or more lines.
pub(super) fn prose(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        Err("must not be empty".into())
    } else if text.len() > PROSE_BYTES_MAX {
        Err(format!("must have at most {PROSE_BYTES_MAX} bytes, not {}", text.len()))
    } else if text.chars().any(|c| c.is_control() && !['\n', '\t', '\r'].contains(&c)) {
        Err("must not hold control characters".into())
    } else {
        Ok(text.to_owned())
    }
}

/// Parses US dollars; returns millionths of a dollar.
pub(super) fn micro_usd(text: &str) -> Result<u64, String> {
    match text.replace('_', "").parse::<f64>() {
        Ok(usd) if (0.000_001..=USD_MAX).contains(&usd) => Ok((usd * 1e6).round() as u64),
        Ok(_) | Err(_) => Err(format!("must be US dollars, more than 0, not `{}`", quoted(text))),
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
        assert_eq!(address("localhost:8787"), Ok(SocketAddr::from(([127, 0, 0, 1], 8787))));
        assert_eq!(address("[::1]:0").map(|address| address.ip().is_loopback()), Ok(true));
        for text in ["8787", "127.0.0.1", "example.org:80", ":8787", "localhost:70000", ""] {
            assert!(address(text).is_err(), "{text}");
        }
    }

    #[test]
    fn money_is_counted_in_millionths() {
        assert_eq!((micro_usd("0.000001"), micro_usd("12.5"), micro_usd("1_000")), (Ok(1), Ok(12_500_000), Ok(1_000_000_000)));
        for text in ["0", "-1", "nan", "inf", "1e12", "much"] {
            assert!(micro_usd(text).is_err(), "{text}");
        }
    }
}
