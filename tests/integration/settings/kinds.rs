//! `[[provider]] kind`: a whole task with tools over each API, from the configuration to the answer.

use serde_json::{Value, json};

use super::{Home, home};
use crate::support::model_server::{ModelServer, Recorded, Reply, responses_calls, responses_text};

const KEY: &str = "cb-test-not-a-real-key";

/// A home with a provider `p` of a kind, and two files that the model reads.
fn home_of(kind: &str, base_url: &str) -> Home {
    let mut home = home(&format!(
        "[[provider]]\nname = \"p\"\nkind = \"{kind}\"\nbase_url = \"{base_url}\"\nmodel = \"m-1\"\napi_key_env = \"P_KEY\"\ncontext_window = 100000\nthinking = \"adaptive\"\n",
    ));
    home.variables.push(("P_KEY", KEY.to_owned()));
    std::fs::write(home.work().join("one.txt"), "the first number is 17\n").unwrap();
    std::fs::write(home.work().join("two.txt"), "the second number is 25\n").unwrap();
    home
}

fn read(file: &str) -> Value {
    json!({ "path": file })
}

/// Runs the task and a question after it, and returns the three requests.
fn run(home: &Home, server: &ModelServer) -> Vec<Recorded> {
    let checked = home.run(&["config", "check"]).well();
    assert!(!checked.out.contains(KEY), "{checked:?}");
    let ask = |prompt| home.run(&["run", "--session", "s", prompt]).well();

    let first = ask("Add the numbers in one.txt and two.txt.");
    let second = ask("Are you sure?");

    assert_eq!(
        (first.out.as_str(), second.out.as_str()),
        ("42\n", "Yes.\n")
    );
    let shown = format!("{first:?} {second:?} {:?}", home.run(&["config", "show"]));
    assert!(!shown.contains(KEY), "{shown}");
    server.requests()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_with_tools_runs_over_the_responses_api() {
    let server = ModelServer::start([
        Reply::events(responses_calls(&[
            ("call_a", "file_read", read("one.txt")),
            ("call_b", "file_read", read("two.txt")),
        ])),
        Reply::events(responses_text("42")),
        Reply::events(responses_text("Yes.")),
    ])
    .await;

    let requests = run(&home_of("openai-responses", &server.url_v1()), &server);

    assert!(
        requests
            .iter()
            .all(|request| request.line == "POST /v1/responses"
                && request.header("authorization") == Some(&format!("Bearer {KEY}")))
    );
    let [first, second, third] = [0, 1, 2].map(|at: usize| requests[at].json());
    assert_eq!(
        (
            &first["model"],
            &first["store"],
            &first["include"],
            &first["reasoning"]
        ),
        (
            &json!("m-1"),
            &json!(false),
            &json!(["reasoning.encrypted_content"]),
            &json!({"summary": "auto"})
        )
    );
    assert!(
        first["tools"]
            .as_array()
            .unwrap()
            .iter()
            .any(|tool| tool["name"] == "file_read"
                && tool["type"] == "function"
                && tool["parameters"]["type"] == "object")
    );
    let input = second["input"].as_array().unwrap();
    let kinds: Vec<&str> = input
        .iter()
        .map(|item| item["type"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds,
        [
            "message",
            "reasoning",
            "function_call",
            "function_call",
            "function_call_output",
            "function_call_output"
        ]
    );
    assert_eq!(
        input[1],
        json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c2VhbGVk"})
    );
    assert!(
        input[4]["output"].as_str().unwrap().contains("17"),
        "{}",
        input[4]
    );
    assert_eq!(
        (&input[4]["call_id"], &input[5]["call_id"]),
        (&json!("call_a"), &json!("call_b"))
    );
    // The prefix stays the same, byte for byte, so that the server's cache can hold it.
    let third = third["input"].as_array().unwrap();
    assert_eq!(third.get(..input.len()), Some(input.as_slice()));
    assert_eq!(
        third[input.len()],
        json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "42"}]})
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_asks_an_api_of_each_kind_for_its_models() {
    let server = ModelServer::answering(|_| Reply::json(200, r#"{"data":[]}"#)).await;

    let found = home_of("openai-responses", &server.url_v1()).run(&["doctor", "--online"]);

    assert!(
        found
            .out
            .contains("provider p: it answers and accepts the key")
            && !found.out.contains(KEY),
        "{found:?}"
    );
    let asked = server.requests().pop().unwrap();
    assert_eq!(
        (asked.line.as_str(), asked.header("authorization")),
        ("GET /v1/models", Some(format!("Bearer {KEY}").as_str()))
    );
}
