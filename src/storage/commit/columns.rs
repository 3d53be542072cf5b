//! How numbers and states are stored in columns.
//!
//! Pure, but for [`now`].

use std::time::SystemTime;

use callboard_actors::stream::Open;

/// Page size for a count of 0.
pub(in crate::storage) const PAGE: usize = 1000;

/// Bytes of entries after which a page ends, however many were asked for. One entry may have 33 MB.
pub(in crate::storage) const PAGE_BYTES: usize = 8 * 1024 * 1024;

/// Most entries that one piece of an emptying empties.
pub(in crate::storage) const PIECE: usize = 500;

/// Bytes of entries after which such a piece ends.
pub(in crate::storage) const PIECE_BYTES: usize = 1024 * 1024;

/// The stored form of a state.
pub(in crate::storage) fn code(open: Open) -> i64 {
    match open {
        Open::None => 0,
        Open::Running => 1,
        Open::Parked => 2,
    }
}

/// The inverse of [`code`].
pub(in crate::storage) fn open_of(code: i64) -> Open {
    match code {
        1 => Open::Running,
        2 => Open::Parked,
        _ => Open::None,
    }
}

/// Integers of databases are signed; no counter here comes near 2^63.
pub(in crate::storage) fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The inverse of [`int`].
pub(in crate::storage) fn nat(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

/// A number of rows as a statement's LIMIT.
pub(in crate::storage) fn limit(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Milliseconds since 1970, by the host's clock. Shown in lists; no decision depends on it.
pub(in crate::storage) fn now() -> i64 {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
