//! Texts of strangers that try to become a part of the page: in every field that they reach, on
//! every page that shows it.

use super::*;

/// What would be an element, an attribute or an address of its own. Each holds `zzx`.
const TEXTS: &[&str] = &[
    "<zzx>",
    "<script>zzx()</script>",
    "\"><zzx a=\"",
    "'><zzx a='",
    "</textarea><zzx>",
    "</pre></code></td></details></article><zzx>",
    "</title></style></script><zzx>",
    "<img src=x onerror=zzx()>",
    "<svg/onload=zzx()>",
    "<!--<zzx>-->",
    "<![CDATA[<zzx>]]>",
    "&lt;zzx&gt;<zzx>",
    "\" onmouseover=\"zzx()",
    "' onmouseover='zzx()",
    "` onmouseover=`zzx()",
    "[zzx](javascript:zzx())",
    "[zzx](JaVaScRiPt:zzx())",
    "[zzx](data:text/html,<zzx>)",
    "![zzx](x\" onerror=\"zzx())",
    "![zzx](https://evil.example/zzx.png)",
    "[zzx](<https://e.example/\"onclick=\"zzx()>)",
    "<javascript:zzx()>",
    "```\"><zzx>\n<zzx>\n```",
    "| <zzx> | \"><zzx> |\n|-|-|\n| <zzx> | b |",
    "[a]: javascript:zzx()\n\n[a]",
    "<details open ontoggle=zzx()>",
    "<a href=javascript:zzx()>a</a>",
    "<iframe srcdoc='<zzx>'>",
    "<form action=https://evil.example><zzx>",
    "<base href=https://evil.example/><zzx>",
    "<meta http-equiv=refresh content='0;url=https://evil.example/zzx'>",
    "\u{202e}<zzx>\u{2066}",
    "\0<zzx>\u{8}",
    "--- a\n+++ b\n@@ -1 +1 @@\n-<zzx>\n+\"><zzx>",
];

/// What none of these texts may become.
const SIGNS: &[&str] = &[
    "<zzx",
    "<script>",
    "<svg/",
    "<iframe",
    "<base",
    "<meta http",
    "<img src=x",
    "<img src=\"http",
    "<a href=javascript",
    "href=\"javascript",
    "href=\"JaVa",
    "href=\"data:",
    "onerror=\"",
    "onclick=\"",
    "onmouseover=\"",
    "ontoggle=zzx()>",
    "onload=zzx()>",
    "<form action=https",
    "srcdoc='<",
];

fn check(path: &str, page: &str) {
    // What a field holds must come back as it is; everything else shows what is invisible.
    let mut outside = String::new();
    for part in page.split(" value=\"") {
        outside.push_str(part.split_once('"').map_or(part, |(_, rest)| rest));
    }
    let outside = outside.split("<textarea").next().unwrap();
    assert!(
        !outside.contains('\u{202e}'),
        "{path} has a direction of text"
    );
    for sign in SIGNS {
        if let Some(at) = page.find(sign) {
            let from = page.floor_char_boundary(at.saturating_sub(120));
            let to = page.floor_char_boundary(at + 120);
            panic!("{path} holds {sign}: {}", &page[from..to]);
        }
    }
}

#[derive(Deserialize, schemars::JsonSchema)]
struct Any {
    text: String,
}

/// A host whose model writes a hostile text wherever a model can: its answer, its thoughts, the name,
/// the id and the arguments of a call. The tool repeats it.
async fn hostile() -> Server {
    let model = ScriptedModel::answering(|request, _| {
        let last = request.messages.last().map(|message| message.text());
        let last = last.unwrap_or_default();
        let prompts = request.messages.iter().map(|message| message.text());
        let number: usize = prompts
            .filter_map(|text| text.strip_prefix("text ")?.split(' ').next()?.parse().ok())
            .next_back()
            .unwrap_or_default();
        let text = TEXTS[number % TEXTS.len()];
        match last.starts_with("text ") {
            true => Reply::thinking(text)
                .and_text(text)
                .and_tool_with_id(
                    text,
                    "echo",
                    arguments(&json!({ "text": text, text: text })),
                )
                .and_tool(
                    "edit",
                    &json!({ "old_text": text, "new_text": format!("{text} "), "path": text }),
                )
                .and_tool(text, &json!({ "command": text })),
            false => Reply::text(text),
        }
    });
    let echo = FnTool::new("echo", "Repeats.", |any: Any, _: ToolContext| async move {
        match any.text.len() % 2 {
            0 => Ok(any.text),
            _ => Err(ToolError::invalid(any.text)),
        }
    });
    let host = Host::builder()
        .shared_provider(Arc::new(model))
        .approval(ApprovalMode::Ask)
        .has_approver(true)
        .tool(Arc::new(echo))
        .tool(note())
        .build()
        .await
        .unwrap();
    Server::over(host, Setting::default()).await
}

fn arguments(of: &Value) -> callboard_actors::chat::RawJson {
    callboard_actors::chat::RawJson::arguments(&of.to_string()).unwrap()
}

#[tokio::test]
async fn no_text_of_a_stranger_becomes_a_part_of_a_page() {
    let server = hostile().await;
    let mut browser = Browser::with(&server, ACME).await;
    let mut shown = 0;
    for (number, text) in TEXTS.iter().enumerate() {
        let id = format!("h{number}");
        let content = format!("text {number} {text}");
        let new = [("id", &*id), ("content", &content)];
        assert_eq!(browser.form("/console/new", &new).await.status, 303);
        let path = format!("/console/c/{id}");
        // Each call asks a person first; the question shows the arguments.
        let page = soon(async {
            loop {
                let page = browser.get(&path).await.text;
                check(&path, &page);
                if page.contains("Round ended") {
                    return page;
                }
                if page.contains("class=\"question\"") {
                    let call = field(&page, "call");
                    let call = call
                        .replace("&quot;", "\"")
                        .replace("&lt;", "<")
                        .replace("&gt;", ">")
                        .replace("&amp;", "&");
                    let allow = [("call", &*call), ("allow", "once")];
                    browser.form(&format!("{path}/approve"), &allow).await;
                }
                tokio::task::yield_now().await;
            }
        })
        .await;
        shown += page.matches("zzx").count();
        let inject = [("content", *text), ("busy", "inject")];
        browser.form(&format!("{path}/send"), &inject).await;
        for rest in [
            "",
            "/timeline",
            "/figures",
            "/subagents",
            "?from=1",
            "?draft=2",
        ] {
            let page = browser.get(&format!("{path}{rest}")).await;
            assert_eq!(page.status, 200, "{rest}");
            check(&format!("{path}{rest}"), &page.text);
        }
        // What comes back from a wrong field, path or filter.
        let encoded: String = form_urlencoded::byte_serialize(text.as_bytes()).collect();
        let encoded = encoded.replace('+', "%20");
        for path in [
            format!("/console?q={encoded}&state={encoded}&after={encoded}"),
            format!("/console?q={encoded}"),
            format!("/console/c/{encoded}"),
            format!("/console/c/h0?to={encoded}"),
            format!("/console/c/h0/entry/{encoded}"),
            format!("/console/c/h0/call/{encoded}"),
            format!("/console/c/h0/artifact/{encoded}"),
            format!("/console/fanouts/of/{encoded}"),
            format!("/console/fanouts/of/{encoded}/cost"),
            format!("/console/compare?a={encoded}&b={encoded}"),
            format!("/console/compare?a={encoded}"),
            format!("/console/compare?a=h0&b={id}&shown={encoded}"),
            format!("/console/compare?a=h0&b={id}"),
            format!("/console/login?next={encoded}"),
        ] {
            check(&path, &browser.get(&path).await.text);
        }
        for (path, name) in [
            ("/console/new", "id"),
            ("/console/c/h0/fork", "copy"),
            ("/console/c/h0/fork", "round"),
            ("/console/c/h0/approve", "call"),
            ("/console/c/h0/approve", "allow"),
            ("/console/fanouts/start", "name"),
        ] {
            let fields = [("content", "x"), ("tasks", "a"), (name, *text)];
            check(path, &browser.form(path, &fields).await.text);
        }
    }
    assert!(shown > TEXTS.len() * 5, "the texts are shown: {shown}");
    for path in [
        "/console",
        "/console?subagents=1",
        "/console?state=open",
        "/console/fanouts",
    ] {
        check(path, &browser.get(path).await.text);
    }
    server.end().await;
}

#[tokio::test]
async fn tasks_and_results_of_a_fan_out_are_text() {
    let server = hostile().await;
    let mut browser = Browser::with(&server, ACME).await;
    let lines: Vec<&str> = TEXTS
        .iter()
        .copied()
        .filter(|text| !text.contains('\n'))
        .collect();
    let tasks = lines.join("\n");
    let start = [("name", "f"), ("tasks", &*tasks)];
    let started = browser.form("/console/fanouts/start", &start).await;
    assert_eq!(started.status, 303, "{}", started.text);

    let path = started.location.unwrap();
    let ended = format!("{0} of {0} ended", lines.len());
    let page = browser.until(&path, &ended).await;
    check(&path, &page);
    assert!(page.contains("zzx"));
    let cost = format!("{path}/cost");
    check(&cost, &browser.get(&cost).await.text);
    let (_, rest) = page.split_once("/console/c/").unwrap();
    let child = format!("/console/c/{}", rest.split('"').next().unwrap());
    check(&child, &browser.get(&child).await.text);
    check("list", &browser.get("/console?subagents=1").await.text);
    server.end().await;
}
