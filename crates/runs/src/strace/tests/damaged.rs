//! Traces that are damaged, or are not traces at all.

use super::*;

/// Every call once, in the notation of strace.
const TRACE: &str = r#"1 execve("/bin/sh", ["sh"], 0x7f /* 3 vars */) = 0
1 openat(AT_FDCWD, "\x66", O_RDWR|O_CREAT|O_TRUNC, 0666) = 3
1 openat2(AT_FDCWD, "g", {flags=O_RDWR|O_CREAT|O_SYNC, mode=0600, resolve=0}, 24) = 4
1 clone(child_stack=NULL, flags=CLONE_VM|CLONE_FILES|CLONE_FS <unfinished ...>
2 write(3, "\x61\x62\x63", 3 <unfinished ...>
1 <... clone resumed>, child_tidptr=0x7) = 2
2 <... write resumed>) = 3
1 pwrite64(3, "abcdef", 6, 4096) = 6
1 pwritev2(4, [{iov_base="x", iov_len=1}, {iov_base="yz", iov_len=2}], 2, 9, RWF_APPEND) = 3
1 sendfile(4, 3, [0] => [5], 5) = 5
1 splice(3, NULL, 4, [7], 10, 0) = 10
1 ioctl(4, BTRFS_IOC_CLONE or FICLONE, 3) = 0
1 ioctl(4, BTRFS_IOC_CLONE_RANGE or FICLONERANGE, {src_fd=3, src_offset=0, src_length=5, dest_offset=1}) = 0
1 fallocate(3, FALLOC_FL_ZERO_RANGE, 4000, 200) = 0
1 ftruncate(3, 9223372036854775807) = 0
1 lseek(3, 0, SEEK_END) = 9223372036854775807
1 fsync(3 <unfinished ...>
2 fcntl(3, F_DUPFD, 10) = 10
1 <... fsync resumed>) = 0
1 mkdir("d", 0755) = 0
1 symlink("../r/d/./", "l") = 0
1 symlink("loop", "loop") = 0
1 renameat2(AT_FDCWD, "f", AT_FDCWD, "l/f", RENAME_EXCHANGE) = 0
1 linkat(AT_FDCWD, "/proc/self/fd/3", AT_FDCWD, "h", AT_SYMLINK_FOLLOW) = 0
1 rename("d", "d/d") = 0
1 unlink("g") = 0
1 mknodat(AT_FDCWD, "n", S_IFBLK|0600, makedev(0xfffff, 0xfffff)) = 0
1 fchownat(AT_FDCWD, "h", -1, 5, 0) = 0
1 lsetxattr("h", "user.a", "v", 1, 0) = 0
1 mmap(NULL, 4096, PROT_READ|PROT_WRITE, MAP_SHARED, 3, 0) = 0x7fffffffffff
1 msync(0x7fffffffffff, 10, MS_SYNC) = 0
1 close_range(3, 4294967295, CLOSE_RANGE_UNSHARE) = 0
2 dup2(3, 1) = 1
2 write(1, "out", 3) = 3
2 +++ exited with 0 +++
1 +++ killed by SIGKILL +++
"#;

/// Imports any bytes. A run that is made of them can be used.
fn import(trace: &[u8]) {
    import_at(trace, Path::new("/r"));
}

/// As `import`, of the files below `root`.
pub(super) fn import_at(trace: &[u8], root: &Path) {
    let tree = Tree::default();
    let origin = Origin {
        after: Some(&tree),
        ..Origin::new(root, &tree)
    };
    match super::import(trace, &origin) {
        Ok(run) => drop(replayed(&run)),
        Err(error) => assert!(error.to_string().starts_with("line "), "{error}"),
    }
}

#[test]
fn the_example_is_understood() {
    let tree = Tree::default();
    let origin = Origin::new(Path::new("/r"), &tree);
    let run = super::import(TRACE.as_bytes(), &origin).unwrap();
    assert!(run.entries.len() > 20);
    import(TRACE.as_bytes());
}

#[test]
fn arbitrary_bytes_are_an_error_or_a_run() {
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..2000 {
        let len = random.usize(..300);
        let bytes: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
        import(&bytes);
        let alphabet = b"1 openat(3, \"\\x61\", {}[]<>...unfinished resumed) = 0\n";
        let text: Vec<u8> = (0..len)
            .map(|_| alphabet[random.usize(..alphabet.len())])
            .collect();
        import(&text);
    }
}

#[test]
fn every_prefix_of_a_trace_is_a_trace() {
    for len in 0..TRACE.len() {
        import(&TRACE.as_bytes()[..len]);
        import(&[&TRACE.as_bytes()[..len], b"\n"].concat());
    }
}

/// Changes a trace in one of several ways.
pub(super) fn mutate(trace: &mut Vec<u8>, random: &mut fastrand::Rng) {
    let at = random.usize(..trace.len());
    match random.u8(..6) {
        0 => trace[at] = random.u8(..),
        1 => drop(trace.remove(at)),
        2 => trace.insert(at, *random.choice(b"0123456789-\"\\()[]{}<>, \n").unwrap()),
        3 => {
            // One number for another.
            let numbers = [
                "-1",
                "0",
                "9223372036854775807",
                "18446744073709551615",
                "0x",
                "1",
            ];
            if trace[at].is_ascii_digit() {
                let number = random.choice(numbers).unwrap();
                trace.splice(at..=at, number.bytes());
            }
        }
        _ => {
            let mut lines: Vec<&[u8]> = trace.split_inclusive(|byte| *byte == b'\n').collect();
            let (a, b) = (random.usize(..lines.len()), random.usize(..lines.len()));
            match random.u8(..3) {
                0 => lines.swap(a, b),
                1 => drop(lines.remove(a)),
                _ => lines.insert(a, lines[b]),
            }
            *trace = lines.concat();
        }
    }
    if trace.is_empty() {
        trace.push(b'\n');
    }
}

#[test]
fn changed_traces_are_an_error_or_a_run() {
    let rounds = if cfg!(debug_assertions) { 3000 } else { 30_000 };
    let mut random = fastrand::Rng::with_seed(2);
    for _ in 0..rounds {
        let mut trace = TRACE.as_bytes().to_vec();
        for _ in 0..random.usize(1..12) {
            mutate(&mut trace, &mut random);
        }
        import(&trace);
    }
}

#[test]
fn copies_of_copies_do_not_fill_the_memory() {
    let mut trace = String::from(
        "1 open(\"f\", O_RDWR|O_CREAT, 0600) = 3\n1 write(3, \"0123456789abcdef\", 16) = 16\n",
    );
    for power in 4..40 {
        let len = 1u64 << power;
        trace += &format!("1 sendfile(3, 3, [0], {len}) = {len}\n");
    }
    let tree = Tree::default();
    let run = super::import(trace.as_bytes(), &Origin::new(Path::new("/r"), &tree)).unwrap();
    assert!(run.data.len() <= 256 << 20);
    assert!(
        run.header
            .unseen
            .iter()
            .any(|note| note.contains("sendfile copied"))
    );
}
