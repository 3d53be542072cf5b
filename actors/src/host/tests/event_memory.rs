//! The memory of events: a host without traffic frees what its rounds left.

use super::*;
use crate::testing::TestSize;
use crate::{
    ids::{Epoch, EventId, RoundId, Scope, Seq, TenantId},
    limits::Limits,
    ports::StreamKey,
    stream::{EventKind, StreamEvent},
    testing::{Reply, ScriptedModel},
};

/// Rounds, and deltas of each. In the long form those of a busy hour.
const ROUNDS: u32 = 500;
const DELTAS: u32 = 1000;

#[tokio::test(start_paused = true)]
async fn a_host_without_traffic_frees_the_events_of_its_rounds() {
    let rounds = TestSize::pick(ROUNDS, ROUNDS, ROUNDS * 10);
    let tenant = TenantId::new("acme").unwrap();
    let limits = Limits {
        ring_age: Duration::from_secs(600),
        events_bytes_max: usize::MAX,
        ..Limits::default()
    };
    let model = Arc::new(ScriptedModel::always(Reply::text("ok")));
    let host = builder(&model).limits(limits).build().await.unwrap();
    let store = &host.ports().events;
    for round in 0..rounds {
        let conversation = crate::ids::ConversationId::new(format!("c-{}", round % 100)).unwrap();
        let scope = Scope::new(tenant.clone(), conversation.clone());
        let key = StreamKey {
            scope,
            round: RoundId::from_random(u128::from(round).to_be_bytes()),
        };
        let event = |n: u32| {
            Arc::new(StreamEvent {
                id: EventId {
                    epoch: Epoch(1),
                    seq: Seq(u64::from(round) + 1),
                    n,
                },
                conversation_id: conversation.clone(),
                round_id: Some(key.round),
                kind: EventKind::TextDelta {
                    text: "token ".into(),
                },
            })
        };
        store
            .append(&key, (1..=DELTAS).map(event).collect())
            .await
            .unwrap();
        store.mark_complete(&key).await.unwrap();
    }
    let held = store.bytes(&tenant);
    assert!(held > (rounds * DELTAS) as usize * size_of::<StreamEvent>());

    tokio::time::sleep(Duration::from_secs(11 * 60)).await;

    assert_eq!(store.bytes(&tenant), 0);
}
