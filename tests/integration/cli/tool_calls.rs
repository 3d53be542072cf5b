//! `tools`.

use serde_json::{Value, json};

use super::Home;

#[test]
fn a_call_runs_through_the_door_and_gives_one_line() {
    let home = Home::new();

    let mut called = home
        .run(&["tools", "call", "grep_search", r#"{"pattern": "CAP_MS"}"#])
        .well()
        .json();

    assert!(called["duration_ms"].take().is_u64());
    let observation = called["observation"].take();
    assert_eq!(
        observation.as_str().unwrap().trim(),
        "src/retry.rs:4: pub const RETRY_CAP_MS: u64 = 10_000;"
    );
    let rest = json!({
        "index": 0, "success": true, "is_error": false, "observation": null, "level": "standard", "retry_count": 0, "duration_ms": null,
    });
    assert_eq!(called, rest);
}

#[test]
fn lines_of_arguments_give_lines_of_results_in_order() {
    let home = Home::new();
    let input = "{\"path\": \"src/retry.rs\"}\n\n{\"path\": \"gone.rs\"}\nnot json\n{\"path\": 7}\n{\"path\": \"src/retry.rs\"}";

    let ran = home.run_with_input(&["tools", "call", "file_read"], input);

    let seen: Vec<(u64, bool, Value, Value)> = ran
        .events()
        .iter()
        .map(|called| {
            (
                called["index"].as_u64().unwrap(),
                called["success"].as_bool().unwrap(),
                called["error_code"].clone(),
                called["should_retry"].clone(),
            )
        })
        .collect();
    let expected = [
        (0, true, Value::Null, Value::Null),
        (1, false, json!("NOT_FOUND"), json!(false)),
        (2, false, json!("INVALID_PARAMETERS"), json!(false)),
        (3, false, json!("INVALID_PARAMETERS"), json!(false)),
        (4, true, Value::Null, Value::Null),
    ];
    assert_eq!(seen, expected);
    assert_eq!(ran.code, Some(1));
}

#[test]
fn what_changes_something_needs_approval() {
    let home = Home::new();
    let arguments = r#"{"path": "new.txt", "old_text": "", "new_text": "hello"}"#;

    let denied = home.run(&["tools", "call", "file_edit", arguments]);
    let untouched = !home.work().join("new.txt").exists();
    home.run(&["tools", "call", "file_edit", arguments, "--approve", "auto"])
        .well();

    assert_eq!(
        (denied.code, denied.json()["error_code"].as_str()),
        (Some(1), Some("APPROVAL_DENIED"))
    );
    assert!(untouched);
    assert_eq!(
        std::fs::read_to_string(home.work().join("new.txt")).unwrap(),
        "hello"
    );
}

#[test]
fn a_command_that_only_reads_needs_no_approval_where_the_kernel_holds_it() {
    let home = Home::new();
    if home.run(&["tools", "show", "bash"]).code != Some(0) {
        use std::io::Write;
        writeln!(&mut std::io::stderr(), "SKIPPED: a_command_that_only_reads_needs_no_approval_where_the_kernel_holds_it: no sandbox")
            .unwrap();
        return;
    }
    let call = |command: &str, flags: &[&str]| {
        let arguments = json!({ "command": command }).to_string();
        home.run(
            &[
                &["tools", "call", "bash", &arguments, "--approve", "deny"],
                flags,
            ]
            .concat(),
        )
        .json()
    };

    let read = call("cat src/retry.rs | head -n 4 | tail -n 1", &[]);
    let written = call("cat src/retry.rs > copy", &[]);
    let without_boundary = call("cat src/retry.rs", &["--sandbox", "local"]);

    assert_eq!(
        read["observation"].as_str().unwrap().trim(),
        "pub const RETRY_CAP_MS: u64 = 10_000;"
    );
    assert_eq!(
        [&written["error_code"], &without_boundary["error_code"]],
        ["APPROVAL_DENIED", "APPROVAL_DENIED"]
    );
    assert!(!home.work().join("copy").exists());
}

#[test]
fn a_bare_repository_in_the_workspace_runs_nothing_by_a_command_that_only_reads() {
    let home = Home::new();
    let has_git = std::process::Command::new("git")
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success());
    if !has_git || home.run(&["tools", "show", "bash"]).code != Some(0) {
        use std::io::Write;
        let test = "a_bare_repository_in_the_workspace_runs_nothing_by_a_command_that_only_reads";
        writeln!(
            &mut std::io::stderr(),
            "SKIPPED: {test}: no sandbox or no git"
        )
        .unwrap();
        return;
    }
    // What a clone can contain as ordinary files.
    for folder in ["fixture.git/refs", "fixture.git/objects"] {
        std::fs::create_dir_all(home.work().join(folder)).unwrap();
    }
    let config = "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = .\n\tfsmonitor = \"touch planted; false\"\n";
    std::fs::write(
        home.work().join("fixture.git/HEAD"),
        "ref: refs/heads/main\n",
    )
    .unwrap();
    std::fs::write(home.work().join("fixture.git/config"), config).unwrap();
    let call = |command: &str, approve: &str| {
        home.run(&[
            "tools",
            "call",
            "bash",
            &json!({ "command": command }).to_string(),
            "--approve",
            approve,
        ])
        .json()
    };
    let is_planted = || home.work().join("fixture.git/planted").exists();

    for command in [
        "cd fixture.git && git status",
        "git -C fixture.git status --short",
        "git -C fixture.git diff",
    ] {
        assert!(
            call(command, "deny")["error_code"].as_str() != Some("APPROVAL_DENIED")
                && !is_planted(),
            "{command}"
        );
    }
    // The trap itself works, for a command that needed approval and got it.
    call("cd fixture.git && git status > status", "auto");
    assert!(is_planted());
}

#[test]
fn toolchains_of_the_path_are_found_unless_they_are_turned_off_and_listed_ones_always() {
    let mut home = Home::new();
    if home.run(&["tools", "show", "bash"]).code != Some(0) {
        use std::io::Write;
        let test =
            "toolchains_of_the_path_are_found_unless_they_are_turned_off_and_listed_ones_always";
        writeln!(&mut std::io::stderr(), "SKIPPED: {test}: no sandbox").unwrap();
        return;
    }
    let cargo = home.path().join("home/.cargo");
    std::fs::create_dir_all(cargo.join("bin")).unwrap();
    // A link, because a file that is still open for writing cannot be executed.
    std::os::unix::fs::symlink("/bin/echo", cargo.join("bin/tool")).unwrap();
    std::fs::write(cargo.join("credentials.toml"), "token = \"not-a-real-key\"").unwrap();
    // The user who runs the tests may have set it.
    let usual = [
        home.variables.clone(),
        vec![("CARGO_HOME", cargo.display().to_string())],
    ]
    .concat();
    let mut call = |variables: &[(&'static str, String)]| {
        home.variables = [usual.as_slice(), variables].concat();
        let command = "tool found; cat $CARGO_HOME/credentials.toml ~/.cargo/credentials.toml";
        let arguments = json!({ "command": command }).to_string();
        let called = home
            .run(&["tools", "call", "bash", &arguments, "--approve", "auto"])
            .json();
        let observation = called["observation"].as_str().unwrap().to_owned();
        assert!(!observation.contains("token"), "{observation}");
        observation.lines().any(|line| line == "found")
    };
    let path = (
        "PATH",
        format!("{}:/usr/bin:/bin", cargo.join("bin").display()),
    );
    let off = ("CALLBOARD_SANDBOX__TOOLCHAINS", "false".to_owned());
    let listed = ("CALLBOARD_SANDBOX__READ_ONLY", "~/.cargo".to_owned());

    assert!(call(std::slice::from_ref(&path)), "PATH leads to it");
    assert!(!call(&[path.clone(), off.clone()]), "it is turned off");
    assert!(
        call(&[("PATH", "/usr/bin:/bin".to_owned()), off, listed]),
        "it is listed"
    );
}

#[test]
fn an_unknown_tool_is_a_result_and_a_hint() {
    let home = Home::new();

    let called = home.run(&["tools", "call", "grep_serch", "{}"]);
    let shown = home.run(&["tools", "show", "grep_serch"]);

    assert_eq!(
        (called.code, called.json()["error_code"].as_str()),
        (Some(1), Some("NOT_FOUND"))
    );
    for ran in [called, shown] {
        assert_eq!(
            (ran.code, ran.error()),
            (
                Some(1),
                "error: there is no tool `grep_serch` (hint: did you mean `grep_search`?)"
            )
        );
    }
}

#[test]
fn tools_are_listed_and_shown_with_their_schema() {
    let home = Home::new();

    let list = home
        .run(&["tools", "list", "--json", "--sandbox", "none"])
        .well()
        .json();
    let shown = home
        .run(&["tools", "show", "file_read", "--json"])
        .well()
        .json();

    let names: Vec<&str> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "think",
            "read_more",
            "file_read",
            "file_edit",
            "file_list",
            "grep_search",
            "memory",
            "web_fetch",
            "web_search",
            "recall",
            "create_subagent"
        ],
        "all built-in tools but `bash`, which needs a sandbox"
    );
    for tool in list.as_array().unwrap() {
        assert_eq!(tool["source"], "built_in", "{}", tool["name"]);
        for key in [
            "input_schema",
            "effect",
            "level",
            "cache",
            "timeout_ms",
            "retry",
            "breaker",
            "reach",
            "sandbox",
        ] {
            assert!(!tool[key].is_null(), "{key} of {}", tool["name"]);
        }
    }
    assert!(shown["input_schema"]["properties"]["path"].is_object());
}

#[test]
fn a_killed_program_leaves_nothing_that_its_command_planted() {
    let home = Home::new();
    let arguments = r#"{"command": "echo {} > .mcp.json; touch started; sleep 60"}"#;
    let mut host = home
        .command(&["tools", "call", "bash", arguments, "--approve", "auto"])
        .spawn()
        .unwrap();
    let wait_until = |condition: &dyn Fn() -> bool| {
        let began = std::time::Instant::now();
        while !condition() && began.elapsed() < std::time::Duration::from_secs(20) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        condition()
    };
    assert!(wait_until(&|| home.work().join("started").exists()));

    host.kill().unwrap();
    host.wait().unwrap();

    assert!(wait_until(&|| !home.work().join(".mcp.json").exists()
        && home.work().join(".mcp.json.refused").exists()));
}

#[test]
fn what_the_user_saves_after_a_command_stays_when_the_program_ends() {
    let home = Home::new();
    let first = r#"{"command": "true"}"#;
    let mut host = home
        .command(&["tools", "call", "bash", "--approve", "auto"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = host.stdin.take().unwrap();
    let mut output = std::io::BufReader::new(host.stdout.take().unwrap());

    std::io::Write::write_all(&mut input, format!("{first}\n").as_bytes()).unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    std::fs::write(home.work().join(".mcp.json"), "the user's").unwrap();
    drop(input);

    assert!(host.wait().unwrap().success(), "{line}");
    assert!(
        home.run(&["tools", "call", "bash", first, "--approve", "auto"])
            .well()
            .json()["success"]
            .as_bool()
            .unwrap()
    );
    assert_eq!(
        std::fs::read_to_string(home.work().join(".mcp.json")).unwrap(),
        "the user's"
    );
}

#[test]
fn skills_in_the_workspace_are_written_by_no_tool() {
    let home = Home::new();
    let config = home.path().join("settings.toml");
    std::fs::write(
        &config,
        format!("[skills]\ndir = {:?}\n", home.work().join("skills")),
    )
    .unwrap();
    std::fs::create_dir(home.work().join("skills")).unwrap();
    let arguments = r#"{"path": "skills/x/SKILL.md", "old_text": "", "new_text": "evil"}"#;
    let called = |more: &[&str]| {
        home.run(
            &[
                &["tools", "call", "file_edit", arguments, "--approve", "auto"],
                more,
            ]
            .concat(),
        )
    };

    let refused = called(&["--config", config.to_str().unwrap()]);
    called(&[]).well();

    assert!(
        refused.json()["observation"]
            .as_str()
            .unwrap()
            .contains("is protected"),
        "{refused:?}"
    );
}

#[test]
fn a_command_in_the_home_folder_changes_no_agreement_and_no_program_that_the_user_runs() {
    let mut home = Home::new();
    if home.run(&["tools", "show", "bash"]).code != Some(0) {
        use std::io::Write;
        let test =
            "a_command_in_the_home_folder_changes_no_agreement_and_no_program_that_the_user_runs";
        writeln!(&mut std::io::stderr(), "SKIPPED: {test}: no sandbox").unwrap();
        return;
    }
    let place = home.path().join("home");
    let paths = [
        ".local/share/callboard/trust.json",
        "data/callboard/trust.json",
        ".cargo/bin/tool",
        ".local/bin/git",
    ];
    for path in paths {
        std::fs::create_dir_all(place.join(path).parent().unwrap()).unwrap();
        std::fs::write(place.join(path), "mine").unwrap();
    }
    let bin = place.join(".cargo/bin");
    home.variables = vec![
        ("PATH", format!("{}:/usr/bin:/bin", bin.display())),
        ("XDG_DATA_HOME", place.join("data").display().to_string()),
        ("CARGO_HOME", place.join(".cargo").display().to_string()),
    ];

    let mut command: String = paths
        .iter()
        .map(|path| format!("echo theirs >> {path}; cat {path}; mv {path} x; "))
        .collect();
    command.push_str("mkdir -p .config/autostart; echo theirs > .config/autostart/x.desktop");
    let arguments = json!({ "command": command }).to_string();
    let called = home.run(&[
        "tools",
        "call",
        "bash",
        &arguments,
        "--approve",
        "auto",
        "--workspace",
        place.to_str().unwrap(),
    ]);

    let said = called.json()["observation"].as_str().unwrap().to_owned();
    for path in paths {
        assert_eq!(
            std::fs::read_to_string(place.join(path)).unwrap(),
            "mine",
            "{path}: {said}"
        );
    }
    assert!(!place.join(".config/autostart").exists(), "{said}");
}

#[test]
fn a_folder_of_keys_is_refused_as_workspace() {
    let home = Home::new();
    let folder = home.work().join(".aws");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("credentials"), "needle").unwrap();
    let workspace = folder.display().to_string();
    let read = json!({ "path": "credentials" }).to_string();

    let ran = home.run(&[
        "tools",
        "call",
        "file_read",
        &read,
        "--workspace",
        &workspace,
    ]);

    let refusal =
        format!("the workspace {workspace} may hold keys or passwords; name a project's folder");
    assert!(ran.err.contains(&refusal), "{} {}", ran.out, ran.err);
    assert!(
        ran.code != Some(0) && !ran.out.contains("needle"),
        "{}",
        ran.out
    );
}

#[test]
fn no_tool_puts_a_program_before_the_systems_where_the_users_shell_searches() {
    let mut home = Home::new();
    if home.run(&["tools", "show", "bash"]).code != Some(0) {
        use std::io::Write;
        let test = "no_tool_puts_a_program_before_the_systems_where_the_users_shell_searches";
        writeln!(&mut std::io::stderr(), "SKIPPED: {test}: no sandbox").unwrap();
        return;
    }
    let work = home.work();
    let at = |path: &str| work.join(path);
    // An active environment, one behind a link, and a folder that does not exist yet.
    std::fs::create_dir_all(at(".venv/bin")).unwrap();
    std::fs::create_dir_all(at("envs/one/bin")).unwrap();
    std::os::unix::fs::symlink("envs/one", at("env")).unwrap();
    std::fs::write(at("envs/one/bin/ls"), "mine").unwrap();
    let folders = [".venv/bin", "env/bin", "new/bin"].map(at);
    let path = std::env::join_paths(folders.iter().chain([&"/usr/bin".into(), &"/bin".into()]));
    let lib = at("lib").into_os_string().into_string().unwrap();
    home.variables = vec![
        ("PATH", path.unwrap().into_string().unwrap()),
        ("PYTHONPATH", lib),
    ];
    let call = |name: &str, arguments: &serde_json::Value| {
        let arguments = arguments.to_string();
        home.run(&["tools", "call", name, &arguments, "--approve", "auto"])
            .json()
    };

    // Before the command, which takes the link to one of these folders away.
    let edit = |path: &str| {
        let arguments = json!({"path": path, "old_text": "", "new_text": "x"});
        call("file_edit", &arguments)["is_error"].clone()
    };
    let edits = [".venv/bin/ssh", "envs/one/bin/sudo", "new/bin/vim"].map(edit);

    let attack = "echo theirs > .venv/bin/git; echo theirs >> envs/one/bin/ls; echo ok > .venv/bin/of-the-project; \
                  echo theirs > env/bin/git; mkdir -p new/bin lib; echo theirs > new/bin/git; \
                  echo theirs > new/bin/python3; echo theirs > lib/sitecustomize.py; echo ok > lib/module.py; \
                  mkdir -p other/bin; echo theirs > other/bin/git; rm env; ln -s other env";
    let said = call("bash", &json!({ "command": attack })).to_string();

    for planted in [
        ".venv/bin/git",
        "env/bin/git",
        "envs/one/bin/git",
        "new/bin/git",
        "new/bin/python3",
        "lib/sitecustomize.py",
    ] {
        assert!(!at(planted).exists(), "{planted}: {said}");
    }
    assert_eq!(
        std::fs::read_to_string(at("envs/one/bin/ls")).unwrap(),
        "mine"
    );
    for own in [".venv/bin/of-the-project", "lib/module.py"] {
        assert!(at(own).exists(), "{own}: {said}");
    }
    assert_eq!(edits, [true, true, true].map(serde_json::Value::from));
}

#[test]
fn no_tool_writes_what_variables_of_the_account_name() {
    let mut home = Home::new();
    if home.run(&["tools", "show", "bash"]).code != Some(0) {
        use std::io::Write;
        let test = "no_tool_writes_what_variables_of_the_account_name";
        writeln!(&mut std::io::stderr(), "SKIPPED: {test}: no sandbox").unwrap();
        return;
    }
    let work = home.work();
    let at = |path: &str| work.join(path);
    std::fs::create_dir_all(at("xdg/git")).unwrap();
    std::fs::write(at("xdg/git/config"), "mine").unwrap();
    std::fs::write(at("system"), "mine").unwrap();
    let variable = |name, path| (name, at(path).into_os_string().into_string().unwrap());
    home.variables = vec![
        variable("XDG_CONFIG_HOME", "xdg"),
        variable("GIT_CONFIG_GLOBAL", "global"),
        variable("GIT_CONFIG_SYSTEM", "system"),
        variable("GIT_EXTERNAL_DIFF", "tools/diff"),
        ("EDITOR", "sh 'tools/edit' --wait".to_owned()),
    ];
    std::fs::create_dir(at("tools")).unwrap();
    for tool in ["tools/diff", "tools/edit"] {
        std::fs::write(at(tool), "mine").unwrap();
    }
    let call = |name: &str, arguments: &serde_json::Value| {
        let arguments = arguments.to_string();
        home.run(&["tools", "call", name, &arguments, "--approve", "auto"])
            .json()
    };

    let edits = [
        ("xdg/git/config", "mine"),
        ("global", ""),
        ("system", "mine"),
        ("tools/diff", "mine"),
        ("tools/edit", "mine"),
    ]
    .map(|(path, old)| {
        let arguments = json!({"path": path, "old_text": old, "new_text": "theirs"});
        call("file_edit", &arguments)["is_error"].clone()
    });
    let attack = "for f in xdg/git/config global system tools/diff tools/edit own; do echo theirs > $f; echo theirs > new; mv -f new $f; done";
    let said = call("bash", &json!({ "command": attack })).to_string();

    assert_eq!(edits, [true; 5].map(serde_json::Value::from));
    for (path, content) in [
        ("xdg/git/config", Some("mine")),
        ("system", Some("mine")),
        ("tools/diff", Some("mine")),
        ("tools/edit", Some("mine")),
        ("global", None),
    ] {
        let left = std::fs::read_to_string(at(path)).ok();
        assert_eq!(left.as_deref(), content, "{path}: {said}");
    }
    assert!(at("own").exists(), "{said}");
}
