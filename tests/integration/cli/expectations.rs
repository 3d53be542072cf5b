//! What a person expects of an agent at a terminal, and the page that shows it.

use std::{path::Path, process::Stdio};

use super::{Home, Ran};
use crate::support::skipped;

const SCRIPT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/integration/support/expectations.py"
);

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/chat-transcript.md");

#[test]
fn a_chat_keeps_the_fifteen_expectations_as_the_page_shows_them() {
    let test = "a_chat_keeps_the_fifteen_expectations_as_the_page_shows_them";
    let has_tmux = std::process::Command::new("tmux").arg("-V").output();
    if !Path::new("/usr/bin/python3").exists() || has_tmux.is_err() {
        skipped(test, "no python3 or no tmux");
        return;
    }
    let home = Home::new();
    let args = [SCRIPT, env!("CARGO_BIN_EXE_callboard")];
    let mut command = std::process::Command::new("python3");
    command
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let ran = Ran::within(
        std::time::Duration::from_secs(170),
        &args,
        home.dress(&mut command).spawn().unwrap(),
    )
    .well();

    let page = std::fs::read_to_string(PAGE).unwrap();
    let differs = page
        .lines()
        .zip(ran.out.lines())
        .find(|(kept, printed)| kept != printed);
    assert!(
        page == ran.out,
        "`python3 {SCRIPT} target/debug/callboard > docs/chat-transcript.md` writes the page again; \
         first difference: {differs:?}"
    );
}
