//! When the fallback takes over, and when not.

use super::*;

fn failing(error: ProviderError) -> Arc<ScriptedModel> {
    Arc::new(ScriptedModel::always(Reply::error(error)))
}

fn server() -> ProviderError {
    ProviderError::Server {
        status: 500,
        retry_after: None,
        message: "oops".into(),
    }
}

/// A gateway to `primary` with a gateway to `second` as its fallback.
fn pair(
    primary: &Arc<ScriptedModel>,
    second: &Arc<ScriptedModel>,
    config: GatewayConfig,
) -> (ModelGatewayRef, ModelGatewayRef) {
    let to = gateway(second, super::config());
    let fallback = Some(Fallback {
        gateway: "second".into(),
        model: "small".into(),
    });
    let from = gateway(primary, config.clone());
    from.configure(
        primary.clone(),
        GatewayConfig { fallback, ..config },
        Some(to.clone()),
    )
    .unwrap();
    (from, to)
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_retries_are_used_up_goes_to_the_fallback_and_says_so() {
    let primary = failing(server());
    let second = Arc::new(ScriptedModel::always(Reply::text("second")));
    let retry = ModelRetryPolicy {
        max_retries: 2,
        ..ModelRetryPolicy::default()
    };
    let (gateway, _) = pair(&primary, &second, GatewayConfig { retry, ..config() });
    let reports = Mutex::new(Vec::new());

    let answer = call_as(&gateway, "a", 1, &|waiting| reports.lock().push(waiting)).await;

    assert_eq!(answer, Ok("second".into()));
    assert_eq!((primary.counts().started, second.counts().started), (3, 1));
    assert_eq!(&*second.last_request().unwrap().model, "small");
    let mut reports = reports.into_inner();
    assert_eq!(
        reports.pop(),
        Some(Waiting::Sent),
        "the fallback may bill it"
    );
    assert_eq!(
        reports.pop(),
        Some(Waiting::Fallback {
            reason: "provider_server_error",
            model: "small".into()
        })
    );
    let counted = gateway.0.collector.read().await.host;
    assert_eq!(counted.prefix_breaks_configuration, 1);
    assert!(counted.rebilled_tokens > 0);
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_sends_calls_to_the_fallback_at_once() {
    let primary = failing(server());
    let second = Arc::new(ScriptedModel::always(Reply::text("second")));
    let breaker = BreakerConfig {
        failures: 2,
        open_for: Duration::from_secs(10),
    };
    let (gateway, _) = pair(
        &primary,
        &second,
        GatewayConfig {
            breaker,
            ..config()
        },
    );

    for _ in 0..5 {
        assert_eq!(call(&gateway, "a").await, Ok("second".into()));
    }

    assert_eq!((primary.counts().started, second.counts().started), (2, 5));
    assert!(gateway.status().breaker_open);
    tokio::time::sleep(Duration::from_secs(11)).await;
    call(&gateway, "a").await.unwrap();
    assert_eq!(primary.counts().started, 3, "one probe");
}

#[tokio::test(start_paused = true)]
async fn a_fault_of_the_request_itself_goes_nowhere_else() {
    let second = Arc::new(ScriptedModel::always(Reply::text("second")));
    for error in [
        ProviderError::InvalidRequest {
            status: 400,
            message: "no".into(),
        },
        ProviderError::Auth {
            message: "no".into(),
        },
        ProviderError::Protocol {
            message: "no".into(),
        },
    ] {
        let (gateway, _) = pair(&failing(error.clone()), &second, config());

        assert_eq!(call(&gateway, "a").await, Err(error.code()));
    }
    assert_eq!(second.counts().started, 0);
}

#[tokio::test(start_paused = true)]
async fn what_breaks_after_the_first_content_is_not_begun_again_elsewhere() {
    let primary = Arc::new(ScriptedModel::always(
        Reply::text("half of it").then_fail(server()),
    ));
    let second = Arc::new(ScriptedModel::always(Reply::text("second")));
    let (gateway, _) = pair(&primary, &second, config());

    assert_eq!(call(&gateway, "a").await, Err("provider_server_error"));
    assert_eq!(second.counts().started, 0);
}

#[tokio::test(start_paused = true)]
async fn the_fallbacks_failure_is_the_calls() {
    let primary = failing(server());
    let second = failing(ProviderError::Auth {
        message: "no".into(),
    });
    let (gateway, _) = pair(&primary, &second, config());

    assert_eq!(call(&gateway, "a").await, Err("provider_auth"));
    assert_eq!((primary.counts().started, second.counts().started), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_ring_of_fallbacks_is_refused_and_changes_nothing() {
    let primary = failing(server());
    let second = failing(server());
    let (from, to) = pair(&primary, &second, config());
    let back = Some(Fallback {
        gateway: "first".into(),
        model: "m".into(),
    });

    let refused = to.configure(
        second.clone(),
        GatewayConfig {
            calls_max: 1,
            fallback: back,
            ..config()
        },
        Some(from.clone()),
    );

    assert_eq!(refused, Err(FallbackCycle));
    assert_eq!((to.status().free, to.status().fallback), (4, None));
    assert_eq!(from.status().fallback.as_deref(), Some("second"));
}
