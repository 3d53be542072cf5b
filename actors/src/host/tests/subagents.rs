//! Subagents: their configuration, their end together with their parent, their budget, and their
//! recovery after a crash.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::*;
use crate::{
    chat::{ContentBlock, Message, ModelRequest, Usage},
    conversation::round::rules::Recovery,
    host::{SendError, TenantConfig},
    ids::{CallKey, ConversationId, Scope, Seq},
    limits::Limits,
    policy::Budget,
    ports::ListQuery,
    stream::{Open, StopReason, SubagentState},
    tenant::Quotas,
    testing::{Reply, ScriptedModel},
};

/// The text of the first message, by which the scripted model distinguishes a parent from its
/// subagents.
pub(super) fn task(request: &ModelRequest) -> String {
    request
        .messages
        .iter()
        .next()
        .map(Message::text)
        .unwrap_or_default()
}

/// A reply that calls `create_subagent` once for each task.
fn give(tasks: &[&str]) -> Reply {
    let mut tasks = tasks.iter();
    let first = Reply::tool("create_subagent", &json!({ "task": tasks.next().unwrap() }));
    tasks.fold(first, |reply, task| {
        reply.and_tool("create_subagent", &json!({ "task": task }))
    })
}

/// A parent that starts these tasks in one batch and then repeats their results. Its subagents
/// answer by `child`.
pub(super) fn family(
    tasks: &'static [&'static str],
    child: impl Fn(&str, &ModelRequest) -> Reply + Send + Sync + 'static,
) -> Arc<ScriptedModel> {
    Arc::new(ScriptedModel::answering(move |request, _| {
        match (task(request).as_str(), request.messages.len()) {
            ("go", 1) => give(tasks),
            ("go", _) => Reply::text(results(request).join("|")),
            (task, _) => child(task, request),
        }
    }))
}

/// The tool results in the last message of a request.
pub(super) fn results(request: &ModelRequest) -> Vec<String> {
    let result = |block: &ContentBlock| match block {
        ContentBlock::ToolResult(result) => Some(result.content.text().into_owned()),
        _ => None,
    };
    request
        .messages
        .last()
        .unwrap()
        .blocks()
        .iter()
        .filter_map(result)
        .collect()
}

pub(super) async fn children(host: &Host) -> Vec<(ConversationId, Open)> {
    let query = ListQuery {
        subagents: true,
        ..ListQuery::default()
    };
    let rows = host
        .ports()
        .sessions
        .list(&"acme".parse().unwrap(), query)
        .await
        .unwrap();
    rows.into_iter()
        .filter(|row| row.conversation.is_subagent())
        .map(|row| (row.conversation, row.open))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn subagents_of_one_turn_run_together_and_answer_in_call_order() {
    let model = family(&["slow", "quick", "plain"], |task, _| match task {
        "slow" => Reply::text("slow done").after(Duration::from_secs(3)),
        "quick" => Reply::text("quick done").after(Duration::from_secs(1)),
        task => Reply::text(format!("{task} done")),
    });
    let host = builder(&model)
        .system("You are kind.")
        .subagents()
        .build()
        .await
        .unwrap();
    let began = tokio::time::Instant::now();

    let outcome = conversation(&host)
        .send("go")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    assert_eq!(
        outcome.text,
        r#"{"result":"slow done"}|{"result":"quick done"}|{"result":"plain done"}"#
    );
    assert!(
        began.elapsed() < Duration::from_millis(3100),
        "{:?}",
        began.elapsed()
    );
    let asked: Vec<ModelRequest> = model
        .requests()
        .into_iter()
        .filter(|request| task(request) != "go")
        .collect();
    assert_eq!(asked.len(), 3);
    for request in &asked {
        assert_eq!(
            (request.messages.len(), request.system.as_deref()),
            (1, Some("You are kind.")),
            "nothing of its parent is there"
        );
    }
    let texts: Vec<String> = conversation(&host)
        .messages()
        .await
        .unwrap()
        .iter()
        .map(Message::text)
        .collect();
    assert_eq!(
        texts.len(),
        4,
        "nothing of the subagents but their results: {texts:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_subagent_answers_with_all_it_said_and_fills_no_window_of_its_parent() {
    let (tool, _) = probe("tool", EffectClass::Pure, |_| async { Ok("ran".into()) });
    let large = Usage {
        input_uncached: 150_000,
        output: 1000,
        ..Usage::default()
    };
    let small = Usage {
        input_uncached: 30,
        output: 7,
        ..Usage::default()
    };
    let model = ScriptedModel::answering(move |request, _| {
        match (task(request).as_str(), request.messages.len()) {
            ("go", 1) => give(&["a"]).usage(small),
            ("go", _) => Reply::text(results(request).join("|")).usage(small),
            (_, 1) => Reply::text("first,")
                .and_tool("tool", &json!({}))
                .usage(large),
            _ => Reply::text("then more").usage(large),
        }
    });
    let host = builder(&Arc::new(model)).tools([tool]).subagents();
    let host = host.build().await.unwrap();

    let mut reply = conversation(&host).send("go").await.unwrap();
    let outcome = reply.outcome().await.unwrap();

    assert_eq!(outcome.text, r#"{"result":"first,\nthen more"}"#);
    let state = conversation(&host).state().await.unwrap();
    assert_eq!(
        (state.last_usage, state.context.window.last_call()),
        (small, (Some(37), 0))
    );
}

#[tokio::test(start_paused = true)]
async fn a_subagent_has_its_parents_tools_but_the_one_that_begins_more() {
    let (tool, starts) = probe("tool", EffectClass::Pure, |context| async move {
        Ok(context.key.scope.conversation.as_str().into())
    });
    let model = family(&["use it"], |_, request| match request.messages.len() {
        1 => {
            Reply::tool("tool", &json!({})).and_tool("create_subagent", &json!({ "task": "more" }))
        }
        _ => Reply::text(results(request)[1].clone()),
    });
    let host = builder(&model)
        .tool(tool)
        .subagents()
        .build()
        .await
        .unwrap();

    let outcome = conversation(&host)
        .send("go")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    let names = |request: &ModelRequest| {
        request
            .tools
            .iter()
            .map(|tool| tool.name.clone())
            .collect::<Vec<_>>()
    };
    let requests = model.requests();
    assert_eq!(names(&requests[0]), ["tool", "recall", "create_subagent"]);
    assert_eq!(names(&requests[1]), ["tool", "recall"]);
    assert_eq!(
        (starts.load(Ordering::SeqCst), children(&host).await.len()),
        (1, 1)
    );
    assert!(
        outcome.text.contains("there is no tool named"),
        "{}",
        outcome.text
    );
}

#[tokio::test(start_paused = true)]
async fn a_parent_that_waits_for_subagents_holds_no_permit() {
    let model = family(&["a", "b", "c"], |task, _| {
        Reply::text(format!("{task} done")).after(Duration::from_secs(1))
    });
    let limits = Limits {
        tenant_turns_max: 1,
        model_calls_max: 1,
        ..Limits::default()
    };
    let host = builder(&model)
        .limits(limits)
        .subagents()
        .build()
        .await
        .unwrap();
    let began = tokio::time::Instant::now();

    let mut reply = conversation(&host).send("go").await.unwrap();
    let outcome = tokio::time::timeout(Duration::from_secs(60), reply.outcome())
        .await
        .expect("no round waits for itself")
        .unwrap();

    assert_eq!(
        outcome.text,
        r#"{"result":"a done"}|{"result":"b done"}|{"result":"c done"}"#
    );
    assert!(
        began.elapsed() >= Duration::from_secs(3),
        "one at a time: {:?}",
        began.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_behind_a_subagent_does_not_keep_its_parents_permit() {
    let (tool, starts) = probe("look", EffectClass::Pure, |_| async { Ok("seen".into()) });
    let model = Arc::new(ScriptedModel::answering(|request, _| {
        match (task(request).as_str(), request.messages.len()) {
            ("go", 1) => give(&["a"]).and_tool("look", &json!({})),
            ("go", _) => Reply::text(results(request).join("|")),
            (task, _) => Reply::text(format!("{task} done")),
        }
    }));
    let limits = Limits {
        tenant_turns_max: 1,
        parallel_tools_max: 1,
        ..Limits::default()
    };
    let host = builder(&model)
        .limits(limits)
        .tools([tool])
        .subagents()
        .build()
        .await
        .unwrap();

    let mut reply = conversation(&host).send("go").await.unwrap();
    let outcome = tokio::time::timeout(Duration::from_secs(60), reply.outcome())
        .await
        .expect("no round waits for itself")
        .unwrap();

    assert_eq!(outcome.text, r#"{"result":"a done"}|seen"#);
    assert_eq!(starts.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_subagent_that_fails_is_an_error_of_its_call_only() {
    let model = family(&["fine", "broken", "panics"], |task, _| match task {
        "broken" => Reply::error(crate::ports::ProviderError::InvalidRequest {
            status: 400,
            message: "no".into(),
        }),
        "panics" => Reply::panic(),
        _ => Reply::text("ok"),
    });
    let host = builder(&model).subagents().build().await.unwrap();

    let outcome = conversation(&host)
        .send("go")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    let results: Vec<&str> = outcome.text.split('|').collect();
    assert_eq!(
        (results[0], outcome.stop_reason),
        (r#"{"result":"ok"}"#, StopReason::EndTurn)
    );
    for failed in &results[1..] {
        assert!(
            failed.contains(
                "Error Code: SUBAGENT_FAILED\nError Message: the subagent did not come to an end"
            ),
            "{failed}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn cancel_reaches_model_tools_and_subagents() {
    let (hangs, starts) = probe("hangs", EffectClass::Once, |context| async move {
        context.cancel.cancelled().await;
        Ok("stopped".into())
    });
    let model = family(&["think", "work"], |task, _| match task {
        "work" => Reply::tool("hangs", &json!({})),
        _ => Reply::stall(),
    });
    let host = builder(&model)
        .tool(hangs)
        .subagents()
        .build()
        .await
        .unwrap();
    let mut reply = conversation(&host).send("go").await.unwrap();
    until("all are at work", || {
        starts.load(Ordering::SeqCst) == 1 && model.counts().started == 3
    })
    .await;
    let began = tokio::time::Instant::now();

    conversation(&host).interrupt().await.unwrap();
    let outcome = reply.outcome().await.unwrap();

    assert_eq!(outcome.stop_reason, StopReason::Interrupted);
    assert!(
        began.elapsed() < Duration::from_secs(1),
        "{:?}",
        began.elapsed()
    );
    until("the model is left", || model.counts().dropped == 1).await;
    until("all are at rest", || host.awake() <= 1).await;
    assert!(
        children(&host)
            .await
            .iter()
            .all(|(_, open)| *open == Open::None)
    );
    assert_eq!(children(&host).await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_parents_deadline_ends_its_subagents() {
    let model = family(&["think"], |_, _| Reply::stall());
    let host = builder(&model).subagents().build().await.unwrap();

    let mut reply = conversation(&host)
        .send("go")
        .deadline(Duration::from_secs(5))
        .await
        .unwrap();
    let _ = reply.outcome().await;

    until("the model is left", || model.counts().dropped == 1).await;
    until("the subagent rests", || host.awake() <= 1).await;
    assert!(
        children(&host)
            .await
            .iter()
            .all(|(_, open)| *open == Open::None)
    );
}

#[tokio::test(start_paused = true)]
async fn a_deletion_takes_subagents_along() {
    let model = family(&["over", "hangs"], |task, _| {
        if task == "over" {
            Reply::text("ok")
        } else {
            Reply::stall()
        }
    });
    let host = builder(&model).subagents().build().await.unwrap();
    conversation(&host).send("go").await.unwrap();
    until("one is over, one is at work", || {
        model.counts().started == 3 && model.counts().finished == 2
    })
    .await;
    let other = host.tenant("acme").conversation("c-2");
    other.send("go").await.unwrap();
    until("another family is there", || model.counts().started == 6).await;
    assert_eq!(children(&host).await.len(), 4);

    assert_eq!(conversation(&host).delete().await, Ok(true));

    let of_other = other.scope().unwrap().conversation.children();
    let left = children(&host).await;
    assert!(
        left.len() == 2
            && left
                .iter()
                .all(|(id, _)| id.as_str().starts_with(of_other.as_str())),
        "{left:?}"
    );
    assert_eq!(host.tenant("acme").erase().await.unwrap().conversations, 3);
    assert_eq!((children(&host).await, host.awake()), (vec![], 0));
}

#[tokio::test(start_paused = true)]
async fn a_parent_that_is_taken_up_again_finds_its_subagents() {
    // The host crashes while both subagents run, or after one has ended and before its parent got
    // both results.
    for over_first in [false, true] {
        let store = store();
        let first = family(&["a", "b"], move |task, _| {
            if over_first && task == "a" {
                Reply::text("a done")
            } else {
                Reply::stall()
            }
        });
        let host = builder(&first)
            .shared_sessions(store.clone())
            .subagents()
            .build()
            .await
            .unwrap();
        host.tenant("acme")
            .conversation("c-1")
            .send("go")
            .await
            .unwrap();
        until("they work", || {
            first.counts().started == 3 && first.counts().finished == 1 + usize::from(over_first)
        })
        .await;
        let before = children(&host).await;
        drop(host);

        let second = family(&["never"], |task, _| Reply::text(format!("{task} at last")));
        let host = builder(&second)
            .shared_sessions(store)
            .subagents()
            .build()
            .await
            .unwrap();
        host.resume_interrupted().await.unwrap();
        let mut reply = conversation(&host).resume().await.unwrap().unwrap();
        let outcome = reply.outcome().await.unwrap();

        let a = if over_first { "a done" } else { "a at last" };
        assert_eq!(
            outcome.text,
            format!(r#"{{"result":"{a}"}}|{{"result":"b at last"}}"#)
        );
        let ids = |rows: Vec<(ConversationId, Open)>| {
            rows.into_iter().map(|(id, _)| id).collect::<Vec<_>>()
        };
        assert_eq!(
            ids(children(&host).await),
            ids(before),
            "no subagent began twice"
        );
        assert_eq!(second.counts().started, 2 + usize::from(!over_first));
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_host_closes_it_closes_with_its_subagents() {
    let store = store();
    let silent = family(&["a"], |_, _| Reply::stall());
    let host = builder(&silent)
        .shared_sessions(store.clone())
        .subagents()
        .build()
        .await
        .unwrap();
    host.tenant("acme")
        .conversation("c-1")
        .send("go")
        .await
        .unwrap();
    until("it works", || silent.counts().started == 2).await;
    drop(host);

    let model = family(&[""], |_, _| Reply::text("must not be asked"));
    let host = builder(&model)
        .shared_sessions(store)
        .recovery(Recovery::Close)
        .subagents()
        .build()
        .await
        .unwrap();
    assert!(conversation(&host).resume().await.unwrap().is_none());

    for _ in 0..1000 {
        if children(&host)
            .await
            .iter()
            .all(|(_, open)| *open == Open::None)
        {
            assert_eq!(model.counts().started, 0);
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the subagent is open");
}

#[tokio::test(start_paused = true)]
async fn a_drain_lets_a_turn_begin_and_end_its_subagents() {
    let model = Arc::new(ScriptedModel::answering(|request, _| {
        match (task(request).as_str(), request.messages.len()) {
            ("go", 1) => give(&["late"]).after(Duration::from_secs(2)),
            ("go", _) => Reply::text(results(request).join("|")),
            _ => Reply::text("done").after(Duration::from_secs(2)),
        }
    }));
    let host = builder(&model).subagents().build().await.unwrap();
    let mut reply = conversation(&host).send("go").await.unwrap();
    until("it thinks", || model.counts().started == 1).await;

    stop(&host, Duration::from_secs(30)).await;

    assert_eq!(reply.outcome().await.unwrap().text, r#"{"result":"done"}"#);
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_is_over_leaves_no_subagent_running() {
    let model = family(&["hangs"], |_, _| Reply::stall());
    let host = builder(&model).subagents().build().await.unwrap();
    conversation(&host).send("go").await.unwrap();
    until("it works", || model.counts().started == 2).await;

    stop(&host, Duration::from_secs(1)).await;

    assert_eq!((model.counts().dropped, host.awake()), (1, 0));
    assert!(
        children(&host)
            .await
            .iter()
            .all(|(_, open)| *open == Open::None)
    );
}

#[tokio::test(start_paused = true)]
async fn subagents_beyond_the_bounds_are_refused_with_a_code() {
    let model = Arc::new(ScriptedModel::answering(|request, _| {
        match (task(request).as_str(), request.messages.len()) {
            ("go", 1) => give(&["a", "b"]),
            ("go", 3) => give(&["c", "d"]),
            ("go", 5) => Reply::text(results(request).join("|")),
            ("go", 7) => give(&["e", "f"]),
            ("go", _) => Reply::text(results(request).join("|")),
            _ => Reply::text("ok"),
        }
    }));
    let limits = Limits {
        subagents_a_round_max: 3,
        subagents_max: 5,
        ..Limits::default()
    };
    let host = builder(&model)
        .limits(limits)
        .subagents()
        .build()
        .await
        .unwrap();
    let first = conversation(&host)
        .send("go")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();
    let second = conversation(&host)
        .send("more")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    assert!(
        first
            .text
            .starts_with(r#"{"result":"ok"}|Operation failed."#),
        "{}",
        first.text
    );
    assert!(
        first
            .text
            .contains("Error Code: SUBAGENT_LIMIT\nError Message: this turn has begun 3 subagents"),
        "{}",
        first.text
    );
    assert!(
        second
            .text
            .starts_with(r#"{"result":"ok"}|Operation failed."#),
        "{}",
        second.text
    );
    assert!(
        second
            .text
            .contains("this conversation has begun 5 subagents"),
        "{}",
        second.text
    );
    assert_eq!(
        children(&host).await.len(),
        4,
        "what was refused counts too"
    );
}

#[tokio::test(start_paused = true)]
async fn watchers_of_a_parent_see_its_subagents_begin_and_end_and_nothing_of_what_they_say() {
    let model = family(&["fine", "broken"], |task, _| match task {
        "fine" => Reply::text("a secret whisper"),
        _ => Reply::error(crate::ports::ProviderError::InvalidRequest {
            status: 400,
            message: "no".into(),
        }),
    });
    let host = builder(&model).subagents().build().await.unwrap();
    let mut reply = conversation(&host).send("go").await.unwrap();
    let mut seen = Vec::new();
    while let Some(event) = reply.next().await {
        match &event.kind {
            EventKind::Subagent { id, state, .. } => seen.push((id.clone(), *state)),
            EventKind::TextDelta { text } => assert!(text.contains("result"), "{text}"),
            _ => {}
        }
    }

    let seq = batch_seq(&seen[0].0);
    let child = |index| {
        CallKey {
            scope: conversation(&host).scope().unwrap(),
            seq,
            index,
        }
        .child()
        .conversation
    };
    seen.sort_by_key(|(id, state)| (*id != child(0), *state != SubagentState::Started));
    use SubagentState::{Failed, Finished, Started};
    assert_eq!(
        seen,
        [
            (child(0), Started),
            (child(0), Finished),
            (child(1), Started),
            (child(1), Failed)
        ]
    );
    let whisper = host
        .tenant("acme")
        .conversation(child(0).as_str())
        .messages()
        .await
        .unwrap();
    assert_eq!(
        whisper.last().unwrap().text(),
        "a secret whisper",
        "its own conversation is there to be read"
    );
}

/// The number of the entry whose first tool call started this subagent.
fn batch_seq(child: &ConversationId) -> Seq {
    let parent: ConversationId = "c-1".parse().unwrap();
    (0..100)
        .map(Seq)
        .find(|seq| parent.child(*seq, 0) == *child)
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn only_its_parent_sends_to_a_subagent_and_lists_hide_it() {
    let model = family(&["a"], |_, _| Reply::text("ok"));
    let host = builder(&model).subagents().build().await.unwrap();
    conversation(&host)
        .send("go")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();
    let (id, _) = children(&host).await.remove(0);
    let child = host.tenant("acme").conversation(id.as_str());

    assert_eq!(child.send("psst").await.unwrap_err(), SendError::Reserved);
    assert_eq!(child.inject(None, "psst").await, Err(SendError::Reserved));
    assert_eq!(child.import(vec![]).await, Err(SendError::Reserved));
    assert_eq!(
        conversation(&host).fork("subagent:x", None).await.err(),
        Some(SendError::Reserved)
    );
    assert_eq!(
        host.tenant("acme")
            .conversations(ListQuery::default())
            .await
            .unwrap()
            .len(),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn no_rate_refuses_a_subagent_of_a_turn_that_was_let_in() {
    let model = family(&["a", "b"], |task, _| Reply::text(task));
    let host = builder(&model).subagents().build().await.unwrap();
    let quotas = Quotas {
        prompts_max: Some(1),
        requests_per_minute: Some(1),
        ..Quotas::default()
    };
    host.configure_tenant(&"acme".parse().unwrap(), TenantConfig::new().quotas(quotas))
        .await
        .unwrap();

    let outcome = conversation(&host)
        .send("go")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    assert_eq!(outcome.text, r#"{"result":"a"}|{"result":"b"}"#);
    assert_eq!(host.tenant("acme").prompts_under_way(), Ok(0));
}

#[tokio::test(start_paused = true)]
async fn an_answer_beyond_its_credit_is_an_artifact_that_its_parent_reads() {
    let long = "a line of the answer\n".repeat(2000);
    let said = long.clone();
    let model = family(&["say all"], move |_, _| Reply::text(said.clone()));
    let host = builder(&model).subagents().build().await.unwrap();

    let outcome = conversation(&host)
        .send("go")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    let result: Value = serde_json::from_str(&outcome.text).unwrap();
    let shown = result["result"].as_str().unwrap();
    let rest = result["rest"].as_str().unwrap();
    assert!(
        long.starts_with(shown)
            && shown.ends_with("answer")
            && (20_000..=24_576).contains(&shown.len()),
        "{}",
        shown.len()
    );
    assert_eq!(result["bytes"], long.len());
    let id = rest.split('"').nth(1).unwrap();
    let owner = Scope::new("acme".parse().unwrap(), "c-1".parse().unwrap());
    assert_eq!(
        host.artifacts()
            .retrieve(owner, crate::ids::ArtifactId::parse(id).unwrap())
            .await
            .unwrap(),
        long.as_bytes()
    );
}

/// The number of subagents in one round. Each would spend 120 tokens, and the budget has room for
/// less than half of them.
const SPENDERS: usize = 64;

fn spenders() -> Arc<ScriptedModel> {
    let usage = |input_uncached, output| Usage {
        input_uncached,
        output,
        ..Usage::default()
    };
    Arc::new(ScriptedModel::answering(move |request, _| {
        match (task(request).as_str(), request.messages.len()) {
            ("go", 1) => {
                let call = |reply: Reply, n: usize| {
                    reply.and_tool(
                        "create_subagent",
                        &json!({ "task": format!("{n} {}", "x".repeat(200)) }),
                    )
                };
                (0..SPENDERS)
                    .fold(Reply::text("I share the work."), call)
                    .usage(usage(100, 1000))
            }
            ("go", _) => Reply::text(results(request).join("|")),
            _ => Reply::text("ok")
                .usage(usage(20, 100))
                .after(Duration::from_secs(1)),
        }
    }))
}

#[tokio::test(start_paused = true)]
async fn a_conversation_and_its_subagents_spend_one_budget() {
    let model = spenders();
    let limits = Limits {
        parallel_tools_max: SPENDERS,
        ..Limits::default()
    };
    let budget = Budget::default().with_tokens(5000);
    let store = store();
    let made = |model| {
        builder(model)
            .shared_sessions(store.clone())
            .max_tokens(100)
            .limits(limits.clone())
            .budget(budget)
            .subagents()
    };
    let host = made(&model).build().await.unwrap();

    let outcome = conversation(&host)
        .send("go")
        .await
        .unwrap()
        .outcome()
        .await;

    let total = host.figures().await.total;
    let spent = total.input_tokens + total.output_tokens;
    assert!(
        (3000..=5000).contains(&spent),
        "{spent}: the budget is used, and not passed"
    );
    let asked = model
        .requests()
        .iter()
        .filter(|request| task(request) != "go")
        .count();
    assert!((10..SPENDERS).contains(&asked), "{asked}");
    let refused = children(&host).await.len() - asked;
    assert!(refused > 0, "{outcome:?}");

    // The next host counts what the subagents spent.
    drop(host);
    let later = Arc::new(ScriptedModel::always(Reply::text("again")));
    let host = made(&later).build().await.unwrap();
    let before = {
        conversation(&host)
            .send("more")
            .await
            .unwrap()
            .outcome()
            .await
            .ok();
        let family = host
            .0
            .directory
            .family_of(
                &host.0.tenants.get(&"acme".parse().unwrap()),
                &"c-1".parse().unwrap(),
            )
            .unwrap();
        family.counter().spent().tokens
    };
    assert!(before >= spent, "{before} of {spent}");
}

#[tokio::test(start_paused = true)]
async fn what_a_conversation_spends_is_counted_once_however_often_it_sleeps() {
    let usage = Usage {
        input_uncached: 900,
        output: 100,
        ..Usage::default()
    };
    let model = Arc::new(ScriptedModel::always(Reply::text("ok").usage(usage)));
    let host = builder(&model)
        .max_tokens(100)
        .budget(Budget::default().with_tokens(100_000))
        .subagents()
        .build()
        .await
        .unwrap();
    // Holding the family keeps its counter alive while the conversation sleeps.
    let family = host
        .0
        .directory
        .family_of(
            &host.0.tenants.get(&"acme".parse().unwrap()),
            &"c-1".parse().unwrap(),
        )
        .unwrap();

    for turn in 1..=3 {
        conversation(&host)
            .send("Hi")
            .await
            .unwrap()
            .outcome()
            .await
            .unwrap();

        assert_eq!(family.counter().spent().tokens, turn * 1000);
        until("it sleeps", || {
            host.hibernate_idle();
            host.awake() == 0
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_subagent_that_takes_too_long_is_a_timeout_of_its_own_call() {
    let model = family(&["hangs", "plain"], |task, _| match task {
        "hangs" => Reply::stall(),
        task => Reply::text(format!("{task} done")),
    });
    let day = Duration::from_secs(24 * 3600);
    let limits = Limits {
        model_first_byte: day,
        model_idle: day,
        model_total: day,
        ..Limits::default()
    };
    let host = builder(&model).limits(limits).subagents().build();
    let host = host.await.unwrap();
    let began = tokio::time::Instant::now();

    let mut reply = conversation(&host).send("go").await.unwrap();
    let outcome = reply.outcome().await.unwrap();

    let (hung, plain) = outcome.text.split_once('|').unwrap();
    assert!(hung.contains("Error Code: TIMEOUT"), "{hung}");
    assert_eq!(plain, r#"{"result":"plain done"}"#);
    let took = began.elapsed().as_secs();
    assert!((3600..3610).contains(&took), "{took} s");
    until("both are at rest", || host.awake() <= 1).await;
    let children = children(&host).await;
    assert!(children.len() == 2 && children.iter().all(|(_, open)| *open == Open::None));
}
