//! The outbox of a store that has one.

use std::time::Duration;

use super::*;
use crate::ports::{Outbox, OutboxMessage};

const NOW: Timestamp = Timestamp(1_000_000);

fn message(scope: &Scope, id: &str) -> OutboxMessage {
    OutboxMessage {
        id: id.to_owned(),
        scope: scope.clone(),
        at: NOW,
        body: Bytes::from(format!("{{\"id\":\"{id}\"}}")),
        tries: 0,
    }
}

/// Appends an entry with messages. `expected` is the head of the journal.
async fn write_with(
    store: &dyn SessionBackend,
    scope: &Scope,
    expected: Head,
    messages: Vec<OutboxMessage>,
) -> Result<(), AppendError> {
    let (reply, mut answers) = mpsc::unbounded_channel();
    store.append(Append {
        scope: scope.clone(),
        expected,
        epoch: Epoch(1),
        entries: entries(expected.seq.0 + 1, expected.seq.0 + 1),
        open: Open::None,
        wake_at: None,
        messages,
        durability: Durability::Awaited,
        done: Box::new(move |result| drop(reply.send(result))),
    });
    timeout(SOON, answers.recv())
        .await
        .expect("an append is answered")
        .expect("an append is answered")
}

async fn claim(outbox: &dyn Outbox, scope: &Scope, now: Timestamp, count: usize) -> Vec<String> {
    let lease = Duration::from_secs(60);
    let claimed = outbox
        .claim(&scope.tenant, now, lease, count)
        .await
        .unwrap();
    claimed
        .into_iter()
        .map(|message| format!("{} {}", message.id, message.tries))
        .collect()
}

pub(super) async fn messages_wait_until_they_are_settled(store: &dyn SessionBackend) {
    let Some(outbox) = store.outbox() else { return };
    let mine = scope("outbox-a", "c-1");
    let other = scope("outbox-b", "c-1");
    let later = Head {
        epoch: Epoch(1),
        seq: Seq(1),
    };
    assert_eq!(outbox.tenants(NOW).await, Ok(vec![]));
    let two = vec![message(&mine, "one"), message(&mine, "two")];
    write_with(store, &mine, Head::default(), two)
        .await
        .unwrap();
    write_with(
        store,
        &other,
        Head::default(),
        vec![message(&other, "else")],
    )
    .await
    .unwrap();
    // What is not stored leaves no message.
    let refused = write_with(store, &mine, Head::default(), vec![message(&mine, "no")]).await;
    assert!(matches!(refused, Err(AppendError::Conflict { .. })));

    let all = |is_due| vec![(mine.tenant.clone(), is_due), (other.tenant.clone(), true)];
    assert_eq!(outbox.tenants(NOW).await, Ok(all(true)));
    assert_eq!(claim(outbox, &mine, NOW, 1).await, ["one 1"]);
    assert_eq!(claim(outbox, &mine, NOW, 9).await, ["two 1"]);
    assert_eq!(
        claim(outbox, &mine, NOW, 9).await,
        [""; 0],
        "they are claimed"
    );
    assert_eq!(outbox.tenants(NOW).await, Ok(all(false)));

    // One is delivered, the other is to be tried again at once.
    let settled = message(&mine, "one");
    outbox.settle(&settled, NOW, None).await.unwrap();
    let again = message(&mine, "two");
    outbox
        .settle(&again, NOW, Some(Duration::ZERO))
        .await
        .unwrap();
    let claimed = outbox
        .claim(&mine.tenant, NOW, Duration::ZERO, 9)
        .await
        .unwrap();
    let tries = 2;
    assert_eq!(
        claimed,
        [OutboxMessage {
            tries,
            ..again.clone()
        }]
    );
    // Nothing settles this claim, as after a crash.
    assert_eq!(claim(outbox, &mine, NOW, 9).await, ["two 3"]);
    outbox.settle(&again, NOW, None).await.unwrap();
    assert_eq!(
        outbox.tenants(NOW).await,
        Ok(vec![(other.tenant.clone(), true)])
    );

    // The oldest go beyond a bound, and all that are too old.
    let many = ["a", "b", "c"].map(|id| message(&mine, id)).to_vec();
    write_with(store, &mine, later, many).await.unwrap();
    assert_eq!(outbox.trim(&mine.tenant, NOW, 2).await, Ok((1, 2)));
    assert_eq!(claim(outbox, &mine, NOW, 9).await, ["b 1", "c 1"]);
    let after = Timestamp(NOW.0 + 1);
    assert_eq!(outbox.trim(&mine.tenant, after, 2).await, Ok((2, 0)));
    assert_eq!(outbox.trim(&other.tenant, NOW, 2).await, Ok((0, 1)));
}

pub(super) async fn messages_go_with_their_conversation(store: &dyn SessionBackend) {
    let Some(outbox) = store.outbox() else { return };
    let (gone, left) = (scope("outbox-a", "c-1"), scope("outbox-a", "c-2"));
    for (at, id) in [(&gone, "gone"), (&left, "left")] {
        let messages = vec![message(at, id)];
        write_with(store, at, Head::default(), messages)
            .await
            .unwrap();
    }

    store.delete(&gone).await.unwrap();

    assert_eq!(claim(outbox, &left, NOW, 9).await, ["left 1"]);
    store.delete(&left).await.unwrap();
    store.erase(&left.tenant).await.unwrap();
    assert_eq!(outbox.tenants(NOW).await, Ok(vec![]));
}
