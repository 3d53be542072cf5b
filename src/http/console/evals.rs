//! The operator's pages of evaluations: the runs, one of them, and two side by side. They show
//! figures; answers and outputs stay with `callboard eval report`.

use std::path::PathBuf;

use axum::{
    extract::{Query, State},
    response::{IntoResponse as _, Response},
};
use maud::{Markup, html};
use serde::Deserialize;

use super::{
    html::{badge, card, number},
    page::{Failure, Page, Section},
    session::OperatorSession,
};
use crate::{
    evals::{
        Comparison, EvalStore, EvalStoreError, RunFigures, RunInfo, RunRow, Status, compare,
        figures,
        report::{self, dollars, of, percent, points, range, seconds},
    },
    http::{
        error::Problem,
        routes::Path,
        shared::{App, too_busy},
    },
    visible::visible,
};

/// Runs of the list.
const RUNS_MAX: u32 = 200;

/// Trials of a task that a row marks one by one.
const MARKS_MAX: usize = 50;

/// Two runs.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Wanted {
    a: String,
    b: String,
}

/// Shows the runs.
pub(super) async fn runs(
    State(app): State<App>,
    operator: OperatorSession,
) -> Result<Response, Failure> {
    let runs = read(&app, |store| store.runs(RUNS_MAX)).await?;
    let runs = runs.unwrap_or_default();
    let content = html! {
        h1 { "Evaluations" }
        @if runs.is_empty() {
            p.dim { "There are no results in the data folder of this host. "
                code { "callboard eval run PATH" } " makes some." }
        } @else {
            form.row action="/console/host/evals/compare" {
                (choice("a", "Run A, the base", &runs, 1)) (choice("b", "Run B", &runs, 0))
                button type="submit" { "Compare" }
            }
            div.wide { table.rows {
                thead { tr {
                    th { "Run" } th { "Data set" } th { "Solver" } th { "Model" } th { "Begun (UTC)" }
                    th.num { "Passed" } th.num { "Done" }
                } }
                tbody { @for row in &runs { (row_of(row)) } }
            } }
        }
    };
    Ok(Page::new(&operator.session, Section::Evals, "Evaluations", content).into_response())
}

fn choice(name: &str, label: &str, runs: &[RunRow], chosen: usize) -> Markup {
    let chosen = chosen.min(runs.len().saturating_sub(1));
    html! {
        label { (label) " "
            select name=(name) { @for (at, row) in runs.iter().enumerate() {
                option value=(row.run.id) selected[at == chosen] { (visible(&row.run.id)) }
            } }
        }
    }
}

fn row_of(row: &RunRow) -> Markup {
    let run = &row.run;
    html! { tr {
        td { a href=(path_of(&run.id)) { (visible(&run.id)) } }
        td { (visible(&run.data_set)) }
        td { (visible(&run.solver)) }
        td { (visible(&run.model)) }
        td { (report::date(run.created_ms)) }
        td.num { (row.passed) }
        td.num { (row.done) " of " (run.trials_planned()) }
    } }
}

fn path_of(run: &str) -> String {
    let run: String = form_urlencoded::byte_serialize(run.as_bytes()).collect();
    format!("/console/host/evals/of/{}", run.replace('+', "%20"))
}

/// Shows one run: its tasks with rates and their intervals, and the outcome of each trial.
pub(super) async fn one(
    State(app): State<App>,
    operator: OperatorSession,
    run: Result<Path<String>, Problem>,
) -> Result<Response, Failure> {
    let Path(run) = run?;
    let figures = of_run(&app, run).await?;
    let total = &figures.total;
    let content = html! {
        (crumbs())
        h1 { "Run " (visible(&figures.run.id)) }
        (about("", &figures.run))
        ul.cards {
            (card("Pass rate", &percent(total.pass_rate), &total.interval.as_ref().map_or_else(
                || "mean of the tasks".to_owned(),
                |interval| format!("95 %: {}", range(interval)),
            )))
            (card("Trials", &of(total.passed, total.trials), &format!("passed, of {} planned", total.planned)))
            (card("Errors", &total.errors.to_string(), "count as failed"))
            (card("Tokens", &number(total.tokens), ""))
            (card("Cost", &dollars(total.cost_usd), "of models with a price"))
            (card("Time", &seconds(total.seconds), "of all trials"))
        }
        div.wide { table.rows {
            thead { tr {
                th { "Task" } th.num { "Passed" } th { "Rate, 95 %" } th { "Trials" }
                th.num { "Tokens" } th.num { "Cost" } th.num { "Time" } th.num { "Model calls" }
            } }
            tbody { @for task in &figures.tasks { tr {
                td { (visible(&task.id)) }
                td.num { (of(task.passed, task.trials)) }
                td { @if task.trials > 0 { (percent(task.pass_rate)) ", " (range(&task.interval)) } }
                td { (marks(&figures, &task.id)) }
                td.num { (number(task.tokens.round() as u64)) }
                td.num { (dollars(task.cost_usd)) }
                td.num { (seconds(task.seconds)) }
                td.num { (format!("{:.1}", task.model_calls)) }
            } } }
        } }
    };
    Ok(Page::new(&operator.session, Section::Evals, "Evaluation", content).into_response())
}

fn crumbs() -> Markup {
    html! { div.crumbs { a href="/console/host/evals" { "Evaluations" } } }
}

fn about(which: &str, run: &RunInfo) -> Markup {
    html! { p.dim {
        (which) (visible(&run.data_set)) " · solver " (visible(&run.solver)) " · model " (visible(&run.model))
        " · Callboard " (visible(&run.version)) " · begun " (report::date(run.created_ms)) " UTC"
    } }
}

/// The trials of a task, each with its outcome; the reason is its title.
fn marks(figures: &RunFigures, task: &str) -> Markup {
    let trials = || figures.results.iter().filter(|result| result.task == task);
    let more = trials().count().saturating_sub(MARKS_MAX);
    html! {
        @for result in trials().take(MARKS_MAX) {
            span title=(visible(&result.reason)) {
                (badge(kind(result.status), result.status.as_str())) " "
            }
        }
        @if more > 0 { "and " (more) " more" }
    }
}

fn kind(status: Status) -> &'static str {
    match status {
        Status::Passed => "good",
        Status::Failed => "bad",
        Status::Error => "wait",
    }
}

/// Shows run B beside run A, paired by task and trial.
pub(super) async fn side_by_side(
    State(app): State<App>,
    operator: OperatorSession,
    Query(wanted): Query<Wanted>,
) -> Result<Response, Failure> {
    let a = of_run(&app, wanted.a).await?;
    let b = of_run(&app, wanted.b).await?;
    let found = compare(&a, &b);
    let content = html! {
        (crumbs())
        h1 { (visible(&found.b.id)) " against " (visible(&found.a.id)) }
        (about("A: ", &found.a)) (about("B: ", &found.b))
        (verdict(&found))
        (pairs(&a, &b, &found))
        @for (title, lines) in [("What differs", &found.differs), ("Left out", &found.left_out)] {
            @if !lines.is_empty() {
                h2 { (title) }
                ul { @for line in lines { li { (visible(line)) } } }
            }
        }
    };
    Ok(Page::new(
        &operator.session,
        Section::Evals,
        "Two evaluations",
        content,
    )
    .into_response())
}

fn verdict(found: &Comparison) -> Markup {
    let lines = report::table::lines(found);
    html! {
        @if let Some((first, rest)) = lines.split_first() {
            p { strong { (visible(first)) } }
            ul { @for line in rest { li { (visible(line)) } } }
        }
    }
}

fn pairs(a: &RunFigures, b: &RunFigures, found: &Comparison) -> Markup {
    html! { div.wide { table.rows {
        thead { tr {
            th { "Task" } th.num { "Pairs" }
            th { "A: " (visible(&found.a.id)) } th { "B: " (visible(&found.b.id)) }
            th.num { "B − A, points" }
        } }
        tbody { @for task in &found.tasks { tr {
            td { (visible(&task.id)) }
            td.num { (task.pairs) }
            td { (percent(task.a)) " " (marks(a, &task.id)) }
            td { (percent(task.b)) " " (marks(b, &task.id)) }
            td.num { (points(task.b - task.a)) }
        } } }
    } } }
}

async fn of_run(app: &App, id: String) -> Result<RunFigures, Failure> {
    let found = read(app, move |store| {
        let Some(run) = store.run(&id)? else {
            return Ok(None);
        };
        Ok(Some(figures(run, store.results(&id)?)))
    });
    let missing = || Failure::from(Problem::not_found("run"));
    found.await?.flatten().ok_or_else(missing)
}

/// Reads the file of results off the async workers; `None` if there is none.
async fn read<T: Send + 'static>(
    app: &App,
    read: impl FnOnce(&EvalStore) -> Result<T, EvalStoreError> + Send + 'static,
) -> Result<Option<T>, Failure> {
    let Some(path) = app.config.eval_results.clone() else {
        return Ok(None);
    };
    let reading = move |path: PathBuf| {
        if !path.exists() {
            return Ok(None);
        }
        read(&EvalStore::open(&path)?).map(Some)
    };
    let _place = app.views.acquire(None).await.map_err(too_busy)?;
    let read = tokio::task::spawn_blocking(move || reading(path)).await;
    match read {
        Ok(Ok(read)) => Ok(read),
        Ok(Err(error)) => {
            // The text names the file, so it goes to the log only.
            tracing::warn!(%error, "the results of evaluations cannot be read");
            Err(Problem::internal().into())
        }
        Err(_) => Err(Problem::internal().into()),
    }
}
