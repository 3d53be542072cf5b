//! The chat of `--attach`: its lines go to a conversation of a server.

use std::path::Path;

use callboard_actors::ids::ConversationId;

use super::{ChatArgs, exit_of_pipe, shown};
use crate::{
    cli::{
        attached::{self, Attached, Line as Handled},
        editor::edited,
        failure::{Done, Failure},
        lines::{Line, Lines},
        remote::ServerFlags,
        signals::Signals,
        terminal::{Paint, Terminals, err_line},
        typing::Typing,
        view::View,
    },
    config::Config,
};

/// A chat with a conversation of a server.
pub(super) async fn attach_to(
    config: &Config,
    args: ChatArgs,
    id: ConversationId,
) -> Result<Done, Failure> {
    let flags = ServerFlags::new(args.server.clone(), args.key.clone());
    let remote = flags.remote(false)?.ok_or_else(|| {
        Failure::usage("--attach needs a server").hint("add --server URL, or set CALLBOARD_SERVER")
    })?;
    let attached = Attached { remote, id };
    let terminals = Terminals::detect();
    let mut signals = Signals::listen();
    if !args.quiet {
        attached.announce().await?;
    }
    let mut lines = Lines::open(terminals, config, Path::new(""), attached::HELP);
    let shows = Terminals {
        stdout: terminals.stdout && !args.quiet,
        stderr: terminals.stderr && !args.quiet,
        ..terminals
    };
    let mut view = View::new(false, shows)
        .still_lines(args.plain)
        .many_answers()
        .notes(!args.quiet)
        .edits_in(&config.data_dir);
    let mut typing = Typing::default();
    let mut last = Ok(Done::Well);
    let mut refused = false;
    let mut begun: Option<String> = None;
    loop {
        let line = match typing.next() {
            Some(line) => shown(line),
            None => {
                let (line, returned) = lines
                    .begin_with(typing.take_unfinished().or(begun.take()))
                    .next(&mut signals)
                    .await;
                lines = returned;
                match line {
                    Some(Line::Entered(line)) => line,
                    Some(Line::Interrupted) => return Ok(Done::Interrupted),
                    Some(key) => {
                        begun = key_pressed(config, &attached, &mut view, key).await;
                        continue;
                    }
                    None => break,
                }
            }
        };
        if lines.is_interactive() && !args.plain {
            typing.listen();
        }
        let done = attached
            .line(
                line.trim(),
                lines.is_interactive(),
                &mut view,
                &mut signals,
                &mut typing,
            )
            .await;
        typing.pause();
        let done = match done {
            Handled::Leave => break,
            Handled::Refused => {
                refused = true;
                continue;
            }
            Handled::Done(done) => done,
        };
        if let Err(failure) = &done {
            view.still();
            err_line(&failure.text(Paint::stderr()));
        }
        last = done;
    }
    // The exit code matters to a script; a person has seen the error already.
    if lines.is_interactive() {
        return Ok(Done::Well);
    }
    exit_of_pipe(last, refused)
}

/// Does what a key at the prompt asks for. Returns what the next line begins with.
async fn key_pressed(
    config: &Config,
    attached: &Attached,
    view: &mut View,
    key: Line,
) -> Option<String> {
    let done = match key {
        Line::Unfold => attached.unfold(view).await,
        Line::Edit(text) => match edited(config, &text).await {
            Ok(saved) => return Some(saved),
            Err(failure) => {
                err_line(&failure.text(Paint::stderr()));
                return Some(text);
            }
        },
        Line::Image(pasted) => return Some(pasted),
        Line::Entered(_) | Line::Interrupted => Ok(()),
        Line::Rewind | Line::Clipboard => {
            err_line("not in a chat with a conversation of a server; see /help");
            Ok(())
        }
    };
    if let Err(failure) = done {
        err_line(&failure.text(Paint::stderr()));
    }
    None
}
