//! Decides how many connections to open.
//!
//! Pure.

/// Concurrent calls that one HTTP/2 connection is assumed to carry until the server announces its
/// own limit: the value that hosted providers announce.
pub(super) const STREAMS_ASSUMED: usize = 100;

/// The numbers that decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Demand {
    /// Calls that wait for a connection.
    pub(super) waiting: usize,
    /// Connections that are being opened.
    pub(super) opening: usize,
    /// Connections that are open.
    pub(super) open: usize,
    /// Calls that the next connection is expected to carry at the same time: 1 with HTTP/1.1.
    pub(super) calls_each: usize,
    /// Connections that may be open at the same time.
    pub(super) connections_max: usize,
}

impl Demand {
    /// Number of connections to open now: enough for all waiting calls together with those that
    /// are already being opened, within the bound.
    pub(super) fn to_open(self) -> usize {
        let calls_each = self.calls_each.max(1);
        let without = self
            .waiting
            .saturating_sub(self.opening.saturating_mul(calls_each));
        let room = self
            .connections_max
            .saturating_sub(self.open.saturating_add(self.opening));
        without.div_ceil(calls_each).min(room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLD: Demand = Demand {
        waiting: 0,
        opening: 0,
        open: 0,
        calls_each: STREAMS_ASSUMED,
        connections_max: 100,
    };

    #[test]
    fn a_cold_burst_opens_a_connection_for_a_hundred_calls_and_not_for_each() {
        for (waiting, connections) in [(0, 0), (1, 1), (100, 1), (101, 2), (1000, 10)] {
            assert_eq!(
                Demand { waiting, ..COLD }.to_open(),
                connections,
                "{waiting}"
            );
        }
        let half = Demand {
            waiting: 1000,
            opening: 6,
            ..COLD
        };
        assert_eq!(half.to_open(), 4);
    }

    #[test]
    fn http1_opens_one_for_each_call_up_to_the_bound() {
        let http1 = Demand {
            calls_each: 1,
            waiting: 300,
            opening: 10,
            open: 20,
            ..COLD
        };
        assert_eq!(http1.to_open(), 70);
        assert_eq!(Demand { open: 100, ..http1 }.to_open(), 0);
        assert_eq!(
            Demand {
                open: 0,
                waiting: 12,
                ..http1
            }
            .to_open(),
            2
        );
    }

    #[test]
    fn a_server_that_announces_no_streams_is_still_tried() {
        let none = Demand {
            calls_each: 0,
            waiting: 2,
            ..COLD
        };
        assert_eq!(none.to_open(), 2);
    }
}
