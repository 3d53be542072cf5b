//! Connections to the server: the address, TLS, limits of time, and the texts of the statements.

use std::{future::Future, time::Duration};

use callboard_actors::ports::StoreError;
use tokio_postgres::{Client, Config, Error, config::SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{
    error::{describe, unavailable},
    options::{PostgresOptions, is_schema},
};

/// How long opening a connection may take.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// How long a statement may take. Kept here and not by the server, because a pooler between the two
/// accepts no settings of a session.
pub(super) const STATEMENT_MAX: Duration = Duration::from_secs(10);

/// How long the erasure of a tenant may take.
pub(super) const ERASURE_MAX: Duration = Duration::from_secs(300);

/// For a transaction: the server ends it when no statement comes for so long. The locks of a host that
/// was stopped, or cut off, would make all other hosts wait. A pooler accepts a setting of a
/// transaction.
pub(super) const IDLE_MAX: &str = "SET LOCAL idle_in_transaction_session_timeout = 3000";

/// How long the kernel may resend what the server does not acknowledge.
const UNANSWERED_MAX: Duration = Duration::from_secs(10);

/// Opens connections.
#[derive(Clone)]
pub(super) struct Connector {
    config: Config,
    tls: MakeRustlsConnect,
    schema: String,
}

impl Connector {
    /// Reads the address.
    ///
    /// # Errors
    /// `Unavailable` for an address that cannot be read, without quoting it: it may hold a password.
    pub(super) fn new(url: &str, options: &PostgresOptions) -> Result<Self, StoreError> {
        if !is_schema(&options.schema) {
            return Err(unavailable(
                "the name of the schema must be lower-case letters, digits and `_`",
            ));
        }
        let mut config: Config = url
            .parse()
            .map_err(|_| unavailable("the address of the database cannot be read"))?;
        config
            .application_name("callboard")
            .connect_timeout(CONNECT_MAX)
            .tcp_user_timeout(UNANSWERED_MAX)
            .keepalives_idle(Duration::from_secs(30));
        let is_local = config.get_hosts().iter().all(|host| match host {
            tokio_postgres::config::Host::Tcp(name) => {
                ["localhost", "127.0.0.1", "::1"].contains(&name.as_str())
            }
            tokio_postgres::config::Host::Unix(_) => true,
        });
        if config.get_ssl_mode() == SslMode::Prefer && !is_local && !url.contains("sslmode=") {
            // Passwords and conversations cross no network unprotected unless the address asks for it.
            config.ssl_mode(SslMode::Require);
        }
        let tls = crate::tls::config(&options.trust, &[])
            .map_err(|error| unavailable(error.to_string()))?;
        Ok(Self {
            config,
            tls: MakeRustlsConnect::new(tls),
            schema: options.schema.clone(),
        })
    }

    /// Opens a connection, which a task of the current runtime serves until the client is dropped.
    pub(super) async fn connect(&self) -> Result<Client, String> {
        let connecting = self.config.connect(self.tls.clone());
        let (client, connection) = tokio::time::timeout(CONNECT_MAX, connecting)
            .await
            .map_err(|_| "the database did not answer in time".to_owned())?
            .map_err(|error| describe(&error))?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error = %describe(&error), "a connection to the database ended");
            }
        });
        Ok(client)
    }

    /// A statement's text for this store's schema.
    pub(super) fn sql(&self, text: &str) -> String {
        text.replace("callboard.", &format!("{}.", self.schema))
    }

    pub(super) fn schema(&self) -> &str {
        &self.schema
    }
}

/// Why a statement has no result.
pub(super) enum Failure {
    /// The server refused it or the connection broke.
    Postgres(Error),
    /// No answer within the time; the connection is given up, and the outcome is unknown.
    TooLate,
}

impl Failure {
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Postgres(error) => describe(error),
            Self::TooLate => "the database did not answer in time".into(),
        }
    }

    /// Whether the connection must be replaced.
    pub(super) fn is_fatal(&self) -> bool {
        match self {
            Self::Postgres(error) => super::error::is_fatal(error),
            Self::TooLate => true,
        }
    }

    pub(super) fn is_in_the_way(&self) -> bool {
        match self {
            Self::Postgres(error) => super::error::is_in_the_way(error),
            Self::TooLate => false,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Postgres(error)
    }
}

/// Waits for a statement, but not for ever.
pub(super) async fn within<T>(
    limit: Duration,
    statement: impl Future<Output = Result<T, Error>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(limit, statement).await {
        Ok(result) => result.map_err(Failure::Postgres),
        Err(_) => Err(Failure::TooLate),
    }
}
