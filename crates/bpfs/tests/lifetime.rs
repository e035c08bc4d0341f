//! The life of an inode number, checked under every kind of schedule.
//!
//! [`Life`] is the engine's own (`src/life.rs`), compiled here over atomics of the model
//! checker. A model replaces its callers in `fs.rs` and `names.rs`, whose `parking_lot` locks
//! cannot be scheduled. It has the lock of the inode, the map of numbers in use, and the calls
//! that end a life.
//!
//! The property: a number is freed exactly once in each of its lives, after its last name and
//! its last reference.

#[path = "../src/life.rs"]
mod life;

use life::Life;
use shuttle::sync::atomic::{self, AtomicBool, AtomicU32, Ordering::SeqCst};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

/// The order of the real reaper, and two wrong orders that look right.
#[derive(Clone, Copy, PartialEq)]
enum Reaper {
    /// [`Life::end`]: reads `live`, then the counts.
    LiveFirst,
    /// Reads the counts, then swaps `live`.
    CountsFirst,
    /// Reads the map of numbers in use in place of `live`.
    ByMap,
}

/// One inode number and its node.
struct Number {
    life: Life,
    lock: Mutex<()>,
    /// The bit in the map of inode numbers.
    used: AtomicBool,
    /// Number of lives begun and ended; odd while the contents are in use.
    turns: AtomicU32,
    reaper: Reaper,
}

impl Number {
    /// A number in its first life, with one name and one reference.
    fn born(reaper: Reaper) -> Arc<Self> {
        let life = Life::default();
        life.begin(1);
        Arc::new(Self {
            life,
            lock: Mutex::new(()),
            used: AtomicBool::new(true),
            turns: AtomicU32::new(1),
            reaper,
        })
    }

    /// As `remove`: drops a name, which the lock of the directory guards, then reaps.
    fn unlink(&self) {
        self.life.names.fetch_sub(1, SeqCst);
        self.reap();
    }

    /// As `unref`.
    fn forget(&self) {
        if self.life.live.load(SeqCst) && self.life.unref(1) {
            self.reap();
        }
    }

    /// As `do_link` of an inode to which the caller has a reference.
    fn link(&self) -> bool {
        let _held = self.lock.lock().unwrap();
        if !self.life.live.load(SeqCst) || self.life.names.load(SeqCst) == 0 {
            return false;
        }
        self.life.names.fetch_add(1, SeqCst);
        true
    }

    fn is_unused(&self) -> bool {
        self.life.names.load(SeqCst) == 0 && self.life.refs.load(SeqCst) == 0
    }

    fn reap(&self) {
        let _held = self.lock.lock().unwrap();
        let mine = match self.reaper {
            Reaper::LiveFirst => self.life.end(),
            Reaper::CountsFirst => self.is_unused() && self.life.live.swap(false, SeqCst),
            Reaper::ByMap => self.is_unused() && self.used.load(SeqCst),
        };
        if mine {
            let turns = self.turns.fetch_add(1, SeqCst);
            assert!(!turns.is_multiple_of(2), "contents freed twice");
            assert!(self.is_unused(), "freed while in use");
            assert!(self.used.swap(false, SeqCst), "number freed twice");
        }
    }

    /// As `make`: takes the number if it is free, then starts its new life.
    fn make(&self) -> bool {
        if self.used.swap(true, SeqCst) {
            return false;
        }
        let turns = self.turns.fetch_add(1, SeqCst);
        assert!(turns.is_multiple_of(2), "given out while in use");
        self.life.begin(1);
        true
    }
}

/// Removes the last name and the last reference at once, while another thread waits for the
/// number.
fn last_name_and_last_reference(reaper: Reaper) {
    let number = Number::born(reaper);
    let unlinker = thread::spawn({
        let number = number.clone();
        move || number.unlink()
    });
    let forgetter = thread::spawn({
        let number = number.clone();
        move || number.forget()
    });
    let maker = thread::spawn({
        let number = number.clone();
        move || number.make()
    });
    unlinker.join().unwrap();
    forgetter.join().unwrap();
    if maker.join().unwrap() {
        assert!(number.life.live.load(SeqCst), "a new life was ended");
        number.forget();
        number.unlink();
    }
    assert!(!number.used.load(SeqCst), "never freed");
}

/// Makes another name, by a thread that holds a reference, while the last name is removed.
fn a_name_is_made_while_the_last_is_removed() {
    let number = Number::born(Reaper::LiveFirst);
    let unlinker = thread::spawn({
        let number = number.clone();
        move || number.unlink()
    });
    let linker = thread::spawn({
        let number = number.clone();
        move || {
            let linked = number.link();
            number.forget();
            linked
        }
    });
    unlinker.join().unwrap();
    if linker.join().unwrap() {
        assert!(number.life.live.load(SeqCst), "freed with a name");
        number.unlink();
    }
    assert!(!number.used.load(SeqCst), "never freed");
}

/// Number of random schedules. The models have about twenty steps.
const SCHEDULES: usize = 20_000;

#[test]
fn a_number_is_freed_once_in_each_life() {
    let scenario = || last_name_and_last_reference(Reaper::LiveFirst);
    shuttle::check_random(scenario, SCHEDULES);
    shuttle::check_pct(scenario, SCHEDULES, 3);
}

#[test]
fn a_number_that_gets_another_name_is_not_freed() {
    shuttle::check_random(a_name_is_made_while_the_last_is_removed, SCHEDULES);
    shuttle::check_pct(a_name_is_made_while_the_last_is_removed, SCHEDULES, 3);
}

/// The model can fail: it catches the two wrong orders.
#[test]
fn the_model_finds_the_wrong_orders() {
    for reaper in [Reaper::CountsFirst, Reaper::ByMap] {
        let scenario = move || last_name_and_last_reference(reaper);
        let found = std::panic::catch_unwind(|| shuttle::check_random(scenario, SCHEDULES));
        assert!(found.is_err());
    }
}
