//! The network policy of commands: which hosts they can reach. This module parses and matches
//! patterns; an adapter resolves names and opens connections.
//!
//! Pure.

use core::net::{IpAddr, Ipv6Addr};
use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Ports of a pattern without a port: HTTP and HTTPS.
const USUAL_PORTS: [u16; 2] = [80, 443];

/// Longest host name in bytes (RFC 1035).
const NAME_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;

/// Which hosts commands can reach.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Network {
    /// None, not even localhost.
    #[default]
    Off,
    /// Only these hosts, by HTTP or through a CONNECT proxy (TLS).
    Hosts(Vec<HostPattern>),
    /// Every host that the machine reaches. Allowed only in a mode without a boundary.
    Open,
}

/// The text is not a host pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "must be a host name such as example.org, `*.` with a domain, or an IP address, each with or without `:port`, not {0:?}"
)]
pub struct NoSuchHost(String);

/// One entry of an allow-list: `crates.io`, `*.example.org` (every subdomain, not the domain),
/// `10.0.0.7:8080`, `[fd00::7]:8080`. Without a port, an entry stands for 80 and 443.
///
/// A listed name permits public addresses only, whatever the name resolves to. A private address
/// must be listed as a literal; then listed names that resolve to it reach it, too.
///
/// ```
/// use callboard_actors::ports::HostPattern;
///
/// let pattern: HostPattern = "*.Example.org".parse()?;
/// assert!(pattern.matches("api.example.org", 443) && !pattern.matches("example.org", 443) && !pattern.matches("api.example.org", 22));
/// assert_eq!(pattern.to_string(), "*.example.org");
/// # Ok::<(), callboard_actors::ports::NoSuchHost>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostPattern {
    kind: Kind,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Kind {
    /// In lower case, without a trailing dot.
    Name(String),
    /// Every subdomain of this name.
    Below(String),
    Address(IpAddr),
}

impl HostPattern {
    /// Whether the pattern matches a request for `host`, a name or a literal address, and `port`.
    pub fn matches(&self, host: &str, port: u16) -> bool {
        if let Some(ip) = literal(host) {
            return self.permits_address(ip, port);
        }
        let host = bare(host);
        let meant = match &self.kind {
            Kind::Name(name) => host.eq_ignore_ascii_case(name),
            Kind::Below(domain) => {
                let host = host.to_ascii_lowercase();
                host.strip_suffix(domain.as_str())
                    .and_then(|rest| rest.strip_suffix('.'))
                    .is_some_and(|rest| !rest.is_empty())
            }
            Kind::Address(_) => false,
        };
        meant && self.has_port(port)
    }

    /// Whether the pattern is exactly this address. The operator then permits it even if it is not
    /// public.
    pub fn permits_address(&self, ip: IpAddr, port: u16) -> bool {
        matches!(&self.kind, Kind::Address(own) if *own == ip) && self.has_port(port)
    }

    fn has_port(&self, port: u16) -> bool {
        self.port
            .map_or_else(|| USUAL_PORTS.contains(&port), |own| own == port)
    }
}

impl FromStr for HostPattern {
    type Err = NoSuchHost;

    fn from_str(text: &str) -> Result<Self, NoSuchHost> {
        let wrong = || NoSuchHost(text.chars().take(100).collect());
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(Self {
                kind: Kind::Address(ip),
                port: None,
            });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !text.ends_with(']') => {
                (host, Some(port_of(port).ok_or_else(wrong)?))
            }
            _ => (text, None),
        };
        if let Some(ip) = literal(host) {
            return Ok(Self {
                kind: Kind::Address(ip),
                port,
            });
        }
        let lower = bare(host).to_ascii_lowercase();
        let kind = match lower.strip_prefix("*.") {
            Some(domain) if is_name(domain) => Kind::Below(domain.to_owned()),
            None if is_name(&lower) => Kind::Name(lower),
            _ => return Err(wrong()),
        };
        Ok(Self { kind, port })
    }
}

impl TryFrom<String> for HostPattern {
    type Error = NoSuchHost;

    fn try_from(text: String) -> Result<Self, NoSuchHost> {
        text.parse()
    }
}

impl From<HostPattern> for String {
    fn from(pattern: HostPattern) -> Self {
        pattern.to_string()
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Name(name) => f.write_str(name)?,
            Kind::Below(domain) => write!(f, "*.{domain}")?,
            Kind::Address(IpAddr::V4(ip)) => write!(f, "{ip}")?,
            Kind::Address(IpAddr::V6(ip)) => write!(f, "[{ip}]")?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// Parses a literal address in its canonical form: no octal, no hexadecimal, IPv6 in brackets.
fn literal(host: &str) -> Option<IpAddr> {
    match host.strip_prefix('[') {
        Some(rest) => rest
            .strip_suffix(']')?
            .parse::<Ipv6Addr>()
            .ok()
            .map(IpAddr::V6),
        None => host.parse::<IpAddr>().ok().filter(IpAddr::is_ipv4),
    }
}

fn port_of(text: &str) -> Option<u16> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())
        .flatten()
        .filter(|port| *port > 0)
}

/// Whether this is a host name: letters, digits, hyphens and underscores between dots. A last label
/// of digits or `0x…` would be a disguised address.
fn is_name(host: &str) -> bool {
    let fits = |label: &str| {
        (1..=LABEL_BYTES_MAX).contains(&label.len())
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    let last = host.rsplit('.').next().unwrap_or_default();
    let disguised = last.starts_with("0x") || last.bytes().all(|byte| byte.is_ascii_digit());
    host.len() <= NAME_BYTES_MAX && host.split('.').all(fits) && !disguised
}

/// Removes the trailing dot of a fully qualified name.
fn bare(host: &str) -> &str {
    host.strip_suffix('.').unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> HostPattern {
        text.parse().unwrap()
    }

    #[test]
    fn a_pattern_means_its_hosts_and_ports_and_no_other() {
        for (pattern, host, port, expected) in [
            ("crates.io", "crates.io", 443, true),
            ("crates.io", "CRATES.io.", 80, true),
            ("crates.io", "crates.io", 8080, false),
            ("crates.io", "static.crates.io", 443, false),
            ("crates.io", "crates.io.evil.test", 443, false),
            ("crates.io", "notcrates.io", 443, false),
            ("crates.io:8443", "crates.io", 8443, true),
            ("crates.io:8443", "crates.io", 443, false),
            ("*.example.org", "a.example.org", 443, true),
            ("*.example.org", "A.B.Example.Org.", 443, true),
            ("*.example.org", "example.org", 443, false),
            ("*.example.org", ".example.org", 443, false),
            ("*.example.org", "notexample.org", 443, false),
            ("127.0.0.1:9000", "127.0.0.1", 9000, true),
            ("127.0.0.1:9000", "127.0.0.1", 80, false),
            ("127.0.0.1", "127.0.0.1", 80, true),
            ("127.0.0.1", "2130706433", 80, false),
            ("127.0.0.1", "0177.0.0.1", 80, false),
            ("127.0.0.1", "[::ffff:127.0.0.1]", 80, false),
            ("[fd00::7]:81", "[fd00:0::7]", 81, true),
            ("fd00::7", "[fd00::7]", 443, true),
        ] {
            assert_eq!(
                read(pattern).matches(host, port),
                expected,
                "{pattern} {host}:{port}"
            );
        }
    }

    #[test]
    fn a_pattern_is_written_as_it_is_read_and_nonsense_is_refused() {
        for text in [
            "crates.io",
            "*.example.org:8443",
            "127.0.0.1:80",
            "[::1]",
            "[::1]:8080",
            "localhost:3000",
            "xn--bcher-kva.example",
        ] {
            assert_eq!(read(text).to_string(), text);
            assert_eq!(serde_json::to_value(read(text)).unwrap(), text);
        }
        for text in [
            "",
            "*",
            "*.",
            "*.*.org",
            "a.*.org",
            "http://crates.io",
            "crates.io/x",
            "crates.io:",
            "crates.io:0",
            "crates.io:70000",
            "a b",
            "crates..io",
            "user@crates.io",
            "10.0.0.0/8",
            "0x7f.1",
            "2130706433",
            "1.2.3",
            "b\u{fc}cher.example",
            "[::1",
            "a:b:80",
            "-:x",
        ] {
            assert!(text.parse::<HostPattern>().is_err(), "{text}");
        }
    }
}
