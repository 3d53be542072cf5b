//! The boundary on Linux: bubblewrap. A command sees the system's programs read-only, the workspace
//! at `/workspace`, a private `/tmp` and its own processes. It has no network, no capabilities and
//! no key in its environment. If hosts are listed ([`Linux::reaching`]), the network namespace
//! stays empty, and the socket of a proxy is the only way out.
//!
//! The seccomp filter ([`super::filter`]) closes what namespaces leave open: keyrings, io_uring,
//! and types of socket that belong to the whole machine. A command can create no Unix sockets
//! except pairs, since the workspace may hold the socket of one of the user's servers.
//!
//! Limits: memory is bounded exactly where a control group can be created. Elsewhere the spawner's
//! thread checks it, and a command can exceed the bound for some ten milliseconds. Files in the
//! workspace are bounded by what the disk loses.

use std::{
    collections::BTreeMap,
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
    filter::{self, Behind, Uncounted, UnixSockets},
    helper::is_mount_point,
    quota_check::QuotaCheck,
    system_paths::{PROGRAMS, SYSTEM},
};
use crate::sandbox::{
    allow_list::AllowList,
    exec::{
        AtGate, CARRIED, Carried, Kind, Launch, Program, Registration, Spawner,
        call::{self, PROBE_TIME_MAX, denied},
        shell::{Cover, Covered, NO_FORWARDER, Then, behind_covers, limited_command},
        words::nonce,
    },
    fs::{Found, Guard, Root},
    policy::{
        ENVIRONMENT, FORWARD_PORT, FORWARD_SOCKET, FORWARDER, NO_PROXY, PATH, PROXY_VARIABLES,
        WORKSPACE,
    },
    proxy::Proxy,
    toolchains::Toolchains,
};

/// Files in `/proc` that describe the whole machine. Where the host runs as root, a command could
/// read those that belong to root. While some are read, other programs wait: `locks` stops all that
/// lock a file, the host's store among them.
const MASKED: &[&str] = &[
    "/proc/acpi",
    "/proc/asound",
    "/proc/buddyinfo",
    "/proc/bus",
    "/proc/consoles",
    "/proc/fs",
    "/proc/interrupts",
    "/proc/iomem",
    "/proc/ioports",
    "/proc/irq",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/keys",
    "/proc/key-users",
    "/proc/kmsg",
    "/proc/kpagecgroup",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/latency_stats",
    "/proc/locks",
    "/proc/modules",
    "/proc/pagetypeinfo",
    "/proc/sched_debug",
    "/proc/schedstat",
    "/proc/scsi",
    "/proc/slabinfo",
    "/proc/softirqs",
    "/proc/swaps",
    "/proc/timer_list",
    "/proc/vmallocinfo",
    "/proc/zoneinfo",
];

/// A bubblewrap sandbox over one workspace.
#[derive(Debug, Clone)]
pub struct Linux {
    inner: Arc<Inner>,
}

#[derive(Debug, Clone)]
struct Inner {
    root: Arc<Root>,
    policy: SandboxPolicy,
    bwrap: PathBuf,
    spawner: Spawner,
    guard: Arc<Guard>,
    commands: Arc<Mutex<Commands>>,
    /// The program that sweeps after a killed host; `None` without a watchdog.
    watchdog: Option<Program>,
    /// What commands can use besides the system's programs.
    toolchains: Toolchains,
    /// The proxy to the listed hosts; `None` if no host is listed.
    proxy: Option<Arc<Proxy>>,
}

/// What is bound into a jail whose command may reach listed hosts.
#[derive(Clone, Copy)]
struct ProxyAccess<'a> {
    helper: &'a Path,
    /// Socket of the proxy; `None` in a probe, which has no proxy.
    socket: Option<&'a Path>,
}

/// Size of `/tmp` and `/dev/shm` beyond the memory bound of a command. Without it, a command that
/// fills them would only see a full file system and never learn of its bound.
const TMP_BEYOND_MEMORY: u64 = 16 << 20;

impl Linux {
    /// Builds a sandbox and runs `true` in it once.
    ///
    /// # Errors
    /// [`SandboxError::Failed`] with the reason when bubblewrap is missing or does not work here.
    pub fn probe(
        root: Arc<Root>,
        spawner: &Spawner,
        toolchains: Toolchains,
        limits: ExecLimits,
    ) -> Result<Self, SandboxError> {
        let bwrap = [
            "/usr/bin/bwrap",
            "/usr/local/bin/bwrap",
            "/bin/bwrap",
            "/run/current-system/sw/bin/bwrap",
        ]
        .into_iter()
        .map(PathBuf::from)
        .find(|path| path.is_file())
        .ok_or_else(|| SandboxError::Failed("bubblewrap (bwrap) is not installed".to_owned()))?;
        let root_path = Arc::new(root.real_path().to_owned());
        let policy = SandboxPolicy {
            root: root_path,
            kind: "bubblewrap",
            network: Network::Off,
            boundary: true,
            limits,
        };
        let guard = Guard::new(root.clone());
        let inner = Inner {
            root,
            policy,
            bwrap,
            spawner: spawner.clone(),
            guard,
            commands: Arc::default(),
            watchdog: None,
            toolchains,
            proxy: None,
        };
        let linux = Self {
            inner: Arc::new(inner),
        };
        let exec = Exec {
            timeout: PROBE_TIME_MAX,
            ..Exec::new("true")
        };
        let launch = linux
            .inner
            .launch(Path::new(""), exec, &Found::default(), None, None)?;
        let result = spawner.run_blocking(launch)?;
        if result.status == Some(0) {
            return Ok(linux);
        }
        let said = result.stderr.lines().next().unwrap_or("no answer").trim();
        Err(SandboxError::Failed(format!(
            "bubblewrap does not work here: {said}"
        )))
    }

    /// Returns the same sandbox with a watchdog, a second process that sweeps after commands if
    /// this process is killed. The watchdog runs `helper`, a program that calls
    /// [`jail_main_if_asked`](crate::sandbox::jail_main_if_asked) first in its `main`; `None` means
    /// this program. It starts with the first command.
    #[must_use]
    pub fn watched_by(self, helper: Option<PathBuf>) -> Self {
        let watchdog = Program::new(helper).ok();
        Self {
            inner: Arc::new(Inner {
                watchdog,
                ..(*self.inner).clone()
            }),
        }
    }

    /// Returns the same sandbox, from which commands reach the hosts of `allow` through a proxy.
    /// Tests the forwarder inside the jail once. `helper` is a program that calls
    /// [`jail_main_if_asked`](crate::sandbox::jail_main_if_asked) first in its `main`; `None` means
    /// this program.
    ///
    /// [`Sandbox::exec`] must then be called on a runtime with I/O enabled: the proxy runs on the
    /// caller's runtime, for as long as the command.
    ///
    /// # Errors
    /// [`SandboxError::Failed`] with the reason when the listed hosts cannot be served here.
    pub fn reaching(
        &self,
        allow: &AllowList,
        helper: Option<PathBuf>,
    ) -> Result<Self, SandboxError> {
        let Inner {
            root,
            policy,
            spawner,
            ..
        } = &*self.inner;
        let proxy = Proxy::new(allow, helper, root.real_path()).map_err(SandboxError::Failed)?;
        let exec = Exec {
            timeout: PROBE_TIME_MAX,
            ..Exec::new("true")
        };
        let access = ProxyAccess {
            helper: proxy.helper()?,
            socket: None,
        };
        let result = spawner.run_blocking(self.inner.launch(
            Path::new(""),
            exec,
            &Found::default(),
            Some(access),
            None,
        )?)?;
        if result.status != Some(0) || result.stderr.contains(NO_FORWARDER) {
            return Err(SandboxError::Failed(
                "this program's main does not ask jail_main_if_asked first".to_owned(),
            ));
        }
        let policy = SandboxPolicy {
            network: Network::Hosts(allow.hosts.clone()),
            ..policy.clone()
        };
        let inner = Inner {
            policy,
            proxy: Some(Arc::new(proxy)),
            ..(*self.inner).clone()
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }
}

impl Inner {
    fn launch(
        &self,
        folder: &Path,
        exec: Exec,
        found: &Found,
        access: Option<ProxyAccess<'_>>,
        gate: Option<mpsc::Sender<AtGate>>,
    ) -> Result<Launch, SandboxError> {
        let nonce = nonce()?;
        let limits = self.policy.limits;
        let mut argv: Vec<OsString> = vec![self.bwrap.clone().into()];
        let mut add =
            |parts: &[&std::ffi::OsStr]| argv.extend(parts.iter().map(|part| (*part).to_owned()));
        macro_rules! add {
            ($($part:expr),+ $(,)?) => { add(&[$(std::ffi::OsStr::new($part)),+]) };
        }
        add!(
            "--unshare-all",
            "--unshare-user",
            "--disable-userns",
            "--die-with-parent",
            "--new-session",
            "--cap-drop",
            "ALL"
        );
        // Makes the command's shell the first process of the namespace, so that bubblewrap exits
        // only when the namespace is gone. Bubblewrap's own first process would outlive the command
        // briefly, together with what the command left.
        add!("--as-pid-1");
        add!(
            "--uid",
            "1000",
            "--gid",
            "1000",
            "--hostname",
            "sandbox",
            "--clearenv"
        );
        for (name, value) in ENVIRONMENT {
            add!("--setenv", *name, *value);
        }
        for (name, value) in self.toolchains.environment() {
            add!("--setenv", &name, &value);
        }
        for path in SYSTEM {
            add!("--ro-bind-try", *path, *path);
        }
        for path in PROGRAMS {
            match std::fs::read_link(path) {
                Ok(target) => add!("--symlink", target.as_os_str(), *path),
                Err(_) => add!("--ro-bind-try", *path, *path),
            }
        }
        add!("--proc", "/proc");
        for path in MASKED {
            match std::fs::metadata(path) {
                Ok(kind) if kind.is_dir() => add!("--tmpfs", *path, "--remount-ro", *path),
                Ok(_) => add!("--ro-bind", "/dev/null", *path),
                Err(_) => {}
            }
        }
        // Root could write kernel settings without any capability, since root owns the files. So
        // all of /proc is read-only.
        add!("--remount-ro", "/proc");
        // Files here are memory of the command. Beyond its bound it is ended, and until that happens
        // a fast writer meets the end of the file system.
        let tmp = limits
            .tmp_bytes
            .min(limits.memory_bytes.saturating_add(TMP_BEYOND_MEMORY))
            .to_string();
        add!(
            "--dev",
            "/dev",
            "--perms",
            "1777",
            "--size",
            &tmp,
            "--tmpfs",
            "/dev/shm",
            "--remount-ro",
            "/dev"
        );
        add!("--perms", "1777", "--size", &tmp, "--tmpfs", "/tmp");
        for path in &self.toolchains.read_only {
            add!("--ro-bind-try", path, path);
        }
        let root = self.root.real_path();
        add!("--bind", root, WORKSPACE);
        self.cover(found, &mut add);
        if let Some(ProxyAccess { helper, socket }) = access {
            let address = format!("http://127.0.0.1:{FORWARD_PORT}");
            for variable in PROXY_VARIABLES {
                add!("--setenv", *variable, &address);
            }
            add!(
                "--setenv",
                "no_proxy",
                NO_PROXY,
                "--setenv",
                "NO_PROXY",
                NO_PROXY,
                "--ro-bind",
                helper,
                FORWARDER
            );
            if let Some(socket) = socket {
                add!("--ro-bind", socket, FORWARD_SOCKET);
            }
        }
        let (then, unix) = match access {
            Some(_) => (Then::WaitBesideForwarder, UnixSockets::Allowed),
            None => (Then::Wait, UnixSockets::Refused),
        };
        // Bubblewrap reads and closes this descriptor, and applies the filter when the boundary is
        // complete.
        add!("--seccomp", &CARRIED.to_string());
        // The new root is a tmpfs, so writing to it would take memory.
        add!("--remount-ro", "/");
        let start = if folder.as_os_str().is_empty() {
            PathBuf::from(WORKSPACE)
        } else {
            Path::new(WORKSPACE).join(folder)
        };
        add!("--chdir", &start, "--");
        let command = limited_command(&exec.command, &limits, &nonce, then);
        argv.extend(match gate {
            Some(_) => behind_covers(&self.covered(found), &nonce, command),
            None => command,
        });
        Ok(Launch {
            tenant: exec.tenant,
            argv,
            environment: vec![("PATH".into(), PATH.into())],
            carried: Some(Carried::Bytes(
                filter::bytes(Behind::Namespaces(unix), Uncounted::Unknown)
                    .map_err(SandboxError::Failed)?,
            )),
            folder: PathBuf::from("/"),
            timeout: limits.clamp(exec.timeout),
            output_bytes_max: exec.output_bytes_max,
            errors_bytes_max: exec.errors_bytes_max,
            progress: exec.progress,
            kind: Kind::Namespace,
            gate,
            limits,
            disk: root.to_owned(),
            nonce,
            shown: Vec::new(),
        })
    }

    /// What [`Inner::cover`] must have mounted when the command begins.
    fn covered(&self, found: &Found) -> Vec<Covered> {
        let mut binds: BTreeMap<&Path, (u8, Cover)> = BTreeMap::new();
        for path in &found.held {
            binds.entry(path).or_insert((0, Cover::Itself)).0 += 1;
        }
        for path in &found.read_only {
            let (count, last) = binds.entry(path).or_insert((0, Cover::ReadOnly));
            (*count, *last) = (*count + 1, Cover::ReadOnly);
        }
        for (path, _) in &found.hidden {
            binds.entry(path).or_insert((0, Cover::Other)).1 = Cover::Other;
        }
        let covered = binds.into_iter().map(|(path, (binds, last))| Covered {
            place: Path::new(WORKSPACE).join(path),
            binds,
            last,
            was_mount: is_mount_point(&self.root, path),
        });
        covered.collect()
    }

    /// Mounts covers over what commands may not write or read. A mount point cannot be renamed,
    /// removed or replaced. Bubblewrap follows links, which another command can create at any time, so
    /// the mounts are checked before the command begins ([`behind_covers`]).
    fn cover(&self, found: &Found, add: &mut impl FnMut(&[&std::ffi::OsStr])) {
        let root = self.root.real_path();
        let inside = Path::new(WORKSPACE);
        for path in &found.held {
            add(&[
                "--bind-try".as_ref(),
                root.join(path).as_os_str(),
                inside.join(path).as_os_str(),
            ]);
        }
        for path in &found.read_only {
            add(&[
                "--ro-bind-try".as_ref(),
                root.join(path).as_os_str(),
                inside.join(path).as_os_str(),
            ]);
        }
        for (path, is_folder) in &found.hidden {
            let path = inside.join(path);
            if *is_folder {
                add(&[
                    "--tmpfs".as_ref(),
                    path.as_os_str(),
                    "--remount-ro".as_ref(),
                    path.as_os_str(),
                ]);
            } else {
                add(&["--ro-bind".as_ref(), "/dev/null".as_ref(), path.as_os_str()]);
            }
        }
    }

    async fn exec(
        self: Arc<Self>,
        exec: Exec,
        cancel: CancellationToken,
    ) -> Result<ExecResult, SandboxError> {
        let proxy = self.proxy.as_ref();
        let command_proxy = proxy.map(|proxy| proxy.open(exec.tenant.clone()));
        let command_proxy = command_proxy.transpose()?;
        let access = match (&self.proxy, &command_proxy) {
            (Some(proxy), Some(command_proxy)) => Some(ProxyAccess {
                helper: proxy.helper()?,
                socket: Some(command_proxy.socket()),
            }),
            _ => None,
        };
        let beginning = Beginning::new(&self.guard, &self.commands, Path::new(WORKSPACE));
        let mut tries = 0;
        let (guarded, registration, result) = loop {
            tries += 1;
            let (this, begins, exec) = (self.clone(), beginning.clone(), exec.clone());
            let searched = call::blocking(move || {
                let folder = call::working_dir(&this.root, exec.working_dir.as_deref())?;
                let mut guarded = begins.search()?;
                call::check_git(&exec, guarded.found())?;
                let covers = guarded.found().clone();
                let quota_check = QuotaCheck::start(&this.guard, &exec.command)?;
                let registration = this
                    .watchdog
                    .as_ref()
                    .and_then(|helper| this.spawner.watchdog().register(helper, &mut guarded));
                let gate = begins.gate(&covers);
                Ok((
                    folder,
                    guarded,
                    covers,
                    quota_check,
                    registration,
                    exec,
                    gate,
                ))
            });
            let (folder, guarded, covers, quota_check, registration, exec, (report, gate)) =
                searched.await?;
            let launch = self.launch(&folder, exec, &covers, access, report)?;
            let run = quota_check.run(&self.spawner, launch, &cancel);
            let tried = beginning.run(gate, covers, run).await;
            if let Some(result) = beginning.answer(tried, tries) {
                break (guarded, registration, result);
            }
            registration.into_iter().for_each(Registration::end);
        };
        let mut lines = match command_proxy {
            Some(command_proxy) => command_proxy.close().await,
            None => Vec::new(),
        };
        // All processes of the command are gone, so the sweep sees its final state.
        call::blocking(move || {
            lines.extend(guarded.end());
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

impl Sandbox for Linux {
    fn policy(&self) -> &SandboxPolicy {
        &self.inner.policy
    }

    fn validate_path(&self, path: &str) -> Result<PathBuf, SandboxError> {
        self.inner
            .root
            .locate(path)
            .map(|relative| self.inner.root.real_path().join(relative))
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
