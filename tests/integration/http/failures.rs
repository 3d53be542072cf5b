//! Rounds that fail: every form of the answer says so, and no client takes an empty text for an
//! answer.

use callboard_actors::{chat::Message, ports::Capabilities};

use super::*;

/// A host whose model has a small window and never answers the word `wait`.
async fn server() -> Server {
    let model = ScriptedModel::answering(|request, _| {
        match request.messages.last().map(Message::text).as_deref() {
            Some("wait") => Reply::stall(),
            _ => Reply::text("yes"),
        }
    });
    let capabilities = Capabilities {
        context_window: 4000,
        output_max: 500,
        ..LlmProvider::capabilities(&model, "")
    };
    Server::start(model.capabilities(capabilities)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_that_failed_has_the_status_error_and_its_reason() {
    let server = server().await;
    let say = "/v1/conversations/c/messages";
    let large = "word ".repeat(20_000);

    for (prompt, code, stop) in [
        (
            json!({"content": "wait", "deadline_ms": 200}),
            "deadline",
            "interrupted",
        ),
        (
            json!({ "content": large }),
            "context_too_large",
            "context_too_large",
        ),
    ] {
        let response = server.post(say, prompt).await;
        assert_eq!(response.status(), StatusCode::OK);
        let answer = body(response).await;

        assert_eq!(
            (
                &answer["status"],
                &answer["error"]["code"],
                &answer["stop_reason"]
            ),
            (&json!("error"), &json!(code), &json!(stop)),
            "{answer}"
        );
    }
    let streamed = server
        .post(say, json!({ "content": large, "stream": true }))
        .await;
    let last = Sse::of(streamed).rest().await.pop().unwrap();
    assert_eq!(
        (&last.data["type"], &last.data["status"]),
        (&json!("round_finished"), &json!("error")),
        "{last:?}"
    );
    assert_eq!(server.send("other", "hello").await["status"], "completed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_that_a_client_interrupts_is_no_failure() {
    let server = server().await;
    let prompt = server.post("/v1/conversations/c/messages", json!({"content": "wait"}));
    let interrupt = async {
        loop {
            let response = server
                .post("/v1/conversations/c/interrupt", json!({}))
                .await;
            if response.status() == StatusCode::ACCEPTED {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };

    let (response, ()) = tokio::join!(prompt, soon(interrupt));

    let answer = body(response).await;
    assert_eq!(
        (&answer["status"], &answer["stop_reason"]),
        (&json!("completed"), &json!("interrupted"))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_openai_route_answers_with_the_codes_that_its_clients_know() {
    let server = server().await;
    let chat = "/openai/v1/chat/completions";
    let large = json!([{"role": "user", "content": "word ".repeat(20_000)}]);

    let response = server
        .post(chat, json!({"model": "default", "messages": large}))
        .await;

    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    let error = &body(response).await["error"];
    assert_eq!(
        (&error["code"], &error["type"], &error["param"]),
        (
            &json!("context_length_exceeded"),
            &json!("invalid_request_error"),
            &json!("messages")
        )
    );
    let streamed = server
        .post(
            chat,
            json!({"model": "default", "messages": large, "stream": true}),
        )
        .await;
    let text = soon(streamed.text()).await.unwrap();
    assert!(
        text.contains("context_length_exceeded") && !text.contains("finish_reason\":\"length"),
        "{text}"
    );
}
