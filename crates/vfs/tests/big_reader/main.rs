//! The big-reader lock, checked under many schedules.
//!
//! The lock is the real one (`src/sync/big_reader.rs`), compiled here over the atomics and locks of a model checker, which
//! also finds threads that nobody wakes.

#[path = "../../src/sync/big_reader.rs"]
mod big_reader;

use big_reader::BigReaderLock;
use shuttle::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use shuttle::sync::{Arc, MutexGuard};
use shuttle::thread;

/// As few as possible, so that the threads sleep.
const ATTEMPTS: usize = 1;

fn pause() {
    thread::yield_now();
}

fn thread_number() -> usize {
    shuttle::current::me().into()
}

#[derive(Debug, Default)]
struct Mutex<T>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap()
    }
}

#[derive(Debug, Default)]
struct Condvar(shuttle::sync::Condvar);

impl Condvar {
    fn wait<'a, T>(&self, held: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(held).unwrap()
    }

    fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// The lock, and the threads that have a guard.
#[derive(Default)]
struct World {
    lock: BigReaderLock,
    reading: AtomicU32,
    writing: AtomicU32,
}

impl World {
    fn read(&self) {
        let _guard = self.lock.read();
        self.reading.fetch_add(1, Ordering::SeqCst);
        assert_eq!(
            self.writing.load(Ordering::SeqCst),
            0,
            "read beside a writer"
        );
        self.reading.fetch_sub(1, Ordering::SeqCst);
    }

    fn write(&self) {
        let _guard = self.lock.write();
        let others = self.writing.fetch_add(1, Ordering::SeqCst);
        assert_eq!(others, 0, "two write");
        assert_eq!(
            self.reading.load(Ordering::SeqCst),
            0,
            "write beside a reader"
        );
        self.writing.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Threads that do this twice each, and end.
fn threads(kinds: &'static [fn(&World)]) -> impl Fn() + Send + Sync {
    move || {
        let world = Arc::new(World::default());
        let start = |does: &fn(&World)| {
            let (does, world) = (*does, Arc::clone(&world));
            thread::spawn(move || (0..2).for_each(|_| does(&world)))
        };
        let threads: Vec<_> = kinds.iter().map(start).collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    }
}

#[test]
fn writers_are_alone_and_all_threads_end() {
    for kinds in [
        &[World::read, World::write][..],
        &[World::write, World::write],
        &[World::read, World::read, World::write],
        &[World::read, World::write, World::write],
        &[World::read, World::read, World::write, World::write],
    ] {
        shuttle::check_random(threads(kinds), 3000);
        shuttle::check_pct(threads(kinds), 3000, 3);
    }
}
