//! Attachments: invalid ones are refused before anything is appended, valid ones are stored with
//! the conversation, and documents are read as text for models that take none.

use parking_lot::Mutex;

use bytes::Bytes;
use serde_json::json;

use super::*;
use crate::{
    chat::{Attachment, ContentBlock, Role, attachment::document_text},
    host::{Prompt, SendError},
    ids::TenantId,
    limits::PROMPT_BYTES_MAX,
    ports::{Capabilities, DocumentText, DocumentTextError, ExtractedText},
    testing::{
        Reply, ScriptedModel,
        media::{pdf, png},
    },
};

/// A text extractor that records its input and returns a fixed answer.
#[derive(Clone)]
struct Reader {
    answer: Result<ExtractedText, DocumentTextError>,
    given: Arc<Mutex<Vec<Bytes>>>,
}

impl Reader {
    fn answering(answer: Result<ExtractedText, DocumentTextError>) -> Self {
        Self {
            answer,
            given: Arc::default(),
        }
    }
}

impl DocumentText for Reader {
    fn extract<'a>(
        &'a self,
        _: &'a TenantId,
        pdf: Bytes,
    ) -> BoxFuture<'a, Result<ExtractedText, DocumentTextError>> {
        self.given.lock().push(pdf);
        Box::pin(std::future::ready(self.answer.clone()))
    }
}

/// A model that takes neither images nor documents.
fn blind() -> Arc<ScriptedModel> {
    let capabilities = Capabilities {
        context_window: 100_000,
        output_max: 1000,
        tools: true,
        output_schema: false,
        counts_tokens: false,
        images: false,
        documents: false,
        request_bytes_max: None,
        thinking: false,
    };
    Arc::new(ScriptedModel::always(Reply::text("ok")).capabilities(capabilities))
}

fn raw(kind: &str, media_type: &str, data: &str) -> ContentBlock {
    let source = json!({"type": "base64", "media_type": media_type, "data": data});
    serde_json::from_value(json!({"type": kind, "source": source})).unwrap()
}

#[tokio::test(start_paused = true)]
async fn attachments_reach_the_model_before_the_text_and_survive_the_host() {
    let model = Arc::new(ScriptedModel::always(Reply::text("ok")));
    let store = store();
    let picture = Attachment::sniffed(&png(3, 2)).unwrap();
    let document = Attachment::sniffed(&pdf(["one"])).unwrap().title("a.pdf");
    let said = [
        picture.block(),
        document.block(),
        ContentBlock::text("What is this?"),
    ];

    let first = builder(&model)
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    let prompt = Prompt::text("What is this?")
        .attach(picture)
        .attach(document);
    conversation(&first)
        .send(prompt)
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();
    first.shutdown(Duration::from_secs(1)).await;
    let second = builder(&model)
        .shared_sessions(store)
        .build()
        .await
        .unwrap();
    let kept = conversation(&second).messages().await.unwrap();

    assert_eq!(model.requests()[0].messages.last().unwrap().blocks(), said);
    assert_eq!(
        (kept[0].role(), kept[0].blocks()),
        (Role::User, said.to_vec())
    );
}

#[tokio::test(start_paused = true)]
async fn an_attachment_that_cannot_be_sent_is_refused_before_anything_is_appended() {
    let model = Arc::new(ScriptedModel::always(Reply::text("ok")));
    let host = host(&model).await;
    let conversation = conversation(&host);

    for (block, code) in [
        (
            raw("image", "image/tiff", "SUkqAA=="),
            "attachment_unsupported",
        ),
        (raw("image", "image/png", ""), "attachment_empty"),
        (
            raw("image", "image/png", "iVBORw0KGgo="),
            "attachment_broken",
        ),
        (
            raw("document", "application/pdf", "JVBERi0xLjcK"),
            "attachment_broken",
        ),
    ] {
        let refused = conversation
            .send(Prompt::blocks(vec![ContentBlock::text("look"), block]))
            .await;

        let error = refused.map(|_| ()).unwrap_err();
        assert!(matches!(error, SendError::Attachment(_)), "{error}");
        assert_eq!((error.code(), error.is_retryable()), (code, false));
    }
    assert_eq!(conversation.state().await.unwrap().head.0, 0);
    assert!(model.requests().is_empty());
    assert_eq!(host.tenant("acme").prompts_under_way().unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_prompt_of_images_alone_says_something_and_one_beyond_the_bound_is_too_large() {
    let model = Arc::new(ScriptedModel::always(Reply::text("ok")));
    let host = host(&model).await;
    let picture = Attachment::sniffed(&png(3, 2)).unwrap();

    let alone = conversation(&host)
        .send(Prompt::blocks(Vec::new()).attach(picture))
        .await;
    let large = conversation(&host).send("x".repeat(PROMPT_BYTES_MAX)).await;
    let silent = conversation(&host).send(" ").await;

    assert!(alone.is_ok());
    assert_eq!(large.map(|_| ()).unwrap_err().code(), "invalid_prompt");
    assert_eq!(silent.map(|_| ()), Err(SendError::BadPrompt(0)));
}

#[tokio::test(start_paused = true)]
async fn a_model_without_documents_gets_their_text_and_the_conversation_keeps_both() {
    let model = blind();
    let text = ExtractedText {
        text: "[page 1]\none".into(),
        pages: 1,
    };
    let reader = Reader::answering(Ok(text));
    let host = builder(&model)
        .document_text(reader.clone())
        .build()
        .await
        .unwrap();
    let file = pdf(["one"]);
    let document = Attachment::sniffed(&file).unwrap().title("a.pdf");
    let block = document.block();

    let mut reply = conversation(&host)
        .send(Prompt::text("what?").attach(document))
        .await
        .unwrap();
    reply.outcome().await.unwrap();

    let kept = conversation(&host).messages().await.unwrap();
    assert_eq!(*reader.given.lock(), [Bytes::from(file)]);
    assert_eq!(
        kept[0].blocks(),
        [
            block,
            document_text(Some("a.pdf"), 1, "[page 1]\none"),
            ContentBlock::text("what?")
        ]
    );
    assert_eq!(kept[0].text(), "what?", "what a person said is only that");
}

#[tokio::test(start_paused = true)]
async fn a_document_that_cannot_be_read_for_its_model_is_refused() {
    let model = blind();
    let document = Attachment::sniffed(&pdf(["one"])).unwrap();
    let without = host(&model).await;
    let broken = builder(&model)
        .document_text(Reader::answering(Err(DocumentTextError::Broken)))
        .build()
        .await
        .unwrap();
    let prompt = Prompt::text("what?").attach(document);

    for (host, error) in [
        (without, DocumentTextError::Absent),
        (broken, DocumentTextError::Broken),
    ] {
        let refused = conversation(&host).send(prompt.clone()).await;

        assert_eq!(refused.map(|_| ()), Err(SendError::DocumentText(error)));
        assert_eq!(conversation(&host).state().await.unwrap().head.0, 0);
        assert_eq!(host.tenant("acme").prompts_under_way().unwrap(), 0);
    }
    assert!(model.requests().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_prompt_with_an_attachment_that_is_sent_again_is_the_same_prompt() {
    let model = blind();
    let text = ExtractedText {
        text: "one".into(),
        pages: 1,
    };
    let host = builder(&model)
        .document_text(Reader::answering(Ok(text)))
        .build()
        .await
        .unwrap();
    let prompt = Prompt::text("what?").attach(Attachment::sniffed(&pdf(["one"])).unwrap());

    let mut first = conversation(&host)
        .send(prompt.clone())
        .client_key("k")
        .await
        .unwrap();
    first.outcome().await.unwrap();
    let again = conversation(&host)
        .send(prompt)
        .client_key("k")
        .await
        .unwrap();

    assert_eq!(again.round_id(), first.round_id());
    assert_eq!(model.requests().len(), 1);
}
