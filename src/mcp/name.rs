//! What an MCP tool is called here: `{server}__{tool}` (REQUIREMENTS Q-03), in the letters that model APIs take. Pure.

use sha2::{Digest, Sha256};

/// Longest name that model APIs take.
const NAME_CHARS_MAX: usize = 64;

/// Characters of the hash behind a name that was cut, and the line before it.
const TAIL: usize = 9;

/// The name of a server's tool: what is not `[A-Za-z0-9_-]` becomes `_`; what is too long is cut and ends in a hash of the whole, so
/// that two long names stay two. Other names that become equal are a clash, which [`super::tools`] reports.
pub fn tool_name(server: &str, tool: &str) -> String {
    let whole = format!("{server}__{tool}");
    let plain: String = whole.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' }).collect();
    if plain.len() <= NAME_CHARS_MAX {
        return plain;
    }
    let hash = hex(&Sha256::digest(whole.as_bytes()));
    let (head, tail) = (plain.get(..NAME_CHARS_MAX - TAIL).unwrap_or_default(), hash.get(..TAIL - 1).unwrap_or_default());
    format!("{head}_{tail}")
}

/// Lower-case hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether a server may be called so: 1-64 of `[A-Za-z0-9_-]` without `__`, which parts server and tool.
pub(super) fn is_server_name(name: &str) -> bool {
    let letters = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
    letters && (1..=64).contains(&name.len()) && !name.contains("__") && !name.ends_with('_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_hold_only_what_model_apis_take() {
        assert_eq!(tool_name("time", "get_current_time"), "time__get_current_time");
        assert_eq!(tool_name("fs", "read.file/now ü"), "fs__read_file_now__");
        assert_eq!(tool_name("s", "a\u{200b}b"), "s__a_b");
        for tool in ["", "x".repeat(500).as_str(), "漢字".repeat(50).as_str()] {
            let name = tool_name("server", tool);
            assert!(name.len() <= 64 && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-')), "{name}");
        }
    }

    #[test]
    fn long_names_stay_apart_and_stay_the_same() {
        let long = "n".repeat(100);
        let (one, two) = (tool_name("s", &format!("{long}1")), tool_name("s", &format!("{long}2")));

        assert_ne!(one, two);
        assert_eq!(one, tool_name("s", &format!("{long}1")));
        assert_eq!(one.len(), 64);
    }

    #[test]
    fn a_server_name_cannot_hide_where_it_ends() {
        for good in ["a", "my-server", "A_1"] {
            assert!(is_server_name(good), "{good}");
        }
        for bad in ["", "a__b", "a_", "a b", "ü", &"x".repeat(65)] {
            assert!(!is_server_name(bad), "{bad}");
        }
    }
}
