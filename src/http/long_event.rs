//! Writes the events of a stream. One of more than a few KiB is sent in pieces, and counts in the
//! room of unread answers until its client has read it: a thousand streams that are not read would
//! hold a thousand copies of one long answer.

use std::{collections::VecDeque, convert::Infallible, time::Duration};

use axum::body::{BodyDataStream, Bytes};
use futures_util::{StreamExt as _, stream};

use super::{
    answer_body::{SHORT_BYTES, UNWATCHED_BYTES, answer_body, whole_body},
    answer_room::{AnswerRoom, AnswerRooms, WAIT_MAX},
    auth::CallerKey,
    shared::Shared,
};

/// How long an event that can be read again waits for room. It is kept in memory meanwhile.
const WAIT_TO_REPEAT: Duration = Duration::from_millis(50);

/// Who reads the events of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reader {
    /// A client that reconnects, and continues after the last event that it has read.
    Reconnects,
    /// A client that does not.
    Once,
    /// This host, for an answer that counts itself.
    Here,
}

/// Reserves the bytes of an event; `None` if there is no room.
async fn room(
    (rooms, wait): (&AnswerRooms, Duration),
    key: &CallerKey,
    bytes: usize,
) -> Option<AnswerRoom> {
    let (tenant, connection) = (key.tenant(), key.connection());
    let room = if bytes <= SHORT_BYTES {
        rooms.take_short(wait, tenant, connection, bytes).await
    } else {
        rooms.take_within(wait, tenant, connection, bytes).await
    };
    room.ok()
}

/// There is no room for a long event.
#[derive(Debug)]
pub(super) struct NoRoom;

/// The events of one stream, on the way to its client.
pub(super) struct EventWriter {
    /// `None` if events take no room.
    rooms: Option<AnswerRooms>,
    wait: Duration,
    pause_max: Duration,
    /// Room for the events that are written next.
    reserved: Option<AnswerRoom>,
    /// What is left of a long event.
    rest: Option<BodyDataStream>,
}

impl EventWriter {
    pub(super) fn new(app: &Shared, reader: Reader) -> Self {
        Self {
            rooms: (reader != Reader::Here).then(|| app.answers.clone()),
            wait: match reader {
                Reader::Reconnects => WAIT_TO_REPEAT,
                Reader::Once | Reader::Here => WAIT_MAX,
            },
            pause_max: app.config.bounds.write_pause_max,
            reserved: None,
            rest: None,
        }
    }

    /// The next piece of the event that was written last; `None` if all of it was sent. An error ends
    /// the stream: its client has read nothing for too long.
    pub(super) async fn piece(&mut self) -> Option<Result<Bytes, axum::Error>> {
        let piece = self.rest.as_mut()?.next().await;
        if piece.is_none() {
            self.rest = None;
        }
        piece
    }

    /// Writes an event of about `size` bytes and returns it, or its first piece. `None` if there is no
    /// room for it: the stream ends.
    ///
    /// # Cancel safety
    /// The event is lost.
    pub(super) async fn write(
        &mut self,
        key: &CallerKey,
        size: usize,
        event: impl FnOnce() -> Bytes,
    ) -> Option<Bytes> {
        let Some(rooms) = &self.rooms else {
            return Some(event());
        };
        let (event, room) = if size <= SHORT_BYTES {
            let event = event();
            if event.len() <= UNWATCHED_BYTES {
                return Some(event);
            }
            let room = room((rooms, self.wait), key, event.len()).await?;
            (event, room)
        } else {
            let mut room = room((rooms, self.wait), key, size).await?;
            let event = event();
            room.resize(event.len()).await.ok()?;
            (event, room)
        };
        self.rest = Some(whole_body(event, room, self.pause_max).into_data_stream());
        self.piece().await?.ok()
    }

    /// Reserves room for the events that [`EventWriter::first_of`] sends next, before they are
    /// written. `None` if there is none: the stream ends.
    pub(super) async fn reserve(&mut self, key: &CallerKey, bytes: usize) -> Option<()> {
        if let Some(rooms) = self.rooms.as_ref().filter(|_| bytes > UNWATCHED_BYTES) {
            self.reserved = Some(room((rooms, self.wait), key, bytes).await?);
        }
        Some(())
    }

    /// Sends events that are written already: returns the first one of short ones, or takes all of long
    /// ones, which count together, and returns a piece. `None` if there is no event.
    ///
    /// # Errors
    /// There is no room for them: the stream ends.
    ///
    /// # Cancel safety
    /// The events are lost.
    pub(super) async fn first_of(
        &mut self,
        key: &CallerKey,
        events: &mut VecDeque<Bytes>,
    ) -> Result<Option<Bytes>, NoRoom> {
        let reserved = self.reserved.take();
        let bytes: usize = events.iter().map(Bytes::len).sum();
        let rooms = self.rooms.as_ref().filter(|_| bytes > UNWATCHED_BYTES);
        let Some(rooms) = rooms else {
            return Ok(events.pop_front());
        };
        let room = match reserved {
            Some(mut room) => room.resize(bytes).await.map(|()| room).ok(),
            None => room((rooms, self.wait), key, bytes).await,
        };
        let room = room.ok_or(NoRoom)?;
        let all = std::mem::take(events).into_iter().map(Ok::<_, Infallible>);
        let all = stream::iter(all);
        self.rest = Some(answer_body(all, room, self.pause_max).into_data_stream());
        let piece = self.piece().await.and_then(Result::ok);
        piece.map(Some).ok_or(NoRoom)
    }
}
