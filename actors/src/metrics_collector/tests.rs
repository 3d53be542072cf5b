//! The collector as its senders and its readers meet it.

use std::time::Duration;

use super::*;

/// A supervisor that replaces nothing.
struct Top;

impl Actor for Top {
    type Msg = ();
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<()>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<()>,
        _: ractor::SupervisionEvent,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        Ok(())
    }
}

fn tenant(name: &str) -> TenantId {
    TenantId::new(name).unwrap()
}

/// A collector with a running actor, the actor, and its supervisor.
async fn started() -> (MetricsCollectorRef, ActorCell, ActorCell) {
    let (top, _) = Actor::spawn(None, Top, ()).await.unwrap();
    let collector = MetricsCollectorRef::default();
    let actor = collector.start(top.get_cell()).await.unwrap();
    (collector, actor, top.get_cell())
}

#[tokio::test]
async fn a_reader_finds_all_that_was_sent_before() {
    let (collector, ..) = started().await;
    let senders = (0..8).map(|number| {
        let mut tally = Tally::new(collector.clone(), tenant(&format!("t{}", number % 2)));
        tokio::spawn(async move {
            for _ in 0..1000 {
                tally.woke_up();
                tally.add(Figure::PromptAccepted);
            }
        })
    });
    for sender in senders {
        sender.await.unwrap();
    }

    let totals = collector.read().await;

    assert_eq!((totals.host.prompts, totals.host.wake_ups), (8000, 8000));
    let of = |name| totals.tenants[&tenant(name)].prompts;
    assert_eq!((of("t0"), of("t1")), (4000, 4000));
}

#[tokio::test]
async fn a_tally_waits_for_its_owner_unless_it_grows() {
    let (collector, ..) = started().await;
    let mut tally = Tally::new(collector.clone(), tenant("acme"));

    tally.woke_up();
    tally.post();
    tally.add(Figure::PromptAccepted);
    assert_eq!(collector.read().await, Totals::default(), "nothing is sent");

    tally.post();
    let sent = collector.read().await.host;
    assert_eq!((sent.prompts, sent.wake_ups), (1, 1));

    (0..100_000).for_each(|_| tally.add(Figure::Compacted));
    assert!(collector.read().await.host.compactions > 99_000, "in parts");
}

#[tokio::test]
async fn what_a_panicking_owner_counted_is_sent() {
    let (collector, ..) = started().await;
    let mut tally = Tally::new(collector.clone(), tenant("acme"));
    let owner = tokio::spawn(async move {
        tally.add(Figure::PromptAccepted);
        tally.woke_up();
        panic!("on purpose");
    });
    assert!(owner.await.is_err());

    let sent = collector.read().await.host;

    assert_eq!((sent.prompts, sent.wake_ups), (1, 1));
}

/// One thread, so that the collector reads nothing while this test sends.
#[tokio::test(flavor = "current_thread")]
async fn a_collector_that_does_not_read_holds_few_messages_and_no_figure_is_lost() {
    let (collector, ..) = started().await;
    let all = UNREAD_MAX as u64 + 1000;

    (0..all).for_each(|_| collector.count(Some(&tenant("acme")), Figure::PromptAccepted));

    assert_eq!(collector.0.unread.load(Ordering::Relaxed), UNREAD_MAX);
    let totals = collector.read().await;
    assert_eq!(totals.host.prompts, all);
    assert_eq!(totals.tenants[&tenant("acme")].prompts, all);
    assert_eq!(collector.0.unread.load(Ordering::Relaxed), 0);
}

/// One thread, so that messages are unread when the collector dies.
#[tokio::test(flavor = "current_thread")]
async fn no_figure_is_lost_with_a_collector() {
    let (collector, actor, top) = started().await;
    collector.count(None, Figure::PromptAccepted);
    assert_eq!(collector.read().await.host.prompts, 1);
    collector.count(None, Figure::PromptAccepted);
    collector.count(None, Figure::PromptAccepted);

    actor.kill();
    while collector.0.beside.lock().host.prompts < 3 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    collector.count(None, Figure::PromptAccepted);
    assert_eq!(
        collector.read().await.host.prompts,
        4,
        "without a collector"
    );

    collector.start(top).await.unwrap();
    collector.count(None, Figure::PromptAccepted);
    assert_eq!(collector.read().await.host.prompts, 5, "by its replacement");
}

#[tokio::test]
async fn the_sums_of_a_forgotten_tenant_start_at_zero() {
    let (collector, ..) = started().await;
    collector.count(Some(&tenant("acme")), Figure::PromptAccepted);

    collector.forget(&tenant("acme"));
    collector.count(Some(&tenant("acme")), Figure::PromptAccepted);

    let totals = collector.read().await;
    assert_eq!(totals.tenants[&tenant("acme")].prompts, 1);
    assert_eq!(totals.host.prompts, 2);
}
