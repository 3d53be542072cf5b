//! The figures of a run, as JSON and as a table for people.

use std::{collections::BTreeMap, fmt::Write, time::Duration};

use serde::Serialize;

use super::{
    Plan, Shape,
    drive::Ran,
    tally::{Quantiles, jain},
};

/// The report of a run. The field names are public: scripts read them.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Report {
    pub(crate) shape: Shape,
    /// `open` when a rate was given: latency then counts from the time a turn was due.
    #[serde(rename = "loop")]
    pub(crate) offering: &'static str,
    /// What was measured, as named on the command line.
    pub(crate) measured: String,
    pub(crate) tenants: usize,
    pub(crate) conversations: usize,
    pub(crate) tools_per_turn: u32,
    pub(crate) rate: Option<f64>,
    pub(crate) fault_rate: f64,
    pub(crate) seed: u64,
    pub(crate) warm_up_s: f64,
    #[serde(flatten)]
    pub(crate) figures: Figures,
    /// Resident bytes of the process that holds the conversations.
    pub(crate) resident_before: Option<u64>,
    pub(crate) resident_after: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) idle: Option<Idle>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fan_out: Option<FanOutFigures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) long: Option<Long>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) noisy: Option<Noisy>,
}

/// Counts and latencies of the turns of a phase.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Figures {
    pub(crate) seconds: f64,
    pub(crate) offered: u64,
    pub(crate) served: u64,
    pub(crate) interrupted: u64,
    pub(crate) failed: u64,
    pub(crate) refused: u64,
    pub(crate) unfinished: u64,
    pub(crate) turns_per_second: f64,
    pub(crate) served_of_offered: f64,
    pub(crate) latency_ms: Option<Quantiles>,
    pub(crate) first_text_ms: Option<Quantiles>,
    pub(crate) refusal_ms: Option<Quantiles>,
    /// Time from the interrupt to the end of the round.
    pub(crate) cancel_ms: Option<Quantiles>,
    pub(crate) cpu_us_per_turn: Option<f64>,
    pub(crate) server_cpu_us_per_turn: Option<f64>,
    pub(crate) tokens: u64,
    /// Jain's fairness index over the tokens served to each tenant.
    pub(crate) fairness: Option<f64>,
    pub(crate) errors: BTreeMap<String, u64>,
    pub(crate) checks: Checks,
    /// Pairs of a quantile and its latency in milliseconds.
    pub(crate) percentiles: Vec<(f64, f64)>,
    /// Turns that succeeded and other turns, for each second.
    pub(crate) timeline: Vec<(u64, u64)>,
}

/// Counts of wrong results. A correct host has none of the first three.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Checks {
    /// Accepted turns whose event stream closed without a final event.
    pub(crate) lost: u64,
    /// Answers that belong to another prompt.
    pub(crate) mismatched: u64,
    /// Events that arrived twice or out of order.
    pub(crate) repeated: u64,
    /// Answers of a model that does not repeat the prompt's mark, so they cannot be checked.
    pub(crate) unmarked: u64,
}

/// Durations of whole fan-outs. The other figures of the report are of their subagents.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct FanOutFigures {
    pub(crate) subagents: usize,
    pub(crate) ephemeral: bool,
    /// Time from the first task to the last result.
    pub(crate) wall_ms: Option<Quantiles>,
    /// Time of the model alone, if it is the scripted one and runs all calls at once.
    pub(crate) model_ms: Option<f64>,
    /// CPU time of this process for one fan-out.
    pub(crate) cpu_ms: Option<f64>,
}

/// Resident bytes for each idle conversation.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Idle {
    pub(crate) conversations: usize,
    pub(crate) idle_bytes: Option<f64>,
    /// After it went to sleep. Its journal is in memory unless the run stores it in a file.
    pub(crate) asleep_bytes: Option<f64>,
}

/// The first and the last tenth of long conversations.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Long {
    pub(crate) turns_a_part: usize,
    pub(crate) first_p50_ms: Option<f64>,
    pub(crate) last_p50_ms: Option<f64>,
    pub(crate) first_cpu_us: Option<f64>,
    pub(crate) last_cpu_us: Option<f64>,
}

/// The quiet tenants alone and beside a flood. The other figures of the report are theirs beside
/// the flood.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Noisy {
    /// The flooder's rate, as a multiple of a quiet tenant's.
    pub(crate) flood: f64,
    pub(crate) p99_ratio: Option<f64>,
    /// Share of offered turns that were served beside the flood, divided by the same share alone.
    pub(crate) served_ratio: Option<f64>,
    pub(crate) alone: Figures,
    pub(crate) flooder: Figures,
}

impl Noisy {
    pub(super) fn new(flood: f64, alone: Figures, beside: &Figures, flooder: Figures) -> Self {
        let ratio = |beside: f64, alone: f64| (alone > 0.0).then(|| beside / alone);
        let p99 = |figures: &Figures| figures.latency_ms.map(|latency| latency.p99);
        Self {
            flood,
            p99_ratio: p99(beside)
                .zip(p99(&alone))
                .and_then(|(beside, alone)| ratio(beside, alone)),
            served_ratio: ratio(beside.served_of_offered, alone.served_of_offered),
            alone,
            flooder,
        }
    }
}

impl Figures {
    /// Summarizes one crowd of a phase.
    pub(super) fn of(ran: &Ran, crowd: usize) -> Self {
        let Some((tenants, tally)) = ran.crowds.get(crowd) else {
            return Self::default();
        };
        let seconds = ran.offered_for.as_secs_f64();
        let served = tally.served;
        // Answers after the last turn was offered count as latency, not throughput: only whole
        // seconds of offering count.
        let whole = usize::try_from(ran.offered_for.as_secs()).unwrap_or(usize::MAX);
        let in_time: u64 = tally.seconds.iter().take(whole).sum();
        let turns_per_second = match whole {
            0 if seconds > 0.0 => served as f64 / seconds,
            0 => 0.0,
            whole => in_time as f64 / whole as f64,
        };
        let per_turn = |cpu: Option<Duration>| {
            cpu.filter(|_| ran.turns > 0)
                .map(|cpu| round(cpu.as_secs_f64() * 1e6 / ran.turns as f64))
        };
        let tokens = tally.tokens.get(tenants.clone()).unwrap_or_default();
        let last = tally.seconds.len().max(tally.bad_seconds.len());
        let at = |seconds: &[u64], second: usize| seconds.get(second).copied().unwrap_or(0);
        Self {
            seconds: round(seconds),
            offered: tally.offered,
            served,
            interrupted: tally.interrupted,
            failed: tally.failed,
            refused: tally.refused,
            unfinished: tally.unfinished,
            turns_per_second: round(turns_per_second),
            served_of_offered: (served + tally.interrupted) as f64 / tally.offered.max(1) as f64,
            latency_ms: tally.latency.quantiles(),
            first_text_ms: tally.first_text.quantiles(),
            refusal_ms: tally.refusal.quantiles(),
            cancel_ms: tally.cancel.quantiles(),
            cpu_us_per_turn: per_turn(ran.cpu),
            server_cpu_us_per_turn: per_turn(ran.server_cpu),
            tokens: tokens.iter().sum(),
            fairness: jain(tokens),
            errors: tally.errors.clone(),
            checks: Checks {
                lost: tally.lost,
                mismatched: tally.mismatched,
                repeated: tally.repeated,
                unmarked: tally.unmarked,
            },
            percentiles: tally.latency.curve(),
            timeline: (0..last)
                .map(|second| (at(&tally.seconds, second), at(&tally.bad_seconds, second)))
                .collect(),
        }
    }
}

fn round(figure: f64) -> f64 {
    (figure * 1000.0).round() / 1000.0
}

impl Report {
    pub(super) fn new(plan: &Plan, figures: Figures) -> Self {
        Self {
            shape: plan.shape,
            offering: if plan.rate.is_some() || plan.shape == Shape::Noisy {
                "open"
            } else {
                "closed"
            },
            measured: String::new(),
            tenants: plan.tenants,
            conversations: plan.conversations,
            tools_per_turn: plan.tools_per_turn,
            rate: plan.rate,
            fault_rate: plan.fault_rate,
            seed: plan.seed,
            warm_up_s: plan.warm_up.as_secs_f64(),
            figures,
            resident_before: None,
            resident_after: None,
            idle: None,
            fan_out: None,
            long: None,
            noisy: None,
        }
    }

    /// Whether no turn was lost, repeated or answered with another turn's answer.
    pub(crate) fn is_sound(&self) -> bool {
        let sound = |figures: &Figures| {
            let Checks {
                lost,
                mismatched,
                repeated,
                unmarked: _,
            } = figures.checks;
            lost + mismatched + repeated == 0
        };
        sound(&self.figures)
            && self
                .noisy
                .as_ref()
                .is_none_or(|noisy| sound(&noisy.alone) && sound(&noisy.flooder))
    }

    /// Whether turns were offered and not one was served.
    pub(crate) fn served_none(&self) -> bool {
        self.figures.offered > 0 && self.figures.served == 0
    }

    /// The heading of a table or a plot.
    pub(crate) fn title(&self) -> String {
        let rate = self.rate.map_or_else(
            || format!("{} loop", self.offering),
            |rate| format!("open loop at {rate} turns/s"),
        );
        format!(
            "{} · {} · {rate} · {} · {} · {} a turn",
            self.shape.name(),
            self.measured,
            counted(self.tenants, "tenant"),
            counted(self.conversations, "conversation"),
            counted(self.tools_per_turn, "tool")
        )
    }

    /// Formats the figures as a table.
    pub(crate) fn table(&self) -> String {
        let mut table = format!("{}\n\n", self.title());
        table += &self.figures.rows();
        let mut row = |name: &str, value: String| row(&mut table, name, &value);
        if let Some(idle) = &self.idle {
            let bytes = |bytes: Option<f64>| {
                bytes.map_or_else(
                    || "unavailable".to_owned(),
                    |bytes| format!("{bytes:.0} bytes"),
                )
            };
            row("idle, each", bytes(idle.idle_bytes));
            row("asleep, each", bytes(idle.asleep_bytes));
        } else if let (Some(before), Some(after)) = (self.resident_before, self.resident_after) {
            let mib = |bytes: u64| bytes as f64 / 1_048_576.0;
            row(
                "resident",
                format!("{:.1} MiB before, {:.1} MiB after", mib(before), mib(after)),
            );
        }
        if let Some(fan_out) = &self.fan_out {
            if let Some(Quantiles {
                count, p50, max, ..
            }) = fan_out.wall_ms
            {
                let model = fan_out.model_ms.map_or_else(String::new, |model| {
                    format!("; the model alone {model:.1} ms")
                });
                row(
                    "fan-out",
                    format!(
                        "{count} of {}: p50 {p50:.1}  max {max:.1} ms{model}",
                        fan_out.subagents
                    ),
                );
            }
            if let Some(cpu) = fan_out.cpu_ms {
                row("CPU per fan-out", format!("{cpu:.1} ms"));
            }
        }
        if let Some(long) = &self.long {
            let figure = |value: Option<f64>| {
                value.map_or_else(|| "?".to_owned(), |value| format!("{value:.3}"))
            };
            row(
                &format!("first {} turns", long.turns_a_part),
                format!(
                    "p50 {} ms, {} µs CPU",
                    figure(long.first_p50_ms),
                    figure(long.first_cpu_us)
                ),
            );
            row(
                &format!("last {} turns", long.turns_a_part),
                format!(
                    "p50 {} ms, {} µs CPU",
                    figure(long.last_p50_ms),
                    figure(long.last_cpu_us)
                ),
            );
        }
        if let Some(noisy) = &self.noisy {
            let ratio = |ratio: Option<f64>| {
                ratio.map_or_else(|| "?".to_owned(), |ratio| format!("{ratio:.2}x"))
            };
            row(
                "beside / alone",
                format!(
                    "p99 {}, served of offered {}",
                    ratio(noisy.p99_ratio),
                    ratio(noisy.served_ratio)
                ),
            );
            let _ = write!(table, "\nthe others alone\n\n{}", noisy.alone.rows());
            let _ = write!(
                table,
                "\nthe flood, {}x of another tenant\n\n{}",
                noisy.flood,
                noisy.flooder.rows()
            );
        }
        table
    }
}

/// Width of the column of row names.
const NAME: usize = 18;

/// A count with its noun: `1 tenant`, `2 tenants`.
fn counted<N: PartialEq + From<u8> + std::fmt::Display>(count: N, noun: &str) -> String {
    let plural = if count == N::from(1) { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

fn row(table: &mut String, name: &str, value: &str) {
    let _ = writeln!(table, "{name:<NAME$}{value}");
}

impl Figures {
    fn rows(&self) -> String {
        let mut table = String::new();
        let turns = [
            (self.served, "served"),
            (self.interrupted, "interrupted"),
            (self.failed, "failed"),
            (self.refused, "refused"),
            (self.unfinished, "unfinished"),
        ];
        let turns: Vec<String> = turns
            .iter()
            .filter(|(n, what)| *n > 0 || *what == "served")
            .map(|(n, what)| format!("{n} {what}"))
            .collect();
        row(
            &mut table,
            "turns",
            &format!(
                "{} of {} offered in {:.1} s",
                turns.join(", "),
                self.offered,
                self.seconds
            ),
        );
        row(
            &mut table,
            "turns/s",
            &format!("{:.1}", self.turns_per_second),
        );
        for (name, quantiles) in [
            ("latency", self.latency_ms),
            ("first text", self.first_text_ms),
            ("refusal", self.refusal_ms),
            ("cancel", self.cancel_ms),
        ] {
            let Some(Quantiles {
                p50,
                p90,
                p99,
                p999,
                max,
                ..
            }) = quantiles
            else {
                continue;
            };
            row(
                &mut table,
                name,
                &format!(
                    "p50 {p50:.2}  p90 {p90:.2}  p99 {p99:.2}  p99.9 {p999:.2}  max {max:.2} ms"
                ),
            );
        }
        let cpu = |cpu: f64| format!("{cpu:.1} µs");
        if let Some(own) = self.cpu_us_per_turn {
            row(&mut table, "CPU per turn", &cpu(own));
        }
        if let Some(server) = self.server_cpu_us_per_turn {
            row(&mut table, "of the server", &cpu(server));
        }
        if let Some(fairness) = self.fairness {
            row(
                &mut table,
                "fairness (Jain)",
                &format!("{fairness:.4} over {} tokens", self.tokens),
            );
        }
        let Checks {
            lost,
            mismatched,
            repeated,
            unmarked,
        } = self.checks;
        let unchecked = if unmarked > 0 {
            format!(", {unmarked} answers cannot be checked")
        } else {
            String::new()
        };
        row(
            &mut table,
            "checks",
            &format!("{lost} lost, {mismatched} mismatched, {repeated} repeated{unchecked}"),
        );
        for (code, n) in &self.errors {
            row(&mut table, "error", &format!("{n} {code}"));
        }
        table
    }
}
