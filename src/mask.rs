//! Masks keys and passwords in text: keys known exactly in every text, known shapes of keys in the
//! output of commands.

use std::{fmt, sync::LazyLock};

use grep_matcher::{Captures, Matcher};
use grep_regex::{RegexMatcher, RegexMatcherBuilder};

/// The start of every mask. `file_edit` refuses a text that holds it.
pub const MARK: &str = "[masked:";

/// Shorter configured keys are not masked, because they would hide ordinary words.
const SECRET_BYTES_MIN: usize = 6;

/// Shapes of keys. The whole match is masked.
const SHAPES: &[&str] = &[
    r"\bsk-[A-Za-z0-9_\-]{16,}",
    r"\b(?:sk|rk|pk)_(?:live|test)_[0-9A-Za-z]{10,}",
    r"\bwhsec_[0-9A-Za-z+/=]{16,}",
    r"\b(?:AKIA|ASIA|ABIA|ACCA|AROA|AIDA)[A-Z0-9]{16}\b",
    r"\bgh[pousr]_[A-Za-z0-9]{20,}",
    r"\bgithub_pat_[A-Za-z0-9_]{20,}",
    r"\bgl(?:pat|rt|dt|cbt|ptt|ft|soat)-[A-Za-z0-9_\-.]{16,}",
    r"\bxox[abeoprs]-[A-Za-z0-9\-]{10,}",
    r"\bxapp-[A-Za-z0-9\-]{10,}",
    r"\bhttps://hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9+/]{20,}",
    r"\bAIza[0-9A-Za-z_\-]{35}",
    r"\bya29\.[0-9A-Za-z_\-]{20,}",
    r"\bGOCSPX-[0-9A-Za-z_\-]{20,}",
    r"\bSG\.[A-Za-z0-9_\-]{16,}\.[A-Za-z0-9_\-]{16,}",
    r"\bnpm_[A-Za-z0-9]{30,}",
    r"\bpypi-[A-Za-z0-9_\-]{30,}",
    r"\bhf_[A-Za-z0-9]{30,}",
    r"\b(?:gsk|tvly|xai|pplx|r8|nvapi|fw|csk|jina|lsv2_pt|lsv2_sk|dckr_pat|lin_api|ntn|hvs|hvb|dapi|shpat|shpss|shpca|shppa|rubygems|dop_v1|doo_v1|dor_v1|PMAK|sntrys|sntryu|phc|phx|figd|pat-na1|secret)[_\-.][A-Za-z0-9_\-]{24,}",
    r"\bdapi[a-f0-9]{32}\b",
    r"\bsq0(?:atp|csp)-[0-9A-Za-z_\-]{20,}",
    r"\bSK[0-9a-f]{32}\b",
    r"\bkey-[0-9a-f]{32}\b",
    r"\b[0-9]{8,10}:AA[A-Za-z0-9_\-]{33}",
    r"\b[MNO][A-Za-z0-9_\-]{22,27}\.[A-Za-z0-9_\-]{6}\.[A-Za-z0-9_\-]{27,40}",
    r"\bATATT3[A-Za-z0-9_\-=]{20,}",
    r"\bAGE-SECRET-KEY-1[A-Z0-9]{50,}",
    r"\bEAACEdEose0cBA[0-9A-Za-z]+",
    r"\beyJ[A-Za-z0-9_\-]{8,}\.eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}",
];

/// What ends in a letter or a digit and may stand directly before a key: a color of a terminal, and
/// escapes of JSON and of URLs.
const ESCAPES: &str = r"(?:\x1b\[[0-9;:]*[A-Za-z]|\\[bfnrt]|\\u[0-9A-Fa-f]{4}|%[0-9A-Fa-f]{2})";

/// First and last line of a private key. What lies between is found without a pattern: a bounded
/// repetition of any character compiles to one state per byte, half a second for all of them.
const BLOCK_BEGIN: &str = "-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----";
const BLOCK_END: &str = "-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----";

/// Bytes between the two lines of a private key. A first line that is followed by more text without
/// a last line is not masked.
const BLOCK_BYTES_MAX: usize = 16 * 1024;

/// Words that introduce a key. Only the key after them, the group `v`, is masked.
const INTRODUCED: &[&str] = &[
    r"(?i)\b(?:proxy-)?authorization['\x22]?(?u:\s)*[:=](?u:\s)*['\x22]?(?:(?:bearer|basic|token|digest|apikey)(?u:\s)+)?(?P<v>(?u:[^\s'\x22,;]){6,})",
    r"(?i)\bbearer(?u:\s)+(?P<v>[A-Za-z0-9_\-.~+/=]{16,})",
    r"(?i)\b(?:x-api-key|api-key|x-auth-token|x-goog-api-key|set-cookie|cookie)['\x22]?(?u:\s)*:(?u:\s)*['\x22]?(?P<v>(?u:[^\s'\x22,;]){6,})",
    r"(?i)\b[a-z][a-z0-9+.\-]*://(?u:[^\s/:@'\x22])*:(?P<v>(?u:[^\s/@'\x22]){2,})@",
    r"(?i)--(?:password|passwd|token|api-key|secret)(?:(?u:\s)+|=)['\x22]?(?P<v>(?u:[^\s'\x22\-][^\s'\x22]{3,}))",
];

/// `NAME = value` with a name that suggests a key. [`looks_like_a_key`] decides about the value.
const ASSIGNED: &str = r"(?i)(?P<n>[A-Za-z0-9_.\-]*(?:pass(?:word|wd|phrase)?|pwd|secret|token|api_?-?key|access_?-?key|private_?-?key|auth_?-?key|encryption_?-?key|credentials?|connection_?-?string|account_?-?key)[A-Za-z0-9_\-]{0,20})(?P<s>['\x22]?[ \t]{0,4}(?::=|=>|[:=])[ \t]{0,4})(?P<v>\x22(?u:[^\x22\r\n]){3,}\x22|'(?u:[^'\r\n]){3,}'|(?u:[^\s'\x22,;&)}\]]){3,})";

struct Patterns {
    shapes: Option<RegexMatcher>,
    block: Option<(RegexMatcher, RegexMatcher)>,
    introduced: Vec<RegexMatcher>,
    assigned: Option<RegexMatcher>,
}

// Immutable tables may be process-wide. A test builds every pattern.
static PATTERNS: LazyLock<Patterns> = LazyLock::new(|| Patterns {
    shapes: compile(&format!("(?:{})", SHAPES.join("|"))).ok(),
    block: compile(BLOCK_BEGIN).ok().zip(compile(BLOCK_END).ok()),
    introduced: INTRODUCED
        .iter()
        .map(|pattern| (*pattern).to_owned())
        .chain([escaped()])
        .filter_map(|pattern| compile(&pattern).ok())
        .collect(),
    assigned: compile(ASSIGNED).ok(),
});

/// Whether the patterns are compiled, so that masking does not wait for it.
pub fn is_prepared() -> bool {
    LazyLock::get(&PATTERNS).is_some()
}

/// Compiles the patterns now. This takes a tenth of a second once per process; without this call
/// the first masked text waits for it.
pub fn prepare() {
    LazyLock::force(&PATTERNS);
}

/// The shapes behind an escape.
fn escaped() -> String {
    let shapes = SHAPES
        .iter()
        .map(|shape| shape.strip_prefix(r"\b").unwrap_or(shape));
    let shapes: Vec<&str> = shapes.collect();
    format!("{ESCAPES}(?P<v>{})", shapes.join("|"))
}

// Keys are ASCII, so boundaries, classes and cases are, except where a pattern says `(?u:…)`:
// blanks and values may be any. A boundary of Unicode lets the engine fall back to one that takes
// up to fifty times as long where a character is not ASCII, and finds no key directly after a
// letter that is not.
fn compile(pattern: &str) -> Result<RegexMatcher, grep_regex::Error> {
    RegexMatcherBuilder::new()
        .multi_line(false)
        .unicode(false)
        .build(pattern)
}

/// Masks the host's own keys and keys of known shapes. Share it in an `Arc`.
#[derive(Clone, Default)]
pub struct Masker {
    /// Longest first, so that a key that contains another one is masked whole.
    secrets: Vec<String>,
}

impl fmt::Debug for Masker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Masker({} secrets)", self.secrets.len())
    }
}

impl Masker {
    /// Creates a masker that knows these keys exactly. Keys shorter than six bytes are ignored.
    pub fn new(secrets: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let mut secrets: Vec<String> = secrets
            .into_iter()
            .map(|secret| secret.into().trim().to_owned())
            .filter(|secret| secret.len() >= SECRET_BYTES_MIN)
            .collect();
        secrets.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        secrets.dedup();
        Self { secrets }
    }

    /// Creates a masker for the keys in this process's environment: values of variables whose names
    /// suggest a key, token or password.
    pub fn from_env() -> Self {
        const TELLING: &[&str] = &["KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL"];
        let telling = |name: &str| {
            TELLING
                .iter()
                .any(|word| name.to_ascii_uppercase().ends_with(word))
        };
        let values = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        // Flags and paths (`SSH_KEY=/…`) are not keys.
        Self::new(
            values
                .filter(|(name, value)| {
                    telling(name) && value.len() >= 8 && !value.starts_with('/')
                })
                .map(|(_, value)| value),
        )
    }

    /// Adds more exact keys.
    #[must_use]
    pub fn and(self, secrets: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self::new(
            self.secrets
                .into_iter()
                .chain(secrets.into_iter().map(Into::into)),
        )
    }

    /// Masks the configured keys only. For contents of files, where a shape may be an example.
    pub fn mask_exact(&self, text: &str) -> String {
        let spans = self.exact_spans(text);
        replace(text, spans)
    }

    /// Masks the configured keys, and anything with the shape of a key or password.
    pub fn mask(&self, text: &str) -> String {
        let mut spans = self.exact_spans(text);
        spans.extend(shape_spans(text));
        replace(text, spans)
    }

    /// Where the configured keys are, in bytes.
    pub(crate) fn exact_spans(&self, text: &str) -> Vec<(usize, usize)> {
        let known = self.secrets.iter().flat_map(|secret| {
            text.match_indices(secret.as_str())
                .map(|(at, hit)| (at, at + hit.len()))
        });
        known.chain(own_keys(text)).collect()
    }
}

/// Finds keys of this server's own API (`callboard keys new`): `cb_` and 64 hex digits. They are
/// found by shape, because only their hashes are stored; no ordinary word has this form.
fn own_keys(text: &str) -> impl Iterator<Item = (usize, usize)> {
    const DIGITS: usize = 64;
    text.match_indices("cb_").filter_map(|(at, start)| {
        let from = at + start.len();
        let digits = text.as_bytes().get(from..from + DIGITS)?;
        digits
            .iter()
            .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte))
            .then_some((at, from + DIGITS))
    })
}

fn shape_spans(text: &str) -> Vec<(usize, usize)> {
    let mut spans = Vec::new();
    if let Some(shapes) = &PATTERNS.shapes {
        let _ = shapes.find_iter(text.as_bytes(), |hit| {
            spans.push((hit.start(), hit.end()));
            true
        });
    }
    if let Some((begin, end)) = &PATTERNS.block {
        spans.extend(block_spans(begin, end, text));
    }
    for matcher in &PATTERNS.introduced {
        each_value(matcher, text, |_, _, value| spans.push(value));
    }
    if let Some(assigned) = &PATTERNS.assigned {
        each_value(assigned, text, |name, separator, (start, end)| {
            let value = text.get(start..end).unwrap_or_default();
            let quoted = value.starts_with(['"', '\'']);
            let inner = value.trim_matches(['"', '\'']);
            if looks_like_a_key(name, separator, inner, quoted) {
                let shift = usize::from(quoted);
                spans.push((start + shift, start + shift + inner.len()));
            }
        });
    }
    spans
}

/// Finds private keys from their first line to their last, or to the end of the text.
fn block_spans(begin: &RegexMatcher, end: &RegexMatcher, text: &str) -> Vec<(usize, usize)> {
    let last_line = |from| end.find_at(text.as_bytes(), from).ok().flatten();
    let mut spans = Vec::new();
    let mut last = last_line(0);
    let mut from = 0;
    while let Ok(Some(first)) = begin.find_at(text.as_bytes(), from) {
        from = first.end();
        // Searched again only when it lies behind, so that many first lines take linear time.
        if last.is_some_and(|last| last.start() < from) {
            last = last_line(from);
        }
        let (body, stop) = last.map_or((text.len(), text.len()), |last| (last.start(), last.end()));
        if body - from <= BLOCK_BYTES_MAX {
            spans.push((first.start(), stop));
            from = stop;
        }
    }
    spans
}

/// Calls `each` with name, separator and span of the value of every match.
fn each_value(
    matcher: &RegexMatcher,
    text: &str,
    mut each: impl FnMut(&str, &str, (usize, usize)),
) {
    let Ok(mut captures) = matcher.new_captures() else {
        return;
    };
    let group = |name: &str| matcher.capture_index(name);
    let name = group("n");
    let separator = group("s");
    let value = group("v");
    let _ = matcher.captures_iter(text.as_bytes(), &mut captures, |found| {
        let part = |index: Option<usize>| {
            index
                .and_then(|i| found.get(i))
                .map_or((0, 0), |hit| (hit.start(), hit.end()))
        };
        let word = |(start, end): (usize, usize)| text.get(start..end).unwrap_or_default();
        each(word(part(name)), word(part(separator)), part(value));
        true
    });
}

/// Separates `password=hunter2` from `password: String` and `token = self.next()`. False alarms
/// matter as much as misses, because they make code unreadable.
fn looks_like_a_key(name: &str, separator: &str, value: &str, quoted: bool) -> bool {
    let lower = value.to_ascii_lowercase();
    let is_word = [
        "true",
        "false",
        "null",
        "none",
        "nil",
        "undefined",
        "required",
        "optional",
        "string",
        "str",
        "yes",
        "no",
        "redacted",
        "hidden",
    ];
    if value.len() < 3
        || is_word.contains(&lower.as_str())
        || value.starts_with(['$', '<', '{', '%', '*', '(', '['])
        || value.contains(MARK)
    {
        return false;
    }
    // The rest of a `::`, and types of numbers, are code.
    let is_number_type = |word: &str| {
        word.strip_prefix(['u', 'i', 'f'])
            .is_some_and(|bits| matches!(bits, "8" | "16" | "32" | "64" | "128" | "size"))
    };
    if separator.trim() == ":"
        && (value.starts_with(':')
            || is_number_type(lower.trim_end_matches([';', '?', '.', '|', ']'])))
    {
        return false;
    }
    // `dict[str`, `tokens[0`: a type with its parameters, or an index.
    let is_name = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_alphabetic())
            && word
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.'))
    };
    if !quoted
        && separator != "="
        && value
            .split_once('[')
            .is_some_and(|(before, _)| is_name(before))
    {
        return false;
    }
    // `tokens: 1234`, `max_tokens=4096`, `token_count: 7` are quantities.
    let counts = [
        "tokens", "count", "max", "limit", "usage", "length", "size", "budget",
    ];
    let name = name.to_ascii_lowercase();
    if value
        .bytes()
        .all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'_'))
        && counts.iter().any(|word| name.contains(word))
    {
        return false;
    }
    // After a plural such as `tokens` a number is likely; a key there is as long as keys are.
    let has = |is: fn(&u8) -> bool| value.bytes().any(|byte| is(&byte));
    if name.ends_with("tokens")
        && (value.len() < 16 || !has(u8::is_ascii_digit) || !has(u8::is_ascii_alphabetic))
    {
        return false;
    }
    if quoted {
        return !value.contains(' ') || name.contains("pass") || name.contains("pwd");
    }
    // A call, a path of names or a type is code.
    if value.contains(['(', '<', '>', '{'])
        || value.contains("::")
        || value.starts_with(['&', '/', '.']) && !name.contains("pass")
    {
        return false;
    }
    let plain = value
        .bytes()
        .all(|b| b.is_ascii_alphabetic() || matches!(b, b'_' | b'.' | b'-'));
    // Environments and command lines write `NAME=value` without blanks; with blanks it may be code.
    if separator == "=" {
        !plain
            || name.contains("pass")
            || name.contains("pwd")
            || value.len() >= 16 && !value.contains(['_', '.'])
    } else {
        !plain
    }
}

/// Replaces the spans, overlapping ones as one. Masks are numbered within the text.
pub(crate) fn replace(text: &str, mut spans: Vec<(usize, usize)>) -> String {
    if spans.is_empty() {
        return text.to_owned();
    }
    spans.sort_unstable();
    let mut merged: Vec<(usize, usize)> = Vec::new();
    for (start, end) in spans {
        match merged.last_mut() {
            Some(last) if start < last.1 => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    for (number, (start, end)) in merged.into_iter().enumerate() {
        out.push_str(text.get(at..start).unwrap_or_default());
        out.push_str(&format!("{MARK}{}]", number + 1));
        at = end;
    }
    out.push_str(text.get(at..).unwrap_or_default());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_compiles() {
        let others = [&ASSIGNED, &BLOCK_BEGIN, &BLOCK_END];
        for pattern in SHAPES.iter().chain(INTRODUCED).chain(others) {
            assert!(
                compile(pattern).is_ok(),
                "{pattern}: {:?}",
                compile(pattern).err()
            );
        }
        assert!(
            PATTERNS.shapes.is_some()
                && PATTERNS.assigned.is_some()
                && PATTERNS.block.is_some()
                && PATTERNS.introduced.len() == INTRODUCED.len() + 1
        );
    }

    #[test]
    fn known_shapes_are_hidden() {
        let masker = Masker::default();
        // Written in two parts, so that secret scanners ignore this repository.
        let keys = [
            ["sk-", "test-not-a-real-key"],
            ["sk-ant-", "api03-not-a-real-key-not-a-real-key"],
            ["AKIA", "NOTAREALKEY12345"],
            ["ghp_", "notarealkeynotarealkeynotarealkey0000"],
            ["github_pat_", "11NOTAREALKEY0000000_notarealkey"],
            ["glpat-", "notarealkeynotareal0"],
            ["xoxb-", "0000000000-notarealkey"],
            ["AIza", "NotARealKeyNotARealKeyNotARealKey00"],
            ["sk_live_", "notarealkeynotareal"],
            ["hf_", "notarealkeynotarealkeynotarealkey"],
            ["npm_", "notarealkeynotarealkeynotarealkey000"],
            [
                "eyJhbGciOiJub25l.eyJub3QiOiJhIHJlYWwga2V5.",
                "bm90YXJlYWxrZXk",
            ],
            [
                "MTIzNDU2Nzg5MDEyMzQ1Njc4.",
                "NotArl.not-a-real-key-not-a-real-key",
            ],
            [
                "OTk5OTk5OTk5OTk5OTk5OTk5OQ.",
                "X_-abc.NOTAREALKEYNOTAREALKEYNOTAREALKEY0000",
            ],
        ];
        for [start, rest] in keys {
            let key = format!("{start}{rest}");
            assert_eq!(
                masker.mask(&format!("a {key} b")),
                "a [masked:1] b",
                "{key}"
            );
            for escape in ["\u{1b}[1;31m", r"\n", r"\u00e9", "%0A"] {
                let masked = masker.mask(&format!("a {escape}{key} b"));
                assert_eq!(masked, format!("a {escape}[masked:1] b"), "{key}");
            }
        }
        let block = "-----BEGIN RSA PRIVATE KEY-----\nbm90\n-----END RSA PRIVATE KEY-----\nafter";
        assert_eq!(masker.mask(block), "[masked:1]\nafter");
    }

    #[test]
    fn a_private_key_is_hidden_to_its_last_line_or_the_end_of_the_text() {
        let masker = Masker::default();
        let first = "-----BEGIN EC PRIVATE KEY-----";
        let last = "-----END EC PRIVATE KEY-----";
        let body = "bm90\n".repeat(40);
        let whole = format!("{first}\n{body}{last}");

        assert_eq!(
            masker.mask(&format!("a {whole} b {whole} c")),
            "a [masked:1] b [masked:2] c"
        );
        assert_eq!(masker.mask(&format!("a {first}\n{body}")), "a [masked:1]");
        let filler = "x ".repeat(BLOCK_BYTES_MAX);
        let far = format!("{first}{filler}{last}");
        assert_eq!(masker.mask(&far), far);
        assert_eq!(
            masker.mask(&format!("{far} {whole}")),
            format!("{far} [masked:1]")
        );
    }

    /// A repetition with a large bound once made this take half a second of processor time, beside
    /// the first command of a process.
    #[test]
    fn the_patterns_are_small() {
        let states: usize = SHAPES
            .iter()
            .chain(INTRODUCED)
            .chain([&ASSIGNED, &BLOCK_BEGIN, &BLOCK_END])
            .flat_map(|pattern| pattern.split('{').skip(1))
            .filter_map(|bound| {
                bound
                    .split_once('}')?
                    .0
                    .split(',')
                    .next_back()?
                    .parse()
                    .ok()
            })
            .fold(0, usize::max);
        assert!(states <= 100, "a repetition up to {states}");
    }

    /// Texts of other scripts once took up to fifty times as long.
    #[cfg(unix)]
    #[test]
    fn a_text_of_any_script_is_masked_as_fast_as_one_in_ascii() {
        const BYTES: usize = 1024 * 1024;
        prepare();
        let masker = Masker::new(["not-a-real-key"]);
        // In processor time, since other tests run beside this one.
        let used = || {
            let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            let nanos = time.tv_sec * 1_000_000_000 + time.tv_nsec;
            std::time::Duration::from_nanos(nanos.try_into().unwrap())
        };
        let best_of_three = |line: &str| {
            let text = line.repeat(BYTES / line.len());
            let run = |_| {
                let begun = used();
                assert_eq!(masker.mask(&text), text);
                used() - begun
            };
            (0..3).map(run).min().unwrap()
        };

        let plain = best_of_three("e a_b=c: x.y-z e\n");
        for line in ["é a_b=c: x.y-z é\n", "éé\n", "这是一个测试 a_b=c\n"] {
            let took = best_of_three(line);
            assert!(took < plain * 4, "{line:?}: {took:?}, ASCII: {plain:?}");
        }
    }

    #[test]
    fn keys_beside_letters_of_any_script_are_hidden() {
        let masker = Masker::default();
        let rows = [
            ("ésk-test-not-a-real-key", "é[masked:1]"),
            ("密钥sk-test-not-a-real-key密", "密钥[masked:1]密"),
            ("éAKIANOTAREALKEY12345é", "é[masked:1]é"),
            ("ébearer\u{a0}not-a-real-key-00", "ébearer\u{a0}[masked:1]"),
            (
                "пpassword=hunter2\u{3000}дальше",
                "пpassword=[masked:1]\u{3000}дальше",
            ),
            ("password=пароль9ж x", "password=[masked:1] x"),
            ("password: 是", "password: 是"),
        ];
        for (text, expected) in rows {
            assert_eq!(masker.mask(text), expected);
        }
    }

    #[test]
    fn the_value_of_a_secrets_name_is_hidden() {
        let masker = Masker::default();
        let rows = [
            ("password=hunter2", "password=[masked:1]"),
            ("DB_PASSWORD=hunter", "DB_PASSWORD=[masked:1]"),
            ("password: \"correct horse\"", "password: \"[masked:1]\""),
            (
                "{\"api_key\": \"abc123def\"}",
                "{\"api_key\": \"[masked:1]\"}",
            ),
            (
                "AWS_SECRET_ACCESS_KEY=wJalr/not+real",
                "AWS_SECRET_ACCESS_KEY=[masked:1]",
            ),
            (
                "Authorization: Bearer abcdef.ghi",
                "Authorization: Bearer [masked:1]",
            ),
            (
                "authorization: Basic dXNlcjpub3Q=",
                "authorization: Basic [masked:1]",
            ),
            (
                "postgres://user:not-real@db/x",
                "postgres://user:[masked:1]@db/x",
            ),
            ("x-api-key: 0123456789", "x-api-key: [masked:1]"),
            ("client_secret = 'n0t-r3al'", "client_secret = '[masked:1]'"),
            (
                "TOKEN=a1b2c3d4 PASSWORD=e5f6",
                "TOKEN=[masked:1] PASSWORD=[masked:2]",
            ),
            (
                "mysql --password=n0treal x",
                "mysql --password=[masked:1] x",
            ),
            ("bot_token: n0t-a[real-k3y", "bot_token: [masked:1]"),
            ("PASSWORD=n0t[real", "PASSWORD=[masked:1]"),
            (
                "refresh_tokens: n0t4realkeyn0t4realkey",
                "refresh_tokens: [masked:1]",
            ),
        ];
        for (text, expected) in rows {
            assert_eq!(masker.mask(text), expected);
        }
    }

    #[test]
    fn ordinary_text_stays() {
        let masker = Masker::default();
        let texts = [
            "let token = self.next_token();",
            "password: String,",
            "fn token(&self) -> Option<Token>",
            "max_tokens=4096 tokens: 12",
            "PASSWORD=$SECRET token: ${TOKEN}",
            "error: expected token: `;`",
            "https://example.com:8080/path@2x.png",
            "the secret of good soup: patience",
            "task-list and risk-averse-people-are-here",
            "commit 3f786850e387550fdab836ed7e6dc881de23001b",
            "secret: none",
            "let used = TokenCounter::default().count;",
            "pub max_tokens: u64,",
            "const PER_TOKEN: usize = limits();",
            "max_tokens: Optional[int] = None",
            "tokens: AtomicU32,",
            "\"max_tokens\": \"max_completion_tokens\",",
            "api_keys: dict[str, str]",
            "def f(token: list[int], secret: Dict[str, Any]):",
            "let sum = |tokens: u64| tokens + 1;",
            "fn f(tokens: [u64; 3])",
            "let first_token = tokens[0];",
            "tokens: usize, // of the prompt",
        ];
        for text in texts {
            assert_eq!(masker.mask(text), text);
        }
    }

    #[test]
    fn configured_keys_are_hidden_wherever_they_stand() {
        let masker = Masker::new(["plain-word-key", "plain-word-key-longer", "tiny"]);

        assert_eq!(
            masker.mask_exact("xplain-word-key-longery plain-word-key tiny"),
            "x[masked:1]y [masked:2] tiny"
        );
        assert_eq!(format!("{masker:?}"), "Masker(2 secrets)");
        let own = format!("cb_{}", "0f".repeat(32));
        assert_eq!(
            masker.mask_exact(&format!("key {own}, cb_0f, scb_{own}")),
            "key [masked:1], cb_0f, scb_[masked:2]"
        );
    }
}
