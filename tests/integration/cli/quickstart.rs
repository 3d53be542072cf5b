//! The page for the first five minutes, typed as it stands.

use std::{
    io::Write as _,
    net::TcpListener,
    process::{Command, Stdio},
};

use super::Home;

/// What the commands of the page print, in this order.
const PRINTED: &[&str] = &[
    "src/retry.rs:4",                  // 1: the answer of `run`
    "What is the cap of a retry",      // the title in `sessions list`
    "you: What is the cap of a retry", // `sessions show`
    "`RETRY_CAP_MS` is at",            // the same session goes on
    "RETRY_CAP_MS",                    // 2: the fan-out
    "\"status\":\"completed\"",        // 3: over HTTP
    "\"messages\"",                    // 4: after `kill -9`
    "Where is RETRY_CAP_MS?",
];

#[test]
fn every_command_of_the_first_five_minutes_works() {
    if Command::new("curl").arg("--version").output().is_err() {
        let name = "every_command_of_the_first_five_minutes_works";
        writeln!(std::io::stderr(), "SKIPPED: {name}: no curl").unwrap();
        return;
    }
    let home = Home::new();
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/quickstart.md"))
        .unwrap();
    let blocks: Vec<&str> = page
        .split("```sh\n")
        .skip(1)
        .map(|block| block.split("```").next().unwrap())
        .collect();
    assert_eq!(blocks.len(), 5, "{blocks:?}");
    // Another port than the page's, because that one may be taken on this machine.
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let script = blocks
        .join("\n")
        .replace("127.0.0.1:8787", &format!("127.0.0.1:{port}"))
        .replace(
            "callboard serve",
            &format!("callboard serve --listen 127.0.0.1:{port}"),
        );
    let bin = std::path::Path::new(env!("CARGO_BIN_EXE_callboard"))
        .parent()
        .unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("bash");
    shell
        .args([
            "-e",
            "-c",
            &format!("trap 'kill $SERVER 2>/dev/null' EXIT\n{script}"),
        ])
        .current_dir(home.work())
        .stdin(Stdio::null());

    let ran = home.dress(&mut shell).env("PATH", path).output().unwrap();

    let out = String::from_utf8_lossy(&ran.stdout);
    let err = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{out}\n{err}");
    let mut rest = out.as_ref();
    for expected in PRINTED {
        let (_, after) = rest
            .split_once(expected)
            .unwrap_or_else(|| panic!("{expected} is missing or too early in:\n{out}\n{err}"));
        rest = after;
    }
}
