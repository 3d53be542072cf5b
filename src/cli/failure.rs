//! How a command ends: an exit code, and for a failure one clear line with a hint.

use std::process::ExitCode;

use callboard_actors::{
    conversation::ConversationError,
    host::{OutcomeError, SendError},
    ids::InvalidId,
    ports::{DocumentTextError, StoreError},
    stream::Failure as RoundFailure,
};

use super::terminal::{Paint, err_line};
use crate::{app::AppError, config::ConfigError, visible::visible_line};

/// How a command ended that returns no [`Failure`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Done {
    /// The work is done: exit code 0.
    Well,
    /// The work failed or was cut, and the command has already reported it: exit code 1.
    Badly,
    /// A person interrupted it: exit code 130.
    Interrupted,
}

impl Done {
    pub(super) fn code(self) -> ExitCode {
        ExitCode::from(match self {
            Self::Well => 0,
            Self::Badly => 1,
            Self::Interrupted => 130,
        })
    }
}

/// An error of a command, and its exit code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    line: String,
    hint: Option<String>,
    exit: u8,
}

impl Failure {
    /// The work failed, or a named thing does not exist: exit code 1.
    pub(super) fn work(line: impl Into<String>) -> Self {
        Self {
            line: line.into(),
            hint: None,
            exit: 1,
        }
    }

    /// Wrong usage or configuration: exit code 2.
    pub(super) fn usage(line: impl Into<String>) -> Self {
        Self {
            line: line.into(),
            hint: None,
            exit: 2,
        }
    }

    /// Adds advice for the user, printed after the error.
    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The conversation does not exist; suggests the nearest existing id.
    pub(super) fn no_session(id: &str, nearest: Option<String>) -> Self {
        let failure = Self::work(format!("session `{id}` not found"));
        match nearest {
            Some(nearest) => failure.hint(format!("did you mean `{nearest}`?")),
            None => failure.hint("`callboard sessions list` shows all sessions"),
        }
    }

    /// Prints the line and returns the exit code.
    pub(super) fn report(&self) -> ExitCode {
        err_line(&self.text(Paint::stderr()));
        ExitCode::from(self.exit)
    }

    /// The failure as one line without the word `error`, for other programs.
    pub(super) fn plain(&self) -> String {
        let line = one_line(&self.line);
        match &self.hint {
            Some(hint) => format!("{line} (hint: {})", one_line(hint)),
            None => line,
        }
    }

    /// Formats the failure as one line, whatever its parts contain.
    pub(super) fn text(&self, paint: Paint) -> String {
        let line = one_line(&self.line);
        match &self.hint {
            Some(hint) => format!(
                "{} {line} ({}: {})",
                paint.red("error:"),
                paint.dim("hint"),
                one_line(hint)
            ),
            None => format!("{} {line}", paint.red("error:")),
        }
    }

    /// Converts the failure of a round, with advice for its code.
    pub(super) fn round(failure: &RoundFailure) -> Self {
        let line = Self::work(&failure.message);
        let seconds = failure.retry_after_ms.map(|ms| ms.div_ceil(1000));
        match (failure.code.as_str(), seconds) {
            ("provider_auth", _) => line.hint("check the key: ANTHROPIC_API_KEY, OPENAI_API_KEY, GEMINI_API_KEY, or `api_key_env` in callboard.toml"),
            (_, Some(seconds)) => line.hint(format!("try again in {seconds} s")),
            ("provider_rate_limited" | "provider_server_error", None) => line.hint("try again later; the session keeps all messages"),
            ("provider_quota_exhausted", _) => line.hint("waiting does not help: check the account's plan and limits"),
            ("provider_connection" | "provider_timeout", _) => line.hint("is the server running, and --base-url right?"),
            ("provider_untrusted", _) => line.hint("is the address right? `ca_file` in callboard.toml names the authorities of a private server"),
            ("provider_protocol", _) => {
                line.hint("does --base-url name an API? without /v1 for Anthropic, with it for OpenAI; otherwise try again")
            }
            ("provider_invalid_request", _) => line.hint("check --model and --base-url"),
            ("budget", _) => line.hint("allow more with --budget-tokens or --budget-usd"),
            ("deadline", _) => line.hint("give more time with --timeout"),
            ("store_unavailable", _) => line.hint("free some disk space or choose another file with --db; acknowledged messages are safe"),
            (code, _) => line.hint(format!("`callboard explain {code}` says what to do")),
        }
    }
}

fn one_line(text: &str) -> String {
    visible_line(text, usize::MAX)
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<InvalidId> for Failure {
    fn from(error: InvalidId) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<AppError> for Failure {
    fn from(error: AppError) -> Self {
        let failure = if error.is_usage() {
            Self::usage(error.to_string())
        } else {
            Self::work(error.to_string())
        };
        match error.hint() {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::work(error.to_string())
    }
}

impl From<SendError> for Failure {
    fn from(error: SendError) -> Self {
        let failure = Self::work(error.to_string());
        match &error {
            SendError::InvalidId(_) | SendError::BadPrompt(_) | SendError::Attachment(_) | SendError::NoPrice { .. } | SendError::Parameter(_) | SendError::NoThinking(_) => {
                Self::usage(error.to_string())
            }
            SendError::DocumentText(DocumentTextError::NoText) => {
                failure.hint("attach its pages as images, or choose a model that takes PDFs: --provider anthropic")
            }
            SendError::DocumentText(_) => {
                failure.hint("choose a model that takes PDFs: --provider anthropic, or `shows` in callboard.toml")
            }
            SendError::Conversation(ConversationError::InUse) => failure.hint("end the other process, or use another --session"),
            SendError::Conversation(ConversationError::Store(StoreError::Unavailable { .. })) => {
                failure.hint("is the disk full, or the file read-only? choose another with --db FILE")
            }
            _ => failure,
        }
    }
}

impl From<OutcomeError> for Failure {
    fn from(error: OutcomeError) -> Self {
        match &error {
            OutcomeError::Failed { end } => match &end.error {
                Some(failure) => Self::round(failure),
                None => Self::work(error.to_string()),
            },
            OutcomeError::Ended { failure } => Self::round(failure),
            _ => Self::work(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line_with_its_hint() {
        let failure = Failure::usage("two\nlines\tand \u{1b}[31mred").hint("do\nthis");

        assert_eq!(
            failure.text(Paint::plain()),
            "error: two lines and \\u{1b}[31mred (hint: do this)"
        );
    }
}
