//! Checks URLs and addresses before a connection is made. Pure.
//!
//! A URL must be `http` or `https` and name a public host, without user info and without a port of
//! another protocol. Unusual spellings of addresses, such as `http://0x7f.1/`, are refused even for
//! public addresses, since they serve only to evade filters.

use std::net::IpAddr;

use url::{Host, Url};

use super::address::{AddressClass, Range, behind_nat64, class};

/// Longest URL, in bytes.
pub const URL_BYTES_MAX: usize = 8 * 1024;

/// Most redirects that are followed from one URL.
pub const REDIRECTS_MAX: usize = 10;

/// Top-level names for private use (RFC 6761, RFC 6762, RFC 8375, ICANN's `internal`).
const OWN_NAMES: &[&str] = &[
    "localhost",
    "local",
    "internal",
    "localdomain",
    "home.arpa",
    "intranet",
    "lan",
    "corp",
    "home",
];

/// Ports above 1023 of other protocols, which browsers refuse as well (the Fetch standard's bad
/// ports).
const OTHER_PORTS: &[u16] = &[
    1719, 1720, 1723, 2049, 3659, 4045, 4190, 5060, 5061, 6000, 6566, 6665, 6666, 6667, 6668, 6669,
    6679, 6697, 10080,
];

/// Why a URL or address is refused. No text contains an address that a name resolved to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Denied {
    /// The URL cannot be parsed.
    #[error("the URL is not valid: {0}")]
    Invalid(&'static str),
    /// The scheme is neither `http` nor `https`.
    #[error("only http and https URLs are allowed")]
    Scheme,
    /// The URL contains user info: `https://user:password@host/`.
    #[error("the URL contains a user name or a password, or an `@` before its path")]
    UserInfo,
    /// The host is an IP address in an unusual spelling, such as `http://2130706433/`.
    #[error(
        "the URL's host is an IP address in an unusual spelling; write it as four decimal numbers"
    )]
    Spelling,
    /// The host name is valid only inside of a private network.
    #[error("the URL's host is not a public name")]
    Name,
    /// The host's address, written in the URL or resolved, is not public.
    #[error("the URL's host has an address that is not public ({})", .0.as_str())]
    Address(AddressClass),
    /// The port belongs to another protocol.
    #[error(
        "port {0} is not allowed; allowed are 80, 443 and those from 1024 on that belong to no other protocol"
    )]
    Port(u16),
    /// A redirect from `https` to `http`.
    #[error("the server redirects from https to http")]
    Downgrade,
    /// More than [`REDIRECTS_MAX`] redirects.
    #[error("the server redirects more than {REDIRECTS_MAX} times")]
    Redirects,
}

/// An invalid entry of an allow-list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "must be a host name, `*.` with a domain, an IP address or a range such as 10.0.0.0/8, not {0:?}"
)]
pub struct NoSuchEntry(String);

/// Which URLs and addresses may be reached: the public internet, and what the operator permits by
/// name or range.
///
/// ```
/// use callboard::web::UrlPolicy;
///
/// let policy = UrlPolicy::public();
/// assert!(policy.check_url("https://example.com/").is_ok());
/// assert!(policy.check_url("http://169.254.169.254/latest/meta-data/").is_err());
/// assert!(policy.allow("127.0.0.1")?.check_url("http://127.0.0.1:8080/").is_ok());
/// # Ok::<(), callboard::web::NoSuchEntry>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct UrlPolicy {
    names: Vec<String>,
    domains: Vec<String>,
    ranges: Vec<Range>,
}

impl UrlPolicy {
    /// Permits only the public internet.
    pub fn public() -> Self {
        Self::default()
    }

    /// Permits one more host (`host`), domain (`*.domain`), address or range. On permitted hosts
    /// every port is allowed.
    ///
    /// A permitted name may resolve to private, shared and loopback addresses, but not to
    /// link-local addresses, cloud metadata services or addresses that belong to no host; those
    /// need an entry for their range. Networks that reach IPv4 through NAT64 need the entry
    /// `64:ff9b::/96`; the embedded address is checked nevertheless.
    ///
    /// # Errors
    /// [`NoSuchEntry`] if the text is none of these.
    pub fn allow(mut self, entry: &str) -> Result<Self, NoSuchEntry> {
        let wrong = || NoSuchEntry(entry.chars().take(100).collect());
        if let Some(range) = Range::parse(entry.trim()) {
            self.ranges.push(range);
            return Ok(self);
        }
        let (name, domain) = match entry.trim().strip_prefix("*.") {
            Some(domain) => (domain, true),
            None => (entry.trim(), false),
        };
        match Host::parse(name) {
            Ok(Host::Domain(host)) if !host.is_empty() && !name.contains(['/', ':', '*']) => {
                let host = bare(&host).to_owned();
                if domain {
                    self.domains.push(host)
                } else {
                    self.names.push(host)
                }
                Ok(self)
            }
            _ => Err(wrong()),
        }
    }

    /// Parses and checks an untrusted URL. An address is checked here only if the URL contains it;
    /// names are checked again on resolution ([`super::GuardedDns`]).
    ///
    /// # Errors
    /// [`Denied`] with the first violated rule.
    pub fn check_url(&self, text: &str) -> Result<Url, Denied> {
        let text = text.trim();
        if text.len() > URL_BYTES_MAX {
            return Err(Denied::Invalid("it is longer than 8 KiB"));
        }
        if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(Denied::Invalid(
                "it contains white space or control characters",
            ));
        }
        let authority = authority(text)?;
        if authority.contains('@') {
            return Err(Denied::UserInfo);
        }
        let url = Url::parse(text).map_err(|_| Denied::Invalid("it cannot be parsed"))?;
        // Compare with the text before parsing: an IPv4 address must be written in the usual form.
        if let Some(Host::Ipv4(ip)) = url.host()
            && authority.split(':').next() != Some(ip.to_string().as_str())
        {
            return Err(Denied::Spelling);
        }
        self.check(&url)?;
        Ok(url)
    }

    /// Checks a parsed URL.
    ///
    /// # Errors
    /// [`Denied`] with the first violated rule.
    pub fn check(&self, url: &Url) -> Result<(), Denied> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(Denied::Scheme);
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Denied::UserInfo);
        }
        let permitted = match url.host() {
            None => return Err(Denied::Invalid("it names no host")),
            Some(Host::Domain(host)) => self.check_name(host)?,
            Some(Host::Ipv4(ip)) => self.check_literal(ip.into())?,
            Some(Host::Ipv6(ip)) => self.check_literal(ip.into())?,
        };
        match url.port_or_known_default() {
            Some(0) | None => Err(Denied::Port(0)),
            Some(80 | 443) => Ok(()),
            Some(_) if permitted => Ok(()),
            Some(port) if port < 1024 || OTHER_PORTS.contains(&port) => Err(Denied::Port(port)),
            Some(_) => Ok(()),
        }
    }

    /// Checks the target of a redirect.
    ///
    /// # Errors
    /// [`Denied::Downgrade`], and the errors of [`UrlPolicy::check`].
    pub fn check_redirect(&self, from: &Url, to: &Url) -> Result<(), Denied> {
        if from.scheme() == "https" && to.scheme() == "http" {
            return Err(Denied::Downgrade);
        }
        if to.as_str().len() > URL_BYTES_MAX {
            return Err(Denied::Invalid("it is longer than 8 KiB"));
        }
        self.check(to)
    }

    /// Checks an address without regard to a name.
    ///
    /// # Errors
    /// [`Denied::Address`] if it is neither public nor in a permitted range.
    pub fn check_addr(&self, ip: IpAddr) -> Result<(), Denied> {
        match class(ip) {
            None => Ok(()),
            Some(_) if self.in_range(ip) => match behind_nat64(ip) {
                Some(inside) => self.check_addr(inside.into()),
                None => Ok(()),
            },
            Some(class) => Err(Denied::Address(class)),
        }
    }

    /// Checks an address that `host` resolved to.
    ///
    /// # Errors
    /// [`Denied::Address`] if it is neither public nor permitted by range or by the host's name.
    pub fn check_resolved(&self, host: &str, ip: IpAddr) -> Result<(), Denied> {
        match self.check_addr(ip) {
            Err(Denied::Address(class)) if class.opens_by_name() && self.is_named(host) => Ok(()),
            verdict => verdict,
        }
    }

    fn in_range(&self, ip: IpAddr) -> bool {
        self.ranges.iter().any(|range| range.contains(ip))
    }

    fn is_named(&self, host: &str) -> bool {
        let host = bare(host);
        let below = |domain: &String| {
            host.strip_suffix(domain.as_str())
                .is_some_and(|rest| rest.ends_with('.') && rest.len() > 1)
        };
        self.names
            .iter()
            .any(|name| host.eq_ignore_ascii_case(name))
            || self.domains.iter().any(below)
    }

    /// Checks a host name; `true` if the operator permits it by name.
    fn check_name(&self, host: &str) -> Result<bool, Denied> {
        let host = bare(host);
        if self.is_named(host) {
            return Ok(true);
        }
        let own = |name: &&str| {
            host.strip_suffix(*name)
                .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        // Labels must not be empty: extra dots would hide a private name.
        if host.split('.').any(str::is_empty)
            || host.len() > 253
            || !host.contains('.')
            || OWN_NAMES.iter().any(own)
        {
            return Err(Denied::Name);
        }
        Ok(false)
    }

    fn check_literal(&self, ip: IpAddr) -> Result<bool, Denied> {
        self.check_addr(ip)?;
        Ok(self.in_range(ip))
    }
}

/// A name without the trailing dot of a fully qualified name.
fn bare(host: &str) -> &str {
    host.strip_suffix('.').unwrap_or(host)
}

/// The text between `//` and the path, before any parsing.
fn authority(text: &str) -> Result<&str, Denied> {
    let (scheme, rest) = text
        .split_once(':')
        .ok_or(Denied::Invalid("it must start with http:// or https://"))?;
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return Err(Denied::Scheme);
    }
    let rest = rest
        .strip_prefix("//")
        .ok_or(Denied::Invalid("it must start with http:// or https://"))?;
    let end = rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len());
    if rest.get(end..).is_some_and(|path| path.starts_with('\\')) {
        return Err(Denied::Invalid("it contains a backslash"));
    }
    match rest.get(..end) {
        Some("") | None => Err(Denied::Invalid("it names no host")),
        Some(authority) => Ok(authority),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(url: &str) -> Result<String, Denied> {
        UrlPolicy::public().check_url(url).map(String::from)
    }

    #[test]
    fn public_urls_pass() {
        for url in [
            "https://example.com/",
            "http://example.com:8080/a?b=c#d",
            "https://example.com./",
            "https://EXAMPLE.com/@user/post",
            "https://example.com/?to=a@b",
            "https://bücher.example/",
            "http://8.8.8.8/",
            "https://[2606:4700:4700::1111]/",
            " https://example.com ",
        ] {
            assert!(verdict(url).is_ok(), "{url}: {:?}", verdict(url));
        }
    }

    #[test]
    fn tricks_are_refused() {
        use AddressClass::*;
        for (url, expected) in [
            ("ftp://example.com/", Denied::Scheme),
            ("file:///etc/passwd", Denied::Scheme),
            ("javascript:alert(1)", Denied::Scheme),
            ("gopher://example.com/", Denied::Scheme),
            (
                "example.com",
                Denied::Invalid("it must start with http:// or https://"),
            ),
            (
                "http:/example.com",
                Denied::Invalid("it must start with http:// or https://"),
            ),
            (
                "http:example.com",
                Denied::Invalid("it must start with http:// or https://"),
            ),
            ("http://", Denied::Invalid("it names no host")),
            ("http:///example.com", Denied::Invalid("it names no host")),
            ("http://user:pass@example.com/", Denied::UserInfo),
            ("http://@example.com/", Denied::UserInfo),
            ("http://example.com@127.0.0.1/", Denied::UserInfo),
            (
                "http://127.0.0.1\\@example.com/",
                Denied::Invalid("it contains a backslash"),
            ),
            (
                "http://exa\tmple.com/",
                Denied::Invalid("it contains white space or control characters"),
            ),
            ("http://127.0.0.1/", Denied::Address(Loopback)),
            ("http://2130706433/", Denied::Spelling),
            ("http://0x7f000001/", Denied::Spelling),
            ("http://0177.0.0.1/", Denied::Spelling),
            ("http://127.1/", Denied::Spelling),
            ("http://134744072/", Denied::Spelling),
            ("http://127.0.0.1./", Denied::Spelling),
            ("http://%31%32%37.0.0.1/", Denied::Spelling),
            ("http://１２７.0.0.1/", Denied::Spelling),
            ("http://127。0。0。1/", Denied::Spelling),
            ("http://[::1]/", Denied::Address(Loopback)),
            ("http://[::ffff:127.0.0.1]/", Denied::Address(EmbeddedIpv4)),
            (
                "http://[0:0:0:0:0:ffff:7f00:1]/",
                Denied::Address(EmbeddedIpv4),
            ),
            ("http://169.254.169.254/latest/", Denied::Address(Metadata)),
            ("http://localhost/", Denied::Name),
            ("http://.localhost.../", Denied::Name),
            ("http://LOCALHOST./", Denied::Name),
            ("http://a.localhost/", Denied::Name),
            ("http://metadata.google.internal/", Denied::Name),
            ("http://printer/", Denied::Name),
            ("http://router.local/", Denied::Name),
            ("http://example.com:22/", Denied::Port(22)),
            ("http://example.com:6667/", Denied::Port(6667)),
            ("http://example.com:0/", Denied::Port(0)),
        ] {
            assert_eq!(verdict(url), Err(expected), "{url}");
        }
    }

    #[test]
    fn only_what_the_operator_permits_is_reached() {
        let allow = |entry: &str| UrlPolicy::public().allow(entry).unwrap();

        let loopback = allow("127.0.0.1");
        assert!(loopback.check_url("http://127.0.0.1:22/").is_ok());
        assert!(
            loopback.check_url("http://127.0.0.2/").is_err()
                && loopback.check_url("http://[::ffff:127.0.0.1]/").is_err()
        );

        let named = allow("Wiki.Intranet");
        assert!(
            named.check_url("http://wiki.intranet:81/").is_ok()
                && named.check_url("http://other.intranet/").is_err()
        );
        assert!(
            named
                .check_resolved("wiki.intranet.", "10.0.0.1".parse().unwrap())
                .is_ok()
        );
        assert!(
            named
                .check_resolved("wiki.intranet", "169.254.169.254".parse().unwrap())
                .is_err()
        );
        assert!(
            named
                .check_resolved("example.com", "10.0.0.1".parse().unwrap())
                .is_err()
        );

        let domain = allow("*.corp.example");
        assert!(
            domain
                .check_resolved("a.corp.example", "10.0.0.1".parse().unwrap())
                .is_ok()
        );
        assert!(
            domain
                .check_resolved("corp.example", "10.0.0.1".parse().unwrap())
                .is_err()
        );
        assert!(
            domain
                .check_resolved("evilcorp.example", "10.0.0.1".parse().unwrap())
                .is_err()
        );

        let nat64 = allow("64:ff9b::/96");
        assert!(
            nat64
                .check_addr("64:ff9b::808:808".parse().unwrap())
                .is_ok()
        );
        assert!(
            nat64
                .check_addr("64:ff9b::7f00:1".parse().unwrap())
                .is_err()
        );

        for wrong in ["", "*", "*.", "http://a.b", "a.b:80", "a/b", "10.0.0.0/40"] {
            assert!(UrlPolicy::public().allow(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_redirect_never_leaves_https_and_is_checked_again() {
        let policy = UrlPolicy::public();
        let url = |text: &str| Url::parse(text).unwrap();

        assert_eq!(
            policy.check_redirect(&url("https://a.example/"), &url("http://a.example/")),
            Err(Denied::Downgrade)
        );
        assert_eq!(
            policy.check_redirect(&url("http://a.example/"), &url("https://b.example/")),
            Ok(())
        );
        assert_eq!(
            policy.check_redirect(&url("http://a.example/"), &url("http://2130706433/")),
            Err(Denied::Address(AddressClass::Loopback))
        );
        assert_eq!(
            policy.check_redirect(&url("http://a.example/"), &url("ftp://a.example/")),
            Err(Denied::Scheme)
        );
    }
}
