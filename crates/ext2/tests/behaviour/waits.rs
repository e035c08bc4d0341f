//! Calls that wait for the device do not block others. During each read of metadata by one call,
//! another thread's calls finish.

use super::fixture::{clock, device, e2fsck, mke2fs, mount, options};
use super::twins::changed;
use blockfs::mount::OpenOptions;
use blockfs::{BlockFs, BlockFsOptions, Format};
use ext2::Ext2;
use medium::block::MemoryDevice;
use medium::block::{BlockDevice, BlockError, FaultyDevice, Lba};
use patch::{Cache, CacheOptions, Store};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use vfs::{
    Cookie, Ctx, Errno, Fallocate, FileSystem, Guarantees, Ino, Name, OpenFlags, RenameFlags,
    SeekKind, SetAttr,
};

type Fs = BlockFs<Ext2>;

/// Name of the thread whose reads are held.
const SLOW: &str = "slow";

/// A report of the slow thread.
enum Event {
    /// It reads from the device, and waits until it is released.
    Reads,
    Ended,
}

/// A device that holds each read of the slow thread.
struct Held {
    memory: Arc<MemoryDevice>,
    events: Sender<Event>,
    go: Mutex<Receiver<()>>,
}

impl medium::block::layer::DeviceLayer for Held {
    type Below = MemoryDevice;

    fn below(&self) -> &MemoryDevice {
        &self.memory
    }

    fn name(&self) -> &str {
        "held"
    }
    fn read(&self, lba: Lba, buf: &mut [u8]) -> Result<(), BlockError> {
        if std::thread::current().name() == Some(SLOW) {
            self.events.send(Event::Reads).unwrap();
            self.go.lock().unwrap().recv().unwrap();
        }
        self.below().read(lba, buf)
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

/// Runs calls of another thread meanwhile. They need only blocks in memory.
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

/// Runs a call on a mount with only the blocks of `live` in memory. `live` runs at each read of the
/// call. Returns the number of reads.
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
    let options = OpenOptions {
        clock: clock(),
        ..OpenOptions::default()
    };
    let format = Ext2::open(Arc::new(cache.store(0)), options).unwrap();
    let options = BlockFsOptions {
        atime: vfs::Atime::Never,
        ..BlockFsOptions::new(Guarantees::none("test"))
    };
    let fs = Arc::new(BlockFs::open(format, options).unwrap());
    live(&fs, 0);
    let slow = std::thread::Builder::new().name(SLOW.into());
    let its = fs.clone();
    let slow = slow.spawn(move || {
        call(&its);
        events.send(Event::Ended).unwrap();
    });
    let within = Duration::from_secs(60); // to fail rather than hang
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

/// Runs a call, which must read at least `least` times.
fn must_not_hold_up(name: &str, least: usize, call: impl FnOnce(&Fs) + Send + 'static) {
    let reads = reads_of(&image(), name, call);
    assert!(reads >= least, "{name} reads {reads} times only");
}

#[test]
fn making_names_does_not_hold_up_others() {
    for dir in [b"cold", &b"few"[..]] {
        must_not_hold_up("create", 2, |fs| {
            let dir = at(fs, Ino::ROOT, dir);
            // Enough for another block.
            for n in 0..6 {
                let name = long_name(1000 + n);
                fs.create(&Ctx::root(), dir, &name, 0o644).unwrap();
            }
        });
        must_not_hold_up("mkdir", 2, |fs| {
            let dir = at(fs, Ino::ROOT, dir);
            fs.mkdir(&Ctx::root(), dir, b"new", 0o755).unwrap();
        });
        must_not_hold_up("symlink", 2, |fs| {
            let dir = at(fs, Ino::ROOT, dir);
            fs.symlink(&Ctx::root(), dir, b"new", &[b'y'; 200]).unwrap();
        });
        must_not_hold_up("link", 2, |fs| {
            let dir = at(fs, Ino::ROOT, dir);
            let file = at(fs, dir, &long_name(2));
            fs.link(&Ctx::root(), file, dir, b"again").unwrap();
        });
        must_not_hold_up("tmpfile", 1, |fs| {
            let dir = at(fs, Ino::ROOT, dir);
            let file = fs.tmpfile(&Ctx::root(), dir, 0o644).unwrap().ino;
            fs.forget(file, 1);
        });
    }
}

#[test]
fn removing_names_does_not_hold_up_others() {
    let cx = Ctx::root;
    for dir in [b"cold", &b"few"[..]] {
        must_not_hold_up("unlink", 3, move |fs| {
            let dir = at(fs, Ino::ROOT, dir);
            for n in 0..4 {
                fs.unlink(&cx(), dir, &long_name(n)).unwrap();
            }
        });
        must_not_hold_up("forget", 3, move |fs| {
            let dir = at(fs, Ino::ROOT, dir);
            let file = at(fs, dir, &long_name(3));
            fs.unlink(&cx(), dir, &long_name(3)).unwrap();
            fs.forget(file, 1);
        });
        must_not_hold_up("rmdir", 2, move |fs| {
            fs.rmdir(&cx(), at(fs, Ino::ROOT, dir), b"sub").unwrap();
        });
        must_not_hold_up("rename", 3, move |fs| {
            let (dir, warm) = (at(fs, Ino::ROOT, dir), at(fs, Ino::ROOT, b"warm"));
            let flags = RenameFlags::empty();
            let rename = |name: &[u8], new: &[u8]| {
                fs.rename(&cx(), Name::new(dir, name), Name::new(warm, new), flags)
            };
            rename(&long_name(1), b"file").unwrap();
            rename(b"sub", b"directory").unwrap();
            fs.rename(
                &cx(),
                Name::new(warm, b"file"),
                Name::new(dir, &long_name(2)),
                flags,
            )
            .unwrap();
            fs.rename(
                &cx(),
                Name::new(warm, b"directory"),
                Name::new(dir, b"back"),
                flags,
            )
            .unwrap();
        });
    }
}

#[test]
fn changing_files_does_not_hold_up_others() {
    let cx = Ctx::root;
    let file = |fs: &Fs, n| at(fs, at(fs, Ino::ROOT, b"cold"), &long_name(n));
    must_not_hold_up("chmod", 2, move |fs| {
        let set = SetAttr {
            perm: Some(0o600),
            ..SetAttr::default()
        };
        fs.setattr(&cx(), file(fs, 5), &set).unwrap();
    });
    for size in [0, 301 * 1024 + 5, 900 * 1024] {
        must_not_hold_up("truncate", 3, move |fs| {
            let set = SetAttr {
                size: Some(size),
                ..SetAttr::default()
            };
            fs.setattr(&cx(), file(fs, 9), &set).unwrap();
        });
    }
    must_not_hold_up("open with O_TRUNC", 3, move |fs| {
        let flags = OpenFlags::WRITE | OpenFlags::TRUNCATE;
        fs.open(&cx(), file(fs, 3), flags).unwrap();
    });
    for (off, len) in [(900 * 1024 + 2000, 9000), (10, 5), (400 * 1024, 70_000)] {
        must_not_hold_up("write", 3, move |fs| {
            let data = vec![3; len];
            assert_eq!(fs.write(&cx(), file(fs, 3), off, &data), Ok(len));
        });
    }
    let kinds = [
        Fallocate::PunchHole,
        Fallocate::ZeroRange { keep_size: false },
        Fallocate::Allocate { keep_size: false },
    ];
    for kind in kinds {
        must_not_hold_up("fallocate", 3, move |fs| {
            let (file, off) = (file(fs, 3), 900 * 1024 + 100);
            fs.fallocate(&cx(), file, kind, off, 20_000).unwrap();
        });
    }
    must_not_hold_up("extended attributes", 3, move |fs| {
        let (file, set) = (file(fs, 7), vfs::XattrMode::Set);
        fs.setxattr(&cx(), file, b"user.y", b"other", set).unwrap();
        fs.removexattr(&cx(), file, b"user.x").unwrap();
        fs.removexattr(&cx(), file, b"user.y").unwrap();
    });
}

/// With several threads and a very small cache, every call ends with the right result.
#[test]
fn calls_end_in_a_cache_that_evicts() {
    const FILES: usize = 12;
    let mounted = super::fixture::Mounted::try_open(
        device(image()),
        CacheOptions {
            blocks: 6,
            ..options(400)
        },
    );
    let mounted = mounted.unwrap();
    let fs = &mounted.fs;
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            scope.spawn(move || {
                let cx = Ctx::root();
                let dir = at(
                    fs,
                    Ino::ROOT,
                    if thread % 2 == 0 { b"cold" } else { b"few" },
                );
                let name = |n| format!("{thread} {n:0100}").into_bytes();
                for n in 0..FILES {
                    let file = fs.create(&cx, dir, &name(n), 0o644).unwrap().ino;
                    assert_eq!(fs.write(&cx, file, 300_000, &[thread; 2000]), Ok(2000));
                    fs.forget(file, 1);
                }
                for n in 0..FILES {
                    let file = at(fs, dir, &name(n));
                    let mut data = [0; 2000];
                    assert_eq!(fs.read(&cx, file, 300_000, &mut data), Ok(2000));
                    assert_eq!(data, [thread; 2000]);
                    fs.forget(file, 1);
                    fs.unlink(&cx, dir, &name(n)).unwrap();
                    assert!(fs.lookup(&cx, dir, &name(n)).is_err());
                }
            });
        }
    });
    assert_eq!(e2fsck(&mounted.close()), None);
}

/// A block that cannot be read is an error of the call, and not damage.
#[test]
fn a_failed_read_is_an_error_of_the_call() {
    let memory = device(image());
    let faulty = Arc::new(FaultyDevice::new(memory.clone()));
    let cache = Arc::new(Cache::new(vec![Box::new(faulty.clone())], options(400)));
    let format = Ext2::open(Arc::new(cache.store(0)), OpenOptions::default()).unwrap();
    let options = BlockFsOptions::new(Guarantees::none("test"));
    let fs = BlockFs::open(format, options).unwrap();
    let cold = at(&fs, Ino::ROOT, b"cold");
    let block = fs
        .format()
        .block_of(fs.format().root(), 0)
        .unwrap()
        .unwrap();
    assert!(cache.store(0).cached(block).is_some(), "the root was read");
    let block = fs.format().block_of(cold, 0).unwrap().unwrap();
    faulty.fail_reads(block..Lba(block.0 + 1), rustix::io::Errno::IO);
    let cx = Ctx::root();
    assert_eq!(fs.lookup(&cx, cold, b"sub").unwrap_err(), Errno::IO);
    let created = fs.create(&cx, cold, b"new", 0o644);
    assert_eq!(created.unwrap_err(), Errno::IO);
    assert_eq!(fs.unlink(&cx, cold, b"sub"), Err(Errno::IO));
    assert_eq!(
        fs.readdir(&cx, cold, Cookie(0), &mut |_| true),
        Err(Errno::IO)
    );
    assert!(
        !ext2::probe(&*memory).unwrap().errors,
        "the image is not marked"
    );
    fs.create(&cx, Ino::ROOT, b"new", 0o644).unwrap();
    faulty.heal();
    at(&fs, cold, b"sub");
    fs.close().unwrap();
    assert_eq!(e2fsck(&memory.bytes()), None);
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
            let count = &mut |_: &vfs::DirEntry<'_>, attr: Option<&vfs::Attr>| {
                sizes.push(attr.unwrap().size);
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

/// After a crash the removal of a directory with a link too many reads the names of the tree.
#[test]
fn looking_for_second_names_does_not_hold_up_others() {
    let lines = "sif few/sub links_count 3\nssv state 0\n";
    let image = changed(&image(), lines);
    let cx = Ctx::root;
    let removed = reads_of(&image, "rmdir", move |fs| {
        let few = at(fs, Ino::ROOT, b"few");
        fs.rmdir(&cx(), few, b"sub").unwrap();
    });
    let replaced = reads_of(&image, "rename", move |fs| {
        let (few, warm) = (at(fs, Ino::ROOT, b"few"), at(fs, Ino::ROOT, b"warm"));
        let flags = RenameFlags::empty();
        fs.rename(
            &cx(),
            Name::new(warm, b"sub"),
            Name::new(few, b"sub"),
            flags,
        )
        .unwrap();
    });
    assert!(removed >= 10 && replaced >= 10, "{removed}, {replaced}");
}
