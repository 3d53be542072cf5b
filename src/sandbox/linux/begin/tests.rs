use std::{collections::BTreeMap, fs, io::Write};

use callboard_actors::ports::{Exec, ExecLimits, Sandbox};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::sandbox::{PathRules, exec::Spawner, fs::Root, linux::Linux, toolchains::Toolchains};

/// Moments in the begin of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Point {
    Asked,
    Searched,
    Made,
}

type Hook = Box<dyn FnMut(Point) + Send>;

static HOOKS: Mutex<BTreeMap<PathBuf, Hook>> = Mutex::new(BTreeMap::new());

/// Does what a test does at this moment, in the place of a command that runs.
pub(super) fn between(root: &Root, point: Point) {
    let path = root.real_path();
    let hook = HOOKS.lock().remove(path);
    if let Some(mut hook) = hook {
        hook(point);
        HOOKS.lock().entry(path.to_owned()).or_insert(hook);
    }
}

struct Fixture {
    folder: tempfile::TempDir,
    sandbox: Linux,
    root: Arc<Root>,
}

impl Fixture {
    /// A workspace with two folders, the first with keys; `None` where bubblewrap does not work.
    fn new(test: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        for path in ["work/node_modules/d", "work/node_modules/s", "aside"] {
            fs::create_dir_all(folder.path().join(path)).unwrap();
        }
        fs::write(folder.path().join("work/node_modules/d/.env"), "KEY=needle").unwrap();
        let root = Root::open(folder.path().join("work"), PathRules::default()).unwrap();
        let root = Arc::new(root);
        let spawner = Spawner::start().unwrap();
        let limits = ExecLimits::default();
        match Linux::probe(root.clone(), &spawner, Toolchains::default(), limits) {
            Ok(sandbox) => Some(Self {
                folder,
                sandbox,
                root,
            }),
            Err(error) => {
                writeln!(std::io::stderr(), "SKIPPED: {test}: {error}").unwrap();
                None
            }
        }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn hook(&self, hook: impl FnMut(Point) + Send + 'static) {
        let path = self.root.real_path().to_owned();
        HOOKS.lock().insert(path, Box::new(hook));
    }

    async fn run(&self, command: &str) -> Result<ExecResult, SandboxError> {
        self.sandbox
            .exec(Exec::new(command), CancellationToken::new())
            .await
    }

    /// Starts a command that runs until there is a file `end`.
    async fn beside(&self) -> tokio::task::JoinHandle<Result<ExecResult, SandboxError>> {
        let command = "touch begun; while [ ! -e end ]; do sleep 0.01; done";
        let sandbox = self.sandbox.clone();
        let task = tokio::spawn(async move {
            sandbox
                .exec(Exec::new(command), CancellationToken::new())
                .await
        });
        while !self.at("work/begun").exists() {
            tokio::task::yield_now().await;
        }
        task
    }

    fn end(&self) {
        fs::write(self.at("work/end"), "").unwrap();
    }
}

fn exchange(one: &Path, two: &Path) {
    let (cwd, how) = (rustix::fs::CWD, rustix::fs::RenameFlags::EXCHANGE);
    rustix::fs::renameat_with(cwd, one, cwd, two, how).unwrap();
}

const READ: &str = "cat node_modules/*/.env 2>/dev/null; echo began";

#[tokio::test(flavor = "multi_thread")]
async fn keys_in_a_folder_that_moves_between_the_search_and_the_mounts_stay_hidden() {
    let test = "keys_in_a_folder_that_moves_between_the_search_and_the_mounts_stay_hidden";
    let Some(fixture) = Fixture::new(test) else {
        return;
    };
    let beside = fixture.beside().await;
    let (one, two) = (
        fixture.at("work/node_modules/d"),
        fixture.at("work/node_modules/s"),
    );
    let tries = Arc::new(Mutex::new(0));
    let count = tries.clone();
    fixture.hook(move |point| {
        let tries = &mut *count.lock();
        *tries += u32::from(point == Point::Asked);
        // The mount is made over the other file of that name, and both are exchanged again.
        if *tries == 1 && matches!(point, Point::Searched | Point::Made) {
            fs::write(two.join(".env"), "").unwrap();
            exchange(&one, &two);
        }
    });

    let result = fixture.run(READ).await.unwrap();

    assert_eq!((result.stdout.as_str(), *tries.lock()), ("began\n", 2));
    fixture.end();
    beside.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_search_misses_because_of_a_command_that_ends_meanwhile_is_searched_for_again() {
    let test =
        "what_a_search_misses_because_of_a_command_that_ends_meanwhile_is_searched_for_again";
    let Some(fixture) = Fixture::new(test) else {
        return;
    };
    let beside = fixture.beside().await;
    let (keys, aside) = (fixture.at("work/node_modules/d"), fixture.at("aside/d"));
    let end = fixture.at("work/end");
    let beside = Arc::new(Mutex::new(Some(beside)));
    let ends = beside.clone();
    let mut is_first = true;
    fixture.hook(move |point| {
        match point {
            Point::Asked if is_first => fs::rename(&keys, &aside).unwrap(),
            Point::Made if is_first => {
                is_first = false;
                fs::rename(&aside, &keys).unwrap();
                fs::write(&end, "").unwrap();
                let task = ends.lock().take().unwrap();
                while !task.is_finished() {
                    std::thread::yield_now();
                }
            }
            _ => {}
        };
    });

    let result = fixture.run(READ).await.unwrap();

    assert_eq!(result.stdout, "began\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn beside_a_command_that_never_stops_moving_folders_none_begins_and_one_line_says_why() {
    let test = "beside_a_command_that_never_stops_moving_folders_none_begins_and_one_line_says_why";
    let Some(fixture) = Fixture::new(test) else {
        return;
    };
    let beside = fixture.beside().await;
    let mut place = fixture.at("work/node_modules/d");
    let mut count = 0;
    fixture.hook(move |point| {
        if point == Point::Searched {
            count += 1;
            let next = place.with_file_name(format!("d{count}"));
            fs::rename(&place, &next).unwrap();
            place = next;
        }
    });

    let result = fixture.run(READ).await;

    assert_eq!(result, Err(SandboxError::Failed(MOVES.to_owned())));
    fixture.end();
    beside.await.unwrap().unwrap();
}
