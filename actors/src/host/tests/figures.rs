//! Figures: those of a conversation are stored with it, those of tenants and of the host count from
//! the host's start.

use std::{sync::Arc, time::Duration};

use super::probe;
use crate::{
    HostBuilder,
    host::{Host, SlotCounts},
    ids::{Epoch, Scope, Seq},
    journal::{Head, StoredEntry},
    limits::Limits,
    metrics_collector::TenantReading,
    ports::{AppendExt, Clock},
    scripted::Reply,
    stream::Open,
    testing::{ManualClock, ScriptedModel, SeededEntropy},
    time::Timestamp,
    tool::{EffectClass, ToolError},
};

/// A clock that the test sets while the host uses it.
struct Shared(Arc<ManualClock>);

impl Clock for Shared {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

async fn of(host: &Host, tenant: &str) -> TenantReading {
    let figures = host.figures().await;
    figures
        .tenants
        .into_iter()
        .find(|(id, _)| id.as_str() == tenant)
        .map(|(_, reading)| reading)
        .unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn duration_messages_and_tools_of_a_conversation_are_maintained() {
    let empty = serde_json::json!({});
    let replies = [
        Reply::tool("probe", &empty),
        Reply::text("once"),
        Reply::text("twice"),
    ];
    let model = Arc::new(ScriptedModel::replies(replies));
    let clock = Arc::new(ManualClock::at(Timestamp(1_795_300_000_000)));
    let (tool, _) = probe("probe", EffectClass::Pure, |_| async {
        Ok("twelve bytes".into())
    });
    let builder = HostBuilder::new(Shared(clock.clone()), SeededEntropy::new(7), |host| host)
        .shared_provider(model)
        .tool(tool);
    let host: Host = builder.build().await.unwrap();
    let conversation = host.tenant("acme").conversation("c-1");

    conversation
        .send("one")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();
    clock.advance_ms(5_000);
    conversation
        .send("two")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    let state = conversation.state().await.unwrap();
    assert_eq!(
        (
            state.metrics.total_duration_ms(),
            state.metrics.messages_count
        ),
        (5_000, 6),
        "times are the wall clock's, and tool messages count"
    );
    assert_eq!(
        (
            state.metrics.rounds,
            state.metrics.successful_calls,
            state.metrics.failed_calls
        ),
        (2, 1, 0)
    );
    let [("probe", stats)] = state.tool_stats()[..] else {
        panic!("{:?}", state.tool_stats())
    };
    assert_eq!(
        (stats.call_count, stats.success_rate, stats.avg_tokens),
        (1, 1.0, 4.0),
        "`{{}}` is one token, twelve bytes are three"
    );
}

#[tokio::test(start_paused = true)]
async fn a_tenants_figures_count_what_happened_and_no_other_tenants() {
    let empty = serde_json::json!({});
    let model = Arc::new(ScriptedModel::replies([
        Reply::tool("probe", &empty),
        Reply::text("done"),
    ]));
    let (tool, _) = probe("probe", EffectClass::Pure, |_| async {
        Err(ToolError::invalid("no"))
    });
    let clock = ManualClock::at(Timestamp(1_795_300_000_000));
    let host: Host = HostBuilder::new(clock, SeededEntropy::new(7), |host| host)
        .shared_provider(model)
        .tool(tool)
        .build()
        .await
        .unwrap();

    host.tenant("acme")
        .conversation("c-1")
        .send("one")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    let acme = of(&host, "acme").await;
    let figures = host.figures().await;
    assert_eq!(
        (
            acme.prompts,
            acme.rounds,
            acme.rounds_failed,
            acme.tool_calls,
            acme.tool_calls_failed
        ),
        (1, 1, 0, 1, 1)
    );
    assert_eq!(
        (acme.usage.input(), acme.usage.output),
        (figures.total.input_tokens, figures.total.output_tokens)
    );
    assert_eq!(of(&host, "umbrella").await, TenantReading::default());
    let times = figures.latencies;
    assert_eq!(
        (
            times.round.count(),
            times.model_call.count(),
            times.first_chunk.count(),
            times.tool_call.count()
        ),
        (1, 2, 2, 1)
    );
    assert_eq!(
        times.queue_wait.count(),
        4,
        "for the turn and for a permit, of each call"
    );
}

#[tokio::test(start_paused = true)]
async fn a_conversation_that_sleeps_is_not_counted_as_awake() {
    let model = Arc::new(ScriptedModel::replies([Reply::text("done")]));
    let clock = ManualClock::at(Timestamp(1_795_300_000_000));
    let host: Host = HostBuilder::new(clock, SeededEntropy::new(7), |host| host)
        .shared_provider(model)
        .build()
        .await
        .unwrap();
    host.tenant("acme")
        .conversation("c-1")
        .send("one")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();
    assert_eq!((of(&host, "acme").await.awake, host.awake()), (1, 1));

    host.hibernate_idle();
    while host.awake() > 0 {
        tokio::task::yield_now().await;
        host.hibernate_idle();
    }

    assert_eq!(of(&host, "acme").await.awake, 0);
}

#[tokio::test(start_paused = true)]
async fn who_reads_figures_does_not_keep_the_host_alive() {
    let host: Host = super::host(&Arc::new(ScriptedModel::replies([]))).await;
    let reader = host.figures_reader();

    assert!(reader.read().await.is_some());
    drop(host);

    assert!(reader.read().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_a_permit_of_the_gateway_is_a_queue_wait() {
    let model = Arc::new(ScriptedModel::always(
        Reply::text("done").after(Duration::from_secs(20)),
    ));
    let limits = Limits {
        model_calls_max: 1,
        ..Limits::default()
    };
    let host = super::builder(&model).limits(limits).build().await.unwrap();

    let (one, two) = tokio::join!(
        host.tenant("acme").conversation("c-1").send("one"),
        host.tenant("acme").conversation("c-2").send("two")
    );
    let mut one = one.unwrap();
    let mut two = two.unwrap();
    let (one, two) = tokio::join!(one.outcome(), two.outcome());

    assert!(one.is_ok() && two.is_ok());
    let waited = host.figures().await.latencies.queue_wait;
    assert!(
        (19_000_000..=21_000_000).contains(&waited.sum_us),
        "one of them waited for the other: {waited:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn conversations_are_counted_by_the_state_of_their_place() {
    let model = Arc::new(ScriptedModel::always(Reply::text("done")));
    let store = super::store();
    let broken = Scope::new("acme".try_into().unwrap(), "broken".try_into().unwrap());
    let entry = StoredEntry {
        seq: Seq(1),
        bytes: "no entry".into(),
    };
    store
        .append_and_wait(&broken, Head::default(), Epoch(1), vec![entry], Open::None)
        .await
        .unwrap();
    let host = super::builder(&model)
        .shared_sessions(store)
        .build()
        .await
        .unwrap();

    host.tenant("acme")
        .conversation("well")
        .send("one")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();
    let refused = host.tenant("acme").conversation("broken").send("one").await;

    assert!(refused.is_err());
    let slots = host.figures().await.slots;
    assert_eq!(
        slots,
        SlotCounts {
            live: 1,
            failed: 1,
            ..SlotCounts::default()
        }
    );
    assert_eq!(
        slots
            .by_state()
            .iter()
            .map(|(_, count)| count)
            .sum::<usize>(),
        host.awake()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn who_saw_a_round_end_finds_it_in_the_figures() {
    let host = super::host(&Arc::new(ScriptedModel::always(Reply::text("done")))).await;

    for round in 1..=500 {
        let mut sent = super::conversation(&host).send("go").await.unwrap();
        sent.outcome().await.unwrap();

        let figures = host.figures().await;
        assert_eq!(figures.total.rounds, round);
        assert_eq!(figures.latencies.round.count(), round);
    }
}
