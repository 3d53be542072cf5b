//! How long a start takes that finds many open rounds.

use callboard::Host;
use callboard_actors::testing::TestSize;
use callboard_actors::testing::{Reply, ScriptedModel};

use super::*;

const SESSIONS: usize = 1000;

/// The bound is for an optimized build on a quiet machine, with `CALLBOARD_LONG=1`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_open_rounds_call_their_models_again_within_two_seconds() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let host = async |model: &Arc<ScriptedModel>| {
        let store = Arc::new(Sqlite::open(&path).await.unwrap());
        let builder = Host::builder()
            .shared_provider(model.clone())
            .shared_sessions(store.clone());
        (builder.build().await.unwrap(), store)
    };
    let silent = Arc::new(ScriptedModel::always(Reply::stall()));
    let (first, store) = host(&silent).await;
    for number in 0..SESSIONS {
        let talk = first
            .tenant("acme")
            .conversation(format!("c-{number}").as_str());
        drop(talk.send("Hi").await.unwrap());
    }
    let open = async || {
        let count = SESSIONS + 1;
        let open = store.list_open(Open::Running, None, None, count).await;
        open.unwrap().len()
    };
    while open().await < SESSIONS {
        tokio::task::yield_now().await;
    }
    drop((first, store));

    let model = Arc::new(ScriptedModel::always(Reply::text("Hello.")));
    let began = Instant::now();
    let (second, _store) = host(&model).await;
    let woken = second.resume_interrupted().await.unwrap();
    model.until(|counts| counts.started >= SESSIONS).await;
    let took = began.elapsed();

    assert_eq!(woken, SESSIONS);
    let bound = Duration::from_secs(if TestSize::is_long() { 2 } else { 30 });
    eprintln!("{SESSIONS} open rounds were taken up in {took:?}");
    assert!(took < bound, "{took:?}");
}
