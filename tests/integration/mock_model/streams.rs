//! The scripted HTTP/2 server of the tests does what its script says, as a real client sees it.

use reqwest::Client;

use crate::support::{
    h2_server::{Asked, H2Server, INTERNAL_ERROR, NO_ERROR, Order, REFUSED_STREAM, React},
    https::client,
};

fn client_of(server: &H2Server) -> Client {
    client(server.ca_pem(), &["h2"])
}

async fn ask(server: &H2Server, client: &Client) -> reqwest::Result<String> {
    let request = client.post(server.url()).body("hello");
    request.send().await?.text().await
}

/// Asks in a task, so that the test goes on.
fn asking(server: &H2Server, client: &Client) -> tokio::task::JoinHandle<reqwest::Result<String>> {
    let request = client.post(server.url()).body("hello");
    tokio::spawn(async move { request.send().await?.text().await })
}

#[tokio::test]
async fn a_refused_stream_is_sent_again_on_the_same_connection() {
    let server = H2Server::start(100, |asked| match asked.nth {
        0 => React::Reset(REFUSED_STREAM),
        1 => React::Whole("data: well\n\n".into()),
        _ => React::Reset(INTERNAL_ERROR),
    })
    .await;
    let client = client_of(&server);

    assert_eq!(ask(&server, &client).await.unwrap(), "data: well\n\n");
    assert!(ask(&server, &client).await.is_err());

    let at = |nth, stream| Asked {
        connection: 0,
        stream,
        nth,
    };
    assert_eq!(server.seen(), [at(0, 1), at(1, 3), at(2, 5)]);
}

#[tokio::test]
async fn a_goodbye_moves_streams_after_the_last_and_leaves_those_before() {
    let server = H2Server::start(100, |asked| match asked.nth {
        0 => React::Open("data: one\n\n".into()),
        1 => React::GoAway {
            last_stream: 1,
            code: NO_ERROR,
        },
        _ => React::Whole("data: two\n\n".into()),
    })
    .await;
    let client = client_of(&server);
    let before = asking(&server, &client);
    server.saw(1).await;

    let after = ask(&server, &client).await.unwrap();
    let finish = Order::Finish {
        stream: 1,
        text: "data: end\n\n".into(),
    };
    server.order(0, finish).await;

    assert_eq!(after, "data: two\n\n");
    assert_eq!(before.await.unwrap().unwrap(), "data: one\n\ndata: end\n\n");
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn a_raised_limit_of_streams_lets_waiting_requests_go() {
    let server = H2Server::start(1, |asked| match asked.nth {
        0 => React::Whole("data: first\n\n".into()),
        _ => React::Silent,
    })
    .await;
    let client = client_of(&server);
    ask(&server, &client).await.unwrap();
    let waiting: Vec<_> = (0..3).map(|_| asking(&server, &client)).collect();
    server.saw(2).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(server.seen().len(), 2);

    server.order(0, Order::StreamsMax(3)).await;

    assert_eq!(server.saw(4).await.len(), 4);
    server.order(0, Order::Kill).await;
    for call in waiting {
        assert!(call.await.unwrap().is_err());
    }
}
