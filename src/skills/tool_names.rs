//! Translates tool names in skills. Skills name tools of another program, with patterns and in
//! several notations; the result are Callboard's names.

/// Other programs' tool names in lower case, and the corresponding tools here.
const OURS: [(&str, &str); 11] = [
    ("read", "file_read"),
    ("write", "file_edit"),
    ("edit", "file_edit"),
    ("multiedit", "file_edit"),
    ("glob", "file_list"),
    ("ls", "file_list"),
    ("grep", "grep_search"),
    ("bash", "bash"),
    ("webfetch", "web_fetch"),
    ("websearch", "web_search"),
    ("task", "create_subagent"),
];

/// Splits a list separated by spaces, commas or both; text in parentheses stays together.
pub(super) fn split(list: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut name = String::new();
    let mut depth = 0u32;
    for c in list.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 && (c == ',' || c.is_whitespace()) {
            names.push(std::mem::take(&mut name));
        } else {
            name.push(c);
        }
    }
    names.push(name);
    names.retain(|name| !name.is_empty());
    names
}

/// Meaning of a written tool name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Meaning {
    /// `*`: every tool.
    All,
    /// One tool. `pattern`: a pattern in parentheses followed the name; it is ignored.
    Tool { name: String, pattern: bool },
    /// Not a possible tool name.
    Nothing,
}

/// Interprets a written tool name.
pub(super) fn meaning(written: &str) -> Meaning {
    let (name, pattern) = written
        .split_once('(')
        .map_or((written, false), |(name, _)| (name, true));
    let name = name.trim();
    if name == "*" {
        return Meaning::All;
    }
    let fits = (1..=64).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    if !fits {
        return Meaning::Nothing;
    }
    let lower = name.to_ascii_lowercase();
    let ours = OURS
        .iter()
        .find(|(theirs, _)| *theirs == lower)
        .map_or(name, |(_, ours)| *ours);
    Meaning::Tool {
        name: ours.to_owned(),
        pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_split_at_spaces_and_commas_outside_of_parentheses() {
        assert_eq!(
            split("Read, Grep,Glob  Bash(git add:*, git log:*)"),
            ["Read", "Grep", "Glob", "Bash(git add:*, git log:*)"]
        );
        assert_eq!(split(" , "), Vec::<String>::new());
        assert_eq!(split("Bash(git"), ["Bash(git"]);
    }

    #[test]
    fn names_of_another_program_are_translated() {
        let tool = |name: &str, pattern| Meaning::Tool {
            name: name.to_owned(),
            pattern,
        };

        assert_eq!(meaning("Read"), tool("file_read", false));
        assert_eq!(meaning("Bash(git:*)"), tool("bash", true));
        assert_eq!(meaning("srv__tool"), tool("srv__tool", false));
        assert_eq!(
            (meaning("*"), meaning("mcp__*"), meaning("")),
            (Meaning::All, Meaning::Nothing, Meaning::Nothing)
        );
    }
}
