//! The request of a compatible API, with the history that it brings.

use axum::extract::{FromRequest, Request};
use serde::de::DeserializeOwned;

use super::Transcript;
use crate::http::{
    body::read_messages,
    error::Problem,
    shared::{App, BodyRoom},
};

/// A request that brings a history.
pub(in crate::http) trait BringsHistory {
    /// Takes the messages out of the request, checked and converted.
    ///
    /// # Errors
    /// What is wrong with the first of them, or with the request.
    fn take_history(&mut self) -> Result<Transcript, Problem>;
}

/// A request whose history was converted where its body was parsed.
pub(in crate::http) struct Asked<T> {
    /// The request without the history.
    pub(in crate::http) request: T,
    /// The history. Its error is for the handler, which says what else is wrong first.
    pub(in crate::http) transcript: Result<Transcript, Problem>,
    /// Whether work on the history would keep a worker thread from other requests.
    pub(in crate::http) is_large: bool,
    /// Room for the request, as long as it waits to be stored.
    pub(in crate::http) room: BodyRoom,
}

impl<T: BringsHistory> Asked<T> {
    fn of(mut request: T, is_large: bool, room: BodyRoom) -> Self {
        Self {
            transcript: request.take_history(),
            request,
            is_large,
            room,
        }
    }
}

impl<T: BringsHistory + DeserializeOwned + Send + 'static> FromRequest<App> for Asked<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        read_messages(request, app, Self::of).await
    }
}
