//! The histories of conversations that work count as memory.

use serde_json::json;

use super::*;
use crate::{
    chat::{ClientToolResult, ToolDefinition},
    conversation::ConversationError,
    host::SendError,
    limits::{Limits, PENDING_MESSAGES_MAX, PROMPT_BYTES_MAX},
    scripted::{Reply, ScriptedModel},
};

/// Bytes of a history, and how many of them fit within `MEMORY`: what a tenant has counts twice.
const HISTORY: usize = 90_000;
const MEMORY: usize = 400_000;
const AT_ONCE: usize = 2;

/// A model that never answers `hang`, answers `slow` after a minute and all else at once.
fn model() -> Arc<ScriptedModel> {
    Arc::new(ScriptedModel::answering(|request, _| {
        match request.messages.last().unwrap().text().as_str() {
            "hang" => Reply::stall(),
            "slow" => Reply::text("done").after(Duration::from_secs(60)),
            _ => Reply::text("ok"),
        }
    }))
}

fn limits() -> Limits {
    Limits {
        memory_bytes_max: MEMORY,
        ..Limits::default()
    }
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("c-{n}")).collect()
}

/// Gives each conversation a long history.
async fn fill(host: &Host, tenant: &str, names: &[String]) {
    for name in names {
        let conversation = host.tenant(tenant).conversation(name.as_str());
        let mut round = conversation.send("x".repeat(HISTORY)).await.unwrap();
        round.outcome().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn long_histories_at_work_leave_memory_to_other_tenants() {
    let host = builder(&model()).limits(limits()).build().await.unwrap();
    let names = names(8);
    fill(&host, "acme", &names).await;
    fill(&host, "other", &names[..1]).await;
    let mut held = Vec::new();
    let mut refused = Vec::new();
    for name in &names {
        let conversation = host.tenant("acme").conversation(name.as_str());
        match conversation.send("hang").await {
            Ok(round) => held.push((conversation, round)),
            Err(error) => refused.push((conversation, error)),
        }
    }

    assert_eq!(held.len(), AT_ONCE);
    let overloaded = SendError::Conversation(ConversationError::Overloaded {
        what: "memory of this host",
        retry_after_ms: 1000,
    });
    assert!(refused.iter().all(|(_, error)| *error == overloaded));
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(host.awake(), AT_ONCE + 1, "those that were refused sleep");

    let other = host.tenant("other").conversation("c-0");
    let mut round = other.send("hello").await.unwrap();
    round.outcome().await.unwrap();

    let (first, mut round) = held.remove(0);
    first.interrupt().await.unwrap();
    round.outcome().await.unwrap();
    let (again, _) = refused.remove(0);
    let mut round = again.send("hello").await.unwrap();
    round.outcome().await.unwrap();
    for (conversation, mut round) in held {
        conversation.interrupt().await.unwrap();
        round.outcome().await.unwrap();
    }
    let usage = host.tenant("acme").usage().unwrap();
    assert_eq!((usage.memory_bytes, usage.refused.memory), (0, 6));
}

#[tokio::test(start_paused = true)]
async fn open_rounds_with_long_histories_go_on_in_turns() {
    let store = store();
    let first = builder(&model())
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    let names = names(8);
    fill(&first, "acme", &names).await;
    for name in &names {
        let conversation = first.tenant("acme").conversation(name.as_str());
        drop(conversation.send("slow").await.unwrap());
    }
    drop(first);

    let model = model();
    let host = builder(&model)
        .shared_sessions(store)
        .limits(limits())
        .build()
        .await
        .unwrap();
    let usage = || host.tenant("acme").usage().unwrap();
    assert_eq!(host.resume_interrupted().await, Ok(8));
    model.until(|counts| counts.started == AT_ONCE).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(usage().turns_running, AT_ONCE);

    // A message to one that waits is answered.
    let waiting = async |name: &String| {
        let conversation = host.tenant("acme").conversation(name.as_str());
        let sent = conversation.send("Hi").await;
        sent.is_err_and(|error| {
            matches!(
                error,
                SendError::Conversation(ConversationError::Overloaded { .. })
            )
        })
    };
    let mut refused = 0;
    for name in &names {
        refused += usize::from(waiting(name).await);
    }
    assert!(refused >= 8 - AT_ONCE, "{refused}");

    tokio::time::sleep(Duration::from_secs(10 * 60)).await;
    for name in &names {
        let conversation = host.tenant("acme").conversation(name.as_str());
        let state = conversation.state().await.unwrap();
        assert!(state.round.is_none(), "{name} is still open");
    }
    assert_eq!(usage().memory_bytes, 0);
}

#[tokio::test(start_paused = true)]
async fn a_round_that_waits_for_memory_can_be_interrupted() {
    let store = store();
    let first = builder(&model())
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    let names = names(8);
    fill(&first, "acme", &names).await;
    for name in &names {
        let conversation = first.tenant("acme").conversation(name.as_str());
        drop(conversation.send("hang").await.unwrap());
    }
    drop(first);
    let host = builder(&model())
        .shared_sessions(store)
        .limits(limits())
        .build()
        .await
        .unwrap();
    host.resume_interrupted().await.unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;

    for name in &names {
        let conversation = host.tenant("acme").conversation(name.as_str());
        conversation.interrupt().await.unwrap();
    }

    tokio::time::sleep(Duration::from_secs(10)).await;
    let usage = host.tenant("acme").usage().unwrap();
    assert_eq!((usage.turns_running, usage.memory_bytes), (0, 0));
}

fn is_overloaded(error: &SendError) -> bool {
    matches!(
        error,
        SendError::Conversation(ConversationError::Overloaded { .. })
    )
}

/// Begins a round that never ends in each conversation.
async fn hang(host: &Host, names: &[String]) {
    for name in names {
        let conversation = host.tenant("acme").conversation(name.as_str());
        drop(conversation.send("hang").await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn messages_injected_into_open_rounds_count_as_memory_also_after_a_restart() {
    let store = store();
    let make = async |limits| {
        builder(&model())
            .shared_sessions(store.clone())
            .limits(limits)
            .build()
            .await
            .unwrap()
    };
    let first = make(limits()).await;
    let names = names(4);
    hang(&first, &names).await;
    let inject = async |host: &Host| {
        let mut taken = 0;
        for n in 0..40 {
            let name = names[n % names.len()].as_str();
            let conversation = host.tenant("acme").conversation(name);
            match conversation.inject(None, "x".repeat(20_000)).await {
                Ok(()) => taken += 1,
                Err(error) => assert!(is_overloaded(&error), "{error}"),
            }
        }
        taken
    };

    let taken = inject(&first).await;
    assert!((8..=10).contains(&taken), "{taken} of 20,000 bytes each");
    let before = first.tenant("acme").usage().unwrap().memory_bytes;
    drop(first);
    let second = make(limits()).await;
    second.resume_interrupted().await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;

    let after = second.tenant("acme").usage().unwrap().memory_bytes;
    assert!(after > before / 2, "{before} and {after}");
    let taken = inject(&second).await;
    assert!(taken <= 3, "{taken} of 20,000 bytes each");
}

#[tokio::test(start_paused = true)]
async fn waiting_prompts_count_as_memory_after_a_restart() {
    let store = store();
    let names = names(6);
    for _ in 0..2 {
        let host = builder(&model())
            .shared_sessions(store.clone())
            .limits(limits())
            .build()
            .await
            .unwrap();
        host.resume_interrupted().await.unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
        for name in &names {
            let conversation = host.tenant("acme").conversation(name.as_str());
            // The second one waits behind the one that hangs; both may be refused.
            let _ = conversation.send("hang").await;
            let _ = conversation.send("x".repeat(50_000)).await;
        }
        let held = host.tenant("acme").usage().unwrap().memory_bytes;
        assert!(
            held <= u64::try_from(MEMORY).unwrap() / 2 + 60_000,
            "{held}"
        );
    }
    let mut stored = 0;
    let last = builder(&model())
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    for name in &names {
        let conversation = last.tenant("acme").conversation(name.as_str());
        let state = conversation.state().await.unwrap();
        stored += state
            .inbox
            .iter()
            .filter(|prompt| {
                let message = prompt.message.as_ref();
                message.is_some_and(|message| message.wire().len() > 50_000)
            })
            .count();
    }
    assert!((3..=5).contains(&stored), "{stored} wait in all");
}

#[tokio::test(start_paused = true)]
async fn tools_and_schemas_of_prompts_count_as_memory_after_a_restart() {
    let store = store();
    let make = async || {
        builder(&model())
            .shared_sessions(store.clone())
            .limits(limits())
            .build()
            .await
            .unwrap()
    };
    let first = make().await;
    let schema = |bytes: usize| {
        let schema = json!({ "type": "object", "description": "x".repeat(bytes) });
        RawJson::of(&schema).unwrap()
    };
    let tool = ToolDefinition {
        name: "theirs".to_owned(),
        description: String::new(),
        input_schema: schema(60_000),
    };
    // Of a round that is open, and of a prompt that waits.
    let conversation = first.tenant("acme").conversation("c-1");
    let open = conversation.send("hang").client_tools([tool]);
    let open = open.await.unwrap();
    let waits = conversation.send("hang").output_schema(schema(50_000));
    let waits = waits.await.unwrap();
    let before = first.tenant("acme").usage().unwrap().memory_bytes;
    drop((open, waits, first));
    let second = make().await;
    second.resume_interrupted().await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;

    let after = second.tenant("acme").usage().unwrap().memory_bytes;
    assert!(before > 110_000 && after > 110_000, "{before} and {after}");
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_a_round_has_a_bound() {
    let host = builder(&model()).build().await.unwrap();
    let conversation = host.tenant("acme").conversation("c-1");
    drop(conversation.send("hang").await.unwrap());
    for _ in 0..PENDING_MESSAGES_MAX {
        conversation.inject(None, "x").await.unwrap();
    }
    let refused = conversation.inject(None, "x").await.unwrap_err();
    assert_eq!(refused.code(), "inbox_full");

    let large = host.tenant("acme").conversation("c-2");
    drop(large.send("hang").await.unwrap());
    let text = || "x".repeat(PROMPT_BYTES_MAX - 1000);
    for _ in 0..3 {
        large.inject(None, text()).await.unwrap();
    }
    large
        .inject(None, "x".repeat(PROMPT_BYTES_MAX / 2))
        .await
        .unwrap();
    let refused = large.inject(None, text()).await.unwrap_err();
    assert_eq!(refused.code(), "context_too_large");
}

#[tokio::test(start_paused = true)]
async fn results_of_callers_count_as_memory_before_their_batch_is_over() {
    let calls = || {
        (0..10).fold(Reply::empty(), |reply, n| {
            reply.and_tool_with_id(format!("t{n}"), "look", RawJson::empty_object())
        })
    };
    let model = Arc::new(ScriptedModel::answering(move |request, _| {
        match request.messages.last().unwrap().text().as_str() {
            "go" => calls(),
            _ => Reply::text("ok"),
        }
    }));
    let host = builder(&model).limits(limits()).build().await.unwrap();
    let tool = ToolDefinition {
        name: "look".to_owned(),
        description: "Looks.".to_owned(),
        input_schema: RawJson::from_text(r#"{"type":"object"}"#).unwrap(),
    };
    let names = names(4);
    let mut rounds = Vec::new();
    for name in &names {
        let conversation = host.tenant("acme").conversation(name.as_str());
        let mut round = conversation
            .send("go")
            .client_tools([tool.clone()])
            .await
            .unwrap();
        while !matches!(
            round.next().await.unwrap().kind,
            EventKind::ClientToolCall { .. }
        ) {}
        rounds.push(round);
    }
    let mut taken = 0;
    for n in 0..40 {
        let name = names[n % names.len()].as_str();
        let conversation = host.tenant("acme").conversation(name);
        let result = ClientToolResult::new(format!("t{}", n / names.len()), "x".repeat(20_000));
        match conversation.client_tool_results([result]).await {
            Ok(()) => taken += 1,
            Err(error) => assert!(is_overloaded(&error), "{error}"),
        }
    }

    assert!((7..=9).contains(&taken), "{taken} of 20,000 bytes each");
    for name in &names {
        let conversation = host.tenant("acme").conversation(name.as_str());
        conversation.interrupt().await.unwrap();
    }
    for mut round in rounds {
        let _ = round.outcome().await;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(host.tenant("acme").usage().unwrap().memory_bytes, 0);
}

#[tokio::test(start_paused = true)]
async fn calls_whose_results_have_no_memory_do_not_start_and_the_round_goes_on() {
    let (tool, starts) = probe("big", EffectClass::Pure, |_| async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        Ok("x".repeat(20_000).into())
    });
    let model = Arc::new(ScriptedModel::answering(move |request, _| {
        match request.messages.last().unwrap().text().as_str() {
            "go" => (0..40).fold(Reply::empty(), |reply, n| {
                let input = RawJson::of(&json!({ "n": n })).unwrap();
                reply.and_tool_with_id(format!("t{n}"), "big", input)
            }),
            _ => Reply::text("ok"),
        }
    }));
    let limits = Limits {
        parallel_tools_max: 1,
        ..limits()
    };
    let host = builder(&model)
        .limits(limits)
        .tools([tool])
        .build()
        .await
        .unwrap();
    let rounds = names(4).into_iter().map(|name| {
        let conversation = host.tenant("acme").conversation(name.as_str());
        async move {
            let mut round = conversation.send("go").await.unwrap();
            round.outcome().await.unwrap().text
        }
    });
    let rounds = futures_util::future::join_all(rounds);
    tokio::pin!(rounds);
    let mut most = 0;
    let texts = loop {
        tokio::select! {
            texts = &mut rounds => break texts,
            () = tokio::time::sleep(Duration::from_millis(1)) => {
                most = most.max(host.tenant("acme").usage().unwrap().memory_bytes);
            }
        }
    };

    assert_eq!(texts, ["ok"; 4]);
    let bound = u64::try_from(MEMORY).unwrap() / 2;
    assert!(most <= bound + 8 * 20_000, "{most}");
    assert!(
        (8..60).contains(&starts.load(Ordering::SeqCst)),
        "{starts:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn answers_of_many_open_rounds_leave_memory_to_other_tenants() {
    let (tool, _) = probe("little", EffectClass::Pure, |_| async {
        Ok("x".to_owned().into())
    });
    // Each answer is as long as a prompt may not be any more, and asks for another.
    let model = Arc::new(ScriptedModel::answering(move |request, _| {
        match request.messages.last().unwrap().text().as_str() {
            "go" | "" => Reply::text("x".repeat(70_000))
                .and_tool("little", &RawJson::empty_object())
                .after(Duration::from_millis(100)),
            _ => Reply::text("ok"),
        }
    }));
    let host = builder(&model)
        .limits(limits())
        .tools([tool])
        .build()
        .await
        .unwrap();
    let rounds = names(20).into_iter().map(|name| {
        let conversation = host.tenant("acme").conversation(name.as_str());
        async move {
            let mut round = conversation.send("go").await.unwrap();
            let failure = round.outcome().await.unwrap_err();
            failure.code().to_owned()
        }
    });
    let rounds = futures_util::future::join_all(rounds);
    tokio::pin!(rounds);
    let (mut most, mut refused) = (0, 0);
    let ends = loop {
        tokio::select! {
            ends = &mut rounds => break ends,
            () = tokio::time::sleep(Duration::from_millis(20)) => {
                most = most.max(host.tenant("acme").usage().unwrap().memory_bytes);
                let other = host.tenant("other").conversation("c-1").send("hi").await;
                refused += usize::from(other.is_err());
            }
        }
    };

    let ended = ends.iter().filter(|code| *code == "overloaded").count();
    assert!(ended >= 16, "{ends:?}");
    // Half of it, and the answers that came when it was nearly full.
    assert!(most <= u64::try_from(MEMORY).unwrap() * 7 / 8, "{most}");
    assert_eq!(refused, 0, "prompts of another tenant");
}

#[tokio::test(start_paused = true)]
async fn arguments_of_calls_that_wait_for_their_caller_count_as_memory() {
    let model = Arc::new(ScriptedModel::answering(move |_, _| {
        let input = RawJson::of(&json!({ "text": "x".repeat(40_000) })).unwrap();
        Reply::tool("look", &input)
    }));
    let host = builder(&model).limits(limits()).build().await.unwrap();
    let tool = ToolDefinition {
        name: "look".to_owned(),
        description: "Looks.".to_owned(),
        input_schema: RawJson::from_text(r#"{"type":"object"}"#).unwrap(),
    };
    let mut waiting = Vec::new();
    for name in names(8) {
        let conversation = host.tenant("acme").conversation(name.as_str());
        let Ok(mut round) = conversation.send("go").client_tools([tool.clone()]).await else {
            break;
        };
        while let Some(event) = round.next().await
            && !matches!(event.kind, EventKind::ClientToolCall { .. })
        {}
        waiting.push(round);
    }

    // The message and the call have the arguments once each.
    let held = host.tenant("acme").usage().unwrap().memory_bytes;
    assert!(held >= 160_000, "{held}");
    assert!((2..=3).contains(&waiting.len()), "{}", waiting.len());
}
