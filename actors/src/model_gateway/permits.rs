//! Permits to call: so many at once, so many requests and tokens a minute, and none while the provider wants to be left alone. A try on
//! shared state when one is free and nobody waits; the fair queue when not.
//!
//! One lock, held for look-ups and changes only; nobody is woken under it. While somebody waits for time to pass, and only then, one task
//! a gateway watches the clock.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::{Notify, oneshot},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{CallBy, GatewayConfig, ProviderWait, TenantWaiting};
use crate::{
    ids::TenantId,
    limits::{
        GATEWAY_QUANTUM_TOKENS, GATEWAY_QUANTUM_TOKENS_MAX, QUEUED_TOLD_EVERY, REQUESTS_BURST_MIN, RETRY_AFTER_MAX, TOKENS_BURST_MIN,
    },
    policy::{FairQueue, Pacing, Taken, TokenBucket, WaiterId},
    ports::{ProviderError, RateLimits},
};

/// A provider is left alone for so long at most; then it is asked again, whatever it said.
const HELD_MAX: Duration = Duration::from_secs(24 * 3600);

/// The permits of one gateway.
#[derive(Clone)]
pub struct Permits(Arc<Shared>);

/// Tokens of a call before it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    /// About so many.
    pub tokens: u64,
    /// More cannot be, whatever the provider says.
    pub most: u64,
}

/// What a caller is told while it waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queued {
    /// Calls of all tenants that are served before it, and itself; about.
    pub position: usize,
    /// What the first of them waits for.
    pub waits_for: ProviderWait,
    /// How long it may take.
    pub delay: Option<Duration>,
}

/// What the permits are doing.
pub(super) struct PermitsStatus {
    pub(super) free: usize,
    pub(super) running: usize,
    pub(super) waiting: usize,
    pub(super) waits_for: Option<ProviderWait>,
    pub(super) tenants: Vec<TenantWaiting>,
    pub(super) requests_left: Option<i64>,
    pub(super) tokens_left: Option<i64>,
    pub(super) held: Option<Duration>,
}

struct Shared {
    started: Instant,
    state: Mutex<State>,
    /// Told when the time that the clock's task waits for has changed.
    alarm: Notify,
}

struct State {
    calls_max: usize,
    waiting_max: usize,
    running: usize,
    queue: FairQueue<TenantId, Waiter>,
    pacing: Pacing<TenantId>,
    requests: Option<TokenBucket>,
    tokens: Option<TokenBucket>,
    held_until: Option<Duration>,
    /// When the first waiter may go, if nothing but time keeps it.
    alarm_at: Option<Duration>,
    alarm_runs: bool,
    /// Of the callers, for the clock's task: a permit may be dropped outside of any runtime.
    runtime: Option<Handle>,
    /// Mean time between two permits that were waited for, and the last of them.
    pace: Option<Duration>,
    last_served: Option<Duration>,
}

struct Waiter {
    give: oneshot::Sender<Permit>,
    cost: Cost,
}

/// The right to have one call running; given back on drop, with what its estimate was too much.
pub struct Permit {
    shared: Option<Arc<Shared>>,
    tenant: TenantId,
    /// What the tenant was charged in the queue, if it was waited for.
    charged: Option<u64>,
    cost: Cost,
    since: Duration,
    begun: bool,
    used: Option<u64>,
}

impl std::fmt::Debug for Permit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Permit")
    }
}

impl Permit {
    /// The call is being made: it counts as a request, and as its estimate until more is known.
    pub fn begin(&mut self) {
        self.begun = true;
    }

    /// What it was reckoned at.
    pub fn tokens(&self) -> u64 {
        self.cost.tokens
    }

    /// What the call used.
    pub fn used(&mut self, tokens: u64) {
        self.used = Some(tokens);
    }

    fn give_back(&mut self) -> Option<Arc<Shared>> {
        let shared = self.shared.take()?;
        let used = if self.begun { self.used.unwrap_or(self.cost.tokens).min(self.cost.most) } else { 0 };
        let now = shared.now();
        let mut state = shared.lock();
        state.running = state.running.saturating_sub(1);
        state.pacing.ends(&self.tenant, now.saturating_sub(self.since), now);
        if let Some(requests) = state.requests.as_mut().filter(|_| !self.begun) {
            requests.give_back(1);
        }
        if let Some(tokens) = &mut state.tokens {
            tokens.settle(self.cost.tokens, used);
        }
        if let Some(charged) = self.charged {
            state.queue.settle(&self.tenant, self.cost.tokens, charged, used);
        }
        drop(state);
        Some(shared)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(shared) = self.give_back() {
            shared.serve();
        }
    }
}

impl State {
    /// What keeps a call of so many tokens from running, and until when if nothing but time does.
    fn blocked(&mut self, tenant: &TenantId, tokens: u64, now: Duration) -> Option<(ProviderWait, Option<Duration>)> {
        if let Some(until) = self.held_until {
            if until > now {
                return Some((ProviderWait::RetryAfter, Some(until)));
            }
            self.held_until = None;
        }
        if self.running >= self.calls_max {
            return Some((ProviderWait::Concurrency, None));
        }
        if let Some(until) = self.pacing.holds(tenant, self.calls_max, now) {
            return Some((ProviderWait::Concurrency, Some(until)));
        }
        if let Some(wait) = self.requests.as_mut().and_then(|requests| requests.wait(1, now)) {
            return Some((ProviderWait::Requests, Some(now + wait)));
        }
        let wait = self.tokens.as_mut().and_then(|bucket| bucket.wait(tokens, now))?;
        Some((ProviderWait::Tokens, Some(now + wait)))
    }

    fn take(&mut self, tenant: &TenantId, cost: Cost, now: Duration) {
        self.running += 1;
        self.pacing.begins(tenant, self.calls_max, now);
        if let Some(requests) = &mut self.requests {
            requests.take(1);
        }
        if let Some(tokens) = &mut self.tokens {
            tokens.take(cost.tokens);
        }
    }

    /// What the first waiter waits for.
    fn waits_for(&mut self, now: Duration) -> Option<(ProviderWait, Option<Duration>)> {
        let (tenant, cost) = self.queue.peek().map(|(tenant, cost)| (tenant.clone(), cost))?;
        self.blocked(&tenant, cost, now)
    }

    fn note_pace(&mut self, now: Duration) {
        let passed = self.last_served.replace(now).map(|last| now.saturating_sub(last));
        if let Some(passed) = passed {
            self.pace = Some(self.pace.map_or(passed, |pace| (pace * 7 + passed) / 8));
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Gives permits to waiters as long as there are both.
    fn serve(self: &Arc<Self>) {
        while let Some((Taken { key: tenant, item: waiter, charged }, since)) = self.next_waiter() {
            let (shared, charged) = (Some(self.clone()), Some(charged));
            let permit = Permit { shared, tenant, charged, cost: waiter.cost, since, begun: false, used: None };
            // A waiter that left in this moment is skipped; its permit is emptied here, or dropping it would come back here.
            if let Err(mut unsent) = waiter.give.send(permit) {
                drop(unsent.give_back());
            }
        }
    }

    fn next_waiter(self: &Arc<Self>) -> Option<(Taken<TenantId, Waiter>, Duration)> {
        let now = self.now();
        let mut state = self.lock();
        if state.queue.is_empty() {
            (state.pace, state.last_served) = (None, None);
            self.set_alarm(&mut state, None);
            return None;
        }
        match state.waits_for(now) {
            Some((_, until)) => {
                self.set_alarm(&mut state, until);
                None
            }
            None => {
                let taken = state.queue.pop()?;
                state.take(&taken.key, taken.item.cost, now);
                state.note_pace(now);
                Some((taken, now))
            }
        }
    }

    /// Has the queue served again at this time.
    fn set_alarm(self: &Arc<Self>, state: &mut State, at: Option<Duration>) {
        if state.alarm_at == at {
            return;
        }
        state.alarm_at = at;
        if state.alarm_runs {
            self.alarm.notify_one();
        } else if let Some(runtime) = state.runtime.as_ref().filter(|_| at.is_some()) {
            state.alarm_runs = true;
            drop(runtime.spawn(watch(self.clone())));
        }
    }
}

/// The clock's task: serves the queue when it is time, and ends when nobody waits for that.
async fn watch(shared: Arc<Shared>) {
    loop {
        let at = {
            let mut state = shared.lock();
            let Some(at) = state.alarm_at else {
                state.alarm_runs = false;
                return;
            };
            at
        };
        tokio::select! {
            biased;
            () = shared.alarm.notified() => {}
            () = tokio::time::sleep_until(shared.started + at) => {
                shared.lock().alarm_at = None;
                shared.serve();
            }
        }
    }
}

/// A place in the queue; left on drop.
struct Place<'a> {
    shared: &'a Arc<Shared>,
    by: CallBy<'a>,
    id: WaiterId,
    permit: oneshot::Receiver<Permit>,
}

impl Place<'_> {
    fn told(&self) -> Option<Queued> {
        let now = self.shared.now();
        let mut state = self.shared.lock();
        let position = state.queue.position(self.by.tenant, self.by.class, self.id)?;
        let (waits_for, until) = state.waits_for(now).unwrap_or((ProviderWait::Concurrency, None));
        let until = until.map(|until| until.saturating_sub(now));
        let paced = state.pace.map(|pace| pace.saturating_mul(u32::try_from(position).unwrap_or(u32::MAX)));
        Some(Queued { position, waits_for, delay: until.max(paced) })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let left = self.shared.lock().queue.remove(self.by.tenant, self.by.class, self.id);
        if left.is_some() {
            self.shared.serve(); // It may have been the one that was too dear for now.
        }
    }
}

impl Permits {
    /// Permits by the bounds of `config`.
    pub(super) fn new(config: &GatewayConfig) -> Self {
        let (requests, tokens) = (requests(config, Duration::ZERO), tokens(config, Duration::ZERO));
        let state = State {
            calls_max: config.calls_max.max(1),
            waiting_max: config.waiting_max,
            running: 0,
            queue: FairQueue::new(GATEWAY_QUANTUM_TOKENS, GATEWAY_QUANTUM_TOKENS_MAX),
            pacing: Pacing::default(),
            requests,
            tokens,
            held_until: None,
            alarm_at: None,
            alarm_runs: false,
            runtime: None,
            pace: None,
            last_served: None,
        };
        Self(Arc::new(Shared { started: Instant::now(), state: Mutex::new(state), alarm: Notify::new() }))
    }

    /// Changes the bounds; whoever waits is served by the new ones. What was used and is owed stays. With another credential, what the
    /// provider asked for is void.
    pub(super) fn configure(&self, config: &GatewayConfig, same_credential: bool) {
        let now = self.now();
        {
            let mut state = self.0.lock();
            (state.calls_max, state.waiting_max) = (config.calls_max.max(1), config.waiting_max);
            match (&mut state.requests, config.requests_per_minute) {
                (Some(bucket), Some(rate)) => bucket.set_rate(rate.into(), REQUESTS_BURST_MIN, now),
                (bucket, _) => *bucket = requests(config, now),
            }
            match (&mut state.tokens, config.tokens_per_minute) {
                (Some(bucket), Some(rate)) => bucket.set_rate(rate, TOKENS_BURST_MIN, now),
                (bucket, _) => *bucket = tokens(config, now),
            }
            if !same_credential {
                state.held_until = None;
            }
        }
        self.0.serve();
    }

    /// Time since the gateway began; no clock jump changes it.
    pub(super) fn now(&self) -> Duration {
        self.0.now()
    }

    /// Lets nobody call for so long. Those who wait are refused at once if that is longer than [`RETRY_AFTER_MAX`].
    pub(super) fn hold(&self, wait: Duration) {
        let until = self.now().saturating_add(wait.min(HELD_MAX));
        let refused = {
            let mut state = self.0.lock();
            if state.held_until.is_some_and(|held| held >= until) {
                return;
            }
            state.held_until = Some(until);
            (wait > RETRY_AFTER_MAX)
                .then(|| std::mem::replace(&mut state.queue, FairQueue::new(GATEWAY_QUANTUM_TOKENS, GATEWAY_QUANTUM_TOKENS_MAX)))
        };
        drop(refused); // Their senders, outside the lock.
        self.0.serve();
    }

    /// Takes note of what the provider says is left, after a call that was reckoned at `tokens`.
    pub(super) fn observe(&self, limits: &RateLimits, tokens: u64) {
        let now = self.now();
        let mut state = self.0.lock();
        let mut hold = limits.output_tokens.and_then(|output| output.until(tokens));
        match (&mut state.requests, limits.requests) {
            (Some(bucket), Some(requests)) => bucket.lower_to(requests.remaining, now),
            (None, Some(requests)) => hold = hold.max(requests.until(1)),
            (_, None) => {}
        }
        for allowance in [limits.tokens, limits.input_tokens].into_iter().flatten() {
            match &mut state.tokens {
                Some(bucket) => bucket.lower_to(allowance.remaining, now),
                None => hold = hold.max(allowance.until(tokens)),
            }
        }
        drop(state);
        if let Some(hold) = hold {
            self.hold(hold.min(RETRY_AFTER_MAX));
        }
    }

    /// What they are doing.
    pub(super) fn status(&self) -> PermitsStatus {
        let now = self.now();
        let mut state = self.0.lock();
        let waits_for = state.waits_for(now).map(|(waits_for, _)| waits_for);
        let tenants = state.queue.waiting().map(|(tenant, waiting)| TenantWaiting {
            tenant: tenant.clone(),
            waiting,
            position: state.queue.last_position(tenant).unwrap_or(waiting),
        });
        PermitsStatus {
            tenants: tenants.collect(),
            free: state.calls_max.saturating_sub(state.running),
            running: state.running,
            waiting: state.queue.len(),
            waits_for,
            requests_left: state.requests.as_mut().map(|bucket| bucket.left(now)),
            tokens_left: state.tokens.as_mut().map(|bucket| bucket.left(now)),
            held: state.held_until.and_then(|until| until.checked_sub(now)).filter(|left| !left.is_zero()),
        }
    }

    /// Takes a permit, waiting for its turn. `queued` is told the place in the queue when there is a wait, and again when it moved.
    ///
    /// # Errors
    /// `Overloaded` when too many wait and this tenant has its share of them; `RateLimited` when the provider asked for a longer pause than
    /// anybody waits for; `Cancelled`.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the queue and costs the tenant nothing.
    pub async fn acquire(
        &self,
        by: &CallBy<'_>,
        cost: Cost,
        cancel: &CancellationToken,
        queued: impl Fn(Queued),
    ) -> Result<Permit, ProviderError> {
        let mut place = match self.take_or_queue(by, cost)? {
            Ok(permit) => return Ok(permit),
            Err(place) => place,
        };
        let mut last = None;
        loop {
            if let Some(told) = place.told()
                && last.replace(told.position) != Some(told.position)
            {
                queued(told);
            }
            tokio::select! {
                biased;
                () = cancel.cancelled() => return Err(ProviderError::Cancelled),
                permit = &mut place.permit => return permit.map_err(|_| self.refusal().unwrap_or(ProviderError::Overloaded)),
                () = tokio::time::sleep(QUEUED_TOLD_EVERY) => {}
            }
        }
    }

    fn take_or_queue<'a>(&'a self, by: &CallBy<'a>, cost: Cost) -> Result<Result<Permit, Place<'a>>, ProviderError> {
        let now = self.now();
        let mut state = self.0.lock();
        state.pacing.asks(by.tenant, by.weight, now);
        if state.queue.is_empty() {
            match state.blocked(by.tenant, cost.tokens, now) {
                None => {
                    state.take(by.tenant, cost, now);
                    let (shared, tenant) = (Some(self.0.clone()), by.tenant.clone());
                    return Ok(Ok(Permit { shared, tenant, charged: None, cost, since: now, begun: false, used: None }));
                }
                Some((ProviderWait::RetryAfter, Some(until))) if until.saturating_sub(now) > RETRY_AFTER_MAX => {
                    return Err(left_alone(until.saturating_sub(now)));
                }
                Some(_) => {}
            }
        }
        let mut shed = None;
        if state.queue.len() >= state.waiting_max {
            shed = state.queue.shed(by.tenant, by.weight);
            if shed.is_none() {
                return Err(ProviderError::Overloaded);
            }
        }
        state.runtime = Handle::try_current().ok();
        let (give, permit) = oneshot::channel();
        let id = state.queue.push(by.tenant, by.weight, by.class, cost.tokens, Waiter { give, cost });
        drop(state);
        drop(shed); // It hears of it by its sender's end.
        self.0.serve(); // It may be next: another one that waits was too dear, or only time keeps it.
        Ok(Err(Place { shared: &self.0, by: *by, id, permit }))
    }

    fn refusal(&self) -> Option<ProviderError> {
        let (now, held) = (self.now(), self.0.lock().held_until);
        held.and_then(|until| until.checked_sub(now)).filter(|left| *left > RETRY_AFTER_MAX).map(left_alone)
    }
}

fn left_alone(wait: Duration) -> ProviderError {
    ProviderError::RateLimited { retry_after: Some(wait), message: "the provider asked to be left alone".to_owned() }
}

fn requests(config: &GatewayConfig, now: Duration) -> Option<TokenBucket> {
    config.requests_per_minute.map(|rate| TokenBucket::new(rate.into(), REQUESTS_BURST_MIN, now))
}

fn tokens(config: &GatewayConfig, now: Duration) -> Option<TokenBucket> {
    config.tokens_per_minute.map(|rate| TokenBucket::new(rate, TOKENS_BURST_MIN, now))
}
