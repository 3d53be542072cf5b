//! The boundary where bubblewrap does not work: Landlock and a seccomp filter, applied by a helper
//! ([`super::helper`]). It needs Linux 6.12. Where util-linux's `unshare` can create a mount
//! namespace (as superuser, and on most systems as any user), the helper covers protected and
//! hidden names with mounts and makes the rest of the machine read-only; the policy's kind is then
//! `landlock`. Where `unshare` cannot, as in most containers, the kind is `landlock-closed`.
//!
//! A command sees the machine's own paths. It can read the system's programs, read and write the
//! workspace and a private folder (`$TMPDIR`), and open nothing else. It has no sockets but unnamed
//! pairs, no capabilities and no `/proc` of any process, and it can signal and inspect its own
//! processes only. Output names the workspace `$WORKSPACE`, a variable that is set inside as well.
//!
//! Weaker than bubblewrap in these points:
//! - A command can learn of the existence and size of system files, and processes see each other's
//!   numbers.
//! - The private folder lies on disk, not in memory, and counts towards the disk limit.
//! - Without a mount namespace, existence and size of every file can be learned; `chmod` by path is
//!   refused even in the workspace; and folders with a protected or hidden entry refuse to create,
//!   rename or remove entries (see `helper/folders.rs`).

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
};

use callboard_actors::ports::{
    BoxFuture, Exec, ExecLimits, ExecResult, Network, Sandbox, SandboxError, SandboxPolicy,
};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    begin::{Beginning, Commands},
    helper::Plan,
    quota_check::QuotaCheck,
};
use crate::sandbox::{
    exec::{
        ASK, ASKED, AtGate, Kind, Launch, Namespace, Program, Registration, Shown, Spawner,
        UNSHARE,
        call::{self, PROBE_TIME_MAX, denied},
        words::nonce,
    },
    fs::{Found, Guard, Root},
    policy::PATH,
    toolchains::Toolchains,
};

/// A Landlock sandbox over one workspace.
#[derive(Debug, Clone)]
pub struct Landlock {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    root: Arc<Root>,
    policy: SandboxPolicy,
    /// The program that becomes the jail.
    program: Program,
    spawner: Spawner,
    guard: Arc<Guard>,
    commands: Arc<Mutex<Commands>>,
    toolchains: Toolchains,
    /// The mount namespace that works here, or why none does.
    namespace: Result<Namespace, String>,
}

/// The policy's kind with a mount namespace.
const COVERED: &str = "landlock";

/// The policy's kind without one.
const CLOSED: &str = "landlock-closed";

impl Landlock {
    /// Builds a sandbox and runs one command in it. A program whose `main` does not call
    /// [`jail_main_if_asked`](crate::sandbox::jail_main_if_asked) cannot give the expected answer.
    ///
    /// # Errors
    /// [`SandboxError::Failed`] with the reason when Landlock does not work here.
    pub fn probe(
        root: Arc<Root>,
        spawner: &Spawner,
        toolchains: Toolchains,
        limits: ExecLimits,
        helper: Option<PathBuf>,
    ) -> Result<Self, SandboxError> {
        let closed = match Self::covering(&root, spawner, &toolchains, limits, helper.clone()) {
            Ok(landlock) => return Ok(landlock),
            Err(SandboxError::Failed(why)) => why,
            Err(error) => error.to_string(),
        };
        Self::try_once(root, spawner, toolchains, limits, helper, Err(closed))
    }

    /// Like [`Landlock::probe`], but without a mount namespace.
    ///
    /// # Errors
    /// [`SandboxError::Failed`] with the reason when Landlock does not work here.
    pub fn probe_alone(
        root: Arc<Root>,
        spawner: &Spawner,
        toolchains: Toolchains,
        limits: ExecLimits,
        helper: Option<PathBuf>,
    ) -> Result<Self, SandboxError> {
        Self::try_once(
            root,
            spawner,
            toolchains,
            limits,
            helper,
            Err("it was not asked for".to_owned()),
        )
    }

    /// Why no mount namespace could be created; `None` if there is one.
    pub fn why_closed(&self) -> Option<&str> {
        self.inner.namespace.as_ref().err().map(String::as_str)
    }

    fn covering(
        root: &Arc<Root>,
        spawner: &Spawner,
        toolchains: &Toolchains,
        limits: ExecLimits,
        helper: Option<PathBuf>,
    ) -> Result<Self, SandboxError> {
        if !Path::new(UNSHARE).is_file() {
            return Err(SandboxError::Failed(format!("{UNSHARE} is not installed")));
        }
        if root.real_path().parent().is_none() {
            return Err(SandboxError::Failed(
                "the workspace is the whole machine".to_owned(),
            ));
        }
        Self::try_once(
            root.clone(),
            spawner,
            toolchains.clone(),
            limits,
            helper,
            Ok(Namespace::of_this_user()),
        )
    }

    fn try_once(
        root: Arc<Root>,
        spawner: &Spawner,
        toolchains: Toolchains,
        limits: ExecLimits,
        helper: Option<PathBuf>,
        namespace: Result<Namespace, String>,
    ) -> Result<Self, SandboxError> {
        if helper.is_none() && std::env::var_os(ASKED).is_some() {
            return Err(SandboxError::Failed(
                "this program's main does not ask jail_main_if_asked first".to_owned(),
            ));
        }
        let program = Program::new(helper)?;
        let root_path = Arc::new(root.real_path().to_owned());
        let policy = SandboxPolicy {
            root: root_path,
            kind: if namespace.is_ok() { COVERED } else { CLOSED },
            network: Network::Off,
            boundary: true,
            limits,
        };
        let guard = Guard::new(root.clone());
        let landlock = Self {
            inner: Arc::new(Inner {
                root,
                policy,
                program,
                spawner: spawner.clone(),
                guard,
                commands: Arc::default(),
                toolchains,
                namespace,
            }),
        };
        let chance =
            getrandom::u64().map_err(|_| SandboxError::Failed("no randomness".to_owned()))? >> 8;
        // The sum is written nowhere, so only a shell can print it, and only if the command sees
        // nothing of the machine.
        let command = format!(
            "(: </proc/uptime) 2>/dev/null && exit 9; (: </proc/self/environ) 2>/dev/null && exit 9; echo $(({chance} + 7))"
        );
        let exec = Exec {
            timeout: PROBE_TIME_MAX,
            ..Exec::new(command)
        };
        let result = spawner
            .run_blocking(
                landlock
                    .inner
                    .launch(PathBuf::new(), exec, &Found::default(), None)?,
            )
            .and_then(began)?;
        if result.status == Some(0) && result.stdout.trim() == (chance + 7).to_string() {
            return Ok(landlock);
        }
        Err(SandboxError::Failed(
            "this program's main does not ask jail_main_if_asked first".to_owned(),
        ))
    }
}

impl Inner {
    fn launch(
        &self,
        folder: PathBuf,
        exec: Exec,
        found: &Found,
        gate: Option<mpsc::Sender<AtGate>>,
    ) -> Result<Launch, SandboxError> {
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
            namespace: self.namespace.as_ref().ok().copied(),
            gated: gate.is_some(),
            read_only: self.toolchains.read_only.clone(),
            environment: self.toolchains.environment(),
            rules: (*self.root.rules()).clone(),
            limits,
        };
        let plan = serde_json::to_string(&plan)
            .map_err(|_| SandboxError::Failed("a path is no text".to_owned()))?;
        let argv = [
            self.program.path(),
            ASK.into(),
            "supervise".into(),
            plan.into(),
            exec.command.into(),
        ];
        let argv = argv.into_iter().chain(found.to_arguments()).collect();
        let environment = [("PATH", PATH), (ASKED, "1")]
            .map(|(name, value)| (OsString::from(name), OsString::from(value)));
        Ok(Launch {
            tenant: exec.tenant,
            argv,
            environment: environment.into(),
            carried: self.program.carried(),
            folder: PathBuf::from("/"),
            timeout: limits.clamp(exec.timeout),
            output_bytes_max: exec.output_bytes_max,
            errors_bytes_max: exec.errors_bytes_max,
            progress: exec.progress,
            kind: Kind::Supervised,
            gate,
            limits,
            disk: root.to_owned(),
            nonce,
            shown: vec![
                Shown {
                    folder: root.to_owned(),
                    name: "$WORKSPACE",
                },
                Shown {
                    folder: private,
                    name: "$TMPDIR",
                },
            ],
        })
    }

    async fn exec(
        self: Arc<Self>,
        exec: Exec,
        cancel: CancellationToken,
    ) -> Result<ExecResult, SandboxError> {
        let beginning = Beginning::new(&self.guard, &self.commands, self.root.real_path());
        let mut tries = 0;
        let (guarded, registration, result) = loop {
            tries += 1;
            let (this, begins, exec) = (self.clone(), beginning.clone(), exec.clone());
            let searched = call::blocking(move || {
                let folder = call::working_dir(&this.root, exec.working_dir.as_deref())?;
                let mut guarded = begins.search()?;
                call::check_git(&exec, guarded.found())?;
                let quota_check = QuotaCheck::start(&this.guard, &exec.command)?;
                // Without mounts there is nothing to compare.
                let (report, gate) = match this.namespace {
                    Ok(_) => begins.gate(guarded.found()),
                    Err(_) => (None, None),
                };
                let launch = this.launch(folder, exec, guarded.found(), report)?;
                let registration = this
                    .spawner
                    .watchdog()
                    .register(&this.program, &mut guarded);
                Ok((launch, gate, guarded, registration, quota_check))
            });
            let (launch, gate, guarded, registration, quota_check) = searched.await?;
            let run = async {
                let ran = quota_check.run(&self.spawner, launch, &cancel).await;
                ran.and_then(began)
            };
            let tried = beginning.run(gate, guarded.found().clone(), run).await;
            if let Some(result) = beginning.answer(tried, tries) {
                break (guarded, registration, result);
            }
            registration.into_iter().for_each(Registration::end);
        };
        // All processes of the command are gone, so the sweep sees its final state.
        call::blocking(move || {
            let lines = guarded.end();
            registration.into_iter().for_each(Registration::end);
            result.map(|mut result| {
                call::resolve_folder(&self.root, &mut result);
                call::add_lines(&mut result.stderr, &lines);
                result
            })
        })
        .await
    }
}

/// Detects that `unshare` could not start the helper, so no command ran: it reports so on standard
/// error. A command that prints the same text gets the same error and gains nothing.
fn began(result: ExecResult) -> Result<ExecResult, SandboxError> {
    let said = result.stderr.trim();
    match said.strip_prefix("unshare: ") {
        Some(why)
            if result.status == Some(1)
                && result.stdout.is_empty()
                && !said.contains('\n')
                && result.working_dir.is_none() =>
        {
            Err(SandboxError::Failed(why.to_owned()))
        }
        _ => Ok(result),
    }
}

impl Sandbox for Landlock {
    fn policy(&self) -> &SandboxPolicy {
        &self.inner.policy
    }

    fn validate_path(&self, path: &str) -> Result<PathBuf, SandboxError> {
        self.inner
            .root
            .locate(path)
            .map(|relative| Path::join(self.inner.root.real_path(), relative))
            .map_err(denied)
    }

    fn exec(
        &self,
        exec: Exec,
        cancel: CancellationToken,
    ) -> BoxFuture<'_, Result<ExecResult, SandboxError>> {
        let inner = self.inner.clone();
        call::in_a_task(cancel, move |cancel| inner.exec(exec, cancel))
    }
}
