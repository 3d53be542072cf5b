//! Keys that the host was not configured with are recognized by their shape in errors and logs, and
//! ordinary text stays unchanged.

use callboard::observe::Redactor;

use crate::support::SplitMix;

/// Letters of which one kind of key consists.
const ALNUM: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
const UPPER: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
const URL_SAFE: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const HEX: &str = "0123456789abcdef";

fn word(random: &mut SplitMix, letters: &str, length: usize) -> String {
    let letters = letters.as_bytes();
    (0..length)
        .map(|_| char::from(letters[random.below(letters.len())]))
        .collect()
}

/// One random key of each kind.
fn keys(random: &mut SplitMix) -> Vec<String> {
    let pem_body = (0..6)
        .map(|_| word(random, ALNUM, 64))
        .collect::<Vec<_>>()
        .join("\n");
    let header = word(random, URL_SAFE, 20);
    let claims = word(random, URL_SAFE, 60);
    let mark = word(random, URL_SAFE, 43);
    vec![
        format!("sk-{}", word(random, ALNUM, 48)),
        format!("sk-proj-{}", word(random, URL_SAFE, 120)),
        format!("sk-ant-api03-{}AA", word(random, URL_SAFE, 93)),
        format!("ghp_{}", word(random, ALNUM, 36)),
        format!("gho_{}", word(random, ALNUM, 36)),
        format!(
            "github_pat_{}_{}",
            word(random, ALNUM, 22),
            word(random, ALNUM, 59)
        ),
        format!("glpat-{}", word(random, URL_SAFE, 20)),
        format!("AKIA{}", word(random, UPPER, 16)),
        format!("ASIA{}", word(random, UPPER, 16)),
        format!(
            "xoxb-{}-{}",
            word(random, "0123456789", 12),
            word(random, ALNUM, 24)
        ),
        format!("AIza{}", word(random, URL_SAFE, 35)),
        format!("sk_live_{}", word(random, ALNUM, 24)),
        format!("hf_{}", word(random, ALNUM, 34)),
        format!("npm_{}", word(random, ALNUM, 36)),
        format!("tvly-{}", word(random, ALNUM, 32)),
        format!(
            "M{}.{}.{}",
            word(random, ALNUM, 23),
            word(random, URL_SAFE, 6),
            word(random, ALNUM, 38)
        ),
        format!("gsk_{}", word(random, ALNUM, 52)),
        format!("cb_{}", word(random, HEX, 64)),
        format!("eyJ{header}.eyJ{claims}.{mark}"),
        format!("-----BEGIN RSA PRIVATE KEY-----\n{pem_body}\n-----END RSA PRIVATE KEY-----"),
    ]
}

/// Contexts in which keys appear.
fn places(key: &str) -> [String; 8] {
    [
        format!("Incorrect API key provided: {key}. You can find yours in the settings."),
        format!(
            "{{\"error\":{{\"message\":\"the key {} is not valid\"}}}}",
            key.replace('\n', "\\n")
        ),
        format!("curl -H 'Authorization: Bearer {key}' https://example.com"),
        format!("OPENAI_API_KEY={key}"),
        format!("export TOKEN=\"{key}\""),
        format!("request failed key={key} status=401"),
        format!("({key})"),
        format!("see\n{key}\nabove"),
    ]
}

#[test]
fn keys_of_known_shape_are_masked_in_at_least_98_of_100_places() {
    let seed = 0xF8;
    let mut random = SplitMix(seed);
    let redactor = Redactor::default();
    let mut all = 0;
    let mut shown = Vec::new();

    for _ in 0..20 {
        for key in keys(&mut random) {
            // The body identifies the key, however its lines are encoded.
            let body = key
                .lines()
                .max_by_key(|line| line.len())
                .unwrap()
                .to_owned();
            for text in places(&key) {
                all += 1;
                let masked = redactor.mask(&text);
                if masked.contains(&body) {
                    shown.push(masked);
                }
            }
        }
    }

    println!("{} of {all} shown, seed {seed}", shown.len());
    assert!(
        shown.len() * 100 <= all * 2,
        "seed {seed}: {} of {all}: {:#?}",
        shown.len(),
        shown.iter().take(5).collect::<Vec<_>>()
    );
}

/// Source code about tokens and keys that contains none.
#[test]
fn code_that_names_tokens_is_left_alone() {
    let redactor = Redactor::default();

    for line in [
        "max_tokens: Optional[int] = None",
        "    tokens: AtomicU32,",
        "params[\"max_tokens\"] = params.pop(\"max_completion_tokens\")",
        "api_keys: dict[str, str] = {}",
        "items.iter().map(|tokens: u64| tokens * 2)",
        "prompt_tokens: int",
        "access_token: Optional[str] = None",
        "pub tokens: NonZeroU32,",
    ] {
        assert_eq!(redactor.mask(line), line);
    }
}

#[test]
fn ordinary_text_is_left_alone_in_all_but_one_line_of_500() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let redactor = Redactor::default();
    let mut lines: Vec<String> = Vec::new();
    for file in [
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "docs",
        "examples",
        "actors/src",
    ] {
        let path = root.join(file);
        let texts = if path.is_dir() {
            super::files(&path)
        } else {
            vec![(file.to_owned(), std::fs::read(&path).unwrap())]
        };
        lines.extend(
            texts
                .into_iter()
                .filter_map(|(_, bytes)| String::from_utf8(bytes).ok())
                .flat_map(|text| {
                    text.lines()
                        .filter(|line| !line.trim().is_empty())
                        .map(str::to_owned)
                        .collect::<Vec<_>>()
                }),
        );
    }
    // Random names that are not keys.
    let mut random = SplitMix(7);
    for _ in 0..500 {
        let hex = |random: &mut SplitMix, n| word(random, HEX, n);
        lines.push(format!("commit {} by someone", hex(&mut random, 40)));
        lines.push(format!(
            "round_id=r-{}-{}-4{} done",
            hex(&mut random, 8),
            hex(&mut random, 4),
            hex(&mut random, 3)
        ));
        lines.push(format!(
            "artifact sha256:{} of 12 KiB",
            hex(&mut random, 64)
        ));
    }

    let changed: Vec<&String> = lines
        .iter()
        .filter(|line| redactor.mask(line) != **line)
        .collect();

    println!("{} of {} lines changed", changed.len(), lines.len());
    assert!(
        lines.len() > 10_000 && changed.len() * 500 <= lines.len(),
        "{} of {}: {changed:#?}",
        changed.len(),
        lines.len()
    );
}
