//! Events that arrive while a question is open. Printed at once, they would move the question out of
//! sight, and a person would answer what can no longer be read.
//!
//! Pure.

/// Events that are held; a question can stay open for hours.
const EVENTS_MAX: usize = 256;

/// Bytes of all held events.
const BYTES_MAX: usize = 1024 * 1024;

/// Events in the order of their arrival.
#[derive(Debug)]
pub(super) struct Held<T> {
    events: Vec<T>,
    bytes: usize,
    missed: usize,
}

impl<T> Default for Held<T> {
    fn default() -> Self {
        Self {
            events: Vec::new(),
            bytes: 0,
            missed: 0,
        }
    }
}

impl<T> Held<T> {
    /// Holds an event of `bytes` bytes, or counts it as missed if there is no room.
    pub(super) fn push(&mut self, event: T, bytes: usize) {
        if self.events.len() >= EVENTS_MAX || self.bytes.saturating_add(bytes) > BYTES_MAX {
            self.missed += 1;
            return;
        }
        self.bytes += bytes;
        self.events.push(event);
    }

    /// Returns all held events and how many were missed, and is empty afterwards.
    pub(super) fn take(&mut self) -> (Vec<T>, usize) {
        let held = std::mem::take(self);
        (held.events, held.missed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_bounded_by_number_and_bytes_and_what_is_missed_is_counted() {
        let mut many = Held::default();
        (0..300).for_each(|n| many.push(n, 1));
        let mut large = Held::default();
        (0..3).for_each(|n| large.push(n, BYTES_MAX / 2));

        assert_eq!(many.take(), ((0..256).collect(), 44));
        assert_eq!(large.take(), (vec![0, 1], 1));
        assert_eq!(large.take(), (vec![], 0));
    }
}
