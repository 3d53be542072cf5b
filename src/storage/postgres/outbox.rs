//! The messages for receivers outside, in the same database as the journals. Leases use the
//! database's clock, so the clocks of its hosts do not matter.

use std::time::Duration;

use callboard_actors::{
    ids::{ConversationId, Scope, TenantId},
    ports::{BoxFuture, Outbox, OutboxMessage, StoreError},
    time::Timestamp,
};
use tokio_postgres::{Error, Row, types::Type};

use super::{
    Postgres,
    connect::STATEMENT_MAX,
    read::{Failed, Reader},
    transaction::Parameters,
};
use crate::storage::commit::columns::{int, nat};

/// Reads a claimed row; `None` for one with an invalid conversation, which no program wrote.
fn message(tenant: &TenantId, row: &Row) -> Result<Option<OutboxMessage>, Error> {
    let Ok(conversation) = ConversationId::new(row.try_get::<_, &str>(2)?) else {
        return Ok(None);
    };
    Ok(Some(OutboxMessage {
        id: row.try_get(1)?,
        scope: Scope::new(tenant.clone(), conversation),
        at: Timestamp(nat(row.try_get(3)?)),
        body: row.try_get::<_, Vec<u8>>(4)?.into(),
        tries: u32::try_from(nat(row.try_get(5)?)).unwrap_or(u32::MAX),
    }))
}

impl Reader<'_> {
    async fn outbox_tenants(&self) -> Result<Vec<(TenantId, bool)>, Failed> {
        let sql = include_str!("sql/outbox_tenants.sql");
        let rows = self.run(STATEMENT_MAX, sql, &[]).await?;
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            if let Ok(tenant) = TenantId::new(row.try_get::<_, &str>(0)?) {
                found.push((tenant, row.try_get(1)?));
            }
        }
        Ok(found)
    }

    async fn outbox_claim(
        &self,
        tenant: &TenantId,
        lease: Duration,
        count: usize,
    ) -> Result<Vec<OutboxMessage>, Failed> {
        let parameters: &Parameters<'_> = &[
            (&tenant.as_str(), Type::TEXT),
            (&int(count as u64), Type::INT8),
            (&millis(lease), Type::FLOAT8),
        ];
        let sql = include_str!("sql/outbox_claim.sql");
        let rows = self.run(STATEMENT_MAX, sql, parameters).await?;
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            if let Some(message) = message(tenant, row)? {
                found.push((row.try_get::<_, i64>(0)?, message));
            }
        }
        found.sort_by_key(|(n, _)| *n);
        Ok(found.into_iter().map(|(_, message)| message).collect())
    }

    async fn outbox_settle(&self, id: &str, again: Option<Duration>) -> Result<(), Failed> {
        let sql = match again {
            Some(_) => {
                "UPDATE callboard.outbox SET due_at = now() + $2 * interval '1 millisecond' WHERE id = $1"
            }
            None => "DELETE FROM callboard.outbox WHERE id = $1 AND $2 = 0",
        };
        let wait = again.map_or(0.0, millis);
        let parameters: &Parameters<'_> = &[(&id, Type::TEXT), (&wait, Type::FLOAT8)];
        self.run(STATEMENT_MAX, sql, parameters).await.map(drop)
    }

    async fn outbox_trim(
        &self,
        tenant: &TenantId,
        before: Timestamp,
        keep: usize,
    ) -> Result<(u64, u64), Failed> {
        let parameters: &Parameters<'_> = &[
            (&tenant.as_str(), Type::TEXT),
            (&int(before.0), Type::INT8),
            (&int(keep as u64), Type::INT8),
        ];
        let sql = include_str!("sql/outbox_trim.sql");
        let rows = self.run(STATEMENT_MAX, sql, parameters).await?;
        let Some(row) = rows.first() else {
            return Ok((0, 0));
        };
        // The counts are those before the statement.
        let (removed, had) = (nat(row.try_get(0)?), nat(row.try_get(1)?));
        Ok((removed, had.saturating_sub(removed)))
    }
}

fn millis(wait: Duration) -> f64 {
    wait.as_secs_f64() * 1000.0
}

impl Outbox for Postgres {
    fn tenants(&self, _: Timestamp) -> BoxFuture<'_, Result<Vec<(TenantId, bool)>, StoreError>> {
        self.assets.read(None, move |reader| {
            Box::pin(async move { reader.outbox_tenants().await })
        })
    }

    fn claim<'a>(
        &'a self,
        tenant: &'a TenantId,
        _: Timestamp,
        lease: Duration,
        count: usize,
    ) -> BoxFuture<'a, Result<Vec<OutboxMessage>, StoreError>> {
        let owner = tenant.clone();
        self.assets.read(Some(tenant), move |reader| {
            Box::pin(async move { reader.outbox_claim(&owner, lease, count).await })
        })
    }

    fn settle<'a>(
        &'a self,
        message: &'a OutboxMessage,
        _: Timestamp,
        again: Option<Duration>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let id = message.id.clone();
        self.assets
            .read(Some(&message.scope.tenant), move |reader| {
                Box::pin(async move { reader.outbox_settle(&id, again).await })
            })
    }

    fn trim<'a>(
        &'a self,
        tenant: &'a TenantId,
        before: Timestamp,
        keep: usize,
    ) -> BoxFuture<'a, Result<(u64, u64), StoreError>> {
        let owner = tenant.clone();
        self.assets.read(Some(tenant), move |reader| {
            Box::pin(async move { reader.outbox_trim(&owner, before, keep).await })
        })
    }
}
