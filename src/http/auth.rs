//! Extractors that authenticate a request. They run before the body is read. Keys are compared by
//! hash; none is stored or logged.

use axum::{
    extract::FromRequestParts,
    http::{HeaderName, StatusCode, header, request::Parts},
};
use callboard_actors::ids::TenantId;
use tokio::sync::watch;

use super::{KeyHash, Keys, answer_room::ConnectionRoom, error::Problem, shared::App};

/// Paths of Anthropic's API, whose clients send their key in a header of their own.
pub(super) const API_KEY_PREFIX: &str = "/anthropic/";

/// The header in which they send it.
pub(super) const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The tenant whose key came with the request.
pub(super) struct Caller(pub(super) TenantId);

/// The key of a tenant's request, for answers that go on after it was checked, and where they go.
pub(super) struct CallerKey {
    keys: Keys,
    tenant: TenantId,
    connection: ConnectionRoom,
    hash: KeyHash,
    changes: watch::Receiver<()>,
}

impl CallerKey {
    /// The key with this hash, of a request of a connection.
    pub(super) fn new(
        keys: &Keys,
        tenant: &TenantId,
        hash: KeyHash,
        connection: ConnectionRoom,
    ) -> Self {
        Self {
            changes: keys.changes(),
            keys: keys.clone(),
            tenant: tenant.clone(),
            connection,
            hash,
        }
    }

    pub(super) fn tenant(&self) -> &TenantId {
        &self.tenant
    }

    /// The connection of the request.
    pub(super) fn connection(&self) -> &ConnectionRoom {
        &self.connection
    }

    /// Whether the key still opens its tenant.
    pub(super) fn is_valid(&self) -> bool {
        self.keys.opens(&self.hash, &self.tenant)
    }

    /// Waits until the key does not open its tenant any more. Cancel safe.
    pub(super) async fn revoked(&mut self) {
        while self.is_valid() {
            if self.changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

impl FromRequestParts<App> for CallerKey {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let Caller(tenant) = Caller::from_request_parts(parts, app).await?;
        let hash = KeyHash::from_key(key_of(parts)?);
        let connection = ConnectionRoom::of(&parts.extensions, &app.config.bounds);
        Ok(Self::new(&app.config.keys, &tenant, hash, connection))
    }
}

/// The tenant whose key comes with a request, if it has one.
pub(super) fn tenant_of(parts: &Parts, keys: &Keys) -> Option<TenantId> {
    keys.tenant_of(key_of(parts).ok()?)
}

/// Proof that the request carries the operator's key.
pub(super) struct Admin;

impl FromRequestParts<App> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let key = key_of(parts)?;
        match app.config.keys.tenant_of(key) {
            Some(tenant) => Ok(Self(tenant)),
            None if app.config.keys.is_admin(key) => Err(Problem::new(
                StatusCode::FORBIDDEN,
                "tenant_key_needed",
                "the operator's key is not valid for tenant routes; use a key of the tenant",
            )),
            None => Err(unauthorized("unknown key")),
        }
    }
}

impl FromRequestParts<App> for Admin {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let key = bearer(parts)?;
        if app.config.keys.is_admin(key) {
            return Ok(Self);
        }
        // Tenants get the 404 of an unknown route: a 403 would reveal which names exist under
        // /v1/admin/.
        Err(app
            .config
            .keys
            .tenant_of(key)
            .map_or_else(|| unauthorized("unknown key"), |_| no_route()))
    }
}

/// Which key a route needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OpenedBy {
    Anyone,
    Tenant,
    Operator,
}

/// Which key the route of a served path needs.
pub(super) fn opened_by(path: &str) -> OpenedBy {
    match path {
        "/" | "/console" | "/healthz" | "/readyz" | "/openapi.json" => OpenedBy::Anyone,
        path if path.starts_with("/console/") => OpenedBy::Anyone,
        "/metrics" => OpenedBy::Operator,
        path if path.starts_with("/v1/admin/") => OpenedBy::Operator,
        _ => OpenedBy::Tenant,
    }
}

/// The 404 for a path that is not served.
pub(super) fn no_route() -> Problem {
    Problem::not_found("route")
}

/// The key of a request: a bearer token, or under Anthropic's API also `x-api-key`.
fn key_of(parts: &Parts) -> Result<&str, Problem> {
    if !parts.uri.path().starts_with(API_KEY_PREFIX) {
        return bearer(parts);
    }
    let mut given = parts.headers.get_all(API_KEY).iter();
    match (given.next(), given.next()) {
        (None, _) => bearer(parts),
        // Two keys may be of two tenants: which one is meant is not known.
        (Some(key), None) if !parts.headers.contains_key(header::AUTHORIZATION) => {
            let key = key.to_str().unwrap_or_default().trim();
            let none = || unauthorized("the header `x-api-key` has no key");
            (!key.is_empty()).then_some(key).ok_or_else(none)
        }
        _ => Err(unauthorized(
            "send one key: in `x-api-key`, or as the bearer token of `Authorization`",
        )),
    }
}

fn bearer(parts: &Parts) -> Result<&str, Problem> {
    let mut given = parts.headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (given.next(), given.next()) else {
        return Err(unauthorized(
            "send the header `Authorization` once: the word `Bearer`, a space and a key",
        ));
    };
    let (scheme, key) = value
        .to_str()
        .ok()
        .and_then(|text| text.split_once(' '))
        .unwrap_or_default();
    match key.trim() {
        key if scheme.eq_ignore_ascii_case("bearer") && !key.is_empty() => Ok(key),
        _ => Err(unauthorized(
            "the header `Authorization` needs the word `Bearer`, a space and a key",
        )),
    }
}

pub(super) fn unauthorized(detail: &str) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", detail)
}
