//! The URL policy under random spellings: every accepted URL leads to a public host.
//! `CALLBOARD_SEED` replays a run.

use std::net::Ipv4Addr;

use callboard::web::UrlPolicy;
use callboard_actors::testing::TestSize;

use crate::support::{SplitMix, seed};

/// Rounds of a property test; `CALLBOARD_LONG=1` multiplies them by a hundred.
fn rounds(usual: usize) -> usize {
    if TestSize::is_long() {
        usual * 100
    } else {
        usual
    }
}

fn number(value: u32, random: &mut SplitMix) -> String {
    match random.below(5) {
        0 => format!("{value:#x}"),
        1 => format!("0{value:o}"),
        2 => format!("0X{value:X}"),
        3 => format!("{}{value:o}", "0".repeat(1 + random.below(9))),
        _ => value.to_string(),
    }
}

/// A random one of the many spellings of an address that browsers accept.
fn spelling(ip: Ipv4Addr, random: &mut SplitMix) -> String {
    let bits = ip.to_bits();
    let [a, b, c, d] = ip.octets().map(u32::from);
    let mut text = match random.below(8) {
        0 => number(bits, random),
        1 => format!("{}.{}", number(a, random), number(bits & 0xff_ffff, random)),
        2 => format!(
            "{}.{}.{}",
            number(a, random),
            number(b, random),
            number(bits & 0xffff, random)
        ),
        3 => format!(
            "{}.{}.{}.{}",
            number(a, random),
            number(b, random),
            number(c, random),
            number(d, random)
        ),
        4 => format!("[::ffff:{ip}]"),
        5 => format!("[::{:x}:{:x}]", bits >> 16, bits & 0xffff),
        6 => format!("[64:ff9b::{ip}]"),
        _ => format!(
            "[2002:{:x}:{:x}::{:x}]",
            bits >> 16,
            bits & 0xffff,
            random.below(65536)
        ),
    };
    if !text.starts_with('[') {
        if random.below(4) == 0 {
            text.push('.');
        }
        text = text
            .chars()
            .map(|c| match random.below(6) {
                0 if c.is_ascii_digit() => {
                    char::from_u32(0xff10 + u32::from(c) - u32::from('0')).unwrap()
                }
                1 if c == '.' => ['。', '．', '｡'][random.below(3)],
                _ => c,
            })
            .collect();
        if random.below(5) == 0 {
            text = text.bytes().map(|byte| format!("%{byte:02x}")).collect();
        }
    }
    text
}

#[test]
fn no_spelling_of_an_inner_address_passes() {
    let mut random = SplitMix(seed("no_spelling_of_an_inner_address_passes"));
    let inner = [
        "127.0.0.1",
        "10.1.2.3",
        "172.20.0.1",
        "192.168.0.1",
        "169.254.169.254",
        "100.64.1.1",
        "0.0.0.0",
        "198.18.0.1",
    ];
    let policy = UrlPolicy::public();

    for _ in 0..rounds(20_000) {
        let ip: Ipv4Addr = inner[random.below(inner.len())].parse().unwrap();
        let host = spelling(ip, &mut random);
        let scheme = ["http", "https", "HTTP", "hTTps"][random.below(4)];
        let port = ["", ":80", ":8080", ":0443"][random.below(4)];
        let url = format!(
            "{scheme}://{host}{port}/{}",
            ["", "a?b#c", "@x"][random.below(3)]
        );
        assert!(policy.check_url(&url).is_err(), "{url}");
    }
}

#[test]
fn what_passes_leads_to_a_public_host_whatever_it_looks_like() {
    const PARTS: &[&str] = &[
        "http",
        "https",
        "ftp",
        ":",
        "/",
        "//",
        "\\",
        "@",
        "[",
        "]",
        "::",
        "::1",
        "ffff",
        ".",
        "。",
        "127",
        "127.0.0.1",
        "0x7f",
        "0177",
        "1",
        "%2e",
        "%00",
        "%",
        "#",
        "?",
        "a",
        "localhost",
        "example.com",
        "xn--",
        "ａ",
        "\t",
        "\n",
        " ",
        "\u{200b}",
        "\u{ad}",
        "ß",
        "8.8.8.8",
        "443",
        "22",
        "0",
    ];
    let mut random = SplitMix(seed(
        "what_passes_leads_to_a_public_host_whatever_it_looks_like",
    ));
    let policy = UrlPolicy::public();
    let mut passed = 0;

    for _ in 0..rounds(50_000) {
        let mut url = String::new();
        if random.below(3) > 0 {
            url.push_str(["http://", "https://"][random.below(2)]);
        }
        for _ in 0..1 + random.below(6) {
            url.push_str(PARTS[random.below(PARTS.len())]);
        }
        let Ok(parsed) = policy.check_url(&url) else {
            continue;
        };
        passed += 1;
        let host = parsed.host_str().unwrap().trim_matches(['[', ']']);
        assert!(
            matches!(parsed.scheme(), "http" | "https")
                && parsed.username().is_empty()
                && parsed.password().is_none(),
            "{url}"
        );
        match host.parse() {
            Ok(ip) => assert_eq!(policy.check_addr(ip), Ok(()), "{url}"),
            Err(_) => assert!(
                host.contains('.')
                    && host != "localhost"
                    && !host.trim_end_matches('.').ends_with(".localhost"),
                "{url}"
            ),
        }
        // The normalized URL, which is shown, approved and cached, is accepted as well.
        assert_eq!(policy.check_url(parsed.as_str()), Ok(parsed), "{url}");
    }

    assert!(
        passed > 100,
        "only {passed} passed: the property proves nothing"
    );
}

#[test]
fn public_addresses_pass_in_their_usual_spelling() {
    let mut random = SplitMix(seed("public_addresses_pass_in_their_usual_spelling"));
    let policy = UrlPolicy::public();

    for _ in 0..rounds(5_000) {
        let ip = Ipv4Addr::from_bits(u32::try_from(random.next() >> 32).unwrap());
        let verdict = policy.check_url(&format!("http://{ip}/")).map(drop);
        assert_eq!(verdict, policy.check_addr(ip.into()), "{ip}");
        let own = ip.is_private()
            || ip.is_loopback()
            || ip.is_link_local()
            || ip.is_multicast()
            || ip.is_documentation()
            || ip.is_broadcast();
        assert!(!own || verdict.is_err(), "{ip}");
    }
}
