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
    let rows: Vec<(&str, String)> = vec![
        ("div", "<div>".repeat(100_000) + "end"),
        ("div x", "<div>x".repeat(100_000)),
        ("b", "<b>x".repeat(100_000)),
        ("b siblings", "<b>x</b>".repeat(100_000)),
        (
            "a",
            (0..100_000).map(|n| format!("<a href=/{n}>x")).collect(),
        ),
        ("p b", "<p><b><i><code>x".repeat(50_000)),
        ("ul li", "<ul><li>x".repeat(100_000)),
        ("li", "<li>x".repeat(100_000)),
        ("ol", format!("<ol>{}", "<li>x</li>".repeat(100_000))),
        ("blockquote", "<blockquote>x".repeat(100_000)),
        ("dl", "<dl><dd>x<ol>".repeat(50_000)),
        ("table", "<table><tr><td>x".repeat(50_000)),
        (
            "wide",
            format!(
                "<table><tr>{}",
                "<th>".repeat(100_000) + "x" + &"<tr><td>y".repeat(50_000)
            ),
        ),
        (
            "cells",
            format!(
                "<table><tr><th>{}<th>b{}",
                "w".repeat(100_000),
                "<tr><td>y<td>z".repeat(50_000)
            ),
        ),
        ("svg", "<svg>".repeat(100_000)),
        ("nav", "<nav>x</nav>".repeat(100_000)),
        ("font", "<font color=red>".repeat(100_000) + "x"),
        ("select", "<select><option>".repeat(50_000)),
        ("open", "<".repeat(500_000)),
        ("amp", "&".repeat(500_000)),
        ("one word", "x".repeat(1_000_000)),
        ("attributes", format!("<a {}>x", "b=c ".repeat(200_000))),
        ("comments", "<!--".repeat(200_000)),
        ("end tags", "</p></div></b></li>".repeat(50_000)),
        ("pre", format!("<pre>{}", "<br>x".repeat(100_000))),
        ("h", "<h1>x<h2>".repeat(50_000)),
        (
            "br",
            format!("{}{}", "<ul><li>".repeat(100), "<br>x".repeat(100_000)),
        ),
        ("stars", "*_`[]\\".repeat(100_000)),
        ("numbers", "<p>1. x\n2. y".repeat(50_000)),
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
