//! Reads a text file of the workspace with line numbers (REQUIREMENTS U-02).

use std::{
    io::{BufRead, BufReader},
    sync::Arc,
};

use callboard_actors::{
    limits::OBSERVATION_BYTES_MAX,
    ports::{ToolContext, ToolError, ToolSource, ToolSpec, TypedTool},
};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::{
    blocking, io_error,
    mask::Masker,
    text::{LINE_CHARS_MAX, cut_line, is_binary},
};
use crate::sandbox::{Opened, Root};

/// Lines of one answer unless the caller says otherwise.
const LINES_DEFAULT: u64 = 2000;

/// Bytes kept for the account at the end of an answer.
const ACCOUNT_BYTES: usize = 300;

/// Bytes of one line that are kept in memory; more than is ever shown.
const LINE_BYTES_MAX: usize = LINE_CHARS_MAX * 4 + 4;

/// Arguments of `file_read`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileReadArgs {
    /// Path of the file, relative to the workspace.
    pub path: String,
    /// First line to read, counted from 1.
    #[schemars(range(min = 1))]
    pub offset: Option<u64>,
    /// Number of lines to read; 2000 if absent.
    #[schemars(range(min = 1))]
    pub limit: Option<u64>,
}

/// The tool.
#[derive(Debug, Clone)]
pub struct FileRead {
    root: Arc<Root>,
    masker: Arc<Masker>,
}

impl FileRead {
    /// Reads beneath `root`; keys that `masker` knows exactly are shown as `[masked:N]`.
    pub fn new(root: Arc<Root>, masker: Arc<Masker>) -> Self {
        Self { root, masker }
    }
}

impl TypedTool for FileRead {
    type Args = FileReadArgs;
    type Output = String;
    const NAME: &'static str = "file_read";
    const DESCRIPTION: &'static str = "Reads a text file of the workspace. Each line is shown as its number, a tab and its text; the number is not \
part of the file. Long files come in parts: the last line says which offset continues. Files that may hold keys and binary files are refused.";

    fn declare(&self, spec: ToolSpec) -> ToolSpec {
        spec.read_only().source(ToolSource::BuiltIn)
    }

    fn check(&self, args: &FileReadArgs) -> Result<(), ToolError> {
        if args.offset == Some(0) || args.limit == Some(0) {
            return Err(ToolError::invalid("offset and limit count from 1"));
        }
        Ok(())
    }

    async fn call(&self, args: FileReadArgs, context: ToolContext) -> Result<String, ToolError> {
        let (root, masker) = (self.root.clone(), self.masker.clone());
        blocking(context, move |cancel| {
            let opened = root.open_file(&args.path)?;
            let text = render(opened, &args, cancel)?;
            Ok(masker.mask_exact(&text))
        })
        .await
    }
}

/// What one pass over the file found.
struct Page {
    text: String,
    /// Number of the last line shown; 0 if none.
    last: u64,
    lines: u64,
    replaced: bool,
}

fn render(opened: Opened, args: &FileReadArgs, cancel: &CancellationToken) -> Result<String, ToolError> {
    let first = args.offset.unwrap_or(1);
    let limit = args.limit.unwrap_or(LINES_DEFAULT);
    let bytes = opened.len;
    let mut reader = BufReader::with_capacity(64 * 1024, opened.file);
    if is_binary(reader.fill_buf().map_err(|e| io_error(&args.path, &e))?) {
        return Err(ToolError::failed(format!("{:?} is a binary file ({bytes} bytes); it cannot be read as text", args.path)));
    }
    let page = read_page(reader, first, limit, &args.path, cancel)?;
    if page.lines == 0 {
        return Ok(format!("[{:?} is empty]", args.path));
    }
    if page.last == 0 {
        return Err(ToolError::invalid(format!("offset {first} is after the end: {:?} has {} lines", args.path, page.lines)));
    }
    let mut text = page.text;
    if page.replaced {
        text.push_str("[invalid UTF-8 was replaced by U+FFFD]\n");
    }
    if first > 1 || page.last < page.lines {
        text.push_str(&format!(
            "[lines {first}-{} of {} shown; {} before and {} after are left out",
            page.last,
            page.lines,
            first - 1,
            page.lines - page.last
        ));
        if page.last < page.lines {
            text.push_str(&format!("; continue with offset {}", page.last + 1));
        }
        text.push_str("]\n");
    }
    Ok(text)
}

fn read_page(mut reader: impl BufRead, first: u64, limit: u64, path: &str, cancel: &CancellationToken) -> Result<Page, ToolError> {
    let mut page = Page { text: String::new(), last: 0, lines: 0, replaced: false };
    let mut full = false;
    let mut line = Vec::new();
    loop {
        if page.lines.is_multiple_of(1024) && cancel.is_cancelled() {
            return Err(super::cancelled());
        }
        line.clear();
        let Some(cut) = next_line(&mut reader, &mut line).map_err(|e| io_error(path, &e))? else { return Ok(page) };
        page.lines += 1;
        if full || page.lines < first || page.lines - first >= limit {
            continue;
        }
        let mut text = String::from_utf8_lossy(&line);
        if cut > 0 {
            // The cut may have gone through a character.
            text = text.trim_end_matches(char::REPLACEMENT_CHARACTER).to_owned().into();
        }
        page.replaced |= cut == 0 && text.contains(char::REPLACEMENT_CHARACTER) && std::str::from_utf8(&line).is_err();
        let shown = if cut > 0 {
            let kept: String = text.chars().take(LINE_CHARS_MAX).collect();
            format!("{kept} [… {} more bytes]", cut + (line.len() - kept.len()) as u64)
        } else {
            cut_line(&text, LINE_CHARS_MAX)
        };
        let shown = format!("{}\t{shown}\n", page.lines);
        // A line alone always fits: it is cut far below the bound.
        if page.text.len() + shown.len() + ACCOUNT_BYTES > OBSERVATION_BYTES_MAX {
            full = true;
            continue;
        }
        page.text.push_str(&shown);
        page.last = page.lines;
    }
}

/// Reads a line without its end into `line`; returns how many bytes did not fit, `None` at the end of the file.
fn next_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> std::io::Result<Option<u64>> {
    let (mut cut, mut any) = (0, false);
    loop {
        let buffer = reader.fill_buf()?;
        if buffer.is_empty() {
            return Ok(any.then_some(cut));
        }
        any = true;
        let end = buffer.iter().position(|b| *b == b'\n');
        let part = buffer.get(..end.unwrap_or(buffer.len())).unwrap_or_default();
        let room = LINE_BYTES_MAX.saturating_sub(line.len()).min(part.len());
        line.extend_from_slice(part.get(..room).unwrap_or_default());
        cut += (part.len() - room) as u64;
        let used = part.len() + usize::from(end.is_some());
        reader.consume(used);
        if end.is_some() {
            if cut == 0 && line.last() == Some(&b'\r') {
                line.pop();
            }
            return Ok(Some(cut));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::fixture::Fixture;
    use callboard_actors::ports::ToolErrorType;

    #[tokio::test]
    async fn lines_are_numbered_and_an_offset_continues() {
        let fixture = Fixture::new();
        fixture.write("a.txt", "one\ntwo\r\nthree");
        let tool = fixture.tool("file_read");

        assert_eq!(fixture.call(&tool, r#"{"path":"a.txt"}"#).await, Ok("1\tone\n2\ttwo\n3\tthree\n".to_owned()));
        assert_eq!(
            fixture.call(&tool, r#"{"path":"a.txt","offset":2,"limit":1}"#).await,
            Ok("2\ttwo\n[lines 2-2 of 3 shown; 1 before and 1 after are left out; continue with offset 3]\n".to_owned())
        );
        let past = fixture.call(&tool, r#"{"path":"a.txt","offset":9}"#).await.unwrap_err();
        assert_eq!(
            (past.kind, past.message.as_str()),
            (ToolErrorType::InvalidParameters, "offset 9 is after the end: \"a.txt\" has 3 lines")
        );
    }

    #[tokio::test]
    async fn what_does_not_fit_is_accounted_for_and_every_line_can_be_reached() {
        let fixture = Fixture::new();
        let body: String = (1..=5000).map(|n| format!("line number {n}\n")).collect();
        fixture.write("long.txt", &body);
        let tool = fixture.tool("file_read");

        let (mut offset, mut seen) = (1, String::new());
        loop {
            let part = fixture.call(&tool, &format!(r#"{{"path":"long.txt","offset":{offset}}}"#)).await.unwrap();
            assert!(part.len() <= OBSERVATION_BYTES_MAX);
            for line in part.lines().filter(|line| !line.starts_with('[')) {
                seen.push_str(line.split_once('\t').unwrap().1);
                seen.push('\n');
            }
            match part.split_once("continue with offset ") {
                Some((_, next)) => offset = next.trim_end_matches("]\n").parse().unwrap(),
                None => break,
            }
        }

        assert_eq!(seen, body);
    }

    #[tokio::test]
    async fn odd_files_are_told_apart() {
        let fixture = Fixture::new();
        fixture.write("empty", "");
        fixture.write_bytes("image", b"\x89PNG\0\0");
        fixture.write_bytes("latin", b"caf\xe9\n");
        fixture.write("wide", &"x".repeat(100_000));
        let tool = fixture.tool("file_read");

        assert_eq!(fixture.call(&tool, r#"{"path":"empty"}"#).await, Ok("[\"empty\" is empty]".to_owned()));
        assert_eq!(
            fixture.call(&tool, r#"{"path":"latin"}"#).await,
            Ok("1\tcaf\u{fffd}\n[invalid UTF-8 was replaced by U+FFFD]\n".to_owned())
        );
        assert_eq!(fixture.call(&tool, r#"{"path":"wide"}"#).await, Ok(format!("1\t{} [… 98000 more bytes]\n", "x".repeat(2000))));
        let image = fixture.call(&tool, r#"{"path":"image"}"#).await.unwrap_err();
        assert_eq!(image.message, "\"image\" is a binary file (6 bytes); it cannot be read as text");
        let folder = fixture.call(&tool, r#"{"path":"."}"#).await.unwrap_err();
        assert_eq!(folder.message, "\".\" is a folder, not a regular file");
        let missing = fixture.call(&tool, r#"{"path":"nowhere"}"#).await.unwrap_err();
        assert_eq!((missing.kind, missing.message.as_str()), (ToolErrorType::NotFound, "\"nowhere\" does not exist"));
    }

    #[tokio::test]
    async fn configured_keys_are_shown_as_marks() {
        let fixture = Fixture::with_secrets(["not-a-real-key-1234"]);
        fixture.write("notes", "key not-a-real-key-1234 end");
        let tool = fixture.tool("file_read");

        assert_eq!(fixture.call(&tool, r#"{"path":"notes"}"#).await, Ok("1\tkey [masked:1] end\n".to_owned()));
    }
}
