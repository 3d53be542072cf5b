//! Each mistake is reported in one clear line with a hint and the right exit code, and no stored
//! data is lost.

use super::{Home, Ran};
use crate::support::model_server::{ModelServer, Reply, anthropic_text};

/// Checks the exit code and the one error line of a command that must fail.
#[track_caller]
fn check(ran: &Ran, code: i32, line: &str) {
    assert_eq!((ran.code, ran.error()), (Some(code), line), "{ran:?}");
}

#[test]
fn wrong_usage_is_one_line_with_a_hint_and_exit_2() {
    let home = Home::new();
    let failure = |args: &[&str]| {
        let ran = home.run(args);
        assert_eq!(
            (ran.code, ran.err.lines().count(), ran.out.as_str()),
            (Some(2), 1, ""),
            "{args:?}: {ran:?}"
        );
        ran.error().to_owned()
    };

    assert_eq!(
        failure(&["run", "--sesion", "x", "y"]),
        "error: unexpected argument '--sesion' found (hint: did you mean `--session`?)"
    );
    assert_eq!(
        failure(&["rum"]),
        "error: unrecognized subcommand 'rum' (hint: did you mean `run`?)"
    );
    assert_eq!(
        failure(&["run"]),
        "error: there is no prompt (hint: callboard run \"…\", or pipe it in)"
    );
    assert_eq!(
        failure(&["run", " "]),
        "error: there is no prompt (hint: callboard run \"…\", or pipe it in)"
    );
    assert_eq!(
        failure(&["run", "--provider", "anthropic", "x"]),
        "error: provider `anthropic` has no key: the environment variable ANTHROPIC_API_KEY is not set (hint: set it, or use --provider offline, which needs none)"
    );
    assert_eq!(
        failure(&["run", "--provider", "antropic", "x"]),
        "error: --provider: unknown provider `antropic`; did you mean `anthropic`?"
    );
    assert!(failure(&["run", "--session", "../up", "x"]).starts_with(
        "error: invalid value '../up' for '--session <ID>': a conversation id must be"
    ));
    assert!(failure(&["sessions", "show", ".hidden"]).contains("a conversation id must be"));
    assert!(
        failure(&["run", "--tools", "file_raed", "x"])
            .contains("there is no tool `file_raed`; did you mean `file_read`?")
    );
    assert!(
        failure(&["run", "--workspace", "no-such", "x"])
            .contains("workspace no-such cannot be opened: No such file or directory; create it")
    );
    assert!(failure(&["run", "--timeout", "0", "x"]).contains("it must be more than 0"));
    assert!(failure(&["run", "--resume"]).contains("--session"));
    assert!(failure(&["--log", "loud", "tools", "list"]).contains("`loud` is not a log level"));
    assert!(
        failure(&["run", "--provider", "openai", "--base-url", "ftp://x", "x"])
            .contains("the base URL must be http:// or https://")
    );
}

#[test]
fn a_configuration_with_a_mistake_names_file_line_and_nearest_key() {
    let home = Home::new();
    std::fs::write(
        home.work().join("callboard.toml"),
        "[sandbox]\nmode = \"none\"\n[limits]\nmodel_cals_max = 3\n",
    )
    .unwrap();

    let ran = home.run(&["config", "check"]);
    let missing = home.run(&["--config", "no-such.toml", "config", "check"]);

    check(
        &ran,
        2,
        "error: callboard.toml:4: unknown key in [limits] `model_cals_max`; did you mean `model_calls_max`?",
    );
    check(
        &missing,
        2,
        "error: no-such.toml: cannot be read: there is no such file; `callboard config init` writes a first one",
    );
    std::fs::write(
        home.work().join("callboard.toml"),
        "[sandbox]\nmode = \"none\"\n",
    )
    .unwrap();
    assert!(
        home.run(&["config", "check"])
            .well()
            .out
            .contains("callboard.toml")
    );
    assert!(
        home.run(&["config", "show"])
            .well()
            .out
            .contains("mode = \"none\"")
    );
}

#[test]
fn a_database_that_cannot_be_written_is_one_line() {
    let home = Home::new();
    std::fs::write(home.work().join("file"), "no database").unwrap();

    for db in [".", "file/s.db"] {
        let ran = home.run(&["run", "--db", db, "Hello"]);

        assert_eq!(
            (ran.code, ran.err.lines().count()),
            (Some(2), 1),
            "{db}: {ran:?}"
        );
        assert!(
            ran.error().contains("cannot be used")
                && ran
                    .error()
                    .contains("(hint: choose another place with --db FILE"),
            "{}",
            ran.err
        );
    }
    assert_eq!(
        std::fs::read_to_string(home.work().join("file")).unwrap(),
        "no database"
    );
}

#[test]
fn sessions_are_not_kept_where_tools_can_read_them() {
    let home = Home::new();
    let folder = home.path().to_str().unwrap();

    let ran = home.run(&["run", "--workspace", folder, "Hello"]);
    home.run(&["run", "--workspace", folder, "--db", "mine.db", "Hello"])
        .well();

    assert_eq!(ran.code, Some(2));
    assert!(
        ran.error().contains("inside the workspace")
            && ran.error().ends_with("(hint: name a project's folder with --workspace DIR, or run without tools: --no-tools)"),
        "{}",
        ran.err
    );
    let bare = ["run", "--workspace", folder, "--no-tools", "Hello"];
    home.run(&bare).well();
}

#[test]
fn a_store_inside_the_workspace_is_refused_unless_a_flag_names_it() {
    let home = Home::new();
    std::fs::write(
        home.work().join("callboard.toml"),
        "[store]\nurl = \"sqlite:sessions.db\"\n",
    )
    .unwrap();
    std::os::unix::fs::symlink(home.work(), home.path().join("link")).unwrap();
    let other = home.path().join("other.toml");
    std::fs::write(&other, "[store]\nurl = \"sqlite:link/sessions.db\"\n").unwrap();
    let other = other.to_str().unwrap();

    let refused = [
        home.run(&["run", "Hello"]),
        home.run(&["chat"]),
        home.run(&["--config", other, "run", "Hello"]),
        home.run(&["--config", other, "run", "--workspace", "../link", "Hello"]),
    ];

    for ran in refused {
        assert_eq!((ran.code, ran.err.lines().count()), (Some(2), 1), "{ran:?}");
        assert!(
            ran.error().contains("inside the workspace") && ran.error().contains("sessions.db"),
            "{}",
            ran.err
        );
    }
    assert!(!home.work().join("sessions.db").exists());
    let doctor = home.run(&["doctor"]);
    assert!(
        doctor.out.contains("warn store: ")
            && doctor.out.contains("`run` and `chat` refuse the folder"),
        "{doctor:?}"
    );
    home.run(&["run", "--db", "sessions.db", "Hello"]).well();
}

#[test]
fn a_store_inside_a_tenants_workspace_is_refused_before_anyone_is_served() {
    let home = Home::new();
    let text =
        "[store]\nurl = \"sqlite:src/all.db\"\n[[tenant]]\nid = \"acme\"\nworkspace = \"src\"\n";
    std::fs::write(home.work().join("callboard.toml"), text).unwrap();

    let refused = [
        home.run(&["config", "check"]),
        home.run(&["serve", "--listen", "127.0.0.1:0"]),
    ];
    let doctor = home.run(&["doctor"]);

    for ran in refused {
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(
            ran.error()
                .contains("the session store lies inside the workspace of tenant `acme`"),
            "{}",
            ran.err
        );
    }
    assert_eq!(doctor.code, Some(1), "{doctor:?}");
    assert!(
        doctor.out.contains("fail configuration: ")
            && doctor.out.contains("the session store lies inside"),
        "{doctor:?}"
    );
    assert!(!home.work().join("src/all.db").exists());
}

/// Runs against a server and checks that the session is unchanged except for what the failed round
/// adds.
async fn against(script: Vec<Reply>, code: i32, line: &str) -> serde_json::Value {
    let home = Home::new();
    let server = ModelServer::start([Reply::events(anthropic_text("Kept."))]).await;
    let url = server.url();
    let args = |prompt| {
        [
            "run",
            "--provider",
            "anthropic",
            "--base-url",
            &url,
            "--session",
            "s",
            "--no-tools",
            prompt,
        ]
        .map(str::to_owned)
    };
    let run = |prompt| {
        let args = args(prompt);
        home.run(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    run("First.").well();

    server.script(script);
    let failed = run("Second.");
    let export = home.run(&["sessions", "export", "s"]).well().json();

    assert_eq!(failed.code, Some(code), "{failed:?}");
    assert!(failed.error().starts_with(line), "{}", failed.err);
    assert!(failed.error().contains("(hint: "), "{}", failed.err);
    assert_eq!(export["messages"][1]["content"][0]["text"], "Kept.");
    export
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_key_takes_the_prompt_back() {
    let body =
        r#"{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}"#;

    let export = against(
        vec![Reply::json(401, body)],
        1,
        "error: the provider refused the credentials: ",
    )
    .await;

    assert_eq!(export["messages"].as_array().unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_limit_that_never_ends_is_given_up() {
    let body = r#"{"type":"error","error":{"type":"rate_limit_error","message":"slow down"}}"#;
    let busy = || Reply::json(429, body).header("retry-after", "0");

    against(
        (0..20).map(|_| busy()).collect(),
        1,
        "error: the provider's rate limit is reached: ",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_of_an_hour_is_not_waited() {
    let body =
        r#"{"type":"error","error":{"type":"rate_limit_error","message":"come back later"}}"#;
    let began = std::time::Instant::now();

    let line =
        "error: the provider's rate limit is reached: come back later (hint: try again in 3600 s)";
    against(
        vec![Reply::json(429, body).header("retry-after", "3600")],
        1,
        line,
    )
    .await;

    assert!(began.elapsed() < std::time::Duration::from_secs(30));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_web_page_is_no_answer() {
    let page = "<!doctype html><html><body>Welcome to the proxy</body></html>";

    against(
        vec![
            Reply::status(200)
                .header("content-type", "text/html")
                .send(page),
        ],
        1,
        "error: the provider's answer is not understood: ",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_stops_keeps_the_text_so_far() {
    let begun: String = anthropic_text("So far")
        .iter()
        .take(3)
        .map(|event| format!("data: {event}\n\n"))
        .collect();

    let export = against(
        vec![Reply::stream().send(begun)],
        1,
        "error: the provider's answer is incomplete: ",
    )
    .await;

    assert_eq!(export["messages"][3]["content"][0]["text"], "So far");
}

#[test]
fn a_file_that_is_not_there_has_one_wording_everywhere() {
    let home = Home::new();
    for (args, code, line) in [
        (
            &["run", "--attach", "gone", "x"][..],
            1,
            "gone: there is no such file",
        ),
        (
            &["fanout", "{}", "--over", "gone"],
            2,
            "gone: there is no such file",
        ),
        (
            &["sessions", "import", "gone"],
            1,
            "gone: there is no such file",
        ),
        (&["tokens", "gone"], 1, "gone: there is no such file"),
        (
            &["skills", "check", "gone"],
            2,
            "gone: there is no such folder",
        ),
        (
            &["run", "--skills", "gone", "x"],
            2,
            "skills: gone: there is no such folder (hint: see --skills and `[skills] dir`)",
        ),
    ] {
        check(&home.run(args), code, &format!("error: {line}"));
    }
}

#[test]
fn a_folder_outside_of_the_data_folder_is_not_made_for_a_database() {
    let home = Home::new();

    let ran = home.run(&["run", "--db", "gone/deep/s.db", "Hello"]);

    check(
        &ran,
        2,
        "error: gone/deep: there is no such folder (hint: make it, or choose another place with --db FILE)",
    );
    assert!(!home.work().join("gone").exists());
}

#[test]
fn a_file_that_is_no_database_is_named_once_with_what_to_do() {
    let home = Home::new();
    std::fs::write(home.work().join("g.db"), "some text ".repeat(100)).unwrap();

    let ran = home.run(&["run", "--db", "g.db", "Hello"]);

    check(
        &ran,
        2,
        "error: the sessions in g.db cannot be used: the file is not a SQLite database (hint: name another file with --db FILE, or move this one away)",
    );
}

#[test]
fn a_folder_of_skills_is_an_argument_of_every_command_for_skills() {
    let home = Home::new();
    let skill = home.work().join("skills/hello");
    std::fs::create_dir_all(&skill).unwrap();
    std::fs::write(
        skill.join("SKILL.md"),
        "---\nname: hello\ndescription: Says hello.\n---\nSay hello.\n",
    )
    .unwrap();

    for args in [&["list", "skills"][..], &["show", "hello", "skills"]] {
        let ran = home.run(&[&["skills"], args].concat()).well();
        assert!(ran.out.contains("Says hello."), "{ran:?}");
    }
    let listed = home.run(&["trust", "list"]);
    assert!(
        listed
            .error()
            .ends_with("(hint: did you mean `callboard trust --list`?)"),
        "{listed:?}"
    );
}
