//! A client that reads what all clients share, while the service changes it: at each load of a call.

use super::Memory;
use super::clients::{client_on, service};
use crate::Pxfs;
use medium::layer::PmemLayer;
use medium::{MediumError, MemoryPmem, Pmem};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use vfs::{Ctx, Errno, FileSystem, Ino, XattrMode};

type Then = Box<dyn FnOnce() + Send>;

/// Memory of a client. Something happens before one of its loads.
struct Raced {
    below: Memory,
    loads: AtomicU64,
    then: Mutex<Option<(u64, Then)>>,
}

impl Raced {
    fn count(&self) {
        let loads = self.loads.fetch_add(1, SeqCst);
        let due = self.then.lock().unwrap().take_if(|(at, _)| *at == loads);
        if let Some((_, then)) = due {
            then();
        }
    }

    /// Has something happen before this load from now on.
    fn before(&self, load: u64, then: Then) {
        let at = self.loads.load(SeqCst) + load;
        *self.then.lock().unwrap() = Some((at, then));
    }
}

impl PmemLayer for Raced {
    type Below = MemoryPmem;

    fn below(&self) -> &MemoryPmem {
        &self.below
    }

    fn load(&self, off: u64) -> Result<u64, MediumError> {
        self.count();
        Pmem::load(&*self.below, off)
    }

    fn read(&self, off: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.count();
        Pmem::read(&*self.below, off, buf)
    }
}

const FILES: usize = 60;

fn files(service: &Pxfs<Memory>) -> Vec<Ino> {
    let files = (0..FILES).map(|n| {
        let name = format!("{n}");
        let made = service.create(&Ctx::root(), Ino::ROOT, name.as_bytes(), 0o600);
        made.unwrap().ino
    });
    files.collect()
}

/// Gives extended attributes to all of these files, or takes them. The freed memory gets other contents.
fn change(service: &Pxfs<Memory>, files: &[Ino], has_some: bool) {
    let cx = &Ctx::root();
    for (n, file) in files.iter().enumerate() {
        let (name, value) = (b"user.other", [n as u8; 40]);
        let done = match has_some {
            true => service.setxattr(cx, *file, name, &value, XattrMode::Set),
            false => service.removexattr(cx, *file, name),
        };
        assert!(matches!(done, Ok(()) | Err(Errno::NODATA)));
    }
    service.write(cx, files[0], 0, &[0xff; 9 * 4096]).unwrap();
    let set = vfs::SetAttr {
        size: Some(0),
        ..vfs::SetAttr::default()
    };
    service.setattr(cx, files[0], &set).unwrap();
}

/// The attributes of a file are looked up while those of others come or go. Returns whether the load took place.
fn race(load: u64, has_some: bool) -> bool {
    let service = service(1_000);
    let files = files(&service);
    let (cx, own, name) = (&Ctx::root(), files[FILES / 2], b"user.own");
    let others = [&files[..FILES / 2], &files[FILES / 2 + 1..]].concat();
    let set = service.setxattr(cx, own, name, b"value", XattrMode::Set);
    set.unwrap();
    if !has_some {
        change(&service, &others, true);
    }
    let memory = Arc::new(Raced {
        below: service.store.memory().clone(),
        loads: AtomicU64::new(0),
        then: Mutex::default(),
    });
    let client = client_on(memory.clone(), &service, 0, false);
    let name_of_own = format!("{}", FILES / 2);
    let found = client.lookup(cx, Ino::ROOT, name_of_own.as_bytes());
    assert_eq!(found.unwrap().ino, own);
    let change = move || change(&service, &others, has_some);
    memory.before(load, Box::new(change));
    let value = client.getxattr(cx, own, name);
    assert_eq!(value.as_deref(), Ok(&b"value"[..]), "at load {load}");
    memory.then.lock().unwrap().take().is_none()
}

#[test]
fn extended_attributes_are_read_beside_changes_of_those_of_other_files() {
    for has_some in [true, false] {
        let loads = (0..).take_while(|load| race(*load, has_some)).count();
        assert!(loads > 5, "{loads} loads");
    }
}
