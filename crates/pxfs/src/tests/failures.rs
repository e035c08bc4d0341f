//! Memory of a client that fails.

use super::Memory;
use super::clients::{Link, client_on, service};
use crate::{Pxfs, Speculation};
use medium::Faulty;
use std::sync::Arc;
use vfs::{Ctx, Errno, FileSystem, Ino};

type Failing = Arc<Faulty<Memory>>;
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
