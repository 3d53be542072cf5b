//! The contract suite of artifact stores.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{
    ids::{ArtifactId, ConversationId, Scope, TenantId},
    limits::ARTIFACT_BYTES_MAX,
    ports::{ArtifactError, ArtifactMeta, ArtifactStore, Cleaned, Clock, Entropy},
    testing::{ManualClock, SeededEntropy},
    time::Timestamp,
};

/// The limits of a store under test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactBounds {
    /// Maximum bytes per tenant.
    pub tenant_bytes_max: u64,
    /// Age after which an artifact expires.
    pub max_age: Duration,
}

/// Wide enough for every test about something else.
const WIDE: ArtifactBounds = ArtifactBounds {
    tenant_bytes_max: 1 << 40,
    max_age: Duration::from_secs(24 * 60 * 60),
};

/// Runs the contract of [`ArtifactStore`]. `make` creates an empty store with the given clock and
/// limits.
///
/// # Panics
/// When the store breaks the contract. The last test prints its seed; `CALLBOARD_SEED` replays it.
pub async fn artifact_store(
    make: impl AsyncFn(Arc<dyn Clock>, ArtifactBounds) -> Arc<dyn ArtifactStore>,
) {
    let clock = || Arc::new(ManualClock::at(Timestamp(1_700_000_000_000)));
    let new = async |bounds: ArtifactBounds| {
        let clock = clock();
        (make(clock.clone(), bounds).await, clock)
    };
    what_is_stored_comes_back_byte_for_byte(&*new(WIDE).await.0).await;
    ranges_end_where_the_content_ends(&*new(WIDE).await.0).await;
    another_owners_artifact_is_not_found_as_an_unknown_one(&*new(WIDE).await.0).await;
    what_one_owner_gives_up_the_other_keeps(&*new(WIDE).await.0).await;
    a_tenant_is_given_up_as_a_whole(&*new(WIDE).await.0).await;
    let (store, clock_of) = new(WIDE).await;
    what_is_known_is_kept_up_to_date(&*store, &clock_of).await;
    let (store, clock_of) = new(WIDE).await;
    an_age_of_exactly_the_limit_is_kept_and_more_is_gone(&*store, &clock_of).await;
    let (store, clock_of) = new(ArtifactBounds {
        tenant_bytes_max: 100,
        ..WIDE
    })
    .await;
    over_the_quota_the_expired_go_first_and_then_what_was_not_used_for_longest(&*store, &clock_of)
        .await;
    a_tenants_own_bound_holds_for_it_alone_and_changes_at_any_time(&*new(WIDE).await.0).await;
    too_large_a_content_is_refused(&*new(WIDE).await.0).await;
    what_is_read_while_it_is_stored_is_whole(new(WIDE).await.0).await;
    any_history_of_calls_ends_as_in_a_plain_map(&make).await;
}

async fn a_tenants_own_bound_holds_for_it_alone_and_changes_at_any_time(store: &dyn ArtifactStore) {
    let bound = owner("a", "c");
    let free = owner("b", "c");
    let first = put(store, &bound, &[1; 60]).await;
    store.bound(&bound.tenant, Some(100));

    let second = put(store, &bound, &[2; 60]).await;
    put(store, &free, &[1; 60]).await;
    put(store, &free, &[2; 60]).await;

    assert!(
        !has(store, &bound, &first).await && has(store, &bound, &second).await,
        "the bound makes room"
    );
    assert!(
        has(store, &free, &first).await && has(store, &free, &second).await,
        "a neighbour has no such bound"
    );
    let too_much = store
        .store(bound.clone(), "toolu_1".into(), Bytes::from(vec![3; 101]))
        .await;
    assert_eq!(
        too_much,
        Err(ArtifactError::OverQuota {
            used: 60,
            quota: 100
        })
    );
    store.bound(&bound.tenant, None);
    put(store, &bound, &[3; 101]).await;
    assert!(
        has(store, &bound, &second).await,
        "without it the store's own holds"
    );
}

fn owner(tenant: &str, conversation: &str) -> Scope {
    Scope::new(
        TenantId::new(tenant).unwrap(),
        ConversationId::new(conversation).unwrap(),
    )
}

async fn put(store: &dyn ArtifactStore, owner: &Scope, content: &[u8]) -> ArtifactId {
    store
        .store(
            owner.clone(),
            "toolu_1".into(),
            Bytes::copy_from_slice(content),
        )
        .await
        .unwrap()
}

async fn has(store: &dyn ArtifactStore, owner: &Scope, id: &ArtifactId) -> bool {
    match store.meta(owner.clone(), id.clone()).await {
        Ok(meta) => meta.id == *id,
        Err(error) => {
            assert_eq!(error, ArtifactError::NotFound(id.clone()));
            false
        }
    }
}

async fn what_is_stored_comes_back_byte_for_byte(store: &dyn ArtifactStore) {
    let owner = owner("t", "c");
    for content in [
        &b""[..],
        b"x",
        "汉\n\u{0}".as_bytes(),
        &[0xff, 0x80, 0],
        &vec![b'x'; 3_000_001],
    ] {
        let id = put(store, &owner, content).await;

        assert_eq!(
            id,
            ArtifactId::from_content(content),
            "an artifact is named by its content"
        );
        assert_eq!(store.retrieve(owner.clone(), id).await.unwrap(), content);
    }
}

async fn ranges_end_where_the_content_ends(store: &dyn ArtifactStore) {
    let owner = owner("t", "c");
    let id = put(store, &owner, b"0123456789").await;

    #[allow(
        clippy::reversed_empty_ranges,
        reason = "what a careless caller may ask"
    )]
    for (range, expected) in [
        (0..10, "0123456789"),
        (3..5, "34"),
        (8..99, "89"),
        (0..0, ""),
        (10..12, ""),
        (99..u64::MAX, ""),
        (5..3, ""),
        (0..u64::MAX, "0123456789"),
    ] {
        let read = store
            .read_range(owner.clone(), id.clone(), range.clone())
            .await;
        assert_eq!(read.unwrap(), expected.as_bytes(), "{range:?}");
    }
}

/// Another owner's artifact must give the same error as an unknown one, so that a caller cannot
/// find out which ids exist.
async fn another_owners_artifact_is_not_found_as_an_unknown_one(store: &dyn ArtifactStore) {
    let id = put(store, &owner("t", "c"), b"secret").await;
    let unknown = ArtifactId::from_content(b"never stored");

    for other in [owner("t", "d"), owner("u", "c"), owner("u", "d")] {
        for id in [&id, &unknown] {
            let not_found = ArtifactError::NotFound(id.clone());
            assert_eq!(
                store.retrieve(other.clone(), id.clone()).await,
                Err(not_found.clone())
            );
            assert_eq!(
                store.read_range(other.clone(), id.clone(), 0..9).await,
                Err(not_found.clone())
            );
            assert_eq!(
                store.meta(other.clone(), id.clone()).await,
                Err(not_found.clone())
            );
            assert_eq!(store.touch(other.clone(), id.clone()).await, Err(not_found));
        }
    }
    assert!(has(store, &owner("t", "c"), &id).await);
}

async fn what_one_owner_gives_up_the_other_keeps(store: &dyn ArtifactStore) {
    let owners = [owner("t", "c"), owner("t", "d"), owner("u", "c")];
    for owner in &owners {
        put(store, owner, b"shared").await;
        put(store, owner, owner.to_string().as_bytes()).await;
    }
    let id = ArtifactId::from_content(b"shared");

    store
        .release(
            owners[0].tenant.clone(),
            Some(owners[0].conversation.clone()),
        )
        .await
        .unwrap();

    assert!(!has(store, &owners[0], &id).await);
    assert!(
        !has(
            store,
            &owners[0],
            &ArtifactId::from_content(owners[0].to_string().as_bytes())
        )
        .await
    );
    for owner in &owners[1..] {
        assert_eq!(
            store.retrieve(owner.clone(), id.clone()).await.unwrap(),
            &b"shared"[..]
        );
        assert!(
            has(
                store,
                owner,
                &ArtifactId::from_content(owner.to_string().as_bytes())
            )
            .await
        );
    }
    store
        .release(
            owners[0].tenant.clone(),
            Some(owners[0].conversation.clone()),
        )
        .await
        .expect("giving up nothing is no error");
    put(store, &owners[0], b"shared").await;
    assert!(
        has(store, &owners[0], &id).await,
        "what was given up can be stored again"
    );
}

async fn a_tenant_is_given_up_as_a_whole(store: &dyn ArtifactStore) {
    let owners = [owner("t", "c"), owner("t", "d"), owner("u", "c")];
    for owner in &owners {
        put(store, owner, b"x").await;
    }
    let id = ArtifactId::from_content(b"x");

    store.release(owners[0].tenant.clone(), None).await.unwrap();

    assert!(!has(store, &owners[0], &id).await && !has(store, &owners[1], &id).await);
    assert!(has(store, &owners[2], &id).await);
}

async fn what_is_known_is_kept_up_to_date(store: &dyn ArtifactStore, clock: &ManualClock) {
    let owner = owner("t", "c");
    let first = clock.now();
    let id = put(store, &owner, b"0123456789").await;
    let meta = async || store.meta(owner.clone(), id.clone()).await.unwrap();
    let expected = |call: &str, created_at: Timestamp, accessed_at: Timestamp| ArtifactMeta {
        id: id.clone(),
        size_bytes: 10,
        tool_call_id: call.into(),
        conversation_id: owner.conversation.clone(),
        created_at,
        accessed_at,
    };
    assert_eq!(meta().await, expected("toolu_1", first, first));

    clock.advance_ms(1000);
    assert_eq!(
        meta().await,
        expected("toolu_1", first, first),
        "a look is no use"
    );
    let second = clock.advance_ms(1000);
    store.touch(owner.clone(), id.clone()).await.unwrap();
    assert_eq!(meta().await, expected("toolu_1", first, second));
    let third = clock.advance_ms(1000);
    store.retrieve(owner.clone(), id.clone()).await.unwrap();
    assert_eq!(meta().await, expected("toolu_1", first, third));
    let fourth = clock.advance_ms(1000);
    store
        .read_range(owner.clone(), id.clone(), 0..1)
        .await
        .unwrap();
    assert_eq!(meta().await, expected("toolu_1", first, fourth));
    let fifth = clock.advance_ms(1000);
    store
        .store(
            owner.clone(),
            "toolu_2".into(),
            Bytes::from_static(b"0123456789"),
        )
        .await
        .unwrap();
    assert_eq!(
        meta().await,
        expected("toolu_2", fifth, fifth),
        "storing again renews"
    );
}

async fn an_age_of_exactly_the_limit_is_kept_and_more_is_gone(
    store: &dyn ArtifactStore,
    clock: &ManualClock,
) {
    let owner = owner("t", "c");
    let old = put(store, &owner, b"old").await;
    clock.advance_ms(1000);
    let young = put(store, &owner, b"young!").await;

    clock.advance_ms(59_000);
    assert_eq!(
        store.cleanup(Duration::from_secs(60)).await,
        Ok(Cleaned::default())
    );
    clock.advance_ms(1);
    store.touch(owner.clone(), old.clone()).await.unwrap();
    assert_eq!(
        store.cleanup(Duration::from_secs(60)).await,
        Ok(Cleaned {
            removed: 1,
            bytes: 3
        }),
        "age is not use"
    );
    assert!(!has(store, &owner, &old).await && has(store, &owner, &young).await);
    assert_eq!(
        store.cleanup(Duration::from_secs(60)).await,
        Ok(Cleaned::default()),
        "only what was really removed counts"
    );

    clock.advance_ms(24 * 60 * 60 * 1000 - 59_001);
    assert!(
        store.retrieve(owner.clone(), young.clone()).await.is_ok(),
        "exactly the store's own limit"
    );
    clock.advance_ms(1);
    let gone = Err(ArtifactError::NotFound(young.clone()));
    assert_eq!(
        store.retrieve(owner.clone(), young.clone()).await,
        gone,
        "before anybody cleaned"
    );
    assert!(!has(store, &owner, &young).await);
    assert_eq!(put(store, &owner, b"young!").await, young);
    assert!(
        has(store, &owner, &young).await,
        "what expired can be stored again"
    );
}

async fn over_the_quota_the_expired_go_first_and_then_what_was_not_used_for_longest(
    store: &dyn ArtifactStore,
    clock: &ManualClock,
) {
    let (owner, other) = (owner("t", "c"), owner("u", "c"));
    let of = |n: u8| vec![n; 40];
    put(store, &other, &of(1)).await;
    put(store, &other, &of(2)).await;
    let first = put(store, &owner, &of(1)).await;
    clock.advance_ms(1);
    let second = put(store, &owner, &of(2)).await;
    clock.advance_ms(1);
    store.touch(owner.clone(), first.clone()).await.unwrap();
    clock.advance_ms(1);

    let third = put(store, &owner, &of(3)).await;

    assert!(
        has(store, &owner, &first).await
            && !has(store, &owner, &second).await
            && has(store, &owner, &third).await
    );
    put(store, &owner, &of(3)).await;
    assert!(
        has(store, &owner, &first).await,
        "storing again takes no room"
    );
    let whole = put(store, &owner, &[9; 100]).await;
    assert!(
        has(store, &owner, &whole).await
            && !has(store, &owner, &first).await
            && !has(store, &owner, &third).await
    );
    let refused = store
        .store(owner.clone(), "t".into(), Bytes::from(vec![8; 101]))
        .await;
    assert_eq!(
        refused,
        Err(ArtifactError::OverQuota {
            used: 100,
            quota: 100
        })
    );
    assert!(has(store, &owner, &whole).await, "a refusal costs nothing");
    assert!(
        has(store, &other, &first).await && has(store, &other, &second).await,
        "another tenant's room is its own"
    );
}

async fn too_large_a_content_is_refused(store: &dyn ArtifactStore) {
    let content = Bytes::from(vec![0; ARTIFACT_BYTES_MAX + 1]);

    let refused = store.store(owner("t", "c"), "t".into(), content).await;

    let max = ARTIFACT_BYTES_MAX as u64;
    assert_eq!(refused, Err(ArtifactError::TooLarge { size: max + 1, max }));
}

async fn what_is_read_while_it_is_stored_is_whole(store: Arc<dyn ArtifactStore>) {
    let content = Bytes::from(
        (0..1_000_000u32)
            .flat_map(u32::to_le_bytes)
            .collect::<Vec<u8>>(),
    );
    let id = ArtifactId::from_content(&content);
    let tasks: Vec<_> = (0..8)
        .map(|n| {
            let store = store.clone();
            let content = content.clone();
            let id = id.clone();
            tokio::spawn(async move {
                for _ in 0..3 {
                    if n % 2 == 0 {
                        assert_eq!(
                            store
                                .store(owner("t", "c"), "t".into(), content.clone())
                                .await
                                .unwrap(),
                            id
                        );
                    } else if n == 3 {
                        store.cleanup(Duration::from_secs(3600)).await.unwrap();
                    } else {
                        match store.retrieve(owner("t", "c"), id.clone()).await {
                            Ok(read) => assert!(read == content, "a reader saw a part"),
                            Err(error) => assert_eq!(error, ArtifactError::NotFound(id.clone())),
                        }
                    }
                }
            })
        })
        .collect();

    for task in tasks {
        task.await.unwrap();
    }

    assert!(store.retrieve(owner("t", "c"), id).await.unwrap() == content);
}

/// The state of a plain map: created, accessed, bytes.
type Model = BTreeMap<(Scope, ArtifactId), (u64, u64, Bytes)>;

async fn any_history_of_calls_ends_as_in_a_plain_map(
    make: &impl AsyncFn(Arc<dyn Clock>, ArtifactBounds) -> Arc<dyn ArtifactStore>,
) {
    let now = || {
        std::time::UNIX_EPOCH
            .elapsed()
            .map_or(1, |time| u64::from(time.subsec_nanos()))
    };
    let seed = std::env::var("CALLBOARD_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(now);
    println!("artifact_store: CALLBOARD_SEED={seed}");
    let runs = crate::testing::TestSize::pick(2, 5, 100);
    for run in 0..runs {
        let chance = SeededEntropy::new(seed.wrapping_add(run));
        let clock = Arc::new(ManualClock::at(Timestamp(1_700_000_000_000)));
        let bounds = ArtifactBounds {
            tenant_bytes_max: 60,
            max_age: Duration::from_secs(30),
        };
        let store = make(clock.clone(), bounds).await;
        let mut model = Model::new();
        for step in 0..120 {
            follow(&*store, &clock, &mut model, chance.bytes()).await;
            if step % 10 == 9 {
                check(&*store, &clock, &mut model).await;
            }
        }
    }
}

const OWNERS: [(&str, &str); 3] = [("t", "c"), ("t", "d"), ("u", "c")];

/// One random call, made on the store and on the model.
async fn follow(store: &dyn ArtifactStore, clock: &ManualClock, model: &mut Model, dice: [u8; 16]) {
    // Every step has a different time, so that the order of use is unambiguous.
    let now = clock.advance_ms(1 + u64::from(dice[0]) * 20).0;
    let (tenant, conversation) = OWNERS[usize::from(dice[1]) % OWNERS.len()];
    let scope = owner(tenant, conversation);
    let content = Bytes::from(vec![dice[2] % 6; 1 + usize::from(dice[2] % 6) * 7]);
    let id = ArtifactId::from_content(&content);
    let place = (scope.clone(), id.clone());
    let lives = |created: u64| now - created <= 30_000;
    match dice[3] % 8 {
        0..4 => {
            assert_eq!(
                store
                    .store(scope.clone(), "t".into(), content.clone())
                    .await
                    .as_ref(),
                Ok(&id)
            );
            model.remove(&place);
            let used = |model: &Model| {
                model
                    .iter()
                    .filter(|(place, _)| place.0.tenant == scope.tenant)
                    .map(|(_, kept)| kept.2.len())
                    .sum::<usize>()
            };
            if used(model) + content.len() > 60 {
                model.retain(|place, kept| place.0.tenant != scope.tenant || lives(kept.0));
            }
            while used(model) + content.len() > 60 {
                let oldest = model
                    .iter()
                    .filter(|(place, _)| place.0.tenant == scope.tenant)
                    .min_by_key(|(_, kept)| kept.1);
                let oldest = oldest.unwrap().0.clone();
                model.remove(&oldest);
            }
            model.insert(place, (now, now, content));
        }
        4 => {
            let read = store.retrieve(scope, id.clone()).await;
            match model.get_mut(&place).filter(|kept| lives(kept.0)) {
                Some(kept) => {
                    kept.1 = now;
                    assert_eq!(read, Ok(content));
                }
                None => {
                    model.remove(&place); // A store may remove an artifact that it found expired.
                    assert_eq!(read, Err(ArtifactError::NotFound(id)));
                }
            }
        }
        5 => {
            let touched = store.touch(scope, id.clone()).await;
            match model.get_mut(&place).filter(|kept| lives(kept.0)) {
                Some(kept) => {
                    kept.1 = now;
                    assert_eq!(touched, Ok(()));
                }
                None => {
                    model.remove(&place);
                    assert_eq!(touched, Err(ArtifactError::NotFound(id)));
                }
            }
        }
        6 if dice[4].is_multiple_of(4) => {
            store
                .release(scope.tenant.clone(), Some(scope.conversation.clone()))
                .await
                .unwrap();
            model.retain(|place, _| place.0 != scope);
        }
        _ => {
            let cleaned = store.cleanup(Duration::from_secs(20)).await.unwrap();
            let before = (
                model.len() as u64,
                model.values().map(|kept| kept.2.len() as u64).sum::<u64>(),
            );
            model.retain(|_, kept| now - kept.0 <= 20_000);
            let after = (
                model.len() as u64,
                model.values().map(|kept| kept.2.len() as u64).sum::<u64>(),
            );
            assert_eq!(
                (cleaned.removed, cleaned.bytes),
                (before.0 - after.0, before.1 - after.1)
            );
        }
    }
}

async fn check(store: &dyn ArtifactStore, clock: &ManualClock, model: &mut Model) {
    let now = clock.now().0;
    for (tenant, conversation) in OWNERS {
        for n in 0..6u8 {
            let id = ArtifactId::from_content(&vec![n; 1 + usize::from(n) * 7]);
            let place = (owner(tenant, conversation), id.clone());
            let expected = model
                .get(&place)
                .filter(|kept| now - kept.0 <= 30_000)
                .map(|kept| (kept.0, kept.1, kept.2.len() as u64));
            let known = store.meta(place.0.clone(), id).await.ok();
            assert_eq!(
                known.map(|meta| (meta.created_at.0, meta.accessed_at.0, meta.size_bytes)),
                expected,
                "{place:?}"
            );
            if expected.is_none() {
                model.remove(&place); // As above.
            }
        }
    }
}
