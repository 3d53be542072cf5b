//! The circuit breaker: what opens it, how a probe ends, and which calls are refused at once.

use super::*;

fn server() -> Reply {
    Reply::error(ProviderError::Server {
        status: 500,
        retry_after: None,
        message: "oops".into(),
    })
}

fn breaking(failures: u32) -> GatewayConfig {
    GatewayConfig {
        breaker: BreakerConfig {
            failures,
            open_for: Duration::from_secs(10),
        },
        ..config()
    }
}

/// Fails until the breaker opens, then follows `script`.
fn failing(
    failures: usize,
    script: impl Fn(usize) -> Reply + Send + Sync + 'static,
) -> Arc<ScriptedModel> {
    Arc::new(ScriptedModel::answering(move |_, call| {
        if call < failures {
            server()
        } else {
            script(call - failures)
        }
    }))
}

async fn open(gateway: &ModelGatewayRef, failures: usize) {
    for _ in 0..failures {
        assert_eq!(call(gateway, "a").await, Err("provider_server_error"));
    }
    assert!(gateway.status().breaker_open);
}

#[tokio::test(start_paused = true)]
async fn a_tenant_whose_requests_fail_opens_the_breaker_for_no_other() {
    let model = ScriptedModel::answering(|_, call| match call % 12 {
        0 => Reply::text("fine"),
        _ => server(),
    });
    let gateway = gateway(&Arc::new(model), breaking(2));

    for _ in 0..5 {
        assert_eq!(call(&gateway, "b").await, Ok("fine".to_owned()));
        for _ in 0..11 {
            assert_eq!(call(&gateway, "a").await, Err("provider_server_error"));
        }
    }

    assert!(!gateway.status().breaker_open);
}

#[tokio::test(start_paused = true)]
async fn failures_of_two_tenants_open_the_breaker_for_all() {
    let model = ScriptedModel::answering(|_, call| match call {
        0 => Reply::text("fine"),
        _ => server(),
    });
    let gateway = gateway(&Arc::new(model), breaking(2));
    assert_eq!(call(&gateway, "b").await, Ok("fine".to_owned()));

    for who in ["a", "b", "a"] {
        assert_eq!(call(&gateway, who).await, Err("provider_server_error"));
    }

    assert_eq!(call(&gateway, "c").await, Err("provider_breaker_open"));
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_asks_for_less_is_there() {
    let limited = ProviderError::RateLimited {
        retry_after: None,
        message: "slow down".into(),
    };
    let gateway = gateway(
        &Arc::new(ScriptedModel::always(Reply::error(limited))),
        breaking(2),
    );

    for _ in 0..5 {
        assert_eq!(call(&gateway, "a").await, Err("provider_rate_limited"));
    }

    assert!(!gateway.status().breaker_open);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_ends_before_its_content_is_tried_again() {
    let incomplete = || ProviderError::Incomplete {
        message: "the stream ended before message_stop".into(),
    };
    let retried = GatewayConfig {
        retry: ModelRetryPolicy::default(),
        ..config()
    };
    for early in [
        Reply::empty().then_cut(),
        Reply::empty().then_fail(incomplete()),
    ] {
        let once = early.clone();
        let model = Arc::new(ScriptedModel::answering(move |_, call| match call {
            0 => once.clone(),
            _ => Reply::text("whole"),
        }));
        let always = Arc::new(ScriptedModel::always(early));

        let mended = call(&gateway(&model, retried.clone()), "a").await;
        let broken = call(&gateway(&always, retried.clone()), "a").await;

        assert_eq!((mended, model.counts().started), (Ok("whole".into()), 2));
        assert_eq!(
            (broken, always.counts().started),
            (Err("provider_protocol"), 4)
        );
    }
    let half = Arc::new(ScriptedModel::always(
        Reply::text("half").then_fail(incomplete()),
    ));
    assert_eq!(
        call(&gateway(&half, retried), "a").await,
        Err("provider_protocol")
    );
    assert_eq!(half.counts().started, 1, "not after content");
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_lets_no_call_queue() {
    let script = |_: &ModelRequest, call: usize| {
        if call == 0 {
            Reply::text("so").then_stall()
        } else {
            server()
        }
    };
    let model = Arc::new(ScriptedModel::answering(script));
    let gateway = gateway(&model, breaking(1));
    let runs = spawn(&gateway, "a");
    settle().await;
    open(&gateway, 1).await;
    gateway
        .configure(
            model,
            GatewayConfig {
                calls_max: 1,
                ..breaking(1)
            },
            None,
        )
        .unwrap();
    assert_eq!(gateway.status().free, 0);

    let answer = call(&gateway, "b").now_or_never();

    assert_eq!(answer, Some(Err("provider_breaker_open")));
    runs.abort();
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_cancelled_says_nothing_of_the_provider() {
    let model = failing(2, |call| if call == 0 { Reply::stall() } else { server() });
    let gateway = gateway(&model, breaking(2));
    open(&gateway, 2).await;
    tokio::time::sleep(Duration::from_secs(11)).await;
    let id = tenant("a");
    let cancel = CancellationToken::new();
    let by = CallBy {
        tenant: &id,
        weight: 1,
        class: CallClass::Interactive,
    };
    let mut probe = Box::pin(gateway.stream(&by, request(), cancel.clone(), |_| {}));
    assert!(probe.as_mut().now_or_never().is_none());

    cancel.cancel();
    assert_eq!(
        probe.await.err().map(|error| error.code()),
        Some("cancelled")
    );

    assert_eq!(call(&gateway, "a").await, Err("provider_server_error"));
    assert!(gateway.status().breaker_open, "one more failure is enough");
}

#[tokio::test(start_paused = true)]
async fn a_probe_whose_caller_left_makes_room_for_the_next() {
    let model = failing(1, |call| {
        if call == 0 {
            Reply::stall()
        } else {
            Reply::text("back")
        }
    });
    let gateway = gateway(&model, breaking(1));
    open(&gateway, 1).await;
    tokio::time::sleep(Duration::from_secs(11)).await;
    let probe = spawn(&gateway, "a");
    settle().await;
    assert_eq!(
        call(&gateway, "b").await,
        Err("provider_breaker_open"),
        "one probe at a time"
    );

    probe.abort();
    settle().await;

    assert_eq!(call(&gateway, "b").await, Ok("back".into()));
}

#[tokio::test(start_paused = true)]
async fn another_credential_begins_with_a_closed_breaker() {
    let gateway = gateway(&failing(1, |_| server()), breaking(1));
    open(&gateway, 1).await;

    gateway
        .configure(
            Arc::new(ScriptedModel::always(Reply::text("new"))),
            breaking(1),
            None,
        )
        .unwrap();

    assert_eq!(call(&gateway, "a").await, Ok("new".into()));
}
