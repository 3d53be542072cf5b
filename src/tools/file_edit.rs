//! The `file_edit` tool: replaces an exact text in a file of the workspace. All other bytes stay as
//! they are.
//!
//! Promises
//! - The path that is shown and approved is the path that is changed: no link is followed
//!   ([`Root::slot`]).
//! - An edit is applied completely or not at all. If another process changed the file meanwhile,
//!   the edit is retried on the new contents.
//! - Untouched bytes stay: line ends, a missing final line end, a byte order mark, invalid bytes.
//!   The new text is written in the file's encoding: UTF-8, UTF-16 with a mark, or Windows-1252. If
//!   every line of the file ends with `\r\n`, so do the new lines.
//! - A text that holds a mask is refused, because writing it would destroy the key behind the mask.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use callboard_actors::{
    chat::RawJson,
    limits::TOOL_INPUT_BYTES_MAX,
    ports::{Approval, Concurrency, Reach, ToolContext, ToolSource, ToolSpec, TypedTool},
    tool::{EffectClass, ToolError},
};
use memchr::memmem::Finder;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use similar::TextDiff;
use tokio_util::sync::CancellationToken;

use super::{
    blocking,
    encoding::{self, Encoding},
    text::middle_cut,
};
use crate::{
    mask::{MARK, Masker},
    sandbox::{PathError, Root, Slot, settled, shown},
};

/// Bytes of a file that can be edited. Two copies of it are in memory.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Bytes of the diff that are shown.
const DIFF_BYTES_MAX: usize = 4 * 1024;

/// Largest file for which a diff or a hint is computed. Above it the result says only how many
/// places were changed.
const DIFFED_BYTES_MAX: usize = 1024 * 1024;

/// Longest search for the line that is most like the one that was not found.
const LIKENESS_TIME: Duration = Duration::from_millis(200);

/// Arguments of `file_edit`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileEditArgs {
    /// Path of the file, relative to the workspace.
    pub path: String,
    /// Text to replace, exactly as in the file and without line numbers; it must occur once. Empty to create a new file.
    pub old_text: String,
    /// Text to put in its place.
    pub new_text: String,
    /// Replace every occurrence instead of exactly one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replace_all: bool,
}

/// The `file_edit` tool.
#[derive(Debug, Clone)]
pub struct FileEdit {
    root: Arc<Root>,
    masker: Arc<Masker>,
}

impl FileEdit {
    /// Creates a tool that edits files beneath `root`. Keys that `masker` knows exactly are masked
    /// in the diff.
    pub fn new(root: Arc<Root>, masker: Arc<Masker>) -> Self {
        Self { root, masker }
    }
}

impl TypedTool for FileEdit {
    type Args = FileEditArgs;
    type Output = String;
    const NAME: &'static str = "file_edit";
    const DESCRIPTION: &'static str = "Replaces an exact text in a file of the workspace, or creates a file (old_text empty, file absent; missing \
folders are made). old_text must occur exactly once unless replace_all is true: give enough lines around it. All other bytes stay as they are. \
Read the file first. The answer is a diff.";

    fn declare(&self, spec: ToolSpec) -> ToolSpec {
        spec.effect(EffectClass::Once)
            .approval(Approval::ByMode)
            .concurrency(Concurrency::PerFile("path".to_owned()))
            .not_shared()
            .reach(Reach::Files)
            .source(ToolSource::BuiltIn)
    }

    fn check(&self, args: &FileEditArgs) -> Result<(), ToolError> {
        if args.old_text.contains(MARK) || args.new_text.contains(MARK) {
            return Err(ToolError::invalid(format!(
                "the text holds `{MARK}`: that mark stands for a key you were not shown; edit around it, so that the key stays in the file"
            )));
        }
        if args.old_text == args.new_text && !args.old_text.is_empty() {
            return Err(ToolError::invalid("old_text and new_text are the same"));
        }
        Ok(())
    }

    fn resolve(&self, args: &FileEditArgs) -> Option<RawJson> {
        let path = self.root.spelled_to_write(&args.path);
        (path != args.path).then(|| {
            RawJson::of(&FileEditArgs {
                path,
                ..args.clone()
            })
            .ok()
        })?
    }

    /// "Always" approves every edit of this file of this workspace.
    fn approval_pattern(&self, args: &FileEditArgs) -> Option<String> {
        let path = self.root.spelled_to_write(&args.path);
        Some(super::in_workspace(&path, self.root.real_path()))
    }

    async fn call(&self, args: FileEditArgs, context: ToolContext) -> Result<String, ToolError> {
        self.check(&args)?;
        let root = self.root.clone();
        let masker = self.masker.clone();
        blocking(context, move |cancel| {
            Ok(masker.mask_exact(&edit(&root, &args, cancel)?))
        })
        .await
    }
}

/// Why an attempt failed: another process may have changed the path, or the edit cannot be applied.
enum Refused {
    Path(PathError),
    Tool(ToolError),
}

impl From<PathError> for Refused {
    fn from(error: PathError) -> Self {
        Self::Path(error)
    }
}

impl From<ToolError> for Refused {
    fn from(error: ToolError) -> Self {
        Self::Tool(error)
    }
}

fn edit(root: &Root, args: &FileEditArgs, cancel: &CancellationToken) -> Result<String, ToolError> {
    // Retry after a concurrent change: nothing was written yet.
    let done = settled(|| match attempt(root, args, cancel) {
        Ok(done) => Ok(Ok(done)),
        Err(Refused::Path(error @ PathError::Changed(_))) => Err(error),
        Err(Refused::Path(error)) => Ok(Err(refused(error))),
        Err(Refused::Tool(error)) => Ok(Err(error)),
    });
    done.map_err(refused)?
}

fn refused(error: PathError) -> ToolError {
    match error {
        PathError::Io { .. } => ToolError::from(error),
        PathError::NotFound(path) => ToolError::not_found(format!(
            "{path:?} does not exist; to create it leave old_text empty"
        ))
        .not_started(),
        error => ToolError::from(error).not_started(),
    }
}

fn attempt(
    root: &Root,
    args: &FileEditArgs,
    cancel: &CancellationToken,
) -> Result<String, Refused> {
    if cancel.is_cancelled() {
        return Err(super::cancelled().not_started().into());
    }
    let create = args.old_text.is_empty();
    let mut slot = root.slot(&args.path, create)?;
    if !slot.exists() {
        if !create {
            return Err(PathError::NotFound(args.path.clone()).into());
        }
        slot.replace(args.new_text.as_bytes())?;
        return Ok(format!(
            "created {} ({} lines)",
            shown(&slot.relative()),
            args.new_text.lines().count()
        ));
    }
    let old = read(&mut slot, &args.path)?;
    let file = Written::from_bytes(&old);
    if create && old.len() > file.encoding.mark().len() {
        return Err(ToolError::invalid(format!(
            "{:?} exists already: give the text to replace in old_text",
            args.path
        ))
        .into());
    }
    let new_text = file.bytes_of(&args.new_text, &args.path)?;
    let (new, count) = if create {
        ([old.as_slice(), &new_text].concat(), 1)
    } else {
        let (old_text, count) = file.find(args)?;
        (file.spliced(&old_text, &new_text, count)?, count)
    };
    slot.replace(&new)?;
    Ok(report(&shown(&slot.relative()), &file, &new, count))
}

fn read(slot: &mut Slot<'_>, path: &str) -> Result<Vec<u8>, Refused> {
    let bytes = slot.read(FILE_BYTES_MAX)?.ok_or_else(|| {
        ToolError::invalid(format!(
            "{path:?} is larger than {FILE_BYTES_MAX} bytes and cannot be edited"
        ))
    })?;
    if let Some(kind) = encoding::binary(&bytes) {
        return Err(ToolError::invalid(format!(
            "{path:?} is a binary file ({kind}) and cannot be edited"
        ))
        .into());
    }
    Ok(bytes)
}

/// A file's bytes, encoding and line ends.
struct Written<'f> {
    bytes: &'f [u8],
    encoding: Encoding,
    /// Every line end is `\r\n`.
    crlf: bool,
}

impl<'f> Written<'f> {
    fn from_bytes(bytes: &'f [u8]) -> Self {
        let encoding = encoding::detect(bytes);
        let text = Self {
            bytes,
            encoding,
            crlf: false,
        };
        let count = |end: &str| {
            text.starts_of(&encoding.encode(end).unwrap_or_default())
                .count()
        };
        let ends = count("\n");
        Self {
            crlf: ends > 0 && ends == count("\r\n"),
            ..text
        }
    }

    /// The decoded text, without the mark.
    fn text(&self) -> String {
        self.encoding.decode(
            self.bytes
                .get(self.encoding.mark().len()..)
                .unwrap_or_default(),
        )
    }

    /// Converts the line ends of a text to the file's.
    fn lines_of(&self, text: &str) -> String {
        if self.crlf && !text.contains('\r') {
            text.replace('\n', "\r\n")
        } else {
            text.to_owned()
        }
    }

    fn bytes_of(&self, text: &str, path: &str) -> Result<Vec<u8>, ToolError> {
        self.encoding.encode(&self.lines_of(text)).ok_or_else(|| {
            ToolError::invalid(format!("{path:?} is not UTF-8 but, as it seems, Windows-1252, which lacks a character of new_text"))
        })
    }

    /// Finds all non-overlapping matches that start at a code unit.
    fn starts_of<'w>(&'w self, wanted: &'w [u8]) -> impl Iterator<Item = usize> + 'w {
        let finder = Finder::new(wanted);
        let unit = self.encoding.unit();
        let mut at = self.encoding.mark().len();
        std::iter::from_fn(move || {
            loop {
                let start =
                    at + finder.find(self.bytes.get(at..).filter(|_| !wanted.is_empty())?)?;
                let is_whole = start.is_multiple_of(unit);
                at = start + if is_whole { wanted.len() } else { 1 };
                if is_whole {
                    return Some(start);
                }
            }
        })
    }

    /// Returns the bytes to replace and how often they occur; an error unless that number is what
    /// the arguments allow.
    fn find(&self, args: &FileEditArgs) -> Result<(Vec<u8>, usize), ToolError> {
        let path = &args.path;
        let old = self
            .encoding
            .encode(&self.lines_of(&args.old_text))
            .unwrap_or_default();
        let starts: Vec<usize> = self.starts_of(&old).take(6).collect();
        let count = self.starts_of(&old).count();
        // `aa` occurs in `aaa` twice, although only one of them can be replaced.
        let twice = match starts.as_slice() {
            [only] if !args.replace_all => self.overlaps(*only, &old),
            _ => false,
        };
        match count + usize::from(twice) {
            0 => Err(ToolError::not_found(format!(
                "old_text was not found in {path:?}. {}",
                self.hint(&args.old_text)
            ))
            .not_started()),
            n if n > 1 && !args.replace_all => {
                let lines: Vec<String> = starts
                    .iter()
                    .take(5)
                    .map(|at| self.line_of(*at).to_string())
                    .collect();
                let more = if n > 5 { ", …" } else { "" };
                Err(ToolError::invalid(format!(
                    "old_text occurs {n} times in {path:?} (lines {}{more}): give more lines around it, or set replace_all",
                    lines.join(", ")
                )))
            }
            _ => Ok((old, count)),
        }
    }

    /// Returns the file with every `old` replaced. A result that would be too large is refused
    /// before it is allocated.
    fn spliced(&self, old: &[u8], new: &[u8], count: usize) -> Result<Vec<u8>, ToolError> {
        let bytes =
            (self.bytes.len() - count * old.len()).saturating_add(count.saturating_mul(new.len()));
        if bytes as u64 > FILE_BYTES_MAX {
            return Err(ToolError::invalid(format!(
                "the file would grow to {bytes} bytes; at most {FILE_BYTES_MAX} are edited"
            )));
        }
        let mut out = Vec::with_capacity(bytes);
        let mut at = 0;
        for start in self.starts_of(old) {
            out.extend_from_slice(self.bytes.get(at..start).unwrap_or_default());
            out.extend_from_slice(new);
            at = start + old.len();
        }
        out.extend_from_slice(self.bytes.get(at..).unwrap_or_default());
        Ok(out)
    }

    /// Whether `wanted`, found at `start`, matches again at a position inside that match.
    fn overlaps(&self, start: usize, wanted: &[u8]) -> bool {
        let unit = self.encoding.unit();
        let twice = self
            .bytes
            .get(start + unit..(start + 2 * wanted.len()).min(self.bytes.len()))
            .unwrap_or_default();
        let finder = Finder::new(wanted);
        let mut at = 0;
        while let Some(found) = twice.get(at..).and_then(|rest| finder.find(rest)) {
            if (at + found).is_multiple_of(unit) {
                return true;
            }
            at += found + 1;
        }
        false
    }

    fn line_of(&self, at: usize) -> usize {
        let end = self.encoding.encode("\n").unwrap_or_default();
        self.starts_of(&end).take_while(|start| *start < at).count() + 1
    }
}

impl Written<'_> {
    /// Returns the likeliest reason why the text was not found.
    fn hint(&self, old: &str) -> String {
        if self.bytes.len() > DIFFED_BYTES_MAX {
            return "Read the file again.".to_owned();
        }
        let text = self.text();
        if !self.crlf
            && old.contains('\n')
            && !old.contains('\r')
            && text.contains(&old.replace('\n', "\r\n"))
        {
            return "Some lines of the file end with \\r\\n, as these do: write \\r\\n in old_text and new_text.".to_owned();
        }
        let wanted: Vec<String> = old.trim().lines().map(one_spaced).collect();
        let Some(first) = wanted.first().filter(|first| !first.is_empty()) else {
            return "It holds only white space.".to_owned();
        };
        if let Some((from, to)) = spaced_otherwise(&text, &wanted) {
            return if from == to {
                let line = text.lines().nth(from - 1).unwrap_or_default();
                format!(
                    "Line {from} differs from it only in white space: {:?}. Copy it exactly.",
                    super::text::prefix(line, 200)
                )
            } else {
                format!(
                    "Lines {from}-{to} differ from it only in white space: read them again and copy them exactly."
                )
            };
        }
        let exact = text.lines().position(|line| one_spaced(line) == *first);
        let near = exact.or_else(|| {
            text.lines().position(|line| {
                one_spaced(line)
                    .to_lowercase()
                    .contains(&first.to_lowercase())
            })
        });
        match near.or_else(|| nearest(&text, first)) {
            Some(at) => {
                let line = text.lines().nth(at).unwrap_or_default();
                format!(
                    "Nearest is line {}: {:?}. Compare white space and the lines that follow; read the file again.",
                    at + 1,
                    super::text::prefix(line, 200)
                )
            }
            None => "No line is like it; read the file again.".to_owned(),
        }
    }
}

fn one_spaced(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the first and last line of a place that differs from the wanted lines only in white
/// space.
fn spaced_otherwise(text: &str, wanted: &[String]) -> Option<(usize, usize)> {
    const PLACES_COMPARED: usize = 1000;
    let lines: Vec<String> = text.lines().map(one_spaced).collect();
    let mut places = lines
        .windows(wanted.len())
        .enumerate()
        .filter(|(_, place)| place.first() == wanted.first())
        .take(PLACES_COMPARED);
    places
        .find(|(_, place)| *place == wanted)
        .map(|(at, _)| (at + 1, at + wanted.len()))
}

/// Returns the line most like `wanted` if more than half of it is alike.
fn nearest(text: &str, wanted: &str) -> Option<usize> {
    const LINE_BYTES: usize = 400;
    let start = Instant::now();
    let mut best = (0.6_f32, None);
    for (at, line) in text
        .lines()
        .enumerate()
        .filter(|(_, line)| line.len() <= LINE_BYTES && wanted.len() <= LINE_BYTES)
    {
        if start.elapsed() > LIKENESS_TIME {
            break;
        }
        let ratio = TextDiff::configure()
            .timeout(LIKENESS_TIME / 10)
            .diff_chars(line.trim(), wanted)
            .ratio();
        if ratio > best.0 {
            best = (ratio, Some(at));
        }
    }
    best.1
}

fn report(path: &str, old: &Written<'_>, new: &[u8], count: usize) -> String {
    let mut times = if count == 1 {
        "1 place".to_owned()
    } else {
        format!("{count} places")
    };
    times.push_str(if old.crlf { " (line ends \\r\\n)" } else { "" });
    if old.bytes.len().max(new.len()) > DIFFED_BYTES_MAX {
        return format!("changed {times} in {path}");
    }
    let new = Written { bytes: new, ..*old };
    let old = old.text();
    let new = new.text();
    let diff = TextDiff::configure()
        .timeout(Duration::from_millis(500))
        .diff_lines(old.as_str(), new.as_str());
    let text = diff
        .unified_diff()
        .context_radius(2)
        .header(path, path)
        .to_string();
    format!(
        "changed {times} in {path}\n{}",
        middle_cut(&text, DIFF_BYTES_MAX)
    )
}

// The size of tool arguments bounds a new file too.
const _: () = assert!(TOOL_INPUT_BYTES_MAX as u64 <= FILE_BYTES_MAX);

#[cfg(test)]
mod tests {
    use crate::tools::fixture::Fixture;
    use callboard_actors::tool::ToolErrorType;

    #[tokio::test]
    async fn only_the_named_bytes_change() {
        let fixture = Fixture::new();
        fixture.write_bytes("f", b"one\r\ntwo\nthr\xff\tee");
        let tool = fixture.tool("file_edit");

        let answer = fixture
            .call(&tool, r#"{"path":"f","old_text":"two","new_text":"2"}"#)
            .await
            .unwrap();

        assert_eq!(fixture.read("f"), b"one\r\n2\nthr\xff\tee");
        assert!(
            answer.starts_with("changed 1 place in f\n--- f\n+++ f\n"),
            "{answer}"
        );
        assert!(answer.contains("-two\n+2\n"), "{answer}");
    }

    #[tokio::test]
    async fn the_text_must_be_there_exactly_once_unless_all_are_meant() {
        let fixture = Fixture::new();
        fixture.write("f", "let a = 1;\nlet b = 1;\n");
        let tool = fixture.tool("file_edit");

        let twice = fixture
            .call(&tool, r#"{"path":"f","old_text":" = 1","new_text":" = 2"}"#)
            .await
            .unwrap_err();
        let none = fixture
            .call(
                &tool,
                r#"{"path":"f","old_text":"let  a = 1;","new_text":"x"}"#,
            )
            .await
            .unwrap_err();
        assert_eq!(fixture.read("f"), b"let a = 1;\nlet b = 1;\n");
        let all = fixture
            .call(
                &tool,
                r#"{"path":"f","old_text":" = 1","new_text":" = 2","replace_all":true}"#,
            )
            .await
            .unwrap();

        assert_eq!(
            twice.message,
            "old_text occurs 2 times in \"f\" (lines 1, 2): give more lines around it, or set replace_all"
        );
        assert_eq!(none.kind, ToolErrorType::NotFound);
        assert!(
            none.message.ends_with(
                "Line 1 differs from it only in white space: \"let a = 1;\". Copy it exactly."
            ),
            "{}",
            none.message
        );
        assert!(all.starts_with("changed 2 places in f\n"));
        assert_eq!(fixture.read("f"), b"let a = 2;\nlet b = 2;\n");
    }

    #[tokio::test]
    async fn a_file_is_created_once_with_its_folders() {
        let fixture = Fixture::new();
        let tool = fixture.tool("file_edit");
        let create = r#"{"path":"new dir/..odd/f.txt","old_text":"","new_text":"a\nb\n"}"#;

        let first = fixture.call(&tool, create).await;
        let second = fixture.call(&tool, create).await.unwrap_err();

        assert_eq!(
            first,
            Ok("created new dir/..odd/f.txt (2 lines)".to_owned())
        );
        assert_eq!(fixture.read("new dir/..odd/f.txt"), b"a\nb\n");
        assert_eq!(
            second.message,
            "\"new dir/..odd/f.txt\" exists already: give the text to replace in old_text"
        );
    }

    #[tokio::test]
    async fn line_ends_and_marks_are_explained() {
        let fixture = Fixture::new();
        fixture.write("mixed", "a\r\nb\r\nc\n");
        let tool = fixture.tool("file_edit");

        let ends = fixture
            .call(
                &tool,
                r#"{"path":"mixed","old_text":"a\nb","new_text":"x"}"#,
            )
            .await
            .unwrap_err();
        let mark = fixture
            .call(
                &tool,
                r#"{"path":"mixed","old_text":"a","new_text":"[masked:1]"}"#,
            )
            .await
            .unwrap_err();

        assert!(
            ends.message
                .contains("Some lines of the file end with \\r\\n"),
            "{}",
            ends.message
        );
        assert_eq!(mark.kind, ToolErrorType::InvalidParameters);
        assert_eq!(fixture.read("mixed"), b"a\r\nb\r\nc\n");
    }

    #[tokio::test]
    async fn a_file_stays_in_its_encoding_with_its_line_ends() {
        let fixture = Fixture::new();
        let utf16 = |text: &str| {
            [
                &b"\xff\xfe"[..],
                &text
                    .encode_utf16()
                    .flat_map(u16::to_le_bytes)
                    .collect::<Vec<_>>(),
            ]
            .concat()
        };
        fixture.write_bytes("crlf", b"one\r\ntwo\r\nthree");
        fixture.write_bytes("marked", b"\xef\xbb\xbfone\n");
        fixture.write_bytes("wide", &utf16("one\r\n\u{e9}\u{4e16}\r\nthree"));
        fixture.write_bytes("latin", b"caf\xe9 one\nd\xe9j\xe0\n");
        fixture.write_bytes("only mark", &utf16(""));
        let tool = fixture.tool("file_edit");
        let edits = [
            (
                r#"{"path":"crlf","old_text":"one\ntwo","new_text":"1\n2\n"}"#,
                b"1\r\n2\r\n\r\nthree".to_vec(),
            ),
            (
                r#"{"path":"marked","old_text":"one\n","new_text":"1"}"#,
                b"\xef\xbb\xbf1".to_vec(),
            ),
            (
                r#"{"path":"wide","old_text":"\u00e9\u4e16","new_text":"two\n\u4e8c"}"#,
                utf16("one\r\ntwo\r\n\u{4e8c}\r\nthree"),
            ),
            (
                r#"{"path":"latin","old_text":"caf\u00e9 one","new_text":"\u00e0 1"}"#,
                b"\xe0 1\nd\xe9j\xe0\n".to_vec(),
            ),
            (
                r#"{"path":"only mark","old_text":"","new_text":"now"}"#,
                utf16("now"),
            ),
        ];

        for (arguments, bytes) in edits {
            let answer = fixture.call(&tool, arguments).await;
            let path = serde_json::from_str::<serde_json::Value>(arguments).unwrap()["path"]
                .as_str()
                .unwrap()
                .to_owned();
            assert_eq!(fixture.read(&path), bytes, "{arguments}: {answer:?}");
        }
        let lacks = fixture
            .call(
                &tool,
                r#"{"path":"latin","old_text":"1","new_text":"\u4e16"}"#,
            )
            .await
            .unwrap_err();
        assert!(
            lacks.message.contains("lacks a character"),
            "{}",
            lacks.message
        );
    }

    #[tokio::test]
    async fn a_near_miss_is_explained() {
        let fixture = Fixture::new();
        fixture.write("f", "fn a() {\n\tlet  x = 1;\n}\n\naaa\n");
        let tool = fixture.tool("file_edit");
        let message = async |old: &str| {
            let arguments =
                serde_json::json!({ "path": "f", "old_text": old, "new_text": "y" }).to_string();
            fixture.call(&tool, &arguments).await.unwrap_err().message
        };

        let spaces = message("fn a() {\n    let x = 1;\n}").await;
        assert_eq!(
            spaces,
            "old_text was not found in \"f\". Lines 1-3 differ from it only in white space: read them again and copy them exactly."
        );
        assert!(
            message("fn b() {")
                .await
                .contains("Nearest is line 1: \"fn a() {\"")
        );
        assert!(
            message("quite another text")
                .await
                .ends_with("No line is like it; read the file again.")
        );
        assert!(
            message("aa")
                .await
                .starts_with("old_text occurs 2 times in \"f\" (lines 5):")
        );
    }

    #[tokio::test]
    async fn what_grows_too_large_is_refused_before_it_is_made() {
        let fixture = Fixture::new();
        fixture.write("f", &"a".repeat(1_000_000));
        let tool = fixture.tool("file_edit");
        let arguments = serde_json::json!({ "path": "f", "old_text": "a", "new_text": "b".repeat(1000), "replace_all": true }).to_string();

        let error = fixture.call(&tool, &arguments).await.unwrap_err();

        assert_eq!(
            error.message,
            "the file would grow to 1000000000 bytes; at most 16777216 are edited"
        );
        assert_eq!(fixture.read("f").len(), 1_000_000);
    }

    #[tokio::test]
    async fn a_path_has_one_spelling_and_a_link_is_not_written_through() {
        let fixture = Fixture::new();
        fixture.write("dir/f", "text");
        std::os::unix::fs::symlink("dir/f", fixture.path().join("link")).unwrap();
        std::os::unix::fs::symlink("dir", fixture.path().join("folder")).unwrap();
        let tool = fixture.tool("file_edit");
        let given = callboard_actors::chat::RawJson::from_text(
            r#"{"path":"./a/../dir//f","old_text":"text","new_text":"new"}"#,
        )
        .unwrap();

        let resolved = tool.resolve(&given).unwrap();
        let real = fixture.path().canonicalize().unwrap();
        let pattern = super::super::in_workspace("dir/f", &real);
        assert_eq!(
            resolved.as_str(),
            r#"{"path":"dir/f","old_text":"text","new_text":"new"}"#
        );
        assert_eq!(
            (
                tool.resolve(&resolved),
                tool.approval_pattern(&given),
                tool.approval_pattern(&resolved)
            ),
            (None, pattern.clone(), pattern.clone())
        );
        // The same path in another folder, in which a session can go on.
        assert_ne!(
            Fixture::new().tool("file_edit").approval_pattern(&resolved),
            pattern
        );

        let link = fixture
            .call(
                &tool,
                r#"{"path":"link","old_text":"text","new_text":"new"}"#,
            )
            .await
            .unwrap_err();
        let folder = fixture
            .call(
                &tool,
                r#"{"path":"folder/new","old_text":"","new_text":"new"}"#,
            )
            .await
            .unwrap_err();
        assert_eq!(
            link.message,
            "\"link\" is a link to \"dir/f\"; edit that path itself"
        );
        assert_eq!(
            folder.message,
            "\"folder\" is a link to \"dir\"; edit \"dir/new\" itself"
        );
        assert!(link.not_started && folder.not_started);
        assert_eq!(fixture.read("dir/f"), b"text");
        assert!(!fixture.path().join("dir/new").exists());
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn permissions_stay_without_set_user_id_and_nothing_is_left_beside() {
        use std::os::unix::fs::PermissionsExt;
        let fixture = Fixture::new();
        fixture.write("run.sh", "echo 1\n");
        std::fs::set_permissions(
            fixture.path().join("run.sh"),
            std::fs::Permissions::from_mode(0o6750),
        )
        .unwrap();
        let tool = fixture.tool("file_edit");

        fixture
            .call(&tool, r#"{"path":"run.sh","old_text":"1","new_text":"2"}"#)
            .await
            .unwrap();

        assert_eq!(
            std::fs::metadata(fixture.path().join("run.sh"))
                .unwrap()
                .permissions()
                .mode()
                & 0o7777,
            0o750
        );
        assert_eq!(std::fs::read_dir(fixture.path()).unwrap().count(), 1);
    }

    #[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
    #[tokio::test]
    async fn hooks_and_programs_that_gits_configuration_names_are_the_users_to_write() {
        let fixture = Fixture::new();
        let tool = fixture.tool("file_edit");
        let config = "[core]\n\thooksPath = .ours\n[include]\n\tpath = ../shared\n";
        fixture.write(".git/config", config);
        fixture.write("shared", "[filter \"x\"]\n\tclean = sh tools/clean.sh\n");
        fixture.write("src/main.rs", "x");
        fixture.write(".ours/pre-commit", "x");
        fixture.write("sub/.git/config", "[core]\n\thooksPath = hooks\n");
        // Files that a hook or a protected name leads to.
        fixture.write(".git/hooks/sample", "x");
        fixture.write("scripts/check", "x");
        fixture.write("docs/agents.txt", "x");
        fixture.write("editor/settings.json", "x");
        fixture.write("shared.json", "x");
        fixture.write(".claude/x", "x");
        for (target, link) in [
            ("../../scripts/check", ".git/hooks/pre-commit"),
            ("docs/agents.txt", "CLAUDE.md"),
            ("editor", ".vscode"),
            ("../shared.json", ".claude/settings.json"),
        ] {
            std::os::unix::fs::symlink(target, fixture.path().join(link)).unwrap();
        }

        let edit = async |path: &str| {
            let new = serde_json::json!({ "path": path, "old_text": "", "new_text": "evil" });
            let old = serde_json::json!({ "path": path, "old_text": "x", "new_text": "evil" });
            let exists = fixture.path().join(path).exists();
            let arguments = if exists { old } else { new }.to_string();
            fixture.call(&tool, &arguments).await.is_ok()
        };
        for path in [
            ".ours/pre-commit",
            "./.ours/pre-push",
            ".OURS/x",
            "shared",
            "tools/clean.sh",
            "sub/hooks/pre-commit",
            "sub/../sub/hooks/x",
            "scripts/check",
            "docs/agents.txt",
            "editor/settings.json",
            "editor/tasks.json",
            "shared.json",
        ] {
            assert!(!edit(path).await, "{path}");
        }
        for path in [
            "src/main.rs",
            "tools/other.sh",
            "hooks/x",
            "sub/hooks.md",
            "editor/other.txt",
            "docs/other.txt",
            "sub/src/hooks/x",
        ] {
            assert!(edit(path).await, "{path}");
        }
    }
}
