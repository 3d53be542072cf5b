//! Counts open connections per client address. The address is the socket's peer address;
//! `X-Forwarded-For` and similar headers are ignored.

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, atomic::AtomicUsize},
};

use parking_lot::{Mutex, MutexGuard};

/// Default limit of open connections per client address. An office behind one NAT stays below it; a
/// connection flood does not.
const DEFAULT_MAX: usize = 1_000;

/// HTTP/2 streams of one connection, and those that the connections of an address share. A connection
/// has its streams for good when it is accepted, so each gets a tenth of those that are left: at a
/// thousand connections with a hundred requests each, all at once, no turn would be left for others.
const STREAMS_MAX: usize = 100;
const STREAMS_OF_ADDRESS: usize = 2_000;
const STREAMS_SHARE: usize = 10;
const STREAMS_MIN: usize = 4;

/// Mask of the /64 network of an IPv6 address. Clients choose the lower 64 bits freely, so
/// connections are counted per network.
const NETWORK: u128 = u128::MAX << 64;

/// The open connections by address.
#[derive(Debug, Clone, Default)]
pub(super) struct Addresses(Arc<Mutex<Open>>);

#[derive(Debug, Default)]
struct Open {
    of: HashMap<IpAddr, OfAddress>,
    /// Other hosts, which send on the requests of many clients and have no limit.
    hosts: HashSet<IpAddr>,
}

/// What an address has open.
#[derive(Debug, Default)]
struct OfAddress {
    connections: usize,
    /// Streams that the connections may have.
    streams: usize,
    requests: Arc<AtomicUsize>,
}

/// The address of a request's client, as connections are counted.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClientAddress(pub(super) IpAddr);

/// One counted connection. Dropping it frees the place.
#[derive(Debug)]
pub(super) struct AddressPlace {
    addresses: Addresses,
    address: IpAddr,
    streams: usize,
    requests: Arc<AtomicUsize>,
}

impl Addresses {
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock()
    }

    /// Reserves a place for one more connection from `client`; `None` when the address has reached
    /// its limit. `max` overrides the default; loopback has no default limit, and other hosts have none.
    pub(super) fn take(&self, client: IpAddr, max: Option<usize>) -> Option<AddressPlace> {
        let address = counted_as(client);
        let max = max.unwrap_or(if address.is_loopback() {
            usize::MAX
        } else {
            DEFAULT_MAX
        });
        let mut open = self.lock();
        let is_host = open.hosts.contains(&client.to_canonical());
        let count = open.of.get(&address).map_or(0, |of| of.connections);
        if count >= max && !is_host {
            return None;
        }
        let of = open.of.entry(address).or_default();
        let left = STREAMS_OF_ADDRESS.saturating_sub(of.streams);
        let streams = match is_host {
            true => STREAMS_MAX,
            false => (left / STREAMS_SHARE).clamp(STREAMS_MIN, STREAMS_MAX),
        };
        of.connections += 1;
        of.streams += streams;
        let requests = of.requests.clone();
        drop(open);
        Some(AddressPlace {
            addresses: self.clone(),
            address,
            streams,
            requests,
        })
    }
}

impl Addresses {
    /// Sets from which addresses other hosts connect.
    pub(super) fn set_hosts(&self, hosts: impl IntoIterator<Item = IpAddr>) {
        self.lock().hosts = hosts.into_iter().map(|host| host.to_canonical()).collect();
    }
}

impl AddressPlace {
    /// The address that the connection is counted for.
    pub(super) fn client(&self) -> ClientAddress {
        ClientAddress(self.address)
    }

    /// Open requests of all connections of the address.
    pub(super) fn requests(&self) -> Arc<AtomicUsize> {
        self.requests.clone()
    }

    /// HTTP/2 streams that the connection may have at a time.
    pub(super) fn streams(&self) -> u32 {
        u32::try_from(self.streams).unwrap_or(u32::MAX)
    }
}

impl Drop for AddressPlace {
    fn drop(&mut self) {
        let mut open = self.addresses.lock();
        let Some(of) = open.of.get_mut(&self.address) else {
            return;
        };
        of.connections -= 1;
        of.streams -= self.streams;
        if of.connections == 0 {
            open.of.remove(&self.address);
        }
    }
}

/// The key under which a client's connections are counted: an IPv4 address, or an IPv6 /64 network.
fn counted_as(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & NETWORK))
        }
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
    fn an_address_has_a_limit_of_connections_in_whatever_form_it_is_written() {
        let addresses = Addresses::default();

        let held: Vec<_> = std::iter::from_fn(|| addresses.take(ip("192.0.2.7"), None)).collect();
        assert_eq!(held.len(), DEFAULT_MAX);
        assert!(
            addresses.take(ip("::ffff:192.0.2.7"), None).is_none()
                && addresses.take(ip("192.0.2.8"), None).is_some()
        );
        drop(held);
        assert!(addresses.take(ip("192.0.2.7"), None).is_some());
        assert!(
            addresses.lock().of.is_empty(),
            "an address without connections is forgotten"
        );

        let _first = addresses.take(ip("2001:db8:0:1::1"), Some(1));
        assert!(
            addresses
                .take(ip("2001:db8:0:1:ffff::2"), Some(1))
                .is_none()
                && addresses.take(ip("2001:db8:0:2::1"), Some(1)).is_some()
        );
    }

    #[test]
    fn the_connections_of_an_address_share_its_streams() {
        let addresses = Addresses::default();
        addresses.set_hosts([ip("192.0.2.9")]);
        let of = |client: &str, count| {
            let take = || addresses.take(ip(client), None);
            std::iter::from_fn(take).take(count).collect::<Vec<_>>()
        };

        let (many, hosts, one) = (of("192.0.2.7", 900), of("192.0.2.9", 900), of("::1", 1));

        let streams = |places: &[AddressPlace]| places.iter().map(|place| place.streams()).sum();
        let sum: u32 = streams(&many);
        assert!(many.iter().take(10).all(|place| place.streams() == 100));
        assert!(
            many.iter().all(|place| place.streams() >= 4) && sum < 2_000 + 900 * 4,
            "{sum}"
        );
        assert_eq!((streams(&hosts), streams(&one)), (90_000, 100));
        drop(many);
        assert_eq!(streams(&of("192.0.2.7", 1)), 100, "they are given back");
    }

    #[test]
    fn another_host_has_no_limit_while_it_is_there() {
        let addresses = Addresses::default();
        addresses.set_hosts([ip("192.0.2.7")]);

        let held: Vec<_> = (0..10)
            .map(|_| addresses.take(ip("::ffff:192.0.2.7"), Some(4)))
            .collect();

        assert!(held.iter().all(Option::is_some));
        let clients: Vec<_> = (0..10)
            .map(|_| addresses.take(ip("192.0.2.8"), Some(4)))
            .collect();
        assert_eq!(clients.iter().flatten().count(), 4);
        addresses.set_hosts([]);
        assert!(addresses.take(ip("192.0.2.7"), Some(4)).is_none());
    }

    #[test]
    fn loopback_is_limited_only_where_the_operator_sets_a_limit() {
        let addresses = Addresses::default();

        let held: Vec<_> = (0..2 * DEFAULT_MAX)
            .map(|_| addresses.take(ip("127.0.0.1"), None))
            .collect();

        assert!(
            held.iter().all(Option::is_some) && addresses.take(ip("127.0.0.1"), Some(10)).is_none()
        );
    }
}
