//! Connections beyond a limit. Each gets one response and is closed.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
    time::timeout,
};

/// The whole response. It is written without waiting for a request.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\nconnection: close\r\n\
content-length: 147\r\n\r\n{\"status\":503,\"title\":\"Service Unavailable\",\"code\":\"too_many_connections\",\"detail\":\"too many connections; retry in a moment\",\"retry_after_ms\":1000}";

/// Refused connections that are open at a time; further ones are closed at once.
const OPEN_MAX: usize = 64;

/// How long a refused client may take to read its response and close.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

/// Bytes of requests that are read and dropped meanwhile.
const DRAINED_BYTES_MAX: usize = 64 * 1024;

/// The refused connections that are still open.
#[derive(Default)]
pub(super) struct Refusals {
    open: JoinSet<()>,
}

impl Refusals {
    /// Writes the 503 without waiting, and closes the connection once the client has. A connection
    /// that is closed before its request has come is reset by the kernel, and a client that was still
    /// writing then loses the response: a proxy reports 502.
    pub(super) fn refuse(&mut self, stream: TcpStream) {
        while self.open.try_join_next().is_some() {}
        let _ = stream.try_write(FULL);
        if self.open.len() < OPEN_MAX {
            self.open.spawn(async move {
                let _ = timeout(CLOSE_WITHIN, drain(stream)).await;
            });
        }
    }
}

async fn drain(mut stream: TcpStream) {
    if stream.shutdown().await.is_err() {
        return;
    }
    let mut dropped = [0; 1024];
    let mut left = DRAINED_BYTES_MAX;
    while let Ok(read @ 1..) = stream.read(&mut dropped).await
        && read <= left
    {
        left -= read;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use tokio::net::TcpListener;

    use super::*;

    /// A refused client, and whether it got the whole response after it had written its request.
    async fn got_it(refusals: &mut Refusals, listener: &TcpListener) -> bool {
        let address = listener.local_addr().unwrap();
        let mut client = std::net::TcpStream::connect(address).unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        refusals.refuse(stream);
        tokio::task::spawn_blocking(move || {
            // The response is there and the host, which closes at once, would have closed.
            let mut first = [0];
            let _ = client.peek(&mut first);
            // The first write to a closed connection makes the kernel reset it, the second fails.
            let wrote = (0..2).all(|_| client.write_all(b"POST / HTTP/1.1\r\n\r\n").is_ok());
            let mut response = Vec::new();
            wrote && client.read_to_end(&mut response).is_ok() && response == FULL
        })
        .await
        .unwrap()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_client_that_writes_after_its_refusal_gets_the_response() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut refusals = Refusals::default();

        for _ in 0..2 * OPEN_MAX {
            assert!(got_it(&mut refusals, &listener).await);
        }
    }

    #[tokio::test]
    async fn clients_that_stay_are_closed_and_few_are_kept() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut refusals = Refusals::default();
        let mut clients = Vec::new();
        for _ in 0..2 * OPEN_MAX {
            clients.push(TcpStream::connect(address).await.unwrap());
            refusals.refuse(listener.accept().await.unwrap().0);
        }
        assert_eq!(refusals.open.len(), OPEN_MAX);

        tokio::time::pause();
        while refusals.open.join_next().await.is_some() {}
    }

    #[test]
    fn the_refusal_has_its_content_length() {
        let text = std::str::from_utf8(FULL).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();

        assert!(
            head.contains(&format!("content-length: {}", body.len())),
            "{}",
            body.len()
        );
        assert!(serde_json::from_str::<serde_json::Value>(body).is_ok());
    }
}
