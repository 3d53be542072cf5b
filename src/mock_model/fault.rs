//! What the server breaks, and which call: by a seed, so that a run can be had again. Pure.

use std::{fmt, str::FromStr};

use callboard_actors::scripted::splitmix64;

/// A way for a model call to go wrong (FAULTS F11, F12).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// 429 with Retry-After.
    RateLimited,
    /// 529, overloaded.
    Overloaded,
    /// 500.
    ServerError,
    /// The connection is reset before the head of the answer.
    Reset,
    /// Half an answer, then nothing until the client leaves.
    Stall,
    /// 200 with a page of HTML.
    Html,
    /// Half an answer, then the connection is closed.
    Half,
    /// An event that is no JSON; in a call of a tool, arguments that are none.
    MalformedJson,
    /// Half an answer, then an event that tells of an error.
    ErrorEvent,
}

/// Says that a word names no fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no such fault; there are 429, 529, 500, reset, stall, html, half, malformed-json, error-event")]
pub struct NoSuchFault;

impl Fault {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::RateLimited,
        Self::Overloaded,
        Self::ServerError,
        Self::Reset,
        Self::Stall,
        Self::Html,
        Self::Half,
        Self::MalformedJson,
        Self::ErrorEvent,
    ];

    /// The word of the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::RateLimited => "429",
            Self::Overloaded => "529",
            Self::ServerError => "500",
            Self::Reset => "reset",
            Self::Stall => "stall",
            Self::Html => "html",
            Self::Half => "half",
            Self::MalformedJson => "malformed-json",
            Self::ErrorEvent => "error-event",
        }
    }

    /// What becomes of the call with this number.
    pub(crate) fn of_call(nth: u64, seed: u64, rate: f64, kinds: &[Self]) -> Option<Self> {
        if rate <= 0.0 {
            return None;
        }
        let bits = splitmix64(seed.rotate_left(32) ^ nth);
        // 53 bits are all that a double holds.
        let chance = (bits >> 11) as f64 / (1u64 << 53) as f64;
        if chance >= rate {
            return None;
        }
        let which = usize::try_from(splitmix64(bits) % kinds.len().max(1) as u64).unwrap_or(0);
        kinds.get(which).copied()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Fault {
    type Err = NoSuchFault;

    fn from_str(text: &str) -> Result<Self, NoSuchFault> {
        Self::ALL.into_iter().find(|fault| fault.name() == text).ok_or(NoSuchFault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(seed: u64, rate: f64) -> Vec<Option<Fault>> {
        (0..10_000).map(|nth| Fault::of_call(nth, seed, rate, &Fault::ALL)).collect()
    }

    #[test]
    fn a_seed_breaks_the_same_calls_in_the_same_way_again() {
        assert_eq!(faults(7, 0.1), faults(7, 0.1));
        assert_ne!(faults(7, 0.1), faults(8, 0.1));
    }

    #[test]
    fn the_rate_is_kept_and_every_kind_comes() {
        let broken: Vec<Fault> = faults(3, 0.1).into_iter().flatten().collect();

        assert!((900..1100).contains(&broken.len()), "{}", broken.len());
        assert!(Fault::ALL.iter().all(|fault| broken.contains(fault)));
        assert!(faults(3, 0.0).iter().all(Option::is_none));
        assert!(faults(3, 1.0).iter().all(Option::is_some));
    }

    #[test]
    fn every_fault_is_read_by_its_name() {
        for fault in Fault::ALL {
            assert_eq!(fault.name().parse(), Ok(fault));
        }
        assert_eq!("418".parse::<Fault>(), Err(NoSuchFault));
    }
}
