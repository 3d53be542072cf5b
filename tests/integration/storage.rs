//! The SQLite store: its contract, and guarantees that only a file can give.

mod damage;
mod erased;
mod files;
mod log;
mod reads;
mod recovery;

use std::{
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use callboard::{
    ids::{ConversationId, Epoch, Scope, Seq, TenantId},
    journal::{Head, StoredEntry},
    ports::{
        Append, AppendError, AppendExt, BoxFuture, Durability, ListQuery, SessionBackend,
        StoreError,
    },
    storage::{Check, CommitMode, LockError, Sqlite, SqliteOptions},
    stream::Open,
};
use callboard_actors::testing::contract;
use tokio::sync::mpsc;

const SOON: Duration = Duration::from_secs(30);

fn scope(tenant: &str, conversation: &str) -> Scope {
    Scope::new(
        TenantId::new(tenant).unwrap(),
        ConversationId::new(conversation).unwrap(),
    )
}

fn head(epoch: u64, seq: u64) -> Head {
    Head {
        epoch: Epoch(epoch),
        seq: Seq(seq),
    }
}

fn entries(first: u64, last: u64) -> Vec<StoredEntry> {
    (first..=last)
        .map(|seq| StoredEntry {
            seq: Seq(seq),
            bytes: format!("entry {seq}").into(),
        })
        .collect()
}

/// Appends at once; the future resolves to the outcome.
fn write(
    store: &Sqlite,
    scope: &Scope,
    expected: Head,
    epoch: u64,
    last: u64,
) -> BoxFuture<'static, Result<(), AppendError>> {
    store.append_and_wait(
        scope,
        expected,
        Epoch(epoch),
        entries(expected.seq.0 + 1, last),
        Open::None,
    )
}

/// splitmix64
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_keeps_the_contract_of_a_session_backend() {
    for durability in [CommitMode::Batched, CommitMode::Sync] {
        let folder = tempfile::tempdir().unwrap();
        let count = std::sync::atomic::AtomicU32::new(0);
        contract::session_backend(async || {
            let n = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let options = SqliteOptions {
                durability,
                ..SqliteOptions::default()
            };
            Arc::new(
                Sqlite::open_with(folder.path().join(format!("{n}.db")), options)
                    .await
                    .unwrap(),
            ) as Arc<dyn SessionBackend>
        })
        .await;
    }
}

#[tokio::test]
async fn everything_is_there_after_the_file_was_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/folder/sessions.db");
    let a = scope("t", "a");
    let b = scope("t", "b");
    let store = Sqlite::open(&path).await.unwrap();
    write(&store, &a, Head::default(), 1, 5).await.unwrap();
    write(&store, &a, head(1, 5), 2, 9).await.unwrap();
    store
        .append_and_wait(&b, Head::default(), Epoch(1), entries(1, 1), Open::Running)
        .await
        .unwrap();
    store.snapshot(&a, Seq(7), "state".into()).await.unwrap();
    store.mark_failed(&b, Some("why".into())).await.unwrap();
    let listed = store.list(&a.tenant, ListQuery::default()).await.unwrap();
    store.close(SOON).await.unwrap();
    let files = || std::fs::read_dir(path.parent().unwrap()).unwrap().count();
    assert_eq!(files(), 1, "a clean close leaves one file");

    let store = Sqlite::open(&path).await.unwrap();

    let loaded = store.load(&a).await.unwrap();
    assert_eq!(
        (loaded.head, loaded.snapshot, loaded.entries),
        (head(2, 9), Some((Seq(7), "state".into())), entries(8, 9))
    );
    assert_eq!(store.entries(&a, Seq(0), 100).await.unwrap(), entries(1, 9));
    assert_eq!(
        store.list(&a.tenant, ListQuery::default()).await.unwrap(),
        listed
    );
    assert_eq!(listed[1].failed.as_deref(), Some("why"));
    assert_eq!(
        write(&store, &a, head(1, 5), 1, 6).await,
        Err(AppendError::Conflict {
            scope: a,
            found: head(2, 9)
        })
    );
}

#[tokio::test]
async fn a_drop_without_close_loses_nothing_that_was_queued() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let options = SqliteOptions {
        commit_delay: Duration::from_millis(500),
        ..SqliteOptions::default()
    };
    let store = Sqlite::open_with(&path, options).await.unwrap();
    let (sender, mut receiver) = mpsc::unbounded_channel();
    pour(
        &store,
        &scope("t", "c"),
        1..=50,
        Durability::Awaited,
        &sender,
    );
    drop(sender);

    let started = Instant::now();
    drop(store);
    assert!(
        started.elapsed() < Duration::from_millis(400),
        "a drop does not wait for the disk"
    );

    while let Some((seq, result)) = tokio::time::timeout(SOON, receiver.recv()).await.unwrap() {
        assert_eq!(result, Ok(()), "{seq}");
    }
    let again = Sqlite::open(&path).await.unwrap();
    assert_eq!(again.head(&scope("t", "c")).await, Ok(head(1, 50)));
}

type Outcome = (u64, Result<(), AppendError>);

/// Submits appends of one entry each without waiting.
fn pour(
    store: &Sqlite,
    scope: &Scope,
    seqs: std::ops::RangeInclusive<u64>,
    durability: Durability,
    sender: &mpsc::UnboundedSender<Outcome>,
) {
    for seq in seqs {
        let sender = sender.clone();
        store.append(Append {
            scope: scope.clone(),
            expected: head(u64::from(seq > 1), seq - 1),
            epoch: Epoch(1),
            entries: entries(seq, seq),
            open: Open::None,
            wake_at: None,
            messages: Vec::new(),
            durability,
            done: Box::new(move |result| sender.send((seq, result)).unwrap_or_default()),
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conversations_that_append_at_once_share_commits() {
    const CONVERSATIONS: u64 = 64;
    const EACH: u64 = 20;
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions {
        commit_delay: Duration::from_millis(2),
        ..SqliteOptions::default()
    };
    let store = Arc::new(
        Sqlite::open_with(folder.path().join("s.db"), options)
            .await
            .unwrap(),
    );

    let writers: Vec<_> = (0..CONVERSATIONS)
        .map(|n| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let scope = scope(["a", "b", "c"][n as usize % 3], &format!("c{n}"));
                for seq in 1..=EACH {
                    write(&store, &scope, head(u64::from(seq > 1), seq - 1), 1, seq)
                        .await
                        .unwrap();
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }

    let stats = store.stats();
    assert_eq!(stats.appends, CONVERSATIONS * EACH);
    assert!(
        stats.commits <= stats.appends / 8,
        "{} commits for {} appends",
        stats.commits,
        stats.appends
    );
}

#[tokio::test]
async fn unawaited_appends_are_written_without_a_flush_and_in_few_commits() {
    let folder = tempfile::tempdir().unwrap();
    let store = Sqlite::open(folder.path().join("s.db")).await.unwrap();
    let (sender, mut receiver) = mpsc::unbounded_channel();

    pour(
        &store,
        &scope("t", "c"),
        1..=100,
        Durability::Deferred,
        &sender,
    );
    for seq in 1..=100 {
        assert_eq!(
            tokio::time::timeout(SOON, receiver.recv()).await.unwrap(),
            Some((seq, Ok(())))
        );
    }

    assert!(store.stats().commits <= 10, "{:?}", store.stats());
}

#[tokio::test]
async fn a_conflict_fails_its_member_of_a_commit_only() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions {
        commit_delay: Duration::from_millis(50),
        ..SqliteOptions::default()
    };
    let store = Sqlite::open_with(folder.path().join("s.db"), options)
        .await
        .unwrap();
    write(&store, &scope("t", "first"), Head::default(), 1, 1)
        .await
        .unwrap();

    // The first commit is in progress; the others meet in the second.
    let one = write(&store, &scope("t", "first"), head(1, 1), 1, 2);
    let good = write(&store, &scope("t", "good"), Head::default(), 1, 3);
    let bad = write(&store, &scope("t", "bad"), head(1, 7), 1, 8);
    let other = write(&store, &scope("u", "good"), Head::default(), 1, 2);
    let (one, good, bad, other) = tokio::join!(one, good, bad, other);

    assert_eq!((one, good, other), (Ok(()), Ok(()), Ok(())));
    assert_eq!(
        bad,
        Err(AppendError::Conflict {
            scope: scope("t", "bad"),
            found: Head::default()
        })
    );
    assert!(store.stats().commits <= 3, "{:?}", store.stats());
    assert_eq!(store.head(&scope("t", "good")).await, Ok(head(1, 3)));
}

#[tokio::test]
async fn a_slow_disk_never_blocks_an_append_and_a_full_queue_refuses_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions {
        commit_delay: Duration::from_millis(700),
        queue_bytes_max: 20_000,
        ..SqliteOptions::default()
    };
    let store = Sqlite::open_with(folder.path().join("s.db"), options)
        .await
        .unwrap();
    let (sender, mut receiver) = mpsc::unbounded_channel();

    let started = Instant::now();
    pour(
        &store,
        &scope("t", "c"),
        1..=1000, // The writer may take the first hundreds before it waits for its disk.
        Durability::Awaited,
        &sender,
    );
    assert!(
        started.elapsed() < Duration::from_millis(600),
        "{:?}",
        started.elapsed()
    );

    let (seq, refused) = receiver.recv().await.unwrap();
    assert!(
        seq > 1
            && matches!(&refused, Err(AppendError::Overloaded { message }) if message.contains("waiting for the store"))
    );
    store.close(SOON).await.unwrap();
    drop(sender);
    let mut stored = 0;
    while let Some((_, result)) = receiver.recv().await {
        stored += u64::from(result.is_ok());
    }
    let again = Sqlite::open(folder.path().join("s.db")).await.unwrap();
    assert_eq!(
        again.head(&scope("t", "c")).await,
        Ok(head(1, stored)),
        "a prefix is stored: an append after a gap is a conflict"
    );
}

#[tokio::test]
async fn snapshots_of_thousands_leave_the_queue_to_appends() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions {
        durability: CommitMode::Batched,
        commit_delay: Duration::from_millis(2),
        ..SqliteOptions::default()
    };
    let store = Sqlite::open_with(folder.path().join("s.db"), options)
        .await
        .unwrap();
    let sleepers: Vec<Scope> = (0..5000).map(|n| scope("t", &format!("c{n}"))).collect();
    let c = scope("t", "running");
    write(&store, &c, Head::default(), 1, 1).await.unwrap();
    let state = bytes::Bytes::from(vec![b'x'; 100_000]);

    let snapshots: Vec<_> = sleepers
        .iter()
        .map(|sleeper| store.snapshot(sleeper, Seq(1), state.clone()))
        .collect();
    let mut results = Vec::new();
    for last in 2..=30 {
        results.push(write(&store, &c, head(1, last - 1), 1, last).await);
    }

    assert!(results.iter().all(Result::is_ok), "{results:?}");
    for snapshot in snapshots {
        assert_eq!(snapshot.await, Ok(()));
    }
}

#[tokio::test]
async fn a_close_without_time_fails_every_append_that_it_discards() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions {
        commit_delay: Duration::from_millis(400),
        ..SqliteOptions::default()
    };
    let store = Sqlite::open_with(folder.path().join("s.db"), options)
        .await
        .unwrap();
    let (sender, mut receiver) = mpsc::unbounded_channel();
    pour(
        &store,
        &scope("t", "c"),
        1..=1000,
        Durability::Awaited,
        &sender,
    );
    drop(sender);

    let closed = store.close(Duration::from_millis(50)).await;

    assert!(
        matches!(closed, Err(StoreError::Unavailable { .. })),
        "{closed:?}"
    );
    let mut seen = Vec::new();
    while let Some((seq, _)) = tokio::time::timeout(SOON, receiver.recv()).await.unwrap() {
        seen.push(seq);
    }
    seen.sort_unstable();
    assert_eq!(seen, (1..=1000).collect::<Vec<_>>(), "each answered once");
}

#[tokio::test]
async fn of_two_handles_on_one_file_the_stale_one_cannot_write() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let (one, two) = tokio::join!(Sqlite::open(&path), Sqlite::open(&path));
    let one = one.unwrap();
    let two = two.unwrap();
    let c = scope("t", "c");
    write(&one, &c, Head::default(), 1, 2).await.unwrap();

    assert_eq!(two.head(&c).await, Ok(head(1, 2)), "seen at once");
    write(&two, &c, head(1, 2), 2, 3).await.unwrap();

    assert_eq!(
        write(&one, &c, head(1, 2), 1, 3).await,
        Err(AppendError::Conflict {
            scope: c.clone(),
            found: head(2, 3)
        })
    );
    assert_eq!(one.load(&c).await.unwrap().entries, entries(1, 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handles_that_create_one_file_concurrently_all_open_it() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..40 {
        let path = folder.path().join(format!("{round}.db"));
        let open = || {
            tokio::spawn({
                let path = path.clone();
                async move { Sqlite::open(&path).await.map(drop) }
            })
        };
        let opened = tokio::join!(open(), open(), open());
        assert_eq!(
            (opened.0.unwrap(), opened.1.unwrap(), opened.2.unwrap()),
            (Ok(()), Ok(()), Ok(())),
            "file {round}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_handles_write_different_conversations_without_loss() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let one = Arc::new(Sqlite::open(&path).await.unwrap());
    let two = Arc::new(Sqlite::open(&path).await.unwrap());

    let writers: Vec<_> = [(one, "a"), (two, "b")]
        .into_iter()
        .map(|(store, id)| {
            tokio::spawn(async move {
                for seq in 1..=30 {
                    write(
                        &store,
                        &scope("t", id),
                        head(u64::from(seq > 1), seq - 1),
                        1,
                        seq,
                    )
                    .await
                    .unwrap();
                }
                store
            })
        })
        .collect();

    for writer in writers {
        let store = writer.await.unwrap();
        store.close(SOON).await.unwrap();
    }
    let store = Sqlite::open(&path).await.unwrap();
    for id in ["a", "b"] {
        assert_eq!(
            store.load(&scope("t", id)).await.unwrap().entries,
            entries(1, 30)
        );
    }
}

#[tokio::test]
async fn a_database_locked_by_another_process_is_unavailable_until_released() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let options = SqliteOptions {
        busy: Duration::from_millis(100),
        ..SqliteOptions::default()
    };
    let store = Sqlite::open_with(&path, options).await.unwrap();
    let c = scope("t", "c");
    write(&store, &c, Head::default(), 1, 1).await.unwrap();
    let other = rusqlite::Connection::open(&path).unwrap();

    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let refused = write(&store, &c, head(1, 1), 1, 2).await;
    assert_eq!(
        refused,
        Err(AppendError::Unavailable {
            message: "another process holds the database".into()
        })
    );
    assert_eq!(store.head(&c).await, Ok(head(1, 1)), "reads still work");
    other.execute_batch("ROLLBACK").unwrap();

    assert_eq!(write(&store, &c, head(1, 1), 1, 2).await, Ok(()));
}

#[tokio::test]
async fn a_failure_inside_of_a_batch_stores_nothing_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let c = scope("t", "c");
    let store = Sqlite::open(&path).await.unwrap();
    write(&store, &c, Head::default(), 1, 1).await.unwrap();
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("CREATE TRIGGER no BEFORE INSERT ON journal WHEN new.seq = 4 BEGIN SELECT RAISE(ABORT, 'no'); END").unwrap();

    let refused = write(&store, &c, head(1, 1), 1, 5).await;

    assert!(
        matches!(refused, Err(AppendError::Unavailable { .. })),
        "{refused:?}"
    );
    assert_eq!(store.head(&c).await, Ok(head(1, 1)));
    assert_eq!(store.load(&c).await.unwrap().entries, entries(1, 1));
    other.execute_batch("DROP TRIGGER no").unwrap();
    assert_eq!(write(&store, &c, head(1, 1), 1, 5).await, Ok(()));
}

#[tokio::test]
async fn one_damaged_journal_is_one_damaged_session() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let store = Sqlite::open(&path).await.unwrap();
    for id in ["bad", "cut", "good"] {
        write(&store, &scope("t", id), Head::default(), 1, 5)
            .await
            .unwrap();
    }
    let sql = "DELETE FROM journal WHERE seq = ?2 AND conv = (SELECT conv FROM conversation WHERE id = ?1)";
    let other = rusqlite::Connection::open(&path).unwrap();
    for (id, seq) in [("bad", 3), ("cut", 5)] {
        other.execute(sql, rusqlite::params![id, seq]).unwrap();
    }

    for (id, seq) in [("bad", 3), ("cut", 5)] {
        let message = format!("entry {seq} is missing or out of order");
        assert_eq!(
            store.load(&scope("t", id)).await,
            Err(StoreError::Damaged {
                scope: scope("t", id),
                message
            })
        );
    }
    assert_eq!(
        store.load(&scope("t", "good")).await.unwrap().entries,
        entries(1, 5)
    );
    let readable: Vec<u64> = store
        .salvage(&scope("t", "bad"), Seq(0), 10)
        .await
        .unwrap()
        .iter()
        .map(|row| row.entry.seq.0)
        .collect();
    assert_eq!(readable, [1, 2, 4, 5], "an export gives what is readable");
    assert_eq!(
        store
            .list(&scope("t", "x").tenant, ListQuery::default())
            .await
            .unwrap()
            .len(),
        3
    );
}

#[tokio::test]
async fn the_log_stays_short_while_it_is_written_without_pause() {
    const MIB: u64 = 1024 * 1024;
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions {
        durability: CommitMode::Batched,
        ..SqliteOptions::default()
    };
    let store = Sqlite::open_with(folder.path().join("s.db"), options)
        .await
        .unwrap();
    let c = scope("t", "c");

    for seq in 1..=80 {
        let entry = StoredEntry {
            seq: Seq(seq),
            bytes: vec![b'x'; MIB as usize].into(),
        };
        store
            .append_and_wait(
                &c,
                head(u64::from(seq > 1), seq - 1),
                Epoch(1),
                vec![entry],
                Open::None,
            )
            .await
            .unwrap();
    }

    let log = std::fs::metadata(folder.path().join("s.db-wal"))
        .unwrap()
        .len();
    assert!(log < 48 * MIB, "{log} bytes of log after 80 MiB");
}

#[tokio::test]
async fn a_newer_schema_is_named_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    Sqlite::open(&path)
        .await
        .unwrap()
        .close(SOON)
        .await
        .unwrap();
    rusqlite::Connection::open(&path)
        .unwrap()
        .pragma_update(None, "user_version", 99)
        .unwrap();

    let refused = Sqlite::open(&path).await.map(drop);

    assert_eq!(
        refused,
        Err(StoreError::NewerSchema {
            found: 99,
            known: 6
        })
    );
}

#[tokio::test]
async fn a_file_that_cannot_be_opened_is_reported_in_one_line_with_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let open = async |name: &str| match Sqlite::open(folder.path().join(name)).await {
        Ok(store) => panic!("{name} opened: {store:?}"),
        Err(error) => error.to_string(),
    };
    std::fs::write(
        folder.path().join("notes.txt"),
        "not a database, but long enough to have a header of one ".repeat(20),
    )
    .unwrap();
    rusqlite::Connection::open(folder.path().join("foreign.db"))
        .unwrap()
        .execute_batch("CREATE TABLE theirs (x)")
        .unwrap();
    std::fs::create_dir(folder.path().join("folder.db")).unwrap();
    std::fs::write(folder.path().join("file"), "").unwrap();

    let may_be = "; the file and its folder must be writable by this user, or name another file";
    for (name, last, why, hint) in [
        (
            "notes.txt",
            "notes.txt",
            "the file is not a SQLite database",
            "",
        ),
        (
            "foreign.db",
            "foreign.db",
            "it is a database of another program",
            "",
        ),
        ("folder.db", "folder.db", "is a directory", may_be),
        ("file/below.db", "below.db", "not a directory", may_be),
    ] {
        assert_eq!(
            open(name).await,
            format!("the store is not available: cannot open {last}: {why}{hint}")
        );
    }
    let theirs = rusqlite::Connection::open(folder.path().join("foreign.db")).unwrap();
    let mode: String = theirs
        .pragma_query_value(None, "journal_mode", |row| row.get(0))
        .unwrap();
    assert_eq!(mode, "delete", "another program's file stays unchanged");
}

#[tokio::test]
async fn damage_after_a_crash_is_found_on_opening() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let store = Sqlite::open(&path).await.unwrap();
    for n in 0..20 {
        write(
            &store,
            &scope("t", &format!("c{n}")),
            Head::default(),
            1,
            50,
        )
        .await
        .unwrap();
    }
    store.close(SOON).await.unwrap();
    // A page in the middle is overwritten, and a log is left as after a crash.
    let mut bytes = std::fs::read(&path).unwrap();
    let page = bytes.len() / 4096 / 2 * 4096;
    bytes[page..page + 4096].fill(0xa5);
    std::fs::write(&path, bytes).unwrap();
    let crash = || std::fs::write(folder.path().join("s.db-wal"), [0; 32]).unwrap();

    crash();
    let refused = Sqlite::open(&path).await.map(drop).unwrap_err().to_string();
    assert!(
        refused.contains("s.db is damaged") || refused.contains("the file is damaged"),
        "{refused}"
    );
    crash();
    let options = SqliteOptions {
        check: Check::Never,
        ..SqliteOptions::default()
    };
    assert!(
        Sqlite::open_with(&path, options).await.is_ok(),
        "the intact rest can be read"
    );
}

#[cfg(unix)]
#[tokio::test]
async fn the_file_is_for_its_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("private/s.db");

    let store = Sqlite::open(&path).await.unwrap();
    write(&store, &scope("t", "c"), Head::default(), 1, 1)
        .await
        .unwrap();
    let lock = store.lock_session(&scope("t", "c")).unwrap();

    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(path.parent().unwrap()), 0o700);
    let modes: Vec<u32> = std::fs::read_dir(path.parent().unwrap())
        .unwrap()
        .map(|file| mode(&file.unwrap().path()))
        .collect();
    assert_eq!(modes, [0o600; 4], "database, log, index of the log, lock");
    drop(lock);
}

#[tokio::test]
async fn a_session_has_one_live_holder() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let one = Sqlite::open(&path).await.unwrap();
    let two = Sqlite::open(&path).await.unwrap();
    let c = scope("t", "c");

    let lock = one.lock_session(&c).unwrap();
    let refused = two.lock_session(&c).unwrap_err();
    assert_eq!(
        refused,
        LockError::SessionInUse {
            conversation: c.conversation.clone()
        }
    );
    assert!(
        refused.to_string().starts_with("session in use"),
        "{refused}"
    );
    let _other_tenant = two.lock_session(&scope("u", "c")).unwrap();
    drop(lock);

    let again = two.lock_session(&c).unwrap();
    drop(again);
    let left = std::fs::read_dir(folder.path()).unwrap().filter(|file| {
        let name = file.as_ref().unwrap().file_name();
        name.to_string_lossy().contains("-lock-")
    });
    assert_eq!(left.count(), 1, "only the other tenant's is left");
}

const FULL_CHILD: &str = "CALLBOARD_TEST_FULL_CHILD";

/// Not a test: the child process of the full-disk test, under a limit on file size.
#[test]
fn full_child() {
    let Ok(path) = std::env::var(FULL_CHILD) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let c = scope("t", "c");
        let store = Sqlite::open(path).await.unwrap();
        let big = |seq| {
            vec![StoredEntry {
                seq: Seq(seq),
                bytes: vec![b'x'; 20_000].into(),
            }]
        };
        let mut at = Head::default();
        let refused = loop {
            let next = head(1, at.seq.0 + 1);
            match store
                .append_and_wait(&c, at, Epoch(1), big(next.seq.0), Open::None)
                .await
            {
                Ok(()) => at = next,
                Err(error) => break error,
            }
        };
        assert!(
            matches!(refused, AppendError::Unavailable { .. }),
            "{refused:?}"
        );
        assert_eq!(
            store.head(&c).await,
            Ok(at),
            "nothing of the refused append is stored"
        );
        let again = store
            .append_and_wait(&c, at, Epoch(1), big(at.seq.0 + 1), Open::None)
            .await;
        assert!(
            matches!(again, Err(AppendError::Unavailable { .. })),
            "{again:?}"
        );
        std::io::stdout()
            .write_all(format!("\nSTORED {}\n", at.seq).as_bytes())
            .unwrap();
    });
}

#[cfg(unix)]
#[tokio::test]
async fn a_full_disk_refuses_appends_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");

    // A limit on file size stands in for a full disk: the operating system reports the same errors.
    let output = Command::new("sh")
        .args([
            "-c",
            "trap '' XFSZ; ulimit -f 400; exec \"$0\" --exact storage::full_child --nocapture",
        ])
        .arg(std::env::current_exe().unwrap())
        .env(FULL_CHILD, &path)
        .output()
        .unwrap();

    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let stored: u64 = text
        .lines()
        .find_map(|line| line.strip_prefix("STORED "))
        .unwrap()
        .parse()
        .unwrap();
    assert!(stored > 0);
    let store = Sqlite::open(&path).await.unwrap();
    assert_eq!(
        store.load(&scope("t", "c")).await.unwrap().entries.len() as u64,
        stored
    );
    assert_eq!(
        write(&store, &scope("t", "c"), head(1, stored), 1, stored + 1).await,
        Ok(()),
        "with room again, appends succeed"
    );
}

const KILL_CHILD: &str = "CALLBOARD_TEST_KILL_CHILD";
const KILL_CONVERSATIONS: u64 = 6;

/// Not a test: the child process of the kill test.
#[test]
fn kill_child() {
    let Ok(path) = std::env::var(KILL_CHILD) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let store = Arc::new(Sqlite::open(path).await.unwrap());
        let writers = (0..KILL_CONVERSATIONS).map(|n| {
            let store = Arc::clone(&store);
            async move {
                let scope = scope("t", &format!("c{n}"));
                let mut at = store.head(&scope).await.unwrap();
                let epoch = at.epoch.0 + 1;
                loop {
                    let last = at.seq.0 + 1 + at.seq.0 % 3;
                    write(&store, &scope, at, epoch, last).await.unwrap();
                    at = head(epoch, last);
                    // The acknowledgement is one write, so that a kill cannot truncate it to
                    // another valid number.
                    std::io::stdout()
                        .write_all(format!("ACK {n} {last} .\n").as_bytes())
                        .unwrap();
                }
            }
        });
        futures_util::future::join_all(writers).await;
    });
}

#[tokio::test]
async fn kill_nine_at_any_point_loses_no_acknowledged_append() {
    let mut seed = std::env::var("CALLBOARD_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(7);
    println!("CALLBOARD_SEED={seed}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let mut acknowledged = [0; KILL_CONVERSATIONS as usize];

    for round in 1..=20 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "storage::kill_child", "--nocapture"])
            .env(KILL_CHILD, &path)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut note = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let is_ack = words.len() >= 4
                && words[words.len() - 4] == "ACK"
                && words[words.len() - 1] == ".";
            if is_ack {
                let n: usize = words[words.len() - 3].parse().unwrap();
                let seq: u64 = words[words.len() - 2].parse().unwrap();
                acknowledged[n] = acknowledged[n].max(seq);
            }
            is_ack
        };
        let mut left = 1 + random(&mut seed) % 60;
        while left > 0 {
            let mut line = String::new();
            assert!(
                lines.read_line(&mut line).unwrap() > 0,
                "the child ended early in round {round}"
            );
            left -= u64::from(note(&line));
        }
        // The kill may hit between two acknowledgements, inside of a commit or not.
        let wait = Duration::from_micros(random(&mut seed) % 3000);
        let started = Instant::now();
        while started.elapsed() < wait {
            std::hint::spin_loop();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let mut rest = String::new();
        lines.read_to_string(&mut rest).unwrap();
        for line in rest.lines() {
            note(line);
        }

        let store = Sqlite::open(&path).await.unwrap();
        for n in 0..KILL_CONVERSATIONS {
            let loaded = store.load(&scope("t", &format!("c{n}"))).await.unwrap();
            let seq = acknowledged[n as usize];
            assert!(
                loaded.head.seq.0 >= seq,
                "round {round}, conversation {n}: {seq} was acknowledged, {:?} is stored",
                loaded.head
            );
            assert_eq!(loaded.entries, entries(1, loaded.head.seq.0));
        }
        store.close(SOON).await.unwrap();
    }
    assert!(acknowledged.iter().all(|seq| *seq > 0), "{acknowledged:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_of_the_first_version_counts_what_it_holds() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let conn = rusqlite::Connection::open(&path).unwrap();
    conn.execute_batch(include_str!("../../src/storage/sqlite/schema.sql"))
        .unwrap();
    conn.execute_batch(
        "INSERT INTO conversation VALUES (1, 't', 'a', 1, 2, 0, NULL, 5, 5, NULL), (2, 'u', 'a', 1, 1, 0, NULL, 5, 5, NULL);
         INSERT INTO journal (conv, seq, body) VALUES (1, 1, x'0102'), (1, 2, x'030405'), (2, 1, x'00');
         INSERT INTO snapshot VALUES (1, 2, x'01020304');
         PRAGMA user_version = 1; PRAGMA application_id = 1128419908;",
    )
    .unwrap();
    drop(conn);

    let store = Sqlite::open(&path).await.unwrap();

    let stored = async |tenant: &str| {
        store
            .stored_bytes(&TenantId::new(tenant).unwrap())
            .await
            .unwrap()
    };
    assert_eq!(
        (
            stored("t").await,
            stored("u").await,
            stored("unknown").await
        ),
        (2 + 3 + 4, 1, 0)
    );
    store.close(Duration::from_secs(5)).await.unwrap();
    let again = Sqlite::open(&path).await.unwrap();
    assert_eq!(
        again.stored_bytes(&TenantId::new("t").unwrap()).await,
        Ok(9)
    );
}
