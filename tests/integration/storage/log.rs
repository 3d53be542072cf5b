//! The write-ahead log after a crash: a torn tail is taken, damage is refused.

use super::{
    damage::{CONVERSATIONS, bits, copy, crashed, flip, log_of, nth, texts},
    *,
};
use crate::support::{SplitMix, seed};

/// Whether opening is refused for a damaged log.
async fn is_refused(path: &Path) -> bool {
    match Sqlite::open(path).await {
        Err(StoreError::Corrupt { message }) => {
            assert!(
                message.contains("sessions repair --accept-log-loss"),
                "{message}"
            );
            true
        }
        Err(error) => panic!("{error}"),
        Ok(store) => {
            store.close(SOON).await.unwrap();
            false
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_log_is_refused_until_its_loss_is_accepted() {
    let mut random = SplitMix(seed("damaged_log"));
    let folder = tempfile::tempdir().unwrap();
    let (crashed, ends) = crashed(folder.path()).await;
    let path = folder.path().join("again.db");

    for _ in 0..20 {
        copy(&crashed, &path);
        flip(&log_of(&path), random.next() % bits(&log_of(&path)));
        let before = std::fs::read(log_of(&path)).unwrap();
        assert!(is_refused(&path).await);
        assert_eq!(
            std::fs::read(log_of(&path)).unwrap(),
            before,
            "a refused start leaves the log as it is"
        );
        assert!(is_refused(&path).await, "the next start is refused too");
    }
    let damaged = std::fs::read(log_of(&path)).unwrap();
    let options = SqliteOptions {
        accept_log_loss: true,
        ..SqliteOptions::default()
    };
    let store = Sqlite::open_with(&path, options).await.unwrap();
    for n in 0..CONVERSATIONS {
        let loaded = store.load(&nth(n)).await.unwrap();
        let end = loaded.head.seq.0;
        assert!(end <= ends[n as usize]);
        assert_eq!(
            store.entries(&nth(n), Seq(0), 1000).await,
            Ok(texts(n, 1, end))
        );
    }
    store.close(SOON).await.unwrap();
    assert!(!is_refused(&path).await);
    let kept = folder.path().join("again.db-wal.damaged-1");
    assert_eq!(std::fs::read(kept).unwrap(), damaged);
}

#[tokio::test]
async fn a_log_that_is_cut_anywhere_is_not_refused() {
    let mut random = SplitMix(seed("cut_log"));
    let folder = tempfile::tempdir().unwrap();
    let (crashed, _) = crashed(folder.path()).await;
    let path = folder.path().join("cut.db");

    for _ in 0..30 {
        copy(&crashed, &path);
        let log = std::fs::OpenOptions::new().write(true).open(log_of(&path));
        let log = log.unwrap();
        let end = random.next() % (log.metadata().unwrap().len() + 1);
        log.set_len(end).unwrap();

        assert!(!is_refused(&path).await, "{end}");
    }
}

/// Starts the child of the kill test, and kills it after some acknowledgements.
fn run_and_kill(path: &Path, random: &mut SplitMix) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "storage::kill_child", "--nocapture"])
        .env(KILL_CHILD, path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    for _ in 0..20 + random.next() % 60 {
        let mut line = String::new();
        assert!(lines.read_line(&mut line).unwrap() > 0, "the child ended");
    }
    let started = Instant::now();
    let wait = Duration::from_micros(random.next() % 3000);
    while started.elapsed() < wait {
        std::hint::spin_loop();
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test]
async fn after_kill_nine_a_whole_log_is_taken_and_one_with_a_flipped_bit_is_refused() {
    let mut random = SplitMix(seed("killed"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let damaged = folder.path().join("damaged.db");

    for round in 0..10 {
        run_and_kill(&path, &mut random);
        for _ in 0..5 {
            copy(&path, &damaged);
            // The newest frames may be part of a commit that was under way.
            let whole = bits(&log_of(&damaged)) * 3 / 4;
            flip(&log_of(&damaged), random.next() % whole);
            assert!(is_refused(&damaged).await, "round {round}");
        }
        assert!(
            !is_refused(&path).await,
            "round {round}: a crash is no damage"
        );
    }
}

#[tokio::test]
async fn the_log_does_not_grow_over_crashes() {
    let mut random = SplitMix(seed("crash_loop"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let mut lengths = Vec::new();

    for _ in 0..10 {
        run_and_kill(&path, &mut random);
        lengths.push(bits(&log_of(&path)) / 8);
    }

    let (first, last) = (lengths[0], lengths[9]);
    assert!(last < 3 * first, "{lengths:?}");
}

#[tokio::test]
async fn a_start_after_a_crash_empties_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let (crashed, _) = crashed(folder.path()).await;
    assert!(bits(&log_of(&crashed)) > 0);

    let store = Sqlite::open(&crashed).await.unwrap();

    assert_eq!(bits(&log_of(&crashed)), 0);
    store.close(SOON).await.unwrap();
}

#[tokio::test]
async fn a_log_without_its_database_is_not_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let (crashed, ends) = crashed(folder.path()).await;
    let whole = std::fs::read(&crashed).unwrap();
    std::fs::remove_file(&crashed).unwrap();
    assert!(is_refused(&crashed).await, "deleted");
    std::fs::write(&crashed, "").unwrap();
    assert!(is_refused(&crashed).await, "emptied");

    std::fs::write(&crashed, whole).unwrap();

    let store = Sqlite::open(&crashed).await.unwrap();
    for n in 0..CONVERSATIONS {
        let end = ends[n as usize];
        assert_eq!(
            store.entries(&nth(n), Seq(0), 1000).await,
            Ok(texts(n, 1, end))
        );
    }
}
