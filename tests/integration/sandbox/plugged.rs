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
async fn the_bash_tool_goes_on_where_it_left_off_for_each_conversation() {
    for fixture in
        SandboxFixture::both("the_bash_tool_goes_on_where_it_left_off_for_each_conversation")
    {
        fs::create_dir_all(fixture.path("a/b")).unwrap();
        let root = Arc::new(Root::open(fixture.path(""), PathRules::default()).unwrap());
        let toolbox = tools::over(
            root,
            Some(fixture.sandbox.clone()),
            Masker::new([] as [&str; 0]),
        );
        let bash = toolbox.get("bash").unwrap().clone();
        let say = async |conversation: &str, command: &str| {
            let mut context = contract::example_context(CancellationToken::new());
            context.key.scope.conversation = conversation.try_into().unwrap();
            match bash
                .call(
                    RawJson::of(&json!({ "command": command })).unwrap(),
                    context,
                )
                .await
                .unwrap()
            {
                ToolOutput::Text(text) => text.to_string(),
                other => panic!("{other:?}"),
            }
        };

        assert_eq!(
            say("one", "cd a/b").await,
            "[no output]\n[the next command starts in \"a/b\"]"
        );
        assert!(say("one", "pwd").await.ends_with("/a/b"));
        assert!(
            say("two", "pwd").await.lines().count() == 1 && !say("two", "pwd").await.contains("/a")
        );
        assert_eq!(
            say("one", "cd ..; rmdir b; cd /usr").await,
            "[no output]",
            "one outside is not kept"
        );
        assert!(
            say("one", "sleep 100 & echo now")
                .await
                .contains("[the folder \"a/b\" is gone")
        );
        assert_eq!(
            say("one", "sleep 100 & echo now").await,
            "now\n[1 process still ran in the background when the command ended; it was killed]"
        );
    }
}
