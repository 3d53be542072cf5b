//! Notes of the tool `memory` in PostgreSQL. All hosts of a database read and write the same notes;
//! a write locks its owner's row, so bounds hold over all of them.

use std::sync::Arc;

use callboard_actors::{
    ids::TenantId,
    ports::{BoxFuture, StoreError},
};
use tokio_postgres::types::Type;

use super::{
    connect::{ERASURE_MAX, STATEMENT_MAX},
    read::{Failed, Reader},
    readers::Readers,
    transaction::Parameters,
};
use crate::{
    notes::{NoteBounds, NoteError, NoteOwner, NoteStore, NoteUsage, Noted},
    storage::commit::columns::nat,
};

/// Notes in a PostgreSQL database, beside the sessions. Made by
/// [`Postgres::notes`](super::Postgres::notes).
pub struct PostgresNotes {
    readers: Arc<Readers>,
}

impl std::fmt::Debug for PostgresNotes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PostgresNotes")
    }
}

fn away(error: StoreError) -> NoteError {
    NoteError::Unavailable(match error {
        StoreError::Unavailable { message } => message,
        other => other.to_string(),
    })
}

/// The names of an owner in columns. No conversation has an empty id.
fn names(owner: &NoteOwner) -> (&str, &str) {
    let conversation = owner.conversation.as_ref();
    (
        owner.tenant.as_str(),
        conversation.map_or("", |conversation| conversation.as_str()),
    )
}

impl PostgresNotes {
    pub(super) fn new(readers: Arc<Readers>) -> Self {
        Self { readers }
    }

    fn on<T: Send + 'static>(
        &self,
        tenant: &TenantId,
        work: impl for<'a> FnOnce(Reader<'a>) -> BoxFuture<'a, Result<T, Failed>> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, NoteError>> {
        let done = self.readers.read(Some(tenant), work);
        Box::pin(async move { done.await.map_err(away) })
    }
}

impl Reader<'_> {
    async fn view_notes(&self, owner: &NoteOwner, path: &str) -> Result<Option<Noted>, Failed> {
        let (tenant, conversation) = names(owner);
        let rows = self
            .run(
                STATEMENT_MAX,
                "SELECT key, octet_length(body)::int8, CASE WHEN key = $3 THEN body END FROM callboard.note \
                 WHERE tenant = $1 AND conversation = $2 AND ($3 = '.' OR key = $3 OR starts_with(key, $3 || '/')) \
                 ORDER BY key",
                &[
                    (&tenant, Type::TEXT),
                    (&conversation, Type::TEXT),
                    (&path, Type::TEXT),
                ],
            )
            .await?;
        let mut keys = Vec::with_capacity(rows.len());
        for row in &rows {
            if let Some(body) = row.try_get::<_, Option<&[u8]>>(2)? {
                let value = String::from_utf8_lossy(body).into_owned();
                return Ok(Some(Noted::Value(value)));
            }
            keys.push((row.try_get(0)?, nat(row.try_get(1)?)));
        }
        Ok((path == "." || !keys.is_empty()).then_some(Noted::Keys(keys)))
    }

    /// Stores a note; run in a transaction.
    async fn write_note(
        &self,
        owner: &NoteOwner,
        key: &str,
        value: &str,
        bounds: NoteBounds,
    ) -> Result<Result<NoteUsage, NoteError>, Failed> {
        let (tenant, conversation) = names(owner);
        let of_owner: &Parameters<'_> = &[(&tenant, Type::TEXT), (&conversation, Type::TEXT)];
        self.run(
            STATEMENT_MAX,
            "INSERT INTO callboard.note_owner AS o (tenant, conversation) VALUES ($1, $2) \
             ON CONFLICT (tenant, conversation) DO UPDATE SET tenant = o.tenant",
            of_owner,
        )
        .await?;
        let rows = self
            .run(
                STATEMENT_MAX,
                include_str!("sql/note_usage.sql"),
                &[
                    (&tenant, Type::TEXT),
                    (&conversation, Type::TEXT),
                    (&key, Type::TEXT),
                ],
            )
            .await?;
        let Some(row) = rows.first() else {
            return Ok(Err(NoteError::Unavailable(
                "the database returned no row".to_owned(),
            )));
        };
        let other: Option<String> = row.try_get(3)?;
        let usage = NoteUsage {
            keys: nat(row.try_get(0)?).saturating_add(1),
            bytes: nat(row.try_get(1)?).saturating_add(value.len() as u64),
        };
        let conversations = nat(row.try_get(2)?);
        if let Some(other) = other {
            return Ok(Err(NoteError::IsKey(other)));
        }
        if !conversation.is_empty() && conversations > bounds.conversations {
            return Ok(Err(NoteError::TooManyConversations));
        }
        if usage.keys > bounds.keys || usage.bytes > bounds.bytes {
            return Ok(Err(NoteError::Full(usage)));
        }
        self.run(
            STATEMENT_MAX,
            "INSERT INTO callboard.note (tenant, conversation, key, body) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (tenant, conversation, key) DO UPDATE SET body = excluded.body",
            &[
                (&tenant, Type::TEXT),
                (&conversation, Type::TEXT),
                (&key, Type::TEXT),
                (&value.as_bytes(), Type::BYTEA),
            ],
        )
        .await?;
        Ok(Ok(usage))
    }

    async fn delete_note(&self, owner: &NoteOwner, key: &str) -> Result<bool, Failed> {
        let (tenant, conversation) = names(owner);
        let rows = self
            .run(
                STATEMENT_MAX,
                "DELETE FROM callboard.note WHERE tenant = $1 AND conversation = $2 AND key = $3 RETURNING 1",
                &[
                    (&tenant, Type::TEXT),
                    (&conversation, Type::TEXT),
                    (&key, Type::TEXT),
                ],
            )
            .await?;
        Ok(!rows.is_empty())
    }

    /// Removes notes. The owners' rows come first: a writer that holds one has committed before its
    /// notes are looked for.
    async fn forget_notes(
        &self,
        condition: &str,
        parameters: &Parameters<'_>,
    ) -> Result<(), Failed> {
        let forgetting = async {
            for table in ["note_owner", "note"] {
                let sql = format!("DELETE FROM callboard.{table} WHERE {condition}");
                self.run(ERASURE_MAX, &sql, parameters).await?;
            }
            Ok(Ok::<_, ()>(()))
        };
        self.transaction(forgetting).await.map(drop)
    }
}

impl NoteStore for PostgresNotes {
    fn view(
        &self,
        owner: NoteOwner,
        path: String,
    ) -> BoxFuture<'_, Result<Option<Noted>, NoteError>> {
        let tenant = owner.tenant.clone();
        self.on(&tenant, move |reader| {
            Box::pin(async move { reader.view_notes(&owner, &path).await })
        })
    }

    fn write(
        &self,
        owner: NoteOwner,
        key: String,
        value: String,
        bounds: NoteBounds,
    ) -> BoxFuture<'_, Result<NoteUsage, NoteError>> {
        let tenant = owner.tenant.clone();
        let writing = self.on(&tenant, move |reader| {
            Box::pin(async move {
                let writing = reader.write_note(&owner, &key, &value, bounds);
                reader.transaction(writing).await
            })
        });
        Box::pin(async move { writing.await? })
    }

    fn delete(&self, owner: NoteOwner, key: String) -> BoxFuture<'_, Result<bool, NoteError>> {
        let tenant = owner.tenant.clone();
        self.on(&tenant, move |reader| {
            Box::pin(async move { reader.delete_note(&owner, &key).await })
        })
    }

    fn forget(&self, owner: NoteOwner) -> BoxFuture<'_, Result<(), NoteError>> {
        let tenant = owner.tenant.clone();
        self.on(&tenant, move |reader| {
            Box::pin(async move {
                let (tenant, conversation) = names(&owner);
                let parameters: &Parameters<'_> =
                    &[(&tenant, Type::TEXT), (&conversation, Type::TEXT)];
                let condition = "tenant = $1 AND conversation = $2";
                reader.forget_notes(condition, parameters).await
            })
        })
    }

    fn forget_tenant(&self, tenant: TenantId) -> BoxFuture<'_, Result<(), NoteError>> {
        let owner = tenant.clone();
        self.on(&owner, move |reader| {
            Box::pin(async move {
                let parameters: &Parameters<'_> = &[(&tenant.as_str(), Type::TEXT)];
                reader.forget_notes("tenant = $1", parameters).await
            })
        })
    }
}
