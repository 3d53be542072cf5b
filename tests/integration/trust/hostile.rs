//! A repository designed to attack its user: `tests/fixtures/hostile-repo`.

use std::{
    collections::BTreeMap,
    io::Write as _,
    net::TcpListener,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::Ground;
use crate::cli::{Ran, wait_for};

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/hostile-repo");

/// The repository in a home, a listener at the addresses that it names, and the folder in which its
/// programs would leave a file.
struct Attack {
    ground: Ground,
    listener: TcpListener,
    marks: PathBuf,
}

impl Attack {
    fn new() -> Self {
        let ground = Ground::new("");
        let marks = ground.home.path().join("marks");
        std::fs::create_dir(&marks).unwrap();
        std::fs::write(ground.home.path().join("home/.secret-key"), super::KEY).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        copy(Path::new(FIXTURE), &ground.repo, &|text| {
            text.replace("PORT", &port)
                .replace("MARKS", marks.to_str().unwrap())
        });
        let planted = Command::new("sh")
            .args(["plant.sh", marks.to_str().unwrap()])
            .current_dir(&ground.repo)
            .status()
            .unwrap();
        assert!(planted.success());
        Self {
            ground,
            listener,
            marks,
        }
    }

    fn connections(&self) -> usize {
        std::iter::from_fn(|| self.listener.accept().ok()).count()
    }

    fn marks(&self) -> Vec<String> {
        std::fs::read_dir(&self.marks)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }
}

fn copy(from: &Path, to: &Path, rewrite: &dyn Fn(&str) -> String) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let place = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir(&place).unwrap();
            copy(&entry.path(), &place, rewrite);
        } else {
            std::fs::write(
                place,
                rewrite(&std::fs::read_to_string(entry.path()).unwrap()),
            )
            .unwrap();
        }
    }
}

/// Everything below a folder with size and modification time, except the user's own data folder.
fn listing(folder: &Path, own: &Path) -> BTreeMap<PathBuf, (u64, i64, i64)> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            let data = entry.path().symlink_metadata().unwrap();
            // Creating the data folder also creates its parents.
            if own.starts_with(entry.path()) {
                if entry.path() != own {
                    folders.push(entry.path());
                }
                continue;
            }
            found.insert(entry.path(), (data.size(), data.mtime(), data.mtime_nsec()));
            if data.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    found
}

/// Commands that a person types in a folder that was just cloned. None contacts a provider.
const COMMANDS: &[&[&str]] = &[
    &[
        "run",
        "--provider",
        "offline",
        "Where is the retry delay computed, and what is its cap?",
    ],
    &[
        "run",
        "--provider",
        "offline",
        "--json",
        "--approve",
        "auto",
        "Hello",
    ],
    &["chat", "--provider", "offline"],
    &[
        "fanout",
        "What is {}?",
        "--over",
        "README.md",
        "--provider",
        "offline",
    ],
    &["tools", "list"],
    &["tools", "list", "--json"],
    &["tools", "call", "think", "{\"thought\": \"x\"}"],
    &["mcp", "list"],
    &["mcp", "check"],
    &["skills", "list"],
    &["doctor"],
    &["config", "show"],
    &["config", "check"],
    &["sessions", "list"],
    &["metrics"],
    &["tokens", "README.md", "--model", "claude-sonnet-4-5"],
    &["keys", "new"],
    &["load", "--conversations", "1", "--turns", "1"],
    &["trust", "--list"],
    &["trust"],
    &["serve"],
];

#[test]
fn commands_in_a_hostile_repository_start_nothing_send_nothing_and_write_nothing() {
    let attack = Attack::new();
    let root = attack.ground.home.path();
    let home = attack.ground.home.path().join("home");
    let own = home.join(".local/share/callboard");
    std::fs::create_dir_all(own.parent().unwrap()).unwrap();
    let before = listing(root, &own);

    for args in COMMANDS {
        let mut child = attack
            .ground
            .home
            .command_in(&attack.ground.repo, args)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let _ = input.write_all(b"Hello\n/tools\n/skills\n"); // A command that reads nothing may have ended.
        drop(input);
        let ran = Ran::of(args, child);

        assert_eq!(attack.marks(), Vec::<String>::new(), "{ran:?}");
        assert_eq!(attack.connections(), 0, "{ran:?}");
        assert_eq!(listing(root, &own), before, "{ran:?}");
        let trusted = args.first() == Some(&"trust");
        assert!(
            trusted || !format!("{ran:?}").contains("HOSTILE"),
            "{ran:?}"
        );
        assert!(!format!("{ran:?}").contains(super::KEY), "{ran:?}");
    }
}

#[test]
fn the_first_lines_of_a_run_name_what_counts_and_what_does_not() {
    let attack = Attack::new();

    let ran = attack
        .ground
        .run(&["run", "--provider", "offline", "Hello"])
        .well();

    let lines: Vec<&str> = ran.err.lines().collect();
    assert!(
        lines[0].ends_with(", configuration callboard.toml (only what narrows)"),
        "{}",
        ran.err
    );
    assert!(
        lines[1].starts_with(
            "note: callboard.toml: it is not trusted, so only what narrows takes effect (tools.enabled, limits.tool_iterations_max); `callboard \
             trust callboard.toml` shows what it would do and asks for confirmation"
        ),
        "{}",
        ran.err
    );
    assert!(
        ran.err
            .contains("AGENTS.md: it is not trusted, so it is not read"),
        "{}",
        ran.err
    );
    assert!(
        ran.err
            .contains("note: config/token_encoders.yaml: it is not trusted"),
        "{}",
        ran.err
    );
}

#[test]
fn the_fixture_attacks_a_user_who_trusts_it() {
    let attack = Attack::new();
    let text = std::fs::read_to_string(attack.ground.repo.join("callboard.toml")).unwrap();
    attack.ground.write(
        "callboard.toml",
        &text
            .split("[[mcp]]\nname = \"web\"")
            .next()
            .unwrap()
            .replace("[observability]", "[observability]\n#"),
    );
    let shown = attack
        .ground
        .run(&["trust", "--yes", "callboard.toml"])
        .well();

    attack.ground.run(&["mcp", "list"]);

    assert!(
        shown
            .err
            .contains("starts a program with your rights and no sandbox: sh -c \"touch "),
        "{}",
        shown.err
    );
    assert!(
        shown.err.contains("with the key of ANTHROPIC_API_KEY"),
        "{}",
        shown.err
    );
    wait_for("the program of the server", || {
        attack.marks().contains(&"mcp".to_owned())
    });
}
