//! Properties of the fair queue.

use std::collections::BTreeMap;

use super::*;
use crate::scripted::splitmix64;

const QUANTUM: u64 = 1000;

fn drain(queue: &mut FairQueue<&'static str, u32>) -> Vec<u32> {
    std::iter::from_fn(|| queue.pop().map(|taken| taken.item)).collect()
}

#[test]
fn a_flooding_key_gets_every_other_turn() {
    let mut queue = FairQueue::new(QUANTUM, QUANTUM);
    for n in 0..5 {
        queue.push(&"flood", 1, CallClass::Interactive, 100, n);
    }
    queue.push(&"quiet", 1, CallClass::Interactive, 100, 100);
    queue.push(&"quiet", 1, CallClass::Interactive, 100, 101);

    assert_eq!(drain(&mut queue), [0, 100, 1, 101, 2, 3, 4]);
    assert!(queue.is_empty());
}

#[test]
fn what_is_urgent_comes_first_within_a_round() {
    let mut queue = FairQueue::new(QUANTUM, QUANTUM);
    queue.push(&"a", 1, CallClass::Background, 100, 0);
    queue.push(&"b", 1, CallClass::Subagent, 100, 1);
    queue.push(&"a", 1, CallClass::Interactive, 100, 2);
    queue.push(&"c", 1, CallClass::Interactive, 100, 3);

    assert_eq!(drain(&mut queue), [2, 3, 1, 0]);
}

#[test]
fn no_class_is_passed_over_for_ever() {
    let mut queue = FairQueue::new(QUANTUM, QUANTUM);
    queue.push(&"other", 1, CallClass::Background, 100, 1000);
    queue.push(&"flood", 1, CallClass::Background, 100, 2000);
    queue.push(&"flood", 1, CallClass::Subagent, 100, 3000);

    let order: Vec<u32> = (0..40)
        .filter_map(|n| {
            queue.push(&"flood", 1, CallClass::Interactive, 100, n);
            queue.pop().map(|taken| taken.item)
        })
        .collect();

    let at = |item| order.iter().position(|served| *served == item);
    let passed = usize::try_from(PASSED_MAX).unwrap();
    assert_eq!(
        at(3000),
        Some(passed),
        "its own flood passes a call over so often: {order:?}"
    );
    assert!(at(2000).is_some_and(|at| at <= passed + 3), "{order:?}");
    assert!(
        at(1000).is_some_and(|at| at <= 11),
        "another's flood ends with the round: {order:?}"
    );
}

#[test]
fn who_left_is_skipped_and_costs_nothing() {
    let mut queue = FairQueue::new(QUANTUM, QUANTUM);
    let gone = queue.push(&"a", 1, CallClass::Interactive, 900, 0);
    queue.push(&"a", 1, CallClass::Interactive, 900, 1);
    queue.push(&"b", 1, CallClass::Interactive, 900, 2);

    assert_eq!(queue.remove(&"a", CallClass::Interactive, gone), Some(0));
    assert_eq!(queue.remove(&"a", CallClass::Interactive, gone), None);

    assert_eq!(queue.len(), 2);
    assert_eq!(
        queue.pop(),
        Some(Taken {
            key: "a",
            item: 1,
            charged: 900
        }),
        "in the round in which the other would have been served"
    );
}

#[test]
fn who_comes_and_leaves_leaves_no_trace() {
    let mut queue = FairQueue::new(QUANTUM, QUANTUM);
    queue.push(&"stays", 1, CallClass::Interactive, 100, 0);

    for n in 0..10_000 {
        let id = queue.push(&"flood", 1, CallClass::ALL[n % 3], 100, 1);
        queue.remove(&"flood", CallClass::ALL[n % 3], id);
    }

    let entries: usize = queue.now.iter().map(VecDeque::len).sum::<usize>() + queue.later.len();
    assert!(entries <= 3 * (IDLE_LANES_MAX + 8), "{entries}");
    assert_eq!((queue.len(), drain(&mut queue)), (1, vec![0]));
}

#[test]
fn a_key_that_comes_back_in_a_round_gets_no_second_part() {
    let mut queue = FairQueue::new(QUANTUM, QUANTUM);
    for n in 0..100 {
        queue.push(&"steady", 1, CallClass::Interactive, 100, n);
    }
    let mut served = 0;

    // It has one expensive call at a time, so it is absent from the queue between two calls.
    queue.push(&"comes and goes", 1, CallClass::Interactive, 1000, 1000);
    for _ in 0..44 {
        if queue
            .pop()
            .is_some_and(|taken| taken.key == "comes and goes")
        {
            served += 1;
            queue.push(&"comes and goes", 1, CallClass::Interactive, 1000, 1000);
        }
    }

    assert_eq!(served, 4, "as much as the other: 4 × 1000 beside 40 × 100");
}

#[test]
fn what_was_underestimated_is_owed_while_others_wait() {
    let mut queue = FairQueue::new(QUANTUM, QUANTUM);
    for n in 0..200 {
        queue.push(&"honest", 1, CallClass::Interactive, 100, n);
        queue.push(&"cheap talk", 1, CallClass::Interactive, 10, 1000 + n);
    }
    let mut used: BTreeMap<_, u64> = BTreeMap::new();

    for _ in 0..100 {
        let Taken { key, item, charged } = queue.pop().unwrap();
        *used.entry(key).or_insert(0) += 100;
        queue.settle(&key, if item >= 1000 { 10 } else { 100 }, charged, 100);
    }

    assert!(
        used["honest"].abs_diff(used["cheap talk"]) <= 1100,
        "{used:?}"
    );
}

#[test]
fn a_newcomer_is_next_however_dear_the_flood_was_thought_to_be() {
    let mut queue = FairQueue::new(64, 4096);
    let mut under_way = VecDeque::new();
    for n in 0..300 {
        queue.push(&"flood", 1, CallClass::Interactive, 1000, n);
    }
    let mut longest = 0;

    for n in 0..20 {
        queue.push(&"quiet", 1, CallClass::Interactive, 1000, 1000 + n);
        for waited in 1.. {
            let taken = queue.pop().unwrap();
            let quiet = taken.key == "quiet";
            under_way.push_back(taken);
            if under_way.len() > 4 {
                let done = under_way.pop_front().unwrap();
                queue.settle(&done.key, 1000, done.charged, 10);
            }
            if quiet {
                longest = longest.max(waited);
                break;
            }
        }
    }

    assert!(longest <= 20, "{longest} of the flood went before");
}

#[test]
fn a_position_counts_what_others_get_meanwhile() {
    let mut queue = FairQueue::new(QUANTUM, QUANTUM);
    let ids: Vec<_> = (0..10)
        .map(|n| queue.push(&"flood", 1, CallClass::Interactive, 100, n))
        .collect();
    let quiet = queue.push(&"quiet", 1, CallClass::Interactive, 100, 10);
    let heavy = queue.push(&"heavy", 3, CallClass::Interactive, 100, 11);

    assert_eq!(
        queue.position(&"quiet", CallClass::Interactive, quiet),
        Some(5),
        "itself and what weights 1 and 3 get meanwhile"
    );
    assert_eq!(
        queue.position(&"heavy", CallClass::Interactive, heavy),
        Some(2)
    );
    assert_eq!(
        queue.position(&"flood", CallClass::Interactive, ids[9]),
        Some(12)
    );
    assert_eq!(queue.last_position(&"flood"), Some(12));
    assert_eq!(
        queue.position(&"flood", CallClass::Background, ids[9]),
        None
    );
}

#[test]
fn room_is_made_at_the_cost_of_who_has_most_for_its_weight() {
    let mut queue = FairQueue::new(QUANTUM, QUANTUM);
    for n in 0..6 {
        queue.push(&"heavy", 4, CallClass::Interactive, 100, n);
    }
    for n in 10..13 {
        queue.push(&"flood", 1, CallClass::Interactive, 100, n);
    }

    assert_eq!(
        queue.shed(&"flood", 1),
        None,
        "the one who floods makes its own room"
    );
    assert_eq!(queue.shed(&"new", 1), Some(12));
    assert_eq!(queue.shed(&"new", 1), Some(11));
    assert_eq!(queue.len(), 7);
}

/// For any costs, weights, classes and departures: what backlogged keys were served, relative to
/// their weights, differs by at most one quantum and one request.
#[test]
fn over_a_long_backlog_shares_of_what_is_served_follow_the_weights() {
    const COST_MAX: u64 = 5000;
    for seed in 0..60 {
        let mut draws = seed << 32;
        let mut draw = |below: u64| {
            draws += 1;
            splitmix64(draws) % below
        };
        let keys: Vec<u64> = (0..2 + draw(12)).collect();
        let weights: Vec<u32> = keys
            .iter()
            .map(|_| u32::try_from(1 + draw(5)).unwrap())
            .collect();
        let mut queue = FairQueue::new(QUANTUM, QUANTUM);
        let mut served = vec![0u64; keys.len()];
        let add = |queue: &mut FairQueue<u64, u64>, key: u64, draw: &mut dyn FnMut(u64) -> u64| {
            let class = CallClass::ALL[usize::try_from(draw(3)).unwrap()];
            let cost = if draw(4) == 0 {
                1 + draw(COST_MAX)
            } else {
                1 + draw(200)
            };
            (
                class,
                queue.push(
                    &key,
                    weights[usize::try_from(key).unwrap()],
                    class,
                    cost,
                    cost,
                ),
            )
        };
        for key in &keys {
            for _ in 0..4 {
                add(&mut queue, *key, &mut draw);
            }
        }

        for step in 0..3000 {
            let Taken {
                key, item: cost, ..
            } = queue.pop().unwrap();
            served[usize::try_from(key).unwrap()] += cost;
            add(&mut queue, key, &mut draw);
            if draw(3) == 0 {
                // Waiters arrive and leave again; their key keeps waiting.
                let key = draw(keys.len() as u64);
                let many = 1 + draw(3);
                let come: Vec<_> = (0..many).map(|_| add(&mut queue, key, &mut draw)).collect();
                come.into_iter()
                    .for_each(|(class, id)| assert!(queue.remove(&key, class, id).is_some()));
            }

            let shares = served
                .iter()
                .zip(&weights)
                .map(|(served, weight)| served / u64::from(*weight));
            let least = shares.clone().min().unwrap();
            let most = shares.max().unwrap();
            assert!(
                most - least <= QUANTUM + COST_MAX,
                "seed {seed}, step {step}: {served:?} for {weights:?}"
            );
        }
    }
}
