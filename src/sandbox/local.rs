//! No boundary: commands run as the host's own user, with a bare environment, limits and a timeout (REQUIREMENTS Z-02).
//! It must be asked for by name. Commands can read and write whatever the host's user can, and reach the network.
//!
//! Strays are found by a marker in their environment and killed; one that clears its environment and leaves the session escapes.
//! When the host is killed, the command itself ends where `setpriv` exists; what it started may stay.

use std::{ffi::OsString, path::PathBuf, sync::Arc};

use callboard_actors::ports::{BoxFuture, Exec, ExecResult, Sandbox, SandboxError, SandboxPolicy};
use tokio_util::sync::CancellationToken;

use super::{
    Root, Then, clamp, denied, limited_command,
    policy::ENVIRONMENT,
    spawner::{Kind, Launch, Spawner},
};

pub(super) const SETPRIV: &str = "/usr/bin/setpriv";

/// Runs commands without a jail.
#[derive(Debug, Clone)]
pub struct Local {
    root: Arc<Root>,
    policy: SandboxPolicy,
    spawner: Spawner,
}

impl Local {
    /// Commands start in `root`, and nothing keeps them there.
    pub fn new(root: Arc<Root>, spawner: &Spawner) -> Self {
        let policy = SandboxPolicy { root: Arc::new(root.real_path().to_owned()), network: true, boundary: false };
        Self { root, policy, spawner: spawner.clone() }
    }
}

impl Sandbox for Local {
    fn policy(&self) -> &SandboxPolicy {
        &self.policy
    }

    fn validate_path(&self, path: &str) -> Result<PathBuf, SandboxError> {
        self.root.locate(path).map(|relative| self.root.real_path().join(relative)).map_err(denied)
    }

    fn exec(&self, exec: Exec, cancel: CancellationToken) -> BoxFuture<'_, Result<ExecResult, SandboxError>> {
        Box::pin(async move {
            let folder = super::working_dir(&self.root, exec.working_dir.as_deref())?;
            let chance = getrandom::u64().map_err(|_| SandboxError::Failed("no randomness".to_owned()))?;
            let (name, value) = ("CALLBOARD_JOB", format!("{chance:016x}"));
            let mut argv: Vec<OsString> = Vec::new();
            if std::path::Path::new(SETPRIV).is_file() {
                argv.extend([SETPRIV, "--pdeathsig", "KILL", "--"].map(OsString::from));
            }
            argv.extend(limited_command(&exec.command, Then::Become));
            let mut environment: Vec<(OsString, OsString)> = ENVIRONMENT.iter().map(|(name, value)| (name.into(), value.into())).collect();
            environment.push((name.into(), value.clone().into()));
            let launch = Launch {
                argv,
                environment,
                folder: self.root.real_path().join(folder),
                timeout: clamp(exec.timeout),
                output_bytes_max: exec.output_bytes_max,
                kind: Kind::Group(format!("{name}={value}")),
            };
            self.spawner.run(launch, &cancel).await
        })
    }
}
