use std::{fs, os::unix::ffi::OsStrExt, time::Instant};

use super::*;
use crate::sandbox::{PathRules, WorkspaceQuota};

fn fixture() -> (tempfile::TempDir, Arc<Guard>) {
    let folder = tempfile::tempdir().unwrap();
    let root = Arc::new(Root::open(folder.path(), PathRules::default()).unwrap());
    (folder, Guard::new(root))
}

fn write(folder: &tempfile::TempDir, path: &str, text: &str) {
    let path = folder.path().join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn paths(found: &Found) -> Vec<String> {
    found
        .protected
        .keys()
        .map(|path| path.to_string_lossy().into_owned())
        .collect()
}

fn repository(folder: &tempfile::TempDir, path: &str) {
    for name in ["HEAD", "objects/x", "refs/x", "config"] {
        write(folder, &format!("{path}/{name}"), "x");
    }
}

#[test]
fn what_names_programs_is_found_in_every_kind_of_repository() {
    let (folder, guard) = fixture();
    repository(&folder, "plain/.git");
    repository(&folder, "bare");
    repository(&folder, "plain/.git/modules/deep/er");
    for name in ["HEAD", "commondir", "gitdir", "config.worktree"] {
        write(&folder, &format!("plain/.git/worktrees/wt/{name}"), "x");
    }
    write(
        &folder,
        "plain/.git/rebase-merge/git-rebase-todo",
        "pick 1\nexec make\n",
    );
    write(&folder, "bare/rebase-merge/git-rebase-todo", "pick 1\n");
    write(
        &folder,
        "module/.git",
        "gitdir: ../plain/.git/modules/deep/er\n",
    );
    write(&folder, "ordinary/config", "x");

    let guarded = guard.search().unwrap();

    assert_eq!(
        paths(guarded.found()),
        [
            "bare/config",
            "module/.git",
            "plain/.git/config",
            "plain/.git/modules/deep/er/config",
            "plain/.git/rebase-merge/git-rebase-todo",
            "plain/.git/worktrees/wt/commondir",
            "plain/.git/worktrees/wt/config.worktree",
            "plain/.git/worktrees/wt/gitdir",
        ]
    );
    let git: BTreeSet<_> = guarded
        .found()
        .held
        .iter()
        .map(|path| path.to_str().unwrap())
        .collect();
    assert_eq!(
        git,
        BTreeSet::from([
            "bare",
            "plain/.git",
            "plain/.git/modules/deep/er",
            "plain/.git/worktrees/wt"
        ])
    );
}

#[test]
fn folders_by_whose_names_files_are_known_are_held_and_no_others() {
    let folder = tempfile::tempdir().unwrap();
    for path in [
        "a/.aws/credentials",
        ".config/gh/hosts.yml",
        ".cargo/credentials.toml~",
        "b/c/.vscode/tasks.json",
        "b/c/.vscode/launch.json",
        "d/.vscode/extensions.json",
        "e/.envrc",
        "e/.claude/.aws/sso/x",
        "f/g/skills/x",
        "h/skills/x",
    ] {
        write(&folder, path, "x");
    }
    std::os::unix::fs::symlink("../../../e", folder.path().join("b/c/.vscode/mcp.json")).unwrap();
    let rules =
        PathRules::default().and_protected(folder.path(), &folder.path().join("f/g/skills"));
    let guard = Guard::new(Arc::new(Root::open(folder.path(), rules).unwrap()));

    let guarded = guard.search().unwrap();

    assert_eq!(
        guarded.found().held,
        [
            ".cargo",
            ".config",
            ".config/gh",
            "a/.aws",
            "b/c/.vscode",
            "f",
            "f/g",
        ]
        .map(PathBuf::from)
    );
}

#[test]
fn a_git_that_is_no_folder_is_protected_by_itself_wherever_it_leads() {
    let (folder, guard) = fixture();
    repository(&folder, "meta");
    for (name, target) in [
        ("a", "/proc/self/cwd/y"),
        ("b", "../nothing"),
        ("c", ".git"),
        ("d", "/etc"),
        ("e", "../meta"),
    ] {
        fs::create_dir(folder.path().join(name)).unwrap();
        std::os::unix::fs::symlink(target, folder.path().join(name).join(".git")).unwrap();
    }

    let guarded = guard.search().unwrap();

    assert_eq!(
        paths(guarded.found()),
        [
            "a/.git",
            "b/.git",
            "c/.git",
            "d/.git",
            "e/.git",
            "meta/config"
        ]
    );
    assert_eq!(guarded.found().loose.len(), 5);
    assert_eq!(guarded.end(), Vec::<String>::new(), "the user's own stay");
}

#[test]
fn a_users_link_that_is_replaced_is_known_to_be_another() {
    let (folder, guard) = fixture();
    let link = folder.path().join(".git");
    std::os::unix::fs::symlink("mine", &link).unwrap();
    let guarded = guard.search().unwrap();

    // The new link may get the same inode number.
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink("evil", &link).unwrap();

    assert_eq!(guarded.end().len(), 1);
    assert!(fs::symlink_metadata(&link).is_err());
}

#[test]
fn a_new_link_takes_nothing_along_that_it_leads_to() {
    let (folder, guard) = fixture();
    write(&folder, "src/config", "the user's");
    let guarded = guard.search().unwrap();

    std::os::unix::fs::symlink("src", folder.path().join(".git")).unwrap();
    std::os::unix::fs::symlink("src", folder.path().join(".mcp.json")).unwrap();

    assert_eq!(guarded.end().len(), 2);
    assert!(folder.path().join("src/config").exists());
}

#[test]
fn what_a_protected_link_of_the_user_leads_to_is_protected_with_it() {
    let (folder, guard) = fixture();
    repository(&folder, ".git");
    write(&folder, "githooks/pre-commit", "x");
    std::os::unix::fs::symlink("../githooks", folder.path().join(".git/hooks")).unwrap();

    let guarded = guard.search().unwrap();

    assert_eq!(
        paths(guarded.found()),
        [".git/config", ".git/hooks", "githooks"]
    );
    assert!(
        guarded
            .found()
            .read_only
            .contains(&PathBuf::from("githooks"))
    );
}

#[test]
fn hooks_and_files_that_the_users_configuration_names_are_protected_with_it() {
    let (folder, guard) = fixture();
    repository(&folder, "repo/.git");
    write(
        &folder,
        "repo/.git/config",
        "[core]\n\thooksPath = .githooks\n[include]\n\tpath = ../shared\n\tpath = ../..\n",
    );
    write(&folder, "repo/.githooks/pre-commit", "x");
    repository(&folder, "other/.git");
    write(
        &folder,
        "other/.git/config",
        "[core]\n\thooksPath = later\n",
    );
    write(&folder, "src/main.rs", "x");

    let guarded = guard.search().unwrap();
    assert_eq!(
        paths(guarded.found()),
        ["other/.git/config", "repo/.git/config", "repo/.githooks"]
    );
    write(&folder, "repo/shared", "evil");
    write(&folder, "other/later/post-commit", "evil");
    // Paths that a new configuration names stay in place.
    write(
        &folder,
        "src/.git/config",
        "[core]\n\thooksPath = ../src/main.rs\n[include]\n\tpath = ../main.rs\n",
    );

    assert_eq!(guarded.end().len(), 3);
    for (place, is_there) in [
        ("repo/shared", false),
        ("other/later", false),
        ("src/.git/config", false),
        ("src/main.rs", true),
    ] {
        assert_eq!(folder.path().join(place).exists(), is_there, "{place}");
    }
}

#[test]
fn names_that_are_taken_keep_nothing_in_its_place() {
    let (folder, guard) = fixture();
    let guarded = guard.search().unwrap();

    write(&folder, ".mcp.json", "evil");
    write(&folder, ".mcp.json.refused", "taken");
    (2..=1000).for_each(|n| write(&folder, &format!(".mcp.json.refused.{n}"), "taken"));
    write(
        &folder,
        &format!("{}.code-workspace", "x".repeat(240)),
        "evil",
    );

    let lines = guarded.end();

    assert!(
        lines.len() == 2 && lines.iter().all(|line| line.contains("it was moved to")),
        "{lines:?}"
    );
    assert!(!folder.path().join(".mcp.json").exists());
}

#[test]
fn names_that_are_no_text_are_searched_like_others() {
    let (folder, guard) = fixture();
    let odd = folder.path().join(std::ffi::OsStr::from_bytes(b"\xff\xfe"));
    let guarded = guard.search().unwrap();

    fs::create_dir_all(odd.join("x/.git")).unwrap();
    fs::write(odd.join("x/.git/config"), "evil").unwrap();

    assert_eq!(guarded.end().len(), 1);
    assert!(!odd.join("x/.git/config").exists() && odd.join("x/.git/config.refused").exists());
}

#[test]
fn what_a_command_made_is_not_vouched_for_by_one_that_ran_beside_it() {
    let (folder, guard) = fixture();
    write(&folder, ".mcp.json", "the user's");
    let first = guard.search().unwrap();
    write(&folder, "a/.mcp.json", "evil");
    let second = guard.search().unwrap();
    // Hides the file while the first command is swept, then brings it back.
    fs::rename(folder.path().join("a/.mcp.json"), folder.path().join("a/x")).unwrap();
    assert_eq!(first.end(), Vec::<String>::new());
    fs::rename(folder.path().join("a/x"), folder.path().join("a/.mcp.json")).unwrap();

    let lines = second.end();

    assert_eq!(
        lines,
        [
            "[refused: a/.mcp.json may be created by the user only; it was moved to a/.mcp.json.refused]"
        ]
    );
    assert_eq!(
        fs::read_to_string(folder.path().join(".mcp.json")).unwrap(),
        "the user's"
    );
}

#[test]
fn sixty_thousand_names_in_a_folder_hide_nothing() {
    let (folder, guard) = fixture();
    for n in 0..60_000 {
        fs::hard_link(
            folder.path().join("first"),
            folder.path().join(n.to_string()),
        )
        .or_else(|_| fs::write(folder.path().join("first"), ""))
        .unwrap();
    }
    for name in [".env", ".git/config", "AGENTS.md"] {
        write(&folder, name, "x");
    }

    let guarded = guard.search().unwrap();

    assert_eq!(paths(guarded.found()), [".git/config", "AGENTS.md"]);
    assert_eq!(guarded.found().hidden, [(PathBuf::from(".env"), false)]);
}

#[test]
fn of_any_number_of_names_that_a_command_makes_those_of_a_program_are_found() {
    let (folder, guard) = fixture();
    repository(&folder, "r/.git");
    write(
        &folder,
        "r/.git/config",
        "[filter \"a\"]\n\tclean = python3 f\n",
    );
    write(&folder, "r/f", "import json\n");
    write(&folder, "r/page.md", "x");
    std::os::unix::fs::symlink("page.md", folder.path().join("r/CLAUDE.md")).unwrap();
    let command = guard.search().unwrap();
    for n in 0..60_000 {
        // An inode has a bounded number of names.
        let first = folder.path().join(format!("r/a{}", n / 30_000));
        fs::hard_link(&first, folder.path().join(format!("r/{n}")))
            .or_else(|_| fs::write(&first, ""))
            .unwrap();
    }
    write(&folder, "r/json.pyc", "evil");
    write(&folder, "r/_json.cpython-311-x86_64-linux-gnu.so", "evil");

    let lines = command.end();

    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(!folder.path().join("r/json.pyc").exists());
    assert!(search::is_behind_protected_link(
        guard.root(),
        Path::new("r/page.md")
    ));
}

#[test]
fn of_any_number_of_working_trees_that_a_command_makes_the_users_count() {
    let (folder, guard) = fixture();
    repository(&folder, "r/.git");
    let config = "[core]\n\thooksPath = hk\n\tfsmonitor = t/f\n";
    write(&folder, "r/.git/config", config);
    let pointer = folder.path().join("r/tree/.git");
    write(
        &folder,
        "r/.git/worktrees/wt/gitdir",
        pointer.to_str().unwrap(),
    );
    for name in ["HEAD", "commondir"] {
        write(&folder, &format!("r/.git/worktrees/wt/{name}"), "../..");
    }
    write(&folder, "r/tree/.git", "gitdir: ../.git/worktrees/wt");
    write(&folder, "r/tree/t/f", "users");
    let flood = |from: u32| {
        for n in from..from + 150 {
            fs::create_dir(folder.path().join(format!("r/.git/worktrees/f{n}"))).unwrap();
        }
    };
    flood(0);

    let command = guard.search().unwrap();
    assert!(paths(command.found()).contains(&"r/tree/t/f".to_owned()));
    flood(150);
    write(&folder, "r/tree/hk/pre-commit", "evil");
    let lines = command.end();

    assert!(
        !folder.path().join("r/tree/hk/pre-commit").exists(),
        "{lines:?}"
    );
}

#[test]
fn more_files_that_a_configuration_includes_than_are_read_are_an_error() {
    let (folder, guard) = fixture();
    repository(&folder, "r/.git");
    let include = |n: u32| format!("[include]\n\tpath = ../c{n}\n");
    let config = |files: u32| (0..files).map(include).collect::<String>();
    write(&folder, "r/.git/config", &config(200));
    write(&folder, "r/c199", "[core]\n\tfsmonitor = ./f\n");
    write(&folder, "r/f", "users");
    assert!(paths(guard.search().unwrap().found()).contains(&"r/f".to_owned()));
    write(&folder, "r/.git/config", &config(1500));

    let error = guard.search().unwrap_err().to_string();

    assert!(
        error.contains("more than 1000 files are included"),
        "{error}"
    );
}

#[test]
fn of_any_number_of_words_in_a_configuration_none_is_passed_over() {
    let (folder, guard) = fixture();
    repository(&folder, "r/.git");
    let aliases = |count: u32| {
        let alias = |n: u32| format!("\ta{n} = \"!plain{n} p/{n}\"\n");
        let aliases: String = (0..count).map(alias).collect();
        format!("[alias]\n{aliases}\tz = !awk -f cleaner\n[core]\n\tfsmonitor = t/f\n")
    };
    write(&folder, "r/t/f", "users");
    write(&folder, "r/cleaner", "users");
    write(&folder, "r/.git/config", &aliases(1500));

    let guarded = guard.search().unwrap();
    let found = paths(guarded.found());
    for name in ["r/t/f", "r/cleaner"] {
        assert!(found.contains(&name.to_owned()), "{found:?}");
    }
    drop(guarded);
    write(&folder, "r/.git/config", &aliases(20_000));

    let error = guard.search().unwrap_err().to_string();
    assert!(error.contains("more than"), "{error}");
}

#[test]
fn keys_behind_links_and_in_pipes_are_hidden() {
    let (folder, guard) = fixture();
    for path in ["keys/id_x", "conf/gh/hosts.yml", "conf/other", "aws/sso/x"] {
        write(&folder, path, "key");
    }
    let link = |target: &str, name: &str| {
        std::os::unix::fs::symlink(target, folder.path().join(name)).unwrap();
    };
    link("keys", ".ssh");
    link("conf", ".config");
    fs::create_dir(folder.path().join("d")).unwrap();
    link("../aws", "d/.aws");
    // What contains the link stays.
    link("..", "d/.gnupg");
    let pipe = rustix::fs::FileType::Fifo;
    let mode = rustix::fs::Mode::RWXU;
    rustix::fs::mknodat(&guard.root().dir, ".env", pipe, mode, 0).unwrap();

    let guarded = guard.search().unwrap();

    let mut hidden = guarded.found().hidden.clone();
    hidden.sort();
    hidden.dedup();
    let expected = [
        (".env", false),
        ("aws/sso", true),
        ("conf/gh/hosts.yml", false),
        ("keys", true),
    ];
    assert_eq!(
        hidden,
        expected.map(|(path, is_folder)| (PathBuf::from(path), is_folder))
    );
}

#[test]
fn what_a_configuration_behind_a_link_names_is_found() {
    let outside = tempfile::tempdir().unwrap();
    for behind in ["inside", "outside"] {
        let (folder, guard) = fixture();
        let config = match behind {
            "inside" => folder.path().join("shared/config"),
            _ => outside.path().join("config"),
        };
        write(&folder, "shared/x", "");
        fs::write(&config, "[core]\n\tfsmonitor = t/f\n").unwrap();
        repository(&folder, "a/.git");
        repository(&folder, "b/.git");
        fs::remove_file(folder.path().join("a/.git/config")).unwrap();
        std::os::unix::fs::symlink(&config, folder.path().join("a/.git/config")).unwrap();
        std::os::unix::fs::symlink(&config, folder.path().join("b/.git/config.worktree")).unwrap();
        for name in ["a/t/f", "b/t/f"] {
            write(&folder, name, "users");
        }

        let guarded = guard.search().unwrap();

        let found = paths(guarded.found());
        for name in ["a/t/f", "b/t/f"] {
            assert!(found.contains(&name.to_owned()), "{behind}: {found:?}");
        }
    }
}

#[test]
fn a_configuration_that_is_too_long_to_be_read_is_an_error() {
    let (folder, guard) = fixture();
    repository(&folder, "r/.git");
    let long = "# \n".repeat(400_000) + "[core]\n\tfsmonitor = ./f\n";
    write(&folder, "r/.git/config", &long);

    let error = guard.search().unwrap_err().to_string();

    assert!(error.contains("longer than"), "{error}");
}

#[test]
fn the_file_that_a_name_of_keys_leads_to_is_hidden_as_well() {
    let (folder, guard) = fixture();
    let link = |target: &str, name: &str| {
        std::os::unix::fs::symlink(target, folder.path().join(name)).unwrap();
    };
    for (name, text) in [
        ("settings/dev", "KEY=x"),
        ("sub/a", "x"),
        (".env.local~", "x"),
    ] {
        write(&folder, name, text);
    }
    link("settings/dev", ".env");
    link("../settings/dev", "sub/.env");
    link("sub", "id_rsa");
    link("nowhere", ".netrc");
    link("/etc/hostname", ".npmrc");

    let guarded = guard.search().unwrap();

    let mut found = guarded.found().hidden.clone();
    found.sort();
    let hidden = [
        (".env.local~", false),
        ("settings/dev", false),
        ("sub", true),
    ];
    assert_eq!(
        found,
        hidden.map(|(path, is_folder)| (PathBuf::from(path), is_folder))
    );
}

#[test]
fn more_protected_files_than_can_be_covered_are_an_error() {
    let (folder, guard) = fixture();
    for n in 0..1001 {
        write(&folder, &format!("{n}/.bashrc"), "x");
    }

    assert_eq!(guard.search().unwrap_err(), Unguarded::Covers);
    fs::remove_file(folder.path().join("7/.bashrc")).unwrap();
    assert_eq!(guard.search().unwrap().found().covers(), 1000);
}

#[test]
fn a_folder_too_deep_for_a_path_is_an_error_and_not_passed_over() {
    let (folder, guard) = fixture();
    let name = "d".repeat(200);
    let mut here: std::os::fd::OwnedFd = fs::File::open(folder.path()).unwrap().into();
    for _ in 0..25 {
        rustix::fs::mkdirat(&here, &name, rustix::fs::Mode::RWXU).unwrap();
        here = rustix::fs::openat(
            &here,
            &name,
            crate::sandbox::fs::jail::FOLDER,
            rustix::fs::Mode::empty(),
        )
        .unwrap();
    }

    assert!(matches!(guard.search().unwrap_err(), Unguarded::Deep(_)));
}

/// Prints a measurement. `CALLBOARD_LONG=1` measures the promised size.
#[test]
fn the_second_search_of_a_large_workspace_takes_a_question_a_folder() {
    let (folder, guard) = fixture();
    let is_long = callboard_actors::testing::TestSize::is_long();
    let (folders, files) = if is_long { (20_000, 15) } else { (2_500, 2) };
    for n in 0..folders {
        let path = folder.path().join(format!("{}/{}/{n}", n % 10, n % 100));
        fs::create_dir_all(&path).unwrap();
        (0..files).for_each(|n| fs::write(path.join(format!("file{n}.rs")), "").unwrap());
    }
    write(&folder, "9/99/.git/config", "x");
    write(&folder, "9/99/deploy/.env", "x");
    std::thread::sleep(std::time::Duration::from_millis(150)); // listings of folders that changed just now are not cached

    let times: Vec<_> = (0..3)
        .map(|_| {
            let start = Instant::now();
            let guarded = guard.search().unwrap();
            assert_eq!(
                (paths(guarded.found()), guarded.found().hidden.len()),
                (vec!["9/99/.git/config".to_owned()], 1)
            );
            start.elapsed()
        })
        .collect();

    println!("{folders} folders, {} files: {times:?}", folders * files);
    assert!(guard.state().listings.len() > folders);
    write(&folder, "5/55/2055/.git/config", "evil");
    assert_eq!(
        guard.search().unwrap().found().protected.len(),
        2,
        "a change is seen at once"
    );
}

#[test]
fn the_search_counts_what_a_walk_counts_and_no_name_is_out_of_its_sight() {
    let folder = tempfile::tempdir().unwrap();
    let quota = WorkspaceQuota {
        files_max: Some(1000),
        ..WorkspaceQuota::default()
    };
    let guard = Guard::new(Arc::new(
        Root::open(folder.path(), PathRules::default())
            .unwrap()
            .bounded(quota),
    ));
    repository(&folder, "plain/.git");
    repository(&folder, "bare");
    repository(&folder, "plain/.git/modules/deep/er");
    for path in [
        ".git/objects/aa/b",
        ".git/objects/pack/c",
        ".git/logs/refs/x",
        "bare/objects/a/b",
        "bare/modules/m/objects/d/e",
    ] {
        write(&folder, path, "x");
    }
    for path in [
        ".ssh/hoard/a",
        ".ssh/hoard/b",
        ".vscode/.git/objects/x",
        "node_modules/.bin/x",
        ".husky/_/x",
        "sub/.env",
    ] {
        write(&folder, path, "x");
    }
    std::os::unix::fs::symlink("..", folder.path().join("up")).unwrap();

    for more in [
        "",
        "plain/.git/objects/new/file",
        ".ssh/hoard/deep/file",
        ".vscode/.git/objects/new/file",
    ] {
        if !more.is_empty() {
            write(&folder, more, "x");
        }
        let guarded = guard.search().unwrap();
        let searched = guard.root.usage().unwrap();
        assert_eq!(
            (searched, guard.count()),
            (guard.root.count(), searched),
            "{more}"
        );
        guarded.end();
        assert_eq!(guard.root.usage(), Some(searched), "{more}");
    }
    assert!(guard.root.count().files > 60);
}

#[test]
fn cached_listings_follow_folders_that_change_move_or_are_replaced() {
    let (folder, guard) = fixture();
    for path in [
        "a/b/c/d/file",
        "a/x/file",
        "moved/in/.envrc",
        "bare/file",
        "bare/modules/m/file",
    ] {
        write(&folder, path, "x");
    }
    std::thread::sleep(std::time::Duration::from_millis(150)); // listings of folders that changed just now are not cached
    let at = |path: &str| folder.path().join(path);
    let found = || paths(guard.search().unwrap().found());

    assert_eq!(found(), ["moved/in/.envrc"]);
    let cached = guard.state().listings.clone();
    assert_eq!(found(), ["moved/in/.envrc"]);
    assert!(
        Arc::ptr_eq(&cached, &guard.state().listings),
        "nothing changed, so nothing was built"
    );
    assert_eq!(cached.len(), 11);

    // A name before all others moves the place of every sibling.
    write(&folder, "a/aaa/.envrc", "x");
    assert_eq!(found(), ["a/aaa/.envrc", "moved/in/.envrc"]);
    write(&folder, "a/b/c/d/.envrc", "x");
    assert_eq!(
        found(),
        ["a/aaa/.envrc", "a/b/c/d/.envrc", "moved/in/.envrc"]
    );
    fs::rename(at("moved/in"), at("a/b/c/in")).unwrap();
    fs::remove_dir_all(at("a/aaa")).unwrap();
    fs::rename(at("a/x"), at("a/b/x")).unwrap();
    fs::rename(at("a/b/c/d"), at("a/x")).unwrap();
    assert_eq!(found(), ["a/b/c/in/.envrc", "a/x/.envrc"]);
    repository(&folder, "bare");
    repository(&folder, "bare/modules/m");
    assert_eq!(
        found(),
        [
            "a/b/c/in/.envrc",
            "a/x/.envrc",
            "bare/config",
            "bare/modules/m/config"
        ]
    );
    std::thread::sleep(std::time::Duration::from_millis(150));
    found();
    write(&folder, "bare/modules/m/hooks/new", "x");
    assert!(found().contains(&"bare/modules/m/hooks".to_owned()));
}

#[test]
fn a_command_that_makes_too_many_folders_hides_no_repository_in_older_ones() {
    let (folder, guard) = fixture();
    write(&folder, "src/deep/mine", "x");
    std::thread::sleep(std::time::Duration::from_millis(150)); // listings of folders that changed just now are not cached
    let guarded = guard.search().unwrap();
    for n in 0..100 {
        fs::create_dir(folder.path().join(format!("a{n}"))).unwrap();
    }
    for place in ["src/.git", "src/deep/.git"] {
        repository(&folder, place);
    }

    let listings = guard.state().listings.clone();
    let searched = search::after_within(&guard.root, &listings, &guarded.known, 50);

    assert_eq!(
        paths(&searched.found),
        ["src/.git/config", "src/deep/.git/config"]
    );
    assert_eq!(searched.missed, [Unguarded::Folders]);
}

#[test]
fn what_another_session_names_is_protected_from_then_on_and_stays_the_users() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder, "tools/server.py", "the user's");
    let named = crate::sandbox::fs::NamedFiles::default();
    let root = Root::open(folder.path(), PathRules::default()).unwrap();
    let guard = Guard::new(Arc::new(root.sharing(named.clone())));
    std::thread::sleep(std::time::Duration::from_millis(150)); // listings of folders that changed just now are not cached
    let first = guard.search().unwrap();
    assert_eq!(paths(first.found()), Vec::<String>::new());

    let server = folder.path().join("tools/server.py");
    assert!(named.add(&[server.clone(), "/elsewhere/x".into()], &[], &[]));
    let second = guard.search().unwrap();

    assert_eq!(paths(second.found()), ["tools/server.py"]);
    assert_eq!(second.found().held, [PathBuf::from("tools")]);
    assert!(
        guard
            .root()
            .rules()
            .is_protected(Path::new("tools/server.py"))
    );
    assert_eq!(first.end(), Vec::<String>::new());
    let third = guard.search().unwrap();
    assert_eq!((second.end(), third.end()), (Vec::new(), Vec::new()));
    assert!(server.exists());
}
