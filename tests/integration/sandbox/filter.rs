//! What only the seccomp filter closes, and what it must leave to ordinary programs.

use std::{os::unix::net::UnixListener, process::Command};

use super::{probe::compile, *};

/// Set in a host whose session has a keyring; the value is the name of the key in it.
const SESSION: &str = "CALLBOARD_TEST_SESSION";

#[tokio::test]
async fn a_command_finds_no_key_of_the_hosts_session_and_leaves_none_to_the_next() {
    let test = "a_command_finds_no_key_of_the_hosts_session_and_leaves_none_to_the_next";
    let Ok(key) = std::env::var(SESSION) else {
        return in_a_session(test);
    };
    each(SandboxFixture::both(test), async |fixture| {
        let probe = fixture.path("probe");
        compile(&probe);
        let left = format!("{key}-left");
        let by_the_host = |key: &str| {
            let output = Command::new(&probe)
                .args(["--key-read", key])
                .output()
                .unwrap();
            String::from_utf8(output.stdout).unwrap()
        };

        let found = fixture.run(&format!("./probe --key-read {key}")).await;
        let leaves = fixture.run(&format!("./probe --key-add {left}")).await;
        let next = fixture.run(&format!("./probe --key-read {left}")).await;

        assert_eq!(
            by_the_host(&key),
            "ok LEFT-BEHIND\n",
            "the host itself finds its own"
        );
        assert_eq!(
            [&found, &leaves, &next].map(|result| result.stdout.as_str()),
            ["refused 1\n"; 3],
            "{}",
            fixture.kind()
        );
        assert_eq!(
            by_the_host(&left),
            format!("refused {}\n", rustix::io::Errno::NOKEY.raw_os_error()),
            "{}",
            fixture.kind()
        );
    })
    .await;
}

/// Keyrings in `/proc/keys` with a description: their numbers, and the users of each.
fn keyrings(description: &str) -> Vec<(String, u32)> {
    let rows = fs::read_to_string("/proc/keys").unwrap();
    let fields = rows
        .lines()
        .map(|row| row.split_ascii_whitespace().collect::<Vec<_>>());
    let of = fields.filter(|fields| {
        fields.get(7) == Some(&"keyring") && fields.get(8) == Some(&&*format!("{description}:"))
    });
    of.map(|fields| (fields[0].to_owned(), fields[2].parse().unwrap()))
        .collect()
}

#[tokio::test]
async fn each_command_has_a_session_keyring_of_its_own_and_the_hosts_is_used_by_none() {
    /// Each process of a command counts as a user of its session's keyring.
    const PROCESSES: u32 = 30;
    let test = "each_command_has_a_session_keyring_of_its_own_and_the_hosts_is_used_by_none";
    let Ok(key) = std::env::var(SESSION) else {
        return in_a_session(test);
    };
    let ways = [ControlGroups::Auto, ControlGroups::Off];
    let boundaries = [
        Boundary::Bubblewrap,
        Boundary::Landlock,
        Boundary::LandlockAlone,
    ];
    let pairs = boundaries
        .into_iter()
        .flat_map(|only| ways.into_iter().map(move |groups| (only, groups)));
    let fixtures = pairs.filter_map(|(only, groups)| {
        SandboxFixture::counted(test, only, ExecLimits::default(), groups)
    });
    let mut wrong = Vec::new();
    for fixture in fixtures.chain([SandboxFixture::local()]) {
        let by_host = || keyrings(&key).first().map_or(0, |(_, users)| *users);
        let of_commands = || {
            keyrings("_ses")
                .into_iter()
                .filter(|(_, users)| *users >= PROCESSES)
                .map(|(number, _)| number)
        };
        // A look at the list misses a key while other processes' keys come and go.
        let looks = || (0..100).map(|_| by_host()).find(|users| *users > 0);
        let before = looks().unwrap_or_default();
        let known = of_commands().collect::<Vec<_>>();
        assert!(before > 0, "this process itself uses it");

        let command = |name| {
            format!(
                "for n in {{1..{PROCESSES}}}; do sleep 30 & done; touch {name}; until [ -e stop ]; do sleep 0.02; done; kill $(jobs -p)"
            )
        };
        let one = command("one");
        let two = command("two");
        let observe = async {
            let begun = || fixture.path("one").exists() && fixture.path("two").exists();
            wait_until("both commands", Duration::from_secs(20), begun).await;
            let seen = (
                by_host().saturating_sub(before),
                of_commands()
                    .filter(|number| !known.contains(number))
                    .count(),
            );
            fs::write(fixture.path("stop"), "").unwrap();
            seen
        };
        let (_, _, (users, own)) = tokio::join!(fixture.run(&one), fixture.run(&two), observe);

        if users >= PROCESSES || own < 2 {
            wrong.push(format!(
                "{}: {users} more users of the host's keyring, {own} keyrings of commands",
                fixture.kind()
            ));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[tokio::test]
async fn a_command_without_a_boundary_finds_no_key_of_the_hosts_session_either() {
    let test = "a_command_without_a_boundary_finds_no_key_of_the_hosts_session_either";
    let Ok(key) = std::env::var(SESSION) else {
        return in_a_session(test);
    };
    let fixture = SandboxFixture::local();
    compile(&fixture.path("probe"));
    let by_the_host = Command::new(fixture.path("probe"))
        .args(["--key-read", &key])
        .output()
        .unwrap();

    let result = fixture.run(&format!("./probe --key-read {key}")).await;

    assert_eq!(
        by_the_host.stdout, b"ok LEFT-BEHIND\n",
        "the host itself finds its own"
    );
    assert_eq!(
        result.stdout,
        format!("refused {}\n", rustix::io::Errno::NOKEY.raw_os_error())
    );
}

/// Runs a test of this file in a process whose session has a keyring with a key.
fn in_a_session(test: &str) {
    let folder = tempfile::tempdir().unwrap();
    let probe = folder.path().join("probe");
    compile(&probe);
    let key = format!("callboard-host-key-{}", std::process::id());
    let mut host = Command::new(probe);
    host.args(["--session", &key])
        .arg(std::env::current_exe().unwrap());
    let output = host
        .args([
            "--exact",
            &format!("sandbox::filter::{test}"),
            "--nocapture",
        ])
        .env(SESSION, &key)
        .output()
        .unwrap();

    std::io::stderr().write_all(&output.stderr).unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}"
    );
}

#[tokio::test]
async fn a_command_connects_to_no_socket_that_lies_in_its_workspace() {
    each(SandboxFixture::both("a_command_connects_to_no_socket_that_lies_in_its_workspace"), async |fixture| {
        compile(&fixture.path("probe"));
        fs::create_dir_all(fixture.path(".git")).unwrap();
        let listeners = ["server", ".git/fsmonitor--daemon.ipc"].map(|name| UnixListener::bind(fixture.path(name)).unwrap());
        listeners.iter().for_each(|listener| listener.set_nonblocking(true).unwrap());
        let by_the_host = Command::new(fixture.path("probe")).args(["--connect", "server"]).current_dir(fixture.path("")).output().unwrap();
        let heard = listeners[0].accept().is_ok();

        let result =
            fixture.run("for socket in server .git/fsmonitor--daemon.ipc /workspace/server; do ./probe --connect $socket; done").await;

        assert_eq!((by_the_host.stdout.as_slice(), heard), (b"ok \n".as_slice(), true), "outside it can be reached");
        assert_eq!(result.stdout, "refused 1\n".repeat(3), "{}: {}", fixture.kind(), result.stderr);
        assert!(listeners.iter().all(|listener| listener.accept().is_err()), "{}", fixture.kind());
    })
    .await;
}

/// Programs that must work if installed: a name, the required program, and the command.
const EVERYDAY: &[(&str, &str, &str)] = &[
    (
        "a pipe",
        "bash",
        "seq 1000 | sort -n | tail -1 | grep -q 1000",
    ),
    (
        "compiling",
        "cc",
        "echo 'int main(void) { return 0; }' > /tmp/m.c && cc -pthread -o /tmp/m /tmp/m.c && /tmp/m",
    ),
    (
        "make",
        "make",
        "printf 'all: a b\\na b:\\n\\t@echo $@\\n' > /tmp/Makefile && make -j2 -C /tmp -s",
    ),
    (
        "git",
        "git",
        "cd /tmp && git init -q g && cd g && git -c user.name=n -c user.email=e@e commit -q --allow-empty -m m && git gc -q && git log -1",
    ),
    (
        "a server on loopback",
        "python3",
        "python3 -c 'import socket as s\nl = s.create_server((\"127.0.0.1\", 0)); c = s.create_connection(l.getsockname()); c.send(b\"x\"); assert l.accept()[0].recv(1) == b\"x\"'",
    ),
    (
        "asyncio and its children",
        "python3",
        "python3 -c 'import asyncio as a\nasync def f():\n p = await a.create_subprocess_exec(\"echo\", \"x\", stdout=-1); assert (await p.communicate())[0] == b\"x\\n\"\na.run(f())'",
    ),
    (
        "processes of python that work together",
        "python3",
        "python3 -c 'import multiprocessing as m\nm.set_start_method(\"fork\")\nwith m.Pool(2) as p: assert p.map(abs, [-1, -2]) == [1, 2]\nfrom multiprocessing.shared_memory import SharedMemory as S\ns = S(create=True, size=10); s.close(); s.unlink()'",
    ),
    (
        "threads of python",
        "python3",
        "python3 -c 'from concurrent.futures import ThreadPoolExecutor as T\nassert sum(T(4).map(abs, range(9))) == 36'",
    ),
    (
        "addresses of node",
        "node",
        "node -e 'require(\"os\").networkInterfaces(); require(\"child_process\").execFileSync(\"true\"); new (require(\"worker_threads\").Worker)(\"0\", {eval: true})'",
    ),
    (
        "a server of node",
        "node",
        "node -e 'const s = require(\"http\").createServer((q, r) => r.end(\"x\")).listen(0, \"127.0.0.1\", () => fetch(\"http://127.0.0.1:\" + s.address().port).then(() => process.exit(0)))'",
    ),
    (
        "tracing a child",
        "strace",
        "strace -o /tmp/t true && grep -q execve /tmp/t",
    ),
    (
        "limits of a child",
        "prlimit",
        "sleep 5 & prlimit --pid $! --nofile=64:64 && renice -n 12 -p $! >/dev/null && kill $!",
    ),
    (
        "watching files",
        "python3",
        "python3 -c 'import ctypes; l = ctypes.CDLL(None); assert l.inotify_add_watch(l.inotify_init1(0), b\"/tmp\", 256) == 1'",
    ),
];

#[tokio::test]
async fn a_command_asks_for_larger_buffers_of_a_socket_and_keeps_the_default() {
    let script = "import socket as s\nfor o in (s.SO_SNDBUF, s.SO_RCVBUF):\n a, b = s.socketpair(); d = a.getsockopt(s.SOL_SOCKET, o)\n \
                  a.setsockopt(s.SOL_SOCKET, o, 4096); b.setsockopt(s.SOL_SOCKET, o, 2 * d); a.setsockopt(s.SOL_SOCKET, s.SO_KEEPALIVE, 1)\n \
                  print(a.getsockopt(s.SOL_SOCKET, o) == b.getsockopt(s.SOL_SOCKET, o) == d, a.getsockopt(s.SOL_SOCKET, s.SO_KEEPALIVE))\n";
    let mut came = Vec::new();
    for fixture in
        SandboxFixture::both("a_command_asks_for_larger_buffers_of_a_socket_and_keeps_the_default")
    {
        fs::write(fixture.path("buffers.py"), script).unwrap();
        came.push((
            fixture.kind(),
            fixture
                .run("if [ -x /usr/bin/python3 ]; then /usr/bin/python3 buffers.py; fi")
                .await
                .stdout,
        ));
    }
    assert!(
        came.iter()
            .all(|(_, said)| said.is_empty() || said == "True 1\nTrue 1\n"),
        "{came:?}"
    );
}

#[tokio::test]
async fn everyday_programs_work_behind_bubblewraps_filter() {
    let Some(fixture) = SandboxFixture::linux("everyday_programs_work_behind_bubblewraps_filter")
    else {
        return;
    };
    let mut script = String::new();
    for (name, needs, runs) in EVERYDAY {
        script.push_str(&format!("if [ -n \"$(PATH=/usr/bin:/bin type -p {needs})\" ]; then ( {runs} ) >/tmp/out 2>&1 || {{ echo '{name}'; cat /tmp/out; }}; fi\n"));
    }
    fs::write(fixture.path("everyday.sh"), script).unwrap();

    let result = fixture.run("bash everyday.sh").await;

    assert_eq!(
        (result.stdout.as_str(), result.status),
        ("", Some(0)),
        "{}",
        result.stderr
    );
}

/// Runs the tests above on a host that may have no control groups and has a small quota of keys.
#[test]
fn the_filter_holds_for_a_host_without_rights() {
    stranger::again_as_stranger(&["sandbox::filter::", "--skip", "without_rights"]);
}
