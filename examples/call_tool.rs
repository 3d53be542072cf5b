//! Calls a tool without a model, with the limits, cache and retries of a conversation's calls, and
//! with an idempotency key of the program. `cargo run --example call_tool`

use callboard::{Host, ToolContext, ToolError, ToolSpec, TypedTool, chat::RawJson, erased};
use callboard_actors::{
    conversation::round::rules::CallCheck,
    ids::{CallKey, ConversationId, Scope, Seq, TenantId},
    ports::{CachePolicy, Progress},
    testing::{Reply, ScriptedModel},
    tool_executor::{LoneCall, ToolInvocationRequest, call_once},
};
use tokio_util::sync::CancellationToken;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Look {
    /// Seconds since the page was asked for.
    age_s: u64,
}

struct News;

impl TypedTool for News {
    type Args = Look;
    type Output = String;
    const NAME: &'static str = "news";
    const DESCRIPTION: &'static str = "Reads today's news.";

    fn declare(&self, spec: ToolSpec) -> ToolSpec {
        spec.read_only().cache(CachePolicy::TtlShort)
    }

    async fn call(&self, args: Look, _: ToolContext) -> Result<String, ToolError> {
        Ok(format!("read after {} s", args.age_s))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let host = Host::builder()
        .provider(ScriptedModel::answering(|_, _| Reply::text("unused")))
        .tool(erased(News))
        .build()
        .await?;
    let scope = Scope::new(TenantId::new("acme")?, ConversationId::new("batch-1")?);

    let first = call(&host, &scope, 0, r#"{"age_s":1}"#, "news-of-today").await?;
    // Other arguments, and the same call for the program: the result of the first answers it.
    let again = call(&host, &scope, 1, r#"{"age_s":2}"#, "news-of-today").await?;
    let other = call(&host, &scope, 2, r#"{"age_s":3}"#, "news-of-tomorrow").await?;

    println!("{first}\n{again}\n{other}");
    assert_eq!([&*first, &*again], ["read after 1 s", "read after 1 s"]);
    assert_eq!(other, "read after 3 s");
    Ok(())
}

/// One call with its checks: schema, permission and hooks.
async fn call(
    host: &Host,
    scope: &Scope,
    index: u32,
    input: &str,
    idempotency_key: &str,
) -> Result<String, Box<dyn std::error::Error>> {
    let input = RawJson::from_text(input)?;
    let setup = host.setup();
    let (spec, input) = match setup.check_call(scope, News::NAME, &input) {
        CallCheck::Ready {
            spec,
            input: replaced,
            ..
        } => (spec, replaced.unwrap_or(input)),
        CallCheck::Refused(error) => return Err(error.message.into()),
    };
    let tool = setup.tools.get(News::NAME).cloned().ok_or("no such tool")?;
    let request = ToolInvocationRequest::from_spec(&spec, format!("call_{index}"), input)
        .with_idempotency_key(idempotency_key)?;
    let key = CallKey {
        scope: scope.clone(),
        seq: Seq(0),
        index,
    };
    let result = call_once(
        LoneCall { key, tool, request },
        host.environment(scope),
        CancellationToken::new(),
        Progress::silent(),
    );
    Ok(result.await.observation)
}
