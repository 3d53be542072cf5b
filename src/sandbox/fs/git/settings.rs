//! Reads git's configuration files as git does (git-config(1), "Syntax"). Pure.
//!
//! Git stops at the first mistake in a file. This reader goes on in the next line, since another
//! version of git may read on: a path that git does not read is only protected needlessly.

/// One setting of a configuration file. Section and key are in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) section: Vec<u8>,
    /// What stands between the section and the key: `origin` in `[remote "origin"] url = x`.
    pub(crate) subsection: Option<Vec<u8>>,
    pub(crate) key: Vec<u8>,
    /// `None` for a key without `=`, which git reads as true.
    pub(crate) value: Option<Vec<u8>>,
}

/// A mistake in the file; git reads no further.
struct Malformed;

/// Reads a configuration file.
pub(crate) fn settings(file: &[u8]) -> Vec<Setting> {
    let file = file.strip_prefix(b"\xef\xbb\xbf").unwrap_or(file);
    let mut reader = Reader { file, at: 0 };
    let mut settings = Vec::new();
    let mut section = Vec::new();
    while let Some(byte) = reader.next() {
        let read = match byte {
            _ if is_blank(byte) => Ok(()),
            b'#' | b';' => Err(Malformed),
            b'[' => reader.section().map(|name| section = name),
            _ if byte.is_ascii_alphabetic() => reader.setting(byte).map(|(key, value)| {
                settings.push(named(&section, &key, value));
            }),
            _ => Err(Malformed),
        };
        if read.is_err() {
            // A comment is skipped in the same way. What ended the line is not part of the next.
            reader.skip_line();
        }
    }
    settings
}

/// Splits a full name as git does: at its first and last dot.
fn named(section: &[u8], key: &[u8], value: Option<Vec<u8>>) -> Setting {
    let (name, subsection) = match section.iter().position(|byte| *byte == b'.') {
        Some(dot) => {
            let (name, rest) = section.split_at(dot);
            (name, rest.get(1..).map(<[u8]>::to_vec))
        }
        None => (section, None),
    };
    Setting {
        section: name.to_vec(),
        subsection,
        key: key.to_vec(),
        value,
    }
}

/// What git skips between words.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}

struct Reader<'a> {
    file: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    /// The next byte; `\r\n` counts as `\n`. `None` at the end.
    fn next(&mut self) -> Option<u8> {
        let byte = *self.file.get(self.at)?;
        self.at += 1;
        if byte == b'\r' && self.file.get(self.at) == Some(&b'\n') {
            self.at += 1;
            return Some(b'\n');
        }
        Some(byte)
    }

    /// As [`Reader::next`], with a line's end for that of the file.
    fn next_in_line(&mut self) -> u8 {
        self.next().unwrap_or(b'\n')
    }

    /// Skips the rest of the line of the last byte, which may have ended it.
    fn skip_line(&mut self) {
        let ended = self.at.checked_sub(1).and_then(|last| self.file.get(last)) == Some(&b'\n');
        if !ended {
            while self.next_in_line() != b'\n' {}
        }
    }

    /// A section's name behind its bracket, with a dot before the subsection.
    fn section(&mut self) -> Result<Vec<u8>, Malformed> {
        let mut name = Vec::new();
        loop {
            match self.next_in_line() {
                b']' => return Ok(name),
                byte if is_blank(byte) => return self.subsection(name, byte),
                byte if is_of_name(byte) || byte == b'.' => name.push(byte.to_ascii_lowercase()),
                _ => return Err(Malformed),
            }
        }
    }

    /// A subsection in quotes, in which a backslash stands before any character.
    fn subsection(&mut self, mut name: Vec<u8>, mut byte: u8) -> Result<Vec<u8>, Malformed> {
        while is_blank(byte) {
            if byte == b'\n' {
                return Err(Malformed);
            }
            byte = self.next_in_line();
        }
        if byte != b'"' {
            return Err(Malformed);
        }
        name.push(b'.');
        loop {
            match self.next_in_line() {
                b'\n' => return Err(Malformed),
                b'"' => break,
                b'\\' => match self.next_in_line() {
                    b'\n' => return Err(Malformed),
                    byte => name.push(byte),
                },
                byte => name.push(byte),
            }
        }
        match self.next_in_line() {
            b']' => Ok(name),
            _ => Err(Malformed),
        }
    }

    /// A key that begins with `first`, and its value.
    fn setting(&mut self, first: u8) -> Result<(Vec<u8>, Option<Vec<u8>>), Malformed> {
        let mut key = vec![first.to_ascii_lowercase()];
        let mut byte = self.next_in_line();
        while is_of_name(byte) {
            key.push(byte.to_ascii_lowercase());
            byte = self.next_in_line();
        }
        while matches!(byte, b' ' | b'\t') {
            byte = self.next_in_line();
        }
        match byte {
            b'\n' => Ok((key, None)),
            b'=' => Ok((key, Some(self.value()?))),
            _ => Err(Malformed),
        }
    }

    /// The value behind `=`, up to the end of the line: quotes are left out, blanks at both ends and
    /// comments too unless they are in quotes, and a backslash continues the line.
    fn value(&mut self) -> Result<Vec<u8>, Malformed> {
        let mut value = Vec::new();
        // Where the blanks at the end of what was read begin.
        let mut end = None;
        let mut is_quoted = false;
        loop {
            let byte = self.next_in_line();
            match byte {
                b'\n' if is_quoted => return Err(Malformed),
                b'\n' => break,
                b'#' | b';' if !is_quoted => {
                    self.skip_line();
                    break;
                }
                _ if is_blank(byte) && !is_quoted => {
                    if !value.is_empty() {
                        end.get_or_insert(value.len());
                        value.push(byte);
                    }
                    continue;
                }
                b'"' => is_quoted = !is_quoted,
                b'\\' => match self.next_in_line() {
                    b'\n' => {}
                    b't' => value.push(b'\t'),
                    b'b' => value.push(8),
                    b'n' => value.push(b'\n'),
                    escaped @ (b'\\' | b'"') => value.push(escaped),
                    _ => return Err(Malformed),
                },
                byte => value.push(byte),
            }
            // Blanks before anything else but the end of the line are part of the value, even before
            // a backslash that continues it.
            end = None;
        }
        value.truncate(end.unwrap_or(value.len()));
        // Git takes it for a string of C.
        if let Some(nul) = value.iter().position(|byte| *byte == 0) {
            value.truncate(nul);
        }
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        process::{Command, Stdio},
    };

    use super::*;

    /// Numbers by which the files of a test are made, the same in each run.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, bound: usize) -> usize {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            usize::try_from(self.0 >> 33).unwrap() % bound
        }

        fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
            all[self.below(all.len())]
        }
    }

    /// Spells a value in one of the ways that git reads as it.
    fn spelled(numbers: &mut Numbers, value: &[u8]) -> Vec<u8> {
        let mut text = Vec::new();
        let mut is_quoted = false;
        for (at, byte) in value.iter().enumerate() {
            let is_end = at == 0 || at + 1 == value.len();
            let needs_quotes = matches!(byte, b'#' | b';')
                || (matches!(byte, b' ' | b'\t' | b'\r') && (is_end || *byte != b' '));
            if needs_quotes != is_quoted && (needs_quotes || numbers.below(3) == 0) {
                text.push(b'"');
                is_quoted = needs_quotes;
            } else if !is_quoted && numbers.below(6) == 0 {
                text.push(b'"');
                is_quoted = true;
            }
            if numbers.below(12) == 0 {
                text.extend_from_slice(numbers.one_of(&[&b"\\\n"[..], b"\\\r\n", b"\"\""]));
                // A pair of quotes in quotes ends and begins them.
            }
            match byte {
                b'\n' => text.extend_from_slice(b"\\n"),
                8 if numbers.below(2) == 0 => text.extend_from_slice(b"\\b"),
                b'\t' if !is_quoted || numbers.below(2) == 0 => text.extend_from_slice(b"\\t"),
                b'"' | b'\\' => text.extend_from_slice(&[b'\\', *byte]),
                _ => text.push(*byte),
            }
        }
        if is_quoted {
            text.push(b'"');
        }
        text
    }

    /// A file of settings and how it reads.
    fn file(numbers: &mut Numbers) -> (Vec<u8>, Vec<Setting>) {
        let mut text = numbers.one_of(&[&b""[..], b"\xef\xbb\xbf"]).to_vec();
        let mut read = Vec::new();
        for _ in 0..=numbers.below(4) {
            let section = numbers.one_of(&["core", "include", "a-b1"]);
            let subsection: Option<Vec<u8>> = (numbers.below(2) == 0).then(|| {
                let length = numbers.below(6);
                (0..length)
                    .map(|_| numbers.one_of(b"aZ. \"\\]#;=[\t\xc3\xa4"))
                    .collect()
            });
            text.extend_from_slice(numbers.one_of(&[&b""[..], b" \t", b"# [x]\n", b";\"\n\r\n"]));
            text.push(b'[');
            text.extend(section.bytes().map(|byte| match numbers.below(2) {
                0 => byte.to_ascii_uppercase(),
                _ => byte,
            }));
            if let Some(name) = &subsection {
                text.extend_from_slice(numbers.one_of(&[&b" \""[..], b"\t  \""]));
                for byte in name {
                    if matches!(byte, b'"' | b'\\') || numbers.below(5) == 0 {
                        text.push(b'\\');
                    }
                    text.push(*byte);
                }
                text.push(b'"');
            }
            text.push(b']');
            for _ in 0..numbers.below(4) {
                text.extend_from_slice(numbers.one_of(&[
                    &b" "[..],
                    b"\n",
                    b"\n\t",
                    b" ;]\n",
                    b"\r\n#\"\n",
                ]));
                let key = numbers.one_of(&["path", "hooksPath", "x-1"]);
                let length = numbers.below(9);
                let value: Option<Vec<u8>> = (numbers.below(8) > 0).then(|| {
                    (0..length)
                        .map(|_| numbers.one_of(b"aB/.~ \"\\#;=[]\t\n\x08\r\xc3\xff"))
                        .collect()
                });
                text.extend_from_slice(key.as_bytes());
                text.extend_from_slice(numbers.one_of(&[&b""[..], b" ", b"\t "]));
                if let Some(value) = &value {
                    text.extend_from_slice(numbers.one_of(&[&b"="[..], b"= ", b"=\t  "]));
                    text.extend(spelled(numbers, value));
                    text.extend_from_slice(numbers.one_of(&[&b""[..], b" \t ", b" # \"x", b";\\"]));
                }
                text.extend_from_slice(numbers.one_of(&[&b"\n"[..], b"\r\n"]));
                let lower = key.to_ascii_lowercase();
                let section = match &subsection {
                    Some(name) => [section.as_bytes(), b".", name].concat(),
                    None => section.into(),
                };
                read.push(named(&section, lower.as_bytes(), value));
            }
            text.push(b'\n');
        }
        (text, read)
    }

    /// The settings as `git config --null --list` writes them; `None` without git, or if git refuses
    /// the file.
    fn as_git_reads(file: &[u8]) -> Option<Vec<u8>> {
        let mut git = Command::new("git")
            .args(["config", "--file", "-", "--null", "--list"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        git.stdin.take()?.write_all(file).ok()?;
        let output = git.wait_with_output().ok()?;
        output.status.success().then_some(output.stdout)
    }

    fn listed(settings: &[Setting]) -> Vec<u8> {
        let mut list = Vec::new();
        for setting in settings {
            list.extend_from_slice(&setting.section);
            if let Some(subsection) = &setting.subsection {
                list.push(b'.');
                list.extend_from_slice(subsection);
            }
            list.push(b'.');
            list.extend_from_slice(&setting.key);
            if let Some(value) = &setting.value {
                list.push(b'\n');
                list.extend_from_slice(value);
            }
            list.push(0);
        }
        list
    }

    fn shown(bytes: &[u8]) -> String {
        bytes.escape_ascii().to_string()
    }

    #[test]
    fn a_value_is_read_back_from_every_spelling() {
        let mut numbers = Numbers(1);
        for _ in 0..5_000 {
            let (text, expected) = file(&mut numbers);
            let read = settings(&text);
            assert_eq!(
                shown(&listed(&read)),
                shown(&listed(&expected)),
                "{}",
                shown(&text)
            );
            assert_eq!(read, expected);
        }
    }

    #[test]
    fn a_file_is_read_as_git_reads_it() {
        let mut numbers = Numbers(2);
        let mut compared = 0;
        for n in 0..240 {
            let text = match n % 2 {
                0 => file(&mut numbers).0,
                // Any text, most of which git refuses.
                _ => {
                    let length = numbers.below(40);
                    let some = (0..length).map(|_| numbers.one_of(b"aZ-. \"\\]#;=[\t\r\n\n==\xc3"));
                    b"[a]\nb=".iter().copied().chain(some).collect()
                }
            };
            if let Some(git) = as_git_reads(&text) {
                compared += 1;
                assert_eq!(
                    shown(&listed(&settings(&text))),
                    shown(&git),
                    "{}",
                    shown(&text)
                );
            }
        }
        assert!(compared == 0 || compared > 120, "git took {compared} files");
    }
}
