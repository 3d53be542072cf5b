//! Named fan-outs whose host dies at any append of a subagent, and the fan-outs of the same name
//! that attach afterwards: each task is accepted once, completed once and reported once.

use std::time::Duration;

use serde_json::json;

use super::{subagents::*, *};
use crate::{
    host::{FanOut, FanOutRun},
    ids::{Scope, Seq},
    journal::{Entry, EntryBody},
    stream::{Open, StopReason},
    testing::{Fault, FaultPlan, FaultySessions, Reply, ScriptedModel},
};

const TASKS: [&str; 3] = ["a", "b", "c"];

/// A model for which each task is one tool call and then an answer.
fn works() -> Arc<ScriptedModel> {
    Arc::new(ScriptedModel::answering(|request, _| {
        match request.messages.len() {
            1 => Reply::tool("tool", &json!({})),
            _ => Reply::text(format!("{} done", task(request))),
        }
    }))
}

async fn begin(host: &Host) -> FanOutRun {
    host.tenant("acme")
        .fan_out(FanOut::over(TASKS).name("n").parallel(2))
        .await
        .unwrap()
}

/// Returns the indices of all results in the order of their ends; `None` when results stop
/// arriving.
async fn ends(run: &mut FanOutRun) -> Option<Vec<usize>> {
    let mut ends = Vec::new();
    loop {
        match tokio::time::timeout(Duration::from_secs(30), run.next()).await {
            Ok(Some(end)) => ends.push(end.index),
            Ok(None) => return Some(ends),
            Err(_) => return None,
        }
    }
}

/// How often a subagent accepted its task, and how its rounds ended.
async fn rounds_of(store: &MemorySessions, child: &Scope) -> (usize, Vec<StopReason>) {
    let mut prompts = 0;
    let mut rounds = Vec::new();
    for stored in store.entries(child, Seq(0), 1000).await.unwrap() {
        match Entry::decode(&stored).unwrap().body {
            EntryBody::PromptAccepted { .. } => prompts += 1,
            EntryBody::RoundFinished { stop_reason, .. } => rounds.push(stop_reason),
            _ => {}
        }
    }
    (prompts, rounds)
}

/// Runs hosts in sequence that each die at their nth append, and then two that live. Returns
/// whether the last of `deaths` was beyond the last append, so that its host completed.
async fn attach_after(deaths: &[u64]) -> bool {
    let (tool, _) = probe("tool", EffectClass::Idempotent, |_| async {
        Ok("ok".into())
    });
    let store = Arc::new(MemorySessions::new());
    let build = |model: &Arc<ScriptedModel>, store: Arc<dyn SessionBackend>| {
        builder(model)
            .tool(tool.clone())
            .shared_sessions(store)
            .build()
    };
    let mut over = false;
    for nth in deaths {
        let faulty = Arc::new(FaultySessions::new(
            store.clone(),
            FaultPlan::new().append(*nth, Fault::Hang),
        ));
        let host = build(&works(), faulty.clone()).await.unwrap();
        let mut run = begin(&host).await;
        over = ends(&mut run).await.is_some() && !faulty.is_hanging();
        drop((run, host, faulty));
    }

    for again in [false, true] {
        let model = works();
        let host = build(&model, store.clone()).await.unwrap();
        let mut run = begin(&host).await;
        let mut ended = ends(&mut run).await.expect("all results come");
        let summary = run.finish().await;

        ended.sort_unstable();
        assert_eq!(ended, [0, 1, 2], "{deaths:?}: each result arrives once");
        assert_eq!(
            summary
                .tasks
                .iter()
                .map(|end| end.text())
                .collect::<Vec<_>>(),
            ["a done", "b done", "c done"],
            "{deaths:?}"
        );
        let begun = children(&host).await;
        assert_eq!(
            (begun.len(), host.awake()),
            (3, 0),
            "{deaths:?}: no task began twice, none is left"
        );
        for (child, open) in begun {
            let child = Scope::new("acme".parse().unwrap(), child);
            assert_eq!(
                (rounds_of(&store, &child).await, open),
                ((1, vec![StopReason::EndTurn]), Open::None),
                "{deaths:?}"
            );
        }
        assert!(
            !again || model.counts().started == 0,
            "{deaths:?}: what is over answers from its journal"
        );
    }
    over
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_at_any_append_each_result_comes_once() {
    let mut points = 0;
    for first in 1.. {
        if attach_after(&[first]).await {
            assert!(first > 12, "the test would show nothing");
            break;
        }
        points += 1;
        // The host that attaches dies too.
        for second in 1.. {
            if attach_after(&[first, second]).await {
                break;
            }
            points += 1;
        }
    }
    println!("{points} crash points");
}
