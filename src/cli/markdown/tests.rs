use super::*;
use crate::{
    providers::testing::{SplitMix, seed},
    visible::{VisibleStream, is_invisible},
};

thread_local! {
    /// Bytes of paragraphs that were laid out into rows.
    pub(super) static LAID_OUT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

fn shown(text: &str, width: usize) -> String {
    let mut markdown = Markdown::new(width);
    let mut rows = markdown.push(text);
    rows.extend(markdown.finish());
    rows.iter().map(|row| text_of(row) + "\n").collect()
}

fn styles(text: &str) -> Vec<(String, Style)> {
    let mut markdown = Markdown::new(80);
    let mut rows = markdown.push(text);
    rows.extend(markdown.finish());
    let spans = rows.into_iter().flatten();
    spans.map(|span| (span.text, span.style)).collect()
}

#[test]
fn a_document_is_laid_out_for_reading() {
    for (given, expected) in [
        ("# One\ntwo **three** `four`\n", "One\ntwo three\nfour\n"),
        ("a b c d e f g h\n", "a b c d e\nf g h\n"),
        (
            "- a b c d e\n- two\n  - in\n1. x",
            "• a b c d\n  e\n• two\n  ◦ in\n1. x\n",
        ),
        ("- [ ] a\n- [x] b", "• ☐ a\n• ☑ b\n"),
        ("> a\n>\n> b\n\nc", "│ a\n│\n│ b\n\nc\n"),
        (
            "```rust\nlet a;\n\n  b\n```\nx",
            "rust\n  let a;\n\n    b\nx\n",
        ),
        ("|a|b|\n|-|-:|\n|1|22|\n", "a │  b\n──┼───\n1 │ 22\n"),
        (
            "|name|text|\n|-|-|\n|x|long words\n",
            "name: x\n  text:\n  long\n  words\n",
        ),
        ("日本語の文章は長い", "日本語の文\n章は長い\n"),
        ("one\ntwo\n\nthree", "one\ntwo\n\nthree\n"),
        ("a\n***\nb", "a\n─────\nb\n"),
        ("1.\n\nEND\n\n- ", "1.\n\nEND\n\n•\n"),
        ("2 * 3 a_b_c", "2 * 3\na_b_c\n"),
        ("averylongword", "averylongw\nord\n"),
    ] {
        assert_eq!(shown(given, 10), expected, "{given:?}");
    }
}

#[test]
fn words_are_styled_as_they_were_meant() {
    let styled = |style| move |text: &str| (text.to_owned(), style);
    let (plain, bold) = (styled(Style::PLAIN), styled(Style::BOLD));

    assert_eq!(styles("a **b** c"), [plain("a "), bold("b"), plain(" c")]);
    assert_eq!(
        styles("# a"),
        [styled(Style::BOLD.with(Style::UNDERLINE))("a")]
    );
    assert_eq!(
        styles("~~a~~ *b*"),
        [
            styled(Style::STRIKE)("a"),
            plain(" "),
            styled(Style::ITALIC)("b")
        ]
    );
    assert_eq!(
        styles("```rs\nlet a = \"b\"; // c\n```").get(2..),
        Some(
            &[
                styled(Style::CYAN)("let"),
                plain(" a = "),
                styled(Style::GREEN)("\"b\""),
                plain("; "),
                styled(Style::DIM)("// c"),
            ][..]
        )
    );
    assert_eq!(
        styles("```diff\n-a\n+b")[2..],
        [
            styled(Style::RED)("-a"),
            plain("  "),
            styled(Style::GREEN)("+b")
        ]
    );
}

#[test]
fn a_link_leads_where_its_text_says() {
    let links = |text: &str| -> Vec<(String, Option<String>)> {
        let mut markdown = Markdown::new(200);
        let mut rows = markdown.push(text);
        rows.extend(markdown.finish());
        let spans = rows.into_iter().flatten();
        spans
            .filter_map(|span| span.link.map(|link| (span.text, Some(link.to_string()))))
            .collect()
    };
    let leads = |address: &str| vec![(address.to_owned(), Some(address.to_owned()))];

    for (given, address) in [
        (
            "[the docs](https://docs.example/a)",
            "https://docs.example/a",
        ),
        (
            "[https://good.example](https://evil.example)",
            "https://evil.example",
        ),
        ("see https://docs.example/a.", "https://docs.example/a"),
        ("<https://docs.example/a>", "https://docs.example/a"),
    ] {
        let found = links(given);
        assert!(found.ends_with(&leads(address)), "{given}: {found:?}");
        assert!(
            found.iter().all(|(text, link)| link.as_ref() == Some(text)),
            "{given}: {found:?}"
        );
    }
    for lies in [
        "[a](javascript:alert(1))",
        "[a](file:///etc/passwd)",
        "[a](https://good.example@evil.example/)",
        "[a](https://gооd.example/)",
        "[a](https://xn--gd-emaa.example/)",
        "[a](https://a.example/\\\\x)",
    ] {
        assert_eq!(links(lies), [], "{lies}");
        assert!(
            shown(lies, 200).contains('('),
            "the address is shown: {lies}"
        );
    }
}

/// Parts of documents. Each `#` becomes a number, so that a lost word is noticed.
const PARTS: &[&str] = &[
    "w# ",
    "w# ",
    "w# ",
    " ",
    "\n",
    "\n",
    "\n\n",
    "**w#** ",
    "*w# w#* ",
    "**w#",
    "`w# w#` ",
    "`w#",
    "_w#_ ",
    "~~w#~~ ",
    "\\*w# ",
    "[w# w#](https://a.example/w#) ",
    "[w#",
    "](",
    "<b>w#</b> ",
    "&amp; ",
    "&#27;[31m ",
    "# w# w#\n",
    "### w#\n",
    "- w# w#\n",
    "* w#",
    "  - w#\n",
    "    - w#\n",
    "12. w#\n",
    "1) w#",
    "- [ ] w#\n",
    "> w#\n",
    "> > w#\n",
    ">\n",
    "---\n",
    "***\n",
    "```rust\nlet w# = \"w#\"; // w#\n```\n",
    "```\n",
    "~~~\n",
    "````\n",
    "    w#\n",
    "\tw#\n",
    "| w# | w# |\n|---|--:|\n| w# | w# |\n",
    "| w# |\n",
    "|",
    "===\n",
    "日本語の文章w#。",
    "漢字、w#",
    "👩\u{200d}💻 👍🏽 🇩🇪 w# ",
    "مرحبا w# ",
    "e\u{301}w# ",
    "\u{1b}[31mw# ",
    "\u{9b}2J",
    "\u{1b}]8;;https://evil.example\u{7}w#",
    "\u{202e}",
    "\r",
    "\r\n",
    "\0",
    "wwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwww# ",
    "https://b.example/w#?a=b ",
];

fn document(random: &mut SplitMix) -> String {
    let mut text = String::new();
    for number in 0..random.below(60) {
        let part = PARTS[random.below(PARTS.len())];
        text.push_str(
            &part
                .replace('#', &number.to_string())
                .replace("&27", "&#27"),
        );
        if part.starts_with('#') {
            text.push_str(&format!("{} w{number}\n", "#".repeat(1 + random.below(6))));
        }
    }
    text
}

/// Splits a text into pieces, by characters.
fn pieces(text: &str, random: &mut SplitMix) -> Vec<String> {
    let most = [1, 3, 20, 200][random.below(4)];
    let chars: Vec<char> = text.chars().collect();
    let mut rest = &chars[..];
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        let (piece, after) = rest.split_at((1 + random.below(most)).min(rest.len()));
        pieces.push(piece.iter().collect());
        rest = after;
    }
    pieces
}

#[test]
fn rows_depend_on_the_text_and_not_on_how_it_arrives_and_none_is_too_wide() {
    let seed = seed("markdown");
    let mut random = SplitMix(seed);
    let documents = callboard_actors::testing::TestSize::pick(100, 3_000, 100_000);
    for nth in 0..documents {
        let text = document(&mut random);
        let width = [40, 40, 80, 10, 10 + random.below(150)][random.below(5)];
        let case = format!("seed {seed}, document {nth}, {width} columns: {text:?}");
        let whole = crate::visible::visible(&text);
        let expected: Vec<Line> = {
            let mut markdown = Markdown::new(width);
            let mut rows = markdown.push(&whole);
            rows.extend(markdown.finish());
            rows
        };

        let mut stream = VisibleStream::default();
        let mut markdown = Markdown::new(width);
        let mut rows = Vec::new();
        for piece in pieces(&text, &mut random) {
            rows.extend(markdown.push(&stream.push(&piece)));
            let live = markdown.live(3);
            assert!(live.len() <= 3, "{case}");
            assert!(
                live.iter().all(|row| line_columns(row) <= width),
                "{case}: {live:?}"
            );
        }
        rows.extend(markdown.push(&stream.finish()));
        rows.extend(markdown.finish());

        assert_eq!(rows, expected, "{case}");
        for row in &rows {
            let text = text_of(row);
            assert!(line_columns(row) <= width, "{case}: {text:?}");
            let joined = |c: char| matches!(c, '\u{200c}' | '\u{200d}');
            assert!(
                !text.contains(|c: char| is_invisible(c) && !joined(c)),
                "{case}: {text:?}"
            );
        }
        let shown: String = rows.iter().map(|row| text_of(row)).collect();
        let words = |text: &str| text.matches('w').count();
        assert!(words(&shown) >= words(&text), "{case}: {shown:?}");
    }
}

#[test]
fn a_long_paragraph_is_shown_row_by_row() {
    let text = "word **bold** and `code` ".repeat(100);
    let mut markdown = Markdown::new(40);
    let mut seen = 0;
    for c in text.chars() {
        let rows = markdown.push(&c.to_string());
        seen += rows.len();
        assert!(rows.len() < 8, "{rows:?}");
    }

    assert!(seen > 30, "{seen}");
    assert!(markdown.live(10).len() < 8);
}

#[test]
fn a_line_without_an_end_is_not_held_back() {
    for begin in ["", "# ", "| a", "```\n", "- ", "**"] {
        let mut markdown = Markdown::new(80);
        let rows = markdown.push(&format!("{begin}{}", "x".repeat(100_000)));

        let shown: usize = rows.iter().map(|row| line_columns(row)).sum();
        assert!(shown > 80_000, "{begin:?}: {shown}");
    }
}

#[test]
fn text_without_a_width_is_laid_out_a_few_times_at_most() {
    let n = callboard_actors::testing::TestSize::pick(20_000, 100_000, 100_000);
    let floods = [
        "\u{301}".repeat(n),
        "\u{301}\n".repeat(n * 3 / 5),
        format!("- > {}", "*a\u{301}* \u{301}\u{fe0f}".repeat(n / 5)),
        "\u{200d}\u{301} ".repeat(n * 2 / 5),
    ];
    for flood in floods {
        LAID_OUT.with(|bytes| bytes.set(0));
        let mut markdown = Markdown::new(80);

        let mut rows = markdown.push(&flood);

        let before = LAID_OUT.with(std::cell::Cell::get);
        let live = markdown.live(3);
        let of_live = LAID_OUT.with(std::cell::Cell::get) - before;
        rows.extend(markdown.finish());
        assert!(before <= 8 * flood.len(), "{before} of {}", flood.len());
        assert!(of_live <= 4 * HELD_BYTES_MAX, "{of_live}");
        assert!(live.len() <= 3);
        let marks = |text: &str| text.chars().filter(|c| *c == '\u{301}').count();
        let of_rows: usize = rows.iter().map(|row| marks(&text_of(row))).sum();
        assert_eq!(of_rows, marks(&flood), "no mark is lost");
    }
}
