//! The contract suite of journal stores.

mod damage;
mod fence;
mod lists;
mod outbox;
mod owners;
mod shortened;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{sync::mpsc, time::timeout};

use crate::{
    ids::{ConversationId, Epoch, Scope, Seq, TenantId},
    journal::{Head, Loaded, StoredEntry},
    ports::{Append, AppendError, AppendExt, Durability, ListQuery, SessionBackend, StoreError},
    stream::Open,
    time::Timestamp,
};

pub use damage::{DamagedRow, session_backend_on_damage};
pub use fence::{FenceBounds, FenceHosts, explore_fence};
use lists::{
    a_failed_mark_is_seen_and_cleared, lists_are_paged_in_order,
    lists_leave_out_subagents_unless_they_are_asked_for,
    open_conversations_are_found_across_tenants,
};
pub use owners::{TwoHosts, session_owners};
use shortened::{
    a_cut_journal_ends_there_and_goes_on, a_deleted_conversation_is_unknown_again,
    a_deleted_long_conversation_leaves_nothing,
    a_long_journal_is_emptied_whole_and_again_after_a_cut,
    emptied_entries_keep_their_places_and_nothing_else,
    spending_is_summed_for_each_tenant_until_it_is_erased, stored_bytes_follow_every_change,
};

/// Longer than any store takes to answer.
const SOON: Duration = Duration::from_secs(30);

/// Runs the contract of [`SessionBackend`]. `make` creates an empty store.
///
/// # Panics
/// When the store breaks the contract.
pub async fn session_backend(make: impl AsyncFn() -> Arc<dyn SessionBackend>) {
    an_unknown_conversation_is_empty(&*make().await).await;
    entries_come_back_in_order_byte_for_byte(&*make().await).await;
    pages_of_large_entries_lead_to_the_end_of_the_journal(&*make().await).await;
    an_append_elsewhere_is_a_conflict_with_the_head(&*make().await).await;
    a_stale_life_cannot_write(&*make().await).await;
    a_malformed_append_is_refused(&*make().await).await;
    a_batch_is_stored_whole_or_not_at_all(&*make().await).await;
    appends_are_answered_in_their_order(&*make().await).await;
    after_a_failed_append_later_ones_of_the_life_fail(&*make().await).await;
    tenants_with_the_same_ids_are_apart(&*make().await).await;
    a_snapshot_comes_with_all_entries_after_it(&*make().await).await;
    a_doubtful_snapshot_is_ignored(&*make().await).await;
    a_deleted_conversation_is_unknown_again(&*make().await).await;
    stored_bytes_follow_every_change(&*make().await).await;
    spending_is_summed_for_each_tenant_until_it_is_erased(&*make().await).await;
    emptied_entries_keep_their_places_and_nothing_else(&*make().await).await;
    a_long_journal_is_emptied_whole_and_again_after_a_cut(&*make().await).await;
    a_deleted_long_conversation_leaves_nothing(&*make().await).await;
    a_cut_journal_ends_there_and_goes_on(&*make().await).await;
    outbox::messages_wait_until_they_are_settled(&*make().await).await;
    outbox::messages_go_with_their_conversation(&*make().await).await;
    lists_leave_out_subagents_unless_they_are_asked_for(&*make().await).await;
    lists_are_paged_in_order(&*make().await).await;
    open_conversations_are_found_across_tenants(&*make().await).await;
    a_failed_mark_is_seen_and_cleared(&*make().await).await;
    every_append_is_answered_once_on_close(&*make().await).await;
    every_append_is_answered_once_on_drop(make().await).await;
    concurrent_lives_have_one_winner_an_epoch(make().await).await;
}

/// The scope of a tenant and a conversation.
fn scope(tenant: &str, conversation: &str) -> Scope {
    Scope::new(
        TenantId::new(tenant).unwrap(),
        ConversationId::new(conversation).unwrap(),
    )
}

fn head(epoch: u64, seq: u64) -> Head {
    Head {
        epoch: Epoch(epoch),
        seq: Seq(seq),
    }
}

fn entry(seq: u64, text: impl Into<Bytes>) -> StoredEntry {
    StoredEntry {
        seq: Seq(seq),
        bytes: text.into(),
    }
}

/// The entries from `first` to `last`; each contains its number.
fn entries(first: u64, last: u64) -> Vec<StoredEntry> {
    (first..=last)
        .map(|seq| entry(seq, format!("{{\"n\":{seq}}}")))
        .collect()
}

/// Appends entries with the sequence numbers from `expected.seq + 1` to `last`.
async fn write(
    store: &dyn SessionBackend,
    scope: &Scope,
    expected: Head,
    epoch: u64,
    last: u64,
) -> Result<(), AppendError> {
    write_open(store, scope, expected, epoch, last, Open::None, None).await
}

async fn write_open(
    store: &dyn SessionBackend,
    scope: &Scope,
    expected: Head,
    epoch: u64,
    last: u64,
    open: Open,
    wake_at: Option<Timestamp>,
) -> Result<(), AppendError> {
    let (reply, mut answers) = mpsc::unbounded_channel();
    let done = Box::new(move |result| drop(reply.send(result)));
    let entries = entries(expected.seq.0 + 1, last);
    let scope = scope.clone();
    let epoch = Epoch(epoch);
    let durability = Durability::Awaited;
    store.append(Append {
        scope,
        expected,
        epoch,
        entries,
        open,
        wake_at,
        messages: Vec::new(),
        durability,
        done,
    });
    timeout(SOON, answers.recv())
        .await
        .expect("an append is answered")
        .expect("an append is answered")
}

fn conflict(scope: &Scope, found: Head) -> Result<(), AppendError> {
    Err(AppendError::Conflict {
        scope: scope.clone(),
        found,
    })
}

async fn an_unknown_conversation_is_empty(store: &dyn SessionBackend) {
    let scope = scope("t", "unknown");

    assert_eq!(store.head(&scope).await, Ok(Head::default()));
    assert_eq!(store.load(&scope).await, Ok(Loaded::default()));
    assert_eq!(store.entries(&scope, Seq(0), 10).await, Ok(vec![]));
    assert_eq!(store.delete(&scope).await, Ok(false));
    assert_eq!(
        store.list(&scope.tenant, ListQuery::default()).await,
        Ok(vec![])
    );
    assert_eq!(
        store.list_open(Open::Running, None, None, 10).await,
        Ok(vec![])
    );
    assert_eq!(
        store.mark_failed(&scope, Some("x".into())).await,
        Err(StoreError::NotFound)
    );
}

async fn entries_come_back_in_order_byte_for_byte(store: &dyn SessionBackend) {
    let scope = scope("t", "c");
    let odd = [
        &b""[..],
        b"\0\xff\xfe not text",
        "{\"text\":\"汉 \\u0000\"}".as_bytes(),
        b"{\"n\": 1.0, \"a\":[ ]}",
    ];
    let mut all: Vec<_> = odd
        .into_iter()
        .zip(1..)
        .map(|(bytes, seq)| entry(seq, Bytes::copy_from_slice(bytes)))
        .collect();
    all.push(entry(5, vec![b'x'; 300 * 1024]));
    all.extend(entries(6, 12));

    store
        .append_and_wait(
            &scope,
            Head::default(),
            Epoch(1),
            all[..5].to_vec(),
            Open::None,
        )
        .await
        .unwrap();
    store
        .append_and_wait(&scope, head(1, 5), Epoch(1), all[5..].to_vec(), Open::None)
        .await
        .unwrap();

    assert_eq!(store.head(&scope).await, Ok(head(1, 12)));
    assert_eq!(
        store.load(&scope).await,
        Ok(Loaded {
            head: head(1, 12),
            snapshot: None,
            entries: all.clone()
        })
    );
    assert_eq!(
        store.entries(&scope, Seq(0), usize::MAX).await.unwrap(),
        all
    );
    assert_eq!(
        store.entries(&scope, Seq(4), 3).await.unwrap(),
        all[4..7],
        "after is exclusive, count a bound"
    );
    assert_eq!(store.entries(&scope, Seq(12), 3).await, Ok(vec![]));
    assert_eq!(store.entries(&scope, Seq(u64::MAX), 3).await, Ok(vec![]));
}

/// A page may end before `count` entries, but the pages together hold every entry once.
async fn pages_of_large_entries_lead_to_the_end_of_the_journal(store: &dyn SessionBackend) {
    let scope = scope("t", "c");
    let large = |seq: u64| entry(seq, vec![b'x'; 3 * 1024 * 1024]);
    let all: Vec<_> = (1..=8).map(large).chain(entries(9, 12)).collect();
    store
        .append_and_wait(&scope, Head::default(), Epoch(1), all.clone(), Open::None)
        .await
        .unwrap();

    let mut read = Vec::new();
    while let after = Seq(read.len() as u64)
        && let page = store.entries(&scope, after, 1000).await.unwrap()
        && !page.is_empty()
    {
        read.extend(page);
    }

    assert!(read == all);
    assert_eq!(store.load(&scope).await.unwrap().entries.len(), 12);
}

async fn an_append_elsewhere_is_a_conflict_with_the_head(store: &dyn SessionBackend) {
    let scope = scope("t", "c");
    assert_eq!(
        write(store, &scope, head(1, 3), 1, 4).await,
        conflict(&scope, Head::default()),
        "nothing is there"
    );
    assert_eq!(
        store.list(&scope.tenant, ListQuery::default()).await,
        Ok(vec![]),
        "a refused append leaves no trace"
    );
    write(store, &scope, Head::default(), 1, 3).await.unwrap();

    assert_eq!(
        write(store, &scope, head(1, 2), 1, 4).await,
        conflict(&scope, head(1, 3)),
        "behind"
    );
    assert_eq!(
        write(store, &scope, head(1, 4), 1, 5).await,
        conflict(&scope, head(1, 3)),
        "ahead"
    );
    assert_eq!(
        write(store, &scope, Head::default(), 1, 1).await,
        conflict(&scope, head(1, 3)),
        "as if new"
    );

    assert_eq!(store.load(&scope).await.unwrap().entries, entries(1, 3));
}

async fn a_stale_life_cannot_write(store: &dyn SessionBackend) {
    let scope = scope("t", "c");
    write(store, &scope, Head::default(), 1, 2).await.unwrap();

    write(store, &scope, head(1, 2), 2, 3)
        .await
        .expect("the first append of a life sets its epoch");

    assert_eq!(store.head(&scope).await, Ok(head(2, 3)));
    assert_eq!(
        write(store, &scope, head(1, 2), 1, 3).await,
        conflict(&scope, head(2, 3)),
        "the old life"
    );
    assert_eq!(
        write(store, &scope, head(1, 3), 1, 4).await,
        conflict(&scope, head(2, 3)),
        "the old life at the right seq"
    );
    assert_eq!(
        write(store, &scope, head(1, 2), 2, 3).await,
        conflict(&scope, head(2, 3)),
        "another life that wanted the same epoch"
    );
    assert_eq!(
        write(store, &scope, head(2, 3), 1, 4).await,
        conflict(&scope, head(2, 3)),
        "backwards"
    );
    assert_eq!(
        write(store, &scope, head(2, 3), 4, 4).await,
        conflict(&scope, head(2, 3)),
        "two at once"
    );
    write(store, &scope, head(2, 3), 2, 4)
        .await
        .expect("the living one goes on");
}

async fn a_malformed_append_is_refused(store: &dyn SessionBackend) {
    let scope = scope("t", "c");
    write(store, &scope, Head::default(), 1, 2).await.unwrap();
    let gap = vec![entry(3, "a"), entry(5, "b")];
    let twice = vec![entry(3, "a"), entry(3, "b")];
    let early = vec![entry(2, "a")];
    let late = vec![entry(4, "a")];

    for batch in [gap, twice, early, late, vec![]] {
        let result = store
            .append_and_wait(&scope, head(1, 2), Epoch(1), batch.clone(), Open::None)
            .await;
        assert_eq!(result, conflict(&scope, head(1, 2)), "{batch:?}");
    }

    assert_eq!(
        store.load(&scope).await,
        Ok(Loaded {
            head: head(1, 2),
            snapshot: None,
            entries: entries(1, 2)
        })
    );
}

async fn a_batch_is_stored_whole_or_not_at_all(store: &dyn SessionBackend) {
    let scope = scope("t", "c");
    write(store, &scope, Head::default(), 1, 2).await.unwrap();
    let mut batch = entries(3, 9);
    batch.push(entry(11, "a gap at the end"));

    let result = store
        .append_and_wait(&scope, head(1, 2), Epoch(2), batch, Open::Running)
        .await;

    assert_eq!(result, conflict(&scope, head(1, 2)));
    assert_eq!(
        store.load(&scope).await,
        Ok(Loaded {
            head: head(1, 2),
            snapshot: None,
            entries: entries(1, 2)
        })
    );
    assert_eq!(
        store.list_open(Open::Running, None, None, 10).await,
        Ok(vec![])
    );
}

/// Starts appends of one entry each, for `first..=last`, without waiting. Results arrive as (seq,
/// result).
fn pour(
    store: &dyn SessionBackend,
    scope: &Scope,
    first: u64,
    last: u64,
) -> mpsc::UnboundedReceiver<(u64, Result<(), AppendError>)> {
    let (reply, answers) = mpsc::unbounded_channel();
    for seq in first..=last {
        let reply = reply.clone();
        let epoch = u64::from(seq > 1);
        store.append(Append {
            scope: scope.clone(),
            expected: head(epoch, seq - 1),
            epoch: Epoch(1),
            entries: entries(seq, seq),
            open: Open::None,
            wake_at: None,
            messages: Vec::new(),
            durability: if seq % 3 == 0 {
                Durability::Awaited
            } else {
                Durability::Deferred
            },
            done: Box::new(move |result| drop(reply.send((seq, result)))),
        });
    }
    answers
}

/// All results, up to the drop of the last callback.
async fn all_results<T>(mut answers: mpsc::UnboundedReceiver<T>) -> Vec<T> {
    let mut all = Vec::new();
    while let Some(one) = timeout(SOON, answers.recv())
        .await
        .expect("every append is answered, and its sender dropped")
    {
        all.push(one);
    }
    all
}

async fn appends_are_answered_in_their_order(store: &dyn SessionBackend) {
    const COUNT: u64 = 600;
    let scope = scope("t", "c");

    let results = all_results(pour(store, &scope, 1, COUNT)).await;

    assert_eq!(
        results,
        (1..=COUNT).map(|seq| (seq, Ok(()))).collect::<Vec<_>>()
    );
    assert_eq!(store.load(&scope).await.unwrap().entries, entries(1, COUNT));
}

async fn after_a_failed_append_later_ones_of_the_life_fail(store: &dyn SessionBackend) {
    let scope = scope("t", "c");
    write(store, &scope, Head::default(), 1, 2).await.unwrap();

    // The activation assumes that entry 3 is stored. Its next appends build on one another, and
    // none of them may be stored.
    let results = all_results(pour(store, &scope, 4, 8)).await;

    assert_eq!(
        results,
        (4..=8)
            .map(|seq| (seq, conflict(&scope, head(1, 2))))
            .collect::<Vec<_>>()
    );
    assert_eq!(store.load(&scope).await.unwrap().entries, entries(1, 2));
}

async fn tenants_with_the_same_ids_are_apart(store: &dyn SessionBackend) {
    let a = scope("a", "c");
    let b = scope("b", "c");
    write(store, &a, Head::default(), 1, 2).await.unwrap();

    assert_eq!(store.load(&b).await, Ok(Loaded::default()));
    write(store, &b, Head::default(), 1, 5)
        .await
        .expect("b begins at the start");
    store.snapshot(&b, Seq(5), "b".into()).await.unwrap();
    store.mark_failed(&b, Some("b".into())).await.unwrap();

    assert_eq!(
        store.load(&a).await,
        Ok(Loaded {
            head: head(1, 2),
            snapshot: None,
            entries: entries(1, 2)
        })
    );
    let listed = store.list(&a.tenant, ListQuery::default()).await.unwrap();
    assert_eq!(
        listed
            .iter()
            .map(|row| (row.head, row.failed.clone()))
            .collect::<Vec<_>>(),
        [(head(1, 2), None)]
    );
    assert_eq!(store.delete(&b).await, Ok(true));
    assert_eq!(store.head(&a).await, Ok(head(1, 2)));
}

async fn a_snapshot_comes_with_all_entries_after_it(store: &dyn SessionBackend) {
    let scope = scope("t", "c");
    write(store, &scope, Head::default(), 1, 5).await.unwrap();
    let snapshot = Bytes::from_static(b"\0state at 3");

    store
        .snapshot(&scope, Seq(3), snapshot.clone())
        .await
        .unwrap();
    write(store, &scope, head(1, 5), 1, 7).await.unwrap();

    let loaded = store.load(&scope).await.unwrap();
    assert_eq!(
        loaded,
        Loaded {
            head: head(1, 7),
            snapshot: Some((Seq(3), snapshot)),
            entries: entries(4, 7)
        }
    );
    assert_eq!(
        store.entries(&scope, Seq(0), 100).await.unwrap(),
        entries(1, 7),
        "entries are never deleted because of a snapshot"
    );

    store.snapshot(&scope, Seq(7), "at 7".into()).await.unwrap();
    let loaded = store.load(&scope).await.unwrap();
    assert_eq!(
        loaded,
        Loaded {
            head: head(1, 7),
            snapshot: Some((Seq(7), "at 7".into())),
            entries: vec![]
        }
    );
}

async fn a_doubtful_snapshot_is_ignored(store: &dyn SessionBackend) {
    let scope = scope("t", "c");
    store
        .snapshot(&scope, Seq(1), "of an unknown conversation".into())
        .await
        .unwrap();
    assert_eq!(store.load(&scope).await, Ok(Loaded::default()));
    write(store, &scope, Head::default(), 1, 5).await.unwrap();

    store
        .snapshot(&scope, Seq(6), "ahead".into())
        .await
        .unwrap();
    assert_eq!(store.load(&scope).await.unwrap().snapshot, None);
    store.snapshot(&scope, Seq(4), "good".into()).await.unwrap();
    store.snapshot(&scope, Seq(2), "late".into()).await.unwrap();

    let loaded = store.load(&scope).await.unwrap();
    assert_eq!(
        loaded,
        Loaded {
            head: head(1, 5),
            snapshot: Some((Seq(4), "good".into())),
            entries: entries(5, 5)
        }
    );
}

async fn every_append_is_answered_once_on_close(store: &dyn SessionBackend) {
    let results = pour(store, &scope("t", "c"), 1, 100);

    store.close(SOON).await.unwrap();

    // A callback cannot run twice (it is an `FnOnce`); one that was dropped without a call would be
    // missing here.
    assert_eq!(
        all_results(results).await,
        (1..=100).map(|seq| (seq, Ok(()))).collect::<Vec<_>>(),
        "what was queued is written"
    );
    let late = write(store, &scope("t", "d"), Head::default(), 1, 1).await;
    assert!(
        matches!(late, Err(AppendError::Unavailable { .. })),
        "{late:?}"
    );
    store.close(SOON).await.expect("closing twice is no error");
}

async fn every_append_is_answered_once_on_drop(store: Arc<dyn SessionBackend>) {
    let results = pour(&*store, &scope("t", "c"), 1, 100);

    drop(store);

    let results = all_results(results).await;
    assert_eq!(
        results.iter().map(|(seq, _)| *seq).collect::<Vec<_>>(),
        (1..=100).collect::<Vec<_>>()
    );
}

async fn concurrent_lives_have_one_winner_an_epoch(store: Arc<dyn SessionBackend>) {
    const LIVES: u64 = 8;
    let scope = scope("t", "c");
    for epoch in 1..=20 {
        let expected = head(epoch - 1, epoch - 1);
        let lives: Vec<_> = (0..LIVES)
            .map(|_| {
                let store = Arc::clone(&store);
                let scope = scope.clone();
                tokio::spawn(async move { write(&*store, &scope, expected, epoch, epoch).await })
            })
            .collect();
        let mut won = 0;
        for life in lives {
            match life.await.unwrap() {
                Ok(()) => won += 1,
                Err(error) => assert_eq!(Err(error), conflict(&scope, head(epoch, epoch))),
            }
        }
        assert_eq!(won, 1, "epoch {epoch}");
    }
    assert_eq!(store.load(&scope).await.unwrap().entries, entries(1, 20));
}
