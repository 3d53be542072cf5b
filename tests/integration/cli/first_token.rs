//! How soon a person sees what the model has sent.

use std::{path::Path, process::Stdio};

use super::{Home, Ran};
use crate::support::skipped;

const SCRIPT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/integration/support/first_token.py"
);

/// Rounds of a measurement.
const ROUNDS: usize = 20;

/// Most milliseconds between the writing of the first token by the server and its display, as the
/// median of the rounds.
const DELAY_MS_MAX: f64 = 20.0;

/// Measures the rounds of a command at a terminal, beside what else the machine does.
fn first_tokens_are_shown_at_once(test: &str, kind: &str, more: &[&str]) {
    if !Path::new("/usr/bin/python3").exists() {
        skipped(test, "no python3");
        return;
    }
    let home = Home::new();
    let rounds = ROUNDS.to_string();
    let program = env!("CARGO_BIN_EXE_callboard");
    let fixed = [&rounds, kind, program, kind, "--provider", "anthropic"];
    let options = ["--base-url", "{url}", "--sandbox", "none", "--no-tools"];
    let args = [&fixed[..], &options, more].concat();
    let mut command = std::process::Command::new("python3");
    command
        .arg(SCRIPT)
        .args(&args)
        .current_dir(home.work())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    home.dress(&mut command)
        .env("TERM", "xterm")
        .env("ANTHROPIC_API_KEY", "not-a-real-key");
    let ran = Ran::of(&args, command.spawn().unwrap());

    let ran = ran.well();
    let mut delays: Vec<f64> = serde_json::from_str(&ran.out).unwrap();
    delays.sort_by(f64::total_cmp);
    assert_eq!(delays.len(), ROUNDS, "{delays:?}");
    assert!(delays[ROUNDS / 2] <= DELAY_MS_MAX, "{delays:?}");
}

#[test]
fn chat_shows_the_first_token_within_20_ms_of_its_arrival() {
    let test = "chat_shows_the_first_token_within_20_ms_of_its_arrival";
    first_tokens_are_shown_at_once(test, "chat", &[]);
}

#[test]
fn run_at_a_terminal_shows_the_first_token_within_20_ms_of_its_arrival() {
    let test = "run_at_a_terminal_shows_the_first_token_within_20_ms_of_its_arrival";
    first_tokens_are_shown_at_once(test, "run", &["Go."]);
}
