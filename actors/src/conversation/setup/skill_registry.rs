//! Skills within reach of a host's conversations: the source, the list as it was last seen, and the two tools that models use.
//!
//! Loading happens in tool calls and in callers' tasks, never in a conversation's handler; what was loaded comes to the conversation
//! as a [`SkillActivationResult`], and `skills` decides about it.

use std::{
    borrow::Cow,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;
use tokio::{sync::Mutex, time::Instant};

use crate::{
    conversation::round::rules::SkillView,
    ids::ActivationId,
    journal::ActivatedBy,
    ports::{SkillError, SkillListing, SkillSource, Tool, ToolContext, ToolSource, ToolSpec, TypedTool, erased, text_arguments},
    skill::{ACTIVATE_SKILL, LoadLevel, SKILL_RESOURCE, SkillActivationRequest, SkillActivationResult, SkillIndex, SkillName, SkillPolicy},
    tool::{ToolError, ToolErrorType},
};

/// A source is asked again when somebody speaks, but not more often than this: looking through a folder costs milliseconds.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// How long a source may take to tell its list again; the one before counts meanwhile.
const LOOK_MAX: Duration = Duration::from_secs(2);

/// The skills of a host.
pub struct SkillRegistry {
    source: Arc<dyn SkillSource>,
    policy: Arc<SkillPolicy>,
    seen: RwLock<Arc<SkillIndex>>,
    /// When the source was last asked. Held while it is, so that one asks and the others go on.
    looked: Mutex<Instant>,
}

impl SkillRegistry {
    /// Asks a source for its list (REQUIREMENTS S-01: all skills, at the start).
    ///
    /// # Errors
    /// [`SkillError::Unavailable`].
    pub async fn open(source: Arc<dyn SkillSource>, policy: SkillPolicy) -> Result<Self, SkillError> {
        let SkillListing { skills, notes } = source.index().await?;
        notes.iter().for_each(|note| tracing::warn!("skills: {note}"));
        Ok(Self {
            source,
            policy: Arc::new(policy),
            seen: RwLock::new(Arc::new(SkillIndex::of(&skills))),
            looked: Mutex::new(Instant::now()),
        })
    }

    /// Where the skills come from.
    pub fn source(&self) -> &Arc<dyn SkillSource> {
        &self.source
    }

    /// What a conversation goes by now.
    pub(crate) fn view(&self) -> SkillView {
        let index = self.seen.read().unwrap_or_else(PoisonError::into_inner).clone();
        SkillView { index, policy: self.policy.clone() }
    }

    /// Asks the source again, if that was not done just now. A source that fails leaves the list as it was.
    pub(crate) async fn look_again(&self) {
        let Ok(mut looked) = self.looked.try_lock() else { return };
        if looked.elapsed() < LOOK_EVERY {
            return;
        }
        *looked = Instant::now();
        match tokio::time::timeout(LOOK_MAX, self.source.index()).await {
            Ok(Ok(listing)) => {
                let index = SkillIndex::of(&listing.skills);
                let mut seen = self.seen.write().unwrap_or_else(PoisonError::into_inner);
                if **seen != index {
                    *seen = Arc::new(index);
                }
            }
            Ok(Err(error)) => tracing::warn!(%error, "the list of skills stays as it was"),
            Err(_) => tracing::warn!("the skills took longer than {} s to list; the list stays as it was", LOOK_MAX.as_secs()),
        }
    }

    /// Loads what a request wants. Never fails: a skill that is missing or broken is a result without success (REQUIREMENTS S-07).
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn activation(&self, request: &SkillActivationRequest, by: ActivatedBy) -> SkillActivationResult {
        match self.source.load(request.skill_name.clone(), request.load_level).await {
            Ok(skill) if by == ActivatedBy::Model && skill.metadata.disable_model_invocation => {
                SkillActivationResult::failed(request, format!("the skill {} is for people to activate, not for models", skill.name()))
            }
            Ok(skill) => SkillActivationResult::loaded(request, &skill),
            Err(error) => SkillActivationResult::failed(request, error.to_string()),
        }
    }

    /// The tools that a model has for skills.
    pub(crate) fn tools(self: &Arc<Self>) -> [Arc<dyn Tool>; 2] {
        [erased(ActivateSkill(self.clone())), erased(ReadResource(self.clone()))]
    }

    fn name(text: &str) -> Result<SkillName, ToolError> {
        SkillName::new(text).map_err(|error| ToolError::invalid(error.to_string()))
    }
}

/// `activate_skill` (REQUIREMENTS R-18).
struct ActivateSkill(Arc<SkillRegistry>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ActivateArgs {
    /// Name of the skill, as the list of skills has it.
    skill_name: String,
}

impl JsonSchema for ActivateArgs {
    fn schema_name() -> Cow<'static, str> {
        "ActivateArgs".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        text_arguments(&[("skill_name", "Name of the skill, as the list of skills has it.")], &[])
    }
}

impl TypedTool for ActivateSkill {
    type Args = ActivateArgs;
    type Output = SkillActivationResult;
    const NAME: &'static str = ACTIVATE_SKILL;
    const DESCRIPTION: &'static str =
        "Activates a skill: its instructions follow after the results of your calls and count for the rest of this round.";

    fn declare(&self, spec: ToolSpec) -> ToolSpec {
        // Loading changes nothing; what becomes of it is journaled. A call that runs again after a crash is the same activation.
        spec.read_only().source(ToolSource::BuiltIn).not_shared().timeout(Duration::from_secs(10))
    }

    fn check(&self, args: &ActivateArgs) -> Result<(), ToolError> {
        SkillRegistry::name(&args.skill_name).map(drop)
    }

    async fn call(&self, args: ActivateArgs, context: ToolContext) -> Result<SkillActivationResult, ToolError> {
        let name = SkillRegistry::name(&args.skill_name)?;
        let request = SkillActivationRequest {
            conversation_id: Some(context.key.scope.conversation.clone()),
            ..SkillActivationRequest::new(name, ActivationId::of_call(&context.key))
        };
        Ok(self.0.activation(&request, ActivatedBy::Model).await)
    }
}

/// `skill_resource` (REQUIREMENTS S-03): level 3, on demand.
struct ReadResource(Arc<SkillRegistry>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResourceArgs {
    /// Name of the skill.
    skill_name: String,
    /// Path of the file within the skill, such as `references/forms.md`. Without it: the list of its files.
    #[serde(default)]
    path: Option<String>,
}

impl JsonSchema for ResourceArgs {
    fn schema_name() -> Cow<'static, str> {
        "ResourceArgs".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let path = "Path of the file within the skill, such as `references/forms.md`. Without it: the list of its files.";
        text_arguments(&[("skill_name", "Name of the skill.")], &[("path", path)])
    }
}

impl TypedTool for ReadResource {
    type Args = ResourceArgs;
    type Output = String;
    const NAME: &'static str = SKILL_RESOURCE;
    const DESCRIPTION: &'static str = "Reads a file of a skill: a script, a reference, an asset. Without a path, lists the skill's files.";

    fn declare(&self, spec: ToolSpec) -> ToolSpec {
        spec.read_only().source(ToolSource::BuiltIn).not_shared().timeout(Duration::from_secs(10))
    }

    fn check(&self, args: &ResourceArgs) -> Result<(), ToolError> {
        SkillRegistry::name(&args.skill_name).map(drop)
    }

    async fn call(&self, args: ResourceArgs, _: ToolContext) -> Result<String, ToolError> {
        let name = SkillRegistry::name(&args.skill_name)?;
        if let Some(path) = args.path.filter(|path| !path.is_empty()) {
            return self.0.source.resource(name, path).await.map_err(tool_error);
        }
        let skill = self.0.source.load(name, LoadLevel::Resources).await.map_err(tool_error)?;
        let files: Vec<String> =
            skill.resources.iter().flatten().map(|resource| format!("{} ({} bytes)", resource.path, resource.bytes)).collect();
        Ok(if files.is_empty() { format!("The skill {} has no files.", skill.name()) } else { files.join("\n") })
    }
}

fn tool_error(error: SkillError) -> ToolError {
    let kind = match &error {
        SkillError::NotFound { .. } | SkillError::NoResource { .. } => ToolErrorType::NotFound,
        SkillError::Broken { .. } | SkillError::Unreadable { .. } => ToolErrorType::ExecutionError,
        SkillError::Unavailable { .. } => ToolErrorType::TransientError,
    };
    ToolError::new(kind, error.to_string())
}
