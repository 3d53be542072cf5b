//! Makes one summary as a task: checks its cost, makes the model calls, merges the parts.

use std::sync::Arc;

use futures_util::{StreamExt, future::try_join_all};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::{
    CompactorRef, CompressionMode, FOCUS_AREAS, Shared, SummaryBill, SummaryJob, merge_prompt,
    summary_prompts,
};
use crate::{
    chat::{ContentBlock, Message, MessageList, ModelRequest, ToolChoice, Usage},
    journal::amount,
    limits::BYTES_A_TOKEN,
    metrics_collector::Figure,
    model_gateway::{CallBy, CallClass, Waiting},
    policy::{Amount, Reservation},
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
    let cost = estimated_micro_usd(shared, job, &parts);
    if !compactor.spend(&job.scope.tenant, cost).await {
        tracing::debug!(conversation = %job.scope.conversation, "no background summary: the hour's money is spent");
        return None;
    }
    let work = async {
        // All are reserved before the first is sent: without the money for one, none is paid.
        let calls = parts.into_iter().map(|part| Call::new(shared, job, part));
        let calls: Vec<Call<'_>> = calls.collect::<Result<_, _>>()?;
        // Concurrent, since they share one time limit. The gateway bounds how many run.
        let summaries = try_join_all(calls.into_iter().map(Call::run)).await?;
        match summaries.as_slice() {
            [one] => Ok::<_, ProviderError>(one.clone()),
            parts => {
                let merged = merge_prompt(parts, &FOCUS_AREAS);
                Call::new(shared, job, merged)?.run().await
            }
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

/// What a summary of `parts` is estimated to cost: at the price of its model, and at least what the
/// tokens of a summary count.
fn estimated_micro_usd(shared: &Shared, job: &SummaryJob, parts: &[String]) -> u64 {
    let input = |text: &String| text.len() as u64 / BYTES_A_TOKEN;
    let least = CompressionMode::Summarize.cost_micro_usd(parts.iter().map(input).sum());
    let output = u64::from(shared.settings.max_summary_tokens);
    // Several parts are merged by one more call, which reads what they wrote.
    let merged = (parts.len() > 1).then(|| output.saturating_mul(parts.len() as u64));
    let price = job.spending.price_of(&model_of(shared, job));
    let calls = parts.iter().map(input).chain(merged);
    let cost = calls.map(|input_uncached| {
        let usage = Usage {
            input_uncached,
            output,
            ..Usage::default()
        };
        amount(&usage, price).micro_usd
    });
    cost.fold(0, u64::saturating_add).max(least)
}

/// One model call of a summary. Its estimated cost is reserved from the conversation's budgets
/// before, and replaced by its bill at the price of the model that answered.
///
/// Dropping the call bills it, however it ends. One that is dropped in the middle, as at the time
/// limit or when its conversation is deleted, is billed like one that wrote as much as it may. One
/// that failed is billed as the provider reported. One that was not sent costs nothing.
struct Call<'a> {
    shared: &'a Shared,
    job: &'a SummaryJob,
    text: String,
    estimate: Usage,
    /// `None` once the call is billed.
    reserved: Option<Reservation>,
    attempts: Mutex<Attempts>,
}

impl<'a> Call<'a> {
    fn new(shared: &'a Shared, job: &'a SummaryJob, text: String) -> Result<Self, ProviderError> {
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
        Ok(Self {
            shared,
            job,
            text,
            estimate,
            reserved: Some(reserved),
            attempts: Mutex::new(Attempts {
                model,
                is_sent: false,
                reported: None,
                ended: Amount::default(),
                ended_usage: Usage::default(),
            }),
        })
    }

    async fn run(mut self) -> Result<String, ProviderError> {
        let Self { shared, job, .. } = self;
        let text = std::mem::take(&mut self.text);
        let request = ModelRequest {
            model: model_of(shared, job),
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
        let result = stream_summary(job, &by, request, cancel, &self.attempts).await;
        let attempts = self.attempts.get_mut();
        attempts.is_sent = false;
        let (summary, usage) = result?;
        attempts.reported = Some(usage.unwrap_or(self.estimate));
        Ok(summary)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let Some(reserved) = self.reserved.take() else {
            return;
        };
        let attempts = self.attempts.get_mut();
        if attempts.is_sent {
            let reported = attempts.reported.unwrap_or(self.estimate);
            attempts.reported = Some(Usage {
                output: reported.output.max(self.estimate.output),
                ..reported
            });
        }
        attempts.end(self.job);
        if attempts.ended != Amount::default() {
            let model = attempts.model.clone();
            let (usage, cost) = (attempts.ended_usage, attempts.ended);
            count(self.shared, self.job, model, usage, &cost);
            reserved.settle(cost);
        }
    }
}

/// Counts the tokens and the cost of a summary in the figures of the host and the tenant, and the
/// tokens against the tenant's rate. Then the journal of the conversation records both.
fn count(shared: &Shared, job: &SummaryJob, model: Arc<str>, usage: Usage, cost: &Amount) {
    let spent = Figure::Spent {
        usage,
        cost_micro_usd: cost.micro_usd,
    };
    shared.collector.count(Some(job.tenant.id()), spent);
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
    /// Whether the running attempt went to the provider.
    is_sent: bool,
    /// What the provider reported of the running attempt.
    reported: Option<Usage>,
    /// The attempts that ended.
    ended: Amount,
    ended_usage: Usage,
}

impl Attempts {
    /// Ends the running attempt.
    fn end(&mut self, job: &SummaryJob) {
        if let Some(usage) = self.reported.take() {
            let used = amount(&usage, job.spending.price_of(&self.model));
            self.ended = self.ended.plus(&used);
            self.ended_usage = self.ended_usage.plus(&usage);
        }
        self.is_sent = false;
    }

    fn note(&mut self, job: &SummaryJob, waiting: Waiting) {
        match waiting {
            Waiting::Queued { .. } | Waiting::Arguments { .. } => {}
            Waiting::Sent => self.is_sent = true,
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
                | ModelEvent::Arguments(_)
                | ModelEvent::Limits(_) => {}
            }
        }
    }
    Err(ProviderError::without_end())
}
