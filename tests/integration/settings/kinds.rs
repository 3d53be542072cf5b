//! `[[provider]] kind`: a whole task with tools over each API, from the configuration to the answer.

use serde_json::{Value, json};

use super::{Home, home};
use crate::support::model_server::{
    ModelServer, Recorded, Reply, gemini_calls, gemini_text, responses_calls, responses_text,
};

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
async fn a_task_with_tools_runs_over_the_gemini_api() {
    let server = ModelServer::start([
        Reply::events(gemini_calls(&[
            ("file_read", read("one.txt")),
            ("file_read", read("two.txt")),
        ])),
        Reply::events(gemini_text("42")),
        Reply::events(gemini_text("Yes.")),
    ])
    .await;

    let requests = run(&home_of("gemini", &server.url()), &server);

    let line = "POST /v1beta/models/m-1:streamGenerateContent?alt=sse";
    assert!(
        requests
            .iter()
            .all(|request| request.line == line && request.header("x-goog-api-key") == Some(KEY))
    );
    let [first, second, third] = [0, 1, 2].map(|at: usize| requests[at].json());
    assert_eq!(
        first["generationConfig"]["thinkingConfig"],
        json!({"includeThoughts": true})
    );
    let declared = first["tools"][0]["functionDeclarations"]
        .as_array()
        .unwrap();
    assert!(declared.iter().any(
        |tool| tool["name"] == "file_read" && tool["parametersJsonSchema"]["type"] == "object"
    ));
    let contents = second["contents"].as_array().unwrap();
    let [_, called, answered] = contents.as_slice() else {
        panic!("{second}")
    };
    let call = &called["parts"][0];
    let id = call["functionCall"]["id"].as_str().unwrap();
    assert_eq!(
        (&call["thoughtSignature"], &call["functionCall"]["args"]),
        (&json!("Rmlyc3Q="), &read("one.txt"))
    );
    assert!(called["parts"][1].get("thoughtSignature").is_none());
    let response = &answered["parts"][0]["functionResponse"];
    assert_eq!(
        (&response["id"], &response["name"]),
        (&json!(id), &json!("file_read"))
    );
    assert_ne!(
        answered["parts"][0]["functionResponse"]["id"],
        answered["parts"][1]["functionResponse"]["id"]
    );
    assert!(
        response["response"]["output"]
            .as_str()
            .unwrap()
            .contains("17"),
        "{response}"
    );
    // The prefix stays the same, so that the server's cache can hold it.
    let third = third["contents"].as_array().unwrap();
    assert_eq!(third.get(..contents.len()), Some(contents.as_slice()));
    assert_eq!(
        third[contents.len()],
        json!({"role": "model", "parts": [{"text": "42"}, {"text": "", "thoughtSignature": "RmluYWw="}]})
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_asks_an_api_of_each_kind_for_its_models() {
    let server = ModelServer::answering(|_| Reply::json(200, r#"{"data":[]}"#)).await;
    let bearer = format!("Bearer {KEY}");
    for (kind, base_url, line, header, value) in [
        (
            "openai-responses",
            server.url_v1(),
            "GET /v1/models",
            "authorization",
            bearer.as_str(),
        ),
        (
            "gemini",
            format!("{}/v1beta", server.url()),
            "GET /v1beta/models",
            "x-goog-api-key",
            KEY,
        ),
    ] {
        let found = home_of(kind, &base_url).run(&["doctor", "--online"]);

        assert!(
            found
                .out
                .contains("provider p: it answers and accepts the key")
                && !found.out.contains(KEY),
            "{found:?}"
        );
        let asked = server.requests().pop().unwrap();
        assert_eq!(
            (asked.line.as_str(), asked.header(header)),
            (line, Some(value))
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_key_of_gemini_is_said_by_doctor_and_by_a_run() {
    let refusal = r#"{"error":{"code":400,"message":"API key not valid.","status":"INVALID_ARGUMENT","details":[{"reason":"API_KEY_INVALID"}]}}"#;
    let server = ModelServer::answering(move |_| Reply::json(400, refusal)).await;
    let home = home_of("gemini", &format!("{}/v1beta", server.url()));

    let found = home.run(&["doctor", "--online"]);
    let ran = home.run(&["run", "Hello"]);

    assert!(found.out.contains("it rejects the key"), "{found:?}");
    let said = format!("{ran:?}");
    assert!(
        said.contains("refused the credentials") && !said.contains(KEY),
        "{said}"
    );
}
