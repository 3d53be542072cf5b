//! The cost of summaries within the last hour, compared with a cap. Callers pass a monotonic time,
//! as a duration since any fixed instant.
//!
//! Pure.

use std::{collections::VecDeque, time::Duration};

use super::CompactionSettings;

const HOUR: Duration = Duration::from_secs(3600);

/// Spending within a sliding hour, in millionths of a US dollar.
#[derive(Debug, Clone, Default)]
pub(crate) struct SummaryLedger {
    spent: VecDeque<(Duration, u64)>,
    sum: u64,
}

impl SummaryLedger {
    /// Whether a summary of about `micro_usd` is affordable: spending of the last hour plus its price
    /// stays below the cap. Spending of exactly an hour ago no longer counts.
    pub(crate) fn may_spend(
        &mut self,
        micro_usd: u64,
        settings: &CompactionSettings,
        now: Duration,
    ) -> bool {
        self.spent_micro_usd(now).saturating_add(micro_usd) < settings.cap_micro_usd()
    }

    /// Records what a summary is estimated to cost. Times must not decrease.
    pub(crate) fn note(&mut self, micro_usd: u64, now: Duration) {
        // Saturates: a sum this large is above every cap.
        let cost = micro_usd.min(u64::MAX - self.sum);
        self.sum += cost;
        self.spent.push_back((now, cost));
    }

    /// Spending within the last hour, in millionths of a US dollar. Earlier spending is removed.
    pub(crate) fn spent_micro_usd(&mut self, now: Duration) -> u64 {
        while let Some((at, cost)) = self.spent.front().copied()
            && now.saturating_sub(at) >= HOUR
        {
            self.spent.pop_front();
            self.sum -= cost;
        }
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn spending_of_an_hour_stays_below_the_cap() {
        let settings = CompactionSettings {
            max_cost_per_hour: 0.003,
            ..CompactionSettings::default()
        };
        let mut ledger = SummaryLedger::default();

        assert!(
            !ledger.may_spend(3000, &settings, at(0)),
            "exactly the cap is not below it"
        );
        assert!(ledger.may_spend(2999, &settings, at(0)));
        ledger.note(1800, at(0));
        ledger.note(900, at(10));
        assert!(ledger.may_spend(299, &settings, at(3599)));
        assert!(!ledger.may_spend(300, &settings, at(3599)));
        assert!(
            ledger.may_spend(2099, &settings, at(3600)),
            "an hour later the first is forgotten"
        );
        assert!(!ledger.may_spend(2100, &settings, at(3600)));
        assert_eq!(ledger.spent_micro_usd(at(3600)), 900);
        assert!(ledger.may_spend(2999, &settings, at(9999)));
        assert_eq!(ledger.spent_micro_usd(at(9999)), 0);
    }

    #[test]
    fn a_cap_of_nothing_pays_for_nothing_and_sums_do_not_overflow() {
        let none = CompactionSettings {
            max_cost_per_hour: 0.0,
            ..CompactionSettings::default()
        };
        let usual = CompactionSettings::default();
        let mut ledger = SummaryLedger::default();

        assert!(!ledger.may_spend(0, &none, at(0)));
        assert!(ledger.may_spend(99_999, &usual, at(0)));
        assert!(!ledger.may_spend(100_000, &usual, at(0)));
        ledger.note(u64::MAX, at(1));
        ledger.note(u64::MAX, at(1));
        assert!(!ledger.may_spend(3, &usual, at(2)));
        assert!(ledger.may_spend(3, &usual, at(3601)));
    }
}
