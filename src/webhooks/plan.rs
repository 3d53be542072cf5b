//! Decides how many calls each receiver may get now, and when a call is made again.
//!
//! - A tenant has an eighth of the calls at once. The last quarter of all calls is for tenants with
//!   none under way, one each.
//! - A receiver that takes more than two seconds for a call, and one that has not answered yet, is
//!   slow: all such receivers together get half of the calls at once, and nothing of the last
//!   quarter but their first call ever. So receivers that answer slowly, but well, leave room to the
//!   others, however many there are.
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

/// Longest time that a call of a receiver takes that is not slow.
const QUICK: Duration = Duration::from_secs(2);

/// Longest wait before a call is made again.
const WAIT_MAX: Duration = Duration::from_secs(6 * 60 * 60);

/// How calls of one receiver went.
#[derive(Debug, Clone, Default)]
struct Line {
    /// When the calls under way began.
    under_way: Vec<Duration>,
    /// Whether the last call was answered soon; `None` before the first answer.
    is_quick: Option<bool>,
    /// Failures since the last success.
    failures: u32,
    paused_until: Option<Duration>,
}

impl Line {
    fn is_failing(&self) -> bool {
        self.failures >= FAILURES_MAX
    }

    fn is_slow(&self, now: Duration) -> bool {
        let waits = |begun: &Duration| now.saturating_sub(*begun) > QUICK;
        self.is_quick != Some(true) || self.under_way.iter().any(waits)
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
        let none = Line::default();
        let line = self.lines.get(tenant).unwrap_or(&none);
        let under_way = |which: &dyn Fn(&&Line) -> bool| -> usize {
            let lines = self.lines.values().filter(which);
            lines.map(|line| line.under_way.len()).sum()
        };
        let left = at_once_max.saturating_sub(under_way(&|_| true));
        let half = (at_once_max / 2).max(1);
        let is_first = line.under_way.is_empty();
        if line.is_failing() {
            let probes = under_way(&|line| line.is_failing());
            let is_paused = line.paused_until.is_some_and(|until| until > now);
            let may = !is_paused && is_first && probes < half;
            return usize::from(may).min(left);
        }
        let own = (at_once_max / 8)
            .max(1)
            .saturating_sub(line.under_way.len());
        let shared = left.saturating_sub(at_once_max / 4);
        let first = usize::from(is_first).min(left);
        if !line.is_slow(now) {
            return own.min(shared.max(first));
        }
        let slow = half.saturating_sub(under_way(&|line| line.is_slow(now)));
        match line.is_quick {
            None => first.min(own),
            Some(_) => own.min(shared).min(slow),
        }
    }

    /// Calls of a tenant's receiver began.
    pub(super) fn began(&mut self, tenant: &TenantId, count: usize, now: Duration) {
        let line = self.lines.entry(tenant.clone()).or_default();
        line.under_way.extend(std::iter::repeat_n(now, count));
    }

    /// A call that began at `begun` ended. `fraction` is random, from 0 to 1.
    pub(super) fn ended(
        &mut self,
        tenant: &TenantId,
        is_well: bool,
        begun: Duration,
        now: Duration,
        fraction: f64,
    ) -> Option<Turn> {
        let line = self.lines.entry(tenant.clone()).or_default();
        let was_failing = line.is_failing();
        let place = line.under_way.iter().position(|other| *other == begun);
        if let Some(place) = place {
            line.under_way.swap_remove(place);
        }
        line.is_quick = Some(now.saturating_sub(begun) <= QUICK);
        if is_well {
            (line.failures, line.paused_until) = (0, None);
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
            .retain(|tenant, line| !line.under_way.is_empty() || is_known(tenant));
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

    /// A receiver that answered one call at once.
    fn quick(plan: &mut Plan, name: &str, now: Duration) -> TenantId {
        let tenant = tenant(name);
        plan.began(&tenant, 1, now);
        plan.ended(&tenant, true, now, now, 0.5);
        tenant
    }

    #[test]
    fn a_failing_receiver_is_called_once_at_a_time_with_pauses_until_it_answers() {
        let (mut plan, now) = (Plan::default(), Duration::ZERO);
        let dead = quick(&mut plan, "dead", now);
        assert_eq!(plan.room(&dead, 64, now), 8);
        plan.began(&dead, 3, now);
        let turns: Vec<_> = (0..3)
            .map(|_| plan.ended(&dead, false, now, now, 0.5))
            .collect();

        assert_eq!(turns, [None, None, Some(Turn::Failing)]);
        assert_eq!(plan.room(&dead, 64, now), 0);
        let later = now + Duration::from_secs(2);
        assert_eq!(plan.room(&dead, 64, later), 1);
        plan.began(&dead, 1, later);
        assert_eq!(plan.room(&dead, 64, later), 0);
        assert_eq!(
            plan.ended(&dead, true, later, later, 0.5),
            Some(Turn::Recovered)
        );
        assert_eq!(plan.room(&dead, 64, later), 8);
    }

    #[test]
    fn tenants_with_none_under_way_have_the_last_quarter() {
        let (mut plan, now) = (Plan::default(), Duration::ZERO);
        for n in 0..12 {
            let busy = quick(&mut plan, &format!("busy-{n}"), now);
            let room = plan.room(&busy, 64, now);
            plan.began(&busy, room, now);
        }

        let well = tenant("well");
        assert_eq!(plan.room(&well, 64, now), 1);
        plan.began(&well, 1, now);
        assert_eq!(plan.room(&well, 64, now), 0);
        assert_eq!(plan.room(&tenant("other"), 1, now), 0);
        assert_eq!(Plan::default().room(&well, 1, now), 1);
    }

    #[test]
    fn slow_receivers_leave_half_to_the_others_however_many_there_are() {
        let (mut plan, now) = (Plan::default(), Duration::ZERO);
        let well = quick(&mut plan, "well", now);
        let slow: Vec<TenantId> = (0..48).map(|n| tenant(&format!("slow-{n}"))).collect();
        for tenant in &slow {
            assert_eq!(plan.room(tenant, 64, now), 1, "not known yet");
            plan.began(tenant, 1, now);
        }
        assert_eq!(plan.room(&well, 64, now), 1);

        let later = now + Duration::from_secs(14);
        for tenant in &slow {
            plan.ended(tenant, true, now, later, 0.5);
        }
        let mut taken = 0;
        for tenant in &slow {
            let room = plan.room(tenant, 64, later);
            plan.began(tenant, room, later);
            taken += room;
        }
        assert_eq!(taken, 32);
        assert_eq!(plan.room(&well, 64, later), 8);
        assert_eq!(plan.room(&tenant("new"), 64, later), 1);
    }

    #[test]
    fn a_receiver_is_slow_while_it_lets_a_call_wait_and_quick_again_after_an_answer() {
        let (mut plan, now) = (Plan::default(), Duration::ZERO);
        let [first, second] = ["first", "second"].map(|name| quick(&mut plan, name, now));
        for _ in 0..4 {
            plan.began(&first, 8, now);
        }
        let later = now + Duration::from_secs(3);
        plan.began(&second, 1, now);
        assert_eq!(plan.room(&second, 64, later), 0, "the slow half is used up");

        plan.ended(&second, true, later, later, 0.5);
        assert_eq!(plan.room(&second, 64, later), 0, "one still waits");
        plan.ended(&second, true, now, later, 0.5);
        plan.began(&second, 1, later);
        plan.ended(&second, true, later, later, 0.5);
        assert_eq!(plan.room(&second, 64, later), 8);
    }

    #[test]
    fn dead_receivers_leave_room_to_the_others_however_many_there_are() {
        let (mut plan, now) = (Plan::default(), Duration::ZERO);
        let well = quick(&mut plan, "well", now);
        let dead: Vec<TenantId> = (0..500).map(|n| tenant(&format!("dead-{n}"))).collect();
        for tenant in &dead {
            plan.began(tenant, 3, now);
            for _ in 0..3 {
                plan.ended(tenant, false, now, now, 0.5);
            }
        }
        let later = now + Duration::from_secs(120);
        for tenant in &dead {
            let room = plan.room(tenant, 64, later);
            plan.began(tenant, room, later);
        }

        assert_eq!(plan.room(&well, 64, later), 8);
    }
}
