//! Control words, with which the script around a command and a helper report to the host: the final
//! folder, the number of processes left running, and why a jail could not be built.
//!
//! The words travel on standard error, between two control characters and a nonce, so that no
//! descriptor above 2 is needed. They are removed before anything reads the output. A command could
//! forge a word and would gain nothing: the folder is resolved inside the root, and the number is
//! informational.

use std::path::{Path, PathBuf};

use callboard_actors::ports::SandboxError;

/// First and last character of a control word; it does not occur in text files.
const MARK: char = '\x1e';

/// A random, unique name that marks a job.
pub(in crate::sandbox) fn nonce() -> Result<String, SandboxError> {
    getrandom::u64()
        .map(|chance| format!("{chance:016x}"))
        .map_err(|_| SandboxError::Failed("no randomness".to_owned()))
}

/// A control word, written by a helper.
pub(in crate::sandbox) fn word(nonce: &str, kind: &str, value: &str) -> String {
    format!("{MARK}{nonce}:{kind}:{value}{MARK}")
}

/// The word of a command whose mounts are made, with the number of its process.
pub(in crate::sandbox) const COVERED: &str = "covered";

/// Removes the first word of a kind and returns what it says.
pub(super) fn take_word(bytes: &mut Vec<u8>, nonce: &str, kind: &str) -> Option<String> {
    let begin = format!("{MARK}{nonce}:{kind}:");
    let at = bytes
        .windows(begin.len())
        .position(|window| window == begin.as_bytes())?;
    let value = bytes.get(at + begin.len()..)?;
    let len = value.iter().position(|byte| *byte == MARK as u8)?;
    let said = String::from_utf8_lossy(value.get(..len)?).into_owned();
    bytes.drain(at..=at + begin.len() + len);
    Some(said)
}

/// Contents of the control words of one job.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Words {
    /// Final folder, as the command saw it.
    pub(super) folder: Option<PathBuf>,
    /// Processes left running.
    pub(super) left: u32,
    /// Why the jail could not be built. No command ran then.
    pub(super) failed: Option<String>,
    /// Length of the words in bytes, to be subtracted from the output.
    pub(super) bytes: u64,
}

impl Words {
    /// Removes the control words from a text and parses them.
    pub(super) fn take(text: &mut String, nonce: &str) -> Self {
        let mut words = Self::default();
        let begin = format!("{MARK}{nonce}:");
        while let Some(at) = text.find(&begin) {
            let Some(len) = text
                .get(at + begin.len()..)
                .and_then(|rest| rest.find(MARK))
            else {
                words.bytes += (text.len() - at) as u64;
                text.truncate(at);
                break;
            };
            let end = at + begin.len() + len;
            let said = text
                .get(at + begin.len()..end)
                .and_then(|word| word.split_once(':'))
                .map(|(k, v)| (k.to_owned(), v.to_owned()));
            match said {
                Some((kind, value)) if kind == "folder" => {
                    words.folder = Some(PathBuf::from(value))
                }
                Some((kind, value)) if kind == "left" => words.left = value.parse().unwrap_or(0),
                Some((kind, value)) if kind == "failed" => words.failed = Some(value),
                _ => {}
            }
            text.replace_range(at..=end, "");
            words.bytes += (end + 1 - at) as u64;
        }
        words
    }
}

/// Replaces a folder of the host by `name`, wherever it occurs as a path or as the beginning of
/// one, so that a model does not see the host's path.
pub(super) fn rename(text: &str, folder: &Path, name: &str) -> String {
    let (Some(folder), mut out, mut rest) = (
        folder.to_str().filter(|folder| folder.len() > 1),
        String::new(),
        text,
    ) else {
        return text.to_owned();
    };
    let in_name = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_');
    while let Some(at) = rest.find(folder) {
        let before = rest.get(..at).unwrap_or_default();
        let after = rest.get(at + folder.len()..).unwrap_or_default();
        let is_path = !before.ends_with(|c| in_name(c) || c == '/') && !after.starts_with(in_name);
        out.push_str(before);
        out.push_str(if is_path { name } else { folder });
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_taken_out_of_the_output_and_foreign_ones_stay() {
        let mut text = format!(
            "one\n{}two{}\x1eother:left:9\x1e",
            word("n", "folder", "/workspace/a:b"),
            word("n", "left", "3")
        );
        let mut cut = format!("one{}", word("n", "left", "3").trim_end_matches(MARK));

        let words = Words::take(&mut text, "n");

        assert_eq!(text, "one\ntwo\x1eother:left:9\x1e");
        assert_eq!(
            (words.folder, words.left, words.bytes),
            (Some(PathBuf::from("/workspace/a:b")), 3, 35)
        );
        assert_eq!((Words::take(&mut cut, "n").left, cut.as_str()), (0, "one"));
    }

    #[test]
    fn a_folder_of_the_host_is_named_and_its_neighbours_are_not() {
        let shown = |text: &str| rename(text, Path::new("/srv/job"), "$WORKSPACE");

        assert_eq!(
            shown("/srv/job/a: not found in /srv/job"),
            "$WORKSPACE/a: not found in $WORKSPACE"
        );
        assert_eq!(
            shown("/srv/jobs /x/srv/job \"/srv/job\""),
            "/srv/jobs /x/srv/job \"$WORKSPACE\""
        );
        assert_eq!(rename("/a", Path::new("/"), "$WORKSPACE"), "/a");
    }
}
