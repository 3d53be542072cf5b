//! Bounds what one connection reads in a second, of event streams and of pipes. Comments, empty lines
//! and what is no message cost processor time and reach no filter of messages.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until};

use crate::intake;

/// Bytes that a connection may read in a second; a whole message of the largest size may come at
/// once.
const BYTES_PER_SECOND: u64 = 8 * 1024 * 1024;

/// Bytes that a value of a message counts as.
const VALUE_BYTES: u64 = 128;

/// Bytes that a part of an answer over HTTP, or of a line of a pipe, counts as beside its own: one that
/// comes a byte at a time costs by its reads.
const PART_BYTES: u64 = 512;

/// What may be read at once after a pause, as time.
const BURST: Duration = Duration::from_secs(1);

/// The account of one connection; its clones share it.
#[derive(Clone)]
pub(super) struct Intake(Arc<intake::Intake>);

impl Intake {
    pub(super) fn new() -> Self {
        Self(Arc::new(intake::Intake::new(BYTES_PER_SECOND, BURST)))
    }

    /// Waits until a part of an answer that was read is within the bound. Cancel safe: it stays counted.
    pub(super) async fn take(&self, part: &[u8]) {
        let until = self.0.count(intake::cost(part) + PART_BYTES);
        sleep_until(until).await;
    }

    /// Counts a line that was read from a pipe, or a part of one; returns when reading may go on.
    pub(super) fn read(&self, bytes: &[u8]) -> Instant {
        let part = if bytes.ends_with(b"\n") {
            0
        } else {
            PART_BYTES
        };
        self.0.count(intake::cost(bytes) + part)
    }

    /// Counts the values of a message, which what is read next waits for: parsing costs more by
    /// values than by bytes.
    pub(super) fn take_values(&self, values: usize) {
        self.0.count(values as u64 * VALUE_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn waited(intake: &Intake, bytes: &[u8]) -> Duration {
        let begun = Instant::now();
        intake.take(bytes).await;
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_message_comes_at_once_and_a_flood_at_the_bound() {
        let intake = Intake::new();
        let message = vec![b'x'; usize::try_from(BYTES_PER_SECOND).unwrap()];

        assert!(waited(&intake, &message).await < Duration::from_millis(2));
        let second = waited(&intake.clone(), &message).await;
        assert!(
            second.abs_diff(BURST) < Duration::from_millis(2),
            "{second:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn parts_of_one_byte_come_at_the_pace_of_their_reads() {
        let intake = Intake::new();
        let begun = Instant::now();

        for _ in 0..4 * BYTES_PER_SECOND / PART_BYTES {
            intake.take(b"x").await;
        }
        let rate = begun.elapsed().as_secs_f64();
        assert!(
            rate > 2.9,
            "four seconds' worth, of which one at once: {rate}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn parts_of_a_line_of_one_byte_count_by_their_reads_and_short_lines_do_not() {
        let times = 4 * BYTES_PER_SECOND / PART_BYTES;
        let wait_after = |part: &[u8]| {
            let intake = Intake::new();
            let last = (0..times).fold(Instant::now(), |_, _| intake.read(part));
            last.saturating_duration_since(Instant::now())
        };

        assert!(wait_after(b"x") > Duration::from_millis(2900));
        assert!(wait_after(b"{}\n") < Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn messages_of_many_values_come_at_the_pace_of_their_values() {
        let intake = Intake::new();

        intake.take_values(200_000);
        let waited = waited(&intake, b"data: 1").await;
        assert!(waited > BURST, "25 million bytes: {waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn empty_lines_and_comments_count_as_much_as_they_cost() {
        let intake = Intake::new();
        let flood = b":\n".repeat(100_000);

        waited(&intake, &flood).await;
        let waited = waited(&intake, &flood).await;
        assert!(waited > BURST, "26 million bytes in all: {waited:?}");
    }
}
