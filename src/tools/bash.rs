//! The `bash` tool: runs a command in the sandbox, which enforces the time limit and ends all
//! processes of the command. The refusals of `danger.rs` are a convenience; the sandbox is the
//! boundary, and without a sandbox this tool is absent.
//!
//! No state carries over from one command to the next. A command names the folder in which it
//! starts, so that a person who approves a command sees where it runs.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use callboard_actors::{
    chat::RawJson,
    ids::ArtifactId,
    limits::OBSERVATION_BYTES_MAX,
    ports::{
        Approval, Artifacts, Concurrency, Exec, ExecResult, HostPattern, Network, Progress, Reach,
        Sandbox, SandboxError, TOOL_TIMEOUT, ToolContext, ToolSource, ToolSpec, TypedTool,
    },
    tool::{EffectClass, ToolError, ToolErrorType},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{
    danger, on_text, reading,
    text::{middle_cut, middle_cut_counted},
};
use crate::{
    mask::Masker,
    sandbox::{folder_below, policy::EXEC_TIME_MAX},
};

/// Bytes of a command. The kernel accepts no argument longer than 128 KiB.
const COMMAND_BYTES_MAX: usize = 100 * 1024;

/// Bytes of standard error that are shown. Errors are usually short and at the end.
const STDERR_BYTES_MAX: usize = 8 * 1024;

/// Bytes of standard output that are shown. Both streams fit into one observation, with room for
/// masks, so that what is left out is counted once and exactly.
const STDOUT_BYTES_MAX: usize = OBSERVATION_BYTES_MAX - STDERR_BYTES_MAX - 2 * 1024;

/// Bytes of each stream that are kept if the conversation stores artifacts, so that the model can
/// read on.
const STREAM_BYTES_MAX: usize = 1024 * 1024;

/// The message by which the executor recognizes a timeout.
const TIMEOUT_MESSAGE: &str = "Tool execution exceeded timeout limit";

/// Arguments of `bash`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BashArgs {
    /// The command, given to bash.
    pub command: String,
    /// Folder of the workspace in which the command starts, such as `src/app`. The workspace if
    /// absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// Longest run in milliseconds; 120000 if absent, at most 600000.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 600_000))]
    pub timeout_ms: Option<u64>,
}

/// The `bash` tool.
#[derive(Clone)]
pub struct Bash {
    sandbox: Arc<dyn Sandbox>,
    masker: Arc<Masker>,
}

impl std::fmt::Debug for Bash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bash")
            .field("policy", self.sandbox.policy())
            .finish_non_exhaustive()
    }
}

impl Bash {
    /// Creates a tool that runs commands in `sandbox` and masks their output with `masker`.
    pub fn new(sandbox: Arc<dyn Sandbox>, masker: Arc<Masker>) -> Self {
        Self { sandbox, masker }
    }

    /// The folder in which a command starts, relative to the workspace and without `.` and `..`;
    /// empty for the workspace, `None` for one outside of it.
    fn folder(&self, args: &BashArgs) -> Option<String> {
        folder_below(
            &self.sandbox.policy().root,
            args.folder.as_deref().unwrap_or_default(),
        )
    }
}

impl TypedTool for Bash {
    type Args = BashArgs;
    type Output = String;
    const NAME: &'static str = "bash";
    const DESCRIPTION: &'static str = "Runs a command with bash in the workspace and returns what it printed. Each command \
starts in `folder` (the workspace if you name none), whatever folder an earlier one ended in; variables and functions do not carry over. There is no network, no terminal and no input; only the \
workspace and a private folder for temporary files ($TMPDIR, else /tmp; empty at every call) can be written. Processes in the background do not survive: whatever still runs when \
the command ends is killed, and the result says so. Long output keeps its head and its tail. To read, search or edit files use the file tools.";

    fn declare(&self, mut spec: ToolSpec) -> ToolSpec {
        let network = network(&self.sandbox.policy().network);
        spec.definition.description = spec.definition.description.replace(NO_NETWORK, &network);
        spec.effect(EffectClass::Once)
            .concurrency(Concurrency::Exclusive)
            .approval(Approval::ByMode)
            .source(ToolSource::BuiltIn)
            .reach(Reach::Commands)
            // The sandbox enforces the command's own timeout. The executor's is longer, so that
            // processes can be ended before it.
            .timeout(EXEC_TIME_MAX + Duration::from_secs(5))
    }

    fn check(&self, args: &BashArgs) -> Result<(), ToolError> {
        if args.command.trim().is_empty() || args.command.contains('\0') {
            return Err(ToolError::invalid("command is empty or holds a NUL byte"));
        }
        if args.command.len() > COMMAND_BYTES_MAX {
            return Err(ToolError::invalid(format!(
                "command is longer than {COMMAND_BYTES_MAX} bytes: write it to a file and run that"
            )));
        }
        if args.timeout_ms == Some(0) {
            return Err(ToolError::invalid("timeout_ms must be at least 1"));
        }
        if self.folder(args).is_none_or(|folder| folder.contains('\0')) {
            return Err(ToolError::invalid(format!(
                "folder {:?} is outside of the workspace: name one relative to the workspace",
                args.folder.as_deref().unwrap_or_default()
            )));
        }
        match danger::refusal(&args.command) {
            None => Ok(()),
            Some(why) => {
                Err(ToolError::denied(format!("this command is refused: {why}")).not_started())
            }
        }
    }

    /// One spelling for each folder, so that a person sees and "always" compares the same one.
    fn resolve(&self, args: &BashArgs) -> Option<RawJson> {
        let folder = self.folder(args).filter(|folder| !folder.is_empty());
        let spelled = BashArgs {
            folder,
            ..args.clone()
        };
        (spelled.folder != args.folder).then(|| RawJson::of(&spelled).ok())?
    }

    /// Whether the command is recognized as read-only, which runs without approval. Always false
    /// without a kernel boundary that holds it to the workspace.
    fn only_reads(&self, args: &BashArgs) -> bool {
        self.sandbox.policy().boundary && reading::only_reads(&args.command)
    }

    /// The command, its folder and the workspace: "always" approves it with any timeout. The form with
    /// a folder is a command that does the same, so no command in the workspace can pass for another
    /// one.
    fn approval_pattern(&self, args: &BashArgs) -> Option<String> {
        let command = &args.command;
        let command = match self.folder(args).as_deref() {
            Some("") | None => command.clone(),
            Some(folder) => {
                format!("cd '{}' || exit; {command}", folder.replace('\'', r"'\''"))
            }
        };
        Some(super::in_workspace(&command, &self.sandbox.policy().root))
    }

    async fn call(&self, args: BashArgs, context: ToolContext) -> Result<String, ToolError> {
        self.check(&args)?;
        let asked = args
            .timeout_ms
            .map_or(TOOL_TIMEOUT, Duration::from_millis)
            .min(EXEC_TIME_MAX);
        let folder = self.folder(&args).map(PathBuf::from);
        let only_reads = self.only_reads(&args);
        let git_only_reads = only_reads && reading::runs_git(&args.command);
        let exec = Exec {
            tenant: Some(context.key.scope.tenant.clone()),
            command: if only_reads {
                format!("{}{}", reading::GIT_SETTINGS, args.command)
            } else {
                args.command
            },
            timeout: asked.min(context.deadline.saturating_duration_since(Instant::now())),
            working_dir: folder.clone(),
            output_bytes_max: if context.artifacts.is_some() {
                STREAM_BYTES_MAX
            } else {
                STDOUT_BYTES_MAX
            },
            errors_bytes_max: if context.artifacts.is_some() {
                STREAM_BYTES_MAX
            } else {
                STDERR_BYTES_MAX
            },
            progress: self.masked(context.progress.clone()),
            git_only_reads,
        };
        let result = self.sandbox.exec(exec, context.cancel.clone()).await;
        match result {
            Ok(result) if result.timed_out => {
                Err(ToolError::new(ToolErrorType::Timeout, TIMEOUT_MESSAGE))
            }
            Ok(result) => {
                let ended_in = result.working_dir.as_deref();
                let note = ended_in
                    .filter(|ended_in| folder.as_deref() != Some(ended_in))
                    .map(moved);
                self.observation(result, note.as_deref(), &context).await
            }
            Err(error) => Err(self.error(error)),
        }
    }
}

/// Stores output that is too long to show. Returns its id and size, or `None` if it could not be
/// stored.
async fn keep(stdout: &str, stderr: &str, context: &ToolContext) -> Option<(ArtifactId, usize)> {
    let Artifacts { store, owner } = context.artifacts.clone()?;
    let whole = if stderr.is_empty() {
        stdout.to_owned()
    } else {
        format!("{stdout}\n[stderr]\n{stderr}")
    };
    let bytes = whole.len();
    let id = store
        .store(owner, context.tool_call_id.clone(), whole.into())
        .await;
    id.inspect_err(|error| tracing::debug!(%error, "the output of a command is not kept"))
        .ok()
        .map(|id| (id, bytes))
}

/// The sentence of the description that is replaced when commands have a network.
const NO_NETWORK: &str = "There is no network, no terminal and no input;";

/// Hosts that the description lists by name.
const HOSTS_SHOWN_MAX: usize = 40;

/// Describes to the model which network its commands can reach.
fn network(network: &Network) -> String {
    match network {
        Network::Hosts(hosts) => {
            let shown: Vec<String> = hosts
                .iter()
                .take(HOSTS_SHOWN_MAX)
                .map(HostPattern::to_string)
                .collect();
            let more = match hosts.len().saturating_sub(HOSTS_SHOWN_MAX) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!(
                "Of the network only these hosts can be reached, over HTTP and HTTPS, through the proxy that http_proxy and https_proxy name: \
                 {}{more}. There is no terminal and no input;",
                shown.join(", ")
            )
        }
        Network::Open => "There is no terminal and no input;".to_owned(),
        // An unknown kind of network is described as none.
        _ => NO_NETWORK.to_owned(),
    }
}

/// Says that a command ended in another folder, and how the next one starts there. Names may hold
/// any character, so they are quoted.
fn moved(folder: &Path) -> String {
    let folder = folder.to_string_lossy();
    if folder.is_empty() {
        "[the command ended in the workspace; the next one starts there without folder]".to_owned()
    } else {
        format!("[the command ended in {folder:?}; folder={folder:?} starts the next one there]")
    }
}

impl Bash {
    fn masked(&self, progress: Progress) -> Progress {
        let masker = self.masker.clone();
        Progress::new(move |line| progress.report(masker.mask(&line)))
    }

    async fn observation(
        &self,
        mut result: ExecResult,
        note: Option<&str>,
        context: &ToolContext,
    ) -> Result<String, ToolError> {
        let masker = self.masker.clone();
        let streams = [&mut result.stdout, &mut result.stderr].map(std::mem::take);
        let bytes = streams.iter().map(String::len).sum();
        let mask = move || streams.map(|text| masker.mask(&text));
        let [all_out, all_err] = on_text(bytes, context, mask).await?;
        let all_out = all_out.trim_end();
        let all_err = all_err.trim_end();
        let room = STDOUT_BYTES_MAX + STDERR_BYTES_MAX;
        let (stderr, cut_err) = middle_cut_counted(
            all_err,
            STDERR_BYTES_MAX.max(room.saturating_sub(all_out.len())),
        );
        let (stdout, cut_out) = middle_cut_counted(
            all_out,
            STDOUT_BYTES_MAX.max(room.saturating_sub(all_err.len())),
        );
        let cut = (cut_out + cut_err) as u64;
        let more = if cut > 0 {
            keep(all_out, all_err, context).await
        } else {
            None
        };
        let mut parts = Vec::new();
        match result.status {
            Some(0) => {}
            Some(status) => parts.push(format!("[exit status {status}]")),
            None => parts.push("[killed by a signal]".to_owned()),
        }
        if !stdout.is_empty() {
            parts.push(stdout);
        }
        if !stderr.is_empty() {
            parts.push(format!("[stderr]\n{stderr}"));
        }
        if parts.is_empty() {
            parts.push("[no output]".to_owned());
        }
        if result.bytes_left_out > 0 || cut > 0 {
            let shown = result
                .bytes_printed
                .saturating_sub(result.bytes_left_out)
                .saturating_sub(cut);
            let rest = more.map(|(id, bytes)| {
                format!("; read_more(result_id=\"{id}\", page=1) reads the {bytes} that are kept")
            });
            parts.push(format!(
                "[kept {shown} of {} bytes{}]",
                result.bytes_printed,
                rest.unwrap_or_default()
            ));
        }
        match result.left_running {
            0 => {}
            1 => parts.push("[1 process still ran in the background when the command ended; it was killed]".to_owned()),
            n => parts.push(format!("[{n} processes still ran in the background when the command ended; they were killed]")),
        }
        parts.extend(note.map(|note| middle_cut(&self.masker.mask(note), 400)));
        Ok(parts.join("\n"))
    }

    fn error(&self, error: SandboxError) -> ToolError {
        let message = self.masker.mask(&error.to_string());
        match error {
            SandboxError::Denied(_) => ToolError::denied(message).not_started(),
            SandboxError::Limit(_) => ToolError::new(ToolErrorType::ResourceError, message),
            SandboxError::Cancelled => super::cancelled(),
            _ => ToolError::failed(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use callboard_actors::ports::{BoxFuture, ExecLimits, SandboxPolicy, erased};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::tools::fixture;

    struct Scripted(SandboxPolicy, Result<ExecResult, SandboxError>);

    impl Sandbox for Scripted {
        fn policy(&self) -> &SandboxPolicy {
            &self.0
        }

        fn validate_path(&self, path: &str) -> Result<PathBuf, SandboxError> {
            Ok(path.into())
        }

        fn exec(
            &self,
            _: Exec,
            _: CancellationToken,
        ) -> BoxFuture<'_, Result<ExecResult, SandboxError>> {
            Box::pin(async { self.1.clone() })
        }
    }

    fn policy(network: Network) -> SandboxPolicy {
        SandboxPolicy {
            root: Arc::new(PathBuf::new()),
            kind: "scripted",
            network,
            boundary: true,
            limits: ExecLimits::default(),
        }
    }

    #[test]
    fn the_description_names_what_commands_can_reach() {
        let mentions = |network| {
            let sandbox = Scripted(policy(network), Err(SandboxError::Cancelled));
            let description = erased(Bash::new(
                Arc::new(sandbox),
                Arc::new(Masker::new(["not-a-real-key"])),
            ))
            .spec()
            .definition
            .description
            .clone();
            [
                "There is no network",
                "crates.io, *.example.org:8443",
                "no terminal",
            ]
            .map(|words| description.contains(words))
        };
        let hosts = ["crates.io", "*.example.org:8443"]
            .map(|host| host.parse().unwrap())
            .to_vec();

        assert_eq!(mentions(Network::Off), [true, false, true]);
        assert_eq!(mentions(Network::Hosts(hosts)), [false, true, true]);
        assert_eq!(mentions(Network::Open), [false, false, true]);
    }

    async fn run(
        command: &str,
        result: Result<ExecResult, SandboxError>,
    ) -> Result<String, ToolError> {
        let policy = policy(Network::Off);
        let tool = erased(Bash::new(
            Arc::new(Scripted(policy, result)),
            Arc::new(Masker::new(["not-a-real-key"])),
        ));
        fixture::call(
            &tool,
            &serde_json::json!({ "command": command }).to_string(),
        )
        .await
    }

    #[tokio::test]
    async fn the_answer_separates_status_output_and_errors() {
        let output = |status, stdout: &str, stderr: &str| {
            Ok(ExecResult {
                status,
                stdout: stdout.to_owned(),
                stderr: stderr.to_owned(),
                ..ExecResult::default()
            })
        };

        assert_eq!(
            run("x", output(Some(0), "out\n", "")).await,
            Ok("out".to_owned())
        );
        assert_eq!(
            run("x", output(Some(0), "", "")).await,
            Ok("[no output]".to_owned())
        );
        assert_eq!(
            run("x", output(Some(3), "out\n", "bad\n")).await,
            Ok("[exit status 3]\nout\n[stderr]\nbad".to_owned())
        );
        assert_eq!(
            run("x", output(None, "", "")).await,
            Ok("[killed by a signal]".to_owned())
        );
        assert_eq!(
            run(
                "x",
                output(Some(0), "key not-a-real-key", "password=hunter2")
            )
            .await,
            Ok("key [masked:1]\n[stderr]\npassword=[masked:1]".to_owned())
        );
        let cut = ExecResult {
            status: Some(0),
            stdout: "o".to_owned(),
            bytes_printed: 12,
            bytes_left_out: 11,
            left_running: 2,
            ..ExecResult::default()
        };
        assert_eq!(
            run("x", Ok(cut)).await.unwrap(),
            "o\n[kept 1 of 12 bytes]\n[2 processes still ran in the background when the command ended; they were killed]"
        );
        let long = run(
            "x",
            output(Some(1), &"o".repeat(28_000), &"e".repeat(28_000)),
        )
        .await
        .unwrap();
        assert!(
            long.len() <= OBSERVATION_BYTES_MAX && long.contains("[stderr]\neee"),
            "{}",
            long.len()
        );
    }

    #[test]
    fn a_command_that_only_reads_needs_no_approval_behind_a_boundary_alone() {
        let asks = |boundary, command: &str| {
            let policy = SandboxPolicy {
                boundary,
                ..policy(Network::Off)
            };
            let sandbox = Scripted(policy, Err(SandboxError::Cancelled));
            let tool = erased(Bash::new(
                Arc::new(sandbox),
                Arc::new(Masker::new(["not-a-real-key"])),
            ));
            let arguments = serde_json::json!({ "command": command }).to_string();
            !tool.only_reads(&callboard_actors::chat::RawJson::arguments(&arguments).unwrap())
        };

        assert_eq!(
            [
                asks(true, "ls -la | head"),
                asks(true, "ls > x"),
                asks(false, "ls -la | head")
            ],
            [false, true, true]
        );
    }

    #[test]
    fn an_approval_names_the_folder_in_one_spelling_and_is_for_that_folder_alone() {
        let sandbox = Scripted(policy(Network::Off), Err(SandboxError::Cancelled));
        let tool = erased(Bash::new(
            Arc::new(sandbox),
            Arc::new(Masker::new(["not-a-real-key"])),
        ));
        let approved = |arguments: serde_json::Value| {
            let given = RawJson::of(&arguments).unwrap();
            let shown = tool.resolve(&given).unwrap_or(given);
            (
                shown.parse::<serde_json::Value>().unwrap(),
                tool.approval_pattern(&shown),
            )
        };
        let refused = |folder: &str| {
            let arguments = serde_json::json!({"command": "make", "folder": folder});
            tool.check(&RawJson::of(&arguments).unwrap())
                .unwrap_err()
                .code
        };

        let below = serde_json::json!({"command": "make", "folder": "it's/b"});
        let here = |pattern: &str| super::super::in_workspace(pattern, Path::new(""));
        let pattern = here(r"cd 'it'\''s/b' || exit; make");
        for folder in ["it's/b", "./it's//b/", "/workspace/c/../it's/b"] {
            assert_eq!(
                approved(serde_json::json!({"command": "make", "folder": folder})),
                (below.clone(), pattern.clone())
            );
        }
        assert_eq!(
            approved(serde_json::json!({"command": "make", "folder": ".", "timeout_ms": 5})),
            (
                serde_json::json!({"command": "make", "timeout_ms": 5}),
                here("make")
            )
        );
        assert_eq!(
            [refused(".."), refused("/etc"), refused("a\0b")],
            ["INVALID_PARAMETERS"; 3]
        );
    }

    #[tokio::test]
    async fn a_long_output_is_masked_beside_the_workers_and_a_short_one_in_place() {
        let context = fixture::context();
        let here = std::thread::current().id();
        let was_here = async |bytes| {
            let thread = on_text(bytes, &context, || std::thread::current().id());
            thread.await.unwrap() == here
        };
        assert!(was_here(64 * 1024).await && !was_here(64 * 1024 + 1).await);

        let long = ExecResult {
            status: Some(0),
            stdout: "é\n".repeat(30_000) + "not-a-real-key",
            stderr: "password=hunter2".to_owned(),
            ..ExecResult::default()
        };
        let shown = run("x", Ok(long)).await.unwrap();
        assert!(
            shown.contains("\n[masked:1]\n[stderr]\npassword=[masked:1]\n"),
            "{shown}"
        );
    }

    #[tokio::test]
    async fn what_is_not_shown_can_be_read_on_by_page() {
        let printed: String = (0..20_000).map(|n| format!("{n}\n")).collect();
        let result = ExecResult {
            status: Some(0),
            bytes_printed: printed.len() as u64,
            stdout: printed.clone(),
            ..ExecResult::default()
        };
        let context = fixture::context_with_artifacts();
        let tool = erased(Bash::new(
            Arc::new(Scripted(policy(Network::Off), Ok(result))),
            Arc::new(Masker::new(["not-a-real-key"])),
        ));

        let shown = fixture::call_with(&tool, r#"{"command":"x"}"#, context.clone())
            .await
            .unwrap();

        assert!(
            shown.len() <= OBSERVATION_BYTES_MAX
                && shown.starts_with("0\n1\n")
                && shown.contains("\n19999\n[kept "),
            "{}",
            shown.len()
        );
        let id = shown
            .split("result_id=\"")
            .nth(1)
            .unwrap()
            .split('"')
            .next()
            .unwrap();
        let Artifacts { store, owner } = context.artifacts.unwrap();
        let kept = store
            .retrieve(owner, ArtifactId::parse(id).unwrap())
            .await
            .unwrap();
        assert_eq!(std::str::from_utf8(&kept).unwrap(), printed.trim_end());
    }

    #[tokio::test]
    async fn failures_have_their_class() {
        let timed_out = Ok(ExecResult {
            timed_out: true,
            ..ExecResult::default()
        });

        assert_eq!(
            run("x", timed_out).await.unwrap_err(),
            ToolError::new(
                ToolErrorType::Timeout,
                "Tool execution exceeded timeout limit"
            )
        );
        assert_eq!(
            run("x", Err(SandboxError::Cancelled))
                .await
                .unwrap_err()
                .code,
            "INTERRUPTED"
        );
        assert_eq!(
            run("x", Err(SandboxError::Limit("too much".to_owned())))
                .await
                .unwrap_err()
                .code,
            "RESOURCE_LIMIT"
        );
        let refused = run("rm -rf /", Err(SandboxError::Cancelled))
            .await
            .unwrap_err();
        assert_eq!(
            (refused.code.as_str(), refused.not_started),
            ("PERMISSION_DENIED", true)
        );
    }
}
