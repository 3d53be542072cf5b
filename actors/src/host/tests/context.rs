//! The context of long conversations in a running host: every request fits the window, is valid and
//! keeps the pinned facts. The prompt prefix changes only for a counted reason.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;

use super::{builder, conversation, probe};
use crate::{
    chat::{Message, MessageList, ModelRequest, RawJson, Usage},
    compactor::{CompactionSettings, SpanPointer},
    host::ConversationHandle,
    limits::PROMPT_BYTES_MAX,
    metrics_collector::Reading,
    ports::{Capabilities, LlmProvider, ToolOutput},
    stream::{EventKind, StopReason},
    testing::{Reply, ScriptedModel, TestSize},
    tokens::{EncoderConfig, TokenCounter},
    tool::EffectClass,
};

/// The longest answer of the small model, in tokens.
const ANSWER_MAX: u32 = 500;

fn small_window(context_window: u32) -> Capabilities {
    Capabilities {
        context_window,
        output_max: ANSWER_MAX,
        tools: true,
        output_schema: false,
        counts_tokens: false,
        images: true,
        documents: true,
        request_bytes_max: None,
        thinking: false,
    }
}

/// The tokens of a request: messages, system prompt and tools.
fn tokens(counter: &TokenCounter, request: &ModelRequest) -> u64 {
    let messages: u64 = request
        .messages
        .iter()
        .map(|message| counter.count_message(&request.model, message))
        .sum();
    let system = request
        .system
        .as_deref()
        .map_or(0, |system| counter.count_text(&request.model, system));
    messages + system + counter.count_tools(&request.model, &request.tools)
}

/// What the model's requests looked like.
#[derive(Default)]
struct Seen {
    calls: u64,
    breaks: u64,
    last: Option<MessageList>,
    faults: Vec<String>,
}

impl Seen {
    fn request(&mut self, counter: &TokenCounter, request: &ModelRequest, room: u64) {
        self.calls += 1;
        let used = tokens(counter, request);
        if used > room {
            self.faults.push(format!(
                "call {}: {used} tokens in a room of {room}",
                self.calls
            ));
        }
        self.faults.extend(
            request
                .messages
                .first_fault()
                .map(|fault| format!("call {}: {fault}", self.calls)),
        );
        let last = self.last.replace(request.messages.clone());
        if last.is_some_and(|last| !request.messages.starts_with(&last)) {
            self.breaks += 1;
        }
    }
}

fn everything(request: &ModelRequest) -> String {
    request
        .messages
        .iter()
        .map(crate::chat::Message::wire_str)
        .collect()
}

/// A model with a small window. It reports its true usage, answers `FACT?` from the messages that
/// it sees, and calls a tool when asked to `LOOK`.
fn small_model(
    counter: Arc<TokenCounter>,
    seen: Arc<Mutex<Seen>>,
    window: u32,
) -> Arc<ScriptedModel> {
    let model = ScriptedModel::answering(move |request, _| {
        let mut seen = seen.lock();
        seen.request(&counter, request, u64::from(window - ANSWER_MAX));
        let last = request.messages.last().unwrap();
        let reply = match last.text() {
            text if text.contains("FACT?") => {
                let knows = everything(request).contains("the vault's number is 4711");
                Reply::text(if knows {
                    "It is 4711."
                } else {
                    "I do not know."
                })
            }
            text if text.contains("LOOK") => Reply::tool("look", &serde_json::json!({})),
            _ => Reply::text("Certainly. ".repeat(12)),
        };
        let input = tokens(&counter, request);
        // Nearly all input is read from the cache, as a provider with a warm cache reports it.
        reply.usage(Usage {
            input_uncached: 1,
            cache_read: input - 1,
            cache_write: 0,
            output: 40,
        })
    });
    Arc::new(model.capabilities(small_window(window)))
}

async fn answer(conversation: &ConversationHandle, prompt: String) -> String {
    conversation
        .send(prompt)
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap()
        .text
        .clone()
}

/// The number of rounds in the long conversation.
fn rounds() -> u64 {
    TestSize::pick(500, 2000, 2000)
}

#[tokio::test]
async fn many_rounds_fit_a_window_of_eight_thousand_tokens() {
    let counter = Arc::new(TokenCounter::default());
    let seen = Arc::new(Mutex::new(Seen::default()));
    let model = small_model(counter.clone(), seen.clone(), 8000);
    let (tool, _) = probe("look", EffectClass::Pure, |_| async {
        Ok(ToolOutput::Text("seen ".repeat(120)))
    });
    let settings = CompactionSettings {
        enable_llm_summarization: false,
        ..CompactionSettings::default()
    };
    let host = builder(&model)
        .tools([tool])
        .compaction(settings)
        .tokens(counter)
        .build()
        .await
        .unwrap();
    let conversation = conversation(&host);
    conversation
        .pin("the vault's number is 4711")
        .await
        .unwrap();

    for round in 1..=rounds() {
        let prompt = match round % 50 {
            0 => "FACT?".to_owned(),
            n if n % 10 == 3 => format!("LOOK {round}"),
            _ => format!(
                "prompt {round}: {}",
                "say more of the matter at hand ".repeat(4)
            ),
        };
        let said = answer(&conversation, prompt).await;
        assert!(
            round % 50 != 0 || said == "It is 4711.",
            "what is pinned stays answerable: {said} in round {round}"
        );
    }

    let state = conversation.state().await.unwrap();
    let counted: Reading = host.figures().await.total;
    let seen = seen.lock();
    assert_eq!(
        seen.faults,
        Vec::<String>::new(),
        "every request fits and is valid"
    );
    assert_eq!(
        (seen.breaks, counted.prefix_breaks_unknown),
        (counted.compactions, 0),
        "the prefix breaks where it is compacted and nowhere else"
    );
    assert_eq!(counted.prefix_breaks_compaction, counted.compactions);
    assert_eq!(state.metrics.compression_events, counted.compactions);
    assert!(
        (rounds() / 50..=rounds() / 5).contains(&counted.compactions),
        "{} compactions",
        counted.compactions
    );
}

#[tokio::test]
async fn compaction_always_makes_the_next_request_fit() {
    // The provider's usage decides: a prompt that is read from the cache fills the window like any
    // other.
    let model = ScriptedModel::answering(|_, call| {
        let usage = Usage {
            input_uncached: 500,
            cache_read: if call == 0 { 189_000 } else { 20_000 },
            cache_write: 0,
            output: 500,
        };
        Reply::text("a").usage(usage)
    });
    let model = Arc::new(model);
    let host = builder(&model).build().await.unwrap();
    let conversation = conversation(&host);
    let old: Vec<_> = (0..60)
        .flat_map(|n| {
            [
                crate::chat::Message::user(format!("{n} {}", "word ".repeat(1500))),
                crate::chat::Message::assistant("yes"),
            ]
        })
        .collect();
    conversation.import(old).await.unwrap();
    answer(&conversation, "one".into()).await;
    let before = model.last_request().unwrap().messages.wire_bytes();

    let mut events = Vec::new();
    let mut reply = conversation.send("two").await.unwrap();
    while let Some(event) = reply.next().await {
        events.push(event.kind.clone());
    }

    let after = model.last_request().unwrap().messages.wire_bytes();
    let compaction = events.iter().find_map(|event| match event {
        EventKind::Compaction {
            before_tokens,
            after_tokens,
            ..
        } => Some((*before_tokens, *after_tokens)),
        _ => None,
    });
    let (before_tokens, after_tokens) = compaction.expect("watchers see a compaction");
    assert!(
        before_tokens >= 190_000 && after_tokens <= 96_000,
        "{before_tokens} -> {after_tokens}"
    );
    assert!(after < before / 2 + 20_000, "{before} -> {after} bytes");
}

#[tokio::test]
async fn a_provider_that_counts_is_asked_where_its_model_is_configured_so() {
    struct Counts(Arc<ScriptedModel>, std::sync::atomic::AtomicUsize);
    impl LlmProvider for Counts {
        fn name(&self) -> &str {
            "counts"
        }
        fn capabilities(&self, model: &str) -> Capabilities {
            Capabilities {
                counts_tokens: true,
                ..LlmProvider::capabilities(&*self.0, model)
            }
        }
        fn stream(
            &self,
            request: ModelRequest,
            cancel: tokio_util::sync::CancellationToken,
        ) -> crate::ports::BoxFuture<
            '_,
            Result<crate::ports::ModelStream, crate::ports::ProviderError>,
        > {
            self.0.stream(request, cancel)
        }
        fn count_tokens(
            &self,
            _: ModelRequest,
        ) -> crate::ports::BoxFuture<'_, Result<u64, crate::ports::ProviderError>> {
            self.1.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            Box::pin(std::future::ready(Ok(100)))
        }
    }
    // By the local estimate the prompt fills the window; by the provider's count there is plenty of
    // room.
    let scripted =
        Arc::new(ScriptedModel::always(Reply::text("yes")).capabilities(small_window(4000)));
    let model = Arc::new(Counts(scripted.clone(), Default::default()));
    let counter = TokenCounter::default();
    let config = EncoderConfig {
        use_exact_counting: true,
        ..(*counter.registry().encoder_config("m")).clone()
    };
    counter.registry().register_encoder_config("m", config);
    let host = builder(&model)
        .model("m")
        .tokens(Arc::new(counter))
        .build()
        .await
        .unwrap();

    let said = answer(&conversation(&host), "word ".repeat(3300)).await;

    assert_eq!(
        (
            said.as_str(),
            model.1.load(std::sync::atomic::Ordering::SeqCst)
        ),
        ("yes", 1)
    );
    assert_eq!(host.figures().await.total.compactions, 0);
}

#[tokio::test]
async fn what_cannot_be_made_to_fit_ends_the_round_and_is_named() {
    let model =
        Arc::new(ScriptedModel::always(Reply::text("never")).capabilities(small_window(2000)));
    let host = builder(&model)
        .system("instruction ".repeat(4000))
        .build()
        .await
        .unwrap();

    let outcome = conversation(&host)
        .send("hello")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    assert_eq!(outcome.stop_reason, StopReason::ContextTooLarge);
    let failure = outcome.error.clone().unwrap();
    assert_eq!(failure.code, "context_too_large");
    assert!(
        failure.message.contains("system prompt"),
        "{}",
        failure.message
    );
    assert_eq!(
        model.counts().started,
        0,
        "no model is asked what cannot fit"
    );
}

#[tokio::test]
async fn one_round_of_many_large_results_still_fits() {
    // A long round must not fail because of the size of its own observations.
    let counter = Arc::new(TokenCounter::default());
    let seen = Arc::new(Mutex::new(Seen::default()));
    let count = counter.clone();
    let watch = seen.clone();
    let model = ScriptedModel::answering(move |request, call| {
        watch
            .lock()
            .request(&count, request, u64::from(8000 - ANSWER_MAX));
        let reply = if call < 15 {
            Reply::tool("look", &serde_json::json!({ "n": call }))
        } else {
            Reply::text("done")
        };
        reply.usage(Usage {
            input_uncached: tokens(&count, request),
            output: 20,
            ..Usage::default()
        })
    });
    let model = Arc::new(model.capabilities(small_window(8000)));
    let (tool, _) = probe("look", EffectClass::Once, |_| async {
        Ok(ToolOutput::Text("seen and noted ".repeat(300)))
    });
    let approved = crate::conversation::round::rules::ApprovalMode::Auto;
    let host = builder(&model)
        .tools([tool])
        .approval(approved)
        .tokens(counter)
        .build()
        .await
        .unwrap();

    let outcome = conversation(&host)
        .send("look at everything")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    assert_eq!(
        (outcome.stop_reason, outcome.text.as_str()),
        (StopReason::EndTurn, "done")
    );
    assert_eq!(seen.lock().faults, Vec::<String>::new());
}

#[tokio::test]
async fn what_a_compaction_dropped_is_recalled_by_its_pointer() {
    let counter = Arc::new(TokenCounter::default());
    let seen = Arc::new(Mutex::new(Seen::default()));
    let pointer = Arc::new(Mutex::new(None::<String>));
    let found = pointer.clone();
    let model = ScriptedModel::answering(move |request, _| {
        let last = request.messages.last().unwrap().text();
        if last.contains("what was my secret") {
            let all = everything(request);
            let span = all.split("recall").flat_map(|part| {
                part.split(|c: char| !(c.is_ascii_digit() || c == ':' || c == '-'))
            });
            let span = span
                .filter_map(|text| text.parse::<SpanPointer>().ok())
                .next()
                .map(|span| span.to_string());
            *found.lock() = span.clone();
            return Reply::tool(
                "recall",
                &serde_json::json!({ "span": span.unwrap_or_default() }),
            );
        }
        Reply::text("As you wish. ".repeat(20))
    });
    let model = Arc::new(model.capabilities(small_window(8000)));
    let (tool, _) = probe("look", EffectClass::Pure, |_| async {
        Ok(ToolOutput::Text("x".into()))
    });
    let host = builder(&model)
        .tools([tool])
        .tokens(counter)
        .build()
        .await
        .unwrap();
    let conversation = conversation(&host);
    let secret = format!(
        "{} my secret is a heron in the reeds",
        "filler words go here ".repeat(30)
    );
    answer(&conversation, secret).await;
    for round in 0..60 {
        answer(
            &conversation,
            format!("{round} {}", "more and more words ".repeat(30)),
        )
        .await;
    }
    drop(seen);

    answer(&conversation, "what was my secret".into()).await;

    assert!(pointer.lock().is_some(), "the summary names the span");
    let history = conversation.messages().await.unwrap();
    let result = history
        .iter()
        .rev()
        .find(|message| !message.tool_result_ids().is_empty())
        .unwrap();
    assert!(
        result.wire_str().contains("a heron in the reeds"),
        "{}",
        result.wire_str()
    );
}

#[tokio::test(start_paused = true)]
async fn a_compaction_on_request_waits_for_its_summary_and_a_turn_does_not() {
    let asked = Arc::new(Mutex::new(0));
    let count = asked.clone();
    let model = ScriptedModel::answering(move |request, _| {
        if request.tools.is_empty() && request.system.is_none() && request.messages.len() == 1 {
            *count.lock() += 1;
            return Reply::text("SUMMARY OF THE MATTER").after(Duration::from_secs(3));
        }
        Reply::text("fine ".repeat(50))
    });
    let model = Arc::new(model);
    let settings = CompactionSettings {
        max_cost_per_hour: 100.0,
        ..CompactionSettings::default()
    };
    let host = builder(&model)
        .system("s")
        .compaction(settings)
        .build()
        .await
        .unwrap();
    let conversation = conversation(&host);
    for round in 0..40 {
        answer(&conversation, format!("{round} {}", "words ".repeat(60))).await;
    }

    let note = conversation
        .compact()
        .await
        .unwrap()
        .expect("there was something to drop");

    assert!(note.after_tokens < note.before_tokens);
    assert!(
        *asked.lock() > 1,
        "a long span is asked for in parts, which one more call joins"
    );
    assert!(
        conversation.messages().await.unwrap()[0]
            .wire_str()
            .contains("SUMMARY OF THE MATTER")
    );
    answer(&conversation, "and on".into()).await;
    let texts = async || -> Vec<String> {
        let whole = conversation.transcript().await.unwrap();
        whole.iter().map(Message::text).collect()
    };
    let whole = texts().await;
    assert_eq!(
        whole.len(),
        82,
        "the journal has what the compaction dropped"
    );
    assert!((0..40).all(|round| whole[2 * round].starts_with(&format!("{round} words"))));
    let last = conversation.rounds().await.unwrap().pop().unwrap();
    conversation.rewind(last.round_id).await.unwrap();
    assert_eq!(texts().await, whole[..80]);
    conversation.reset().await.unwrap();
    assert_eq!(texts().await, [""; 0]);
}

#[tokio::test]
async fn the_pinned_lines_come_back_every_five_rounds_and_before_the_prompt() {
    let model = Arc::new(ScriptedModel::always(Reply::text("ok")));
    let host = builder(&model).build().await.unwrap();
    let conversation = conversation(&host);
    conversation.pin("Answer in Latin.").await.unwrap();
    conversation.pin("Answer in Latin.").await.unwrap();

    for round in 0..11 {
        answer(&conversation, format!("prompt {round}")).await;
    }

    let last = model.last_request().unwrap();
    let reminders: Vec<usize> = last
        .messages
        .iter()
        .enumerate()
        .filter(|(_, message)| message.text().contains("# Context Reminder (Round"))
        .map(|(at, _)| at)
        .collect();
    assert_eq!(reminders, [11, 22], "after five and after ten rounds");
    assert_eq!(
        last.messages.last().unwrap().text(),
        "prompt 10",
        "the prompt is what is answered"
    );
    assert_eq!(
        everything(&last).matches("# Context\\n").count(),
        1,
        "a line is pinned once"
    );
    let too_much = conversation.pin("x".repeat(20_000)).await.unwrap_err();
    assert_eq!(too_much.code(), "pinned_full");
    let _ = RawJson::empty_object();
}

#[tokio::test(start_paused = true)]
async fn a_background_summary_is_used_at_the_next_compaction_and_no_turn_waits_for_it() {
    let model = ScriptedModel::answering(move |request, _| {
        if request.tools.is_empty() && request.system.is_none() && request.messages.len() == 1 {
            return Reply::text("BACKGROUND SUMMARY").after(Duration::from_secs(5));
        }
        Reply::text("fine ".repeat(60)).after(Duration::from_millis(10))
    });
    let model = Arc::new(model.capabilities(small_window(8000)));
    let settings = CompactionSettings {
        max_cost_per_hour: 100.0,
        ..CompactionSettings::default()
    };
    let host = builder(&model)
        .system("s")
        .compaction(settings)
        .build()
        .await
        .unwrap();
    let conversation = conversation(&host);
    let mut slowest = Duration::ZERO;
    let mut summarised = None;

    for round in 0..300 {
        let began = tokio::time::Instant::now();
        answer(
            &conversation,
            format!("{round} {}", "words of a person ".repeat(12)),
        )
        .await;
        slowest = slowest.max(began.elapsed());
        tokio::time::sleep(Duration::from_secs(1)).await; // Time for the summaries.
        let first = conversation.messages().await.unwrap().swap_remove(0);
        if first.wire_str().contains("BACKGROUND SUMMARY") {
            summarised = Some((round, host.figures().await.total));
            break;
        }
    }

    let (_, counted) = summarised.expect("a summary made in the background enters the history");
    assert!(
        counted.compactions >= 2 && counted.summaries >= 1,
        "{counted:?}"
    );
    assert!(
        slowest < Duration::from_secs(1),
        "a turn took {slowest:?}: it waited for a summary"
    );
}

#[tokio::test(start_paused = true)]
async fn summaries_that_hang_for_one_tenant_do_not_delay_those_of_another() {
    let model = ScriptedModel::answering(move |request, _| {
        if request.tools.is_empty() && request.system.is_none() && request.messages.len() == 1 {
            let hangs = everything(request).contains("slow");
            let time = if hangs { 3600 } else { 1 };
            return Reply::text("SUMMARY").after(Duration::from_secs(time));
        }
        Reply::text("fine ".repeat(50))
    });
    let settings = CompactionSettings {
        max_cost_per_hour: 100.0,
        ..CompactionSettings::default()
    };
    let host = builder(&Arc::new(model))
        .system("s")
        .compaction(settings)
        .build()
        .await
        .unwrap();
    let conversation = async |tenant: &str, index: usize| {
        let conversation = host
            .tenant(tenant)
            .conversation(format!("c{index}").as_str());
        for round in 0..40 {
            answer(
                &conversation,
                format!("{round} {tenant} {}", "words ".repeat(60)),
            )
            .await;
        }
        conversation
    };
    let mut floods = tokio::task::JoinSet::new();
    for index in 0..20 {
        let slow = conversation("slow", index).await;
        floods.spawn(async move { slow.compact().await });
    }
    let calm = conversation("calm", 0).await;

    calm.compact()
        .await
        .unwrap()
        .expect("there was something to drop");

    let first = calm.messages().await.unwrap().swap_remove(0);
    assert!(first.wire_str().contains("SUMMARY"), "{}", first.wire_str());
}

/// A model that saves a note when it is reminded to, a tool `memory` that keeps it, and the requests
/// that the reminder was in.
async fn run_to_a_compaction(memory_flush: bool, tools: &[&str]) -> (Vec<String>, usize, Reading) {
    let counter = Arc::new(TokenCounter::default());
    let reminded = Arc::new(Mutex::new(Vec::new()));
    let (count, seen) = (counter.clone(), reminded.clone());
    let model = ScriptedModel::answering(move |request, _| {
        let last = request.messages.last().unwrap().text();
        let reply = if last.contains("Save with the tool `memory`") {
            let everything = everything(request);
            seen.lock().push(format!(
                "knows the vault: {}",
                everything.contains("the vault's number is 4711")
            ));
            Reply::tool("memory", &serde_json::json!({"action": "write"}))
        } else {
            Reply::text("Certainly. ".repeat(12))
        };
        reply.usage(Usage {
            input_uncached: tokens(&count, request),
            output: 40,
            ..Usage::default()
        })
    });
    let model = Arc::new(model.capabilities(small_window(8000)));
    let probes: Vec<_> = tools
        .iter()
        .map(|name| {
            probe(name, EffectClass::Idempotent, |_| async {
                Ok(ToolOutput::Text("saved".into()))
            })
        })
        .collect();
    let settings = CompactionSettings {
        enable_llm_summarization: false,
        memory_flush,
        ..CompactionSettings::default()
    };
    let host = builder(&model)
        .tools(
            probes
                .iter()
                .map(|(tool, _)| tool.clone())
                .collect::<Vec<_>>(),
        )
        .approval(crate::conversation::round::rules::ApprovalMode::Auto)
        .compaction(settings)
        .tokens(counter)
        .build()
        .await
        .unwrap();
    let conversation = conversation(&host);
    answer(&conversation, "the vault's number is 4711".into()).await;
    let mut rounds = 0;
    while host.figures().await.total.compactions == 0 {
        rounds += 1;
        assert!(rounds < 200, "the context is compacted at some time");
        let prompt = format!("{rounds}: {}", "say more of the matter ".repeat(20));
        answer(&conversation, prompt).await;
    }
    let saved = probes
        .iter()
        .map(|(_, starts)| starts.load(std::sync::atomic::Ordering::SeqCst))
        .sum();
    let seen = reminded.lock().clone();
    (seen, saved, host.figures().await.total)
}

#[tokio::test]
async fn the_model_may_save_notes_once_before_a_round_compacts_its_context() {
    let (seen, saved, counted) = run_to_a_compaction(true, &["memory"]).await;

    assert_eq!(seen, ["knows the vault: true"], "once, with all messages");
    assert_eq!((saved, counted.compactions), (1, 1));
}

#[tokio::test]
async fn without_the_setting_or_the_tool_a_compaction_asks_for_no_notes() {
    for (memory_flush, tools) in [(false, &["memory"][..]), (true, &["look"][..])] {
        let (seen, saved, counted) = run_to_a_compaction(memory_flush, tools).await;

        assert_eq!((seen, saved), (Vec::new(), 0));
        assert_eq!(counted.compactions, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_conversation_takes_no_message_beyond_what_any_compaction_is_made_for() {
    let model = Arc::new(ScriptedModel::always(Reply::text("ok")));
    let host = builder(&model).build().await.unwrap();
    let conversation = conversation(&host);
    let text = || "x".repeat(PROMPT_BYTES_MAX - 1000);
    let log = super::Log::start();
    conversation.reset().await.unwrap();
    for _ in 0..4 {
        conversation.inject(None, text()).await.unwrap();
    }

    for refused in [
        conversation.inject(None, text()).await.unwrap_err(),
        conversation.send(text()).await.unwrap_err(),
    ] {
        assert_eq!(refused.code(), "context_too_large", "{refused}");
    }
    assert!(
        log.text()
            .contains("ERROR message=Failed to inject messages: ")
    );
    conversation.reset().await.unwrap();
    let mut reply = conversation.send("Hi").await.unwrap();
    reply.outcome().await.unwrap();
}

#[tokio::test]
async fn a_history_of_very_many_messages_counts_what_they_take_in_memory() {
    let model = Arc::new(ScriptedModel::always(Reply::text("ok")));
    let host = builder(&model).build().await.unwrap();
    let conversation = conversation(&host);
    let history = |rounds: usize| -> Vec<Message> {
        let round = || [Message::user("a"), Message::assistant("b")];
        std::iter::repeat_with(round)
            .take(rounds)
            .flatten()
            .collect()
    };

    let refused = conversation.import(history(130_000)).await.unwrap_err();

    assert_eq!(refused.code(), "context_too_large", "{refused}");
    conversation.import(history(1000)).await.unwrap();
}
