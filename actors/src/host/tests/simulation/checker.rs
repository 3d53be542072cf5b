//! The promises, checked after a run. The checker knows what clients, tools and the model saw, and
//! what the store holds; it knows nothing of the inside of a host.
//!
//! - An accepted prompt is not lost: it is in the journal once, and its round ended or was withdrawn.
//! - A prompt that is sent several times with one client key is accepted once.
//! - A refused prompt is not in the journal. A paused tenant accepts none (`people`).
//! - What was accepted before a deletion, a reset or the erasure of its tenant is gone after it.
//! - A prompt keeps its picture. An answer in a schema is one, or its round failed.
//! - No tool is started that the active skills exclude.
//! - Rounds begin in the order in which their prompts were accepted.
//! - A round begins once and ends once, one at a time, and none is open in the end.
//! - Each tool call gets exactly one result (in the journal here, in each request in `model`).
//! - A call of a tool whose effect happens at most once is started once, and no more calls of a
//!   batch run at once than permitted (`tools`).
//! - Requests to the model are valid, and hold words of one tenant only (`model`).
//! - Event ids rise over all reconnections, and a watcher gets each durable event exactly once.
//! - An inbox never holds more prompts than its bound, and no more model calls run than permitted.
//! - What a conversation has used and reserved stays within its budget when a call begins.
//! - A tenant has no more stored conversations, rounds at once and prompts under way than its
//!   quotas permit (the last two in `run`).
//! - In the end all permits and seats are free, no conversation is awake, and none has crashed
//!   (`run`).

use std::collections::{BTreeMap, BTreeSet};

use futures_util::FutureExt;

use super::{
    extras::ExtraFacts,
    world::{Answer, Facts, Sent, Watched, World},
};
use crate::{
    chat::{ContentBlock, Message, attachment::media_of, is_reminder},
    conversation::round::OnBusy,
    ids::{Epoch, EventId, RoundId, Scope, Seq, TenantId},
    journal::{Durable, Entry, EntryBody, project},
    ports::{ListQuery, SessionBackend},
};

/// What a journal says, in the words of its clients.
#[derive(Default)]
struct Account {
    /// The texts of prompts and injected messages, with the rounds that prompts open.
    texts: Vec<(String, Option<RoundId>)>,
    /// The texts of prompts with a picture.
    pictures: BTreeSet<String>,
    /// Rounds in the order of their beginning.
    started: Vec<RoundId>,
    finished: BTreeSet<RoundId>,
    withdrawn: BTreeSet<RoundId>,
    /// The durable events of each round.
    events: BTreeMap<RoundId, Vec<EventId>>,
    is_emptied: bool,
}

impl Account {
    fn note_picture(&mut self, world: &World, message: &Message) {
        let blocks = message.blocks();
        if blocks.iter().any(|block| media_of(block).is_some()) {
            self.pictures.insert(said(message));
            world.with(|facts| facts.figures.pictures += 1);
        }
    }
}

pub(super) fn check(world: &World) {
    let mut broken = Vec::new();
    let mut accounts = BTreeMap::new();
    for scope in scopes(world) {
        let account = judge(world, &scope, &mut broken);
        world.with(|facts| facts.figures.rounds += account.finished.len() as u64);
        accounts.insert(scope, account);
    }
    for number in 0..world.plan.tenants {
        let tenant: TenantId = format!("t-{number}").parse().unwrap();
        let stored = accounts
            .keys()
            .filter(|scope: &&Scope| scope.tenant == tenant && !scope.conversation.is_subagent());
        let (stored, max) = (stored.count() as u64, world.plan.conversations_max);
        if max.is_some_and(|max| stored > max) {
            broken.push(format!("{tenant} has {stored} conversations, {max:?} may"));
        }
    }
    world.with(|facts| {
        judge_prompts(world, facts, &accounts, &mut broken);
        judge_order(facts, &accounts, &mut broken);
        judge_watchers(facts, &accounts, &mut broken);
        if world.plan.store.rival == 0 || !world.plan.known.overtaken_rivals {
            judge_observers(facts, &accounts, &mut broken);
        }
    });
    broken.into_iter().for_each(|what| world.violated(what));
}

fn scopes(world: &World) -> Vec<Scope> {
    let mut scopes = Vec::new();
    for number in 0..world.plan.tenants {
        let tenant: TenantId = format!("t-{number}").parse().unwrap();
        let query = ListQuery {
            subagents: true,
            ..ListQuery::default()
        };
        let listed = world.sessions.list(&tenant, query).now_or_never();
        for row in listed.and_then(Result::ok).unwrap_or_default() {
            scopes.push(Scope::new(tenant.clone(), row.conversation));
        }
    }
    scopes
}

fn judge(world: &World, scope: &Scope, broken: &mut Vec<String>) -> Account {
    let mut account = Account::default();
    let stored = world
        .sessions
        .entries(scope, Seq(0), usize::MAX)
        .now_or_never();
    let mut state = Durable::default();
    let mut say = |what: String| broken.push(format!("{scope}: {what}"));
    let (mut prompts, mut open, mut epoch) = (BTreeMap::new(), None, Epoch(0));
    let (mut batch, mut results, mut used) = (Seq(0), BTreeSet::new(), 0);
    let mut extras = ExtraFacts::default();
    for stored in stored.and_then(Result::ok).unwrap_or_default() {
        let entry = match Entry::decode(&stored) {
            Ok(entry) => entry,
            Err(error) => {
                say(format!("entry {} does not decode: {error}", stored.seq));
                return account;
            }
        };
        if entry.seq != state.head.next() {
            say(format!("entry {} follows entry {}", entry.seq, state.head));
        }
        account.is_emptied |= matches!(entry.body, EntryBody::Emptied {});
        if !account.is_emptied && entry.epoch != epoch {
            let begins = matches!(entry.body, EntryBody::LifeStarted { .. });
            if !begins || entry.epoch < epoch {
                say(format!(
                    "epoch {} follows {epoch} without a new activation",
                    entry.epoch
                ));
            }
            epoch = entry.epoch;
        }
        let (round, kinds) = project(&scope.conversation, &state, &entry);
        for (n, kind) in (0..).zip(kinds) {
            if let Some(round) = round.filter(|_| kind.is_durable()) {
                let id = EventId {
                    epoch: entry.epoch,
                    seq: entry.seq,
                    n,
                };
                account.events.entry(round).or_default().push(id);
            }
        }
        extras.judge(world, &state, &entry.body, &mut say);
        match &entry.body {
            EntryBody::PromptAccepted {
                prompt_id,
                round_id,
                message,
                ..
            } => {
                if let Some(message) = message {
                    account.note_picture(world, message);
                    account.texts.push((said(message), Some(*round_id)));
                }
                if prompts.insert(*prompt_id, *round_id).is_some() {
                    say(format!("prompt {prompt_id} is accepted twice"));
                }
            }
            EntryBody::PromptWithdrawn { prompt_id, .. } => {
                account.withdrawn.extend(prompts.get(prompt_id));
            }
            EntryBody::RoundStarted { round_id, .. } => {
                if let Some(open) = open.replace(*round_id) {
                    say(format!("round {round_id} begins while {open} is open"));
                }
                if account.started.contains(round_id) {
                    say(format!("round {round_id} begins twice"));
                }
                account.started.push(*round_id);
            }
            EntryBody::RoundFinished { .. } => match open.take() {
                Some(round) => drop(account.finished.insert(round)),
                None => say("a round ends that is not open".to_owned()),
            },
            EntryBody::Injected { message, .. } => {
                account.note_picture(world, message);
                account.texts.push((said(message), None));
            }
            EntryBody::Assistant { .. } => batch = entry.seq,
            EntryBody::ToolFinished {
                call, tool_call_id, ..
            } if !results.insert((batch, *call)) => {
                say(format!("the call {tool_call_id} has two results"));
            }
            EntryBody::BudgetSettled { used_tokens, .. } => used += used_tokens,
            // A conversation that was reset begins with its whole budget.
            EntryBody::Reset {} => used = 0,
            EntryBody::ModelCallStarted { reserved, .. } => {
                if let Some(max) = world.plan.budget_tokens
                    && used + reserved > max
                {
                    say(format!(
                        "{used} tokens are used and {reserved} reserved of {max}"
                    ));
                }
            }
            EntryBody::Compacted { .. } => world.with(|facts| facts.figures.compactions += 1),
            _ => {}
        }
        if let Err(error) = state.apply(&entry) {
            say(format!("entry {} does not apply: {error}", entry.seq));
            return account;
        }
        let max = world.plan.limits.inbox_prompts_max;
        if state.inbox.len() > max {
            say(format!(
                "the inbox holds {} prompts, {max} may",
                state.inbox.len()
            ));
        }
    }
    if let Some(round) = &state.round {
        say(format!("round {} is open in the end", round.id));
    }
    if !state.inbox.is_empty() {
        say(format!("{} prompts wait in the end", state.inbox.len()));
    }
    account
}

/// The text of a message without what the kernel adds to it.
fn said(message: &Message) -> String {
    let blocks = message.blocks();
    let texts = blocks.iter().filter_map(ContentBlock::as_text);
    texts.filter(|text| !is_reminder(text)).collect()
}

/// Whether a prompt may be gone: its conversation was deleted or reset after it was sent.
fn may_be_gone(facts: &Facts, scope: &Scope, sent_at: u64) -> bool {
    facts
        .erased_at(scope)
        .is_some_and(|erased| sent_at <= erased)
}

/// Whether a prompt must be gone: a deletion that succeeded began after its answer. Another process,
/// or what a killed one wrote late, may bring a part back.
fn must_be_gone(world: &World, facts: &Facts, sent: &Sent) -> bool {
    let store = &world.plan.store;
    let is_alone = store.rival == 0 && !store.comes_late && store.lost_answer == 0;
    is_alone
        && !sent.answer.is_unknown()
        && facts
            .gone_before(&sent.scope)
            .is_some_and(|began| sent.answered_at < began)
}

fn judge_prompts(
    world: &World,
    facts: &Facts,
    accounts: &BTreeMap<Scope, Account>,
    broken: &mut Vec<String>,
) {
    let nothing = Account::default();
    for sent in &facts.sent {
        let account = accounts.get(&sent.scope).unwrap_or(&nothing);
        let found: Vec<_> = account
            .texts
            .iter()
            .filter(|(text, _)| *text == sent.text)
            .collect();
        if found.len() > 1 && !facts.clock_leapt {
            broken.push(format!(
                "`{}` is in the journal {} times",
                sent.text,
                found.len()
            ));
        }
        if !found.is_empty() && must_be_gone(world, facts, sent) {
            broken.push(format!("`{}` is there after a deletion", sent.text));
        }
        if !found.is_empty() && sent.has_picture != account.pictures.contains(&sent.text) {
            broken.push(format!("`{}` lost its picture, or got one", sent.text));
        }
        if may_be_gone(facts, &sent.scope, sent.sent_at) {
            continue;
        }
        match &sent.answer {
            Answer::Accepted { round, .. } => {
                if found.is_empty() {
                    broken.push(format!("`{}` was accepted and is lost", sent.text));
                } else if !account.finished.contains(round) && !account.withdrawn.contains(round) {
                    broken.push(format!(
                        "`{}` was accepted and round {round} never ended",
                        sent.text
                    ));
                }
            }
            Answer::Refused(code) if sent.sends == 1 && !sent.answer.is_unknown() => {
                if !found.is_empty() {
                    broken.push(format!(
                        "`{}` was refused ({code}) and is accepted",
                        sent.text
                    ));
                }
            }
            Answer::Refused(_) | Answer::Pending => {}
        }
    }
}

/// A prompt that was sent after another one was accepted opens a later round.
fn judge_order(facts: &Facts, accounts: &BTreeMap<Scope, Account>, broken: &mut Vec<String>) {
    let queued = facts.sent.iter().filter_map(|sent| match &sent.answer {
        Answer::Accepted { round, .. } if sent.on_busy == OnBusy::Queue => {
            let account = accounts.get(&sent.scope)?;
            let place = account
                .started
                .iter()
                .position(|started| started == round)?;
            (!may_be_gone(facts, &sent.scope, sent.sent_at)).then_some((sent, place))
        }
        _ => None,
    });
    let queued: Vec<_> = queued.collect();
    for (first, first_place) in &queued {
        for (second, second_place) in &queued {
            if first.scope == second.scope
                && first.answered_at < second.sent_at
                && first_place > second_place
            {
                broken.push(format!("`{}` began before `{}`", second.text, first.text));
            }
        }
    }
}

fn judge_watchers(facts: &Facts, accounts: &BTreeMap<Scope, Account>, broken: &mut Vec<String>) {
    for watched in &facts.watched {
        if facts.erased_at(&watched.scope).is_some() {
            continue;
        }
        let Some(account) = accounts.get(&watched.scope) else {
            broken.push(format!("{} was watched and is not stored", watched.scope));
            continue;
        };
        if let Some(fault) = fault(watched, account) {
            broken.push(format!(
                "{} round {}: {fault}",
                watched.scope, watched.round
            ));
        }
    }
}

/// Who watches a conversation over all its rounds gets every durable event once and in order.
fn judge_observers(facts: &Facts, accounts: &BTreeMap<Scope, Account>, broken: &mut Vec<String>) {
    for observed in &facts.observed {
        let Some(account) = accounts.get(&observed.scope) else {
            continue;
        };
        if facts.erased_at(&observed.scope).is_some() {
            continue;
        }
        if !observed.events.is_sorted_by(|(a, _), (b, _)| a < b) {
            broken.push(format!(
                "{}: its observer saw events out of order",
                observed.scope
            ));
        }
        let durable = observed.events.iter().filter(|(_, is_durable)| *is_durable);
        let seen: BTreeSet<EventId> = durable.map(|(id, _)| *id).collect();
        let stored: BTreeSet<EventId> = account.events.values().flatten().copied().collect();
        let missing: Vec<String> = stored.difference(&seen).map(ToString::to_string).collect();
        if !missing.is_empty() {
            broken.push(format!(
                "{}: its observer missed {missing:?}",
                observed.scope
            ));
        }
    }
}

fn fault(watched: &Watched, account: &Account) -> Option<String> {
    let durable = watched.events.iter().filter(|(_, is_durable)| *is_durable);
    let mut seen: Vec<EventId> = durable.map(|(id, _)| *id).collect();
    let stored = account
        .events
        .get(&watched.round)
        .cloned()
        .unwrap_or_default();
    if !watched.has_ended {
        return Some(format!(
            "its watcher never saw the end, only {seen:?} of {stored:?}"
        ));
    }
    if let Some(code) = &watched.error
        && seen.last().is_some_and(|last| !stored.contains(last))
    {
        // The stream ended with an error that is not in the journal: the round goes on without it.
        seen.pop();
        return (!stored.starts_with(&seen))
            .then(|| format!("its watcher saw {seen:?} of {stored:?} and then {code}"));
    }
    (seen != stored).then(|| format!("its watcher saw {seen:?}, not {stored:?}"))
}
