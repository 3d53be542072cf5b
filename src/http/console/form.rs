//! The forms of the console: read within bounds, and refused unless this host made them for the
//! session that sends them.

use std::borrow::Cow;

use axum::{
    body::Bytes,
    extract::{FromRequest, FromRequestParts as _, Request},
    http::{HeaderMap, StatusCode, header},
};
use callboard_actors::{ids::TenantId, limits::PROMPT_BYTES_MAX};

use super::{
    cookies::CSRF,
    page::Failure,
    session::{AnySession, Client},
};
use crate::http::sessions::{Session, Who};
use crate::http::{body, error::Problem, shared::App};

/// Bytes of a form without a prompt.
const SMALL_BYTES_MAX: usize = 256 * 1024;

/// Bytes of a login form: a key, a token and a path.
const LOGIN_BYTES_MAX: usize = 8 * 1024;

/// Login forms of one client address that may be read at the same time. Whoever sends one has no key
/// yet, so nothing else bounds the memory that they take.
const LOGINS_MAX: usize = 256;

/// The fields of a form.
#[derive(Debug)]
pub(super) struct Fields(Bytes);

impl Fields {
    /// A field; empty if the form has none of this name.
    pub(super) fn get(&self, name: &str) -> Cow<'_, str> {
        form_urlencoded::parse(&self.0)
            .find(|(found, _)| found == name)
            .map(|(_, value)| value)
            .unwrap_or_default()
    }

    /// A field without the white space around it; `None` if it is empty.
    pub(super) fn filled(&self, name: &str) -> Option<String> {
        let value = self.get(name);
        let value = value.trim();
        (!value.is_empty()).then(|| value.to_owned())
    }

    /// Whether a box was ticked, or the button with this name pressed.
    pub(super) fn has(&self, name: &str) -> bool {
        form_urlencoded::parse(&self.0).any(|(found, _)| found == name)
    }
}

/// A form that a person with a session sent.
pub(super) struct Form {
    pub(super) session: Session,
    pub(super) fields: Fields,
}

impl Form {
    /// The tenant that sent it.
    ///
    /// # Errors
    /// 404 for the operator's session: no page has such a form for it.
    pub(super) fn tenant(&self) -> Result<TenantId, Failure> {
        match &self.session.who {
            Who::Tenant(tenant) => Ok(tenant.clone()),
            Who::Operator => Err(Problem::not_found("page").into()),
        }
    }

    /// Refuses all but the operator.
    ///
    /// # Errors
    /// 404 for a tenant's session.
    pub(super) fn operator(&self) -> Result<(), Failure> {
        match &self.session.who {
            Who::Operator => Ok(()),
            Who::Tenant(_) => Err(Problem::not_found("page").into()),
        }
    }
}

impl FromRequest<App> for Form {
    type Rejection = Failure;

    async fn from_request(request: Request, app: &App) -> Result<Self, Failure> {
        let (mut parts, body) = request.into_parts();
        from_here(&parts.headers)?;
        let AnySession { session } = AnySession::from_request_parts(&mut parts, app).await?;
        let bytes = match &session.who {
            Who::Tenant(tenant) => {
                let mut room = app.body_room(tenant);
                // A letter outside of ASCII takes three bytes of a form for each of its own.
                let most = 3 * PROMPT_BYTES_MAX;
                body::collect(&parts.headers, body, app, most, Some(&mut room)).await?
            }
            Who::Operator => {
                body::collect(&parts.headers, body, app, SMALL_BYTES_MAX, None).await?
            }
        };
        let fields = Fields(bytes);
        if !session.made(&fields.get(CSRF)) {
            return Err(stale().into());
        }
        Ok(Self { session, fields })
    }
}

/// A login form, which has no session yet.
pub(super) struct LoginForm(pub(super) Fields);

impl FromRequest<App> for LoginForm {
    type Rejection = Failure;

    async fn from_request(request: Request, app: &App) -> Result<Self, Failure> {
        let (mut parts, body) = request.into_parts();
        from_here(&parts.headers)?;
        let Client(client) = Client::from_request_parts(&mut parts, app).await?;
        let _place = app.logins.take(client, Some(LOGINS_MAX)).ok_or_else(|| {
            let detail = "too many login forms of this address at once; retry in a moment";
            Problem::too_many("too_many_logins", detail)
        })?;
        let bytes = body::collect(&parts.headers, body, app, LOGIN_BYTES_MAX, None).await?;
        Ok(Self(Fields(bytes)))
    }
}

/// The answer for a form that this host did not make for this session.
pub(super) fn stale() -> Problem {
    Problem::new(
        StatusCode::FORBIDDEN,
        "stale_form",
        "this form was not made for your session; go back, reload the page and try again",
    )
}

/// Refuses a form that a page of another site sends, and bodies that are no forms.
fn from_here(headers: &HeaderMap) -> Result<(), Problem> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let is_form = text(header::CONTENT_TYPE)
        .is_some_and(|media| media.starts_with("application/x-www-form-urlencoded"));
    if !is_form {
        return Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "not_a_form",
            "send a form with `Content-Type: application/x-www-form-urlencoded`",
        ));
    }
    // Browsers say where a form comes from; over plain HTTP to another machine only by its origin.
    let is_ours = match text(header::HeaderName::from_static("sec-fetch-site")) {
        Some(site) => matches!(site, "same-origin" | "none"),
        None => text(header::ORIGIN).is_none_or(|origin| {
            let host = origin.split_once("://").map(|(_, host)| host);
            host.is_some() && host == text(header::HOST)
        }),
    };
    match is_ours {
        true => Ok(()),
        false => Err(stale()),
    }
}
