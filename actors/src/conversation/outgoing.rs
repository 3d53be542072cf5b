//! Decides which entries a receiver outside of the host is informed of, and what it reads: ids,
//! states and figures. The contents of a conversation stay in it.
//!
//! Pure.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use serde::Serialize;

use crate::{
    chat::Usage,
    ids::{ConversationId, RoundId, Scope, TenantId},
    journal::{Durable, Entry, EntryBody, WithdrawReason, status_of},
    ports::{OutboxEvent, OutboxMessage},
    stream::{RoundStatus, StopReason},
    time::Timestamp,
};

/// What a tenant's receiver is informed of.
#[derive(Clone)]
pub(crate) struct OutboxRules {
    /// The events that it wants.
    pub(crate) events: Arc<BTreeSet<OutboxEvent>>,
    /// Conversations that it is not informed of.
    pub(crate) leaves_out: fn(&ConversationId) -> bool,
}

#[derive(Serialize)]
struct Body<'a> {
    r#type: &'static str,
    timestamp: String,
    data: Data<'a>,
}

#[derive(Serialize)]
struct Data<'a> {
    tenant: &'a TenantId,
    conversation_id: &'a ConversationId,
    round_id: RoundId,
    status: RoundStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorCode<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_for: Option<WaitsFor<'a>>,
}

#[derive(Serialize)]
struct ErrorCode<'a> {
    code: &'a str,
}

#[derive(Serialize)]
struct WaitsFor<'a> {
    kind: &'static str,
    tool_call_id: &'a str,
    name: &'a str,
    expires_at: Timestamp,
}

impl OutboxRules {
    /// Returns the message that follows from `entry`, if the receiver wants it. `before` is the
    /// state before the entry.
    pub(in crate::conversation) fn message(
        &self,
        scope: &Scope,
        before: &Durable,
        entry: &Entry,
    ) -> Option<OutboxMessage> {
        let (event, data) = happened(scope, before, entry)?;
        if !self.events.contains(&event) || (self.leaves_out)(&scope.conversation) {
            return None;
        }
        let round = data.round_id;
        let body = Body {
            r#type: kind(event),
            timestamp: entry.at.to_string(),
            data,
        };
        Some(OutboxMessage {
            // A round is in one journal only, and an entry follows from its position there.
            id: format!("msg_{round}_{}", entry.seq),
            scope: scope.clone(),
            at: entry.at,
            body: Bytes::from(serde_json::to_vec(&body).ok()?),
            tries: 0,
        })
    }
}

/// The `type` of a message.
fn kind(event: OutboxEvent) -> &'static str {
    match event {
        OutboxEvent::Finished => "round.finished",
        OutboxEvent::Failed => "round.failed",
        OutboxEvent::Interrupted => "round.interrupted",
        OutboxEvent::ApprovalRequired => "round.approval_required",
        OutboxEvent::ClientToolCall => "round.client_tool_call",
    }
}

fn happened<'a>(
    scope: &'a Scope,
    before: &Durable,
    entry: &'a Entry,
) -> Option<(OutboxEvent, Data<'a>)> {
    let open = before.round.as_deref();
    let data = |round_id, status| Data {
        tenant: &scope.tenant,
        conversation_id: &scope.conversation,
        round_id,
        status,
        stop_reason: None,
        latency_ms: None,
        usage: None,
        error: None,
        waits_for: None,
    };
    let waiting = |kind, tool_call_id: &'a str, name: &'a str, expires_at| {
        Some(Data {
            waits_for: Some(WaitsFor {
                kind,
                tool_call_id,
                name,
                expires_at,
            }),
            ..data(open?.id, RoundStatus::InProgress)
        })
    };
    match &entry.body {
        EntryBody::RoundFinished {
            stop_reason,
            latency_ms,
            error,
        } => {
            let round = open?;
            let status = status_of(*stop_reason, error.as_ref());
            let event = match (status, stop_reason) {
                (RoundStatus::Error, _) => OutboxEvent::Failed,
                (_, StopReason::Interrupted) => OutboxEvent::Interrupted,
                _ => OutboxEvent::Finished,
            };
            let ended = Data {
                stop_reason: Some(*stop_reason),
                latency_ms: Some(*latency_ms),
                usage: Some(round.usage),
                error: error.as_ref().map(|error| ErrorCode { code: &error.code }),
                ..data(round.id, status)
            };
            Some((event, ended))
        }
        EntryBody::PromptWithdrawn { prompt_id, reason } => {
            // The end of the round follows for a prompt that is not in the inbox.
            let mut inbox = before.inbox.iter();
            let round = inbox.find(|prompt| prompt.id == *prompt_id)?.round_id;
            let (event, code) = match reason {
                WithdrawReason::ProviderAuth => (OutboxEvent::Failed, "provider_auth"),
                WithdrawReason::Deadline => (OutboxEvent::Failed, "deadline"),
                WithdrawReason::Caller => (OutboxEvent::Interrupted, "withdrawn"),
            };
            let withdrawn = Data {
                error: Some(ErrorCode { code }),
                ..data(round, RoundStatus::Error)
            };
            Some((event, withdrawn))
        }
        EntryBody::ApprovalAsked {
            tool_call_id,
            name,
            expires_at,
            ..
        } => Some((
            OutboxEvent::ApprovalRequired,
            waiting("approval", tool_call_id, name, *expires_at)?,
        )),
        EntryBody::ClientToolCalled {
            tool_call_id,
            name,
            expires_at,
            ..
        } => Some((
            OutboxEvent::ClientToolCall,
            waiting("client", tool_call_id, name, *expires_at)?,
        )),
        _ => None,
    }
}
