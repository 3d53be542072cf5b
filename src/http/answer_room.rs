//! The room of answers: bytes of long answers that clients have not read yet, of each connection, of
//! each tenant and of all together. A request waits for room before its answer is read from the
//! store. Clients that read nothing then take neither the host's memory nor its processor time.
//!
//! Short answers have a room of their own, as large, of each tenant and of all: a client that leaves
//! long ones unread is still answered. Those that find it full count as long ones. A piece of a long
//! answer counts as a short one while a connection has it, so that one that is never read does not
//! take the room of an answer that needs all of it.

use std::{collections::HashMap, sync::Arc, time::Duration};

use axum::http::Extensions;
use callboard_actors::ids::TenantId;
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::{HttpBounds, error::Problem};

/// Bytes of one unit of room.
const UNIT_BYTES: usize = 1024;

/// How long a request waits for room. Longer waits would only move the queue from the clients here.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(5);

/// Requests of one tenant that wait for room; further ones are refused at once.
const WAITING_MAX: usize = 64;

/// The room of one connection. Its clones share it.
#[derive(Debug, Clone)]
pub(super) struct ConnectionRoom {
    room: Arc<Semaphore>,
    units: u32,
    /// Places in the queue for room: half of the tenant's.
    waiting: Arc<Semaphore>,
}

impl ConnectionRoom {
    pub(super) fn new(bounds: &HttpBounds) -> Self {
        let units = units(bounds.connection_answer_bytes_max);
        Self {
            room: Arc::new(Semaphore::new(units as usize)),
            units,
            waiting: Arc::new(Semaphore::new(WAITING_MAX / 2)),
        }
    }
}

impl ConnectionRoom {
    /// The room of a request's connection; one of its own for a request that came over none.
    pub(super) fn of(request: &Extensions, bounds: &HttpBounds) -> Self {
        let room = request.get::<Self>().cloned();
        room.unwrap_or_else(|| Self::new(bounds))
    }
}

/// The room of all answers.
#[derive(Debug, Clone)]
pub(super) struct AnswerRooms(Arc<Rooms>);

#[derive(Debug)]
struct Rooms {
    tenant_bytes: usize,
    all: Arc<Semaphore>,
    all_units: u32,
    /// The room of all short answers.
    all_short: Arc<Semaphore>,
    tenants: Mutex<HashMap<TenantId, Arc<TenantRoom>>>,
}

#[derive(Debug)]
struct TenantRoom {
    room: Arc<Semaphore>,
    /// The room of its short answers.
    short: Arc<Semaphore>,
    /// Places in the queue for room.
    waiting: Semaphore,
}

/// Reserved bytes of one answer. Dropping it frees them.
#[derive(Debug)]
pub(super) struct AnswerRoom {
    rooms: AnswerRooms,
    tenant: TenantId,
    connection: ConnectionRoom,
    held: Arc<TenantRoom>,
    /// How long it waits for more.
    wait: Duration,
    /// Of the connection, of the tenant, and of all.
    permits: Option<[OwnedSemaphorePermit; 3]>,
    /// Of the tenant and of all, for a short answer.
    short: Option<[OwnedSemaphorePermit; 2]>,
}

impl AnswerRooms {
    pub(super) fn new(bounds: &HttpBounds) -> Self {
        let all = || Arc::new(Semaphore::new(units(bounds.answer_bytes_max) as usize));
        Self(Arc::new(Rooms {
            tenant_bytes: bounds.tenant_answer_bytes_max,
            all: all(),
            all_units: units(bounds.answer_bytes_max),
            all_short: all(),
            tenants: Mutex::default(),
        }))
    }

    /// Reserves `bytes`. Waits a short time for room.
    ///
    /// # Errors
    /// 429 when the connection, the tenant, or the host, has no room.
    pub(super) async fn take(
        &self,
        tenant: &TenantId,
        connection: &ConnectionRoom,
        bytes: usize,
    ) -> Result<AnswerRoom, Problem> {
        self.take_within(WAIT_MAX, tenant, connection, bytes).await
    }

    /// As [`AnswerRooms::take`], with a wait of one's own.
    pub(super) async fn take_within(
        &self,
        wait: Duration,
        tenant: &TenantId,
        connection: &ConnectionRoom,
        bytes: usize,
    ) -> Result<AnswerRoom, Problem> {
        let mut room = self.empty(wait, tenant, connection);
        room.grow_to(bytes).await?;
        Ok(room)
    }

    /// Reserves the `bytes` of a short answer: in the room of short ones, and otherwise as
    /// [`AnswerRooms::take_within`].
    ///
    /// # Errors
    /// Those of [`AnswerRooms::take`].
    pub(super) async fn take_short(
        &self,
        wait: Duration,
        tenant: &TenantId,
        connection: &ConnectionRoom,
        bytes: usize,
    ) -> Result<AnswerRoom, Problem> {
        let mut room = self.empty(wait, tenant, connection);
        room.short = room.try_short(bytes);
        if room.short.is_none() {
            room.grow_to(bytes).await?;
        }
        Ok(room)
    }

    /// A reservation of nothing.
    fn empty(&self, wait: Duration, tenant: &TenantId, connection: &ConnectionRoom) -> AnswerRoom {
        let mut tenants = self.0.tenants.lock();
        let held = tenants.entry(tenant.clone()).or_insert_with(|| {
            let room = || Arc::new(Semaphore::new(units(self.0.tenant_bytes) as usize));
            Arc::new(TenantRoom {
                room: room(),
                short: room(),
                waiting: Semaphore::new(WAITING_MAX),
            })
        });
        AnswerRoom {
            rooms: self.clone(),
            tenant: tenant.clone(),
            connection: connection.clone(),
            held: held.clone(),
            wait,
            permits: None,
            short: None,
        }
    }
}

impl AnswerRoom {
    /// Changes the reservation to `bytes`, once they are known.
    ///
    /// # Errors
    /// 429 when the answer is larger than expected and there is no room.
    pub(super) async fn resize(&mut self, bytes: usize) -> Result<(), Problem> {
        let wanted = units(bytes) as usize;
        let shrink = |permit: &mut OwnedSemaphorePermit| {
            let more = permit.num_permits().saturating_sub(wanted);
            drop(permit.split(more));
        };
        match &mut self.short {
            Some(short) if short.iter().all(|held| held.num_permits() >= wanted) => {
                short.iter_mut().for_each(shrink);
                return Ok(());
            }
            _ => self.short = None,
        }
        self.permits.iter_mut().flatten().for_each(shrink);
        self.grow_to(bytes).await
    }

    /// Takes `bytes` out of it, or as much as it has, for a piece that a connection was given. They
    /// count by themselves until dropped: as a short answer, if there is room.
    pub(super) fn split(&mut self, bytes: usize) -> Self {
        let wanted = units(bytes) as usize;
        let part = |permit: &mut OwnedSemaphorePermit| {
            let taken = wanted.min(permit.num_permits());
            permit.split(taken)
        };
        let permits = self.permits.as_mut().map(|held| held.each_mut().map(part));
        let short = self.short.as_mut().map(|held| held.each_mut().map(part));
        let mut piece = self.rooms.empty(self.wait, &self.tenant, &self.connection);
        piece.short = short.map_or_else(|| piece.try_short(bytes), whole);
        if piece.short.is_none() {
            piece.permits = permits.and_then(whole);
        }
        piece
    }

    /// Reserves bytes in the room of short answers, if it has as many.
    fn try_short(&self, bytes: usize) -> Option<[OwnedSemaphorePermit; 2]> {
        let of = |room: &Arc<Semaphore>| room.clone().try_acquire_many_owned(units(bytes)).ok();
        Some([of(&self.held.short)?, of(&self.rooms.0.all_short)?])
    }

    async fn grow_to(&mut self, bytes: usize) -> Result<(), Problem> {
        let held = self
            .permits
            .as_ref()
            .map_or(0, |[permit, ..]| permit.num_permits());
        // An answer above the whole bound takes all of it, so that it is sent, alone.
        let wanted = units(bytes)
            .min(units(self.rooms.0.tenant_bytes))
            .min(self.connection.units)
            .min(self.rooms.0.all_units)
            .saturating_sub(u32::try_from(held).unwrap_or(u32::MAX));
        if wanted == 0 {
            return Ok(());
        }
        let full = || {
            Problem::too_many(
                "too_many_bytes",
                "too many answers of this connection or tenant are not read yet; read them, or retry in a moment",
            )
        };
        let connection = self.connection.clone();
        let _places = [
            connection.waiting.try_acquire().map_err(|_| full())?,
            self.held.waiting.try_acquire().map_err(|_| full())?,
        ];
        let each = async {
            let room = connection.room.clone();
            let room = room.acquire_many_owned(wanted).await;
            let mine = self.held.room.clone().acquire_many_owned(wanted).await;
            let all = self.rooms.0.all.clone().acquire_many_owned(wanted).await;
            Some([room.ok()?, mine.ok()?, all.ok()?])
        };
        let more = timeout(self.wait, each)
            .await
            .ok()
            .flatten()
            .ok_or_else(full)?;
        match &mut self.permits {
            Some(held) => {
                let pairs = held.iter_mut().zip(more);
                pairs.for_each(|(held, more)| held.merge(more));
            }
            None => self.permits = Some(more),
        }
        Ok(())
    }
}

impl Drop for AnswerRoom {
    fn drop(&mut self) {
        self.permits = None;
        self.short = None;
        let mut tenants = self.rooms.0.tenants.lock();
        // This reservation and the map hold it.
        if tenants
            .get(&self.tenant)
            .is_some_and(|held| Arc::strong_count(held) <= 2)
        {
            tenants.remove(&self.tenant);
        }
    }
}

/// The array of the values, if each is there.
fn whole<T, const N: usize>(all: [Option<T>; N]) -> Option<[T; N]> {
    let all: Option<Vec<T>> = all.into_iter().collect();
    all.and_then(|all| all.try_into().ok())
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rooms(tenant: usize, all: usize) -> AnswerRooms {
        AnswerRooms::new(&HttpBounds {
            tenant_answer_bytes_max: tenant * UNIT_BYTES,
            answer_bytes_max: all * UNIT_BYTES,
            ..HttpBounds::default()
        })
    }

    fn connection(room: usize) -> ConnectionRoom {
        ConnectionRoom::new(&HttpBounds {
            connection_answer_bytes_max: room * UNIT_BYTES,
            ..HttpBounds::default()
        })
    }

    fn tenant(id: &str) -> TenantId {
        TenantId::new(id).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_without_room_is_refused_after_a_short_wait_and_others_are_served() {
        let rooms = rooms(8, 12);
        let acme = tenant("acme");
        let wide = connection(99);
        let mut first = rooms.take(&acme, &wide, 8 * UNIT_BYTES).await.unwrap();

        assert_eq!(rooms.take(&acme, &wide, 1).await.unwrap_err().status, 429);
        assert!(
            rooms
                .take(&tenant("zeta"), &wide, 4 * UNIT_BYTES)
                .await
                .is_ok()
        );
        first.resize(2 * UNIT_BYTES).await.unwrap();
        let second = rooms.take(&acme, &wide, 6 * UNIT_BYTES).await.unwrap();
        assert_eq!(first.resize(3 * UNIT_BYTES).await.unwrap_err().status, 429);
        drop((first, second));
        let whole = rooms.take(&acme, &wide, 99 * UNIT_BYTES).await.unwrap();
        drop(whole);

        assert!(
            rooms.0.tenants.lock().is_empty(),
            "nothing is kept for a silent tenant"
        );
        assert_eq!(rooms.0.all.available_permits(), 12);
    }

    #[tokio::test(start_paused = true)]
    async fn short_answers_have_a_room_of_their_own_and_are_long_ones_beyond_it() {
        let rooms = rooms(8, 99);
        let (acme, wide) = (tenant("acme"), connection(99));
        let short = |units| rooms.take_short(WAIT_MAX, &acme, &wide, units * UNIT_BYTES);

        let long = rooms.take(&acme, &wide, 8 * UNIT_BYTES).await.unwrap();
        let mut held = Vec::new();
        for _ in 0..8 {
            held.push(short(1).await.unwrap());
        }
        assert_eq!(short(1).await.unwrap_err().status, 429);
        drop(long);
        for _ in 0..8 {
            held.push(short(1).await.unwrap());
        }
        assert_eq!(short(1).await.unwrap_err().status, 429);
        let other = rooms.take_short(WAIT_MAX, &tenant("zeta"), &wide, 1).await;
        assert!(other.is_ok());
        held.clear();
        assert!(short(8).await.is_ok());
        drop(other);
        assert!(rooms.0.tenants.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_piece_that_a_connection_has_counts_as_a_short_answer_if_there_is_room() {
        let rooms = rooms(8, 99);
        let (acme, wide) = (tenant("acme"), connection(99));
        let take = async |units| rooms.take(&acme, &wide, units * UNIT_BYTES).await;
        let left = |room: &AnswerRoom| {
            let held = [&room.held.room, &room.held.short];
            held.map(|room| room.available_permits())
        };
        let mut answer = take(8).await.unwrap();
        assert_eq!(left(&answer), [0, 8]);

        let first = answer.split(5 * UNIT_BYTES);
        assert_eq!(left(&answer), [5, 3]);
        let second = answer.split(5 * UNIT_BYTES);
        assert_eq!(left(&answer), [5, 3], "the three that it had left");
        drop(answer);
        assert!(take(8).await.is_err());
        drop(second);
        assert!(take(8).await.is_ok());
        assert_eq!(left(&first), [8, 3]);
        let mut short = rooms
            .take_short(WAIT_MAX, &acme, &wide, 2 * UNIT_BYTES)
            .await
            .unwrap();
        drop(first);
        let piece = short.split(UNIT_BYTES);
        drop(short);
        assert_eq!(left(&piece), [8, 7]);
        drop(piece);
        assert_eq!(rooms.0.all.available_permits(), 99);
        assert_eq!(rooms.0.all_short.available_permits(), 99);
    }

    #[tokio::test(start_paused = true)]
    async fn the_queue_for_room_is_bounded() {
        let rooms = rooms(1, 1);
        let acme = tenant("acme");
        let wide = [(); 3].map(|()| connection(99));
        let held = rooms.take(&acme, &connection(1), 1).await.unwrap();
        let started = tokio::time::Instant::now();
        let takes = (0..1000).map(|n| rooms.take(&acme, &wide[n % 3], 1));

        let taken = futures_util::future::join_all(takes.map(async |take| {
            take.await
                .map(drop)
                .map_err(|_| started.elapsed() >= WAIT_MAX)
        }))
        .await;

        let waited = taken.iter().filter(|end| **end == Err(true)).count();
        let at_once = taken.iter().filter(|end| **end == Err(false)).count();
        assert_eq!((waited, at_once), (WAITING_MAX, 1000 - WAITING_MAX));
        drop(held);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_room_is_refused_and_the_tenants_others_are_served() {
        let rooms = rooms(99, 99);
        let acme = tenant("acme");
        let (one, other) = (connection(8), connection(8));

        let held = rooms.take(&acme, &one, 8 * UNIT_BYTES).await.unwrap();
        assert_eq!(rooms.take(&acme, &one, 1).await.unwrap_err().status, 429);
        let waits = (0..WAITING_MAX).map(|_| rooms.take(&acme, &one, 1));
        let waits = futures_util::future::join_all(waits);
        let (refused, served) = tokio::join!(waits, rooms.take(&acme, &other, 8 * UNIT_BYTES));
        assert!(served.is_ok() && refused.iter().all(Result::is_err));
        drop(held);

        let whole = rooms.take(&acme, &one, 50 * UNIT_BYTES).await;
        assert!(
            whole.is_ok() && one.room.available_permits() == 0,
            "an answer above the bound is sent, alone"
        );
    }
}
