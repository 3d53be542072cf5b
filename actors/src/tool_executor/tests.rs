//! Runs of calls through the executor's parts: sharing, caching, locks, limits.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{LoneCall, ToolEnvironment, ToolInvocationRequest, call_once};
use crate::{
    chat::RawJson,
    ids::{CallKey, ConversationId, Scope, Seq, TenantId},
    journal::ToolExecutionResult,
    metrics_collector::Reading,
    ports::{
        BoxFuture, CachePolicy, Concurrency, Progress, Tool, ToolContext, ToolOutput, ToolSpec,
    },
    tool::{EffectClass, ToolError},
};

/// A tool that counts its starts, and ends on a signal or after its time.
struct Counting {
    spec: ToolSpec,
    starts: AtomicU32,
    running: AtomicU32,
    together: AtomicU32,
    cancelled: AtomicU32,
    takes: Duration,
    fails: bool,
    begun: Notify,
}

impl Counting {
    fn new(spec: ToolSpec, takes_ms: u64) -> Arc<Self> {
        let [starts, running, together, cancelled] = std::array::from_fn(|_| AtomicU32::new(0));
        let takes = Duration::from_millis(takes_ms);
        Arc::new(Self {
            spec,
            starts,
            running,
            together,
            cancelled,
            takes,
            fails: false,
            begun: Notify::new(),
        })
    }

    fn starts(&self) -> u32 {
        self.starts.load(Ordering::SeqCst)
    }
}

impl Tool for Counting {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn call(
        &self,
        _: RawJson,
        context: ToolContext,
    ) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let start = self.starts.fetch_add(1, Ordering::SeqCst) + 1;
            let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
            self.together.fetch_max(running, Ordering::SeqCst);
            self.begun.notify_waiters();
            context.progress.report("begun");
            let ended = tokio::select! {
                biased;
                () = context.cancel.cancelled() => {
                    self.cancelled.fetch_add(1, Ordering::SeqCst);
                    Err(ToolError::failed("cancelled"))
                }
                () = sleep(self.takes) => if self.fails { Err(ToolError::failed("no")) } else { Ok(format!("result {start}").into()) },
            };
            self.running.fetch_sub(1, Ordering::SeqCst);
            ended
        })
    }
}

fn spec() -> ToolSpec {
    ToolSpec::new("search", "", RawJson::empty_object()).read_only()
}

fn scope(conversation: &str) -> Scope {
    Scope::new(
        TenantId::new("acme").unwrap(),
        ConversationId::new(conversation).unwrap(),
    )
}

fn call(tool: &Arc<Counting>, index: u32, input: &str) -> LoneCall {
    LoneCall {
        key: CallKey {
            scope: scope("c"),
            seq: Seq(1),
            index,
        },
        tool: tool.clone(),
        request: ToolInvocationRequest::from_spec(
            &tool.spec,
            format!("call_{index}"),
            RawJson::from_text(input).unwrap(),
        ),
    }
}

async fn run(
    tool: &Arc<Counting>,
    environment: &ToolEnvironment,
    index: u32,
    input: &str,
) -> ToolExecutionResult {
    call_once(
        call(tool, index, input),
        environment.clone(),
        CancellationToken::new(),
        Progress::silent(),
    )
    .await
}

#[tokio::test(start_paused = true)]
async fn a_request_does_not_make_a_tool_cached_that_is_not() {
    let tool = Counting::new(spec().not_shared(), 10);
    let environment = ToolEnvironment::alone(scope("root"));

    for index in 0..2 {
        let mut wants = call(&tool, index, "{}");
        wants.request.cache_policy = CachePolicy::TtlLong;
        let (cancel, progress) = (CancellationToken::new(), Progress::silent());
        call_once(wants, environment.clone(), cancel, progress).await;
    }

    assert_eq!(tool.starts(), 2);
}

#[tokio::test(start_paused = true)]
async fn fifty_identical_pure_calls_share_one_run_and_its_progress() {
    let tool = Counting::new(spec(), 100);
    let environment = ToolEnvironment::alone(scope("root"));
    let lines = Arc::new(AtomicU32::new(0));

    let results = join_all((0..50).map(|index| {
        let lines = lines.clone();
        let progress = Progress::new(move |_| {
            lines.fetch_add(1, Ordering::SeqCst);
        });
        // The order of keys does not matter.
        let input = if index % 2 == 0 {
            r#"{"a":1,"b":2}"#
        } else {
            r#"{"b":2,"a":1}"#
        };
        call_once(
            call(&tool, index, input),
            environment.clone(),
            CancellationToken::new(),
            progress,
        )
    }))
    .await;

    assert!(
        results
            .iter()
            .all(|result| result.observation == "result 1")
    );
    assert_eq!(
        (tool.starts(), counted(&environment).await.tool_runs_shared),
        (1, 49)
    );
    assert_eq!(
        lines.load(Ordering::SeqCst),
        50,
        "each caller hears of the one run"
    );
    assert_eq!(
        run(&tool, &environment, 50, r#"{"a":1,"b":2}"#)
            .await
            .observation,
        "result 2",
        "a run that is over is not a cache"
    );
}

#[tokio::test(start_paused = true)]
async fn the_leaders_cancel_does_not_cancel_the_others_and_the_last_one_to_go_does() {
    let tool = Counting::new(spec(), 1000);
    let environment = ToolEnvironment::alone(scope("root"));
    let tokens: Vec<CancellationToken> = (0..3).map(|_| CancellationToken::new()).collect();
    let callers = (0..3).zip(&tokens).map(|(index, token)| {
        tokio::spawn(call_once(
            call(&tool, index, "{}"),
            environment.clone(),
            token.clone(),
            Progress::silent(),
        ))
    });
    let mut callers: Vec<_> = callers.collect();
    tool.begun.notified().await;

    tokens[0].cancel();
    let leader = callers.remove(0).await.unwrap();
    assert_eq!(
        (
            leader.error_code.as_deref(),
            tool.cancelled.load(Ordering::SeqCst)
        ),
        (Some("INTERRUPTED"), 0)
    );

    tokens[1].cancel();
    callers.remove(0).await.unwrap();
    assert_eq!(callers.remove(0).await.unwrap().observation, "result 1");
    assert_eq!(
        (tool.starts(), tool.cancelled.load(Ordering::SeqCst)),
        (1, 0)
    );

    let token = CancellationToken::new();
    let last = tokio::spawn(call_once(
        call(&tool, 9, "{}"),
        environment.clone(),
        token.clone(),
        Progress::silent(),
    ));
    tool.begun.notified().await;
    token.cancel();
    last.await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await; // Paused time: lets the run observe the signal.
    assert_eq!(
        (tool.starts(), tool.cancelled.load(Ordering::SeqCst)),
        (2, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn runs_are_shared_by_pure_calls_of_one_tree_only() {
    for spec in [
        spec().effect(EffectClass::Idempotent),
        spec().effect(EffectClass::Once),
        spec().not_shared(),
    ] {
        let tool = Counting::new(spec, 10);
        let environment = ToolEnvironment::alone(scope("root"));
        join_all((0..4).map(|index| run(&tool, &environment, index, "{}"))).await;
        assert_eq!(tool.starts(), 4, "{:?}", tool.spec.effect);
    }

    let tool = Counting::new(spec().cache(CachePolicy::TtlLong), 10);
    let environment = ToolEnvironment::alone(scope("root"));
    let other = beside(&environment, "another-tree");
    tokio::join!(
        run(&tool, &environment, 0, "{}"),
        run(&tool, &other, 0, "{}"),
        run(&tool, &environment, 1, r#"{"page":2}"#)
    );
    assert_eq!(tool.starts(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_cached_result_answers_until_its_time_is_over_and_errors_are_never_kept() {
    let tool = Counting::new(spec().cache(CachePolicy::TtlShort), 10);
    let environment = ToolEnvironment::alone(scope("root"));

    assert_eq!(
        run(&tool, &environment, 0, "{}").await.observation,
        "result 1"
    );
    assert_eq!(
        run(&tool, &environment, 1, "{}").await.observation,
        "result 1"
    );
    tokio::time::advance(Duration::from_secs(300)).await;
    assert_eq!(
        run(&tool, &environment, 2, "{}").await.observation,
        "result 2",
        "an entry of exactly its age is over"
    );
    assert_eq!(counted(&environment).await.tool_cache_hits, 1);

    let once = Counting::new(
        spec().cache(CachePolicy::TtlLong).effect(EffectClass::Once),
        10,
    );
    run(&once, &environment, 0, "{}").await;
    run(&once, &environment, 1, "{}").await;
    assert_eq!(
        once.starts(),
        2,
        "what changes something is never answered from a cache"
    );

    let failing = Arc::new(Counting {
        fails: true,
        ..Arc::into_inner(Counting::new(spec().cache(CachePolicy::TtlLong), 10)).unwrap()
    });
    let environment = ToolEnvironment::alone(scope("root"));
    run(&failing, &environment, 0, "{}").await;
    assert!(run(&failing, &environment, 1, "{}").await.is_error);
    assert_eq!(failing.starts(), 2);
}

#[tokio::test(start_paused = true)]
async fn calls_on_one_file_run_one_after_the_other_also_of_two_conversations() {
    let spec = ToolSpec::new("edit", "", RawJson::empty_object())
        .concurrency(Concurrency::PerFile("path".into()));
    let tool = Counting::new(spec, 10);
    let environment = ToolEnvironment::alone(scope("one"));
    let other = beside(&environment, "two");

    let ends = join_all([
        run(&tool, &environment, 0, r#"{"path":"a.txt"}"#),
        run(&tool, &other, 0, r#"{"path":"./b/../a.txt"}"#),
        run(&tool, &environment, 1, r#"{"path":"a.txt"}"#),
    ])
    .await;
    assert_eq!(tool.together.load(Ordering::SeqCst), 1);
    let ran: Vec<_> = ends.iter().map(|end| end.duration_ms).collect();
    assert_eq!(ran, [10; 3], "the wait for a file is no execution");

    tokio::join!(
        run(&tool, &environment, 0, r#"{"path":"a.txt"}"#),
        run(&tool, &other, 0, r#"{"path":"c.txt"}"#)
    );
    assert_eq!(tool.together.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_file_is_free_again_after_every_kind_of_end() {
    let spec = || {
        ToolSpec::new("edit", "", RawJson::empty_object())
            .concurrency(Concurrency::PerFile("path".into()))
    };
    let environment = ToolEnvironment::alone(scope("one"));
    let file = r#"{"path":"a.txt"}"#;
    let good = Counting::new(spec(), 10);
    let failing = Arc::new(Counting {
        fails: true,
        ..Arc::into_inner(Counting::new(spec(), 10)).unwrap()
    });
    let hanging = Counting::new(spec().timeout(Duration::from_millis(50)), 60_000);
    let boom = |_: serde_json::Value, _: ToolContext| async {
        if true {
            panic!("boom")
        } else {
            Ok(String::new())
        }
    };
    let panicking =
        crate::ports::FnTool::raw("edit", "", &serde_json::json!({}), boom, Some("path"));
    let panicking = LoneCall {
        tool: Arc::new(panicking),
        ..call(&good, 0, file)
    };
    let slow = Counting::new(spec(), 60_000);
    let cancel = CancellationToken::new();

    assert!(run(&good, &environment, 0, file).await.success());
    assert_eq!(
        run(&failing, &environment, 1, file)
            .await
            .error_code
            .as_deref(),
        Some("EXECUTION_ERROR")
    );
    assert_eq!(
        run(&hanging, &environment, 2, file)
            .await
            .error_code
            .as_deref(),
        Some("TIMEOUT")
    );
    let panicked = call_once(
        panicking,
        environment.clone(),
        CancellationToken::new(),
        Progress::silent(),
    )
    .await;
    assert_eq!(panicked.error_code.as_deref(), Some("PANIC"));
    let cancelled = call_once(
        call(&slow, 3, file),
        environment.clone(),
        cancel.clone(),
        Progress::silent(),
    );
    let begun = slow.begun.notified(); // Created before the run starts, so that the notification is not missed.
    let (cancelled, ()) = tokio::join!(cancelled, async {
        begun.await;
        cancel.cancel();
    });
    assert_eq!(cancelled.error_code.as_deref(), Some("INTERRUPTED"));
    let dropped =
        tokio::time::timeout(Duration::from_millis(5), run(&slow, &environment, 4, file)).await;
    assert!(dropped.is_err() && slow.starts() == 2);

    let began = Instant::now();
    assert!(run(&good, &environment, 5, file).await.success());
    assert_eq!(
        began.elapsed(),
        Duration::from_millis(10),
        "no caller waits for what is over"
    );
}

#[tokio::test(start_paused = true)]
async fn a_breaker_refuses_at_once_and_the_call_says_so() {
    let failing = Arc::new(Counting {
        fails: true,
        ..Arc::into_inner(Counting::new(spec().not_shared(), 10)).unwrap()
    });
    let environment = ToolEnvironment::alone(scope("root"));
    for index in 0..5 {
        assert_eq!(
            run(&failing, &environment, index, "{}")
                .await
                .error_code
                .as_deref(),
            Some("EXECUTION_ERROR")
        );
    }
    let began = Instant::now();

    let refused = run(&failing, &environment, 5, "{}").await;

    assert_eq!(
        (
            refused.error_code.as_deref(),
            failing.starts(),
            began.elapsed()
        ),
        (Some("BREAKER_OPEN"), 5, Duration::ZERO)
    );
    let other = ToolEnvironment::alone(scope("root"));
    assert_eq!(
        run(&failing, &other, 0, "{}").await.error_code.as_deref(),
        Some("EXECUTION_ERROR"),
        "another tenant's is its own"
    );
}

#[tokio::test(start_paused = true)]
async fn a_once_call_that_times_out_is_started_exactly_once_and_a_pure_one_again() {
    let spec = spec().timeout(Duration::from_secs(1));
    let once = Counting::new(spec.clone().effect(EffectClass::Once), 60_000);
    let pure = Counting::new(spec, 60_000);
    let environment = ToolEnvironment::alone(scope("root"));

    let result = run(&once, &environment, 0, "{}").await;
    assert_eq!(
        (
            result.error_code.as_deref(),
            once.starts(),
            result.retry_count
        ),
        (Some("TIMEOUT"), 1, 0)
    );
    assert!(
        result
            .observation
            .contains("check the state before repeating it")
    );

    let result = run(&pure, &environment, 0, "{}").await;
    assert_eq!(
        (
            result.error_code.as_deref(),
            pure.starts(),
            result.retry_count
        ),
        (Some("TIMEOUT"), 4, 3)
    );
    assert_eq!(
        result.last_error.as_deref(),
        Some("Tool execution exceeded timeout limit")
    );
    let attempts = 1000 + 2000 + 4000 + 8000;
    assert_eq!(
        result.duration_ms, attempts,
        "each attempt has twice the time of the one before it, and the pauses do not count"
    );
}

/// What the calls of an environment counted.
async fn counted(environment: &ToolEnvironment) -> Reading {
    environment.collector.read().await.host
}

/// The environment of another conversation of the same tenant.
fn beside(environment: &ToolEnvironment, owner: &str) -> ToolEnvironment {
    ToolEnvironment::new(
        environment.resources.clone(),
        environment.tools.clone(),
        scope(owner),
        environment.collector.clone(),
    )
}

#[tokio::test(start_paused = true)]
async fn calls_with_one_given_key_have_one_result_unless_tool_version_or_caller_differ() {
    let spec = |name: &str| {
        ToolSpec::new(name, "", RawJson::empty_object())
            .read_only()
            .cache(CachePolicy::TtlShort)
    };
    let search = Counting::new(spec("search"), 1);
    let look_up = Counting::new(spec("look_up"), 1);
    let mut environment = ToolEnvironment::alone(scope("root"));
    let keyed = |tool: &Arc<Counting>, index, input| {
        let mut call = call(tool, index, input);
        call.request = call.request.with_idempotency_key("today's news").unwrap();
        call
    };
    let run = async |call: LoneCall, environment: &ToolEnvironment| {
        let cancel = CancellationToken::new();
        call_once(call, environment.clone(), cancel, Progress::silent())
            .await
            .observation
    };

    let first = run(keyed(&search, 0, r#"{"at":1}"#), &environment).await;
    let again = run(keyed(&search, 1, r#"{"at":2}"#), &environment).await;
    let without = run(call(&search, 2, r#"{"at":2}"#), &environment).await;
    let other_tool = run(keyed(&look_up, 3, r#"{"at":1}"#), &environment).await;
    let mut other_version = keyed(&search, 4, r#"{"at":1}"#);
    other_version.request = other_version.request.tool_version("2.0.0");
    let other_version = run(other_version, &environment).await;
    environment.caller = "another conversation".into();
    let other_caller = run(keyed(&search, 5, r#"{"at":1}"#), &environment).await;

    assert_eq!([first, again], ["result 1", "result 1"]);
    assert_eq!(without, "result 2");
    assert_eq!(other_tool, "result 1", "the first run of that tool");
    assert_eq!([other_version, other_caller], ["result 3", "result 4"]);
}
