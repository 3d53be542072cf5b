//! Calls beyond what the connections to a provider carry: they wait in the fair queue and say so.

use std::{sync::Arc, time::Duration};

use callboard::{
    EventKind, Host,
    model_gateway::ProviderWait,
    providers::{Network, OpenAi},
    tls::Trust,
};

use crate::support::{
    h2_server::{H2Server, Order, React},
    model_server::{openai_text, sse},
};

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_call_without_a_connection_is_queued_and_takes_no_place_among_the_running() {
    let events = openai_text("hello");
    let half = sse(&events[..1]);
    let whole = sse(&events);
    let server = H2Server::start(2, move |asked| match asked.nth {
        0 => React::Whole(whole.clone()),
        _ => React::Open(half.clone()),
    })
    .await;
    let authorities = Some(server.ca_pem().as_bytes().to_vec());
    let provider = OpenAi::builder()
        .api_key("sk-test-not-a-real-key")
        .base_url(format!("{}/v1", server.url()))
        .network(Network {
            trust: Trust {
                authorities,
                ..Trust::default()
            },
            connections_max: 1,
            ..Network::default()
        })
        .build()
        .unwrap();
    let host = Host::builder()
        .shared_provider(Arc::new(provider))
        .build()
        .await
        .unwrap();
    let send = async |name: &str| {
        let conversation = host.tenant("acme").conversation(name);
        conversation.send("hi").await.unwrap()
    };
    // The first answer shows that the connection carries two calls.
    soon(send("first").await.outcome()).await.unwrap();
    let running = [send("a").await, send("b").await];
    let seen = soon(server.saw(3)).await;

    let mut waiting = send("c").await;
    let position = soon(async {
        loop {
            if let EventKind::Queued { position } = waiting.next().await.unwrap().kind {
                return position;
            }
        }
    })
    .await;

    assert_eq!(position, 1);
    let status = host.gateways().remove(0).1;
    assert_eq!(
        (status.running, status.waiting, status.waits_for),
        (2, 1, Some(ProviderWait::Connections))
    );
    let finish = |stream| Order::Finish {
        stream,
        text: sse(&openai_text("hello")[1..]),
    };
    server.order(0, finish(seen[1].stream)).await;
    let seen = soon(server.saw(4)).await;
    for asked in &seen[2..] {
        server.order(0, finish(asked.stream)).await;
    }
    for mut reply in running.into_iter().chain([waiting]) {
        assert_eq!(soon(reply.outcome()).await.unwrap().text, "hello");
    }
}
