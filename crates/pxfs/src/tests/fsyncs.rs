//! Threads of one client that make files and fsync them: each file is at the service when its fsync returns.

use super::clients::{client, service};
use crate::seeded::{Bug, arm};
use std::thread::scope;
use vfs::{Ctx, FileSystem, Ino};

const THREADS: usize = 4;
const FILES: usize = 100;

/// The number of fsyncs that have returned without their file. Another thread ships beside them.
fn lost(is_trusted: bool, bug: Option<Bug>) -> usize {
    let service = service(1000);
    let client = client(&service, is_trusted);
    let lost = scope(|scope| {
        let (client, service) = (&client, &service);
        let threads = [(); THREADS].map(|()| {
            scope.spawn(move || {
                arm(bug);
                let thread = format!("{:?}", std::thread::current().id());
                let is_lost = |n: &usize| {
                    let (cx, name) = (Ctx::root(), format!("{thread}-{n}"));
                    let made = client.create(&cx, Ino::ROOT, name.as_bytes(), 0o644);
                    let ino = made.unwrap().ino;
                    client.fsync(&cx, ino, false).unwrap();
                    let found = service.lookup(&cx, Ino::ROOT, name.as_bytes());
                    found.iter().for_each(|found| service.forget(found.ino, 1));
                    client.forget(ino, 1);
                    found.is_err()
                };
                (0..FILES).filter(is_lost).count()
            })
        });
        while threads.iter().any(|thread| !thread.is_finished()) {
            client.ship_beside(|end| end()).unwrap();
        }
        let lost = threads.map(|thread| thread.join().unwrap());
        lost.iter().sum()
    });
    drop(client);
    assert_eq!(service.audit(), []);
    lost
}

#[test]
fn an_fsync_beside_others_returns_when_the_service_has_the_file() {
    for is_trusted in [true, false] {
        assert_eq!(lost(is_trusted, None), 0);
        let is_found = || lost(is_trusted, Some(Bug::ShipEndedLate)) > 0;
        assert!((0..100).any(|_| is_found()), "the bug is not found");
    }
}
