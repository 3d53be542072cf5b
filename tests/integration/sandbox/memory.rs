//! Memory that a sum over processes does not show, in both boundaries, with control groups and
//! without. A command above its bound is stopped within two seconds, and the machine loses at most
//! 64 MiB beyond the bound.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use callboard::Host;
use callboard_actors::testing::TestSize;
use callboard_actors::testing::{Reply, ScriptedModel};

use super::*;

const MIB: u64 = 1 << 20;

/// Memory that the machine may lose beyond a bound.
const SLACK: u64 = 64 * MIB;

/// The memory limit of a command, and the amount that the attacks try to hold, in MiB. The limit is
/// a small one of those that leave the whole reserve of a command without a control group.
const BOUND: u64 = 512 * MIB;
const WANTED: &str = "1200";

/// The error of a command that met its limit: without a control group it is ended 256 MiB before.
fn too_much(groups: ControlGroups) -> SandboxError {
    let mib = match groups {
        ControlGroups::Auto => 512,
        ControlGroups::Off => 256,
    };
    SandboxError::Limit(format!("more than {mib} MiB of memory"))
}

/// Serializes these tests, since they measure the memory of the whole machine.
pub(super) static MACHINE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// The attack program, compiled for one test.
pub(super) fn hoard() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("hoard");
    let here = || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/sandbox/hoard.c");
    // A test that runs as another user names a source that this user may read.
    let source = std::env::var_os("CALLBOARD_TEST_HOARD").map_or_else(here, PathBuf::from);
    let built = std::process::Command::new("cc")
        .args(["-O1", "-pthread", "-o"])
        .arg(&program)
        .arg(source)
        .status()
        .unwrap();
    assert!(built.success());
    (folder, program)
}

/// Every boundary, with control groups where they can be created, and without.
fn fixtures(test: &str, limits: ExecLimits) -> Vec<(SandboxFixture, ControlGroups)> {
    let ways = callboard::sandbox::control_groups()
        .ok()
        .map(|_| ControlGroups::Auto)
        .into_iter()
        .chain([ControlGroups::Off]);
    let boundaries = [Boundary::Bubblewrap, Boundary::Landlock];
    let pairs = boundaries
        .into_iter()
        .flat_map(|only| ways.clone().map(move |groups| (only, groups)));
    pairs
        .filter_map(|(only, groups)| {
            Some((SandboxFixture::counted(test, only, limits, groups)?, groups))
        })
        .collect()
}

/// Like [`each`], over [`fixtures`].
async fn each_way(
    fixtures: impl IntoIterator<Item = (SandboxFixture, ControlGroups)>,
    test: impl AsyncFn((SandboxFixture, ControlGroups)),
) {
    let named = |(fixture, groups): (SandboxFixture, ControlGroups)| {
        (
            format!("{}, control groups {groups:?}", fixture.kind()),
            (fixture, groups),
        )
    };
    each_of(fixtures.into_iter().map(named), test).await;
}

/// Memory of the machine that is neither free, nor private to programs, nor a file's, in bytes: the
/// kind that the attacks take. Pages in per-processor lists count as free.
fn lost() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let row = |name: &str| -> u64 {
        let row = text
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap();
        row.trim()
            .strip_suffix(" kB")
            .unwrap()
            .parse::<u64>()
            .unwrap()
            * 1024
    };
    let zones = fs::read_to_string("/proc/zoneinfo").unwrap();
    let at_hand: u64 = zones
        .lines()
        .filter_map(|line| {
            line.trim()
                .strip_prefix("count:")?
                .trim()
                .parse::<u64>()
                .ok()
        })
        .sum();
    let known: u64 = [
        "MemFree:",
        "AnonPages:",
        "Cached:",
        "Buffers:",
        "SReclaimable:",
    ]
    .into_iter()
    .map(row)
    .sum();
    (row("MemTotal:") + row("Shmem:")).saturating_sub(known + at_hand * 4096)
}

/// Measures the largest loss of memory from any moment to a later one. At the start, memory of
/// earlier commands may still be on its way back.
struct Watch {
    over: Arc<AtomicBool>,
    peak: Arc<AtomicU64>,
    thread: std::thread::JoinHandle<()>,
}

impl Watch {
    fn start() -> Self {
        let over = Arc::<AtomicBool>::default();
        let peak = Arc::<AtomicU64>::default();
        let is_over = over.clone();
        let highest = peak.clone();
        let mut least = lost();
        let thread = std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                let now = lost();
                least = least.min(now);
                highest.fetch_max(now - least, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(4));
            }
        });
        Self { over, peak, thread }
    }

    fn end(self) -> u64 {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        self.peak.load(Ordering::Relaxed)
    }
}

async fn is_stopped(test: &str, kind: &str) {
    let _alone = MACHINE.lock().await;
    let (_folder, program) = hoard();
    let limits = ExecLimits {
        memory_bytes: BOUND,
        ..ExecLimits::default()
    };
    each_way(fixtures(test, limits), async |(fixture, groups)| {
        fs::copy(&program, fixture.path("hoard")).unwrap();
        let place = format!("{}, control groups {groups:?}", fixture.kind());
        fixture.run("true").await;

        let attack = format!("./hoard {kind} {WANTED}; echo over");
        is_bounded(&place, groups, || {
            fixture.exec(&attack, Duration::from_secs(6), CancellationToken::new())
        })
        .await;
    })
    .await;
}

/// Runs an attack until the machine's loss is within the bound. Other programs on the machine may
/// take memory at the same time and look the same, so one of four attempts must pass. In the long
/// form, which runs on an idle machine, each of twenty must.
async fn is_bounded<F: Future<Output = Result<ExecResult, SandboxError>>>(
    place: &str,
    groups: ControlGroups,
    attack: impl Fn() -> F,
) {
    let is_long = TestSize::is_long();
    let attempts = if is_long { 20 } else { 4 };
    let mut beyond = Vec::new();
    for _ in 0..attempts {
        let watch = Watch::start();
        let start = Instant::now();
        let result = attack().await;
        let took = start.elapsed();
        let lost = watch.end();

        println!("{place}: {took:?}, {} MiB, {result:?}", lost / MIB);
        match result {
            Err(error) => assert_eq!(error, too_much(groups), "{place}"),
            // A refused system call holds no memory either.
            Ok(result) => assert!(
                result.stdout.starts_with("refused\n"),
                "{place}: {result:?}"
            ),
        }
        let holds = lost <= BOUND + SLACK && took < Duration::from_secs(3);
        if holds && !is_long {
            return;
        }
        beyond.extend((!holds).then_some((lost / MIB, took)));
    }
    assert!(
        beyond.is_empty(),
        "{place}: the machine lost {beyond:?} MiB"
    );
}

#[tokio::test]
async fn memory_files_that_are_not_mapped_count_as_memory_of_a_command() {
    is_stopped(
        "memory_files_that_are_not_mapped_count_as_memory_of_a_command",
        "memfd",
    )
    .await;
}

/// The filter refuses memory files behind a boundary; this test shows that the memory bound would
/// hold without the filter.
#[tokio::test]
async fn a_control_group_bounds_memory_files_where_no_filter_refuses_them() {
    if callboard::sandbox::control_groups().is_err() {
        let line =
            "note: no control group can be made here, so none is tried with memory files allowed";
        writeln!(&mut std::io::stderr(), "{line}").unwrap();
        return;
    }
    let _alone = MACHINE.lock().await;
    let (_folder, program) = hoard();
    let folder = tempfile::tempdir().unwrap();
    fs::copy(&program, folder.path().join("hoard")).unwrap();
    let root = Arc::new(Root::open(folder.path(), PathRules::default()).unwrap());
    let limits = ExecLimits {
        memory_bytes: BOUND,
        ..ExecLimits::default()
    };
    let sandbox = Local::new(
        root,
        &Spawner::start_with(ControlGroups::Auto).unwrap(),
        limits,
    );

    let exec = || Exec {
        timeout: Duration::from_secs(6),
        ..Exec::new(format!("./hoard memfd {WANTED}; echo over"))
    };
    let result = sandbox.exec(exec(), CancellationToken::new()).await;
    assert_eq!(result, Err(too_much(ControlGroups::Auto)));
    is_bounded("no boundary, control groups", ControlGroups::Auto, || {
        sandbox.exec(exec(), CancellationToken::new())
    })
    .await;
}

#[tokio::test]
async fn buffers_of_sockets_count_as_memory_of_a_command() {
    is_stopped("buffers_of_sockets_count_as_memory_of_a_command", "sockets").await;
}

/// Runs an attack in both boundaries without a control group and checks that it meets the limit.
async fn meets_without_a_group(test: &str, attack: &str, limit: &str) {
    let _alone = MACHINE.lock().await;
    let (_folder, program) = hoard();
    let limits = ExecLimits {
        memory_bytes: BOUND,
        ..ExecLimits::default()
    };
    let without = fixtures(test, limits)
        .into_iter()
        .filter(|(_, groups)| *groups == ControlGroups::Off);
    each_way(without, async |(fixture, _)| {
        fs::copy(&program, fixture.path("hoard")).unwrap();
        let result = fixture
            .exec(
                &format!("./hoard {attack}"),
                Duration::from_secs(6),
                CancellationToken::new(),
            )
            .await;
        assert_eq!(
            result,
            Err(SandboxError::Limit(limit.to_owned())),
            "{}",
            fixture.kind()
        );
    })
    .await;
}

/// A buffer fills in less time than the watch needs to run, so an empty one counts like a full one.
#[tokio::test]
async fn open_sockets_count_as_memory_before_their_buffers_are_filled() {
    meets_without_a_group(
        "open_sockets_count_as_memory_before_their_buffers_are_filled",
        "empty 1600",
        "more than 256 MiB of memory",
    )
    .await;
}

/// Looking for sockets among millions of open files would stall every other command.
#[tokio::test]
async fn a_command_without_a_control_group_has_a_bound_of_open_files() {
    meets_without_a_group(
        "a_command_without_a_control_group_has_a_bound_of_open_files",
        "files 60",
        "more than 32768 open files",
    )
    .await;
}

#[tokio::test]
async fn memory_and_files_of_a_process_without_its_main_thread_count() {
    let test = "memory_and_files_of_a_process_without_its_main_thread_count";
    meets_without_a_group(test, "private 1200 thread", "more than 256 MiB of memory").await;
    if let Some(count) = more_than_a_part("fs/inotify/max_user_instances", 4) {
        let attack = format!("notifiers {count} thread");
        takes_no_more_than_a_part(test, &attack, " inotify instances").await;
    }
}

/// More than this part of what the kernel allows; `None` if one process cannot open that many files.
fn more_than_a_part(name: &str, part: u64) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/sys/{name}")).unwrap();
    let count = text.trim().parse::<u64>().unwrap() / part + 4;
    (count < 900).then_some(count)
}

/// Runs an attack in both boundaries and checks that it is refused by the kernel or meets a limit.
async fn takes_no_more_than_a_part(test: &str, attack: &str, what: &str) {
    let _alone = MACHINE.lock().await;
    let (_folder, program) = hoard();
    let stopped = AtomicU64::new(0);
    each_way(
        fixtures(test, ExecLimits::default()),
        async |(fixture, _)| {
            fs::copy(&program, fixture.path("hoard")).unwrap();
            let command = format!("./hoard {attack}");
            let result = fixture
                .exec(&command, Duration::from_secs(25), CancellationToken::new())
                .await;
            match result {
                Err(SandboxError::Limit(limit)) => {
                    assert!(
                        limit.starts_with("more ") && limit.contains(what),
                        "{limit}"
                    );
                    stopped.fetch_add(1, Ordering::SeqCst);
                }
                Ok(ended) => assert_eq!(
                    (ended.stdout.as_str(), fixture.kind()),
                    ("refused\n", "landlock"),
                    "{ended:?}"
                ),
                Err(other) => panic!("{}: {other:?}", fixture.kind()),
            }
        },
    )
    .await;
    assert!(stopped.into_inner() > 0, "no boundary: {attack}");
}

#[tokio::test]
async fn no_command_takes_the_watches_that_the_host_accepts_connections_with() {
    let test = "no_command_takes_the_watches_that_the_host_accepts_connections_with";
    let text = fs::read_to_string("/proc/sys/fs/epoll/max_user_watches").unwrap();
    // A process takes some 250,000.
    let processes = text.trim().parse::<u64>().unwrap() / 32 / 200_000 + 2;
    let attack = format!("watches {processes}");
    takes_no_more_than_a_part(test, &attack, " epoll watches").await;
}

#[tokio::test]
async fn no_command_takes_all_notifiers_or_terminals_of_its_user() {
    let test = "no_command_takes_all_notifiers_or_terminals_of_its_user";
    if let Some(count) = more_than_a_part("fs/inotify/max_user_instances", 4) {
        let attack = format!("notifiers {count}");
        takes_no_more_than_a_part(test, &attack, " inotify instances").await;
    }
    if let Some(count) = more_than_a_part("kernel/pty/max", 8) {
        let attack = format!("terminals {count}");
        takes_no_more_than_a_part(test, &attack, " pseudo-terminals").await;
    }
}

/// Commands that have a quarter of the notifiers each.
#[tokio::test]
async fn commands_together_leave_half_of_the_notifiers_of_their_user() {
    let test = "commands_together_leave_half_of_the_notifiers_of_their_user";
    let Some(count) = more_than_a_part("fs/inotify/max_user_instances", 4) else {
        return;
    };
    let _alone = MACHINE.lock().await;
    let (_folder, program) = hoard();
    each_way(
        fixtures(test, ExecLimits::default()),
        async |(fixture, _)| {
            if fixture.kind() == "landlock" {
                return; // has no notifiers
            }
            fs::copy(&program, fixture.path("hoard")).unwrap();
            let command = format!("./hoard notifiers {}", count - 8);
            let cancel = CancellationToken::new();
            let run = || fixture.exec(&command, Duration::from_secs(10), cancel.clone());
            let ends = |ended: &Result<ExecResult, SandboxError>| {
                let what = "more inotify instances than all commands may have together";
                assert_eq!(*ended, Err(SandboxError::Limit(what.to_owned())));
            };

            let (first, second, third) = (run(), run(), run());
            tokio::pin!(first, second, third);
            // Two that remain are within the bound, so exactly one ends.
            tokio::select! {
                ended = &mut first => ends(&ended),
                ended = &mut second => ends(&ended),
                ended = &mut third => ends(&ended),
            }
            cancel.cancel();
        },
    )
    .await;
}

/// Takes all that the user has, so it runs alone.
#[tokio::test]
async fn a_command_that_hides_all_notifiers_in_a_wait_or_a_message_ends() {
    if TestSize::pick(0, 0, 1) == 0 {
        return;
    }
    let test = "a_command_that_hides_all_notifiers_in_a_wait_or_a_message_ends";
    for attack in ["awaited 1000", "sent 1000"] {
        takes_no_more_than_a_part(test, attack, " inotify instances").await;
    }
}

#[tokio::test]
async fn shared_memory_that_no_living_process_has_touched_counts_as_memory_of_a_command() {
    is_stopped(
        "shared_memory_that_no_living_process_has_touched_counts_as_memory_of_a_command",
        "shared",
    )
    .await;
}

#[tokio::test]
async fn page_tables_count_as_memory_of_a_command() {
    is_stopped("page_tables_count_as_memory_of_a_command", "tables").await;
}

#[tokio::test]
async fn files_in_memory_count_as_memory_of_a_command() {
    let _alone = MACHINE.lock().await;
    let test = "files_in_memory_count_as_memory_of_a_command";
    let limits = ExecLimits {
        memory_bytes: BOUND,
        tmp_bytes: 4 * BOUND,
        ..ExecLimits::default()
    };
    let namespaces = fixtures(test, limits)
        .into_iter()
        .filter(|(fixture, _)| fixture.kind() == "bubblewrap");
    each_way(namespaces, async |(fixture, groups)| {
        // One folder alone ends where the bound does.
        let fill =
            "for n in {1..12}; do head -c 48M /dev/zero | tee /tmp/$n >/dev/shm/$n; done; sleep 20";
        let place = format!("files in memory, control groups {groups:?}");
        is_bounded(&place, groups, || {
            fixture.exec(fill, Duration::from_secs(6), CancellationToken::new())
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn a_command_that_creates_too_many_files_is_stopped() {
    let limits = ExecLimits {
        files: 3000,
        ..ExecLimits::default()
    };
    each(
        SandboxFixture::both_with("a_command_that_creates_too_many_files_is_stopped", limits),
        async |fixture| {
            let create = "for ((n = 0; n < 100000; n++)); do : >f$n; done";
            let result = fixture
                .exec(create, Duration::from_secs(20), CancellationToken::new())
                .await;

            assert_eq!(
                result,
                Err(SandboxError::Limit("more than 3000 new files".to_owned())),
                "{}",
                fixture.kind()
            );
            assert_eq!(
                fixture
                    .run("for n in {1..50}; do : >g$n; done; echo made")
                    .await
                    .stdout,
                "made\n"
            );
        },
    )
    .await;
}

#[tokio::test]
async fn a_command_within_its_bounds_is_left_alone_while_others_on_the_machine_take_memory() {
    let _alone = MACHINE.lock().await;
    let (_folder, program) = hoard();
    let limits = ExecLimits {
        memory_bytes: BOUND,
        ..ExecLimits::default()
    };
    each_way(
        fixtures(
            "a_command_within_its_bounds_is_left_alone_while_others_on_the_machine_take_memory",
            limits,
        ),
        async |(fixture, groups)| {
            let mut other = std::process::Command::new(&program)
                .args(["memfd", "700"])
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            let command = fixture.exec(
                "x=$(head -c 8M /dev/zero | tr '\\0' x); sleep 0.8; echo fine",
                Duration::from_secs(20),
                CancellationToken::new(),
            );

            let result = command.await;
            other.kill().unwrap();
            other.wait().unwrap();

            assert_eq!(
                result.map(|result| result.stdout),
                Ok("fine\n".to_owned()),
                "{}, {groups:?}",
                fixture.kind()
            );
        },
    )
    .await;
}

/// Number of a host's control groups below those of this process.
fn groups_of(host: u32) -> usize {
    let walk = |folder: &Path| -> usize {
        let name = format!("callboard-{host}-");
        let is_ours = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(&name);
        fs::read_dir(folder).map_or(0, |entries| entries.flatten().filter(is_ours).count())
    };
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let paths = own.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let mounts =
        ["", "memory", "pids", "unified"].map(|mount| Path::new("/sys/fs/cgroup").join(mount));
    let folders: std::collections::BTreeSet<PathBuf> = paths
        .flat_map(|path| {
            mounts
                .iter()
                .flat_map(move |mount| [mount.join(&path[1..]), mount.join(&path[1..]).join("..")])
        })
        .filter_map(|folder| fs::canonicalize(folder).ok())
        .collect();
    folders.iter().map(|folder| walk(folder)).sum()
}

#[tokio::test]
async fn a_killed_host_leaves_no_control_group() {
    if callboard::sandbox::control_groups().is_err() {
        return; // no control groups, so none can be left
    }
    each(
        SandboxFixture::both("a_killed_host_leaves_no_control_group"),
        async |fixture| {
            let marker = marker("groups");
            let mut host = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "sandbox::ends::child_host"])
                .env("CALLBOARD_TEST_KILL_NINE", fixture.path(""))
                .env("CALLBOARD_TEST_KIND", fixture.kind())
                .env("CALLBOARD_TEST_COMMAND", stragglers(&marker))
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null())
                .spawn()
                .unwrap();
            wait_until("the command", Duration::from_secs(20), || {
                fixture.path("started").exists() && groups_of(host.id()) > 0
            })
            .await;

            host.kill().unwrap();
            host.wait().unwrap();

            wait_until("the end of its groups", Duration::from_secs(4), || {
                groups_of(host.id()) == 0
            })
            .await;
        },
    )
    .await;
}

/// Runs the tests above as an unprivileged user, who has control groups only if one was delegated.
#[tokio::test]
async fn the_bounds_of_memory_hold_for_a_host_without_rights() {
    let _alone = MACHINE.lock().await;
    let Some(said) = stranger::again_as_stranger(&["sandbox::memory::"]) else {
        return;
    };

    assert!(said.contains("Limit("), "{said}");
}

/// Durations of a tenant's rounds, from the prompt to the answer, sorted. Eight conversations run
/// at once for `time`, with a model that starts to answer after 100 ms, as fast ones do.
async fn turns(host: &Host, time: Duration) -> Vec<Duration> {
    let until = Instant::now() + time;
    let mut conversations = tokio::task::JoinSet::new();
    for n in 0..8 {
        let conversation = host.tenant("other").conversation(format!("c{n}"));
        conversations.spawn(async move {
            let mut took = Vec::new();
            while Instant::now() < until {
                let start = Instant::now();
                conversation
                    .send("go")
                    .await
                    .unwrap()
                    .outcome()
                    .await
                    .unwrap();
                took.push(start.elapsed());
            }
            took
        });
    }
    let mut took: Vec<Duration> = conversations
        .join_all()
        .await
        .into_iter()
        .flatten()
        .collect();
    took.sort();
    took
}

/// Measures rounds beside an attack that restarts whenever it is stopped. Runs long, since the
/// slowest rounds of a few seconds vary too much.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_of_other_tenants_are_as_quick_beside_commands_that_take_memory() {
    if !TestSize::is_long() {
        return;
    }
    let test = "turns_of_other_tenants_are_as_quick_beside_commands_that_take_memory";
    let _alone = MACHINE.lock().await;
    let (_folder, program) = hoard();
    let limits = ExecLimits {
        memory_bytes: BOUND,
        ..ExecLimits::default()
    };
    let model = ScriptedModel::always(Reply::text("on").after(Duration::from_millis(100)));
    let host = Host::builder().provider(model).build().await.unwrap();
    let p99 = |took: &[Duration]| took[took.len() * 99 / 100];
    for (fixture, groups) in fixtures(test, limits) {
        fs::copy(&program, fixture.path("hoard")).unwrap();
        for kind in ["sockets", "shared", "tables"] {
            let place = format!("{}, {groups:?}, {kind}", fixture.kind());
            let alone = turns(&host, Duration::from_secs(4)).await;
            let over = Arc::<AtomicBool>::default();
            let sandbox = fixture.sandbox.clone();
            let attack = format!("./hoard {kind} {WANTED}");
            let ends = over.clone();
            let attacker = tokio::spawn(async move {
                let mut stopped = 0;
                while !ends.load(Ordering::Relaxed) {
                    let exec = Exec {
                        timeout: Duration::from_secs(6),
                        ..Exec::new(attack.clone())
                    };
                    stopped += usize::from(matches!(
                        sandbox.exec(exec, CancellationToken::new()).await,
                        Err(SandboxError::Limit(_))
                    ));
                }
                stopped
            });

            let beside = turns(&host, Duration::from_secs(8)).await;
            over.store(true, Ordering::Relaxed);
            let stopped = attacker.await.unwrap();

            let ratio = p99(&beside).as_secs_f64() / p99(&alone).as_secs_f64();
            println!(
                "{place}: p99 {:?} alone, {:?} beside {stopped} attacks, {ratio:.2}",
                p99(&alone),
                p99(&beside)
            );
            assert!(
                stopped > 0 && ratio <= 1.5,
                "{place}: {ratio:.2}, {stopped} stopped"
            );
        }
    }
    host.shutdown(Duration::from_secs(1)).await;
}
