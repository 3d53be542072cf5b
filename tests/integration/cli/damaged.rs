//! What the operator's commands show and mend of a damaged store.

use std::path::Path;

use callboard::{
    Host,
    ids::{ConversationId, Epoch, Scope, Seq, TenantId},
    journal::{Head, StoredEntry},
    ports::{AppendExt, SessionBackend as _},
    providers::offline::Offline,
    storage::Sqlite,
    stream::Open,
};

use super::{Home, PATIENCE};

async fn host(file: &Path) -> Host {
    Host::builder()
        .provider(Offline)
        .sessions(Sqlite::open(file).await.unwrap())
        .build()
        .await
        .unwrap()
}

/// Stores prompts and their answers in a conversation of the tenant `acme`.
async fn store(file: &Path, conversation: &str, prompts: &[&str]) {
    let host = host(file).await;
    for prompt in prompts {
        let handle = host.tenant("acme").conversation(conversation);
        let mut reply = handle.send(*prompt).await.unwrap();
        reply.outcome().await.unwrap();
    }
    host.shutdown(PATIENCE).await;
}

/// Flips a bit in the last entry that contains `text`. Returns its seq.
fn flip(file: &Path, text: &str) -> i64 {
    let conn = rusqlite::Connection::open(file).unwrap();
    let (id, seq, mut body): (i64, i64, Vec<u8>) = conn
        .query_row(
            "SELECT id, seq, body FROM journal WHERE CAST(body AS TEXT) LIKE '%' || ?1 || '%' ORDER BY id DESC LIMIT 1",
            [text],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        )
        .unwrap();
    let at = body
        .windows(text.len())
        .position(|window| window == text.as_bytes())
        .unwrap();
    body[at] ^= 1;
    conn.execute("UPDATE journal SET body = ?1 WHERE id = ?2", (body, id))
        .unwrap();
    seq
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_conversation_of_a_served_tenant_is_failed_shown_exported_and_mended() {
    let home = Home::new();
    let file = home.work().join("s.db");
    store(&file, "hurt", &["Good morning", "Hello again"]).await;
    store(&file, "well", &["Hello"]).await;
    let bad = flip(&file, "Hello again");
    let of = ["--tenant", "acme", "--db", "s.db"];
    let sessions = |command: &[&str]| home.run(&[&["sessions"], command, &of].concat());

    // The host serves the others, and fails this one by its code.
    let running = host(&file).await;
    let hurt = running.tenant("acme").conversation("hurt");
    let refused = hurt.send("Hello").await.unwrap_err();
    assert_eq!(refused.code(), "conversation_failed");
    assert!(
        refused.to_string().contains(&format!("entry {bad}")),
        "{refused}"
    );
    assert_eq!(
        hurt.messages().await.unwrap_err().code(),
        "conversation_failed"
    );
    let well = running.tenant("acme").conversation("well");
    assert_eq!(well.messages().await.unwrap().len(), 2);
    running.shutdown(PATIENCE).await;

    let listed = json(&sessions(&["list", "--json"]).well().out);
    let failed = |listed: &serde_json::Value, n: usize| listed[n]["failed"].clone();
    assert_eq!(
        (&listed[0]["conversation_id"], &listed[1]["conversation_id"]),
        (&"hurt".into(), &"well".into())
    );
    assert!(
        failed(&listed, 0)
            .to_string()
            .contains(&format!("entry {bad}"))
    );
    assert!(failed(&listed, 1).is_null());
    let shown = sessions(&["show", "hurt"]);
    assert!(
        shown.code == Some(1) && shown.err.contains("sessions repair hurt --tenant acme"),
        "{shown:?}"
    );
    let export = sessions(&["export", "hurt"]);
    assert_eq!(export.code, Some(1));
    assert_eq!(json(&export.out)["messages"].as_array().unwrap().len(), 2);
    assert!(
        export.err.contains(&format!("entry {bad}")) && export.err.contains("not exported:"),
        "{}",
        export.err
    );
    assert!(!sessions(&["show", "unknown"]).err.contains("hurt"));

    let repaired = json(&sessions(&["repair", "hurt"]).well().out);

    assert_eq!(repaired["messages"], 2);
    assert_eq!(repaired["entries"], bad - 1);
    let listed = json(&sessions(&["list", "--json"]).well().out);
    assert!(failed(&listed, 0).is_null());
    let kept = std::fs::read_to_string(home.work().join("s.db.hurt.damaged-1.json")).unwrap();
    assert!(
        kept.contains("Iello again"),
        "what was cut is kept as it was"
    );
    let again = host(&file).await;
    let hurt = again.tenant("acme").conversation("hurt");
    hurt.send("Go on").await.unwrap().outcome().await.unwrap();
    assert_eq!(hurt.messages().await.unwrap().len(), 4);
    again.shutdown(PATIENCE).await;
    sessions(&["repair", "hurt"]).well();
}

/// Leaves a database with a log, as a killed host does, and flips a bit in the log if asked.
async fn crashed(home: &Home, flipped: Option<usize>) {
    let live = home.path().join("live.db");
    let sqlite = Sqlite::open(&live).await.unwrap();
    let scope = Scope::new(
        TenantId::new("acme").unwrap(),
        ConversationId::new("c").unwrap(),
    );
    for seq in 1..=10 {
        let at = |seq: u64| Head {
            epoch: Epoch(u64::from(seq > 0)),
            seq: Seq(seq),
        };
        let entry = StoredEntry {
            seq: Seq(seq),
            bytes: format!("entry {seq}").into(),
        };
        sqlite
            .append_and_wait(&scope, at(seq - 1), Epoch(1), vec![entry], Open::None)
            .await
            .unwrap();
    }
    let to = home.work().join("s.db");
    std::fs::copy(&live, &to).unwrap();
    let mut log = std::fs::read(live.with_extension("db-wal")).unwrap();
    if let Some(part) = flipped {
        let at = log.len() / part;
        log[at] ^= 4;
    }
    std::fs::write(to.with_extension("db-wal"), log).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_log_stops_every_command_until_its_loss_is_accepted() {
    let home = Home::new();
    crashed(&home, Some(2)).await;
    std::fs::write(
        home.work().join("callboard.toml"),
        "[store]\nurl = \"sqlite:s.db\"\n",
    )
    .unwrap();

    let list = home.run(&["sessions", "list", "--tenant", "acme"]);
    let doctor = home.run(&["doctor"]);
    for ran in [(&list.err, list.code), (&doctor.out, doctor.code)] {
        assert_ne!(ran.1, Some(0));
        assert!(
            ran.0.contains("s.db-wal cannot be read from frame")
                && ran
                    .0
                    .contains("callboard sessions repair --accept-log-loss"),
            "{}",
            ran.0
        );
    }

    home.run(&["sessions", "repair", "--accept-log-loss"])
        .well();

    home.run(&["doctor"]).well();
    let list = home.run(&["sessions", "list", "--tenant", "acme"]).well();
    assert!(list.out.starts_with("c "), "{}", list.out);
    assert!(home.work().join("s.db-wal.damaged-1").is_file());
    let again = home
        .run(&["sessions", "repair", "--accept-log-loss"])
        .well();
    assert!(again.err.contains("its log is intact"), "{}", again.err);
}

fn store_lines(home: &Home) -> String {
    let ran = home.run(&["doctor"]);
    let lines = ran.out.lines();
    let ours = lines.filter(|line| line.contains(" store") || line.contains(" conversation "));
    ours.collect::<Vec<_>>().join("\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_sees_flipped_bits_lost_files_and_a_long_log() {
    let home = Home::new();
    let file = home.work().join("s.db");
    std::fs::write(
        home.work().join("callboard.toml"),
        "[store]\nurl = \"sqlite:s.db\"\n",
    )
    .unwrap();
    store(&file, "hurt", &["Good morning"]).await;
    store(&file, "well", &["Hello"]).await;
    let lines = store_lines(&home);
    assert!(
        lines.contains("all pages and 2 conversations are intact"),
        "{lines}"
    );

    let bad = flip(&file, "Good morning");
    let lines = store_lines(&home);
    assert!(
        lines.contains("fail store: 1 of 2 conversations damaged")
            && lines.contains(&format!("fail conversation hurt: entry {bad} "))
            && lines.contains("callboard sessions repair hurt --tenant acme"),
        "{lines}"
    );

    let log = std::fs::File::create(file.with_extension("db-wal")).unwrap();
    log.set_len(65 * 1024 * 1024).unwrap();
    let lines = store_lines(&home);
    assert!(
        lines.contains("warn store log:") && lines.contains("65 MiB"),
        "{lines}"
    );

    let held = Sqlite::open(&file).await.unwrap();
    std::fs::remove_file(&file).unwrap();
    let lines = store_lines(&home);
    assert!(
        !cfg!(target_os = "linux")
            || lines.contains(&format!(
                "process {} still has a database open",
                std::process::id()
            )),
        "{lines}"
    );
    held.close(PATIENCE).await.unwrap();
    std::fs::write(file.with_extension("db-wal"), [1; 100]).unwrap();
    let lines = store_lines(&home);
    assert!(
        lines.contains("the database was deleted or moved"),
        "{lines}"
    );
}
