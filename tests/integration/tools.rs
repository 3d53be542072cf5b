//! The built-in tools as a model calls them: no call reaches files outside of the workspace, and no
//! output contains a secret.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use callboard::{
    chat::RawJson,
    ids::{CallKey, Scope, Seq},
    ports::{
        Approval, CachePolicy, Concurrency, Extensions, Progress, Reach, ToolContext, ToolOutput,
    },
    tool::{EffectClass, ToolError, ToolErrorType},
    tools::{self, Mode, Toolbox},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

struct Ground {
    folder: tempfile::TempDir,
    toolbox: Toolbox,
}

impl Ground {
    fn new(mode: Mode) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("workspace")).unwrap();
        fs::write(folder.path().join("outside.txt"), "OUTSIDE").unwrap();
        let toolbox = tools::with_sandbox(folder.path().join("workspace"), mode);
        Self { folder, toolbox }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("workspace").join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    async fn call(&self, tool: &str, arguments: Value) -> Result<String, ToolError> {
        self.call_with(tool, arguments, CancellationToken::new())
            .await
    }

    async fn call_with(
        &self,
        tool: &str,
        arguments: Value,
        cancel: CancellationToken,
    ) -> Result<String, ToolError> {
        let arguments = RawJson::from_text(arguments.to_string()).unwrap();
        let tool = self.toolbox.get(tool).unwrap();
        tool.check(&arguments)?;
        match tool.call(arguments, context(cancel)).await? {
            ToolOutput::Text(text) => Ok(text),
            ToolOutput::Data(data) => Ok(data.to_string()),
            ToolOutput::Shown { text, .. } => Ok(text),
            ToolOutput::Activation(result) => Ok(result.text()),
        }
    }

    /// Calls every file tool with one path.
    async fn all(&self, path: &str) -> Vec<Result<String, ToolError>> {
        vec![
            self.call("file_read", json!({ "path": path })).await,
            self.call("file_list", json!({ "path": path })).await,
            self.call("grep_search", json!({ "path": path, "pattern": "." }))
                .await,
            self.call(
                "file_edit",
                json!({ "path": path, "old_text": "OUTSIDE", "new_text": "EVIL" }),
            )
            .await,
            self.call(
                "file_edit",
                json!({ "path": path, "old_text": "", "new_text": "EVIL" }),
            )
            .await,
        ]
    }

    fn outside(&self) -> String {
        fs::read_to_string(self.folder.path().join("outside.txt")).unwrap()
    }
}

fn context(cancel: CancellationToken) -> ToolContext {
    ToolContext {
        key: CallKey {
            scope: Scope::new("t".try_into().unwrap(), "c".try_into().unwrap()),
            seq: Seq(1),
            index: 0,
        },
        tool_call_id: "call_1".to_owned(),
        cancel,
        deadline: tokio::time::Instant::now() + Duration::from_secs(60),
        attempt: 0,
        progress: Progress::silent(),
        workspace: None,
        extensions: Extensions::default(),
        artifacts: None,
    }
}

#[test]
fn every_tool_declares_what_it_does() {
    let ground = Ground::new(Mode::Local);
    let declared: Vec<_> = ground
        .toolbox
        .tools
        .iter()
        .map(|tool| tool.spec())
        .map(|spec| {
            (
                spec.name().to_owned(),
                spec.effect,
                spec.concurrency.clone(),
                spec.approval,
                spec.definition.input_schema.is_object(),
            )
        })
        .collect();

    let pure = |name: &str| {
        (
            name.to_owned(),
            EffectClass::Pure,
            Concurrency::Parallel,
            Approval::Never,
            true,
        )
    };
    assert_eq!(
        declared,
        [
            pure("think"),
            pure("read_more"),
            pure("file_read"),
            (
                "file_edit".to_owned(),
                EffectClass::Once,
                Concurrency::PerFile("path".to_owned()),
                Approval::ByMode,
                true
            ),
            pure("file_list"),
            pure("grep_search"),
            (
                "bash".to_owned(),
                EffectClass::Once,
                Concurrency::Exclusive,
                Approval::ByMode,
                true
            ),
        ]
    );
    for tool in &ground.toolbox.tools {
        let spec = tool.spec();
        let reach = tool.spec().reach;
        let expected = match spec.name() {
            "think" => Reach::Nothing,
            "read_more" => Reach::Store,
            "bash" => continue, // has separate tests
            _ => Reach::Files,
        };
        assert_eq!(
            (reach, spec.shared, spec.cache),
            (expected, false, CachePolicy::NoCache),
            "{}",
            spec.name()
        );
    }
    let schema: Value = ground
        .toolbox
        .get("file_read")
        .unwrap()
        .spec()
        .definition
        .input_schema
        .parse()
        .unwrap();
    assert_eq!(schema["required"], json!(["path"]));
    assert_eq!(
        schema["properties"]["path"]["description"],
        json!("Path of the file, relative to the workspace; or an artifact_id.")
    );
    assert_eq!(ground.toolbox.notes.len(), 1);
    assert!(ground.toolbox.notes[0].contains("WITHOUT a boundary"));
}

#[test]
fn a_bad_workspace_is_reported_and_leaves_only_tools_that_need_none() {
    let toolbox = tools::standard("/nowhere/at/all");

    assert_eq!(
        toolbox.error(),
        Some(
            "the workspace /nowhere/at/all cannot be opened: No such file or directory; create it or name another folder"
        )
    );
    assert_eq!(
        toolbox
            .into_iter()
            .map(|tool| tool.spec().name().to_owned())
            .collect::<Vec<_>>(),
        ["think", "read_more"]
    );
}

#[tokio::test]
async fn no_path_leaves_the_workspace() {
    let ground = Ground::new(Mode::None);
    let outside = ground.folder.path().join("outside.txt");
    symlink(&outside, ground.path("link")).unwrap();
    symlink(ground.folder.path(), ground.path("up")).unwrap();
    symlink("../outside.txt", ground.path("relative")).unwrap();
    symlink("link", ground.path("chain")).unwrap();
    symlink("chain", ground.path("chain2")).unwrap();
    symlink("/proc/self/cwd", ground.path("magic")).unwrap();
    symlink("loop", ground.path("loop")).unwrap();
    ground.write("dir/file", "x");
    let absolute = outside.to_string_lossy().into_owned();
    let paths = [
        "../outside.txt",
        "dir/../../outside.txt",
        "dir/../../workspace/../outside.txt",
        "./../outside.txt",
        "..//outside.txt",
        &absolute,
        "/etc/passwd",
        "link",
        "up/outside.txt",
        "relative",
        "chain",
        "chain2",
        "magic/outside.txt",
        "loop",
        "/proc/self/environ",
        "/proc/self/fd/0",
        "dir/file/../../../outside.txt",
        "%2e%2e/outside.txt",
        "..%2foutside.txt",
        "..\\outside.txt",
        "\u{ff0e}\u{ff0e}/outside.txt",
        "/workspace/../outside.txt",
        "../workspace2/x",
        "..",
        "/",
        "nul\0../outside.txt",
    ];

    for path in paths {
        for answer in ground.all(path).await {
            let text = match &answer {
                Ok(text) => text.clone(),
                Err(error) => error.message.clone(),
            };
            assert!(
                !text.contains("OUTSIDE") && !text.contains("root:"),
                "{path}: {text}"
            );
            // No host path appears that the model did not write itself.
            let host = ground.folder.path().to_string_lossy().into_owned();
            assert!(!text.replace(path, "").contains(&host), "{path}: {text}");
        }
    }

    assert_eq!(ground.outside(), "OUTSIDE");
    let names: Vec<_> = fs::read_dir(ground.folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names.len(), 2, "{names:?}");
    let refused = ground
        .call("file_read", json!({ "path": "../outside.txt" }))
        .await
        .unwrap_err();
    assert_eq!(
        (refused.kind, refused.message.as_str()),
        (
            ToolErrorType::PermissionDenied,
            "\"../outside.txt\" is outside of the workspace"
        )
    );
}

#[tokio::test]
async fn odd_names_and_inner_links_work() {
    let ground = Ground::new(Mode::None);
    for name in [
        "..foo",
        "...",
        "with space",
        "ünï©ödé",
        "-dash",
        "a/..b/c",
        "new\nline",
        "quote\"'",
    ] {
        ground.write(name, "text");
        assert_eq!(
            ground.call("file_read", json!({ "path": name })).await,
            Ok("1\ttext\n".to_owned()),
            "{name:?}"
        );
        ground
            .call(
                "file_edit",
                json!({ "path": name, "old_text": "text", "new_text": "TEXT" }),
            )
            .await
            .unwrap();
        assert_eq!(
            fs::read_to_string(ground.path(name)).unwrap(),
            "TEXT",
            "{name:?}"
        );
    }
    symlink("with space", ground.path("inner")).unwrap();
    symlink(ground.path("with space"), ground.path("absolute")).unwrap();
    symlink("a", ground.path("folder")).unwrap();

    for path in [
        "inner",
        "absolute",
        "folder/..b/c",
        "folder/../..foo",
        "./a/./..b/../..b/c",
    ] {
        assert_eq!(
            ground.call("file_read", json!({ "path": path })).await,
            Ok("1\tTEXT\n".to_owned()),
            "{path}"
        );
    }
    for path in [
        ground.path("..foo").to_string_lossy().into_owned(),
        "/workspace/..foo".to_owned(),
    ] {
        assert_eq!(
            ground.call("file_read", json!({ "path": path })).await,
            Ok("1\tTEXT\n".to_owned()),
            "{path}"
        );
    }
    for (path, message) in [
        (
            "inner",
            r#""inner" is a link to "with space"; edit that path itself"#,
        ),
        (
            "absolute",
            r#""absolute" is a link to "with space"; edit that path itself"#,
        ),
        (
            "folder/..b/c",
            r#""folder" is a link to "a"; edit "a/..b/c" itself"#,
        ),
    ] {
        let through = ground
            .call(
                "file_edit",
                json!({ "path": path, "old_text": "TEXT", "new_text": "through" }),
            )
            .await
            .unwrap_err();
        assert_eq!(
            through.message, message,
            "what is approved is what is changed"
        );
    }
    assert!(
        fs::symlink_metadata(ground.path("inner"))
            .unwrap()
            .is_symlink()
    );
    assert_eq!(
        fs::read_to_string(ground.path("with space")).unwrap(),
        "TEXT"
    );
}

#[tokio::test]
async fn fifos_devices_and_sockets_are_refused_at_once() {
    let ground = Ground::new(Mode::None);
    let made = std::process::Command::new("mkfifo")
        .arg(ground.path("fifo"))
        .status()
        .unwrap();
    assert!(made.success());
    let _socket = std::os::unix::net::UnixListener::bind(ground.path("socket")).unwrap();
    // Creating a device needs a right that the test may lack. Another test binds a device in the
    // sandbox.
    let device = std::process::Command::new("mknod")
        .arg(ground.path("device"))
        .args(["c", "1", "5"])
        .status()
        .is_ok_and(|status| status.success());

    let start = Instant::now();
    for (path, kind) in [
        ("fifo", "a fifo"),
        ("socket", "a socket"),
        ("device", "a device"),
    ] {
        if path == "device" && !device {
            continue;
        }
        let read = ground
            .call("file_read", json!({ "path": path }))
            .await
            .unwrap_err();
        assert_eq!(
            read.message,
            format!("{path:?} is {kind}, not a regular file")
        );
        for answer in ground.all(path).await {
            assert!(answer.is_err(), "{path}: {answer:?}");
        }
    }
    assert_eq!(
        ground.call("grep_search", json!({ "pattern": "x" })).await,
        Ok("[no match]\n".to_owned())
    );
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn files_that_hold_keys_are_refused_also_through_links_and_search() {
    let ground = Ground::new(Mode::None);
    for path in [
        ".env",
        ".env.production",
        ".envrc",
        "deploy/prod.env",
        "deep/id_rsa",
        "cert.pem",
        ".aws/credentials",
        ".ssh/config",
    ] {
        ground.write(path, "NEEDLE=1\n");
    }
    ground.write(".env.example", "EXAMPLE=1\n");
    ground.write("deploy/example.env", "EXAMPLE=2\n");
    ground.write("one.txt", "NEEDLE=not a key\n");
    fs::hard_link(ground.path("deep/id_rsa"), ground.path("twin")).unwrap();
    fs::hard_link(ground.path("one.txt"), ground.path("two.txt")).unwrap();
    symlink(".env", ground.path("innocent")).unwrap();
    symlink("innocent", ground.path("more-innocent")).unwrap();
    symlink(".ssh", ground.path("folder")).unwrap();
    symlink(ground.path(".env"), ground.path("absolute")).unwrap();

    for path in [
        ".env",
        "./.env",
        "deep/../.env",
        ".env.production",
        ".envrc",
        "deploy/prod.env",
        "deep/id_rsa",
        "cert.pem",
        ".aws/credentials",
        ".ssh/config",
        "innocent",
        "more-innocent",
        "folder/config",
        "absolute",
        "twin",
    ] {
        for (at, answer) in ground.all(path).await.into_iter().enumerate() {
            let error = answer.unwrap_err();
            assert!(!error.message.contains("NEEDLE"), "{path}");
            assert!(
                at == 1 || error.kind == ToolErrorType::PermissionDenied,
                "{path}: {at}: {error:?}"
            );
        }
    }
    let search = ground
        .call(
            "grep_search",
            json!({ "pattern": "NEEDLE|EXAMPLE", "context": 2 }),
        )
        .await
        .unwrap();
    assert_eq!(
        search,
        ".env.example:1: EXAMPLE=1\ndeploy/example.env:1: EXAMPLE=2\none.txt:1: NEEDLE=not a key\ntwo.txt:1: NEEDLE=not a key\n[9 files that may hold keys were not searched]\n"
    );
    assert_eq!(
        fs::read_to_string(ground.path(".env")).unwrap(),
        "NEEDLE=1\n"
    );
}

#[tokio::test]
async fn the_tools_of_a_library_write_no_program_of_the_users_shell() {
    const FOLDER: &str = "CALLBOARD_TEST_WORKSPACE";
    let test = "tools::the_tools_of_a_library_write_no_program_of_the_users_shell";
    // `PATH` is the process's, so the test runs in another one.
    let Ok(folder) = std::env::var(FOLDER) else {
        let folder = tempfile::tempdir().unwrap();
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env("PATH", folder.path().join("bin"))
            .env(FOLDER, folder.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let is_done = output.status.success() && said.contains("1 passed");
        assert!(
            is_done,
            "{said} {}",
            String::from_utf8_lossy(&output.stderr)
        );
        return;
    };
    let workspace = PathBuf::from(&folder).join("bin");
    let ground = Ground {
        toolbox: tools::with_sandbox(&folder, Mode::None),
        folder: tempfile::tempdir().unwrap(),
    };
    let create = |path: &str| json!({ "path": path, "old_text": "", "new_text": "x" });

    let planted = ground.call("file_edit", create("bin/git")).await;
    let own = ground.call("file_edit", create("bin/of-the-project")).await;

    assert_eq!(planted.unwrap_err().kind, ToolErrorType::PermissionDenied);
    assert!(own.is_ok() && !workspace.join("git").exists(), "{own:?}");
    let refused = tools::with_sandbox(PathBuf::from(folder).join(".ssh"), Mode::None);
    assert!(refused.error().unwrap().contains("may hold keys"));
    assert!(refused.get("file_read").is_none());
}

#[tokio::test]
async fn protected_files_are_not_written_also_through_links() {
    let ground = Ground::new(Mode::None);
    ground.write(".git/config", "config");
    ground.write(".git/hooks/pre-commit.sample", "x");
    ground.write("callboard.toml", "x");
    ground.write("x/y", "x");
    symlink(".git/hooks", ground.path("tools")).unwrap();
    symlink(".git/config", ground.path("notes")).unwrap();
    symlink("callboard.toml", ground.path("c")).unwrap();
    symlink(".mcp.json", ground.path("dangling")).unwrap();
    let paths = [
        ".git/config",
        ".git/hooks/pre-commit",
        "tools/pre-commit",
        "notes",
        "c",
        "callboard.toml",
        ".mcp.json",
        "dangling",
        ".callboard/x",
        ".bashrc",
        "sub/.git/hooks/post-merge",
        ".GIT/hooks/x",
        "./x/../.git/config",
        ".vscode/mcp.json",
        ".config/fish/config.fish",
        ".git",
    ];

    for path in paths {
        for arguments in [
            json!({ "path": path, "old_text": "", "new_text": "EVIL" }),
            json!({ "path": path, "old_text": "config", "new_text": "EVIL" }),
        ] {
            let error = ground.call("file_edit", arguments).await.unwrap_err();
            assert_eq!(
                error.message,
                format!("{path:?} is protected: only the user may change it")
            );
        }
    }

    assert_eq!(
        fs::read_to_string(ground.path(".git/config")).unwrap(),
        "config"
    );
    assert_eq!(fs::read_dir(ground.path(".git/hooks")).unwrap().count(), 1);
    assert!(
        !ground.path(".mcp.json").exists()
            && !ground.path("sub").exists()
            && !ground.path(".callboard").exists()
    );
}

#[tokio::test]
async fn a_cancelled_search_stops() {
    let ground = Ground::new(Mode::None);
    (0..200).for_each(|n| ground.write(&format!("d{n}/f"), "text\n"));
    let cancel = CancellationToken::new();
    cancel.cancel();

    for (tool, arguments) in [
        ("grep_search", json!({ "pattern": "text" })),
        ("file_list", json!({ "depth": 5 })),
    ] {
        assert_eq!(
            ground
                .call_with(tool, arguments, cancel.clone())
                .await
                .unwrap_err()
                .code,
            "INTERRUPTED"
        );
    }
}

#[tokio::test]
async fn bash_runs_in_the_workspace_and_hides_keys() {
    let ground = Ground::new(Mode::Auto);
    if ground.toolbox.get("bash").is_none() {
        use std::io::Write;
        writeln!(
            &mut std::io::stderr(),
            "SKIPPED: bash_runs_in_the_workspace_and_hides_keys: {:?}",
            ground.toolbox.notes
        )
        .unwrap();
        return;
    }
    ground.write("a.txt", "one\ntwo\n");

    assert_eq!(
        ground
            .call(
                "bash",
                json!({ "command": "wc -l < a.txt; echo oops >&2; exit 4" })
            )
            .await,
        Ok("[exit status 4]\n2\n[stderr]\noops".to_owned())
    );
    assert_eq!(
        ground
            .call("bash", json!({ "command": "echo API_KEY=abc123def456" }))
            .await,
        Ok("API_KEY=[masked:1]".to_owned())
    );
    let late = ground
        .call("bash", json!({ "command": "sleep 30", "timeout_ms": 200 }))
        .await
        .unwrap_err();
    assert_eq!(
        (late.kind, late.message.as_str()),
        (
            ToolErrorType::Timeout,
            "Tool execution exceeded timeout limit"
        )
    );
    let host = ground.folder.path().to_string_lossy().into_owned();
    let look = ground
        .call(
            "bash",
            json!({ "command": "pwd; cat /proc/self/mountinfo; cat nowhere" }),
        )
        .await
        .unwrap();
    assert!(look.contains("/workspace\n"));
    assert!(!look.split("[stderr]").nth(1).unwrap().contains(&host));
}

#[tokio::test]
async fn git_init_and_commit_work_in_the_sandbox() {
    let ground = Ground::new(Mode::Auto);
    let git = Path::new("/usr/bin/git").exists() || Path::new("/usr/local/bin/git").exists();
    if ground.toolbox.get("bash").is_none() || !git {
        use std::io::Write;
        writeln!(
            &mut std::io::stderr(),
            "SKIPPED: git_init_and_commit_work_in_the_sandbox: no bash tool or no git"
        )
        .unwrap();
        return;
    }
    // Without background maintenance: on a busy machine it could still run when the command ends,
    // and the result would mention it.
    let quiet = "-c user.name=a -c user.email=a@b -c maintenance.auto=false -c gc.auto=0";
    let commit = format!("git add . && git {quiet} commit -qm one && git log --oneline | wc -l");
    ground.write("a.txt", "x");

    let init = ground
        .call(
            "bash",
            json!({ "command": format!("git init -q . && {commit}") }),
        )
        .await
        .unwrap();
    ground.write("a.txt", "y");
    let again = ground
        .call("bash", json!({ "command": &commit }))
        .await
        .unwrap();

    assert!(
        init.starts_with("1\n") && init.contains("[refused: .git/config "),
        "{init}"
    );
    assert_eq!(again, "2");
}
