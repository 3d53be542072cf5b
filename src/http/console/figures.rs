//! Where the time of a conversation went, and what it cost.

use axum::{extract::State, response::Response};
use callboard_actors::journal::{Durable, Entry, EntryBody};
use maud::{Markup, html};
use serde::Deserialize;

use super::{
    html::{badge, clip, duration, money, number, time},
    items::breaks_prefix,
    page::{Failure, Page, Section},
    session::TenantSession,
    thread::{Entries, Subject},
    timeline::{Bar, Layout, Work, layout, spans},
};
use crate::{
    http::{
        error::Problem,
        routes::{Path, Query},
        shared::App,
    },
    visible::visible,
};

/// Entries of a page.
const ENTRIES: u64 = 400;

/// Width of the axis, in units of the drawing.
pub(super) const WIDTH: f64 = 1000.0;

/// Height of a row of bars.
const ROW: f64 = 22.0;

/// Which entries to show.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Part {
    to: Option<u64>,
}

struct Window {
    to: u64,
    after: u64,
    head: u64,
}

impl Window {
    fn new(part: &Part, head: u64) -> Self {
        let to = part.to.unwrap_or(head).min(head);
        Self {
            to,
            after: to.saturating_sub(ENTRIES),
            head,
        }
    }

    fn links(&self) -> Markup {
        html! {
            nav.pages aria-label="Parts of the journal" {
                @if self.after > 0 { a rel="prev" href={ "?to=" (self.after) } { "Earlier" } }
                @if self.to < self.head {
                    a rel="next" href={ "?to=" (self.to.saturating_add(ENTRIES)) } { "Later" }
                }
                span.dim.small { "entries " (self.after + 1) " to " (self.to) " of " (self.head) }
            }
        }
    }
}

/// Reads the entries to show. The window begins later than asked where they are large.
async fn read(
    app: &App,
    viewer: &TenantSession,
    subject: &Subject,
    part: &Part,
) -> Result<(Window, Entries), Failure> {
    let mut window = Window::new(part, subject.head.entries.0);
    let entries = subject
        .entries(app, viewer, window.after, window.to)
        .await?;
    window.after = entries.after;
    Ok((window, entries))
}

/// Shows when the conversation waited, and for what.
pub(super) async fn timeline(
    State(app): State<App>,
    viewer: TenantSession,
    path: Result<Path<String>, Problem>,
    part: Result<Query<Part>, Problem>,
) -> Result<Response, Failure> {
    let (Path(id), Query(part)) = (path?, part?);
    let subject = Subject::find(&app, &viewer, id).await?;
    let (window, Entries { entries, room, .. }) = read(&app, &viewer, &subject, &part).await?;
    let spans = spans(&entries, subject.now);
    let sums = Work::ALL.map(|work| {
        let of = spans.iter().filter(|span| span.work == work);
        let ms: u64 = of.clone().map(|span| span.to.ms_since(span.from)).sum();
        (work, of.count(), ms)
    });
    let drawn = layout(spans, WIDTH);
    let content = html! {
        (subject.top("/timeline"))
        (window.links())
        @if drawn.bars.is_empty() { p.dim { "Nothing happened here yet." } }
        @else {
            p {
                "Model and tools at work for " strong { (duration(drawn.busy_ms)) }
                @if !drawn.gaps.is_empty() { "; time without work is shortened" }
            }
            ul.legend {
                @for (work, count, ms) in sums {
                    li { span class={ "key " (work.name()) } {} (work.name()) " "
                        span.dim { (count) " in " (duration(ms)) } }
                }
            }
            div.wide { (drawing(&drawn)) }
            details.more {
                summary { "As a table" }
                div.wide { table.rows {
                    thead { tr { th { "What" } th { "Name" } th { "Began" } th.num { "Took" } } }
                    tbody { @for bar in &drawn.bars { tr {
                        td { (bar.span.work.name()) }
                        td { (visible(clip(&bar.span.label, 60).0)) }
                        td { (time(bar.span.from)) }
                        td.num { (duration(bar.span.to.ms_since(bar.span.from))) }
                    } } }
                } }
            }
        }
    };
    let title = format!("Timeline of {}", subject.id);
    let page = Page::new(&viewer.session, Section::Conversations, title, content);
    page.counted(room, app.config.bounds.write_pause_max).await
}

fn drawing(drawn: &Layout) -> Markup {
    let height = ROW * drawn.rows as f64 + 24.0;
    // In rows that bars share, a label beside one would lie on another.
    let labelled = drawn.bars.len() == drawn.rows;
    html! {
        svg.timeline viewBox={ "0 0 " (WIDTH) " " (height) } width=(WIDTH) height=(height)
            role="img" aria-label="Bars of waits, model calls, tool calls and approvals" {
            (gaps(&drawn.gaps, height))
            @for bar in &drawn.bars { (bar_drawing(bar, labelled)) }
        }
    }
}

/// Marks times without work that were shortened.
pub(super) fn gaps(gaps: &[(f64, u64)], height: f64) -> Markup {
    html! {
        @for (x, ms) in gaps {
            g.gap {
                line x1=(at(*x)) x2=(at(*x)) y1="0" y2=(height - 18.0) {}
                text x=(at(x.min(WIDTH - 40.0))) y=(height - 5.0) text-anchor="middle" { (duration(*ms)) }
            }
        }
    }
}

/// A position in the drawing.
pub(super) fn at(x: f64) -> String {
    format!("{x:.1}")
}

fn bar_drawing(bar: &Bar, labelled: bool) -> Markup {
    let span = &bar.span;
    let took = duration(span.to.ms_since(span.from));
    let y = bar.row as f64 * ROW;
    let failed = if span.failed { " failed" } else { "" };
    let open = if span.is_open { " open" } else { "" };
    let label = format!("{} {took}", visible(clip(&span.label, 40).0));
    // Letters take about seven units. A label stands in its bar, else after it, else before it.
    let room = label.chars().count() as f64 * 6.5 + 10.0;
    let (class, x, anchor) = match bar {
        bar if bar.width > room => ("in", bar.x + 5.0, "start"),
        bar if bar.x + bar.width + room < WIDTH => ("out", bar.x + bar.width + 4.0, "start"),
        _ => ("out", bar.x - 4.0, "end"),
    };
    html! {
        g class={ "bar " (span.work.name()) (failed) (open) } {
            title { (span.work.name()) ": " (visible(clip(&span.label, 200).0)) ", " (took) }
            rect x=(at(bar.x)) y=(at(y + 3.0)) width=(at(bar.width)) height=(at(ROW - 6.0))
                rx="3" {}
            @if labelled || class == "in" {
                text class=(class) x=(at(x)) y=(at(y + ROW - 7.0)) text-anchor=(anchor) { (label) }
            }
        }
    }
}

/// Shows tokens, cost and tools.
pub(super) async fn figures(
    State(app): State<App>,
    viewer: TenantSession,
    path: Result<Path<String>, Problem>,
    part: Result<Query<Part>, Problem>,
) -> Result<Response, Failure> {
    let (Path(id), Query(part)) = (path?, part?);
    let subject = Subject::find(&app, &viewer, id).await?;
    let (window, Entries { entries, room, .. }) = read(&app, &viewer, &subject, &part).await?;
    let state = subject.conversation.state().await?;
    let content = html! {
        (subject.top("/figures"))
        (sums(&state))
        (tools(&state))
        h2 { "Model calls" }
        (window.links())
        (model_calls(&subject, &entries))
        h2 { "Beside another conversation" }
        form.filters method="get" action="/console/compare" {
            input type="hidden" name="a" value=(subject.id);
            label.small for="b" { "Id of the other" }
            input #b name="b" required maxlength="128" autocomplete="off";
            button type="submit" { "Compare" }
        }
    };
    let title = format!("Figures of {}", subject.id);
    let page = Page::new(&viewer.session, Section::Conversations, title, content);
    page.counted(room, app.config.bounds.write_pause_max).await
}

fn sums(state: &Durable) -> Markup {
    let metrics = &state.metrics;
    let usage = &metrics.usage;
    let input = usage.input();
    let cached = usage.cache_read.saturating_mul(100) / input.max(1);
    let cards = [
        (
            "Tokens in",
            number(input),
            format!("{cached} % from the cache"),
        ),
        (
            "Tokens out",
            number(usage.output),
            format!("{} model calls", number(metrics.model_calls)),
        ),
        (
            "Cost",
            money(metrics.cost_micro_usd),
            "of models with a price".to_owned(),
        ),
        (
            "Tool calls",
            number(metrics.tool_calls),
            format!("{} failed", number(metrics.failed_calls)),
        ),
        (
            "Rounds",
            number(metrics.rounds),
            format!("{} compactions", metrics.compression_events),
        ),
    ];
    html! {
        ul.cards { @for (name, value, more) in cards {
            li { span.dim.small { (name) } strong { (value) } span.dim.small { (more) } }
        } }
    }
}

fn tools(state: &Durable) -> Markup {
    let tools = state.tool_stats();
    html! {
        h2 { "Tools" }
        @if tools.is_empty() { p.dim { "No tool was called." } }
        @else {
            div.wide { table.rows {
                thead { tr {
                    th { "Tool" } th.num { "Calls" } th.num { "Failed" } th.num { "Mean duration" }
                    th.num { "Mean tokens" }
                } }
                tbody { @for (name, sum) in &tools { tr {
                    td { code { (visible(clip(name, 80).0)) } }
                    td.num { (number(sum.call_count)) }
                    td.num { (format!("{:.0} %", sum.error_rate * 100.0)) }
                    td.num { (duration(sum.avg_duration_ms as u64)) }
                    td.num { (number(sum.avg_tokens as u64)) }
                } } }
            } }
        }
    }
}

/// A model call of the table: its tokens, and what changed the beginning of its request.
fn model_calls(subject: &Subject, entries: &[Entry]) -> Markup {
    let mut rows = Vec::new();
    let (mut broken, mut began) = (None, None);
    // Before the first call of a conversation there is no request to begin differently from.
    let mut is_first = entries.first().is_some_and(|entry| entry.seq.0 <= 1);
    for entry in entries {
        if matches!(entry.body, EntryBody::ModelCallStarted { .. }) {
            began = Some(entry.seq);
        }
        broken = breaks_prefix(&entry.body).or(broken);
        if let EntryBody::Assistant {
            step,
            usage,
            cost_micro_usd,
            ..
        } = &entry.body
        {
            broken = broken.filter(|_| !is_first);
            is_first = false;
            rows.push((
                entry,
                *step,
                *usage,
                *cost_micro_usd,
                (broken.take(), began.take()),
            ));
        }
    }
    html! {
        @if rows.is_empty() { p.dim { "None in this part." } }
        @else {
            div.wide { table.rows {
                thead { tr {
                    th { "Ended" } th.num { "Step" } th.num { "In" } th.num { "From the cache" }
                    th.num { "Into the cache" } th.num { "Out" } th.num { "Cost" }
                    th { "Before it" } th { "Request" }
                } }
                tbody { @for (entry, step, usage, cost, (broken, began)) in rows { tr {
                    td { (time(entry.at)) }
                    td.num { (step) }
                    td.num { (number(usage.input())) }
                    td.num {
                        (number(usage.cache_read)) " "
                        meter max="100" value=(usage.cache_read * 100 / usage.input().max(1)) {}
                    }
                    td.num { (number(usage.cache_write)) }
                    td.num { (number(usage.output)) }
                    td.num { @if let Some(cost) = cost { (money(cost)) } }
                    td { @if let Some(why) = broken { (badge("wait", why)) } }
                    td { @if let Some(began) = began {
                        a href={ "/console/c/" (subject.id) "/call/" (began) } { "body" }
                    } }
                } } }
            } }
            p.dim.small {
                "A mark before a call names what changed the beginning of its request, so that the "
                "provider's cache of earlier calls did not apply."
            }
        }
    }
}
