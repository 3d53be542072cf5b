//! The open connections: how many there are, what each carries, and how to end one alone.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// What a mock's connections carry. A stream is one exchange, from the head of the request to the
/// end of the answer; HTTP/1.1 has one at a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConnectionCounts {
    /// Connections accepted since the start.
    pub accepted: u64,
    /// Connections open now.
    pub open: usize,
    /// Streams open now, on all connections.
    pub streams: usize,
    /// The most streams that one connection had at once.
    pub streams_max: usize,
}

/// One connection, as its handlers and the handle of the mock see it.
#[derive(Debug, Clone, Default)]
pub(super) struct Link(Arc<Ends>);

#[derive(Debug, Default)]
struct Ends {
    reset: CancellationToken,
    drain: CancellationToken,
    streams: AtomicUsize,
}

impl Link {
    /// Resets the connection. The peer receives no byte after this.
    pub(super) fn reset(&self) {
        self.0.reset.cancel();
    }

    pub(super) fn is_reset(&self) -> bool {
        self.0.reset.is_cancelled()
    }

    /// Returns when the connection is to be reset.
    pub(super) async fn when_reset(&self) {
        self.0.reset.cancelled().await;
    }

    /// Returns when the connection is to end after its open streams.
    pub(super) async fn when_drained(&self) {
        self.0.drain.cancelled().await;
    }
}

/// All connections of a server.
#[derive(Debug, Default)]
pub(super) struct Connections {
    table: Mutex<Table>,
    streams: AtomicUsize,
    streams_max: AtomicUsize,
}

#[derive(Debug, Default)]
struct Table {
    accepted: u64,
    open: BTreeMap<u64, Link>,
}

impl Connections {
    /// Adds a connection. Dropping the returned value removes it.
    pub(super) fn opened(self: &Arc<Self>) -> Open {
        let link = Link::default();
        let mut table = self.table.lock();
        let index = table.accepted;
        table.accepted += 1;
        table.open.insert(index, link.clone());
        drop(table);
        Open {
            all: self.clone(),
            index,
            link,
        }
    }

    /// Resets the connection with this index; false if it is not open.
    pub(super) fn reset(&self, index: u64) -> bool {
        self.with(index, Link::reset)
    }

    /// Ends the connection with this index after its open streams; false if it is not open.
    pub(super) fn drain(&self, index: u64) -> bool {
        self.with(index, |link| link.0.drain.cancel())
    }

    fn with(&self, index: u64, act: impl FnOnce(&Link)) -> bool {
        let link = self.table.lock().open.get(&index).cloned();
        link.as_ref().map(act).is_some()
    }

    pub(super) fn counts(&self) -> ConnectionCounts {
        let table = self.table.lock();
        ConnectionCounts {
            accepted: table.accepted,
            open: table.open.len(),
            streams: self.streams.load(Ordering::Acquire),
            streams_max: self.streams_max.load(Ordering::Acquire),
        }
    }
}

/// An open connection in the table.
#[derive(Debug)]
pub(super) struct Open {
    all: Arc<Connections>,
    index: u64,
    pub(super) link: Link,
}

impl Open {
    /// Access to the connection for its streams.
    pub(super) fn exchanges(&self) -> Exchanges {
        Exchanges {
            all: self.all.clone(),
            link: self.link.clone(),
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.all.table.lock().open.remove(&self.index);
    }
}

/// Counts the streams of one connection.
#[derive(Debug, Clone)]
pub(super) struct Exchanges {
    all: Arc<Connections>,
    pub(super) link: Link,
}

impl Exchanges {
    /// Counts a stream. Dropping the returned value ends it.
    pub(super) fn begin(&self) -> Exchange {
        self.all.streams.fetch_add(1, Ordering::AcqRel);
        let here = self.link.0.streams.fetch_add(1, Ordering::AcqRel) + 1;
        self.all.streams_max.fetch_max(here, Ordering::AcqRel);
        Exchange(self.clone())
    }
}

/// One open stream.
#[derive(Debug)]
pub(super) struct Exchange(Exchanges);

impl Drop for Exchange {
    fn drop(&mut self) {
        self.0.link.0.streams.fetch_sub(1, Ordering::AcqRel);
        self.0.all.streams.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_counted_for_each_connection_and_together() {
        let all = Arc::new(Connections::default());
        let (first, second) = (all.opened(), all.opened());

        let two = [first.exchanges().begin(), first.exchanges().begin()];
        let one = second.exchanges().begin();

        let counts = |accepted, open, streams, streams_max| ConnectionCounts {
            accepted,
            open,
            streams,
            streams_max,
        };
        assert_eq!(all.counts(), counts(2, 2, 3, 2));
        drop((two, first));
        assert_eq!(all.counts(), counts(2, 1, 1, 2));
        drop((one, second));
        assert_eq!(all.counts(), counts(2, 0, 0, 2));
    }

    #[test]
    fn a_reset_reaches_the_connection_with_that_index_alone() {
        let all = Arc::new(Connections::default());
        let (first, second) = (all.opened(), all.opened());

        assert!(all.reset(0));

        assert!(first.link.is_reset() && !second.link.is_reset());
        drop(first);
        assert!(!all.reset(0) && !all.reset(7));
    }
}
