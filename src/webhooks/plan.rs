//! Decides how many calls each receiver may get now, and when a call is made again.
//!
//! - A tenant has an eighth of the calls at once. The last quarter of all calls is for receivers
//!   that are known to be quick and have none under way, one each.
//! - A receiver that takes more than two seconds for a call is slow, until it has answered sooner
//!   once, the next time twice in a row, then four times, and so on up to 64 times. All slow
//!   receivers together get half of the calls at once.
//! - A receiver that has not answered yet gets one call at a time; all such receivers together get
//!   half of the calls at once.
//! - A receiver that failed three times in a row gets one call at a time, with pauses of up to a
//!   minute between them; all such receivers together get half of the calls at once.
//!
//! So receivers that are slow, dead or new leave room to the quick ones, however many there are.
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

/// Times that a receiver becomes slow after which it needs no more quick answers than before; then
/// it needs 64 in a row. After as many, it needs one again.
const SLOWED_MAX: u32 = 6;

/// Longest wait before a call is made again.
const WAIT_MAX: Duration = Duration::from_secs(6 * 60 * 60);

/// How calls of one receiver went.
#[derive(Debug, Clone, Default)]
struct Line {
    /// When the calls under way began.
    under_way: Vec<Duration>,
    /// Whether a call ended.
    is_known: bool,
    /// Calls in a row that ended soon.
    quick_answers: u32,
    /// Times that it became slow.
    slowed: u32,
    /// Failures since the last success.
    failures: u32,
    paused_until: Option<Duration>,
}

impl Line {
    fn is_failing(&self) -> bool {
        self.failures >= FAILURES_MAX
    }

    fn kind(&self, now: Duration) -> Kind {
        let waits = |begun: &Duration| now.saturating_sub(*begun) > QUICK;
        if self.is_failing() {
            Kind::Failing
        } else if !self.is_known {
            Kind::New
        } else if self.quick_answers < self.needed() || self.under_way.iter().any(waits) {
            Kind::Slow
        } else {
            Kind::Quick
        }
    }

    /// Quick answers in a row that make it quick.
    fn needed(&self) -> u32 {
        1 << self.slowed.min(SLOWED_MAX).saturating_sub(1)
    }

    fn note_time(&mut self, took: Duration) {
        self.is_known = true;
        if took <= QUICK {
            self.quick_answers = self.quick_answers.saturating_add(1);
            if self.quick_answers >= 1 << SLOWED_MAX {
                self.slowed = 0;
            }
        } else {
            let was_quick = self.quick_answers >= self.needed();
            self.slowed = self.slowed.saturating_add(u32::from(was_quick)).max(1);
            self.quick_answers = 0;
        }
    }
}

/// What is known of a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Quick,
    Slow,
    New,
    Failing,
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
        let kind = line.kind(now);
        let (mut all, mut of_kind) = (0, 0);
        for other in self
            .lines
            .values()
            .filter(|line| !line.under_way.is_empty())
        {
            all += other.under_way.len();
            if other.kind(now) == kind {
                of_kind += other.under_way.len();
            }
        }
        let left = at_once_max.saturating_sub(all);
        let shared = left.saturating_sub(at_once_max / 4);
        let half = (at_once_max / 2).max(1).saturating_sub(of_kind);
        let own = (at_once_max / 8)
            .max(1)
            .saturating_sub(line.under_way.len());
        let first = usize::from(line.under_way.is_empty());
        let is_paused = line.paused_until.is_some_and(|until| until > now);
        match kind {
            Kind::Quick => own.min(shared.max(first.min(left))),
            Kind::Slow => own.min(shared).min(half),
            Kind::New => first.min(shared).min(half),
            Kind::Failing if is_paused => 0,
            Kind::Failing => first.min(shared).min(half),
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
        line.note_time(now.saturating_sub(begun));
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

        let well = quick(&mut plan, "well", now);
        assert_eq!(plan.room(&well, 64, now), 1);
        plan.began(&well, 1, now);
        assert_eq!(plan.room(&well, 64, now), 0);
        assert_eq!(
            plan.room(&tenant("new"), 64, now),
            0,
            "not known to be quick"
        );
        assert_eq!(plan.room(&tenant("other"), 1, now), 0);
        assert_eq!(Plan::default().room(&tenant("other"), 1, now), 1);
    }

    #[test]
    fn slow_receivers_leave_half_to_the_others_however_many_there_are() {
        let (mut plan, now) = (Plan::default(), Duration::ZERO);
        let well = quick(&mut plan, "well", now);
        let slow: Vec<TenantId> = (0..70).map(|n| tenant(&format!("slow-{n}"))).collect();
        let mut begun = Vec::new();
        for tenant in &slow {
            let room = plan.room(tenant, 64, now);
            plan.began(tenant, room, now);
            begun.extend(std::iter::repeat_n(tenant, room));
        }
        assert_eq!(begun.len(), 32, "one each, and half of all");
        assert_eq!(plan.room(&well, 64, now), 8);

        let later = now + Duration::from_secs(14);
        for tenant in &begun {
            plan.ended(tenant, true, now, later, 0.5);
        }
        let mut taken = 0;
        for tenant in &slow {
            let room = plan.room(tenant, 64, later);
            plan.began(tenant, room, later);
            taken += room;
        }
        assert_eq!(
            taken, 48,
            "half of slow ones, and of new ones up to the last quarter"
        );
        assert_eq!(plan.room(&well, 64, later), 1);
        assert_eq!(plan.room(&tenant("new"), 64, later), 0);
    }

    #[test]
    fn failing_receivers_take_nothing_of_the_last_quarter() {
        let (mut plan, now) = (Plan::default(), Duration::ZERO);
        let well = quick(&mut plan, "well", now);
        for n in 0..6 {
            let busy = quick(&mut plan, &format!("busy-{n}"), now);
            let room = plan.room(&busy, 64, now);
            plan.began(&busy, room, now);
        }
        let failing: Vec<TenantId> = (0..20).map(|n| tenant(&format!("fails-{n}"))).collect();
        for tenant in &failing {
            plan.began(tenant, 3, now);
            for _ in 0..3 {
                plan.ended(tenant, false, now, now, 0.5);
            }
        }

        let later = now + Duration::from_secs(120);
        for tenant in &failing {
            assert_eq!(plan.room(tenant, 64, later), 0);
        }
        assert_eq!(plan.room(&well, 64, later), 1);
    }

    #[test]
    fn a_receiver_that_is_slow_again_needs_twice_as_many_quick_answers() {
        let (mut plan, now) = (Plan::default(), Duration::ZERO);
        let turns = quick(&mut plan, "turns", now);
        let answer = |plan: &mut Plan, seconds: u64| {
            let end = now + Duration::from_secs(seconds);
            plan.began(&turns, 1, now);
            plan.ended(&turns, true, now, end, 0.5);
        };
        let is_quick = |plan: &Plan| plan.lines[&turns].kind(now) == Kind::Quick;
        for needed in [1, 2, 4, 8, 16, 32, 32] {
            answer(&mut plan, 3);
            for answers in 0..needed {
                assert!(!is_quick(&plan), "after {answers} of {needed} answers");
                answer(&mut plan, 0);
            }
            assert!(is_quick(&plan), "after {needed} answers");
        }

        (0..64).for_each(|_| answer(&mut plan, 0));
        answer(&mut plan, 3);
        answer(&mut plan, 0);
        assert!(is_quick(&plan), "one is enough again");
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
