//! Rounds, the debug form and the figures of a conversation over HTTP.

use callboard::skills::SkillFolder;
use callboard_actors::{chat::Usage, ports::Capabilities};

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rounds_are_read_in_pages_and_taken_back() {
    let server = Server::start(ScriptedModel::answering(|_, _| Reply::text("yes"))).await;
    let mut ids = Vec::new();
    for prompt in ["one", "two", "three"] {
        let answer = server.send("c", prompt).await;
        ids.push(answer["round_id"].as_str().unwrap().to_owned());
    }

    let first = body(server.get("/v1/conversations/c/rounds?limit=2").await).await;
    let rest = body(server.get("/v1/conversations/c/rounds?after=1").await).await;

    assert_eq!(
        (
            &first["total"],
            &first["next"],
            first["rounds"].as_array().unwrap().len()
        ),
        (&json!(3), &json!(1), 2)
    );
    assert_eq!(
        (
            &first["rounds"][0]["user_message"],
            &first["rounds"][0]["final_answer"],
            &first["rounds"][0]["status"]
        ),
        (&json!("one"), &json!("yes"), &json!("completed"))
    );
    assert_eq!(
        (rest["rounds"][0]["round_id"].as_str(), rest.get("next")),
        (Some(&*ids[2]), None)
    );
    assert_eq!(
        (
            &first["user_id"],
            &first["active_skill_context"],
            &first["compression_threshold"],
            &first["should_compress"]
        ),
        (&json!("acme"), &json!({}), &json!(0.8), &json!(false))
    );
    assert!(first["context_tokens"].as_u64().unwrap() > 0);

    let left = server
        .post("/v1/conversations/c/rewind", json!({ "to": ids[1] }))
        .await;
    assert_eq!(body(left).await, json!({ "messages": 2, "rounds": 1 }));
    let again = server
        .post("/v1/conversations/c/rewind", json!({ "to": ids[1] }))
        .await;
    assert_eq!(problem(again).await, (404, "not_found".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rounds_come_with_the_models_window_and_the_changes_of_active_skills() {
    let model = ScriptedModel::always(Reply::text("yes"));
    let small = Capabilities {
        context_window: 64_000,
        ..LlmProvider::capabilities(&model, "")
    };
    let host = Host::builder()
        .provider(model.capabilities(small))
        .skills(SkillFolder::open(skills()).unwrap())
        .build()
        .await
        .unwrap();
    let server = Server::over(host, Setting::default()).await;
    server.send("c", "hello").await;
    server
        .post("/v1/conversations/c/skills/csv-tables", json!({}))
        .await;

    let rounds = body(server.get("/v1/conversations/c/rounds").await).await;

    assert_eq!(
        (
            &rounds["context_window_limit"],
            &rounds["compression_threshold"]
        ),
        (&json!(64_000), &json!(0.8))
    );
    let active = &rounds["active_skill_context"]["csv-tables"];
    assert_eq!(
        (&active["by"], &active["level"]),
        (&json!("user"), &json!(2))
    );
    assert_eq!(
        rounds["context_modifiers"],
        json!([{ "allowed_tools": ["file_list", "file_read", "grep_search"] }])
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_debug_form_has_times_and_ids_that_stay() {
    let server = Server::start(ScriptedModel::answering(|_, _| Reply::text("yes"))).await;
    server.send("c", "hello").await;

    let read = async || body(server.get("/v1/conversations/c/messages?form=debug").await).await;
    let debug = read().await;

    assert_eq!(debug, read().await, "a second look shows the same ids");
    let [first, second] = [0, 1].map(|at| &debug["messages"][at]["message"]);
    assert_eq!(
        (
            &first["role"],
            &first["content"],
            &second["content"][0]["text"]
        ),
        (
            &json!("user"),
            &json!([{ "type": "text", "text": "hello" }]),
            &json!("yes")
        )
    );
    assert_eq!(
        (
            &first["schema_version"],
            &first["conversation_id"],
            &first["user_id"]
        ),
        (&json!("1.9"), &json!("c"), &json!("acme"))
    );
    assert!(first["timestamp"].as_str().unwrap().ends_with('Z'));
    assert!(first["timestamp"].as_str() > Some("2020"));
    assert_ne!(first["message_id"], second["message_id"]);
    assert_eq!(first["message_id"].as_str().unwrap().len(), 36);

    let wrong = server.get("/v1/conversations/c/messages?form=secret").await;
    assert_eq!(problem(wrong).await.0, 422);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_window_shows_earlier_rounds_as_a_summary() {
    let model = ScriptedModel::answering(|_, _| {
        Reply::text("yes").usage(Usage {
            input_uncached: 190_000,
            output: 5,
            ..Usage::default()
        })
    });
    let server = Server::start(model).await;
    for round in 0..7 {
        server.send("c", &format!("ask {round}")).await;
    }

    let page = body(
        server
            .get("/v1/conversations/c/messages?form=compressed")
            .await,
    )
    .await;

    let first = page["messages"][0]["message"]["content"][0]["text"].as_str();
    assert!(
        first.is_some_and(|text| text.contains("Request: ask 1") && !text.contains("ask 2")),
        "{page}"
    );
    assert_eq!(
        page["total"], 11,
        "the summary and five rounds of two messages"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_report_has_the_figures_of_the_conversation() {
    let server = Server::start(ScriptedModel::answering(|_, _| Reply::text("yes"))).await;
    server.send("c", "hello").await;

    let report = body(server.get("/v1/conversations/c/report").await).await;

    assert_eq!(
        (
            &report["conversation_id"],
            &report["metrics"]["rounds"],
            &report["tools"]
        ),
        (&json!("c"), &json!(1), &json!({}))
    );
    assert_eq!(
        report["total_tokens"].as_u64().unwrap(),
        report["metrics"]["total_input_tokens"].as_u64().unwrap()
            + report["metrics"]["total_output_tokens"].as_u64().unwrap()
    );
    assert!(
        report["text"]
            .as_str()
            .unwrap()
            .starts_with("Conversation Metrics Report\n====")
    );
}
