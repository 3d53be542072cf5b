//! Cuts a scripted round before and after every append and every effect. The next activation loses
//! nothing and repeats nothing.

use std::{io::Write as _, sync::Arc};

use super::{
    Rng, Seed,
    people::rules,
    store::Fault,
    world::{Cut, Reply, World},
};
use crate::{
    chat::{ContentBlock, ProviderStop, RawJson, ToolUseBlock},
    conversation::{
        Command, Consent,
        round::{
            Input, ModelOutcome, OnBusy,
            rules::{ApprovalMode, Recovery, Rules},
        },
    },
    journal::{CallState, Entry, EntryBody},
    policy::{Budget, Price, Pricing},
    ports::Completion,
    stream::StopReason,
    tool_executor::RunResult,
};

/// What happens in the round besides its three parallel tools and its approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    Plain,
    /// Canceled while the model answers.
    InModel,
    /// Canceled while the tools run; all of them end within the grace period.
    InTools,
    /// Canceled while the tools run; one does not end within the grace period.
    PastGrace,
    /// Canceled while an approval is awaited.
    Parked,
    /// Rewound after its end.
    Rewound,
    /// In a conversation that started as a fork.
    Forked,
}

const VARIANTS: [Variant; 7] = [
    Variant::Plain,
    Variant::InModel,
    Variant::InTools,
    Variant::PastGrace,
    Variant::Parked,
    Variant::Rewound,
    Variant::Forked,
];

fn completed(blocks: Vec<ContentBlock>, stop: ProviderStop) -> ModelOutcome {
    ModelOutcome::Completed {
        blocks,
        completion: Completion {
            stop,
            raw_stop: None,
            usage: None,
            raw_usage: None,
        },
        has_memory: true,
    }
}

/// A call of each effect class, and one that needs approval.
fn calls() -> ModelOutcome {
    let call = |name: &str| {
        let input = RawJson::from_text(r#"{"path":"a"}"#).unwrap();
        ContentBlock::ToolUse(ToolUseBlock {
            id: format!("call of {name}"),
            name: name.into(),
            input,
        })
    };
    let blocks = vec![
        ContentBlock::text("let me see"),
        call("read"),
        call("put"),
        call("send"),
        call("pay"),
    ];
    completed(blocks, ProviderStop::ToolUse)
}

fn answer() -> ModelOutcome {
    completed(
        vec![ContentBlock::text("that is 10")],
        ProviderStop::EndTurn,
    )
}

fn output() -> RunResult {
    RunResult::Output("done".into())
}

impl World {
    /// Grants an open reservation of the tenant's budget.
    fn grant(&mut self) -> Result<(), Cut> {
        match self.activations[0].reserves.pop() {
            Some(work) => self.input(
                0,
                Input::Budget {
                    work,
                    answer: Ok(()),
                },
            ),
            None => Ok(()),
        }
    }

    /// The store takes all appends, and the activation is notified of each.
    fn flush(&mut self) -> Result<(), Cut> {
        while !self.store.queue.is_empty()
            || !self.activations[0].notices.is_empty()
            || !self.activations[0].reserves.is_empty()
        {
            self.grant()?;
            if !self.store.queue.is_empty() {
                self.store_works(Fault::None)?;
            }
            self.deliver(0)?;
        }
        Ok(())
    }

    fn tool_by_name(&mut self, name: &str, result: RunResult) -> Result<(), Cut> {
        let place = self.activations[0]
            .tools
            .iter()
            .position(|tool| tool.spec.name() == name)
            .expect("it runs");
        self.tool_ends(0, place, result)?;
        self.flush()
    }

    fn interrupt(&mut self) -> Result<(), Cut> {
        let waiter = self.waiter();
        self.command(0, Command::Interrupt, waiter)?;
        self.flush()
    }

    fn allow(&mut self, tool_call_id: &str) -> Result<(), Cut> {
        let waiter = self.waiter();
        self.command(
            0,
            Command::Approve {
                round_id: None,
                tool_call_id: tool_call_id.into(),
                answer: Consent::Once,
            },
            waiter,
        )?;
        self.flush()
    }

    fn fixed_turn(&mut self, variant: Variant) -> Result<(), Cut> {
        self.activate(Recovery::Resume)?;
        if variant == Variant::Forked {
            let waiter = self.waiter();
            self.fork(0, waiter)?;
            self.flush()?;
        }
        self.prompt(0, Some("key"), OnBusy::Queue, "body", None)?;
        self.flush()?;
        if variant == Variant::InModel {
            self.interrupt()?;
            self.model_ends(
                0,
                0,
                ModelOutcome::Cancelled {
                    partial: vec![ContentBlock::text("let")],
                },
            )?;
            return self.flush();
        }
        self.model_ends(0, 0, calls())?;
        self.flush()?;
        match variant {
            Variant::InTools => {
                self.interrupt()?;
                self.tool_by_name("read", output())?;
                self.tool_by_name("put", RunResult::Cancelled)?;
                return self.tool_by_name("send", output());
            }
            Variant::PastGrace => {
                self.interrupt()?;
                self.tool_by_name("read", output())?;
                let round_id = self.activations[0].graces.remove(0);
                self.input(0, Input::GraceOver { round_id })?;
                return self.flush();
            }
            Variant::Plain
            | Variant::Parked
            | Variant::InModel
            | Variant::Rewound
            | Variant::Forked => {}
        }
        for name in ["read", "put", "send"] {
            self.tool_by_name(name, output())?;
        }
        if variant == Variant::Parked {
            return self.interrupt();
        }
        self.allow("call of pay")?;
        self.tool_by_name("pay", output())?;
        self.model_ends(0, 0, answer())?;
        self.flush()?;
        if variant == Variant::Rewound {
            let waiter = self.waiter();
            self.rewind(0, waiter)?;
        }
        self.flush()
    }

    /// Brings everything that is open to its end.
    fn finish(&mut self) -> Result<(), Cut> {
        for _ in 0..100 {
            self.flush()?;
            let activation = &mut self.activations[0];
            let asked = activation.durable.batch().and_then(|batch| {
                batch
                    .calls
                    .iter()
                    .find(|call| matches!(call.state, CallState::Asked { .. }))
            });
            if let Some(id) = asked.map(|call| call.tool_use.id.clone()) {
                self.allow(&id)?;
            } else if !activation.tools.is_empty() {
                self.tool_ends(0, 0, output())?;
            } else if !activation.models.is_empty() {
                // A model that has not answered yet calls its tools first.
                let fresh = activation.durable.round.as_ref().is_some_and(|round| {
                    round.assistant_messages.is_empty() && round.model_calls == 1
                });
                self.model_ends(0, 0, if fresh { calls() } else { answer() })?;
            } else {
                return Ok(());
            }
        }
        panic!(
            "the round does not end: {:?}",
            self.activations[0].durable.round
        );
    }

    /// A client without a receipt sends its prompt again under the same key.
    fn ask_again(&mut self) -> Result<(), Cut> {
        let answered = self
            .sent
            .iter()
            .any(|sent| matches!(self.replies.get(&sent.waiter), Some(Reply::Acknowledged(_))));
        if answered {
            Ok(())
        } else {
            self.prompt(0, Some("key"), OnBusy::Queue, "body", None)
        }
    }
}

fn careful(budgeted: bool) -> Rules {
    let budget = if budgeted {
        Budget::default().with_tokens(8000).with_usd(1.0)
    } else {
        Budget::default()
    };
    let price = Price::per_million(3.0, 15.0);
    let pricing = Arc::new(Pricing {
        budget,
        price,
        fixed_bytes: 100,
        max_tokens: 100,
        window_tokens: 1000,
        ..Pricing::default()
    });
    let rules = Rules {
        pricing,
        ..rules(&mut Rng::new(0))
    };
    let limits = Rules {
        tool_iterations_max: 25,
        parallel_tools_max: 16,
        inbox_prompts_max: 64,
        ..rules
    };
    Rules {
        approval: ApprovalMode::Ask,
        has_approver: true,
        ..limits
    }
}

/// A world with a budget for the conversation and its tenant, or without any budget.
fn world(cut_at: Option<usize>, budgeted: bool) -> World {
    let mut world = World::new(7, careful(budgeted));
    world.tenant = budgeted;
    world.cut_at = cut_at;
    world.trace = std::env::var_os("CALLBOARD_SEED").is_some();
    world
}

fn entries(world: &World) -> Vec<EntryBody> {
    world
        .store
        .entries
        .iter()
        .map(|stored| Entry::decode(stored).expect("readable").body)
        .collect()
}

/// What holds after the activation that follows a cut has ended everything open.
fn check_after(world: &mut World, recovery: Recovery, was_open: bool) {
    let bodies = entries(world);
    let accepted = bodies
        .iter()
        .filter(|body| matches!(body, EntryBody::PromptAccepted { .. }))
        .count();
    let ends: Vec<StopReason> = bodies
        .iter()
        .filter_map(|body| {
            if let EntryBody::RoundFinished { stop_reason, .. } = body {
                Some(*stop_reason)
            } else {
                None
            }
        })
        .collect();
    assert_eq!(
        (accepted, ends.len()),
        (1, 1),
        "the prompt is there once and its round ends once"
    );
    if recovery == Recovery::Close && was_open {
        assert_eq!(ends, [StopReason::Interrupted], "what was open is closed");
    }

    world
        .prompt(0, Some("next"), OnBusy::Queue, "body", None)
        .unwrap();
    world.flush().unwrap();
    world.model_ends(0, 0, answer()).unwrap();
    world.flush().unwrap();
    let last = entries(world).pop();
    assert!(
        matches!(
            last,
            Some(EntryBody::RoundFinished {
                stop_reason: StopReason::EndTurn,
                ..
            })
        ),
        "the conversation goes on"
    );
    world.judge();
}

fn recover(world: &mut World, recovery: Recovery) -> Result<(), Cut> {
    world.activate(recovery)?;
    world.ask_again()?;
    world.finish()
}

fn is_open(world: &World) -> bool {
    let open = |body: &EntryBody| matches!(body, EntryBody::RoundStarted { .. });
    let bodies = entries(world);
    bodies.iter().any(open)
        && !bodies
            .iter()
            .any(|body| matches!(body, EntryBody::RoundFinished { .. }))
}

#[test]
fn a_round_survives_a_crash_at_every_append_and_every_effect() {
    let mut report = Vec::new();
    for (variant, budgeted) in VARIANTS
        .into_iter()
        .flat_map(|variant| [(variant, false), (variant, true)])
    {
        let mut whole = world(None, budgeted);
        whole.fixed_turn(variant).expect("nothing is cut");
        whole.judge();
        assert!(!is_open(&whole), "{variant:?} ends by itself");
        let has = |kind: &str| entries(&whole).iter().any(|body| body.kind() == kind);
        assert_eq!(
            (has("rewound"), has("forked")),
            (variant == Variant::Rewound, variant == Variant::Forked)
        );
        let points = whole.points;
        assert!(points >= 9, "{variant:?} has {points} points");
        report.push((variant, points));
        for n in 1..=points {
            for recovery in [Recovery::Resume, Recovery::Close] {
                let _seed = Seed(n as u64);
                let mut world = world(Some(n), budgeted);
                assert_eq!(world.fixed_turn(variant), Err(Cut), "{variant:?} {n}");
                world.cut_at = None;
                world.crash(0);
                let was_open = is_open(&world);

                recover(&mut world, recovery).expect("nothing is cut");

                check_after(&mut world, recovery, was_open);
            }
        }
    }
    let _ = writeln!(
        std::io::stderr(),
        "cut at each of {report:?} points, resumed and closed"
    );
}

#[test]
fn an_activation_that_recovers_survives_a_crash_at_every_append_and_every_effect() {
    let points = |n: usize| {
        let mut world = world(Some(n), true);
        (world.fixed_turn(Variant::Plain) == Err(Cut)).then(|| {
            world.cut_at = None;
            world.crash(0);
            world.points = 0;
            world
        })
    };
    let mut worlds = 0;
    for n in (1..).take_while(|n| points(*n).is_some()) {
        for m in 1.. {
            let mut world = points(n).expect("it was cut before");
            world.cut_at = Some(m);
            let cut = recover(&mut world, Recovery::Resume);
            world.cut_at = None;
            if cut == Err(Cut) {
                world.crash(0);
                recover(&mut world, Recovery::Resume).expect("nothing is cut");
            }
            check_after(&mut world, Recovery::Resume, false);
            worlds += 1;
            if cut == Ok(()) {
                break;
            }
        }
    }
    let _ = writeln!(std::io::stderr(), "cut twice in {worlds} ways");
    assert!(worlds > 300);
}
