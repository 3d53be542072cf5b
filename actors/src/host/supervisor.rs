//! The top of the supervision tree: the host's supervisor and its children, which are the
//! supervisors of conversations, the compactor and the metrics collector.
//!
//! State: the identity of each child. A child that dies is replaced. The conversations of a dead
//! supervisor die with it: the drop of their leases informs the directory, which starts their next
//! activations under the new supervisor.

use std::{sync::Arc, time::Duration};

use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SupervisionEvent};

use super::directory::Directory;
use crate::{
    compactor::CompactorRef, limits::SUPERVISORS, metrics_collector::MetricsCollectorRef,
    ports::EventStore, task::AbortOnDrop,
};

/// How often the store is searched for parked conversations whose approval deadline has passed, and
/// what tenants with a budget have spent is stored.
const WAKE_DUE: Duration = Duration::from_secs(1);

/// How often expired events are removed.
const SWEEP_EVENTS: Duration = Duration::from_secs(1);

/// The mail of the host's supervisor, all of it from its own tickers.
pub(super) enum HostSupervisorMsg {
    /// Asks idle conversations to go to sleep.
    Sweep,
    /// Wakes parked conversations whose approval deadline has passed, tries a store that failed, and
    /// stores what tenants have spent.
    WakeDue,
    /// Removes expired events. It removes a part, and sends itself again if there is more.
    SweepEvents,
}

pub(super) struct HostSupervisor;

pub(super) struct HostSupervisorArgs {
    pub(super) directory: Arc<Directory>,
    pub(super) collector: MetricsCollectorRef,
    pub(super) compactor: CompactorRef,
    pub(super) events: Arc<dyn EventStore>,
    pub(super) idle: Duration,
    pub(super) sweep: Duration,
}

pub(super) struct State {
    args: HostSupervisorArgs,
    children: Vec<ActorCell>,
    collector: ActorCell,
    compactor: ActorCell,
    _tickers: [AbortOnDrop; 3],
}

impl Actor for HostSupervisor {
    type Msg = HostSupervisorMsg;
    type State = State;
    type Arguments = HostSupervisorArgs;

    async fn pre_start(
        &self,
        me: ActorRef<Self::Msg>,
        args: HostSupervisorArgs,
    ) -> Result<State, ActorProcessingErr> {
        let mut children = Vec::new();
        for index in 0..SUPERVISORS {
            let child = start_conversations(&me).await?;
            args.directory.set_supervisor(index, child.clone());
            children.push(child);
        }
        let collector = args.collector.start(me.get_cell()).await?;
        let compactor = args.compactor.start(me.get_cell()).await?;
        let tickers = [
            ticker(&me, args.sweep, || HostSupervisorMsg::Sweep),
            ticker(&me, WAKE_DUE, || HostSupervisorMsg::WakeDue),
            ticker(&me, SWEEP_EVENTS, || HostSupervisorMsg::SweepEvents),
        ];
        Ok(State {
            args,
            children,
            collector,
            compactor,
            _tickers: tickers,
        })
    }

    async fn handle(
        &self,
        me: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            HostSupervisorMsg::Sweep => state.args.directory.sweep(state.args.idle),
            HostSupervisorMsg::WakeDue => {
                state.args.directory.wake_due();
                state.args.directory.attend_store();
                state.args.directory.store_spending();
                state.args.directory.relieve_of_histories();
            }
            HostSupervisorMsg::SweepEvents => {
                if state.args.events.sweep() {
                    let _ = me.cast(HostSupervisorMsg::SweepEvents); // Fails only at the host's end.
                }
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        me: ActorRef<Self::Msg>,
        event: SupervisionEvent,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        let gone = match event {
            SupervisionEvent::ActorTerminated(who, _, _)
            | SupervisionEvent::ActorFailed(who, _) => who.get_id(),
            _ => return Ok(()),
        };
        if state.collector.get_id() == gone {
            state.collector = state.args.collector.start(me.get_cell()).await?;
        } else if state.compactor.get_id() == gone {
            state.compactor = state.args.compactor.start(me.get_cell()).await?;
        } else if let Some((index, child)) = state
            .children
            .iter_mut()
            .enumerate()
            .find(|(_, child)| child.get_id() == gone)
        {
            tracing::warn!(index, "a supervisor of conversations died and is replaced");
            *child = start_conversations(&me).await?;
            state.args.directory.set_supervisor(index, child.clone());
        }
        Ok(())
    }
}

fn ticker(
    me: &ActorRef<HostSupervisorMsg>,
    every: Duration,
    mail: fn() -> HostSupervisorMsg,
) -> AbortOnDrop {
    let me = me.clone();
    AbortOnDrop(tokio::spawn(async move {
        let mut interval = tokio::time::interval(every.max(Duration::from_millis(10)));
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            if me.cast(mail()).is_err() {
                return;
            }
        }
    }))
}

async fn start_conversations(
    me: &ActorRef<HostSupervisorMsg>,
) -> Result<ActorCell, ActorProcessingErr> {
    let (child, _) = Actor::spawn_linked(None, ConversationSupervisor, (), me.get_cell()).await?;
    Ok(child.get_cell())
}

/// Supervises conversations, so that a panic in one is logged and does not spread. It restarts
/// nothing: the directory does, when the lease of the dead activation is dropped.
struct ConversationSupervisor;

impl Actor for ConversationSupervisor {
    type Msg = ();
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<()>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<()>,
        event: SupervisionEvent,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        // The event carries the dead actor's boxed state. Only the error is read, and the state is
        // dropped here.
        if let SupervisionEvent::ActorFailed(_, error) = event {
            tracing::error!(%error, "a conversation crashed; its next life begins after a pause");
        }
        Ok(())
    }
}
