//! Tool calls in a running host: results in the order of the calls, panics, timeouts, effect
//! classes, cancellation, approvals and wake-ups.

use std::{sync::Arc, time::Duration};

use serde_json::json;

use super::*;
use crate::{
    conversation::round::rules::ApprovalMode,
    ports::Approval,
    stream::StopReason,
    testing::{Reply, ScriptedModel},
    tool::ToolErrorType,
};

fn last_results(model: &ScriptedModel) -> Vec<String> {
    let request = model.last_request().unwrap();
    let blocks = request.messages.last().unwrap().blocks();
    let result = |block: &crate::chat::ContentBlock| match block {
        crate::chat::ContentBlock::ToolResult(result) => Some(result.content.text().into_owned()),
        _ => None,
    };
    blocks.iter().filter_map(result).collect()
}

#[tokio::test(start_paused = true)]
async fn parallel_calls_run_together_and_answer_in_call_order() {
    let sleeper = |ms: u64| {
        move |_: ToolContext| async move {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            Ok(format!("{ms}").into())
        }
    };
    let (slow, _) = probe("slow", EffectClass::Pure, sleeper(900));
    let (quick, _) = probe("quick", EffectClass::Once, sleeper(100));
    let calls = Reply::tool("slow", &json!({}))
        .and_tool("quick", &json!({}))
        .and_tool("unknown", &json!({}));
    let model = Arc::new(ScriptedModel::replies([calls, Reply::text("done")]));
    let host = builder(&model).tools([slow, quick]).build().await.unwrap();
    let began = tokio::time::Instant::now();

    let outcome = conversation(&host)
        .send("go")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    assert_eq!(outcome.text, "done");
    assert!(
        began.elapsed() < Duration::from_millis(1000),
        "{:?}",
        began.elapsed()
    );
    let results = last_results(&model);
    assert_eq!(results[..2], ["900", "100"]);
    assert!(
        results[2]
            .contains("there is no tool named \"unknown\"; the tools are: quick, recall, slow"),
        "{}",
        results[2]
    );
}

#[tokio::test(start_paused = true)]
async fn a_faulty_call_becomes_an_error_that_the_model_can_correct() {
    let deep = RawJson::of(&"{\"a\":".repeat(50_000)).unwrap();
    let (echo, starts) = probe("echo", EffectClass::Once, |_| async { Ok("ran".into()) });
    let faulty =
        |id: &str, name: &str, input: RawJson| Reply::empty().and_tool_with_id(id, name, input);
    let broken = RawJson::of("{\"thought\": ").unwrap();
    let wrong = faulty("t1", "echo", broken.clone())
        .and_tool_with_id("t2", "echo", RawJson::of(&[1]).unwrap())
        .and_tool_with_id("t3", "echo", deep)
        .and_tool_with_id("t4", "", RawJson::empty_object())
        .and_tool("echo", &json!({}));
    let model = Arc::new(ScriptedModel::replies([
        wrong,
        Reply::text("mended"),
        faulty("t5", "echo", broken).stop(crate::chat::ProviderStop::MaxTokens),
    ]));
    let host = builder(&model).tools([echo]).build().await.unwrap();
    let talk = conversation(&host);

    let outcome = talk.send("go").await.unwrap().outcome().await.unwrap();

    assert_eq!(outcome.text, "mended");
    assert_eq!(starts.load(Ordering::SeqCst), 1, "only the good call ran");
    let results = last_results(&model);
    for (result, why) in results.iter().zip([
        "the arguments are not a JSON object: EOF while parsing",
        "the arguments are not a JSON object: another kind of value (3 bytes)",
        "nested deeper than 64 levels",
        "the call names no tool",
        "ran",
    ]) {
        assert!(result.contains(why), "{result}");
    }
    assert_eq!(results.len(), 5);
    let request = model.last_request().unwrap();
    assert_eq!(request.messages.first_fault(), None);
    let calls = request.messages.get(1).unwrap().tool_uses();
    assert!(
        calls
            .iter()
            .all(|call| call.input.is_object() && !call.name.is_empty())
    );
    assert!(
        calls[0].input.as_str().contains(r#"{\"thought\": "#),
        "{calls:?}"
    );

    let cut = talk.send("again").await.unwrap().outcome().await.unwrap();
    assert_eq!(
        cut.stop_reason,
        StopReason::MaxTokens,
        "a cut call is dropped"
    );
}

#[tokio::test(start_paused = true)]
async fn a_model_that_repeats_a_faulty_call_meets_the_loop_guard() {
    let model = Arc::new(ScriptedModel::answering(|_, call| {
        let broken = RawJson::of("{\"thought\": ").unwrap();
        Reply::empty().and_tool_with_id(format!("t{call}"), "echo", broken)
    }));
    let (echo, _) = probe("echo", EffectClass::Once, |_| async { Ok("ran".into()) });
    let host = builder(&model).tools([echo]).build().await.unwrap();

    let outcome = conversation(&host)
        .send("go")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    assert_eq!(outcome.stop_reason, StopReason::LoopGuard);
}

/// Counts the checks of calls.
struct CountsChecks(Arc<AtomicUsize>);

impl crate::ports::Hook for CountsChecks {
    fn before_tool(
        &self,
        _: &crate::ids::Scope,
        _: &ToolSpec,
        _: &RawJson,
    ) -> crate::ports::Verdict {
        self.0.fetch_add(1, Ordering::SeqCst);
        crate::ports::Verdict::Allow
    }
}

#[tokio::test(start_paused = true)]
async fn the_work_for_a_batch_is_linear_in_its_calls() {
    const CALLS: usize = 400;
    let many = |name: &str| {
        (0..CALLS).fold(Reply::empty(), |reply, n| {
            reply.and_tool(name, &json!({ "n": n, "path": "a.txt" }))
        })
    };
    let alone = ToolSpec::new("alone", "A tool of the tests.", RawJson::empty_object())
        .read_only()
        .concurrency(crate::ports::Concurrency::Exclusive);
    let alone: Arc<dyn Tool> = Arc::new(Probe {
        spec: alone,
        starts: Arc::default(),
        run: Arc::new(|_| Box::pin(async { Ok("ran".into()) })),
    });
    for name in ["beside", "alone"] {
        let (beside, _) = probe("beside", EffectClass::Pure, |context| async move {
            // Calls that start together end one after the other.
            tokio::time::sleep(Duration::from_millis(u64::from(context.key.index))).await;
            Ok("ran".into())
        });
        let checks = Arc::new(AtomicUsize::new(0));
        let model = Arc::new(ScriptedModel::replies([many(name), Reply::text("done")]));
        let host = builder(&model)
            .tools([beside, alone.clone()])
            .hook(CountsChecks(checks.clone()))
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

        assert_eq!(outcome.text, "done");
        assert_eq!(last_results(&model), ["ran"; CALLS]);
        let checks = checks.load(Ordering::SeqCst);
        assert!((CALLS..CALLS * 80).contains(&checks), "{name}: {checks}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_with_too_many_calls_is_refused_and_none_runs() {
    let many = (0..=crate::limits::ANSWER_CALLS_MAX).fold(Reply::empty(), |reply, _| {
        reply.and_tool("echo", &json!({}))
    });
    let model = Arc::new(ScriptedModel::replies([many, Reply::text("done")]));
    let (echo, starts) = probe("echo", EffectClass::Once, |_| async { Ok("ran".into()) });
    let host = builder(&model).tools([echo]).build().await.unwrap();
    let talk = conversation(&host);

    let error = talk.send("go").await.unwrap().outcome().await.unwrap_err();

    assert_eq!(error.code(), "provider_protocol");
    assert!(
        error.to_string().contains("more than 1024 tool calls"),
        "{error}"
    );
    assert_eq!(starts.load(Ordering::SeqCst), 0);
    let next = talk.send("again").await.unwrap().outcome().await.unwrap();
    assert_eq!(next.text, "done");
}

#[tokio::test(start_paused = true)]
async fn a_panicking_tool_is_a_result_not_a_crash() {
    let (bad, _) = probe("bad", EffectClass::Once, |_| async { panic!("boom") });
    let (good, _) = probe("good", EffectClass::Pure, |_| async { Ok("fine".into()) });
    let calls = Reply::tool("bad", &json!({})).and_tool("good", &json!({}));
    let model = Arc::new(ScriptedModel::replies([calls, Reply::text("done")]));
    let host = builder(&model).tools([bad, good]).build().await.unwrap();
    let log = Log::start();

    let outcome = conversation(&host)
        .send("go")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    assert_eq!(outcome.stop_reason, StopReason::EndTurn);
    let results = last_results(&model);
    assert!(
        results[0].contains("Error Code: PANIC\nError Message: The tool panicked: boom."),
        "{}",
        results[0]
    );
    assert_eq!(results[1], "fine");
    let said = log.text();
    assert!(
        said.contains("the tool call failed: panicked: boom"),
        "{said}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_model_call_whose_task_panics_ends_its_round_with_an_error() {
    let model = Arc::new(ScriptedModel::replies([Reply::text("a"), Reply::text("b")]));
    let host = builder(&model).build().await.unwrap();
    let said = async || {
        let mut reply = conversation(&host).send("go").await.unwrap();
        let end = tokio::time::timeout(Duration::from_secs(60), reply.outcome()).await;
        end.expect("a round is not left open")
    };

    let log = Log::start();
    log.panics_at("figure=\"model_call\"");
    let failed = said().await;
    drop(log);

    let Err(crate::host::OutcomeError::Failed { end }) = failed else {
        panic!("{failed:?}");
    };
    assert_eq!(end.error.unwrap().code, "provider_protocol");
    assert_eq!(said().await.unwrap().text, "b");
}

#[tokio::test(start_paused = true)]
async fn a_timeout_really_cancels_and_only_repeatable_calls_start_again() {
    for (effect, expected) in [
        (EffectClass::Once, 1),
        (EffectClass::Idempotent, 4),
        (EffectClass::Pure, 4),
    ] {
        let dropped = Arc::new(AtomicUsize::new(0));
        let counter = dropped.clone();
        let (hangs, starts) = probe("hangs", effect, move |context| {
            struct OnDrop(Arc<AtomicUsize>);
            impl Drop for OnDrop {
                fn drop(&mut self) {
                    self.0.fetch_add(1, Ordering::SeqCst);
                }
            }
            let guard = OnDrop(counter.clone());
            // The future of an earlier attempt is dropped before the next attempt starts.
            assert_eq!(counter.load(Ordering::SeqCst), context.attempt as usize);
            async move {
                let _guard = guard;
                std::future::pending().await
            }
        });
        let model = Arc::new(ScriptedModel::replies([
            Reply::tool("hangs", &json!({})),
            Reply::text("done"),
        ]));
        let host = builder(&model).tools([hangs]).build().await.unwrap();
        let log = Log::start();

        conversation(&host)
            .send("go")
            .await
            .unwrap()
            .outcome()
            .await
            .unwrap();

        assert_eq!(starts.load(Ordering::SeqCst), expected, "{effect:?}");
        assert_eq!(dropped.load(Ordering::SeqCst), expected);
        assert!(last_results(&model)[0].contains("Error Type: timeout\nError Code: TIMEOUT"));
        let said = log.text();
        assert!(
            said.contains("Tool execution timed out after 10000ms"),
            "{said}"
        );
        let times = said.matches("Tool execution timed out after ").count();
        assert_eq!(times, expected, "{said}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_tool_returns_when_its_time_is_over_is_shown_below_the_error() {
    let (tool, _) = probe("look", EffectClass::Once, |context| async move {
        context.cancel.cancelled().await;
        Ok("the first half".into())
    });
    let model = Arc::new(ScriptedModel::replies([
        Reply::tool("look", &json!({})),
        Reply::text("done"),
    ]));
    let host = builder(&model).tools([tool]).build().await.unwrap();

    conversation(&host)
        .send("go")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    let result = &last_results(&model)[0];
    assert!(
        result.contains("Error Code: TIMEOUT")
            && result.ends_with("\nPartial result until then:\nthe first half"),
        "{result}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_once_call_starts_again_only_if_it_says_it_was_not_started() {
    let (tool, starts) = probe("tool", EffectClass::Once, |context| async move {
        let busy = ToolError::new(ToolErrorType::ResourceError, "busy");
        if context.attempt < 2 {
            Err(busy.not_started())
        } else {
            Ok("ok".into())
        }
    });
    let model = Arc::new(ScriptedModel::replies([
        Reply::tool("tool", &json!({})),
        Reply::text("done"),
    ]));
    let host = builder(&model).tools([tool]).build().await.unwrap();

    conversation(&host)
        .send("go")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    assert_eq!(
        (starts.load(Ordering::SeqCst), last_results(&model)),
        (3, vec!["ok".to_owned()])
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_its_retry_goes_on_without_its_executor() {
    let (tool, starts) = probe("tool", EffectClass::Pure, move |context| async move {
        match context.attempt {
            0 => Err(ToolError::new(ToolErrorType::ResourceError, "busy")),
            _ => Ok("ok".into()),
        }
    });
    let model = Arc::new(ScriptedModel::replies([
        Reply::tool("tool", &json!({})),
        Reply::text("done"),
    ]));
    let host = builder(&model).tools([tool]).build().await.unwrap();
    let mut round = conversation(&host).send("go").await.unwrap();
    until("an attempt failed", || starts.load(Ordering::SeqCst) == 1).await;
    tokio::time::sleep(Duration::from_millis(100)).await;

    let below = |cells: Vec<ractor::ActorCell>| -> Vec<ractor::ActorCell> {
        cells
            .iter()
            .flat_map(ractor::ActorCell::get_children)
            .collect()
    };
    let executors = below(below(host.0.supervisor.get_children()));
    let [executor] = &executors[..] else {
        panic!("one executor: {executors:?}");
    };
    let died = ractor::SupervisionEvent::ActorFailed(executor.clone(), "on purpose".into());
    executor.notify_supervisor(died);
    executor.kill();

    assert_eq!(round.outcome().await.unwrap().text, "done");
    assert_eq!(starts.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_retried_call_journals_how_often_why_and_how_long() {
    let long = "busy ".repeat(200);
    let (tool, _) = probe("tool", EffectClass::Pure, move |context| {
        let busy = ToolError::new(
            ToolErrorType::ResourceError,
            format!("{}: {long}", context.attempt),
        );
        async move {
            tokio::time::sleep(Duration::from_millis(40)).await;
            if context.attempt < 2 {
                Err(busy)
            } else {
                Ok("ok".into())
            }
        }
    });
    let model = Arc::new(ScriptedModel::replies([
        Reply::tool("tool", &json!({})),
        Reply::text("done"),
    ]));
    let sessions = store();
    let host = builder(&model)
        .shared_sessions(sessions.clone())
        .tools([tool])
        .build()
        .await
        .unwrap();

    let log = Log::start();

    conversation(&host)
        .send("go")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    let scope = crate::ids::Scope::new("acme".try_into().unwrap(), "c-1".try_into().unwrap());
    let entries = sessions
        .entries(&scope, crate::ids::Seq(0), 100)
        .await
        .unwrap();
    let entries = entries
        .iter()
        .map(|entry| serde_json::from_slice::<serde_json::Value>(&entry.bytes).unwrap());
    let outcome = entries
        .into_iter()
        .find_map(|entry| find(&entry, "outcome").cloned())
        .expect("a result in the journal");
    assert_eq!(
        (&outcome["retry_count"], &outcome["duration_ms"]),
        (&json!(2), &json!(3 * 40)),
        "the pauses before a retry are no execution"
    );
    let last_error = outcome["last_error"].as_str().unwrap();
    assert!(
        last_error.starts_with("1: busy") && last_error.len() == 500,
        "the last failure, bounded: {last_error}"
    );
    for line in [
        r#"error_type="RETRY" error_message="Retrying after 1 failures" "#,
        r#"error_type="RETRY" error_message="Retrying after 2 failures" "#,
        "Retry 1 after: 0: busy",
        "Retry 2 after: 1: busy",
    ] {
        assert!(log.text().contains(line), "{line}: {}", log.text());
    }
    let metrics = conversation(&host).state().await.unwrap().metrics;
    assert_eq!((metrics.retried_calls, metrics.tool_calls), (1, 1));
    assert_eq!(
        last_results(&model),
        ["ok"],
        "the model reads nothing of it"
    );
}

#[tokio::test(start_paused = true)]
async fn each_result_is_the_block_of_its_call_in_one_user_message() {
    let (tool, _) = probe("tool", EffectClass::Pure, |_| async { Ok("42".into()) });
    let calls = Reply::tool("tool", &json!({})).and_tool("unknown", &json!({}));
    let model = Arc::new(ScriptedModel::replies([calls, Reply::text("done")]));
    let host = builder(&model).tools([tool]).build().await.unwrap();

    let mut reply = conversation(&host).send("go").await.unwrap();
    reply.outcome().await.unwrap();

    let requests = model.requests();
    let messages: Vec<_> = requests[1].messages.iter().collect();
    let [.., calls, results] = messages.as_slice() else {
        panic!("{messages:?}")
    };
    assert_eq!(results.role(), crate::chat::Role::User);
    assert_eq!(results.tool_result_ids(), calls.tool_use_ids());
    let wire: serde_json::Value = serde_json::from_slice(results.wire()).unwrap();
    let [good, failed] = wire["content"].as_array().unwrap().as_slice() else {
        panic!("{wire}")
    };
    let id = &*calls.tool_use_ids()[0];
    assert_eq!(
        *good,
        json!({ "type": "tool_result", "tool_use_id": id, "content": "42" })
    );
    assert_eq!(
        (&failed["type"], &failed["is_error"]),
        (&json!("tool_result"), &json!(true))
    );
}

#[tokio::test(start_paused = true)]
async fn a_result_from_the_cache_has_the_id_of_the_call_that_it_answers() {
    let (tool, _) = probe("tool", EffectClass::Pure, |_| async { Ok("42".into()) });
    let call = || Reply::tool("tool", &json!({"q": 1}));
    let model = Arc::new(ScriptedModel::replies([
        call(),
        call(),
        Reply::text("done"),
    ]));
    let host = builder(&model).tools([cached(tool)]).build().await.unwrap();

    let mut reply = conversation(&host).send("go").await.unwrap();
    reply.outcome().await.unwrap();

    assert_eq!(host.figures().await.total.tool_cache_hits, 1);
    let requests = model.requests();
    let messages: Vec<_> = requests[2].messages.iter().collect();
    let [.., first, first_result, second, second_result] = messages.as_slice() else {
        panic!("{messages:?}")
    };
    assert_eq!(first_result.tool_result_ids(), first.tool_use_ids());
    assert_eq!(second_result.tool_result_ids(), second.tool_use_ids());
    assert_ne!(first.tool_use_ids(), second.tool_use_ids());
    assert!(second_result.wire_str().contains("42"));
}

#[tokio::test(start_paused = true)]
async fn what_is_injected_during_a_batch_follows_its_results_in_order() {
    let (slow, _) = probe("slow", EffectClass::Pure, |_| async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok("ran".into())
    });
    let calls = Reply::tool("slow", &json!({}));
    let model = Arc::new(ScriptedModel::replies([calls, Reply::text("done")]));
    let host = builder(&model).tools([slow]).build().await.unwrap();
    let conversation = conversation(&host);

    let mut reply = conversation.send("go").await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    for text in ["first", "second", "third"] {
        conversation.inject(None, text).await.unwrap();
    }
    reply.outcome().await.unwrap();

    let request = model.last_request().unwrap();
    let last = request.messages.last().unwrap();
    let texts: Vec<String> = last
        .blocks()
        .iter()
        .filter_map(|block| block.as_text().map(str::to_owned))
        .collect();
    assert_eq!(
        (texts.as_slice(), last.tool_result_ids().len()),
        (
            ["first", "second", "third"].map(str::to_owned).as_slice(),
            1
        )
    );
}

/// The value of a key, at any depth.
fn find<'v>(value: &'v serde_json::Value, key: &str) -> Option<&'v serde_json::Value> {
    let object = value.as_object()?;
    object
        .get(key)
        .or_else(|| object.values().find_map(|inner| find(inner, key)))
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_reaches_tools_and_each_call_gets_one_result() {
    let (listens, _) = probe("listens", EffectClass::Once, |context| async move {
        context.cancel.cancelled().await;
        Ok("stopped in time".into())
    });
    let (deaf, _) = probe("deaf", EffectClass::Once, |_| std::future::pending());
    let calls = Reply::tool("listens", &json!({})).and_tool("deaf", &json!({}));
    let model = Arc::new(ScriptedModel::replies([calls, Reply::text("next")]));
    let host = builder(&model)
        .tools([listens, deaf])
        .build()
        .await
        .unwrap();
    let conversation = conversation(&host);
    let mut reply = conversation.send("go").await.unwrap();
    while !matches!(reply.next().await.unwrap().kind, EventKind::ToolCall { .. }) {}

    conversation.interrupt().await.unwrap();
    let outcome = reply.outcome().await.unwrap();
    conversation
        .send("and now?")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    assert_eq!(outcome.stop_reason, StopReason::Interrupted);
    let messages = model.last_request().unwrap().messages;
    assert_eq!(messages.first_fault(), None);
    let results = messages.iter().nth(2).unwrap().wire_str().to_owned();
    assert!(
        results.contains("stopped in time") && results.contains("cancelled, effect unknown"),
        "{results}"
    );
}

#[tokio::test(start_paused = true)]
async fn the_twenty_fifth_batch_runs_and_no_further_call_is_made() {
    let (tool, starts) = probe("tool", EffectClass::Pure, |_| async { Ok("again".into()) });
    let model = Arc::new(ScriptedModel::answering(|_, call| {
        Reply::text(format!("step {call}")).and_tool("tool", &json!({}))
    }));
    let limits = crate::limits::Limits {
        identical_calls_max: u32::MAX,
        ..Default::default()
    };
    let host = builder(&model)
        .tools([tool])
        .limits(limits)
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

    assert_eq!(outcome.stop_reason, StopReason::IterationLimit);
    assert_eq!(
        (starts.load(Ordering::SeqCst), model.requests().len()),
        (25, 25)
    );
    let steps: Vec<String> = (0..25).map(|step| format!("step {step}")).collect();
    assert_eq!(outcome.full_text, steps.join("\n"), "the text so far");
}

fn asking(name: &str) -> (Arc<dyn Tool>, Arc<AtomicUsize>) {
    let starts = Arc::new(AtomicUsize::new(0));
    let spec = ToolSpec::new(name, "Changes something.", RawJson::empty_object())
        .approval(Approval::ByMode);
    let tool = Probe {
        spec,
        starts: starts.clone(),
        run: Arc::new(|_| Box::pin(async { Ok("changed".into()) })),
    };
    (Arc::new(tool), starts)
}

#[tokio::test(start_paused = true)]
async fn tools_that_change_something_wait_for_a_person_or_are_refused() {
    for (mode, allow, expected) in [
        (ApprovalMode::Ask, Some(true), 1),
        (ApprovalMode::Ask, Some(false), 0),
        (ApprovalMode::Deny, None, 0),
        (ApprovalMode::Auto, None, 1),
    ] {
        let (tool, starts) = asking("write");
        let model = Arc::new(ScriptedModel::replies([
            Reply::tool("write", &json!({ "a": 1 })),
            Reply::text("done"),
        ]));
        let host = builder(&model)
            .tools([tool])
            .approval(mode)
            .build()
            .await
            .unwrap();
        let conversation = conversation(&host);
        let mut reply = conversation.send("go").await.unwrap();
        if let Some(allow) = allow {
            let asked = loop {
                if let EventKind::ApprovalRequired {
                    tool_call_id,
                    input,
                    ..
                } = &reply.next().await.unwrap().kind
                {
                    assert_eq!(input.as_str(), r#"{"a":1}"#);
                    break tool_call_id.clone();
                }
            };
            assert_eq!(starts.load(Ordering::SeqCst), 0);
            conversation.approve(asked, allow).await.unwrap();
        }

        let outcome = reply.outcome().await.unwrap();

        assert_eq!(
            (outcome.text.as_str(), starts.load(Ordering::SeqCst)),
            ("done", expected),
            "{mode:?} {allow:?}"
        );
        assert_eq!(
            last_results(&model)[0].contains("APPROVAL_DENIED"),
            expected == 0
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_parked_round_sleeps_and_its_approval_wakes_it() {
    let (tool, starts) = asking("write");
    let model = Arc::new(ScriptedModel::replies([
        Reply::tool("write", &json!({})),
        Reply::text("done"),
    ]));
    let host = builder(&model)
        .tools([tool])
        .approval(ApprovalMode::Ask)
        .build()
        .await
        .unwrap();
    let conversation = conversation(&host);
    let mut reply = conversation.send("go").await.unwrap();
    let asked = loop {
        if let EventKind::ApprovalRequired { tool_call_id, .. } = &reply.next().await.unwrap().kind
        {
            break tool_call_id.clone();
        }
    };

    host.hibernate_idle();
    until("it sleeps", || host.awake() == 0).await;
    conversation.approve(asked, true).await.unwrap();
    let outcome = reply.outcome().await.unwrap();

    assert_eq!(
        (outcome.text.as_str(), starts.load(Ordering::SeqCst)),
        ("done", 1)
    );
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_approval_counts_as_denied_after_a_day() {
    let (tool, starts) = asking("write");
    let model = Arc::new(ScriptedModel::replies([
        Reply::tool("write", &json!({})),
        Reply::text("done"),
    ]));
    let clock = Arc::new(ManualClock::at(Timestamp(1_000)));
    struct Shared(Arc<ManualClock>);
    impl crate::ports::Clock for Shared {
        fn now(&self) -> Timestamp {
            crate::ports::Clock::now(&*self.0)
        }
    }
    let host = HostBuilder::new(Shared(clock.clone()), SeededEntropy::new(1), |host| host)
        .shared_provider(model.clone())
        .tools([tool])
        .approval(ApprovalMode::Ask)
        .build()
        .await
        .unwrap();
    let mut reply = conversation(&host).send("go").await.unwrap();
    while !matches!(
        reply.next().await.unwrap().kind,
        EventKind::ApprovalRequired { .. }
    ) {}

    clock.advance_ms(crate::limits::APPROVAL_MS);
    let outcome = reply.outcome().await.unwrap();

    assert_eq!(
        (outcome.text.as_str(), starts.load(Ordering::SeqCst)),
        ("done", 0)
    );
    assert!(last_results(&model)[0].contains("nobody approved this call in time"));
}

#[tokio::test(start_paused = true)]
async fn at_most_twelve_actor_wake_ups_for_a_turn_with_one_tool() {
    let (tool, _) = probe("tool", EffectClass::Once, |_| async { Ok("ok".into()) });
    let model = Arc::new(ScriptedModel::answering(|_, call| match call % 2 {
        0 => Reply::text("Let me see.")
            .chunks(8)
            .and_tool("tool", &json!({})),
        _ => Reply::text("There it is.")
            .chunks(64)
            .chunk_delay(Duration::from_millis(10)),
    }));
    let host = builder(&model).tools([tool]).build().await.unwrap();
    let conversation = conversation(&host);

    for turn in ["first, which loads", "second"] {
        let before = host.figures().await.total.wake_ups;
        conversation
            .send(turn)
            .await
            .unwrap()
            .outcome()
            .await
            .unwrap();
        let wake_ups = host.figures().await.total.wake_ups - before;

        assert!(wake_ups <= 12, "{turn}: {wake_ups} wake-ups");
    }
}
