//! Knows what git accepts as a repository, by the names in a folder, and which names in a
//! repository decide what programs git runs. Pure.
//!
//! git searches for a repository from the current folder upwards: a `.git`, or the folder itself if
//! it is a bare repository, whatever its name. So any folder can become a repository, and its
//! `config` can name programs that the next `git status` runs.

#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
pub(crate) mod harmless;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
pub(crate) mod index;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
pub(crate) mod named;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod settings;

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
    // Settings of lazygit, which name commands.
    "lazygit.yml",
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
                || settings::settings(content).iter().any(|setting| {
                    let value = setting.value.as_deref().unwrap_or_default();
                    setting.key == b"strategy" && !is_own(&String::from_utf8_lossy(value))
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
            "[options]\n\tstrategy = file ; ]\n",
            "[options]\n\tstrategy = fi\\\nle\n",
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
}
