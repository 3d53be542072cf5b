//! The keys of clients are remembered for their 24 hours, however many follow.

use super::*;
use crate::{
    host::Reply as Round,
    testing::{Reply, ScriptedModel},
};

/// More keys than a conversation keeps as they came.
const KEYS: usize = crate::limits::CLIENT_KEYS_WHOLE + 100;

async fn send(host: &Host, key: &str, text: &str) -> Result<Round, crate::host::SendError> {
    let conversation = host.tenant("acme").conversation("c");
    conversation.send(text).client_key(key).await
}

#[tokio::test(start_paused = true)]
async fn a_key_is_known_after_a_thousand_others_and_after_a_restart() {
    let model = Arc::new(ScriptedModel::always(Reply::text("ok")));
    let sessions = Arc::new(MemorySessions::new());
    let host = builder(&model)
        .shared_sessions(sessions.clone())
        .build()
        .await
        .unwrap();
    let mut rounds = Vec::new();
    for n in 0..KEYS {
        let mut round = send(&host, &format!("k{n}"), "hello").await.unwrap();
        rounds.push(round.round_id());
        round.outcome().await.unwrap();
    }
    let check = async |host: &Host| {
        for n in [0, 1, 50, 99, 100, KEYS - 1] {
            let again = send(host, &format!("k{n}"), "hello").await.unwrap();
            assert_eq!(
                (again.round_id(), again.is_replayed()),
                (rounds[n], true),
                "k{n}"
            );
        }
        let other = send(host, "k0", "another text").await.unwrap_err();
        assert_eq!(other.code(), "idempotency_key_reused");
    };

    check(&host).await;
    host.shutdown(Duration::from_secs(9)).await;
    let host = builder(&model)
        .shared_sessions(sessions)
        .build()
        .await
        .unwrap();

    check(&host).await;
    assert_eq!(model.counts().started, KEYS, "no prompt ran twice");
}
