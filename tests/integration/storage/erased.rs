//! What was deleted, scrubbed or reset is in no file of the SQLite store.

use super::*;

#[tokio::test]
async fn what_was_deleted_and_scrubbed_is_in_no_page_of_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let store = Sqlite::open(folder.path().join("s.db")).await.unwrap();
    let gone = scope("erased-tenant", "erased-conversation");
    let kept = scope("t", "c");
    let body = |mark: &str, seq| StoredEntry {
        seq: Seq(seq),
        bytes: format!("{mark} {}", "x".repeat(9000)).into(),
    };
    for (scope, mark) in [
        (&gone, "fake-secret-of-the-erased"),
        (&kept, "what-a-neighbour-said"),
    ] {
        store
            .append_and_wait(
                scope,
                Head::default(),
                Epoch(1),
                (1..=20).map(|seq| body(mark, seq)).collect(),
                Open::None,
            )
            .await
            .unwrap();
        store
            .snapshot(
                scope,
                Seq(20),
                format!("{mark} {}", "y".repeat(9000)).into(),
            )
            .await
            .unwrap();
    }
    let found = |mark: &str| {
        let files = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|file| std::fs::read(file.unwrap().path()).unwrap());
        files
            .map(|file| {
                file.windows(mark.len())
                    .filter(|window| *window == mark.as_bytes())
                    .count()
            })
            .sum::<usize>()
    };
    assert!(found("fake-secret-of-the-erased") > 0);

    assert_eq!(store.delete(&gone).await, Ok(true));
    store.scrub().await.unwrap();

    for mark in [
        "fake-secret-of-the-erased",
        "erased-tenant",
        "erased-conversation",
    ] {
        assert_eq!(found(mark), 0, "{mark}");
    }
    assert!(found("what-a-neighbour-said") > 0);
    assert_eq!(store.load(&kept).await.unwrap().head, head(1, 20));
    store.close(SOON).await.unwrap();
}

#[tokio::test]
async fn an_erased_tenant_leaves_no_row_not_even_under_an_id_that_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let store = Arc::new(Sqlite::open(&path).await.unwrap());
    let acme = scope("acme", "c");
    let other = scope("other", "c");
    for scope in [&acme, &other] {
        write(&store, scope, Head::default(), 1, 3).await.unwrap();
    }
    let malformed = rusqlite::Connection::open(&path).unwrap();
    malformed
        .execute(
            "UPDATE conversation SET id = '../no id' WHERE tenant = 'acme'",
            [],
        )
        .unwrap();
    assert!(
        store
            .list(&acme.tenant, ListQuery::default())
            .await
            .unwrap()
            .is_empty(),
        "no list shows it"
    );

    let host = callboard::Host::builder()
        .provider(callboard::providers::offline::Offline)
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    host.tenant("acme").erase().await.unwrap();

    let rows = |table: &str| {
        malformed
            .query_row(&format!("SELECT count(*) FROM {table}"), [], |row| {
                row.get::<_, i64>(0)
            })
            .unwrap()
    };
    assert_eq!((rows("conversation"), rows("journal")), (1, 3));
    assert_eq!(
        store.entries(&other, Seq(0), 10).await.unwrap().len(),
        3,
        "another tenant is unaffected"
    );
    assert_eq!(store.erase(&acme.tenant).await, Ok(false));
}

/// Bytes of the store's file and of SQLite's companion files.
fn raw(path: &std::path::Path) -> Vec<u8> {
    let beside =
        |suffix: &str| std::fs::read(format!("{}{suffix}", path.display())).unwrap_or_default();
    [beside(""), beside("-wal")].concat()
}

fn holds(path: &std::path::Path, canary: &str) -> bool {
    raw(path)
        .windows(canary.len())
        .any(|window| window == canary.as_bytes())
}

/// Waits until no file of the store contains the canary; the timeout allows for a loaded machine.
async fn gone(path: &std::path::Path, canary: &str) {
    for _ in 0..200 {
        if !holds(path, canary) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{canary} is still in the files of an idle store");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_deleted_or_reset_is_in_no_file_of_an_idle_host() {
    use callboard_actors::testing::{Reply, ScriptedModel};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let store = Arc::new(Sqlite::open(&path).await.unwrap());
    let model = ScriptedModel::answering(|request, _| {
        Reply::text(format!(
            "ANSWER-TO-{}",
            request.messages.last().unwrap().text()
        ))
    });
    let host = callboard::Host::builder()
        .provider(model)
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    let tenant = host.tenant("acme");
    for (id, canary) in [
        ("deleted", "CANARY-ONE"),
        ("reset", "CANARY-TWO"),
        ("stays", "KEPT-ONE"),
    ] {
        tenant
            .conversation(id)
            .send(canary)
            .await
            .unwrap()
            .outcome()
            .await
            .unwrap();
    }
    tenant
        .conversation("deleted")
        .fork("fork", None)
        .await
        .unwrap();
    assert!(holds(&path, "ANSWER-TO-CANARY-ONE") && holds(&path, "ANSWER-TO-CANARY-TWO"));

    tenant.conversation("reset").reset().await.unwrap();
    gone(&path, "CANARY-TWO").await;
    tenant.conversation("deleted").delete().await.unwrap();
    assert!(
        holds(&path, "CANARY-ONE"),
        "the fork is another conversation"
    );
    tenant.conversation("fork").delete().await.unwrap();
    gone(&path, "CANARY-ONE").await;

    assert!(holds(&path, "ANSWER-TO-KEPT-ONE"));
    assert_eq!(
        tenant.conversation("stays").messages().await.unwrap().len(),
        2
    );
    tenant
        .conversation("reset")
        .send("Hello again.")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();
    drop(host);
    let again = callboard::Host::builder()
        .provider(ScriptedModel::answering(|_, _| Reply::text("Still here.")))
        .sessions(Sqlite::open(&path).await.unwrap())
        .build()
        .await
        .unwrap();
    let reset = again.tenant("acme").conversation("reset");
    assert_eq!(reset.messages().await.unwrap().len(), 2);
    assert_eq!(
        reset
            .send("One more.")
            .await
            .unwrap()
            .outcome()
            .await
            .unwrap()
            .text,
        "Still here."
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_host_had_deleted_is_gone_soon_after_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let copy = folder.path().join("copy.db");
    let store = Sqlite::open(&path).await.unwrap();
    let scope = Scope::new(
        TenantId::new("acme").unwrap(),
        ConversationId::new("c").unwrap(),
    );
    let entry = StoredEntry {
        seq: Seq(1),
        bytes: "CANARY-THREE".into(),
    };
    store
        .append_and_wait(&scope, Head::default(), Epoch(1), vec![entry], Open::None)
        .await
        .unwrap();
    store.delete(&scope).await.unwrap();
    // The files that a kill right after the deletion leaves.
    for suffix in ["", "-wal"] {
        std::fs::copy(
            format!("{}{suffix}", path.display()),
            format!("{}{suffix}", copy.display()),
        )
        .unwrap();
    }
    assert!(holds(&copy, "CANARY-THREE"));

    let next = Sqlite::open(&copy).await.unwrap();

    gone(&copy, "CANARY-THREE").await;
    assert_eq!(next.head(&scope).await, Ok(Head::default()));
}
