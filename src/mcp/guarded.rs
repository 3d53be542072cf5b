//! Filters a server's messages before they reach the SDK, on every transport. The SDK spawns a task
//! for each notification and each request of a server; answering or dropping them here keeps a
//! flood from costing memory.
//!
//! Guarantees:
//! - A server's requests (sampling, roots, elicitation) are refused, `ping` is answered; at most
//!   eight answers are in flight.
//! - Progress reaches only its own call, in order, at most ten lines a second.
//! - Responses that match no open request are dropped.
//! - More than 2,000 messages a second other than responses pause reading, which slows the server
//!   down.
//! - A server that does not answer `server/discover` in time is asked with the older handshake.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use callboard_actors::ports::Progress;
use parking_lot::Mutex;
use rmcp::{
    model::{
        ClientNotification, ClientRequest, ClientResult, ErrorCode, ErrorData, GetExtensions as _,
        GetMeta as _, JsonRpcMessage, ProgressNotificationParam, ProgressToken, RequestId,
        ServerNotification, ServerRequest,
    },
    service::{RoleClient, RxJsonRpcMessage, TxJsonRpcMessage},
    transport::Transport,
};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep_until},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::stdio::Fault;
use crate::{mask::Masker, visible::visible_line};

/// Most answers to a server's requests that may be in flight.
const ANSWERS_MAX: usize = 8;

/// Messages per second, responses excluded, above which reading pauses.
const IDLE_TALK_MAX: u32 = 2000;

/// Shortest interval between two progress lines of one call.
const PROGRESS_PAUSE: Duration = Duration::from_millis(100);

/// Longest progress line, in characters.
const LINE_CHARS_MAX: usize = 200;

/// Receiver of a call's progress. The caller puts it into the request's extensions; [`Guarded`]
/// takes it out on sending.
#[derive(Clone)]
pub(super) struct ProgressSink(pub(super) Progress);

/// State of a connection that outlives its transport.
#[derive(Clone)]
pub(super) struct Watch {
    /// The server's name, shown in progress lines.
    pub(super) server: Arc<str>,
    pub(super) masker: Arc<Masker>,
    /// Set when the server announces that its tools changed.
    pub(super) list_changed: Arc<AtomicBool>,
    /// Longest wait for the answer to `server/discover`.
    pub(super) probe: Duration,
    /// Set when the answer to `server/discover` came after that wait.
    pub(super) late: Arc<AtomicBool>,
    /// Ends the connection when it is set.
    pub(super) fault: Fault,
}

/// A transport with the filter in front of it.
pub(super) struct Guarded<T> {
    inner: T,
    watch: Watch,
    open: Arc<Mutex<Open>>,
    answers: Arc<Semaphore>,
    /// Start of the current second of unsolicited messages, and their number.
    talk: (Instant, u32),
    /// Id and deadline of the `server/discover` request while it is open.
    probe: Option<(RequestId, Instant)>,
    /// The `server/discover` request that timed out; a late answer to it is not passed on.
    given_up: Option<RequestId>,
    _ended: DropGuard,
}

/// Requests that await a response; those with progress have their receiver.
#[derive(Default)]
struct Open(HashMap<RequestId, Option<ProgressTarget>>);

/// Receiver of one request's progress, and when it got the last line.
struct ProgressTarget {
    token: ProgressToken,
    progress: Progress,
    last: Option<Instant>,
}

impl<T> Guarded<T> {
    /// `ended` is cancelled when the transport is dropped.
    pub(super) fn new(inner: T, watch: Watch, ended: CancellationToken) -> Self {
        Self {
            inner,
            watch,
            open: Arc::default(),
            answers: Arc::new(Semaphore::new(ANSWERS_MAX)),
            talk: (Instant::now(), 0),
            probe: None,
            given_up: None,
            _ended: ended.drop_guard(),
        }
    }

    fn open(&self) -> parking_lot::MutexGuard<'_, Open> {
        self.open.lock()
    }

    fn note_sent(&mut self, item: &TxJsonRpcMessage<RoleClient>) {
        match item {
            JsonRpcMessage::Request(request) => {
                if matches!(request.request, ClientRequest::DiscoverRequest(_)) {
                    self.probe = Some((request.id.clone(), Instant::now() + self.watch.probe));
                }
                let sink = request.request.extensions().get::<ProgressSink>().cloned();
                let token = request.request.get_meta().get_progress_token();
                let target = sink.zip(token).map(|(sink, token)| ProgressTarget {
                    token,
                    progress: sink.0,
                    last: None,
                });
                self.open().0.insert(request.id.clone(), target);
            }
            JsonRpcMessage::Notification(notification) => {
                if let ClientNotification::CancelledNotification(cancelled) =
                    &notification.notification
                    && let Some(id) = &cancelled.params.request_id
                {
                    self.open().0.remove(id);
                }
            }
            JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => {}
        }
    }

    /// Removes an open request; `false` if none has this id. Ids are compared with their type:
    /// `"3"` is not `3`.
    fn close(&mut self, id: &RequestId) -> bool {
        if self.probe.as_ref().is_some_and(|(probe, _)| probe == id) {
            self.probe = None;
        }
        if self.given_up.as_ref() == Some(id) {
            self.given_up = None;
            return false;
        }
        self.open().0.remove(id).is_some()
    }

    /// The open request to which a response with a string id (`"3"` instead of `3`) was meant. That
    /// response is invalid, and no other will come, so the request fails now instead of at its
    /// timeout.
    fn misnamed(&mut self, id: &RequestId) -> Option<RequestId> {
        let RequestId::String(text) = id else {
            return None;
        };
        let number = text.parse().ok().map(RequestId::Number)?;
        self.close(&number).then_some(number)
    }

    fn report_progress(&self, params: &ProgressNotificationParam) {
        let now = Instant::now();
        let mut open = self.open();
        let target = open
            .0
            .values_mut()
            .flatten()
            .find(|target| target.token == params.progress_token);
        let Some(target) =
            target.filter(|target| target.last.is_none_or(|last| now >= last + PROGRESS_PAUSE))
        else {
            return;
        };
        target.last = Some(now);
        let count = match params.total {
            Some(total) => format!("{} of {total}", params.progress),
            None => params.progress.to_string(),
        };
        let line = match &params.message {
            Some(message) => format!(
                "{} ({count})",
                self.watch
                    .masker
                    .mask(&visible_line(message, LINE_CHARS_MAX))
            ),
            None => count,
        };
        let progress = target.progress.clone();
        drop(open); // the receiver is foreign code and must not run under the lock
        progress.report(format!("{}: {line}", self.watch.server));
    }

    /// Counts an unsolicited message.
    fn count(&mut self) {
        let now = Instant::now();
        if now >= self.talk.0 + Duration::from_secs(1) {
            self.talk = (now, 0);
        }
        self.talk.1 = self.talk.1.saturating_add(1);
    }

    /// When reading may continue, if there were too many unsolicited messages.
    fn pause(&self) -> Option<Instant> {
        (self.talk.1 > IDLE_TALK_MAX).then(|| self.talk.0 + Duration::from_secs(1))
    }
}

impl<T: Transport<RoleClient>> Guarded<T> {
    /// Answers a server's request, unless too many answers are in flight.
    fn answer(&mut self, id: RequestId, question: &ServerRequest) {
        let Ok(permit) = self.answers.clone().try_acquire_owned() else {
            return;
        };
        let answer = match question {
            ServerRequest::PingRequest(_) => {
                TxJsonRpcMessage::<RoleClient>::response(ClientResult::empty(()), id)
            }
            _ => {
                let error = ErrorData::new(
                    ErrorCode::METHOD_NOT_FOUND,
                    "this client does not support requests from servers",
                    None,
                );
                TxJsonRpcMessage::<RoleClient>::error(error, Some(id))
            }
        };
        let sending = self.inner.send(answer);
        tokio::spawn(async move {
            let _ = sending.await;
            drop(permit);
        });
    }

    /// The message as the SDK may see it; `None` if it was handled or dropped here.
    fn admit(
        &mut self,
        message: RxJsonRpcMessage<RoleClient>,
    ) -> Option<RxJsonRpcMessage<RoleClient>> {
        let answered = match &message {
            JsonRpcMessage::Response(response) => Some(&response.id),
            JsonRpcMessage::Error(error) => error.id.as_ref(),
            JsonRpcMessage::Request(_) | JsonRpcMessage::Notification(_) => None,
        };
        if let Some(id) = answered.cloned().and_then(|id| self.misnamed(&id)) {
            let error = ErrorData::new(
                ErrorCode::INVALID_REQUEST,
                "its response has a string id; the request's id is a number",
                None,
            );
            return Some(JsonRpcMessage::error(error, Some(id)));
        }
        match message {
            JsonRpcMessage::Response(response) if self.given_up.as_ref() == Some(&response.id) => {
                self.given_up = None;
                self.watch.late.store(true, Ordering::Release);
                None
            }
            JsonRpcMessage::Response(response) => self
                .close(&response.id)
                .then_some(JsonRpcMessage::Response(response)),
            JsonRpcMessage::Error(error) => match error.id.clone() {
                Some(id) => self.close(&id).then_some(JsonRpcMessage::Error(error)),
                // An error without an id: during the handshake it can only concern the one open
                // request; later the SDK drops it.
                None => {
                    self.probe = None;
                    self.count();
                    Some(JsonRpcMessage::Error(error))
                }
            },
            JsonRpcMessage::Request(request) => {
                self.answer(request.id, &request.request);
                None
            }
            JsonRpcMessage::Notification(notification) => {
                match &notification.notification {
                    ServerNotification::ProgressNotification(progress) => {
                        self.report_progress(&progress.params)
                    }
                    ServerNotification::ToolListChangedNotification(_) => {
                        self.watch.list_changed.store(true, Ordering::Release)
                    }
                    // Log messages, prompts and resources are not used.
                    _ => {}
                }
                None
            }
        }
    }
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for Guarded<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), T::Error>> + Send + 'static {
        self.note_sent(&item);
        self.inner.send(item)
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            if let Some(until) = self.pause() {
                // Meanwhile the pipe fills, which blocks the server.
                sleep_until(until).await;
                self.talk = (Instant::now(), 0);
            }
            // A silent server never answers the probe, so its deadline runs beside reading. When it
            // expires, the SDK gets the error of an unknown method, which makes it fall back to
            // `initialize`.
            let probe = self.probe.clone();
            let silent = async {
                match &probe {
                    Some((_, until)) => sleep_until(*until).await,
                    None => std::future::pending().await,
                }
            };
            let message = tokio::select! {
                biased;
                () = self.watch.fault.found() => return None,
                message = self.inner.receive() => message?,
                () = silent => {
                    let Some((id, _)) = self.probe.take() else { continue };
                    self.open().0.remove(&id);
                    self.given_up = Some(id.clone());
                    let error = ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "no answer; falling back to the older protocol", None);
                    return Some(JsonRpcMessage::error(error, Some(id)));
                }
            };
            if let Some(admitted) = self.admit(message) {
                return Some(admitted);
            }
            self.count();
        }
    }

    async fn close(&mut self) -> Result<(), T::Error> {
        self.inner.close().await
    }
}
