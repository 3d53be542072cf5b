//! Options of a PostgreSQL store.

use crate::tls::Trust;

/// Options of [`Postgres`](super::Postgres). The default suits a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresOptions {
    /// The schema that holds the tables: a lower-case letter, then lower-case letters, digits and
    /// `_`, at most 40 characters. Created if it does not exist.
    pub schema: String,
    /// Connections that write. A conversation always uses the same one.
    pub writers: usize,
    /// Connections that read; a single tenant uses one less at the same time.
    pub readers: usize,
    /// Connections for artifacts; a single tenant uses one less at the same time.
    pub asset_connections: usize,
    /// Bytes of appends that may wait for the writers; further ones are refused at once. One tenant
    /// may use half.
    pub queue_bytes_max: usize,
    /// Certificates for TLS beyond those of the system.
    pub trust: Trust,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            schema: "callboard".to_owned(),
            writers: 4,
            readers: 6,
            asset_connections: 3,
            queue_bytes_max: 64 * 1024 * 1024, // a few seconds of a busy host; a server that lags further counts as unavailable
            trust: Trust::default(),
        }
    }
}

/// Whether a text is safe as the name of a schema, which stands in statements as it is.
pub(super) fn is_schema(name: &str) -> bool {
    let mut letters = name.bytes();
    let is_first = letters.next().is_some_and(|byte| byte.is_ascii_lowercase());
    is_first
        && name.len() <= 40
        && letters.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_is_a_plain_name() {
        for good in ["callboard", "a", "a_1"] {
            assert!(is_schema(good), "{good}");
        }
        for bad in ["", "A", "1a", "_a", "a b", "a\"", "a;drop", &"a".repeat(41)] {
            assert!(!is_schema(bad), "{bad}");
        }
    }
}
