//! Files that a command could leave behind so that the user's own programs run them: repositories
//! that git finds, settings of editors and agents, names in a workspace too large to search, and
//! all of these when the host is killed during the command. Each attack is tried behind both
//! boundaries; then the user's git is run outside of them.

use std::{
    os::unix::{
        fs::{MetadataExt, symlink},
        process::ExitStatusExt,
    },
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
};

use callboard_actors::testing::TestSize;

use super::*;

/// A `config` that runs a program at `git status`.
pub(super) fn config(mark: &Path) -> String {
    format!(
        "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = .\n\tfsmonitor = \"touch {}; false\"\n",
        mark.display()
    )
}

/// Runs the user's git in a folder, without the user's settings.
pub(super) fn git(
    fixture: &SandboxFixture,
    folder: &str,
    arguments: &[&str],
) -> std::process::Output {
    Command::new("git")
        .args(["-c", "user.name=U", "-c", "user.email=u@example.org"])
        .args(arguments)
        .current_dir(fixture.path(folder))
        .env("HOME", fixture.folder.path())
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_EDITOR", "true")
        .output()
        .unwrap()
}

/// The boundaries behind which commands rename folders that hold keys.
fn moving(test: &str) -> impl Iterator<Item = SandboxFixture> {
    let covered = SandboxFixture::covered(test);
    SandboxFixture::linux(test).into_iter().chain(covered)
}

pub(super) fn user_git(fixture: &SandboxFixture, folder: &str, arguments: &[&str]) {
    let output = git(fixture, folder, arguments);
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Creates a repository of the user with one commit.
pub(super) fn users_repository(fixture: &SandboxFixture, folder: &str) {
    fs::create_dir_all(fixture.path(folder)).unwrap();
    user_git(fixture, folder, &["init", "-q", "-b", "main"]);
    fs::write(fixture.path(folder).join("kept"), "x").unwrap();
    user_git(fixture, folder, &["add", "kept"]);
    user_git(fixture, folder, &["commit", "-q", "-m", "one"]);
}

#[tokio::test]
async fn the_status_of_a_repository_writes_no_index() {
    each(
        SandboxFixture::both("the_status_of_a_repository_writes_no_index"),
        async |fixture| {
            users_repository(&fixture, "repo");
            let index = || fs::read(fixture.path("repo/.git/index")).unwrap();
            // Git has to compare the contents, and would note in the index that they are the same.
            fs::write(fixture.path("repo/kept"), "x").unwrap();
            let before = index();

            let result = fixture
                .run("cd repo && git status --short && echo read")
                .await;

            assert_eq!(result.stdout, "read\n", "{}", result.stderr);
            assert!(index() == before, "{}", fixture.kind());
        },
    )
    .await;
}

/// Creates `y` in the current folder: a repository whose configuration is the workspace's
/// `evil.txt`.
const EVIL_REPOSITORY: &str =
    "mkdir -p y/refs y/objects; echo 'ref: refs/heads/main' > y/HEAD; cp $OLDPWD/evil.txt y/config";

#[tokio::test]
async fn a_git_link_planted_by_a_command_runs_nothing_for_the_user() {
    each(SandboxFixture::both("a_git_link_planted_by_a_command_runs_nothing_for_the_user"), async |fixture| {
        let mark = fixture.folder.path().join("mark");
        fs::write(fixture.path("evil.txt"), config(&mark)).unwrap();
        let places =
            [("a", "/proc/self/cwd/y"), ("b", "y"), ("c", "../c/y"), ("d", "/proc/self/cwd/../d/y"), ("e", "/proc/thread-self/cwd/y")];
        users_repository(&fixture, "repo");
        fs::create_dir_all(fixture.path("repo/src")).unwrap();
        for (place, _) in places {
            fs::create_dir(fixture.path(place)).unwrap();
        }

        let mut command = places.map(|(place, target)| format!("cd {place}; {EVIL_REPOSITORY}; ln -s {target} .git; cd ..")).join("; ");
        command.push_str(&format!("; cd repo/src; {}; ln -s /proc/self/cwd/y .git", EVIL_REPOSITORY.replace("$OLDPWD", "../..")));
        let result = fixture.run(&command).await;
        // Repeat, now that the folders exist.
        fixture.run("cd a; rm -rf .git .git.refused; ln -s /proc/self/cwd/y .git; cd ..; ln -s b/y .git").await;

        for place in ["a", "b", "c", "d", "e", "repo/src", "."] {
            git(&fixture, place, &["status"]);
            assert!(!mark.exists(), "{}: {place}", fixture.kind());
            assert!(fs::symlink_metadata(fixture.path(place).join(".git")).is_err(), "{}: {place}", fixture.kind());
        }
        for (place, _) in places {
            assert!(result.stderr.contains(&format!("[refused: {place}/.git ")), "{}: {place}: {}", fixture.kind(), result.stderr);
        }
        assert!(result.stderr.contains("[refused: repo/src/.git "), "{}", result.stderr);
    })
    .await;
}

#[tokio::test]
async fn a_bare_repository_planted_by_a_command_runs_nothing_for_the_user() {
    each(SandboxFixture::both("a_bare_repository_planted_by_a_command_runs_nothing_for_the_user"), async |fixture| {
        let mark = fixture.folder.path().join("mark");
        fs::write(fixture.path("evil.txt"), config(&mark)).unwrap();
        for place in ["a", "b", "c", "d", "kept/refs", "kept/objects"] {
            fs::create_dir_all(fixture.path(place)).unwrap();
        }
        fs::write(fixture.path("kept/config"), "mine").unwrap();
        fs::write(fixture.path("kept/HEAD"), "ref: refs/heads/main\n").unwrap();

        let whole = fixture.run("cd a; mkdir refs objects; echo 'ref: refs/heads/main' > HEAD; cp ../evil.txt config").await;
        // The parts of the repository lie elsewhere, and a later command adds the last one.
        let apart =
            fixture.run("mkdir -p d/refs d/objects; cp evil.txt d/config; echo 'ref: refs/heads/main' > b/HEAD; cp evil.txt c/config").await;
        let joined = fixture.run("echo ../d > b/commondir; mkdir c/refs c/objects; echo 'ref: refs/heads/main' > c/HEAD").await;
        let old = fixture.run("cp evil.txt kept/config; rm -f kept/config; mv kept/config kept/x; mkdir kept/hooks; echo true > kept/hooks/post-index-change").await;

        for place in ["a", "b", "c", "d"] {
            git(&fixture, place, &["status"]);
            assert!(!mark.exists(), "{}: {place}", fixture.kind());
        }
        assert!(whole.stderr.contains("[refused: a/config "), "{}: {}", fixture.kind(), whole.stderr);
        assert!(!apart.stderr.contains("[refused"), "{}", apart.stderr);
        assert!(joined.stderr.contains("[refused: b/commondir ") && joined.stderr.contains("[refused: c/config "), "{}", joined.stderr);
        assert_eq!(fs::read_to_string(fixture.path("kept/config")).unwrap(), "mine", "{}: {}", fixture.kind(), old.stderr);
        assert!(!fixture.path("kept/hooks").exists());
    })
    .await;
}

#[tokio::test]
async fn worktrees_submodules_and_rebases_of_the_user_run_nothing_of_a_command() {
    each(SandboxFixture::both("worktrees_submodules_and_rebases_of_the_user_run_nothing_of_a_command"), async |fixture| {
        let mark = fixture.folder.path().join("mark");
        users_repository(&fixture, "repo");
        user_git(&fixture, "repo", &["worktree", "add", "-q", "../wt"]);
        fs::create_dir_all(fixture.path("evil/refs")).unwrap();
        fs::create_dir_all(fixture.path("evil/objects")).unwrap();
        fs::write(fixture.path("evil/config"), config(&mark)).unwrap();
        fs::create_dir_all(fixture.path("repo/.git/modules/sub/refs")).unwrap();
        fs::create_dir_all(fixture.path("repo/.git/modules/sub/objects")).unwrap();
        fs::write(fixture.path("repo/.git/modules/sub/HEAD"), "ref: refs/heads/main\n").unwrap();
        fs::write(fixture.path("repo/.git/modules/sub/config"), "mine").unwrap();
        let before = fs::read_to_string(fixture.path("repo/.git/worktrees/wt/commondir")).unwrap();

        fixture
            .run(
                "cd repo/.git; echo ../../../../evil > worktrees/wt/commondir; cp ../../evil/config worktrees/wt/config.worktree; \
                 rm -f worktrees/wt/commondir; echo ../../../../evil > worktrees/wt/commondir; echo x > worktrees/wt/gitdir; \
                 cp ../../evil/config modules/sub/config; mkdir modules/sub/hooks; echo true > modules/sub/hooks/post-checkout; \
                 mkdir -p worktrees/new && echo 'ref: refs/heads/main' > worktrees/new/HEAD && echo ../../../../evil > worktrees/new/commondir; \
                 mkdir rebase-merge && echo 'x true' > rebase-merge/git-rebase-todo",
            )
            .await;

        git(&fixture, "wt", &["status"]);
        assert!(!mark.exists(), "{}", fixture.kind());
        assert_eq!(fs::read_to_string(fixture.path("repo/.git/worktrees/wt/commondir")).unwrap(), before, "{}", fixture.kind());
        assert_eq!(fs::read_to_string(fixture.path("repo/.git/modules/sub/config")).unwrap(), "mine");
        for absent in ["worktrees/wt/config.worktree", "worktrees/new/commondir", "modules/sub/hooks", "rebase-merge/git-rebase-todo"] {
            assert!(!fixture.path("repo/.git").join(absent).exists(), "{}: {absent}", fixture.kind());
        }
    })
    .await;
}

#[tokio::test]
async fn git_repairs_no_working_tree_outside_of_the_workspace_for_a_command() {
    each(SandboxFixture::both("git_repairs_no_working_tree_outside_of_the_workspace_for_a_command"), async |fixture| {
        users_repository(&fixture, "repo");
        let outside = fixture.path("../outside");
        fs::create_dir(&outside).unwrap();
        fs::create_dir(fixture.path("../victim")).unwrap();
        let pointer = outside.join(".git");

        fixture
            .run(&format!(
                "cd repo; git worktree add -qb side ../wt; cd .git/worktrees; cp -r wt forged; echo {} > forged/gitdir; \
                 cp -r wt above; echo ../../../../../outside/.git > above/gitdir; \
                 mkdir ../victim; cp -r wt other; echo ../../victim/.git > other/gitdir",
                pointer.display()
            ))
            .await;
        user_git(&fixture, "repo", &["worktree", "repair"]);

        let kept = |name: &str| fixture.path(&format!("repo/.git/worktrees/{name}/gitdir")).exists();
        assert!(!pointer.exists(), "{}", fixture.kind());
        assert!(!fixture.path("../victim/.git").exists(), "{}", fixture.kind());
        assert_eq!(["wt", "forged", "above", "other"].map(kept), [true, false, false, false], "{}", fixture.kind());
    })
    .await;
}

/// Sets an identity for git, as a command would: the user's is not visible inside.
const WHO: &str = "export GIT_AUTHOR_NAME=A GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=A GIT_COMMITTER_EMAIL=a@example.org GIT_EDITOR=true; set -e; ";

#[tokio::test]
async fn a_command_works_with_git_as_before() {
    let Some(fixture) = SandboxFixture::linux("a_command_works_with_git_as_before") else {
        return;
    };
    users_repository(&fixture, "repo");
    let run = async |command: &str| {
        let result = fixture.run(&format!("{WHO}{command}")).await;
        assert_eq!(result.status, Some(0), "{command}: {}", result.stderr);
        result
    };

    run("cd repo; echo a > f; git add f; git commit -qm two; git checkout -qb side; echo b > f; git commit -qam three; git checkout -q main; \
         echo other > g; git add g; git commit -qm four; git merge -q -m merged side; echo c >> f; git stash -q; git stash pop -q; \
         git commit -qam five; git checkout -qb topic main~1; echo t > t; git add t; git commit -qm topic; git rebase -q main; git tag v1")
    .await;
    let cloned =
        run("git clone -q repo copy; cd copy; git log --oneline | wc -l; git status --porcelain")
            .await;
    let stopped =
        run("cd repo; git checkout -q main; git checkout -qb left; echo l > f; git commit -qam left; git checkout -q main; echo r > f; \
         git commit -qam right; git checkout -q left; git rebase main || true; git status | head -2")
        .await;
    let continued =
        run("cd repo; echo lr > f; git add f; git rebase --continue; git log --oneline | head -1; test ! -e .git/rebase-merge").await;

    assert!(
        cloned.stdout.starts_with('7') || cloned.stdout.starts_with('8'),
        "{}",
        cloned.stdout
    );
    assert!(
        stopped.stdout.contains("rebase in progress") && !stopped.stderr.contains("[refused"),
        "{} {}",
        stopped.stdout,
        stopped.stderr
    );
    assert!(continued.stdout.contains("left"), "{}", continued.stdout);
    let log = git(&fixture, "repo", &["log", "--oneline"]);
    assert!(log.status.success() && String::from_utf8_lossy(&log.stdout).lines().count() >= 7);
}

#[tokio::test]
async fn a_new_repository_of_a_command_stays_without_its_configuration() {
    let Some(fixture) =
        SandboxFixture::linux("a_new_repository_of_a_command_stays_without_its_configuration")
    else {
        return;
    };
    let make = "mkdir new; cd new; git init -q -b main; echo a > f; git add f; git commit -qm one; cd ..; git clone -q --bare new bare.git";

    let result = fixture.run(&format!("{WHO}{make}")).await;
    let more = fixture
        .run(&format!(
            "{WHO}cd new; echo b > f; git commit -qam two; git push -q ../bare.git main"
        ))
        .await;

    assert_eq!(
        (result.status, more.status),
        (Some(0), Some(0)),
        "{} {}",
        result.stderr,
        more.stderr
    );
    for config in ["new/.git/config", "bare.git/config"] {
        assert!(
            result.stderr.contains(&format!("[refused: {config} ")),
            "{}",
            result.stderr
        );
    }
    assert!(
        !result.stderr.contains("hooks"),
        "git's own samples stay: {}",
        result.stderr
    );
    for place in ["new", "bare.git"] {
        user_git(&fixture, place, &["log", "--oneline", "-2"]);
    }
}

/// Does what a file tool does with each path.
fn edit(root: &Root, path: &str) -> Result<(), PathError> {
    root.slot(path, true)?.replace(b"x")
}

#[test]
fn file_tools_put_no_repository_together() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for name in ["bare/objects", "bare/refs", "work/objects", "meta"] {
        fs::create_dir_all(path(name)).unwrap();
    }
    fs::write(path("bare/HEAD"), "ref: refs/heads/main").unwrap();
    fs::write(path("bare/config"), "mine").unwrap();
    let root = Root::open(folder.path(), PathRules::default()).unwrap();
    let refused = |path: &str| {
        assert_eq!(
            edit(&root, path),
            Err(PathError::Protected(path.to_owned())),
            "{path}"
        )
    };

    for name in [
        "config",
        "config.worktree",
        "commondir",
        "hooks/post-checkout",
        "worktrees/x/HEAD",
        "modules/x/config",
        "rebase-merge/git-rebase-todo",
    ] {
        refused(&format!("bare/{name}"));
    }
    for name in [
        "new/HEAD",
        "new/config",
        "new/objects/x",
        "work/config",
        "work/refs/x",
        "meta/HEAD",
        "bare/description",
        "bare/refs/x",
    ] {
        edit(&root, name).unwrap();
    }
    for name in ["new/refs/heads/main", "work/HEAD", "meta/commondir"] {
        refused(name);
    }
    assert_eq!(fs::read_to_string(path("bare/config")).unwrap(), "mine");
    assert!(!path("new/refs").exists() && !path("work/HEAD").exists());
}

#[test]
fn file_tools_that_write_at_once_put_no_repository_together() {
    for _ in 0..50 {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path(), PathRules::default()).unwrap();

        std::thread::scope(|scope| {
            for name in ["d/HEAD", "d/config", "d/objects/x", "d/refs/x"] {
                let root = &root;
                scope.spawn(move || edit(root, name));
            }
        });

        let parts = ["HEAD", "objects", "refs"]
            .iter()
            .filter(|part| folder.path().join("d").join(part).exists())
            .count();
        assert!(parts < 3);
    }
}

#[tokio::test]
async fn a_folder_of_skills_in_the_workspace_is_written_by_no_tool() {
    let boundaries =
        [Boundary::Bubblewrap, Boundary::Landlock].map(|only| (format!("{only:?}"), only));
    each_of(boundaries, async |only| {
        let folder = tempfile::tempdir().unwrap();
        let rules =
            PathRules::default().and_protected(folder.path(), &folder.path().join("my/skills"));
        let root = Arc::new(Root::open(folder.path(), rules).unwrap());
        let options = Options {
            only: Some(only),
            helper: Some(helper()),
            ..Options::default()
        };
        let Ok(detected) = detect_with(&root, Mode::Linux, &Spawner::start().unwrap(), options)
        else {
            writeln!(
                &mut std::io::stderr(),
                "SKIPPED: a_folder_of_skills_in_the_workspace_is_written_by_no_tool: {only:?}"
            )
            .unwrap();
            return;
        };
        let skill = folder.path().join("my/skills/x/SKILL.md");
        let run = async |command: &str| {
            detected
                .sandbox
                .as_ref()
                .unwrap()
                .exec(Exec::new(command), CancellationToken::new())
                .await
                .unwrap()
        };

        let absent = run("mkdir -p my/skills/x; echo evil > my/skills/x/SKILL.md").await;
        assert!(
            !skill.exists() && absent.stderr.contains("[refused: my/skills "),
            "{}",
            absent.stderr
        );
        fs::create_dir_all(skill.parent().unwrap()).unwrap();
        fs::write(&skill, "mine").unwrap();
        run(
            "echo evil > my/skills/x/SKILL.md; mkdir my/skills/y; mv my/skills my/other; rm -rf my",
        )
        .await;

        assert_eq!(fs::read_to_string(&skill).unwrap(), "mine");
        assert!(!folder.path().join("my/skills/y").exists());
        assert!(matches!(
            edit(&root, "my/skills/x/SKILL.md"),
            Err(PathError::Protected(_))
        ));
    })
    .await;
}

#[tokio::test]
async fn files_of_editors_and_agents_are_written_by_no_command() {
    const PLACES: [&str; 27] = [
        "AGENTS.md",
        "sub/CLAUDE.md",
        ".claude/settings.json",
        ".cursor/rules/a.mdc",
        ".cursorrules",
        ".windsurf/x",
        ".husky/pre-commit",
        ".idea/workspace.xml",
        "sub/.vscode/tasks.json",
        ".vscode/settings.json",
        ".devcontainer/devcontainer.json",
        ".pre-commit-config.yaml",
        ".tool-versions",
        "sub/rust-toolchain.toml",
        "rust-toolchain",
        "sub/.mvn/jvm.config",
        ".perldb",
        "hk.local.pkl",
        ".svn/wc.db",
        ".fslckout",
        ".poetry/plugins/x.py",
        "tools/bazel",
        "pnpm-workspace.yaml",
        ".nvmrc",
        ".gitlint",
        "bunfig.toml",
        "a.code-workspace",
    ];
    each(
        SandboxFixture::both("files_of_editors_and_agents_are_written_by_no_command"),
        async |fixture| {
            let plant = PLACES
                .map(|place| format!("mkdir -p $(dirname {place}); echo evil > {place}"))
                .join("; ");

            let absent = fixture.run(&plant).await;
            for place in PLACES {
                assert!(
                    fs::symlink_metadata(fixture.path(place)).is_err(),
                    "{}: {place}: {}",
                    fixture.kind(),
                    absent.stderr
                );
                fs::create_dir_all(fixture.path(place).parent().unwrap()).unwrap();
                fs::write(fixture.path(place), "mine").unwrap();
            }
            let there = fixture
                .run(&format!(
                    "cat {}; {plant}; rm -rf {}",
                    PLACES.join(" "),
                    PLACES.join(" ")
                ))
                .await;

            assert_eq!(
                there.stdout,
                "mine".repeat(PLACES.len()),
                "they can be read"
            );
            for place in PLACES {
                assert_eq!(
                    fs::read_to_string(fixture.path(place)).unwrap(),
                    "mine",
                    "{}: {place}",
                    fixture.kind()
                );
            }
        },
    )
    .await;
}

#[tokio::test]
async fn a_large_workspace_is_guarded_like_a_small_one() {
    each(SandboxFixture::both("a_large_workspace_is_guarded_like_a_small_one"), async |fixture| {
        let is_long = TestSize::is_long();
        let (folders, files) = if is_long { (20_000, 15) } else { (2_500, 1) };
        for n in 0..folders {
            let path = fixture.path(&format!("aaa/{}/{}/{n}", n % 10, n % 100));
            fs::create_dir_all(&path).unwrap();
            (0..files).for_each(|n| fs::write(path.join(n.to_string()), "").unwrap());
        }
        fs::create_dir(fixture.path("crowd")).unwrap();
        let crowd = fixture.path("crowd/0");
        fs::write(&crowd, "").unwrap();
        (1..60_000).for_each(|n| fs::hard_link(&crowd, fixture.path(&format!("crowd/{n}"))).unwrap());
        for (path, text) in [("zz/sub/.git/config", "mine"), ("zz/sub/.git/hooks/x.sample", "mine"), ("deploy/.env", "KEY=needle")] {
            fs::create_dir_all(fixture.path(path).parent().unwrap()).unwrap();
            fs::write(fixture.path(path), text).unwrap();
        }
        let attack = "cat deploy/.env; base64 deploy/.env; echo evil >> zz/sub/.git/config; echo evil > zz/sub/.git/hooks/pre-commit; \
                      mkdir -p zz/new/.git/hooks; echo evil > zz/new/.git/hooks/pre-commit; echo evil > crowd/.bashrc; echo evil > aaa/9/99/.envrc";

        let mut times = Vec::new();
        let mut last = ExecResult::default();
        for command in ["true", "true", "true", attack] {
            let start = Instant::now();
            last = fixture.run(command).await;
            times.push(start.elapsed());
        }

        writeln!(&mut std::io::stderr(), "note: {}: {folders} folders: {times:?}", fixture.kind()).unwrap();
        assert_eq!(last.stdout, "", "{}", fixture.kind());
        assert_eq!(fs::read_to_string(fixture.path("zz/sub/.git/config")).unwrap(), "mine");
        for absent in ["zz/sub/.git/hooks/pre-commit", "zz/new/.git/hooks", "crowd/.bashrc", "aaa/9/99/.envrc"] {
            assert!(!fixture.path(absent).exists(), "{}: {absent}: {}", fixture.kind(), last.stderr);
        }
    })
    .await;
}

#[tokio::test]
async fn a_workspace_that_cannot_be_guarded_runs_no_command_and_says_why() {
    each(SandboxFixture::both("a_workspace_that_cannot_be_guarded_runs_no_command_and_says_why"), async |fixture| {
        for n in 0..1001 {
            fs::create_dir(fixture.path(&n.to_string())).unwrap();
            fs::write(fixture.path(&format!("{n}/.env")), "").unwrap();
        }

        let refused = fixture.exec("touch ran", Duration::from_secs(20), CancellationToken::new()).await;

        assert!(
            matches!(&refused, Err(SandboxError::Failed(why)) if why.starts_with("the workspace cannot be guarded: more than 1000")),
            "{refused:?}"
        );
        assert!(!fixture.path("ran").exists());
        (1..1001).for_each(|n| fs::remove_dir_all(fixture.path(&n.to_string())).unwrap());
        assert_eq!(fixture.run("true").await.status, Some(0), "{}", fixture.kind());
    })
    .await;
}

#[tokio::test]
async fn what_a_command_planted_is_moved_aside_when_the_host_is_killed() {
    each(SandboxFixture::both("what_a_command_planted_is_moved_aside_when_the_host_is_killed"), async |fixture| {
        let planted = [".mcp.json", ".git/hooks/post-checkout", ".envrc", "sub/.git"];
        fs::write(fixture.path("callboard.toml"), "mine").unwrap();
        fs::create_dir(fixture.path("sub")).unwrap();
        symlink("mine", fixture.path(".bashrc")).unwrap();
        let command = "mkdir -p sub/new/.git; echo {} > sub/new/.mcp.json; echo x > sub/new/.git/config; \
                       echo {} > .mcp.json; mkdir -p .git/hooks; echo evil > .git/hooks/post-checkout; echo x > .envrc; \
                       ln -s /proc/self/cwd/y sub/.git; echo > sub/started; sleep 60";
        let mut host = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "sandbox::ends::child_host"])
            .env("CALLBOARD_TEST_KILL_NINE", fixture.path(""))
            .env("CALLBOARD_TEST_KIND", fixture.kind())
            .env("CALLBOARD_TEST_COMMAND", command)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("the command", Duration::from_secs(20), || fixture.path("sub/started").exists()).await;

        host.kill().unwrap();
        let ended = host.wait().unwrap();

        assert_eq!(ended.signal(), Some(9));
        let gone = || {
            let places = planted.iter().copied().chain(["sub/new/.mcp.json", "sub/new/.git/config"]);
            places.into_iter().all(|place| fs::symlink_metadata(fixture.path(place)).is_err())
        };
        wait_until("the sweep", Duration::from_secs(3), gone).await;
        assert_eq!(fs::read_to_string(fixture.path("callboard.toml")).unwrap(), "mine");
        assert_eq!(fs::read_link(fixture.path(".bashrc")).unwrap(), Path::new("mine"), "the user's own stay");
    })
    .await;
}

/// Every boundary, and Landlock without a mount namespace: there, rules apply to files and not to
/// places.
pub(super) fn all(test: &str) -> impl Iterator<Item = SandboxFixture> {
    SandboxFixture::linux(test)
        .into_iter()
        .chain(SandboxFixture::landlocks(test))
}

/// Files that are known by the names of the folders above them, each with these folders.
const KNOWN_BY_FOLDERS: &[(&str, &[&str])] = &[
    (".aws/credentials", &[".aws"]),
    (".kube/config", &[".kube"]),
    (".docker/config.json", &[".docker"]),
    (".config/gh/hosts.yml", &[".config/gh", ".config"]),
    (".config/gcloud/x", &[".config"]),
    (".cargo/credentials.toml", &[".cargo"]),
    (
        ".local/share/callboard/trust.json",
        &[".local/share", ".local"],
    ),
    ("sub/.aws/sso/x", &["sub/.aws"]),
    (".vscode/tasks.json", &[".vscode"]),
    (".hg/hgrc", &[".hg"]),
    ("_darcs/prefs/defaults", &["_darcs/prefs", "_darcs"]),
    (".jj/repo/config.toml", &[".jj/repo", ".jj"]),
    ("sub/.config/fish/config.fish", &["sub/.config"]),
    (".github/instructions/x.md", &[".github"]),
];

#[tokio::test]
async fn folders_by_whose_names_files_are_hidden_or_protected_stay_where_they_are() {
    let test = "folders_by_whose_names_files_are_hidden_or_protected_stay_where_they_are";
    let holds_keys = |file: &str| PathRules::default().is_sensitive(Path::new(file));
    let text = |file: &str| {
        if holds_keys(file) {
            "fake-key-of-a-test"
        } else {
            "mine"
        }
    };
    each(all(test), async |fixture| {
        for (file, _) in KNOWN_BY_FOLDERS {
            fs::create_dir_all(fixture.path(file).parent().unwrap()).unwrap();
            fs::write(fixture.path(file), text(file)).unwrap();
        }
        fs::create_dir_all(fixture.path("sub/src")).unwrap();
        let folders = KNOWN_BY_FOLDERS.iter().flat_map(|(_, folders)| *folders);
        let moves: Vec<String> = folders
            .enumerate()
            .map(|(n, folder)| format!("mv {folder} moved{n}"))
            .collect();

        fixture.run(&format!("{}; rm -rf .aws .vscode", moves.join("; "))).await;
        let read = fixture.run("grep -rs fake-key .").await;
        let written = fixture.run("for f in moved*; do find $f -type f | while read g; do echo evil > $g; done; done").await;

        assert_eq!(read.stdout, "", "{}: {}", fixture.kind(), written.stderr);
        for (file, _) in KNOWN_BY_FOLDERS {
            let now = fs::read_to_string(fixture.path(file)).unwrap_or_default();
            assert_eq!(now, text(file), "{}: {file}", fixture.kind());
        }
        if fixture.kind() == "landlock-closed" {
            return;
        }
        let work = fixture
            .run("set -e; echo x > .vscode/extensions.json; mv .vscode/extensions.json .vscode/y; rm .vscode/y; mkdir .config/new; \
                  echo x > .cargo/new; mv .cargo/new ./new; mkdir .github/workflows; mv sub/src src; mv sub renamed")
            .await;
        assert_eq!((work.status, work.stderr.as_str()), (Some(0), ""), "{}", fixture.kind());
        assert!(fixture.path("renamed/.aws/sso/x").exists() && fixture.path("src").exists());
    })
    .await;
}

#[tokio::test]
async fn what_a_command_of_another_sandbox_leaves_is_not_taken_for_the_users() {
    let test = "what_a_command_of_another_sandbox_leaves_is_not_taken_for_the_users";
    each(SandboxFixture::both(test), async |fixture| {
        let only = if fixture.kind() == "bubblewrap" { Boundary::Bubblewrap } else { Boundary::Landlock };
        let other = boundary(&fixture.path(""), only, ExecLimits::default()).unwrap();
        fs::create_dir(fixture.path(".idea")).unwrap();
        let first = fixture.run(
            "mkdir -p sub/.vscode sub/.hg stash; echo evil > sub/.vscode/tasks.json; echo evil > sub/.hg/hgrc; echo evil > sub/.envrc; touch planted; \
             while [ ! -e begun ]; do sleep 0.02; done; mv sub/.vscode/tasks.json sub/.hg/hgrc sub/.envrc stash/",
        );
        let second = async {
            wait_until("what it plants", Duration::from_secs(20), || fixture.path("planted").exists()).await;
            let exec = Exec {
                timeout: Duration::from_secs(20),
                ..Exec::new("touch begun; while [ ! -e go ]; do sleep 0.02; done; mkdir e e/.hg; mv stash/.envrc e/; mv stash/hgrc e/.hg/; mv stash .vscode; ls -A . e .vscode")
            };
            other.exec(exec, CancellationToken::new()).await.unwrap()
        };
        let first = async {
            let result = first.await;
            fs::write(fixture.path("go"), "").unwrap();
            result
        };
        let (before, result) = futures_util::join!(first, second);

        for planted in [".vscode/tasks.json", "e/.envrc", "e/.hg/hgrc"] {
            assert!(!fixture.path(planted).exists(), "{}: {planted}: {}", fixture.kind(), result.stdout);
        }
        let names = fs::read_dir(fixture.path("")).unwrap().map(|entry| entry.unwrap().file_name());
        let names: Vec<_> = names.collect();
        assert!(
            fixture.path(".idea").exists(),
            "the user's own stay: {names:?} after {} and {}", before.stdout, result.stdout
        );
    })
    .await;
}

#[tokio::test]
async fn what_a_command_in_a_workspace_above_or_below_leaves_is_not_taken_for_the_users() {
    let test = "what_a_command_in_a_workspace_above_or_below_leaves_is_not_taken_for_the_users";
    for is_first_above in [true, false] {
        each(SandboxFixture::both(test), async |fixture| {
            let only = if fixture.kind() == "bubblewrap" { Boundary::Bubblewrap } else { Boundary::Landlock };
            fs::create_dir_all(fixture.path("sub/e")).unwrap();
            fs::write(fixture.path("sub/.envrc"), "mine").unwrap();
            let below = boundary(&fixture.path("sub"), only, ExecLimits::default()).unwrap();
            let (first, second) = if is_first_above { (&fixture.sandbox, &below) } else { (&below, &fixture.sandbox) };
            let exec = |is_above: bool, command: &str| Exec {
                timeout: Duration::from_secs(20),
                ..Exec::new(format!("{}{command}", if is_above { "cd sub; " } else { "" }))
            };
            let plants = exec(
                is_first_above,
                "mkdir .vscode; echo evil > .vscode/tasks.json; touch planted; while [ ! -e begun ]; do sleep 0.02; done; \
                 ln .vscode/tasks.json keep; rm -r .vscode",
            );
            let takes = exec(
                !is_first_above,
                "touch begun; while [ ! -e go ]; do sleep 0.02; done; mkdir e/.vscode; mv keep e/.vscode/tasks.json; ls -A e",
            );
            let first = async {
                first.exec(plants, CancellationToken::new()).await.unwrap();
                fs::write(fixture.path("sub/go"), "").unwrap();
            };
            let second = async {
                wait_until("what it plants", Duration::from_secs(20), || fixture.path("sub/planted").exists()).await;
                second.exec(takes, CancellationToken::new()).await.unwrap()
            };
            let ((), result) = futures_util::join!(first, second);

            assert!(!fixture.path("sub/e/.vscode/tasks.json").exists(), "{}: {}", fixture.kind(), result.stdout);
            assert_eq!(fs::read_to_string(fixture.path("sub/.envrc")).unwrap(), "mine", "the user's own stay");
        })
        .await;
    }
}

/// The watchdog of a host: its child that has this stage.
fn watchdog_of(host: u32) -> Option<rustix::process::Pid> {
    let text = |pid: &str, file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let numbers = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    let is_watchdog = |pid: &String| {
        let stat = String::from_utf8_lossy(&text(pid, "stat")).into_owned();
        let parent = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.split(' ').nth(1).map(str::to_owned));
        parent == Some(host.to_string())
            && text(pid, "cmdline")
                .split(|byte| *byte == 0)
                .any(|word| word == b"watchdog")
    };
    numbers
        .into_iter()
        .find(is_watchdog)
        .and_then(|pid| rustix::process::Pid::from_raw(pid.parse().unwrap()))
}

/// A host whose command has created a protected file and runs on.
async fn host_that_plants(fixture: &SandboxFixture) -> std::process::Child {
    let host = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "sandbox::ends::child_host"])
        .env("CALLBOARD_TEST_KILL_NINE", fixture.path(""))
        .env("CALLBOARD_TEST_KIND", fixture.kind())
        .env(
            "CALLBOARD_TEST_COMMAND",
            "mkdir .vscode; echo evil > .vscode/tasks.json; echo > started; sleep 60",
        )
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the command", Duration::from_secs(20), || {
        fixture.path("started").exists()
    })
    .await;
    host
}

#[tokio::test]
async fn a_watchdog_that_is_asked_to_end_beside_its_host_still_sweeps() {
    use rustix::process::{Signal, kill_process};
    let test = "a_watchdog_that_is_asked_to_end_beside_its_host_still_sweeps";
    each(SandboxFixture::both(test), async |fixture| {
        let mut host = host_that_plants(&fixture).await;
        let watchdog = watchdog_of(host.id()).unwrap();
        for signal in [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM] {
            kill_process(watchdog, signal).unwrap();
        }
        assert_eq!(
            rustix::process::getsid(Some(watchdog)),
            Ok(watchdog),
            "what ends a terminal does not reach it"
        );

        host.kill().unwrap();
        host.wait().unwrap();

        wait_until("the sweep", Duration::from_secs(10), || {
            !fixture.path(".vscode/tasks.json").exists()
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn a_command_that_begins_before_a_killed_host_is_swept_for_takes_nothing_of_it_for_the_users()
{
    let test =
        "a_command_that_begins_before_a_killed_host_is_swept_for_takes_nothing_of_it_for_the_users";
    each(SandboxFixture::both(test), async |fixture| {
        fs::create_dir(fixture.path("e")).unwrap();
        fs::write(fixture.path(".envrc"), "mine").unwrap();
        let mut host = host_that_plants(&fixture).await;
        // Its sweep may take seconds.
        let watchdog = watchdog_of(host.id()).unwrap();
        rustix::process::kill_process(watchdog, rustix::process::Signal::STOP).unwrap();
        host.kill().unwrap();
        host.wait().unwrap();

        let result = fixture.run("ls -A").await;

        let is_left = fixture.path(".vscode/tasks.json").exists();
        rustix::process::kill_process(watchdog, rustix::process::Signal::CONT).unwrap();
        assert!(
            result.stdout.contains(".vscode") && !is_left,
            "{}: {}",
            fixture.kind(),
            result.stderr
        );
        assert_eq!(
            fs::read_to_string(fixture.path(".envrc")).unwrap(),
            "mine",
            "the user's own stay"
        );
    })
    .await;
}

#[tokio::test]
async fn hard_links_of_the_users_are_covered_whatever_their_names() {
    use std::os::unix::ffi::OsStrExt;

    let test = "hard_links_of_the_users_are_covered_whatever_their_names";
    each(all(test), async |fixture| {
        let odd = std::ffi::OsStr::from_bytes(b"odd\xff");
        let places = [fixture.path("b"), fixture.path("").join(odd)];
        for (file, text) in [(".env", "KEY=needle"), (".envrc", "mine")] {
            fs::write(fixture.path(file), text).unwrap();
        }
        for place in &places {
            fs::create_dir(place).unwrap();
            fs::hard_link(fixture.path(".env"), place.join("x")).unwrap();
            fs::hard_link(fixture.path(".envrc"), place.join("y")).unwrap();
        }

        fixture.run(r"mv b $'b\xff'; mv $'odd\xff' c").await;
        let read = fixture.run("cat $(find . -name x); find . -name y | while read -r f; do echo evil > \"$f\"; done; cat */x */y").await;

        assert!(!read.stdout.contains("needle"), "{}: {}", fixture.kind(), read.stdout);
        assert_eq!(fs::read_to_string(fixture.path(".envrc")).unwrap(), "mine", "{}", fixture.kind());
    })
    .await;
}

#[tokio::test]
async fn what_the_user_replaces_while_a_command_runs_is_not_left_as_the_command_wrote_it() {
    let test = "what_the_user_replaces_while_a_command_runs_is_not_left_as_the_command_wrote_it";
    each(all(test), async |fixture| {
        users_repository(&fixture, "repo");
        fs::create_dir(fixture.path("repo/w")).unwrap();
        fs::write(fixture.path("repo/AGENTS.md"), "mine").unwrap();
        let mark = fixture.folder.path().join("mark");
        let evil = config(&mark);
        fs::write(fixture.path("repo/w/evil.txt"), &evil).unwrap();
        // Replaces the file as git does with its configuration (`git push -u`) and as editors do.
        // Then another file gets the inode number of the old one.
        let attack = "cd repo/w; old=$(stat -c %i ../AGENTS.md); touch started; while [ ! -e go ]; do sleep 0.02; done; \
                      cat evil.txt > ../.git/config; ln ../.git/config ../.git/hard; rm ../AGENTS.md && for n in {1..300}; do echo evil > n$n; done; \
                      mv $(find . -inum $old) ../AGENTS.md; echo done";
        let task = async {
            wait_until("the command", Duration::from_secs(10), || fixture.path("repo/w/started").exists()).await;
            user_git(&fixture, "repo", &["config", "user.name", "U"]);
            fs::write(fixture.path("repo/AGENTS.md~"), "mine, too").unwrap();
            fs::rename(fixture.path("repo/AGENTS.md~"), fixture.path("repo/AGENTS.md")).unwrap();
            fs::write(fixture.path("repo/w/go"), "").unwrap();
        };
        let (result, ()) = tokio::join!(fixture.run(attack), task);

        assert!(result.stdout.ends_with("done\n"), "{}: {}", fixture.kind(), result.stderr);
        git(&fixture, "repo", &["status"]);
        assert!(!mark.exists(), "{}: {}", fixture.kind(), result.stderr);
        let read = |path: &str| fs::read_to_string(fixture.path(path)).unwrap_or_default();
        assert!(!read("repo/.git/config").contains("fsmonitor") && !read("repo/AGENTS.md").contains("evil"), "{}", result.stderr);
    })
    .await;
}

#[tokio::test]
async fn a_command_gives_no_second_name_to_a_protected_file_and_writes_none_through_one_of_the_users()
 {
    let test = "a_command_gives_no_second_name_to_a_protected_file_and_writes_none_through_one_of_the_users";
    each(all(test), async |fixture| {
        for (path, text) in [("a/.git/config", "mine"), ("callboard.toml", "mine"), (".env", "KEY=needle"), ("w/x", "")] {
            fs::create_dir_all(fixture.path(path).parent().unwrap()).unwrap();
            fs::write(fixture.path(path), text).unwrap();
        }
        let link = "for file in $PWD/a/.git/config callboard.toml .env /proc/self/cwd/callboard.toml; do for to in hard w/hard a/hard a/.git/hard; do \
                    ln $file $to; ln -L $file $to; done; done; \
                    python3 -c 'import ctypes, os\nl = ctypes.CDLL(None)\nfor n, f in enumerate([\"a/.git/config\", \"callboard.toml\", \".env\"]):\n d = os.open(f, os.O_PATH)\n \
                    l.linkat(d, b\"\", -100, b\"w/fd%d\" % n, 0x1000); l.linkat(-100, b\"/proc/self/fd/%d\" % d, -100, b\"w/fp%d\" % n, 0x400)'; \
                    mv a b; ln b/.git/config w/late; mv b a; true";

        let linked = fixture.run(link).await;
        for file in ["a/.git/config", "callboard.toml", ".env"] {
            assert_eq!(fs::metadata(fixture.path(file)).unwrap().nlink(), 1, "{}: {file}: {}", fixture.kind(), linked.stderr);
        }
        for (file, other) in [("a/.git/config", "w/one"), ("callboard.toml", "w/two"), (".env", "w/three")] {
            fs::hard_link(fixture.path(file), fixture.path(other)).unwrap();
        }
        let written = fixture.run("for n in one two three; do echo evil > w/$n; done; cat w/three; mv w v; echo evil > v/one").await;

        assert_eq!(written.stdout, "", "{}", fixture.kind());
        for (file, text) in [("a/.git/config", "mine"), ("callboard.toml", "mine"), (".env", "KEY=needle")] {
            assert_eq!(fs::read_to_string(fixture.path(file)).unwrap(), text, "{}: {file}", fixture.kind());
        }
    })
    .await;
}

/// One command exchanges a folder that is mounted over itself for a link to a folder of the machine,
/// again and again, while others begin.
#[tokio::test]
async fn no_mount_of_a_command_follows_a_link_that_another_command_exchanges_for_a_folder() {
    let test = "no_mount_of_a_command_follows_a_link_that_another_command_exchanges_for_a_folder";
    each(SandboxFixture::both(test), async |fixture| {
        let outside = fixture.folder.path().join("outside");
        fs::create_dir_all(outside.join("objects")).unwrap();
        fs::write(outside.join("canary"), "outside").unwrap();
        for folder in ["x/.git/objects", "x/.git/refs"] {
            fs::create_dir_all(fixture.path(folder)).unwrap();
        }
        fs::write(fixture.path("x/.git/HEAD"), "ref: refs/heads/main\n").unwrap();
        symlink(&outside, fixture.path("x/link")).unwrap();
        let (one, two) = (fixture.path("x/.git"), fixture.path("x/link"));
        let is_done = Arc::new(AtomicBool::new(false));
        let exchanging = std::thread::spawn({
            let (is_done, behind) = (is_done.clone(), outside.clone());
            move || {
                while !is_done.load(Ordering::Relaxed) {
                    let cwd = rustix::fs::CWD;
                    let exchange = rustix::fs::RenameFlags::EXCHANGE;
                    if rustix::fs::renameat_with(cwd, &one, cwd, &two, exchange).is_err() {
                        // The sweep after a command has moved the link aside.
                        let _ = symlink(&behind, &one).or_else(|_| symlink(&behind, &two));
                    }
                    std::thread::park_timeout(Duration::from_micros(1500));
                }
            }
        });

        for _ in 0..TestSize::pick(20, 60, 300) {
            let command = "echo x > x/.git/written; cat x/.git/canary";
            let result = fixture.exec(command, Duration::from_secs(20), CancellationToken::new());
            if let Ok(result) = result.await {
                assert_eq!(result.stdout, "", "{}", fixture.kind());
            }
        }
        is_done.store(true, Ordering::Relaxed);
        exchanging.join().unwrap();

        assert!(!outside.join("written").exists(), "{}", fixture.kind());
    })
    .await;
}

/// A running command moves folders to where no search finds what lies in them: `.idea` below
/// `node_modules`, hooks away from the path that git's configuration names, and a bare repository without
/// its objects. Another command begins, and the first one moves them back.
#[tokio::test]
async fn what_is_kept_from_a_command_is_kept_from_the_next_wherever_it_was_moved() {
    let test = "what_is_kept_from_a_command_is_kept_from_the_next_wherever_it_was_moved";
    each(moving(test), async |fixture| {
        users_repository(&fixture, "repo");
        user_git(&fixture, "repo", &["config", "core.hooksPath", "node_modules/hk"]);
        user_git(&fixture, "", &["init", "-q", "--bare", "bare"]);
        let files = [
            ("p/AGENTS.md", "mine"),
            ("p/keys/.env", "KEY=needle"),
            ("repo/node_modules/hk/pre-commit", "#!/bin/sh\n"),
            ("node_modules/x", ""),
        ];
        for (path, text) in files {
            fs::create_dir_all(fixture.path(path).parent().unwrap()).unwrap();
            fs::write(fixture.path(path), text).unwrap();
        }
        let read = |path: &str| fs::read_to_string(fixture.path(path)).unwrap_or_default();
        let config = read("bare/config");
        let moves = fixture.run(
            "mv p node_modules/p; mv repo/node_modules repo/s; mkdir -p repo/node_modules/hk; echo fake > repo/node_modules/hk/pre-commit; \
             mv bare/objects bare/o; touch moved; while [ ! -e written ]; do sleep 0.02; done; \
             mv node_modules/p p; rm -rf repo/node_modules; mv repo/s repo/node_modules; mv bare/o bare/objects; ls",
        );
        let writes = async {
            wait_until("what is moved", Duration::from_secs(20), || fixture.path("moved").exists()).await;
            let result = fixture
                .run(
                    "for f in p/AGENTS.md node_modules/p/AGENTS.md bare/config repo/*/hk/pre-commit; do echo evil >> $f; done; \
                     for f in p/keys/.env node_modules/p/keys/.env; do cat $f; done; true",
                )
                .await;
            fs::write(fixture.path("written"), "").unwrap();
            result
        };
        let (moved, wrote) = futures_util::join!(moves, writes);

        assert_eq!(wrote.stdout, "", "{}", fixture.kind());
        for (path, text) in files {
            assert_eq!(read(path), text, "{} {path}: {moved:?} {wrote:?}", fixture.kind());
        }
        assert_eq!(read("bare/config"), config, "{}: {moved:?} {wrote:?}", fixture.kind());
    })
    .await;
}

/// The same, with the second command under another guard, and folders that are exchanged all the time.
#[tokio::test]
async fn keys_stay_hidden_from_a_command_that_begins_while_another_exchanges_folders() {
    let test = "keys_stay_hidden_from_a_command_that_begins_while_another_exchanges_folders";
    each(moving(test), async |fixture| {
        let only = if fixture.kind() == "bubblewrap" { Boundary::Bubblewrap } else { Boundary::Landlock };
        let other = boundary(&fixture.path(""), only, ExecLimits::default()).unwrap();
        for path in ["d/.env", "node_modules/d/.env"] {
            fs::create_dir_all(fixture.path(path).parent().unwrap()).unwrap();
            fs::write(fixture.path(path), "KEY=needle").unwrap();
        }
        let moves = fixture.run(
            "touch begun; while [ ! -e done ]; do for p in . node_modules; do mv $p/d $p/s; done; sleep 0.00$((RANDOM % 9)); \
             for p in . node_modules; do mv $p/s $p/d; done; sleep 0.0$((RANDOM % 9)); done 2>/dev/null",
        );
        let reads = async {
            wait_until("the command", Duration::from_secs(20), || fixture.path("begun").exists()).await;
            for _ in 0..TestSize::pick(4, 12, 60) {
                let exec = Exec {
                    timeout: Duration::from_secs(20),
                    ..Exec::new("for i in {1..20}; do cat {.,node_modules}/{d,s}/.env; sleep 0.003; done 2>/dev/null; true")
                };
                match other.exec(exec, CancellationToken::new()).await {
                    Ok(result) => assert_eq!(result.stdout, "", "{}", fixture.kind()),
                    Err(error) => assert!(error.to_string().contains("keeps moving folders"), "{error}"),
                }
            }
            fs::write(fixture.path("done"), "").unwrap();
        };
        futures_util::join!(moves, reads);
    })
    .await;
}

#[tokio::test]
async fn files_and_folders_move_between_folders_in_which_keys_lie() {
    let test = "files_and_folders_move_between_folders_in_which_keys_lie";
    each(
        SandboxFixture::linux(test).into_iter().chain(SandboxFixture::covered(test)),
        async |fixture| {
            users_repository(&fixture, "repo");
            for path in ["repo/a/.env", "repo/a/x", "repo/a/y", "repo/b/.env", "repo/b/c/AGENTS.md"] {
                fs::create_dir_all(fixture.path(path).parent().unwrap()).unwrap();
                fs::write(fixture.path(path), "x").unwrap();
            }
            user_git(&fixture, "repo", &["add", "a/x"]);

            let result = fixture
                .run("set -e; cd repo; git mv a/x b/x; python3 -c 'import os; os.rename(\"a/y\", \"b/y\"); os.rename(\"b/c\", \"a/c\"); os.rename(\"a\", \"d\")'")
                .await;

            assert_eq!((result.status, result.stderr.as_str()), (Some(0), ""), "{}", fixture.kind());
            for path in ["b/x", "b/y", "d/c/AGENTS.md", "d/.env"] {
                assert!(fixture.path("repo").join(path).exists(), "{} {path}", fixture.kind());
            }
        },
    )
    .await;
}

/// A command can leave many deep repositories. The next one still begins about as fast as one in a folder
/// with as many shallow ones.
#[tokio::test]
async fn repositories_that_lie_deep_hold_up_no_command_that_begins() {
    let test = "repositories_that_lie_deep_hold_up_no_command_that_begins";
    each(
        SandboxFixture::linux(test)
            .into_iter()
            .chain(SandboxFixture::covered(test)),
        async |fixture| {
            let time = async || {
                fixture.run("true").await;
                let begun = std::time::Instant::now();
                for _ in 0..3 {
                    assert_eq!(
                        fixture.run("true").await.status,
                        Some(0),
                        "{}",
                        fixture.kind()
                    );
                }
                begun.elapsed()
            };
            for n in 0..100 {
                fs::create_dir_all(fixture.path(&format!("r{n}/.git"))).unwrap();
            }
            let shallow = time().await;
            for n in 0..100 {
                let deep = fixture.path(&format!("r{n}")).join(["d"; 20].join("/"));
                fs::create_dir_all(&deep).unwrap();
                fs::rename(fixture.path(&format!("r{n}/.git")), deep.join(".git")).unwrap();
            }
            let deep = time().await;

            assert!(
                deep < shallow * 3 + Duration::from_secs(1),
                "{}: {deep:?} for {shallow:?}",
                fixture.kind()
            );
        },
    )
    .await;
}

/// Runs the tests of this file again as an unprivileged user, in another process.
#[test]
fn the_doors_are_closed_to_commands_of_an_unprivileged_user_too() {
    stranger::again_as_stranger(&["sandbox::doors::"]);
}

/// The nodes belong to who runs the host as root, and so to the command.
#[tokio::test]
async fn a_command_changes_no_device_node_of_the_machine() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    let test = "a_command_changes_no_device_node_of_the_machine";
    let state = || {
        let node = fs::metadata("/dev/full").unwrap();
        (node.permissions().mode(), node.mtime())
    };
    let before = state();
    each(SandboxFixture::both(test), async |fixture| {
        let change = "chmod 600 /dev/full || touch -d 2001-01-01 /dev/full || echo refused; \
                      head -c 4 /dev/zero | wc -c; echo x >/dev/null && echo written";
        let result = fixture.run(change).await;

        let after = state();
        if after != before {
            fs::set_permissions("/dev/full", fs::Permissions::from_mode(before.0)).unwrap();
        }
        assert_eq!(after, before, "{}", fixture.kind());
        assert_eq!(result.stdout, "refused\n4\nwritten\n", "{}", result.stderr);
    })
    .await;
}
