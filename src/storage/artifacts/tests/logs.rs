//! What the store logs, and that no path is in it.

use tracing::{
    Event, Metadata, Subscriber,
    dispatcher::{self, Dispatch},
    field::{Field, Visit},
    span,
};

use super::*;

/// One line for each event: its level and its fields.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<String>>);

impl Visit for Lines {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!(" {}={value:?}", field.name());
        self.0.lock().push_str(&text);
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata
            .target()
            .starts_with("callboard::storage::artifacts")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        self.0.lock().push_str(event.metadata().level().as_str());
        event.record(&mut self.clone());
        self.0.lock().push('\n');
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Runs a test and returns what all threads of its runtime logged, also those that work on files.
fn logged(test: impl Future<Output = ()>) -> String {
    let lines = Lines::default();
    let dispatch = Dispatch::new(lines.clone());
    // With one subscriber alone, a callsite that another test reaches first stays disabled.
    let _second = Dispatch::new(lines.clone());
    let of_thread = dispatch.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        // The threads end with the runtime.
        .on_thread_start(move || std::mem::forget(dispatcher::set_default(&of_thread)))
        .build()
        .unwrap();
    dispatcher::with_default(&dispatch, || runtime.block_on(test));
    drop(runtime);
    std::mem::take(&mut lines.0.lock())
}

#[test]
fn the_log_says_what_was_stored_rebuilt_freed_and_failed_and_names_no_path() {
    let place = Place::new();
    let content = vec![7; 3 * 1024 * 1024];
    let id = ArtifactId::from_content(&content);

    let log = logged(async {
        let owner = owner("t", "c");
        let store = place.open(settings()).await;
        put(&store, &owner, &content).await;
        fs::write(content_of(&place, &id).with_extension("json"), "{").unwrap();
        store.meta(owner, id.clone()).await.unwrap();
        place.clock.advance_ms(1001);
        store.cleanup(Duration::from_secs(1)).await.unwrap();
        fs::remove_dir_all(place.root()).unwrap();
        store.start();
        until_idle().await;
    });

    let rebuilt = format!("the metadata of {id} is unreadable and is rebuilt from its file");
    let expected = [
        format!("DEBUG message=Stored as {id}"),
        format!("WARN message={rebuilt}"),
        format!("WARN message={rebuilt}"),
        "INFO message=artifacts cleaned up, 3.0 MB freed removed=1".to_owned(),
        "WARN message=the clean-up of artifacts failed: artifacts cannot be kept or read now: entity not found".to_owned(),
    ];
    assert_eq!(log.lines().collect::<Vec<_>>(), expected);
    assert!(!log.contains('/'), "{log}");
}
