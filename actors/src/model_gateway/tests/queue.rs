//! The order of the queue, callers that leave it, and what waiting callers are informed of.

use super::*;

#[tokio::test(start_paused = true)]
async fn an_uncontended_call_waits_for_nothing_and_starts_no_task() {
    let model = Arc::new(Timed::new(ScriptedModel::always(Reply::text("hi"))));
    let gateway = gateway(
        &model,
        GatewayConfig {
            requests_per_minute: Some(600),
            tokens_per_minute: Some(60_000),
            ..config()
        },
    );
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let before = tasks();

    let id = tenant("a");
    let by = CallBy {
        tenant: &id,
        weight: 1,
        class: CallClass::Interactive,
    };
    let stream = gateway
        .stream(&by, request(), CancellationToken::new(), |_| {})
        .now_or_never();

    assert!(stream.is_some_and(|stream| stream.is_ok()));
    assert_eq!(tasks(), before);
}

#[tokio::test(start_paused = true)]
async fn the_clock_is_watched_only_while_a_call_waits_for_it() {
    let model = Arc::new(Timed::new(ScriptedModel::always(Reply::text("hi"))));
    let gateway = gateway(
        &model,
        GatewayConfig {
            requests_per_minute: Some(1),
            ..config()
        },
    );
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let before = tasks();
    call(&gateway, "a").await.unwrap();

    let waiting: Vec<_> = (0..5).map(|_| spawn(&gateway, "a")).collect();
    settle().await;
    assert_eq!(tasks(), before + 6, "five callers and one watch");
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    settle().await;

    assert_eq!((tasks(), gateway.status().waiting), (before, 0));
}

#[tokio::test(start_paused = true)]
async fn a_tenant_that_floods_does_not_keep_another_waiting() {
    let model = Arc::new(Timed::new(ScriptedModel::always(
        Reply::text("hi").after(Duration::from_millis(100)),
    )));
    let gateway = gateway(
        &model,
        GatewayConfig {
            calls_max: 1,
            ..config()
        },
    );
    let flood: Vec<_> = (0..50).map(|_| spawn(&gateway, "flood")).collect();
    settle().await;

    let began = Instant::now();
    call(&gateway, "quiet").await.unwrap();

    assert!(
        began.elapsed() <= Duration::from_millis(310),
        "{:?}",
        began.elapsed()
    );
    drop(flood);
}

#[tokio::test(start_paused = true)]
async fn who_comes_beside_a_flood_waits_for_a_place_and_not_for_a_call() {
    let model = Arc::new(Timed::new(ScriptedModel::always(
        Reply::text("hi").after(Duration::from_millis(100)),
    )));
    let gateway = gateway(
        &model,
        GatewayConfig {
            calls_max: 16,
            ..config()
        },
    );
    call(&gateway, "quiet").await.unwrap();
    let flood: Vec<_> = (0..500).map(|_| spawn(&gateway, "flood")).collect();
    settle().await;
    tokio::time::sleep(Duration::from_millis(500)).await;

    let mut longest = Duration::ZERO;
    for _ in 0..10 {
        let began = Instant::now();
        call(&gateway, "quiet").await.unwrap();
        longest = longest.max(began.elapsed() - Duration::from_millis(100));
        tokio::time::sleep(Duration::from_millis(37)).await;
    }

    assert!(
        longest <= Duration::from_millis(40),
        "waited {longest:?} for a place"
    );
    drop(flood);
}

#[tokio::test(start_paused = true)]
async fn weights_share_what_is_served() {
    let model = Arc::new(Timed::new(ScriptedModel::always(
        Reply::text("hi").after(Duration::from_millis(10)),
    )));
    let gateway = gateway(
        &model,
        GatewayConfig {
            calls_max: 1,
            waiting_max: 2000,
            ..config()
        },
    );
    let served = Arc::new(Mutex::new(Vec::new()));
    for (who, weight) in [("light", 1), ("heavy", 3)] {
        for _ in 0..600 {
            let gateway = gateway.clone();
            let served = served.clone();
            tokio::spawn(async move {
                call_as(&gateway, who, weight, &|_| {}).await.unwrap();
                served.lock().push(who);
            });
        }
    }

    while served.lock().len() < 400 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    let heavy = served
        .lock()
        .iter()
        .take(400)
        .filter(|who| **who == "heavy")
        .count();
    assert!(
        (260..=340).contains(&heavy),
        "{heavy} of 400 at three to one"
    );
}

#[tokio::test(start_paused = true)]
async fn who_leaves_the_queue_frees_its_place_and_costs_nothing() {
    let model = Arc::new(Timed::new(ScriptedModel::always(
        Reply::text("hi").after(Duration::from_secs(1)),
    )));
    let config = GatewayConfig {
        calls_max: 1,
        waiting_max: 1,
        tokens_per_minute: Some(600_000),
        ..config()
    };
    let gateway = gateway(&model, config);
    let runs = spawn(&gateway, "a");
    settle().await;

    let leaves = spawn(&gateway, "b");
    settle().await;
    assert_eq!(gateway.status().waiting, 1);
    leaves.abort();
    settle().await;
    assert_eq!(gateway.status().waiting, 0);
    let stays = spawn(&gateway, "a");
    settle().await;

    assert!(runs.await.unwrap().is_ok() && stays.await.unwrap().is_ok());
    assert_eq!(model.times(), [0.0, 1.0]);
    let status = gateway.status();
    assert_eq!((status.running, status.free), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_permit_that_reaches_a_caller_that_just_left_goes_on() {
    let model = Arc::new(Timed::new(ScriptedModel::always(
        Reply::text("hi").after(Duration::from_secs(1)),
    )));
    let gateway = gateway(
        &model,
        GatewayConfig {
            calls_max: 1,
            requests_per_minute: Some(600),
            tokens_per_minute: Some(60_000),
            ..config()
        },
    );
    let runs = spawn(&gateway, "a");
    settle().await;
    let id = tenant("b");
    let by = CallBy {
        tenant: &id,
        weight: 1,
        class: CallClass::Interactive,
    };
    let mut leaves = Box::pin(gateway.stream(&by, request(), CancellationToken::new(), |_| {}));
    assert!(leaves.as_mut().now_or_never().is_none());

    // The permit was handed over, and the caller never polls for it.
    runs.await.unwrap().unwrap();
    assert_eq!(gateway.status().running, 1);
    let held = gateway.status().tokens_left;
    drop(leaves);
    assert!(
        gateway.status().tokens_left > held,
        "its tokens are free again"
    );

    assert_eq!(
        (gateway.status().running, gateway.status().requests_left),
        (0, Some(100))
    );
    assert_eq!(call(&gateway, "c").await, Ok("hi".into()));
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_the_one_that_filled_it() {
    let model = Arc::new(Timed::new(ScriptedModel::always(
        Reply::text("hi").after(Duration::from_secs(1)),
    )));
    let gateway = gateway(
        &model,
        GatewayConfig {
            calls_max: 1,
            waiting_max: 10,
            ..config()
        },
    );
    let mut flood: Vec<_> = (0..11).map(|_| spawn(&gateway, "flood")).collect();
    settle().await;

    let refused = tokio::spawn({
        let gateway = gateway.clone();
        async move { call(&gateway, "flood").now_or_never() }
    });
    assert_eq!(refused.await.unwrap(), Some(Err("overloaded")), "at once");
    let quiet = spawn(&gateway, "quiet");
    settle().await;

    assert_eq!(gateway.status().waiting, 10);
    assert_eq!(
        flood.pop().unwrap().await.unwrap(),
        Err("overloaded"),
        "the newest made room"
    );
    assert_eq!(quiet.await.unwrap(), Ok("hi".into()));
}

#[tokio::test(start_paused = true)]
async fn a_place_in_the_queue_is_reported_and_reported_again_when_it_moved() {
    let model = Arc::new(Timed::new(ScriptedModel::always(
        Reply::text("hi").after(Duration::from_millis(1500)),
    )));
    let gateway = gateway(
        &model,
        GatewayConfig {
            calls_max: 1,
            ..config()
        },
    );
    let flood: Vec<_> = (0..4).map(|_| spawn(&gateway, "flood")).collect();
    settle().await;
    let reports = Mutex::new(Vec::new());

    call_as(&gateway, "flood", 1, &|waiting| {
        if let Waiting::Queued {
            position,
            waits_for,
            ..
        } = waiting
        {
            reports.lock().push((position, waits_for));
        }
    })
    .await
    .unwrap();

    assert_eq!(
        reports.into_inner(),
        [4, 3, 2, 1].map(|position| (position, ProviderWait::Concurrency))
    );
    drop(flood);
}

#[tokio::test(start_paused = true)]
async fn calls_beyond_the_connections_wait_here_until_there_are_more() {
    let model = Arc::new(Timed::new(ScriptedModel::always(
        Reply::text("hi").after(Duration::from_secs(1)),
    )));
    model.calls_max.store(2, Ordering::Relaxed);
    let six = GatewayConfig {
        calls_max: 6,
        ..config()
    };
    let gateway = gateway(&model, six);
    let calls = ["a", "b", "c", "d"].map(|name| spawn(&gateway, name));
    settle().await;

    let status = gateway.status();
    assert_eq!(
        (status.free, status.running, status.waiting),
        (0, 2, 2),
        "{status:?}"
    );
    assert_eq!(status.waits_for, Some(ProviderWait::Connections));

    // Another call finds out that the connections carry more.
    model.calls_max.store(5, Ordering::Relaxed);
    let fifth = spawn(&gateway, "e");
    settle().await;
    let status = gateway.status();
    assert_eq!((status.running, status.waiting), (5, 0));
    drop((calls, fifth));
}

#[tokio::test(start_paused = true)]
async fn the_status_says_who_waits_and_for_what() {
    let model = Arc::new(Timed::new(ScriptedModel::always(
        Reply::text("hi").after(Duration::from_secs(1)),
    )));
    let gateway = gateway(
        &model,
        GatewayConfig {
            calls_max: 1,
            ..config()
        },
    );
    let calls = [
        spawn(&gateway, "a"),
        spawn(&gateway, "b"),
        spawn(&gateway, "b"),
        spawn(&gateway, "c"),
    ];
    settle().await;

    let status = gateway.status();

    let waiting = |name: &str, waiting, position| TenantWaiting {
        tenant: tenant(name),
        waiting,
        position,
    };
    assert_eq!(status.tenants, [waiting("b", 2, 3), waiting("c", 1, 2)]);
    assert_eq!(
        (
            status.free,
            status.running,
            status.waiting,
            status.waits_for
        ),
        (0, 1, 3, Some(ProviderWait::Concurrency))
    );
    assert_eq!(
        serde_json::to_value(&status).unwrap()["waits_for"],
        "concurrency"
    );
    drop(calls);
}

#[tokio::test(start_paused = true)]
async fn what_a_call_used_and_not_its_estimate_counts_for_a_share() {
    let model = Arc::new(ScriptedModel::answering(|request, _| {
        let tokens = if request.messages.last().unwrap().text() == "dear" {
            400
        } else {
            10
        };
        Reply::text("hi")
            .usage(Usage {
                input_uncached: tokens,
                ..Usage::default()
            })
            .after(Duration::from_millis(10))
    }));
    let gateway = gateway(
        &model,
        GatewayConfig {
            calls_max: 1,
            waiting_max: 2000,
            ..config()
        },
    );
    let served = Arc::new(Mutex::new(Vec::new()));
    for who in ["dear", "cheap"].repeat(400) {
        let gateway = gateway.clone();
        let served = served.clone();
        tokio::spawn(async move {
            let id = tenant(who);
            let by = CallBy {
                tenant: &id,
                weight: 1,
                class: CallClass::Interactive,
            };
            let request = ModelRequest {
                messages: MessageList::from_iter([Message::user(who)]),
                ..request()
            };
            let stream = gateway
                .stream(&by, request, CancellationToken::new(), |_| {})
                .await
                .unwrap();
            stream.for_each(|_| std::future::ready(())).await;
            served.lock().push(who);
        });
    }

    while served.lock().len() < 300 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    let dear = served
        .lock()
        .iter()
        .take(300)
        .filter(|who| **who == "dear")
        .count();
    assert!(dear < 60, "{dear} of 300 at forty times the price");
}

#[tokio::test(start_paused = true)]
async fn the_expected_wait_follows_the_pace_of_this_queue() {
    let model = Arc::new(ScriptedModel::always(
        Reply::text("hi").after(Duration::from_secs(1)),
    ));
    let gateway = gateway(
        &model,
        GatewayConfig {
            calls_max: 1,
            ..config()
        },
    );
    let burst = async || {
        let before: Vec<_> = (0..4).map(|_| spawn(&gateway, "a")).collect();
        settle().await;
        let delays = Mutex::new(Vec::new());
        let notify = |waiting| match waiting {
            Waiting::Queued { delay, .. } => delays.lock().push(delay),
            Waiting::Sent => {}
            other => panic!("{other:?}"),
        };
        call_as(&gateway, "a", 1, &notify).await.unwrap();
        drop(before);
        delays.into_inner()
    };

    let first = burst().await;
    tokio::time::sleep(Duration::from_secs(1000)).await;
    let second = burst().await;

    assert_eq!(
        (first[0], *first.last().unwrap()),
        (None, Some(Duration::from_secs(1))),
        "{first:?}"
    );
    assert_eq!(second, first, "what was long ago says nothing of now");
}

/// Three hosts with a gateway each to one provider.
fn hosts(model: &Arc<Timed>, config: &GatewayConfig) -> Vec<ModelGatewayRef> {
    let shared = |place| {
        let gateway = gateway(model, config.clone());
        gateway.share(HostShare { hosts: 3, place });
        gateway
    };
    (0..3).map(shared).collect()
}

#[tokio::test(start_paused = true)]
async fn hosts_that_share_a_provider_keep_its_rate_together_while_one_leaves() {
    let model = Arc::new(Timed::new(ScriptedModel::always(Reply::text("hi"))));
    let config = GatewayConfig {
        requests_per_minute: Some(60),
        ..config()
    };
    let hosts = hosts(&model, &config);
    let calls = hosts
        .iter()
        .flat_map(|host| (0..100).map(|_| spawn(host, "a")));
    let calls: Vec<_> = calls.collect();
    let started = || model.times().len();

    tokio::time::sleep(Duration::from_secs(60)).await;
    let first = started();
    // One host is gone, and after a while the others have its part.
    calls
        .iter()
        .take(100)
        .for_each(tokio::task::JoinHandle::abort);
    for (place, host) in (0..).zip(&hosts[1..]) {
        host.share(HostShare { hosts: 2, place });
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    let second = started() - first;

    // A minute's worth, and the burst of ten that one host has too.
    assert!((60..=70).contains(&first), "{first}");
    assert!((58..=64).contains(&second), "{second}");
}

#[tokio::test(start_paused = true)]
async fn hosts_that_share_a_provider_keep_its_calls_at_once_together() {
    let slow = Reply::text("hi").after(Duration::from_secs(3600));
    let model = Arc::new(Timed::new(ScriptedModel::always(slow)));
    let config = GatewayConfig {
        calls_max: 8,
        calls_are_shared: true,
        ..config()
    };
    let hosts = hosts(&model, &config);

    let _calls: Vec<_> = hosts
        .iter()
        .flat_map(|host| (0..20).map(|_| spawn(host, "a")))
        .collect();
    settle().await;

    assert_eq!(model.times().len(), 8);
    // What limits this host alone is not divided.
    let own = gateway(
        &model,
        GatewayConfig {
            calls_are_shared: false,
            ..config
        },
    );
    own.share(HostShare { hosts: 3, place: 0 });
    let _own: Vec<_> = (0..20).map(|_| spawn(&own, "a")).collect();
    settle().await;
    assert_eq!(model.times().len(), 16);
}
