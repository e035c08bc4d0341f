//! The life of an inode number, checked under every kind of schedule.
//!
//! [`Life`] is the engine's own (`src/life.rs`), compiled here over atomics of the model
//! checker. Around it stands a model of what the engine does with it in `fs.rs` and
//! `names.rs`, whose types hold `parking_lot` locks and cannot be scheduled: the inode's
//! lock, the map of numbers in use, and who asks for the end of a life. What must hold: a
//! number is freed exactly once in each of its lives, never while it has a name or a
//! reference, and always after the last.

#[path = "../src/life.rs"]
mod life;

use life::Life;
use shuttle::sync::atomic::{self, AtomicBool, AtomicU32, Ordering::SeqCst};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

/// What the real reaper does, and two ways that look as good.
#[derive(Clone, Copy, PartialEq)]
enum Reaper {
    /// [`Life::end`]: whether it lives, then the counts.
    LiveFirst,
    /// Counts, then a swap of `live`.
    CountsFirst,
    /// Asks the map of numbers in use in place of `live`.
    ByMap,
}

/// One inode number and its node.
struct Number {
    life: Life,
    lock: Mutex<()>,
    /// The bit in the map of inode numbers.
    used: AtomicBool,
    /// How many lives began and ended; odd while the contents are somebody's.
    turns: AtomicU32,
    reaper: Reaper,
}

impl Number {
    /// In its first life: one name, one reference.
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

    /// `remove`: under the directory's lock, then the reaping.
    fn unlink(&self) {
        self.life.names.fetch_sub(1, SeqCst);
        self.reap();
    }

    /// `unref`.
    fn forget(&self) {
        if self.life.live.load(SeqCst) && self.life.unref(1) {
            self.reap();
        }
    }

    /// `do_link` of an inode that the caller has a reference to.
    fn link(&self) -> bool {
        let _held = self.lock.lock().unwrap();
        if !self.life.live.load(SeqCst) || self.life.names.load(SeqCst) == 0 {
            return false;
        }
        self.life.names.fetch_add(1, SeqCst);
        true
    }

    fn unused(&self) -> bool {
        self.life.names.load(SeqCst) == 0 && self.life.refs.load(SeqCst) == 0
    }

    fn reap(&self) {
        let _held = self.lock.lock().unwrap();
        let mine = match self.reaper {
            Reaper::LiveFirst => self.life.end(),
            Reaper::CountsFirst => self.unused() && self.life.live.swap(false, SeqCst),
            Reaper::ByMap => self.unused() && self.used.load(SeqCst),
        };
        if mine {
            let turns = self.turns.fetch_add(1, SeqCst);
            assert!(!turns.is_multiple_of(2), "contents freed twice");
            assert!(self.unused(), "freed while in use");
            assert!(self.used.swap(false, SeqCst), "number freed twice");
        }
    }

    /// `make`: takes the number if it is free, then starts its new life.
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

/// The last name and the last reference go at once while another waits for the number.
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

/// A further name is made, by one who holds a reference, while the last one goes.
fn a_name_comes_while_the_last_one_goes() {
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

/// How many random schedules. The models have about twenty steps.
const SCHEDULES: usize = 20_000;

#[test]
fn a_number_is_freed_once_in_each_life() {
    let scenario = || last_name_and_last_reference(Reaper::LiveFirst);
    shuttle::check_random(scenario, SCHEDULES);
    shuttle::check_pct(scenario, SCHEDULES, 3);
}

#[test]
fn a_number_that_gets_a_name_in_time_is_not_freed() {
    shuttle::check_random(a_name_comes_while_the_last_one_goes, SCHEDULES);
    shuttle::check_pct(a_name_comes_while_the_last_one_goes, SCHEDULES, 3);
}

/// The model can fail: the two orders that look as good are caught.
#[test]
fn the_model_finds_the_wrong_orders() {
    for reaper in [Reaper::CountsFirst, Reaper::ByMap] {
        let scenario = move || last_name_and_last_reference(reaper);
        let found = std::panic::catch_unwind(|| shuttle::check_random(scenario, SCHEDULES));
        assert!(found.is_err());
    }
}
