//! Names of MCP tools for models: `{server}__{tool}`, limited to the characters that model APIs
//! accept. Pure.

use sha2::{Digest, Sha256};

/// Longest tool name that model APIs accept.
const NAME_CHARS_MAX: usize = 64;

/// Length of the suffix of a shortened name: `_` and eight hex digits.
const TAIL: usize = 9;

/// The name of a server's tool. Characters other than `[A-Za-z0-9_-]` become `_`; a name that is
/// too long is cut and ends in a hash of the whole, so that two long names stay distinct.
/// [`super::tools`] reports other names that become equal.
pub fn tool_name(server: &str, tool: &str) -> String {
    let whole = format!("{server}__{tool}");
    let plain: String = whole
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') {
                c
            } else {
                '_'
            }
        })
        .collect();
    if plain.len() <= NAME_CHARS_MAX {
        return plain;
    }
    let hash = hex(&Sha256::digest(whole.as_bytes()));
    let head = plain.get(..NAME_CHARS_MAX - TAIL).unwrap_or_default();
    let tail = hash.get(..TAIL - 1).unwrap_or_default();
    format!("{head}_{tail}")
}

/// Lower-case hexadecimal digits of `bytes`.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether a server may have this name: 1-64 of `[A-Za-z0-9_-]`, without the separator `__`.
pub(super) fn is_server_name(name: &str) -> bool {
    let letters = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
    letters && (1..=64).contains(&name.len()) && !name.contains("__") && !name.ends_with('_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_hold_only_what_model_apis_take() {
        assert_eq!(
            tool_name("time", "get_current_time"),
            "time__get_current_time"
        );
        assert_eq!(tool_name("fs", "read.file/now ü"), "fs__read_file_now__");
        assert_eq!(tool_name("s", "a\u{200b}b"), "s__a_b");
        for tool in ["", "x".repeat(500).as_str(), "漢字".repeat(50).as_str()] {
            let name = tool_name("server", tool);
            assert!(
                name.len() <= 64
                    && name
                        .bytes()
                        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-')),
                "{name}"
            );
        }
    }

    #[test]
    fn long_names_stay_distinct_and_stable() {
        let long = "n".repeat(100);
        let one = tool_name("s", &format!("{long}1"));
        let two = tool_name("s", &format!("{long}2"));

        assert_ne!(one, two);
        assert_eq!(one, tool_name("s", &format!("{long}1")));
        assert_eq!(one.len(), 64);
    }

    #[test]
    fn a_server_name_cannot_contain_the_separator() {
        for good in ["a", "my-server", "A_1"] {
            assert!(is_server_name(good), "{good}");
        }
        for bad in ["", "a__b", "a_", "a b", "ü", &"x".repeat(65)] {
            assert!(!is_server_name(bad), "{bad}");
        }
    }
}
