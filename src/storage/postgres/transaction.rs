//! Transactions over a connection of [`Readers`](super::readers::Readers).

use std::{future::Future, time::Duration};

use tokio_postgres::{
    Row,
    types::{ToSql, Type},
};

use super::{
    connect::{IDLE_MAX, STATEMENT_MAX, within},
    read::{Failed, Reader},
};

pub(super) type Parameters<'a> = [(&'a (dyn ToSql + Sync), Type)];

impl Reader<'_> {
    /// Runs a statement, for at most this long.
    pub(super) async fn run(
        &self,
        limit: Duration,
        sql: &str,
        parameters: &Parameters<'_>,
    ) -> Result<Vec<Row>, Failed> {
        let sql = self.connector.sql(sql);
        Ok(within(limit, self.client.query_typed(&sql, parameters)).await?)
    }

    async fn control(&self, sql: &str) -> Result<(), Failed> {
        Ok(within(STATEMENT_MAX, self.client.batch_execute(sql)).await?)
    }

    /// Runs `work` in a transaction, which is committed if it returns `Ok(Ok(…))` and rolled back
    /// otherwise.
    pub(super) async fn transaction<T, E>(
        &self,
        work: impl Future<Output = Result<Result<T, E>, Failed>>,
    ) -> Result<Result<T, E>, Failed> {
        self.control(&format!("BEGIN; {IDLE_MAX}")).await?;
        let made = work.await;
        if let Ok(Ok(made)) = made {
            self.control("COMMIT").await?;
            return Ok(Ok(made));
        }
        // After a fatal failure the connection is given up, which rolls back too.
        if !matches!(&made, Err(failed) if failed.is_fatal)
            && let Err(failed) = self.control("ROLLBACK").await
        {
            return Err(Failed {
                is_fatal: true,
                ..failed
            });
        }
        made
    }
}
