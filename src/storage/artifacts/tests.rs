mod logs;

use std::{
    fs,
    path::{Path, PathBuf},
};

use callboard_actors::{
    memory::MemorySessions,
    testing::{ManualClock, Reply, ScriptedModel, contract},
    time::Timestamp,
};

use super::*;

const T0: Timestamp = Timestamp(1_700_000_000_000);

fn settings() -> ArtifactSettings {
    ArtifactSettings {
        auto_start: false,
        ..ArtifactSettings::default()
    }
}

fn owner(tenant: &str, conversation: &str) -> Scope {
    Scope::new(tenant.try_into().unwrap(), conversation.try_into().unwrap())
}

/// A store in a temporary folder, and its clock.
struct Place {
    folder: tempfile::TempDir,
    clock: Arc<ManualClock>,
}

impl Place {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            clock: Arc::new(ManualClock::at(T0)),
        }
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("data/artifacts")
    }

    async fn open(&self, settings: ArtifactSettings) -> FileArtifacts {
        FileArtifacts::open(self.root(), self.clock.clone(), settings)
            .await
            .unwrap()
    }
}

async fn put(store: &FileArtifacts, owner: &Scope, content: &[u8]) -> ArtifactId {
    store
        .store(
            owner.clone(),
            "toolu_1".into(),
            Bytes::copy_from_slice(content),
        )
        .await
        .unwrap()
}

async fn has(store: &FileArtifacts, owner: &Scope, id: &ArtifactId) -> bool {
    store.meta(owner.clone(), id.clone()).await.is_ok()
}

/// Every file and folder below one, folders first.
fn below(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    found.sort();
    let deeper: Vec<PathBuf> = found
        .iter()
        .filter(|path| path.is_dir())
        .flat_map(|path| below(path))
        .collect();
    found.into_iter().chain(deeper).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    below(folder)
        .into_iter()
        .filter(|path| path.is_file())
        .collect()
}

fn content_of(place: &Place, id: &ArtifactId) -> PathBuf {
    files(&place.root())
        .into_iter()
        .find(|path| path.file_name().unwrap() == id.hash())
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_keep_the_contract_of_an_artifact_store() {
    let folder = tempfile::tempdir().unwrap();
    let stores = std::sync::atomic::AtomicUsize::new(0);
    contract::artifact_store(async |clock, bounds: contract::ArtifactBounds| {
        let root = folder.path().join(
            stores
                .fetch_add(1, std::sync::atomic::Ordering::Relaxed)
                .to_string(),
        );
        let settings = ArtifactSettings {
            tenant_bytes_max: bounds.tenant_bytes_max,
            max_age: bounds.max_age,
            ..settings()
        };
        Arc::new(FileArtifacts::open(root, clock, settings).await.unwrap())
            as Arc<dyn ArtifactStore>
    })
    .await;
}

#[tokio::test]
async fn what_was_stored_is_there_after_a_restart_with_all_that_is_known() {
    let place = Place::new();
    let owner = owner("t", "c");
    let (id, meta) = {
        let store = place.open(settings()).await;
        let id = put(&store, &owner, b"kept").await;
        place.clock.advance_ms(5000);
        store.touch(owner.clone(), id.clone()).await.unwrap();
        let meta = store.meta(owner.clone(), id.clone()).await.unwrap();
        (id, meta)
    };

    let store = place
        .open(ArtifactSettings {
            tenant_bytes_max: 7,
            ..settings()
        })
        .await;

    assert_eq!(
        store.meta(owner.clone(), id.clone()).await,
        Ok(meta.clone())
    );
    assert_eq!(
        (
            meta.created_at,
            meta.accessed_at,
            meta.tool_call_id.as_str()
        ),
        (T0, Timestamp(T0.0 + 5000), "toolu_1")
    );
    assert_eq!(
        store.retrieve(owner.clone(), id.clone()).await.unwrap(),
        &b"kept"[..]
    );
    put(&store, &owner, b"more").await;
    assert!(
        !has(&store, &owner, &id).await,
        "what was there before counts too"
    );
    let metadata = fs::read_to_string(
        content_of(&place, &ArtifactId::from_content(b"more")).with_extension("json"),
    )
    .unwrap();
    assert!(
        metadata.contains(r#""created_at":"2023-11-14T22:13:25.000Z""#)
            && metadata.contains(r#""conversation_id":"c""#),
        "{metadata}"
    );
}

#[cfg(unix)]
#[tokio::test]
async fn only_this_user_may_look_and_no_id_is_a_name_of_a_file() {
    use std::os::unix::fs::PermissionsExt as _;

    let place = Place::new();
    let store = place.open(settings()).await;
    put(&store, &owner("acme", "support-42"), b"x").await;

    let all: Vec<PathBuf> = below(&place.folder.path().join("data"));
    assert!(all.len() >= 5, "{all:?}");
    for path in all {
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(
            mode,
            if path.is_dir() { 0o700 } else { 0o600 },
            "{}",
            path.display()
        );
        let name = path.to_string_lossy().into_owned();
        assert!(
            !name.contains("acme") && !name.contains("support") && !name.contains("toolu"),
            "{name}"
        );
    }
}

#[tokio::test]
async fn a_killed_write_leaves_nothing_visible_and_is_removed_at_the_next_start() {
    let place = Place::new();
    let store = place.open(settings()).await;
    let incoming = place.root().join(".incoming");
    let live = store
        .inner
        .index
        .files
        .begin(b"being written", true)
        .unwrap();
    let mut killed = store.inner.index.files.begin(b"half writ", true).unwrap();
    killed.abandon();
    drop(killed);
    assert_eq!(files(&incoming).len(), 2);

    let again = place.open(settings()).await;

    assert_eq!(
        files(&incoming).len(),
        1,
        "a file that is being written is left alone, by whatever process"
    );
    assert_eq!(files(&place.root()).len(), 1, "nothing else is there");
    let id = ArtifactId::from_content(b"half writ");
    assert_eq!(
        again.retrieve(owner("t", "c"), id.clone()).await,
        Err(ArtifactError::NotFound(id))
    );
    drop(live);
    assert_eq!(
        files(&incoming).len(),
        0,
        "a write that fails removes its own"
    );
}

#[tokio::test]
async fn a_kill_between_an_artifact_and_its_metadata_loses_only_the_metadata() {
    let place = Place::new();
    let owner = owner("t", "c");
    let store = place.open(settings()).await;
    let files = &store.inner.index.files;
    let written = files.begin(b"x", true).unwrap();
    written.set_time(T0);
    let id = ArtifactId::from_content(b"x");
    files
        .place(written, &Owner::from_scope(&owner), &id)
        .unwrap();

    let meta = place.open(settings()).await.meta(owner, id).await.unwrap();

    assert_eq!(
        (
            meta.size_bytes,
            meta.created_at,
            meta.accessed_at,
            meta.tool_call_id.as_str()
        ),
        (1, T0, T0, "")
    );
}

#[tokio::test]
async fn unreadable_metadata_is_rebuilt_from_the_file() {
    let place = Place::new();
    let owner = owner("t", "c");
    for rubbish in [
        "",
        "{",
        "[]",
        r#"{"created_at":"yesterday","accessed_at":"","tool_call_id":"t","conversation_id":"c"}"#,
    ] {
        let store = place.open(settings()).await;
        let id = put(&store, &owner, b"x").await;
        fs::write(content_of(&place, &id).with_extension("json"), rubbish).unwrap();

        let store = place.open(settings()).await;

        assert_eq!(
            store.retrieve(owner.clone(), id.clone()).await.unwrap(),
            &b"x"[..]
        );
        let meta = store.meta(owner.clone(), id.clone()).await.unwrap();
        assert_eq!(
            (meta.size_bytes, meta.created_at, meta.tool_call_id.as_str()),
            (1, T0, ""),
            "the file was stamped when it was stored"
        );
        put(&store, &owner, b"x").await;
        assert_eq!(
            store.meta(owner.clone(), id).await.unwrap().tool_call_id,
            "toolu_1",
            "storing again mends it"
        );
    }
}

#[tokio::test]
async fn another_content_of_the_same_short_name_is_refused_and_never_served() {
    let place = Place::new();
    let owner = owner("t", "c");
    let mut store = place.open(settings()).await;
    // The id is the length, so contents of equal length collide.
    Arc::get_mut(&mut store.inner).unwrap().index.files.name =
        |content| ArtifactId::from_content(&content.len().to_be_bytes());
    let id = put(&store, &owner, b"first").await;

    let second = store
        .store(owner.clone(), "t".into(), Bytes::from_static(b"other"))
        .await;

    assert_eq!(second, Err(ArtifactError::Collision(id.clone())));
    assert_eq!(
        store.retrieve(owner.clone(), id.clone()).await.unwrap(),
        &b"first"[..]
    );
    assert_eq!(put(&store, &owner, b"first").await, id);
    let elsewhere = put(&store, &super::tests::owner("t", "d"), b"other").await;
    assert_eq!(
        store
            .retrieve(super::tests::owner("t", "d"), elsewhere)
            .await
            .unwrap(),
        &b"other"[..],
        "names are an owner's own"
    );
}

#[tokio::test]
async fn a_damaged_artifact_is_not_served_and_can_be_stored_again() {
    let place = Place::new();
    let owner = owner("t", "c");
    let store = place.open(settings()).await;
    let id = put(&store, &owner, b"right").await;
    fs::write(content_of(&place, &id), b"wrong").unwrap();

    assert_eq!(
        store.retrieve(owner.clone(), id.clone()).await,
        Err(ArtifactError::NotFound(id.clone()))
    );
    assert!(!has(&store, &owner, &id).await);

    put(&store, &owner, b"right").await;
    fs::write(content_of(&place, &id), b"wrong").unwrap();
    put(&store, &owner, b"right").await;
    assert_eq!(store.retrieve(owner, id).await.unwrap(), &b"right"[..]);
}

#[tokio::test]
async fn nothing_is_removed_at_the_limit_and_above_it_the_least_used_until_four_fifths_are_left() {
    let place = Place::new();
    let store = place
        .open(ArtifactSettings {
            max_size_bytes: 100,
            ..settings()
        })
        .await;
    let owners = [owner("t", "c"), owner("u", "c")];
    let mut ids = Vec::new();
    for n in 0..10u8 {
        place.clock.advance_ms(1);
        ids.push(put(&store, &owners[usize::from(n) % 2], &[n; 10]).await);
    }
    let there = async || {
        let mut there = Vec::new();
        for (n, id) in ids.iter().enumerate() {
            there.extend(has(&store, &owners[n % 2], id).await.then_some(n));
        }
        there
    };
    assert_eq!(
        store.cleanup(settings().max_age).await,
        Ok(Cleaned::default()),
        "exactly the limit"
    );

    place.clock.advance_ms(1);
    store
        .touch(owners[0].clone(), ids[0].clone())
        .await
        .unwrap();
    put(&store, &owners[0], &[77; 1]).await;

    assert_eq!(
        store.cleanup(settings().max_age).await,
        Ok(Cleaned {
            removed: 3,
            bytes: 30
        })
    );
    assert_eq!(there().await, [0, 4, 5, 6, 7, 8, 9]);
    assert_eq!(
        store.cleanup(settings().max_age).await,
        Ok(Cleaned::default())
    );

    place.clock.advance_ms(1);
    put(&store, &owners[1], &[9; 150]).await;
    assert_eq!(
        store.cleanup(settings().max_age).await,
        Ok(Cleaned {
            removed: 9,
            bytes: 221
        }),
        "far above it: still in order"
    );
}

#[tokio::test]
async fn a_reader_keeps_what_is_removed_while_he_reads() {
    let place = Place::new();
    let owner = owner("t", "c");
    let store = place.open(settings()).await;
    let id = put(&store, &owner, b"being read").await;
    let mut reading = fs::File::open(content_of(&place, &id)).unwrap();

    place.clock.advance_ms(1001);
    assert_eq!(
        store.cleanup(Duration::from_secs(1)).await,
        Ok(Cleaned {
            removed: 1,
            bytes: 10
        })
    );

    let mut read = String::new();
    std::io::Read::read_to_string(&mut reading, &mut read).unwrap();
    assert_eq!(read, "being read");
    assert_eq!(
        below(&place.root()),
        [place.root().join(".incoming")],
        "no empty folders are left"
    );
}

#[tokio::test]
async fn two_processes_over_one_folder_see_one_truth() {
    let place = Place::new();
    let one = place.open(settings()).await;
    let two = place.open(settings()).await;
    let owner = owner("t", "c");
    put(&one, &owner, b"a").await;
    put(&two, &owner, b"b").await;
    let a = ArtifactId::from_content(b"a");
    let b = ArtifactId::from_content(b"b");

    assert!(has(&two, &owner, &a).await && has(&one, &owner, &b).await);
    place.clock.advance_ms(1001);
    put(&two, &owner, b"a").await;
    assert_eq!(
        one.cleanup(Duration::from_secs(1)).await,
        Ok(Cleaned {
            removed: 1,
            bytes: 1
        }),
        "what the other renewed stays"
    );
    assert!(has(&two, &owner, &a).await && !has(&two, &owner, &b).await);
    two.release(owner.tenant.clone(), None).await.unwrap();
    assert!(!has(&one, &owner, &a).await);
}

#[tokio::test]
async fn no_path_is_in_an_error_or_in_debug() {
    let place = Place::new();
    let owner = owner("t", "c");
    let store = place.open(settings()).await;
    let hidden = |text: String| assert!(!text.contains("data") && !text.contains('/'), "{text}");
    hidden(format!("{store:?}").replace("settings: ArtifactSettings", ""));
    fs::write(
        place.root().join(Owner::tenant_folder(&owner.tenant)),
        "a file where a folder should be",
    )
    .unwrap();

    let failed = store
        .store(owner.clone(), "t".into(), Bytes::from_static(b"x"))
        .await
        .unwrap_err();

    assert!(matches!(failed, ArtifactError::Unavailable(_)));
    hidden(failed.to_string());
    hidden(format!("{failed:?}"));
    assert_eq!(
        files(&place.root().join(".incoming")),
        Vec::<PathBuf>::new()
    );
    let below_a_file = place
        .root()
        .join(Owner::tenant_folder(&owner.tenant))
        .join("more");
    let failed = FileArtifacts::open(below_a_file, place.clock.clone(), settings())
        .await
        .unwrap_err();
    hidden(failed.to_string());
}

/// With paused time, a sleep ends when all other work is idle, file work included.
async fn until_idle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn it_cleans_at_start_and_after_each_interval_until_it_is_stopped_and_can_be_started_again() {
    let place = Place::new();
    let owner = owner("t", "c");
    let short = || ArtifactSettings {
        max_age: Duration::from_secs(1),
        ..ArtifactSettings::default()
    };
    let count = || files(&place.root()).len();
    put(&place.open(settings()).await, &owner, b"old").await;
    place.clock.advance_ms(1001);

    let store = place.open(short()).await;
    until_idle().await;
    assert_eq!(
        (count(), store.is_cleaning()),
        (0, true),
        "the first run is at start"
    );

    put(&store, &owner, b"next").await;
    place.clock.advance_ms(1001);
    store.start(); // Logs a warning and starts no second cleaner.
    until_idle().await;
    assert_eq!(count(), 2, "not before the interval is over");
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(count(), 0);

    store.stop().await;
    assert!(!store.is_cleaning());
    put(&store, &owner, b"later").await;
    place.clock.advance_ms(1001);
    tokio::time::sleep(Duration::from_secs(7200)).await;
    assert_eq!(count(), 2, "stopped");

    store.start();
    until_idle().await;
    assert_eq!((count(), store.is_cleaning()), (0, true), "started again");
    store.stop().await;
    store.stop().await;
}

#[cfg(unix)]
#[tokio::test]
async fn artifacts_are_stored_and_read_while_a_clean_up_runs() {
    let place = Place::new();
    let store = place.open(settings()).await;
    let id = put(&store, &owner("t", "c"), b"old").await;
    // The clean-up reads this pipe until the other end is closed.
    let pipe = content_of(&place, &id).with_extension("json");
    fs::remove_file(&pipe).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let (held, is_held) = tokio::sync::oneshot::channel();
    let (release, released) = std::sync::mpsc::channel();
    let holding = tokio::task::spawn_blocking(move || {
        let _writer = fs::OpenOptions::new().write(true).open(pipe).unwrap();
        held.send(()).unwrap();
        released.recv_timeout(Duration::from_secs(30)).is_ok()
    });
    store.start();
    is_held.await.unwrap();

    let other = owner("u", "c");
    let new = put(&store, &other, b"new").await;
    let read = store.retrieve(other, new).await;
    let _ = release.send(());

    assert_eq!(read.unwrap(), &b"new"[..]);
    assert!(holding.await.unwrap(), "they waited for the clean-up");
    store.stop().await;
}

#[tokio::test]
async fn a_host_that_shuts_down_stops_the_cleaner() {
    let place = Place::new();
    let cleaning = ArtifactSettings {
        auto_start: true,
        ..settings()
    };
    let store = Arc::new(place.open(cleaning).await);
    let model = Reply::text("done");
    let host = crate::Host::builder()
        .provider(ScriptedModel::always(model))
        .model("m")
        .sessions(MemorySessions::new())
        .artifacts(store.clone())
        .build()
        .await
        .unwrap();
    assert!(store.is_cleaning());

    host.shutdown(Duration::ZERO).await;

    assert!(!store.is_cleaning());
}

#[tokio::test(start_paused = true)]
async fn a_clean_up_that_fails_does_not_end_the_schedule() {
    let place = Place::new();
    let owner = owner("t", "c");
    let store = place
        .open(ArtifactSettings {
            max_age: Duration::from_secs(1),
            ..ArtifactSettings::default()
        })
        .await;
    until_idle().await;
    fs::remove_dir_all(place.root()).unwrap();
    tokio::time::sleep(Duration::from_secs(3600)).await;

    let id = put(&store, &owner, b"x").await;
    assert!(has(&store, &owner, &id).await, "the folders are made again");
    place.clock.advance_ms(1001);
    tokio::time::sleep(Duration::from_secs(3600)).await;

    assert_eq!(files(&place.root()).len(), 0);
}

#[tokio::test]
async fn a_file_that_cannot_be_removed_does_not_stop_the_rest() {
    let place = Place::new();
    let owner = owner("t", "c");
    let store = place.open(settings()).await;
    let mut kept = Vec::new();
    for content in [b"one", b"two", b"six"] {
        kept.push(put(&store, &owner, content).await);
    }
    let paths: Vec<PathBuf> = kept.iter().map(|id| content_of(&place, id)).collect();
    for stuck in &paths[..2] {
        fs::remove_file(stuck).unwrap();
        fs::create_dir(stuck).unwrap();
        fs::write(stuck.join("x"), "").unwrap();
    }
    place.clock.advance_ms(1001);

    let cleaned = store.cleanup(Duration::from_secs(1)).await.unwrap();

    assert_eq!(cleaned.removed, 1);
    assert_eq!(
        paths.iter().map(|path| path.exists()).collect::<Vec<_>>(),
        [true, true, false]
    );
}

#[tokio::test(start_paused = true)]
async fn a_clean_up_that_does_not_end_is_waited_for_five_seconds() {
    let place = Place::new();
    let store = place.open(settings()).await;
    let workers = u32::try_from(FILE_WORKERS).unwrap();
    let _busy = store.inner.workers.acquire_many(workers).await.unwrap();
    store.start();
    tokio::task::yield_now().await;
    let began = tokio::time::Instant::now();

    store.stop().await;

    assert_eq!(began.elapsed(), Duration::from_secs(5));
    assert!(!store.is_cleaning());
}

#[tokio::test(start_paused = true)]
async fn dropping_the_store_stops_its_cleaner() {
    let place = Place::new();
    let store = place.open(ArtifactSettings::default()).await;
    until_idle().await;
    let inner = Arc::downgrade(&store.inner);

    drop(store);
    until_idle().await;

    assert!(inner.upgrade().is_none());
}

#[test]
fn default_settings_are_those_of_the_requirements() {
    let settings = ArtifactSettings::default();

    assert_eq!(
        (settings.max_age, settings.cleanup_interval),
        (Duration::from_secs(24 * 3600), Duration::from_secs(3600))
    );
    assert_eq!(
        (settings.max_size_bytes, settings.auto_start),
        (10 * 1024 * 1024 * 1024, true)
    );
}

#[tokio::test]
async fn a_file_that_is_being_written_is_not_taken_for_an_abandoned_one() {
    let place = Place::new();
    let store = place.open(settings()).await;
    let files = &store.inner.index.files;
    let is_over = std::sync::atomic::AtomicBool::new(false);

    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                files.remove_abandoned();
            }
        });
        let write = || {
            files
                .begin(b"content", false)?
                .move_to(&place.root().join("placed"))
        };
        let lost = (0..500).filter(|_| write().is_err()).count();
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(lost, 0, "files that vanished before they were placed");
    });
}
