//! Opening and ending a session.

use std::{borrow::Cow, time::Duration};

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use maud::{Markup, html};
use serde::Deserialize;

use super::{
    answer::see_other,
    cookies::{CSRF, LOGIN_COOKIE, cookie, no_session_cookie, session_cookie, set_cookie},
    form::{Form, LoginForm, stale},
    page::{Failure, Page},
    session::{Client, session_of},
};
use crate::http::sessions::Who;
use crate::http::{error::Problem, keys::new_key, routes::Query, shared::App};

/// How long a login form stays valid.
const FORM_LASTS: Duration = Duration::from_secs(60 * 60);

/// Where to go after the login.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Next {
    next: Option<String>,
}

/// `GET /`: the console for browsers, the paths of the API for programs.
pub(super) async fn start(State(app): State<App>, headers: HeaderMap) -> Response {
    let accepts = headers.get(header::ACCEPT);
    let is_browser = accepts
        .and_then(|value| value.to_str().ok())
        .is_some_and(|accepts| accepts.contains("text/html"));
    if is_browser {
        return see_other("/console");
    }
    axum::Json(serde_json::json!({
        "name": "callboard",
        "version": env!("CARGO_PKG_VERSION"),
        "openapi": "/openapi.json",
        "console": "/console",
        "mcp": (cfg!(feature = "mcp-server") && app.config.mcp).then_some("/mcp"),
        "health": "/healthz",
    }))
    .into_response()
}

/// Shows the login form.
pub(super) async fn form(
    State(app): State<App>,
    headers: HeaderMap,
    next: Result<Query<Next>, Problem>,
) -> Result<Response, Failure> {
    let Query(Next { next }) = next?;
    let next = inside(next.as_deref().unwrap_or_default());
    if session_of(&headers, &app).is_some() {
        return Ok(see_other(&next));
    }
    Ok(shown(&headers, &next, None, StatusCode::OK))
}

/// Opens a session.
pub(super) async fn log_in(
    State(app): State<App>,
    client: Result<Client, Failure>,
    headers: HeaderMap,
    LoginForm(fields): LoginForm,
) -> Result<Response, Failure> {
    let Client(client) = client?;
    let next = inside(&fields.get("next"));
    // The form must come back with the cookie that it was made with: a page of another site cannot
    // log a person in under a key of its own.
    let token = cookie(&headers, LOGIN_COOKIE).unwrap_or_default();
    if token.is_empty() || token != fields.get(CSRF) {
        return Err(stale().into());
    }
    let key = fields.get("key");
    match app.console.log_in(&app.config.keys, client, key.trim()) {
        Ok((id, session)) => {
            let next = match (&session.who, &*next) {
                (Who::Operator, "/console") => Cow::Borrowed("/console/host"),
                _ => next,
            };
            let cookie = session_cookie(&headers, &id);
            let set: HeaderMap = cookie.into_iter().collect();
            Ok((set, see_other(&next)).into_response())
        }
        Err(problem) if problem.status == StatusCode::UNAUTHORIZED.as_u16() => {
            let wrong = "This key is not known here.";
            Ok(shown(
                &headers,
                &next,
                Some(wrong),
                StatusCode::UNAUTHORIZED,
            ))
        }
        Err(problem) => Err(problem.into()),
    }
}

/// Ends the session.
pub(super) async fn log_out(State(app): State<App>, headers: HeaderMap, form: Form) -> Response {
    app.console.log_out(&form.session);
    let set: HeaderMap = no_session_cookie(&headers).into_iter().collect();
    (set, see_other("/console/login")).into_response()
}

fn shown(headers: &HeaderMap, next: &str, wrong: Option<&str>, status: StatusCode) -> Response {
    let token = new_key();
    let page = Page::without_session("Log in", login(&token, next, wrong));
    let set: HeaderMap = set_cookie(headers, LOGIN_COOKIE, &token, FORM_LASTS)
        .into_iter()
        .collect();
    let mut response = (set, page).into_response();
    *response.status_mut() = status;
    response
}

fn login(token: &str, next: &str, wrong: Option<&str>) -> Markup {
    html! {
        div.narrow {
            h1 { "Log in" }
            @if let Some(wrong) = wrong { p.flash.bad role="alert" { (wrong) } }
            form.stack method="post" action="/console/login" {
                input type="hidden" name=(CSRF) value=(token);
                input type="hidden" name="next" value=(next);
                label for="key" { "Key of a tenant, or of the operator" }
                input #key type="password" name="key" autocomplete="current-password" required
                    autofocus placeholder="cb_…" maxlength="512";
                button.main type="submit" { "Log in" }
            }
            p.dim.small {
                "The browser keeps the id of a session, never the key. A session lasts twelve "
                "hours and ends with its key. "
                code { "callboard keys new" } " makes keys; the first start of "
                code { "callboard serve" } " prints one."
            }
            p.dim.small { "For programs: " a href="/openapi.json" { "the API" } "." }
        }
    }
}

/// A path within the console; its start page for anything else.
fn inside(next: &str) -> Cow<'static, str> {
    let is_inside = next.bytes().all(|byte| byte.is_ascii_graphic())
        && next.parse::<Uri>().is_ok_and(|uri| {
            let path = uri.path();
            let leaves = path.contains("//") || path.split('/').any(is_dots);
            uri.authority().is_none()
                && !leaves
                && (path == "/console" || path.starts_with("/console/"))
        });
    match is_inside {
        true => Cow::Owned(next.to_owned()),
        false => Cow::Borrowed("/console"),
    }
}

/// Whether browsers read a part of a path as this or the upper folder.
fn is_dots(part: &str) -> bool {
    let part = part.to_ascii_lowercase().replace("%2e", ".");
    part == "." || part == ".."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_leads_only_into_the_console() {
        for good in ["/console", "/console/c/a?to=3"] {
            assert_eq!(inside(good), good);
        }
        for bad in [
            "",
            "//evil.example",
            "https://evil.example/console/",
            "/consolex",
            "/v1",
            "\\",
            "/console/\u{7f}",
            "/console//evil.example",
            "/console/../..//evil.example/",
            "/console/%2e%2E//e.example",
            "/console/.%2e/v1",
            "/console/./c",
        ] {
            assert_eq!(inside(bad), "/console", "{bad}");
        }
    }
}
