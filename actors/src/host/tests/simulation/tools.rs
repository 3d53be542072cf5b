//! The tools of the world: of every effect class, quick and slow, failing and panicking. Each start
//! is recorded by the permanent name of its call.

use std::{sync::Arc, time::Duration};

use super::{
    bugs::Bug,
    world::{Starts, World},
};
use crate::{
    chat::RawJson,
    ids::{CallKey, Scope, Seq},
    ports::{Approval, BoxFuture, Concurrency, Tool, ToolContext, ToolOutput, ToolSpec},
    tool::{EffectClass, ToolError, ToolErrorType},
};

/// The names of all tools. `look` is pure, `save` idempotent, `pay` and `ask` happen at most once;
/// `ask` needs an approval, and `paint` runs alone.
pub(super) const NAMES: [&str; 5] = ["look", "save", "pay", "ask", "paint"];

struct WorldTool {
    spec: ToolSpec,
    name: &'static str,
    world: Arc<World>,
    process: u64,
}

pub(super) fn tools(world: &Arc<World>, process: u64) -> Vec<Arc<dyn Tool>> {
    let tool = |name| -> Arc<dyn Tool> {
        Arc::new(WorldTool {
            spec: spec(world, name),
            name,
            world: world.clone(),
            process,
        })
    };
    NAMES.into_iter().map(tool).collect()
}

fn is_once(name: &str) -> bool {
    matches!(name, "pay" | "ask" | "paint")
}

fn spec(world: &World, name: &'static str) -> ToolSpec {
    let spec = ToolSpec::new(name, "A tool of the simulation.", RawJson::empty_object())
        .timeout(Duration::from_secs(4));
    let spec = match name {
        "look" => spec.read_only(),
        "save" => spec
            .effect(EffectClass::Idempotent)
            .approval(Approval::Never),
        "ask" => spec,
        "paint" => spec
            .approval(Approval::Never)
            .concurrency(Concurrency::Exclusive),
        _ => spec.approval(Approval::Never),
    };
    if world.plan.bug == Some(Bug::RepeatsOnce) && is_once(name) {
        return spec.effect(EffectClass::Idempotent);
    }
    spec
}

impl Tool for WorldTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn call(
        &self,
        _: RawJson,
        context: ToolContext,
    ) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(self.run(context))
    }
}

/// A call that runs. The calls of one batch are bounded.
struct Running {
    world: Arc<World>,
    batch: (u64, Scope, Seq),
}

impl Running {
    fn begin(world: &Arc<World>, key: &CallKey, process: u64) -> Self {
        let batch = (process, key.scope.clone(), key.seq);
        let running = world.with(|facts| {
            let running = facts.running.entry(batch.clone()).or_default();
            *running += 1;
            *running
        });
        let max = world.plan.limits.parallel_tools_max;
        let overlaps = world.with(|facts| facts.taken_over.contains(&key.scope));
        if running > max && !overlaps {
            let scope = &key.scope;
            world.violated(format!("{running} calls of {scope} run at once, {max} may"));
        }
        Self {
            world: world.clone(),
            batch,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.world.with(|facts| {
            if let Some(running) = facts.running.get_mut(&self.batch) {
                *running -= 1;
            }
        });
    }
}

impl WorldTool {
    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let world = &self.world;
        if !world.is_alive(self.process) {
            return std::future::pending().await;
        }
        let ToolContext {
            key,
            attempt,
            cancel,
            progress,
            ..
        } = context;
        world.log(format_args!(
            "{} {key} starts, attempt {attempt}",
            self.name
        ));
        let again = world.with(|facts| {
            facts.figures.tool_starts += 1;
            let starts = facts.starts.entry(key.clone()).or_default();
            if starts.tool != self.name {
                *starts = Starts::default();
                starts.tool = self.name;
            }
            let again = starts.count > 0 && !starts.not_started;
            (starts.count, starts.not_started) = (starts.count + 1, false);
            again
        });
        if again && is_once(self.name) {
            world.violated(format!(
                "the call {key} of `{}` was started twice",
                self.name
            ));
        }
        let _running = Running::begin(world, &key, self.process);
        let dice = &world.tool_dice;
        let is_faulty = !world.is_calm() && dice.percent(world.plan.tool_faults);
        let takes = if is_faulty && dice.percent(30) {
            dice.between(2000, 9000)
        } else {
            dice.below(400)
        };
        let fault = if is_faulty { dice.below(4) } else { 9 };
        if dice.percent(30) {
            progress.report("halfway");
        }
        let work = tokio::time::sleep(Duration::from_millis(takes));
        tokio::select! {
            biased;
            () = work => {}
            () = cancel.cancelled(), if dice.percent(70) => {
                return Err(ToolError::failed("cancelled"));
            }
        }
        match fault {
            0 => Err(ToolError::failed("it failed")),
            1 => panic!("a planted panic of a tool"),
            2 => {
                world.with(|facts| facts.starts.entry(key).or_default().not_started = true);
                Err(ToolError::new(ToolErrorType::TransientError, "busy").not_started())
            }
            _ => Ok(ToolOutput::Text(format!("{} is done", self.name))),
        }
    }
}
