//! `callboard run`: runs one task to its end.

use std::{io::Read, path::PathBuf, time::Duration};

use callboard_actors::{chat::Attachment, host::Prompt, ids::ConversationId};
use clap::Args;

use super::{
    attach,
    failure::{Done, Failure},
    flags::HostFlags,
    follow::{OldQuestions, follow},
    session::Session,
    signals::Signals,
    terminal::{Terminals, err_line, out_data},
    trust::{Notes, ProjectUse},
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
  git diff | callboard run - --session review-17
  callboard run --session review-17 --resume
  callboard run --attach plan.pdf --attach photo.jpg \"What differs from the plan?\"

At a terminal everything is shown; in a pipe, only the text of the last message. --json prints one event per line.")]
pub(super) struct RunArgs {
    /// The task; read from standard input if absent or `-`
    prompt: Option<String>,
    #[command(flatten)]
    host: HostFlags,
    /// Continue this session, or create it
    #[arg(long, value_name = "ID")]
    session: Option<ConversationId>,
    /// Resume an interrupted round of the session; needs no prompt
    #[arg(long, requires = "session")]
    resume: bool,
    /// Add an image (PNG, JPEG, GIF, WebP) or a PDF to the prompt; can be repeated
    #[arg(long, value_name = "FILE")]
    attach: Vec<PathBuf>,
    /// Cancel the round after this many seconds
    #[arg(long, value_name = "S", value_parser = seconds)]
    timeout: Option<Duration>,
    /// Print one event per line, as JSON
    #[arg(long)]
    json: bool,
}

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
    let session = Session::open(config, &args.host, args.session.clone(), args.resume).await?;
    let mut view = View::new(args.json, terminals);

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
        return follow(reply, &session.handle, view, signals, old).await;
    };
    let handle = session.handle.clone();
    let timer = tokio::spawn(async move {
        tokio::time::sleep(within).await;
        let _ = handle.interrupt().await; // The error means that the round ended meanwhile.
    });
    let done = follow(reply, &session.handle, view, signals, old).await;
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
            return if text.trim().is_empty() {
                Err(missing())
            } else {
                Ok(text.to_owned())
            };
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
