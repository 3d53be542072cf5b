//! The elements of HTML that matter for Markdown: blocks, and what is left out of a page.

use crate::tools::page::scan::Tag;

/// Elements whose text is not for people.
pub(super) const RAW: &[&str] = &[
    "script",
    "style",
    "textarea",
    "xmp",
    "iframe",
    "noembed",
    "noframes",
    "plaintext",
];

/// Elements that are not part of the page's contents.
pub(super) const NOISE: &[&str] = &[
    "nav", "footer", "menu", "svg", "math", "template", "canvas", "audio", "video", "object",
    "button", "select", "dialog",
];

/// Elements whose `hidden` attribute is obeyed. Elements with an optional end tag are not among
/// them, because too much text would disappear with them.
const HIDEABLE: &[&str] = &[
    "div", "section", "span", "aside", "article", "ul", "ol", "table", "main", "form", "a", "p",
];

/// An open block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Block {
    List(&'static str),
    Item,
    Quote,
    Heading(&'static str),
    Pre,
}

impl Block {
    pub(super) fn from_tag(name: &str) -> Option<Self> {
        Some(match name {
            "ul" | "dl" => Self::List("ul"),
            "ol" => Self::List("ol"),
            "li" | "dt" | "dd" => Self::Item,
            "blockquote" => Self::Quote,
            "h1" => Self::Heading("h1"),
            "h2" => Self::Heading("h2"),
            "h3" => Self::Heading("h3"),
            "h4" => Self::Heading("h4"),
            "h5" => Self::Heading("h5"),
            "h6" => Self::Heading("h6"),
            "pre" | "listing" => Self::Pre,
            _ => return None,
        })
    }

    pub(super) fn open(self) -> &'static str {
        match self {
            Self::List("ol") => "<ol>",
            Self::List(_) => "<ul>",
            Self::Item => "<li>",
            Self::Quote => "<blockquote>",
            Self::Heading(name) => match name {
                "h1" => "<h1>",
                "h2" => "<h2>",
                "h3" => "<h3>",
                "h4" => "<h4>",
                "h5" => "<h5>",
                _ => "<h6>",
            },
            Self::Pre => "<pre><code>",
        }
    }

    pub(super) fn close(self) -> &'static str {
        match self {
            Self::List("ol") => "</ol>",
            Self::List(_) => "</ul>",
            Self::Item => "</li>",
            Self::Quote => "</blockquote>",
            Self::Heading(name) => match name {
                "h1" => "</h1>",
                "h2" => "</h2>",
                "h3" => "</h3>",
                "h4" => "</h4>",
                "h5" => "</h5>",
                _ => "</h6>",
            },
            Self::Pre => "</code></pre>",
        }
    }

    /// Whether the end tag of `other` ends this block.
    pub(super) fn ends_with(self, other: Self) -> bool {
        matches!((self, other), (Self::Heading(_), Self::Heading(_))) || self == other
    }
}

pub(super) fn lower(name: &str) -> String {
    // All names that matter are shorter.
    name.get(..name.len().min(32))
        .unwrap_or_default()
        .to_ascii_lowercase()
}

/// Block elements: a paragraph ends before and after them.
pub(super) fn is_block(name: &str) -> bool {
    const BLOCKS: &[&str] = &[
        "p",
        "div",
        "section",
        "article",
        "main",
        "header",
        "footer",
        "nav",
        "aside",
        "form",
        "fieldset",
        "legend",
        "figure",
        "figcaption",
        "address",
        "details",
        "summary",
        "center",
        "body",
        "html",
        "head",
        "caption",
        "thead",
        "tbody",
        "tfoot",
        "hgroup",
        "search",
        "menu",
        "option",
        "dialog",
        "noscript",
    ];
    BLOCKS.contains(&name)
}

pub(super) fn is_hidden(name: &str, tag: &Tag<'_>) -> bool {
    if !HIDEABLE.contains(&name) {
        return false;
    }
    let style = || {
        tag.attribute("style")
            .map(|style| style.replace([' ', '\t', '\n'], "").to_ascii_lowercase())
    };
    tag.attribute("hidden").is_some()
        || style().is_some_and(|style| {
            style.contains("display:none")
                || style.contains("visibility:hidden")
                || style.contains("font-size:0;")
        })
}
