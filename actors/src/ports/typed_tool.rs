//! The typed form of a tool, which authors implement: arguments as a type, with a schema derived
//! from it.

use std::{convert::Infallible, future::Future, marker::PhantomData, sync::Arc};

use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Number, Value};

use super::{BoxFuture, Tool, ToolContext, ToolOutput, ToolSpec};
use crate::{
    chat::RawJson,
    ids::{Scope, TenantId},
    tool::ToolError,
};

/// A tool with typed arguments. Doc comments on the fields of `Args` become descriptions in the
/// schema.
///
/// ```
/// use callboard_actors::ports::{ToolContext, ToolSpec, TypedTool};
/// use callboard_actors::tool::ToolError;
///
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct Args {
///     /// City to look up.
///     city: String,
/// }
///
/// struct Weather;
///
/// impl TypedTool for Weather {
///     type Args = Args;
///     type Output = String;
///     const NAME: &'static str = "weather";
///     const DESCRIPTION: &'static str = "Reports the weather of a city.";
///
///     fn declare(&self, spec: ToolSpec) -> ToolSpec {
///         spec.read_only()
///     }
///
///     async fn call(&self, args: Args, _context: ToolContext) -> Result<String, ToolError> {
///         Ok(format!("Sunny in {}.", args.city))
///     }
/// }
/// ```
///
/// A tool that returns data, with every declaration:
/// ```
/// use std::time::Duration;
///
/// use callboard_actors::{policy::{BreakerConfig, ToolRetryPolicy}, ports::{Approval, CachePolicy, Concurrency, Json, Reach, ToolContext, ToolSource, ToolSpec, TypedTool, erased}};
/// use callboard_actors::tool::{EffectClass, OutputLevel, ToolError, ToolErrorType};
///
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct Query {
///     /// Table to look into.
///     table: String,
/// }
///
/// #[derive(serde::Serialize)]
/// struct Row {
///     id: u64,
/// }
///
/// struct Rows;
///
/// impl TypedTool for Rows {
///     type Args = Query;
///     type Output = Json<Vec<Row>>;
///     const NAME: &'static str = "rows";
///     const DESCRIPTION: &'static str = "Lists the rows of a table.";
///
///     fn declare(&self, spec: ToolSpec) -> ToolSpec {
///         spec.effect(EffectClass::Pure) // what a repeated start would do
///             .approval(Approval::Never) // whether a person must agree
///             .concurrency(Concurrency::PerFile("table".into())) // what may run beside it
///             .timeout(Duration::from_secs(20)) // of one attempt
///             .retry(ToolRetryPolicy { retry_on: vec![ToolErrorType::Timeout, ToolErrorType::RateLimit], ..Default::default() })
///             .retry_on_timeout(false) // a slow query is slow again
///             .returns_data() // a model may name an `output_level`
///             .level(OutputLevel::Standard) // where it names none
///             .cache(CachePolicy::TtlShort) // results answer equal calls for five minutes
///             .not_shared() // equal calls at the same time run each by itself
///             .reach(Reach::Host) // what of the outside it touches
///             .breaker(BreakerConfig { failures: 3, open_for: Duration::from_secs(60) }) // when it is left alone
///             .version("2.1.0")
///             .source(ToolSource::Custom)
///     }
///
///     async fn call(&self, args: Query, _context: ToolContext) -> Result<Json<Vec<Row>>, ToolError> {
///         match args.table.as_str() {
///             "orders" => Ok(Json(vec![Row { id: 4711 }])),
///             other => Err(ToolError::not_found(format!("there is no table {other:?}"))),
///         }
///     }
/// }
///
/// let tool = erased(Rows);
/// assert_eq!((tool.spec().timeout, tool.spec().cache), (Duration::from_secs(20), CachePolicy::TtlShort));
/// ```
pub trait TypedTool: Send + Sync + 'static {
    /// Type of the arguments.
    type Args: DeserializeOwned + JsonSchema + Send;
    /// Type of the result: text, or data as [`Json`].
    type Output: TryInto<ToolOutput, Error: Into<ToolError>>;
    /// Name: 1-64 of `[A-Za-z0-9_-]`.
    const NAME: &'static str;
    /// What the tool does and when to use it, for the model.
    const DESCRIPTION: &'static str;

    /// Declares effect class, concurrency and time limit. `spec` has the safe defaults.
    fn declare(&self, spec: ToolSpec) -> ToolSpec {
        spec
    }

    /// Checks arguments beyond their types.
    ///
    /// # Errors
    /// [`ToolError::invalid`].
    fn check(&self, args: &Self::Args) -> Result<(), ToolError> {
        let _ = args;
        Ok(())
    }

    /// Returns the canonical form of the arguments; see [`Tool::resolve`].
    fn resolve(&self, args: &Self::Args) -> Option<RawJson> {
        let _ = args;
        None
    }

    /// Whether this call only reads and so needs no approval ([`Tool::only_reads`]).
    fn only_reads(&self, args: &Self::Args) -> bool {
        let _ = args;
        false
    }

    /// Returns the pattern that a person approves with "always" ([`Tool::approval_pattern`]).
    /// `None` stands for the exact arguments.
    fn approval_pattern(&self, args: &Self::Args) -> Option<String> {
        let _ = args;
        None
    }

    /// Runs the call.
    fn call(
        &self,
        args: Self::Args,
        context: ToolContext,
    ) -> impl Future<Output = Result<Self::Output, ToolError>> + Send;

    /// Deletes what the tool stores for a tenant ([`Tool::forget`]).
    ///
    /// # Errors
    /// The reason why not everything was deleted.
    fn forget(&self, tenant: &TenantId) -> impl Future<Output = Result<(), ToolError>> + Send {
        let _ = tenant;
        std::future::ready(Ok(()))
    }

    /// Deletes what the tool stores for a conversation ([`Tool::forget_conversation`]).
    ///
    /// # Errors
    /// The reason why not everything was deleted.
    fn forget_conversation(
        &self,
        scope: &Scope,
    ) -> impl Future<Output = Result<(), ToolError>> + Send {
        let _ = scope;
        std::future::ready(Ok(()))
    }
}

/// Any serializable value as the data of a result ([`ToolOutput::Data`]). [`TypedTool::declare`]
/// sets the output level and the cache policy.
///
/// ```
/// use callboard_actors::ports::{Json, ToolOutput};
///
/// let output = ToolOutput::try_from(Json(vec![1, 2])).unwrap();
/// assert_eq!(output, ToolOutput::Data(serde_json::json!([1, 2])));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Json<T>(pub T);

/// Fails for values that JSON cannot represent, such as a map whose keys are not strings.
impl<T: Serialize> TryFrom<Json<T>> for ToolOutput {
    type Error = ToolError;

    fn try_from(Json(value): Json<T>) -> Result<Self, ToolError> {
        serde_json::to_value(value)
            .map(Self::Data)
            .map_err(|error| {
                ToolError::failed(format!("the result cannot be written as JSON: {error}"))
            })
    }
}

impl From<Infallible> for ToolError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// Returns the schema of a type.
pub(super) fn schema_of<A: JsonSchema>() -> RawJson {
    RawJson::of(&schemars::schema_for!(A)).unwrap_or_else(|_| RawJson::empty_object())
}

/// Deserializes arguments. Models write whole numbers also as `2.0`, which JSON does not
/// distinguish from `2`, so both are accepted for an integer.
pub(super) fn arguments_of<A: DeserializeOwned>(
    tool: &str,
    arguments: &RawJson,
) -> Result<A, ToolError> {
    arguments.parse().or_else(|error| {
        let value = arguments.parse::<Value>().ok().and_then(whole_numbers);
        let again = value.and_then(|value| serde_json::from_value(value).ok());
        again.ok_or_else(|| {
            ToolError::invalid(format!("the arguments of {tool} do not fit: {error}"))
        })
    })
}

/// Rewrites whole numbers without a fraction; `None` if there is nothing to change.
fn whole_numbers(mut value: Value) -> Option<Value> {
    let mut changed = false;
    let mut open = vec![&mut value];
    while let Some(next) = open.pop() {
        match next {
            Value::Array(items) => open.extend(items),
            Value::Object(fields) => open.extend(fields.values_mut()),
            Value::Number(number) if number.is_f64() => {
                // 2^53: beyond it a float does not identify one integer.
                let whole = number
                    .as_f64()
                    .filter(|float| float.fract() == 0.0 && float.abs() <= 9_007_199_254_740_992.0);
                if let Some(whole) = whole {
                    *number = Number::from(whole as i64);
                    changed = true;
                }
            }
            Value::Number(_) | Value::Null | Value::Bool(_) | Value::String(_) => {}
        }
    }
    changed.then_some(value)
}

/// Converts what a handler returned to a tool output.
pub(super) fn output_of<O: TryInto<ToolOutput, Error: Into<ToolError>>>(
    output: O,
) -> Result<ToolOutput, ToolError> {
    output.try_into().map_err(Into::into)
}

/// Erases the type of a tool, for the executor.
pub fn erased<T: TypedTool>(tool: T) -> Arc<dyn Tool> {
    let spec = tool.declare(ToolSpec::new(
        T::NAME,
        T::DESCRIPTION,
        schema_of::<T::Args>(),
    ));
    Arc::new(Erased {
        tool,
        spec,
        args: PhantomData::<fn() -> T::Args>,
    })
}

struct Erased<T: TypedTool> {
    tool: T,
    spec: ToolSpec,
    args: PhantomData<fn() -> T::Args>,
}

impl<T: TypedTool> Erased<T> {
    fn parse(&self, arguments: &RawJson) -> Result<T::Args, ToolError> {
        arguments_of(T::NAME, arguments)
    }
}

impl<T: TypedTool> Tool for Erased<T> {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn check(&self, arguments: &RawJson) -> Result<(), ToolError> {
        self.tool.check(&self.parse(arguments)?)
    }

    fn resolve(&self, arguments: &RawJson) -> Option<RawJson> {
        self.tool.resolve(&self.parse(arguments).ok()?)
    }

    fn only_reads(&self, arguments: &RawJson) -> bool {
        self.parse(arguments)
            .is_ok_and(|args| self.tool.only_reads(&args))
    }

    fn approval_pattern(&self, arguments: &RawJson) -> String {
        let pattern = self
            .parse(arguments)
            .ok()
            .and_then(|args| self.tool.approval_pattern(&args));
        pattern.unwrap_or_else(|| arguments.as_str().to_owned())
    }

    fn call(
        &self,
        arguments: RawJson,
        context: ToolContext,
    ) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move { output_of(self.tool.call(self.parse(&arguments)?, context).await?) })
    }

    fn forget<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<(), ToolError>> {
        Box::pin(self.tool.forget(tenant))
    }

    fn forget_conversation<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<(), ToolError>> {
        Box::pin(self.tool.forget_conversation(scope))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use serde_json::json;

    use super::*;
    use crate::tool::ToolErrorType;

    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Args {
        n: u32,
        ratio: Option<f64>,
    }

    fn parse(text: &str) -> Result<Args, ToolError> {
        arguments_of("t", &RawJson::from_text(text).unwrap())
    }

    #[test]
    fn a_whole_number_may_be_written_with_a_fraction() {
        assert_eq!(
            parse(r#"{"n": 2.0, "ratio": 1.5}"#),
            Ok(Args {
                n: 2,
                ratio: Some(1.5)
            })
        );
        assert_eq!(
            parse(r#"{"n": 2, "ratio": 3}"#),
            Ok(Args {
                n: 2,
                ratio: Some(3.0)
            })
        );
        for bad in [
            r#"{"n": 2.5}"#,
            r#"{"n": -1.0}"#,
            r#"{"n": 1e300}"#,
            r#"{}"#,
        ] {
            let error = parse(bad).unwrap_err();
            assert_eq!(
                (error.kind, error.not_started),
                (ToolErrorType::InvalidParameters, true),
                "{bad}"
            );
            assert!(
                error.message.starts_with("the arguments of t do not fit: "),
                "{}",
                error.message
            );
        }
    }

    #[test]
    fn a_value_is_data_and_what_json_cannot_hold_is_a_failure() {
        let bad = Json(HashMap::from([(vec![1], 2)]));

        assert_eq!(
            output_of(Json(json!({ "a": 1 }))),
            Ok(ToolOutput::Data(json!({ "a": 1 })))
        );
        assert_eq!(output_of("text"), Ok(ToolOutput::Text("text".into())));
        assert_eq!(
            output_of(bad).unwrap_err().kind,
            ToolErrorType::ExecutionError
        );
    }
}
