//! Full images, large files, and changes that cost no write.

use super::fixture::{debugfs, device, e2fsck, mke2fs, mount, mount_with};
use vfs::{Ctx, Errno, Fallocate, FileSystem, Ino, Name, XattrMode};

fn root() -> Ctx {
    Ctx::root()
}

#[test]
fn every_block_can_be_used_and_comes_back() {
    let kinds: [&[&str]; 3] = [
        &["-b", "1024"],
        &["-b", "4096"],
        &["-b", "1024", "-g", "1024", "-O", "sparse_super2"],
    ];
    for args in kinds {
        let mounted = mount(mke2fs(args, "8M"));
        let fs = &mounted.fs;
        let before = fs.statfs().unwrap();
        let file = fs.create(&root(), Ino::ROOT, b"large", 0o644).unwrap().ino;
        let chunk = vec![0xab; before.block_bytes as usize];
        let mut at = 0;
        loop {
            match fs.write(&root(), file, at, &chunk) {
                Ok(_) => at += chunk.len() as u64,
                Err(errno) => {
                    assert_eq!(errno, Errno::NOSPC);
                    break;
                }
            }
        }
        assert_eq!(fs.statfs().unwrap().blocks_free, 0);
        assert_eq!(fs.mkdir(&root(), Ino::ROOT, b"d", 0o755), Err(Errno::NOSPC));
        assert_eq!(
            fs.symlink(&root(), Ino::ROOT, b"s", &[b'x'; 200]),
            Err(Errno::NOSPC)
        );
        let set = fs.setxattr(&root(), file, b"user.a", b"1", XattrMode::Set);
        assert_eq!(set, Err(Errno::NOSPC));
        assert_eq!(fs.statfs().unwrap().inodes_free, before.inodes_free - 1);
        fs.forget(file, 1);
        fs.unlink(&root(), Ino::ROOT, b"large").unwrap();
        assert_eq!(fs.statfs().unwrap(), before);
        assert_eq!(fs.audit(), []);
        assert_eq!(e2fsck(&mounted.close()), None);
    }
}

/// The kernel and e2fsck take a symbolic link whose target does not end in its first block for
/// a damaged one.
#[test]
fn a_target_and_its_zero_byte_fit_one_block() {
    for block in [1024, 2048, 4096] {
        let mounted = mount(mke2fs(&["-b", &block.to_string()], "8M"));
        let fs = &mounted.fs;
        let before = fs.statfs().unwrap();
        for len in [block, 4096] {
            let target = vec![b'x'; len];
            let made = fs.symlink(&root(), Ino::ROOT, b"s", &target);
            assert_eq!(made.unwrap_err(), Errno::NAMETOOLONG);
        }
        assert_eq!(fs.statfs().unwrap(), before);
        let target = vec![b'x'; block - 1];
        let link = fs.symlink(&root(), Ino::ROOT, b"s", &target).unwrap().ino;
        assert_eq!(fs.readlink(&root(), link).unwrap(), target);
        let image = mounted.close();
        assert_eq!(e2fsck(&image), None);
        // As earlier versions stored longer ones.
        let size = format!("set_inode_field s size {block}");
        let (image, _) = debugfs(&image, &size);
        let report = ext2::check(&*device(image.clone()));
        assert!(
            report.findings.iter().any(|f| f.invariant == "E10"),
            "{report:?}"
        );
        assert!(e2fsck(&image).is_some());
    }
}

#[test]
fn inodes_run_out() {
    let mounted = mount(mke2fs(&["-b", "1024", "-N", "64"], "2M"));
    let fs = &mounted.fs;
    let mut made = 0;
    let last = loop {
        match fs.create(&root(), Ino::ROOT, format!("f{made}").as_bytes(), 0o644) {
            Ok(_) => made += 1,
            Err(errno) => break errno,
        }
    };
    assert_eq!((last, fs.statfs().unwrap().inodes_free), (Errno::NOSPC, 0));
    assert!(made > 40, "{made}");
    assert_eq!(e2fsck(&mounted.close()), None);
}

/// Triple indirect blocks, the feature `large_file`, holes.
#[test]
fn sparse_files_reach_triple_indirect_blocks() {
    for args in [
        ["-b", "1024", "-O", "^large_file"],
        ["-b", "4096", "-O", "^large_file"],
    ] {
        let mounted = mount(mke2fs(&args, "8M"));
        let fs = &mounted.fs;
        let file = fs.create(&root(), Ino::ROOT, b"f", 0o644).unwrap().ino;
        let far = [5 << 10, 300 << 10, 70 << 20, 3 << 30, 9 << 30];
        for at in far {
            fs.write(&root(), file, at, b"data").unwrap();
        }
        let mut buf = [1; 8];
        for at in far {
            assert_eq!(fs.read(&root(), file, at - 4, &mut buf).unwrap(), 8);
            assert_eq!(&buf, b"\0\0\0\0data");
        }
        let end = fs
            .seek(&root(), file, 4 << 30, vfs::SeekKind::Data)
            .unwrap();
        assert_eq!(end, 9 << 30);
        fs.fallocate(&root(), file, Fallocate::PunchHole, 60 << 20, 4 << 30)
            .unwrap();
        assert_eq!(fs.audit(), []);
        fs.sync().unwrap();
        fs.truncate(&root(), file, 200 << 10).unwrap();
        assert_eq!(fs.audit(), []);
        let beyond = fs.write(&root(), file, 1 << 45, b"x");
        assert_eq!(beyond, Err(Errno::FBIG));
        fs.write(&root(), file, 8 << 30, b"x").unwrap();
        let device = mounted.device.clone();
        assert_eq!(e2fsck(&mounted.close()), None);
        let again = mount_with(device, 4096);
        let attr = again.fs.lookup(&root(), Ino::ROOT, b"f").unwrap();
        assert_eq!(attr.size, (8 << 30) + 1);
        again.fs.forget(attr.ino, 1);
        again.fs.unlink(&root(), Ino::ROOT, b"f").unwrap();
        assert_eq!(e2fsck(&again.close()), None);
    }
}

/// A large file is freed in several operations; the counts are right in between.
#[test]
fn large_files_are_freed_in_several_operations() {
    let mounted = mount(mke2fs(&["-b", "1024"], "32M"));
    let fs = &mounted.fs;
    let before = fs.statfs().unwrap();
    let file = fs.create(&root(), Ino::ROOT, b"f", 0o644).unwrap().ino;
    let data = vec![7; 20 << 20];
    fs.write(&root(), file, 0, &data).unwrap();
    fs.fallocate(&root(), file, Fallocate::PunchHole, 3 << 20, 5 << 20)
        .unwrap();
    fs.truncate(&root(), file, 2 << 20).unwrap();
    assert_eq!(fs.audit(), []);
    fs.open(&root(), file, vfs::OpenFlags::READ).unwrap();
    fs.unlink(&root(), Ino::ROOT, b"f").unwrap();
    fs.forget(file, 1);
    assert!(fs.statfs().unwrap().blocks_free < before.blocks_free);
    fs.release(file);
    assert_eq!(fs.statfs().unwrap(), before);
    assert_eq!(e2fsck(&mounted.close()), None);
}

/// Section 2.4: a file that is created and deleted before write-back is never written.
#[test]
fn short_lived_files_cost_no_write() {
    let image = mke2fs(&["-b", "1024"], "8M");
    let mounted = mount_with(device(image), 4096);
    let fs = &mounted.fs;
    fs.mkdir(&root(), Ino::ROOT, b"d", 0o755).unwrap();
    fs.sync().unwrap();
    let dir = fs.lookup(&root(), Ino::ROOT, b"d").unwrap().ino;
    let writes = mounted.cache.stats().writes;
    for round in 0..20 {
        let name = format!("file{round}");
        let file = fs.create(&root(), dir, name.as_bytes(), 0o644).unwrap().ino;
        fs.write(&root(), file, 0, &[9; 3000]).unwrap();
        // The kernel forgets a file only after its name is gone.
        let forgotten_first = round % 2 == 0;
        if forgotten_first {
            fs.forget(file, 1);
        }
        fs.unlink(&root(), dir, name.as_bytes()).unwrap();
        if !forgotten_first {
            fs.forget(file, 1);
        }
    }
    let nameless = fs.tmpfile(&root(), dir, 0o600).unwrap().ino;
    fs.write(&root(), nameless, 0, &[9; 3000]).unwrap();
    fs.forget(nameless, 1);
    fs.sync().unwrap();
    // The directory's own times.
    assert_eq!(mounted.cache.stats().writes, writes + 1);
    assert_eq!(e2fsck(&mounted.close()), None);
}

/// An open inode without a name is freed at unmount. A crash leaves it, without damage.
#[test]
fn orphans_are_freed_at_unmount() {
    let mounted = mount(mke2fs(&["-b", "1024"], "8M"));
    let fs = &mounted.fs;
    for name in [&b"a"[..], b"b", b"c"] {
        let file = fs.create(&root(), Ino::ROOT, name, 0o644).unwrap().ino;
        fs.write(&root(), file, 0, &[1; 5000]).unwrap();
        fs.sync().unwrap();
        fs.unlink(&root(), Ino::ROOT, name).unwrap();
    }
    fs.tmpfile(&root(), Ino::ROOT, 0o600).unwrap();
    fs.sync().unwrap();
    let crashed = mounted.device.bytes();
    let report = ext2::check(&*device(crashed));
    let leak = |f: &vfs::check::Finding| f.severity == vfs::check::Severity::Leak;
    assert!(!report.is_clean() && report.findings.iter().all(leak));
    assert_eq!(e2fsck(&mounted.close()), None);
}

/// A mount frees the orphans on a list that the kernel or a journal left.
#[test]
fn orphans_on_the_list_are_freed_at_mount() {
    let mounted = mount(mke2fs(&["-b", "1024"], "8M"));
    let before = mounted.fs.statfs().unwrap();
    let mut image = {
        let fs = &mounted.fs;
        for name in [&b"a"[..], b"b"] {
            let file = fs.create(&root(), Ino::ROOT, name, 0o644).unwrap().ino;
            fs.write(&root(), file, 0, &[1; 5000]).unwrap();
        }
        mounted.close()
    };
    for command in [
        "set_inode_field a links_count 0",
        "set_inode_field b links_count 0",
        "set_inode_field a dtime 13",
        "unlink a",
        "unlink b",
        "set_super_value last_orphan 12",
    ] {
        (image, _) = debugfs(&image, command);
    }
    let mounted = mount(image);
    assert_eq!(mounted.fs.statfs().unwrap(), before);
    assert_eq!(mounted.fs.audit(), []);
    assert_eq!(e2fsck(&mounted.close()), None);
}

/// A crash leaves blocks past a size (E28). They do not come back when the file grows, with a write
/// or without.
#[test]
fn blocks_past_a_size_do_not_come_back() {
    let grow: [fn(&dyn FileSystem, Ino); 3] = [
        |fs, file| fs.truncate(&root(), file, 9000).unwrap(),
        |fs, file| assert_eq!(fs.write(&root(), file, 8999, &[0]).unwrap(), 1),
        |fs, file| {
            let kind = Fallocate::Allocate { keep_size: false };
            fs.fallocate(&root(), file, kind, 0, 9000).unwrap();
        },
    ];
    for grow in grow {
        let mounted = mount(mke2fs(&["-b", "1024"], "8M"));
        let fs = &mounted.fs;
        let file = fs.create(&root(), Ino::ROOT, b"f", 0o644).unwrap().ino;
        fs.write(&root(), file, 0, &[1; 300_000]).unwrap();
        let mut image = mounted.close();
        for command in ["set_inode_field f size 100", "set_super_value state 0"] {
            (image, _) = debugfs(&image, command);
        }
        let mounted = mount(image);
        let fs = &mounted.fs;
        let file = fs.lookup(&root(), Ino::ROOT, b"f").unwrap().ino;
        grow(fs, file);
        let mut found = vec![9; 10_000];
        assert_eq!(fs.read(&root(), file, 0, &mut found).unwrap(), 9000);
        assert_eq!(found[..100], [1; 100]);
        assert_eq!(found[100..9000], [0; 8900]);
        let (image, _) = debugfs(&mounted.close(), "set_super_value state 1");
        assert_eq!(e2fsck(&image), None);
    }
}

/// The index of names stays right while names are added and removed.
#[test]
fn the_index_of_names_agrees_with_a_new_mount() {
    let mounted = mount(mke2fs(&["-b", "1024"], "16M"));
    let fs = &mounted.fs;
    let dir = fs.mkdir(&root(), Ino::ROOT, b"d", 0o755).unwrap().ino;
    let file = fs.create(&root(), Ino::ROOT, b"f", 0o644).unwrap().ino;
    let mut random = fastrand::Rng::with_seed(7);
    let mut names = std::collections::BTreeSet::new();
    for _ in 0..6000 {
        let number = random.u32(..1500);
        let name = format!("{number}{}", "x".repeat(number as usize % 40)).into_bytes();
        let to = [&name[..], b"!"].concat();
        match names.contains(&name) {
            false => drop(fs.link(&root(), file, dir, &name).unwrap()),
            // A rename of a link over one of the same file does nothing.
            true if names.contains(&to) || random.bool() => {
                fs.unlink(&root(), dir, &name).unwrap();
            }
            true => {
                let flags = vfs::RenameFlags::empty();
                fs.rename(&root(), Name::new(dir, &name), Name::new(dir, &to), flags)
                    .unwrap();
                names.insert(to);
            }
        }
        if !names.insert(name.clone()) {
            names.remove(&name);
        }
        assert_eq!(
            fs.lookup(&root(), dir, &name).is_ok(),
            names.contains(&name)
        );
    }
    let image = mounted.close();
    assert_eq!(e2fsck(&image), None);
    let again = mount(image);
    let mut listed = std::collections::BTreeSet::new();
    again
        .fs
        .readdir(&root(), dir, vfs::Cookie(0), &mut |entry| {
            listed.insert(entry.name.to_vec());
            true
        })
        .unwrap();
    for dot in [&b"."[..], b".."] {
        assert!(listed.remove(dot));
    }
    assert_eq!(listed, names);
}

/// The superblock changes before anything else, in a call that may have to be repeated.
#[test]
fn the_first_large_size_sets_the_feature() {
    let mounted = mount(mke2fs(&["-O", "^large_file"], "4M"));
    let file = mounted.fs.create(&root(), Ino::ROOT, b"f", 0o644).unwrap();
    let set = vfs::SetAttr {
        size: Some(3 << 30),
        ..vfs::SetAttr::default()
    };
    let attr = mounted.fs.setattr(&root(), file.ino, &set).unwrap();
    assert_eq!(attr.size, 3 << 30);
    assert_eq!(e2fsck(&mounted.close()), None);
}
