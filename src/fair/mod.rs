//! Fairness between tenants: work waits in one line for each of them, and the lines are served in
//! turn. `lines` holds what waits and decides · `places` lets it wait for a place.

mod lines;
#[cfg(any(feature = "http", feature = "tools"))]
mod places;

pub(crate) use lines::{Lines, Owner, Owns, Refused, Waiting};
#[cfg(any(feature = "http", feature = "tools"))]
pub(crate) use places::FairPlaces;
#[cfg(any(feature = "sandbox-linux", feature = "web"))]
pub(crate) use places::Place;
