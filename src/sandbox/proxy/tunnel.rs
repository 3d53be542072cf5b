//! Copies bytes between a command and a host, within a byte budget, until both sides are silent for
//! too long.

use std::{
    io,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::Instant,
};

/// Buffer size for each direction, in bytes.
const BUFFER_BYTES: usize = 16 * 1024;

/// Bytes that a command may still send and receive.
#[derive(Debug)]
pub(super) struct Budget(AtomicU64);

/// The budget is used up.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UsedUp;

impl Budget {
    pub(super) fn new(bytes: u64) -> Self {
        Self(AtomicU64::new(bytes))
    }

    fn take(&self, count: usize) -> Result<(), UsedUp> {
        let less = |left: u64| left.checked_sub(count as u64);
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .map(drop)
            .map_err(|_| UsedUp)
    }
}

/// Detects idleness. Only idleness in both directions counts, since one direction may be quiet for
/// long.
struct IdleTimer {
    start: Instant,
    /// Milliseconds from the start to the last byte received.
    last_byte: AtomicU64,
    idle: Duration,
}

impl IdleTimer {
    fn new(idle: Duration) -> Self {
        Self {
            start: Instant::now(),
            last_byte: AtomicU64::new(0),
            idle,
        }
    }

    fn reset(&self) {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_byte.store(now, Ordering::Relaxed);
    }

    async fn expired(&self) {
        loop {
            let until = self.start
                + Duration::from_millis(self.last_byte.load(Ordering::Relaxed))
                + self.idle;
            if Instant::now() >= until {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }
}

/// Copies bytes in both directions until both have ended.
pub(super) async fn both(
    client: impl AsyncRead + AsyncWrite + Unpin,
    server: impl AsyncRead + AsyncWrite + Unpin,
    first: &[u8],
    idle: Duration,
    budget: &Budget,
) -> Result<(), UsedUp> {
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_server, mut to_server) = tokio::io::split(server);
    let timer = IdleTimer::new(idle);
    let up = async {
        send(&mut to_server, first, &timer, budget).await?;
        carry(&mut from_client, &mut to_server, u64::MAX, &timer, budget).await?;
        to_server.shutdown().await.map_err(End::from)
    };
    let down = async {
        carry(&mut from_server, &mut to_client, u64::MAX, &timer, budget).await?;
        to_client.shutdown().await.map_err(End::from)
    };
    ended(tokio::select! {
        both = async { tokio::try_join!(up, down) } => both.map(drop),
        () = timer.expired() => Ok(()),
    })
}

/// Copies one request and its answer. Bytes after the request's body are not forwarded, since they
/// could be a request to another host on the same server.
pub(super) async fn exchange(
    client: impl AsyncRead + AsyncWrite + Unpin,
    server: impl AsyncRead + AsyncWrite + Unpin,
    head: &[u8],
    first: &[u8],
    body_bytes: u64,
    idle: Duration,
    budget: &Budget,
) -> Result<(), UsedUp> {
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_server, mut to_server) = tokio::io::split(server);
    let timer = IdleTimer::new(idle);
    let first = first
        .get(..usize::try_from(body_bytes).unwrap_or(usize::MAX))
        .unwrap_or(first);
    let request = async {
        send(&mut to_server, head, &timer, budget).await?;
        send(&mut to_server, first, &timer, budget).await?;
        carry(
            &mut from_client,
            &mut to_server,
            body_bytes.saturating_sub(first.len() as u64),
            &timer,
            budget,
        )
        .await
    };
    let up = async {
        match request.await {
            Err(End::UsedUp) => Err(End::UsedUp),
            // The answer ends the exchange, even if the server stopped reading the request.
            Ok(()) | Err(End::Broken) => std::future::pending().await,
        }
    };
    let down = async {
        carry(&mut from_server, &mut to_client, u64::MAX, &timer, budget).await?;
        to_client.shutdown().await.map_err(End::from)
    };
    ended(tokio::select! {
        down = down => down,
        up = up => up,
        () = timer.expired() => Ok(()),
    })
}

/// Why one direction ended early.
enum End {
    UsedUp,
    Broken,
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> Self {
        Self::Broken
    }
}

fn ended(result: Result<(), End>) -> Result<(), UsedUp> {
    match result {
        Err(End::UsedUp) => Err(UsedUp),
        Ok(()) | Err(End::Broken) => Ok(()),
    }
}

async fn send(
    to: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
    timer: &IdleTimer,
    budget: &Budget,
) -> Result<(), End> {
    budget.take(bytes.len()).map_err(|UsedUp| End::UsedUp)?;
    to.write_all(bytes).await?;
    timer.reset();
    Ok(())
}

async fn carry(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    most: u64,
    timer: &IdleTimer,
    budget: &Budget,
) -> Result<(), End> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut left = most;
    while left > 0 {
        let room = BUFFER_BYTES.min(usize::try_from(left).unwrap_or(usize::MAX));
        let count = from
            .read(buffer.get_mut(..room).unwrap_or_default())
            .await?;
        if count == 0 {
            break;
        }
        timer.reset();
        send(to, buffer.get(..count).unwrap_or_default(), timer, budget).await?;
        left -= count as u64;
    }
    Ok(())
}
