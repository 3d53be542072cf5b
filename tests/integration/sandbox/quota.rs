//! The quota of a workspace behind both boundaries: files that a tenant creates in several commands
//! are bounded, removing files makes room, and other tenants on the same disk are not affected.

use callboard::sandbox::{WorkspaceQuota, WorkspaceUsage};

use super::*;

/// A workspace with a quota and a sandbox over it; `None`, with a note on standard error, where the
/// boundary does not work.
fn bounded(
    test: &str,
    only: Boundary,
    quota: WorkspaceQuota,
) -> Option<(SandboxFixture, Arc<Root>)> {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("workspace")).unwrap();
    let root = Arc::new(
        Root::open(folder.path().join("workspace"), PathRules::default())
            .unwrap()
            .bounded(quota),
    );
    let options = Options {
        only: Some(only),
        helper: Some(helper()),
        ..Options::default()
    };
    match detect_with(&root, Mode::Linux, &Spawner::start().unwrap(), options) {
        Ok(detected) => Some((
            SandboxFixture {
                folder,
                sandbox: detected.sandbox.unwrap(),
            },
            root,
        )),
        Err(error) => {
            writeln!(&mut std::io::stderr(), "SKIPPED: {test}: {error}").unwrap();
            None
        }
    }
}

const BOTH: [Boundary; 2] = [Boundary::Bubblewrap, Boundary::Landlock];

fn files(max: u64) -> WorkspaceQuota {
    WorkspaceQuota {
        files_max: Some(max),
        ..WorkspaceQuota::default()
    }
}

/// A command that creates files in a folder for as long as it is allowed, and reports when it is
/// done.
fn creating(folder: &str) -> String {
    format!(
        "mkdir -p {folder}; for ((n = 0; n < 1000000; n++)); do : >{folder}/$BASHPID.$n; done; echo through"
    )
}

async fn run(fixture: &SandboxFixture, command: &str) -> Result<ExecResult, SandboxError> {
    fixture
        .exec(command, Duration::from_secs(60), CancellationToken::new())
        .await
}

fn edit(root: &Root, path: &str) -> Result<(), PathError> {
    root.slot(path, true)?.replace(b"x")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_that_creates_files_command_after_command_is_stopped_at_its_quota_and_no_other_is()
{
    let test =
        "a_tenant_that_creates_files_command_after_command_is_stopped_at_its_quota_and_no_other_is";
    for only in BOTH {
        let Some((fixture, root)) = bounded(test, only, files(3000)) else {
            continue;
        };
        let Some((other, of_other)) = bounded(test, only, files(500)) else {
            continue;
        };
        fs::create_dir(other.path("full")).unwrap();
        (0..490).for_each(|n| fs::write(other.path(&format!("full/{n}")), "").unwrap());
        let stopped = "the workspace's quota is 3000 files and folders, and it has ";

        // A few files at a time, each command within all its limits.
        for n in 0..3 {
            let some = run(
                &fixture,
                &format!("mkdir d{n}; cd d{n}; touch {{1..900}}; echo fine"),
            )
            .await
            .unwrap();
            assert_eq!(
                (some.stdout.as_str(), some.stderr.as_str()),
                ("fine\n", ""),
                "{}",
                fixture.kind()
            );
        }
        assert_eq!(
            root.usage(),
            Some(WorkspaceUsage {
                files: 2703,
                bytes: None
            })
        );
        let (hoard, innocent) = tokio::join!(
            async { run(&fixture, &creating("e")).await },
            // This tenant has room for nine files while others create thousands on its disk.
            async {
                run(
                    &other,
                    "for n in {1..9}; do : >f$n; sleep 0.15; done; echo fine",
                )
                .await
            },
        );

        match &hoard {
            Err(SandboxError::Limit(what)) => {
                assert!(what.starts_with(stopped), "{}: {what}", fixture.kind())
            }
            other => panic!("{}: {other:?}", fixture.kind()),
        }
        assert_eq!(innocent.unwrap().stdout, "fine\n", "{}", fixture.kind());
        assert_eq!(of_other.usage().unwrap().files, 500);
        let held = root.usage().unwrap().files;
        assert!(held > 3000 && held < 200_000, "{}: {held}", fixture.kind());

        // Repeated, the excess stays within what one command can add before it is stopped.
        for n in 0..3 {
            let again = run(&fixture, &creating(&format!("f{n}")))
                .await
                .unwrap_err();
            assert!(
                again.to_string().contains(stopped),
                "{}: {again}",
                fixture.kind()
            );
        }
        assert!(matches!(
            edit(&root, "new.txt"),
            Err(PathError::Full { .. })
        ));
        assert!(edit(&root, "d0/1").is_ok(), "what is there may be changed");
        assert!(root.usage().unwrap().files < 200_000, "{:?}", root.usage());

        // Removing files makes room.
        assert_eq!(
            run(&fixture, "rm -rf e f0 f1 f2 d0").await.unwrap().status,
            Some(0),
            "{}",
            fixture.kind()
        );
        assert_eq!(
            root.usage(),
            Some(WorkspaceUsage {
                files: 1802,
                bytes: None
            })
        );
        assert_eq!(
            run(&fixture, "touch {1..900}; echo fine")
                .await
                .unwrap()
                .stdout,
            "fine\n"
        );
        assert!(edit(&root, "new.txt").is_ok());
    }
}

#[tokio::test]
async fn a_workspace_beyond_its_quota_runs_what_adds_nothing_and_far_beyond_it_only_removals() {
    let test =
        "a_workspace_beyond_its_quota_runs_what_adds_nothing_and_far_beyond_it_only_removals";
    for only in BOTH {
        let Some((fixture, root)) = bounded(test, only, files(100)) else {
            continue;
        };
        fs::create_dir(fixture.path("d")).unwrap();
        (0..200).for_each(|n| fs::write(fixture.path(&format!("d/{n}")), "").unwrap());

        let over = run(
            &fixture,
            "find d -name '1*' -delete; sleep 0.3; echo text >d/2; ls d | wc -l",
        )
        .await
        .unwrap();
        assert_eq!(over.stdout, "89\n", "{}", fixture.kind());
        root.set_quota(files(50));
        let over = run(&fixture, "echo read").await.unwrap();
        assert_eq!(
            over.stderr,
            "[the workspace's quota is 50 files and folders, and it has 90; remove some before more is created]"
        );

        (0..10_000).for_each(|n| {
            fs::hard_link(fixture.path("d/2"), fixture.path(&format!("d/x{n}"))).unwrap()
        });
        let refused = run(&fixture, "find d -delete").await.unwrap_err();
        assert_eq!(
            refused.to_string(),
            "stopped: the workspace's quota is 50 files and folders, and it has 10090; remove some first: until then only `rm` and `rmdir` with \
             plain names are run",
            "{}",
            fixture.kind()
        );
        assert_eq!(run(&fixture, "rm -rf d").await.unwrap().stderr, "");
        assert_eq!(
            run(&fixture, "touch {1..50}; echo fine")
                .await
                .unwrap()
                .stdout,
            "fine\n"
        );
    }
}

#[tokio::test]
async fn what_a_command_closes_hides_or_puts_into_a_repository_counts() {
    let test = "what_a_command_closes_hides_or_puts_into_a_repository_counts";
    for only in BOTH {
        let Some((fixture, root)) = bounded(test, only, files(1000)) else {
            continue;
        };
        for place in [
            "closed",
            ".ssh/hoard",
            ".git/objects/hoard",
            ".git/objects/closed",
        ] {
            let hide = if place.ends_with("closed") {
                "chmod 0"
            } else {
                "ls -d"
            };
            let before = root.count().files;

            run(
                &fixture,
                &format!("mkdir -p {place}/deep && touch {place}/deep/{{1..100}} && {hide} {place}/deep {place}; {hide} {place}"),
            )
            .await
            .unwrap();

            let after = root.usage().unwrap().files;
            assert!(
                (102..=106).contains(&(after - before)),
                "{}: {place}: {before} {after}",
                fixture.kind()
            );
            run(&fixture, "true").await.unwrap();
            assert_eq!(
                root.usage().unwrap().files,
                after,
                "{}: {place}",
                fixture.kind()
            );
        }
    }
}

/// Runs the tests of this file again as an unprivileged user, to whom a folder can be closed.
#[test]
fn the_quota_holds_for_commands_of_an_unprivileged_user_too() {
    stranger::again_as_stranger(&["sandbox::quota::"]);
}

#[tokio::test]
async fn a_tenant_that_writes_bytes_command_after_command_is_stopped_at_its_quota() {
    const MIB: u64 = 1 << 20;
    let quota = WorkspaceQuota {
        bytes_max: Some(64 * MIB),
        ..WorkspaceQuota::default()
    };
    for only in BOTH {
        let test = "a_tenant_that_writes_bytes_command_after_command_is_stopped_at_its_quota";
        let Some((fixture, root)) = bounded(test, only, quota) else {
            continue;
        };
        assert_eq!(
            run(&fixture, "head -c 48M /dev/zero >a; echo fine")
                .await
                .unwrap()
                .stdout,
            "fine\n"
        );
        assert!(root.usage().unwrap().bytes >= Some(48 * MIB));

        // Appends to one file, so that no folder changes.
        let stopped = run(
            &fixture,
            "for n in {1..200}; do head -c 4M /dev/zero >>a; sleep 0.05; done; echo through",
        )
        .await;

        match stopped {
            Err(SandboxError::Limit(what)) => assert!(
                what.starts_with("the workspace's quota is 67108864 bytes, and it has "),
                "{what}"
            ),
            other => panic!("{}: {other:?}", fixture.kind()),
        }
        assert!(matches!(edit(&root, "b"), Err(PathError::Full { .. })));
        assert_eq!(
            run(&fixture, ": >a; echo fine").await.unwrap().stdout,
            "fine\n"
        );
        assert!(edit(&root, "b").is_ok());
    }
}
