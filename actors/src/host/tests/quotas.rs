//! Quotas of tenants: requests are refused before anything is activated, and quotas change at any
//! time. Also paused and removed tenants, and deadlines that pass in a queue.

use std::{sync::Arc, time::Duration};

use super::*;
use crate::{
    chat::Usage,
    conversation::ConversationError,
    host::{FanOut, Reply as Round, SendError, TenantConfig},
    ids::TenantId,
    limits::Limits,
    ports::ListQuery,
    tenant::{Quotas, Refused},
    testing::{Reply, ScriptedModel},
};

fn acme() -> TenantId {
    "acme".try_into().unwrap()
}

async fn bound(host: &Host, quotas: Quotas) {
    host.configure_tenant(&acme(), TenantConfig::new().quotas(quotas))
        .await
        .unwrap();
}

/// A model that never answers `hang` and answers `hello` otherwise.
fn model() -> Arc<ScriptedModel> {
    Arc::new(ScriptedModel::answering(|request, _| {
        match request.messages.last().unwrap().text().as_str() {
            "hang" => Reply::stall(),
            _ => Reply::text("hello").usage(Usage {
                input_uncached: 10,
                output: 10,
                ..Usage::default()
            }),
        }
    }))
}

async fn say(host: &Host, conversation: &str, text: &str) -> Result<Round, SendError> {
    host.tenant("acme")
        .conversation(conversation)
        .send(text)
        .await
}

/// The refused quota and the retry hint of an `Overloaded` error.
fn refusal(result: Result<Round, SendError>) -> (&'static str, u64) {
    match result.map(drop) {
        Err(SendError::Conversation(ConversationError::Overloaded {
            what,
            retry_after_ms,
        })) => (what, retry_after_ms),
        other => panic!("not refused for a bound: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn every_bound_refuses_at_once_with_a_hint_and_wakes_no_conversation() {
    let cases: [(Quotas, &str, std::ops::RangeInclusive<u64>, Refused); 6] = [
        (
            Quotas {
                prompts_max: Some(1),
                ..Quotas::default()
            },
            "prompts of this tenant",
            1000..=1000,
            Refused {
                prompts: 1,
                ..Refused::default()
            },
        ),
        (
            Quotas {
                requests_per_minute: Some(1),
                ..Quotas::default()
            },
            "prompts of this tenant in a minute",
            59_000..=60_000,
            Refused {
                requests: 1,
                ..Refused::default()
            },
        ),
        (
            Quotas {
                tokens_per_minute: Some(10),
                ..Quotas::default()
            },
            "tokens of this tenant in a minute",
            60_000..=240_000,
            Refused {
                tokens: 1,
                ..Refused::default()
            },
        ),
        (
            Quotas {
                memory_bytes_max: Some(2000),
                ..Quotas::default()
            },
            "memory of this tenant",
            1000..=1000,
            Refused {
                memory: 1,
                ..Refused::default()
            },
        ),
        (
            Quotas {
                conversations_max: Some(1),
                ..Quotas::default()
            },
            "conversations of this tenant",
            60_000..=60_000,
            Refused {
                conversations: 1,
                ..Refused::default()
            },
        ),
        (
            Quotas {
                stored_bytes_max: Some(300),
                ..Quotas::default()
            },
            "stored bytes of this tenant",
            60_000..=60_000,
            Refused {
                stored: 1,
                ..Refused::default()
            },
        ),
    ];
    for (quotas, what, hint, refused) in cases {
        let host = host(&model()).await;
        bound(&host, quotas).await;
        if quotas.tokens_per_minute.is_some() {
            say(&host, "one", "Hi")
                .await
                .unwrap()
                .outcome()
                .await
                .unwrap();
        } else {
            drop(say(&host, "one", "hang").await.unwrap());
        }
        let lives = host.figures().await.total.lives;
        let began = tokio::time::Instant::now();

        let (named, retry_after_ms) = refusal(say(&host, "two", "Hi").await);

        assert_eq!(named, what);
        assert!(
            hint.contains(&retry_after_ms),
            "{what}: {retry_after_ms} ms"
        );
        assert_eq!(
            (
                host.figures().await.total.lives,
                host.awake(),
                began.elapsed()
            ),
            (lives, 1, Duration::ZERO),
            "{what}"
        );
        assert_eq!(host.tenant("acme").usage().unwrap().refused, refused);
        assert_eq!(host.figures().await.total.refusals, 1, "{what}");
        let other = host
            .tenant("other")
            .conversation("two")
            .send("Hi")
            .await
            .unwrap()
            .outcome()
            .await;
        assert!(other.is_ok(), "{what}: a neighbour is not concerned");

        bound(&host, Quotas::default()).await;
        assert!(
            say(&host, "two", "Hi")
                .await
                .unwrap()
                .outcome()
                .await
                .is_ok(),
            "{what}: without the bound it is let in at once"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn who_comes_back_when_the_hint_says_is_let_in() {
    let host = host(&model()).await;
    for quotas in [
        Quotas {
            requests_per_minute: Some(2),
            ..Quotas::default()
        },
        Quotas {
            tokens_per_minute: Some(25),
            ..Quotas::default()
        },
    ] {
        tokio::time::sleep(Duration::from_secs(3600)).await;
        bound(&host, Quotas::default()).await;
        bound(&host, quotas).await;
        let mut refused = 0;
        for round in 0..20 {
            let after = match say(&host, "one", "Hi").await {
                Ok(mut said) => {
                    said.outcome().await.unwrap();
                    continue;
                }
                refusal => self::refusal(refusal).1,
            };
            refused += 1;
            tokio::time::sleep(Duration::from_millis(after)).await;
            assert!(
                say(&host, "one", "Hi")
                    .await
                    .unwrap()
                    .outcome()
                    .await
                    .is_ok(),
                "{quotas:?}, round {round}"
            );
        }
        assert!(refused > 5, "{quotas:?}");
    }
    assert!(
        host.tenant("acme").usage().unwrap().tokens > 100,
        "tokens are charged"
    );
}

#[tokio::test(start_paused = true)]
async fn the_hosts_memory_bounds_all_tenants_together() {
    let limits = Limits {
        memory_bytes_max: 3000,
        ..Limits::default()
    };
    let host = builder(&model()).limits(limits).build().await.unwrap();
    let first = say(&host, "one", "hang").await.unwrap();
    drop(
        host.tenant("other")
            .conversation("one")
            .send("hang")
            .await
            .unwrap(),
    );

    assert_eq!(
        refusal(say(&host, "two", "Hi").await),
        ("memory of this host", 1000)
    );

    host.tenant("acme")
        .conversation("one")
        .interrupt()
        .await
        .unwrap();
    let mut first = first;
    first.outcome().await.unwrap();
    assert!(
        say(&host, "two", "Hi").await.is_ok(),
        "a round that ends gives its bytes back"
    );
}

#[tokio::test(start_paused = true)]
async fn one_tenant_leaves_as_much_memory_of_the_host_as_it_has() {
    let limits = Limits {
        memory_bytes_max: 1_000_000,
        ..Limits::default()
    };
    let model = Arc::new(ScriptedModel::always(Reply::stall()));
    let host = builder(&model).limits(limits).build().await.unwrap();
    let fill = async |tenant: &str| {
        let mut held = Vec::new();
        loop {
            let id = format!("c-{}", held.len());
            let conversation = host.tenant(tenant).conversation(id.as_str());
            match conversation.send("x".repeat(50_000)).await {
                Ok(reply) => held.push(reply),
                Err(_) => return held,
            }
        }
    };

    let counts = [fill("one").await, fill("two").await, fill("three").await];

    let counts = counts.map(|held| held.len());
    assert!(counts[0] >= 9 && counts[0] <= 10, "{counts:?}");
    assert!(counts[1] >= 4 && counts[2] >= 2, "{counts:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lower_bound_takes_hold_as_turns_end_and_ends_none() {
    let model = Arc::new(ScriptedModel::always(
        Reply::text("hello").after(Duration::from_secs(10)),
    ));
    let host = host(&model).await;
    bound(
        &host,
        Quotas {
            turns_max: Some(3),
            ..Quotas::default()
        },
    )
    .await;
    let mut rounds = Vec::new();
    for n in 0..6 {
        rounds.push(say(&host, &format!("c-{n}"), "Hi").await.unwrap());
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let running = || {
        let usage = host.tenant("acme").usage().unwrap();
        (usage.turns_running, usage.turns_waiting)
    };
    assert_eq!(running(), (3, 3));

    bound(
        &host,
        Quotas {
            turns_max: Some(1),
            ..Quotas::default()
        },
    )
    .await;
    assert_eq!(running(), (3, 3), "what runs goes on");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(running(), (1, 2));
    bound(
        &host,
        Quotas {
            turns_max: Some(2),
            ..Quotas::default()
        },
    )
    .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(running(), (2, 1));

    for mut round in rounds {
        assert!(round.outcome().await.is_ok());
    }
    assert_eq!(running(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn no_verb_begins_a_conversation_beyond_the_bound_and_those_there_go_on() {
    let store = store();
    let host = builder(&model())
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    bound(
        &host,
        Quotas {
            conversations_max: Some(2),
            ..Quotas::default()
        },
    )
    .await;
    let talk = |id: &str| host.tenant("acme").conversation(id.to_owned());
    for id in ["one", "two"] {
        talk(id).send("Hi").await.unwrap().outcome().await.unwrap();
    }

    let refused = [
        refusal(talk("three").send("Hi").await),
        refusal(
            talk("three")
                .import(vec![crate::chat::Message::user("imported")])
                .await
                .map(|()| unreachable!()),
        ),
        refusal(
            talk("three")
                .inject(None, "a word")
                .await
                .map(|()| unreachable!()),
        ),
        refusal(talk("three").pin("a line").await.map(|()| unreachable!())),
        refusal(
            talk("one")
                .fork("three", None)
                .await
                .map(|_| unreachable!()),
        ),
    ];
    assert_eq!(refused, [("conversations of this tenant", 60_000); 5]);
    assert!(
        talk("two")
            .send("Hi")
            .await
            .unwrap()
            .outcome()
            .await
            .is_ok()
    );
    assert_eq!(store.count(&acme()).await, Ok(2));

    assert_eq!(talk("one").delete().await, Ok(true));
    assert!(
        talk("one").fork("three", None).await.is_err(),
        "there is nothing to copy"
    );
    assert!(
        talk("three")
            .send("Hi")
            .await
            .unwrap()
            .outcome()
            .await
            .is_ok(),
        "a deletion makes room"
    );
    assert_eq!(
        refusal(talk("one").send("Hi").await).0,
        "conversations of this tenant"
    );
    assert_eq!(
        store
            .list(&acme(), ListQuery::default())
            .await
            .unwrap()
            .len(),
        2
    );
}

#[tokio::test(start_paused = true)]
async fn what_was_stored_before_the_bound_is_counted() {
    let store = store();
    let model = model();
    let first = builder(&model)
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    for n in 0..3 {
        say(&first, &format!("c-{n}"), "Hi")
            .await
            .unwrap()
            .outcome()
            .await
            .unwrap();
    }
    drop(first);
    let host = builder(&model)
        .shared_sessions(store)
        .build()
        .await
        .unwrap();
    bound(
        &host,
        Quotas {
            conversations_max: Some(3),
            ..Quotas::default()
        },
    )
    .await;

    assert!(say(&host, "c-1", "Hi").await.is_ok());
    assert_eq!(
        refusal(say(&host, "c-3", "Hi").await).0,
        "conversations of this tenant"
    );
    bound(
        &host,
        Quotas {
            conversations_max: Some(4),
            ..Quotas::default()
        },
    )
    .await;
    assert!(say(&host, "c-3", "Hi").await.is_ok());
    assert_eq!(host.tenant("acme").usage().unwrap().conversations, Some(4));
}

#[tokio::test(start_paused = true)]
async fn conversations_that_begin_at_once_never_pass_the_bound() {
    for seed in 0..20usize {
        let store = store();
        let host = builder(&model())
            .shared_sessions(store.clone())
            .build()
            .await
            .unwrap();
        bound(
            &host,
            Quotas {
                conversations_max: Some(4),
                ..Quotas::default()
            },
        )
        .await;
        let sends = (0..40).map(|n| {
            let talk = host
                .tenant("acme")
                .conversation(format!("c-{}", (n * 7 + seed) % 9));
            tokio::spawn(async move {
                talk.send("Hi")
                    .await
                    .map(drop)
                    .map_err(|error| error.code())
            })
        });
        let answers = futures_util::future::join_all(sends.collect::<Vec<_>>()).await;

        let codes: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
        assert!(
            codes
                .iter()
                .all(|code| matches!(code, Ok(()) | Err("overloaded"))),
            "seed {seed}: {codes:?}"
        );
        assert_eq!(store.count(&acme()).await, Ok(4), "seed {seed}");
        assert_eq!(
            host.tenant("acme").usage().unwrap().conversations,
            Some(4),
            "seed {seed}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_refuses_what_is_new_lets_run_what_runs_and_keeps_what_waits() {
    let model = Arc::new(ScriptedModel::answering(|request, _| {
        Reply::text(format!(
            "answer to {}",
            request.messages.last().unwrap().text()
        ))
        .after(Duration::from_secs(5))
    }));
    let limits = Limits {
        model_total: Duration::from_secs(60),
        ..Limits::default()
    };
    let host = builder(&model).limits(limits).build().await.unwrap();
    let mut first = say(&host, "one", "first").await.unwrap();
    let mut second = say(&host, "one", "second").await.unwrap();
    model.until(|counts| counts.started == 1).await;

    host.tenant("acme").pause(true).unwrap();
    let refused = say(&host, "two", "Hi").await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.is_retryable()),
        ("tenant_paused", false)
    );
    assert_eq!(first.outcome().await.unwrap().text, "answer to first");
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(
        (
            model.requests().len(),
            host.tenant("acme").usage().unwrap().turns_waiting
        ),
        (1, 1)
    );
    assert!(
        host.tenant("other")
            .conversation("one")
            .send("Hi")
            .await
            .unwrap()
            .outcome()
            .await
            .is_ok()
    );

    host.tenant("acme").pause(false).unwrap();
    assert_eq!(
        second.outcome().await.unwrap().text,
        "answer to second",
        "an hour is no model call that hangs"
    );
    assert!(say(&host, "two", "Hi").await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_drain_of_a_paused_tenant_loses_no_accepted_prompt() {
    let store = store();
    let model = model();
    let first = builder(&model)
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    let mut running = say(&first, "one", "hang").await.unwrap();
    let waiting = say(&first, "one", "waits").await.unwrap();
    model.until(|counts| counts.started == 1).await;
    first.tenant("acme").pause(true).unwrap();

    first.directory_drain().await;
    let interrupted = running.outcome().await.unwrap().error.unwrap();
    let second = builder(&model)
        .shared_sessions(store)
        .build()
        .await
        .unwrap();
    assert_eq!(second.resume_interrupted().await, Ok(1));
    let mut again = host_watch(&second, waiting.round_id());
    let answered = again.outcome().await.unwrap();

    assert_eq!(
        (interrupted.code.as_str(), answered.text.as_str()),
        ("draining", "hello")
    );
}

fn host_watch(host: &Host, round: crate::ids::RoundId) -> Round {
    host.tenant("acme")
        .conversation("one")
        .watch(round)
        .unwrap()
}

impl Host {
    /// A shutdown that leaves the store open for the next host.
    async fn directory_drain(&self) {
        self.0
            .directory
            .drain(tokio::time::Instant::now() + Duration::from_secs(1))
            .await;
        self.0.supervisor.stop(None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_removed_tenant_is_refused_until_it_is_configured_again() {
    let host = host(&model()).await;
    say(&host, "one", "Hi")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();
    let _ = host.tenant("other").usage().unwrap();
    assert_eq!(host.tenant_ids(), [acme(), "other".try_into().unwrap()]);

    assert_eq!(
        (host.remove_tenant(&acme()), host.remove_tenant(&acme())),
        (true, false)
    );
    assert!(!host.remove_tenant(&"unknown".try_into().unwrap()));

    assert_eq!(host.tenant_ids(), ["other".try_into().unwrap()]);
    let talk = host.tenant("acme").conversation("one");
    assert_eq!(talk.send("Hi").await.unwrap_err().code(), "tenant_removed");
    assert_eq!(
        talk.inject(None, "a word").await.unwrap_err().code(),
        "tenant_removed"
    );
    assert_eq!(
        talk.messages().await.unwrap().len(),
        2,
        "what is stored stays"
    );
    bound(&host, Quotas::default()).await;
    assert!(talk.send("Hi").await.unwrap().outcome().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_passes_in_a_queue_leaves_no_residue() {
    // The first case waits for the tenant's permit, the second for the provider's.
    for (quotas, limits) in [
        (
            Quotas {
                turns_max: Some(1),
                ..Quotas::default()
            },
            Limits::default(),
        ),
        (
            Quotas::default(),
            Limits {
                model_calls_max: 1,
                ..Limits::default()
            },
        ),
    ] {
        let model = model();
        let host = builder(&model).limits(limits).build().await.unwrap();
        bound(&host, quotas).await;
        let mut first = say(&host, "one", "hang").await.unwrap();
        model.until(|counts| counts.started == 1).await;

        let late = host.tenant("acme").conversation("two");
        let mut waits = late
            .send("late")
            .deadline(Duration::from_secs(3))
            .await
            .unwrap();
        let error = waits.outcome().await.unwrap().error.unwrap();

        assert_eq!(
            (error.code.as_str(), model.requests().len()),
            ("deadline", 1),
            "{quotas:?}"
        );
        let usage = host.tenant("acme").usage().unwrap();
        assert_eq!(
            (usage.prompts, usage.turns_waiting),
            (1, 0),
            "{quotas:?}: {usage:?}"
        );
        host.tenant("acme")
            .conversation("one")
            .interrupt()
            .await
            .unwrap();
        first.outcome().await.unwrap();
        assert_eq!(
            late.send("Hi").await.unwrap().outcome().await.unwrap().text,
            "hello"
        );
        let usage = host.tenant("acme").usage().unwrap();
        assert_eq!(
            (usage.prompts, usage.turns_running, usage.memory_bytes),
            (0, 0, 0),
            "{quotas:?}"
        );
        host.hibernate_idle();
        until("both sleep", || host.awake() == 0).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_key_holds_after_sleep_after_a_restart_and_between_two_at_once() {
    let store = store();
    let model = model();
    let first = builder(&model)
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    let talk = first.tenant("acme").conversation("one");

    let (a, b) = tokio::join!(
        talk.send("Hi").client_key("k"),
        talk.send("Hi").client_key("k")
    );
    let mut a = a.unwrap();
    let b = b.unwrap();
    assert_eq!(
        (a.round_id(), a.is_replayed() ^ b.is_replayed()),
        (b.round_id(), true)
    );
    a.outcome().await.unwrap();
    first.hibernate_idle();
    until("it sleeps", || first.awake() == 0).await;
    let slept = talk.send("Hi").client_key("k").await.unwrap();
    drop(first);
    let second = builder(&model)
        .shared_sessions(store)
        .build()
        .await
        .unwrap();
    let talk = second.tenant("acme").conversation("one");
    let mut restarted = talk.send("Hi").client_key("k").await.unwrap();
    let other = talk.send("Other").client_key("k").await.unwrap_err();

    assert_eq!([slept.round_id(), restarted.round_id()], [a.round_id(); 2]);
    assert!(slept.is_replayed() && restarted.is_replayed());
    assert_eq!(restarted.outcome().await.unwrap().text, "hello");
    assert_eq!(
        (other.code(), model.requests().len()),
        ("idempotency_key_reused", 1)
    );
}

#[tokio::test(start_paused = true)]
async fn whatever_begins_a_conversation_needs_a_place_for_it() {
    let host = host(&model()).await;
    bound(
        &host,
        Quotas {
            conversations_max: Some(1),
            ..Quotas::default()
        },
    )
    .await;
    let talk = |id: &str| host.tenant("acme").conversation(id);

    let first = talk("one").reset().await;
    let again = talk("one").reset().await;
    let emptied = talk("two").reset().await;
    let imported = talk("two")
        .import(vec![crate::chat::Message::user("Hi")])
        .await;
    let pinned = talk("two").pin("a line").await;

    assert_eq!(
        (first, again),
        (Ok(()), Ok(())),
        "the one that is there may be emptied as often as one likes"
    );
    for refused in [emptied, imported, pinned] {
        assert!(
            matches!(
                &refused,
                Err(SendError::Conversation(
                    ConversationError::Overloaded { .. }
                ))
            ),
            "{refused:?}"
        );
    }
    assert_eq!(
        host.tenant("acme")
            .conversations(ListQuery::default())
            .await
            .unwrap()
            .len(),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn tasks_of_fan_outs_store_no_more_than_their_tenant_may() {
    let store = store();
    let host = builder(&model())
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    bound(
        &host,
        Quotas {
            stored_bytes_max: Some(20_000),
            ..Quotas::default()
        },
    )
    .await;
    let tenant = host.tenant("acme");
    let tasks = (0..20).map(|n| format!("{n} {}", "x".repeat(6000)));

    let summary = tenant
        .fan_out(FanOut::over(tasks).parallel(1))
        .await
        .unwrap()
        .finish()
        .await;
    let stored = store.stored_bytes(&acme()).await.unwrap();
    bound(
        &host,
        Quotas {
            stored_bytes_max: Some(1),
            ..Quotas::default()
        },
    )
    .await;
    let next = tenant.fan_out(FanOut::over(["Hi"])).await;

    let failed = summary.tasks.iter().filter(|end| !end.is_done()).count();
    assert!((17..20).contains(&failed), "{failed} of 20 failed");
    assert!(stored < 30_000, "{stored} bytes are stored");
    assert!(
        matches!(
            next,
            Err(SendError::Conversation(
                ConversationError::Overloaded { .. }
            ))
        ),
        "{:?}",
        next.err()
    );
}

#[tokio::test(start_paused = true)]
async fn what_the_host_has_no_room_for_takes_none_of_the_tenants() {
    let limits = Limits {
        memory_bytes_max: 100_000,
        ..Limits::default()
    };
    let host = builder(&model()).limits(limits).build().await.unwrap();
    bound(
        &host,
        Quotas {
            memory_bytes_max: Some(10_000_000),
            ..Quotas::default()
        },
    )
    .await;
    let hangs = say(&host, "c-1", "hang").await.unwrap();
    let before = host.tenant("acme").usage().unwrap().memory_bytes;

    let (what, _) = refusal(say(&host, "c-2", &"x".repeat(200_000)).await);

    assert_eq!(
        (what, host.tenant("acme").usage().unwrap().memory_bytes),
        ("memory of this host", before)
    );
    drop(hangs);
}

#[tokio::test(start_paused = true)]
async fn events_of_a_tenant_count_for_its_memory() {
    let model = Arc::new(ScriptedModel::answering(|request, _| {
        match request.messages.last().unwrap().text().as_str() {
            "hang" => Reply::stall(),
            _ => Reply::text("x".repeat(200_000)),
        }
    }));
    let host = builder(&model).build().await.unwrap();
    bound(
        &host,
        Quotas {
            memory_bytes_max: Some(300_000),
            ..Quotas::default()
        },
    )
    .await;
    say(&host, "c-1", "speak")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();
    let hangs = say(&host, "c-2", "hang").await.unwrap(); // A single prompt always has room.

    let (what, _) = refusal(say(&host, "c-3", "hello").await);

    assert_eq!(what, "memory of this tenant");
    drop(hangs);
}
