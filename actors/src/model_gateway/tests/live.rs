//! Configuration changes while calls wait.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_wider_gateway_lets_those_who_wait_through() {
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
        spawn(&gateway, "a"),
        spawn(&gateway, "a"),
    ];
    settle().await;

    gateway
        .configure(
            model.clone(),
            GatewayConfig {
                calls_max: 3,
                ..config()
            },
            None,
        )
        .unwrap();

    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(model.times(), [0.0, 0.0, 0.0]);
}

#[tokio::test(start_paused = true)]
async fn a_narrower_gateway_lets_what_runs_end() {
    let model = Arc::new(Timed::new(ScriptedModel::always(
        Reply::text("hi").after(Duration::from_secs(1)),
    )));
    let gateway = gateway(&model, config());
    let calls = [
        spawn(&gateway, "a"),
        spawn(&gateway, "a"),
        spawn(&gateway, "a"),
    ];
    settle().await;

    gateway
        .configure(
            model.clone(),
            GatewayConfig {
                calls_max: 1,
                ..config()
            },
            None,
        )
        .unwrap();
    assert_eq!((gateway.status().running, gateway.status().free), (3, 0));
    let next = spawn(&gateway, "a");
    for call in calls {
        call.await.unwrap().unwrap();
    }

    next.await.unwrap().unwrap();
    assert_eq!(model.times(), [0.0, 0.0, 0.0, 1.0]);
}

#[tokio::test(start_paused = true)]
async fn a_bound_that_is_lifted_keeps_no_call_waiting() {
    let model = Arc::new(Timed::new(ScriptedModel::always(Reply::text("hi"))));
    let bounded = GatewayConfig {
        requests_per_minute: Some(1),
        tokens_per_minute: Some(1),
        ..config()
    };
    let gateway = gateway(&model, bounded);
    call(&gateway, "a").await.unwrap();
    let waits = spawn(&gateway, "a");
    settle().await;

    gateway.configure(model.clone(), config(), None).unwrap();

    waits.await.unwrap().unwrap();
    assert_eq!(model.times(), [0.0, 0.0]);
}

#[tokio::test(start_paused = true)]
async fn who_waits_calls_with_the_new_credential() {
    let old = Arc::new(ScriptedModel::answering(|_, call| {
        if call == 0 {
            limited(30)
        } else {
            Reply::text("old")
        }
    }));
    let new = Arc::new(ScriptedModel::always(Reply::text("new")));
    let gateway = gateway(&old, config());
    call(&gateway, "a").await.unwrap_err();
    let waits = spawn(&gateway, "a");
    settle().await;

    let began = Instant::now();
    gateway.configure(new.clone(), config(), None).unwrap();

    assert_eq!(waits.await.unwrap(), Ok("new".into()));
    assert_eq!(
        began.elapsed(),
        Duration::ZERO,
        "the old credential's pause is not the new one's"
    );
    assert_eq!(old.counts().started, 1);
}

/// A provider that counts this number of tokens in every request; its window is a thousand times as
/// large.
struct Counts(u32);

impl LlmProvider for Counts {
    fn name(&self) -> &str {
        "counts"
    }

    fn capabilities(&self, model: &str) -> Capabilities {
        Capabilities {
            context_window: self.0 * 1000,
            ..LlmProvider::capabilities(&ScriptedModel::always(Reply::text("")), model)
        }
    }

    fn stream(
        &self,
        _: ModelRequest,
        _: CancellationToken,
    ) -> BoxFuture<'_, Result<ModelStream, ProviderError>> {
        Box::pin(std::future::ready(Ok(stream::empty().boxed())))
    }

    fn count_tokens(&self, _: ModelRequest) -> BoxFuture<'_, Result<u64, ProviderError>> {
        Box::pin(std::future::ready(Ok(self.0.into())))
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_are_counted_with_the_credential_of_the_day() {
    let gateway = gateway(&Arc::new(Counts(7)), config());
    let counting = gateway.counting();
    let before = (
        counting.count_tokens(request()).await,
        counting.capabilities("m").context_window,
    );

    gateway
        .configure(Arc::new(Counts(8)), config(), None)
        .unwrap();

    let after = (
        counting.count_tokens(request()).await,
        counting.capabilities("m").context_window,
    );
    assert_eq!(
        (before, after),
        ((Ok(7), 7000), (Ok(8), 8000)),
        "who counts began with the old one"
    );
    assert!(
        counting
            .stream(request(), CancellationToken::new())
            .await
            .is_err(),
        "it counts and does nothing else"
    );
}
