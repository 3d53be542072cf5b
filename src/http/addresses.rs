//! How many connections each client address has open. The address is the socket's: what a header says of another one is not trusted.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Connections of one address where no bound is set: a busy office behind one address needs fewer, a flood wants more.
const USUAL_MAX: usize = 1_000;

/// Bits of an IPv6 address that name its network; the rest is the client's to choose.
const NETWORK: u128 = u128::MAX << 64;

/// The open connections by address.
#[derive(Debug, Clone, Default)]
pub(super) struct Addresses(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// A connection's place; free again on drop.
#[derive(Debug)]
pub(super) struct AddressPlace {
    addresses: Addresses,
    address: IpAddr,
}

impl Addresses {
    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one more connection from `client`; `None` when it has as many as it may.
    pub(super) fn take(&self, client: IpAddr, max: Option<usize>) -> Option<AddressPlace> {
        let address = counted_as(client);
        let max = max.unwrap_or(if address.is_loopback() { usize::MAX } else { USUAL_MAX });
        let mut open = self.lock();
        let count = open.get(&address).copied().unwrap_or_default();
        if count >= max {
            return None;
        }
        open.insert(address, count + 1);
        drop(open);
        Some(AddressPlace { addresses: self.clone(), address })
    }
}

impl Drop for AddressPlace {
    fn drop(&mut self) {
        let mut open = self.addresses.lock();
        match open.get_mut(&self.address) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) => drop(open.remove(&self.address)),
            None => {}
        }
    }
}

/// The address that a client's connections are counted by.
fn counted_as(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & NETWORK)),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_has_so_many_connections_and_no_more_whatever_it_is_called() {
        let addresses = Addresses::default();

        let held: Vec<_> = std::iter::from_fn(|| addresses.take(ip("192.0.2.7"), None)).collect();
        assert_eq!(held.len(), USUAL_MAX);
        assert!(addresses.take(ip("::ffff:192.0.2.7"), None).is_none() && addresses.take(ip("192.0.2.8"), None).is_some());
        drop(held);
        assert!(addresses.take(ip("192.0.2.7"), None).is_some());
        assert!(addresses.lock().is_empty(), "an address without connections is forgotten");

        let _first = addresses.take(ip("2001:db8:0:1::1"), Some(1));
        assert!(addresses.take(ip("2001:db8:0:1:ffff::2"), Some(1)).is_none() && addresses.take(ip("2001:db8:0:2::1"), Some(1)).is_some());
    }

    #[test]
    fn this_machine_is_bounded_only_where_the_operator_says_so() {
        let addresses = Addresses::default();

        let held: Vec<_> = (0..2 * USUAL_MAX).map(|_| addresses.take(ip("127.0.0.1"), None)).collect();

        assert!(held.iter().all(Option::is_some) && addresses.take(ip("127.0.0.1"), Some(10)).is_none());
    }
}
