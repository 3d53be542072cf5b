use std::{path::Path, time::Duration};

use callboard_actors::{
    journal::StoredEntry,
    ports::{AppendError, Durability, SessionBackend as _},
};
use rusqlite::StatementStatus;
use tokio::sync::oneshot;

use super::*;
use crate::storage::sqlite::{Sqlite, SqliteOptions, open, read};

fn open_in(folder: &Path) -> Connection {
    open::writer(&folder.join("s.db"), &SqliteOptions::default()).unwrap()
}

fn scope() -> Scope {
    Scope::new(
        TenantId::new("t").unwrap(),
        ConversationId::new("c").unwrap(),
    )
}

/// Appends `count` entries behind `after`.
fn grow_by(conn: &Connection, after: u64, count: u64) {
    let append = Append {
        scope: scope(),
        expected: match after {
            0 => Head::default(),
            seq => Head {
                epoch: Epoch(1),
                seq: Seq(seq),
            },
        },
        epoch: Epoch(1),
        entries: (after + 1..=after + count)
            .map(|seq| StoredEntry {
                seq: Seq(seq),
                bytes: format!("entry {seq}").into(),
            })
            .collect(),
        open: Open::None,
        wake_at: None,
        messages: Vec::new(),
        durability: Durability::Awaited,
        done: Box::new(|_: Result<(), AppendError>| {}),
    };
    perform(conn, &Job::Append(append), 0).unwrap();
}

/// Empties up to an entry; returns what each piece was.
fn empty_all(conn: &Connection, upto: u64) -> Vec<Change> {
    let mut job = Job::Empty(scope(), Seq(upto), oneshot::channel().0);
    let mut pieces = Vec::new();
    loop {
        pieces.push(perform(conn, &job, 0).unwrap());
        if pieces.last().is_some_and(|piece| !piece.is_partial) {
            return pieces;
        }
        let piece = pieces.last().cloned().unwrap_or_default();
        job = job.rest(&piece);
    }
}

/// Steps that the statements of an emptying have taken since they were asked last.
fn steps(conn: &Connection) -> i32 {
    let of = |sql| {
        let statement = conn.prepare_cached(sql).unwrap();
        statement.reset_status(StatementStatus::VmStep)
    };
    of(PIECE_OF) + of(WIPE)
}

#[test]
fn emptying_again_costs_what_was_appended_since() {
    let folder = tempfile::tempdir().unwrap();
    let conn = open_in(folder.path());
    grow_by(&conn, 0, 10_000);
    empty_all(&conn, 9_999);
    let first = steps(&conn);

    for round in 0..3 {
        let head = 10_000 + round * 2;
        grow_by(&conn, head, 2);
        let changed = conn.total_changes();
        let pieces = empty_all(&conn, head + 1);

        assert!(first > 50_000, "{first}");
        assert!(steps(&conn) < 200, "no entry is read twice");
        assert_eq!(
            conn.total_changes() - changed,
            3,
            "two entries and the head"
        );
        assert_eq!(pieces.len(), 1);
        assert!(pieces.iter().all(|piece| piece.work < 10));
    }
}

#[test]
fn a_long_emptying_is_done_in_pieces_and_read_as_done_after_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let mut conn = open_in(folder.path());
    grow_by(&conn, 0, 1_300);
    let whole = read::load(&mut conn, &scope()).unwrap();
    let job = Job::Empty(scope(), Seq(1_299), oneshot::channel().0);

    let first = perform(&conn, &job, 0).unwrap();

    assert!(first.is_partial);
    assert!((PIECE..PIECE + 10).contains(&first.work));
    let held = || -> i64 {
        let sql = "SELECT count(*) FROM journal WHERE length(body) > 0";
        conn.query_row(sql, [], |row| row.get(0)).unwrap()
    };
    assert_eq!(held(), 800);
    drop(job);

    let mut expected = whole.entries.clone();
    for entry in expected.iter_mut().take(1_299) {
        entry.bytes = bytes::Bytes::new();
    }
    let loaded = read::load(&mut conn, &scope()).unwrap();
    assert_eq!(loaded.entries, expected);
    let page = read::entries(&mut conn, &scope(), Seq(600), 3).unwrap();
    assert!(page.iter().all(|entry| entry.bytes.is_empty()));
    let salvaged = read::salvage(&mut conn, &scope(), Seq(600), 3).unwrap();
    assert!(salvaged.iter().all(|row| row.entry.bytes.is_empty()));

    // After a crash the next emptying also removes what the last one has left.
    assert_eq!(empty_all(&conn, 1).len(), 2);
    let left: i64 = conn
        .query_row("SELECT sum(length(body)) FROM journal", [], |row| {
            row.get(0)
        })
        .unwrap();
    assert_eq!(left, bytes_of(&conn, 1).unwrap());
    assert_eq!(left, "entry 1300".len() as i64);
}

#[test]
fn what_is_left_of_an_emptying_spares_a_conversation_that_was_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut conn = open_in(folder.path());
    grow_by(&conn, 0, 1_300);
    let job = Job::Empty(scope(), Seq(1_300), oneshot::channel().0);
    let first = perform(&conn, &job, 0).unwrap();
    assert!(first.is_partial);
    delete(&conn, &scope()).unwrap();
    grow_by(&conn, 0, 5);

    let rest = perform(&conn, &job.rest(&first), 0).unwrap();

    assert!(!rest.is_partial);
    let loaded = read::load(&mut conn, &scope()).unwrap();
    assert!(loaded.entries.iter().all(|entry| !entry.bytes.is_empty()));
}

#[test]
fn a_long_conversation_is_gone_with_the_first_piece_and_its_number_is_used_when_all_are() {
    let folder = tempfile::tempdir().unwrap();
    let mut conn = open_in(folder.path());
    grow_by(&conn, 0, 1_300);
    let job = Job::Delete(scope(), oneshot::channel().0);

    let first = perform(&conn, &job, 0).unwrap();

    assert!(first.found && first.is_partial);
    assert!((PIECE..PIECE + 10).contains(&first.work));
    assert_eq!(read::head(&conn, &scope()), Ok(Head::default()));
    assert_eq!(read::count(&conn, &scope().tenant), Ok(0));
    grow_by(&conn, 0, 3);
    let rest = job.rest(&first);
    assert!(perform(&conn, &rest, 0).unwrap().is_partial);
    let last = perform(&conn, &rest, 0).unwrap();
    assert!(!last.is_partial);
    let rows: i64 = conn
        .query_row("SELECT count(*) FROM journal", [], |row| row.get(0))
        .unwrap();
    assert_eq!(rows, 3);
    let loaded = read::load(&mut conn, &scope()).unwrap();
    assert_eq!(loaded.entries.len(), 3);
}

#[test]
fn the_erasure_of_a_tenant_and_its_next_deletion_remove_what_a_deletion_has_left() {
    let folder = tempfile::tempdir().unwrap();
    let conn = open_in(folder.path());
    let rows = || -> i64 {
        let sql = "SELECT (SELECT count(*) FROM journal) + (SELECT count(*) FROM doomed)";
        conn.query_row(sql, [], |row| row.get(0)).unwrap()
    };
    grow_by(&conn, 0, 1_300);
    assert!(delete(&conn, &scope()).unwrap().is_partial);
    assert_eq!(rows(), 801);

    let mut pieces = 0;
    while delete(&conn, &scope()).unwrap().is_partial {
        pieces += 1;
    }
    assert_eq!((pieces, rows()), (1, 0));

    grow_by(&conn, 0, 1_300);
    delete(&conn, &scope()).unwrap();
    erase(&conn, &scope().tenant).unwrap();
    assert_eq!(rows(), 0);
}

#[tokio::test]
async fn what_the_end_of_a_host_left_of_erasures_is_removed_by_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("s.db");
    let conn = open_in(folder.path());
    grow_by(&conn, 0, 1_300);
    perform(&conn, &Job::Delete(scope(), oneshot::channel().0), 0).unwrap();
    grow_by(&conn, 0, 1_300);
    let empty = Job::Empty(scope(), Seq(1_300), oneshot::channel().0);
    perform(&conn, &empty, 0).unwrap();
    let left = unfinished(&conn).unwrap();
    assert_eq!(left.deleted, [scope().tenant]);
    assert_eq!(left.emptied, [scope()]);
    drop(conn);

    let store = Sqlite::open(&file).await.unwrap();
    store.close(Duration::from_secs(10)).await.unwrap();

    let conn = open_in(folder.path());
    let left = unfinished(&conn).unwrap();
    assert!(left.deleted.is_empty() && left.emptied.is_empty());
    let (rows, bytes): (i64, i64) = conn
        .query_row(
            "SELECT count(*), sum(length(body)) FROM journal",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .unwrap();
    assert_eq!((rows, bytes), (1_300, 0));
}
