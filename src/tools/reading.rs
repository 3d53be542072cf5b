//! Pure. Recognizes commands that only read, so that they need no approval. A convenience and **not
//! a boundary**: the sandbox is the boundary, and this check is used only behind a boundary of the
//! kernel. A command that is not fully understood, to the last character, counts as one that may
//! change something.
//!
//! Understood are programs of a table, with flags that neither write nor run anything, joined by
//! `|`, `&&`, `||` and `;`. Not understood: variables, substitutions, assignments, redirections
//! other than to `/dev/null`, several lines, the background. A pattern such as `*.rs` may expand to
//! a file that is named like a flag, so only programs without dangerous flags may begin a word with
//! a pattern.
//!
//! `git` reads settings that name programs, from two places: a repository of the workspace, whose settings
//! no command can write but whoever made the repository could, and a bare repository, which may lie in any
//! folder. [`GIT_SETTINGS`] disables the latter, and the programs that Git starts for mere reading by
//! settings with known names. A filter or a driver of a diff has any name, so a sandbox that finds one
//! refuses the command ([`runs_git`]).

/// Prefix of a command that only reads: Git settings that override those of a repository.
pub(super) const GIT_SETTINGS: &str = "export GIT_OPTIONAL_LOCKS=0 GIT_NO_LAZY_FETCH=1 GIT_ALLOW_PROTOCOL=none GIT_CONFIG_COUNT=8 GIT_CONFIG_KEY_0=safe.bareRepository GIT_CONFIG_VALUE_0=explicit \
GIT_CONFIG_KEY_1=core.fsmonitor GIT_CONFIG_VALUE_1=false GIT_CONFIG_KEY_2=core.hooksPath GIT_CONFIG_VALUE_2=/dev/null \
GIT_CONFIG_KEY_3=log.showSignature GIT_CONFIG_VALUE_3=false GIT_CONFIG_KEY_4=gpg.program GIT_CONFIG_VALUE_4=false \
GIT_CONFIG_KEY_5=gpg.openpgp.program GIT_CONFIG_VALUE_5=false GIT_CONFIG_KEY_6=gpg.x509.program GIT_CONFIG_VALUE_6=false \
GIT_CONFIG_KEY_7=gpg.ssh.program GIT_CONFIG_VALUE_7=false; ";

/// Which arguments of a program are accepted.
#[derive(Clone, Copy)]
enum Arguments {
    /// All arguments: none of its flags writes or runs anything.
    Any,
    /// All arguments except short flags of these letters, and long flags with these prefixes. GNU
    /// accepts the prefix of a long flag.
    But(&'static str, &'static [&'static str]),
    /// At most this many arguments that are not flags.
    Operands(usize),
    /// A format to show, and no time to set the clock to.
    Date,
    Find,
    Printf,
    Sed,
    Git,
}

use Arguments::{Any, But, Date, Find, Git, Operands, Printf, Sed};

const PROGRAMS: &[(&str, Arguments)] = &[
    ("arch", Any),
    ("basename", Any),
    ("cat", Any),
    ("cd", Operands(1)),
    ("cksum", Any),
    ("cmp", Any),
    ("comm", Any),
    ("cut", Any),
    ("date", Date),
    ("df", Any),
    ("diff", Any),
    ("dirname", Any),
    ("du", Any),
    ("echo", Any),
    ("egrep", Any),
    ("env", Operands(0)),
    ("expand", Any),
    ("false", Any),
    ("fgrep", Any),
    ("file", But("CzZp", &["--c", "--u", "--p"])),
    ("find", Find),
    ("fold", Any),
    ("git", Git),
    ("grep", Any),
    ("head", Any),
    ("id", Any),
    ("join", Any),
    ("jq", Any),
    ("ls", Any),
    ("md5sum", Any),
    ("nl", Any),
    ("nproc", Any),
    ("od", Any),
    ("paste", Any),
    ("printenv", Any),
    ("printf", Printf),
    ("pwd", Any),
    ("readlink", Any),
    ("realpath", Any),
    ("rev", Any),
    ("rg", But("z", &["--pre", "--hostname-bin", "--search-zip"])),
    ("seq", Any),
    ("sha1sum", Any),
    ("sha256sum", Any),
    ("sed", Sed),
    ("sort", But("oT", &["--o", "--c", "--t"])),
    ("stat", Any),
    ("strings", Any),
    ("tac", Any),
    ("tail", But("fF", &["--f", "--r"])),
    ("tr", Any),
    ("tree", But("oRH", &["--o"])),
    ("true", Any),
    ("uname", Any),
    ("uniq", Operands(1)),
    ("wc", Any),
    ("which", Any),
    ("whoami", Any),
];

/// Git commands that only read.
const GIT: &[&str] = &[
    "blame",
    "cat-file",
    "describe",
    "diff",
    "grep",
    "log",
    "ls-files",
    "ls-tree",
    "merge-base",
    "name-rev",
    "rev-list",
    "rev-parse",
    "shortlog",
    "show",
    "status",
];

/// Git commands that only read if all their arguments are among these words.
const GIT_LISTS: &[(&str, &[&str])] = &[
    (
        "branch",
        &[
            "--list",
            "-l",
            "-a",
            "--all",
            "-r",
            "--remotes",
            "-v",
            "-vv",
            "--verbose",
            "--show-current",
            "--no-color",
        ],
    ),
    ("remote", &["-v", "--verbose"]),
    ("stash", &["list"]),
    ("tag", &["-l", "--list", "-n"]),
    ("worktree", &["list", "--porcelain"]),
];

/// Git flags that write a file or run a program. Git accepts their prefixes.
const GIT_REFUSED: &[&str] = &[
    "--ext-diff",
    "--textconv",
    "--show-signature",
    "--filters",
    "--filter",
    "--output",
    "--open-files-in-pager",
    "--help",
    "--remerge-diff",
    "--diff-merges",
];

/// Redirections that discard output.
const NOWHERE: &[&str] = &["2>/dev/null", ">/dev/null", "1>/dev/null", "2>&1"];

/// Whether a command only reads.
pub(super) fn only_reads(command: &str) -> bool {
    words(command)
        .is_some_and(|commands| !commands.is_empty() && commands.iter().all(|words| reads(words)))
}

/// Whether a command that only reads runs git.
pub(super) fn runs_git(command: &str) -> bool {
    let is_git = |words: &Vec<Word>| words.first().is_some_and(|name| name.text == "git");
    words(command).is_some_and(|commands| commands.iter().any(is_git))
}

#[derive(Debug, Default, PartialEq)]
struct Word {
    /// The word without quotes. Patterns are not expanded.
    text: String,
    /// Whether the word has no quotes.
    plain: bool,
    /// Whether it contains a pattern that may expand to a file named like a flag.
    may_be_flag: bool,
}

impl Word {
    fn is_flag(&self) -> bool {
        self.may_be_flag || self.text.starts_with('-')
    }

    /// Whether the word may contain a pattern, which can expand to several words.
    fn has_pattern(&self) -> bool {
        self.text.contains(['*', '?', '['])
    }
}

fn reads(words: &[Word]) -> bool {
    let Some((name, arguments)) = words
        .split_first()
        .filter(|(name, _)| name.plain && !name.may_be_flag)
    else {
        return false;
    };
    let Some((_, kind)) = PROGRAMS.iter().find(|(known, _)| *known == name.text) else {
        return false;
    };
    match kind {
        Any => true,
        _ if arguments.iter().any(|word| word.may_be_flag) => false,
        But(letters, long) => !arguments
            .iter()
            .any(|word| is_one_of(&word.text, letters, long)),
        Operands(most) => {
            // `-` is standard input, and what follows `--` is no flag. A pattern may expand to
            // several operands, of which a later one may be written.
            let operands = arguments
                .iter()
                .filter(|word| !word.is_flag() || word.text == "-");
            operands.count() <= *most
                && (*most > 0 || arguments.is_empty())
                && !arguments
                    .iter()
                    .any(|word| word.text == "--" || word.has_pattern())
        }
        Date => arguments.iter().all(|word| {
            word.text.starts_with('+') || (word.is_flag() && !is_one_of(&word.text, "s", &["--s"]))
        }),
        Find => {
            let refused = ["-exec", "-ok", "-delete", "-fprint", "-fls"];
            !arguments
                .iter()
                .any(|word| refused.iter().any(|flag| word.text.starts_with(flag)))
        }
        Printf => !arguments.iter().any(|word| {
            word.text.starts_with("-v") || word.has_pattern() || sets_variable(&word.text)
        }),
        Sed => prints_lines(arguments),
        Git => git_reads(arguments),
    }
}

/// Whether a format of `printf` has a conversion that is not known to print: `%n` sets the variable
/// that its argument names, such as `PATH`.
fn sets_variable(format: &str) -> bool {
    format.split('%').skip(1).any(|conversion| {
        let letter = conversion
            .trim_start_matches(|c: char| c.is_ascii_digit() || "-+ #'*.hjlztLq".contains(c));
        // A second `%`, the rest of the text, or a time.
        !letter.is_empty()
            && !letter.starts_with(|c| "(diouxXeEfFgGaAcsbQ".contains(c))
            && !conversion.starts_with('q')
    })
}

fn is_one_of(text: &str, letters: &str, long: &[&str]) -> bool {
    // Some programs accept an old form that begins with `+`.
    match text.strip_prefix(['-', '+']) {
        Some(rest) if rest.starts_with('-') => long.iter().any(|flag| text.starts_with(flag)),
        Some(rest) => rest.contains(|c| letters.contains(c)),
        None => false,
    }
}

/// `sed -n 10,20p file`: the script has no other commands.
fn prints_lines(arguments: &[Word]) -> bool {
    let [quiet, script, files @ ..] = arguments else {
        return false;
    };
    let range = script.text.strip_suffix('p').unwrap_or_default();
    let (first, last) = range.split_once(',').unwrap_or((range, "1"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    quiet.text == "-n"
        && is_number(first)
        && (is_number(last) || last == "$")
        && !files.iter().any(Word::is_flag)
}

fn git_reads(mut arguments: &[Word]) -> bool {
    loop {
        match arguments {
            [flag, rest @ ..] if flag.text == "--no-pager" => arguments = rest,
            // A pattern can expand to the folder and a Git command.
            [flag, folder, rest @ ..] if flag.text == "-C" && !folder.has_pattern() => {
                arguments = rest;
            }
            _ => break,
        }
    }
    let Some((name, arguments)) = arguments.split_first() else {
        return false;
    };
    if let Some((_, known)) = GIT_LISTS.iter().find(|(list, _)| *list == name.text) {
        // Without a listing word, `stash` and `worktree` create something.
        let lists = !matches!(name.text.as_str(), "stash" | "worktree")
            || arguments.first().is_some_and(|word| word.text == "list");
        return lists
            && arguments
                .iter()
                .all(|word| known.contains(&word.text.as_str()));
    }
    let refused = |word: &Word| {
        let name = word.text.split('=').next().unwrap_or_default();
        let may_be =
            |flag: &&str| name.len() > 2 && (flag.starts_with(name) || name.starts_with(*flag));
        name.starts_with("--") && GIT_REFUSED.iter().any(may_be)
            || is_one_of(&word.text, "O", &[])
            || word.text.contains("%G")
    };
    GIT.contains(&name.text.as_str()) && !arguments.iter().any(refused)
}

/// Splits a line into simple commands of words; `None` if any part is not understood.
fn words(command: &str) -> Option<Vec<Vec<Word>>> {
    let mut commands = Vec::new();
    let mut words = Vec::new();
    let mut word = None::<Word>;
    let mut rest = command.trim_matches([' ', '\t']);
    while let Some(c) = rest.chars().next() {
        let after = rest.get(c.len_utf8()..)?;
        if word.is_none()
            && let Some(target) = NOWHERE.iter().find(|target| rest.starts_with(**target))
        {
            rest = rest.get(target.len()..)?;
            if !rest.is_empty() && !rest.starts_with([' ', '\t', '|', '&', ';']) {
                return None;
            }
            continue;
        }
        rest = match c {
            ' ' | '\t' => {
                words.extend(word.take());
                after
            }
            '|' | '&' | ';' => {
                words.extend(word.take());
                if words.is_empty() {
                    return None;
                }
                commands.push(std::mem::take(&mut words));
                let after = match (c, after.strip_prefix(c)) {
                    ('&', Some(after)) | ('|', Some(after)) => after,
                    ('&', None) => return None, // the background
                    (';', Some(_)) => return None,
                    _ => after,
                };
                after.trim_start_matches([' ', '\t'])
            }
            '\'' | '"' => {
                let (quoted, after) = after.split_once(c)?;
                if quoted.contains(char::is_control)
                    || c == '"' && quoted.contains(['$', '`', '\\'])
                {
                    return None;
                }
                let word = word.get_or_insert_default();
                word.text.push_str(quoted);
                word.plain = false;
                after
            }
            '\\' => {
                let escaped = after.chars().next().filter(char::is_ascii_punctuation)?;
                let word = word.get_or_insert_default();
                word.text.push(escaped);
                word.plain = false;
                after.get(1..)?
            }
            c if c.is_ascii_alphanumeric() || "_-.,/:=+@%^~]".contains(c) => {
                word.get_or_insert_with(|| Word {
                    plain: true,
                    ..Word::default()
                })
                .text
                .push(c);
                after
            }
            '*' | '?' | '[' => {
                let word = word.get_or_insert_with(|| Word {
                    plain: true,
                    ..Word::default()
                });
                word.may_be_flag |= word.text.is_empty() || word.text.starts_with('-');
                word.text.push(c);
                after
            }
            _ => return None,
        };
    }
    words.extend(word.take());
    // `ls &&` is incomplete; `ls;` is not.
    if words.is_empty() && !command.trim_end().ends_with(';') {
        return None;
    }
    commands.extend(Some(words).filter(|words| !words.is_empty()));
    Some(commands)
}

#[cfg(test)]
mod tests {
    use super::*;

    const READING: &[&str] = &[
        "ls",
        "  ls -la src ",
        "ls *.rs && pwd;",
        "cat README.md | head -20 | wc -l",
        "cat -n 'a b.txt' \"c d.txt\"",
        "head -n 5 src/main.rs; tail -n +3 x",
        "grep -rn 'fn main' src --include=*.rs 2>/dev/null",
        "grep -E \"a|b\" x || echo none",
        "rg -n foo\\.bar src | sort | uniq -c | sort -rn",
        "find . -name '*.rs' -not -path './target/*' | head",
        "find src \\( -name a -o -name b \\) -type f",
        "git status",
        "git --no-pager log --oneline -n 5 -- src",
        "git -C sub diff HEAD~1 --stat",
        "git show HEAD:src/lib.rs | head",
        "git branch -a",
        "git branch --show-current",
        "git blame -L 1,5 README.md",
        "git rev-parse --show-toplevel",
        "git ls-files | wc -l",
        "git stash list",
        "git tag",
        "sed -n 10,20p src/lib.rs",
        "sed -n '5,$p' a",
        "cd src && ls",
        "du -sh . 2>&1",
        "stat -c '%a %n' x",
        "date +%F",
        "date -u",
        "printf '%s %5.2f 100%% %(%F)T %q\\n' a 1 2 b",
        "env",
        "echo \"héllo\"",
        "which cargo >/dev/null && echo yes",
    ];

    const OTHER: &[&str] = &[
        "",
        "git diff --ext-diff",
        "git log -p --te",
        "git cat-file --filt HEAD:x",
        "git cat-file --textconv HEAD:x",
        "git log --show-sig",
        "git diff --outp=x",
        "git log --help",
        "git log --diff-merges=remerge -p",
        "git show --remerge-diff",
        "file -Z x",
        "tail +1f x",
        " ",
        "rm x",
        "echo hi > x",
        "echo hi >> x",
        "echo hi>x",
        "ls > /dev/null2",
        "ls 2>/dev/nullx",
        "cat < x",
        "cat <<END",
        "diff <(ls) x",
        "uniq a b",
        "cat a | uniq - b",
        "uniq -- a -b",
        "uniq a*",
        "uniq a[12]",
        "ls\nrm x",
        "ls\r",
        "ls & rm x",
        "ls &",
        "ls |& cat",
        "ls &&",
        "| ls",
        "ls ;; pwd",
        "echo $HOME",
        "echo \"$(rm x)\"",
        "echo `rm x`",
        "echo \"`rm x`\"",
        "echo $'a'",
        "X=1 ls",
        "ls {a,b}",
        "(ls)",
        "! ls",
        "ls # rm",
        "./ls",
        "/bin/ls",
        "'ls'",
        "l\\s",
        "*",
        "[ -v x ]",
        "test -v 'a[$(rm x)]'",
        "printf -v 'a[$(rm x)]' x",
        "printf 'abc%n' PATH; ls",
        "printf '%s%-5.3ln' a GIT_CONFIG_COUNT",
        "printf 'a%%%n' PATH",
        "printf '%qn%n' a PATH",
        "printf %n PATH",
        "printf x* PATH",
        "printf '%s' %n x?",
        "git -C b* status",
        "git -C [bc] log",
        "git --no-pager -C ? diff",
        "find . -exec rm {} +",
        "find . -delete",
        "find . -ok rm x",
        "find . -fprint x",
        "find *",
        "find . '-delete'",
        "find . -dele\\te",
        "sort -o x y",
        "sort -ro x y",
        "sort --output=x y",
        "sort --outp x y",
        "sort --compress-program=sh y",
        "sort *",
        "uniq a b",
        "tail -f log",
        "tree -o x",
        "rg --pre sh x",
        "rg --pre=sh x",
        "rg x *",
        "file -C -m x",
        "file -p x",
        "file --preserve-date x",
        "sed s/a/b/ x",
        "sed -i s/a/b/ x",
        "sed -n '1w x' y",
        "sed -n 1p -i x",
        "sed -n '1e rm x' y",
        "awk 1 x",
        "xargs rm",
        "ls | xargs rm",
        "tee x",
        "env rm x",
        "env -i rm",
        "git",
        "git commit -m x",
        "git -c core.pager=x log",
        "git -p log",
        "git log --output=x",
        "git log --outpu x",
        "git diff --ext-diff",
        "git diff --textconv",
        "git log --show-signature",
        "git log --format=%G?",
        "git grep -Oless x",
        "git grep -nOless x",
        "sort \"-\"*",
        "sort ''*",
        "git grep --open-files-in-pager=sh x",
        "git cat-file --filters HEAD:x",
        "git branch new",
        "git branch -D old",
        "git tag v1",
        "git stash",
        "git stash pop",
        "git worktree add x",
        "git worktree",
        "git remote add x y",
        "git config x y",
        "git --git-dir=x status",
        "git --exec-path=x status",
        "git diff *",
        "date -s tomorrow",
        "date 010100002030",
        "date -u 010100002030",
        "unknown",
        "cat \u{a0}x",
    ];

    #[test]
    fn commands_that_only_read_are_known_and_no_others() {
        assert_eq!(
            READING
                .iter()
                .filter(|command| !only_reads(command))
                .collect::<Vec<_>>(),
            Vec::<&&str>::new()
        );
        assert_eq!(
            OTHER
                .iter()
                .filter(|command| only_reads(command))
                .collect::<Vec<_>>(),
            Vec::<&&str>::new()
        );
    }

    /// A reproducible sequence of numbers.
    fn numbers() -> impl FnMut(usize) -> usize {
        let mut state = 7_u64;
        move |below| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        }
    }

    #[test]
    fn what_changes_something_is_never_hidden_by_what_reads() {
        let mut below = numbers();
        let changing = [
            "> x", "$(rm x)", "`rm x`", "$x", "& rm x", "\nrm x", "| sh", "; sh", "&& tee x",
            "<(rm x)", "{rm,x}", "\\\nrm",
        ];
        for _ in 0..20_000 {
            let reading = READING[below(READING.len())];
            let changing = changing[below(changing.len())];
            let command = match below(3) {
                0 => format!("{reading} {changing}"),
                1 => format!("{} {changing} | {reading}", READING[below(READING.len())]),
                _ => format!("{reading}{changing}"),
            };
            assert!(!only_reads(&command), "{command:?}");
        }
    }

    #[test]
    fn no_text_makes_it_panic_and_what_it_takes_has_no_sign_of_a_shell_outside_of_quotes() {
        let mut below = numbers();
        let pieces = [
            "ls", " ", "-l", "'", "\"", "$(", ")", ";", "|", "&", "git log", ">", "<", "{", "}",
            "\n", "é", "*", "`", "cat x", "\\",
        ];
        let mut taken = 0;
        for _ in 0..200_000 {
            let text: String = (0..1 + below(9))
                .map(|_| pieces[below(pieces.len())])
                .collect();
            if only_reads(&text) {
                taken += 1;
                let mut quote = None;
                let mut escaped = false;
                for c in text.chars() {
                    match (quote, c) {
                        _ if escaped => escaped = false,
                        (None, '\\') => escaped = true,
                        (None, '\'' | '"') => quote = Some(c),
                        (Some(open), c) if c == open => quote = None,
                        (None, c) => assert!(!"$`\n<>(){}".contains(c), "{text:?}"),
                        (Some('"'), c) => assert!(!"$`\n\\".contains(c), "{text:?}"),
                        (Some(_), c) => assert!(c != '\n', "{text:?}"),
                    }
                }
                assert_eq!((quote, escaped), (None, false), "{text:?}");
            }
        }
        assert!(taken > 100, "{taken}");
    }
}
