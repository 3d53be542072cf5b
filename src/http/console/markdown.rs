//! Markdown of people and models as HTML. Raw HTML is shown as text, links lead only to the web,
//! and images are links: a page loads nothing from other hosts.

use std::fmt::Write as _;

use maud::{Escaper, Markup};
use pulldown_cmark::{
    Alignment, CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd, TextMergeStream,
};

use super::html::{code, trusted};
use crate::visible::visible;

/// Bytes of HTML of a text. A short text of marks alone becomes megabytes of elements.
const HTML_MAX: usize = 128 * 1024;

/// Renders a text; as it is, if it would become very much HTML.
pub(super) fn markdown(text: &str) -> Markup {
    let text = visible(text);
    let options =
        Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS;
    let mut out = Writer::default();
    for event in TextMergeStream::new(Parser::new_ext(&text, options)) {
        out.event(event);
        if out.html.len() > HTML_MAX {
            return code(&text);
        }
    }
    trusted(out.html)
}

#[derive(Default)]
struct Writer {
    html: String,
    /// Alignments of the columns of the open table, and the next column.
    columns: Vec<Alignment>,
    column: usize,
    in_head: bool,
    in_code: bool,
    /// The open links: whether each was written.
    links: Vec<bool>,
    /// Level of the last heading, from 1; 0 before the first.
    headings: usize,
}

impl Writer {
    fn text(&mut self, text: &str) {
        // Writing to memory cannot fail.
        let _ = Escaper::new(&mut self.html).write_str(text);
    }

    /// Text in which addresses of the web are links.
    fn linked(&mut self, text: &str) {
        let mut rest = text;
        while let Some((before, address, after)) = next_address(rest)
            && !self.in_code
            && self.links.is_empty()
        {
            self.text(before);
            // A scheme alone leads nowhere.
            self.link(address.strip_suffix("//").map_or(address, |_| ""));
            self.text(address);
            self.end(TagEnd::Link);
            rest = after;
        }
        self.text(rest);
    }

    fn tag(&mut self, tag: &'static str) {
        self.html.push_str(tag);
    }

    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag),
            Event::Code(text) => {
                self.tag("<code>");
                self.text(&text);
                self.tag("</code>");
            }
            Event::Text(text) => self.linked(&text),
            Event::Html(text)
            | Event::InlineHtml(text)
            | Event::InlineMath(text)
            | Event::DisplayMath(text)
            | Event::FootnoteReference(text) => self.text(&text),
            Event::SoftBreak => self.tag("\n"),
            Event::HardBreak => self.tag("<br>"),
            Event::Rule => self.tag("<hr>"),
            Event::TaskListMarker(done) => self.tag(if done { "☑ " } else { "☐ " }),
        }
    }

    fn start(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Paragraph => self.tag("<p>"),
            Tag::Heading { level, .. } => self.heading(level),
            Tag::BlockQuote(_) => self.tag("<blockquote>"),
            Tag::CodeBlock(kind) => {
                self.tag("<pre class=\"code\"");
                if let CodeBlockKind::Fenced(language) = kind
                    && let Some(language) = language.split_whitespace().next()
                {
                    self.tag(" data-language=\"");
                    self.text(language);
                    self.tag("\"");
                }
                self.tag("><code>");
                self.in_code = true;
            }
            Tag::List(None) => self.tag("<ul>"),
            Tag::List(Some(first)) => {
                let _ = write!(self.html, "<ol start=\"{first}\">");
            }
            Tag::Item => self.tag("<li>"),
            Tag::Table(columns) => {
                self.columns = columns;
                self.tag("<div class=\"wide\"><table>");
            }
            Tag::TableHead => {
                (self.in_head, self.column) = (true, 0);
                self.tag("<thead><tr>");
            }
            Tag::TableRow => {
                self.column = 0;
                self.tag("<tr>");
            }
            Tag::TableCell => {
                self.tag(if self.in_head { "<th" } else { "<td" });
                let column = self.columns.get(self.column);
                if column.is_some_and(|column| *column == Alignment::Right) {
                    self.tag(" class=\"num\"");
                }
                self.tag(">");
                self.column += 1;
            }
            Tag::Emphasis => self.tag("<em>"),
            Tag::Strong => self.tag("<strong>"),
            Tag::Strikethrough => self.tag("<del>"),
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => self.link(&dest_url),
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Paragraph => self.tag("</p>"),
            TagEnd::Heading(_) => {
                let at = self.headings.saturating_sub(1);
                self.tag(HEADINGS.get(at).map_or("", |tags| tags.1));
            }
            TagEnd::BlockQuote(_) => self.tag("</blockquote>"),
            TagEnd::CodeBlock => {
                self.in_code = false;
                self.tag("</code></pre>");
            }
            TagEnd::List(false) => self.tag("</ul>"),
            TagEnd::List(true) => self.tag("</ol>"),
            TagEnd::Item => self.tag("</li>"),
            TagEnd::Table => self.tag("</tbody></table></div>"),
            TagEnd::TableHead => {
                self.in_head = false;
                self.tag("</tr></thead><tbody>");
            }
            TagEnd::TableRow => self.tag("</tr>"),
            TagEnd::TableCell => self.tag(if self.in_head { "</th>" } else { "</td>" }),
            TagEnd::Emphasis => self.tag("</em>"),
            TagEnd::Strong => self.tag("</strong>"),
            TagEnd::Strikethrough => self.tag("</del>"),
            TagEnd::Link | TagEnd::Image if self.links.pop() == Some(true) => self.tag("</a>"),
            _ => {}
        }
    }

    /// Begins a heading: at most one level below the last one, so that no level is left out.
    fn heading(&mut self, level: HeadingLevel) {
        self.headings = (level as usize).min(self.headings + 1).min(HEADINGS.len());
        let at = self.headings - 1;
        self.tag(HEADINGS.get(at).map_or("", |tags| tags.0));
    }

    /// Begins a link. Only addresses of the web become one, and none inside of another.
    fn link(&mut self, address: &str) {
        let is_web = ["https://", "http://", "mailto:"].iter().any(|scheme| {
            let start = address.get(..scheme.len());
            start.is_some_and(|start| start.eq_ignore_ascii_case(scheme))
        });
        let is_link = is_web && !self.links.contains(&true);
        self.links.push(is_link);
        if is_link {
            self.tag("<a rel=\"noopener noreferrer nofollow\" target=\"_blank\" href=\"");
            self.text(address);
            self.tag("\">");
        }
    }
}

/// Headings of a text stand below those of the page.
/// The first address of the web in a text, with what stands before and after it.
fn next_address(text: &str) -> Option<(&str, &str, &str)> {
    let schemes = ["https://", "http://"].into_iter();
    let start = schemes.filter_map(|scheme| text.find(scheme)).min()?;
    let (before, from) = text.split_at(start);
    let is_end = |letter: char| letter.is_whitespace() || "<>\"'`\\|".contains(letter);
    let address = from.get(..from.find(is_end).unwrap_or(from.len()))?;
    let marks = |letter: char| ".,;:!?*_)]}".contains(letter);
    let address = address.trim_end_matches(marks);
    let after = from.get(address.len()..)?;
    Some((before, address, after))
}

/// The tags of headings, from below that of the page.
const HEADINGS: [(&str, &str); 5] = [
    ("<h2>", "</h2>"),
    ("<h3>", "</h3>"),
    ("<h4>", "</h4>"),
    ("<h5>", "</h5>"),
    ("<h6>", "</h6>"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        markdown(text).into_string()
    }

    #[test]
    fn markdown_becomes_html_and_html_becomes_text() {
        assert_eq!(
            shown("**a** <b onclick=x>b</b> `<i>`"),
            "<p><strong>a</strong> &lt;b onclick=x&gt;b&lt;/b&gt; <code>&lt;i&gt;</code></p>"
        );
        assert_eq!(
            shown("<script>alert(1)</script>"),
            "&lt;script&gt;alert(1)&lt;/script&gt;"
        );
        assert!(shown("|a|b|\n|-|-:|\n|1|2|").contains("<td class=\"num\">2</td>"));
        assert!(shown("```a\"b\nx\n```").contains("data-language=\"a&quot;b\""));
    }

    #[test]
    fn only_addresses_of_the_web_are_links_and_nothing_is_loaded() {
        for bad in [
            "[a](javascript:alert(1))",
            "[a](data:text/html,x)",
            "[a](vbscript:x)",
            "[a](//evil.example)",
            "[a](/console/logout)",
            "<javascript:alert(1)>",
        ] {
            assert!(!shown(bad).contains("<a"), "{bad}: {}", shown(bad));
        }
        let image = shown("![x](https://evil.example/a.png\" onload=alert(1))");
        assert!(
            !image.contains("<img") && !image.contains("onload=\""),
            "{image}"
        );
        let quoted = shown("[a](<https://e.example/\"onmouseover=x>)");
        assert!(
            quoted.contains("href=\"https://e.example/&quot;onmouseover=x\""),
            "{quoted}"
        );
        assert!(
            shown("[![x](https://a.example)](https://b.example)")
                .matches("<a ")
                .count()
                == 1
        );
    }

    #[test]
    fn headings_leave_out_no_level() {
        assert_eq!(
            shown("### a\n# b\n###### c"),
            "<h2>a</h2><h2>b</h2><h3>c</h3>"
        );
    }

    #[test]
    fn an_address_in_a_text_is_a_link_and_in_code_it_is_not() {
        let page = shown("see https://a.example/b_c_d?e=1, or `https://f.example`");
        assert!(page.contains("see ") && page.contains(", or <code>https://f.example</code>"));
        assert!(
            page.contains("href=\"https://a.example/b_c_d?e=1\""),
            "{page}"
        );
        assert_eq!(page.matches("<a ").count(), 1, "{page}");
        assert_eq!(
            shown("```\nhttps://a.example\n```").matches("<a ").count(),
            0
        );
        assert_eq!(
            shown("[https://a.example](https://b.example)")
                .matches("<a ")
                .count(),
            1
        );
    }

    #[test]
    fn directions_of_text_are_shown() {
        assert!(shown("a\u{202e}b").contains("\\u{202e}"));
    }
}
