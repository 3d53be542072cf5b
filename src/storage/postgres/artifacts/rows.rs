//! The statements about artifacts, over one connection.

use std::{ops::Range, time::Duration};

use bytes::{Bytes, BytesMut};
use callboard_actors::{
    ids::{ArtifactId, Scope, TenantId},
    limits::{ARTIFACT_BYTES_MAX, TENANT_ARTIFACTS_MAX},
    policy::IndexedArtifact,
    ports::{ArtifactError, Cleaned},
    time::Timestamp,
};
use tokio_postgres::{Row, types::Type};

use super::super::{
    connect::{ERASURE_MAX, STATEMENT_MAX},
    error::unavailable,
    read::{Failed, Reader},
    transaction::Parameters,
};
use crate::storage::commit::columns::{int, nat};

/// Bytes of a chunk. The statement that reads has the number too.
const CHUNK_BYTES: usize = 256 * 1024;

/// Chunks in one statement, so that none is longer than its time limit on a slow line.
const CHUNKS_AT_ONCE: usize = 16;

/// Artifacts removed in one statement. A tenant's stores wait meanwhile.
const REMOVED_AT_ONCE: i64 = 500;

/// How often a store is tried again because another host stored or removed the same content.
const TRIES: usize = 5;

/// What storing one artifact needs.
pub(super) struct Stored {
    pub(super) owner: Scope,
    pub(super) id: ArtifactId,
    /// SHA-256 of the content, of which the id is the beginning.
    pub(super) digest: Vec<u8>,
    pub(super) tool_call_id: String,
    pub(super) content: Bytes,
    pub(super) now: Timestamp,
    pub(super) max_age: Duration,
    pub(super) tenant_bytes_max: u64,
}

/// The artifact of a read, and the time of it.
pub(super) struct Use {
    pub(super) owner: Scope,
    pub(super) id: ArtifactId,
    pub(super) now: Timestamp,
    /// Artifacts stored before have expired.
    pub(super) oldest: Timestamp,
}

/// What a tenant's artifacts take.
#[derive(Clone, Copy)]
struct Total {
    bytes: u64,
    count: u64,
}

/// Why an artifact was not inserted.
enum Refused {
    /// Its conversation has one of this id by now.
    Present,
    Full(ArtifactError),
}

/// A result, or the database's failure.
type Found<T> = Result<Result<T, ArtifactError>, Failed>;

fn is_full(total: Total, size: u64, quota: u64) -> bool {
    total.bytes.saturating_add(size) > quota || total.count >= TENANT_ARTIFACTS_MAX as u64
}

fn number(row: &Row, column: usize) -> Result<u64, Failed> {
    Ok(nat(row.try_get(column)?))
}

impl Reader<'_> {
    /// Stores a content, or renews the artifact with the same content.
    pub(super) async fn store_artifact(&self, stored: &Stored) -> Found<()> {
        let size = stored.content.len() as u64;
        let quota = stored.tenant_bytes_max;
        if size > quota {
            let used = self.artifact_bytes(&stored.owner.tenant).await?;
            return Ok(Err(ArtifactError::OverQuota { used, quota }));
        }
        for _ in 0..TRIES {
            match self.renew(stored).await? {
                Some(renewed) => return Ok(renewed),
                None => match self.transaction(self.insert(stored)).await? {
                    Ok(()) => return Ok(Ok(())),
                    Err(Refused::Present) => {}
                    Err(Refused::Full(error)) => return Ok(Err(error)),
                },
            }
        }
        Err(unavailable("other hosts store and remove the same artifact").into())
    }

    /// Renews an artifact; `None` if there is none.
    async fn renew(&self, stored: &Stored) -> Result<Option<Result<(), ArtifactError>>, Failed> {
        let (tenant, conversation) = names(&stored.owner);
        let rows = self
            .run(
                STATEMENT_MAX,
                include_str!("../sql/artifact_renew.sql"),
                &[
                    (&tenant, Type::TEXT),
                    (&conversation, Type::TEXT),
                    (&stored.id.as_str(), Type::TEXT),
                    (&stored.digest, Type::BYTEA),
                    (&stored.tool_call_id, Type::TEXT),
                    (&int(stored.now.0), Type::INT8),
                ],
            )
            .await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        if number(row, 0)? > 0 {
            return Ok(Some(Ok(())));
        }
        let is_other = number(row, 1)? > 0;
        Ok(is_other.then(|| Err(ArtifactError::Collision(stored.id.clone()))))
    }

    /// Inserts an artifact. The chunks come first: the tenant's other stores wait only from the lock
    /// on to the commit.
    async fn insert(&self, stored: &Stored) -> Result<Result<(), Refused>, Failed> {
        let artifact = self.insert_chunks(&stored.content).await?;
        let size = stored.content.len() as u64;
        let total = self.lock_tenant(&stored.owner.tenant).await?;
        if is_full(total, size, stored.tenant_bytes_max)
            && let Err(error) = self.make_room(stored, total, size).await?
        {
            return Ok(Err(Refused::Full(error)));
        }
        let (tenant, conversation) = names(&stored.owner);
        let rows = self
            .run(
                STATEMENT_MAX,
                include_str!("../sql/artifact_insert.sql"),
                &[
                    (&tenant, Type::TEXT),
                    (&conversation, Type::TEXT),
                    (&stored.id.as_str(), Type::TEXT),
                    (&stored.digest, Type::BYTEA),
                    (&stored.tool_call_id, Type::TEXT),
                    (&int(stored.now.0), Type::INT8),
                    (&artifact, Type::INT8),
                    (&int(size), Type::INT8),
                ],
            )
            .await?;
        Ok(match rows.is_empty() {
            true => Err(Refused::Present),
            false => Ok(()),
        })
    }

    /// Stores a content under a new number.
    async fn insert_chunks(&self, content: &[u8]) -> Result<i64, Failed> {
        let sql = "SELECT nextval(pg_get_serial_sequence('callboard.artifact', 'artifact'))";
        let rows = self.run(STATEMENT_MAX, sql, &[]).await?;
        let artifact: i64 = rows.first().map_or(Ok(0), |row| row.try_get(0))?;
        let chunks: Vec<&[u8]> = content.chunks(CHUNK_BYTES).collect();
        for (batch, chunks) in chunks.chunks(CHUNKS_AT_ONCE).enumerate() {
            let first = int((batch * CHUNKS_AT_ONCE) as u64);
            self.run(
                STATEMENT_MAX,
                "INSERT INTO callboard.artifact_chunk (artifact, n, bytes) \
                 SELECT $1, $2 + n - 1, bytes FROM unnest($3) WITH ORDINALITY AS chunk (bytes, n)",
                &[
                    (&artifact, Type::INT8),
                    (&first, Type::INT8),
                    (&chunks, Type::BYTEA_ARRAY),
                ],
            )
            .await?;
        }
        Ok(artifact)
    }

    /// Locks a tenant's row until the transaction ends, which excludes other stores and removals.
    async fn lock_tenant(&self, tenant: &TenantId) -> Result<Total, Failed> {
        let rows = self
            .run(
                STATEMENT_MAX,
                "INSERT INTO callboard.artifact_tenant AS total (tenant, bytes, count) VALUES ($1, 0, 0) \
                 ON CONFLICT (tenant) DO UPDATE SET bytes = total.bytes RETURNING bytes, count",
                &[(&tenant.as_str(), Type::TEXT)],
            )
            .await?;
        let Some(row) = rows.first() else {
            return Err(unavailable("the database returned no row").into());
        };
        Ok(Total {
            bytes: number(row, 0)?,
            count: number(row, 1)?,
        })
    }

    /// Removes a tenant's expired artifacts, and then those that were not used for longest, until one
    /// more of `size` bytes fits.
    async fn make_room(&self, stored: &Stored, mut total: Total, size: u64) -> Found<()> {
        let tenant = &stored.owner.tenant;
        let quota = stored.tenant_bytes_max;
        let used = total.bytes;
        let oldest = before(stored.now, stored.max_age);
        total = total.without(self.remove_expired(tenant, oldest).await?);
        if is_full(total, size, quota) {
            let bytes = int(total.bytes.saturating_add(size).saturating_sub(quota));
            let over = total.count.saturating_add(1);
            let count = int(over.saturating_sub(TENANT_ARTIFACTS_MAX as u64));
            let removed = self
                .remove(
                    "artifact IN (SELECT artifact FROM (SELECT artifact, \
                     sum(bytes) OVER by_use - bytes AS freed, row_number() OVER by_use AS place \
                     FROM callboard.artifact WHERE tenant = $1 WINDOW by_use AS \
                     (ORDER BY accessed_at, artifact ROWS UNBOUNDED PRECEDING)) AS by_use \
                     WHERE freed < $2 OR place <= $3)",
                    &[
                        (&tenant.as_str(), Type::TEXT),
                        (&bytes, Type::INT8),
                        (&count, Type::INT8),
                    ],
                )
                .await?;
            total = total.without(removed);
        }
        Ok(match is_full(total, size, quota) {
            true => Err(ArtifactError::OverQuota { used, quota }),
            false => Ok(()),
        })
    }

    async fn remove(
        &self,
        condition: &str,
        parameters: &Parameters<'_>,
    ) -> Result<Cleaned, Failed> {
        let sql = include_str!("../sql/artifact_remove.sql").replace("CONDITION", condition);
        let rows = self.run(ERASURE_MAX, &sql, parameters).await?;
        let Some(row) = rows.first() else {
            return Ok(Cleaned::default());
        };
        Ok(Cleaned {
            removed: number(row, 0)?,
            bytes: number(row, 1)?,
        })
    }

    /// Removes some of a tenant's artifacts that were stored before `oldest`.
    async fn remove_expired(
        &self,
        tenant: &TenantId,
        oldest: Timestamp,
    ) -> Result<Cleaned, Failed> {
        self.remove(
            "artifact IN (SELECT artifact FROM callboard.artifact \
             WHERE tenant = $1 AND created_at < $2 ORDER BY created_at LIMIT $3)",
            &[
                (&tenant.as_str(), Type::TEXT),
                (&int(oldest.0), Type::INT8),
                (&REMOVED_AT_ONCE, Type::INT8),
            ],
        )
        .await
    }

    /// Reads a range and notes the use. The range ends where the content ends.
    pub(super) async fn read_artifact(&self, of: &Use, range: Range<u64>) -> Found<(u64, Bytes)> {
        let (tenant, conversation) = names(&of.owner);
        let end = range.end.min(ARTIFACT_BYTES_MAX as u64);
        let rows = self
            .run(
                STATEMENT_MAX,
                include_str!("../sql/artifact_read.sql"),
                &[
                    (&tenant, Type::TEXT),
                    (&conversation, Type::TEXT),
                    (&of.id.as_str(), Type::TEXT),
                    (&int(of.now.0), Type::INT8),
                    (&int(of.oldest.0), Type::INT8),
                    (&int(range.start.min(end)), Type::INT8),
                    (&int(end), Type::INT8),
                ],
            )
            .await?;
        let Some(first) = rows.first() else {
            return self.missing(&of.owner, &of.id, of.oldest).await;
        };
        let size = number(first, 0)?;
        let mut content = BytesMut::new();
        for row in &rows {
            content.extend_from_slice(row.try_get::<_, Option<&[u8]>>(1)?.unwrap_or_default());
        }
        Ok(Ok((size, content.freeze())))
    }

    pub(super) async fn artifact_meta(
        &self,
        owner: &Scope,
        id: &ArtifactId,
        oldest: Timestamp,
    ) -> Found<IndexedArtifact> {
        let (tenant, conversation) = names(owner);
        let rows = self
            .run(
                STATEMENT_MAX,
                "SELECT bytes, tool_call_id, created_at, accessed_at FROM callboard.artifact \
                 WHERE tenant = $1 AND conversation = $2 AND id = $3 AND created_at >= $4",
                &[
                    (&tenant, Type::TEXT),
                    (&conversation, Type::TEXT),
                    (&id.as_str(), Type::TEXT),
                    (&int(oldest.0), Type::INT8),
                ],
            )
            .await?;
        let Some(row) = rows.first() else {
            return self.missing(owner, id, oldest).await;
        };
        Ok(Ok(IndexedArtifact {
            size_bytes: number(row, 0)?,
            tool_call_id: row.try_get(1)?,
            created_at: Timestamp(number(row, 2)?),
            accessed_at: Timestamp(number(row, 3)?),
        }))
    }

    /// Removes the artifacts of a conversation, or all of the tenant's.
    pub(super) async fn release_artifacts(
        &self,
        tenant: &TenantId,
        conversation: Option<&str>,
    ) -> Result<(), Failed> {
        let removing = async {
            self.lock_tenant(tenant).await?;
            let key = (&tenant.as_str() as _, Type::TEXT);
            let Some(conversation) = conversation else {
                self.remove("true", std::slice::from_ref(&key)).await?;
                let sql = "DELETE FROM callboard.artifact_tenant WHERE tenant = $1";
                self.run(STATEMENT_MAX, sql, &[key]).await?;
                return Ok(Ok::<_, ()>(()));
            };
            self.remove("conversation = $2", &[key, (&conversation, Type::TEXT)])
                .await?;
            Ok(Ok(()))
        };
        self.transaction(removing).await.map(|_| ())
    }

    /// The result for an artifact that was not found. Removes one that has expired.
    async fn missing<T>(&self, owner: &Scope, id: &ArtifactId, oldest: Timestamp) -> Found<T> {
        let (tenant, conversation) = names(owner);
        let rows = self
            .run(
                STATEMENT_MAX,
                "SELECT 1 FROM callboard.artifact \
                 WHERE tenant = $1 AND conversation = $2 AND id = $3 AND created_at < $4",
                &[
                    (&tenant, Type::TEXT),
                    (&conversation, Type::TEXT),
                    (&id.as_str(), Type::TEXT),
                    (&int(oldest.0), Type::INT8),
                ],
            )
            .await?;
        if !rows.is_empty() {
            self.remove_artifact(owner, id, oldest).await?;
        }
        Ok(Err(ArtifactError::NotFound(id.clone())))
    }

    /// Removes one artifact if it was stored before `oldest`.
    pub(super) async fn remove_artifact(
        &self,
        owner: &Scope,
        id: &ArtifactId,
        oldest: Timestamp,
    ) -> Result<(), Failed> {
        let (tenant, conversation) = names(owner);
        let removing = async {
            self.lock_tenant(&owner.tenant).await?;
            let parameters: &Parameters<'_> = &[
                (&tenant, Type::TEXT),
                (&conversation, Type::TEXT),
                (&id.as_str(), Type::TEXT),
                (&int(oldest.0), Type::INT8),
            ];
            let condition = "conversation = $2 AND id = $3 AND created_at < $4";
            Ok(Ok::<_, ()>(self.remove(condition, parameters).await?))
        };
        self.transaction(removing).await.map(|_| ())
    }

    /// Bytes of a tenant's artifacts.
    async fn artifact_bytes(&self, tenant: &TenantId) -> Result<u64, Failed> {
        let rows = self
            .run(
                STATEMENT_MAX,
                "SELECT bytes FROM callboard.artifact_tenant WHERE tenant = $1",
                &[(&tenant.as_str(), Type::TEXT)],
            )
            .await?;
        rows.first().map_or(Ok(0), |row| number(row, 0))
    }

    /// Bytes of all artifacts.
    pub(super) async fn all_artifact_bytes(&self) -> Result<u64, Failed> {
        let sql = "SELECT coalesce(sum(bytes), 0)::int8 FROM callboard.artifact_tenant";
        let rows = self.run(STATEMENT_MAX, sql, &[]).await?;
        rows.first().map_or(Ok(0), |row| number(row, 0))
    }

    /// A tenant with an artifact that was stored before `oldest`.
    pub(super) async fn tenant_with_expired(
        &self,
        oldest: Timestamp,
    ) -> Result<Option<String>, Failed> {
        let sql = "SELECT tenant FROM callboard.artifact WHERE created_at < $1 ORDER BY created_at LIMIT 1";
        let parameters: &Parameters<'_> = &[(&int(oldest.0), Type::INT8)];
        let rows = self.run(STATEMENT_MAX, sql, parameters).await?;
        Ok(rows.first().map(|row| row.try_get(0)).transpose()?)
    }

    /// Removes some of a tenant's artifacts that were stored before `oldest`.
    pub(super) async fn clean_expired(
        &self,
        tenant: &TenantId,
        oldest: Timestamp,
    ) -> Result<Cleaned, Failed> {
        let removing = async {
            self.lock_tenant(tenant).await?;
            Ok(Ok::<_, ()>(self.remove_expired(tenant, oldest).await?))
        };
        let cleaned = self.transaction(removing).await?;
        Ok(cleaned.unwrap_or_default())
    }

    /// Removes some of the artifacts, of any tenant, that were not used for longest: until `excess`
    /// bytes are free, or fewer.
    pub(super) async fn clean_unused(&self, excess: u64) -> Result<Cleaned, Failed> {
        let sql = "SELECT tenant, artifact, accessed_at FROM (SELECT tenant, artifact, accessed_at, \
                   sum(bytes) OVER (ORDER BY accessed_at, artifact ROWS UNBOUNDED PRECEDING) - bytes AS freed \
                   FROM (SELECT tenant, artifact, accessed_at, bytes FROM callboard.artifact \
                   ORDER BY accessed_at, artifact LIMIT $2) AS oldest) AS by_use WHERE freed < $1 ORDER BY tenant";
        let parameters: &Parameters<'_> =
            &[(&int(excess), Type::INT8), (&REMOVED_AT_ONCE, Type::INT8)];
        let rows = self.run(STATEMENT_MAX, sql, parameters).await?;
        let mut cleaned = Cleaned::default();
        let mut unused: Vec<(String, i64, i64)> = Vec::with_capacity(rows.len());
        for row in &rows {
            unused.push((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?));
        }
        for of_tenant in unused.chunk_by(|one, next| one.0 == next.0) {
            let Some(tenant) = of_tenant
                .first()
                .and_then(|(tenant, ..)| TenantId::new(tenant).ok())
            else {
                continue;
            };
            let ids: Vec<i64> = of_tenant.iter().map(|(_, artifact, _)| *artifact).collect();
            let used = of_tenant.iter().map(|(_, _, at)| *at).max();
            let removing = async {
                self.lock_tenant(&tenant).await?;
                // An artifact that was used since stays.
                let condition = "artifact = ANY($2) AND accessed_at <= $3";
                let parameters: &Parameters<'_> = &[
                    (&tenant.as_str(), Type::TEXT),
                    (&ids, Type::INT8_ARRAY),
                    (&used, Type::INT8),
                ];
                Ok(Ok::<_, ()>(self.remove(condition, parameters).await?))
            };
            let removed = self.transaction(removing).await?.unwrap_or_default();
            cleaned.removed += removed.removed;
            cleaned.bytes += removed.bytes;
        }
        Ok(cleaned)
    }
}

impl Total {
    fn without(self, cleaned: Cleaned) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(cleaned.bytes),
            count: self.count.saturating_sub(cleaned.removed),
        }
    }
}

fn names(owner: &Scope) -> (&str, &str) {
    (owner.tenant.as_str(), owner.conversation.as_str())
}

/// The time that lies `age` before another.
pub(super) fn before(now: Timestamp, age: Duration) -> Timestamp {
    let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
    Timestamp(now.0.saturating_sub(age))
}
