//! Runs a plan: starts processes, kills them, and brings the last one to rest.

use std::{
    sync::{Arc, Once},
    time::Duration,
};

use super::{
    bugs::Bug,
    checker, model,
    people::People,
    plan::{Act, Plan},
    schemas, skills,
    store::ProcessStore,
    tools,
    world::{Figures, World, WorldClock, WorldEntropy},
};
use crate::{
    conversation::round::rules::ApprovalMode,
    host::{Host, HostBuilder, TenantConfig},
    ids::Scope,
    journal::CallState,
    planted,
    policy::Budget,
    ports::SessionBackend,
    stream::Open,
    task,
    tenant::Quotas,
    tokens::TokenCounter,
};

/// The end of a run.
pub(super) struct Ended {
    pub(super) digest: u64,
    pub(super) trace: String,
    pub(super) violations: Vec<String>,
    pub(super) figures: Figures,
}

/// How a process ends.
enum End {
    Killed,
    Stopped,
    /// The plan is over, and everything is at rest.
    AtRest,
}

/// The longest time in which everything must come to rest once faults are over, in seconds.
const REST_MAX: u64 = 400;

pub(super) fn run(plan: Plan) -> Ended {
    task::in_tasks::set();
    panics::watch();
    planted::plant(plan.bug);
    let world = World::new(plan);
    let mut next = 0;
    loop {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let (end, store) = runtime.block_on(process(&world, &mut next));
        store.kill();
        drop(runtime);
        if matches!(end, End::AtRest) {
            break;
        }
    }
    planted::plant(None);
    checker::check(&world);
    for panic in panics::take() {
        world.violated(format!("a panic: {panic}"));
    }
    let (digest, trace) = world.trace();
    let (violations, figures) =
        world.with(|facts| (facts.violations.clone(), facts.figures.clone()));
    Ended {
        digest,
        trace,
        violations,
        figures,
    }
}

async fn build(world: &Arc<World>, process: u64, store: &Arc<ProcessStore>) -> Host {
    thread_local! {
        // Loading the tables of tokens takes long, and they never change.
        static TOKENS: Arc<TokenCounter> = Arc::default();
    }
    let plan = &world.plan;
    let mut limits = plan.limits.clone();
    if plan.bug == Some(Bug::OverfillsInbox) {
        limits.inbox_prompts_max += 1;
    }
    let clock = WorldClock(world.clone());
    let entropy = WorldEntropy::new(world, process);
    let host = HostBuilder::new(clock, entropy, |host| host)
        .shared_provider(model::model(world, process))
        .shared_sessions(store.clone())
        .tools(tools::tools(world, process))
        .schemas(Arc::new(schemas::Numbers))
        .subagents()
        .approval(ApprovalMode::Ask)
        .tokens(TOKENS.with(Arc::clone))
        .limits(limits)
        .budget(Budget {
            tokens: plan.budget_tokens,
            ..Budget::default()
        });
    let host = match plan.extras.has_skills {
        true => host.skills(skills::skills()),
        false => host,
    };
    let host = host.build().await.unwrap();
    for number in 0..plan.tenants {
        let quotas = Quotas {
            conversations_max: plan.conversations_max,
            ..Quotas::default()
        };
        let config = TenantConfig {
            quotas,
            ..TenantConfig::default()
        };
        let id = format!("t-{number}").parse().unwrap();
        host.configure_tenant(&id, config).await.unwrap();
    }
    host
}

/// One process: takes the plan up where the last one left it.
async fn process(world: &Arc<World>, next: &mut usize) -> (End, Arc<ProcessStore>) {
    let process = world.begin_process();
    let store = ProcessStore::new(world, process);
    tokio::spawn(store.clone().write());
    tokio::spawn(store.clone().come_late());
    let host = build(world, process, &store).await;
    let people = People {
        world: world.clone(),
        host,
    };
    come_back(&people).await;
    let end = follow_plan(&people, next).await;
    world.end_process();
    (end, store)
}

/// What happens at the start of a process: open rounds are resumed, and clients come back.
async fn come_back(people: &People) {
    let world = &people.world;
    if world.plan.bug != Some(Bug::LeavesRoundsOpen) {
        resume(people).await;
    }
    let (unsure, watched, fan_outs) = world.with(|facts| {
        let sent = facts.sent.iter().enumerate();
        let unsure = sent.filter(|(_, sent)| sent.answer.is_unknown() && sent.key.is_some());
        let watched = facts.watched.iter().enumerate();
        let watched = watched.filter(|(_, watched)| !watched.has_ended);
        let left = facts
            .fan_outs
            .iter()
            .filter(|begun| !begun.is_done)
            .cloned();
        (
            unsure.map(|(index, _)| index).collect::<Vec<_>>(),
            watched.map(|(index, _)| index).collect::<Vec<_>>(),
            left.collect::<Vec<_>>(),
        )
    });
    for index in unsure {
        let me = people.clone();
        tokio::spawn(async move { me.send(index).await });
    }
    for index in watched {
        let me = people.clone();
        tokio::spawn(async move { me.watch_again(index).await });
    }
    for index in 0..world.with(|facts| facts.observed.len()) {
        let me = people.clone();
        tokio::spawn(async move { me.observe_again(index).await });
    }
    for begun in fan_outs {
        let me = people.clone();
        tokio::spawn(async move { me.fan_out(begun.tenant, begun.name, begun.tasks).await });
    }
}

/// Resumes open rounds as a server does at its start: again and again while the store is away.
async fn resume(people: &People) {
    let me = people.clone();
    tokio::spawn(async move {
        while me.host.resume_interrupted().await.is_err() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
}

async fn follow_plan(people: &People, next: &mut usize) -> End {
    let world = &people.world;
    while let Some(step) = world.plan.steps.get(*next).copied() {
        check_bounds(people);
        let wait = step.at_ms.saturating_sub(world.now_ms());
        tokio::time::sleep(Duration::from_millis(wait)).await;
        *next += 1;
        match step.act {
            Act::Kill => {
                world.log(format_args!("killed"));
                world.with(|facts| facts.figures.kills += 1);
                return End::Killed;
            }
            Act::Restart { within } => {
                world.log(format_args!("restart within {within:?}"));
                world.with(|facts| facts.figures.restarts += 1);
                world.begin_shutdown();
                people.host.shutdown(within).await;
                return End::Stopped;
            }
            act => people.begin(act),
        }
    }
    come_to_rest(people).await;
    End::AtRest
}

/// Ends all faults, waits until nothing is open and everything sleeps, and checks what the host
/// still holds.
async fn come_to_rest(people: &People) {
    let world = &people.world;
    // A while longer with faults, so that what the last steps began meets them too.
    let away = world
        .plan
        .store
        .away
        .iter()
        .map(|(_, upto)| *upto)
        .max()
        .unwrap_or(0);
    let wait = away.saturating_sub(world.now_ms()) + world.people_dice.below(5000);
    tokio::time::sleep(Duration::from_millis(wait)).await;
    world.calm();
    world.log(format_args!("faults are over"));
    for number in 0..world.plan.tenants {
        people.pause(number, false);
    }
    let mut rested = 0;
    for second in 0..REST_MAX {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (running, parked) = (
            open(world, Open::Running).await,
            open(world, Open::Parked).await,
        );
        for scope in &parked {
            answer_approvals(people, scope).await;
        }
        erase_rest(people).await;
        if running.is_empty() && parked.is_empty() && people.host.awake() == 0 && has_ended(world) {
            rested += 1;
            if rested > 2 {
                break;
            }
            continue;
        }
        rested = 0;
        let helps = world.plan.known.orphaned_rounds && world.plan.bug.is_none();
        if helps && second > 90 && second % 10 == 0 && !running.is_empty() {
            let _ = people.host.resume_interrupted().await;
            world.log(format_args!("helped: orphaned rounds are resumed"));
            world.with(|facts| facts.figures.helped += 1);
        }
    }
    check_host(people).await;
}

/// Erases tenants again of which the store refused to erase a part.
async fn erase_rest(people: &People) {
    for number in people.world.with(|facts| facts.half_erased.clone()) {
        if let Err(error) = people.erase_tenant(number).await {
            let code = error.code();
            people
                .world
                .violated(format!("tenant {number} cannot be erased again: {code}"));
        }
    }
}

async fn open(world: &World, open: Open) -> Vec<Scope> {
    world
        .sessions
        .list_open(open, None, None, 0)
        .await
        .unwrap_or_default()
}

/// Whether all clients have seen an end.
fn has_ended(world: &World) -> bool {
    world.with(|facts| {
        let sent = facts
            .sent
            .iter()
            .all(|sent| sent.answer != super::world::Answer::Pending || sent.key.is_none());
        let watched = facts.watched.iter();
        let watched = watched
            .filter(|watched| facts.erased_at(&watched.scope).is_none())
            .all(|watched| watched.has_ended);
        sent && watched && facts.fan_outs.iter().all(|begun| begun.is_done)
    })
}

async fn answer_approvals(people: &People, scope: &Scope) {
    let talk = people
        .host
        .tenant(scope.tenant.clone())
        .conversation(scope.conversation.clone());
    let Ok(state) = talk.state().await else {
        return;
    };
    let calls = state
        .batch()
        .map(|batch| batch.calls.clone())
        .unwrap_or_default();
    for call in calls {
        if matches!(call.state, CallState::Asked { .. }) {
            let code = talk
                .approve(call.tool_use.id.clone(), true)
                .await
                .map_or_else(|error| error.code(), |()| "done");
            people
                .world
                .log(format_args!("late approval in {scope}: {code}"));
        }
    }
}

/// The bounds that hold at any time: of the gateway, of tenants, and of the number of conversations.
fn check_bounds(people: &People) {
    let (world, host) = (&people.world, &people.host);
    let limits = &world.plan.limits;
    let bound = |what: &str, is: usize, max: usize| {
        if is > max {
            world.violated(format!("{what}: {is}, {max} may"));
        }
    };
    for (_, status) in host.gateways() {
        bound("model calls run", status.running, limits.model_calls_max);
        bound("model calls wait", status.waiting, limits.model_waiting_max);
    }
    for number in 0..world.plan.tenants {
        let usage = host.tenant(format!("t-{number}")).usage().unwrap();
        // Tasks of fan-outs and of subagents take seats too, and wait instead of being refused.
        if !world.plan.has_subagents() {
            bound("prompts under way", usage.prompts, limits.tenant_seats_max);
        }
        bound("rounds run", usage.turns_running, limits.tenant_turns_max);
    }
}

/// What a host at rest holds: no permit, no seat, no waiting call, no activation, no crash.
async fn check_host(people: &People) {
    let (world, host) = (&people.world, &people.host);
    if host.awake() > 0 {
        let slots = host.figures().await.slots;
        world.violated(format!(
            "{} conversations are awake in the end: {slots:?}",
            host.awake()
        ));
    }
    for (name, status) in host.gateways() {
        if status.running > 0 || status.waiting > 0 {
            world.violated(format!(
                "the gateway {name} has {} calls running and {} waiting in the end",
                status.running, status.waiting
            ));
        }
    }
    for number in 0..world.plan.tenants {
        let seats = host
            .tenant(format!("t-{number}"))
            .prompts_under_way()
            .unwrap_or_default();
        if seats > 0 {
            world.violated(format!(
                "tenant {number} has {seats} seats taken in the end"
            ));
        }
    }
    let crashes = host.figures().await.total.crashes;
    // A deletion ends an activation that waits for the store, and that counts as a crash.
    if crashes > 0 && world.with(|facts| facts.erased.is_empty() && facts.tenants_erased.is_empty())
    {
        world.violated(format!("{crashes} conversations crashed"));
    }
    for begun in world.with(|facts| facts.fan_outs.clone()) {
        if begun.is_followed {
            world.violated(format!("fan-out {} has no end", begun.name));
        }
    }
    for scope in open(world, Open::Running).await {
        world.violated(format!("{scope} has an open round in the end"));
    }
    for scope in open(world, Open::Parked).await {
        world.violated(format!("{scope} waits for an approval in the end"));
    }
}

/// Panics on this thread: planned ones are silent, all others are collected.
mod panics {
    use std::cell::{Cell, RefCell};

    use super::Once;

    thread_local! {
        static WATCHED: Cell<bool> = const { Cell::new(false) };
        static SEEN: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) fn watch() {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let other = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                let text = info.to_string();
                if !WATCHED.get() {
                    other(info);
                } else if !text.contains("a planted panic of a tool") {
                    SEEN.with_borrow_mut(|seen| seen.push(text));
                }
            }));
        });
        WATCHED.set(true);
    }

    pub(super) fn take() -> Vec<String> {
        WATCHED.set(false);
        SEEN.take()
    }
}
