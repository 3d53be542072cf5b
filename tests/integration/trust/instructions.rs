//! `AGENTS.md` reaches a model's system prompt only after a person or the operator agreed to it.

use super::Ground;

const HAIKU: &str = "Answer in haiku.";

impl Ground {
    /// The system prompt of the next call.
    fn system(&self, args: &[&str]) -> String {
        let args: Vec<&str> = ["sessions", "request", "s", "--provider", "anthropic"]
            .iter()
            .chain(args)
            .copied()
            .collect();
        self.run(&args).well().json()["system"].to_string()
    }
}

#[test]
fn instructions_of_a_stranger_are_not_read_and_one_line_names_them() {
    let ground = Ground::new("");
    ground.write("AGENTS.md", HAIKU);

    let ran = ground
        .run(&["run", "--provider", "offline", "--session", "s", "Hello"])
        .well();

    assert_eq!(
        ran.err
            .lines()
            .filter(|line| line.contains("AGENTS.md: it is not trusted, so it is not read"))
            .count(),
        1,
        "{}",
        ran.err
    );
    assert!(!ground.system(&[]).contains(HAIKU));
}

#[test]
fn trusted_instructions_are_read_until_they_change() {
    let ground = Ground::new("");
    ground.write("AGENTS.md", HAIKU);
    ground
        .run(&["run", "--provider", "offline", "--session", "s", "Hello"])
        .well();
    let shown = ground.run(&["trust", "--yes"]).well();
    assert!(
        shown
            .err
            .contains("is added to the system prompt, as instructions to the model"),
        "{}",
        shown.err
    );
    assert!(ground.system(&[]).contains(HAIKU));

    ground.write("AGENTS.md", "Answer in haiku!");
    let ran = ground
        .run(&["run", "--provider", "offline", "--session", "s", "Hello"])
        .well();

    assert!(!ground.system(&[]).contains("haiku"));
    assert!(
        ran.err
            .contains("AGENTS.md: it changed since it was trusted"),
        "{}",
        ran.err
    );
}

#[test]
fn the_same_holds_for_a_workspace_elsewhere() {
    let ground = Ground::new("");
    ground.write("AGENTS.md", HAIKU);
    let workspace = ground.repo.to_str().unwrap().to_owned();
    let run = |args: &[&str]| {
        ground
            .home
            .run(&[args, &["--workspace", &workspace]].concat())
            .well()
    };
    let offline = ["run", "--provider", "offline", "--session", "s", "Hello"];
    let request = ["sessions", "request", "s", "--provider", "anthropic"];

    let ran = run(&offline);
    let before = run(&request).out;
    ground.home.run(&["trust", "--yes", &workspace]).well();
    let after = run(&request).out;

    assert!(
        ran.err.contains("AGENTS.md: it is not trusted"),
        "{}",
        ran.err
    );
    assert!(
        !before.contains(HAIKU) && after.contains(HAIKU),
        "{before}\n{after}"
    );
}
