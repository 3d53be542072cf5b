//! Lines of a chat that mean the same in every chat: leaving, help, and commands that do not exist.

use super::terminal::{err_line, sanitize};

/// What a line means, as far as all chats agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    Empty,
    Leave,
    Help,
    /// A command of one of the chats, or a prompt.
    Other,
}

/// The meaning of a trimmed line. A person may leave out the slash of `/quit`, `/exit` and `/help`; in
/// piped input, such a word is a prompt.
pub(super) fn meaning(line: &str, is_interactive: bool) -> Meaning {
    match line.split_whitespace().next().unwrap_or_default() {
        "" => Meaning::Empty,
        "/quit" | "/exit" => Meaning::Leave,
        "/help" => Meaning::Help,
        _ if !is_interactive => Meaning::Other,
        _ => match line {
            "exit" | "quit" => {
                err_line(&format!("`{line}` leaves the chat, as /{line} does"));
                Meaning::Leave
            }
            "help" => Meaning::Help,
            _ => Meaning::Other,
        },
    }
}

/// Whether the line is meant as a command that its chat does not have; says so. A path has a second
/// slash or a dot in its first word, and is a prompt.
pub(super) fn is_refused(line: &str) -> bool {
    let command = line.split_whitespace().next().unwrap_or_default();
    let is_command = command.strip_prefix('/').is_some_and(|name| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    });
    if is_command {
        err_line(&format!(
            "there is no command {}; /help lists the commands",
            sanitize(command)
        ));
    }
    is_command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_quit_and_help_alone_are_commands_at_a_terminal_only() {
        let of = |line| [true, false].map(|is_interactive| meaning(line, is_interactive));

        for line in ["/quit", "/exit", "/exit now"] {
            assert_eq!(of(line), [Meaning::Leave; 2], "{line}");
        }
        for line in ["exit", "quit"] {
            assert_eq!(of(line), [Meaning::Leave, Meaning::Other], "{line}");
        }
        assert_eq!(of("help"), [Meaning::Help, Meaning::Other]);
        assert_eq!(of("/help"), [Meaning::Help; 2]);
        for line in ["exit 1", "help me", "Quit", "!exit", "/model"] {
            assert_eq!(of(line), [Meaning::Other; 2], "{line}");
        }
        assert_eq!(of(""), [Meaning::Empty; 2]);
    }

    #[test]
    fn a_command_that_does_not_exist_is_refused_with_words_behind_it_too() {
        for line in ["/nope", "/nope with words", "/model-x y"] {
            assert!(is_refused(line), "{line}");
        }
        for line in ["/etc/passwd", "/a.txt", "/", "nope", "//x", "explain /nope"] {
            assert!(!is_refused(line), "{line}");
        }
    }
}
