//! The call guard: permission, hooks, schema, output level, lasting approvals and the loop guard.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::{Value, json};

use super::*;
use crate::{
    chat::ContentBlock,
    conversation::{Consent, round::rules::ApprovalMode},
    ids::Scope,
    journal::ToolExecutionResult,
    ports::{
        Approval, BoxFuture, FnTool, Hook, PermissionLevel, Review, SchemaCheck, Schemas, Verdict,
    },
    stream::StopReason,
    testing::{Reply, ScriptedModel},
    tool::OutputLevel,
    tool_executor::Permissions,
};

/// The tool results that the model read last: text, and whether it was an error.
pub(super) fn results(model: &ScriptedModel) -> Vec<(String, bool)> {
    let request = model.last_request().unwrap();
    let blocks = request.messages.last().unwrap().blocks();
    let result = |block: &ContentBlock| match block {
        ContentBlock::ToolResult(result) => {
            Some((result.content.text().into_owned(), result.is_error))
        }
        _ => None,
    };
    blocks.iter().filter_map(result).collect()
}

/// A tool that returns its arguments and counts its starts.
pub(super) fn echo(
    name: &str,
    declare: fn(ToolSpec) -> ToolSpec,
) -> (Arc<dyn Tool>, Arc<AtomicUsize>) {
    let starts = Arc::new(AtomicUsize::new(0));
    let counter = starts.clone();
    let tool = FnTool::raw(
        name,
        "Says what it got.",
        &json!({ "type": "object" }),
        move |arguments: Value, _| {
            counter.fetch_add(1, Ordering::SeqCst);
            async move { Ok(arguments.to_string()) }
        },
        None,
    );
    (Arc::new(tool.declare(declare)), starts)
}

/// A schema check that accepts arguments with a `path`.
pub(super) struct WantsPath;

impl Schemas for WantsPath {
    fn compile(&self, tool: &str, _: &RawJson) -> Result<Arc<dyn SchemaCheck>, String> {
        Ok(Arc::new(Check(tool.to_owned())))
    }
}

struct Check(String);

impl SchemaCheck for Check {
    fn check(&self, arguments: &Value) -> Result<(), ToolError> {
        match arguments.get("path").is_some() && arguments.get("output_level").is_none() {
            true => Ok(()),
            false => Err(ToolError::invalid(format!(
                "the arguments of {} do not fit:\n- /path is missing",
                self.0
            ))),
        }
    }
}

async fn one_round(builder: HostBuilder) -> crate::stream::RoundEnd {
    let host = builder.build().await.unwrap();
    conversation(&host)
        .send("go")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_is_not_allowed_is_refused_and_nothing_of_it_runs() {
    let permissions = |level, allowed: Option<&[&str]>| Permissions {
        level,
        allowed_tools: allowed.map(|names| {
            Arc::new(
                names
                    .iter()
                    .map(|name| (*name).to_owned())
                    .collect::<BTreeSet<_>>(),
            )
        }),
    };
    for (permissions, expected) in [
        (permissions(PermissionLevel::Default, None), (1, 0)),
        (
            permissions(PermissionLevel::Default, Some(&["writes"])),
            (0, 0),
        ),
        (permissions(PermissionLevel::Default, Some(&[])), (0, 0)),
        (permissions(PermissionLevel::Restricted, None), (1, 0)),
        (permissions(PermissionLevel::Admin, None), (1, 1)),
        (
            permissions(PermissionLevel::Admin, Some(&["writes"])),
            (0, 1),
        ),
    ] {
        let (reads, read) = echo("reads", ToolSpec::read_only);
        let (writes, written) = echo("writes", |spec| spec.approval(Approval::ByMode));
        let calls = Reply::tool("reads", &json!({})).and_tool("writes", &json!({}));
        let model = Arc::new(ScriptedModel::replies([calls, Reply::text("done")]));
        let said = format!("{permissions:?}");

        // There is no approver, so by default a call that changes something is denied.
        let outcome = one_round(
            builder(&model)
                .tools([reads, writes])
                .permissions(permissions),
        )
        .await;

        assert_eq!(
            (read.load(Ordering::SeqCst), written.load(Ordering::SeqCst)),
            expected,
            "{said}"
        );
        assert_eq!((outcome.text.as_str(), results(&model).len()), ("done", 2));
        let codes: Vec<bool> = results(&model)
            .iter()
            .map(|(text, _)| text.contains("Error Type: permission_denied"))
            .collect();
        assert_eq!(
            codes,
            [expected.0 == 0, expected.1 == 0],
            "{said}: {:?}",
            results(&model)
        );
    }
}

/// A tool whose calls with `look` in their arguments are read-only.
struct Looks(Arc<dyn Tool>);

impl Tool for Looks {
    fn spec(&self) -> &ToolSpec {
        self.0.spec()
    }

    fn only_reads(&self, arguments: &RawJson) -> bool {
        arguments.as_str().contains("look")
    }

    fn call(
        &self,
        arguments: RawJson,
        context: ToolContext,
    ) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        self.0.call(arguments, context)
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_only_reads_needs_no_approval_unless_a_hook_makes_it_another() {
    let replace: HookFn = |arguments| {
        arguments
            .as_str()
            .contains("swap")
            .then(|| RawJson::of(&json!({ "do": "change" })).unwrap())
    };
    for (does, runs) in [("look", 1), ("change", 0), ("look swap", 0)] {
        let (tool, starts) = echo("commands", |spec| spec.approval(Approval::ByMode));
        let model = Arc::new(ScriptedModel::replies([
            Reply::tool("commands", &json!({ "do": does })),
            Reply::text("done"),
        ]));

        // A call that needs approval is denied, since there is no approver.
        one_round(
            builder(&model)
                .tool(Arc::new(Looks(tool)))
                .hook(Replaces(replace)),
        )
        .await;

        assert_eq!(
            starts.load(Ordering::SeqCst),
            runs,
            "{does}: {:?}",
            results(&model)
        );
    }
}

type HookFn = fn(&RawJson) -> Option<RawJson>;

struct Replaces(HookFn);

impl Hook for Replaces {
    fn before_tool(&self, _: &Scope, _: &ToolSpec, arguments: &RawJson) -> Verdict {
        (self.0)(arguments).map_or(Verdict::Allow, Verdict::Replace)
    }
}

#[tokio::test(start_paused = true)]
async fn permission_denied_is_never_tried_again() {
    let starts = Arc::new(AtomicUsize::new(0));
    let counter = starts.clone();
    let tool = FnTool::raw(
        "tool",
        "Is refused by another system.",
        &json!({}),
        move |_, _| {
            counter.fetch_add(1, Ordering::SeqCst);
            async { Err::<String, _>(ToolError::denied("not yours")) }
        },
        None,
    );
    let eager = crate::policy::ToolRetryPolicy {
        retry_on: vec![crate::tool::ToolErrorType::PermissionDenied],
        ..Default::default()
    };
    let tool = Arc::new(tool.declare(|spec| spec.read_only().retry(eager)));
    let model = Arc::new(ScriptedModel::replies([
        Reply::tool("tool", &json!({})),
        Reply::text("done"),
    ]));

    one_round(builder(&model).tool(tool)).await;

    assert_eq!(starts.load(Ordering::SeqCst), 1);
    assert!(
        results(&model)[0]
            .0
            .contains("Error Code: PERMISSION_DENIED\nError Message: not yours")
    );
}

/// A hook that decides calls by the argument `do`, and results by their text.
struct Judges;

impl Hook for Judges {
    fn before_tool(&self, scope: &Scope, tool: &ToolSpec, arguments: &RawJson) -> Verdict {
        assert_eq!((scope.tenant.as_str(), tool.name()), ("acme", "tool"));
        match arguments.parse::<Value>().unwrap()["do"].as_str() {
            Some("deny") => Verdict::Deny("not on a Sunday".into()),
            Some("replace") => Verdict::Replace(RawJson::of(&json!({ "do": "replaced" })).unwrap()),
            _ => Verdict::Allow,
        }
    }

    fn after_tool(&self, _: &Scope, _: &ToolSpec, outcome: &ToolExecutionResult) -> Review {
        match outcome.observation.as_str() {
            text if text.contains("secret") => {
                Review::Replace(text.replace("secret", "[redacted]"))
            }
            text if text.contains("withhold") => {
                Review::Withhold("the result is not for a model".into())
            }
            _ => Review::Keep,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn hooks_deny_replace_redact_and_withhold() {
    let (tool, starts) = echo("tool", ToolSpec::read_only);
    let calls =
        ["allow", "deny", "replace", "secret", "withhold"].map(|what| json!({ "do": what }));
    let reply = calls
        .iter()
        .fold(Reply::empty(), |reply, call| reply.and_tool("tool", call));
    let model = Arc::new(ScriptedModel::replies([reply, Reply::text("done")]));
    let host = builder(&model)
        .tool(tool)
        .hook(Judges)
        .build()
        .await
        .unwrap();
    let conversation = conversation(&host);

    conversation
        .send("go")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    let read = results(&model);
    assert_eq!(read[0], (r#"{"do":"allow"}"#.into(), false));
    assert!(
        read[1]
            .0
            .contains("Error Code: PERMISSION_DENIED\nError Message: not on a Sunday")
            && read[1].1
    );
    assert_eq!(read[2], (r#"{"do":"replaced"}"#.into(), false));
    assert_eq!(read[3], (r#"{"do":"[redacted]"}"#.into(), false));
    assert!(
        read[4]
            .0
            .contains("Error Message: the result is not for a model")
            && read[4].1
    );
    assert_eq!(
        starts.load(Ordering::SeqCst),
        4,
        "what was denied never ran"
    );
    // The history keeps the arguments as the model wrote them.
    let asked = conversation.messages().await.unwrap()[1]
        .wire_str()
        .to_owned();
    assert!(asked.contains(r#""do":"replace"}"#), "{asked}");
}

#[tokio::test(start_paused = true)]
async fn what_a_hook_puts_in_place_passes_the_rest_of_the_door() {
    struct Spoils;
    impl Hook for Spoils {
        fn before_tool(&self, _: &Scope, _: &ToolSpec, _: &RawJson) -> Verdict {
            Verdict::Replace(RawJson::empty_object())
        }
    }
    let (tool, starts) = echo("tool", ToolSpec::read_only);
    let model = Arc::new(ScriptedModel::replies([
        Reply::tool("tool", &json!({ "path": "a" })),
        Reply::text("done"),
    ]));

    one_round(
        builder(&model)
            .tool(tool)
            .schemas(Arc::new(WantsPath))
            .hook(Spoils),
    )
    .await;

    assert_eq!(starts.load(Ordering::SeqCst), 0);
    assert!(results(&model)[0].0.contains("/path is missing"));
}

#[tokio::test(start_paused = true)]
async fn arguments_that_do_not_fit_are_a_journaled_result_and_the_round_goes_on() {
    let (tool, starts) = echo("tool", ToolSpec::read_only);
    let model = Arc::new(ScriptedModel::replies([
        Reply::tool("tool", &json!({ "pth": "a" })),
        Reply::tool("tool", &json!({ "path": "a" })),
        Reply::text("done"),
    ]));
    let host = builder(&model)
        .tool(tool)
        .schemas(Arc::new(WantsPath))
        .build()
        .await
        .unwrap();
    let conversation = conversation(&host);

    let outcome = conversation
        .send("go")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    assert_eq!(
        (outcome.stop_reason, starts.load(Ordering::SeqCst)),
        (StopReason::EndTurn, 1)
    );
    let messages = conversation.messages().await.unwrap();
    let expected = [
        "Operation failed.",
        "",
        "Error Type: invalid_parameters",
        "Error Code: INVALID_PARAMETERS",
        "Error Message: the arguments of tool do not fit:",
        "- /path is missing",
        "",
        "Tool Call ID: ",
    ]
    .join("\n");
    let refused = messages[2].blocks();
    let ContentBlock::ToolResult(refused) = &refused[0] else {
        panic!("{refused:?}")
    };
    assert!(
        refused.is_error && refused.content.text().starts_with(&expected),
        "{}",
        refused.content.text()
    );
}

#[tokio::test(start_paused = true)]
async fn an_output_level_is_the_calls_own_and_no_argument_of_the_tool() {
    let (data, _) = echo("data", |spec| spec.read_only().returns_data());
    let (text, _) = echo("text", ToolSpec::read_only);
    let levels = ["full", "loud"].map(|level| json!({ "path": "a", "output_level": level }));
    let calls = Reply::tool("data", &levels[0])
        .and_tool("data", &levels[1])
        .and_tool("text", &levels[0]);
    let model = Arc::new(ScriptedModel::replies([calls, Reply::text("done")]));

    one_round(
        builder(&model)
            .tools([data, text])
            .schemas(Arc::new(WantsPath))
            .output_level(OutputLevel::Brief),
    )
    .await;

    let read = results(&model);
    assert_eq!(
        read[0],
        (r#"{"path":"a"}"#.into(), false),
        "it is taken out before the schema and the tool see the arguments"
    );
    assert!(
        read[1]
            .0
            .contains(r#"output_level is "brief", "standard" or "full""#),
        "{}",
        read[1].0
    );
    assert!(
        read[2].1,
        "a tool that returns text knows no levels: {}",
        read[2].0
    );
    let offered: Vec<bool> = model
        .last_request()
        .unwrap()
        .tools
        .iter()
        .map(|tool| tool.input_schema.as_str().contains("output_level"))
        .collect();
    assert_eq!(offered, [true, false, false], "the last one is `recall`");
}

#[tokio::test(start_paused = true)]
async fn an_argument_of_the_tool_that_is_named_like_the_level_is_the_tools() {
    let level = json!({ "type": "string", "enum": ["quiet", "verbose"] });
    let schema = json!({ "type": "object", "properties": { "output_level": level } });
    let tool = FnTool::raw(
        "own",
        "Says what it got.",
        &schema,
        |arguments: Value, _| async move { Ok(arguments.to_string()) },
        None,
    );
    let tool = Arc::new(tool.declare(|spec| spec.read_only().returns_data()));
    let model = Arc::new(ScriptedModel::replies([
        Reply::tool("own", &json!({ "output_level": "verbose" }))
            .and_tool("own", &json!({ "output_level": "full" })),
        Reply::text("done"),
    ]));

    one_round(builder(&model).tool(tool)).await;

    let got = |level: &str| (format!(r#"{{"output_level":"{level}"}}"#), false);
    assert_eq!(results(&model), [got("verbose"), got("full")]);
    let offered = &model.last_request().unwrap().tools[0].input_schema;
    let offered: Value = offered.parse().unwrap();
    assert_eq!(offered, schema);
}

/// A tool that returns data of one field.
fn gives_data(declare: impl FnOnce(ToolSpec) -> ToolSpec) -> Arc<dyn Tool> {
    let handler = |_: Value, _| async { Ok(crate::ports::Json(json!({ "k": 1 }))) };
    let schema = json!({ "type": "object" });
    let tool = FnTool::raw("data", "Gives data.", &schema, handler, None);
    Arc::new(tool.declare(|spec| declare(spec.read_only().returns_data())))
}

#[tokio::test(start_paused = true)]
async fn a_level_changes_what_the_model_reads_and_nothing_else_of_a_round() {
    let mut read = Vec::new();
    let mut rest = Vec::new();
    for level in [OutputLevel::Brief, OutputLevel::Standard, OutputLevel::Full] {
        let handler = |_: Value, _| async { Ok(crate::ports::Json(json!([1, 2, 3, 4]))) };
        let schema = json!({ "type": "object" });
        let tool = FnTool::raw("data", "Gives data.", &schema, handler, None);
        let tool = Arc::new(tool.declare(|spec| spec.read_only().returns_data()));
        let model = Arc::new(ScriptedModel::replies([
            Reply::tool("data", &json!({})),
            Reply::text("done"),
        ]));
        let host = builder(&model).tool(tool).output_level(level);
        let host = host.build().await.unwrap();

        let mut reply = conversation(&host).send("go").await.unwrap();
        let mut events = Vec::new();
        while let Some(event) = reply.next().await {
            let event = serde_json::to_value(&event.kind).unwrap();
            events.push(event["type"].clone());
        }

        let round = conversation(&host).rounds().await.unwrap().remove(0);
        let call = &round.tool_metrics[0];
        let mut result = results(&model).remove(0);
        read.push(std::mem::take(&mut result.0));
        rest.push((
            events,
            (round.status, round.stop_reason, round.model_calls),
            (round.final_answer.clone(), call.success),
            result,
            model.requests().len(),
        ));
    }

    assert_eq!(
        read,
        [
            "Found 4 items",
            "Found 4 items:\n  - 1\n  - 2\n  - 3\n  ... and 1 more",
            "[\n  1,\n  2,\n  3,\n  4\n]"
        ]
    );
    assert!(rest[0] == rest[1] && rest[1] == rest[2], "{rest:?}");
    assert_eq!(rest[0].3, (String::new(), false));
}

#[tokio::test(start_paused = true)]
async fn data_is_brief_in_a_window_that_is_nearly_full() {
    let window = 200_000;
    let whole = "{\n  \"k\": 1\n}";
    let brief = "Result has 1 fields";
    let tools = Some(OutputLevel::Full);
    for (used, call, tools, expected) in [
        (window * 8 / 10, json!({}), None, whole),
        (window * 8 / 10 + 1, json!({}), None, brief),
        (window * 8 / 10 + 1, json!({}), tools, whole),
        (0, json!({}), Some(OutputLevel::Brief), brief),
        (window, json!({ "output_level": "standard" }), None, whole),
        (0, json!({ "output_level": "brief" }), tools, brief),
    ] {
        let tool = gives_data(|spec| match tools {
            Some(level) => spec.level(level),
            None => spec,
        });
        let usage = crate::chat::Usage {
            cache_read: u64::saturating_sub(used, 10),
            output: 10,
            ..Default::default()
        };
        let model = Arc::new(ScriptedModel::replies([
            Reply::tool("data", &call).usage(usage),
            Reply::text("done"),
        ]));

        one_round(builder(&model).tool(tool)).await;

        assert_eq!(
            results(&model),
            [(expected.to_owned(), false)],
            "{used} of {window} tokens, {call}, {tools:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_is_not_there_is_a_result_that_names_those_that_are() {
    let (tool, _) = echo("tool", ToolSpec::read_only);
    let model = Arc::new(ScriptedModel::replies([
        Reply::tool("tol", &json!({})),
        Reply::text("done"),
    ]));

    let log = Log::start();
    let outcome = one_round(builder(&model).tool(tool)).await;

    let (text, is_error) = results(&model).remove(0);
    assert_eq!((outcome.text.as_str(), is_error), ("done", true));
    assert!(text.contains("Error Code: NOT_FOUND\nError Message: there is no tool named \"tol\"; the tools are: recall, tool"), "{text}");
    let said = log.text();
    assert!(
        said.contains("the tool call was refused: there is no tool named \"tol\""),
        "{said}"
    );
}

/// Waits for an approval request and returns the id of its tool call.
pub(super) async fn asked(reply: &mut crate::host::Reply) -> String {
    loop {
        if let EventKind::ApprovalRequired { tool_call_id, .. } = &reply.next().await.unwrap().kind
        {
            return tool_call_id.clone();
        }
    }
}

/// A model that calls the tool with the last word of the prompt, then ends the round.
pub(super) fn writer() -> Arc<ScriptedModel> {
    Arc::new(ScriptedModel::answering(|request, _| {
        let last = request.messages.last().unwrap();
        match last.text().rsplit_once(' ') {
            Some((_, path))
                if !last
                    .blocks()
                    .iter()
                    .any(|block| matches!(block, ContentBlock::ToolResult(_))) =>
            {
                Reply::tool("writes", &json!({ "path": path }))
            }
            _ => Reply::text("done"),
        }
    }))
}

#[tokio::test(start_paused = true)]
async fn what_is_allowed_for_good_is_not_asked_again_even_after_a_restart() {
    let store = store();
    let (tool, starts) = echo("writes", |spec| spec.approval(Approval::ByMode));
    let model = writer();
    let build = || {
        builder(&model)
            .tool(tool.clone())
            .approval(ApprovalMode::Ask)
            .shared_sessions(store.clone())
            .build()
    };
    let first = build().await.unwrap();
    let talk = conversation(&first);

    let mut reply = talk.send("write a.txt").await.unwrap();
    let call = asked(&mut reply).await;
    talk.approve(call, Consent::Always).await.unwrap();
    reply.outcome().await.unwrap();
    let mut reply = talk.send("write a.txt").await.unwrap(); // Needs no approval.
    tokio::time::timeout(Duration::from_secs(60), reply.outcome())
        .await
        .expect("no person is asked")
        .unwrap();
    assert_eq!(starts.load(Ordering::SeqCst), 2);
    drop((reply, talk, first));

    let second = build().await.unwrap();
    let talk = conversation(&second);
    let mut reply = talk.send("write a.txt").await.unwrap();
    tokio::time::timeout(Duration::from_secs(60), reply.outcome())
        .await
        .expect("no person is asked")
        .unwrap();
    assert_eq!(starts.load(Ordering::SeqCst), 3);

    // Another pattern needs approval, and so does the same pattern in another conversation.
    let mut reply = talk.send("write b.txt").await.unwrap();
    let call = asked(&mut reply).await;
    talk.approve(call, false).await.unwrap();
    reply.outcome().await.unwrap();
    let other = second.tenant("acme").conversation("c-2");
    let mut reply = other.send("write a.txt").await.unwrap();
    let call = asked(&mut reply).await;
    other.approve(call, false).await.unwrap();
    reply.outcome().await.unwrap();
    assert_eq!(starts.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_agreed_to_once_is_asked_for_again() {
    let (tool, starts) = echo("writes", |spec| spec.approval(Approval::ByMode));
    let model = writer();
    let host = builder(&model)
        .tool(tool)
        .approval(ApprovalMode::Ask)
        .build()
        .await
        .unwrap();
    let talk = conversation(&host);

    for turn in 1..=2 {
        let mut reply = talk.send("write a.txt").await.unwrap();
        let call = asked(&mut reply).await;
        talk.approve(call, true).await.unwrap();
        reply.outcome().await.unwrap();
        assert_eq!(starts.load(Ordering::SeqCst), turn);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_in_doubt_is_asked_for_again_though_it_was_allowed_for_good() {
    let store = store();
    let begun = Arc::new(AtomicUsize::new(0));
    let counter = begun.clone();
    let run = move |_, _| {
        counter.fetch_add(1, Ordering::SeqCst);
        std::future::pending::<Result<String, ToolError>>()
    };
    let hangs = FnTool::raw("writes", "Hangs.", &json!({}), run, None);
    let (tool, starts) = echo("writes", |spec| spec.approval(Approval::ByMode));
    let model = writer();
    let with = |tool: Arc<dyn Tool>| {
        builder(&model)
            .tool(tool)
            .approval(ApprovalMode::Ask)
            .shared_sessions(store.clone())
            .build()
    };
    let first = with(Arc::new(hangs)).await.unwrap();
    let talk = conversation(&first);
    let mut reply = talk.send("write a.txt").await.unwrap();
    let call = asked(&mut reply).await;
    talk.approve(call, Consent::Always).await.unwrap();
    until("the call runs", || begun.load(Ordering::SeqCst) == 1).await;
    drop((reply, talk, first)); // The host is gone while the call runs.

    let second = with(tool).await.unwrap();
    let talk = conversation(&second);
    if let Some(mut reply) = talk.resume().await.unwrap() {
        reply.outcome().await.unwrap();
    }
    let in_doubt = results(&model).remove(0).0;
    assert!(
        in_doubt.contains("[outcome unknown] writes was started at"),
        "{in_doubt}"
    );
    let mut reply = talk.send("write a.txt").await.unwrap();
    let call = asked(&mut reply).await;
    assert_eq!(starts.load(Ordering::SeqCst), 0);
    talk.approve(call, true).await.unwrap();
    reply.outcome().await.unwrap();

    assert_eq!(starts.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn the_ninth_identical_call_is_refused_and_the_third_refusal_ends_the_round() {
    let (tool, starts) = echo("tool", ToolSpec::read_only);
    let model = Arc::new(ScriptedModel::always(Reply::tool(
        "tool",
        &json!({ "path": "a" }),
    )));
    let host = builder(&model).tool(tool).build().await.unwrap();
    let talk = conversation(&host);

    let outcome = talk.send("go").await.unwrap().outcome().await.unwrap();

    assert_eq!(
        (outcome.stop_reason, starts.load(Ordering::SeqCst)),
        (StopReason::LoopGuard, 8)
    );
    let texts: Vec<String> = talk
        .messages()
        .await
        .unwrap()
        .iter()
        .flat_map(|message| message.blocks())
        .filter_map(|block| match block {
            ContentBlock::ToolResult(result) => Some(result.content.text().into_owned()),
            _ => None,
        })
        .collect();
    let refused: Vec<usize> = texts
        .iter()
        .enumerate()
        .filter(|(_, text)| text.contains("LOOP_GUARD"))
        .map(|(n, _)| n)
        .collect();
    assert_eq!((texts.len(), refused), (11, vec![8, 9, 10]), "{texts:?}");
}
