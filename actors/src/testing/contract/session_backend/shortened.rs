//! Journals that become shorter: deleted, emptied and cut conversations, and the bytes that they keep.

use super::{conflict, entries, entry, head, scope, write, write_open};
use crate::{
    ids::{Epoch, Seq},
    journal::{Head, Loaded, StoredEntry},
    policy::Amount,
    ports::{AppendExt, ListQuery, SessionBackend, StoreError},
    stream::Open,
};

pub(super) async fn a_deleted_conversation_is_unknown_again(store: &dyn SessionBackend) {
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
    // The epochs of a new journal are later, for they begin with the time.
    write(store, &gone, Head::default(), 2, 1)
        .await
        .expect("the id may be used again");
    assert_eq!(
        store.load(&gone).await,
        Ok(Loaded {
            head: head(2, 1),
            snapshot: None,
            entries: entries(1, 1)
        })
    );
    assert_eq!(store.load(&stays).await.unwrap().entries, entries(4, 5));
}

pub(super) async fn stored_bytes_follow_every_change(store: &dyn SessionBackend) {
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

pub(super) async fn emptied_entries_keep_their_places_and_nothing_else(store: &dyn SessionBackend) {
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

pub(super) async fn a_long_journal_is_emptied_whole_and_again_after_a_cut(
    store: &dyn SessionBackend,
) {
    let scope = scope("t", "c");
    let stored = async || store.stored_bytes(&scope.tenant).await.unwrap();
    let kept = async || store.load(&scope).await.unwrap().entries;
    let emptied = |last| (1..=last).map(|seq| entry(seq, "")).collect::<Vec<_>>();
    write(store, &scope, Head::default(), 1, 1700)
        .await
        .unwrap();
    let large = vec![entry(1701, vec![b'x'; 3 << 20]), entry(1702, "the last")];
    store
        .append_and_wait(&scope, head(1, 1700), Epoch(1), large, Open::None)
        .await
        .unwrap();

    store.empty(&scope, Seq(1701)).await.unwrap();

    let mut expected = emptied(1701);
    expected.push(entry(1702, "the last"));
    assert_eq!(kept().await, expected);
    assert_eq!(stored().await, 8);
    store.empty(&scope, Seq(1701)).await.unwrap();
    assert_eq!((kept().await, stored().await), (expected, 8));

    // Entries that take the places of emptied ones are no emptied ones.
    store.cut(&scope, head(1, 3), Open::None).await.unwrap();
    write(store, &scope, head(1, 3), 1, 5).await.unwrap();
    let state = store.snapshot(&scope, Seq(4), "the state after 4".into());
    state.await.unwrap();
    let loaded = store.load(&scope).await.unwrap();
    assert_eq!(loaded.snapshot, Some((Seq(4), "the state after 4".into())));
    assert_eq!(loaded.entries, entries(5, 5));
    store.empty(&scope, Seq(9)).await.unwrap();
    assert_eq!((kept().await, stored().await), (emptied(5), 0));
}

pub(super) async fn a_deleted_long_conversation_leaves_nothing(store: &dyn SessionBackend) {
    let (long, large) = (scope("t", "long"), scope("t", "large"));
    write(store, &long, Head::default(), 1, 1700).await.unwrap();
    let body = vec![entry(1, vec![b'x'; 3 << 20]), entry(2, "the last")];
    store
        .append_and_wait(&large, Head::default(), Epoch(1), body, Open::Running)
        .await
        .unwrap();
    let stored = async || store.stored_bytes(&long.tenant).await.unwrap();

    let deleted = tokio::join!(store.delete(&long), store.delete(&large));

    assert_eq!(deleted, (Ok(true), Ok(true)));
    assert_eq!(stored().await, 0);
    for scope in [&long, &large] {
        assert_eq!(store.load(scope).await, Ok(Loaded::default()));
        assert_eq!(store.delete(scope).await, Ok(false));
        write(store, scope, Head::default(), 2, 2).await.unwrap();
        assert_eq!(store.load(scope).await.unwrap().entries, entries(1, 2));
    }
}

pub(super) async fn a_cut_journal_ends_there_and_goes_on(store: &dyn SessionBackend) {
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

/// A store that keeps no sums says so each time.
pub(super) async fn spending_is_summed_for_each_tenant_until_it_is_erased(
    store: &dyn SessionBackend,
) {
    let (one, other) = (scope("t", "one").tenant, scope("u", "one").tenant);
    let amount = |tokens, micro_usd, wall_ms| Amount {
        tokens,
        micro_usd,
        wall_ms,
    };
    if store
        .spend(&one, Amount::default())
        .await
        .unwrap()
        .is_none()
    {
        let again = store.spend(&one, amount(1, 1, 1)).await.unwrap();
        assert_eq!(again, None);
        return;
    }
    let spend = async |tenant, amount| store.spend(tenant, amount).await.unwrap().unwrap();

    assert_eq!(spend(&one, amount(1, 2, 3)).await, amount(1, 2, 3));
    assert_eq!(spend(&other, amount(10, 0, 0)).await, amount(10, 0, 0));
    assert_eq!(spend(&one, amount(4, 5, 0)).await, amount(5, 7, 3));
    let read = spend(&one, Amount::default()).await;
    assert_eq!(read, amount(5, 7, 3), "nothing is added by a read");

    spend(&one, amount(u64::MAX, 0, 0)).await;
    let full = spend(&one, amount(1, 1, 1)).await;
    assert!(
        full.tokens >= i64::MAX as u64,
        "a sum never wraps: {full:?}"
    );
    assert_eq!((full.micro_usd, full.wall_ms), (8, 4));

    store.erase(&one).await.unwrap();
    assert_eq!(spend(&one, Amount::default()).await, Amount::default());
    assert_eq!(spend(&other, Amount::default()).await, amount(10, 0, 0));
}
