//! The watch over commands ends the one that takes what all share, and no other; and whatever one
//! command has, those of others start and end as before.

use callboard_actors::testing::TestSize;
use futures_util::{StreamExt as _, stream::FuturesUnordered};

use super::{
    memory::{MACHINE, hoard},
    *,
};

const TIME: Duration = Duration::from_secs(60);

/// Waits until commands have made these files in the workspace.
async fn have_begun(fixture: &SandboxFixture, names: &[&str]) {
    let is_missing = || names.iter().any(|name| !fixture.path(name).exists());
    while is_missing() {
        tokio::task::yield_now().await;
    }
}

/// A disk that is lost to another program, or another command, while a command runs that writes
/// nothing. The bomb comes later, so it is ended after the watch has seen the loss.
#[tokio::test]
async fn a_command_is_not_ended_for_what_others_take_of_its_disk() {
    const TAKEN: u64 = 512 * 1024 * 1024;
    let limits = ExecLimits {
        disk_bytes: 128 * 1024 * 1024,
        ..ExecLimits::default()
    };
    each(
        SandboxFixture::both_with(
            "a_command_is_not_ended_for_what_others_take_of_its_disk",
            limits,
        ),
        async |fixture| {
            let cancel = CancellationToken::new;
            let quiet = ": >begun; until [ -e done ]; do sleep 0.1; done; echo fine";
            let quiet = fixture.exec(quiet, TIME, cancel());
            let others = async {
                have_begun(&fixture, &["begun"]).await;
                let taken = tempfile::tempfile_in(fixture.path("")).unwrap();
                rustix::fs::fallocate(&taken, rustix::fs::FallocateFlags::empty(), 0, TAKEN)
                    .unwrap();
                let bomb = "for n in {1..40}; do head -c 32M /dev/zero >f$n; sync -d f$n; done";
                let ended = fixture.exec(bomb, TIME, cancel()).await;
                fs::write(fixture.path("done"), "").unwrap();
                ended
            };
            let (quiet, bomb) = tokio::join!(quiet, others);

            let too_much = "more than 128 MiB written to the disk".to_owned();
            assert_eq!(bomb, Err(SandboxError::Limit(too_much)));
            assert_eq!(quiet.unwrap().stdout, "fine\n", "{}", fixture.kind());
        },
    )
    .await;
}

/// Room that is reserved is counted for no process, so a command has to write what it takes.
#[tokio::test]
async fn a_command_reserves_no_room_on_the_disk_without_writing_it() {
    let test = "a_command_reserves_no_room_on_the_disk_without_writing_it";
    each(SandboxFixture::both(test), async |fixture| {
        let reserve = ": >zeros; fallocate -l 1M plain; fallocate -z -l 1M zeros; \
                       python3 -c 'import os; os.posix_fallocate(os.open(\"written\", 66), 0, 9)'; \
                       stat -c %n-%s plain zeros written";
        let result = fixture.run(reserve).await;

        let said = &result.stderr;
        assert_eq!(said.matches("not supported").count(), 2, "{said}");
        assert_eq!(result.stdout, "plain-0\nzeros-0\nwritten-9\n", "{said}");
    })
    .await;
}

/// Five commands with 31,000 open files each, of which one is too many. Looking at the files of four
/// takes seconds.
#[tokio::test]
async fn commands_start_beside_others_with_very_many_open_files() {
    let _alone = MACHINE.lock().await;
    let (_folder, program) = hoard();
    let test = "commands_start_beside_others_with_very_many_open_files";
    each(SandboxFixture::both(test), async |fixture| {
        fs::copy(&program, fixture.path("hoard")).unwrap();
        let cancel = CancellationToken::new();
        let flood = async |name: &str| {
            let command = format!("./hoard files 31 & : >{name}; wait");
            fixture.exec(&command, TIME, cancel.clone()).await
        };
        let names = ["one", "two", "three", "four", "five"];
        let mut floods: FuturesUnordered<_> = names.map(flood).into_iter().collect();
        let together = "more open files than all commands may have together".to_owned();
        let first = floods.next().await;
        assert_eq!(first, Some(Err(SandboxError::Limit(together))));

        let others = async {
            let mut longest = Duration::ZERO;
            for _ in 0..12 {
                let begun = Instant::now();
                assert_eq!(fixture.run("echo hi").await.stdout, "hi\n");
                longest = longest.max(begun.elapsed());
            }
            cancel.cancel();
            longest
        };
        let (floods, longest) = tokio::join!(floods.collect::<Vec<_>>(), others);

        println!("{}: the longest took {longest:?}", fixture.kind());
        assert_eq!(floods, vec![Err(SandboxError::Cancelled); 4]);
        assert!(longest < Duration::from_secs(2), "{longest:?}");
    })
    .await;
}

/// Takes all notifiers that the user has, so it runs alone.
#[tokio::test]
async fn a_command_that_hides_notifiers_and_gives_them_back_ends_and_no_other() {
    if TestSize::pick(0, 0, 1) == 0 {
        return;
    }
    let _alone = MACHINE.lock().await;
    let (_folder, program) = hoard();
    let test = "a_command_that_hides_notifiers_and_gives_them_back_ends_and_no_other";
    each(SandboxFixture::both(test), async |fixture| {
        if fixture.kind() == "landlock" {
            return; // has no notifiers
        }
        fs::copy(&program, fixture.path("hoard")).unwrap();
        let cancel = CancellationToken::new();
        let quiet = async |name: &str| {
            let begin = "for n in 1 2 3 4 5 6; do sleep 60 & done";
            let command = format!("{begin}; : >{name}; wait; echo fine");
            fixture.exec(&command, TIME * 2, cancel.clone()).await
        };
        let quiet = async { tokio::join!(quiet("one"), quiet("two"), quiet("three")) };
        let attacks = async {
            have_begun(&fixture, &["one", "two", "three"]).await;
            for _ in 0..5 {
                let attack = "./hoard toggled 1000";
                let ended = fixture.exec(attack, TIME, CancellationToken::new()).await;
                let what = "more inotify instances than all commands may have together";
                assert_eq!(ended, Err(SandboxError::Limit(what.to_owned())));
            }
            cancel.cancel();
        };
        let (quiet, ()) = tokio::join!(quiet, attacks);

        let cancelled = Err(SandboxError::Cancelled);
        assert_eq!(
            [quiet.0, quiet.1, quiet.2],
            [cancelled.clone(), cancelled.clone(), cancelled]
        );
    })
    .await;
}

/// Connections of a command's own, of which nothing is read: more than half of what the machine has
/// for TCP before it frees some.
#[tokio::test]
async fn a_command_that_fills_the_machines_memory_for_tcp_ends() {
    let _alone = MACHINE.lock().await;
    let (_folder, program) = hoard();
    // A control group slows it before that.
    let way = ControlGroups::Off;
    let test = "a_command_that_fills_the_machines_memory_for_tcp_ends";
    let limits = ExecLimits::default();
    let Some(fixture) = SandboxFixture::counted(test, Boundary::Bubblewrap, limits, way) else {
        return;
    };
    fs::copy(&program, fixture.path("hoard")).unwrap();

    let fills = fixture.exec("./hoard tcp 120", TIME, CancellationToken::new());
    let ended = fills.await;

    let stopped = "more memory of TCP than all commands may have together".to_owned();
    assert_eq!(ended, Err(SandboxError::Limit(stopped)));
}

/// The kernel's answers, which no control group counts, in 900 sockets of some 200 KiB.
#[tokio::test]
async fn a_command_that_reads_no_answer_of_netlink_ends() {
    let _alone = MACHINE.lock().await;
    let (_folder, program) = hoard();
    let test = "a_command_that_reads_no_answer_of_netlink_ends";
    for way in [ControlGroups::Auto, ControlGroups::Off] {
        let limits = ExecLimits::default();
        let Some(fixture) = SandboxFixture::counted(test, Boundary::Bubblewrap, limits, way) else {
            return;
        };
        fs::copy(&program, fixture.path("hoard")).unwrap();

        let few = fixture.exec(
            "./hoard netlink 20 & sleep 1; kill $!",
            TIME,
            CancellationToken::new(),
        );
        let fine = few.await.unwrap();
        let fills = fixture.exec("./hoard netlink 900", TIME, CancellationToken::new());
        let ended = fills.await;

        assert_eq!(fine.stdout, "held\n");
        let stopped = "more than 16 MiB of unread netlink answers".to_owned();
        assert_eq!(ended, Err(SandboxError::Limit(stopped)));
    }
}

/// Each mount of a command that begins waits for all that read the list of mounts, and these wait for a
/// processor.
#[tokio::test]
async fn crowds_that_read_the_list_of_mounts_stand_still_for_commands_that_begin() {
    let _alone = MACHINE.lock().await;
    let (_folder, program) = hoard();
    let spawner = Spawner::start().unwrap().among_tenants();
    let test = "crowds_that_read_the_list_of_mounts_stand_still_for_commands_that_begin";
    let make = || SandboxFixture::with(test, Boundary::Bubblewrap, ExecLimits::default(), &spawner);
    let (Some(crowded), Some(calm)) = (make(), make()) else {
        return;
    };
    fs::copy(&program, crowded.path("hoard")).unwrap();
    let cancel = CancellationToken::new();
    let of = |tenant: &str, command: &str| Exec {
        tenant: Some(tenant.parse().unwrap()),
        timeout: TIME * 3,
        ..Exec::new(command)
    };
    let crowd = || {
        crowded
            .sandbox
            .exec(of("acme", "./hoard mounts 400"), cancel.clone())
    };
    let crowds = futures_util::future::join_all((0..8).map(|_| crowd()));
    let others = async {
        let _ends = cancel.clone().drop_guard();
        let waits = calm
            .sandbox
            .exec(of("eta", "sleep 4"), CancellationToken::new());
        waits.await.unwrap(); // The crowds give way by then.
        let mut times = Vec::new();
        for _ in 0..6 {
            let began = Instant::now();
            let other = calm
                .sandbox
                .exec(of("zeta", "true"), CancellationToken::new());
            other.await.unwrap();
            times.push(began.elapsed());
        }
        times.sort_unstable();
        times
    };

    let (_, times) = tokio::join!(crowds, others);

    eprintln!("note: beside readers of the mounts: {times:?}");
    assert!(times[5] < Duration::from_secs(5), "{times:?}");
}

/// Commands also begin slowly because many begin at once, and then no crowd is the reason.
#[tokio::test]
async fn a_large_build_goes_on_while_commands_of_others_begin_all_the_time() {
    let _alone = MACHINE.lock().await;
    let spawner = Spawner::start().unwrap().among_tenants();
    let test = "a_large_build_goes_on_while_commands_of_others_begin_all_the_time";
    let make = || SandboxFixture::with(test, Boundary::Bubblewrap, ExecLimits::default(), &spawner);
    let (Some(built), Some(other)) = (make(), make()) else {
        return;
    };
    let cancel = CancellationToken::new();
    let of = |tenant: &str, command: &str| Exec {
        tenant: Some(tenant.parse().unwrap()),
        timeout: TIME * 3,
        ..Exec::new(command)
    };
    let build = "for n in $(seq 100); do sleep 60 & done; while sleep 0.05; do echo >> ticks; done";
    let build = built.sandbox.exec(of("acme", build), cancel.clone());
    let ticks = || fs::read(built.path("ticks")).map_or(0, |ticks| ticks.len());
    let others = async {
        let _ends = cancel.clone().drop_guard();
        let waits = other
            .sandbox
            .exec(of("eta", "sleep 4"), CancellationToken::new());
        waits.await.unwrap(); // The build gives way by then.
        let (begun, before) = (Instant::now(), ticks());
        while begun.elapsed() < Duration::from_secs(6) {
            let begin = || {
                other
                    .sandbox
                    .exec(of("zeta", "true"), CancellationToken::new())
            };
            futures_util::future::join_all((0..8).map(|_| begin())).await;
        }
        (ticks() - before) as f64 / begun.elapsed().as_secs_f64()
    };

    let (_, per_second) = tokio::join!(build, others);

    eprintln!("note: a build beside commands that begin: {per_second:.1} of 20 steps a second");
    assert!(per_second > 5.0, "{per_second} of 20 steps a second");
}
