//! Latency histograms: fixed buckets on sharded atomics. Recording a measurement is two additions
//! without a lock.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::shards::{SHARDS, shard};

/// Upper bounds of the buckets, in microseconds, from 1 ms to 10 minutes. One more bucket, without
/// a bound, follows the last.
pub const BOUNDS_US: [u64; 23] = [
    1_000,
    2_000,
    3_000,
    5_000,
    10_000,
    20_000,
    30_000,
    50_000,
    100_000,
    200_000,
    300_000,
    500_000,
    1_000_000,
    2_000_000,
    3_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    30_000_000,
    60_000_000,
    120_000_000,
    300_000_000,
    600_000_000,
];

const BUCKETS: usize = BOUNDS_US.len() + 1;

/// A histogram of durations.
#[derive(Debug, Default)]
pub struct Histogram([Shard; SHARDS]);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Shard {
    buckets: [AtomicU64; BUCKETS],
    sum_us: AtomicU64,
}

/// The values of a histogram at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Distribution {
    /// Measurements in each bucket, not cumulative; the last bucket holds those beyond all bounds.
    pub buckets: [u64; BUCKETS],
    /// Sum of all measurements, in microseconds.
    pub sum_us: u64,
}

impl Histogram {
    /// Records a measurement.
    pub(crate) fn record(&self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_US.partition_point(|bound| *bound < us);
        if let Some(shard) = self.0.get(shard()) {
            if let Some(bucket) = shard.buckets.get(bucket) {
                bucket.fetch_add(1, Ordering::Relaxed);
            }
            shard.sum_us.fetch_add(us, Ordering::Relaxed);
        }
    }

    /// Reads the histogram.
    pub(crate) fn read(&self) -> Distribution {
        self.0
            .iter()
            .fold(Distribution::default(), |mut sum, shard| {
                for (total, bucket) in sum.buckets.iter_mut().zip(&shard.buckets) {
                    *total += bucket.load(Ordering::Relaxed);
                }
                sum.sum_us = sum
                    .sum_us
                    .wrapping_add(shard.sum_us.load(Ordering::Relaxed));
                sum
            })
    }
}

impl Distribution {
    /// Number of measurements.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The quantile `q` (0 to 1), interpolated evenly within its bucket; `None` without
    /// measurements. Beyond the last bound, that bound is returned.
    pub fn quantile(&self, q: f64) -> Option<Duration> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = q.clamp(0.0, 1.0) * count as f64;
        let mut below = 0_u64;
        let mut lower = 0_u64;
        for (bucket, upper) in self.buckets.iter().zip(BOUNDS_US) {
            let upto = below + bucket;
            if *bucket > 0 && upto as f64 >= rank {
                let within = ((rank - below as f64) / *bucket as f64).clamp(0.0, 1.0);
                return Some(Duration::from_micros(
                    lower + ((upper - lower) as f64 * within) as u64,
                ));
            }
            (below, lower) = (upto, upper);
        }
        Some(Duration::from_micros(lower))
    }
}

/// The histograms of a host.
#[derive(Debug, Default)]
pub struct Latencies {
    /// Duration of rounds, from start to end.
    pub round: Histogram,
    /// Duration of model calls, including waits and retries.
    pub model_call: Histogram,
    /// From the start of a model call to its first content.
    pub first_chunk: Histogram,
    /// Waits for a round permit, and for a permit of a gateway.
    pub queue_wait: Histogram,
    /// Duration of tool calls, over all attempts.
    pub tool_call: Histogram,
}

/// The histograms at one moment; see [`Latencies`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LatencyReading {
    /// Duration of rounds.
    pub round: Distribution,
    /// Duration of model calls.
    pub model_call: Distribution,
    /// Time to the first content of model calls.
    pub first_chunk: Distribution,
    /// Waits for permits.
    pub queue_wait: Distribution,
    /// Duration of tool calls.
    pub tool_call: Distribution,
}

impl Latencies {
    /// Reads all histograms.
    pub(crate) fn read(&self) -> LatencyReading {
        LatencyReading {
            round: self.round.read(),
            model_call: self.model_call.read(),
            first_chunk: self.first_chunk.read(),
            queue_wait: self.queue_wait.read(),
            tool_call: self.tool_call.read(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_measurement_is_lost() {
        let histogram = Histogram::default();

        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..5_000).for_each(|n| histogram.record(Duration::from_micros(n))));
            }
        });

        let read = histogram.read();
        assert_eq!((read.count(), read.sum_us), (20_000, 4 * 5_000 * 4_999 / 2));
    }

    #[test]
    fn a_bound_belongs_to_its_own_bucket() {
        let histogram = Histogram::default();

        for us in [0, 1_000, 1_001, 600_000_000, 600_000_001] {
            histogram.record(Duration::from_micros(us));
        }

        let buckets = histogram.read().buckets;
        assert_eq!(
            (buckets[0], buckets[1], buckets[22], buckets[23]),
            (2, 1, 1, 1)
        );
    }

    #[test]
    fn percentiles_lie_within_their_bucket() {
        let histogram = Histogram::default();
        assert_eq!(histogram.read().quantile(0.5), None);

        for ms in 1..=100 {
            histogram.record(Duration::from_millis(ms));
        }

        let read = histogram.read();
        let ms = |q| read.quantile(q).unwrap().as_millis();
        assert!((45..=55).contains(&ms(0.5)), "{}", ms(0.5));
        assert!((95..=100).contains(&ms(0.99)), "{}", ms(0.99));
        histogram.record(Duration::from_secs(100_000));
        assert_eq!(
            histogram.read().quantile(1.0),
            Some(Duration::from_secs(600)),
            "beyond the bounds: the last one"
        );
    }
}
