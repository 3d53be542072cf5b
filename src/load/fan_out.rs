//! Runs fan-outs one after the other in each lane and measures what a fan-out costs beside the time
//! of its model.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use callboard_actors::host::{FanOut, TaskEnd};
use futures_util::future::join_all;
use parking_lot::Mutex;

use super::{
    LoadError, Plan, Progress, Report, Target,
    drive::Ran,
    process::Process,
    report::{FanOutFigures, Figures},
    tally::{Latencies, Span, Tally},
    turn::{End, RoundOver, Seen, Turn},
};
use crate::Host;

/// State that all lanes share.
struct Stage<'a> {
    plan: &'a Plan,
    host: &'a Host,
    progress: &'a Progress,
    until: Option<Instant>,
    found: Mutex<(Tally, Latencies)>,
    over: AtomicU64,
}

/// Runs all lanes and reports.
///
/// # Errors
/// [`LoadError`].
pub(super) async fn run(
    plan: &Plan,
    target: &Target,
    progress: &Progress,
) -> Result<Report, LoadError> {
    let Target::Host(host) = target else {
        return Ok(Report::new(plan, Figures::default()));
    };
    progress.begin("fanout");
    if !plan.warm_up.is_zero() {
        let warm = Stage::new(plan, host, progress, Some(Instant::now() + plan.warm_up))?;
        warm.all().await;
    }
    let began = Instant::now();
    let stage = Stage::new(
        plan,
        host,
        progress,
        plan.duration.map(|duration| began + duration),
    )?;
    let server = plan.server_pid.map(Process::other);
    let cpu = (Process::this().cpu(), server.and_then(Process::cpu));
    stage.all().await;
    let used =
        |process: Option<Process>, before: Option<Duration>| process?.cpu()?.checked_sub(before?);
    let (cpu, server_cpu) = (used(Some(Process::this()), cpu.0), used(server, cpu.1));
    let fan_outs = stage.over.load(Ordering::Relaxed);
    let (tally, walls) = stage.found.into_inner();
    let turns = tally.offered;
    let ran = Ran {
        crowds: vec![(0..plan.tenants, tally)],
        offered_for: began.elapsed(),
        turns,
        cpu,
        server_cpu,
    };
    let mut report = Report::new(plan, Figures::of(&ran, 0));
    report.fan_out = Some(FanOutFigures {
        subagents: plan.subagents,
        ephemeral: plan.ephemeral,
        wall_ms: walls.quantiles(),
        model_ms: (plan.scripted && plan.model_concurrency >= plan.subagents)
            .then(|| plan.model_time().as_secs_f64() * 1000.0),
        cpu_ms: cpu
            .filter(|_| fan_outs > 0)
            .map(|cpu| cpu.as_secs_f64() * 1000.0 / fan_outs as f64),
    });
    Ok(report)
}

impl<'a> Stage<'a> {
    fn new(
        plan: &'a Plan,
        host: &'a Host,
        progress: &'a Progress,
        until: Option<Instant>,
    ) -> Result<Self, LoadError> {
        let found = Mutex::new((Tally::new(plan.tenants)?, Latencies::new()?));
        Ok(Self {
            plan,
            host,
            progress,
            until,
            found,
            over: AtomicU64::new(0),
        })
    }

    async fn all(&self) {
        join_all((0..self.plan.conversations).map(|lane| self.lane(lane))).await;
    }

    /// Runs fan-outs one after the other, until their number or the time is reached.
    async fn lane(&self, lane: usize) {
        for nth in 0usize.. {
            if self
                .until
                .map_or(nth >= self.plan.turns, |until| Instant::now() >= until)
            {
                return;
            }
            self.one(lane % self.plan.tenants.max(1)).await;
            let all = self.plan.conversations * self.plan.turns;
            self.progress.at(
                self.over.fetch_add(1, Ordering::Relaxed) as f64 + 1.0,
                all as f64,
            );
        }
    }

    async fn one(&self, tenant: usize) {
        let turn = |_| Turn {
            tenant,
            conversation: String::new(),
            id: self.progress.id(),
            cancel: false,
        };
        let turns: Vec<Turn> = (0..self.plan.subagents).map(turn).collect();
        let fan_out = FanOut::over(turns.iter().map(Turn::prompt)).parallel(self.plan.subagents);
        let fan_out = if self.plan.ephemeral {
            fan_out.ephemeral()
        } else {
            fan_out
        };
        let due = Instant::now();
        let run = match self
            .host
            .tenant(super::target::tenant(tenant))
            .fan_out(fan_out)
            .await
        {
            Ok(run) => run,
            Err(error) => {
                let mut found = self.found();
                let span = Span {
                    due,
                    over: Instant::now(),
                };
                turns.iter().for_each(|_| {
                    found.0.take(
                        tenant,
                        span,
                        due,
                        Seen::only(End::Refused(error.code().to_owned())),
                    )
                });
                return;
            }
        };
        let summary = run.finish().await;
        let mut found = self.found();
        found.1.record(summary.wall);
        for (turn, end) in turns.iter().zip(&summary.tasks) {
            let seen = seen(turn, end, due);
            found.0.take(
                tenant,
                Span {
                    due,
                    over: due + end.took,
                },
                due,
                seen,
            );
        }
        let done = summary.done();
        let failed = summary.failed();
        self.progress.note(
            u64::try_from(done).unwrap_or(u64::MAX),
            u64::try_from(failed).unwrap_or(u64::MAX),
        );
    }

    fn found(&self) -> parking_lot::MutexGuard<'_, (Tally, Latencies)> {
        self.found.lock()
    }
}

fn seen(turn: &Turn, end: &TaskEnd, due: Instant) -> Seen {
    let Some(round) = end.end() else {
        let code = end
            .outcome
            .as_ref()
            .map_or_else(|why| why.failure.code.clone(), |_| "lost".to_owned());
        return Seen::only(End::Failed(code));
    };
    let error = end
        .outcome
        .as_ref()
        .err()
        .map(|why| why.failure.code.as_str());
    let tokens = round.usage.input().saturating_add(round.usage.output);
    let over = RoundOver {
        stop_reason: round.stop_reason.code(),
        error,
        text: &round.text,
        tokens,
    };
    Seen {
        first_text: end.first_text.map(|after| due + after),
        ..Seen::of_answer(turn, &over)
    }
}
