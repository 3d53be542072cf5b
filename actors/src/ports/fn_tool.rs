//! Tools made from closures, for tools that need no type. The call guard, time limit, retries,
//! output levels and error layout are those of every other tool.

use std::{future::Future, sync::Arc};

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    BoxFuture, Concurrency, Tool, ToolContext, ToolOutput, ToolSpec,
    typed_tool::{arguments_of, output_of, schema_of},
};
use crate::{chat::RawJson, tool::ToolError};

type Run = Box<
    dyn Fn(RawJson, ToolContext) -> BoxFuture<'static, Result<ToolOutput, ToolError>> + Send + Sync,
>;
type Check = Box<dyn Fn(&RawJson) -> Result<(), ToolError> + Send + Sync>;

/// A closure as a tool. The defaults are the safe ones: effect class `once`, approval by mode, a
/// time limit of 120 s.
///
/// ```
/// use std::sync::Arc;
///
/// use callboard_actors::ports::{FnTool, Tool, ToolContext};
/// use callboard_actors::tool::ToolError;
///
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct Lookup {
///     /// City to look up.
///     city: String,
/// }
///
/// let weather = FnTool::new("weather", "Reports the weather of a city.", |args: Lookup, _context: ToolContext| async move {
///     if args.city.is_empty() {
///         return Err(ToolError::invalid("name a city"));
///     }
///     Ok(format!("Sunny in {}.", args.city))
/// })
/// .declare(|spec| spec.read_only());
///
/// assert_eq!(weather.spec().name(), "weather");
/// let tool: Arc<dyn Tool> = Arc::new(weather); // What a builder's `tool` takes.
/// # let _ = tool;
/// ```
///
/// The closure runs on the runtime's threads. Blocking work belongs in `spawn_blocking`.
pub struct FnTool {
    spec: ToolSpec,
    check: Check,
    run: Run,
}

impl FnTool {
    /// Creates a tool with typed arguments. The schema is derived from their type.
    pub fn new<A, O, F, R>(name: &str, description: &str, handler: F) -> Self
    where
        A: DeserializeOwned + JsonSchema + Send + 'static,
        O: TryInto<ToolOutput, Error: Into<ToolError>>,
        F: Fn(A, ToolContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<O, ToolError>> + Send + 'static,
    {
        let named = name.to_owned();
        let also_named = name.to_owned();
        let handler = Arc::new(handler);
        Self {
            spec: ToolSpec::new(name, description, schema_of::<A>()),
            check: Box::new(move |arguments| arguments_of::<A>(&named, arguments).map(drop)),
            run: Box::new(move |arguments, context| {
                let args = arguments_of::<A>(&also_named, &arguments);
                let handler = handler.clone();
                Box::pin(async move { output_of(handler(args?, context).await?) })
            }),
        }
    }

    /// Creates a tool from a JSON schema, such as one read from a file. With `file_param`, calls
    /// that name the same file in that parameter run one after the other.
    ///
    /// ```
    /// use callboard_actors::ports::{FnTool, Tool, ToolContext};
    /// use serde_json::{Value, json};
    ///
    /// let schema = json!({ "type": "object", "properties": { "path": { "type": "string" } }, "required": ["path"] });
    /// let count = FnTool::raw(
    ///     "count_words",
    ///     "Counts the words of a file.",
    ///     &schema,
    ///     |arguments: Value, _context: ToolContext| async move { Ok(format!("{} has 7 words", arguments["path"])) },
    ///     Some("path"),
    /// )
    /// .declare(|spec| spec.read_only());
    /// # assert_eq!(count.spec().concurrency, callboard_actors::ports::Concurrency::PerFile("path".into()));
    /// ```
    pub fn raw<O, F, R>(
        name: &str,
        description: &str,
        parameters: &Value,
        handler: F,
        file_param: Option<&str>,
    ) -> Self
    where
        O: TryInto<ToolOutput, Error: Into<ToolError>>,
        F: Fn(Value, ToolContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<O, ToolError>> + Send + 'static,
    {
        let schema = RawJson::of(parameters).unwrap_or_else(|_| RawJson::empty_object());
        let spec = ToolSpec::new(name, description, schema);
        let named = name.to_owned();
        let handler = Arc::new(handler);
        Self {
            spec: match file_param {
                Some(parameter) => spec.concurrency(Concurrency::PerFile(parameter.to_owned())),
                None => spec,
            },
            // Only the type of the arguments is known here; the host's `Schemas` checks them
            // against the schema.
            check: Box::new(|arguments| match arguments.is_object() {
                true => Ok(()),
                false => Err(ToolError::invalid("the arguments are no JSON object")),
            }),
            run: Box::new(move |arguments, context| {
                let args = arguments_of::<Value>(&named, &arguments);
                let handler = handler.clone();
                Box::pin(async move { output_of(handler(args?, context).await?) })
            }),
        }
    }

    /// Changes the [`ToolSpec`]: effect class, concurrency, time limit and all else.
    #[must_use]
    pub fn declare(mut self, declare: impl FnOnce(ToolSpec) -> ToolSpec) -> Self {
        self.spec = declare(self.spec);
        self
    }
}

impl Tool for FnTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn check(&self, arguments: &RawJson) -> Result<(), ToolError> {
        (self.check)(arguments)
    }

    fn call(
        &self,
        arguments: RawJson,
        context: ToolContext,
    ) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        (self.run)(arguments, context)
    }
}

impl std::fmt::Debug for FnTool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FnTool({})", self.spec.name())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{ports::Json, testing::contract, tool::ToolErrorType};

    #[derive(serde::Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct Sum {
        /// What to add up.
        numbers: Vec<u32>,
    }

    fn sum() -> FnTool {
        FnTool::new("sum", "Adds numbers.", |args: Sum, _| async move {
            Ok(Json(args.numbers.iter().sum::<u32>()))
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_closure_keeps_the_contract_of_tools() {
        contract::tool(Arc::new(sum()), &json!({ "numbers": [1, 2] })).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_closure_gets_typed_arguments_and_its_result_is_data_or_text() {
        let context = || contract::example_context(CancellationToken::new());
        let arguments = |value: Value| RawJson::of(&value).unwrap();
        let raw = FnTool::raw(
            "name",
            "Says a name.",
            &json!({ "type": "object" }),
            |args, _| async move { Ok(args["n"].to_string()) },
            None,
        );

        let three = sum()
            .call(arguments(json!({ "numbers": [1, 2] })), context())
            .await;
        let wrong = sum()
            .call(arguments(json!({ "numbers": "one" })), context())
            .await
            .unwrap_err();
        let text = raw.call(arguments(json!({ "n": 7 })), context()).await;

        assert_eq!(
            (three, text),
            (
                Ok(ToolOutput::Data(json!(3))),
                Ok(ToolOutput::Text("7".into()))
            )
        );
        assert_eq!(
            (wrong.kind, wrong.not_started),
            (ToolErrorType::InvalidParameters, true)
        );
        assert_eq!(
            raw.check(&arguments(json!([]))).unwrap_err().kind,
            ToolErrorType::InvalidParameters
        );
    }

    #[test]
    fn an_undeclared_closure_is_as_careful_as_any_tool() {
        use crate::{ports::Approval, tool::EffectClass};

        let undeclared = sum();
        let declared = sum().declare(ToolSpec::read_only);

        assert_eq!(
            (undeclared.spec().effect, undeclared.spec().approval),
            (EffectClass::Once, Approval::ByMode)
        );
        assert_eq!(
            (declared.spec().effect, declared.spec().approval),
            (EffectClass::Pure, Approval::Never)
        );
    }
}
