//! The handlers, one file for each resource. Their `utoipa::path` attributes are the source of the
//! OpenAPI document.

pub(super) mod admin;
pub(super) mod artifacts;
pub(super) mod control;
pub(super) mod conversations;
pub(super) mod events;
pub(super) mod fan_outs;
pub(super) mod health;
pub(super) mod messages;
pub(super) mod metrics;
pub(super) mod rounds;
pub(super) mod skills;

use axum::{
    extract::{FromRequestParts, rejection::PathRejection},
    http::{StatusCode, request::Parts},
};
use serde::de::DeserializeOwned;

use super::{error::Problem, shared::App, words::wrong_text};

/// axum's `Path`, with rejections as problem documents.
pub(super) struct Path<T>(pub(super) T);

impl<T: DeserializeOwned + Send> FromRequestParts<App> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let found: Result<axum::extract::Path<T>, PathRejection> =
            axum::extract::Path::from_request_parts(parts, app).await;
        found
            .map(|axum::extract::Path(found)| Self(found))
            .map_err(|error| {
                let text = error.body_text();
                Problem::bad_parameter("path", text.strip_prefix("Invalid URL: ").unwrap_or(&text))
            })
    }
}

/// axum's `Query`, with rejections as problem documents.
pub(super) struct Query<T>(pub(super) T);

impl<T: DeserializeOwned + Send> FromRequestParts<App> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let found = axum::extract::Query::from_request_parts(parts, app).await;
        found
            .map(|axum::extract::Query(found)| Self(found))
            .map_err(|error| wrong_query(&error.body_text()))
    }
}

/// The problem of a query that cannot be read, from axum's text: `Failed to deserialize query
/// string: limit: invalid digit found in string`.
fn wrong_query(text: &str) -> Problem {
    let said = text
        .strip_prefix("Failed to deserialize query string: ")
        .unwrap_or(text);
    match said.split_once(": ") {
        Some((name, reason)) => Problem::bad_parameter(name, wrong_text(reason)),
        None => Problem::bad_parameter("query", said),
    }
}

/// The value of a header that may occur at most once, as text.
pub(super) fn single_header<'a>(
    headers: &'a axum::http::HeaderMap,
    name: &str,
) -> Result<Option<&'a str>, Problem> {
    let mut given = headers.get_all(name).iter();
    match (given.next(), given.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value
            .to_str()
            .map(Some)
            .map_err(|_| Problem::bad_parameter(name, "must be visible ASCII")),
        (Some(_), Some(_)) => Err(Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "invalid_parameter",
            format!("{name}: send this header only once"),
        )),
    }
}
