//! The contract suite of sandboxes: exact exit status and output, limits of time and output,
//! cancellation, a root that paths and working folders cannot leave, and denials that are distinct
//! from failures.

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::ports::{Exec, Sandbox, SandboxError};

/// Longest time for a stopped command to end.
const END_MAX: Duration = Duration::from_secs(5);

/// Checks a sandbox over an empty, writable folder. It must have a `bash`.
pub async fn sandbox(sandbox: Arc<dyn Sandbox>) {
    let kind = sandbox.policy().kind;
    assert_eq!(
        sandbox.policy(),
        sandbox.policy(),
        "{kind}: the same policy at every look"
    );
    let shown = serde_json::to_string(sandbox.policy()).unwrap();
    assert!(
        !shown.contains(&*sandbox.policy().root.to_string_lossy()),
        "{kind}: a policy that is shown holds no path of the host"
    );
    let run = |exec: Exec| sandbox.exec(exec, CancellationToken::new());

    let plain = run(Exec::new("echo out; echo err >&2; exit 3"))
        .await
        .unwrap();
    assert_eq!(
        (plain.status, plain.stdout.as_str(), plain.stderr.as_str()),
        (Some(3), "out\n", "err\n"),
        "{kind}: status and output"
    );
    assert_eq!(
        (plain.bytes_printed, plain.bytes_left_out, plain.timed_out),
        (8, 0, false),
        "{kind}: the account"
    );

    let long = run(Exec {
        output_bytes_max: 1000,
        ..Exec::new("for n in {1..5000}; do echo $n; done")
    })
    .await
    .unwrap();
    assert!(
        long.stdout.len() < 1200
            && long.stdout.starts_with("1\n2\n")
            && long.stdout.ends_with("5000\n"),
        "{kind}: head and tail"
    );
    assert_eq!(long.bytes_printed, 23_893, "{kind}: every byte counts");
    assert!(
        long.bytes_left_out >= 22_893,
        "{kind}: {}",
        long.bytes_left_out
    );

    run(Exec::new(
        "mkdir -p contract/inner; echo kept > contract/file",
    ))
    .await
    .unwrap();
    let inner = Exec {
        working_dir: Some(PathBuf::from("contract")),
        ..Exec::new("cat file")
    };
    assert_eq!(
        run(inner).await.unwrap().stdout,
        "kept\n",
        "{kind}: a working folder"
    );
    for outside in ["..", "/", "contract/../.."] {
        let exec = Exec {
            working_dir: Some(PathBuf::from(outside)),
            ..Exec::new("echo ran")
        };
        assert!(
            matches!(run(exec).await, Err(SandboxError::Denied(_))),
            "{kind}: {outside} is denied, it does not fail"
        );
        assert!(
            matches!(sandbox.validate_path(outside), Err(SandboxError::Denied(_))),
            "{kind}: {outside}"
        );
    }
    assert!(
        sandbox
            .validate_path("contract/new/file")
            .unwrap()
            .ends_with("contract/new/file"),
        "{kind}: by the nearest parent"
    );

    let start = Instant::now();
    let late = run(Exec {
        timeout: Duration::from_secs(1),
        ..Exec::new("echo before; sleep 100")
    })
    .await
    .unwrap();
    assert_eq!(
        (late.timed_out, late.status, late.stdout.as_str()),
        (true, None, "before\n"),
        "{kind}: a timeout"
    );
    assert!(start.elapsed() < END_MAX, "{kind}: {:?}", start.elapsed());

    let cancel = CancellationToken::new();
    let start = Instant::now();
    let soon = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        cancel.cancel();
    };
    let (cancelled, ()) = tokio::join!(sandbox.exec(Exec::new("sleep 100"), cancel.clone()), soon);
    assert_eq!(cancelled, Err(SandboxError::Cancelled), "{kind}: a cancel");
    assert!(start.elapsed() < END_MAX, "{kind}: {:?}", start.elapsed());
    assert_eq!(
        sandbox.exec(Exec::new("echo ran"), cancel).await,
        Err(SandboxError::Cancelled),
        "{kind}: cancelled before it began"
    );
}
