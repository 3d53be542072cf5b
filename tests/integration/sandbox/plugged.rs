//! A third-party sandbox: another implementation of the port serves the same `bash`.

use callboard::{
    mask::Masker,
    ports::{BoxFuture, SandboxPolicy},
    tools,
};
use callboard_actors::{chat::RawJson, ports::ToolOutput, testing::contract};
use serde_json::json;

use super::*;

/// Stands for a container: runs commands elsewhere, here in the local sandbox.
struct Container {
    policy: SandboxPolicy,
    within: Local,
}

impl Sandbox for Container {
    fn policy(&self) -> &SandboxPolicy {
        &self.policy
    }

    fn validate_path(&self, path: &str) -> Result<PathBuf, SandboxError> {
        self.within.validate_path(path)
    }

    fn exec(
        &self,
        exec: Exec,
        cancel: CancellationToken,
    ) -> BoxFuture<'_, Result<ExecResult, SandboxError>> {
        self.within.exec(
            Exec {
                command: format!("IN=container; {}", exec.command),
                ..exec
            },
            cancel,
        )
    }
}

#[tokio::test]
async fn a_sandbox_of_ones_own_can_be_plugged_in() {
    let folder = tempfile::tempdir().unwrap();
    let root = Arc::new(Root::open(folder.path(), PathRules::default()).unwrap());
    let within = Local::new(
        root.clone(),
        &Spawner::start().unwrap(),
        ExecLimits::default(),
    );
    let policy = SandboxPolicy {
        kind: "container",
        boundary: true,
        network: Network::Off,
        ..within.policy().clone()
    };
    let container: Arc<dyn Sandbox> = Arc::new(Container { policy, within });

    contract::sandbox(container.clone()).await;
    let toolbox = tools::over(root, Some(container), Masker::new([] as [&str; 0]));
    let bash = toolbox.get("bash").unwrap();
    let call = RawJson::of(&json!({ "command": "echo $IN" })).unwrap();
    let said = bash
        .call(call, contract::example_context(CancellationToken::new()))
        .await
        .unwrap();

    assert_eq!(said, ToolOutput::Text("container".into()));
}

#[tokio::test]
async fn a_command_starts_in_the_folder_that_its_question_shows_and_no_other_command_moves_it() {
    for fixture in SandboxFixture::both(
        "a_command_starts_in_the_folder_that_its_question_shows_and_no_other_command_moves_it",
    ) {
        fs::create_dir_all(fixture.path("a/b")).unwrap();
        let root = Arc::new(Root::open(fixture.path(""), PathRules::default()).unwrap());
        let toolbox = tools::over(
            root,
            Some(fixture.sandbox.clone()),
            Masker::new([] as [&str; 0]),
        );
        let bash = toolbox.get("bash").unwrap().clone();
        let try_say = async |arguments: serde_json::Value| {
            let context = contract::example_context(CancellationToken::new());
            bash.call(RawJson::of(&arguments).unwrap(), context).await
        };
        let say = async |arguments| match try_say(arguments).await.unwrap() {
            ToolOutput::Text(text) => text.to_string(),
            other => panic!("{other:?}"),
        };

        // `cd` needs no approval, so it must not decide where an approved command runs.
        assert_eq!(
            say(json!({"command": "cd a/b"})).await,
            "[no output]\n[the command ended in \"a/b\"; folder=\"a/b\" starts the next one there]"
        );
        assert_eq!(say(json!({"command": "pwd"})).await.lines().count(), 1);
        assert!(!say(json!({"command": "pwd"})).await.contains("/a"));
        assert!(
            say(json!({"command": "pwd", "folder": "a/b"}))
                .await
                .ends_with("/a/b")
        );
        assert_eq!(
            say(json!({"command": "cd ../..", "folder": "a/b"})).await,
            "[no output]\n[the command ended in the workspace; the next one starts there without folder]"
        );
        assert_eq!(
            say(json!({"command": "cd ..; rmdir b; cd /usr", "folder": "a/b"})).await,
            "[no output]",
            "a folder outside is not named"
        );
        let gone = try_say(json!({"command": "touch x", "folder": "a/b"})).await;
        assert!(gone.unwrap_err().not_started);
        assert!(!fixture.path("x").exists());
        assert_eq!(
            say(json!({"command": "sleep 100 & echo now"})).await,
            "now\n[1 process still ran in the background when the command ended; it was killed]"
        );
    }
}
