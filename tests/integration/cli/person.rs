//! What a person sees and types: questions show everything, answers count only if they were typed
//! after the question, and no output controls the terminal.

use std::{io::Write as _, path::Path};

use serde_json::json;

use super::{Home, Ran};
use crate::support::model_server::{ModelServer, Reply, anthropic_text, anthropic_tool};

const TERMINAL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/integration/support/terminal.py"
);

/// Characters that control a terminal or are invisible, and some ordinary text.
const NASTY: &str = "n\u{1b}]0;PWN\u{7}\u{1b}[2J\u{9b}31m\u{202e}txt\u{202c}\u{2066}\u{200b}\u{e0041}\u{ad}\u{feff}\u{3164}é";

/// Runs a command on a terminal; prints a note and returns `None` if there is no Python to create
/// one.
fn at_terminal(home: &Home, test: &str, steps: &[(&str, u32, &str)], args: &[&str]) -> Option<Ran> {
    if !Path::new("/usr/bin/python3").exists() {
        let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: no python3");
        return None;
    }
    let all = [&[env!("CARGO_BIN_EXE_callboard")], args].concat();
    started_at_terminal(home, steps, &all)
}

fn started_at_terminal(home: &Home, steps: &[(&str, u32, &str)], args: &[&str]) -> Option<Ran> {
    let mut command = std::process::Command::new("python3");
    command
        .arg(TERMINAL)
        .arg(json!(steps).to_string())
        .args(args);
    command
        .env("TERM", "xterm")
        .current_dir(home.work())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    Some(Ran::of(args, home.dress(&mut command).spawn().unwrap()))
}

/// A reply of a text and tool calls.
fn turn(text: &str, tools: &[(&str, serde_json::Value)]) -> Reply {
    let mut events = anthropic_text(text);
    let end = events.split_off(4);
    for (n, (name, input)) in tools.iter().enumerate() {
        let call: Vec<String> = anthropic_tool(name, input)
            .into_iter()
            .skip(1)
            .take(3)
            .collect();
        events.extend(call.iter().map(|event| {
            event
                .replace("\"index\":0", &format!("\"index\":{}", n + 1))
                .replace("\"t1\"", &format!("\"t{n}\""))
        }));
    }
    let stop = if tools.is_empty() {
        "end_turn"
    } else {
        "tool_use"
    };
    events.extend(end.iter().map(|event| event.replace("end_turn", stop)));
    Reply::events(events)
}

fn create(path: &str) -> serde_json::Value {
    json!({"path": path, "old_text": "", "new_text": "x"})
}

fn asking(url: &str) -> Vec<&str> {
    vec![
        "run",
        "--provider",
        "anthropic",
        "--base-url",
        url,
        "--sandbox",
        "none",
        "--approve",
        "ask",
        "Work.",
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_typed_before_the_question_is_none() {
    let test = "an_answer_that_was_typed_before_the_question_is_none";
    let home = Home::new();
    let late = Reply::events(anthropic_tool("file_edit", &create("ahead.txt")))
        .delay(std::time::Duration::from_millis(700));
    let server = ModelServer::start([late, Reply::events(anthropic_text("Done."))]).await;
    let url = server.url();

    // The first is typed while the model works, the second as the question appears.
    let steps = [
        ("provider anthropic", 100, "y\n"),
        ("[N]o", 0, "y\n"),
        ("", 1500, "n\n"),
    ];
    let Some(ran) = at_terminal(&home, test, &steps, &asking(&url)) else {
        return;
    };

    assert!(
        ran.out.contains("[N]o") && ran.out.contains("Done."),
        "{ran:?}"
    );
    assert!(!home.work().join("ahead.txt").exists(), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_allowed_is_seen_to_run() {
    let test = "a_call_that_was_allowed_is_seen_to_run";
    let home = Home::new();
    let slow = Reply::events(anthropic_tool("bash", &json!({"command": "sleep 1"})));
    let server = ModelServer::start([slow, Reply::events(anthropic_text("Done."))]).await;
    let url = server.url();

    let args: Vec<&str> = asking(&url)
        .into_iter()
        .map(|arg| if arg == "none" { "local" } else { arg })
        .collect();
    let Some(ran) = at_terminal(&home, test, &[("[N]o", 900, "y\n")], &args) else {
        return;
    };

    let (_, after) = ran.out.split_once("[N]o").unwrap();
    let (while_it_ran, _) = after.split_once('✓').unwrap_or_else(|| panic!("{ran:?}"));
    assert!(while_it_ran.contains("sleep 1"), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn always_is_for_the_folder_in_which_it_was_said() {
    let test = "always_is_for_the_folder_in_which_it_was_said";
    let home = Home::new();
    std::fs::create_dir(home.work().join("other")).unwrap();
    let edits = |text| [Reply::events(text), Reply::events(anthropic_text("Done."))];
    let edit = || anthropic_tool("file_edit", &create("one.txt"));
    let server = ModelServer::start(edits(edit()).into_iter().chain(edits(edit()))).await;
    let url = server.url();

    let mut args = asking(&url);
    args.extend(["--session", "s1"]);
    let Some(here) = at_terminal(&home, test, &[("[N]o", 900, "a\n")], &args) else {
        return;
    };
    args.extend(["--workspace", "other"]);
    let there = at_terminal(&home, test, &[("[N]o", 900, "n\n")], &args).unwrap();

    assert!(home.work().join("one.txt").exists(), "{here:?}");
    assert!(
        there.out.contains("[N]o") && there.out.contains("Done."),
        "{there:?}"
    );
    assert!(!home.work().join("other/one.txt").exists(), "{there:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_question_of_a_round_needs_its_own_answer() {
    let test = "every_question_of_a_round_needs_its_own_answer";
    let home = Home::new();
    let two = turn(
        "Two.",
        &[
            ("file_edit", create("one.txt")),
            ("file_edit", create("two.txt")),
        ],
    );
    let server = ModelServer::start([two, Reply::events(anthropic_text("Done."))]).await;
    let url = server.url();

    // Two answers at once are none.
    let steps = [
        ("[N]o", 900, "y\ny\n"),
        ("by itself", 900, "y\n"),
        ("two.txt? [y]es", 900, "n\n"),
    ];
    let Some(ran) = at_terminal(&home, test, &steps, &asking(&url)) else {
        return;
    };

    assert_eq!(ran.out.matches("Allow file_edit").count(), 2, "{ran:?}");
    assert!(
        home.work().join("one.txt").exists() && !home.work().join("two.txt").exists(),
        "{ran:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_pasted_or_typed_for_something_else_answers_no_question() {
    let test = "what_is_pasted_or_typed_for_something_else_answers_no_question";
    let home = Home::new();
    let edit = Reply::events(anthropic_tool("file_edit", &create("one.txt")));
    let server = ModelServer::start([edit, Reply::events(anthropic_text("Done."))]).await;
    let url = server.url();

    let mut steps = vec![
        ("[N]o", 900, "have a look\nyes\n"),
        ("by itself", 900, "\u{1b}[A"),
    ];
    let typed = ["y", "e", "s", " ", "a", "l", "l"];
    steps.extend(typed.map(|key| ("", 200, key)));
    steps[2].1 = 900;
    steps.push(("", 1200, "n"));
    let Some(ran) = at_terminal(&home, test, &steps, &asking(&url)) else {
        return;
    };

    assert!(
        ran.out.contains("Done.") && !home.work().join("one.txt").exists(),
        "{ran:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_stays_the_last_line_until_it_is_answered() {
    let test = "a_question_stays_the_last_line_until_it_is_answered";
    let home = Home::new();
    std::fs::write(home.work().join("a.txt"), "text").unwrap();
    let read = || ("file_read", json!({"path": "a.txt"}));
    let calls = [("file_edit", create("one.txt")), read(), read(), read()];
    let server =
        ModelServer::start([turn("All.", &calls), Reply::events(anthropic_text("Done."))]).await;
    let url = server.url();

    let Some(ran) = at_terminal(&home, test, &[("[N]o", 900, "y")], &asking(&url)) else {
        return;
    };

    let (_, asked) = ran.out.split_once("one.txt? [y]es, ").unwrap();
    let (_, after) = asked.split_once("[d]eny with words, [N]o ").unwrap();
    assert!(after.starts_with("yes\r\n"), "{ran:?}");
    assert_eq!(ran.out.matches('✓').count(), 4, "nothing is lost: {ran:?}");
    assert!(home.work().join("one.txt").exists(), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_that_a_signal_ends_leaves_the_modes_of_the_terminal_as_they_were() {
    let test = "a_question_that_a_signal_ends_leaves_the_modes_of_the_terminal_as_they_were";
    let home = Home::new();
    let call = Reply::events(anthropic_tool("file_edit", &create("x.txt")));
    let server = ModelServer::start([call]).await;
    let url = server.url();
    if !Path::new("/usr/bin/python3").exists() {
        let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: no python3");
        return;
    }
    // A shell's own handlers are not those of what it starts.
    let script = "trap : QUIT; \"$@\"; echo status $?; stty -a";
    let program = ["sh", "-c", script, "sh", env!("CARGO_BIN_EXE_callboard")];
    let args = [&program[..], &asking(&url)].concat();

    let ran = started_at_terminal(&home, &[("[N]o", 900, "\u{1c}")], &args).unwrap();

    let (_, after) = ran
        .out
        .split_once("status 131")
        .unwrap_or_else(|| panic!("{ran:?}"));
    assert!(
        after.contains(" echo ") && after.contains(" icanon "),
        "{ran:?}"
    );
}

/// Fails if a terminal would obey or hide a part of `text`. Our colors and the spinner are removed
/// first.
#[track_caller]
fn assert_tame(what: &str, text: &str) {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        plain.push_str(before);
        let end = after
            .find(|c: char| !(c.is_ascii_digit() || c == ';' || c == '?'))
            .unwrap_or(after.len());
        let (codes, after) = after.split_at(end);
        let ours = match after.chars().next() {
            Some('m') => codes.split(';').all(|code| {
                ["0", "1", "2", "3", "4", "9", "31", "32", "36", "39", "22"].contains(&code)
            }),
            // The live region clears its rows and does not wrap them.
            Some('K' | 'J' | 'A') => true,
            Some('h' | 'l') => codes.starts_with('?'),
            _ => false,
        };
        assert!(
            ours,
            "{what}: ESC [ {codes} {:?} in {text:?}",
            after.chars().next()
        );
        rest = after.get(1..).unwrap_or_default();
    }
    plain.push_str(rest);
    let hidden: Vec<char> = plain
        .replace('\r', "")
        .chars()
        .filter(|c| callboard::visible::is_invisible(*c))
        .collect();
    assert!(hidden.is_empty(), "{what}: {hidden:?} in {text:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_at_a_terminal_shows_what_is_hidden_in_it() {
    let test = "a_question_at_a_terminal_shows_what_is_hidden_in_it";
    let home = Home::new();
    let path = "safe\u{202e}txt.sh";
    let server = ModelServer::start([
        turn(
            &format!("Look {NASTY} مرحبا 👩\u{200d}💻 "),
            &[("file_edit", create(path))],
        ),
        Reply::events(anthropic_text("Done.")),
    ])
    .await;
    let url = server.url();

    let Some(ran) = at_terminal(&home, test, &[("[N]o", 900, "n\n")], &asking(&url)) else {
        return;
    };

    assert!(
        ran.out.contains("safe\\u{202e}txt.sh") && ran.out.contains("  + x"),
        "{ran:?}"
    );
    assert!(
        ran.out.contains("مرحبا 👩\u{200d}💻") && ran.out.contains("\\u{202e}"),
        "honest text is readable: {ran:?}"
    );
    assert_tame("run", &ran.out.replace("👩\u{200d}💻", ""));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_command_writes_what_a_terminal_obeys() {
    let test = "no_command_writes_what_a_terminal_obeys";
    let home = Home::new();
    let nasty = NASTY;
    let folder = home.work().join(format!("w{nasty}"));
    std::fs::create_dir_all(folder.join("skills/odd")).unwrap();
    let front = format!(
        "---\nname: odd\ndescription: \"Helps {}\"\n---\nBody {nasty}\n",
        nasty.replace(['\u{1b}', '\u{7}'], "")
    );
    std::fs::write(folder.join("skills/odd/SKILL.md"), front).unwrap();
    std::fs::write(folder.join("lines.txt"), format!("a {nasty}\n")).unwrap();
    std::fs::write(
        folder.join("bad.toml"),
        format!("[agent]\n\"{nasty}\" = 1\n"),
    )
    .unwrap();
    std::fs::write(
        folder.join("servers.json"),
        json!({"mcpServers": {"x": {"command": format!("no-such-{nasty}"), "cwd": nasty}}})
            .to_string(),
    )
    .unwrap();
    let tool = || {
        turn(
            &format!("Text {nasty}"),
            &[("file_read", json!({"path": nasty}))],
        )
    };
    let failure = || {
        Reply::json(
            400,
            &json!({"error": {"message": format!("upstream {nasty}")}}).to_string(),
        )
    };
    let server = ModelServer::start([
        tool(),
        Reply::events(anthropic_text(&format!("End {nasty}"))),
        failure(),
        failure(),
        tool(),
        failure(),
    ])
    .await;
    let url = server.url();
    let workspace = folder.display().to_string();
    let file = |name: &str| folder.join(name).display().to_string();
    let bad = file("bad.toml");
    let servers = file("servers.json");
    let lines = file("lines.txt");
    let skills = file("skills");
    let model = [
        "--provider",
        "anthropic",
        "--base-url",
        &url,
        "--workspace",
        &workspace,
        "--sandbox",
        "none",
    ];
    let with = |command: &[&str], more: &[&str]| -> Vec<String> {
        [command, &model, more]
            .concat()
            .into_iter()
            .map(str::to_owned)
            .collect()
    };
    let plain = |command: &[&str]| {
        command
            .iter()
            .map(|word| (*word).to_owned())
            .collect::<Vec<String>>()
    };

    let commands = [
        with(&["run"], &["--session", "s", "Hello"]),
        with(&["run"], &["--session", "t", "--json", "Hello"]),
        with(&["run"], &["--session", "u", nasty]),
        with(&["fanout", "Do {}"], &["--over", &lines, "--ephemeral"]),
        plain(&["sessions", "list"]),
        plain(&["sessions", "show", "s"]),
        plain(&["sessions", "show", "s", "--json"]),
        plain(&["sessions", "show", nasty]),
        plain(&["sessions", "export", "s"]),
        plain(&["sessions", "rounds", "s"]),
        with(&["sessions", "request", "s"], &[]),
        plain(&["metrics", "s"]),
        plain(&[
            "tools",
            "call",
            "file_read",
            &json!({"path": nasty}).to_string(),
            "--workspace",
            &workspace,
        ]),
        plain(&["tools", "show", nasty]),
        plain(&["mcp", "check", "--mcp", &servers]),
        plain(&["mcp", "list", "--mcp", &servers, "--json"]),
        plain(&["mcp", "check", "--mcp", nasty]),
        plain(&["skills", "list", "--skills", &skills]),
        plain(&["skills", "check", "--skills", &skills]),
        plain(&["skills", "show", "odd", "--skills", &skills]),
        plain(&["skills", "show", "odd", "--json", "--skills", &skills]),
        plain(&["skills", "show", nasty, "--skills", &skills]),
        plain(&["--config", &bad, "config", "check"]),
        plain(&["--config", &bad, "doctor"]),
        plain(&["config", "show"]),
        plain(&["doctor", "--json"]),
        plain(&[nasty]),
        plain(&["run", &format!("--{nasty}")]),
    ];
    for command in &commands {
        let args: Vec<&str> = command.iter().map(String::as_str).collect();
        let Some(ran) = at_terminal(&home, test, &[], &args) else {
            return;
        };
        assert!(!ran.out.is_empty(), "{ran:?}");
        assert_tame(&command.join(" "), &ran.out);
        let _: Option<serde_json::Value> = args
            .contains(&"export")
            .then(|| serde_json::from_str(&ran.out).unwrap());
    }
}
