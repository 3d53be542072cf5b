//! How the processes of a command end: none is alive two seconds later, however they try to stay.

use super::*;

#[tokio::test]
async fn no_process_is_alive_two_seconds_after_a_timeout() {
    each(
        SandboxFixture::both("no_process_is_alive_two_seconds_after_a_timeout"),
        async |fixture| {
            let marker = marker("timeout");
            let command = stragglers(&marker);
            let mut timeout = Duration::from_secs(1);
            // On a busy machine it takes a while until the stragglers have started.
            let (start, result) = loop {
                let start = Instant::now();
                let ending = fixture.exec(&command, timeout, CancellationToken::new());
                let result = ending.await.unwrap();
                if fixture.path("started").exists() || timeout > Duration::from_secs(8) {
                    break (start, result);
                }
                timeout *= 3;
            };

            assert!(
                fixture.path("started").exists(),
                "the stragglers were there"
            );
            assert_eq!((result.timed_out, result.status), (true, None));
            assert_eq!(alive(&marker), 0);
            assert!(
                start.elapsed() < timeout + Duration::from_secs(2),
                "{:?}",
                start.elapsed()
            );
        },
    )
    .await;
}

#[tokio::test]
async fn no_process_is_alive_two_seconds_after_a_cancel_or_a_dropped_caller() {
    each(
        SandboxFixture::both("no_process_is_alive_two_seconds_after_a_cancel_or_a_dropped_caller"),
        async |fixture| {
            for drop_it in [false, true] {
                let marker = marker(if drop_it { "drop" } else { "cancel" });
                let cancel = CancellationToken::new();
                let _ = fs::remove_file(fixture.path("started"));
                let sandbox = fixture.sandbox.clone();
                let token = cancel.clone();
                let command = stragglers(&marker);
                let task =
                    tokio::spawn(async move { sandbox.exec(Exec::new(command), token).await });
                wait_until("the command", Duration::from_secs(10), || {
                    fixture.path("started").exists() && alive(&marker) >= 4
                })
                .await;

                if drop_it {
                    task.abort();
                } else {
                    cancel.cancel();
                    assert_eq!(task.await.unwrap(), Err(SandboxError::Cancelled));
                    assert_eq!(alive(&marker), 0, "the answer comes when they are gone");
                }

                wait_until("the end of all processes", Duration::from_secs(2), || {
                    alive(&marker) == 0
                })
                .await;
            }
        },
    )
    .await;
}

#[tokio::test]
async fn what_a_command_leaves_running_ends_with_it() {
    each(
        SandboxFixture::both("what_a_command_leaves_running_ends_with_it"),
        async |fixture| {
            let marker = marker("left");

            let result = fixture
                .run(&stragglers(&marker).replace("touch started; wait", "echo done"))
                .await;

            assert_eq!((result.status, result.stdout.as_str()), (Some(0), "done\n"));
            assert!(result.left_running >= 4, "{}", result.left_running);
            assert_eq!(
                fixture
                    .run("sleep 0.01 & wait; echo | cat")
                    .await
                    .left_running,
                0
            );
            assert_eq!(alive(&marker), 0);
        },
    )
    .await;
}

#[tokio::test]
async fn without_a_boundary_strays_are_still_found() {
    let fixture = SandboxFixture::local();
    let marker = marker("local");

    let result = fixture
        .exec(
            &stragglers(&marker),
            Duration::from_millis(2000),
            CancellationToken::new(),
        )
        .await
        .unwrap();
    assert!(result.timed_out && fixture.path("started").exists());
    wait_until("the end of all processes", Duration::from_secs(2), || {
        alive(&marker) == 0
    })
    .await;
    let plain = fixture.run("echo $((1+1)); exit 3").await;

    assert_eq!((plain.status, plain.stdout.as_str()), (Some(3), "2\n"));
    assert!(!fixture.sandbox.policy().boundary);
}

#[tokio::test]
async fn without_a_boundary_what_left_its_group_and_dropped_its_mark_ends_with_those_above_it() {
    let fixture = SandboxFixture::local();
    let marker = marker("unmarked");
    let cancel = CancellationToken::new();
    let command = format!(
        "env -i setsid bash -c 'touch started; while :; do sleep 1000; done' {marker} & wait"
    );
    let sandbox = fixture.sandbox.clone();
    let token = cancel.clone();
    let task = tokio::spawn(async move { sandbox.exec(Exec::new(command), token).await });
    wait_until("the command", Duration::from_secs(10), || {
        // A child that has not become another program yet looks like its parent.
        fixture.path("started").exists() && alive(&marker) == 1
    })
    .await;

    cancel.cancel();

    assert_eq!(task.await.unwrap(), Err(SandboxError::Cancelled));
    wait_until("the end of all processes", Duration::from_secs(2), || {
        alive(&marker) == 0
    })
    .await;
}

/// The host of other tests: runs a command until the host is killed. Runs in a child process only,
/// selected by an environment variable.
#[tokio::test]
async fn child_host() {
    let Some(folder) = std::env::var_os("CALLBOARD_TEST_KILL_NINE") else {
        return;
    };
    let root = Arc::new(Root::open(&folder, PathRules::default()).unwrap());
    let only = if std::env::var("CALLBOARD_TEST_KIND")
        .unwrap()
        .starts_with("landlock")
    {
        Boundary::Landlock
    } else {
        Boundary::Bubblewrap
    };
    let sandbox = boundary(root.real_path(), only, ExecLimits::default()).unwrap();
    let _ = sandbox
        .exec(
            Exec::new(std::env::var("CALLBOARD_TEST_COMMAND").unwrap()),
            CancellationToken::new(),
        )
        .await;
}

#[tokio::test]
async fn no_process_is_alive_two_seconds_after_kill_nine_of_the_host() {
    each(
        SandboxFixture::both("no_process_is_alive_two_seconds_after_kill_nine_of_the_host"),
        async |fixture| {
            let marker = marker("host");
            let mut host = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "sandbox::ends::child_host"])
                .env("CALLBOARD_TEST_KILL_NINE", fixture.path(""))
                .env("CALLBOARD_TEST_KIND", fixture.kind())
                .env("CALLBOARD_TEST_COMMAND", stragglers(&marker))
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null())
                .spawn()
                .unwrap();
            wait_until("the command", Duration::from_secs(20), || {
                fixture.path("started").exists() && alive(&marker) >= 4
            })
            .await;

            host.kill().unwrap();
            host.wait().unwrap();

            wait_until("the end of all processes", Duration::from_secs(2), || {
                alive(&marker) == 0
            })
            .await;
        },
    )
    .await;
}

#[tokio::test]
async fn no_key_of_the_host_is_in_a_command_or_within_its_reach() {
    each(SandboxFixture::both("no_key_of_the_host_is_in_a_command_or_within_its_reach"), async |fixture| {
        let key = format!("sk-not-a-real-key-{}", fixture.kind());
        let host = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "sandbox::ends::child_host"])
            .env("CALLBOARD_TEST_KILL_NINE", fixture.path(""))
            .env("CALLBOARD_TEST_KIND", fixture.kind())
            .env("ANTHROPIC_API_KEY", &key)
            .env(
                "CALLBOARD_TEST_COMMAND",
                "exec >found 2>/dev/null; env; for p in /proc/self /proc/{1..40000}; do [ -e $p ] && { cat $p/environ $p/cmdline; ls $p/fd && echo REA''CHED $p; }; done; \
                 for fd in {3..1023}; do [ -e /proc/self/fd/$fd ] && echo OP''EN $fd; done; echo done",
            )
            .output()
            .unwrap();

        let found = String::from_utf8_lossy(&fs::read(fixture.path("found")).unwrap()).into_owned();
        assert!(host.status.success() && found.ends_with("done\n"), "{}", fixture.kind());
        assert!(!found.contains(&key) && !found.contains("ANTHROPIC") && !found.contains("OPEN"), "{}: {found}", fixture.kind());
        assert!(fixture.kind() == "bubblewrap" || !found.contains("REACHED"), "{found}");
    })
    .await;
}
