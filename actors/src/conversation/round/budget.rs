//! Decides whether the budget allows a model call, and settles what the call cost. The
//! conversation's own budget is checked against its journal. For the tenant's budget, and for one
//! shared with subagents, [`Effect::Reserve`] asks the shell, which answers at once.
//!
//! Pure.

use crate::{
    chat::{ClientTools, ContentBlock, Message, Role, Usage, reminder},
    conversation::round::{
        DecisionBuilder, Effect,
        input::{FailedAttempt, ModelOutcome},
        rules::OtherModel,
        skills,
        volatile::Reserving,
    },
    ids::{Seq, WorkId},
    journal::{BUDGET_REMINDER, CallState, Durable, EntryBody, OpenRound, Phase, amount, of},
    limits::{BUDGET_OUTPUT_TOKENS, REQUEST_SLACK_TOKENS, UNKNOWN_OUTPUT_TOKENS},
    policy::{Amount, Budget, BudgetKind, BudgetLevel, Exhausted, Price, Pricing, names_model},
    ports::ProviderError,
    stream::{Failure, StopReason},
};

/// The failure code of a round that a budget ended.
pub const BUDGET_CODE: &str = "budget";

/// The percentages of budget left at which the model is reminded, the lower one first.
const REMINDED_AT: [u8; 2] = [5, 20];

/// The usage of one model call that ended.
pub(in crate::conversation) struct Bill {
    /// Tokens of the answer, or of a failed call without a report.
    usage: Usage,
    /// Tokens of the attempts that failed, as the provider reported them.
    pub(in crate::conversation) failed: Usage,
    /// The cost of both; `None` if the model has no price.
    pub(in crate::conversation) cost_micro_usd: Option<u64>,
    /// Whether our own estimate replaced figures that the provider left out or that are not
    /// plausible.
    estimated: bool,
}

impl Pricing {
    /// The model that an active skill selects; `None` unless the operator allows skills to select
    /// it and it differs from the conversation's own model.
    pub(in crate::conversation) fn chosen_model(&self, state: &Durable) -> Option<String> {
        skills::model(state)
            .filter(|model| **model != *self.model && names_model(&self.skill_models, model))
    }

    /// The price of the next call's model.
    ///
    /// # Errors
    /// The name of the model, if it has no price.
    fn next_price(&self, state: &Durable) -> Result<Price, String> {
        let fallback = state.fallback().map(|fallback| fallback.model.clone());
        let chosen = fallback.or_else(|| self.chosen_model(state));
        let model = chosen.as_deref().unwrap_or(&self.model);
        self.price_of(model).ok_or_else(|| model.to_owned())
    }

    /// Bytes of the system prompt and of all tools, the caller's included.
    fn fixed_bytes_of(&self, state: &Durable) -> u64 {
        let brought = state.client_tools().map_or(0, ClientTools::bytes);
        self.fixed_bytes.saturating_add(brought as u64)
    }

    /// Estimates the input tokens of the next request: the usage of the last call plus the messages
    /// since then, but never more than the estimate from all bytes.
    fn input(&self, state: &Durable) -> u64 {
        let messages = state.history.messages();
        let by_bytes = tokens(self.fixed_bytes_of(state) + messages.estimate_bytes());
        let last = state
            .last_usage
            .input()
            .saturating_add(state.last_usage.output);
        if last == 0 {
            return by_bytes;
        }
        // Also what a partial answer without a report stands behind.
        let (_, new_messages) = state.context.window.last_call();
        let since = messages
            .iter()
            .rev()
            .take(new_messages)
            .map(Message::estimate_bytes);
        by_bytes.min(last.saturating_add(tokens(since.sum::<usize>() as u64)))
    }

    /// The reservation for the next call: its estimated input, and an answer of typical length.
    fn reservation(&self, state: &Durable) -> Amount {
        let output = self.max_tokens.clamp(1, BUDGET_OUTPUT_TOKENS);
        let usage = Usage {
            input_uncached: self.input(state),
            output,
            ..Usage::default()
        };
        amount(&usage, self.next_price(state).ok())
    }

    /// The usage of a call that ended: the provider's figures where they are plausible, else an
    /// estimate. A call that failed before a model ran costs nothing.
    fn bill(
        &self,
        state: &Durable,
        outcome: &ModelOutcome,
        model: &str,
        failed: &[FailedAttempt],
        window_of: impl Fn(&str) -> u64,
    ) -> Bill {
        let estimate = |blocks: &[ContentBlock]| {
            let output = tokens(
                blocks
                    .iter()
                    .map(ContentBlock::content_bytes)
                    .sum::<usize>() as u64,
            );
            Usage {
                input_uncached: self.input(state),
                output,
                ..Usage::default()
            }
        };
        let (usage, estimated) = match outcome {
            ModelOutcome::Completed {
                blocks, completion, ..
            } => match &completion.usage {
                Some(usage) => {
                    let checked = self.check(state, window_of(model), usage, &estimate(blocks));
                    (checked, checked != *usage)
                }
                None => (estimate(blocks), true),
            },
            // The reports of the attempts cover the call.
            ModelOutcome::Failed { .. }
            | ModelOutcome::FellBack { .. }
            | ModelOutcome::Cancelled { .. }
                if !failed.is_empty() =>
            {
                (Usage::default(), true)
            }
            ModelOutcome::FellBack { error, .. } if nothing_ran(error) => (Usage::default(), false),
            ModelOutcome::FellBack { .. } => (estimate(&[]), true),
            ModelOutcome::Failed { error, partial } if partial.is_empty() && nothing_ran(error) => {
                (Usage::default(), false)
            }
            ModelOutcome::Failed { partial, .. } | ModelOutcome::Cancelled { partial } => {
                (estimate(partial), true)
            }
        };
        let mut bill = Bill {
            usage,
            failed: Usage::default(),
            cost_micro_usd: self.price_of(model).map(|price| price.cost(&usage)),
            estimated,
        };
        for attempt in failed {
            let window = window_of(&attempt.model);
            let input = Usage {
                input_uncached: self.input(state),
                ..Usage::default()
            };
            let usage = self.check(state, window, &attempt.usage, &input);
            bill.failed = bill.failed.plus(&usage);
            if let Some(price) = self.price_of(&attempt.model) {
                let cost = bill.cost_micro_usd.get_or_insert(0);
                *cost = cost.saturating_add(price.cost(&usage));
            }
        }
        bill
    }

    /// Bounds the provider's figures by what is possible: input by the model's window and by the
    /// request, output by the window and by the longest answer. Zero input or output is replaced by
    /// `estimate`.
    fn check(&self, state: &Durable, window: u64, reported: &Usage, estimate: &Usage) -> Usage {
        // Of a model whose window is not known, an answer is as long as was asked for.
        let output_max = match window {
            0 => self.max_tokens.max(UNKNOWN_OUTPUT_TOKENS),
            window => window.max(self.max_tokens),
        };
        let window = if window == 0 { u64::MAX } else { window };
        let request = self
            .fixed_bytes_of(state)
            .saturating_add(state.history.messages().wire_bytes() as u64);
        let input_max = window.min(request.saturating_add(REQUEST_SLACK_TOKENS)); // A token has at least one byte.
        let input_uncached = reported.input_uncached.min(input_max);
        let cache_write = reported.cache_write.min(input_max - input_uncached);
        let cache_read = reported
            .cache_read
            .min(input_max - input_uncached - cache_write);
        let mut usage = Usage {
            input_uncached,
            cache_read,
            cache_write,
            output: reported.output.min(output_max),
        };
        if usage.input() == 0 {
            usage.input_uncached = estimate.input_uncached;
        }
        if usage.output == 0 {
            usage.output = estimate.output;
        }
        usage
    }
}

/// Estimates tokens from bytes: four bytes a token.
fn tokens(bytes: u64) -> u64 {
    bytes.div_ceil(4)
}

/// Whether a failed call cost nothing, because it was refused before a model ran.
fn nothing_ran(error: &ProviderError) -> bool {
    match error {
        ProviderError::Auth { .. }
        | ProviderError::InvalidRequest { .. }
        | ProviderError::RateLimited { .. }
        | ProviderError::QuotaExhausted { .. }
        | ProviderError::Unsupported(_)
        | ProviderError::Untrusted { .. }
        | ProviderError::NotStarted { .. }
        | ProviderError::Overloaded
        | ProviderError::BreakerOpen { .. } => true,
        ProviderError::Server { .. }
        | ProviderError::Connection { .. }
        | ProviderError::SharedConnection { .. }
        | ProviderError::Timeout { .. }
        | ProviderError::Protocol { .. }
        | ProviderError::Incomplete { .. }
        | ProviderError::Cancelled => false,
    }
}

/// Starts the next model call, reserves the tenant's budget for it, or ends the round if a budget
/// does not allow the call.
pub(in crate::conversation) fn call_model(
    decision: &mut DecisionBuilder<'_>,
    round: &OpenRound,
    step: u32,
) {
    let durable = decision.durable;
    let volatile = decision.volatile;
    let pricing = &volatile.rules.pricing;
    settle_in_full(decision);
    if pricing.budget.is_unlimited() && volatile.tenant_left.is_none() {
        return order(decision, step, Amount::default());
    }
    if let Err(model) = pricing.next_price(durable)
        && (pricing.budget.micro_usd.is_some() || volatile.bounds_money)
    {
        let message = format!(
            "the model `{model}` has no price, and the budget is in money; a row in [prices] gives it one"
        );
        return decision.finish(round, StopReason::Budget, Some(failure(message)));
    }
    let amount = pricing.reservation(durable);
    // The previous reservation was settled in full above. That entry is not applied yet, but the
    // fold counts an open reservation as spent, so `spent` includes it.
    let spent = durable.spent.now(Some(round.started_at), decision.now);
    if let Err(refusal) = pricing
        .budget
        .admit(BudgetLevel::Conversation, &spent, &amount)
    {
        return refuse(decision, round, &refusal);
    }
    if volatile.tenant_left.is_none() {
        return order(decision, step, amount);
    }
    // No entry orders this work, so the id takes the seq of the last entry. Index 1 keeps it apart
    // from work that the entry itself orders.
    let seq = Seq(durable.head.0 + decision.made.entries.len() as u64);
    let work = WorkId {
        epoch: volatile.epoch,
        seq,
        index: 1,
    };
    decision.effect(Effect::Reserve { work, step, amount });
}

fn order(decision: &mut DecisionBuilder<'_>, step: u32, amount: Amount) {
    let work = decision.entry(EntryBody::ModelCallStarted {
        step,
        reserved: amount.tokens,
        reserved_micro_usd: amount.micro_usd,
    });
    decision.effect(Effect::StartModel { work });
}

fn refuse(decision: &mut DecisionBuilder<'_>, round: &OpenRound, refusal: &Exhausted) {
    decision.finish(
        round,
        StopReason::Budget,
        Some(failure(refusal.to_string())),
    );
}

fn failure(message: String) -> Failure {
    Failure {
        code: BUDGET_CODE.to_owned(),
        message,
        retry_after_ms: None,
    }
}

/// The failure of a round that used up the time budget of its conversation or its tenant.
pub(in crate::conversation) fn time_over(level: BudgetLevel, budget: &Budget) -> Failure {
    let exhausted = Exhausted {
        level,
        kind: BudgetKind::Time,
        limit: budget.wall_ms.unwrap_or_default(),
        spent: 0,
        wanted: 0,
    };
    failure(exhausted.to_string())
}

/// Continues after the answer to [`Effect::Reserve`]: starts the model call, or ends the round if
/// the budget refused. An answer to another question is ignored, and a canceled round starts
/// nothing.
pub(in crate::conversation) fn answered(
    decision: &mut DecisionBuilder<'_>,
    work: WorkId,
    answer: &Result<(), Exhausted>,
) {
    let Some(Reserving { step, amount, .. }) = decision
        .volatile
        .reserving
        .filter(|reserving| reserving.work == work)
    else {
        return;
    };
    let Some(round) = &decision.durable.round else {
        return;
    };
    match answer {
        _ if decision.volatile.cancelling.is_some() => {}
        Ok(()) => order(decision, step, amount),
        Err(refusal) => refuse(decision, round, refusal),
    }
}

/// The usage of a call that ended, at the price of the model that answered.
pub(in crate::conversation) fn bill(
    decision: &DecisionBuilder<'_>,
    outcome: &ModelOutcome,
    model: &str,
    failed: &[FailedAttempt],
) -> Bill {
    let rules = &decision.volatile.rules;
    let pricing = &rules.pricing;
    let window_of = |model: &str| {
        let is_other = *model != *pricing.model;
        is_other
            .then(|| rules.call_policy.limits(OtherModel::Answered(model)))
            .flatten()
            .map_or(pricing.window_tokens, |limits| limits.window)
    };
    pricing.bill(decision.durable, outcome, model, failed, window_of)
}

/// Replaces the open reservation by the actual usage.
pub(in crate::conversation) fn settle(decision: &mut DecisionBuilder<'_>, bill: &Bill) {
    let Some(reserved) = decision.durable.spent.reserved else {
        return;
    };
    let used = of(
        &bill.usage.plus(&bill.failed),
        bill.cost_micro_usd.unwrap_or(0),
    );
    settled(decision, reserved, used, bill.estimated);
}

/// Settles a call whose outcome will never arrive at its full reservation. Settles nothing twice in
/// one decision.
pub(in crate::conversation) fn settle_in_full(decision: &mut DecisionBuilder<'_>) {
    let Some(reserved) = decision.durable.spent.reserved else {
        return;
    };
    if !decision
        .made
        .entries
        .iter()
        .any(|entry| matches!(entry, EntryBody::BudgetSettled { .. }))
    {
        settled(decision, reserved, reserved, true);
    }
}

fn settled(decision: &mut DecisionBuilder<'_>, reserved: Amount, used: Amount, estimated: bool) {
    let reserved = reserved.tokens;
    let used_tokens = used.tokens;
    let cost_micro_usd = used.micro_usd;
    decision.entry(EntryBody::BudgetSettled {
        reserved,
        used_tokens,
        cost_micro_usd,
        estimated,
    });
}

/// Reminds the model once each when a fifth and a twentieth of the tightest budget is left. The
/// reminder is injected before a round starts or before the last result of a batch, so that the
/// model reads it with the prompt or with the results.
pub(in crate::conversation) fn remind(decision: &mut DecisionBuilder<'_>) {
    let durable = decision.durable;
    let volatile = decision.volatile;
    let own = &volatile.rules.pricing.budget;
    if own.is_unlimited() && volatile.tenant_left.is_none() || volatile.cancelling.is_some() {
        return;
    }
    let since = durable.round.as_ref().map(|round| round.started_at);
    let left = own
        .left_percent(&durable.spent.now(since, decision.now))
        .into_iter()
        .chain(volatile.tenant_left)
        .min();
    let Some(left) = left.filter(|left| *left > 0) else {
        return;
    };
    let Some(at) = REMINDED_AT.into_iter().find(|at| left <= *at) else {
        return;
    };
    if durable
        .spent
        .reminded_percent
        .is_some_and(|percent| percent <= at)
    {
        return;
    }
    let text = format!(
        "About {left} % of the budget for this conversation is left. Do what matters most first, then come to an end."
    );
    if let Ok(message) = Message::new(Role::User, &[reminder(&text)]) {
        decision.entry(EntryBody::Injected {
            id: Some(format!("{BUDGET_REMINDER}{at}")),
            client_key: None,
            message,
        });
    }
}

/// Calls [`remind`] if the coming result closes the open batch.
pub(in crate::conversation) fn remind_before_last_result(decision: &mut DecisionBuilder<'_>) {
    if decision.volatile.rules.pricing.budget.is_unlimited()
        && decision.volatile.tenant_left.is_none()
    {
        return;
    }
    let Some(OpenRound {
        phase: Phase::Batch(batch),
        ..
    }) = decision.durable.round.as_deref()
    else {
        return;
    };
    let open = batch
        .calls
        .iter()
        .filter(|call| !matches!(call.state, CallState::Finished(_)))
        .count();
    let closed = decision
        .made
        .entries
        .iter()
        .filter(|entry| matches!(entry, EntryBody::ToolFinished { .. }))
        .count();
    if open == closed + 1 {
        remind(decision);
    }
}
