//! What operators change about tenants while hosts run: a text for each tenant, and a revision that
//! every change raises. Hosts look at the revision, so a change on one holds on all.

use std::sync::Arc;

use callboard_actors::{ids::TenantId, ports::StoreError};
use tokio_postgres::types::Type;

use super::{
    connect::STATEMENT_MAX,
    read::{Failed, Reader},
    readers::Readers,
    transaction::Parameters,
};
use crate::storage::commit::columns::{int, nat};

/// A tenant's text; `None` if it was removed.
pub type TenantChange = (TenantId, Option<String>);

/// The changes after a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantChanges {
    /// The newest revision.
    pub revision: u64,
    /// The tenants that were changed, each with its newest text.
    pub tenants: Vec<TenantChange>,
}

/// The tenants that operators changed while hosts ran. Made by
/// [`Postgres::control`](super::Postgres::control). What the texts mean is up to the program.
pub struct PostgresControl {
    readers: Arc<Readers>,
}

impl std::fmt::Debug for PostgresControl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PostgresControl")
    }
}

impl PostgresControl {
    pub(super) fn new(readers: Arc<Readers>) -> Self {
        Self { readers }
    }

    /// Reads what was changed after a revision; everything, for revision 0.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn changes(&self, after: u64) -> Result<TenantChanges, StoreError> {
        self.readers
            .read(None, move |reader| {
                Box::pin(async move { reader.tenant_changes(after).await })
            })
            .await
    }

    /// Stores changes if the newest revision is `expected`. Returns the revision that they make, or
    /// `None` if another host has changed something since.
    ///
    /// # Errors
    /// `Unavailable`; whether the changes were stored is then found out by reading.
    pub async fn change(
        &self,
        expected: u64,
        changes: Vec<TenantChange>,
    ) -> Result<Option<u64>, StoreError> {
        self.readers
            .read(None, move |reader| {
                Box::pin(async move {
                    let changing = reader.change_tenants(expected, &changes);
                    Ok(reader.transaction(changing).await?.ok())
                })
            })
            .await
    }
}

/// The newest revision is not the expected one.
struct Changed;

impl Reader<'_> {
    async fn tenant_changes(&self, after: u64) -> Result<TenantChanges, Failed> {
        let rows = self
            .run(
                STATEMENT_MAX,
                "SELECT revision, NULL AS tenant, NULL AS body FROM callboard.control \
                 UNION ALL SELECT revision, tenant, body FROM callboard.control_tenant WHERE revision > $1",
                &[(&int(after), Type::INT8)],
            )
            .await?;
        let mut changes = TenantChanges {
            revision: 0,
            tenants: Vec::new(),
        };
        for row in &rows {
            match row.try_get::<_, Option<&str>>(1)?.map(TenantId::new) {
                None => changes.revision = nat(row.try_get(0)?),
                Some(Ok(tenant)) => changes.tenants.push((tenant, row.try_get(2)?)),
                Some(Err(_)) => tracing::warn!("a tenant in the database has an invalid id"),
            }
        }
        Ok(changes)
    }

    async fn change_tenants(
        &self,
        expected: u64,
        changes: &[TenantChange],
    ) -> Result<Result<u64, Changed>, Failed> {
        let rows = self
            .run(
                STATEMENT_MAX,
                "UPDATE callboard.control SET revision = revision + 1 WHERE revision = $1 RETURNING revision",
                &[(&int(expected), Type::INT8)],
            )
            .await?;
        let Some(row) = rows.first() else {
            return Ok(Err(Changed));
        };
        let revision: i64 = row.try_get(0)?;
        let tenants: Vec<&str> = changes.iter().map(|(tenant, _)| tenant.as_str()).collect();
        let bodies: Vec<Option<&str>> = changes.iter().map(|(_, body)| body.as_deref()).collect();
        let parameters: &Parameters<'_> = &[
            (&tenants, Type::TEXT_ARRAY),
            (&bodies, Type::TEXT_ARRAY),
            (&revision, Type::INT8),
        ];
        self.run(
            STATEMENT_MAX,
            "INSERT INTO callboard.control_tenant (tenant, body, revision) \
             SELECT tenant, body, $3 FROM unnest($1, $2) AS change (tenant, body) \
             ON CONFLICT (tenant) DO UPDATE SET body = excluded.body, revision = excluded.revision",
            parameters,
        )
        .await?;
        Ok(Ok(nat(revision)))
    }
}
