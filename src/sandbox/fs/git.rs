//! Knows what git accepts as a repository, by the names in a folder, and which names in a
//! repository decide what programs git runs. Pure.
//!
//! git searches for a repository from the current folder upwards: a `.git`, or the folder itself if
//! it is a bare repository, whatever its name. So any folder can become a repository, and its
//! `config` can name programs that the next `git status` runs.

#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
pub(crate) mod index;

/// Names in a repository that decide which programs git runs, where git looks for such files, or to
/// which server it sends: a remote that no configuration knows is read from `remotes` or `branches`.
/// Covers the main repository and linked worktrees (`.git/worktrees/NAME`).
pub(crate) const PROGRAM_NAMES: &[&str] = &[
    "hooks",
    "config",
    "config.worktree",
    "commondir",
    "gitdir",
    "branches",
    "remotes",
];

/// Folders in a repository that hold more repositories: submodules, and the files of linked
/// worktrees.
pub(crate) const REPOSITORY_FOLDERS: &[&str] = &["modules", "worktrees"];

/// Folders with the state of a rebase, a `git am`, a cherry-pick or a revert that waits for the
/// user to continue it.
pub(crate) const WAITING_FOLDERS: &[&str] = &["rebase-merge", "rebase-apply", "sequencer"];

/// Files in a repository that hold paths at which git reads and writes, in lower case: the index,
/// and the conflicts whose resolutions git records.
const PATH_FILES: &[&str] = &["index", "merge_rr"];

/// Files in one of [`WAITING_FOLDERS`] by which git can run programs or write to other files: the list
/// of steps, the strategy of the merges, the options of a cherry-pick, which hold its strategy, and
/// the options of `git apply`.
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
pub(crate) const WAITING_FILES: &[&str] = &["git-rebase-todo", "strategy", "opts", "apply-opt"];

/// Strategies of git itself. Git runs `git-merge-STRATEGY` for every other, which may be a program of
/// the workspace, or a command of git that merges no commits: `git merge-file` writes to a file with
/// the name of a commit, and follows a link.
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
const STRATEGIES: &[&str] = &["ort", "recursive", "resolve", "octopus", "ours", "subtree"];

/// Whether this content of one of [`WAITING_FILES`] can make git run a program of the workspace or
/// write to a file that is not part of the working tree.
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
pub(crate) fn waiting_file_is_dangerous(name: &str, content: &[u8]) -> bool {
    let text = String::from_utf8_lossy(content);
    let is_own = |strategy: &str| STRATEGIES.contains(&strategy);
    match name {
        "git-rebase-todo" => steps_run_commands(content),
        "strategy" => !is_own(text.trim_end()),
        // `--build-fake-ancestor=FILE`, which may be shortened, writes to any file.
        "apply-opt" => text.contains("--b"),
        _ => {
            text.contains('/')
                || text.lines().any(|line| {
                    let line = line.rsplit(']').next().unwrap_or(line).trim();
                    let (key, value) = line.split_once('=').unwrap_or((line, ""));
                    key.trim().eq_ignore_ascii_case("strategy")
                        && !is_own(value.trim().trim_matches('"'))
                })
        }
    }
}

/// Which of the names that make a folder a git repository are present.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    head: bool,
    objects: bool,
    refs: bool,
    commondir: bool,
}

impl Parts {
    /// The names as git spells them.
    pub(crate) const NAMES: [&str; 4] = ["HEAD", "objects", "refs", "commondir"];

    /// Records a name, given in lower case.
    pub(crate) fn add(&mut self, name: &str) {
        match name {
            "head" => self.head = true,
            "objects" => self.objects = true,
            "refs" => self.refs = true,
            "commondir" => self.commondir = true,
            _ => {}
        }
    }

    /// Whether a name, given in lower case, is a part of a repository.
    pub(crate) fn is_part(name: &str) -> bool {
        let mut parts = Self::default();
        parts.add(name);
        parts != Self::default()
    }

    /// Whether git accepts a folder with these names as a repository. `commondir` can point to
    /// objects and refs elsewhere.
    pub(crate) fn is_repository(self) -> bool {
        self.head && (self.commondir || (self.objects && self.refs))
    }

    /// Whether writing to `name` (in lower case), a file or a folder in a folder with these parts,
    /// decides what git runs there: because the folder becomes a repository, or because the file
    /// configures one.
    pub(crate) fn is_armed_by(self, name: &str) -> bool {
        let mut after = self;
        after.add(name);
        let sets_up = || {
            [
                PROGRAM_NAMES,
                REPOSITORY_FOLDERS,
                WAITING_FOLDERS,
                PATH_FILES,
            ]
            .iter()
            .any(|names| names.contains(&name))
        };
        after.is_repository() && (!self.is_repository() || sets_up())
    }
}

/// Whether the steps of a rebase run a command: `exec` or its short form, after optional blanks.
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
fn steps_run_commands(steps: &[u8]) -> bool {
    steps
        .split(|byte| matches!(byte, b'\n' | b'\r'))
        .any(|line| {
            let word = line
                .trim_ascii_start()
                .split(u8::is_ascii_whitespace)
                .next()
                .unwrap_or_default();
            word.eq_ignore_ascii_case(b"exec") || word.eq_ignore_ascii_case(b"x")
        })
}

/// A path in a git configuration that leads to more hooks or configuration.
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ConfigPath {
    /// The hooks folder, relative to the top of the working tree.
    Hooks(String),
    /// The top of the working tree, relative to the repository.
    WorkTree(String),
    /// Another configuration file, relative to the folder of this file.
    Include(String),
    /// A word of a command that git runs, which may be a path relative to the top of the working
    /// tree.
    Program(String),
}

/// Returns the paths that a git configuration names.
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
pub(crate) fn config_paths(config: &str) -> Vec<ConfigPath> {
    let mut section = String::new();
    let mut paths = Vec::new();
    let config = config.replace("\\\r\n", " ").replace("\\\n", " ");
    for line in config.lines().map(str::trim) {
        // A key may follow its section on the same line.
        let line = match line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((header, rest)) => {
                section = header
                    .split([' ', '"', '.'])
                    .next()
                    .unwrap_or_default()
                    .to_ascii_lowercase();
                rest
            }
            None => line,
        };
        let Some((key, value)) = line.split_once('=') else {
            continue;
        };
        let name = key.trim().to_ascii_lowercase();
        if names_command(&section, &name, value) {
            paths.extend(words_of(value).into_iter().map(ConfigPath::Program));
        }
        let value = value
            .split([';', '#'])
            .next()
            .unwrap_or_default()
            .replace('"', "")
            .trim()
            .to_owned();
        match (section.as_str(), name.as_str()) {
            _ if value.is_empty() => {}
            // A new repository gets the hooks and the configuration of its template.
            ("core", "hookspath") | ("init", "templatedir") => paths.push(ConfigPath::Hooks(value)),
            ("core", "worktree") => paths.push(ConfigPath::WorkTree(value)),
            ("include" | "includeif", "path") => paths.push(ConfigPath::Include(value)),
            _ => {}
        }
    }
    paths
}

/// Whether git runs the value of a key as a command.
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
fn names_command(section: &str, key: &str, value: &str) -> bool {
    match section {
        "alias" => value.trim_start_matches([' ', '\t', '"']).starts_with('!'),
        "pager" | "credential" | "gpg" | "sendemail" => true,
        "browser" | "difftool" | "lfs" | "man" | "mergetool" if key == "path" => true,
        _ => matches!(
            key,
            "clean" | "smudge" | "process" // filter
                | "external" | "command" | "textconv" // diff, hook, trailer
                | "driver" // merge
                | "fsmonitor" | "editor" | "pager" | "sshcommand" | "askpass" | "gitproxy" | "alternaterefscommand"
                | "difffilter" | "cmd" | "uploadpack" | "receivepack" | "update" | "program"
                | "packobjectshook" | "recentobjectshook" | "tunnel" | "httpd"
        ),
    }
}

/// Programs whose first operand is a file that they run.
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
const INTERPRETERS: &[&str] = &[
    ".", "bash", "bun", "dash", "deno", "exec", "ksh", "node", "perl", "php", "python", "python3",
    "ruby", "sh", "source", "zsh",
];

/// The words of a command that can be paths of files, relative to the folder in which it starts. A
/// variable or a substitution before a path may be the top of the working tree, or an earlier word. An
/// earlier word may also be the folder that the command has entered.
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
fn words_of(command: &str) -> Vec<String> {
    /// Earlier words that are tried as folders.
    const FOLDERS_MAX: usize = 16;
    let command = command.replace("${", "$").replace("}/", "/");
    let words = command
        .split(|c: char| c.is_whitespace() || "\"'`;|&()<>=!\\{}".contains(c))
        .filter(|word| !word.is_empty());
    let mut found = Vec::new();
    let mut folders: Vec<String> = Vec::new();
    let mut entered = false;
    let mut before = "";
    for word in words {
        let enters = ["cd", "pushd", "-C", "--chdir"].contains(&before);
        entered |= enters;
        if word.starts_with('-') {
            if word == "-C" || word == "--chdir" {
                before = word;
            }
            continue;
        }
        let is_run = INTERPRETERS.contains(&before.rsplit('/').next().unwrap_or_default());
        let path = match word.strip_prefix('$') {
            Some(variable) => variable.split_once('/').map_or("", |(_, path)| path),
            None => word,
        };
        let is_variable = path != word && !path.is_empty();
        if !enters && (is_run || is_variable || path.contains(['/', '.'])) {
            found.push(path.to_owned());
            found.extend(path.strip_prefix('/').map(str::to_owned));
            if entered || is_variable {
                found.extend(folders.iter().map(|folder| format!("{folder}/{path}")));
            }
        }
        let folder = path.trim_matches('/');
        if !folder.is_empty() && word != "cd" && folders.len() < FOLDERS_MAX {
            let deeper = folders
                .last()
                .filter(|_| enters)
                .map(|last| format!("{last}/{folder}"));
            folders.push(folder.to_owned());
            folders.extend(deeper);
        }
        before = word;
    }
    found.retain(|path| !path.is_empty() && path != ".");
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(names: &str) -> Parts {
        names
            .split_whitespace()
            .fold(Parts::default(), |mut parts, name| {
                parts.add(name);
                parts
            })
    }

    #[test]
    fn a_folder_is_a_repository_by_its_names() {
        let repositories = [
            "head objects refs",
            "head commondir",
            "head objects refs config src",
        ];
        let others = [
            "",
            "head objects",
            "objects refs",
            "commondir",
            "head refs",
            "config hooks",
        ];

        assert_eq!(
            repositories.map(|names| parts(names).is_repository()),
            [true; 3]
        );
        assert_eq!(others.map(|names| parts(names).is_repository()), [false; 6]);
    }

    #[test]
    fn the_last_missing_part_and_what_names_programs_arm_a_repository() {
        let armed = |names: &str, name: &str| parts(names).is_armed_by(name);

        assert!(
            armed("head objects", "refs")
                && armed("head", "commondir")
                && armed("objects refs", "head")
        );
        assert!(
            armed("head objects refs", "config")
                && armed("head objects refs", "hooks")
                && armed("head objects refs", "modules")
        );
        assert!(
            !armed("", "config") && !armed("head", "config") && !armed("objects refs", "config")
        );
        assert!(
            !armed("head objects refs", "refs")
                && !armed("head objects refs", "description")
                && !armed("head", "objects")
        );
    }

    #[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
    #[test]
    fn steps_of_a_rebase_that_run_commands_are_known() {
        let yes = [
            "pick 1 a\nexec make",
            "x make",
            "  \texec\tmake",
            "pick 1\r\nx",
            "EXEC a",
        ];
        let no = [
            "",
            "pick 1 exec all\nfixup 2",
            "# exec make",
            "executable",
            "pick x",
        ];

        assert_eq!(
            yes.map(|steps| steps_run_commands(steps.as_bytes())),
            [true; 5]
        );
        assert_eq!(
            no.map(|steps| steps_run_commands(steps.as_bytes())),
            [false; 5]
        );
    }

    #[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
    #[test]
    fn a_strategy_that_is_none_of_gits_and_options_that_write_are_known() {
        let is = waiting_file_is_dangerous;

        assert!(is("strategy", b"x/evil\n") && is("strategy", b"file\n") && is("strategy", b"\n"));
        for opts in [
            "[options]\n\tstrategy = x/y\n",
            "[options]\n\tstrategy = \"file\"\n",
            "[options] Strategy=index\n",
            "[options]\nstrategy\n",
        ] {
            assert!(is("opts", opts.as_bytes()), "{opts}");
        }
        assert!(is("apply-opt", b" '-3' '--build-f=x'\n"));
        assert!(!is("strategy", b"ort\n") && !is("apply-opt", b" '--directory=a/b' '-p2'\n"));
        assert!(!is(
            "opts",
            b"[options]\n\tedit = true\n\tstrategy = ort\n\tstrategy-option = theirs\n"
        ));
        assert!(!is("git-rebase-todo", b"pick 1 a/b\n"));
    }

    #[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
    #[test]
    fn paths_in_a_configuration_are_read_as_git_reads_them() {
        let config = "[core]\n\tbare = false\n\tworktree = ../../sub\n\thooksPath = .githooks ; ours\n[include] path = \"../shared config\"\n[includeIf \"gitdir:x\"]\n\tPATH=more\n\
                      [other]\n\tpath = no\n\thooksPath = no\n[core \"x\"]";
        let paths = config_paths(config);

        let include = |path: &str| ConfigPath::Include(path.to_owned());
        let commands = "[filter \"x\"]\n\tclean = sh ./a.sh %f # x\n\trequired = true\n[alias]\n\tst = status b.sh\n\tup = \"!f() { \\\"tools/c d\\\"; }; \\\n f e.py\"\n[core]\n\teditor = vi\n\tpager = bin/less -R";
        let words = ["./a.sh", "tools/c", "e.py", "bin/less"]
            .map(|word| ConfigPath::Program(word.to_owned()));
        assert_eq!(config_paths(commands), words);
        let found = |command: &str| words_of(command).join(" ");
        assert_eq!(found("!$(git rev-parse --show-toplevel)/t/x"), "/t/x t/x");
        assert_eq!(found("!\\\"$PWD/t/x\\\""), "t/x");
        let has = |command: &str, path: &str| {
            words_of(command)
                .iter()
                .any(|word| word.replace("./", "") == path)
        };
        assert!(has("${PWD}/y", "y") && has("D=t; ${D}/x", "t/x") && has("env -C t ./x", "t/x"));
        assert!(
            has("cd t; cd u; ./x", "t/u/x")
                && has(
                    "cd \\\"$(git rev-parse --show-toplevel)/t\\\" && ./x",
                    "t/x"
                )
        );
        assert_eq!(found("!cd t && ./x"), "./x t/./x");
        assert_eq!(
            found("/bin/sh -e plain && python3 y z"),
            "/bin/sh bin/sh plain y"
        );
        assert_eq!(found("git-lfs clean -- %f"), "");
        let more = "[mergetool \"m\"]\n\tpath = t/m\n[browser \"b\"]\n\tpath = ./b\n[uploadpack]\n\tpackObjectsHook = t/p\n[color]\n\tpath = t/no";
        assert_eq!(
            config_paths(more),
            ["t/m", "./b", "t/p"].map(|word| ConfigPath::Program(word.to_owned()))
        );
        assert_eq!(
            config_paths("[init]\n\ttemplateDir = tp"),
            [ConfigPath::Hooks("tp".to_owned())]
        );
        assert_eq!(
            paths,
            [
                ConfigPath::WorkTree("../../sub".to_owned()),
                ConfigPath::Hooks(".githooks".to_owned()),
                include("../shared config"),
                include("more")
            ]
        );
    }
}
