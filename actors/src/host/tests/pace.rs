//! How the text of a model reaches watchers: at once, or at the pace of `flush_ms`.

use tokio::time::Instant;

use super::*;
use crate::{
    host::Reply as Round,
    limits::Limits,
    scripted::{Reply, ScriptedModel},
};

/// A model that streams ten pieces, one each 10 ms.
fn model() -> Arc<ScriptedModel> {
    let reply = Reply::text("0123456789")
        .chunks(10)
        .chunk_delay(Duration::from_millis(10));
    Arc::new(ScriptedModel::always(reply))
}

/// The pieces of text that a watcher receives, and when, in milliseconds after the first one.
async fn pieces(mut round: Round) -> Vec<(String, u128)> {
    let mut pieces = Vec::new();
    let mut began = None;
    while let Some(event) = round.next().await {
        if let EventKind::TextDelta { text } = &event.kind {
            let began = began.get_or_insert_with(Instant::now);
            pieces.push((text.clone(), began.elapsed().as_millis()));
        }
    }
    pieces
}

async fn flushed_every(flush: Duration) -> Vec<(String, u128)> {
    let limits = Limits {
        flush,
        ..Limits::default()
    };
    let host = builder(&model()).limits(limits).build().await.unwrap();
    pieces(conversation(&host).send("go").await.unwrap()).await
}

#[tokio::test(start_paused = true)]
async fn a_watcher_that_keeps_up_gets_each_piece_when_it_arrives() {
    let pieces = flushed_every(Duration::ZERO).await;

    let expected: Vec<_> = (0..10).map(|n| (n.to_string(), n * 10)).collect();
    assert_eq!(pieces, expected);
}

#[tokio::test(start_paused = true)]
async fn text_within_flush_ms_becomes_one_event() {
    let pieces = flushed_every(Duration::from_millis(35)).await;

    assert_eq!(pieces[0], ("0".to_owned(), 0), "the first piece at once");
    assert_eq!(
        pieces[1],
        ("123".to_owned(), 35),
        "then what arrived within 35 ms"
    );
    assert!(pieces.len() <= 4, "{pieces:?}");
    let text: String = pieces.iter().map(|(text, _)| text.as_str()).collect();
    assert_eq!(text, "0123456789");
}

#[tokio::test(start_paused = true)]
async fn unread_text_gathers_in_one_event() {
    let host = host(&model()).await;
    let round = conversation(&host).send("go").await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;

    let pieces = pieces(round).await;

    assert_eq!(pieces, [("0123456789".to_owned(), 0)]);
}
