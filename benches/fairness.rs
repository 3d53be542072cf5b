//! Does a tenant that floods the host take capacity from the others, and how does a host behave at
//! ten times its capacity?
//!
//! In process: a scripted model takes 100 ms per call behind a gateway with 64 concurrent calls, so
//! the capacity is 640 calls per second. First, 19 tenants offer 60 % of their share each, open
//! loop, with staggered starts: alone, and then beside a 20th that offers 50 times its share, all
//! with prompts of 300 bytes. Then all 20 have more to do than the capacity, even ones with prompts
//! of 3 KB and odd ones with 30 bytes, for the Jain index over served tokens by weight: with equal
//! weights, and with weights 1 to 4. Last, all tenants offer the capacity, then ten times the
//! capacity, then 60 % of it: served calls, resident memory, and when latency is back to normal.
//! Each tenant may have as many waiting prompts as are served in three seconds.
//!
//! `cargo bench --bench fairness` prints the victims' served/offered and p99 with and without the
//! flooder, how fast the flooder is refused, the Jain indices, and CPU. `-- --seconds N` changes
//! the length of a run from 20 s, `-- --calls N` the concurrent calls.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

#[path = "support/process.rs"]
mod process;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use callboard::{
    clock::{SystemClock, SystemEntropy},
    ids::TenantId,
    limits::Limits,
    ports::Capabilities,
};
use callboard_actors::{
    Host, HostBuilder,
    host::TenantConfig,
    scripted::{Reply, ScriptedModel},
    tenant::Quotas,
};
use parking_lot::Mutex;

const TENANTS: usize = 20;
const CALL: Duration = Duration::from_millis(100);

/// Prompts of one tenant between admission and answer; more are refused.
const SEATS: usize = 512;

fn model() -> ScriptedModel {
    let capabilities = Capabilities {
        context_window: 200_000,
        output_max: 1024,
        tools: false,
        output_schema: false,
        counts_tokens: false,
        images: false,
        documents: false,
        request_bytes_max: None,
        thinking: false,
    };
    let reply = Reply::text("t".repeat(200)).after(CALL);
    ScriptedModel::always(reply)
        .named("bench")
        .capabilities(capabilities)
        .without_record()
}

async fn host(calls: usize, weight: impl Fn(usize) -> u32) -> Host {
    host_of(calls, |tenant| Quotas {
        weight: weight(tenant),
        ..Quotas::default()
    })
    .await
}

async fn host_of(calls: usize, quotas: impl Fn(usize) -> Quotas) -> Host {
    let limits = Limits {
        model_calls_max: calls,
        tenant_seats_max: SEATS,
        ..Limits::default()
    };
    let host = HostBuilder::new(SystemClock, SystemEntropy, |host| host)
        .provider(model())
        .model("m")
        .limits(limits)
        .build()
        .await
        .unwrap();
    for tenant in 0..TENANTS {
        let tenant_config = TenantConfig::new().quotas(quotas(tenant));
        host.configure_tenant(&TenantId::new(name(tenant)).unwrap(), tenant_config)
            .await
            .unwrap();
    }
    host
}

fn name(tenant: usize) -> String {
    format!("tenant-{tenant}")
}

/// Bytes of a prompt where all tenants send the same size, so that a share of calls is a share of
/// tokens.
const ALIKE: usize = 300;

/// Bytes of a tenant's prompts where sizes differ.
fn unlike(tenant: usize) -> usize {
    if tenant.is_multiple_of(2) { 3000 } else { 30 }
}

/// Conversations of a tenant in overload and backlog.
const CONVERSATIONS: usize = 200;

/// The results of one tenant.
#[derive(Default)]
struct Seen {
    offered: u64,
    served: u64,
    tokens: u64,
    latencies: Vec<Duration>,
    refusals: Vec<Duration>,
}

type Seens = Arc<Vec<Mutex<Seen>>>;

/// Sends one prompt to a new conversation and waits for its end.
async fn turn(host: &Host, tenant: usize, number: u64, bytes: usize, seen: &Mutex<Seen>) {
    seen.lock().offered += 1;
    let began = Instant::now();
    let conversation = host
        .tenant(name(tenant))
        .conversation(format!("c-{number}"));
    match conversation.send("p".repeat(bytes)).await {
        Ok(mut reply) => {
            let end = reply.outcome().await;
            let mut seen = seen.lock();
            if let Ok(end) = end
                && end.error.is_none()
            {
                seen.served += 1;
                seen.tokens += end.usage.input() + end.usage.output;
                seen.latencies.push(began.elapsed());
            }
        }
        Err(_) => seen.lock().refusals.push(began.elapsed()),
    }
}

/// Sends `rate` prompts per second, regardless of their results.
async fn open_loop(host: Host, tenant: usize, rate: f64, length: Duration, seens: Seens) {
    let between = Duration::from_secs_f64(1.0 / rate);
    // Staggered starts: prompts of all tenants at the same instant would form a queue without any
    // flood.
    let mut tick = tokio::time::interval_at(
        tokio::time::Instant::now() + between.mul_f64(tenant as f64 / TENANTS as f64),
        between,
    );
    let began = Instant::now();
    let mut number = 0;
    while began.elapsed() < length {
        tick.tick().await;
        number += 1;
        let host = host.clone();
        let seens = seens.clone();
        tokio::spawn(async move { turn(&host, tenant, number, ALIKE, &seens[tenant]).await });
    }
}

fn seens() -> Seens {
    Arc::new((0..TENANTS).map(|_| Mutex::default()).collect())
}

fn percentile(mut times: Vec<Duration>, part: f64) -> f64 {
    times.sort();
    let at = ((times.len() as f64 * part) as usize).min(times.len().saturating_sub(1));
    times
        .get(at)
        .map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
}

/// Runs victims at 60 % of their share, with or without a flooder. Returns served/offered and the
/// p99 in ms.
fn flood(calls: usize, length: Duration, flooded: bool) -> (f64, f64) {
    let share = calls as f64 / CALL.as_secs_f64() / TENANTS as f64;
    let cpu = process::cpu();
    let seens = seens();
    runtime().block_on(async {
        let host = host(calls, |_| 1).await;
        let victims = (1..TENANTS)
            .map(|tenant| open_loop(host.clone(), tenant, share * 0.6, length, seens.clone()));
        let flooder =
            flooded.then(|| open_loop(host.clone(), 0, share * 50.0, length, seens.clone()));
        futures_util::future::join_all(victims.map(tokio::spawn).chain(flooder.map(tokio::spawn)))
            .await;
        tokio::time::sleep(Duration::from_secs(1)).await; // for turns under way
    });
    let victims: Vec<_> = seens
        .iter()
        .skip(1)
        .map(|seen| std::mem::take(&mut *seen.lock()))
        .collect();
    let offered: u64 = victims.iter().map(|seen| seen.offered).sum();
    let served: u64 = victims.iter().map(|seen| seen.served).sum();
    let ratio = served as f64 / offered as f64;
    let p99 = percentile(
        victims
            .into_iter()
            .flat_map(|seen| seen.latencies)
            .collect(),
        0.99,
    );
    let spent = process::cpu() - cpu;
    println!(
        "{:<22} victims served/offered {ratio:.3} of {offered}, p99 {p99:.0} ms, CPU {spent:.1?}",
        if flooded { "beside a flooder" } else { "alone" }
    );
    if flooded {
        let flooder = std::mem::take(&mut *seens[0].lock());
        let refused = flooder.refusals.len();
        let median = percentile(flooder.refusals.clone(), 0.5);
        let most = percentile(flooder.refusals, 1.0);
        println!(
            "{:<22} offered {}, served {}, refused {refused} in {median:.2} ms (median), {most:.1} ms (most)",
            "the flooder", flooder.offered, flooder.served
        );
    }
    (ratio, p99)
}

/// Offers prompts of all tenants at `times` the capacity. Returns the calls served per second, and
/// the latencies of the turns by the second in which they were offered.
async fn offer(
    host: &Host,
    calls: usize,
    times: f64,
    length: Duration,
) -> (f64, Vec<Vec<Duration>>) {
    let rate = calls as f64 / CALL.as_secs_f64() * times;
    let began = Instant::now();
    let seconds: Arc<Vec<Mutex<Vec<Duration>>>> =
        Arc::new((0..=length.as_secs()).map(|_| Mutex::default()).collect());
    let served = Arc::new(AtomicU64::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..(rate * length.as_secs_f64()) as u64 {
        let due = began + Duration::from_secs_f64(number as f64 / rate);
        tokio::time::sleep_until(due.into()).await;
        while tasks.try_join_next().is_some() {}
        let host = host.clone();
        let seconds = seconds.clone();
        let served = served.clone();
        tasks.spawn(async move {
            let tenant = number as usize % TENANTS;
            // Conversations are reused, so that only waiting prompts can grow memory.
            let conversation = host
                .tenant(name(tenant))
                .conversation(format!("o-{}", number as usize / TENANTS % CONVERSATIONS));
            let Ok(mut reply) = conversation.send("p".repeat(ALIKE)).await else {
                return;
            };
            if reply.outcome().await.is_ok_and(|end| end.error.is_none()) {
                served.fetch_add(u64::from(began.elapsed() <= length), Ordering::Relaxed);
                seconds[due.duration_since(began).as_secs() as usize]
                    .lock()
                    .push(due.elapsed());
            }
        });
    }
    tokio::time::sleep_until((began + length).into()).await;
    let goodput = served.load(Ordering::Relaxed) as f64 / length.as_secs_f64();
    if times <= 1.0 {
        while tasks.join_next().await.is_some() {}
    } else {
        tasks.detach_all(); // they keep waiting while less is offered
    }
    (
        goodput,
        seconds
            .iter()
            .map(|second| std::mem::take(&mut *second.lock()))
            .collect(),
    )
}

/// Offers ten times the capacity.
fn overload(calls: usize, length: Duration) {
    let waiting = calls as f64 / CALL.as_secs_f64() / TENANTS as f64 * 3.0;
    runtime().block_on(async {
        let quotas = Quotas {
            prompts_max: Some(waiting as usize),
            ..Quotas::default()
        };
        let host = host_of(calls, |_| quotas).await;
        let (_, normal) = offer(&host, calls, 0.6, length).await;
        let normal = percentile(normal.concat(), 0.99);
        let (peak, _) = offer(&host, calls, 1.0, length).await;
        let mut resident = Vec::new();
        let over = tokio::spawn({
            let host = host.clone();
            async move { offer(&host, calls, 10.0, length).await.0 }
        });
        while !over.is_finished() {
            tokio::time::sleep(Duration::from_millis(500)).await;
            resident.push(process::resident());
        }
        let goodput = over.await.unwrap();
        let after = offer(&host, calls, 0.6, Duration::from_secs(15)).await.1;
        let settled = after.iter().position(|second| {
            !second.is_empty() && percentile(second.clone(), 0.99) <= normal * 1.5
        });
        let mib = |at: usize| {
            resident
                .get(at)
                .map_or(f64::NAN, |bytes| *bytes as f64 / 1048576.0)
        };
        println!(
            "{:<22} {goodput:.0} served a second of {peak:.0} at the peak: {:.2} (promised 0.8)",
            "ten times the capacity",
            goodput / peak
        );
        println!(
            "{:<22} {:.0} MiB after a third of it, {:.0} MiB at its end",
            "",
            mib(resident.len() / 3),
            mib(resident.len() - 1)
        );
        println!(
            "{:<22} p99 {normal:.0} ms before; as before {settled:?} s after its end (promised 10)",
            ""
        );
    });
}

/// Runs all tenants with more work than the capacity. Returns the Jain index over served tokens by
/// weight, counted once a queue has formed: the first callers take every free slot.
fn backlog(calls: usize, length: Duration, weight: impl Fn(usize) -> u32 + Copy) -> f64 {
    let seens = seens();
    let tokens = || {
        seens
            .iter()
            .map(|seen| seen.lock().tokens)
            .collect::<Vec<u64>>()
    };
    let (before, after) = runtime().block_on(async {
        let host = host(calls, weight).await;
        for tenant in 0..TENANTS {
            for worker in 0..calls as u64 {
                let host = host.clone();
                let seens = seens.clone();
                tokio::spawn(async move {
                    for number in 0.. {
                        turn(
                            &host,
                            tenant,
                            worker << 32 | number,
                            unlike(tenant),
                            &seens[tenant],
                        )
                        .await;
                    }
                });
            }
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
        let before = tokens();
        tokio::time::sleep(length).await;
        (before, tokens())
    });
    let served = after
        .iter()
        .zip(&before)
        .map(|(after, before)| (after - before) as f64);
    let shares: Vec<f64> = served
        .enumerate()
        .map(|(tenant, served)| served / f64::from(weight(tenant)))
        .collect();
    let sum = shares.iter().sum::<f64>();
    let squares = shares.iter().map(|share| share * share).sum::<f64>();
    sum * sum / (TENANTS as f64 * squares)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

fn argument(flag: &str, usual: u64) -> u64 {
    let arguments: Vec<String> = std::env::args().collect();
    let at = arguments.iter().position(|argument| argument == flag);
    at.and_then(|at| arguments.get(at + 1))
        .map_or(usual, |value| value.parse().unwrap())
}

fn main() {
    let length = Duration::from_secs(argument("--seconds", 20));
    let calls = argument("--calls", 64) as usize;
    println!("{TENANTS} tenants, {calls} calls at once of {CALL:?}, {length:?} a run");
    let (_, alone) = flood(calls, length, false);
    let (ratio, beside) = flood(calls, length, true);
    println!(
        "{:<22} {ratio:.3} served (promised 0.9), p99 x {:.2} (promised 1.5)",
        "noisy neighbor",
        beside / alone
    );
    println!(
        "{:<22} {:.4} (promised 0.95)",
        "Jain, equal weights",
        backlog(calls, length, |_| 1)
    );
    println!(
        "{:<22} {:.4}",
        "Jain, weights 1 to 4",
        backlog(calls, length, |tenant| 1 + tenant as u32 % 4)
    );
    overload(calls, length);
}
