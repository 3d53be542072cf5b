//! Graceful shutdown: watchers receive the end of their round, and no accepted prompt is lost.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_loses_no_turn() {
    const BUSY: usize = 200;
    let model = Arc::new(ScriptedModel::answering(|_, _| {
        Reply::text("one two three")
            .chunks(3)
            .chunk_delay(Duration::from_millis(150))
    }));
    let server = Server::with(model.clone(), Setting::default()).await;
    let asking: Vec<_> = (0..BUSY)
        .map(|n| {
            let request = server.ask(
                Method::POST,
                &format!("/v1/conversations/c{n}/messages"),
                ACME,
            );
            tokio::spawn(
                with_json(request, &json!({ "content": "go", "stream": n % 2 == 0 })).send(),
            )
        })
        .collect();
    soon(model.until(|counts| counts.started == BUSY)).await;
    let host = server.host.clone();
    let address = server.address;

    let served = server.end().await;

    for (n, asked) in asking.into_iter().enumerate() {
        let response = soon(asked).await.unwrap().unwrap();
        if n % 2 == 0 {
            let events = Sse::of(response).rest().await;
            assert_eq!(events.last().unwrap().data["text"], "one two three");
        } else {
            assert_eq!(body(response).await["text"], "one two three");
        }
    }
    println!("{BUSY} busy conversations drained in {:?}", served.took);
    assert_eq!((served.conversations, served.connections_cut), (BUSY, 0));
    assert!(served.took < Duration::from_secs(10));
    assert!(
        tokio::net::TcpStream::connect(address).await.is_err(),
        "the listener is closed"
    );
    let refused = host
        .tenant("acme")
        .conversation("late")
        .send("hello")
        .await
        .unwrap_err();
    assert_eq!(refused.code(), "draining");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_that_does_not_end_in_time_is_interrupted_and_reported() {
    let model = Arc::new(ScriptedModel::always(Reply::stall()));
    let server = Server::with(
        model.clone(),
        Setting {
            drain_within: Some(Duration::from_millis(100)),
            ..Setting::default()
        },
    )
    .await;
    let request = server.ask(Method::POST, "/v1/conversations/c/messages", ACME);
    let asked = tokio::spawn(with_json(request, &json!({ "content": "go" })).send());
    soon(model.until(|counts| counts.started == 1)).await;

    let served = server.end().await;

    let answer = body(soon(asked).await.unwrap().unwrap()).await;
    assert_eq!(answer["stop_reason"], "interrupted", "{answer}");
    assert_eq!(served.connections_cut, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readiness_goes_first_and_watchers_last() {
    let model = Arc::new(ScriptedModel::answering(|_, call| {
        if call == 0 {
            Reply::text("x")
        } else {
            Reply::stall()
        }
    }));
    let server = Server::with(
        model.clone(),
        Setting {
            drain_within: Some(Duration::from_millis(500)),
            ..Setting::default()
        },
    )
    .await;
    server.send("c", "hello").await;
    let mut watcher = Sse::of(server.get("/v1/conversations/c/events").await);
    // Accepted before the listener closes; afterwards no connection is possible.
    let spare = callboard::tls::client_builder()
        .unwrap()
        .no_proxy()
        .http1_only()
        .build()
        .unwrap();
    assert_eq!(
        soon(spare.get(server.url("/readyz")).send())
            .await
            .unwrap()
            .status(),
        200
    );
    let request = server
        .ask(Method::POST, "/v1/conversations/c/messages", ACME)
        .header("prefer", "respond-async");
    soon(with_json(request, &json!({ "content": "go" })).send())
        .await
        .unwrap();
    soon(model.until(|counts| counts.started == 2)).await;

    let drain = soon(server.ask(Method::POST, "/v1/admin/drain", ADMIN).send())
        .await
        .unwrap();
    assert_eq!(drain.status(), 202);
    let unready = soon(async {
        loop {
            let response = spare.get(server.url("/readyz")).send().await.unwrap();
            if response.status() != 200 {
                return response;
            }
        }
    })
    .await;

    assert_eq!(problem(unready).await, (503, "draining".into()));
    let mut last = None;
    while let Some(event) = watcher.next().await {
        last = Some(event);
    }
    assert_eq!(
        last.unwrap().event,
        "round_finished",
        "the watcher received the end of the round, then the stream ended"
    );
    assert_eq!(soon(server.served).await.unwrap().connections_cut, 0);
}
