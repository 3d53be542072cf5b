//! Files planted in places that a search could pass by: in folders that are moved aside, that hold
//! keys, that belong to git, or that a command has closed.

use super::{
    doors::{all, config, git, user_git, users_repository},
    *,
};

/// Creates a repository at `$1` whose configuration is the workspace's `evil.txt`.
const PLANT: &str = "plant() { mkdir -p $1/refs $1/objects && echo 'ref: refs/heads/main' > $1/HEAD && cp $PWD/evil.txt $1/config; }; ";

fn evil(fixture: &SandboxFixture) -> PathBuf {
    let mark = fixture.folder.path().join("mark");
    fs::write(fixture.path("evil.txt"), config(&mark)).unwrap();
    mark
}

/// Runs the user's git in each place.
fn nothing_runs(fixture: &SandboxFixture, mark: &Path, places: &[&str], said: &str) {
    let mut ran = Vec::new();
    for place in places {
        if !fixture.path(place).is_dir() {
            continue;
        }
        git(fixture, place, &["status"]);
        if mark.exists() {
            fs::remove_file(mark).unwrap();
            ran.push(*place);
        }
    }
    assert!(ran.is_empty(), "{}: {ran:?}: {said}", fixture.kind());
}

#[tokio::test]
async fn a_folder_that_is_moved_aside_holds_no_repository_that_runs() {
    each(all("a_folder_that_is_moved_aside_holds_no_repository_that_runs"), async |fixture| {
        let mark = evil(&fixture);
        fs::create_dir(fixture.path("src")).unwrap();
            let command = format!("{PLANT} plant .claude/.git; plant .husky/bare; plant .ssh/.git; plant .config/fish/.git; plant .vscode/x/.git; ln -s .claude.refused one; ln -s .husky.refused/bare two; ln -s .ssh.refused three");
        let first = fixture.run(&command).await;
        let places = [".claude.refused", ".husky.refused/bare", ".ssh.refused", ".config/fish.refused", "one", "two", "three"];
        let shown = first.stderr.clone();
        nothing_runs(&fixture, &mark, &places, &shown);
        let second = fixture.run("mv src old; mv .claude.refused src").await;
        nothing_runs(&fixture, &mark, &["src", ".claude.refused"], &second.stderr);
    }).await;
}

#[tokio::test]
async fn a_new_folder_with_the_name_of_a_key_holds_no_repository_that_runs() {
    each(all("a_new_folder_with_the_name_of_a_key_holds_no_repository_that_runs"), async |fixture| {
        let mark = evil(&fixture);
        let command = format!("{PLANT} plant lib.key/.git; plant x.pem; plant .gnupg/.git; plant .env/.git; plant .aws/sso/.git; ln -s lib.key lib; mkdir -p id_rsa/.vscode; echo x > id_rsa/.vscode/tasks.json");
        let first = fixture.run(&command).await;
        nothing_runs(&fixture, &mark, &["lib.key", "x.pem", ".gnupg", ".env", ".aws/sso", "lib"], &first.stderr);
        assert!(!fixture.path("id_rsa/.vscode/tasks.json").exists());
    }).await;
}

#[tokio::test]
async fn no_repository_hides_in_gits_own_folders() {
    each(all("no_repository_hides_in_gits_own_folders"), async |fixture| {
        let mark = evil(&fixture);
        users_repository(&fixture, "repo");
        users_repository(&fixture, "sub");
        user_git(&fixture, "repo", &["worktree", "add", "-q", "../wt"]);
        fs::create_dir_all(fixture.path("repo/.git/lfs")).unwrap();
        let command = format!("{PLANT} plant repo/.git/foo/.git; plant repo/.git/objects/foo/.git; plant repo/.git/refs/heads/foo; plant repo/.git/info/x/.git; plant repo/.git/logs/x/.git; plant repo/.git/lfs/x/.git; plant repo/.git/objects/ff/x/.git; plant repo/.git/worktrees/wt/refs/x/.git; \
            mkdir -p new/.git/objects new/.git/refs; echo ref: refs/heads/main > new/.git/HEAD; plant new/.git/hooks/x.sample/.git; ln -s repo/.git/objects/foo lib; ln -s new/.git/hooks/x.sample lib2; \
            plant repo/.git/objects/wt; mv repo/.git/worktrees repo/.git/w2 && mkdir repo/.git/worktrees && ln -s ../objects/wt repo/.git/worktrees/wt");
        let first = fixture.run(&command).await;
        nothing_runs(&fixture, &mark, &["lib", "lib2", "repo/.git/foo", "repo/.git/objects/foo", "repo/.git/refs/heads/foo", "repo/.git/info/x", "repo/.git/logs/x", "repo/.git/lfs/x", "repo/.git/objects/ff/x", "repo/.git/worktrees/wt/refs/x", "wt", "repo/.git/objects/wt"], &first.stderr);
    }).await;
}

#[tokio::test]
async fn no_repository_is_put_together_around_a_folder_that_looks_like_a_linked_worktree() {
    let test = "no_repository_is_put_together_around_a_folder_that_looks_like_a_linked_worktree";
    each(all(test), async |fixture| {
        let mark = fixture.folder.path().join("mark");
        let alias = format!("[alias]\n\tprobe = \"!touch {}\"\n", mark.display());
        fs::write(fixture.path("evil.txt"), alias).unwrap();
        let command = "mkdir -p src/worktrees/x src/objects src/refs; cp evil.txt src/config; cd src/worktrees/x; echo 'ref: refs/heads/main' > HEAD; \
                       echo ../.. > commondir; ln -s src/worktrees/x ../../../lib";
        let mut said = fixture.run(command).await;
        // The files of a linked worktree of the user, moved to where they name another folder.
        users_repository(&fixture, "repo");
        user_git(&fixture, "repo", &["worktree", "add", "-q", "../wt"]);
        let moved = "cd repo/.git; mkdir -p q/objects q/refs; cp ../../evil.txt q/config; mv worktrees q/worktrees";
        said.stderr.push_str(&fixture.run(moved).await.stderr);

        for place in ["src/worktrees/x", "lib", "repo/.git/q/worktrees/wt"] {
            if !fixture.path(place).exists() {
                continue;
            }
            git(&fixture, place, &["probe"]);
            assert!(!mark.exists(), "{}: {place}: {}", fixture.kind(), said.stderr);
        }
    })
    .await;
}

#[tokio::test]
async fn no_links_lead_over_git_to_names_that_only_branches_may_have() {
    let test = "no_links_lead_over_git_to_names_that_only_branches_may_have";
    each(all(test), async |fixture| {
        users_repository(&fixture, "repo");
        let command = "mkdir -p repo/.git/logs/app repo/.git/refs/heads/app; \
            for place in logs/app refs/heads/app; do echo evil > repo/.git/$place/CLAUDE.md; done; \
            ln -s repo/.git meta; ln -s meta/logs/app one; ln -s meta/refs/heads/app two; \
            ln -s /proc/self/cwd/repo/.git three; ln -s ../repo/.git/ repo/four";
        let said = fixture.run(command).await.stderr;
        for way in [
            "one",
            "two",
            "meta/logs/app",
            "three/logs/app",
            "repo/four/logs/app",
        ] {
            let file = fixture.path(way).join("CLAUDE.md");
            assert!(!file.exists(), "{}: {way}: {said}", fixture.kind());
        }
    })
    .await;
}

#[tokio::test]
async fn no_links_lead_to_names_in_folders_too_deep_to_be_searched() {
    let test = "no_links_lead_to_names_in_folders_too_deep_to_be_searched";
    each(all(test), async |fixture| {
        // By a link in the last folder that a path reaches, and another to it, a short way would lead on.
        let command = "d=$(printf %0200d 0); long=$d; for n in 2 3 4 5 6 7 8 9 10; do long=$long/$d; done; \
            mkdir lib && cd lib && mkdir -p $long && cd $long && mkdir -p $long && cd $long && mkdir -p $d/$d/$d && cd $d/$d/$d && echo evil > CLAUDE.md && echo evil > .envrc; true";
        let said = fixture.run(command).await.stderr;
        let name = "0".repeat(200);
        let mut here: std::os::fd::OwnedFd = fs::File::open(fixture.path("lib")).unwrap().into();
        let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::NOFOLLOW;
        let mut depth = 0;
        while let Ok(below) = rustix::fs::openat(&here, &name, flags, rustix::fs::Mode::empty()) {
            (here, depth) = (below, depth + 1);
        }
        assert!((10..23).contains(&depth), "{}: {depth}: {said}", fixture.kind());
        assert!(said.contains("too deep"), "{said}");
    })
    .await;
}

#[tokio::test]
async fn a_folder_that_a_command_closes_is_searched_all_the_same() {
    each(all("a_folder_that_a_command_closes_is_searched_all_the_same"), async |fixture| {
        let mark = evil(&fixture);
        fs::create_dir_all(fixture.path("src/deep")).unwrap();
        fs::write(fixture.path("src/mine"), "").unwrap();
        let command = format!("{PLANT} plant src/.git; plant src/deep/.git; plant a/b/.git; plant x/.git; plant y; plant z/.git/modules/q; chmod 311 z/.git/modules z/.git; ln -s x.refused lib; ln -s y.refused lib2; chmod 311 src/deep; chmod 311 src x a y; plant .git; chmod 311 .");
        let first = fixture.run(&command).await;
        nothing_runs(&fixture, &mark, &[".", "src", "src.refused", "x", "x.refused", "a/b", "lib", "lib2", "y", "src/deep", "z/.git/modules/q", "z"], &first.stderr);
        assert!(fixture.path("src/mine").exists(), "{}", first.stderr);
    }).await;
}

#[tokio::test]
async fn a_waiting_rebase_or_cherry_pick_continues_without_a_program_of_a_command() {
    each(all("a_waiting_rebase_or_cherry_pick_continues_without_a_program_of_a_command"), async |fixture| {
        let mark = fixture.folder.path().join("mark");
        for folder in ["rebase", "pick"] {
            users_repository(&fixture, folder);
            let write = |name: &str, text: &str| fs::write(fixture.path(folder).join(name), text).unwrap();
            user_git(&fixture, folder, &["checkout", "-q", "-b", "left"]);
            for name in ["kept", "g", "h"] {
                write(name, "left");
                user_git(&fixture, folder, &["add", name]);
                user_git(&fixture, folder, &["commit", "-q", "-m", name]);
            }
            user_git(&fixture, folder, &["checkout", "-q", "main"]);
            write("kept", "right");
            user_git(&fixture, folder, &["commit", "-q", "-a", "-m", "right"]);
        }
        git(&fixture, "rebase", &["rebase", "main", "left"]);
        git(&fixture, "pick", &["cherry-pick", "left~2", "left~1", "left"]);
        assert!(fixture.path("rebase/.git/rebase-merge").exists() && fixture.path("pick/.git/sequencer").exists());
        let program = format!("#!/bin/sh\ntouch {}\n", mark.display());
        fs::write(fixture.path("evil.txt"), program).unwrap();
        let command = "for d in rebase pick; do mkdir $d/git-merge-x; cp evil.txt $d/git-merge-x/evil; chmod +x $d/git-merge-x/evil; echo both > $d/kept; done; \
                       echo x/evil > rebase/.git/rebase-merge/strategy; printf '[options]\\n\\tstrategy = x/evil\\n' > pick/.git/sequencer/opts";
        let said = fixture.run(command).await;
        for (folder, what) in [("rebase", "rebase"), ("pick", "cherry-pick")] {
            user_git(&fixture, folder, &["add", "kept"]);
            git(&fixture, folder, &[what, "--continue"]);
            assert!(!mark.exists(), "{}: {what}: {}", fixture.kind(), said.stderr);
            let done = git(&fixture, folder, &["log", "--oneline"]);
            assert_eq!(String::from_utf8_lossy(&done.stdout).lines().count(), 5, "{what}");
        }
    }).await;
}

#[tokio::test]
async fn hooks_that_any_configuration_of_a_repository_names_are_written_by_no_command() {
    each(all("hooks_that_any_configuration_of_a_repository_names_are_written_by_no_command"), async |fixture| {
        users_repository(&fixture, "repo");
        user_git(&fixture, "repo", &["worktree", "add", "-q", "../wt"]);
        fs::write(fixture.path("shared"), "[include]\n\tpath = more\n").unwrap();
        fs::write(fixture.path("more"), "[core]\n\thooksPath = .ours\n").unwrap();
        user_git(&fixture, "repo", &["config", "include.path", "../../shared"]);
        user_git(&fixture, "repo", &["config", "extensions.worktreeConfig", "true"]);
        fs::write(fixture.path("repo/.git/config.worktree"), "[core]\n\thooksPath = .mine\n").unwrap();
        users_repository(&fixture, "sub");
        fs::create_dir_all(fixture.path("repo/.git/modules")).unwrap();
        fs::rename(fixture.path("sub/.git"), fixture.path("repo/.git/modules/sub")).unwrap();
        fs::write(fixture.path("sub/.git"), "gitdir: ../repo/.git/modules/sub\n").unwrap();
        user_git(&fixture, "sub", &["config", "core.worktree", "../../../../sub"]);
        user_git(&fixture, "sub", &["config", "core.hooksPath", "hooks"]);
        let hooks = ["repo/.ours", "repo/.mine", "wt/.ours", "sub/hooks"];
        for folder in hooks {
            fs::create_dir(fixture.path(folder)).unwrap();
            fs::write(fixture.path(folder).join("pre-commit"), "mine").unwrap();
        }

        let said = fixture.run("for d in repo/.ours repo/.mine wt/.ours sub/hooks; do echo evil > $d/pre-commit; echo evil > $d/post-commit; done; echo evil >> more; true").await;

        for folder in hooks {
            assert_eq!(fs::read_to_string(fixture.path(folder).join("pre-commit")).unwrap(), "mine", "{}: {folder}: {}", fixture.kind(), said.stderr);
            assert!(!fixture.path(folder).join("post-commit").exists(), "{folder}");
        }
        assert!(!fs::read_to_string(fixture.path("more")).unwrap().contains("evil"));
    }).await;
}

#[tokio::test]
async fn a_branch_may_have_the_name_of_a_protected_file() {
    each(SandboxFixture::both("a_branch_may_have_the_name_of_a_protected_file"), async |fixture| {
        users_repository(&fixture, "repo");
        let names = ["AGENTS.md", "mise.toml", "fix/lefthook.yml", "server.key"];
        for name in names {
            user_git(&fixture, "repo", &["branch", name]);
        }

        let said = fixture.run("cd repo; git branch x/CLAUDE.md && for b in AGENTS.md mise.toml fix/lefthook.yml server.key; do git rev-parse -q --verify $b || exit 3; git branch -D -q $b && git branch $b; done").await;

        assert_eq!((said.status, said.stderr.contains("[refused")), (Some(0), false), "{}: {}", fixture.kind(), said.stderr);
        for name in names.iter().chain(&["x/CLAUDE.md"]) {
            user_git(&fixture, "repo", &["rev-parse", "-q", "--verify", name]);
        }
    })
    .await;
}

/// Runs the tests of this file again as an unprivileged user, in another process.
#[test]
fn hideouts_are_searched_for_an_unprivileged_user_too() {
    stranger::again_as_stranger(&["sandbox::hideouts::"]);
}
