//! Limits of one command. These tests run behind a boundary only, so that a bomb that is not
//! stopped stays confined.

use super::*;

#[tokio::test]
async fn an_output_bomb_is_bounded() {
    if !is_alone("bombs::an_output_bomb_is_bounded") {
        return;
    }
    each(
        SandboxFixture::both("an_output_bomb_is_bounded"),
        async |fixture| {
            let before = own_memory();
            let start = Instant::now();
            let result = fixture
                .exec(
                    "yes bomb & yes boom >&2",
                    Duration::from_millis(3000),
                    CancellationToken::new(),
                )
                .await
                .unwrap();

            assert!(
                start.elapsed() < Duration::from_secs(5),
                "two seconds after its time: {:?}",
                start.elapsed()
            );
            assert!(
                own_memory() < before + 64 * 1024,
                "{} KiB more",
                own_memory() - before
            );
            assert!(
                result.timed_out && result.bytes_left_out > 1_000_000,
                "{}",
                result.bytes_left_out
            );
            assert!(result.stdout.len() < 17 * 1024 && result.stderr.len() < 17 * 1024);
            assert!(
                result.stdout.starts_with("bomb\nbomb\n") && result.stderr.starts_with("boom\n")
            );
        },
    )
    .await;
}

#[tokio::test]
async fn a_fork_bomb_is_stopped_and_the_spawner_stays_useful() {
    if !is_alone("bombs::a_fork_bomb_is_stopped_and_the_spawner_stays_useful") {
        return;
    }
    each(
        SandboxFixture::both("a_fork_bomb_is_stopped_and_the_spawner_stays_useful"),
        async |fixture| {
            let marker = marker("forks");

            let before = own_memory();
            let start = Instant::now();
            let (full, over) = when_full(&marker);
            // Sleeping processes, started one by one, since other jobs share the test machine.
            let result = fixture
                .exec(
                    &format!("while :; do bash -c 'sleep 1000; :' {marker} & done"),
                    Duration::from_secs(30),
                    CancellationToken::new(),
                )
                .await;
            let ended = Instant::now();
            over.store(true, std::sync::atomic::Ordering::Relaxed);

            assert!(
                own_memory() < before + 64 * 1024,
                "{} KiB more",
                own_memory() - before
            );
            match result {
                Err(SandboxError::Limit(what)) => {
                    assert_eq!(what, "more than 512 processes and threads");
                    if let Ok(full) = full.join() {
                        let took = ended.saturating_duration_since(full.unwrap_or(ended));
                        assert!(
                            took < Duration::from_secs(2),
                            "{}: {took:?} after its limit",
                            fixture.kind()
                        );
                    }
                }
                // Where the kernel's own limit applies (the host is not root), bash itself stops.
                other => assert!(
                    other.is_ok_and(|result| result.stderr.contains("fork")),
                    "stopped otherwise"
                ),
            }
            assert_eq!(alive(&marker), 0);
            assert!(
                start.elapsed() < Duration::from_secs(25),
                "{:?}",
                start.elapsed()
            );
            assert_eq!(fixture.run("echo still here").await.stdout, "still here\n");
        },
    )
    .await;
}

/// Starts a thread that watches until the shells, each with a sleeping child, are about as many as
/// a command may have. The thread returns that time, or `None` if the returned flag is set before.
fn when_full(
    marker: &str,
) -> (
    std::thread::JoinHandle<Option<Instant>>,
    Arc<std::sync::atomic::AtomicBool>,
) {
    let marker = marker.to_owned();
    let over = Arc::<std::sync::atomic::AtomicBool>::default();
    let is_over = over.clone();
    let watch = move || {
        while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
            if alive(&marker) >= 250 {
                return Some(Instant::now());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    };
    (std::thread::spawn(watch), over)
}

#[tokio::test]
async fn a_command_knows_its_limits() {
    if let Some(fixture) = SandboxFixture::linux("a_command_knows_its_limits") {
        let limits = fixture.run("ulimit -H -c; ulimit -H -n; ulimit -H -u; ulimit -H -t; ulimit -H -d; ulimit -H -f; ulimit -H -i; ulimit -H -q; df -k --output=size /tmp | tail -1 | tr -d ' '").await;
        let large =
            fixture.run("head -c 2G /dev/zero > /tmp/large; stat -c %s /tmp/large; truncate -s 2G file; ls -l file | cut -d' ' -f5").await;

        assert_eq!(
            limits.stdout,
            "0\n1024\n512\n1200\n4194304\n1048576\n1024\n204800\n524288\n"
        );
        assert_eq!(large.stdout, "536870912\n0\n", "{}", large.stderr);
    }
}

#[tokio::test]
async fn a_command_behind_landlock_knows_its_limits() {
    let Some(fixture) = SandboxFixture::landlock("a_command_behind_landlock_knows_its_limits")
    else {
        return;
    };

    let limits =
        fixture.run("ulimit -H -c; ulimit -H -n; ulimit -H -t; ulimit -H -d; ulimit -H -f; [ $(ulimit -H -u) -gt 512 ] && echo more").await;
    let large = fixture.run("truncate -s 2G file; stat -c %s file").await;

    assert_eq!(limits.stdout, "0\n1024\n1200\n4194304\n1048576\nmore\n");
    assert_eq!(large.stdout, "0\n", "{}", large.stderr);
}

/// Runs a bomb. Returns its result and how long it ran.
async fn explode(
    fixture: &SandboxFixture,
    bomb: &str,
) -> (Result<ExecResult, SandboxError>, Duration) {
    let start = Instant::now();
    let result = fixture
        .exec(bomb, Duration::from_secs(30), CancellationToken::new())
        .await;
    (result, start.elapsed())
}

#[tokio::test]
async fn a_memory_bomb_of_many_processes_is_stopped() {
    if !is_alone("bombs::a_memory_bomb_of_many_processes_is_stopped") {
        return;
    }
    let limits = ExecLimits {
        memory_bytes: 192 * 1024 * 1024,
        ..ExecLimits::default()
    };
    // Without a control group a command is ended at half of a small bound.
    let ended = if callboard::sandbox::control_groups().is_ok() {
        192
    } else {
        96
    };
    let too_much = SandboxError::Limit(format!("more than {ended} MiB of memory"));
    each(SandboxFixture::both_with("a_memory_bomb_of_many_processes_is_stopped", limits), async |fixture| {
        let before = own_memory();
        // 50 MiB each, so no single process exceeds the limit.
        let bomb = r"for n in {1..6}; do { x=$(head -c 50M /dev/zero | tr '\0' x); sleep 20; } & done; wait";
        let (result, took) = explode(&fixture, bomb).await;

        assert_eq!(result, Err(too_much.clone()), "{}", fixture.kind());
        assert!(took < Duration::from_secs(20), "{took:?}");
        assert!(own_memory() < before + 64 * 1024, "{} KiB more", own_memory() - before);
        // For one process alone, the kernel refuses the memory, or the watch stops the command
        // first.
        match explode(&fixture, r"x=$(head -c 400M /dev/zero | tr '\0' x); echo held").await.0 {
            Ok(single) => assert!(single.stdout.is_empty() && single.status != Some(0), "{single:?}"),
            Err(error) => assert_eq!(error, too_much),
        }
    })
    .await;
}

/// Runs a test of this folder in a separate process, since memory is measured for a whole process.
/// Returns whether this is that process.
pub(super) fn is_alone(test: &str) -> bool {
    if std::env::var_os("CALLBOARD_TEST_ALONE").is_some() {
        return true;
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let output = command
        .args(["--exact", &format!("sandbox::{test}"), "--nocapture"])
        .env("CALLBOARD_TEST_ALONE", "1")
        .output()
        .unwrap();
    std::io::stderr().write_all(&output.stderr).unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}"
    );
    false
}

/// Memory of this process, in KiB.
pub(super) fn own_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    status
        .lines()
        .find_map(|line| {
            line.strip_prefix("VmRSS:")?
                .trim()
                .strip_suffix(" kB")?
                .trim()
                .parse()
                .ok()
        })
        .unwrap()
}

#[tokio::test]
async fn a_disk_bomb_of_many_files_is_stopped() {
    let limits = ExecLimits {
        disk_bytes: 128 * 1024 * 1024,
        ..ExecLimits::default()
    };
    each(
        SandboxFixture::both_with("a_disk_bomb_of_many_files_is_stopped", limits),
        async |fixture| {
            // The loop is finite: if the bomb is not stopped, it must not fill the machine's disk.
            let (result, took) = explode(
                &fixture,
                "for n in {1..40}; do head -c 32M /dev/zero > f$n; sync -d f$n; sleep 0.05; done",
            )
            .await;

            assert_eq!(
                result,
                Err(SandboxError::Limit(
                    "more than 128 MiB written to the disk".to_owned()
                )),
                "{}",
                fixture.kind()
            );
            assert!(took < Duration::from_secs(20), "{took:?}");
        },
    )
    .await;
}
