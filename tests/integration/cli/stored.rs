//! `sessions`.

use serde_json::json;

use super::Home;
use crate::support::model_server::{ModelServer, Reply, anthropic_text, anthropic_tool};

#[test]
fn an_import_goes_to_the_tenant_that_is_named() {
    let home = Home::new();
    let file = home.path().join("talk.json");
    std::fs::write(&file, r#"[{"role":"user","content":"hi"}]"#).unwrap();
    let import = ["sessions", "import", file.to_str().unwrap()];

    home.run(&[&import[..], &["--session", "one", "--tenant", "acme"]].concat())
        .well();

    let of = |tenant: &[&str]| home.run(&[&["sessions", "show", "one"][..], tenant].concat());
    assert!(of(&["--tenant", "acme"]).well().out.contains("hi"));
    assert_eq!(
        of(&[]).code,
        Some(1),
        "it is no session of the command line"
    );
}

#[test]
fn a_quiet_chat_prints_its_answers_only() {
    let home = Home::new();
    let ask = |more: &[&str]| {
        let args = [&["chat", "--provider", "offline"][..], more].concat();
        home.run_with_input(&args, "Where is the cap?\n").well()
    };

    let usual = ask(&[]);
    let quiet = ask(&["-q"]);

    assert!(usual.err.contains("new session"), "{usual:?}");
    assert_eq!((quiet.err.as_str(), quiet.out), ("", usual.out));
}

#[test]
fn a_quiet_run_and_fan_out_print_their_results_only() {
    let home = Home::new();
    let lines = home.path().join("lines");
    std::fs::write(&lines, "a\nb\n").unwrap();
    let fan_out = ["fanout", "Say {}", "--over", lines.to_str().unwrap()];

    for command in [&["run", "Where is RETRY_CAP_MS?"][..], &fan_out] {
        let usual = home.run(command).well();
        let quiet = home.run(&[command, &["--quiet"]].concat()).well();

        assert!(usual.err.contains("provider offline"), "{usual:?}");
        assert_eq!(quiet.err, "");
        assert!(!quiet.out.is_empty());
    }
}

#[test]
fn an_export_comes_back_as_it_was() {
    let home = Home::new();
    home.run(&["run", "--session", "one", "Where is RETRY_CAP_MS?"])
        .well();
    let before = home.run(&["sessions", "export", "one"]).well();
    std::fs::write(home.path().join("one.json"), &before.out).unwrap();

    home.run(&["sessions", "delete", "one"]).well();
    let gone = home.run(&["sessions", "show", "one"]);
    let file = home.path().join("one.json");
    let imported = home
        .run(&["sessions", "import", file.to_str().unwrap()])
        .well()
        .json();
    let after = home.run(&["sessions", "export", "one"]).well().json();

    let before = before.json();
    assert_eq!(gone.code, Some(1));
    assert_eq!(before["format"], "callboard.session");
    assert_eq!(
        (
            before["version"].as_u64(),
            before["conversation_id"].as_str()
        ),
        (Some(1), Some("one"))
    );
    assert_eq!(
        before["rounds"][0]["user_message"],
        "Where is RETRY_CAP_MS?"
    );
    assert_eq!(
        imported,
        json!({"conversation_id": "one", "messages": before["messages"].as_array().unwrap().len(), "repairs": []})
    );
    for part in ["messages", "rounds", "usage", "schema_version", "system"] {
        assert_eq!(after[part], before[part], "{part}");
    }
    assert_eq!(
        (
            before["schema_version"].as_str(),
            before["system"].is_null()
        ),
        (Some("1.9"), true)
    );
    assert!(before["usage"]["api_calls"].as_u64() > Some(0), "{before}");
}

#[test]
fn an_array_of_messages_is_repaired_and_the_repairs_are_printed() {
    let home = Home::new();
    let messages = json!([
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
        {"role": "user", "content": "still there?"},
    ]);

    let imported = home
        .run_with_input(
            &["sessions", "import", "-", "--session", "mended"],
            &messages.to_string(),
        )
        .well()
        .json();
    let next = home
        .run(&["sessions", "request", "mended", "--provider", "openai"])
        .well()
        .json();

    assert_eq!(
        (
            imported["conversation_id"].as_str(),
            imported["messages"].as_u64()
        ),
        (Some("mended"), Some(3))
    );
    assert_eq!(imported["repairs"][0]["index"], 1);
    assert!(
        imported["repairs"][0]["what"]
            .as_str()
            .unwrap()
            .contains("tool_use a had no result")
    );
    let roles: Vec<&str> = next["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| message["role"].as_str().unwrap())
        .collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "user"]);
}

#[test]
fn a_session_is_forked_at_a_round_and_rewound_to_one() {
    let home = Home::new();
    for prompt in [
        "Where is RETRY_CAP_MS?",
        "Where is Retries?",
        "What is src/retry.rs?",
    ] {
        home.run(&["run", "--session", "one", prompt]).well();
    }
    let whole = home.run(&["sessions", "export", "one"]).well().json();
    let rounds = whole["rounds"].as_array().unwrap();

    let second = rounds[1]["round_id"].as_str().unwrap();
    let forked = home
        .run(&[
            "sessions",
            "fork",
            "one",
            "--at",
            second,
            "--session",
            "two",
        ])
        .well()
        .json();
    let rewound = home
        .run(&["sessions", "rewind", "one", "--to", "3"])
        .well()
        .json();
    let again = home.run(&["sessions", "fork", "one", "--session", "two"]);
    let unknown = home.run(&["sessions", "fork", "one", "--at", "9"]);
    let missing = home.run(&["sessions", "fork", "onne"]);

    let left = whole["rounds"][2]["start"].as_u64().unwrap();
    assert_eq!(
        forked,
        json!({"conversation_id": "two", "messages": left, "rounds": 2})
    );
    assert_eq!(
        rewound,
        json!({"conversation_id": "one", "messages": left, "rounds": 2})
    );
    let one = home.run(&["sessions", "export", "one"]).well().json();
    let two = home.run(&["sessions", "export", "two"]).well().json();
    assert_eq!(
        (&one["messages"], &one["rounds"]),
        (&two["messages"], &two["rounds"])
    );
    assert_eq!(&one["rounds"].as_array().unwrap()[..], &rounds[..2]);
    assert!(
        again.code == Some(1) && again.err.contains("session `two` already exists"),
        "{}",
        again.err
    );
    assert!(
        unknown.code == Some(1) && unknown.err.contains("numbers 1 to 2"),
        "{}",
        unknown.err
    );
    assert!(
        missing.code == Some(1) && missing.err.contains("did you mean `one`?"),
        "{}",
        missing.err
    );
    let shown = home.run(&["sessions", "show", "two"]).well();
    assert!(
        shown.out.contains(&format!("  2  {second}  ")),
        "{}",
        shown.out
    );
    home.run(&["run", "--session", "two", "Where is RETRY_CAP_MS?"])
        .well();
}

#[test]
fn chat_forks_and_rewinds() {
    let home = Home::new();
    let lines = "Where is RETRY_CAP_MS?\nWhere is Retries?\n/fork side 1\n/rewind 2\n/rewind 7\n/history\n/quit\n";

    let ran = home
        .run_with_input(&["chat", "--session", "main"], lines)
        .well();

    assert!(ran.out.contains("copied as side"), "{}", ran.out);
    assert!(ran.err.contains("there is no round `7`"), "{}", ran.err);
    let prompts = |id: &str| -> Vec<String> {
        let export = home.run(&["sessions", "export", id]).well().json();
        export["rounds"]
            .as_array()
            .unwrap()
            .iter()
            .map(|round| round["user_message"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(
        (prompts("main"), prompts("side")),
        (
            vec!["Where is RETRY_CAP_MS?".into()],
            vec!["Where is RETRY_CAP_MS?".into()]
        )
    );
}

#[test]
fn records_of_rounds_that_do_not_fit_are_rebuilt() {
    let home = Home::new();
    let export = json!({
        "format": "callboard.session", "version": 1, "conversation_id": "x", "system": null, "usage": {},
        "messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes"}],
        "rounds": [{"start": 1}],
    });
    let of_version = |version: &str| json!({"format": "callboard.session", "version": 1, "schema_version": version, "messages": []});

    let imported = home
        .run_with_input(&["sessions", "import", "-"], &export.to_string())
        .well()
        .json();
    let [newer, first] = ["2.0", "1.0"].map(|version| {
        let export = of_version(version).to_string();
        home.run_with_input(&["sessions", "import", "-"], &export)
    });

    assert!(
        imported["repairs"][0]["what"]
            .as_str()
            .unwrap()
            .contains("rounds were derived from the messages again"),
        "{imported}"
    );
    let rounds = &home.run(&["sessions", "export", "x"]).well().json()["rounds"];
    assert_eq!(
        (
            rounds[0]["user_message"].as_str(),
            rounds[0]["start"].as_u64(),
            rounds[1].is_null()
        ),
        (Some("hello"), Some(0), true)
    );
    for (refused, why) in [
        (newer, "Cannot migrate from 2.0 to 1.9"),
        (first, "Cannot migrate from 1.0 to 1.9"),
    ] {
        assert!(
            refused.code == Some(1) && refused.err.contains(why),
            "{}",
            refused.err
        );
    }
}

#[test]
fn rounds_of_an_older_export_are_migrated() {
    let home = Home::new();
    home.run(&["run", "--session", "one", "Where is RETRY_CAP_MS?"])
        .well();
    let mut export = home.run(&["sessions", "export", "one"]).well().json();
    let calls = export["rounds"][0]["tool_metrics"].as_array_mut().unwrap();
    assert!(!calls.is_empty());
    for call in calls {
        call["output_level"] = json!("full");
    }
    let mut without = export.clone();
    for call in without["rounds"][0]["tool_metrics"].as_array_mut().unwrap() {
        call.as_object_mut().unwrap().remove("output_level");
    }
    let levels_of = |version: &str, export: &serde_json::Value| -> Vec<String> {
        let mut older = export.clone();
        older["schema_version"] = json!(version);
        let import = ["sessions", "import", "-", "--session", "two", "--replace"];
        let imported = home.run_with_input(&import, &older.to_string()).well();
        assert_eq!(imported.json()["repairs"], json!([]), "{version}");
        let export = home.run(&["sessions", "export", "two"]).well().json();
        assert_eq!(export["schema_version"], "1.9");
        let calls = export["rounds"][0]["tool_metrics"].as_array().unwrap();
        let level = |call: &serde_json::Value| call["output_level"].as_str().unwrap().to_owned();
        calls.iter().map(level).collect()
    };

    let before = levels_of("1.4", &without);
    assert!(before.iter().all(|level| level == "standard"), "{before:?}");
    for version in ["1.4", "1.5"] {
        let since = levels_of(version, &export);
        assert!(since.iter().all(|level| level == "full"), "{since:?}");
    }
}

#[test]
fn an_import_takes_no_place_unasked() {
    let home = Home::new();
    home.run(&["run", "--session", "mine", "Hello"]).well();
    let messages = r#"[{"role":"user","content":"other"}]"#;

    let refused = home.run_with_input(&["sessions", "import", "-", "--session", "mine"], messages);
    let replaced = home
        .run_with_input(
            &["sessions", "import", "-", "--session", "mine", "--replace"],
            messages,
        )
        .well();

    assert_eq!(refused.code, Some(1));
    assert!(
        refused.error().contains("already exists"),
        "{}",
        refused.err
    );
    assert_eq!(replaced.json()["messages"], 1);
}

#[test]
fn an_unknown_session_is_not_found_with_the_nearest() {
    let home = Home::new();
    home.run(&["run", "--session", "support-42", "Hello"])
        .well();

    for command in ["show", "export", "request", "reset", "delete", "repair"] {
        let ran = home.run(&["sessions", command, "suport-42"]);

        assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{command}");
        assert_eq!(
            ran.error(),
            "error: session `suport-42` not found (hint: did you mean `support-42`?)",
            "{command}"
        );
    }
}

#[test]
fn reset_empties_a_session_and_list_shows_the_sessions() {
    let home = Home::new();
    home.run(&["run", "--session", "b", "Hello"]).well();
    home.run(&["run", "--session", "a", "Hello"]).well();

    home.run(&["sessions", "reset", "b"]).well();
    let list = home.run(&["sessions", "list", "--json"]).well().json();
    let export = home.run(&["sessions", "export", "b"]).well().json();

    let mut ids: Vec<&str> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["conversation_id"].as_str().unwrap())
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, ["a", "b"]);
    assert_eq!(export["messages"], json!([]));
}

#[test]
fn a_list_of_nothing_makes_no_file() {
    let home = Home::new();

    let list = home.run(&["sessions", "list", "--json"]).well();
    let named = home.run(&["sessions", "list", "--db", "no-such.db"]);

    assert_eq!(list.json(), json!([]));
    assert_eq!(named.code, Some(1));
    assert!(
        named
            .error()
            .contains("there is no session file no-such.db"),
        "{}",
        named.err
    );
    assert!(!home.path().join("home/.local").exists() && !home.work().join("no-such.db").exists());
}

#[test]
fn a_damaged_journal_gives_what_is_readable_and_is_mended_without_loss() {
    let home = Home::new();
    home.run(&["run", "--session", "hurt", "--db", "s.db", "Hello"])
        .well();
    home.run(&["run", "--session", "hurt", "--db", "s.db", "Hello again"])
        .well();
    damage_last_prompt(&home.work().join("s.db"));

    let refused = home.run(&["run", "--session", "hurt", "--db", "s.db", "Hello"]);
    let export = home.run(&["sessions", "export", "hurt", "--db", "s.db"]);
    let repaired = home
        .run(&["sessions", "repair", "hurt", "--db", "s.db"])
        .well();
    let again = home
        .run(&["run", "--session", "hurt", "--db", "s.db", "Hello"])
        .well();
    let kept = std::fs::read_to_string(home.work().join("s.db.hurt.damaged-1.json")).unwrap();
    let kept: serde_json::Value = serde_json::from_str(&kept).unwrap();

    assert_eq!(refused.code, Some(1));
    assert!(
        refused.error().contains("sessions repair hurt"),
        "{}",
        refused.err
    );
    assert_eq!(
        (
            export.code,
            export.json()["messages"].as_array().unwrap().len()
        ),
        (Some(1), 2)
    );
    assert_eq!(repaired.json()["messages"], 2);
    assert!(
        again.err.contains("session hurt, 2 messages"),
        "{}",
        again.err
    );
    assert!(
        kept["journal"].to_string().contains("Hello again"),
        "nothing is lost"
    );
}

/// Changes the last accepted prompt to an entry of an unknown kind, and deletes the snapshots that
/// could hide it.
fn damage_last_prompt(file: &std::path::Path) {
    let conn = rusqlite::Connection::open(file).unwrap();
    let mut statement = conn
        .prepare("SELECT name FROM sqlite_master WHERE type = 'table'")
        .unwrap();
    let tables: Vec<String> = statement
        .query_map([], |row| row.get(0))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    drop(statement);
    if tables.iter().any(|table| table == "snapshot") {
        conn.execute("DELETE FROM snapshot", []).unwrap();
    }
    let row: (i64, Vec<u8>) = conn
        .query_row(
            "SELECT id, CAST(body AS BLOB) FROM journal WHERE CAST(body AS TEXT) LIKE '%prompt_accepted%' ORDER BY seq DESC LIMIT 1",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .unwrap();
    let text = String::from_utf8(row.1)
        .unwrap()
        .replace("prompt_accepted", "prompt_acceptex");
    assert_eq!(
        conn.execute(
            "UPDATE journal SET body = ?1 WHERE id = ?2",
            (text.into_bytes(), row.0)
        )
        .unwrap(),
        1
    );
}

/// Files of artifacts, with their metadata.
fn artifacts(home: &Home) -> usize {
    let folder = home.path().join("home/.local/share/callboard/artifacts");
    let mut open = vec![folder];
    let mut found = 0;
    while let Some(next) = open.pop() {
        for entry in std::fs::read_dir(next).into_iter().flatten().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => open.push(entry.path()),
                false => found += 1,
            }
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_session_kept_beside_its_journal_goes_with_it() {
    for (ended, by) in [("one", "delete"), ("two", "reset")] {
        let home = Home::new();
        for session in [ended, "other"] {
            let page = Reply::status(200)
                .header("content-type", "text/plain")
                .send(format!("{session} {}", "long line\n".repeat(9_000)));
            let server = ModelServer::start([Reply::status(500)]).await;
            let fetch = anthropic_tool(
                "web_fetch",
                &json!({ "url": format!("{}/page", server.url()) }),
            );
            server.script([
                Reply::events(fetch),
                page,
                Reply::events(anthropic_text("Read.")),
            ]);
            let args = [
                "run",
                "--provider",
                "anthropic",
                "--base-url",
                &server.url(),
                "--approve",
                "auto",
                "--session",
                session,
                "Read it.",
            ];
            let mut command = home.command(&args);
            let ran = super::Ran::of(
                &args,
                command
                    .env("CALLBOARD_TOOLS__WEB_FETCH__ALLOW_HOSTS", "127.0.0.1")
                    .spawn()
                    .unwrap(),
            );
            assert_eq!(ran.well().out, "Read.\n");
            let shown = server.requests().last().unwrap().json()["messages"].to_string();
            assert!(shown.contains("read_more(result_id="), "{shown}");
        }
        let before = artifacts(&home);

        home.run(&["sessions", by, ended]).well();

        assert_eq!(
            (before, artifacts(&home)),
            (4, 2),
            "{by}: the other session keeps its own"
        );
    }
}

#[test]
fn an_import_with_a_block_that_no_provider_knows_is_refused_with_its_place() {
    let home = Home::new();
    let import = |content: serde_json::Value| {
        let history = json!([
            { "role": "user", "content": "hi" },
            { "role": "assistant", "content": "yes?" },
            { "role": "user", "content": [{ "type": "text", "text": "look" }, content] },
        ]);
        let ran = home.run_with_input(&["sessions", "import", "-"], &history.to_string());
        assert_eq!(ran.code, Some(1), "{ran:?}");
        ran.error().to_owned()
    };

    assert_eq!(
        import(json!({ "type": "img" })),
        "error: message 2: /2/content/1: a block of type img is broken: a prompt has blocks of type `text`, `image` and `document`"
    );
    let call = json!({ "type": "tool_use", "id": "t", "name": "bash", "input": {} });
    assert!(import(call).contains("tool_use does not belong into a User message"));
}
