//! Changes that an operator makes by HTTP, and which of them survive a restart.

use reqwest::{Method, StatusCode};
use serde_json::json;

use super::{Home, Key, Served, configure};
use crate::support::model_server::{ModelServer, Reply, Step, anthropic_text, sse};

/// A host with the tenant `acme` of the configuration file, and the keys of both.
fn host(home: &Home) -> (Key, Key) {
    let admin = Key::new(home);
    let acme = Key::new(home);
    configure(
        home,
        &format!(
            "[host]\nadmin_key_sha256 = \"{}\"\n[[tenant]]\nid = \"acme\"\nkey_sha256 = \"{}\"\n",
            admin.hash, acme.hash
        ),
    );
    (admin, acme)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_operator_changed_survives_a_restart() {
    let home = Home::new();
    let (admin, acme) = host(&home);
    let served = Served::start(&home, &[]);
    let body = json!({"weight": 2, "quotas": {"turns_max": 4}});

    let put = served
        .ask(
            Method::PUT,
            "/v1/admin/tenants/beta",
            &admin.key,
            Some(body),
        )
        .await;
    let made = served
        .ask(
            Method::POST,
            "/v1/admin/tenants/beta/keys",
            &admin.key,
            None,
        )
        .await;
    let beta = made.body["key"].as_str().unwrap().to_owned();
    let paused = served
        .ask(
            Method::POST,
            "/v1/admin/tenants/acme/pause",
            &admin.key,
            None,
        )
        .await;
    let rekeyed = served
        .ask(
            Method::POST,
            "/v1/admin/tenants/acme/keys",
            &admin.key,
            Some(json!({"replace": true})),
        )
        .await;
    let fresh = rekeyed.body["key"].as_str().unwrap().to_owned();

    assert_eq!(
        (put.status, made.status, paused.status),
        (
            StatusCode::CREATED,
            StatusCode::CREATED,
            StatusCode::NO_CONTENT
        )
    );
    assert_eq!(
        (
            served.opens(&beta).await,
            served.opens(&fresh).await,
            served.opens(&acme.key).await
        ),
        (true, true, false)
    );
    assert_eq!(served.stop().code, Some(0));

    let again = Served::start(&home, &[]);
    assert_eq!(
        (
            again.opens(&beta).await,
            again.opens(&fresh).await,
            again.opens(&acme.key).await
        ),
        (true, true, false)
    );
    let listed = again.get("/v1/admin/tenants", &admin.key).await.body;
    let paused: Vec<_> = listed["tenants"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tenant| (tenant["id"].clone(), tenant["paused"].clone()))
        .collect();
    assert_eq!(
        paused,
        [(json!("acme"), json!(true)), (json!("beta"), json!(false))]
    );
    let kept =
        std::fs::read_to_string(home.path().join("home/.local/share/callboard/tenants.json"))
            .unwrap();
    assert!(!kept.contains(&beta) && !kept.contains(&fresh), "{kept}");

    let removed = again
        .ask(Method::DELETE, "/v1/admin/tenants/beta", &admin.key, None)
        .await;
    assert_eq!(
        (removed.status, again.opens(&beta).await),
        (StatusCode::NO_CONTENT, false)
    );
    assert_eq!(again.stop().code, Some(0));
    assert!(!Served::start(&home, &[]).opens(&beta).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_whose_workspace_holds_the_store_is_not_made() {
    let home = Home::new();
    let admin = Key::new(&home);
    let text = format!(
        "[host]\nadmin_key_sha256 = \"{}\"\n[store]\nurl = \"sqlite:src/all.db\"\n",
        admin.hash
    );
    configure(&home, &text);
    let served = Served::start(&home, &[]);
    let workspace = home.work().join("src");

    let put = served
        .ask(
            Method::PUT,
            "/v1/admin/tenants/beta",
            &admin.key,
            Some(json!({"workspace": workspace})),
        )
        .await;

    assert_eq!(put.status, StatusCode::UNPROCESSABLE_ENTITY, "{put:?}");
    let detail = put.body["detail"].as_str().unwrap();
    assert!(
        detail.contains("the session store lies inside the workspace of tenant `beta`"),
        "{detail}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_configuration_file_wins_for_the_tenants_that_it_names() {
    let home = Home::new();
    let (admin, acme) = host(&home);
    let served = Served::start(&home, &[]);

    let put = served
        .ask(
            Method::PUT,
            "/v1/admin/tenants/acme",
            &admin.key,
            Some(json!({"weight": 9})),
        )
        .await;
    let removed = served
        .ask(Method::DELETE, "/v1/admin/tenants/acme", &admin.key, None)
        .await;
    let wrong = served
        .ask(
            Method::PUT,
            "/v1/admin/tenants/beta",
            &admin.key,
            Some(json!({"quotas": {"turn_max": 1}})),
        )
        .await;
    let stolen = served
        .ask(
            Method::PUT,
            "/v1/admin/tenants/beta",
            &admin.key,
            Some(json!({"key_sha256": acme.hash})),
        )
        .await;

    for answer in [&put, &removed] {
        assert_eq!(
            answer.status,
            StatusCode::UNPROCESSABLE_ENTITY,
            "{answer:?}"
        );
        assert!(
            answer.body["detail"]
                .as_str()
                .unwrap()
                .contains("tenant `acme` is configured at callboard.toml:3"),
            "{answer:?}"
        );
    }
    assert_eq!(
        (wrong.status, wrong.body["pointer"].clone()),
        (StatusCode::UNPROCESSABLE_ENTITY, json!("/quotas/turn_max"))
    );
    assert!(
        wrong.body["detail"]
            .as_str()
            .unwrap()
            .contains("did you mean `turns_max`?"),
        "{wrong:?}"
    );
    for (settings, pointer) in [
        (json!({"provider": "nope"}), "/provider"),
        (json!({"workspace": "/no/such/folder"}), "/workspace"),
        (json!({"tools": ["bash"]}), "/tools"),
    ] {
        let path = "/v1/admin/tenants/beta";
        let refused = served
            .ask(Method::PUT, path, &admin.key, Some(settings))
            .await;
        assert_eq!(
            (refused.status, &refused.body["pointer"]),
            (StatusCode::UNPROCESSABLE_ENTITY, &json!(pointer)),
            "{refused:?}"
        );
    }
    assert_eq!(
        (stolen.status, stolen.body["pointer"].clone()),
        (StatusCode::UNPROCESSABLE_ENTITY, json!("/key_sha256"))
    );
    assert!(served.opens(&acme.key).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_that_was_erased_is_served_as_it_is_configured() {
    let home = Home::new();
    let (admin, acme) = host(&home);
    let served = Served::start(&home, &[]);
    let say = || {
        served.ask(
            Method::POST,
            "/v1/conversations/one/messages",
            &acme.key,
            Some(json!({"content": "Hello"})),
        )
    };
    assert_eq!(say().await.body["status"], "completed");
    let quota = json!({"requests_per_minute": 1});
    assert_eq!(
        served
            .ask(
                Method::PUT,
                "/v1/admin/tenants/acme/quota",
                &admin.key,
                Some(quota)
            )
            .await
            .status,
        StatusCode::NO_CONTENT
    );

    let erased = served
        .ask(
            Method::DELETE,
            "/v1/admin/tenants/acme/data",
            &admin.key,
            None,
        )
        .await;

    assert_eq!(
        (erased.status, erased.body["conversations"].clone()),
        (StatusCode::OK, json!(1))
    );
    assert_eq!(
        served.get("/v1/conversations/one", &acme.key).await.status,
        StatusCode::NOT_FOUND
    );
    assert_eq!(say().await.body["status"], "completed");
    // Erasing data does not reset the quota: the second prompt of this minute exceeds it.
    assert_eq!(say().await.status, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_exchanged_while_a_round_runs() {
    let home = Home::new();
    let admin = Key::new(&home);
    let acme = Key::new(&home);
    let events = sse(anthropic_text("Done in peace."));
    let (begin, rest) = events.split_at(events.len() / 2);
    let pause = Step::Pause(std::time::Duration::from_millis(700));
    let model = ModelServer::start([Reply::stream()
        .send(begin.to_owned())
        .then(pause)
        .send(rest.to_owned())])
    .await;
    configure(
        &home,
        &format!(
            "[host]\nadmin_key_sha256 = \"{}\"\n[[provider]]\nname = \"slow\"\nkind = \"anthropic\"\nbase_url = \"{}\"\napi_key_env = \"SLOW_KEY\"\n\
             [[tenant]]\nid = \"acme\"\nkey_sha256 = \"{}\"\n",
            admin.hash,
            model.url(),
            acme.hash
        ),
    );
    std::fs::write(home.work().join("key"), "sk-test-not-a-real-key").unwrap();
    let text = std::fs::read_to_string(home.work().join("callboard.toml")).unwrap();
    configure(
        &home,
        &text.replace("api_key_env = \"SLOW_KEY\"", "api_key_file = \"key\""),
    );
    let served = Served::start(&home, &[]);
    let say = json!({"content": "Take your time."});
    let prompt = served
        .ask_with(
            Method::POST,
            "/v1/conversations/one/messages",
            &acme.key,
            Some(say),
            &[("prefer", "respond-async")],
        )
        .await;
    model.requests_came(1).await;

    let made = served
        .ask(
            Method::POST,
            "/v1/admin/tenants/acme/keys",
            &admin.key,
            Some(json!({"replace": true})),
        )
        .await;

    let fresh = made.body["key"].as_str().unwrap();
    assert_eq!(
        (
            prompt.status,
            served.opens(&acme.key).await,
            served.opens(fresh).await
        ),
        (StatusCode::ACCEPTED, false, true)
    );
    model.replies_done(1).await;
    let events = prompt.body["events"].as_str().unwrap();
    let watched = served
        .client
        .get(format!("{}{events}", served.url))
        .bearer_auth(fresh)
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    assert!(
        watched.contains("Done in peace.") && watched.contains("round_finished"),
        "{watched}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_was_replaced_stays_revoked_whatever_changes_afterwards() {
    let home = Home::new();
    let (admin, acme) = host(&home);
    let beta = Key::new(&home);
    let served = Served::start(&home, &[]);
    let tenant = |id: &str| format!("/v1/admin/tenants/{id}");
    let put = async |served: &Served, id: &str, body| {
        let path = tenant(id);
        let answer = served.ask(Method::PUT, &path, &admin.key, Some(body));
        assert!(answer.await.status.is_success());
    };
    let keys = json!({"key_sha256": beta.hash});
    put(&served, "beta", keys.clone()).await;
    let quota = format!("{}/quota", tenant("acme"));
    let one = Some(json!({"conversations_max": 1}));
    let limited = served.ask(Method::PUT, &quota, &admin.key, one).await;
    assert_eq!(limited.status, StatusCode::NO_CONTENT);
    assert!(served.opens(&beta.key).await);
    let rekeyed = served
        .ask(
            Method::POST,
            &format!("{}/keys", tenant("beta")),
            &admin.key,
            Some(json!({"replace": true})),
        )
        .await;
    let fresh = rekeyed.body["key"].as_str().unwrap().to_owned();
    let open = async |served: &Served| (served.opens(&beta.key).await, served.opens(&fresh).await);
    assert_eq!(open(&served).await, (false, true));

    put(&served, "gamma", json!({})).await;
    assert_eq!(open(&served).await, (false, true), "another tenant changed");
    // Quotas of a tenant of the file hold until the file is read again.
    let create = async |id: &str| {
        let path = format!("/v1/conversations/{id}");
        let answer = served.ask(Method::PUT, &path, &acme.key, Some(json!({})));
        answer.await.status
    };
    assert!(create("a").await.is_success());
    assert_eq!(create("b").await, StatusCode::TOO_MANY_REQUESTS);
    put(&served, "beta", keys).await;
    assert_eq!(open(&served).await, (false, true), "it is listed again");
    let reload = served.ask(Method::POST, "/v1/admin/reload", &admin.key, None);
    assert_eq!(reload.await.status, StatusCode::OK);
    assert_eq!(open(&served).await, (false, true), "a reload");
    assert!(create("b").await.is_success());
    assert_eq!(served.stop().code, Some(0));
    let again = Served::start(&home, &[]);
    assert_eq!(open(&again).await, (false, true), "a restart");
    assert!(again.opens(&acme.key).await);
}
