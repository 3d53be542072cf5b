//! Who asks for a page: the session of a request, and what its pages need.

use std::net::IpAddr;

use axum::{
    extract::{Extension, FromRequestParts},
    http::{HeaderMap, Method, request::Parts},
};
use callboard_actors::ids::TenantId;

use super::{
    cookies::{SESSION_COOKIE, cookie},
    page::Failure,
    slot::SessionSlot,
};
use crate::http::{
    addresses::ClientAddress,
    answer_room::ConnectionRoom,
    auth::{CallerKey, no_route},
    error::Problem,
    sessions::{Session, Who},
    shared::App,
};

/// The right to go on reading, for event streams; `None` for the operator.
pub(super) fn caller_key(session: &Session, app: &App) -> Option<CallerKey> {
    match &session.who {
        Who::Tenant(tenant) => {
            let connection = ConnectionRoom::new(&app.config.bounds);
            let keys = &app.config.keys;
            Some(CallerKey::new(keys, tenant, session.key, connection))
        }
        Who::Operator => None,
    }
}

/// The session of a request, if there is one.
pub(super) fn session_of(headers: &HeaderMap, app: &App) -> Option<Session> {
    let id = cookie(headers, SESSION_COOKIE)?;
    app.console.find(&app.config.keys, id)
}

/// The tenant whose session a request carries.
pub(in crate::http) fn tenant_of(headers: &HeaderMap, app: &App) -> Option<TenantId> {
    match session_of(headers, app)?.who {
        Who::Tenant(tenant) => Some(tenant),
        Who::Operator => None,
    }
}

/// Whoever has a session.
pub(super) struct AnySession {
    pub(super) session: Session,
}

impl FromRequestParts<App> for AnySession {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Failure> {
        match session_of(&parts.headers, app) {
            Some(session) => {
                if let Some(slot) = parts.extensions.get::<SessionSlot>() {
                    slot.put(session.clone());
                }
                Ok(Self { session })
            }
            None => Err(Failure::LoggedOut {
                next: (parts.method == Method::GET).then(|| parts.uri.to_string()),
            }),
        }
    }
}

/// A tenant's session, with what its pages need.
pub(super) struct TenantSession {
    pub(super) session: Session,
    pub(super) tenant: TenantId,
    pub(super) connection: ConnectionRoom,
}

impl FromRequestParts<App> for TenantSession {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Failure> {
        let AnySession { session } = AnySession::from_request_parts(parts, app).await?;
        let Extension(connection) = Extension::<ConnectionRoom>::from_request_parts(parts, app)
            .await
            .map_err(|_| Problem::internal())?;
        match session.who.clone() {
            Who::Tenant(tenant) => Ok(Self {
                session,
                tenant,
                connection,
            }),
            Who::Operator => Err(Failure::Elsewhere("/console/host")),
        }
    }
}

/// The operator's session.
pub(super) struct OperatorSession {
    pub(super) session: Session,
}

impl FromRequestParts<App> for OperatorSession {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Failure> {
        let AnySession { session } = AnySession::from_request_parts(parts, app).await?;
        match session.who {
            Who::Operator => Ok(Self { session }),
            // As over the API: to a tenant these pages are not there.
            Who::Tenant(_) => Err(no_route().into()),
        }
    }
}

/// The address of the client, as connections are counted.
pub(super) struct Client(pub(super) IpAddr);

impl FromRequestParts<App> for Client {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Failure> {
        let address = parts.extensions.get::<ClientAddress>();
        let ClientAddress(address) = address.ok_or_else(Problem::internal)?;
        Ok(Self(*address))
    }
}
