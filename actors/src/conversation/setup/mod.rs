//! What a conversation is made of: its model, tools, rules and the ports it uses. Shared by all that are configured alike.

pub(in crate::conversation) mod call_guard;
pub(in crate::conversation) mod skill_registry;
pub(in crate::conversation) mod toolset;

use std::sync::Arc;

use crate::{
    chat::{Effort, ModelRequest, RawJson, ToolChoice},
    compactor::CompactorRef,
    conversation::{
        round::{
            rules::{ApprovalMode, CallPolicy, ContextRules, Judgement, Recovery, Rules},
            skills,
        },
        setup::{call_guard::CallGuard, skill_registry::SkillRegistry, toolset::Toolset},
    },
    ids::{ConversationId, Scope},
    journal::Durable,
    limits::Limits,
    metrics_collector::Counters,
    model_gateway::{CallClass, ModelGatewayRef, exact::ExactCounter},
    policy::{Budget, Pricing, TraceSampling},
    ports::{Clock, Entropy, EventStore, Hook, PermissionLevel, Schemas, SessionBackend},
    subagent::Children,
    tool_executor::ToolResources,
};

/// The ports that conversations use.
#[derive(Clone)]
pub struct Ports {
    /// Journals.
    pub sessions: Arc<dyn SessionBackend>,
    /// Events.
    pub events: Arc<dyn EventStore>,
    /// Wall time.
    pub clock: Arc<dyn Clock>,
    /// Chance.
    pub entropy: Arc<dyn Entropy>,
    /// Counters.
    pub counters: Arc<Counters>,
}

/// How a conversation behaves.
#[derive(Clone)]
pub struct Setup {
    /// The door to its model.
    pub gateway: ModelGatewayRef,
    /// Its model.
    pub model: Arc<str>,
    /// Its system prompt.
    pub system: Option<Arc<str>>,
    /// Longest answer, in tokens.
    pub max_tokens: u32,
    /// How hard to think.
    pub effort: Option<Effort>,
    /// Its skills.
    pub skills: Option<Arc<SkillRegistry>>,
    /// Its tools.
    pub tools: Arc<Toolset>,
    /// Verdicts before tool calls.
    pub hooks: Arc<[Arc<dyn Hook>]>,
    /// Whether tools that change something may run.
    pub approval: ApprovalMode,
    /// Whether somebody can be asked.
    pub has_approver: bool,
    /// The model's context window, in tokens.
    pub window_tokens: u64,
    /// What a request must fit.
    pub context: ContextRules,
    /// Counts tokens, and asks the provider where the model is configured so.
    pub tokens: Arc<ExactCounter>,
    /// Measures contexts and makes summaries.
    pub compactor: CompactorRef,
    /// What becomes of a round that was open when its host stopped.
    pub recovery: Recovery,
    /// What it lends to its tools.
    pub resources: ToolResources,
    /// Checks answers that must be JSON of a schema; they need only be JSON otherwise.
    pub schemas: Option<Arc<dyn Schemas>>,
    /// Whether the model takes an output schema itself.
    pub native_output: bool,
    /// Whether the model is shown documents.
    pub takes_documents: bool,
    /// What its calls may cost.
    pub spending: Arc<Pricing>,
    /// How many of its turns are traced.
    pub trace_sampling: TraceSampling,
    /// How urgent its calls are.
    pub class: CallClass,
    /// What begins its subagents, if it may have any.
    pub(crate) children: Option<Arc<dyn Children>>,
    /// How the subagents of such a conversation are set up; none: this is how.
    pub(crate) child: Option<Arc<Setup>>,
    /// Bounds.
    pub limits: Arc<Limits>,
}

impl Setup {
    /// This set-up as it holds for a conversation: a subagent's differs (REQUIREMENTS N-02, N-05).
    pub(crate) fn of(self: Arc<Self>, conversation: &ConversationId) -> Arc<Self> {
        match &self.child {
            Some(child) if conversation.is_subagent() => child.clone(),
            Some(_) | None => self,
        }
    }

    /// What bounds a conversation and its subagents together; `None` where it may have no subagents.
    pub(crate) fn family_budget(&self) -> Option<Budget> {
        self.children.as_ref().map(|_| self.spending.budget)
    }

    /// The rules of one conversation.
    pub(in crate::conversation) fn rules(self: &Arc<Self>, scope: &Scope) -> Rules {
        Rules {
            judge: Arc::new(CallGuard::new(self.clone(), scope.clone())),
            approval: if self.resources.permissions.level == PermissionLevel::Admin { ApprovalMode::Auto } else { self.approval },
            has_approver: self.has_approver,
            output_level: self.resources.output_level,
            window_tokens: self.window_tokens,
            context: self.context,
            identical_calls_max: self.limits.identical_calls_max,
            tool_iterations_max: self.limits.tool_iterations_max,
            parallel_tools_max: self.limits.parallel_tools_max,
            subagents_a_round_max: self.limits.subagents_a_round_max,
            subagents_max: self.limits.subagents_max,
            inbox_prompts_max: self.limits.inbox_prompts_max,
            spending: self.spending.clone(),
        }
    }

    /// A model that its calls may go to and that has no price: its own, or a fallback's.
    pub(crate) fn unpriced_model(&self) -> Option<Arc<str>> {
        let models = std::iter::once(self.model.clone()).chain(self.gateway.fallback_models());
        models.into_iter().find(|model| self.spending.price_of(model).is_none())
    }

    /// Judges a call as a conversation would: permission, hooks, size, schema, the tool's own check.
    pub fn judge(self: &Arc<Self>, scope: &Scope, name: &str, input: &RawJson) -> Judgement {
        CallGuard::new(self.clone(), scope.clone()).judge(name, input)
    }

    /// What checks answers that must fit `schema`.
    ///
    /// # Errors
    /// Says what is wrong with the schema.
    pub(crate) fn output_check(&self, schema: &RawJson) -> Result<impl Fn(&serde_json::Value) -> Result<(), String> + use<>, String> {
        let check = self.schemas.as_ref().map(|schemas| schemas.compile("answer", schema)).transpose()?;
        Ok(move |value: &serde_json::Value| match &check {
            Some(check) => check.check(value).map_err(|error| error.to_string()),
            None => Ok(()),
        })
    }

    /// The request of the next model call.
    pub fn request(&self, durable: &Durable) -> ModelRequest {
        let other = self.spending.chosen_model(durable).map(Arc::from);
        let (model, max_tokens) = match other {
            None => (self.model.clone(), self.max_tokens),
            Some(other) => {
                let output_max = self.gateway.capabilities(&other).output_max;
                (other, self.max_tokens.min(output_max))
            }
        };
        ModelRequest {
            model,
            system: if self.skills.is_some() { skills::system(self.system.as_ref(), durable) } else { self.system.clone() },
            messages: durable.history.messages().clone(),
            tools: skills::tools(self.tools.definitions(), durable),
            tool_choice: ToolChoice::Auto,
            max_tokens,
            stop: Arc::default(),
            effort: self.effort,
            output_schema: None,
            cache: true,
        }
    }
}
