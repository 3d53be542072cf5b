//! The watchers of the world: of one round, or of a conversation over all its rounds. They
//! disconnect at times and continue after the last event that they got.

use std::time::Duration;

use super::{
    people::People,
    world::{Observed, Watched},
};
use crate::{
    host::{EventsFrom, Reply},
    ids::{EventId, RoundId, Scope},
    stream::{EventKind, StreamEvent},
};

impl People {
    pub(super) async fn watch(&self, scope: Scope, reply: Reply) {
        let round = reply.round_id();
        let index = self.world.with(|facts| {
            let events = Vec::new();
            facts.watched.push(Watched {
                scope,
                round,
                events,
                has_ended: false,
                error: None,
            });
            facts.watched.len() - 1
        });
        self.follow(index, reply).await;
    }

    /// Watches a round that an earlier process did not end.
    pub(super) async fn watch_again(&self, index: usize) {
        let (scope, round, last) = self.cursor(index);
        let Ok(mut reply) = self.handle(&scope).watch(round) else {
            return;
        };
        if let Some(last) = last {
            reply = reply.after(last);
        }
        self.follow(index, reply).await;
    }

    fn cursor(&self, index: usize) -> (Scope, RoundId, Option<EventId>) {
        self.world.with(|facts| {
            let watched = &facts.watched[index];
            let last = watched.events.last().map(|(id, _)| *id);
            (watched.scope.clone(), watched.round, last)
        })
    }

    /// Reads events until the round has ended. Disconnects at times and continues after the last
    /// event.
    async fn follow(&self, index: usize, mut reply: Reply) {
        let dice = &self.world.people_dice;
        loop {
            let mut left = dice.between(1, 24);
            let mut was_silent = false;
            while left > 0 {
                let Some(event) = reply.next().await else {
                    was_silent = true;
                    break;
                };
                left -= 1;
                if self.take(index, &event) {
                    return;
                }
            }
            // A stream without an end: the host stops, or the conversation was erased.
            let pause = if was_silent {
                1000
            } else {
                dice.pick(&[0, 0, 5, 900])
            };
            tokio::time::sleep(Duration::from_millis(pause)).await;
            self.world.with(|facts| facts.figures.reconnects += 1);
            let (scope, round, last) = self.cursor(index);
            if was_silent && self.world.was_erased(&scope) {
                return;
            }
            if was_silent && !self.world.is_stopping() {
                let broken = format!("{scope} {round}: its stream ended without its last event");
                self.world.violated(broken);
            }
            let Ok(again) = self.handle(&scope).watch(round) else {
                return;
            };
            reply = match last {
                Some(last) => again.after(last),
                None => again,
            };
        }
    }

    /// Records an event. Returns whether it is the last one.
    fn take(&self, index: usize, event: &StreamEvent) -> bool {
        let ends = event.kind.ends_stream();
        let scope = self.world.with(|facts| {
            let watched = &mut facts.watched[index];
            let last = watched.events.last().map(|(id, _)| *id);
            watched.events.push((event.id, event.kind.is_durable()));
            watched.has_ended |= ends;
            if last.is_some_and(|last| last >= event.id) {
                let broken = format!(
                    "{} {}: event {} came after {}",
                    watched.scope,
                    watched.round,
                    event.id,
                    last.unwrap_or_default()
                );
                facts.violations.push(broken);
            }
            facts.watched[index].scope.clone()
        });
        let name = event.kind.name();
        self.world
            .log(format_args!("watcher {index} gets {} {name}", event.id));
        if let EventKind::Error { failure } = &event.kind {
            self.world
                .with(|facts| facts.watched[index].error = Some(failure.code.clone()));
        }
        if let EventKind::ApprovalRequired { tool_call_id, .. } = &event.kind
            && self.world.people_dice.percent(75)
        {
            self.approve(scope, tool_call_id.clone());
        }
        ends
    }

    /// Begins to watch a conversation from its start, over all its rounds.
    pub(super) fn observe(&self, scope: Scope) {
        let index = self.world.with(|facts| {
            let events = Vec::new();
            facts.observed.push(Observed { scope, events });
            facts.observed.len() - 1
        });
        let me = self.clone();
        tokio::spawn(async move { me.observe_again(index).await });
    }

    /// Goes on to watch a conversation for as long as the process lives.
    pub(super) async fn observe_again(&self, index: usize) {
        let dice = &self.world.people_dice;
        loop {
            let (scope, last) = self.world.with(|facts| {
                let Observed { scope, events } = &facts.observed[index];
                (
                    scope.clone(),
                    events.last().map(|(id, _)| *id).unwrap_or_default(),
                )
            });
            if self.world.was_erased(&scope) {
                return;
            }
            // The conversation may not exist yet, or the store is away.
            let Ok(mut events) = self.handle(&scope).events(EventsFrom::After(last)).await else {
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            };
            for _ in 0..dice.between(1, 40) {
                let Some(event) = events.next().await else {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    break;
                };
                self.world.log(format_args!(
                    "observer {index} gets {} {}",
                    event.id,
                    event.kind.name()
                ));
                if matches!(event.kind, EventKind::Snapshot { .. })
                    && !self.world.was_erased(&scope)
                {
                    self.world
                        .violated(format!("{scope}: a snapshot follows {last}"));
                }
                self.world.with(|facts| {
                    let observed = &mut facts.observed[index];
                    observed.events.push((event.id, event.kind.is_durable()));
                });
            }
            self.world.with(|facts| facts.figures.reconnects += 1);
            tokio::time::sleep(Duration::from_millis(dice.pick(&[0, 0, 5, 900]))).await;
        }
    }
}
