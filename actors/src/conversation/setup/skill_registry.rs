//! The skills of a host: the source, the last list that was read from it, and the two tools that
//! models use.
//!
//! Skills are loaded in tool calls and in callers' tasks, never in a conversation's handler. A
//! loaded skill reaches the conversation as a [`SkillActivationResult`], and `round::skills`
//! decides about it.

use std::{borrow::Cow, sync::Arc, time::Duration};

use parking_lot::RwLock;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;
use tokio::{sync::Mutex, time::Instant};

use crate::{
    conversation::round::rules::SkillView,
    ids::ActivationId,
    journal::ActivatedBy,
    ports::{
        SkillError, SkillListing, SkillSource, Tool, ToolContext, ToolSource, ToolSpec, TypedTool,
        erased, text_arguments,
    },
    skill::{
        ACTIVATE_SKILL, LoadLevel, SKILL_RESOURCE, SkillActivationRequest, SkillActivationResult,
        SkillIndex, SkillName, SkillPolicy,
    },
    tool::{ToolError, ToolErrorType},
};

/// The shortest time between two reads of the source. Prompts trigger a read, and scanning a folder
/// takes milliseconds.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The longest wait for the source; the last list stays in use if the source takes longer.
const LOOK_MAX: Duration = Duration::from_secs(2);

/// The skills of a host.
pub struct SkillRegistry {
    source: Arc<dyn SkillSource>,
    policy: Arc<SkillPolicy>,
    seen: RwLock<Arc<SkillIndex>>,
    /// When the source was last read. Held during the read: one caller reads, the others do not
    /// wait.
    looked: Mutex<Instant>,
}

impl SkillRegistry {
    /// Reads the list of all skills from the source, and logs the source's notes as warnings.
    ///
    /// # Errors
    /// [`SkillError::Unavailable`] if the source cannot be read.
    pub(crate) async fn open(
        source: Arc<dyn SkillSource>,
        policy: SkillPolicy,
    ) -> Result<Self, SkillError> {
        let SkillListing { skills, notes } = source.index().await?;
        notes
            .iter()
            .for_each(|note| tracing::warn!("skills: {note}"));
        Ok(Self {
            source,
            policy: Arc::new(policy),
            seen: RwLock::new(Arc::new(SkillIndex::from_skills(&skills))),
            looked: Mutex::new(Instant::now()),
        })
    }

    /// The source of the skills.
    pub(crate) fn source(&self) -> &Arc<dyn SkillSource> {
        &self.source
    }

    /// The list and the policy that a conversation uses now.
    pub(crate) fn view(&self) -> SkillView {
        let index = self.seen.read().clone();
        SkillView {
            index,
            policy: self.policy.clone(),
        }
    }

    /// Reads the list again, unless it was read less than [`LOOK_EVERY`] ago. If the source fails,
    /// the list stays as it was.
    pub(crate) async fn refresh(&self) {
        let Ok(mut looked) = self.looked.try_lock() else {
            return;
        };
        if looked.elapsed() < LOOK_EVERY {
            return;
        }
        *looked = Instant::now();
        match tokio::time::timeout(LOOK_MAX, self.source.index()).await {
            Ok(Ok(listing)) => {
                let index = SkillIndex::from_skills(&listing.skills);
                let mut seen = self.seen.write();
                if **seen != index {
                    *seen = Arc::new(index);
                }
            }
            Ok(Err(error)) => tracing::warn!(%error, "the list of skills stays as it was"),
            Err(_) => tracing::warn!(
                "the skills took longer than {} s to list; the list stays as it was",
                LOOK_MAX.as_secs()
            ),
        }
    }

    /// Loads the requested skill. Never fails: for a missing or broken skill the result has
    /// `success` unset and an error text.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub(crate) async fn activation(
        &self,
        request: &SkillActivationRequest,
        by: ActivatedBy,
    ) -> SkillActivationResult {
        match self
            .source
            .load(request.skill_name.clone(), request.load_level)
            .await
        {
            Ok(skill) if by == ActivatedBy::Model && skill.metadata.disable_model_invocation => {
                SkillActivationResult::failed(
                    request,
                    format!(
                        "the skill {} is for people to activate, not for models",
                        skill.name()
                    ),
                )
            }
            Ok(skill) => SkillActivationResult::loaded(request, &skill),
            Err(error) => SkillActivationResult::failed(request, error.to_string()),
        }
    }

    /// The tools with which a model activates skills and reads their files.
    pub(crate) fn tools(self: &Arc<Self>) -> [Arc<dyn Tool>; 2] {
        [
            erased(ActivateSkill(self.clone())),
            erased(ReadResource(self.clone())),
        ]
    }

    fn name(text: &str) -> Result<SkillName, ToolError> {
        SkillName::new(text).map_err(|error| ToolError::invalid(error.to_string()))
    }
}

/// The tool `activate_skill`: loads a skill by name.
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
        text_arguments(
            &[(
                "skill_name",
                "Name of the skill, as the list of skills has it.",
            )],
            &[],
        )
    }
}

impl TypedTool for ActivateSkill {
    type Args = ActivateArgs;
    type Output = SkillActivationResult;
    const NAME: &'static str = ACTIVATE_SKILL;
    const DESCRIPTION: &'static str = "Activates a skill: its instructions follow after the results of your calls and count for the rest of this round.";

    fn declare(&self, spec: ToolSpec) -> ToolSpec {
        // Loading has no side effect; the journal records the activation. A call repeated after a
        // crash has the same activation id.
        spec.read_only()
            .source(ToolSource::BuiltIn)
            .not_shared()
            .timeout(Duration::from_secs(10))
    }

    fn check(&self, args: &ActivateArgs) -> Result<(), ToolError> {
        SkillRegistry::name(&args.skill_name).map(drop)
    }

    async fn call(
        &self,
        args: ActivateArgs,
        context: ToolContext,
    ) -> Result<SkillActivationResult, ToolError> {
        let name = SkillRegistry::name(&args.skill_name)?;
        let request = SkillActivationRequest::new(name, ActivationId::from_call(&context.key));
        Ok(self.0.activation(&request, ActivatedBy::Model).await)
    }
}

/// The tool `skill_resource`: reads a file of a skill on demand.
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
        spec.read_only()
            .source(ToolSource::BuiltIn)
            .not_shared()
            .timeout(Duration::from_secs(10))
    }

    fn check(&self, args: &ResourceArgs) -> Result<(), ToolError> {
        SkillRegistry::name(&args.skill_name).map(drop)
    }

    async fn call(&self, args: ResourceArgs, _: ToolContext) -> Result<String, ToolError> {
        let name = SkillRegistry::name(&args.skill_name)?;
        if let Some(path) = args.path.filter(|path| !path.is_empty()) {
            return self.0.source.resource(name, path).await.map_err(tool_error);
        }
        let skill = self
            .0
            .source
            .load(name, LoadLevel::Resources)
            .await
            .map_err(tool_error)?;
        let files: Vec<String> = skill
            .resources
            .iter()
            .flatten()
            .map(|resource| format!("{} ({} bytes)", resource.path, resource.bytes))
            .collect();
        Ok(if files.is_empty() {
            format!("The skill {} has no files.", skill.name())
        } else {
            files.join("\n")
        })
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
