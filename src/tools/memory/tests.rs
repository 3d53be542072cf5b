use std::os::unix::fs::{PermissionsExt, symlink};

use callboard_actors::ports::{Tool, ToolOutput, erased};
use serde_json::{Value, json};

use super::*;
use crate::tools::fixture::context;

async fn call(tool: &Arc<dyn Tool>, tenant: &str, arguments: Value) -> Result<String, ToolError> {
    let mut context = context();
    context.key.scope = Scope::new(tenant.try_into().unwrap(), "c".try_into().unwrap());
    let arguments = RawJson::from_text(arguments.to_string()).unwrap();
    tool.check(&arguments)?;
    match tool.call(arguments, context).await? {
        ToolOutput::Text(text) => Ok(text),
        other => panic!("{other:?}"),
    }
}

fn write_of(path: &str, content: &str) -> Value {
    json!({ "action": "write", "path": path, "content": content })
}

#[tokio::test]
async fn what_is_written_is_read_listed_forgotten_and_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let tool = erased(Memory::per_tenant(folder.path()));
    assert_eq!(
        call(&tool, "t", json!({ "action": "view" })).await,
        Ok("[nothing is remembered yet]\n".to_owned())
    );

    let stored = call(&tool, "t", write_of("user/likes.md", "tea\nno sugar\n")).await;
    assert_eq!(stored, Ok("stored \"user/likes.md\" (13 bytes); the memory holds 1 of 256 keys and 13 of 1048576 bytes".to_owned()));
    call(&tool, "t", write_of(".gitignore", "*\n"))
        .await
        .unwrap();
    let restarted = erased(Memory::per_tenant(folder.path()));

    assert_eq!(
        call(&restarted, "t", json!({ "action": "view" })).await,
        Ok(".gitignore (2 bytes)\nuser/likes.md (13 bytes)\n".to_owned())
    );
    assert_eq!(
        call(&restarted, "t", json!({ "action": "view", "path": "user" })).await,
        Ok("user/likes.md (13 bytes)\n".to_owned())
    );
    assert_eq!(
        call(
            &restarted,
            "t",
            json!({ "action": "view", "path": "./user//likes.md" })
        )
        .await,
        Ok(format!("{MATERIAL}\ntea\nno sugar\n"))
    );
    assert_eq!(
        call(
            &restarted,
            "t",
            json!({ "action": "delete", "path": "user/likes.md" })
        )
        .await,
        Ok("forgot \"user/likes.md\"".to_owned())
    );
    assert_eq!(
        call(&restarted, "t", json!({ "action": "view" })).await,
        Ok(".gitignore (2 bytes)\n".to_owned())
    );
}

#[tokio::test]
async fn a_missing_key_and_a_malformed_call_are_error_results() {
    let folder = tempfile::tempdir().unwrap();
    let tool = erased(Memory::per_tenant(folder.path()));
    call(&tool, "t", write_of("a", "")).await.unwrap();

    for action in ["view", "delete"] {
        for path in ["b", "b/c", "a/b"] {
            let error = call(&tool, "t", json!({ "action": action, "path": path }))
                .await
                .unwrap_err();
            assert!(
                matches!(
                    error.kind,
                    ToolErrorType::NotFound | ToolErrorType::InvalidParameters
                ),
                "{action} {path}: {error:?}"
            );
        }
    }
    let gone = call(&tool, "t", json!({ "action": "delete", "path": "b" }))
        .await
        .unwrap_err();
    assert_eq!(
        gone.message,
        "nothing is remembered under \"b\"; view without path lists the keys"
    );
    assert_eq!(
        call(&tool, "t", json!({ "action": "view", "path": "a" })).await,
        Ok("[\"a\" is empty]".to_owned())
    );
    for bad in [
        json!({ "action": "write", "path": "x" }),
        json!({ "action": "write", "content": "x" }),
        json!({ "action": "delete" }),
        json!({ "action": "delete", "path": "." }),
        json!({ "action": "view", "path": "a", "content": "x" }),
        json!({ "action": "forget", "path": "a" }),
    ] {
        assert_eq!(
            call(&tool, "t", bad.clone()).await.unwrap_err().kind,
            ToolErrorType::InvalidParameters,
            "{bad}"
        );
    }
}

#[tokio::test]
async fn no_key_leaves_the_memory() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("outside"), "OUTSIDE").unwrap();
    let root = Arc::new(Root::private(folder.path().join("memory"), PathRules::default()).unwrap());
    let tool = erased(Memory::new(root, Quota::default()));
    symlink(
        folder.path().join("outside"),
        folder.path().join("memory/link"),
    )
    .unwrap();
    symlink(folder.path(), folder.path().join("memory/up")).unwrap();
    let absolute = folder.path().join("outside").to_str().unwrap().to_owned();
    let own = folder
        .path()
        .join("memory/own")
        .to_str()
        .unwrap()
        .to_owned();

    for path in [
        "../outside",
        "a/../../outside",
        "..",
        "/",
        &absolute,
        &own,
        "link",
        "up/outside",
        "up/new",
        "a\0b",
        "%2e%2e/outside",
        "a/../b",
        "x\ny",
    ] {
        for arguments in [
            json!({ "action": "view", "path": path }),
            write_of(path, "EVIL"),
            json!({ "action": "delete", "path": path }),
        ] {
            let answer = call(&tool, "t", arguments.clone()).await;
            assert!(
                path.starts_with('%') || answer.is_err(),
                "{arguments}: {answer:?}"
            );
            let text = answer.unwrap_or_else(|error| error.message);
            assert!(!text.contains("OUTSIDE"), "{arguments}: {text}");
        }
    }

    assert_eq!(
        std::fs::read_to_string(folder.path().join("outside")).unwrap(),
        "OUTSIDE"
    );
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[tokio::test]
async fn a_tenant_reads_its_own_memory_only_and_the_folder_is_private() {
    let folder = tempfile::tempdir().unwrap();
    let tool = erased(Memory::per_tenant(folder.path().join("data")));

    call(&tool, "one", write_of("secret", "of one"))
        .await
        .unwrap();

    let other = call(&tool, "two", json!({ "action": "view", "path": "secret" }))
        .await
        .unwrap_err();
    assert_eq!(other.kind, ToolErrorType::NotFound);
    assert_eq!(
        call(&tool, "two", json!({ "action": "view" })).await,
        Ok("[nothing is remembered yet]\n".to_owned())
    );
    let mode =
        |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let memory = folder.path().join("data/memory");
    let folders: Vec<PathBuf> = std::fs::read_dir(&memory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!((folders.len(), mode(&memory)), (2, 0o700));
    for tenant in folders {
        assert_eq!(
            (mode(&tenant), tenant.file_name().unwrap().len()),
            (0o700, 32)
        );
        if tenant.join("secret").exists() {
            assert_eq!(mode(&tenant.join("secret")), 0o600);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_quota_holds_also_for_many_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let tool = erased(Memory::per_tenant(folder.path()).quota(Quota {
        bytes: 100,
        files: 5,
        value_bytes: 60,
    }));

    let writes = (0..20).map(|n| {
        let tool = tool.clone();
        tokio::spawn(
            async move { call(&tool, "t", write_of(&format!("k{n}"), "0123456789")).await },
        )
    });
    let answers = futures_util::future::join_all(writes).await;
    let stored = answers
        .into_iter()
        .filter(|answer| answer.as_ref().unwrap().is_ok())
        .count();

    assert_eq!(stored, 5);
    let list = call(&tool, "t", json!({ "action": "view" })).await.unwrap();
    let key = list.split(' ').next().unwrap();
    let full = call(&tool, "t", write_of("more", "")).await.unwrap_err();
    assert_eq!((full.code.as_str(), full.not_started), ("QUOTA", true));
    let large = call(&tool, "t", write_of(key, &"x".repeat(61)))
        .await
        .unwrap_err();
    assert_eq!(
        large.message,
        "the value has 61 bytes; at most 60 are kept under one key"
    );
    // The value that is replaced does not count towards the quota.
    call(&tool, "t", write_of(key, &"x".repeat(60)))
        .await
        .unwrap();
    let over = call(
        &tool,
        "t",
        write_of(
            list.lines().last().unwrap().split(' ').next().unwrap(),
            "01234567890",
        ),
    )
    .await
    .unwrap_err();
    assert!(
        over.message.contains("101 of 100 bytes"),
        "{}",
        over.message
    );
}

#[tokio::test]
async fn what_a_killed_host_left_half_written_is_no_key_and_goes() {
    let folder = tempfile::tempdir().unwrap();
    let root = Arc::new(Root::private(folder.path().join("memory"), PathRules::default()).unwrap());
    let tool = erased(Memory::new(root, Quota::default()));
    let half = folder.path().join("memory/.callboard-0123456789abcdef.tmp");
    std::fs::write(&half, "half").unwrap();

    assert_eq!(
        call(&tool, "t", json!({ "action": "view" })).await,
        Ok("[nothing is remembered yet]\n".to_owned())
    );
    call(&tool, "t", write_of("a", "b")).await.unwrap();

    assert!(!half.exists());
    let error = call(&tool, "t", write_of(".callboard-0123456789abcdef.tmp", "b"))
        .await
        .unwrap_err();
    assert_eq!(error.kind, ToolErrorType::InvalidParameters);
}

#[tokio::test]
async fn a_conversation_reads_its_own_notes_only_and_they_go_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let tool = erased(Memory::per_conversation(folder.path()));
    let scope =
        |tenant: &str, id: &str| Scope::new(tenant.try_into().unwrap(), id.try_into().unwrap());
    let call = async |scope: &Scope, arguments: Value| {
        let mut context = context();
        context.key.scope = scope.clone();
        match tool
            .call(RawJson::from_text(arguments.to_string()).unwrap(), context)
            .await?
        {
            ToolOutput::Text(text) => Ok::<_, ToolError>(text),
            other => panic!("{other:?}"),
        }
    };
    let (one, two, other) = (scope("t", "one"), scope("t", "two"), scope("u", "one"));
    call(&one, write_of("notes", "CUSTOMER-1-CANARY"))
        .await
        .unwrap();

    for stranger in [&two, &other] {
        assert_eq!(
            call(stranger, json!({ "action": "view" })).await.unwrap(),
            NOTHING
        );
        assert_eq!(
            call(stranger, json!({ "action": "view", "path": "notes" }))
                .await
                .unwrap_err()
                .kind,
            ToolErrorType::NotFound
        );
        assert!(
            call(stranger, json!({ "action": "delete", "path": "notes" }))
                .await
                .is_err()
        );
    }
    assert_eq!(
        call(&one, json!({ "action": "view", "path": "notes" }))
            .await
            .unwrap(),
        format!("{MATERIAL}\nCUSTOMER-1-CANARY")
    );
    call(&two, write_of("notes", "of two")).await.unwrap();

    tool.forget_conversation(&one).await.unwrap();
    tool.forget_conversation(&one).await.unwrap();
    assert_eq!(
        call(&one, json!({ "action": "view" })).await.unwrap(),
        NOTHING
    );
    assert_eq!(
        call(&two, json!({ "action": "view", "path": "notes" }))
            .await
            .unwrap(),
        format!("{MATERIAL}\nof two")
    );
    tool.forget(&two.tenant).await.unwrap();
    assert_eq!(
        call(&two, json!({ "action": "view" })).await.unwrap(),
        NOTHING
    );
    assert!(
        tool.spec()
            .definition
            .description
            .contains("other conversations do not see them")
    );
}
