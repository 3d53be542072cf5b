//! Commands that ask a running host: `--server URL --key KEY`.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::{Home, Served, wait_for};

/// A host with a conversation, and its key.
async fn served(home: &Home) -> (Served, String) {
    let served = Served::start(home, &["--workspace", ".", "--provider", "offline"]);
    wait_for("the key", || served.out().ends_with('\n'));
    let key = served.out().trim().to_owned();
    for prompt in ["Where is RETRY_CAP_MS?", "And its tests?"] {
        let answer = served
            .ask(
                Method::POST,
                "/v1/conversations/one/messages",
                &key,
                Some(json!({ "content": prompt })),
            )
            .await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    }
    (served, key)
}

/// A server that answers every request with this status and body.
fn other_server(status: &'static str, body: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut peer in listener.incoming().map_while(Result::ok).take(8) {
            let _ = peer.read(&mut [0; 4096]);
            let length = body.len();
            let _ = write!(
                peer,
                "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
            );
        }
    });
    url
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_host_shows_what_its_store_shows_after_it_stopped() {
    const COMMANDS: [&[&str]; 8] = [
        &["sessions", "list", "--json"],
        &["sessions", "list"],
        &["sessions", "export", "one"],
        &["sessions", "show", "one"],
        &["sessions", "show", "one", "--json"],
        &["sessions", "show", "one", "--debug"],
        &["metrics", "one", "--json"],
        &["metrics", "--json"],
    ];
    let home = Home::new();
    let (served, key) = served(&home).await;
    let asked = COMMANDS.map(|command| {
        let flags = ["--server", served.url(), "--key", &key];
        let asked = home.run(&[command, &flags[..]].concat()).well();
        assert!(!asked.err.contains(&key), "{}", asked.err);
        asked.out
    });
    let rounds = home
        .run(&[
            "sessions",
            "show",
            "one",
            "--rounds",
            "--server",
            served.url(),
            "--key",
            &key,
        ])
        .well()
        .json();
    served.stop();
    let stored_rounds = home
        .run(&["sessions", "show", "one", "--rounds", "--tenant", "default"])
        .well()
        .json();

    for (command, asked) in COMMANDS.iter().zip(asked) {
        let stored = home.run(&[command, &["--tenant", "default"][..]].concat());
        assert_eq!(asked, stored.well().out, "{command:?}");
    }
    assert_eq!(rounds["rounds"].as_array().map(Vec::len), Some(2));
    assert_eq!(
        rounds["rounds"][0]["user_message"],
        "Where is RETRY_CAP_MS?"
    );
    assert_eq!(
        (
            &stored_rounds["rounds"],
            &stored_rounds["context_window_limit"],
            &stored_rounds["compression_threshold"]
        ),
        (&rounds["rounds"], &json!(200_000), &json!(0.8))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_goes_on_with_a_conversation_of_a_running_host() {
    let home = Home::new();
    let (served, key) = served(&home).await;
    let attach = |id: &str, key: &str, lines: &str| {
        let args = [
            "chat",
            "--attach",
            id,
            "--server",
            served.url(),
            "--key",
            key,
        ];
        home.run_with_input(&args, lines)
    };

    let ran = attach("one", &key, "Where is RETRY_CAP_MS?\n\n/quit\n").well();
    let missing = attach("nowhere", &key, "Hello\n");
    let refused = attach("one", "cb_not-a-real-key", "Hello\n");
    let alone = home.run(&["chat", "--server", served.url()]);

    assert!(ran.out.contains("src/retry.rs:4"), "{ran:?}");
    assert!(
        ran.err.contains("one at http://") && !ran.err.contains(&key),
        "{ran:?}"
    );
    let answer = served
        .ask(Method::GET, "/v1/conversations/one/rounds", &key, None)
        .await;
    let rounds = answer.body["rounds"].as_array().map(Vec::len);
    assert_eq!(rounds, Some(3), "{answer:?}");
    assert!(missing.err.contains("`nowhere` not found"), "{missing:?}");
    assert!(
        refused.err.contains("does not accept this key"),
        "{refused:?}"
    );
    assert_eq!(
        [missing.code, refused.code, alone.code],
        [1, 1, 2].map(Some)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_an_attached_chat_lacks_is_refused_and_not_sent() {
    let home = Home::new();
    let (served, key) = served(&home).await;
    let rounds = async || {
        let path = "/v1/conversations/one/rounds";
        served.ask(Method::GET, path, &key, None).await.body
    };
    let before = rounds().await;

    let args = [
        "chat",
        "--attach",
        "one",
        "--server",
        served.url(),
        "--key",
        &key,
    ];
    let ran = home.run_with_input(&args, "/model gpt-5\n/nope with words\n");

    for command in ["/model", "/nope"] {
        let line = format!("there is no command {command}; /help lists the commands");
        assert!(ran.err.contains(&line), "{ran:?}");
    }
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{ran:?}");
    assert_eq!(rounds().await, before);
}

/// A page holds a thousand items.
#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_of_several_pages_is_read_whole() {
    let home = Home::new();
    let (served, key) = served(&home).await;
    let messages: Vec<Value> = (0..1300)
        .flat_map(|n| {
            [("user", "asks"), ("assistant", "answers")]
                .map(|(role, does)| json!({ "role": role, "content": format!("{does} {n}") }))
        })
        .collect();
    let answer = served
        .ask(
            Method::PUT,
            "/v1/conversations/long",
            &key,
            Some(json!({ "messages": messages })),
        )
        .await;
    assert_eq!(answer.status, StatusCode::CREATED, "{answer:?}");
    let flags = ["--server", served.url(), "--key", &key];

    let export = home.run(&[&["sessions", "export", "long"], &flags[..]].concat());
    let debug = home.run(&[&["sessions", "show", "long", "--debug"], &flags[..]].concat());

    let taken = export.well().json()["messages"].clone();
    assert_eq!(taken.as_array().map(Vec::len), Some(2600));
    assert_eq!(debug.well().out.lines().count(), 2600);
    assert_eq!(served.stop().code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_repeats_a_page_is_one_line() {
    const PAGE: &str = r#"{"info":{"title":"Callboard","version":"0.1.0"},"messages":[],"next":7}"#;
    let home = Home::new();
    let again = other_server("200 OK", PAGE);

    let ran = home.run(&[
        "sessions",
        "show",
        "one",
        "--debug",
        "--server",
        &again,
        "--key",
        "cb_not-a-real-key",
    ]);

    assert_eq!(ran.code, Some(1), "{}", ran.err);
    let said = "the server repeats a page of session `one`";
    assert!(ran.error().contains(said), "{}", ran.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn server_and_key_come_from_variables_which_a_named_store_outranks() {
    let mut home = Home::new();
    let (served, key) = served(&home).await;
    home.variables = vec![
        ("CALLBOARD_SERVER", served.url().into()),
        ("CALLBOARD_KEY", key),
    ];

    let asked = home.run(&["sessions", "list", "--json"]).well().json();
    let of_tenant = home.run(&["sessions", "list", "--json", "--tenant", "other"]);
    let checked = home.run(&["config", "check"]);

    assert_eq!(asked[0]["conversation_id"], "one");
    assert_eq!(of_tenant.well().json(), Value::Array(Vec::new()));
    assert_eq!(checked.code, Some(0), "{}", checked.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_server_or_key_is_one_line_without_the_key() {
    const KEY: &str = "cb_not-a-real-key";
    const OLD: &str =
        r#"{"info":{"title":"Callboard","version":"0.0.9"},"paths":{},"code":"not_found"}"#;
    let home = Home::new();
    let (served, key) = served(&home).await;
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let old = other_server("404 Not Found", OLD);
    let other = other_server("200 OK", "<html>hello</html>");

    for (server, key, code, said) in [
        (
            closed.as_str(),
            KEY,
            1,
            "no server answers at http://127.0.0.1:",
        ),
        (served.url(), KEY, 1, "does not accept this key"),
        (
            old.as_str(),
            KEY,
            1,
            "is Callboard 0.0.9, too old for this command",
        ),
        (other.as_str(), KEY, 1, "is not Callboard"),
        ("ftp://x", KEY, 2, "--server must be a URL such as"),
        (
            served.url(),
            "cb_not-a real-key",
            2,
            "the key of --key holds white space",
        ),
        (served.url(), key.as_str(), 1, "session `two` not found"),
    ] {
        let ran = home.run(&[
            "sessions", "export", "two", "--server", server, "--key", key,
        ]);
        assert_eq!(
            (ran.code, ran.out.as_str()),
            (Some(code), ""),
            "{}",
            ran.err
        );
        let line = ran.error();
        assert!(line.contains(said) && !line.contains(key), "{line}");
    }
    let without = home.run(&["metrics", "--server", served.url()]);
    let alone = home.run(&["metrics", "--key", KEY]);
    let both = home.run(&[
        "metrics",
        "--server",
        served.url(),
        "--db",
        "x.db",
        "--key",
        KEY,
    ]);
    assert!(without.error().contains("a server needs a tenant's key"));
    assert!(alone.error().contains("--key needs a server") && !alone.err.contains(KEY));
    assert_eq!(
        (both.code, both.err.contains(KEY)),
        (Some(2), false),
        "{}",
        both.err
    );
}
