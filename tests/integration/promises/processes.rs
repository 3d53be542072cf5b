//! Process promises: what a command or a tool may use, leave behind and see.

use std::sync::atomic::{AtomicBool, AtomicU64};

use callboard::{ports::ToolOutput, tool::ToolError};

use super::*;
use crate::{
    cli::Home,
    support::model_server::{anthropic_text, anthropic_tool},
};

const MIB: u64 = 1024 * 1024;

/// Private memory of this process, in bytes.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("RssAnon:"))
        .unwrap();
    line.split_ascii_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        * 1024
}

/// Samples the memory of this process and returns the highest value.
struct Peak {
    most: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<()>,
}

impl Peak {
    fn watch() -> Self {
        let most = Arc::new(AtomicU64::new(0));
        let over = Arc::new(AtomicBool::new(false));
        let seen = most.clone();
        let ends = over.clone();
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                seen.fetch_max(resident(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        Self { most, over, thread }
    }

    fn end(self) -> u64 {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        self.most.load(Ordering::Relaxed)
    }
}

/// A tool of this process that changes something. It may run for `time`.
fn own<F>(name: &str, time: Duration, run: impl Fn() -> F + Send + Sync + 'static) -> Arc<dyn Tool>
where
    F: Future<Output = Result<ToolOutput, ToolError>> + Send + 'static,
{
    let tool = FnTool::raw(
        name,
        "Does harm.",
        &json!({ "type": "object" }),
        move |_: Value, _: ToolContext| run(),
        None,
    );
    Arc::new(tool.declare(|spec| spec.effect(EffectClass::Once).timeout(time)))
}

/// Runs this test in a separate process: memory is measured for a whole process, and other tests
/// share this one.
#[test]
fn f3_bombs_end_with_a_bounded_result_and_the_conversation_goes_on() {
    let alone = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "promises::processes::f3_child", "--nocapture"])
        .env("CALLBOARD_TEST_BOMBS", "1")
        .env("RUST_BACKTRACE", "0") // Resolving symbols takes memory too.
        .output()
        .unwrap();

    let out = String::from_utf8_lossy(&alone.stdout);
    let err = String::from_utf8_lossy(&alone.stderr);
    assert!(
        alone.status.success() && (out.contains("all bombs are over") || err.contains("SKIPPED")),
        "{out}\n{err}"
    );
    writeln!(&mut std::io::stderr(), "{}", err.trim_end()).unwrap();
    println!("{out}");
}

/// Runs in a child process only, selected by an environment variable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f3_child() {
    if std::env::var_os("CALLBOARD_TEST_BOMBS").is_none() {
        return;
    }
    let marker = format!("marker-f3-{}", std::process::id());
    let hangs = Arc::new(AtomicUsize::new(0));
    let counter = hangs.clone();
    let short = Duration::from_millis(300);
    let long = Duration::from_secs(20);
    let more = vec![
        own("panics", short, || async { panic!("boom") }),
        own("hangs", short, move || {
            counter.fetch_add(1, Ordering::SeqCst);
            std::future::pending()
        }),
        own("talks", long, || async {
            Ok("x".repeat(200 * 1024 * 1024).into())
        }),
    ];
    let fork = format!("for n in {{1..200}}; do bash -c 'sleep 1000; :' {marker} & done; wait");
    let bash = |command: &str, ms: u64| ("bash", json!({ "command": command, "timeout_ms": ms }));
    // A call, the expected text of its result, and the MiB by which the host may grow meanwhile.
    let bombs = [
        (bash("true", 5_000), "", 64), // The first command of a process allocates what all later ones reuse.
        (("panics", json!({})), "Error Code: PANIC", 64),
        (("hangs", json!({})), "Error Code: TIMEOUT", 64),
        (bash(&fork, 2_000), "", 64),
        (
            bash(
                "for n in {1..8}; do head -c 16M /dev/zero > f$n; sync -d f$n; sleep 0.05; done; sleep 5",
                8_000,
            ),
            "written to the disk",
            64,
        ),
        (bash("yes bomb", 600), "Error Code: TIMEOUT", 64),
        (bash("head -c 200M /dev/zero", 20_000), "", 64),
        (("talks", json!({})), "kept", 200 + 64),
    ];
    let script = bombs
        .iter()
        .flat_map(|(call, ..)| batch([call.clone()]))
        .chain(batch([("think", json!({ "thought": "still here" }))]));
    let limits = ExecLimits {
        processes: 64,
        disk_bytes: 48 * MIB,
        ..ExecLimits::default()
    };
    let stage = Stage::new(script.collect(), limits, more).await;
    if !stage.has_bash("f3_bombs_end_with_a_bounded_result_and_the_conversation_goes_on") {
        return;
    }

    for ((tool, arguments), expected, mib) in bombs {
        let before = resident();
        let peak = Peak::watch();
        let start = Instant::now();
        let results = stage.round().await;
        let most = peak.end().saturating_sub(before);
        let took = start.elapsed();

        let name = format!("{tool} {arguments}");
        println!(
            "{name}: {} ms, at most {} MiB more",
            took.as_millis(),
            most / MIB
        );
        assert!(
            results.len() == 1 && results[0].0.len() <= 30 * 1024,
            "{name}: one bounded result"
        );
        assert!(results[0].0.contains(expected), "{name}: {}", results[0].0);
        assert!(most <= mib * MIB, "{name}: {} MiB", most / MIB);
        until("the end of its processes", Duration::from_secs(2), || {
            alive(&marker) == 0
        })
        .await;
        until("its memory", Duration::from_secs(2), || {
            resident() < before + 64 * MIB
        })
        .await;
        assert!(took < Duration::from_secs(12), "{name}: {took:?}");
    }
    assert_eq!(
        stage.round().await,
        [("Noted.".to_owned(), false)],
        "the conversation goes on"
    );
    assert_eq!(
        hangs.load(Ordering::SeqCst),
        1,
        "a once tool that timed out is started once"
    );
    println!("all bombs are over");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f4_no_process_outlives_a_timeout_an_interrupt_or_its_host() {
    let marker = format!("marker-f4-{}", std::process::id());
    let sleeper =
        format!("bash -c 'trap \"\" TERM HUP INT; while :; do sleep 1000; done' {marker}");
    let command = format!(
        "setsid {sleeper} >/dev/null 2>&1 & nohup {sleeper} >/dev/null 2>&1 & (setsid nohup {sleeper} &) ; {sleeper} & touch started; wait"
    );
    let call = |ms: u64| Reply::tool("bash", &json!({ "command": command, "timeout_ms": ms }));
    let script = vec![call(700), Reply::text("on"), call(60_000), call(60_000)];
    let stage = Stage::new(script, ExecLimits::default(), Vec::new()).await;
    if !stage.has_bash("f4_no_process_outlives_a_timeout_an_interrupt_or_its_host") {
        return;
    }
    let gone = || {
        until("the end of all processes", Duration::from_secs(2), || {
            alive(&marker) == 0
        })
    };

    let timed_out = stage.round().await;
    assert!(
        stage.path("started").exists() && timed_out[0].0.contains("Error Code: TIMEOUT"),
        "{timed_out:?}"
    );
    gone().await;

    let talk = stage.host.tenant("ann").conversation("c");
    let mut reply = talk.send("go").await.unwrap();
    until("the command", Duration::from_secs(10), || {
        alive(&marker) >= 4
    })
    .await;
    talk.interrupt().await.unwrap();
    assert_eq!(
        reply.outcome().await.unwrap().stop_reason,
        StopReason::Interrupted
    );
    gone().await;

    let reply = talk.send("go").await.unwrap();
    until("the command", Duration::from_secs(10), || {
        alive(&marker) >= 4
    })
    .await;
    drop((reply, talk));
    stage.host.shutdown(Duration::from_secs(5)).await;
    gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f5_a_command_sees_no_key_and_no_descriptor_of_its_host() {
    let home = Home::new();
    if home.run(&["tools", "list", "--sandbox", "linux"]).code != Some(0) {
        writeln!(&mut std::io::stderr(), "SKIPPED: f5_a_command_sees_no_key_and_no_descriptor_of_its_host: there is no sandbox here")
            .unwrap();
        return;
    }
    let key = "sk-ant-not-a-real-key-0123456789";
    let look = "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; \
                for fd in {3..1023}; do [ -e /proc/self/fd/$fd ] && echo OP''EN $fd; done; echo looked";
    let script = [
        anthropic_tool("bash", &json!({ "command": look })),
        anthropic_text("Looked."),
    ];
    let server = ModelServer::start(script.map(Answer::events)).await;
    let args = [
        "run",
        "--provider",
        "anthropic",
        "--base-url",
        &server.url(),
        "--approve",
        "auto",
        "--session",
        "s",
        "Look.",
    ];
    let mut command = home.command(&args);
    command
        .env("ANTHROPIC_API_KEY", key)
        .env("OPENAI_API_KEY", "sk-not-a-real-key-either")
        .env("SOME_PASSWORD", "not-a-real-password");

    let ran = crate::cli::Ran::of(&args, command.spawn().unwrap()).well();

    let requests = server.requests();
    let seen = requests.last().unwrap().json()["messages"]
        .as_array()
        .unwrap()
        .last()
        .unwrap()["content"][0]
        .to_string();
    assert!(seen.contains("looked") && seen.contains("PATH="), "{seen}");
    for hidden in [
        "not-a-real",
        "ANTHROPIC",
        "OPENAI",
        "SOME_PASSWORD",
        "OPEN ",
    ] {
        assert!(!seen.contains(hidden), "{hidden}: {seen}");
    }
    assert_eq!(
        requests[0].header("x-api-key"),
        Some(key),
        "the host itself has it"
    );
    let export = home.run(&["sessions", "export", "s"]).well().out;
    assert!(
        [&export, &ran.out, &ran.err]
            .iter()
            .all(|text| !text.contains("not-a-real"))
    );
}
