//! The part of the contract for stores on a medium that can be damaged.

use super::{entries, head, scope, write};
use crate::{
    ids::Seq,
    journal::{Head, Loaded},
    ports::{SessionBackend, StoreError},
    stream::Open,
};

/// What a store is asked to damage on its medium, in the conversation `t/c`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DamagedRow {
    /// Changes one bit of the bytes of this entry.
    Entry(Seq),
    /// Changes one bit of the bytes of the snapshot.
    Snapshot,
}

/// Runs the part of the contract that concerns stores on a medium that can be damaged. `make` creates
/// an empty store; `damage` changes it behind its back.
///
/// # Panics
/// When the store breaks the contract.
pub async fn session_backend_on_damage<S: SessionBackend>(
    make: impl AsyncFn() -> S,
    damage: impl AsyncFn(&S, DamagedRow),
) {
    let store = make().await;
    let (scope, other) = (scope("t", "c"), scope("t", "other"));
    for scope in [&scope, &other] {
        write(&store, scope, Head::default(), 1, 6).await.unwrap();
    }
    let state = async || {
        let state = store.snapshot(&scope, Seq(4), "the state after 4".into());
        state.await.unwrap();
    };
    state().await;

    damage(&store, DamagedRow::Snapshot).await;
    let whole = Loaded {
        head: head(1, 6),
        snapshot: None,
        entries: entries(1, 6),
    };
    assert_eq!(
        store.load(&scope).await,
        Ok(whole),
        "a damaged snapshot is left out"
    );

    damage(&store, DamagedRow::Entry(Seq(3))).await;
    let names_it = |error: StoreError| match error {
        StoreError::Damaged { scope: of, message } => of == scope && message.contains("entry 3"),
        _ => false,
    };
    let loaded = store.load(&scope).await;
    assert!(loaded.clone().is_err_and(names_it), "{loaded:?}");
    assert_eq!(
        store.entries(&scope, Seq(0), 10).await,
        Ok(entries(1, 2)),
        "what is before the damage is intact"
    );
    let next = store.entries(&scope, Seq(2), 10).await;
    assert!(next.clone().is_err_and(names_it), "{next:?}");
    let salvaged = store.salvage(&scope, Seq(0), 10).await.unwrap();
    let faults: Vec<(u64, bool)> = salvaged
        .iter()
        .map(|row| (row.entry.seq.0, row.fault.is_some()))
        .collect();
    assert_eq!(
        faults,
        (1..=6).map(|seq| (seq, seq == 3)).collect::<Vec<_>>()
    );
    assert_eq!(
        store.load(&other).await.unwrap().entries,
        entries(1, 6),
        "one damaged journal is one damaged conversation"
    );

    state().await;
    assert_eq!(
        store.load(&scope).await.unwrap().entries,
        entries(5, 6),
        "an intact snapshot replaces what is damaged before it"
    );
    store.cut(&scope, head(1, 2), Open::None).await.unwrap();
    let cut = Loaded {
        head: head(1, 2),
        snapshot: None,
        entries: entries(1, 2),
    };
    assert_eq!(store.load(&scope).await, Ok(cut));
    write(&store, &scope, head(1, 2), 2, 4)
        .await
        .expect("it goes on");
    assert_eq!(store.load(&scope).await.unwrap().entries, entries(1, 4));
}
