//! Locks of files through a port: hosts that share one provider take turns on a file.

use std::{
    any::Any,
    path::Path,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{subagents::results, *};
use crate::{
    conversation::round::rules::ApprovalMode,
    ids::TenantId,
    ports::{FnTool, LockProvider},
    testing::{Reply, ScriptedModel},
    tool::ToolErrorType,
};

/// One lock for every file, which two hosts share.
#[derive(Clone, Default)]
struct OneLock {
    lock: Arc<tokio::sync::Mutex<()>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl LockProvider for OneLock {
    fn take<'a>(
        &'a self,
        tenant: &'a TenantId,
        _: Option<&'a Path>,
        path: &'a str,
    ) -> BoxFuture<'a, Result<Box<dyn Any + Send>, ToolError>> {
        self.asked.lock().push(format!("{tenant} {path}"));
        Box::pin(async move {
            if path == "gone.txt" {
                return Err(ToolError::new(
                    ToolErrorType::ResourceError,
                    "no lock server",
                ));
            }
            let guard: Box<dyn Any + Send> = Box::new(self.lock.clone().lock_owned().await);
            Ok(guard)
        })
    }
}

#[tokio::test(start_paused = true)]
async fn hosts_that_share_a_lock_provider_take_turns_on_a_file() {
    let model = Arc::new(ScriptedModel::answering(|request, _| {
        match (request.messages.len(), subagents::task(request).as_str()) {
            (1, path) => Reply::tool("edit", &json!({ "path": path })),
            _ => Reply::text(results(request).join("|")),
        }
    }));
    let locks = OneLock::default();
    let [running, most, starts] = std::array::from_fn(|_| Arc::new(AtomicU32::new(0)));
    let edit = || {
        let (running, most, starts) = (running.clone(), most.clone(), starts.clone());
        let work = move |_: Value, _: ToolContext| {
            let (running, most, starts) = (running.clone(), most.clone(), starts.clone());
            async move {
                starts.fetch_add(1, Ordering::SeqCst);
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(10)).await;
                running.fetch_sub(1, Ordering::SeqCst);
                Ok("edited".to_owned())
            }
        };
        FnTool::raw("edit", "", &json!({}), work, Some("path"))
    };
    let begin = async || {
        let host = builder(&model)
            .approval(ApprovalMode::Auto)
            .tools([Arc::new(edit()) as Arc<dyn Tool>])
            .file_locks(locks.clone());
        host.build().await.unwrap()
    };
    let (one, two) = (begin().await, begin().await);
    let say = async |host: &Host, text: &'static str| {
        let mut reply = conversation(host).send(text).await.unwrap();
        reply.outcome().await.unwrap().text
    };

    let both = tokio::join!(say(&one, "a.txt"), say(&two, "./b/../a.txt"));
    assert_eq!(both, ("edited".into(), "edited".into()));
    assert_eq!(most.load(Ordering::SeqCst), 1, "never both at once");
    assert_eq!(*locks.asked.lock(), ["acme a.txt", "acme a.txt"]);

    let host = begin().await;
    let refused = say(&host, "gone.txt").await;
    assert!(refused.contains("no lock server"), "{refused}");
    assert_eq!(
        starts.load(Ordering::SeqCst),
        2,
        "without its lock a call is not started"
    );
}
