//! The answers that clients have not read. Each counts in the room of its connection and its tenant
//! before the transport gets it, and until it is sent or dropped.

use std::{
    io::{self, Write},
    sync::{Arc, Weak},
};

use callboard_actors::ids::TenantId;
use parking_lot::Mutex;
use serde::Serialize;

use super::api::Refused;
use crate::http::{
    answer_body::Counts,
    answer_room::{AnswerRoom, AnswerRooms, ConnectionRoom},
};

/// Bytes of an answer that takes no room: its request took as much.
const SMALL_BYTES: usize = 4 * 1024;

/// The room that the answer to one request takes. Dropping it frees the room; an answer that is not
/// known by then is refused.
#[derive(Debug, Default)]
pub(super) struct Unread(Arc<Mutex<Option<AnswerRoom>>>);

impl Unread {
    /// What counts the answer here.
    pub(super) fn counter(
        &self,
        rooms: &AnswerRooms,
        tenant: &TenantId,
        connection: &ConnectionRoom,
    ) -> AnswerCounter {
        AnswerCounter {
            rooms: rooms.clone(),
            tenant: tenant.clone(),
            connection: connection.clone(),
            unread: Arc::downgrade(&self.0),
        }
    }
}

/// With the room of the request, which counts until all of its answer is sent.
impl<R: Send + 'static> Counts for (R, Unread) {
    fn part(&mut self, bytes: usize) -> Option<AnswerRoom> {
        let (_, Unread(room)) = self;
        room.lock().as_mut().map(|room| room.split(bytes))
    }
}

/// Takes the room of an answer.
#[derive(Debug, Clone)]
pub(super) struct AnswerCounter {
    rooms: AnswerRooms,
    tenant: TenantId,
    connection: ConnectionRoom,
    unread: Weak<Mutex<Option<AnswerRoom>>>,
}

impl AnswerCounter {
    /// Counts an answer. Waits a short time for room.
    ///
    /// # Errors
    /// `too_many_bytes` when there is none; the work that led to the answer is done all the same.
    pub(super) async fn count(&self, answer: &impl Serialize) -> Result<(), Refused> {
        let bytes = bytes_of(answer);
        if bytes <= SMALL_BYTES {
            return Ok(());
        }
        let room = self.rooms.take(&self.tenant, &self.connection, bytes).await;
        let room = room.map_err(|problem| Refused {
            code: problem.code,
            detail: format!(
                "the call is done, but its answer has no room: {}; get_round reads the answer to a prompt again",
                problem.detail
            ),
            retry_after_ms: problem.retry_after_ms,
        })?;
        let unread = self.unread.upgrade();
        let unread = unread.ok_or_else(|| Refused::new("interrupted", "the client is gone"))?;
        *unread.lock() = Some(room);
        Ok(())
    }
}

/// The bytes of a value as JSON, which is not kept.
fn bytes_of(value: &impl Serialize) -> usize {
    struct Counted(usize);
    impl Write for Counted {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut counted = Counted(0);
    // Counting plain types cannot fail.
    let _ = serde_json::to_writer(&mut counted, value);
    counted.0
}
