//! Finds in git's configuration the paths of hooks, of programs and of more configuration. Pure.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Component, Path, PathBuf},
};

use super::settings::{Setting, settings};

/// Python's own modules, one a line. Python searches in the current folder first for those that a
/// module uses.
const PYTHON_MODULES: &str = include_str!("python_modules.txt");

/// A path in a git configuration that leads to more hooks or configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ConfigPath {
    /// The hooks folder, relative to the top of the working tree.
    Hooks(PathBuf),
    /// The top of the working tree, relative to the repository.
    WorkTree(PathBuf),
    /// Another configuration file, relative to the folder of this file.
    Include(PathBuf),
    /// A word of a command that git runs, which may be a path relative to the top of the working
    /// tree.
    Program(String),
    /// A word of a command that is no path by its form: it counts where it is a file of the working tree.
    Word(String),
    /// A pattern of the shell in a command, relative to the top of the working tree.
    Pattern(String),
    /// A module of Python that git runs, as a path without its ending: a file or a folder.
    Module(String),
    /// A package that Python imports on the way to a module: a file, or `__init__` in the folder.
    Package(String),
    /// A folder in which Python searches for its own modules first.
    ModuleFolder(String),
}

/// Returns the paths that a git configuration names.
pub(crate) fn config_paths(config: &[u8]) -> Vec<ConfigPath> {
    let mut paths = Vec::new();
    for setting in settings(config) {
        let Setting {
            section,
            subsection,
            key,
            value: Some(value),
        } = &setting
        else {
            continue;
        };
        let path = PathBuf::from(OsStr::from_bytes(value));
        let has_subsection = subsection.is_some();
        match (section.as_slice(), has_subsection, key.as_slice()) {
            _ if value.is_empty() => {}
            // A new repository gets the hooks and the configuration of its template.
            (b"core", false, b"hookspath") | (b"init", false, b"templatedir") => {
                paths.push(ConfigPath::Hooks(path));
            }
            (b"core", false, b"worktree") => paths.push(ConfigPath::WorkTree(path)),
            (b"include", false, b"path") | (b"includeif", true, b"path") => {
                paths.push(ConfigPath::Include(path));
            }
            (section, _, key) => {
                let value = text(value);
                let program = program_of_name(section, key, &value);
                paths.extend(program.map(ConfigPath::Program));
                if names_command(section, key) {
                    // No shell reads these.
                    if matches!(key, b"path" | b"program" | b"askpass")
                        && value.contains(is_separator)
                    {
                        paths.push(ConfigPath::Program(value.clone()));
                    }
                    paths.extend(command_paths(&value));
                }
                // Git runs what stands behind this prefix of a remote repository's address.
                let address = match key {
                    b"insteadof" | b"pushinsteadof" => {
                        text(subsection.as_deref().unwrap_or_default())
                    }
                    _ => value,
                };
                paths.extend(
                    address
                        .strip_prefix("ext::")
                        .into_iter()
                        .flat_map(command_paths),
                );
            }
        }
    }
    paths
}

/// The character that stands for byte 0 where a path is no text.
const BYTES: u32 = 0x0010_FF00;

/// The text of a command. A byte that is no text becomes a character of its own.
fn text(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        let odd = chunk.invalid().iter();
        text.extend(odd.filter_map(|byte| char::from_u32(BYTES + u32::from(*byte))));
    }
    text
}

/// The path that a word of a command stands for.
pub(crate) fn path(word: &str) -> PathBuf {
    let mut bytes = Vec::new();
    for c in word.chars() {
        match u32::from(c).checked_sub(BYTES).map(u8::try_from) {
            Some(Ok(byte)) => bytes.push(byte),
            _ => bytes.extend(c.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
    OsStr::from_bytes(&bytes).into()
}

/// Whether the objects of a repository with this configuration have ids of SHA-256.
pub(crate) fn uses_sha256(config: &[u8]) -> bool {
    settings(config).iter().any(|setting| {
        setting.section == b"extensions"
            && setting.key == b"objectformat"
            && setting
                .value
                .as_ref()
                .is_some_and(|value| value.eq_ignore_ascii_case(b"sha256"))
    })
}

/// Where git is installed, for `%(prefix)` in a path.
const PREFIX: &str = "/usr";

/// Where `git difftool` and `git mergetool` look for a tool by its name.
const TOOLS: &str = "/usr/lib/git-core/mergetools";

/// The path that a path of git's configuration stands for: `~` is the home folder, `~NAME` that of
/// another user, `%(prefix)` where git is installed. `None` if there is no home folder.
pub(crate) fn expanded(path: &Path, home: Option<&Path>) -> Option<PathBuf> {
    let bytes = path.as_os_str().as_bytes();
    let bytes = bytes.strip_prefix(b":(optional)").unwrap_or(bytes);
    if let Some(rest) = bytes.strip_prefix(b"%(prefix)/") {
        return Some(without_parents(
            &Path::new(PREFIX).join(OsStr::from_bytes(rest)),
        ));
    }
    let path = Path::new(OsStr::from_bytes(bytes));
    let mut parts = path.iter();
    let first = parts.next().unwrap_or_default().as_bytes();
    let Some(user) = first.strip_prefix(b"~") else {
        return Some(path.to_owned());
    };
    let home = home?;
    let mut place = if user.is_empty() || home.file_name().map(OsStr::as_bytes) == Some(user) {
        home.to_owned()
    } else {
        home.parent()?.join(OsStr::from_bytes(user))
    };
    place.extend(parts);
    Some(place)
}

/// An absolute path without `..`, as it is where no part is a link.
fn without_parents(path: &Path) -> PathBuf {
    let mut place = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(place.pop()),
            part => place.push(part),
        }
    }
    place
}

/// The program that git runs for a name in its configuration, in the current folder if the name has a
/// slash: `git-remote-NAME` and the like.
fn program_of_name(section: &[u8], key: &[u8], name: &str) -> Option<String> {
    let name = name
        .split_whitespace()
        .next()
        .filter(|name| name.contains('/'))?;
    match (section, key) {
        (b"alias", _) => Some(format!("git-{name}")),
        (b"credential", b"helper") => Some(format!("git-credential-{name}")),
        (b"remote", b"vcs") => Some(format!("git-remote-{name}")),
        (b"diff" | b"merge", b"tool" | b"guitool") => {
            let tool = without_parents(&Path::new(TOOLS).join(name));
            Some(tool.to_str()?.to_owned())
        }
        _ => None,
    }
}

/// What a command can name.
fn command_paths(command: &str) -> Vec<ConfigPath> {
    let mut paths: Vec<ConfigPath> = words_of(command)
        .into_iter()
        .map(ConfigPath::Program)
        .collect();
    paths.extend(modules_of(command));
    paths.extend(settings_of(command));
    paths.extend(makefiles_of(command).into_iter().map(ConfigPath::Program));
    for word in loose_words(command) {
        paths.push(if word.contains(['*', '?', '[']) {
            ConfigPath::Pattern(word)
        } else {
            ConfigPath::Word(word)
        });
    }
    paths
}

/// Whether git runs the value of a key as a command, or as one of its own with these arguments.
fn names_command(section: &[u8], key: &[u8]) -> bool {
    match section {
        // Without `!` it is a command of git, which may name programs in its arguments.
        b"alias" | b"pager" | b"credential" | b"gpg" | b"sendemail" => true,
        // Extensions of git whose settings are commands.
        b"branchless" | b"hooks" | b"secrets" | b"stgit" | b"tig" | b"transcrypt" => true,
        b"browser" | b"difftool" | b"lfs" | b"man" | b"mergetool" if key == b"path" => true,
        b"lfs" if key == b"args" => true,
        b"svn" => key == b"authorsprog",
        // git-annex has some twenty of them.
        _ if key.ends_with(b"-command") || key.ends_with(b"-hook") => true,
        _ => matches!(
            key,
            b"clean" | b"smudge" | b"process" // filter
                | b"external" | b"command" | b"textconv" // diff, hook, trailer
                | b"driver" // merge
                | b"fsmonitor" | b"editor" | b"pager" | b"sshcommand" | b"askpass" | b"gitproxy" | b"alternaterefscommand"
                | b"difffilter" | b"cmd" | b"uploadpack" | b"receivepack" | b"update" | b"program"
                | b"packobjectshook" | b"recentobjectshook" | b"tunnel" | b"httpd"
        ),
    }
}

/// Programs whose first operand is a file that they run.
const INTERPRETERS: &[&str] = &[
    ".", "bash", "bun", "dash", "deno", "exec", "ksh", "node", "perl", "php", "ruby", "sh",
    "source", "zsh",
];

/// Endings by which Node finds a file whose name is given without one.
const NODE_ENDINGS: &[&str] = &[".js", ".json", ".node", "/index.js", "/package.json"];

/// Words of one command that are tried as files, and expansions of its braces.
const WORDS_MAX: usize = 4000;
const BRACES_MAX: usize = 64;

/// Earlier words of a command that are tried as folders.
const FOLDERS_MAX: usize = 16;

/// The name of a program without its folder.
fn program_of(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or_default()
}

fn is_python(program: &str) -> bool {
    ["python", "pypy"].iter().any(|name| {
        program.strip_prefix(name).is_some_and(|version| {
            version
                .bytes()
                .all(|byte| byte.is_ascii_digit() || byte == b'.')
        })
    })
}

fn is_node(program: &str) -> bool {
    ["node", "nodejs", "bun"].contains(&program)
}

fn is_separator(c: char) -> bool {
    c.is_whitespace() || "\"'`;|&()<>=!\\{}".contains(c)
}

/// The words of a command, whatever the shell's quotes hold together.
fn split(command: &str) -> impl Iterator<Item = &str> {
    command.split(is_separator).filter(|word| !word.is_empty())
}

/// A word without a variable or a substitution before a path; empty if it has no path.
fn without_variable(word: &str) -> &str {
    match word.strip_prefix('$') {
        Some(variable) => variable.split_once('/').map_or("", |(_, path)| path),
        None => word,
    }
}

/// The earlier words of a command that may be the folder in which it goes on.
#[derive(Default)]
struct Folders(Vec<String>);

impl Folders {
    fn add(&mut self, word: &str, is_entered: bool) {
        let folder = without_variable(word).trim_matches('/');
        if folder.is_empty() || word == "cd" || self.0.len() >= FOLDERS_MAX {
            return;
        }
        let deeper = self
            .0
            .last()
            .filter(|_| is_entered)
            .map(|last| format!("{last}/{folder}"));
        self.0.push(folder.to_owned());
        self.0.extend(deeper);
    }
}

/// Whether the word after this one is a folder that the command enters.
fn enters(word: &str) -> bool {
    ["cd", "pushd", "-C", "--chdir"].contains(&word)
}

/// The words of a command that can be paths of files, relative to the folder in which it starts. A
/// variable or a substitution before a path may be the top of the working tree, or an earlier word. An
/// earlier word may also be the folder that the command has entered.
fn words_of(command: &str) -> Vec<String> {
    let joined = quoted_words(command);
    let command = command.replace("${", "$").replace("}/", "/");
    let mut found = Vec::new();
    let mut folders = Folders::default();
    let mut entered = false;
    let mut before = "";
    for word in split(&command) {
        let is_entered = enters(before);
        entered |= is_entered;
        if word.starts_with('-') {
            if enters(word) {
                before = word;
            }
            // A flag with its value, such as `-ftools/x`.
            found.extend(joined_value(word).filter(|value| value.contains(['/', '.'])));
            continue;
        }
        let program = program_of(before);
        let is_run = INTERPRETERS.contains(&program) || is_python(program);
        let path = without_variable(word);
        let is_variable = path != word && !path.is_empty();
        if !is_entered && (is_run || is_variable || path.contains(['/', '.'])) {
            found.push(path.to_owned());
            found.extend(path.strip_prefix('/').map(str::to_owned));
            if is_variable && word.starts_with("$HOME/") {
                found.push(format!("~/{path}"));
            }
            if entered || is_variable {
                found.extend(folders.0.iter().map(|folder| format!("{folder}/{path}")));
            }
            if is_node(program) {
                found.extend(NODE_ENDINGS.iter().map(|ending| format!("{path}{ending}")));
            }
        }
        folders.add(word, is_entered);
        before = word;
    }
    found.extend(joined);
    found.retain(|path| !path.is_empty() && path != ".");
    found
}

/// Folders of programs and files of configuration that a command of git names: by settings (`-c NAME=VALUE`)
/// and by flags.
fn settings_of(command: &str) -> Vec<ConfigPath> {
    let words = command
        .split(|c: char| c.is_whitespace() || "\"'`;|&()<>!\\".contains(c))
        .filter(|word| !word.is_empty());
    words
        .filter_map(|word| {
            let (name, value) = word.split_once('=')?;
            let name = name.trim_start_matches("-c").to_ascii_lowercase();
            let path = || PathBuf::from(without_variable(value));
            match name.as_str() {
                // `core.hooksPath=` names no folder.
                _ if value.is_empty() => None,
                "core.hookspath" | "init.templatedir" | "--exec-path" | "--template" => {
                    Some(ConfigPath::Hooks(path()))
                }
                "include.path" => Some(ConfigPath::Include(value.into())),
                _ if name.starts_with("includeif.") && name.ends_with(".path") => {
                    Some(ConfigPath::Include(value.into()))
                }
                _ => None,
            }
        })
        .collect()
}

/// The value that a short flag may hold.
fn joined_value(flag: &str) -> Option<String> {
    let mut letters = flag.strip_prefix('-')?.chars();
    letters
        .next()
        .filter(|letter| letter.is_ascii_alphanumeric())?;
    Some(letters.as_str().to_owned()).filter(|value| !value.is_empty())
}

/// All words of a command, those in a flag and in braces too, alone and in the folders that the command
/// enters. Which of them are files depends on the working tree.
fn loose_words(command: &str) -> Vec<String> {
    let plain = command.replace("${", "$").replace("}/", "/");
    let braces = expanded_braces(command);
    let mut found: Vec<String> = Vec::new();
    let mut folders = Folders::default();
    let mut before = "";
    for word in split(&plain).chain(braces.iter().map(String::as_str)) {
        if word.starts_with("--") {
            continue;
        }
        let here: Vec<String> = match word.strip_prefix('-') {
            // Letters of flags without a value may come before one with a value.
            Some(flags) => flags
                .char_indices()
                .skip(1)
                .take(8)
                .filter_map(|(at, _)| flags.get(at..))
                .map(str::to_owned)
                .collect(),
            None => vec![without_variable(word).to_owned()],
        };
        for word in here
            .into_iter()
            .filter(|word| !word.is_empty() && !word.starts_with('/'))
        {
            found.extend(folders.0.iter().map(|folder| format!("{folder}/{word}")));
            found.push(word);
        }
        if enters(before) {
            folders.add(word, true);
        }
        before = word;
        if found.len() > WORDS_MAX {
            break;
        }
    }
    found
}

/// The words of a command with braces of the shell, expanded.
fn expanded_braces(command: &str) -> Vec<String> {
    let is_end = |c: char| c.is_whitespace() || "\"'`;|&()<>".contains(c);
    let mut todo: Vec<String> = command
        .split(is_end)
        .filter(|word| word.contains('{'))
        .map(str::to_owned)
        .collect();
    let mut found = Vec::new();
    while let Some(word) = todo.pop() {
        let inner = word
            .rfind('{')
            .and_then(|open| Some((open, open + word.get(open..)?.find('}')?)));
        let Some((open, close)) = inner.filter(|_| todo.len() + found.len() < BRACES_MAX) else {
            found.push(word);
            continue;
        };
        let (Some(head), Some(list), Some(tail)) = (
            word.get(..open),
            word.get(open + 1..close),
            word.get(close + 1..),
        ) else {
            continue;
        };
        todo.extend(list.split(',').map(|part| format!("{head}{part}{tail}")));
    }
    found
}

/// The files that `make` reads by default: in the folder in which it starts, and in those that the command
/// names.
fn makefiles_of(command: &str) -> Vec<String> {
    let words: Vec<&str> = split(command).collect();
    if !words
        .iter()
        .any(|word| ["make", "gmake"].contains(&program_of(word)))
    {
        return Vec::new();
    }
    let mut folders = Folders::default();
    let mut before = "";
    for word in &words {
        let joined = word.strip_prefix("-C").filter(|folder| !folder.is_empty());
        if enters(before) || joined.is_some() {
            folders.add(joined.unwrap_or(word), true);
        }
        before = word;
    }
    let folders = folders.0.iter().map(|folder| format!("{folder}/"));
    let folders: Vec<String> = std::iter::once(String::new()).chain(folders).collect();
    let names = ["GNUmakefile", "Makefile", "makefile"];
    folders
        .iter()
        .flat_map(|folder| names.map(|name| format!("{folder}{name}")))
        .collect()
}

/// Whether a name fits a pattern of the shell. A class of characters stands for any character.
pub(crate) fn fits(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut here) = (0, 0);
    // After the last `*`: the pattern, and the name from which it is tried next.
    let mut last: Option<(usize, usize)> = None;
    loop {
        let rest = pattern.get(at..).unwrap_or_default();
        let step = match (rest, name.get(here)) {
            ([b'*', ..], _) => {
                last = Some((at + 1, here + 1));
                at += 1;
                continue;
            }
            ([], None) => return true,
            ([b'[', class @ ..], Some(_)) => {
                let end = class.iter().position(|byte| *byte == b']');
                Some(end.map_or(1, |end| end + 2))
            }
            ([b'?', ..], Some(_)) => Some(1),
            ([first, ..], Some(byte)) if first == byte => Some(1),
            _ => None,
        };
        match (step, last) {
            (Some(step), _) => (at, here) = (at + step, here + 1),
            (None, Some((after, next))) if next <= name.len() => {
                (at, here, last) = (after, next, Some((after, next + 1)));
            }
            (None, _) => return false,
        }
    }
}

/// The words of a command that hold blanks or other separators in the shell's quotes.
fn quoted_words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quote = None;
    let mut characters = command.chars();
    while let Some(c) = characters.next() {
        match (c, quote) {
            ('\'' | '"', None) => quote = Some(c),
            (_, Some(open)) if c == open => quote = None,
            ('\\', None | Some('"')) => word.extend(characters.next()),
            (_, Some(_)) => word.push(c),
            (_, None) if c.is_whitespace() || ";|&()<>`".contains(c) => {
                words.push(std::mem::take(&mut word));
            }
            (_, None) => word.push(c),
        }
    }
    words.push(word);
    words
        .iter()
        .map(|word| without_variable(word.trim_start_matches('!')).to_owned())
        .filter(|word| word.contains(is_separator) && word.contains(char::is_alphanumeric))
        .collect()
}

/// The modules that interpreters in a command find by name: those of `python -m`, `perl -M`, `ruby -r`
/// and `node -r`, in the folder in which the command starts and in every earlier word.
fn modules_of(command: &str) -> Vec<ConfigPath> {
    let command = command.replace("${", "$").replace("}/", "/");
    let words: Vec<&str> = split(&command).collect();
    let mut found = Vec::new();
    let mut folders = Folders::default();
    let mut before = "";
    for (at, word) in words.iter().enumerate() {
        let program = program_of(word);
        let arguments = words.get(at + 1..).unwrap_or_default();
        let above = || {
            let folders = folders.0.iter().map(|folder| format!("{folder}/"));
            std::iter::once(String::new()).chain(folders)
        };
        if is_python(program) {
            let modules = python_modules(arguments);
            for folder in above().filter(|_| modules.is_some()) {
                for name in modules.iter().flatten() {
                    let packages = name.match_indices('/').filter_map(|(at, _)| name.get(..at));
                    found.extend(
                        packages.map(|name| ConfigPath::Package(format!("{folder}{name}"))),
                    );
                    found.push(ConfigPath::Module(format!("{folder}{name}")));
                }
                found.push(ConfigPath::ModuleFolder(folder));
            }
        }
        for file in other_modules(program, arguments) {
            for folder in above() {
                found.push(match file.strip_suffix('/') {
                    Some(name) => ConfigPath::Module(format!("{folder}{name}")),
                    None => ConfigPath::Program(format!("{folder}{file}")),
                });
            }
        }
        if !word.starts_with('-') {
            folders.add(word, enters(before));
        }
        before = word;
    }
    found
}

/// The modules that Python runs or imports by its arguments, as paths; `None` if it does not search
/// for modules in the current folder.
fn python_modules(arguments: &[&str]) -> Option<Vec<String>> {
    let path = |name: &str| name.replace('.', "/");
    let mut arguments = arguments.iter();
    while let Some(flags) = arguments.next().and_then(|word| word.strip_prefix('-')) {
        for (at, flag) in flags.char_indices() {
            let rest = flags.get(at + 1..).unwrap_or_default();
            match flag {
                // Isolated, or without the current folder.
                'I' | 'P' => return None,
                'm' if rest.is_empty() => {
                    return arguments.next().map(|name| vec![path(name)]);
                }
                'm' => return Some(vec![path(rest)]),
                'c' => {
                    let names = arguments.flat_map(|word| word.split([',', ':']));
                    return Some(names.filter(|name| is_module(name)).map(path).collect());
                }
                'W' | 'X' => {
                    if rest.is_empty() {
                        arguments.next();
                    }
                    break;
                }
                _ => {}
            }
        }
    }
    None
}

/// Whether a word of a program can be a module's name.
fn is_module(word: &str) -> bool {
    const WORDS: &[&str] = &["as", "import", "from"];
    word.starts_with(|c: char| c.is_alphabetic() || c == '_')
        && word
            .chars()
            .all(|c| c.is_alphanumeric() || c == '_' || c == '.')
        && !WORDS.contains(&word)
}

/// The files that Perl, Ruby or Node load by a name in their arguments; a folder ends in a slash.
fn other_modules(program: &str, arguments: &[&str]) -> Vec<String> {
    let is_perl = program.starts_with("perl");
    let is_ruby = program.starts_with("ruby");
    if !is_perl && !is_ruby && !is_node(program) {
        return Vec::new();
    }
    let mut folders = vec![String::new()];
    let mut names = Vec::new();
    let mut arguments = arguments.iter().peekable();
    while let Some(word) = arguments.next() {
        let value = |joined: &str, next: Option<&&&str>| match joined {
            "" => next.map(|next| (**next).to_owned()),
            joined => Some(joined.to_owned()),
        };
        let next = arguments.peek();
        if is_node(program) {
            if [
                "-r",
                "--require",
                "--import",
                "--loader",
                "--experimental-loader",
            ]
            .contains(word)
            {
                names.extend(next.map(|next| (**next).to_owned()));
            }
        } else if let Some(folder) = word.strip_prefix("-I") {
            folders.extend(value(folder, next).map(|folder| format!("{folder}/")));
        } else if is_ruby && let Some(name) = word.strip_prefix("-r") {
            names.extend(value(name, next));
        } else if is_perl && let Some(name) = word.strip_prefix("-M").or(word.strip_prefix("-m")) {
            if name == "lib" {
                folders.extend(next.map(|folder| format!("{folder}/")));
            }
            names.push(name.trim_start_matches('-').replace("::", "/"));
        }
    }
    let mut files = Vec::new();
    for name in names {
        if is_node(program) {
            let is_path = name.starts_with(['.', '/']);
            let place = match is_path {
                true => name,
                false => format!("node_modules/{name}"),
            };
            files.extend(NODE_ENDINGS.iter().map(|ending| format!("{place}{ending}")));
            files.extend((!is_path).then(|| format!("{place}/")));
            continue;
        }
        let ending = if is_perl { ".pm" } else { ".rb" };
        let name = name.strip_suffix(ending).unwrap_or(&name);
        files.extend(
            folders
                .iter()
                .map(|folder| format!("{folder}{name}{ending}")),
        );
    }
    files
}

/// Whether a file is a module of Python with this name: `x.py`, `x.pyc`, or a library such as
/// `x.cpython-313-x86_64-linux-gnu.so`.
pub(crate) fn is_python_file(file: &str, name: &str) -> bool {
    file.strip_prefix(name)
        .and_then(|rest| rest.strip_prefix('.'))
        .is_some_and(|ending| {
            ["py", "pyc", "so"].contains(&ending)
                || (ending.ends_with(".so")
                    && (ending.starts_with("cpython")
                        || ending.starts_with("abi")
                        || ending.starts_with("pypy")))
        })
}

/// Whether a file, given by its name in the folder, is one of Python's own modules.
pub(crate) fn is_pythons_own(file: &str) -> bool {
    let name = file.split('.').next().unwrap_or_default();
    !name.is_empty()
        && is_python_file(file, name)
        && PYTHON_MODULES.lines().any(|module| module == name)
}

/// Python's own modules.
pub(crate) fn python_modules_own() -> impl Iterator<Item = &'static str> {
    PYTHON_MODULES.lines()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_of_a_command_counts_where_it_is_a_file() {
        let cases = [
            ("awk -ftools/a.awk", "tools/a.awk"),
            ("awk -f cleaner", "cleaner"),
            ("bash -o pipefail cleaner", "cleaner"),
            ("sh +x cleaner", "cleaner"),
            ("cat cleaner - | sh", "cleaner"),
            ("perl -I lib run", "run"),
            ("node -r./tools/hook.js x.js", "./tools/hook.js"),
            ("tool -nftools/x", "tools/x"),
            ("make -ftools/mk", "tools/mk"),
            ("make -C tools", "tools/Makefile"),
            ("make", "GNUmakefile"),
            ("cd tools && ruby run", "tools/run"),
            ("bash -c 'sh tools/{a,b}/{c,d}'", "tools/b/c"),
            ("sh tools/clean*", "tools/clean*"),
            ("-c core.fsmonitor=tools/x status", "tools/x"),
            ("grep -Otools/x", "tools/x"),
            ("difftool --extcmd tools/x", "tools/x"),
            ("bisect run x", "x"),
        ];
        for (command, path) in cases {
            let named = command_paths(command);
            let has = |path: &ConfigPath| named.contains(path);
            let path = path.to_owned();
            assert!(
                has(&ConfigPath::Program(path.clone()))
                    || has(&ConfigPath::Word(path.clone()))
                    || has(&ConfigPath::Pattern(path)),
                "{command}: {named:?}"
            );
        }
        let named = |config: &str| config_paths(config.as_bytes());
        for config in [
            "[remote \"o\"]\n\turl = ext::tools/x",
            "[url \"ext::tools/x %S\"]\n\tinsteadOf = https:",
            "[lfs \"customtransfer.a\"]\n\targs = tools/x",
            "[svn]\n\tauthorsProg = tools/x",
            "[annex]\n\tgenerate-command = tools/x",
            "[lfs \"extension.a\"]\n\tclean = tools/x",
            "[alias]\n\tx = -c diff.external=tools/x diff",
        ] {
            let program = ConfigPath::Program("tools/x".to_owned());
            assert!(named(config).contains(&program), "{config}");
        }
        for hooks in [
            "[alias]\n\tx = -c core.hooksPath=hk commit",
            "[alias]\n\tx = -c core.hooksPath= commit\n\ty = -c core.hooksPath=hk commit",
            "[alias]\n\tx = \"!git -c 'core.hooksPath=hk' commit\"",
            "[alias]\n\tx = \"!git --exec-path=$PWD/hk y\"",
        ] {
            assert!(
                named(hooks).contains(&ConfigPath::Hooks("hk".into())),
                "{hooks}"
            );
        }
        let absolute = named("[alias]\n\tx = -c core.hooksPath=/w/hk -c init.templateDir= commit");
        let hooks = absolute
            .iter()
            .filter(|path| matches!(path, ConfigPath::Hooks(_)));
        assert!(
            hooks.eq([&ConfigPath::Hooks("/w/hk".into())]),
            "{absolute:?}"
        );
        let include = "[alias]\n\tx = -c include.path=/w/more status";
        assert!(named(include).contains(&ConfigPath::Include("/w/more".into())));
        let wide = "!a ".to_owned() + &"{a,b}".repeat(40);
        assert!(command_paths(&wide).len() < 2 * WORDS_MAX, "bounded");
    }

    #[test]
    fn a_pattern_fits_names_as_the_shells_does() {
        let fits = |pattern: &str, name: &str| fits(pattern.as_bytes(), name.as_bytes());
        for name in ["clean", "cleanx", "clean-a-b"] {
            assert!(fits("clean*", name) && fits("c*n*", name) && fits("*", name));
        }
        assert!(fits("c?e[a-z]n", "clean") && fits("*.[ch]", "a.c"));
        assert!(!fits("clean?", "clean") && !fits("clean", "cleanx") && !fits("*.c", "a.h"));
        assert!(
            !fits(&"a*".repeat(40), &"a".repeat(39)),
            "without trying every way"
        );
    }

    #[test]
    fn paths_in_a_configuration_are_read_as_git_reads_them() {
        let config = "[core]\n\tbare = false\n\tworktree = ../../sub\n\thooksPath = .githooks ; ours\n[include] path = \"../shared config\"\n[includeIf \"gitdir:x\"]\n\tPATH=more\n\
                      [other]\n\tpath = no\n\thooksPath = no\n[core \"x\"]";
        let paths = config_paths(config.as_bytes());

        let include = |path: &str| ConfigPath::Include(path.into());
        let commands = "[filter \"x\"]\n\tclean = sh ./a.sh %f # x\n\trequired = true\n[alias]\n\tst = status b.sh\n\tup = \"!f() { \\\"tools/c d\\\"; }; \\\n f e.py\"\n[core]\n\teditor = vi\n\tpager = bin/less -R";
        let words = ["./a.sh", "b.sh", "tools/c", "e.py", "tools/c d", "bin/less"]
            .map(|word| ConfigPath::Program(word.to_owned()));
        let strong = |config: &str| {
            let all = config_paths(config.as_bytes()).into_iter();
            all.filter(|path| !matches!(path, ConfigPath::Word(_)))
                .collect::<Vec<_>>()
        };
        assert_eq!(strong(commands), words);
        let found = |command: &str| words_of(command).join(" ");
        assert_eq!(found("!$(git rev-parse --show-toplevel)/t/x"), "/t/x t/x");
        assert_eq!(found("!\"$PWD/t/x\""), "t/x");
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
            strong(more),
            ["t/m", "./b", "t/p"].map(|word| ConfigPath::Program(word.to_owned()))
        );
        assert_eq!(
            config_paths(b"[init]\n\ttemplateDir = tp"),
            [ConfigPath::Hooks("tp".into())]
        );
        assert_eq!(
            paths,
            [
                ConfigPath::WorkTree("../../sub".into()),
                ConfigPath::Hooks(".githooks".into()),
                include("../shared config"),
                include("more")
            ]
        );
    }

    #[test]
    fn a_name_with_a_slash_stands_for_the_program_that_git_runs_for_it() {
        let cases = [
            ("[alias]\nq = t/evil --x", "git-t/evil"),
            ("[credential]\nhelper = t/evil", "git-credential-t/evil"),
            (
                "[credential \"https://x\"]\nhelper = t/evil",
                "git-credential-t/evil",
            ),
            ("[remote \"x\"]\nvcs = t/evil", "git-remote-t/evil"),
            ("[diff]\ntool = ../../../../w/t", "/w/t"),
            ("[merge]\nguitool = ../../../../w/t", "/w/t"),
            ("[secrets]\nproviders = ./t/evil", "./t/evil"),
            ("[annex]\nx-store-hook = t/evil", "t/evil"),
        ];
        for (config, program) in cases {
            let paths = config_paths(config.as_bytes());
            assert!(
                paths.contains(&ConfigPath::Program(program.to_owned())),
                "{config}: {paths:?}"
            );
        }
        let plain = config_paths(b"[credential]\nhelper = store\n[diff]\ntool = vimdiff");
        assert!(
            !plain.iter().any(
                |path| matches!(path, ConfigPath::Program(program) if program.contains("git"))
            ),
            "{plain:?}"
        );
    }

    #[test]
    fn quoted_words_of_a_command_are_one_path() {
        let has = |command: &str, path: &str| words_of(command).iter().any(|word| word == path);

        assert!(has("sh 'tools/a clean.sh' %f", "tools/a clean.sh"));
        assert!(has("sh \"tools/a;b.sh\"", "tools/a;b.sh"));
        assert!(has("sh tools/a\\ b.sh", "tools/a b.sh"));
        let program = "[gpg]\n\tprogram = tools/my program";
        assert!(
            config_paths(program.as_bytes())
                .contains(&ConfigPath::Program("tools/my program".to_owned()))
        );
        assert!(has("$HOME/dot/x.sh", "~/dot/x.sh"));
        assert!(has("node tools/clean", "tools/clean.js") && has("python3.12 x", "x"));
    }

    #[test]
    fn modules_that_interpreters_find_by_name_are_known() {
        let found = |command: &str| {
            let modules = modules_of(command);
            modules
                .iter()
                .map(|path| match path {
                    ConfigPath::Module(path) => path.clone(),
                    ConfigPath::Package(path) => format!("+{path}"),
                    ConfigPath::Program(path) => format!("={path}"),
                    other => format!("{other:?}").replace("ModuleFolder", ""),
                })
                .collect::<Vec<_>>()
                .join(" ")
        };

        assert_eq!(
            found("\"/usr/bin/python3\" -m nbstripout"),
            "nbstripout (\"\")"
        );
        assert_eq!(found("python3.12 -um a.b x"), "+a a/b (\"\")");
        assert_eq!(found("python -X dev -Wall -mx"), "x (\"\")");
        assert_eq!(found("cd t && python3 -m x"), "x (\"\") t/x (\"t/\")");
        assert_eq!(
            found("python3 -c 'import a, b.c; print(1)'"),
            "a +b b/c print (\"\")"
        );
        for none in [
            "python3 -Im x",
            "python3 -P -m x",
            "python3 x.py -m y",
            "pythonic -m x",
            "cat -m x",
        ] {
            assert_eq!(found(none), "", "{none}");
        }
        assert_eq!(found("perl -Ilib -MA::B x"), "=A/B.pm =lib/A/B.pm");
        assert_eq!(found("ruby -I lib -rx y"), "=x.rb =lib/x.rb");
        assert!(found("node -r ./x y").starts_with("=./x.js =./x.json"));
        assert!(found("node --require=x y").ends_with(" node_modules/x"));
        assert!(
            is_python_file("x.cpython-311-x86_64-linux-gnu.so", "x") && is_python_file("x.py", "x")
        );
        assert!(!is_python_file("x.txt", "x") && !is_python_file("xy.py", "x"));
        assert!(
            is_pythons_own("argparse.py")
                && !is_pythons_own("argparse.md")
                && !is_pythons_own("own.py")
        );
    }

    #[test]
    fn a_home_folder_is_that_of_the_account_or_beside_it() {
        let expanded = |path: &str| expanded(Path::new(path), Some(Path::new("/home/u")));

        assert_eq!(expanded("~/x"), Some("/home/u/x".into()));
        assert_eq!(expanded("~u/x"), Some("/home/u/x".into()));
        assert_eq!(expanded("~v/x"), Some("/home/v/x".into()));
        assert_eq!(expanded("a/~/x"), Some("a/~/x".into()));
        assert_eq!(expanded("%(prefix)/../w/x"), Some("/w/x".into()));
        assert_eq!(expanded(":(optional)x"), Some("x".into()));
        assert_eq!(super::expanded(Path::new("~/x"), None), None);
    }
}
