//! Every command in the README works as the README says.

use std::process::Command;

use super::cli::Home;

/// How a command of the README is tested.
enum Proof {
    /// Runs our binary with the same arguments; its output contains this.
    Prints(&'static str),
    /// The command runs this test itself.
    ThisRun,
    /// It runs until a signal: the tests of `cli::serve` cover it.
    Elsewhere,
}

/// Every command in the README's code blocks. `tests/tidy.rs` fails if one is missing here.
const COMMANDS: &[(&str, Proof)] = &[
    (
        "cargo run -- run --provider offline \"Where is the retry delay computed, and what is its cap?\"",
        Proof::Prints("/retry.rs:"),
    ),
    ("cargo test", Proof::ThisRun),
    (
        "callboard keys new --tenant acme",
        Proof::Prints("[[tenant]]\nid = \"acme\"\nkey_sha256 = "),
    ),
    ("callboard doctor", Proof::Prints("ok configuration")),
    ("callboard serve", Proof::Elsewhere),
];

#[test]
fn every_command_of_the_readme_works() {
    let readme =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    for (command, proof) in COMMANDS {
        assert!(
            readme.contains(command),
            "the README no longer says: {command}"
        );
        let Proof::Prints(expected) = proof else {
            continue;
        };
        let ours = env!("CARGO_BIN_EXE_callboard");
        let mapped = match command.split_once(" -- ") {
            Some((_, rest)) => format!("{ours} {rest}"),
            None => command.replacen("callboard", ours, 1),
        };
        let home = Home::new();
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &mapped])
            .current_dir(env!("CARGO_MANIFEST_DIR"));

        let output = home.dress(&mut shell).output().unwrap();

        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "{command}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(text.contains(expected), "{command}\n{text}");
    }
}
