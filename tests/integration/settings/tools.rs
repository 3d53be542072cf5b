//! `[store]`, `[tools]`, `[tools.*]`, `[skills] dir` and `[tokens]`.

use serde_json::json;

use super::{Home, call, home, home_with};
use crate::support::model_server::{ModelServer, Reply};

fn edit() -> serde_json::Value {
    json!({"path": "new.txt", "old_text": "", "new_text": "hello"})
}

fn names(home: &Home) -> Vec<String> {
    let listed = home.run(&["tools", "list", "--json"]).well().json();
    let names = listed.as_array().unwrap().iter();
    names
        .map(|tool| tool["name"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn the_store_is_where_its_url_says() {
    let home = home("[store]\nurl = \"sqlite:../kept/sessions.db\"\n");

    home.run(&["run", "--provider", "offline", "--session", "s", "Hello"])
        .well();

    assert!(home.path().join("kept/sessions.db").is_file());
    assert!(
        !home
            .path()
            .join("home/.local/share/callboard/callboard.db")
            .exists()
    );
}

#[test]
fn stored_data_is_in_the_data_folder() {
    let home = home("[host]\ndata_dir = \"../data\"\n");

    home.run(&["run", "--provider", "offline", "--session", "s", "Hello"])
        .well();

    assert!(home.path().join("data/callboard.db").is_file());
}

#[test]
fn only_the_enabled_tools_are_offered() {
    assert_eq!(
        names(&home("[tools]\nenabled = [\"think\"]\n")),
        ["think", "recall"]
    );
}

#[test]
fn changes_are_approved_as_the_configuration_says() {
    let home = home("[tools]\napprove = \"auto\"\n");

    call(&home, "file_edit", &edit()).well();

    assert!(home.work().join("new.txt").is_file());
}

#[test]
fn a_restricted_host_runs_no_tool_that_needs_approval_and_an_admins_host_asks_for_none() {
    let restricted = home("[tools]\napprove = \"auto\"\npermission = \"restricted\"\n");
    let admin = home("[tools]\napprove = \"deny\"\npermission = \"admin\"\n");

    let refused = call(&restricted, "file_edit", &edit());
    call(&admin, "file_edit", &edit()).well();

    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(!restricted.work().join("new.txt").exists());
    assert!(admin.work().join("new.txt").is_file());
}

#[test]
fn models_are_shown_as_much_of_a_tools_data_as_the_configuration_says() {
    let read = json!({"path": "src/retry.rs"});
    let level = |text: &str| call(&home(text), "file_read", &read).well().json()["level"].clone();

    assert_eq!(level("[tools]\noutput_level = \"brief\"\n"), "brief");
    assert_eq!(level("[tools]\noutput_level = \"full\"\n"), "full");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn web_fetch_reaches_the_listed_hosts_and_asks_as_its_section_says() {
    let page = Reply::status(200)
        .header("content-type", "text/plain")
        .send("hello from the page");
    let server = ModelServer::start([page]).await;
    let fetch = |text: &str| {
        call(
            &home(&format!(
                "[tools]\napprove = \"deny\"\n[tools.web_fetch]\n{text}\n"
            )),
            "web_fetch",
            &json!({"url": server.url()}),
        )
    };

    let both = fetch("allow_hosts = [\"127.0.0.1\"]\napprove = \"never\"").well();
    let asks = fetch("allow_hosts = [\"127.0.0.1\"]\napprove = \"mode\"");
    let elsewhere = fetch("approve = \"never\"");

    assert!(both.out.contains("hello from the page"), "{both:?}");
    assert_eq!(asks.json()["error_code"], "APPROVAL_DENIED");
    assert_eq!(elsewhere.code, Some(1), "{elsewhere:?}");
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn web_search_asks_the_configured_engine_with_the_configured_key() {
    let found = json!({"query": "q", "results": [{"url": "https://a.example/", "title": "A title", "content": "c", "score": 1}]});
    let server = ModelServer::start([Reply::json(200, &found.to_string())]).await;
    let search = |text: &str| {
        let mut home = home(&format!(
            "[tools]\napprove = \"auto\"\n[tools.web_search]\nbase_url = \"{}\"\n{text}\n",
            server.url()
        ));
        home.variables
            .push(("OUR_SEARCH_KEY", "tvly-not-a-real-key".to_owned()));
        call(&home, "web_search", &json!({"query": "q"})).well()
    };

    let of_searxng = search("engine = \"searxng\"");
    let of_tavily = search("api_key_env = \"OUR_SEARCH_KEY\"");

    let requests = server.requests();
    assert!(of_searxng.out.contains("A title") && of_tavily.out.contains("A title"));
    assert!(
        requests[0].line.starts_with("GET /search?"),
        "{:?}",
        requests[0].line
    );
    assert_eq!(requests[1].line, "POST /search");
    assert_eq!(
        requests[1].header("authorization"),
        Some("Bearer tvly-not-a-real-key")
    );
}

#[test]
fn skills_are_read_from_the_configured_folder() {
    let home = home("[skills]\ndir = \"ours\"\n");
    let skill = home.work().join("ours/tidy-up");
    std::fs::create_dir_all(&skill).unwrap();
    let text = "---\nname: tidy-up\ndescription: Cleans.\n---\nClean.\n";
    std::fs::write(skill.join("SKILL.md"), text).unwrap();

    let listed = home.run(&["skills", "list"]).well();

    assert!(listed.out.contains("tidy-up"), "{listed:?}");
}

#[test]
fn tokens_are_counted_as_the_encoders_of_file_and_configuration_say() {
    let home = home(
        "[tokens]\nfile = \"../enc.yaml\"\n\
         [tokens.encoders.\"own-*\"]\nmodel_family = \"mistral\"\nencoding_name = \"o200k_base\"\nsafety_margin = 4\n",
    );
    let yaml = "encoders:\n  filed-*: {safety_margin: 3.0}\n";
    std::fs::write(home.path().join("enc.yaml"), yaml).unwrap();
    let count = |model: &str| {
        home.run_with_input(&["tokens", "--model", model, "--json"], "hello world")
            .well()
            .json()
    };

    assert_eq!(count("filed-1")["margin"], 3.0);
    let own = count("own-1");
    assert_eq!(
        [
            &own["family"],
            &own["encoding"],
            &own["margin"],
            &own["total"]
        ],
        [
            &json!("mistral"),
            &json!("o200k_base"),
            &json!(4.0),
            &json!(8)
        ]
    );
}

/// The estimate of the prompt exceeds the window. The server's count does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_that_counts_is_asked_where_the_configuration_says_so() {
    assert_eq!(asks_for_counts("").await, (true, true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_api_that_the_configuration_names_is_asked_for_counts() {
    let named = |api: &str| format!("exact_counting_api = \"{api}\"\n");
    assert_eq!(asks_for_counts(&named("anthropic")).await, (true, true));
    assert_eq!(asks_for_counts(&named("openai")).await, (false, false));
}

/// Whether the API is asked for a count with these lines, and whether the prompt then fits.
async fn asks_for_counts(lines: &str) -> (bool, bool) {
    let model = ModelServer::answering(|body| {
        if body.get("stream").is_some() {
            Reply::events(crate::support::model_server::anthropic_text("ok"))
        } else {
            Reply::json(200, r#"{"input_tokens":3100}"#)
        }
    })
    .await;
    let home = home_with(
        &model,
        &format!(
            "context_window = 6000\nmax_tokens = 100\nmodel = \"claude-test\"\n\
             [tokens.encoders.\"claude-*\"]\nuse_exact_counting = true\nsafety_margin = 3\n{lines}"
        ),
    );

    let long = "word ".repeat(3000);
    let ran = home.run(&["run", "--no-tools", &long]);

    let lines: Vec<String> = model
        .requests()
        .iter()
        .map(|asked| asked.line.clone())
        .collect();
    let asked = lines
        .iter()
        .any(|line| line == "POST /v1/messages/count_tokens");
    (asked, ran.code == Some(0))
}
