//! The chat of `--attach`: its lines go to a conversation of a server.

use std::path::Path;

use callboard_actors::ids::ConversationId;

use super::{ChatArgs, shown};
use crate::{
    cli::{
        attached::{self, Attached},
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
        .edits_in(&config.data_dir);
    let mut typing = Typing::default();
    let mut last = Ok(Done::Well);
    loop {
        let line = match typing.next() {
            Some(line) => shown(line),
            None => {
                let (line, returned) = lines.begin_with(typing.take_unfinished()).next().await;
                lines = returned;
                match line {
                    Some(Line::Entered(line)) => line,
                    Some(Line::Rewind) => {
                        err_line("the prompts of a server's conversation stay; see /help");
                        continue;
                    }
                    Some(Line::Interrupted) => return Ok(Done::Interrupted),
                    None => break,
                }
            }
        };
        if lines.is_interactive() && !args.plain {
            typing.listen();
        }
        let done = attached
            .line(line.trim(), &mut view, &mut signals, &mut typing)
            .await;
        typing.pause();
        let Some(done) = done else { break };
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
    last.map_err(|failure| failure.hint("the last prompt failed"))
}
