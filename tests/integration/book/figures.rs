//! A figure of `docs/why.md` that no bench measures.

use std::fmt::Write as _;

use super::{Home, Page};

/// Bytes of one result of the tool, a file of the workspace.
const RESULT_BYTES: usize = 4_700;

/// Bytes of the journal after the round, with room for a tenth more than the page says.
const JOURNAL_BYTES_MAX: i64 = 1_900_000;

/// Text of words, as compressible and as long as asked for.
fn text(bytes: usize) -> String {
    let words = [
        "order", "customer", "paid", "parcel", "monday", "address", "tea",
    ];
    let mut text = String::new();
    for n in 0_usize.. {
        let end = if n % 12 == 11 { '\n' } else { ' ' };
        write!(text, "{}{end}", words[(n * n + n / 7) % 7]).unwrap();
        if text.len() >= bytes {
            break;
        }
    }
    text
}

#[test]
fn a_hundred_tool_calls_in_a_long_conversation_store_only_what_is_new() {
    let home = Home::new();
    let page = Page::read("operate.md");
    std::fs::write(home.work().join("five.txt"), text(RESULT_BYTES)).unwrap();
    let message = |role: &str| serde_json::json!({"role": role, "content": text(3_560)});
    let history: Vec<_> = (0..150)
        .flat_map(|_| [message("user"), message("assistant")])
        .collect();
    let history = serde_json::to_string(&history).unwrap();
    assert!(history.len() > 1_000_000);
    std::fs::write(home.work().join("history.json"), history).unwrap();
    let script = super::with_ports(
        r#"
cat > callboard.toml <<'EOT'
[host]
data_dir = "../data"
[[provider]]
name = "mock"
kind = "openai"
base_url = "http://127.0.0.1:9000/v1"
model = "m"
context_window = 1000000
[limits]
tool_iterations_max = 200
identical_calls_max = 1000
EOT
callboard mock-model --listen 127.0.0.1:9000 --chunks 1 --text 'All read.' --tool-calls 100 \
  --tool file_read --tool-input '{"path":"five.txt"}' > mock.txt &
until grep -qs http mock.txt; do sleep 0.1; done
export CALLBOARD_CONFIG=callboard.toml
callboard tokens history.json --model gpt-4o
callboard sessions import history.json --session long > imported.txt
callboard run --session long "Read it a hundred times."
callboard sessions show long | tail -n 3
"#,
        &page.ports,
    );

    let printed = page.typed(&home, &script);

    let tokens: u64 = printed.lines().next().unwrap().parse().unwrap();
    assert!((180_000..185_000).contains(&tokens), "{tokens}");
    assert!(printed.contains("All read."), "{printed}");
    assert!(printed.contains("tool calls 100"), "{printed}");
    let store = rusqlite::Connection::open(home.path().join("data/callboard.db")).unwrap();
    let bytes: i64 = store
        .query_row("SELECT sum(length(body)) FROM journal", [], |row| {
            row.get(0)
        })
        .unwrap();
    assert!(
        (1_400_000..JOURNAL_BYTES_MAX).contains(&bytes),
        "{bytes} bytes"
    );
}
