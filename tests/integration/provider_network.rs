//! How providers reach their servers: connections over TLS, HTTP/2 streams, what becomes of calls
//! when a connection or a stream is lost. `silence` has servers that say nothing, `failures` those
//! that cannot be reached or leave, `over_tls` the contract of providers on TLS, `configured` the
//! settings of a configuration file.

mod silence;
mod failures;
mod over_tls;
mod configured;

use std::{sync::Arc, time::Duration};

use callboard::{
    Host,
    ports::{LlmProvider, ProviderError},
    providers::{Anthropic, Network, OpenAi},
    tls::Trust,
};
use callboard_actors::testing::contract::example_request;
use futures_util::StreamExt;
use tokio_util::sync::CancellationToken;

use crate::support::{
    h2_server::{H2Server, INTERNAL_ERROR, NO_ERROR, Order, REFUSED_STREAM, React},
    model_server::{openai_text, sse},
};

fn whole() -> String {
    sse(openai_text("hello"))
}

fn half() -> String {
    sse(&openai_text("hello")[..1])
}

fn rest() -> String {
    sse(&openai_text("hello")[1..])
}

fn network(server: &H2Server) -> Network {
    Network {
        trust: Trust {
            authorities: Some(server.ca_pem().as_bytes().to_vec()),
            ..Trust::default()
        },
        ..Network::default()
    }
}

fn provider(server: &H2Server, network: Network) -> Arc<OpenAi> {
    Arc::new(
        OpenAi::builder()
            .api_key("sk-test-not-a-real-key")
            .base_url(format!("{}/v1", server.url()))
            .network(network)
            .build()
            .unwrap(),
    )
}

/// Makes a call and reads it to its end.
async fn call(provider: Arc<OpenAi>) -> Result<(), ProviderError> {
    let mut stream = provider
        .stream(example_request(), CancellationToken::new())
        .await?;
    while let Some(batch) = stream.next().await {
        batch?;
    }
    Ok(())
}

fn calls(
    provider: &Arc<OpenAi>,
    count: usize,
) -> Vec<tokio::task::JoinHandle<Result<(), ProviderError>>> {
    (0..count)
        .map(|_| tokio::spawn(call(provider.clone())))
        .collect()
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future)
        .await
        .unwrap()
}

#[tokio::test]
async fn calls_beyond_the_streams_of_one_connection_open_the_next() {
    let server = H2Server::start(10, |asked| match asked.nth {
        0 => React::Whole(whole()),
        _ => React::Open(half()),
    })
    .await;
    let provider = provider(&server, network(&server));
    // The first call learns how many streams the server allows.
    assert_eq!(soon(call(provider.clone())).await, Ok(()));

    let more = calls(&provider, 35);
    let seen = soon(server.saw(36)).await;

    // All are under way at the same time, on as many connections as they need.
    assert_eq!(server.connections(), 4);
    for connection in 0..4 {
        let streams = seen[1..]
            .iter()
            .filter(|asked| asked.connection == connection);
        assert!(streams.count() <= 10);
    }
    for asked in &seen[1..] {
        let finish = Order::Finish {
            stream: asked.stream,
            text: rest(),
        };
        server.order(asked.connection, finish).await;
    }
    for call in more {
        assert_eq!(soon(call).await.unwrap(), Ok(()));
    }
    // Connections are used again.
    let again = calls(&provider, 30);
    soon(server.saw(66)).await;
    assert_eq!(server.connections(), 4);
    drop(again);
}

#[tokio::test]
async fn a_cold_burst_opens_a_connection_for_each_hundred_calls() {
    let server = H2Server::start(100, |_| React::Whole(whole())).await;
    let provider = provider(&server, network(&server));

    for call in calls(&provider, 250) {
        assert_eq!(soon(call).await.unwrap(), Ok(()));
    }

    assert!(server.connections() <= 3, "{}", server.connections());
}

#[tokio::test]
async fn a_thousand_calls_run_at_once_on_ten_connections() {
    let server = H2Server::start(100, |_| React::Open(half())).await;
    let provider = provider(&server, network(&server));

    let calls = calls(&provider, 1000);
    let seen = soon(server.saw(1000)).await;

    assert_eq!(server.connections(), 10);
    for asked in seen {
        let finish = Order::Finish {
            stream: asked.stream,
            text: rest(),
        };
        server.order(asked.connection, finish).await;
    }
    for call in calls {
        assert_eq!(soon(call).await.unwrap(), Ok(()));
    }
}

#[tokio::test]
async fn a_lost_connection_ends_its_own_calls_and_one_of_them_reports_it() {
    let server = H2Server::start(100, |_| React::Open(half())).await;
    let provider = provider(&server, network(&server));
    let calls = calls(&provider, 300);
    let seen = soon(server.saw(300)).await;
    assert_eq!(server.connections(), 3);

    server.order(1, Order::Kill).await;
    for asked in seen.iter().filter(|asked| asked.connection != 1) {
        let finish = Order::Finish {
            stream: asked.stream,
            text: rest(),
        };
        server.order(asked.connection, finish).await;
    }

    let mut ended = [0; 3];
    for call in calls {
        match soon(call).await.unwrap() {
            Ok(()) => ended[0] += 1,
            Err(ProviderError::Connection { .. }) => ended[1] += 1,
            Err(ProviderError::SharedConnection { .. }) => ended[2] += 1,
            Err(other) => panic!("{other:?}"),
        }
    }
    let lost = seen.iter().filter(|asked| asked.connection == 1).count();
    assert_eq!(ended, [300 - lost, 1, lost - 1]);
}

#[tokio::test]
async fn a_stream_that_the_server_resets_ends_one_call() {
    let server = H2Server::start(100, |asked| match asked.nth {
        1 => React::Reset(INTERNAL_ERROR),
        _ => React::Whole(whole()),
    })
    .await;
    let provider = provider(&server, network(&server));

    let results = [
        call(provider.clone()).await,
        call(provider.clone()).await,
        call(provider.clone()).await,
    ];

    assert!(results[0].is_ok() && results[2].is_ok(), "{results:?}");
    assert!(
        matches!(&results[1], Err(ProviderError::Connection { message }) if message.contains("reset")),
        "{results:?}"
    );
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_call_that_the_server_did_not_begin_with_says_so() {
    let refused = H2Server::start(100, |asked| match asked.nth {
        0 => React::Reset(REFUSED_STREAM),
        _ => React::Whole(whole()),
    })
    .await;
    let leaving = H2Server::start(100, |asked| match asked.nth {
        0 => React::GoAway {
            last_stream: 0,
            code: NO_ERROR,
        },
        _ => React::Whole(whole()),
    })
    .await;

    for (server, connections) in [(refused, 1), (leaving, 2)] {
        let provider = provider(&server, network(&server));
        let first = soon(call(provider.clone())).await;
        assert!(
            matches!(first, Err(ProviderError::NotStarted { .. })),
            "{first:?}"
        );
        assert_eq!(soon(call(provider)).await, Ok(()));
        assert_eq!(server.connections(), connections);
    }
}

/// Through the gateway: the user sees no failure, and waits for no retry delay.
#[tokio::test]
async fn a_refused_stream_is_asked_for_again_at_once() {
    let server = H2Server::start(100, |asked| match asked.nth {
        0 => React::Reset(REFUSED_STREAM),
        _ => React::Whole(whole()),
    })
    .await;
    let provider = provider(&server, network(&server));
    let host = Host::builder()
        .shared_provider(provider)
        .build()
        .await
        .unwrap();

    let reply = host.tenant("acme").conversation("c").send("hi").await;
    let outcome = soon(reply.unwrap().outcome()).await.unwrap();

    assert_eq!(outcome.text, "hello");
    assert_eq!(server.seen().len(), 2);
}

#[tokio::test]
async fn a_cancelled_call_resets_its_stream_and_no_other() {
    let server = H2Server::start(100, |_| React::Open(half())).await;
    let provider = provider(&server, network(&server));
    let stays = tokio::spawn(call(provider.clone()));
    let seen = soon(server.saw(1)).await;
    let leaves = tokio::spawn(call(provider.clone()));
    soon(server.saw(2)).await;

    leaves.abort();
    assert!(leaves.await.unwrap_err().is_cancelled());
    let finish = Order::Finish {
        stream: seen[0].stream,
        text: rest(),
    };
    server.order(0, finish).await;

    assert_eq!(soon(stays).await.unwrap(), Ok(()));
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn calls_wait_for_a_connection_beyond_the_bound_and_a_wait_is_no_silence() {
    let server = H2Server::start(1, |_| React::Open(half())).await;
    let network = Network {
        connections_max: 1,
        ..network(&server)
    };
    let provider = provider(&server, network);
    let first = calls(&provider, 1);
    let seen = soon(server.saw(1)).await;
    let second = calls(&provider, 1);
    tokio::task::yield_now().await;

    let finish = |stream| Order::Finish {
        stream,
        text: rest(),
    };
    server.order(0, finish(seen[0].stream)).await;
    let seen = soon(server.saw(2)).await;
    server.order(0, finish(seen[1].stream)).await;

    for call in first.into_iter().chain(second) {
        assert_eq!(soon(call).await.unwrap(), Ok(()));
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_server_that_speaks_no_tls_is_named_in_the_error() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let plain = async {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut socket = listener.accept().await.unwrap().0;
        let _ = socket.read(&mut [0; 512]).await;
        let _ = socket
            .write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
            .await;
    };
    let provider = Anthropic::builder("sk-test-not-a-real-key")
        .base_url(format!("https://{address}"))
        .build()
        .unwrap();
    let call = async {
        let started = provider.stream(example_request(), CancellationToken::new());
        started.await.err().unwrap()
    };

    let (error, ()) = soon(async { tokio::join!(call, plain) }).await;

    assert!(
        matches!(&error, ProviderError::Connection { message } if message.contains("http://")),
        "{error:?}"
    );
}

/// Data of a byte takes hundreds of bytes of memory until its answer is read, and windows count the
/// byte.
#[tokio::test]
async fn frames_of_a_byte_wait_for_their_reader_in_bounded_memory() {
    let with = |lines: usize| [half(), "\n".repeat(lines), rest()].concat();
    let (few, many) = (with(2_000), with(6_000));
    let server = H2Server::start(100, move |asked| match asked.nth {
        0 => React::Bytes(few.clone()),
        _ => React::Bytes(many.clone()),
    })
    .await;
    let provider = provider(&server, network(&server));
    call(provider.clone()).await.unwrap();

    // The frames arrive before any is read.
    let answer = provider.stream(example_request(), CancellationToken::new());
    let mut unread = answer.await.unwrap();
    tokio::time::timeout(Duration::from_secs(30), server.ended(0))
        .await
        .unwrap();
    let mut read = Ok(());
    while let Some(batch) = unread.next().await {
        read = read.and(batch.map(drop));
    }
    assert!(read.is_err(), "the connection was closed in the middle");
}
