//! Splits HTML into text and tags as browsers do, in one pass without a stack. Each byte is
//! examined once.

use std::borrow::Cow;

/// A token of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token<'t> {
    /// Text with its entities. It contains `<` only if that is the whole text.
    Text(&'t str),
    /// `<name attributes>`.
    Start(Tag<'t>),
    /// `</name>`.
    End(&'t str),
}

/// A start tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tag<'t> {
    pub(super) name: &'t str,
    attributes: &'t str,
}

impl<'t> Tag<'t> {
    /// Returns the value of an attribute with entities resolved. The first attribute of a name
    /// counts.
    pub(super) fn attribute(&self, name: &str) -> Option<Cow<'t, str>> {
        let mut at = 0;
        while let Step::Attribute {
            name: found,
            value,
            next,
        } = step(self.attributes, at)
        {
            if found.eq_ignore_ascii_case(name) {
                return Some(unescape(value));
            }
            at = next;
        }
        None
    }
}

/// The rest of a page, which yields tokens.
#[derive(Debug, Clone)]
pub(super) struct Scanner<'t> {
    rest: &'t str,
}

impl<'t> Scanner<'t> {
    pub(super) fn new(html: &'t str) -> Self {
        Self { rest: html }
    }

    /// Takes the raw text of a `script`, `title` or similar element whose start tag was returned
    /// last, and its end tag. Without an end tag it takes the rest of the page.
    pub(super) fn raw_text(&mut self, name: &str) -> &'t str {
        let mut from = 0;
        while let Some(found) = self.rest.get(from..).and_then(|rest| rest.find("</")) {
            let at = from + found;
            let after = self.rest.get(at + 2..).unwrap_or_default();
            let named = after
                .get(..name.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(name));
            let ended = after
                .get(name.len()..)
                .is_some_and(|rest| rest.starts_with([' ', '\t', '\n', '\r', '\x0c', '/', '>']));
            if named && ended {
                let text = self.rest.get(..at).unwrap_or_default();
                let end = after.find('>').map_or(after.len(), |end| end + 1);
                self.rest = after.get(end..).unwrap_or_default();
                return text;
            }
            from = at + 2;
        }
        std::mem::take(&mut self.rest)
    }

    fn cut(&mut self, at: usize) -> &'t str {
        let (taken, rest) = self.rest.split_at_checked(at).unwrap_or((self.rest, ""));
        self.rest = rest;
        taken
    }

    /// Skips `skip` bytes and everything through `end`.
    fn pass(&mut self, skip: usize, end: &str) {
        let found = self.rest.get(skip..).and_then(|rest| rest.find(end));
        self.cut(found.map_or(self.rest.len(), |at| skip + at + end.len()));
    }

    /// Takes a tag whose name starts after `lead` bytes; `None` if it never ends, and then the rest
    /// of the page is dropped.
    fn tag(&mut self, lead: usize) -> Option<Tag<'t>> {
        let whole = self.rest;
        let after = whole.get(lead..)?;
        let name = after.get(..after.find([' ', '\t', '\n', '\r', '\x0c', '/', '>'])?)?;
        let attributes = after.get(name.len()..)?;
        let mut at = 0;
        loop {
            match step(attributes, at) {
                Step::Attribute { next, .. } => at = next,
                Step::End(end) => {
                    self.cut(lead + name.len() + end + 1);
                    return Some(Tag {
                        name,
                        attributes: attributes.get(..end)?,
                    });
                }
                Step::Broken => return None,
            }
        }
    }
}

impl<'t> Iterator for Scanner<'t> {
    type Item = Token<'t>;

    fn next(&mut self) -> Option<Token<'t>> {
        loop {
            let bytes = self.rest.as_bytes();
            match bytes {
                [] => return None,
                [b'<', b'a'..=b'z' | b'A'..=b'Z', ..] => {
                    let tag = self.tag(1);
                    if tag.is_none() {
                        self.rest = "";
                    }
                    return tag.map(Token::Start);
                }
                [b'<', b'/', b'a'..=b'z' | b'A'..=b'Z', ..] => {
                    let tag = self.tag(2);
                    if tag.is_none() {
                        self.rest = "";
                    }
                    return tag.map(|tag| Token::End(tag.name));
                }
                [b'<', b'!', b'-', b'-', b'>', ..] => drop(self.cut(5)),
                [b'<', b'!', b'-', b'-', ..] => self.pass(4, "-->"),
                [b'<', b'!' | b'?' | b'/', ..] => self.pass(2, ">"),
                [b'<', ..] => return Some(Token::Text(self.cut(1))),
                _ => {
                    let end = self.rest.find('<').unwrap_or(self.rest.len());
                    return Some(Token::Text(self.cut(end)));
                }
            }
        }
    }
}

enum Step<'t> {
    Attribute {
        name: &'t str,
        value: &'t str,
        next: usize,
    },
    /// The tag's `>`, or the end of the text.
    End(usize),
    /// An unclosed quote, or no `>`.
    Broken,
}

/// Parses the next attribute from `at` on. An attribute list that was cut has no `>`; the end of
/// the text ends it too.
fn step(text: &str, at: usize) -> Step<'_> {
    let bytes = text.as_bytes();
    let skip = |from: usize, over: fn(u8) -> bool| {
        from + bytes
            .iter()
            .skip(from)
            .take_while(|byte| over(**byte))
            .count()
    };
    let blank = |byte: u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | b'\x0c');
    let start = skip(at, |byte| {
        matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | b'\x0c' | b'/')
    });
    match bytes.get(start) {
        Some(b'>') => return Step::End(start),
        None => return Step::Broken,
        Some(_) => {}
    }
    // The first character of a name may be `=`.
    let end = skip(start + 1, |byte| {
        !matches!(
            byte,
            b' ' | b'\t' | b'\n' | b'\r' | b'\x0c' | b'/' | b'>' | b'='
        )
    });
    let name = text.get(start..end).unwrap_or_default();
    let equals = skip(end, blank);
    if bytes.get(equals) != Some(&b'=') {
        return Step::Attribute {
            name,
            value: "",
            next: end,
        };
    }
    let value = skip(equals + 1, blank);
    match bytes.get(value) {
        Some(quote @ (b'"' | b'\'')) => match text
            .get(value + 1..)
            .and_then(|rest| rest.find(char::from(*quote)))
        {
            Some(length) => Step::Attribute {
                name,
                value: text.get(value + 1..value + 1 + length).unwrap_or_default(),
                next: value + length + 2,
            },
            None => Step::Broken,
        },
        _ => {
            let next = skip(value, |byte| {
                !matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | b'\x0c' | b'>')
            });
            Step::Attribute {
                name,
                value: text.get(value..next).unwrap_or_default(),
                next,
            }
        }
    }
}

/// Resolves the entities that matter in titles and URLs.
pub(super) fn unescape(text: &str) -> Cow<'_, str> {
    if !text.contains('&') {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let known = from.get(1..).and_then(|after| {
            let end = after.bytes().take(10).position(|byte| byte == b';')?;
            Some((entity(after.get(..end)?)?, end + 2))
        });
        let (c, length) = known.unwrap_or(('&', 1));
        out.push(c);
        rest = from.get(length..).unwrap_or_default();
    }
    out.push_str(rest);
    Cow::Owned(out)
}

fn entity(name: &str) -> Option<char> {
    Some(match name {
        "amp" | "AMP" => '&',
        "lt" | "LT" => '<',
        "gt" | "GT" => '>',
        "quot" | "QUOT" => '"',
        "apos" => '\'',
        "nbsp" => ' ',
        "ndash" => '–',
        "mdash" => '—',
        "middot" => '·',
        "bull" => '•',
        "hellip" => '…',
        "laquo" => '«',
        "raquo" => '»',
        "rsquo" => '’',
        "lsquo" => '‘',
        "ldquo" => '“',
        "rdquo" => '”',
        "copy" => '©',
        _ => {
            let digits = name.strip_prefix('#')?;
            let code = match digits.strip_prefix(['x', 'X']) {
                Some(hex) => u32::from_str_radix(hex, 16),
                None => digits.parse(),
            };
            char::from_u32(code.ok()?).filter(|c| *c != '\0')?
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(html: &str) -> Vec<String> {
        let shown = |token| match token {
            Token::Text(text) => format!("{text:?}"),
            Token::Start(tag) => format!("<{}>", tag.name),
            Token::End(name) => format!("</{name}>"),
        };
        Scanner::new(html).map(shown).collect()
    }

    #[test]
    fn text_and_tags_are_separated_as_browsers_do() {
        assert_eq!(
            tokens("a<b>c</b>d"),
            ["\"a\"", "<b>", "\"c\"", "</b>", "\"d\""]
        );
        assert_eq!(
            tokens("1 < 2 <3"),
            ["\"1 \"", "\"<\"", "\" 2 \"", "\"<\"", "\"3\""]
        );
        assert_eq!(tokens("<a title='x>y' href=\"a>b\">z"), ["<a>", "\"z\""]);
        assert_eq!(
            tokens("<!doctype html><!-- <b> --><?xml?></ x>e<!-->f"),
            ["\"e\"", "\"f\""]
        );
        assert_eq!(tokens("a<b title=\"never ended>x"), ["\"a\""]);
        assert_eq!(tokens("a<!-- never ended"), ["\"a\""]);
        assert_eq!(tokens("<br/><p\nid=x>"), ["<br>", "<p>"]);
        assert_eq!(tokens("ä<ö"), ["\"ä\"", "\"<\"", "\"ö\""]);
    }

    #[test]
    fn attributes_are_found_whatever_their_quotes() {
        let tag = |html| match Scanner::new(html).next() {
            Some(Token::Start(tag)) => tag,
            other => panic!("{other:?}"),
        };

        let link = tag("<A =x HREF = 'a?b=1&amp;c=2' b c=d/e class=\"x y\">");
        assert_eq!(link.attribute("href").as_deref(), Some("a?b=1&c=2"));
        assert_eq!(link.attribute("b").as_deref(), Some(""));
        assert_eq!(link.attribute("c").as_deref(), Some("d/e"));
        assert_eq!(link.attribute("class").as_deref(), Some("x y"));
        assert_eq!(link.attribute("id"), None);
        assert_eq!(
            unescape("&lt;&#65;&#x42;&bogus; &amp;amp; &").as_ref(),
            "<AB&bogus; &amp; &"
        );
    }

    #[test]
    fn raw_text_ends_at_its_own_end_tag() {
        let mut scanner = Scanner::new("<script>if (a</b>) '</scripty>' </SCRIPT >after");
        scanner.next();

        assert_eq!(scanner.raw_text("script"), "if (a</b>) '</scripty>' ");
        assert_eq!(scanner.next(), Some(Token::Text("after")));
    }
}
