//! The right to serve a database, and the row in which a host says that it is there. Alone, a host
//! has the right for itself: it resumes rounds and sweeps conversations, and a second one waits until
//! it is gone. Hosts that have an address for one another share the right, and each conversation
//! belongs to one of them.
//!
//! The right orders who works, and does not protect what is stored: journals are protected by their
//! heads, also from a host that was paused and does not know yet that another one took over.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use callboard_actors::{policy::HostShare, ports::StoreError};
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{MissedTickBehavior, interval},
};
use tokio_postgres::{
    Client,
    types::{ToSql, Type},
};

use super::{
    connect::{Connector, Failure, STATEMENT_MAX, within},
    error::unavailable,
};

/// How often the host says that it is there.
const BEAT: Duration = Duration::from_secs(2);

/// How long a host is sure after a beat that no other one took its conversations: well before the
/// 12 s after which others take it for dead.
const SURE: Duration = Duration::from_secs(6);

/// After how long without a beat a host counts as dead; the statements have the same number.
const DEAD: Duration = Duration::from_secs(12);

/// The holder of the right that hosts share.
const SHARED: &str = "several hosts";

/// Takes the right, and enters the host. Time is that of the database, so clocks of hosts do not
/// matter. A host that was silent for 12 s is taken for dead.
const TAKE: &str = concat!(
    "WITH old AS (DELETE FROM callboard.host WHERE beat_at < now() - interval '1 hour'), \
     taken AS (INSERT INTO callboard.serving AS s (one, holder, beat_at) VALUES (true, $1, now()) \
     ON CONFLICT (one) DO UPDATE SET holder = excluded.holder, beat_at = excluded.beat_at \
     WHERE s.holder = excluded.holder OR s.beat_at < now() - interval '12 seconds' RETURNING 1) ",
    include_str!("sql/beat.sql")
);

const RENEW: &str = concat!(
    "WITH taken AS (UPDATE callboard.serving SET beat_at = now() WHERE holder = $1 RETURNING 1) ",
    include_str!("sql/beat.sql")
);

/// The last host that leaves gives the right back.
const RELEASE: &str = "WITH gone AS (DELETE FROM callboard.host WHERE boot = $2 AND address = $3) \
     DELETE FROM callboard.serving WHERE holder = $1 AND NOT EXISTS \
     (SELECT FROM callboard.host WHERE boot <> $2 AND beat_at > now() - interval '12 seconds')";

/// What this process is to the database: a host once it has taken the right to serve.
#[derive(Debug)]
pub(super) struct Membership {
    boot: String,
    is_host: AtomicBool,
    /// Until when no other host can take this one for dead, in milliseconds since the machine
    /// started, suspended time included. 0: not any more.
    sure_until_ms: AtomicU64,
    /// From when this host believes that hosts without a beat are gone: after the database was away,
    /// none has had the time to beat. By the same clock.
    takes_over_from_ms: AtomicU64,
    /// The addresses of the other hosts that are alive, as of the last beat.
    others: Mutex<Vec<String>>,
}

impl Membership {
    /// A process that is no host yet.
    pub(super) fn new() -> Result<Self, StoreError> {
        let mut id = [0; 16];
        getrandom::fill(&mut id).map_err(|_| unavailable("the system gives no random numbers"))?;
        Ok(Self {
            boot: format!("{:032x}", u128::from_be_bytes(id)),
            is_host: AtomicBool::new(false),
            sure_until_ms: AtomicU64::new(0),
            takes_over_from_ms: AtomicU64::new(0),
            others: Mutex::default(),
        })
    }

    /// The name under which this process owns conversations; `None` if it owns none.
    pub(super) fn owner(&self) -> Option<&str> {
        self.is_host
            .load(Ordering::Acquire)
            .then_some(self.boot.as_str())
    }

    /// Whether no other host can have taken this one for dead.
    pub(super) fn is_sure(&self) -> bool {
        self.owner().is_none() || now_ms() < self.sure_until_ms.load(Ordering::Acquire)
    }

    /// Whether this host may take over the rounds of hosts that seem to be gone.
    pub(super) fn may_take_over(&self) -> bool {
        now_ms() >= self.takes_over_from_ms.load(Ordering::Acquire)
    }

    /// The addresses of the other hosts that are alive, as of the last beat.
    #[cfg_attr(not(feature = "cli"), allow(dead_code))]
    pub(super) fn others(&self) -> Vec<String> {
        self.others.lock().clone()
    }

    /// Whether other hosts are alive, as of the last beat.
    pub(super) fn has_others(&self) -> bool {
        !self.others.lock().is_empty()
    }

    /// Notes a beat that was sent at `sent_ms` and stored.
    fn confirmed(&self, sent_ms: u64) {
        let was_sure_until_ms = self
            .sure_until_ms
            .swap(after(sent_ms, SURE), Ordering::AcqRel);
        if was_sure_until_ms != 0 && was_sure_until_ms < sent_ms {
            self.takes_over_from_ms
                .store(after(sent_ms, DEAD), Ordering::Release);
        }
    }

    fn doubt(&self) {
        self.sure_until_ms.store(0, Ordering::Release);
    }
}

fn after(ms: u64, duration: Duration) -> u64 {
    ms.saturating_add(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

/// Milliseconds of a clock that goes on while the process is stopped and the machine suspended.
fn now_ms() -> u64 {
    #[cfg(target_os = "linux")]
    let clock = ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    let clock = ClockId::Monotonic;
    let now = clock_gettime(clock);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(now.tv_nsec).unwrap_or_default();
    seconds
        .saturating_mul(1000)
        .saturating_add(nanos / 1_000_000)
}

/// What a host says with each beat.
struct Host {
    connector: Arc<Connector>,
    membership: Arc<Membership>,
    holder: String,
    address: String,
}

impl Drop for Host {
    fn drop(&mut self) {
        self.membership.doubt(); // No beat follows.
    }
}

/// The right to serve a database, renewed every two seconds until it is released or dropped.
#[derive(Debug)]
#[must_use = "dropping it lets another host take over within 12 seconds"]
pub struct ServingLease {
    lost: watch::Receiver<bool>,
    share: watch::Receiver<HostShare>,
    beating: JoinHandle<()>,
    release: watch::Sender<bool>,
}

impl ServingLease {
    /// Takes the right, alone or with other hosts that have an `address`; `None` while others have
    /// it who do not share it.
    pub(super) async fn take(
        connector: Arc<Connector>,
        membership: Arc<Membership>,
        address: Option<&str>,
    ) -> Result<Option<Self>, StoreError> {
        let host = Host {
            connector,
            holder: match address {
                Some(_) => SHARED.to_owned(),
                None => membership.boot.clone(),
            },
            address: address.unwrap_or_default().to_owned(),
            membership,
        };
        let client = host.connector.connect().await.map_err(unavailable)?;
        let sent = now_ms();
        let taken = host.run(&client, TAKE).await;
        let Some(first) = taken.map_err(|failure| unavailable(failure.describe()))? else {
            return Ok(None);
        };
        host.membership.confirmed(sent);
        host.membership.is_host.store(true, Ordering::Release);
        let (losing, lost) = watch::channel(false);
        let (release, released) = watch::channel(false);
        let (sharing, share) = watch::channel(first);
        let beating = tokio::spawn(beat(host, client, (losing, sharing), released));
        Ok(Some(Self {
            lost,
            share,
            beating,
            release,
        }))
    }

    /// Waits until another host has taken over, which happens only if this one was silent for 12 s.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub async fn lost(&mut self) {
        if self.lost.wait_for(|lost| *lost).await.is_err() {
            // The task has ended with its runtime; nothing is left to lose.
            std::future::pending::<()>().await;
        }
    }

    /// This host's part of what the hosts that are alive keep together, as of the last beat.
    pub fn share(&self) -> watch::Receiver<HostShare> {
        self.share.clone()
    }

    /// Gives the right back, so that the next host need not wait.
    pub async fn release(self) {
        let _ = self.release.send(true); // Fails if the task has ended.
        let _ = self.beating.await;
    }
}

/// Renews the right until it is released or lost. A database that is away is no loss: no other host
/// can take over meanwhile.
async fn beat(
    host: Host,
    client: Client,
    (lost, sharing): (watch::Sender<bool>, watch::Sender<HostShare>),
    mut released: watch::Receiver<bool>,
) {
    let mut client = Some(client);
    let mut ticks = interval(BEAT);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let is_end = tokio::select! {
            biased;
            // An error is the drop of the lease: the right then runs out.
            released = released.wait_for(|released| *released) => match released {
                Ok(_) => true,
                Err(_) => return,
            },
            _ = ticks.tick() => false,
        };
        if client.as_ref().is_none_or(Client::is_closed) {
            client = host.connector.connect().await.ok();
        }
        let Some(open) = &client else {
            if is_end {
                return;
            }
            continue;
        };
        if is_end {
            drop(host.leave(open).await);
            return;
        }
        let sent = now_ms();
        match host.run(open, RENEW).await {
            Ok(Some(share)) => {
                host.membership.confirmed(sent);
                sharing.send_if_modified(|known| std::mem::replace(known, share) != share);
            }
            Ok(None) => {
                let _ = lost.send(true); // Fails if the lease was dropped.
                return;
            }
            Err(failure) => {
                tracing::warn!(error = %failure.describe(), "the right to serve the database was not renewed");
                if failure.is_fatal() {
                    client = None;
                }
            }
        }
    }
}

impl Host {
    /// Says that the host is there; returns its share unless the right is not its own.
    async fn run(&self, client: &Client, sql: &str) -> Result<Option<HostShare>, Failure> {
        let sql = self.connector.sql(sql);
        let [holder, boot, address] = self.names();
        let program = (
            &env!("CARGO_PKG_VERSION") as &(dyn ToSql + Sync),
            Type::TEXT,
        );
        let parameters = [holder, boot, address, program];
        let rows = within(STATEMENT_MAX, client.query_typed(&sql, &parameters)).await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let count = |column| {
            row.try_get(column)
                .map(|n: i64| u32::try_from(n).unwrap_or(0))
        };
        *self.membership.others.lock() = row.try_get(2)?;
        Ok(Some(HostShare {
            hosts: count(0)?,
            place: count(1)?,
        }))
    }

    async fn leave(&self, client: &Client) -> Result<(), Failure> {
        let sql = self.connector.sql(RELEASE);
        within(STATEMENT_MAX, client.query_typed(&sql, &self.names())).await?;
        Ok(())
    }

    fn names(&self) -> [(&(dyn ToSql + Sync), Type); 3] {
        [
            (&self.holder, Type::TEXT),
            (&self.membership.boot, Type::TEXT),
            (&self.address, Type::TEXT),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_missed_beats_gives_the_others_time_to_beat_before_it_takes_over() {
        let membership = Membership::new().unwrap();
        let takes_over_from = || membership.takes_over_from_ms.load(Ordering::Acquire);

        for sent in [1000, 3000, 5000] {
            membership.confirmed(sent);
        }
        assert_eq!(takes_over_from(), 0);
        assert!(membership.may_take_over());
        // The database was away.
        membership.confirmed(40_000);

        assert_eq!(takes_over_from(), 52_000);
        membership.confirmed(42_000);
        assert_eq!(takes_over_from(), 52_000);
    }
}
