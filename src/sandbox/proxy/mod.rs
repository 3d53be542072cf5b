//! The proxy between a jail without a network and the hosts that an operator listed. It listens on
//! a Unix socket that is bound into the jail of one command, and ends with the command. A forwarder
//! inside (`linux/helper/forward.rs`) offers a port that programs find through `http_proxy`.
//!
//! # Layout
//! `request` parses a program's request · `gate` checks it, resolves the host and connects ·
//! `tunnel` copies the bytes.
//!
//! Promises, tested in `tests/integration/sandbox/network.rs`:
//! - Only listed hosts are dialed, at the listed port, and only addresses that are public or listed
//!   literally. A name is resolved once; all its addresses are checked, and one of these is dialed.
//! - When the command's result is returned, no connection and no socket of it is left.
//! - Connections, bytes and waiting times are bounded ([`Bounds`]).
//!
//! Limits: TLS is not decrypted, so a listed host can serve other names at its address (domain
//! fronting). A command can send data to any listed host. Plain HTTP is limited to one request per
//! connection, with a body of known length.

mod gate;
mod request;
mod tunnel;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    fs::{self, DirBuilder},
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use callboard_actors::{ids::TenantId, ports::SandboxError};
use parking_lot::Mutex;
use tokio::{
    io::AsyncWriteExt,
    net::{UnixListener, UnixStream},
    sync::Semaphore,
    task::{JoinHandle, JoinSet},
};
use tokio_util::sync::CancellationToken;

use self::{gate::Gate, request::RequestKind, tunnel::Budget};
use super::{
    allow_list::AllowList,
    exec::{ASKED, words::nonce},
};
use crate::web::{SystemResolver, for_tenant};

/// Limits of the connections of commands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Concurrent connections of all commands of a sandbox. Build tools open a dozen or two; beyond
    /// the limit the answer is 503.
    connections: usize,
    /// Longest wait for the head of a request.
    head: Duration,
    /// Longest time to resolve and connect.
    dial: Duration,
    /// Longest silence in both directions. Servers that work for a minute before they answer are
    /// common.
    idle: Duration,
    /// Longest lifetime of a connection: that of the longest command.
    total: Duration,
    /// Bytes of one command, in both directions and over all connections; enough for a toolchain.
    bytes: u64,
}

const BOUNDS: Bounds = Bounds {
    connections: 64,
    head: Duration::from_secs(10),
    dial: Duration::from_secs(15),
    idle: Duration::from_secs(120),
    total: super::policy::EXEC_TIME_MAX,
    bytes: 4 * 1024 * 1024 * 1024,
};

/// Distinct refusals that are reported after a command.
const REFUSALS_MAX: usize = 8;

const REPLACED: &str = "this program's file has been moved or replaced since it was started";

/// Device and inode number of a file.
fn file_of(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// The proxy of one sandbox. Opens a [`CommandProxy`] for each command.
#[derive(Debug)]
pub(super) struct Proxy {
    gate: Arc<Gate>,
    permits: Arc<Semaphore>,
    bounds: Bounds,
    /// Path of the program that becomes the forwarder, and the identity of its file at the start.
    helper: PathBuf,
    helper_file: (u64, u64),
    /// Folder in which the folders of sockets are created.
    place: PathBuf,
}

impl Proxy {
    /// Creates the proxy of a sandbox over the workspace `root`. Neither the helper nor the socket
    /// may lie where a command could replace them with a link, since both are bound into the next
    /// jail by name.
    ///
    /// # Errors
    /// The reason why the list cannot be served here.
    pub(super) fn new(
        allow: &AllowList,
        helper: Option<PathBuf>,
        root: &Path,
    ) -> Result<Self, String> {
        if helper.is_none() && std::env::var_os(ASKED).is_some() {
            return Err("this program's main does not ask jail_main_if_asked first".to_owned());
        }
        let helper = helper
            .map_or_else(std::env::current_exe, Ok)
            .and_then(fs::canonicalize);
        let helper = helper.map_err(|_| REPLACED)?;
        let helper_file = file_of(&helper).ok_or(REPLACED)?;
        let place = fs::canonicalize(std::env::temp_dir())
            .map_err(|_| "there is no folder for temporary files")?;
        if helper.starts_with(root) {
            return Err(
                "this program's file lies in the workspace, where commands could replace it"
                    .to_owned(),
            );
        }
        if place.starts_with(root) {
            return Err("the folder for temporary files lies in the workspace, where commands could reach it".to_owned());
        }
        let resolver = allow
            .resolver
            .clone()
            .unwrap_or_else(|| Arc::new(SystemResolver));
        let gate = Arc::new(Gate::new(allow.hosts.clone(), resolver));
        Ok(Self {
            gate,
            permits: Arc::new(Semaphore::new(BOUNDS.connections)),
            bounds: BOUNDS,
            helper,
            helper_file,
            place,
        })
    }

    /// Path of the helper.
    ///
    /// # Errors
    /// When another file has replaced the helper: a new version may not understand the arguments of
    /// this one.
    pub(super) fn helper(&self) -> Result<&Path, SandboxError> {
        if file_of(&self.helper) != Some(self.helper_file) {
            return Err(SandboxError::Failed(format!(
                "{REPLACED}: commands that may reach hosts need a restart"
            )));
        }
        Ok(&self.helper)
    }

    /// Starts to listen for one command, which is this tenant's. Needs a runtime with I/O enabled.
    pub(super) fn open(&self, tenant: Option<TenantId>) -> Result<CommandProxy, SandboxError> {
        let failed = |error: std::io::Error| {
            SandboxError::Failed(format!("no socket for the network: {}", error.kind()))
        };
        let folder =
            Folder::make(self.place.join(format!("callboard-net-{}", nonce()?))).map_err(failed)?;
        let socket = folder.0.join("proxy");
        let listener = UnixListener::bind(&socket).map_err(failed)?;
        let end = CancellationToken::new();
        let refusals = Arc::default();
        let budget = Arc::new(Budget::new(self.bounds.bytes));
        let context = Context {
            gate: self.gate.clone(),
            tenant,
            refusals: Arc::clone(&refusals),
            budget,
            bounds: self.bounds,
        };
        let loops = tokio::spawn(accept(listener, self.permits.clone(), context, end.clone()));
        Ok(CommandProxy {
            socket,
            end,
            loops,
            refusals,
            _folder: folder,
        })
    }
}

/// A private folder, removed with its contents on drop.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    fn make(path: PathBuf) -> std::io::Result<Self> {
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

type Refusals = Arc<Mutex<BTreeSet<String>>>;

/// The proxy of one command. A drop ends all its connections in the background;
/// [`CommandProxy::close`] waits until they have ended.
#[derive(Debug)]
pub(super) struct CommandProxy {
    socket: PathBuf,
    end: CancellationToken,
    loops: JoinHandle<()>,
    refusals: Refusals,
    _folder: Folder,
}

impl CommandProxy {
    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Ends every connection. Returns a line for each refused request.
    pub(super) async fn close(mut self) -> Vec<String> {
        self.end.cancel();
        let _ = (&mut self.loops).await;
        let refusals = self.refusals.lock();
        refusals
            .iter()
            .map(|line| format!("[network: {line}]\n"))
            .collect()
    }
}

impl Drop for CommandProxy {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

async fn accept(
    listener: UnixListener,
    permits: Arc<Semaphore>,
    context: Context,
    end: CancellationToken,
) {
    // A connection holds its permit until its task ends. All commands of a sandbox share the permits,
    // so the loop never waits for one: a connection without a permit is refused at once. On `end`,
    // `shutdown` aborts the open connections and waits for them.
    let mut open = JoinSet::new();
    loop {
        tokio::select! {
            () = end.cancelled() => break,
            Some(_) = open.join_next(), if !open.is_empty() => {}
            accepted = listener.accept() => match (accepted, permits.clone().try_acquire_owned()) {
                (Ok((client, _)), Ok(permit)) => {
                    let context = context.clone();
                    open.spawn(async move {
                        context.serve(client).await;
                        drop(permit);
                    });
                }
                // Never wait for a client that does not read.
                (Ok((client, _)), Err(_)) => drop(client.try_write(Refusal::crowded().answer().as_bytes())),
                (Err(_), _) => tokio::time::sleep(Duration::from_millis(50)).await,
            },
        }
    }
    open.shutdown().await;
}

/// Why a request was refused, in the form that the program reads.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Refusal {
    /// HTTP status code and reason.
    status: &'static str,
    /// Explanation, in one line.
    text: String,
}

impl Refusal {
    fn new(status: &'static str, text: impl Into<String>) -> Self {
        Self {
            status,
            text: text.into(),
        }
    }

    fn bad(text: &'static str) -> Self {
        Self::new(
            "400 Bad Request",
            format!("the sandbox's proxy cannot read this request: {text}"),
        )
    }

    fn crowded() -> Self {
        Self::new(
            "503 Service Unavailable",
            "too many connections at once from this sandbox",
        )
    }

    fn answer(&self) -> String {
        let Self { status, text } = self;
        let bytes = text.len() + 1;
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {bytes}\r\nConnection: close\r\n\r\n{text}\n"
        )
    }
}

/// State shared by all connections of a command.
#[derive(Debug, Clone)]
struct Context {
    gate: Arc<Gate>,
    /// Whose look-ups of names they are.
    tenant: Option<TenantId>,
    refusals: Refusals,
    budget: Arc<Budget>,
    bounds: Bounds,
}

impl Context {
    async fn serve(&self, mut client: UnixStream) {
        let _ = tokio::time::timeout(self.bounds.total, async {
            if let Err(refusal) = self.carry(&mut client).await {
                self.report(&refusal.text);
                // A client that does not read its answer must not hold the permit.
                let _ = tokio::time::timeout(
                    self.bounds.head,
                    client.write_all(refusal.answer().as_bytes()),
                )
                .await;
            }
        })
        .await;
    }

    async fn carry(&self, client: &mut UnixStream) -> Result<(), Refusal> {
        let read = tokio::time::timeout(self.bounds.head, request::read(client)).await;
        let Some((request, first)) =
            read.map_err(|_| Refusal::new("408 Request Timeout", "no request came in time"))??
        else {
            return Ok(());
        };
        let dial = self.gate.dial(&request.host, request.port);
        let dialed = tokio::time::timeout(self.bounds.dial, async {
            match self.tenant.clone() {
                Some(tenant) => for_tenant(tenant, dial).await,
                None => dial.await,
            }
        })
        .await;
        let late = |_| {
            Refusal::new(
                "504 Gateway Timeout",
                format!("{}:{} did not answer in time", request.host, request.port),
            )
        };
        let server = dialed.map_err(late)??;
        tracing::debug!(host = %request.host, port = request.port, "a command in the sandbox is connected");
        let carried = match request.kind {
            RequestKind::Tunnel => {
                let _ = client
                    .write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    .await;
                tunnel::both(client, server, &first, self.bounds.idle, &self.budget).await
            }
            RequestKind::Plain { head, body_bytes } => {
                tunnel::exchange(
                    client,
                    server,
                    &head,
                    &first,
                    body_bytes,
                    self.bounds.idle,
                    &self.budget,
                )
                .await
            }
        };
        if carried.is_err() {
            self.report(&format!(
                "this command has used up its {} MiB of network traffic",
                self.bounds.bytes >> 20
            ));
        }
        Ok(())
    }

    fn report(&self, line: &str) {
        let mut refusals = self.refusals.lock();
        if refusals.len() < REFUSALS_MAX {
            refusals.insert(line.to_owned());
        }
    }
}
