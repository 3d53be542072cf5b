//! The `file_read` tool: reads a text file of the workspace, or a stored artifact, with line
//! numbers.
//!
//! Promises
//! - Files of any size are read in bounded memory: a line is kept up to the length that is ever
//!   shown, an answer up to [`OBSERVATION_BYTES_MAX`].
//! - The answer accounts for everything that it does not show, and `offset` reaches every line.
//! - An encoding other than plain UTF-8 is reported, a guess as a guess (see the module
//!   `encoding`).

use std::{io::Read, sync::Arc};

use callboard_actors::{
    chat::RawJson,
    ids::ArtifactId,
    limits::OBSERVATION_BYTES_MAX,
    ports::{ArtifactError, Artifacts, Reach, ToolContext, ToolSource, ToolSpec, TypedTool},
    tool::{ToolError, ToolErrorType},
};
use encoding_rs::{CoderResult, Decoder};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::{
    blocking,
    encoding::{Encoding, Judge, START_BYTES, binary},
    io_error,
    text::LINE_CHARS_MAX,
};
use crate::{
    mask::Masker,
    sandbox::{Opened, Root},
};

/// Lines in one answer by default.
const LINES_DEFAULT: u64 = 2000;

/// Bytes reserved for the summary at the end of an answer.
const ACCOUNT_BYTES: usize = 400;

/// Bytes of one line that are kept in memory: more than is ever shown.
const LINE_BYTES_MAX: usize = LINE_CHARS_MAX * 4 + 4;

/// Bytes in one read.
const CHUNK_BYTES: usize = 64 * 1024;

/// Largest file whose remaining lines are counted after a full answer. For a larger file the
/// summary says `at least`.
const COUNTED_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// Arguments of `file_read`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileReadArgs {
    /// Path of the file, relative to the workspace; or an artifact_id.
    pub path: String,
    /// First line to read, counted from 1.
    #[schemars(range(min = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Number of lines to read; 2000 if absent.
    #[schemars(range(min = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

/// The `file_read` tool.
#[derive(Debug, Clone)]
pub struct FileRead {
    root: Arc<Root>,
    masker: Arc<Masker>,
}

impl FileRead {
    /// Creates a tool that reads beneath `root`. Keys that `masker` knows exactly are shown as
    /// `[masked:N]`.
    pub fn new(root: Arc<Root>, masker: Arc<Masker>) -> Self {
        Self { root, masker }
    }
}

impl TypedTool for FileRead {
    type Args = FileReadArgs;
    type Output = String;
    const NAME: &'static str = "file_read";
    const DESCRIPTION: &'static str = "Reads a text file of the workspace, or a stored result by its artifact_id. Each line is shown as its number, a \
tab and its text; the number is not part of the file. Long files come in parts: the last line says which offset continues. Files that may hold keys \
and binary files are refused.";

    fn declare(&self, spec: ToolSpec) -> ToolSpec {
        spec.read_only()
            .not_shared()
            .reach(Reach::Files)
            .source(ToolSource::BuiltIn)
    }

    fn check(&self, args: &FileReadArgs) -> Result<(), ToolError> {
        if args.offset == Some(0) || args.limit == Some(0) {
            return Err(ToolError::invalid("offset and limit count from 1"));
        }
        Ok(())
    }

    fn resolve(&self, args: &FileReadArgs) -> Option<RawJson> {
        if ArtifactId::parse(&args.path).is_ok() {
            return None;
        }
        let mut path = self.root.spelled(&args.path);
        if ArtifactId::parse(&path).is_ok() {
            path = format!("./{path}"); // a file with the name of an artifact is read as a file
        }
        (path != args.path).then(|| {
            RawJson::of(&FileReadArgs {
                path,
                ..args.clone()
            })
            .ok()
        })?
    }

    async fn call(&self, args: FileReadArgs, context: ToolContext) -> Result<String, ToolError> {
        self.check(&args)?;
        if let Ok(id) = ArtifactId::parse(&args.path) {
            return Ok(self
                .masker
                .mask_exact(&read_artifact(id, &args, context).await?));
        }
        let root = self.root.clone();
        let masker = self.masker.clone();
        blocking(context, move |cancel| {
            let opened = root.open_file(&args.path)?;
            Ok(masker.mask_exact(&read_file(opened, &args, cancel)?))
        })
        .await
    }
}

fn read_file(
    opened: Opened,
    args: &FileReadArgs,
    cancel: &CancellationToken,
) -> Result<String, ToolError> {
    let mut pager = Pager::new(args, opened.len);
    let mut file = opened.file;
    loop {
        if cancel.is_cancelled() {
            return Err(super::cancelled());
        }
        // Fill the whole first chunk: the encoding is decided by it.
        let mut chunk = Vec::with_capacity(CHUNK_BYTES);
        (&mut file)
            .take(CHUNK_BYTES as u64)
            .read_to_end(&mut chunk)
            .map_err(|e| io_error(&args.path, &e))?;
        if chunk.is_empty() || !pager.feed(&chunk)? {
            return pager.finish();
        }
    }
}

async fn read_artifact(
    id: ArtifactId,
    args: &FileReadArgs,
    context: ToolContext,
) -> Result<String, ToolError> {
    let Some(Artifacts { store, owner }) = context.artifacts else {
        return Err(artifact_error(ArtifactError::NotFound(id)));
    };
    let size = store
        .meta(owner.clone(), id.clone())
        .await
        .map_err(artifact_error)?
        .size_bytes;
    let mut pager = Pager::new(args, size);
    let mut at = 0;
    loop {
        if context.cancel.is_cancelled() {
            return Err(super::cancelled());
        }
        let chunk = store
            .read_range(owner.clone(), id.clone(), at..at + CHUNK_BYTES as u64)
            .await
            .map_err(artifact_error)?;
        at += chunk.len() as u64;
        if chunk.is_empty() || !pager.feed(&chunk)? {
            return pager.finish();
        }
    }
}

/// Maps an error of the artifact port. Its messages hold no path.
fn artifact_error(error: ArtifactError) -> ToolError {
    let message = error.to_string();
    match error {
        ArtifactError::NotFound(_) => ToolError::not_found(message),
        ArtifactError::OverQuota { .. } | ArtifactError::Unavailable(_) => {
            ToolError::new(ToolErrorType::DependencyError, message)
        }
        _ => ToolError::failed(message),
    }
}

/// A line to show. Without a mark, its encoding is known only at the end of the file.
struct Kept {
    bytes: Vec<u8>,
    /// Bytes of the line that were not kept.
    cut: u64,
}

impl Kept {
    fn shown(&self, encoding: Encoding) -> String {
        let text = encoding.decode(&self.bytes);
        if self.cut == 0 {
            return super::text::cut_line(&text, LINE_CHARS_MAX);
        }
        let kept: String = text.chars().take(LINE_CHARS_MAX).collect();
        // The cut may have split a character.
        let kept = kept.trim_end_matches(char::REPLACEMENT_CHARACTER);
        let bytes = encoding.encode(kept).map_or(0, |bytes| bytes.len());
        format!(
            "{kept} [… {} more bytes]",
            self.cut + self.bytes.len().saturating_sub(bytes) as u64
        )
    }
}

/// Takes a text in pieces and keeps the requested lines.
struct Pager<'a> {
    args: &'a FileReadArgs,
    first: u64,
    limit: u64,
    /// The size that the file or artifact reported.
    size: u64,
    seen: u64,
    marked: Option<Encoding>,
    decoder: Option<Decoder>,
    judge: Judge,
    replaced: bool,
    line: Vec<u8>,
    cut: u64,
    in_line: bool,
    lines: u64,
    kept: Vec<Kept>,
    kept_bytes: usize,
    full: bool,
    whole: bool,
}

impl<'a> Pager<'a> {
    fn new(args: &'a FileReadArgs, size: u64) -> Self {
        Self {
            args,
            first: args.offset.unwrap_or(1),
            limit: args.limit.unwrap_or(LINES_DEFAULT),
            size,
            seen: 0,
            marked: None,
            decoder: None,
            judge: Judge::default(),
            replaced: false,
            line: Vec::new(),
            cut: 0,
            in_line: false,
            lines: 0,
            kept: Vec::new(),
            kept_bytes: 0,
            full: false,
            whole: true,
        }
    }

    /// Takes the next piece; the first one must hold at least [`START_BYTES`] or the whole text.
    /// Returns `false` when no more is needed.
    fn feed(&mut self, piece: &[u8]) -> Result<bool, ToolError> {
        let mut text = piece;
        if self.seen == 0 {
            if let Some(kind) = binary(piece.get(..START_BYTES).unwrap_or(piece)) {
                let path = &self.args.path;
                let size = self.size;
                return Err(ToolError::failed(format!(
                    "{path:?} is a binary file ({kind}, {size} bytes); it cannot be read as text"
                )));
            }
            self.marked = Encoding::marked(piece);
            self.decoder = self.marked.and_then(Encoding::decoder);
            text = piece
                .get(self.marked.map_or(0, |encoding| encoding.mark().len())..)
                .unwrap_or_default();
        }
        self.seen += piece.len() as u64;
        self.take(text, false);
        self.whole = !(self.full && self.seen >= COUNTED_BYTES_MAX);
        Ok(self.whole)
    }

    fn take(&mut self, bytes: &[u8], is_last: bool) {
        let Some(mut decoder) = self.decoder.take() else {
            return self.split(bytes);
        };
        let mut rest = bytes;
        loop {
            let mut text = String::with_capacity(CHUNK_BYTES);
            let (result, read, replaced) = decoder.decode_to_string(rest, &mut text, is_last);
            self.replaced |= replaced;
            self.split(text.as_bytes());
            rest = rest.get(read..).unwrap_or_default();
            if result == CoderResult::InputEmpty {
                break;
            }
        }
        self.decoder = Some(decoder);
    }

    fn split(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let end = memchr::memchr(b'\n', rest);
            let (part, after) = rest.split_at(end.unwrap_or(rest.len()));
            let room = LINE_BYTES_MAX
                .saturating_sub(self.line.len())
                .min(part.len());
            self.line
                .extend_from_slice(part.get(..room).unwrap_or_default());
            self.cut += (part.len() - room) as u64;
            self.in_line = true;
            if end.is_some() {
                if self.cut == 0 && self.line.last() == Some(&b'\r') {
                    self.line.pop();
                }
                self.end_line();
            }
            rest = after.get(1..).unwrap_or_default();
        }
    }

    fn end_line(&mut self) {
        self.lines += 1;
        self.in_line = false;
        self.judge.see(&self.line, self.cut > 0);
        self.full |= self.lines >= self.first && self.lines - self.first >= self.limit;
        if self.full || self.lines < self.first {
            self.line.clear();
            self.cut = 0;
            return;
        }
        let kept = Kept {
            bytes: std::mem::take(&mut self.line),
            cut: std::mem::take(&mut self.cut),
        };
        let bytes = row_bytes(self.lines, &kept.shown(Encoding::Utf8));
        if self.kept_bytes + bytes + ACCOUNT_BYTES > OBSERVATION_BYTES_MAX {
            self.full = true;
            return;
        }
        self.kept_bytes += bytes;
        self.kept.push(kept);
    }

    fn finish(mut self) -> Result<String, ToolError> {
        if self.whole {
            self.take(&[], true);
            if self.in_line {
                self.end_line();
            }
        }
        let path = &self.args.path;
        let first = self.first;
        if self.lines == 0 {
            return Ok(format!("[{path:?} is empty]"));
        }
        if self.lines < first {
            return Err(ToolError::invalid(format!(
                "offset {first} is after the end: {path:?} has {} lines",
                self.lines
            )));
        }
        let (encoding, stray) = self.marked.map_or_else(
            || self.judge.verdict(),
            |marked| (marked, self.judge.verdict().1),
        );
        let mut out = String::with_capacity(self.kept_bytes + ACCOUNT_BYTES);
        let mut last = first - 1;
        for kept in &self.kept {
            let shown = kept.shown(if self.decoder.is_some() {
                Encoding::Utf8
            } else {
                encoding
            });
            if out.len() + row_bytes(last + 1, &shown) + ACCOUNT_BYTES > OBSERVATION_BYTES_MAX {
                break;
            }
            last += 1;
            out.push_str(&format!("{last}\t{shown}\n"));
        }
        if let Some(note) = encoding.note() {
            out.push_str(note);
            out.push('\n');
        }
        if self.replaced || stray {
            let name = if encoding.unit() == 2 {
                "UTF-16"
            } else {
                "UTF-8"
            };
            out.push_str(&format!("[invalid {name} was replaced by U+FFFD]\n"));
        }
        if first > 1 || last < self.lines {
            let (least, bytes) = if self.whole {
                ("", self.seen)
            } else {
                ("at least ", self.seen.max(self.size))
            };
            out.push_str(&format!(
                "[lines {first}-{last} of {least}{}; {bytes} bytes",
                self.lines
            ));
            if last < self.lines {
                out.push_str(&format!("; continue with offset {}", last + 1));
            }
            out.push_str("]\n");
        }
        Ok(out)
    }
}

/// Bytes of a line in the answer: its number, a tab, its text and a line end.
fn row_bytes(number: u64, shown: &str) -> usize {
    number.checked_ilog10().unwrap_or(0) as usize + 1 + shown.len() + 2
}

#[cfg(test)]
mod tests {
    use std::{ops::Range, time::Duration};

    use bytes::Bytes;
    use callboard_actors::{
        ids::{ConversationId, Scope, TenantId},
        ports::{ArtifactMeta, ArtifactStore, BoxFuture, Cleaned, ToolOutput},
        time::Timestamp,
    };

    use super::*;
    use crate::tools::fixture::{Fixture, context};

    /// A store with one artifact of the conversation `c`, read in ranges.
    struct OneArtifact(Bytes);

    impl OneArtifact {
        fn new(text: String) -> Self {
            Self(text.into())
        }

        fn id(&self) -> ArtifactId {
            ArtifactId::from_content(&self.0)
        }

        fn of(&self, owner: &Scope, id: ArtifactId) -> Result<&Bytes, ArtifactError> {
            let known = owner.conversation.as_str() == "c" && id == self.id();
            if known {
                Ok(&self.0)
            } else {
                Err(ArtifactError::NotFound(id))
            }
        }
    }

    impl ArtifactStore for OneArtifact {
        fn store(
            &self,
            _: Scope,
            _: String,
            _: Bytes,
        ) -> BoxFuture<'_, Result<ArtifactId, ArtifactError>> {
            Box::pin(async { Err(ArtifactError::Unavailable("read only".to_owned())) })
        }

        fn retrieve(
            &self,
            _: Scope,
            id: ArtifactId,
        ) -> BoxFuture<'_, Result<Bytes, ArtifactError>> {
            panic!("{id} is read in ranges, never as a whole")
        }

        fn read_range(
            &self,
            owner: Scope,
            id: ArtifactId,
            range: Range<u64>,
        ) -> BoxFuture<'_, Result<Bytes, ArtifactError>> {
            Box::pin(async move {
                let bytes = self.of(&owner, id)?;
                let at = |end: u64| (end as usize).min(bytes.len());
                Ok(bytes.slice(at(range.start)..at(range.end)))
            })
        }

        fn meta(
            &self,
            owner: Scope,
            id: ArtifactId,
        ) -> BoxFuture<'_, Result<ArtifactMeta, ArtifactError>> {
            Box::pin(async move {
                let size_bytes = self.of(&owner, id.clone())?.len() as u64;
                let tool_call_id = String::new();
                let conversation_id = owner.conversation;
                Ok(ArtifactMeta {
                    id,
                    size_bytes,
                    tool_call_id,
                    conversation_id,
                    created_at: Timestamp(0),
                    accessed_at: Timestamp(0),
                })
            })
        }

        fn touch(&self, owner: Scope, id: ArtifactId) -> BoxFuture<'_, Result<(), ArtifactError>> {
            Box::pin(async move { self.of(&owner, id).map(drop) })
        }

        fn release(
            &self,
            _: TenantId,
            _: Option<ConversationId>,
        ) -> BoxFuture<'_, Result<(), ArtifactError>> {
            Box::pin(async { Ok(()) })
        }

        fn cleanup(&self, _: Duration) -> BoxFuture<'_, Result<Cleaned, ArtifactError>> {
            Box::pin(async { Ok(Cleaned::default()) })
        }
    }

    #[tokio::test]
    async fn lines_are_numbered_and_an_offset_continues() {
        let fixture = Fixture::new();
        fixture.write("a.txt", "one\ntwo\r\nthree");
        let tool = fixture.tool("file_read");

        assert_eq!(
            fixture.call(&tool, r#"{"path":"a.txt"}"#).await,
            Ok("1\tone\n2\ttwo\n3\tthree\n".to_owned())
        );
        assert_eq!(
            fixture
                .call(&tool, r#"{"path":"a.txt","offset":2,"limit":1}"#)
                .await,
            Ok("2\ttwo\n[lines 2-2 of 3; 14 bytes; continue with offset 3]\n".to_owned())
        );
        let past = fixture
            .call(&tool, r#"{"path":"a.txt","offset":9}"#)
            .await
            .unwrap_err();
        assert_eq!(
            (past.kind, past.message.as_str()),
            (
                ToolErrorType::InvalidParameters,
                "offset 9 is after the end: \"a.txt\" has 3 lines"
            )
        );
    }

    #[tokio::test]
    async fn what_does_not_fit_is_accounted_for_and_every_line_can_be_reached() {
        let fixture = Fixture::new();
        let body: String = (1..=5000).map(|n| format!("line number {n}\n")).collect();
        fixture.write("long.txt", &body);
        let tool = fixture.tool("file_read");

        let mut offset = 1;
        let mut seen = String::new();
        loop {
            let part = fixture
                .call(
                    &tool,
                    &format!(r#"{{"path":"long.txt","offset":{offset}}}"#),
                )
                .await
                .unwrap();
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
    async fn odd_files_are_distinguished() {
        let fixture = Fixture::new();
        fixture.write("empty", "");
        fixture.write_bytes("image", b"\x89PNG\0\0");
        fixture.write_bytes("latin", b"caf\xe9\n");
        fixture.write("wide", &"x".repeat(100_000));
        let tool = fixture.tool("file_read");

        assert_eq!(
            fixture.call(&tool, r#"{"path":"empty"}"#).await,
            Ok("[\"empty\" is empty]".to_owned())
        );
        assert_eq!(
            fixture.call(&tool, r#"{"path":"latin"}"#).await,
            Ok(
                "1\tcaf\u{e9}\n[not UTF-8: read as Windows-1252 (Latin-1), which is a guess]\n"
                    .to_owned()
            )
        );
        assert_eq!(
            fixture.call(&tool, r#"{"path":"wide"}"#).await,
            Ok(format!("1\t{} [… 98000 more bytes]\n", "x".repeat(2000)))
        );
        let image = fixture
            .call(&tool, r#"{"path":"image"}"#)
            .await
            .unwrap_err();
        assert_eq!(
            image.message,
            "\"image\" is a binary file (a PNG image, 6 bytes); it cannot be read as text"
        );
        let folder = fixture.call(&tool, r#"{"path":"."}"#).await.unwrap_err();
        assert_eq!(folder.message, "\".\" is a folder, not a regular file");
        let missing = fixture
            .call(&tool, r#"{"path":"nowhere"}"#)
            .await
            .unwrap_err();
        assert_eq!(
            (missing.kind, missing.message.as_str()),
            (ToolErrorType::NotFound, "\"nowhere\" does not exist")
        );
    }

    #[tokio::test]
    async fn encodings_are_read_and_named() {
        let fixture = Fixture::new();
        let wide = |text: &str, bytes: fn(u16) -> [u8; 2]| {
            text.encode_utf16().flat_map(bytes).collect::<Vec<u8>>()
        };
        fixture.write_bytes("marked", b"\xef\xbb\xbfone\r\n");
        fixture.write_bytes(
            "le",
            &[
                &b"\xff\xfe"[..],
                &wide("one\r\n\u{4e16}\n\u{1f600}", u16::to_le_bytes),
            ]
            .concat(),
        );
        fixture.write_bytes(
            "be",
            &[&b"\xfe\xff"[..], &wide("one", u16::to_be_bytes), b"\0"].concat(),
        );
        fixture.write_bytes(
            "mostly",
            "caf\u{e9} \u{4e16}"
                .bytes()
                .chain([0xff, b'\n'])
                .collect::<Vec<u8>>()
                .as_slice(),
        );
        let tool = fixture.tool("file_read");

        for (path, text) in [
            ("marked", "1\tone\n[UTF-8 with a byte order mark]\n"),
            (
                "le",
                "1\tone\n2\t\u{4e16}\n3\t\u{1f600}\n[UTF-16, little-endian]\n",
            ),
            (
                "be",
                "1\tone\u{fffd}\n[UTF-16, big-endian]\n[invalid UTF-16 was replaced by U+FFFD]\n",
            ),
            (
                "mostly",
                "1\tcaf\u{e9} \u{4e16}\u{fffd}\n[invalid UTF-8 was replaced by U+FFFD]\n",
            ),
        ] {
            assert_eq!(
                fixture
                    .call(&tool, &format!(r#"{{"path":"{path}"}}"#))
                    .await,
                Ok(text.to_owned()),
                "{path}"
            );
        }
    }

    #[test]
    fn a_text_is_the_same_however_it_is_cut() {
        let text: Vec<u8> = (0..300)
            .flat_map(|n| format!("line {n} caf\u{e9}\r\n\n").into_bytes())
            .collect();
        let utf16: Vec<u8> = [0xff, 0xfe]
            .into_iter()
            .chain(
                String::from_utf8(text.clone())
                    .unwrap()
                    .encode_utf16()
                    .flat_map(u16::to_le_bytes),
            )
            .collect();
        let args = FileReadArgs {
            path: "f".to_owned(),
            offset: Some(7),
            limit: Some(500),
        };
        for bytes in [text, utf16] {
            let paged = |size: usize| {
                let mut pager = Pager::new(&args, bytes.len() as u64);
                for piece in bytes.chunks(size) {
                    assert!(pager.feed(piece).unwrap());
                }
                pager.finish().unwrap()
            };

            let whole = paged(bytes.len());
            assert!(whole.contains("7\tline 3 caf\u{e9}\n8\t\n"), "{whole}");
            for size in [3, 5, 64, 1000] {
                assert_eq!(paged(size), whole, "{size}");
            }
        }
    }

    #[tokio::test]
    async fn an_artifact_is_read_by_its_id_and_an_unknown_one_is_not_found() {
        let store = Arc::new(OneArtifact::new("first\nsecond\n".repeat(20_000)));
        let owner = Scope::new("t".try_into().unwrap(), "c".try_into().unwrap());
        let tool = Fixture::new().tool("file_read");
        let read = async |arguments: String, owner: &Scope| {
            let artifacts = Some(Artifacts {
                store: store.clone(),
                owner: owner.clone(),
            });
            match tool
                .call(
                    RawJson::from_text(arguments).unwrap(),
                    ToolContext {
                        artifacts,
                        ..context()
                    },
                )
                .await?
            {
                ToolOutput::Text(text) => Ok::<_, ToolError>(text),
                other => panic!("{other:?}"),
            }
        };
        let id = store.id();

        let page = read(format!(r#"{{"path":"{id}","offset":39999}}"#), &owner).await;
        let other = Scope::new("t".try_into().unwrap(), "other".try_into().unwrap());
        let foreign = read(format!(r#"{{"path":"{id}"}}"#), &other)
            .await
            .unwrap_err();
        let unknown = read(r#"{"path":"artifact_0123456789abcdef"}"#.to_owned(), &owner)
            .await
            .unwrap_err();
        let nowhere = tool
            .call(
                RawJson::from_text(format!(r#"{{"path":"{id}"}}"#)).unwrap(),
                context(),
            )
            .await
            .unwrap_err();

        assert_eq!(
            page,
            Ok(
                "39999\tfirst\n40000\tsecond\n[lines 39999-40000 of 40000; 260000 bytes]\n"
                    .to_owned()
            )
        );
        assert_eq!(
            [foreign.kind, unknown.kind, nowhere.kind],
            [ToolErrorType::NotFound; 3]
        );
        assert_eq!(
            foreign.message,
            format!("there is no artifact {id}: it never was, or it expired")
        );
    }

    #[tokio::test]
    async fn a_file_called_like_an_artifact_stays_a_file() {
        let fixture = Fixture::new();
        fixture.write("artifact_0123456789abcdef", "a file\n");
        let tool = fixture.tool("file_read");
        let resolved = |path: &str| {
            tool.resolve(&RawJson::from_text(format!(r#"{{"path":"{path}"}}"#)).unwrap())
        };

        assert_eq!(
            fixture
                .call(&tool, r#"{"path":"./artifact_0123456789abcdef"}"#)
                .await,
            Ok("1\ta file\n".to_owned())
        );
        assert_eq!(resolved("./artifact_0123456789abcdef"), None);
        assert_eq!(
            resolved("/workspace/artifact_0123456789abcdef")
                .unwrap()
                .as_str(),
            r#"{"path":"./artifact_0123456789abcdef"}"#
        );
        assert_eq!(resolved("artifact_0123456789abcdef"), None);
        assert_eq!(resolved("./a//b").unwrap().as_str(), r#"{"path":"a/b"}"#);
    }

    #[tokio::test]
    async fn configured_keys_are_shown_as_marks() {
        let fixture = Fixture::with_secrets(["not-a-real-key-1234"]);
        fixture.write("notes", "key not-a-real-key-1234 end");
        let tool = fixture.tool("file_read");

        assert_eq!(
            fixture.call(&tool, r#"{"path":"notes"}"#).await,
            Ok("1\tkey [masked:1] end\n".to_owned())
        );
    }
}
