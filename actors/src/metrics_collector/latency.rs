//! Latency histograms with fixed buckets.

use std::time::Duration;

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

/// The values of a histogram at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Distribution {
    /// Measurements in each bucket, not cumulative; the last bucket holds those beyond all bounds.
    pub buckets: [u64; BUCKETS],
    /// Sum of all measurements, in microseconds.
    pub sum_us: u64,
}

impl Distribution {
    /// Records a measurement.
    pub(super) fn record(&mut self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_US.partition_point(|bound| *bound < us);
        if let Some(bucket) = self.buckets.get_mut(bucket) {
            *bucket += 1;
        }
        self.sum_us = self.sum_us.wrapping_add(us);
    }

    fn merge(&mut self, other: &Self) {
        for (sum, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *sum += more;
        }
        self.sum_us = self.sum_us.wrapping_add(other.sum_us);
    }

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

/// How long things took since the host started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LatencyReading {
    /// Duration of rounds, from start to end.
    pub round: Distribution,
    /// Duration of model calls, including waits and retries.
    pub model_call: Distribution,
    /// From the start of a model call to its first content.
    pub first_chunk: Distribution,
    /// Waits for a round permit, and for a permit of a gateway.
    pub queue_wait: Distribution,
    /// Duration of tool calls, over all attempts.
    pub tool_call: Distribution,
}

impl LatencyReading {
    pub(super) fn merge(&mut self, other: &Self) {
        self.round.merge(&other.round);
        self.model_call.merge(&other.model_call);
        self.first_chunk.merge(&other.first_chunk);
        self.queue_wait.merge(&other.queue_wait);
        self.tool_call.merge(&other.tool_call);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_own_bucket() {
        let mut histogram = Distribution::default();

        for us in [0, 1_000, 1_001, 600_000_000, 600_000_001] {
            histogram.record(Duration::from_micros(us));
        }

        let buckets = histogram.buckets;
        assert_eq!(
            (buckets[0], buckets[1], buckets[22], buckets[23]),
            (2, 1, 1, 1)
        );
    }

    #[test]
    fn percentiles_lie_within_their_bucket() {
        let mut histogram = Distribution::default();
        assert_eq!(histogram.quantile(0.5), None);

        for ms in 1..=100 {
            histogram.record(Duration::from_millis(ms));
        }

        let ms = |q| histogram.quantile(q).unwrap().as_millis();
        assert!((45..=55).contains(&ms(0.5)), "{}", ms(0.5));
        assert!((95..=100).contains(&ms(0.99)), "{}", ms(0.99));
        histogram.record(Duration::from_secs(100_000));
        assert_eq!(
            histogram.quantile(1.0),
            Some(Duration::from_secs(600)),
            "beyond the bounds: the last one"
        );
    }
}
