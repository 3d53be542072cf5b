//! Fan-outs for an MCP client.

use std::time::Duration;

use callboard_actors::ids::FAN_OUT_PREFIX;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    api::{Asked, Refused, escaped},
    conversations::{cut, limit},
    rounds::{Call, Progress},
    tools::{GetFanOut, StartFanOut, WAIT_MS_MAX},
};

/// Longest wait of one request to the host; between two, a client hears how far the fan-out is.
const STEP: Duration = Duration::from_secs(5);

/// Into how many steps a wait is divided, beside those of time.
const STEPS: u64 = 50;

/// An index that no task has.
const BEYOND: u32 = 1_000_000;

/// Starts a fan-out.
pub(super) async fn start(call: &Call, wanted: &StartFanOut) -> Result<Value, Refused> {
    let body = serde_json::to_value(wanted).unwrap_or_default();
    let asked = Asked::post("/v1/fanouts".to_owned(), body);
    let asked = match &wanted.name {
        Some(name) => asked.changing(&format!("{FAN_OUT_PREFIX}{name}")),
        None => asked,
    };
    let started = &call.api.json(asked).await?;
    Ok(json!({ "name": started["name"], "tasks": started["tasks"] }))
}

/// A page of results, after a wait for the end of all tasks.
pub(super) async fn get(call: &Call, wanted: GetFanOut) -> Result<Value, Refused> {
    let limit = limit(wanted.limit)?;
    let name = escaped(&wanted.name);
    let wait = wanted.wait_ms.unwrap_or_default();
    if wait > WAIT_MS_MAX {
        let detail = format!("wait_ms: must be at most {WAIT_MS_MAX}");
        return Err(Refused::new("invalid_parameter", detail));
    }
    if wait > 0 {
        let over = over(call, &name, Duration::from_millis(wait));
        tokio::select! {
            waited = over => waited?,
            () = call.context.ct.cancelled() => {
                return Err(Refused::new("interrupted", "the call was cancelled"));
            }
        }
    }
    let after = wanted.after.map(|after| format!("&after={after}"));
    let after = after.unwrap_or_default();
    let path = format!("/v1/fanouts/{name}?limit={limit}{after}");
    Ok(shortened(call.api.json(Asked::get(path)).await?))
}

/// Waits until every task has ended, for `wait` at most, and says how far the fan-out is.
async fn over(call: &Call, name: &str, wait: Duration) -> Result<(), Refused> {
    let until = Instant::now() + wait;
    let mut progress = Progress::of(&call.context);
    let (mut known, mut seen) = (0, 0);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let step = left.min(STEP);
        let asked_at = Instant::now();
        let ms = step.as_millis();
        // Behind the last task there are no results to read.
        let path = format!("/v1/fanouts/{name}?limit=1&after={BEYOND}&wait_ms={ms}&ended={seen}");
        let counts = &call.api.json(Asked::get(path)).await?;
        let count = |name: &str| counts[name].as_u64().unwrap_or_default();
        let (ended, all) = (count("ended"), count("tasks"));
        // A host that drains answers at once.
        let is_early = ended == known && asked_at.elapsed() < step / 2;
        if counts["is_over"] == true || left.is_zero() || is_early {
            return Ok(());
        }
        let line = format!("{ended} of {all} tasks have ended");
        progress.say_of(line, Some((ended, all))).await;
        known = ended;
        // Of many tasks not each end is waited for.
        seen = (ended + all / STEPS).min(all.saturating_sub(1));
    }
}

/// Cancels a fan-out.
pub(super) async fn cancel(call: &Call, name: &str) -> Result<Value, Refused> {
    let path = format!("/v1/fanouts/{}/cancel", escaped(name));
    call.api.json(Asked::post(path, Value::Null)).await?;
    Ok(json!({ "name": name, "cancelled": true }))
}

/// The page with its long texts cut: a task's conversation has the whole text.
fn shortened(mut page: Value) -> Value {
    let results = page.get_mut("results").and_then(Value::as_array_mut);
    for result in results.into_iter().flatten() {
        if let Some(text) = result["text"].as_str().map(cut) {
            result["text"] = json!(text);
        }
    }
    page
}
