//! Fan-outs over HTTP: start, wait for results, attach, retry, cancel, erase.

use callboard_actors::ports::ProviderError;

use super::*;

/// Waits until a fan-out is over, as a client would.
async fn over(server: &Server, name: &str) -> Value {
    let mut ended = 0;
    loop {
        let path = format!("/v1/fanouts/{name}?wait_ms=20000&ended={ended}");
        let shown = body(server.get(&path).await).await;
        if shown["is_over"] == json!(true) {
            return shown;
        }
        ended = shown["ended"].as_u64().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fan_out_is_started_watched_retried_and_erased() {
    let bad = std::sync::atomic::AtomicBool::new(true);
    let model = ScriptedModel::answering(move |request, _| {
        let text = request.messages.iter().last().unwrap().text();
        let refused = ProviderError::InvalidRequest {
            status: 400,
            message: "no".into(),
        };
        match text.contains("bad") && bad.swap(false, std::sync::atomic::Ordering::SeqCst) {
            true => Reply::error(refused),
            false => Reply::text(format!("{text} done")),
        }
    });
    let server = Server::start(model).await;
    let wanted = json!({ "name": "n", "tasks": ["one", "bad", "three"] });

    let started = server.post("/v1/fanouts", wanted.clone()).await;
    assert_eq!(started.status(), 202);
    assert_eq!(
        body(started).await,
        json!({ "name": "n", "tasks": 3, "results": "/v1/fanouts/n" })
    );
    let first = over(&server, "n").await;
    assert_eq!(
        (
            &first["done"],
            &first["failed"],
            &first["results"][0]["text"]
        ),
        (&json!(2), &json!(1), &json!("one done"))
    );
    assert_eq!(first["results"][1]["ok"], json!(false));
    assert!(first["results"][1]["error"]["code"].is_string());
    let page = body(server.get("/v1/fanouts/n?limit=1&after=0").await).await;
    assert_eq!(
        (&page["results"][0]["index"], &page["next"]),
        (&json!(1), &json!(1))
    );

    let mut again = wanted.clone();
    again["retry_failed"] = json!(true);
    assert_eq!(server.post("/v1/fanouts", again).await.status(), 202);
    let second = over(&server, "n").await;
    assert_eq!(
        (
            &second["done"],
            &second["results"][1]["text"],
            &second["results"][0]["attached"]
        ),
        (&json!(3), &json!("bad done"), &json!(true))
    );
    let list = body(server.get("/v1/fanouts").await).await;
    assert_eq!(list["fan_outs"].as_array().unwrap().len(), 1);

    let other = server
        .post("/v1/fanouts", json!({ "name": "n", "tasks": ["x"] }))
        .await;
    assert_eq!(problem(other).await, (409, "fan_out_differs".into()));
    let none = server.post("/v1/fanouts", json!({ "tasks": [] })).await;
    assert_eq!(problem(none).await.0, 422);
    let erased = soon(server.ask(Method::DELETE, "/v1/fanouts/n", ACME).send()).await;
    assert_eq!(erased.unwrap().status(), 204);
    assert_eq!(server.get("/v1/fanouts/n").await.status(), 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_fan_out_ends_and_belongs_to_its_tenant() {
    let server = Server::start(ScriptedModel::always(Reply::stall())).await;
    server
        .post("/v1/fanouts", json!({ "name": "n", "tasks": ["a", "b"] }))
        .await;

    let foreign = server.ask(Method::GET, "/v1/fanouts/n", ZETA).send();
    assert_eq!(soon(foreign).await.unwrap().status(), 404);
    let cancelled = server.post("/v1/fanouts/n/cancel", json!({})).await;
    assert_eq!(cancelled.status(), 202);
    let shown = over(&server, "n").await;
    assert_eq!((&shown["done"], &shown["failed"]), (&json!(0), &json!(2)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn erasing_a_tenants_data_erases_the_results_of_its_fan_outs() {
    let server = Server::start(ScriptedModel::always(Reply::text("private"))).await;
    server
        .post("/v1/fanouts", json!({ "name": "n", "tasks": ["a"] }))
        .await;
    assert_eq!(over(&server, "n").await["results"][0]["text"], "private");

    let erase = server.ask(Method::DELETE, "/v1/admin/tenants/acme/data", ADMIN);
    assert_eq!(soon(erase.send()).await.unwrap().status(), 200);

    assert_eq!(server.get("/v1/fanouts/n").await.status(), 404);
}
