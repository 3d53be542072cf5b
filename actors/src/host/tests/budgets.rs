//! Budgets of conversations, families and tenants: which round ends when a budget is used up, and
//! what the model and the caller read about it.

use std::sync::Arc;

use super::*;
use crate::{
    chat::{Usage, is_reminder},
    host::BuildError,
    journal::{Durable, EntryBody},
    policy::{Amount, Budget, Price, Prices},
    ports::ProviderError,
    stream::StopReason,
    testing::{FaultPlan, FaultySessions, Reply, ScriptedModel},
};

fn usage(input: u64, output: u64) -> Usage {
    Usage {
        input_uncached: input,
        output,
        ..Usage::default()
    }
}

fn sonnet() -> Prices {
    Prices::default().with("scripted*", Price::per_million(3.0, 15.0).unwrap())
}

async fn entries(host: &Host) -> Vec<EntryBody> {
    let scope = crate::ids::Scope::new("acme".try_into().unwrap(), "c-1".try_into().unwrap());
    let stored = host
        .ports()
        .sessions
        .entries(&scope, Default::default(), 1000)
        .await
        .unwrap();
    stored
        .iter()
        .map(|stored| crate::journal::Entry::decode(stored).unwrap().body)
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_round_whose_next_call_has_no_room_ends_with_its_budget_and_keeps_its_text() {
    let (tool, _) = probe("look", EffectClass::Pure, |_| async { Ok("seen".into()) });
    let reply = Reply::text("I look.")
        .and_tool("look", &serde_json::json!({}))
        .usage(usage(500, 400));
    let model = Arc::new(ScriptedModel::always(reply));
    let host = builder(&model)
        .tool(tool)
        .max_tokens(100)
        .budget(Budget::default().with_tokens(2000))
        .build()
        .await
        .unwrap();

    let end = conversation(&host)
        .send("Hi")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();
    let again = conversation(&host)
        .send("More")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    let failure = end.error.unwrap();
    assert_eq!(
        (end.stop_reason, failure.code.as_str(), end.text.as_str()),
        (StopReason::Budget, "budget", "I look.")
    );
    assert!(
        failure
            .message
            .starts_with("the conversation's budget of 2000 tokens is used up: 1800 are spent"),
        "{}",
        failure.message
    );
    assert_eq!(
        again.stop_reason,
        StopReason::Budget,
        "spending outlives its round"
    );
    assert_eq!(model.requests().len(), 2);
    assert_eq!(
        conversation(&host)
            .state()
            .await
            .unwrap()
            .spent
            .amount
            .tokens,
        1800
    );
}

#[tokio::test(start_paused = true)]
async fn attempts_that_failed_count_in_figures_and_budgets() {
    let broken = |text: &str| {
        let mut reply = Reply::text(text);
        if text.is_empty() {
            reply = Reply::empty();
        }
        reply
            .reports_first(usage(400, 1))
            .then_fail(ProviderError::Connection {
                message: "reset".into(),
            })
    };
    let script = move |_: &crate::chat::ModelRequest, call: usize| match call {
        0..3 | 5.. => broken(""),
        3 => Reply::text("ok").usage(usage(300, 20)),
        4 => broken(&"half ".repeat(60)), // 300 bytes, 100 tokens
    };
    for budget in [Budget::default(), Budget::default().with_tokens(5000)] {
        let model = Arc::new(ScriptedModel::answering(script));
        let host = builder(&model)
            .model("scripted-1")
            .max_tokens(100)
            .budget(budget)
            .prices(sonnet())
            .build()
            .await
            .unwrap();
        let talk = conversation(&host);
        let spent = async || {
            let state = talk.state().await.unwrap();
            let spent = state.spent.amount;
            assert_eq!(
                (state.metrics.usage.input(), state.metrics.cost_micro_usd),
                (spent.tokens - state.metrics.usage.output, spent.micro_usd)
            );
            (spent.tokens, spent.micro_usd, state.last_usage)
        };

        let whole = talk.send("Hi").await.unwrap().outcome().await.unwrap();
        assert_eq!(whole.usage, usage(1500, 23));
        let cost = 1500 * 3 + 23 * 15;
        assert_eq!(
            spent().await,
            (1523, cost, usage(300, 20)),
            "the context is that of the answer"
        );

        assert!(talk.send("Hi").await.unwrap().outcome().await.is_err());
        assert_eq!(spent().await.0, 1523 + 400 + 100, "broken after content");

        assert!(talk.send("Hi").await.unwrap().outcome().await.is_err());
        assert_eq!(spent().await.0, 2023 + 4 * 401);

        assert!(talk.send("Hi").await.unwrap().outcome().await.is_err());
        let end = talk.send("Hi").await.unwrap().outcome().await;
        let is_over = end.is_ok_and(|end| end.stop_reason == StopReason::Budget);
        assert_eq!(is_over, !budget.is_unlimited(), "5,231 of 5,000 are spent");
    }
}

#[tokio::test(start_paused = true)]
async fn spending_survives_sleep_and_the_next_host() {
    let store = store();
    let budget = Budget::default().with_tokens(2100);
    let mut spent = Vec::new();
    for _ in 0..3 {
        let model = Arc::new(ScriptedModel::always(
            Reply::text("ok").usage(usage(900, 100)),
        ));
        let host = builder(&model)
            .shared_sessions(store.clone())
            .max_tokens(100)
            .budget(budget)
            .build()
            .await
            .unwrap();
        let end = conversation(&host)
            .send("Hi")
            .await
            .unwrap()
            .outcome()
            .await
            .unwrap();
        spent.push((
            end.stop_reason,
            conversation(&host)
                .state()
                .await
                .unwrap()
                .spent
                .amount
                .tokens,
        ));
        drop(host);
    }

    assert_eq!(
        spent,
        [
            (StopReason::EndTurn, 1000),
            (StopReason::EndTurn, 2000),
            (StopReason::Budget, 2000)
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn what_a_tenant_spent_before_a_restart_is_known_before_its_first_prompt() {
    let store = store();
    let model = Arc::new(ScriptedModel::always(
        Reply::text("ok").usage(usage(900, 100)),
    ));
    let budget = Budget::default().with_tokens(10_000);
    let mut spent = Vec::new();
    for is_first in [true, false] {
        let host = builder(&model).shared_sessions(store.clone());
        let host = host.build().await.unwrap();
        host.tenant("acme").set_budget(budget).unwrap();
        if is_first {
            let mut round = conversation(&host).send("Hi").await.unwrap();
            round.outcome().await.unwrap();
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
        spent.push(host.tenant("acme").spent().unwrap().tokens);
        host.shutdown(Duration::from_secs(1)).await;
    }

    assert_eq!(spent, [1000, 1000]);
}

#[tokio::test(start_paused = true)]
async fn without_a_budget_nothing_more_is_journaled_and_a_known_price_is_reported() {
    let model = Arc::new(ScriptedModel::always(
        Reply::text("ok").usage(usage(1000, 100)),
    ));
    let plain = host(&model).await;
    let priced = builder(&model)
        .model("scripted-1")
        .prices(sonnet())
        .build()
        .await
        .unwrap();

    for host in [&plain, &priced] {
        conversation(host)
            .send("Hi")
            .await
            .unwrap()
            .outcome()
            .await
            .unwrap();
    }
    let mut reply = conversation(&priced).send("Hi").await.unwrap();
    let mut cost = None;
    while let Some(event) = reply.next().await {
        if let EventKind::Usage { cost_usd, .. } = &event.kind {
            cost = *cost_usd;
        }
    }

    let kinds: Vec<&str> = entries(&plain).await.iter().map(EntryBody::kind).collect();
    assert_eq!(
        kinds,
        [
            "life_started",
            "prompt_accepted",
            "round_started",
            "model_call_started",
            "assistant",
            "round_finished"
        ]
    );
    assert!(
        entries(&priced)
            .await
            .iter()
            .all(|body| body.kind() != "budget_settled")
    );
    assert_eq!(cost, Some(0.0045));
    assert_eq!(
        conversation(&priced)
            .state()
            .await
            .unwrap()
            .metrics
            .cost_micro_usd,
        9000
    );
    assert_eq!(priced.figures().await.total.cost_micro_usd, 9000);
    assert_eq!(
        conversation(&plain)
            .state()
            .await
            .unwrap()
            .metrics
            .cost_micro_usd,
        0
    );
}

#[tokio::test(start_paused = true)]
async fn a_budget_of_money_needs_a_price_and_names_the_nearest() {
    let model = Arc::new(ScriptedModel::always(Reply::text("ok")));
    let prices = Prices::default().with("gpt-5", Price::per_million(1.0, 1.0).unwrap());
    let prices = prices.with("scripted-2", Price::per_million(1.0, 1.0).unwrap());

    let missing = builder(&model)
        .model("scripted-1")
        .prices(prices.clone())
        .budget(Budget::default().with_usd(1.0))
        .build()
        .await;
    let host = builder(&model)
        .model("scripted-1")
        .prices(prices)
        .build()
        .await
        .unwrap();
    let later = host
        .tenant("acme")
        .set_budget(Budget::default().with_usd(1.0))
        .unwrap_err();

    let Err(BuildError::NoPrice { model, nearest }) = missing else {
        panic!("{missing:?}")
    };
    assert_eq!(
        (model.as_str(), nearest.as_deref(), later.code()),
        ("scripted-1", Some("scripted-2"), "no_price")
    );
}

#[tokio::test(start_paused = true)]
async fn money_is_spent_as_the_price_says() {
    let model = Arc::new(ScriptedModel::always(
        Reply::text("ok").usage(usage(1000, 1000)),
    ));
    let budget = Budget::default().with_usd(0.019);
    let host = builder(&model)
        .model("scripted-1")
        .prices(sonnet())
        .max_tokens(100)
        .budget(budget)
        .build()
        .await
        .unwrap();

    let first = conversation(&host)
        .send("Hi")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();
    let second = conversation(&host)
        .send("Hi")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    assert_eq!(
        (first.stop_reason, second.stop_reason),
        (StopReason::EndTurn, StopReason::Budget)
    );
    let spent = conversation(&host).state().await.unwrap().spent.amount;
    assert_eq!((spent.tokens, spent.micro_usd), (2000, 18_000));
    assert!(
        second
            .error
            .unwrap()
            .message
            .contains("budget of $0.019000 is used up: $0.018000 are spent")
    );
}

#[tokio::test(start_paused = true)]
async fn figures_that_cannot_be_are_replaced_by_our_own_count() {
    for (said, least, most) in [
        (Some(usage(u64::MAX, u64::MAX)), 8000, 8192 + 200 + 200_000),
        (Some(usage(0, 0)), 1, 100),
        (None, 1, 100),
    ] {
        let reply = Reply::text("a short answer");
        let reply = if let Some(said) = said {
            reply.usage(said)
        } else {
            reply.without_usage()
        };
        let model = Arc::new(ScriptedModel::always(reply));
        let host = builder(&model)
            .max_tokens(100)
            .budget(Budget::default().with_tokens(u64::MAX - 1))
            .build()
            .await
            .unwrap();

        conversation(&host)
            .send("Hi")
            .await
            .unwrap()
            .outcome()
            .await
            .unwrap();

        let settled = entries(&host)
            .await
            .into_iter()
            .find_map(|body| match body {
                EntryBody::BudgetSettled {
                    used_tokens,
                    estimated,
                    ..
                } => Some((used_tokens, estimated)),
                _ => None,
            });
        let (used, estimated) = settled.unwrap();
        assert!(
            estimated && (least..=most).contains(&used),
            "{said:?} became {used}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn sixty_four_sends_on_one_tenant_overspend_at_most_the_calls_in_flight() {
    let model = Arc::new(ScriptedModel::always(
        Reply::text("ok")
            .after(Duration::from_secs(1))
            .usage(usage(300, 100)),
    ));
    let host = builder(&model).max_tokens(100).build().await.unwrap();
    let tenant = host.tenant("acme");
    tenant
        .set_budget(Budget::default().with_tokens(4000))
        .unwrap();

    let sends = (0..64).map(|n| {
        let conversation = tenant.conversation(format!("c-{n}"));
        async move {
            conversation
                .send("Hi")
                .await
                .unwrap()
                .outcome()
                .await
                .unwrap()
        }
    });
    let ends = futures_util::future::join_all(sends).await;

    let served = ends
        .iter()
        .filter(|end| end.stop_reason == StopReason::EndTurn)
        .count() as u64;
    let refused: Vec<_> = ends.iter().filter_map(|end| end.error.as_ref()).collect();
    assert_eq!(
        model.requests().len() as u64,
        served,
        "a refused round makes no call"
    );
    assert_eq!(
        tenant.spent().unwrap(),
        Amount {
            tokens: served * 400,
            wall_ms: tenant.spent().unwrap().wall_ms,
            micro_usd: 0
        }
    );
    assert!(
        (10..=39).contains(&served),
        "{served} calls of 108 to 400 tokens on 4000"
    );
    assert!(
        refused.iter().all(|failure| failure
            .message
            .starts_with("the tenant's budget of 4000 tokens")),
        "{refused:?}"
    );
    let other = host
        .tenant("other")
        .conversation("c")
        .send("Hi")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();
    assert_eq!(
        other.stop_reason,
        StopReason::EndTurn,
        "another tenant has its own"
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_released_can_be_spent() {
    let model = Arc::new(ScriptedModel::replies([
        Reply::stall(),
        Reply::text("ok").usage(usage(10, 10)),
    ]));
    let host = builder(&model).max_tokens(100).build().await.unwrap();
    let tenant = host.tenant("acme");
    tenant
        .set_budget(Budget::default().with_tokens(150))
        .unwrap();
    let mut first = tenant.conversation("a").send("Hi").await.unwrap();
    model.until(|counts| counts.started == 1).await;

    let refused = tenant
        .conversation("b")
        .send("Hi")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();
    tenant.conversation("a").interrupt().await.unwrap();
    first.outcome().await.unwrap();
    let served = tenant
        .conversation("b")
        .send("Hi")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    assert_eq!(
        (refused.stop_reason, served.stop_reason),
        (StopReason::Budget, StopReason::EndTurn)
    );
}

#[tokio::test(start_paused = true)]
async fn the_model_is_reminded_once_at_each_threshold() {
    let (tool, _) = probe("look", EffectClass::Pure, |_| async { Ok("seen".into()) });
    let model = Arc::new(ScriptedModel::answering(|_, call| {
        let used = [
            usage(8000, 100),
            usage(50, 50),
            usage(1400, 10),
            usage(10, 10),
        ][call.min(3)];
        match call {
            0 | 2 => Reply::tool("look", &serde_json::json!({})).usage(used),
            _ => Reply::text("ok").usage(used),
        }
    }));
    let budget = Budget::default().with_tokens(10_000);
    let host = builder(&model)
        .tool(tool)
        .system("s".repeat(2000))
        .max_tokens(100)
        .budget(budget)
        .build()
        .await;
    let host = host.unwrap();
    drop(
        conversation(&host)
            .send("Hi")
            .await
            .unwrap()
            .outcome()
            .await,
    );
    drop(
        conversation(&host)
            .send("Hi")
            .await
            .unwrap()
            .outcome()
            .await,
    );

    let reminders: Vec<(usize, String)> = reminders(&conversation(&host).state().await.unwrap());

    let places: Vec<usize> = reminders.iter().map(|(place, _)| *place).collect();
    assert_eq!(places, [1, 1], "each stands behind a result: {reminders:?}");
    assert!(
        reminders[0].1.contains("About 19 %") && reminders[1].1.contains("About 4 %"),
        "{reminders:?}"
    );
}

/// The budget reminders in the history, each with the number of blocks that precede it in its
/// message.
fn reminders(state: &Durable) -> Vec<(usize, String)> {
    let blocks = state
        .history
        .messages()
        .iter()
        .flat_map(|message| message.blocks().into_iter().enumerate());
    blocks
        .filter_map(|(place, block)| {
            block
                .as_text()
                .filter(|text| is_reminder(text))
                .map(|text| (place, text.to_owned()))
        })
        .collect()
}

/// Interrupts a round when its model has written something.
async fn interrupted(talk: &ConversationHandle, model: &ScriptedModel, prompt: &str) -> StopReason {
    let calls = model.counts().started;
    let mut round = talk.send(prompt).await.unwrap();
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    if model.counts().started > calls {
        talk.interrupt().await.unwrap();
    }
    round.outcome().await.unwrap().stop_reason
}

#[tokio::test(start_paused = true)]
async fn a_cut_answer_takes_no_prompt_before_it_out_of_the_estimate() {
    let model = Arc::new(ScriptedModel::answering(|_, call| match call {
        0 => Reply::text("hello").usage(usage(20, 5)),
        _ => Reply::text("working").without_usage().then_stall(),
    }));
    let host = builder(&model).build().await.unwrap();
    let tenant = host.tenant("acme");
    tenant
        .set_budget(Budget::default().with_tokens(250_000))
        .unwrap();
    let talk = conversation(&host);
    talk.send("hi").await.unwrap().outcome().await.unwrap();

    let large = "large ".repeat(66_000); // About 100,000 tokens by our estimate.
    assert_eq!(
        interrupted(&talk, &model, &large).await,
        StopReason::Interrupted
    );
    assert_eq!(
        interrupted(&talk, &model, "go").await,
        StopReason::Interrupted
    );
    assert_eq!(interrupted(&talk, &model, "go").await, StopReason::Budget);

    let spent = tenant.spent().unwrap().tokens;
    assert!((195_000..250_000).contains(&spent), "{spent}");
}

#[tokio::test(start_paused = true)]
async fn thinking_of_a_cut_answer_is_charged_although_no_history_keeps_it() {
    for reports in [true, false] {
        let reply = Reply::thinking("thinking ".repeat(4000));
        let reply = match reports {
            true => reply.reports_first(usage(10, 1)),
            false => reply.without_usage(),
        };
        let model = Arc::new(ScriptedModel::always(reply.chunks(40).then_stall()));
        let host = builder(&model).build().await.unwrap();
        host.tenant("acme")
            .set_budget(Budget::default().with_tokens(1_000_000))
            .unwrap();
        let talk = conversation(&host);

        assert_eq!(
            interrupted(&talk, &model, "go").await,
            StopReason::Interrupted
        );

        let spent = host.tenant("acme").spent().unwrap().tokens;
        assert!(spent >= 9000, "reports: {reports}: {spent}");
        let figures = host.figures().await.total;
        assert!(figures.output_tokens >= 9000, "{figures:?}");
    }
}

/// A provider whose answer is the beginning of a call's arguments.
struct Writes {
    reports: bool,
}

impl crate::ports::LlmProvider for Writes {
    fn name(&self) -> &str {
        "writes"
    }

    fn capabilities(&self, model: &str) -> crate::ports::Capabilities {
        crate::ports::LlmProvider::capabilities(&ScriptedModel::replies([]), model)
    }

    fn stream(
        &self,
        _: crate::chat::ModelRequest,
        _: tokio_util::sync::CancellationToken,
    ) -> crate::ports::BoxFuture<'_, Result<crate::ports::ModelStream, ProviderError>> {
        use futures_util::StreamExt as _;
        let report = self
            .reports
            .then(|| Ok(vec![crate::ports::ModelEvent::Usage(usage(10, 1))]));
        let written =
            [20_000, 40_000].map(|bytes| Ok(vec![crate::ports::ModelEvent::Arguments(bytes)]));
        let events = futures_util::stream::iter(report.into_iter().chain(written))
            .chain(futures_util::stream::pending());
        let stream: crate::ports::ModelStream = Box::pin(events);
        Box::pin(std::future::ready(Ok(stream)))
    }
}

#[tokio::test(start_paused = true)]
async fn arguments_of_a_call_that_is_cut_are_charged() {
    for reports in [true, false] {
        let host = builder(&Arc::new(Writes { reports }))
            .build()
            .await
            .unwrap();
        host.tenant("acme")
            .set_budget(Budget::default().with_tokens(1_000_000))
            .unwrap();
        let mut round = conversation(&host).send("go").await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;

        conversation(&host).interrupt().await.unwrap();
        round.outcome().await.unwrap();

        let spent = host.tenant("acme").spent().unwrap().tokens;
        assert!(
            (13_000..13_500).contains(&spent),
            "reports: {reports}: {spent}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_round_ends_when_its_time_is_used_up() {
    let model = Arc::new(ScriptedModel::always(Reply::text("half a").then_stall()));
    let host = builder(&model)
        .budget(Budget::default().with_time(Duration::from_secs(5)))
        .build()
        .await
        .unwrap();
    let before = tokio::time::Instant::now();

    let end = conversation(&host)
        .send("Hi")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    let failure = end.error.unwrap();
    assert_eq!(
        (end.stop_reason, end.text.as_str(), failure.code.as_str()),
        (StopReason::Budget, "half a", "budget")
    );
    assert_eq!(
        failure.message,
        "the conversation's budget of 5 s is used up"
    );
    assert_eq!(before.elapsed().as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_its_host_did_not_survive_counts_in_full() {
    let store = store();
    let budget = Budget::default().with_tokens(10_000);
    let first = Arc::new(ScriptedModel::always(Reply::stall()));
    let dying = builder(&first)
        .shared_sessions(store.clone())
        .max_tokens(100)
        .budget(budget)
        .build()
        .await
        .unwrap();
    let _reply = conversation(&dying).send("Hi").await.unwrap();
    first.until(|counts| counts.started == 1).await;
    until("the call is in the journal", || {
        futures_util::FutureExt::now_or_never(entries(&dying)).is_some_and(|all| all.len() == 4)
    })
    .await;
    drop(dying);
    let second = Arc::new(ScriptedModel::always(
        Reply::text("ok").usage(usage(10, 10)),
    ));
    let host = builder(&second)
        .shared_sessions(store)
        .max_tokens(100)
        .budget(budget)
        .build()
        .await
        .unwrap();

    let end = conversation(&host)
        .resume()
        .await
        .unwrap()
        .unwrap()
        .outcome()
        .await
        .unwrap();

    let bodies = entries(&host).await;
    let reserved: Vec<u64> = bodies
        .iter()
        .filter_map(|body| {
            if let EntryBody::ModelCallStarted { reserved, .. } = body {
                Some(*reserved)
            } else {
                None
            }
        })
        .collect();
    let settled: Vec<(u64, bool)> = bodies
        .iter()
        .filter_map(|body| {
            if let EntryBody::BudgetSettled {
                used_tokens,
                estimated,
                ..
            } = body
            {
                Some((*used_tokens, *estimated))
            } else {
                None
            }
        })
        .collect();
    assert_eq!(
        (end.text.as_str(), settled),
        ("ok", vec![(reserved[0], true), (20, false)])
    );
}

#[tokio::test(start_paused = true)]
async fn rounds_end_when_their_tenants_time_is_used_up() {
    let model = Arc::new(ScriptedModel::always(
        Reply::text("done").after(Duration::from_secs(600)),
    ));
    let host = builder(&model).build().await.unwrap();
    let tenant = host.tenant("acme");
    let budget = Budget::default().with_time(Duration::from_secs(30));
    tenant.set_budget(budget).unwrap();
    let began = tokio::time::Instant::now();
    let mut rounds = Vec::new();
    for number in 0..10 {
        let conversation = tenant.conversation(format!("c-{number}").as_str());
        rounds.push(conversation.send("go").await.unwrap());
    }

    let ends = rounds
        .into_iter()
        .map(|mut round| async move { round.outcome().await });
    let ends = futures_util::future::join_all(ends).await;

    for end in ends {
        assert_eq!(
            end.unwrap().error.map(|error| error.message).as_deref(),
            Some("the tenant's budget of 30 s is used up")
        );
    }
    let spent = tenant.spent().unwrap().wall_ms;
    assert!((30_000..=40_000).contains(&spent), "{spent} ms");
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "ten rounds at once"
    );
    let mut refused = tenant.conversation("late").send("go").await.unwrap();
    assert_eq!(
        refused.outcome().await.unwrap().stop_reason,
        StopReason::Budget
    );
}

#[tokio::test(start_paused = true)]
async fn a_turn_with_a_tool_goes_to_the_store_four_times_whatever_budgets_there_are() {
    for (own, shared) in [(false, false), (true, false), (false, true), (true, true)] {
        let (tool, _) = probe("look", EffectClass::Pure, |_| async { Ok("seen".into()) });
        let calls = Reply::text("I look.")
            .and_tool("look", &serde_json::json!({}))
            .usage(usage(50, 40));
        let model = Arc::new(ScriptedModel::replies([
            calls.clone(),
            Reply::text("ok"),
            calls,
            Reply::text("ok"),
        ]));
        let sessions = Arc::new(FaultySessions::new(
            Arc::new(MemorySessions::new()),
            FaultPlan::new(),
        ));
        let budget = if own {
            Budget::default().with_tokens(100_000)
        } else {
            Budget::default()
        };
        let host = builder(&model)
            .tool(tool)
            .max_tokens(100)
            .budget(budget)
            .shared_sessions(sessions.clone())
            .build()
            .await
            .unwrap();
        if shared {
            host.tenant("acme")
                .set_budget(Budget::default().with_tokens(100_000))
                .unwrap();
        }
        conversation(&host)
            .send("Hi")
            .await
            .unwrap()
            .outcome()
            .await
            .unwrap();
        let before = sessions.appends();

        let end = conversation(&host)
            .send("Again")
            .await
            .unwrap()
            .outcome()
            .await
            .unwrap();

        assert_eq!(end.text, "ok");
        assert_eq!(
            sessions.appends() - before,
            4,
            "its own budget: {own}, one of the tenant's: {shared}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_tenants_budget_outlives_its_hosts() {
    let store = store();
    let mut ends = Vec::new();
    for host_number in 0..4 {
        let model = Arc::new(ScriptedModel::always(
            Reply::text("ok").usage(usage(900, 100)),
        ));
        let host = builder(&model)
            .shared_sessions(store.clone())
            .max_tokens(100)
            .build()
            .await
            .unwrap();
        host.tenant("acme")
            .set_budget(Budget::default().with_tokens(2100))
            .unwrap();
        let talk = host
            .tenant("acme")
            .conversation(format!("c-{host_number}").as_str());
        let end = talk.send("Hi").await.unwrap().outcome().await.unwrap();
        let spent = host.tenant("acme").spent().unwrap().tokens;
        ends.push((end.stop_reason, spent));
        // A host that is killed forgets what was settled since the last second.
        tokio::time::sleep(Duration::from_millis(1100)).await;
        drop(host);
    }

    assert_eq!(
        ends,
        [
            (StopReason::EndTurn, 1000),
            (StopReason::EndTurn, 2000),
            (StopReason::Budget, 2000),
            (StopReason::Budget, 2000)
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn hosts_of_one_store_share_a_tenants_budget_within_a_second() {
    let store = store();
    let mut hosts = Vec::new();
    for _ in 0..2 {
        let model = Arc::new(ScriptedModel::always(
            Reply::text("ok").usage(usage(900, 100)),
        ));
        let host = builder(&model)
            .shared_sessions(store.clone())
            .max_tokens(100)
            .build()
            .await
            .unwrap();
        host.tenant("acme")
            .set_budget(Budget::default().with_tokens(3050))
            .unwrap();
        hosts.push(host);
    }
    let mut ends = Vec::new();
    for _ in 0..4 {
        for (number, host) in hosts.iter().enumerate() {
            let id = format!("c-{number}");
            let talk = host.tenant("acme").conversation(id.as_str());
            let end = talk.send("Hi").await.unwrap().outcome().await.unwrap();
            ends.push(end.stop_reason);
            tokio::time::sleep(Duration::from_millis(1100)).await;
        }
    }

    let done = ends.iter().filter(|end| **end == StopReason::EndTurn);
    // Alone, each would have room for three. The last is begun by a host that was idle.
    assert_eq!(done.count(), 4, "{ends:?}");
    assert!(
        ends[4..].iter().all(|end| *end == StopReason::Budget),
        "{ends:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_erased_tenant_begins_with_its_whole_budget() {
    let store = store();
    let model = Arc::new(ScriptedModel::always(
        Reply::text("ok").usage(usage(900, 100)),
    ));
    let host = builder(&model)
        .shared_sessions(store.clone())
        .max_tokens(100)
        .build()
        .await
        .unwrap();
    let acme = host.tenant("acme");
    acme.set_budget(Budget::default().with_tokens(1050))
        .unwrap();
    let say = async || {
        let mut sent = acme.conversation("c").send("Hi").await.unwrap();
        sent.outcome().await.unwrap().stop_reason
    };
    assert_eq!(say().await, StopReason::EndTurn);
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(say().await, StopReason::Budget);

    acme.erase().await.unwrap();

    assert_eq!(say().await, StopReason::EndTurn);
}
