//! `callboard run`: runs one task to its end.

use std::{io::Read, path::PathBuf, time::Duration};

use callboard_actors::{chat::Attachment, host::Prompt, ids::ConversationId};
use clap::Args;

use super::{
    attach,
    failure::{Done, Failure},
    flags::HostFlags,
    follow::{OldQuestions, follow},
    session::{Session, last_session},
    signals::Signals,
    terminal::{Terminals, err_line, out_data},
    trust::{Notes, ProjectUse},
    typing::Typing,
    view::View,
};
use crate::config::{Approve, Config};

/// Time limit for open work when the program ends.
pub(super) const SHUTDOWN: Duration = Duration::from_secs(5);

/// Maximum size of a prompt on standard input: one byte more than a prompt may have, to detect a
/// longer one.
const STDIN_BYTES_MAX: u64 = callboard_actors::limits::PROMPT_BYTES_MAX as u64 + 1;

/// Run one task to its end
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  callboard run --provider offline \"Where is the retry delay computed, and what is its cap?\"
  git diff | callboard run \"Review this change\" --session review-17
  callboard run --session review-17 --resume
  callboard run --attach plan.pdf --attach photo.jpg \"What differs from the plan?\"

At a terminal everything is shown; in a pipe, only the text of the last message. --json prints one event per line.")]
pub(super) struct RunArgs {
    /// The task; read from standard input if absent or `-`. What is piped in beside it is added
    prompt: Option<String>,
    #[command(flatten)]
    host: HostFlags,
    /// Continue this session, or create it
    #[arg(long, value_name = "ID", help_heading = "Session")]
    session: Option<ConversationId>,
    /// Continue the session that was used last
    #[arg(long = "continue", short = 'c', conflicts_with_all = ["session", "resume"], help_heading = "Session")]
    last: bool,
    /// Resume an interrupted round of the session; needs no prompt
    #[arg(long, requires = "session", help_heading = "Session")]
    resume: bool,
    /// Add an image (PNG, JPEG, GIF, WebP) or a PDF to the prompt; can be repeated
    #[arg(long, value_name = "FILE")]
    attach: Vec<PathBuf>,
    /// Cancel the round after this many seconds
    #[arg(long, value_name = "S", value_parser = seconds, help_heading = "Limits")]
    timeout: Option<Duration>,
    /// Print the answer and errors only: no first line, notes, tool calls or progress
    #[arg(long, short = 'q', help_heading = "Output")]
    quiet: bool,
    /// Print finished lines only, with nothing that changes on the screen: for screen readers
    #[arg(long, help_heading = "Output")]
    plain: bool,
    /// Print one event per line, as JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// How long an open pipe beside a prompt may be silent.
const PIPE_SILENT_MAX: Duration = Duration::from_secs(1);

impl RunArgs {
    pub(super) fn project_use(&self) -> ProjectUse<'_> {
        ProjectUse {
            asks: !self.json,
            notes: Notes::Own,
            workspace: Some(&self.host.workspace),
        }
    }
}

pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text
        .parse::<f64>()
        .map_err(|_| "it must be a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|time| !time.is_zero() && *time < Duration::from_secs(31_536_000))
        .ok_or_else(|| "it must be more than 0 and less than a year".into())
}

pub(super) async fn run(config: &Config, args: RunArgs) -> Result<Done, Failure> {
    let terminals = Terminals::detect();
    let attachments = attachments(&args.attach).await?;
    let prompt = match (&args.prompt, args.resume) {
        (None, true) if attachments.is_empty() => None,
        _ => Some(prompt(args.prompt.as_deref(), terminals).await?),
    };
    let prompt = prompt.map(|text| {
        attachments
            .into_iter()
            .fold(Prompt::text(text), Prompt::attach)
    });
    let mut signals = Signals::listen();
    let id = match args.last {
        true => Some(last_session(config, &args.host).await?),
        false => args.session.clone(),
    };
    let session = Session::open(config, &args.host, id, args.resume, args.quiet).await?;
    let shows = Terminals {
        stdout: terminals.stdout && !args.quiet,
        stderr: terminals.stderr && !args.quiet,
        ..terminals
    };
    let mut view = View::new(args.json, shows)
        .still_lines(args.plain)
        .notes(!args.quiet)
        .edits_in(&config.data_dir);

    view.set_window(session.app.setup().context.window);

    let mut done = Ok(Done::Well);
    if args.resume {
        done = take_up(
            config,
            &args,
            &session,
            &mut view,
            &mut signals,
            prompt.is_none(),
        )
        .await;
    }
    if let (Some(prompt), Ok(Done::Well)) = (prompt, &done) {
        let send = session.handle.send(prompt);
        let send = args
            .timeout
            .into_iter()
            .fold(send, |send, within| send.deadline(within));
        done = match send.await {
            Ok(reply) => {
                follow(
                    reply,
                    &session.handle,
                    &mut view,
                    &mut signals,
                    OldQuestions::default(),
                    &mut Typing::default(),
                )
                .await
            }
            Err(error) => Err(error.into()),
        };
    }
    session.app.host.shutdown(SHUTDOWN).await;
    done
}

/// Resumes the open round and follows it. If there is none, prints the last answer.
async fn take_up(
    config: &Config,
    args: &RunArgs,
    session: &Session,
    view: &mut View,
    signals: &mut Signals,
    alone: bool,
) -> Result<Done, Failure> {
    let open = session.state.round.is_some() || !session.state.inbox.is_empty();
    let reply = if open {
        session.handle.resume().await?
    } else {
        None
    };
    let Some(reply) = reply else {
        err_line("nothing to resume: the last round of this session has ended");
        if let (true, false, Some(answer)) = (alone, args.json, session.last_answer()) {
            out_data(&format!("{}\n", answer.trim_end_matches('\n')));
        }
        return Ok(Done::Well);
    };
    let old = answer_old_questions(config, args, session).await;
    let Some(within) = args.timeout else {
        return follow(
            reply,
            &session.handle,
            view,
            signals,
            old,
            &mut Typing::default(),
        )
        .await;
    };
    let handle = session.handle.clone();
    let timer = tokio::spawn(async move {
        tokio::time::sleep(within).await;
        let _ = handle.interrupt().await; // The error means that the round ended meanwhile.
    });
    let done = follow(
        reply,
        &session.handle,
        view,
        signals,
        old,
        &mut Typing::default(),
    )
    .await;
    let in_time = !timer.is_finished();
    timer.abort();
    match done {
        Err(failure) if !in_time => Err(failure.hint("give more time with --timeout")),
        done => done,
    }
}

/// Answers approval questions of an earlier activation according to `--approve`. Questions that
/// need a person are returned as open.
async fn answer_old_questions(config: &Config, args: &RunArgs, session: &Session) -> OldQuestions {
    let questions = session.questions();
    let seen = questions
        .iter()
        .map(|question| question.tool_call_id.clone())
        .collect();
    let terminals = Terminals::detect();
    let flag = args.host.approve.map(Approve::from).or(config.approve);
    let allow = match flag {
        Some(Approve::Auto) => true,
        Some(Approve::Ask) | None if terminals.has_person() => {
            return OldQuestions {
                open: questions,
                seen,
            };
        }
        Some(Approve::Deny | Approve::Ask) | None => false,
    };
    for question in questions {
        let _ = session.handle.approve(question.tool_call_id, allow).await;
    }
    OldQuestions {
        open: Vec::new(),
        seen,
    }
}

async fn attachments(files: &[PathBuf]) -> Result<Vec<Attachment>, Failure> {
    let files = files.to_vec();
    let read = tokio::task::spawn_blocking(move || attach::read(&files));
    read.await
        .map_err(|error| Failure::work(error.to_string()))?
}

/// The prompt, from the argument or from standard input.
async fn prompt(argument: Option<&str>, terminals: Terminals) -> Result<String, Failure> {
    let missing =
        || Failure::usage("there is no prompt").hint("callboard run \"…\", or pipe it in");
    let text = match argument {
        Some(text) if text != "-" => {
            if text.trim().is_empty() {
                return Err(missing());
            }
            return Ok(match piped_input(terminals).await? {
                Some(input) => format!("{text}\n\n{input}"),
                None => text.to_owned(),
            });
        }
        None if terminals.stdin => return Err(missing()),
        _ => read_stdin().await?,
    };
    if text.trim().is_empty() {
        Err(missing())
    } else {
        Ok(text)
    }
}

/// What is piped in beside a prompt; `None` for nothing. A parent that holds an empty pipe open is
/// waited for no longer than a second.
async fn piped_input(terminals: Terminals) -> Result<Option<String>, Failure> {
    if terminals.stdin || !is_pipe_or_file() {
        return Ok(None);
    }
    let (begun, begins) = tokio::sync::oneshot::channel::<bool>();
    let (done, text) = tokio::sync::oneshot::channel();
    // A thread of its own: the runtime would wait for one of its pool at the end of the program.
    std::thread::spawn(move || {
        let mut input = std::io::stdin().lock();
        let has_more = std::io::BufRead::fill_buf(&mut input).is_ok_and(|bytes| !bytes.is_empty());
        let _ = begun.send(has_more);
        let mut bytes = Vec::new();
        let read = input.take(STDIN_BYTES_MAX).read_to_end(&mut bytes);
        let _ = done.send(read.map(|_| bytes));
    });
    match tokio::time::timeout(PIPE_SILENT_MAX, begins).await {
        Ok(Ok(true)) => {}
        Ok(_) => return Ok(None),
        Err(_) => {
            err_line(
                "note: nothing arrived on standard input within a second; the prompt goes alone",
            );
            return Ok(None);
        }
    }
    let bytes = text
        .await
        .map_err(|error| Failure::work(error.to_string()))?
        .map_err(|error| {
            Failure::work(format!("standard input cannot be read: {}", error.kind()))
        })?;
    let text = String::from_utf8(bytes)
        .map_err(|_| Failure::usage("what is piped in beside the prompt is not UTF-8 text"))?;
    Ok(Some(text).filter(|text| !text.trim().is_empty()))
}

/// Whether standard input is a pipe, a socket or a file with content; devices such as `/dev/null`
/// hold no input.
#[cfg(unix)]
fn is_pipe_or_file() -> bool {
    use std::os::{fd::AsFd as _, unix::fs::FileTypeExt as _};
    let Ok(input) = std::io::stdin().as_fd().try_clone_to_owned() else {
        return false;
    };
    std::fs::File::from(input)
        .metadata()
        .is_ok_and(|about| about.is_file() || about.file_type().is_fifo())
}

#[cfg(not(unix))]
fn is_pipe_or_file() -> bool {
    false
}

async fn read_stdin() -> Result<String, Failure> {
    let read = tokio::task::spawn_blocking(|| {
        let mut bytes = Vec::new();
        std::io::stdin()
            .lock()
            .take(STDIN_BYTES_MAX)
            .read_to_end(&mut bytes)
            .map(|_| bytes)
    });
    let bytes = read
        .await
        .map_err(|error| Failure::work(error.to_string()))?;
    let bytes = bytes.map_err(|error| {
        Failure::work(format!("standard input cannot be read: {}", error.kind()))
    })?;
    String::from_utf8(bytes)
        .map_err(|_| Failure::usage("the prompt on standard input is not UTF-8 text"))
}
