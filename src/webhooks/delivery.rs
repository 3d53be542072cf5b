//! Delivers the messages of the outbox. A call is one POST without redirects; a status of 2xx means
//! that the receiver took the message.

use std::{sync::Arc, time::Duration};

use callboard_actors::{
    ids::TenantId,
    ports::{Clock as _, Entropy as _, Outbox, OutboxMessage, StoreError},
    time::Timestamp,
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{
    Receiver, Receivers, Webhooks,
    plan::{Plan, Turn, wait},
    signature::signatures,
};
use crate::{
    Host,
    clock::{SystemClock, SystemEntropy},
    web::WebRequest,
};

/// How often messages are looked for that became due, such as those of hosts that are gone.
const LOOK: Duration = Duration::from_secs(1);

/// How often they are looked for while no tenant has a receiver.
const IDLE_LOOK: Duration = Duration::from_secs(60);

/// How often messages that are too old or too many are removed.
const TRIM: Duration = Duration::from_secs(60);

/// How long a message may wait, whatever became of its receiver.
const AGE_MAX: Duration = Duration::from_secs(3 * 24 * 60 * 60);

/// Added to the time of a call for the lease of its message.
const BEYOND_CALL: Duration = Duration::from_secs(5);

/// Longest wait that a receiver may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60 * 60);

/// How a call ended.
enum Answer {
    Taken,
    /// The receiver wants no more of it.
    Gone,
    Failed {
        why: String,
        retry_after: Option<Duration>,
    },
}

/// A call that ended.
struct Ended {
    tenant: TenantId,
    is_well: bool,
    /// When the call began, since the start of the delivery.
    begun: Duration,
}

/// Delivers until it is dropped. Calls that are under way are then made again by the next start, or
/// by another host.
pub(crate) async fn deliver(host: Host, webhooks: Webhooks) {
    let sessions = host.ports().sessions.clone();
    let Some(outbox) = sessions.outbox() else {
        return;
    };
    let mut plan = Plan::default();
    let mut calls: JoinSet<Ended> = JoinSet::new();
    let mut last: Option<TenantId> = None;
    let start = Instant::now();
    let mut trim_at = start;
    loop {
        let receivers = webhooks.receivers();
        let looks = receivers
            .as_ref()
            .is_some_and(|receivers| !receivers.of_tenants.is_empty());
        if let Some(receivers) = &receivers {
            let worked = async {
                if trim_at <= Instant::now() {
                    trim(outbox, &webhooks, receivers).await?;
                    trim_at = Instant::now() + TRIM;
                }
                if looks {
                    let mut begin = Begin {
                        host: &host,
                        outbox,
                        webhooks: &webhooks,
                        receivers,
                        start,
                        plan: &mut plan,
                        calls: &mut calls,
                    };
                    begin.due(&mut last).await?;
                }
                Ok::<_, StoreError>(())
            };
            if let Err(error) = worked.await {
                tracing::debug!(%error, "webhooks were not looked for");
                sleep(LOOK).await;
            }
        }
        let look = if looks { LOOK } else { IDLE_LOOK };
        tokio::select! {
            () = webhooks.0.bell.notified() => {}
            Some(ended) = calls.join_next() => {
                note(&mut plan, &webhooks, ended, start.elapsed());
                while let Some(ended) = calls.try_join_next() {
                    note(&mut plan, &webhooks, ended, start.elapsed());
                }
            }
            () = sleep(look.mul_f64(0.75 + SystemEntropy.fraction() / 2.0)) => {}
        }
    }
}

/// What begins calls.
struct Begin<'a> {
    host: &'a Host,
    outbox: &'a dyn Outbox,
    webhooks: &'a Webhooks,
    receivers: &'a Arc<Receivers>,
    /// When this began.
    start: Instant,
    plan: &'a mut Plan,
    calls: &'a mut JoinSet<Ended>,
}

impl Begin<'_> {
    /// Begins the calls of messages that are due, tenant by tenant, from the one after `last`.
    async fn due(&mut self, last: &mut Option<TenantId>) -> Result<(), StoreError> {
        let settings = &self.receivers.settings;
        self.plan
            .keep(|tenant| self.receivers.of_tenants.contains_key(tenant));
        let mut tenants = self.outbox.tenants(SystemClock.now()).await?;
        tenants.retain(|(_, is_due)| *is_due);
        let first = tenants.partition_point(|(tenant, _)| Some(tenant) <= last.as_ref());
        tenants.rotate_left(first);
        for (tenant, _) in tenants {
            let Some(receiver) = self.receivers.of_tenants.get(&tenant) else {
                continue;
            };
            let room = self
                .plan
                .room(&tenant, settings.at_once_max, self.start.elapsed());
            if room == 0 {
                continue;
            }
            let lease = settings.timeout + BEYOND_CALL;
            let now = SystemClock.now();
            let claimed = self.outbox.claim(&tenant, now, lease, room).await?;
            let begun = self.start.elapsed();
            self.plan.began(&tenant, claimed.len(), begun);
            *last = Some(tenant);
            for message in claimed {
                self.calls.spawn(call(
                    self.host.clone(),
                    self.webhooks.clone(),
                    self.receivers.clone(),
                    receiver.clone(),
                    message,
                    begun,
                ));
            }
        }
        Ok(())
    }
}

/// Makes one call and settles its message.
async fn call(
    host: Host,
    webhooks: Webhooks,
    receivers: Arc<Receivers>,
    receiver: Arc<Receiver>,
    message: OutboxMessage,
    begun: Duration,
) -> Ended {
    let tenant = message.scope.tenant.clone();
    let tries_max = receivers.settings.tries_max;
    let answer = post(&receivers, &receiver, &message).await;
    let is_well = matches!(answer, Answer::Taken);
    let figures = |change: fn(&mut crate::http::WebhookShown)| webhooks.note(&tenant, change);
    let again = match answer {
        Answer::Taken => {
            figures(|counts| counts.delivered += 1);
            None
        }
        Answer::Gone => {
            figures(|counts| counts.failed += 1);
            give_up(&webhooks, &message, "the receiver answered 410 Gone");
            None
        }
        Answer::Failed { why, .. } if message.tries >= tries_max => {
            figures(|counts| counts.failed += 1);
            give_up(&webhooks, &message, &why);
            None
        }
        Answer::Failed { why, retry_after } => {
            figures(|counts| counts.failed += 1);
            let wait = wait(message.tries, SystemEntropy.fraction());
            let asked = retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
            tracing::debug!(%tenant, id = message.id, tries = message.tries, why, "a webhook is tried again");
            Some(wait.max(asked))
        }
    };
    if let Some(outbox) = host.ports().sessions.outbox()
        && let Err(error) = outbox.settle(&message, SystemClock.now(), again).await
    {
        // Its lease ends, and it is delivered again.
        tracing::debug!(%error, %tenant, id = message.id, "a webhook could not be settled");
    }
    Ended {
        tenant,
        is_well,
        begun,
    }
}

async fn post(receivers: &Receivers, receiver: &Receiver, message: &OutboxMessage) -> Answer {
    let seconds = SystemClock.now().0 / 1000;
    let signed = signatures(&receiver.keys, &message.id, seconds, &message.body);
    let request = WebRequest::post_json(receiver.url.clone(), message.body.clone())
        .header("webhook-id", &message.id)
        .header("webhook-timestamp", &seconds.to_string())
        .header("webhook-signature", &signed);
    match receivers
        .client
        .open(request, &CancellationToken::new())
        .await
    {
        Ok(answer) => match answer.status() {
            200..=299 => Answer::Taken,
            410 => Answer::Gone,
            status => Answer::Failed {
                why: format!("the receiver answered {status}"),
                retry_after: answer.retry_after(),
            },
        },
        Err(error) => Answer::Failed {
            why: error.to_string(),
            retry_after: None,
        },
    }
}

/// Reports a message that no further try follows.
fn give_up(webhooks: &Webhooks, message: &OutboxMessage, why: &str) {
    webhooks.note(&message.scope.tenant, |counts| counts.given_up += 1);
    tracing::warn!(
        tenant = %message.scope.tenant,
        conversation = %message.scope.conversation,
        id = message.id,
        tries = message.tries,
        why,
        "a webhook was given up"
    );
}

/// Notes a call that ended, and reports a receiver that begins to fail or answers again.
fn note(
    plan: &mut Plan,
    webhooks: &Webhooks,
    ended: Result<Ended, tokio::task::JoinError>,
    now: Duration,
) {
    let Ok(Ended {
        tenant,
        is_well,
        begun,
    }) = ended
    else {
        return; // Only a panic ends a call without a result; its lease ends too.
    };
    let turn = plan.ended(&tenant, is_well, begun, now, SystemEntropy.fraction());
    match turn {
        Some(Turn::Failing) => {
            tracing::warn!(%tenant, "the receiver of webhooks does not answer; it gets one call at a time");
        }
        Some(Turn::Recovered) => tracing::info!(%tenant, "the receiver of webhooks answers again"),
        None => {}
    }
    if turn.is_some() {
        let is_failing = plan.is_failing(&tenant);
        webhooks.note(&tenant, |counts| counts.failing = is_failing);
    }
}

/// Removes messages that are too old, and the oldest of tenants with too many.
async fn trim(
    outbox: &dyn Outbox,
    webhooks: &Webhooks,
    receivers: &Receivers,
) -> Result<(), StoreError> {
    let now = SystemClock.now();
    let age = u64::try_from(AGE_MAX.as_millis()).unwrap_or(u64::MAX);
    let before = Timestamp(now.0.saturating_sub(age));
    let tenants = outbox.tenants(now).await?;
    webhooks.none_pending();
    for (tenant, _) in tenants {
        let keep = receivers.settings.pending_max;
        let (removed, left) = outbox.trim(&tenant, before, keep).await?;
        webhooks.note(&tenant, |counts| {
            counts.given_up += removed;
            counts.pending = left;
        });
        if removed > 0 {
            tracing::warn!(%tenant, removed, "webhooks were given up: they were older than three days, or too many waited");
        }
    }
    Ok(())
}
