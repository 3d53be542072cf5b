//! Git's configuration, of a repository and of the account: what it includes or runs in the workspace
//! is the user's to write, however its paths are spelled. Each attack is tried behind every boundary;
//! then the user's git is run outside of them.

use std::{
    os::unix::fs::{PermissionsExt as _, symlink},
    process::Command,
};

use super::{
    doors::{all, git, user_git, users_repository},
    gits_files::of_an_account,
    *,
};

/// A configuration that runs a program which leaves `mark`.
fn evil(mark: &Path) -> String {
    format!(
        "[core]\n\tfsmonitor = \"touch {}; false\"\n",
        mark.display()
    )
}

/// Creates a file, and the folders above it.
fn write(path: &Path, content: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

#[tokio::test]
async fn a_path_in_gits_configuration_is_the_users_in_every_spelling() {
    // What the configuration holds, and the file that git reads or runs.
    let cases = [
        ("[include]\n\tpath = \"../sh#ared.cfg\"\n", "sh#ared.cfg"),
        ("[include]\n\tpath = ../x \";b\".cfg ; no\n", "x ;b.cfg"),
        ("[include]\n\tpath = ../a\\\\b\\\"c.cfg\n", "a\\b\"c.cfg"),
        ("[include]\n\tpath = ../a\\tb.cfg\n", "a\tb.cfg"),
        ("[include]\n\tpath = ../a\rb.cfg\n", "a\rb.cfg"),
        ("[include]\n\tpath = ../sha\\\nred.cfg\n", "shared.cfg"),
        ("[include]\n\tpath = ../sha\\\r\nred.cfg\r\n", "shared.cfg"),
        (
            "[includeIf \"gitdir:/**/[a-z]*/.git\"] path = ../one.cfg\n",
            "one.cfg",
        ),
        (
            "[includeIf \"gitdir:/**/r[0-9\\]*/.git\"]\n# ]\n\tPath = ../two.cfg\n",
            "two.cfg",
        ),
        ("[core]\n\thooksPath = \"to#ols\"\n", "to#ols/pre-commit"),
        ("[Core] HOOKSPATH=\"to;ols\"\n", "to;ols/pre-commit"),
        ("\u{feff}[core]\n\thooksPath = tools\n", "tools/pre-commit"),
        ("[alias]\n\tx = \"!f\n\n[include]path = ../bad.cfg\n", ""),
    ];
    each(
        all("a_path_in_gits_configuration_is_the_users_in_every_spelling"),
        async |fixture| {
            let mark = fixture.folder.path().join("mark");
            let mut command = String::new();
            fs::write(fixture.path("evil.cfg"), evil(&mark)).unwrap();
            let hook = format!("#!/bin/sh\ntouch {}\n", mark.display());
            fs::write(fixture.path("hook.txt"), hook).unwrap();
            for (n, (settings, file)) in cases.iter().enumerate() {
                let repository = format!("r{n}");
                users_repository(&fixture, &repository);
                let config = fixture.path(&repository).join(".git/config");
                let before = fs::read_to_string(&config).unwrap();
                fs::write(config, format!("{settings}{before}")).unwrap();
                if file.is_empty() {
                    continue;
                }
                // Half of the files are there already.
                if n % 2 == 0 {
                    write(&fixture.path(&repository).join(file), "");
                }
                let source = if file.ends_with("pre-commit") {
                    "hook.txt"
                } else {
                    "evil.cfg"
                };
                let quoted = file.replace('\\', "\\\\").replace('\t', "\\t").replace('\r', "\\r");
                command += &format!(
                    "f=r{n}/$'{quoted}'; mkdir -p \"$(dirname \"$f\")\"; cp {source} new; chmod +x new; rm -f \"$f\"; cp new \"$f\"; mv -f new \"$f\"; "
                );
            }

            let said = fixture.run(&command).await;

            for (n, (settings, _)) in cases.iter().enumerate() {
                let repository = format!("r{n}");
                git(&fixture, &repository, &["status"]);
                git(&fixture, &repository, &["commit", "-q", "--allow-empty", "-m", "x"]);
                assert!(!mark.exists(), "{}: {settings:?}: {}", fixture.kind(), said.stderr);
            }
        },
    )
    .await;
}

/// An account whose git reads a file of the workspace.
struct Account {
    name: &'static str,
    /// Makes the account, given its home and the workspace.
    make: fn(&Path, &Path),
    /// The file of the workspace.
    file: &'static str,
    home_is_workspace: bool,
}

const ACCOUNTS: &[Account] = &[
    Account {
        name: "~/.gitconfig is a link",
        make: |home, workspace| {
            write(&workspace.join("dot/gitconfig"), "[user]\n\tname = u\n");
            symlink(workspace.join("dot/gitconfig"), home.join(".gitconfig")).unwrap();
        },
        file: "dot/gitconfig",
        home_is_workspace: false,
    },
    Account {
        name: "~/.gitconfig is a link to a file that is absent",
        make: |home, workspace| {
            symlink(workspace.join("dot/gitconfig"), home.join(".gitconfig")).unwrap();
        },
        file: "dot/gitconfig",
        home_is_workspace: false,
    },
    Account {
        name: "~/.gitconfig is a link to a link of the workspace",
        make: |home, workspace| {
            write(&workspace.join("real"), "[user]\n\tname = u\n");
            symlink("real", workspace.join("link")).unwrap();
            symlink(workspace.join("link"), home.join(".gitconfig")).unwrap();
        },
        file: "link",
        home_is_workspace: false,
    },
    Account {
        name: "~/.gitconfig includes a file",
        make: |home, workspace| {
            write(&workspace.join("git/extra"), "[user]\n\tname = u\n");
            let path = workspace.join("git/extra");
            let text = format!("[include]\n\tpath = \"{}\"\n", path.display());
            write(&home.join(".gitconfig"), &text);
        },
        file: "git/extra",
        home_is_workspace: false,
    },
    Account {
        name: "~/.gitconfig includes an absent file by ~ and a condition",
        make: |home, _| {
            let text = "[includeIf \"gitdir:~/\"]\n\tpath = ~/workspace/git/extra\n";
            write(&home.join(".gitconfig"), text);
        },
        file: "git/extra",
        home_is_workspace: false,
    },
    Account {
        name: "a file of the workspace that the account includes includes another",
        make: |home, workspace| {
            write(&workspace.join("one"), "[include]\n\tpath = sub/two\n");
            write(
                &home.join(".gitconfig"),
                "[include]\n\tpath = workspace/one\n",
            );
        },
        file: "sub/two",
        home_is_workspace: false,
    },
    Account {
        name: "~/.config/git is a link to a folder",
        make: |home, workspace| {
            write(&workspace.join("gitx/config"), "[user]\n\tname = u\n");
            fs::create_dir(home.join(".config")).unwrap();
            symlink(workspace.join("gitx"), home.join(".config/git")).unwrap();
        },
        file: "gitx/config",
        home_is_workspace: false,
    },
    Account {
        name: "~/.config is a link to a folder, whose git is absent",
        make: |home, workspace| {
            fs::create_dir(workspace.join("cfg")).unwrap();
            symlink(workspace.join("cfg"), home.join(".config")).unwrap();
        },
        file: "cfg/git/config",
        home_is_workspace: false,
    },
    Account {
        name: "the workspace is the home",
        make: |home, _| {
            let text = "[include]\n\tpath = ~/.gitconfig-work\n";
            write(&home.join(".gitconfig"), text);
            write(&home.join(".gitconfig-work"), "[user]\n\tname = u\n");
        },
        file: ".gitconfig-work",
        home_is_workspace: true,
    },
    Account {
        name: "the workspace is the home, and an included file is absent",
        make: |home, _| {
            write(
                &home.join(".gitconfig"),
                "[include]\n\tpath = .gitconfig.local\n",
            );
        },
        file: ".gitconfig.local",
        home_is_workspace: true,
    },
];

#[tokio::test]
async fn configuration_of_the_account_that_lies_in_the_workspace_is_the_users() {
    let test = "configuration_of_the_account_that_lies_in_the_workspace_is_the_users";
    for (account, only) in ACCOUNTS.iter().flat_map(|account| {
        [
            (account, Boundary::Bubblewrap),
            (account, Boundary::Landlock),
        ]
    }) {
        let Some(fixture) = SandboxFixture::of(test, only, ExecLimits::default()) else {
            continue;
        };
        let mark = fixture.folder.path().join("mark");
        let repository = fixture.path("");
        let home = match account.home_is_workspace {
            true => repository.clone(),
            false => fixture.folder.path().to_owned(),
        };
        users_repository(&fixture, "");
        (account.make)(&home, &repository);
        write(&repository.join("evil"), &evil(&mark));
        write(&repository.join("kept.txt"), "kept");
        let file = account.file;

        let command = format!(
            "mkdir -p $(dirname {file}); cat evil > {file}; cat evil > real; cp evil new; mv -f new {file}; echo more >> kept.txt"
        );
        let said = of_an_account(&fixture, only, &home).run(&command).await;
        for arguments in [["status", "-s"], ["log", "-1"]] {
            Command::new("git")
                .args(arguments)
                .current_dir(&repository)
                .env("HOME", &home)
                .env_remove("XDG_CONFIG_HOME")
                .env("GIT_CONFIG_NOSYSTEM", "1")
                .output()
                .unwrap();
        }

        assert!(
            !mark.exists(),
            "{only:?}: {}: {}",
            account.name,
            said.stderr
        );
        assert_eq!(
            fs::read_to_string(repository.join("kept.txt")).unwrap(),
            "keptmore\n",
            "{only:?}: {}",
            account.name
        );
        // The same by the file tool.
        let rules = PathRules::default().with_home(Some(home));
        let root = Root::open(&repository, rules).unwrap();
        let edited = root.slot(file, true).and_then(|slot| slot.replace(b"x"));
        assert!(edited.is_err(), "{only:?}: {}", account.name);
        assert!(
            root.slot("other.txt", false).is_ok(),
            "{only:?}: {}",
            account.name
        );
    }
}

#[tokio::test]
async fn a_module_that_gits_configuration_runs_is_the_users() {
    // A command of git's configuration, and the file that a command creates.
    let cases = [
        ("\"/usr/bin/python3\" -m nbstripout", "nbstripout.py"),
        ("python3 -u -mnbstripout", "nbstripout/__main__.py"),
        ("cd tools && python3 -m one.two", "tools/one/two.py"),
        ("python3 -m one.two", "one/__init__.py"),
        // Python finds its own modules at the top first.
        ("python3 -m nbstripout", "argparse.py"),
        ("python3 -c 'import argparse'", "argparse/__init__.py"),
        // And beside a script.
        ("python3 tools/f", "tools/argparse.py"),
        ("./tools/f", "tools/argparse/__init__.py"),
        // What Python's own modules import beside that.
        ("python3 tools/f", "tools/_json.py"),
        ("./tools/f", "tools/_hashlib/__init__.py"),
        ("perl -Ilib -MMy::Filter -pe 1", "lib/My/Filter.pm"),
    ];
    each(
        SandboxFixture::both("a_module_that_gits_configuration_runs_is_the_users"),
        async |fixture| {
            let mark = fixture.folder.path().join("mark");
            let at = mark.display();
            write(&fixture.path("evil.py"), &format!("open('{at}', 'w')\n"));
            write(&fixture.path("evil.pm"), &format!("open(F, '>', '{at}'); 1\n"));
            let site = fixture.folder.path().join("site");
            write(&site.join("nbstripout.py"), "import argparse\n");
            let mut command = String::new();
            for (n, (program, file)) in cases.iter().enumerate() {
                let repository = format!("r{n}");
                users_repository(&fixture, &repository);
                let script = fixture.path(&repository).join("tools/f");
                write(&script, "#!/usr/bin/env python3\nimport argparse, json, hashlib\n");
                fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
                user_git(&fixture, &repository, &["config", "core.fsmonitor", program]);
                let ending = if file.ends_with("pm") { "pm" } else { "py" };
                command += &format!(
                    "f=r{n}/{file}; mkdir -p $(dirname $f); case $f in */__main__.py) touch r{n}/nbstripout/__init__.py;; esac; cp evil.{ending} $f; echo y > r{n}/own.py; "
                );
            }

            let said = fixture.run(&command).await;

            for (n, (program, _)) in cases.iter().enumerate() {
                let repository = format!("r{n}");
                Command::new("git")
                    .args(["status"])
                    .current_dir(fixture.path(&repository))
                    .env("HOME", fixture.folder.path())
                    .env("GIT_CONFIG_NOSYSTEM", "1")
                    .env("PYTHONPATH", &site)
                    .output()
                    .unwrap();
                assert!(!mark.exists(), "{}: {program}: {}", fixture.kind(), said.stderr);
                assert!(fixture.path(&repository).join("own.py").exists(), "{}", said.stderr);
            }
        },
    )
    .await;
}

#[tokio::test]
async fn a_file_that_any_word_of_a_command_names_is_the_users() {
    // A command of git's configuration, and the file of the user that it runs.
    let cases = [
        ("awk -ftools/x", "tools/x"),
        ("awk -f x", "x"),
        ("bash -o pipefail x", "x"),
        ("sh +x x", "x"),
        ("cat x | sh; :", "x"),
        ("sh tools/clean*", "tools/cleanx"),
        ("bash -c 'cat tools/{x,y} | sh'", "tools/y"),
        ("make -ftools/x", "tools/x"),
        ("make -Ctools", "tools/Makefile"),
        ("false; git -c core.fsmonitor=tools/x status", "tools/x"),
    ];
    let test = "a_file_that_any_word_of_a_command_names_is_the_users";
    each(SandboxFixture::both(test), async |fixture| {
        let mark = fixture.folder.path().join("mark");
        let at = mark.display();
        write(&fixture.path("sh"), &format!("touch {at}\n"));
        write(
            &fixture.path("awk"),
            &format!("BEGIN {{ system(\"touch {at}\") }}\n"),
        );
        write(&fixture.path("make"), &format!("x:\n\ttouch {at}\n"));
        let mut command = String::new();
        for (n, (program, file)) in cases.iter().enumerate() {
            let repository = format!("r{n}");
            users_repository(&fixture, &repository);
            write(&fixture.path(&repository).join(file), "\n");
            user_git(
                &fixture,
                &repository,
                &["config", "core.fsmonitor", program],
            );
            let kind = ["awk", "make"]
                .into_iter()
                .find(|kind| program.starts_with(kind));
            let evil = kind.unwrap_or("sh");
            command += &format!("cat {evil} > r{n}/{file}; echo y > r{n}/own; ");
        }

        let said = fixture.run(&command).await;

        for (n, (program, _)) in cases.iter().enumerate() {
            user_git(&fixture, &format!("r{n}"), &["status"]);
            assert!(
                !mark.exists(),
                "{}: {program}: {}",
                fixture.kind(),
                said.stderr
            );
            assert!(
                fixture.path(&format!("r{n}/own")).exists(),
                "{}",
                said.stderr
            );
        }
    })
    .await;
}

#[tokio::test]
async fn a_repository_that_a_command_has_closed_leaves_no_file_to_write() {
    let test = "a_repository_that_a_command_has_closed_leaves_no_file_to_write";
    each(SandboxFixture::both(test), async |fixture| {
        users_repository(&fixture, "r");
        write(&fixture.path("r/tools/f"), "mine\n");
        write(&fixture.path("r/.vscode/x"), "mine\n");
        symlink("../tools/tasks", fixture.path("r/.vscode/tasks.json")).unwrap();
        write(&fixture.path("r/tools/tasks"), "mine\n");
        write(&fixture.path("r/tools/own"), "mine\n");
        user_git(&fixture, "r", &["config", "core.fsmonitor", "tools/f"]);
        let root = Root::open(fixture.path(""), PathRules::default()).unwrap();
        let close = |mode| {
            for name in ["r/.git", "r/.vscode"] {
                let mode = fs::Permissions::from_mode(mode);
                fs::set_permissions(fixture.path(name), mode).unwrap();
            }
        };
        assert!(root.slot("r/tools/own", false).is_ok());
        close(0);
        for name in ["r/tools/f", "r/tools/tasks"] {
            let refused = root.slot(name, false).is_err();
            assert!(refused, "{name}");
        }
        close(0o755);
        write(&fixture.path(".env"), "");
        fs::remove_file(fixture.path(".env")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            fixture.path(".env"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .unwrap();
        let said = fixture.run("timeout 3 cat .env; echo $?").await.stdout;
        // Empty, or not to be opened.
        assert!(said == "0\n" || said == "1\n", "{}: {said}", fixture.kind());
    })
    .await;
}

#[tokio::test]
async fn git_that_only_reads_runs_no_program_of_a_repository() {
    let configs = [
        "[diff]\n\texternal = touch ran\n",
        "[filter \"a\"]\n\tclean = touch ran\n",
        "[diff \"a\"]\n\ttextconv = touch ran\n",
        "[merge \"a\"]\n\tdriver = touch ran\n",
        "[include]\n\tpath = /dev/stdin\n",
        "[include]\n\tpath = ../more\n",
    ];
    let test = "git_that_only_reads_runs_no_program_of_a_repository";
    each(SandboxFixture::both(test), async |fixture| {
        let reading = |git_only_reads| Exec {
            git_only_reads,
            ..Exec::new("git -C r status --short && git -C r diff && git -C r log -p")
        };
        users_repository(&fixture, "r");
        write(&fixture.path("r/.gitattributes"), "* filter=a diff=a\n");
        write(&fixture.path("r/more"), configs[0]);
        write(&fixture.path("r/f"), "first\n");
        user_git(&fixture, "r", &["add", "-A"]);
        user_git(&fixture, "r", &["commit", "-qm", "first"]);
        write(&fixture.path("r/f"), "changed\n");
        let plain = fs::read_to_string(fixture.path("r/.git/config")).unwrap();
        let run = async |exec| {
            let sandbox = fixture.sandbox.clone();
            sandbox.exec(exec, CancellationToken::new()).await
        };
        assert_eq!(run(reading(true)).await.unwrap().status, Some(0));
        for config in configs {
            write(&fixture.path("r/.git/config"), &format!("{plain}{config}"));

            let refused = run(reading(true)).await.unwrap_err().to_string();
            assert!(refused.contains("`command git`"), "{config}: {refused}");
            assert!(!fixture.path("r/ran").exists() && !fixture.path("ran").exists());
        }
        run(reading(false)).await.unwrap();
        assert!(fixture.path("r/ran").exists(), "what is approved runs");
    })
    .await;
}

#[test]
fn gits_settings_are_the_users_for_commands_of_an_unprivileged_user_too() {
    stranger::again_as_stranger(&["sandbox::gits_settings::"]);
}
