//! How a person agrees to project files, and how long an agreement lasts.

use std::{os::unix::fs::symlink, process::Command};

use super::Ground;
use crate::cli::Ran;

const DENY: &str = "[tools]\napprove = \"deny\"\n";
const LOCAL: &str = "[sandbox]\nmode = \"local\"\n";
const MODE_LOCAL: &str = "mode = \"local\"";

#[test]
fn a_file_counts_after_the_agreement_and_no_longer_when_one_byte_changes() {
    let ground = Ground::new(LOCAL);
    assert!(!ground.shown().contains(MODE_LOCAL));

    let shown = ground.run(&["trust", "--yes"]).well();
    let trusted = ground.shown();
    ground.write("callboard.toml", &format!("{LOCAL}\n"));
    let changed = ground.shown();
    let noted = ground.run(&["sessions", "list"]).well().err;
    ground.write("callboard.toml", LOCAL);

    assert!(shown.err.contains("callboard.toml is not trusted. If you trust it, it\n  - runs commands WITHOUT a sandbox"), "{}", shown.err);
    assert!(
        trusted.contains(MODE_LOCAL) && trusted.contains("# callboard.toml: it is trusted"),
        "{trusted}"
    );
    assert!(!changed.contains(MODE_LOCAL), "{changed}");
    assert!(
        noted.contains(
            "note: callboard.toml: it changed since it was trusted, so nothing in it takes effect"
        ),
        "{noted}"
    );
    assert!(
        ground.shown().contains(MODE_LOCAL),
        "the content that was agreed to is back"
    );
}

#[test]
fn a_copy_elsewhere_is_not_trusted() {
    let ground = Ground::new(LOCAL);
    ground.run(&["trust", "--yes"]).well();
    let copy = ground.home.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    std::fs::copy(
        ground.repo.join("callboard.toml"),
        copy.join("callboard.toml"),
    )
    .unwrap();
    let linked = ground.home.path().join("linked");
    symlink(&ground.repo, &linked).unwrap();

    let of_copy = ground.run_in(&copy, &["config", "show"]).well().out;
    let of_link = ground.run_in(&linked, &["config", "show"]).well().out;

    assert!(!of_copy.contains(MODE_LOCAL), "{of_copy}");
    assert!(
        of_link.contains(MODE_LOCAL),
        "another name of the same folder: {of_link}"
    );
}

#[test]
fn a_linked_file_is_trusted_where_the_link_stands_with_what_it_leads_to() {
    let ground = Ground::new("");
    let target = ground.home.path().join("elsewhere.toml");
    std::fs::write(&target, LOCAL).unwrap();
    symlink(&target, ground.repo.join("callboard.toml")).unwrap();
    assert!(!ground.shown().contains(MODE_LOCAL));

    let shown = ground.run(&["trust", "--yes"]).well();
    let trusted = ground.shown();
    let other = ground.home.path().join("other");
    std::fs::create_dir(&other).unwrap();
    symlink(&target, other.join("callboard.toml")).unwrap();
    let of_other = ground.run_in(&other, &["config", "show"]).well().out;
    std::fs::write(&target, format!("{LOCAL}#")).unwrap();

    assert!(
        shown
            .err
            .contains(&format!("is a link to {}", target.display())),
        "{}",
        shown.err
    );
    assert!(
        trusted.contains(MODE_LOCAL) && !of_other.contains(MODE_LOCAL),
        "{trusted}{of_other}"
    );
    assert!(!ground.shown().contains(MODE_LOCAL), "its target changed");
}

#[test]
fn from_a_file_that_is_not_trusted_only_what_narrows_is_read() {
    let mut ground = Ground::new(
        "[tools]\nenabled = [\"think\", \"bash\", \"evil__tool\"]\napprove = \"deny\"\n[limits]\ntool_iterations_max = 3\nidle_s = 1\n\
         model_calls_max = 1000000\n[sandbox]\nmode = \"local\"\nprocesses = 2\nnetwork = [\"example.org\"]\n[host]\ndata_dir = \"data\"\n",
    );

    let shown = ground.shown();
    ground
        .home
        .variables
        .push(("CALLBOARD_TOOLS__ENABLED", "think".into()));
    ground
        .home
        .variables
        .push(("CALLBOARD_LIMITS__TOOL_ITERATIONS_MAX", "2".into()));
    let by_user = ground.shown();

    for line in [
        "enabled = [\"think\", \"bash\"]",
        "approve = \"deny\"",
        "tool_iterations_max = 3",
        "processes = 2",
        "mode = \"auto\"",
        "network = []",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    assert!(
        !shown.contains("idle_s = 1 ") && !shown.contains("model_calls_max = 1000000"),
        "{shown}"
    );
    assert!(
        !shown.contains("data_dir = \"data\"")
            && shown.contains(".local/share/callboard\"  # default"),
        "{shown}"
    );
    assert!(
        by_user.contains("enabled = [\"think\"]  # CALLBOARD_TOOLS__ENABLED"),
        "{by_user}"
    );
    assert!(
        by_user.contains("tool_iterations_max = 2  # CALLBOARD_LIMITS__TOOL_ITERATIONS_MAX"),
        "{by_user}"
    );
}

#[test]
fn what_the_user_denied_stays_denied() {
    let ground = Ground::new("[tools]\napprove = \"ask\"\n");
    let own = ground.home.path().join("home/.config/callboard");
    std::fs::create_dir_all(&own).unwrap();

    std::fs::write(own.join("callboard.toml"), DENY).unwrap();
    let denied = ground.shown();
    std::fs::write(own.join("callboard.toml"), "[tools]\napprove = \"auto\"\n").unwrap();
    let asked = ground.shown();

    assert!(
        denied.contains("approve = \"deny\"") && asked.contains("approve = \"ask\""),
        "{denied}{asked}"
    );
}

#[test]
fn a_file_that_is_named_counts_without_an_agreement() {
    let ground = Ground::new(LOCAL);

    let by_flag = ground
        .run(&["--config", "callboard.toml", "config", "show"])
        .well()
        .out;

    assert!(by_flag.contains(MODE_LOCAL), "{by_flag}");
    assert!(!ground.store().exists());
}

#[test]
fn odd_files_are_passed_over_and_no_word_of_them_is_repeated() {
    type Make = fn(&std::path::Path);
    let odd: &[(&str, Make, &str)] = &[
        (
            "a pipe",
            |path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success()),
            "it is not a regular file",
        ),
        (
            "a folder",
            |path| std::fs::create_dir(path).unwrap(),
            "it is not a regular file",
        ),
        (
            "a device",
            |path| symlink("/dev/zero", path).unwrap(),
            "it is not a regular file",
        ),
        (
            "a huge file",
            |path| std::fs::write(path, "#".repeat(3 << 20)).unwrap(),
            "it is longer than 1048576 bytes",
        ),
        (
            "a loop",
            |path| symlink("callboard.toml", path).unwrap(),
            "it cannot be read",
        ),
        (
            "no TOML",
            |path| std::fs::write(path, "HOSTILE \u{202e}[[[").unwrap(),
            "it has a mistake",
        ),
        (
            "an unknown key",
            |path| std::fs::write(path, "[tools]\nHOSTILE = 1\napprove = \"deny\"\n").unwrap(),
            "it has a mistake",
        ),
        (
            "no text",
            |path| std::fs::write(path, b"# HOSTILE \xff\xfe").unwrap(),
            "it has a mistake",
        ),
    ];
    for (what, make, reason) in odd {
        let ground = Ground::new("");
        make(&ground.repo.join("callboard.toml"));

        let ran = ground
            .run(&["run", "--provider", "offline", "Hello"])
            .well();
        let trust = ground.run(&["trust", "--yes", "callboard.toml"]);

        assert!(
            ran.err
                .contains(&format!("note: callboard.toml: it is not read: {reason}")),
            "{what}: {}",
            ran.err
        );
        assert!(!ran.err.contains("HOSTILE"), "{what}: {}", ran.err);
        assert!(
            trust.code != Some(0) && !ground.store().exists(),
            "{what}: {trust:?}"
        );
    }
}

#[test]
fn other_spellings_of_the_name_are_other_files() {
    let ground = Ground::new("");
    for name in [
        "Callboard.toml",
        "CALLBOARD.TOML",
        ".callboard.toml",
        "callboard.toml.bak",
        "agents.md",
        "Agents.md",
    ] {
        ground.write(name, "[sandbox]\nmode = \"local\"\n");
    }

    let ran = ground
        .run(&["run", "--provider", "offline", "Hello"])
        .well();
    let trust = ground.run(&["trust", "--yes"]).well();

    assert!(
        !ground.shown().contains(MODE_LOCAL) && !ran.err.contains("not trusted"),
        "{}",
        ran.err
    );
    assert!(
        trust.err.contains("there is nothing to trust here"),
        "{trust:?}"
    );
}

#[test]
fn without_a_terminal_nothing_is_agreed_to_and_what_it_would_do_is_shown() {
    let ground = Ground::new(
        "[[mcp]]\nname = \"x\"\ncommand = \"sh\"\nargs = [\"-c\", \"id\u{202e}\u{200b}\u{1b}[31m\"]\n"
            .replace('\u{1b}', "\\u001b")
            .as_str(),
    );

    let ran = ground.run(&["trust"]);

    assert_eq!(
        (ran.code, ran.error()),
        (
            Some(2),
            "error: there is no terminal to ask on (hint: --yes trusts without a question)"
        )
    );
    assert!(ran.err.contains("starts a program with your rights and no sandbox: sh -c \"id\\u{202e}\\u{200b}\\u{1b}[31m\""), "{}", ran.err);
    assert!(
        !ran.err.contains(['\u{202e}', '\u{200b}', '\u{1b}']),
        "{}",
        ran.err
    );
    assert!(!ground.store().exists());
}

#[test]
fn agreements_are_listed_and_taken_back() {
    let ground = Ground::new(LOCAL);
    ground.write("AGENTS.md", "Be brief.\n");
    let agreed = ground.run(&["trust", "--yes"]).well();
    assert_eq!(
        agreed
            .out
            .lines()
            .filter(|line| line.starts_with("trusted: "))
            .count(),
        2,
        "{agreed:?}"
    );
    ground.write("AGENTS.md", "Be long.\n");

    let list = ground.run(&["trust", "--list"]).well().out;
    let revoked = ground
        .run(&["trust", "--revoke", "callboard.toml"])
        .well()
        .out;
    let again = ground.run(&["trust", "--revoke", "callboard.toml"]);
    let folder = ground
        .home
        .run(&["trust", "--revoke", ground.repo.to_str().unwrap()])
        .well()
        .out;

    let real = ground.repo.canonicalize().unwrap();
    let states: Vec<_> = list
        .lines()
        .map(|line| {
            (
                line.split_whitespace().next().unwrap(),
                line.contains(real.to_str().unwrap()),
            )
        })
        .collect();
    assert_eq!(states, [("changed", true), ("trusted", true)], "{list}");
    assert!(
        revoked.contains("no longer trusted: ") && !ground.shown().contains(MODE_LOCAL),
        "{revoked}"
    );
    assert_eq!(again.code, Some(1), "{again:?}");
    assert!(folder.contains("AGENTS.md"), "{folder}");
    assert_eq!(ground.run(&["trust", "--list"]).well().out, "");
}

#[test]
fn the_store_is_the_users_alone_and_no_project_moves_it() {
    use std::os::unix::fs::PermissionsExt as _;
    let ground = Ground::new("[host]\ndata_dir = \"mine\"\n");
    ground.run(&["trust", "--yes"]).well();
    let mode =
        |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(
        (
            mode(&ground.store()),
            mode(ground.store().parent().unwrap())
        ),
        (0o600, 0o700)
    );
    assert!(ground.shown().contains("repo/mine\""), "{}", ground.shown());

    std::fs::create_dir(ground.repo.join("mine")).unwrap();
    std::fs::copy(ground.store(), ground.repo.join("mine/trust.json")).unwrap();
    std::fs::write(ground.store(), "not what was written").unwrap();
    let corrupt = ground.run(&["sessions", "list"]).well();

    assert!(
        !ground.shown().contains("repo/mine\""),
        "a store that cannot be read trusts nothing"
    );
    let lines: Vec<&str> = corrupt
        .err
        .lines()
        .filter(|line| line.contains("trust.json"))
        .collect();
    assert!(
        lines.len() == 1 && lines[0].contains("nothing is trusted: it is malformed"),
        "{}",
        corrupt.err
    );
}

#[test]
fn skills_of_a_trusted_configuration_are_agreed_to_with_all_they_hold() {
    let ground = Ground::new("[skills]\ndir = \"skills\"\n");
    ground.write(
        "skills/greet/SKILL.md",
        "---\nname: greet\ndescription: Greets.\n---\nSay hello.\n",
    );
    let listed = || ground.run(&["skills", "list"]);
    ground.write("skills/greet/scripts/a.py", "pass\n");
    assert_eq!(listed().code, Some(2));

    // The configuration only names the folder; its content needs another agreement.
    let text = ground.run(&["trust", "--yes", "callboard.toml"]).well();
    assert!(
        text.out.contains("callboard.toml") && text.out.contains("skills"),
        "{text:?}"
    );
    let well = listed();
    ground.write("skills/greet/scripts/a.py", "pass \n");
    let changed = listed();

    assert!(well.out.contains("greet"), "{well:?}");
    assert_eq!(changed.code, Some(2), "{changed:?}");
    assert!(
        changed
            .err
            .contains("skills: it changed since it was trusted, so its skills are not used"),
        "{}",
        changed.err
    );
    assert!(
        ground
            .run(&["skills", "list", "--skills", "skills"])
            .well()
            .out
            .contains("greet"),
        "a flag names it"
    );
}

#[test]
fn at_a_terminal_a_person_is_asked_once_and_only_a_later_yes_counts() {
    let ground = Ground::new(LOCAL);
    let at_terminal = |steps: &str, args: &[&str]| {
        let script = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/integration/support/terminal.py"
        );
        let mut command = Command::new("python3");
        command
            .args([script, steps, env!("CARGO_BIN_EXE_callboard")])
            .args(args)
            .current_dir(&ground.repo);
        command
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .env("TERM", "dumb");
        Ran::of(args, ground.home.dress(&mut command).spawn().unwrap())
    };
    let hello = ["run", "--provider", "offline", "--no-tools", "Hello"];
    let question = "Trust it? [y]es, [N]o for now, [s]how the text ";

    let typed_ahead = at_terminal(
        &format!("[[\"\", 0, \"y\\n\"], [\"{question}\", 400, \"\\n\"]]"),
        &hello,
    )
    .well();
    assert!(
        typed_ahead.out.contains("nothing in it takes effect") && !ground.store().exists(),
        "{typed_ahead:?}"
    );
    let as_json = at_terminal(
        "[]",
        &[
            "run",
            "--provider",
            "offline",
            "--no-tools",
            "--json",
            "Hello",
        ],
    )
    .well();
    assert!(!as_json.out.contains("Trust it?"), "{as_json:?}");
    let yes = at_terminal(
        &format!("[[\"{question}\", 400, \"s\\n\"], [\"{question}\", 400, \"y\\n\"]]"),
        &hello,
    )
    .well();
    let next = at_terminal("[]", &hello).well();

    assert!(
        yes.out.contains("runs commands WITHOUT a sandbox")
            && yes.out.contains("| mode = \"local\""),
        "{yes:?}"
    );
    assert!(
        yes.out.contains("configuration callboard.toml (trusted)"),
        "{yes:?}"
    );
    assert!(
        !next.out.contains("Trust it?")
            && next.out.contains("configuration callboard.toml (trusted)"),
        "{next:?}"
    );
}

#[test]
fn each_file_is_reported_by_doctor_and_by_config_check() {
    let ground = Ground::new(LOCAL);
    ground.write("AGENTS.md", "Be brief.\n");

    let doctor = ground.run(&["doctor"]).well().out;
    let check = ground.run(&["config", "check"]).well();
    ground.run(&["trust", "--yes"]).well();
    let trusted = ground.run(&["doctor"]).well().out;
    let checked = ground.run(&["config", "check"]).well();
    ground.write("callboard.toml", "[tools]\naprove = \"deny\"\n");
    let mistake = ground.run(&["config", "check"]);

    for file in ["callboard.toml", "AGENTS.md"] {
        assert!(
            doctor.contains(&format!("warn trust: {file}: it is not trusted")),
            "{doctor}"
        );
        assert!(
            trusted.contains(&format!("ok trust: {file}: it is trusted")),
            "{trusted}"
        );
    }
    assert!(
        check.out.contains("no file, only defaults")
            && check.err.contains("callboard.toml: it is not trusted"),
        "{check:?}"
    );
    assert!(
        checked.out.contains("(callboard.toml)")
            && checked.err.contains("callboard.toml: it is trusted"),
        "{checked:?}"
    );
    assert_eq!(
        (mistake.code, mistake.error()),
        (
            Some(2),
            "error: callboard.toml:2: unknown key in [tools] `aprove`; did you mean `approve`?"
        )
    );
}

#[test]
fn in_a_folder_that_holds_the_store_nothing_can_be_trusted() {
    let ground = Ground::new("");
    let home = ground.home.path().join("home");
    std::fs::write(home.join("callboard.toml"), LOCAL).unwrap();

    let trust = ground.run_in(&home, &["trust", "--yes"]);
    let list = ground.run_in(&home, &["sessions", "list"]).well();

    assert_eq!(trust.code, Some(1), "{trust:?}");
    assert!(
        trust
            .error()
            .contains("trust.json lies inside the folder of this file"),
        "{trust:?}"
    );
    assert!(
        list.err.contains(
            "it cannot be trusted, because the list of trusted files lies inside its folder"
        ),
        "{}",
        list.err
    );
    assert!(list.err.contains("name it with --config"), "{}", list.err);
}
