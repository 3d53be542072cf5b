//! `serve` refuses to start with less than its configuration says, and the operator decides about
//! tenants' instructions.

use reqwest::Method;
use serde_json::json;

use super::Ground;
use crate::{
    cli::serve::{Key, Served, configure},
    support::model_server::{ModelServer, Reply, anthropic_text},
};

#[test]
fn serve_does_not_begin_with_a_file_that_is_not_trusted() {
    let ground = Ground::new("[[tenant]]\nid = \"acme\"\n");

    let ran = ground.run(&["serve", "--listen", "127.0.0.1:0"]);

    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert_eq!(
        ran.error(),
        "error: callboard.toml: it is not trusted; trust it with `callboard trust`, or name it with `--config callboard.toml`"
    );
    assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn serve_begins_with_a_trusted_file_and_a_changed_one_is_not_reloaded() {
    let ground = Ground::new("");
    let key = Key::new(&ground.home);
    let config = format!(
        "[[tenant]]\nid = \"acme\"\nkey_sha256 = \"{}\"\n[[provider]]\nkind = \"offline\"\n",
        key.hash
    );
    ground.write("callboard.toml", &config);
    ground.run(&["trust", "--yes"]).well();
    let served = Served::of(
        ground
            .home
            .command_in(&ground.repo, &["serve", "--listen", "127.0.0.1:0"]),
    );
    assert!(served.opens(&key.key).await);

    ground.write(
        "callboard.toml",
        &format!("{config}[tools]\napprove = \"auto\"\n"),
    );
    served.signal("HUP");

    served.wait_for_log(
        "not reloaded, nothing changed: callboard.toml: it changed since it was trusted",
    );
    assert!(served.opens(&key.key).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_way_from_a_new_key_to_a_host_that_serves_has_three_commands() {
    let ground = Ground::new("");
    let made = ground.run(&["keys", "new", "--tenant", "acme"]).well().out;
    let key = made
        .lines()
        .find_map(|line| line.strip_prefix("key:"))
        .unwrap()
        .trim();
    let (text, lines) = made.split_once("\n\n[[tenant]]").unwrap();
    assert!(
        text.contains("`callboard --config callboard.toml serve`"),
        "{text}"
    );

    ground.write(
        "callboard.toml",
        &format!("[[tenant]]{lines}\n[[provider]]\nkind = \"offline\"\n"),
    );
    let args = [
        "--config",
        "callboard.toml",
        "serve",
        "--listen",
        "127.0.0.1:0",
    ];
    let served = Served::of(ground.home.command_in(&ground.repo, &args));

    assert!(served.opens(key).await, "{}", served.err());
    assert!(!served.err().contains("not trusted"), "{}", served.err());
}

#[tokio::test(flavor = "multi_thread")]
async fn instructions_of_a_tenants_workspace_are_read_where_the_operator_allows_it() {
    let ground = Ground::new("");
    let plain = Key::new(&ground.home);
    let instructed = Key::new(&ground.home);
    let model = ModelServer::start([Reply::events(anthropic_text("Yes."))]).await;
    ground.write("one/AGENTS.md", "Answer in haiku.");
    ground.write("two/AGENTS.md", "Answer in haiku.");
    std::fs::write(ground.home.work().join("key"), super::KEY).unwrap();
    let tenant = |id: &str, key: &Key, folder: &str, more: &str| {
        let folder = ground.repo.join(folder);
        format!(
            "[[tenant]]\nid = \"{id}\"\nkey_sha256 = \"{}\"\nworkspace = \"{}\"\n{more}\n",
            key.hash,
            folder.display()
        )
    };
    let provider = format!(
        "[[provider]]\nname = \"m\"\nkind = \"anthropic\"\nbase_url = \"{}\"\napi_key_file = \"key\"\n",
        model.url()
    );
    let tenants = [
        tenant("a", &plain, "one", ""),
        tenant("b", &instructed, "two", "project_instructions = true"),
    ]
    .concat();
    configure(&ground.home, &(provider + &tenants));
    let served = Served::start(&ground.home, &[]);

    for key in [&plain, &instructed] {
        let body = json!({"content": "Hello"});
        assert_eq!(
            served
                .ask(
                    Method::POST,
                    "/v1/conversations/c/messages",
                    &key.key,
                    Some(body)
                )
                .await
                .body["status"],
            "completed"
        );
    }

    let systems: Vec<bool> = model
        .requests()
        .iter()
        .map(|request| request.json()["system"].to_string().contains("haiku"))
        .collect();
    assert_eq!(systems, [false, true]);
    assert!(
        served.err().contains(
            "tenant a: AGENTS.md of the workspace is not used: `project_instructions` is not set"
        ),
        "{}",
        served.err()
    );
}
