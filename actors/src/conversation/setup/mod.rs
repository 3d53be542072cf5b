//! The configuration of a conversation: model, tools, rules and ports. Conversations with the same
//! configuration share one `Setup`.

pub(in crate::conversation) mod call_guard;
pub(in crate::conversation) mod skill_registry;
pub(in crate::conversation) mod toolset;

use std::sync::Arc;

use tokio::sync::Notify;

use crate::{
    chat::{ModelParameters, ModelRequest, RawJson, ToolChoice, ToolDefinition},
    compactor::CompactorRef,
    conversation::{
        outgoing::OutboxRules,
        round::{
            rules::{
                ApprovalMode, CallCheck, ContextRules, ModelLimits, OtherModel, Recovery, Rules,
            },
            skills,
        },
        setup::{call_guard::CallGuard, skill_registry::SkillRegistry, toolset::Toolset},
        store_health::StoreHealth,
    },
    ids::{ConversationId, Scope},
    journal::Durable,
    limits::Limits,
    metrics_collector::MetricsCollectorRef,
    model_gateway::{CallClass, ModelGatewayRef, exact::ExactCounter},
    policy::{Budget, Pricing, TraceSampling},
    ports::{Clock, Entropy, EventStore, Hook, PermissionLevel, Schemas, SessionBackend},
    subagent::Children,
    tool_executor::ToolResources,
};

/// The ports that conversations use.
#[derive(Clone)]
pub struct Ports {
    /// Stores journals and snapshots.
    pub sessions: Arc<dyn SessionBackend>,
    /// Whether `sessions` takes writes.
    pub store_health: Arc<StoreHealth>,
    /// Stores event streams.
    pub events: Arc<dyn EventStore>,
    /// Wall-clock time, for timestamps and deadlines that outlive the process.
    pub clock: Arc<dyn Clock>,
    /// Source of ids and of the jitter of retries.
    pub entropy: Arc<dyn Entropy>,
    /// What happens is reported here.
    pub(crate) collector: MetricsCollectorRef,
}

/// What a receiver outside is informed of, and who waits for the messages.
#[derive(Clone)]
pub(crate) struct OutboxSetup {
    pub(crate) rules: OutboxRules,
    /// Notified after a message is stored.
    pub(crate) bell: Arc<Notify>,
}

/// The configuration of a conversation.
#[derive(Clone)]
pub struct Setup {
    /// The gateway to the model's provider.
    pub gateway: ModelGatewayRef,
    /// The name of the model, as its provider knows it.
    pub model: Arc<str>,
    /// The system prompt, without the list of skills.
    pub system: Option<Arc<str>>,
    /// The longest answer, in tokens.
    pub max_tokens: u32,
    /// The longest answer that the model can give, in tokens. It bounds the wish of a prompt.
    pub output_max: u32,
    /// How the model is asked to answer; a prompt may ask otherwise.
    pub parameters: ModelParameters,
    /// The skills; `None` without a skill source.
    pub skills: Option<Arc<SkillRegistry>>,
    /// The tools that the model is offered.
    pub tools: Arc<Toolset>,
    /// Checks before and after tool calls, applied in order.
    pub hooks: Arc<[Arc<dyn Hook>]>,
    /// Whether tools with side effects may run.
    pub approval: ApprovalMode,
    /// Whether a person can be asked for approval.
    pub has_approver: bool,
    /// The model's context window, in tokens.
    pub window_tokens: u64,
    /// The limits that decide when the context is measured and compacted.
    pub context: ContextRules,
    /// Counts tokens, at the provider if the model is configured that way.
    pub tokens: Arc<ExactCounter>,
    /// Measures contexts and writes summaries.
    pub compactor: CompactorRef,
    /// What happens to a round that was open when its host stopped.
    pub recovery: Recovery,
    /// Permissions and shared resources of the tools.
    pub resources: ToolResources,
    /// Compiles output schemas; with `None`, an answer only has to be JSON.
    pub schemas: Option<Arc<dyn Schemas>>,
    /// Whether the provider's API accepts an output schema.
    pub native_output: bool,
    /// Whether the model accepts documents.
    pub takes_documents: bool,
    /// Whether the provider's API takes extended thinking.
    pub takes_thinking: bool,
    /// Prices and the budget of the conversation.
    pub pricing: Arc<Pricing>,
    /// Which fraction of the rounds is traced.
    pub trace_sampling: TraceSampling,
    /// What a receiver outside is informed of; `None` without one.
    pub(crate) outbox: Option<OutboxSetup>,
    /// The priority class of the model calls in the gateway.
    pub class: CallClass,
    /// Starts, wakes and interrupts subagents; `None` if the conversation may not have any.
    pub(crate) children: Option<Arc<dyn Children>>,
    /// The configuration of the subagents; `None` if this is a subagent's own configuration.
    pub(crate) child: Option<Arc<Setup>>,
    /// Sizes, counts and timeouts.
    pub limits: Arc<Limits>,
}

impl Setup {
    /// The configuration that applies to `conversation`: a subagent's differs from its parent's.
    pub(crate) fn of(self: Arc<Self>, conversation: &ConversationId) -> Arc<Self> {
        match &self.child {
            Some(child) if conversation.is_subagent() => child.clone(),
            Some(_) | None => self,
        }
    }

    /// The budget that a conversation shares with its subagents; `None` where subagents are not
    /// allowed.
    pub(crate) fn family_budget(&self) -> Option<Budget> {
        self.children.as_ref().map(|_| self.pricing.budget)
    }

    /// The rules for the decisions of one conversation.
    pub(in crate::conversation) fn rules(self: &Arc<Self>, scope: &Scope) -> Rules {
        Rules {
            call_policy: Arc::new(CallGuard::new(self.clone(), scope.clone())),
            approval: if self.resources.permissions.level == PermissionLevel::Admin {
                ApprovalMode::Auto
            } else {
                self.approval
            },
            has_approver: self.has_approver,
            output_level: self.resources.output_level,
            window_tokens: self.window_tokens,
            context: self.context,
            identical_calls_max: self.limits.identical_calls_max,
            tool_iterations_max: self.limits.tool_iterations_max,
            parallel_tools_max: self.limits.parallel_tools_max,
            subagents_a_round_max: self.limits.subagents_a_round_max,
            subagents_max: self.limits.subagents_max,
            client_result_ms: u64::try_from(self.limits.client_result.as_millis())
                .unwrap_or(u64::MAX),
            inbox_prompts_max: self.limits.inbox_prompts_max,
            pricing: self.pricing.clone(),
        }
    }

    /// The context rules of the next model call.
    pub(in crate::conversation) fn context_of(&self, state: &Durable) -> ContextRules {
        self.context
            .next_call(state, &self.pricing, |model| self.limits_of(model))
    }

    /// The limits of another model than the conversation's own; `None` if there is no such model.
    pub(in crate::conversation) fn limits_of(&self, model: OtherModel<'_>) -> Option<ModelLimits> {
        let (capabilities, is_fallback) = match model {
            OtherModel::Chosen(model) => (self.gateway.capabilities(model), false),
            OtherModel::Fallback(gateway) => {
                let (_, fallback) = self.gateway.fallback_at(gateway)?;
                (fallback.capabilities, true)
            }
            OtherModel::Answered(model) => match self.gateway.fallback_of(model) {
                Some(fallback) => (fallback.capabilities, true),
                None => (self.gateway.capabilities(model), false),
            },
        };
        let answer_max = if is_fallback {
            capabilities.fallback_answer_max()
        } else {
            capabilities.output_max.max(1)
        };
        Some(ModelLimits {
            window: u64::from(capabilities.context_window),
            answer_max: u64::from(answer_max),
        })
    }

    /// The first model without a price among the configured model and its fallbacks.
    pub(crate) fn unpriced_model(&self) -> Option<Arc<str>> {
        let models = std::iter::once(self.model.clone()).chain(self.gateway.fallback_models());
        models
            .into_iter()
            .find(|model| self.pricing.price_of(model).is_none())
    }

    /// Checks a tool call as a conversation would: permission, hooks, size, schema, the tool's own
    /// check.
    pub fn check_call(self: &Arc<Self>, scope: &Scope, name: &str, input: &RawJson) -> CallCheck {
        CallGuard::new(self.clone(), scope.clone()).check_here(name, input)
    }

    /// Returns the check of answers that must fit `schema`.
    ///
    /// # Errors
    /// The fault of the schema, in words.
    pub(crate) fn output_check(
        &self,
        schema: &RawJson,
    ) -> Result<impl Fn(&serde_json::Value) -> Result<(), String> + use<>, String> {
        let check = self
            .schemas
            .as_ref()
            .map(|schemas| schemas.compile("answer", schema))
            .transpose()?;
        Ok(move |value: &serde_json::Value| match &check {
            Some(check) => check.check(value).map_err(|error| error.to_string()),
            None => Ok(()),
        })
    }

    /// The tools of the host, and behind them those that the caller brought. A tool of the caller
    /// hides one of the host that came later under the same name.
    fn offered(&self, durable: &Durable) -> Arc<[ToolDefinition]> {
        let own = self.tools.definitions();
        let Some(brought) = durable.client_tools() else {
            return own.clone();
        };
        let is_own = |tool: &&ToolDefinition| brought.get(&tool.name).is_none();
        let own = own.iter().filter(is_own);
        own.chain(brought.tools.iter()).cloned().collect()
    }

    /// The request of the next model call as it is sent, and the gateway that it goes to.
    pub(crate) fn call(&self, durable: &Durable) -> (ModelRequest, ModelGatewayRef) {
        let mut request = self.request(durable);
        let output = durable
            .round
            .as_ref()
            .and_then(|round| round.output.as_ref())
            .filter(|_| self.native_output);
        request.output_schema = output.map(|output| output.schema.clone());
        // Once a call fell back and its context was measured, it goes to that fallback at once.
        let gateway = durable
            .fallback()
            .and_then(|fallback| self.gateway.fallback_at(&fallback.gateway))
            .map_or_else(|| self.gateway.clone(), |(gateway, _)| gateway);
        (request, gateway)
    }

    /// The request of the next model call.
    pub fn request(&self, durable: &Durable) -> ModelRequest {
        let asked = durable.asked_parameters();
        let merged = asked.map(|asked| asked.or(&self.parameters));
        let parameters = merged.as_ref().unwrap_or(&self.parameters);
        let max_tokens = asked
            .and_then(|asked| asked.max_tokens)
            .unwrap_or(self.max_tokens);
        let fallback = durable
            .fallback()
            .and_then(|fallback| self.gateway.fallback_at(&fallback.gateway));
        let chosen = self.pricing.chosen_model(durable).map(Arc::from);
        let (model, output_max) = match (fallback, chosen) {
            (Some((_, fallback)), _) => {
                let answer_max = fallback.capabilities.fallback_answer_max();
                (fallback.model, answer_max)
            }
            (None, None) => (self.model.clone(), self.output_max),
            (None, Some(other)) => {
                let output_max = self.gateway.capabilities(&other).output_max;
                (other, output_max)
            }
        };
        ModelRequest {
            model,
            system: if self.skills.is_some() {
                skills::system(self.system.as_ref(), durable)
            } else {
                self.system.clone()
            },
            messages: durable.history.messages().clone(),
            tools: skills::tools(&self.offered(durable), durable),
            tool_choice: choice(durable),
            max_tokens: max_tokens.min(output_max.max(1)),
            stop: parameters.stop.clone().unwrap_or_default(),
            effort: parameters.effort,
            thinking: parameters.thinking,
            temperature: parameters.temperature,
            output_schema: None,
            cache: true,
        }
    }
}

/// Whether the next model call may or must call a tool, as the caller wished it for the first call of
/// the round. A caller that wants no calls wants none in the whole round.
fn choice(durable: &Durable) -> ToolChoice {
    let asked = durable.client_tools().map(|brought| &brought.choice);
    let is_first = durable
        .round
        .as_ref()
        .is_some_and(|round| round.model_calls <= 1);
    match asked {
        Some(ToolChoice::None) => ToolChoice::None,
        Some(choice) if is_first => choice.clone(),
        Some(_) | None => ToolChoice::Auto,
    }
}
