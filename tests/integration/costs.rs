//! Costs that must not grow unnoticed: instructions per round and per token, and memory of a host
//! that creates and deletes conversations.
//!
//! Valgrind counts the instructions of a separate process with one thread and paused time, so the
//! counts do not depend on the machine's load. The difference of two runs of different lengths
//! cancels out the start. The build is that of the tests, where this project's own code is not
//! optimized, so each bound is several times the cost of a release build (`cargo bench --bench turn -- count N` under
//! callgrind). The bounds are an alarm for regressions: 30 % above the count at the time they were
//! set, so that a change for readability does not trip them.

use std::{
    io::Write as _,
    process::{Command, Stdio},
    time::Duration,
};

#[path = "../../benches/churn/made_and_deleted.rs"]
mod made_and_deleted;
#[path = "../../benches/turn/mod.rs"]
mod reference;

use callboard_actors::testing::TestSize;

use reference::{Wire, fed, forgetful, ours, process, scripted};

/// Thousands of instructions of the reference round in process: 1,797 were counted, and 30 %. In an
/// optimized build, the whole round takes 300.
const TURN_MAX: f64 = 2340.0;

/// Cost of the 300th round relative to the first ones. The margin covers the noise of hash tables
/// only: copying the handles of the history with each user message would add 14 %.
const LATE_MAX: f64 = 1.03;

/// Instructions per token in bursts of 16, from the parser to a subscriber that wakes for each;
/// 4,423 and 4,402 were counted, and 30 %.
const TOKEN_MAX: [(Wire, f64); 2] = [(Wire::Anthropic, 5750.0), (Wire::OpenAi, 5750.0)];

/// Bytes per deleted conversation that may remain, which the allocator has not returned after a
/// short run.
const LEFT_MAX: f64 = 400.0;

/// A copy of this program without debug information, which valgrind would read for longer than it
/// counts.
struct Bare(tempfile::TempDir);

impl Bare {
    /// `None`, with a note on standard error, where valgrind is missing.
    fn new(test: &str) -> Option<Self> {
        if !Command::new("valgrind")
            .arg("--version")
            .stdout(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
        {
            writeln!(
                &mut std::io::stderr(),
                "SKIPPED: {test}: valgrind is not installed"
            )
            .unwrap();
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let this = std::env::current_exe().unwrap();
        let bare = folder.path().join("bare");
        if !Command::new("strip")
            .arg("-o")
            .args([&bare, &this])
            .status()
            .is_ok_and(|status| status.success())
        {
            std::fs::copy(this, bare).unwrap();
        }
        Some(Self(folder))
    }

    /// Instructions of one run of `child_that_is_counted`.
    fn instructions(&self, scene: &str) -> f64 {
        let mut command = Command::new("valgrind");
        // Cachegrind counts as callgrind does, in a third of the time when it simulates no cache.
        command
            .args([
                "--tool=cachegrind",
                "--cache-sim=no",
                "--cachegrind-out-file=/dev/null",
            ])
            .arg(self.0.path().join("bare"));
        command
            .args([
                "--exact",
                "costs::child_that_is_counted",
                "--test-threads=1",
            ])
            .env("CALLBOARD_TEST_COUNT", scene);
        let output = command.current_dir(self.0.path()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{scene}: {stderr}\n{}",
            String::from_utf8_lossy(&output.stdout)
        );
        let counted = stderr
            .lines()
            .find_map(|line| line.split_once("refs:"))
            .unwrap_or_else(|| panic!("{scene}: {stderr}"))
            .1;
        counted.trim().replace(',', "").parse().unwrap()
    }

    /// Instructions of one more repetition of a scene, from the difference of a long and a short
    /// run.
    fn each(&self, scene: &str, few: usize, many: usize) -> f64 {
        let [few_took, many_took] =
            [few, many].map(|count| self.instructions(&format!("{scene} {count}")));
        (many_took - few_took) / (many - few) as f64
    }
}

/// Runs in a child process only, selected by an environment variable.
#[test]
fn child_that_is_counted() {
    let Ok(scene) = std::env::var("CALLBOARD_TEST_COUNT") else {
        return;
    };
    let words: Vec<&str> = scene.split(' ').collect();
    let number = |at: usize| words[at].parse::<usize>().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        match words[0] {
            "turn" => {
                let host =
                    ours::host(ours::model(), std::sync::Arc::new(forgetful::Forgetful)).await;
                let conversation = ours::conversation(
                    &host,
                    reference::turns_before(number(1), &reference::result()),
                )
                .await;
                for _ in 0..number(2) {
                    ours::turn(&conversation).await;
                }
            }
            wire => {
                let wire = if wire == "openai" {
                    Wire::OpenAi
                } else {
                    Wire::Anthropic
                };
                let host = fed::host(wire, number(1), 16, None).await;
                fed::read_answer(&host, number(1)).await;
            }
        }
    });
}

#[test]
fn a_turn_takes_its_instructions_and_no_more_late_in_a_conversation() {
    let Some(bare) = Bare::new("a_turn_takes_its_instructions_and_no_more_late_in_a_conversation")
    else {
        return;
    };

    let early = bare.each("turn 0", 5, 20) / 1000.0;

    println!("thousands of instructions of a turn: {early:.0} early");
    assert!(
        early <= TURN_MAX,
        "a turn takes {early:.0} thousand instructions, {TURN_MAX:.0} are its bound"
    );
    if TestSize::of_this_run() == TestSize::Usual {
        return;
    }

    let late = bare.each("turn 300", 5, 20) / 1000.0;

    println!("thousands of instructions of a turn: {late:.0} late");
    assert!(
        late <= early * LATE_MAX,
        "a turn takes {early:.0} thousand instructions early in a conversation, {late:.0} after 300 others"
    );
}

#[test]
fn a_token_takes_its_instructions() {
    let Some(bare) = Bare::new("a_token_takes_its_instructions") else {
        return;
    };

    let wires = TestSize::pick(1, TOKEN_MAX.len(), TOKEN_MAX.len());
    for (wire, most) in TOKEN_MAX.into_iter().take(wires) {
        let each = bare.each(wire.name(), 1600, 4800);

        println!("instructions of a token, {}: {each:.0}", wire.name());
        assert!(
            each <= most,
            "a token of {} takes {each:.0} instructions, {most:.0} are its bound",
            wire.name()
        );
    }
}

/// Processes that measure before one that grew counts: the allocator keeps more on a busy machine,
/// by chance, and what is forgotten is left in every process.
const CHURNS: usize = 3;

/// Runs this test in a separate process: memory is measured for a whole process, and other tests
/// share this one.
#[test]
fn a_host_that_makes_and_deletes_conversations_does_not_grow() {
    let churn = || {
        let alone = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "costs::child_that_churns", "--nocapture"])
            .env("CALLBOARD_TEST_CHURN", "1")
            .output()
            .unwrap();
        let out = String::from_utf8_lossy(&alone.stdout).into_owned();
        println!("{out}{}", String::from_utf8_lossy(&alone.stderr));
        alone.status.success() && out.contains("made and deleted")
    };

    assert!(
        (0..CHURNS).any(|_| churn()),
        "each of {CHURNS} processes grew"
    );
}

/// Runs in a child process only, selected by an environment variable.
#[test]
fn child_that_churns() {
    if std::env::var_os("CALLBOARD_TEST_CHURN").is_none() {
        return;
    }
    let rate = 300;
    let length = Duration::from_secs(TestSize::pick(12, 20, 20));
    let churned = reference::phases::runtime().block_on(async {
        let host = made_and_deleted::host().await;
        made_and_deleted::run(&host, rate, length, |_, _| {}).await
    });
    let left = churned.slope(0.4) * churned.wall.as_secs_f64() / churned.deleted as f64;
    println!(
        "{} made and deleted, {left:.0} bytes left of each",
        churned.deleted
    );
    assert!(churned.deleted > 1000, "the machine did not get to it");
    assert!(
        left <= LEFT_MAX,
        "{left:.0} bytes are left of each of {} conversations, {LEFT_MAX:.0} are their bound",
        churned.deleted
    );
}
