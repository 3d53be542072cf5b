//! What authors of tools write: arguments as a type, the schema derived from it.

use std::{future::Future, marker::PhantomData, sync::Arc};

use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use super::{BoxFuture, Tool, ToolContext, ToolError, ToolOutput, ToolSpec};
use crate::chat::RawJson;

/// A tool with typed arguments. Doc comments on the fields of `Args` become descriptions in the schema.
///
/// ```
/// use callboard_actors::ports::{ToolContext, ToolError, ToolSpec, TypedTool};
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
///     const DESCRIPTION: &'static str = "Tells the weather of a city.";
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
pub trait TypedTool: Send + Sync + 'static {
    /// The arguments.
    type Args: DeserializeOwned + JsonSchema + Send;
    /// The result: a text or data.
    type Output: Into<ToolOutput>;
    /// Name: 1-64 of `[A-Za-z0-9_-]`.
    const NAME: &'static str;
    /// What it does and when to use it, for the model.
    const DESCRIPTION: &'static str;

    /// Declares effect class, concurrency, timeout; the given spec has the careful defaults.
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

    /// The arguments in their one spelling, where that is not the given one ([`Tool::resolve`]).
    fn resolve(&self, args: &Self::Args) -> Option<RawJson> {
        let _ = args;
        None
    }

    /// What a person agrees to who says "always" ([`Tool::approval_pattern`]); `None`: these exact arguments.
    fn approval_pattern(&self, args: &Self::Args) -> Option<String> {
        let _ = args;
        None
    }

    /// Runs it.
    fn call(&self, args: Self::Args, context: ToolContext) -> impl Future<Output = Result<Self::Output, ToolError>> + Send;
}

/// Turns a typed tool into the form the executor uses.
pub fn erased<T: TypedTool>(tool: T) -> Arc<dyn Tool> {
    let schema = RawJson::of(&schemars::schema_for!(T::Args)).unwrap_or_else(|_| RawJson::empty_object());
    let spec = tool.declare(ToolSpec::new(T::NAME, T::DESCRIPTION, schema));
    Arc::new(Erased { tool, spec, args: PhantomData::<fn() -> T::Args> })
}

struct Erased<T: TypedTool> {
    tool: T,
    spec: ToolSpec,
    args: PhantomData<fn() -> T::Args>,
}

impl<T: TypedTool> Erased<T> {
    fn parse(&self, arguments: &RawJson) -> Result<T::Args, ToolError> {
        arguments.parse().map_err(|error| ToolError::invalid(format!("arguments of {} do not fit: {error}", T::NAME)))
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

    fn approval_pattern(&self, arguments: &RawJson) -> String {
        let pattern = self.parse(arguments).ok().and_then(|args| self.tool.approval_pattern(&args));
        pattern.unwrap_or_else(|| arguments.as_str().to_owned())
    }

    fn call(&self, arguments: RawJson, context: ToolContext) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move { self.tool.call(self.parse(&arguments)?, context).await.map(Into::into) })
    }
}
