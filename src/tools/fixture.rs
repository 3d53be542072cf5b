//! A workspace for tests of single tools.

use std::{path::Path, sync::Arc, time::Duration};

use callboard_actors::{
    chat::RawJson,
    ids::{CallKey, Scope, Seq},
    ports::{Artifacts, Extensions, Progress, Tool, ToolContext, ToolOutput},
    tool::ToolError,
};
use tokio_util::sync::CancellationToken;

use super::{Toolbox, over};
use crate::{
    mask::Masker,
    sandbox::{PathRules, Root},
};

pub(crate) struct Fixture {
    folder: tempfile::TempDir,
    toolbox: Toolbox,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::with_secrets([])
    }

    pub(crate) fn with_secrets<const N: usize>(secrets: [&str; N]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = Arc::new(Root::open(folder.path(), PathRules::default()).unwrap());
        Self {
            toolbox: over(root, None, Masker::new(secrets)),
            folder,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        self.write_bytes(path, text.as_bytes());
    }

    pub(crate) fn write_bytes(&self, path: &str, bytes: &[u8]) {
        let path = self.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    pub(crate) fn read(&self, path: &str) -> Vec<u8> {
        std::fs::read(self.path().join(path)).unwrap()
    }

    pub(crate) fn tool(&self, name: &str) -> Arc<dyn Tool> {
        self.toolbox.get(name).unwrap().clone()
    }

    pub(crate) async fn call(
        &self,
        tool: &Arc<dyn Tool>,
        arguments: &str,
    ) -> Result<String, ToolError> {
        call(tool, arguments).await
    }
}

pub(crate) fn context() -> ToolContext {
    ToolContext {
        key: CallKey {
            scope: Scope::new("t".try_into().unwrap(), "c".try_into().unwrap()),
            seq: Seq(1),
            index: 0,
        },
        tool_call_id: "call_1".to_owned(),
        cancel: CancellationToken::new(),
        deadline: tokio::time::Instant::now() + Duration::from_secs(60),
        attempt: 0,
        progress: Progress::silent(),
        workspace: None,
        extensions: Extensions::default(),
        artifacts: None,
    }
}

/// A context whose conversation keeps artifacts.
pub(crate) fn context_with_artifacts() -> ToolContext {
    let context = context();
    let store = Arc::new(crate::storage::MemoryArtifacts::new(Arc::new(
        crate::clock::SystemClock,
    )));
    ToolContext {
        artifacts: Some(Artifacts {
            store,
            owner: context.key.scope.clone(),
        }),
        ..context
    }
}

pub(crate) async fn call(tool: &Arc<dyn Tool>, arguments: &str) -> Result<String, ToolError> {
    call_with(tool, arguments, context()).await
}

pub(crate) async fn call_with(
    tool: &Arc<dyn Tool>,
    arguments: &str,
    context: ToolContext,
) -> Result<String, ToolError> {
    let arguments = RawJson::from_text(arguments).unwrap();
    tool.check(&arguments)?;
    match tool.call(arguments, context).await? {
        ToolOutput::Text(text) => Ok(text),
        ToolOutput::Data(data) => Ok(data.to_string()),
        ToolOutput::Shown { text, .. } => Ok(text),
        ToolOutput::Activation(result) => Ok(result.text()),
    }
}
