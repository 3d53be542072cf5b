//! Several hosts, each with a data folder of its own as on machines of their own, on one database:
//! one serves, and another takes over when it ends.

use reqwest::{Method, StatusCode};
use serde_json::json;

use super::server::{Server, server};
use crate::{
    cli::{
        Home,
        serve::{Key, Served, configure},
    },
    support::model_server::{ModelServer, Reply, Step, anthropic_text, sse},
};

/// A new database of the server.
fn database(server: &Server, name: &str) -> String {
    server.execute(&format!("CREATE DATABASE {name}"));
    server.url().replace("/postgres", &format!("/{name}"))
}

/// A home whose host serves one tenant over a model and a database.
fn home(model: &ModelServer, database: &str, hash: &str) -> Home {
    let home = Home::new();
    std::fs::write(home.work().join("key"), "sk-test-not-a-real-key").unwrap();
    configure(
        &home,
        &format!(
            "[store]\nurl = \"{database}\"\n[[provider]]\nname = \"slow\"\nkind = \"anthropic\"\nbase_url = \"{}\"\n\
             api_key_file = \"key\"\n[[tenant]]\nid = \"acme\"\nkey_sha256 = \"{hash}\"\n",
            model.url(),
        ),
    );
    home
}

async fn say(served: &Served, key: &str, text: &str) -> StatusCode {
    let body = Some(json!({"content": text}));
    let background = [("prefer", "respond-async")];
    let path = "/v1/conversations/c/messages";
    let answer = served.ask_with(Method::POST, path, key, body, &background);
    answer.await.status
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_host_is_refused_until_the_first_has_stopped() {
    let Some(server) = server("a_second_host_is_refused_until_the_first_has_stopped") else {
        return;
    };
    let database = database(&server, "refused");
    let model = ModelServer::start([
        Reply::events(anthropic_text("One.")),
        Reply::events(anthropic_text("Two.")),
    ])
    .await;
    let acme = Key::new(&Home::new());
    let [one, two] = [(); 2].map(|()| home(&model, &database, &acme.hash));
    let first = Served::start(&one, &[]);
    first.wait_for_log("store postgres://127.0.0.1");

    let refused = two.run(&["serve", "--listen", "127.0.0.1:0"]);
    let checked = two.run(&["doctor"]);

    assert_eq!(refused.code, Some(1), "{}", refused.err);
    assert!(
        refused
            .err
            .contains("another host serves postgres://127.0.0.1"),
        "{}",
        refused.err
    );
    assert!(
        checked.out.contains("a host serves it now"),
        "{}",
        checked.out
    );
    let body = Some(json!({"content": "First?"}));
    let path = "/v1/conversations/c/messages";
    let answer = first.ask(Method::POST, path, &acme.key, body).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");

    first.stop();
    let second = Served::start(&two, &[]);

    let body = Some(json!({"content": "Second?"}));
    let answer = second.ask(Method::POST, path, &acme.key, body).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    let history = second.get(path, &acme.key).await.body.to_string();
    for text in ["First?", "One.", "Second?", "Two."] {
        assert!(history.contains(text), "{history}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_takes_over_the_rounds_of_a_host_that_was_killed() {
    let Some(server) = server("a_standby_takes_over_the_rounds_of_a_host_that_was_killed") else {
        return;
    };
    let database = database(&server, "standby");
    let begun: String = sse(anthropic_text("So far").iter().take(3));
    let model = ModelServer::start([Reply::stream().send(begun).then(Step::Stall)]).await;
    let acme = Key::new(&Home::new());
    let [one, two] = [(); 2].map(|()| home(&model, &database, &acme.hash));
    let first = Served::start(&one, &[]);
    let standby = std::thread::spawn(move || {
        let served = Served::start(&two, &["--standby"]);
        (two, served)
    });
    assert_eq!(say(&first, &acme.key, "Go.").await, StatusCode::ACCEPTED);
    model.requests_came(1).await;

    first.signal("KILL");
    drop(first);
    model.script([Reply::events(anthropic_text("Taken up."))]);
    let (_home, second) = tokio::task::block_in_place(|| standby.join().unwrap());

    second.wait_for_log("interrupted rounds resumed: 1");
    model.requests_came(2).await;
    let path = "/v1/conversations/c/messages";
    let mut history = String::new();
    crate::cli::wait_for("the answer", || {
        let asked = second.get(path, &acme.key);
        let answer =
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(asked));
        history = answer.body.to_string();
        history.contains("Taken up.")
    });
    assert!(history.contains("Go."), "{history}");
}
