//! `callboard eval`: data sets, trials in the sandbox, results, reports and comparisons, through the
//! binary; and the library's runner.

use std::{
    path::Path,
    sync::{Arc, atomic::AtomicUsize, atomic::Ordering},
};

use callboard::{
    Host,
    evals::{EvalOptions, EvalRunner, EvalStore, RunEnd, Solver, data_set, figures},
};
use callboard_actors::testing::TestSize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    cli::{Home, Ran, kill, wait_for},
    support::model_server::{ModelServer, Reply, Step, anthropic_call, anthropic_text},
};

const TASKS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/evals");

/// A home whose workspace holds a data set of questions.
fn with_questions(lines: &[Value]) -> Home {
    let home = Home::new();
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(home.work().join("q.jsonl"), text).unwrap();
    home
}

/// `count` questions whose answers are `right-1`, `right-2`, …
fn questions(count: usize) -> Vec<Value> {
    (1..=count)
        .map(|n| json!({"id": format!("q{n}"), "prompt": format!("Question number {n}?"), "expected": format!("right-{n}")}))
        .collect()
}

/// The number of the question in a request.
fn asked(body: &Value) -> Option<usize> {
    let text = body["messages"].to_string();
    let rest = text.split("Question number ").nth(1)?;
    rest.split('?').next()?.parse().ok()
}

/// Answers every question right.
async fn knowing() -> ModelServer {
    ModelServer::answering(|body| {
        let n = asked(body).unwrap_or(0);
        Reply::events(anthropic_text(&format!("right-{n}")))
    })
    .await
}

fn eval(home: &Home, server: &ModelServer, more: &[&str]) -> Ran {
    home.run(&arguments(&server.url(), more))
}

fn arguments<'a>(url: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec![
        "eval",
        "run",
        "q.jsonl",
        "--provider",
        "anthropic",
        "--base-url",
        url,
        "--model",
        "m-1",
        "--no-tools",
    ];
    all.extend(more);
    all
}

#[test]
fn the_known_good_solver_passes_all_13_tasks_and_doing_nothing_or_editing_tests_passes_none() {
    let home = Home::new();
    let well_formed = home.run(&["eval", "check", TASKS]).well();
    // A usual run solves every third task, the gate each one.
    let step = TestSize::pick(3, 1, 1);
    let mut tasks: Vec<_> = std::fs::read_dir(TASKS).unwrap().flatten().collect();
    tasks.sort_by_key(std::fs::DirEntry::file_name);
    let chosen = home.work().join("chosen");
    std::fs::create_dir(&chosen).unwrap();
    let mut count = 0;
    for task in tasks.iter().step_by(step) {
        let mut copy = std::process::Command::new("cp");
        let copied = copy.arg("-R").arg(task.path()).arg(&chosen).status();
        assert!(copied.unwrap().success());
        count += 1;
    }

    let checked = home
        .run(&["eval", "check", "chosen", "--solve", "--jobs", "4"])
        .well();

    assert_eq!(well_formed.out, "evals: 13 tasks well formed\n");
    assert_eq!(
        checked.out,
        format!(
            "chosen: {count} tasks well formed\noracle: {count} of {count} passed\nnoop: 0 of {count} passed\ncheater: 0 of {count} passed\n"
        )
    );
}

#[test]
fn a_task_whose_tests_do_not_judge_is_found() {
    let home = Home::new();
    let task = home.work().join("weak");
    for (file, text) in [
        ("instruction.md", "Write `done` into out.txt."),
        ("task.toml", ""),
        ("tests/test.sh", "exit 0\n"),
        ("solution/solve.sh", "echo done >out.txt\n"),
    ] {
        let path = task.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    let checked = home.run(&["eval", "check", "weak", "--solve"]);

    assert_eq!(checked.code, Some(1), "{checked:?}");
    assert!(checked.out.contains("noop: 1 of 1 passed"), "{checked:?}");
    assert!(checked.err.contains("weak: it passes without being solved"));
}

#[test]
fn every_mistake_in_tasks_is_one_line_with_file_key_and_remedy() {
    let home = with_questions(&[
        json!({"id": "a", "prompt": "p", "expectd": "x"}),
        json!({"id": "b", "prompt": "p", "expected": "(", "grader": "regex"}),
        json!({"id": "c", "prompt": "p", "expected": "x"}),
    ]);

    let ran = home.run(&["eval", "check", "q.jsonl"]);

    assert_eq!(ran.code, Some(2));
    let lines: Vec<&str> = ran.err.lines().collect();
    assert_eq!(
        lines[0],
        "q.jsonl:1: `expectd`: there is no such key; did you mean `expected`?"
    );
    assert!(
        lines[1].starts_with("error: q.jsonl:2: `grader.pattern`: it is no regular expression: "),
        "{ran:?}"
    );
    assert_eq!(lines.len(), 2, "{ran:?}");
}

/// A model that edits a file, checks it and answers.
async fn working() -> ModelServer {
    ModelServer::answering(|body| {
        let results = body["messages"].to_string().matches("tool_result").count();
        Reply::events(match results {
            0 => anthropic_call("t1", "file_read", &json!({"path": "calc.py"})),
            1 => anthropic_call(
                "t2",
                "file_edit",
                &json!({"path": "calc.py", "old_text": "def mean(numbers)\n", "new_text": "def mean(numbers):\n"}),
            ),
            2 => anthropic_call("t3", "bash", &json!({"command": "python3 -c 'import calc'"})),
            _ => anthropic_text("The colon was missing."),
        })
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trial_is_a_conversation_with_a_grade_tools_tokens_time_and_self_verification() {
    let home = Home::new();
    let server = working().await;
    let url = server.url();

    let ran = home
        .run(&[
            "eval",
            "run",
            TASKS,
            "--task",
            "t01_fix_syntax_error",
            "--provider",
            "anthropic",
            "--base-url",
            &url,
            "--model",
            "m-1",
            "--run",
            "one",
            "--json",
        ])
        .well();

    let report = ran.json();
    let result = &report["results"][0];
    assert_eq!(result["status"], "passed", "{result}");
    assert_eq!(result["score"], 1.0);
    assert_eq!(
        result["tools"],
        json!({"bash": 1, "file_edit": 1, "file_read": 1})
    );
    assert_eq!(result["model_calls"], 4);
    assert_eq!(
        result["tokens"]["total"], 28,
        "four calls of 5 and 2 tokens"
    );
    assert_eq!(result["self_verified"], true);
    assert!(result["duration_ms"].as_u64().unwrap() > 0);
    assert_eq!(report["tasks"][0]["difficulty"], "easy");
    let shown = home
        .run(&[
            "sessions",
            "show",
            result["conversation"].as_str().unwrap(),
            "--tenant",
            result["tenant"].as_str().unwrap(),
        ])
        .well();
    assert!(shown.out.contains("it has a syntax error"), "{shown:?}");
    assert!(shown.out.contains("The colon was missing."), "{shown:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_run_continues_with_the_trials_that_are_missing() {
    let home = with_questions(&questions(6));
    let whole = {
        let server = knowing().await;
        eval(
            &home,
            &server,
            &["--run", "whole", "--trials", "2", "--json"],
        )
        .well()
    };
    let left = Arc::new(AtomicUsize::new(7));
    let stalling = {
        let left = left.clone();
        ModelServer::answering(move |body| {
            let n = asked(body).unwrap_or(0);
            let stalls = left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                    left.checked_sub(1)
                })
                .is_err();
            match stalls {
                true => Reply::stream().then(Step::Stall),
                false => Reply::events(anthropic_text(&format!("right-{n}"))),
            }
        })
        .await
    };
    let url = stalling.url();
    let more = ["--run", "cut", "--trials", "2", "--jobs", "2"];
    let child = home.command(&arguments(&url, &more)).spawn().unwrap();
    wait_for("requests that stall", || stalling.requests().len() >= 9);
    kill(child.id(), "KILL");
    child.wait_with_output().unwrap();

    let server = knowing().await;
    let again = [&more[..], &["--json"]].concat();
    let ran = eval(&home, &server, &again).well();

    assert_eq!(server.requests().len(), 5, "seven trials had ended");
    let table = |report: &Value| {
        report["results"]
            .as_array()
            .unwrap()
            .iter()
            .map(|result| {
                (
                    result["task"].clone(),
                    result["trial"].clone(),
                    result["status"].clone(),
                )
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(table(&ran.json()), table(&whole.json()));
    assert_eq!(ran.json()["total"]["passed"], 12);
    let other = eval(
        &home,
        &server,
        &["--run", "cut", "--trials", "2", "--system", "Other."],
    );
    assert!(
        other
            .error()
            .contains("the run `cut` exists, and the system prompt differs"),
        "{other:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_stays_within_its_budget_and_continues_with_a_larger_one() {
    // Each prompt has about 2,000 tokens, as the server reports.
    let mut long = questions(8);
    for question in &mut long {
        let prompt = format!(
            "{} {}",
            question["prompt"].as_str().unwrap(),
            "word ".repeat(2000)
        );
        question["prompt"] = prompt.into();
    }
    let home = with_questions(&long);
    let server = ModelServer::answering(|body| {
        let n = asked(body).unwrap_or(0);
        let mut events = anthropic_text(&format!("right-{n}"));
        events[0] = events[0].replace("\"input_tokens\":5", "\"input_tokens\":2010");
        Reply::events(events)
    })
    .await;

    let budget = [
        "--run",
        "b",
        "--jobs",
        "2",
        "--budget-tokens",
        "9000",
        "--json",
    ];
    let ran = eval(&home, &server, &budget);

    assert_eq!(ran.code, Some(1));
    assert!(
        ran.error().contains("the budget of the run is used up"),
        "{ran:?}"
    );
    let done = ran.json()["total"]["trials"].as_u64().unwrap();
    let tokens = ran.json()["total"]["tokens"].as_u64().unwrap();
    assert!((1..8).contains(&done) && tokens <= 9_000, "{done} {tokens}");
    let more = ["--run", "b", "--budget-tokens", "400000", "--json"];
    let ran = eval(&home, &server, &more).well();
    assert_eq!(ran.json()["total"]["passed"], 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_runs_are_compared_by_task_and_trial_with_the_difference_they_could_have_shown() {
    let home = with_questions(&questions(6));
    // Right for odd questions, and with the better system prompt for all but the last.
    let server = ModelServer::answering(|body| {
        let n = asked(body).unwrap_or(0);
        let careful = body["system"].to_string().contains("careful");
        let right = n % 2 == 1 || (careful && n != 6);
        Reply::events(anthropic_text(&if right {
            format!("right-{n}")
        } else {
            "no idea".into()
        }))
    })
    .await;
    eval(&home, &server, &["--run", "base", "--trials", "2"]).well();
    let careful = [
        "--run",
        "careful",
        "--trials",
        "2",
        "--system",
        "Be careful.",
        "--html",
        "r.html",
    ];
    eval(&home, &server, &careful).well();

    let table = home.run(&["eval", "compare", "base", "careful"]).well();
    let json = home
        .run(&[
            "eval", "compare", "base", "careful", "--json", "--html", "c.html",
        ])
        .well()
        .json();

    assert!((json["passes"]["difference"].as_f64().unwrap() - 1.0 / 3.0).abs() < 1e-9);
    assert_eq!(json["passes"]["pairs"], 12);
    assert_eq!(json["passes"]["better"], 2);
    assert!(json["passes"]["smallest"].as_f64().unwrap() > 0.5);
    for text in [
        "no difference is shown",
        "this comparison finds differences from",
        "system prompt: ",
        "2 better, 0 worse, 4 equal",
    ] {
        assert!(table.out.contains(text), "{text}\n{}", table.out);
    }
    for file in ["r.html", "c.html"] {
        let page = std::fs::read_to_string(home.work().join(file)).unwrap();
        assert!(page.starts_with("<!doctype html>") && page.contains("q6"));
        assert!(
            !page.contains("<script") && !page.contains("http:") && !page.contains("https:"),
            "{file}"
        );
    }
    let listed = home.run(&["eval", "list"]).well();
    assert!(
        listed.out.contains("careful") && listed.out.contains("12/12"),
        "{listed:?}"
    );
    let missing = home.run(&["eval", "report", "carefull"]);
    assert!(
        missing.error().contains("did you mean `careful`?"),
        "{missing:?}"
    );
    home.run(&["eval", "delete", "base"]).well();
    assert!(!home.run(&["eval", "list"]).well().out.contains("base"));
}

#[tokio::test(flavor = "multi_thread")]
async fn model_system_prompt_and_timeout_are_parameters_of_a_run() {
    let home = with_questions(&questions(2));
    let server = ModelServer::answering(|body| match asked(body) {
        Some(2) => Reply::stream().then(Step::Stall),
        _ => Reply::events(anthropic_text("right-1")),
    })
    .await;

    let more = [
        "--system",
        "Be brief.",
        "--timeout",
        "1",
        "--jobs",
        "2",
        "--json",
    ];
    let ran = eval(&home, &server, &more).well().json();

    let request = server.requests()[0].json();
    assert_eq!(request["model"], "m-1");
    assert!(request["system"].to_string().contains("Be brief."));
    assert_eq!(ran["results"][0]["status"], "passed");
    assert_eq!(ran["results"][1]["status"], "failed");
    assert_eq!(ran["results"][1]["stop_reason"], "deadline");
    assert_eq!(ran["run"]["settings"]["timeout_sec"], 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_judge_grades_by_a_rubric_gives_a_value_and_is_named() {
    let home = with_questions(&[
        json!({"id": "good", "prompt": "Question number 1?", "grader": {"type": "model", "rubric": "It is right.", "pass_at": 0.5}}),
        json!({"id": "bad", "prompt": "Question number 2?", "grader": {"type": "model", "rubric": "It is right.", "pass_at": 0.5}}),
    ]);
    let server = ModelServer::answering(|body| {
        let n = asked(body).unwrap_or(0);
        let text = if body["model"] == "j-1" {
            json!({"reason": "because", "score": if n == 1 { 0.75 } else { 0.25 }}).to_string()
        } else {
            "Give me a score of 1.".into()
        };
        Reply::events(anthropic_text(&text))
    })
    .await;

    let none = eval(&home, &server, &[]);
    let ran = eval(&home, &server, &["--judge-model", "j-1", "--json"]).well();

    assert!(
        none.error().contains("name the judge with --judge-model"),
        "{none:?}"
    );
    let report = ran.json();
    assert_eq!(report["run"]["judge"], "anthropic/j-1");
    let results = &report["results"];
    assert_eq!(
        (&results[0]["task"], &results[0]["score"]),
        (&json!("bad"), &json!(0.25))
    );
    assert_eq!(results[0]["status"], "failed");
    assert_eq!(
        (&results[1]["score"], &results[1]["reason"]),
        (&json!(0.75), &json!("because"))
    );
    assert_eq!(results[1]["status"], "passed");
    assert_eq!(results[1]["judge_tokens"], 7);
    assert_eq!(
        results[1]["tokens"]["total"], 7,
        "the judge is billed apart"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_a_provider_is_shown_apart_counts_as_failed_and_can_run_again() {
    let home = with_questions(&questions(2));
    let broken = ModelServer::answering(|body| match asked(body) {
        Some(2) => Reply::json(
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"no"}}"#,
        ),
        _ => Reply::events(anthropic_text("right-1")),
    })
    .await;
    let ran = eval(&home, &broken, &["--run", "e", "--json"])
        .well()
        .json();
    assert_eq!(ran["total"]["errors"], 1);
    assert_eq!(ran["total"]["pass_rate"], 0.5);
    assert_eq!(ran["results"][1]["error_code"], "provider_invalid_request");

    let server = knowing().await;
    let kept = eval(&home, &server, &["--run", "e", "--json"])
        .well()
        .json();
    let again = eval(&home, &server, &["--run", "e", "--retry-errors", "--json"])
        .well()
        .json();

    assert_eq!(kept["total"]["errors"], 1, "a result is not made twice");
    assert_eq!(
        (&again["total"]["errors"], &again["total"]["passed"]),
        (&json!(0), &json!(2))
    );

    let refusing = ModelServer::answering(|_| {
        Reply::json(
            401,
            r#"{"type":"error","error":{"type":"authentication_error","message":"no"}}"#,
        )
    })
    .await;
    let stopped = eval(&home, &refusing, &["--run", "f"]);
    assert_eq!(stopped.code, Some(1));
    assert!(stopped.error().contains("the run stopped: "), "{stopped:?}");
    assert_eq!(
        refusing.requests().len(),
        1,
        "every further trial would fail alike"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn trials_run_at_once_and_a_low_pass_rate_fails_the_command_if_asked() {
    let home = with_questions(&questions(4));
    let server = ModelServer::answering(|_| Reply::stream().then(Step::Stall)).await;
    let url = server.url();
    let child = home
        .command(&arguments(&url, &["--jobs", "4"]))
        .spawn()
        .unwrap();
    wait_for("four requests at once", || server.requests().len() == 4);
    kill(child.id(), "KILL");
    child.wait_with_output().unwrap();

    let knowing = knowing().await;
    let other = ModelServer::answering(|_| Reply::events(anthropic_text("wrong"))).await;
    let low = eval(&home, &other, &["--fail-under", "50"]);
    assert_eq!(low.code, Some(1), "{low:?}");
    assert!(
        low.err.contains("the pass rate of 0.0 % is below 50 %"),
        "{low:?}"
    );
    eval(&home, &knowing, &["--fail-under", "100"]).well();
    let priceless = eval(&home, &knowing, &["--budget-usd", "1"]);
    assert_eq!(priceless.code, Some(2));
    assert!(
        priceless
            .error()
            .contains("needs a price for the model `m-1`"),
        "{priceless:?}"
    );
}

/// A copy of a task whose tests leave marks.
fn marked_task(home: &Path) {
    for (file, text) in [
        ("task/instruction.md", "Do it."),
        ("task/task.toml", "[verifier]\ntimeout_sec = 20\n"),
        ("task/environment/a.txt", "fresh\n"),
        ("task/solution/solve.sh", "echo solved >>a.txt\n"),
        (
            "task/tests/test.sh",
            "cat a.txt\ntouch \"$CALLBOARD_TESTS/x\" && echo writable\n[ -e .callboard-solution ] && echo leaked\necho 0.5 >\"$CALLBOARD_LOGS/reward.txt\"\n",
        ),
    ] {
        let path = home.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_library_runs_trials_in_fresh_workspaces_and_tests_that_commands_cannot_write() {
    let home = tempfile::tempdir().unwrap();
    marked_task(home.path());
    let set = data_set(&home.path().join("task")).unwrap();
    let store = Arc::new(EvalStore::open(&home.path().join("results.db")).unwrap());
    let host = Host::builder()
        .provider(callboard::providers::offline::Offline)
        .build()
        .await
        .unwrap();
    let runner = EvalRunner::new(host, store.clone()).unwrap();
    let mut options = EvalOptions {
        solver: Solver::Oracle,
        model: "oracle".into(),
        trials: 2,
        ..EvalOptions::new("lib", home.path().join("work"))
    };
    options.sandbox_options.helper = Some(env!("CARGO_BIN_EXE_callboard").into());
    let mut seen = 0;

    let end = runner
        .run(&set, &options, CancellationToken::new(), |_| seen += 1)
        .await
        .unwrap();

    assert_eq!((end, seen), (RunEnd::Complete, 2));
    let figures = figures(
        store.run("lib").unwrap().unwrap(),
        store.results("lib").unwrap(),
    );
    for result in &figures.results {
        assert!(result.output.starts_with("fresh\nsolved"), "{result:?}");
        assert!(!result.output.contains("writable") && !result.output.contains("leaked"));
        assert!(!result.is_passed() && result.score == 0.5, "{result:?}");
    }
    assert_eq!(
        std::fs::read_to_string(home.path().join("task/environment/a.txt")).unwrap(),
        "fresh\n"
    );
    assert!(
        !home.path().join("work/lib/task.1").exists(),
        "workspaces are removed"
    );
}
