//! Calls that fail, requests that are not served, and calls that take long.

use super::kernel::{Body, Kernel, everything, op, read_body, request, write_body};
use super::model;
use super::stub::Failing;
use crate::options::MountOptions;
use std::io::ErrorKind;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use vfs::Errno;

/// A request of each kind that the file system answers.
fn requests() -> Vec<(u32, Body)> {
    let body = Body::new;
    let two_names = |b: Body| b.name(b"one").name(b"two");
    let list = || body().u64(0).u64(0).u32(4096).u32(0).u64(0).u64(0);
    let sync = || body().u64(0).u32(0).u32(0);
    vec![
        (op::LOOKUP, body().name(b"one")),
        (op::LOOKUP, body().name(b".")),
        (op::LOOKUP, body().name(b"..")),
        (op::GETATTR, body().u32(0).u32(0).u64(0)),
        (op::SETATTR, body().bytes(&[0; 88])),
        (op::READLINK, body()),
        (op::SYMLINK, two_names(body())),
        (op::MKNOD, body().u32(0o100_600).u32(0).u64(0).name(b"one")),
        (op::MKNOD, body().u32(0o010_600).u32(0).u64(0).name(b"one")),
        (op::MKDIR, body().u32(0o755).u32(0).name(b"one")),
        (op::UNLINK, body().name(b"one")),
        (op::RMDIR, body().name(b"one")),
        (op::RENAME, two_names(body().u64(1))),
        (op::RENAME2, two_names(body().u64(1).u32(0).u32(0))),
        (op::LINK, body().u64(2).name(b"one")),
        (op::READ, read_body(0, 100)),
        (op::WRITE, write_body(0, b"data", 0)),
        (op::WRITE, write_body(0, b"data", 4)),
        (op::FSYNC, sync()),
        (op::FSYNCDIR, sync()),
        (op::READDIR, list()),
        (op::READDIRPLUS, list()),
        (op::STATFS, body()),
        (
            op::SETXATTR,
            body().u32(1).u32(0).name(b"user.a").bytes(b"v"),
        ),
        (op::GETXATTR, body().u32(0).u32(0).name(b"user.a")),
        (op::GETXATTR, body().u32(0).u32(0).name(b"selvedge.sync")),
        (op::LISTXATTR, body().u32(0).u32(0)),
        (op::REMOVEXATTR, body().name(b"user.a")),
        (op::FALLOCATE, body().u64(0).u64(0).u64(100).u32(0).u32(0)),
        (
            op::LSEEK,
            body().u64(0).u64(0).u32(libc::SEEK_HOLE as u32).u32(0),
        ),
    ]
}

#[test]
fn every_call_hands_on_the_errno_of_the_file_system() {
    for errno in [Errno::IO, Errno::NOSPC, Errno::UCLEAN] {
        let fs = Arc::new(Failing::with(errno));
        // The server then finds holes itself.
        let strict = MountOptions {
            strict_atime: true,
            ..MountOptions::default()
        };
        let mut kernel = Kernel::start(fs, &strict, everything());
        let before = crate::io_errors();
        for (opcode, body) in requests() {
            let failed = kernel.errno(opcode, 2, &body);
            assert_eq!(failed, errno.raw_os_error(), "of {opcode}");
        }
        // Other tests count as well.
        let counted = crate::io_errors() - before;
        let sick = matches!(errno, Errno::IO | Errno::UCLEAN);
        assert!(!sick || counted >= requests().len() as u64, "{counted}");
        kernel.unmount().unwrap();
    }
}

/// A name that is absent is an answer that the kernel may cache.
#[test]
fn an_absent_name_is_not_a_failure() {
    let fs = Arc::new(Failing::with(Errno::NOENT));
    let mut kernel = Kernel::start(fs, &MountOptions::default(), everything());
    let absent = kernel.ok(op::LOOKUP, 1, &Body::new().name(b"one"));
    assert_eq!(absent.u64(0), 0);
    kernel.unmount().unwrap();
}

/// `ENOSYS` makes the kernel do these itself, and not ask again.
#[test]
fn the_kernel_is_asked_to_do_what_it_does_better() {
    let mut kernel = model();
    let file = kernel.make_file(b"file", 0o600);
    let none = |bytes: usize| Body::new().bytes(&vec![0; bytes]);
    for (opcode, body) in [
        (op::OPEN, none(8)),
        (op::OPENDIR, none(8)),
        (op::CREATE, none(16).name(b"new")),
        (op::FLUSH, none(24)),
        (op::ACCESS, none(8)),
        (op::POLL, none(24)),
        (op::COPY_FILE_RANGE, none(56)),
        (op::INTERRUPT, none(8)),
    ] {
        // Without mappings of files that bypass the cache, opens do not reach the server.
        assert_eq!(kernel.errno(opcode, file, &body), libc::ENOSYS, "{opcode}");
    }
    assert_eq!(kernel.errno(op::IOCTL, file, &none(32)), libc::ENOTTY);
    kernel.unmount().unwrap();
}

#[test]
fn a_request_that_is_cut_off_or_unknown_is_refused() {
    let mut kernel = model();
    for (opcode, body) in [
        (op::LOOKUP, Body::new().bytes(b"no end")),
        (op::MKNOD, Body::new().u32(0o100_600)),
        (op::RENAME, Body::new().u64(1).name(b"one")),
        (op::WRITE, Body::new().u64(0)),
        (op::SETATTR, Body::new().bytes(&[0; 40])),
        (7, Body::new()),
        (4000, Body::new()),
    ] {
        assert_eq!(kernel.errno(opcode, 1, &body), libc::ENOSYS, "{opcode}");
    }
    kernel.ok(op::GETATTR, 1, &Body::new().u32(0).u32(0).u64(0));
    kernel.unmount().unwrap();
}

#[test]
fn a_second_handshake_is_refused() {
    let mut kernel = model();
    let init = Body::new().u32(7).u32(40).bytes(&[0; 56]);
    assert_eq!(kernel.errno(op::INIT, 0, &init), libc::EIO);
    kernel.unmount().unwrap();
}

#[test]
fn a_packet_that_is_not_a_request_ends_the_connection_with_an_error() {
    let whole = request(op::GETATTR, 9, 1, &Body::new().bytes(&[0; 16]));
    let mut too_long = whole.clone();
    too_long[0] += 8;
    for bytes in [&whole[..20], &too_long[..], b"x"] {
        let kernel = model();
        kernel.send_raw(bytes);
        let error = kernel.end().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
    }
}

#[test]
fn a_slow_call_holds_up_no_other() {
    let (open, gate) = channel();
    let fs = Failing {
        gate: Some(Mutex::new(gate)),
        ..Failing::with(Errno::NOSPC)
    };
    let options = MountOptions {
        threads: Some(2),
        ..MountOptions::default()
    };
    let mut kernel = Kernel::start(Arc::new(fs), &options, everything());
    let sync = Body::new().u64(0).u32(0).u32(0);
    let slow = kernel.send(op::FSYNC, 2, &sync);
    for _ in 0..10 {
        kernel.errno(op::READLINK, 2, &Body::new());
    }
    open.send(()).unwrap();
    let reply = kernel.receive();
    assert_eq!((reply.unique, reply.code), (slow, -libc::ENOSPC));
    // Each thread that serves ends by a DESTROY of its own.
    kernel.ok(op::DESTROY, 0, &Body::new());
    kernel.unmount().unwrap();
}
