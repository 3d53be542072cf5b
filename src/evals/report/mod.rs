//! Reports: text for a terminal and a page for a browser. JSON is the model itself
//! ([`RunFigures`](super::RunFigures), [`Comparison`](super::Comparison)).
//!
//! Pure.

pub mod html;
pub mod table;

use super::statistics::Interval;

/// A share as percent, without decimals.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// An interval as percents.
pub(crate) fn range(interval: &Interval) -> String {
    format!("{:.0}–{:.0} %", 100.0 * interval.low, 100.0 * interval.high)
}

pub(crate) fn dollars(usd: Option<f64>) -> String {
    match usd {
        None => "–".into(),
        Some(usd) if usd != 0.0 && usd.abs() < 0.01 => format!("${usd:.5}"),
        Some(usd) => format!("${usd:.2}"),
    }
}

pub(crate) fn seconds(seconds: f64) -> String {
    if seconds < 10.0 {
        format!("{seconds:.2} s")
    } else if seconds < 600.0 {
        format!("{seconds:.0} s")
    } else {
        format!("{:.0} min", seconds / 60.0)
    }
}

fn p_value(p: f64) -> String {
    if p < 0.001 {
        "< 0.001".into()
    } else {
        format!("{p:.3}")
    }
}

/// Signed percentage points.
pub(crate) fn points(share: f64) -> String {
    format!("{:+.1}", 100.0 * share)
}

/// How many of how many, such as `2/3`; a dash for none.
pub(crate) fn of(part: u32, whole: u32) -> String {
    if whole == 0 {
        "–".into()
    } else {
        format!("{part}/{whole}")
    }
}

/// A date and time in UTC, to the minute.
pub(crate) fn date(ms: u64) -> String {
    let text = callboard_actors::time::Timestamp(ms).to_string();
    text.chars()
        .take(16)
        .map(|c| if c == 'T' { ' ' } else { c })
        .collect()
}

/// The tools of a task with their calls, most used first.
fn tools(tools: &std::collections::BTreeMap<String, u32>) -> String {
    let mut used: Vec<_> = tools.iter().collect();
    used.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
    let used: Vec<String> = used
        .into_iter()
        .map(|(tool, calls)| format!("{tool} {calls}"))
        .collect();
    if used.is_empty() {
        "–".into()
    } else {
        used.join(", ")
    }
}
