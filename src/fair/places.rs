//! A number of places for work that must not run all at once. They are given to the tenants in turn,
//! and a tenant gets another place only while it holds fewer than are free. So one tenant alone
//! gets half of them, and a tenant that comes later finds a free one as long as it can.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{Lines, Owner, Owns, Refused, Waiting};

/// Places for work of all tenants.
#[derive(Debug)]
pub(crate) struct FairPlaces<O: Owns = Owner>(Mutex<State<O>>);

#[derive(Debug)]
struct State<O: Owns> {
    free: usize,
    lines: Lines<oneshot::Sender<Place<O>>, O>,
}

/// One place; dropping it gives it to the next in line.
#[derive(Debug)]
pub(crate) struct Place<O: Owns = Owner> {
    /// `None` once it is given back.
    places: Option<Arc<FairPlaces<O>>>,
    owner: O,
}

impl<O: Owns> FairPlaces<O> {
    pub(crate) fn new(places: usize, waiting: Waiting) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            free: places,
            lines: Lines::new(waiting),
        })))
    }

    /// Waits for a place.
    ///
    /// # Errors
    /// [`Refused`] at once if too much waits.
    ///
    /// # Cancel safety
    /// Cancel safe: a place that is not waited for any more goes to the next.
    pub(crate) async fn acquire(self: &Arc<Self>, owner: O) -> Result<Place<O>, Refused> {
        let (sender, place) = oneshot::channel();
        self.0.lock().lines.push(owner, sender)?;
        self.serve();
        place.await.map_err(|_| Refused::Closed)
    }

    /// Places that are free now.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.0.lock().free
    }

    /// Gives free places to those that wait.
    fn serve(self: &Arc<Self>) {
        loop {
            let next = {
                let mut state = self.0.lock();
                let free = state.free;
                let next = state.lines.next(free);
                state.free -= usize::from(next.is_some());
                next
            };
            let Some((owner, waits)) = next else { return };
            let place = Place {
                places: Some(self.clone()),
                owner,
            };
            // One whose future was dropped gives its place back here, and not by its own `serve`: many
            // of them in a row would take as many calls deep.
            if let Err(mut place) = waits.send(place) {
                place.places = None;
                self.give_back(&place.owner);
            }
        }
    }

    fn give_back(&self, owner: &O) {
        let mut state = self.0.lock();
        state.free += 1;
        state.lines.ended(owner);
    }
}

impl<O: Owns> Drop for Place<O> {
    fn drop(&mut self) {
        if let Some(places) = self.places.take() {
            places.give_back(&self.owner);
            places.serve();
        }
    }
}

#[cfg(test)]
mod tests {
    use callboard_actors::ids::TenantId;
    use futures_util::FutureExt as _;

    use super::*;

    fn places(count: usize) -> Arc<FairPlaces> {
        let waiting = Waiting {
            all: 100,
            tenant: 50,
        };
        FairPlaces::new(count, waiting)
    }

    fn tenant(name: &str) -> Owner {
        Some(TenantId::new(name).unwrap())
    }

    fn take(places: &Arc<FairPlaces>, name: &str) -> Option<Place> {
        let place = places.acquire(tenant(name)).now_or_never()?;
        Some(place.unwrap())
    }

    #[test]
    fn one_tenant_gets_half_of_the_places_and_each_later_one_half_of_the_rest() {
        let places = places(64);
        let held: Vec<Place> = ["a", "b", "c", "d", "e", "f"]
            .iter()
            .flat_map(|name| std::iter::from_fn(|| take(&places, name)).take(64))
            .collect();
        let counts = ["a", "b", "c", "d", "e", "f"]
            .map(|name| held.iter().filter(|p| p.owner == tenant(name)).count());

        assert_eq!(counts, [32, 16, 8, 4, 2, 1]);
        assert_eq!(places.free(), 1);
    }

    #[test]
    fn the_only_place_goes_round_the_tenants() {
        let places = places(1);
        let first = take(&places, "a").unwrap();
        let mut waiting: Vec<_> = ["a", "a", "b", "c", "b"]
            .map(|name| Box::pin(places.acquire(tenant(name))))
            .into();
        for future in &mut waiting {
            assert!(future.now_or_never().is_none());
        }
        drop(first);
        let mut order = Vec::new();
        while !waiting.is_empty() {
            let ready = waiting
                .iter_mut()
                .position(|future| {
                    let place = future.now_or_never();
                    place
                        .map(|place| order.push(place.unwrap().owner.clone()))
                        .is_some()
                })
                .unwrap();
            drop(waiting.remove(ready));
        }

        assert_eq!(order, ["a", "b", "c", "a", "b"].map(tenant));
        assert_eq!(places.free(), 1);
    }

    #[test]
    fn a_place_that_is_not_waited_for_any_more_goes_to_the_next() {
        let places = places(1);
        let first = take(&places, "a").unwrap();
        let mut gone = Box::pin(places.acquire(tenant("b")));
        assert!((&mut gone).now_or_never().is_none());
        let mut next = Box::pin(places.acquire(tenant("c")));
        assert!((&mut next).now_or_never().is_none());
        drop(gone);
        drop(first);

        assert!(next.now_or_never().is_some());
        assert_eq!(places.free(), 1);
    }

    #[test]
    fn any_number_of_futures_that_were_dropped_is_passed_in_a_row() {
        let count = 100_000;
        let places = FairPlaces::new(
            1,
            Waiting {
                all: count,
                tenant: count,
            },
        );
        let held = take(&places, "a").unwrap();
        for _ in 0..count {
            let mut waits = Box::pin(places.acquire(tenant("a")));
            assert!((&mut waits).now_or_never().is_none());
        }

        drop(held);
        assert_eq!(places.free(), 1);
    }

    #[test]
    fn a_tenant_with_too_much_waiting_is_refused_at_once() {
        let waiting = Waiting { all: 3, tenant: 1 };
        let places = FairPlaces::new(1, waiting);
        let _held = take(&places, "a");
        let mut waits = Box::pin(places.acquire(tenant("a")));
        assert!((&mut waits).now_or_never().is_none());

        let refused = places.acquire(tenant("a")).now_or_never().unwrap();
        assert_eq!(refused.unwrap_err(), Refused::TenantFull);
    }
}
