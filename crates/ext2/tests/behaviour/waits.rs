//! Calls that wait for the device do not hold up others: at each read of the device that a
//! call makes for metadata, another thread's calls come to their end.

use super::fixture::{clock, device, e2fsck, mke2fs, mount, options};
use ext2::{Ext2, Options};
use lfs::{Universal, UniversalOptions};
use medium::block::{BlockDevice, BlockError, Completion, Geometry, Lba, MemoryDevice};
use medium::block::{Persistence, Write};
use patch::Cache;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use vfs::{Cookie, Ctx, FileSystem, Ino, OpenFlags, SeekKind};

type Fs = Universal<Ext2>;

/// Name of the thread whose reads are held.
const SLOW: &str = "slow";

/// What the slow thread reports.
enum Event {
    /// It reads from the device, and waits until it is let go.
    Reads,
    Ended,
}

/// A device that holds each read of the slow thread.
struct Held {
    memory: Arc<MemoryDevice>,
    events: Sender<Event>,
    go: Mutex<Receiver<()>>,
}

impl BlockDevice for Held {
    fn name(&self) -> &str {
        "held"
    }
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }
    fn persistence(&self) -> Persistence {
        self.memory.persistence()
    }
    fn read(&self, lba: Lba, buf: &mut [u8]) -> Result<(), BlockError> {
        if std::thread::current().name() == Some(SLOW) {
            self.events.send(Event::Reads).unwrap();
            self.go.lock().unwrap().recv().unwrap();
        }
        self.memory.read(lba, buf)
    }
    fn submit(&self, writes: Vec<Write>) {
        self.memory.submit(writes);
    }
    fn reap(&self, min: usize) -> Vec<Completion> {
        self.memory.reap(min)
    }
    fn flush(&self) -> Result<(), BlockError> {
        self.memory.flush()
    }
    fn discard(&self, lba: Lba, blocks: u64) -> Result<(), BlockError> {
        self.memory.discard(lba, blocks)
    }
}

fn at(fs: &Fs, dir: Ino, name: &[u8]) -> Ino {
    fs.lookup(&Ctx::root(), dir, name).unwrap().ino
}

/// A name that fills much of a block of 1 KiB.
fn long_name(n: usize) -> Vec<u8> {
    format!("{n:0200}").into_bytes()
}

/// An image with directories `cold`, of more blocks than an inode has pointers to, `few`, of
/// three, and `warm`.
fn image() -> Vec<u8> {
    let cx = Ctx::root();
    let mounted = mount(mke2fs(&["-b", "1024", "-N", "2048", "-g", "2048"], "8M"));
    let fs = &mounted.fs;
    let mkdir = |dir, name: &[u8]| fs.mkdir(&cx, dir, name, 0o755).unwrap().ino;
    for (dir, files) in [(&b"cold"[..], 100), (b"few", 10), (b"warm", 1)] {
        let dir = mkdir(Ino::ROOT, dir);
        for n in 0..files {
            let file = fs.create(&cx, dir, &long_name(n), 0o644).unwrap().ino;
            let (far, data) = (300 * 1024 * (n as u64 % 4), [1; 3000]);
            assert_eq!(fs.write(&cx, file, far, &data), Ok(data.len()));
            let mode = vfs::XattrMode::Set;
            fs.setxattr(&cx, file, b"user.x", b"value", mode).unwrap();
        }
        mkdir(dir, b"sub");
        fs.symlink(&cx, dir, b"link", &[b'x'; 200]).unwrap();
    }
    mounted.close()
}

/// What another thread does meanwhile: it needs no block that is not in memory.
fn live(fs: &Fs, round: usize) {
    let cx = Ctx::root();
    let warm = at(fs, Ino::ROOT, b"warm");
    let name = format!("file {round}").into_bytes();
    let file = fs.create(&cx, warm, &name, 0o644).unwrap().ino;
    assert_eq!(fs.write(&cx, file, 0, &[2; 5000]), Ok(5000));
    let mut data = [0; 5000];
    assert_eq!(fs.read(&cx, file, 0, &mut data), Ok(5000));
    assert_eq!(data, [2; 5000]);
    assert_eq!(fs.getattr(&cx, file).unwrap().size, 5000);
    fs.readdir(&cx, warm, Cookie(0), &mut |_| true).unwrap();
    fs.unlink(&cx, warm, &name).unwrap();
    fs.forget(file, 1);
}

/// Runs a call on a mount that has only what `live` needs in memory; `live` runs each time
/// that the call reads. Returns how often that was.
fn reads_of(image: &[u8], name: &str, call: impl FnOnce(&Fs) + Send + 'static) -> usize {
    let memory = device(image.to_vec());
    let (events, seen) = channel();
    let (go, go_on) = channel();
    let held = Held {
        memory: memory.clone(),
        events: events.clone(),
        go: Mutex::new(go_on),
    };
    let cache = Arc::new(Cache::new(vec![Box::new(held)], options(2000)));
    let low = Options {
        clock: clock(),
        ..Options::default()
    };
    let universal = UniversalOptions {
        atime: vfs::Atime::Never,
        ..UniversalOptions::new(vfs::ModelFs::default().guarantees())
    };
    let low = Ext2::open(Arc::new(cache.volume(0)), low).unwrap();
    let fs = Arc::new(Universal::open(low, universal).unwrap());
    live(&fs, 0);
    let slow = std::thread::Builder::new().name(SLOW.into());
    let its = fs.clone();
    let slow = slow.spawn(move || {
        call(&its);
        events.send(Event::Ended).unwrap();
    });
    let within = Duration::from_secs(60); // rather than hang
    let mut reads = 0;
    while let Event::Reads = seen.recv_timeout(within).unwrap() {
        reads += 1;
        let (done, ended) = channel();
        let its = fs.clone();
        std::thread::spawn(move || {
            live(&its, reads);
            done.send(()).unwrap();
        });
        let ended = ended.recv_timeout(within);
        assert!(ended.is_ok(), "{name}: its read {reads} holds up others");
        go.send(()).unwrap();
    }
    slow.unwrap().join().unwrap();
    fs.close().unwrap();
    assert_eq!(e2fsck(&memory.bytes()), None, "{name}");
    reads
}

/// Runs a call; it must read at least so often.
fn must_not_hold_up(name: &str, least: usize, call: impl FnOnce(&Fs) + Send + 'static) {
    let reads = reads_of(&image(), name, call);
    assert!(reads >= least, "{name} reads {reads} times only");
}

#[test]
fn looking_does_not_hold_up_others() {
    for dir in [b"cold", &b"few"[..]] {
        must_not_hold_up("lookup", 2, |fs| {
            at(fs, at(fs, Ino::ROOT, dir), &long_name(9));
        });
        must_not_hold_up("readdir", 1, |fs| {
            let mut names = 0;
            let count = &mut |_: &vfs::DirEntry<'_>| {
                names += 1;
                true
            };
            let dir = at(fs, Ino::ROOT, dir);
            fs.readdir(&Ctx::root(), dir, Cookie(0), count).unwrap();
            assert!(names == 104 || names == 14, "{names}");
        });
        must_not_hold_up("readdirplus", 2, |fs| {
            let mut sizes = Vec::new();
            let count = &mut |_: &vfs::DirEntry<'_>, attr: &vfs::Attr| {
                sizes.push(attr.size);
                true
            };
            let dir = at(fs, Ino::ROOT, dir);
            fs.readdirplus(&Ctx::root(), dir, Cookie(0), count).unwrap();
            assert!(sizes.len() == 104 || sizes.len() == 14, "{sizes:?}");
        });
    }
    must_not_hold_up("attributes", 2, |fs| {
        let file = at(fs, at(fs, Ino::ROOT, b"cold"), &long_name(70));
        assert_eq!(
            fs.getxattr(&Ctx::root(), file, b"user.x").unwrap(),
            b"value"
        );
        assert_eq!(fs.listxattr(&Ctx::root(), file).unwrap().len(), 1);
    });
    must_not_hold_up("readlink", 2, |fs| {
        let link = at(fs, at(fs, Ino::ROOT, b"cold"), b"link");
        assert_eq!(fs.readlink(&Ctx::root(), link).unwrap(), [b'x'; 200]);
    });
    must_not_hold_up("seek and read", 2, |fs| {
        let file = at(fs, at(fs, Ino::ROOT, b"cold"), &long_name(3));
        fs.open(&Ctx::root(), file, OpenFlags::READ).unwrap();
        assert_eq!(
            fs.seek(&Ctx::root(), file, 0, SeekKind::Data),
            Ok(900 * 1024)
        );
        let mut data = [0; 4000];
        assert_eq!(fs.read(&Ctx::root(), file, 900 * 1024, &mut data), Ok(3000));
        assert_eq!(data[..3000], [1; 3000]);
    });
}
