//! The sandbox: what a command can reach, what it leaves, what it may use (REQUIREMENTS Z-01, Z-03..Z-05, U-08; FAULTS F2..F5).

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use callboard::{
    ports::{Exec, ExecResult, Sandbox, SandboxError},
    sandbox::{Local, Mode, PathRules, Root, Spawner, detect},
};
use tokio_util::sync::CancellationToken;

/// A folder with a sandbox over it, and a place beside it that must not be reached.
struct Ground {
    folder: tempfile::TempDir,
    sandbox: Arc<dyn Sandbox>,
}

impl Ground {
    /// `None`, said on standard error, where there is no bubblewrap.
    fn linux(test: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let workspace = folder.path().join("workspace");
        fs::create_dir(&workspace).unwrap();
        fs::write(folder.path().join("outside.txt"), "outside").unwrap();
        let root = Arc::new(Root::open(&workspace, PathRules::default()).unwrap());
        match detect(&root, Mode::Linux) {
            Ok(detected) => Some(Self { folder, sandbox: detected.sandbox.unwrap() }),
            Err(error) => {
                writeln!(&mut std::io::stderr(), "SKIPPED: {test}: {error}").unwrap();
                None
            }
        }
    }

    fn local() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("workspace")).unwrap();
        let root = Arc::new(Root::open(folder.path().join("workspace"), PathRules::default()).unwrap());
        Self { folder, sandbox: Arc::new(Local::new(root, &Spawner::start().unwrap())) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("workspace").join(name)
    }

    async fn run(&self, command: &str) -> ExecResult {
        self.exec(command, Duration::from_secs(20), CancellationToken::new()).await.unwrap()
    }

    async fn exec(&self, command: &str, timeout: Duration, cancel: CancellationToken) -> Result<ExecResult, SandboxError> {
        let exec = Exec { command: command.to_owned(), timeout, working_dir: None, output_bytes_max: 16 * 1024 };
        self.sandbox.exec(exec, cancel).await
    }
}

/// Processes with `marker` as one of their arguments.
fn alive(marker: &str) -> usize {
    let holds =
        |pid: PathBuf| fs::read(pid.join("cmdline")).is_ok_and(|line| line.split(|b| *b == 0).any(|word| word == marker.as_bytes()));
    fs::read_dir("/proc").unwrap().flatten().filter(|entry| holds(entry.path())).count()
}

async fn wait_until(what: &str, within: Duration, condition: impl Fn() -> bool) -> Duration {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < within, "{what} did not come within {within:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    start.elapsed()
}

/// Commands that try to outlive their end, each with the marker in its arguments.
fn stragglers(marker: &str) -> String {
    let sleeper = format!("bash -c 'trap \"\" TERM HUP INT; while :; do sleep 1000; done' {marker}");
    format!(
        "setsid {sleeper} >/dev/null 2>&1 & nohup {sleeper} >/dev/null 2>&1 & (setsid nohup {sleeper} &) ; {sleeper} & touch started; wait"
    )
}

fn marker(test: &str) -> String {
    format!("marker-{test}-{}", std::process::id())
}

#[tokio::test]
async fn a_command_sees_the_workspace_and_nothing_else_of_the_host() {
    let Some(ground) = Ground::linux("a_command_sees_the_workspace_and_nothing_else_of_the_host") else { return };
    fs::write(ground.path("inside.txt"), "inside").unwrap();
    let outside = ground.folder.path().join("outside.txt");

    let inside = ground.run("cat inside.txt; pwd").await;
    let beyond = ground
        .run(&format!(
            "cat {}; cat ../outside.txt; ls /root /home /etc/shadow /etc/ssh; cat /proc/1/environ | tr '\\0' '\\n'",
            outside.display()
        ))
        .await;
    let write = ground.run("echo made > made.txt; for place in /usr/x /etc/x /x /dev/x /proc/sys/kernel/hostname /proc/sys/kernel/core_pattern /proc/self/oom_score_adj /proc/sysrq-trigger; do echo x > $place && echo WROTE $place; done; touch /tmp/ok /dev/shm/ok && echo tmp; cat /proc/kallsyms /proc/keys /proc/kcore | head -c 100").await;

    assert_eq!(inside, ExecResult { status: Some(0), stdout: "inside/workspace\n".to_owned(), ..ExecResult::default() });
    assert!(!beyond.stdout.contains("outside") && !beyond.stdout.contains("HOME=/root"), "{}", beyond.stdout);
    assert_eq!(beyond.stderr.matches("No such file or directory").count(), 6, "{}", beyond.stderr);
    assert_eq!(write.stdout, "tmp\n");
    assert_eq!(fs::read_to_string(ground.path("made.txt")).unwrap(), "made\n");
}

#[tokio::test]
async fn a_command_has_no_network_no_keys_and_no_descriptors_of_the_host() {
    let Some(ground) = Ground::linux("a_command_has_no_network_no_keys_and_no_descriptors_of_the_host") else { return };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // A descriptor that the host forgot to close on exec.
    let leak = fs::File::open(ground.folder.path().join("outside.txt")).unwrap();
    rustix_clear_cloexec(&leak);

    let net = ground.run(&format!("(exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo CONNECTED; (echo x > /dev/udp/127.0.0.1/{port}) 2>/dev/null; cat /proc/net/dev | grep -cv lo:")).await;
    let environment = ground.run("env | grep -v SHLVL | sort").await;
    let descriptors = ground.run("for p in /proc/[0-9]*; do for f in $p/fd/*; do readlink $f; done; done | sort -u | grep -v -e pipe: -e /dev/null -e socket: -e anon_inode -e /proc -e ' '").await;
    let status = ground.run("grep -E 'CapEff|NoNewPrivs' /proc/self/status").await;
    drop(leak);

    assert_eq!(net.stdout, "2\n", "only the two header lines beside lo");
    assert_eq!(
        environment.stdout,
        "GIT_PAGER=cat\nHOME=/tmp\nLANG=C.UTF-8\nNO_COLOR=1\nPAGER=cat\nPATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin\n\
         PWD=/workspace\nTERM=dumb\n_=/usr/bin/env\n"
    );
    assert_eq!(descriptors.stdout, "");
    assert_eq!(status.stdout, "CapEff:\t0000000000000000\nNoNewPrivs:\t1\n");
}

fn rustix_clear_cloexec(file: &fs::File) {
    // The safe way without a crate: a child shell inherits nothing of ours, so the flag is cleared through the standard library's dup.
    rustix::io::fcntl_setfd(file, rustix::io::FdFlags::empty()).unwrap();
}

#[tokio::test]
async fn protected_files_cannot_be_written_by_a_command() {
    let Some(ground) = Ground::linux("protected_files_cannot_be_written_by_a_command") else { return };
    for (path, text) in [
        (".git/config", "config"),
        (".git/hooks/old", "hook"),
        ("callboard.toml", "toml"),
        ("sub/.git/config", "nested"),
        (".git/HEAD", "x"),
    ] {
        fs::create_dir_all(ground.path(path).parent().unwrap()).unwrap();
        fs::write(ground.path(path), text).unwrap();
    }

    ground
        .run(
            "echo evil > .git/config; echo evil > .git/hooks/pre-commit; echo evil >> callboard.toml; rm -f .git/config callboard.toml; mv .git .git2; \
             mv .git/hooks h; mv callboard.toml c; ln -sf /tmp/x callboard.toml; ln .git/config hard && echo evil > hard; cp /dev/null .git/config; \
             echo evil > sub/.git/config; echo y > .git/HEAD; echo evil > evil; mv evil .git/config; chmod 777 .git/config; rm -rf .git/hooks",
        )
        .await;

    let read = |path: &str| fs::read_to_string(ground.path(path)).unwrap();
    assert_eq!(
        [read(".git/config"), read(".git/hooks/old"), read("callboard.toml"), read("sub/.git/config")],
        ["config", "hook", "toml", "nested"]
    );
    assert!(!ground.path(".git/hooks/pre-commit").exists());
    assert_eq!(read(".git/HEAD"), "y\n", "the rest of .git stays writable: agents commit");
}

#[tokio::test]
async fn protected_files_that_were_absent_do_not_stay() {
    let Some(ground) = Ground::linux("protected_files_that_were_absent_do_not_stay") else { return };
    fs::create_dir_all(ground.path("repo/.git")).unwrap();
    fs::write(ground.path("repo/.git/config"), "mine").unwrap();

    let result = ground
        .run(
            "mkdir -p .git/hooks; echo evil > .git/hooks/pre-commit; echo evil > .git/config; echo evil > .mcp.json; mkdir .callboard; ln -s x callboard.toml; \
             mkdir -p new/.git; echo evil > new/.git/config; echo evil > .bashrc; mv repo moved; mkdir -p repo/.git; echo evil > repo/.git/config",
        )
        .await;

    for path in [".git/hooks", ".git/config", ".mcp.json", ".callboard", "callboard.toml", "new/.git/config", ".bashrc", "repo/.git/config"]
    {
        assert!(fs::symlink_metadata(ground.path(path)).is_err(), "{path} is there");
        assert!(result.stderr.contains(&format!("[refused: {path} ")), "{path}: {}", result.stderr);
    }
    assert_eq!(fs::read_to_string(ground.path("moved/.git/config")).unwrap(), "mine", "what the user had moves along");
    assert_eq!(fs::read_to_string(ground.path(".mcp.json.refused")).unwrap(), "evil\n");
}

#[tokio::test]
async fn commands_cannot_read_files_that_hold_keys() {
    let Some(ground) = Ground::linux("commands_cannot_read_files_that_hold_keys") else { return };
    fs::write(ground.path(".env"), "KEY=needle").unwrap();
    fs::write(ground.path(".env.example"), "KEY=example").unwrap();
    fs::create_dir_all(ground.path("a/.ssh")).unwrap();
    fs::write(ground.path("a/.ssh/id_rsa"), "needle").unwrap();

    let result = ground.run("cat .env .env.example a/.ssh/id_rsa; cp .env copy; mv .env e; cat copy e; grep -r needle . ; true").await;

    assert_eq!(result.stdout, "KEY=example");
    assert_eq!(fs::read_to_string(ground.path(".env")).unwrap(), "KEY=needle");
}

#[tokio::test]
async fn no_process_is_alive_two_seconds_after_a_timeout() {
    let Some(ground) = Ground::linux("no_process_is_alive_two_seconds_after_a_timeout") else { return };
    let marker = marker("timeout");

    let start = Instant::now();
    let result = ground.exec(&stragglers(&marker), Duration::from_millis(700), CancellationToken::new()).await.unwrap();

    assert!(ground.path("started").exists(), "the stragglers were there");
    assert_eq!((result.timed_out, result.status), (true, None));
    assert_eq!(alive(&marker), 0);
    assert!(start.elapsed() < Duration::from_millis(2700), "{:?}", start.elapsed());
}

#[tokio::test]
async fn no_process_is_alive_two_seconds_after_a_cancel_or_a_dropped_caller() {
    let Some(ground) = Ground::linux("no_process_is_alive_two_seconds_after_a_cancel_or_a_dropped_caller") else { return };
    for drop_it in [false, true] {
        let (marker, cancel) = (marker(if drop_it { "drop" } else { "cancel" }), CancellationToken::new());
        let _ = fs::remove_file(ground.path("started"));
        let (sandbox, token, command) = (ground.sandbox.clone(), cancel.clone(), stragglers(&marker));
        let task = tokio::spawn(async move {
            let exec = Exec { command, timeout: Duration::from_secs(60), working_dir: None, output_bytes_max: 1024 };
            sandbox.exec(exec, token).await
        });
        wait_until("the command", Duration::from_secs(10), || ground.path("started").exists() && alive(&marker) >= 4).await;

        if drop_it {
            task.abort();
        } else {
            cancel.cancel();
            assert_eq!(task.await.unwrap(), Err(SandboxError::Cancelled));
            assert_eq!(alive(&marker), 0, "the answer comes when they are gone");
        }

        wait_until("the end of all processes", Duration::from_secs(2), || alive(&marker) == 0).await;
    }
}

#[tokio::test]
async fn what_a_command_leaves_running_ends_with_it() {
    let Some(ground) = Ground::linux("what_a_command_leaves_running_ends_with_it") else { return };
    let marker = marker("left");

    let result = ground.run(&stragglers(&marker).replace("touch started; wait", "echo done")).await;

    assert_eq!((result.status, result.stdout.as_str()), (Some(0), "done\n"));
    assert_eq!(alive(&marker), 0);
}

#[tokio::test]
async fn without_a_boundary_strays_are_still_found() {
    let ground = Ground::local();
    let marker = marker("local");

    let result = ground.exec(&stragglers(&marker), Duration::from_millis(700), CancellationToken::new()).await.unwrap();
    assert!(result.timed_out && ground.path("started").exists());
    wait_until("the end of all processes", Duration::from_secs(2), || alive(&marker) == 0).await;
    let plain = ground.run("echo $((1+1)); exit 3").await;

    assert_eq!((plain.status, plain.stdout.as_str()), (Some(3), "2\n"));
    assert!(!ground.sandbox.policy().boundary);
}

/// The host of the next test: runs a command until it is killed. Does nothing unless asked by the environment.
#[tokio::test]
async fn child_host_of_the_kill_nine_test() {
    let Some(folder) = std::env::var_os("CALLBOARD_TEST_KILL_NINE") else { return };
    let root = Arc::new(Root::open(&folder, PathRules::default()).unwrap());
    let sandbox = detect(&root, Mode::Linux).unwrap().sandbox.unwrap();
    let command = stragglers(&std::env::var("CALLBOARD_TEST_MARKER").unwrap());
    let exec = Exec { command, timeout: Duration::from_secs(60), working_dir: None, output_bytes_max: 1024 };
    let _ = sandbox.exec(exec, CancellationToken::new()).await;
}

#[tokio::test]
async fn no_process_is_alive_two_seconds_after_kill_nine_of_the_host() {
    let Some(ground) = Ground::linux("no_process_is_alive_two_seconds_after_kill_nine_of_the_host") else { return };
    let marker = marker("host");
    let mut host = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "sandbox::child_host_of_the_kill_nine_test"])
        .env("CALLBOARD_TEST_KILL_NINE", ground.path(""))
        .env("CALLBOARD_TEST_MARKER", &marker)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the command", Duration::from_secs(20), || ground.path("started").exists() && alive(&marker) >= 4).await;

    host.kill().unwrap();
    host.wait().unwrap();

    wait_until("the end of all processes", Duration::from_secs(2), || alive(&marker) == 0).await;
}

#[tokio::test]
async fn an_output_bomb_is_bounded() {
    let Some(ground) = Ground::linux("an_output_bomb_is_bounded") else { return };

    let result = ground.exec("yes bomb & yes boom >&2", Duration::from_millis(1000), CancellationToken::new()).await.unwrap();

    assert!(result.timed_out && result.bytes_left_out > 1_000_000, "{}", result.bytes_left_out);
    assert!(result.stdout.len() < 17 * 1024 && result.stderr.len() < 17 * 1024);
    assert!(result.stdout.starts_with("bomb\nbomb\n") && result.stderr.starts_with("boom\n"));
}

#[tokio::test]
async fn a_fork_bomb_is_stopped_and_the_spawner_stays_useful() {
    let Some(ground) = Ground::linux("a_fork_bomb_is_stopped_and_the_spawner_stays_useful") else { return };
    let marker = marker("forks");

    let start = Instant::now();
    // Sleepers, not a doubling: the test machine is shared.
    let result = ground
        .exec(&format!("while :; do bash -c 'sleep 1000; :' {marker} & done"), Duration::from_secs(30), CancellationToken::new())
        .await;

    match result {
        Err(SandboxError::Limit(what)) => assert_eq!(what, "more than 512 processes and threads"),
        // Where the kernel's own limit holds (a host that is not root), bash gives up by itself.
        other => assert!(other.is_ok_and(|result| result.stderr.contains("fork")), "stopped otherwise"),
    }
    assert_eq!(alive(&marker), 0);
    assert!(start.elapsed() < Duration::from_secs(25), "{:?}", start.elapsed());
    assert_eq!(ground.run("echo still here").await.stdout, "still here\n");
}

#[tokio::test]
async fn a_command_knows_its_limits() {
    let Some(ground) = Ground::linux("a_command_knows_its_limits") else { return };

    let limits = ground.run("ulimit -H -c; ulimit -H -n; ulimit -H -u; ulimit -H -t; ulimit -H -d; ulimit -H -f; df -k --output=size /tmp | tail -1 | tr -d ' '").await;
    let large =
        ground.run("head -c 2G /dev/zero > /tmp/large; stat -c %s /tmp/large; truncate -s 2G file; ls -l file | cut -d' ' -f5").await;

    assert_eq!(limits.stdout, "0\n1024\n512\n1200\n4194304\n1048576\n524288\n");
    assert_eq!(large.stdout, "536870912\n0\n", "{}", large.stderr);
}

#[tokio::test]
async fn many_commands_run_at_once_and_each_gets_its_own_answer() {
    let Some(ground) = Ground::linux("many_commands_run_at_once_and_each_gets_its_own_answer") else { return };

    let runs = (0..24).map(|n| {
        let sandbox = ground.sandbox.clone();
        tokio::spawn(async move {
            let exec = Exec {
                command: format!("echo {n}; exit {n}"),
                timeout: Duration::from_secs(30),
                working_dir: None,
                output_bytes_max: 1024,
            };
            sandbox.exec(exec, CancellationToken::new()).await.unwrap()
        })
    });
    let runs: Vec<_> = runs.collect();

    for (n, run) in runs.into_iter().enumerate() {
        let result = run.await.unwrap();
        assert_eq!((result.status, result.stdout), (Some(n as i32), format!("{n}\n")));
    }
}

#[tokio::test]
async fn a_working_folder_must_lie_inside() {
    let Some(ground) = Ground::linux("a_working_folder_must_lie_inside") else { return };
    fs::create_dir(ground.path("sub")).unwrap();
    std::os::unix::fs::symlink("/etc", ground.path("out")).unwrap();
    let exec = |folder: &str| Exec {
        command: "pwd".to_owned(),
        timeout: Duration::from_secs(10),
        working_dir: Some(PathBuf::from(folder)),
        output_bytes_max: 1024,
    };

    let inside = ground.sandbox.exec(exec("sub"), CancellationToken::new()).await.unwrap();
    assert_eq!(inside.stdout, "/workspace/sub\n");
    for folder in ["..", "out", "/etc", "sub/../.."] {
        let refused = ground.sandbox.exec(exec(folder), CancellationToken::new()).await;
        assert_eq!(refused, Err(SandboxError::Denied(format!("{folder:?} is outside of the workspace"))));
    }
}

#[test]
fn paths_are_validated_after_links_and_new_ones_by_their_parents() {
    let ground = Ground::local();
    let real = fs::canonicalize(ground.path("")).unwrap();
    fs::create_dir(ground.path("a")).unwrap();
    std::os::unix::fs::symlink("a", ground.path("inner")).unwrap();
    std::os::unix::fs::symlink("/tmp", ground.path("outer")).unwrap();
    let validate = |path: &str| ground.sandbox.validate_path(path);

    assert_eq!(validate("inner/new/file"), Ok(real.join("a/new/file")));
    assert_eq!(validate(&real.join("a").to_string_lossy()), Ok(real.join("a")));
    assert_eq!(validate("/workspace/a"), Ok(real.join("a")));
    for path in ["outer", "outer/new/file", "../x", "new/../../x", "/etc/passwd", "a/../../workspace2"] {
        assert!(matches!(validate(path), Err(SandboxError::Denied(_))), "{path}: {:?}", validate(path));
    }
}

#[test]
fn auto_without_commands_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let root = Arc::new(Root::open(folder.path(), PathRules::default()).unwrap());

    let none = detect(&root, Mode::None).unwrap();

    assert!(none.sandbox.is_none());
    assert_eq!(none.note.as_deref(), Some("no bash tool: the sandbox mode is none"));
    assert!(Path::new(root.real_path()).is_absolute());
}
