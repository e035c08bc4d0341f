//! A block device that takes as long as a disk or an SSD would.
//!
//! The model: a device has a *front* and a *medium*. The front takes commands and moves their
//! data into a write cache, which is written to the medium. A write has completed when the front
//! has it. With force unit access, without a cache or with a full one, it has completed when
//! the medium has it. A flush waits until the medium has everything. Reads precede writes that
//! wait in the cache. A caller waits at least for the time of the model. The data reaches the
//! device below at once.
//!
//! A seek is followed by half a turn. Without a seek, a block that the head has just passed is there
//! again after a turn, so each write of a log that is flushed waits for most of one.
//!
//! Not modelled: the position of the platter after a seek, zones, reads from a cache, garbage
//! collection.

use super::{BlockDevice, BlockError, Completion, Geometry, Lba, Persistence, Write};
use crate::Rule;
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

/// The kind of device, with its times.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DelayModel {
    /// Heads that seek over turning platters.
    Disk(DiskModel),
    /// Flash.
    Ssd(SsdModel),
}

/// A disk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DiskModel {
    /// Seek to the next track.
    pub track_seek: Duration,
    /// Seek over a third of the disk, which is the mean of random ones.
    pub average_seek: Duration,
    /// Seek from one end to the other.
    pub full_seek: Duration,
    /// Turns per minute.
    pub rpm: u32,
    /// Bytes per second under the head.
    pub bytes_per_s: u64,
    /// Bytes per second between host and cache.
    pub interface_bytes_per_s: u64,
    /// Bytes that the write cache holds; 0: there is none.
    pub cache_bytes: u64,
}

/// An SSD.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SsdModel {
    /// Time of one read.
    pub read: Duration,
    /// Time of one write into the cache.
    pub write: Duration,
    /// Reads that it executes at once.
    pub read_lanes: u32,
    /// Writes that it executes at once.
    pub write_lanes: u32,
    /// Bytes per second that its flash stores.
    pub bytes_per_s: u64,
    /// Bytes that the write cache holds; 0: there is none.
    pub cache_bytes: u64,
    /// Time of a flush or a durable write, without the wait for the flash.
    pub flush: Duration,
}

impl DelayModel {
    /// Hitachi Travelstar 7K320 (2.5 inch, SATA), write cache on. From its OEM
    /// specification: typical seek times of writes, turns per minute. 80 MB/s under the
    /// head and 16 MiB of cache are assumptions.
    pub const TRAVELSTAR_7K320: Self = Self::Disk(DiskModel {
        track_seek: Duration::from_micros(1_100),
        average_seek: Duration::from_micros(12_000),
        full_seek: Duration::from_micros(22_000),
        rpm: 7_200,
        bytes_per_s: 80_000_000,
        interface_bytes_per_s: 300_000_000,
        cache_bytes: 16 << 20,
    });

    /// Samsung SSD 970 EVO 500GB, from figures that its maker gave to reviewers. They do not
    /// include flushes and the amount of volatile data: 1 ms and 64 MiB are assumptions.
    ///
    /// | | read | write |
    /// |---|---|---|
    /// | random 4 KiB per second, queue depth 1 | 15,000 | 50,000 |
    /// | random 4 KiB per second, queue depth 32 or more | 370,000 | 450,000 |
    /// | MB/s to flash, without the SLC buffer | | 600 |
    pub const SAMSUNG_970_EVO: Self = Self::Ssd(SsdModel {
        read: Duration::from_nanos(66_667),
        write: Duration::from_nanos(20_000),
        read_lanes: 25,
        write_lanes: 9,
        bytes_per_s: 600_000_000,
        cache_bytes: 64 << 20,
        flush: Duration::from_millis(1),
    });

    /// Samsung SSD 850 EVO 1TB (SATA), from the maker's figures. A queue of 32 is as fast as this
    /// many lanes, rounded. 500 MB/s to flash, 64 MiB of volatile data and 1 ms for a flush are
    /// assumptions.
    ///
    /// | | read | write |
    /// |---|---|---|
    /// | random 4 KiB per second, queue depth 1 | 10,000 | 40,000 |
    /// | random 4 KiB per second, queue depth 32 | 98,000 | 90,000 |
    pub const SAMSUNG_850_EVO: Self = Self::Ssd(SsdModel {
        read: Duration::from_micros(100),
        write: Duration::from_micros(25),
        read_lanes: 10,
        write_lanes: 2,
        bytes_per_s: 500_000_000,
        cache_bytes: 64 << 20,
        flush: Duration::from_millis(1),
    });

    fn cache_bytes(&self) -> u64 {
        match self {
            Self::Disk(disk) => disk.cache_bytes,
            Self::Ssd(ssd) => ssd.cache_bytes,
        }
    }

    fn flush(&self) -> Duration {
        match self {
            Self::Disk(_) => Duration::ZERO,
            Self::Ssd(ssd) => ssd.flush,
        }
    }
}

impl DiskModel {
    /// Time of a seek; both positions are fractions of the whole, from 0 to 1.
    fn seek(&self, from: f64, to: f64) -> Duration {
        // The curve a + b sqrt(x) + c x through the three times.
        let [track, average, full] =
            [self.track_seek, self.average_seek, self.full_seek].map(|t| t.as_secs_f64());
        let third = 1.0 / 3.0_f64;
        let b = ((average - track) - (full - track) * third) / (third.sqrt() - third);
        let c = full - track - b;
        let x = (to - from).abs();
        let seek = track + b * x.sqrt() + c * x;
        let half_turn = 30.0 / f64::from(self.rpm.max(1));
        Duration::try_from_secs_f64(seek + half_turn).unwrap_or_default()
    }
}

impl DiskModel {
    /// The time until a block is under the head that has passed it by `idle`.
    fn turn_on(&self, idle: Duration) -> Duration {
        let turn = Duration::from_secs(60) / self.rpm.max(1);
        let passed = idle.as_nanos() % turn.as_nanos().max(1);
        match passed {
            0 => Duration::ZERO,
            _ => turn.saturating_sub(Duration::from_nanos(passed as u64)),
        }
    }
}

fn transfer(bytes: u64, bytes_per_s: u64) -> Duration {
    Duration::from_secs_f64(bytes as f64 / bytes_per_s.max(1) as f64)
}

/// Forwards everything to `D` and adds delays.
pub struct DelayDevice<D> {
    inner: D,
    model: DelayModel,
    state: Mutex<State>,
}

struct State {
    clock: Clock,
    next: u64,
    /// Writes that `inner` has: the caller's tag, and the time when they may end.
    under_way: BTreeMap<u64, (u64, Instant)>,
    /// Writes that `inner` has finished: the time when they may end, and their numbers.
    due: BinaryHeap<Reverse<(Instant, u64)>>,
    finished: BTreeMap<u64, Completion>,
}

impl<D: BlockDevice> DelayDevice<D> {
    /// Adds the delays of `model`.
    pub fn new(inner: D, model: DelayModel) -> Self {
        Self {
            state: Mutex::new(State {
                clock: Clock::new(model, inner.geometry()),
                next: 0,
                under_way: BTreeMap::new(),
                due: BinaryHeap::new(),
                finished: BTreeMap::new(),
            }),
            inner,
            model,
        }
    }

    /// The device below, without the delays.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// The delays.
    pub fn model(&self) -> DelayModel {
        self.model
    }
}

impl State {
    fn finish(&mut self, mut completion: Completion) {
        let number = completion.tag;
        if let Some((tag, due)) = self.under_way.remove(&number) {
            completion.tag = tag;
            self.finished.insert(number, completion);
            self.due.push(Reverse((due, number)));
        }
    }

    /// The next write to end, if it may end by `by`.
    fn pop(&mut self, by: Option<Instant>) -> Option<(Instant, Completion)> {
        let Reverse((due, number)) = *self.due.peek()?;
        if by.is_some_and(|by| due > by) {
            return None;
        }
        self.due.pop();
        Some((due, self.finished.remove(&number)?))
    }
}

/// The work of the device, and the time when each part of it ends.
struct Clock {
    model: DelayModel,
    geometry: Geometry,
    /// The front, for reads and for writes.
    reads: Vec<Instant>,
    writes: Vec<Instant>,
    medium: Instant,
    /// The block after the last one under the head.
    head: u64,
    /// The contents of the cache: when the medium will have them, and their bytes.
    cached: VecDeque<(Instant, u64)>,
    cached_bytes: u64,
}

impl Clock {
    fn new(model: DelayModel, geometry: Geometry) -> Self {
        let now = Instant::now();
        let (reads, writes) = match model {
            DelayModel::Disk(_) => (1, 1),
            DelayModel::Ssd(ssd) => (ssd.read_lanes.max(1), ssd.write_lanes.max(1)),
        };
        Self {
            model,
            geometry,
            reads: vec![now; reads as usize],
            writes: vec![now; writes as usize],
            medium: now,
            head: 0,
            cached: VecDeque::new(),
            cached_bytes: 0,
        }
    }

    /// The end of a read that starts now.
    fn read(&mut self, now: Instant, lba: Lba, blocks: u64) -> Instant {
        let time = match self.model {
            DelayModel::Disk(_) => self.on_medium(now, lba, blocks),
            DelayModel::Ssd(ssd) => ssd.read,
        };
        let end = occupy(&mut self.reads, now, time);
        if let DelayModel::Disk(_) = self.model {
            self.medium = self.medium.max(now) + time;
        }
        end
    }

    /// The end of a write that starts now.
    fn write(&mut self, now: Instant, lba: Lba, durable: bool) -> Instant {
        let bytes = u64::from(self.geometry.block_bytes);
        let front = match self.model {
            DelayModel::Disk(disk) => transfer(bytes, disk.interface_bytes_per_s),
            DelayModel::Ssd(ssd) => ssd.write,
        };
        let front = occupy(&mut self.writes, now, front);
        let time = self.on_medium(front, lba, 1);
        self.medium = self.medium.max(front) + time;
        let room = self.room(now, bytes);
        if durable || self.model.cache_bytes() < bytes {
            return self.medium + self.model.flush();
        }
        self.cached.push_back((self.medium, bytes));
        self.cached_bytes += bytes;
        front.max(room)
    }

    /// The end of a flush that starts now.
    fn flush(&mut self, now: Instant) -> Instant {
        self.medium.max(now) + self.model.flush()
    }

    /// The time when the cache has room for `bytes`.
    fn room(&mut self, now: Instant, bytes: u64) -> Instant {
        let mut room = now;
        while let Some((at, len)) = self.cached.front() {
            let full = self.cached_bytes + bytes > self.model.cache_bytes();
            if !full && *at > now {
                break;
            }
            room = room.max(*at);
            self.cached_bytes -= len;
            self.cached.pop_front();
        }
        room
    }

    /// The time that the medium takes for `blocks`, if it can begin at `start`.
    fn on_medium(&mut self, start: Instant, lba: Lba, blocks: u64) -> Duration {
        let bytes = blocks.saturating_mul(u64::from(self.geometry.block_bytes));
        let (from, all) = (self.head, self.geometry.blocks.max(1) as f64);
        self.head = lba.0.saturating_add(blocks);
        match self.model {
            DelayModel::Disk(disk) => {
                let near = transfer(bytes, disk.bytes_per_s);
                if from == lba.0 {
                    return near + disk.turn_on(start.saturating_duration_since(self.medium));
                }
                near + disk.seek(from as f64 / all, lba.0 as f64 / all)
            }
            DelayModel::Ssd(ssd) => transfer(bytes, ssd.bytes_per_s),
        }
    }
}

/// Occupies the lane that is free first. Returns the time when it is free again.
fn occupy(lanes: &mut [Instant], now: Instant, time: Duration) -> Instant {
    let Some(lane) = lanes.iter_mut().min() else {
        return now + time;
    };
    *lane = now.max(*lane) + time;
    *lane
}

/// Sleeps for most of the time, and spins for the part by which a sleep could be late.
fn wait_until(due: Instant) {
    const OVERRUN: Duration = Duration::from_micros(100);
    let mut left = due.saturating_duration_since(Instant::now());
    while !left.is_zero() {
        match left.checked_sub(OVERRUN) {
            Some(sleep) if !sleep.is_zero() => std::thread::sleep(sleep),
            _ => std::hint::spin_loop(),
        }
        left = due.saturating_duration_since(Instant::now());
    }
}

impl<D: BlockDevice> crate::block::layer::DeviceLayer for DelayDevice<D> {
    type Below = D;

    fn below(&self) -> &D {
        &self.inner
    }

    fn persistence(&self) -> Persistence {
        let inner = self.inner.persistence();
        Persistence {
            volatile_cache: inner.volatile_cache || self.model.cache_bytes() > 0,
            ..inner
        }
    }

    fn read(&self, lba: Lba, buf: &mut [u8]) -> Result<(), BlockError> {
        let start = Instant::now();
        self.inner.read(lba, buf)?;
        let blocks = buf.len() as u64 / u64::from(self.inner.geometry().block_bytes);
        let due = self.state.lock().clock.read(start, lba, blocks);
        wait_until(due);
        Ok(())
    }

    fn submit(&self, mut writes: Vec<Write>) {
        let mut state = self.state.lock();
        let now = Instant::now();
        // In one sweep of the heads.
        writes.sort_by_key(|write| write.lba);
        for write in &mut writes {
            let number = state.next;
            state.next += 1;
            let due = state.clock.write(now, write.lba, write.is_durable());
            state.under_way.insert(number, (write.tag, due));
            write.tag = number;
        }
        drop(state);
        self.inner.submit(writes);
    }

    fn reap(&self, min: usize) -> Vec<Completion> {
        let mut done = Vec::new();
        loop {
            let missing = min.saturating_sub(done.len() + self.state.lock().due.len());
            let finished = self.inner.reap(missing);
            let mut state = self.state.lock();
            finished.into_iter().for_each(|end| state.finish(end));
            let now = Instant::now();
            while let Some((_, end)) = state.pop(Some(now)) {
                done.push(end);
            }
            if done.len() >= min {
                return done;
            }
            let Some((due, end)) = state.pop(None) else {
                return done;
            };
            drop(state);
            wait_until(due);
            done.push(end);
        }
    }

    fn flush(&self, rule: Rule) -> Result<(), BlockError> {
        let due = self.state.lock().clock.flush(Instant::now());
        let result = self.inner.flush(rule);
        wait_until(due);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u32 = 4096;
    const BLOCKS: u64 = 1 << 20;

    fn clock(model: DelayModel) -> (Clock, Instant) {
        let geometry = Geometry {
            block_bytes: BLOCK,
            blocks: BLOCKS,
        };
        let clock = Clock::new(model, geometry);
        let now = clock.medium;
        (clock, now)
    }

    fn disk(cache_bytes: u64) -> DiskModel {
        let DelayModel::Disk(disk) = DelayModel::TRAVELSTAR_7K320 else {
            unreachable!("a disk");
        };
        DiskModel {
            cache_bytes,
            ..disk
        }
    }

    fn micros(t: Duration) -> f64 {
        t.as_secs_f64() * 1e6
    }

    #[test]
    fn seeks_go_through_the_three_times_of_the_data_sheet() {
        let disk = disk(0);
        let half_turn = 30e6 / 7200.0;
        for (distance, seek) in [
            (0.0, disk.track_seek),
            (1.0 / 3.0, disk.average_seek),
            (1.0, disk.full_seek),
        ] {
            let t = micros(disk.seek(0.0, distance)) - half_turn;
            assert!((t - micros(seek)).abs() < 1.0, "{distance}: {t}");
            let back = micros(disk.seek(1.0, 1.0 - distance)) - half_turn;
            assert!((t - back).abs() < 1.0);
        }
    }

    #[test]
    fn a_disk_streams_neighbours_and_seeks_for_others() {
        let (mut clock, now) = clock(DelayModel::Disk(disk(0)));
        let one = transfer(u64::from(BLOCK), disk(0).bytes_per_s);
        let in_a_row = (1..=100).map(|lba| clock.write(now, Lba(lba - 1), false));
        let last = in_a_row.last().unwrap() - now;
        // The first one waits for its place under the head.
        let turn = Duration::from_secs(60) / disk(0).rpm;
        assert!(last < one * 101 + turn, "{last:?}");
        let far = clock.write(now, Lba(BLOCKS / 2), false) - now;
        assert!(far - last > disk(0).average_seek, "{far:?}");
    }

    #[test]
    fn a_flushed_log_waits_for_a_turn_at_each_block() {
        let (mut clock, now) = clock(DelayModel::Disk(disk(16 << 20)));
        let turn = Duration::from_secs(60) / disk(0).rpm;
        let mut at = now;
        for lba in 0..10 {
            clock.write(at, Lba(lba), false);
            at = clock.flush(at) + Duration::from_micros(100);
        }
        assert!(at - now > 9 * turn, "{:?}", at - now);
        assert!(at - now < 12 * turn, "{:?}", at - now);
    }

    #[test]
    fn a_cache_hides_the_medium_until_a_flush_or_until_full() {
        let (mut clock, now) = clock(DelayModel::Disk(disk(4 * u64::from(BLOCK))));
        let ms = Duration::from_millis(1);
        let cached = (1..=4).map(|i| clock.write(now, Lba(i * 1000), false));
        assert!(cached.last().unwrap() - now < ms);
        let full = clock.write(now, Lba(500_000), false);
        assert!(full - now > ms);
        let flushed = clock.flush(now);
        assert!(flushed - now > 5 * disk(0).track_seek);
        // Everything is on the medium, so the flush ends at once.
        assert_eq!(clock.flush(flushed), flushed);
        let durable = clock.write(flushed, Lba(7), true);
        assert!(durable - flushed > disk(0).average_seek);
    }

    #[test]
    fn an_ssd_works_on_as_many_writes_as_it_has_lanes() {
        let DelayModel::Ssd(ssd) = DelayModel::SAMSUNG_970_EVO else {
            unreachable!("an SSD");
        };
        let (mut clock, now) = clock(DelayModel::SAMSUNG_970_EVO);
        let lanes = u64::from(ssd.write_lanes);
        let ends: Vec<_> = (0..=lanes)
            .map(|i| clock.write(now, Lba(i * 9), false) - now)
            .collect();
        assert!(ends[..lanes as usize].iter().all(|end| *end == ssd.write));
        assert_eq!(ends[lanes as usize], 2 * ssd.write);
        let durable = clock.write(now, Lba(1), true) - now;
        assert!(durable >= ssd.flush + ssd.write);
        assert_eq!(clock.read(now, Lba(1), 1) - now, ssd.read);
    }

    #[test]
    fn no_call_takes_less_time_than_the_model() {
        let due = Instant::now() + Duration::from_micros(300);
        wait_until(due);
        assert!(Instant::now() >= due);
    }
}
