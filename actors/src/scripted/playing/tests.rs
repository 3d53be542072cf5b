use std::sync::Arc;

use futures_util::StreamExt;

use super::*;
use crate::chat::{Message, MessageList, RawJson, ToolChoice};

type Batches = Vec<Result<Vec<ModelEvent>, ProviderError>>;

fn request() -> ModelRequest {
    ModelRequest {
        model: "scripted".into(),
        system: None,
        messages: MessageList::from_iter([Message::user("hi")]),
        tools: Arc::new([]),
        tool_choice: ToolChoice::Auto,
        max_tokens: 100,
        stop: Arc::new([]),
        effort: None,
        thinking: None,
        temperature: None,
        output_schema: None,
        cache: false,
    }
}

async fn played(reply: Reply) -> Batches {
    reply
        .play(&request(), CancellationToken::new())
        .await
        .unwrap()
        .collect()
        .await
}

fn completed(stop: ProviderStop, input: u64, output: u64) -> ModelEvent {
    let usage = Some(Usage {
        input_uncached: input,
        output,
        ..Usage::default()
    });
    ModelEvent::Completed(Completion {
        stop,
        raw_stop: None,
        usage,
        raw_usage: None,
    })
}

fn text(piece: &str) -> ModelEvent {
    ModelEvent::Text(piece.into())
}

fn block(text: &str) -> ModelEvent {
    ModelEvent::Block(ContentBlock::text(text))
}

fn broken() -> ProviderError {
    ProviderError::Connection {
        message: "reset".into(),
    }
}

#[tokio::test]
async fn a_text_comes_in_one_batch_with_its_end() {
    let input = estimate_tokens(&request());

    assert_eq!(
        played(Reply::text("twelve bytes")).await,
        [Ok(vec![
            text("twelve bytes"),
            block("twelve bytes"),
            completed(ProviderStop::EndTurn, input, 3),
        ])]
    );
}

#[tokio::test]
async fn pieces_join_to_the_text_whatever_the_cut() {
    let whole = "Größe: 汉字 and some words";
    for reply in [
        Reply::text(whole).chunks(5),
        Reply::text(whole).chunks(1000),
        Reply::text(whole).chunk_bytes(1),
        Reply::text(whole).chunk_words(3),
        Reply::text(whole).chunk_words(1000),
    ] {
        let batches = played(reply).await;

        let pieces: String = batches
            .iter()
            .flatten()
            .flatten()
            .filter_map(|event| {
                if let ModelEvent::Text(piece) = event {
                    Some(piece.as_str())
                } else {
                    None
                }
            })
            .collect();
        assert_eq!(pieces, whole);
        let pieces = |batch: &Vec<ModelEvent>| {
            batch
                .iter()
                .filter(|event| matches!(event, ModelEvent::Text(_)))
                .count()
        };
        assert!(
            batches
                .iter()
                .flatten()
                .all(|batch| pieces(batch) <= BURST_DELTAS)
        );
    }
}

#[tokio::test]
async fn calls_stop_for_tools_and_have_ids_of_their_place() {
    let reply = Reply::thinking("hm")
        .and_tool("a", &serde_json::json!({}))
        .and_tool("b", &serde_json::json!({"x": 1}))
        .without_usage();

    let events: Vec<ModelEvent> = played(reply)
        .await
        .into_iter()
        .flatten()
        .flatten()
        .collect();

    let call = |id: &str, name: &str, input: &str| {
        let input = RawJson::from_text(input).unwrap();
        ModelEvent::Block(ContentBlock::ToolUse(ToolUseBlock {
            id: id.into(),
            name: name.into(),
            input,
        }))
    };
    assert_eq!(
        events,
        [
            ModelEvent::Thinking("hm".into()),
            ModelEvent::Block(ContentBlock::Thinking(ThinkingBlock {
                thinking: "hm".into(),
                signature: None
            })),
            call("call_1_0", "a", "{}"),
            call("call_1_1", "b", r#"{"x":1}"#),
            ModelEvent::Completed(Completion {
                stop: ProviderStop::ToolUse,
                raw_stop: None,
                usage: None,
                raw_usage: None
            }),
        ]
    );
}

#[tokio::test]
async fn faults_come_where_the_script_says() {
    let nothing = CancellationToken::new;

    assert_eq!(
        Reply::error(broken())
            .play(&request(), nothing())
            .await
            .err(),
        Some(broken())
    );
    assert_eq!(
        played(Reply::text("abcd").chunks(4).fail_after(2, broken())).await,
        [Ok(vec![text("ab")]), Err(broken())]
    );
    assert_eq!(
        played(Reply::text("ab").then_fail(broken())).await,
        [Ok(vec![text("ab"), block("ab")]), Err(broken())]
    );
    assert_eq!(
        played(Reply::text("ab").then_cut()).await,
        [Ok(vec![text("ab"), block("ab")])]
    );
}

#[tokio::test]
#[should_panic(expected = "as its script says")]
async fn a_panic_comes_where_the_script_says() {
    played(Reply::panic()).await;
}

#[tokio::test(start_paused = true)]
async fn latency_and_delays_pass_in_virtual_time() {
    let start = tokio::time::Instant::now();

    played(
        Reply::text("abcd")
            .chunks(4)
            .after(Duration::from_secs(10))
            .chunk_delay(Duration::from_secs(1)),
    )
    .await;

    assert_eq!(start.elapsed().as_secs(), 13);
}

#[tokio::test(start_paused = true)]
async fn a_cancel_ends_a_latency_a_stall_and_an_endless_reply() {
    for reply in [
        Reply::text("x").after(Duration::from_secs(3600)),
        Reply::stall(),
        Reply::endless("x"),
        Reply::text("x").then_stall(),
    ] {
        let cancel = CancellationToken::new();
        let later = cancel.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            later.cancel();
        });

        let last = match reply.play(&request(), cancel).await {
            Ok(stream) => {
                // An endless reply without delays must leave time for the cancelling task and for
                // the clock.
                let paced = stream.then(|item| async {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    item
                });
                paced.collect::<Batches>().await.pop().and_then(Result::err)
            }
            Err(error) => Some(error),
        };

        assert_eq!(last, Some(ProviderError::Cancelled));
    }
}

#[tokio::test]
async fn an_endless_reply_lets_others_run() {
    let mut stream = Reply::endless("x")
        .play(&request(), CancellationToken::new())
        .await
        .unwrap();
    let reader = tokio::spawn(async move { while stream.next().await.is_some() {} });

    tokio::task::yield_now().await;

    reader.abort();
    assert!(reader.await.unwrap_err().is_cancelled());
}
