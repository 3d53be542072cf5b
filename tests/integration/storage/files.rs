//! Files that are deleted, replaced or cut while a store has them open.

use super::{damage::log_of, *};

/// What happens to the files of a running store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mishap {
    Deleted,
    Replaced,
    LogDeleted,
    LogReplaced,
    LogCut,
    LogCutToNothing,
}

impl Mishap {
    const ALL: [Self; 6] = [
        Self::Deleted,
        Self::Replaced,
        Self::LogDeleted,
        Self::LogReplaced,
        Self::LogCut,
        Self::LogCutToNothing,
    ];

    fn happen(self, path: &Path) {
        let replace = |file: &Path| {
            std::fs::copy(file, file.with_extension("new")).unwrap();
            std::fs::rename(file.with_extension("new"), file).unwrap();
        };
        let cut = |keep: u64| {
            let log = std::fs::OpenOptions::new().write(true).open(log_of(path));
            let log = log.unwrap();
            log.set_len(log.metadata().unwrap().len() * keep / 100)
                .unwrap();
        };
        match self {
            Self::Deleted => std::fs::remove_file(path).unwrap(),
            Self::Replaced => replace(path),
            Self::LogDeleted => std::fs::remove_file(log_of(path)).unwrap(),
            Self::LogReplaced => replace(&log_of(path)),
            Self::LogCut => cut(60),
            Self::LogCutToNothing => cut(0),
        }
    }
}

#[cfg(unix)]
#[tokio::test]
async fn nothing_is_acknowledged_into_a_file_that_is_lost() {
    for mishap in Mishap::ALL {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.db");
        let store = Sqlite::open(&path).await.unwrap();
        let c = scope("t", "c");
        for last in 1..=20 {
            write(&store, &c, head(u64::from(last > 1), last - 1), 1, last)
                .await
                .unwrap();
        }

        mishap.happen(&path);

        for _ in 0..2 {
            let refused = write(&store, &c, head(1, 20), 1, 21).await;
            assert!(
                matches!(&refused, Err(AppendError::Unavailable { message }) if message.contains("while it was in use")),
                "{mishap:?}: {refused:?}"
            );
            let read = store.head(&c).await;
            assert!(
                matches!(&read, Err(StoreError::Unavailable { .. })),
                "{mishap:?}: a host that asks is not ready: {read:?}"
            );
        }
        store.close(SOON).await.unwrap();
        if matches!(mishap, Mishap::LogDeleted | Mishap::LogReplaced) {
            let store = Sqlite::open(&path).await.unwrap();
            assert_eq!(
                store.load(&c).await.unwrap().entries,
                entries(1, 20),
                "{mishap:?}: what was acknowledged was saved from the lost log"
            );
        }
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_lost_file_is_noticed_within_seconds_without_any_traffic() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let options = SqliteOptions {
        readers: 1,
        ..SqliteOptions::default()
    };
    let store = Sqlite::open_with(&path, options).await.unwrap();
    let c = scope("t", "c");
    write(&store, &c, Head::default(), 1, 3).await.unwrap();
    assert_eq!(store.head(&c).await, Ok(head(1, 3)), "the reader is open");

    Mishap::Deleted.happen(&path);

    let started = Instant::now();
    while let Ok(head) = store.head(&c).await {
        assert_eq!(head.seq, Seq(3));
        assert!(started.elapsed() < Duration::from_secs(5));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[cfg(unix)]
#[tokio::test]
async fn another_process_that_empties_the_log_is_no_loss() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let store = Sqlite::open(&path).await.unwrap();
    let c = scope("t", "c");

    for last in 1..=50 {
        write(&store, &c, head(u64::from(last > 1), last - 1), 1, last)
            .await
            .unwrap();
        let other = rusqlite::Connection::open(&path).unwrap();
        other
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
            .unwrap();
    }

    assert_eq!(store.load(&c).await.unwrap().entries, entries(1, 50));
}
