//! The `read_more` tool: reads the rest of a result that was too large to show, by page, by lines
//! or by bytes.
//!
//! An answer fits one observation and is never paged again. Only artifacts of the calling
//! conversation can be read.

use std::{fmt::Write as _, ops::Range};

use bytes::Bytes;
use callboard_actors::{
    ids::ArtifactId,
    ports::{ArtifactError, Artifacts, Reach, ToolContext, ToolSource, ToolSpec, TypedTool},
    tool::{ToolError, ToolErrorType},
    tool_executor::paging::{self, PAGE_BYTES},
};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

/// Bytes that are fetched at once while lines are counted.
const CHUNK_BYTES: u64 = 1024 * 1024;

/// Arguments of `read_more`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadMoreArgs {
    /// Id of the stored result, as given in its footer: artifact_ and 16 hex digits.
    pub result_id: String,
    /// Page to read, counted from 1; 1 if absent.
    #[schemars(range(min = 1))]
    pub page: Option<u64>,
    /// Instead of a page: lines to read, first and last, counted from 1, for example "10-20"; "10-" reads on from line 10.
    pub lines: Option<String>,
    /// Instead of a page: bytes to read, first and last, counted from 0, for example "0-1023"; "1024-" reads on from there.
    pub bytes: Option<String>,
}

/// The `read_more` tool.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReadMore;

/// The requested part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Page(u64),
    /// First and last line, counted from 1.
    Lines(u64, u64),
    /// First and last byte, counted from 0.
    Bytes(u64, u64),
}

impl ReadMoreArgs {
    fn id(&self) -> Result<ArtifactId, ToolError> {
        ArtifactId::parse(&self.result_id)
            .map_err(|error| ToolError::invalid(format!("result_id: {error}")))
    }

    fn part(&self) -> Result<Part, ToolError> {
        match (self.page, &self.lines, &self.bytes) {
            (Some(0), None, None) => Err(ToolError::invalid("page: pages count from 1")),
            (page, None, None) => Ok(Part::Page(page.unwrap_or(1))),
            (None, Some(lines), None) => match range(lines) {
                Some((first, last)) if first > 0 => Ok(Part::Lines(first, last)),
                _ => Err(ToolError::invalid(
                    "lines: two numbers from 1 with a hyphen between, such as \"10-20\" or \"10-\"",
                )),
            },
            (None, None, Some(bytes)) => match range(bytes) {
                Some((first, last)) => Ok(Part::Bytes(first, last)),
                None => Err(ToolError::invalid(
                    "bytes: two numbers from 0 with a hyphen between, such as \"0-1023\" or \"1024-\"",
                )),
            },
            _ => Err(ToolError::invalid("give one of page, lines and bytes")),
        }
    }
}

/// Parses `"10-20"`, or `"10-"` for everything from 10 on.
fn range(text: &str) -> Option<(u64, u64)> {
    let number = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_digit())
            .then(|| text.parse().ok())
            .flatten()
    };
    let (first, last) = text.trim().split_once('-')?;
    let first = first.trim();
    let last = last.trim();
    let first = number(first)?;
    let last = if last.is_empty() {
        u64::MAX
    } else {
        number(last)?
    };
    (first <= last).then_some((first, last))
}

impl TypedTool for ReadMore {
    type Args = ReadMoreArgs;
    type Output = String;
    const NAME: &'static str = "read_more";
    const DESCRIPTION: &'static str = "Reads more of a result that was too large to show at once. A shortened result ends with its result_id and \
the next page. Give the result_id and a page; or lines such as \"10-20\", or bytes such as \"0-1023\", to read just that part. Results are kept \
for a limited time.";

    fn declare(&self, spec: ToolSpec) -> ToolSpec {
        spec.read_only()
            .not_shared()
            .reach(Reach::Store)
            .source(ToolSource::BuiltIn)
    }

    fn check(&self, args: &ReadMoreArgs) -> Result<(), ToolError> {
        args.id()?;
        args.part().map(drop)
    }

    async fn call(&self, args: ReadMoreArgs, context: ToolContext) -> Result<String, ToolError> {
        let id = args.id()?;
        let part = args.part()?;
        let Some(artifacts) = context.artifacts else {
            return Err(ToolError::not_found(format!(
                "there is no artifact {id}: this host stores no artifacts"
            )));
        };
        let meta = artifacts
            .store
            .meta(artifacts.owner.clone(), id.clone())
            .await
            .map_err(error)?;
        let stored = Stored {
            artifacts,
            id,
            len: meta.size_bytes,
        };
        match part {
            Part::Page(page) => stored.page(page).await,
            Part::Lines(first, last) => stored.lines(first, last, &context.cancel).await,
            Part::Bytes(first, last) => stored.bytes(first, last).await,
        }
    }
}

fn error(error: ArtifactError) -> ToolError {
    match error {
        ArtifactError::NotFound(_) => ToolError::not_found(error.to_string()),
        ref other if other.is_retryable() => {
            ToolError::new(ToolErrorType::ResourceError, error.to_string())
        }
        _ => ToolError::failed(error.to_string()),
    }
}

/// An existing artifact.
struct Stored {
    artifacts: Artifacts,
    id: ArtifactId,
    len: u64,
}

impl Stored {
    async fn fetch(&self, range: Range<u64>) -> Result<Bytes, ToolError> {
        self.artifacts
            .store
            .read_range(self.artifacts.owner.clone(), self.id.clone(), range)
            .await
            .map_err(error)
    }

    /// Returns the text of a range and its actual range: borders move back to the start of a
    /// character.
    async fn text(&self, range: &Range<u64>) -> Result<(String, Range<u64>), ToolError> {
        let fetched = self.fetch(paging::around(self.len, range)).await?;
        let (text, place) = paging::cut(self.len, range, &fetched);
        Ok((printable(text), place))
    }

    async fn page(&self, page: u64) -> Result<String, ToolError> {
        let range = paging::nominal(self.len, page)
            .map_err(|error| ToolError::invalid(format!("page: {error}")))?;
        let (text, place) = self.text(&range).await?;
        Ok(format!(
            "{text}\n\n{}",
            paging::footer(&self.id, page, place.end - place.start, self.len)
        ))
    }

    async fn bytes(&self, first: u64, last: u64) -> Result<String, ToolError> {
        if first >= self.len {
            return Err(ToolError::invalid(format!(
                "bytes: there are {} bytes, from 0 on",
                self.len
            )));
        }
        let end = last.saturating_add(1).min(self.len);
        let range = first..end.min(first.saturating_add(PAGE_BYTES));
        let (text, place) = self.text(&range).await?;
        if place.is_empty() {
            return Ok(format!(
                "\n\n[bytes {first}-{} of {} are within one character: ask for more of them]",
                end - 1,
                self.len
            ));
        }
        let more = if range.end < end {
            self.hint("bytes", place.end, last)
        } else {
            String::new()
        };
        Ok(format!(
            "{text}\n\n[bytes {}-{} of {}{more}]",
            place.start,
            place.end - 1,
            self.len
        ))
    }

    async fn lines(
        &self,
        first: u64,
        last: u64,
        cancel: &CancellationToken,
    ) -> Result<String, ToolError> {
        let mut found = Lines::new(first, last);
        let mut at = 0;
        while at < self.len && !found.is_done() {
            if cancel.is_cancelled() {
                return Err(super::cancelled());
            }
            let chunk = self
                .fetch(at..at.saturating_add(CHUNK_BYTES).min(self.len))
                .await?;
            if chunk.is_empty() {
                break; // the artifact is shorter than it reported
            }
            found.take(&chunk);
            at += chunk.len() as u64;
        }
        let Some(start) = found.start.filter(|start| *start < self.len) else {
            return Err(ToolError::invalid(format!(
                "lines: there are {} lines, from 1 on",
                found.lines_until(at)
            )));
        };
        let end = found.end.unwrap_or(at);
        let (text, place) = self.text(&(start..end)).await?;
        let mut footer = format!(
            "[lines {first}-{}, bytes {}-{} of {}",
            found.shown_last(),
            place.start,
            place.end.max(1) - 1,
            self.len
        );
        match found.over {
            // A line that continues can only be addressed by bytes.
            Over::InLine => footer.push_str(&self.hint("bytes", place.end, u64::MAX)),
            Over::AfterLine if found.shown_last() < last && end < self.len => {
                footer.push_str(&self.hint("lines", found.shown_last() + 1, last))
            }
            Over::AfterLine | Over::No => {}
        }
        footer.push(']');
        Ok(format!(
            "{}\n\n{footer}",
            text.strip_suffix('\n').unwrap_or(&text)
        ))
    }

    fn hint(&self, what: &str, from: u64, to: u64) -> String {
        let mut hint = format!("; read_more(result_id=\"{}\", {what}=\"{from}-", self.id);
        if to != u64::MAX {
            let _ = write!(hint, "{to}");
        }
        hint.push_str("\") shows the next");
        hint
    }
}

/// Decodes bytes. Invalid UTF-8 is replaced, at the same places for every reader.
fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    // A replacement character has three bytes for one, so of binary data less is shown.
    let room = usize::try_from(PAGE_BYTES).unwrap_or_default() + 8;
    text.get(..text.floor_char_boundary(room))
        .unwrap_or_default()
        .to_owned()
}

/// Why the requested lines were not all shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Over {
    No,
    AfterLine,
    InLine,
}

/// Finds the bytes of a range of lines, chunk by chunk.
#[derive(Debug)]
struct Lines {
    first: u64,
    last: u64,
    /// Line of the next byte, counted from 1.
    line: u64,
    /// Offset of the next byte.
    at: u64,
    /// Whether the next byte begins a line.
    begins: bool,
    /// Offset where the first requested line begins.
    start: Option<u64>,
    /// Offset where the last line that fits ends.
    end: Option<u64>,
    /// Number of that line.
    end_line: u64,
    /// The last whole line that fits so far: its end offset and number.
    whole: Option<(u64, u64)>,
    over: Over,
}

impl Lines {
    fn new(first: u64, last: u64) -> Self {
        let start = (first == 1).then_some(0);
        Self {
            first,
            last,
            line: 1,
            at: 0,
            begins: true,
            start,
            end: None,
            end_line: 0,
            whole: None,
            over: Over::No,
        }
    }

    fn is_done(&self) -> bool {
        self.end.is_some()
    }

    fn take(&mut self, chunk: &[u8]) {
        for byte in chunk {
            if self.is_done() {
                return;
            }
            self.at += 1;
            self.begins = *byte == b'\n';
            if self.start.is_some_and(|start| self.at - start > PAGE_BYTES) {
                match self.whole {
                    Some((end, line)) => self.finish(end, line, Over::AfterLine),
                    None => self.finish(self.at - 1, self.line, Over::InLine),
                }
            } else if *byte == b'\n' {
                self.line_ended();
            }
        }
    }

    fn line_ended(&mut self) {
        if self.start.is_some() {
            self.whole = Some((self.at, self.line));
            if self.line == self.last {
                return self.finish(self.at, self.line, Over::No);
            }
        }
        self.line += 1;
        if self.line == self.first {
            self.start = Some(self.at);
        }
    }

    fn finish(&mut self, end: u64, line: u64, over: Over) {
        (self.end, self.end_line, self.over) = (Some(end), line, over);
    }

    /// Number of lines in the artifact, once its end is reached.
    fn lines_until(&self, len: u64) -> u64 {
        if len == 0 || self.begins {
            self.line - 1
        } else {
            self.line
        }
    }

    /// The last line that is shown, at least in part.
    fn shown_last(&self) -> u64 {
        if self.end.is_some() {
            self.end_line
        } else {
            self.lines_until(self.at)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use callboard_actors::{
        chat::RawJson,
        ids::Scope,
        limits::OBSERVATION_BYTES_MAX,
        memory::MemoryArtifacts,
        ports::{Approval, CachePolicy, Tool, ToolOutput, erased},
        testing::ManualClock,
        time::Timestamp,
        tool::{EffectClass, OutputLevel},
        tool_executor::observe,
    };
    use serde_json::{Value, json};

    use super::*;
    use crate::tools::fixture;

    struct StoredResults {
        artifacts: Artifacts,
        clock: Arc<ManualClock>,
        tool: Arc<dyn Tool>,
    }

    impl StoredResults {
        fn new() -> Self {
            let clock = Arc::new(ManualClock::at(Timestamp(1)));
            let store = Arc::new(MemoryArtifacts::new(clock.clone()));
            let owner = Scope::new("t".try_into().unwrap(), "c".try_into().unwrap());
            Self {
                artifacts: Artifacts { store, owner },
                clock,
                tool: erased(ReadMore),
            }
        }

        async fn put(&self, content: impl Into<Bytes>) -> ArtifactId {
            self.artifacts
                .store
                .store(self.artifacts.owner.clone(), "t".into(), content.into())
                .await
                .unwrap()
        }

        async fn read(&self, arguments: Value) -> Result<String, ToolError> {
            let arguments = RawJson::of(&arguments).unwrap();
            self.tool.check(&arguments)?;
            let context = ToolContext {
                artifacts: Some(self.artifacts.clone()),
                ..fixture::context()
            };
            match self.tool.call(arguments, context).await? {
                ToolOutput::Text(text) => Ok(text),
                other => panic!("{other:?}"),
            }
        }

        async fn text(&self, arguments: Value) -> (String, String) {
            let text = self.read(arguments).await.unwrap();
            assert!(
                text.len() <= OBSERVATION_BYTES_MAX,
                "it would be paged again"
            );
            let (body, footer) = text.rsplit_once("\n\n").unwrap();
            (body.to_owned(), footer.to_owned())
        }

        async fn refused(&self, arguments: Value) -> (ToolErrorType, String) {
            let error = self.read(arguments).await.unwrap_err();
            (error.kind, error.message)
        }
    }

    #[tokio::test]
    async fn the_pages_of_a_result_joined_are_the_result() {
        let results = StoredResults::new();
        let long: String = (0..20_000).map(|n| format!("{n}汉😀\n")).collect();
        let first = observe(
            ToolOutput::Text(long.clone()),
            OutputLevel::Standard,
            Some(&results.artifacts),
            "t",
        )
        .await;
        let id = first.artifact_id.clone().unwrap();
        let pages = paging::pages(long.len() as u64);

        let mut joined = String::new();
        for page in 1..=pages {
            let (body, footer) = results.text(json!({ "result_id": id, "page": page })).await;
            assert_eq!(
                footer,
                paging::footer(&id, page, body.len() as u64, long.len() as u64)
            );
            joined.push_str(&body);
            if page == 1 {
                assert_eq!(
                    format!("{body}\n\n{footer}"),
                    first.text,
                    "the first page is the one that was shown"
                );
            }
        }

        assert_eq!(joined, long);
        assert_eq!(
            results.read(json!({ "result_id": id })).await.unwrap(),
            first.text,
            "without a page the first"
        );
    }

    #[tokio::test]
    async fn lines_and_bytes_are_read_as_requested_with_a_footer_on_how_to_continue() {
        let results = StoredResults::new();
        let text: String = (1..=30).map(|n| format!("line {n}\n")).collect();
        let id = results.put(text.clone()).await;
        let read = async |part: Value| {
            let mut arguments = json!({ "result_id": id });
            arguments
                .as_object_mut()
                .unwrap()
                .extend(part.as_object().unwrap().clone());
            results.text(arguments).await
        };

        let (body, footer) = read(json!({ "lines": "10-12" })).await;
        assert_eq!(
            (body.as_str(), footer.as_str()),
            (
                "line 10\nline 11\nline 12",
                "[lines 10-12, bytes 63-86 of 231]"
            )
        );
        assert_eq!(read(json!({ "lines": "30-" })).await.0, "line 30");
        assert_eq!(
            read(json!({ "lines": "29-99" })).await.1,
            "[lines 29-30, bytes 215-230 of 231]"
        );
        assert_eq!(read(json!({ "lines": "1-1" })).await.0, "line 1");
        assert_eq!(
            read(json!({ "bytes": "0-5" })).await,
            ("line 1".into(), "[bytes 0-5 of 231]".into())
        );
        assert_eq!(
            read(json!({ "bytes": "224-" })).await,
            ("ine 30\n".into(), "[bytes 224-230 of 231]".into())
        );

        let invalid = |text: &str| (ToolErrorType::InvalidParameters, text.to_owned());
        assert_eq!(
            results
                .refused(json!({ "result_id": id, "lines": "31-40" }))
                .await,
            invalid("lines: there are 30 lines, from 1 on")
        );
        assert_eq!(
            results
                .refused(json!({ "result_id": id, "bytes": "231-" }))
                .await,
            invalid("bytes: there are 231 bytes, from 0 on")
        );
        let page = results.refused(json!({ "result_id": id, "page": 2 })).await;
        assert_eq!(
            page,
            invalid("page: there is no page 2: the pages are 1 to 1")
        );
    }

    #[tokio::test]
    async fn what_is_more_than_an_answer_holds_is_read_on_by_the_hint() {
        let results = StoredResults::new();
        let lines: String = (0..5000).map(|n| format!("{n} 汉汉汉\n")).collect();
        let one_line = "😀".repeat(30_000);
        for (content, what) in [
            (lines.clone(), "lines"),
            (lines, "bytes"),
            (one_line.clone(), "lines"),
            (one_line, "bytes"),
        ] {
            let id = results.put(content.clone()).await;
            let mut arguments =
                json!({ "result_id": id, what: if what == "lines" { "1-" } else { "0-" } });
            let mut joined = String::new();
            for _ in 0..20 {
                let (body, footer) = results.text(arguments.clone()).await;
                joined.push_str(&body);
                let Some((_, hint)) = footer.split_once("; read_more(") else {
                    break;
                };
                let (next, range) = if hint.contains("lines=") {
                    ("lines", hint.split('"').nth(3))
                } else {
                    ("bytes", hint.split('"').nth(3))
                };
                if next == "lines" {
                    joined.push('\n'); // lines are shown without their last line end
                }
                arguments = json!({ "result_id": id, next: range.unwrap() });
            }
            assert!(
                joined.trim_end_matches('\n') == content.trim_end_matches('\n'),
                "{what}"
            );
        }
    }

    #[tokio::test]
    async fn a_character_that_a_byte_range_cuts_is_left_whole() {
        let results = StoredResults::new();
        let id = results.put("a汉b").await;

        assert_eq!(
            results
                .text(json!({ "result_id": id, "bytes": "0-2" }))
                .await
                .0,
            "a"
        );
        assert_eq!(
            results
                .text(json!({ "result_id": id, "bytes": "2-4" }))
                .await
                .0,
            "汉b"
        );
        let within = results
            .text(json!({ "result_id": id, "bytes": "2-2" }))
            .await;
        assert_eq!(
            within,
            (
                String::new(),
                "[bytes 2-2 of 5 are within one character: ask for more of them]".into()
            )
        );
    }

    #[tokio::test]
    async fn bytes_that_are_no_text_still_fit() {
        let results = StoredResults::new();
        let id = results.put(vec![0x80; 100_000]).await;

        let (body, _) = results.text(json!({ "result_id": id, "page": 2 })).await;

        assert!(body.chars().all(|c| c == char::REPLACEMENT_CHARACTER));
    }

    #[tokio::test]
    async fn bad_unknown_expired_and_foreign_ids_are_distinguished_only_where_that_is_harmless() {
        let results = StoredResults::new();
        for bad in [
            "",
            "x",
            "artifact_../../../etc/pas",
            "artifact_ABCDEF0123456789",
            "artifact_0123456789abcdef/",
        ] {
            assert_eq!(
                results.refused(json!({ "result_id": bad })).await.0,
                ToolErrorType::InvalidParameters,
                "{bad}"
            );
        }
        let unknown = results
            .refused(json!({ "result_id": "artifact_0123456789abcdef" }))
            .await;
        assert_eq!(
            unknown,
            (
                ToolErrorType::NotFound,
                "there is no artifact artifact_0123456789abcdef: it never was, or it expired"
                    .into()
            )
        );

        let other = Scope::new("t".try_into().unwrap(), "d".try_into().unwrap());
        let id = results
            .artifacts
            .store
            .store(other, "t".into(), Bytes::from_static(b"secret"))
            .await
            .unwrap();
        let (kind, message) = results.refused(json!({ "result_id": id })).await;
        assert_eq!(
            (
                kind,
                message.replace(id.as_str(), "artifact_0123456789abcdef")
            ),
            unknown
        );

        let mine = results.put("mine").await;
        results.clock.advance_ms(24 * 60 * 60 * 1000 + 1);
        assert_eq!(
            results.refused(json!({ "result_id": mine })).await.0,
            ToolErrorType::NotFound
        );
        let nowhere = fixture::call(
            &results.tool,
            r#"{"result_id":"artifact_0123456789abcdef"}"#,
        )
        .await
        .unwrap_err();
        assert_eq!(nowhere.kind, ToolErrorType::NotFound);
    }

    #[tokio::test]
    async fn one_part_is_asked_for_and_in_its_form() {
        let results = StoredResults::new();
        let id = results.put("x").await;
        for bad in [
            json!({ "page": 0 }),
            json!({ "page": 1, "lines": "1-2" }),
            json!({ "lines": "1-2", "bytes": "0-1" }),
            json!({ "lines": "0-2" }),
            json!({ "lines": "3-2" }),
            json!({ "lines": "3" }),
            json!({ "lines": "-3" }),
            json!({ "bytes": "+1-2" }),
            json!({ "bytes": "1-99999999999999999999999" }),
            json!({ "page": -1 }),
        ] {
            let mut arguments = json!({ "result_id": id });
            arguments
                .as_object_mut()
                .unwrap()
                .extend(bad.as_object().unwrap().clone());
            assert_eq!(
                results.refused(arguments).await.0,
                ToolErrorType::InvalidParameters,
                "{bad}"
            );
        }
    }

    #[test]
    fn it_is_pure_never_asks_and_is_neither_shared_nor_cached() {
        let tool = erased(ReadMore);
        let spec = tool.spec();

        assert_eq!(
            (spec.effect, spec.approval, spec.reach),
            (EffectClass::Pure, Approval::Never, Reach::Store)
        );
        assert_eq!(
            (spec.shared, spec.cache, spec.returns_data),
            (false, CachePolicy::NoCache, false)
        );
    }
}
