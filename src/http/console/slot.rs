//! Where a request leaves its session, for the page of a failure.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::http::sessions::Session;

/// The session of a request, once a handler has asked for it.
#[derive(Debug, Clone, Default)]
pub(super) struct SessionSlot(Arc<Mutex<Option<Session>>>);

impl SessionSlot {
    pub(super) fn put(&self, session: Session) {
        *self.0.lock() = Some(session);
    }

    pub(super) fn take(&self) -> Option<Session> {
        self.0.lock().take()
    }
}
