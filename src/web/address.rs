//! Classifies IP addresses as public or special. Pure. Fails closed: an address that no rule
//! classifies as public is refused.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Why an address is not public. The ranges are those of IANA's special-purpose registries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AddressClass {
    /// `0.0.0.0/8` and `::`: this host.
    Unspecified,
    /// `127.0.0.0/8` and `::1`: this host.
    Loopback,
    /// `10/8`, `172.16/12` and `192.168/16`: private networks (RFC 1918).
    Private,
    /// `100.64.0.0/10`: carrier-grade NAT (RFC 6598).
    Shared,
    /// `169.254.0.0/16` and `fe80::/10`: the local link.
    LinkLocal,
    /// Metadata services of clouds, which hand out a machine's credentials; in several ranges.
    Metadata,
    /// `192.0.0.0/24`, `192.88.99.0/24` and `2001::/23` (Teredo included): assigned to protocols.
    Protocol,
    /// Ranges for examples in documentation.
    Documentation,
    /// `198.18.0.0/15`: network benchmarks.
    Benchmarking,
    /// `224.0.0.0/4` and `ff00::/8`: multicast groups.
    Multicast,
    /// `255.255.255.255`: the limited broadcast address.
    Broadcast,
    /// `240.0.0.0/4`, and all of IPv6 that is not allocated.
    Reserved,
    /// `fc00::/7`: IPv6's private networks (RFC 4193).
    UniqueLocal,
    /// `fec0::/10`: deprecated site-local addresses.
    SiteLocal,
    /// An IPv4 address embedded in IPv6: mapped, compatible, translated, NAT64, 6to4 or ISATAP.
    EmbeddedIpv4,
}

impl AddressClass {
    /// The class in words, for error texts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unspecified => "unspecified",
            Self::Loopback => "loopback",
            Self::Private => "private",
            Self::Shared => "carrier-grade NAT",
            Self::LinkLocal => "link-local",
            Self::Metadata => "cloud metadata",
            Self::Protocol => "protocol",
            Self::Documentation => "documentation",
            Self::Benchmarking => "benchmarking",
            Self::Multicast => "multicast",
            Self::Broadcast => "broadcast",
            Self::Reserved => "reserved",
            Self::UniqueLocal => "unique local",
            Self::SiteLocal => "site-local",
            Self::EmbeddedIpv4 => "IPv4 inside IPv6",
        }
    }

    /// Whether an allow-list entry for a host name also permits this class of resolved address.
    /// Metadata services and addresses that belong to no host are excluded: they need an entry for
    /// their range.
    pub(super) fn opens_by_name(self) -> bool {
        match self {
            Self::Loopback | Self::Private | Self::Shared | Self::UniqueLocal | Self::SiteLocal => {
                true
            }
            Self::Unspecified
            | Self::LinkLocal
            | Self::Metadata
            | Self::Protocol
            | Self::Documentation
            | Self::Benchmarking
            | Self::Multicast
            | Self::Broadcast
            | Self::Reserved
            | Self::EmbeddedIpv4 => false,
        }
    }
}

/// The class of a special address; `None` for a public one.
pub(super) fn class(ip: IpAddr) -> Option<AddressClass> {
    match ip {
        IpAddr::V4(ip) => class_v4(ip),
        IpAddr::V6(ip) => class_v6(ip),
    }
}

fn class_v4(ip: Ipv4Addr) -> Option<AddressClass> {
    Some(match ip.octets() {
        // Azure's agent has an address that looks public; Alibaba's and Oracle's are in ranges with
        // other purposes.
        [168, 63, 129, 16] | [169, 254, 169, 254] | [100, 100, 100, 200] | [192, 0, 0, 192] => {
            AddressClass::Metadata
        }
        [0, ..] => AddressClass::Unspecified,
        [127, ..] => AddressClass::Loopback,
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => AddressClass::Private,
        [100, 64..=127, ..] => AddressClass::Shared,
        [169, 254, ..] => AddressClass::LinkLocal,
        [192, 0, 0, _] | [192, 88, 99, _] => AddressClass::Protocol,
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => AddressClass::Documentation,
        [198, 18..=19, ..] => AddressClass::Benchmarking,
        [224..=239, ..] => AddressClass::Multicast,
        [255, 255, 255, 255] => AddressClass::Broadcast,
        [240..=255, ..] => AddressClass::Reserved,
        _ => return None,
    })
}

fn class_v6(ip: Ipv6Addr) -> Option<AddressClass> {
    Some(match ip.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => AddressClass::Unspecified,
        [0, 0, 0, 0, 0, 0, 0, 1] => AddressClass::Loopback,
        // Compatible, mapped and translated; then NAT64, well-known and local (RFC 6052, RFC 8215).
        [0, 0, 0, 0, 0, 0 | 0xffff, ..] | [0, 0, 0, 0, 0xffff, 0, ..] => AddressClass::EmbeddedIpv4,
        [0x64, 0xff9b, 0, 0, 0, 0, ..] | [0x64, 0xff9b, 1, ..] => AddressClass::EmbeddedIpv4,
        [0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x0254] | [0xfd20, 0x00ce, 0, 0, 0, 0, 0, 0x0254] => {
            AddressClass::Metadata
        }
        [0xfe80..=0xfebf, ..] => AddressClass::LinkLocal,
        [0xfec0..=0xfeff, ..] => AddressClass::SiteLocal,
        [0xfc00..=0xfdff, ..] => AddressClass::UniqueLocal,
        [0xff00..=0xffff, ..] => AddressClass::Multicast,
        [0x2002, ..] => AddressClass::EmbeddedIpv4,
        [0x2001, 0x0db8, ..] | [0x3fff, 0..=0x0fff, ..] => AddressClass::Documentation,
        [0x2001, 0x0000..=0x01ff, ..] => AddressClass::Protocol,
        // ISATAP (RFC 5214), for any value of the identifier's two flag bits.
        [_, _, _, _, 0x0000 | 0x0100 | 0x0200 | 0x0300, 0x5efe, ..] => AddressClass::EmbeddedIpv4,
        [0x2000..=0x3fff, ..] => return None,
        _ => AddressClass::Reserved,
    })
}

/// The IPv4 address embedded after NAT64's well-known prefix.
pub(super) fn behind_nat64(ip: IpAddr) -> Option<Ipv4Addr> {
    match ip {
        IpAddr::V6(ip) => match (ip.segments(), ip.octets()) {
            ([0x64, 0xff9b, 0, 0, 0, 0, ..], [.., a, b, c, d]) => Some(Ipv4Addr::new(a, b, c, d)),
            _ => None,
        },
        IpAddr::V4(_) => None,
    }
}

/// A range of addresses, or a single one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    first: IpAddr,
    prefix: u32,
}

impl Range {
    /// Parses `10.0.0.0/8`, `fd00::/8` or a single address.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text
            .split_once('/')
            .map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let address: IpAddr = address.trim_matches(['[', ']']).parse().ok()?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().ok()?
            }
            Some(_) => return None,
            None => bits,
        };
        (prefix <= bits).then_some(Self {
            first: address,
            prefix,
        })
    }

    pub(super) fn contains(self, ip: IpAddr) -> bool {
        match (self.first, ip) {
            (IpAddr::V4(first), IpAddr::V4(ip)) => {
                same_bits(first.to_bits().into(), ip.to_bits().into(), self.prefix, 32)
            }
            (IpAddr::V6(first), IpAddr::V6(ip)) => {
                same_bits(first.to_bits(), ip.to_bits(), self.prefix, 128)
            }
            _ => false,
        }
    }
}

fn same_bits(left: u128, right: u128, prefix: u32, bits: u32) -> bool {
    // `checked_shr` fails for a shift by all 128 bits: then no bits are compared.
    (left ^ right).checked_shr(bits - prefix).unwrap_or(0) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_includes_its_first_and_last_address_and_its_neighbors_are_public() {
        use AddressClass::*;
        let rows: &[(&str, Option<AddressClass>)] = &[
            ("0.0.0.0", Some(Unspecified)),
            ("0.255.255.255", Some(Unspecified)),
            ("1.0.0.0", None),
            ("9.255.255.255", None),
            ("10.0.0.0", Some(Private)),
            ("10.255.255.255", Some(Private)),
            ("11.0.0.0", None),
            ("100.63.255.255", None),
            ("100.64.0.0", Some(Shared)),
            ("100.127.255.255", Some(Shared)),
            ("100.100.100.200", Some(Metadata)),
            ("100.128.0.0", None),
            ("126.255.255.255", None),
            ("127.0.0.0", Some(Loopback)),
            ("127.255.255.255", Some(Loopback)),
            ("128.0.0.0", None),
            ("168.63.129.16", Some(Metadata)),
            ("169.253.255.255", None),
            ("169.254.0.0", Some(LinkLocal)),
            ("169.254.169.254", Some(Metadata)),
            ("169.254.255.255", Some(LinkLocal)),
            ("169.255.0.0", None),
            ("172.15.255.255", None),
            ("172.16.0.0", Some(Private)),
            ("172.31.255.255", Some(Private)),
            ("172.32.0.0", None),
            ("192.0.0.0", Some(Protocol)),
            ("192.0.0.192", Some(Metadata)),
            ("192.0.1.0", None),
            ("192.0.2.1", Some(Documentation)),
            ("192.88.99.1", Some(Protocol)),
            ("192.167.255.255", None),
            ("192.168.0.0", Some(Private)),
            ("192.168.255.255", Some(Private)),
            ("192.169.0.0", None),
            ("198.17.255.255", None),
            ("198.18.0.0", Some(Benchmarking)),
            ("198.19.255.255", Some(Benchmarking)),
            ("198.20.0.0", None),
            ("198.51.100.7", Some(Documentation)),
            ("203.0.113.7", Some(Documentation)),
            ("223.255.255.255", None),
            ("224.0.0.0", Some(Multicast)),
            ("239.255.255.255", Some(Multicast)),
            ("240.0.0.0", Some(Reserved)),
            ("255.255.255.254", Some(Reserved)),
            ("255.255.255.255", Some(Broadcast)),
            ("8.8.8.8", None),
            ("::", Some(Unspecified)),
            ("::1", Some(Loopback)),
            ("::2", Some(EmbeddedIpv4)),
            ("::127.0.0.1", Some(EmbeddedIpv4)),
            ("::ffff:127.0.0.1", Some(EmbeddedIpv4)),
            ("::ffff:8.8.8.8", Some(EmbeddedIpv4)),
            ("::ffff:0:127.0.0.1", Some(EmbeddedIpv4)),
            ("64:ff9b::7f00:1", Some(EmbeddedIpv4)),
            ("64:ff9b:1::7f00:1", Some(EmbeddedIpv4)),
            ("64:ff9b:1:fffe::a00:1", Some(EmbeddedIpv4)),
            ("64:ff9b:2::1", Some(Reserved)),
            ("100::1", Some(Reserved)),
            ("1fff:ffff::1", Some(Reserved)),
            ("2001::1", Some(Protocol)),
            ("2001:0:4136:e378:8000:63bf:80ff:fffe", Some(Protocol)),
            ("2001:2::1", Some(Protocol)),
            ("2001:10::1", Some(Protocol)),
            ("2001:1ff::1", Some(Protocol)),
            ("2001:200::1", None),
            ("2001:db8::1", Some(Documentation)),
            ("2001:4860:4860::8888", None),
            ("2002:7f00:1::1", Some(EmbeddedIpv4)),
            ("2606:4700:4700::1111", None),
            ("2606:4700::5efe:10.0.0.1", Some(EmbeddedIpv4)),
            ("2606:4700::200:5efe:10.0.0.1", Some(EmbeddedIpv4)),
            ("3fff::1", Some(Documentation)),
            ("3fff:1000::1", None),
            ("4000::1", Some(Reserved)),
            ("5f00::1", Some(Reserved)),
            ("fc00::1", Some(UniqueLocal)),
            ("fd00:ec2::254", Some(Metadata)),
            ("fd20:ce::254", Some(Metadata)),
            ("fdff::1", Some(UniqueLocal)),
            ("fe7f::1", Some(Reserved)),
            ("fe80::1", Some(LinkLocal)),
            ("febf::1", Some(LinkLocal)),
            ("fec0::1", Some(SiteLocal)),
            ("feff::1", Some(SiteLocal)),
            ("ff02::1", Some(Multicast)),
        ];
        for (address, expected) in rows {
            assert_eq!(class(address.parse().unwrap()), *expected, "{address}");
        }
    }

    #[test]
    fn ranges_contain_what_their_prefix_says() {
        let holds =
            |range: &str, ip: &str| Range::parse(range).unwrap().contains(ip.parse().unwrap());

        assert!(holds("10.1.0.0/16", "10.1.255.255") && !holds("10.1.0.0/16", "10.2.0.0"));
        assert!(
            holds("0.0.0.0/0", "9.9.9.9") && !holds("0.0.0.0/0", "::1") && holds("::/0", "::1")
        );
        assert!(
            holds("127.0.0.1", "127.0.0.1")
                && !holds("127.0.0.1", "127.0.0.2")
                && !holds("127.0.0.1", "::ffff:127.0.0.1")
        );
        assert!(holds("[fd00::]/8", "fdff::1") && !holds("fd00::/8", "fe00::1"));
        for wrong in [
            "10.0.0.0/33",
            "10.0.0.0/+8",
            "10.0.0/8",
            "::/129",
            "10.0.0.0/",
            "host",
        ] {
            assert_eq!(Range::parse(wrong), None, "{wrong}");
        }
    }
}
