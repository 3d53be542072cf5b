//! Tools of the tenants of `serve`: separate MCP servers, approvals, skills.

use std::{path::Path, time::Duration};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json, value::RawValue};

use super::{Home, Key, Served, configure, wait_for};
use crate::support::model_server::{ModelServer, Reply, anthropic_text, anthropic_tool};

const PEER: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/integration/support/mcp_peer.py"
);

/// A home with a provider at `model`, and additional lines of configuration.
fn home(model: &ModelServer) -> (Home, String) {
    let home = Home::new();
    std::fs::write(home.work().join("key"), "sk-test-not-a-real-key").unwrap();
    let provider = format!(
        "[[provider]]\nname = \"p\"\nkind = \"anthropic\"\nbase_url = \"{}\"\napi_key_file = \"key\"\n",
        model.url()
    );
    (home, format!("[sandbox]\nmode = \"none\"\n{provider}"))
}

fn folder(home: &Home, name: &str) -> std::path::PathBuf {
    let folder = home.path().join(name);
    std::fs::create_dir(&folder).unwrap();
    folder
}

/// Names of the tools that a request offers.
fn offered(request: &Value) -> Vec<&str> {
    request["tools"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|tool| tool["name"].as_str())
        .collect()
}

fn lines(file: &Path) -> Vec<String> {
    std::fs::read_to_string(file)
        .unwrap_or_default()
        .lines()
        .map(ToOwned::to_owned)
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_finds_no_program_that_a_tenant_left_in_its_workspace() {
    let model = ModelServer::start([]).await;
    let (home, provider) = home(&model);
    let acme = Key::new(&home);
    let workspace = folder(&home, "of-acme");
    let mark = home.path().join("mark");
    std::fs::create_dir(workspace.join("planted")).unwrap();
    std::fs::write(
        workspace.join("planted/__main__.py"),
        format!("open({mark:?}, 'w')\n"),
    )
    .unwrap();
    let tenant = format!(
        "[[tenant]]\nid = \"acme\"\nkey_sha256 = \"{}\"\nworkspace = {workspace:?}\ntools = [\"think\", \"peer__echo\"]\n",
        acme.hash
    );
    let server = |cwd: &str| {
        format!(
            "[[mcp]]\nname = \"peer\"\ncommand = \"python3\"\nargs = [\"-m\", \"planted\"]\nstart_timeout_ms = 10000\n{cwd}\n"
        )
    };
    // The folder of the file is not meant for tenants either.
    for (cwd, starts) in [
        ("", false),
        ("cwd = \".\"", false),
        ("cwd = \"${workspace}\"", true),
    ] {
        configure(
            &home,
            &[provider.clone(), tenant.clone(), server(cwd)].concat(),
        );
        let served = Served::start(&home, &[]);
        drop(served);
        assert_eq!(mark.exists(), starts, "{cwd}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_of_an_mcp_server_are_for_tenants_that_name_them_each_with_a_process_in_its_own_workspace()
 {
    let echo = |text: &str| Reply::events(anthropic_tool("peer__echo", &json!({ "text": text })));
    let done = || Reply::events(anthropic_text("Done."));
    let model =
        ModelServer::start([echo("of acme"), done(), echo("of beta"), done(), done()]).await;
    let (home, provider) = home(&model);
    let keys = [Key::new(&home), Key::new(&home), Key::new(&home)];
    let workspaces = ["of-acme", "of-beta", "of-gamma"].map(|name| folder(&home, name));
    let tenant = |n: usize, id: &str, more: &str| {
        format!(
            "[[tenant]]\nid = \"{id}\"\nkey_sha256 = \"{}\"\nworkspace = {:?}\napprove = \"auto\"\n{more}",
            keys[n].hash, workspaces[n]
        )
    };
    let names = "tools = [\"think\", \"peer__echo\"]\n";
    let server = format!(
        "[[mcp]]\nname = \"peer\"\ncommand = \"python3\"\nargs = [{PEER:?}, \"plain\", \".\"]\ncwd = \"${{workspace}}\"\n"
    );
    let file = [
        provider,
        tenant(0, "acme", names),
        tenant(1, "beta", names),
        tenant(2, "gamma", ""),
        server,
    ]
    .concat();
    configure(&home, &file);
    let served = Served::start(&home, &[]);

    for (key, of_tenant) in keys.iter().zip([Some("of acme"), Some("of beta"), None]) {
        let body = Some(json!({ "content": "go" }));
        let answer = served
            .ask(Method::POST, "/v1/conversations/c/messages", &key.key, body)
            .await;
        assert_eq!(answer.body["stop_reason"], "end_turn", "{answer:?}");
        let history = served
            .get("/v1/conversations/c/messages", &key.key)
            .await
            .body
            .to_string();
        assert_eq!(
            history.contains("tool_result"),
            of_tenant.is_some(),
            "{history}"
        );
        assert!(
            of_tenant.is_none_or(|of_tenant| history.contains(of_tenant)),
            "{history}"
        );
    }

    let requests: Vec<Value> = model
        .requests()
        .iter()
        .map(crate::support::model_server::Recorded::json)
        .collect();
    for request in &requests[..4] {
        let of_servers: Vec<_> = offered(request)
            .into_iter()
            .filter(|name| name.contains("__"))
            .collect();
        assert_eq!(
            of_servers,
            ["peer__echo"],
            "that which it names and no other of the server"
        );
    }
    assert!(
        !offered(&requests[4]).iter().any(|name| name.contains("__")),
        "who names none has none: {:?}",
        offered(&requests[4])
    );
    let starts = workspaces
        .each_ref()
        .map(|workspace| lines(&workspace.join("starts")));
    assert_eq!(
        starts.each_ref().map(Vec::len),
        [1, 1, 0],
        "a process each, in its own folder"
    );
    let frames = workspaces
        .each_ref()
        .map(|workspace| lines(&workspace.join("frames")).concat());
    assert!(
        frames[0].contains("of acme") && !frames[0].contains("of beta"),
        "no process hears of two tenants: {}",
        frames[0]
    );
    let variables = |pid: &str| {
        String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default())
            .into_owned()
    };
    for (starts, id) in starts.iter().zip(["acme", "beta"]) {
        assert!(
            variables(&starts[0])
                .split('\0')
                .any(|variable| variable == format!("CALLBOARD_TENANT={id}"))
        );
    }

    configure(&home, &file.replace("id = \"beta\"", "id = \"delta\""));
    served.signal("HUP");
    served.wait_for_log("removed beta");
    let gone = |pid: &str| !Path::new(&format!("/proc/{pid}")).exists();
    wait_for("the end of its process", || gone(&starts[1][0]));
    assert!(!gone(&starts[0][0]), "another tenant's goes on");
    assert_eq!(served.stop().code, Some(0));
    wait_for("the end of all", || gone(&starts[0][0]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_asks_is_allowed_by_the_route_and_then_made() {
    let edit = json!({ "path": "notes.txt", "old_text": "old", "new_text": "new" });
    let model = ModelServer::start([
        Reply::events(anthropic_tool("file_edit", &edit)),
        Reply::events(anthropic_text("Changed.")),
    ])
    .await;
    let (home, provider) = home(&model);
    let acme = Key::new(&home);
    let workspace = folder(&home, "of-acme");
    let note = workspace.join("notes.txt");
    std::fs::write(&note, "old words").unwrap();
    let tenant = format!(
        "[[tenant]]\nid = \"acme\"\nkey_sha256 = \"{}\"\nworkspace = {workspace:?}\napprove = \"ask\"\n",
        acme.hash
    );
    configure(&home, &[provider, tenant].concat());
    let served = Served::start(&home, &[]);
    let body = Some(json!({ "content": "change it" }));
    let answer = served
        .ask_with(
            Method::POST,
            "/v1/conversations/c/messages",
            &acme.key,
            body,
            &[("prefer", "respond-async")],
        )
        .await;
    let round = answer.body["round_id"].as_str().unwrap().to_owned();
    let asked = tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            let standing = served.get("/v1/conversations/c", &acme.key).await.body;
            if standing["waits_for"]["kind"] == "person" {
                break standing;
            }
            tokio::task::yield_now().await;
        }
    });
    let asked = asked.await.expect("a person is asked");
    assert_eq!(
        (
            asked["state"].as_str(),
            std::fs::read_to_string(&note).unwrap().as_str()
        ),
        (Some("parked"), "old words")
    );
    let call = asked["waits_for"]["tool_call_ids"][0]
        .as_str()
        .unwrap()
        .to_owned();

    let unknown = served
        .ask(
            Method::POST,
            "/v1/conversations/c/approvals/unknown",
            &acme.key,
            Some(json!({ "allow": true })),
        )
        .await;
    let path = format!("/v1/conversations/c/approvals/{call}");
    let answer = |body| served.ask(Method::POST, &path, &acme.key, Some(body));
    for (body, code) in [
        (
            json!({ "allow": true, "input": { "nonsense": 1 } }),
            "invalid_arguments",
        ),
        (json!({ "allow": false, "input": {} }), "invalid_field"),
        (
            json!({ "allow": true, "always": true, "input": {} }),
            "invalid_field",
        ),
        (json!({ "allow": true, "reason": "why" }), "invalid_field"),
    ] {
        let refused = answer(body.clone()).await;
        assert_eq!(
            (refused.status, refused.body["code"].as_str()),
            (StatusCode::UNPROCESSABLE_ENTITY, Some(code)),
            "{body} {refused:?}"
        );
    }
    // As text, because a value has no field twice.
    let twice = r#"{ "allow": true, "input": { "path": "a", "path": "notes.txt", "old_text": "old", "new_text": "x" } }"#;
    let twice: Box<RawValue> = serde_json::from_str(twice).unwrap();
    let refused = served
        .client
        .post(format!("{}{path}", served.url))
        .bearer_auth(&acme.key)
        .json(&twice)
        .send()
        .await
        .unwrap();
    assert_eq!(refused.status(), StatusCode::UNPROCESSABLE_ENTITY);
    let refused = refused.text().await.unwrap();
    assert!(refused.contains("`path`"), "{refused}");
    let input = json!({ "path": "notes.txt", "old_text": "old", "new_text": "changed" });
    let allowed = answer(json!({ "allow": true, "input": input })).await;
    let events = served
        .text(
            Method::GET,
            &format!("/v1/conversations/c/events?round={round}&after=0.0.0"),
            &acme.key,
            None,
            &[],
        )
        .await;

    assert_eq!(
        (unknown.status, allowed.status),
        (StatusCode::NOT_FOUND, StatusCode::NO_CONTENT),
        "{unknown:?} {allowed:?}"
    );
    assert_eq!(std::fs::read_to_string(&note).unwrap(), "changed words");
    let order = [
        "event: approval_required",
        "event: tool_result",
        "event: round_finished",
    ]
    .map(|event| events.find(event));
    assert!(
        order.iter().all(Option::is_some) && order.is_sorted(),
        "{events}"
    );
    assert!(events.contains("Changed."), "{events}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_skill_of_the_tenants_folder_is_listed_activated_and_sent_to_the_model() {
    let model = ModelServer::start([Reply::events(anthropic_text("As it says."))]).await;
    let (home, provider) = home(&model);
    let acme = Key::new(&home);
    let beta = Key::new(&home);
    let skills = folder(&home, "skills-of-acme");
    std::fs::create_dir(skills.join("greeting")).unwrap();
    let text =
        "---\nname: greeting\ndescription: How to greet.\n---\nGreet with the word zephyr.\n";
    std::fs::write(skills.join("greeting/SKILL.md"), text).unwrap();
    let tenants = format!(
        "[[tenant]]\nid = \"acme\"\nkey_sha256 = \"{}\"\nskills = {skills:?}\n[[tenant]]\nid = \"beta\"\nkey_sha256 = \"{}\"\n",
        acme.hash, beta.hash
    );
    configure(&home, &[provider, tenants].concat());
    let served = Served::start(&home, &[]);
    let path = "/v1/conversations/c/skills";
    for key in [&acme.key, &beta.key] {
        assert_eq!(
            served
                .ask(Method::PUT, "/v1/conversations/c", key, Some(json!({})))
                .await
                .status,
            StatusCode::CREATED
        );
    }

    let listed = served.get(path, &acme.key).await.body;
    let activated = served
        .ask(Method::POST, &format!("{path}/greeting"), &acme.key, None)
        .await;
    let foreign = served
        .ask(Method::POST, &format!("{path}/greeting"), &beta.key, None)
        .await;
    let answer = served
        .ask(
            Method::POST,
            "/v1/conversations/c/messages",
            &acme.key,
            Some(json!({ "content": "hello" })),
        )
        .await;

    assert_eq!(listed["skills"][0]["name"], "greeting", "{listed}");
    assert!(
        activated.status.is_success() && foreign.status.is_client_error(),
        "{activated:?} {foreign:?}"
    );
    assert_eq!(answer.body["text"], "As it says.", "{answer:?}");
    assert!(
        model.requests()[0]
            .json()
            .to_string()
            .contains("the word zephyr"),
        "the model reads it"
    );
    let listed = served.get(path, &acme.key).await.body;
    assert_eq!(listed["skills"][0]["active"], true, "{listed}");
    let off = served
        .ask(Method::DELETE, &format!("{path}/greeting"), &acme.key, None)
        .await;
    assert!(off.status.is_success(), "{off:?}");
    assert_eq!(
        served.get(path, &acme.key).await.body["skills"][0]["active"],
        false
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_quota_of_a_workspace_is_the_hosts_until_the_operator_sets_another_and_its_usage_is_shown()
 {
    let create = |name: &str| {
        Reply::events(anthropic_tool(
            "file_edit",
            &json!({ "path": name, "old_text": "", "new_text": "x" }),
        ))
    };
    let done = || Reply::events(anthropic_text("Done."));
    let model = ModelServer::start([
        create("one"),
        done(),
        create("two"),
        done(),
        create("two"),
        done(),
        create("three"),
        done(),
    ])
    .await;
    let (home, provider) = home(&model);
    let admin = Key::new(&home);
    let acme = Key::new(&home);
    let beta = Key::new(&home);
    let of_acme = folder(&home, "of-acme");
    let of_beta = folder(&home, "of-beta");
    let host = format!(
        "[host]\nadmin_key_sha256 = \"{}\"\n[limits]\ntenant_workspace_files_max = 1\n",
        admin.hash
    );
    let tenant = format!(
        "[[tenant]]\nid = \"acme\"\nkey_sha256 = \"{}\"\nworkspace = {of_acme:?}\napprove = \"auto\"\n",
        acme.hash
    );
    configure(&home, &[host, provider, tenant].concat());
    let served = Served::start(&home, &[]);
    let say = async |key: &Key| {
        let answer = served
            .ask(
                Method::POST,
                "/v1/conversations/c/messages",
                &key.key,
                Some(json!({ "content": "create it" })),
            )
            .await;
        assert_eq!(answer.body["status"], "completed", "{answer:?}");
        model.requests().last().unwrap().json().to_string()
    };
    let refused =
        "was not written: the workspace's quota is 1 files and folders, and it has 1; remove some";

    let first = say(&acme).await;
    let second = say(&acme).await;
    let shown = served.get("/v1/admin/tenants", &admin.key).await.body;
    let more = Some(json!({ "workspace_files_max": 2 }));
    let put = served
        .ask(
            Method::PUT,
            "/v1/admin/tenants/acme/quota",
            &admin.key,
            more,
        )
        .await;
    say(&acme).await;

    assert!(
        !first.contains(refused) && second.contains(refused),
        "{second}"
    );
    assert_eq!(
        (&shown["tenants"][0]["workspace"], put.status),
        (&json!({ "files": 1 }), StatusCode::NO_CONTENT)
    );
    assert!(of_acme.join("one").exists() && of_acme.join("two").exists());

    // A tenant that the operator makes has its own from the start.
    std::fs::write(of_beta.join("there"), "x").unwrap();
    let quotas = json!({ "workspace_files_max": 3, "workspace_bytes_max": 1 });
    let made = json!({ "workspace": of_beta, "approve": "auto", "key_sha256": beta.hash, "quotas": quotas });
    let put = served
        .ask(
            Method::PUT,
            "/v1/admin/tenants/beta",
            &admin.key,
            Some(made),
        )
        .await;
    let third = say(&beta).await;

    assert_eq!(put.status, StatusCode::CREATED, "{put:?}");
    assert!(
        third.contains("was not written: the workspace's quota is 1 bytes"),
        "{third}"
    );
    let shown = served.get("/v1/admin/tenants", &admin.key).await.body;
    assert_eq!(shown["tenants"][1]["workspace"]["files"], 1);
    assert!(
        shown["tenants"][1]["workspace"]["bytes"].as_u64() > Some(0),
        "{shown}"
    );
}
