//! Checks every stored conversation against its digests, for `callboard doctor`.

use callboard_actors::{
    ids::{ConversationId, Scope, TenantId},
    ports::StoreError,
};
use rusqlite::Connection;

use super::{error::failed_read, read};

/// Result of checking a whole store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verified {
    /// Number of conversations.
    pub conversations: u64,
    /// The conversations that cannot be read, and why.
    pub damaged: Vec<(Scope, String)>,
}

/// Reads every conversation. Holds one journal in memory at a time.
pub(super) fn verify(conn: &mut Connection) -> Result<Verified, StoreError> {
    let mut verified = Verified::default();
    for scope in scopes(conn).map_err(|error| failed_read(&error))? {
        verified.conversations += 1;
        match read::check(conn, &scope) {
            Ok(()) => {}
            Err(StoreError::Damaged { message, .. }) => verified.damaged.push((scope, message)),
            Err(error) => return Err(error),
        }
    }
    Ok(verified)
}

/// All conversations, except those whose id no call can name.
fn scopes(conn: &Connection) -> rusqlite::Result<Vec<Scope>> {
    // Not by the index of the names, which may be the damaged part.
    let mut statement = conn.prepare("SELECT tenant, id FROM conversation NOT INDEXED")?;
    let rows = statement.query_map([], |row| {
        let tenant = TenantId::new(row.get_ref(0)?.as_str()?).ok();
        let id = ConversationId::new(row.get_ref(1)?.as_str()?).ok();
        Ok(tenant.zip(id).map(|(tenant, id)| Scope::new(tenant, id)))
    })?;
    rows.filter_map(Result::transpose).collect()
}
