//! The `grep_search` tool: searches the contents of the workspace's files with ripgrep's crates.
//! Every file is opened through the same path checks as in `file_read`, so a search cannot read
//! files that `file_read` refuses.

use std::{
    fmt::Write,
    io::{self, Read},
    path::Path,
    sync::Arc,
};

use callboard_actors::{
    chat::RawJson,
    limits::OBSERVATION_BYTES_MAX,
    ports::{Reach, ToolContext, ToolSource, ToolSpec, TypedTool},
    tool::ToolError,
};
use globset::GlobMatcher;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{
    BinaryDetection, MmapChoice, Searcher, SearcherBuilder, Sink, SinkContext, SinkFinish,
    SinkMatch,
};
use rustix::fs::FileType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    blocking, cancelled,
    file_list::glob,
    text::{cut_line, path_line},
};
use crate::{
    mask::Masker,
    sandbox::{Opened, PathError, Root, Walk},
};

/// Matching lines that are shown; more are counted only.
const MATCHES_MAX: u64 = 200;

/// Matching lines after which the search ends. The answer then says `at least`.
const COUNTED_MAX: u64 = 100_000;

/// Lines of context that a call may request.
const CONTEXT_MAX: u32 = 20;

/// Characters of a line that are shown.
const LINE_CHARS_MAX: usize = 400;

/// Memory for one line. A file with a longer line is skipped and counted.
const LINE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Memory for a compiled pattern: a model must not exhaust the host's memory.
const PATTERN_BYTES_MAX: usize = 10 * 1024 * 1024;

/// Bytes of a pattern, which is compiled before the call is approved.
const PATTERN_TEXT_MAX: usize = 4096;

/// Bytes reserved for the summary at the end of an answer.
const ACCOUNT_BYTES: usize = 400;

/// Arguments of `grep_search`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GrepSearchArgs {
    /// Regular expression (Rust syntax), matched within a line. All-lowercase patterns ignore case.
    pub pattern: String,
    /// File or folder to search, relative to the workspace; the whole workspace if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Only files that match, for example `*.rs` (at any depth) or `src/**/*.rs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub glob: Option<String>,
    /// Lines to show before and after each match; 0 if absent, at most 20.
    #[schemars(range(max = 20))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<u32>,
}

/// The `grep_search` tool.
#[derive(Debug, Clone)]
pub struct GrepSearch {
    root: Arc<Root>,
    masker: Arc<Masker>,
}

impl GrepSearch {
    /// Creates a tool that searches beneath `root`. Keys that `masker` knows exactly are shown as
    /// `[masked:N]`.
    pub fn new(root: Arc<Root>, masker: Arc<Masker>) -> Self {
        Self { root, masker }
    }
}

impl TypedTool for GrepSearch {
    type Args = GrepSearchArgs;
    type Output = String;
    const NAME: &'static str = "grep_search";
    const DESCRIPTION: &'static str = "Searches the contents of the workspace's files for a regular expression. Matching lines come as \
`path:line: text`, context lines as `path-line- text`, sorted by path. Leaves out binary files, files that may hold keys and what .gitignore names. \
Shows at most 200 matches and says how many were left out.";

    fn declare(&self, spec: ToolSpec) -> ToolSpec {
        spec.read_only()
            .not_shared()
            .reach(Reach::Files)
            .source(ToolSource::BuiltIn)
    }

    // An expression is compiled in `call`: that can take seconds, and a check runs on a thread that
    // serves all conversations.
    fn check(&self, args: &GrepSearchArgs) -> Result<(), ToolError> {
        match args.pattern.len() {
            ..=PATTERN_TEXT_MAX => args.glob.as_deref().map(glob).transpose().map(drop),
            bytes => Err(ToolError::invalid(format!(
                "the pattern has {bytes} bytes; at most {PATTERN_TEXT_MAX} are allowed"
            ))),
        }
    }

    fn resolve(&self, args: &GrepSearchArgs) -> Option<RawJson> {
        let path = self.root.spelled(args.path.as_deref()?);
        (Some(&path) != args.path.as_ref()).then(|| {
            RawJson::of(&GrepSearchArgs {
                path: Some(path),
                ..args.clone()
            })
            .ok()
        })?
    }

    async fn call(&self, args: GrepSearchArgs, context: ToolContext) -> Result<String, ToolError> {
        let root = self.root.clone();
        let masker = self.masker.clone();
        let deadline = context.deadline;
        blocking(context, move |cancel| {
            Ok(masker.mask_exact(&search(&root, &args, cancel, deadline)?))
        })
        .await
    }
}

fn matcher(pattern: &str) -> Result<RegexMatcher, ToolError> {
    RegexMatcherBuilder::new()
        .case_smart(true)
        .line_terminator(Some(b'\n'))
        .size_limit(PATTERN_BYTES_MAX)
        .dfa_size_limit(PATTERN_BYTES_MAX)
        .build(pattern)
        .map_err(|error| {
            ToolError::invalid(format!(
                "pattern {pattern:?} is not a valid regular expression: {error}"
            ))
        })
}

/// Matches collected over all files.
struct Found<'a> {
    out: String,
    shown: u64,
    matches: u64,
    files: u64,
    withheld: u64,
    unreadable: u64,
    cancel: &'a CancellationToken,
    context: bool,
}

impl Found<'_> {
    fn is_full(&self) -> bool {
        self.shown >= MATCHES_MAX || self.out.len() + ACCOUNT_BYTES >= OBSERVATION_BYTES_MAX
    }

    fn push(&mut self, path: &str, line: Option<u64>, bytes: &[u8], is_match: bool) -> bool {
        let text = String::from_utf8_lossy(bytes);
        let text = cut_line(text.trim_end_matches(['\n', '\r']), LINE_CHARS_MAX);
        let number = line.unwrap_or(0);
        let mark = if is_match { ':' } else { '-' };
        let row = format!("{path}{mark}{number}{mark} {text}\n");
        if self.out.len() + row.len() + ACCOUNT_BYTES > OBSERVATION_BYTES_MAX {
            return false;
        }
        self.out.push_str(&row);
        true
    }
}

/// Searches until the end or until `cancel`. What was found is a partial result if the reason is the
/// time limit.
fn search(
    root: &Root,
    args: &GrepSearchArgs,
    cancel: &CancellationToken,
    deadline: Instant,
) -> Result<String, ToolError> {
    let matcher = matcher(&args.pattern)?;
    let glob = args.glob.as_deref().map(glob).transpose()?;
    let context = args.context.unwrap_or(0).min(CONTEXT_MAX) as usize;
    let mut searcher = SearcherBuilder::new()
        .line_number(true)
        .before_context(context)
        .after_context(context)
        .binary_detection(BinaryDetection::quit(0))
        .memory_map(MmapChoice::never())
        .heap_limit(Some(LINE_BYTES_MAX))
        .build();
    let mut found = Found {
        out: String::new(),
        shown: 0,
        matches: 0,
        files: 0,
        withheld: 0,
        unreadable: 0,
        cancel,
        context: context > 0,
    };

    let path = args.path.as_deref().unwrap_or(".");
    let skipped = match root.open_folder(path) {
        Ok((dir, base)) => {
            let mut walk = Walk::new(root, dir, base.clone(), usize::MAX);
            search_tree(
                &mut walk,
                &base,
                glob.as_ref(),
                &matcher,
                &mut searcher,
                &mut found,
            );
            walk.skipped
        }
        Err(PathError::NotAFolder(_)) => {
            let opened = root.open_file(path)?;
            let relative = opened.relative.clone();
            search_file(opened, &relative, &matcher, &mut searcher, &mut found);
            0
        }
        Err(error) => return Err(error.into()),
    };
    let is_cut = cancel.is_cancelled();
    if is_cut && Instant::now() < deadline {
        return Err(cancelled());
    }
    let mut text = account(found, skipped);
    if is_cut {
        text.push_str(
            "[the time was over before every file was searched: narrow it by path or glob]\n",
        );
    }
    Ok(text)
}

fn search_tree(
    walk: &mut Walk<'_>,
    base: &Path,
    glob: Option<&GlobMatcher>,
    matcher: &RegexMatcher,
    searcher: &mut Searcher,
    found: &mut Found<'_>,
) {
    while let Some(entry) = walk.advance() {
        if found.cancel.is_cancelled() {
            break;
        }
        if entry.kind != FileType::RegularFile {
            continue;
        }
        let below = entry.relative.strip_prefix(base).unwrap_or(&entry.relative);
        if glob.is_some_and(|glob| !glob.is_match(below) && !glob.is_match(&entry.relative)) {
            continue;
        }
        match walk.open(&entry) {
            Ok(opened) => search_file(opened, &entry.relative, matcher, searcher, found),
            Err(PathError::Sensitive(_) | PathError::Uncompared(_)) => found.withheld += 1,
            Err(_) => found.unreadable += 1,
        }
        if found.matches >= COUNTED_MAX {
            break;
        }
    }
}

fn search_file(
    opened: Opened,
    relative: &Path,
    matcher: &RegexMatcher,
    searcher: &mut Searcher,
    found: &mut Found<'_>,
) {
    let before = found.matches;
    let path = path_line(relative);
    let kept = (found.out.len(), found.shown);
    let mut lines = Lines {
        found,
        path: &path,
        binary: false,
    };
    let file = opened.file;
    let cancel = lines.found.cancel;
    let result = searcher.search_reader(matcher, Cancellable { file, cancel }, &mut lines);
    let binary = lines.binary;
    if binary {
        // A NUL byte marks a binary file: matches before it do not count either.
        found.out.truncate(kept.0);
        (found.shown, found.matches) = (kept.1, before);
    } else if found.matches > before {
        found.files += 1;
    }
    if result.is_err() && !cancel.is_cancelled() {
        found.unreadable += 1;
    }
}

/// A reader that fails when the search is cancelled, even if no line matches.
struct Cancellable<'c> {
    file: std::fs::File,
    cancel: &'c CancellationToken,
}

impl Read for Cancellable<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.cancel.is_cancelled() {
            Err(io::Error::other("cancelled"))
        } else {
            self.file.read(buffer)
        }
    }
}

struct Lines<'f, 'a> {
    found: &'f mut Found<'a>,
    path: &'f str,
    binary: bool,
}

impl Sink for Lines<'_, '_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, hit: &SinkMatch<'_>) -> Result<bool, Self::Error> {
        self.found.matches += 1;
        if !self.found.is_full()
            && self
                .found
                .push(self.path, hit.line_number(), hit.bytes(), true)
        {
            self.found.shown += 1;
        }
        Ok(self.found.matches < COUNTED_MAX && !self.found.cancel.is_cancelled())
    }

    fn context(&mut self, _: &Searcher, line: &SinkContext<'_>) -> Result<bool, Self::Error> {
        if !self.found.is_full() {
            self.found
                .push(self.path, line.line_number(), line.bytes(), false);
        }
        Ok(true)
    }

    fn context_break(&mut self, _: &Searcher) -> Result<bool, Self::Error> {
        if self.found.context && !self.found.is_full() {
            self.found.out.push_str("--\n");
        }
        Ok(true)
    }

    fn finish(&mut self, _: &Searcher, finish: &SinkFinish) -> Result<(), Self::Error> {
        self.binary = finish.binary_byte_offset().is_some();
        Ok(())
    }
}

fn account(found: Found<'_>, skipped: u64) -> String {
    let Found {
        mut out,
        shown,
        matches,
        files,
        withheld,
        unreadable,
        ..
    } = found;
    if matches == 0 {
        out.push_str("[no match]\n");
    } else if matches > shown {
        let least = if matches >= COUNTED_MAX {
            "at least "
        } else {
            ""
        };
        let _ = writeln!(
            out,
            "[{shown} matches shown; {least}{} more in {files} files left out: narrow it by path, glob or pattern]",
            matches - shown
        );
    }
    if withheld > 0 {
        let _ = writeln!(
            out,
            "[{withheld} files that may hold keys were not searched]"
        );
    }
    if unreadable > 0 || skipped > 0 {
        let _ = writeln!(
            out,
            "[{} files and {skipped} folders could not be searched in full]",
            unreadable
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::tools::fixture::{Fixture, context};

    #[test]
    fn a_search_whose_time_is_over_shows_what_it_found_and_a_cancelled_one_nothing() {
        let fixture = Fixture::new();
        fixture.write("b.txt", "alpha\n");
        let root = Root::open(fixture.path(), crate::sandbox::PathRules::default()).unwrap();
        let args: GrepSearchArgs = serde_json::from_str(r#"{"pattern":"alpha"}"#).unwrap();
        let stopped = CancellationToken::new();
        stopped.cancel();
        let with_time_left = |left| search(&root, &args, &stopped, Instant::now() + left);

        let late = with_time_left(Duration::ZERO);
        let cancelled = with_time_left(Duration::from_secs(60));

        assert!(late.is_ok_and(|text| text.contains("the time was over before every file")));
        assert!(cancelled.is_err());
    }

    #[tokio::test]
    async fn an_expression_is_compiled_where_it_stops_no_other_conversation() {
        let fixture = Fixture::new();
        let root = Root::open(fixture.path(), crate::sandbox::PathRules::default()).unwrap();
        let tool = GrepSearch::new(Arc::new(root), Arc::new(Masker::new(Vec::<String>::new())));
        let args = |pattern: &str| GrepSearchArgs {
            pattern: pattern.to_owned(),
            path: None,
            glob: None,
            context: None,
        };

        assert_eq!(tool.check(&args("(")), Ok(()), "it is not compiled here");
        // Compiling it takes a second.
        let call = std::pin::pin!(tool.call(args(r"\w{90}"), context()));
        assert!(futures_util::poll!(call).is_pending(), "on another thread");
    }

    #[tokio::test]
    async fn matches_come_as_path_line_text_sorted_by_path() {
        let fixture = Fixture::new();
        fixture.write("b.txt", "alpha\nBeta alpha\r\n");
        fixture.write("a/x.rs", "fn alpha() {}\n");
        fixture.write("ignored.log", "alpha");
        fixture.write(".gitignore", "*.log\n");
        fixture.write_bytes("bin", b"alpha\0");
        let tool = fixture.tool("grep_search");

        assert_eq!(
            fixture.call(&tool, r#"{"pattern":"alpha"}"#).await,
            Ok("a/x.rs:1: fn alpha() {}\nb.txt:1: alpha\nb.txt:2: Beta alpha\n".to_owned())
        );
        assert_eq!(
            fixture.call(&tool, r#"{"pattern":"beta"}"#).await,
            Ok("b.txt:2: Beta alpha\n".to_owned())
        );
        assert_eq!(
            fixture.call(&tool, r#"{"pattern":"BETA"}"#).await,
            Ok("[no match]\n".to_owned())
        );
        assert_eq!(
            fixture
                .call(&tool, r#"{"pattern":"alpha","glob":"*.rs"}"#)
                .await,
            Ok("a/x.rs:1: fn alpha() {}\n".to_owned())
        );
        assert_eq!(
            fixture
                .call(&tool, r#"{"pattern":"alpha","path":"a/x.rs"}"#)
                .await,
            Ok("a/x.rs:1: fn alpha() {}\n".to_owned())
        );
        assert!(
            fixture
                .call(&tool, r#"{"pattern":"("}"#)
                .await
                .unwrap_err()
                .message
                .starts_with("pattern \"(\" is not a valid regular expression")
        );
    }

    #[tokio::test]
    async fn context_lines_are_marked_apart() {
        let fixture = Fixture::new();
        fixture.write("f", "1\n2\nhit\n4\n5\n6\nhit\n");
        let tool = fixture.tool("grep_search");

        assert_eq!(
            fixture
                .call(&tool, r#"{"pattern":"hit","context":1}"#)
                .await,
            Ok("f-2- 2\nf:3: hit\nf-4- 4\n--\nf-6- 6\nf:7: hit\n".to_owned())
        );
    }

    #[tokio::test]
    async fn many_matches_are_counted_and_long_lines_cut() {
        let fixture = Fixture::new();
        fixture.write("many", &"hit\n".repeat(1000));
        fixture.write("wide", &format!("needle{}", "x".repeat(1000)));
        let tool = fixture.tool("grep_search");

        let text = fixture.call(&tool, r#"{"pattern":"hit"}"#).await.unwrap();
        let wide = fixture
            .call(&tool, r#"{"pattern":"needle"}"#)
            .await
            .unwrap();

        assert_eq!(text.lines().count(), 201);
        assert_eq!(
            text.lines().last(),
            Some(
                "[200 matches shown; 800 more in 1 files left out: narrow it by path, glob or pattern]"
            )
        );
        assert_eq!(
            wide,
            format!(
                "wide:1: needle{} [… 606 more characters]\n",
                "x".repeat(394)
            )
        );
    }

    #[tokio::test]
    async fn a_pattern_that_would_grow_is_refused_soon() {
        let fixture = Fixture::new();
        fixture.write("f", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!\n");
        let tool = fixture.tool("grep_search");
        let start = std::time::Instant::now();

        for pattern in [
            "(a{1000}){1000}".to_owned(),
            r"(\\w{50}){100}".to_owned(),
            "(".repeat(1000),
            "x".repeat(5000),
        ] {
            let error = fixture
                .call(&tool, &format!(r#"{{"pattern":"{pattern}"}}"#))
                .await
                .unwrap_err();
            assert_eq!(error.code, "INVALID_PARAMETERS", "{}", error.message);
            assert!(error.message.len() < 20_000, "{}", error.message.len());
        }
        assert_eq!(
            fixture.call(&tool, r#"{"pattern":"(a+)+$"}"#).await,
            Ok("[no match]\n".to_owned())
        );
        assert!(start.elapsed() < std::time::Duration::from_secs(20));
    }

    #[tokio::test]
    async fn sensitive_files_are_counted_and_not_searched() {
        let fixture = Fixture::new();
        fixture.write(".env", "KEY=needle");
        fixture.write("plain", "needle");
        let tool = fixture.tool("grep_search");

        assert_eq!(
            fixture.call(&tool, r#"{"pattern":"needle"}"#).await,
            Ok("plain:1: needle\n[1 files that may hold keys were not searched]\n".to_owned())
        );
        let direct = fixture
            .call(&tool, r#"{"pattern":"needle","path":".env"}"#)
            .await
            .unwrap_err();
        assert_eq!(
            direct.message,
            "\".env\" may hold keys or passwords and is not readable through tools"
        );
    }
}
