//! Damage on the medium is never served as a history: flipped bits, lost frames, lost files.

use std::path::PathBuf;

use callboard::ports::Salvaged;
use callboard_actors::testing::TestSize;
use callboard_actors::{journal::Loaded, testing::contract::DamagedRow};

use super::*;
use crate::support::{SplitMix, seed};

fn is_long() -> bool {
    TestSize::is_long()
}

pub(super) fn log_of(path: &Path) -> PathBuf {
    path.with_extension("db-wal")
}

/// Copies a database and its log while no commit is under way: what a killed process leaves.
pub(super) fn copy(path: &Path, to: &Path) {
    std::fs::copy(path, to).unwrap();
    match std::fs::copy(log_of(path), log_of(to)) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound),
    }
}

pub(super) fn flip(file: &Path, bit: u64) {
    let mut bytes = std::fs::read(file).unwrap();
    bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    std::fs::write(file, bytes).unwrap();
}

pub(super) fn bits(file: &Path) -> u64 {
    std::fs::metadata(file).map_or(0, |file| file.len() * 8)
}

/// Flips a bit of a stored body by another connection.
fn damage(path: &Path, row: DamagedRow) {
    let conn = rusqlite::Connection::open(path).unwrap();
    let (table, at) = match row {
        DamagedRow::Entry(seq) => ("journal", format!("seq = {}", seq.0)),
        DamagedRow::Snapshot => ("snapshot", "TRUE".to_owned()),
    };
    let of = "conv = (SELECT conv FROM conversation WHERE tenant = 't' AND id = 'c')";
    let select = format!("SELECT body FROM {table} WHERE {of} AND {at}");
    let mut body: Vec<u8> = conn.query_row(&select, [], |row| row.get(0)).unwrap();
    body[2] ^= 0x10;
    let update = format!("UPDATE {table} SET body = ?1 WHERE {of} AND {at}");
    assert_eq!(conn.execute(&update, [body]).unwrap(), 1);
}

#[tokio::test]
async fn sqlite_keeps_the_contract_of_a_store_that_can_be_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");

    contract::session_backend_on_damage(
        async || Sqlite::open(&path).await.unwrap(),
        async |_, row| damage(&path, row),
    )
    .await;
}

#[tokio::test]
async fn rows_of_another_conversation_or_place_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let store = Sqlite::open(&path).await.unwrap();
    for id in ["a", "b", "c"] {
        write(&store, &scope("t", id), Head::default(), 1, 5)
            .await
            .unwrap();
    }
    let other = rusqlite::Connection::open(&path).unwrap();
    let conv = |id: &str| format!("(SELECT conv FROM conversation WHERE id = '{id}')");
    let change = |sql: String| assert!(other.execute(&sql, []).unwrap() > 0, "{sql}");

    // The whole journal of `b` in the place of that of `a`, with a fitting head row.
    change(format!("DELETE FROM journal WHERE conv = {}", conv("a")));
    change(format!(
        "INSERT INTO journal (conv, seq, body, digest) SELECT {}, seq, body, digest FROM journal WHERE conv = {}",
        conv("a"),
        conv("b")
    ));
    change(format!(
        "UPDATE conversation SET digest = (SELECT digest FROM conversation WHERE id = 'b') WHERE conv = {}",
        conv("a")
    ));
    // A journal whose head row is older than it.
    change("UPDATE conversation SET head_seq = 4 WHERE id = 'c'".into());

    for (id, what) in [
        ("a", "entry 1 is not what was stored"),
        ("c", "there are entries after 4"),
    ] {
        let loaded = store.load(&scope("t", id)).await;
        assert!(
            matches!(&loaded, Err(StoreError::Damaged { message, .. }) if message.contains(what)),
            "{loaded:?}"
        );
    }
    assert_eq!(
        store.load(&scope("t", "b")).await.unwrap().entries,
        entries(1, 5)
    );
}

#[tokio::test]
async fn a_conversation_that_its_index_does_not_find_is_damaged_and_not_unknown() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let store = Sqlite::open(&path).await.unwrap();
    for id in ["unlucky", "lucky"] {
        write(&store, &scope("t", id), Head::default(), 1, 5)
            .await
            .unwrap();
    }
    store.close(SOON).await.unwrap();
    // The name is in the head row and in the index; the last copy in the file is that of the index.
    let bytes = std::fs::read(&path).unwrap();
    let places: Vec<usize> = bytes
        .windows(8)
        .enumerate()
        .filter(|(_, window)| window == b"tunlucky")
        .map(|(at, _)| at)
        .collect();
    assert_eq!(places.len(), 2, "the head row and its index");

    for place in places {
        let mut changed = bytes.clone();
        changed[place + 1] ^= 2;
        std::fs::write(&path, changed).unwrap();
        let store = Sqlite::open(&path).await.unwrap();
        let loaded = store.load(&scope("t", "unlucky")).await;
        assert!(
            match &loaded {
                Ok(loaded) => loaded.entries == entries(1, 5),
                Err(error) => matches!(error, StoreError::Damaged { .. }),
            },
            "{loaded:?}"
        );
        assert_eq!(
            store.load(&scope("t", "lucky")).await.unwrap().entries,
            entries(1, 5)
        );
        store.close(SOON).await.unwrap();
    }
}

#[tokio::test]
async fn rows_of_an_earlier_version_are_read_and_new_ones_are_protected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let conn = rusqlite::Connection::open(&path).unwrap();
    conn.execute_batch(include_str!("../../../src/storage/sqlite/schema.sql"))
        .unwrap();
    conn.execute_batch(include_str!("../../../src/storage/sqlite/schema_2.sql"))
        .unwrap();
    conn.execute_batch(
        "INSERT INTO conversation VALUES (1, 't', 'c', 1, 3, 0, NULL, 5, 5, NULL, 0);
         INSERT INTO journal (conv, seq, body) VALUES (1, 1, 'entry 1'), (1, 2, 'entry 2'), (1, 3, 'entry 3');
         INSERT INTO snapshot VALUES (1, 2, 'the state after 2');
         PRAGMA user_version = 2; PRAGMA application_id = 1128419908;"
            .replace("'entry 1'", "x'656e7472792031'")
            .replace("'entry 2'", "x'656e7472792032'")
            .replace("'entry 3'", "x'656e7472792033'")
            .replace("'the state after 2'", "x'7374617465'")
            .as_str(),
    )
    .unwrap();
    drop(conn);
    let c = scope("t", "c");

    let store = Sqlite::open(&path).await.unwrap();
    let old = store.load(&c).await.unwrap();
    write(&store, &c, head(1, 3), 2, 6).await.unwrap();
    let new = store.load(&c).await.unwrap();

    let snapshot = Some((Seq(2), "state".into()));
    let expected = |last, epoch| Loaded {
        head: head(epoch, last),
        snapshot: snapshot.clone(),
        entries: entries(3, last),
    };
    assert_eq!((old, new), (expected(3, 1), expected(6, 2)));
    assert_eq!(store.entries(&c, Seq(0), 10).await.unwrap(), entries(1, 6));
    damage(&path, DamagedRow::Entry(Seq(5)));
    assert!(matches!(
        store.load(&c).await,
        Err(StoreError::Damaged { message, .. }) if message.contains("entry 5")
    ));
    let fault = |row: &Salvaged| row.fault.is_some();
    let salvaged = store.salvage(&c, Seq(0), 10).await.unwrap();
    assert_eq!(salvaged.iter().position(fault), Some(4));
    // A row that lost its digest is no row of an earlier version.
    let other = rusqlite::Connection::open(&path).unwrap();
    other
        .execute("UPDATE journal SET digest = NULL WHERE seq = 4", [])
        .unwrap();
    assert_eq!(store.entries(&c, Seq(0), 10).await.unwrap(), entries(1, 4));
    other
        .execute("UPDATE journal SET digest = NULL WHERE seq = 6", [])
        .unwrap();
    let salvaged = store.salvage(&c, Seq(5), 10).await.unwrap();
    assert_eq!(salvaged.iter().position(fault), Some(0));
}

#[tokio::test]
async fn what_a_host_of_an_earlier_version_still_stores_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let store = Sqlite::open(&path).await.unwrap();
    let c = scope("t", "c");
    // Its statements name the columns that it knows.
    rusqlite::Connection::open(&path)
        .unwrap()
        .execute_batch(
            "INSERT INTO conversation (tenant, id, epoch, head_seq, open, wake_at, created_at, updated_at, bytes)
             VALUES ('t', 'c', 1, 1, 0, NULL, 5, 5, 7);
             INSERT INTO journal (conv, seq, body) SELECT conv, 1, CAST('entry 1' AS BLOB) FROM conversation;",
        )
        .unwrap();

    assert_eq!(store.load(&c).await.unwrap().entries, entries(1, 1));
    let again = Sqlite::open(&path).await.unwrap();
    write(&again, &c, head(1, 1), 2, 3).await.unwrap();
    assert_eq!(again.load(&c).await.unwrap().entries, entries(1, 3));
}

#[tokio::test]
async fn verify_names_each_damaged_conversation() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let store = Sqlite::open(&path).await.unwrap();
    for (tenant, id) in [("t", "c"), ("t", "d"), ("u", "c")] {
        write(&store, &scope(tenant, id), Head::default(), 1, 3000)
            .await
            .unwrap();
    }
    let c = scope("t", "c");
    let state = store.snapshot(&c, Seq(2900), "state".into());
    state.await.unwrap();
    assert_eq!(store.verify().await.unwrap().damaged, []);

    damage(&path, DamagedRow::Entry(Seq(1500)));

    let verified = store.verify().await.unwrap();
    assert_eq!(verified.conversations, 3);
    let [(of, what)] = verified.damaged.as_slice() else {
        panic!("{verified:?}")
    };
    assert_eq!(*of, scope("t", "c"));
    assert!(what.contains("entry 1500"), "{what}");
}

/// Conversations of the stores that bits are flipped in.
pub(super) const CONVERSATIONS: u64 = 20;

/// The entries of a conversation, from `first` to `last`, of different lengths.
pub(super) fn texts(n: u64, first: u64, last: u64) -> Vec<StoredEntry> {
    (first..=last)
        .map(|seq| StoredEntry {
            seq: Seq(seq),
            bytes: format!(
                "{{\"conversation\":{n},\"entry\":{seq},\"text\":\"{}\"}}",
                "word ".repeat((seq * 7 + n) as usize % 90)
            )
            .into(),
        })
        .collect()
}

fn state(n: u64, upto: u64) -> String {
    format!("conversation {n} after {upto}: {}", "state ".repeat(40))
}

fn snapshot_at(n: u64) -> u64 {
    5 + n
}

pub(super) fn nth(n: u64) -> Scope {
    scope(["t", "u"][n as usize % 2], &format!("conversation-{n}"))
}

async fn append(store: &Sqlite, n: u64, after: u64, last: u64) {
    let expected = head(u64::from(after > 0), after);
    let entries = texts(n, after + 1, last);
    store
        .append_and_wait(&nth(n), expected, Epoch(1), entries, Open::None)
        .await
        .unwrap();
}

/// Writes a store whose newer half is in its log, and copies it there as a crash would leave it.
pub(super) async fn crashed(folder: &Path) -> (PathBuf, Vec<u64>) {
    let live = folder.join("live.db");
    let mut ends = vec![0; CONVERSATIONS as usize];
    let mut grow = async |store: &Sqlite, by: u64| {
        for n in 0..CONVERSATIONS {
            for step in 1..=3 {
                let end = &mut ends[n as usize];
                append(store, n, *end, *end + by + step).await;
                *end += by + step;
            }
        }
    };
    let store = Sqlite::open(&live).await.unwrap();
    grow(&store, 4).await;
    for n in (0..CONVERSATIONS).step_by(2) {
        let upto = snapshot_at(n).min(18);
        let of = nth(n);
        let snapshot = store.snapshot(&of, Seq(upto), state(n, upto).into());
        snapshot.await.unwrap();
    }
    store.close(SOON).await.unwrap();
    let store = Sqlite::open(&live).await.unwrap();
    grow(&store, 1).await;
    let path = folder.join("crashed.db");
    copy(&live, &path);
    store.close(SOON).await.unwrap();
    (path, ends)
}

/// What became of a damaged store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Refused,
    /// This number of conversations report damage; the others are as they were.
    Failed(u64),
    Intact,
}

/// Opens a store and compares every conversation with what was acknowledged.
async fn judge(path: &Path, ends: &[u64]) -> Result<Outcome, String> {
    let store = match Sqlite::open(path).await {
        Ok(store) => store,
        Err(_) => return Ok(Outcome::Refused),
    };
    let mut failed = 0;
    for n in 0..CONVERSATIONS {
        let end = ends[n as usize];
        let read = store.entries(&nth(n), Seq(0), 1000).await;
        if let Ok(read) = &read
            && *read != texts(n, 1, read.len() as u64)
        {
            return Err(format!("conversation {n} has other entries: {read:?}"));
        }
        let loaded = match store.load(&nth(n)).await {
            Ok(loaded) => loaded,
            Err(_) => {
                failed += 1;
                continue;
            }
        };
        let (from, is_right) = match &loaded.snapshot {
            Some((upto, bytes)) => (upto.0, bytes == state(n, upto.0).as_bytes()),
            None => (0, true),
        };
        let entries = texts(n, from + 1, end);
        if !is_right || loaded.head.seq.0 != end || loaded.entries != entries {
            return Err(format!(
                "conversation {n} of {end} entries is loaded as {:?} from {from} with {}",
                loaded.head,
                loaded.entries.len()
            ));
        }
        let pages = read.map(|read| read.len() as u64).unwrap_or_default();
        if pages != end && from == 0 {
            return Err(format!(
                "conversation {n} loads whole, and pages end at {pages}"
            ));
        }
    }
    store.close(SOON).await.unwrap();
    Ok(match failed {
        0 => Outcome::Intact,
        failed => Outcome::Failed(failed),
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flipped_bits_never_make_a_wrong_history() {
    let mut random = SplitMix(seed("flipped_bits"));
    let runs = if is_long() { 1000 } else { 100 };
    let folder = tempfile::tempdir().unwrap();
    let (crashed, ends) = crashed(folder.path()).await;
    assert_eq!(
        judge_copy(&folder, &crashed, &ends, &[]).await,
        Outcome::Intact
    );
    let (database, log) = (bits(&crashed), bits(&log_of(&crashed)));
    assert!(log > 100_000 && database > 100_000, "{database} {log}");
    let mut outcomes = std::collections::BTreeMap::<&str, u32>::new();

    for run in 0..runs {
        let in_log = run % 2 == 0;
        let bits = if in_log { log } else { database };
        // In the log, one bit a frame: two in a frame of the last commit look as a crash does.
        let mut frames = std::collections::BTreeSet::new();
        let flips: Vec<(bool, u64)> = (0..1 + random.next() % 4)
            .map(|_| random.next() % bits)
            .filter(|bit| !in_log || frames.insert(bit.saturating_sub(32 * 8) / (4120 * 8)))
            .map(|bit| (in_log, bit))
            .collect();
        let outcome = match judge_copy(&folder, &crashed, &ends, &flips).await {
            Outcome::Refused => "refused to start",
            Outcome::Failed(_) => "failed conversations",
            Outcome::Intact => "intact",
        };
        *outcomes.entry(outcome).or_default() += 1;
    }
    println!("{runs} runs: {outcomes:?}, 0 wrong histories");
}

async fn judge_copy(
    folder: &tempfile::TempDir,
    crashed: &Path,
    ends: &[u64],
    flips: &[(bool, u64)],
) -> Outcome {
    let path = folder.path().join("flipped.db");
    for left in ["db", "db-wal", "db-shm"] {
        drop(std::fs::remove_file(path.with_extension(left)));
    }
    copy(crashed, &path);
    for (in_log, bit) in flips {
        match in_log {
            true => flip(&log_of(&path), *bit),
            false => flip(&path, *bit),
        }
    }
    judge(&path, ends)
        .await
        .unwrap_or_else(|wrong| panic!("wrong history after {flips:?}: {wrong}"))
}
