//! The messages for receivers outside, in the same file as the journals.

use std::time::Duration;

use callboard_actors::{
    ids::{ConversationId, Scope, TenantId},
    ports::{BoxFuture, Outbox, OutboxMessage, StoreError},
    time::Timestamp,
};
use rusqlite::{Connection, Row, params};

use super::{
    Sqlite,
    error::{WriteError, failed_read},
};
use crate::storage::commit::{
    columns::{int, nat},
    job::{Change, Job, OutboxChange},
};

/// Stores the messages of an append.
pub(super) fn put(conn: &Connection, messages: &[OutboxMessage]) -> rusqlite::Result<()> {
    for OutboxMessage {
        id,
        scope,
        at,
        body,
        tries: _,
    } in messages
    {
        let sql = "INSERT OR IGNORE INTO outbox (id, tenant, conversation, at, body, due_at) VALUES (?1, ?2, ?3, ?4, ?5, 0)";
        let (tenant, conversation) = (scope.tenant.as_str(), scope.conversation.as_str());
        conn.prepare_cached(sql)?.execute(params![
            id,
            tenant,
            conversation,
            int(at.0),
            &body[..]
        ])?;
    }
    Ok(())
}

/// Removes the messages of a conversation.
pub(super) fn remove(conn: &Connection, scope: &Scope) -> rusqlite::Result<()> {
    let sql = "DELETE FROM outbox WHERE tenant = ?1 AND conversation = ?2";
    conn.prepare_cached(sql)?
        .execute([scope.tenant.as_str(), scope.conversation.as_str()])
        .map(drop)
}

/// Executes a change of a tenant's messages.
pub(super) fn change(
    conn: &Connection,
    tenant: &TenantId,
    change: &OutboxChange,
) -> Result<Change, WriteError> {
    let tenant_id = tenant.as_str();
    match change {
        OutboxChange::Claim {
            now, until, count, ..
        } => {
            let sql = "UPDATE outbox SET due_at = ?3, tries = tries + 1 WHERE n IN \
                       (SELECT n FROM outbox WHERE tenant = ?1 AND due_at <= ?2 ORDER BY due_at, n LIMIT ?4) \
                       RETURNING n, id, conversation, at, body, tries";
            let mut statement = conn.prepare_cached(sql)?;
            let rows = statement.query_map(params![tenant_id, now, until, count], |row| {
                Ok((row.get::<_, i64>(0)?, message(tenant, row)?))
            })?;
            let mut found = rows.collect::<Result<Vec<_>, _>>()?;
            found.sort_by_key(|(n, _)| *n);
            Ok(Change {
                claimed: found
                    .into_iter()
                    .filter_map(|(_, message)| message)
                    .collect(),
                ..Change::default()
            })
        }
        OutboxChange::Settle { id, again, .. } => {
            match again {
                Some(at) => conn
                    .prepare_cached("UPDATE outbox SET due_at = ?2 WHERE id = ?1")?
                    .execute(params![id, at])?,
                None => conn
                    .prepare_cached("DELETE FROM outbox WHERE id = ?1")?
                    .execute([id])?,
            };
            Ok(Change::default())
        }
        OutboxChange::Trim { before, keep, .. } => {
            let sql = "DELETE FROM outbox WHERE tenant = ?1 AND (at < ?2 OR n IN \
                       (SELECT n FROM outbox WHERE tenant = ?1 ORDER BY n DESC LIMIT -1 OFFSET ?3))";
            let removed = conn
                .prepare_cached(sql)?
                .execute(params![tenant_id, before, keep])?;
            let left: i64 = conn
                .prepare_cached("SELECT count(*) FROM outbox WHERE tenant = ?1")?
                .query_row([tenant_id], |row| row.get(0))?;
            Ok(Change {
                trimmed: (removed as u64, nat(left)),
                ..Change::default()
            })
        }
    }
}

/// Reads a claimed row; `None` for one with an invalid conversation, which no program wrote.
fn message(tenant: &TenantId, row: &Row<'_>) -> rusqlite::Result<Option<OutboxMessage>> {
    let Ok(conversation) = ConversationId::new(row.get::<_, String>(2)?) else {
        return Ok(None);
    };
    Ok(Some(OutboxMessage {
        id: row.get(1)?,
        scope: Scope::new(tenant.clone(), conversation),
        at: Timestamp(nat(row.get(3)?)),
        body: row.get::<_, Vec<u8>>(4)?.into(),
        tries: u32::try_from(nat(row.get(5)?)).unwrap_or(u32::MAX),
    }))
}

/// Jumps from tenant to tenant in the index, however many messages each has.
const TENANTS: &str = "WITH RECURSIVE found (tenant) AS ( \
    SELECT min(tenant) FROM outbox \
    UNION ALL SELECT (SELECT min(tenant) FROM outbox WHERE tenant > found.tenant) FROM found WHERE found.tenant IS NOT NULL) \
    SELECT tenant, EXISTS (SELECT 1 FROM outbox WHERE outbox.tenant = found.tenant AND due_at <= ?1) \
    FROM found WHERE tenant IS NOT NULL";

impl Outbox for Sqlite {
    fn tenants(&self, now: Timestamp) -> BoxFuture<'_, Result<Vec<(TenantId, bool)>, StoreError>> {
        self.read(None, move |conn| {
            let read = || {
                let mut statement = conn.prepare_cached(TENANTS)?;
                let rows = statement.query_map([int(now.0)], |row| {
                    Ok((row.get::<_, String>(0)?, row.get::<_, bool>(1)?))
                })?;
                rows.collect::<Result<Vec<_>, _>>()
            };
            let rows = read().map_err(|error| failed_read(&error))?;
            let valid = |(tenant, is_due)| Some((TenantId::new(tenant).ok()?, is_due));
            Ok(rows.into_iter().filter_map(valid).collect())
        })
    }

    fn claim<'a>(
        &'a self,
        tenant: &'a TenantId,
        now: Timestamp,
        lease: Duration,
        count: usize,
    ) -> BoxFuture<'a, Result<Vec<OutboxMessage>, StoreError>> {
        self.write(|answer| {
            let change = OutboxChange::Claim {
                now: int(now.0),
                until: after(now, lease),
                count: int(count as u64),
                answer,
            };
            Job::Outbox(tenant.clone(), change)
        })
    }

    fn settle<'a>(
        &'a self,
        message: &'a OutboxMessage,
        now: Timestamp,
        again: Option<Duration>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.write(|answer| {
            let change = OutboxChange::Settle {
                id: message.id.clone(),
                again: again.map(|wait| after(now, wait)),
                answer,
            };
            Job::Outbox(message.scope.tenant.clone(), change)
        })
    }

    fn trim<'a>(
        &'a self,
        tenant: &'a TenantId,
        before: Timestamp,
        keep: usize,
    ) -> BoxFuture<'a, Result<(u64, u64), StoreError>> {
        self.write(|answer| {
            let change = OutboxChange::Trim {
                before: int(before.0),
                keep: int(keep as u64),
                answer,
            };
            Job::Outbox(tenant.clone(), change)
        })
    }
}

fn after(now: Timestamp, wait: Duration) -> i64 {
    int(now.0).saturating_add(i64::try_from(wait.as_millis()).unwrap_or(i64::MAX))
}
