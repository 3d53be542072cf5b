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
    // The last result is shown before the last conversation sleeps.
    let started = async {
        loop {
            let started = server.post("/v1/fanouts", again.clone()).await;
            if started.status() == 202 {
                return;
            }
            assert_eq!(problem(started).await, (409, "fan_out_running".into()));
        }
    };
    soon(started).await;
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

    let other = async || {
        let other = json!({ "name": "n", "tasks": ["x"] });
        problem(server.post("/v1/fanouts", other).await).await
    };
    let refused = async {
        loop {
            let refused = other().await;
            if refused.1 != "fan_out_running" {
                return refused;
            }
        }
    };
    assert_eq!(soon(refused).await, (409, "fan_out_differs".into()));
    let none = server.post("/v1/fanouts", json!({ "tasks": [] })).await;
    assert_eq!(problem(none).await.0, 422);
    let erased = soon(server.ask(Method::DELETE, "/v1/fanouts/n", ACME).send()).await;
    assert_eq!(erased.unwrap().status(), 204);
    assert_eq!(server.get("/v1/fanouts/n").await.status(), 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stored_fan_outs_are_listed_in_pages_and_belong_to_their_tenant() {
    let server = Server::start(ScriptedModel::always(Reply::text("ok"))).await;
    for name in ["n-1", "n-2"] {
        let wanted = json!({ "name": name, "tasks": ["a", "b"] });
        server.post("/v1/fanouts", wanted).await;
        over(&server, name).await;
    }

    let quick = body(server.get("/v1/fanouts").await).await;
    assert!(quick.get("stored").is_none(), "{quick}");
    let mut names = Vec::new();
    let mut path = "/v1/fanouts?stored=true".to_owned();
    loop {
        let page = body(server.get(&path).await).await;
        for one in page["stored"].as_array().unwrap() {
            assert_eq!(
                (&one["tasks"], &one["done"], &one["failed"], &one["open"]),
                (&json!(2), &json!(2), &json!(0), &json!(0))
            );
            assert!(one["began_at"].is_u64() && one["tokens"].is_u64(), "{one}");
            names.push(one["name"].as_str().unwrap().to_owned());
        }
        match page["next"].as_str() {
            Some(next) => path = format!("/v1/fanouts?stored=true&after={next}"),
            None => break,
        }
    }
    names.sort();
    assert_eq!(names, ["n-1", "n-2"]);
    let foreign = server.ask(Method::GET, "/v1/fanouts?stored=true", ZETA);
    let foreign = body(soon(foreign.send()).await.unwrap()).await;
    assert_eq!(foreign["stored"], json!([]));
    let wrong = server.get("/v1/fanouts?stored=true&after=%20").await;
    assert_eq!(problem(wrong).await, (422, "invalid_parameter".into()));
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn erasing_the_conversation_of_a_subagent_erases_its_text_in_the_results() {
    let server = Server::start(ScriptedModel::answering(|request, _| {
        Reply::text(request.messages.iter().last().unwrap().text())
    }))
    .await;
    server
        .post(
            "/v1/fanouts",
            json!({ "name": "n", "tasks": ["alpha", "beta", "gamma"] }),
        )
        .await;
    let results = over(&server, "n").await["results"].clone();
    let id = results[0]["conversation_id"].as_str().unwrap();

    let path = format!("/v1/conversations/{id}");
    let deleted = soon(server.ask(Method::DELETE, &path, ACME).send()).await;
    assert_eq!(deleted.unwrap().status(), 204);

    let kept = over(&server, "n").await["results"].clone();
    let texts = [0, 1, 2].map(|index: usize| kept[index]["text"].as_str().unwrap());
    assert_eq!(texts, ["", "beta", "gamma"]);
    assert_eq!(kept[0]["text_omitted"], json!(true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_under_the_name_of_a_running_fan_out_costs_no_other_its_results() {
    let server = Server::start(ScriptedModel::answering(|request, _| {
        match request.messages.iter().last().unwrap().text().as_str() {
            "stall" => Reply::stall(),
            text => Reply::text(text),
        }
    }))
    .await;
    for number in 0..31 {
        let name = format!("ended-{number}");
        let wanted = json!({ "name": name, "tasks": ["a"] });
        assert_eq!(server.post("/v1/fanouts", wanted).await.status(), 202);
        over(&server, &name).await;
    }
    let runs = json!({ "name": "runs", "tasks": ["stall"] });
    assert_eq!(server.post("/v1/fanouts", runs.clone()).await.status(), 202);

    let again = server.post("/v1/fanouts", runs).await;
    assert_eq!(problem(again).await, (409, "fan_out_running".into()));
    let differs = json!({ "name": "ended-3", "tasks": ["another"] });
    let differs = server.post("/v1/fanouts", differs).await;
    assert_eq!(problem(differs).await, (409, "fan_out_differs".into()));

    let listed = body(server.get("/v1/fanouts").await).await;
    assert_eq!(listed["fan_outs"].as_array().unwrap().len(), 32);
    assert_eq!(over(&server, "ended-0").await["results"][0]["text"], "a");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_that_is_created_again_has_no_results_of_the_one_that_was_removed() {
    let model = Arc::new(ScriptedModel::always(Reply::text("private")));
    let setting = Setting {
        operator: Some(Arc::new(super::matrix::Obliging)),
        ..Setting::default()
    };
    let server = Server::with(model, setting).await;
    server
        .post("/v1/fanouts", json!({ "name": "n", "tasks": ["a"] }))
        .await;
    assert_eq!(over(&server, "n").await["results"][0]["text"], "private");

    let remove = server.ask(Method::DELETE, "/v1/admin/tenants/acme", ADMIN);
    assert_eq!(soon(remove.send()).await.unwrap().status(), 204);

    assert_eq!(server.get("/v1/fanouts/n").await.status(), 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fan_out_chooses_only_models_that_the_operator_lists() {
    let model = Arc::new(ScriptedModel::always(Reply::text("ok")));
    let host = Host::builder()
        .shared_provider(model.clone())
        .skill_models(["listed-*".to_owned()])
        .build()
        .await
        .unwrap();
    let server = Server::over(host, Setting::default()).await;
    let wanted = |model: &str| json!({ "name": model, "tasks": ["x"], "model": model });

    let refused = server.post("/v1/fanouts", wanted("dear")).await;
    assert_eq!(problem(refused).await, (422, "invalid_field".into()));
    assert_eq!(model.counts().started, 0);

    for allowed in ["listed-1", &*server.host.setup_of(&tenant("acme")).model] {
        let started = server.post("/v1/fanouts", wanted(allowed)).await;
        assert_eq!(started.status(), 202, "{allowed}");
        assert_eq!(over(&server, allowed).await["done"], json!(1));
    }
    assert_eq!(&*model.requests()[0].model, "listed-1");
}
