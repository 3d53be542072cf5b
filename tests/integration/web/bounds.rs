//! A body ends at the cap, and a response at its deadline.

use std::{
    io::Write,
    time::{Duration, Instant},
};

use callboard::web::{WebClient, WebError, WebRequest};
use tokio::{io::AsyncWriteExt, net::TcpListener};
use tokio_util::sync::CancellationToken;

use super::{Names, get, policy};
use crate::support::model_server::{ModelServer, Reply, Step};

const CAP: usize = 1024 * 1024;

fn client() -> WebClient {
    let client = WebClient::builder()
        .policy(policy(&["127.0.0.1"]))
        .resolver(Names::default());
    client
        .body_bytes_max(CAP)
        .total(Duration::from_secs(2))
        .idle(Duration::from_millis(400))
        .build()
        .unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[tokio::test]
async fn a_gzip_bomb_stops_at_the_cap() {
    let bomb = gzip(&vec![0; 200 * CAP]);
    let server = ModelServer::start([Reply::status(200)
        .header("content-encoding", "gzip")
        .send(bomb)])
    .await;
    let before = resident();

    let body = get(&client(), &server.url()).await.unwrap();

    assert_eq!(
        (body.bytes.len(), body.more, body.declared),
        (CAP, true, None)
    );
    // Other tests share this process, hence the margin; the bomb is ten times as large.
    let grown = resident().saturating_sub(before);
    println!(
        "200 MiB unpacked with a cap of 1 MiB: memory grew by {} KiB",
        grown / 1024
    );
    assert!(grown < 20 * CAP, "{grown}");
}

/// A page of empty blocks of ten bits each: a megabyte of it takes a quarter of a second.
#[tokio::test]
async fn bytes_that_decode_to_nothing_keep_no_thread_of_the_host() {
    let header = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
    let page = [header.as_slice(), &[2, 8, 32, 128, 0].repeat(800_000)].concat();
    let server = ModelServer::start([Reply::status(200)
        .header("content-encoding", "gzip")
        .send(page)])
    .await;
    let client = WebClient::builder()
        .policy(policy(&["127.0.0.1"]))
        .resolver(Names::default())
        .body_bytes_max(8 * CAP)
        .build()
        .unwrap();
    let mut longest = Duration::ZERO;
    let ticks = async {
        loop {
            let before = Instant::now();
            tokio::task::yield_now().await;
            longest = longest.max(before.elapsed());
        }
    };

    let url = server.url();
    let page = tokio::select! {
        page = get(&client, &url) => page,
        () = ticks => unreachable!(),
    };

    assert!(matches!(page, Err(WebError::Broken(_))), "{page:?}");
    assert!(longest < Duration::from_millis(100), "{longest:?}");
}

#[tokio::test]
async fn an_endless_body_stops_at_the_cap_and_the_server_is_left() {
    let server =
        ModelServer::start([Reply::status(200).then(Step::Endless(vec![b'x'; 10_000]))]).await;

    let body = get(&client(), &server.url()).await.unwrap();

    assert_eq!((body.bytes.len(), body.more), (CAP, true));
    server.clients_left(1).await;
}

#[tokio::test]
async fn whole_bodies_are_whole_packed_or_not() {
    let text = "a text ".repeat(10_000);
    let server = ModelServer::start([
        Reply::status(200).send(text.clone()),
        Reply::status(200)
            .header("content-encoding", "gzip")
            .then(Step::Send(gzip(text.as_bytes()))),
        Reply::status(200)
            .header("content-encoding", "br")
            .send("x"),
        Reply::status(200)
            .header("content-encoding", "gzip")
            .send("not packed, by far not"),
        Reply::status(200).send("half").then(Step::Cut),
    ])
    .await;
    let client = client();

    for _ in 0..2 {
        let body = get(&client, &server.url()).await.unwrap();
        assert_eq!((body.bytes.len(), body.more), (text.len(), false));
    }
    assert_eq!(get(&client, &server.url()).await, Err(WebError::Encoding));
    assert_eq!(
        get(&client, &server.url()).await,
        Err(WebError::Broken("its gzip data is invalid"))
    );
    assert_eq!(
        get(&client, &server.url()).await,
        Err(WebError::Broken("the body ended early"))
    );
}

#[tokio::test]
async fn a_slow_server_meets_a_deadline() {
    let drops = (0..100).fold(Reply::status(200), |reply, _| {
        reply
            .send("x")
            .then(Step::Pause(Duration::from_millis(100)))
    });
    let server = ModelServer::start([
        drops,
        Reply::status(200).send("x").then(Step::Stall),
        Reply::status(200).delay(Duration::from_secs(60)),
    ])
    .await;
    let client = WebClient::builder()
        .policy(policy(&["127.0.0.1"]))
        .connect(Duration::from_millis(400))
        .idle(Duration::from_millis(400));
    let client = client.total(Duration::from_secs(2)).build().unwrap();

    for what in [
        "the whole request",
        "waiting for the next part of the body",
        "the response's head",
    ] {
        let begin = Instant::now();
        let error = get(&client, &server.url()).await.unwrap_err();
        assert!(
            matches!(&error, WebError::Timeout { what: phase, .. } if *phase == what),
            "{error:?}"
        );
        assert!(begin.elapsed() < Duration::from_secs(5));
    }
}

#[tokio::test]
async fn a_cancel_closes_the_connection() {
    let server = ModelServer::start([Reply::status(200).send("x").then(Step::Stall)]).await;
    let client = client();
    let cancel = CancellationToken::new();

    let answer = client
        .open(WebRequest::get(server.url()), &cancel)
        .await
        .unwrap();
    let (read, ()) = tokio::join!(answer.read(&cancel), async { cancel.cancel() });

    assert_eq!(read, Err(WebError::Cancelled));
    server.clients_left(1).await;
    assert_eq!(
        client
            .open(WebRequest::get(server.url()), &cancel)
            .await
            .unwrap_err(),
        WebError::Cancelled
    );
}

#[tokio::test]
async fn a_huge_or_endless_head_is_refused() {
    let server = ModelServer::start([
        (0..200).fold(Reply::status(200), |reply, n| {
            reply.header(&format!("x-{n}"), "y")
        }),
        Reply::status(200).header("x-large", &"y".repeat(4 * CAP)),
    ])
    .await;
    for _ in 0..2 {
        assert!(matches!(
            get(&client(), &server.url()).await,
            Err(WebError::Broken(_))
        ));
    }

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let endless = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut sent = 0_usize;
        while stream
            .write_all(b"HTTP/1.1 200 OK\r\nx-header: value that goes on\r\n\t")
            .await
            .is_ok()
            && sent < 100 * CAP
        {
            sent += 48;
        }
        sent
    });
    assert!(get(&client(), &url).await.is_err());
    assert!(endless.await.unwrap() < 20 * CAP);
}

#[tokio::test]
async fn an_answer_that_is_not_http_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream
            .write_all(b"220 mail.example ESMTP\r\n")
            .await
            .unwrap();
    });

    assert!(matches!(
        get(&client(), &url).await,
        Err(WebError::Broken(_))
    ));
    server.await.unwrap();
    assert_eq!(get(&client(), &url).await, Err(WebError::Connect));
}
