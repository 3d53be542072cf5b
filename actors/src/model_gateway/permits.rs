//! Permits to call a provider: a bound on concurrent calls, on requests and tokens per minute, and
//! a pause when the provider asks for one. A caller takes a free permit directly if no other caller
//! waits; otherwise it joins the fair queue.
//!
//! One lock guards the state. It is held for look-ups and changes only; senders are used and
//! dropped outside of it, since a dropped permit takes the lock again. While the first waiter waits
//! for time to pass, one task per gateway sleeps until then.

use std::{sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
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
        GATEWAY_QUANTUM_TOKENS, GATEWAY_QUANTUM_TOKENS_MAX, QUEUE_REPORT_INTERVAL,
        REQUESTS_BURST_MIN, RETRY_AFTER_MAX, TOKENS_BURST_MIN,
    },
    policy::{FairQueue, HostShare, Pacing, Taken, TokenBucket, WaiterId},
    ports::{ProviderError, RateLimits},
};

/// The longest pause that one answer of a provider can ask for. Then it is called again, and may ask
/// again: one wrong figure must not stop all tenants for a day.
const HELD_MAX: Duration = Duration::from_secs(10 * 60);

/// The permits of one gateway.
#[derive(Clone)]
pub struct Permits(Arc<Shared>);

/// Estimated tokens of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    /// The expected number, which is reserved.
    pub tokens: u64,
    /// An upper bound. Usage beyond it is not believed.
    pub most: u64,
}

/// What a waiting caller is informed of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queued {
    /// Approximate place in the queue over all tenants, from 1.
    pub position: usize,
    /// What the first call of the queue waits for.
    pub waits_for: ProviderWait,
    /// Estimated wait. `None` when unknown.
    pub delay: Option<Duration>,
}

/// A report on the permits.
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
    /// Notified when `alarm_at` changes.
    alarm: Notify,
}

struct State {
    /// This host's part of the limits of `GatewayConfig`.
    share: HostShare,
    calls_max: usize,
    /// Calls that the connections to the provider carry at the same time.
    carried_max: usize,
    waiting_max: usize,
    running: usize,
    queue: FairQueue<TenantId, Waiter>,
    pacing: Pacing<TenantId>,
    requests: Option<TokenBucket>,
    tokens: Option<TokenBucket>,
    held_until: Option<Duration>,
    /// When the first waiter can be served, if it waits only for time to pass.
    alarm_at: Option<Duration>,
    alarm_runs: bool,
    /// A runtime of the callers, to spawn the alarm task: a permit may be dropped outside of any
    /// runtime.
    runtime: Option<Handle>,
    /// Mean time between two permits that left the queue, for the estimate of waits.
    pace: Option<Duration>,
    last_served: Option<Duration>,
}

struct Waiter {
    reply: oneshot::Sender<Permit>,
    cost: Cost,
}

/// The right to run one call. Dropping the permit releases it and returns the unused part of its
/// estimate.
pub struct Permit {
    shared: Option<Arc<Shared>>,
    tenant: TenantId,
    /// What the tenant was charged in the queue. `None` for a permit that was taken directly.
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
    /// Marks the call as started. From now on it counts as a request, and as its estimate until its
    /// usage is known.
    pub(crate) fn begin(&mut self) {
        self.begun = true;
    }

    /// Returns the estimated tokens.
    pub(crate) fn tokens(&self) -> u64 {
        self.cost.tokens
    }

    /// Sets the tokens that the call used.
    pub(crate) fn used(&mut self, tokens: u64) {
        self.used = Some(tokens);
    }

    fn release(&mut self) -> Option<Arc<Shared>> {
        #[cfg(test)]
        if crate::planted::is(crate::planted::Bug::KeepsCancelledPermit)
            && self.begun
            && self.used.is_none()
        {
            return None;
        }
        let shared = self.shared.take()?;
        // A call that never started used nothing. A usage above `most` is not believed.
        let used = if self.begun {
            self.used.unwrap_or(self.cost.tokens).min(self.cost.most)
        } else {
            0
        };
        let now = shared.now();
        let mut state = shared.lock();
        state.running = state.running.saturating_sub(1);
        state
            .pacing
            .ends(&self.tenant, now.saturating_sub(self.since), now);
        if let Some(requests) = state.requests.as_mut().filter(|_| !self.begun) {
            requests.give_back(1);
        }
        if let Some(tokens) = &mut state.tokens {
            tokens.settle(self.cost.tokens, used);
        }
        if let Some(charged) = self.charged {
            state
                .queue
                .settle(&self.tenant, self.cost.tokens, charged, used);
        }
        drop(state);
        Some(shared)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(shared) = self.release() {
            shared.serve();
        }
    }
}

impl State {
    /// Sets this host's part of the limits of `config`.
    fn limit(&mut self, config: &GatewayConfig, now: Duration) {
        let share = self.share;
        self.waiting_max = config.waiting_max;
        self.calls_max = match config.calls_are_shared {
            true => share.of_count(config.calls_max),
            false => config.calls_max,
        }
        .max(1);
        match (&mut self.requests, config.requests_per_minute) {
            (Some(bucket), Some(rate)) => {
                bucket.set_rate(share.of(rate.into()), share.of(REQUESTS_BURST_MIN), now);
            }
            (bucket, _) => *bucket = requests(config, share, now),
        }
        match (&mut self.tokens, config.tokens_per_minute) {
            (Some(bucket), Some(rate)) => {
                bucket.set_rate(share.of(rate), share.of(TOKENS_BURST_MIN), now);
            }
            (bucket, _) => *bucket = tokens(config, share, now),
        }
    }

    /// Returns what keeps a call of `tokens` from running, and until when if only time does.
    fn blocked(
        &mut self,
        tenant: &TenantId,
        tokens: u64,
        now: Duration,
    ) -> Option<(ProviderWait, Option<Duration>)> {
        if let Some(until) = self.held_until {
            if until > now {
                return Some((ProviderWait::RetryAfter, Some(until)));
            }
            self.held_until = None;
        }
        if self.running >= self.calls_max {
            return Some((ProviderWait::Concurrency, None));
        }
        if self.running >= self.carried_max {
            return Some((ProviderWait::Connections, None));
        }
        if let Some(until) = self.pacing.holds(tenant, self.room(), now) {
            return Some((ProviderWait::Concurrency, Some(until)));
        }
        if let Some(wait) = self
            .requests
            .as_mut()
            .and_then(|requests| requests.wait(1, now))
        {
            return Some((ProviderWait::Requests, Some(now + wait)));
        }
        let wait = self
            .tokens
            .as_mut()
            .and_then(|bucket| bucket.wait(tokens, now))?;
        Some((ProviderWait::Tokens, Some(now + wait)))
    }

    fn take(&mut self, tenant: &TenantId, cost: Cost, now: Duration) {
        self.running += 1;
        self.pacing.begins(tenant, self.room(), now);
        if let Some(requests) = &mut self.requests {
            requests.take(1);
        }
        if let Some(tokens) = &mut self.tokens {
            tokens.take(cost.tokens);
        }
    }

    /// Calls that may run at the same time.
    fn room(&self) -> usize {
        self.calls_max.min(self.carried_max)
    }

    /// Returns what the first waiter waits for.
    fn waits_for(&mut self, now: Duration) -> Option<(ProviderWait, Option<Duration>)> {
        let (tenant, cost) = self
            .queue
            .peek()
            .map(|(tenant, cost)| (tenant.clone(), cost))?;
        self.blocked(&tenant, cost, now)
    }

    fn note_pace(&mut self, now: Duration) {
        let passed = self
            .last_served
            .replace(now)
            .map(|last| now.saturating_sub(last));
        if let Some(passed) = passed {
            self.pace = Some(self.pace.map_or(passed, |pace| (pace * 7 + passed) / 8));
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Hands permits to waiters while there are both. The lock is released before each hand-over.
    fn serve(self: &Arc<Self>) {
        while let Some((
            Taken {
                key: tenant,
                item: waiter,
                charged,
            },
            since,
        )) = self.next_waiter()
        {
            let shared = Some(self.clone());
            let charged = Some(charged);
            let permit = Permit {
                shared,
                tenant,
                charged,
                cost: waiter.cost,
                since,
                begun: false,
                used: None,
            };
            // The receiver was dropped in this moment. Its permit is released by hand: dropping it
            // would call `serve` again, recursively.
            if let Err(mut unsent) = waiter.reply.send(permit) {
                drop(unsent.release());
            }
        }
    }

    fn next_waiter(self: &Arc<Self>) -> Option<(Taken<TenantId, Waiter>, Duration)> {
        let now = self.now();
        // One lock covers the check, the removal and the take, so two threads that serve at the
        // same time never hand out the same capacity.
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

    /// Schedules `serve` for this time. Starts the alarm task unless it runs.
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

/// The alarm task: serves the queue when it is time, and ends when no waiter waits for time to
/// pass.
async fn watch(shared: Arc<Shared>) {
    loop {
        // `set_alarm` notifies after each change of `alarm_at`, so the sleep below always ends at
        // the current time. `alarm_runs` is cleared under the lock that saw no alarm: a later
        // `set_alarm` then spawns a new task.
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

/// A waiting call. Dropping it leaves the queue.
struct QueueEntry<'a> {
    shared: &'a Arc<Shared>,
    by: CallBy<'a>,
    id: WaiterId,
    permit: oneshot::Receiver<Permit>,
}

impl QueueEntry<'_> {
    fn status(&self) -> Option<Queued> {
        let now = self.shared.now();
        let mut state = self.shared.lock();
        let position = state
            .queue
            .position(self.by.tenant, self.by.class, self.id)?;
        let (waits_for, until) = state
            .waits_for(now)
            .unwrap_or((ProviderWait::Concurrency, None));
        let until = until.map(|until| until.saturating_sub(now));
        let paced = state
            .pace
            .map(|pace| pace.saturating_mul(u32::try_from(position).unwrap_or(u32::MAX)));
        Some(Queued {
            position,
            waits_for,
            delay: until.max(paced),
        })
    }
}

impl Drop for QueueEntry<'_> {
    fn drop(&mut self) {
        let left = self
            .shared
            .lock()
            .queue
            .remove(self.by.tenant, self.by.class, self.id);
        if left.is_some() {
            self.shared.serve(); // The next waiter may need fewer tokens than this one did.
        }
    }
}

impl Permits {
    /// Creates permits with the limits of `config`.
    pub(super) fn new(config: &GatewayConfig) -> Self {
        let requests = requests(config, HostShare::WHOLE, Duration::ZERO);
        let tokens = tokens(config, HostShare::WHOLE, Duration::ZERO);
        let state = State {
            share: HostShare::WHOLE,
            calls_max: config.calls_max.max(1),
            carried_max: usize::MAX,
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
        Self(Arc::new(Shared {
            started: Instant::now(),
            state: Mutex::new(state),
            alarm: Notify::new(),
        }))
    }

    /// Changes the limits, also for waiting calls. Usage and debts stay. With another credential, a
    /// pause that the provider asked for ends.
    pub(super) fn configure(&self, config: &GatewayConfig, same_credential: bool) {
        let now = self.now();
        {
            let mut state = self.0.lock();
            state.limit(config, now);
            if !same_credential {
                state.held_until = None;
            }
        }
        self.0.serve();
    }

    /// Changes this host's part of the limits of `config`, also for waiting calls.
    pub(super) fn share(&self, share: HostShare, config: &GatewayConfig) {
        let now = self.now();
        {
            let mut state = self.0.lock();
            state.share = share;
            state.limit(config, now);
        }
        self.0.serve();
    }

    /// Sets how many calls the connections to the provider carry at the same time.
    pub(super) fn carry(&self, calls_max: usize) {
        let grows = {
            let mut state = self.0.lock();
            let before = std::mem::replace(&mut state.carried_max, calls_max.max(1));
            calls_max > before
        };
        if grows {
            self.0.serve();
        }
    }

    /// Returns the time since the gateway started, unaffected by changes of the wall clock.
    pub(super) fn now(&self) -> Duration {
        self.0.now()
    }

    /// Pauses all calls for `wait`. Waiting calls are refused if that is longer than
    /// [`RETRY_AFTER_MAX`].
    pub(super) fn hold(&self, wait: Duration) {
        let until = self.now().saturating_add(wait.min(HELD_MAX));
        let refused = {
            let mut state = self.0.lock();
            if state.held_until.is_some_and(|held| held >= until) {
                return;
            }
            state.held_until = Some(until);
            (wait > RETRY_AFTER_MAX).then(|| {
                std::mem::replace(
                    &mut state.queue,
                    FairQueue::new(GATEWAY_QUANTUM_TOKENS, GATEWAY_QUANTUM_TOKENS_MAX),
                )
            })
        };
        drop(refused); // Drops the senders outside of the lock; the receivers get the refusal.
        self.0.serve();
    }

    /// Applies the limits that the provider reported, after a call of `tokens` estimated tokens.
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

    /// Returns a report on the permits.
    pub(super) fn status(&self) -> PermitsStatus {
        let now = self.now();
        let mut state = self.0.lock();
        let waits_for = state.waits_for(now).map(|(waits_for, _)| waits_for);
        let tenants = state
            .queue
            .waiting()
            .map(|(tenant, waiting)| TenantWaiting {
                tenant: tenant.clone(),
                waiting,
                position: state.queue.last_position(tenant).unwrap_or(waiting),
            });
        PermitsStatus {
            tenants: tenants.collect(),
            free: state.room().saturating_sub(state.running),
            running: state.running,
            waiting: state.queue.len(),
            waits_for,
            requests_left: state.requests.as_mut().map(|bucket| bucket.left(now)),
            tokens_left: state.tokens.as_mut().map(|bucket| bucket.left(now)),
            held: state
                .held_until
                .and_then(|until| until.checked_sub(now))
                .filter(|left| !left.is_zero()),
        }
    }

    /// Takes a permit, waiting for it if necessary. A waiting caller gets its place in the queue by
    /// `queued`, again whenever the place changes.
    ///
    /// # Errors
    /// `Overloaded` when the queue is full and this tenant has its share of it; `RateLimited` when
    /// the provider asked for a pause longer than [`RETRY_AFTER_MAX`]; `Cancelled`.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the queue and costs the tenant nothing.
    pub(crate) async fn acquire(
        &self,
        by: &CallBy<'_>,
        cost: Cost,
        cancel: &CancellationToken,
        queued: impl Fn(Queued),
    ) -> Result<Permit, ProviderError> {
        let mut entry = match self.take_or_queue(by, cost)? {
            Ok(permit) => return Ok(permit),
            Err(entry) => entry,
        };
        let mut last = None;
        loop {
            if let Some(status) = entry.status()
                && last.replace(status.position) != Some(status.position)
            {
                queued(status);
            }
            tokio::select! {
                biased;
                () = cancel.cancelled() => return Err(ProviderError::Cancelled),
                permit = &mut entry.permit => return permit.map_err(|_| self.refusal().unwrap_or(ProviderError::Overloaded)),
                () = tokio::time::sleep(QUEUE_REPORT_INTERVAL) => {}
            }
        }
    }

    fn take_or_queue<'a>(
        &'a self,
        by: &CallBy<'a>,
        cost: Cost,
    ) -> Result<Result<Permit, QueueEntry<'a>>, ProviderError> {
        let now = self.now();
        let mut state = self.0.lock();
        state.pacing.asks(by.tenant, by.weight, now);
        // A free permit is taken directly only while no call waits; otherwise this call would
        // overtake the queue.
        if state.queue.is_empty() {
            match state.blocked(by.tenant, cost.tokens, now) {
                None => {
                    state.take(by.tenant, cost, now);
                    let shared = Some(self.0.clone());
                    let tenant = by.tenant.clone();
                    return Ok(Ok(Permit {
                        shared,
                        tenant,
                        charged: None,
                        cost,
                        since: now,
                        begun: false,
                        used: None,
                    }));
                }
                Some((ProviderWait::RetryAfter, Some(until)))
                    if until.saturating_sub(now) > RETRY_AFTER_MAX =>
                {
                    return Err(pause_requested(until.saturating_sub(now)));
                }
                Some(_) => {}
            }
        }
        // A full queue makes room by removing the newest, least urgent call of the tenant with the
        // most waiting calls for its weight. If no tenant has more than this one, the new call is
        // refused.
        let mut shed = None;
        if state.queue.len() >= state.waiting_max {
            shed = state.queue.shed(by.tenant, by.weight);
            if shed.is_none() {
                return Err(ProviderError::Overloaded);
            }
        }
        state.runtime = Handle::try_current().ok();
        let (reply, permit) = oneshot::channel();
        let id = state.queue.push(
            by.tenant,
            by.weight,
            by.class,
            cost.tokens,
            Waiter { reply, cost },
        );
        drop(state);
        drop(shed); // Closes the channel of the call that was removed from the queue.
        self.0.serve(); // This call may be next, or only time keeps it, which needs an alarm.
        Ok(Err(QueueEntry {
            shared: &self.0,
            by: *by,
            id,
            permit,
        }))
    }

    fn refusal(&self) -> Option<ProviderError> {
        let now = self.now();
        let held = self.0.lock().held_until;
        held.and_then(|until| until.checked_sub(now))
            .filter(|left| *left > RETRY_AFTER_MAX)
            .map(pause_requested)
    }
}

fn pause_requested(wait: Duration) -> ProviderError {
    ProviderError::RateLimited {
        retry_after: Some(wait),
        message: "the provider asked to be left alone".to_owned(),
    }
}

fn requests(config: &GatewayConfig, share: HostShare, now: Duration) -> Option<TokenBucket> {
    let rate = share.of(config.requests_per_minute?.into());
    Some(TokenBucket::new(rate, share.of(REQUESTS_BURST_MIN), now))
}

fn tokens(config: &GatewayConfig, share: HostShare, now: Duration) -> Option<TokenBucket> {
    let rate = share.of(config.tokens_per_minute?);
    Some(TokenBucket::new(rate, share.of(TOKENS_BURST_MIN), now))
}
