//! Tools that a caller brings with a prompt: their calls wait for the caller's results, through
//! sleep and another host, in any order, and no longer than their time.

use std::{sync::Arc, time::Duration};

use serde_json::json;

use super::*;
use crate::{
    chat::{
        ClientToolResult, ContentBlock, Message, Role, ToolChoice, ToolDefinition, ToolResultBlock,
        ToolResultContent, ToolUseBlock,
    },
    conversation::WaitsFor,
    host::{ConversationState, Reply as Round},
    limits::{CLIENT_RESULT_BYTES_MAX, Limits},
    ports::{Hook, ProviderError, Review, Verdict},
    testing::{Reply, ScriptedModel},
};

fn tool(name: &str) -> ToolDefinition {
    ToolDefinition {
        name: name.to_owned(),
        description: format!("Does {name}."),
        input_schema: RawJson::from_text(r#"{"type":"object"}"#).unwrap(),
    }
}

/// The results that the last request brought to the model, in order, with whether each failed.
fn last_results(model: &ScriptedModel) -> Vec<(String, bool)> {
    let request = model.last_request().unwrap();
    let blocks = request.messages.last().unwrap().blocks();
    let result = |block: &ContentBlock| match block {
        ContentBlock::ToolResult(result) => {
            Some((result.content.text().into_owned(), result.is_error))
        }
        _ => None,
    };
    blocks.iter().filter_map(result).collect()
}

/// Reads until this many calls were handed to the caller, and returns their ids.
async fn handed(round: &mut Round, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    while ids.len() < count {
        if let EventKind::ClientToolCall { tool_call_id, .. } = &round.next().await.unwrap().kind {
            ids.push(tool_call_id.clone());
        }
    }
    ids
}

fn call(id: &str, name: &str) -> Reply {
    Reply::empty().and_tool_with_id(id, name, RawJson::of(&json!({ "place": id })).unwrap())
}

#[tokio::test(start_paused = true)]
async fn results_in_any_order_beside_a_tool_of_the_host_end_the_batch_in_call_order() {
    let (own, starts) = probe("own", EffectClass::Once, |_| async {
        Ok("of the host".into())
    });
    let calls = call("t1", "left")
        .and_tool_with_id("t2", "own", RawJson::empty_object())
        .and_tool_with_id("t3", "right", RawJson::empty_object());
    let model = Arc::new(ScriptedModel::replies([calls, Reply::text("done")]));
    let host = builder(&model).tools([own]).build().await.unwrap();
    let talk = conversation(&host);

    let prompt = talk.send("go").client_tools([tool("left"), tool("right")]);
    let mut round = prompt.await.unwrap();
    assert_eq!(handed(&mut round, 2).await, ["t1", "t3"]);
    until("the host's own call is over", || {
        starts.load(Ordering::SeqCst) == 1
    })
    .await;
    let offered = model.last_request().unwrap();
    let names: Vec<_> = offered.tools.iter().map(|tool| &*tool.name).collect();
    assert_eq!(
        names[names.len() - 2..],
        ["left", "right"],
        "behind the host's"
    );
    let again = ClientToolResult::new("t3", "from the right");
    talk.client_tool_results([again.clone()]).await.unwrap();
    talk.client_tool_results([again.clone()]).await.unwrap();
    let failed = ClientToolResult::failed("t1", "no left here");
    talk.client_tool_results([failed]).await.unwrap();

    let outcome = round.outcome().await.unwrap();
    assert_eq!(outcome.text, "done");
    assert_eq!(
        last_results(&model),
        [
            ("no left here".to_owned(), true),
            ("of the host".to_owned(), false),
            ("from the right".to_owned(), false)
        ]
    );
    talk.client_tool_results([again]).await.unwrap();
    let other = ClientToolResult::new("t3", "something else");
    let refused = talk.client_tool_results([other]).await.unwrap_err();
    assert_eq!(refused.code(), "already_answered");
}

#[tokio::test(start_paused = true)]
async fn a_result_for_a_call_that_is_not_the_callers_is_refused_whole() {
    let (own, _) = probe("own", EffectClass::Once, |_| std::future::pending());
    let calls = call("t1", "mine").and_tool_with_id("t2", "own", RawJson::empty_object());
    let model = Arc::new(ScriptedModel::always(calls));
    let host = builder(&model).tools([own]).build().await.unwrap();
    let talk = conversation(&host);
    let mut round = talk.send("go").client_tools([tool("mine")]).await.unwrap();
    handed(&mut round, 1).await;
    let result = |id: &str| ClientToolResult::new(id, "yes");
    let code = async |results: Vec<ClientToolResult>| {
        let sent = talk.client_tool_results(results).await;
        sent.unwrap_err().code()
    };

    assert_eq!(code(vec![result("t1"), result("t2")]).await, "not_found");
    assert_eq!(code(vec![result("t1"), result("x")]).await, "not_found");
    let twice = vec![result("t1"), result("t1")];
    assert_eq!(code(twice).await, "already_answered");
    let large = "x".repeat(CLIENT_RESULT_BYTES_MAX + 1);
    let large = ClientToolResult::new("t1", large);
    assert_eq!(code(vec![large]).await, "invalid_prompt");
    let elsewhere = host.tenant("other").conversation("c-1");
    let stranger = elsewhere.client_tool_results([result("t1")]).await;
    assert_eq!(stranger.unwrap_err().code(), "not_found");

    let state = talk.state().await.unwrap();
    let open = state.batch().unwrap().calls[0].clone();
    assert_eq!(open.tool_use.id, "t1");
    assert!(matches!(
        open.state,
        crate::journal::CallState::AtClient { .. }
    ));
}

#[tokio::test(start_paused = true)]
async fn a_call_at_its_caller_outlives_sleep_and_the_host() {
    let sessions = store();
    let model = Arc::new(ScriptedModel::replies([
        call("t1", "mine"),
        Reply::text("done"),
    ]));
    let build = || builder(&model).shared_sessions(sessions.clone()).build();
    let host = build().await.unwrap();
    let talk = conversation(&host);
    let mut round = talk.send("go").client_tools([tool("mine")]).await.unwrap();
    handed(&mut round, 1).await;
    let round_id = round.round_id();
    until("it sleeps", || {
        host.hibernate_idle();
        host.awake() == 0
    })
    .await;
    let status = talk.status().await.unwrap();
    assert_eq!(status.state, ConversationState::Parked);
    let WaitsFor::Client { tool_call_ids, .. } = status.waits_for else {
        panic!("{:?}", status.waits_for)
    };
    assert_eq!((tool_call_ids, host.awake()), (vec!["t1".to_owned()], 0));
    drop((round, talk));
    stop(&host, Duration::from_secs(1)).await;
    drop(host);

    let host = build().await.unwrap();
    let talk = conversation(&host);
    let result = ClientToolResult::new("t1", "sunny");
    talk.client_tool_results([result]).await.unwrap();
    let outcome = talk.watch(round_id).unwrap().outcome().await.unwrap();

    assert_eq!(outcome.text, "done");
    assert_eq!(last_results(&model), [("sunny".to_owned(), false)]);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_never_comes_back_costs_no_permit_and_its_round_goes_on() {
    let model = Arc::new(ScriptedModel::answering(|request, _| {
        let asks = request.messages.len() == 1 && !request.tools.is_empty();
        match asks {
            true => call("t1", "mine"),
            false => Reply::text("done"),
        }
    }));
    let limits = Limits {
        client_result: Duration::from_secs(600),
        tenant_turns_max: 1,
        ..Limits::default()
    };
    let clock = Arc::new(ManualClock::at(Timestamp(1_000)));
    struct Shared(Arc<ManualClock>);
    impl crate::ports::Clock for Shared {
        fn now(&self) -> Timestamp {
            crate::ports::Clock::now(&*self.0)
        }
    }
    let host = HostBuilder::new(Shared(clock.clone()), SeededEntropy::new(1), |host| host)
        .shared_provider(model.clone())
        .limits(limits)
        .build()
        .await
        .unwrap();
    let talk = conversation(&host);
    let mut round = talk.send("go").client_tools([tool("mine")]).await.unwrap();
    handed(&mut round, 1).await;

    let other = host.tenant("acme").conversation("c-2").send("hi");
    let other = other.await.unwrap().outcome().await.unwrap();
    assert_eq!(other.text, "done", "the tenant's only turn is free");
    clock.advance_ms(600_000);
    let outcome = round.outcome().await.unwrap();

    assert_eq!(outcome.text, "done");
    let (error, failed) = last_results(&model).remove(0);
    assert!(failed && error.contains("NO_CLIENT_RESULT"), "{error}");
    let late = talk.client_tool_results([ClientToolResult::new("t1", "sorry")]);
    assert_eq!(late.await.unwrap_err().code(), "already_answered");
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_ends_the_calls_at_the_caller() {
    let model = Arc::new(ScriptedModel::always(call("t1", "mine")));
    let host = host(&model).await;
    let talk = conversation(&host);
    let mut round = talk.send("go").client_tools([tool("mine")]).await.unwrap();
    handed(&mut round, 1).await;

    talk.interrupt().await.unwrap();
    let outcome = round.outcome().await.unwrap();

    assert_eq!(outcome.stop_reason, crate::stream::StopReason::Interrupted);
    let late = talk.client_tool_results([ClientToolResult::new("t1", "sorry")]);
    assert_eq!(late.await.unwrap_err().code(), "already_answered");
}

#[tokio::test(start_paused = true)]
async fn tools_hold_for_their_round_and_a_forced_call_for_its_first_model_call() {
    let model = Arc::new(ScriptedModel::replies([
        call("t1", "mine"),
        Reply::text("done"),
        Reply::text("without"),
        Reply::text("silent"),
    ]));
    let host = host(&model).await;
    let talk = conversation(&host);
    let choice = || model.last_request().unwrap().tool_choice.clone();
    let offers = || {
        let request = model.last_request().unwrap();
        request.tools.iter().any(|tool| tool.name == "mine")
    };

    let prompt = talk.send("go").client_tools([tool("mine")]);
    let mut round = prompt.tool_choice(ToolChoice::Any).await.unwrap();
    handed(&mut round, 1).await;
    assert_eq!((choice(), offers()), (ToolChoice::Any, true));
    let result = ClientToolResult::new("t1", "yes");
    talk.client_tool_results([result]).await.unwrap();
    round.outcome().await.unwrap();
    assert_eq!((choice(), offers()), (ToolChoice::Auto, true));

    let mut next = talk.send("and?").await.unwrap();
    next.outcome().await.unwrap();
    assert!(!offers(), "the next prompt brought none");
    let none = talk.send("hush").client_tools([tool("mine")]);
    let mut none = none.tool_choice(ToolChoice::None).await.unwrap();
    none.outcome().await.unwrap();
    assert_eq!(choice(), ToolChoice::None);
}

#[tokio::test(start_paused = true)]
async fn a_tool_with_the_name_of_one_of_the_hosts_is_refused_before_anything_is_stored() {
    let (own, _) = probe("own", EffectClass::Once, |_| async { Ok("".into()) });
    let model = Arc::new(ScriptedModel::always(Reply::text("no")));
    let host = builder(&model).tools([own]).build().await.unwrap();
    let talk = conversation(&host);

    let prompt = talk.send("go").client_tools([tool("mine"), tool("own")]);
    let refused = prompt.await.unwrap_err();

    assert_eq!(refused.code(), "invalid_tool");
    assert!(
        refused
            .to_string()
            .contains("\"own\" is a tool of the host")
    );
    assert_eq!(talk.status().await.unwrap_err().code(), "not_found");
}

#[tokio::test(start_paused = true)]
async fn hooks_see_the_calls_and_the_results_of_a_caller() {
    struct Careful;
    impl Hook for Careful {
        fn before_tool(&self, _: &crate::ids::Scope, spec: &ToolSpec, _: &RawJson) -> Verdict {
            assert_eq!(spec.effect, EffectClass::Client);
            match spec.name() {
                "forbidden" => Verdict::Deny("not this one".to_owned()),
                _ => Verdict::Allow,
            }
        }

        fn after_tool(
            &self,
            _: &crate::ids::Scope,
            _: &ToolSpec,
            outcome: &crate::journal::ToolExecutionResult,
        ) -> Review {
            Review::Replace(outcome.observation.replace("secret", "[masked]"))
        }
    }
    let calls = call("t1", "mine").and_tool_with_id("t2", "forbidden", RawJson::empty_object());
    let model = Arc::new(ScriptedModel::replies([calls, Reply::text("done")]));
    let host = builder(&model).hook(Careful).build().await.unwrap();
    let talk = conversation(&host);
    let prompt = talk
        .send("go")
        .client_tools([tool("mine"), tool("forbidden")]);
    let mut round = prompt.await.unwrap();
    assert_eq!(handed(&mut round, 1).await, ["t1"]);

    let result = ClientToolResult::new("t1", "the secret word");
    talk.client_tool_results([result]).await.unwrap();
    round.outcome().await.unwrap();

    let results = last_results(&model);
    assert_eq!(results[0], ("the [masked] word".to_owned(), false));
    assert!(results[1].1 && results[1].0.contains("not this one"));
}

/// A history that a caller kept itself and that ends with results of its tools.
fn kept() -> Vec<Message> {
    let call = ContentBlock::ToolUse(ToolUseBlock {
        id: "t1".to_owned(),
        name: "mine".to_owned(),
        input: RawJson::empty_object(),
    });
    let result = ToolResultBlock {
        tool_use_id: "t1".to_owned(),
        content: ToolResultContent::Text("sunny".to_owned()),
        is_error: false,
    };
    vec![
        Message::user("How is it?"),
        Message::new(Role::Assistant, &[call]).unwrap(),
        Message::tool_results([result], []),
    ]
}

#[tokio::test(start_paused = true)]
async fn the_model_answers_an_imported_history_that_ends_with_results() {
    let model = Arc::new(ScriptedModel::always(Reply::text("Nice.")));
    let host = host(&model).await;
    let talk = conversation(&host);
    let code = talk.go_on().await.unwrap_err().code();
    assert_eq!(code, "nothing_to_answer", "the history is empty");
    talk.import(kept()).await.unwrap();

    let mut round = talk.go_on().client_tools([tool("mine")]).await.unwrap();
    let outcome = round.outcome().await.unwrap();

    assert_eq!(outcome.text, "Nice.");
    let request = model.last_request().unwrap();
    let sent: Vec<Message> = request.messages.iter().cloned().collect();
    assert_eq!(sent, kept(), "nothing is put behind the results");
    let code = talk.go_on().await.unwrap_err().code();
    assert_eq!(code, "nothing_to_answer", "the model has answered");
    let rounds = talk.rounds().await.unwrap();
    let last = rounds.last().unwrap();
    assert_eq!(
        (last.user_message.as_str(), last.final_answer.as_deref()),
        ("", Some("Nice."))
    );
    talk.rewind(last.round_id).await.unwrap();
    assert_eq!(talk.state().await.unwrap().history.messages().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn refused_credentials_leave_the_history_that_was_to_be_answered() {
    let error = ProviderError::Auth {
        message: "who?".to_owned(),
    };
    let model = Arc::new(ScriptedModel::always(Reply::error(error)));
    let host = host(&model).await;
    let talk = conversation(&host);
    talk.import(kept()).await.unwrap();

    let failed = talk.go_on().await.unwrap().outcome().await.unwrap_err();

    assert_eq!(failed.code(), "provider_auth");
    let state = talk.state().await.unwrap();
    let left: Vec<Message> = state.history.messages().iter().cloned().collect();
    assert_eq!(left, kept());
}
