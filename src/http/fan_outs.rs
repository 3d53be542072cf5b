//! The fan-outs that tenants started over HTTP, with their results. They are kept in memory within
//! bounds: of a named fan-out the journals remain, and starting it again under its name reads them.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use callboard_actors::{
    host::{FanOutRun, TaskEnd},
    ids::{ConversationId, FAN_OUT_PREFIX, TenantId},
};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{api::TaskShown, error::Problem};

/// Fan-outs of one tenant that are kept; beyond it the oldest that has ended goes, and if all run,
/// a new one is refused.
const KEPT_MAX: usize = 32;

/// Tasks of the kept fan-outs of one tenant. It bounds the memory of all but the texts.
const TASKS_KEPT_MAX: usize = 100_000;

/// Bytes of the kept texts of one tenant. Beyond it the oldest fan-outs that have ended go; if that
/// is not enough, a text is left out and its conversation has it.
const TEXT_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes of the tasks of one tenant's running fan-outs: two requests of the largest size. They wait
/// in memory until they begin.
const TASK_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A fan-out, and what is known of it.
pub(super) struct Kept {
    pub(super) name: String,
    pub(super) cancel: CancellationToken,
    /// The results in the order of the tasks, and how many there are.
    pub(super) results: Mutex<Results>,
    /// Bytes of the texts of its tasks.
    task_bytes: usize,
    /// Changes with each result.
    changed: watch::Sender<usize>,
}

/// The results so far.
pub(super) struct Results {
    pub(super) ends: Vec<Option<Box<TaskShown>>>,
    pub(super) count: usize,
    text_bytes: usize,
    /// Conversations of subagents that were erased, at most one for each task. Their texts are left
    /// out.
    erased: HashSet<ConversationId>,
}

impl Kept {
    fn new(name: String, cancel: CancellationToken, tasks: usize, task_bytes: usize) -> Self {
        Self {
            name,
            cancel,
            task_bytes,
            results: Mutex::new(Results {
                ends: vec![None; tasks],
                count: 0,
                text_bytes: 0,
                erased: HashSet::new(),
            }),
            changed: watch::Sender::new(0),
        }
    }

    /// Whether every task has ended.
    pub(super) fn is_over(&self) -> bool {
        let results = self.results.lock();
        results.count == results.ends.len()
    }

    /// A receiver that changes with each result.
    pub(super) fn watch(&self) -> watch::Receiver<usize> {
        self.changed.subscribe()
    }

    fn tasks(&self) -> usize {
        self.results.lock().ends.len()
    }

    fn text_bytes(&self) -> usize {
        self.results.lock().text_bytes
    }

    fn put(&self, mut end: TaskShown) {
        let mut results = self.results.lock();
        if results.erased.contains(&end.conversation_id) {
            omit_text(&mut end);
        }
        let length = end.text.len();
        if let Some(place) = results.ends.get_mut(end.index)
            && place.is_none()
        {
            *place = Some(Box::new(end));
            results.count += 1;
            results.text_bytes += length;
        }
        let count = results.count;
        drop(results);
        self.changed.send_replace(count);
    }
}

impl Kept {
    /// Whether this conversation belongs to a subagent of this fan-out.
    fn has(&self, conversation: &ConversationId) -> bool {
        ConversationId::new(format!("{FAN_OUT_PREFIX}{}", self.name))
            .is_ok_and(|root| conversation.as_str().starts_with(root.children().as_str()))
    }

    /// Drops the text of a conversation, or leaves it out once its task ends.
    fn erase(&self, conversation: &ConversationId) {
        let mut results = self.results.lock();
        let results = &mut *results;
        let is_erased = |end: &&mut Box<TaskShown>| end.conversation_id == *conversation;
        if let Some(end) = results.ends.iter_mut().flatten().find(is_erased) {
            results.text_bytes = results.text_bytes.saturating_sub(end.text.len());
            omit_text(end);
        } else if results.erased.len() < results.ends.len() {
            results.erased.insert(conversation.clone());
        }
    }
}

/// Removes the text of a result, and says so.
fn omit_text(end: &mut TaskShown) {
    if !end.text.is_empty() {
        end.text = String::new();
        end.text_omitted = true;
    }
}

/// The fan-outs of a tenant.
#[derive(Default)]
struct OfTenant {
    /// In the order of their start.
    kept: Vec<Arc<Kept>>,
    /// Places that are taken by fan-outs about to start.
    starting: usize,
    /// The tasks of those, and their bytes.
    starting_tasks: usize,
    starting_bytes: usize,
}

impl OfTenant {
    /// Whether one more fan-out fits beside those that run or start. Those that have ended give way
    /// to it once it has started.
    fn has_room(&self, tasks: usize, bytes: usize) -> bool {
        let running = || self.kept.iter().filter(|kept| !kept.is_over());
        let running_tasks: usize = running().map(|kept| kept.tasks()).sum();
        let running_bytes: usize = running().map(|kept| kept.task_bytes).sum();
        running().count() + self.starting < KEPT_MAX
            && running_bytes + self.starting_bytes + bytes <= TASK_BYTES_MAX
            && running_tasks + self.starting_tasks + tasks <= TASKS_KEPT_MAX
    }

    fn is_too_many(&self) -> bool {
        let tasks: usize = self.kept.iter().map(|kept| kept.tasks()).sum();
        self.kept.len() > KEPT_MAX || tasks > TASKS_KEPT_MAX
    }

    fn has_text_room(&self, bytes: usize) -> bool {
        let kept: usize = self.kept.iter().map(|kept| kept.text_bytes()).sum();
        kept + bytes <= TEXT_BYTES_MAX
    }

    /// Drops the oldest fan-out that has ended and is not `but`. Returns whether there was one.
    fn drop_oldest(&mut self, but: &Arc<Kept>) -> bool {
        let oldest = self
            .kept
            .iter()
            .position(|kept| kept.is_over() && !Arc::ptr_eq(kept, but));
        oldest.is_some_and(|oldest| {
            self.kept.remove(oldest);
            true
        })
    }
}

/// The fan-outs of all tenants.
#[derive(Clone, Default)]
pub(super) struct FanOuts(Arc<Mutex<HashMap<TenantId, OfTenant>>>);

/// Room for one more fan-out of a tenant, given back when dropped.
pub(super) struct Place {
    fan_outs: FanOuts,
    tenant: TenantId,
    tasks: usize,
    bytes: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(of_tenant) = self.fan_outs.0.lock().get_mut(&self.tenant) {
            of_tenant.starting = of_tenant.starting.saturating_sub(1);
            of_tenant.starting_tasks = of_tenant.starting_tasks.saturating_sub(self.tasks);
            of_tenant.starting_bytes = of_tenant.starting_bytes.saturating_sub(self.bytes);
        }
    }
}

impl Place {
    /// Keeps a fan-out that was started, and collects its results.
    pub(super) fn keep(self, mut run: FanOutRun) -> Arc<Kept> {
        let name = run.name().to_owned();
        let kept = Arc::new(Kept::new(name, run.cancel_token(), run.tasks(), self.bytes));
        self.fan_outs.add(&self.tenant, &kept);
        let (fan_outs, tenant) = (self.fan_outs.clone(), self.tenant.clone());
        tokio::spawn({
            let kept = kept.clone();
            async move {
                while let Some(end) = run.next_unkept().await {
                    fan_outs.take(&tenant, &kept, shown(&end));
                }
            }
        });
        kept
    }
}

impl FanOuts {
    /// Reserves room for one more fan-out of a tenant. Nothing is dropped for it before it has
    /// started.
    ///
    /// # Errors
    /// 429 when running fan-outs leave no room.
    pub(super) fn reserve(
        &self,
        tenant: &TenantId,
        tasks: usize,
        bytes: usize,
    ) -> Result<Place, Problem> {
        let mut all = self.0.lock();
        let of_tenant = all.entry(tenant.clone()).or_default();
        if !of_tenant.has_room(tasks, bytes) {
            return Err(Problem::too_many(
                "too_many_fan_outs",
                "this tenant has reached its limit of running fan-outs; wait for one or cancel it",
            ));
        }
        of_tenant.starting += 1;
        of_tenant.starting_tasks += tasks;
        of_tenant.starting_bytes += bytes;
        Ok(Place {
            fan_outs: self.clone(),
            tenant: tenant.clone(),
            tasks,
            bytes,
        })
    }

    fn add(&self, tenant: &TenantId, kept: &Arc<Kept>) {
        let mut all = self.0.lock();
        let of_tenant = all.entry(tenant.clone()).or_default();
        of_tenant.kept.retain(|known| known.name != kept.name);
        of_tenant.kept.push(kept.clone());
        while of_tenant.is_too_many() && of_tenant.drop_oldest(kept) {}
    }

    /// Takes a result. Its text is left out if there is no room for it, or if the fan-out was
    /// forgotten meanwhile.
    fn take(&self, tenant: &TenantId, kept: &Arc<Kept>, mut end: TaskShown) {
        let mut all = self.0.lock();
        let has_room = all.get_mut(tenant).is_some_and(|of_tenant| {
            let length = end.text.len();
            while !of_tenant.has_text_room(length) && of_tenant.drop_oldest(kept) {}
            of_tenant.has_text_room(length)
                && of_tenant.kept.iter().any(|known| Arc::ptr_eq(known, kept))
        });
        if !has_room {
            omit_text(&mut end);
        }
        kept.put(end);
    }

    /// The fan-outs of a tenant, oldest first.
    pub(super) fn of(&self, tenant: &TenantId) -> Vec<Arc<Kept>> {
        let all = self.0.lock();
        all.get(tenant)
            .map(|of_tenant| of_tenant.kept.clone())
            .unwrap_or_default()
    }

    /// One fan-out of a tenant.
    ///
    /// # Errors
    /// 404.
    pub(super) fn get(&self, tenant: &TenantId, name: &str) -> Result<Arc<Kept>, Problem> {
        self.of(tenant)
            .into_iter()
            .find(|kept| kept.name == name)
            .ok_or_else(|| Problem::not_found("fan-out"))
    }

    /// Forgets a fan-out.
    pub(super) fn forget(&self, tenant: &TenantId, name: &str) {
        if let Some(of_tenant) = self.0.lock().get_mut(tenant) {
            of_tenant.kept.retain(|kept| kept.name != name);
        }
    }

    /// Forgets the text of a conversation that is erased.
    pub(super) fn erase(&self, tenant: &TenantId, conversation: &ConversationId) {
        if conversation.is_subagent() {
            let all = self.of(tenant);
            let of_conversation = all.iter().filter(|kept| kept.has(conversation));
            of_conversation.for_each(|kept| kept.erase(conversation));
        }
    }

    /// Forgets all fan-outs of a tenant.
    pub(super) fn forget_all(&self, tenant: &TenantId) {
        if let Some(of_tenant) = self.0.lock().get_mut(tenant) {
            of_tenant.kept.clear();
        }
    }
}

/// What is kept of the end of a task.
fn shown(end: &TaskEnd) -> TaskShown {
    TaskShown {
        index: end.index,
        conversation_id: end.conversation.clone(),
        ok: end.is_done(),
        text: end.text().to_owned(),
        text_omitted: false,
        error: end.outcome.as_ref().err().map(|why| why.failure.clone()),
        usage: end.end().map(|round| round.usage).unwrap_or_default(),
        attached: end.attached,
    }
}

#[cfg(test)]
mod tests {
    use callboard_actors::ids::ConversationId;

    use super::*;

    fn tenant() -> TenantId {
        TenantId::new("acme").unwrap()
    }

    fn end(index: usize, bytes: usize) -> TaskShown {
        TaskShown {
            index,
            conversation_id: ConversationId::new("c").unwrap(),
            ok: true,
            text: "x".repeat(bytes),
            text_omitted: false,
            error: None,
            usage: callboard_actors::chat::Usage::default(),
            attached: false,
        }
    }

    fn started(fan_outs: &FanOuts, name: &str, tasks: usize) -> Arc<Kept> {
        let kept = Arc::new(Kept::new(
            name.to_owned(),
            CancellationToken::new(),
            tasks,
            0,
        ));
        fan_outs.add(&tenant(), &kept);
        kept
    }

    #[test]
    fn the_kept_texts_of_a_tenant_stay_within_their_bound() {
        let fan_outs = FanOuts::default();
        let half = TEXT_BYTES_MAX / 2;
        let ended = started(&fan_outs, "ended", 1);
        fan_outs.take(&tenant(), &ended, end(0, half));
        let runs = started(&fan_outs, "runs", 4);
        for index in 0..3 {
            fan_outs.take(&tenant(), &runs, end(index, half));
        }

        let of_tenant = fan_outs.of(&tenant());
        let names: Vec<_> = of_tenant.iter().map(|kept| kept.name.as_str()).collect();
        assert_eq!(names, ["runs"]);
        let results = runs.results.lock();
        let kept: Vec<_> = results.ends.iter().flatten().collect();
        assert_eq!(
            kept.iter().map(|end| end.text.len()).sum::<usize>(),
            TEXT_BYTES_MAX
        );
        let omitted: Vec<_> = kept.iter().map(|end| end.text_omitted).collect();
        assert_eq!(omitted, [false, false, true]);
    }

    #[test]
    fn fan_outs_about_to_start_count_towards_the_limits() {
        let fan_outs = FanOuts::default();
        let mut places: Vec<_> = (0..KEPT_MAX)
            .map(|_| fan_outs.reserve(&tenant(), 1, 0).ok().unwrap())
            .collect();

        assert!(fan_outs.reserve(&tenant(), 1, 0).is_err());
        places.pop();
        assert!(fan_outs.reserve(&tenant(), TASKS_KEPT_MAX, 0).is_err());
        assert!(fan_outs.reserve(&tenant(), 1, 0).is_ok());
    }

    #[test]
    fn a_fan_out_that_has_ended_gives_way_only_to_one_that_has_started() {
        let fan_outs = FanOuts::default();
        for number in 0..KEPT_MAX {
            let ended = started(&fan_outs, &format!("n-{number}"), 1);
            fan_outs.take(&tenant(), &ended, end(0, 1));
        }

        drop(fan_outs.reserve(&tenant(), TASKS_KEPT_MAX, 0).ok().unwrap());
        assert!(fan_outs.reserve(&tenant(), TASKS_KEPT_MAX + 1, 0).is_err());
        assert_eq!(fan_outs.of(&tenant()).len(), KEPT_MAX);
        started(&fan_outs, "new", 1);

        let kept = fan_outs.of(&tenant());
        let names = [&*kept[0].name, &*kept[KEPT_MAX - 1].name];
        assert_eq!((kept.len(), names), (KEPT_MAX, ["n-1", "new"]));
        started(&fan_outs, "large", TASKS_KEPT_MAX);
        let left = fan_outs.of(&tenant());
        let names: Vec<_> = left.iter().map(|kept| kept.name.as_str()).collect();
        assert_eq!(names, ["new", "large"], "one that runs never goes");
    }

    #[test]
    fn the_texts_of_waiting_tasks_are_bounded() {
        let fan_outs = FanOuts::default();

        let half = fan_outs.reserve(&tenant(), 1, TASK_BYTES_MAX / 2).ok();
        let other = fan_outs.reserve(&tenant(), 1, TASK_BYTES_MAX / 2).ok();

        assert!(half.is_some() && other.is_some());
        assert!(fan_outs.reserve(&tenant(), 1, 1).is_err());
        drop(half);
        assert!(fan_outs.reserve(&tenant(), 1, 1).is_ok());
    }
}
