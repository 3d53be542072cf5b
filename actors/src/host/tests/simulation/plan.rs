//! A seed becomes a plan: the host's limits, how the model, the tools and the store behave, and what
//! people and operators do at which time.

use std::time::Duration;

use super::{bugs::Bug, dice::Dice};
use crate::{conversation::round::OnBusy, limits::Limits};

/// A conversation of the plan: tenant and conversation by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Who {
    pub(super) tenant: u64,
    pub(super) conversation: u64,
}

/// What happens at one point of the plan.
#[derive(Debug, Clone, Copy)]
pub(super) enum Act {
    Prompt {
        who: Who,
        on_busy: OnBusy,
        has_key: bool,
    },
    Interrupt(Who),
    Inject(Who),
    Pin(Who),
    Compact(Who),
    Rewind(Who),
    /// Copies the conversation into the one with the number `into`.
    Fork {
        who: Who,
        into: u64,
    },
    Reset(Who),
    Delete(Who),
    /// Watches a conversation over all its rounds.
    Observe(Who),
    /// Puts all idle conversations to sleep.
    Sleep,
    FanOut {
        tenant: u64,
        tasks: u64,
    },
    /// A person activates the skill with this number, or deactivates it.
    Skill {
        who: Who,
        number: u64,
        active: bool,
    },
    /// The tenant is paused, or its pause ends.
    Pause {
        tenant: u64,
        paused: bool,
    },
    /// Everything of the tenant is erased.
    EraseTenant(u64),
    /// The wall clock jumps, forward or back.
    ClockJumps {
        ms: i64,
    },
    /// The process is killed. The next one starts on the same store.
    Kill,
    /// The host shuts down within the time, and the next one starts.
    Restart {
        within: Duration,
    },
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) at_ms: u64,
    pub(super) act: Act,
}

/// How the model behaves, in percent of its calls.
#[derive(Debug, Clone, Copy)]
pub(super) struct ModelManners {
    pub(super) refused: u64,
    pub(super) broken: u64,
    pub(super) stalled: u64,
    pub(super) tools: u64,
    pub(super) subagents: u64,
    pub(super) slow: u64,
    pub(super) window: u32,
}

/// How the store behaves, in percent of its calls.
#[derive(Debug, Clone)]
pub(super) struct StoreManners {
    /// Whether appends pass a writer that takes time, or complete in the caller.
    pub(super) has_writer: bool,
    pub(super) slow: u64,
    pub(super) refused: u64,
    /// The entries are stored, but the answer says that the store is unavailable.
    pub(super) lost_answer: u64,
    /// Another process takes the conversation over just before the append.
    pub(super) rival: u64,
    pub(super) reads_refused: u64,
    /// Whether appends of a killed process may arrive when the next one runs.
    pub(super) comes_late: bool,
    /// From when to when the store refuses everything.
    pub(super) away: Vec<(u64, u64)>,
}

/// What a run has beside text, tools and conversations.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Extras {
    pub(super) has_skills: bool,
    /// In percent of prompts: those with a picture, and those that ask for an answer in a schema.
    pub(super) pictures: u64,
    pub(super) schemas: u64,
}

/// Bugs of the kernel that are known and not mended yet. The checker then helps where the kernel
/// does not.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Known {
    /// After a long absence of the store, or after another process wrote, an open round stays open
    /// until the next message or the next start of a host.
    pub(super) orphaned_rounds: bool,
    /// The event with which an activation reports that another process wrote may overtake the
    /// durable events of that process, so that who watches the conversation misses those.
    pub(super) overtaken_rivals: bool,
}

/// The plan of one run.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) tenants: u64,
    pub(super) limits: Limits,
    pub(super) conversations_max: Option<u64>,
    pub(super) budget_tokens: Option<u64>,
    pub(super) model: ModelManners,
    pub(super) store: StoreManners,
    /// In percent of calls: tools that fail, panic, or take long.
    pub(super) tool_faults: u64,
    pub(super) steps: Vec<Step>,
    pub(super) extras: Extras,
    pub(super) known: Known,
    pub(super) bug: Option<Bug>,
}

impl Plan {
    /// The plan of a seed.
    pub(super) fn new(seed: u64) -> Self {
        let plan = Self::plain(seed);
        let dice = Dice::new(seed, 7);
        if dice.percent(40) {
            return plan;
        }
        let percent = |p| if dice.percent(50) { p } else { 0 };
        let extras = Extras {
            has_skills: dice.percent(50),
            pictures: percent(40),
            schemas: percent(40),
        };
        let mut steps = plan.steps;
        more_steps(&dice, extras, plan.tenants, &mut steps);
        Self {
            steps,
            extras,
            ..plan
        }
    }

    /// The plan of a seed without skills, pictures, schemas, pauses and erasures.
    pub(super) fn plain(seed: u64) -> Self {
        let dice = Dice::new(seed, 1);
        // Most runs have one or two kinds of faults, so that a failure says what it comes from.
        let often = |p: u64, most: u64| {
            if dice.percent(p) {
                dice.between(1, most)
            } else {
                0
            }
        };
        let limits = limits(&dice);
        let (tenants, conversations) = (dice.between(1, 3), dice.between(1, 3));
        let model = ModelManners {
            refused: often(40, 30),
            broken: often(30, 25),
            stalled: often(20, 8),
            tools: if dice.percent(75) {
                dice.between(20, 70)
            } else {
                0
            },
            subagents: often(25, 20),
            slow: dice.between(10, 60),
            window: if dice.percent(25) {
                dice.between(2500, 6000) as u32
            } else {
                200_000
            },
        };
        let mut store = StoreManners {
            has_writer: dice.percent(75),
            slow: often(30, 20),
            refused: often(25, 12),
            lost_answer: often(25, 12),
            rival: often(12, 6),
            reads_refused: often(15, 15),
            comes_late: dice.percent(15),
            away: Vec::new(),
        };
        let steps = steps(&dice, tenants, conversations, store.rival > 0);
        let end = steps.last().map_or(0, |step| step.at_ms);
        if dice.percent(25) {
            let from = dice.below(end.max(1));
            let long = if dice.percent(30) {
                dice.between(60_000, 90_000)
            } else {
                dice.between(10, 20_000)
            };
            store.away.push((from, from + long));
        }
        Self {
            seed,
            tenants,

            limits,
            conversations_max: dice.percent(15).then(|| dice.between(1, 2)),
            budget_tokens: dice.percent(15).then(|| dice.between(2000, 20_000)),
            model,
            store,
            tool_faults: often(40, 30),
            steps,
            extras: Extras::default(),
            known: Known {
                orphaned_rounds: true,
                overtaken_rivals: true,
            },
            bug: None,
        }
    }

    /// Whether subagents or fan-outs may run.
    pub(super) fn has_subagents(&self) -> bool {
        let fans_out = |step: &Step| matches!(step.act, Act::FanOut { .. });
        self.model.subagents > 0 || self.steps.iter().any(fans_out)
    }

    pub(super) fn with_bug(self, bug: Bug) -> Self {
        Self {
            bug: Some(bug),
            ..self
        }
    }
}

fn limits(dice: &Dice) -> Limits {
    let seconds = |from, upto| Duration::from_secs(dice.between(from, upto));
    Limits {
        tool_iterations_max: dice.between(2, 6) as u32,
        parallel_tools_max: dice.between(1, 4) as usize,
        subagents_a_round_max: dice.between(1, 3) as usize,
        inbox_prompts_max: dice.between(1, 4) as usize,
        held_mail_max: dice.between(4, 32) as usize,
        tenant_turns_max: dice.between(1, 4) as usize,
        tenant_seats_max: dice.between(3, 16) as usize,
        model_calls_max: dice.between(1, 6) as usize,
        model_waiting_max: dice.between(2, 16) as usize,
        idle: seconds(1, 12),
        idle_conversations_max: dice.between(1, 8) as usize,
        sweep: seconds(1, 5),
        flush: Duration::from_millis(dice.pick(&[0, 0, 30])),
        model_first_byte: seconds(3, 10),
        model_idle: seconds(3, 8),
        model_total: seconds(15, 30),
        ring_bytes: dice.pick(&[2048, 16 * 1024, 256 * 1024]),
        ring_age: seconds(2, 60),
        ..Limits::default()
    }
}

fn steps(dice: &Dice, tenants: u64, conversations: u64, has_rival: bool) -> Vec<Step> {
    let count = dice.between(6, 24);
    let kills = dice.pick(&[0, 0, 5, 12]);
    let mut at_ms = 0;
    let mut steps = Vec::new();
    for _ in 0..count {
        at_ms += match dice.below(10) {
            0..5 => dice.below(60),
            5..9 => dice.below(2500),
            _ => dice.between(3000, 15_000),
        };
        let who = Who {
            tenant: dice.below(tenants),
            conversation: dice.below(conversations),
        };
        let act = match dice.below(100) {
            0..48 => prompt(dice, who),
            48..52 => Act::Observe(who),
            52..58 => Act::Interrupt(who),
            58..63 => Act::Inject(who),
            63..65 => Act::Pin(who),
            65..68 => Act::Compact(who),
            68..71 => Act::Rewind(who),
            71..75 => Act::Fork {
                who,
                into: dice.between(10, 12),
            },
            75..77 => Act::Reset(who),
            77..80 => Act::Delete(who),
            80..85 => Act::Sleep,
            85..88 => Act::FanOut {
                tenant: who.tenant,
                tasks: dice.between(1, 5),
            },
            88..90 => Act::ClockJumps {
                ms: dice.pick(&[-3_600_000, 3_600_000, 31_536_000_000]),
            },
            n if n < 90 + kills.min(6) => Act::Kill,
            n if n < 90 + kills => Act::Restart {
                within: Duration::from_millis(dice.below(3000)),
            },
            _ => prompt(dice, who),
        };
        steps.push(Step { at_ms, act });
    }
    if has_rival {
        // The other process is gone, and what it left open waits for the start of a host.
        at_ms += 1;
        steps.push(Step {
            at_ms,
            act: Act::Kill,
        });
    }
    steps
}

/// Adds the steps of people with skills, and of an operator who pauses and erases tenants. The last
/// step stays the last.
fn more_steps(dice: &Dice, extras: Extras, tenants: u64, steps: &mut Vec<Step>) {
    let end = steps.last().map_or(0, |step| step.at_ms);
    let mut more = Vec::new();
    let mut at = |act| {
        let at_ms = dice.below(end);
        more.push(Step { at_ms, act });
        at_ms
    };
    if extras.has_skills {
        for _ in 0..dice.between(1, 4) {
            let (tenant, conversation) = (dice.below(tenants), dice.below(3));
            at(Act::Skill {
                who: Who {
                    tenant,
                    conversation,
                },
                number: dice.below(3),
                active: dice.percent(70),
            });
        }
    }
    if dice.percent(50) {
        for _ in 0..dice.between(1, 3) {
            let (tenant, paused) = (dice.below(tenants), dice.percent(65));
            at(Act::Pause { tenant, paused });
        }
    }
    if dice.percent(35) {
        at(Act::EraseTenant(dice.below(tenants)));
    }
    let last = steps.pop();
    steps.extend(more);
    steps.sort_by_key(|step| step.at_ms);
    steps.extend(last);
}

fn prompt(dice: &Dice, who: Who) -> Act {
    let on_busy = match dice.below(10) {
        0 => OnBusy::Reject,
        1 => OnBusy::Interrupt,
        2 | 3 => OnBusy::Steer,
        _ => OnBusy::Queue,
    };
    Act::Prompt {
        who,
        on_busy,
        has_key: dice.percent(80),
    }
}
