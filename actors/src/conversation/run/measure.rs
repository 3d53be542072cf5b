//! One measurement of a context: a task outside the actor that counts tokens and, if there are too
//! many, plans a compaction.

use std::{borrow::Cow, sync::Arc};

use crate::{
    chat::{History, Message, MessageList, ModelRequest, span_hash},
    compactor::{
        BillTo, CompactionOutcome, CompactionStep, CompactorRef, CompressionMode, Fixed, Plan,
        Problem, SummaryJob, SummaryView, Window, plan,
    },
    conversation::{
        ConversationMsg, WaitsFor,
        round::{
            context::notes_waiting,
            input::{ContextOutcome, Draft},
            rules::ContextRules,
        },
        run::Live,
    },
    ids::{Scope, WorkId},
    journal::Durable,
    model_gateway::{ModelGatewayRef, exact::ExactCounter},
    policy::{BudgetCounter, Pricing},
    task::AbortOnDrop,
    tenant::Tenant,
    tokens::WindowUse,
};

/// Bounds of the factor that scales our token counts to the provider's figure. A provider's figure
/// outside them is not trusted fully.
const SCALE_LEAST: f64 = 0.7;
const SCALE_MOST: f64 = 3.0;

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
    pub(in crate::conversation) pinned: Vec<String>,
    pub(in crate::conversation) window: WindowUse,
    pub(in crate::conversation) rules: ContextRules,
    /// The head seq of the measured state; it names dropped spans in the text that replaces them.
    pub(in crate::conversation) label: String,
    /// Bytes of the messages of the last request that was refused as too large.
    pub(in crate::conversation) refused_bytes: Option<u64>,
    /// The provider's exact count; `None` if the model is not configured for it or the count took
    /// too long.
    pub(in crate::conversation) exact: Option<u64>,
    /// The counter that a summary is charged to, and the prices of models.
    pub(in crate::conversation) pays: (Arc<Tenant>, Arc<BudgetCounter>, Arc<Pricing>, BillTo),
    /// Whether a caller asked for the compaction: it is then planned even if the context fits, and
    /// waits a limited time for a summary.
    pub(in crate::conversation) asked: bool,
    /// Whether that caller asked for a summary; the strategy is then `summarize`.
    pub(in crate::conversation) summary: bool,
    /// The most tokens of the messages that join a call in which the model saves notes: it gets the
    /// context whole if it fits with them. `None` for any other call.
    pub(in crate::conversation) notes: Option<u64>,
}

/// A plan that leaves out attachments.
struct Omission {
    plan: Plan,
    /// The hash of the messages before it.
    input_hash: String,
    /// The history after it.
    history: History,
}

/// Counted tokens of a request.
struct Tokens {
    system: u64,
    tools: u64,
    pinned: u64,
    /// All tokens, by the provider's figures where they are known.
    used: u64,
    scale: f64,
}

impl Tokens {
    /// Scales our own count to the provider's.
    fn scaled(&self, tokens: u64) -> u64 {
        (tokens as f64 * self.scale).ceil() as u64
    }
}

impl Measurement {
    /// Measures the context and, if needed, plans its compaction: first what brings the bytes of the
    /// request below the provider's bound, then what brings its tokens below the window.
    ///
    /// # Cancel safety
    /// Dropping the future may leave one count running on the blocking pool; it has no other
    /// effect.
    pub(in crate::conversation) async fn run(mut self) -> ContextOutcome {
        let before = self.history.messages().clone();
        let mut plans = Vec::new();
        if let Some(Omission {
            plan,
            input_hash,
            history,
        }) = self.on_pool(Self::omit).await.flatten()
        {
            let bytes = history.messages().estimate_bytes();
            self.window.counted(plan.after_tokens, bytes);
            self.history = history;
            plans.push((plan, input_hash));
        }
        match self.compact().await {
            Ok(more) => plans.extend(more),
            Err(too_large) => return too_large,
        }
        if plans.is_empty() {
            ContextOutcome::Fits
        } else {
            ContextOutcome::Compacted(Box::new(Draft { before, plans }))
        }
    }

    /// Climbs the ladder. Returns the plans, none if the request fits.
    async fn compact(&mut self) -> Result<Vec<(Plan, String)>, ContextOutcome> {
        let too_many = self.too_many_bytes(&self.history);
        if self.rules.window == 0 && too_many.is_none() && !self.asked {
            return Ok(Vec::new()); // Only the bytes were in doubt, and now they fit.
        }
        let request = ModelRequest {
            messages: self.history.messages().clone(),
            ..self.request.clone()
        };
        self.exact = self.counter.count_exact(&self.request.model, request).await;
        // If the planner panicked, the call goes out: the provider decides whether the request
        // fits.
        let Some((outcome, input_hash)) = self.climb().await else {
            return Ok(Vec::new());
        };
        let first = match outcome {
            CompactionOutcome::Compacted(plan) => plan,
            CompactionOutcome::Fits { .. } => return too_many.map_or(Ok(Vec::new()), Err),
            CompactionOutcome::TooLarge {
                part,
                part_tokens,
                tokens,
                limit,
            } => {
                return Err(too_many.unwrap_or(ContextOutcome::TooLarge {
                    part,
                    part_tokens,
                    tokens,
                    limit,
                }));
            }
        };
        let fits_with = |more: u64| first.before_tokens.saturating_add(more) <= self.rules.room();
        if too_many.is_none() && self.notes.is_some_and(fits_with) {
            return Ok(Vec::new());
        }
        let left = self.history.edited(&first.edits).ok();
        if let Some(too_many) = left.and_then(|left| self.too_many_bytes(&left)) {
            return Err(too_many);
        }
        let summarizes = self.compactor.settings().strategy != CompressionMode::Truncate;
        let summarized = if self.asked && (summarizes || self.summary) {
            self.with_summary(&first).await
        } else {
            None
        };
        Ok(std::iter::once((first, input_hash))
            .chain(summarized)
            .collect())
    }

    /// The outcome if this history has more bytes than the provider accepts.
    fn too_many_bytes(&self, history: &History) -> Option<ContextOutcome> {
        let rules = &self.rules.bytes;
        let messages = history.messages();
        let limit = rules
            .limit(self.refused_bytes)
            .filter(|_| rules.exceeds(messages, self.refused_bytes))?;
        Some(ContextOutcome::TooManyBytes {
            bytes: rules.sent(messages),
            limit: limit.bytes,
        })
    }

    /// Leaves out attachments if the request has too many bytes.
    fn omit(&self) -> Option<Omission> {
        let round_start = self.round_starts.last().copied().unwrap_or_default();
        let rules = &self.rules.bytes;
        let edits = rules.omit(&self.history, self.refused_bytes, round_start, &self.label)?;
        let history = self.history.edited(&edits).ok()?;
        let tokens = self.tokens();
        let model = &*self.request.model;
        let count = |messages: &MessageList| -> u64 {
            let counter = self.counter.counter();
            messages
                .iter()
                .map(|message| counter.count_message(model, message))
                .sum()
        };
        let saved = count(self.history.messages()).saturating_sub(count(history.messages()));
        let plan = Plan {
            edits,
            steps: vec![CompactionStep::Attachments],
            before_tokens: tokens.used,
            after_tokens: tokens.used.saturating_sub(tokens.scaled(saved)),
            round_starts: self.round_starts.clone(),
            dropped: None,
            summarise: false,
            summary_used: false,
            cleared_results: 0,
        };
        Some(Omission {
            plan,
            input_hash: span_hash(self.history.messages().iter()),
            history,
        })
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
        let (tenant, budget, pricing, bill_to) = self.pays.clone();
        let job = SummaryJob {
            scope,
            model,
            gateway,
            tenant,
            budget,
            spending: pricing,
            bill_to,
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
            (CompactionOutcome::Compacted(plan), _) if plan.summary_used => {
                Some((plan, input_hash))
            }
            (
                CompactionOutcome::Compacted(_)
                | CompactionOutcome::Fits { .. }
                | CompactionOutcome::TooLarge { .. },
                _,
            ) => None,
        }
    }

    /// Counts and plans on the blocking pool, with the hash of the measured messages; `None` if the
    /// planner panicked.
    async fn climb(&self) -> Option<(CompactionOutcome, String)> {
        let summaries = self.compactor.look(&self.scope).await;
        self.on_pool(move |this| {
            let outcome = this.plan(&summaries);
            let hash = match &outcome {
                CompactionOutcome::Compacted(_) => span_hash(this.history.messages().iter()),
                CompactionOutcome::Fits { .. } | CompactionOutcome::TooLarge { .. } => {
                    String::new()
                }
            };
            (outcome, hash)
        })
        .await
    }

    async fn on_pool<T: Send + 'static>(
        &self,
        compute: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Option<T> {
        let this = self.clone();
        let (tenant, ..) = &self.pays;
        self.compactor.on_pool(tenant, move || compute(&this)).await
    }

    /// Counts the tokens of the request and of its fixed parts.
    fn tokens(&self) -> Tokens {
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
        // The provider's count is authoritative: scale our counts of the parts to it. What it
        // reports of a call has bounds; its exact count of this very request has none.
        let scale = match (used as f64 / counted as f64, self.exact) {
            _ if counted == 0 => 1.0,
            (scale, Some(_)) => scale,
            (scale, None) => scale.clamp(SCALE_LEAST, SCALE_MOST),
        };
        Tokens {
            system,
            tools,
            pinned,
            used,
            scale,
        }
    }

    /// The window for the ladder. If text alone has too many bytes, the window is as much smaller
    /// as the bytes must become.
    fn window(&self, used: u64) -> Window {
        let rules = &self.rules;
        let messages = self.history.messages();
        let window = Window {
            tokens: rules.window,
            max_tokens: rules.max_tokens,
        };
        let limit = rules
            .bytes
            .limit(self.refused_bytes)
            .filter(|_| rules.bytes.exceeds(messages, self.refused_bytes));
        let Some(limit) = limit else {
            return window;
        };
        let share = limit.target as f64 / rules.bytes.sent(messages) as f64;
        let tokens = ((used as f64 * share) as u64).saturating_add(rules.max_tokens);
        Window {
            tokens: if rules.window == 0 {
                tokens
            } else {
                tokens.min(rules.window)
            },
            ..window
        }
    }

    fn plan(&self, summaries: &SummaryView) -> CompactionOutcome {
        let model = &*self.request.model;
        let counter = self.counter.counter();
        let tokens = self.tokens();
        let mut settings = Cow::Borrowed(self.compactor.settings());
        if self.summary {
            settings.to_mut().strategy = CompressionMode::Summarize;
        }
        plan(&Problem {
            history: &self.history,
            round_starts: &self.round_starts,
            fixed: Fixed {
                system: tokens.scaled(tokens.system),
                tools: tokens.scaled(tokens.tools),
                pinned: tokens.scaled(tokens.pinned),
            },
            window: self.window(tokens.used),
            settings: &settings,
            pinned: &self.pinned,
            count: &|message| tokens.scaled(counter.count_message(model, message)),
            summary: &|hash| summaries.ready(hash),
            may_summarize: Some(&|tokens| summaries.may_spend(tokens)),
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
        pays: (Arc<Tenant>, Arc<BudgetCounter>, Arc<Pricing>, BillTo),
    ) -> Self {
        Self {
            compactor: parts.0,
            counter: parts.1,
            gateway: parts.2,
            exact: None,
            scope,
            request,
            history: durable.history.clone(),
            round_starts: durable.round_starts(),
            pinned: durable.context.pinned.clone(),
            window: durable.context.window,
            rules,
            label: durable.head.0.to_string(),
            refused_bytes: durable.context.refused_bytes,
            pays,
            asked: false,
            summary: false,
            notes: notes_waiting(durable),
        }
    }
}

impl Live {
    /// Starts a measurement of the context as a task.
    pub(super) fn measure(&mut self, work: WorkId, asked: bool, summary: bool) {
        self.wait_status
            .set(WaitsFor::Compaction, &*self.ports.clock);
        let setup = self.setup.clone();
        let scope = self.scope.clone();
        let me = self.me.clone();
        let request = setup.request(&self.durable);
        // After a fallback its own provider counts.
        let fallback = self.durable.fallback();
        let counter = match fallback.and_then(|to| setup.gateway.fallback_at(&to.gateway)) {
            Some((gateway, to)) => {
                Arc::new(gateway.exact_counter(setup.tokens.counter(), &to.model))
            }
            None => setup.tokens.clone(),
        };
        let parts = (setup.compactor.clone(), counter, setup.gateway.clone());
        let pays = (
            self.tenant.clone(),
            self.budget_guard.counter().clone(),
            setup.pricing.clone(),
            self.bill_to(),
        );
        let measurement = Measurement {
            asked,
            summary,
            ..Measurement::of(
                &self.durable,
                request,
                parts,
                scope,
                setup.context_of(&self.durable),
                pays,
            )
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

    /// Takes the bills of summaries as mail, and keeps this activation awake until the last one.
    fn bill_to(&self) -> BillTo {
        let me = self.me.clone();
        let awake = self.bills_open.clone();
        BillTo::new(move |bill| {
            let _awake = &awake;
            let _ = me.cast(ConversationMsg::SummaryBilled(bill));
        })
    }

    /// Orders a summary of messages that a compaction dropped.
    pub(super) fn summarise(&self, hash: String, messages: MessageList) {
        let scope = self.scope.clone();
        let model = self.setup.model.clone();
        let gateway = self.setup.gateway.clone();
        let tenant = self.tenant.clone();
        let budget = self.budget_guard.counter().clone();
        let pricing = self.setup.pricing.clone();
        self.setup.compactor.summarise(SummaryJob {
            scope,
            model,
            gateway,
            tenant,
            budget,
            spending: pricing,
            bill_to: self.bill_to(),
            hash,
            messages,
        });
    }
}
