//! Settings of a host that serves, seen from outside: their effect, and the defaults.

use std::io::Read as _;

use reqwest::{Method, StatusCode};
use serde_json::json;

use super::{Home, Key, Served, configure};
use crate::support::model_server::{ModelServer, Reply, anthropic_text};

#[tokio::test(flavor = "multi_thread")]
async fn a_skill_chooses_only_a_model_that_the_operator_lists() {
    let home = Home::new();
    let model = ModelServer::start([Reply::events(anthropic_text("ok"))]).await;
    let listed = Key::new(&home);
    let other = Key::new(&home);
    let own = Key::new(&home);
    let skill = home.work().join("skills/pricey");
    std::fs::create_dir_all(&skill).unwrap();
    std::fs::write(
        skill.join("SKILL.md"),
        "---\nname: pricey\ndescription: Wants more.\nmodel: claude-dear-1\n---\nDo it well.\n",
    )
    .unwrap();
    std::fs::write(home.work().join("key"), "sk-test-not-a-real-key").unwrap();
    let tenant = |id: &str, key: &Key, more: &str| {
        format!(
            "[[tenant]]\nid = \"{id}\"\nkey_sha256 = \"{}\"\nskills = \"skills\"\n{more}\n",
            key.hash
        )
    };
    configure(
        &home,
        &format!(
            "[skills]\nmodels = [\"claude-dear-*\"]\n[[provider]]\nname = \"p\"\nkind = \"anthropic\"\nbase_url = \"{}\"\n\
             api_key_file = \"key\"\nmodel = \"claude-own-1\"\n{}{}{}",
            model.url(),
            tenant("listed", &listed, ""),
            tenant("other", &other, "skill_models = [\"claude-other-1\"]"),
            tenant("own", &own, "skill_models = []"),
        ),
    );
    let served = Served::start(&home, &[]);

    for (key, expected) in [
        (&listed, "claude-dear-1"),
        (&other, "claude-own-1"),
        (&own, "claude-own-1"),
    ] {
        assert_eq!(
            served
                .ask(
                    Method::PUT,
                    "/v1/conversations/c",
                    &key.key,
                    Some(json!({}))
                )
                .await
                .status,
            StatusCode::CREATED
        );
        let active = served
            .ask(
                Method::POST,
                "/v1/conversations/c/skills/pricey",
                &key.key,
                None,
            )
            .await;
        assert!(active.status.is_success(), "{active:?}");
        let answer = served
            .ask(
                Method::POST,
                "/v1/conversations/c/messages",
                &key.key,
                Some(json!({"content": "Hi"})),
            )
            .await;
        assert_eq!(answer.body["status"], "completed", "{answer:?}");
        let asked = model.requests().last().unwrap().json();
        assert_eq!(asked["model"], expected);
    }
}

#[test]
fn a_client_address_has_as_many_connections_as_the_operator_lets_it() {
    let home = Home::new();
    configure(&home, "[host]\nconnections_per_address_max = 2\n");
    let served = Served::start(&home, &[]);
    let address = served.url.strip_prefix("http://").unwrap();

    let _held = [
        std::net::TcpStream::connect(address).unwrap(),
        std::net::TcpStream::connect(address).unwrap(),
    ];
    let mut refused = std::net::TcpStream::connect(address).unwrap();
    refused
        .set_read_timeout(Some(std::time::Duration::from_secs(30)))
        .unwrap();
    let mut answer = String::new();
    let _ = refused.read_to_string(&mut answer);

    assert!(
        answer.starts_with("HTTP/1.1 503 ") && answer.contains("too_many_connections"),
        "{answer}"
    );
}

#[test]
fn a_data_folder_that_the_log_makes_is_for_its_user_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = Home::new();
    configure(
        &home,
        "[host]\ndata_dir = \"new/data\"\n[observability]\nlog_output = [\"file\"]\n",
    );

    let ran = home.run(&["config", "check"]);
    let served = Served::start(&home, &[]);

    assert_eq!(ran.code, Some(0), "{ran:?}");
    for folder in ["new", "new/data"] {
        let mode = std::fs::metadata(home.work().join(folder))
            .unwrap()
            .permissions()
            .mode()
            & 0o777;
        assert_eq!(mode, 0o700, "{folder}");
    }
    assert_eq!(served.stop().code, Some(0));
    std::fs::set_permissions(
        home.work().join("new/data"),
        std::fs::Permissions::from_mode(0o755),
    )
    .unwrap();
    let doctor = home.run(&["doctor"]);
    assert!(
        doctor
            .out
            .contains("warn data folder: other users can access")
            && doctor.out.contains("chmod 700"),
        "{doctor:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_over_http_asks_before_its_tenant_and_the_tenant_before_the_provider() {
    let home = Home::new();
    let model = ModelServer::start([Reply::events(anthropic_text("ok"))]).await;
    let key = Key::new(&home);
    std::fs::write(home.work().join("key"), "sk-test-not-a-real-key").unwrap();
    configure(
        &home,
        &format!(
            "[[provider]]\nkind = \"anthropic\"\nbase_url = \"{}\"\napi_key_file = \"key\"\nmax_tokens = 100\neffort = \"low\"\n\
             [[tenant]]\nid = \"acme\"\nkey_sha256 = \"{}\"\neffort = \"medium\"\nstop = [\"T\"]\n",
            model.url(),
            key.hash,
        ),
    );
    let served = Served::start(&home, &[]);
    let post = async |path: &str, body: serde_json::Value| {
        served.ask(Method::POST, path, &key.key, Some(body)).await
    };
    let asked = |answer: super::Answer| {
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        let body = model.requests().last().unwrap().json();
        json!([
            body["max_tokens"],
            body["output_config"]["effort"],
            body["temperature"],
            body["stop_sequences"]
        ])
    };
    let messages = "/v1/conversations/c/messages";

    assert_eq!(
        asked(post(messages, json!({"content": "a"})).await),
        json!([100, "medium", null, ["T"]])
    );
    let own = json!({"content": "a", "max_tokens": 7, "effort": "high", "temperature": 0.5, "stop": ["X"]});
    assert_eq!(
        asked(post(messages, own).await),
        json!([7, "high", 0.5, ["X"]])
    );
    let door = json!({
        "model": "default", "messages": [{"role": "user", "content": "a"}], "max_tokens": 5, "max_completion_tokens": 6,
        "reasoning_effort": "low", "temperature": 1, "stop": "S"
    });
    assert_eq!(
        asked(post("/openai/v1/chat/completions", door).await),
        json!([6, "low", 1.0, ["S"]])
    );
    for (field, value, says) in [
        ("max_tokens", json!(0), "at least 1"),
        ("thinking", json!(5), "at least 1024"),
        ("thinking", json!("on"), "must be `off`"),
        ("temperature", json!(9), "from 0 to 2"),
        ("effort", json!("huge"), "huge"),
        ("stop", json!(["a", "b", "c", "d", "e"]), "at most 4"),
    ] {
        let refused = post(messages, json!({"content": "a", field: value})).await;
        assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "{field}");
        assert!(
            refused.body["detail"].as_str().unwrap().contains(says)
                && refused.body["pointer"] == format!("/{field}"),
            "{field}: {}",
            refused.body
        );
    }
    served.stop();
}
