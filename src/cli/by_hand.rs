//! Calls of tools that the person of a chat makes: `!command` runs in the sandbox, `@file` reads a
//! file for the prompt. The model is not asked, and the conversation does not store the calls.

use std::{
    fmt::Write as _,
    path::{Component, Path},
};

use callboard_actors::{
    chat::RawJson,
    conversation::round::rules::CallCheck,
    ids::{CallKey, Seq},
    journal::ToolExecutionResult,
    limits::CANCEL_GRACE,
    ports::Progress,
    tool_executor::{LoneCall, ToolInvocationRequest, call_once},
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{
    failure::Failure,
    session::{Session, scope},
    signals::Signals,
    terminal::{Paint, err_line, out_line, sanitize},
    view::seconds,
};

/// Files that one prompt can name.
const FILES_MAX: usize = 20;

/// Makes one call with all checks but the approval: the person asked for it. `None` if the person
/// interrupted it.
async fn call(
    session: &Session,
    signals: &mut Signals,
    name: &str,
    arguments: &serde_json::Value,
) -> Result<Option<ToolExecutionResult>, Failure> {
    let setup = session.app.setup().clone();
    let scope = scope(&session.id)?;
    let Some(tool) = setup.tools.get(name).cloned() else {
        return Err(Failure::usage(format!("this chat has no tool `{name}`"))
            .hint("/tools lists its tools"));
    };
    let input = RawJson::of(arguments)
        .map_err(|error| Failure::work(format!("the arguments are {error}")))?;
    let (spec, input, level) = match setup.check_call(&scope, name, &input) {
        CallCheck::Ready {
            spec,
            input: replaced,
            level,
            ..
        } => (spec, replaced.unwrap_or(input), level),
        CallCheck::Refused(error) => return Err(Failure::work(error.to_string())),
    };
    let key = CallKey {
        scope: scope.clone(),
        seq: Seq(0),
        index: 0,
    };
    let request =
        ToolInvocationRequest::from_spec(&spec, "by_hand".to_owned(), input).output_level(level);
    let cancel = CancellationToken::new();
    let running = call_once(
        LoneCall { key, tool, request },
        session.app.host.environment(&scope),
        cancel.clone(),
        Progress::silent(),
    );
    tokio::pin!(running);
    tokio::select! {
        biased;
        () = signals.next() => {
            // Cancelling makes the tool end its processes.
            cancel.cancel();
            let _ = tokio::time::timeout(CANCEL_GRACE, &mut running).await;
            Ok(None)
        }
        outcome = &mut running => Ok(Some(outcome)),
    }
}

/// Runs a command and prints its output.
pub(super) async fn command(
    session: &Session,
    signals: &mut Signals,
    command: &str,
) -> Result<(), Failure> {
    let Some(result) = call(session, signals, "bash", &json!({ "command": command })).await? else {
        err_line("interrupted");
        return Ok(());
    };
    let paint = Paint::stderr();
    let text = result.observation.trim_end();
    let failed =
        result.is_error || text.starts_with("[exit status ") || text.starts_with("[killed");
    // Colors too: a file could show a line as Callboard's own.
    out_line(&sanitize(text));
    let mark = match failed {
        true => paint.red("✗"),
        false => paint.green("✓"),
    };
    let time = paint.dim(&format!(
        "({}; the model does not see this)",
        seconds(result.duration_ms)
    ));
    err_line(&format!("  {mark} {} {time}", sanitize(command)));
    Ok(())
}

/// Appends the files that the prompt names as `@path`, as the tool `file_read` shows them. A word
/// that names no file of the workspace stays as it is. `None` if the person interrupted it.
pub(super) async fn with_files(
    session: &Session,
    signals: &mut Signals,
    prompt: &str,
) -> Result<Option<String>, Failure> {
    let mut text = prompt.to_owned();
    let is_file = |path: &str| {
        let mut parts = Path::new(path).components();
        let is_below = parts.all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        is_below && session.app.workspace.join(path).is_file()
    };
    for path in named(prompt, is_file) {
        let Some(result) = call(session, signals, "file_read", &json!({ "path": path })).await?
        else {
            return Ok(None);
        };
        if result.is_error {
            let why = result.error_message.unwrap_or(result.observation);
            return Err(
                Failure::work(format!("@{path} cannot be read: {}", why.trim()))
                    .hint("the prompt was not sent"),
            );
        }
        let contents = result.observation.trim_end();
        let fence = fence(contents);
        // Writing to memory cannot fail.
        let _ = write!(text, "\n\n`{path}`:\n\n{fence}\n{contents}\n{fence}");
        err_line(&Paint::stderr().dim(&format!("  @{} is sent with the prompt", sanitize(&path))));
    }
    Ok(Some(text))
}

/// The files that a prompt names, each once.
fn named(prompt: &str, is_file: impl Fn(&str) -> bool) -> Vec<String> {
    let mut paths: Vec<String> = Vec::new();
    for word in prompt.split_whitespace() {
        let Some(path) = word.strip_prefix('@') else {
            continue;
        };
        let trimmed = path.trim_end_matches([',', '.', ';', ':', '?', '!', ')']);
        let path = [path, trimmed]
            .into_iter()
            .find(|path| !path.is_empty() && is_file(path));
        if let Some(path) = path
            && !paths.iter().any(|known| known == path)
            && paths.len() < FILES_MAX
        {
            paths.push(path.to_owned());
        }
    }
    paths
}

/// A fence that does not occur in the text.
fn fence(text: &str) -> String {
    let longest = text
        .lines()
        .map(|line| line.trim_start().chars().take_while(|c| *c == '`').count())
        .max()
        .unwrap_or(0);
    "`".repeat(longest.max(2) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_names_the_files_that_exist() {
        let is_file = |path: &str| ["a.rs", "src/b.rs", "odd."].contains(&path);

        assert_eq!(
            named(
                "Compare @a.rs, @src/b.rs? and @a.rs with @odd. not me@a.rs or @Override @",
                is_file
            ),
            ["a.rs", "src/b.rs", "odd."]
        );
    }

    #[test]
    fn a_file_does_not_end_its_own_fence() {
        assert_eq!(fence("text"), "```");
        assert_eq!(fence("```\n  ````rust\n"), "`````");
    }
}
