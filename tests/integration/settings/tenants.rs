//! `[[tenant]]`: each setting, seen by a client or by the model's server.

use std::time::{Duration, Instant};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::{Home, Key, Served, answers, configure, provider};
use crate::{
    cli::{serve::Answer, wait_for},
    support::model_server::{ModelServer, Reply, anthropic_call, anthropic_text},
};

/// A host with one tenant.
pub(super) struct Of {
    served: Served,
    key: Key,
    home: Home,
}

/// Starts a host whose tenant has these lines; `shared` stands before it.
pub(super) fn of(model: &ModelServer, shared: &str, lines: &str) -> Of {
    let home = Home::new();
    let key = Key::new(&home);
    std::fs::write(home.work().join("key"), "sk-test-not-a-real-key").unwrap();
    std::fs::create_dir(home.path().join("of-acme")).unwrap();
    for name in ["one", "two", "three", "four"] {
        let skill = home.path().join("skills").join(name);
        std::fs::create_dir_all(&skill).unwrap();
        let text = format!("---\nname: {name}\ndescription: Helps.\n---\nHelp.\n");
        std::fs::write(skill.join("SKILL.md"), text).unwrap();
    }
    configure(
        &home,
        &format!(
            "{}max_tokens = 100\n[sandbox]\nmode = \"none\"\n{shared}\n[[tenant]]\nid = \"acme\"\nkey_sha256 = \"{}\"\n{lines}\n",
            provider("p", model),
            key.hash,
        ),
    );
    let served = Served::start(&home, &[]);
    Of { served, key, home }
}

impl Of {
    pub(super) async fn ask(&self, method: Method, path: &str, body: Value) -> Answer {
        self.served
            .ask(method, path, &self.key.key, Some(body))
            .await
    }

    pub(super) async fn say(&self, conversation: &str, text: &str) -> Answer {
        let path = format!("/v1/conversations/{conversation}/messages");
        self.ask(Method::POST, &path, json!({"content": text}))
            .await
    }
}

impl Of {
    /// The unparsed answer to GET.
    pub(super) async fn text(&self, path: &str) -> String {
        let key = &self.key.key;
        self.served.text(Method::GET, path, key, None, &[]).await
    }

    /// Waits until this query of the database returns a row.
    pub(super) fn until_stored(&self, sql: &str) {
        let file = self
            .home
            .path()
            .join("home/.local/share/callboard/callboard.db");
        let database = rusqlite::Connection::open(file).unwrap();
        wait_for(sql, || database.prepare(sql).unwrap().exists([]).unwrap());
    }

    /// A streamed call of Chat Completions without a conversation, from which this many bytes came.
    pub(super) async fn single_call(&self, bytes: usize) -> reqwest::Response {
        let path = "/openai/v1/chat/completions";
        let call = self
            .served
            .client
            .post(format!("{}{path}", self.served.url));
        let messages = json!([{"role": "user", "content": "Go."}]);
        let body = json!({"model": "default", "messages": messages, "stream": true});
        let call = call
            .bearer_auth(&self.key.key)
            .header("content-type", "application/json")
            .body(body.to_string());
        let mut answer = call.send().await.unwrap();
        let mut came = 0;
        while came < bytes {
            came += answer.chunk().await.unwrap().unwrap().len();
        }
        answer
    }

    /// Ends the host with SIGKILL and starts it again.
    pub(super) fn restart_after_a_kill(&mut self) {
        self.restart_after(&["KILL"]);
    }

    /// Ends the host with these signals and starts it again.
    pub(super) fn restart_after(&mut self, signals: &[&str]) {
        for signal in signals {
            self.served.signal(signal);
            if *signal != "KILL" {
                self.served.wait_for_log("another signal stops at once");
            }
        }
        self.served.wait_for_end();
        self.served = Served::start(&self.home, &[]);
    }
}

fn calls(name: &str, input: &Value) -> Reply {
    Reply::events(anthropic_call(&format!("t-{name}"), name, input))
}

fn done() -> Reply {
    Reply::events(anthropic_text("Done."))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenants_provider_is_asked_for_its_model_in_its_way() {
    let first = answers("no").await;
    let own = answers("ok").await;
    let of = of(
        &first,
        &format!("{}model = \"claude-usual\"\n", provider("own", &own)),
        "provider = \"own\"\nmodel = \"claude-dear\"\nsystem = \"Speak up.\"\nmax_tokens = 3000\neffort = \"high\"\n\
         thinking = 2000\ntemperature = 0.5\nstop = [\"END\"]\ntools = [\"think\"]",
    );

    let answer = of.say("c", "Hi").await;

    assert_eq!(answer.body["text"], "ok", "{answer:?}");
    let asked = own.requests().pop().unwrap().json();
    assert_eq!(
        [
            &asked["model"],
            &asked["max_tokens"],
            &asked["temperature"],
            &asked["stop_sequences"]
        ],
        [
            &json!("claude-dear"),
            &json!(3000),
            &json!(0.5),
            &json!(["END"])
        ]
    );
    assert_eq!(asked["output_config"]["effort"], "high");
    assert_eq!(asked["thinking"]["budget_tokens"], 2000);
    let system = asked["system"].to_string();
    assert!(system.contains("Speak up."), "{asked}");
    assert!(!system.contains("compacted"), "it has no memory: {asked}");
    let offered: Vec<&Value> = asked["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| &tool["name"])
        .collect();
    assert_eq!(offered, ["think", "recall"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenants_tools_work_in_its_folder_without_approval_if_it_says_so() {
    let edit = json!({"path": "new.txt", "old_text": "", "new_text": "hello"});
    let model = ModelServer::start([calls("file_edit", &edit), done()]).await;
    let of = of(&model, "", "workspace = \"../of-acme\"\napprove = \"auto\"");

    of.say("c", "go").await;

    assert!(of.home.path().join("of-acme/new.txt").is_file());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_memory_of_a_tenant_is_shared_where_its_section_says_so() {
    for (scope, shared) in [("tenant", true), ("conversation", false)] {
        let write = json!({"action": "write", "path": "note.md", "content": "remember this"});
        let view = json!({"action": "view", "path": "note.md"});
        let model = ModelServer::start([
            calls("memory", &write),
            done(),
            calls("memory", &view),
            done(),
        ])
        .await;
        let of = of(
            &model,
            "",
            &format!("memory = \"{scope}\"\napprove = \"auto\""),
        );

        of.say("one", "go").await;
        of.say("two", "go").await;

        let asked = model.requests().pop().unwrap().json();
        let seen = asked["messages"].to_string();
        assert_eq!(seen.contains("remember this"), shared, "{scope}: {seen}");
        let system = asked["system"].to_string();
        assert!(system.contains("can be compacted at any time"), "{system}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_that_is_paused_is_refused() {
    let model = answers("ok").await;
    let of = of(&model, "", "paused = true");

    let refused = of.say("c", "Hi").await;

    assert!(!refused.status.is_success(), "{refused:?}");
    assert_eq!(model.requests().len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_quota_of_a_tenant_leaves_no_room_for_is_refused() {
    for (quota, says) in [
        ("conversations_max = 1", "conversations of this tenant"),
        (
            "requests_per_minute = 1",
            "prompts of this tenant in a minute",
        ),
        ("tokens_per_minute = 5", "tokens of this tenant"),
        ("stored_bytes_max = 4000", "stored bytes of this tenant"),
    ] {
        let model = answers("ok").await;
        let of = of(&model, "", &format!("quotas = {{ {quota} }}"));

        let first = of.say("one", "Hi").await;
        let second = of.say("two", &"word ".repeat(1000)).await;

        assert_eq!(first.status, StatusCode::OK, "{quota}: {first:?}");
        assert!(!second.status.is_success(), "{quota}: {second:?}");
        let refused = second.body.to_string();
        assert!(refused.contains(says), "{quota}: {refused}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_has_as_many_rounds_and_prompts_at_once_as_its_quotas_say() {
    let slow = Reply::events(anthropic_text("ok")).delay(Duration::from_millis(600));
    let model = ModelServer::start([slow]).await;
    let begun = Instant::now();
    let of_rounds = of(&model, "", "quotas = { turns_max = 1 }");
    let (one, two) = tokio::join!(of_rounds.say("one", "Hi"), of_rounds.say("two", "Hi"));
    assert_eq!((one.status, two.status), (StatusCode::OK, StatusCode::OK));
    assert!(begun.elapsed() > Duration::from_millis(1200));

    // One prompt is always admitted, whatever its size.
    for quota in ["prompts_max = 1", "memory_bytes_max = 1000"] {
        let of = of(&model, "", &format!("quotas = {{ {quota} }}"));
        let (one, two) = tokio::join!(of.say("one", "Hi"), of.say("two", "Hi"));
        let mut statuses = [one.status, two.status];
        statuses.sort();
        let expected = [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS];
        assert_eq!(statuses, expected, "{quota}");
    }
}

/// An answer that says that it took 1000 tokens of input: 0.1 dollars.
fn large() -> Reply {
    let events = anthropic_text("ok");
    let events = events
        .iter()
        .map(|event| event.replace("\"input_tokens\":5", "\"input_tokens\":1000"));
    Reply::events(events).delay(Duration::from_millis(50))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rounds_end_when_a_budget_of_the_tenant_or_of_its_conversation_is_used_up() {
    const PRICES: &str = "[prices]\n\"*\" = { input = 100, output = 200 }";
    for budget in ["tokens = 900", "usd = 0.09", "wall_s = 0.04"] {
        for level in ["budget", "conversation_budget"] {
            let model = ModelServer::start([large()]).await;
            let of = of(
                &model,
                PRICES,
                &format!("tools = []\n{level} = {{ {budget} }}"),
            );

            let first = of.say("one", "Hi").await;
            let second = of.say("one", "Hi").await;
            let of_other = of.say("two", "Hi").await;

            let ends = [second, of_other].map(|answer| answer.body["stop_reason"].clone());
            let other = if level == "budget" {
                "budget"
            } else {
                "end_turn"
            };
            let timed = budget.starts_with("wall_s");
            assert!(
                timed || first.body["stop_reason"] == "end_turn",
                "{first:?}"
            );
            assert!(
                ends[0] == "budget" && (timed || ends[1] == other),
                "{level} {budget}: {ends:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn skills_nest_as_deeply_as_the_configuration_says() {
    for (setting, most) in [
        ("", 3),
        ("[skills]\ndepth_max = 1\n", 1),
        ("[skills]\ntoken_budget = 1000\n", 2),
    ] {
        let model = answers("ok").await;
        let of = of(&model, setting, "skills = \"../skills\"");
        let _ = of.ask(Method::PUT, "/v1/conversations/c", json!({})).await;
        let mut active = 0;
        for name in ["one", "two", "three", "four"] {
            let path = format!("/v1/conversations/c/skills/{name}");
            let answer = of.ask(Method::POST, &path, json!({})).await;
            active += usize::from(answer.status.is_success());
        }

        assert_eq!(active, most, "{setting}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_and_compaction_of_the_file_reach_the_hosts_of_run_and_serve() {
    let think = calls("think", &json!({"thought": "hm"}));
    let model = ModelServer::start([think]).await;
    let settings = format!(
        "{}context_window = 36000\n[limits]\ntool_iterations_max = 2\n\
         [compaction]\ntrigger = 0.6\nenable_llm_summarization = false\n",
        provider("small", &model)
    );
    let of = of(
        &model,
        &settings,
        "provider = \"small\"\ntools = [\"think\"]",
    );
    let messages = long_history(); // Between 60 % of the window and 80 %, the usual trigger.

    let put = json!({"messages": messages});
    of.ask(Method::PUT, "/v1/conversations/c", put).await;
    let by_serve = of.say("c", "go").await.body;
    let report = "/v1/conversations/c/report";
    let report = of.served.get(report, &of.key.key).await.body;
    let calls_by_serve = model.requests().len();
    let Of { served, home, .. } = of;
    served.stop();
    let session = json!({"format": "callboard.session", "version": 1, "conversation_id": "s", "system": null, "usage": {}, "messages": messages});
    home.run_with_input(&["sessions", "import", "-"], &session.to_string())
        .well();
    let run = "run --json --provider small --session s --tools think go";
    let by_run = home.run(&run.split(' ').collect::<Vec<_>>()).events();
    let calls_by_run = model.requests().len() - calls_by_serve;

    assert_eq!(by_serve["stop_reason"], "iteration_limit");
    assert_eq!(by_run.last().unwrap()["stop_reason"], "iteration_limit");
    assert_eq!(calls_by_serve, calls_by_run);
    assert_eq!(report["metrics"]["compression_events"], 1, "{report}");
    let is_compaction = |event: &Value| event["type"] == "compaction";
    assert!(by_run.iter().any(is_compaction), "{by_run:?}");
}

/// About 24,000 tokens.
fn long_history() -> Vec<Value> {
    let message = |n: usize| {
        let role = ["user", "assistant"][n % 2];
        json!({"role": role, "content": format!("{n} {}", "words of a person ".repeat(50))})
    };
    (0..120).map(message).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_summary_is_asked_of_the_configured_model_in_the_configured_length() {
    let model = answers("SUMMARY").await;
    let settings = "[compaction]\nsummary_model = \"claude-summary\"\nmax_summary_tokens = 77\n";
    let of = of(&model, settings, "tools = []");
    let put = json!({"messages": long_history()});
    let made = of.ask(Method::PUT, "/v1/conversations/c", put).await;
    assert_eq!(made.status, StatusCode::CREATED);

    let done = of
        .ask(Method::POST, "/v1/conversations/c/compact", json!({}))
        .await;

    assert!(done.status.is_success(), "{done:?}");
    let asked = model.requests();
    assert!(!asked.is_empty());
    for asked in asked {
        let asked = asked.json();
        assert_eq!(
            (&asked["model"], &asked["max_tokens"]),
            (&json!("claude-summary"), &json!(77))
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_workspace_of_a_tenant_holds_as_much_as_limits_and_quotas_say() {
    for (shared, quota) in [
        ("[limits]\ntenant_workspace_files_max = 1", ""),
        ("[limits]\ntenant_workspace_bytes_max = 1", ""),
        ("", "quotas = { workspace_files_max = 1 }"),
        ("", "quotas = { workspace_bytes_max = 1 }"),
    ] {
        let edit = |path: &str| {
            let input = json!({"path": path, "old_text": "", "new_text": "hello"});
            Reply::events(anthropic_call(&format!("t-{path}"), "file_edit", &input))
        };
        let model = ModelServer::start([edit("one"), edit("two"), done()]).await;
        let lines = format!("workspace = \"../of-acme\"\napprove = \"auto\"\n{quota}");
        let of = of(&model, shared, &lines);

        of.say("c", "go").await;

        let seen = model.requests().pop().unwrap().json().to_string();
        assert!(
            seen.contains("the workspace's quota is 1 "),
            "{shared}{quota}: {seen}"
        );
        assert!(!of.home.path().join("of-acme/two").exists());
    }
}
