//! What would a turn pay if the directory, the gateway and the tenants were actors, and what does it
//! pay because figures come to an actor by message?
//!
//! Seats of a limited number are taken and given back: behind a short lock, and by an actor that is
//! asked with a call and gets the return with a cast. A figure is added: with an atomic counter, and
//! by a cast. The twenty figures of a turn are added: to counters, and by one cast that has all of
//! them. One task, or many at once, on a runtime with two workers.
//!
//! `cargo bench --bench mailbox` prints CPU and wall-clock time for each, medians of rounds.
//! `-- --times N`, `--rounds N`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

#[path = "support/phases.rs"]
mod phases;
#[path = "support/process.rs"]
mod process;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use phases::{Side, measure, number, runtime};
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};

/// As many as every task can hold at once.
const SEATS: u64 = 4096;

/// About as many figures as a turn adds.
const FIGURES: usize = 20;

enum Ask {
    Seat(RpcReplyPort<bool>),
    GiveBack,
    Add(u64),
    AddAll(Box<[u64; FIGURES]>),
}

struct Seats;

impl Actor for Seats {
    type Msg = Ask;
    type State = (u64, u64);
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<Ask>, (): ()) -> Result<(u64, u64), ActorProcessingErr> {
        Ok((0, 0))
    }

    async fn handle(
        &self,
        _: ActorRef<Ask>,
        message: Ask,
        (taken, added): &mut (u64, u64),
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Ask::Seat(reply) => {
                let is_free = *taken < SEATS;
                *taken += u64::from(is_free);
                let _ = reply.send(is_free);
            }
            Ask::GiveBack => *taken -= 1,
            Ask::Add(figure) => *added += figure,
            Ask::AddAll(figures) => *added += figures.iter().sum::<u64>(),
        }
        Ok(())
    }
}

/// Runs `work` `times` times in all, spread over `lanes` tasks.
async fn spread<F: Future<Output = ()> + Send + 'static>(
    lanes: usize,
    times: usize,
    work: impl Fn() -> F + Clone + Send + 'static,
) -> usize {
    let each = times / lanes;
    let tasks = (0..lanes).map(|_| {
        let work = work.clone();
        tokio::spawn(async move {
            for _ in 0..each {
                work().await;
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    stream::iter(tasks)
        .for_each(async |task| task.await.unwrap())
        .await;
    each * lanes
}

/// Returns when the actor has handled every earlier message.
async fn handled(actor: &ActorRef<Ask>) {
    assert!(ractor::call!(actor, Ask::Seat).unwrap());
    actor.cast(Ask::GiveBack).unwrap();
}

async fn row(lanes: usize, times: usize, rounds: usize) {
    let lock = Arc::new(Mutex::new(0_u64));
    let counters: Arc<[AtomicU64; FIGURES]> = Arc::new(std::array::from_fn(|_| AtomicU64::new(0)));
    let (actor, ended) = Actor::spawn(None, Seats, ()).await.unwrap();
    let [mut locked, mut called, mut counted, mut cast] = std::array::from_fn(|_| Side::default());
    let [mut all_counted, mut all_cast] = std::array::from_fn(|_| Side::default());
    for _ in 0..rounds {
        let seats = lock.clone();
        locked.add(
            measure(spread(lanes, times, move || {
                let seats = seats.clone();
                async move {
                    let took = {
                        let mut taken = seats.lock();
                        let is_free = *taken < SEATS;
                        *taken += u64::from(is_free);
                        is_free
                    };
                    assert!(took);
                    tokio::task::yield_now().await;
                    *seats.lock() -= 1;
                }
            }))
            .await,
        );
        let seats = actor.clone();
        called.add(
            measure(spread(lanes, times, move || {
                let seats = seats.clone();
                async move {
                    assert!(ractor::call!(seats, Ask::Seat).unwrap());
                    tokio::task::yield_now().await;
                    seats.cast(Ask::GiveBack).unwrap();
                }
            }))
            .await,
        );
        let figures = counters.clone();
        counted.add(
            measure(spread(lanes, times, move || {
                figures[0].fetch_add(1, Ordering::Relaxed);
                std::future::ready(())
            }))
            .await,
        );
        let figures = counters.clone();
        all_counted.add(
            measure(spread(lanes, times, move || {
                for figure in &*figures {
                    figure.fetch_add(1, Ordering::Relaxed);
                }
                std::future::ready(())
            }))
            .await,
        );
        let figures = actor.clone();
        cast.add(
            measure(async {
                let done = spread(lanes, times, move || {
                    figures.cast(Ask::Add(1)).unwrap();
                    std::future::ready(())
                })
                .await;
                handled(&actor).await;
                done
            })
            .await,
        );
        let figures = actor.clone();
        all_cast.add(
            measure(async {
                let done = spread(lanes, times, move || {
                    figures.cast(Ask::AddAll(Box::new([1; FIGURES]))).unwrap();
                    std::future::ready(())
                })
                .await;
                handled(&actor).await;
                done
            })
            .await,
        );
    }
    let [locked, called, counted, cast, all_counted, all_cast] =
        [locked, called, counted, cast, all_counted, all_cast].map(|side| side.median());
    println!(
        "{lanes:>6} {:>9.3} {:>9.3} {:>9.3} {:>9.3} {:>9.4} {:>9.3} {:>9.4} {:>9.3}",
        locked.cpu_us(),
        called.cpu_us(),
        locked.wall_us(),
        called.wall_us(),
        counted.cpu_us(),
        cast.cpu_us(),
        all_counted.cpu_us(),
        all_cast.cpu_us(),
    );
    actor.stop(None);
    ended.await.unwrap();
}

fn main() {
    let (times, rounds) = (number("--times", 200_000), number("--rounds", 5));
    println!(
        "µs each; a seat taken and given back: lock and actor; a figure, and the {FIGURES} of a turn, \
         added: counter and cast"
    );
    println!(
        "{:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "tasks", "lock CPU", "actor", "lock wall", "actor", "counter", "cast", "all", "all cast"
    );
    runtime().block_on(async {
        for lanes in [1, 64, 1000] {
            row(lanes, times, rounds).await;
        }
    });
}
