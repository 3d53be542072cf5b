//! Randomness for ids and jitter. It is the kernel's only source, so a seed replays a run.

use crate::ids::{ActivationId, PromptId, RoundId};

/// A source of random bytes.
pub trait Entropy: Send + Sync + 'static {
    /// Returns sixteen random bytes.
    fn bytes(&self) -> [u8; 16];

    /// Returns a new round id.
    fn round_id(&self) -> RoundId {
        RoundId::from_random(self.bytes())
    }

    /// Returns a new prompt id.
    fn prompt_id(&self) -> PromptId {
        PromptId::from_random(self.bytes())
    }

    /// Returns a new activation id.
    fn activation_id(&self) -> ActivationId {
        ActivationId::from_random(self.bytes())
    }

    /// Returns a number in `0.0..1.0`, for jitter.
    fn fraction(&self) -> f64 {
        let [a, b, c, d, ..] = self.bytes();
        f64::from(u32::from_le_bytes([a, b, c, d])) / (f64::from(u32::MAX) + 1.0)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_port_is_dyn_compatible() {
        fn takes(_: &dyn super::Entropy) {}
        let _ = takes;
    }
}
