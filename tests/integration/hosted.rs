//! A smoke test against hosted APIs. It costs a few cents, so it runs on request only.
//! Otherwise it prints why it does nothing, and the gate passes.
//!
//! ```bash
//! CALLBOARD_HOSTED=1 ANTHROPIC_API_KEY=… OPENAI_API_KEY=… cargo test --test integration -- hosted --nocapture
//! ```

use std::io::Write as _;

use crate::cli::Home;

/// The providers, with the variables of their keys.
const APIS: [(&str, &str); 2] = [
    ("anthropic", "ANTHROPIC_API_KEY"),
    ("openai", "OPENAI_API_KEY"),
];

fn not_run(why: &str) {
    let _ = writeln!(std::io::stderr(), "not run: {why}");
}

#[test]
fn a_hosted_model_calls_a_tool_and_its_session_goes_on() {
    if std::env::var_os("CALLBOARD_HOSTED").is_none() {
        not_run("hosted APIs are called only with CALLBOARD_HOSTED=1 and a key");
        return;
    }
    for (provider, variable) in APIS {
        let Ok(key) = std::env::var(variable) else {
            not_run(&format!("{variable} is not set"));
            continue;
        };
        let mut home = Home::new();
        home.variables.push((variable, key));
        let ask = |prompt| {
            let session = ["--session", "smoke", "--budget-tokens", "100000"];
            let args = [&["run", "--provider", provider][..], &session, &[prompt]].concat();
            home.run(&args).well().out
        };

        let read = ask(
            "Read src/retry.rs with a tool. Which value has RETRY_CAP_MS? Answer with digits only.",
        );
        let remembered = ask("Which file did you read? Answer with its path only.");

        let digits: String = read.chars().filter(char::is_ascii_digit).collect();
        assert_eq!(digits, "10000", "{provider}: {read}");
        assert!(
            remembered.contains("src/retry.rs"),
            "{provider}: {remembered}"
        );
    }
}
