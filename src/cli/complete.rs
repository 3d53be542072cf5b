//! Completes commands and `@file` at the prompt of a chat with Tab.

use std::path::{Path, PathBuf};

use reedline::{
    ColumnarMenu, Completer, CompletionResult, MenuBuilder, ReedlineMenu, Span, Suggestion,
};

use crate::visible::is_invisible;

/// Name of the menu.
pub(super) const MENU: &str = "completions";

/// Entries of one folder that are looked at.
const ENTRIES_MAX: usize = 2000;

/// Suggestions at once.
const SUGGESTED_MAX: usize = 60;

/// Folders that hold no text of people.
const LEFT_OUT: [&str; 3] = [".git", "target", "node_modules"];

/// Suggests the commands of a chat, and files of the workspace.
pub(super) struct Words {
    commands: Vec<String>,
    workspace: PathBuf,
}

impl Words {
    /// The commands are the first words of the lines of `help` that begin with a slash. An empty
    /// path is no workspace.
    pub(super) fn new(help: &str, workspace: &Path) -> Self {
        let commands = help
            .lines()
            .filter_map(|line| line.split_whitespace().next());
        Self {
            commands: commands
                .filter(|word| word.starts_with('/'))
                .map(str::to_owned)
                .collect(),
            workspace: workspace.to_owned(),
        }
    }

    /// Where the word before the cursor begins, and what it may become.
    fn suggested(&self, line: &str, at: usize) -> (usize, Vec<String>) {
        let before = line.get(..at).unwrap_or_default();
        let begin = before.rfind(char::is_whitespace).map_or(0, |space| {
            space
                + before
                    .get(space..)
                    .and_then(|rest| rest.chars().next())
                    .map_or(0, char::len_utf8)
        });
        let word = before.get(begin..).unwrap_or_default();
        let mut words = match word.strip_prefix('@') {
            Some(path) => self.files(path),
            None if begin == 0 && word.starts_with('/') => self
                .commands
                .iter()
                .filter(|command| command.starts_with(word))
                .cloned()
                .collect(),
            None => Vec::new(),
        };
        words.sort();
        words.truncate(SUGGESTED_MAX);
        (begin, words)
    }

    fn files(&self, path: &str) -> Vec<String> {
        let (folder, name) = match path.rsplit_once('/') {
            Some((folder, name)) => (format!("{folder}/"), name),
            None => (String::new(), path),
        };
        let is_none = self.workspace.as_os_str().is_empty();
        if is_none || folder.starts_with('/') || folder.split('/').any(|part| part == "..") {
            return Vec::new();
        }
        let Ok(entries) = std::fs::read_dir(self.workspace.join(&folder)) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for entry in entries.take(ENTRIES_MAX).flatten() {
            // The editor prints names as they are, and a space would end the word.
            let Ok(entry_name) = entry.file_name().into_string() else {
                continue;
            };
            let is_odd = entry_name.contains(|c: char| is_invisible(c) || c.is_whitespace());
            if is_odd || !entry_name.starts_with(name) || LEFT_OUT.contains(&entry_name.as_str()) {
                continue;
            }
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let end = if is_folder { "/" } else { "" };
            found.push(format!("@{folder}{entry_name}{end}"));
        }
        found
    }
}

impl Completer for Words {
    fn complete(&mut self, line: &str, pos: usize) -> CompletionResult {
        let (begin, words) = self.suggested(line, pos);
        let suggestions: Vec<Suggestion> = words
            .into_iter()
            .map(|value| Suggestion {
                append_whitespace: !value.ends_with('/'),
                value,
                span: Span::new(begin, pos.max(begin)),
                ..Suggestion::default()
            })
            .collect();
        CompletionResult::fresh(suggestions)
    }
}

/// The menu of suggestions.
pub(super) fn menu() -> ReedlineMenu {
    ReedlineMenu::EngineCompleter(Box::new(ColumnarMenu::default().with_name(MENU)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_files_of_the_workspace_are_suggested() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["main.rs", "make it.txt", "other.rs", "m\u{202e}x"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        std::fs::create_dir(folder.path().join("maps")).unwrap();
        std::fs::write(folder.path().join("maps/a.txt"), "").unwrap();
        let words = Words::new("/help  this\n/history  that\nother", folder.path());
        let at_end = |line: &str| words.suggested(line, line.len());
        let texts = |all: &[&str]| {
            all.iter()
                .map(|text| (*text).to_owned())
                .collect::<Vec<_>>()
        };

        assert_eq!(at_end("/h"), (0, texts(&["/help", "/history"])));
        assert_eq!(at_end("see /h"), (4, vec![]));
        assert_eq!(at_end("see @m"), (4, texts(&["@main.rs", "@maps/"])));
        assert_eq!(at_end("@maps/"), (0, texts(&["@maps/a.txt"])));
        for outside in ["@/", "@../", "@maps/../../"] {
            assert_eq!(at_end(outside).1, texts(&[]), "{outside}");
        }
    }
}
