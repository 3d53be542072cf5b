//! A fan-out under a name that was used before: what failed, and other tasks.

use super::{
    fan_out::{echo, fan_out, texts},
    subagents::*,
    *,
};
use crate::{
    host::{FanOut, SendError},
    ports::ProviderError,
    testing::{Reply, ScriptedModel},
};

#[tokio::test(start_paused = true)]
async fn what_failed_is_sent_again_only_where_that_is_asked_for() {
    let store = store();
    let first = Arc::new(ScriptedModel::answering(|request, _| {
        match task(request).as_str() {
            "bad" => Reply::error(ProviderError::InvalidRequest {
                status: 400,
                message: "no".into(),
            }),
            _ => Reply::text("over before"),
        }
    }));
    let tasks = || FanOut::over(["good", "bad"]).name("n-2");
    let begin = async |model: &Arc<ScriptedModel>| {
        builder(model)
            .shared_sessions(store.clone())
            .build()
            .await
            .unwrap()
    };
    let host = begin(&first).await;
    let summary = fan_out(&host, tasks()).await.finish().await;
    assert_eq!(summary.failed(), 1);
    drop(host);

    let second = echo();
    let host = begin(&second).await;
    let same = fan_out(&host, tasks()).await.finish().await;
    assert_eq!((same.failed(), second.counts().started), (1, 0));

    let again = fan_out(&host, tasks().retry_failed()).await.finish().await;
    assert_eq!(texts(&again), ["over before", "bad done"]);
    assert_eq!(second.counts().started, 1);
    assert_eq!(
        second.requests()[0].messages.len(),
        1,
        "the model sees nothing of the failed round"
    );
}

#[tokio::test(start_paused = true)]
async fn a_name_with_other_tasks_is_one_error() {
    let model = echo();
    let host = host(&model).await;
    fan_out(&host, FanOut::over(["a", "b"]).name("n-3"))
        .await
        .finish()
        .await;

    let other = FanOut::over(["c", "d"]).name("n-3");
    let refused = host.tenant("acme").fan_out(other).await.map(|_| ());

    assert_eq!(
        refused,
        Err(SendError::FanOutDiffers { name: "n-3".into() })
    );
    assert_eq!(model.counts().started, 2);
}
