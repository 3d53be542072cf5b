//! The module graph of a package, read from its text, and the cycles in it.
//!
//! A node is a child of a folder: a file, or a folder with all that is below it. An edge is a path in code that is compiled into the
//! library (`use` trees and paths in bodies), counted in the folder where its two ends part. A name that a module only re-exports or
//! imports counts as an edge to the file that defines it; `mod` lines and `pub use` are no edges. A folder's own `mod.rs` is no node:
//! it is made of its children, and they may use what it defines, as privacy has it.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Kind, Source};

/// A module by the segments of its path, without `crate`.
type Path = Vec<String>;

struct Module {
    file: String,
    /// Names that come from elsewhere, with the path they stand for.
    imports: BTreeMap<String, Path>,
    globs: Vec<Path>,
    /// Paths that its code names, with their lines.
    uses: Vec<(usize, Path)>,
}

/// What one node of a folder needs of another, with the first place that says so.
type Edges = BTreeMap<(String, String), String>;

/// The graph of one package.
pub struct Graph {
    modules: BTreeMap<Path, Module>,
}

/// A set of nodes of one folder that need each other, with a way around.
#[derive(Debug)]
pub struct Cycle {
    pub folder: String,
    pub nodes: BTreeSet<String>,
    pub way: Vec<String>,
}

impl Graph {
    /// Reads the files of a package whose sources are below `root`, as paths and texts.
    pub fn of(root: &str, files: &[(String, String)]) -> Self {
        let mut modules = BTreeMap::new();
        let mut sources = Vec::new();
        for (file, text) in files {
            let Some(inner) = file
                .strip_prefix(root)
                .and_then(|file| file.strip_prefix('/')?.strip_suffix(".rs"))
            else {
                continue;
            };
            let source = Source::of(file, text);
            if source.is_test(1) && source.is_test(text.lines().count().max(1)) {
                continue;
            }
            let mut path: Path = inner.split('/').map(str::to_owned).collect();
            if path.last().is_some_and(|last| last == "mod") || inner == "lib" {
                path.pop();
            }
            modules.insert(
                path.clone(),
                Module {
                    file: file.clone(),
                    imports: BTreeMap::new(),
                    globs: Vec::new(),
                    uses: Vec::new(),
                },
            );
            sources.push((path, source));
        }
        let known: BTreeSet<Path> = modules.keys().cloned().collect();
        for (path, source) in sources {
            let Some(module) = modules.get_mut(&path) else {
                continue;
            };
            let tokens = source.tokens();
            for token in tokens.iter().filter(|token| !source.is_test(token.line)) {
                let Some(absolute) = absolute(&path, &token.path, &known) else {
                    continue;
                };
                if token.kind == Kind::Import {
                    match absolute.last().map(String::as_str) {
                        Some("*") => module.globs.push(absolute[..absolute.len() - 1].to_vec()),
                        Some(last) => {
                            let name = token.alias.clone().unwrap_or_else(|| last.to_owned());
                            module.imports.insert(name, absolute.clone());
                        }
                        None => {}
                    }
                }
                if !token.is_exported {
                    module.uses.push((token.line, absolute));
                }
            }
        }
        Self { modules }
    }

    /// The module whose file defines what a path names.
    fn defines(&self, path: &[String], depth: usize) -> Path {
        let mut at = Path::new();
        for (done, segment) in path.iter().enumerate() {
            let mut child = at.clone();
            child.push(segment.clone());
            if self.modules.contains_key(&child) {
                at = child;
                continue;
            }
            let Some(module) = self.modules.get(&at).filter(|_| depth < 8) else {
                return at;
            };
            let rest = &path[done + 1..];
            let onward =
                |target: &Path| self.defines(&[target.as_slice(), rest].concat(), depth + 1);
            return match module.imports.get(segment) {
                Some(target) => onward(target),
                None => at,
            };
        }
        at
    }

    /// The edges in each folder.
    fn edges(&self) -> BTreeMap<Path, Edges> {
        let mut folders: BTreeMap<Path, Edges> = BTreeMap::new();
        for (from, module) in self
            .modules
            .iter()
            .filter(|(from, _)| !from.is_empty() && **from != ["main"])
        {
            for (line, used) in &module.uses {
                let to = self.defines(used, 0);
                if to == *from || to.is_empty() {
                    continue;
                }
                let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
                let (Some(from_node), Some(to_node)) = (from.get(shared), to.get(shared)) else {
                    continue;
                };
                let place = format!("{}:{line} `{}`", module.file, used.join("::"));
                folders
                    .entry(from[..shared].to_vec())
                    .or_default()
                    .entry((from_node.clone(), to_node.clone()))
                    .or_insert(place);
            }
        }
        folders
    }

    /// All cycles: the largest sets of nodes of a folder in which each reaches each.
    pub fn cycles(&self) -> Vec<Cycle> {
        let mut cycles = Vec::new();
        for (folder, edges) in self.edges() {
            let nodes: BTreeSet<&String> = edges.keys().flat_map(|(from, to)| [from, to]).collect();
            let reach: BTreeMap<&String, BTreeSet<&String>> = nodes
                .iter()
                .map(|node| (*node, reached(node, &edges)))
                .collect();
            let mut seen = BTreeSet::new();
            for node in nodes {
                let circle: BTreeSet<&String> = reach[node]
                    .iter()
                    .filter(|other| reach[**other].contains(node))
                    .copied()
                    .collect();
                if circle.is_empty() || !seen.insert(circle.clone()) {
                    continue;
                }
                let way = around(node, &circle, &edges);
                cycles.push(Cycle {
                    folder: folder.join("/"),
                    nodes: circle.into_iter().cloned().collect(),
                    way,
                });
            }
        }
        cycles
    }
}

/// What a node needs, directly or through others.
fn reached<'e>(from: &'e String, edges: &'e Edges) -> BTreeSet<&'e String> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(node) = open.pop() {
        open.extend(
            edges
                .keys()
                .filter(|(a, _)| a == node)
                .map(|(_, b)| b)
                .filter(|b| reached.insert(*b)),
        );
    }
    reached
}

/// A shortest way from a node around to itself, one line an edge.
fn around(start: &String, circle: &BTreeSet<&String>, edges: &Edges) -> Vec<String> {
    let mut ways: Vec<Vec<(&String, &String)>> = edges
        .keys()
        .filter(|(a, b)| a == start && circle.contains(b))
        .map(|(a, b)| vec![(a, b)])
        .collect();
    loop {
        if let Some(way) = ways
            .iter()
            .find(|way| way.last().is_some_and(|(_, end)| *end == start))
        {
            return way
                .iter()
                .map(|(a, b)| format!("{a} -> {b} ({})", edges[&((*a).clone(), (*b).clone())]))
                .collect();
        }
        let longer: Vec<_> = ways
            .iter()
            .flat_map(|way| {
                let end = way.last().map(|(_, end)| *end);
                let onward = edges
                    .keys()
                    .filter(move |(a, b)| Some(a) == end && circle.contains(b));
                onward
                    .filter(|(_, b)| b == start || !way.iter().any(|(a, _)| *a == b))
                    .map(|(a, b)| [way.as_slice(), &[(a, b)]].concat())
            })
            .collect();
        if longer.is_empty() {
            return Vec::new();
        }
        ways = longer;
    }
}

/// A path of the package without `crate`, or nothing for one that leads elsewhere.
fn absolute(module: &Path, path: &str, known: &BTreeSet<Path>) -> Option<Path> {
    let segments: Vec<&str> = path.split("::").collect();
    let mut base = module.clone();
    let rest = match segments.first().copied()? {
        "crate" => {
            base.clear();
            &segments[1..]
        }
        "self" => &segments[1..],
        "super" => {
            let ups = segments
                .iter()
                .take_while(|segment| **segment == "super")
                .count();
            base.truncate(base.len().checked_sub(ups)?);
            &segments[ups..]
        }
        // A child of this module; a lone word is more often a variable of that name.
        first
            if segments.len() > 1
                && known.contains(&[base.as_slice(), &[first.to_owned()]].concat()) =>
        {
            &segments[..]
        }
        _ => return None,
    };
    let path: Path = base
        .into_iter()
        .chain(rest.iter().map(|segment| (*segment).to_owned()))
        .collect();
    Some(path).filter(|_| !rest.is_empty()) // `pub(super)` names nothing.
}
