//! The promises about faults as a user sees them, one per test: a model calls the standard tools
//! through a complete host, sandbox included. These tests are short; the modules of the parts
//! (`sandbox`, `web`, `mcp`, `file_races`, `tools`) cover each promise in detail.

mod network;
mod processes;

use std::{
    fs,
    io::Write,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use callboard::{
    Host, StopReason,
    chat::{ContentBlock, Message},
    clock::SystemClock,
    conversation::round::rules::ApprovalMode,
    ids::ArtifactId,
    mask::Masker,
    ports::{ExecLimits, FnTool, Tool, ToolContext},
    providers::openai::OpenAi,
    sandbox::{Mode, Options, PathRules, Root, Spawner, detect_with},
    storage::{ArtifactSettings, FileArtifacts},
    tool::EffectClass,
    tools,
};
use callboard_actors::{
    HostBuilder,
    testing::{Reply, ScriptedModel},
};
use serde_json::{Value, json};

use crate::support::model_server::{ModelServer, Reply as Answer, openai_text};

/// A host with the standard tools over a workspace, a scripted model, and a file outside that tools
/// must not reach.
struct Stage {
    folder: tempfile::TempDir,
    model: Arc<ScriptedModel>,
    host: Host,
    has_bash: bool,
}

impl Stage {
    /// `more` are tools beside the standard ones.
    async fn new(script: Vec<Reply>, limits: ExecLimits, more: Vec<Arc<dyn Tool>>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let workspace = folder.path().join("workspace");
        fs::create_dir(&workspace).unwrap();
        fs::write(folder.path().join("outside.txt"), "OUTSIDE").unwrap();
        let root = Arc::new(Root::open(&workspace, PathRules::default()).unwrap());
        let options = Options {
            limits,
            helper: Some(env!("CARGO_BIN_EXE_callboard").into()),
            ..Options::default()
        };
        let sandbox = detect_with(&root, Mode::Auto, &Spawner::start().unwrap(), options)
            .unwrap()
            .sandbox;
        let has_bash = sandbox.is_some();
        let artifacts = folder.path().join("artifacts");
        let artifacts = FileArtifacts::open(
            artifacts,
            Arc::new(SystemClock),
            ArtifactSettings::default(),
        )
        .await
        .unwrap();
        let model = Arc::new(ScriptedModel::replies(script));
        let builder = auto(tools::over(root, sandbox, Masker::default()), more)
            .shared_provider(model.clone());
        let host = builder
            .artifacts(Arc::new(artifacts))
            .build()
            .await
            .unwrap();
        Self {
            folder,
            model,
            host,
            has_bash,
        }
    }

    /// Runs one round, which must end normally. Returns the tool results that the model read.
    async fn round(&self) -> Vec<(String, bool)> {
        let outcome = self
            .host
            .tenant("ann")
            .conversation("c")
            .send("go")
            .await
            .unwrap()
            .outcome()
            .await
            .unwrap();
        assert_eq!(
            (outcome.stop_reason, outcome.text.as_str()),
            (StopReason::EndTurn, "on")
        );
        results(self.model.last_request().unwrap().messages.iter().cloned())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("workspace").join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    /// Whether there is a `bash`. Without one, reports that the test is skipped.
    fn has_bash(&self, test: &str) -> bool {
        if !self.has_bash {
            writeln!(
                &mut std::io::stderr(),
                "SKIPPED: {test}: there is no sandbox here"
            )
            .unwrap();
        }
        self.has_bash
    }
}

/// A builder of a host that runs every tool without approval.
fn auto(
    standard: impl IntoIterator<Item = Arc<dyn Tool>>,
    more: Vec<Arc<dyn Tool>>,
) -> HostBuilder<Host> {
    let tools: Vec<Arc<dyn Tool>> = standard.into_iter().chain(more).collect();
    tools.into_iter().fold(
        Host::builder().approval(ApprovalMode::Auto),
        HostBuilder::tool,
    )
}

/// The tool results of the last message that has any: the text, and whether it is an error.
fn results(messages: impl IntoIterator<Item = Message>) -> Vec<(String, bool)> {
    let of = |message: Message| -> Vec<(String, bool)> {
        let result = |block: &ContentBlock| match block {
            ContentBlock::ToolResult(result) => {
                Some((result.content.text().into_owned(), result.is_error))
            }
            _ => None,
        };
        message.blocks().iter().filter_map(result).collect()
    };
    messages
        .into_iter()
        .map(of)
        .filter(|results| !results.is_empty())
        .last()
        .unwrap_or_default()
}

/// One batch of calls, then the end of the round.
fn batch(calls: impl IntoIterator<Item = (&'static str, Value)>) -> Vec<Reply> {
    let reply = calls
        .into_iter()
        .fold(Reply::empty(), |reply, (tool, arguments)| {
            reply.and_tool(tool, &arguments)
        });
    vec![reply, Reply::text("on")]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_nothing_outside_of_the_workspace_is_read_or_written() {
    let foreign = ArtifactId::from_content(b"of another conversation");
    let paths = [
        "../outside.txt",
        "/etc/passwd",
        "link",
        "up/outside.txt",
        "magic/outside.txt",
        "a/../../outside.txt",
        foreign.as_str(),
    ];
    let mut calls = Vec::new();
    for path in paths {
        calls.push(("file_read", json!({ "path": path })));
        calls.push(("file_list", json!({ "path": path })));
        calls.push(("grep_search", json!({ "path": path, "pattern": "." })));
        calls.push((
            "file_edit",
            json!({ "path": path, "old_text": "OUTSIDE", "new_text": "EVIL" }),
        ));
    }
    calls.push((
        "read_more",
        json!({ "result_id": foreign.as_str(), "page": 1 }),
    ));
    calls.push((
        "read_more",
        json!({ "result_id": "artifact_../../outside.t", "page": 1 }),
    ));
    let wanted = calls.len();
    let odd = ["..foo", "with space", "ünï©ödé"];
    calls.extend(odd.map(|name| ("file_read", json!({ "path": name }))));
    let stage = Stage::new(batch(calls), ExecLimits::default(), Vec::new()).await;
    symlink(stage.folder.path().join("outside.txt"), stage.path("link")).unwrap();
    symlink(stage.folder.path(), stage.path("up")).unwrap();
    symlink("/proc/self/cwd", stage.path("magic")).unwrap();
    odd.iter().for_each(|name| stage.write(name, "inside"));

    let results = stage.round().await;

    assert_eq!(results.len(), wanted + odd.len());
    let host = stage.folder.path().to_string_lossy().into_owned();
    for (text, is_error) in &results[..wanted] {
        assert!(
            *is_error
                && !text.contains("OUTSIDE")
                && !text.contains("root:")
                && !text.contains(&host),
            "{text}"
        );
    }
    assert!(
        results[wanted..]
            .iter()
            .all(|(text, is_error)| !is_error && text == "1\tinside\n"),
        "odd names work: {results:?}"
    );
    assert_eq!(
        fs::read_to_string(stage.folder.path().join("outside.txt")).unwrap(),
        "OUTSIDE"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f2_what_makes_other_programs_run_is_written_by_no_tool() {
    let places = [
        ".git/hooks/pre-commit",
        ".git/config",
        ".mcp.json",
        "callboard.toml",
        ".bashrc",
        "sub/.git/hooks/post-merge",
        ".callboard/x",
    ];
    let mut calls: Vec<_> = places
        .map(|path| {
            (
                "file_edit",
                json!({ "path": path, "old_text": "", "new_text": "EVIL" }),
            )
        })
        .into();
    let refused = calls.len();
    let by_bash = "mkdir -p .git/hooks sub/.git/hooks .callboard; for f in .git/hooks/pre-commit .git/config .mcp.json callboard.toml .bashrc \
                   sub/.git/hooks/post-merge .callboard/x; do echo EVIL > $f; echo EVIL > t; mv -f t $f; ln -f kept $f; done; echo tried";
    let has_bash = Stage::new(Vec::new(), ExecLimits::default(), Vec::new())
        .await
        .has_bash("f2: by bash");
    if has_bash {
        calls.push(("bash", json!({ "command": by_bash })));
    }
    let stage = Stage::new(batch(calls), ExecLimits::default(), Vec::new()).await;
    stage.write("kept", "EVIL");
    stage.write(".git/HEAD", "x");

    let results = stage.round().await;

    assert!(
        results[..refused]
            .iter()
            .all(|(text, is_error)| *is_error && text.contains("is protected")),
        "{results:?}"
    );
    assert!(
        !has_bash || results[refused].0.starts_with("tried"),
        "{results:?}"
    );
    for place in places {
        assert!(
            fs::symlink_metadata(stage.path(place)).is_err(),
            "{place} is there"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f22_the_same_call_again_and_again_ends_the_round_with_a_reason() {
    let starts = Arc::new(AtomicUsize::new(0));
    let counter = starts.clone();
    let handler = move |_: Value, _: ToolContext| {
        counter.fetch_add(1, Ordering::SeqCst);
        async { Ok("nothing new".to_owned()) }
    };
    let tool = FnTool::raw(
        "look",
        "Looks.",
        &json!({ "type": "object" }),
        handler,
        None,
    )
    .declare(|spec| spec.read_only().not_shared());
    let model = Arc::new(ScriptedModel::always(Reply::tool(
        "look",
        &json!({ "at": "it" }),
    )));
    let host = auto([], vec![Arc::new(tool)])
        .shared_provider(model.clone())
        .build()
        .await
        .unwrap();
    let talk = host.tenant("ann").conversation("c");

    let outcome = talk.send("go").await.unwrap().outcome().await.unwrap();

    assert_eq!(
        (outcome.stop_reason, starts.load(Ordering::SeqCst)),
        (StopReason::LoopGuard, 8)
    );
    let last = results(talk.messages().await.unwrap());
    assert!(
        last.len() == 1 && last[0].1 && last[0].0.contains("LOOP_GUARD"),
        "{last:?}"
    );
    assert!(
        model.requests().len() < 25,
        "before the bound of iterations"
    );
}

/// A Chat Completions reply that calls a tool with `arguments`, sent in several pieces.
fn call_with(arguments: &str) -> Answer {
    let first = r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"file_read","arguments":""}}]}}]}"#;
    let mut events = vec![first.to_owned()];
    for piece in arguments.as_bytes().chunks(1024 * 1024) {
        let piece = Value::from(String::from_utf8_lossy(piece));
        events
            .push(format!(r#"{{"choices":[{{"index":0,"delta":{{"tool_calls":[{{"index":0,"function":{{"arguments":{piece}}}}}]}}}}]}}"#));
    }
    events.push(r#"{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}"#.to_owned());
    events.push("[DONE]".to_owned());
    Answer::events(events)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f24_malformed_arguments_are_an_error_result_and_the_conversation_goes_on() {
    let server = ModelServer::start([Answer::status(500)]).await;
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.txt"), "READ").unwrap();
    let provider = OpenAi::builder().base_url(server.url_v1()).build().unwrap();
    let host = auto(tools::with_sandbox(folder.path(), Mode::None), Vec::new())
        .provider(provider)
        .build()
        .await
        .unwrap();
    let talk = host.tenant("ann").conversation("c");
    let deep = |levels: usize| format!("{{\"path\":{}{}}}", "[".repeat(levels), "]".repeat(levels));
    let large = format!("{{\"path\":\"{}\"}}", "x".repeat(10 * 1024 * 1024));
    // JSON of the wrong shape is answered with an error, and so is what is not a JSON object.
    let malformed = [
        r#"{"path": 7}"#.to_owned(),
        r#"{"path": "a.txt", "offset": "one"}"#.to_owned(),
        r#"{"path": "a.txt", "extra": null}"#.to_owned(),
        "{}".to_owned(),
        deep(60),
        large,
        r#"{"path": "a.txt""#.to_owned(),
        r#"["a.txt"]"#.to_owned(),
        "a.txt \u{0} \u{202e}".to_owned(),
        deep(100_000),
    ];

    for arguments in malformed {
        let begin: String = arguments.chars().take(40).collect();
        server.script([call_with(&arguments), Answer::events(openai_text("on"))]);
        let before = server.requests().len();

        let outcome = talk.send("go").await.unwrap().outcome().await;

        let asked = server.requests().len() - before;
        let last = results(talk.messages().await.unwrap());
        // Arguments larger than any context window are answered with an error and end the round;
        // the next prompt drops them.
        let too_large = outcome
            .as_ref()
            .is_ok_and(|end| end.stop_reason == callboard::StopReason::ContextTooLarge);
        assert_eq!(
            too_large,
            arguments.len() > 1_000_000,
            "{begin}: {outcome:?}"
        );
        assert!(
            asked == if too_large { 1 } else { 2 },
            "{begin}: {asked} requests, {outcome:?}"
        );
        assert!(
            too_large || outcome.as_ref().is_ok_and(|end| end.text == "on"),
            "{begin}: {outcome:?}"
        );
        assert!(
            last.iter().all(
                |(text, is_error)| *is_error && text.contains("Error Code: INVALID_PARAMETERS")
            ),
            "{begin}: {last:?}"
        );
        assert!(
            last.iter()
                .all(|(text, _)| !text.contains("READ") && text.len() < 4096),
            "{begin}"
        );
    }

    server.script([
        call_with(r#"{"path": "a.txt"}"#),
        Answer::events(openai_text("on")),
    ]);
    talk.send("go").await.unwrap().outcome().await.unwrap();
    assert_eq!(
        results(talk.messages().await.unwrap()),
        [("1\tREAD\n".to_owned(), false)],
        "and then a good one"
    );
}

/// Waits until a condition holds.
async fn until(what: &str, within: Duration, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(
            start.elapsed() < within,
            "{what} did not come within {within:?}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Number of processes with `marker` in their arguments.
fn alive(marker: &str) -> usize {
    let holds = |pid: &Path| {
        fs::read(pid.join("cmdline")).is_ok_and(|line| {
            line.split(|b| *b == 0)
                .any(|word| word == marker.as_bytes())
        })
    };
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter(|entry| holds(&entry.path()))
        .count()
}
