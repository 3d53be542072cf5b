//! Extracts the text of a fetched document: HTML as Markdown, text and JSON unchanged. Pure; call
//! it on a blocking thread.

mod scan;
mod visible;
mod charset;
mod markdown;

use callboard_actors::tool::ToolError;
use tokio_util::sync::CancellationToken;
use url::Url;

pub(super) use visible::visible;

use super::{encoding::binary, text::prefix};

/// Longest text of a document. The head of the text says how much is missing. The executor pages
/// and stores the result.
pub(super) const TEXT_BYTES_MAX: usize = 1024 * 1024;

/// A document as received.
pub(super) struct Document<'a> {
    pub(super) url: &'a Url,
    /// The `content-type` header.
    pub(super) content_type: Option<&'a str>,
    pub(super) bytes: &'a [u8],
    /// Whether the document was longer than `bytes`.
    pub(super) more: bool,
    pub(super) declared: Option<u64>,
}

/// The kind of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Html,
    Text,
    /// No content type, or one that does not help.
    Unknown,
    Other,
}

impl Kind {
    fn from_content_type(content_type: Option<&str>) -> Self {
        let essence = content_type
            .unwrap_or_default()
            .split(';')
            .next()
            .unwrap_or_default()
            .trim()
            .to_ascii_lowercase();
        let (kind, name) = essence.split_once('/').unwrap_or(("", ""));
        match (kind, name) {
            ("text", "html") | ("application", "xhtml+xml") => Self::Html,
            ("text", _) => Self::Text,
            (_, name)
                if name.ends_with("+json") || name.ends_with("+xml") || name.ends_with("+yaml") =>
            {
                Self::Text
            }
            (
                "application",
                "json" | "xml" | "javascript" | "ecmascript" | "x-javascript" | "yaml" | "x-yaml"
                | "toml" | "x-sh" | "sql",
            ) => Self::Text,
            (
                "application",
                "x-ndjson" | "ndjson" | "jsonl" | "json-seq" | "graphql" | "x-httpd-php" | "x-tex"
                | "x-latex" | "rtf",
            ) => Self::Text,
            ("", _)
            | ("application", "octet-stream" | "x-download" | "force-download")
            | ("binary", "octet-stream") => Self::Unknown,
            _ => Self::Other,
        }
    }
}

/// Refuses a document by its content type, before its body is read.
pub(super) fn refuse(content_type: Option<&str>) -> Result<(), ToolError> {
    match Kind::from_content_type(content_type) {
        Kind::Other => Err(no_text(content_type)),
        Kind::Html | Kind::Text | Kind::Unknown => Ok(()),
    }
}

fn no_text(content_type: Option<&str>) -> ToolError {
    let kind: String = content_type
        .unwrap_or("of unknown kind")
        .chars()
        .filter(|c| !c.is_control())
        .take(100)
        .collect();
    ToolError::failed(format!(
        "the document is not text ({kind}); only web pages, text and JSON can be read"
    ))
    .code("NOT_TEXT")
}

/// Returns the text of a document. Its head has the title, the URL and an account of what is
/// missing.
pub(super) fn read(
    document: &Document<'_>,
    cancel: &CancellationToken,
) -> Result<String, ToolError> {
    let kind = match Kind::from_content_type(document.content_type) {
        Kind::Other => return Err(no_text(document.content_type)),
        Kind::Unknown if looks_like_html(document.bytes) => Kind::Html,
        kind => kind,
    };
    let (text, replaced) = charset::decode(
        document.bytes,
        document.content_type,
        kind == Kind::Html,
        document.more,
    );
    // UTF-16 contains zero bytes, but its characters do not. A document without a text type must be
    // valid UTF-8.
    let is_utf8 = || {
        std::str::from_utf8(document.bytes)
            .map_or_else(|error| error.error_len().is_none(), |_| true)
    };
    if binary(text.as_bytes()).is_some() || kind == Kind::Unknown && !is_utf8() {
        return Err(no_text(document.content_type));
    }
    let (title, text, more) = match kind {
        Kind::Html => {
            let page = markdown::markdown(&text, document.url, TEXT_BYTES_MAX, cancel)?;
            (page.title, page.text, page.more)
        }
        Kind::Text | Kind::Unknown | Kind::Other => (None, text, false),
    };
    let kept = prefix(&text, TEXT_BYTES_MAX);
    let more = more || kept.len() < text.len();
    let (body, invisible) = visible(kept);
    Ok(head(
        document,
        title.as_deref(),
        (&body, more, invisible),
        replaced,
    ))
}

fn head(
    document: &Document<'_>,
    title: Option<&str>,
    (body, more, invisible): (&str, bool, usize),
    replaced: bool,
) -> String {
    let mut text = String::with_capacity(body.len() + 512);
    if let Some(title) = title {
        text.push_str(&format!("Title: {}\n", visible(title).0));
    }
    text.push_str(&format!("URL: {}\n", document.url));
    if document.more {
        let of = document
            .declared
            .map_or("more".to_owned(), |declared| format!("{declared} bytes"));
        text.push_str(&format!(
            "[kept {} bytes of {of}; the rest was not read]\n",
            document.bytes.len()
        ));
    }
    if more {
        text.push_str(&format!(
            "[kept the first {} bytes of the text; the rest is left out]\n",
            body.len()
        ));
    }
    if invisible > 0 {
        text.push_str(&format!(
            "[{invisible} invisible characters were removed]\n"
        ));
    }
    if replaced {
        text.push_str("[bytes that are no characters were replaced by U+FFFD]\n");
    }
    text.push('\n');
    text.push_str(if body.trim().is_empty() {
        "[the document holds no text]"
    } else {
        body
    });
    text
}

fn looks_like_html(bytes: &[u8]) -> bool {
    let start = bytes
        .get(..1024)
        .unwrap_or(bytes)
        .trim_ascii_start()
        .to_ascii_lowercase();
    start.starts_with(b"<!doctype html") || start.starts_with(b"<html")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(content_type: Option<&str>, bytes: &[u8]) -> Result<String, ToolError> {
        let url = Url::parse("https://example.com/a").unwrap();
        read(
            &Document {
                url: &url,
                content_type,
                bytes,
                more: false,
                declared: None,
            },
            &CancellationToken::new(),
        )
    }

    #[test]
    fn text_and_json_stay_as_they_are() {
        assert_eq!(
            text(Some("application/json; charset=utf-8"), b"{\"a\": [1]}"),
            Ok("URL: https://example.com/a\n\n{\"a\": [1]}".to_owned())
        );
        assert_eq!(
            text(Some("text/markdown"), b"# <b>x</b>"),
            Ok("URL: https://example.com/a\n\n# <b>x</b>".to_owned())
        );
        assert_eq!(
            text(None, b"plain"),
            Ok("URL: https://example.com/a\n\nplain".to_owned())
        );
        assert_eq!(
            text(Some("text/plain"), b" \n"),
            Ok("URL: https://example.com/a\n\n[the document holds no text]".to_owned())
        );
    }

    #[test]
    fn pages_are_recognised_by_their_start_without_a_content_type() {
        let page = text(
            Some("application/octet-stream"),
            b"\n<!DOCTYPE html><title>T</title><p>x",
        )
        .unwrap();

        assert_eq!(page, "Title: T\nURL: https://example.com/a\n\nx");
    }

    #[test]
    fn what_is_no_text_is_refused_by_name() {
        for (content_type, bytes) in [
            (Some("image/png"), &b"\x89PNG"[..]),
            (Some("application/pdf"), b"%PDF"),
            (Some("text/plain"), b"a\0b"),
            (Some("application/octet-stream"), b"\xff\xfe\xfa\x00\x01"),
            (None, b"\x1f\x8b\x08\xff\xff"),
        ] {
            let error = text(content_type, bytes).unwrap_err();
            assert_eq!(error.code, "NOT_TEXT", "{content_type:?}");
        }
        assert!(
            refuse(Some("video/mp4")).is_err()
                && refuse(Some("TEXT/HTML")).is_ok()
                && refuse(None).is_ok()
        );
    }

    #[test]
    fn omissions_are_listed_at_the_head() {
        let url = Url::parse("https://example.com/a").unwrap();
        let document = Document {
            url: &url,
            content_type: Some("text/plain"),
            bytes: b"a\xe2\x80\x8bb",
            more: true,
            declared: Some(99),
        };

        assert_eq!(
            read(&document, &CancellationToken::new()).unwrap(),
            "URL: https://example.com/a\n[kept 5 bytes of 99 bytes; the rest was not read]\n[1 invisible characters were removed]\n\nab"
        );
        let long = text(Some("text/plain"), &b"x".repeat(TEXT_BYTES_MAX + 1)).unwrap();
        assert!(
            long.contains("[kept the first 1048576 bytes of the text; the rest is left out]")
                && long.len() < TEXT_BYTES_MAX + 200
        );
    }
}
