//! Pages and the Markdown that they become.

use std::time::{Duration, Instant};

use expect_test::{Expect, expect};

use super::*;

fn page(html: &str) -> Page {
    let base = Url::parse("https://example.com/dir/page").unwrap();
    markdown(html, &base, 1024 * 1024, &CancellationToken::new()).unwrap()
}

fn check(html: &str, expected: &Expect) {
    let text: String = page(html)
        .text
        .lines()
        .map(|line| line.trim_end().to_owned() + "\n")
        .collect();
    expected.assert_eq(&text);
}

#[test]
fn a_page_keeps_what_it_says() {
    check(
        "<!doctype html><html><head><title> A &amp; B\n page</title><style>p{}</style><script>if (1<2) x('</p>')</script></head>
         <body><nav><ul><li><a href=/>Home</a></ul></nav>
         <h1>Head <em>line</em></h1><div>One <b>bold</b> and <a href='../x?a=1&amp;b=2'>a link</a>.<p>Two<br>lines &lt;tag&gt; 1 < 2</div>
         <ul><li>first<li><p>second</p><p>more</p><ol><li>deep</li></ol></li></ul>
         <pre><code class='language-rust'>fn main() {\n    a &lt; b;\n}</code></pre>
         <blockquote>said <i>so</i></blockquote><hr><img src=/i.png alt='a cat'><img src=/pixel.gif>
         <table><tr><th>k<th>v</tr><tr><td>a<td><p>1</p></tr><tr><td>b<td></tr></table>
         <a href='javascript:alert(1)'>bad</a> <a href='#top'>top</a><div hidden>secret</div><span style='display: none'>unseen</span>
         <footer>imprint</footer></body>",
        &expect![[r#"
            # Head *line*

            One **bold** and [a link](https://example.com/x?a=1&b=2).

            Two
            lines \<tag> 1 < 2

            - first
            - second
              more
              1. deep

            ```
            fn main() {
                a < b;
            }
            ```

            > said *so*

            - - -

            ![a cat](https://example.com/i.png)

            k | v
            | --- | --- |
            a | 1
            b

            bad top
        "#]],
    );
    assert_eq!(
        page("<title> A &amp; B\n page</title>x").title.as_deref(),
        Some("A & B page")
    );
}

#[test]
fn a_menu_that_never_ends_does_not_take_the_page() {
    check(
        "<nav><a href=/>Home</a><p>The text.",
        &expect![[r#"
        [Home](https://example.com/)

        The text.
    "#]],
    );
    check(
        "<nav>only a menu</nav>",
        &expect![[r#"
        only a menu
    "#]],
    );
}

#[test]
fn misnested_tags_are_text_all_the_same() {
    check(
        "<b>a<p>b</b>c</p></div></li>d<a href=/1>e<a href=/2>f<h2>g</a>h</h2>i</ul><li>j</b>",
        &expect![[r#"
        **a**

        **b**c

        d[e](https://example.com/1)[f](https://example.com/2)

        ## [g](https://example.com/2)h

        i

        - j
    "#]],
    );
    check(
        "<table><td>a<table><td>b<table><td>c",
        &expect![[r#"
        a b c
    "#]],
    );
}

#[test]
fn hostile_pages_are_bounded_in_time_stack_and_size() {
    // Deep enough, in a usual run too, that a parser that recurses overflows its stack.
    let many = callboard_actors::testing::TestSize::pick(20_000, 100_000, 100_000);
    let rows: Vec<(&str, String)> = vec![
        ("div", "<div>".repeat(many) + "end"),
        ("div x", "<div>x".repeat(many)),
        ("b", "<b>x".repeat(many)),
        ("b siblings", "<b>x</b>".repeat(many)),
        ("a", (0..many).map(|n| format!("<a href=/{n}>x")).collect()),
        ("p b", "<p><b><i><code>x".repeat(many / 2)),
        ("ul li", "<ul><li>x".repeat(many)),
        ("li", "<li>x".repeat(many)),
        ("ol", format!("<ol>{}", "<li>x</li>".repeat(many))),
        ("blockquote", "<blockquote>x".repeat(many)),
        ("dl", "<dl><dd>x<ol>".repeat(many / 2)),
        ("table", "<table><tr><td>x".repeat(many / 2)),
        (
            "wide",
            format!(
                "<table><tr>{}",
                "<th>".repeat(many) + "x" + &"<tr><td>y".repeat(many / 2)
            ),
        ),
        (
            "cells",
            format!(
                "<table><tr><th>{}<th>b{}",
                "w".repeat(many),
                "<tr><td>y<td>z".repeat(many / 2)
            ),
        ),
        ("svg", "<svg>".repeat(many)),
        ("nav", "<nav>x</nav>".repeat(many)),
        ("font", "<font color=red>".repeat(many) + "x"),
        ("select", "<select><option>".repeat(many / 2)),
        ("open", "<".repeat(5 * many)),
        ("amp", "&".repeat(5 * many)),
        ("one word", "x".repeat(10 * many)),
        ("attributes", format!("<a {}>x", "b=c ".repeat(2 * many))),
        ("comments", "<!--".repeat(2 * many)),
        ("end tags", "</p></div></b></li>".repeat(many / 2)),
        ("pre", format!("<pre>{}", "<br>x".repeat(many))),
        ("h", "<h1>x<h2>".repeat(many / 2)),
        (
            "br",
            format!("{}{}", "<ul><li>".repeat(100), "<br>x".repeat(many)),
        ),
        ("stars", "*_`[]\\".repeat(many)),
        ("numbers", "<p>1. x\n2. y".repeat(many / 2)),
    ];
    for (name, html) in rows {
        let begin = Instant::now();
        let page = page(&html);
        let took = begin.elapsed();
        println!(
            "{name}: {} -> {} bytes in {took:?}",
            html.len(),
            page.text.len()
        );
        assert!(took < Duration::from_secs(20), "{name} took {took:?}");
        assert!(
            page.text.len() < 3 * 1024 * 1024,
            "{name}: {}",
            page.text.len()
        );
    }
}

#[test]
fn a_cancel_is_seen_between_pieces() {
    let cancel = CancellationToken::new();
    cancel.cancel();
    let base = Url::parse("https://example.com/").unwrap();

    assert_eq!(
        markdown(&"<p>x".repeat(10_000), &base, 1024, &cancel)
            .unwrap_err()
            .code,
        "INTERRUPTED"
    );
}
