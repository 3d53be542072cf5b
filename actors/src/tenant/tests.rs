//! The limits of a tenant, under races and under changes of configuration.

use std::{sync::Arc, time::Duration};

use tokio::task::JoinSet;

use super::*;
use crate::{ids::ConversationId, ports::Entropy, testing::SeededEntropy};

fn random(seed: u64) -> impl Fn() -> usize {
    let chance = SeededEntropy::new(seed);
    move || usize::from_le_bytes(chance.bytes()[..8].try_into().unwrap()) >> 8
}

fn id(n: usize) -> ConversationId {
    format!("c-{n}").try_into().unwrap()
}

#[tokio::test(start_paused = true)]
async fn turns_never_pass_the_bound_of_the_moment_and_all_come_to_run() {
    for seed in 0..150 {
        let random = random(seed);
        let turns = RoundPermits::new(random() % 5);
        let mut held = Vec::new();
        let mut tasks = JoinSet::new();
        let mut size = None::<usize>;
        for _ in 0..120 {
            match random() % 6 {
                0 => {
                    let new = random() % 6;
                    turns.resize(new);
                    size = Some(new);
                }
                1 | 2 => drop(tasks.spawn(turns.clone().take())),
                3 => turns.pause(random().is_multiple_of(2)),
                _ if held.is_empty() => {}
                _ => drop(held.swap_remove(random() % held.len())),
            }
            for _ in 0..4 {
                tokio::task::yield_now().await;
            }
            let before = held.len();
            while let Some(taken) = tasks.try_join_next() {
                held.push(taken.unwrap().unwrap());
            }
            if held.len() > before
                && let Some(size) = size
            {
                assert!(
                    held.len() <= size,
                    "seed {seed}: {} run, {size} may",
                    held.len()
                );
            }
            assert_eq!(turns.running(), held.len(), "seed {seed}");
        }

        turns.pause(false);
        turns.resize(1);
        drop(held);
        while let Some(taken) = tasks.join_next().await {
            assert_eq!(turns.running(), 1, "seed {seed}: one at a time");
            drop(taken.unwrap());
        }
        assert_eq!((turns.running(), turns.waiting()), (0, 0), "seed {seed}");
        turns.resize(3);
        let three = (
            turns.clone().take().await,
            turns.clone().take().await,
            turns.clone().take().await,
        );
        assert!(
            tokio::time::timeout(Duration::from_secs(1), turns.take())
                .await
                .is_err(),
            "seed {seed}: no permit was made up"
        );
        drop(three);
    }
}

#[tokio::test(start_paused = true)]
async fn turns_begin_in_the_order_they_came_also_after_a_pause() {
    let turns = RoundPermits::new(1);
    let first = turns.clone().take().await;
    let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for n in 0..20 {
        let turns = turns.clone();
        let order = order.clone();
        tasks.spawn(async move {
            let permit = turns.take().await;
            order.lock().push(n);
            drop(permit);
        });
        tokio::task::yield_now().await;
    }
    assert_eq!(turns.waiting(), 20);

    turns.pause(true);
    drop(first);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(order.lock().is_empty());
    turns.pause(false);
    tasks.join_all().await;

    assert_eq!(*order.lock(), (0..20).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn who_leaves_the_queue_of_turns_leaves_nothing_behind() {
    let turns = RoundPermits::new(1);
    let first = turns.clone().take().await;
    let leaves = tokio::time::timeout(Duration::from_secs(1), turns.clone().take()).await;
    assert!(leaves.is_err());
    drop(first);
    turns.pause(true);
    let leaves = tokio::time::timeout(Duration::from_secs(1), turns.clone().take()).await;
    assert!(leaves.is_err());

    turns.pause(false);

    assert_eq!((turns.running(), turns.waiting()), (0, 0));
    assert!(turns.take().await.is_some());
}

#[test]
fn concurrent_callers_release_their_memory_to_the_byte() {
    let memory = Arc::new(Memory::new(1000));
    let workers = (0..8u64).map(|seed| {
        let memory = memory.clone();
        std::thread::spawn(move || {
            let random = random(seed);
            for _ in 0..5000 {
                let bytes = (random() % 700) as u64;
                if memory.take(bytes, 0, 0) {
                    assert!(memory.bytes() <= 1000);
                    memory.give_back(bytes);
                }
            }
        })
    });

    workers
        .collect::<Vec<_>>()
        .into_iter()
        .for_each(|worker| worker.join().unwrap());

    assert_eq!(memory.bytes(), 0);
    assert!(memory.take(5000, 0, 0), "one alone always has room");
    assert!(!memory.take(1, 0, 0), "no other claim has");
}

#[test]
fn a_rate_lets_in_no_more_however_many_ask_at_once() {
    let rate = Arc::new(Rate::new(Instant::now()));
    rate.set(Some(500));
    let workers = (0..8).map(|_| {
        let rate = rate.clone();
        std::thread::spawn(move || (0..500).filter(|_| rate.take().is_ok()).count())
    });

    let admitted: usize = workers
        .collect::<Vec<_>>()
        .into_iter()
        .map(|worker| worker.join().unwrap())
        .sum();

    let came_back = usize::try_from(rate.since.elapsed().as_millis() * 500 / 60_000).unwrap();
    assert!(
        (500..=500 + came_back + 1).contains(&admitted),
        "{admitted}"
    );
}

#[tokio::test(start_paused = true)]
async fn the_count_follows_the_store_whatever_begins_and_ends_or_is_in_doubt() {
    for seed in 0..200 {
        let random = random(seed);
        let count = ConversationCount::new();
        count.bound(Some(5));
        let mut stored = std::collections::BTreeSet::new();
        let mut under_way = Vec::<(usize, PendingConversation, bool)>::new();
        for _ in 0..200 {
            let n = random() % 12;
            match random() % 4 {
                // A message to a conversation that may be new.
                0 | 1 => {
                    if count.has_seen(&id(n)) {
                        assert!(stored.contains(&n), "seed {seed}: {n} is not stored");
                        continue;
                    }
                    let pending = count.announce(id(n));
                    if stored.contains(&n) {
                        count.note_stored(&id(n));
                        continue;
                    }
                    let mut taken = pending.take();
                    if taken == Taken::CountFirst {
                        count.counted(count.begin_count(), stored.len() as u64);
                        taken = pending.take();
                    }
                    let beginning: std::collections::BTreeSet<usize> = under_way
                        .iter()
                        .filter(|(_, _, has)| *has)
                        .map(|(n, ..)| *n)
                        .collect();
                    let others = stored
                        .union(&beginning)
                        .filter(|other| **other != n)
                        .count();
                    match taken {
                        Taken::Yes => assert!(
                            others < 5 || beginning.contains(&n),
                            "seed {seed}: {others} others"
                        ),
                        // A stored conversation that is not yet known to be stored counts twice
                        // until it is.
                        Taken::No | Taken::CountFirst | Taken::Later(_) => {
                            let twice = stored.intersection(&beginning).count();
                            assert!(
                                others + twice >= 5,
                                "seed {seed}: {others} others, {twice} of them twice"
                            );
                        }
                    }
                    if taken == Taken::Yes {
                        under_way.push((n, pending, true));
                    }
                }
                // One message is answered, with success or with an unknown outcome.
                2 if !under_way.is_empty() => {
                    let (n, pending, _) = under_way.swap_remove(random() % under_way.len());
                    if random().is_multiple_of(3) {
                        if random().is_multiple_of(2) {
                            stored.insert(n);
                        }
                        drop(pending);
                    } else {
                        stored.insert(n);
                        pending.keep();
                    }
                }
                // A conversation without messages under way is deleted.
                _ => {
                    if under_way.iter().all(|(other, ..)| *other != n) && stored.remove(&n) {
                        count.note_deleted(&id(n));
                    }
                }
            }
            tokio::time::advance(Duration::from_secs(2)).await; // Past the time for which a count is trusted.
            assert!(stored.len() <= 5, "seed {seed}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_rate_that_is_changed_keeps_what_was_taken() {
    let rate = Rate::new(Instant::now());
    rate.set(Some(10));
    assert_eq!((0..20).filter(|_| rate.take().is_ok()).count(), 10);

    rate.set(Some(100));

    assert_eq!((0..200).filter(|_| rate.take().is_ok()).count(), 90);
}

#[tokio::test(start_paused = true)]
async fn a_conversation_that_was_counted_and_not_stored_is_counted_again_at_once() {
    let count = ConversationCount::new();
    count.bound(Some(1));
    count.counted(count.begin_count(), 0);
    let first = count.announce(id(1));
    assert_eq!(first.take(), Taken::Yes);

    drop(first); // Whether it is stored is unknown now.

    assert_eq!(count.announce(id(2)).take(), Taken::CountFirst);
}

#[tokio::test(start_paused = true)]
async fn of_several_hosts_each_creates_its_part_of_what_is_left_and_counts_again() {
    let count = ConversationCount::new();
    count.bound(Some(10));
    count.share(2);
    count.counted(count.begin_count(), 0);
    let mut made = Vec::new();
    let taken = loop {
        let pending = count.announce(id(made.len()));
        match pending.take() {
            Taken::Yes => made.push(pending),
            other => break other,
        }
    };
    assert_eq!(made.len(), 5);
    assert!(matches!(taken, Taken::Later(_)), "{taken:?}");
    let second = std::time::Duration::from_secs(1);
    tokio::time::advance(second).await;
    assert_eq!(count.announce(id(19)).take(), Taken::CountFirst);

    made.drain(..).for_each(PendingConversation::keep);
    assert!(!count.has_seen(&id(0)), "another host may have deleted it");
    count.counted(count.begin_count(), 10); // The other host created as many.
    assert_eq!(count.announce(id(20)).take(), Taken::No);

    count.counted(count.begin_count(), 2); // Most were deleted.
    assert_eq!(count.announce(id(21)).take(), Taken::Yes);
}

#[tokio::test(start_paused = true)]
async fn a_burst_that_counts_many_times_at_once_creates_one_part() {
    let count = ConversationCount::new();
    count.bound(Some(10));
    count.share(2);
    let burst: Vec<_> = (0..75).map(|n| count.announce(id(n))).collect();
    let asked: Vec<_> = burst
        .iter()
        .filter(|pending| pending.take() == Taken::CountFirst)
        .map(|pending| (pending, count.begin_count()))
        .collect();
    assert_eq!(asked.len(), 75);

    // Each has counted an empty store.
    let created = asked.iter().filter(|(pending, begun)| {
        count.counted(*begun, 0);
        pending.take() == Taken::Yes
    });

    assert_eq!(
        created.count(),
        5,
        "half, as the other host may create as many"
    );
}

#[tokio::test(start_paused = true)]
async fn a_count_that_began_before_a_conversation_was_stored_does_not_miss_it() {
    let count = ConversationCount::new();
    count.bound(Some(2));
    count.share(2);
    count.counted(count.begin_count(), 0);
    let first = count.announce(id(1));
    assert_eq!(first.take(), Taken::Yes);
    tokio::time::advance(Duration::from_secs(1)).await;

    let begun = count.begin_count();
    first.keep();
    count.counted(begun, 1); // The other host has stored one; the store had not seen this one.

    assert_eq!(count.announce(id(2)).take(), Taken::No);
}

#[test]
fn a_family_has_the_bounds_of_the_day_and_each_member_brings_its_spending_once() {
    let tenant = BudgetCounter::root(crate::policy::BudgetLevel::Tenant, Budget::default());
    let families = Families::default();
    let day = std::time::Duration::from_secs(86_400);
    let family = families.get(
        &id(1),
        &tenant,
        Budget::default().with_tokens(10).with_time(day),
    );
    let spent = crate::policy::Amount {
        tokens: 7,
        ..Default::default()
    };

    for _ in 0..2 {
        family.enter(&id(1), spent);
    }
    families.get(
        &id(1),
        &tenant,
        Budget::default().with_tokens(99).with_time(day),
    );

    assert_eq!(
        family.counter().budget(),
        Budget::default().with_tokens(99),
        "time is the round's"
    );
    assert_eq!(family.counter().spent().tokens, 7);
}

#[tokio::test(start_paused = true)]
async fn quotas_are_divided_between_hosts_and_limits_of_a_host_are_not() {
    let limits = crate::limits::Limits::default();
    let tenants = super::Tenants::new(&limits, Arc::new(crate::memory::MemorySessions::new()));
    let quotas = Quotas {
        requests_per_minute: Some(30),
        prompts_max: Some(6),
        ..Quotas::default()
    };
    tenants
        .get(&"a".parse().unwrap())
        .configure(quotas, Budget::default());

    tenants.share(HostShare { hosts: 3, place: 0 });

    let shared = tenants.get(&"a".parse().unwrap());
    let admitted = |tenant: &Arc<Tenant>, count: usize| {
        let seats: Vec<_> = (0..count).map(|_| tenant.admit()).collect();
        seats.iter().filter(|seat| seat.is_ok()).count()
    };
    assert_eq!(admitted(&shared, 4), 2, "prompts at once");
    assert_eq!(
        (0..20).filter(|_| shared.admit().is_ok()).count(),
        8,
        "of ten a minute"
    );
    assert_eq!(shared.quotas(), quotas, "what is configured is shown");
    // A tenant that comes later, and one whose data was erased.
    let late = tenants.get(&"late".parse().unwrap());
    late.configure(quotas, Budget::default());
    assert_eq!(admitted(&late, 4), 2);
    tenants.renew(&late);
    let renewed = tenants.get(&"late".parse().unwrap());
    assert_eq!(admitted(&renewed, 4), 2);
    let unlimited = tenants.get(&"other".parse().unwrap());
    assert_eq!(admitted(&unlimited, 10), 10);
}
