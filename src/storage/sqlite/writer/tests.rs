use std::path::Path;

use callboard_actors::{
    ids::{ConversationId, Epoch, Scope, Seq, TenantId},
    journal::{Head, StoredEntry},
    ports::{Append, Durability},
    stream::Open,
};
use tokio::sync::oneshot;

use super::*;
use crate::storage::sqlite::{SqliteOptions, open};

fn writer(folder: &Path) -> Writer {
    let path = folder.join("s.db");
    Writer {
        conn: open::writer(&path, &SqliteOptions::default()).unwrap(),
        queue: Arc::new(Queue::new(usize::MAX)),
        counters: Arc::default(),
        checkpoints: Arc::default(),
        stored: Arc::default(),
        gate: Arc::default(),
        files: Arc::new(Files::of(&path).unwrap()),
        commit_delay: Duration::ZERO,
    }
}

fn scope(tenant: &str, id: &str) -> Scope {
    Scope::new(
        TenantId::new(tenant).unwrap(),
        ConversationId::new(id).unwrap(),
    )
}

fn append(scope: Scope, count: u64) -> Job {
    Job::Append(Append {
        scope,
        expected: Head::default(),
        epoch: Epoch(1),
        entries: (1..=count)
            .map(|seq| StoredEntry {
                seq: Seq(seq),
                bytes: "some text".into(),
            })
            .collect(),
        open: Open::None,
        wake_at: None,
        messages: Vec::new(),
        durability: Durability::Awaited,
        done: Box::new(drop),
    })
}

#[test]
fn a_flood_of_erasures_takes_its_part_of_each_commit_and_others_are_in_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let writer = writer(folder.path());
    let id = |n: usize| format!("c{n}");
    let grown: Vec<Job> = (0..20)
        .map(|n| append(scope("flood", &id(n)), 600))
        .collect();
    assert_eq!(writer.try_commit(&grown).unwrap().len(), 20);
    for n in 0..20 {
        let scope = scope("flood", &id(n));
        let (answer, _) = oneshot::channel();
        writer.queue.push(match n % 2 {
            0 => Job::Empty(scope, Seq(600), answer),
            _ => Job::Delete(scope, oneshot::channel().0),
        });
    }
    writer.queue.push(append(scope("calm", "c"), 1));
    let jobs = writer.queue.next(Duration::MAX).unwrap();

    let outcomes = writer.try_commit(&jobs).unwrap();

    let is_calm_done = jobs.iter().zip(&outcomes).any(|(job, outcome)| {
        job.tenant().as_str() == "calm" && matches!(outcome, Outcome::Ended(Ok(_)))
    });
    assert_eq!(jobs.len(), 21);
    assert!(is_calm_done);
    let rows: usize = outcomes
        .iter()
        .filter_map(|outcome| match outcome {
            Outcome::Ended(Ok(change)) => Some(change.work),
            Outcome::Ended(Err(_)) | Outcome::Waits => None,
        })
        .sum();
    assert!(rows < 2 * ERASURES_WORK_MAX, "{rows}");
}

#[test]
fn erasures_that_waited_are_all_done_in_their_order_before_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let writer = writer(folder.path());
    let c = scope("t", "c");
    let queue = Arc::clone(&writer.queue);
    queue.push(append(c.clone(), 1_300));
    let mut answers = Vec::new();
    for _ in 0..3 {
        let (sender, answer) = oneshot::channel();
        queue.push(Job::Empty(c.clone(), Seq(1_300), sender));
        answers.push(answer);
    }
    let deletions = [true, false].map(|was_there| {
        let (sender, answer) = oneshot::channel();
        queue.push(Job::Delete(c.clone(), sender));
        (was_there, answer)
    });
    queue.close();

    writer.run();

    for mut answer in answers {
        assert_eq!(answer.try_recv().unwrap(), Ok(()));
    }
    for (was_there, mut answer) in deletions {
        assert_eq!(answer.try_recv().unwrap(), Ok(was_there));
    }
}
