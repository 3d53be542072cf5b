//! A writer: a task with a connection of its own that commits waiting changes together. The next
//! commit begins when the one before is answered, so a slow server gets larger commits.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use callboard_actors::{
    ids::Scope,
    ports::{Append, AppendError},
};
use tokio_postgres::Client;

use super::{
    append::{Batch, append, release},
    change::{Unchanged, Wanted, change},
    connect::{Connector, Failure},
    error::WriteError,
    lease::Membership,
    stages::{Stage, stages},
};
use crate::storage::commit::{
    job::{Change, Job},
    queue::Queue,
    stored::Stored,
    turn::Turn,
};

/// Most erasures between two statements that store appends. Each is a transaction of some statements.
const ERASURES_MAX: usize = 4;

pub(super) struct Writer {
    pub(super) connector: Arc<Connector>,
    pub(super) queue: Arc<Queue>,
    pub(super) stored: Arc<Stored>,
    pub(super) membership: Arc<Membership>,
    /// The connection; `None` until the first change, and after a failure.
    pub(super) client: Option<Client>,
}

/// Members of a commit that have no result yet. Dropped with the task, as when the runtime ends, it
/// gives each the result that nothing is known.
struct Unanswered(Vec<Job>);

impl Unanswered {
    fn take(&mut self) -> Vec<Job> {
        std::mem::take(&mut self.0)
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        for job in self.take() {
            job.refuse("the store was closed before this was acknowledged");
        }
    }
}

impl Writer {
    /// Main loop, until the queue is closed and empty.
    pub(super) async fn run(mut self) {
        while let Some(jobs) = self.queue.next_async().await {
            for stage in stages(self.due(jobs)) {
                match stage {
                    Stage::Appends(appends) => self.store(appends).await,
                    Stage::Releases(scopes) => self.release(&scopes).await,
                    Stage::Single(job) => self.change(job).await,
                }
            }
        }
    }

    /// The members that are done now. The others go back to the queue.
    fn due(&self, jobs: Vec<Job>) -> Vec<Job> {
        let mut turn = Turn::new(ERASURES_MAX);
        let (due, left) = jobs.into_iter().partition(|job| {
            let is_due = turn.admits(job);
            turn.spend(usize::from(is_due && job.is_erasure()));
            is_due
        });
        self.queue.put_back(left);
        due
    }

    async fn client(&mut self) -> Result<&mut Client, String> {
        if self.client.as_ref().is_none_or(Client::is_closed) {
            self.client = None;
            self.client = Some(self.connector.connect().await?);
        }
        self.client
            .as_mut()
            .ok_or_else(|| "there is no connection to the database".to_owned())
    }

    async fn store(&mut self, appends: Vec<Append>) {
        let mut waiting = Unanswered(appends.into_iter().map(Job::Append).collect());
        let batch = Batch::of(waiting.0.iter().filter_map(Job::as_append));
        let results = self.try_store(&batch).await;
        drop(batch);
        let jobs = waiting.take();
        match results {
            Ok(results) => {
                for (job, result) in jobs.into_iter().zip(results) {
                    let result = result.map(Change::found).map_err(WriteError::Append);
                    self.finish(job, result);
                }
            }
            Err(message) => {
                for job in jobs {
                    self.finish(job, Err(WriteError::Store(message.clone())));
                }
            }
        }
    }

    async fn try_store(
        &mut self,
        batch: &Batch<'_>,
    ) -> Result<Vec<Result<i64, AppendError>>, String> {
        let connector = Arc::clone(&self.connector);
        let membership = Arc::clone(&self.membership);
        let client = self.client().await?;
        let stored = append(&connector, client, membership.owner(), batch).await;
        stored.map_err(|failure| self.failed(&failure))
    }

    /// Gives conversations up. One that could not be given up stays with this host, which answers
    /// for it.
    async fn release(&mut self, scopes: &[Scope]) {
        let (connector, membership) = (Arc::clone(&self.connector), Arc::clone(&self.membership));
        let Some(owner) = membership.owner() else {
            return;
        };
        let Ok(client) = self.client().await else {
            return;
        };
        if let Err(failure) = release(&connector, client, owner, scopes).await {
            let error = self.failed(&failure);
            tracing::debug!(error, "conversations were not given up");
        }
    }

    async fn change(&mut self, job: Job) {
        let mut waiting = Unanswered(vec![job]);
        let Some(wanted) = waiting.0.first().and_then(Wanted::of) else {
            return;
        };
        let result = self.try_change(wanted).await;
        for job in waiting.take() {
            match &result {
                Ok(change) if change.is_partial => {
                    self.stored.changed(job.tenant(), change.bytes);
                    self.queue.put_back(vec![job.rest(change)]);
                }
                _ => self.finish(job, result.clone()),
            }
        }
    }

    async fn try_change(&mut self, wanted: Wanted<'_>) -> Result<Change, WriteError> {
        let connector = Arc::clone(&self.connector);
        let client = self.client().await.map_err(WriteError::Store)?;
        match change(&connector, client, wanted).await {
            Ok(change) => Ok(change),
            Err(Unchanged::Refused(error)) => Err(error),
            Err(Unchanged::Failed(failure)) => Err(WriteError::Store(self.failed(&failure))),
        }
    }

    /// Gives up a connection that is of no more use; returns the failure as a text.
    fn failed(&mut self, failure: &Failure) -> String {
        if failure.is_fatal() {
            self.client = None;
        }
        failure.describe()
    }

    fn finish(&self, job: Job, result: Result<Change, WriteError>) {
        if let Ok(change) = &result {
            self.stored.changed(job.tenant(), change.bytes);
            if let Some(bytes) = change.counted {
                self.stored.counted(job.tenant(), bytes);
            }
        }
        if catch_unwind(AssertUnwindSafe(|| job.finish(result))).is_err() {
            tracing::error!("a caller of the session store panicked in its callback");
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // After a regular end the queue is empty; it is not if the task was ended with its runtime.
        self.queue.abandon("the store is closed");
    }
}
