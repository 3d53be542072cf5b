//! Properties of budgets: no reservation exceeds a limit, a refusal leaves no trace, and a release
//! returns exactly what was taken.

use std::sync::Barrier;

use super::*;

fn tokens(tokens: u64) -> Amount {
    Amount {
        tokens,
        ..Amount::default()
    }
}

fn root(budget: Budget) -> Arc<BudgetCounter> {
    BudgetCounter::root(BudgetLevel::Tenant, budget)
}

#[test]
fn a_refusal_names_level_and_figure_and_leaves_no_trace_above() {
    let tenant = root(Budget::default().with_tokens(100));
    let conversation = tenant.below(
        BudgetLevel::Conversation,
        Budget::default().with_usd(0.000_010),
    );
    let subagent = conversation.below(BudgetLevel::Subagent, Budget::default().with_tokens(10));
    let wanted = Amount {
        tokens: 8,
        micro_usd: 11,
        wall_ms: 0,
    };

    let money = subagent.reserve(wanted).unwrap_err();
    let few = subagent.reserve(tokens(11)).unwrap_err();
    let many = subagent.reserve(tokens(101)).unwrap_err();

    assert_eq!(
        (money.level, money.kind, money.limit),
        (BudgetLevel::Conversation, BudgetKind::Money, 10)
    );
    assert_eq!(
        (few.level, few.kind, few.wanted),
        (BudgetLevel::Subagent, BudgetKind::Tokens, 11)
    );
    assert_eq!(
        many.level,
        BudgetLevel::Tenant,
        "the highest level is asked first"
    );
    assert_eq!(
        [&tenant, &conversation, &subagent].map(|counter| counter.spent()),
        [Amount::default(); 3]
    );
    assert_eq!(
        many.to_string(),
        "the tenant's budget of 100 tokens is used up: 0 are spent, the next call needs about 101"
    );
}

#[test]
fn a_reservation_is_settled_or_given_back_on_every_level() {
    let tenant = root(Budget::default().with_tokens(100));
    let conversation = tenant.below(BudgetLevel::Conversation, Budget::default());

    conversation.reserve(tokens(60)).unwrap().settle(tokens(10));
    let open = conversation.reserve(tokens(90)).unwrap();
    let refused = conversation.reserve(tokens(1));
    drop(open);
    conversation.reserve(tokens(90)).unwrap().settle(tokens(95));

    assert!(refused.is_err());
    assert_eq!(
        (tenant.spent(), conversation.spent()),
        (tokens(105), tokens(105)),
        "what was really used counts, also beyond the bound"
    );
    assert!(
        tenant.reserve(Amount::default()).is_err(),
        "an exhausted budget has no room for anything"
    );
    assert_eq!(
        (tenant.left_percent(), conversation.left_percent()),
        (Some(0), None)
    );
}

#[test]
fn what_is_left_is_the_tightest_figure() {
    let budget = Budget::default()
        .with_tokens(1000)
        .with_usd(1.0)
        .with_time(Duration::from_secs(10));
    let spent = Amount {
        tokens: 100,
        micro_usd: 951_000,
        wall_ms: 5000,
    };

    assert_eq!(budget.left_percent(&spent), Some(5));
    assert_eq!(Budget::default().left_percent(&spent), None);
    assert_eq!(
        Budget::default()
            .with_tokens(0)
            .left_percent(&Amount::default()),
        Some(0)
    );
    assert_eq!(
        [0.5, -1.0, f64::NAN].map(|usd| Budget::default().with_usd(usd).micro_usd),
        [Some(500_000), Some(0), Some(0)]
    );
}

#[test]
fn figures_that_are_absurd_never_credit() {
    let tenant = root(Budget::default().with_tokens(100));

    tenant.reserve(tokens(50)).unwrap().settle(tokens(u64::MAX));
    tenant.charge(tokens(u64::MAX));

    assert_eq!(tenant.spent(), tokens(u64::MAX));
    assert!(tenant.reserve(tokens(1)).is_err());
}

/// splitmix64.
fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*seed ^ (*seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 31)
}

#[test]
fn a_tree_counts_as_a_book_would() {
    for run in 0..200u64 {
        let mut seed = run;
        let limits: Vec<u64> = (0..3).map(|_| 50 + next(&mut seed) % 200).collect();
        let tenant = root(Budget::default().with_tokens(limits[0]));
        let conversation = tenant.below(
            BudgetLevel::Conversation,
            Budget::default().with_tokens(limits[1]),
        );
        let leaves: Vec<_> = (0..2)
            .map(|_| {
                conversation.below(
                    BudgetLevel::Subagent,
                    Budget::default().with_tokens(limits[2]),
                )
            })
            .collect();
        let mut open: Vec<(usize, Reservation)> = Vec::new();
        let mut book = [0u64; 2];
        for _ in 0..100 {
            let leaf = next(&mut seed) as usize % 2;
            let amount = next(&mut seed) % 40;
            match next(&mut seed) % 4 {
                0 | 1 => {
                    let sum: u64 = book.iter().sum();
                    let room = |spent: u64, limit: u64| spent < limit && spent + amount <= limit;
                    let fits =
                        room(sum, limits[0]) && room(sum, limits[1]) && room(book[leaf], limits[2]);
                    let reserved = leaves[leaf].reserve(tokens(amount));
                    assert_eq!(reserved.is_ok(), fits, "seed {run}");
                    if let Ok(reservation) = reserved {
                        book[leaf] += amount;
                        open.push((leaf, reservation));
                    }
                }
                2 if !open.is_empty() => {
                    let (leaf, reservation) =
                        open.swap_remove(next(&mut seed) as usize % open.len());
                    book[leaf] = book[leaf] - reservation.amount.tokens + amount;
                    reservation.settle(tokens(amount));
                }
                _ => {
                    if let Some((leaf, reservation)) = open.pop() {
                        book[leaf] -= reservation.amount.tokens;
                    }
                }
            }
            let spent = [&tenant, &conversation, &leaves[0], &leaves[1]]
                .map(|counter| counter.spent().tokens);
            let sum = book[0] + book[1];
            assert_eq!(spent, [sum, sum, book[0], book[1]], "seed {run}");
        }
    }
}

#[test]
fn sixty_four_on_one_budget_overspend_at_most_the_calls_in_flight() {
    const LIMIT: u64 = 100_000;
    const RESERVED: u64 = 100;
    const MORE: u64 = 20;
    let tenant = root(Budget::default().with_tokens(LIMIT));
    let start = Barrier::new(64);
    let used = AtomicU64::new(0);

    std::thread::scope(|scope| {
        for thread in 0..64u64 {
            let tenant = &tenant;
            let start = &start;
            let used = &used;
            scope.spawn(move || {
                let conversation = tenant.below(BudgetLevel::Conversation, Budget::default());
                let mut seed = thread;
                start.wait();
                while let Ok(reservation) = conversation.reserve(tokens(RESERVED)) {
                    let cost = next(&mut seed) % (RESERVED + MORE);
                    if seed.is_multiple_of(7) {
                        continue; // Released: nothing was used.
                    }
                    used.fetch_add(cost, Ordering::SeqCst);
                    reservation.settle(tokens(cost));
                }
            });
        }
    });

    let used = used.into_inner();
    assert_eq!(
        tenant.spent(),
        tokens(used),
        "nothing is lost and nothing is counted twice"
    );
    assert!(used <= LIMIT + 64 * MORE, "{used}");
    assert!(
        used + RESERVED > LIMIT,
        "{used}: who was refused was refused for a reason"
    );
}

#[test]
fn a_refused_reservation_refuses_no_other() {
    const ROUNDS: usize = 50_000;
    let tenant = root(Budget::default().with_tokens(100));
    let poor = tenant.below(
        BudgetLevel::Conversation,
        Budget {
            micro_usd: Some(1),
            ..Budget::default()
        },
    );
    let rich = tenant.below(BudgetLevel::Conversation, Budget::default());
    let start = Barrier::new(2);

    std::thread::scope(|scope| {
        scope.spawn(|| {
            start.wait();
            for _ in 0..ROUNDS {
                let wanted = Amount {
                    micro_usd: 2,
                    ..tokens(60)
                };
                assert!(poor.reserve(wanted).is_err());
            }
        });
        start.wait();
        for round in 0..ROUNDS {
            if let Err(refusal) = rich.reserve(tokens(60)) {
                panic!("round {round}: nothing is spent, and {refusal}");
            }
        }
    });

    assert_eq!(tenant.spent(), Amount::default());
}
