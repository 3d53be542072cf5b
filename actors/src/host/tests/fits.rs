//! Requests that fit: a conversation whose attachments have more bytes than its provider accepts
//! goes on, its oldest attachments stay in the journal, and `recall` shows them again.

use parking_lot::Mutex;

use super::*;
use crate::{
    chat::{Attachment, Message, ModelRequest, attachment::Attached},
    compactor::CompactionSettings,
    host::{OutcomeError, Prompt},
    ports::{Capabilities, ProviderError},
    stream::{RoundEnd, StopReason},
    testing::{Reply, ScriptedModel, media::padded_png},
};

/// Bytes of one image in base64, about.
const IMAGE: usize = 40_000;

fn image() -> Attachment {
    Attachment::sniffed(&padded_png(640, 480, IMAGE / 4 * 3)).unwrap()
}

fn capabilities(request_bytes_max: Option<u64>) -> Capabilities {
    Capabilities {
        context_window: 200_000,
        output_max: 1000,
        tools: true,
        output_schema: false,
        counts_tokens: false,
        images: true,
        documents: true,
        request_bytes_max,
        thinking: false,
    }
}

/// A model whose server refuses messages of more than `accepted` bytes.
fn strict(request_bytes_max: Option<u64>, accepted: usize) -> Arc<ScriptedModel> {
    let model = ScriptedModel::answering(move |request, _| {
        if request.messages.wire_bytes() > accepted {
            return Reply::error(ProviderError::InvalidRequest {
                status: 413,
                message: "request_too_large".into(),
            });
        }
        Reply::text("seen")
    });
    Arc::new(model.capabilities(capabilities(request_bytes_max)))
}

async fn look(conversation: &ConversationHandle, prompt: Prompt) -> RoundEnd {
    let mut reply = conversation.send(prompt).await.unwrap();
    match reply.outcome().await {
        Ok(end) => end,
        Err(OutcomeError::Failed { end, .. }) => *end,
        Err(error) => panic!("{error}"),
    }
}

fn images_in(request: &ModelRequest) -> usize {
    let messages = request.messages.iter();
    messages.flat_map(Message::attached).count()
}

/// How often a request did not start with the one before it.
fn breaks(requests: &[ModelRequest]) -> usize {
    let pairs = requests.iter().zip(requests.iter().skip(1));
    pairs
        .filter(|(before, after)| !after.messages.starts_with(&before.messages))
        .count()
}

#[tokio::test(start_paused = true)]
async fn fifty_images_go_on_answering_and_the_prefix_changes_in_steps() {
    let bound = 10 * IMAGE;
    let model = strict(Some(bound as u64), bound);
    let host = host(&model).await;
    let conversation = conversation(&host);

    for number in 0..50 {
        let prompt = Prompt::text(format!("image {number}")).attach(image());
        let outcome = look(&conversation, prompt).await;
        assert_eq!(
            (outcome.stop_reason, &*outcome.text),
            (StopReason::EndTurn, "seen")
        );
    }

    let requests = model.requests();
    assert_eq!(requests.len(), 50, "no call was refused");
    let last = requests.last().unwrap();
    assert!((6..10).contains(&images_in(last)), "{}", images_in(last));
    assert_eq!(last.messages.last().unwrap().attached().len(), 1);
    assert!(breaks(&requests) <= 18, "{} breaks", breaks(&requests));
    let counted = host.figures().await.total;
    assert_eq!(counted.prefix_breaks_unknown, 0);
    assert_eq!(counted.prefix_breaks_compaction, breaks(&requests) as u64);
}

#[tokio::test(start_paused = true)]
async fn a_restart_and_a_fork_give_the_same_request() {
    let bound = 10 * IMAGE;
    let model = strict(Some(bound as u64), bound);
    let store = store();
    let first = builder(&model)
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    for number in 0..14 {
        let prompt = Prompt::text(format!("image {number}")).attach(image());
        look(&conversation(&first), prompt).await;
    }
    let before = conversation(&first).messages().await.unwrap();
    stop(&first, Duration::from_secs(1)).await;
    let second = builder(&model)
        .shared_sessions(store)
        .build()
        .await
        .unwrap();

    let after = conversation(&second).messages().await.unwrap();
    let fork = conversation(&second).fork("c-2", None).await.unwrap();
    let copied = fork.messages().await.unwrap();
    look(&conversation(&second), Prompt::text("go on")).await;

    assert_eq!(before, after);
    assert_eq!(before, copied);
    let requests = model.requests();
    assert_eq!(
        breaks(&requests[requests.len() - 2..]),
        0,
        "the prefix is the same"
    );
}

#[tokio::test(start_paused = true)]
async fn after_a_413_the_call_is_made_once_more_with_half_of_the_attachments() {
    // The provider accepts less than it is known to.
    let model = strict(None, 5 * IMAGE);
    let host = host(&model).await;
    let conversation = conversation(&host);

    for number in 0..12 {
        let prompt = Prompt::text(format!("image {number}")).attach(image());
        assert_eq!(look(&conversation, prompt).await.text, "seen");
    }

    let requests = model.requests();
    let refused: Vec<usize> = requests
        .iter()
        .filter(|request| request.messages.wire_bytes() > 5 * IMAGE)
        .map(images_in)
        .collect();
    assert_eq!(refused, [5], "the refused size is remembered");
    assert_eq!(requests.len(), 12 + 1);
    assert_eq!(images_in(&requests[5]), 2, "at most half");
}

#[tokio::test(start_paused = true)]
async fn a_second_413_ends_the_round_with_an_error_and_the_next_prompt_works() {
    let model = strict(None, IMAGE + IMAGE / 2);
    let host = host(&model).await;
    let conversation = conversation(&host);
    let many = |text: &str| (0..8).fold(Prompt::text(text), |prompt, _| prompt.attach(image()));

    let failed = look(&conversation, many("eight")).await;
    let error = failed.error.clone().unwrap();
    let calls = model.requests().len();
    let next = look(&conversation, Prompt::text("and now?")).await;

    assert_eq!(failed.stop_reason, StopReason::Error);
    assert_eq!(error.code, "provider_invalid_request");
    assert!(
        error.message.contains("request_bytes_max"),
        "{}",
        error.message
    );
    assert_eq!(calls, 2);
    assert_eq!((&*next.text, next.error.clone()), ("seen", None));
}

#[tokio::test(start_paused = true)]
async fn text_with_too_many_bytes_is_compacted_and_a_single_prompt_is_refused_by_name() {
    let bound = 60_000;
    let model = strict(Some(bound as u64), bound);
    let settings = CompactionSettings {
        enable_llm_summarization: false,
        ..CompactionSettings::default()
    };
    let host = builder(&model).compaction(settings).build().await.unwrap();
    let conversation = conversation(&host);

    for number in 0..40 {
        let outcome = look(
            &conversation,
            Prompt::text(format!("{number} {}", "word ".repeat(800))),
        )
        .await;
        assert_eq!(outcome.text, "seen", "prompt {number}");
    }
    let compactions = host.figures().await.total.compactions;
    let outcome = look(&conversation, Prompt::text("word ".repeat(20_000))).await;

    assert!((2..20).contains(&compactions), "{compactions}");
    assert_eq!(outcome.stop_reason, StopReason::ContextTooLarge);
    let error = outcome.error.clone().unwrap();
    assert_eq!(error.code, "context_too_large");
    assert!(error.message.contains("bytes"), "{}", error.message);
}

#[tokio::test(start_paused = true)]
async fn an_attachment_that_was_left_out_is_recalled_by_the_pointer_in_its_note() {
    let bound = 6 * IMAGE;
    let shown: Arc<Mutex<Vec<Attached>>> = Arc::default();
    let seen = shown.clone();
    let model = ScriptedModel::answering(move |request, _| {
        let messages = &request.messages;
        let last = messages.last().unwrap();
        if !last.tool_result_ids().is_empty() {
            seen.lock().extend(last.attached());
            return Reply::text(last.blocks()[0].kind());
        }
        if !last.text().contains("RECALL") {
            return Reply::text("seen");
        }
        let first = messages.get(0).unwrap().text();
        let span = first.split("span ").nth(1).unwrap().split(' ').next();
        Reply::tool("recall", &serde_json::json!({ "span": span }))
    });
    let model = Arc::new(model.capabilities(capabilities(Some(bound as u64))));
    let (tool, _) = probe("look", EffectClass::Pure, |_| async {
        Ok(ToolOutput::Text("nothing".into()))
    });
    let host = builder(&model).tools([tool]).build().await.unwrap();
    let conversation = conversation(&host);
    for number in 0..9 {
        look(
            &conversation,
            Prompt::text(format!("image {number}")).attach(image()),
        )
        .await;
    }

    let outcome = look(&conversation, Prompt::text("RECALL")).await;
    let next = look(&conversation, Prompt::text("go on")).await;

    assert_eq!(
        outcome.text, "tool_result",
        "the image stands behind the results"
    );
    let original = Message::new(crate::chat::Role::User, &[image().block()]).unwrap();
    assert_eq!(
        shown
            .lock()
            .iter()
            .map(|attached| attached.bytes)
            .collect::<Vec<_>>(),
        [original.attached()[0].bytes]
    );
    assert_eq!(next.text, "seen");
    for request in model.requests() {
        assert_eq!(request.messages.first_fault(), None);
        assert!(request.messages.wire_bytes() <= bound);
    }
}

#[tokio::test(start_paused = true)]
async fn images_fill_the_window_as_their_tokens_and_not_as_their_bytes() {
    let model = strict(None, usize::MAX);
    let host = host(&model).await;
    let conversation = conversation(&host);
    let big = || Attachment::sniffed(&padded_png(640, 480, 1_000_000)).unwrap();

    for number in 0..6 {
        look(
            &conversation,
            Prompt::text(format!("image {number}")).attach(big()),
        )
        .await;
    }

    let state = conversation.state().await.unwrap();
    let tokens = state.context.window.estimate(0);
    assert!(tokens < 6 * 1600 + 1000, "{tokens} tokens");
}
