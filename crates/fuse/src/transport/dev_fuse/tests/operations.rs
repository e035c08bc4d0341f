//! Each request reaches the file system with its arguments, and the reply has the result.

use super::kernel::{Body, Kernel, Packet, everything, op};
use super::model;
use crate::options::MountOptions;
use oracle::ModelFs;
use std::sync::Arc;
use vfs::Errno;

/// Where the attributes begin in a reply with an entry, and in one without.
const IN_ENTRY: usize = 40;
const IN_ATTR: usize = 16;

/// Size, mode and links of a file, and its owner and group.
fn shape(reply: &Packet, at: usize) -> (u64, u32, u32, [u32; 2]) {
    let owner = [68, 72].map(|field| reply.u32(at + field));
    (
        reply.u64(at + 8),
        reply.u32(at + 60),
        reply.u32(at + 64),
        owner,
    )
}

fn getattr(kernel: &mut Kernel, node: u64) -> Packet {
    kernel.ok(op::GETATTR, node, &Body::new().u32(0).u32(0).u64(0))
}

/// A change of attributes: which, and the fields after the header's two, in their order.
fn setattr(valid: u32, size: u64, times: [(i64, u32); 3], [mode, uid, gid]: [u32; 3]) -> Body {
    let body = Body::new().u32(valid).u32(0).u64(0).u64(size).u64(0);
    let body = times.iter().fold(body, |b, (secs, _)| b.u64(*secs as u64));
    let body = times.iter().fold(body, |b, (_, nanos)| b.u32(*nanos));
    body.u32(mode).u32(0).u32(uid).u32(gid).u32(0)
}

const NO_TIMES: [(i64, u32); 3] = [(0, 0); 3];

#[test]
fn a_new_file_is_found_under_its_name() {
    let mut kernel = model();
    let made = kernel.make_file(b"file", 0o640);
    let found = kernel.ok(op::LOOKUP, 1, &Body::new().name(b"file"));
    assert_eq!(found.u64(0), made);
    assert_eq!(shape(&found, IN_ENTRY), (0, 0o100_640, 1, [0, 0]));
    // The kernel may use names and attributes for a year.
    assert_eq!((found.u64(16), found.u64(24)), (31_536_000, 31_536_000));
    let absent = kernel.ok(op::LOOKUP, 1, &Body::new().name(b"no such file"));
    assert_eq!((absent.u64(0), absent.u64(16)), (0, 31_536_000));
    kernel.unmount().unwrap();
}

#[test]
fn devices_keep_their_numbers_and_links_their_targets() {
    let mut kernel = model();
    let device = Body::new().u32(0o020_600).u32(0x105).u64(0).name(b"null");
    let made = kernel.ok(op::MKNOD, 1, &device);
    assert_eq!(made.u32(IN_ENTRY + 60), 0o020_600);
    assert_eq!(made.u32(IN_ENTRY + 76), 0x105);
    let link = Body::new().name(b"link").name(b"where it leads");
    let link = kernel.ok(op::SYMLINK, 1, &link).u64(0);
    let target = kernel.ok(op::READLINK, link, &Body::new());
    assert_eq!(target.body, b"where it leads");
    kernel.unmount().unwrap();
}

#[test]
fn data_are_read_as_written() {
    let mut kernel = model();
    let file = kernel.make_file(b"file", 0o600);
    let data: Vec<u8> = (0..100_000_u32).map(|n| (n % 251) as u8).collect();
    let unique = kernel.write(file, 5000, &data, 0);
    let reply = kernel.receive();
    assert_eq!(
        (reply.unique, reply.code, reply.u32(0)),
        (unique, 0, 100_000)
    );
    assert_eq!(kernel.read(file, 5000, 100_000), data);
    assert_eq!(kernel.read(file, 4999, 3), [0, 0, 1]);
    assert_eq!(kernel.read(file, 104_999, 4096), [data[99_999]]);
    assert_eq!(kernel.read(file, 105_000, 4096), []);
    let sync = Body::new().u64(0).u32(1).u32(0);
    kernel.ok(op::FSYNC, file, &sync);
    kernel.ok(op::FSYNCDIR, 1, &sync);
    // The kernel caches writes of this file system: it may have data where the server has a hole.
    let hole = Body::new().u64(0).u64(0).u32(libc::SEEK_DATA as u32).u32(0);
    assert_eq!(kernel.errno(op::LSEEK, file, &hole), libc::ENOSYS);
    let punch = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u32;
    let punch = Body::new().u64(0).u64(8192).u64(4096).u32(punch).u32(0);
    kernel.ok(op::FALLOCATE, file, &punch);
    assert_eq!(kernel.read(file, 8191, 3), [data[3191], 0, 0]);
    kernel.unmount().unwrap();
}

#[test]
fn holes_are_found_where_all_writes_arrive() {
    let strict = MountOptions {
        strict_atime: true,
        ..MountOptions::default()
    };
    let mut kernel = Kernel::start(Arc::new(ModelFs::default()), &strict, everything());
    let file = kernel.make_file(b"file", 0o600);
    kernel.write(file, 5000, b"data", 0);
    kernel.receive();
    let hole = Body::new().u64(0).u64(0).u32(libc::SEEK_DATA as u32).u32(0);
    assert_eq!(kernel.ok(op::LSEEK, file, &hole).u64(0), 4096);
    kernel.unmount().unwrap();
}

#[test]
fn attributes_change_one_by_one() {
    let mut kernel = model();
    let file = kernel.make_file(b"file", 0o644);
    let (mode, owner, size) = (1, 2 | 4, 8);
    for (valid, expected) in [
        (mode, (0, 0o100_600, 1, [0, 0])),
        (owner, (0, 0o100_600, 1, [7, 8])),
        (size, (12_345, 0o100_600, 1, [7, 8])),
    ] {
        let set = setattr(valid, 12_345, NO_TIMES, [0o100_600, 7, 8]);
        let reply = kernel.ok(op::SETATTR, file, &set);
        assert_eq!(shape(&reply, IN_ATTR), expected);
        assert_eq!(shape(&getattr(&mut kernel, file), IN_ATTR), expected);
    }
    kernel.unmount().unwrap();
}

/// The kernel adds the nanoseconds to the seconds, also if those are negative.
#[test]
fn times_before_1970_keep_their_nanoseconds() {
    let mut kernel = model();
    let file = kernel.make_file(b"file", 0o644);
    let times = [(-2, 250_000_000), (-1, 0), (5, 999_999_999)];
    let (atime, mtime, ctime) = (16, 32, 1024);
    let set = setattr(atime | mtime | ctime, 0, times, [0; 3]);
    kernel.ok(op::SETATTR, file, &set);
    let reply = getattr(&mut kernel, file);
    let time = |n: usize| {
        let secs = reply.u64(IN_ATTR + 24 + 8 * n) as i64;
        (secs, reply.u32(IN_ATTR + 48 + 4 * n))
    };
    assert_eq!([time(0), time(1), time(2)], times);
    kernel.unmount().unwrap();
}

#[test]
fn names_are_moved_linked_exchanged_and_removed() {
    let mut kernel = model();
    let (a, dir) = (kernel.make_file(b"a", 0o600), kernel.make_dir(1, b"dir"));
    let there = |kernel: &mut Kernel, dir, name: &[u8]| {
        kernel.ok(op::LOOKUP, dir, &Body::new().name(name)).u64(0)
    };
    let rename = Body::new().u64(dir).name(b"a").name(b"b");
    kernel.ok(op::RENAME, 1, &rename);
    assert_eq!(there(&mut kernel, dir, b"b"), a);
    assert_eq!(there(&mut kernel, 1, b"a"), 0);
    let link = Body::new().u64(a).name(b"c");
    let linked = kernel.ok(op::LINK, 1, &link);
    assert_eq!((linked.u64(0), linked.u32(IN_ENTRY + 64)), (a, 2));
    let no_replace = Body::new().u64(dir).u32(libc::RENAME_NOREPLACE).u32(0);
    let refused = kernel.errno(op::RENAME2, 1, &no_replace.name(b"c").name(b"b"));
    assert_eq!(refused, libc::EEXIST);
    let exchange = Body::new().u64(1).u32(libc::RENAME_EXCHANGE).u32(0);
    kernel.ok(op::RENAME2, 1, &exchange.name(b"c").name(b"dir"));
    assert_eq!(there(&mut kernel, 1, b"c"), dir);
    let whiteout = Body::new().u64(1).u32(libc::RENAME_WHITEOUT).u32(0);
    let refused = kernel.errno(op::RENAME2, 1, &whiteout.name(b"c").name(b"d"));
    assert_eq!(refused, libc::EINVAL);
    let not_empty = kernel.errno(op::RMDIR, 1, &Body::new().name(b"c"));
    assert_eq!(not_empty, libc::ENOTEMPTY);
    kernel.ok(op::UNLINK, dir, &Body::new().name(b"b"));
    kernel.ok(op::RMDIR, 1, &Body::new().name(b"c"));
    assert_eq!(there(&mut kernel, 1, b"c"), 0);
    kernel.unmount().unwrap();
}

/// Size 0 asks for the length, and a buffer that is too small is an error.
#[test]
fn extended_attributes_obey_the_size_protocol() {
    let mut kernel = model();
    let set = |name: &[u8], flags: i32| {
        let body = Body::new().u32(5).u32(flags as u32);
        body.name(name).bytes(b"value")
    };
    kernel.ok(op::SETXATTR, 1, &set(b"user.a", libc::XATTR_CREATE));
    kernel.ok(op::SETXATTR, 1, &set(b"user.b", 0));
    let again = kernel.errno(op::SETXATTR, 1, &set(b"user.a", libc::XATTR_CREATE));
    assert_eq!(again, libc::EEXIST);
    let both = libc::XATTR_CREATE | libc::XATTR_REPLACE;
    assert_eq!(
        kernel.errno(op::SETXATTR, 1, &set(b"user.a", both)),
        libc::EINVAL
    );
    let get = |size: u32, name: &[u8]| Body::new().u32(size).u32(0).name(name);
    assert_eq!(kernel.ok(op::GETXATTR, 1, &get(0, b"user.a")).u32(0), 5);
    assert_eq!(
        kernel.ok(op::GETXATTR, 1, &get(5, b"user.a")).body,
        b"value"
    );
    assert_eq!(
        kernel.errno(op::GETXATTR, 1, &get(4, b"user.a")),
        libc::ERANGE
    );
    let list = |size: u32| Body::new().u32(size).u32(0);
    assert_eq!(kernel.ok(op::LISTXATTR, 1, &list(0)).u32(0), 14);
    assert_eq!(kernel.errno(op::LISTXATTR, 1, &list(13)), libc::ERANGE);
    let names = kernel.ok(op::LISTXATTR, 1, &list(14)).body;
    assert_eq!(names, b"user.a\0user.b\0");
    kernel.ok(op::REMOVEXATTR, 1, &Body::new().name(b"user.a"));
    let gone = kernel.errno(op::GETXATTR, 1, &get(0, b"user.a"));
    assert_eq!(gone, Errno::NODATA.raw_os_error());
    kernel.unmount().unwrap();
}

#[test]
fn the_root_reports_its_facts_and_synchronises_on_request() {
    let mut kernel = model();
    let file = kernel.make_file(b"file", 0o600);
    let get = |name: &str| Body::new().u32(100).u32(0).name(name.as_bytes());
    let fact = kernel.ok(op::GETXATTR, 1, &get("selvedge.fact"));
    assert_eq!(fact.body, b"told");
    let elsewhere = kernel.errno(op::GETXATTR, file, &get("selvedge.fact"));
    assert_ne!(elsewhere, 0);
    let synced = kernel.ok(op::GETXATTR, file, &get(crate::SYNC_XATTR));
    assert_eq!(synced.body, crate::SYNCED);
    kernel.unmount().unwrap();
}

#[test]
fn file_handles_reach_inodes_that_the_kernel_dropped() {
    let mut kernel = model();
    let dir = kernel.make_dir(1, b"dir");
    kernel.send(op::FORGET, dir, &Body::new().u64(1));
    let itself = kernel.ok(op::LOOKUP, dir, &Body::new().name(b"."));
    assert_eq!(itself.u64(0), dir);
    let parent = kernel.ok(op::LOOKUP, dir, &Body::new().name(b".."));
    assert_eq!(parent.u64(0), 1);
    let stale = kernel.errno(op::LOOKUP, 999, &Body::new().name(b"."));
    assert_eq!(stale, libc::ESTALE);
    kernel.unmount().unwrap();
}

/// FORGET has no reply: the next packet is the reply to the request after it.
#[test]
fn forgotten_inodes_without_a_name_are_freed() {
    let mut kernel = model();
    let free = |kernel: &mut Kernel| kernel.ok(op::STATFS, 1, &Body::new()).u64(32);
    let before = free(&mut kernel);
    let files = [b"a", b"b", b"c"].map(|name| (name, kernel.make_file(name, 0o600)));
    for (name, _) in files {
        kernel.ok(op::UNLINK, 1, &Body::new().name(name));
    }
    let [a, b, c] = files.map(|(_, node)| node);
    assert_eq!(free(&mut kernel), before - 3);
    kernel.send(op::FORGET, a, &Body::new().u64(1));
    assert_eq!(free(&mut kernel), before - 2);
    let both = Body::new().u32(2).u32(0).u64(b).u64(1).u64(c).u64(1);
    kernel.send(op::BATCH_FORGET, 0, &both);
    assert_eq!(free(&mut kernel), before);
    // The root stays, whatever the kernel forgets of it.
    kernel.send(op::FORGET, 1, &Body::new().u64(1 << 40));
    getattr(&mut kernel, 1);
    kernel.unmount().unwrap();
}
