//! What the README says can be typed, works as it says.

use std::process::Command;

use super::cli::Home;

/// The commands in the README's code blocks that start our binary, without their comments.
fn commands(readme: &str) -> Vec<String> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in readme.lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        } else if inside {
            let line = line.split("   #").next().unwrap_or_default().trim().trim_start_matches("$ ");
            if line.starts_with("cargo run") || line.starts_with("callboard ") {
                found.push(line.to_owned());
            }
        }
    }
    found
}

#[test]
fn every_command_of_the_readme_works() {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let commands = commands(&readme);
    assert!(commands.iter().any(|command| command.contains("run --provider offline")), "{commands:?}");

    for command in commands {
        let ours = env!("CARGO_BIN_EXE_callboard");
        let mapped = match command.split_once(" -- ") {
            Some((_, rest)) if command.starts_with("cargo run") => format!("{ours} {rest}"),
            _ => command.replacen("callboard", ours, 1),
        };
        let home = Home::new();
        let mut shell = Command::new("sh");
        shell.args(["-c", &mapped]).current_dir(env!("CARGO_MANIFEST_DIR"));
        let output = home.dress(&mut shell).output().unwrap();

        assert!(output.status.success(), "{command}\n{}", String::from_utf8_lossy(&output.stderr));
        assert!(!output.stdout.is_empty(), "{command} prints its result");
    }
}
