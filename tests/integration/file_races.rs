//! Swaps names while tools use them. Nothing outside the workspace is read, listed, written or
//! created, and at least half of the tries succeed. Each test makes 1,250 tries, 250 for each
//! kind of swap; 5,000 with `CALLBOARD_GATE=1`, and 100,000 with `CALLBOARD_LONG=1`.

use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

use callboard::{
    chat::RawJson,
    ports::{Tool, ToolOutput, erased},
    sandbox::{Mode, PathRules, Root},
    tool::ToolErrorType,
    tools::{
        self,
        memory::{Memory, Quota},
    },
};
use callboard_actors::testing::TestSize;
use callboard_actors::testing::contract::example_context;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::support::scratch;

/// Tries in one workspace; a new one keeps folders small.
const BATCH: u64 = 1000;

/// Tries of each of the five kinds of swap.
fn tries() -> u64 {
    TestSize::pick(BATCH / 8, BATCH / 2, 20 * BATCH)
}

/// Which names are swapped.
#[derive(Debug, Clone, Copy)]
enum Swap {
    /// The file's folder and a link to a folder outside, exchanged in one step.
    Folder,
    /// Like [`Swap::Folder`], with a relative link.
    FolderByRelativeLink,
    /// The parent of the file's folder, and a link.
    Parent,
    /// The file and a link to a file outside.
    File,
    /// The folder is renamed away, a link takes its name, and back. Between the steps the name does
    /// not exist.
    InSteps,
}

const SWAPS: [Swap; 5] = [
    Swap::Folder,
    Swap::FolderByRelativeLink,
    Swap::Parent,
    Swap::File,
    Swap::InSteps,
];

struct Ground {
    folder: tempfile::TempDir,
    before: BTreeMap<PathBuf, String>,
}

impl Ground {
    /// Creates `workspace/top/dir/file`, and the same names and one more outside.
    fn new(swap: Swap) -> Self {
        let folder = scratch();
        let inside = folder.path().join("workspace");
        let outside = folder.path().join("outside");
        for (root, text) in [(&inside, "INSIDE 0\n"), (&outside, "OUTSIDE 0\n")] {
            fs::create_dir_all(root.join("top/dir")).unwrap();
            fs::write(root.join("top/dir/file"), text).unwrap();
        }
        fs::write(outside.join("top/dir/only-outside"), "OUTSIDE").unwrap();
        let (name, link) = Self::names(swap);
        let target = match swap {
            Swap::FolderByRelativeLink => Path::new("../../outside").join(name),
            _ => outside.join(name),
        };
        symlink(target, inside.join(link)).unwrap();
        let before = tree(&outside);
        Self { folder, before }
    }

    /// The swapped name, and the link's own place in the workspace.
    fn names(swap: Swap) -> (&'static str, &'static str) {
        match swap {
            Swap::Folder | Swap::FolderByRelativeLink | Swap::InSteps => ("top/dir", "top/link"),
            Swap::Parent => ("top", "link"),
            Swap::File => ("top/dir/file", "top/dir/link"),
        }
    }

    fn workspace(&self) -> PathBuf {
        self.folder.path().join("workspace")
    }

    fn assert_untouched(&self) {
        assert_eq!(tree(&self.folder.path().join("outside")), self.before);
        assert_eq!(
            fs::read_dir(self.folder.path()).unwrap().count(),
            2,
            "nothing was made beside the workspace"
        );
    }
}

fn tree(folder: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(tree(&path));
        } else {
            found.insert(path.clone(), fs::read_to_string(&path).unwrap());
        }
    }
    found
}

/// Swaps as fast as possible until `stop` is set.
fn swap(workspace: &Path, swap: Swap, stop: &AtomicBool, swaps: &AtomicU64) {
    let (name, link) = Ground::names(swap);
    let name = workspace.join(name);
    let link = workspace.join(link);
    let is_link = |path: &Path| fs::symlink_metadata(path).is_ok_and(|meta| meta.is_symlink());
    let target = fs::read_link(&link).unwrap();
    let mut junk = 0;
    // Stops in the initial state, in which the name is not a link.
    while !stop.load(Ordering::Relaxed) || is_link(&name) {
        match swap {
            Swap::InSteps => {
                // A tool that creates missing folders may have created this one between the steps;
                // it lies inside too.
                let aside = workspace.join("top/aside");
                fs::rename(&name, &aside).unwrap();
                while symlink(&target, &name).is_err() {
                    junk += 1;
                    let _ = fs::rename(&name, workspace.join(format!("top/junk-{junk}")));
                }
                fs::remove_file(&name).unwrap();
                while fs::rename(&aside, &name).is_err() {
                    junk += 1;
                    let _ = fs::rename(&name, workspace.join(format!("top/junk-{junk}")));
                }
            }
            _ => {
                renameat_with(CWD, &name, CWD, &link, RenameFlags::EXCHANGE).unwrap();
                // An edit may have replaced the link by the file to be written. That file lies
                // inside, and the race continues.
                if !is_link(&name) && !is_link(&link) {
                    fs::remove_file(&link).unwrap();
                    symlink(&target, &link).unwrap();
                }
            }
        }
        swaps.fetch_add(1, Ordering::Relaxed);
    }
}

struct Tally {
    tries: u64,
    done: u64,
    swaps: u64,
}

/// Calls a tool repeatedly during the swaps. `arguments` returns the arguments of the nth try;
/// `inside` is what a successful result must contain.
fn race(
    kind: Swap,
    tool_name: &str,
    inside: &str,
    mut arguments: impl FnMut(u64, Option<&str>) -> Value,
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let start = Instant::now();
    let mut tally = Tally {
        tries: 0,
        done: 0,
        swaps: 0,
    };
    while tally.tries < tries() {
        let ground = Ground::new(kind);
        let tool = tool(&ground, tool_name);
        let stop = Arc::new(AtomicBool::new(false));
        let swaps = Arc::new(AtomicU64::new(0));
        let swapper = std::thread::spawn({
            let workspace = ground.workspace();
            let stop = stop.clone();
            let swaps = swaps.clone();
            move || swap(&workspace, kind, &stop, &swaps)
        });
        let mut last = None;
        for at in 0..BATCH.min(tries()) {
            let text = RawJson::from_text(arguments(at, last.as_deref()).to_string()).unwrap();
            let answer =
                runtime.block_on(tool.call(text, example_context(CancellationToken::new())));
            tally.tries += 1;
            tally.done += u64::from(answer.is_ok());
            let text = match answer {
                Ok(ToolOutput::Text(text)) => {
                    assert!(
                        text.contains(inside),
                        "{kind:?} {tool_name} try {at}: {text}"
                    );
                    text
                }
                Ok(other) => panic!("{other:?}"),
                Err(error) => {
                    assert_ne!(error.kind, ToolErrorType::InternalError, "{error}");
                    error.message
                }
            };
            assert!(
                !text.contains("OUTSIDE") && !text.contains("only-outside"),
                "{kind:?} {tool_name} try {at}: {text}"
            );
            assert!(
                !text.contains(ground.folder.path().to_str().unwrap()),
                "{kind:?} {tool_name} try {at}: {text}"
            );
            last = Some(text);
        }
        stop.store(true, Ordering::Relaxed);
        swapper.join().unwrap();
        tally.swaps += swaps.load(Ordering::Relaxed);
        ground.assert_untouched();
    }
    let Tally { tries, done, swaps } = tally;
    let took = start.elapsed().as_millis();
    // Writes to the stream itself: the harness hides what a passing test prints.
    let mut stderr = std::io::stderr();
    writeln!(stderr, "note: {tool_name} {kind:?}: {tries} tries, {done} done, {swaps} swaps, 0 escapes, {took} ms").unwrap();
    assert!(
        done * 2 >= tries,
        "{kind:?} {tool_name}: {done} of {tries} tries succeeded beside {swaps} swaps"
    );
    assert!(
        swaps >= tries / 10,
        "{kind:?} {tool_name}: the race was run: {swaps} swaps in {tries} tries"
    );
}

fn tool(ground: &Ground, name: &str) -> Arc<dyn Tool> {
    if name == "memory" {
        let root = Root::private(ground.workspace(), PathRules::default()).unwrap();
        return erased(Memory::new(
            Arc::new(root),
            Quota {
                files: 100_000,
                ..Quota::default()
            },
        ));
    }
    tools::with_sandbox(ground.workspace(), Mode::None)
        .get(name)
        .unwrap()
        .clone()
}

#[test]
fn reading_beside_swaps_shows_nothing_from_outside() {
    for kind in SWAPS {
        race(
            kind,
            "file_read",
            "INSIDE",
            |_, _| json!({ "path": "top/dir/file" }),
        );
    }
}

#[test]
fn listing_beside_swaps_shows_nothing_from_outside() {
    for kind in SWAPS {
        race(
            kind,
            "file_list",
            "file",
            |_, _| json!({ "path": "top/dir", "depth": 3 }),
        );
    }
}

#[test]
fn searching_beside_swaps_shows_nothing_from_outside() {
    for kind in SWAPS {
        let path = if matches!(kind, Swap::File) {
            "top/dir/file"
        } else {
            "top/dir"
        };
        race(
            kind,
            "grep_search",
            "INSIDE",
            |_, _| json!({ "path": path, "pattern": "SIDE" }),
        );
    }
}

#[test]
fn walking_the_whole_workspace_beside_swaps_shows_nothing_from_outside() {
    for kind in SWAPS {
        race(kind, "grep_search", "", |_, _| json!({ "pattern": "SIDE" }));
        race(kind, "file_list", "", |_, _| json!({ "glob": "**/*" }));
    }
}

#[test]
fn editing_beside_swaps_changes_nothing_outside() {
    for kind in SWAPS {
        let mut old = 0;
        race(
            kind,
            "file_edit",
            "changed 1 place in top/dir/file",
            |_, last| {
                if last
                    .is_some_and(|last| last.starts_with("changed") || last.contains("not found"))
                {
                    old = 1 - old;
                }
                json!({ "path": "top/dir/file", "old_text": format!("SIDE {old}"), "new_text": format!("SIDE {}", 1 - old) })
            },
        );
    }
}

#[test]
fn creating_beside_swaps_makes_nothing_outside() {
    for kind in [
        Swap::Folder,
        Swap::FolderByRelativeLink,
        Swap::Parent,
        Swap::InSteps,
    ] {
        race(
            kind,
            "file_edit",
            "created top/dir/sub/new",
            |at, _| json!({ "path": format!("top/dir/sub/new-{at}"), "old_text": "", "new_text": "made" }),
        );
    }
}

#[test]
fn remembering_beside_swaps_reads_and_writes_nothing_outside() {
    for kind in SWAPS {
        race(kind, "memory", "", |at, _| match at % 3 {
            0 => json!({ "action": "write", "path": "top/dir/file", "content": "INSIDE" }),
            1 => json!({ "action": "view", "path": "top/dir/file" }),
            _ => json!({ "action": "view" }),
        });
    }
}
