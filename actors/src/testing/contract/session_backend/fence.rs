//! An exhaustive explorer of the fence: two hosts, one conversation, every order of load, append,
//! pause, take-over, resumption, release and deletion.
//!
//! An append is first in flight and reaches the store at any later step, so a host that is paused
//! between the two is one of the orders. States are explored once, breadth first, so the report of a
//! broken rule is a shortest one. The rules are judged by what the store did, not by how it decides:
//!
//! - An append passes only at the end of the journal that its activation knows.
//! - No append of an activation passes after one of another activation, or after a deletion.
//! - No append passes while another host that is alive owns the conversation.
//! - An append that none of these refuses passes.
//! - The journal holds every entry that was acknowledged, and no other.

use std::{
    collections::{HashSet, VecDeque},
    fmt::Debug,
    sync::Arc,
};

use super::{entry, scope, write};
use crate::{
    ids::{Epoch, Scope, Seq},
    journal::Head,
    ports::{AppendExt as _, BoxFuture, SessionBackend},
    stream::Open,
};

/// Two hosts on one store, whose lives the explorer decides.
pub struct FenceHosts {
    /// The hosts. Changes of one host take effect in their order.
    pub hosts: [Arc<dyn SessionBackend>; 2],
    /// Makes the others take a host for alive, or for dead.
    pub set_alive: Box<dyn Fn(usize, bool) -> BoxFuture<'static, ()>>,
    /// A name for conversations that no other exploration of the store uses.
    pub name: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Action {
    /// A host loads the conversation to own it.
    Load(usize),
    /// Its activation sends an append, which is in flight until it arrives.
    Send(usize),
    /// The oldest change in flight of a host reaches the store.
    Arrive(usize),
    /// The activation ends, and its host gives the conversation up.
    Sleep(usize),
    /// The host deletes the conversation.
    Delete(usize),
    /// The host is silent for too long, or says again that it is there.
    Alive(usize, bool),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Activation {
    number: u32,
    /// The end of the journal as the activation knows it.
    head: Head,
    epoch: u64,
    /// Deletions of the conversation before it was loaded.
    deletions: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Flight {
    Append(Activation),
    Release,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Local {
    active: Option<Activation>,
    flights: VecDeque<Flight>,
}

/// What happened so far.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    hosts: [Local; 2],
    alive: [bool; 2],
    head: Head,
    /// The host whose append passed last, until it gave the conversation up.
    owner: Option<usize>,
    /// Activations whose appends passed, in order.
    passed: Vec<u32>,
    loads: u32,
    deletions: u32,
}

impl World {
    fn new() -> Self {
        Self {
            hosts: Default::default(),
            alive: [true; 2],
            head: Head::default(),
            owner: None,
            passed: Vec::new(),
            loads: 0,
            deletions: 0,
        }
    }

    fn actions(&self, bounds: &FenceBounds) -> Vec<Action> {
        let mut actions = Vec::new();
        for host in [0, 1] {
            let Local { active, flights } = &self.hosts[host];
            let has_room = flights.len() < bounds.in_flight;
            let known = active.map_or(0, |active| active.head.seq.0);
            if active.is_none() {
                actions.push(Action::Load(host));
            }
            if active.is_some() && has_room && known < bounds.entries {
                actions.push(Action::Send(host));
            }
            if active.is_some() && has_room {
                actions.push(Action::Sleep(host));
            }
            if !flights.is_empty() {
                actions.push(Action::Arrive(host));
            } else if self.head != Head::default() && self.deletions < bounds.deletions {
                actions.push(Action::Delete(host));
            }
            actions.push(Action::Alive(host, !self.alive[host]));
        }
        actions
    }

    /// The same state whatever led to it: activations are numbered as they are found.
    fn key(&self) -> Self {
        let mut key = self.clone();
        let mut names: Vec<u32> = Vec::new();
        let last = key.passed.last().copied();
        let mut name = |number: &mut u32| {
            let place = names.iter().position(|known| known == number);
            let place = place.unwrap_or_else(|| {
                names.push(*number);
                names.len() - 1
            });
            *number = u32::try_from(place).unwrap();
        };
        let mut living = Vec::new();
        for local in &mut key.hosts {
            let flights = local.flights.iter_mut().filter_map(|flight| match flight {
                Flight::Append(activation) => Some(activation),
                Flight::Release => None,
            });
            for activation in local.active.iter_mut().chain(flights) {
                living.push(activation.number);
                name(&mut activation.number);
            }
        }
        // Of those that passed, only the last and those that can still append matter.
        key.passed
            .retain(|number| Some(*number) == last || living.contains(number));
        key.passed.dedup();
        key.passed.iter_mut().for_each(name);
        key.loads = 0;
        key
    }
}

/// How far [`explore_fence`] goes.
#[derive(Debug, Clone, Copy)]
pub struct FenceBounds {
    /// Entries of the journal, as an activation knows it.
    pub entries: u64,
    /// Changes of a host in flight at a time.
    pub in_flight: usize,
    /// Deletions of the conversation.
    pub deletions: u32,
}

/// Explores every order within the bounds; returns the number of states.
///
/// # Errors
/// The shortest order that breaks a rule, and the rule.
pub async fn explore_fence(hosts: &FenceHosts, bounds: FenceBounds) -> Result<usize, String> {
    let mut seen = HashSet::from([World::new().key()]);
    let mut next = VecDeque::from([(World::new(), Vec::new())]);
    let (mut runs, mut alive) = (0, [true; 2]);
    while let Some((world, path)) = next.pop_front() {
        for action in world.actions(&bounds) {
            let mut path: Vec<Action> = path.clone();
            path.push(action);
            runs += 1;
            let mut run = Run::new(hosts, runs);
            let after = run.all(&path, alive).await;
            let after = after.map_err(|rule| format!("{rule}, after {path:?}"))?;
            alive = after.alive;
            if seen.insert(after.key()) {
                next.push_back((after, path));
            }
        }
    }
    Ok(seen.len())
}

/// One order on a conversation of its own.
struct Run<'a> {
    hosts: &'a FenceHosts,
    scope: Scope,
    world: World,
    acknowledged: Vec<String>,
}

impl<'a> Run<'a> {
    fn new(hosts: &'a FenceHosts, number: usize) -> Self {
        Self {
            hosts,
            scope: scope("fence", &format!("{}-{number}", hosts.name)),
            world: World::new(),
            acknowledged: Vec::new(),
        }
    }

    /// Takes all actions; `alive` is what the run before left behind.
    async fn all(&mut self, path: &[Action], alive: [bool; 2]) -> Result<World, String> {
        for host in [0, 1] {
            if !alive[host] {
                (self.hosts.set_alive)(host, true).await;
            }
        }
        for action in path {
            self.take(*action).await?;
        }
        let stored = self.hosts.hosts[0].entries(&self.scope, Seq(0), 100).await;
        let stored = stored.map_err(unexpected)?;
        let stored = stored
            .iter()
            .map(|entry| String::from_utf8_lossy(&entry.bytes));
        match stored.eq(self.acknowledged.iter().map(String::as_str)) {
            true => Ok(self.world.clone()),
            false => Err("the journal is not what was acknowledged".into()),
        }
    }

    async fn take(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Load(host) => self.load(host).await?,
            Action::Send(host) => {
                let local = &mut self.world.hosts[host];
                if let Some(active) = &mut local.active {
                    local.flights.push_back(Flight::Append(*active));
                    active.head = after(active);
                }
            }
            Action::Arrive(host) => match self.world.hosts[host].flights.pop_front() {
                Some(Flight::Append(append)) => self.append(host, append).await?,
                Some(Flight::Release) => self.release(host).await?,
                None => {}
            },
            Action::Sleep(host) => {
                let local = &mut self.world.hosts[host];
                local.active = None;
                local.flights.push_back(Flight::Release);
            }
            Action::Delete(host) => {
                let deleted = self.hosts.hosts[host].delete(&self.scope).await;
                deleted.map_err(unexpected)?;
                self.acknowledged.clear();
                self.world.deletions += 1;
                (self.world.head, self.world.owner) = (Head::default(), None);
            }
            Action::Alive(host, alive) => {
                (self.hosts.set_alive)(host, alive).await;
                self.world.alive[host] = alive;
            }
        }
        Ok(())
    }

    async fn load(&mut self, host: usize) -> Result<(), String> {
        let loaded = self.hosts.hosts[host].load_to_own(&self.scope).await;
        let other = self.other_owner(host);
        match loaded {
            Err(_) if other => {}
            Err(error) => return Err(unexpected(error)),
            Ok(_) if other => return Err("a host loads what another one owns".into()),
            Ok(loaded) => {
                self.world.loads += 1;
                self.world.hosts[host].active = Some(Activation {
                    number: self.world.loads,
                    head: loaded.head,
                    deletions: self.world.deletions,
                    // As a host does: a new journal begins at the time, a loaded one at the next.
                    epoch: match loaded.head == Head::default() {
                        true => 10 * u64::from(self.world.deletions) + 1,
                        false => loaded.head.epoch.0 + 1,
                    },
                });
            }
        }
        Ok(())
    }

    /// Whether another host that is alive owns the conversation.
    fn other_owner(&self, host: usize) -> bool {
        let owner = self.world.owner;
        owner.is_some_and(|owner| owner != host && self.world.alive[owner])
    }

    async fn append(&mut self, host: usize, append: Activation) -> Result<(), String> {
        let text = format!(
            "{{\"by\":{},\"n\":{}}}",
            append.number,
            append.head.seq.0 + 1
        );
        let entries = vec![entry(append.head.seq.0 + 1, text.clone())];
        let epoch = Epoch(append.epoch);
        let store = &self.hosts.hosts[host];
        let stored = store
            .append_and_wait(&self.scope, append.head, epoch, entries, Open::None)
            .await;
        let world = &self.world;
        let passed = world.passed.contains(&append.number);
        let is_stale = passed && world.passed.last() != Some(&append.number)
            || append.deletions != world.deletions;
        let is_owner = world.owner == Some(host);
        let begins = append.epoch != append.head.epoch.0;
        let may_pass = append.head == world.head
            && !is_stale
            && (is_owner || begins && !self.other_owner(host));
        match stored.is_ok() {
            true if is_stale => return Err("a stale append passed".into()),
            true if self.other_owner(host) => return Err("two hosts own the journal".into()),
            true if append.head != world.head => return Err("an append passed elsewhere".into()),
            false if may_pass => return Err(format!("an append was refused: {stored:?}")),
            true => {
                self.acknowledged.push(text);
                self.world.head = after(&append);
                self.world.owner = Some(host);
                self.world.passed.retain(|number| *number != append.number);
                self.world.passed.push(append.number);
            }
            false => {
                let active = &mut self.world.hosts[host].active;
                *active = active.filter(|active| active.number != append.number);
            }
        }
        Ok(())
    }

    async fn release(&mut self, host: usize) -> Result<(), String> {
        let store = &*self.hosts.hosts[host];
        store.release(&self.scope);
        // Takes effect before the next change of the host is answered.
        let other = scope("fence", &format!("{}-then", self.scope.conversation));
        drop(write(store, &other, Head::default(), 1, 1).await);
        if self.world.owner == Some(host) {
            self.world.owner = None;
        }
        Ok(())
    }
}

/// The end of the journal after an append, of which the activation goes out.
fn after(append: &Activation) -> Head {
    Head {
        epoch: Epoch(append.epoch),
        seq: Seq(append.head.seq.0 + 1),
    }
}

fn unexpected(error: impl Debug) -> String {
    format!("the store failed: {error:?}")
}
