//! Built-in tools: one file a tool (REQUIREMENTS U-01). All of them stand on one [`Root`], so that one policy decides for every tool.
//!
//! **Invariant:** nothing here opens a path of its own or starts a process; that is [`crate::sandbox`]'s. Nothing here opens a socket:
//! that is `crate::web`'s.

mod text;
mod encoding;
pub mod mask;
pub mod visible;
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
#[cfg(feature = "web")]
pub mod web_fetch;
#[cfg(feature = "web")]
pub mod web_search;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use callboard_actors::{
    ports::{Sandbox, SandboxPolicy, Tool, ToolContext, erased},
    tool::{ToolError, ToolErrorType},
};
use tokio_util::sync::CancellationToken;

pub use crate::sandbox::Mode;
use crate::sandbox::{Options, PathError, PathRules, Root, detect_opted};
use mask::Masker;

/// A set of tools, ready to be given to a host, and what there is to say about it.
#[derive(Clone, Default)]
pub struct Toolbox {
    /// The tools, each name once.
    pub tools: Vec<Arc<dyn Tool>>,
    /// What to tell the user at start: for example that bash is absent, and why.
    pub notes: Vec<String>,
    /// The folder that they work in, if any.
    pub workspace: Option<Arc<PathBuf>>,
    /// What is allowed to commands, if there are any.
    pub sandbox: Option<SandboxPolicy>,
    error: Option<String>,
}

impl std::fmt::Debug for Toolbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.tools.iter().map(|tool| tool.spec().name()).collect();
        f.debug_struct("Toolbox").field("tools", &names).field("notes", &self.notes).field("error", &self.error).finish_non_exhaustive()
    }
}

impl Toolbox {
    /// What is wrong with the workspace or the sandbox asked for; then the box holds only what needs neither.
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// The tool of a name.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        self.tools.iter().find(|tool| tool.spec().name() == name)
    }

    /// Keeps the tools that `keep` names.
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

/// The standard tools over a folder, commands in the kernel's boundary if there is one ([`Mode::Auto`]).
///
/// A folder that cannot be opened is told by [`Toolbox::error`], so that a builder can take the box as it is.
///
/// ```
/// let tools = callboard::tools::standard(".");
/// assert!(tools.error().is_none() && tools.get("file_read").is_some());
/// ```
pub fn standard(workspace: impl AsRef<Path>) -> Toolbox {
    with_sandbox(workspace, Mode::Auto)
}

/// As [`standard`], with a sandbox of one's choice. Hides the keys that [`Masker::from_env`] finds.
pub fn with_sandbox(workspace: impl AsRef<Path>, mode: Mode) -> Toolbox {
    with_policy(workspace, mode, PathRules::default(), Masker::from_env())
}

/// As [`with_sandbox`], with one's own rules for paths and keys to hide.
pub fn with_policy(workspace: impl AsRef<Path>, mode: Mode, rules: PathRules, masker: Masker) -> Toolbox {
    with_options(workspace, mode, Options::default(), rules, masker)
}

/// As [`with_policy`], with more to say about commands: what they may use, and which hosts they can reach.
pub fn with_options(workspace: impl AsRef<Path>, mode: Mode, options: Options, rules: PathRules, masker: Masker) -> Toolbox {
    let workspace = workspace.as_ref();
    let root = match Root::open(workspace, rules) {
        Ok(root) => Arc::new(root),
        Err(error) => {
            let error = format!("workspace {} cannot be opened: {}", workspace.display(), error.kind());
            return Toolbox { error: Some(error), ..without_workspace() };
        }
    };
    match detect_opted(&root, mode, options) {
        Ok(detected) => {
            let mut toolbox = over(root, detected.sandbox, masker);
            toolbox.notes.extend(detected.note);
            toolbox
        }
        Err(error) => Toolbox { error: Some(format!("sandbox: {error}")), ..over(root, None, masker) },
    }
}

/// The tools over a root and a sandbox that the caller made; without a sandbox there is no `bash`.
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
    toolbox.tools.extend(sandbox.map(|sandbox| erased(bash::Bash::new(sandbox, masker))));
    toolbox
}

/// The tools that need no folder.
pub fn without_workspace() -> Toolbox {
    Toolbox { tools: vec![erased(think::Think), erased(read_more::ReadMore)], ..Toolbox::default() }
}

impl From<PathError> for ToolError {
    fn from(error: PathError) -> Self {
        let message = error.to_string();
        match error {
            PathError::NotFound(_) => Self::not_found(message),
            PathError::Outside(_) | PathError::Sensitive(_) | PathError::Protected(_) => Self::denied(message),
            PathError::NotAFile { .. }
            | PathError::NotAFolder(_)
            | PathError::TooManyLinks(_)
            | PathError::Link { .. }
            | PathError::Invalid(_) => Self::new(ToolErrorType::InvalidParameters, message),
            // It says that nothing was written.
            PathError::Changed(_) => Self::failed(message).not_started(),
            PathError::Io { .. } => Self::failed(message),
        }
    }
}

/// An error of reading, without the system's path.
fn io_error(path: &str, error: &std::io::Error) -> ToolError {
    ToolError::failed(format!("{path:?}: {}", error.kind()))
}

fn cancelled() -> ToolError {
    ToolError::failed("cancelled").code("INTERRUPTED")
}

/// Runs file work where it may block. It is asked to stop when the round is cancelled or the caller goes.
async fn blocking<T: Send + 'static>(
    context: ToolContext,
    work: impl FnOnce(&CancellationToken) -> Result<T, ToolError> + Send + 'static,
) -> Result<T, ToolError> {
    let cancel = context.cancel.child_token();
    let _stops_with_the_caller = cancel.clone().drop_guard();
    match tokio::task::spawn_blocking(move || work(&cancel)).await {
        Ok(result) => result,
        // The executor makes a panic a result; it must see one.
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(cancelled()),
    }
}

#[cfg(test)]
pub(crate) mod fixture;
