//! `callboard chat`: a conversation. A terminal gets a line editor; in piped input, each line is a
//! prompt.

mod back;
mod commands;
mod help;
mod keys;
mod of_server;
mod resume;

use std::{
    path::Path,
    time::{Duration, Instant},
};

use callboard_actors::{
    chat::Attachment, conversation::round::rules::Recovery, host::Prompt, ids::ConversationId,
};
use clap::Args;

use super::{
    attach, by_hand,
    chat_words::{self, Meaning, meaning},
    editor::edited,
    failure::{Done, Failure},
    flags::HostFlags,
    follow::{OldQuestions, follow},
    lines::{Line, Lines},
    models,
    remote::KeyText,
    run::SHUTDOWN,
    session::{Session, check, last_session},
    signals::Signals,
    skills,
    terminal::{Paint, Terminals, err_line, out_line, ring_after, sanitize},
    trust::{Notes, ProjectUse},
    typing::Typing,
    view::View,
    wrap::list_for_stdout,
};
use crate::config::Config;

/// Commands by hand whose output the next prompt brings along.
const MATERIAL_MAX: usize = 8;

/// Talk with a model about a folder
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  callboard chat --session refactoring
  callboard chat --provider openai --base-url http://127.0.0.1:11434/v1 --model qwen3

  callboard chat --resume

Inside: /tools /skills /history /fork /rewind /metrics /tokens /compact /sessions /model /edit
/attach FILE /help /quit,
!COMMAND, @FILE in a prompt. Alt-Enter breaks a line. Lines typed while a round runs are sent after it.
Esc or Ctrl-C cancels the running round; Ctrl-C twice leaves, Esc twice takes the last prompt back.
If standard input is not a terminal, each of its lines is a prompt.")]
pub(super) struct ChatArgs {
    #[command(flatten)]
    host: HostFlags,
    /// Continue this session, or create it
    #[arg(long, value_name = "ID", help_heading = "Session")]
    session: Option<ConversationId>,
    /// Continue the session that was used last
    #[arg(
        long = "continue",
        short = 'c',
        conflicts_with = "session",
        help_heading = "Session"
    )]
    last: bool,
    /// Choose the session to continue from a list
    #[arg(long, conflicts_with_all = ["session", "last"], help_heading = "Session")]
    resume: bool,
    /// Talk with a conversation of a running `callboard serve`, which runs the model and the tools
    #[arg(long, value_name = "ID", conflicts_with_all = ["session", "last", "resume"], help_heading = "With a running host")]
    attach: Option<ConversationId>,
    /// With --attach: the URL of the server [env: CALLBOARD_SERVER]
    #[arg(
        long,
        value_name = "URL",
        requires = "attach",
        help_heading = "With a running host"
    )]
    server: Option<String>,
    /// With --attach: the key of the tenant [env: CALLBOARD_KEY]
    #[arg(
        long,
        value_name = "KEY",
        requires = "attach",
        help_heading = "With a running host"
    )]
    key: Option<KeyText>,
    /// Cancel each round after this many seconds
    #[arg(long, value_name = "S", value_parser = super::run::seconds, help_heading = "Limits")]
    timeout: Option<Duration>,
    /// Print the answers and errors only: no first lines, notes or figures
    #[arg(long, short = 'q', help_heading = "Output")]
    quiet: bool,
    /// Print finished lines only, with nothing that changes on the screen: for screen readers
    #[arg(long, help_heading = "Output")]
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
    /// Commands by hand and their output, for the next prompt.
    material: Vec<String>,
    /// What the next line begins with.
    begun: Option<String>,
    /// The last prompt as it was sent, and as it was typed.
    sent: Option<(String, String)>,
    /// How the last prompt ended.
    last: Result<Done, Failure>,
    /// Whether a line was refused, because it is no command.
    refused: bool,
    is_interactive: bool,
}

pub(super) async fn run(config: &Config, args: ChatArgs) -> Result<Done, Failure> {
    if let Some(id) = args.attach.clone() {
        return of_server::attach_to(config, args, id).await;
    }
    let terminals = Terminals::detect();
    let mut signals = Signals::listen();
    let can_choose = terminals.stdin && terminals.stdout && terminals.stderr;
    let id = match args.last {
        true => Some(last_session(config, &args.host).await?),
        false if args.resume && !can_choose => {
            resume::list(config, &args.host).await?;
            return Ok(Done::Well);
        }
        false if args.resume => {
            let id = resume::chosen(config, &args.host, args.plain, &mut signals).await?;
            let Some(id) = id else { return Ok(Done::Well) };
            Some(id)
        }
        false => args.session.clone(),
    };
    let mut session = Session::open(config, &args.host, id, false, args.quiet).await?;
    let mut lines = Lines::open(terminals, config, &session.app.workspace, help::HELP);
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
            .many_answers()
            .notes(!args.quiet)
            .edits_in(&config.data_dir),
        signals,
        typing: Typing::default(),
        attached: Vec::new(),
        material: Vec::new(),
        begun: None,
        sent: None,
        last: Ok(Done::Well),
        refused: false,
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
                let (line, returned) = lines.begin_with(begun).next(&mut chat.signals).await;
                lines = returned;
                match line {
                    Some(Line::Entered(line)) => line,
                    Some(Line::Interrupted) => break Done::Interrupted,
                    Some(key) => {
                        chat.key(&session, key).await;
                        continue;
                    }
                    None => break Done::Well,
                }
            }
        };
        match chat.line(&session, line.trim()).await {
            Next::GoOn => {}
            Next::Open(id) => {
                chat.material.clear();
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
    if chat.is_interactive && !args.quiet {
        commands::show_how_to_resume(&session, args.host.db.as_deref()).await;
    }
    session.app.host.shutdown(SHUTDOWN).await;
    // The exit code matters to a script; a person has seen the error already.
    match (chat.is_interactive, left, chat.last) {
        (false, Done::Well, last) => exit_of_pipe(last, chat.refused),
        (_, left, _) => Ok(left),
    }
}

/// How a chat over a pipe ends: as its last prompt did, and never well if a line was refused.
fn exit_of_pipe(last: Result<Done, Failure>, refused: bool) -> Result<Done, Failure> {
    match last {
        Ok(Done::Well) if refused => Ok(Done::Badly),
        last => last.map_err(|failure| failure.hint("the last prompt failed")),
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
        match meaning(line, self.is_interactive) {
            Meaning::Empty => return Next::GoOn,
            Meaning::Leave => return Next::Leave(Done::Well),
            Meaning::Help => {
                out_line(&list_for_stdout(help::HELP));
                return Next::GoOn;
            }
            Meaning::Other => {}
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let (command, rest) = words
            .split_first()
            .map_or(("", &[][..]), |(first, rest)| (*first, rest));
        // The rest of the line as it was typed.
        let text = line.strip_prefix(command).unwrap_or_default().trim();
        let done = match command {
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
                self.last = attach_file(Path::new(text), &mut self.attached);
                Ok(())
            }
            "/sessions" => match self.sessions(text).await {
                Ok(Some(id)) if id == session.id => {
                    err_line("this is the session you are in");
                    Ok(())
                }
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
            _ if self.is_interactive && line.starts_with('!') => self.by_hand(session, line).await,
            _ if chat_words::is_refused(line) => {
                self.refused = true;
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
        let text = text + &self.material.drain(..).collect::<String>();
        self.sent = Some((text.clone(), typed.to_owned()));
        let begun = Instant::now();
        self.last = self.send(session, &text).await;
        if let Err(failure) = &self.last {
            err_line(&failure.text(Paint::stderr()));
        }
        if self.is_interactive {
            ring_after(begun);
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
        if self.is_interactive {
            let app = &session.app;
            self.view.set_place(&app.model, &app.workspace);
        }
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

    /// The session to continue: the one that is named by its number or id, or that the person chooses
    /// from the list. `None` for a list without a choice.
    async fn sessions(&mut self, which: &str) -> Result<Option<ConversationId>, Failure> {
        let (config, flags) = (self.config, &self.args.host);
        match which {
            "" if self.is_interactive => {
                resume::chosen(config, flags, self.args.plain, &mut self.signals).await
            }
            "" => {
                resume::list(config, flags).await?;
                out_line("/sessions NUMBER continues one");
                Ok(None)
            }
            which => Ok(Some(resume::named(config, flags, which).await?)),
        }
    }

    /// Runs a command that the person typed.
    async fn by_hand(&mut self, session: &Session, line: &str) -> Result<(), Failure> {
        let Some((command, is_shown)) = by_hand::by_hand(line) else {
            return Ok(());
        };
        let material = by_hand::command(session, &mut self.signals, command, is_shown).await?;
        self.material.extend(material);
        let more = self.material.len().saturating_sub(MATERIAL_MAX);
        if more > 0 {
            self.material.drain(..more);
            err_line(&format!(
                "the model reads the last {MATERIAL_MAX} commands only"
            ));
        }
        Ok(())
    }
}

/// Reads a file and attaches it to the next prompt.
fn attach_file(file: &Path, attached: &mut Vec<Attachment>) -> Result<Done, Failure> {
    match attach::read([&file.to_owned()]) {
        Ok(read) => {
            attached.extend(read);
            let shown = sanitize(&file.display().to_string());
            err_line(&format!("attached to the next prompt: {shown}"));
            Ok(Done::Well)
        }
        Err(failure) => {
            err_line(&failure.text(Paint::stderr()));
            Err(failure)
        }
    }
}

fn print_failure(result: Result<(), Failure>) {
    if let Err(failure) = result {
        err_line(&failure.text(Paint::stderr()));
    }
}
