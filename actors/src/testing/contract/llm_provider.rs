//! The contract suite of model providers, independent of the wire format.

use std::{sync::Arc, time::Duration};

use futures_util::StreamExt;
use tokio_util::sync::CancellationToken;

use crate::{
    chat::{
        ContentBlock, Message, MessageList, ModelRequest, ProviderStop, Role, ToolChoice,
        ToolResultBlock, ToolUseBlock,
    },
    ports::{BoxFuture, LlmProvider, ModelEvent, ModelStream, ProviderError},
};

/// The behavior of the server in one test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scene {
    /// Answers with the text [`TEXT`], a regular end and usage.
    Text,
    /// Answers with one call of the tool `f` with the arguments `{"a":1}`.
    ToolCall,
    /// Sends the text [`TEXT`], then closes the connection.
    Cut,
    /// Refuses the credentials.
    Refuses,
    /// Sends the text [`TEXT`], then nothing more, and keeps the connection open.
    Stalls,
}

/// The text that servers send.
pub const TEXT: &str = "A text, \"quoted\" \u{6f22}\u{5b57}.";

/// A provider under test and its server.
pub struct Stage {
    /// The provider under test.
    pub provider: Arc<dyn LlmProvider>,
    /// Completes when the server saw the client disconnect before the end of the reply.
    pub client_left: BoxFuture<'static, ()>,
}

/// Longest wait for anything in this suite.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs the contract. `stage` sets up a new provider, connected to a server that behaves as the
/// scene says.
///
/// # Panics
/// When the provider breaks the contract.
pub async fn llm_provider<F>(stage: F)
where
    F: AsyncFn(Scene) -> Stage,
{
    for scene in [Scene::Text, Scene::ToolCall] {
        a_stream_ends_in_exactly_one_completion_with_usage(scene, stage(scene).await).await;
    }
    a_tool_call_comes_whole(stage(Scene::ToolCall).await).await;
    a_broken_stream_ends_in_exactly_one_error_after_its_text(stage(Scene::Cut).await).await;
    a_refusal_comes_before_any_event(stage(Scene::Refuses).await).await;
    dropping_the_stream_closes_the_connection(stage(Scene::Stalls).await).await;
    cancelling_the_token_closes_the_connection(stage(Scene::Stalls).await).await;
    a_cancelled_call_does_not_start(stage(Scene::Text).await).await;
    the_same_request_has_the_same_body(stage(Scene::Text).await);
}

/// A request with every kind of message.
pub fn example_request() -> ModelRequest {
    let call = ToolUseBlock {
        id: "t1".into(),
        name: "f".into(),
        input: crate::chat::RawJson::empty_object(),
    };
    let result = ToolResultBlock {
        tool_use_id: "t1".into(),
        content: Default::default(),
        is_error: false,
    };
    ModelRequest {
        model: "contract".into(),
        system: Some("Be brief.".into()),
        messages: MessageList::from_iter([
            Message::user("Hello"),
            Message::new(
                Role::Assistant,
                &[ContentBlock::text("I look."), ContentBlock::ToolUse(call)],
            )
            .unwrap(),
            Message::tool_results([result], [ContentBlock::text("Go on.")]),
        ]),
        tools: Arc::new([]),
        tool_choice: ToolChoice::Auto,
        max_tokens: 64,
        stop: Arc::new([]),
        effort: None,
        thinking: None,
        temperature: None,
        output_schema: None,
        cache: true,
    }
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .unwrap_or_else(|_| panic!("{what} took longer than {PATIENCE:?}"))
}

async fn open(stage: &Stage, cancel: CancellationToken) -> Result<ModelStream, ProviderError> {
    within("the head", stage.provider.stream(example_request(), cancel)).await
}

/// Reads the stream to its end. Returns the events, and the error if the stream ended in one.
/// Nothing may follow an error.
async fn read(mut stream: ModelStream) -> (Vec<ModelEvent>, Option<ProviderError>) {
    let mut events = Vec::new();
    while let Some(batch) = within("the next batch", stream.next()).await {
        match batch {
            Ok(batch) => events.extend(batch),
            Err(error) => {
                assert!(
                    within("the end", stream.next()).await.is_none(),
                    "something follows the error {error}"
                );
                return (events, Some(error));
            }
        }
    }
    (events, None)
}

fn text_of(events: &[ModelEvent]) -> String {
    events
        .iter()
        .filter_map(|event| {
            if let ModelEvent::Text(text) = event {
                Some(text.as_str())
            } else {
                None
            }
        })
        .collect()
}

async fn a_stream_ends_in_exactly_one_completion_with_usage(scene: Scene, stage: Stage) {
    let (events, error) = read(open(&stage, CancellationToken::new()).await.unwrap()).await;

    assert_eq!(error, None);
    let completions = events
        .iter()
        .filter(|event| matches!(event, ModelEvent::Completed(_)))
        .count();
    assert_eq!(completions, 1, "{events:?}");
    let Some(ModelEvent::Completed(completion)) = events.last() else {
        panic!("something follows the completion: {events:?}")
    };
    let usage = completion.usage.expect("usage is reported");
    assert!(usage.input() > 0 && usage.output > 0, "{usage:?}");
    if scene == Scene::Text {
        assert_eq!(completion.stop, ProviderStop::EndTurn);
        assert_eq!(text_of(&events), TEXT);
        assert!(
            events.contains(&ModelEvent::Block(ContentBlock::text(TEXT))),
            "the block follows its pieces: {events:?}"
        );
    }
}

async fn a_tool_call_comes_whole(stage: Stage) {
    let (events, _) = read(open(&stage, CancellationToken::new()).await.unwrap()).await;

    let calls = events.iter().filter_map(|event| {
        if let ModelEvent::Block(ContentBlock::ToolUse(call)) = event {
            Some(call)
        } else {
            None
        }
    });
    let calls: Vec<_> = calls.collect();
    assert_eq!(calls.len(), 1, "{events:?}");
    assert_eq!(
        (calls[0].name.as_str(), calls[0].input.as_str()),
        ("f", "{\"a\":1}")
    );
    assert!(
        !calls[0].id.is_empty() && calls[0].id != "t1",
        "an id that is new to the conversation"
    );
    let Some(ModelEvent::Completed(completion)) = events.last() else {
        panic!("{events:?}")
    };
    assert_eq!(completion.stop, ProviderStop::ToolUse);
}

async fn a_broken_stream_ends_in_exactly_one_error_after_its_text(stage: Stage) {
    let (events, error) = read(open(&stage, CancellationToken::new()).await.unwrap()).await;

    assert_eq!(text_of(&events), TEXT);
    assert!(
        matches!(
            error,
            Some(ProviderError::Connection { .. } | ProviderError::Incomplete { .. })
        ),
        "{error:?}"
    );
    assert!(
        !events
            .iter()
            .any(|event| matches!(event, ModelEvent::Completed(_))),
        "{events:?}"
    );
}

async fn a_refusal_comes_before_any_event(stage: Stage) {
    let refused = open(&stage, CancellationToken::new()).await;

    assert!(
        matches!(refused, Err(ProviderError::Auth { .. })),
        "{:?}",
        refused.err()
    );
}

async fn first_text(stream: &mut ModelStream) {
    let mut text = String::new();
    while text != TEXT {
        text.push_str(&text_of(
            &within("the text", stream.next())
                .await
                .expect("the stream goes on")
                .unwrap(),
        ));
    }
}

async fn dropping_the_stream_closes_the_connection(stage: Stage) {
    let mut stream = open(&stage, CancellationToken::new()).await.unwrap();
    first_text(&mut stream).await;

    drop(stream);

    within("the hang-up", stage.client_left).await;
}

async fn cancelling_the_token_closes_the_connection(stage: Stage) {
    let cancel = CancellationToken::new();
    let mut stream = open(&stage, cancel.clone()).await.unwrap();
    first_text(&mut stream).await;

    cancel.cancel();
    let (events, error) = read(stream).await;

    assert_eq!(
        (events, error),
        (Vec::new(), Some(ProviderError::Cancelled))
    );
    within("the hang-up", stage.client_left).await;
}

async fn a_cancelled_call_does_not_start(stage: Stage) {
    let cancel = CancellationToken::new();
    cancel.cancel();

    assert_eq!(
        open(&stage, cancel).await.err(),
        Some(ProviderError::Cancelled)
    );
}

fn the_same_request_has_the_same_body(stage: Stage) {
    match (
        stage.provider.request_body(&example_request()),
        stage.provider.request_body(&example_request()),
    ) {
        (Ok(first), Ok(second)) => assert_eq!(first, second),
        (first, second) => assert_eq!(first, second),
    }
}
