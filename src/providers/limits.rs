//! Reads the rate limits of a credential from the headers of an answer. Pure, except for the wall
//! clock, which a date needs when the server sends no `date` header.
//!
//! Two families:
//! `anthropic-ratelimit-{requests,tokens,input-tokens,output-tokens}-{limit,remaining,reset}` with
//! a date as reset, and `x-ratelimit-{limit,remaining,reset}-{requests,tokens}` with a duration. A
//! header that does not parse counts as absent.

use std::time::{Duration, SystemTime};

use callboard_actors::ports::{Allowance, RateLimits};
use reqwest::header::{DATE, HeaderMap};

/// Tokens that a call is assumed to need when a provider reports only that none are left. A wait
/// for a single token would end in the same refusal.
const USUAL_TOKENS: u64 = 2000;

/// The header names of one limit: limit, remaining, reset.
type Names = [&'static str; 3];

macro_rules! anthropic {
    ($what:literal) => {
        [
            concat!("anthropic-ratelimit-", $what, "-limit"),
            concat!("anthropic-ratelimit-", $what, "-remaining"),
            concat!("anthropic-ratelimit-", $what, "-reset"),
        ]
    };
}

/// Reads the limits of an answer, refusals included.
pub(super) fn read(headers: &HeaderMap) -> RateLimits {
    // Most servers send no limits, and one pass over the names is cheaper than a look-up of each.
    if !headers
        .keys()
        .any(|name| name.as_str().contains("ratelimit-"))
    {
        return RateLimits::default();
    }
    let allowance = |[limit, remaining, reset]: Names| {
        Some(Allowance {
            remaining: text(headers, remaining).and_then(number)?,
            limit: text(headers, limit).and_then(number),
            reset: text(headers, reset).and_then(|reset| until(reset, headers)),
        })
    };
    let plain_requests = [
        "x-ratelimit-limit-requests",
        "x-ratelimit-remaining-requests",
        "x-ratelimit-reset-requests",
    ];
    let plain_tokens = [
        "x-ratelimit-limit-tokens",
        "x-ratelimit-remaining-tokens",
        "x-ratelimit-reset-tokens",
    ];
    RateLimits {
        requests: allowance(anthropic!("requests")).or_else(|| allowance(plain_requests)),
        tokens: allowance(anthropic!("tokens")).or_else(|| allowance(plain_tokens)),
        input_tokens: allowance(anthropic!("input-tokens")),
        output_tokens: allowance(anthropic!("output-tokens")),
    }
}

/// Returns how long to wait according to these limits, for a refusal without a `retry-after`.
pub(super) fn wait(limits: &RateLimits) -> Option<Duration> {
    let tokens = [limits.tokens, limits.input_tokens, limits.output_tokens];
    let tokens = tokens
        .into_iter()
        .flatten()
        .filter_map(|tokens| tokens.until(USUAL_TOKENS))
        .max();
    limits
        .requests
        .and_then(|requests| requests.until(1))
        .max(tokens)
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers
        .get(name)
        .and_then(|value| value.to_str().ok())
        .map(str::trim)
}

/// Parses a whole number. Some servers send a fraction, or a negative number when more was used
/// than allowed.
fn number(text: &str) -> Option<u64> {
    let number = text
        .parse::<f64>()
        .ok()
        .filter(|number| number.is_finite())?;
    Some(number.clamp(0.0, 1e15) as u64)
}

/// Returns the time until a reset, which is a date or a duration.
fn until(text: &str, headers: &HeaderMap) -> Option<Duration> {
    if let Some(then) = rfc3339(text) {
        let date = self::text(headers, DATE.as_str())
            .and_then(|date| httpdate::parse_http_date(date).ok());
        return Some(
            then.duration_since(date.unwrap_or_else(SystemTime::now))
                .unwrap_or_default(),
        );
    }
    duration(text)
}

/// Parses `1s`, `6m0s`, `1h2m3.5s`, `20ms`, or plain seconds.
pub(super) fn duration(text: &str) -> Option<Duration> {
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let mut rest = text;
    let mut sum = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (amount, after) = rest.split_at_checked(digits)?;
        let letters = after
            .find(|c: char| !c.is_alphabetic())
            .unwrap_or(after.len());
        let (unit, next) = after.split_at_checked(letters)?;
        let seconds = match unit {
            "d" => 86_400.0,
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        sum += amount.parse::<f64>().ok()? * seconds;
        rest = next;
    }
    Duration::try_from_secs_f64(sum).ok()
}

/// Parses `2026-11-22T08:35:00Z`, also with a fraction (ignored) or an offset.
fn rfc3339(text: &str) -> Option<SystemTime> {
    let part = |from: usize, to: usize| text.get(from..to)?.parse::<i64>().ok();
    let separators = [(4, "-"), (7, "-"), (10, "T"), (13, ":"), (16, ":")];
    if !separators.iter().all(|(at, mark)| {
        text.get(*at..at + 1)
            .is_some_and(|found| found.eq_ignore_ascii_case(mark))
    }) {
        return None;
    }
    let year = part(0, 4)?;
    let month = part(5, 7)?;
    let day = part(8, 10)?;
    let hour = part(11, 13)?;
    let minute = part(14, 16)?;
    let second = part(17, 19)?;
    let zone = text
        .get(19..)?
        .trim_start_matches(|c: char| c == '.' || c.is_ascii_digit());
    let offset = match zone {
        "Z" | "z" => 0,
        _ => {
            let (hours, minutes) = zone.get(1..)?.split_once(':')?;
            let minutes = hours.parse::<i64>().ok()? * 60 + minutes.parse::<i64>().ok()?;
            if zone.starts_with('-') {
                -minutes
            } else {
                minutes
            }
        }
    };
    // Days since 1970 in the Gregorian calendar. Years begin in March, so a leap day is the last
    // day.
    let (year, month) = if month <= 2 {
        (year - 1, month + 9)
    } else {
        (year, month - 3)
    };
    let days = 365 * year + year.div_euclid(4) - year.div_euclid(100)
        + year.div_euclid(400)
        + (153 * month + 2) / 5
        + day
        - 1
        - 719_468;
    let seconds = days * 86_400 + hour * 3600 + (minute - offset) * 60 + second;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(u64::try_from(seconds).ok()?))
}

#[cfg(test)]
mod tests {
    use reqwest::header::{HeaderName, HeaderValue};

    use super::*;

    fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
        list.iter()
            .map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            })
            .collect()
    }

    fn allowance(limit: u64, remaining: u64, seconds: f64) -> Option<Allowance> {
        Some(Allowance {
            limit: Some(limit),
            remaining,
            reset: Some(Duration::from_secs_f64(seconds)),
        })
    }

    #[test]
    fn anthropics_headers_are_read() {
        let head = headers(&[
            ("date", "Sun, 22 Nov 2026 08:35:00 GMT"),
            ("anthropic-ratelimit-requests-limit", "50"),
            ("anthropic-ratelimit-requests-remaining", "49"),
            ("anthropic-ratelimit-requests-reset", "2026-11-22T08:35:02Z"),
            ("anthropic-ratelimit-input-tokens-limit", "30000"),
            ("anthropic-ratelimit-input-tokens-remaining", "0"),
            (
                "anthropic-ratelimit-input-tokens-reset",
                "2026-11-22T09:36:00+01:00",
            ),
            ("anthropic-ratelimit-output-tokens-limit", "8000"),
            ("anthropic-ratelimit-output-tokens-remaining", "8000"),
            (
                "anthropic-ratelimit-output-tokens-reset",
                "2026-11-22T08:34:59.123Z",
            ),
        ]);

        let limits = read(&head);

        let expected = RateLimits {
            requests: allowance(50, 49, 2.0),
            tokens: None,
            input_tokens: allowance(30_000, 0, 60.0),
            output_tokens: allowance(8000, 8000, 0.0),
        };
        assert_eq!(limits, expected);
        assert_eq!(
            wait(&limits),
            Some(Duration::from_secs(4)),
            "2,000 of 30,000 in a minute"
        );
    }

    #[test]
    fn openais_headers_are_read() {
        let head = headers(&[
            ("x-ratelimit-limit-requests", "60"),
            ("x-ratelimit-remaining-requests", "0"),
            ("x-ratelimit-reset-requests", "1m0s"),
            ("x-ratelimit-limit-tokens", "150000"),
            ("x-ratelimit-remaining-tokens", "149984"),
            ("x-ratelimit-reset-tokens", "6ms"),
        ]);

        let limits = read(&head);

        let expected = RateLimits {
            requests: allowance(60, 0, 60.0),
            tokens: allowance(150_000, 149_984, 0.006),
            ..RateLimits::default()
        };
        assert_eq!(limits, expected);
        assert_eq!(wait(&limits), Some(Duration::from_secs(1)));
    }

    #[test]
    fn an_unreadable_header_counts_as_absent() {
        for value in ["", "many", "NaN", "inf"] {
            assert!(
                read(&headers(&[("x-ratelimit-remaining-requests", value)])).is_empty(),
                "{value}"
            );
        }
        assert!(read(&headers(&[("x-ratelimit-limit-requests", "5")])).is_empty());
        assert_eq!(
            read(&headers(&[("x-ratelimit-remaining-tokens", "-3")]))
                .tokens
                .map(|tokens| tokens.remaining),
            Some(0)
        );
        for text in [
            "",
            "s",
            "1",
            "1x",
            "2026-11-22",
            "2026-11-22T08:35",
            "2026-11-22T08:35:00+",
            "9m9",
            "é2026-11-22T08:35:00Z",
            "-1s",
        ] {
            assert!(rfc3339(text).is_none(), "{text}");
        }
        for (text, seconds) in [
            ("1h2m3.5s", Some(3723.5)),
            ("20ms", Some(0.02)),
            ("12", Some(12.0)),
            ("1x", None),
            ("-1s", None),
            ("9m9", None),
        ] {
            assert_eq!(
                duration(text),
                seconds.map(Duration::from_secs_f64),
                "{text}"
            );
        }
    }

    #[test]
    fn a_date_is_the_day_it_says() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T12:00:00Z", 951_825_600),
            ("2024-12-31T23:59:59Z", 1_735_689_599),
            ("2026-11-22T08:35:00-02:30", 1_795_345_500),
        ] {
            assert_eq!(
                rfc3339(text),
                Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)),
                "{text}"
            );
        }
    }
}
