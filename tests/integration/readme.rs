//! What the README says can be typed, works as it says.

use std::process::Command;

use super::cli::Home;

/// What stands behind a line of the README.
enum Proof {
    /// Our binary, run with the same arguments; its output holds this.
    Prints(&'static str),
    /// What runs this test.
    ThisRun,
    /// It runs until a signal: the tests of `cli::serve`.
    Elsewhere,
}

/// Every command of the README's code blocks. `tests/tidy.rs` fails when one is missing here.
const COMMANDS: &[(&str, Proof)] = &[
    (
        "cargo run --release -- run --provider offline \"Where is the retry delay computed, and what is its cap?\"",
        Proof::Prints("actors/src/policy/"),
    ),
    ("cargo test", Proof::ThisRun),
    ("callboard keys new --tenant acme", Proof::Prints("[[tenant]]\nid = \"acme\"\nkey_sha256 = ")),
    ("callboard doctor", Proof::Prints("ok configuration")),
    ("callboard serve", Proof::Elsewhere),
];

#[test]
fn every_command_of_the_readme_works() {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    for (command, proof) in COMMANDS {
        assert!(readme.contains(command), "the README no longer says: {command}");
        let Proof::Prints(expected) = proof else { continue };
        let ours = env!("CARGO_BIN_EXE_callboard");
        let mapped = match command.split_once(" -- ") {
            Some((_, rest)) => format!("{ours} {rest}"),
            None => command.replacen("callboard", ours, 1),
        };
        let home = Home::new();
        let mut shell = Command::new("sh");
        shell.args(["-c", &mapped]).current_dir(env!("CARGO_MANIFEST_DIR"));

        let output = home.dress(&mut shell).output().unwrap();

        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{command}\n{}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains(expected), "{command}\n{text}");
    }
}
