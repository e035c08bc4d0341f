//! Clerks and the service with their threads and messages in many orders.
//!
//! The clerk is compiled here over the locks of a scheduler (`sync`), which draws the thread that
//! continues at each of them. `world` has the invariants. All threads end: a thread that waits
//! forever is reported by the scheduler.

#![allow(dead_code, unused_imports)] // the modules serve more than these tests

#[path = "../../src/clerk/mod.rs"]
mod clerk;
#[path = "../../src/seeded.rs"]
mod seeded;

#[path = "../../../crash/tests/scripts/bounds.rs"]
mod bounds;
mod calls;
mod sync;
mod world;

use aerie_server::locks::Limits;
use bounds::bound;
use calls::{ALL, Call, call};
use shuttle::rand::{Rng as _, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, Runner, thread};
use std::panic::catch_unwind;
use std::sync::Arc;
use world::{FILE, LEASE, TheClerk, World};

type Clerks = Vec<Arc<TheClerk>>;

fn limits() -> Limits {
    Limits {
        lease: LEASE,
        ..Limits::default()
    }
}

/// Runs clients with threads that make calls, beside `meanwhile`. Returns the number of calls that
/// found the store removed.
fn run(clients: u64, threads: u64, calls: u64, meanwhile: fn(&World, &Clerks)) -> usize {
    let world = World::new(limits());
    let clerks: Clerks = (0..clients).map(|id| Arc::new(world.client(id))).collect();
    let network = {
        let (world, clerks) = (Arc::clone(&world), clerks.clone());
        thread::spawn(move || world.deliver(&clerks))
    };
    let attendants = clerks.iter().map(|clerk| {
        let clerk = Arc::clone(clerk);
        thread::spawn(move || {
            clerk.attend();
            clerk.host().disconnect();
        })
    });
    let attendants: Vec<_> = attendants.collect();
    let callers = clerks.iter().flat_map(|clerk| {
        (0..threads).map(move |n| {
            let clerk = Arc::clone(clerk);
            thread::spawn(move || {
                let drawn = |_| ALL[thread_rng().gen_range(0..ALL.len())];
                let results = (0..calls)
                    .map(drawn)
                    .map(|drawn: Call| call(&clerk, n, drawn));
                results.filter(Result::is_err).count()
            })
        })
    });
    let callers: Vec<_> = callers.collect();
    meanwhile(&world, &clerks);
    let removed = callers
        .into_iter()
        .map(|caller| caller.join().expect("no call panics"));
    let removed = removed.sum();
    for clerk in &clerks {
        clerk::Host::ship(clerk.host(), FILE);
        clerk.close();
    }
    for attendant in attendants {
        attendant.join().expect("no attendant panics");
    }
    world.end();
    network.join().expect("the network does not panic");
    removed
}

fn two_clients() {
    assert_eq!(run(2, 2, 3, |_, _| {}), 0, "a client lost its locks");
}

fn threads_of_two_clients() {
    assert_eq!(run(2, 3, 2, |_, _| {}), 0, "a client lost its locks");
}

fn three_clients() {
    assert_eq!(run(3, 1, 4, |_, _| {}), 0, "a client lost its locks");
}

/// The first client is not reachable for more than a lease, and then is again.
fn late_client() {
    run(2, 2, 3, |world, clerks| {
        lose_first(world, clerks);
        world.cut_off(0, false);
    });
}

/// The first client dies.
fn dead_client() {
    run(3, 1, 4, |world, clerks| {
        world.cut_off(0, true);
        clerks[0].close();
        lose_first(world, clerks);
    });
}

/// After a lease the service has released all that the first client had, and others go on.
fn lose_first(world: &World, clerks: &Clerks) {
    world.cut_off(0, true);
    world.pass(LEASE / 2);
    clerks[1..].iter().for_each(|clerk| clerk.tick());
    world.expire(0);
    thread::yield_now();
    world.pass(LEASE / 2);
    assert!(world.expire(0), "its session lasts");
}

fn check(test: fn(), scheduler: impl Scheduler + 'static) {
    let mut config = Config::new();
    config.stack_size = 1 << 18;
    config.silence_warnings = true;
    // The seed is fixed: a failure occurs again.
    config.failure_persistence = FailurePersistence::None;
    Runner::new(scheduler, config).run(test);
}

fn check_all(test: fn(), schedules: usize) {
    check(test, RandomScheduler::new_from_seed(1, schedules));
    check(test, PctScheduler::new_from_seed(1, 3, schedules));
}

/// A seeded bug: its name, the functions that arm it and count how often it took effect, and the test
/// that finds it.
type Seeded = (String, Box<dyn Fn(bool)>, fn() -> u64, fn());

/// The bugs of a crate, with the test that finds each.
macro_rules! seeded {
    ($seeded:path, $($bug:ident: $test:expr),+) => {{
        use $seeded as seeded;
        let all: Vec<Seeded> = vec![$((
            format!("{:?}", seeded::Bug::$bug),
            Box::new(|armed| seeded::arm(armed.then_some(seeded::Bug::$bug))),
            seeded::fired,
            $test,
        )),+];
        assert_eq!(all.len(), seeded::Bug::ALL.len(), "each bug has a test");
        all
    }};
}

fn bugs() -> Vec<Seeded> {
    let mut all = seeded!(aerie_proto::seeded, IntentBesideTree: two_clients);
    all.extend(seeded!(
        aerie_server::seeded,
        GrantBeforeAnswer: two_clients,
        StaleRelease: two_clients,
        OldEpochAccepted: late_client
    ));
    all.extend(seeded!(
        crate::seeded,
        ReleaseBeforeShip: two_clients,
        CountNotReread: two_clients,
        GrantsAfterRevoke: two_clients,
        AncestorFirst: two_clients,
        EarlyRevokeIgnored: two_clients,
        GuardBesidePasses: two_clients,
        LoweredBesidePasses: two_clients,
        PassUnseen: threads_of_two_clients
    ));
    all
}

/// One test, since a bug is armed for the whole process.
#[test]
fn clients_in_many_orders() {
    for test in [
        two_clients,
        threads_of_two_clients,
        three_clients,
        late_client,
        dead_client,
    ] {
        check_all(test, bound(400, 20_000));
    }
    for (name, arm, fired, test) in bugs() {
        arm(true);
        let is_found = catch_unwind(|| check_all(test, 4000)).is_err();
        let effects = fired();
        arm(false);
        assert!(effects > 0, "{name} never took effect");
        assert!(is_found, "{name}");
    }
}
