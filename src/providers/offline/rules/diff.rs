//! Separates the diff of a prompt from its words, and reads which files the diff changes. Pure.

/// Splits a prompt where a diff begins: at the output of `git diff`, `git show` or `diff -u`.
/// Without a diff, the second half is empty.
pub(super) fn apart(prompt: &str) -> (&str, &str) {
    let mut at = 0;
    let mut lines = prompt.split_inclusive('\n').peekable();
    let mut commit = None;
    while let Some(line) = lines.next() {
        if is_commit(line) {
            commit = commit.or(Some(at));
        }
        let headed =
            line.starts_with("--- ") && lines.peek().is_some_and(|next| next.starts_with("+++ "));
        if line.starts_with("diff --git ") || headed {
            return prompt
                .split_at_checked(commit.unwrap_or(at))
                .unwrap_or((prompt, ""));
        }
        at += line.len();
    }
    (prompt, "")
}

/// The first line of `git show`: `commit` and a hash.
fn is_commit(line: &str) -> bool {
    line.strip_prefix("commit ").is_some_and(|rest| {
        let hash = rest.split_whitespace().next().unwrap_or_default();
        hash.len() >= 40 && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

/// Returns the files that a diff changes, without the prefixes `a/` and `b/`. A deleted file has
/// its old name.
pub(super) fn files(diff: &str) -> Vec<String> {
    let mut files: Vec<String> = Vec::new();
    let mut old = None;
    for line in diff.lines() {
        if let Some(name) = line.strip_prefix("--- ") {
            old = named(name, "a/");
        } else if let Some(name) = line.strip_prefix("+++ ")
            && let Some(file) = named(name, "b/").or(old.take())
            && !files.contains(&file)
        {
            files.push(file);
        }
    }
    files
}

/// The file of a `---` or `+++` line, which may end with a tab and a time.
fn named(name: &str, prefix: &str) -> Option<String> {
    let name = name.split('\t').next().unwrap_or(name).trim();
    let name = name.strip_prefix(prefix).unwrap_or(name);
    (!name.is_empty() && name != "/dev/null").then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_a_diff_have_no_prefix_and_its_lines_are_not_words() {
        let edit = "diff --git a/src/a.rs b/src/a.rs\nindex 1..2 100644\n--- a/src/a.rs\n\
            +++ b/src/a.rs\n@@ -1 +1 @@\n-use x/y;\n+use x/z;\n";
        let gone = "--- a/old.rs\t2026-01-01\n+++ /dev/null\n";
        let show = format!("commit {}\nAuthor: A\n\n    a/b\n\n{edit}", "0".repeat(40));
        for (prompt, words, changed) in [
            (
                format!("Review this\n\n{edit}"),
                "Review this\n\n",
                &["src/a.rs"][..],
            ),
            (
                format!("Why?\n{show}{gone}"),
                "Why?\n",
                &["src/a.rs", "old.rs"],
            ),
            (
                edit.replace("a/src", "src").replace("b/src", "src"),
                "",
                &["src/a.rs"],
            ),
            (
                "Where is a/b?\n--- \n".to_owned(),
                "Where is a/b?\n--- \n",
                &[],
            ),
        ] {
            let (said, diff) = apart(&prompt);

            assert_eq!(
                (said, files(diff)),
                (words, changed.iter().map(|f| f.to_string()).collect())
            );
        }
    }
}
