//! How much CPU does a turn cost over each compatible API and over MCP, beside the same turn over
//! the host's own route? And what does a webhook add?
//!
//! `callboard serve` and the model server run as processes of their own; the clients are in this
//! one. Only the CPU time of the host counts, from `/proc`. A turn is one model call whose answer
//! has 64 pieces; the journal is a SQLite file, each commit synced. 16 clients send one request
//! after the other. All rows of a part are measured in each round, in another order each time, and
//! the median is printed.
//!
//! - `single`: a conversation for one prompt, with no history and behind 10 earlier messages. A
//!   compatible API makes and erases it in one request. Over the own routes that takes a `PUT` for
//!   the history, the prompt, and a `DELETE`: `own`. `own, kept` makes no conversation: it is a
//!   prompt of the next part, printed for comparison.
//! - `kept`: prompts of a conversation that the host keeps, five after each other, so that it has
//!   10 messages at the end. Chat Completions send all messages each time, Responses name the one
//!   before. `webhook` is the own route with a call at the end of each round, which counts once its
//!   receiver has answered.
//!
//! `cargo bench --bench doors` prints CPU per turn, and the ratio to the own route, whole and
//! streamed. `-- single` and `-- kept` run one part; `--turns N`, `--rounds N`, `--clients N`,
//! `--door NAME` and `--mode streamed` choose. `--program PATH` measures another build of the program.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

#[path = "doors/clients.rs"]
mod clients;
#[path = "support/phases.rs"]
mod phases;
#[path = "support/process.rs"]
mod process;
#[path = "doors/program.rs"]
mod program;

use std::sync::Arc;

use clients::{Clients, Door, Row};
use phases::{arguments, is_wanted, median, number, runtime};
use program::Programs;

/// Earlier messages of a conversation for one prompt.
const EARLIER: [usize; 2] = [0, 10];

const MODES: [(&str, bool); 2] = [("whole", false), ("streamed", true)];

fn rows(doors: &[Door], is_kept: bool, streams: bool, earlier: usize) -> Vec<Row> {
    let wanted = doors
        .iter()
        .filter(|door| **door == Door::Own || is_wanted("--door", door.name()));
    wanted
        .map(|door| Row {
            door: *door,
            is_kept,
            streams,
            earlier,
        })
        .collect()
}

/// Measures the rows in alternation. The first is what the others are compared with.
async fn measure(programs: &Programs, clients: &Arc<Clients>, what: &str, rows: &[Row]) {
    let (turns, rounds) = (number("--turns", 2000), number("--rounds", 7));
    let mut costs = vec![Vec::new(); rows.len()];
    for round in 0..=rounds {
        for nth in 0..rows.len() {
            let at = (nth + round) % rows.len();
            let turns = if round == 0 { turns / 4 } else { turns };
            let before = programs.cpu_us();
            let (done, kept) = clients.run(rows[at], turns).await;
            let cost = (programs.cpu_us() - before) / done as f64;
            clients.delete(rows[at], kept).await;
            if round > 0 {
                costs[at].push(cost);
            }
        }
    }
    let own = median(costs[0].clone());
    for (row, costs) in rows.iter().zip(costs) {
        let least = costs.iter().copied().fold(f64::INFINITY, f64::min);
        let most = costs.iter().copied().fold(0.0, f64::max);
        let cost = median(costs);
        println!(
            "{what:>28} {:>10} {cost:>7.0} µs ({least:>4.0} to {most:>4.0}) {:>6.2}",
            row.name(),
            cost / own
        );
    }
}

fn main() {
    let arguments = arguments();
    let part = arguments.first().filter(|word| !word.starts_with("--"));
    let wanted = |name: &str| part.is_none_or(|part| part == name);
    println!("load {}", process::load());
    runtime().block_on(async {
        let hooks = clients::Receiver::start().await;
        let programs = Programs::start(&hooks.url);
        let clients = Arc::new(Clients::new(&programs, hooks, number("--clients", 16)));
        println!(
            "{:>28} {:>10} {:>10} {:>14} {:>6}",
            "", "door", "CPU", "", "ratio"
        );
        for (mode, streams) in MODES {
            if !is_wanted("--mode", mode) {
                continue;
            }
            for earlier in EARLIER.into_iter().filter(|_| wanted("single")) {
                let mut rows = rows(&Door::SINGLE, false, streams, earlier);
                if earlier == 0 {
                    rows.push(Row {
                        is_kept: true,
                        ..rows[0]
                    });
                }
                let what = format!("single, {earlier:>2} earlier, {mode}");
                measure(&programs, &clients, &what, &rows).await;
            }
            if wanted("kept") {
                let rows = rows(&Door::KEPT, true, streams, 0);
                measure(&programs, &clients, &format!("kept, {mode}"), &rows).await;
            }
        }
    });
}
