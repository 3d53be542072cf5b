//! What each restriction of the Landlock helper blocks, tried one by one with real programs.

use std::os::unix::{fs::PermissionsExt, net::UnixListener};

use super::*;

#[tokio::test]
async fn landlock_shows_the_workspace_and_opens_nothing_else() {
    each(SandboxFixture::landlocks("landlock_shows_the_workspace_and_opens_nothing_else"), async |fixture| {
        fs::write(fixture.path("inside.txt"), "inside\n").unwrap();
        let outside = fixture.folder.path();

        let inside = fixture.run("cat inside.txt; pwd; mkdir -p a/b && mv a c && ln -s c d && rm -r c && echo made > made.txt; echo t > $TMPDIR/t && cat $TMPDIR/t").await;
        let beyond = fixture
        .run(&format!(
            "cd {0}; cat outside.txt; ls .; echo x > new; echo x >> outside.txt; rm outside.txt; mv outside.txt workspace/got; ln outside.txt workspace/hard; \
             ln -s {0}/outside.txt workspace/soft; cat workspace/soft; mkdir sub; mkfifo pipe; truncate -s 0 outside.txt; cat /etc/shadow; ls /root /proc /sys /tmp; \
             cat /proc/1/environ /proc/$PPID/environ /proc/$PPID/cmdline /proc/$PPID/maps; echo x > /proc/sys/kernel/hostname; echo x > /dev/sda; \
             setpriv --reuid 0 id -u; touch {0}/outside.txt; touch -d yesterday outside.txt; chmod 777 {0} {0}/outside.txt; setfattr -n user.x -v y outside.txt",
            outside.display()
        ))
        .await;

        assert_eq!((inside.stdout.as_str(), inside.stderr.as_str()), ("inside\n$WORKSPACE\nt\n", ""));
        assert_eq!(beyond.stdout.replace("0\n", ""), "", "{}", beyond.stderr);
        let mut names: Vec<_> = fs::read_dir(outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["outside.txt", "workspace"]);
        assert_eq!(fs::read_to_string(outside.join("outside.txt")).unwrap(), "outside");
        let age = fs::metadata(outside.join("outside.txt")).unwrap().modified().unwrap().elapsed().unwrap();
        assert!(age < Duration::from_secs(600) && !fixture.path("got").exists() && !fixture.path("hard").exists());
        assert!(!beyond.stderr.contains(outside.join("workspace").to_str().unwrap()), "the workspace has a name: {}", beyond.stderr);
    })
    .await;
}

#[tokio::test]
async fn landlock_changes_no_mode_owner_or_attribute_outside() {
    each(SandboxFixture::landlocks("landlock_changes_no_mode_owner_or_attribute_outside"), async |fixture| {
        let outside = fixture.folder.path().join("outside.txt");
        fs::set_permissions(&outside, fs::Permissions::from_mode(0o640)).unwrap();

        let result = fixture
            .run(&format!(
                "for f in {0} /usr/bin/env; do chmod 777 $f; chown 1 $f; chgrp 1 $f; setfattr -n user.x -v y $f; chattr +d $f; done",
                outside.display()
            ))
            .await;
        let open = fixture
        .run("python3 -c 'import os\nfor n in (\"fchmod\", \"fchown\"):\n f = os.open(\"/usr/bin/env\", os.O_RDONLY)\n try: os.fchmod(f, 0o777) if n == \"fchmod\" else os.fchown(f, 1, 1); print(\"CHANGED\")\n except OSError: pass'")
        .await;

        let stat = fs::metadata(&outside).unwrap();
        assert_eq!(
            (stat.permissions().mode() & 0o7777, std::os::unix::fs::MetadataExt::uid(&stat)),
            (0o640, rustix::process::geteuid().as_raw())
        );
        assert_eq!(fs::metadata("/usr/bin/env").unwrap().permissions().mode() & 0o7777, 0o755);
        assert_eq!((result.stdout.as_str(), open.stdout.as_str()), ("", ""), "{}", open.stderr);
    })
    .await;
}

/// Opens every kind of socket and prints which succeed.
const SOCKETS: &str = "import socket as s, ctypes
kinds = {'tcp': (2, 1), 'tcp6': (10, 1), 'udp': (2, 2), 'udp6': (10, 2), 'icmp': (2, 3, 1), 'ping': (2, 2, 1), 'raw': (2, 3, 255), 'packet': (17, 3, 768), 'netlink': (16, 3, 0), 'unix': (1, 1), 'datagram': (1, 2), 'vsock': (40, 1), 'alg': (38, 5), 'mptcp': (2, 1, 262)}
for name, kind in kinds.items():
    try: s.socket(*kind); print('OPEN', name)
    except OSError as e: assert e.errno == 1, (name, e)
for kind in (2, 3):
    try: s.socketpair(1, kind); print('OPEN pair', kind)
    except OSError as e: assert e.errno == 1, e
a, b = s.socketpair(); a.send(b'x'); assert b.recv(1) == b'x'
libc = ctypes.CDLL(None, use_errno=True)
import platform
calls = {'ptrace': 101, 'mount': 165, 'unshare': 272, 'keyctl': 250, 'bpf': 321, 'perf': 298, 'reboot': 169, 'handle': 304, 'vm_readv': 310, 'uring': 425, 'setns': 308, 'chroot': 161, 'shmget': 29, 'x32 socket': 0x40000029, 'umount2': 166, 'pivot_root': 155, 'open_tree': 428, 'move_mount': 429, 'mount_setattr': 442, 'setxattrat': 463, 'clone3': 435} if platform.machine() == 'x86_64' else {}
for name, call in calls.items():
    ctypes.set_errno(0)
    if libc.syscall(call, 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() not in (1, 38): print('ALLOWED', name, ctypes.get_errno())
if calls and libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0) != -1: print('NEW NAMESPACE')
print('tried')
";

#[tokio::test]
async fn landlock_has_no_socket_but_a_pair_and_no_call_of_an_administrator() {
    each(SandboxFixture::landlocks("landlock_has_no_socket_but_a_pair_and_no_call_of_an_administrator"), async |fixture| {
        if !Path::new("/usr/bin/python3").exists() {
            writeln!(&mut std::io::stderr(), "SKIPPED: landlock_has_no_socket_but_a_pair_and_no_call_of_an_administrator: no python3")
                .unwrap();
            return;
        }
        fs::write(fixture.path("sockets.py"), SOCKETS).unwrap();

        let result = fixture.run("python3 sockets.py").await;

        assert_eq!((result.stdout.as_str(), result.stderr.as_str()), ("tried\n", ""));
    })
    .await;
}

#[tokio::test]
async fn landlock_reaches_no_listener_of_this_machine() {
    let Some(fixture) = SandboxFixture::landlock("landlock_reaches_no_listener_of_this_machine")
    else {
        return;
    };
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let unix = UnixListener::bind(fixture.path("listener")).unwrap();
    for each in [
        tcp.set_nonblocking(true),
        udp.set_nonblocking(true),
        unix.set_nonblocking(true),
    ] {
        each.unwrap();
    }
    let tcp_port = tcp.local_addr().unwrap().port();
    let udp_port = udp.local_addr().unwrap().port();

    let result = fixture
        .run(&format!(
            "(exec 3<>/dev/tcp/127.0.0.1/{tcp_port}) && echo TCP; (echo x >/dev/udp/127.0.0.1/{udp_port}) && echo UDP; \
             python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect(\"listener\")' && echo UNIX; cat listener && echo OPENED"
        ))
        .await;

    assert_eq!(result.stdout, "", "{}", result.stderr);
    assert!(tcp.accept().is_err() && unix.accept().is_err() && udp.recv(&mut [0; 8]).is_err());
}

#[tokio::test]
async fn landlock_keeps_signals_and_limits_away_from_other_processes() {
    each(SandboxFixture::landlocks("landlock_keeps_signals_and_limits_away_from_other_processes"), async |fixture| {
        let own = std::process::id();
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);

        let result = fixture
        .run(&format!(
            "for p in $PPID {own}; do kill -KILL $p && echo KILLED; prlimit --pid $p --nofile=5:5 && echo LIMITED; renice -n 19 -p $p && echo RENICED; \
             taskset -p 1 $p && echo MOVED; done; kill -KILL -1; echo gone"
        ))
        .await;

        assert!(!result.stdout.contains(['K', 'L', 'R', 'M']), "{}", result.stdout);
        assert_eq!(rustix::process::getrlimit(rustix::process::Resource::Nofile), limit);
        assert_eq!(fixture.run("sleep 100 & kill %1; wait; echo own").await.stdout, "own\n", "its own it may end");
    })
    .await;
}

#[tokio::test]
async fn landlock_leaves_no_capability_and_no_way_to_get_one() {
    each(SandboxFixture::landlocks("landlock_leaves_no_capability_and_no_way_to_get_one"), async |fixture| {
        // The shell's own `/proc` entries are not readable inside, so a program asks the kernel.
        let result = fixture.run("python3 -c 'import ctypes; l = ctypes.CDLL(None); print([l.prctl(23, c) for c in (0, 1, 12, 21)], l.prctl(39, 0, 0, 0, 0), l.prctl(21, 0))'; sudo -n true; unshare -r true; su -c true").await;

        // Only a process with the right to drop its capability bounds can do so. An unprivileged
        // one gains nothing from them.
        let bounds = if fixture.kind() == "landlock" || rustix::process::geteuid().is_root() { "[0, 0, 0, 0]" } else { "[1, 1, 1, 1]" };
        assert_eq!(result.stdout, format!("{bounds} 1 2\n"), "{}", result.stderr);
    })
    .await;
}

#[tokio::test]
async fn protected_and_hidden_names_hold_behind_landlock() {
    each(SandboxFixture::landlocks("protected_and_hidden_names_hold_behind_landlock"), async |fixture| {
        for (path, text) in [
            (".git/config", "config"),
            (".git/hooks/old", "hook"),
            (".git/HEAD", "x"),
            (".git/refs/r", "x"),
            ("callboard.toml", "toml"),
            ("sub/.git/config", "nested"),
            (".env", "KEY=needle"),
            ("a/.ssh/id_rsa", "needle"),
            ("src/lib.rs", "x"),
        ] {
            fs::create_dir_all(fixture.path(path).parent().unwrap()).unwrap();
            fs::write(fixture.path(path), text).unwrap();
        }
        fs::hard_link(fixture.path(".git/config"), fixture.path("twin")).unwrap();
        if fixture.kind() == "landlock" {
            fs::create_dir_all(fixture.path("src/deep")).unwrap();
            fs::hard_link(fixture.path(".git/config"), fixture.path("src/deep/twin")).unwrap();
            fs::hard_link(fixture.path(".env"), fixture.path("src/deep/key")).unwrap();
        }

        let result = fixture
        .run(
            "echo evil > .git/config; echo evil > .git/hooks/pre-commit; echo evil >> callboard.toml; rm -f .git/config callboard.toml; mv .git .git2; mv .git/hooks h; \
             mv callboard.toml c; ln -sf /tmp/x callboard.toml; ln .git/config src/hard && echo evil > src/hard; cp /dev/null .git/config; echo evil > sub/.git/config; \
             echo evil > src/evil; mv src/evil .git/config; rm -rf .git/hooks; echo evil > twin; echo evil > src/deep/twin; cat src/deep/key; echo evil > .mcp.json; echo evil > .bashrc; \
             cat .env a/.ssh/id_rsa twin; cp .env copy; mv .env src/e; ln .env src/l; cat src/e src/l; \
             echo y > .git/HEAD; echo y > .git/refs/r2; echo y > src/new; rm src/lib.rs; cat .git/config callboard.toml",
        )
        .await;

        let read = |path: &str| fs::read_to_string(fixture.path(path)).unwrap();
        assert_eq!(
            [read(".git/config"), read(".git/hooks/old"), read("callboard.toml"), read("sub/.git/config"), read(".env")],
            ["config", "hook", "toml", "nested", "KEY=needle"]
        );
        for absent in [".git/hooks/pre-commit", ".mcp.json", ".bashrc", "src/hard", "src/lib.rs", "src/l"] {
            assert!(!fixture.path(absent).exists(), "{absent}");
        }
        assert_eq!([read(".git/HEAD"), read(".git/refs/r2"), read("src/new")], ["y\n", "y\n", "y\n"]);
        // The other hard link, `.git/config` and `callboard.toml`: protected files can be read,
        // files with keys cannot.
        assert_eq!(result.stdout, "configconfigtoml");
    })
    .await;
}

#[tokio::test]
async fn protected_names_that_were_absent_do_not_stay_behind_landlock() {
    each(SandboxFixture::landlocks("protected_names_that_were_absent_do_not_stay_behind_landlock"), async |fixture| {
        let result = fixture
        .run("mkdir -p .git/hooks; echo evil > .git/hooks/pre-commit; echo evil > .mcp.json; ln -s x callboard.toml; echo evil > .bashrc")
        .await;

        for path in [".git/hooks", ".mcp.json", "callboard.toml", ".bashrc"] {
            assert!(fs::symlink_metadata(fixture.path(path)).is_err(), "{path} is there");
            assert!(result.stderr.contains(&format!("[refused: {path} ")), "{path}: {}", result.stderr);
        }
    })
    .await;
}

#[tokio::test]
async fn the_private_folder_goes_with_the_command() {
    each(
        SandboxFixture::landlocks("the_private_folder_goes_with_the_command"),
        async |fixture| {
            let place = fixture.path("place");

            fixture
                .run("echo ${TMPDIR} > place; mkdir -p $TMPDIR/a; touch $TMPDIR/a/b")
                .await;

            let private = fs::read_to_string(place).unwrap();
            assert!(
                private.starts_with(std::env::temp_dir().to_str().unwrap())
                    && !Path::new(private.trim()).exists(),
                "{private}"
            );
        },
    )
    .await;
}

#[tokio::test]
async fn work_is_done_beside_protected_files_where_mounts_cover_them() {
    let Some(fixture) =
        SandboxFixture::covered("work_is_done_beside_protected_files_where_mounts_cover_them")
    else {
        return;
    };
    for (path, text) in [
        (".git/config", ""),
        (".git/HEAD", "ref: refs/heads/main"),
        (".env", "KEY=needle"),
        ("callboard.toml", "x"),
        ("c.txt", "c"),
    ] {
        fs::create_dir_all(fixture.path(path).parent().unwrap()).unwrap();
        fs::write(fixture.path(path), text).unwrap();
    }

    let result = fixture
        .run(
            "echo hi > out.txt && mv out.txt in.txt && sed -i s/hi/ho/ in.txt && cat in.txt && rm c.txt && mkdir -p d/e && chmod 750 in.txt d && \
             touch -d 2001-02-03T04:05:06Z in.txt && stat -c '%a %Y' in.txt && cp -p in.txt copy && ln -s copy link && echo y > .git/HEAD && echo z > .git/new",
        )
        .await;

    assert_eq!(
        (
            result.status,
            result.stdout.as_str(),
            result.stderr.as_str()
        ),
        (Some(0), "ho\n750 981173106\n", "")
    );
    let read = |path: &str| fs::read_to_string(fixture.path(path)).unwrap();
    assert_eq!(
        [read(".env"), read("link"), read(".git/new")],
        ["KEY=needle", "ho\n", "z\n"]
    );
    assert!(!fixture.path("c.txt").exists());
}

#[tokio::test]
async fn parents_of_protected_files_move_with_them_and_what_takes_their_place_does_not_stay() {
    let test = "parents_of_protected_files_move_with_them_and_what_takes_their_place_does_not_stay";
    each(SandboxFixture::linux(test).into_iter().chain(SandboxFixture::covered(test)), async |fixture| {
        for (path, text) in [("a/repo/.git/config", "mine"), ("a/repo/.git/hooks/old", "mine"), ("a/b/.env", "KEY=needle")] {
            fs::create_dir_all(fixture.path(path).parent().unwrap()).unwrap();
            fs::write(fixture.path(path), text).unwrap();
        }

        let result = fixture
            .run(
                "mv a moved; echo evil > moved/repo/.git/config; rm -rf moved/repo/.git/hooks; echo evil > moved/b/.env; cat moved/b/.env; \
                 mkdir -p a/repo/.git/hooks; echo evil > a/repo/.git/config; echo evil > a/repo/.git/hooks/pre-commit",
            )
            .await;

        let read = |path: &str| fs::read_to_string(fixture.path(path)).unwrap();
        assert_eq!(
            [read("moved/repo/.git/config"), read("moved/repo/.git/hooks/old"), read("moved/b/.env")],
            ["mine", "mine", "KEY=needle"],
            "{}: {}",
            fixture.kind(),
            result.stderr
        );
        for path in ["a/repo/.git/config", "a/repo/.git/hooks"] {
            assert!(
                !fixture.path(path).exists() && result.stderr.contains(&format!("[refused: {path} ")),
                "{}: {}",
                fixture.kind(),
                result.stderr
            );
        }
        assert_eq!(result.stdout, "");
    })
    .await;
}

#[tokio::test]
async fn a_protected_link_is_not_replaced_by_a_file() {
    let test = "a_protected_link_is_not_replaced_by_a_file";
    each(
        SandboxFixture::linux(test)
            .into_iter()
            .chain(SandboxFixture::landlocks(test)),
        async |fixture| {
            fs::write(fixture.path("shared.toml"), "mine").unwrap();
            std::os::unix::fs::symlink("shared.toml", fixture.path("callboard.toml")).unwrap();

            let result = fixture
                .run("rm -f callboard.toml; echo evil > callboard.toml")
                .await;

            let now = fs::read_to_string(fixture.path("callboard.toml"));
            assert!(
                now.is_err()
                    || fs::symlink_metadata(fixture.path("callboard.toml"))
                        .unwrap()
                        .is_symlink(),
                "{}: {now:?}",
                fixture.kind()
            );
            assert!(
                now.is_err() == result.stderr.contains("[refused: callboard.toml "),
                "{}: {}",
                fixture.kind(),
                result.stderr
            );
        },
    )
    .await;
}

/// Tries every way to create a file that runs with its owner's rights.
const SET_USER_ID: &str = "import os, ctypes
libc = ctypes.CDLL(None)
open('a', 'w').close()
class How(ctypes.Structure): _fields_ = [('flags', ctypes.c_uint64), ('mode', ctypes.c_uint64), ('resolve', ctypes.c_uint64)]
how = How(0o101, 0o4755, 0)
for what in (
    lambda: os.chmod('a', 0o4755), lambda: os.fchmod(os.open('a', os.O_RDWR), 0o4755), lambda: os.chmod('a', 0o6755, follow_symlinks=True),
    lambda: os.open('b', os.O_CREAT | os.O_WRONLY, 0o4755), lambda: os.mknod('c', 0o104755), lambda: libc.creat(b'd', 0o4755),
    lambda: libc.syscall(437, -100, b'e', ctypes.byref(how), ctypes.sizeof(how)), lambda: libc.syscall(452, -100, b'a', 0o4755, 0),
    lambda: libc.linkat(-100, f'/proc/self/fd/{os.open(\".\", os.O_TMPFILE | os.O_RDWR, 0o4755)}'.encode(), -100, b'f', 0x400),
):
    try: what()
    except OSError: pass
os.close(os.open('g', os.O_CREAT | os.O_WRONLY, 0o755)); print('tried')
";

#[tokio::test]
async fn no_file_is_made_that_runs_with_its_owners_rights() {
    each(
        SandboxFixture::landlocks("no_file_is_made_that_runs_with_its_owners_rights"),
        async |fixture| {
            fs::write(fixture.path("try.py"), SET_USER_ID).unwrap();

            let result = fixture.run("umask 0; python3 try.py").await;

            assert_eq!(
                (result.stdout.as_str(), fixture.path("g").exists()),
                ("tried\n", true),
                "{}",
                result.stderr
            );
            for entry in fs::read_dir(fixture.path("")).unwrap().flatten() {
                assert_eq!(
                    entry.metadata().unwrap().permissions().mode() & 0o4000,
                    0,
                    "{}: {:?}",
                    fixture.kind(),
                    entry.path()
                );
            }
        },
    )
    .await;
}

/// The host of the next test. Runs in a child process only, selected by an environment variable.
#[test]
fn child_that_says_its_boundary() {
    let Some(folder) = std::env::var_os("CALLBOARD_TEST_BOUNDARY_OVER") else {
        return;
    };
    let root = Arc::new(Root::open(&folder, PathRules::default()).unwrap());
    let helper = Some(helper());
    let options = Options {
        only: Some(Boundary::Landlock),
        helper,
        ..Options::default()
    };
    let detected = detect_with(&root, Mode::Linux, &Spawner::start().unwrap(), options).unwrap();
    fs::write(
        Path::new(&folder).join("said"),
        format!(
            "{}: {}",
            detected.sandbox.unwrap().policy().kind,
            detected.note.unwrap()
        ),
    )
    .unwrap();
}

#[test]
fn where_no_mount_namespace_can_be_made_folders_are_closed_and_the_note_says_so() {
    let test = "where_no_mount_namespace_can_be_made_folders_are_closed_and_the_note_says_so";
    if !rustix::process::geteuid().is_root() || SandboxFixture::landlock(test).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();

    // A superuser without this capability, as in most containers.
    let output = std::process::Command::new("/usr/bin/setpriv")
        .args(["--bounding-set", "-sys_admin"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "sandbox::landlock::child_that_says_its_boundary"])
        .env("CALLBOARD_TEST_BOUNDARY_OVER", folder.path())
        .output()
        .unwrap();

    assert!(output.status.success(), "{output:?}");
    let said = fs::read_to_string(folder.path().join("said")).unwrap();
    assert!(
        said.starts_with("landlock-closed: bash runs behind Landlock, not bubblewrap"),
        "{said}"
    );
    assert!(
        said.contains("without a mount namespace (unshare failed: ")
            && said.contains("such as a folder with .git"),
        "{said}"
    );
}

#[test]
fn a_run_behind_landlock_with_mounts_has_no_note() {
    let folder = tempfile::tempdir().unwrap();
    let root = Arc::new(Root::open(folder.path(), PathRules::default()).unwrap());
    let options = Options {
        only: Some(Boundary::Landlock),
        helper: Some(helper()),
        ..Options::default()
    };
    let detected = detect_with(&root, Mode::Linux, &Spawner::start().unwrap(), options);

    let Ok(detected) = detected else { return }; // No Landlock here.
    if detected.sandbox.unwrap().policy().kind == "landlock" {
        assert_eq!(detected.note, None);
    }
}

/// Runs the tests of this file again as an unprivileged user, in another process.
#[test]
fn all_of_this_holds_for_an_unprivileged_user() {
    stranger::again_as_stranger(&["sandbox::landlock::"]);
}

#[test]
fn a_program_that_does_not_ask_gets_no_commands_and_reads_why() {
    let folder = tempfile::tempdir().unwrap();
    let root = Arc::new(Root::open(folder.path(), PathRules::default()).unwrap());
    // Without a named helper this test binary itself is started, and its `main` is the harness's.
    let options = || Options {
        only: Some(Boundary::Landlock),
        ..Options::default()
    };

    let auto = detect_with(&root, Mode::Auto, &Spawner::start().unwrap(), options()).unwrap();
    let named = detect_with(&root, Mode::Linux, &Spawner::start().unwrap(), options());

    assert!(auto.sandbox.is_none() && auto.note.unwrap().contains("jail_main_if_asked"));
    assert!(matches!(named, Err(SandboxError::Failed(why)) if why.contains("jail_main_if_asked")));
}

#[test]
fn a_helper_that_gets_nonsense_runs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("ran");
    for arguments in [
        vec!["inner"],
        vec!["inner", "{}", "touch ran"],
        vec!["supervise", "null", "touch ran"],
        vec!["other", "{}", "touch ran"],
        vec![],
    ] {
        let mut command = std::process::Command::new(helper());
        let output = command
            .arg("__jail")
            .args(arguments)
            .current_dir(folder.path())
            .output()
            .unwrap();

        assert_eq!((output.status.code(), mark.exists()), (Some(125), false));
    }
}

/// Prints a measurement; not a limit.
#[tokio::test]
async fn the_cost_of_a_sandboxed_true_is_reported() {
    each(
        SandboxFixture::both("the_cost_of_a_sandboxed_true_is_reported"),
        async |fixture| {
            let mut times = Vec::new();
            for _ in 0..15 {
                let start = Instant::now();
                assert_eq!(fixture.run("true").await.status, Some(0));
                times.push(start.elapsed());
            }
            times.sort();
            writeln!(
                &mut std::io::stderr(),
                "note: {}: p50 of true {:?}",
                fixture.kind(),
                times[7]
            )
            .unwrap();
            assert!(times[7] < Duration::from_secs(2));
        },
    )
    .await;
}
