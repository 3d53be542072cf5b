//! The boundary where bubblewrap does not work: Landlock and a filter of system calls, put on by a helper ([`super::helper`]). It
//! needs no rights and no namespaces, but Linux 6.12 (REQUIREMENTS Z-01, Z-03..Z-05; FAULTS F1..F5).
//!
//! A command sees the machine's own paths: it can read the system's programs, read and write the workspace and a private folder
//! (`$TMPDIR`), and open nothing else. No socket of any kind, no capability, no process but its own to signal or look into, no
//! `/proc` of anybody. In output the workspace is called `$WORKSPACE`, which is also its name inside.
//!
//! Weaker than bubblewrap, stated: the existence and size of files outside can be asked; `chmod` by path is refused even in the
//! workspace; folders that hold something protected or hidden are closed to new, renamed and removed entries (see
//! `helper/folders.rs`); processes see each other's numbers; the private folder is disk, not memory, and counts as such.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
};

use callboard_actors::ports::{BoxFuture, Exec, ExecLimits, ExecResult, Network, Sandbox, SandboxError, SandboxPolicy};
use tokio_util::sync::CancellationToken;

use super::{
    Root,
    guard::Found,
    helper::{ASK, ASKED, Plan},
    policy::PATH,
    shell::{self, PROBE_TIME_MAX, denied, nonce},
    spawner::{Kind, Launch, Shown, Spawner},
};

/// A sandbox of Landlock over one workspace.
#[derive(Debug, Clone)]
pub struct Landlock {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    root: Arc<Root>,
    policy: SandboxPolicy,
    /// The program that becomes the jail.
    helper: PathBuf,
    spawner: Spawner,
    read_only: Vec<PathBuf>,
}

impl Landlock {
    /// Builds a sandbox and runs a command in it once: a program whose `main` does not ask
    /// [`jail_main_if_asked`](super::jail_main_if_asked) cannot give the right answer.
    ///
    /// # Errors
    /// [`SandboxError::Failed`] with the reason when it does not work here.
    pub fn probe(
        root: Arc<Root>,
        spawner: &Spawner,
        read_only: Vec<PathBuf>,
        limits: ExecLimits,
        helper: Option<PathBuf>,
    ) -> Result<Self, SandboxError> {
        if helper.is_none() && std::env::var_os(ASKED).is_some() {
            return Err(SandboxError::Failed("this program's main does not ask jail_main_if_asked first".to_owned()));
        }
        // By the process, not by name: the file may have been replaced since we were started from it.
        let helper = helper.unwrap_or_else(|| PathBuf::from(format!("/proc/{}/exe", std::process::id())));
        let root_path = Arc::new(root.real_path().to_owned());
        let policy = SandboxPolicy { root: root_path, kind: "landlock", network: Network::Off, boundary: true, limits };
        let landlock = Self { inner: Arc::new(Inner { root, policy, helper, spawner: spawner.clone(), read_only }) };
        let chance = getrandom::u64().map_err(|_| SandboxError::Failed("no randomness".to_owned()))? >> 8;
        // The sum stands nowhere: only a shell finds it. And only one that sees nothing of the machine gets as far.
        let command =
            format!("(: </proc/uptime) 2>/dev/null && exit 9; (: </proc/self/environ) 2>/dev/null && exit 9; echo $(({chance} + 7))");
        let exec = Exec { timeout: PROBE_TIME_MAX, ..Exec::new(command) };
        let result = spawner.run_blocking(landlock.inner.launch(PathBuf::new(), exec)?)?;
        if result.status == Some(0) && result.stdout.trim() == (chance + 7).to_string() {
            return Ok(landlock);
        }
        Err(SandboxError::Failed("this program's main does not ask jail_main_if_asked first".to_owned()))
    }
}

impl Inner {
    fn launch(&self, folder: PathBuf, exec: Exec) -> Result<Launch, SandboxError> {
        let nonce = nonce()?;
        let limits = self.policy.limits;
        let private = std::env::temp_dir().join(format!("callboard-{nonce}"));
        let root = self.root.real_path();
        let plan = Plan {
            nonce: nonce.clone(),
            host: i32::try_from(std::process::id()).unwrap_or(0),
            root: root.to_owned(),
            folder,
            private: private.clone(),
            read_only: self.read_only.clone(),
            rules: self.root.rules().clone(),
            limits,
        };
        let plan = serde_json::to_string(&plan).map_err(|_| SandboxError::Failed("a path is no text".to_owned()))?;
        let argv = [self.helper.as_os_str().to_owned(), ASK.into(), "supervise".into(), plan.into(), exec.command.into()];
        let environment = [("PATH", PATH), (ASKED, "1")].map(|(name, value)| (OsString::from(name), OsString::from(value)));
        Ok(Launch {
            argv: argv.into(),
            environment: environment.into(),
            folder: PathBuf::from("/"),
            timeout: limits.clamp(exec.timeout),
            output_bytes_max: exec.output_bytes_max,
            errors_bytes_max: exec.errors_bytes_max,
            progress: exec.progress,
            kind: Kind::Supervised,
            limits,
            disk: root.to_owned(),
            nonce,
            shown: vec![Shown { folder: root.to_owned(), name: "$WORKSPACE" }, Shown { folder: private, name: "$TMPDIR" }],
        })
    }

    async fn exec(self: Arc<Self>, exec: Exec, cancel: CancellationToken) -> Result<ExecResult, SandboxError> {
        let this = self.clone();
        let folder = exec.working_dir.clone();
        let (folder, found) =
            shell::blocking(move || Ok((shell::working_dir(&this.root, folder.as_deref())?, Found::search(&this.root)))).await?;
        let result = self.spawner.run(self.launch(folder, exec)?, &cancel).await;
        // All its processes are gone: what they left can be judged.
        shell::blocking(move || {
            let lines = found.sweep(&self.root);
            result.map(|mut result| {
                shell::resolve_folder(&self.root, &mut result);
                shell::add_lines(&mut result.stderr, &lines);
                result
            })
        })
        .await
    }
}

impl Sandbox for Landlock {
    fn policy(&self) -> &SandboxPolicy {
        &self.inner.policy
    }

    fn validate_path(&self, path: &str) -> Result<PathBuf, SandboxError> {
        self.inner.root.locate(path).map(|relative| Path::join(self.inner.root.real_path(), relative)).map_err(denied)
    }

    fn exec(&self, exec: Exec, cancel: CancellationToken) -> BoxFuture<'_, Result<ExecResult, SandboxError>> {
        let inner = self.inner.clone();
        shell::in_a_task(cancel, move |cancel| inner.exec(exec, cancel))
    }
}
