//! A database that another process locks while clients send prompts.

use std::{collections::BTreeSet, time::Instant};

use callboard::storage::{Sqlite, SqliteOptions};

use super::*;

async fn is_ready(server: &Server) -> (u16, String) {
    let response = soon(server.client.get(server.url("/readyz")).send())
        .await
        .unwrap();
    let status = response.status().as_u16();
    (status, soon(response.text()).await.unwrap())
}

/// Waits until the host is ready or not ready; returns the body and how long it took.
async fn until_ready(server: &Server, ready: bool) -> (String, Duration) {
    let began = Instant::now();
    soon(async {
        loop {
            let (status, body) = is_ready(server).await;
            if (status == 200) == ready {
                return (body, began.elapsed());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_database_refuses_fast_is_not_ready_and_resumes_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let options = SqliteOptions {
        busy: Duration::from_millis(100),
        ..SqliteOptions::default()
    };
    let store = Sqlite::open_with(&path, options).await.unwrap();
    let model =
        ScriptedModel::answering(|_, _| Reply::text("done").after(Duration::from_millis(300)));
    let host = Host::builder()
        .provider(model)
        .sessions(store)
        .build()
        .await
        .unwrap();
    let server = Server::over(host, Setting::default()).await;
    assert_eq!(server.send("warm", "hi").await["text"], "done");
    let open = server.host.tenant("acme").conversation("open");
    let mut reply = open.send("hi").await.unwrap();

    // The round's answer cannot be stored while the lock is held.
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let (reason, _) = until_ready(&server, false).await;
    assert!(
        reason.contains("store_unavailable") && reason.contains("another process holds"),
        "{reason}"
    );
    let mut accepted = BTreeSet::new();
    let mut refused = 0;
    let locked = Instant::now();
    while locked.elapsed() < Duration::from_secs(3) {
        let began = Instant::now();
        let id = format!("c-{refused}");
        let path = format!("/v1/conversations/{id}/messages");
        let response = server.post(&path, json!({ "content": "hi" })).await;
        let took = began.elapsed();
        let (status, code) = problem(response).await;
        assert_eq!((status, code.as_str()), (503, "store_unavailable"));
        assert!(took < Duration::from_millis(100), "{took:?}");
        assert_eq!(is_ready(&server).await.0, 503);
        refused += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(refused > 10, "{refused}");
    other.execute_batch("ROLLBACK").unwrap();

    let (_, took) = until_ready(&server, true).await;
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert_eq!(soon(reply.outcome()).await.unwrap().text, "done");
    let again = (0..refused).map(async |n| {
        let id = format!("c-{n}");
        assert_eq!(server.send(&id, "hi").await["text"], "done");
        id
    });
    accepted.extend(futures_util::future::join_all(again).await);
    accepted.extend(["warm".to_owned(), "open".to_owned()]);
    let acme = server.host.tenant("acme");
    let stored = acme.conversations(Default::default()).await.unwrap();
    let stored: BTreeSet<String> = stored
        .into_iter()
        .map(|row| row.conversation.to_string())
        .collect();
    assert_eq!(stored, accepted);
    for id in accepted {
        let talk = acme.conversation(id.as_str());
        let messages = talk.messages().await.unwrap();
        assert_eq!(messages.len(), 2, "{id}: nothing lost or doubled");
    }
    server.end().await;
}
