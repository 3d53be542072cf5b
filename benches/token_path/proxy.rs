//! Tokens from the socket of a model to clients over HTTP, through the host and through a proxy by
//! hand.

use std::{sync::Arc, time::Duration};

use axum::{
    Json, Router,
    body::Body,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
    routing::post,
    serve::ListenerExt,
};
use callboard::{
    Host,
    http::{HttpConfig, KeyHash, Keys},
    ids::TenantId,
};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use tokio::{net::TcpListener, task::JoinHandle};

use super::{
    PACE,
    client::Clients,
    reference::{
        Wire,
        by_hand::ByHand,
        forgetful::Forgetful,
        hand_json::{EventReader, History, ParsedReply},
        model::{Model, Server, Way},
        ours,
        phases::{Cost, Side, is_wanted, number, word_after},
        process,
    },
};

/// A server of answers, in this process.
struct Proxy {
    url: String,
    key: String,
    serving: JoinHandle<()>,
    /// `None` for the baseline.
    host: Option<Host>,
}

impl Proxy {
    /// The HTTP server of this project.
    async fn ours(wire: Wire, model: &Server) -> Self {
        let host = ours::host(ours::provider(wire, model), Arc::new(Forgetful)).await;
        let key = callboard::http::new_key();
        let keys = Keys::new();
        keys.put(TenantId::new("bench").unwrap(), KeyHash::from_key(&key));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serving = callboard::http::serve(
            listener,
            host.clone(),
            HttpConfig::new(keys),
            std::future::pending(),
        );
        Self {
            url,
            key,
            serving: tokio::spawn(async { _ = serving.await }),
            host: Some(host),
        }
    }

    /// The baseline.
    async fn by_hand(wire: Wire, model: &Server, streams: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = Router::new()
            .route("/v1/conversations/{id}/messages", post(ask))
            .with_state(ByHand::new(model, wire, streams, None));
        let listener = listener.tap_io(|socket| socket.set_nodelay(true).unwrap());
        Self {
            url,
            key: String::new(),
            serving: tokio::spawn(async { axum::serve(listener, app).await.unwrap() }),
            host: None,
        }
    }

    /// CPU and tokens while `streams` answers are under way for `seconds`.
    async fn measure(&self, streams: usize, seconds: usize) -> Cost {
        let mut clients = Clients::start(&self.url, &self.key, streams).await;
        let (tokens, cpu) = (clients.tokens().await, process::cpu());
        let wall = Duration::from_secs(seconds as u64);
        tokio::time::sleep(wall).await;
        let cpu = process::cpu() - cpu;
        let done = clients.tokens().await - tokens;
        clients.finish().await;
        Cost { cpu, wall, done }
    }

    async fn end(self) {
        self.serving.abort();
        if let Some(host) = self.host {
            host.shutdown(Duration::from_secs(10)).await;
        }
    }
}

#[derive(Deserialize)]
struct Asked {
    content: String,
}

#[derive(Serialize)]
struct Delta<'a> {
    text: &'a str,
}

struct Answering {
    response: reqwest::Response,
    reader: EventReader,
    reply: ParsedReply,
    wire: Wire,
    _place: super::reference::hand_client::Place,
}

impl Answering {
    async fn next(mut self) -> Option<(reqwest::Result<Vec<u8>>, Self)> {
        loop {
            let bytes = match self.response.chunk().await {
                Ok(Some(bytes)) => bytes,
                Ok(None) => return None,
                Err(error) => return Some((Err(error), self)),
            };
            if let Some(text) = self.reader.read(self.wire, &bytes, &mut self.reply) {
                let mut event = b"event: text_delta\ndata: ".to_vec();
                serde_json::to_writer(&mut event, &Delta { text }).unwrap();
                event.extend_from_slice(b"\n\n");
                return Some((Ok(event), self));
            }
        }
    }
}

async fn ask(State(hand): State<Arc<ByHand>>, Json(asked): Json<Asked>) -> Response {
    let mut history = History::default();
    history.user(hand.wire, &asked.content);
    let (response, place) = hand.send(&history).await;
    let answering = Answering {
        response,
        reader: EventReader::default(),
        reply: ParsedReply::default(),
        wire: hand.wire,
        _place: place,
    };
    let body = Body::from_stream(stream::unfold(answering, Answering::next));
    ([(header::CONTENT_TYPE, "text/event-stream")], body).into_response()
}

/// A model that is slower than the measurement: an answer lasts two seconds longer.
fn model(way: Way, seconds: usize) -> Server {
    Server::start(Model {
        way,
        pace: PACE,
        chunks: (seconds + 2) * 1000 / PACE.as_millis() as usize,
        ..Model::default()
    })
}

/// Both sides in alternating rounds.
pub(crate) async fn to_clients(rounds: usize, seconds: usize) {
    let streams = number("--streams", 200);
    println!(
        "\nCPU per token at {} a second from a model's socket to clients over HTTP, {streams} answers at once, median of {rounds} x {seconds} s",
        1000 / PACE.as_millis()
    );
    println!(
        "{:>10} {:>10} {:>12} {:>12} {:>6} {:>16}",
        "way", "wire", "callboard", "by hand", "ratio", "tokens a second"
    );
    for way in Way::ALL {
        for wire in Wire::BOTH {
            if !is_wanted("--way", way.name()) || !is_wanted("--wire", wire.name()) {
                continue;
            }
            let server = model(way, seconds);
            let ours = Proxy::ours(wire, &server).await;
            let hand = Proxy::by_hand(wire, &server, streams).await;
            let mut sides = [Side::default(), Side::default()];
            for _ in 0..rounds {
                sides[0].add(ours.measure(streams, seconds).await);
                sides[1].add(hand.measure(streams, seconds).await);
            }
            let [with, without] = sides.map(|side| side.median());
            println!(
                "{:>10} {:>10} {:>9.2} µs {:>9.2} µs {:>6.2} {:>7.0} / {:>6.0}",
                way.name(),
                wire.name(),
                with.cpu_us(),
                without.cpu_us(),
                with.cpu_us() / without.cpu_us(),
                with.rate(),
                without.rate()
            );
            ours.end().await;
            hand.end().await;
        }
    }
}

/// One side alone, for perf.
pub(crate) async fn one(is_ours: bool, seconds: usize) {
    let streams = number("--streams", 200);
    let way = word_after("--way").map_or(Way::TlsHttp2, |way| Way::of(&way));
    let server = model(way, seconds);
    let proxy = if is_ours {
        Proxy::ours(Wire::Anthropic, &server).await
    } else {
        Proxy::by_hand(Wire::Anthropic, &server, streams).await
    };
    let cost = proxy.measure(streams, seconds).await;
    println!("{:.2} µs a token", cost.cpu_us());
    proxy.end().await;
}
