//! Traces that are written by hand.

use super::*;
use crate::{Kind, Node};

/// Imports a trace of a program that began in the directory `/r`, which was empty.
fn import(trace: &str) -> Run {
    let tree = Tree::default();
    super::import(trace.as_bytes(), &Origin::new(Path::new("/r"), &tree)).unwrap()
}

fn all_seen(trace: &str) -> Run {
    let run = import(trace);
    assert_eq!(run.header.unseen, Vec::<String>::new());
    run
}

#[test]
fn offsets_are_shared_by_duplicates_and_children() {
    let run = all_seen(
        r#"10 open("f", O_RDWR|O_CREAT, 0666) = 3
10 write(3, "ab", 2) = 2
10 dup(3) = 4
10 write(4, "cd", 2) = 2
10 fork() = 11
11 write(3, "ef", 2) = 2
11 +++ exited with 0 +++
10 write(3, "gh", 2) = 2
10 lseek(3, -1, SEEK_CUR) = 7
10 write(4, "i", 1) = 1
10 pwrite64(3, "A", 1, 0) = 1
10 write(3, "j", 1) = 1
10 open("f", O_WRONLY|O_APPEND) = 5
10 writev(5, [{iov_base="k", iov_len=1}, {iov_base="l", iov_len=1}], 2) = 2
10 read(3, 0x7ff, 0x10) = 0x2
10 write(3, "m", 1) = 1
"#,
    );
    assert_eq!(contents(&replayed(&run), "f"), b"Abcdefgijklm");
}

#[test]
fn a_close_follows_the_last_writable_descriptor() {
    let run = all_seen(
        r#"1 openat(AT_FDCWD, "f", O_WRONLY|O_CREAT|O_CLOEXEC, 0600) = 3
1 fcntl(3, F_DUPFD_CLOEXEC, 10) = 10
1 openat(AT_FDCWD, "/r/f", O_RDONLY) = 4
1 write(3, "a", 1) = 1
1 close(3) = 0
1 close(4) = 0
1 fsync(10) = 0
1 execve("/bin/true", ["true"], 0x1 /* 3 vars */) = 0
"#,
    );
    let expected = [
        "create('f')",
        "write('f', 0, 1 bytes)",
        "fsync('f')",
        "close('f')",
    ];
    assert_eq!(texts(&run), expected);
    assert_eq!(run.entries.last().unwrap().by, "true[1]");
}

#[test]
fn a_child_that_appears_before_its_parent_returns_inherits() {
    let run = all_seen(
        r#"5 mkdir("d", 0755) = 0
5 chdir("d") = 0
5 umask(077) = 022
5 clone(child_stack=NULL, flags=CLONE_CHILD_CLEARTID|SIGCHLD <unfinished ...>
6 chdir("..") = 0
6 open("up", O_WRONLY|O_CREAT, 0666) = 3
5 <... clone resumed>, child_tidptr=0x7f) = 6
5 open("down", O_WRONLY|O_CREAT, 0666) = 3
5 clone3({flags=CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_THREAD, exit_signal=0} => {parent_tid=[7]}, 88) = 7
7 chdir("/r") = 0
7 write(3, "x", 1) = 1
5 open("by-both", O_WRONLY|O_CREAT, 0666) = 4
7 close(4) = 0
7 close(3) = 0
"#,
    );
    let tree = replayed(&run);
    assert!(tree.resolve(b"up").is_some() && tree.resolve(b"by-both").is_some());
    assert_eq!(contents(&tree, "d/down"), b"x");
    let perm = |path: &[u8]| tree.get(tree.resolve(path).unwrap()).unwrap().perm;
    assert_eq!((perm(b"up"), perm(b"d")), (0o600, 0o755));
    assert_eq!(texts(&run).last(), Some(&"close('d/down')"));
}

#[test]
fn a_descriptor_is_free_when_its_close_begins() {
    let run = all_seen(
        r#"1 open("a", O_WRONLY|O_CREAT, 0600) = 3
1 clone(child_stack=NULL, flags=CLONE_VM|CLONE_FILES|CLONE_FS) = 2
1 close(3 <unfinished ...>
2 open("b", O_WRONLY|O_CREAT, 0600) = 3
1 <... close resumed>) = 0
2 write(3, "b", 1) = 1
"#,
    );
    let tree = replayed(&run);
    assert_eq!(
        (contents(&tree, "a"), contents(&tree, "b")),
        (vec![], b"b".to_vec())
    );
}

#[test]
fn a_sync_covers_only_what_was_complete_at_its_begin() {
    let run = all_seen(
        r#"1 open("a", O_WRONLY|O_CREAT, 0600) = 3
1 clone(child_stack=NULL, flags=CLONE_VM|CLONE_FILES|CLONE_FS) = 2
1 fsync(3 <unfinished ...>
2 write(3, "late", 4 <unfinished ...>
1 <... fsync resumed>) = 0
2 <... write resumed>) = 4
1 fdatasync(3 <unfinished ...>
2 fsync(3 <unfinished ...>
2 <... fsync resumed>) = 0
2 write(3, "+", 1) = 1
1 <... fdatasync resumed>) = 0
"#,
    );
    let expected = [
        "create('a')",
        "fsync('a')",
        "write('a', 0, 4 bytes)",
        "fdatasync('a')",
        "fsync('a')",
        "write('a', 4, 1 bytes)",
    ];
    let mut found = texts(&run);
    found[3..5].sort_unstable();
    assert_eq!(found, expected);
}

#[test]
fn paths_follow_links_and_parents() {
    let run = all_seen(
        r#"1 mkdir("/r/d", 0755) = 0
1 mkdir("d/e", 0755) = 0
1 symlink("d/e", "l") = 0
1 symlink("/r/l/../f", "abs") = 0
1 open("l/x", O_WRONLY|O_CREAT, 0600) = 3
1 creat("abs", 0600) = 4
1 openat(AT_FDCWD, "../r/./d//e/../", O_RDONLY|O_DIRECTORY) = 5
1 mkdirat(5, "in-d", 0755) = 0
1 rename("d/e", "moved") = 0
1 openat(AT_FDCWD, "moved", O_RDONLY) = 6
1 unlinkat(6, "../moved/x", 0) = 0
1 renameat2(AT_FDCWD, "moved", 5, "in-d", RENAME_EXCHANGE) = 0
1 symlinkat("nowhere", 5, "dangling") = 0
1 openat(5, "dangling", O_WRONLY|O_CREAT, 0644) = 7
1 mkdir("../outside", 0755) = 0
1 unlink("l") = 0
"#,
    );
    let tree = replayed(&run);
    let paths: Vec<String> = tree
        .paths()
        .into_iter()
        .map(|(path, _)| String::from_utf8(path).unwrap())
        .collect();
    let expected = [
        "abs",
        "d",
        "d/dangling",
        "d/f",
        "d/in-d",
        "d/nowhere",
        "moved",
    ];
    assert_eq!(paths, expected);
}

#[test]
fn a_nameless_file_gets_its_name_through_its_descriptor() {
    for link in [
        r#"linkat(AT_FDCWD, "/proc/self/fd/3", AT_FDCWD, "t", AT_SYMLINK_FOLLOW)"#,
        r#"linkat(3, "", AT_FDCWD, "t", AT_EMPTY_PATH)"#,
    ] {
        let run = all_seen(&format!(
            "1 open(\".\", O_RDWR|O_TMPFILE, 0600) = 3\n1 write(3, \"x\", 1) = 1\n1 {link} = 0\n"
        ));
        assert_eq!(contents(&replayed(&run), "t"), b"x");
    }
}

#[test]
fn attributes_and_special_files() {
    let run = all_seen(
        r#"1 openat2(AT_FDCWD, "f", {flags=O_RDWR|O_CREAT, mode=0666, resolve=0}, 24) = 3
1 fchmod(3, 06755) = 0
1 fchownat(AT_FDCWD, "f", 7, 4294967295, AT_SYMLINK_NOFOLLOW) = 0
1 fchown(3, -1, 8) = 0
1 setxattr("f", "user.a", "\x01", 1, 0) = 0
1 fsetxattr(3, "user.b", "2", 1, XATTR_CREATE) = 0
1 removexattr("f", "user.a") = 0
1 mkdir("acl", 0700) = 0
1 setxattr("acl", "system.posix_acl_access", "\2\0\0\0\1\0\6\0\377\377\377\377\4\0\5\0\377\377\377\377 \0\4\0\377\377\377\377", 28, 0) = 0
1 mknod("p", S_IFIFO|0666) = 0
1 mknodat(AT_FDCWD, "n", S_IFCHR|0600, makedev(0x1, 0x3)) = 0
1 bind(4, {sa_family=AF_UNIX, sun_path="s"}, 110) = 0
1 ftruncate(3, 8192) = 0
1 write(3, "abcdef", 6) = 6
1 fallocate(3, FALLOC_FL_KEEP_SIZE|FALLOC_FL_PUNCH_HOLE, 1, 2) = 0
1 fallocate(3, 0, 0, 10000) = 0
1 truncate("/r/f", 10001) = 0
"#,
    );
    let tree = replayed(&run);
    let of = |path: &[u8]| tree.get(tree.resolve(path).unwrap()).unwrap();
    let file = of(b"f");
    assert_eq!((file.perm, file.uid, file.gid), (0o755, 7, 8));
    let names: Vec<String> = file.xattrs.keys().map(|name| name.to_string()).collect();
    assert_eq!(names, ["user.b"]);
    assert_eq!((of(b"acl").perm, of(b"acl").xattrs.len()), (0o654, 0));
    assert_eq!(of(b"n").kind, Kind::CharDevice(0x103));
    assert_eq!(
        (&of(b"p").kind, &of(b"s").kind),
        (&Kind::Fifo, &Kind::Socket)
    );
    let bytes = contents(&tree, "f");
    assert_eq!((bytes.len(), &bytes[..6]), (10_001, &b"a\0\0def"[..]));
}

#[test]
fn new_files_have_the_owner_of_their_process() {
    let run = all_seen(
        r#"1 setregid(-1, 6) = 0
1 setresuid(5, 5, 5) = 0
1 mkdir("d", 02755) = 0
1 fork() = 2
2 setfsgid(9) = 6
2 creat("f", 0600) = 3
2 creat("d/f", 0600) = 4
"#,
    );
    let tree = replayed(&run);
    let owner = |path: &[u8]| {
        let inode = tree.get(tree.resolve(path).unwrap()).unwrap();
        (inode.uid, inode.gid)
    };
    assert_eq!(
        [owner(b"d"), owner(b"f"), owner(b"d/f")],
        [(5, 6), (5, 9), (5, 6)]
    );
}

#[test]
fn the_standard_output_is_a_descriptor_and_not_a_number() {
    let run = all_seen(
        r#"1 write(1, "one\n", 4) = 4
1 fcntl(1, F_DUPFD, 10) = 10
1 open("f", O_WRONLY|O_CREAT, 0600) = 3
1 dup2(3, 1) = 1
1 write(1, "in the file", 11) = 11
1 write(2, "error", 5) = 5
1 dup2(10, 1) = 1
1 open("/dev/stdout", O_WRONLY) = 4
1 write(4, "two\n", 4) = 4
"#,
    );
    assert_eq!(output(&run), b"one\ntwo\n");
    assert_eq!(contents(&replayed(&run), "f"), b"in the file");
}

#[test]
fn a_file_that_is_open_for_synced_writes_has_a_sync_after_each() {
    let run = all_seen(
        r#"1 open("f", O_WRONLY|O_CREAT|O_DSYNC, 0600) = 3
1 write(3, "a", 1) = 1
1 open("g", O_WRONLY|O_CREAT|O_SYNC, 0600) = 4
1 pwrite64(4, "a", 1, 5) = 1
1 open("h", O_WRONLY|O_CREAT, 0600) = 5
1 pwritev2(5, [{iov_base="x", iov_len=1}], 1, -1, RWF_DSYNC) = 1
1 sync() = 0
1 syncfs(5) = 0
"#,
    );
    let syncs: Vec<&str> = texts(&run)
        .into_iter()
        .filter(|t| t.contains("sync"))
        .collect();
    let expected = [
        "fdatasync('f', 0, 1 bytes)",
        "fsync('g', 5, 1 bytes)",
        "fdatasync('h', 0, 1 bytes)",
        "sync()",
        "syncfs()",
    ];
    assert_eq!(syncs, expected);
}

/// strace splits a write that waits for the disk, and the sync comes after it nevertheless.
#[test]
fn a_synced_write_that_is_split_is_before_its_sync() {
    let run = all_seen(
        r#"1 open("f", O_WRONLY|O_CREAT|O_DSYNC, 0600) = 3
1 clone(child_stack=NULL, flags=CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_THREAD) = 2
1 write(3, "a", 1 <unfinished ...>
2 open("g", O_WRONLY|O_CREAT, 0600) = 4
1 <... write resumed>) = 1
"#,
    );
    let [.., write, sync] = texts(&run)[..] else {
        panic!("{:?}", texts(&run))
    };
    assert_eq!(write, "write('f', 0, 1 bytes)");
    assert_eq!(sync, "fdatasync('f', 0, 1 bytes)");
}

#[test]
fn copies_within_the_run_have_their_data() {
    let run = all_seen(
        r#"1 open("f", O_RDWR|O_CREAT, 0600) = 3
1 write(3, "0123456789", 10) = 10
1 open("g", O_RDWR|O_CREAT, 0600) = 4
1 lseek(3, 2, SEEK_SET) = 2
1 sendfile(4, 3, NULL, 3) = 3
1 copy_file_range(3, NULL, 4, NULL, 2, 0) = 2
1 sendfile(4, 3, [0] => [1], 1) = 1
1 open("h", O_RDWR|O_CREAT, 0600) = 5
1 ioctl(5, BTRFS_IOC_CLONE or FICLONE, 3) = 0
1 sendfile(1, 3, [8], 2) = 2
"#,
    );
    let tree = replayed(&run);
    assert_eq!(contents(&tree, "g"), b"234560");
    assert_eq!(contents(&tree, "h"), b"0123456789");
    assert_eq!(output(&run), b"89");
}

#[test]
fn facts_that_a_trace_does_not_have_are_listed() {
    let run = import(
        r#"1 open("f", O_RDWR|O_CREAT, 0600) = 3
1 mmap(NULL, 4096, PROT_READ|PROT_WRITE, MAP_SHARED, 3, 0) = 0x7f0000000000
1 msync(0x7f0000000800, 100, MS_SYNC) = 0
1 open("/etc/passwd", O_RDONLY) = 4
1 sendfile(3, 4, NULL, 100) = 100
1 io_uring_setup(8, {flags=0}) = 5
1 rename("/tmp/elsewhere", "g") = 0
1 this is not a call
1 write(3, "x", 1) = ?
1 unlink("none") = 0
"#,
    );
    assert_eq!(contents(&replayed(&run), "f").len(), 100);
    let unseen = run.header.unseen.join("\n");
    for part in [
        "stores through a shared mapping of 'f' (their contents are missing)",
        "sendfile copied from outside of the directory to 'f'",
        "io_uring",
        "the contents of 'g', which rename took from outside",
        "line 8 of the trace is not understood",
        "line 9 of the trace: the result of write is not known",
        "line 10 of the trace: unlink is left out",
    ] {
        assert!(unseen.contains(part), "{part}:\n{unseen}");
    }
    let is_msync = |text: &&str| text.starts_with("fdatasync('f', ");
    assert!(texts(&run).iter().any(is_msync));
}

#[test]
fn data_that_were_cut_off_are_an_error_with_the_line() {
    let tree = Tree::default();
    let origin = Origin::new(Path::new("/r"), &tree);
    let error = |trace: &str| {
        super::import(trace.as_bytes(), &origin)
            .unwrap_err()
            .to_string()
    };
    let opened = "1 open(\"f\", O_RDWR|O_CREAT, 0600) = 3\n";
    let cut = error(&format!("{opened}1 write(3, \"abc\"..., 100) = 100\n"));
    assert!(
        cut.starts_with("line 2 of the trace: strace has cut off"),
        "{cut}"
    );
    let short = error(&format!("{opened}1 write(3, \"abc\", 100) = 100\n"));
    assert!(
        short.starts_with("line 2 of the trace: write has written 100 bytes"),
        "{short}"
    );
    assert!(error("Hello\n").starts_with("line 1 is not from strace"));
    assert!(error("").starts_with("line 1 is not from strace: it is empty"));
}

#[test]
fn other_notations_of_a_trace() {
    let run = all_seen(
        r#"openat(AT_FDCWD</r>, "f(\"1", O_WRONLY|O_CREAT, 0600) = 3</r/f("1>
12:00:01.5 write(3</r/f("1>, "\1\x02a\n", 4) = 4 <0.000012>
openat(AT_FDCWD, "none", O_RDONLY) = -1 ENOENT (No such file or directory)
read(0, 0x7f, 100) = ? ERESTARTSYS (To be restarted if SA_RESTART is set)
--- SIGCHLD {si_signo=SIGCHLD} ---
7 [ Process PID=7 runs in 32 bit mode. ]
"#,
    );
    assert_eq!(contents(&replayed(&run), "f(\"1"), b"\x01\x02a\n");
    let run = all_seen("[pid 3] mkdir(\"d\", 0700) = 0\n[pid 3] mkdir(\"cut o");
    assert_eq!(texts(&run), ["mkdir('d')"]);
}

#[test]
fn execve_of_a_thread_takes_the_number_of_the_process() {
    let run = all_seen(
        r#"1 open("f", O_WRONLY|O_CREAT, 0600) = 3
1 clone(child_stack=NULL, flags=CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_THREAD) = 2
2 execve("/bin/cat", ["cat"], 0x1 /* 3 vars */ <unfinished ...>
1 +++ superseded by execve in pid 2 +++
1 <... execve resumed>) = 0
1 write(3, "x", 1) = 1
1 +++ exited with 0 +++
"#,
    );
    assert_eq!(texts(&run).last(), Some(&"close('f')"));
    assert_eq!(run.entries.last().unwrap().by, "cat[1]");
}

#[test]
fn the_tree_before_the_program_is_the_setup() {
    let mut before = Tree::default();
    let at = crate::Place::new(Node::ROOT, b"old");
    let make = Call::Make {
        node: Node(40),
        at: Some(at),
        kind: Kind::File,
        perm: 0o644,
        uid: 0,
        gid: 0,
    };
    before.apply(&make, &[]).unwrap();
    before
        .get_mut(Node(40))
        .unwrap()
        .contents
        .write(0, b"old data");
    let origin = Origin::new(Path::new("/r"), &before);
    let trace = br#"1 open("new", O_WRONLY|O_CREAT, 0600) = 3
1 open("old", O_WRONLY|O_TRUNC) = 4
1 write(4, "1", 1) = 1
"#;
    let run = super::import(trace, &origin).unwrap();
    assert_eq!(run.start().unwrap().differences(&before), []);
    assert_eq!(contents(&replayed(&run), "old"), b"1");
    let expected = [
        "create('new')",
        "truncate('old', 0)",
        "write('old', 0, 1 bytes)",
    ];
    assert_eq!(texts(&run), expected);
    let dir = tempfile::tempdir().unwrap();
    run.save(&dir.path().join("run")).unwrap();
    assert_eq!(Run::load(&dir.path().join("run")).unwrap(), run);
}
