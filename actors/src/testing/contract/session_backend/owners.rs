//! What a store of several hosts promises beyond the contract of one host.

use std::sync::Arc;

use super::{entries, entry, head, scope, write, write_open};
use crate::{
    ids::Seq,
    journal::Loaded,
    ports::{AppendError, BoxFuture, SessionBackend, StoreError},
    stream::Open,
};

/// Two hosts on one empty store.
pub struct TwoHosts {
    /// A host.
    pub first: Arc<dyn SessionBackend>,
    /// Another host.
    pub second: Arc<dyn SessionBackend>,
    /// The address of the first host.
    pub first_address: String,
    /// Makes the first host one that was silent for too long.
    pub expire_first: BoxFuture<'static, ()>,
}

/// Runs the contract of [`SessionBackend::load_to_own`] and [`SessionBackend::release`].
///
/// # Panics
/// When the store breaks the contract.
pub async fn session_owners(make: impl AsyncFn() -> TwoHosts) {
    a_conversation_belongs_to_the_host_that_appended(make().await).await;
    a_conversation_that_is_given_up_goes_to_the_next_host(make().await).await;
    a_conversation_of_a_silent_host_goes_to_the_next_host(make().await).await;
    two_hosts_that_activate_at_once_have_one_winner(make().await).await;
    a_deleted_conversation_does_not_come_back(make().await).await;
}

async fn a_conversation_belongs_to_the_host_that_appended(hosts: TwoHosts) {
    let (first, second) = (&*hosts.first, &*hosts.second);
    let talk = scope("t", "c");
    write_open(first, &talk, head(0, 0), 1, 2, Open::Running, None)
        .await
        .unwrap();

    assert_eq!(
        second.load_to_own(&talk).await,
        Err(StoreError::Elsewhere {
            host: hosts.first_address.clone()
        })
    );
    let own = first.load_to_own(&talk).await.unwrap();
    assert_eq!(own.head, head(1, 2));
    // Reading needs no owner.
    assert_eq!(second.load(&talk).await.unwrap(), own);
    assert_eq!(second.head(&talk).await.unwrap(), head(1, 2));
    // Neither an activation nor an append of the same epoch passes.
    for epoch in [1, 2] {
        assert_eq!(
            write(second, &talk, head(1, 2), epoch, 3).await,
            Err(AppendError::Conflict {
                scope: talk.clone(),
                found: head(1, 2)
            })
        );
    }
    assert_eq!(second.entries(&talk, Seq(2), 10).await.unwrap(), []);
    let open = async |host: &dyn SessionBackend| {
        host.list_open(Open::Running, None, None, 0).await.unwrap()
    };
    assert_eq!(
        (open(first).await, open(second).await),
        (vec![talk.clone()], Vec::new())
    );
    // A host gives up only what it owns.
    second.release(&talk);
    write(first, &talk, head(1, 2), 1, 3).await.unwrap();
    assert!(second.load_to_own(&talk).await.is_err());
    // An unknown conversation belongs to no one.
    let other = scope("t", "other");
    assert_eq!(second.load_to_own(&other).await.unwrap(), Loaded::default());
}

async fn a_conversation_that_is_given_up_goes_to_the_next_host(hosts: TwoHosts) {
    let (first, second) = (&*hosts.first, &*hosts.second);
    let talk = scope("t", "c");
    write(first, &talk, head(0, 0), 1, 1).await.unwrap();

    first.release(&talk);
    // A release takes effect after the appends before it; the next append of the host shows it.
    write(first, &scope("t", "c2"), head(0, 0), 1, 1)
        .await
        .unwrap();
    while second.load_to_own(&talk).await.is_err() {
        tokio::task::yield_now().await;
    }
    write(second, &talk, head(1, 1), 2, 2).await.unwrap();

    assert!(matches!(
        first.load_to_own(&talk).await,
        Err(StoreError::Elsewhere { .. })
    ));
    assert!(write(first, &talk, head(1, 1), 1, 2).await.is_err());
    assert_eq!(
        second.entries(&talk, Seq(0), 10).await.unwrap(),
        entries(1, 2)
    );

    // A host that activates again what it just gave up keeps it.
    second.release(&talk);
    write(second, &talk, head(2, 2), 3, 3).await.unwrap();
    write(second, &talk, head(3, 3), 3, 4).await.unwrap();
    assert!(first.load_to_own(&talk).await.is_err());
}

async fn a_conversation_of_a_silent_host_goes_to_the_next_host(hosts: TwoHosts) {
    let (first, second) = (&*hosts.first, &*hosts.second);
    let talk = scope("t", "c");
    write_open(first, &talk, head(0, 0), 1, 1, Open::Running, None)
        .await
        .unwrap();
    assert!(first.is_sure_to_own());

    hosts.expire_first.await;

    assert!(!first.is_sure_to_own());
    assert_eq!(
        second
            .list_open(Open::Running, None, None, 0)
            .await
            .unwrap(),
        std::slice::from_ref(&talk)
    );
    second.load_to_own(&talk).await.unwrap();
    write(second, &talk, head(1, 1), 2, 2).await.unwrap();
    assert!(write(first, &talk, head(1, 1), 1, 2).await.is_err());
    assert!(write(first, &talk, head(2, 2), 3, 3).await.is_err());
    assert_eq!(
        second.entries(&talk, Seq(1), 10).await.unwrap(),
        [entry(2, "{\"n\":2}")]
    );
}

async fn two_hosts_that_activate_at_once_have_one_winner(hosts: TwoHosts) {
    let (first, second) = (&*hosts.first, &*hosts.second);
    for n in 0..20 {
        let talk = scope("t", &format!("c{n}"));
        let (one, other) = tokio::join!(
            write(first, &talk, head(0, 0), 1, 1),
            write(second, &talk, head(0, 0), 1, 1)
        );
        assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
        let (winner, loser) = if one.is_ok() {
            (first, second)
        } else {
            (second, first)
        };
        assert!(loser.load_to_own(&talk).await.is_err());
        write(winner, &talk, head(1, 1), 1, 2).await.unwrap();
    }
}

async fn a_deleted_conversation_does_not_come_back(hosts: TwoHosts) {
    let (first, second) = (&*hosts.first, &*hosts.second);
    let talk = scope("t", "c");
    // The first host looked before there was a conversation, and its append is late.
    assert_eq!(first.load_to_own(&talk).await.unwrap(), Loaded::default());
    write(second, &talk, head(0, 0), 7, 1).await.unwrap();
    write(second, &talk, head(7, 1), 8, 2).await.unwrap();
    assert!(second.delete(&talk).await.unwrap());

    let late = write(first, &talk, head(0, 0), 7, 1).await;

    assert!(late.is_err(), "{late:?}");
    assert_eq!(first.load(&talk).await.unwrap(), Loaded::default());
    assert!(write(first, &talk, head(0, 0), 8, 1).await.is_err());
    // A new one begins later, on any host.
    write(first, &talk, head(0, 0), 9, 1).await.unwrap();
    write(first, &talk, head(9, 1), 9, 2).await.unwrap();
}
