//! Makes one summary as a task: checks its cost, makes the model calls, merges the parts.

use std::sync::Arc;

use futures_util::{StreamExt, future::try_join_all};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::{
    CompactorRef, FOCUS_AREAS, Shared, SummaryBill, SummaryJob, merge_prompt, summary_prompts,
};
use crate::{
    chat::{ContentBlock, Message, MessageList, ModelRequest, ToolChoice, Usage},
    journal::amount,
    limits::BYTES_A_TOKEN,
    model_gateway::{CallBy, CallClass, Waiting},
    policy::Amount,
    ports::{ModelEvent, ProviderError},
};

/// Makes a summary. `None` if it is too expensive, too slow or failed; the conversation then keeps
/// its rule summary.
pub(super) async fn summarise(compactor: &CompactorRef, job: &SummaryJob) -> Option<String> {
    let shared = &*compactor.0;
    if job.budget.bounds_money() && job.spending.price_of(&model_of(shared, job)).is_none() {
        tracing::debug!(conversation = %job.scope.conversation, "no background summary: its model has no price, and the budget is in money");
        return None;
    }
    let parts = summary_prompts(job.messages.iter(), &FOCUS_AREAS);
    let tokens = parts
        .iter()
        .map(|part| part.len() as u64 / BYTES_A_TOKEN)
        .sum();
    if !compactor.spend(&job.scope.tenant, tokens).await {
        tracing::debug!(conversation = %job.scope.conversation, "no background summary: the hour's money is spent");
        return None;
    }
    let work = async {
        // Concurrent, since they share one time limit. The gateway bounds how many run.
        let summaries = try_join_all(parts.into_iter().map(|part| ask(shared, job, part))).await?;
        match summaries.as_slice() {
            [one] => Ok::<_, ProviderError>(one.clone()),
            parts => ask(shared, job, merge_prompt(parts, &FOCUS_AREAS)).await,
        }
    };
    match tokio::time::timeout(shared.settings.timeout(), work).await {
        Ok(Ok(text)) if !text.trim().is_empty() => Some(text),
        Ok(Ok(_)) => None,
        Ok(Err(error)) => {
            tracing::warn!(conversation = %job.scope.conversation, %error, "a background summary failed");
            None
        }
        Err(_) => {
            tracing::warn!(conversation = %job.scope.conversation, "a background summary took too long");
            None
        }
    }
}

/// The model that writes the summary.
fn model_of(shared: &Shared, job: &SummaryJob) -> Arc<str> {
    shared
        .settings
        .summary_model
        .as_deref()
        .map_or_else(|| job.model.clone(), Into::into)
}

/// Makes one model call. Its estimated cost is reserved from the conversation's budgets before, and
/// settled after at the price of the model that answered. A failed call settles what the provider
/// reported, else it releases its reservation.
async fn ask(shared: &Shared, job: &SummaryJob, text: String) -> Result<String, ProviderError> {
    let model = model_of(shared, job);
    let estimate = Usage {
        input_uncached: text.len() as u64 / BYTES_A_TOKEN,
        output: u64::from(shared.settings.max_summary_tokens),
        ..Usage::default()
    };
    let reserved = job
        .budget
        .reserve(amount(&estimate, job.spending.price_of(&model)));
    let reserved = reserved.map_err(|refusal| ProviderError::QuotaExhausted {
        message: refusal.to_string(),
    })?;
    let request = ModelRequest {
        model: model.clone(),
        system: None,
        messages: MessageList::from_iter([Message::user(text)]),
        tools: [].into(),
        tool_choice: ToolChoice::None,
        max_tokens: shared.settings.max_summary_tokens,
        stop: [].into(),
        effort: None,
        thinking: None,
        temperature: None,
        output_schema: None,
        cache: false,
    };
    let cancel = CancellationToken::new();
    let _cancel = cancel.clone().drop_guard();
    // Weight 1: no caller waits, and the compactor does not know the tenant's quotas.
    let by = CallBy {
        tenant: &job.scope.tenant,
        weight: 1,
        class: CallClass::Background,
    };
    let attempts = Mutex::new(Attempts {
        model,
        reported: None,
        failed: Amount::default(),
        failed_usage: Usage::default(),
    });
    let result = stream_summary(job, &by, request, cancel, &attempts).await;
    let mut attempts = attempts.into_inner();
    match result {
        Ok((summary, usage)) => {
            let usage = usage.unwrap_or(estimate);
            let used = amount(&usage, job.spending.price_of(&attempts.model));
            let used = used.plus(&attempts.failed);
            let usage = usage.plus(&attempts.failed_usage);
            count(shared, job, attempts.model, usage, &used);
            reserved.settle(used);
            Ok(summary)
        }
        Err(error) => {
            attempts.end(job);
            if attempts.failed != Amount::default() {
                let usage = attempts.failed_usage;
                count(shared, job, attempts.model, usage, &attempts.failed);
                reserved.settle(attempts.failed);
            }
            Err(error)
        }
    }
}

/// Counts the tokens and the cost of a summary in the figures of the host and the tenant, and the
/// tokens against the tenant's rate. Then the journal of the conversation records both.
fn count(shared: &Shared, job: &SummaryJob, model: Arc<str>, usage: Usage, cost: &Amount) {
    let counters = &shared.counters;
    counters.cost_micro_usd.add(cost.micro_usd);
    counters.input_tokens.add(usage.input());
    counters.cache_read_tokens.add(usage.cache_read);
    counters.output_tokens.add(usage.output);
    job.tenant.figures().spent(&usage, cost.micro_usd);
    job.tenant
        .charge_tokens(usage.input().saturating_add(usage.output));
    (job.bill_to.0)(SummaryBill {
        model,
        usage,
        cost_micro_usd: cost.micro_usd,
    });
}

/// The attempts of a call. The provider bills failed ones, too, as far as it reported usage.
struct Attempts {
    model: Arc<str>,
    reported: Option<Usage>,
    failed: Amount,
    failed_usage: Usage,
}

impl Attempts {
    /// Ends the running attempt as failed.
    fn end(&mut self, job: &SummaryJob) {
        if let Some(usage) = self.reported.take() {
            let used = amount(&usage, job.spending.price_of(&self.model));
            self.failed = self.failed.plus(&used);
            self.failed_usage = self.failed_usage.plus(&usage);
        }
    }

    fn note(&mut self, job: &SummaryJob, waiting: Waiting) {
        match waiting {
            Waiting::Queued { .. } => {}
            Waiting::Reported { usage } => self.reported = Some(usage),
            Waiting::Retry { .. } => self.end(job),
            Waiting::Fallback { model, .. } => {
                self.end(job);
                self.model = model;
            }
        }
    }
}

/// Makes the call and returns the text and the reported usage.
async fn stream_summary(
    job: &SummaryJob,
    by: &CallBy<'_>,
    request: ModelRequest,
    cancel: CancellationToken,
    attempts: &Mutex<Attempts>,
) -> Result<(String, Option<Usage>), ProviderError> {
    let note = |waiting: Waiting| attempts.lock().note(job, waiting);
    let mut stream = job.gateway.stream(by, request, cancel, note).await?;
    let mut summary = String::new();
    while let Some(batch) = stream.next().await {
        for event in batch? {
            match event {
                ModelEvent::Block(ContentBlock::Text(block)) => summary.push_str(&block.text),
                ModelEvent::Completed(completion) => return Ok((summary, completion.usage)),
                ModelEvent::Usage(usage) => attempts.lock().reported = Some(usage),
                ModelEvent::Block(_)
                | ModelEvent::Text(_)
                | ModelEvent::Thinking(_)
                | ModelEvent::Limits(_) => {}
            }
        }
    }
    Err(ProviderError::without_end())
}
