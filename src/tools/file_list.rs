//! The `file_list` tool: lists files and folders of the workspace, at most 100 entries, and reports
//! how many more there are.

use std::{fmt::Write, sync::Arc};

use callboard_actors::{
    chat::RawJson,
    ports::{Reach, ToolContext, ToolSource, ToolSpec, TypedTool},
    tool::ToolError,
};
use globset::{GlobBuilder, GlobMatcher};
use rustix::fs::FileType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::{blocking, cancelled, text::path_line};
use crate::sandbox::{Root, Walk};

/// Entries in one answer.
const ENTRIES_MAX: usize = 100;

/// Further entries that are counted, so that an answer about a huge tree is still fast.
const COUNTED_MAX: usize = 100_000;

/// Bytes of a glob, which is compiled before the call is approved.
const GLOB_BYTES_MAX: usize = 1000;

/// Depth below `path` that a glob searches by default.
const DEPTH_WITH_GLOB: u32 = 64;

/// Arguments of `file_list`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileListArgs {
    /// Folder to list, relative to the workspace; the workspace itself if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Only entries that match, for example `*.rs` (at any depth) or `src/**/*.rs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub glob: Option<String>,
    /// Levels to go down; 1 if absent, all when a glob is given.
    #[schemars(range(min = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
}

/// The `file_list` tool.
#[derive(Debug, Clone)]
pub struct FileList {
    root: Arc<Root>,
}

impl FileList {
    /// Creates a tool that lists beneath `root`.
    pub fn new(root: Arc<Root>) -> Self {
        Self { root }
    }
}

impl TypedTool for FileList {
    type Args = FileListArgs;
    type Output = String;
    const NAME: &'static str = "file_list";
    const DESCRIPTION: &'static str = "Lists files and folders of the workspace, one path a line, sorted; folders end with a slash. Leaves out what \
.gitignore names and the .git folder. Shows at most 100 entries and says how many more exist: then narrow it by path or glob.";

    fn declare(&self, spec: ToolSpec) -> ToolSpec {
        spec.read_only()
            .not_shared()
            .reach(Reach::Files)
            .source(ToolSource::BuiltIn)
    }

    fn check(&self, args: &FileListArgs) -> Result<(), ToolError> {
        if args.depth == Some(0) {
            return Err(ToolError::invalid("depth counts from 1"));
        }
        args.glob.as_deref().map(glob).transpose().map(drop)
    }

    fn resolve(&self, args: &FileListArgs) -> Option<RawJson> {
        let path = self.root.spelled(args.path.as_deref()?);
        (Some(&path) != args.path.as_ref()).then(|| {
            RawJson::of(&FileListArgs {
                path: Some(path),
                ..args.clone()
            })
            .ok()
        })?
    }

    async fn call(&self, args: FileListArgs, context: ToolContext) -> Result<String, ToolError> {
        let root = self.root.clone();
        blocking(context, move |cancel| list(&root, &args, cancel)).await
    }
}

/// Compiles a glob for paths relative to the listed folder. Without a slash it matches a name at
/// any depth, as in `.gitignore`.
pub(super) fn glob(pattern: &str) -> Result<GlobMatcher, ToolError> {
    let given = pattern;
    if given.len() > GLOB_BYTES_MAX {
        return Err(ToolError::invalid(format!(
            "the glob has {} bytes; at most {GLOB_BYTES_MAX} are allowed",
            given.len()
        )));
    }
    let pattern = pattern.trim_start_matches("./");
    let pattern = if pattern.contains('/') {
        pattern.trim_start_matches('/').to_owned()
    } else {
        format!("**/{pattern}")
    };
    GlobBuilder::new(&pattern)
        .literal_separator(true)
        .build()
        .map(|glob| glob.compile_matcher())
        .map_err(|error| ToolError::invalid(format!("glob {given:?}: {}", error.kind())))
}

fn list(root: &Root, args: &FileListArgs, cancel: &CancellationToken) -> Result<String, ToolError> {
    let path = args.path.as_deref().unwrap_or(".");
    let glob = args.glob.as_deref().map(glob).transpose()?;
    let depth = args
        .depth
        .unwrap_or(if glob.is_some() { DEPTH_WITH_GLOB } else { 1 });
    let (dir, base) = root.open_folder(path)?;
    let mut walk = Walk::new(root, dir, base.clone(), depth as usize);
    let mut out = String::new();
    let mut found = 0_usize;
    let mut met = 0_usize;
    let mut whole = true;
    while let Some(entry) = walk.advance() {
        if cancel.is_cancelled() {
            return Err(cancelled());
        }
        met += 1;
        if met > COUNTED_MAX {
            whole = false;
            break;
        }
        // A glob is relative to the listed folder; the workspace-relative form is accepted too.
        let below = entry
            .relative
            .strip_prefix(&base)
            .unwrap_or(&entry.relative);
        if glob
            .as_ref()
            .is_some_and(|glob| !glob.is_match(below) && !glob.is_match(&entry.relative))
        {
            continue;
        }
        found += 1;
        if found <= ENTRIES_MAX {
            let slash = if entry.kind == FileType::Directory {
                "/"
            } else {
                ""
            };
            let _ = writeln!(out, "{}{slash}", path_line(&entry.relative));
        }
    }
    if found == 0 {
        out.push_str(if glob.is_some() {
            "[no entry matches]\n"
        } else {
            "[the folder is empty, or all of it is ignored]\n"
        });
    }
    if found > ENTRIES_MAX || !whole {
        let least = if whole { "" } else { "at least " };
        let _ = writeln!(
            out,
            "[{} entries shown; {least}{} more exist: narrow it by path or glob]",
            found.min(ENTRIES_MAX),
            found.saturating_sub(ENTRIES_MAX)
        );
    }
    if walk.skipped > 0 {
        let _ = writeln!(out, "[{} folders could not be read in full]", walk.skipped);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use crate::tools::fixture::Fixture;

    #[tokio::test]
    async fn entries_are_sorted_relative_and_without_what_gitignore_names() {
        let fixture = Fixture::new();
        for path in [
            "src/lib.rs",
            "src/a/deep.rs",
            "target/x.o",
            "README.md",
            ".github/ci.yml",
            ".git/config",
            "src/a/skip.log",
            "src/keep.log",
        ] {
            fixture.write(path, "x");
        }
        fixture.write(".gitignore", "/target\n*.log\n");
        fixture.write("src/.gitignore", "!keep.log\n");
        let tool = fixture.tool("file_list");

        assert_eq!(
            fixture.call(&tool, "{}").await,
            Ok(".github/\n.gitignore\nREADME.md\nsrc/\n".to_owned())
        );
        assert_eq!(
            fixture.call(&tool, r#"{"path":"src","depth":5}"#).await,
            Ok("src/.gitignore\nsrc/a/\nsrc/a/deep.rs\nsrc/keep.log\nsrc/lib.rs\n".to_owned())
        );
        assert_eq!(
            fixture.call(&tool, r#"{"path":"src/a"}"#).await,
            Ok("src/a/deep.rs\n".to_owned())
        );
        assert_eq!(
            fixture.call(&tool, r#"{"glob":"*.rs"}"#).await,
            Ok("src/a/deep.rs\nsrc/lib.rs\n".to_owned())
        );
        assert_eq!(
            fixture.call(&tool, r#"{"glob":"src/*.rs"}"#).await,
            Ok("src/lib.rs\n".to_owned())
        );
        assert_eq!(
            fixture.call(&tool, r#"{"glob":"*.c"}"#).await,
            Ok("[no entry matches]\n".to_owned())
        );
    }

    #[tokio::test]
    async fn a_hundred_entries_are_shown_and_the_rest_is_counted() {
        let fixture = Fixture::new();
        (0..150).for_each(|n| fixture.write(&format!("f{n:03}"), ""));
        let tool = fixture.tool("file_list");

        let text = fixture.call(&tool, "{}").await.unwrap();

        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 101);
        assert_eq!((lines[0], lines[99]), ("f000", "f099"));
        assert_eq!(
            lines[100],
            "[100 entries shown; 50 more exist: narrow it by path or glob]"
        );
    }

    #[tokio::test]
    async fn a_name_with_a_line_end_is_one_line_and_a_link_is_not_followed() {
        let fixture = Fixture::new();
        fixture.write("dir/f", "");
        fixture.write("two\nlines", "");
        std::os::unix::fs::symlink("dir", fixture.path().join("link")).unwrap();
        let tool = fixture.tool("file_list");

        assert_eq!(
            fixture.call(&tool, r#"{"depth":9}"#).await,
            Ok("dir/\ndir/f\nlink\n\"two\\nlines\"\n".to_owned())
        );
    }

    #[tokio::test]
    async fn a_bad_glob_and_a_file_are_named_as_such() {
        let fixture = Fixture::new();
        fixture.write("a", "");
        let tool = fixture.tool("file_list");

        assert!(
            fixture
                .call(&tool, r#"{"glob":"[a"}"#)
                .await
                .unwrap_err()
                .message
                .starts_with("glob \"[a\": ")
        );
        let long = format!(r#"{{"glob":"{}"}}"#, "{a,".repeat(1000));
        assert_eq!(
            fixture.call(&tool, &long).await.unwrap_err().message,
            "the glob has 3000 bytes; at most 1000 are allowed"
        );
        assert_eq!(
            fixture
                .call(&tool, r#"{"path":"a"}"#)
                .await
                .unwrap_err()
                .message,
            "\"a\" is not a folder"
        );
    }
}
