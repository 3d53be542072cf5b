//! The time that a conversation spent: waits in the queue, model calls, tool calls and approvals as
//! bars on one axis, on which time without any is short.
//!
//! Pure.

use std::collections::HashMap;

use callboard_actors::{
    ids::{PromptId, RoundId},
    journal::{Entry, EntryBody},
    time::Timestamp,
};

/// What a bar stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    Queue,
    Model,
    Tool,
    Approval,
}

impl Work {
    pub(super) const ALL: [Self; 4] = [Self::Queue, Self::Model, Self::Tool, Self::Approval];

    /// The word for it, and the name of its colour.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Model => "model",
            Self::Tool => "tool",
            Self::Approval => "approval",
        }
    }
}

/// A bar.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Span {
    pub(super) work: Work,
    pub(super) label: String,
    pub(super) from: Timestamp,
    pub(super) to: Timestamp,
    /// Whether it has not ended.
    pub(super) is_open: bool,
    pub(super) failed: bool,
}

/// Shortest wait in the queue that is shown.
const QUEUE_MIN_MS: u64 = 20;

/// The bars of a page of entries, in order of their begin. What has not ended ends `now`.
pub(super) fn spans(entries: &[Entry], now: Timestamp) -> Vec<Span> {
    let mut reader = Reader::default();
    for entry in entries {
        reader.take(entry);
    }
    reader.end_all(now, true);
    let mut spans = reader.spans;
    // Every prompt passes the queue; a wait that no person notices is left out.
    spans.retain(|span| span.work != Work::Queue || span.to.ms_since(span.from) >= QUEUE_MIN_MS);
    spans.sort_by_key(|span| (span.from, span.to));
    spans
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Open {
    Prompt(PromptId),
    Model,
    Call(u32),
    Approval(u32),
}

#[derive(Default)]
struct Reader {
    spans: Vec<Span>,
    open: HashMap<Open, (Work, String, Timestamp)>,
    rounds: HashMap<PromptId, RoundId>,
}

impl Reader {
    fn begin(&mut self, key: Open, work: Work, label: impl Into<String>, at: Timestamp) {
        // A retried call goes on.
        self.open.entry(key).or_insert((work, label.into(), at));
    }

    fn end(&mut self, key: &Open, at: Timestamp, failed: bool) {
        if let Some((work, label, from)) = self.open.remove(key) {
            self.spans.push(Span {
                work,
                label,
                from,
                to: at.max(from),
                is_open: false,
                failed,
            });
        }
    }

    fn end_all(&mut self, at: Timestamp, is_open: bool) {
        for (_, (work, label, from)) in std::mem::take(&mut self.open) {
            self.spans.push(Span {
                work,
                label,
                from,
                to: at.max(from),
                is_open,
                failed: !is_open,
            });
        }
    }

    fn take(&mut self, entry: &Entry) {
        let at = entry.at;
        match &entry.body {
            // Whatever ran when the host stopped ended with the last entry before.
            EntryBody::LifeStarted { .. } => {
                let waits =
                    |(key, _): &(&Open, _)| matches!(key, Open::Prompt(_) | Open::Approval(_));
                let kept: HashMap<_, _> = self
                    .open
                    .iter()
                    .filter(waits)
                    .map(|(key, open)| (key.clone(), open.clone()))
                    .collect();
                self.open.retain(|key, _| !kept.contains_key(key));
                self.end_all(at, false);
                self.open = kept;
            }
            EntryBody::PromptAccepted {
                prompt_id,
                round_id,
                ..
            } => {
                self.rounds.insert(*prompt_id, *round_id);
                self.begin(Open::Prompt(*prompt_id), Work::Queue, "queue", at);
            }
            EntryBody::PromptWithdrawn { prompt_id, .. } => {
                self.end(&Open::Prompt(*prompt_id), at, true);
            }
            EntryBody::RoundStarted { prompt_ids, .. } => {
                for prompt in prompt_ids {
                    self.end(&Open::Prompt(*prompt), at, false);
                }
            }
            EntryBody::ModelCallStarted { step, .. } => {
                self.begin(Open::Model, Work::Model, format!("model {step}"), at);
            }
            EntryBody::Assistant { partial, .. } => self.end(&Open::Model, at, *partial),
            EntryBody::FellBack { .. } | EntryBody::RequestRefused { .. } => {
                self.end(&Open::Model, at, true);
            }
            EntryBody::ApprovalAsked { call, name, .. } => {
                self.begin(Open::Approval(*call), Work::Approval, name, at);
            }
            EntryBody::ApprovalAnswered { call, verdict, .. } => {
                let allowed = *verdict == callboard_actors::journal::ApprovalVerdict::Allowed;
                self.end(&Open::Approval(*call), at, !allowed);
            }
            EntryBody::ToolStarted { call, name, .. } => {
                self.begin(Open::Call(*call), Work::Tool, name, at);
            }
            EntryBody::ToolFinished { call, outcome, .. } => {
                self.end(&Open::Call(*call), at, outcome.is_error);
            }
            EntryBody::RoundFinished { error, .. } => {
                self.end(&Open::Model, at, error.is_some());
            }
            _ => {}
        }
    }
}

/// Where the bars stand.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Layout {
    pub(super) bars: Vec<Bar>,
    /// Times without work that were shortened: where they stand, and how long they were.
    pub(super) gaps: Vec<(f64, u64)>,
    pub(super) rows: usize,
    /// The time in which a model or a tool worked, bars that overlap counted once.
    pub(super) busy_ms: u64,
}

/// A bar on the axis.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Bar {
    pub(super) x: f64,
    pub(super) width: f64,
    pub(super) row: usize,
    pub(super) span: Span,
}

/// Bars up to which each stands in a row of its own.
const OWN_ROWS_MAX: usize = 60;

/// Time without work that is kept as it is, as a part of all work.
const PAUSE_PART: f64 = 0.08;

/// The width of a shortened time, as a part of the axis.
const GAP_WIDTH: f64 = 0.05;

/// Shortest bar, so that it can be seen and pointed at.
const BAR_MIN: f64 = 2.0;

/// Places the bars on an axis of this width. Time in which nothing but people was waited for is
/// shortened. Few bars stand in a row each; of many, those that overlap stand below each other.
pub(super) fn layout(spans: Vec<Span>, width: f64) -> Layout {
    let (axis, busy_ms) = axis(&spans, width);
    let is_waterfall = spans.len() <= OWN_ROWS_MAX;
    let mut ends: Vec<f64> = Vec::new();
    let mut bars = Vec::new();
    for span in spans {
        let x = axis.place(span.from);
        let bar_width = (axis.place(span.to) - x).max(BAR_MIN);
        let free = ends.iter().position(|end| *end <= x && !is_waterfall);
        let row = free.unwrap_or(ends.len());
        match ends.get_mut(row) {
            Some(end) => *end = x + bar_width,
            None => ends.push(x + bar_width),
        }
        bars.push(Bar {
            x,
            width: bar_width,
            row,
            span,
        });
    }
    Layout {
        bars,
        gaps: axis.gaps(),
        rows: ends.len(),
        busy_ms,
    }
}

/// The axis of bars in order of their begin, and the time in which one of them worked.
pub(super) fn axis(spans: &[Span], width: f64) -> (Axis, u64) {
    let work = islands(spans.iter().filter(|span| span.work != Work::Approval));
    let busy_ms: u64 = work.iter().map(|(from, to)| to.ms_since(*from)).sum();
    (Axis::new(spans, &work, busy_ms, width), busy_ms)
}

/// A stretch of time, and where it stands on the axis.
struct Stretch {
    from: Timestamp,
    to: Timestamp,
    x: f64,
    width: f64,
    is_shortened: bool,
}

/// Time on the axis: stretches of work to scale, and between them stretches that are shortened.
pub(super) struct Axis(Vec<Stretch>);

impl Axis {
    fn new(spans: &[Span], work: &[(Timestamp, Timestamp)], busy_ms: u64, width: f64) -> Self {
        let first = spans.iter().map(|span| span.from).min();
        let last = spans.iter().map(|span| span.to).max();
        let (Some(first), Some(last)) = (first, last) else {
            return Self(Vec::new());
        };
        let pause_max = ((busy_ms as f64 * PAUSE_PART) as u64).max(1);
        let mut parts: Vec<(Timestamp, Timestamp, bool)> = Vec::new();
        let mut at = first;
        for (from, to) in work.iter().copied().chain([(last, last)]) {
            if from.ms_since(at) > pause_max {
                parts.push((at, from, true));
                at = from;
            }
            if to > at {
                parts.push((at, to, false));
                at = to;
            }
        }
        let cut = parts.iter().filter(|(.., is_cut)| *is_cut).count() as f64;
        let gap = width * GAP_WIDTH.min(0.4 / cut.max(1.0));
        let kept = parts.iter().filter(|(.., is_cut)| !is_cut);
        let kept_ms: u64 = kept.map(|(from, to, _)| to.ms_since(*from)).sum();
        // Without any work, what is cut has the whole axis.
        let gap = if kept_ms == 0 {
            width / cut.max(1.0)
        } else {
            gap
        };
        let scale = (width - cut * gap) / kept_ms.max(1) as f64;
        let mut x = 0.0;
        let stretches = parts.into_iter().map(|(from, to, is_shortened)| {
            let width = match is_shortened {
                true => gap,
                false => to.ms_since(from) as f64 * scale,
            };
            let start = x;
            x += width;
            Stretch {
                from,
                to,
                x: start,
                width,
                is_shortened,
            }
        });
        Self(stretches.collect())
    }

    /// Where a time stands.
    pub(super) fn place(&self, at: Timestamp) -> f64 {
        let index = self.0.partition_point(|stretch| stretch.to < at);
        let Some(stretch) = self.0.get(index).or(self.0.last()) else {
            return 0.0;
        };
        let all = stretch.to.ms_since(stretch.from).max(1) as f64;
        stretch.x + stretch.width * (at.ms_since(stretch.from) as f64 / all).min(1.0)
    }

    /// Where times without work stand, and how long they were.
    pub(super) fn gaps(&self) -> Vec<(f64, u64)> {
        let cut = self.0.iter().filter(|stretch| stretch.is_shortened);
        cut.map(|stretch| {
            let middle = stretch.x + stretch.width / 2.0;
            (middle, stretch.to.ms_since(stretch.from))
        })
        .collect()
    }
}

/// The times of spans in order of their begin, joined where they touch.
fn islands<'a>(spans: impl Iterator<Item = &'a Span>) -> Vec<(Timestamp, Timestamp)> {
    let mut joined: Vec<(Timestamp, Timestamp)> = Vec::new();
    for span in spans {
        match joined.last_mut() {
            Some((_, end)) if span.from <= *end => *end = (*end).max(span.to),
            _ => joined.push((span.from, span.to)),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(work: Work, from: u64, to: u64) -> Span {
        Span {
            work,
            label: String::new(),
            from: Timestamp(from),
            to: Timestamp(to),
            is_open: false,
            failed: false,
        }
    }

    const HOUR: u64 = 3_600_000;

    #[test]
    fn an_hour_without_work_takes_little_of_the_axis() {
        let model = |from| span(Work::Model, from, from + 1000);
        let drawn = layout(vec![model(0), model(1000 + HOUR)], 1000.0);

        assert_eq!((drawn.gaps.len(), drawn.gaps[0].1), (1, HOUR));
        assert_eq!(drawn.busy_ms, 2000);
        assert!(drawn.bars.iter().all(|bar| bar.width > 450.0), "{drawn:?}");
    }

    #[test]
    fn an_hour_that_a_person_takes_to_answer_is_short_as_well() {
        let drawn = layout(
            vec![
                span(Work::Model, 0, 1000),
                span(Work::Approval, 1000, 1000 + HOUR),
                span(Work::Tool, 1000 + HOUR, 2000 + HOUR),
            ],
            1000.0,
        );

        let widths: Vec<f64> = drawn.bars.iter().map(|bar| bar.width.round()).collect();
        assert_eq!(widths, [475.0, 50.0, 475.0]);
        let one = layout(vec![span(Work::Approval, 0, HOUR)], 1000.0);
        assert_eq!(one.bars[0].width, 1000.0);
    }

    #[test]
    fn many_bars_share_rows_unless_they_overlap() {
        let bars = (0..100).map(|n| span(Work::Model, n * 50, n * 50 + 100));
        let drawn = layout(bars.collect(), 1000.0);

        let rows: Vec<usize> = drawn.bars.iter().map(|bar| bar.row).take(3).collect();
        assert_eq!((rows, drawn.rows), (vec![0, 1, 0], 2));
        let ends = drawn.bars.iter().map(|bar| bar.x + bar.width);
        assert!(ends.fold(0.0, f64::max) <= 1000.1);
    }

    #[test]
    fn an_axis_without_work_is_empty() {
        let drawn = layout(Vec::new(), 1000.0);

        assert_eq!((drawn.rows, drawn.busy_ms, drawn.gaps.len()), (0, 0, 0));
    }
}
