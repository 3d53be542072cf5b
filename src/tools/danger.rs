//! Recognizes commands that would destroy a machine, such as `rm -rf /`, `dd` to a disk or a fork
//! bomb. A convenience that gives the model a clear answer; **not the boundary**: a shell has
//! endless ways to write the same command, and the sandbox is what stops them.

/// Nesting of shells that is inspected.
const DEPTH_MAX: usize = 4;

/// Programs that run the command that follows them.
const PREFIXES: &[&str] = &[
    "sudo", "doas", "command", "builtin", "exec", "nohup", "setsid", "env", "time", "nice",
    "ionice", "xargs", "busybox", "toybox", "timeout", "stdbuf", "then", "do", "else", "if",
    "while", "until", "!", "{", "(",
];

const SHELLS: &[&str] = &["sh", "bash", "dash", "zsh", "ksh", "ash"];

/// Folders that the system cannot lose.
const SYSTEM: &[&str] = &[
    "", "bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "opt", "proc", "root", "run",
    "sbin", "srv", "sys", "usr", "var",
];

/// Returns why a command is refused; `None` if no rule matches.
pub(super) fn refusal(command: &str) -> Option<&'static str> {
    judge(command, 0)
}

fn judge(command: &str, depth: usize) -> Option<&'static str> {
    if depth > DEPTH_MAX {
        return Some("it nests too many shells");
    }
    if is_fork_bomb(command) {
        return Some("it is a fork bomb");
    }
    split(command)
        .iter()
        .find_map(|words| judge_simple(words, depth))
}

fn judge_simple(words: &[String], depth: usize) -> Option<&'static str> {
    if words.iter().any(|word| writes_device(word)) {
        return Some("it writes to a disk device");
    }
    let mut words = words
        .iter()
        .map(String::as_str)
        .skip_while(|word| is_assignment(word))
        .peekable();
    let name = loop {
        let name = words.next()?;
        let base = name.rsplit('/').next().unwrap_or(name);
        if !PREFIXES.contains(&base) {
            break base;
        }
        // Flags, assignments and numbers of the prefix (`timeout 5`, `nice -n 5`).
        while words.peek().is_some_and(|word| {
            word.starts_with('-')
                || is_assignment(word)
                || word.starts_with(|c: char| c.is_ascii_digit())
        }) {
            words.next();
        }
    };
    let args: Vec<&str> = words.collect();
    let recursive = args
        .iter()
        .any(|arg| is_flag(arg, &['r', 'R'], "--recursive"));
    let at_system = args.iter().any(|arg| is_system(arg));
    match name {
        "rm" if args.contains(&"--no-preserve-root") => Some("it removes the root folder"),
        "rm" if recursive && at_system => Some("it removes a system folder"),
        "chmod" | "chown" | "chgrp" if recursive && at_system => {
            Some("it changes the rights of a system folder")
        }
        "find" if at_system && args.iter().any(|arg| matches!(*arg, "-delete" | "rm")) => {
            Some("it removes a system folder")
        }
        "dd" if args.iter().any(|arg| arg.contains('=')) => {
            Some("dd is not available: use head -c, truncate or cp")
        }
        "wipefs" | "mkswap" | "fdisk" | "sfdisk" | "parted" | "blkdiscard" => {
            Some("it changes disks")
        }
        "shutdown" | "reboot" | "halt" | "poweroff" => Some("it stops the machine"),
        _ if name == "mkfs" || name.starts_with("mkfs.") => Some("it formats a disk"),
        "eval" => judge(&args.join(" "), depth + 1),
        _ if SHELLS.contains(&name) => {
            let script = args
                .iter()
                .position(|arg| is_flag(arg, &['c'], ""))
                .and_then(|at| args.get(at + 1));
            script.and_then(|script| judge(script, depth + 1))
        }
        _ => None,
    }
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    })
}

fn is_flag(arg: &str, short: &[char], long: &str) -> bool {
    if arg.starts_with("--") {
        // GNU accepts any unambiguous prefix of a long flag: `--recurs`.
        return arg.len() > 4 && long.starts_with(arg);
    }
    arg.strip_prefix('-')
        .is_some_and(|letters| letters.contains(short))
}

/// `/`, `//`, `/*`, `/./`, `/usr/..`, `/etc/*`, the home folder.
fn is_system(arg: &str) -> bool {
    let home = ["~", "$HOME", "${HOME}"].iter().any(|home| {
        arg.strip_prefix(home)
            .is_some_and(|rest| rest.trim_matches(['/', '*', '.']).is_empty())
    });
    if home {
        return true;
    }
    if !arg.starts_with('/') {
        return false;
    }
    let mut parts: Vec<&str> = Vec::new();
    for part in arg.split('/') {
        match part {
            "" | "." | "*" | ".*" | "{*,.*}" => {}
            ".." => drop(parts.pop()),
            other => parts.push(other),
        }
    }
    match parts.as_slice() {
        [] => true,
        [one] => SYSTEM.contains(one),
        _ => false,
    }
}

fn writes_device(word: &str) -> bool {
    let Some(target) = word.strip_prefix('>') else {
        return false;
    };
    let target = target.trim_start_matches(['>', '|', '&', ' ']);
    let disks = [
        "sd", "hd", "vd", "xvd", "nvme", "mmcblk", "disk", "mapper", "dm-", "loop", "mem", "kmem",
    ];
    target
        .strip_prefix("/dev/")
        .is_some_and(|device| disks.iter().any(|disk| device.starts_with(disk)))
}

/// A function that pipes or sends itself to the background, a script that starts itself twice, `fork while`.
fn is_fork_bomb(command: &str) -> bool {
    let tight: String = command.chars().filter(|c| !c.is_whitespace()).collect();
    let calls_itself = |name: &str, body: &str| {
        !name.is_empty()
            && [
                format!("{name}|{name}"),
                format!("{name}&{name}"),
                format!("{name}|&{name}"),
            ]
            .iter()
            .any(|twice| body.contains(twice))
    };
    for (at, _) in tight.match_indices("(){") {
        let before = tight.get(..at).unwrap_or_default();
        let after = tight.get(at + 3..).unwrap_or_default();
        let name = before
            .rsplit([';', '|', '&', '(', ')', '{', '}', '\'', '"'])
            .next()
            .unwrap_or_default();
        let body = after.split('}').next().unwrap_or_default();
        if calls_itself(name, body) || calls_itself(name.trim_start_matches("function"), body) {
            return true;
        }
    }
    ["$0|$0", "$0&$0", "${0}|${0}"]
        .iter()
        .any(|twice| tight.contains(twice))
        || [
            "forkwhile",
            "while(1){fork",
            "whileTrue:os.fork()",
            "while1:os.fork()",
        ]
        .iter()
        .any(|code| tight.contains(code))
}

/// Splits a script into simple commands of words without their quotes. A redirection is one word
/// with its target.
fn split(script: &str) -> Vec<Vec<String>> {
    let mut lexer = Lexer::default();
    let mut chars = script.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\'' => {
                lexer.quoted = true;
                lexer.word.extend(chars.by_ref().take_while(|c| *c != '\''));
            }
            '"' => {
                lexer.quoted = true;
                while let Some(c) = chars.next() {
                    match c {
                        '"' => break,
                        '\\' => lexer.word.extend(chars.next()),
                        other => lexer.word.push(other),
                    }
                }
            }
            '\\' => match chars.next() {
                Some('\n') | None => {}
                Some(other) => lexer.word.push(other),
            },
            '$' if chars.peek() == Some(&'(') => {
                chars.next();
                lexer.end_command();
            }
            '$' if chars.peek() == Some(&'{') => lexer
                .word
                .extend(std::iter::once('$').chain(take_through(&mut chars, '}'))),
            '#' if lexer.word.is_empty() && !lexer.quoted => drop(
                chars
                    .by_ref()
                    .find(|c| *c == '\n')
                    .map(|_| lexer.end_command()),
            ),
            '>' => {
                lexer.end_word();
                lexer.word.push('>');
                while chars
                    .next_if(|c| matches!(c, '>' | '|' | '&' | ' ' | '\t'))
                    .is_some()
                {}
            }
            ';' | '|' | '&' | '\n' | '(' | ')' | '`' => lexer.end_command(),
            c if c.is_whitespace() => lexer.end_word(),
            other => lexer.word.push(other),
        }
    }
    lexer.end_command();
    lexer.commands
}

fn take_through(chars: &mut impl Iterator<Item = char>, end: char) -> Vec<char> {
    let mut taken = Vec::new();
    for c in chars {
        taken.push(c);
        if c == end {
            break;
        }
    }
    taken
}

#[derive(Default)]
struct Lexer {
    commands: Vec<Vec<String>>,
    words: Vec<String>,
    word: String,
    quoted: bool,
}

impl Lexer {
    fn end_word(&mut self) {
        if !self.word.is_empty() || self.quoted {
            self.words.push(std::mem::take(&mut self.word));
        }
        self.quoted = false;
    }

    fn end_command(&mut self) {
        self.end_word();
        if !self.words.is_empty() {
            self.commands.push(std::mem::take(&mut self.words));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_destroy_a_machine_are_refused_however_they_are_written() {
        let commands = [
            "rm -rf /",
            "rm -fr /",
            "rm -r -f /",
            "rm  -rf   /",
            "rm -Rf /*",
            "rm --recursive --force /",
            "rm --recurs --force /",
            "rm -rf -- /",
            "rm -rf //",
            "rm -rf /./",
            "rm / -rf",
            "/bin/rm -rf /",
            "\\rm -rf /",
            "r''m -rf /",
            "sudo rm -rf /",
            "sudo -n rm -rf /*",
            "cd /tmp && rm -rf /",
            "true; rm -rf /",
            "echo $(rm -rf /)",
            "bash -c 'rm -rf /'",
            "sh -ec \"rm -rf /\"",
            "eval 'rm -rf /'",
            "rm -rf ~",
            "rm -rf $HOME/*",
            "rm -rf \"/\"",
            "rm -rf /usr/..",
            "rm -rf /etc",
            "rm -rf --no-preserve-root /",
            "env X=1 rm -rf /",
            "X=1 rm -rf /",
            "timeout 5 rm -rf /",
            "find / -delete",
            "if true; then rm -rf /; fi",
            "dd if=/dev/zero of=/dev/sda",
            "dd  of=/dev/nvme0n1 if=x",
            "/bin/dd if=/dev/zero of=/dev/vda",
            "sudo dd if=a of=/dev/sdb",
            "cat x > /dev/sda",
            "mkfs.ext4 /dev/sda1",
            "mkfs -t xfs /dev/vdb",
            ":(){ :|:& };:",
            ":() { : | : & } ; :",
            "bomb(){ bomb|bomb& };bomb",
            "function f(){ f|f & }; f",
            "f() {\n f | f &\n}\nf",
            "$0 & $0 &",
            "perl -e 'fork while fork'",
            "chmod -R 777 /",
            "chown -R nobody /",
            "reboot",
        ];
        assert_eq!(
            commands
                .iter()
                .filter(|c| refusal(c).is_none())
                .collect::<Vec<_>>(),
            Vec::<&&str>::new()
        );
    }

    #[test]
    fn harmless_commands_pass() {
        let commands = [
            "git add .",
            "echo add dd odd",
            "grep -rn dd src",
            "cat dd",
            "ls dd/",
            "npm add x",
            "useradd --help",
            "echo 'rm -rf /'",
            "git commit -m \"rm -rf / is bad\"",
            "rm -rf target",
            "rm -rf ./build/*",
            "rm -rf /workspace/target",
            "rm -rf /tmp/x",
            "rm file",
            "rm -f /workspace/a",
            "dd --help",
            "man dd",
            "sha256sum < dd",
            "f() { echo hi; }; f",
            "cargo test & wait",
            "a | a2",
            "find / -name x",
            "find . -name '*.o' -delete",
            "chmod -R u+w .",
            "echo x > /dev/null",
            "cmd 2>&1",
            "ls -R /",
            "for d in *; do echo $d; done",
            "printf '%s' \"$(date)\" # rm -rf /",
            "echo \"${HOME}\"",
            "add_dd_to_list --of=1",
        ];
        let refused: Vec<(&str, &str)> = commands
            .iter()
            .filter_map(|c| refusal(c).map(|why| (*c, why)))
            .collect();
        assert_eq!(refused, []);
    }

    #[test]
    fn no_text_makes_it_panic_or_hang() {
        let mut state = 7_u64;
        let pieces = [
            "'", "\"", "\\", "$(", "${", "}", ")", ";", "|", "&", "rm", " -rf ", "/", "#", "\n",
            ">", "bash -c ", "(){", "é", "eval ",
        ];
        for _ in 0..5000 {
            let mut text = String::new();
            for _ in 0..12 {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                text.push_str(pieces[(state >> 33) as usize % pieces.len()]);
            }
            let _ = refusal(&text);
        }
    }
}
