//! The hasher of maps whose order of iteration has an effect, such as the order in which idle
//! conversations are asked to sleep.
//!
//! Pure.

/// Random in each process, so that no caller can choose ids that collide.
#[cfg(not(test))]
pub(crate) type MapHasher = std::hash::RandomState;

/// Fixed in the tests of the kernel, so that a seed replays a run.
#[cfg(test)]
pub(crate) type MapHasher = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;
