//! Budgets: tokens, money and time that may be spent, and counters along tenant → conversation → subagent that hold whoever spends
//! to them (DESIGN §4.5, REQUIREMENTS L-05). No clock and no lock: a level is an atomic a figure, taken by one compare-and-swap.
//!
//! A [`Reservation`] is taken before the work and settled after it. What it really cost may be more than was reserved, so a budget is
//! overspent by at most what the calls in flight then use beyond their reservations (FAULTS F21).
//!
//! Pure.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};

/// What was spent, or is about to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Amount {
    /// Tokens in and out.
    pub tokens: u64,
    /// Money, in millionths of a US dollar.
    pub micro_usd: u64,
    /// Time of rounds, in milliseconds.
    pub wall_ms: u64,
}

/// What may be spent; `None` is no bound. `Default` bounds nothing.
///
/// ```
/// use callboard_actors::policy::Budget;
///
/// let budget = Budget::default().with_tokens(50_000).with_usd(0.25);
/// assert_eq!(budget.micro_usd, Some(250_000));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Budget {
    /// Tokens in and out.
    pub tokens: Option<u64>,
    /// Money, in millionths of a US dollar; needs a price for the model.
    pub micro_usd: Option<u64>,
    /// Time of all rounds, in milliseconds.
    pub wall_ms: Option<u64>,
}

/// Whose budget it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the words of DESIGN §4.5")]
pub enum BudgetLevel {
    Tenant,
    Conversation,
    Subagent,
}

/// Which figure of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the figures of an amount")]
pub enum BudgetKind {
    Tokens,
    Money,
    Time,
}

/// Why nothing was reserved: which budget would be passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exhausted {
    /// Whose.
    pub level: BudgetLevel,
    /// Which figure.
    pub kind: BudgetKind,
    /// The bound, in the figure's unit.
    pub limit: u64,
    /// What is spent or reserved already.
    pub spent: u64,
    /// What was asked for.
    pub wanted: u64,
}

const KINDS: [BudgetKind; 3] = [BudgetKind::Tokens, BudgetKind::Money, BudgetKind::Time];

impl Amount {
    /// One figure.
    pub fn of(&self, kind: BudgetKind) -> u64 {
        match kind {
            BudgetKind::Tokens => self.tokens,
            BudgetKind::Money => self.micro_usd,
            BudgetKind::Time => self.wall_ms,
        }
    }

    /// The sum; never overflows.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            tokens: self.tokens.saturating_add(other.tokens),
            micro_usd: self.micro_usd.saturating_add(other.micro_usd),
            wall_ms: self.wall_ms.saturating_add(other.wall_ms),
        }
    }
}

impl Budget {
    /// Bounds tokens.
    #[must_use]
    pub fn with_tokens(self, tokens: u64) -> Self {
        Self { tokens: Some(tokens), ..self }
    }

    /// Bounds money, in US dollars. What is no amount of money (negative, not a number) bounds it to nothing.
    #[must_use]
    pub fn with_usd(self, usd: f64) -> Self {
        Self { micro_usd: Some(micro_usd(usd).unwrap_or(0)), ..self }
    }

    /// Bounds the time of all rounds together.
    #[must_use]
    pub fn with_time(self, time: Duration) -> Self {
        Self { wall_ms: Some(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)), ..self }
    }

    /// Whether it bounds nothing.
    pub fn is_unlimited(&self) -> bool {
        *self == Self::default()
    }

    /// The bound of one figure.
    pub fn of(&self, kind: BudgetKind) -> Option<u64> {
        match kind {
            BudgetKind::Tokens => self.tokens,
            BudgetKind::Money => self.micro_usd,
            BudgetKind::Time => self.wall_ms,
        }
    }

    /// Says whether `wanted` fits beside what is spent.
    ///
    /// # Errors
    /// [`Exhausted`] names the first figure that would be passed.
    pub fn admit(&self, level: BudgetLevel, spent: &Amount, wanted: &Amount) -> Result<(), Exhausted> {
        for kind in KINDS {
            let (spent, wanted) = (spent.of(kind), wanted.of(kind));
            if let Some(limit) = self.of(kind)
                && !fits(spent, wanted, limit)
            {
                return Err(Exhausted { level, kind, limit, spent, wanted });
            }
        }
        Ok(())
    }

    /// How much of the tightest figure is left, in whole percent, rounded up; `None` where nothing is bounded.
    pub fn left_percent(&self, spent: &Amount) -> Option<u8> {
        let lefts = KINDS.iter().filter_map(|kind| Some(percent_left(spent.of(*kind), self.of(*kind)?)));
        lefts.min()
    }
}

/// An exhausted budget has no room, not even for nothing.
fn fits(spent: u64, wanted: u64, limit: u64) -> bool {
    spent < limit && spent.checked_add(wanted).is_some_and(|sum| sum <= limit)
}

fn percent_left(spent: u64, limit: u64) -> u8 {
    let left = u128::from(limit.saturating_sub(spent));
    let percent = if limit == 0 { 0 } else { (left * 100).div_ceil(u128::from(limit)) };
    u8::try_from(percent).unwrap_or(100)
}

/// Millionths of a dollar; `None` for what is no amount of money.
pub(crate) fn micro_usd(usd: f64) -> Option<u64> {
    let micro = (usd * 1_000_000.0).round();
    (0.0..1e18).contains(&micro).then_some(micro as u64)
}

impl fmt::Display for Exhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = match self.level {
            BudgetLevel::Tenant => "tenant",
            BudgetLevel::Conversation => "conversation",
            BudgetLevel::Subagent => "subagent",
        };
        let Self { limit, spent, wanted, .. } = self;
        match self.kind {
            BudgetKind::Tokens => {
                write!(f, "the {whose}'s budget of {limit} tokens is used up: {spent} are spent, the next call needs about {wanted}")
            }
            BudgetKind::Money => {
                let [limit, spent, wanted] = [*limit, *spent, *wanted].map(usd);
                write!(f, "the {whose}'s budget of {limit} is used up: {spent} are spent, the next call costs about {wanted}")
            }
            BudgetKind::Time => write!(f, "the {whose}'s budget of {} s is used up", *limit as f64 / 1000.0),
        }
    }
}

/// Money as people read it: cents, and more digits where it is less than that.
pub fn usd(micro: u64) -> String {
    let dollars = micro as f64 / 1_000_000.0;
    if micro >= 1_000_000 || micro.is_multiple_of(10_000) { format!("${dollars:.2}") } else { format!("${dollars:.6}") }
}

/// The counters of one level; its bounds may change while it is used.
#[derive(Debug)]
pub struct BudgetCounter {
    level: BudgetLevel,
    above: Option<Arc<BudgetCounter>>,
    /// `u64::MAX`: no bound.
    limits: [AtomicU64; 3],
    spent: [AtomicU64; 3],
}

/// The right to spend an amount; given back on drop, unless it was settled.
#[derive(Debug)]
#[must_use = "a reservation that is dropped is given back"]
pub struct Reservation {
    counter: Arc<BudgetCounter>,
    amount: Amount,
}

impl BudgetCounter {
    /// A counter at the top.
    pub fn root(level: BudgetLevel, budget: Budget) -> Arc<Self> {
        Self::new(level, budget, None)
    }

    /// A counter below this one: what it spends, this one spends too.
    pub fn below(self: &Arc<Self>, level: BudgetLevel, budget: Budget) -> Arc<Self> {
        Self::new(level, budget, Some(self.clone()))
    }

    fn new(level: BudgetLevel, budget: Budget, above: Option<Arc<Self>>) -> Arc<Self> {
        let counter = Self { level, above, limits: Default::default(), spent: Default::default() };
        counter.set(budget);
        Arc::new(counter)
    }

    /// Sets the bounds; what is spent stays spent.
    pub fn set(&self, budget: Budget) {
        for (kind, limit) in KINDS.into_iter().zip(&self.limits) {
            limit.store(budget.of(kind).unwrap_or(u64::MAX), Ordering::Release);
        }
    }

    /// The bounds.
    pub fn budget(&self) -> Budget {
        let [tokens, micro_usd, wall_ms] = &self.limits;
        let bound = |limit: &AtomicU64| Some(limit.load(Ordering::Acquire)).filter(|limit| *limit != u64::MAX);
        Budget { tokens: bound(tokens), micro_usd: bound(micro_usd), wall_ms: bound(wall_ms) }
    }

    /// What is spent or reserved.
    pub fn spent(&self) -> Amount {
        let [tokens, micro_usd, wall_ms] = &self.spent;
        let load = |figure: &AtomicU64| figure.load(Ordering::Acquire);
        Amount { tokens: load(tokens), micro_usd: load(micro_usd), wall_ms: load(wall_ms) }
    }

    /// How much of the tightest figure of this level is left, in percent; `None` where nothing is bounded.
    pub fn left_percent(&self) -> Option<u8> {
        let budget = self.budget();
        if budget.is_unlimited() { None } else { budget.left_percent(&self.spent()) }
    }

    /// Reserves an amount at this level and all above, the highest first. Nothing is waited for.
    ///
    /// # Errors
    /// [`Exhausted`] by the first level without room; what the levels above it gave is given back, the last first.
    pub fn reserve(self: &Arc<Self>, amount: Amount) -> Result<Reservation, Exhausted> {
        let path: Vec<&Self> = self.path().collect();
        for (place, counter) in path.iter().enumerate().rev() {
            if let Err(refusal) = counter.take(&amount) {
                path.iter().skip(place + 1).for_each(|above| above.replace(&amount, &Amount::default()));
                return Err(refusal);
            }
        }
        Ok(Reservation { counter: self.clone(), amount })
    }

    /// Whether this level, or one above, bounds money.
    pub fn bounds_money(&self) -> bool {
        self.path().any(|counter| counter.budget().micro_usd.is_some())
    }

    /// Counts what was spent without a reservation, also beyond the bounds.
    pub fn charge(&self, used: Amount) {
        self.path().for_each(|counter| counter.replace(&Amount::default(), &used));
    }

    /// Counts at this level alone what the levels above know of already, or need not.
    pub(crate) fn recall(&self, used: &Amount) {
        self.replace(&Amount::default(), used);
    }

    /// This level and all above.
    fn path(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |counter| counter.above.as_deref())
    }

    fn take(&self, amount: &Amount) -> Result<(), Exhausted> {
        let (mut taken, mut refusal) = (Amount::default(), None);
        for ((kind, limit), spent) in KINDS.into_iter().zip(&self.limits).zip(&self.spent) {
            let (limit, wanted) = (limit.load(Ordering::Acquire), amount.of(kind));
            let add = |now: u64| {
                if limit == u64::MAX { Some(now.saturating_add(wanted)) } else { fits(now, wanted, limit).then(|| now + wanted) }
            };
            match spent.fetch_update(Ordering::AcqRel, Ordering::Acquire, add) {
                Ok(_) => match kind {
                    BudgetKind::Tokens => taken.tokens = wanted,
                    BudgetKind::Money => taken.micro_usd = wanted,
                    BudgetKind::Time => taken.wall_ms = wanted,
                },
                Err(now) => {
                    refusal = Some(Exhausted { level: self.level, kind, limit, spent: now, wanted });
                    break;
                }
            }
        }
        match refusal {
            None => Ok(()),
            Some(refusal) => {
                self.replace(&taken, &Amount::default());
                Err(refusal)
            }
        }
    }

    /// Takes back what was reserved and counts what was used.
    fn replace(&self, reserved: &Amount, used: &Amount) {
        for (kind, spent) in KINDS.into_iter().zip(&self.spent) {
            let (reserved, used) = (reserved.of(kind), used.of(kind));
            if reserved != used {
                let replaced = |now: u64| Some(now.saturating_sub(reserved).saturating_add(used));
                let _ = spent.fetch_update(Ordering::AcqRel, Ordering::Acquire, replaced);
            }
        }
    }
}

impl Reservation {
    /// What is reserved.
    pub fn amount(&self) -> Amount {
        self.amount
    }

    /// Counts what was really used in its place: the rest is given back, more is taken.
    pub fn settle(mut self, used: Amount) {
        let reserved = std::mem::take(&mut self.amount);
        self.counter.path().for_each(|counter| counter.replace(&reserved, &used));
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.counter.path().for_each(|counter| counter.replace(&self.amount, &Amount::default()));
    }
}

#[cfg(test)]
#[path = "budget_tests.rs"]
mod tests;
