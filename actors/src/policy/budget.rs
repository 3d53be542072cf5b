//! Budgets of tokens, money and time, counted along tenant → conversation → subagent. Spending at
//! one level counts at every level above it. There is no clock. A reservation
//! takes all its figures at all levels in one step, under short locks: no caller sees part of it.
//!
//! A [`Reservation`] is taken before the work and settled after it. The work may cost more than was
//! reserved, so a budget can be overspent, by at most what the calls in flight use beyond their
//! reservations.
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

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// What was spent, or is reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Amount {
    /// Input and output tokens.
    pub tokens: u64,
    /// Money, in millionths of a US dollar.
    pub micro_usd: u64,
    /// Time of rounds, in milliseconds.
    pub wall_ms: u64,
}

/// What may be spent; `None` means no limit. `Default` limits nothing.
///
/// ```
/// use callboard_actors::policy::Budget;
///
/// let budget = Budget::default().with_tokens(50_000).with_usd(0.25);
/// assert_eq!(budget.micro_usd, Some(250_000));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Budget {
    /// Input and output tokens.
    pub tokens: Option<u64>,
    /// Money, in millionths of a US dollar. Calls of a model without a price cannot be counted
    /// against it.
    pub micro_usd: Option<u64>,
    /// Time of all rounds together, in milliseconds.
    pub wall_ms: Option<u64>,
}

/// The level that a budget belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the field names say it")]
pub enum BudgetLevel {
    Tenant,
    Conversation,
    Subagent,
}

/// One figure of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the figures of an amount")]
pub enum BudgetKind {
    Tokens,
    Money,
    Time,
}

/// Why a reservation was refused: the budget that it would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exhausted {
    /// The level whose budget is exhausted.
    pub level: BudgetLevel,
    /// The figure that is exhausted.
    pub kind: BudgetKind,
    /// The limit, in the unit of the figure.
    pub limit: u64,
    /// What is already spent or reserved.
    pub spent: u64,
    /// What the refused reservation asked for.
    pub wanted: u64,
}

const KINDS: [BudgetKind; 3] = [BudgetKind::Tokens, BudgetKind::Money, BudgetKind::Time];

impl Amount {
    /// The value of one figure.
    pub(crate) fn get(&self, kind: BudgetKind) -> u64 {
        match kind {
            BudgetKind::Tokens => self.tokens,
            BudgetKind::Money => self.micro_usd,
            BudgetKind::Time => self.wall_ms,
        }
    }

    /// The sum of two amounts, saturating at `u64::MAX`.
    #[must_use]
    pub(crate) fn plus(&self, other: &Self) -> Self {
        Self {
            tokens: self.tokens.saturating_add(other.tokens),
            micro_usd: self.micro_usd.saturating_add(other.micro_usd),
            wall_ms: self.wall_ms.saturating_add(other.wall_ms),
        }
    }

    /// The difference of two amounts, at least 0 in each figure.
    pub(crate) fn minus(&self, other: &Self) -> Self {
        Self {
            tokens: self.tokens.saturating_sub(other.tokens),
            micro_usd: self.micro_usd.saturating_sub(other.micro_usd),
            wall_ms: self.wall_ms.saturating_sub(other.wall_ms),
        }
    }
}

impl Budget {
    /// Sets the bound of input and output tokens together.
    #[must_use]
    pub fn with_tokens(self, tokens: u64) -> Self {
        Self {
            tokens: Some(tokens),
            ..self
        }
    }

    /// Limits money, in US dollars. A negative number or NaN sets the limit to zero.
    #[must_use]
    pub fn with_usd(self, usd: f64) -> Self {
        Self {
            micro_usd: Some(micro_usd(usd).unwrap_or(0)),
            ..self
        }
    }

    /// Limits the time of all rounds together.
    #[must_use]
    pub fn with_time(self, time: Duration) -> Self {
        Self {
            wall_ms: Some(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
            ..self
        }
    }

    /// Whether no figure is limited.
    pub(crate) fn is_unlimited(&self) -> bool {
        *self == Self::default()
    }

    /// The limit of one figure; `None` means no limit.
    pub(crate) fn get(&self, kind: BudgetKind) -> Option<u64> {
        match kind {
            BudgetKind::Tokens => self.tokens,
            BudgetKind::Money => self.micro_usd,
            BudgetKind::Time => self.wall_ms,
        }
    }

    /// Checks whether `wanted` fits on top of `spent`.
    ///
    /// # Errors
    /// [`Exhausted`] names the first figure that would be exceeded.
    pub(crate) fn admit(
        &self,
        level: BudgetLevel,
        spent: &Amount,
        wanted: &Amount,
    ) -> Result<(), Exhausted> {
        for kind in KINDS {
            let spent = spent.get(kind);
            let wanted = wanted.get(kind);
            if let Some(limit) = self.get(kind)
                && !fits(spent, wanted, limit)
            {
                return Err(Exhausted {
                    level,
                    kind,
                    limit,
                    spent,
                    wanted,
                });
            }
        }
        Ok(())
    }

    /// How much of the tightest figure is left, in whole percent, rounded up; `None` without a
    /// limit.
    pub(crate) fn left_percent(&self, spent: &Amount) -> Option<u8> {
        let lefts = KINDS
            .iter()
            .filter_map(|kind| Some(percent_left(spent.get(*kind), self.get(*kind)?)));
        lefts.min()
    }
}

/// Whether `wanted` fits. A budget without any room refuses even an amount of zero.
fn fits(spent: u64, wanted: u64, limit: u64) -> bool {
    spent < limit && spent.checked_add(wanted).is_some_and(|sum| sum <= limit)
}

fn percent_left(spent: u64, limit: u64) -> u8 {
    let left = u128::from(limit.saturating_sub(spent));
    let percent = if limit == 0 {
        0
    } else {
        (left * 100).div_ceil(u128::from(limit))
    };
    u8::try_from(percent).unwrap_or(100)
}

/// Converts dollars to millionths of a dollar; `None` for a negative number or NaN.
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
        let Self {
            limit,
            spent,
            wanted,
            ..
        } = self;
        match self.kind {
            BudgetKind::Tokens => {
                write!(
                    f,
                    "the {whose}'s budget of {limit} tokens is used up: {spent} are spent, the next call needs about {wanted}"
                )
            }
            BudgetKind::Money => {
                let [limit, spent, wanted] = [*limit, *spent, *wanted].map(usd);
                write!(
                    f,
                    "the {whose}'s budget of {limit} is used up: {spent} are spent, the next call costs about {wanted}"
                )
            }
            BudgetKind::Time => write!(
                f,
                "the {whose}'s budget of {} s is used up",
                *limit as f64 / 1000.0
            ),
        }
    }
}

/// Money for display: two decimals, and six for fractions of a cent below one dollar.
pub fn usd(micro: u64) -> String {
    let dollars = micro as f64 / 1_000_000.0;
    if micro >= 1_000_000 || micro.is_multiple_of(10_000) {
        format!("${dollars:.2}")
    } else {
        format!("${dollars:.6}")
    }
}

/// The counters of one level. Limits may change while reservations are open.
#[derive(Debug)]
pub(crate) struct BudgetCounter {
    level: BudgetLevel,
    above: Option<Arc<BudgetCounter>>,
    /// `u64::MAX` means no limit. The order is that of `KINDS`.
    limits: [AtomicU64; 3],
    /// Locked for a few additions only, never while work runs.
    spent: Mutex<Spent>,
}

/// What a level counts.
#[derive(Debug, Clone, Copy, Default)]
struct Spent {
    /// Spent, reserved or recalled.
    counted: Amount,
    /// The part that was settled or charged since the counter was made.
    settled: Amount,
}

/// The right to spend an amount. Dropping it releases the amount, unless it was settled.
#[derive(Debug)]
#[must_use = "a reservation that is dropped is given back"]
pub struct Reservation {
    counter: Arc<BudgetCounter>,
    amount: Amount,
}

impl BudgetCounter {
    /// A counter without a level above it.
    pub(crate) fn root(level: BudgetLevel, budget: Budget) -> Arc<Self> {
        Self::new(level, budget, None)
    }

    /// A counter below this one: what the new counter spends, this one spends too.
    pub(crate) fn below(self: &Arc<Self>, level: BudgetLevel, budget: Budget) -> Arc<Self> {
        Self::new(level, budget, Some(self.clone()))
    }

    fn new(level: BudgetLevel, budget: Budget, above: Option<Arc<Self>>) -> Arc<Self> {
        let counter = Self {
            level,
            above,
            limits: Default::default(),
            spent: Default::default(),
        };
        counter.set(budget);
        Arc::new(counter)
    }

    /// Replaces the limits. Spent amounts stay counted.
    pub(crate) fn set(&self, budget: Budget) {
        for (kind, limit) in KINDS.into_iter().zip(&self.limits) {
            limit.store(budget.get(kind).unwrap_or(u64::MAX), Ordering::Release);
        }
    }

    /// The current limits.
    pub(crate) fn budget(&self) -> Budget {
        let [tokens, micro_usd, wall_ms] = &self.limits;
        let bound = |limit: &AtomicU64| {
            Some(limit.load(Ordering::Acquire)).filter(|limit| *limit != u64::MAX)
        };
        Budget {
            tokens: bound(tokens),
            micro_usd: bound(micro_usd),
            wall_ms: bound(wall_ms),
        }
    }

    /// What is spent or reserved at this level.
    pub(crate) fn spent(&self) -> Amount {
        self.spent.lock().counted
    }

    /// What was settled or charged at this level since the counter was made: neither what is only
    /// reserved nor what was recalled.
    pub(crate) fn settled(&self) -> Amount {
        self.spent.lock().settled
    }

    /// How much of this level's tightest figure is left, in percent; `None` without a limit.
    pub(crate) fn left_percent(&self) -> Option<u8> {
        let budget = self.budget();
        if budget.is_unlimited() {
            None
        } else {
            budget.left_percent(&self.spent())
        }
    }

    /// Reserves an amount at this level and all levels above, from the top down. Never waits.
    ///
    /// # Errors
    /// [`Exhausted`] by the first level without room. A refusal changes nothing at any level.
    pub(crate) fn reserve(self: &Arc<Self>, amount: Amount) -> Result<Reservation, Exhausted> {
        let path: Vec<&Self> = self.path().collect();
        // All levels are locked before any figure changes, so that a refused reservation is never
        // visible to another one. Every caller locks from the top down, hence no deadlock.
        let mut levels = Vec::with_capacity(path.len());
        for counter in path.into_iter().rev() {
            let spent = counter.spent.lock();
            if let Some(refusal) = counter.refusal(&spent.counted, &amount) {
                return Err(refusal);
            }
            levels.push(spent);
        }
        for spent in &mut levels {
            spent.counted = spent.counted.plus(&amount);
        }
        drop(levels);
        Ok(Reservation {
            counter: self.clone(),
            amount,
        })
    }

    /// Whether this level or one above it limits money.
    pub(crate) fn bounds_money(&self) -> bool {
        self.path()
            .any(|counter| counter.budget().micro_usd.is_some())
    }

    /// Counts spending that was not reserved, even beyond the limits.
    pub(crate) fn charge(&self, used: Amount) {
        self.path()
            .for_each(|counter| counter.settle(&Amount::default(), &used));
    }

    /// Counts an amount at this level only. Used when an activation restores a conversation's
    /// spending from its journal: the levels above have counted it already, or do not count it.
    pub(crate) fn recall(&self, used: &Amount) {
        self.replace(&Amount::default(), used);
    }

    /// Replaces an amount that was recalled before, at this level only.
    pub(crate) fn recall_again(&self, before: &Amount, now: &Amount) {
        self.replace(before, now);
    }

    /// This level, then all levels above it.
    fn path(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |counter| counter.above.as_deref())
    }

    /// What an amount would exceed at this level, beside what `spent` says.
    fn refusal(&self, spent: &Amount, amount: &Amount) -> Option<Exhausted> {
        self.budget().admit(self.level, spent, amount).err()
    }

    /// Replaces a counted amount by another one.
    fn replace(&self, before: &Amount, now: &Amount) {
        if before != now {
            let mut spent = self.spent.lock();
            spent.counted = spent.counted.minus(before).plus(now);
        }
    }

    /// Replaces a reserved amount by the used one.
    fn settle(&self, reserved: &Amount, used: &Amount) {
        let mut spent = self.spent.lock();
        spent.counted = spent.counted.minus(reserved).plus(used);
        spent.settled = spent.settled.plus(used);
    }
}

impl Reservation {
    /// Replaces the reservation by what was used: the rest is released, an excess is added.
    pub(crate) fn settle(mut self, used: Amount) {
        let reserved = std::mem::take(&mut self.amount);
        self.counter
            .path()
            .for_each(|counter| counter.settle(&reserved, &used));
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.counter
            .path()
            .for_each(|counter| counter.replace(&self.amount, &Amount::default()));
    }
}

#[cfg(test)]
#[path = "budget_tests.rs"]
mod tests;
