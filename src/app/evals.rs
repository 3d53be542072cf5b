//! The host of an evaluation: it offers no tools of its own, because each trial brings those over
//! its workspace.

use std::sync::Arc;

use callboard_actors::{ports::LlmProvider, subagent::CREATE_SUBAGENT};

use super::{
    App, AppError, Chosen, Overrides, Purpose, Sessions, choose_provider,
    masked::masked,
    nearest, sandbox_mode, start_with,
    tools::{command_options, masker},
};
use crate::{
    config::Config,
    mask::Masker,
    observe::Redactor,
    sandbox::{Mode, Options},
};

/// The tools that a trial can offer.
const TRIAL_TOOLS: &[&str] = &[
    "bash",
    "file_edit",
    "file_list",
    "file_read",
    "grep_search",
    "read_more",
    "think",
    CREATE_SUBAGENT,
];

/// How commands of trials run.
pub(crate) struct TrialSandbox {
    pub(crate) mode: Mode,
    pub(crate) options: Options,
    pub(crate) masker: Masker,
}

/// The sandbox of the configuration and the flags.
pub(crate) fn trial_sandbox(config: &Config, overrides: &Overrides) -> TrialSandbox {
    TrialSandbox {
        mode: sandbox_mode(overrides.sandbox.unwrap_or(config.sandbox)),
        options: command_options(config),
        masker: masker(config),
    }
}

/// Builds the host for the trials.
///
/// # Errors
/// As [`super::start`].
pub(crate) async fn eval_host(
    config: &Config,
    overrides: &Overrides,
    sessions: &Sessions,
    chosen: Chosen,
) -> Result<App, AppError> {
    let bare = Overrides {
        tools: Some(Vec::new()),
        skills: None,
        ..overrides.clone()
    };
    start_with(config, &bare, sessions, chosen).await
}

/// The provider of a judge, its name and its model. Keys are masked in its answers.
///
/// # Errors
/// The provider's configuration is not usable.
pub(crate) fn judge(
    config: &Config,
    overrides: &Overrides,
) -> Result<(Arc<dyn LlmProvider>, String, String), AppError> {
    let chosen = choose_provider(config, overrides, Purpose::Calls)?;
    let redactor = Redactor::new(config.masked_texts());
    Ok((
        masked(chosen.provider, &redactor),
        chosen.name,
        chosen.model,
    ))
}

/// Refuses names of tools that a trial cannot offer.
///
/// # Errors
/// [`AppError::NoSuchTool`].
pub(crate) fn check_trial_tools(tools: Option<&Vec<String>>) -> Result<(), AppError> {
    let unknown = tools
        .into_iter()
        .flatten()
        .find(|name| !TRIAL_TOOLS.contains(&name.as_str()));
    match unknown {
        None => Ok(()),
        Some(name) => Err(AppError::NoSuchTool {
            name: name.clone(),
            nearest: nearest(name, TRIAL_TOOLS.iter().copied()),
        }),
    }
}
