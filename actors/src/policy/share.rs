//! A host's part of the limits that several hosts keep together.
//!
//! Pure.

/// One of several hosts that divide limits between them. Each gets the same, and the first ones of
/// the remainder one more, so that together they have exactly the limit; but none gets nothing.
///
/// ```
/// use callboard_actors::policy::HostShare;
///
/// let parts: Vec<u64> = (0..3).map(|place| HostShare { hosts: 3, place }.of(8)).collect();
/// assert_eq!(parts, [3, 3, 2]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostShare {
    /// Hosts, this one included; 0 counts as 1.
    pub hosts: u32,
    /// The place of this host among them, from 0.
    pub place: u32,
}

impl HostShare {
    /// The whole of each limit: no other host.
    pub(crate) const WHOLE: Self = Self { hosts: 1, place: 0 };

    /// This host's part of a limit; at least 1, unless the limit is 0.
    pub fn of(self, limit: u64) -> u64 {
        let hosts = u64::from(self.hosts.max(1));
        let part = limit / hosts + u64::from(u64::from(self.place) < limit % hosts);
        part.max(limit.min(1))
    }

    /// As [`HostShare::of`].
    pub(crate) fn of_count(self, limit: usize) -> usize {
        usize::try_from(self.of(limit as u64)).unwrap_or(limit)
    }

    /// As [`HostShare::of`].
    pub(crate) fn of_rate(self, limit: u32) -> u32 {
        u32::try_from(self.of(limit.into())).unwrap_or(limit)
    }
}

impl Default for HostShare {
    fn default() -> Self {
        Self::WHOLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_all_hosts_are_the_limit_and_no_host_has_nothing() {
        for hosts in 1..60_u32 {
            for limit in [0_u64, 1, 2, 7, 50, 59, 60, 61, 1000] {
                let parts: Vec<u64> = (0..hosts)
                    .map(|place| HostShare { hosts, place }.of(limit))
                    .collect();

                let sum: u64 = parts.iter().sum();
                let floor = if limit == 0 { 0 } else { hosts.into() };
                assert_eq!(sum, limit.max(floor), "{limit} of {hosts}");
                let (least, most) = (parts.iter().min(), parts.iter().max());
                assert!(most.unwrap() - least.unwrap() <= 1);
            }
        }
        assert_eq!(HostShare::default().of(9), 9);
    }
}
