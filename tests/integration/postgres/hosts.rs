//! Several hosts, each with a data folder of its own as on machines of their own, on one database:
//! one serves, and another takes over when it ends; or all serve, each its own conversations.

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
pub fn database(server: &Server, name: &str) -> String {
    server.execute(&format!("CREATE DATABASE {name}"));
    server.url().replace("/postgres", &format!("/{name}"))
}

/// A home whose host serves one tenant over a model and a database.
fn home(model: &ModelServer, database: &str, hash: &str) -> Home {
    let tenant = format!("[[tenant]]\nid = \"acme\"\nkey_sha256 = \"{hash}\"\n");
    configured(model, database, &tenant)
}

/// A home whose host works over a model and a database, with more of its configuration.
pub fn configured(model: &ModelServer, database: &str, more: &str) -> Home {
    let home = Home::new();
    std::fs::write(home.work().join("key"), "sk-test-not-a-real-key").unwrap();
    configure(
        &home,
        &format!(
            "[store]\nurl = \"{database}\"\n[[provider]]\nname = \"slow\"\nkind = \"anthropic\"\nbase_url = \"{}\"\n\
             api_key_file = \"key\"\n{more}",
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

/// A host that others on the database reach.
pub fn with_peers(model: &ModelServer, database: &str, hash: &str) -> (Home, Served) {
    limited_with_peers(model, database, hash, "")
}

/// Such a host, with more about its provider.
fn limited_with_peers(
    model: &ModelServer,
    database: &str,
    hash: &str,
    provider: &str,
) -> (Home, Served) {
    let tenant = format!("{provider}[[tenant]]\nid = \"acme\"\nkey_sha256 = \"{hash}\"\n");
    let home = configured(model, database, &tenant);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let file = home.work().join("callboard.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let host = format!("[host]\npeer_address = \"http://{address}\"\nlisten = \"{address}\"\n");
    std::fs::write(&file, host + &text).unwrap();
    let served = Served::with(&home, &["serve"]);
    (home, served)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hosts_behind_a_balancer_are_one_service() {
    let Some(server) = server("two_hosts_behind_a_balancer_are_one_service") else {
        return;
    };
    let database = database(&server, "balanced");
    let model = ModelServer::answering(|_| Reply::events(anthropic_text("Yes."))).await;
    let acme = Key::new(&Home::new());
    let (one, first) = with_peers(&model, &database, &acme.hash);
    let (_two, second) = with_peers(&model, &database, &acme.hash);
    let hosts = [&first, &second];

    for round in 0..10 {
        for conversation in ["a", "b", "c"] {
            let path = format!("/v1/conversations/{conversation}/messages");
            let body = Some(json!({ "content": format!("Question {round}?") }));
            let host = hosts[round % 2];
            let answer = host.ask(Method::POST, &path, &acme.key, body).await;
            assert_eq!(
                answer.status,
                StatusCode::OK,
                "{round} {conversation} {answer:?}"
            );
            assert_eq!(answer.body["text"], "Yes.");
            // What was acknowledged is there on both.
            let other = hosts[(round + 1) % 2].get(&path, &acme.key).await;
            assert_eq!(
                other.body["messages"].as_array().unwrap().len(),
                2 * (round + 1)
            );
        }
    }
    // A change through the host that does not own the conversation.
    let gone = second
        .ask(Method::DELETE, "/v1/conversations/a", &acme.key, None)
        .await;
    assert_eq!(gone.status, StatusCode::NO_CONTENT, "{gone:?}");
    let unknown = first.get("/v1/conversations/a", &acme.key).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    let checked = one.run(&["doctor"]);
    let version = env!("CARGO_PKG_VERSION");
    for text in [
        "2 hosts serve it now",
        &format!("{} {version}, ", first.url()),
        "the database\n",
        "connections to the server are in use",
    ] {
        assert!(checked.out.contains(text), "{text}: {}", checked.out);
    }
    // An orderly stop leaves the conversations to the other host at once.
    let ended = first.stop();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let path = "/v1/conversations/b/messages";
    let body = Some(json!({"content": "Still there?"}));
    let answer = second.ask(Method::POST, path, &acme.key, body).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_of_a_killed_host_goes_on_at_another_and_its_watcher_sees_the_end() {
    let test = "a_round_of_a_killed_host_goes_on_at_another_and_its_watcher_sees_the_end";
    let Some(server) = server(test) else {
        return;
    };
    let database = database(&server, "killed");
    let begun: String = sse(anthropic_text("So far").iter().take(3));
    let model = ModelServer::start([Reply::stream().send(begun).then(Step::Stall)]).await;
    let acme = Key::new(&Home::new());
    let (_one, first) = with_peers(&model, &database, &acme.hash);
    let (_two, second) = with_peers(&model, &database, &acme.hash);
    assert_eq!(say(&first, &acme.key, "Go.").await, StatusCode::ACCEPTED);
    model.requests_came(1).await;
    // Through the other host: its stream is the owner's.
    let events = "/v1/conversations/c/events";
    let watched = tokio::time::timeout(
        std::time::Duration::from_secs(1),
        second.text(Method::GET, events, &acme.key, None, &[]),
    );
    assert!(watched.await.is_err(), "the round runs");

    model.script([Reply::events(anthropic_text("Taken up."))]);
    let killed = std::time::Instant::now();
    first.signal("KILL");
    drop(first);

    crate::cli::wait_for("the other host's call", || model.requests().len() == 2);
    let took = killed.elapsed();
    let round = second.get("/v1/conversations/c/rounds", &acme.key).await;
    let round = round.body["rounds"][0]["round_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let path = format!("{events}?round={round}&after=0.0.0");
    let seen = second.text(Method::GET, &path, &acme.key, None, &[]).await;
    for text in ["turn_restarted", "Taken up.", "round_finished"] {
        assert!(seen.contains(text), "{text}: {seen}");
    }
    assert!(took.as_secs() < 16, "taken over after {took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_was_sent_on_ends_when_the_conversation_moves_again() {
    let test = "a_stream_that_was_sent_on_ends_when_the_conversation_moves_again";
    let Some(server) = server(test) else {
        return;
    };
    let database = database(&server, "moved");
    let model = ModelServer::answering(|_| Reply::events(anthropic_text("Yes."))).await;
    let acme = Key::new(&Home::new());
    let (_one, first) = with_peers(&model, &database, &acme.hash);
    let (_two, second) = with_peers(&model, &database, &acme.hash);
    let path = "/v1/conversations/c/messages";
    let body = Some(json!({"content": "?"}));
    let answer = first.ask(Method::POST, path, &acme.key, body).await;
    assert_eq!(answer.status, StatusCode::OK);
    let events = "/v1/conversations/c/events";
    let watch = second.text(Method::GET, events, &acme.key, None, &[]);
    let moves = async {
        // As if it had slept on the first host and woken on the second.
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        let owner = "UPDATE callboard.head SET owner = \
             (SELECT boot FROM callboard.host h WHERE h.boot <> head.owner)";
        server.execute_in(&database, owner);
    };

    let watched = tokio::time::timeout(std::time::Duration::from_secs(10), async {
        tokio::join!(watch, moves).0
    });

    assert!(
        watched.await.is_ok(),
        "the stream goes on at a host that is no owner"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_is_stopped_keeps_no_lock_and_no_client_of_another_host() {
    let test = "a_host_that_is_stopped_keeps_no_lock_and_no_client_of_another_host";
    let Some(server) = server(test) else {
        return;
    };
    let database = database(&server, "frozen");
    let model = ModelServer::answering(|_| Reply::events(anthropic_text("Yes."))).await;
    let acme = Key::new(&Home::new());
    let (_one, first) = with_peers(&model, &database, &acme.hash);
    let (_two, second) = with_peers(&model, &database, &acme.hash);
    let ask = |id: &str| format!("/v1/conversations/{id}/messages");
    let body = || Some(json!({"content": "?"}));
    for id in ["c", "d"] {
        let answer = first.ask(Method::POST, &ask(id), &acme.key, body()).await;
        assert_eq!(answer.status, StatusCode::OK);
    }
    // The host is stopped in the middle of a deletion, which has locked a row.
    server.execute_in(
        &database,
        "CREATE FUNCTION callboard.slow() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN PERFORM pg_sleep(1); RETURN NULL; END $$; \
         CREATE TRIGGER slow BEFORE DELETE ON callboard.snapshot \
         FOR EACH STATEMENT EXECUTE FUNCTION callboard.slow()",
    );
    let deletion = first.ask(Method::DELETE, "/v1/conversations/d", &acme.key, None);
    let events = second.text(
        Method::GET,
        "/v1/conversations/c/events",
        &acme.key,
        None,
        &[],
    );
    let frozen = async {
        let sleeps = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        while server.execute_in(&database, sleeps).trim() != "1" {
            tokio::task::yield_now().await;
        }
        first.signal("STOP");
        // Fails after 9 s.
        let lock = "SET lock_timeout = 9000; SELECT count(*) FROM (SELECT 1 FROM callboard.head FOR UPDATE) AS h";
        let heads = server.execute_in(&database, lock);
        // Its owner does not answer, and the conversation is free when it is taken for dead.
        let answer = second.ask(Method::POST, &ask("c"), &acme.key, body()).await;
        (heads, answer)
    };
    let all = tokio::time::timeout(std::time::Duration::from_secs(40), async {
        tokio::select! {
            _ = deletion => panic!("the host was stopped"),
            both = async { tokio::join!(events, frozen) } => both,
        }
    });
    let all = all.await;
    first.signal("CONT");
    let (_, (heads, answer)) = all.expect("the client of another host waits");

    assert_eq!(heads.trim().lines().last(), Some("2"));
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{answer:?}");
    assert_eq!(answer.body["code"], "owner_unreachable");
    let again = second.ask(Method::POST, &ask("c"), &acme.key, body()).await;
    assert_eq!(again.status, StatusCode::OK, "{again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_keep_the_limits_of_a_provider_together_and_the_last_one_has_them_alone() {
    let test = "hosts_keep_the_limits_of_a_provider_together_and_the_last_one_has_them_alone";
    let Some(server) = server(test) else {
        return;
    };
    let database = database(&server, "limits");
    let begun: String = sse(anthropic_text("So far").iter().take(3));
    let model =
        ModelServer::answering(move |_| Reply::stream().send(begun.clone()).then(Step::Stall))
            .await;
    let acme = Key::new(&Home::new());
    let limited = "concurrency = 4\n";
    let (_one, first) = limited_with_peers(&model, &database, &acme.hash, limited);
    let (_two, second) = limited_with_peers(&model, &database, &acme.hash, limited);
    first.wait_for_log("limits are divided between 2 hosts");

    for (host, name) in [(&first, "one"), (&second, "two")] {
        for n in 0..6 {
            let path = format!("/v1/conversations/{name}-{n}/messages");
            let background = [("prefer", "respond-async")];
            let body = Some(json!({"content": "Go."}));
            let answer = host.ask_with(Method::POST, &path, &acme.key, body, &background);
            assert_eq!(answer.await.status, StatusCode::ACCEPTED);
        }
    }
    model.requests_came(4).await;
    // Every prompt is accepted, and what could start did.
    let waiting = async |host: &Served, path: &str| {
        let seen = host.get(path, &acme.key).await.body.to_string();
        assert!(
            seen.contains("waiting") || seen.contains("running"),
            "{seen}"
        );
    };
    waiting(&first, "/v1/conversations/one-5").await;
    waiting(&second, "/v1/conversations/two-5").await;
    assert_eq!(model.requests().len(), 4, "two of each host");

    second.signal("KILL");
    drop(second);

    first.wait_for_log("limits are divided between 1 host");
    // The four calls of one host, and the two that ended with the other one.
    model.requests_came(6).await;
}
