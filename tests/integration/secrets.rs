//! Masking from end to end: keys that a host knows are planted wherever text comes in, and searched
//! for wherever text goes out.

mod shapes;
mod sinks;

use std::{path::Path, process::Command, sync::Arc};

use callboard::{
    Host,
    config::Observability,
    http::{
        HttpConfig, KeyHash, Keys, MadeKey, Operator, OperatorError, Reloaded, TenantPut, serve,
    },
    ids::TenantId,
    observe::Redactor,
    ports::{BoxFuture, ProviderError},
};
use callboard_actors::testing::{Reply, ScriptedModel};
use serde_json::{Value, json};

/// A key with characters that JSON escapes.
const KEY: &str = "word\"key\\provider-not-real";

/// A tenant's key, as `callboard keys new` creates it.
const TENANT_KEY: &str = "cb_00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// A key that a person chose.
const CHOSEN: &str = "chosen-by-hand-not-real";

/// The operator's key.
const ADMIN: &str = "cb_ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100";

/// A key as it is, in JSON, and in JSON inside JSON.
fn forms(key: &str) -> [String; 3] {
    let json = |text: &str| Value::from(text).to_string().trim_matches('"').to_owned();
    // `trim_matches` would also remove an escaped quote at the end; no key here ends with one.
    let once = json(key);
    [key.to_owned(), once.clone(), json(&once)]
}

#[track_caller]
fn holds_none(sink: &str, text: &[u8], keys: &[&str]) {
    for form in keys.iter().flat_map(|key| forms(key)) {
        let found = text
            .windows(form.len())
            .position(|window| window == form.as_bytes());
        if let Some(at) = found {
            let around =
                String::from_utf8_lossy(&text[at.saturating_sub(200)..(at + 100).min(text.len())])
                    .into_owned();
            panic!("{sink} holds {form}: …{around}…");
        }
    }
}

/// A program whose every answer contains keys, and which fails with one.
struct Talkative;

impl Operator for Talkative {
    fn reload(&self) -> BoxFuture<'_, Result<Reloaded, OperatorError>> {
        Box::pin(async { panic!("the reload broke down at {KEY}") })
    }

    fn put_tenant(&self, _: TenantId, _: Value) -> BoxFuture<'_, Result<TenantPut, OperatorError>> {
        let wrong = OperatorError::Invalid {
            pointer: Some(format!("/{KEY}")),
            message: format!("{KEY} is wrong"),
        };
        Box::pin(std::future::ready(Err(wrong)))
    }

    fn put_quota(&self, _: TenantId, _: Value) -> BoxFuture<'_, Result<(), OperatorError>> {
        Box::pin(std::future::ready(Err(OperatorError::Unavailable(
            format!("{KEY} is away"),
        ))))
    }

    fn new_key(&self, _: TenantId, _: bool) -> BoxFuture<'_, Result<MadeKey, OperatorError>> {
        Box::pin(std::future::ready(Err(OperatorError::UnknownTenant)))
    }

    fn remove_tenant(&self, _: TenantId) -> BoxFuture<'_, Result<(), OperatorError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// What clients receive from a host whose parts report keys: status and body of each refusal.
async fn refusals() -> Vec<(u16, String)> {
    let model = ScriptedModel::always(Reply::error(ProviderError::Auth {
        message: format!("no such key: {KEY}"),
    }));
    let host = Host::builder().provider(model).build().await.unwrap();
    let keys = Keys::new();
    for key in [TENANT_KEY, CHOSEN] {
        keys.put(TenantId::new("acme").unwrap(), KeyHash::from_key(key));
    }
    keys.set_admin(Some(KeyHash::from_key(ADMIN)));
    let config = HttpConfig::new(keys)
        .operator(Arc::new(Talkative))
        .redactor(Redactor::new([KEY]));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let served = tokio::spawn(serve(listener, host, config, std::future::pending()));
    let client = callboard::tls::client_builder()
        .unwrap()
        .no_proxy()
        .build()
        .unwrap();
    let chat = json!({ "model": "default", "messages": [{ "role": "user", "content": "hi" }] });
    let asked = [
        // The endpoint repeats the provider's message.
        (
            "POST",
            "/openai/v1/chat/completions",
            TENANT_KEY,
            chat.clone(),
        ),
        // The error repeats the name of the unknown field, which must be masked if it is a key.
        (
            "POST",
            "/v1/conversations/c/messages",
            TENANT_KEY,
            json!({ "content": "hi", TENANT_KEY: 1 }),
        ),
        (
            "POST",
            "/v1/conversations/c/messages",
            CHOSEN,
            json!({ "content": "hi", CHOSEN: 1 }),
        ),
        (
            "POST",
            "/v1/conversations/c/messages",
            CHOSEN,
            json!({ "content": "hi", KEY: 1 }),
        ),
        (
            "POST",
            "/openai/v1/chat/completions",
            CHOSEN,
            json!({ "model": CHOSEN, "messages": [{ "role": CHOSEN, "content": "hi" }] }),
        ),
        ("PUT", "/v1/admin/tenants/acme", ADMIN, json!({})),
        ("PUT", "/v1/admin/tenants/acme/quota", ADMIN, json!({})),
        ("POST", "/v1/admin/reload", ADMIN, json!({})),
    ];
    let mut answers = Vec::new();
    for (method, path, key, body) in asked {
        let request = client
            .request(method.parse().unwrap(), format!("{url}{path}"))
            .bearer_auth(key);
        let response = request
            .header("content-type", "application/json")
            .body(body.to_string())
            .send()
            .await
            .unwrap();
        let status = response.status().as_u16();
        let length = response
            .headers()
            .get("content-length")
            .map(|length| length.to_str().unwrap().parse::<usize>().unwrap());
        let text = response.text().await.unwrap();
        assert!(length.is_none_or(|length| length == text.len()), "{path}");
        answers.push((status, text));
    }
    served.abort();
    answers
}

#[tokio::test]
async fn no_refusal_of_the_http_host_holds_a_key() {
    let answers = refusals().await;

    let statuses: Vec<u16> = answers.iter().map(|(status, _)| *status).collect();
    assert_eq!(
        statuses,
        [502, 422, 422, 422, 404, 422, 503, 500],
        "{answers:?}"
    );
    for (status, text) in &answers {
        holds_none(
            &format!("a refusal with {status}"),
            text.as_bytes(),
            &[KEY, TENANT_KEY, CHOSEN, ADMIN],
        );
        assert!(serde_json::from_str::<Value>(text).is_ok(), "{text}");
    }
    let masked = answers
        .iter()
        .filter(|(_, text)| text.contains("[masked"))
        .count();
    assert!(masked >= 5, "the keys were there to be masked: {answers:?}");
}

/// Runs in a child process only, selected by an environment variable: a panic hook and a subscriber
/// belong to the whole process.
#[tokio::test]
async fn child_that_panics() {
    if std::env::var_os("CALLBOARD_TEST_PANICS").is_none() {
        return;
    }
    let telemetry = callboard::telemetry::init(
        Some("trace"),
        &Observability::default(),
        &Redactor::new([KEY]),
    )
    .unwrap();

    for (status, text) in refusals().await {
        eprintln!("{status} {text}");
    }
    telemetry.shutdown().await;
}

#[test]
fn a_panic_of_a_handler_shows_no_key() {
    let this = std::env::current_exe().unwrap();
    let args = [
        "--exact",
        "secrets::child_that_panics",
        "--nocapture",
        "--test-threads=1",
    ];
    let ran = Command::new(this)
        .args(args)
        .env("CALLBOARD_TEST_PANICS", "1")
        .env_remove("CALLBOARD_LOG")
        .output()
        .unwrap();

    let output = [ran.stdout, ran.stderr].concat();
    let text = String::from_utf8_lossy(&output);
    assert!(ran.status.success(), "{text}");
    assert!(
        text.contains("the reload broke down at [masked:1]") && text.contains("a handler panicked"),
        "{text}"
    );
    holds_none("a panic", &output, &[KEY, TENANT_KEY, CHOSEN, ADMIN]);
}

/// All files below a folder, with their contents.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push((
                path.display().to_string(),
                std::fs::read(&path).unwrap_or_default(),
            ));
        }
    }
    found
}
