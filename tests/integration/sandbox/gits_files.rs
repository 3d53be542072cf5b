//! Files of a repository that commands may write, since `git add` and `git commit` do, and by which
//! the user's git would read or write files that no command can reach. Each attack is tried behind
//! every boundary; then the user's git is run outside of them.

use std::{
    os::unix::fs::{PermissionsExt, symlink},
    process::{Command, Stdio},
};

use super::{
    doors::{all, config, git, user_git, users_repository},
    *,
};

/// Changes a file of the user's repository, so that there is something to commit.
fn change(fixture: &SandboxFixture) {
    fs::write(fixture.path("repo/kept"), "changed by the user").unwrap();
}

#[tokio::test]
async fn no_link_of_a_command_leads_what_git_writes_to_another_file() {
    each(all("no_link_of_a_command_leads_what_git_writes_to_another_file"), async |fixture| {
        let mark = fixture.folder.path().join("mark");
        let outside = fixture.folder.path().join("outside.txt");
        users_repository(&fixture, "repo");
        user_git(&fixture, "repo", &["worktree", "add", "-q", "../wt"]);
        fs::write(fixture.path("evil.txt"), config(&mark)).unwrap();
        let before = fs::read(fixture.path("repo/.git/config")).unwrap();

        let said = fixture
            .run("cd repo/.git; cp ../../evil.txt MERGE_MSG; cp ../../evil.txt worktrees/wt/MERGE_MSG; \
                  ln -sf config COMMIT_EDITMSG; ln -sf ../../../outside.txt logs/HEAD; mkdir -p x/y; ln -s ../../config x/y/z; \
                  ln -sf ../../../../../outside.txt worktrees/wt/COMMIT_EDITMSG; mkdir -p rr-cache; ln -s ../../.. rr-cache/0123456789012345678901234567890123456789")
            .await;
        for place in ["repo", "wt"] {
            fs::write(fixture.path(place).join("kept"), "changed by the user").unwrap();
            git(&fixture, place, &["commit", "-q", "-a"]);
            git(&fixture, place, &["status"]);
            assert!(!mark.exists(), "{}: {place}: {}", fixture.kind(), said.stderr);
        }

        assert_eq!(fs::read(fixture.path("repo/.git/config")).unwrap(), before, "{}: {}", fixture.kind(), said.stderr);
        assert_eq!(fs::read_to_string(outside).unwrap(), "outside", "{}: {}", fixture.kind(), said.stderr);
        for link in ["x/y/z", "rr-cache/0123456789012345678901234567890123456789"] {
            assert!(fs::symlink_metadata(fixture.path("repo/.git").join(link)).is_err(), "{}: {link}: {}", fixture.kind(), said.stderr);
        }
    })
    .await;
}

#[tokio::test]
async fn links_of_the_user_in_a_repository_stay_and_it_can_be_used() {
    each(SandboxFixture::both("links_of_the_user_in_a_repository_stay_and_it_can_be_used"), async |fixture| {
        users_repository(&fixture, "repo");
        // As tools for several repositories do.
        fs::rename(fixture.path("repo/.git/objects"), fixture.path("shared")).unwrap();
        std::os::unix::fs::symlink("../../shared", fixture.path("repo/.git/objects")).unwrap();

        let said = fixture.run("cd repo && echo y > kept && git -c user.name=c -c user.email=c@example.org commit -q -a -m two && git log --oneline | wc -l").await;

        assert_eq!((said.stdout.as_str(), said.stderr.as_str()), ("2\n", ""), "{}", fixture.kind());
        assert!(fs::symlink_metadata(fixture.path("repo/.git/objects")).unwrap().is_symlink());
        user_git(&fixture, "repo", &["fsck"]);
    })
    .await;
}

/// An index of git with these names, of which each stands for the same content.
fn index(version: u32, names: &[&str], blob: &str) -> Vec<u8> {
    let id: Vec<u8> = (0..blob.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&blob[at..at + 2], 16).unwrap())
        .collect();
    let mut index = b"DIRC".to_vec();
    index.extend(version.to_be_bytes());
    index.extend(u32::try_from(names.len()).unwrap().to_be_bytes());
    let mut before = "";
    for name in names {
        let start = index.len();
        index.extend([0; 24]);
        index.extend(0o100_755_u32.to_be_bytes());
        index.extend([0; 12]);
        index.extend(&id);
        index.extend(u16::try_from(name.len()).unwrap().to_be_bytes());
        if version == 4 {
            let same = before
                .bytes()
                .zip(name.bytes())
                .take_while(|(a, b)| a == b)
                .count();
            index.push(u8::try_from(before.len() - same).unwrap());
            index.extend(&name.as_bytes()[same..]);
            index.push(0);
            before = name;
        } else {
            index.extend(name.as_bytes());
            let length = index.len() - start;
            index.extend(vec![0; 8 - length % 8]);
        }
    }
    // Git takes an index without a checksum.
    index.extend([0; 20]);
    index
}

#[tokio::test]
async fn an_index_names_files_of_the_working_tree_only() {
    each(
        all("an_index_names_files_of_the_working_tree_only"),
        async |fixture| {
            let mark = fixture.folder.path().join("mark");
            let outside = fixture.folder.path().join("made.txt");
            users_repository(&fixture, "repo");
            fs::write(
                fixture.path("hook"),
                format!("#!/bin/sh\ntouch {}\n", mark.display()),
            )
            .unwrap();
            let blob = git(&fixture, "repo", &["hash-object", "-w", "../hook"]).stdout;
            let blob = String::from_utf8(blob).unwrap();
            let names = [
                ".git/hooks/post-checkout",
                "../../made.txt",
                outside.to_str().unwrap(),
                "x/.GIT/y",
                "kept",
            ];
            for version in [2, 4] {
                for name in names {
                    let names = [name, "kept"];
                    let names = &names[usize::from(name == "kept")..];
                    let planted = index(version, names, blob.trim());
                    fs::write(fixture.path("planted"), &planted).unwrap();
                    user_git(&fixture, "repo", &["read-tree", "HEAD"]);
                    let shown = fixture
                        .run("cp planted repo/.git/index && git -C repo ls-files")
                        .await;
                    // Git reads it, so the attack is one.
                    assert!(
                        shown.stdout.contains(name),
                        "{}: {version}: {name}: {shown:?}",
                        fixture.kind()
                    );
                    git(&fixture, "repo", &["restore", "."]);
                    assert!(
                        !mark.exists() && !outside.exists(),
                        "{}: {version}: {name}: {}",
                        fixture.kind(),
                        shown.stderr
                    );
                    assert_eq!(
                        shown.stderr.contains("[refused: repo/.git/index "),
                        name != "kept",
                        "{}: {version}: {name}: {}",
                        fixture.kind(),
                        shown.stderr
                    );
                }
            }
        },
    )
    .await;
}

#[tokio::test]
async fn a_half_of_an_index_names_files_of_the_working_tree_only() {
    each(SandboxFixture::both("a_half_of_an_index_names_files_of_the_working_tree_only"), async |fixture| {
        let outside = fixture.folder.path().join("made.txt");
        users_repository(&fixture, "repo");
        user_git(&fixture, "repo", &["update-index", "--split-index"]);
        let honest = fixture.run("cd repo && echo y > kept && git add kept && git status --short").await;
        assert_eq!((honest.stdout.as_str(), honest.stderr.as_str()), ("M  kept\n", ""), "{}", fixture.kind());
        let blob = String::from_utf8(git(&fixture, "repo", &["hash-object", "kept"]).stdout).unwrap();
        let id = [0x11; 20];
        let mut half = index(2, &["../../made.txt", "kept"], blob.trim());
        half.truncate(half.len() - id.len());
        half.extend(id);
        let mut other = index(2, &[], blob.trim());
        other.truncate(other.len() - id.len());
        other.extend(b"link\0\0\0\x3c");
        // Two empty bitmaps, of entries that are removed and replaced.
        let mut none = [0; 20];
        none[7] = 1;
        other.extend([id, none, none, [0; 20]].concat());
        fs::write(fixture.path("half"), half).unwrap();
        fs::write(fixture.path("other"), other).unwrap();

        let said = fixture.run("cp half repo/.git/sharedindex.$(printf '11%.0s' {1..20}); cp other repo/.git/index; git -C repo ls-files").await;
        assert!(said.stdout.contains("made.txt"), "{}: {said:?}", fixture.kind());
        git(&fixture, "repo", &["restore", "."]);

        assert!(!outside.exists(), "{}: {said:?}", fixture.kind());
        assert!(said.stderr.contains("[refused: repo/.git/sharedindex."), "{}: {said:?}", fixture.kind());
    })
    .await;
}

#[tokio::test]
async fn a_recorded_conflict_copies_no_other_file_into_the_repository() {
    each(all("a_recorded_conflict_copies_no_other_file_into_the_repository"), async |fixture| {
        users_repository(&fixture, "repo");
        let secret = fixture.folder.path().join("outside.txt");
        let id = "0123456789012345678901234567890123456789";
        let places = ["../../outside.txt", secret.to_str().unwrap(), "lib/outside.txt", "link"];
        for (n, place) in places.into_iter().enumerate() {
            let said = fixture
                .run(&format!(
                    "cd repo; mkdir -p .git/rr-cache/{id}; touch .git/rr-cache/{id}/preimage; rm -f .git/rr-cache/{id}/postimage; \
                     ln -sfn ../.. lib; ln -sf ../../outside.txt link; printf '{id}\\t{place}\\0' > .git/MERGE_RR"
                ))
                .await;
            fs::write(fixture.path("repo/kept"), format!("changed {n}")).unwrap();
            user_git(&fixture, "repo", &["commit", "-q", "-a", "-m", "more"]);
            let copy = fixture.path(&format!("repo/.git/rr-cache/{id}/postimage"));
            assert!(!copy.exists(), "{}: {place}: {}", fixture.kind(), said.stderr);
        }
    })
    .await;
}

#[tokio::test]
async fn a_command_resolves_a_conflict_that_git_records() {
    each(SandboxFixture::both("a_command_resolves_a_conflict_that_git_records"), async |fixture| {
        users_repository(&fixture, "repo");
        fs::create_dir(fixture.path("repo/.git/rr-cache")).unwrap();
        user_git(&fixture, "repo", &["checkout", "-q", "-b", "left"]);
        change(&fixture);
        user_git(&fixture, "repo", &["commit", "-q", "-a", "-m", "left"]);
        user_git(&fixture, "repo", &["checkout", "-q", "main"]);
        fs::write(fixture.path("repo/kept"), "other").unwrap();
        user_git(&fixture, "repo", &["commit", "-q", "-a", "-m", "right"]);

        let merge = fixture.run("cd repo; git -c user.name=c -c user.email=c@example.org merge left").await;
        let done = fixture.run("cd repo && echo both > kept && git -c user.name=c -c user.email=c@example.org commit -q -a -m both && ls .git/rr-cache/*").await;

        assert!(fixture.path("repo/.git/MERGE_RR").exists() && !merge.stderr.contains("[refused"), "{}: {}", fixture.kind(), merge.stderr);
        assert!(done.status == Some(0) && !done.stderr.contains("[refused"), "{}: {done:?}", fixture.kind());
        assert!(done.stdout.contains("postimage"), "{}", done.stdout);
    })
    .await;
}

#[tokio::test]
async fn a_waiting_rebase_or_series_of_patches_writes_to_no_other_file() {
    each(all("a_waiting_rebase_or_series_of_patches_writes_to_no_other_file"), async |fixture| {
        let outside = fixture.folder.path().join("outside.txt");
        for folder in ["rebase", "patches"] {
            users_repository(&fixture, folder);
            for name in ["two", "three"] {
                fs::write(fixture.path(folder).join(name), name).unwrap();
                user_git(&fixture, folder, &["add", name]);
                user_git(&fixture, folder, &["commit", "-q", "-m", name]);
            }
        }
        let oid = |name: &str| String::from_utf8(git(&fixture, "rebase", &["rev-parse", name]).stdout).unwrap();
        user_git(&fixture, "rebase", &["-c", "sequence.editor=sed -i 1abreak", "rebase", "-q", "-i", "HEAD~2"]);
        let (base, head) = (oid("main~2"), oid("HEAD"));
        let picked = git(&fixture, "rebase", &["commit-tree", "main^{tree}", "-p", base.trim(), "-m", "three"]).stdout;
        let picked = String::from_utf8(picked).unwrap();
        user_git(&fixture, "patches", &["format-patch", "-q", "-2", "-o", "../mails"]);
        user_git(&fixture, "patches", &["reset", "-q", "--hard", "HEAD~2"]);
        fs::write(fixture.path("patches/two"), "conflict").unwrap();
        user_git(&fixture, "patches", &["add", "two"]);
        user_git(&fixture, "patches", &["commit", "-q", "-m", "conflict"]);
        git(&fixture, "patches", &["am", "../mails/0001-two.patch", "../mails/0002-three.patch"]);
        assert!(fixture.path("rebase/.git/rebase-merge").exists() && fixture.path("patches/.git/rebase-apply").exists());

        let said = fixture
            .run(&format!(
                "cd rebase; echo file > .git/rebase-merge/strategy; printf \" '--theirs'\" > .git/rebase-merge/strategy_opts; echo 'pick {picked} x' > .git/rebase-merge/git-rebase-todo; \
                 ln -s ../../outside.txt {base}; echo base > {head}; echo evil > {picked}; \
                 cd ../patches; printf \" '--build-fake-ancestor={outside}'\" > .git/rebase-apply/apply-opt",
                picked = picked.trim(),
                base = base.trim(),
                head = head.trim(),
                outside = outside.display()
            ))
            .await;
        git(&fixture, "rebase", &["rebase", "--continue"]);
        assert_eq!(fs::read_to_string(&outside).unwrap(), "outside", "{}: {}", fixture.kind(), said.stderr);
        git(&fixture, "patches", &["am", "--skip"]);
        assert_eq!(fs::read(&outside).unwrap(), b"outside", "{}: {}", fixture.kind(), said.stderr);
    })
    .await;
}

#[tokio::test]
async fn programs_of_the_workspace_that_the_users_git_runs_are_written_by_no_command() {
    each(all("programs_of_the_workspace_that_the_users_git_runs_are_written_by_no_command"), async |fixture| {
        let mark = fixture.folder.path().join("mark");
        users_repository(&fixture, "repo");
        fs::create_dir(fixture.path("repo/tools")).unwrap();
        for name in ["clean.sh", "show.sh", "merge.sh"] {
            fs::write(fixture.path("repo/tools").join(name), "#!/bin/sh\ncat \"$@\"\n").unwrap();
        }
        fs::write(fixture.path("repo/.gitattributes"), "* filter=x diff=x\n").unwrap();
        user_git(&fixture, "repo", &["config", "filter.x.clean", "sh ./tools/clean.sh"]);
        user_git(&fixture, "repo", &["config", "diff.x.textconv", "sh \"tools/show.sh\""]);
        user_git(&fixture, "repo", &["config", "alias.both", "!sh tools/merge.sh"]);
        let evil = format!("#!/bin/sh\ntouch {}\ncat \"$@\"\n", mark.display());
        fs::write(fixture.path("evil.sh"), evil).unwrap();

        let said = fixture
            .run("cd repo; for name in clean show merge; do cp ../evil.sh tools/$name.sh; done; mv tools/clean.sh tools/x; rm -f tools/show.sh; echo y > kept; echo z > tools/other.sh")
            .await;
        for command in [&["status"][..], &["diff"], &["both", "kept"]] {
            git(&fixture, "repo", command);
            assert!(!mark.exists(), "{}: {command:?}: {}", fixture.kind(), said.stderr);
        }
        if fixture.kind() != "landlock without mounts" {
            assert_eq!(fs::read_to_string(fixture.path("repo/kept")).unwrap(), "y\n");
        }
    })
    .await;
}

#[tokio::test]
async fn settings_behind_a_link_are_left_by_no_command() {
    each(all("settings_behind_a_link_are_left_by_no_command"), async |fixture| {
        fs::create_dir(fixture.path("src")).unwrap();
        fs::create_dir(fixture.path("mine")).unwrap();
        fs::create_dir_all(fixture.path("node_modules/x")).unwrap();
        fs::write(fixture.path("mine/tasks.json"), "mine").unwrap();
        std::os::unix::fs::symlink("mine", fixture.path(".vscode")).unwrap();

        let said = fixture
            .run(
                "cd src; mkdir -p e1 e2 e3 e4 j/.jj; echo {} > e1/tasks.json; echo '[build]' > e2/config.toml; echo '[hooks]' > e3/hgrc; echo x > e4/config.toml; \
                 ln -s e1 .vscode; ln -s e2 .cargo; ln -s e3 .hg; ln -s /proc/self/cwd/e2 .config; mkdir .jj; echo ../e4 > .jj/repo; ln -s ../../e4 j/.jj/repo; \
                 mkdir ../node_modules/x/.vscode; echo {} > ../node_modules/x/.vscode/tasks.json; echo x > ../node_modules/x/AGENTS.md; \
                 ln -s ../node_modules/x lib; ln -s /proc/self/cwd/node_modules/x lib2; ln -s ../node_modules/x/AGENTS.md file; \
                 cd ..; echo evil > mine/tasks.json; echo evil > .vscode/launch.json",
            )
            .await;

        for path in ["src/.vscode", "src/.cargo", "src/.hg", "src/.config", "src/.jj/repo", "src/j/.jj/repo", "src/lib", "src/lib2"] {
            assert!(fs::symlink_metadata(fixture.path(path)).is_err(), "{}: {path}: {}", fixture.kind(), said.stderr);
            assert!(said.stderr.contains(&format!("[refused: {path} ")), "{}: {path}: {}", fixture.kind(), said.stderr);
        }
        assert_eq!(fs::read_to_string(fixture.path("mine/tasks.json")).unwrap(), "mine", "{}: {}", fixture.kind(), said.stderr);
        assert!(!fixture.path("mine/launch.json").exists(), "{}", fixture.kind());
        assert!(fs::symlink_metadata(fixture.path(".vscode")).is_ok());
        assert!(fixture.path("node_modules/x/AGENTS.md").exists() && fixture.path("src/file").exists(), "{}: {}", fixture.kind(), said.stderr);
    })
    .await;
}

/// Runs the tests of this file again as an unprivileged user, in another process.
#[test]
fn gits_files_are_examined_for_an_unprivileged_user_too() {
    stranger::again_as_stranger(&["sandbox::gits_files::"]);
}

#[tokio::test]
async fn no_command_runs_beside_a_configuration_that_cannot_be_read() {
    let test = "no_command_runs_beside_a_configuration_that_cannot_be_read";
    if Command::new("perl").arg("-e1").status().is_err() {
        writeln!(
            &mut std::io::stderr(),
            "SKIPPED: {test}: perl is not installed"
        )
        .unwrap();
        return;
    }
    // What opens a file on which another process has a lease waits, or fails.
    let lease = "use Fcntl; $| = 1; $SIG{IO} = 'IGNORE'; open(F, '<', $ARGV[0]) or die; \
                 fcntl(F, 1024, F_WRLCK) or die qq(refused\\n); print qq(taken\\n); sleep 30";
    each(all(test), async |fixture| {
        users_repository(&fixture, ".");
        user_git(&fixture, ".", &["config", "core.hooksPath", ".githooks"]);
        fs::create_dir(fixture.path(".githooks")).unwrap();
        fs::write(fixture.path(".githooks/pre-commit"), "true\n").unwrap();
        fs::write(fixture.path("lease.pl"), lease).unwrap();
        let mut holder = Command::new("perl")
            .args(["-e", lease])
            .arg(fixture.path(".git/config"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = [0; 5];
        std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut said).unwrap();
        assert_eq!(&said, b"taken");

        let beside = fixture
            .exec(
                "echo evil >> .githooks/pre-commit",
                Duration::from_secs(20),
                CancellationToken::new(),
            )
            .await;
        holder.kill().unwrap();
        holder.wait().unwrap();
        let own = fixture.run("timeout 5 perl lease.pl .git/config").await;

        let error = beside.unwrap_err().to_string();
        assert!(error.contains(".git/config\" cannot be read"), "{error}");
        assert_eq!(own.stdout, "", "{}", fixture.kind());
        assert!(own.stderr.contains("refused"), "{}", own.stderr);
        let hook = fs::read_to_string(fixture.path(".githooks/pre-commit")).unwrap();
        assert_eq!(hook, "true\n", "{}", fixture.kind());
    })
    .await;
}

/// A sandbox over the fixture's workspace for an account with this home.
pub(super) fn of_an_account(
    fixture: &SandboxFixture,
    only: Boundary,
    home: &Path,
) -> SandboxFixture {
    let rules = PathRules::default().with_home(Some(home.to_owned()));
    let root = Root::open(fixture.path(""), rules).unwrap();
    let options = Options {
        only: Some(only),
        helper: Some(helper()),
        ..Options::default()
    };
    let spawner = Spawner::start_with(ControlGroups::Auto).unwrap();
    let detected = detect_with(&Arc::new(root), Mode::Linux, &spawner, options).unwrap();
    SandboxFixture {
        folder: tempfile::tempdir().unwrap(),
        sandbox: detected.sandbox.unwrap(),
    }
}

#[tokio::test]
async fn hooks_and_programs_that_the_configuration_of_the_account_names_are_the_users() {
    let test = "hooks_and_programs_that_the_configuration_of_the_account_names_are_the_users";
    let boundaries = [Boundary::Bubblewrap, Boundary::Landlock]
        .into_iter()
        .filter_map(|only| Some((only, SandboxFixture::of(test, only, ExecLimits::default())?)));
    for (only, fixture) in boundaries {
        let mark = fixture.folder.path().join("mark");
        let hook = format!("#!/bin/sh\ntouch {}\n", mark.display());
        fs::write(fixture.path("hook.txt"), &hook).unwrap();
        fs::write(
            fixture.folder.path().join(".gitconfig"),
            "[core]\n\thooksPath = .ours\n[include]\n\tpath = more\n",
        )
        .unwrap();
        fs::write(
            fixture.folder.path().join("more"),
            "[diff \"x\"]\n\ttextconv = sh tools/show.sh\n",
        )
        .unwrap();
        for repository in ["a", "b", "c"] {
            users_repository(&fixture, repository);
            for folder in ["tools", ".ours"] {
                fs::create_dir_all(fixture.path(repository).join(folder)).unwrap();
            }
            fs::write(fixture.path(repository).join("tools/show.sh"), "true\n").unwrap();
        }
        fs::remove_dir(fixture.path("b/.ours")).unwrap();
        // Spellings of the same folder by the account, and by a way out and in.
        fs::create_dir_all(fixture.path("c/.own")).unwrap();
        user_git(
            &fixture,
            "c",
            &["config", "core.hooksPath", "~/workspace/c/.own"],
        );
        fs::create_dir_all(fixture.path("a/.other")).unwrap();
        user_git(
            &fixture,
            "a",
            &["config", "core.hooksPath", "../../workspace/a/.other"],
        );

        let plant = |folder: &str| {
            format!(
                "mkdir -p {folder}; cp hook.txt {folder}/pre-commit; chmod +x {folder}/pre-commit; "
            )
        };
        let command: String = ["a/.ours", "a/.other", "b/.ours", "c/.own", "new/.ours"]
            .map(plant)
            .concat();
        let command = format!(
            "git init -q new; {command} for r in a b c; do cp hook.txt $r/tools/show.sh; done"
        );
        let result = of_an_account(&fixture, only, fixture.folder.path())
            .run(&command)
            .await;

        for repository in ["a", "b", "c", "new"] {
            git(
                &fixture,
                repository,
                &["commit", "-q", "--allow-empty", "-m", "x"],
            );
            assert!(!mark.exists(), "{only:?} {repository}: {}", result.stderr);
        }
        for repository in ["a", "b", "c"] {
            let path = fixture.path(repository).join("tools/show.sh");
            assert_eq!(fs::read_to_string(path).unwrap(), "true\n", "{only:?}");
        }
        assert!(
            result.stderr.contains("[refused: b/.ours "),
            "{}",
            result.stderr
        );
    }
}

#[tokio::test]
async fn files_that_hooks_and_configured_programs_lead_to_are_the_users() {
    each(SandboxFixture::both("files_that_hooks_and_configured_programs_lead_to_are_the_users"), async |fixture| {
        let mark = fixture.folder.path().join("mark");
        let hook = format!("#!/bin/sh\ntouch {}\n", mark.display());
        fs::write(fixture.path("hook.txt"), hook).unwrap();
        // A hook that is a link to a file, to one that is absent, or to a link; a program by way of one.
        for (repository, target) in [("a", "../../tools/x"), ("b", "../../tools/absent"), ("c", "../../tools/link"), ("d", "/nowhere")] {
            users_repository(&fixture, repository);
            fs::create_dir(fixture.path(repository).join("tools")).unwrap();
            fs::write(fixture.path(repository).join("tools/x"), "#!/bin/sh\n").unwrap();
            symlink("x", fixture.path(repository).join("tools/link")).unwrap();
            symlink(target, fixture.path(repository).join(".git/hooks/pre-commit")).unwrap();
            fs::set_permissions(fixture.path(repository).join("tools/x"), fs::Permissions::from_mode(0o755)).unwrap();
        }
        // A hook with a second name.
        users_repository(&fixture, "e");
        fs::create_dir(fixture.path("e/tools")).unwrap();
        fs::write(fixture.path("e/tools/x"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(fixture.path("e/tools/x"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::hard_link(fixture.path("e/tools/x"), fixture.path("e/.git/hooks/pre-commit")).unwrap();
        let programs = ["$(git rev-parse --show-toplevel)/tools/x", "cd tools && ./x", "sh plain", "\"$PWD/tools/x\"", "./tools/link"];
        for (n, program) in programs.iter().enumerate() {
            let repository = format!("p{n}");
            users_repository(&fixture, &repository);
            fs::create_dir(fixture.path(&repository).join("tools")).unwrap();
            symlink("x", fixture.path(&repository).join("tools/link")).unwrap();
            for file in ["tools/x", "plain"] {
                fs::write(fixture.path(&repository).join(file), "#!/bin/sh\nfalse\n").unwrap();
                fs::set_permissions(fixture.path(&repository).join(file), fs::Permissions::from_mode(0o755)).unwrap();
            }
            user_git(&fixture, &repository, &["config", "core.fsmonitor", program]);
        }

        // An agent's settings that are a link.
        fs::create_dir(fixture.path(".claude")).unwrap();
        fs::write(fixture.path("agents.json"), "mine").unwrap();
        symlink("../agents.json", fixture.path(".claude/settings.json")).unwrap();

        let result = fixture
            .run(
                "cp hook.txt agents.json; mv agents.json x.json; cp hook.txt agents.json; for r in a b c d e p0 p1 p2 p3 p4; do for f in tools/x plain tools/absent tools/other; do cp hook.txt $r/$f; chmod +x $r/$f; done; \
                 rm -f $r/tools/link; ln -s /proc/self/cwd/tools/other $r/tools/link; done",
            )
            .await;

        for repository in ["a", "b", "c", "e", "p0", "p1", "p2", "p3", "p4"] {
            git(&fixture, repository, &["commit", "-q", "--allow-empty", "-m", "x"]);
            git(&fixture, repository, &["status"]);
            assert!(!mark.exists(), "{}: {repository}: {}", fixture.kind(), result.stderr);
        }
        assert!(result.stderr.contains("[refused: b/tools/absent "), "{}", result.stderr);
        let settings = fs::read_to_string(fixture.path(".claude/settings.json"));
        assert_ne!(settings.unwrap_or_default(), fs::read_to_string(fixture.path("hook.txt")).unwrap());
        // What no hook leads to stays.
        assert!(fixture.path("d/tools/other").exists() && fixture.path("a/tools/other").exists());
    })
    .await;
}
