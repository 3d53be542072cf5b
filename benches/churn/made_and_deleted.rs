//! Creates conversations at a rate, each for one turn, deletes them, and samples the memory of the
//! process.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use callboard::{Host, limits::Limits};

use super::{process::anonymous, scripted};

/// A host with its journal in memory, whose event rings age after one second, so that memory which
/// remains is a leak.
pub(crate) async fn host() -> Host {
    let limits = Limits {
        ring_age: Duration::from_secs(1),
        ..Limits::default()
    };
    Host::builder()
        .provider(scripted::brief())
        .limits(limits)
        .build()
        .await
        .unwrap()
}

/// The result of a run.
pub(crate) struct Churned {
    /// Seconds since the start, and bytes of memory.
    pub(crate) samples: Vec<(f64, f64)>,
    /// Conversations that were created and deleted.
    pub(crate) deleted: usize,
    pub(crate) wall: Duration,
}

/// Creates and deletes `rate` conversations per second for `length`. `each_second` gets every
/// sample. Ids and tenants are not reused.
pub(crate) async fn run(
    host: &Host,
    rate: usize,
    length: Duration,
    each_second: impl Fn(f64, f64),
) -> Churned {
    // A deletion takes a tenth of a second, because watchers get time to read its event. This many
    // run concurrently.
    const LANES: usize = 256;
    let began = Instant::now();
    let next = Arc::new(AtomicUsize::new(0));
    let deleted = Arc::new(AtomicUsize::new(0));
    let lanes: Vec<_> = (0..LANES)
        .map(|_| {
            let host = host.clone();
            let next = next.clone();
            let deleted = deleted.clone();
            tokio::spawn(async move {
                loop {
                    let nth = next.fetch_add(1, Ordering::Relaxed);
                    let due = began + Duration::from_secs_f64(nth as f64 / rate as f64);
                    if due > began + length {
                        return;
                    }
                    tokio::time::sleep_until(due.into()).await;
                    let conversation = host
                        .tenant(format!("t-{}", nth % 100))
                        .conversation(format!("c-{nth}"));
                    let end = conversation
                        .send("p".repeat(200))
                        .await
                        .unwrap()
                        .outcome()
                        .await
                        .unwrap();
                    assert_eq!(end.text.len(), 64);
                    assert!(conversation.delete().await.unwrap());
                    deleted.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let mut samples = Vec::new();
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    while began.elapsed() < length {
        tick.tick().await;
        let sample = (began.elapsed().as_secs_f64(), anonymous() as f64);
        each_second(sample.0, sample.1);
        samples.push(sample);
    }
    for lane in lanes {
        lane.await.unwrap();
    }
    Churned {
        samples,
        deleted: deleted.load(Ordering::Relaxed),
        wall: began.elapsed(),
    }
}

impl Churned {
    /// Growth in bytes per second after the first `skipped` part of the run, by least squares.
    pub(crate) fn slope(&self, skipped: f64) -> f64 {
        let from = self.wall.as_secs_f64() * skipped;
        let samples: Vec<_> = self.samples.iter().filter(|(at, _)| *at >= from).collect();
        let count = samples.len() as f64;
        let mean_at = samples.iter().map(|(at, _)| at).sum::<f64>() / count;
        let mean_bytes = samples.iter().map(|(_, bytes)| bytes).sum::<f64>() / count;
        let above: f64 = samples
            .iter()
            .map(|(at, bytes)| (at - mean_at) * (bytes - mean_bytes))
            .sum();
        let below: f64 = samples.iter().map(|(at, _)| (at - mean_at).powi(2)).sum();
        above / below
    }
}
