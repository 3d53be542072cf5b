//! `callboard chat`: a conversation. A terminal gets a line editor; in piped input, each line is a
//! prompt.

mod back;
mod commands;
mod of_server;

use std::time::{Duration, Instant};

use callboard_actors::{
    chat::Attachment,
    conversation::round::rules::Recovery,
    host::Prompt,
    ids::{ConversationId, Seq},
    journal::{TITLE_ENTRIES, title},
};
use clap::Args;

use super::{
    attach, by_hand,
    editor::edited,
    failure::{Done, Failure},
    flags::HostFlags,
    follow::{OldQuestions, follow},
    lines::{Line, Lines},
    models,
    remote::KeyText,
    run::SHUTDOWN,
    session::{Session, check, last_session, newest_first, scope},
    signals::Signals,
    skills,
    terminal::{Paint, Terminals, err_line, out_line, ring, sanitize},
    trust::{Notes, ProjectUse},
    typing::Typing,
    view::View,
};
use crate::{
    app::{Opening, Sessions},
    config::Config,
    visible::visible_line,
};

/// A round that took longer rings the bell at its end: the person may look elsewhere.
const LONG: Duration = Duration::from_secs(10);

/// Characters of a title in that list.
const TITLE_CHARS: usize = 60;

/// Sessions that `/sessions` lists.
const SESSIONS_SHOWN: usize = 15;

const HELP: &str = "\
/tools    the tools that the model is offered
/skills   the skills; /skills NAME [LEVEL] activates one, /skills -NAME deactivates it
/history  the messages, round by round
/fork     copy this conversation: /fork [NAME] [ROUND]
/rewind   undo a round and all later ones: /rewind ROUND
/metrics  usage and timing of this conversation
/sessions list the sessions; /sessions NUMBER continues one
/edit     write the next prompt in $VISUAL or $EDITOR; /edit TEXT begins with a text
/attach FILE  add an image or a PDF to the next prompt
/model    the model; /model NAME goes on with another one, /model PROVIDER/NAME with another provider
/tokens   tokens and cost so far, and the limits of the budget
/compact  make the context smaller now; waits up to ten seconds for a summary
/help     this list
/quit     leave (also Ctrl-D)
!COMMAND  run a command in the sandbox; the model does not see it
@FILE     in a prompt: send the file with it
Tab completes commands and @FILE. Alt-Enter breaks a line. What you type while a round runs waits in a queue.
Esc cancels the running round; what waits in the queue is sent then. Esc twice at an empty line takes the last prompt back.
Ctrl-C cancels the running round and empties the queue; twice leaves.";

/// Talk with a model about a folder
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  callboard chat --session refactoring
  callboard chat --provider openai --base-url http://127.0.0.1:11434/v1 --model qwen3

Inside: /tools /skills /history /fork /rewind /metrics /tokens /compact /sessions /model /edit
/attach FILE /help /quit,
!COMMAND, @FILE in a prompt. Alt-Enter breaks a line. Lines typed while a round runs are sent after it.
Esc or Ctrl-C cancels the running round; Ctrl-C twice leaves, Esc twice takes the last prompt back.
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
    /// Talk with a conversation of a running `callboard serve`, which runs the model and the tools
    #[arg(long, value_name = "ID", conflicts_with_all = ["session", "last"])]
    attach: Option<ConversationId>,
    /// With --attach: the URL of the server [env: CALLBOARD_SERVER]
    #[arg(long, value_name = "URL", requires = "attach")]
    server: Option<String>,
    /// With --attach: the key of the tenant [env: CALLBOARD_KEY]
    #[arg(long, value_name = "KEY", requires = "attach")]
    key: Option<KeyText>,
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
    /// Continue another session.
    Open(ConversationId),
    /// Continue this session with another model.
    Switch(Box<HostFlags>),
    Leave(Done),
}

/// A chat between two lines.
struct Chat<'c> {
    config: &'c Config,
    args: &'c ChatArgs,
    /// The flags of the sessions that are opened; `/model` changes them.
    flags: HostFlags,
    view: View,
    signals: Signals,
    typing: Typing,
    /// Files for the next prompt.
    attached: Vec<Attachment>,
    /// What the next line begins with.
    begun: Option<String>,
    /// The last prompt as it was sent, and as it was typed.
    sent: Option<(String, String)>,
    /// How the last prompt ended.
    last: Result<Done, Failure>,
    is_interactive: bool,
}

pub(super) async fn run(config: &Config, args: ChatArgs) -> Result<Done, Failure> {
    if let Some(id) = args.attach.clone() {
        return of_server::attach_to(config, args, id).await;
    }
    let terminals = Terminals::detect();
    let signals = Signals::listen();
    let id = match args.last {
        true => Some(last_session(config, &args.host).await?),
        false => args.session.clone(),
    };
    let mut session = Session::open(config, &args.host, id, false, args.quiet).await?;
    let mut lines = Lines::open(terminals, config, &session.app.workspace, HELP);
    let shows = Terminals {
        stdout: terminals.stdout && !args.quiet,
        stderr: terminals.stderr && !args.quiet,
        ..terminals
    };
    let mut chat = Chat {
        config,
        args: &args,
        flags: args.host.clone(),
        view: View::new(false, shows)
            .still_lines(args.plain)
            .edits_in(&config.data_dir),
        signals,
        typing: Typing::default(),
        attached: Vec::new(),
        begun: None,
        sent: None,
        last: Ok(Done::Well),
        is_interactive: lines.is_interactive(),
    };
    if chat.is_interactive && !args.quiet {
        commands::show_last_exchange(&session);
        err_line(&Paint::stderr().dim("/help lists the commands, Ctrl-D leaves"));
    }
    let left = loop {
        let line = match chat.typing.next() {
            Some(line) => shown(line),
            None => {
                let begun = chat.typing.take_unfinished().or(chat.begun.take());
                let (line, returned) = lines.begin_with(begun).next().await;
                lines = returned;
                match line {
                    Some(Line::Entered(line)) => line,
                    Some(Line::Rewind) => {
                        chat.take_back(&session).await;
                        continue;
                    }
                    Some(Line::Interrupted) => break Done::Interrupted,
                    None => break Done::Well,
                }
            }
        };
        match chat.line(&session, line.trim()).await {
            Next::GoOn => {}
            Next::Open(id) => {
                session.app.host.shutdown(SHUTDOWN).await;
                let before = session.id.clone();
                drop(session);
                session = match chat.open(id).await {
                    Ok(session) => session,
                    Err(failure) => {
                        err_line(&failure.text(Paint::stderr()));
                        chat.open(before).await?
                    }
                };
                commands::show_last_exchange(&session);
            }
            Next::Switch(flags) => {
                session.app.host.shutdown(SHUTDOWN).await;
                let id = session.id.clone();
                drop(session);
                let before = std::mem::replace(&mut chat.flags, *flags);
                session = match chat.open(id.clone()).await {
                    Ok(session) => session,
                    Err(failure) => {
                        err_line(&failure.text(Paint::stderr()));
                        chat.flags = before;
                        chat.open(id).await?
                    }
                };
            }
            Next::Leave(done) => break done,
        }
    };
    session.app.host.shutdown(SHUTDOWN).await;
    // The exit code matters to a script; a person has seen the error already.
    match (lines.is_interactive(), left, chat.last) {
        (false, Done::Well, last) => last.map_err(|failure| failure.hint("the last prompt failed")),
        (_, left, _) => Ok(left),
    }
}

/// Shows a line that was typed ahead where its turn comes, and returns it.
fn shown(line: String) -> String {
    err_line(&format!(
        "{} {}",
        Paint::stderr().bold(">"),
        sanitize(&line)
    ));
    line
}

impl Chat<'_> {
    async fn open(&self, id: ConversationId) -> Result<Session, Failure> {
        Session::open(self.config, &self.flags, Some(id), false, self.args.quiet).await
    }

    /// Handles one line: a command, or a prompt.
    async fn line(&mut self, session: &Session, line: &str) -> Next {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (command, rest) = words
            .split_first()
            .map_or(("", &[][..]), |(first, rest)| (*first, rest));
        // The rest of the line as it was typed.
        let text = line.strip_prefix(command).unwrap_or_default().trim();
        let done = match command {
            "" => Ok(()),
            "/quit" | "/exit" => return Next::Leave(Done::Well),
            "/help" => {
                out_line(HELP);
                Ok(())
            }
            "/fork" => commands::fork(session, rest).await,
            "/rewind" => commands::rewind(session, rest).await,
            "/tools" => {
                commands::show_tools(session);
                Ok(())
            }
            "/history" => commands::show_history(session).await,
            "/metrics" => commands::show_metrics(session).await,
            "/skills" => skills::in_chat(&session.handle, text).await,
            "/tokens" => commands::show_tokens(session).await,
            "/model" if text.is_empty() => {
                let app = &session.app;
                for line in models::choices(self.config, &app.provider, &app.model) {
                    out_line(&line);
                }
                Ok(())
            }
            "/model" => match self.switched(text) {
                Ok(flags) => return Next::Switch(Box::new(flags)),
                Err(failure) => Err(failure),
            },
            "/compact" => commands::compact(session).await,
            "/attach" if !text.is_empty() => {
                self.last = attach_file(text, &mut self.attached);
                Ok(())
            }
            "/sessions" => match self.sessions(text).await {
                Ok(Some(id)) if id == session.id => Ok(()),
                Ok(Some(id)) => return Next::Open(id),
                Ok(None) => Ok(()),
                Err(failure) => Err(failure),
            },
            "/edit" if self.is_interactive => match edited(self.config, text).await {
                Ok(prompt) if prompt.is_empty() => {
                    err_line("the prompt is empty; nothing was sent");
                    Ok(())
                }
                Ok(prompt) => {
                    self.prompt(session, &prompt).await;
                    Ok(())
                }
                Err(failure) => Err(failure),
            },
            _ if self.is_interactive && line.starts_with('!') => {
                match line.trim_start_matches('!').trim() {
                    "" => Err(Failure::usage("which command?").hint("!ls runs one in the sandbox")),
                    command => by_hand::command(session, &mut self.signals, command).await,
                }
            }
            command if is_command(command) => {
                err_line(&format!(
                    "there is no command {}; /help lists the commands",
                    sanitize(command)
                ));
                Ok(())
            }
            _ => {
                self.prompt(session, line).await;
                Ok(())
            }
        };
        print_failure(done);
        Next::GoOn
    }

    async fn prompt(&mut self, session: &Session, text: &str) {
        let typed = text;
        let text = match self.is_interactive {
            true => by_hand::with_files(session, &mut self.signals, text).await,
            false => Ok(Some(text.to_owned())),
        };
        let text = match text {
            Ok(Some(text)) => text,
            Ok(None) => return err_line("interrupted; the prompt was not sent"),
            Err(failure) => return print_failure(Err(failure)),
        };
        self.sent = Some((text.clone(), typed.to_owned()));
        let begun = Instant::now();
        self.last = self.send(session, &text).await;
        if let Err(failure) = &self.last {
            err_line(&failure.text(Paint::stderr()));
        }
        if self.is_interactive && begun.elapsed() >= LONG {
            ring();
        }
    }

    async fn send(&mut self, session: &Session, text: &str) -> Result<Done, Failure> {
        let prompt = self
            .attached
            .drain(..)
            .fold(Prompt::text(text), Prompt::attach);
        let send = session.handle.send(prompt);
        let send = self
            .args
            .timeout
            .into_iter()
            .fold(send, |send, within| send.deadline(within));
        let reply = send.await?;
        self.view.set_window(session.app.setup().context.window);
        if self.is_interactive && !self.args.plain {
            self.typing.listen();
        }
        let done = follow(
            reply,
            &session.handle,
            &mut self.view,
            &mut self.signals,
            OldQuestions::default(),
            &mut self.typing,
        )
        .await;
        self.typing.pause();
        done
    }

    /// The flags that go on with another model, if they can be used.
    fn switched(&self, text: &str) -> Result<HostFlags, Failure> {
        let flags = models::chosen(self.config, &self.flags, text)?;
        check(self.config, &flags.overrides(self.config, Recovery::Close)?)?;
        Ok(flags)
    }

    /// Lists the sessions, or returns the one that is named by its number or id.
    async fn sessions(&self, which: &str) -> Result<Option<ConversationId>, Failure> {
        let sessions =
            Sessions::open(self.config, self.args.host.db.as_deref(), Opening::Existing).await?;
        let rows = newest_first(&sessions).await?;
        if which.is_empty() {
            for (at, row) in rows.iter().take(SESSIONS_SHOWN).enumerate() {
                let scope = scope(&row.conversation)?;
                let first = sessions
                    .backend()
                    .entries(&scope, Seq::default(), TITLE_ENTRIES)
                    .await;
                let title = first
                    .ok()
                    .and_then(|first| title(&first))
                    .unwrap_or_default();
                let time: String = row.updated_at.to_string().chars().take(16).collect();
                out_line(&format!(
                    "{:>3}  {}  {}  {}",
                    at + 1,
                    time.replace('T', " "),
                    row.conversation,
                    visible_line(&title, TITLE_CHARS)
                ));
            }
            out_line("/sessions NUMBER continues one");
            return Ok(None);
        }
        let named = match which.parse::<usize>() {
            Ok(number) => number.checked_sub(1).and_then(|at| rows.get(at)),
            Err(_) => rows.iter().find(|row| row.conversation.as_str() == which),
        };
        named
            .map(|row| Some(row.conversation.clone()))
            .ok_or_else(|| {
                Failure::work("there is no such session")
                    .hint("/sessions lists them with their numbers")
            })
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
