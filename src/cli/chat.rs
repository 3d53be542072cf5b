//! `callboard chat`: a conversation. A terminal gets a line editor; in piped input, each line is a
//! prompt.

use std::{
    io::BufRead,
    time::{Duration, Instant},
};

use callboard_actors::{
    chat::Attachment,
    host::{Prompt, SendError},
    ids::ConversationId,
    policy::usd,
};
use clap::Args;
use reedline::{DefaultPrompt, DefaultPromptSegment, FileBackedHistory, Reedline, Signal};

use super::{
    attach,
    failure::{Done, Failure},
    flags::HostFlags,
    follow::{OldQuestions, follow},
    metrics::report,
    rounds,
    run::SHUTDOWN,
    session::{Session, fresh_id},
    signals::Signals,
    skills,
    terminal::{Paint, Terminals, counted, err_line, out, out_line, sanitize},
    trust::{Notes, ProjectUse},
    view::View,
};
use crate::config::Config;

/// A second Ctrl-C at the prompt within this time ends the program.
const TWICE: Duration = Duration::from_secs(2);

/// Number of lines in the editor's history. It lasts for this process; what was typed is stored in
/// the session only.
const LINES_REMEMBERED: usize = 1000;

const HELP: &str = "\
/tools    the tools that the model is offered
/skills   the skills; /skills NAME activates one, /skills -NAME deactivates it
/history  the messages, round by round
/fork     copy this conversation: /fork [NAME] [ROUND]
/rewind   undo a round and all later ones: /rewind ROUND
/metrics  usage and timing of this conversation
/attach FILE  add an image or a PDF to the next prompt
/tokens   tokens and cost so far, and the limits of the budget
/compact  make the context smaller now; waits up to ten seconds for a summary
/help     this list
/quit     leave (also Ctrl-D)
Ctrl-C cancels the running round; twice leaves.";

/// Talk with a model about a folder
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  callboard chat --session refactoring
  callboard chat --provider openai --base-url http://127.0.0.1:11434/v1 --model qwen3

Inside: /tools /history /fork /rewind /metrics /attach FILE /help /quit. Ctrl-C cancels the running round; twice leaves.
If standard input is not a terminal, each of its lines is a prompt.")]
pub(super) struct ChatArgs {
    #[command(flatten)]
    host: HostFlags,
    /// Continue this session, or create it
    #[arg(long, value_name = "ID")]
    session: Option<ConversationId>,
    /// Cancel each round after this many seconds
    #[arg(long, value_name = "S", value_parser = super::run::seconds)]
    timeout: Option<Duration>,
}

impl ChatArgs {
    pub(super) fn project_use(&self) -> ProjectUse<'_> {
        ProjectUse {
            asks: true,
            notes: Notes::Own,
            workspace: Some(&self.host.workspace),
        }
    }
}

/// What to do after a line.
enum Next {
    GoOn,
    Leave(Done),
}

pub(super) async fn run(config: &Config, args: ChatArgs) -> Result<Done, Failure> {
    let terminals = Terminals::detect();
    let mut signals = Signals::listen();
    let session = Session::open(config, &args.host, args.session, false).await?;
    let mut lines = Lines::open(terminals);
    if lines.is_interactive() {
        err_line(&Paint::stderr().dim("/help lists the commands, Ctrl-D leaves"));
    }
    let mut view = View::new(false, terminals);
    let mut last = Ok(Done::Well);
    let mut attached = Vec::new();
    let left = loop {
        let (line, returned) = lines.next().await;
        lines = returned;
        let line = match line {
            Some(Line::Entered(line)) => line,
            Some(Line::Interrupted) => break Done::Interrupted,
            None => break Done::Well,
        };
        let line = line.trim();
        if let Some(file) = line.strip_prefix("/attach ") {
            last = attach_file(file.trim(), &mut attached);
            continue;
        }
        match one_line(
            &session,
            line,
            args.timeout,
            &mut attached,
            &mut view,
            &mut signals,
            &mut last,
        )
        .await
        {
            Next::GoOn => {}
            Next::Leave(done) => break done,
        }
    };
    session.app.host.shutdown(SHUTDOWN).await;
    // The exit code matters to a script; a person has seen the error already.
    match (lines.is_interactive(), left, last) {
        (false, Done::Well, last) => last.map_err(|failure| failure.hint("the last prompt failed")),
        (_, left, _) => Ok(left),
    }
}

/// Reads a file and attaches it to the next prompt.
fn attach_file(file: &str, attached: &mut Vec<Attachment>) -> Result<Done, Failure> {
    match attach::read([&std::path::PathBuf::from(file)]) {
        Ok(read) => {
            attached.extend(read);
            err_line(&format!("attached to the next prompt: {}", sanitize(file)));
            Ok(Done::Well)
        }
        Err(failure) => {
            err_line(&failure.text(Paint::stderr()));
            Err(failure)
        }
    }
}

async fn one_line(
    session: &Session,
    line: &str,
    timeout: Option<Duration>,
    attached: &mut Vec<Attachment>,
    view: &mut View,
    signals: &mut Signals,
    last: &mut Result<Done, Failure>,
) -> Next {
    let words: Vec<&str> = line.split_whitespace().collect();
    let asked = match words.split_first() {
        Some((&"/fork", rest)) => Some(fork(session, rest).await),
        Some((&"/rewind", rest)) => Some(rewind(session, rest).await),
        _ => None,
    };
    if let Some(done) = asked {
        if let Err(failure) = done {
            err_line(&failure.text(Paint::stderr()));
        }
        return Next::GoOn;
    }
    match line {
        "" => {}
        "/quit" | "/exit" => return Next::Leave(Done::Well),
        "/help" => out_line(HELP),
        "/tools" => show_tools(session),
        "/history" => show_history(session).await,
        "/metrics" => show_metrics(session).await,
        "/skills" => print_failure(skills::in_chat(&session.handle, "").await),
        command if command.starts_with("/skills ") => {
            print_failure(
                skills::in_chat(
                    &session.handle,
                    command.trim_start_matches("/skills ").trim(),
                )
                .await,
            );
        }
        "/tokens" => show_tokens(session).await,
        "/compact" => print_failure(compact(session).await),
        command if command.starts_with('/') && !command.contains(' ') => {
            err_line(&format!(
                "there is no command {}; /help lists the commands",
                sanitize(command)
            ));
        }
        prompt => {
            let prompt = attached
                .drain(..)
                .fold(Prompt::text(prompt), Prompt::attach);
            let send = session.handle.send(prompt);
            let send = timeout
                .into_iter()
                .fold(send, |send, within| send.deadline(within));
            *last = match send.await {
                Ok(reply) => {
                    let done = follow(
                        reply,
                        &session.handle,
                        view,
                        signals,
                        OldQuestions::default(),
                    )
                    .await;
                    if let Err(failure) = &done {
                        err_line(&failure.text(Paint::stderr()));
                    }
                    done
                }
                Err(error) => {
                    let failure = Failure::from(error);
                    err_line(&failure.text(Paint::stderr()));
                    Err(failure)
                }
            };
        }
    }
    Next::GoOn
}

fn print_failure(result: Result<(), Failure>) {
    if let Err(failure) = result {
        err_line(&failure.text(Paint::stderr()));
    }
}

async fn compact(session: &Session) -> Result<(), Failure> {
    match session.handle.compact().await? {
        Some(note) => out_line(&format!(
            "{} tokens became {} ({})",
            note.before_tokens, note.after_tokens, note.mode
        )),
        None => out_line("there is nothing to compact"),
    }
    Ok(())
}

fn show_tools(session: &Session) {
    for spec in session.app.setup().tools.specs() {
        out_line(&format!(
            "{:<12} {}",
            spec.name(),
            callboard_actors::conversation::first_sentence(&spec.definition.description)
        ));
    }
}

async fn show_history(session: &Session) {
    let history = async {
        let rounds = session.handle.rounds().await?;
        Ok::<_, SendError>(rounds::describe(&rounds, &session.handle.messages().await?))
    };
    match history.await {
        Ok(text) => out(&text),
        Err(error) => err_line(&Failure::from(error).text(Paint::stderr())),
    }
}

/// Copies the conversation, as it is or as it was after a round. The current conversation continues
/// here.
async fn fork(session: &Session, words: &[&str]) -> Result<(), Failure> {
    let (name, at) = match words {
        [] => (None, None),
        [name] => (Some(*name), None),
        [name, at] => (
            Some(*name),
            Some(rounds::pick(&session.handle.rounds().await?, at)?),
        ),
        _ => return Err(Failure::usage("too many arguments").hint("/fork [NAME] [ROUND]")),
    };
    let id = match name {
        Some(name) => ConversationId::new(name)?,
        None => fresh_id()?,
    };
    session.handle.fork(id.clone(), at).await?;
    out_line(&format!(
        "copied as {id}; continue it with `callboard chat --session {id}`"
    ));
    Ok(())
}

/// Undoes a round and all later ones.
async fn rewind(session: &Session, words: &[&str]) -> Result<(), Failure> {
    let [to] = words else {
        return Err(
            Failure::usage("which round?").hint("/rewind ROUND; /history shows their numbers")
        );
    };
    let to = rounds::pick(&session.handle.rounds().await?, to)?;
    session.handle.rewind(to).await?;
    out_line(&format!(
        "{} left",
        counted(session.handle.messages().await?.len(), "message")
    ));
    Ok(())
}

async fn show_metrics(session: &Session) {
    let state = match session.handle.state().await {
        Ok(state) => state,
        Err(error) => return err_line(&Failure::from(error).text(Paint::stderr())),
    };
    report(&state, &session.id);
}

async fn show_tokens(session: &Session) {
    let state = match session.handle.state().await {
        Ok(state) => state,
        Err(error) => return err_line(&Failure::from(error).text(Paint::stderr())),
    };
    let spent = state.spent.amount;
    let pricing = session.app.setup().pricing.clone();
    let tokens = pricing
        .budget
        .tokens
        .map(|limit| format!(" of {limit}"))
        .unwrap_or_default();
    out_line(&format!("tokens {}{tokens}", spent.tokens));
    if pricing.price.is_some() {
        let limit = pricing
            .budget
            .micro_usd
            .map(|limit| format!(" of {}", usd(limit)))
            .unwrap_or_default();
        out_line(&format!("cost {}{limit}", usd(spent.micro_usd)));
    }
}

/// A line of input.
enum Line {
    Entered(String),
    Interrupted,
}

/// The source of lines. Reading blocks, so a blocking thread takes the source and returns it with
/// the line.
enum Lines {
    Editor(Box<Reedline>),
    Pipe,
}

impl Lines {
    fn open(terminals: Terminals) -> Self {
        if !(terminals.stdin && terminals.stderr && terminals.stdout) {
            return Self::Pipe;
        }
        let editor = Reedline::create().use_bracketed_paste(true);
        Self::Editor(Box::new(match FileBackedHistory::new(LINES_REMEMBERED) {
            Ok(history) => editor.with_history(Box::new(history)),
            Err(_) => editor,
        }))
    }

    fn is_interactive(&self) -> bool {
        matches!(self, Self::Editor(_))
    }

    async fn next(self) -> (Option<Line>, Self) {
        let interactive = self.is_interactive();
        let read = tokio::task::spawn_blocking(move || self.read());
        read.await.unwrap_or((
            None,
            if interactive {
                Self::Editor(Box::new(Reedline::create()))
            } else {
                Self::Pipe
            },
        ))
    }

    fn read(mut self) -> (Option<Line>, Self) {
        let line = match &mut self {
            Self::Pipe => {
                let mut line = String::new();
                match std::io::stdin().lock().read_line(&mut line) {
                    Ok(0) | Err(_) => None,
                    Ok(_) => Some(Line::Entered(line)),
                }
            }
            Self::Editor(editor) => edit(editor),
        };
        (line, self)
    }
}

fn edit(editor: &mut Reedline) -> Option<Line> {
    let prompt = DefaultPrompt::new(DefaultPromptSegment::Empty, DefaultPromptSegment::Empty);
    let mut interrupted: Option<Instant> = None;
    loop {
        match editor.read_line(&prompt) {
            Ok(Signal::Success(line)) => return Some(Line::Entered(line)),
            Ok(Signal::CtrlC) if interrupted.is_some_and(|at| at.elapsed() < TWICE) => {
                return Some(Line::Interrupted);
            }
            Ok(Signal::CtrlC) => {
                interrupted = Some(Instant::now());
                err_line("once more to leave");
            }
            Ok(_) | Err(_) => return None,
        }
    }
}
