//! Tests of HTTP/1.1 on real connections. The server's side is scripted byte by byte.

use std::future::Future;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::*;
use crate::providers::{body::BodyWriter, network::Network};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

fn body(json: &str) -> Body {
    let mut body = BodyWriter::new(0);
    body.raw(json);
    body.finish()
}

struct Server {
    listener: TcpListener,
    url: Url,
}

impl Server {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = Url::parse(&format!("http://{}/v1", listener.local_addr().unwrap())).unwrap();
        Self { listener, url }
    }

    fn client(&self) -> Transport {
        client(&self.url, true)
    }

    async fn accept(&self) -> TcpStream {
        self.listener.accept().await.unwrap().0
    }
}

fn client(url: &Url, is_loopback: bool) -> Transport {
    bounded(url, is_loopback, 100)
}

fn bounded(url: &Url, is_loopback: bool, connections_max: usize) -> Transport {
    let config = TransportConfig {
        tls: Network::default().tls().unwrap(),
        connect: Duration::from_secs(10),
        connections_max,
    };
    Transport::new(url, is_loopback, HeaderMap::new(), config).unwrap()
}

async fn post(client: &Transport, url: &Url, body: Body) -> Result<Answer, ProviderError> {
    client.connect().await?.post(url.path(), "x/y", body).await
}

/// Takes an idle connection that can serve a call.
fn take(client: &Transport) -> Option<Http1Lease> {
    match client.pool.take_idle()? {
        Lease::Http1(lease) => Some(*lease),
        Lease::Http2(_) => None,
    }
}

/// Reads a request and returns its head and its body.
async fn request(socket: &mut TcpStream) -> (String, Vec<u8>) {
    let mut bytes = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = socket.read(&mut buffer).await.unwrap();
        assert_ne!(
            read,
            0,
            "the client left: {}",
            String::from_utf8_lossy(&bytes)
        );
        bytes.extend_from_slice(&buffer[..read]);
        let Some(end) = memchr::memmem::find(&bytes, b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .unwrap()
            .parse::<usize>()
            .unwrap();
        if bytes.len() == end + 4 + length {
            return (head, bytes.split_off(end + 4));
        }
    }
}

/// Posts, reads the answer to its end, and returns its status and body.
async fn call(client: &Transport, url: &Url) -> Result<(u16, String), ProviderError> {
    let mut answer = post(client, url, body("{}")).await?;
    let mut whole = Vec::new();
    while let Some(more) = poll_fn(|cx| {
        answer
            .poll_body(cx)
            .map_ok(|bytes| bytes.map(<[u8]>::to_vec))
    })
    .await?
    {
        whole.extend(more);
    }
    let status = answer.status();
    answer.release();
    Ok((status, String::from_utf8(whole).unwrap()))
}

async fn both<T>(client: impl Future<Output = T>, server: impl Future<Output = ()>) -> T {
    tokio::time::timeout(Duration::from_secs(60), async {
        tokio::join!(client, server).0
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn a_long_request_arrives_whole_and_in_order() {
    let server = Server::start().await;
    let client = server.client();
    let mut long = BodyWriter::new(0);
    for number in 0..5000 {
        // Slices of every length, far more than one write or the socket buffer takes.
        long.slice(&format!("{number}:{};", "x".repeat(number % 700)).into());
    }
    let expected = (0..5000)
        .map(|number| format!("{number}:{};", "x".repeat(number % 700)))
        .collect::<String>();
    let long = long.finish();

    let answer = both(post(&client, &server.url, long), async {
        let mut socket = server.accept().await;
        let (head, body) = request(&mut socket).await;
        let port = server.url.port().unwrap();
        let length = expected.len();
        assert_eq!(
            head,
            format!(
                "POST /v1 HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\naccept: x/y\r\ncontent-length: {length}"
            )
        );
        assert!(body == expected.as_bytes());
        socket.write_all(OK.as_bytes()).await.unwrap();
    });

    assert_eq!(answer.await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_refusal_is_read_before_the_request_was_sent() {
    let server = Server::start().await;
    let client = server.client();
    let mut long = BodyWriter::new(0);
    long.slice(&vec![b'x'; 64 << 20].into());

    let (answered, on_answer) = tokio::sync::oneshot::channel();
    let answer = both(
        async {
            let answer = post(&client, &server.url, long.finish()).await.unwrap();
            answered.send(()).unwrap();
            let status = answer.status();
            answer.release();
            status
        },
        async {
            let mut socket = server.accept().await;
            socket
                .write_all(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")
                .await
                .unwrap();
            on_answer.await.unwrap();
        },
    );

    assert_eq!(answer.await, 413);
    assert!(
        take(&client).is_none(),
        "half a request is still on its way there"
    );
}

#[tokio::test]
async fn one_connection_serves_many_calls_and_one_that_was_closed_none() {
    let server = Server::start().await;
    let client = server.client();

    for rounds in 0..2 {
        let calls = async {
            for _ in 0..3 {
                assert_eq!(
                    call(&client, &server.url).await.unwrap(),
                    (200, "ok".into()),
                    "{rounds}"
                );
            }
        };
        both(calls, async {
            let mut socket = server.accept().await;
            for _ in 0..3 {
                request(&mut socket).await;
                socket.write_all(OK.as_bytes()).await.unwrap();
            }
        })
        .await;
        // The server closed it; the client notices as soon as the system reports it.
        while let Some(open) = take(&client) {
            client.pool.keep(open);
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn an_unsolicited_answer_answers_no_later_call() {
    for after in [
        format!("{OK}{OK}"),
        OK.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n"),
        OK.replace("1.1", "1.0"),
    ] {
        let server = Server::start().await;
        let client = server.client();

        let first = both(call(&client, &server.url), async {
            let mut socket = server.accept().await;
            request(&mut socket).await;
            socket.write_all(after.as_bytes()).await.unwrap();
            // Leak the socket so that it stays open.
            std::mem::forget(socket.into_std().unwrap());
        });

        assert_eq!(first.await.unwrap().1, "ok");
        assert!(take(&client).is_none(), "{after}");
    }
}

#[tokio::test]
async fn the_end_of_an_answer_may_come_after_its_reader_left() {
    let server = Server::start().await;
    let client = server.client();
    let (lease, mut peer) = half_an_answer(&server, &client).await;
    client.pool.keep(lease);

    assert!(take(&client).is_none(), "its answer has not ended");
    peer.write_all(b"0\r\n\r\n").await.unwrap();
    let again = loop {
        if let Some(free) = take(&client) {
            break free;
        }
        tokio::task::yield_now().await;
    };
    client.pool.keep(again);
}

/// Lends a new connection, and lets its answer begin but not end.
async fn half_an_answer(server: &Server, client: &Transport) -> (Http1Lease, TcpStream) {
    let Lease::Http1(mut lease) = client.pool.lease().await.unwrap() else {
        panic!("HTTP/1.1 was served")
    };
    let mut peer = server.accept().await;
    let request = VecDeque::from([Bytes::from_static(b"POST")]);
    lease.connection.begin(request);
    peer.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")
        .await
        .unwrap();
    poll_fn(|cx| lease.connection.poll_head(cx)).await.unwrap();
    (*lease, peer)
}

#[tokio::test]
async fn an_answer_that_still_arrives_keeps_no_call_waiting_at_the_bound() {
    let server = Server::start().await;
    let client = bounded(&server.url, true, 1);
    let (lease, _peer) = half_an_answer(&server, &client).await;

    client.pool.keep(lease);

    let next = both(client.pool.lease(), async { drop(server.accept().await) });
    assert!(next.await.is_ok());
}

#[tokio::test]
async fn a_call_that_waits_goes_on_when_a_thread_without_a_runtime_makes_room() {
    let server = Server::start().await;
    let client = bounded(&server.url, true, 1);
    let (lease, _peer) = half_an_answer(&server, &client).await;
    let pool = client.pool.clone();
    let waits = client.pool.lease();
    tokio::pin!(waits);
    let is_waiting = poll_fn(|cx| Poll::Ready(waits.as_mut().poll(cx).is_pending()));
    assert!(is_waiting.await);

    std::thread::spawn(move || pool.keep(lease)).join().unwrap();

    assert!(
        both(waits, async { drop(server.accept().await) })
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn a_connection_that_was_let_go_costs_no_call_and_a_half_answer_is_not_asked_for_again() {
    for (half, expected) in [
        ("", Ok((200, "ok".to_owned()))),
        ("HTTP/1.1 200 OK\r\ncontent-le", Err("before it answered")),
    ] {
        let server = Server::start().await;
        let client = server.client();

        let (first, second) = both(
            async {
                (
                    call(&client, &server.url).await,
                    call(&client, &server.url).await,
                )
            },
            async {
                let mut rested = server.accept().await;
                request(&mut rested).await;
                rested.write_all(OK.as_bytes()).await.unwrap();
                // The server closes it while the next request is already on its way.
                request(&mut rested).await;
                rested.write_all(half.as_bytes()).await.unwrap();
                drop(rested);
                if half.is_empty() {
                    let mut new = server.accept().await;
                    assert_eq!(request(&mut new).await.1, b"{}");
                    new.write_all(OK.as_bytes()).await.unwrap();
                }
            },
        )
        .await;

        assert_eq!(first, Ok((200, "ok".to_owned())));
        match expected {
            Ok(expected) => assert_eq!(second, Ok(expected)),
            Err(word) => assert!(
                second.clone().unwrap_err().to_string().contains(word),
                "{second:?}"
            ),
        }
    }
}

#[tokio::test]
async fn a_truncated_answer_is_an_error() {
    for (answer, word) in [
        ("", "before it answered"),
        ("HTTP/1.1 200 OK\r\ncontent-le", "before it answered"),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf",
            "in the middle",
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n",
            "in the middle",
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nnothing",
            "size of a chunk",
        ),
        ("SMTP ready\r\n", "not HTTP/1"),
    ] {
        let server = Server::start().await;
        let client = server.client();

        let broken = both(call(&client, &server.url), async {
            let mut socket = server.accept().await;
            request(&mut socket).await;
            socket.write_all(answer.as_bytes()).await.unwrap();
        });

        let error = broken.await.unwrap_err();
        assert!(
            matches!(&error, ProviderError::Connection { message } if message.contains(word)),
            "{answer}: {error:?}"
        );
        assert!(take(&client).is_none());
    }
}

#[tokio::test]
async fn an_endless_head_is_refused() {
    let server = Server::start().await;
    let client = server.client();

    let refused = both(call(&client, &server.url), async {
        let mut socket = server.accept().await;
        request(&mut socket).await;
        socket.write_all(b"HTTP/1.1 200 OK\r\nx: ").await.unwrap();
        while socket.write_all(&[b'x'; 4096]).await.is_ok() {}
    });

    let error = refused.await.unwrap_err();
    assert!(
        matches!(&error, ProviderError::Connection { message } if message.contains("longer than")),
        "{error:?}"
    );
}

#[test]
fn a_connection_serves_only_the_runtime_it_was_opened_in() {
    use std::io::{Read, Write};

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = Url::parse(&format!("http://{}/v1", listener.local_addr().unwrap())).unwrap();
    let client = client(&url, true);
    let server = std::thread::spawn(move || {
        let serve = |_| {
            let mut socket = listener.accept().unwrap().0;
            let mut bytes = Vec::new();
            let mut buffer = [0; 1024];
            while !bytes.ends_with(b"\r\n\r\n{}") {
                let read = socket.read(&mut buffer).unwrap();
                bytes.extend_from_slice(&buffer[..read]);
            }
            socket.write_all(OK.as_bytes()).unwrap();
            socket
        };
        (0..2).map(serve).collect::<Vec<_>>()
    });

    let runtimes = [(); 2].map(|()| {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    });
    for runtime in &runtimes {
        let answer = runtime.block_on(both(call(&client, &url), async {}));
        assert_eq!(answer.unwrap().1, "ok");
    }

    assert_eq!(server.join().unwrap().len(), 2);
}
