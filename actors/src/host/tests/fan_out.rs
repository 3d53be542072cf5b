//! Fan-outs: order of results, partial failure, cancellation, recovery after a crash, and ephemeral
//! fan-outs, which leave nothing behind.

use std::{collections::BTreeSet, time::Duration};

use serde_json::json;

use super::{families, subagents::*, *};
use crate::{
    chat::Usage,
    conversation::round::rules::ApprovalMode,
    host::{
        FanOut, FanOutRun, FanOutSummary, SendError, TenantConfig, fan_out_context::FanOutContexts,
    },
    ids::{ConversationId, Scope},
    limits::Limits,
    policy::Budget,
    ports::{ListQuery, ProviderError},
    stream::{Open, StopReason},
    tenant::Quotas,
    testing::{Reply, ScriptedModel},
};

pub(super) fn echo() -> Arc<ScriptedModel> {
    Arc::new(ScriptedModel::answering(|request, _| {
        Reply::text(format!("{} done", task(request)))
    }))
}

pub(super) async fn fan_out(host: &Host, fan_out: FanOut) -> FanOutRun {
    host.tenant("acme").fan_out(fan_out).await.unwrap()
}

pub(super) fn texts(summary: &FanOutSummary) -> Vec<&str> {
    summary.tasks.iter().map(|end| end.text()).collect()
}

fn codes(summary: &FanOutSummary) -> Vec<&str> {
    summary
        .tasks
        .iter()
        .map(|end| {
            end.outcome
                .as_ref()
                .map_or_else(|why| why.failure.code.as_str(), |_| "done")
        })
        .collect()
}

/// Asserts that no conversation of the tenant is active or waiting, and that no permit or memory is
/// in use.
fn assert_nothing_is_left(host: &Host) {
    let usage = host.tenant("acme").usage().unwrap();
    assert_eq!(
        (
            host.awake(),
            usage.prompts,
            usage.turns_running,
            usage.turns_waiting,
            usage.memory_bytes
        ),
        (0, 0, 0, 0, 0)
    );
}

/// Answers 500 to the first `failures` requests.
fn down_at_first(failures: usize) -> Arc<ScriptedModel> {
    Arc::new(ScriptedModel::answering(move |request, call| {
        if call < failures {
            let error = ProviderError::Server {
                status: 500,
                retry_after: None,
                message: "down".into(),
            };
            return Reply::error(error).after(Duration::from_millis(5));
        }
        Reply::text(format!("{} done", task(request))).after(Duration::from_millis(50))
    }))
}

#[tokio::test(start_paused = true)]
async fn a_fan_out_waits_out_an_open_breaker() {
    for failures in [20, 63, 66] {
        let model = down_at_first(failures);
        let host = host(&model).await;
        let tasks: Vec<String> = (0..500).map(|n| format!("task {n}")).collect();

        let summary = fan_out(&host, FanOut::over(tasks).parallel(64))
            .await
            .finish()
            .await;

        assert_eq!(
            codes(&summary),
            ["done"; 500],
            "the first {failures} requests failed"
        );
        let calls = model.counts().started;
        assert!(calls <= 500 + failures, "{calls} for {failures} failures");
    }
}

#[tokio::test(start_paused = true)]
async fn a_fan_out_over_a_dead_provider_ends_within_minutes() {
    let model = down_at_first(usize::MAX);
    let host = host(&model).await;
    let tasks: Vec<String> = (0..500).map(|n| format!("task {n}")).collect();

    let summary = fan_out(&host, FanOut::over(tasks).parallel(64))
        .await
        .finish()
        .await;

    assert_eq!(summary.done(), 0);
    assert!(
        (Duration::from_secs(50)..Duration::from_secs(180)).contains(&summary.wall),
        "{:?}",
        summary.wall
    );
    assert!(model.counts().started < 100, "{}", model.counts().started);
}

#[tokio::test(start_paused = true)]
async fn results_are_in_the_order_of_the_tasks_whatever_the_order_of_their_ends() {
    for seed in 0..20u64 {
        println!("seed {seed}");
        let model = Arc::new(ScriptedModel::answering(move |request, _| {
            let task = task(request);
            let wait = crate::journal::digest(format!("{seed} {task}").as_bytes()) % 1000;
            Reply::text(format!("{task} done")).after(Duration::from_millis(wait))
        }));
        let host = host(&model).await;
        let tasks: Vec<String> = (0..40).map(|n| format!("task {n}")).collect();

        let mut run = fan_out(
            &host,
            FanOut::over(tasks.clone()).parallel(1 + seed as usize * 3),
        )
        .await;
        let mut ended = Vec::new();
        while let Some(end) = run.next().await {
            ended.push(end.index);
        }
        let summary = run.finish().await;

        assert_eq!(
            texts(&summary),
            tasks
                .iter()
                .map(|task| format!("{task} done"))
                .collect::<Vec<_>>()
        );
        assert_eq!(
            ended.iter().copied().collect::<BTreeSet<_>>(),
            (0..40).collect()
        );
        assert_eq!((summary.done(), summary.failed()), (40, 0));
        if seed > 0 {
            assert_ne!(
                ended,
                (0..40).collect::<Vec<_>>(),
                "the test would show nothing"
            );
        }
        assert_nothing_is_left(&host);
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_fails_is_data_and_no_others_business() {
    let model = Arc::new(ScriptedModel::answering(|request, _| {
        match task(request).as_str() {
            "broken" => Reply::error(ProviderError::InvalidRequest {
                status: 400,
                message: "no".into(),
            }),
            "panics" => Reply::panic(),
            task => Reply::text(task.to_owned()),
        }
    }));
    let host = host(&model).await;

    let summary = fan_out(
        &host,
        FanOut::over(["fine", "broken", " ", "panics", "well"]),
    )
    .await
    .finish()
    .await;

    assert_eq!(texts(&summary), ["fine", "", "", "", "well"]);
    assert_eq!(codes(&summary)[0], "done");
    assert_eq!(
        (codes(&summary)[2], codes(&summary)[4]),
        ("invalid_prompt", "done")
    );
    assert_eq!((summary.done(), summary.failed()), (2, 3));
    assert!(
        summary.tasks[1].outcome.as_ref().unwrap_err().end.is_some(),
        "what is known of its round is there"
    );
    assert_nothing_is_left(&host);
}

#[tokio::test(start_paused = true)]
async fn a_task_knows_nothing_but_itself_and_has_no_tool_for_more() {
    let (tool, _) = probe("tool", EffectClass::Pure, |_| async { Ok("used".into()) });
    let model = echo();
    let host = builder(&model)
        .system("Be kind.")
        .tool(tool)
        .subagents()
        .build()
        .await
        .unwrap();

    fan_out(&host, FanOut::over(["a", "b"]))
        .await
        .finish()
        .await;

    for request in model.requests() {
        let names: Vec<&str> = request
            .tools
            .iter()
            .map(|tool| tool.name.as_str())
            .collect();
        assert_eq!(
            (request.messages.len(), request.system.as_deref(), names),
            (1, Some("Be kind."), vec!["tool", "recall"])
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_has_the_sandbox_and_the_permissions_of_its_tenant() {
    for ephemeral in [false, true] {
        let host = host(&families::tries_all()).await;
        families::confine(&host).await;
        let tasks = FanOut::over(["try all"]);

        let summary = fan_out(&host, if ephemeral { tasks.ephemeral() } else { tasks })
            .await
            .finish()
            .await;

        let said = summary.tasks[0].text();
        assert!(
            said.contains("/the/workspace") && said.contains("PERMISSION_DENIED"),
            "ephemeral {ephemeral}: {said}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_asks_no_person_and_what_needs_one_is_denied_at_once() {
    let model = Arc::new(ScriptedModel::answering(|request, _| {
        match request.messages.len() {
            1 => Reply::tool("pay", &json!({})),
            _ => Reply::text(results(request).join("|")),
        }
    }));
    let builder = builder(&model)
        .tool(super::events::asks("pay"))
        .approval(ApprovalMode::Ask)
        .has_approver(true);
    let host = builder.build().await.unwrap();

    let summary = fan_out(&host, FanOut::over(["pay it"]))
        .await
        .finish()
        .await;

    assert!(
        summary.tasks[0]
            .text()
            .contains("nobody is there to give it"),
        "{}",
        summary.tasks[0].text()
    );
    assert!(summary.wall < Duration::from_secs(1), "{:?}", summary.wall);
}

#[tokio::test(start_paused = true)]
async fn at_most_so_many_run_at_once_and_more_than_permits_wait() {
    let model = Arc::new(ScriptedModel::answering(|_, _| {
        Reply::text("ok").after(Duration::from_secs(1))
    }));
    let limits = Limits {
        tenant_turns_max: 3,
        model_calls_max: 2,
        ..Limits::default()
    };
    let host = builder(&model).limits(limits).build().await.unwrap();
    let quotas = Quotas {
        prompts_max: Some(1),
        turns_max: Some(3),
        ..Quotas::default()
    };
    host.configure_tenant(&"acme".parse().unwrap(), TenantConfig::new().quotas(quotas))
        .await
        .unwrap();

    for (parallel, seconds) in [(100, 10), (1, 20)] {
        let began = tokio::time::Instant::now();
        let summary = fan_out(&host, FanOut::over(vec!["t"; 20]).parallel(parallel))
            .await
            .finish()
            .await;

        assert_eq!(
            (summary.done(), began.elapsed().as_secs()),
            (20, seconds),
            "{parallel}"
        );
    }
    assert_eq!(
        host.tenant("acme").usage().unwrap().refused,
        Default::default(),
        "none was refused"
    );
}

#[tokio::test(start_paused = true)]
async fn tasks_wait_for_memory_that_others_use() {
    let model = Arc::new(ScriptedModel::answering(|_, _| {
        Reply::text("ok").after(Duration::from_secs(1))
    }));
    let host = host(&model).await;
    let quotas = Quotas {
        memory_bytes_max: Some(5000),
        ..Quotas::default()
    };
    host.configure_tenant(&"acme".parse().unwrap(), TenantConfig::new().quotas(quotas))
        .await
        .unwrap();

    let summary = fan_out(&host, FanOut::over(vec!["x".repeat(1000); 8]).ephemeral())
        .await
        .finish()
        .await;

    assert_eq!(codes(&summary), vec!["done"; 8]);
    assert!(
        summary.wall >= Duration::from_secs(4),
        "two at a time: {:?}",
        summary.wall
    );
}

#[tokio::test(start_paused = true)]
async fn a_cancel_ends_the_whole_tree_and_what_has_not_begun_never_begins() {
    let (hangs, starts) = probe("hangs", EffectClass::Once, |context| async move {
        context.cancel.cancelled().await;
        Ok("stopped".into())
    });
    let model = Arc::new(ScriptedModel::answering(|request, _| {
        match task(request).as_str() {
            "work" => Reply::tool("hangs", &json!({})),
            "over" => Reply::text("done"),
            _ => Reply::stall(),
        }
    }));
    for ephemeral in [false, true] {
        let host = builder(&model).tool(hangs.clone()).build().await.unwrap();
        let tools = starts.load(Ordering::SeqCst);
        let dropped = model.counts().dropped;
        let tasks = FanOut::over(["over", "think", "work", "late", "later"]).parallel(3);
        let mut run = fan_out(&host, if ephemeral { tasks.ephemeral() } else { tasks }).await;
        assert_eq!(run.next().await.unwrap().index, 0);
        let asked = model.counts().started;
        until("all are at work", || {
            starts.load(Ordering::SeqCst) == tools + 1 && model.counts().started >= asked
        })
        .await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        let began = tokio::time::Instant::now();

        run.cancel();
        let summary = run.finish().await;

        assert!(
            began.elapsed() < Duration::from_secs(3),
            "{:?}",
            began.elapsed()
        );
        assert_eq!(
            codes(&summary),
            [
                "done",
                "interrupted",
                "interrupted",
                "interrupted",
                "interrupted"
            ]
        );
        assert!(summary.tasks[4].end().is_none(), "it never began");
        assert_eq!(
            summary.tasks[2].end().map(|end| end.stop_reason),
            Some(StopReason::Interrupted)
        );
        assert!(model.counts().dropped > dropped, "its model was left");
        assert_nothing_is_left(&host);
        assert!(
            children(&host)
                .await
                .iter()
                .all(|(_, open)| *open == Open::None)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn dropping_the_handle_ends_nothing() {
    let model = Arc::new(ScriptedModel::answering(|_, _| {
        Reply::text("ok").after(Duration::from_secs(5))
    }));
    let host = host(&model).await;

    drop(fan_out(&host, FanOut::over(["a", "b", "c"]).parallel(1)).await);

    until("all are done", || model.counts().finished == 3).await;
    until("all sleep", || host.awake() == 0).await;
    assert_eq!(model.counts().dropped, 0);
}

#[tokio::test(start_paused = true)]
async fn the_deadline_is_of_the_whole() {
    let model = Arc::new(ScriptedModel::answering(|request, _| {
        match task(request).as_str() {
            "quick" => Reply::text("ok"),
            _ => Reply::stall(),
        }
    }));
    let host = host(&model).await;
    let tasks = || FanOut::over(["quick", "stall", "late"]).parallel(1);

    let by_deadline = fan_out(&host, tasks().deadline(Duration::from_secs(7)))
        .await
        .finish()
        .await;
    let by_budget = fan_out(
        &host,
        tasks().budget(Budget {
            wall_ms: Some(7000),
            ..Budget::default()
        }),
    )
    .await
    .finish()
    .await;

    for summary in [by_deadline, by_budget] {
        assert_eq!(
            (codes(&summary), summary.wall.as_secs()),
            (vec!["done", "deadline", "deadline"], 7)
        );
    }
    assert_nothing_is_left(&host);
}

#[tokio::test(start_paused = true)]
async fn sixty_four_on_one_budget_overspend_at_most_the_calls_in_flight() {
    let usage = Usage {
        input_uncached: 20,
        output: 100,
        ..Usage::default()
    };
    let model = Arc::new(ScriptedModel::answering(move |_, _| {
        Reply::text("ok").usage(usage).after(Duration::from_secs(1))
    }));
    let store = store();
    let build = || {
        builder(&model)
            .shared_sessions(store.clone())
            .max_tokens(100)
            .build()
    };
    let host = build().await.unwrap();
    let tasks = |count: usize| {
        FanOut::over((0..count).map(|n| format!("{n} {}", "x".repeat(200))))
            .name("spend")
            .budget(Budget::default().with_tokens(5000))
    };

    let summary = fan_out(&host, tasks(64)).await.finish().await;

    let spent = summary.usage.input() + summary.usage.output;
    assert!(
        (3000..=5000).contains(&spent),
        "{spent}: the budget is used, and not passed"
    );
    assert!(
        codes(&summary)
            .iter()
            .filter(|code| **code == "budget")
            .count()
            > 10,
        "{:?}",
        codes(&summary)
    );
    assert_eq!(
        host.tenant("acme").spent().unwrap().tokens,
        spent,
        "its tenant's budget counts it too"
    );

    // A fan-out that attaches later finds the budget spent.
    drop(host);
    let host = build().await.unwrap();
    let again = fan_out(&host, tasks(100)).await.finish().await;
    let new = again.tasks[64..].iter().filter(|end| end.is_done()).count();
    assert!(
        new <= 5000 / 120 - summary.done(),
        "{new} more after {}",
        summary.done()
    );
}

#[tokio::test(start_paused = true)]
async fn another_model_is_asked_where_one_is_named() {
    let model = echo();
    let host = builder(&model).model("large").build().await.unwrap();

    fan_out(&host, FanOut::over(["a"]).model("small"))
        .await
        .finish()
        .await;
    fan_out(&host, FanOut::over(["b"])).await.finish().await;

    assert_eq!(
        model
            .requests()
            .iter()
            .map(|request| request.model.to_string())
            .collect::<Vec<_>>(),
        ["small", "large"]
    );
    let money = Budget::default().with_usd(1.0);
    let refused = host
        .tenant("acme")
        .fan_out(FanOut::over(["c"]).model("small").budget(money))
        .await;
    assert_eq!(
        refused.err(),
        Some(SendError::NoPrice {
            model: "small".into()
        })
    );
}

#[tokio::test(start_paused = true)]
async fn the_first_warms_the_cache_and_the_rest_begin_when_it_is_answered() {
    let usage = |first: bool| match first {
        true => Usage {
            cache_write: 1000,
            output: 1,
            ..Usage::default()
        },
        false => Usage {
            cache_read: 1000,
            input_uncached: 10,
            output: 1,
            ..Usage::default()
        },
    };
    for warm in [false, true] {
        let asked = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let began = tokio::time::Instant::now();
        let noted = asked.clone();
        let model = Arc::new(ScriptedModel::answering(move |request, nth| {
            noted.lock().push(began.elapsed().as_millis());
            let slow = if task(request) == "0" { 2000 } else { 100 };
            Reply::text("ab")
                .chunks(2)
                .chunk_delay(Duration::from_secs(5))
                .after(Duration::from_millis(slow))
                .usage(usage(nth == 0))
        }));
        let host = host(&model).await;
        let tasks = FanOut::over(["0", "1", "2"]);

        let summary = fan_out(&host, if warm { tasks.warm_first() } else { tasks })
            .await
            .finish()
            .await;

        let asked = asked.lock().clone();
        let expected = if warm { [0, 2000, 2000] } else { [0, 0, 0] };
        assert!(
            asked
                .iter()
                .zip(expected)
                .all(|(at, due)| (due..due + 50).contains(at)),
            "warm {warm}: {asked:?}"
        );
        let cache = summary.cache;
        assert_eq!(
            (
                cache.warmed,
                cache.rest.cache_read_tokens,
                cache.rest.input_tokens
            ),
            (warm, 2000, 2020)
        );
        assert_eq!(
            (
                cache.first.first_text.unwrap().as_secs(),
                cache.rest.first_text.unwrap().as_millis() / 10
            ),
            (2, 10)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_the_same_name_finds_what_is_over_and_what_is_open() {
    let store = store();
    let first = Arc::new(ScriptedModel::answering(|request, _| {
        match task(request).as_str() {
            "over" => Reply::text("over before"),
            _ => Reply::stall(),
        }
    }));
    let tasks = || {
        FanOut::over(["over", "open", "late"])
            .name("n-1")
            .parallel(2)
    };
    let host = builder(&first)
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    let mut run = fan_out(&host, tasks()).await;
    assert_eq!((run.next().await.unwrap().index, run.name()), (0, "n-1"));
    until("two are open", || first.counts().started == 3).await;
    drop((run, host));

    let second = Arc::new(ScriptedModel::answering(|request, _| {
        Reply::text(format!("{} after", task(request)))
    }));
    let host = builder(&second)
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    let summary = fan_out(&host, tasks()).await.finish().await;

    assert_eq!(texts(&summary), ["over before", "open after", "late after"]);
    assert_eq!(
        summary
            .tasks
            .iter()
            .map(|end| end.attached)
            .collect::<Vec<_>>(),
        [true, true, true]
    );
    assert_eq!(
        (second.counts().started, children(&host).await.len()),
        (2, 3),
        "no task began twice"
    );
    // After a day client keys are forgotten, but the names of fan-outs are not.
    let third = echo();
    drop(host);
    let clock = ManualClock::at(Timestamp(
        1_795_300_000_000 + 2 * crate::limits::CLIENT_KEY_MS,
    ));
    let host = HostBuilder::new(clock, SeededEntropy::new(8), |host| host)
        .shared_provider(third.clone())
        .shared_sessions(store);
    let host = host.build().await.unwrap();
    assert_eq!(
        texts(&fan_out(&host, tasks()).await.finish().await),
        texts(&summary)
    );
    assert_eq!(third.counts().started, 0);
    let other = FanOut::over(["another task"]).name("n-1");
    let refused = host.tenant("acme").fan_out(other).await.map(drop);
    assert_eq!(
        refused,
        Err(SendError::FanOutDiffers { name: "n-1".into() }),
        "a name is that of its tasks"
    );
    assert_nothing_is_left(&host);
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_task_is_sent_again_under_the_same_name() {
    let store = store();
    let first = Arc::new(ScriptedModel::answering(|request, _| {
        match task(request).as_str() {
            "over" => Reply::text("over before"),
            _ => Reply::text("half an answer")
                .chunks(2)
                .chunk_delay(Duration::from_secs(60)),
        }
    }));
    let tasks = || {
        FanOut::over(["over", "cut", "late"])
            .name("n-1")
            .parallel(2)
    };
    let host = builder(&first)
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    let mut run = fan_out(&host, tasks()).await;
    run.next().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    run.cancel();
    assert_eq!(
        codes(&run.finish().await),
        ["done", "interrupted", "interrupted"]
    );
    drop(host);

    for time in 0..2 {
        let second = echo();
        let host = builder(&second)
            .shared_sessions(store.clone())
            .build()
            .await
            .unwrap();
        let summary = fan_out(&host, tasks()).await.finish().await;

        assert_eq!(texts(&summary), ["over before", "cut done", "late done"]);
        assert_eq!(second.counts().started, if time == 0 { 2 } else { 0 });
        assert!(
            second
                .requests()
                .iter()
                .all(|request| request.messages.len() == 1),
            "the model sees nothing of the cut round"
        );
        assert_nothing_is_left(&host);
    }
}

#[tokio::test(start_paused = true)]
async fn a_fan_out_outlives_the_lives_of_its_conversations() {
    // The activations end while their models answer. The fan-out gets the ends of the rounds from
    // the next activations.
    for ephemeral in [false, true] {
        let model = Arc::new(ScriptedModel::answering(|_, _| {
            Reply::text("ok").after(Duration::from_secs(2))
        }));
        let host = host(&model).await;
        let tasks = FanOut::over(["a", "b"]).name(format!("crash-{ephemeral}"));
        let run = fan_out(&host, if ephemeral { tasks.ephemeral() } else { tasks }).await;
        until("they are asked", || model.counts().started == 2).await;
        host.0
            .supervisor
            .get_children()
            .iter()
            .for_each(ractor::ActorCell::kill);

        let summary = run.finish().await;

        assert_eq!(codes(&summary), ["done", "done"], "ephemeral {ephemeral}");
        assert_eq!(model.counts().started, 4, "their next lives asked again");
        assert_nothing_is_left(&host);
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_task_keeps_belongs_to_its_fan_out_and_goes_with_it() {
    let (tool, _) = probe("large", EffectClass::Pure, |_| async {
        Ok("line\n".repeat(300_000).into())
    });
    let model = Arc::new(ScriptedModel::answering(|request, _| {
        match request.messages.len() {
            1 => Reply::tool("large", &json!({})),
            _ => Reply::text(results(request).remove(0)),
        }
    }));
    for ephemeral in [false, true] {
        let host = builder(&model).tool(tool.clone()).build().await.unwrap();
        let tasks = FanOut::over(["a"]).name("n");
        let summary = fan_out(&host, if ephemeral { tasks.ephemeral() } else { tasks })
            .await
            .finish()
            .await;

        let id = families::artifact_in(summary.tasks[0].text());
        let owner = |id: &str| Scope::new("acme".parse().unwrap(), id.parse().unwrap());
        let kept = host
            .artifacts()
            .retrieve(owner("fanout:n"), id.clone())
            .await;
        assert_eq!(kept.is_ok(), !ephemeral);
        if !ephemeral {
            assert_eq!(host.tenant("acme").delete_fan_out("n").await, Ok(1));
            assert!(
                host.artifacts()
                    .retrieve(owner("fanout:n"), id)
                    .await
                    .is_err()
            );
            assert_eq!((children(&host).await.len(), host.awake()), (0, 0));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_fan_out_whose_tasks_have_ended_is_waited_for_until_its_conversations_sleep() {
    let model = Arc::new(ScriptedModel::always(Reply::stall()));
    let host = host(&model).await;
    let _run = fan_out(&host, FanOut::over(["a"]).name("n")).await;
    model.until(|counts| counts.started == 1).await;
    let running = host.0.directory.fan_outs();
    let of_acme = |conversation| Scope::new("acme".parse().unwrap(), conversation);
    let (child, _) = children(&host).await.remove(0);
    let context = running.get(&of_acme(child)).unwrap();
    let root = of_acme(ConversationId::new("fanout:n").unwrap());
    let registered = Arc::new(FanOutContexts::default());
    let joined = registered.join(&root, 1, (*context).clone()).unwrap();

    registered.rested(&root).await; // Its task runs.
    joined.ends_a_task();
    let mut rested = std::pin::pin!(registered.rested(&root));
    let waits = tokio::time::timeout(Duration::from_secs(60), &mut rested).await;
    drop(joined);

    assert!(waits.is_err());
    rested.await;
}

#[tokio::test(start_paused = true)]
async fn whoever_has_read_the_last_result_may_delete_the_fan_out_or_start_it_again() {
    let model = Arc::new(ScriptedModel::always(Reply::text("ok")));
    let host = host(&model).await;
    let acme = host.tenant("acme");
    let read = async || {
        let mut run = fan_out(&host, FanOut::over(["a", "b"]).name("n")).await;
        for _ in 0..2 {
            assert!(run.next().await.is_some());
        }
        run // Its conversations need not be asleep.
    };

    let _first = read().await;
    let _again = read().await;

    assert_eq!(acme.delete_fan_out("n").await, Ok(2));
}

#[tokio::test(start_paused = true)]
async fn a_name_is_used_by_one_at_a_time_and_is_no_conversation() {
    let model = Arc::new(ScriptedModel::answering(|_, _| {
        Reply::text("ok").after(Duration::from_secs(1))
    }));
    let host = host(&model).await;
    let run = fan_out(&host, FanOut::over(["a"]).name("n")).await;

    let second = host
        .tenant("acme")
        .fan_out(FanOut::over(["a"]).name("n"))
        .await;
    assert_eq!(
        second.err(),
        Some(SendError::FanOutRuns { name: "n".into() })
    );
    assert_eq!(
        host.tenant("acme").delete_fan_out("n").await,
        Err(SendError::FanOutRuns { name: "n".into() })
    );
    assert_eq!(
        host.tenant("other")
            .fan_out(FanOut::over(["a"]).name("n"))
            .await
            .unwrap()
            .finish()
            .await
            .done(),
        1
    );
    assert_eq!(run.finish().await.done(), 1);
    assert!(matches!(
        host.tenant("acme")
            .fan_out(FanOut::over(["a"]).name("a b"))
            .await
            .err(),
        Some(SendError::InvalidId(_))
    ));
    assert_eq!(
        host.tenant("acme")
            .conversation("fanout:n")
            .send("hello")
            .await
            .err(),
        Some(SendError::Reserved)
    );
    assert_eq!(
        fan_out(&host, FanOut::over(Vec::<String>::new()))
            .await
            .finish()
            .await
            .tasks
            .len(),
        0
    );
}

#[tokio::test(start_paused = true)]
async fn a_host_that_drains_begins_no_more_tasks_and_one_that_stops_leaves_none_waiting() {
    let model = Arc::new(ScriptedModel::answering(|_, _| {
        Reply::text("ok").after(Duration::from_secs(1))
    }));
    let host = host(&model).await;
    let run = fan_out(&host, FanOut::over(vec!["t"; 10]).parallel(2)).await;
    until("two work", || model.counts().started == 2).await;

    stop(&host, Duration::from_secs(30)).await;
    let summary = run.finish().await;

    assert_eq!((summary.done(), model.counts().started), (2, 2));
    assert_eq!(&codes(&summary)[2..], vec!["draining"; 8]);
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_ephemeral_tasks_leave_nothing_behind() {
    let model = echo();
    let store = store();
    let host = builder(&model)
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    let tenant = host.tenant("acme");

    let summary = fan_out(
        &host,
        FanOut::over((0..10_000).map(|n| n.to_string())).ephemeral(),
    )
    .await
    .finish()
    .await;

    assert_eq!(
        (summary.done(), summary.tasks[9_999].text()),
        (10_000, "9999 done")
    );
    assert_nothing_is_left(&host);
    let all = ListQuery {
        subagents: true,
        ..ListQuery::default()
    };
    assert_eq!(store.list(&"acme".parse().unwrap(), all).await.unwrap(), []);
    assert_eq!(
        (
            tenant.usage().unwrap().conversations,
            host.ports().events.bytes(&"acme".parse().unwrap())
        ),
        (None, 0)
    );
    let child = tenant.conversation(summary.tasks[0].conversation.as_str());
    assert_eq!(child.messages().await.unwrap().len(), 0);
    assert!(
        matches!(child.resume().await, Ok(None)),
        "there is nothing to go on with"
    );
    assert_eq!(
        host.figures().await.total.rounds,
        10_000,
        "figures count them"
    );
}

#[tokio::test(start_paused = true)]
async fn tasks_wait_for_the_rate_of_requests_and_leave_some_to_prompts() {
    let model = echo();
    let host = host(&model).await;
    let quotas = Quotas {
        requests_per_minute: Some(20),
        ..Quotas::default()
    };
    host.configure_tenant(&"acme".parse().unwrap(), TenantConfig::new().quotas(quotas))
        .await
        .unwrap();
    let began = tokio::time::Instant::now();

    let mut run = fan_out(&host, FanOut::over((0..28).map(|n| format!("t{n}")))).await;
    for _ in 0..18 {
        run.next().await.unwrap();
    }
    assert_eq!(began.elapsed().as_secs(), 0, "18 of 20 at once");
    let mut reply = conversation(&host).send("Hi").await.unwrap();
    reply.outcome().await.unwrap();
    let summary = run.finish().await;

    assert_eq!(summary.failed(), 0);
    // The prompt and ten tasks, three seconds each.
    assert_eq!(began.elapsed().as_secs(), 33);
}

#[tokio::test(start_paused = true)]
async fn no_more_tasks_are_in_memory_than_rounds_may_run() {
    let model = Arc::new(ScriptedModel::always(Reply::stall()));
    let host = host(&model).await;
    let quotas = Quotas {
        turns_max: Some(3),
        ..Quotas::default()
    };
    host.configure_tenant(&"acme".parse().unwrap(), TenantConfig::new().quotas(quotas))
        .await
        .unwrap();

    let run = fan_out(&host, FanOut::over(vec!["t"; 100]).parallel(100)).await;
    while model.counts().started < 3 {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;

    assert_eq!(host.tenant("acme").prompts_under_way().unwrap(), 3);
    run.cancel();
}
