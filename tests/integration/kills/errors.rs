//! The nth call of the operating system fails: `run` is traced, and one of its calls on the
//! database, or the start of one of its threads and processes, gets an error. Every n in turn with
//! `CALLBOARD_LONG=1`, else a few of them.

use std::{collections::HashMap, process::Command};

use callboard_actors::testing::TestSize;

use super::{Broken, alive, checker, commands, has_sandbox, lines, model};
use crate::{
    cli::{Home, Ran, wait_for},
    support::{SplitMix, seed, skipped},
};

/// Calls that fail, with their error, and whether only those on the database do.
const ERRORS: [(&str, &str, bool); 7] = [
    ("fsync", "EIO", true),
    ("pwrite64", "ENOSPC", true),
    ("pwrite64", "EIO", true),
    ("pread64", "EIO", true),
    ("ftruncate", "EIO", true),
    ("openat", "EMFILE", true),
    ("clone3", "EAGAIN", false),
];

/// How many n of each fault are tried in the short form.
const TRIED: usize = 2;

fn has_strace(test: &str) -> bool {
    let found = Command::new("strace").arg("--version").output().is_ok();
    if !found {
        skipped(test, "strace is not installed");
    }
    found
}

/// One fault, or none.
struct Fault {
    call: &'static str,
    error: &'static str,
    on_database: bool,
    nth: Option<usize>,
}

impl Fault {
    /// Runs a command with the fault. Returns how often one thread made the call at most.
    fn run(&self, home: &Home, args: &[&str]) -> (Ran, usize) {
        let log = home.path().join("strace");
        let database = home.path().join("home/.local/share/callboard/callboard.db");
        let mut traced = vec!["-f".to_owned(), "-qq".into(), "--signal=none".into()];
        traced.extend(["-o".into(), log.display().to_string()]);
        traced.push(format!("--trace={}", self.call));
        if let Some(nth) = self.nth {
            let (call, error) = (self.call, self.error);
            traced.push(format!("--inject={call}:error={error}:when={nth}"));
        }
        for end in ["", "-wal", "-shm"].iter().filter(|_| self.on_database) {
            traced.push(format!("--trace-path={}{end}", database.display()));
        }
        let plain = home.command(args);
        let mut command = Command::new("strace");
        command.args(traced).arg(plain.get_program()).args(args);
        command
            .current_dir(home.work())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        home.dress(&mut command);
        let ran = Ran::of(args, command.spawn().unwrap());
        let mut of_a_thread: HashMap<String, usize> = HashMap::new();
        for line in lines(&log) {
            if let Some((thread, rest)) = line.split_once(' ')
                && rest.trim_start().starts_with(self.call)
            {
                *of_a_thread.entry(thread.to_owned()).or_default() += 1;
            }
        }
        (ran, of_a_thread.into_values().max().unwrap_or(0))
    }
}

/// The calls to try: all from `first` to `most`, or a few of them.
fn chosen(first: usize, most: usize, random: &mut SplitMix) -> Vec<usize> {
    let all = (most + 1).saturating_sub(first);
    if TestSize::is_long() {
        return (first..=most).collect();
    }
    let tried = TestSize::pick(1, TRIED, TRIED);
    (0..tried.min(all))
        .map(|_| first + random.below(all))
        .collect()
}

/// The first thread that is not one of the runtime's workers. Tokio has no way to learn that a worker
/// does not start, so the program tries out as many threads before; a single failure after that
/// is beyond it.
fn first_of_ours() -> usize {
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    2 * workers + 2
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_of_the_nth_call_of_disk_or_spawner_loses_and_doubles_nothing() {
    let test = "an_error_of_the_nth_call_of_disk_or_spawner_loses_and_doubles_nothing";
    if !has_strace(test) || !has_sandbox(&Home::new(), test) {
        return;
    }
    let mut random = SplitMix(seed("nth-error"));
    let broken = Broken::default();
    let mark = format!("{}.{}", 6_000 + random.below(1_000), std::process::id());
    let model = model::start(mark.clone(), broken.clone()).await;
    let url = model.url();
    let common = commands::run_args(&url);
    let first = model::prompt("first", "bash");
    let args = [&common[..], &[first.as_str()]].concat();
    let second = model::prompt("second", "text");
    let again = [&common[..], &[second.as_str()]].concat();
    let resumed = [&common[..], &["--resume"]].concat();

    let (mut tried, mut failed) = (0, 0);
    // A usual run tries two calls on the disk, other ones each time, and the start of a process.
    let [disk @ .., spawner] = &ERRORS;
    let from = random.below(disk.len());
    let disk = (disk.iter().cycle().skip(from)).take(TestSize::pick(2, disk.len(), disk.len()));
    for &(call, error, on_database) in disk.chain([spawner]) {
        let mut fault = Fault {
            call,
            error,
            on_database,
            nth: None,
        };
        let (well, most) = fault.run(&Home::new(), &args);
        broken.check(well.code == Some(0) && most > 0, || {
            format!("{call}: {most} {well:?}")
        });
        let first_call = if on_database { 1 } else { first_of_ours() };
        for nth in chosen(first_call, most, &mut random) {
            let home = Home::new();
            let what = format!("{call} {nth} of {most}: {error}");
            fault.nth = Some(nth);
            let (ran, _) = fault.run(&home, &args);
            tried += 1;
            failed += usize::from(ran.code != Some(0));
            // Tokio panics where its pool cannot start a thread: one line of the log.
            let whys = [
                "error:",
                "{\"level\":\"ERROR\",\"message\":\"OS can't spawn",
            ];
            let says_why =
                (ran.err.lines()).any(|line| whys.iter().any(|why| line.starts_with(why)));
            broken.check(ran.code == Some(0) || says_why, || {
                format!("{what}: {ran:?}")
            });
            let answered = ran.out.contains(&model::answer("first"));
            broken.check(ran.code != Some(0) || answered, || {
                format!("{what}: {ran:?}")
            });

            let stored = commands::opened(&home, &first);
            broken.check(!answered || stored, || {
                format!("{what}: the answer is not stored")
            });
            if stored && !answered {
                home.run(&resumed);
            }
            let next = home.run(&again);
            broken.check(next.code == Some(0), || format!("{what}, then {next:?}"));
            let messages = commands::export(&home);
            let texts: Vec<&str> = messages.iter().flat_map(model::texts).collect();
            let count = |wanted: &str| texts.iter().filter(|text| **text == wanted).count();
            let prompts = (count(&first), count(&second));
            broken.check(prompts == (usize::from(stored), 1), || {
                format!("{what}: the session has the prompts {prompts:?} times")
            });
            let starts = lines(&home.work().join("starts"));
            checker::check_starts(&starts, std::slice::from_ref(&messages), &broken);
        }
    }
    wait_for("the end of all processes", || alive(&mark) == 0);
    let story = format!("{tried} errors, {failed} of them ended the command");
    println!("{story}");
    broken.none(&story);
}
