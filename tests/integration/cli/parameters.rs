//! Model parameters from files, variables, flags and requests reach the model's server.

use callboard::{Host, providers::Anthropic};
use serde_json::{Value, json};

use super::Home;
use crate::support::model_server::{ModelServer, Reply, anthropic_text};

fn configured(text: &str) -> Home {
    let home = Home::new();
    let trusted = home.path().join("trusted.toml");
    std::fs::write(&trusted, text).unwrap();
    home
}

fn request(home: &Home, args: &[&str]) -> Value {
    let config = home.path().join("trusted.toml");
    let args = [
        &[
            "--config",
            config.to_str().unwrap(),
            "sessions",
            "request",
            "s",
        ],
        args,
    ]
    .concat();
    home.run(&args).well().json()
}

const PARAMETERS: &str = r#"
[[provider]]
kind = "anthropic"
max_tokens = 4000
effort = "low"
thinking = 2000
temperature = 0.5
stop = ["END", "a b"]
"#;

#[test]
fn the_keys_of_a_provider_and_the_flags_reach_the_request() {
    let home = configured(PARAMETERS);
    home.run(&["run", "--provider", "offline", "--session", "s", "Hello"])
        .well();

    let body = request(&home, &[]);
    assert_eq!(body["max_tokens"], 4000);
    assert_eq!(body["output_config"], json!({"effort": "low"}));
    assert_eq!(
        body["thinking"],
        json!({"type": "enabled", "budget_tokens": 2000})
    );
    assert_eq!(body["temperature"], 0.5);
    assert_eq!(body["stop_sequences"], json!(["END", "a b"]));

    let flags = [
        "--max-tokens",
        "9",
        "--effort",
        "high",
        "--thinking",
        "off",
        "--temperature",
        "1",
    ];
    let body = request(&home, &flags);
    assert_eq!(body["max_tokens"], 9);
    assert_eq!(body["output_config"], json!({"effort": "high"}));
    assert_eq!(body["thinking"], json!({"type": "disabled"}));
    assert_eq!(body["temperature"], 1.0);
}

#[test]
fn an_answer_that_was_cut_says_so_and_a_whole_one_does_not() {
    let home = Home::new();
    let run = |more: &[&str]| {
        let args = [
            &["run", "--provider", "offline", "Where is RETRY_CAP_MS?"],
            more,
        ]
        .concat();
        home.run(&args).well()
    };

    let cut = run(&["--max-tokens", "10"]);
    assert!(cut.err.contains("note: the answer was cut"), "{}", cut.err);
    assert!(cut.out.len() < 60, "{}", cut.out);

    let whole = run(&[]);
    assert!(!whole.err.contains("was cut"), "{}", whole.err);
}

#[test]
fn wrong_parameters_are_one_line_with_their_place() {
    for (line, says) in [
        ("max_tokens = 0", "must be 1 to"),
        (
            "effort = \"huge\"",
            "must be one of `low`, `medium`, `high`",
        ),
        (
            "thinking = \"on\"",
            "must be `off`, `adaptive` or a number of tokens, not `on`",
        ),
        ("thinking = 100", "a budget must be at least 1024 tokens"),
        ("temperature = 3", "must be a number from 0 to 2, not `3`"),
        ("stop = \"END\"", "must be a list of texts, not a text"),
        ("stop = [\"\"]", "must"),
        ("retries_max = 101", "must be 0 to 100"),
        ("context_window = 0", "must be 1 to"),
    ] {
        let home = configured(&format!("[[provider]]\nkind = \"anthropic\"\n{line}\n"));
        let config = home.path().join("trusted.toml");
        let ran = home.run(&["--config", config.to_str().unwrap(), "config", "check"]);
        assert!(
            ran.err.contains("trusted.toml:3:") && ran.err.contains(says),
            "{line}: {}",
            ran.err
        );
    }
}

/// A server that is not there, with the fallback that is.
fn broken_first(extra: &str) -> String {
    format!(
        "[[provider]]\nname = \"first\"\nkind = \"anthropic\"\nbase_url = \"http://127.0.0.1:9\"\n{extra}\n\
         [provider.fallback]\nprovider = \"offline\"\n\n[[provider]]\nname = \"offline\"\nkind = \"offline\"\n"
    )
}

#[test]
fn a_run_falls_back_and_retries_as_its_provider_says() {
    let home = configured(&broken_first("retries_max = 0"));
    let config = home.path().join("trusted.toml");

    let ran = home
        .run(&[
            "--config",
            config.to_str().unwrap(),
            "run",
            "--json",
            "Where is RETRY_CAP_MS?",
        ])
        .well();

    let end = ran.events().pop().unwrap();
    assert!(
        end["text"].as_str().unwrap().contains("src/retry.rs:4"),
        "{end}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn window_and_retries_are_what_the_configuration_says() {
    let server = ModelServer::start([
        Reply::status(500),
        Reply::events(anthropic_text("after one retry")),
    ])
    .await;
    let home = configured(&format!(
        "[[provider]]\nkind = \"anthropic\"\nbase_url = \"{}\"\ncontext_window = 6000\nmax_tokens = 100\nretry_delay_s = 0.01\n",
        server.url()
    ));
    let config = home.path().join("trusted.toml");
    let args = [
        "--config",
        config.to_str().unwrap(),
        "run",
        "--json",
        "Hello",
    ];

    let events = tokio::task::block_in_place(|| home.run(&args))
        .well()
        .events();

    let end = events.last().unwrap();
    assert_eq!(end["text"], "after one retry");
    let retry = events
        .iter()
        .find(|event| event["type"] == "retry")
        .unwrap();
    let delay_ms = retry["delay_ms"].as_u64().unwrap();
    assert!(delay_ms < 100, "the usual delay is a second: {retry}");

    let long = "word ".repeat(10_000);
    let args = ["--config", config.to_str().unwrap(), "run", "--json", &long];
    let refused = tokio::task::block_in_place(|| home.run(&args));
    let events = refused.events();
    assert_eq!(events.last().unwrap()["stop_reason"], "context_too_large");
    assert_eq!(server.requests().len(), 2, "nothing too large is sent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_asked_for_the_window_of_its_model() {
    let list = json!({"object": "list", "data": [{"id": "m", "max_model_len": 6000}]});
    let server = ModelServer::start([Reply::json(200, &list.to_string())]).await;
    let home = configured(&format!(
        "[[provider]]\nkind = \"openai\"\nbase_url = \"{}/v1\"\nmodel = \"m\"\nmax_tokens = 100\n",
        server.url()
    ));
    let config = home.path().join("trusted.toml");
    let long = "word ".repeat(10_000);
    let args = ["--config", config.to_str().unwrap(), "run", "--json", &long];

    let refused = tokio::task::block_in_place(|| home.run(&args));

    let events = refused.events();
    assert_eq!(events.last().unwrap()["stop_reason"], "context_too_large");
    let asked = server.requests();
    assert_eq!(asked.len(), 1, "nothing too large is sent");
    assert!(
        asked[0].line.starts_with("GET /v1/models"),
        "{}",
        asked[0].line
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answer_of_a_prompt_is_as_long_as_the_prompt_says() {
    let server = ModelServer::start([Reply::events(anthropic_text("short"))]).await;
    let host = Host::builder()
        .provider(
            Anthropic::builder("sk-test-not-a-real-key")
                .base_url(server.url())
                .build()
                .unwrap(),
        )
        .build()
        .await
        .unwrap();

    let asked = serde_json::from_value(json!({"max_tokens": 12, "thinking": "adaptive"})).unwrap();
    let mut round = host
        .tenant("acme")
        .conversation("c")
        .send("Hello")
        .parameters(asked)
        .await
        .unwrap();
    round.outcome().await.unwrap();

    let body = server.requests().last().unwrap().json();
    assert_eq!(
        (&body["max_tokens"], &body["thinking"]),
        (&json!(12), &json!({"type": "adaptive"}))
    );
}
