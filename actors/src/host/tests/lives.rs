//! Activations: crash and reload, resumption by the next host, sleep and wake-up, draining, and
//! stale actors that may no longer write.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use serde_json::json;

use super::*;
use crate::{
    chat::RawJson,
    conversation::round::rules::{ApprovalMode, Recovery},
    ids::Scope,
    ports::{Approval, Hook, Verdict},
    stream::StopReason,
    testing::{Fault, FaultPlan, FaultySessions, Reply, ScriptedModel},
};

/// A hook that panics inside the conversation's decision, once.
struct PanicsOnce(AtomicBool);

impl Hook for PanicsOnce {
    fn before_tool(&self, _: &Scope, _: &ToolSpec, _: &RawJson) -> Verdict {
        assert!(self.0.swap(true, Ordering::SeqCst), "the hook panics once");
        Verdict::Allow
    }
}

#[tokio::test(start_paused = true)]
async fn a_crashed_conversation_reloads_from_its_journal() {
    let (tool, starts) = probe("tool", EffectClass::Once, |_| async { Ok("ok".into()) });
    let model = Arc::new(ScriptedModel::answering(|request, _| {
        match request.messages.len() {
            1 => Reply::tool("tool", &json!({})),
            _ => Reply::text("done"),
        }
    }));
    let host = builder(&model)
        .tools([tool])
        .hook(PanicsOnce(AtomicBool::new(false)))
        .build()
        .await
        .unwrap();
    let other = host.tenant("acme").conversation("other");
    let began = tokio::time::Instant::now();

    let mut reply = conversation(&host).send("go").await.unwrap();
    let undisturbed = other.send("go").await.unwrap().outcome().await.unwrap();
    let outcome = reply.outcome().await.unwrap();

    assert_eq!(
        (outcome.text.as_str(), undisturbed.text.as_str()),
        ("done", "done")
    );
    assert!(
        began.elapsed() < Duration::from_secs(1),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(
        (
            starts.load(Ordering::SeqCst),
            host.figures().await.total.crashes
        ),
        (2, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_conversation_that_crashes_again_and_again_fails_its_callers() {
    struct AlwaysPanics;
    impl Hook for AlwaysPanics {
        fn before_tool(&self, _: &Scope, _: &ToolSpec, _: &RawJson) -> Verdict {
            panic!("the hook always panics")
        }
    }
    let (tool, _) = probe("tool", EffectClass::Once, |_| async { Ok("ok".into()) });
    let model = Arc::new(ScriptedModel::always(Reply::tool("tool", &json!({}))));
    let host = builder(&model)
        .tools([tool])
        .hook(AlwaysPanics)
        .build()
        .await
        .unwrap();
    let conversation = conversation(&host);

    let error = conversation
        .send("go")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap_err();
    let refused = conversation.send("more").await.unwrap_err();

    assert_eq!(
        (error.code(), refused.code()),
        ("conversation_failed", "conversation_failed")
    );
    assert_eq!(host.figures().await.total.crashes, 4);
}

#[tokio::test(start_paused = true)]
async fn a_round_that_takes_the_process_down_ends_after_three_processes() {
    let store = store();
    let (tool, starts) = probe("deadly", EffectClass::Idempotent, |_| {
        std::future::pending()
    });
    let model = Arc::new(ScriptedModel::answering(|request, _| {
        match request.messages.len() {
            1 => Reply::tool("deadly", &json!({})),
            _ => Reply::text("well"),
        }
    }));
    let next = async || {
        builder(&model)
            .shared_sessions(store.clone())
            .tools([tool.clone()])
            .build()
            .await
            .unwrap()
    };
    let first = next().await;
    let talk = conversation(&first);
    drop(talk.send("go").await.unwrap());
    until("the tool runs", || starts.load(Ordering::SeqCst) == 1).await;
    drop((talk, first)); // As when the tool takes the process down.
    for life in 2..=3 {
        let host = next().await;
        assert_eq!(host.resume_interrupted().await, Ok(1));
        until("it runs again", || starts.load(Ordering::SeqCst) == life).await;
    }

    let last = next().await;
    assert_eq!(last.resume_interrupted().await, Ok(1));
    let talk = conversation(&last);
    until("it is asked", || last.awake() == 1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;

    assert_eq!(
        starts.load(Ordering::SeqCst),
        3,
        "no fourth process runs it"
    );
    let rounds = talk.rounds().await.unwrap();
    assert!(rounds[0].is_over(), "{rounds:?}");
    let again = talk
        .send("and now?")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();
    assert_eq!(again.text, "well");
    let open = store
        .list_open(crate::stream::Open::Running, None, None, 0)
        .await;
    assert_eq!(open.unwrap(), []);
}

/// A host on a store where ten processes have ended during the first model call of its conversation,
/// which has got these prompts.
async fn after_ten_processes(
    model: &Arc<ScriptedModel>,
    store: &Arc<dyn SessionBackend>,
    prompts: &[&str],
) -> Host {
    let next = async || {
        let host = builder(model).shared_sessions(store.clone());
        host.build().await.unwrap()
    };
    let first = next().await;
    for prompt in prompts {
        drop(conversation(&first).send(*prompt).await.unwrap());
        model.until(|counts| counts.started == 1).await;
    }
    drop(first); // As when the answer takes the process down.
    for life in 2..=10 {
        let host = next().await;
        assert_eq!(host.resume_interrupted().await, Ok(1));
        model.until(|counts| counts.started == life).await;
    }
    next().await
}

#[tokio::test(start_paused = true)]
async fn a_model_call_that_takes_the_process_down_ends_after_ten_processes() {
    let store = store();
    let model = Arc::new(ScriptedModel::answering(|request, _| {
        match request.messages.len() {
            1 => Reply::stall(),
            _ => Reply::text("well"),
        }
    }));
    let last = after_ten_processes(&model, &store, &["go"]).await;
    assert_eq!(last.resume_interrupted().await, Ok(1));
    until("it is asked", || last.awake() == 1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;

    assert!(conversation(&last).rounds().await.unwrap()[0].is_over());
    let mut again = conversation(&last).send("and now?").await.unwrap();
    assert_eq!(again.outcome().await.unwrap().text, "well");
    model
        .until(|counts| counts.started == 11) // No eleventh process made the call.
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_prompt_that_waits_behind_a_round_that_is_given_up_is_answered() {
    let store = store();
    let model = Arc::new(ScriptedModel::answering(|request, _| {
        match format!("{request:?}").contains("the second") {
            false => Reply::stall(),
            true => Reply::text("well"),
        }
    }));
    let last = after_ten_processes(&model, &store, &["go", "the second"]).await;
    assert_eq!(last.resume_interrupted().await, Ok(1));
    let talk = conversation(&last);
    until("both are over", || last.awake() == 1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;

    let rounds = talk.rounds().await.unwrap();
    let answers: Vec<_> = rounds.iter().map(|round| &round.final_answer).collect();
    assert_eq!(answers, [&None, &Some("well".to_owned())], "{rounds:?}");
}

#[tokio::test(start_paused = true)]
async fn crashes_during_different_model_calls_of_a_round_are_not_added() {
    let store = store();
    let (tool, _) = probe("next", EffectClass::Idempotent, |_| async {
        Ok("ok".into())
    });
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let model = Arc::new(ScriptedModel::answering(move |_, _| {
        match counted.fetch_add(1, Ordering::SeqCst) {
            call if call % 5 < 4 => Reply::stall(),
            _ if counted.load(Ordering::SeqCst) > 20 => Reply::text("done"),
            _ => Reply::tool("next", &json!({})),
        }
    }));
    let next = async || {
        let host = builder(&model).shared_sessions(store.clone());
        host.tools([tool.clone()]).build().await.unwrap()
    };
    let first = next().await;
    drop(conversation(&first).send("go").await.unwrap());
    until("it is called", || calls.load(Ordering::SeqCst) == 1).await;
    drop(first);
    let mut over = false;
    for _ in 0..30 {
        let host = next().await;
        host.resume_interrupted().await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let state = conversation(&host).state().await.unwrap();
        over = state.round.is_none();
        if over {
            break;
        }
    }

    assert!(over && calls.load(Ordering::SeqCst) > 20);
}

#[tokio::test(start_paused = true)]
async fn stops_in_order_do_not_count_as_crashes_of_a_round() {
    let store = store();
    let (tool, starts) = probe("slow", EffectClass::Idempotent, |_| std::future::pending());
    let model = Arc::new(ScriptedModel::always(Reply::tool("slow", &json!({}))));
    let next = async || {
        builder(&model)
            .shared_sessions(store.clone())
            .tools([tool.clone()])
            .after_orderly_stop(true)
            .build()
            .await
            .unwrap()
    };
    let first = next().await;
    drop(conversation(&first).send("go").await.unwrap());
    until("the tool runs", || starts.load(Ordering::SeqCst) == 1).await;
    drop(first);

    for life in 2..=6 {
        let host = next().await;
        assert_eq!(host.resume_interrupted().await, Ok(1));
        until("it runs again", || starts.load(Ordering::SeqCst) == life).await;
    }
}

#[tokio::test(start_paused = true)]
async fn outages_of_the_store_do_not_count_as_crashes_of_a_round() {
    let sessions = Arc::new(FaultySessions::new(
        Arc::new(MemorySessions::new()),
        FaultPlan::new(),
    ));
    let model = Arc::new(ScriptedModel::always(
        Reply::text("done").after(Duration::from_secs(30)),
    ));
    let host = builder(&model)
        .shared_sessions(sessions.clone())
        .build()
        .await
        .unwrap();
    let talk = conversation(&host);
    drop(talk.send("go").await.unwrap());
    for _ in 0..5 {
        // The answer meets an outage that is longer than the pause.
        tokio::time::sleep(Duration::from_secs(29)).await;
        sessions.set_away(true);
        tokio::time::sleep(Duration::from_secs(65)).await;
        sessions.set_away(false);
    }
    tokio::time::sleep(Duration::from_secs(60)).await;

    assert_eq!(host.figures().await.total.crashes, 0);
    let last = talk.messages().await.unwrap().last().unwrap().text();
    assert_eq!(last, "done");
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_round_is_taken_up_again() {
    let store = store();
    let silent = Arc::new(ScriptedModel::always(Reply::stall()));
    let first = builder(&silent)
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    first
        .tenant("acme")
        .conversation("c-1")
        .send("go")
        .await
        .unwrap();
    silent.until(|counts| counts.started == 1).await;
    drop(first);
    silent.until(|counts| counts.dropped == 1).await;

    let speaks = Arc::new(ScriptedModel::replies([Reply::text("here I am")]));
    let second = builder(&speaks)
        .shared_sessions(store)
        .build()
        .await
        .unwrap();
    assert_eq!(second.resume_interrupted().await, Ok(1));
    let mut reply = conversation(&second).resume().await.unwrap().unwrap();
    let outcome = reply.outcome().await.unwrap();

    assert_eq!(outcome.text, "here I am");
    let texts: Vec<String> = conversation(&second)
        .messages()
        .await
        .unwrap()
        .iter()
        .map(|m| m.text())
        .collect();
    assert_eq!(texts, ["go", "here I am"]);
}

#[tokio::test(start_paused = true)]
async fn a_once_call_that_was_open_is_in_doubt_and_never_started_twice() {
    for recovery in [Recovery::Resume, Recovery::Close] {
        let store = store();
        let (hangs, starts) = probe("pay", EffectClass::Once, |_| std::future::pending());
        let model = Arc::new(ScriptedModel::answering(|request, _| {
            match request.messages.len() {
                1 => Reply::tool("pay", &json!({})),
                _ => Reply::text("I will check."),
            }
        }));
        let first = builder(&model)
            .shared_sessions(store.clone())
            .tools([hangs.clone()])
            .build()
            .await
            .unwrap();
        first
            .tenant("acme")
            .conversation("c-1")
            .send("pay")
            .await
            .unwrap();
        until("the call runs", || starts.load(Ordering::SeqCst) == 1).await;
        drop(first);

        let second = builder(&model)
            .shared_sessions(store)
            .tools([hangs])
            .recovery(recovery)
            .build()
            .await
            .unwrap();
        let conversation = conversation(&second);
        let reply = conversation.resume().await.unwrap();
        let (stop, text) = match reply {
            Some(mut reply) => {
                let outcome = reply.outcome().await.unwrap();
                (outcome.stop_reason, outcome.text)
            }
            None => (StopReason::Interrupted, String::new()),
        };

        let expected = match recovery {
            Recovery::Resume => (StopReason::EndTurn, "I will check."),
            Recovery::Close => (StopReason::Interrupted, ""),
        };
        assert_eq!((stop, text.as_str()), expected);
        assert_eq!(starts.load(Ordering::SeqCst), 1);
        until("it is stored", || second.awake() == 1).await;
        let messages = conversation.messages().await.unwrap();
        let results = messages[2].wire_str();
        assert!(
            results.contains("[outcome unknown] pay was started at 2026-11-21T"),
            "{results}"
        );
    }
}

/// A tool that does something else in another folder.
struct InFolder {
    spec: ToolSpec,
    folder: &'static str,
    starts: Arc<AtomicUsize>,
}

impl Tool for InFolder {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn approval_pattern(&self, arguments: &RawJson) -> String {
        format!("{} in {}", arguments.as_str(), self.folder)
    }

    fn call(&self, _: RawJson, _: ToolContext) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        self.starts.fetch_add(1, Ordering::SeqCst);
        Box::pin(async { Ok("built".into()) })
    }
}

#[tokio::test(start_paused = true)]
async fn an_approved_call_that_did_not_start_is_asked_again_where_it_would_do_something_else() {
    for (folder, asks_again) in [("here", false), ("elsewhere", true)] {
        let store = store();
        let (hangs, _) = probe("hang", EffectClass::Once, |_| std::future::pending());
        let starts = Arc::new(AtomicUsize::new(0));
        let build = |folder| -> Arc<dyn Tool> {
            let spec = ToolSpec::new("build", "Builds.", RawJson::empty_object());
            Arc::new(InFolder {
                spec: spec
                    .approval(Approval::ByMode)
                    .concurrency(crate::ports::Concurrency::Exclusive),
                folder,
                starts: starts.clone(),
            })
        };
        let model = Arc::new(ScriptedModel::answering(|request, _| {
            match request.messages.len() {
                1 => Reply::tool("hang", &json!({})).and_tool("build", &json!({})),
                _ => Reply::text("done"),
            }
        }));
        let host = |tools: [Arc<dyn Tool>; 2]| {
            builder(&model)
                .shared_sessions(store.clone())
                .tools(tools)
                .approval(ApprovalMode::Ask)
                .build()
        };
        let first = host([hangs.clone(), build("here")]).await.unwrap();
        let mut reply = conversation(&first).send("go").await.unwrap();
        let asked = async |reply: &mut crate::host::Reply| loop {
            let event = reply.next().await?;
            if let EventKind::ApprovalRequired { tool_call_id, .. } = &event.kind {
                return Some(tool_call_id.clone());
            }
        };
        let call = asked(&mut reply).await.unwrap();
        conversation(&first).approve(call, true).await.unwrap();
        drop((reply, first));

        let second = host([hangs, build(folder)]).await.unwrap();
        let mut reply = conversation(&second).resume().await.unwrap().unwrap();
        if asks_again {
            let call = asked(&mut reply).await.unwrap();
            assert_eq!(
                starts.load(Ordering::SeqCst),
                0,
                "no approval was given here"
            );
            conversation(&second).approve(call, true).await.unwrap();
        }
        let outcome = reply.outcome().await.unwrap();

        assert_eq!(outcome.text, "done");
        assert_eq!(starts.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_conversation_is_absent_and_wakes_with_its_history() {
    let model = Arc::new(ScriptedModel::answering(|request, _| {
        Reply::text(request.messages.len().to_string())
    }));
    let host = host(&model).await;
    let conversation = conversation(&host);
    conversation
        .send("one")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();
    assert_eq!(host.awake(), 1);

    host.hibernate_idle();
    until("it sleeps", || host.awake() == 0).await;
    let read = conversation.messages().await.unwrap().len();
    let asleep = host.awake();
    let outcome = conversation
        .send("two")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    assert_eq!((read, asleep, outcome.text.as_str()), (2, 0, "3"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_on_conversations_that_fall_asleep_all_the_time_loses_nothing() {
    const CONVERSATIONS: usize = 20;
    const PROMPTS: usize = 30;
    let model = Arc::new(ScriptedModel::always(Reply::text("ok")));
    let host = host(&model).await;
    let sweeper = tokio::spawn({
        let host = host.clone();
        async move {
            loop {
                host.hibernate_idle();
                tokio::task::yield_now().await;
            }
        }
    });

    let talks = (0..CONVERSATIONS).map(|index| {
        let host = host.clone();
        tokio::spawn(async move {
            let conversation = host.tenant("acme").conversation(format!("c-{index}"));
            for prompt in 0..PROMPTS {
                let outcome = conversation
                    .send(prompt.to_string())
                    .await
                    .unwrap()
                    .outcome()
                    .await
                    .unwrap();
                assert_eq!(outcome.text, "ok");
            }
            conversation.messages().await.unwrap().len()
        })
    });
    let lengths = futures_util::future::join_all(talks).await;
    sweeper.abort();

    assert!(
        lengths
            .into_iter()
            .all(|length| length.unwrap() == PROMPTS * 2)
    );
    assert_eq!(host.figures().await.total.crashes, 0);
}

#[tokio::test(start_paused = true)]
async fn a_stale_owner_cannot_write() {
    let store = store();
    let model = Arc::new(ScriptedModel::always(Reply::text("ok")));
    let one = builder(&model)
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    let two = builder(&model)
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    conversation(&one)
        .send("from one")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();
    conversation(&two)
        .send("from two")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    let stale = conversation(&one).send("from one again").await;

    assert_eq!(stale.unwrap_err().code(), "session_in_use");
    let outcome = conversation(&one)
        .send("with a new life")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();
    assert_eq!(outcome.text, "ok");
    let texts: Vec<String> = conversation(&two)
        .messages()
        .await
        .unwrap()
        .iter()
        .map(|m| m.text())
        .collect();
    assert_eq!(
        texts,
        ["from one", "ok", "from two", "ok", "with a new life", "ok"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_drain_loses_no_turn() {
    let store = store();
    let model = Arc::new(ScriptedModel::answering(|request, _| {
        match request.messages.last().unwrap().text().as_str() {
            "slow" => Reply::text("slow answer").after(Duration::from_secs(3)),
            "never" => Reply::stall(),
            _ => Reply::text("quick answer"),
        }
    }));
    let host = builder(&model)
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    let talk = |id: &str| host.tenant("acme").conversation(id);
    let mut slow = talk("a").send("slow").await.unwrap();
    let _queued = talk("a").send("later").await.unwrap();
    let mut never = talk("b").send("never").await.unwrap();

    let shutdown = host.shutdown(Duration::from_secs(5));
    let (slow, never, awake) = tokio::join!(slow.outcome(), never.outcome(), shutdown);

    assert_eq!(awake, 2);
    assert_eq!(slow.unwrap().text, "slow answer");
    assert_eq!(never.unwrap().stop_reason, StopReason::Interrupted);
    assert_eq!(
        talk("a").send("too late").await.unwrap_err().code(),
        "draining"
    );
}

#[tokio::test(start_paused = true)]
async fn a_dead_supervisor_costs_no_turn() {
    let model = Arc::new(ScriptedModel::answering(|_, call| {
        if call < 8 {
            Reply::stall()
        } else {
            Reply::text("again")
        }
    }));
    let host = host(&model).await;
    let mut replies = Vec::new();
    for index in 0..8 {
        replies.push(
            host.tenant("acme")
                .conversation(format!("c-{index}"))
                .send("go")
                .await
                .unwrap(),
        );
    }
    model.until(|counts| counts.started == 8).await;
    let began = tokio::time::Instant::now();

    // Kill the children of the host's supervisor: all supervisors of conversations and the metrics
    // collector.
    host.0
        .supervisor
        .get_children()
        .iter()
        .for_each(ractor::ActorCell::kill);

    for mut reply in replies {
        assert_eq!(reply.outcome().await.unwrap().text, "again");
    }
    assert!(
        began.elapsed() <= Duration::from_secs(1),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(host.figures().await.total.rounds, 8);
}

/// A resource that counts how often it was closed. Closing never ends if it `hangs`.
struct Server {
    closed: Arc<AtomicUsize>,
    hangs: bool,
}

impl crate::ports::Resource for Server {
    fn close(&self) -> BoxFuture<'_, ()> {
        self.closed.fetch_add(1, Ordering::SeqCst);
        let hangs = self.hangs;
        Box::pin(async move {
            if hangs {
                std::future::pending().await
            }
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_closes_what_belongs_to_the_host_and_does_not_wait_for_ever() {
    let closed = Arc::new(AtomicUsize::new(0));
    let server = |hangs| {
        Arc::new(Server {
            closed: closed.clone(),
            hangs,
        })
    };
    let model = Arc::new(ScriptedModel::always(Reply::text("done")));
    let host = builder(&model)
        .closes(server(true))
        .closes(server(false))
        .build()
        .await
        .unwrap();
    conversation(&host)
        .send("go")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();
    assert_eq!(closed.load(Ordering::SeqCst), 0);
    let began = tokio::time::Instant::now();

    host.shutdown(Duration::from_secs(10)).await;

    assert_eq!(closed.load(Ordering::SeqCst), 2);
    assert!(
        began.elapsed() < Duration::from_secs(16),
        "{:?}",
        began.elapsed()
    );
}

/// Panics in the decision of the nth checked tool call.
struct PanicsAt(usize, AtomicUsize);

impl Hook for PanicsAt {
    fn before_tool(&self, _: &Scope, _: &ToolSpec, _: &RawJson) -> Verdict {
        let nth = self.1.fetch_add(1, Ordering::SeqCst) + 1;
        assert!(nth != self.0, "the hook panics at call {nth}");
        Verdict::Allow
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_before_the_store_answered_orphans_no_round() {
    // The first append holds the prompt, the third one the result of the first tool call.
    for (slow, panics_at) in [(1, 1), (3, 2)] {
        let plan = FaultPlan::new().append(slow, Fault::Slow(Duration::from_secs(1)));
        let sessions = Arc::new(FaultySessions::new(Arc::new(MemorySessions::new()), plan));
        let (tool, _) = probe("tool", EffectClass::Pure, |_| async { Ok("ok".into()) });
        let model = Arc::new(ScriptedModel::answering(|request, _| {
            match request.messages.len() {
                1 => Reply::tool("tool", &json!({"n": 1})),
                3 => Reply::tool("tool", &json!({"n": 2})),
                _ => Reply::text("done"),
            }
        }));
        let host = builder(&model)
            .shared_sessions(sessions.clone())
            .tools([tool])
            .hook(PanicsAt(panics_at, AtomicUsize::new(0)))
            .build()
            .await
            .unwrap();

        let talk = conversation(&host);
        let sent = talk.send("go").await.map(drop);
        assert_eq!(
            sent.is_err(),
            slow == 1,
            "a crash drops the acknowledgement of an append under way"
        );
        tokio::time::sleep(Duration::from_secs(3)).await;

        let last = talk.messages().await.unwrap().last().unwrap().text();
        assert_eq!(last, "done", "append {slow}");
        let report = host.figures().await.total;
        assert_eq!(report.crashes, 1, "append {slow}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_deadline_of_a_prompt_outlives_its_host() {
    let store = store();
    let silent = Arc::new(ScriptedModel::always(Reply::stall()));
    let first = builder(&silent)
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    let talk = conversation(&first);
    let minute = Duration::from_secs(60);
    drop(talk.send("go").deadline(minute).await.unwrap());
    drop(talk.send("and then").deadline(minute).await.unwrap());
    silent.until(|counts| counts.started == 1).await;
    drop((talk, first));

    let second = builder(&silent)
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    assert_eq!(second.resume_interrupted().await, Ok(1));
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert!(!conversation(&second).rounds().await.unwrap()[0].is_over());
    tokio::time::sleep(Duration::from_secs(20)).await;

    let state = conversation(&second).state().await.unwrap();
    assert!(state.round.is_none() && state.inbox.is_empty());
    let rounds = conversation(&second).rounds().await.unwrap();
    assert_eq!((rounds.len(), rounds[0].is_over()), (1, true));
}

#[tokio::test(start_paused = true)]
async fn the_bound_of_a_wait_outlives_its_host() {
    let store = store();
    let silent = Arc::new(ScriptedModel::always(Reply::stall()));
    let begin = async || {
        let host = builder(&silent).shared_sessions(store.clone());
        host.build().await.unwrap()
    };
    let first = begin().await;
    let talk = conversation(&first);
    let minute = Duration::from_secs(60);
    drop(talk.send("go").await.unwrap());
    drop(talk.send("and then").wait_at_most(minute).await.unwrap());
    silent.until(|counts| counts.started == 1).await;
    drop((talk, first));

    let second = begin().await;
    assert_eq!(second.resume_interrupted().await, Ok(1));
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert_eq!(conversation(&second).state().await.unwrap().inbox.len(), 1);
    tokio::time::sleep(Duration::from_secs(20)).await;

    let state = conversation(&second).state().await.unwrap();
    assert!(state.round.is_some(), "what has begun goes on");
    assert!(state.inbox.is_empty(), "what waited is withdrawn");
}

/// A host that was dropped may still have an append on its way, which ends a round that the next
/// host was asked to watch.
#[tokio::test(start_paused = true)]
async fn a_watcher_sees_the_end_of_a_round_that_another_host_ended() {
    let store = store();
    let slow = Reply::text("done elsewhere").after(Duration::from_secs(5));
    let model = Arc::new(ScriptedModel::always(slow));
    let [first, second] = [(); 2].map(|()| builder(&model).shared_sessions(store.clone()));
    let first = first.build().await.unwrap();
    let second = second.build().await.unwrap();
    let round = conversation(&first).send("go").await.unwrap().round_id();

    let mut watched = conversation(&second).watch(round).unwrap();
    let outcome = tokio::time::timeout(Duration::from_secs(40), watched.outcome()).await;

    assert_eq!(outcome.unwrap().unwrap().text, "done elsewhere");
    assert_eq!(model.counts().started, 1);
}

/// Both lives begin from the same journal and claim the same epoch; the killed one's first append
/// is stored while the other's is under way.
#[tokio::test(start_paused = true)]
async fn a_late_append_of_a_killed_host_orphans_no_round() {
    let store = Arc::new(MemorySessions::new());
    let slow_by = |seconds| {
        let plan = FaultPlan::new().append(1, Fault::Slow(Duration::from_secs(seconds)));
        Arc::new(FaultySessions::new(store.clone(), plan))
    };
    let silent = Arc::new(ScriptedModel::always(Reply::stall()));
    let speaks = Arc::new(ScriptedModel::always(Reply::text("here I am")));
    let first = builder(&silent).shared_sessions(store.clone());
    let killed = builder(&silent).shared_sessions(slow_by(1));
    let last = builder(&speaks).shared_sessions(slow_by(2));
    let first = first.build().await.unwrap();
    let killed = killed.build().await.unwrap();
    let last = last.build().await.unwrap();
    drop(conversation(&first).send("go").await.unwrap());
    silent.until(|counts| counts.started == 1).await;
    drop(first);

    let (killed_resumes, last_resumes) = (conversation(&killed), conversation(&last));
    let late = tokio::spawn(async move { drop(killed_resumes.resume().await) });
    tokio::time::sleep(Duration::from_millis(500)).await;
    late.abort();
    drop(killed);
    drop(last_resumes.resume().await);
    tokio::time::sleep(Duration::from_secs(20)).await;

    let text = last_resumes
        .messages()
        .await
        .unwrap()
        .last()
        .unwrap()
        .text();
    assert_eq!(text, "here I am");
}
