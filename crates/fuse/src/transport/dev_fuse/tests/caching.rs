//! The kernel's caches: what may stay there, and what the server has dropped from them.

use super::kernel::{Body, Kernel, Packet, everything, op};
use super::model;
use super::stub::Failing;
use crate::options::MountOptions;
use fuser::InitFlags;
use oracle::ModelFs;
use std::sync::Arc;
use vfs::{Atomicity, Ctx, Errno, FileSystem, Ino};

/// Flags of a reply to OPEN.
const DIRECT_IO: u32 = 1;
const KEEP_CACHE: u32 = 2;

/// The code of a notification that an inode is stale.
const INVALIDATE_INODE: i32 = 2;

/// A server for a file system with atomic writes, and its one file, which is found under any
/// name and to which the kernel refers.
fn atomic(o: &MountOptions, offered: InitFlags) -> (Kernel, u64) {
    let model = ModelFs::default();
    let file = model
        .create(&Ctx::root(), Ino::ROOT, b"file", 0o600)
        .unwrap();
    let fs = Failing {
        data_atomic: Atomicity::Call,
        found: Some(file),
        ..Failing::with(Errno::IO)
    };
    let mut kernel = Kernel::start(Arc::new(fs), o, offered);
    let found = kernel.ok(op::LOOKUP, 1, &Body::new().name(b"file"));
    (kernel, found.u64(0))
}

fn open(kernel: &mut Kernel, node: u64, flags: i32) -> Packet {
    let body = Body::new().u32(flags as u32).u32(0);
    kernel.call(op::OPEN, node, &body)
}

fn opened(kernel: &mut Kernel, node: u64, flags: i32) -> u32 {
    let reply = open(kernel, node, flags);
    assert_eq!(reply.code, 0);
    reply.u32(8)
}

fn close(kernel: &mut Kernel, node: u64, flags: i32) {
    let body = Body::new().u64(0).u32(flags as u32).u32(0).u64(0);
    kernel.ok(op::RELEASE, node, &body);
}

fn is_stale_notice(packet: &Packet, node: u64) -> bool {
    (packet.unique, packet.code, packet.u64(0)) == (0, INVALIDATE_INODE, node)
}

#[test]
fn the_handshake_asks_for_no_writeback_and_for_large_requests() {
    let kernel = model();
    for flag in [
        InitFlags::FUSE_WRITEBACK_CACHE,
        InitFlags::FUSE_POSIX_LOCKS,
        InitFlags::FUSE_FLOCK_LOCKS,
        InitFlags::FUSE_ATOMIC_O_TRUNC,
        InitFlags::FUSE_AUTO_INVAL_DATA,
    ] {
        assert!(!kernel.has(flag), "{flag:?}");
    }
    for flag in super::super::WANTED {
        assert!(kernel.has(flag), "{flag:?}");
    }
    assert_eq!(kernel.negotiated.u32(20), 1 << 20, "bytes in a write");
    kernel.unmount().unwrap();
}

#[test]
fn an_old_kernel_is_served_with_what_it_offers() {
    let fs = Arc::new(ModelFs::default());
    let mut kernel = Kernel::start(fs, &MountOptions::default(), InitFlags::empty());
    for flag in super::super::WANTED {
        assert!(!kernel.has(flag), "{flag:?}");
    }
    let file = kernel.make_file(b"file", 0o600);
    assert_eq!(open(&mut kernel, file, libc::O_RDWR).code, -libc::ENOSYS);
    kernel.unmount().unwrap();
}

#[test]
fn writers_bypass_the_cache_where_writes_are_atomic() {
    let (mut kernel, file) = atomic(&MountOptions::default(), everything());
    assert_eq!(opened(&mut kernel, file, libc::O_RDONLY), KEEP_CACHE);
    assert_eq!(opened(&mut kernel, file, libc::O_RDWR), DIRECT_IO);
    // A reader beside a writer, and the first one after it, start with no pages.
    assert_eq!(opened(&mut kernel, file, libc::O_RDONLY), 0);
    close(&mut kernel, file, libc::O_RDONLY);
    close(&mut kernel, file, libc::O_RDWR);
    assert_eq!(opened(&mut kernel, file, libc::O_RDONLY), 0);
    assert_eq!(opened(&mut kernel, file, libc::O_RDONLY), KEEP_CACHE);
    // Directories do not bypass it.
    let dir = kernel.errno(op::OPENDIR, 1, &Body::new().u32(0).u32(0));
    assert_eq!(dir, libc::ENOSYS);
    kernel.unmount().unwrap();
}

#[test]
fn nothing_bypasses_the_cache_that_need_not() {
    let read_only = MountOptions {
        read_only: true,
        ..MountOptions::default()
    };
    let unmappable = everything() - InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
    for (options, offered) in [
        (read_only, everything()),
        (MountOptions::default(), unmappable),
    ] {
        let (mut kernel, file) = atomic(&options, offered);
        assert_eq!(open(&mut kernel, file, libc::O_RDWR).code, -libc::ENOSYS);
        kernel.unmount().unwrap();
    }
}

#[test]
fn every_read_reaches_the_server_if_access_times_are_strict() {
    let options = MountOptions {
        strict_atime: true,
        ..MountOptions::default()
    };
    let fs = Arc::new(ModelFs::default());
    let mut kernel = Kernel::start(fs, &options, everything());
    assert!(!kernel.has(InitFlags::FUSE_CACHE_SYMLINKS));
    let create = Body::new().u32(libc::O_RDWR as u32).u32(0o100_600).u64(0);
    let made = kernel.ok(op::CREATE, 1, &create.name(b"file"));
    // The entry, a handle and the flags.
    assert_eq!(made.u32(128 + 8), DIRECT_IO);
    let file = made.u64(0);
    assert_eq!(opened(&mut kernel, file, libc::O_RDONLY), DIRECT_IO);
    close(&mut kernel, file, libc::O_RDONLY);
    let quiet = Body::new().u32(libc::O_NOATIME as u32).u32(0);
    let quiet = kernel.ok(op::OPENDIR, 1, &quiet).u64(0);
    let usual = Body::new().u32(0).u32(0);
    assert_ne!(kernel.ok(op::OPENDIR, 1, &usual).u64(0), quiet);
    kernel.unmount().unwrap();
}

/// The notification is sent before the reply, after which the caller may look.
#[test]
fn a_write_that_drops_the_set_id_bits_makes_the_attributes_stale() {
    const KILL_SUIDGID: u32 = 4;
    let mut kernel = model();
    let file = kernel.make_file(b"file", 0o4755);
    let plain = kernel.write(file, 0, b"data", 0);
    assert_eq!(kernel.receive().unique, plain);
    for is_first in [true, false] {
        let unique = kernel.write(file, 0, b"data", KILL_SUIDGID);
        if is_first {
            assert!(is_stale_notice(&kernel.receive(), file));
        }
        assert_eq!(kernel.receive().unique, unique);
    }
    let attr = kernel.ok(op::GETATTR, file, &Body::new().u32(0).u32(0).u64(0));
    assert_eq!(attr.u32(16 + 60), 0o100_755);
    kernel.unmount().unwrap();
}

/// The kernel may have dropped the inode and not yet said so.
#[test]
fn free_space_is_counted_after_asking_for_inodes_without_a_name() {
    let fs = Failing {
        nameless: vec![Ino(7)],
        ..Failing::with(Errno::IO)
    };
    let mut kernel = Kernel::start(Arc::new(fs), &MountOptions::default(), everything());
    let unique = kernel.send(op::STATFS, 1, &Body::new());
    assert!(is_stale_notice(&kernel.receive(), 7));
    assert_eq!(kernel.receive().unique, unique);
    kernel.unmount().unwrap();
}

#[test]
fn nothing_is_cached_of_a_shared_file_system() {
    let options = MountOptions {
        shared: true,
        ..MountOptions::default()
    };
    let fs = Arc::new(ModelFs::default());
    let mut kernel = Kernel::start(fs, &options, everything());
    assert!(!kernel.has(InitFlags::FUSE_CACHE_SYMLINKS));
    // Lifetimes of the entry and of the attributes: seconds, seconds, nanoseconds, nanoseconds.
    let is_kept = |reply: &[u64]| reply.iter().any(|lifetime| *lifetime != 0);
    let file = kernel.make_file(b"file", 0o600);
    let found = kernel.ok(op::LOOKUP, 1, &Body::new().name(b"file"));
    assert!(!is_kept(&[found.u64(16), found.u64(24), found.u64(32)]));
    let absent = kernel.ok(op::LOOKUP, 1, &Body::new().name(b"absent"));
    assert!(absent.u64(0) == 0 && !is_kept(&[absent.u64(16), absent.u64(32)]));
    let attr = kernel.ok(op::GETATTR, file, &Body::new().u64(0).u64(0));
    assert!(!is_kept(&[attr.u64(0)]));
    assert_eq!(opened(&mut kernel, file, libc::O_RDONLY), DIRECT_IO);
    kernel.unmount().unwrap();
}
