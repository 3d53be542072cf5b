//! Which settings of a repository cannot make git run a program in a command that only reads. Pure.
//!
//! A list of what is harmless, not of what is dangerous: a setting that is not known here counts as one that
//! runs something. Settings that `tools::reading` overrides for such commands are harmless as well:
//! hooks, `core.fsmonitor`, the programs of signatures, and every transport.

use super::settings::{Setting, settings};

/// Sections whose settings are harmless, with or without a subsection.
const SECTIONS: &[&str] = &[
    "add",
    "advice",
    "alias",
    "am",
    "apply",
    "author",
    "blame",
    "checkout",
    "clean",
    "clone",
    "color",
    "column",
    "commit",
    "committer",
    "credential",
    "difftool",
    "extensions",
    "feature",
    "fetch",
    "format",
    "fsck",
    "gc",
    "gitflow",
    "github",
    "gitlab",
    "gpg",
    "grep",
    "gui",
    "guitool",
    "http",
    "hub",
    "index",
    "init",
    "interactive",
    "lfs",
    "log",
    "mailinfo",
    "mailmap",
    "maintenance",
    "mergetool",
    "notes",
    "oh-my-zsh",
    "pack",
    "pager",
    "protocol",
    "pull",
    "push",
    "rebase",
    "receive",
    "remote",
    "remotes",
    "rerere",
    "reset",
    "revert",
    "safe",
    "sendemail",
    "sequence",
    "showbranch",
    "stash",
    "status",
    "submodule",
    "svn",
    "svn-remote",
    "transfer",
    "uploadarchive",
    "uploadpack",
    "url",
    "user",
    "worktree",
];

/// Settings of `core`.
const CORE: &[&str] = &[
    "abbrev",
    "askpass",
    "attributesfile",
    "autocrlf",
    "bare",
    "bigfilethreshold",
    "checkstat",
    "commentchar",
    "compression",
    "deltabasecachelimit",
    "editor",
    "eol",
    "excludesfile",
    "filemode",
    "fscache",
    "fsmonitor",
    "fsync",
    "fsyncmethod",
    "hidedotfiles",
    "hookspath",
    "ignorecase",
    "ignorestat",
    "logallrefupdates",
    "longpaths",
    "loosecompression",
    "multipackindex",
    "packedgitlimit",
    "packedgitwindowsize",
    "pager",
    "precomposeunicode",
    "preloadindex",
    "protecthfs",
    "protectntfs",
    "quotepath",
    "repositoryformatversion",
    "safecrlf",
    "sharedrepository",
    "sparsecheckout",
    "sparsecheckoutcone",
    "splitindex",
    "sshcommand",
    "symlinks",
    "trustctime",
    "untrackedcache",
    "whitespace",
    "worktree",
];

/// Settings of `diff` without a subsection.
const DIFF: &[&str] = &[
    "algorithm",
    "autorefreshindex",
    "colormoved",
    "colormovedws",
    "context",
    "dirstat",
    "guitool",
    "ignoresubmodules",
    "indentheuristic",
    "interhunkcontext",
    "mnemonicprefix",
    "noprefix",
    "relative",
    "renamelimit",
    "renames",
    "statgraphwidth",
    "statnamewidth",
    "submodule",
    "suppressblankempty",
    "tool",
    "wordregex",
    "wserrorhighlight",
];

/// Settings of one driver of diffs.
const DRIVER: &[&str] = &[
    "algorithm",
    "binary",
    "cachetextconv",
    "funcname",
    "wordregex",
    "xfuncname",
];

/// Whether a configuration may make git run a program in a command that only reads.
pub(crate) fn may_run_in_reading(config: &[u8]) -> bool {
    settings(config).iter().any(|setting| !is_harmless(setting))
}

fn is_harmless(setting: &Setting) -> bool {
    let has_subsection = setting.subsection.is_some();
    let one_of = |names: &[&str], name: &[u8]| names.iter().any(|it| it.as_bytes() == name);
    let key = setting.key.as_slice();
    match setting.section.as_slice() {
        b"core" => !has_subsection && one_of(CORE, key),
        b"diff" => one_of(if has_subsection { DRIVER } else { DIFF }, key),
        b"filter" => key == b"required" || setting.value.as_ref().is_some_and(Vec::is_empty),
        // Sorted by signature, they are verified.
        b"branch" | b"tag" => has_subsection || key != b"sort",
        b"merge" => !has_subsection,
        // The included file is read as well.
        b"include" | b"includeif" => true,
        section => one_of(SECTIONS, section),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_to_be_harmless_may_run_a_program() {
        for config in [
            "[diff]\n\texternal = x",
            "[diff \"a\"]\n\ttextconv = x",
            "[diff \"a\"]\n\tcommand = x",
            "[FILTER \"a\"]\n\tProcess = x",
            "[filter \"a\"] clean = x",
            "[filter \"a\"] clean",
            "[core]\n\talternateRefsCommand = x",
            "[merge \"a\"]\n\tdriver = x",
            "[tag]\n\tsort = signature",
            "[man \"a\"]\n\tcmd = x",
            "[hook \"a\"]\n\tcommand = x",
            "[trailer \"a\"]\n\tcmd = x",
            "[new]\n\tx = y",
            "[core \"x\"]\n\tbare = true",
        ] {
            assert!(may_run_in_reading(config.as_bytes()), "{config}");
        }
    }

    #[test]
    fn the_configuration_of_everyday_repositories_is_harmless() {
        let config = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n\tpager = less\n\thooksPath = .husky/_\n\
            [remote \"origin\"]\n\turl = git@example.com:x/y.git\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n\tpromisor = true\n\
            [branch \"main\"]\n\tremote = origin\n\tmerge = refs/heads/main\n\tvscode-merge-base = origin/main\n\
            [submodule \"a\"]\n\tactive = true\n\turl = ../a\n[user]\n\temail = a@example.com\n\
            [filter \"a\"]\n\trequired = true\n\tclean =\n[diff]\n\trenames = true\n[diff \"rust\"]\n\txfuncname = x\n\
            [alias]\n\td = diff\n[commit]\n\tgpgsign = true\n[gpg]\n\tformat = ssh\n[merge]\n\tconflictstyle = zdiff3\n[extensions]\n\tworktreeConfig = true\n";
        assert!(!may_run_in_reading(config.as_bytes()));
    }
}
