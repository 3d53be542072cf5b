//! Bounds the memory of all answers that are read at a time. An answer of ordinary length needs no
//! room; servers whose answers are far longer share some.

use std::sync::{Arc, LazyLock};

use callboard_actors::ports::ProviderError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::errors::protocol;

/// What an answer may keep without room: about the longest that models write.
const OWN_BYTES: usize = 1024 * 1024;

/// Room of all answers, and the steps in which it is taken.
const LONG_ANSWERS_BYTES_MAX: usize = 512 * 1024 * 1024;
const STEP_BYTES: usize = 1024 * 1024;

/// Memory is the process's, so that all providers share one room.
static ROOM: LazyLock<Arc<Semaphore>> =
    LazyLock::new(|| Arc::new(Semaphore::new(LONG_ANSWERS_BYTES_MAX / STEP_BYTES)));

/// The room that one answer has taken.
pub(super) struct AnswerRoom {
    room: Arc<Semaphore>,
    taken: Option<OwnedSemaphorePermit>,
}

impl AnswerRoom {
    pub(super) fn new() -> Self {
        Self::of(ROOM.clone())
    }

    fn of(room: Arc<Semaphore>) -> Self {
        Self { room, taken: None }
    }

    /// Takes room for an answer that keeps `bytes` by now.
    ///
    /// # Errors
    /// `Protocol` if there is none left.
    pub(super) fn hold(&mut self, bytes: usize) -> Result<(), ProviderError> {
        let needed = bytes.saturating_sub(OWN_BYTES).div_ceil(STEP_BYTES);
        let has = self.taken.as_ref().map_or(0, |taken| taken.num_permits());
        let more = u32::try_from(needed.saturating_sub(has)).unwrap_or(u32::MAX);
        if more == 0 {
            return Ok(());
        }
        let Ok(new) = self.room.clone().try_acquire_many_owned(more) else {
            return Err(protocol(format_args!(
                "the answer is longer than {OWN_BYTES} bytes, and what is beyond that in all \
                 answers has {LONG_ANSWERS_BYTES_MAX} bytes together"
            )));
        };
        match &mut self.taken {
            Some(taken) => taken.merge(new),
            None => self.taken = Some(new),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_answers_share_their_room_and_short_ones_need_none() {
        let room = Arc::new(Semaphore::new(4));
        let answer = || AnswerRoom::of(room.clone());
        let (mut long, mut other, mut short) = (answer(), answer(), answer());

        long.hold(OWN_BYTES + 1).unwrap();
        long.hold(OWN_BYTES + 3 * STEP_BYTES).unwrap();
        other.hold(OWN_BYTES + STEP_BYTES).unwrap();
        let error = other.hold(OWN_BYTES + STEP_BYTES + 1).unwrap_err();
        short.hold(OWN_BYTES).unwrap();

        assert!(matches!(error, ProviderError::Protocol { .. }), "{error}");
        drop(long);
        other.hold(OWN_BYTES + 4 * STEP_BYTES).unwrap();
    }
}
