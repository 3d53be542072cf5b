//! What the program says about itself: grouped help, explained errors, a report for an issue, and a
//! first configuration.

use super::Home;

#[test]
fn commands_are_listed_in_groups_and_help_takes_a_command() {
    let home = Home::new();

    let page = home.run(&["--help"]).well().out;
    let one = home.run(&["help", "fanout"]).well().out;

    let place = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text}: {page}"));
    assert!(place("Work with a model:") < place("  run "));
    assert!(place("  run ") < place("As a server:"));
    assert!(place("As a server:") < place("  serve "));
    assert!(one.contains("Usage: callboard fanout"), "{one}");
}

#[test]
fn the_options_of_a_run_are_in_sections_and_sessions_names_all_its_commands() {
    let home = Home::new();
    let top = home.run(&["--help"]).well().out;
    let sections = ["Model:", "Tools:", "Session:", "Output:", "Limits:"];

    for command in ["run", "chat", "fanout"] {
        let page = home.run(&[command, "--help"]).well().out;
        let missing = sections.iter().find(|name| {
            let heading = format!("\n{name}\n");
            !page.contains(&heading)
        });
        assert_eq!(missing, None, "{command}: {page}");
    }
    let line = top
        .lines()
        .find(|line| line.starts_with("  sessions "))
        .unwrap();
    assert!(line.contains("fork") && line.contains("rewind"), "{line}");
}

#[test]
fn a_wrong_value_names_the_page_of_its_command_and_v_logs_more() {
    let home = Home::new();

    let wrong = home.run(&["run", "--max-tokens", "x", "hi"]);
    let more = home
        .run(&["-vv", "run", "--provider", "offline", "hi"])
        .well();
    let both = home.run(&["-v", "--log", "debug", "tools", "list"]);

    assert!(
        wrong.error().contains("it must be a whole number"),
        "{wrong:?}"
    );
    assert!(
        wrong.error().contains("`callboard run --help`"),
        "{wrong:?}"
    );
    assert!(more.err.contains("DEBUG"), "{more:?}");
    assert_eq!(both.code, Some(2));
}

#[test]
fn an_error_code_is_explained_in_any_case_and_an_unknown_one_gets_the_nearest() {
    let home = Home::new();

    let upper = home.run(&["explain", "PROVIDER_AUTH"]).well().out;
    let tool = home.run(&["explain", "in_doubt"]).well().out;
    let wrong = home.run(&["explain", "provider_atuh"]);

    assert!(
        upper.contains("What to do: check `ANTHROPIC_API_KEY`"),
        "{upper}"
    );
    assert!(tool.contains("is not repeated"), "{tool}");
    assert_eq!(wrong.code, Some(2));
    assert!(
        wrong.error().contains("did you mean `provider_auth`?"),
        "{}",
        wrong.error()
    );
}

#[test]
fn a_report_for_an_issue_holds_no_key_and_no_folder_of_the_user() {
    let mut home = Home::new();
    home.variables
        .push(("OTHER_KEY", "sk-fake-000111222333".into()));
    let data = home.path().join("home/.local/share/callboard");
    std::fs::create_dir_all(&data).unwrap();
    std::fs::write(
        data.join("callboard.log"),
        "2026-01-01T00:00:00Z  INFO callboard: started\n2026-01-01T00:00:01Z ERROR callboard: refused sk-fake-000111222333\n",
    )
    .unwrap();
    let config = "[observability]\nlog_output = [\"file\"]\n\n[[provider]]\nname = \"main\"\nkind = \"openai\"\nbase_url = \"http://127.0.0.1:9/v1\"\napi_key_env = \"OTHER_KEY\"\nmodel = \"m\"\n";
    std::fs::write(home.path().join("home/c.toml"), config).unwrap();
    let file = home.path().join("home/c.toml");

    let report = home
        .run(&["--config", file.to_str().unwrap(), "bug-report"])
        .well()
        .out;

    for part in [
        "## Health",
        "ok configuration",
        "## Configuration",
        "kind = \"openai\"",
        "refused",
    ] {
        assert!(report.contains(part), "{part}: {report}");
    }
    let folder = home.path().to_str().unwrap();
    for secret in ["sk-fake-000111222333", folder, "started"] {
        assert!(!report.contains(secret), "{secret}: {report}");
    }
}

#[test]
fn a_first_configuration_is_written_once_and_is_valid() {
    let home = Home::new();

    let written = home.run(&["config", "init", "--serve"]).well().out;
    let check = home
        .run(&["--config", "callboard.toml", "config", "check"])
        .well();
    let again = home.run(&["config", "init"]);

    assert!(written.contains("shown only once"), "{written}");
    assert!(
        check.out.contains("the configuration is valid"),
        "{}",
        check.out
    );
    assert_eq!(again.code, Some(2));
    assert!(
        again
            .error()
            .contains("callboard.toml exists already (hint: "),
        "{}",
        again.error()
    );
}

#[test]
fn the_manual_has_a_page_for_each_command() {
    let home = Home::new();

    let ran = home.run(&["manual", "man1"]).well();

    assert!(ran.out.contains("manual pages in man1"), "{}", ran.out);
    for page in [
        "callboard.1",
        "callboard-run.1",
        "callboard-sessions-export.1",
    ] {
        let text = std::fs::read_to_string(home.work().join("man1").join(page)).unwrap();
        assert!(text.contains(".SH SYNOPSIS"), "{page}: {text}");
    }
}
