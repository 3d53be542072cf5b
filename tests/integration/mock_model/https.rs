//! The mock behind TLS, as hosted providers are: protocols, streams on one connection, and what
//! happens to them when it ends.

use std::time::Duration;

use callboard::mock_model::{
    ConnectionCounts, HTTP2_STREAMS_MAX, MockModel, MockModelHandle, MockModelSettings, MockTls,
    TlsIdentity, WritePer,
};
use reqwest::{Client, Response, Version};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::support::https::client;

/// A mock in this process. Dropping it ends the server.
struct Served {
    url: String,
    ca_pem: String,
    handle: MockModelHandle,
    _stop: DropGuard,
}

impl Served {
    async fn start(http2_streams_max: Option<u32>, settings: MockModelSettings) -> Self {
        let made = TlsIdentity::make(&[]).unwrap();
        let tls = MockTls {
            identity: made.identity,
            http2_streams_max,
        };
        let mut served = Self::plain(MockModelSettings {
            tls: Some(tls),
            ..settings
        })
        .await;
        served.url = served.url.replace("http:", "https:");
        served.ca_pem = made.ca_pem;
        served
    }

    async fn plain(settings: MockModelSettings) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let mock = MockModel::new(settings).unwrap();
        let handle = mock.handle();
        let stop = CancellationToken::new();
        tokio::spawn(mock.serve(listener, stop.clone()));
        Self {
            url,
            ca_pem: String::new(),
            handle,
            _stop: stop.drop_guard(),
        }
    }

    /// A client with connections of its own.
    fn client(&self) -> Client {
        client(&self.ca_pem, &["h2", "http/1.1"])
    }

    async fn ask(&self, client: &Client) -> Response {
        self.ask_at(client, "v1/messages").await
    }

    async fn ask_at(&self, client: &Client, path: &str) -> Response {
        let body = r#"{"model":"m","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"hello"}]}"#;
        let request = client.post(format!("{}/{path}", self.url)).body(body);
        request.send().await.unwrap()
    }
}

/// The bytes of an answer, in the pieces in which they came. The end of a stream has none.
async fn pieces(mut answer: Response) -> Vec<Vec<u8>> {
    let mut pieces = Vec::new();
    while let Some(piece) = answer.chunk().await.unwrap() {
        if !piece.is_empty() {
            pieces.push(piece.to_vec());
        }
    }
    pieces
}

#[tokio::test]
async fn a_streamed_answer_is_whole_over_the_protocol_that_was_agreed() {
    let plain = Served::plain(MockModelSettings::default()).await;
    let offers = [
        (
            Some(HTTP2_STREAMS_MAX),
            &["h2", "http/1.1"][..],
            Version::HTTP_2,
        ),
        (Some(HTTP2_STREAMS_MAX), &["http/1.1"], Version::HTTP_11),
        (None, &["h2", "http/1.1"], Version::HTTP_11),
    ];
    let paths = ["v1/messages", "v1/chat/completions"];
    let mut expected = Vec::new();
    for path in paths {
        let answer = plain
            .ask_at(&callboard_client().build().unwrap(), path)
            .await;
        expected.push(answer.text().await.unwrap());
    }
    assert!(expected[0].ends_with("{\"type\":\"message_stop\"}\n\n"));
    assert!(expected[1].ends_with("data: [DONE]\n\n"));

    for (http2, protocols, version) in offers {
        let served = Served::start(http2, MockModelSettings::default()).await;
        let client = client(&served.ca_pem, protocols);
        for (path, expected) in paths.iter().zip(&expected) {
            let answer = served.ask_at(&client, path).await;

            assert_eq!(answer.version(), version, "{http2:?} {protocols:?}");
            assert_eq!(answer.text().await.unwrap(), *expected, "{path}");
        }
    }
}

fn callboard_client() -> reqwest::ClientBuilder {
    callboard::tls::client_builder().unwrap().no_proxy()
}

#[tokio::test]
async fn a_client_that_does_not_trust_the_certificate_gets_no_answer() {
    let served = Served::start(Some(1), MockModelSettings::default()).await;
    let another = TlsIdentity::make(&[]).unwrap();

    let stranger = client(&another.ca_pem, &["h2"]);
    let error = stranger.get(&served.url).send().await.unwrap_err();

    assert!(error.is_connect(), "{error:?}");
}

#[tokio::test]
async fn both_ways_of_writing_send_the_same_bytes_and_one_sends_each_event_alone() {
    for (delay_ms, as_answer) in [(0, 1), (1, 6)] {
        let mut sent = Vec::new();
        for write_per in [WritePer::Answer, WritePer::Event] {
            let settings = MockModelSettings {
                chunks: 5,
                chunk_delay: Duration::from_millis(delay_ms),
                write_per,
                ..MockModelSettings::default()
            };
            let served = Served::start(Some(HTTP2_STREAMS_MAX), settings.clone()).await;
            let over_http2 = pieces(served.ask(&served.client()).await).await;
            let served = Served::start(None, settings).await;
            let over_http1 = pieces(served.ask(&served.client()).await).await;

            assert_eq!(over_http2.concat(), over_http1.concat(), "{write_per:?}");
            sent.push(over_http2);
        }
        let [answer, events] = [&sent[0], &sent[1]];

        assert_eq!(answer.concat(), events.concat());
        // message_start, content_block_start, the chunks, and three events at the end.
        assert_eq!((answer.len(), events.len()), (as_answer, 2 + 5 + 3));
        assert!(
            events
                .iter()
                .all(|event| event.starts_with(b"event: ") && event.ends_with(b"\n\n"))
        );
    }
}

#[tokio::test]
async fn streams_beyond_the_announced_limit_wait_for_a_place_on_the_connection() {
    let settings = MockModelSettings {
        latency: Duration::from_millis(20),
        ..MockModelSettings::default()
    };
    let served = Served::start(Some(2), settings).await;
    let client = served.client();
    // The limit is known, and the connection shared, once the first answer is there.
    let whole = served.ask(&client).await.text().await.unwrap();

    let calls = (0..7).map(|_| async { served.ask(&client).await.text().await.unwrap() });
    let answers = futures_util::future::join_all(calls).await;

    assert!(answers.iter().all(|answer| answer.len() == whole.len()));
    let counts = served.handle.connections();
    assert_eq!((counts.accepted, counts.streams_max), (1, 2));
    assert_eq!(served.handle.calls(), 8);
}

/// Settings of answers that are still under way when a test acts.
fn paced() -> MockModelSettings {
    MockModelSettings {
        chunks: 10,
        chunk_delay: Duration::from_millis(20),
        ..MockModelSettings::default()
    }
}

#[tokio::test]
async fn a_killed_connection_breaks_its_own_streams_alone() {
    for (http2, streams) in [(Some(HTTP2_STREAMS_MAX), 2), (None, 1)] {
        let served = Served::start(http2, paced()).await;
        let (first, second) = (served.client(), served.client());
        let mut doomed = Vec::new();
        for _ in 0..streams {
            let mut answer = served.ask(&first).await;
            assert!(answer.chunk().await.unwrap().is_some());
            doomed.push(answer);
        }
        let mut spared = served.ask(&second).await;
        assert!(spared.chunk().await.unwrap().is_some());
        let counts = served.handle.connections();
        assert_eq!(
            counts,
            ConnectionCounts {
                accepted: 2,
                open: 2,
                streams: streams + 1,
                streams_max: streams,
            }
        );

        assert!(served.handle.kill_connection(0));

        for mut answer in doomed {
            let broken = async {
                while answer.chunk().await?.is_some() {}
                Ok::<_, reqwest::Error>(())
            };
            assert!(broken.await.is_err(), "{http2:?}");
        }
        let rest = spared.text().await.unwrap();
        assert!(rest.ends_with("{\"type\":\"message_stop\"}\n\n"));
        assert!(!served.handle.kill_connection(9));
    }
}

#[tokio::test]
async fn a_drained_connection_ends_after_its_streams() {
    let served = Served::start(Some(HTTP2_STREAMS_MAX), paced()).await;
    let client = served.client();
    let mut answer = served.ask(&client).await;
    assert!(answer.chunk().await.unwrap().is_some());

    assert!(served.handle.drain_connection(0));

    let rest = answer.text().await.unwrap();
    assert!(rest.ends_with("{\"type\":\"message_stop\"}\n\n"));
    while served.handle.connections().open > 0 {
        tokio::task::yield_now().await;
    }
    let next = served.ask(&client).await;
    assert!(next.status().is_success());
    assert_eq!(served.handle.connections().accepted, 2);
}

#[tokio::test]
async fn the_numbers_of_connections_are_at_stats() {
    let served = Served::start(Some(HTTP2_STREAMS_MAX), MockModelSettings::default()).await;

    let stats = served.client().get(format!("{}/stats", served.url));
    let stats: serde_json::Value =
        serde_json::from_str(&stats.send().await.unwrap().text().await.unwrap()).unwrap();

    assert_eq!(
        stats["connections"],
        serde_json::json!({ "accepted": 1, "open": 1, "streams": 1, "streams_max": 1 })
    );
}
