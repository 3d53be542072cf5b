//! The other hosts on the same PostgreSQL database, over HTTP.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, Uri},
    response::Response,
};
use callboard_actors::{
    ids::Scope,
    ports::{BoxFuture, StoreError},
};

use super::AppError;
use crate::{
    http::{NotForwarded, Peers},
    storage::Postgres,
    tls,
};

/// How long a connection to another host may take.
const CONNECT_MAX: Duration = Duration::from_secs(2);

/// Headers that concern one connection and are not sent on (RFC 9110, 7.6.1).
const OF_THE_CONNECTION: &[&str] = &[
    "connection",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The hosts that say in the database that they are there.
pub(super) struct DatabasePeers {
    store: Arc<Postgres>,
    address: String,
    client: reqwest::Client,
}

impl DatabasePeers {
    /// The peers of a host that they reach at `address`.
    ///
    /// # Errors
    /// The client could not be made.
    pub(super) fn new(store: Arc<Postgres>, address: String) -> Result<Self, AppError> {
        let builder = tls::client_builder().map_err(|_| cannot_reach("TLS is not available"))?;
        let client = builder
            .connect_timeout(CONNECT_MAX)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .map_err(|_| cannot_reach("the client could not be made"))?;
        Ok(Self {
            store,
            address,
            client,
        })
    }
}

fn cannot_reach(why: &str) -> AppError {
    AppError::Tools(format!("other hosts cannot be reached: {why}"))
}

impl Peers for DatabasePeers {
    fn address(&self) -> &str {
        &self.address
    }

    fn others(&self) -> Vec<String> {
        self.store.other_hosts()
    }

    fn owned_elsewhere(
        &self,
        scopes: Vec<Scope>,
    ) -> BoxFuture<'_, Result<Vec<(Scope, String)>, StoreError>> {
        Box::pin(self.store.owned_elsewhere(scopes))
    }

    fn forward<'a>(
        &'a self,
        address: &'a str,
        request: Request,
    ) -> BoxFuture<'a, Result<Response, NotForwarded>> {
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let url = format!("{address}{}", path_of(&parts.uri));
            let mut headers = parts.headers;
            strip(&mut headers);
            let answer = self
                .client
                .request(parts.method, url)
                .headers(headers)
                .body(reqwest::Body::wrap_stream(body.into_data_stream()))
                .send()
                .await
                .map_err(|error| NotForwarded {
                    was_sent: !error.is_connect(),
                    // The URL may name a conversation, and the cause says enough.
                    reason: error.without_url().to_string(),
                })?;
            let mut response = Response::new(Body::empty());
            *response.status_mut() = answer.status();
            response.headers_mut().clone_from(answer.headers());
            strip(response.headers_mut());
            *response.body_mut() = Body::from_stream(answer.bytes_stream());
            Ok(response)
        })
    }
}

/// The path and the query of a request, as they came. The client of this host reads a backslash as a
/// slash; those who match routes do not.
fn path_of(uri: &Uri) -> String {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    path.replace('\\', "%5C")
}

fn strip(headers: &mut HeaderMap) {
    for name in OF_THE_CONNECTION {
        headers.remove(*name);
    }
}
