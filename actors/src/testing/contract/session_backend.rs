//! The contract suite of journal stores.

mod damage;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{sync::mpsc, time::timeout};

use crate::{
    ids::{CallKey, ConversationId, Epoch, Scope, Seq, TenantId},
    journal::{Head, Loaded, StoredEntry},
    ports::{Append, AppendError, AppendExt, Durability, ListQuery, SessionBackend, StoreError},
    stream::Open,
    time::Timestamp,
};

pub use damage::{DamagedRow, session_backend_on_damage};

/// Longer than any store takes to answer.
const SOON: Duration = Duration::from_secs(30);

/// Runs the contract of [`SessionBackend`]. `make` creates an empty store.
///
/// # Panics
/// When the store breaks the contract.
pub async fn session_backend(make: impl AsyncFn() -> Arc<dyn SessionBackend>) {
    an_unknown_conversation_is_empty(&*make().await).await;
    entries_come_back_in_order_byte_for_byte(&*make().await).await;
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
    emptied_entries_keep_their_places_and_nothing_else(&*make().await).await;
    a_cut_journal_ends_there_and_goes_on(&*make().await).await;
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

async fn a_deleted_conversation_is_unknown_again(store: &dyn SessionBackend) {
    let gone = scope("t", "gone");
    let stays = scope("t", "stays");
    for scope in [&gone, &stays] {
        write_open(store, scope, Head::default(), 1, 5, Open::Running, None)
            .await
            .unwrap();
        store.snapshot(scope, Seq(3), "s".into()).await.unwrap();
    }

    assert_eq!(store.delete(&gone).await, Ok(true));

    assert_eq!(store.load(&gone).await, Ok(Loaded::default()));
    assert_eq!(store.entries(&gone, Seq(0), 10).await, Ok(vec![]));
    assert_eq!(
        store.list_open(Open::Running, None, None, 10).await,
        Ok(vec![stays.clone()])
    );
    assert_eq!(store.delete(&gone).await, Ok(false));
    assert_eq!(
        write(store, &gone, head(1, 5), 1, 6).await,
        conflict(&gone, Head::default()),
        "the old life is over"
    );
    write(store, &gone, Head::default(), 1, 1)
        .await
        .expect("the id may be used again");
    assert_eq!(
        store.load(&gone).await,
        Ok(Loaded {
            head: head(1, 1),
            snapshot: None,
            entries: entries(1, 1)
        })
    );
    assert_eq!(store.load(&stays).await.unwrap().entries, entries(4, 5));
}

async fn stored_bytes_follow_every_change(store: &dyn SessionBackend) {
    let (one, two, other) = (scope("t", "one"), scope("t", "two"), scope("u", "one"));
    let bytes = |first, last| {
        entries(first, last)
            .iter()
            .map(|entry| entry.bytes.len() as u64)
            .sum::<u64>()
    };
    let stored = async || store.stored_bytes(&one.tenant).await.unwrap();
    assert_eq!(stored().await, 0);

    write(store, &one, Head::default(), 1, 5).await.unwrap();
    write(store, &two, Head::default(), 1, 12).await.unwrap();
    write(store, &other, Head::default(), 1, 100).await.unwrap();
    assert_eq!(
        stored().await,
        bytes(1, 5) + bytes(1, 12),
        "another tenant's bytes are its own"
    );

    write(store, &one, head(1, 5), 1, 7).await.unwrap();
    assert!(write(store, &one, head(1, 5), 1, 9).await.is_err());
    assert_eq!(
        stored().await,
        bytes(1, 7) + bytes(1, 12),
        "a refused append counts for nothing"
    );

    store
        .snapshot(&one, Seq(3), vec![b'x'; 1000].into())
        .await
        .unwrap();
    store
        .snapshot(&one, Seq(7), vec![b'x'; 300].into())
        .await
        .unwrap();
    store
        .snapshot(&one, Seq(2), vec![b'x'; 5000].into())
        .await
        .unwrap();
    assert_eq!(
        stored().await,
        bytes(1, 7) + bytes(1, 12) + 300,
        "one snapshot is kept"
    );

    store.empty(&two, Seq(10)).await.unwrap();
    store.empty(&two, Seq(4)).await.unwrap();
    assert_eq!(stored().await, bytes(1, 7) + bytes(11, 12) + 300);

    store.delete(&one).await.unwrap();
    assert_eq!(stored().await, bytes(11, 12));
    store.erase(&one.tenant).await.unwrap();
    store.delete(&two).await.unwrap();
    assert_eq!(
        (
            stored().await,
            store.stored_bytes(&other.tenant).await.unwrap()
        ),
        (0, bytes(1, 100))
    );
}

async fn emptied_entries_keep_their_places_and_nothing_else(store: &dyn SessionBackend) {
    let (scope, stays) = (scope("t", "c"), scope("t", "stays"));
    for scope in [&scope, &stays] {
        write(store, scope, Head::default(), 1, 6).await.unwrap();
        store
            .snapshot(scope, Seq(4), "the state after 4".into())
            .await
            .unwrap();
    }

    store.empty(&scope, Seq(4)).await.unwrap();
    store
        .snapshot(&scope, Seq(3), "a late state".into())
        .await
        .unwrap();

    let mut left: Vec<StoredEntry> = (1..=4).map(|seq| entry(seq, "")).collect();
    left.extend(entries(5, 6));
    assert_eq!(
        store.load(&scope).await,
        Ok(Loaded {
            head: head(1, 6),
            snapshot: None,
            entries: left.clone()
        })
    );
    assert_eq!(store.entries(&scope, Seq(0), 10).await, Ok(left));
    write(store, &scope, head(1, 6), 1, 7)
        .await
        .expect("it goes on");
    store
        .snapshot(&scope, Seq(6), "the state after 6".into())
        .await
        .unwrap();
    store.empty(&scope, Seq(2)).await.unwrap();
    let after = Loaded {
        head: head(1, 7),
        snapshot: Some((Seq(6), "the state after 6".into())),
        entries: entries(7, 7),
    };
    assert_eq!(store.load(&scope).await, Ok(after));
    assert_eq!(
        store.load(&stays).await.unwrap().snapshot,
        Some((Seq(4), "the state after 4".into()))
    );
    store
        .empty(&self::scope("t", "unknown"), Seq(4))
        .await
        .expect("an unknown conversation has nothing to empty");
    assert_eq!(
        store.head(&self::scope("t", "unknown")).await,
        Ok(Head::default())
    );
}

async fn a_cut_journal_ends_there_and_goes_on(store: &dyn SessionBackend) {
    let scope = scope("t", "c");
    write_open(store, &scope, Head::default(), 1, 4, Open::Running, None)
        .await
        .unwrap();
    write_open(store, &scope, head(1, 4), 2, 6, Open::Running, None)
        .await
        .unwrap();
    for upto in [3, 5] {
        let state = store.snapshot(&scope, Seq(upto), "a state".into());
        state.await.unwrap();
    }
    store
        .mark_failed(&scope, Some("entry 5 is damaged".into()))
        .await
        .unwrap();
    let stored = async || store.stored_bytes(&scope.tenant).await.unwrap();

    store.cut(&scope, head(1, 4), Open::Parked).await.unwrap();

    let left = Loaded {
        head: head(1, 4),
        snapshot: None,
        entries: entries(1, 4),
    };
    assert_eq!(store.load(&scope).await, Ok(left));
    let listed = store.list(&scope.tenant, ListQuery::default());
    let listed = listed.await.unwrap().remove(0);
    assert_eq!(
        (listed.head, listed.open, listed.failed),
        (head(1, 4), Open::Parked, None)
    );
    assert_eq!(
        stored().await,
        entries(1, 4)
            .iter()
            .map(|entry| entry.bytes.len() as u64)
            .sum::<u64>()
    );
    write(store, &scope, head(1, 4), 2, 5)
        .await
        .expect("it goes on");
    let beyond = store.cut(&scope, head(2, 9), Open::None).await;
    assert!(beyond.is_err(), "there is no entry to end at");
    assert_eq!(store.head(&scope).await, Ok(head(2, 5)));

    store
        .cut(&scope, Head::default(), Open::None)
        .await
        .unwrap();
    assert_eq!(store.load(&scope).await, Ok(Loaded::default()));
    assert_eq!(stored().await, 0);
    assert_eq!(
        store.cut(&scope, Head::default(), Open::None).await,
        Err(StoreError::NotFound)
    );
}

async fn lists_are_paged_in_order(store: &dyn SessionBackend) {
    let tenant = TenantId::new("t").unwrap();
    let names: Vec<String> = (0..25).map(|n| format!("c{n:02}")).collect();
    for name in names.iter().rev() {
        let open = if name.ends_with('5') {
            Open::Parked
        } else {
            Open::None
        };
        let wake_at = (open == Open::Parked).then_some(Timestamp(77));
        write_open(
            store,
            &scope("t", name),
            Head::default(),
            1,
            2,
            open,
            wake_at,
        )
        .await
        .unwrap();
    }
    write(store, &scope("s", "other"), Head::default(), 1, 1)
        .await
        .unwrap();
    write(store, &scope("u", "other"), Head::default(), 1, 1)
        .await
        .unwrap();

    let mut listed = Vec::new();
    let mut after = None;
    loop {
        let page = store
            .list(
                &tenant,
                ListQuery {
                    after: after.clone(),
                    count: 10,
                    open: None,
                    subagents: false,
                },
            )
            .await
            .unwrap();
        assert!(page.len() <= 10);
        let Some(last) = page.last() else { break };
        after = Some(last.conversation.clone());
        listed.extend(page);
    }

    assert_eq!(
        listed
            .iter()
            .map(|row| row.conversation.as_str().to_owned())
            .collect::<Vec<_>>(),
        names
    );
    for row in &listed {
        assert_eq!((row.head, row.failed.as_deref()), (head(1, 2), None));
        assert!(row.created_at <= row.updated_at);
        assert_eq!(
            row.wake_at,
            (row.open == Open::Parked).then_some(Timestamp(77))
        );
    }
    assert_eq!(
        store.list(&tenant, ListQuery::default()).await.unwrap(),
        listed,
        "0 is 1000"
    );
    assert_eq!(store.count(&tenant).await, Ok(listed.len() as u64));
    assert_eq!(store.count(&TenantId::new("unknown").unwrap()).await, Ok(0));
    let of = async |after: &str, open| {
        let after = Some(ConversationId::new(after).unwrap());
        let rows = store
            .list(
                &tenant,
                ListQuery {
                    after,
                    count: 2,
                    open: Some(open),
                    subagents: false,
                },
            )
            .await
            .unwrap();
        rows.into_iter()
            .map(|row| row.conversation.as_str().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(of("c", Open::Parked).await, ["c05", "c15"]);
    assert_eq!(of("c05", Open::Parked).await, ["c15"]);
    assert_eq!(of("c04", Open::None).await, ["c06", "c07"]);
}

async fn lists_leave_out_subagents_unless_they_are_asked_for(store: &dyn SessionBackend) {
    let tenant = TenantId::new("families").unwrap();
    let of = |name: &str, seq| CallKey {
        scope: Scope::new(tenant.clone(), name.parse().unwrap()),
        seq: Seq(seq),
        index: 0,
    };
    let first = of("c-1", 3);
    let other = of("zz", 3);
    let mut children = vec![
        first.child().conversation,
        of("c-1", 5).child().conversation,
    ];
    children.sort();
    for id in [
        "c-1".parse().unwrap(),
        other.child().conversation,
        "zz".parse().unwrap(),
    ]
    .iter()
    .chain(&children)
    {
        write(
            store,
            &Scope::new(tenant.clone(), id.clone()),
            Head::default(),
            1,
            1,
        )
        .await
        .unwrap();
    }
    let ids = async |query| {
        store
            .list(&tenant, query)
            .await
            .unwrap()
            .into_iter()
            .map(|row| row.conversation)
            .collect::<Vec<_>>()
    };

    let shown: Vec<ConversationId> = ids(ListQuery::default()).await;
    let all = ids(ListQuery {
        subagents: true,
        ..ListQuery::default()
    })
    .await;
    let after = Some(first.scope.conversation.children());
    let behind = ids(ListQuery {
        after,
        subagents: true,
        count: 2,
        ..ListQuery::default()
    })
    .await;

    assert_eq!(shown, ["c-1".parse().unwrap(), "zz".parse().unwrap()]);
    assert_eq!((all.len(), store.count(&tenant).await), (5, Ok(5)));
    assert_eq!(
        behind, children,
        "those of one parent stand together, behind its prefix"
    );
}

async fn open_conversations_are_found_across_tenants(store: &dyn SessionBackend) {
    let wakes = [
        ("a", "r", Open::Running, None),
        ("a", "p1", Open::Parked, Some(10)),
        ("b", "p1", Open::Parked, Some(20)),
    ];
    let more = [
        ("b", "p2", Open::Parked, None),
        ("b", "r", Open::Running, None),
        ("c", "n", Open::None, None),
    ];
    for (tenant, name, open, wake_at) in wakes.into_iter().chain(more) {
        write_open(
            store,
            &scope(tenant, name),
            Head::default(),
            1,
            1,
            open,
            wake_at.map(Timestamp),
        )
        .await
        .unwrap();
    }
    let find = async |open, due: Option<u64>, after, count| {
        store
            .list_open(open, due.map(Timestamp), after, count)
            .await
            .unwrap()
    };

    assert_eq!(
        find(Open::Running, None, None, 0).await,
        [scope("a", "r"), scope("b", "r")]
    );
    assert_eq!(
        find(Open::Running, None, Some(scope("a", "r")), 10).await,
        [scope("b", "r")]
    );
    assert_eq!(
        find(Open::Parked, None, None, 2).await,
        [scope("a", "p1"), scope("b", "p1")]
    );
    assert_eq!(
        find(Open::Parked, None, Some(scope("b", "p1")), 2).await,
        [scope("b", "p2")]
    );
    assert_eq!(find(Open::Parked, Some(9), None, 10).await, []);
    assert_eq!(
        find(Open::Parked, Some(10), None, 10).await,
        [scope("a", "p1")]
    );
    assert_eq!(
        find(Open::Parked, Some(99), None, 10).await,
        [scope("a", "p1"), scope("b", "p1")],
        "no wake_at is never due"
    );
    assert_eq!(find(Open::None, None, None, 10).await, [scope("c", "n")]);

    write_open(
        store,
        &scope("a", "r"),
        head(1, 1),
        1,
        2,
        Open::Parked,
        Some(Timestamp(5)),
    )
    .await
    .unwrap();
    write(store, &scope("b", "r"), head(1, 1), 1, 2)
        .await
        .unwrap();
    write_open(
        store,
        &scope("a", "p1"),
        head(1, 1),
        1,
        2,
        Open::Parked,
        Some(Timestamp(100)),
    )
    .await
    .unwrap();

    assert_eq!(
        find(Open::Running, None, None, 10).await,
        [],
        "the state is that of the last append"
    );
    assert_eq!(
        find(Open::Parked, Some(99), None, 10).await,
        [scope("a", "r"), scope("b", "p1")]
    );
}

async fn a_failed_mark_is_seen_and_cleared(store: &dyn SessionBackend) {
    let scope = scope("t", "c");
    write_open(store, &scope, Head::default(), 1, 1, Open::Running, None)
        .await
        .unwrap();
    let failed = async || {
        store
            .list(&scope.tenant, ListQuery::default())
            .await
            .unwrap()[0]
            .failed
            .clone()
    };

    store
        .mark_failed(&scope, Some("entry 1 is damaged".into()))
        .await
        .unwrap();
    assert_eq!(failed().await.as_deref(), Some("entry 1 is damaged"));
    assert_eq!(
        store.list_open(Open::Running, None, None, 10).await,
        Ok(vec![]),
        "no host resumes what cannot be read"
    );
    assert_eq!(
        store.load(&scope).await.unwrap().entries,
        entries(1, 1),
        "what is readable stays so"
    );

    store.mark_failed(&scope, None).await.unwrap();
    assert_eq!(failed().await, None);
    assert_eq!(
        store.list_open(Open::Running, None, None, 10).await,
        Ok(vec![scope.clone()])
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
