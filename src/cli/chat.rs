//! `callboard chat`: a conversation. A terminal gets a line editor; in piped input, each line is a
//! prompt.

use std::{
    io::BufRead,
    path::Path,
    time::{Duration, Instant},
};

use callboard_actors::{
    chat::{Attachment, Role},
    host::{Prompt, SendError},
    ids::ConversationId,
    policy::usd,
};
use clap::Args;
use reedline::{
    DefaultPrompt, DefaultPromptSegment, FileBackedHistory, Highlighter, Reedline, Signal,
    StyledText,
};

use super::{
    attach,
    failure::{Done, Failure},
    flags::HostFlags,
    follow::{OldQuestions, follow},
    metrics::report,
    rounds,
    run::SHUTDOWN,
    session::{Session, fresh_id, last_session},
    signals::Signals,
    skills,
    terminal::{Paint, Terminals, counted, err_line, out, out_line, sanitize},
    trust::{Notes, ProjectUse},
    view::View,
};
use crate::config::Config;

/// A second Ctrl-C at the prompt within this time ends the program.
const TWICE: Duration = Duration::from_secs(2);

/// Characters shown of the last prompt and answer when a chat goes on.
const SHOWN_CHARS: usize = 300;

/// Number of lines that the editor remembers, also those of earlier chats.
const LINES_REMEMBERED: usize = 1000;

const HELP: &str = "\
/tools    the tools that the model is offered
/skills   the skills; /skills NAME [LEVEL] activates one, /skills -NAME deactivates it
/history  the messages, round by round
/fork     copy this conversation: /fork [NAME] [ROUND]
/rewind   undo a round and all later ones: /rewind ROUND
/metrics  usage and timing of this conversation
/attach FILE  add an image or a PDF to the next prompt
/tokens   tokens and cost so far, and the limits of the budget
/compact  make the context smaller now; waits up to ten seconds for a summary
/help     this list
/quit     leave (also Ctrl-D)
Alt-Enter breaks a line. Ctrl-C cancels the running round; twice leaves.";

/// Talk with a model about a folder
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  callboard chat --session refactoring
  callboard chat --provider openai --base-url http://127.0.0.1:11434/v1 --model qwen3

Inside: /tools /skills /history /fork /rewind /metrics /tokens /compact /attach FILE /help /quit. Alt-Enter breaks a line.
Ctrl-C cancels the running round; twice leaves.
If standard input is not a terminal, each of its lines is a prompt.")]
pub(super) struct ChatArgs {
    #[command(flatten)]
    host: HostFlags,
    /// Continue this session, or create it
    #[arg(long, value_name = "ID")]
    session: Option<ConversationId>,
    /// Continue the session that was used last
    #[arg(long = "continue", short = 'c', conflicts_with = "session")]
    last: bool,
    /// Cancel each round after this many seconds
    #[arg(long, value_name = "S", value_parser = super::run::seconds)]
    timeout: Option<Duration>,
    /// Print the answers and errors only: no first lines, notes or figures
    #[arg(long, short = 'q')]
    quiet: bool,
    /// Print finished lines only, with nothing that changes on the screen: for screen readers
    #[arg(long)]
    plain: bool,
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
    let id = match args.last {
        true => Some(last_session(config, &args.host).await?),
        false => args.session,
    };
    let session = Session::open(config, &args.host, id, false, args.quiet).await?;
    let mut lines = Lines::open(terminals, config);
    if lines.is_interactive() && !args.quiet {
        show_last_exchange(&session);
        err_line(&Paint::stderr().dim("/help lists the commands, Ctrl-D leaves"));
    }
    let shows = Terminals {
        stdout: terminals.stdout && !args.quiet,
        stderr: terminals.stderr && !args.quiet,
        ..terminals
    };
    let mut view = View::new(false, shows).still_lines(args.plain);
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
        command if is_command(words.first().copied().unwrap_or_default()) => {
            let name = words.first().copied().unwrap_or(command);
            err_line(&format!(
                "there is no command {}; /help lists the commands",
                sanitize(name)
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

/// Whether the first word of a line is meant as a command. A path has a second slash or a dot.
fn is_command(word: &str) -> bool {
    word.strip_prefix('/').is_some_and(|name| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    })
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

/// Shows typed text in the colors of the terminal.
struct Plain;

impl Highlighter for Plain {
    fn highlight(&self, line: &str, _cursor: usize) -> StyledText {
        let mut text = StyledText::new();
        text.push((Default::default(), line.to_owned()));
        text
    }
}

/// The lines that were typed in earlier chats, in a file that only this user can read.
fn history(data_dir: &Path) -> std::io::Result<FileBackedHistory> {
    let file = data_dir.join("chat_history");
    crate::private::file().create(true).open(&file)?;
    FileBackedHistory::with_file(LINES_REMEMBERED, file).map_err(std::io::Error::other)
}

/// Shows the last prompt and its answer, so that a person sees where the conversation was left.
fn show_last_exchange(session: &Session) {
    let messages = session.state.history.messages();
    let Some(prompt) = messages
        .iter()
        .rev()
        .find(|message| message.role() == Role::User && message.tool_result_ids().is_empty())
    else {
        return;
    };
    let paint = Paint::stderr();
    let shown = |text: &str| {
        let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        sanitize(&line.chars().take(SHOWN_CHARS).collect::<String>())
    };
    err_line(&paint.dim(&format!("you: {}", shown(&prompt.text()))));
    if let Some(answer) = session.last_answer() {
        err_line(&paint.dim(&format!("model: {}", shown(&answer))));
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
    fn open(terminals: Terminals, config: &Config) -> Self {
        if !(terminals.stdin && terminals.stderr && terminals.stdout) {
            return Self::Pipe;
        }
        let editor = Reedline::create()
            .use_bracketed_paste(true)
            .with_ansi_colors(Paint::stderr().is_on())
            .with_highlighter(Box::new(Plain));
        Self::Editor(Box::new(match history(&config.data_dir) {
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
