//! The database is away for longer than a host may be silent, while several hosts work.

use std::time::Duration;

use callboard_actors::testing::TestSize;
use reqwest::{Method, StatusCode};
use serde_json::json;

use super::{
    hosts::{database, with_peers},
    server::own_server,
};
use crate::{
    cli::{Home, serve::Key},
    support::model_server::{ModelServer, Reply, anthropic_text},
};

#[tokio::test(flavor = "multi_thread")]
async fn after_a_fail_over_each_host_goes_on_with_its_own_rounds() {
    let Some(server) = own_server("after_a_fail_over_each_host_goes_on_with_its_own_rounds") else {
        return;
    };
    let database = database(&server, "away");
    let late = |_: &serde_json::Value| {
        Reply::events(anthropic_text("Late.")).delay(Duration::from_secs(3))
    };
    let model = ModelServer::answering(late).await;
    let acme = Key::new(&Home::new());
    let (_one, first) = with_peers(&model, &database, &acme.hash);
    let (_two, second) = with_peers(&model, &database, &acme.hash);
    let is_long = TestSize::is_long();
    let outages: &[u64] = if is_long { &[30, 120] } else { &[15] };
    for (turn, seconds) in (1..).zip(outages) {
        for (host, name) in [(&first, "a"), (&second, "b")] {
            let path = format!("/v1/conversations/{name}/messages");
            let body = Some(json!({"content": "Go."}));
            let background = [("prefer", "respond-async")];
            let answer = host.ask_with(Method::POST, &path, &acme.key, body, &background);
            assert_eq!(answer.await.status, StatusCode::ACCEPTED);
        }
        model.requests_came(2 * turn).await;

        // The answers come while no entry can be stored.
        server.crash();
        tokio::time::sleep(Duration::from_secs(*seconds)).await;
        server.start();

        for (host, name) in [(&first, "b"), (&second, "a")] {
            let path = format!("/v1/conversations/{name}/messages");
            crate::cli::wait_for("the answer", || {
                let asked = host.get(&path, &acme.key);
                let runtime = tokio::runtime::Handle::current();
                let history = tokio::task::block_in_place(|| runtime.block_on(asked)).body;
                history.to_string().matches("Late.").count() == turn
            });
        }
        // Neither took the other one for dead, so no call was made twice.
        assert_eq!(model.requests().len(), 2 * turn, "{seconds} s");
    }
}
