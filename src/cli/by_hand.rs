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

/// Characters of a command's output that the model reads.
const OUTPUT_CHARS: usize = 16_000;

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

/// A command line that begins with `!`, and whether the model reads what it prints: `!!` keeps it
/// from the model.
pub(super) fn by_hand(line: &str) -> Option<(&str, bool)> {
    let command = line.strip_prefix('!')?;
    Some(match command.strip_prefix('!') {
        Some(command) => (command.trim(), false),
        None => (command.trim(), true),
    })
}

/// Runs a command and prints its output. Returns it for the model, if `is_shown`.
pub(super) async fn command(
    session: &Session,
    signals: &mut Signals,
    command: &str,
    is_shown: bool,
) -> Result<Option<String>, Failure> {
    if command.is_empty() {
        return Err(Failure::usage("which command?").hint("!ls runs one in the sandbox"));
    }
    let Some(result) = call(session, signals, "bash", &json!({ "command": command })).await? else {
        err_line("interrupted");
        return Ok(None);
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
    let who = match is_shown {
        true => "the model reads it with the next prompt",
        false => "the model does not see this",
    };
    let time = paint.dim(&format!("({}; {who})", seconds(result.duration_ms)));
    err_line(&format!("  {mark} {} {time}", sanitize(command)));
    Ok(is_shown.then(|| material(command, text)))
}

/// A command and its output as the model reads them behind a prompt. Of a long output it reads the
/// end.
fn material(command: &str, output: &str) -> String {
    let (command, output) = (sanitize(command), sanitize(output));
    let chars = output.chars().count();
    let cut = chars.saturating_sub(OUTPUT_CHARS);
    let shown: String = output.chars().skip(cut).collect();
    let (first, last) = (fence(&command), fence(&shown));
    let left_out = match cut {
        0 => String::new(),
        _ => format!(", without its first {cut} characters"),
    };
    format!(
        "\n\nThe user ran this command by hand before this prompt:\n\n{first}\n{command}\n{first}\n\n\
         Its output{left_out}:\n\n{last}\n{shown}\n{last}"
    )
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
    fn two_marks_keep_a_command_from_the_model() {
        assert_eq!(by_hand("! ls -l"), Some(("ls -l", true)));
        assert_eq!(by_hand("!!ls"), Some(("ls", false)));
        assert_eq!(by_hand("ls!"), None);
    }

    #[test]
    fn what_the_model_reads_of_a_command_is_marked_bounded_and_hides_nothing() {
        let text = material("ls", "a\u{1b}[2J\n```\nb");
        assert_eq!(
            text,
            "\n\nThe user ran this command by hand before this prompt:\n\n```\nls\n```\n\n\
             Its output:\n\n````\na\\u{1b}[2J\n```\nb\n````"
        );

        let long = material("ls", &format!("{}end", "x".repeat(OUTPUT_CHARS)));
        assert!(long.contains("without its first 3 characters") && long.contains("xend\n"));
    }

    #[test]
    fn a_file_does_not_end_its_own_fence() {
        assert_eq!(fence("text"), "```");
        assert_eq!(fence("```\n  ````rust\n"), "`````");
    }
}
