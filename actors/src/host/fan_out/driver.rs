//! Runs a fan-out: starts tasks while there is room, collects their ends, and cancels what is left.
//! One tokio task drives all children, so a child costs no task, timer or watcher here.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::{
    sync::{mpsc, oneshot},
    task::yield_now,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    attach::{Found, find, outcome},
    ephemeral_store::EphemeralStore,
    results::{TaskEnd, TaskFailure, draining, failure, refused},
    round_end_listener::{FanOutEvent, RoundEndListener},
};
use crate::{
    chat::Message,
    conversation::{
        Command, ConversationError, ConversationMsg,
        round::{Receipt, Refusal},
    },
    hashing::MapHasher,
    host::{
        SendError,
        directory::{Activity, Directory},
        fan_out_context::Joined,
        store_admission::{PendingTask, admit_conversation, room_for_round},
        subagents::{TaskReceipt, send_task},
    },
    ids::{ConversationId, RoundId, Scope, Seq},
    journal::FanOutKeys,
    limits::PROMPT_BYTES_MAX,
    metrics_collector::Figure,
    ports::{ArtifactStore, BoxFuture},
    stream::{Failure, RoundEnd},
    tenant::{NoRoom, NotAdmitted, Seat, Tenant},
};

/// Pause before a task that was refused for lack of memory asks again. One that the rate of requests
/// or tokens refused asks again when that says.
const ROOM_RETRY: Duration = Duration::from_millis(100);

/// How often a prompt is sent to a conversation that crashes before it accepts the prompt.
const SENDS_MAX: u32 = 3;

/// How often a finished conversation is asked to sleep once all tasks are over, and for how long.
const REST_RETRY: Duration = Duration::from_millis(2);
const REST_MAX: Duration = Duration::from_secs(4);

/// The limits of one fan-out.
pub(super) struct FanOutLimits {
    pub(super) root: Scope,
    pub(super) parallel: usize,
    pub(super) deadline: Option<Instant>,
    pub(super) warm_first: bool,
    pub(super) cancel: CancellationToken,
}

/// A running task. `sends` counts how often its prompt was sent; `attached` is true while the task
/// continues the work of an earlier process.
struct RunningTask {
    child: Scope,
    message: Message,
    began: Instant,
    sends: u32,
    attached: bool,
    /// The interrupted round that is rewound before the task is sent again.
    cut: Option<RoundId>,
    pending: Option<PendingTask>,
}

type Answered = (u32, TaskReceipt);
type Attached = (u32, Found);

/// The pending receipt of a prompt, with the index of its task.
struct Awaited {
    index: u32,
    answer: oneshot::Receiver<TaskReceipt>,
}

impl Future for Awaited {
    type Output = Answered;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answered> {
        let index = self.index;
        Pin::new(&mut self.answer)
            .poll(context)
            .map(|answer| (index, answer.unwrap_or(Err(ConversationError::Gone))))
    }
}

/// Where the journals of the children are, and which exist already.
pub(super) struct Journals {
    /// Conversations that an earlier fan-out of this name left.
    pub(super) known: BTreeSet<Scope>,
    /// Whether tasks that failed then are sent again.
    pub(super) retry_failed: bool,
    /// For an ephemeral fan-out: its journals, and the store of its large results.
    pub(super) ephemeral: Option<(Arc<EphemeralStore>, Arc<dyn ArtifactStore>)>,
}

/// The state of `warm_first`: whether the other tasks may begin.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Warmth {
    /// The first task may begin.
    Cold,
    /// The first task runs, and its model has not begun to answer.
    Warming,
    Warm,
}

/// Where the results go, and the registration of the fan-out.
pub(super) struct Outlet {
    pub(super) results: mpsc::Sender<Arc<TaskEnd>>,
    pub(super) joined: Joined,
}

impl Outlet {
    fn send(&self, end: TaskEnd) {
        self.joined.ends_a_task();
        let _ = self.results.try_send(Arc::new(end)); // One slot per task; the reader may be gone.
    }
}

pub(super) struct Driver {
    directory: Arc<Directory>,
    /// The id prefix of the children.
    children: ConversationId,
    /// The client keys of the prompts.
    keys: FanOutKeys,
    tenant: Arc<Tenant>,
    limits: FanOutLimits,
    /// The texts of the tasks that have not begun.
    tasks: VecDeque<String>,
    next: u32,
    running: HashMap<u32, RunningTask, MapHasher>,
    ends: Arc<RoundEndListener>,
    reports: mpsc::Receiver<FanOutEvent>,
    receipts: FuturesUnordered<Awaited>,
    attaching: FuturesUnordered<BoxFuture<'static, Attached>>,
    journals: Journals,
    /// Conversations of ended tasks that may not be asleep yet, in the order of their ends.
    resting: VecDeque<Scope>,
    warmth: Warmth,
    /// When the next task asks for rate, memory or room in the store again; `None` while none is short.
    room_at: Option<Instant>,
    /// Why no further task begins; `None` while tasks may begin.
    stopped: Option<Failure>,
    /// Dropped last, since activations of the children look up their configuration through it.
    outlet: Outlet,
}

impl Driver {
    pub(super) fn new(
        directory: Arc<Directory>,
        tenant: Arc<Tenant>,
        limits: FanOutLimits,
        tasks: Vec<String>,
        (ends, reports): (Arc<RoundEndListener>, mpsc::Receiver<FanOutEvent>),
        journals: Journals,
        outlet: Outlet,
    ) -> Self {
        Self {
            children: limits.root.conversation.children(),
            keys: FanOutKeys::new(&limits.root, tasks.len()),
            directory,
            tenant,
            warmth: if limits.warm_first {
                Warmth::Cold
            } else {
                Warmth::Warm
            },
            limits,
            tasks: tasks.into(),
            next: 0,
            running: HashMap::default(),
            ends,
            reports,
            receipts: FuturesUnordered::new(),
            attaching: FuturesUnordered::new(),
            journals,
            resting: VecDeque::new(),
            room_at: None,
            stopped: None,
            outlet,
        }
    }

    /// Runs until all tasks have ended or the host stops.
    pub(super) async fn run(mut self) {
        // Each pass starts what fits and then waits for one event. The `select!` is biased: a stop
        // of the host comes first, then the ends of rounds, so that a task that has ended is never
        // reported as cancelled or late.
        let stopped = self.directory.stopped().clone();
        let cancel = self.limits.cancel.clone();
        // Created once and not in each pass: creating one takes a place in the token's queue.
        let mut stopped = pin!(stopped.cancelled());
        let mut cancelled = pin!(cancel.cancelled());
        loop {
            self.begin_more().await;
            if self.running.is_empty() && self.tasks.is_empty() {
                break;
            }
            let deadline = self.limits.deadline.filter(|_| self.stopped.is_none());
            let room_at = self.room_at;
            tokio::select! {
                biased;
                () = &mut stopped => {
                    self.leave_all();
                    break;
                }
                Some(report) = self.reports.recv() => {
                    // Let other rounds that are about to end report too. One wake-up then handles
                    // all of them, here and in the reader of the results.
                    yield_now().await;
                    self.handle(report);
                    while let Ok(report) = self.reports.try_recv() {
                        self.handle(report);
                    }
                }
                Some((index, receipt)) = self.receipts.next(), if !self.receipts.is_empty() => self.answered(index, receipt),
                Some((index, found)) = self.attaching.next(), if !self.attaching.is_empty() => self.attached(index, found),
                () = &mut cancelled, if self.stopped.is_none() => {
                    self.stop(None, failure("interrupted", "it was cancelled before it began"));
                }
                () = at(deadline), if deadline.is_some() => {
                    let over = || failure("deadline", "the time given for the fan-out is over");
                    self.stop(Some(over()), over());
                }
                () = at(room_at), if room_at.is_some() => self.room_at = None,
            }
        }
        self.rest().await;
        if let Some((_, artifacts)) = &self.journals.ephemeral {
            let Scope {
                tenant,
                conversation,
            } = self.limits.root.clone();
            if let Err(error) = artifacts.release(tenant, Some(conversation)).await {
                tracing::warn!(%error, "large results of a fan-out that is over are still kept");
            }
        }
    }

    /// Starts tasks while there is room for them.
    async fn begin_more(&mut self) {
        if self.directory.is_closed() && self.stopped.is_none() {
            self.stopped = Some(draining());
        }
        if let Some(why) = self.stopped.clone() {
            while let Some((index, _)) = self.take() {
                self.never_began(index, why.clone());
            }
            return;
        }
        while self.running.len() < self.limits.parallel
            && self.room_at.is_none()
            && self.warmth != Warmth::Warming
        {
            let Some((index, text)) = self.take() else {
                return;
            };
            self.begin(index, text).await;
            if self.warmth == Warmth::Cold && self.room_at.is_none() {
                self.warmth = if self.running.is_empty() {
                    Warmth::Warm
                } else {
                    Warmth::Warming
                };
            }
        }
    }

    fn take(&mut self) -> Option<(u32, String)> {
        let text = self.tasks.pop_front()?;
        self.next += 1;
        Some((self.next - 1, text))
    }

    fn child(&self, index: u32) -> Scope {
        let Scope {
            tenant,
            conversation,
        } = &self.limits.root;
        let id = match self.journals.ephemeral {
            Some(_) => self.children.numbered(index),
            None => conversation.child_in(&self.children, Seq(0), index),
        };
        Scope::new(tenant.clone(), id)
    }

    /// Starts one task, or ends it with the reason why it cannot start.
    async fn begin(&mut self, index: u32, text: String) {
        let child = self.child(index);
        if text.trim().is_empty() || text.len() > PROMPT_BYTES_MAX {
            return self.never_began(index, refused(&SendError::BadPrompt(text.trim().len())));
        }
        let message = Message::user(text);
        let began = Instant::now();
        if self.journals.known.remove(&child) {
            self.ends.listen(child.conversation.clone(), index, began);
            self.attach(index, child.clone(), message.clone());
            self.running.insert(
                index,
                RunningTask {
                    child,
                    message,
                    began,
                    sends: 0,
                    attached: true,
                    cut: None,
                    pending: None,
                },
            );
            return;
        }
        let ports = self.directory.ports().clone();
        // First, so that a task which waits for room in the store takes nothing from the rates.
        let room = match self.journals.ephemeral {
            Some(_) => None,
            None => match room_for_round(&ports, &self.tenant, message.wire().len()).await {
                Ok(Ok(room)) => room,
                Ok(Err(NoRoom::OpenRounds)) => {
                    return self.wait(index, message, ROOM_RETRY);
                }
                Ok(Err(NoRoom::Full)) => {
                    let why = NotAdmitted::StoredBytes;
                    let _ = self.tenant.refuse::<()>(why);
                    ports.collector.count(None, Figure::NotAdmitted);
                    return self.never_began(index, refused(&why.into()));
                }
                Err(error) => return self.never_began(index, refused(&error)),
            },
        };
        let seat = self.tenant.admit_task().and_then(|mut seat| {
            seat.weigh(message.wire().len(), || ports.events.bytes(&child.tenant))
                .map(|()| seat)
        });
        let mut seat = match seat {
            Ok(seat) => seat,
            Err(NotAdmitted::Requests { after } | NotAdmitted::Tokens { after }) => {
                return self.wait(index, message, after);
            }
            Err(NotAdmitted::Memory | NotAdmitted::HostMemory) => {
                return self.wait(index, message, ROOM_RETRY);
            }
            Err(why) => return self.never_began(index, refused(&why.into())),
        };
        let bytes = room.map(|(prompt, round)| {
            seat.keep_for_round(round);
            prompt
        });
        let pending = match self.journals.ephemeral {
            Some(_) => None,
            None => match admit_conversation(&ports, &self.tenant, &child.conversation).await {
                Ok(conversation) => Some(PendingTask {
                    bytes,
                    conversation,
                }),
                Err(error) => return self.never_began(index, refused(&error)),
            },
        };
        self.ends.listen(child.conversation.clone(), index, began);
        self.running.insert(
            index,
            RunningTask {
                child,
                message,
                began,
                sends: 0,
                attached: false,
                cut: None,
                pending,
            },
        );
        self.send(index, seat);
    }

    /// Puts a task back to the front of the queue until there may be room for it: a fan-out that is
    /// larger than its rates, its memory or its room in the store is slow, not refused.
    fn wait(&mut self, index: u32, message: Message, after: Duration) {
        self.tasks.push_front(message.text());
        self.next = index;
        self.room_at = Some(Instant::now() + after);
    }

    /// Sends the prompt to its conversation. The client key makes this idempotent: a conversation
    /// that accepted the prompt already answers with `replayed`.
    fn send(&mut self, index: u32, seat: Seat) {
        let Some(task) = self.running.get_mut(&index) else {
            return;
        };
        task.sends += 1;
        let name = self.keys.key(index, task.cut);
        let answer = send_task(
            &self.directory,
            &task.child,
            name,
            task.message.clone(),
            seat,
        );
        self.receipts.push(Awaited { index, answer });
    }

    /// Handles the conversation's answer to its prompt.
    fn answered(&mut self, index: u32, receipt: Result<Receipt, ConversationError>) {
        let Some(task) = self.running.get_mut(&index) else {
            return;
        }; // Ended already.
        match receipt {
            Ok(Receipt { round_id, replayed }) => {
                if let Some(pending) = task.pending.take() {
                    pending.keep();
                }
                // The prompt was accepted before a crash, and the round may have ended since. That
                // end was not reported, so read it from the journal.
                if replayed && self.journals.ephemeral.is_none() {
                    let ports = self.directory.ports().clone();
                    let stopped = self.directory.stopped().clone();
                    let child = task.child.clone();
                    let tenant = self.directory.tenants().get(&child.tenant);
                    let reads = tenant.reads().clone();
                    self.attaching.push(Box::pin(async move {
                        (
                            index,
                            Found::Over(outcome(ports, stopped, reads, child, round_id).await),
                        )
                    }));
                }
            }
            Err(error)
                if error.is_retryable()
                    && task.sends < SENDS_MAX
                    && !self.directory.is_closed() =>
            {
                match self.tenant.admit_child() {
                    Ok(seat) => self.send(index, seat),
                    Err(why) => self.over(index, Err(refused(&why.into())), None),
                }
            }
            Err(error) => {
                // The prompt may have been accepted all the same.
                self.directory
                    .send(&task.child, ConversationMsg::Cancel { failure: None });
                self.over(index, Err(refused(&error.into())), None);
            }
        }
    }

    /// Starts to attach to a task whose conversation exists.
    fn attach(&mut self, index: u32, child: Scope, task: Message) {
        let directory = self.directory.clone();
        let retry_failed = self.journals.retry_failed;
        self.attaching.push(Box::pin(async move {
            (index, find(directory, child, task, retry_failed).await)
        }));
    }

    /// Handles the result of attaching: reports the end of the task, or sends the task.
    fn attached(&mut self, index: u32, found: Found) {
        let (stopped, Some(task)) = (self.stopped.clone(), self.running.get_mut(&index)) else {
            return;
        };
        match (found, stopped) {
            (Found::Over(end), _) => self.over(index, end, None),
            (Found::Missing { .. }, Some(why)) => self.over(index, Err(why), None),
            (Found::Missing { cut }, None) => {
                (task.attached, task.cut) = (false, cut);
                if let Some(round_id) = cut {
                    let (reply, _) = oneshot::channel(); // The prompt queues after it in any case.
                    self.directory.send(
                        &task.child,
                        ConversationMsg::Ask {
                            command: Command::Rewind { round_id },
                            place: None,
                            reply,
                        },
                    );
                }
                self.tenant.charge_request();
                match self.tenant.admit_child() {
                    Ok(seat) => self.send(index, seat),
                    Err(why) => self.over(index, Err(refused(&why.into())), None),
                }
            }
        }
    }

    fn handle(&mut self, report: FanOutEvent) {
        match report {
            FanOutEvent::FirstContent => self.warmth = Warmth::Warm,
            FanOutEvent::Ended {
                index,
                end,
                first_text,
            } => self.over(index, end, first_text),
        }
    }

    /// Ends a task: reports its result and asks its conversation to sleep.
    fn over(
        &mut self,
        index: u32,
        end: Result<Arc<RoundEnd>, Failure>,
        first_text: Option<Duration>,
    ) {
        let Some(task) = self.running.remove(&index) else {
            return;
        };
        let RunningTask {
            child,
            began,
            attached,
            ..
        } = task;
        self.warmth = Warmth::Warm;
        self.ends.leave(&child.conversation);
        let outcome = match end {
            Ok(end) => TaskEnd::from_round(end),
            Err(failure) => {
                // After a failure the next activation would resume the round, so interrupt it,
                // unless the conversation belongs to another caller.
                let not_ours = [ConversationError::InUse, Refusal::KeyReused.into()]
                    .map(|error: ConversationError| error.code());
                if !not_ours.contains(&failure.code.as_str()) {
                    self.directory
                        .send(&child, ConversationMsg::Cancel { failure: None });
                }
                Err(TaskFailure { failure, end: None })
            }
        };
        self.directory.put_to_sleep(&child);
        let conversation = child.conversation.clone();
        self.resting.push_back(child);
        self.forget_the_asleep();
        self.outlet.send(TaskEnd {
            index: task_index(index),
            conversation,
            outcome,
            first_text,
            took: began.elapsed(),
            attached,
        });
    }

    /// Drops the conversations that sleep, in the order in which their tasks ended.
    fn forget_the_asleep(&mut self) {
        while let Some(child) = self.resting.front() {
            if !matches!(self.directory.activity(child), Activity::Asleep) {
                return;
            }
            if let Some((scratch, _)) = &self.journals.ephemeral {
                scratch.forget(&child.conversation);
            }
            self.resting.pop_front();
        }
    }

    fn never_began(&self, index: u32, why: Failure) {
        let conversation = self.child(index).conversation;
        let outcome = Err(TaskFailure {
            failure: why,
            end: None,
        });
        self.outlet.send(TaskEnd {
            index: task_index(index),
            conversation,
            outcome,
            first_text: None,
            took: Duration::ZERO,
            attached: false,
        });
    }

    /// Interrupts the running tasks, with the failure `why` if there is one. The others end with
    /// `never_began`.
    fn stop(&mut self, why: Option<Failure>, never_began: Failure) {
        self.stopped = Some(never_began);
        self.room_at = None;
        for task in self.running.values() {
            self.directory.send(
                &task.child,
                ConversationMsg::Cancel {
                    failure: why.clone(),
                },
            );
        }
    }

    /// Ends all tasks as `draining`, since a stopped host reports no more ends.
    fn leave_all(&mut self) {
        for (index, task) in std::mem::take(&mut self.running) {
            let RunningTask {
                child,
                began,
                attached,
                ..
            } = task;
            let outcome = Err(TaskFailure {
                failure: draining(),
                end: None,
            });
            let conversation = child.conversation;
            self.outlet.send(TaskEnd {
                index: task_index(index),
                conversation,
                outcome,
                first_text: None,
                took: began.elapsed(),
                attached,
            });
        }
        while let Some((index, _)) = self.take() {
            self.never_began(index, draining());
        }
    }

    /// Waits until all conversations of the fan-out sleep, so that an ended fan-out holds no
    /// memory. Gives up after [`REST_MAX`].
    async fn rest(&mut self) {
        let directory = self.directory.clone();
        let over = Instant::now() + REST_MAX;
        let mut ask_at = Instant::now() + REST_RETRY;
        loop {
            let emptied = directory.emptied(); // Before the check, so that no removal is missed.
            self.forget_the_asleep();
            if self.resting.is_empty() || directory.stopped().is_cancelled() {
                return;
            }
            tokio::select! {
                biased;
                () = at(Some(ask_at)) => {
                    if ask_at >= over {
                        break;
                    }
                    self.resting.iter().for_each(|child| directory.put_to_sleep(child));
                    ask_at = Instant::now() + REST_RETRY;
                }
                () = emptied => {}
            }
        }
        tracing::warn!(
            left = self.resting.len(),
            "conversations of a fan-out that is over do not go to sleep"
        );
    }
}

fn task_index(index: u32) -> usize {
    usize::try_from(index).unwrap_or(usize::MAX)
}

/// Waits until `moment`; forever for `None`.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
