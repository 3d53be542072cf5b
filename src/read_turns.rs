//! How fast the connections of all clients are read together. Each part of some kibibytes that a
//! connection brings is a turn. A host has only some in a second, and the addresses that bring more
//! than that share them, so that hundreds of connections that send without a pause do not keep
//! the worker threads from others.

use std::{
    collections::HashMap,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep_until};

/// Turns in a second for each processor: they take a quarter of it or less.
const OF_PROCESSOR: u32 = 25_000;

/// Bytes of a turn.
pub(crate) const TURN: usize = 4 * 1024;

/// A turn that is due within this time is taken at once: a timer takes up to two milliseconds longer.
const AT_ONCE: Duration = Duration::from_millis(5);

/// An address that had no turn for this long shares none, which is looked at this often.
const RESTED: Duration = Duration::from_millis(100);
const LOOKED_AT: Duration = Duration::from_millis(20);

/// The turns of all addresses.
#[derive(Debug)]
pub(crate) struct ReadTurns {
    /// The time of a turn.
    turn: Duration,
    all: Mutex<Due>,
}

#[derive(Debug)]
struct Due {
    /// When the next turn of each address is due.
    next: HashMap<IpAddr, Instant>,
    /// When those that rest were removed.
    looked: Instant,
}

impl ReadTurns {
    pub(crate) fn new(processors: usize) -> Arc<Self> {
        let processors = u32::try_from(processors.max(1)).unwrap_or(u32::MAX);
        let turn = Duration::from_secs(1) / OF_PROCESSOR.saturating_mul(processors);
        Arc::new(Self {
            turn,
            all: Mutex::new(Due {
                next: HashMap::new(),
                looked: Instant::now(),
            }),
        })
    }

    /// Takes turns for an address. Returns when they are due, if that is later than now.
    fn take(&self, address: IpAddr, turns: usize, now: Instant) -> Option<Instant> {
        let mut all = self.all.lock();
        if now > all.looked + LOOKED_AT {
            all.looked = now;
            all.next.retain(|_, next| *next + RESTED > now);
        }
        let sharing = all.next.len() + usize::from(!all.next.contains_key(&address));
        let times = u32::try_from(turns.saturating_mul(sharing)).unwrap_or(u32::MAX);
        let next = all.next.entry(address).or_insert(now);
        let due = (*next).max(now);
        *next = due + self.turn.saturating_mul(times);
        (due > now + AT_ONCE).then_some(due)
    }
}

/// The turns of one connection.
#[derive(Debug)]
pub(crate) struct Turns {
    all: Arc<ReadTurns>,
    address: IpAddr,
    /// What was read since the last turn.
    read: usize,
    waits: Option<Pin<Box<Sleep>>>,
}

impl Turns {
    pub(crate) fn new(all: Arc<ReadTurns>, address: IpAddr) -> Self {
        Self {
            all,
            address,
            read: 0,
            waits: None,
        }
    }

    /// Counts what was read.
    pub(crate) fn count(&mut self, bytes: usize) {
        self.read = self.read.saturating_add(bytes);
    }

    /// Waits for the turn of the next bytes, or lets other tasks have theirs.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(waits) = &mut self.waits {
            std::task::ready!(waits.as_mut().poll(context));
            self.waits = None;
            return Poll::Ready(());
        }
        if self.read < TURN {
            return Poll::Ready(());
        }
        let turns = self.read / TURN;
        self.read %= TURN;
        match self.all.take(self.address, turns, Instant::now()) {
            None => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Some(due) => {
                let waits = self.waits.insert(Box::pin(sleep_until(due)));
                waits.as_mut().poll(context).map(|()| self.waits = None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(last: u8) -> IpAddr {
        Ipv4Addr::new(192, 0, 2, last).into()
    }

    /// Turns of an address within a second, if each connection waits for its own.
    fn in_a_second(turns: &ReadTurns, connections: usize, others: usize) -> usize {
        let began = Instant::now();
        let mut now = began;
        let mut count = 0;
        while now < began + Duration::from_secs(1) {
            let mut due_at = now;
            for _ in 0..connections {
                let due = turns.take(address(0), 1, now);
                count += 1;
                due_at = due_at.max(due.unwrap_or(now));
            }
            for other in 1..=others {
                let other = address(u8::try_from(other).unwrap());
                let _ = turns.take(other, 1, now);
            }
            now = due_at.max(now + Duration::from_micros(10));
        }
        count
    }

    #[test]
    fn addresses_share_what_is_read_in_a_second() {
        let alone = in_a_second(&ReadTurns::new(2), 900, 0);
        let shared = in_a_second(&ReadTurns::new(2), 900, 3);

        assert!((45_000..56_000).contains(&alone), "{alone}");
        assert!((11_000..15_000).contains(&shared), "{shared}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_waits_for_its_turn_and_one_of_another_address_goes_on() {
        let all = ReadTurns::new(2);
        let mut many: Vec<Turns> = (0..900)
            .map(|_| Turns::new(all.clone(), address(0)))
            .collect();
        let mut other = Turns::new(all.clone(), address(1));
        let read = |turns: &mut Turns| {
            turns.count(TURN);
            let context = &mut Context::from_waker(std::task::Waker::noop());
            let first = turns.poll(context).is_ready();
            // After a yield it goes on, unless it waits.
            first || turns.poll(context).is_ready()
        };

        let at_once: usize = many.iter_mut().map(|turns| usize::from(read(turns))).sum();
        assert!((240..320).contains(&at_once), "{at_once}");
        assert!(read(&mut other));

        tokio::time::advance(Duration::from_millis(20)).await;
        let all_go_on = tokio::task::unconstrained(async {
            let context = &mut Context::from_waker(std::task::Waker::noop());
            many.iter_mut().all(|turns| turns.poll(context).is_ready())
        });
        assert!(all_go_on.await);
    }
}
