//! Reports as text.
//!
//! Pure.

use super::{date, dollars, of, p_value, percent, points, range, seconds, tools};
use crate::evals::{
    comparison::{Comparison, Ratio},
    figures::{RunFigures, Total},
    result::{RunInfo, Status},
};

/// The report of a run.
pub fn run(figures: &RunFigures) -> String {
    let mut rows = vec![row(&[
        "task", "level", "passed", "95 %", "score", "tokens", "cost", "time", "calls", "verified",
        "tools",
    ])];
    rows.extend(figures.tasks.iter().map(|task| {
        let errors = if task.errors > 0 {
            format!(" ({} error)", task.errors)
        } else {
            String::new()
        };
        vec![
            task.id.clone(),
            task.difficulty.clone().unwrap_or_else(|| "–".into()),
            of(task.passed, task.trials) + &errors,
            if task.trials == 0 {
                "–".into()
            } else {
                range(&task.interval)
            },
            format!("{:.2}", task.score),
            format!("{:.0}", task.tokens),
            dollars(task.cost_usd),
            seconds(task.seconds),
            format!("{:.1}", task.model_calls),
            of(task.self_verified, task.self_verified_of),
            tools(&task.tools),
        ]
    }));
    let mut text = head(&figures.run);
    text += &aligned(&rows);
    text.push('\n');
    text += &totals(&figures.total);
    text += &failures(figures);
    text
}

fn head(run: &RunInfo) -> String {
    let judge = run
        .judge
        .as_ref()
        .map_or_else(String::new, |judge| format!(", judge {judge}"));
    format!(
        "run {} · {} · solver {}, provider {}, model {}{judge} · {} of each task · {} UTC\n\n",
        run.id,
        run.data_set,
        run.solver,
        run.provider,
        run.model,
        counted(run.trials, "trial"),
        date(run.created_ms),
    )
}

fn counted(n: u32, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

fn totals(total: &Total) -> String {
    let mut lines = Vec::new();
    let interval = total.interval.as_ref().map_or_else(
        || ", no interval for a single task".to_owned(),
        |interval| format!(", 95 % interval over tasks {}", range(interval)),
    );
    lines.push(format!(
        "pass rate {}{interval} ({} if trials were independent)",
        percent(total.pass_rate),
        range(&total.trials_interval)
    ));
    let at: Vec<String> = total
        .at
        .iter()
        .map(|at| {
            format!(
                "pass@{} {}, pass^{} {}",
                at.k,
                percent(at.any),
                at.k,
                percent(at.all)
            )
        })
        .collect();
    if total.at.len() > 1 {
        lines.push(at.join(" · "));
    }
    let score = total
        .score_interval
        .as_ref()
        .map_or_else(String::new, |interval| {
            format!(" ({:.2}–{:.2})", interval.low, interval.high)
        });
    let judge = if total.judge_tokens > 0 {
        format!(
            " · judge {} tokens, {}",
            total.judge_tokens,
            dollars(total.judge_cost_usd)
        )
    } else {
        String::new()
    };
    lines.push(format!(
        "score {:.2}{score} · {} tokens · {} · {}{judge}",
        total.score,
        total.tokens,
        dollars(total.cost_usd),
        seconds(total.seconds)
    ));
    let missing = total
        .planned
        .saturating_sub(usize::try_from(total.trials).unwrap_or(usize::MAX));
    let errors = match total.errors {
        0 => String::new(),
        1 => ", 1 trial ended with an error and counts as failed".into(),
        n => format!(", {n} trials ended with an error and count as failed"),
    };
    let open = if missing > 0 {
        format!(", {missing} of {} trials are missing", total.planned)
    } else {
        String::new()
    };
    lines.push(format!(
        "{} of {} passed{errors}{open}",
        total.passed,
        counted(total.trials, "trial")
    ));
    lines.join("\n") + "\n"
}

/// Why trials did not pass, one line each, the first few.
fn failures(figures: &RunFigures) -> String {
    const SHOWN: usize = 20;
    let failed: Vec<_> = figures
        .results
        .iter()
        .filter(|result| result.status != Status::Passed)
        .collect();
    let mut text = String::new();
    for result in failed.iter().take(SHOWN) {
        let reason = result.reason.replace('\n', " ");
        let code = result
            .error_code
            .as_ref()
            .map_or_else(String::new, |code| format!("{code}: "));
        text += &format!(
            "  {}.{} {}: {code}{reason} [{}]  sessions show {} --tenant {}\n",
            result.task,
            result.trial,
            result.status.as_str(),
            result.stop_reason,
            result.conversation,
            result.tenant,
        );
    }
    if failed.len() > SHOWN {
        text += &format!("  and {} more; --json has all\n", failed.len() - SHOWN);
    }
    if text.is_empty() {
        text
    } else {
        format!("\n{text}")
    }
}

/// The report of a comparison.
pub fn comparison(found: &Comparison) -> String {
    let mut text = format!("A = {}, B = {}\n", found.a.id, found.b.id);
    for difference in &found.differs {
        text += &format!("  {difference}\n");
    }
    text.push('\n');
    let mut rows = vec![row(&["task", "pairs", "A", "B", "B - A"])];
    rows.extend(found.tasks.iter().map(|task| {
        vec![
            task.id.clone(),
            task.pairs.to_string(),
            percent(task.a),
            percent(task.b),
            points(task.b - task.a),
        ]
    }));
    text += &aligned(&rows);
    text.push('\n');
    for line in lines(found) {
        text += &line;
        text.push('\n');
    }
    for reason in &found.left_out {
        text += &format!("left out: {reason}\n");
    }
    text
}

/// The figures of a comparison, a line each.
pub(crate) fn lines(found: &Comparison) -> Vec<String> {
    let passes = &found.passes;
    let mut lines = vec![found.verdict.clone()];
    if let (Some(low), Some(high), Some(p)) = (passes.low, passes.high, passes.p) {
        lines.push(format!(
            "passing: {} percentage points, 95 % interval {} to {}, p {} (t test over {} tasks, {} pairs)",
            points(passes.difference),
            points(low),
            points(high),
            p_value(p),
            passes.tasks,
            passes.pairs
        ));
    }
    lines.push(match passes.smallest {
        Some(smallest) if smallest > 1.0 => {
            "no difference is large enough for so few tasks to find it in 80 % of cases".into()
        }
        Some(smallest) => format!(
            "smallest difference that this comparison finds in 80 % of cases: {:.1} percentage points",
            100.0 * smallest
        ),
        None => "the tasks differ equally, so nothing shows which differences this comparison could find".into(),
    });
    lines.push(format!(
        "tasks: {} better, {} worse, {} equal; p {} (sign test)",
        passes.better,
        passes.worse,
        passes.equal,
        p_value(passes.sign_p)
    ));
    let ratio = |what: &str, ratio: &Option<Ratio>| {
        ratio.as_ref().map(|ratio| {
            let range = match (ratio.low, ratio.high) {
                (Some(low), Some(high)) => format!(" ({low:.2}–{high:.2})"),
                _ => String::new(),
            };
            format!("{what} ×{:.2}{range}", ratio.ratio)
        })
    };
    let ratios: Vec<String> = [
        ratio("tokens", &found.tokens),
        ratio("cost", &found.cost),
        ratio("time", &found.seconds),
    ]
    .into_iter()
    .flatten()
    .collect();
    if !ratios.is_empty() {
        lines.push(format!("B in proportion to A: {}", ratios.join(" · ")));
    }
    lines
}

/// A list of runs.
pub fn runs(runs: &[(RunInfo, usize, usize)]) -> String {
    let mut rows = vec![row(&[
        "run",
        "begun (UTC)",
        "data set",
        "solver",
        "model",
        "trials",
        "passed",
    ])];
    rows.extend(runs.iter().map(|(run, done, passed)| {
        vec![
            run.id.clone(),
            date(run.created_ms),
            run.data_set.clone(),
            run.solver.clone(),
            run.model.clone(),
            format!("{done}/{}", run.trials_planned()),
            passed.to_string(),
        ]
    }));
    aligned(&rows)
}

fn row(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|cell| (*cell).to_owned()).collect()
}

/// Columns of equal width, two spaces between them.
fn aligned(rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let pad = width(column).saturating_sub(cell.chars().count());
            line += cell;
            line += &" ".repeat(pad + 2);
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
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
    use expect_test::expect;

    #[test]
    fn a_run_is_a_table_with_its_totals_and_its_failures() {
        let figures = figures(
            info("first", 3, 2),
            vec![
                result("a", 1, Status::Passed),
                result("a", 2, Status::Passed),
                result("b", 1, Status::Passed),
                result("b", 2, Status::Error),
            ],
        );

        expect![[r#"
            run first · suite · solver model, provider offline, model rules · 2 trials of each task · 2026-11-21 22:26 UTC

            task  level  passed         95 %      score  tokens  cost   time    calls  verified  tools
            a     easy   2/2            34–100 %  1.00   100     $0.01  0.50 s  2.0    1/2       bash 2
            b     easy   1/2 (1 error)  9–91 %    0.50   100     $0.01  0.50 s  2.0    1/2       bash 2
            c     easy   –              –         0.00   0       –      0.00 s  0.0    –         –

            pass rate 75 %, 95 % interval over tasks 1–100 % (30–95 % if trials were independent)
            pass@1 75 %, pass^1 75 % · pass@2 100 %, pass^2 50 %
            score 0.75 (0.01–1.00) · 400 tokens · $0.04 · 2.00 s
            3 of 4 trials passed, 1 trial ended with an error and counts as failed, 2 of 6 trials are missing

              b.2 error: so [end_turn]  sessions show c --tenant t
        "#]].assert_eq(&run(&figures));
    }

    #[test]
    fn a_comparison_is_a_table_with_its_verdict() {
        let a = figures(
            info("old", 2, 1),
            vec![
                result("a", 1, Status::Passed),
                result("b", 1, Status::Failed),
            ],
        );
        let mut b = figures(
            info("new", 2, 1),
            vec![
                result("a", 1, Status::Passed),
                result("b", 1, Status::Passed),
            ],
        );
        b.run.model = "larger".into();

        expect![[r#"
            A = old, B = new
              model: rules → larger

            task  pairs  A      B      B - A
            a     1      100 %  100 %  +0.0
            b     1      0 %    100 %  +100.0

            no difference is shown: it lies between -100.0 and +100.0 percentage points; this comparison is too small to find any
            passing: +50.0 percentage points, 95 % interval -100.0 to +100.0, p 0.500 (t test over 2 tasks, 2 pairs)
            no difference is large enough for so few tasks to find it in 80 % of cases
            tasks: 1 better, 0 worse, 1 equal; p 1.000 (sign test)
            B in proportion to A: tokens ×1.00 (1.00–1.00) · cost ×1.00 (1.00–1.00) · time ×1.00 (1.00–1.00)
        "#]].assert_eq(&comparison(&compare(&a, &b)));
    }
}
