//! Decides how many calls each receiver may get now, and when a call is made again.
//!
//! - A tenant has an eighth of the calls at once. The last quarter of all calls is for tenants with
//!   none under way, one each: receivers that answer slowly, but well, leave room to the others.
//! - A receiver that failed three times in a row gets one call at a time, with pauses of up to a
//!   minute between them; all such receivers together get half of the calls at once. So dead
//!   receivers leave room to the others, however many there are.
//!
//! Times are durations since any fixed instant.
//!
//! Pure.

use std::{collections::HashMap, time::Duration};

use callboard_actors::ids::TenantId;

/// Failures in a row after which a receiver counts as failing.
const FAILURES_MAX: u32 = 3;

/// Longest pause between two calls of a failing receiver.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Longest wait before a call is made again.
const WAIT_MAX: Duration = Duration::from_secs(6 * 60 * 60);

/// How calls of one receiver went.
#[derive(Debug, Clone, Copy, Default)]
struct Line {
    under_way: usize,
    /// Failures since the last success.
    failures: u32,
    paused_until: Option<Duration>,
}

impl Line {
    fn is_failing(&self) -> bool {
        self.failures >= FAILURES_MAX
    }
}

/// What changed about a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// It counts as failing from now on.
    Failing,
    /// It answers again.
    Recovered,
}

/// The calls that are under way, by tenant.
#[derive(Debug, Default)]
pub(super) struct Plan {
    lines: HashMap<TenantId, Line>,
}

impl Plan {
    /// How many more calls a tenant's receiver may get now, of `at_once_max` calls of all.
    pub(super) fn room(&self, tenant: &TenantId, at_once_max: usize, now: Duration) -> usize {
        let line = self.lines.get(tenant).copied().unwrap_or_default();
        let all: usize = self.lines.values().map(|line| line.under_way).sum();
        let left = at_once_max.saturating_sub(all);
        if !line.is_failing() {
            let own = (at_once_max / 8).max(1).saturating_sub(line.under_way);
            let shared = left.saturating_sub(at_once_max / 4);
            let first = usize::from(line.under_way == 0).min(left);
            return own.min(shared.max(first));
        }
        let failing = self.lines.values().filter(|line| line.is_failing());
        let probes: usize = failing.map(|line| line.under_way).sum();
        let is_paused = line.paused_until.is_some_and(|until| until > now);
        let may = !is_paused && line.under_way == 0 && probes < (at_once_max / 2).max(1);
        usize::from(may).min(left)
    }

    /// Calls of a tenant's receiver began.
    pub(super) fn began(&mut self, tenant: &TenantId, count: usize) {
        self.lines.entry(tenant.clone()).or_default().under_way += count;
    }

    /// A call ended. `fraction` is random, from 0 to 1.
    pub(super) fn ended(
        &mut self,
        tenant: &TenantId,
        is_well: bool,
        now: Duration,
        fraction: f64,
    ) -> Option<Turn> {
        let line = self.lines.entry(tenant.clone()).or_default();
        let was_failing = line.is_failing();
        line.under_way = line.under_way.saturating_sub(1);
        if is_well {
            (line.failures, line.paused_until) = (0, None);
            if line.under_way == 0 {
                self.lines.remove(tenant);
            }
            return was_failing.then_some(Turn::Recovered);
        }
        line.failures = line.failures.saturating_add(1);
        if !line.is_failing() {
            return None;
        }
        let pause = doubled(line.failures - FAILURES_MAX, PAUSE_MAX);
        line.paused_until = Some(now + jittered(pause, fraction));
        (!was_failing).then_some(Turn::Failing)
    }

    /// Whether a tenant's receiver counts as failing.
    pub(super) fn is_failing(&self, tenant: &TenantId) -> bool {
        self.lines.get(tenant).is_some_and(Line::is_failing)
    }

    /// Forgets receivers that are no longer configured and have no call under way.
    pub(super) fn keep(&mut self, is_known: impl Fn(&TenantId) -> bool) {
        self.lines
            .retain(|tenant, line| line.under_way > 0 || is_known(tenant));
    }
}

/// How long a message waits after its try number `tries`. `fraction` is random, from 0 to 1.
pub(super) fn wait(tries: u32, fraction: f64) -> Duration {
    jittered(doubled(tries.saturating_sub(1), WAIT_MAX), fraction)
}

/// A second, doubled `times` times.
fn doubled(times: u32, max: Duration) -> Duration {
    let seconds = 1_u64.checked_shl(times).unwrap_or(u64::MAX);
    Duration::from_secs(seconds).min(max)
}

/// Three quarters to five quarters of a time.
fn jittered(time: Duration, fraction: f64) -> Duration {
    time.mul_f64(0.75 + fraction.clamp(0.0, 1.0) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> TenantId {
        TenantId::new(name).unwrap()
    }

    #[test]
    fn waits_double_up_to_six_hours_and_are_spread() {
        let secs: Vec<u64> = (1..=6).map(|tries| wait(tries, 0.5).as_secs()).collect();

        assert_eq!(secs, [1, 2, 4, 8, 16, 32]);
        assert_eq!(wait(90, 0.5), WAIT_MAX);
        assert_eq!((wait(3, 0.0).as_secs(), wait(3, 1.0).as_secs()), (3, 5));
        let all: Duration = (1..17).map(|tries| wait(tries, 0.5)).sum();
        assert_eq!(
            all.as_secs() / 3600,
            15,
            "17 tries take as long as the page says"
        );
    }

    #[test]
    fn a_failing_receiver_is_called_once_at_a_time_with_pauses_until_it_answers() {
        let (mut plan, now, dead) = (Plan::default(), Duration::ZERO, tenant("dead"));
        assert_eq!(plan.room(&dead, 64, now), 8);
        plan.began(&dead, 3);
        let turns: Vec<_> = (0..3).map(|_| plan.ended(&dead, false, now, 0.5)).collect();

        assert_eq!(turns, [None, None, Some(Turn::Failing)]);
        assert_eq!(plan.room(&dead, 64, now), 0);
        let later = now + Duration::from_secs(2);
        assert_eq!(plan.room(&dead, 64, later), 1);
        plan.began(&dead, 1);
        assert_eq!(plan.room(&dead, 64, later), 0);
        assert_eq!(plan.ended(&dead, true, later, 0.5), Some(Turn::Recovered));
        assert_eq!(plan.room(&dead, 64, later), 8);
    }

    #[test]
    fn slow_receivers_leave_room_to_the_others() {
        let (mut plan, now) = (Plan::default(), Duration::ZERO);
        for n in 0..12 {
            let slow = tenant(&format!("slow-{n}"));
            let room = plan.room(&slow, 64, now);
            plan.began(&slow, room);
        }

        let well = tenant("well");
        assert_eq!(plan.room(&well, 64, now), 1);
        plan.began(&well, 1);
        assert_eq!(plan.room(&well, 64, now), 0);
        assert_eq!(plan.room(&tenant("other"), 1, now), 0);
        assert_eq!(Plan::default().room(&well, 1, now), 1);
    }

    #[test]
    fn dead_receivers_leave_room_to_the_others_however_many_there_are() {
        let (mut plan, now) = (Plan::default(), Duration::ZERO);
        let dead: Vec<TenantId> = (0..500).map(|n| tenant(&format!("dead-{n}"))).collect();
        for tenant in &dead {
            plan.began(tenant, 3);
            for _ in 0..3 {
                plan.ended(tenant, false, now, 0.5);
            }
        }
        let later = now + Duration::from_secs(120);
        for tenant in &dead {
            let room = plan.room(tenant, 64, later);
            plan.began(tenant, room);
        }

        assert_eq!(plan.room(&tenant("well"), 64, later), 8);
    }
}
