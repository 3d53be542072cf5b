//! A parent and its subagents: the resources that they share, and recovery after a crash at any
//! append.

use std::time::Duration;

use serde_json::{Value, json};

use super::{subagents::*, *};
use crate::{
    chat::ModelRequest,
    conversation::ConversationMsg,
    host::TenantConfig,
    ids::{ArtifactId, ConversationId, Scope},
    limits::Limits,
    ports::{ListQuery, PermissionLevel},
    stream::Open,
    testing::{Fault, FaultPlan, FaultySessions, Reply, ScriptedModel},
    tool_executor::Permissions,
};

fn scope(id: &str) -> Scope {
    Scope::new("acme".parse().unwrap(), id.parse().unwrap())
}

/// Configures a tenant with a workspace, a tool that returns the workspace's path, a tool that
/// changes something, and permission for the first tool only.
pub(super) async fn confine(host: &Host) {
    struct Tools(Vec<Arc<dyn Tool>>, Arc<std::path::PathBuf>);
    impl crate::host::ToolSource for Tools {
        fn tools(self) -> Result<crate::host::ToolsInFolder, String> {
            Ok((self.0, Some(self.1)))
        }
    }
    let folder = Arc::new(std::path::PathBuf::from("/the/workspace"));
    let (looks, _) = probe("looks", EffectClass::Pure, |context| async move {
        Ok(format!("{:?}", context.workspace).into())
    });
    let writes = {
        let spec = ToolSpec::new("writes", "Changes something.", RawJson::empty_object());
        let run: Run = Arc::new(|_| Box::pin(async { panic!("it must not run") }));
        Arc::new(Probe {
            spec,
            starts: Arc::default(),
            run,
        }) as Arc<dyn Tool>
    };
    let permissions = Permissions {
        level: PermissionLevel::Restricted,
        ..Permissions::default()
    };
    let config = TenantConfig::new()
        .tools(Tools(vec![looks, writes], folder))
        .permissions(permissions);
    host.configure_tenant(&"acme".parse().unwrap(), config)
        .await
        .unwrap();
}

/// A parent whose subagent calls both tools. A fan-out's subagent that gets the same task does too.
pub(super) fn tries_all() -> Arc<ScriptedModel> {
    family(&["try all"], |_, request| match request.messages.len() {
        1 => Reply::tool("looks", &json!({})).and_tool("writes", &json!({})),
        _ => Reply::text(results(request).join("|")),
    })
}

#[tokio::test(start_paused = true)]
async fn a_subagent_has_the_sandbox_and_the_permissions_of_its_parent() {
    let host = builder(&tries_all()).subagents().build().await.unwrap();
    confine(&host).await;

    let outcome = conversation(&host)
        .send("go")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    assert!(outcome.text.contains("/the/workspace"), "{}", outcome.text);
    assert!(
        outcome.text.contains("PERMISSION_DENIED"),
        "{}",
        outcome.text
    );
}

#[tokio::test(start_paused = true)]
async fn the_iteration_cap_holds_for_a_subagent_and_its_end_is_an_error_of_the_call() {
    let (tool, starts) = probe("tool", EffectClass::Pure, |_| async { Ok("again".into()) });
    let model = family(&["never end"], |_, request| {
        Reply::tool("tool", &json!({ "n": request.messages.len() }))
    });
    let limits = Limits {
        tool_iterations_max: 3,
        ..Limits::default()
    };
    let host = builder(&model)
        .tool(tool)
        .limits(limits)
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

    assert_eq!(starts.load(Ordering::SeqCst), 3);
    assert!(
        outcome.text.contains("SUBAGENT_FAILED") && outcome.text.contains("iteration_limit"),
        "{}",
        outcome.text
    );
}

#[tokio::test(start_paused = true)]
async fn what_a_subagent_keeps_belongs_to_its_parent() {
    let (large, _) = probe("large", EffectClass::Pure, |_| async {
        Ok("line\n".repeat(300_000).into())
    });
    let model = family(&["make it"], |_, request| match request.messages.len() {
        1 => Reply::tool("large", &json!({})),
        _ => Reply::text(
            results(request)
                .remove(0)
                .lines()
                .filter(|line| *line != "line")
                .collect::<String>(),
        ),
    });
    let host = builder(&model)
        .tool(large)
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

    let result: Value = serde_json::from_str(&outcome.text).unwrap();
    let id = artifact_in(result["result"].as_str().unwrap());
    let (child, _) = children(&host).await.remove(0);
    assert!(
        host.artifacts()
            .retrieve(scope("c-1"), id.clone())
            .await
            .is_ok(),
        "its parent reads it"
    );
    assert!(
        host.artifacts()
            .retrieve(scope(child.as_str()), id)
            .await
            .is_err()
    );
}

/// The artifact that an observation mentions.
pub(super) fn artifact_in(observation: &str) -> ArtifactId {
    let words =
        observation.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')));
    words
        .filter(|word| word.len() >= 16)
        .find_map(|word| ArtifactId::parse(word).ok())
        .expect("it names one")
}

#[tokio::test(start_paused = true)]
async fn watchers_see_the_progress_of_a_subagent_at_most_once_a_second() {
    let (slow, _) = probe("slow", EffectClass::Pure, |_| async {
        tokio::time::sleep(Duration::from_millis(400)).await;
        Ok("ok".into())
    });
    let model = family(&["long"], |_, request| match request.messages.len() {
        1..20 => Reply::tool("slow", &json!({ "n": request.messages.len() })),
        _ => Reply::text("done"),
    });
    let host = builder(&model)
        .tool(slow)
        .subagents()
        .build()
        .await
        .unwrap();
    let mut reply = conversation(&host).send("go").await.unwrap();
    let began = tokio::time::Instant::now();
    let mut reports = Vec::new();
    while let Some(event) = reply.next().await {
        if let EventKind::Subagent {
            state: crate::stream::SubagentState::Running,
            steps,
            tokens,
            ..
        } = &event.kind
        {
            assert!(!event.kind.is_durable() && tokens.unwrap() > 0);
            reports.push((began.elapsed(), steps.unwrap()));
        }
    }

    assert!(
        (2..=4).contains(&reports.len()),
        "some four seconds: {reports:?}"
    );
    assert!(
        reports
            .windows(2)
            .all(|pair| pair[1].0 - pair[0].0 >= Duration::from_secs(1) && pair[1].1 > pair[0].1),
        "{reports:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn what_a_parent_is_shown_of_a_batch_is_shared_by_its_subagents() {
    let model = family(&["a", "b", "c", "d"], |task, _| {
        Reply::text(format!("{task} says it again and again\n").repeat(1000))
    });
    let host = builder(&model).subagents().build().await.unwrap();

    let outcome = conversation(&host)
        .send("go")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    for shown in outcome.text.split('|') {
        let result: Value = serde_json::from_str(shown).unwrap();
        let bytes = result["shown_bytes"].as_u64().unwrap();
        assert!(
            (7_000..=8_192).contains(&bytes) && result["bytes"] == 26_000,
            "{bytes}"
        );
    }
}

/// The order in which conversations are resumed after a crash.
#[derive(Debug, Clone, Copy, PartialEq)]
enum First {
    Parent,
    Children,
    /// Only the parent is resumed, and it wakes its children.
    ParentAlone,
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_append_of_parent_or_child_loses_and_repeats_no_task() {
    for first in [First::Parent, First::Children, First::ParentAlone] {
        for nth in 1.. {
            if crash_at(nth, first).await {
                println!("{first:?}: {} crash points", nth - 1);
                assert!(nth > 10, "the test would show nothing");
                break;
            }
        }
    }
}

fn works() -> Arc<ScriptedModel> {
    family(&["a", "b"], |task, request: &ModelRequest| {
        match request.messages.len() {
            1 => Reply::tool("tool", &json!({})),
            _ => Reply::text(format!("{task} done")),
        }
    })
}

/// Lets the nth append hang, ends the host there, and checks what the next host recovers. Returns
/// true when the first host completed before its nth append.
async fn crash_at(nth: u64, first: First) -> bool {
    let (tool, _) = probe("tool", EffectClass::Idempotent, |_| async {
        Ok("ok".into())
    });
    let inner = Arc::new(MemorySessions::new());
    let faulty = Arc::new(FaultySessions::new(
        inner.clone(),
        FaultPlan::new().append(nth, Fault::Hang),
    ));
    let build = |model: &Arc<ScriptedModel>, store: Arc<dyn SessionBackend>| {
        builder(model)
            .tool(tool.clone())
            .shared_sessions(store)
            .subagents()
            .build()
    };
    let host = build(&works(), faulty.clone()).await.unwrap();
    let sent = tokio::time::timeout(Duration::from_secs(5), conversation(&host).send("go")).await;
    let over = match sent {
        Ok(reply) => tokio::time::timeout(Duration::from_secs(30), reply.unwrap().outcome())
            .await
            .is_ok(),
        Err(_) => false,
    };
    drop((host, faulty));
    if over {
        return true;
    }

    let model = works();
    let host = build(&model, inner.clone()).await.unwrap();
    let mut open = host
        .ports()
        .sessions
        .list_open(Open::Running, None, None, 0)
        .await
        .unwrap();
    open.sort_by_key(|scope| scope.conversation.is_subagent() == (first != First::Children));
    if first == First::ParentAlone {
        open.retain(|scope| !scope.conversation.is_subagent());
    }
    let accepted = !host
        .ports()
        .sessions
        .list(&"acme".parse().unwrap(), ListQuery::default())
        .await
        .unwrap()
        .is_empty();
    for scope in &open {
        host.0.directory.send(scope, ConversationMsg::Resume);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for _ in 0..600 {
        if host
            .ports()
            .sessions
            .list_open(Open::Running, None, None, 0)
            .await
            .unwrap()
            .is_empty()
        {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    let left = host
        .ports()
        .sessions
        .list_open(Open::Running, None, None, 0)
        .await
        .unwrap();
    assert_eq!(
        left,
        [],
        "append {nth}, {first:?}: no child stays interrupted"
    );
    if accepted {
        let said = conversation(&host).messages().await.unwrap();
        let expected = r#"{"result":"a done"}|{"result":"b done"}"#;
        assert_eq!(
            said.last().map(crate::chat::Message::text).as_deref(),
            Some(expected),
            "append {nth}, {first:?}"
        );
        assert_eq!(children(&host).await.len(), 2, "append {nth}, {first:?}");
    }
    for (id, _) in children(&host).await {
        let id: ConversationId = id;
        let messages = host
            .tenant("acme")
            .conversation(id.as_str())
            .messages()
            .await
            .unwrap();
        let prompts = messages
            .iter()
            .filter(|message| ["a", "b"].contains(&message.text().as_str()))
            .count();
        assert_eq!(
            prompts, 1,
            "append {nth}, {first:?}: each gets its task once"
        );
    }
    false
}
