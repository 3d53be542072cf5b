//! Many tasks at once, a subagent each (DESIGN §4.7): what is asked for, and the handle to what runs. `driver` runs it, `attach` looks what
//! an earlier process left of it, `ends` hears how its conversations end, `scratch` keeps their journals where none are to be left, `told` is what becomes of them.
//!
//! **Invariants:** results come as data, a task's failure is no other's; more tasks than permits wait, none is refused for that; dropping
//! the handle ends nothing. What a task costs here does not grow with their number: no timer, no task and no registry each.

mod attach;
mod driver;
mod round_end_listener;
mod ephemeral_store;
mod told;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

pub use told::{CacheEffect, CacheShare, FanOutSummary, TaskEnd, TaskFailure};

use super::{
    HostInner, SendError, TenantHandle,
    fan_out_context::{FanOutContext, Joined},
};
use crate::{
    conversation::{Ports, spent_by},
    ids::{ConversationId, FAN_OUT_PREFIX, Scope},
    policy::{Budget, BudgetLevel},
    tenant::{Family, Tenant},
};
use driver::{Driver, FanOutLimits, Journals};
use ephemeral_store::EphemeralStore;
use round_end_listener::RoundEndListener;

/// Conversations that are deleted at once.
const DELETIONS_MAX: usize = 64;

/// Tasks for subagents, one each, and how to go about them.
///
/// ```
/// # use callboard_actors::host::FanOut;
/// let fan_out = FanOut::over(["Summarise a.txt", "Summarise b.txt"]).parallel(16).ephemeral();
/// ```
#[derive(Debug, Clone)]
pub struct FanOut {
    tasks: Vec<String>,
    name: Option<String>,
    model: Option<Arc<str>>,
    parallel: Option<usize>,
    budget: Budget,
    deadline: Option<Duration>,
    ephemeral: bool,
    warm_first: bool,
}

impl FanOut {
    /// A subagent for each of these tasks. It is told the task and nothing else; it has the tenant's tools but `create_subagent`, the
    /// same sandbox and permissions, and nobody whom it could ask (REQUIREMENTS N-02, N-05).
    pub fn over<T: Into<String>>(tasks: impl IntoIterator<Item = T>) -> Self {
        let tasks = tasks.into_iter().map(Into::into).collect();
        Self {
            tasks,
            name: None,
            model: None,
            parallel: None,
            budget: Budget::default(),
            deadline: None,
            ephemeral: false,
            warm_first: false,
        }
    }

    /// A name by which it is found again: the same name and tasks after a crash attach to what is there. What ended answers from its
    /// journal, what was open goes on, what was interrupted is given again. A new name each time without this.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The model of all of them; the tenant's otherwise.
    #[must_use]
    pub fn model(mut self, model: impl AsRef<str>) -> Self {
        self.model = Some(model.as_ref().into());
        self
    }

    /// How many are under way at once, at least 1: what they take in memory. As many as the tenant may have turns otherwise.
    #[must_use]
    pub fn parallel(mut self, parallel: usize) -> Self {
        self.parallel = Some(parallel.max(1));
        self
    }

    /// What they may spend together, below what the tenant may. Its time is that of the whole.
    #[must_use]
    pub fn budget(mut self, budget: Budget) -> Self {
        self.budget = budget;
        self
    }

    /// How long it may take as a whole; what is not over then is ended, what has not begun never begins (code `deadline`).
    #[must_use]
    pub fn deadline(mut self, within: Duration) -> Self {
        self.deadline = Some(within);
        self
    }

    /// Keeps no journal: a crash of the process loses it, and when it is over no trace is left. Nobody can watch its conversations.
    #[must_use]
    pub fn ephemeral(mut self) -> Self {
        self.ephemeral = true;
        self
    }

    /// Begins one task alone, and the others when its model has begun to answer: what they have in common is then in the provider's cache.
    /// [`FanOutSummary::cache`] tells the effect.
    #[must_use]
    pub fn warm_first(mut self) -> Self {
        self.warm_first = true;
        self
    }
}

/// A fan-out under way. Dropping it ends nothing; its host goes on with it.
pub struct FanOutRun {
    _host: Arc<HostInner>,
    name: String,
    cancel: CancellationToken,
    results: mpsc::Receiver<Arc<TaskEnd>>,
    ends: Vec<Option<Arc<TaskEnd>>>,
    left: usize,
    warmed: bool,
    began: Instant,
}

impl std::fmt::Debug for FanOutRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FanOutRun({}: {} of {} left)", self.name, self.left, self.ends.len())
    }
}

impl FanOutRun {
    /// Its name, which [`FanOut::name`] takes.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many tasks there are.
    pub fn tasks(&self) -> usize {
        self.ends.len()
    }

    /// The next task that is over, in the order in which they end; `None` when all are.
    ///
    /// # Cancel safety
    /// Cancel safe: no result is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<Arc<TaskEnd>> {
        if self.left == 0 {
            return None;
        }
        let end = self.results.recv().await?;
        if let Some(place) = self.ends.get_mut(end.index) {
            self.left -= usize::from(place.is_none());
            *place = Some(end.clone());
        }
        Some(end)
    }

    /// Ends it: the model calls, tools and processes of what runs; what has not begun never begins. Returns at once; the results tell the
    /// end.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// What ends it from elsewhere.
    pub fn cancel_token(&self) -> CancellationToken {
        self.cancel.clone()
    }

    /// Waits for all tasks, and until nothing of them is awake.
    ///
    /// # Cancel safety
    /// Dropping the future ends nothing, and loses the results that were not taken yet.
    pub async fn finish(mut self) -> FanOutSummary {
        while self.next().await.is_some() {}
        let wall = self.began.elapsed();
        // Its end drops the other side, when all sleep.
        while self.results.recv().await.is_some() {}
        FanOutSummary::of(self.name, self.ends, wall, self.warmed)
    }
}

impl TenantHandle {
    /// Gives each task to a subagent of its own, many at once, and gathers what they say.
    ///
    /// ```no_run
    /// # async fn example(host: callboard_actors::Host) -> Result<(), callboard_actors::host::SendError> {
    /// use callboard_actors::host::FanOut;
    ///
    /// let mut run = host.tenant("acme").fan_out(FanOut::over(["Summarise a.txt", "Summarise b.txt"])).await?;
    /// while let Some(end) = run.next().await {
    ///     println!("{} of {}: {}", end.index + 1, run.tasks(), end.is_done());
    /// }
    /// let summary = run.finish().await; // All results, in the order of the tasks.
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`SendError::InvalidId`] for a name that cannot be part of an id, [`SendError::FanOutRuns`] while one of that name runs here,
    /// [`SendError::NoPrice`] for a budget of money where the model has no price, and those of a failing store. What fails of a single
    /// task is in its result.
    ///
    /// # Cancel safety
    /// Nothing has begun while this is awaited.
    pub async fn fan_out(&self, fan_out: FanOut) -> Result<FanOutRun, SendError> {
        let (host, tenant) = (&self.host, self.tenant()?);
        host.admitted(tenant.in_service())?;
        let named = fan_out.name.is_some() && !fan_out.ephemeral;
        let name = fan_out.name.clone().unwrap_or_else(|| hex(host.ports.entropy.bytes()));
        let root = Scope::new(tenant.id().clone(), root(&name)?);
        let FanOut { tasks, model, parallel, budget, deadline, ephemeral, warm_first, .. } = fan_out;

        let setup = host.resolver.of_branch(&host.directory.setup_of(tenant.id()), model, ephemeral);
        let (time, budget) = (budget.wall_ms.map(Duration::from_millis), Budget { wall_ms: None, ..budget });
        if budget.micro_usd.is_some()
            && let Some(model) = setup.unpriced_model()
        {
            return Err(SendError::NoPrice { model: model.to_string() });
        }
        if let Some(skills) = &setup.skills {
            skills.look_again().await;
        }
        let parallel = parallel.or(tenant.quotas().turns_max).unwrap_or(setup.limits.tenant_turns_max).clamp(1, tasks.len().max(1));
        let warmed = warm_first && tasks.len() > 1;
        let (ends, told) = RoundEndListener::new((!ephemeral).then(|| host.ports.events.clone()), parallel);
        let ends = Arc::new(ends);
        let scratch = ephemeral.then(|| Arc::new(EphemeralStore::default()));
        let ports = match &scratch {
            Some(scratch) => Ports { sessions: scratch.clone(), events: ends.clone(), ..host.ports.clone() },
            None => Ports { events: ends.clone(), ..host.ports.clone() },
        };
        let family = family(&tenant, budget);
        let context = FanOutContext { setup, ports, family: family.clone() };
        let joined: Joined = host.directory.fan_outs().join(&root, context).ok_or_else(|| SendError::FanOutRuns { name: name.clone() })?;
        if let Some(family) = &family {
            // What an earlier process spent on it counts.
            spent_by(&*host.ports.sessions, &root, family).await?;
        }

        let known = if named { host.children(&root).await? } else { BTreeSet::new() };
        let (results, taken) = mpsc::channel(tasks.len().max(1));
        let (cancel, began, count) = (CancellationToken::new(), Instant::now(), tasks.len());
        let within = [deadline, time].into_iter().flatten().min();
        let limits =
            FanOutLimits { root, parallel, deadline: within.map(|within| began + within), warm_first: warmed, cancel: cancel.clone() };
        let ephemeral = scratch.map(|scratch| (scratch, host.resolver.artifacts.clone()));
        let driver = Driver::new(host.directory.clone(), tenant, limits, tasks, (ends, told), results, Journals { known, ephemeral });
        drop(host.directory.runtime().spawn(driver.run(joined)));
        Ok(FanOutRun { _host: host.clone(), name, cancel, results: taken, ends: vec![None; count], left: count, warmed, began })
    }

    /// Deletes the conversations of a fan-out that was not ephemeral, with all that belongs to them. Tells how many there were.
    ///
    /// # Errors
    /// As [`super::ConversationHandle::delete`]; [`SendError::InvalidId`], and [`SendError::FanOutRuns`] while it runs here.
    ///
    /// # Cancel safety
    /// What was begun is not undone; asking again deletes the rest.
    pub async fn delete_fan_out(&self, name: &str) -> Result<usize, SendError> {
        let (host, id) = (&self.host, self.id.clone()?);
        let root = Scope::new(id, root(name)?);
        if host.directory.fan_outs().has(&root) {
            return Err(SendError::FanOutRuns { name: name.to_owned() });
        }
        let children = host.children(&root).await?;
        let deletions = children.into_iter().map(|child| host.clone().delete(child));
        let mut deletions = stream::iter(deletions).buffer_unordered(DELETIONS_MAX);
        let mut count = 0;
        while let Some(deleted) = deletions.next().await {
            count += usize::from(deleted?);
        }
        drop(deletions);
        host.clone().delete(root).await?; // Its artifacts are kept under this name.
        Ok(count)
    }
}

/// The conversation that would be their parent. Nobody can begin it.
fn root(name: &str) -> Result<ConversationId, SendError> {
    Ok(ConversationId::new(format!("{FAN_OUT_PREFIX}{name}"))?)
}

/// What the subagents of a fan-out spend together; none where nothing bounds it.
fn family(tenant: &Tenant, budget: Budget) -> Option<Arc<Family>> {
    (!budget.is_unlimited()).then(|| Arc::new(Family::new(tenant.budget().below(BudgetLevel::Conversation, budget))))
}

fn hex(bytes: [u8; 16]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
