//! The life of an inode number, checked under every kind of schedule.
//!
//! The engine's own types cannot be put on a model checker's scheduler (they hold
//! `parking_lot` locks), so this is a small model of the protocol in `fs.rs` and
//! `names.rs`: counts of names and references, the `live` flag, the inode's lock, and
//! who calls `reap`. What the model must show: a number is freed exactly once in each of
//! its lives, never while it has a name or a reference, and always after the last.

use shuttle::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

/// What the real reaper does, and two ways that look as good.
#[derive(Clone, Copy, PartialEq)]
enum Reaper {
    /// As in `Bpfs::reap`: lives, then counts.
    LiveFirst,
    /// Counts, then a swap of `live`.
    CountsFirst,
    /// Asks the map of numbers in use in place of `live`.
    ByMap,
}

/// One inode number and its node.
struct Number {
    names: AtomicU32,
    refs: AtomicU32,
    live: AtomicBool,
    lock: Mutex<()>,
    /// The bit in the map of inode numbers.
    used: AtomicBool,
    /// Which life this is; odd while the contents are somebody's.
    life: AtomicU32,
    reaper: Reaper,
}

impl Number {
    /// In its first life: one name, one reference.
    fn born(reaper: Reaper) -> Arc<Self> {
        Arc::new(Self {
            names: AtomicU32::new(1),
            refs: AtomicU32::new(1),
            live: AtomicBool::new(true),
            lock: Mutex::new(()),
            used: AtomicBool::new(true),
            life: AtomicU32::new(1),
            reaper,
        })
    }

    /// `remove`: under the directory's lock, then the reaping.
    fn unlink(&self) {
        self.names.fetch_sub(1, SeqCst);
        self.reap();
    }

    /// `unref`.
    fn forget(&self) {
        if self.live.load(SeqCst) && self.refs.fetch_sub(1, SeqCst) == 1 {
            self.reap();
        }
    }

    /// `do_link` of an inode that the caller has a reference to.
    fn link(&self) -> bool {
        let _held = self.lock.lock().unwrap();
        if !self.live.load(SeqCst) || self.names.load(SeqCst) == 0 {
            return false;
        }
        self.names.fetch_add(1, SeqCst);
        true
    }

    fn reap(&self) {
        let _held = self.lock.lock().unwrap();
        let unused = || self.names.load(SeqCst) == 0 && self.refs.load(SeqCst) == 0;
        let mine = match self.reaper {
            Reaper::LiveFirst => {
                let mine = self.live.load(SeqCst) && unused();
                if mine {
                    self.live.store(false, SeqCst);
                }
                mine
            }
            Reaper::CountsFirst => unused() && self.live.swap(false, SeqCst),
            Reaper::ByMap => unused() && self.used.load(SeqCst),
        };
        if mine {
            let life = self.life.fetch_add(1, SeqCst);
            assert!(!life.is_multiple_of(2), "contents freed twice");
            assert!(unused(), "freed while in use");
            assert!(self.used.swap(false, SeqCst), "number freed twice");
        }
    }

    /// `make`: takes the number if it is free, then starts its new life.
    fn make(&self) -> bool {
        if self.used.swap(true, SeqCst) {
            return false;
        }
        let life = self.life.fetch_add(1, SeqCst);
        assert!(life.is_multiple_of(2), "given out while in use");
        self.names.store(1, SeqCst);
        self.refs.store(1, SeqCst);
        self.live.store(true, SeqCst);
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
        assert!(number.live.load(SeqCst), "a new life was ended");
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
        assert!(number.live.load(SeqCst), "freed with a name");
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
