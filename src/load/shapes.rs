//! The kinds of runs: which crowds run in which phases, and what is reported.

use std::{sync::Arc, time::Duration};

use super::{
    LoadError, Plan, Progress, Report, Shape, Target,
    drive::{Crowd, Ran, phase},
    fan_out,
    report::{Figures, Idle, Long, Noisy},
    turn::Turn,
};

/// Time for memory to settle before it is measured.
const SETTLE: Duration = Duration::from_secs(1);

/// How often idle conversations are asked to sleep. If some stay awake, no figure is reported.
const SLEEP_TRIES: u32 = 30;

/// Conversations that `idle` creates concurrently.
const AT_ONCE: usize = 256;

/// Runs a plan against a target.
///
/// # Errors
/// [`LoadError`].
pub(crate) async fn run(
    plan: &Plan,
    target: Target,
    progress: Arc<Progress>,
) -> Result<Report, LoadError> {
    let target = Arc::new(target);
    let before = resident(&target, plan);
    let mut report = match plan.shape {
        Shape::Turns => turns(plan, &target, &progress).await?,
        Shape::Fanout => fan_out::run(plan, &target, &progress).await?,
        Shape::Long => long(plan, &target, &progress).await?,
        Shape::Idle => idle(plan, &target, &progress).await?,
        Shape::Noisy => noisy(plan, &target, &progress).await?,
    };
    report.resident_before = before;
    report.resident_after = resident(&target, plan);
    if let Target::Host(host) = &*target {
        host.shutdown(Duration::from_secs(2)).await;
    }
    Ok(report)
}

/// Resident bytes of the process that holds the conversations.
fn resident(target: &Target, plan: &Plan) -> Option<u64> {
    target.process(plan)?.resident()
}

fn everyone(plan: &Plan) -> Crowd {
    Crowd {
        name: "all",
        tenants: 0..plan.tenants,
        conversations: plan.conversations,
        rate: plan.rate,
    }
}

async fn turns(
    plan: &Plan,
    target: &Arc<Target>,
    progress: &Arc<Progress>,
) -> Result<Report, LoadError> {
    let ran = phase(plan, target, progress, "turns", &[everyone(plan)]).await?;
    Ok(Report::new(plan, Figures::of(&ran, 0)))
}

/// Runs the same conversations for a tenth of their turns at a time. Only their length changes from
/// the first tenth to the last.
async fn long(
    plan: &Plan,
    target: &Arc<Target>,
    progress: &Arc<Progress>,
) -> Result<Report, LoadError> {
    const PARTS: usize = 10;
    let part = Plan {
        turns: plan.turns.div_ceil(PARTS),
        duration: None,
        warm_up: Duration::ZERO,
        ..plan.clone()
    };
    let crowd = [Crowd {
        rate: None,
        ..everyone(plan)
    }];
    let mut all = phase(&part, target, progress, "long", &crowd).await?;
    let first = Figures::of(&all, 0);
    let mut last = first.clone();
    for _ in 1..PARTS {
        // The same names in every part, so that the conversations continue.
        let ran = phase(&part, target, progress, "long", &crowd).await?;
        last = Figures::of(&ran, 0);
        all.absorb(&ran);
    }
    let mut report = Report::new(plan, Figures::of(&all, 0));
    report.long = Some(Long {
        turns_a_part: part.turns,
        first_p50_ms: first.latency_ms.map(|latency| latency.p50),
        last_p50_ms: last.latency_ms.map(|latency| latency.p50),
        first_cpu_us: first.cpu_us_per_turn,
        last_cpu_us: last.cpu_us_per_turn,
    });
    Ok(report)
}

async fn idle(
    plan: &Plan,
    target: &Arc<Target>,
    progress: &Arc<Progress>,
) -> Result<Report, LoadError> {
    // One warm-up turn, so that one-time costs are not attributed to conversations.
    let warm = Turn {
        tenant: 0,
        conversation: format!("{}-warm", plan.run),
        id: u64::MAX,
        cancel: false,
    };
    target.turn(&warm).await;
    tokio::time::sleep(SETTLE).await;
    let before = resident(target, plan);

    let mut all: Option<Ran> = None;
    for made in (0..plan.conversations).step_by(AT_ONCE) {
        let now = Plan {
            run: format!("{}-{made}", plan.run),
            turns: 1,
            duration: None,
            warm_up: Duration::ZERO,
            ..plan.clone()
        };
        let conversations = (plan.conversations - made).min(AT_ONCE);
        let crowd = Crowd {
            name: "one",
            tenants: 0..plan.tenants,
            conversations,
            rate: None,
        };
        let ran = phase(&now, target, progress, "idle", &[crowd]).await?;
        match &mut all {
            Some(all) => all.absorb(&ran),
            None => all = Some(ran),
        }
    }
    tokio::time::sleep(SETTLE).await;
    let each = |now: Option<u64>| Some((now? as f64 - before? as f64) / plan.conversations as f64);
    let idle_bytes = each(resident(target, plan));
    let asleep_bytes = match &**target {
        Target::Host(host) => {
            for _ in 0..SLEEP_TRIES {
                host.hibernate_idle();
                // Give conversations time to fall asleep: a request during closing would restart
                // them.
                tokio::time::sleep(SETTLE).await;
                if host.awake() == 0 {
                    break;
                }
            }
            each(resident(target, plan)).filter(|_| host.awake() == 0)
        }
        Target::Remote(_) => None,
    };
    let mut report = Report::new(
        plan,
        all.map(|all| Figures::of(&all, 0)).unwrap_or_default(),
    );
    report.idle = Some(Idle {
        conversations: plan.conversations,
        idle_bytes,
        asleep_bytes,
    });
    Ok(report)
}

/// Runs the quiet tenants alone, then beside one that floods.
async fn noisy(
    plan: &Plan,
    target: &Arc<Target>,
    progress: &Arc<Progress>,
) -> Result<Report, LoadError> {
    let others = plan.tenants.saturating_sub(1).max(1);
    // Without a rate the quiet tenants use half of what the model can serve.
    let rate = plan
        .rate
        .or(plan.capacity().map(|turns| turns / 2.0))
        .unwrap_or(100.0);
    let each = (plan.conversations / plan.tenants.max(1)).max(1);
    let quiet = Crowd {
        name: "quiet",
        tenants: 1..others + 1,
        conversations: each * others,
        rate: Some(rate),
    };
    let flood = Crowd {
        name: "flood",
        tenants: 0..1,
        conversations: each,
        rate: Some(rate / others as f64 * plan.flood),
    };
    let alone = phase(
        plan,
        target,
        progress,
        "alone",
        std::slice::from_ref(&quiet),
    )
    .await?;
    let beside = phase(plan, target, progress, "beside", &[quiet, flood]).await?;
    let quiet_alone = Figures::of(&alone, 0);
    let quiet_beside = Figures::of(&beside, 0);
    let flooder = Figures::of(&beside, 1);
    let mut report = Report::new(plan, quiet_beside.clone());
    report.noisy = Some(Noisy::new(plan.flood, quiet_alone, &quiet_beside, flooder));
    Ok(report)
}
