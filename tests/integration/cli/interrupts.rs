//! Ctrl-C and `kill -9`, and what the next process finds.

use std::io::Write;

use serde_json::json;

use super::{Home, Ran, kill, serve::Served, wait_for};
use crate::support::model_server::{ModelServer, Reply, Step, anthropic_text, anthropic_tool};

/// A command that reports that it runs, and then runs for long. Its second word identifies it in
/// the list of processes.
struct Slow {
    mark: String,
}

impl Slow {
    /// Prints a note and returns `None` if there is no sandbox: without one, children of a killed
    /// command may survive.
    fn where_it_can_be_killed(home: &Home, test: &str) -> Option<Self> {
        if home.run(&["tools", "list", "--sandbox", "linux"]).code != Some(0) {
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: {test}: there is no sandbox here"
            );
            return None;
        }
        let nanos = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_nanos();
        Some(Self {
            mark: format!("300.{nanos}"),
        })
    }

    fn call(&self) -> Reply {
        Reply::events(anthropic_tool(
            "bash",
            &json!({"command": format!("touch began; sleep {}; touch ended", self.mark)}),
        ))
    }

    /// Whether a process of the command exists.
    fn lives(&self) -> bool {
        let folders = std::fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .map(|entry| entry.path().join("cmdline"));
        folders
            .filter_map(|file| std::fs::read(file).ok())
            .any(|line| String::from_utf8_lossy(&line).contains(&self.mark))
    }
}

fn args<'a>(url: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec![
        "run",
        "--provider",
        "anthropic",
        "--base-url",
        url,
        "--approve",
        "auto",
        "--session",
        "s",
    ];
    args.extend_from_slice(more);
    args
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_ends_model_and_tools_and_leaves_a_valid_session() {
    let home = Home::new();
    let Some(slow) = Slow::where_it_can_be_killed(
        &home,
        "ctrl_c_ends_model_and_tools_and_leaves_a_valid_session",
    ) else {
        return;
    };
    let server = ModelServer::start([slow.call()]).await;
    let url = server.url();
    let more = ["Wait."];
    let args = args(&url, &more);
    let child = home.command(&args).spawn().unwrap();

    wait_for("the tool's start", || home.work().join("began").exists());
    kill(child.id(), "INT");
    let ran = Ran::of(&args, child);
    wait_for("the end of its processes", || !slow.lives());

    assert_eq!(ran.code, Some(130), "{ran:?}");
    let export = home.run(&["sessions", "export", "s"]).well().json();
    let messages = export["messages"].as_array().unwrap();
    assert_eq!(messages.len(), 3, "{messages:?}");
    assert_eq!(messages[2]["content"][0]["tool_use_id"], "t1");
    assert_eq!(messages[2]["content"][0]["is_error"], true);
    assert_eq!(export["rounds"][0]["stop_reason"], "interrupted");
    assert!(!home.work().join("ended").exists());

    server.script([Reply::events(anthropic_text("Still here."))]);
    let mut args = args;
    args.pop();
    args.push("Go on.");
    assert_eq!(home.run(&args).well().out, "Still here.\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_while_the_model_streams_keeps_the_text_so_far() {
    let home = Home::new();
    let begun: String = anthropic_text("So far")
        .iter()
        .take(3)
        .map(|event| format!("data: {event}\n\n"))
        .collect();
    let server = ModelServer::start([Reply::stream().send(begun).then(Step::Stall)]).await;
    let url = server.url();
    let more = ["Speak.", "--json"];
    let args = args(&url, &more);
    let mut child = home.command(&args).spawn().unwrap();

    let mut events = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("text_delta") {
        line.clear();
        assert!(
            std::io::BufRead::read_line(&mut events, &mut line).unwrap() > 0,
            "the text did not come"
        );
    }
    kill(child.id(), "INT");
    let ran = Ran::of(&args, child);

    assert_eq!(ran.code, Some(130), "{ran:?}");
    let export = home.run(&["sessions", "export", "s"]).well().json();
    assert_eq!(export["messages"][1]["content"][0]["text"], "So far");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_run_is_taken_up_again_and_repeats_no_once_tool() {
    let home = Home::new();
    let Some(slow) = Slow::where_it_can_be_killed(
        &home,
        "a_killed_run_is_taken_up_again_and_repeats_no_once_tool",
    ) else {
        return;
    };
    let server = ModelServer::start([slow.call()]).await;
    let url = server.url();
    let more = ["Wait."];
    let started = args(&url, &more);
    let child = home.command(&started).spawn().unwrap();
    wait_for("the tool's start", || home.work().join("began").exists());
    kill(child.id(), "KILL");
    assert_eq!(Ran::of(&started, child).code, None);
    wait_for("the end of its processes", || !slow.lives());
    std::fs::remove_file(home.work().join("began")).unwrap();

    server.script([Reply::events(anthropic_text("Its outcome is unknown."))]);
    let resumed = home.run(&args(&url, &["--resume"])).well();

    assert_eq!(resumed.out, "Its outcome is unknown.\n");
    assert!(
        !home.work().join("began").exists(),
        "the tool was started again"
    );
    let sent = server.requests().last().unwrap().json();
    let last = sent["messages"].as_array().unwrap().last().unwrap()["content"][0].to_string();
    assert!(
        last.contains("[outcome unknown] bash was started at"),
        "{last}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn without_resume_an_open_round_is_closed_with_a_note() {
    let home = Home::new();
    let Some(slow) =
        Slow::where_it_can_be_killed(&home, "without_resume_an_open_round_is_closed_with_a_note")
    else {
        return;
    };
    let server = ModelServer::start([slow.call()]).await;
    let url = server.url();
    let more = ["Wait."];
    let started = args(&url, &more);
    let child = home.command(&started).spawn().unwrap();
    wait_for("the tool's start", || home.work().join("began").exists());
    kill(child.id(), "KILL");
    assert_eq!(Ran::of(&started, child).code, None);
    wait_for("the end of its processes", || !slow.lives());

    server.script([Reply::events(anthropic_text("New."))]);
    let next = home.run(&args(&url, &["Something else."])).well();

    assert_eq!(next.out, "New.\n");
    let note = "the round that was interrupted is closed; the outcome of one tool call is unknown (--resume would have resumed it)";
    assert!(next.err.lines().any(|line| line == note), "{}", next.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_on_a_session_is_refused() {
    let home = Home::new();
    let Some(slow) =
        Slow::where_it_can_be_killed(&home, "a_second_process_on_a_session_is_refused")
    else {
        return;
    };
    let server = ModelServer::start([slow.call()]).await;
    let url = server.url();
    let more = ["Wait."];
    let first_args = args(&url, &more);
    let first = home.command(&first_args).spawn().unwrap();
    wait_for("the tool's start", || home.work().join("began").exists());

    let second = home.run(&["run", "--session", "s", "Hello"]);
    kill(first.id(), "INT");
    let first = Ran::of(&first_args, first);

    assert_eq!((second.code, first.code), (Some(1), Some(130)));
    assert!(
        second.error().starts_with("error: session in use"),
        "{}",
        second.err
    );
}

/// A model may take longer for a call than `serve` waits before it takes up a round.
#[tokio::test(flavor = "multi_thread")]
async fn a_serve_beside_a_run_takes_up_the_rounds_of_dead_programs_only() {
    let home = Home::new();
    let server = ModelServer::start([Reply::stream().then(Step::Stall)]).await;
    let url = server.url();
    let start = |session: &str, asked: usize| {
        let args = [
            "run",
            "--provider",
            "anthropic",
            "--base-url",
            &url,
            "--session",
            session,
            "Speak.",
        ];
        let child = home.command(&args).spawn().unwrap();
        wait_for("the call of the model", || server.requests().len() == asked);
        child
    };
    let mut dead = start("dead", 1);
    dead.kill().unwrap();
    dead.wait().unwrap();
    let live = start("live", 2);

    let served = Served::start(&home, &["--provider", "offline"]);

    served.wait_for_log("interrupted rounds resumed: 1\n");
    kill(live.id(), "INT");
    let ran = Ran::of(&["run"], live);
    assert_eq!(ran.code, Some(130), "{ran:?}");
    let export = home.run(&["sessions", "export", "live"]).well().json();
    assert_eq!(
        export["rounds"][0]["stop_reason"], "interrupted",
        "{export}"
    );
    assert_eq!(served.stop().code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_does_not_run_while_its_host_is_stopped() {
    let home = Home::new();
    let test = "a_command_does_not_run_while_its_host_is_stopped";
    let Some(slow) = Slow::where_it_can_be_killed(&home, test) else {
        return;
    };
    let command = format!(
        "touch began; until [ -e go ]; do : {0}; done; touch ended",
        slow.mark
    );
    let call = Reply::events(anthropic_tool("bash", &json!({ "command": command })));
    let server = ModelServer::start([call, Reply::events(anthropic_text("Done."))]).await;
    let url = server.url();
    let args = args(&url, &["Work."]);
    let host = home.command(&args).spawn().unwrap();
    let pid = host.id();
    wait_for("the command", || home.work().join("began").exists());
    // Of what carries the mark: supervisors have it among their arguments and wait.
    let running = || {
        let is_of_it = |folder: &std::path::Path| {
            std::fs::read(folder.join("cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).contains(&slow.mark))
        };
        let state = |folder: std::path::PathBuf| {
            let stat = std::fs::read_to_string(folder.join("stat")).ok()?;
            stat.rsplit_once(") ")?.1.chars().next()
        };
        std::fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .map(|entry| entry.path())
            .filter(|folder| is_of_it(folder))
            .filter_map(state)
            .any(|state| state == 'R')
    };
    wait_for("a process that runs", running);

    kill(pid, "STOP");
    let mut stopped_since = std::time::Instant::now();
    wait_for("the stop of the command", || {
        if running() {
            stopped_since = std::time::Instant::now();
        }
        stopped_since.elapsed() > std::time::Duration::from_millis(500)
    });
    kill(pid, "CONT");
    std::fs::write(home.work().join("go"), "").unwrap();

    let ran = Ran::of(&args, host).well();
    assert!(home.work().join("ended").exists(), "{ran:?}");
}
