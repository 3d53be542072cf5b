//! `callboard fanout`: applies a template to each line of a file, with one subagent per line.

mod list;

use std::{
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use callboard_actors::{
    conversation::round::rules::Recovery,
    host::{CacheShare, FanOut, FanOutRun, FanOutSummary, TaskEnd},
    ids::{ConversationId, FAN_OUT_PREFIX},
    journal::thousands,
    policy::Budget,
    stream::StopReason,
};
use clap::Args;
use serde_json::json;

use super::{
    failure::{Done, Failure},
    flags::HostFlags,
    progress::Bar,
    remote::ServerFlags,
    rows::{Input, Row, has_place},
    run::{SHUTDOWN, seconds},
    session::{announce, scope},
    sessions::TenantFlag,
    signals::Signals,
    terminal::{Paint, counted, err_line, out, out_json, sanitize},
    trust::{Notes, ProjectUse},
    wrap::{for_stderr, for_stdout},
};
use crate::{
    app::{self, App, Opening, Overrides, Purpose, Sessions, TENANT},
    config::Config,
    named_file,
    storage::{MemorySessions, SessionLock},
    visible::visible_line,
};

/// Maximum size of the file of lines, in bytes.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Maximum number of characters of a line in the heading of its section.
const HEAD_CHARS: usize = 120;

/// Run one subagent for each line of a file, many at once
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  callboard fanout \"Summarise the file {} in one sentence.\" --over files.txt
  git ls-files '*.rs' | callboard fanout \"What does {} promise?\" --over - --parallel 8 --json
  callboard fanout \"Translate: {}\" --over lines.txt --ephemeral --no-tools
  callboard fanout \"Check {}\" --over files.txt --name check-1     # run it again after a crash to continue
  callboard fanout \"Check {}\" --over files.txt --name check-1 --retry-failed
  callboard fanout \"Answer {question} for {customer}\" --over tickets.csv --json
  callboard fanout --list

Prints one section per line, or with --json one JSON line, in the order of the file. Blank lines are skipped. Exit 1 if any failed.
Subagents cannot ask for approval: calls that need it are refused, unless --approve auto allows them.")]
pub(super) struct FanoutArgs {
    /// The prompt of each subagent; every `{}` in it is replaced by the line
    #[arg(required_unless_present = "list")]
    template: Option<String>,
    /// The file with the lines; `-` for standard input. Of `.jsonl` and `.csv` files, `{NAME}` in the
    /// template is the value of that field or column, and `{}` the whole line
    #[arg(long, value_name = "FILE", required_unless_present = "list")]
    over: Option<PathBuf>,
    /// How the file is read [default: by the end of its name, else lines]
    #[arg(long, value_enum)]
    input: Option<Input>,
    #[command(flatten)]
    host: HostFlags,
    /// Subagents that run at once, at most [default: 1024]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Limits")]
    parallel: Option<u32>,
    /// Keep no journals: nothing is stored, and a crash loses all results
    #[arg(long, conflicts_with_all = ["name", "db"], help_heading = "Session")]
    ephemeral: bool,
    /// Run the first task alone, so that the others find the common prompt in the provider's cache;
    /// prints the effect at the end
    #[arg(long)]
    warm_first: bool,
    /// Name of the fan-out: running the same command again after a crash continues it
    #[arg(long, value_name = "NAME", help_heading = "Session")]
    name: Option<String>,
    /// With --name: run the tasks again that failed before
    #[arg(long, requires = "name", help_heading = "Session")]
    retry_failed: bool,
    /// Cancel the fan-out after this many seconds
    #[arg(long, value_name = "S", value_parser = seconds, help_heading = "Limits")]
    timeout: Option<Duration>,
    /// Print the results and errors only: no first line, notes or progress
    #[arg(long, short = 'q', help_heading = "Output")]
    quiet: bool,
    /// Print one JSON object per task, or the list as JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// List the stored fan-outs in place of running one: when, tasks done, failed and open, cost
    #[arg(long, conflicts_with_all = ["template", "over", "ephemeral", "name", "timeout", "warm_first", "parallel"])]
    list: bool,
    #[command(flatten, next_help_heading = "With --list")]
    of: TenantFlag,
    #[command(flatten)]
    server: ServerFlags,
}

impl FanoutArgs {
    pub(super) fn project_use(&self) -> ProjectUse<'_> {
        ProjectUse {
            asks: !self.json,
            notes: Notes::Own,
            workspace: Some(&self.host.workspace),
        }
    }
}

pub(super) async fn run(config: &Config, args: FanoutArgs) -> Result<Done, Failure> {
    if args.list {
        return list::run(config, &args).await;
    }
    if args.server.is_given() || !args.of.is_default() {
        return Err(Failure::usage("--server, --key and --tenant need --list")
            .hint("POST /v1/fanouts starts a fan-out on a running host"));
    }
    let (Some(template), Some(over)) = (&args.template, &args.over) else {
        return Err(Failure::usage("a fan-out needs a template and --over"));
    };
    let input = args.input.unwrap_or_else(|| Input::of(over));
    if !has_place(template, input) {
        return Err(Failure::usage("the template has no {} for the line")
            .hint("callboard fanout \"Summarise {}\" --over FILE"));
    }
    let rows = rows(over, input).await?;
    let mut signals = Signals::listen();
    let tasks: Vec<String> = rows
        .iter()
        .map(|row| row.fill(template))
        .collect::<Result<_, _>>()?;
    let lines: Vec<String> = rows.into_iter().map(|row| row.line).collect();
    let overrides = Overrides {
        budget: Budget::default(),
        ..args.host.overrides(config, Recovery::Resume)?
    };
    let (app, _lock) = open(config, &overrides, &args).await?;

    let mut fan_out = FanOut::over(tasks).budget(args.host.budget());
    fan_out = args
        .parallel
        .and_then(|parallel| usize::try_from(parallel).ok())
        .into_iter()
        .fold(fan_out, FanOut::parallel);
    fan_out = args.timeout.into_iter().fold(fan_out, FanOut::deadline);
    fan_out = args.name.iter().fold(fan_out, FanOut::name);
    fan_out = if args.ephemeral {
        fan_out.ephemeral()
    } else {
        fan_out
    };
    fan_out = if args.warm_first {
        fan_out.warm_first()
    } else {
        fan_out
    };
    fan_out = if args.retry_failed {
        fan_out.retry_failed()
    } else {
        fan_out
    };
    let run = app.host.tenant(TENANT).fan_out(fan_out).await?;
    let name = run.name().to_owned();
    let paint = Paint::stderr();
    let note = |line: &str| (!args.quiet).then(|| err_line(&paint.dim(&for_stderr(line))));
    if !args.ephemeral && args.name.is_none() {
        note(&format!(
            "fan-out {0}; run the same command with --name {0} to continue it",
            run.name()
        ));
    }

    let (summary, interrupted) = follow(run, &lines, &args, &mut signals).await;
    note(&figures(&summary));
    if !args.ephemeral && summary.failed() > 0 {
        note(&goes_on(&name, &summary, args.retry_failed));
    }
    if args.warm_first {
        note(&effect(&summary));
    }
    app.host.shutdown(SHUTDOWN).await;
    Ok(match summary.failed() {
        _ if interrupted => Done::Interrupted,
        0 => Done::Well,
        _ => Done::Badly,
    })
}

/// Opens the store, locks the fan-out's name against a second process, and starts the host.
async fn open(
    config: &Config,
    overrides: &Overrides,
    args: &FanoutArgs,
) -> Result<(App, Option<SessionLock>), Failure> {
    // Report wrong flags before anything is created.
    app::choose_provider(config, overrides, Purpose::Calls)?;
    app::check_places(config, overrides)?;
    let sessions = match args.ephemeral {
        true => Sessions::Memory(Arc::new(MemorySessions::new())),
        false => Sessions::open(config, overrides.db.as_deref(), Opening::OrCreate).await?,
    };
    let lock = match &args.name {
        Some(name) => sessions.lock(&scope(&ConversationId::new(format!(
            "{FAN_OUT_PREFIX}{name}"
        ))?)?)?,
        None => None,
    };
    let app = app::start(config, overrides, &sessions).await?;
    if !args.quiet {
        announce(config, &app);
    }
    Ok((app, lock))
}

/// Reads the rows, without blank lines.
async fn rows(file: &Path, input: Input) -> Result<Vec<Row>, Failure> {
    let shown = if file.as_os_str() == "-" {
        "standard input".to_owned()
    } else {
        file.display().to_string()
    };
    let path = file.to_owned();
    let read = tokio::task::spawn_blocking(move || {
        let mut bytes = Vec::new();
        let read = match path.as_os_str() == "-" {
            true => std::io::stdin()
                .lock()
                .take(FILE_BYTES_MAX + 1)
                .read_to_end(&mut bytes),
            false => named_file::open(&path)
                .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)),
        };
        read.map(|_| bytes)
    });
    let bytes = read
        .await
        .map_err(|error| Failure::work(error.to_string()))?;
    let bytes = bytes.map_err(|error| Failure::usage(crate::os_error::of_file(&shown, &error)))?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > FILE_BYTES_MAX {
        return Err(Failure::usage(format!(
            "{shown} is longer than {FILE_BYTES_MAX} bytes"
        )));
    }
    let text = String::from_utf8(bytes)
        .map_err(|_| Failure::usage(format!("{shown} is not UTF-8 text")))?;
    let rows = input.rows(&text)?;
    if rows.is_empty() {
        Err(Failure::usage(format!("{shown} has no lines")))
    } else {
        Ok(rows)
    }
}

/// Prints results in the order of the lines, each as soon as all earlier ones are printed. Ctrl-C
/// cancels the running tasks; a second one ends the program.
async fn follow(
    mut run: FanOutRun,
    lines: &[String],
    args: &FanoutArgs,
    signals: &mut Signals,
) -> (FanOutSummary, bool) {
    let tasks = u64::try_from(run.tasks()).unwrap_or(u64::MAX);
    let bar = Bar::new(tasks, !args.quiet);
    let mut ends = vec![None; run.tasks()];
    let mut printed = 0;
    let mut failed = 0usize;
    let mut interrupted = false;
    loop {
        let end = tokio::select! {
            biased;
            () = signals.next() => {
                if interrupted {
                    bar.finish();
                    std::process::exit(130);
                }
                interrupted = true;
                bar.suspend(|| err_line("interrupting; press Ctrl-C again to leave at once"));
                run.cancel();
                continue;
            }
            end = run.next() => end,
        };
        let Some(end) = end else { break };
        failed += usize::from(!end.is_done() && Standing::of(&end) == Standing::Ended);
        bar.step(if failed == 0 {
            String::new()
        } else {
            format!("{failed} failed")
        });
        if let Some(place) = ends.get_mut(end.index) {
            *place = Some(end);
        }
        while let (Some(Some(end)), Some(line)) = (ends.get(printed), lines.get(printed)) {
            // What was cut or never began is in the totals; it has no result.
            if !interrupted || Standing::of(end) == Standing::Ended {
                let text = if args.json {
                    as_json(end, line)
                } else {
                    section(end, line)
                };
                bar.suspend(|| {
                    if args.json {
                        out_json(&text)
                    } else {
                        out(&for_stdout(&text))
                    }
                });
            }
            printed += 1;
        }
    }
    bar.finish();
    (run.finish().await, interrupted)
}

/// Formats a result for people.
fn section(end: &TaskEnd, line: &str) -> String {
    let head = visible_line(line, HEAD_CHARS);
    let text = sanitize(end.text());
    let text = text.trim_end();
    let mut section = format!("== {} {head}\n", end.index + 1);
    if !text.is_empty() {
        section += text;
        section.push('\n');
    }
    if let Err(why) = &end.outcome {
        section += &format!(
            "[failed: {}]\n",
            sanitize(&why.failure.message).replace('\n', " ")
        );
    }
    if is_cut_short(end) {
        section += "[the answer was cut: it reached the longest answer allowed; --max-tokens allows more]\n";
    }
    section.push('\n');
    section
}

/// Whether the answer ended at the longest one allowed.
fn is_cut_short(end: &TaskEnd) -> bool {
    let stop = end.outcome.as_ref().ok().map(|round| &round.stop_reason);
    stop == Some(&StopReason::MaxTokens)
}

/// Formats a result for programs, on one line.
fn as_json(end: &TaskEnd, line: &str) -> String {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let round = end.end();
    let result = json!({
        "index": end.index,
        "line": line,
        "ok": end.is_done(),
        "text": end.text(),
        "full_text": round.map(|round| &round.full_text),
        "stop_reason": round.map(|round| round.stop_reason.code()),
        "error": end.outcome.as_ref().err().map(|why| json!({ "code": why.failure.code, "message": why.failure.message })),
        "usage": round.map(|round| round.usage),
        "first_text_ms": end.first_text.map(ms),
        "took_ms": ms(end.took),
        "attached": end.attached,
        "conversation_id": end.conversation,
    });
    format!("{result}\n")
}

/// How far a task came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// It was answered, or failed by itself.
    Ended,
    /// Ctrl-C or the end of the time cut it.
    Cut,
    /// It never began.
    NotBegun,
}

impl Standing {
    fn of(end: &TaskEnd) -> Self {
        match &end.outcome {
            Err(why) if ["interrupted", "deadline"].contains(&why.failure.code.as_str()) => {
                match &why.end {
                    Some(_) => Self::Cut,
                    None => Self::NotBegun,
                }
            }
            Ok(_) | Err(_) => Self::Ended,
        }
    }
}

/// How a fan-out with failures goes on.
fn goes_on(name: &str, summary: &FanOutSummary, retried: bool) -> String {
    let ended = |end: &&Arc<TaskEnd>| !end.is_done() && Standing::of(end) == Standing::Ended;
    let failed = summary.tasks.iter().filter(ended).count();
    let left = summary.failed().saturating_sub(failed);
    match (left, failed) {
        (0, _) if retried => {
            format!("the same command tries what failed once more (--name {name})")
        }
        (0, _) => format!("--name {name} --retry-failed tries what failed once more"),
        _ => format!("the same command with --name {name} goes on with what is left"),
    }
}

/// Formats the totals.
fn figures(summary: &FanOutSummary) -> String {
    let attached = summary.tasks.iter().filter(|task| task.attached).count();
    let attached = if attached == 0 {
        String::new()
    } else {
        format!(", {attached} from an earlier run")
    };
    let tasks = summary.tasks.len();
    let usage = &summary.usage;
    let count = |standing| {
        summary
            .tasks
            .iter()
            .filter(|end| !end.is_done() && Standing::of(end) == standing)
            .count()
    };
    let (cut, not_begun) = (count(Standing::Cut), count(Standing::NotBegun));
    let interrupted = match (cut, not_begun) {
        (0, 0) => String::new(),
        _ => format!(", {cut} cut, {not_begun} not begun"),
    };
    let short = summary.tasks.iter().filter(|end| is_cut_short(end)).count();
    let short = match short {
        0 => String::new(),
        short => format!(", {} cut short", counted(short, "answer")),
    };
    format!(
        "{}: {} done, {} failed{short}{interrupted}{attached} · {} tokens in, {} out · {:.1} s",
        counted(tasks, "task"),
        summary.done(),
        count(Standing::Ended),
        thousands(usage.input()),
        thousands(usage.output),
        summary.wall.as_secs_f64()
    )
}

/// Formats the effect of warming the cache.
fn effect(summary: &FanOutSummary) -> String {
    let share = |share: &CacheShare| {
        let first = share.first_text.map_or_else(String::new, |time| {
            format!(", first text after {} ms", time.as_millis())
        });
        format!(
            "{} of {} input tokens from the cache{first}",
            thousands(share.cache_read_tokens),
            thousands(share.input_tokens)
        )
    };
    format!(
        "cache: the first task {}; the rest {} (median)",
        share(&summary.cache.first),
        share(&summary.cache.rest)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(text: &str, failed: bool) -> TaskEnd {
        use callboard_actors::{
            host::TaskFailure,
            stream::{Failure, RoundEnd, RoundStatus, StopReason},
        };
        let round = Arc::new(RoundEnd {
            status: RoundStatus::Completed,
            stop_reason: StopReason::EndTurn,
            text: text.into(),
            full_text: text.into(),
            usage: Default::default(),
            latency_ms: 1,
            error: None,
        });
        let failure = Failure {
            code: "budget".into(),
            message: "no\nmore".into(),
            retry_after_ms: None,
        };
        let outcome = if failed {
            Err(TaskFailure {
                failure,
                end: Some(round),
            })
        } else {
            Ok(round)
        };
        let conversation = ConversationId::new("subagent:x").unwrap();
        TaskEnd {
            index: 0,
            conversation,
            outcome,
            first_text: None,
            took: Duration::ZERO,
            attached: false,
        }
    }

    #[test]
    fn an_answer_that_was_cut_at_its_longest_says_so() {
        let whole = end("so far", false);
        let mut round = whole.outcome.as_deref().unwrap().clone();
        round.stop_reason = StopReason::MaxTokens;
        let cut = TaskEnd {
            outcome: Ok(Arc::new(round)),
            ..whole
        };

        assert_eq!(
            section(&cut, "a.txt"),
            "== 1 a.txt\nso far\n[the answer was cut: it reached the longest answer allowed; --max-tokens allows more]\n\n"
        );
    }

    #[test]
    fn a_section_has_a_head_the_answer_and_why_it_failed() {
        assert_eq!(
            section(&end("hello\n", false), "a.txt"),
            "== 1 a.txt\nhello\n\n"
        );
        assert_eq!(
            section(&end("so far", true), "a\u{1b}[1m"),
            "== 1 a\\u{1b}[1m\nso far\n[failed: no more]\n\n"
        );
        assert!(
            section(&end("", false), &"x".repeat(500))
                .lines()
                .next()
                .unwrap()
                .chars()
                .count()
                < 130
        );
    }
}
