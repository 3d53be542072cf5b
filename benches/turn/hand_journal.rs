//! The baseline's journal: a thread, a table, one commit for all waiting rows.

use std::{
    path::Path,
    sync::mpsc::{Receiver, Sender, channel},
};

use rusqlite::Connection;
use tokio::sync::oneshot;

struct Row {
    conversation: i64,
    body: Vec<u8>,
    stored: oneshot::Sender<()>,
}

/// A journal. Clones write to the same one.
#[derive(Clone)]
pub(crate) struct HandJournal(Sender<Row>);

impl HandJournal {
    pub(crate) fn open(path: &Path) -> Self {
        let connection = Connection::open(path).unwrap();
        connection
            .pragma_update(None, "journal_mode", "WAL")
            .unwrap();
        connection
            .pragma_update(None, "synchronous", "FULL")
            .unwrap();
        connection.execute_batch("CREATE TABLE IF NOT EXISTS entry (id INTEGER PRIMARY KEY, conversation INTEGER, body BLOB)").unwrap();
        let (sender, rows) = channel();
        std::thread::spawn(move || write(&connection, &rows));
        Self(sender)
    }

    /// Writes a row. The receiver resolves when the row is on the disk.
    pub(crate) fn append(&self, conversation: i64, body: Vec<u8>) -> oneshot::Receiver<()> {
        let (stored, durable) = oneshot::channel();
        self.0
            .send(Row {
                conversation,
                body,
                stored,
            })
            .unwrap();
        durable
    }
}

fn write(connection: &Connection, rows: &Receiver<Row>) {
    while let Ok(first) = rows.recv() {
        let batch: Vec<Row> = std::iter::once(first).chain(rows.try_iter()).collect();
        connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        let mut insert = connection
            .prepare_cached("INSERT INTO entry (conversation, body) VALUES (?, ?)")
            .unwrap();
        for row in &batch {
            insert.execute((row.conversation, &row.body)).unwrap();
        }
        connection.execute_batch("COMMIT").unwrap();
        for row in batch {
            let _ = row.stored.send(());
        }
    }
}
