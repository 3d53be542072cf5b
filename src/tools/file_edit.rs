//! Replaces an exact text in a file of the workspace (REQUIREMENTS U-03): bytes outside of it stay as they are, line ends included.

use std::sync::Arc;

use callboard_actors::{
    limits::TOOL_INPUT_BYTES_MAX,
    ports::{Approval, Concurrency, Effect, ToolContext, ToolError, ToolSource, ToolSpec, TypedTool},
};
use schemars::JsonSchema;
use serde::Deserialize;
use similar::TextDiff;

use super::{
    blocking,
    mask::{MARK, Masker},
    text::{is_binary, middle_cut},
};
use crate::sandbox::{Root, Slot, shown};

/// Bytes of a file that can be edited: it is held in memory twice.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Bytes of the diff that is shown.
const DIFF_BYTES_MAX: usize = 4 * 1024;

/// Bytes of a file up to which a diff is computed; above it the result says only what was replaced.
const DIFFED_BYTES_MAX: usize = 1024 * 1024;

/// Arguments of `file_edit`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileEditArgs {
    /// Path of the file, relative to the workspace.
    pub path: String,
    /// Text to replace, exactly as in the file and without line numbers; it must occur once. Empty to create a new file.
    pub old_text: String,
    /// Text to put in its place.
    pub new_text: String,
    /// Replace every occurrence instead of exactly one.
    #[serde(default)]
    pub replace_all: bool,
}

/// The tool.
#[derive(Debug, Clone)]
pub struct FileEdit {
    root: Arc<Root>,
    masker: Arc<Masker>,
}

impl FileEdit {
    /// Edits beneath `root`; keys that `masker` knows exactly are not shown in the diff.
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
        spec.effect(Effect::Once)
            .approval(Approval::ByMode)
            .concurrency(Concurrency::PerFile("path".to_owned()))
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

    async fn call(&self, args: FileEditArgs, context: ToolContext) -> Result<String, ToolError> {
        self.check(&args)?;
        let (root, masker) = (self.root.clone(), self.masker.clone());
        blocking(context, move |cancel| {
            if cancel.is_cancelled() {
                return Err(super::cancelled().not_started());
            }
            Ok(masker.mask_exact(&edit(&root, &args)?))
        })
        .await
    }
}

fn edit(root: &Root, args: &FileEditArgs) -> Result<String, ToolError> {
    let create = args.old_text.is_empty();
    let slot = root.slot(&args.path, create).map_err(|e| ToolError::from(e).not_started())?;
    if !slot.exists() {
        if !create {
            return Err(ToolError::not_found(format!("{:?} does not exist; to create it leave old_text empty", args.path)).not_started());
        }
        slot.replace(args.new_text.as_bytes())?;
        return Ok(format!("created {} ({} lines)", shown(&slot.relative()), args.new_text.lines().count()));
    }
    let old = read(&slot, &args.path)?;
    if create && !old.is_empty() {
        return Err(ToolError::invalid(format!("{:?} exists already: give the text to replace in old_text", args.path)));
    }
    let count = if create { 1 } else { occurrences(&old, args)? };
    let new = if create { args.new_text.clone().into_bytes() } else { splice(&old, args.old_text.as_bytes(), args.new_text.as_bytes()) };
    if new.len() > FILE_BYTES_MAX as usize {
        return Err(ToolError::invalid(format!("the file would grow to {} bytes; at most {FILE_BYTES_MAX} are edited", new.len())));
    }
    slot.replace(&new)?;
    Ok(report(&shown(&slot.relative()), &old, &new, count))
}

fn read(slot: &Slot<'_>, path: &str) -> Result<Vec<u8>, ToolError> {
    let bytes = slot
        .read(FILE_BYTES_MAX)?
        .ok_or_else(|| ToolError::invalid(format!("{path:?} is larger than {FILE_BYTES_MAX} bytes and cannot be edited")))?;
    if is_binary(&bytes) {
        return Err(ToolError::invalid(format!("{path:?} is a binary file and cannot be edited")));
    }
    Ok(bytes)
}

/// How often the text occurs; an error unless that is what was asked for.
fn occurrences(file: &[u8], args: &FileEditArgs) -> Result<usize, ToolError> {
    let starts = find_all(file, args.old_text.as_bytes());
    match starts.len() {
        0 => Err(ToolError::not_found(format!("old_text was not found in {:?}. {}", args.path, hint(file, &args.old_text))).not_started()),
        n if n > 1 && !args.replace_all => {
            let lines: Vec<String> = starts.iter().take(5).map(|at| line_of(file, *at).to_string()).collect();
            let more = if n > 5 { ", …" } else { "" };
            Err(ToolError::invalid(format!(
                "old_text occurs {n} times in {:?} (lines {}{more}): give more lines around it, or set replace_all",
                args.path,
                lines.join(", ")
            )))
        }
        n => Ok(n),
    }
}

fn find_all(file: &[u8], text: &[u8]) -> Vec<usize> {
    let (mut starts, mut at) = (Vec::new(), 0);
    while let Some(found) = file.get(at..).and_then(|rest| find(rest, text)) {
        starts.push(at + found);
        at += found + text.len();
    }
    starts
}

/// First occurrence; candidates by first byte keep it fast enough for files of this size.
fn find(file: &[u8], text: &[u8]) -> Option<usize> {
    let first = *text.first()?;
    let mut at = 0;
    loop {
        at += file.get(at..)?.iter().position(|b| *b == first)?;
        if file.get(at..)?.starts_with(text) {
            return Some(at);
        }
        at += 1;
    }
}

fn splice(file: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    let (mut out, mut at) = (Vec::with_capacity(file.len()), 0);
    for start in find_all(file, old) {
        out.extend_from_slice(file.get(at..start).unwrap_or_default());
        out.extend_from_slice(new);
        at = start + old.len();
    }
    out.extend_from_slice(file.get(at..).unwrap_or_default());
    out
}

fn line_of(file: &[u8], at: usize) -> usize {
    file.iter().take(at).filter(|b| **b == b'\n').count() + 1
}

/// Tells the likeliest reason why the text was not found.
fn hint(file: &[u8], old: &str) -> String {
    let text = String::from_utf8_lossy(file);
    if text.contains("\r\n") && old.contains('\n') && !old.contains("\r\n") && text.contains(&old.replace('\n', "\r\n")) {
        return "The file ends its lines with \\r\\n: write \\r\\n in old_text and new_text.".to_owned();
    }
    let Some(wanted) = old.lines().map(str::trim).find(|line| !line.is_empty()) else {
        return "It holds only white space.".to_owned();
    };
    let exact = text.lines().position(|line| line.trim() == wanted);
    let near = exact.or_else(|| text.lines().position(|line| line.to_lowercase().contains(&wanted.to_lowercase())));
    match near.or_else(|| nearest(&text, wanted)) {
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

/// The line most like `wanted`, if any is more than half like it.
fn nearest(text: &str, wanted: &str) -> Option<usize> {
    const LINES_COMPARED: usize = 2000;
    let mut best = (0.6_f32, None);
    for (at, line) in text.lines().take(LINES_COMPARED).enumerate().filter(|(_, line)| line.len() <= 400 && wanted.len() <= 400) {
        let ratio = TextDiff::from_chars(line.trim(), wanted).ratio();
        if ratio > best.0 {
            best = (ratio, Some(at));
        }
    }
    best.1
}

fn report(path: &str, old: &[u8], new: &[u8], count: usize) -> String {
    let times = if count == 1 { "1 place".to_owned() } else { format!("{count} places") };
    if old.len().max(new.len()) > DIFFED_BYTES_MAX {
        return format!("changed {times} in {path}");
    }
    let (old, new) = (String::from_utf8_lossy(old), String::from_utf8_lossy(new));
    let diff = TextDiff::configure().timeout(std::time::Duration::from_millis(500)).diff_lines(old.as_ref(), new.as_ref());
    let text = diff.unified_diff().context_radius(2).header(path, path).to_string();
    format!("changed {times} in {path}\n{}", middle_cut(&text, DIFF_BYTES_MAX))
}

// An argument is bounded before it comes here, so a new file is too.
const _: () = assert!(TOOL_INPUT_BYTES_MAX as u64 <= FILE_BYTES_MAX);

#[cfg(test)]
mod tests {
    use crate::tools::fixture::Fixture;
    use callboard_actors::ports::ToolErrorType;

    #[tokio::test]
    async fn only_the_named_bytes_change() {
        let fixture = Fixture::new();
        fixture.write_bytes("f", b"one\r\ntwo\nthr\xff\tee");
        let tool = fixture.tool("file_edit");

        let answer = fixture.call(&tool, r#"{"path":"f","old_text":"two","new_text":"2"}"#).await.unwrap();

        assert_eq!(fixture.read("f"), b"one\r\n2\nthr\xff\tee");
        assert!(answer.starts_with("changed 1 place in f\n--- f\n+++ f\n"), "{answer}");
        assert!(answer.contains("-two\n+2\n"), "{answer}");
    }

    #[tokio::test]
    async fn the_text_must_be_there_exactly_once_unless_all_are_meant() {
        let fixture = Fixture::new();
        fixture.write("f", "let a = 1;\nlet b = 1;\n");
        let tool = fixture.tool("file_edit");

        let twice = fixture.call(&tool, r#"{"path":"f","old_text":" = 1","new_text":" = 2"}"#).await.unwrap_err();
        let none = fixture.call(&tool, r#"{"path":"f","old_text":"let  a = 1;","new_text":"x"}"#).await.unwrap_err();
        assert_eq!(fixture.read("f"), b"let a = 1;\nlet b = 1;\n");
        let all = fixture.call(&tool, r#"{"path":"f","old_text":" = 1","new_text":" = 2","replace_all":true}"#).await.unwrap();

        assert_eq!(twice.message, "old_text occurs 2 times in \"f\" (lines 1, 2): give more lines around it, or set replace_all");
        assert_eq!(none.kind, ToolErrorType::NotFound);
        assert!(none.message.contains("Nearest is line 1: \"let a = 1;\""), "{}", none.message);
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

        assert_eq!(first, Ok("created new dir/..odd/f.txt (2 lines)".to_owned()));
        assert_eq!(fixture.read("new dir/..odd/f.txt"), b"a\nb\n");
        assert_eq!(second.message, "\"new dir/..odd/f.txt\" exists already: give the text to replace in old_text");
    }

    #[tokio::test]
    async fn line_ends_and_marks_are_explained() {
        let fixture = Fixture::new();
        fixture.write("crlf", "a\r\nb\r\n");
        let tool = fixture.tool("file_edit");

        let ends = fixture.call(&tool, r#"{"path":"crlf","old_text":"a\nb","new_text":"x"}"#).await.unwrap_err();
        let mark = fixture.call(&tool, r#"{"path":"crlf","old_text":"a","new_text":"[masked:1]"}"#).await.unwrap_err();

        assert!(ends.message.contains("ends its lines with \\r\\n"), "{}", ends.message);
        assert_eq!(mark.kind, ToolErrorType::InvalidParameters);
        assert_eq!(fixture.read("crlf"), b"a\r\nb\r\n");
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn permissions_stay_and_nothing_is_left_beside() {
        use std::os::unix::fs::PermissionsExt;
        let fixture = Fixture::new();
        fixture.write("run.sh", "echo 1\n");
        std::fs::set_permissions(fixture.path().join("run.sh"), std::fs::Permissions::from_mode(0o750)).unwrap();
        let tool = fixture.tool("file_edit");

        fixture.call(&tool, r#"{"path":"run.sh","old_text":"1","new_text":"2"}"#).await.unwrap();

        assert_eq!(std::fs::metadata(fixture.path().join("run.sh")).unwrap().permissions().mode() & 0o7777, 0o750);
        assert_eq!(std::fs::read_dir(fixture.path()).unwrap().count(), 1);
    }
}
