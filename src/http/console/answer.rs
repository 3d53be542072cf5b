//! Answers that are no pages.

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};

/// Leads to another page of this host. A path that no header can hold leads to the start.
pub(super) fn see_other(path: &str) -> Response {
    let to = HeaderValue::from_str(path);
    let to = to.unwrap_or(HeaderValue::from_static("/console"));
    (StatusCode::SEE_OTHER, [(header::LOCATION, to)]).into_response()
}

/// A body of text or data.
pub(super) fn with_type(body: impl Into<Body>, media: &'static str) -> Response {
    let mut response = Response::new(body.into());
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    response
}
