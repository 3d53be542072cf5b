//! Webhooks of `serve`, from the end of a round to the receiver: signed, made again through
//! failures and kills, and never in the way of others.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::{Home, Key, Served, configure, wait_for};
use crate::support::model_server::{ModelServer, Recorded, Reply, anthropic_text, anthropic_tool};

/// Not a real secret: `fake-secret-of-a-test-32-bytes!!` in base64.
const SECRET: &str = "whsec_ZmFrZS1zZWNyZXQtb2YtYS10ZXN0LTMyLWJ5dGVzISE=";

/// Another one, of a tenant: `fake-secret-of-beta---32-bytes!!`.
const OTHER: &str = "whsec_ZmFrZS1zZWNyZXQtb2YtYmV0YS0tLTMyLWJ5dGVzISE=";

/// A home with an operator, the tenant `acme`, and `more` sections. The offline model answers.
fn host(more: &str) -> (Home, Key, Key) {
    let home = Home::new();
    let (admin, acme) = (Key::new(&home), Key::new(&home));
    std::fs::write(home.work().join("hook"), SECRET).unwrap();
    std::fs::write(home.work().join("hook-of-beta"), OTHER).unwrap();
    configure(
        &home,
        &format!(
            "[host]\nadmin_key_sha256 = \"{}\"\n[[provider]]\nkind = \"offline\"\n[[tenant]]\nid = \"acme\"\nkey_sha256 = \"{}\"\n{more}",
            admin.hash, acme.hash
        ),
    );
    (home, admin, acme)
}

/// The section of a receiver on this machine.
fn webhook(receiver: &ModelServer, more: &str) -> String {
    format!(
        "[webhook]\nurl = \"{}/hook\"\nsecret_file = \"hook\"\nallow_hosts = [\"127.0.0.1\"]\n{more}\n",
        receiver.url()
    )
}

/// Sends a prompt and waits for the end of its round; returns the round's id.
async fn round(served: &Served, key: &Key, conversation: &str) -> String {
    let path = format!("/v1/conversations/{conversation}/messages");
    let body = json!({ "content": "Hello" });
    let answer = served.ask(Method::POST, &path, &key.key, Some(body)).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    answer.body["round_id"].as_str().unwrap().to_owned()
}

fn id(call: &Recorded) -> &str {
    call.header("webhook-id").unwrap()
}

/// The counts of a tenant's webhooks, as the operator sees them.
async fn counts(served: &Served, admin: &Key, tenant: &str) -> Value {
    let shown = served.get("/v1/admin/tenants", &admin.key).await.body;
    let tenants = shown["tenants"].as_array().unwrap();
    let found = tenants.iter().find(|shown| shown["id"] == tenant);
    found.unwrap()["webhooks"].clone()
}

/// The receiver of the guide.
struct Example {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    port: u16,
}

impl Example {
    fn start(secret: &str) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/webhooks/receiver.py");
        let mut child = Command::new("python3")
            .arg(script)
            .arg("0")
            .env("WEBHOOK_SECRET", secret)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        let port = first.rsplit(' ').next().unwrap().parse().unwrap();
        Self { child, lines, port }
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_receiver_of_the_guide_takes_what_is_signed_with_its_secret_and_nothing_else() {
    let mut example = Example::start(SECRET);
    let url = format!("http://127.0.0.1:{}", example.port);
    let (home, _, acme) = host(&format!(
        "[webhook]\nurl = \"{url}\"\nsecret_env = \"HOOK_SECRET\"\nallow_hosts = [\"127.0.0.1\"]\n"
    ));
    let mut command = home.command(&["serve", "--listen", "127.0.0.1:0"]);
    // During a change there are two: the receiver knows one of them.
    command.env("HOOK_SECRET", format!("{OTHER},{SECRET}"));
    let served = Served::of(command);

    let round = round(&served, &acme, "support-42").await;

    let line =
        tokio::task::spawn_blocking(move || (example.lines.next().unwrap().unwrap(), example));
    let (line, _example) = line.await.unwrap();
    assert_eq!(line, format!("round.finished support-42 {round}"));
    let now = std::time::SystemTime::UNIX_EPOCH
        .elapsed()
        .unwrap()
        .as_secs();
    let client = callboard::tls::client_builder().unwrap().build().unwrap();
    // The signature of another body, and one from long ago.
    for at in [now, 1_614_265_330] {
        let call = client
            .post(&url)
            .header("webhook-id", "msg_1")
            .header("webhook-timestamp", at.to_string())
            .header(
                "webhook-signature",
                "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
            );
        let answer = call.body("{}").send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_fails_is_made_again_under_its_id_until_the_receiver_takes_it() {
    let receiver = ModelServer::start([500, 503, 204].map(Reply::status)).await;
    let (home, admin, acme) = host(&webhook(&receiver, ""));
    let served = Served::start(&home, &[]);

    let round = round(&served, &acme, "c").await;
    receiver.replies_done(3).await;

    let calls = receiver.requests();
    let [first, second, third] = &calls[..] else {
        panic!("{calls:?}")
    };
    assert_eq!((id(first), &first.body), (id(second), &second.body));
    assert_eq!((id(first), &first.body), (id(third), &third.body));
    let mut body = first.json();
    let timestamp = body["timestamp"].take();
    assert!(timestamp.as_str().unwrap().ends_with('Z'), "{timestamp}");
    let latency = body["data"]["latency_ms"].take();
    let usage = body["data"]["usage"].take();
    assert!(latency.is_u64() && usage.is_object(), "{latency} {usage}");
    let expected = json!({
        "type": "round.finished", "timestamp": null,
        "data": {
            "tenant": "acme", "conversation_id": "c", "round_id": round, "status": "completed",
            "stop_reason": "end_turn", "latency_ms": null, "usage": null,
        },
    });
    assert_eq!(body, expected, "no contents of the conversation");
    wait_until(async || counts(&served, &admin, "acme").await["delivered"] == 1).await;
    let shown = counts(&served, &admin, "acme").await;
    assert_eq!(
        (&shown["failed"], &shown["given_up"]),
        (&json!(2), &json!(0))
    );
    let metrics = served
        .text(Method::GET, "/metrics", &admin.key, None, &[])
        .await;
    let line = "callboard_webhooks_delivered_total{tenant=\"acme\"} 1";
    assert!(metrics.contains(line), "{metrics}");
}

/// Waits, at most 10 s.
async fn wait_until(done: impl AsyncFn() -> bool) {
    let waited = async {
        while !done().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), waited)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_is_killed_before_the_delivery_delivers_after_its_restart() {
    let receiver = ModelServer::start([Reply::status(500)]).await;
    let (home, _, acme) = host(&webhook(&receiver, "timeout_s = 1"));
    let mut served = Served::start(&home, &[]);

    let round = round(&served, &acme, "c").await;
    receiver.requests_came(1).await;
    served.signal("KILL");
    served.wait_for_end();
    drop(served);
    let before = receiver.requests().len();
    receiver.script([Reply::status(200)]);
    let served = Served::start(&home, &[]);
    receiver.requests_came(before + 1).await;

    let calls = receiver.requests();
    assert_eq!(calls.last().unwrap().json()["data"]["round_id"], round);
    assert_eq!(id(calls.last().unwrap()), id(&calls[0]));
    drop(served);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_receiver_slows_no_other_tenant() {
    // It takes connections and answers nothing.
    let dead = ModelServer::start([Reply::status(200).delay(Duration::from_secs(600))]).await;
    let well = ModelServer::start([Reply::status(200)]).await;
    let (home, _, acme) = host(&webhook(&dead, "at_once_max = 16"));
    let beta = Key::new(&home);
    let text = std::fs::read_to_string(home.work().join("callboard.toml")).unwrap();
    let of_beta = format!(
        "{text}[[tenant]]\nid = \"beta\"\nkey_sha256 = \"{}\"\n[tenant.webhook]\nurl = \"{}\"\nsecret_file = \"hook-of-beta\"\n",
        beta.hash,
        well.url()
    );
    configure(&home, &of_beta);
    let served = Served::start(&home, &[]);

    for n in 0..20 {
        round(&served, &acme, &format!("c{n}")).await;
    }
    dead.requests_came(1).await;
    for n in 0..20 {
        round(&served, &beta, &format!("c{n}")).await;
    }
    well.replies_done(20).await;

    assert_eq!(dead.requests().len(), 1, "one call until it answers");
    let tenants: Vec<Value> = well
        .requests()
        .iter()
        .map(|call| call.json()["data"]["tenant"].clone())
        .collect();
    assert_eq!(tenants, vec![json!("beta"); 20]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_not_followed_and_a_receiver_that_is_not_allowed_is_not_called() {
    let target = ModelServer::start([Reply::status(200)]).await;
    let to = target.url();
    let receiver = ModelServer::start([Reply::status(307).header("location", &to)]).await;
    let (home, _, acme) = host(&webhook(&receiver, "tries_max = 1"));
    let served = Served::start(&home, &[]);

    round(&served, &acme, "c").await;
    served.wait_for_log("a webhook was given up");

    assert_eq!((receiver.requests().len(), target.connections()), (1, 0));
    served.stop();
    let text = std::fs::read_to_string(home.work().join("callboard.toml")).unwrap();
    configure(&home, &text.replace("allow_hosts = [\"127.0.0.1\"]", ""));
    let refused = home.run(&["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(
        refused
            .err
            .contains("not public (loopback); `[webhook] allow_hosts` permits more"),
        "{}",
        refused.err
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_secret_of_a_webhook_is_printed_nowhere() {
    let receiver = ModelServer::start([Reply::status(500)]).await;
    let (home, admin, acme) = host(&webhook(&receiver, "tries_max = 1"));
    let mut command = home.command(&["--log", "trace", "serve", "--listen", "127.0.0.1:0"]);
    command.env("HOOK_OF_GAMMA", OTHER);
    let served = Served::of(command);
    let receiver_of_gamma = json!({
        "webhook": { "url": receiver.url(), "secret_env": "HOOK_OF_GAMMA" },
    });
    let put = served
        .ask(
            Method::PUT,
            "/v1/admin/tenants/gamma",
            &admin.key,
            Some(receiver_of_gamma),
        )
        .await;
    assert_eq!(put.status, StatusCode::CREATED, "{put:?}");

    round(&served, &acme, "c").await;
    served.wait_for_log("a webhook was given up");
    // A prompt that contains a secret is no way out either: the error about it is masked.
    let path = format!("/v1/conversations/c/{}", OTHER.trim_start_matches("whsec_"));
    let unknown = served.get(&path, &acme.key).await;
    let shown = served.get("/v1/admin/tenants", &admin.key).await;
    let ran = served.stop();

    let printed = home.run(&["config", "show"]);
    let texts = [
        ran.err,
        ran.out,
        printed.out,
        printed.err,
        shown.body.to_string(),
        unknown.body.to_string(),
    ];
    let secrets = [SECRET, OTHER].map(|secret| secret.trim_start_matches("whsec_"));
    for text in &texts {
        assert!(
            secrets.iter().all(|secret| !text.contains(secret)),
            "{text}"
        );
    }
    std::fs::write(home.work().join("hook"), "whsec_tooshort").unwrap();
    let refused = home.run(&["config", "check"]);
    assert!(!refused.err.contains("tooshort"), "{}", refused.err);
    assert!(
        refused.err.contains("24 to 64 bytes in base64"),
        "{}",
        refused.err
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_is_informed_of_the_events_that_it_is_configured_for() {
    let model = ModelServer::start([
        Reply::events(anthropic_tool("weather", &json!({ "city": "Oslo" }))),
        Reply::events(anthropic_text("Take an umbrella.")),
    ])
    .await;
    let receiver = ModelServer::start([Reply::status(200)]).await;
    let (home, _, acme) = host(&webhook(&receiver, ""));
    std::fs::write(home.work().join("key"), "sk-test-not-a-real-key").unwrap();
    let text = std::fs::read_to_string(home.work().join("callboard.toml")).unwrap();
    let provider = format!(
        "kind = \"anthropic\"\nbase_url = \"{}\"\napi_key_file = \"key\"\nmodel = \"claude-own-1\"\n",
        model.url()
    );
    configure(
        &home,
        &format!(
            "{}[tenant.webhook]\nevents = [\"client_tool_call\", \"failed\", \"interrupted\"]\n{}",
            text.replace("kind = \"offline\"\n", &provider)
                .split_once("[webhook]")
                .unwrap()
                .0,
            webhook(&receiver, "events = [\"finished\"]"),
        ),
    );
    let served = Served::start(&home, &[]);
    let prompt = json!({
        "content": "Do I need an umbrella?",
        "tools": [{ "name": "weather", "description": "The weather of a city.",
            "input_schema": { "type": "object", "properties": { "city": { "type": "string" } } } }],
    });
    let path = "/v1/conversations/c";
    let send = format!("{path}/messages");
    let sent = served
        .ask_with(
            Method::POST,
            &send,
            &acme.key,
            Some(prompt),
            &[("prefer", "respond-async")],
        )
        .await;
    assert_eq!(sent.status, StatusCode::ACCEPTED, "{sent:?}");
    receiver.requests_came(1).await;

    let call = receiver.requests()[0].json();
    assert_eq!(call["type"], "round.client_tool_call");
    assert_eq!(call["data"]["round_id"], sent.body["round_id"]);
    let waits_for = &call["data"]["waits_for"];
    assert_eq!(
        (
            &waits_for["kind"],
            &waits_for["tool_call_id"],
            &waits_for["name"]
        ),
        (&json!("client"), &json!("t1"), &json!("weather"))
    );
    let interrupt = format!("{path}/interrupt");
    served.ask(Method::POST, &interrupt, &acme.key, None).await;
    receiver.requests_came(2).await;
    let call = receiver.requests()[1].json();
    assert_eq!(call["type"], "round.interrupted");
    // A round that ends well is not among the tenant's events, although it is among the host's, and
    // an answer without a conversation is no round that anyone waits for.
    round(&served, &acme, "d").await;
    let door = "/openai/v1/chat/completions";
    let chat =
        json!({ "model": "claude-own-1", "messages": [{ "role": "user", "content": "Hello" }] });
    let answer = served.ask(Method::POST, door, &acme.key, Some(chat)).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    let late = json!({ "content": "Hello", "deadline_ms": 1 });
    model.script([Reply::status(200).delay(Duration::from_secs(60))]);
    served
        .ask(
            Method::POST,
            "/v1/conversations/e/messages",
            &acme.key,
            Some(late),
        )
        .await;
    receiver.requests_came(3).await;
    let call = receiver.requests()[2].json();
    assert_eq!(
        (
            &call["type"],
            &call["data"]["conversation_id"],
            &call["data"]["error"]["code"]
        ),
        (&json!("round.failed"), &json!("e"), &json!("deadline"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_end_after_timeout_s_and_beyond_pending_max_the_oldest_are_given_up() {
    let receiver = ModelServer::start([Reply::status(200).delay(Duration::from_secs(600))]).await;
    let (home, admin, acme) = host(&webhook(&receiver, "timeout_s = 0.2\npending_max = 2"));
    let served = Served::start(&home, &[]);

    for n in 0..4 {
        round(&served, &acme, &format!("c{n}")).await;
    }
    receiver.requests_came(5).await; // The usual 15 s are longer than this waits.
    served.stop();
    let served = Served::start(&home, &[]);
    served.wait_for_log("too many waited");

    let shown = counts(&served, &admin, "acme").await;
    assert_eq!(
        (&shown["given_up"], &shown["pending"]),
        (&json!(2), &json!(2))
    );
    wait_for("the receiver counts as failing", || {
        served.err().contains("does not answer")
    });
}
