//! Which calls fail and how, decided by a seed so that a run can be repeated. Pure.

use std::{fmt, str::FromStr};

use callboard_actors::scripted::splitmix64;

/// A fault of a model call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// 429 with Retry-After.
    RateLimited,
    /// 529, the Messages API's status for overload.
    Overloaded,
    /// 500, an internal server error.
    ServerError,
    /// The connection is reset before the head of the answer.
    Reset,
    /// Half of the answer, then no bytes until the client disconnects.
    Stall,
    /// 200 with an HTML page.
    Html,
    /// Half of the answer, then the connection is closed.
    Half,
    /// An event with invalid JSON; in a tool call, arguments that are not valid JSON.
    MalformedJson,
    /// Half of the answer, then an error event.
    ErrorEvent,
}

/// The word is not the name of a fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "no such fault; there are 429, 529, 500, reset, stall, html, half, malformed-json, error-event"
)]
pub struct NoSuchFault;

impl Fault {
    /// All faults, in the order of the command line's help.
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

    /// The name on the command line.
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

    /// Decides the fault of the call with this number.
    pub(crate) fn of_call(nth: u64, seed: u64, rate: f64, kinds: &[Self]) -> Option<Self> {
        if rate <= 0.0 {
            return None;
        }
        let bits = splitmix64(seed.rotate_left(32) ^ nth);
        // A double holds 53 bits.
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
        Self::ALL
            .into_iter()
            .find(|fault| fault.name() == text)
            .ok_or(NoSuchFault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(seed: u64, rate: f64) -> Vec<Option<Fault>> {
        (0..10_000)
            .map(|nth| Fault::of_call(nth, seed, rate, &Fault::ALL))
            .collect()
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
