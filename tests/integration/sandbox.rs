//! The sandbox: what a command can reach, leave behind and use. Promises of both boundaries are
//! tested in both.
//!
//! # Layout
//! - `landlock`, `network` and `filter` test what is specific to Landlock, the proxy and the
//!   seccomp filter.
//! - `probe` tries every forbidden access at once.
//! - `ends` tests how processes end, `bombs` the limits, `memory` the memory that a sum over
//!   processes does not show.
//! - `doors` tests files that the user's own programs would run, `hideouts` those in places that a
//!   search could pass by, `gits_files` those that the user's git reads and writes, `gits_settings` what its
//!   configuration names.
//! - `stranger` tests what an unprivileged host hides from other processes of its user.

mod bombs;
mod doors;
mod ends;
mod everyday;
mod filter;
mod gits_files;
mod gits_outer;
mod gits_settings;
mod hideouts;
mod landlock;
mod memory;
mod network;
mod plugged;
mod probe;
mod quota;
mod stranger;
mod watch;

use std::{
    fs,
    io::Write,
    panic::AssertUnwindSafe,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use callboard::{
    ports::{Exec, ExecLimits, ExecResult, Network, Sandbox, SandboxError},
    sandbox::{
        Boundary, ControlGroups, Local, Mode, Options, PathError, PathRules, Root, Spawner, detect,
        detect_with,
    },
};
use futures_util::FutureExt;
use tokio_util::sync::CancellationToken;

/// A workspace with a sandbox over it, and a file outside that commands must not reach.
struct SandboxFixture {
    folder: tempfile::TempDir,
    sandbox: Arc<dyn Sandbox>,
}

/// The program used as helper, since the `main` of this binary is the test harness's. A test that
/// runs as another user names a copy that this user may execute.
fn helper() -> PathBuf {
    std::env::var_os("CALLBOARD_TEST_HELPER")
        .map_or_else(|| env!("CARGO_BIN_EXE_callboard").into(), PathBuf::from)
}

/// Creates a sandbox with the given boundary over a folder.
fn boundary(
    workspace: &Path,
    only: Boundary,
    limits: ExecLimits,
) -> Result<Arc<dyn Sandbox>, SandboxError> {
    let spawner = Spawner::start().unwrap();
    with(workspace, only, limits, &spawner)
}

fn with(
    workspace: &Path,
    only: Boundary,
    limits: ExecLimits,
    spawner: &Spawner,
) -> Result<Arc<dyn Sandbox>, SandboxError> {
    let root = Arc::new(Root::open(workspace, PathRules::default()).unwrap());
    let options = Options {
        only: Some(only),
        limits,
        helper: Some(helper()),
        ..Options::default()
    };
    detect_with(&root, Mode::Linux, spawner, options).map(|detected| detected.sandbox.unwrap())
}

impl SandboxFixture {
    /// `None`, with a note on standard error, where the boundary does not work.
    fn of(test: &str, only: Boundary, limits: ExecLimits) -> Option<Self> {
        Self::counted(test, only, limits, ControlGroups::Auto)
    }

    fn counted(
        test: &str,
        only: Boundary,
        limits: ExecLimits,
        groups: ControlGroups,
    ) -> Option<Self> {
        let spawner = Spawner::start_with(groups).unwrap();
        Self::with(test, only, limits, &spawner)
    }

    fn with(test: &str, only: Boundary, limits: ExecLimits, spawner: &Spawner) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let workspace = folder.path().join("workspace");
        fs::create_dir(&workspace).unwrap();
        fs::write(folder.path().join("outside.txt"), "outside").unwrap();
        match with(&workspace, only, limits, spawner) {
            Ok(sandbox) => Some(Self { folder, sandbox }),
            Err(error) => {
                writeln!(&mut std::io::stderr(), "SKIPPED: {test}: {error}").unwrap();
                None
            }
        }
    }

    fn linux(test: &str) -> Option<Self> {
        Self::of(test, Boundary::Bubblewrap, ExecLimits::default())
    }

    fn landlock(test: &str) -> Option<Self> {
        Self::of(test, Boundary::Landlock, ExecLimits::default())
    }

    /// Landlock with a mount namespace; `None` where none can be created.
    fn covered(test: &str) -> Option<Self> {
        let fixture = Self::landlock(test)?;
        if fixture.kind() == "landlock" {
            return Some(fixture);
        }
        writeln!(
            &mut std::io::stderr(),
            "SKIPPED: {test}: no mount namespace can be made here"
        )
        .unwrap();
        None
    }

    /// Landlock with a mount namespace, if one can be created, and without.
    fn landlocks(test: &str) -> Vec<Self> {
        let alone = Self::of(test, Boundary::LandlockAlone, ExecLimits::default());
        Self::covered(test).into_iter().chain(alone).collect()
    }

    fn both_with(test: &str, limits: ExecLimits) -> Vec<Self> {
        [Boundary::Bubblewrap, Boundary::Landlock]
            .into_iter()
            .filter_map(|only| Self::of(test, only, limits))
            .collect()
    }

    fn both(test: &str) -> Vec<Self> {
        Self::both_with(test, ExecLimits::default())
    }

    fn local() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("workspace")).unwrap();
        let root =
            Arc::new(Root::open(folder.path().join("workspace"), PathRules::default()).unwrap());
        Self {
            folder,
            sandbox: Arc::new(Local::new(
                root,
                &Spawner::start().unwrap(),
                ExecLimits::default(),
            )),
        }
    }

    fn kind(&self) -> &'static str {
        self.sandbox.policy().kind
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("workspace").join(name)
    }

    async fn run(&self, command: &str) -> ExecResult {
        self.exec(command, Duration::from_secs(20), CancellationToken::new())
            .await
            .unwrap()
    }

    async fn exec(
        &self,
        command: &str,
        timeout: Duration,
        cancel: CancellationToken,
    ) -> Result<ExecResult, SandboxError> {
        let exec = Exec {
            timeout,
            ..Exec::new(command)
        };
        self.sandbox.exec(exec, cancel).await
    }
}

/// Runs a test in every sandbox, even after one has failed, so that a hole is reported for each
/// boundary that has it.
async fn each(
    fixtures: impl IntoIterator<Item = SandboxFixture>,
    test: impl AsyncFn(SandboxFixture),
) {
    each_of(
        fixtures
            .into_iter()
            .map(|fixture| (fixture.kind().to_owned(), fixture)),
        test,
    )
    .await;
}

/// Like [`each`], with names.
async fn each_of<G>(fixtures: impl IntoIterator<Item = (String, G)>, test: impl AsyncFn(G)) {
    let mut failed = Vec::new();
    for (name, fixture) in fixtures {
        if AssertUnwindSafe(test(fixture))
            .catch_unwind()
            .await
            .is_err()
        {
            failed.push(name);
        }
    }
    assert!(
        failed.is_empty(),
        "failed behind {failed:?}, each for what is said above"
    );
}

/// Number of processes with `marker` as one of their arguments.
fn alive(marker: &str) -> usize {
    let holds = |pid: PathBuf| {
        fs::read(pid.join("cmdline")).is_ok_and(|line| {
            line.split(|b| *b == 0)
                .any(|word| word == marker.as_bytes())
        })
    };
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter(|entry| holds(entry.path()))
        .count()
}

async fn wait_until(what: &str, within: Duration, condition: impl Fn() -> bool) -> Duration {
    let start = Instant::now();
    while !condition() {
        assert!(
            start.elapsed() < within,
            "{what} did not come within {within:?}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    start.elapsed()
}

/// Commands that try to outlive their end, each with the marker in its arguments.
fn stragglers(marker: &str) -> String {
    let sleeper =
        format!("bash -c 'trap \"\" TERM HUP INT; while :; do sleep 1000; done' {marker}");
    format!(
        "setsid {sleeper} >/dev/null 2>&1 & nohup {sleeper} >/dev/null 2>&1 & (setsid nohup {sleeper} &) ; {sleeper} & touch started; wait"
    )
}

fn marker(test: &str) -> String {
    format!("marker-{test}-{}", std::process::id())
}

#[tokio::test]
async fn a_command_sees_the_workspace_and_nothing_else_of_the_host() {
    let Some(fixture) =
        SandboxFixture::linux("a_command_sees_the_workspace_and_nothing_else_of_the_host")
    else {
        return;
    };
    fs::write(fixture.path("inside.txt"), "inside").unwrap();
    let outside = fixture.folder.path().join("outside.txt");

    let inside = fixture.run("cat inside.txt; pwd").await;
    let beyond = fixture
        .run(&format!(
            "cat {}; cat ../outside.txt; ls /root /home /etc/shadow /etc/ssh; cat /proc/1/environ | tr '\\0' '\\n'",
            outside.display()
        ))
        .await;
    let write = fixture.run("echo made > made.txt; for place in /usr/x /etc/x /x /dev/x /proc/sys/kernel/hostname /proc/sys/kernel/core_pattern /proc/self/oom_score_adj /proc/sysrq-trigger; do echo x > $place && echo WROTE $place; done; touch /tmp/ok /dev/shm/ok && echo tmp; cat /proc/kallsyms /proc/keys /proc/kcore | head -c 100").await;

    assert_eq!(
        inside,
        ExecResult {
            status: Some(0),
            stdout: "inside/workspace\n".to_owned(),
            bytes_printed: 17,
            working_dir: Some(PathBuf::new()),
            ..ExecResult::default()
        }
    );
    assert!(
        !beyond.stdout.contains("outside") && !beyond.stdout.contains("HOME=/root"),
        "{}",
        beyond.stdout
    );
    assert_eq!(
        beyond.stderr.matches("No such file or directory").count(),
        6,
        "{}",
        beyond.stderr
    );
    assert_eq!(write.stdout, "tmp\n");
    assert_eq!(
        fs::read_to_string(fixture.path("made.txt")).unwrap(),
        "made\n"
    );
}

#[tokio::test]
async fn a_command_has_no_network_no_keys_and_no_descriptors_of_the_host() {
    let Some(fixture) =
        SandboxFixture::linux("a_command_has_no_network_no_keys_and_no_descriptors_of_the_host")
    else {
        return;
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // Simulates a descriptor that the host forgot to close on exec.
    let leak = fs::File::open(fixture.folder.path().join("outside.txt")).unwrap();
    rustix_clear_cloexec(&leak);

    let net = fixture.run(&format!("(exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo CONNECTED; (echo x > /dev/udp/127.0.0.1/{port}) 2>/dev/null; cat /proc/net/dev | grep -cv lo:")).await;
    let environment = fixture.run("env | grep -v SHLVL | sort").await;
    let descriptors = fixture.run("for p in /proc/[0-9]*; do for f in $p/fd/*; do readlink $f; done; done | sort -u | grep -v -e pipe: -e /dev/null -e socket: -e anon_inode -e /proc -e ' '").await;
    let status = fixture
        .run("grep -E 'CapEff|NoNewPrivs' /proc/self/status")
        .await;
    drop(leak);

    assert_eq!(net.stdout, "2\n", "only the two header lines beside lo");
    assert_eq!(
        environment.stdout,
        "GIT_OPTIONAL_LOCKS=0\nGIT_PAGER=cat\nHOME=/tmp\nLANG=C.UTF-8\nNO_COLOR=1\nPAGER=cat\nPATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin\n\
         PWD=/workspace\nTERM=dumb\n_=/usr/bin/env\n"
    );
    assert_eq!(descriptors.stdout, "");
    assert_eq!(status.stdout, "CapEff:\t0000000000000000\nNoNewPrivs:\t1\n");
}

fn rustix_clear_cloexec(file: &fs::File) {
    // Clears the close-on-exec flag.
    rustix::io::fcntl_setfd(file, rustix::io::FdFlags::empty()).unwrap();
}

#[tokio::test]
async fn protected_files_cannot_be_written_by_a_command() {
    let Some(fixture) = SandboxFixture::linux("protected_files_cannot_be_written_by_a_command")
    else {
        return;
    };
    for (path, text) in [
        (".git/config", "config"),
        (".git/hooks/old", "hook"),
        ("callboard.toml", "toml"),
        ("sub/.git/config", "nested"),
        (".git/HEAD", "x"),
    ] {
        fs::create_dir_all(fixture.path(path).parent().unwrap()).unwrap();
        fs::write(fixture.path(path), text).unwrap();
    }

    fixture
        .run(
            "echo evil > .git/config; echo evil > .git/hooks/pre-commit; echo evil >> callboard.toml; rm -f .git/config callboard.toml; mv .git .git2; \
             mv .git/hooks h; mv callboard.toml c; ln -sf /tmp/x callboard.toml; ln .git/config hard && echo evil > hard; cp /dev/null .git/config; \
             echo evil > sub/.git/config; echo y > .git/HEAD; echo evil > evil; mv evil .git/config; chmod 777 .git/config; rm -rf .git/hooks",
        )
        .await;

    let read = |path: &str| fs::read_to_string(fixture.path(path)).unwrap();
    assert_eq!(
        [
            read(".git/config"),
            read(".git/hooks/old"),
            read("callboard.toml"),
            read("sub/.git/config")
        ],
        ["config", "hook", "toml", "nested"]
    );
    assert!(!fixture.path(".git/hooks/pre-commit").exists());
    assert_eq!(
        read(".git/HEAD"),
        "y\n",
        "the rest of .git stays writable: agents commit"
    );
}

#[tokio::test]
async fn protected_files_that_were_absent_do_not_stay() {
    let Some(fixture) = SandboxFixture::linux("protected_files_that_were_absent_do_not_stay")
    else {
        return;
    };
    fs::create_dir_all(fixture.path("repo/.git")).unwrap();
    fs::write(fixture.path("repo/.git/config"), "mine").unwrap();

    let result = fixture
        .run(
            "mkdir -p .git/hooks; echo evil > .git/hooks/pre-commit; echo evil > .git/config; echo evil > .mcp.json; mkdir .callboard; ln -s x callboard.toml; \
             mkdir -p new/.git; echo evil > new/.git/config; echo evil > .bashrc; mv repo moved; mkdir -p repo/.git; echo evil > repo/.git/config",
        )
        .await;

    for path in [
        ".git/hooks",
        ".git/config",
        ".mcp.json",
        ".callboard",
        "callboard.toml",
        "new/.git/config",
        ".bashrc",
        "repo/.git/config",
    ] {
        assert!(
            fs::symlink_metadata(fixture.path(path)).is_err(),
            "{path} is there"
        );
        assert!(
            result.stderr.contains(&format!("[refused: {path} ")),
            "{path}: {}",
            result.stderr
        );
    }
    assert_eq!(
        fs::read_to_string(fixture.path("moved/.git/config")).unwrap(),
        "mine",
        "what the user had moves along"
    );
    assert_eq!(
        fs::read_to_string(fixture.path(".mcp.json.refused")).unwrap(),
        "evil\n"
    );
}

#[tokio::test]
async fn commands_cannot_read_files_that_hold_keys() {
    each(
        SandboxFixture::both("commands_cannot_read_files_that_hold_keys"),
        async |fixture| {
            for (path, text) in [
                (".env", "KEY=needle"),
                (".env.example", "KEY=example"),
                (".envrc", "export KEY=needle"),
                ("a/prod.env", "KEY=needle"),
                ("a/.ssh/id_rsa", "needle"),
            ] {
                fs::create_dir_all(fixture.path(path).parent().unwrap()).unwrap();
                fs::write(fixture.path(path), text).unwrap();
            }

            let result = fixture.run("cat .env .env.example .envrc a/prod.env a/.ssh/id_rsa; cp .env copy; mv .env e; cat copy e; cp a/prod.env .envrc c; cat c; grep -r needle . ; true").await;

            assert_eq!(result.stdout, "KEY=example");
            for file in [".env", "a/prod.env"] {
                assert_eq!(fs::read_to_string(fixture.path(file)).unwrap(), "KEY=needle");
            }
            assert!(fixture.path(".envrc").is_file());
        },
    )
    .await;
}

#[tokio::test]
async fn many_commands_run_at_once_and_each_gets_its_own_answer() {
    each(
        SandboxFixture::both("many_commands_run_at_once_and_each_gets_its_own_answer"),
        async |fixture| {
            let runs = (0..24).map(|n| {
                let sandbox = fixture.sandbox.clone();
                tokio::spawn(async move {
                    sandbox
                        .exec(
                            Exec::new(format!("echo {n}; exit {n}")),
                            CancellationToken::new(),
                        )
                        .await
                        .unwrap()
                })
            });
            let runs: Vec<_> = runs.collect();

            for (n, run) in runs.into_iter().enumerate() {
                let result = run.await.unwrap();
                assert_eq!(
                    (result.status, result.stdout),
                    (Some(n as i32), format!("{n}\n")),
                    "{}",
                    fixture.kind()
                );
            }
        },
    )
    .await;
}

#[tokio::test]
async fn a_working_folder_must_lie_inside() {
    each(
        SandboxFixture::both("a_working_folder_must_lie_inside")
            .into_iter()
            .chain([SandboxFixture::local()]),
        async |fixture| {
            fs::create_dir(fixture.path("sub")).unwrap();
            std::os::unix::fs::symlink("/etc", fixture.path("out")).unwrap();
            let exec = |folder: &str| Exec {
                working_dir: Some(PathBuf::from(folder)),
                ..Exec::new("pwd; cd ..; exit 4")
            };
            let shown = if fixture.kind() == "bubblewrap" {
                "/workspace/sub\n"
            } else {
                "$WORKSPACE/sub\n"
            };

            let inside = fixture
                .sandbox
                .exec(exec("sub"), CancellationToken::new())
                .await
                .unwrap();
            assert_eq!(
                (inside.status, inside.stdout.as_str(), inside.working_dir),
                (Some(4), shown, Some(PathBuf::new()))
            );
            for folder in ["..", "out", "/etc", "sub/../.."] {
                let refused = fixture
                    .sandbox
                    .exec(exec(folder), CancellationToken::new())
                    .await;
                assert_eq!(
                    refused,
                    Err(SandboxError::Denied(format!(
                        "{folder:?} is outside of the workspace"
                    )))
                );
            }
        },
    )
    .await;
}

#[tokio::test]
async fn the_folder_a_command_ends_in_is_known_and_one_outside_is_forgotten() {
    each(
        SandboxFixture::both("the_folder_a_command_ends_in_is_known_and_one_outside_is_forgotten")
            .into_iter()
            .chain([SandboxFixture::local()]),
        async |fixture| {
            fs::create_dir_all(fixture.path("a/b c")).unwrap();
            std::os::unix::fs::symlink("a", fixture.path("link")).unwrap();
            let folder = async |command: &str| fixture.run(command).await.working_dir;

            assert_eq!(folder("cd 'link/b c'").await, Some(PathBuf::from("a/b c")));
            assert_eq!(
                folder("cd a; false; exit 3").await,
                Some(PathBuf::from("a"))
            );
            assert_eq!(folder("cd /usr").await, None);
            assert_eq!(
                folder("cd a; exec 2>log; echo x >&2").await,
                None,
                "a file gets no words of ours"
            );
            assert_eq!(fs::read_to_string(fixture.path("a/log")).unwrap(), "x\n");
            let quiet = fixture.run("cd a; echo out; echo err >&2").await;
            assert_eq!(
                (
                    quiet.stdout.as_str(),
                    quiet.stderr.as_str(),
                    quiet.bytes_printed
                ),
                ("out\n", "err\n", 8)
            );
        },
    )
    .await;
}

#[tokio::test]
async fn watchers_hear_the_latest_line_of_a_long_command() {
    each(
        SandboxFixture::both("watchers_hear_the_latest_line_of_a_long_command"),
        async |fixture| {
            let heard = Arc::new(parking_lot::Mutex::new(Vec::new()));
            let sink = heard.clone();
            let progress = callboard::ports::Progress::new(move |line| sink.lock().push(line));

            let exec = Exec {
                progress,
                ..Exec::new("for n in {1..30}; do echo line $n in $PWD; sleep 0.05; done")
            };
            fixture
                .sandbox
                .exec(exec, CancellationToken::new())
                .await
                .unwrap();

            let heard = heard.lock();
            let place = if fixture.kind() == "bubblewrap" {
                "/workspace"
            } else {
                "$WORKSPACE"
            };
            assert!((2..=8).contains(&heard.len()), "{heard:?}");
            assert!(
                heard
                    .iter()
                    .all(|line| line.starts_with("line ") && line.ends_with(place)),
                "{heard:?}"
            );
        },
    )
    .await;
}

#[tokio::test]
async fn the_sandboxes_keep_the_contract() {
    each(
        SandboxFixture::both("the_sandboxes_keep_the_contract")
            .into_iter()
            .chain([SandboxFixture::local()]),
        async |fixture| {
            callboard_actors::testing::contract::sandbox(fixture.sandbox.clone()).await;
        },
    )
    .await;
}

#[test]
fn a_policy_reports_what_holds_and_no_path_of_the_host() {
    let fixture = SandboxFixture::local();
    let policy = fixture.sandbox.policy();
    let reported = serde_json::to_value(policy).unwrap();

    assert_eq!(
        (
            reported["kind"].as_str(),
            reported["network"].as_str(),
            reported["boundary"].as_bool()
        ),
        (Some("local"), Some("open"), Some(false))
    );
    assert_eq!(reported["limits"]["processes"], 512);
    assert!(
        reported.get("root").is_none()
            && !reported
                .to_string()
                .contains(fixture.folder.path().to_str().unwrap())
    );
    assert_eq!(policy.network, Network::Open);
}

#[test]
fn paths_are_validated_after_links_and_new_ones_by_their_parents() {
    let fixture = SandboxFixture::local();
    let real = fs::canonicalize(fixture.path("")).unwrap();
    fs::create_dir(fixture.path("a")).unwrap();
    std::os::unix::fs::symlink("a", fixture.path("inner")).unwrap();
    std::os::unix::fs::symlink("/tmp", fixture.path("outer")).unwrap();
    let validate = |path: &str| fixture.sandbox.validate_path(path);

    assert_eq!(validate("inner/new/file"), Ok(real.join("a/new/file")));
    assert_eq!(
        validate(&real.join("a").to_string_lossy()),
        Ok(real.join("a"))
    );
    assert_eq!(validate("/workspace/a"), Ok(real.join("a")));
    for path in [
        "outer",
        "outer/new/file",
        "../x",
        "new/../../x",
        "/etc/passwd",
        "a/../../workspace2",
    ] {
        assert!(
            matches!(validate(path), Err(SandboxError::Denied(_))),
            "{path}: {:?}",
            validate(path)
        );
    }
}

#[test]
fn auto_without_commands_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let root = Arc::new(Root::open(folder.path(), PathRules::default()).unwrap());

    let none = detect(&root, Mode::None).unwrap();

    assert!(none.sandbox.is_none());
    assert_eq!(
        none.note.as_deref(),
        Some("no bash tool: the sandbox mode is none")
    );
    assert!(Path::new(root.real_path()).is_absolute());
}
