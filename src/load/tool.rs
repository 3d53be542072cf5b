//! The tool of an in-process load run: returns 200 bytes, hangs or panics.

use std::time::Duration;

use callboard_actors::{
    ports::{Reach, ToolContext, ToolSpec, TypedTool},
    scripted::splitmix64,
    tool::ToolError,
};

use super::turn::chance;

/// Longest call, which ends a call that hangs.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The message of an injected panic.
pub(crate) const PANIC: &str = "panic injected by the load tool";

#[derive(serde::Deserialize, schemars::JsonSchema)]
pub(super) struct Args {
    /// Any text. It decides which fault the call has.
    argument: String,
}

/// The load tool.
pub(super) struct LoadTool {
    /// Share of the calls that hang or panic, 0 to 1.
    pub(super) fault_rate: f64,
    pub(super) seed: u64,
}

impl TypedTool for LoadTool {
    type Args = Args;
    type Output = String;
    const NAME: &'static str = "load_tool";
    const DESCRIPTION: &'static str = "Does nothing and returns 200 bytes.";

    fn declare(&self, spec: ToolSpec) -> ToolSpec {
        spec.read_only()
            .not_shared()
            .reach(Reach::Nothing)
            .timeout(TIMEOUT)
    }

    async fn call(&self, args: Args, _: ToolContext) -> Result<String, ToolError> {
        let id = args
            .argument
            .bytes()
            .fold(0u64, |hash, byte| splitmix64(hash ^ u64::from(byte)));
        if self.fault_rate > 0.0 && chance(self.seed, id) < self.fault_rate {
            if id & 1 == 0 {
                return std::future::pending().await;
            }
            #[allow(
                clippy::panic,
                reason = "a load run asks for it: a tool that panics is one of its faults"
            )]
            {
                panic!("{PANIC}");
            }
        }
        Ok("r".repeat(200))
    }
}
