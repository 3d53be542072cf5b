//! The right to serve a database. One host at a time resumes rounds and sweeps conversations; a
//! second one waits until the first is gone.
//!
//! The right orders who works, and does not protect what is stored: journals are protected by their
//! heads, also from a host that was paused and does not know yet that another one took over.

use std::{sync::Arc, time::Duration};

use callboard_actors::ports::StoreError;
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
const BEAT: Duration = Duration::from_secs(5);

/// Takes or renews the right. Time is that of the database, so clocks of hosts do not matter. A
/// host that was silent for 15 s, three beats, is taken for dead.
const TAKE: &str = "INSERT INTO callboard.serving AS s (one, holder, beat_at) VALUES (true, $1, now()) \
     ON CONFLICT (one) DO UPDATE SET holder = excluded.holder, beat_at = excluded.beat_at \
     WHERE s.holder = excluded.holder OR s.beat_at < now() - interval '15 seconds' RETURNING 1";

const RENEW: &str = "UPDATE callboard.serving SET beat_at = now() WHERE holder = $1 RETURNING 1";

const RELEASE: &str = "DELETE FROM callboard.serving WHERE holder = $1";

/// The right to serve a database, renewed every five seconds until it is released or dropped.
#[derive(Debug)]
#[must_use = "dropping it lets another host take over within 15 seconds"]
pub struct ServingLease {
    lost: watch::Receiver<bool>,
    beating: JoinHandle<()>,
    release: watch::Sender<bool>,
}

impl ServingLease {
    /// Takes the right; `None` while another host has it.
    pub(super) async fn take(connector: Arc<Connector>) -> Result<Option<Self>, StoreError> {
        let mut id = [0; 16];
        getrandom::fill(&mut id).map_err(|_| unavailable("the system gives no random numbers"))?;
        let holder = format!("{:032x}", u128::from_be_bytes(id));
        let client = connector.connect().await.map_err(unavailable)?;
        let taken = run(&connector, &client, TAKE, &holder).await;
        if !taken.map_err(|failure| unavailable(failure.describe()))? {
            return Ok(None);
        }
        let (losing, lost) = watch::channel(false);
        let (release, released) = watch::channel(false);
        let beating = tokio::spawn(beat(connector, client, holder, losing, released));
        Ok(Some(Self {
            lost,
            beating,
            release,
        }))
    }

    /// Waits until another host has taken over, which happens only if this one was silent for 15 s.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub async fn lost(&mut self) {
        if self.lost.wait_for(|lost| *lost).await.is_err() {
            // The task has ended with its runtime; nothing is left to lose.
            std::future::pending::<()>().await;
        }
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
    connector: Arc<Connector>,
    client: Client,
    holder: String,
    lost: watch::Sender<bool>,
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
            client = connector.connect().await.ok();
        }
        let Some(open) = &client else {
            if is_end {
                return;
            }
            continue;
        };
        if is_end {
            drop(run(&connector, open, RELEASE, &holder).await);
            return;
        }
        match run(&connector, open, RENEW, &holder).await {
            Ok(true) => {}
            Ok(false) => {
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

/// Whether a statement found a row.
async fn run(
    connector: &Connector,
    client: &Client,
    sql: &str,
    holder: &str,
) -> Result<bool, Failure> {
    let sql = connector.sql(sql);
    let parameters: [(&(dyn ToSql + Sync), Type); 1] = [(&holder, Type::TEXT)];
    let rows = within(STATEMENT_MAX, client.query_typed(&sql, &parameters)).await?;
    Ok(!rows.is_empty())
}
