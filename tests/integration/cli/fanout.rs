//! `callboard fanout`, and how the other commands treat subagents.

use std::process::Command;

use serde_json::{Value, json};

use super::{Home, Ran, kill, wait_for};
use crate::support::model_server::{ModelServer, Reply, Step, anthropic_text, anthropic_tool};

fn fan_out(home: &Home, url: &str, more: &[&str]) -> Ran {
    let all: Vec<&str> = [
        "fanout",
        "--provider",
        "anthropic",
        "--base-url",
        url,
        "--no-tools",
    ]
    .into_iter()
    .chain(more.iter().copied())
    .collect();
    home.run(&all)
}

fn lines(home: &Home, text: &str) {
    std::fs::write(home.work().join("lines.txt"), text).unwrap();
}

/// Answers depend on the request, so that the order of calls does not matter.
async fn echo() -> ModelServer {
    ModelServer::answering(|body| {
        let text = body.to_string();
        match ["alpha", "beta", "broken"]
            .iter()
            .find(|word| text.contains(*word))
        {
            Some(&"broken") => Reply::json(
                400,
                r#"{"type":"error","error":{"type":"invalid_request_error","message":"no"}}"#,
            ),
            Some(word) => Reply::events(anthropic_text(&format!("{word} done"))),
            None => Reply::events(anthropic_text("what?")),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_line_has_its_section_in_order_and_one_that_fails_is_exit_code_one() {
    let home = Home::new();
    let server = echo().await;
    let url = server.url();

    lines(&home, "alpha\n\n  \nbeta\n");
    let well = fan_out(&home, &url, &["Do {} and {}.", "--over", "lines.txt"]).well();
    assert_eq!(
        well.out,
        "== 1 alpha\nalpha done\n\n== 2 beta\nbeta done\n\n"
    );
    assert!(well.err.contains("2 tasks: 2 done, 0 failed"), "{well:?}");

    lines(&home, "alpha\nbroken\nbeta");
    let part = fan_out(
        &home,
        &url,
        &["Do {}.", "--over", "lines.txt", "--json", "--ephemeral"],
    );
    let results = part.events();
    let shown: Vec<_> = results
        .iter()
        .map(|line| {
            (
                line["index"].as_u64(),
                line["line"].as_str(),
                line["ok"].as_bool(),
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            (Some(0), Some("alpha"), Some(true)),
            (Some(1), Some("broken"), Some(false)),
            (Some(2), Some("beta"), Some(true))
        ]
    );
    assert_eq!(
        (
            part.code,
            results[0]["text"].as_str(),
            results[1]["error"]["code"].as_str()
        ),
        (
            Some(1),
            Some("alpha done"),
            Some("provider_invalid_request")
        )
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_cut_at_the_longest_allowed_is_said_and_counted() {
    let home = Home::new();
    let server = ModelServer::answering(|body| {
        let is_cut = body.to_string().contains("alpha");
        let stop = if is_cut { "max_tokens" } else { "end_turn" };
        let events = anthropic_text("so far");
        Reply::events(events.iter().map(|event| event.replace("end_turn", stop)))
    })
    .await;
    let url = server.url();
    lines(&home, "alpha\nbeta\n");

    let ran = fan_out(&home, &url, &["Do {}.", "--over", "lines.txt"]).well();

    assert_eq!(
        ran.out,
        "== 1 alpha\nso far\n[the answer was cut: it reached the longest answer allowed; --max-tokens allows more]\n\n\
         == 2 beta\nso far\n\n"
    );
    assert!(
        ran.err
            .contains("2 tasks: 2 done, 0 failed, 1 answer cut short"),
        "{ran:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_name_again_asks_no_model_and_its_journals_go_together() {
    let home = Home::new();
    let server = echo().await;
    let url = server.url();
    lines(&home, "alpha\nbeta");
    let args = ["Do {}.", "--over", "lines.txt", "--name", "n-1"];

    let first = fan_out(&home, &url, &args).well();
    let asked = server.requests().len();
    let again = fan_out(&home, &url, &args).well();

    assert_eq!((&again.out, server.requests().len()), (&first.out, asked));
    assert!(again.err.contains("2 from an earlier run"), "{again:?}");
    let listed = |args: &[&str]| home.run(args).well().json().as_array().unwrap().len();
    assert_eq!(
        (
            listed(&["sessions", "list", "--json"]),
            listed(&["sessions", "list", "--json", "--subagents"])
        ),
        (0, 2)
    );
    home.run(&["sessions", "delete", "fanout:n-1"]).well();
    assert_eq!(listed(&["sessions", "list", "--json", "--subagents"]), 0);
    assert_eq!(
        home.run(&["sessions", "delete", "fanout:n-1"]).code,
        Some(1)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_fan_outs_are_listed_with_what_became_of_their_tasks() {
    let home = Home::new();
    let server = echo().await;
    lines(&home, "alpha\nbroken\nbeta");
    let args = ["Do {}.", "--over", "lines.txt", "--name", "check-1"];
    fan_out(&home, &server.url(), &args);
    let ephemeral = ["Do {}.", "--over", "lines.txt", "--ephemeral"];
    fan_out(&home, &server.url(), &ephemeral);

    let listed = home.run(&["fanout", "--list"]).well();
    let (name, rest) = listed.out.trim_end().split_once("  ").unwrap();
    assert_eq!((name, listed.out.lines().count()), ("check-1", 1));
    assert!(
        rest.contains("  3 tasks: 2 done, 1 failed, 0 open · "),
        "{rest}"
    );
    let json = home.run(&["fanout", "--list", "--json"]).well().json();
    let row = &json.as_array().unwrap()[0];
    assert_eq!(
        (&row["name"], &row["tasks"], &row["done"], &row["failed"]),
        (&json!("check-1"), &json!(3), &json!(2), &json!(1))
    );
    assert!(row["tokens"].as_u64().unwrap() > 0, "{row}");

    let refused = home.run(&["fanout", "Do {}.", "--over", "lines.txt", "--key", "k"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    home.run(&["sessions", "delete", "fanout:check-1"]).well();
    let none = home.run(&["fanout", "--list"]).well();
    assert_eq!(
        (none.out.as_str(), none.err.trim()),
        ("", "no fan-outs are stored")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ephemeral_one_leaves_nothing_in_the_data_folder() {
    let home = Home::new();
    let server = echo().await;
    lines(&home, "alpha\nbeta");

    fan_out(
        &home,
        &server.url(),
        &[
            "Do {}.",
            "--over",
            "lines.txt",
            "--ephemeral",
            "--warm-first",
        ],
    )
    .well();

    let data = home.path().join("home/.local/share/callboard");
    assert!(!data.join("callboard.db").exists());
    assert_eq!(files(&data), Vec::<std::path::PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn warming_the_cache_is_off_by_default_and_its_effect_is_printed() {
    let home = Home::new();
    let server = echo().await;
    lines(&home, "alpha\nbeta");
    let args = ["Do {}.", "--over", "lines.txt", "--ephemeral"];

    let plain = fan_out(&home, &server.url(), &args).well();
    let warmed = fan_out(
        &home,
        &server.url(),
        &[&args[..], &["--warm-first"]].concat(),
    )
    .well();

    assert!(!plain.err.contains("from the cache"), "{plain:?}");
    let effect = warmed
        .err
        .lines()
        .find(|line| line.starts_with("cache: the first task "))
        .unwrap_or_default();
    assert_eq!(
        effect.matches("input tokens from the cache").count(),
        2,
        "of the first and of the rest: {warmed:?}"
    );
}

fn files(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let all = entries.flatten().map(|entry| entry.path());
    all.flat_map(|path| {
        if path.is_dir() {
            files(&path)
        } else {
            vec![path]
        }
    })
    .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_ends_all_of_it() {
    let home = Home::new();
    let server = ModelServer::answering(|body| match body.to_string().contains("alpha") {
        true => Reply::events(anthropic_text("alpha done")),
        false => Reply::stream().then(Step::Stall),
    })
    .await;
    lines(&home, "alpha\nbeta\ngamma\ndelta");
    let url = server.url();
    let args = [
        "fanout",
        "--provider",
        "anthropic",
        "--base-url",
        &url,
        "--no-tools",
        "Do {}.",
        "--over",
        "lines.txt",
        "--parallel",
        "2",
    ];
    let child = home.command(&args).spawn().unwrap();

    wait_for("the second and the third", || server.requests().len() == 3);
    kill(child.id(), "INT");
    let ran = Ran::of(&args, child);

    assert_eq!(ran.code, Some(130), "{ran:?}");
    assert_eq!(
        ran.out, "== 1 alpha\nalpha done\n\n",
        "only what was answered"
    );
    assert!(
        ran.err
            .contains("4 tasks: 1 done, 0 failed, 2 cut, 1 not begun"),
        "{ran:?}"
    );
    assert!(ran.err.contains("goes on with what is left"), "{ran:?}");
}

#[test]
fn bad_input_is_one_clear_line() {
    let home = Home::new();
    lines(&home, " \n\n");
    for (args, expected) in [
        (
            &["fanout", "no place", "--over", "lines.txt"][..],
            "error: the template has no {} for the line",
        ),
        (
            &["fanout", "{}", "--over", "lines.txt"],
            "error: lines.txt has no lines",
        ),
        (
            &["fanout", "{}", "--over", "gone.txt"],
            "error: gone.txt: there is no such file",
        ),
        (
            &["fanout", "{}"],
            "error: the following required arguments were not provided: --over <FILE>",
        ),
        (
            &["fanout", "{}", "--over", "lines.txt", "--parallel", "0"],
            "error: invalid value '0'",
        ),
        (
            &[
                "fanout",
                "{}",
                "--over",
                "lines.txt",
                "--ephemeral",
                "--name",
                "n",
            ],
            "error: the argument '--ephemeral' cannot be used with",
        ),
    ] {
        let ran = home.run(args);
        assert_eq!(
            (ran.code, ran.err.trim_end().lines().count()),
            (Some(2), 1),
            "{ran:?}"
        );
        assert!(ran.error().starts_with(expected), "{ran:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_of_run_begins_subagents_and_watchers_see_them() {
    let home = Home::new();
    let server = ModelServer::answering(|body: &Value| {
        let text = body["messages"].to_string();
        match (
            text.contains("tool_result"),
            text.contains("count the files"),
        ) {
            (true, _) => Reply::events(anthropic_text("both are done")),
            (false, true) => Reply::events(anthropic_text("seven")),
            (false, false) => Reply::events(anthropic_tool(
                "create_subagent",
                &json!({"task": "count the files"}),
            )),
        }
    })
    .await;
    let url = server.url();
    let args = [
        "run",
        "--provider",
        "anthropic",
        "--base-url",
        &url,
        "--session",
        "s",
        "--json",
        "Share the work.",
    ];

    let events = home.run(&args).well().events();

    let of = |kind: &str| {
        events
            .iter()
            .filter(|event| event["type"] == kind)
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(
        of("subagent")
            .iter()
            .map(|event| event["state"].as_str().unwrap())
            .collect::<Vec<_>>(),
        ["started", "finished"]
    );
    let id = of("subagent")[0]["id"].as_str().unwrap().to_owned();
    assert!(
        home.run(&["sessions", "show", &id])
            .well()
            .out
            .contains("seven")
    );
    let offered = |nth: usize| {
        server.requests()[nth].json()["tools"]
            .to_string()
            .contains("create_subagent")
    };
    assert_eq!((offered(0), offered(1)), (true, false));
    home.run(&["sessions", "delete", "s"]).well();
    assert_eq!(
        home.run(&["sessions", "list", "--subagents", "--json"])
            .well()
            .json(),
        json!([]),
        "they go with their parent"
    );
}

#[test]
fn the_tool_is_shown_and_can_be_left_out() {
    let home = Home::new();

    let shown = home
        .run(&["tools", "show", "create_subagent", "--json"])
        .well()
        .json();
    std::fs::write(
        home.work().join("callboard.toml"),
        "[tools]\nenabled = [\"think\"]\n",
    )
    .unwrap();
    let list = home.run(&["tools", "list", "--json"]).well().out;

    assert_eq!(
        (
            shown["input_schema"]["required"].clone(),
            shown["effect"].as_str()
        ),
        (json!(["task"]), Some("idempotent"))
    );
    assert!(
        list.contains("think") && !list.contains("create_subagent"),
        "{list}"
    );
}

#[test]
fn every_command_of_the_page_on_fan_out_works() {
    let home = Home::new();
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/fanout.md")).unwrap();
    let blocks: Vec<&str> = page
        .split("```sh\n")
        .skip(1)
        .map(|block| block.split("```").next().unwrap())
        .collect();
    assert!(
        blocks
            .iter()
            .map(|block| block.lines().count())
            .sum::<usize>()
            >= 7,
        "{blocks:?}"
    );
    for line in blocks.iter().flat_map(|block| block.lines()) {
        let ours = line.replace(
            "callboard ",
            &format!("{} ", env!("CARGO_BIN_EXE_callboard")),
        );
        let mut shell = Command::new("sh");
        shell.args(["-c", &ours]).current_dir(home.work());

        let output = home.dress(&mut shell).output().unwrap();

        let text = String::from_utf8_lossy(&output.stdout);
        let has_output =
            !text.is_empty() || line.starts_with("printf") || line.contains("sessions delete");
        assert!(
            output.status.success() && has_output,
            "{line}\n{text}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
