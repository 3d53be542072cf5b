//! Servers that say nothing: each wait has its limit, a long silence within the limit is none, and a
//! peer that is gone is noticed.
//!
//! Once a server is silent, the test moves the time, so that limits are measured and not waited for.

use callboard::{
    mock_model::{MockTls, TlsIdentity},
    providers::Timeouts,
};
use tokio::{
    task::{JoinHandle, yield_now},
    time::Instant,
};

use super::*;
use crate::support::{
    model_server::{ModelServer, Reply, Step},
    tls_front::TlsFront,
};

const LIMIT: Duration = Duration::from_secs(3);

/// Limits of 3 s, and one for the whole call that is far away.
const SHORT: Timeouts = Timeouts {
    connect: LIMIT,
    first_byte: LIMIT,
    idle: LIMIT,
    total: Duration::from_secs(600),
};

fn provider_of(url: &str, network: Network, timeouts: Timeouts) -> Arc<OpenAi> {
    let builder = OpenAi::builder().base_url(format!("{url}/v1"));
    Arc::new(builder.network(network).timeouts(timeouts).build().unwrap())
}

/// Lets everything that was sent be read, also where the system is slow to deliver it.
async fn settle() {
    for _ in 0..4 {
        for _ in 0..125 {
            yield_now().await;
        }
        std::thread::sleep(Duration::from_micros(250));
    }
}

/// How the call ends, and how long that takes. The time moves on in steps, and only after
/// everything that was sent was read: as this task never rests, the runtime does not move the time
/// itself.
async fn end(
    call: JoinHandle<Result<(), ProviderError>>,
    step: Duration,
) -> (Result<(), ProviderError>, Duration) {
    settle().await;
    tokio::time::pause();
    let begun = Instant::now();
    while !call.is_finished() {
        settle().await;
        tokio::time::advance(step).await;
    }
    let took = begun.elapsed();
    tokio::time::resume();
    (call.await.unwrap(), took)
}

#[track_caller]
fn timed_out(end: (Result<(), ProviderError>, Duration), message: &str, place: &str) {
    let (error, took) = end;
    assert_eq!(
        error,
        Err(ProviderError::Timeout {
            message: message.to_owned()
        }),
        "{place}"
    );
    let tenth = LIMIT / 10;
    assert!(
        took >= LIMIT - tenth && took <= LIMIT + tenth,
        "{place}: {took:?}"
    );
}

/// What a server sends before it stalls, by place; `None` is nothing, not even the head.
fn places() -> [(&'static str, Option<String>); 5] {
    let whole = whole();
    let (before_end, _) = whole.split_once("data: [DONE]").unwrap();
    let mut within = half();
    within.truncate(within.len() / 2);
    [
        ("before the head", None),
        ("after the head", Some(String::new())),
        ("within an event", Some(within)),
        ("after an event", Some(half())),
        ("before the end", Some(before_end.to_owned())),
    ]
}

fn message_at(place: &Option<String>) -> &'static str {
    match place {
        None => "no answer within 3s",
        Some(_) => "no bytes for 3s",
    }
}

#[tokio::test]
async fn a_server_that_stalls_anywhere_is_given_up_after_the_limit_over_http2() {
    for (name, sent) in places() {
        let react = sent.clone().map_or(React::Silent, React::Open);
        let server = H2Server::start(100, move |_| react.clone()).await;
        let call = tokio::spawn(call(provider_of(&server.url(), network(&server), SHORT)));
        soon(server.saw(1)).await;

        timed_out(end(call, LIMIT / 60).await, message_at(&sent), name);
    }
}

#[tokio::test]
async fn a_server_that_stalls_anywhere_is_given_up_after_the_limit_over_http1() {
    for (name, sent) in places() {
        let reply = match sent.clone() {
            None => Reply::stream().delay(Duration::from_secs(3600)),
            Some(sent) => Reply::stream().send(sent).then(Step::Stall),
        };
        let server = ModelServer::start([reply]).await;
        let provider = provider_of(&server.url(), Network::default(), SHORT);
        let call = tokio::spawn(call(provider));
        server.requests_came(1).await;

        timed_out(end(call, LIMIT / 60).await, message_at(&sent), name);
    }
}

#[tokio::test]
async fn a_server_that_never_finishes_tls_is_given_up_after_the_limit() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let call = tokio::spawn(call(provider_of(&url, Network::default(), SHORT)));
    let _silent = soon(listener.accept()).await.unwrap();

    timed_out(
        end(call, LIMIT / 60).await,
        "no connection within 3s",
        "within TLS",
    );
}

/// A local model reads a long prompt for minutes, and thinks for minutes between two words.
#[tokio::test]
async fn a_long_silence_within_the_limits_is_no_failure() {
    const SILENCE: Duration = Duration::from_secs(30 * 60);
    let reply = Reply::stream()
        .delay(SILENCE)
        .send(half())
        .then(Step::Pause(SILENCE))
        .send(rest());
    let server = ModelServer::start([reply]).await;
    let made = TlsIdentity::make(&[]).unwrap();
    let tls = MockTls {
        identity: made.identity,
        http2_streams_max: None,
    };
    let front = TlsFront::start(tls.server_config().unwrap(), &server.url()).await;
    let network = Network {
        trust: Trust {
            authorities: Some(made.ca_pem.into_bytes()),
            ..Trust::default()
        },
        ..Network::default()
    };
    let patient = Timeouts {
        first_byte: SILENCE * 4,
        idle: SILENCE * 4,
        total: SILENCE * 20,
        ..SHORT
    };
    let call = tokio::spawn(call(provider_of(&front.url(), network, patient)));
    server.requests_came(1).await;

    let (end, took) = end(call, SILENCE / 30).await;

    assert_eq!(end, Ok(()));
    assert!(
        took >= SILENCE * 2 - LIMIT && took < SILENCE * 3,
        "{took:?}"
    );
}

/// Pings are answered meanwhile.
#[tokio::test]
async fn a_long_silence_within_the_limits_is_no_failure_over_http2() {
    const SILENCE: Duration = Duration::from_secs(30 * 60);
    let server = H2Server::start(100, |_| React::Open(half())).await;
    let patient = Timeouts {
        first_byte: SILENCE * 4,
        idle: SILENCE * 4,
        total: SILENCE * 20,
        ..SHORT
    };
    let call = tokio::spawn(call(provider_of(&server.url(), network(&server), patient)));
    let seen = soon(server.saw(1)).await;
    let finish = async {
        tokio::time::sleep(SILENCE).await;
        let finish = Order::Finish {
            stream: seen[0].stream,
            text: rest(),
        };
        server.order(0, finish).await;
    };

    let ((end, took), ()) = tokio::join!(end(call, Duration::from_secs(5)), finish);

    assert_eq!(end, Ok(()));
    assert!(took >= SILENCE - LIMIT && took < SILENCE * 2, "{took:?}");
}

/// The machine of the server is gone: nothing says so, and only a ping finds out.
#[tokio::test]
async fn a_peer_that_answers_no_ping_ends_its_calls_long_before_their_limits() {
    let server = H2Server::start(100, |_| React::Deaf).await;
    let patient = Timeouts {
        first_byte: Duration::from_secs(3600),
        total: Duration::from_secs(3600),
        ..SHORT
    };
    let call = tokio::spawn(call(provider_of(&server.url(), network(&server), patient)));
    soon(server.saw(1)).await;

    let (end, took) = end(call, Duration::from_secs(1)).await;

    assert!(
        matches!(end, Err(ProviderError::Connection { .. })),
        "{end:?}"
    );
    assert!(took <= Duration::from_secs(45), "{took:?}");
}
