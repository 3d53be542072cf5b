//! Repositories outside of the workspace that have a working tree in it or around it: what their
//! configuration names in the workspace is the user's to write. Each layout is tried behind every
//! boundary; then the user's git is run outside of them.

use std::{
    os::unix::fs::{PermissionsExt as _, symlink},
    process::Command,
};

use super::{
    doors::{git, user_git, users_repository},
    *,
};

struct Layout {
    name: &'static str,
    /// Makes the repository.
    make: fn(&SandboxFixture),
    /// Where the user changes its configuration, and runs git, relative to the workspace.
    top: &'static str,
    /// The folder `tools` of the workspace, relative to that.
    tools: &'static str,
    /// The repository's folder, relative to the workspace.
    repository: &'static str,
}

const LAYOUTS: [Layout; 6] = [
    Layout {
        name: "the workspace is a folder of a repository",
        make: |fixture| users_repository(fixture, ".."),
        top: "..",
        tools: "workspace/tools",
        repository: "../.git",
    },
    Layout {
        name: "the workspace is a folder of a linked working tree",
        make: |fixture| {
            users_repository(fixture, "../main");
            let elsewhere = fixture.path("../tree");
            let elsewhere = elsewhere.to_str().unwrap();
            user_git(
                fixture,
                "../main",
                &["worktree", "add", "-qb", "side", elsewhere],
            );
            fs::rename(fixture.path("../tree/.git"), fixture.path("../.git")).unwrap();
            user_git(fixture, "..", &["worktree", "repair"]);
        },
        top: "..",
        tools: "workspace/tools",
        repository: "../main/.git",
    },
    Layout {
        name: "the workspace is a linked working tree",
        make: |fixture| {
            users_repository(fixture, "../main");
            let tree = fixture.path("");
            let tree = tree.to_str().unwrap();
            user_git(
                fixture,
                "../main",
                &["worktree", "add", "-qb", "side", tree],
            );
        },
        top: "",
        tools: "tools",
        repository: "../main/.git",
    },
    Layout {
        name: "a linked working tree lies in the workspace",
        make: |fixture| {
            users_repository(fixture, "../main");
            let tree = fixture.path("tree");
            let tree = tree.to_str().unwrap();
            user_git(
                fixture,
                "../main",
                &["worktree", "add", "-qb", "side", tree],
            );
        },
        top: "tree",
        tools: "tools",
        repository: "../main/.git",
    },
    Layout {
        name: "the repository of the workspace lies elsewhere",
        make: |fixture| {
            let elsewhere = ["init", "-q", "--separate-git-dir", "../elsewhere"];
            user_git(fixture, "", &elsewhere);
        },
        top: "",
        tools: "tools",
        repository: "../elsewhere",
    },
    Layout {
        name: "`.git` of the workspace is a link",
        make: |fixture| {
            users_repository(fixture, "../main");
            symlink("../main/.git", fixture.path(".git")).unwrap();
        },
        top: "",
        tools: "tools",
        repository: "../main/.git",
    },
];

fn write(path: &Path, content: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// A script of the user.
fn script(path: &Path) {
    write(path, "#!/bin/sh\n");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[tokio::test]
async fn what_a_repository_outside_of_the_workspace_names_is_the_users() {
    let test = "what_a_repository_outside_of_the_workspace_names_is_the_users";
    for layout in &LAYOUTS {
        each(SandboxFixture::both(test), async |fixture| {
            let mark = fixture.folder.path().join("mark");
            (layout.make)(&fixture);
            let tools = layout.tools;
            let top = |arguments: &[&str]| user_git(&fixture, layout.top, arguments);
            top(&["config", "core.hooksPath", &format!("{tools}/hooks")]);
            top(&["config", "core.fsmonitor", &format!("{tools}/monitor")]);
            let included = fixture.path("included");
            top(&["config", "include.path", included.to_str().unwrap()]);
            // Where the files lie in the workspace.
            let own = match layout.top {
                "tree" => "tree/tools",
                _ => "tools",
            };
            let inner = |name: &str| format!("{own}/{name}");
            for name in ["monitor", "hook"] {
                script(&fixture.path(&inner(name)));
            }
            write(&included, "");
            // A hook of the repository, where git looks for them without `core.hooksPath`.
            let hooks = fixture.path(layout.repository).join("hooks");
            fs::create_dir_all(&hooks).unwrap();
            symlink(fixture.path(&inner("hook")), hooks.join("post-commit")).unwrap();
            let evil = format!("#!/bin/sh\ntouch {}\n", mark.display());
            script(&fixture.path("evil"));
            write(&fixture.path("evil"), &evil);
            let alias = format!("[alias]\n\tx = !touch {}\n", mark.display());
            write(&fixture.path("evil.config"), &alias);

            let said = fixture
                .run(&format!(
                    "mkdir -p {own}/hooks; for f in monitor hook hooks/post-commit hooks/pre-commit; do cp evil {own}/$f; done; \
                     cat evil.config > included; echo own > {own}/own"
                ))
                .await;
            let commit = ["commit", "-q", "--allow-empty", "-m", "x"];
            let plain: &[&str] = &["-c", "core.hooksPath=", "commit", "--allow-empty", "-m", "x"];
            for arguments in [&["status"][..], &commit, plain, &["x"]] {
                git(&fixture, layout.top, arguments);
            }

            let kind = fixture.kind();
            assert!(!mark.exists(), "{kind}: {}: {}", layout.name, said.stderr);
            assert!(fixture.path(&inner("own")).exists(), "{kind}: {}", layout.name);
            // The same by the file tools.
            let root = Root::open(fixture.path(""), PathRules::default()).unwrap();
            let edits = |path: &str| {
                let slot = root.slot(path, true);
                slot.and_then(|slot| slot.replace(b"x")).is_ok()
            };
            for name in ["monitor", "hook", "hooks/pre-push"] {
                assert!(!edits(&inner(name)), "{kind}: {}: {name}", layout.name);
            }
            assert!(edits(&inner("own")), "{kind}: {}", layout.name);
        })
        .await;
    }
}

#[test]
fn a_repository_outside_is_the_users_for_commands_of_an_unprivileged_user_too() {
    stranger::again_as_stranger(&["sandbox::gits_outer::what"]);
}

/// The user's git finds a path that is no text, too.
#[tokio::test]
async fn a_program_whose_path_is_no_text_is_the_users() {
    use std::os::unix::ffi::OsStrExt as _;
    each(
        SandboxFixture::both("a_program_whose_path_is_no_text_is_the_users"),
        async |fixture| {
            let mark = fixture.folder.path().join("mark");
            users_repository(&fixture, "");
            let name = std::ffi::OsStr::from_bytes(b"to\xffols");
            script(&fixture.path("").join(name).join("monitor"));
            let config = fixture.path(".git/config");
            let mut text = fs::read(&config).unwrap();
            text.extend(b"[core]\n\tfsmonitor = to\xffols/monitor\n");
            fs::write(&config, text).unwrap();
            let mark_it = format!("#!/bin/sh\ntouch {}\n", mark.display());
            write(&fixture.path("evil"), &mark_it);

            let said = fixture.run("cat evil > to*/monitor; echo > own").await;
            let status = Command::new("git")
                .arg("status")
                .current_dir(fixture.path(""))
                .env("HOME", fixture.folder.path())
                .output();

            status.unwrap();
            assert!(fixture.path("own").exists(), "{}", fixture.kind());
            assert!(!mark.exists(), "{}: {}", fixture.kind(), said.stderr);
        },
    )
    .await;
}
