//! How fast the frames of an HTTP/2 connection are read. Frames that are no part of a request or an
//! answer (`SETTINGS`, `PING`, `PRIORITY`, `WINDOW_UPDATE`), and data of a few bytes, take ten bytes of a
//! peer and cost this side as much as hundreds of bytes of a body. A connection may bring some at once,
//! some for each request and for what is written on it, and then few; data of a few bytes only until
//! its request takes it. The payload of larger data is bounded by the windows.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicIsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::task::AtomicWaker;
use tokio::{
    io::{AsyncRead, ReadBuf},
    time::{Instant, Sleep, sleep},
};

use crate::read_turns::{TURN, Turns};

/// Bytes that a frame which counts takes of a turn, beside its own.
const OF_FRAME: usize = 512;

/// Frames that a connection may bring before its first request, those that each request adds, and
/// those that it may have at most.
const FIRST: isize = 256;
const OF_REQUEST: isize = 16;
const MOST: isize = 4096;

/// Frames that each pause adds, for a connection that has none left.
const OF_PAUSE: isize = 32;
const PAUSE: Duration = Duration::from_millis(250);

/// Pauses one after the other after which a connection is closed.
const PAUSES_MAX: u32 = 24;

/// Bytes written that add a frame: the peer acknowledges the data of some events with two.
const WRITTEN: usize = 48;

/// The kind of frames with data.
const DATA: u8 = 0;

/// Bytes of data of a client with which it does not count as a frame: a frame takes some hundred bytes
/// of memory until its request takes it.
#[cfg(any(test, feature = "http"))]
const LARGE_DATA: usize = 1024;

/// Payload of other frames that counts as one more.
const OF_PAYLOAD: usize = 256;

/// The frames that a connection may bring.
#[derive(Debug, Clone)]
pub(crate) struct Pace(Arc<Left>);

#[derive(Debug)]
struct Left {
    frames: AtomicIsize,
    /// The task of the connection, while it waits for more.
    waits: AtomicWaker,
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Left {
            frames: AtomicIsize::new(FIRST),
            waits: AtomicWaker::new(),
        }))
    }

    /// A request begins.
    pub(crate) fn request(&self) {
        self.add(OF_REQUEST);
    }

    /// Data was taken by the request that it is for: if its frame counted, another may come.
    #[cfg(any(test, feature = "http"))]
    pub(crate) fn took(&self, bytes: usize) {
        self.add(isize::from(bytes < LARGE_DATA));
    }

    /// Bytes were written.
    pub(crate) fn wrote(&self, bytes: usize) {
        self.add(isize::try_from(bytes / WRITTEN).unwrap_or(MOST));
    }

    fn add(&self, frames: isize) {
        if frames == 0 {
            return;
        }
        let more = |left: isize| Some(left.saturating_add(frames).min(MOST));
        let before = self
            .0
            .frames
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        if before.is_ok_and(|left| left <= 0) {
            self.0.waits.wake();
        }
    }

    fn is_used_up(&self) -> bool {
        self.0.frames.load(Ordering::Relaxed) <= 0
    }

    fn take(&self, frames: isize) {
        self.0.frames.fetch_sub(frames, Ordering::Relaxed);
    }
}

/// Reads the socket of a connection.
#[derive(Debug)]
pub(crate) struct Reads {
    pace: Pace,
    /// `None` while the connection is not known to be one of HTTP/2.
    heads: Option<Heads>,
    /// Payload with which data does not count.
    large_data: usize,
    /// With which connections it takes turns; `None` for one that only lets other tasks have theirs.
    turns: Option<Turns>,
    /// Bytes read since then.
    in_turn: usize,
    pause: Option<Pin<Box<Sleep>>>,
    /// Pauses one after the other, and when the last one ended.
    pauses: u32,
    paused: Instant,
}

impl Reads {
    /// Reads the connection of a client: data of few bytes counts until its request takes it.
    #[cfg(feature = "http")]
    pub(crate) fn of_client(pace: Pace, turns: Turns) -> Self {
        Self::new(pace, LARGE_DATA, Some(turns))
    }

    /// Reads the connection to a server. It sends each token by itself, and what it sends is bounded
    /// by the window of the connection and where it is decoded, so no data counts.
    #[cfg(feature = "_provider")]
    pub(crate) fn of_server(pace: Pace) -> Self {
        Self::new(pace, 0, None)
    }

    fn new(pace: Pace, large_data: usize, turns: Option<Turns>) -> Self {
        Self {
            pace,
            heads: None,
            large_data,
            turns,
            in_turn: 0,
            pause: None,
            pauses: 0,
            paused: Instant::now(),
        }
    }

    /// Counts frames from now on, and those that have been read already.
    pub(crate) fn begin(&mut self, read: &[u8]) {
        let mut heads = Heads::default();
        self.pace.take(heads.count(read, self.large_data));
        self.heads = Some(heads);
    }

    /// Reads once, when the connection may bring more.
    pub(crate) fn poll_read<S: AsyncRead + Unpin>(
        &mut self,
        socket: &mut S,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.turns {
            Some(turns) => ready!(turns.poll(context)),
            None if self.in_turn >= TURN => {
                self.in_turn = 0;
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            None => {}
        }
        while self.heads.is_some() && self.pace.is_used_up() {
            self.pace.0.waits.register(context.waker());
            if !self.pace.is_used_up() {
                break;
            }
            let pause = self.pause.get_or_insert_with(|| Box::pin(sleep(PAUSE)));
            ready!(pause.as_mut().poll(context));
            self.pause = None;
            self.count_pause()?;
            self.pace.add(OF_PAUSE);
        }
        let before = buffer.filled().len();
        ready!(Pin::new(socket).poll_read(context, buffer))?;
        let read = buffer.filled().get(before..).unwrap_or_default();
        self.in_turn += read.len();
        let mut frames = 0;
        if let Some(heads) = &mut self.heads {
            frames = heads.count(read, self.large_data);
            self.pace.take(frames);
        }
        if let Some(turns) = &mut self.turns {
            turns.count(read.len() + frames.unsigned_abs() * OF_FRAME);
        }
        Poll::Ready(Ok(()))
    }

    /// Counts a pause that has ended.
    fn count_pause(&mut self) -> io::Result<()> {
        // A pause and some time in which frames were left: the peer is not one that never stops.
        if self.paused.elapsed() > 2 * PAUSE {
            self.pauses = 0;
        }
        self.pauses += 1;
        self.paused = Instant::now();
        match self.pauses < PAUSES_MAX {
            true => Ok(()),
            false => Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "very many frames that are no request, all the time",
            )),
        }
    }
}

/// Finds the heads of frames.
#[derive(Debug, Default)]
struct Heads {
    head: [u8; 9],
    /// Bytes of the next head that are known.
    known: usize,
    /// Bytes of the last frame's payload that are still to come.
    payload: usize,
}

impl Heads {
    /// Takes the next bytes of a connection. Returns the frames that begin in them and count.
    fn count(&mut self, mut bytes: &[u8], large_data: usize) -> isize {
        let mut count = 0;
        while !bytes.is_empty() {
            let (passed, rest) = bytes.split_at(self.payload.min(bytes.len()));
            self.payload -= passed.len();
            let (more, rest) = rest.split_at(rest.len().min(self.head.len() - self.known));
            bytes = rest;
            for (byte, at) in more.iter().zip(self.head.iter_mut().skip(self.known)) {
                *at = *byte;
            }
            self.known += more.len();
            if self.known == self.head.len() {
                let [high, middle, low, kind, ..] = self.head;
                self.known = 0;
                self.payload = u32::from_be_bytes([0, high, middle, low]) as usize;
                count += match kind == DATA {
                    true => isize::from(self.payload < large_data),
                    // At most 2^24 bytes.
                    false => 1 + (self.payload / OF_PAYLOAD) as isize,
                };
            }
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;

    fn frame(kind: u8, payload: usize) -> Vec<u8> {
        let [_, high, middle, low] = u32::try_from(payload).unwrap().to_be_bytes();
        let mut bytes = vec![high, middle, low, kind, 0, 0, 0, 0, 1];
        bytes.extend(vec![7; payload]);
        bytes
    }

    #[test]
    fn frames_are_counted_however_they_are_cut() {
        let frames = [
            (DATA, 16_384),
            (SETTINGS, 0),
            (DATA, 63),
            (DATA, 64),
            (SETTINGS, 600),
            (DATA, 0),
            (HEADERS, 100),
        ];
        let bytes: Vec<u8> = frames
            .iter()
            .flat_map(|(kind, payload)| frame(*kind, *payload))
            .collect();

        for size in [1, 2, 8, 9, 10, 13, 100, 4096, bytes.len()] {
            let mut heads = Heads::default();
            let count: isize = bytes.chunks(size).map(|part| heads.count(part, 64)).sum();
            assert_eq!(count, 1 + 1 + 3 + 1 + 1, "cut every {size} bytes");
        }
    }

    /// Reads bytes as they come. Returns how many were read before the first pause.
    async fn read_without_a_pause(bytes: &[u8], add: impl Fn(&Pace)) -> usize {
        read_of(LARGE_DATA, bytes, add).await
    }

    async fn read_of(large_data: usize, bytes: &[u8], add: impl Fn(&Pace)) -> usize {
        let pace = Pace::new();
        let mut reads = Reads::new(pace.clone(), large_data, None);
        reads.begin(&[]);
        let (mut left, mut room) = (bytes, [0; 512]);
        let began = Instant::now();
        while !left.is_empty() {
            let read = poll_fn(|context| {
                let mut buffer = ReadBuf::new(&mut room);
                let read = reads.poll_read(&mut left, context, &mut buffer);
                read.map_ok(|()| buffer.filled().len())
            });
            read.await.unwrap();
            if began.elapsed() >= PAUSE {
                break;
            }
            add(&pace);
        }
        bytes.len() - left.len()
    }

    #[tokio::test(start_paused = true)]
    async fn frames_that_are_no_request_are_read_slowly() {
        let settings = frame(SETTINGS, 0).repeat(10_000);
        let few = 2 * usize::try_from(FIRST).unwrap() * 9;

        // Each is acknowledged by as many bytes.
        let read = read_without_a_pause(&settings, |pace| pace.wrote(9)).await;
        assert!((1_000..few).contains(&read), "{read}");
        let bytes = frame(DATA, 1).repeat(10_000);
        let read = read_without_a_pause(&bytes, |_| {}).await;
        assert!((1_000..few).contains(&read), "{read}");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_bodies_and_acknowledgements_are_read_without_a_pause() {
        let requests = frame(HEADERS, 200).repeat(1_000);
        let small = frame(DATA, 500).repeat(10_000);
        let body = frame(DATA, 16_384).repeat(100);
        let tokens = frame(DATA, 2).repeat(10_000);
        assert_eq!(read_without_a_pause(&body, |_| {}).await, body.len());
        assert_eq!(read_of(0, &tokens, |_| {}).await, tokens.len());
        // Each read brings at most one of them.
        let read = read_without_a_pause(&small, |pace| pace.took(500)).await;
        assert_eq!(read, small.len());
        let read = read_without_a_pause(&requests, Pace::request).await;
        assert_eq!(read, requests.len());
        // Two acknowledgements for each event of 120 bytes; twenty are read at once.
        let acknowledged = frame(8, 4).repeat(10_000);
        let read = read_without_a_pause(&acknowledged, |pace| pace.wrote(20 * 120)).await;
        assert_eq!(read, acknowledged.len());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_waits_goes_on_with_a_request_or_after_a_pause() {
        let pace = Pace::new();
        let mut reads = Reads::new(pace.clone(), LARGE_DATA, None);
        reads.begin(&frame(SETTINGS, 0).repeat(256));
        let (mut left, mut room) = (&[0_u8; 9][..], [0; 512]);
        let mut read = async || {
            poll_fn(|context| reads.poll_read(&mut left, context, &mut ReadBuf::new(&mut room)))
                .await
        };
        let began = Instant::now();

        let (read_once, ()) = tokio::join!(read(), async { pace.request() });
        read_once.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO);
        pace.take(OF_REQUEST);
        read().await.unwrap();
        assert_eq!(began.elapsed(), PAUSE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_brings_very_many_all_the_time_is_closed() {
        let settings = frame(SETTINGS, 0).repeat(10_000);
        let mut left = &settings[..];
        let mut reads = Reads::new(Pace::new(), LARGE_DATA, None);
        reads.begin(&[]);
        let mut room = [0; 512];
        let mut read = async || {
            poll_fn(|context| reads.poll_read(&mut left, context, &mut ReadBuf::new(&mut room)))
                .await
        };
        let began = Instant::now();

        // One that rests now and then goes on.
        for _ in 0..2 * PAUSES_MAX {
            let before = Instant::now();
            while before.elapsed() < PAUSE {
                read().await.unwrap();
            }
            tokio::time::advance(3 * PAUSE).await;
        }
        let rested = Instant::now();
        while read().await.is_ok() {}

        assert!(began < rested && rested.elapsed() <= PAUSES_MAX * PAUSE);
    }

    #[tokio::test]
    async fn other_tasks_have_their_turn_between_two_reads() {
        let mut reads = Reads::new(Pace::new(), LARGE_DATA, None);
        let bytes = vec![7; 3 * TURN];
        let (mut left, mut room) = (&bytes[..], vec![0; bytes.len()]);
        let mut turns = 0;

        let waker = futures_util::task::noop_waker();
        let mut context = Context::from_waker(&waker);
        while !left.is_empty() {
            let mut buffer = ReadBuf::new(&mut room[..TURN / 2]);
            turns += usize::from(
                reads
                    .poll_read(&mut left, &mut context, &mut buffer)
                    .is_pending(),
            );
        }

        assert_eq!(turns, 2);
    }
}
