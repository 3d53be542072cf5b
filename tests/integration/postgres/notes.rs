//! Notes of the tool `memory` in PostgreSQL: what the store promises, and two hosts that share them.

use callboard::{
    ids::TenantId,
    notes::{NoteBounds, NoteError, NoteOwner, NoteStore, NoteUsage, Noted},
    storage::PostgresNotes,
};
use reqwest::Method;
use serde_json::{Value, json};

use super::{
    hosts::{configured, database},
    open, schema,
    server::{pooler, server},
};
use crate::{
    cli::{
        Home,
        serve::{Key, Served},
    },
    support::model_server::{ModelServer, Reply, anthropic_text, anthropic_tool},
};

const BOUNDS: NoteBounds = NoteBounds {
    bytes: 100,
    keys: 5,
    conversations: 3,
};

fn owner(tenant: &str, conversation: Option<&str>) -> NoteOwner {
    NoteOwner {
        tenant: TenantId::new(tenant).unwrap(),
        conversation: conversation.map(|id| id.try_into().unwrap()),
    }
}

async fn write(
    notes: &PostgresNotes,
    owner: &NoteOwner,
    key: &str,
    value: &str,
) -> Result<NoteUsage, NoteError> {
    let writing = notes.write(owner.clone(), key.into(), value.into(), BOUNDS);
    writing.await
}

async fn view(notes: &PostgresNotes, owner: &NoteOwner, path: &str) -> Option<Noted> {
    notes.view(owner.clone(), path.into()).await.unwrap()
}

fn keys(keys: &[(&str, u64)]) -> Option<Noted> {
    let named = keys.iter().map(|(key, bytes)| ((*key).to_owned(), *bytes));
    Some(Noted::Keys(named.collect()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn notes_are_read_by_path_and_go_with_their_owner() {
    let test = "notes_are_read_by_path_and_go_with_their_owner";
    let Some(server) = server(test) else {
        return;
    };
    let Some(pooler) = pooler(test, &server) else {
        return;
    };
    let store = open(&pooler.url(), &schema()).await;
    let notes = store.notes();
    let mine = owner("t", Some("c"));
    let others = [
        owner("t", Some("d")),
        owner("t", None),
        owner("u", Some("c")),
    ];
    for other in &others {
        write(&notes, other, "a", "theirs").await.unwrap();
    }

    assert_eq!(view(&notes, &mine, ".").await, keys(&[]));
    assert_eq!(view(&notes, &mine, "a").await, None);
    write(&notes, &mine, "user/likes.md", "tea\0")
        .await
        .unwrap();
    write(&notes, &mine, "user2", "").await.unwrap();
    let usage = write(&notes, &mine, "user/likes.md", "tea").await;

    assert_eq!(usage, Ok(NoteUsage { bytes: 3, keys: 2 }));
    assert_eq!(
        view(&notes, &mine, ".").await,
        keys(&[("user/likes.md", 3), ("user2", 0)])
    );
    assert_eq!(
        view(&notes, &mine, "user").await,
        keys(&[("user/likes.md", 3)])
    );
    assert_eq!(
        view(&notes, &mine, "user2").await,
        Some(Noted::Value(String::new()))
    );
    for (key, taken) in [("user", "user/likes.md"), ("user2/x", "user2")] {
        let refused = write(&notes, &mine, key, "x").await;
        assert_eq!(refused, Err(NoteError::IsKey(taken.into())));
    }
    assert_eq!(notes.delete(mine.clone(), "user2".into()).await, Ok(true));
    assert_eq!(notes.delete(mine.clone(), "user2".into()).await, Ok(false));

    notes.forget(mine.clone()).await.unwrap();
    assert_eq!(view(&notes, &mine, ".").await, keys(&[]));
    assert_eq!(
        view(&notes, &others[0], "a").await,
        Some(Noted::Value("theirs".into()))
    );
    notes.forget_tenant(mine.tenant.clone()).await.unwrap();
    let left = [
        view(&notes, &others[0], "a").await,
        view(&notes, &others[1], "a").await,
    ];
    assert_eq!(left, [None, None]);
    assert!(view(&notes, &others[2], "a").await.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bounds_of_notes_hold_over_two_hosts_that_write_at_once() {
    let test = "the_bounds_of_notes_hold_over_two_hosts_that_write_at_once";
    let Some(server) = server(test) else {
        return;
    };
    let schema = schema();
    let stores = [
        open(&server.url(), &schema).await,
        open(&server.url(), &schema).await,
    ];
    let hosts = [stores[0].notes(), stores[1].notes()];
    let mine = owner("t", Some("c"));

    let writes = (0..20).map(|n| {
        let (host, mine) = (&hosts[n % 2], &mine);
        async move { write(host, mine, &format!("k{n}"), "0123456789").await }
    });
    let written = futures_util::future::join_all(writes).await;

    let stored = written.iter().filter(|written| written.is_ok()).count();
    assert_eq!(stored, 5, "{written:?}");
    let full = Err(NoteError::Full(NoteUsage { bytes: 60, keys: 6 }));
    assert_eq!(
        written.iter().filter(|written| **written == full).count(),
        15
    );
    let Some(Noted::Keys(kept)) = view(&hosts[0], &mine, ".").await else {
        panic!("no list");
    };
    // The value that is replaced does not count.
    let large = "x".repeat(60);
    write(&hosts[1], &mine, &kept[0].0, &large).await.unwrap();
    let over = write(&hosts[0], &mine, &kept[1].0, "01234567890").await;
    assert_eq!(
        over,
        Err(NoteError::Full(NoteUsage {
            bytes: 101,
            keys: 5
        }))
    );
    for n in 1..3 {
        let other = owner("t", Some(&format!("c{n}")));
        write(&hosts[0], &other, "a", "").await.unwrap();
    }
    let refused = write(&hosts[0], &owner("t", Some("c4")), "a", "").await;
    assert_eq!(refused, Err(NoteError::TooManyConversations));
    write(&hosts[0], &owner("t", None), "a", "").await.unwrap();
}

/// A round in which the model uses its memory; returns what it read.
async fn remember(
    served: &Served,
    model: &ModelServer,
    key: &str,
    of: &str,
    arguments: Value,
) -> String {
    model.script([
        Reply::events(anthropic_tool("memory", &arguments)),
        Reply::events(anthropic_text("Well.")),
    ]);
    let path = format!("/v1/conversations/{of}/messages");
    let prompt = Some(json!({ "content": "Use your memory." }));
    let answer = served.ask(Method::POST, &path, key, prompt).await;
    assert!(answer.status.is_success(), "{answer:?}");
    let request = model.requests().last().unwrap().json();
    request["messages"]
        .as_array()
        .unwrap()
        .last()
        .unwrap()
        .to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn notes_of_a_host_that_was_killed_are_read_on_another_one() {
    let Some(server) = server("notes_of_a_host_that_was_killed_are_read_on_another_one") else {
        return;
    };
    let database = database(&server, "notes");
    let model = ModelServer::start([Reply::status(500)]).await;
    let [own, shared] = [(); 2].map(|()| Key::new(&Home::new()));
    let [one, two] = [(); 2].map(|()| {
        configured(
            &model,
            &database,
            &format!(
                "[[tenant]]\nid = \"own\"\nkey_sha256 = \"{}\"\n[[tenant]]\nid = \"shared\"\nkey_sha256 = \"{}\"\nmemory = \"tenant\"\n",
                own.hash, shared.hash
            ),
        )
    });
    let write = |text: &str| json!({ "action": "write", "path": "notes", "content": text });
    let view = || json!({ "action": "view", "path": "notes" });
    let first = Served::start(&one, &[]);
    let stored = remember(&first, &model, &own.key, "a", write("NOTE-OF-A")).await;
    assert!(stored.contains("the memory holds 1 of 64 keys"), "{stored}");
    remember(&first, &model, &shared.key, "a", write("NOTE-OF-ALL")).await;

    first.signal("KILL");
    drop(first);
    let second = tokio::task::block_in_place(|| Served::start(&two, &["--standby"]));

    let read = remember(&second, &model, &own.key, "a", view()).await;
    assert!(
        read.contains("material to judge") && read.contains("NOTE-OF-A"),
        "{read}"
    );
    let foreign = remember(&second, &model, &own.key, "b", view()).await;
    assert!(foreign.contains("nothing is remembered under"), "{foreign}");
    let common = remember(&second, &model, &shared.key, "b", view()).await;
    assert!(common.contains("NOTE-OF-ALL"), "{common}");
    let count = || {
        server.execute_in(
            &database,
            "SELECT string_agg(tenant, ',') FROM callboard.note",
        )
    };
    assert_eq!(count(), "own,shared");
    let path = "/v1/conversations/a";
    second.ask(Method::DELETE, path, &own.key, None).await;
    second.ask(Method::DELETE, path, &shared.key, None).await;
    assert_eq!(
        count(),
        "shared",
        "a conversation takes its own notes with it"
    );
}
