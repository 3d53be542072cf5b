//! Console pages that are open while nothing runs cost the host next to nothing. 50 pages for 10
//! seconds, or for a minute with `CALLBOARD_LONG`: lists, a conversation and plots in equal parts,
//! each with the requests that its script makes; with `CALLBOARD_LONG`, in ten real browsers too.

use std::time::Duration;

use callboard_actors::testing::TestSize;
use futures_util::StreamExt as _;
use reqwest::{Client, Method, StatusCode, header};
use serde_json::json;
use tokio::task::JoinSet;

use super::{Home, Key, Served, configure, watchers::ticks};
use crate::support::model_server::{ModelServer, Reply, anthropic_text};

const PAGES: usize = 50;

/// Rounds of the conversation, and other conversations in the list.
const ROUNDS: usize = 20;

/// How often a list is asked for in the first minute; later half as often.
const REFRESHED_EVERY: Duration = Duration::from_secs(5);

/// Most processor time, in hundredths of a percent of one core. The promise of a release build is 1 %;
/// a debug build, which took 2.8 to 3.5 %, may take 6 %.
const SHARE_MAX: u64 = if cfg!(debug_assertions) { 600 } else { 100 };

/// A browser's session: the cookie of a login with a key.
async fn session(client: &Client, url: &str, key: &str) -> String {
    let form = client.get(format!("{url}/console/login")).send();
    let form = form.await.unwrap();
    let cookie = |answer: &reqwest::Response| {
        let all = answer.headers().get_all(header::SET_COOKIE).iter();
        let parts = all.map(|cookie| cookie.to_str().unwrap().split(';').next().unwrap());
        parts.collect::<Vec<_>>().join("; ")
    };
    let first = cookie(&form);
    let page = form.text().await.unwrap();
    let (_, csrf) = page.split_once("name=\"csrf\" value=\"").expect(&page);
    let csrf = csrf.split('"').next().unwrap();
    let login = client
        .post(format!("{url}/console/login"))
        .header(header::COOKIE, &first)
        .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(format!("csrf={csrf}&next=%2Fconsole&key={key}"))
        .send()
        .await
        .unwrap();
    assert_eq!(login.status(), StatusCode::SEE_OTHER);
    cookie(&login)
}

/// Refreshes a list as its page does.
async fn list(client: Client, url: String, cookie: String, number: u32) {
    // Pages were opened one after another, so they do not ask at the same time.
    tokio::time::sleep(REFRESHED_EVERY * number / 17).await;
    let mut tag = String::new();
    loop {
        let request = client.get(&url).header(header::COOKIE, &cookie);
        let answer = request.header(header::IF_NONE_MATCH, &tag).send();
        let answer = answer.await.unwrap();
        assert!(answer.status() == StatusCode::OK || answer.status() == StatusCode::NOT_MODIFIED);
        if let Some(new) = answer.headers().get(header::ETAG) {
            tag = new.to_str().unwrap().to_owned();
        }
        answer.bytes().await.unwrap();
        tokio::time::sleep(REFRESHED_EVERY).await;
    }
}

/// Reads the events of a page.
async fn events(client: Client, url: String, cookie: String) {
    let request = client.get(&url).header(header::COOKIE, &cookie);
    let answer = request.header(header::ACCEPT, "text/event-stream").send();
    let answer = answer.await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let mut pieces = answer.bytes_stream();
    while pieces.next().await.is_some_and(|piece| piece.is_ok()) {}
    panic!("the events of {url} ended");
}

/// A host with conversations.
struct Used {
    served: Served,
    person: Key,
    operator: Key,
    _model: ModelServer,
    _home: Home,
}

impl Used {
    async fn start() -> Self {
        let home = Home::new();
        let model = ModelServer::start([Reply::events(anthropic_text("an answer"))]).await;
        let (person, operator) = (Key::new(&home), Key::new(&home));
        std::fs::write(home.work().join("key"), "sk-test-not-a-real-key").unwrap();
        configure(
            &home,
            &format!(
                "[host]\nadmin_key_sha256 = \"{}\"\n[[provider]]\nname = \"fast\"\nkind = \"anthropic\"\nbase_url = \"{}\"\napi_key_file = \"key\"\n[[tenant]]\nid = \"acme\"\nkey_sha256 = \"{}\"\n",
                operator.hash,
                model.url(),
                person.hash
            ),
        );
        let served = Served::start(&home, &[]);
        for number in 0..ROUNDS {
            for id in ["open".to_owned(), format!("c{number}")] {
                let path = format!("/v1/conversations/{id}/messages");
                let body = Some(json!({ "content": format!("prompt {number}") }));
                let answer = served.ask(Method::POST, &path, &person.key, body).await;
                assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
            }
        }
        Self {
            served,
            person,
            operator,
            _model: model,
            _home: home,
        }
    }
}

/// Prints the share of a core, and compares it with what it may be.
fn is_little(what: &str, share: u64) {
    eprintln!("{what} took {}.{:02} %", share / 100, share % 100);
    assert!(share <= SHARE_MAX, "{share} hundredths of a percent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_open_pages_take_next_to_no_processor_time_while_nothing_runs() {
    let used = Used::start().await;
    let served = &used.served;
    let builder = callboard::tls::client_builder().unwrap();
    let client = builder.redirect(reqwest::redirect::Policy::none());
    let client = client.no_proxy().build().unwrap();
    let url = served.url();
    let person = session(&client, url, &used.person.key).await;
    let operator = session(&client, url, &used.operator.key).await;
    let get = |path: &str, cookie: &str| {
        let request = client.get(format!("{url}{path}"));
        request.header(header::COOKIE, cookie).send()
    };
    let thread = get("/console/c/open", &person).await.unwrap();
    let thread = thread.text().await.unwrap();
    assert!(thread.contains("an answer"), "{thread}");

    let mut pages = JoinSet::new();
    for number in 0..u32::try_from(PAGES).unwrap() {
        let (client, person, operator) = (client.clone(), person.clone(), operator.clone());
        let at = |path: &str| format!("{url}{path}");
        match number % 3 {
            0 => pages.spawn(list(client, at("/console"), person, number / 3)),
            1 => pages.spawn(events(client, at("/console/c/open/events"), person)),
            _ => pages.spawn(events(client, at("/console/host/live"), operator)),
        };
    }
    let settle = Duration::from_secs(2);
    let over = Duration::from_secs(if TestSize::is_long() { 60 } else { 10 });
    let ended = tokio::time::timeout(settle, pages.join_next()).await;
    assert!(ended.is_err(), "{ended:?}");
    let before = ticks(served.id());
    let ended = tokio::time::timeout(over, pages.join_next()).await;
    assert!(ended.is_err(), "{ended:?}");
    let share = (ticks(served.id()) - before) * 100 * 100 / (over.as_millis() as u64 / 10);

    is_little(&format!("{PAGES} open pages"), share);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_pages_in_real_browsers_take_next_to_no_processor_time_while_nothing_runs() {
    if !TestSize::is_long() {
        return; // Ten browsers take gigabytes.
    }
    let used = Used::start().await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/console_idle.py");

    let ran = tokio::process::Command::new("python3")
        .arg(script)
        .args([used.served.url(), &used.person.key, &used.operator.key])
        .args([&used.served.id().to_string(), "60"])
        .output();
    let ran = ran.await.unwrap();

    let said = String::from_utf8_lossy(&ran.stdout);
    let share = said.trim().parse();
    let share = share.unwrap_or_else(|_| panic!("{said}{}", String::from_utf8_lossy(&ran.stderr)));
    is_little(&format!("{PAGES} pages in browsers"), share);
}
