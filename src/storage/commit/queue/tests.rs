use std::sync::Arc;

use bytes::Bytes;
use callboard_actors::{
    ids::{Epoch, Scope, Seq},
    journal::{Head, StoredEntry},
    ports::StoreError,
    stream::Open,
};
use tokio::sync::oneshot;

use super::*;

const LONG: Duration = Duration::from_secs(60);

fn append(tenant: &str, seq: u64, bytes: usize, durability: Durability) -> Job {
    Job::Append(Append {
        scope: Scope::new(
            TenantId::new(tenant).unwrap(),
            ConversationId::new("c").unwrap(),
        ),
        expected: Head::default(),
        epoch: Epoch(1),
        entries: vec![StoredEntry {
            seq: Seq(seq),
            bytes: vec![0; bytes].into(),
        }],
        open: Open::None,
        wake_at: None,
        messages: Vec::new(),
        durability,
        done: Box::new(|_| {}),
    })
}

fn order(jobs: &[Job]) -> Vec<(String, u64)> {
    let one = |job: &Job| match job {
        Job::Append(append) => (append.scope.tenant.to_string(), append.entries[0].seq.0),
        _ => unreachable!(),
    };
    jobs.iter().map(one).collect()
}

#[test]
fn tenants_are_served_in_turn_and_each_in_its_order() {
    let queue = Queue::new(usize::MAX);
    for seq in 1..=300 {
        queue.push(append("flood", seq, 1, Durability::Awaited));
    }
    for seq in 1..=2 {
        queue.push(append("calm", seq, 1, Durability::Awaited));
    }

    let first = order(&queue.next(LONG).unwrap());
    let second = order(&queue.next(LONG).unwrap());

    let place = |seq| {
        first
            .iter()
            .position(|job| *job == ("calm".to_owned(), seq))
    };
    assert_eq!((place(1), place(2)), (Some(1), Some(3)));
    assert_eq!(
        (first.len(), second.len()),
        (COMMIT_JOBS_MAX, 302 - COMMIT_JOBS_MAX)
    );
    let flood: Vec<u64> = first
        .iter()
        .chain(&second)
        .filter(|(tenant, _)| tenant == "flood")
        .map(|(_, seq)| *seq)
        .collect();
    assert_eq!(flood, (1..=300).collect::<Vec<_>>());
}

/// An append of the conversation `c` of tenant `t` after the entry `after`; `results` receives
/// its outcome.
fn behind(after: u64, count: u64, durability: Durability, results: &Arc<Mutex<Vec<u64>>>) -> Job {
    let Job::Append(mut job) = append("t", 0, 1, durability) else {
        unreachable!()
    };
    job.expected = if after == 0 {
        Head::default()
    } else {
        Head {
            epoch: Epoch(1),
            seq: Seq(after),
        }
    };
    job.entries = (1..=count)
        .map(|n| StoredEntry {
            seq: Seq(after + n),
            bytes: vec![0; 10].into(),
        })
        .collect();
    let results = results.clone();
    job.done = Box::new(move |result| {
        results
            .lock()
            .push(if result.is_ok() { after } else { 1000 + after })
    });
    Job::Append(job)
}

fn sizes(queue: &Queue) -> (usize, usize, usize) {
    let lines = queue.lock();
    (lines.count, lines.awaited, lines.bytes)
}

#[test]
fn waiting_appends_of_a_conversation_are_joined_and_answered_in_order() {
    let queue = Queue::new(usize::MAX);
    let results = Arc::default();
    for (after, count, durability) in [
        (0, 2, Durability::Awaited),
        (2, 3, Durability::Deferred),
        (5, 1, Durability::Awaited),
    ] {
        queue.push(behind(after, count, durability, &results));
    }
    queue.push(behind(6, 1, Durability::Deferred, &results));
    assert_eq!((sizes(&queue).0, sizes(&queue).1), (1, 1));

    let jobs = queue.next(LONG).unwrap();

    assert_eq!((jobs.len(), sizes(&queue)), (1, (0, 0, 0)));
    let Job::Append(append) = &jobs[0] else {
        unreachable!()
    };
    assert_eq!(
        append
            .entries
            .iter()
            .map(|entry| entry.seq.0)
            .collect::<Vec<_>>(),
        (1..=7).collect::<Vec<_>>()
    );
    assert_eq!(
        (append.expected, append.check(Head::default()).unwrap().seq),
        (Head::default(), Seq(7))
    );
    jobs.into_iter().for_each(|job| {
        job.finish(Ok(Change {
            found: true,
            ..Change::default()
        }))
    });
    assert_eq!(*results.lock(), [0, 2, 5, 6]);
}

#[test]
fn appends_are_not_joined_across_epochs_gaps_other_changes_or_size_limits() {
    let queue = Queue::new(usize::MAX);
    let results = Arc::default();
    let scope = || {
        Scope::new(
            TenantId::new("t").unwrap(),
            ConversationId::new("c").unwrap(),
        )
    };
    let in_line = |queue: &Queue| sizes(queue).0;

    queue.push(behind(0, 2, Durability::Awaited, &results));
    // Does not start where the first ends.
    queue.push(behind(3, 1, Durability::Awaited, &results));
    assert_eq!(in_line(&queue), 2);
    queue.next(LONG);
    // Its predecessor is already being written.
    queue.push(behind(4, 1, Durability::Awaited, &results));
    assert_eq!(in_line(&queue), 1);
    let Job::Append(mut other) = behind(5, 1, Durability::Awaited, &results) else {
        unreachable!()
    };
    other.epoch = Epoch(2);
    queue.push(Job::Append(other));
    assert_eq!(in_line(&queue), 2);
    queue.next(LONG);

    for change in [
        Job::Delete(scope(), oneshot::channel().0),
        Job::Snapshot(scope(), Seq(1), Bytes::new(), oneshot::channel().0),
        Job::Mark(scope(), None, oneshot::channel().0),
        Job::Erase(scope().tenant, oneshot::channel().0),
    ] {
        queue.push(behind(0, 2, Durability::Awaited, &results));
        queue.push(change);
        queue.push(behind(2, 1, Durability::Awaited, &results));
        assert_eq!(queue.next(LONG).unwrap().len(), 3);
    }

    let Job::Append(mut large) = behind(0, 1, Durability::Awaited, &results) else {
        unreachable!()
    };
    large.entries[0].bytes = vec![0; JOINED_BYTES_MAX].into();
    queue.push(Job::Append(large));
    queue.push(behind(1, 1, Durability::Awaited, &results));
    assert_eq!(queue.next(LONG).unwrap().len(), 2);
}

#[test]
fn an_append_joined_to_one_whose_callback_panics_is_still_answered() {
    let queue = Queue::new(usize::MAX);
    let results = Arc::default();
    let Job::Append(mut first) = behind(0, 1, Durability::Awaited, &results) else {
        unreachable!()
    };
    first.done = Box::new(|_| panic!("provoked by the test"));
    queue.push(Job::Append(first));
    queue.push(behind(1, 1, Durability::Awaited, &results));

    let job = queue.next(LONG).unwrap().pop().unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        job.finish(Ok(Change {
            found: true,
            ..Change::default()
        }))
    }))
    .is_err();

    assert!(panicked);
    assert_eq!(*results.lock(), [1]);
}

#[test]
fn a_commit_has_at_most_a_mebibyte_and_at_least_one_member() {
    let queue = Queue::new(usize::MAX);
    for (seq, bytes) in [(1, 3 << 20), (2, 600 << 10), (3, 600 << 10)] {
        queue.push(append("t", seq, bytes, Durability::Awaited));
    }

    let sizes: Vec<usize> = (0..3).map(|_| queue.next(LONG).unwrap().len()).collect();

    assert_eq!(sizes, [1, 1, 1]);
}

#[test]
fn snapshots_take_an_eighth_of_the_queue_and_nothing_from_appends() {
    let queue = Queue::new(80_000);
    let snapshot = |tenant: &str| {
        let (sender, mut receiver) = oneshot::channel();
        let scope = Scope::new(
            TenantId::new(tenant).unwrap(),
            ConversationId::new("c").unwrap(),
        );
        queue.push(Job::Snapshot(scope, Seq(1), vec![0; 1000].into(), sender));
        receiver.try_recv().ok()
    };

    let waiting = (0..5000).filter(|_| snapshot("t").is_none()).count();

    assert_eq!(waiting, 10_000 / 1256);
    assert_eq!(snapshot("t"), Some(Ok(())), "a snapshot may be lost");
    assert_eq!(queue.lock().bytes, 0);
    queue.push(append("t", 1, 39_000, Durability::Awaited));
    assert_eq!(
        queue.lock().bytes,
        append("t", 1, 39_000, Durability::Awaited).size()
    );
    while queue.lock().count > 0 {
        queue.next(LONG);
    }
    let lines = queue.lock();
    assert_eq!((lines.bytes, lines.cache_bytes), (0, 0));
}

#[test]
fn an_unawaited_append_waits_at_most_five_milliseconds() {
    let queue = Queue::new(usize::MAX);

    let started = Instant::now();
    queue.push(append("t", 1, 1, Durability::Deferred));
    assert_eq!(queue.next(LONG).unwrap().len(), 1);
    assert!(started.elapsed() >= GROUPING_DELAY);

    queue.push(append("t", 2, 1, Durability::Deferred));
    queue.push(append("t", 3, 1, Durability::Awaited));
    assert_eq!(queue.lock().grouping_delay(), None, "an append is awaited");
    assert_eq!(queue.next(LONG).unwrap().len(), 2);
}

#[test]
fn a_full_queue_refuses_at_once_and_a_flooding_tenant_leaves_room() {
    let queue = Queue::new(10_000);
    let push = |tenant: &str| {
        let (sender, mut receiver) = oneshot::channel();
        let Job::Append(mut job) = append(tenant, 1, 1000, Durability::Awaited) else {
            unreachable!()
        };
        job.done = Box::new(move |result| drop(sender.send(result)));
        queue.push(Job::Append(job));
        receiver.try_recv().ok()
    };

    let flood: Vec<_> = (0..10).map(|_| push("flood")).collect();

    assert!(flood[..3].iter().all(Option::is_none), "queued");
    assert!(
        matches!(
            flood.last(),
            Some(Some(Err(AppendError::Overloaded { .. })))
        ),
        "refused during the call"
    );
    assert_eq!(push("calm"), None);
    assert!(queue.lock().bytes <= 10_000);
}

fn delete(tenant: &str) -> (Job, oneshot::Receiver<Result<bool, StoreError>>) {
    let scope = Scope::new(
        TenantId::new(tenant).unwrap(),
        ConversationId::new("c").unwrap(),
    );
    let (sender, receiver) = oneshot::channel();
    (Job::Delete(scope, sender), receiver)
}

#[test]
fn members_that_were_put_back_come_first_and_nothing_is_joined_to_them() {
    let queue = Queue::new(usize::MAX);
    let results = Arc::default();
    queue.push(behind(0, 1, Durability::Awaited, &results));
    queue.push(append("u", 9, 1, Durability::Awaited));
    let taken = queue.next(LONG).unwrap();
    let before = sizes(&queue);
    // A new line, whose numbers begin where they always do.
    queue.push(behind(1, 1, Durability::Awaited, &results));

    queue.put_back(taken);
    queue.push(behind(2, 1, Durability::Awaited, &results));

    assert_eq!(before, (0, 0, 0));
    assert_eq!(sizes(&queue).0, 3);
    let of = |jobs: Vec<Job>, tenant: &str| {
        let all = order(&jobs).into_iter().filter(|(of, _)| of == tenant);
        all.map(|(_, seq)| seq).collect::<Vec<_>>()
    };
    assert_eq!(of(queue.next(LONG).unwrap(), "t"), [1, 2]);
    assert_eq!(sizes(&queue), (0, 0, 0));
}

#[test]
fn one_tenant_has_a_bounded_number_of_deletions_waiting() {
    let queue = Queue::new(usize::MAX);
    let push = |tenant: &str| {
        let (job, mut answer) = delete(tenant);
        queue.push(job);
        answer.try_recv().ok()
    };

    let waiting = (0..3000).filter(|_| push("flood").is_none()).count();

    assert_eq!(waiting, TENANT_ERASURES_WAITING);
    assert_eq!(push("calm"), None);
    queue.push(append("flood", 1, 1, Durability::Awaited));
    while queue.lock().count > 0 {
        queue.next(LONG);
    }
    assert_eq!(queue.lock().erasures, 0);
    assert_eq!(push("flood"), None, "there is room again");
}

#[test]
fn what_comes_back_after_the_last_was_refused_is_refused_too() {
    let queue = Queue::new(usize::MAX);
    let (job, mut answer) = delete("t");
    queue.push(job);
    let taken = queue.next(LONG).unwrap();
    queue.abandon("closed");

    queue.put_back(taken);

    assert!(answer.try_recv().unwrap().is_err());
    assert!(queue.next(LONG).is_none());
}

#[test]
fn large_jobs_leave_time_to_other_tenants_that_have_work() {
    let queue = Queue::new(usize::MAX);
    let large = |seq| append("flood", seq, LARGE_BYTES, Durability::Awaited);
    let small = |seq| append("calm", seq, 1, Durability::Awaited);
    let begun = Instant::now();
    let after = |ms| begun + Duration::from_millis(ms);
    let next = |ms| match queue.lock().next(after(ms)) {
        Next::Commit(jobs) => order(&jobs),
        Next::Group(_) => vec![("wait".to_owned(), 0)],
        Next::End | Next::Idle => Vec::new(),
    };
    let is = |tenant: &str, seq| vec![(tenant.to_owned(), seq)];

    // Of one tenant alone they follow each other.
    (1..=5).for_each(|seq| queue.push(large(seq)));
    assert_eq!(
        (next(0).len(), next(20)),
        (3, vec![("flood".to_owned(), 4), ("flood".to_owned(), 5)])
    );

    (6..=9).for_each(|seq| queue.push(large(seq)));
    queue.push(small(1));
    // The last commit took 20 ms, so that the next one with a large job begins 40 ms later.
    assert_eq!(next(40), is("calm", 1));
    assert_eq!(next(50), is("wait", 0));
    queue.push(small(2));
    assert_eq!(next(79), is("calm", 2));
    assert_eq!(next(80).len(), 3, "those that wait share a commit");
    // However long a commit takes, the pause is short.
    queue.push(small(3));
    assert_eq!(next(400), is("calm", 3));
    assert_eq!((next(899), next(900)), (is("wait", 0), is("flood", 9)));
}
