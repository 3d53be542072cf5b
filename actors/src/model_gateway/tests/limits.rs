//! Limits of requests and tokens per minute, and limits that the provider reports.

use super::*;
use crate::ports::Allowance;

fn used(tokens: u64) -> Usage {
    Usage {
        input_uncached: tokens,
        ..Usage::default()
    }
}

#[tokio::test(start_paused = true)]
async fn requests_a_minute_are_kept() {
    let model = Arc::new(Timed::new(ScriptedModel::always(Reply::text("hi"))));
    let gateway = gateway(
        &model,
        GatewayConfig {
            requests_per_minute: Some(60),
            ..config()
        },
    );

    let calls: Vec<_> = (0..13).map(|_| spawn(&gateway, "a")).collect();
    settle().await;
    let status = gateway.status();
    for call in calls {
        assert_eq!(call.await.unwrap(), Ok("hi".into()));
    }

    assert_eq!(model.times(), [vec![0.0; 10], vec![1.0, 2.0, 3.0]].concat());
    assert_eq!(
        (status.waiting, status.waits_for, status.requests_left),
        (3, Some(ProviderWait::Requests), Some(0))
    );
}

#[tokio::test(start_paused = true)]
async fn tokens_a_minute_are_reserved_by_estimate_and_settled_by_use() {
    // The estimate is a little over 100 tokens; the bucket holds 10,000 and gains 200 per second.
    let model = Arc::new(Timed::new(ScriptedModel::answering(|_, call| {
        Reply::text("hi").usage(if call == 0 { used(6_000) } else { used(100) })
    })));
    let gateway = gateway(
        &model,
        GatewayConfig {
            tokens_per_minute: Some(12_000),
            ..config()
        },
    );

    call(&gateway, "a").await.unwrap();
    assert_eq!(
        gateway.status().tokens_left,
        Some(4_000),
        "6,000 were used, whatever the estimate"
    );
    gateway.0.permits.observe(
        &RateLimits {
            tokens: Some(Allowance {
                remaining: 0,
                ..Allowance::default()
            }),
            ..Default::default()
        },
        1,
    );
    let waits = spawn(&gateway, "a");
    settle().await;

    assert_eq!(gateway.status().waits_for, Some(ProviderWait::Tokens));
    waits.await.unwrap().unwrap();
    let times = model.times();
    assert!(
        (0.5..0.7).contains(&times[1]),
        "at the estimate's price: {times:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn absurd_usage_figures_shut_no_door_for_ever() {
    let model = Arc::new(Timed::new(ScriptedModel::always(
        Reply::text("hi").usage(used(u64::MAX)),
    )));
    let gateway = gateway(
        &model,
        GatewayConfig {
            tokens_per_minute: Some(60_000),
            ..config()
        },
    );

    call(&gateway, "a").await.unwrap();

    assert!(
        gateway.status().tokens_left > Some(-10_000),
        "{:?}",
        gateway.status()
    );
}

#[tokio::test(start_paused = true)]
async fn a_refused_call_gives_its_tokens_back_and_keeps_its_request() {
    let error = ProviderError::InvalidRequest {
        status: 400,
        message: "no".into(),
    };
    let model = Arc::new(Timed::new(ScriptedModel::always(Reply::error(error))));
    let config = GatewayConfig {
        tokens_per_minute: Some(60_000),
        requests_per_minute: Some(60),
        ..config()
    };
    let gateway = gateway(&model, config);

    assert_eq!(call(&gateway, "a").await, Err("provider_invalid_request"));

    assert_eq!(
        (gateway.status().tokens_left, gateway.status().requests_left),
        (Some(10_000), Some(9))
    );
}

#[tokio::test(start_paused = true)]
async fn no_call_starts_while_the_provider_asks_for_a_pause() {
    let model = Arc::new(Timed::new(ScriptedModel::answering(|_, call| {
        if call == 0 {
            limited(5)
        } else {
            Reply::text("hi")
        }
    })));
    let gateway = gateway(&model, config());

    assert_eq!(call(&gateway, "a").await, Err("provider_rate_limited"));
    let others = [spawn(&gateway, "a"), spawn(&gateway, "b")];
    settle().await;
    let status = gateway.status();
    for other in others {
        assert_eq!(other.await.unwrap(), Ok("hi".into()));
    }

    assert_eq!(
        (status.waits_for, status.held_ms),
        (Some(ProviderWait::RetryAfter), Some(5000))
    );
    assert_eq!(model.times(), [0.0, 5.0, 5.0]);
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_above_a_minute_fails_all_callers_at_once_carrying_it() {
    let model = Arc::new(Timed::new(ScriptedModel::answering(|_, call| {
        if call == 0 {
            limited(90).after(Duration::from_secs(1))
        } else {
            Reply::text("hi")
        }
    })));
    let gateway = gateway(
        &model,
        GatewayConfig {
            calls_max: 1,
            ..config()
        },
    );

    let first = spawn(&gateway, "a");
    settle().await;
    let waiting = spawn(&gateway, "b");
    assert_eq!(first.await.unwrap(), Err("provider_rate_limited"));
    assert_eq!(waiting.await.unwrap(), Err("provider_rate_limited"));

    let id = tenant("c");
    let cancel = CancellationToken::new();
    let by = CallBy {
        tenant: &id,
        weight: 1,
        class: CallClass::Interactive,
    };
    tokio::time::sleep(Duration::from_secs(10)).await;
    let error = gateway
        .stream(&by, request(), cancel, |_| {})
        .now_or_never()
        .unwrap()
        .err()
        .unwrap();
    assert_eq!(error.retry_after(), Some(Duration::from_secs(80)));
    tokio::time::sleep(Duration::from_secs(25)).await;
    assert_eq!(
        call(&gateway, "c").await,
        Ok("hi".into()),
        "less than a minute is waited for"
    );
    assert_eq!(model.times(), [0.0, 91.0]);
}

#[tokio::test(start_paused = true)]
async fn what_the_provider_says_is_left_lowers_what_may_be_used() {
    let left = |remaining| {
        Some(Allowance {
            limit: Some(600),
            remaining,
            reset: Some(Duration::from_secs(60)),
        })
    };
    let limits = RateLimits {
        requests: left(2),
        input_tokens: left(300),
        ..RateLimits::default()
    };
    let model = Arc::new(Timed {
        limits,
        ..Timed::new(ScriptedModel::always(Reply::text("hi").usage(used(0))))
    });
    let config = GatewayConfig {
        requests_per_minute: Some(600),
        tokens_per_minute: Some(60_000),
        ..config()
    };
    let gateway = gateway(&model, config);

    call(&gateway, "a").await.unwrap();

    let status = gateway.status();
    assert_eq!(status.requests_left, Some(2));
    assert!(status.tokens_left < Some(500), "{status:?}");
}

#[tokio::test(start_paused = true)]
async fn an_unbounded_gateway_waits_when_the_provider_says_that_nothing_is_left() {
    let spent = Allowance {
        limit: Some(60),
        remaining: 0,
        reset: Some(Duration::from_secs(60)),
    };
    let limits = RateLimits {
        requests: Some(spent),
        ..RateLimits::default()
    };
    let model = Arc::new(Timed {
        limits,
        ..Timed::new(ScriptedModel::always(Reply::text("hi")))
    });
    let gateway = gateway(&model, config());

    for _ in 0..3 {
        call(&gateway, "a").await.unwrap();
    }

    assert_eq!(model.times(), [0.0, 1.0, 2.0]);
}

#[tokio::test(start_paused = true)]
async fn a_permit_is_released_while_its_caller_waits_to_try_again() {
    let failed = ProviderError::Server {
        status: 500,
        retry_after: None,
        message: "oops".into(),
    };
    let script = move |_: &ModelRequest, call: usize| {
        if call == 0 {
            Reply::error(failed.clone())
        } else {
            Reply::text("hi")
        }
    };
    let model = Arc::new(Timed::new(ScriptedModel::answering(script)));
    let gateway = gateway(
        &model,
        GatewayConfig {
            calls_max: 1,
            retry: ModelRetryPolicy::default(),
            ..config()
        },
    );

    let tries_again = spawn(&gateway, "a");
    settle().await;
    assert_eq!(gateway.status().running, 0);
    let other = call(&gateway, "b").await;

    assert_eq!(
        (other, tries_again.await.unwrap()),
        (Ok("hi".into()), Ok("hi".into()))
    );
    let times = model.times();
    assert!(times[1] == 0.0 && times[2] >= 0.75, "{times:?}");
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_is_obeyed_by_the_retry_itself() {
    let model = Arc::new(Timed::new(ScriptedModel::answering(|_, call| {
        if call == 0 {
            limited(7)
        } else {
            Reply::text("hi")
        }
    })));
    let gateway = gateway(
        &model,
        GatewayConfig {
            retry: ModelRetryPolicy::default(),
            ..config()
        },
    );

    assert_eq!(call(&gateway, "a").await, Ok("hi".into()));

    assert!(
        (7.0..7.8).contains(&model.times()[1]),
        "{:?}",
        model.times()
    );
}

#[tokio::test(start_paused = true)]
async fn a_shorter_pause_does_not_end_a_longer_one() {
    let gateway = gateway(
        &Arc::new(ScriptedModel::always(Reply::text("hi"))),
        config(),
    );

    gateway.0.permits.hold(Duration::from_secs(30));
    gateway.0.permits.hold(Duration::from_secs(5));

    assert_eq!(gateway.status().held_ms, Some(30_000));
    gateway.0.permits.hold(Duration::from_secs(99_999_999));
    let ten_minutes = gateway.status().held_ms;
    assert_eq!(ten_minutes, Some(600_000), "whatever a provider says");
}

#[tokio::test(start_paused = true)]
async fn output_that_is_used_up_is_waited_for() {
    let spent = Allowance {
        limit: Some(6000),
        remaining: 0,
        reset: Some(Duration::from_secs(60)),
    };
    let limits = RateLimits {
        output_tokens: Some(spent),
        ..RateLimits::default()
    };
    let model = Arc::new(Timed {
        limits,
        ..Timed::new(ScriptedModel::always(Reply::text("hi")))
    });
    let gateway = gateway(&model, config());

    for _ in 0..2 {
        call(&gateway, "a").await.unwrap();
    }

    assert!(
        model.times()[1] >= 1.0,
        "a hundred tokens of a hundred a second: {:?}",
        model.times()
    );
}

#[tokio::test(start_paused = true)]
async fn what_came_from_a_cache_is_not_counted() {
    let usage = Usage {
        input_uncached: 10,
        cache_read: 4_000,
        cache_write: 20,
        output: 30,
    };
    let gateway = gateway(
        &Arc::new(ScriptedModel::always(Reply::text("hi").usage(usage))),
        GatewayConfig {
            tokens_per_minute: Some(60_000),
            ..config()
        },
    );

    call(&gateway, "a").await.unwrap();

    assert_eq!(gateway.status().tokens_left, Some(10_000 - 60));
}

#[tokio::test(start_paused = true)]
async fn the_error_of_the_last_attempt_is_the_one_that_the_caller_gets() {
    let model = ScriptedModel::answering(|_, call| match call {
        0 => limited(1),
        1 => Reply::error(ProviderError::Server {
            status: 500,
            retry_after: None,
            message: "no".into(),
        }),
        _ => Reply::error(ProviderError::Connection {
            message: "reset".into(),
        }),
    });
    let retry = ModelRetryPolicy {
        max_retries: 2,
        ..ModelRetryPolicy::default()
    };
    let gateway = gateway(&Arc::new(model), GatewayConfig { retry, ..config() });

    assert_eq!(call(&gateway, "a").await, Err("provider_connection"));
}
