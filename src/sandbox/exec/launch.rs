//! What callers order from the spawner's thread: a process to start, with its limits and how its
//! processes are found and ended. Plain data.

use std::{ffi::OsString, os::fd::OwnedFd, path::PathBuf, sync::Arc, time::Duration};

use callboard_actors::{
    ids::TenantId,
    ports::{ExecLimits, ExecResult, Progress, SandboxError},
};
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use crate::fair::Place;

/// Descriptor number at which a program finds the file passed to it beside its standard streams.
pub(in crate::sandbox) const CARRIED: i32 = 3;

/// What a program finds at [`CARRIED`].
#[derive(Debug, Clone)]
pub(in crate::sandbox) enum Carried {
    /// The file that this process was started from.
    OwnProgram(Arc<OwnedFd>),
    /// Bytes to be read once. They must fit into the smallest pipe.
    Bytes(Vec<u8>),
}

/// Describes a process to start.
#[derive(Debug, Clone)]
pub(in crate::sandbox) struct Launch {
    /// Whose command it is; tenants share the places for commands.
    pub(in crate::sandbox) tenant: Option<TenantId>,
    /// Program and arguments.
    pub(in crate::sandbox) argv: Vec<OsString>,
    /// The whole environment; nothing is inherited.
    pub(in crate::sandbox) environment: Vec<(OsString, OsString)>,
    /// What the program finds at [`CARRIED`].
    pub(in crate::sandbox) carried: Option<Carried>,
    /// Folder in which the process starts.
    pub(in crate::sandbox) folder: PathBuf,
    /// Longest run time.
    pub(in crate::sandbox) timeout: Duration,
    /// Bytes kept of standard output.
    pub(in crate::sandbox) output_bytes_max: usize,
    /// Bytes kept of standard error.
    pub(in crate::sandbox) errors_bytes_max: usize,
    /// Receives lines of the output while the process runs.
    pub(in crate::sandbox) progress: Progress,
    /// Limits of the process.
    pub(in crate::sandbox) limits: ExecLimits,
    /// A folder on the disk whose free space is checked.
    pub(in crate::sandbox) disk: PathBuf,
    /// Marks the control words of the process's shell.
    pub(in crate::sandbox) nonce: String,
    /// Folders of the host that output shows under other names.
    pub(in crate::sandbox) shown: Vec<Shown>,
    /// How the process's descendants are found and ended.
    pub(in crate::sandbox) kind: Kind,
    /// Where to report that the command's mounts are made. The command begins when it is let
    /// ([`AtGate::open`]). `None`: it begins at once.
    pub(in crate::sandbox) gate: Option<mpsc::Sender<AtGate>>,
}

/// A command whose mounts are made, before it begins.
#[derive(Debug)]
pub(in crate::sandbox) struct AtGate {
    /// A process in the mount namespace of the command.
    pub(in crate::sandbox) pid: i32,
    /// Standard input of the shell or the supervisor that waits.
    pub(in crate::sandbox) waits: OwnedFd,
}

/// What a command that waits at its gate reads.
pub(in crate::sandbox) const BEGIN: u8 = b'b';
pub(in crate::sandbox) const REFUSE: u8 = b'r';

impl AtGate {
    /// Lets the command begin.
    pub(in crate::sandbox) fn open(self) {
        let _ = rustix::io::write(&self.waits, &[BEGIN]);
    }

    pub(in crate::sandbox) fn refuse(self) {
        let _ = rustix::io::write(&self.waits, &[REFUSE]);
    }
}

/// A folder of the host and its name in output.
#[derive(Debug, Clone)]
pub(in crate::sandbox) struct Shown {
    pub(in crate::sandbox) folder: PathBuf,
    pub(in crate::sandbox) name: &'static str,
}

/// How the processes of a job are found and ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::sandbox) enum Kind {
    /// The child is bubblewrap. Its child is the first process of a PID namespace, which ends with
    /// that process.
    Namespace,
    /// The child is a supervisor. It adopts all orphans below it, and ends them when its standard
    /// input closes.
    Supervised,
    /// A plain process group. Strays carry this mark in their environment.
    Group(String),
}

/// How a mount namespace is created. The helper is started inside the namespace, since safe Rust
/// cannot enter one without a fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::sandbox) enum Namespace {
    /// By a superuser, who needs no user namespace.
    Mount,
    /// As an unprivileged user, through a user namespace in which mounting is allowed.
    UserAndMount,
}

impl Namespace {
    /// The variant that this process's user can use.
    pub(in crate::sandbox) fn of_this_user() -> Self {
        if rustix::process::geteuid().is_root() {
            Self::Mount
        } else {
            Self::UserAndMount
        }
    }

    /// Arguments of util-linux's `unshare`. With private propagation, mounts on one side do not
    /// appear on the other.
    pub(in crate::sandbox) fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Mount => &["--mount", "--propagation", "private", "--"],
            Self::UserAndMount => &[
                "--user",
                "--map-current-user",
                "--keep-caps",
                "--mount",
                "--propagation",
                "private",
                "--",
            ],
        }
    }
}

/// Describes a process to start with open standard streams.
#[derive(Debug, Clone)]
pub struct PipedLaunch {
    /// Program and arguments. The program is looked up in the `PATH` of `environment`.
    pub argv: Vec<OsString>,
    /// The whole environment; nothing is inherited.
    pub environment: Vec<(OsString, OsString)>,
    /// Folder in which the process starts.
    pub folder: PathBuf,
}

/// A launch with the descriptor that the process finds at [`CARRIED`].
pub(super) struct CarryingLaunch {
    pub(super) launch: PipedLaunch,
    pub(super) carried: Option<Carried>,
}

/// The streams that the thread returns once a process runs.
pub(super) struct Streams {
    pub(super) stdin: std::process::ChildStdin,
    pub(super) stdout: std::process::ChildStdout,
    pub(super) stderr: std::process::ChildStderr,
}

pub(super) type StreamsReply = oneshot::Sender<Result<Streams, SandboxError>>;

pub(super) type Reply = oneshot::Sender<Result<ExecResult, SandboxError>>;

pub(super) enum Order {
    /// Starts a process. A command has a place; a probe has none.
    Start {
        id: u64,
        launch: Box<Launch>,
        reply: Reply,
        place: Option<Place>,
    },
    Kill {
        id: u64,
    },
    Pipe {
        id: u64,
        launch: Box<CarryingLaunch>,
        reply: StreamsReply,
        ended: oneshot::Sender<Option<i32>>,
        permit: OwnedSemaphorePermit,
    },
    EndPiped {
        id: u64,
        grace: Duration,
    },
}
