//! Evaluations on the operator's pages.

use std::path::PathBuf;

use callboard::evals::{EvalResult, EvalStore, RunInfo};

use super::{super::matrix::Obliging, *};

const HOSTILE: &str = "<script>alert(1)</script>";

fn run(id: &str, created_ms: u64) -> RunInfo {
    let task = |id: &str| json!({ "id": id, "difficulty": null, "tags": [], "grader": "script", "hash": id });
    serde_json::from_value(json!({
        "id": id, "created_ms": created_ms, "data_set": HOSTILE, "solver": "model",
        "provider": "offline", "model": "m", "system_hash": "00", "settings": {}, "judge": null,
        "trials": 2, "version": "1", "tasks": [task("adds"), task("sorts"), task("waits")],
    }))
    .unwrap()
}

fn result(task: &str, trial: u32, passes: bool) -> EvalResult {
    serde_json::from_value(json!({
        "task": task, "trial": trial, "status": if passes { "passed" } else { "failed" },
        "score": f64::from(u8::from(passes)), "reason": HOSTILE, "error_code": null, "judge": null,
        "stop_reason": "end_turn", "answer": "what the model said", "output": "what the tests said",
        "tokens": { "input_uncached": 5, "cache_read": 0, "cache_write": 0, "output": 5, "total": 10 },
        "cost_usd": null, "judge_tokens": 0, "judge_cost_usd": null, "model_calls": 1, "tools": {},
        "tool_errors": 0, "self_verified": null, "duration_ms": 5, "attempts": 1, "tenant": "evals",
        "conversation": "c", "finished_ms": 9,
    }))
    .unwrap()
}

async fn server(results: Option<PathBuf>) -> Server {
    let setting = Setting {
        operator: Some(Arc::new(Obliging)),
        eval_results: results,
        ..Setting::default()
    };
    let model = ScriptedModel::answering(|_, _| Reply::text("yes"));
    Server::with(Arc::new(model), setting).await
}

#[tokio::test]
async fn the_operator_sees_runs_of_evaluations_and_two_side_by_side_but_no_answers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("evals.db");
    let store = EvalStore::open(&path).unwrap();
    for (id, at, passing) in [("before", 1, 1), ("after", 2, 3)] {
        store.put_run(&run(id, at)).unwrap();
        for (place, task) in (1..).zip(["adds", "sorts", "waits"]) {
            for trial in [1, 2] {
                store
                    .put(id, &result(task, trial, place <= passing))
                    .unwrap();
            }
        }
    }
    let server = server(Some(path)).await;
    let mut operator = Browser::with(&server, ADMIN).await;

    let runs = operator.get("/console/host/evals").await.text;
    assert!(
        runs.contains("href=\"/console/host/evals/of/before\""),
        "{runs}"
    );
    let one = operator.get("/console/host/evals/of/before").await.text;
    assert!(one.contains("33 %") && one.contains("2/6"), "{one}");
    let both = operator
        .get("/console/host/evals/compare?a=before&b=after")
        .await
        .text;
    assert!(both.contains("after against before"), "{both}");
    assert!(
        both.contains("+100.0") && both.contains("this comparison"),
        "{both}"
    );
    for page in [&runs, &one, &both] {
        assert!(!page.contains("<script>alert") && page.contains("&lt;script&gt;"));
        assert!(!page.contains("what the model said") && !page.contains("what the tests said"));
    }
    let missing = operator.get("/console/host/evals/of/none").await;
    assert_eq!(missing.status, 404);
    let mut tenant = Browser::with(&server, ACME).await;
    assert_eq!(tenant.get("/console/host/evals").await.status, 404);
}

#[tokio::test]
async fn a_host_without_results_says_how_to_make_some_and_makes_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("evals.db");
    let server = server(Some(path.clone())).await;
    let mut operator = Browser::with(&server, ADMIN).await;

    let page = operator.get("/console/host/evals").await;
    assert!(page.text.contains("callboard eval run"), "{}", page.text);
    assert!(!path.exists());
}
