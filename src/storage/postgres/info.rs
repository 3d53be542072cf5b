//! What `callboard doctor` reports about a database.

use tokio_postgres::Error;

use super::{
    error::unavailable,
    read::{Failed, Reader},
};
use crate::storage::commit::columns::{nat, now};

/// What [`super::Postgres::info`] reports about a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseInfo {
    /// The version of the server, such as `15.18`.
    pub server: String,
    /// The version of the tables.
    pub schema: u64,
    /// Stored conversations of all tenants.
    pub conversations: u64,
    /// Hosts that serve the database now.
    pub hosts: Vec<DatabaseHost>,
    /// How far this machine's clock is ahead of the server's, in milliseconds; negative if it is
    /// behind. As exact as half of the query's time.
    pub clock_ahead_ms: i64,
    /// Connections of all programs to the server, and how many it takes.
    pub connections: (u64, u64),
    /// Servers that follow this one now.
    pub replicas: u64,
    /// The table that every append changes.
    pub head: HeadTable,
}

/// A host that serves a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseHost {
    /// Where the others reach it; empty if they do not.
    pub address: String,
    /// The version of its program; empty for one that does not say it yet.
    pub program: String,
    /// Milliseconds since it said that it is there.
    pub beat_ms: u64,
}

/// The table with the ends of journals, as the server counts since its last reset of statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadTable {
    /// Rows that were changed.
    pub updates: u64,
    /// Of those, changed within their page, without a change of an index.
    pub hot: u64,
    /// Old versions of rows that wait for a vacuum.
    pub dead: u64,
    /// Rows.
    pub rows: u64,
    /// Bytes of the table without its index.
    pub bytes: u64,
}

impl HeadTable {
    /// The share of changes within a page, in percent, rounded down; `None` without changes.
    pub fn hot_percent(&self) -> Option<u64> {
        self.hot.saturating_mul(100).checked_div(self.updates)
    }
}

impl Reader<'_> {
    pub(super) async fn info(&self) -> Result<DatabaseInfo, Failed> {
        let before = now();
        let rows = self.query(include_str!("sql/info.sql"), &[]).await?;
        let here = before.midpoint(now());
        let row = rows
            .first()
            .ok_or_else(|| unavailable("the database did not answer as expected"))?;
        let count = |column: usize| row.try_get(column).map(nat);
        let hosts = self.query(include_str!("sql/info_hosts.sql"), &[]).await?;
        let hosts = hosts.iter().map(|host| {
            Ok(DatabaseHost {
                address: host.try_get(0)?,
                program: host.try_get(1)?,
                beat_ms: nat(host.try_get(2)?),
            })
        });
        Ok(DatabaseInfo {
            server: row.try_get(0)?,
            schema: count(1)?,
            conversations: count(2)?,
            hosts: hosts.collect::<Result<_, Error>>()?,
            clock_ahead_ms: here.saturating_sub(row.try_get(3)?),
            connections: (count(4)?, count(5)?),
            replicas: count(6)?,
            head: HeadTable {
                updates: count(7)?,
                hot: count(8)?,
                dead: count(9)?,
                rows: count(10)?,
                bytes: count(11)?,
            },
        })
    }
}
