//! `run` and `fanout` are killed and started again until they end by themselves.

use std::{
    process::Child,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{Broken, alive, has_sandbox, kills, life, lines, model};
use crate::{
    cli::{Home, Ran, kill, wait_for},
    support::{SplitMix, seed},
};

/// Kills a command at a random instant of its life. Returns whether it had not ended by itself.
fn kill_at_random(child: &mut Child, random: &mut SplitMix) -> bool {
    let until = Instant::now() + life(random);
    while Instant::now() < until {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    kill(child.id(), "KILL");
    true
}

/// `run` in the session `s`, without its prompt.
pub(super) fn run_args(url: &str) -> [&str; 9] {
    [
        "run",
        "--provider",
        "anthropic",
        "--base-url",
        url,
        "--approve",
        "auto",
        "--session",
        "s",
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_of_run_keep_a_session_whole_and_start_no_command_twice() {
    let test = "kills_of_run_keep_a_session_whole_and_start_no_command_twice";
    let home = Home::new();
    if !has_sandbox(&home, test) {
        return;
    }
    let mut random = SplitMix(seed("kills-run"));
    let broken = Broken::default();
    let mark = format!("{}.{}", 4_000 + random.below(1_000), std::process::id());
    let model = model::start(mark.clone(), broken.clone()).await;
    let url = model.url();
    let common = run_args(&url);

    let (wanted, mut killed, mut prompts) = (kills(15), 0, 0);
    while killed < wanted {
        let name = format!("run-{prompts}");
        let kind = ["bash", "bash", "child"][random.below(3)];
        let prompt = model::prompt(&name, kind);
        let fresh = [&common[..], &[prompt.as_str()]].concat();
        let resumed = [&common[..], &["--resume"]].concat();
        let mut args = &fresh;
        let ran = loop {
            let mut child = home.command(args).spawn().unwrap();
            let kills = killed < wanted && kill_at_random(&mut child, &mut random);
            let ran = Ran::of(args, child);
            killed += usize::from(kills);
            if !kills || ran.code.is_some() {
                break ran;
            }
            // A process that is gone has let go of its session.
            if opened(&home, &prompt) {
                args = &resumed;
            }
        };
        broken.check(ran.code == Some(0), || format!("{name}: {ran:?}"));
        let answers = ran.out.matches(&model::answer(&name)).count();
        broken.check(answers == 1, || {
            format!("{name} has {answers} answers: {ran:?}")
        });
        prompts += 1;
    }

    let messages = export(&home);
    let texts: Vec<&str> = messages.iter().flat_map(model::texts).collect();
    let of = |start: &str| texts.iter().filter(|text| text.starts_with(start)).count();
    let found = (of("prompt run-"), of("answer to run-"));
    broken.check(found == (prompts, prompts), || {
        format!("{prompts} prompts, and the session has {found:?}")
    });
    let starts = lines(&home.work().join("starts"));
    super::checker::check_starts(&starts, std::slice::from_ref(&messages), &broken);
    wait_for("the end of all processes", || alive(&mark) == 0);
    let story = format!(
        "{killed} kills, {prompts} prompts, {} commands started",
        starts.len()
    );
    println!("{story}");
    broken.none(&story);
}

/// The messages of the session, if it is stored.
pub(super) fn export(home: &Home) -> Vec<Value> {
    let ran = home.run(&["sessions", "export", "s"]);
    match ran.code {
        Some(0) => ran.json()["messages"].as_array().cloned().unwrap(),
        _ => Vec::new(),
    }
}

/// Whether a prompt is in the session, so that it must not be sent again.
pub(super) fn opened(home: &Home, prompt: &str) -> bool {
    export(home)
        .iter()
        .any(|message| model::texts(message).contains(&prompt))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_of_fanout_lose_no_result_and_ask_for_none_again() {
    const LINES: usize = 40;
    let home = Home::new();
    let mut random = SplitMix(seed("kills-fanout"));
    let broken = Broken::default();
    let model = model::start(String::new(), broken.clone()).await;
    let url = model.url();
    let (wanted, mut killed, mut runs) = (kills(15), 0, 0);
    while killed < wanted {
        let all: Vec<String> = (0..LINES).map(|n| format!("f{runs}-{n}")).collect();
        std::fs::write(home.work().join("lines.txt"), all.join("\n")).unwrap();
        let name = format!("n{runs}");
        let args = [
            "fanout",
            "--provider",
            "anthropic",
            "--base-url",
            &url,
            "--no-tools",
            "prompt {} text",
            "--over",
            "lines.txt",
            "--parallel",
            "4",
            "--name",
            &name,
            "--json",
        ];
        let before = model.requests().len();
        let mut kills_here = 0;
        let ran = loop {
            let mut child = home.command(&args).spawn().unwrap();
            let kills = killed < wanted && kill_at_random(&mut child, &mut random);
            let ran = Ran::of(&args, child);
            killed += usize::from(kills);
            kills_here += usize::from(kills);
            if !kills || ran.code.is_some() {
                break ran;
            }
        };
        broken.check(ran.code == Some(0), || format!("{name}: {ran:?}"));
        let expected = all.iter().map(|line| model::answer(line));
        let found = ran.events().into_iter();
        let found = found.map(|one| one["text"].as_str().unwrap_or_default().to_owned());
        broken.check(found.eq(expected), || format!("{name}: {}", ran.out));
        // A call that a kill cut is made again, and there are at most four at once.
        let calls = model.requests().len() - before;
        broken.check(calls <= LINES + 4 * kills_here, || {
            format!("{name}: {calls} calls for {LINES} lines and {kills_here} kills")
        });
        runs += 1;
    }
    let story = format!("{killed} kills of {runs} runs");
    println!("{story}");
    broken.none(&story);
}
