//! The built-in tools, one file each. All file tools share one [`Root`], so the same path policy
//! decides for every tool.
//!
//! **Invariant:** no code in this folder opens a path directly or starts a process (see
//! [`crate::sandbox`]), and none opens a socket (see `crate::web`).

mod text;
mod encoding;
mod danger;
mod reading;
pub mod file_read;
pub mod file_edit;
pub mod file_list;
pub mod grep_search;
pub mod think;
pub mod read_more;
pub mod memory;
pub mod bash;
#[cfg(feature = "web")]
mod page;
#[cfg(feature = "web")]
pub mod web;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use callboard_actors::{
    ports::{Sandbox, SandboxPolicy, Tool, erased},
    tool::{ToolError, ToolErrorType},
};
use sha2::{Digest as _, Sha256};

pub use crate::sandbox::Mode;
#[cfg(feature = "cli")]
use crate::sandbox::NamedFiles;
use crate::{
    long_work::{blocking, cancelled, on_text},
    mask::Masker,
    sandbox::{
        Options, PathError, PathRules, Root, detect_opted, programs_of_user, refused_workspace,
    },
};

/// A pattern of calls that "always" approves, for one workspace: a session can go on in another folder,
/// where the same command runs other files. The workspace is named by a hash, because people are shown
/// patterns, and no path of the host.
fn in_workspace(pattern: &str, root: &Path) -> String {
    let hash = Sha256::digest(root.as_os_str().as_encoded_bytes());
    let name: String = hash
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("{pattern} [workspace {name}]")
}

/// Any page is read within the bounds or refused.
#[cfg(all(feature = "web", any(test, feature = "fuzzing")))]
pub(crate) fn fuzz_page(data: &[u8]) {
    let Ok(url) = url::Url::parse("https://example.com/a/b") else {
        return;
    };
    for content_type in [None, Some("text/html"), Some("text/html; charset=utf-16le")] {
        let document = page::Document {
            url: &url,
            content_type,
            bytes: data,
            more: false,
            declared: None,
        };
        if let Ok(text) = page::read(&document, &tokio_util::sync::CancellationToken::new()) {
            assert!(text.len() <= page::TEXT_BYTES_MAX + 16 * 1024);
        }
    }
}

/// A command that only reads writes, starts and substitutes nothing, outside of single quotes. It
/// may discard output.
#[cfg(any(test, feature = "fuzzing"))]
#[cfg_attr(not(test), allow(clippy::panic))]
pub(crate) fn fuzz_shell(data: &[u8]) {
    let command = String::from_utf8_lossy(data);
    if !reading::only_reads(&command) {
        return;
    }
    let (mut quoted, mut escaped, mut in_double) = (false, false, false);
    let discards = |at: usize| {
        let target = command.get(at..).unwrap_or_default();
        let after = [">/dev/null", ">&1"]
            .into_iter()
            .find_map(|nowhere| target.strip_prefix(nowhere));
        after.is_some_and(|after| after.is_empty() || after.starts_with([' ', '\t', '|', '&', ';']))
    };
    for (at, character) in command.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\'' if !in_double => quoted = !quoted,
            _ if quoted => {}
            '\\' => escaped = true,
            '"' => in_double = !in_double,
            '`' | '$' | '\0' => panic!("{command:?} may substitute"),
            '>' if in_double || discards(at) => {}
            '>' | '(' | '\n' | '\r' if !in_double => panic!("{command:?} may write"),
            _ => {}
        }
    }
}

/// A set of tools for a host, with notes about tools that are absent.
#[derive(Clone, Default)]
pub struct Toolbox {
    /// The tools; names are unique.
    pub tools: Vec<Arc<dyn Tool>>,
    /// Notes for the user at start, for example why `bash` is absent.
    pub notes: Vec<String>,
    /// The folder in which the tools work; `None` without file tools.
    pub workspace: Option<Arc<PathBuf>>,
    /// What commands may access; `None` without `bash`.
    pub sandbox: Option<SandboxPolicy>,
    error: Option<String>,
}

impl std::fmt::Debug for Toolbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.tools.iter().map(|tool| tool.spec().name()).collect();
        f.debug_struct("Toolbox")
            .field("tools", &names)
            .field("notes", &self.notes)
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

impl Toolbox {
    /// The error of the workspace or the sandbox; `None` if both work. With an error, the box holds
    /// only tools that need neither.
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// Returns the tool with this name.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        self.tools.iter().find(|tool| tool.spec().name() == name)
    }

    /// Keeps only the tools whose names `keep` accepts.
    #[must_use]
    pub fn only(mut self, keep: impl Fn(&str) -> bool) -> Self {
        self.tools.retain(|tool| keep(tool.spec().name()));
        self
    }
}

impl IntoIterator for Toolbox {
    type Item = Arc<dyn Tool>;
    type IntoIter = std::vec::IntoIter<Arc<dyn Tool>>;

    fn into_iter(self) -> Self::IntoIter {
        self.tools.into_iter()
    }
}

/// Creates the standard tools for a folder. Commands run behind a kernel boundary if there is one
/// ([`Mode::Auto`]).
///
/// If the folder cannot be opened, [`Toolbox::error`] says why, so that a builder can take the box
/// as it is.
///
/// ```
/// let tools = callboard::tools::standard(".");
/// assert!(tools.error().is_none() && tools.get("file_read").is_some());
/// ```
pub fn standard(workspace: impl AsRef<Path>) -> Toolbox {
    with_sandbox(workspace, Mode::Auto)
}

/// As [`standard`], with the sandbox of `mode`. Masks the keys that [`Masker::from_env`] finds.
pub fn with_sandbox(workspace: impl AsRef<Path>, mode: Mode) -> Toolbox {
    let home = std::env::var_os("HOME").map(Into::into);
    let rules = PathRules::default()
        .with_home(home)
        .with_git_variables(|name| std::env::var_os(name));
    with_policy(workspace, mode, rules, Masker::from_env())
}

/// As [`with_sandbox`], with explicit rules for paths and keys to mask.
pub fn with_policy(
    workspace: impl AsRef<Path>,
    mode: Mode,
    rules: PathRules,
    masker: Masker,
) -> Toolbox {
    with_options(workspace, mode, Options::default(), rules, masker)
}

/// As [`with_policy`], with options for commands: which resources they may use and which hosts they
/// can reach.
///
/// Besides what `rules` protects, the programs that run in place of others in folders of the
/// workspace that are in this process's `PATH` or `PYTHONPATH` are protected. A folder such as
/// `~/.aws`, where keys lie under names that are not known without it, is refused
/// ([`Toolbox::error`]).
pub fn with_options(
    workspace: impl AsRef<Path>,
    mode: Mode,
    options: Options,
    rules: PathRules,
    masker: Masker,
) -> Toolbox {
    over_folder(workspace.as_ref(), mode, options, rules, masker, |root| {
        root
    })
}

/// As [`with_options`]; what other sessions of this process have named is protected too.
#[cfg(feature = "cli")]
pub(crate) fn with_options_sharing(
    workspace: &Path,
    mode: Mode,
    options: Options,
    rules: PathRules,
    masker: Masker,
    named: NamedFiles,
) -> Toolbox {
    let share = |root: Root| root.sharing(named);
    over_folder(workspace, mode, options, rules, masker, share)
}

fn over_folder(
    workspace: &Path,
    mode: Mode,
    options: Options,
    mut rules: PathRules,
    masker: Masker,
    share: impl FnOnce(Root) -> Root,
) -> Toolbox {
    if let Some(refused) = refused_workspace(workspace) {
        return Toolbox {
            error: Some(refused),
            ..without_workspace()
        };
    }
    let variable = |name| std::env::var_os(name).unwrap_or_default();
    let programs = programs_of_user(workspace, &variable("PATH"), &variable("PYTHONPATH"));
    rules.protected_folders.extend(programs);
    let root = match Root::open(workspace, rules) {
        Ok(root) => Arc::new(share(root)),
        Err(error) => {
            return Toolbox {
                error: Some(crate::os_error::workspace(workspace, &error)),
                ..without_workspace()
            };
        }
    };
    match detect_opted(&root, mode, options) {
        Ok(detected) => {
            let mut toolbox = over(root, detected.sandbox, masker);
            toolbox.notes.extend(detected.note);
            toolbox
        }
        Err(error) => Toolbox {
            error: Some(format!("sandbox: {error}")),
            ..over(root, None, masker)
        },
    }
}

/// Creates the tools for an existing root and sandbox. Without a sandbox there is no `bash`.
pub fn over(root: Arc<Root>, sandbox: Option<Arc<dyn Sandbox>>, masker: Masker) -> Toolbox {
    let masker = Arc::new(masker);
    let mut toolbox = without_workspace();
    toolbox.workspace = Some(Arc::new(root.real_path().to_owned()));
    toolbox.tools.extend([
        erased(file_read::FileRead::new(root.clone(), masker.clone())),
        erased(file_edit::FileEdit::new(root.clone(), masker.clone())),
        erased(file_list::FileList::new(root.clone())),
        erased(grep_search::GrepSearch::new(root, masker.clone())),
    ]);
    toolbox.sandbox = sandbox.as_ref().map(|sandbox| sandbox.policy().clone());
    toolbox
        .tools
        .extend(sandbox.map(|sandbox| erased(bash::Bash::new(sandbox, masker))));
    toolbox
}

/// Creates the tools that need no folder.
pub fn without_workspace() -> Toolbox {
    Toolbox {
        tools: vec![erased(think::Think), erased(read_more::ReadMore)],
        ..Toolbox::default()
    }
}

impl From<PathError> for ToolError {
    fn from(error: PathError) -> Self {
        let message = error.to_string();
        match error {
            PathError::NotFound(_) => Self::not_found(message),
            PathError::Outside(_)
            | PathError::Sensitive(_)
            | PathError::Uncompared(_)
            | PathError::Protected(_) => Self::denied(message),
            PathError::NotAFile { .. }
            | PathError::NotAFolder(_)
            | PathError::TooManyLinks(_)
            | PathError::Link { .. }
            | PathError::Invalid(_) => Self::new(ToolErrorType::InvalidParameters, message),
            PathError::Full { .. } => {
                Self::new(ToolErrorType::ResourceError, message).not_started()
            }
            // Nothing was written, and the result says so.
            PathError::Changed(_) => Self::failed(message).not_started(),
            PathError::Io { .. } => Self::failed(message),
        }
    }
}

/// Maps an I/O error without the system's path.
fn io_error(path: &str, error: &std::io::Error) -> ToolError {
    ToolError::failed(format!("{path:?}: {}", error.kind()))
}

#[cfg(test)]
pub(crate) mod fixture;
