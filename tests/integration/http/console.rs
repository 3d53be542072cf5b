//! The console as a browser without a script sees it: pages and forms over plain HTTP.

mod call;
mod compare;
mod cost;
mod evals;
mod hostile;
mod operator;

use std::collections::HashMap;

use callboard::{FnTool, ToolContext, ToolError};
use callboard_actors::{conversation::round::rules::ApprovalMode, ports::ProviderError};
use serde::Deserialize;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::*;

#[derive(Deserialize, schemars::JsonSchema)]
struct Note {
    text: String,
}

/// A tool that changes something, so that a person is asked.
fn note() -> Arc<dyn callboard_actors::ports::Tool> {
    Arc::new(FnTool::new(
        "note",
        "Writes a note.",
        |note: Note, _: ToolContext| async move { Ok::<_, ToolError>(format!("noted {}", note.text)) },
    ))
}

/// A server whose model asks for the tool in each round whose prompt begins with `use`.
pub(super) async fn asking() -> Server {
    let model = ScriptedModel::answering(|request, _| {
        let last = request.messages.last().map(|message| message.text());
        let last = last.unwrap_or_default();
        let text = match last.starts_with("use much") {
            true => "milk ".repeat(120 * 1024),
            false => "milk".to_owned(),
        };
        match last.starts_with("use") {
            true => Reply::tool("note", &json!({ "text": text })),
            false => Reply::text("**yes**"),
        }
    });
    let host = Host::builder()
        .shared_provider(Arc::new(model))
        .approval(ApprovalMode::Ask)
        .has_approver(true)
        .tool(note())
        .build()
        .await
        .unwrap();
    Server::over(host, Setting::default()).await
}

/// A page, as far as tests look at it.
struct Seen {
    status: u16,
    location: Option<String>,
    text: String,
    headers: reqwest::header::HeaderMap,
}

/// A browser: it keeps cookies and follows no redirect.
pub(super) struct Browser {
    base: String,
    client: Client,
    cookies: HashMap<String, String>,
}

impl Browser {
    fn new(server: &Server) -> Self {
        let client = callboard::tls::client_builder()
            .unwrap()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .unwrap();
        Self {
            base: server.url(""),
            client,
            cookies: HashMap::new(),
        }
    }

    /// A browser that is logged in.
    pub(super) async fn with(server: &Server, key: &str) -> Self {
        let mut browser = Self::new(server);
        let seen = browser.log_in(key).await;
        assert_eq!(seen.status, 303, "{}", seen.text);
        browser
    }

    /// Its cookies, as it sends them.
    pub(super) fn cookie_line(&self) -> String {
        let all = self.cookies.iter();
        let pairs: Vec<String> = all.map(|(name, value)| format!("{name}={value}")).collect();
        pairs.join("; ")
    }

    async fn log_in(&mut self, key: &str) -> Seen {
        let form = self.get("/console/login").await;
        let token = field(&form.text, "csrf");
        self.send("/console/login", &[("csrf", &token), ("key", key)])
            .await
    }

    async fn seen(&mut self, request: RequestBuilder) -> Seen {
        let response = soon(request.header("cookie", self.cookie_line()).send())
            .await
            .unwrap();
        for set in response.headers().get_all("set-cookie") {
            let pair = set.to_str().unwrap().split(';').next().unwrap();
            let (name, value) = pair.split_once('=').unwrap();
            self.cookies.insert(name.to_owned(), value.to_owned());
        }
        let headers = response.headers().clone();
        Seen {
            status: response.status().as_u16(),
            location: headers
                .get("location")
                .map(|value| value.to_str().unwrap().to_owned()),
            headers,
            text: soon(response.text()).await.unwrap(),
        }
    }

    async fn get(&mut self, path: &str) -> Seen {
        let request = self.client.get(format!("{}{path}", self.base));
        self.seen(request.header("accept", "text/html")).await
    }

    /// Sends a form as it stands.
    async fn send(&mut self, path: &str, fields: &[(&str, &str)]) -> Seen {
        let mut body = form_urlencoded::Serializer::new(String::new());
        body.extend_pairs(fields);
        let request = self.client.post(format!("{}{path}", self.base));
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        self.seen(request.body(body.finish())).await
    }

    /// Sends a form with the token of the session.
    async fn form(&mut self, path: &str, fields: &[(&str, &str)]) -> Seen {
        let token = self.token().await;
        let mut all = vec![("csrf", token.as_str())];
        all.extend(fields);
        self.send(path, &all).await
    }

    /// The token of the session, as every page of it has it.
    async fn token(&mut self) -> String {
        let mut page = self.get("/console").await;
        if let Some(to) = page.location {
            page = self.get(&to).await;
        }
        field(&page.text, "csrf")
    }

    /// Waits until a page shows a text.
    async fn until(&mut self, path: &str, text: &str) -> String {
        soon(async {
            loop {
                let page = self.get(path).await;
                assert_eq!(page.status, 200, "{path}: {}", page.text);
                if page.text.contains(text) {
                    return page.text;
                }
                tokio::task::yield_now().await;
            }
        })
        .await
    }
}

/// The value of the first hidden field with this name.
fn field(page: &str, name: &str) -> String {
    let start = format!("name=\"{name}\" value=\"");
    let (_, rest) = page.split_once(&start).expect(page);
    rest.split('"').next().unwrap().to_owned()
}

#[tokio::test]
async fn no_page_is_shown_without_a_session_and_a_wrong_key_opens_none() {
    let server = asking().await;
    server.send("private", "hello").await;
    let mut browser = Browser::new(&server);

    for path in [
        "/console",
        "/console/c/private",
        "/console/c/private/events",
        "/console/c/private/timeline",
        "/console/c/private/entry/1",
        "/console/c/private/call/4",
        "/console/c/private/call/4/body",
        "/console/compare?a=private&b=private",
        "/console/fanouts",
        "/console/fanouts/of/f/cost",
        "/console/host",
        "/console/host/live",
        "/console/host/tenants",
    ] {
        let seen = browser.get(path).await;
        let to = seen.location.unwrap_or_default();
        assert_eq!((seen.status, seen.text.as_str()), (303, ""), "{path}");
        assert!(to.starts_with("/console/login"), "{path}: {to}");
    }
    let seen = browser.log_in("cb_wrong_not_a_real_key").await;
    assert_eq!(seen.status, 401);
    assert!(
        seen.text.contains("not known here") && !browser.cookies.contains_key("callboard_session")
    );

    let seen = browser.log_in(ACME).await;
    assert_eq!(
        (seen.status, seen.location.as_deref()),
        (303, Some("/console"))
    );
    let cookie = &seen.headers["set-cookie"];
    let cookie = cookie.to_str().unwrap();
    assert!(
        cookie.contains("; HttpOnly; SameSite=Strict") && !cookie.contains(ACME),
        "{cookie}"
    );
    assert!(browser.get("/console").await.text.contains("private"));
    server.end().await;
}

#[tokio::test]
async fn every_page_forbids_what_this_host_does_not_serve() {
    let server = asking().await;
    server.send("c", "hello").await;
    let mut tenant = Browser::with(&server, ACME).await;
    let mut operator = Browser::with(&server, ADMIN).await;
    let mut stranger = Browser::new(&server);

    let mut pages = Vec::new();
    for path in [
        "/console/login",
        "/console",
        "/console/style.css",
        "/console/nowhere",
    ] {
        pages.push((path, stranger.get(path).await));
    }
    for path in [
        "/console",
        "/console/c/c",
        "/console/c/c?from=1",
        "/console/c/c/timeline",
        "/console/c/c/figures",
        "/console/c/c/subagents",
        "/console/c/c/entry/1",
        "/console/c/c/call/4",
        "/console/c/unknown",
        "/console/fanouts",
        "/console/fanouts/of/unknown",
        "/console/fanouts/of/unknown/cost",
        "/console/compare",
        "/console/compare?a=c&b=c",
    ] {
        pages.push((path, tenant.get(path).await));
    }
    for path in ["/console/host", "/console/host/tenants"] {
        pages.push((path, operator.get(path).await));
    }

    for (path, page) in pages {
        let policy = page.headers["content-security-policy"].to_str().unwrap();
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self'"),
            "{path}: {policy}"
        );
        assert!(
            !policy.contains("unsafe") && !policy.contains("data:"),
            "{path}: {policy}"
        );
        assert_eq!(page.headers["x-content-type-options"], "nosniff", "{path}");
        assert!(page.headers.contains_key("cache-control"), "{path}");
        let words = [
            " style=\"",
            " onclick",
            "javascript:",
            "<style",
            "http://",
            "https://",
        ];
        for word in words {
            let is_style = path.ends_with(".css") || path.contains("/entry/");
            assert!(is_style || !page.text.contains(word), "{path}: {word}");
        }
    }
    server.end().await;
}

#[tokio::test]
async fn a_form_that_this_session_was_not_given_does_nothing() {
    let server = asking().await;
    server.send("c", "hello").await;
    let mut browser = Browser::with(&server, ACME).await;
    let mut other = Browser::with(&server, ACME).await;
    let (token, others) = (browser.token().await, other.token().await);

    for wrong in [None, Some(""), Some("x"), Some(others.as_str())] {
        let fields: Vec<_> = wrong.map(|token| ("csrf", token)).into_iter().collect();
        let seen = browser.send("/console/c/c/delete", &fields).await;
        assert_eq!(seen.status, 403, "{wrong:?}");
    }
    for (name, value) in [
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
        ("origin", "https://evil.example"),
        ("origin", "null"),
    ] {
        let request = browser.client.post(server.url("/console/c/c/delete"));
        let request = request
            .header("content-type", "application/x-www-form-urlencoded")
            .header(name, value);
        let seen = browser.seen(request.body(format!("csrf={token}"))).await;
        assert_eq!(seen.status, 403, "{name}: {value}");
    }
    let request = browser.client.post(server.url("/console/c/c/delete"));
    let request = request.header("content-type", "text/plain");
    let seen = browser.seen(request.body(format!("csrf={token}"))).await;
    assert_eq!(seen.status, 415);
    let mut stranger = Browser::new(&server);
    let login = [("key", ACME), ("csrf", "x")];
    assert_eq!(stranger.send("/console/login", &login).await.status, 403);

    assert_eq!(
        browser.get("/console/c/c").await.status,
        200,
        "it is still there"
    );
    let seen = browser
        .send("/console/c/c/delete", &[("csrf", &token)])
        .await;
    assert_eq!(seen.status, 303);
    assert_eq!(browser.get("/console/c/c").await.status, 404);
    server.end().await;
}

#[tokio::test]
async fn a_session_and_its_events_end_with_its_key() {
    let server = asking().await;
    server.send("c", "hello").await;
    let mut browser = Browser::with(&server, ACME).await;
    let cookie = format!("callboard_session={}", browser.cookies["callboard_session"]);
    let events = browser.client.get(server.url("/console/c/c/events"));
    let mut events = soon(events.header("cookie", cookie).send()).await.unwrap();
    assert_eq!(events.headers()["content-type"], "text/event-stream");

    server.keys.remove(&KeyHash::from_key(ACME));

    let rest = soon(async { while let Ok(Some(_)) = events.chunk().await {} });
    rest.await;
    assert_eq!(browser.get("/console/c/c").await.status, 303);
    let mut operator = Browser::with(&server, ADMIN).await;
    assert_eq!(operator.get("/console/host").await.status, 200);
    server.keys.set_admin(None);
    assert_eq!(operator.get("/console/host").await.status, 303);
    server.end().await;
}

#[tokio::test]
async fn logging_out_ends_the_session_and_no_other() {
    let server = asking().await;
    let mut one = Browser::with(&server, ACME).await;
    let mut two = Browser::with(&server, ACME).await;
    let kept = one.cookies["callboard_session"].clone();

    assert_eq!(one.form("/console/logout", &[]).await.status, 303);

    one.cookies.insert("callboard_session".into(), kept);
    assert_eq!(
        one.get("/console").await.status,
        303,
        "the old cookie opens nothing"
    );
    assert_eq!(two.get("/console").await.status, 200);
    server.end().await;
}

#[tokio::test]
async fn a_tenant_gets_of_another_what_it_gets_of_nothing() {
    let server = asking().await;
    server.send("c", "a secret of acme").await;
    let mut acme = Browser::with(&server, ACME).await;
    acme.form("/console/fanouts/start", &[("name", "f"), ("tasks", "a")])
        .await;
    let mut zeta = Browser::with(&server, ZETA).await;

    for rest in [
        "",
        "/timeline",
        "/figures",
        "/subagents",
        "/entry/1",
        "/events",
        "?from=1",
    ] {
        let theirs = zeta.get(&format!("/console/c/c{rest}")).await;
        let none = zeta.get(&format!("/console/c/d{rest}")).await;
        assert_eq!((theirs.status, &theirs.text), (404, &none.text), "{rest}");
    }
    for what in [
        "send",
        "interrupt",
        "approve",
        "rewind",
        "fork",
        "compact",
        "reset",
        "delete",
    ] {
        let fields = [
            ("content", "x"),
            ("call", "x"),
            ("allow", "once"),
            ("round", "00000000-0000-7000-8000-000000000000"),
            ("copy", "copied"),
        ];
        let theirs = zeta.form(&format!("/console/c/c/{what}"), &fields).await;
        let none = zeta.form(&format!("/console/c/d/{what}"), &fields).await;
        assert_eq!((theirs.status, &theirs.text), (404, &none.text), "{what}");
    }
    let theirs = zeta.get("/console/fanouts/of/f").await;
    assert_eq!(theirs.status, 404);
    assert_eq!(zeta.get("/console/host").await.status, 404);
    assert!(
        !zeta
            .get("/console?subagents=1")
            .await
            .text
            .contains("secret")
    );
    let thread = acme.get("/console/c/c").await.text;
    assert!(thread.contains("a secret of acme") && !thread.contains(">x<"));
    server.end().await;
}

#[tokio::test]
async fn a_conversation_is_begun_steered_forked_and_taken_back_by_forms() {
    let server = asking().await;
    let mut browser = Browser::with(&server, ACME).await;

    let new = [("id", "talk"), ("content", "first words")];
    let begun = browser.form("/console/new", &new).await;
    assert_eq!(
        begun.location.as_deref(),
        Some("/console/c/talk#end"),
        "{}",
        begun.text
    );
    let thread = browser.until("/console/c/talk", "Round ended").await;
    assert!(
        thread.contains("<p>first words</p>") && thread.contains("<p><strong>yes</strong></p>")
    );

    let send = [("content", "second"), ("busy", "queue")];
    browser.form("/console/c/talk/send", &send).await;
    let thread = browser.until("/console/c/talk", "<p>second</p>").await;
    let thread = match thread.matches("Round ended").count() {
        2 => thread,
        _ => loop_until(&mut browser, "Round ended", 2).await,
    };

    // The last prompt is taken back and offered to be written again.
    let (_, last) = thread.rsplit_once("/rewind").unwrap();
    let fields = [
        ("round", &*field(last, "round")),
        ("seq", &*field(last, "seq")),
    ];
    let back = browser.form("/console/c/talk/rewind", &fields).await;
    let draft = browser
        .get(back.location.unwrap().split('#').next().unwrap())
        .await;
    assert!(
        draft.text.contains("sends it\">second</textarea>"),
        "{}",
        draft.text
    );
    assert!(draft.text.contains("taken back"));

    let (_, first) = draft.text.split_once("/fork").unwrap();
    let fork = [("round", &*field(first, "round")), ("copy", "copy")];
    let copied = browser.form("/console/c/talk/fork", &fork).await;
    assert_eq!(
        copied.location.as_deref(),
        Some("/console/c/copy#end"),
        "{}",
        copied.text
    );
    let copy = browser.get("/console/c/copy").await.text;
    assert!(copy.contains("first words") && copy.contains("A copy of talk"));

    browser
        .form(
            "/console/c/copy/send",
            &[("content", "read this too"), ("busy", "inject")],
        )
        .await;
    browser.until("/console/c/copy", "read this too").await;
    let kept = browser.form("/console/c/copy/compact", &[]).await;
    let to = kept.location.unwrap();
    let kept = browser.get(to.split('#').next().unwrap()).await.text;
    assert!(
        kept.contains("There was nothing to compact"),
        "{to}: {kept}"
    );
    assert_eq!(browser.form("/console/c/copy/reset", &[]).await.status, 303);
    assert!(
        !browser
            .get("/console/c/copy")
            .await
            .text
            .contains("first words")
    );
    assert_eq!(
        browser.form("/console/c/copy/delete", &[]).await.status,
        303
    );
    assert_eq!(browser.get("/console/c/copy").await.status, 404);
    server.end().await;
}

async fn loop_until(browser: &mut Browser, text: &str, times: usize) -> String {
    soon(async {
        loop {
            let page = browser.get("/console/c/talk").await.text;
            if page.matches(text).count() >= times {
                return page;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

#[tokio::test]
async fn a_person_allows_and_denies_calls_in_place() {
    let server = asking().await;
    let mut browser = Browser::with(&server, ACME).await;
    browser
        .form(
            "/console/new",
            &[("id", "ask"), ("content", "use the tool")],
        )
        .await;
    let asked = browser.until("/console/c/ask", "class=\"question\"").await;
    assert!(
        asked.contains("waits for you") && asked.contains("&quot;milk&quot;"),
        "{asked}"
    );
    let list = browser.get("/console?state=waiting").await.text;
    assert!(list.contains("a decision about 1 call") && list.contains("data-until"));

    let call = field(&asked, "call");
    let wrong = [("call", &*call), ("allow", "maybe")];
    assert_eq!(
        browser.form("/console/c/ask/approve", &wrong).await.status,
        422
    );
    let allow = [("call", &*call), ("allow", "once")];
    assert_eq!(
        browser.form("/console/c/ask/approve", &allow).await.status,
        303
    );
    let done = browser.until("/console/c/ask", "Round ended").await;
    assert!(
        done.contains("Allowed after") && done.contains("noted milk"),
        "{done}"
    );
    assert!(!done.contains("class=\"question\""));

    browser
        .form(
            "/console/c/ask/send",
            &[("content", "use it again"), ("busy", "queue")],
        )
        .await;
    let asked = browser.until("/console/c/ask", "class=\"question\"").await;
    let deny = [("call", &*field(&asked, "call")), ("allow", "no")];
    browser.form("/console/c/ask/approve", &deny).await;
    browser.until("/console/c/ask", "Denied after").await;

    browser
        .form(
            "/console/c/ask/send",
            &[("content", "use it"), ("busy", "queue")],
        )
        .await;
    browser.until("/console/c/ask", "class=\"question\"").await;
    assert_eq!(
        browser.form("/console/c/ask/interrupt", &[]).await.status,
        303
    );
    browser
        .until("/console/c/ask", "<code>interrupted</code>")
        .await;

    let timeline = browser.get("/console/c/ask/timeline").await.text;
    assert!(timeline.contains("class=\"bar approval") && timeline.contains("class=\"bar model"));
    let figures = browser.get("/console/c/ask/figures").await.text;
    assert!(figures.contains("<code>note</code>") && figures.contains("Tokens in"));
    server.end().await;
}

#[tokio::test]
async fn the_filter_of_failures_finds_conversations_whose_last_round_failed() {
    let model = ScriptedModel::answering(|request, _| {
        let last = request.messages.last().map(|message| message.text());
        match last.unwrap_or_default().starts_with("fail") {
            true => Reply::error(ProviderError::InvalidRequest {
                status: 400,
                message: "no".into(),
            }),
            false => Reply::text("yes"),
        }
    });
    let server = Server::start(model).await;
    for (id, prompts) in [
        ("fine", vec!["hello"]),
        ("broken", vec!["hello", "fail"]),
        ("mended", vec!["fail", "hello"]),
    ] {
        for prompt in prompts {
            server.send(id, prompt).await;
        }
    }
    let mut browser = Browser::with(&server, ACME).await;

    let failed = browser.get("/console?state=failed").await.text;

    let has = |id: &str| failed.contains(&format!("href=\"/console/c/{id}\""));
    let found = ["fine", "broken", "mended"].map(has);
    assert_eq!(found, [false, true, false], "{failed}");
    assert_eq!(failed.matches(">failed</span>").count(), 1, "{failed}");
    server.end().await;
}

#[tokio::test]
async fn an_imported_thread_shows_its_tool_calls_with_their_results() {
    let server = asking().await;
    let put = with_json(
        server.ask(Method::PUT, "/v1/conversations/old", ACME),
        &json!({"messages": [
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": "ls -l /srv"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "total 42"},
            ]},
            {"role": "assistant", "content": "Done."},
        ]}),
    );
    assert_eq!(soon(put.send()).await.unwrap().status(), 201);
    let mut browser = Browser::with(&server, ACME).await;

    let page = browser.get("/console/c/old").await.text;

    assert!(
        page.contains("<pre class=\"code\">ls -l /srv</pre>"),
        "{page}"
    );
    assert_eq!(
        page.matches("<pre class=\"code\">total 42</pre>").count(),
        1
    );
    assert!(
        page.contains(">done</span>") && !page.contains("0 ms"),
        "{page}"
    );
    server.end().await;
}

#[tokio::test]
async fn an_answer_to_a_question_that_is_gone_allows_no_call_with_the_same_id() {
    let server = asking().await;
    let mut browser = Browser::with(&server, ACME).await;
    let first = [("id", "ask"), ("content", "use the tool")];
    browser.form("/console/new", &first).await;
    let old = browser.until("/console/c/ask", "class=\"question\"").await;
    let task = "/v1/conversations/ask";
    let post = async |path: &str, body: Value| {
        let asked = server.ask(Method::POST, path, ACME).json(&body);
        soon(asked.send()).await.unwrap().status().as_u16()
    };
    browser.form("/console/c/ask/interrupt", &[]).await;
    browser
        .until("/console/c/ask", "<code>interrupted</code>")
        .await;
    assert_eq!(post(&format!("{task}/reset"), json!({})).await, 204);
    let again = [("content", "use it again"), ("busy", "queue")];
    browser.form("/console/c/ask/send", &again).await;
    let new = browser.until("/console/c/ask", "class=\"question\"").await;
    let call = field(&new, "call");
    assert_eq!(call, field(&old, "call"), "the model uses its ids again");

    let (old, new) = (field(&old, "round"), field(&new, "round"));
    let stale = [("call", &*call), ("round", &old), ("allow", "once")];
    let page = browser.form("/console/c/ask/approve", &stale).await.status;
    let approval = format!("{task}/approvals/{call}");
    let body = json!({ "allow": true, "round_id": old });
    let api = post(&approval, body).await;

    assert_eq!((page, api), (404, 404));
    let body = json!({ "allow": true, "round_id": new });
    assert_eq!(post(&approval, body).await, 204);
    browser.until("/console/c/ask", "noted milk").await;
    server.end().await;
}

#[tokio::test]
async fn a_call_that_is_too_long_to_be_read_is_denied_here_and_not_allowed() {
    let server = asking().await;
    let mut browser = Browser::with(&server, ACME).await;
    server.send("ask", "hello").await;
    let send = [("content", "use much"), ("busy", "queue")];
    browser.form("/console/c/ask/send", &send).await;

    let asked = browser.until("/console/c/ask", "class=\"question\"").await;

    assert!(asked.len() <= 512 * 1024, "{}", asked.len());
    assert!(asked.contains("too long to be allowed here"), "{asked}");
    assert!(asked.contains("value=\"no\"") && !asked.contains("value=\"once\""));
    let deny = [("call", &*field(&asked, "call")), ("allow", "no")];
    browser.form("/console/c/ask/approve", &deny).await;
    browser.until("/console/c/ask", "Denied after").await;
    server.end().await;
}

#[tokio::test]
async fn a_page_of_very_much_text_is_small_and_says_what_it_leaves_out() {
    let server = asking().await;
    let mut browser = Browser::with(&server, ACME).await;
    let blocks = |text: &str| vec![json!({"type": "text", "text": text}); 40];
    for (id, text) in [
        ("quotes", ">".repeat(16_000)),
        (
            "rows",
            format!(
                "{}\n{}\n{}",
                "|a".repeat(2000),
                "|-".repeat(2000),
                "|\n".repeat(4000)
            ),
        ),
        ("hidden", "\u{200b}".repeat(5000)),
        (
            "reminders",
            format!(
                "<system-reminder>\n{}\n</system-reminder>",
                "\u{7}".repeat(16_000)
            ),
        ),
    ] {
        let path = format!("/v1/conversations/{id}");
        let put = with_json(
            server.ask(Method::PUT, &path, ACME),
            &json!({"messages": [{"role": "user", "content": blocks(&text)}]}),
        );
        assert_eq!(soon(put.send()).await.unwrap().status(), 201, "{id}");

        let page = browser.get(&format!("/console/c/{id}")).await;

        assert_eq!(page.status, 200, "{id}");
        assert!(page.text.len() <= 512 * 1024, "{id}: {}", page.text.len());
        assert!(page.text.contains("more in the entry"), "{id}");
    }
    server.send("long", &"&".repeat(200 * 1024)).await;
    let mut said = 0;
    for entry in 1..8 {
        let page = browser.get(&format!("/console/c/long?draft={entry}")).await;
        assert!(page.text.len() <= 512 * 1024, "{}", page.text.len());
        said += usize::from(page.text.contains("too long to be edited here"));
    }
    assert_eq!(said, 1);
    server.end().await;
}

#[tokio::test]
async fn a_long_conversation_opens_by_page_in_little_bytes() {
    let server = asking().await;
    for n in 0..200 {
        server
            .send("long", &format!("prompt {n} {}", "words ".repeat(400)))
            .await;
    }
    let mut browser = Browser::with(&server, ACME).await;

    let mut path = "/console/c/long".to_owned();
    let mut seen = Vec::new();
    loop {
        let page = browser.get(&path).await;
        assert!(page.text.len() <= 300 * 1024, "{path}: {}", page.text.len());
        for n in 0..200 {
            if page.text.contains(&format!("prompt {n} ")) {
                seen.push(n);
            }
        }
        let Some((_, rest)) = page.text.split_once("rel=\"prev\" href=\"") else {
            break;
        };
        path = format!("/console/c/long{}", rest.split('"').next().unwrap());
    }

    seen.sort_unstable();
    // The title at the top of every page is that of the first prompt.
    seen.dedup();
    assert_eq!(seen, (0..200).collect::<Vec<_>>());
    server.end().await;
}

#[tokio::test]
async fn the_start_leads_people_to_the_console_and_programs_to_the_api() {
    let server = asking().await;
    let mut browser = Browser::new(&server);

    let people = browser.get("/").await;
    let programs = soon(server.client.get(server.url("/")).send())
        .await
        .unwrap();

    assert_eq!(
        (people.status, people.location.as_deref()),
        (303, Some("/console"))
    );
    assert_eq!(body(programs).await["openapi"], "/openapi.json");
    server.end().await;
}

#[tokio::test]
async fn a_list_that_did_not_change_is_not_sent_again() {
    let server = asking().await;
    server.send("c", "hello").await;
    let mut browser = Browser::with(&server, ACME).await;
    let first = browser.get("/console?part=1").await;
    let tag = first.headers["etag"].clone();
    let again = async |browser: &mut Browser| {
        let request = browser.client.get(server.url("/console?part=1"));
        browser.seen(request.header("if-none-match", &tag)).await
    };

    assert!(first.text.starts_with("<div id=\"list\"") && first.text.contains("hello"));
    assert_eq!(again(&mut browser).await.status, 304);
    server.send("c", "more").await;
    assert_eq!(again(&mut browser).await.status, 200);
    server.end().await;
}

/// Sends the head of a form, and the beginning of a body of this length.
async fn held_form(server: &Server, path: &str, cookie: &str, length: usize) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: a\r\ncookie: {cookie}\r\n\
         content-type: application/x-www-form-urlencoded\r\ncontent-length: {length}\r\n\r\ncsrf="
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

/// The status of an answer.
async fn status_of(stream: &mut TcpStream) -> String {
    let mut head = [0; 12];
    soon(stream.read_exact(&mut head)).await.unwrap();
    String::from_utf8_lossy(&head[9..]).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_a_session_are_open_requests_of_its_tenant() {
    let mut bounds = HttpBounds::default();
    bounds.requests_per_tenant_max = 3;
    let setting = Setting {
        bounds,
        ..Setting::default()
    };
    let model = Arc::new(ScriptedModel::always(Reply::text("yes")));
    let server = Server::with(model, setting).await;
    server.send("c", "hello").await;
    let mut acme = Browser::with(&server, ACME).await;
    let mut zeta = Browser::with(&server, ZETA).await;

    let mut held = Vec::new();
    // A form that comes while a page is asked for may be the one that is refused: one more takes its place.
    let refused = async {
        while held.len() < 3 || acme.get("/console").await.status != 429 {
            held.push(held_form(&server, "/console/c/c/send", &acme.cookie_line(), 100).await);
        }
    };
    soon(refused).await;

    assert_eq!(server.get("/v1/conversations").await.status(), 429);
    assert_eq!(zeta.get("/console").await.status, 200);
    drop(held);
    soon(async { while acme.get("/console").await.status != 200 {} }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn login_forms_of_strangers_are_small_and_few_at_a_time() {
    let model = Arc::new(ScriptedModel::always(Reply::text("yes")));
    let server = Server::with(model, Setting::default()).await;

    let mut large = held_form(&server, "/console/login", "", 10_000).await;
    assert_eq!(status_of(&mut large).await, "413");

    let mut held = Vec::new();
    for _ in 0..256 {
        held.push(held_form(&server, "/console/login", "", 100).await);
    }
    let refused = async {
        loop {
            let mut next = held_form(&server, "/console/login", "", 5).await;
            if status_of(&mut next).await == "429" {
                return;
            }
        }
    };
    soon(refused).await;
    drop(held);
    let mut browser = Browser::new(&server);
    soon(async { while browser.log_in(ACME).await.status != 303 {} }).await;
}
