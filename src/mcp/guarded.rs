//! What stands between a server's messages and the SDK, whatever carries them. The SDK starts a task for every notification and every
//! question of a server; here they are answered or dropped before, so that a flood costs a stranger its own time only (FAULTS F9).
//!
//! Promises: a question of a server (sampling, roots, elicitation) is refused, `ping` is answered, eight at a time at most · progress
//! reaches its own call only, in order, at most ten lines a second · answers nobody waits for are dropped · more than 2,000 messages a
//! second that answer nothing slow the reader down, and so the server · a server that is silent to `server/discover` is spoken to in
//! the older protocol after a wait of our choice.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use callboard_actors::ports::Progress;
use rmcp::{
    model::{
        ClientNotification, ClientRequest, ClientResult, ErrorCode, ErrorData, GetExtensions as _, GetMeta as _, JsonRpcMessage,
        ProgressNotificationParam, ProgressToken, RequestId, ServerNotification, ServerRequest,
    },
    service::{RoleClient, RxJsonRpcMessage, TxJsonRpcMessage},
    transport::Transport,
};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep_until},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::tools::mask::Masker;
use crate::tools::visible::visible_line;

/// Answers to a server's questions that may be on their way.
const ANSWERS_MAX: usize = 8;

/// Messages a second that answer nothing.
const IDLE_TALK_MAX: u32 = 2000;

/// Shortest time between two lines of progress of one call.
const PROGRESS_PAUSE: Duration = Duration::from_millis(100);

/// Characters of a line of progress.
const LINE_CHARS_MAX: usize = 200;

/// Where the progress of a call goes: put into its request, taken out when it is sent.
#[derive(Clone)]
pub(super) struct ProgressSink(pub(super) Progress);

/// What is known of a connection outside of its transport.
#[derive(Clone)]
pub(super) struct Watch {
    /// The server's name, for lines of progress.
    pub(super) server: Arc<str>,
    pub(super) masker: Arc<Masker>,
    /// The server said that its tools changed.
    pub(super) list_changed: Arc<AtomicBool>,
    /// Longest silence to `server/discover`.
    pub(super) probe: Duration,
    /// It answered `server/discover` after that.
    pub(super) late: Arc<AtomicBool>,
}

/// A transport with a guard before it.
pub(super) struct Guarded<T> {
    inner: T,
    watch: Watch,
    open: Arc<Mutex<Open>>,
    answers: Arc<Semaphore>,
    /// When this second of idle talk began, and how much there was.
    talk: (Instant, u32),
    /// The question that decides on the protocol, and when its time is over.
    probe: Option<(RequestId, Instant)>,
    /// A question whose answer comes too late to mean anything.
    given_up: Option<RequestId>,
    _ended: DropGuard,
}

/// Requests that wait for an answer.
#[derive(Default)]
struct Open(HashMap<RequestId, Option<Telling>>);

/// Progress of one request.
struct Telling {
    token: ProgressToken,
    progress: Progress,
    last: Option<Instant>,
}

impl<T> Guarded<T> {
    /// `ended` is cancelled when the connection is over.
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

    fn open(&self) -> std::sync::MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_sent(&mut self, item: &TxJsonRpcMessage<RoleClient>) {
        match item {
            JsonRpcMessage::Request(request) => {
                if matches!(request.request, ClientRequest::DiscoverRequest(_)) {
                    self.probe = Some((request.id.clone(), Instant::now() + self.watch.probe));
                }
                let sink = request.request.extensions().get::<ProgressSink>().cloned();
                let token = request.request.get_meta().get_progress_token();
                let telling = sink.zip(token).map(|(sink, token)| Telling { token, progress: sink.0, last: None });
                self.open().0.insert(request.id.clone(), telling);
            }
            JsonRpcMessage::Notification(notification) => {
                if let ClientNotification::CancelledNotification(cancelled) = &notification.notification
                    && let Some(id) = &cancelled.params.request_id
                {
                    self.open().0.remove(id);
                }
            }
            JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => {}
        }
    }

    /// Whether a request with this id waits for an answer. Ids are compared by type too: `"3"` is not `3`.
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

    /// The open request whose number an answer names as a text. That is no answer to it, and none will come: the request fails now
    /// instead of waiting for its time to be over.
    fn misnamed(&mut self, id: &RequestId) -> Option<RequestId> {
        let RequestId::String(text) = id else { return None };
        let number = text.parse().ok().map(RequestId::Number)?;
        self.close(&number).then_some(number)
    }

    fn tell(&self, told: &ProgressNotificationParam) {
        let now = Instant::now();
        let mut open = self.open();
        let telling = open.0.values_mut().flatten().find(|telling| telling.token == told.progress_token);
        let Some(telling) = telling.filter(|telling| telling.last.is_none_or(|last| now >= last + PROGRESS_PAUSE)) else { return };
        telling.last = Some(now);
        let count = match told.total {
            Some(total) => format!("{} of {total}", told.progress),
            None => told.progress.to_string(),
        };
        let line = match &told.message {
            Some(message) => format!("{} ({count})", self.watch.masker.mask(&visible_line(message, LINE_CHARS_MAX))),
            None => count,
        };
        let progress = telling.progress.clone();
        drop(open); // the sink is somebody else's code
        progress.tell(format!("{}: {line}", self.watch.server));
    }

    /// Counts a message that answers nothing.
    fn count(&mut self) {
        let now = Instant::now();
        if now >= self.talk.0 + Duration::from_secs(1) {
            self.talk = (now, 0);
        }
        self.talk.1 = self.talk.1.saturating_add(1);
    }

    /// When reading goes on, if there was too much idle talk.
    fn pause(&self) -> Option<Instant> {
        (self.talk.1 > IDLE_TALK_MAX).then(|| self.talk.0 + Duration::from_secs(1))
    }
}

impl<T: Transport<RoleClient>> Guarded<T> {
    /// Answers a server's question, if not too many answers are on their way.
    fn answer(&mut self, id: RequestId, question: &ServerRequest) {
        let Ok(permit) = self.answers.clone().try_acquire_owned() else { return };
        let answer = match question {
            ServerRequest::PingRequest(_) => TxJsonRpcMessage::<RoleClient>::response(ClientResult::empty(()), id),
            _ => {
                let error = ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "this client answers no questions of servers", None);
                TxJsonRpcMessage::<RoleClient>::error(error, Some(id))
            }
        };
        let sending = self.inner.send(answer);
        tokio::spawn(async move {
            let _ = sending.await;
            drop(permit);
        });
    }

    /// What the SDK must see of a message.
    fn admit(&mut self, message: RxJsonRpcMessage<RoleClient>) -> Option<RxJsonRpcMessage<RoleClient>> {
        let answered = match &message {
            JsonRpcMessage::Response(response) => Some(&response.id),
            JsonRpcMessage::Error(error) => error.id.as_ref(),
            JsonRpcMessage::Request(_) | JsonRpcMessage::Notification(_) => None,
        };
        if let Some(id) = answered.cloned().and_then(|id| self.misnamed(&id)) {
            let error = ErrorData::new(ErrorCode::INVALID_REQUEST, "its answer names the request by a text; the id is a number", None);
            return Some(JsonRpcMessage::error(error, Some(id)));
        }
        match message {
            JsonRpcMessage::Response(response) if self.given_up.as_ref() == Some(&response.id) => {
                self.given_up = None;
                self.watch.late.store(true, Ordering::Release);
                None
            }
            JsonRpcMessage::Response(response) => self.close(&response.id).then_some(JsonRpcMessage::Response(response)),
            JsonRpcMessage::Error(error) => match error.id.clone() {
                Some(id) => self.close(&id).then_some(JsonRpcMessage::Error(error)),
                // About a question that could not be read: during the handshake there is only one; later the SDK drops it.
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
                    ServerNotification::ProgressNotification(told) => self.tell(&told.params),
                    ServerNotification::ToolListChangedNotification(_) => self.watch.list_changed.store(true, Ordering::Release),
                    // Logs (deprecated in the protocol), prompts and resources are of no use here.
                    _ => {}
                }
                None
            }
        }
    }
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for Guarded<T> {
    type Error = T::Error;

    fn send(&mut self, item: TxJsonRpcMessage<RoleClient>) -> impl Future<Output = Result<(), T::Error>> + Send + 'static {
        self.note_sent(&item);
        self.inner.send(item)
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            if let Some(until) = self.pause() {
                // The pipe fills meanwhile, and the server waits.
                sleep_until(until).await;
                self.talk = (Instant::now(), 0);
            }
            let probe = self.probe.clone();
            let silent = async {
                match &probe {
                    Some((_, until)) => sleep_until(*until).await,
                    None => std::future::pending().await,
                }
            };
            let message = tokio::select! {
                biased;
                message = self.inner.receive() => message?,
                () = silent => {
                    let Some((id, _)) = self.probe.take() else { continue };
                    self.open().0.remove(&id);
                    self.given_up = Some(id.clone());
                    let error = ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "no answer: taken for a server of the older protocol", None);
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
