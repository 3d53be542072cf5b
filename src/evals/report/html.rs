//! Reports as one page of HTML: no script, no address outside, every text escaped.
//!
//! Pure.

use std::borrow::Cow;

use super::{date, dollars, of, percent, range, seconds, table, tools};
use crate::{
    evals::{
        comparison::Comparison,
        figures::{RunFigures, Total},
        result::{EvalResult, RunInfo, Status},
        statistics::Interval,
    },
    visible::visible,
};

/// What the page may load: nothing but its own style.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// Trials whose answer and output the page shows; a larger run shows those that did not pass.
const DETAILS_MAX: usize = 500;

/// The page of a run.
pub fn run(figures: &RunFigures) -> String {
    let mut body = format!(
        "<h1>{}</h1>\n{}\n{}",
        escaped(&figures.run.id),
        about(&figures.run),
        cards(&figures.total)
    );
    body += "<h2>Tasks</h2>\n<div class=\"wide\"><table>\n<tr><th>Task</th><th>Level</th><th class=\"n\">Passed</th><th>Rate and 95 % interval</th><th class=\"n\">Score</th><th class=\"n\">Tokens</th><th class=\"n\">Cost</th><th class=\"n\">Time</th><th class=\"n\">Model calls</th><th class=\"n\">Verified</th><th>Tools</th></tr>\n";
    for task in &figures.tasks {
        let class = match task {
            task if task.errors > 0 => "error",
            task if task.trials > 0 && task.passed == task.trials => "passed",
            task if task.passed == 0 => "failed",
            _ => "",
        };
        body += &format!(
            "<tr><td>{}</td><td>{}</td><td class=\"n {class}\">{}</td><td>{}</td><td class=\"n\">{:.2}</td><td class=\"n\">{:.0}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{:.1}</td><td class=\"n\">{}</td><td>{}</td></tr>\n",
            escaped(&task.id),
            escaped(task.difficulty.as_deref().unwrap_or("–")),
            of(task.passed, task.trials),
            bar(task.pass_rate, &task.interval, task.trials),
            task.score,
            task.tokens,
            dollars(task.cost_usd),
            seconds(task.seconds),
            task.model_calls,
            of(task.self_verified, task.self_verified_of),
            escaped(&tools(&task.tools)),
        );
    }
    body += "</table></div>\n<h2>Trials</h2>\n";
    let all = figures.results.len() <= DETAILS_MAX;
    let shown = figures
        .results
        .iter()
        .filter(|result| all || result.status != Status::Passed)
        .take(DETAILS_MAX);
    for result in shown {
        body += &details(result);
    }
    page(&format!("Run {}", figures.run.id), &body)
}

/// The page of a comparison.
pub fn comparison(found: &Comparison) -> String {
    let mut body = format!(
        "<h1>{} against {}</h1>\n",
        escaped(&found.b.id),
        escaped(&found.a.id)
    );
    let mut lines = table::lines(found).into_iter();
    body += &format!(
        "<p><b>{}</b></p>\n<ul>\n",
        escaped(&lines.next().unwrap_or_default())
    );
    for line in lines {
        body += &format!("<li>{}</li>\n", escaped(&line));
    }
    body += "</ul>\n";
    if !found.differs.is_empty() {
        body += "<h2>What differs</h2>\n<ul>\n";
        for line in &found.differs {
            body += &format!("<li>{}</li>\n", escaped(line));
        }
        body += "</ul>\n";
    }
    body += &format!(
        "<h2>Tasks</h2>\n<table>\n<tr><th>Task</th><th class=\"n\">Pairs</th><th class=\"n\">A: {}</th><th class=\"n\">B: {}</th><th class=\"n\">B − A</th></tr>\n",
        escaped(&found.a.id),
        escaped(&found.b.id)
    );
    for task in &found.tasks {
        let class = match task.b - task.a {
            difference if difference > 0.0 => "passed",
            difference if difference < 0.0 => "failed",
            _ => "",
        };
        body += &format!(
            "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n {class}\">{}</td></tr>\n",
            escaped(&task.id),
            task.pairs,
            percent(task.a),
            percent(task.b),
            super::points(task.b - task.a),
        );
    }
    body += "</table>\n";
    if !found.left_out.is_empty() {
        body += "<h2>Left out</h2>\n<ul>\n";
        for line in &found.left_out {
            body += &format!("<li>{}</li>\n", escaped(line));
        }
        body += "</ul>\n";
    }
    page(&format!("{} against {}", found.b.id, found.a.id), &body)
}

fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{}</title>\n<style>\n{}</style>\n</head>\n<body>\n{body}</body>\n</html>\n",
        escaped(title),
        include_str!("page.css"),
    )
}

fn about(run: &RunInfo) -> String {
    let judge = run
        .judge
        .as_ref()
        .map_or_else(String::new, |judge| format!(" · judge {}", escaped(judge)));
    format!(
        "<p class=\"about\">{} · solver {} · provider {} · model {}{judge} · system prompt {} · Callboard {} · begun {} UTC</p>\n",
        escaped(&run.data_set),
        escaped(&run.solver),
        escaped(&run.provider),
        escaped(&run.model),
        escaped(&run.system_hash.chars().take(8).collect::<String>()),
        escaped(&run.version),
        date(run.created_ms),
    )
}

fn cards(total: &Total) -> String {
    let interval = total
        .interval
        .as_ref()
        .map_or_else(String::new, |interval| {
            format!(", 95 %: {}", range(interval))
        });
    let mut cards = vec![
        (
            percent(total.pass_rate),
            format!("pass rate over tasks{interval}"),
        ),
        (
            of(total.passed, total.trials),
            format!("trials passed of {} planned", total.planned),
        ),
    ];
    for at in total.at.iter().skip(1) {
        cards.push((
            format!("{} / {}", percent(at.any), percent(at.all)),
            format!("pass@{0} / pass^{0}", at.k),
        ));
    }
    cards.push((format!("{:.2}", total.score), "mean score".into()));
    cards.push((total.tokens.to_string(), "tokens".into()));
    cards.push((dollars(total.cost_usd), "cost".into()));
    cards.push((seconds(total.seconds), "time of all trials".into()));
    if total.errors > 0 {
        cards.push((total.errors.to_string(), "errors, counted as failed".into()));
    }
    let cards: String = cards
        .into_iter()
        .map(|(figure, what)| {
            format!(
                "<div class=\"card\"><b>{}</b><span>{}</span></div>\n",
                escaped(&figure),
                escaped(&what)
            )
        })
        .collect();
    format!("<div class=\"cards\">\n{cards}</div>\n")
}

/// A rate with its interval, as a picture with its text.
fn bar(rate: f64, interval: &Interval, trials: u32) -> String {
    if trials == 0 {
        return "no trial yet".into();
    }
    format!(
        "<svg viewBox=\"0 0 100 10\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{label}\"><title>{label}</title><rect class=\"track\" width=\"100\" height=\"10\"/><rect class=\"range\" x=\"{:.1}\" y=\"2\" width=\"{:.1}\" height=\"6\"/><rect class=\"at\" x=\"{:.1}\" width=\"3\" height=\"10\"/></svg>",
        100.0 * interval.low,
        100.0 * (interval.high - interval.low),
        97.0 * rate,
        label = format_args!("{}, {}", percent(rate), range(interval)),
    )
}

fn details(result: &EvalResult) -> String {
    let status = result.status.as_str();
    let mut text = format!(
        "<details><summary>{}.{} <b class=\"{status}\">{status}</b> {}</summary>\n",
        escaped(&result.task),
        result.trial,
        escaped(&result.reason)
    );
    text += &format!(
        "<p>score {:.2} · stopped by {} · {} tokens · {} · {} · {}</p>\n<p><code>callboard sessions show {} --tenant {}</code></p>\n",
        result.score,
        escaped(&result.stop_reason),
        result.tokens.total,
        dollars(result.cost_usd),
        seconds(std::time::Duration::from_millis(result.duration_ms).as_secs_f64()),
        escaped(&tools(&result.tools)),
        escaped(&result.conversation),
        escaped(&result.tenant),
    );
    for (what, content) in [("Answer", &result.answer), ("Tests", &result.output)] {
        if !content.trim().is_empty() {
            text += &format!("<p>{what}</p>\n<pre>{}</pre>\n", escaped(content));
        }
    }
    text + "</details>\n"
}

/// Escapes a text for HTML, attributes included, and makes invisible characters visible.
fn escaped(text: &str) -> Cow<'_, str> {
    let text = visible(text);
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evals::{
        comparison::compare,
        figures::{
            figures,
            tests::{result, run as info},
        },
    };

    const HOSTILE: &str = "</pre><script>alert(1)</script><img src=x onerror='x'>\"&\u{202e}";

    #[test]
    fn a_page_escapes_every_text_and_needs_no_script() {
        let mut run_info = info(HOSTILE, 1, 1);
        for text in [
            &mut run_info.data_set,
            &mut run_info.solver,
            &mut run_info.provider,
            &mut run_info.model,
            &mut run_info.system_hash,
            &mut run_info.version,
        ] {
            *text = HOSTILE.into();
        }
        run_info.judge = Some(HOSTILE.into());
        run_info.tasks[0].difficulty = Some(HOSTILE.into());
        run_info.tasks[0].id = HOSTILE.into();
        let mut hostile = result(HOSTILE, 1, Status::Failed);
        for text in [
            &mut hostile.reason,
            &mut hostile.answer,
            &mut hostile.output,
            &mut hostile.stop_reason,
            &mut hostile.tenant,
            &mut hostile.conversation,
        ] {
            *text = HOSTILE.into();
        }
        hostile.tools = [(HOSTILE.to_owned(), 1)].into();
        let one = figures(run_info, vec![hostile]);
        let mut other = one.clone();
        other.run.solver = format!("{HOSTILE}2");

        for page in [run(&one), comparison(&compare(&one, &other))] {
            for mark in [
                "<script",
                "<img",
                "onerror='",
                "src=",
                "href=",
                "http://",
                "\u{202e}",
            ] {
                assert!(!page.replace("&lt;img src=x", "").contains(mark), "{mark}");
            }
            assert!(page.contains("&lt;script&gt;") && page.contains(POLICY));
        }
    }

    #[test]
    fn a_page_has_the_figures_of_the_run() {
        let page = run(&figures(
            info("first", 2, 2),
            vec![
                result("a", 1, Status::Passed),
                result("a", 2, Status::Passed),
                result("b", 1, Status::Failed),
                result("b", 2, Status::Error),
            ],
        ));

        for text in ["50 %", "2/4", "pass@2 / pass^2", "400", "$0.04", "bash 2"] {
            assert!(page.contains(text), "{text}");
        }
        assert_eq!(page.matches("<details>").count(), 4);
    }
}
