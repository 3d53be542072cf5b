//! Tasks and subagents as bars by time, coloured by cost, and the same as a table.

use callboard_actors::{ids::ConversationId, ports::SessionSummary, time::Timestamp};
use maud::{Markup, html};

use super::{
    figures::{WIDTH, at, gaps},
    flame::{HEATS, Ran, heat, rows},
    html::{badge, clip, duration, money, number, time},
    timeline::{Span, Work, axis},
};

/// Bytes of a name that are shown.
const NAME_MAX: usize = 120;

/// Height of a row, and of one of many rows.
const ROW: f64 = 20.0;
const ROW_OF_MANY: f64 = 9.0;

/// Rows up to which they are high enough for a label.
const HIGH_ROWS_MAX: usize = 40;

/// Shortest bar, so that it can be seen and pointed at.
const BAR_MIN: f64 = 2.0;

/// How something stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    Open,
    Done,
    Failed,
}

/// A task or a subagent.
pub(super) struct Bar {
    /// The number of a task that has ended.
    pub(super) index: Option<usize>,
    pub(super) name: String,
    pub(super) id: ConversationId,
    pub(super) ran: Ran,
    pub(super) standing: Standing,
    pub(super) tokens: u64,
    pub(super) micro_usd: u64,
}

impl Bar {
    fn took_ms(&self) -> u64 {
        self.ran.to.ms_since(self.ran.from)
    }
}

/// When a conversation was at work: from its first entry to its last, or to now while it is open.
pub(super) fn ran(row: &SessionSummary, is_open: bool, now: Timestamp) -> Ran {
    let to = if is_open { now } else { row.updated_at };
    Ran {
        from: row.created_at,
        to: to.max(row.created_at),
    }
}

/// Bars coloured by cost, and the same as a table. `of` is what a bar stands for.
pub(super) fn picture(mut bars: Vec<Bar>, of: &str) -> Markup {
    bars.sort_by_key(|bar| (bar.ran.from, bar.index));
    let scale = Scale::new(&bars);
    html! {
        @if !scale.is_money { p.dim.small { "No model has a price here: colours stand for tokens." } }
        (legend(&scale))
        div.wide.high tabindex="0" role="region" aria-label="Bars by time and cost" {
            (drawing(&bars, &scale))
        }
        (table(bars, &scale, of))
    }
}

/// What bars are coloured by.
#[derive(Clone, Copy)]
struct Scale {
    /// Whether any model has a price; without one, tokens stand for the cost.
    is_money: bool,
    most: u64,
    sum: u64,
}

impl Scale {
    fn new(bars: &[Bar]) -> Self {
        let is_money = bars.iter().any(|bar| bar.micro_usd > 0);
        let cost = |bar: &Bar| if is_money { bar.micro_usd } else { bar.tokens };
        let costs = bars.iter().map(cost);
        Self {
            is_money,
            most: costs.clone().max().unwrap_or_default(),
            sum: costs.fold(0, u64::saturating_add),
        }
    }

    fn cost(&self, bar: &Bar) -> u64 {
        if self.is_money {
            bar.micro_usd
        } else {
            bar.tokens
        }
    }

    fn written(&self, cost: u64) -> String {
        match self.is_money {
            true => money(cost),
            false => format!("{} tokens", number(cost)),
        }
    }

    /// The share of a bar in the sum of all.
    fn share(&self, bar: &Bar) -> String {
        let share = self.cost(bar) as f64 * 100.0 / self.sum.max(1) as f64;
        format!("{share:.1} %")
    }
}

fn legend(scale: &Scale) -> Markup {
    let upto = |heat: u64| {
        let most = u128::from(scale.most) * u128::from(heat + 1) / u128::from(HEATS);
        scale.written(u64::try_from(most).unwrap_or(u64::MAX))
    };
    html! {
        ul.legend aria-label="Colours by cost" {
            @for heat in 0..HEATS { li {
                span class={ "key heat" (heat) } {} "up to " (upto(heat))
            } }
        }
    }
}

fn drawing(bars: &[Bar], scale: &Scale) -> Markup {
    let times: Vec<Ran> = bars.iter().map(|bar| bar.ran).collect();
    let (rows, count) = rows(&times);
    let spans: Vec<Span> = bars.iter().map(span).collect();
    let (axis, _) = axis(&spans, WIDTH);
    let height = if count <= HIGH_ROWS_MAX {
        ROW
    } else {
        ROW_OF_MANY
    };
    let whole = height * count as f64 + 24.0;
    html! {
        svg.timeline.flame viewBox={ "0 0 " (WIDTH) " " (whole) } width=(WIDTH) height=(whole)
            role="img" aria-label="Bars by time, coloured by cost; the table has the same" {
            (gaps(&axis.gaps(), whole))
            @for (bar, row) in bars.iter().zip(rows) {
                @let x = axis.place(bar.ran.from);
                @let width = (axis.place(bar.ran.to) - x).max(BAR_MIN);
                (bar_drawing(bar, scale, (x, row as f64 * height), (width, height)))
            }
        }
    }
}

/// As a bar of a timeline, which shortens times without work.
fn span(bar: &Bar) -> Span {
    Span {
        work: Work::Model,
        label: String::new(),
        from: bar.ran.from,
        to: bar.ran.to,
        is_open: bar.standing == Standing::Open,
        failed: bar.standing == Standing::Failed,
    }
}

fn bar_drawing(
    bar: &Bar,
    scale: &Scale,
    (x, y): (f64, f64),
    (width, height): (f64, f64),
) -> Markup {
    let heat = heat(scale.cost(bar), scale.most);
    let hot = if heat >= HEATS / 2 { " hot" } else { "" };
    let standing = match bar.standing {
        Standing::Open => " open",
        Standing::Done => "",
        Standing::Failed => " failed",
    };
    let label = match bar.index {
        Some(index) => format!("{index}: {}", scale.written(scale.cost(bar))),
        None => scale.written(scale.cost(bar)),
    };
    let has_label = height >= ROW && width > label.chars().count() as f64 * 6.5 + 10.0;
    html! {
        g class={ "bar heat" (heat) (hot) (standing) } {
            title {
                (clip(&bar.name, NAME_MAX).0) ": " (money(bar.micro_usd)) " (" (scale.share(bar)) "), "
                (number(bar.tokens)) " tokens, " (duration(bar.took_ms())) (standing)
            }
            rect x=(at(x)) y=(at(y + 1.0)) width=(at(width)) height=(at(height - 2.0)) rx="2" {}
            @if has_label { text.in x=(at(x + 5.0)) y=(at(y + height - 6.0)) { (label) } }
        }
    }
}

/// The same, the costliest first.
fn table(mut bars: Vec<Bar>, scale: &Scale, of: &str) -> Markup {
    bars.sort_by_key(|bar| std::cmp::Reverse(scale.cost(bar)));
    html! {
        details.more {
            summary { "As a table, the costliest first" }
            div.wide { table.rows {
                thead { tr {
                    th { (of) } th { "State" } th { "Began" } th.num { "Took" } th.num { "Tokens" }
                    th.num { "Cost" } th.num { "Share" }
                } }
                tbody { @for bar in &bars { tr {
                    td.name { a href={ "/console/c/" (bar.id) } { (clip(&bar.name, NAME_MAX).0) } }
                    td { @match bar.standing {
                        Standing::Open => (badge("run", "open")),
                        Standing::Done => (badge("good", "done")),
                        Standing::Failed => (badge("bad", "failed")),
                    } }
                    td { (time(bar.ran.from)) }
                    td.num { (duration(bar.took_ms())) }
                    td.num { (number(bar.tokens)) }
                    td.num { (money(bar.micro_usd)) }
                    td.num { (scale.share(bar)) }
                } } }
            } }
        }
    }
}
