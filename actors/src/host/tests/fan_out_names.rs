//! A fan-out under a name that was used before: what failed, and other tasks.

use serde_json::json;

use super::{
    fan_out::{echo, fan_out, texts},
    subagents::*,
    *,
};
use crate::{
    chat::Usage,
    host::{FanOut, SendError, stored_fan_outs},
    policy::{Price, Prices},
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

#[tokio::test(start_paused = true)]
async fn a_name_whose_later_task_differs_is_one_error_before_any_task_begins() {
    let model = echo();
    let host = host(&model).await;
    let tasks = |changed: &'static str| {
        let tasks = (0..40).map(move |n| match n {
            31 => changed.to_owned(),
            n => format!("task {n}"),
        });
        FanOut::over(tasks).name("n-4")
    };
    fan_out(&host, tasks("as it was")).await.finish().await;

    let refused = host
        .tenant("acme")
        .fan_out(tasks("changed"))
        .await
        .map(drop);
    let again = fan_out(&host, tasks("as it was")).await.finish().await;

    assert_eq!(
        refused,
        Err(SendError::FanOutDiffers { name: "n-4".into() })
    );
    assert_eq!((again.done(), model.counts().started), (40, 40));
}

#[tokio::test(start_paused = true)]
async fn stored_fan_outs_are_listed_by_name_with_their_tasks_and_cost_after_a_restart() {
    let store = store();
    let usage = Usage {
        input_uncached: 900,
        output: 100,
        ..Usage::default()
    };
    let model = Arc::new(ScriptedModel::answering(move |request, _| {
        match (task(request).as_str(), request.messages.len()) {
            ("bad", _) => Reply::error(ProviderError::InvalidRequest {
                status: 400,
                message: "no".into(),
            }),
            ("slow", _) => Reply::stall(),
            ("go", 1) => Reply::tool("create_subagent", &json!({ "task": "of a parent" })),
            (task, _) => Reply::text(format!("{task} done")).usage(usage),
        }
    }));
    let begin = async || {
        let host = builder(&model)
            .model("scripted-1")
            .prices(Prices::default().with("scripted*", Price::per_million(1.0, 10.0).unwrap()))
            .shared_sessions(store.clone())
            .subagents();
        host.build().await.unwrap()
    };
    let host = begin().await;
    let mut reply = conversation(&host).send("go").await.unwrap();
    reply.outcome().await.unwrap();
    let mixed = FanOut::over(["good", "bad"]).name("mixed");
    fan_out(&host, mixed).await.finish().await;
    let cut = FanOut::over(["good", "slow", "later"]).name("cut");
    let before = model.counts().started;
    let mut run = fan_out(&host, cut.parallel(1)).await;
    run.next().await.unwrap();
    until("the second is called", || {
        model.counts().started == before + 2
    })
    .await;
    run.cancel();
    run.finish().await;
    drop(host);

    let host = begin().await;
    let tenant = "acme".parse().unwrap();
    let list = async |after, max| {
        let sessions = host.ports().sessions.clone();
        stored_fan_outs(&*sessions, &tenant, after, max)
            .await
            .unwrap()
    };
    let (mut all, next) = list(None, 100).await;
    all.sort_by(|a, b| a.name.cmp(&b.name));
    let shown: Vec<_> = all
        .iter()
        .map(|one| {
            let counts = (one.tasks, one.done, one.failed, one.open());
            (one.name.as_str(), counts, one.spent.micro_usd)
        })
        .collect();
    assert_eq!(
        shown,
        [("cut", (3, 1, 0, 2), 1900), ("mixed", (2, 1, 1, 0), 1900)]
    );
    assert_eq!(next, None);

    // The same in pages.
    let mut paged = Vec::new();
    let mut after = None;
    loop {
        let (more, next) = list(after, 1).await;
        paged.extend(more);
        match next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    paged.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(paged, all);
}
