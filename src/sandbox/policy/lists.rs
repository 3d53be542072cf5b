//! The lists of names that a policy refuses, in lower case. Data only.

/// Names of files that hold keys, in lower case.
pub(super) const SENSITIVE_NAMES: &[&str] = &[
    ".env",
    ".envrc",
    "id_rsa",
    "id_dsa",
    "id_ecdsa",
    "id_ecdsa_sk",
    "id_ed25519",
    "id_ed25519_sk",
    ".netrc",
    "_netrc",
    ".npmrc",
    ".pypirc",
    ".pgpass",
    ".my.cnf",
    ".htpasswd",
    ".git-credentials",
    ".vault-token",
    "credentials.tfrc.json",
];

/// Suffixes of files that hold keys.
pub(super) const SENSITIVE_ENDINGS: &[&str] = &[
    ".pem",
    ".key",
    ".p12",
    ".pfx",
    ".jks",
    ".keystore",
    ".kdbx",
    ".ppk",
];

/// Folders and files that hold keys, matched against the end of a path or any part above it.
pub(super) const SENSITIVE_PLACES: &[&[&str]] = &[
    &[".aws", "credentials"],
    &[".aws", "sso"],
    &[".ssh"],
    &[".gnupg"],
    &[".azure"],
    &[".kube", "config"],
    &[".docker", "config.json"],
    &[".config", "gcloud"],
    &[".config", "gh", "hosts.yml"],
    &[".local", "share", "callboard"],
    &[".cargo", "credentials"],
    &[".cargo", "credentials.toml"],
];

/// Files that make other programs run commands, so that only the user may write them. Everything
/// below such a folder is included.
pub(super) const PROTECTED_PLACES: &[&[&str]] = &[
    &[".git"],
    &[".gitconfig"],
    &[".gitmodules"],
    &[".callboard"],
    &["callboard.toml"],
    &[".local", "share", "callboard"],
    &[".mcp.json"],
    &["mcp.json"],
    &[".bashrc"],
    &[".bash_profile"],
    &[".bash_login"],
    &[".bash_logout"],
    &[".bash_aliases"],
    &[".profile"],
    &[".zshrc"],
    &[".zshenv"],
    &[".zprofile"],
    &[".zlogin"],
    &[".zlogout"],
    &[".kshrc"],
    &[".cshrc"],
    &[".tcshrc"],
    &[".inputrc"],
    &[".envrc"],
    &[".config", "fish"],
    &[".config", "git"],
    // What a session of the user starts, and the programs that a shell finds first.
    &[".config", "autostart"],
    &[".config", "environment.d"],
    &[".config", "systemd"],
    &[".local", "bin"],
    &[".local", "share", "systemd"],
    &[".pam_environment"],
    &[".xinitrc"],
    &[".xprofile"],
    &[".xsession"],
    &[".xsessionrc"],
    &[".tmux.conf"],
    &[".hg", "hgrc"],
    &[".hg", "hgrc-not-shared"],
    &[".hg", "sharedpath"],
    &[".jj", "repo", "config.toml"],
    &[".jj", "workspace-config.toml"],
    &[".pijul", "config"],
    &[".sl", "config"],
    &["_darcs", "prefs", "defaults"],
    &[".ssh"],
];

/// Names that only a folder may have: as a file they hold the path of the folder that a program reads
/// its settings from.
pub(super) const POINTERS: &[&[&str]] = &[&[".jj", "repo"]];

/// Names that editors, agents, version managers and hook runners read when a folder is opened or
/// entered or a commit is made. They run commands or count as the user's instructions, so only the
/// user may write them. Exempt below [`DEPENDENCIES`].
pub(super) const PROTECTED_IN_PROJECTS: &[&[&str]] = &[
    // Instructions and settings of agents.
    &[".agent"],
    &["agent.md"],
    &["agents.md"],
    &["agents.override.md"],
    &["claude.md"],
    &["claude.local.md"],
    &["crush.json"],
    &["gemini.md"],
    &["opencode.json"],
    &["opencode.jsonc"],
    &["qwen.md"],
    &["warp.md"],
    &[".agents"],
    &[".aider.conf.yml"],
    &[".amazonq"],
    &[".augment"],
    &[".claude"],
    &[".clinerules"],
    &[".codex"],
    &[".continue"],
    &[".crush.json"],
    &[".cursor"],
    &[".cursorrules"],
    &[".factory"],
    &[".gemini"],
    &[".github", "agents"],
    &[".github", "chatmodes"],
    &[".github", "copilot-instructions.md"],
    &[".github", "hooks"],
    &[".github", "instructions"],
    &[".github", "prompts"],
    &[".goosehints"],
    &[".junie"],
    &[".kilocode"],
    &[".kiro"],
    &[".opencode"],
    &[".openhands"],
    &[".qwen"],
    &[".roo"],
    &[".roomodes"],
    &[".rules"],
    &[".trae"],
    &[".windsurf"],
    &[".windsurfrules"],
    // Tasks and settings of editors.
    &[".devcontainer"],
    &[".devcontainer.json"],
    &[".dir-locals-2.el"],
    &[".dir-locals.el"],
    &[".exrc"],
    &[".fleet"],
    &[".gdbinit"],
    &[".helix"],
    &[".idea"],
    &[".lldbinit"],
    &[".lvimrc"],
    &[".nvim.lua"],
    &[".nvimrc"],
    &[".theia"],
    &[".vimrc"],
    &[".vs"],
    &[".vscode", "c_cpp_properties.json"],
    &[".vscode", "cmake-kits.json"],
    &[".vscode", "launch.json"],
    &[".vscode", "mcp.json"],
    &[".vscode", "settings.json"],
    &[".vscode", "tasks.json"],
    &[".zed"],
    // Settings that name programs for a build tool, which editors start when a folder is opened,
    // and for a package manager; what debuggers and interpreters run when they start in a folder.
    &[".cargo", "config"],
    &[".cargo", "config.toml"],
    &[".ghci"],
    &[".irbrc"],
    &[".ocamlinit"],
    &[".pdbrc"],
    &[".pnpmfile.cjs"],
    &[".pryrc"],
    &[".renviron"],
    &[".rprofile"],
    &[".rust-analyzer.toml"],
    &[".yarnrc"],
    &[".yarnrc.yml"],
    &["omnisharp.json"],
    &["rust-analyzer.toml"],
    // Files that a shell runs when it enters the folder.
    &[".autoenv.zsh"],
    &[".config", "mise"],
    &[".config", "mise.toml"],
    &[".direnv"],
    &[".mise"],
    &[".mise.local.toml"],
    &[".mise.toml"],
    &[".rvmrc"],
    &[".tool-versions"],
    &["mise.local.toml"],
    &["mise.toml"],
    // Git hooks under other names.
    &[".husky"],
    &[".lefthook"],
    &[".lefthook-local"],
    &[".overcommit.yml"],
    &[".pre-commit-config.yaml"],
];

/// Settings of a runner of git hooks, which reads them under many names: each of these with each ending,
/// with and without a dot before it. Exempt below [`DEPENDENCIES`].
pub(super) const HOOK_RUNNER: [&str; 2] = ["lefthook", "lefthook-local"];
pub(super) const HOOK_RUNNER_ENDINGS: [&str; 5] = ["json", "jsonc", "toml", "yaml", "yml"];

/// Suffixes of files that editors open as a project with tasks.
pub(super) const PROTECTED_ENDINGS: &[&str] = &[".code-workspace", ".sublime-project"];

/// Folders that package managers fill. No editor opens their contents as a project, and packages
/// ship protected names.
pub(super) const DEPENDENCIES: &[&str] = &["node_modules", "site-packages"];

/// Characters that fold to other letters than their lower case: names in the lists of this file
/// consist of these.
pub(super) const FOLDED: &[(char, &str)] = &[
    ('\u{df}', "ss"),
    ('\u{17f}', "s"),
    ('\u{1e9e}', "ss"),
    ('\u{fb00}', "ff"),
    ('\u{fb01}', "fi"),
    ('\u{fb02}', "fl"),
    ('\u{fb03}', "ffi"),
    ('\u{fb04}', "ffl"),
    ('\u{fb05}', "st"),
    ('\u{fb06}', "st"),
];
