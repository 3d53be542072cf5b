//! One measurement of a context: a task outside the actor that counts tokens and, if there are too
//! many, plans a compaction.

use std::{sync::Arc, time::Duration};

use crate::{
    chat::{History, Message, MessageList, ModelRequest, span_hash},
    compactor::{CompactionOutcome, CompactorRef, Fixed, Plan, Problem, SummaryJob, Window, plan},
    conversation::{
        ConversationMsg, WaitsFor,
        round::{
            input::{ContextOutcome, Draft},
            rules::ContextRules,
        },
        run::Live,
    },
    ids::{Scope, WorkId},
    journal::{Durable, skill_activations},
    model_gateway::{ModelGatewayRef, exact::ExactCounter},
    policy::{BudgetCounter, Pricing},
    task::AbortOnDrop,
    tokens::WindowUse,
};

/// Bounds of the factor that scales our token counts to the provider's figure. A provider's figure
/// outside them is not trusted fully.
const SCALE_LEAST: f64 = 0.7;
const SCALE_MOST: f64 = 3.0;

/// The longest wait for an exact count by the provider, since a round waits for the measurement.
const EXACT_MAX: Duration = Duration::from_secs(2);

/// How many of the last messages are searched for skill activations.
const RECENT_MESSAGES: usize = 20;

/// The data of a measurement: a copy of the state, taken in the actor.
#[derive(Clone)]
pub(in crate::conversation) struct Measurement {
    pub(in crate::conversation) compactor: CompactorRef,
    pub(in crate::conversation) gateway: ModelGatewayRef,
    pub(in crate::conversation) counter: Arc<ExactCounter>,
    pub(in crate::conversation) scope: Scope,
    /// The request as the next call would send it.
    pub(in crate::conversation) request: ModelRequest,
    pub(in crate::conversation) history: History,
    pub(in crate::conversation) round_starts: Vec<usize>,
    pub(in crate::conversation) skill_activations: u32,
    pub(in crate::conversation) pinned: Vec<String>,
    pub(in crate::conversation) window: WindowUse,
    pub(in crate::conversation) rules: ContextRules,
    /// The head seq of the measured state; it names dropped spans in the text that replaces them.
    pub(in crate::conversation) label: String,
    /// The provider's exact count; `None` if the model is not configured for it or the count took
    /// too long.
    pub(in crate::conversation) exact: Option<u64>,
    /// The counter that a summary is charged to, and the prices of models.
    pub(in crate::conversation) pays: (Arc<BudgetCounter>, Arc<Pricing>),
    /// Whether a caller asked for the compaction: it is then planned even if the context fits, and
    /// waits a limited time for a summary.
    pub(in crate::conversation) asked: bool,
}

impl Measurement {
    /// Measures the context and, if needed, plans its compaction.
    ///
    /// # Cancel safety
    /// Dropping the future may leave one count running on the blocking pool; it has no other
    /// effect.
    pub(in crate::conversation) async fn run(mut self) -> ContextOutcome {
        let ask = self
            .counter
            .count_exact(&self.request.model, self.request.clone());
        self.exact = tokio::time::timeout(EXACT_MAX, ask).await.unwrap_or(None);
        let before = self.history.messages().clone();
        let first = match self.climb().await {
            Some(CompactionOutcome::Compacted(plan)) => plan,
            Some(CompactionOutcome::TooLarge {
                part,
                part_tokens,
                tokens,
                limit,
            }) => {
                return ContextOutcome::TooLarge {
                    part,
                    part_tokens,
                    tokens,
                    limit,
                };
            }
            // If the planner panicked, the call goes out: the provider decides whether the request
            // fits.
            Some(CompactionOutcome::Fits { .. }) | None => return ContextOutcome::Fits,
        };
        let mut plans = vec![(first.clone(), span_hash(before.iter()))];
        if self.asked {
            plans.extend(self.with_summary(&first).await);
        }
        ContextOutcome::Compacted(Box::new(Draft { before, plans }))
    }

    /// Waits a limited time for a summary of the span that `first` drops. With a summary, a second
    /// plan replaces the text that the rules extracted.
    async fn with_summary(&self, first: &Plan) -> Option<(Plan, String)> {
        let span = first.dropped.as_ref()?;
        let messages = self
            .history
            .messages()
            .range(span.from..span.to)
            .cloned()
            .collect();
        let scope = self.scope.clone();
        let model = self.request.model.clone();
        let gateway = self.gateway.clone();
        let (budget, pricing) = self.pays.clone();
        let job = SummaryJob {
            scope,
            model,
            gateway,
            budget,
            spending: pricing,
            hash: span.hash.clone(),
            messages,
        };
        self.compactor.summary(job).await?;
        let history = self.history.edited(&first.edits).ok()?;
        let window = {
            let mut window = self.window;
            window.counted(first.after_tokens, history.messages().wire_bytes() as u64);
            window
        };
        let input_hash = span_hash(history.messages().iter());
        let then = Self {
            exact: None,
            history,
            window,
            round_starts: first.round_starts.clone(),
            ..self.clone()
        };
        match then.climb().await? {
            CompactionOutcome::Compacted(plan) if plan.summary_used => Some((plan, input_hash)),
            CompactionOutcome::Compacted(_)
            | CompactionOutcome::Fits { .. }
            | CompactionOutcome::TooLarge { .. } => None,
        }
    }

    /// Counts and plans on the blocking pool; `None` if the planner panicked.
    async fn climb(&self) -> Option<CompactionOutcome> {
        let this = self.clone();
        let compactor = self.compactor.clone();
        self.compactor
            .on_pool(move || this.plan(&|hash| compactor.ready(&this.scope, hash)))
            .await
    }

    fn plan(&self, summary: &dyn Fn(&str) -> Option<String>) -> CompactionOutcome {
        let model = &*self.request.model;
        let counter = self.counter.counter();
        let count = |message: &Message| counter.count_message(model, message);
        let system = self
            .request
            .system
            .as_deref()
            .map_or(0, |system| counter.count_text(model, system));
        let tools = counter.count_tools(model, &self.request.tools);
        let pinned = self
            .pinned
            .iter()
            .map(|line| counter.count_text(model, line))
            .sum::<u64>();
        let messages = self.history.messages();
        let counted: u64 = system + tools + messages.iter().map(count).sum::<u64>();
        let (known, new) = self.window.last_call();
        let used = match (self.exact, known) {
            (Some(exact), _) => exact,
            (None, Some(known)) => known + messages.iter().rev().take(new).map(count).sum::<u64>(),
            (None, None) => counted,
        };
        // The provider's count is authoritative: scale our counts of the parts to it, within
        // bounds.
        let scale = if counted == 0 {
            1.0
        } else {
            (used as f64 / counted as f64).clamp(SCALE_LEAST, SCALE_MOST)
        };
        let scaled = |tokens: u64| (tokens as f64 * scale).ceil() as u64;
        plan(&Problem {
            history: &self.history,
            round_starts: &self.round_starts,
            fixed: Fixed {
                system: scaled(system),
                tools: scaled(tools),
                pinned: scaled(pinned),
            },
            window: Window {
                tokens: self.rules.window,
                max_tokens: self.rules.max_tokens,
            },
            settings: self.compactor.settings(),
            pinned: &self.pinned,
            skill_activations: self.skill_activations,
            count: &|message| scaled(count(message)),
            summary,
            may_summarize: Some(&|tokens| self.compactor.may_spend(&self.scope, tokens)),
            seq_label: &self.label,
            force: self.asked,
        })
    }

    /// The measurement of a conversation as it is now.
    pub(in crate::conversation) fn of(
        durable: &Durable,
        request: ModelRequest,
        parts: (CompactorRef, Arc<ExactCounter>, ModelGatewayRef),
        scope: Scope,
        rules: ContextRules,
        pays: (Arc<BudgetCounter>, Arc<Pricing>),
    ) -> Self {
        let messages = durable.history.messages();
        Self {
            compactor: parts.0,
            counter: parts.1,
            gateway: parts.2,
            exact: None,
            scope,
            request,
            history: durable.history.clone(),
            round_starts: durable.round_starts(),
            skill_activations: u32::try_from(skill_activations(
                messages.range(messages.len().saturating_sub(RECENT_MESSAGES)..messages.len()),
            ))
            .unwrap_or(u32::MAX),
            pinned: durable.context.pinned.clone(),
            window: durable.context.window,
            rules,
            label: durable.head.0.to_string(),
            pays,
            asked: false,
        }
    }
}

impl Live {
    /// Starts a measurement of the context as a task.
    pub(super) fn measure(&mut self, work: WorkId, asked: bool) {
        self.wait_status
            .set(WaitsFor::Compaction, &*self.ports.clock);
        let setup = self.setup.clone();
        let scope = self.scope.clone();
        let me = self.me.clone();
        let request = setup.request(&self.durable);
        let parts = (
            setup.compactor.clone(),
            setup.tokens.clone(),
            setup.gateway.clone(),
        );
        let pays = (self.budget_guard.counter().clone(), setup.pricing.clone());
        let measurement = Measurement {
            asked,
            ..Measurement::of(&self.durable, request, parts, scope, setup.context, pays)
        };
        let task = AbortOnDrop(tokio::spawn(async move {
            let outcome = Box::new(measurement.run().await);
            let _ = me.cast(ConversationMsg::ContextMeasured { work, outcome });
        }));
        if asked {
            self.compaction = Some(task);
        } else if let Some(resources) = self.resources() {
            resources.tasks.insert(work, task);
        }
    }

    /// Orders a summary of messages that a compaction dropped.
    pub(super) fn summarise(&self, hash: String, messages: MessageList) {
        let scope = self.scope.clone();
        let model = self.setup.model.clone();
        let gateway = self.setup.gateway.clone();
        let budget = self.budget_guard.counter().clone();
        let pricing = self.setup.pricing.clone();
        self.setup.compactor.summarise(SummaryJob {
            scope,
            model,
            gateway,
            budget,
            spending: pricing,
            hash,
            messages,
        });
    }
}
