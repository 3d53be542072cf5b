//! The tables: created by the first host that opens an empty database, and brought to the newest
//! version by the first host of a newer program.

use callboard_actors::ports::StoreError;
use tokio_postgres::{Client, Error, error::SqlState, types::Type};

use super::{
    connect::Connector,
    error::{describe, unavailable},
};

/// The migrations in order; the version of a store is the number of those applied.
const SCHEMAS: &[&str] = &[
    include_str!("sql/schema_1.sql"),
    include_str!("sql/schema_2.sql"),
    include_str!("sql/schema_3.sql"),
    include_str!("sql/schema_4.sql"),
    include_str!("sql/schema_5.sql"),
    include_str!("sql/schema_6.sql"),
];

/// Two hosts that create the same schema at once disturb one another; each further try finds more.
const TRIES: usize = 5;

/// Brings the store to the version that this program knows.
///
/// # Errors
/// `NewerSchema` for a store of a newer program; `Unavailable`.
pub(super) async fn migrate(connector: &Connector, client: &mut Client) -> Result<(), StoreError> {
    let mut tries = 1;
    loop {
        match try_migrate(connector, client).await {
            Ok(found) if found > SCHEMAS.len() => {
                return Err(StoreError::NewerSchema {
                    found: u32::try_from(found).unwrap_or(u32::MAX),
                    known: u32::try_from(SCHEMAS.len()).unwrap_or(u32::MAX),
                });
            }
            Ok(_) => return Ok(()),
            Err(error) if tries < TRIES && is_race(&error) => tries += 1,
            Err(error) => return Err(unavailable(describe(&error))),
        }
    }
}

/// Applies what is missing; returns the version that the store had or has.
async fn try_migrate(connector: &Connector, client: &mut Client) -> Result<usize, Error> {
    let transaction = client.transaction().await?;
    let schema = connector.schema();
    let exists = transaction
        .query_typed(
            "SELECT 1 FROM information_schema.tables WHERE table_schema = $1 AND table_name = 'version'",
            &[(&schema, Type::TEXT)],
        )
        .await?;
    if exists.is_empty() {
        // The schema may be there already, made by an administrator for a user without that right.
        let has_schema = transaction
            .query_typed(
                "SELECT 1 FROM information_schema.schemata WHERE schema_name = $1",
                &[(&schema, Type::TEXT)],
            )
            .await?;
        if has_schema.is_empty() {
            transaction
                .batch_execute(&format!("CREATE SCHEMA {schema}"))
                .await?;
        }
        transaction
            .batch_execute(&connector.sql(
                "CREATE TABLE callboard.version (version bigint NOT NULL); INSERT INTO callboard.version VALUES (0)",
            ))
            .await?;
    }
    // Other hosts wait here until this one has migrated.
    transaction
        .batch_execute(&connector.sql("LOCK TABLE callboard.version IN ACCESS EXCLUSIVE MODE"))
        .await?;
    let rows = transaction
        .query_typed(&connector.sql("SELECT version FROM callboard.version"), &[])
        .await?;
    let version = rows.first().map(|row| row.try_get::<_, i64>(0));
    let found = usize::try_from(version.transpose()?.unwrap_or_default()).unwrap_or_default();
    for migration in SCHEMAS.iter().skip(found) {
        transaction.batch_execute(&connector.sql(migration)).await?;
    }
    if found < SCHEMAS.len() {
        let version = i64::try_from(SCHEMAS.len()).unwrap_or(i64::MAX);
        transaction
            .query_typed(
                &connector.sql("UPDATE callboard.version SET version = $1"),
                &[(&version, Type::INT8)],
            )
            .await?;
    }
    transaction.commit().await?;
    Ok(found)
}

fn is_race(error: &Error) -> bool {
    error.code().is_some_and(|code| {
        *code == SqlState::UNIQUE_VIOLATION
            || *code == SqlState::DUPLICATE_SCHEMA
            || *code == SqlState::DUPLICATE_TABLE
            || *code == SqlState::T_R_DEADLOCK_DETECTED
    })
}
