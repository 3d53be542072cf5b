//! Two conversations side by side.

use callboard_actors::{
    chat::Usage,
    policy::{Price, Prices},
};

use super::*;

/// A server whose model lists what it is asked for, uses a tool if it is asked to, and costs a dollar
/// for a million tokens.
async fn listing() -> Server {
    let model = ScriptedModel::answering(|request, _| {
        let last = request.messages.last().map(|message| message.text());
        let last = last.unwrap_or_default();
        let usage = Usage {
            input_uncached: 25,
            cache_read: 75,
            output: last.len() as u64,
            ..Usage::default()
        };
        let reply = match last.strip_prefix("use ") {
            Some(text) => Reply::tool("note", &json!({ "text": text })),
            None => Reply::text(last.replace(' ', "\n")),
        };
        reply.usage(usage)
    });
    let price = Price::per_million(1.0, 1.0).unwrap();
    let host = Host::builder()
        .shared_provider(Arc::new(model))
        .model("scripted-1")
        .prices(Prices::default().with("scripted*", price))
        .approval(ApprovalMode::Auto)
        .tool(note())
        .build()
        .await
        .unwrap();
    Server::over(host, Setting::default()).await
}

/// The part of a page about one round.
fn round(page: &str, number: usize) -> String {
    let start = format!("<h2>Round {number} ");
    let (_, rest) = page.split_once(&start).expect(page);
    rest.split("</section>").next().unwrap().to_owned()
}

#[tokio::test]
async fn two_conversations_stand_side_by_side_with_the_lines_marked_that_differ() {
    let server = listing().await;
    for (id, prompt) in [
        ("one", "red green blue"),
        ("two", "red green blue"),
        ("two", "only here"),
        ("one", "use milk"),
        ("two", "use milk"),
        ("one", "a b c"),
        ("two", "a x c"),
    ] {
        server.send(id, prompt).await;
    }
    let mut browser = Browser::with(&server, ACME).await;

    let empty = browser.get("/console/compare").await.text;
    assert!(empty.contains("<option value=\"one\">") && empty.contains("Choose two"));
    let list = browser.get("/console").await.text;
    assert!(list.contains("href=\"/console/compare\""));
    let figures = browser.get("/console/c/one/figures").await.text;
    assert!(figures.contains("action=\"/console/compare\""));
    assert_eq!(field(&figures, "a"), "one");

    let page = browser.get("/console/compare?a=one&b=two").await.text;
    let first = round(&page, 1);
    assert!(
        first.contains("same prompt") && first.contains("same answer"),
        "{first}"
    );
    assert!(!first.contains("<del") && !first.contains("<ins"));
    assert!(first.contains("100 in, 75 % from the cache; 14 out") && first.contains("end_turn"));
    let second = round(&page, 2);
    assert!(second.contains("only in B") && second.contains("A has no such round."));
    let third = round(&page, 3);
    assert!(third.contains("same prompt") && third.matches("<code>note</code> × 1").count() == 2);
    let last = round(&page, 4);
    assert!(last.contains("prompts differ") && last.contains("answers differ"));
    let lines = [
        "<del class=\"del\">−\u{a0}b</del>",
        "<ins class=\"add\">+\u{a0}x</ins>",
        "<span class=\"same\"> \u{a0}a</span>",
    ];
    for line in lines {
        assert!(last.contains(line), "{line}: {last}");
    }
    assert!(
        page.contains("<th scope=\"row\">Rounds</th><td class=\"num\">3</td><td class=\"num\">4</td><td class=\"num\">+1</td>"),
        "{page}"
    );
    assert!(!page.contains("Next rounds") && page.contains("Swap"));
    server.end().await;
}

#[tokio::test]
async fn long_conversations_are_compared_by_part_and_no_round_is_missed() {
    let server = listing().await;
    let long = "a word ".repeat(1_000);
    for number in 0..70 {
        let prompt = match number % 2 {
            0 => format!("round{number}"),
            _ => format!("round{number} {long}"),
        };
        server.send("one", &prompt).await;
        server.send("two", &prompt).await;
    }
    server.send("two", "round70").await;
    let mut browser = Browser::with(&server, ACME).await;

    let mut path = "/console/compare?a=one&b=two".to_owned();
    let (mut numbers, mut pages) = (Vec::new(), 0);
    loop {
        let page = browser.get(&path).await.text;
        assert!(page.len() < 600 * 1024, "{}", page.len());
        for part in page.split("<h2>Round ").skip(1) {
            numbers.push(part.split(' ').next().unwrap().parse::<usize>().unwrap());
            let text = format!("round{}", numbers.len() - 1);
            let is_alone = part.contains("only in B");
            assert_eq!(is_alone, numbers.len() == 71, "{text}");
            assert!(part.matches(&text).count() >= 2, "{text}: {part}");
            assert!(is_alone || part.contains("same prompt") && part.contains("same answer"));
        }
        pages += 1;
        let Some((_, rest)) = page.split_once("rel=\"next\" href=\"") else {
            break;
        };
        path = rest.split('"').next().unwrap().replace("&amp;", "&");
    }
    assert_eq!(numbers, (1..=71).collect::<Vec<_>>());
    assert!((2..=20).contains(&pages), "{pages}");
    server.end().await;
}

#[tokio::test]
async fn another_tenants_conversation_is_compared_like_one_that_is_unknown() {
    let server = listing().await;
    server.send("c", "a secret of acme").await;
    let mut zeta = Browser::with(&server, ZETA).await;

    for (theirs, none) in [("a=c&b=c", "a=d&b=d"), ("a=d&b=c", "a=d&b=d")] {
        let theirs = zeta.get(&format!("/console/compare?{theirs}")).await;
        let none = zeta.get(&format!("/console/compare?{none}")).await;
        assert_eq!((theirs.status, &theirs.text), (404, &none.text));
    }
    assert!(
        !zeta
            .get("/console/compare?a=c")
            .await
            .text
            .contains("<option value=\"c\"")
    );
    let mut operator = Browser::with(&server, ADMIN).await;
    assert_eq!(operator.get("/console/compare?a=c&b=c").await.status, 303);
    server.end().await;
}
