//! What an operator changes on one host of a database holds on the others.

use std::time::{Duration, Instant};

use callboard::{
    ids::TenantId,
    storage::{TenantChange, TenantChanges},
};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::{
    hosts::{configured, database},
    open, schema,
    server::{pooler, server},
};
use crate::{
    cli::{
        Home,
        serve::{Answer, Key, Served},
    },
    support::model_server::{ModelServer, Reply, Step, anthropic_text, sse},
};

/// How soon a change on one host holds on another.
const HOLDS_WITHIN: Duration = Duration::from_secs(2);

/// Two hosts, each with a data folder of its own, that serve one database. `more` begins with the
/// section of the host.
fn two_hosts(database: &str, model: &ModelServer, more: &str) -> [(Home, Served); 2] {
    [(); 2].map(|()| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let host = format!("[host]\npeer_address = \"http://{address}\"\nlisten = \"{address}\"\n");
        let home = configured(model, database, &more.replace("[host]\n", &host));
        let served = tokio::task::block_in_place(|| Served::with(&home, &["serve"]));
        (home, served)
    })
}

async fn post(host: &Served, admin: &Key, path: &str, body: Option<Value>) -> Answer {
    let path = format!("/v1/admin/tenants/{path}");
    host.ask(Method::POST, &path, &admin.key, body).await
}

/// Waits until a host refuses or admits a key.
async fn opens_soon(host: &Served, key: &str, expected: bool) {
    let start = Instant::now();
    while host.opens(key).await != expected {
        assert!(
            start.elapsed() < HOLDS_WITHIN,
            "the key does not open: {expected}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_pauses_and_tenants_of_one_host_hold_on_another_within_two_seconds() {
    let test = "keys_pauses_and_tenants_of_one_host_hold_on_another_within_two_seconds";
    let Some(server) = server(test) else {
        return;
    };
    let database = database(&server, "control");
    let begun: String = sse(anthropic_text("So far").iter().take(3));
    let model = ModelServer::start([Reply::stream().send(begun).then(Step::Stall)]).await;
    let [admin, acme] = [(); 2].map(|()| Key::new(&Home::new()));
    let tenants = format!(
        "[host]\nadmin_key_sha256 = \"{}\"\n[[tenant]]\nid = \"acme\"\nkey_sha256 = \"{}\"\n",
        admin.hash, acme.hash
    );
    let [(_one, one), (_two, two)] = two_hosts(&database, &model, &tenants);

    // A tenant and its key.
    let beta = json!({ "weight": 2, "quotas": { "turns_max": 4 } });
    let put = one
        .ask(
            Method::PUT,
            "/v1/admin/tenants/beta",
            &admin.key,
            Some(beta),
        )
        .await;
    assert_eq!(put.status, StatusCode::CREATED, "{put:?}");
    let key = post(&one, &admin, "beta/keys", None).await.body["key"].clone();
    let key = key.as_str().unwrap().to_owned();
    opens_soon(&two, &key, true).await;

    // An event stream on the other host ends when its key is replaced.
    let path = "/v1/conversations/c/messages";
    let prompt = Some(json!({ "content": "Go." }));
    let background = [("prefer", "respond-async")];
    let sent = two
        .ask_with(Method::POST, path, &key, prompt.clone(), &background)
        .await;
    assert_eq!(sent.status, StatusCode::ACCEPTED, "{sent:?}");
    let watching = two.text(Method::GET, "/v1/conversations/c/events", &key, None, &[]);
    let replacing = async {
        model.requests_came(1).await;
        post(&one, &admin, "beta/keys", Some(json!({ "replace": true }))).await
    };
    let ending = async { tokio::join!(watching, replacing).1 };
    let replaced = tokio::time::timeout(HOLDS_WITHIN * 2, ending)
        .await
        .unwrap();
    opens_soon(&two, &key, false).await;
    let fresh = replaced.body["key"].as_str().unwrap().to_owned();
    opens_soon(&two, &fresh, true).await;

    // A pause, also of a tenant of the configuration, and its end on the other host.
    assert_eq!(
        post(&one, &admin, "acme/pause", None).await.status,
        StatusCode::NO_CONTENT
    );
    let start = Instant::now();
    loop {
        let listed = two.get("/v1/admin/tenants", &admin.key).await.body;
        let mut tenants = listed["tenants"].as_array().unwrap().iter();
        if tenants.any(|tenant| tenant["id"] == "acme" && tenant["paused"] == true) {
            break;
        }
        assert!(start.elapsed() < HOLDS_WITHIN, "{listed}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let refused = two.ask(Method::POST, path, &acme.key, prompt).await;
    assert_eq!(refused.body["code"], "tenant_paused", "{refused:?}");
    assert_eq!(
        post(&two, &admin, "acme/pause", Some(json!({ "paused": false })))
            .await
            .status,
        StatusCode::NO_CONTENT
    );

    // The end of a tenant.
    let removed = one
        .ask(Method::DELETE, "/v1/admin/tenants/beta", &admin.key, None)
        .await;
    assert_eq!(removed.status, StatusCode::NO_CONTENT, "{removed:?}");
    opens_soon(&two, &fresh, false).await;
    let stored = server.execute_in(
        &database,
        "SELECT string_agg(body, ' ') FROM callboard.control_tenant",
    );
    assert!(
        !stored.contains(&key) && !stored.contains(&fresh),
        "{stored}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_on_two_hosts_lose_no_change() {
    let Some(server) = server("operators_on_two_hosts_lose_no_change") else {
        return;
    };
    let database = database(&server, "operators");
    let model = ModelServer::start([Reply::status(500)]).await;
    let admin = Key::new(&Home::new());
    let more = format!(
        "[host]\nadmin_key_sha256 = \"{}\"\n[[tenant]]\nid = \"acme\"\n",
        admin.hash
    );
    let [(_one, one), (_two, two)] = two_hosts(&database, &model, &more);

    let mut keys = Vec::new();
    for _ in 0..5 {
        let (first, second) = tokio::join!(
            post(&one, &admin, "acme/keys", None),
            post(&two, &admin, "acme/keys", None)
        );
        for made in [first, second] {
            // One of the two may be asked to try again.
            match made.status {
                StatusCode::CREATED => keys.push(made.body["key"].as_str().unwrap().to_owned()),
                status => assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{made:?}"),
            }
        }
    }

    assert!(keys.len() >= 5);
    for key in &keys {
        opens_soon(&one, key, true).await;
        opens_soon(&two, key, true).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_of_a_file_are_taken_over_once_and_a_later_host_needs_no_file() {
    let test = "tenants_of_a_file_are_taken_over_once_and_a_later_host_needs_no_file";
    let Some(server) = server(test) else {
        return;
    };
    let database = database(&server, "import");
    let model = ModelServer::start([Reply::status(500)]).await;
    let admin = Key::new(&Home::new());
    let more = format!(
        "[host]\nadmin_key_sha256 = \"{}\"\n[[tenant]]\nid = \"acme\"\n",
        admin.hash
    );
    let [one, two] = [(); 2].map(|()| configured(&model, &database, &more));
    let with_file = configured(&model, "sqlite:own.db", &more);
    let served = Served::start(&with_file, &[]);
    let key = post(&served, &admin, "acme/keys", None).await.body["key"].clone();
    let key = key.as_str().unwrap().to_owned();
    assert_eq!(served.stop().code, Some(0));
    let file = "home/.local/share/callboard/tenants.json";
    let place = one.path().join(file);
    std::fs::create_dir_all(place.parent().unwrap()).unwrap();
    std::fs::copy(with_file.path().join(file), &place).unwrap();

    let served = Served::start(&one, &[]);
    assert!(served.opens(&key).await, "{}", served.err());
    let replaced = post(
        &served,
        &admin,
        "acme/keys",
        Some(json!({ "replace": true })),
    )
    .await;
    let fresh = replaced.body["key"].as_str().unwrap().to_owned();
    assert_eq!(served.stop().code, Some(0));

    // The file is not read again, and another host has none.
    for home in [&one, &two] {
        let served = Served::start(home, &[]);
        assert_eq!(
            (served.opens(&key).await, served.opens(&fresh).await),
            (false, true)
        );
        assert_eq!(served.stop().code, Some(0));
    }
    assert!(!two.path().join(file).exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_over_an_older_revision_is_refused() {
    let test = "a_change_over_an_older_revision_is_refused";
    let Some(server) = server(test) else {
        return;
    };
    let Some(pooler) = pooler(test, &server) else {
        return;
    };
    let store = open(&pooler.url(), &schema()).await;
    let control = store.control();
    let change = |id: &str, body: Option<&str>| -> TenantChange {
        (TenantId::new(id).unwrap(), body.map(str::to_owned))
    };
    let nothing = TenantChanges {
        revision: 0,
        tenants: Vec::new(),
    };
    assert_eq!(control.changes(0).await, Ok(nothing));

    let (first, second) = tokio::join!(
        control.change(0, vec![change("a", Some("1")), change("b", Some("1"))]),
        control.change(0, vec![change("a", Some("2")), change("b", Some("2"))])
    );
    let mut both = [first.unwrap(), second.unwrap()];
    both.sort();
    assert_eq!(both, [None, Some(1)]);
    assert_eq!(
        control.change(1, vec![change("a", None)]).await,
        Ok(Some(2))
    );

    let later = TenantChanges {
        revision: 2,
        tenants: vec![change("a", None)],
    };
    assert_eq!(control.changes(1).await, Ok(later));
    assert_eq!(control.changes(0).await.unwrap().tenants.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_erased_on_one_host_has_nothing_left_on_another_that_had_it_active() {
    let Some(server) =
        server("a_tenant_erased_on_one_host_has_nothing_left_on_another_that_had_it_active")
    else {
        return;
    };
    let database = database(&server, "erased");
    let said = std::sync::Arc::new(parking_lot::Mutex::new(Vec::new()));
    let model = {
        let said = said.clone();
        ModelServer::answering(move |request| {
            said.lock().push(request.to_string());
            Reply::events(anthropic_text("Canary of the answer."))
        })
        .await
    };
    let [acme, admin] = [(); 2].map(|()| Key::new(&Home::new()));
    let more = format!(
        "[host]\nadmin_key_sha256 = \"{}\"\n[[tenant]]\nid = \"acme\"\nkey_sha256 = \"{}\"\n",
        admin.hash, acme.hash
    );
    let [(_one, first), (_two, second)] = two_hosts(&database, &model, &more);
    let path = "/v1/conversations/c/messages";
    let body = Some(json!({"content": "Canary of the prompt."}));
    let answer = first.ask(Method::POST, path, &acme.key, body).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");

    let data = "/v1/admin/tenants/acme/data";
    let erased = second.ask(Method::DELETE, data, &admin.key, None).await;

    assert_eq!(
        (erased.status, &erased.body["conversations"]),
        (StatusCode::OK, &json!(1))
    );
    for host in [&first, &second] {
        for rest in ["", "/messages", "/rounds", "/report", "/events?after=0.0.0"] {
            let path = format!("/v1/conversations/c{rest}");
            let gone = host.get(&path, &acme.key).await;
            assert_eq!(gone.status, StatusCode::NOT_FOUND, "{path} {gone:?}");
        }
    }
    // The conversation of that id is a new one, wherever it is asked for.
    for host in [&first, &second] {
        let body = Some(json!({"content": "Again?"}));
        let mut answer = host.ask(Method::POST, path, &acme.key, body.clone()).await;
        if answer.status == StatusCode::CONFLICT {
            // The activation that lost its journal refuses the prompt and ends.
            answer = host.ask(Method::POST, path, &acme.key, body).await;
        }
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    }
    // A host that had it active may have asked its model once more before its append was refused;
    // what was answered knew nothing of the erased texts.
    let calls = said.lock().clone();
    let answered = calls.iter().rev().take(2);
    assert!(
        answered
            .into_iter()
            .all(|call| !call.contains("Canary of the prompt")),
        "{calls:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quotas_of_what_is_stored_hold_over_all_hosts() {
    let Some(server) = server("quotas_of_what_is_stored_hold_over_all_hosts") else {
        return;
    };
    let database = database(&server, "stored_quotas");
    let model = ModelServer::answering(|_| Reply::events(anthropic_text("Yes."))).await;
    let [few, small] = [(); 2].map(|()| Key::new(&Home::new()));
    let more = format!(
        "[host]\n[[tenant]]\nid = \"few\"\nkey_sha256 = \"{}\"\nquotas = {{ conversations_max = 6 }}\n\
         [[tenant]]\nid = \"small\"\nkey_sha256 = \"{}\"\nquotas = {{ stored_bytes_max = 100000 }}\n",
        few.hash, small.hash
    );
    let [(_one, first), (_two, second)] = two_hosts(&database, &model, &more);
    let put = async |host: &Served, key: &Key, id: String, bytes: usize| {
        let message = json!({"role": "user", "content": "x".repeat(bytes)});
        let body = Some(json!({ "messages": [message] }));
        let path = format!("/v1/conversations/{id}");
        host.ask(Method::PUT, &path, &key.key, body).await.status
    };
    tokio::time::sleep(HOLDS_WITHIN + Duration::from_secs(1)).await; // They know of one another.
    // Both hosts have counted what is stored: next to nothing.
    for (n, host) in [&first, &second].into_iter().enumerate() {
        for key in [&few, &small] {
            assert_eq!(put(host, key, format!("first{n}"), 10).await, 201);
        }
    }

    // Each host is asked for as many as the tenant may have.
    let mut created = 2;
    for n in 0..12 {
        let host = [&first, &second][n / 6];
        created += usize::from(put(host, &few, format!("c{n}"), 10).await == 201);
    }
    assert_eq!(created, 6);

    // One host stores most of what the tenant may; the other sees it within two seconds.
    assert_eq!(put(&first, &small, "most".into(), 80_000).await, 201);
    let mut n = 0;
    let refused = async {
        while put(&second, &small, format!("s{n}"), 1000).await == 201 {
            n += 1;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), refused)
        .await
        .unwrap();
    assert!(n <= 40, "{n} kB beside 80");
}
