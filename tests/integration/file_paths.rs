//! Random texts as paths: the file tools agree with a model of what is inside the workspace. A
//! failing run prints its seed; `CALLBOARD_SEED` replays it, and `CALLBOARD_LONG=1` tries many
//! more.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::Arc,
};

use callboard::{
    chat::RawJson,
    ports::{Tool, ToolOutput},
    tool::ToolError,
    tools::{self, Mode},
};
use callboard_actors::testing::TestSize;
use callboard_actors::testing::contract::example_context;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::support::{SplitMix, scratch, seed};

const NAMES: &[&str] = &[
    "a",
    "b",
    "f",
    "..foo",
    "...",
    " ",
    "a b ",
    "\u{fc}n\u{ef}",
    "new\nline",
    "%2e%2e",
    "%2f",
    "..%2fa",
    "..\\a",
    "\\",
    "~",
    "$HOME",
    "*",
    "-rf",
    "\u{202e}x",
    "\u{ff0e}\u{ff0e}",
    "\"q'",
    "a:b",
    ".env",
    ".git",
    "CON",
    "l0",
    "l1",
    "l2",
    "l3",
    "l4",
    "outside",
    "workspace",
];

#[derive(Debug, Clone, PartialEq)]
enum Node {
    File,
    Folder,
    Link(String),
}

/// Contents of the workspace, keyed by the names on the path; the root is the empty list.
struct Model {
    nodes: BTreeMap<Vec<String>, Node>,
    /// Absolute texts that name the root.
    roots: [String; 2],
    /// What links with a name of keys lead to.
    keys: Vec<Vec<String>>,
}

const LINKS_MAX: usize = 40;

impl Model {
    /// The names of a relative text, or of an absolute one that names the root; `None` for any
    /// other.
    fn names(&self, text: &str) -> Option<Vec<String>> {
        if text.contains('\0') {
            return None;
        }
        let parts = |text: &str| {
            text.split('/')
                .filter(|name| !matches!(*name, "" | "."))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let names = parts(text);
        if !text.starts_with('/') {
            return Some(names);
        }
        self.roots.iter().find_map(|root| {
            names
                .strip_prefix(parts(root).as_slice())
                .map(<[_]>::to_vec)
        })
    }

    /// The end of a path to read, with links followed.
    fn read(&self, text: &str) -> Option<(Vec<String>, &Node)> {
        let mut todo: Vec<String> = self.names(text)?.into_iter().rev().collect();
        let mut here = Vec::new();
        let mut links = 0;
        while let Some(name) = todo.pop() {
            if self.nodes.get(&here)? != &Node::Folder {
                return None;
            }
            if name == ".." {
                here.pop()?;
                continue;
            }
            here.push(name);
            if let Node::Link(target) = self.nodes.get(&here)? {
                links += 1;
                here.pop();
                if links > LINKS_MAX {
                    return None;
                }
                if target.starts_with('/') {
                    here.clear();
                }
                todo.extend(self.names(target)?.into_iter().rev());
            }
        }
        let node = self.nodes.get(&here)?;
        Some((here, node))
    }

    /// The path that a write changes, by its text alone and without links.
    fn written(&self, text: &str) -> Option<Vec<String>> {
        // An absolute text is normalized before the root is looked up: it may leave the root and
        // return, and the parent of `/` is `/`.
        let names = if text.starts_with('/') {
            let mut plain: Vec<&str> = Vec::new();
            for name in text.split('/').filter(|name| !matches!(*name, "" | ".")) {
                match name {
                    ".." => drop(plain.pop()),
                    _ => plain.push(name),
                }
            }
            self.names(&format!("/{}", plain.join("/")))?
        } else {
            self.names(text)?
        };
        let mut way: Vec<String> = Vec::new();
        for name in names {
            match name.as_str() {
                ".." => drop(way.pop()?),
                _ => way.push(name),
            }
        }
        let folders = (0..way.len()).all(|end| {
            self.nodes
                .get(&way[..end])
                .is_none_or(|node| *node == Node::Folder)
        });
        let free = match self.nodes.get(&way) {
            Some(node) => *node == Node::File && !self.is_of_keys(&way),
            None => true,
        };
        let fits = way.iter().all(|name| name.len() <= 255);
        (folders && free && fits && !refused(&way, true)).then_some(way)
    }

    /// Whether a file is one that a link with a name of keys leads to, or in such a folder.
    fn is_of_keys(&self, way: &[String]) -> bool {
        self.keys.iter().any(|keys| way.starts_with(keys))
    }
}

/// Whether a path holds keys or, for a write, only the user may write it.
fn refused(way: &[String], writes: bool) -> bool {
    way.last().is_some_and(|name| name == ".env") || writes && way.iter().any(|name| name == ".git")
}

fn path(random: &mut SplitMix, roots: &[String]) -> String {
    let mut parts: Vec<String> = Vec::new();
    for _ in 0..1 + random.below(6) {
        parts.push(match random.below(24) {
            0..=4 => "..".to_owned(),
            5 => ".".to_owned(),
            6 => String::new(),
            7 => "x".repeat(255 + random.below(2)),
            8 if random.below(4) == 0 => "nul\0".to_owned(),
            9 if random.below(8) == 0 => "./".repeat(3000),
            10..=15 => NAMES[random.below(4)].to_owned(),
            _ => NAMES[random.below(NAMES.len())].to_owned(),
        });
    }
    let start = match random.below(10) {
        0 => format!("{}/", roots[random.below(roots.len())]),
        1 => "/".to_owned(),
        2 => "//".to_owned(),
        _ => String::new(),
    };
    let end = if random.below(8) == 0 { "/" } else { "" };
    format!("{start}{}{end}", parts.join("/"))
}

struct Ground {
    folder: tempfile::TempDir,
    model: Model,
}

impl Ground {
    fn new(random: &mut SplitMix) -> Self {
        let folder = scratch();
        let real = folder.path().canonicalize().unwrap().join("workspace");
        for place in ["workspace/a/b", "a", "outside"] {
            fs::create_dir_all(folder.path().join(place)).unwrap();
        }
        for place in ["a/f", "outside/f", "f"] {
            fs::write(folder.path().join(place), "OUTSIDE").unwrap();
        }
        let roots = [real.to_str().unwrap().to_owned(), "/workspace".to_owned()];
        for _ in 0..30 {
            let name = NAMES[random.below(NAMES.len())];
            let at = real.join(["", "a", "a/b"][random.below(3)]).join(name);
            if fs::symlink_metadata(&at).is_ok() {
                continue;
            }
            match random.below(4) {
                0 => fs::create_dir(&at).unwrap(),
                // What a link `.git` leads to is protected by rules of its own.
                1 if name != ".git" => {
                    let target = path(random, &roots);
                    if symlink(&target, &at).is_err() {
                        continue; // too long, or a NUL byte
                    }
                }
                _ => fs::write(&at, "").unwrap(),
            }
        }
        let mut model = Model {
            nodes: BTreeMap::from([(Vec::new(), Node::Folder)]),
            roots,
            keys: Vec::new(),
        };
        for (way, at) in walk(&real) {
            let meta = fs::symlink_metadata(&at).unwrap();
            let node = if meta.is_symlink() {
                if refused(&way, false)
                    && let Some(keys) = inside(&real, &at)
                    && !way.starts_with(&keys)
                {
                    model.keys.push(keys);
                }
                Node::Link(fs::read_link(&at).unwrap().to_str().unwrap().to_owned())
            } else if meta.is_dir() {
                Node::Folder
            } else {
                // The content of each file names its place.
                fs::write(&at, format!("{way:?} old")).unwrap();
                Node::File
            };
            model.nodes.insert(way, node);
        }
        Self { folder, model }
    }

    fn contents(&self) -> BTreeMap<PathBuf, String> {
        let all = walk(&self.folder.path().canonicalize().unwrap()).into_iter();
        all.filter_map(|(_, at)| {
            Some((
                at.clone(),
                fs::symlink_metadata(&at)
                    .ok()?
                    .is_file()
                    .then(|| fs::read_to_string(&at).unwrap())?,
            ))
        })
        .collect()
    }
}

fn walk(folder: &Path) -> Vec<(Vec<String>, PathBuf)> {
    let mut found = Vec::new();
    let mut todo = vec![(Vec::new(), folder.to_owned())];
    while let Some((way, folder)) = todo.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let way: Vec<String> =
                [way.as_slice(), &[entry.file_name().into_string().unwrap()]].concat();
            if entry.file_type().unwrap().is_dir() {
                todo.push((way.clone(), entry.path()));
            }
            found.push((way, entry.path()));
        }
    }
    found
}

/// Where a link leads to, by the names below `root`.
fn inside(root: &Path, link: &Path) -> Option<Vec<String>> {
    let real = link.canonicalize().ok()?;
    let names = real.strip_prefix(root).ok()?.iter();
    Some(
        names
            .map(|name| name.to_str().unwrap().to_owned())
            .collect(),
    )
}

async fn call(tool: &Arc<dyn Tool>, arguments: Value) -> Result<String, ToolError> {
    let arguments = RawJson::from_text(arguments.to_string()).unwrap();
    tool.check(&arguments)?;
    // Resolve first, as the executor does: the path shown and approved is the path used.
    let resolved = tool.resolve(&arguments).unwrap_or(arguments);
    assert_eq!(
        tool.resolve(&resolved),
        None,
        "{resolved:?}: a spelling is spelled as itself"
    );
    match tool
        .call(resolved, example_context(CancellationToken::new()))
        .await?
    {
        ToolOutput::Text(text) => Ok(text),
        other => panic!("{other:?}"),
    }
}

fn rounds() -> usize {
    if TestSize::is_long() { 300 } else { 12 }
}

#[tokio::test]
async fn every_text_names_the_path_of_the_call_or_none() {
    let seed = seed("every_text_names_the_path_of_the_call_or_none");
    let mut random = SplitMix(seed);
    let mut read = 0;
    let mut written = 0;
    let mut listed = 0;
    for round in 0..rounds() {
        let ground = Ground::new(&mut random);
        let toolbox = tools::with_sandbox(ground.folder.path().join("workspace"), Mode::None);
        let tool = |name: &str| toolbox.get(name).unwrap().clone();
        let file_read = tool("file_read");
        let file_list = tool("file_list");
        let file_edit = tool("file_edit");
        for _ in 0..100 {
            let path = path(&mut random, &ground.model.roots);
            let what = format!("seed {seed}, round {round}: {path:?}");

            let expected = ground
                .model
                .read(&path)
                .filter(|(way, _)| !refused(way, false));
            let answer = call(&file_read, json!({ "path": path })).await;
            match &expected {
                Some((way, Node::File)) if !ground.model.is_of_keys(way) => {
                    // The given name may be refused as well: `.env` that links to another file.
                    let named = path.trim_end_matches(['/', '.']).ends_with(".env");
                    assert!(
                        named || answer.as_deref() == Ok(&format!("1\t{way:?} old\n")),
                        "{what}: {answer:?}"
                    );
                    read += 1;
                }
                _ => assert!(answer.is_err(), "{what}: {answer:?}"),
            }
            let answer = call(&file_list, json!({ "path": path })).await;
            assert_eq!(
                answer.is_ok(),
                matches!(expected, Some((_, Node::Folder))),
                "{what}: {answer:?}"
            );
            listed += usize::from(answer.is_ok());
        }
        for at in 0..20 {
            let path = path(&mut random, &ground.model.roots);
            let what = format!("seed {seed}, round {round}, write {at}: {path:?}");
            let before = ground.contents();

            let expected = ground.model.written(&path);
            let new = expected
                .as_ref()
                .is_some_and(|way| !ground.model.nodes.contains_key(way));
            let arguments = json!({ "path": path, "old_text": if new { "" } else { " old" }, "new_text": " new" });
            let answer = call(&file_edit, arguments).await;

            let after = ground.contents();
            let changed: Vec<&PathBuf> = after
                .iter()
                .filter(|(at, text)| before.get(*at) != Some(text))
                .map(|(at, _)| at)
                .collect();
            assert!(
                before.keys().all(|at| after.contains_key(at)),
                "{what}: nothing goes"
            );
            let Some(way) = expected else {
                assert!(
                    answer.is_err() && changed.is_empty(),
                    "{what}: {answer:?} {changed:?}"
                );
                continue;
            };
            let place = way.iter().fold(
                Path::new(&ground.model.roots[0]).to_owned(),
                |place, name| place.join(name),
            );
            assert!(
                answer.is_ok() && changed == [&place],
                "{what}: {answer:?} {changed:?}"
            );
            written += 1;
            // Restore the state that the model knows.
            match before.get(&place) {
                Some(text) => fs::write(&place, text).unwrap(),
                None => {
                    fs::remove_file(&place).unwrap();
                    let made = (0..way.len())
                        .rev()
                        .map(|end| &way[..end])
                        .take_while(|way| !ground.model.nodes.contains_key(*way));
                    for folder in made {
                        fs::remove_dir(
                            folder
                                .iter()
                                .fold(Path::new(&ground.model.roots[0]).to_owned(), |at, name| {
                                    at.join(name)
                                }),
                        )
                        .unwrap();
                    }
                }
            }
        }
    }
    // A minimum of the texts must name something, or the test would prove nothing.
    assert!(
        read > 0 && written > rounds() && listed > rounds(),
        "seed {seed}: {read} read, {written} written, {listed} listed"
    );
}
