//! Logs on standard error and in the log file contain no key, whatever is logged.

use std::process::Command;

const KEY: &str = "plain-word-key-not-real";

fn callboard(folder: &std::path::Path, config: &str, arguments: &[&str]) -> (String, String) {
    let file = folder.join("callboard.toml");
    std::fs::write(&file, config).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_callboard"))
        .args(["--config", file.to_str().unwrap()])
        .args(arguments)
        .env_clear()
        .env("HOME", folder)
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("TEST_PROVIDER_KEY", KEY)
        .current_dir(folder)
        .output()
        .unwrap();
    (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

/// The provider's host name contains the key, so that logging the host would leak it.
fn config(observability: &str) -> String {
    format!(
        "[[provider]]\nname = \"mine\"\nkind = \"openai\"\nbase_url = \"http://{KEY}.invalid:9/v1\"\nmodel = \"m\"\napi_key_env = \"TEST_PROVIDER_KEY\"\n\n[observability]\n{observability}\n"
    )
}

#[test]
fn no_log_line_holds_a_configured_key() {
    let folder = tempfile::tempdir().unwrap();

    let run = [
        "--log",
        "trace",
        "run",
        "--no-tools",
        "--timeout",
        "3",
        "--provider",
        "mine",
        "Say hi",
    ];
    let (_, text) = callboard(
        folder.path(),
        &config("log_format = \"text\"\nlog_output = [\"stderr\", \"file\"]"),
        &run,
    );
    let (_, json) = callboard(folder.path(), &config("log_format = \"json\""), &run);

    assert!(text.contains("masked") && !text.contains(KEY), "{text}");
    assert!(json.contains("masked") && !json.contains(KEY), "{json}");
    let is_json = |line: &str| serde_json::from_str::<serde_json::Value>(line).is_ok();
    assert!(
        json.lines()
            .filter(|line| line.starts_with('{'))
            .all(is_json)
            && json.lines().any(is_json),
        "{json}"
    );
    assert!(!text.lines().any(|line| line.starts_with('{')), "{text}");
    let file = std::fs::read_to_string(folder.path().join(".local/share/callboard/callboard.log"))
        .unwrap();
    assert!(file.contains("masked") && !file.contains(KEY), "{file}");
}

#[test]
fn metrics_of_a_stored_conversation_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("s.db");
    let db = db.to_str().unwrap();
    callboard(
        folder.path(),
        "",
        &[
            "run",
            "--provider",
            "offline",
            "--no-tools",
            "--db",
            db,
            "--session",
            "support-42",
            "Hello",
        ],
    );

    let (report, _) = callboard(folder.path(), "", &["metrics", "support-42", "--db", db]);
    let (json, _) = callboard(
        folder.path(),
        "",
        &["metrics", "support-42", "--db", db, "--json"],
    );
    let (all, _) = callboard(folder.path(), "", &["metrics", "--db", db, "--json"]);
    let (_, missing) = callboard(folder.path(), "", &["metrics", "support-43", "--db", db]);

    assert!(report.starts_with("Conversation Metrics Report\n============================\nConversation ID: support-42\n"), "{report}");
    assert!(
        report.contains("Context Management:\n  - Messages: 2\n"),
        "{report}"
    );
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["conversation_id"], &json["metrics"]["rounds"]),
        (&"support-42".into(), &1.into())
    );
    let all: serde_json::Value = serde_json::from_str(&all).unwrap();
    assert_eq!(
        (&all["total_conversations"], &all["avg_tokens_per_call"]),
        (&1.into(), &0.0.into())
    );
    assert!(missing.contains("support-42"), "the nearest id: {missing}");
}
