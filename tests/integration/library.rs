//! What an embedding program relies on: hosts are independent of each other, and dropping handles
//! loses nothing.

use std::time::Duration;

use callboard::{
    EventKind, Host, StopReason, chat::Role, providers::offline::Offline, storage::Sqlite, tools,
};
use callboard_actors::host::FanOut;

fn fixture() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("retry.rs"),
        "/// Longest delay.\npub const CAP_MS: u64 = 10_000;\n",
    )
    .unwrap();
    folder
}

#[tokio::test]
async fn the_code_of_the_readme_answers_from_files() {
    let workspace = fixture();
    let data = tempfile::tempdir().unwrap();
    let host = Host::builder()
        .provider(Offline)
        .sessions(
            Sqlite::open(data.path().join("callboard.db"))
                .await
                .unwrap(),
        )
        .tools(tools::standard(workspace.path()))
        .build()
        .await
        .unwrap();

    let mut reply = host
        .tenant("acme")
        .conversation("support-42")
        .send("Where is CAP_MS?")
        .await
        .unwrap();
    let mut streamed = String::new();
    while let Some(event) = reply.next().await {
        if let EventKind::TextDelta { text } = &event.kind {
            streamed.push_str(text);
        }
    }
    let outcome = reply.outcome().await.unwrap();
    host.shutdown(Duration::from_secs(10)).await;

    assert_eq!(outcome.stop_reason, StopReason::EndTurn);
    assert!(outcome.text.contains("retry.rs:2"), "{}", outcome.text);
    assert_eq!(streamed, outcome.full_text);
}

#[tokio::test]
async fn two_hosts_in_one_process_do_not_see_each_other() {
    let one = Host::builder().provider(Offline).build().await.unwrap();
    let other = Host::builder().provider(Offline).build().await.unwrap();

    one.tenant("acme")
        .conversation("c")
        .send("Hello")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    assert_eq!(
        one.tenant("acme")
            .conversation("c")
            .messages()
            .await
            .unwrap()
            .len(),
        2
    );
    assert_eq!(
        other
            .tenant("acme")
            .conversation("c")
            .messages()
            .await
            .unwrap()
            .len(),
        0
    );
    assert_eq!(
        (
            one.figures().await.total.rounds,
            other.figures().await.total.rounds
        ),
        (1, 0)
    );
}

#[tokio::test]
async fn a_dropped_host_loses_nothing_that_was_acknowledged() {
    let data = tempfile::tempdir().unwrap();
    let file = data.path().join("callboard.db");
    let host = Host::builder()
        .provider(Offline)
        .sessions(Sqlite::open(&file).await.unwrap())
        .build()
        .await
        .unwrap();
    let reply = host
        .tenant("acme")
        .conversation("c")
        .send("Hello")
        .await
        .unwrap();
    drop((reply, host));

    let next = Host::builder()
        .provider(Offline)
        .sessions(Sqlite::open(&file).await.unwrap())
        .build()
        .await
        .unwrap();
    let conversation = next.tenant("acme").conversation("c");
    if let Some(mut reply) = conversation.resume().await.unwrap() {
        reply.outcome().await.unwrap();
    }
    let roles: Vec<Role> = conversation
        .messages()
        .await
        .unwrap()
        .iter()
        .map(|message| message.role())
        .collect();
    next.shutdown(Duration::from_secs(10)).await;

    assert_eq!(roles, [Role::User, Role::Assistant]);
}

/// A store with its own threads reports the end before the conversation has gone to sleep.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_a_fan_out_is_over_its_conversations_sleep() {
    let data = tempfile::tempdir().unwrap();
    let sessions = Sqlite::open(data.path().join("callboard.db"))
        .await
        .unwrap();
    let host = Host::builder()
        .provider(Offline)
        .sessions(sessions)
        .build()
        .await
        .unwrap();
    for _ in 0..20 {
        let run = host
            .tenant("acme")
            .fan_out(FanOut::over((0..32).map(|n| format!("Hello {n}"))))
            .await
            .unwrap();

        let summary = run.finish().await;

        assert_eq!((summary.done(), host.awake()), (32, 0));
    }
    host.shutdown(Duration::from_secs(10)).await;
}

#[tokio::test]
async fn a_workspace_that_cannot_be_opened_fails_the_build() {
    let error = Host::builder()
        .provider(Offline)
        .tools(tools::standard("/no/such/folder"))
        .build()
        .await
        .unwrap_err();

    assert!(error.to_string().contains("/no/such/folder"), "{error}");
}

#[tokio::test]
async fn an_erased_tenant_leaves_nothing_in_the_memory_of_its_tool() {
    use callboard_actors::testing::{Reply, ScriptedModel};
    let folder = tempfile::tempdir().unwrap();
    let note = serde_json::json!({ "action": "write", "path": "likes.md", "content": "green-tea-of-a-person" });
    let model = ScriptedModel::answering(move |request, _| match request.messages.len() {
        1 => Reply::tool("memory", &note),
        _ => Reply::text("noted"),
    });
    let memory =
        callboard::ports::erased(callboard::tools::memory::Memory::per_tenant(folder.path()));
    let host = Host::builder()
        .provider(model)
        .tool(memory)
        .build()
        .await
        .unwrap();
    for tenant in ["acme", "other"] {
        host.tenant(tenant)
            .conversation("c")
            .send("Note it")
            .await
            .unwrap()
            .outcome()
            .await
            .unwrap();
    }
    let folders = || {
        std::fs::read_dir(folder.path().join("memory"))
            .unwrap()
            .count()
    };
    assert_eq!(folders(), 2);

    host.tenant("acme").erase().await.unwrap();

    assert_eq!(folders(), 1, "only its own folder");
}

#[tokio::test]
async fn what_the_model_remembers_is_there_after_a_compaction() {
    use callboard_actors::{
        chat::ContentBlock,
        compactor::CompactionSettings,
        testing::{Reply, ScriptedModel},
    };
    let folder = tempfile::tempdir().unwrap();
    let memory = callboard::tools::memory::Memory::per_conversation(folder.path());
    let write = serde_json::json!({ "action": "write", "path": "vault", "content": "4711" });
    let view = serde_json::json!({ "action": "view", "path": "vault" });
    let model = ScriptedModel::answering(move |request, _| {
        let last = request.messages.last().unwrap().blocks();
        match last.last().unwrap() {
            ContentBlock::ToolResult(result) => Reply::text(result.content.text()),
            block if block.as_text() == Some("note") => Reply::tool("memory", &write),
            block if block.as_text() == Some("recall") => Reply::tool("memory", &view),
            _ => Reply::text("fine ".repeat(50)),
        }
    });
    let settings = CompactionSettings {
        keep_rounds: Some(3),
        ..CompactionSettings::default()
    };
    let host = Host::builder()
        .provider(model)
        .tool(callboard::ports::erased(memory))
        .compaction(settings)
        .build()
        .await
        .unwrap();
    let talk = host.tenant("acme").conversation("c");
    let say = async |text: &str| {
        let outcome = talk.send(text).await.unwrap().outcome().await.unwrap();
        outcome.text.clone()
    };
    say("note").await;
    for _ in 0..30 {
        say(&"words ".repeat(60)).await;
    }

    talk.compact().await.unwrap().expect("something is dropped");

    let left = talk.messages().await.unwrap();
    assert!(
        left.iter()
            .all(|message| !message.wire_str().contains("4711"))
    );
    assert!(say("recall").await.contains("4711"));
}
