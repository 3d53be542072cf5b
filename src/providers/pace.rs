//! Bounds the processor time that one answer takes of a worker thread. A step is what is decoded
//! before other tasks have their turn. An answer that comes faster than any model writes is slowed
//! down to what its server may send.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep_until};

use crate::intake::{Intake, cost};

/// What is decoded in one step, in bytes; the end of a line counts as many.
const STEP: u64 = 64 * 1024;

/// What a piece counts as, beside its bytes: one of a byte takes as long as hundreds of bytes.
const OF_PIECE: u64 = 512;

/// What a compressed byte counts as at least, beside what it decodes to.
const OF_PACKED: u64 = 16;

/// Time of the processor that counts as one byte. Compressed bytes that decode to nothing can take a
/// thousand times as long as others.
const BYTE_TAKES: Duration = Duration::from_nanos(5);

/// What a byte of the framing of chunks counts as.
const OF_FRAMING: u64 = 8;

/// What an answer may bring at once, and in each second after that: about 250 tokens.
const OWN_BYTES_PER_SECOND: u64 = 256 * 1024;
const OWN_BURST: Duration = Duration::from_secs(1);

/// What the answers of one server share beyond that, in a second.
const SHARED_BYTES_PER_SECOND: u64 = 64 * 1024 * 1024;

/// What they may bring at once of it, so that an answer of any usual length comes at once.
const SHARED_BURST: Duration = Duration::from_millis(250);

/// How much is decoded before the clock is read.
const LOOK: u64 = 256 * 1024;

/// The account that the answers of one server share.
#[derive(Debug, Clone)]
pub(super) struct SharedIntake(Arc<Intake>);

impl SharedIntake {
    pub(super) fn new() -> Self {
        Self(Arc::new(Intake::new(SHARED_BYTES_PER_SECOND, SHARED_BURST)))
    }

    /// Counts compressed bytes that were decoded outside of an answer, and how long that took. Lets
    /// other tasks go on, and waits for what the server has used up.
    pub(super) async fn unpack(&self, bytes: usize, took: Duration) {
        let until = self.0.count(unpacked(bytes, took));
        tokio::task::yield_now().await;
        sleep_until(until).await;
    }
}

/// What compressed bytes count as that were decoded in this time.
fn unpacked(bytes: usize, took: Duration) -> u64 {
    let time = took.as_nanos() / BYTE_TAKES.as_nanos();
    let time = u64::try_from(time).unwrap_or(u64::MAX);
    time.max(OF_PACKED * bytes as u64)
}

/// The pace of one answer.
pub(super) struct Pace {
    /// `None` until the answer has brought [`LOOK`].
    own: Option<Intake>,
    shared: SharedIntake,
    /// What was decoded in this step, and since the clock was read.
    step: u64,
    since_look: u64,
    /// Set when a pause is due.
    pause: Option<Pin<Box<Sleep>>>,
}

impl Pace {
    pub(super) fn new(shared: SharedIntake) -> Self {
        Self {
            own: None,
            shared,
            step: 0,
            since_look: 0,
            pause: None,
        }
    }

    /// Counts a piece that is decoded.
    pub(super) fn take(&mut self, bytes: &[u8]) {
        self.step += OF_PIECE + cost(bytes);
    }

    /// Counts compressed bytes that were decoded, and how long that took.
    pub(super) fn unpack(&mut self, bytes: usize, took: Duration) {
        self.step += unpacked(bytes, took);
    }

    /// Counts bytes of framing.
    pub(super) fn pass(&mut self, bytes: usize) {
        self.step += OF_FRAMING * bytes as u64;
    }

    /// Whether the step is at its end.
    pub(super) fn is_over(&self) -> bool {
        self.step >= STEP
    }

    /// Waits until the next step may begin: for other tasks after a whole step, and for its time
    /// if the answer comes too fast.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(pause) = &mut self.pause {
            std::task::ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        let was_over = self.is_over();
        self.since_look += std::mem::take(&mut self.step);
        if self.since_look >= LOOK {
            let until = self.until();
            if until > Instant::now() {
                let mut pause = Box::pin(sleep_until(until));
                let is_over = pause.as_mut().poll(cx).is_ready();
                self.pause = (!is_over).then_some(pause);
                if self.pause.is_some() {
                    return Poll::Pending;
                }
            }
        }
        if was_over {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    /// When the answer may go on.
    fn until(&mut self) -> Instant {
        let taken = std::mem::take(&mut self.since_look);
        let own = self
            .own
            .get_or_insert_with(|| Intake::new(OWN_BYTES_PER_SECOND, OWN_BURST));
        let until = own.count(taken);
        match until <= Instant::now() {
            true => until,
            false => until.min(self.shared.0.count(taken)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// Decodes steps until so much is decoded, and returns how long that takes.
    async fn decoded(pace: &mut Pace, bytes: usize) -> Duration {
        let begun = Instant::now();
        const COST: usize = 16 * 1024;
        static PIECE: [u8; COST - OF_PIECE as usize] = [b'x'; COST - OF_PIECE as usize];
        for _ in 0..bytes / COST {
            if pace.is_over() {
                poll_fn(|cx| pace.poll(cx)).await;
            }
            pace.take(&PIECE);
        }
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_of_any_usual_length_comes_at_once_and_a_flood_at_the_bound_of_its_server() {
        let shared = SharedIntake::new();
        let mut pace = Pace::new(shared.clone());

        let first = decoded(&mut pace, 4 << 20).await;
        let flood = decoded(&mut pace, 64 << 20).await;

        assert!(first < Duration::from_millis(10), "{first:?}");
        // Of 68 MiB the server has 16 at once.
        let expected = Duration::from_millis(52 * 1000 / 64);
        assert!(
            flood.abs_diff(expected) < Duration::from_millis(100),
            "{flood:?}"
        );
        let other = decoded(&mut Pace::new(shared), 1 << 20).await;
        assert!(other < Duration::from_millis(50), "{other:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn floods_of_one_server_share_its_bound() {
        let shared = SharedIntake::new();
        let begun = Instant::now();
        let floods = (0..8).map(|_| {
            let mut pace = Pace::new(shared.clone());
            async move { decoded(&mut pace, 12 << 20).await }
        });
        futures_util::future::join_all(floods).await;

        // Of 96 MiB each has half of one of its own, and the server 16 at once.
        let took = begun.elapsed();
        assert!(took > Duration::from_millis(1_000), "{took:?}");
        assert!(took < Duration::from_secs(2), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn answers_of_one_server_again_and_again_share_its_bound() {
        let shared = SharedIntake::new();
        let begun = Instant::now();
        let rounds = (0..16).map(|_| {
            let shared = shared.clone();
            async move {
                for _ in 0..8 {
                    decoded(&mut Pace::new(shared.clone()), 3 << 20).await;
                }
            }
        });
        futures_util::future::join_all(rounds).await;

        // Of 384 MiB each answer has half a one of its own: 304 are the server's.
        let took = begun.elapsed();
        assert!(took > Duration::from_secs(4), "{took:?}");
    }

    #[tokio::test]
    async fn other_tasks_have_their_turn_after_each_step() {
        let mut pace = Pace::new(SharedIntake::new());
        let lines = [b'\n'; 1024];
        pace.take(&lines);
        assert!(pace.is_over(), "a thousand lines are a step");
        let mut small = Pace::new(SharedIntake::new());
        (0..128).for_each(|_| small.take(b"x"));
        assert!(small.is_over(), "and a hundred pieces of a byte");

        let mut polls = 0;
        poll_fn(|cx| {
            polls += 1;
            pace.poll(cx)
        })
        .await;
        assert_eq!(polls, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn what_brings_no_text_counts_as_well() {
        const PIECE: u64 = 1024;
        let long = BYTE_TAKES * u32::try_from(100 * PIECE).unwrap();
        let packed = |pace: &mut Pace| pace.unpack(PIECE as usize, Duration::ZERO);
        let slow = |pace: &mut Pace| pace.unpack(PIECE as usize, long);
        let framing = |pace: &mut Pace| pace.pass(PIECE as usize);
        type Count<'a> = &'a dyn Fn(&mut Pace);
        let ways: [(Count<'_>, u64); 3] =
            [(&packed, OF_PACKED), (&slow, 100), (&framing, OF_FRAMING)];
        for (count, weight) in ways {
            let mut pace = Pace::new(SharedIntake::new());
            let begun = Instant::now();

            for _ in 0..(64 << 20) / (PIECE * weight) {
                count(&mut pace);
                while pace.is_over() {
                    poll_fn(|cx| pace.poll(cx)).await;
                }
            }

            // 64 MiB in these units, of which the server has 16 at once.
            let took = begun.elapsed();
            assert!(
                took > Duration::from_millis(700) && took < Duration::from_millis(800),
                "{took:?}"
            );
        }
    }
}
