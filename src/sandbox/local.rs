//! No boundary: commands run as the host's own user, with a minimal environment, limits and a
//! timeout. They can read and write whatever that user can, and reach the network. So this sandbox
//! is never chosen by default, only by name.
//!
//! Strays are found by a mark in their environment and killed. A process that clears its
//! environment and leaves the session escapes. If the host is killed, the command ends where
//! `setpriv` exists, but processes that it started may stay.

use std::{ffi::OsString, path::PathBuf, sync::Arc};

use callboard_actors::ports::{
    BoxFuture, Exec, ExecLimits, ExecResult, Network, Sandbox, SandboxError, SandboxPolicy,
};
use tokio_util::sync::CancellationToken;

use super::{
    exec::{
        Kind, Launch, Shown, Spawner,
        call::{self, denied},
        processes::MARK,
        shell::{Then, limited_command},
        words::nonce,
    },
    fs::Root,
    policy::ENVIRONMENT,
    toolchains::Toolchains,
};

/// Runs commands without a boundary.
#[derive(Debug, Clone)]
pub struct Local {
    root: Arc<Root>,
    policy: SandboxPolicy,
    spawner: Spawner,
    /// Variables that toolchains need.
    environment: Vec<(String, String)>,
}

impl Local {
    /// Creates a sandbox whose commands start in `root`, but can leave it.
    pub fn new(root: Arc<Root>, spawner: &Spawner, limits: ExecLimits) -> Self {
        let root_path = Arc::new(root.real_path().to_owned());
        let policy = SandboxPolicy {
            root: root_path,
            kind: "local",
            network: Network::Open,
            boundary: false,
            limits,
        };
        Self {
            root,
            policy,
            spawner: spawner.clone(),
            environment: Vec::new(),
        }
    }

    /// Adds toolchains whose programs commands find.
    #[must_use]
    pub fn with_toolchains(mut self, toolchains: &Toolchains) -> Self {
        self.environment = toolchains.environment();
        self
    }
}

impl Sandbox for Local {
    fn policy(&self) -> &SandboxPolicy {
        &self.policy
    }

    fn validate_path(&self, path: &str) -> Result<PathBuf, SandboxError> {
        self.root
            .locate(path)
            .map(|relative| self.root.real_path().join(relative))
            .map_err(denied)
    }

    fn exec(
        &self,
        exec: Exec,
        cancel: CancellationToken,
    ) -> BoxFuture<'_, Result<ExecResult, SandboxError>> {
        Box::pin(async move {
            let this = self.clone();
            let folder = exec.working_dir.clone();
            let folder =
                call::blocking(move || call::working_dir(&this.root, folder.as_deref())).await?;
            let launch = self.launch(&folder, exec)?;
            let result = self.spawner.run(launch, &cancel).await;
            let this = self.clone();
            call::blocking(move || {
                result.map(|mut result| {
                    call::resolve_folder(&this.root, &mut result);
                    result
                })
            })
            .await
        })
    }
}

impl Local {
    fn launch(&self, folder: &std::path::Path, exec: Exec) -> Result<Launch, SandboxError> {
        let nonce = nonce()?;
        let limits = self.policy.limits;
        let root = self.root.real_path();
        let argv = limited_command(&exec.command, &limits, &nonce, Then::Become);
        let mut environment: Vec<(OsString, OsString)> = ENVIRONMENT
            .iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        environment.extend(
            self.environment
                .iter()
                .map(|(name, value)| (name.into(), value.into())),
        );
        environment.push((MARK.into(), nonce.clone().into()));
        environment.push(("WORKSPACE".into(), root.into()));
        Ok(Launch {
            tenant: exec.tenant,
            argv,
            environment,
            carried: None,
            folder: root.join(folder),
            timeout: limits.clamp(exec.timeout),
            output_bytes_max: exec.output_bytes_max,
            errors_bytes_max: exec.errors_bytes_max,
            progress: exec.progress,
            gate: None,
            kind: Kind::Group(nonce.clone()),
            limits,
            disk: root.to_owned(),
            nonce,
            shown: vec![Shown {
                folder: root.to_owned(),
                name: "$WORKSPACE",
            }],
        })
    }
}
