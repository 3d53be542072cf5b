//! Fan-outs: many tasks at once, each in a subagent. This module holds the request ([`FanOut`]) and
//! the handle to a running fan-out ([`FanOutRun`]). `driver` runs the tasks, `attach` finds what an
//! earlier process left of them, `round_end_listener` reports the ends of their rounds,
//! `ephemeral_store` keeps the journals of ephemeral fan-outs, `stored` lists what is stored, and
//! `results` has the result types.
//!
//! **Invariants:** the failure of a task is data in its result and does not affect other tasks.
//! More tasks than permits wait instead of being refused. Dropping the handle cancels nothing. No
//! task costs a timer, a tokio task or a registry entry of its kind here, so the cost per task does
//! not grow with their number.

mod attach;
mod driver;
mod round_end_listener;
mod ephemeral_store;
mod results;
mod stored;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures_util::{StreamExt, future::join_all, stream};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

pub use self::{
    results::{CacheEffect, CacheShare, FanOutSummary, TaskEnd, TaskFailure},
    stored::{StoredFanOut, stored_fan_outs},
};

use super::{
    HostInner, SendError, TenantHandle,
    fan_out_context::{FanOutContext, Joined},
    store_admission::admit_bytes,
};
use crate::{
    chat::Message,
    conversation::{ConversationError, Ports, spent_by},
    ids::{ConversationId, FAN_OUT_PREFIX, Scope, Seq},
    policy::{Budget, BudgetLevel},
    tenant::{Family, Tenant},
};
use driver::{Driver, FanOutLimits, Journals, Outlet};
use ephemeral_store::EphemeralStore;
use round_end_listener::RoundEndListener;

/// Conversations that [`TenantHandle::delete_fan_out`] deletes concurrently.
const DELETIONS_MAX: usize = 64;

/// Stored tasks that are read at once to compare them with the tasks of now.
const COMPARED_MAX: usize = 16;

/// A fan-out: tasks for subagents, one task each, and how to run them.
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
    retry_failed: bool,
}

impl FanOut {
    /// Creates a fan-out with one subagent for each of these tasks. A subagent gets the task and no
    /// other context. It has the tenant's tools except `create_subagent`, the same sandbox and the
    /// same permissions. It has no approver, so a call that needs approval is denied.
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
            retry_failed: false,
        }
    }

    /// Names the fan-out. After a crash, a fan-out with the same name and tasks attaches to the
    /// earlier one: ended tasks return the result in their journals, open rounds continue, and
    /// interrupted tasks are sent again. Default: a random name.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sends tasks again that failed in an earlier fan-out of this name. What was answered before the
    /// failure is taken back; what it spent stays spent.
    #[must_use]
    pub fn retry_failed(mut self) -> Self {
        self.retry_failed = true;
        self
    }

    /// Sets the model of all tasks. Default: the tenant's model.
    #[must_use]
    pub fn model(mut self, model: impl AsRef<str>) -> Self {
        self.model = Some(model.as_ref().into());
        self
    }

    /// Sets how many tasks run at once, at least 1 and at most as many as the tenant may run rounds
    /// at once, which is the default. This bounds their memory.
    #[must_use]
    pub fn parallel(mut self, parallel: usize) -> Self {
        self.parallel = Some(parallel.max(1));
        self
    }

    /// Sets the budget that all tasks share, within the tenant's budget. A time budget applies to
    /// the fan-out as a whole.
    #[must_use]
    pub fn budget(mut self, budget: Budget) -> Self {
        self.budget = budget;
        self
    }

    /// Sets the deadline of the whole fan-out. Running tasks are then interrupted, and waiting ones
    /// never begin (code `deadline`).
    #[must_use]
    pub fn deadline(mut self, within: Duration) -> Self {
        self.deadline = Some(within);
        self
    }

    /// Stores no journals. A crash of the process loses the fan-out, nothing of it remains after
    /// its end, and its conversations cannot be watched.
    #[must_use]
    pub fn ephemeral(mut self) -> Self {
        self.ephemeral = true;
        self
    }

    /// Starts one task alone, and the others once its model has begun to answer. The prefix that
    /// they share is then in the provider's cache. [`FanOutSummary::cache`] shows the effect.
    #[must_use]
    pub fn warm_first(mut self) -> Self {
        self.warm_first = true;
        self
    }
}

/// A running fan-out. Dropping it cancels nothing: the fan-out continues on its host.
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
        write!(
            f,
            "FanOutRun({}: {} of {} left)",
            self.name,
            self.left,
            self.ends.len()
        )
    }
}

impl FanOutRun {
    /// The fan-out's name, which [`FanOut::name`] takes.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of tasks.
    pub fn tasks(&self) -> usize {
        self.ends.len()
    }

    /// Returns the next result, in the order in which tasks end; `None` after the last one.
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

    /// Returns the next result without keeping it for [`FanOutRun::finish`], for callers that bound
    /// the memory of results themselves; `None` once all tasks have ended and their conversations
    /// sleep.
    ///
    /// # Cancel safety
    /// Cancel safe: no result is lost when the future is dropped.
    pub async fn next_unkept(&mut self) -> Option<Arc<TaskEnd>> {
        self.results.recv().await
    }

    /// Cancels the fan-out: the model calls, tools and processes of running tasks. Waiting tasks
    /// never begin. Returns at once; the results report the end.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// A token that cancels the fan-out from elsewhere.
    pub fn cancel_token(&self) -> CancellationToken {
        self.cancel.clone()
    }

    /// Waits until all tasks have ended and their conversations sleep.
    ///
    /// # Cancel safety
    /// Dropping the future cancels no task, but loses the results that were not taken yet.
    pub async fn finish(mut self) -> FanOutSummary {
        while self.next().await.is_some() {}
        let wall = self.began.elapsed();
        // The driver drops its sender once all conversations sleep.
        while self.results.recv().await.is_some() {}
        FanOutSummary::from_ends(self.name, self.ends, wall, self.warmed)
    }
}

impl TenantHandle {
    /// Starts a fan-out: one subagent per task, many at once.
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
    /// [`SendError::InvalidId`] for a name that cannot be part of an id, [`SendError::FanOutRuns`]
    /// while a fan-out of that name runs on this host, [`SendError::FanOutDiffers`] if an earlier one
    /// of that name had another task in the place of one of these, `Overloaded` when the tenant's stored bytes are used up,
    /// [`SendError::NoPrice`] for a budget in money
    /// when the model has no price, and the errors of a failing store. The failure of a single task
    /// is in its result.
    ///
    /// # Cancel safety
    /// No task starts before the future completes.
    pub async fn fan_out(&self, fan_out: FanOut) -> Result<FanOutRun, SendError> {
        let host = &self.host;
        let tenant = self.tenant()?;
        host.admitted(tenant.in_service())?;
        if !fan_out.ephemeral {
            host.writable()?;
            // Each task is admitted by its size when it begins.
            drop(admit_bytes(&host.ports, &tenant, 0).await?);
        }
        let named = fan_out.name.is_some() && !fan_out.ephemeral;
        let name = fan_out
            .name
            .clone()
            .unwrap_or_else(|| hex(host.ports.entropy.bytes()));
        let root = Scope::new(tenant.id().clone(), root(&name)?);
        let FanOut {
            tasks,
            model,
            parallel,
            budget,
            deadline,
            ephemeral,
            warm_first,
            retry_failed,
            ..
        } = fan_out;

        let setup =
            host.resolver
                .resolve_fan_out(&host.directory.setup_of(tenant.id()), model, ephemeral);
        let time = budget.wall_ms.map(Duration::from_millis);
        let budget = Budget {
            wall_ms: None,
            ..budget
        };
        if budget.micro_usd.is_some()
            && let Some(model) = setup.unpriced_model()
        {
            return Err(SendError::NoPrice {
                model: model.to_string(),
            });
        }
        if let Some(skills) = &setup.skills {
            skills.refresh().await;
        }
        let turns_max = tenant
            .quotas()
            .turns_max
            .unwrap_or(setup.limits.tenant_turns_max);
        let parallel = parallel
            .unwrap_or(turns_max)
            // A task beyond them would wait for its permit in memory.
            .min(turns_max)
            .clamp(1, tasks.len().max(1));
        let warmed = warm_first && tasks.len() > 1;
        let (ends, reports) =
            RoundEndListener::new((!ephemeral).then(|| host.ports.events.clone()), parallel);
        let ends = Arc::new(ends);
        let scratch = ephemeral.then(|| Arc::new(EphemeralStore::default()));
        let ports = match &scratch {
            Some(scratch) => Ports {
                sessions: scratch.clone(),
                store_health: Arc::default(),
                events: ends.clone(),
                ..host.ports.clone()
            },
            None => Ports {
                events: ends.clone(),
                ..host.ports.clone()
            },
        };
        let family = family(&tenant, budget);
        let context = FanOutContext {
            setup,
            ports,
            family: family.clone(),
        };
        let fan_outs = host.directory.fan_outs();
        fan_outs.rested(&root).await;
        let joined: Joined = fan_outs
            .join(&root, tasks.len(), context)
            .ok_or_else(|| SendError::FanOutRuns { name: name.clone() })?;
        if let Some(family) = &family {
            // What an earlier process spent on this fan-out counts.
            spent_by(&*host.ports.sessions, &root, family).await?;
        }

        let known = if named {
            host.children(&root).await?
        } else {
            BTreeSet::new()
        };
        if host.has_other_tasks(&root, &known, &tasks).await? {
            return Err(SendError::FanOutDiffers { name });
        }
        let (results, taken) = mpsc::channel(tasks.len().max(1));
        let cancel = CancellationToken::new();
        let began = Instant::now();
        let count = tasks.len();
        let within = [deadline, time].into_iter().flatten().min();
        let limits = FanOutLimits {
            root,
            parallel,
            deadline: within.map(|within| began + within),
            warm_first: warmed,
            cancel: cancel.clone(),
        };
        let ephemeral = scratch.map(|scratch| (scratch, host.resolver.artifacts.clone()));
        let driver = Driver::new(
            host.directory.clone(),
            tenant,
            limits,
            tasks,
            (ends, reports),
            Journals {
                known,
                retry_failed,
                ephemeral,
            },
            Outlet { results, joined },
        );
        drop(host.directory.runtime().spawn(driver.run()));
        Ok(FanOutRun {
            _host: host.clone(),
            name,
            cancel,
            results: taken,
            ends: vec![None; count],
            left: count,
            warmed,
            began,
        })
    }

    /// Deletes the stored conversations of a fan-out and everything that belongs to them. Returns
    /// how many there were.
    ///
    /// # Errors
    /// As [`super::ConversationHandle::delete`]; [`SendError::InvalidId`], and
    /// [`SendError::FanOutRuns`] while the fan-out runs on this host.
    ///
    /// # Cancel safety
    /// Deletions that have begun complete; another call deletes the rest.
    pub async fn delete_fan_out(&self, name: &str) -> Result<usize, SendError> {
        let host = &self.host;
        let id = self.id.clone()?;
        let root = Scope::new(id, root(name)?);
        host.directory.fan_outs().rested(&root).await;
        if host.directory.fan_outs().has(&root) {
            return Err(SendError::FanOutRuns {
                name: name.to_owned(),
            });
        }
        let children = host.children(&root).await?;
        let deletions = children.into_iter().map(|child| host.clone().delete(child));
        let mut deletions = stream::iter(deletions).buffer_unordered(DELETIONS_MAX);
        let mut count = 0;
        while let Some(deleted) = deletions.next().await {
            count += usize::from(deleted?);
        }
        drop(deletions);
        host.clone().delete(root).await?; // Artifacts are stored under the root's id.
        Ok(count)
    }
}

impl HostInner {
    /// Whether a stored task of the fan-out differs from the one that has its place now.
    async fn has_other_tasks(
        &self,
        root: &Scope,
        known: &BTreeSet<Scope>,
        tasks: &[String],
    ) -> Result<bool, SendError> {
        let ids = root.conversation.children();
        let mut compared = Vec::new();
        let mut places = (0u32..).zip(tasks).peekable();
        while let Some((index, task)) = places.next() {
            let child = root.conversation.child_in(&ids, Seq(0), index);
            let child = Scope::new(root.tenant.clone(), child);
            if known.contains(&child) {
                let task = Message::user(task.as_str());
                compared.push(attach::is_another(&*self.ports.sessions, child, task));
            }
            if compared.len() >= COMPARED_MAX || places.peek().is_none() {
                for is_another in join_all(compared.drain(..)).await {
                    if is_another.map_err(ConversationError::from)? {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }
}

/// The id of the fan-out's root: the parent of its conversations, which exists only as an id.
/// Callers cannot use it, since its prefix is reserved.
fn root(name: &str) -> Result<ConversationId, SendError> {
    Ok(ConversationId::new(format!("{FAN_OUT_PREFIX}{name}"))?)
}

/// The budget that the subagents of a fan-out share; `None` without a bound.
fn family(tenant: &Tenant, budget: Budget) -> Option<Arc<Family>> {
    (!budget.is_unlimited()).then(|| {
        Arc::new(Family::new(
            tenant.budget().below(BudgetLevel::Conversation, budget),
        ))
    })
}

fn hex(bytes: [u8; 16]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
