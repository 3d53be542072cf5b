//! Lists stored fan-outs from the journals of their subagents, whose client keys hold the name of
//! the fan-out and the number of its tasks. A fan-out has no record besides these.

use std::collections::BTreeMap;

use crate::{
    ids::{ConversationId, FAN_OUT_PREFIX, SUBAGENT_PREFIX, Scope, Seq, TenantId},
    journal::{ChildKey, Entry, EntryBody, Spent},
    policy::Amount,
    ports::{ListQuery, SessionBackend, SessionSummary, StoreError},
    stream::StopReason,
    time::Timestamp,
};

/// Rows of a list, and entries of a journal, in one read.
const PAGE: usize = 1000;

/// A fan-out whose subagents are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredFanOut {
    /// Its name. Where no journal shows it, the start that the ids of its subagents have in common.
    pub name: String,
    /// Number of its tasks. Of a fan-out that an older program started, only those that began.
    pub tasks: u64,
    /// Tasks that were answered.
    pub done: u64,
    /// Tasks that failed, and those whose journal cannot be read.
    pub failed: u64,
    /// What all its model calls have cost, those of earlier attempts included.
    pub spent: Amount,
    /// When its first stored task began.
    pub began_at: Timestamp,
    /// When the last entry of a task was stored.
    pub updated_at: Timestamp,
}

impl StoredFanOut {
    /// Tasks that run, were interrupted or have not begun: the same fan-out again goes on with them.
    pub fn open(&self) -> u64 {
        self.tasks.saturating_sub(self.done + self.failed)
    }
}

/// Lists the stored fan-outs of a tenant after the subagent `after`, in the order of the ids of their
/// subagents, which is none that a person knows. Reads about `tasks_max` journals, but always those
/// of a whole fan-out. Returns the subagent after which the list goes on; `None` at its end.
///
/// # Errors
/// Those of a store that does not answer. A damaged journal is a task that failed.
pub async fn stored_fan_outs(
    sessions: &dyn SessionBackend,
    tenant: &TenantId,
    after: Option<ConversationId>,
    tasks_max: usize,
) -> Result<(Vec<StoredFanOut>, Option<ConversationId>), StoreError> {
    // Before all ids of subagents, and behind most of the others.
    let start = || ConversationId::new(SUBAGENT_PREFIX).ok();
    let mut after = after.filter(ConversationId::is_subagent).or_else(start);
    let mut found = Vec::new();
    let mut family: Option<Family> = None;
    let mut read = 0;
    loop {
        let query = ListQuery {
            after: after.clone(),
            count: PAGE,
            subagents: true,
            ..ListQuery::default()
        };
        let page = sessions.list(tenant, query).await?;
        if page.is_empty() {
            break;
        }
        for row in page {
            let Some(start) = row.conversation.siblings() else {
                found.extend(family.and_then(Family::finish));
                return Ok((found, None)); // Behind the last subagent.
            };
            if family.as_ref().is_none_or(|family| family.start != start) {
                found.extend(family.take().and_then(Family::finish));
                if read >= tasks_max {
                    return Ok((found, after));
                }
                family = Some(Family::new(start));
            }
            if let Some(family) = family.as_mut().filter(|family| !family.is_of_a_parent) {
                read += 1;
                let child = Scope::new(tenant.clone(), row.conversation.clone());
                family.add(read_task(sessions, &child).await?, &row);
            }
            after = Some(row.conversation);
        }
    }
    found.extend(family.and_then(Family::finish));
    Ok((found, None))
}

/// Subagents with the same parent, as far as they were read.
struct Family {
    /// The start of their ids.
    start: String,
    name: Option<String>,
    /// Whether the parent is a conversation, so that this is no fan-out.
    is_of_a_parent: bool,
    /// The largest number of tasks that a key holds.
    tasks: u64,
    /// Tasks by how they stand.
    counts: BTreeMap<Standing, u64>,
    spent: Amount,
    began_at: Option<Timestamp>,
    updated_at: Timestamp,
}

/// How a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    Open,
    Done,
    Failed,
}

/// What the journal of a subagent says.
struct Task {
    key: Option<ChildKey>,
    standing: Standing,
    spent: Amount,
}

impl Family {
    fn new(start: &str) -> Self {
        Self {
            start: start.to_owned(),
            name: None,
            is_of_a_parent: false,
            tasks: 0,
            counts: BTreeMap::new(),
            spent: Amount::default(),
            began_at: None,
            updated_at: Timestamp::default(),
        }
    }

    fn add(&mut self, task: Task, row: &SessionSummary) {
        if let Some(key) = task.key {
            let parent = key.call.scope.conversation;
            match parent.as_str().strip_prefix(FAN_OUT_PREFIX) {
                Some(name) => self.name = Some(name.to_owned()),
                None => self.is_of_a_parent = true,
            }
            self.tasks = self.tasks.max(key.tasks.unwrap_or_default());
        }
        *self.counts.entry(task.standing).or_default() += 1;
        self.spent = self.spent.plus(&task.spent);
        self.began_at = self.began_at.into_iter().chain([row.created_at]).min();
        self.updated_at = self.updated_at.max(row.updated_at);
    }

    fn finish(self) -> Option<StoredFanOut> {
        let count = |standing| self.counts.get(&standing).copied().unwrap_or_default();
        (!self.is_of_a_parent).then(|| StoredFanOut {
            tasks: self.tasks.max(self.counts.values().sum()),
            done: count(Standing::Done),
            failed: count(Standing::Failed),
            spent: self.spent,
            began_at: self.began_at.unwrap_or(self.updated_at),
            updated_at: self.updated_at,
            name: self.name.unwrap_or(self.start),
        })
    }
}

/// Reads the journal of a subagent.
async fn read_task(sessions: &dyn SessionBackend, child: &Scope) -> Result<Task, StoreError> {
    let mut task = Task {
        key: None,
        standing: Standing::Open,
        spent: Amount::default(),
    };
    let mut spent = Spent::default();
    let mut after = Seq(0);
    loop {
        let page = match sessions.entries(child, after, PAGE).await {
            Ok(page) => page,
            Err(error) if error.is_retryable() => return Err(error),
            Err(_) => {
                task.standing = Standing::Failed;
                return Ok(task);
            }
        };
        let Some(last) = page.last().map(|entry| entry.seq) else {
            return Ok(task);
        };
        for stored in &page {
            let entry = Entry::decode(stored).ok();
            let Some(body) = entry.map(|entry| entry.body) else {
                task.standing = Standing::Failed;
                return Ok(task);
            };
            task.apply(&body, child);
            let _ = spent.apply(&body); // Only reports a damaged journal.
            task.spent = spent.amount;
        }
        after = last;
    }
}

impl Task {
    fn apply(&mut self, body: &EntryBody, child: &Scope) {
        match (body, self.standing) {
            (
                EntryBody::PromptAccepted {
                    client_key: Some(key),
                    ..
                },
                _,
            ) => {
                let key = ChildKey::parse(&key.key).filter(|key| key.call.child() == *child);
                if key.is_some() {
                    (self.key, self.standing) = (key, Standing::Open);
                }
            }
            (
                EntryBody::RoundFinished {
                    stop_reason, error, ..
                },
                Standing::Open,
            ) => {
                self.standing = match stop_reason {
                    StopReason::Interrupted => Standing::Open,
                    reason if error.is_none() && reason.is_done() => Standing::Done,
                    _ => Standing::Failed,
                };
            }
            (EntryBody::Rewound { .. } | EntryBody::Reset {}, _) => self.standing = Standing::Open,
            _ => {}
        }
    }
}
