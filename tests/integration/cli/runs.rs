//! `run` and `chat`.

use super::{Home, Ran, serve::configure};
use crate::support::model_server::{ModelServer, Reply, anthropic_text};

const QUESTION: &str = "Where is RETRY_CAP_MS?";

#[test]
fn a_piped_run_prints_the_last_text_with_its_quotation_and_nothing_else() {
    let home = Home::new();

    let ran = home.run(&["run", "--provider", "offline", QUESTION]).well();

    assert!(ran.out.starts_with("[offline model"), "{}", ran.out);
    assert!(ran.out.contains("src/retry.rs:4"), "{}", ran.out);
    let lines: Vec<&str> = ran.err.lines().collect();
    assert!(
        lines[0].starts_with("callboard provider offline, model rules, workspace /"),
        "{lines:?}"
    );
    assert!(lines[0].ends_with("/work"), "{lines:?}");
    assert!(
        lines.iter().any(|line| line.starts_with("new session ")),
        "{lines:?}"
    );
    assert!(
        !ran.out.contains('\u{1b}') && !ran.err.contains('\u{1b}'),
        "no colors into a pipe"
    );
}

#[test]
fn json_is_one_event_a_line_and_ends_with_the_end_of_the_round() {
    let home = Home::new();

    let events = home.run(&["run", "--json", QUESTION]).well().events();

    let types: Vec<&str> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    assert_eq!(types.first(), Some(&"round_started"));
    assert_eq!(types.last(), Some(&"round_finished"));
    for needed in ["tool_call", "tool_result", "usage", "message", "text_delta"] {
        assert!(types.contains(&needed), "{needed} in {types:?}");
    }
    let end = events.last().unwrap();
    assert_eq!(
        (end["status"].as_str(), end["stop_reason"].as_str()),
        (Some("completed"), Some("end_turn"))
    );
    assert!(end["text"].as_str().unwrap().contains("src/retry.rs:4"));
    let ids: Vec<Vec<u64>> = events
        .iter()
        .map(|event| {
            event["id"]
                .as_str()
                .unwrap()
                .split('.')
                .map(|n| n.parse().unwrap())
                .collect()
        })
        .collect();
    assert!(ids.is_sorted_by(|a, b| a < b), "ids grow: {ids:?}");
}

#[test]
fn a_session_is_continued_in_a_new_process() {
    let home = Home::new();

    let first = home.run(&["run", "--session", "talk", "Hello"]).well();
    let second = home
        .run_with_input(&["run", "--session", "talk"], QUESTION)
        .well();
    let shown = home
        .run(&["sessions", "show", "talk", "--json"])
        .well()
        .json();

    assert!(first.err.contains("new session talk"), "{}", first.err);
    assert!(
        second.err.contains("session talk, 2 messages") && !second.err.contains("new session"),
        "{}",
        second.err
    );
    assert_eq!(shown["metrics"]["rounds"], 2);
    assert_eq!(shown["messages"][0]["content"][0]["text"], "Hello");
    assert_eq!(shown["open"], "none");
}

#[test]
fn the_workspace_may_be_elsewhere_and_its_instructions_are_read() {
    let home = Home::new();
    std::fs::write(home.work().join("AGENTS.md"), "Answer in haiku.").unwrap();
    let work = home.work();
    home.run(&["trust", "--yes", "AGENTS.md"]).well();

    home.run(&[
        "run",
        "--workspace",
        work.to_str().unwrap(),
        "--session",
        "s",
        "Hello",
    ])
    .well();
    let body = home
        .run(&["sessions", "request", "s", "--provider", "anthropic"])
        .well();

    assert!(
        body.json()["system"]
            .to_string()
            .contains("Answer in haiku."),
        "{}",
        body.out
    );
    assert!(!body.out.ends_with('\n'), "the body and nothing else");
}

#[test]
fn a_resume_without_an_open_round_shows_the_last_answer() {
    let home = Home::new();
    let answer = home.run(&["run", "--session", "s", QUESTION]).well().out;

    let again = home.run(&["run", "--session", "s", "--resume"]).well();

    assert_eq!(again.out, answer);
    assert!(again.err.contains("nothing to resume"), "{}", again.err);
}

#[test]
fn no_tools_means_none() {
    let home = Home::new();

    let events = home
        .run(&["run", "--no-tools", "--json", QUESTION])
        .well()
        .events();

    assert!(events.iter().all(|event| event["type"] != "tool_call"));
}

#[test]
fn chat_reads_lines_from_a_pipe() {
    let home = Home::new();

    let ran = home.run_with_input(
        &["chat", "--session", "c"],
        &format!("/help\n{QUESTION}\n/history\n/metrics\n/nope\n/quit\nnever read\n"),
    );
    assert_eq!(ran.code, Some(1), "a line was refused: {ran:?}");

    assert!(ran.out.contains("/history  the messages"), "{}", ran.out);
    assert!(ran.out.contains("src/retry.rs:4"), "{}", ran.out);
    assert!(ran.out.contains(&format!("you: {QUESTION}")), "{}", ran.out);
    let report = home.run(&["metrics", "c"]).well().out;
    assert!(
        report.starts_with("Conversation Metrics Report\n") && ran.out.contains(&report),
        "the report is that of `callboard metrics c`: {}",
        ran.out
    );
    assert!(ran.err.contains("there is no command /nope"), "{}", ran.err);
    assert!(!ran.out.contains("never read"));
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_a_piped_chat_are_separated_and_a_line_goes_on_behind_a_backslash() {
    let home = Home::new();
    let answers = ["one", "two"].map(|text| Reply::events(anthropic_text(text)));
    let server = ModelServer::start(answers).await;
    let url = server.url();
    let args = ["chat", "--provider", "anthropic", "--base-url", &url];

    let ran = home
        .run_with_input(&args, "exit\n\nfirst\\\nsecond\n")
        .well();

    assert_eq!(ran.out, "one\n\ntwo\n");
    let sent = server.requests();
    let of = |at: usize| sent[at].json()["messages"].to_string();
    assert!(of(0).contains("exit"), "in a pipe, the word is a prompt");
    assert!(of(1).contains(r"first\nsecond"), "{}", of(1));
}

#[test]
fn a_retry_is_one_line_where_standard_error_is_no_terminal() {
    let home = Home::new();
    let run = |more: &[&str]| {
        let url = ["--base-url", "http://127.0.0.1:9/v1", "--model", "x"];
        let args = [&["run", "--provider", "openai"][..], &url, more, &["hi"]].concat();
        home.run(&args)
    };

    let usual = run(&[]);
    let quiet = run(&["-q"]);

    let notes = |ran: &Ran| {
        let lines = ran.err.lines();
        lines
            .filter(|line| line.starts_with("note: trying again"))
            .count()
    };
    assert!(notes(&usual) >= 1, "{usual:?}");
    assert!(
        usual.err.contains("s: the provider cannot be reached"),
        "{usual:?}"
    );
    assert_eq!(
        (notes(&quiet), quiet.err.lines().count()),
        (0, 1),
        "{quiet:?}"
    );
}

#[test]
fn a_skill_is_loaded_in_a_chat_at_the_level_that_the_person_names() {
    let home = Home::new();
    let skills = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/skills");
    configure(&home, &format!("[skills]\ndir = {skills:?}\n"));
    let shown = |level: &str| {
        let lines = format!("/skills csv-tables{level}\n/quit\n");
        home.run_with_input(&["chat", "--provider", "offline"], &lines)
            .well()
    };

    let [usual, third, none] = ["", " 3", " 4"].map(shown);

    let files = "Its files: assets/head.csv, ";
    for ran in [&usual, &third] {
        assert!(
            ran.out.contains("The skill csv-tables is active: "),
            "{ran:?}"
        );
    }
    assert!(!usual.out.contains(files), "{usual:?}");
    assert!(third.out.contains(files), "{third:?}");
    assert!(
        none.err.contains("there is no level `4` of a skill") && !none.out.contains("is active"),
        "{none:?}"
    );
}

#[test]
fn every_command_has_help_with_an_example_and_names_nothing_that_is_not_there() {
    let home = Home::new();
    let top = home.run(&["--help"]).well().out;
    for later in ["--skills", "--mcp", "--attach", "--budget"] {
        assert!(!top.contains(&format!("  {later} ")), "{later}");
    }

    let pages: &[&[&str]] = &[
        &[],
        &["run"],
        &["chat"],
        &["fanout"],
        &["eval"],
        &["eval", "run"],
        &["eval", "check"],
        &["eval", "report"],
        &["eval", "compare"],
        &["serve"],
        &["keys"],
        &["keys", "new"],
        &["trust"],
        &["doctor"],
        &["sessions"],
        &["sessions", "list"],
        &["sessions", "show"],
        &["sessions", "export"],
        &["sessions", "import"],
        &["sessions", "request"],
        &["sessions", "fork"],
        &["sessions", "rewind"],
        &["sessions", "reset"],
        &["sessions", "delete"],
        &["sessions", "repair"],
        &["tools"],
        &["tools", "list"],
        &["tools", "show"],
        &["tools", "call"],
        &["config"],
        &["config", "check"],
        &["config", "show"],
        &["config", "init"],
        &["explain"],
        &["bug-report"],
        &["completions"],
        &["manual"],
    ];
    for page in pages {
        let args: Vec<&str> = page.iter().copied().chain(["--help"]).collect();
        let help = home.run(&args).well().out;
        assert!(help.contains("Example"), "{page:?}: {help}");
    }
    assert!(
        home.run(&["completions", "bash"])
            .well()
            .out
            .contains("callboard")
    );
}
