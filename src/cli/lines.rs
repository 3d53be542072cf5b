//! Where the lines of a chat come from: a line editor at a terminal, else standard input.

use std::{
    io::BufRead,
    os::unix::ffi::OsStrExt as _,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use reedline::{
    DefaultPrompt, DefaultPromptSegment, EditCommand, FileBackedHistory, Highlighter, Reedline,
    Signal, StyledText,
};
use sha2::{Digest as _, Sha256};

use super::{
    complete::{Words, menu},
    continued::{Continued, continues},
    line_keys::{ChatKey, ChatKeys},
    signals::Signals,
    terminal::{Paint, Terminals, err, err_line},
};
use crate::config::Config;

/// A second Ctrl-C at the prompt within this time ends the program, a second Escape takes back.
const TWICE: Duration = Duration::from_secs(2);

/// Number of lines that the editor remembers, also those of earlier chats.
const LINES_REMEMBERED: usize = 1000;

/// A line of input.
pub(super) enum Line {
    Entered(String),
    /// Escape twice: the last prompt is to be taken back.
    Rewind,
    /// The whole output of the last call is to be shown.
    Unfold,
    /// The line is to be written in the person's editor.
    Edit(String),
    /// The image of the clipboard is to be attached.
    Clipboard,
    /// The image of a pasted path is to be attached.
    Image(String),
    Interrupted,
}

/// The source of lines. Reading blocks, so a blocking thread takes the source and returns it with
/// the line.
pub(super) enum Lines {
    Editor(Editor),
    Pipe,
}

/// The line editor of a terminal.
pub(super) struct Editor {
    reads: Box<Reedline>,
    /// Set when a signal ends the prompt: the editor sees it within 100 ms.
    ends: Arc<AtomicBool>,
    continued: Continued,
}

impl Lines {
    pub(super) fn open(
        terminals: Terminals,
        config: &Config,
        workspace: &Path,
        help: &str,
    ) -> Self {
        if !(terminals.stdin && terminals.stderr && terminals.stdout) {
            return Self::Pipe;
        }
        let (ends, continued) = (Arc::new(AtomicBool::new(false)), Continued::default());
        let editor = Reedline::create()
            .use_bracketed_paste(true)
            .with_break_signal(Arc::clone(&ends))
            .with_validator(Box::new(continued.clone()))
            .with_ansi_colors(Paint::stderr().is_on())
            .with_highlighter(Box::new(Plain))
            .with_completer(Box::new(Words::new(help, workspace)))
            .with_menu(menu())
            .with_edit_mode(Box::new(ChatKeys::new()));
        let reads = Box::new(match history(&config.data_dir, workspace) {
            Ok(history) => editor.with_history(Box::new(history)),
            Err(_) => editor,
        });
        Self::Editor(Editor {
            reads,
            ends,
            continued,
        })
    }

    pub(super) fn is_interactive(&self) -> bool {
        matches!(self, Self::Editor(_))
    }

    /// The same lines, of which the next one begins with what was typed ahead.
    pub(super) fn begin_with(mut self, text: Option<String>) -> Self {
        if let (Self::Editor(editor), Some(text)) = (&mut self, text) {
            editor
                .reads
                .run_edit_commands(&[EditCommand::InsertString(text)]);
        }
        self
    }

    /// Waits for a line. A signal to the process ends the wait with [`Line::Interrupted`]; a terminal
    /// has its usual modes again.
    pub(super) async fn next(self, signals: &mut Signals) -> (Option<Line>, Self) {
        let ends = match &self {
            Self::Editor(editor) => {
                // A Ctrl-C that came as the round ended was meant for the round.
                signals.forget_interrupts();
                Some(Arc::clone(&editor.ends))
            }
            Self::Pipe => None,
        };
        let mut read = tokio::task::spawn_blocking(move || self.read());
        let read = tokio::select! {
            biased;
            () = signals.next() => match ends {
                Some(ends) => {
                    ends.store(true, Ordering::Relaxed);
                    let (_, lines) = read.await.unwrap_or((None, Self::Pipe));
                    return (Some(Line::Interrupted), lines);
                }
                // The read of a pipe cannot be cancelled; it ends with the program.
                None => return (Some(Line::Interrupted), Self::Pipe),
            },
            read = &mut read => read,
        };
        read.unwrap_or((None, Self::Pipe))
    }

    fn read(mut self) -> (Option<Line>, Self) {
        let line = match &mut self {
            Self::Pipe => piped(&mut std::io::stdin().lock()).map(Line::Entered),
            Self::Editor(editor) => edit(editor),
        };
        (line, self)
    }
}

/// Reads a line of piped input, with those that go on with it.
fn piped(input: &mut impl BufRead) -> Option<String> {
    let mut text = String::new();
    loop {
        let before = text.len();
        match input.read_line(&mut text) {
            Ok(1..) => {}
            Ok(0) | Err(_) => return Some(text).filter(|_| before > 0),
        }
        let line = text.trim_end_matches(['\r', '\n']);
        if !continues(line) || line.len() == text.len() {
            return Some(text);
        }
        text.truncate(line.len() - 1);
        text.push('\n');
    }
}

fn edit(editor: &mut Editor) -> Option<Line> {
    let Editor {
        reads: editor,
        continued,
        ..
    } = editor;
    let prompt = DefaultPrompt::new(DefaultPromptSegment::Empty, DefaultPromptSegment::Empty);
    let is_again = |before: Option<Instant>| before.is_some_and(|at| at.elapsed() < TWICE);
    let (mut interrupted, mut escaped): (Option<Instant>, Option<Instant>) = (None, None);
    loop {
        match editor.read_line(&prompt) {
            Ok(Signal::Success(line)) => {
                let _ = editor.sync_history(); // Now, so that it outlives a closed terminal.
                return Some(Line::Entered(continued.joined(line)));
            }
            Ok(Signal::ExternalBreak(_)) => return Some(left(Line::Interrupted)),
            Ok(Signal::CtrlC) if is_again(interrupted) => return Some(Line::Interrupted),
            Ok(Signal::CtrlC) => {
                interrupted = Some(Instant::now());
                err_line("once more to leave");
            }
            Ok(Signal::HostCommand(command)) => match ChatKey::of(&command) {
                // In a line, Escape only closes what the editor has opened.
                Some(ChatKey::Escape) if !editor.current_buffer_contents().is_empty() => {}
                Some(ChatKey::Escape) if is_again(escaped) => return Some(left(Line::Rewind)),
                Some(ChatKey::Escape) => {
                    escaped = Some(Instant::now());
                    err_line("\nonce more to take the last prompt back");
                }
                Some(ChatKey::Unfold) => return Some(left(Line::Unfold)),
                Some(ChatKey::Clipboard) => return Some(left(Line::Clipboard)),
                Some(ChatKey::Image(pasted)) => return Some(left(Line::Image(pasted))),
                Some(ChatKey::Editor) => {
                    let text = editor.current_buffer_contents().to_owned();
                    editor.run_edit_commands(&[EditCommand::Clear]);
                    return Some(left(Line::Edit(text)));
                }
                None => {}
            },
            Ok(_) | Err(_) => return None,
        }
    }
}

/// Leaves the row of the prompt, below which something is printed.
fn left(line: Line) -> Line {
    err("\n");
    line
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

/// The lines that were typed in earlier chats about this folder, in a file that only this user can
/// read. Chats with conversations of servers have no folder, and a file of their own.
fn history(data_dir: &Path, workspace: &Path) -> std::io::Result<FileBackedHistory> {
    let file = if workspace.as_os_str().is_empty() {
        data_dir.join("chat_history")
    } else {
        let hash = Sha256::digest(workspace.as_os_str().as_bytes());
        let name: String = hash
            .iter()
            .take(16)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let folder = data_dir.join("chat_histories");
        crate::private::make_folder(&folder)?;
        folder.join(name)
    };
    crate::private::file().create(true).open(&file)?;
    FileBackedHistory::with_file(LINES_REMEMBERED, file).map_err(std::io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piped_line_goes_on_behind_one_backslash() {
        let mut input = "one\\\ntwo\\\r\nthree\nC:\\\\\n\nlast\\".as_bytes();
        let all: Vec<String> = std::iter::from_fn(|| piped(&mut input)).collect();

        assert_eq!(all, ["one\ntwo\nthree\n", "C:\\\\\n", "\n", "last\\"]);
    }
}
