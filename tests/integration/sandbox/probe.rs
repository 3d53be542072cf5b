//! Tries everything that a command should not be able to do. `tests/probe/probe.c` makes the
//! attempts, and a list for each boundary names those that may succeed. Runs as this user and, if
//! this is the superuser, also as an unprivileged one.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::ErrorKind,
    net::{TcpListener, UdpSocket},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram, UnixListener},
    },
    process::Command,
};

use super::{stranger::again_as_stranger, *};

/// Compiles the probe into a folder.
pub(super) fn compile(into: &Path) {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/probe/probe.c");
    // An unprivileged user may be unable to read the project's folder; the variable names a copy.
    let source = std::env::var("CALLBOARD_TEST_PROBE").unwrap_or_else(|_| source.to_owned());
    let compiled = Command::new("cc")
        .args(["-O1", "-Wall", "-Werror", "-o"])
        .arg(into)
        .arg(source)
        .output()
        .unwrap();
    assert!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
}

/// Sockets on which the host listens. No connection may arrive.
struct Listeners {
    tcp: TcpListener,
    udp: UdpSocket,
    unix: [UnixListener; 3],
    datagrams: UnixDatagram,
    name: String,
}

impl Listeners {
    fn new(workspace: &Path, outside: &Path) -> Self {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let name = format!("callboard-probe-{}", tcp.local_addr().unwrap().port());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let unix = [
            UnixListener::bind(workspace.join("listener")).unwrap(),
            UnixListener::bind(outside.join("listener")).unwrap(),
            UnixListener::bind_addr(&address).unwrap(),
        ];
        let listeners = Self {
            tcp,
            udp: UdpSocket::bind("127.0.0.1:0").unwrap(),
            unix,
            datagrams: UnixDatagram::bind(workspace.join("datagrams")).unwrap(),
            name,
        };
        listeners.tcp.set_nonblocking(true).unwrap();
        listeners.udp.set_nonblocking(true).unwrap();
        listeners.datagrams.set_nonblocking(true).unwrap();
        listeners
            .unix
            .iter()
            .for_each(|unix| unix.set_nonblocking(true).unwrap());
        listeners
    }

    fn are_untouched(&self) -> bool {
        let blocks = |error: std::io::Error| error.kind() == ErrorKind::WouldBlock;
        self.tcp.accept().is_err_and(blocks)
            && self.udp.recv(&mut [0]).is_err_and(blocks)
            && self.datagrams.recv(&mut [0]).is_err_and(blocks)
            && self
                .unix
                .iter()
                .all(|unix| unix.accept().is_err_and(blocks))
    }
}

/// Attempts that may succeed for this user: one per line, conditions after `@` that must all hold,
/// comments after `#`.
fn may_succeed(list: &'static str, only: Boundary) -> BTreeSet<&'static str> {
    let user = if rustix::process::geteuid().is_root() {
        "root"
    } else {
        "user"
    };
    let holds = |mark: &str| {
        mark.trim() == user || (mark.trim() == "covered" && only != Boundary::LandlockAlone)
    };
    let lines = list
        .lines()
        .map(|line| line.split('#').next().unwrap().split('@'));
    let mine = lines.filter_map(|mut parts| parts.next().filter(|_| parts.all(holds)));
    mine.map(str::trim)
        .filter(|name| !name.is_empty())
        .collect()
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

async fn probe(test: &str, only: Boundary, list: &'static str) {
    let Some(fixture) = SandboxFixture::of(test, only, ExecLimits::default()) else {
        return;
    };
    let outside = fixture.folder.path().join("beyond");
    for name in [
        "file",
        "spare",
        "tenant/file",
        "home/.ssh/id_rsa",
        "callboard.db",
    ] {
        write(&outside.join(name), "not for commands");
    }
    write(&outside.join("script"), "#!/bin/sh\n");
    fs::set_permissions(
        outside.join("script"),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    fs::create_dir(outside.join("empty")).unwrap();
    for name in [
        ".git/config",
        ".git/hooks/there",
        "callboard.toml",
        ".env",
        "w/README",
    ] {
        write(&fixture.path(name), "the user's");
    }
    fs::hard_link(fixture.path(".git/config"), fixture.path("twin")).unwrap();
    let listeners = Listeners::new(&fixture.path(""), &outside);
    compile(&fixture.path("w/probe"));

    let tcp = listeners.tcp.local_addr().unwrap().port();
    let udp = listeners.udp.local_addr().unwrap().port();
    let command = format!(
        "cd w && ./probe {} {} {tcp} {udp} {}",
        outside.display(),
        std::process::id(),
        listeners.name
    );
    let exec = Exec {
        output_bytes_max: 1 << 20,
        timeout: Duration::from_secs(60),
        ..Exec::new(command)
    };
    let result = fixture
        .sandbox
        .exec(exec, CancellationToken::new())
        .await
        .unwrap();

    assert_eq!(
        (result.status, result.bytes_left_out),
        (Some(0), 0),
        "{}",
        result.stderr
    );
    let tried: BTreeMap<&str, &str> = result
        .stdout
        .lines()
        .map(|line| line.rsplit_once(": ").unwrap())
        .collect();
    let user = rustix::process::geteuid();
    let expected = may_succeed(list, only);
    assert!(
        tried.len() >= 300
            && tried
                .values()
                .all(|came| *came == "ok" || came.starts_with("refused")),
        "{}",
        result.stdout
    );
    assert_eq!(
        expected.iter().find(|name| !tried.contains_key(*name)),
        None,
        "{test}: a listed probe does not exist"
    );
    let succeeded: BTreeSet<&str> = tried
        .iter()
        .filter(|(_, came)| **came == "ok")
        .map(|(name, _)| *name)
        .collect();
    let unexpected: Vec<_> = succeeded.difference(&expected).collect();
    let refused = tried.len() - succeeded.len();
    let left = expected.difference(&succeeded).collect::<Vec<_>>();
    writeln!(
        &mut std::io::stderr(),
        "note: {test}, user {}: {} probes, {refused} refused; listed and refused: {left:?}",
        user.as_raw(),
        tried.len()
    )
    .unwrap();
    assert!(
        unexpected.is_empty(),
        "{test}: a command may do what it should not: {unexpected:?}"
    );
    assert!(
        listeners.are_untouched(),
        "{test}: a command has reached a listener of the host"
    );
}

#[tokio::test]
async fn of_everything_that_is_probed_bubblewrap_lets_succeed_what_is_listed() {
    let list = include_str!("../../probe/bubblewrap.txt");
    probe(
        "of_everything_that_is_probed_bubblewrap_lets_succeed_what_is_listed",
        Boundary::Bubblewrap,
        list,
    )
    .await;
    again_as_stranger(&[
        "--exact",
        "sandbox::probe::of_everything_that_is_probed_bubblewrap_lets_succeed_what_is_listed",
    ]);
}

#[tokio::test]
async fn of_everything_that_is_probed_landlock_lets_succeed_what_is_listed() {
    let list = include_str!("../../probe/landlock.txt");
    probe(
        "of_everything_that_is_probed_landlock_lets_succeed_what_is_listed",
        Boundary::Landlock,
        list,
    )
    .await;
    again_as_stranger(&[
        "--exact",
        "sandbox::probe::of_everything_that_is_probed_landlock_lets_succeed_what_is_listed",
    ]);
}

#[tokio::test]
async fn of_everything_that_is_probed_landlock_without_a_mount_namespace_lets_succeed_what_is_listed()
 {
    let test = "of_everything_that_is_probed_landlock_without_a_mount_namespace_lets_succeed_what_is_listed";
    probe(
        test,
        Boundary::LandlockAlone,
        include_str!("../../probe/landlock.txt"),
    )
    .await;
    again_as_stranger(&["--exact", &format!("sandbox::probe::{test}")]);
}
