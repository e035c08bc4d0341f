//! Memory of a client that fails.

use super::Memory;
use super::clients::{Link, client_on, service};
use crate::{Pxfs, Speculation};
use medium::{Faulty, PersistModel, PowerCut};
use std::sync::Arc;
use vfs::{Ctx, Errno, FileSystem, Ino};

type Failing = Arc<Faulty<Memory>>;
type Cut = Arc<PowerCut<Memory>>;
type Ship = fn(&Speculation<Failing, Link>) -> vfs::Result<()>;

const SHIPS: [Ship; 2] = [
    |client| client.sync(),
    |client| client.ship_beside(|end| end()),
];

fn size(fs: &dyn FileSystem) -> u64 {
    let found = fs.lookup(&Ctx::root(), Ino::ROOT, b"file").unwrap();
    fs.forget(found.ino, 1);
    found.size
}

/// The service as a client sees it.
fn seen(service: &Arc<Pxfs<Memory>>) -> u64 {
    size(&**service)
}

/// A call whose contents are not durable is dropped with those after it: no later ship names its pages.
#[test]
fn contents_that_are_not_durable_are_never_shipped() {
    for (ship, len) in SHIPS
        .into_iter()
        .flat_map(|ship| [(ship, 4096), (ship, 5000)])
    {
        let service = service(0);
        let memory = Arc::new(Faulty::new(service.store.memory().clone()));
        let client = client_on(memory.clone(), &service, 0, true);
        let cx = Ctx::root();
        let file = client.create(&cx, Ino::ROOT, b"file", 0o644).unwrap();
        client.write(&cx, file.ino, 0, &[1; 4096]).unwrap();
        client.sync().unwrap();
        client.write(&cx, file.ino, 4096, &vec![2; len]).unwrap();
        memory.fail_fence(Errno::IO.raw_os_error());
        assert_eq!(ship(&client), Err(Errno::IO));
        memory.heal();
        let _ = client.sync();
        assert_eq!(seen(&service), 4096, "the service");
        assert_eq!(size(&client), 4096, "the client");
    }
}

/// Random writes of a client in a file, of which the service has the batch. Then the power fails.
fn contents_after_a_cut(seed: u64) {
    let service = service(1_000);
    let memory: Cut = Arc::new(PowerCut::new(service.store.memory().clone()));
    let client = client_on(memory.clone(), &service, 0, true);
    let cx = Ctx::root();
    let file = client.create(&cx, Ino::ROOT, b"file", 0o644).unwrap().ino;
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut contents = Vec::new();
    for _ in 0..rng.usize(1..6) {
        let (off, len) = (rng.usize(..20_000), [9, 700, 4096, 9000][rng.usize(..4)]);
        let off = if rng.bool() { off } else { off / 4096 * 4096 };
        let part = vec![rng.u8(1..); len];
        assert_eq!(client.write(&cx, file, off as u64, &part), Ok(len));
        contents.resize(contents.len().max(off + len), 0);
        contents[off..off + len].copy_from_slice(&part);
        if rng.bool() {
            client.sync().unwrap();
        }
    }
    client.sync().unwrap();
    memory.cut(seed, PersistModel::Words).unwrap();
    let mut found = vec![1; contents.len() + 1];
    assert_eq!(service.read(&cx, file, 0, &mut found), Ok(contents.len()));
    let same = contents.iter().zip(&found).take_while(|(a, b)| a == b);
    assert_eq!(same.count(), contents.len(), "seed {seed}");
}

#[test]
fn contents_that_were_shipped_are_durable() {
    (0..64).for_each(contents_after_a_cut);
}
