//! Removals of directories whose link counts a crash left too high, and of directories that it
//! left with two names.

use super::fixture::{debugfs, mke2fs, mount, output_of_e2fsck, with_file};
use std::io::Write;
use vfs::{Ctx, Errno, FileSystem, Ino, Name};

/// Directories with high link counts in one image.
const HIGH: usize = 20;

fn root() -> Ctx {
    Ctx::root()
}

fn find(fs: &impl FileSystem, dir: Ino, name: &str) -> Result<Ino, Errno> {
    let found = fs.lookup(&root(), dir, name.as_bytes())?.ino;
    fs.forget(found, 1);
    Ok(found)
}

/// Runs lines of debugfs.
pub fn changed(image: &[u8], lines: &str) -> Vec<u8> {
    let mut script = tempfile::NamedTempFile::new().unwrap();
    script.write_all(lines.as_bytes()).unwrap();
    with_file(
        image,
        "debugfs",
        &["-w", "-f", script.path().to_str().unwrap()],
    )
}

/// A tree of that many directories, and a directory `high` with [`HIGH`] empty ones whose link
/// counts are too high by one.
fn high_counts(directories: usize, clean: bool) -> Vec<u8> {
    let mounted = mount(mke2fs(&["-b", "1024", "-N", "1024"], "8M"));
    let fs = &mounted.fs;
    let make = |dir, name: String| fs.mkdir(&root(), dir, name.as_bytes(), 0o755).unwrap().ino;
    let high = make(Ino::ROOT, "high".into());
    let mut lines = format!("ssv state {}\n", u8::from(clean));
    for number in 0..HIGH {
        make(high, number.to_string());
        lines += &format!("sif high/{number} links_count 3\n");
    }
    let mut at = make(Ino::ROOT, "tree".into());
    for number in 0..directories {
        let made = make(at, number.to_string());
        if number % 20 == 0 {
            at = made;
        }
    }
    changed(&mounted.close(), &lines)
}

/// Removes all directories with high counts. Returns the blocks that the first removal looked
/// up, and those of all the others.
fn lookups(image: Vec<u8>) -> (u64, u64) {
    let mounted = mount(image);
    let high = find(&mounted.fs, Ino::ROOT, "high").unwrap();
    let mut costs = (0..HIGH).map(|number| {
        let name = number.to_string();
        let ino = find(&mounted.fs, high, &name).unwrap();
        assert_eq!(mounted.fs.getattr(&root(), ino).unwrap().nlink, 3);
        let before = mounted.cache.stats().lookups;
        (mounted.fs.rmdir(&root(), high, name.as_bytes())).unwrap();
        mounted.cache.stats().lookups - before
    });
    (costs.next().unwrap(), costs.sum())
}

#[test]
fn removals_with_high_counts_read_the_tree_at_most_once() {
    let [few, many] = [30, 600].map(|directories| lookups(high_counts(directories, false)));
    assert!(many.0 > 600, "the first one reads the names: {many:?}");
    assert!(many.1 < few.1 + HIGH as u64, "{few:?} {many:?}");
}

#[test]
fn removals_after_a_clean_unmount_do_not_read_the_tree() {
    let [few, many] = [30, 600].map(|directories| lookups(high_counts(directories, true)));
    let (few, many) = (few.0 + few.1, many.0 + many.1);
    assert!(many < few + 300, "{few} {many}");
}

/// A directory that a crash left with the names `a/d` and `b/d`; `..` leads to `a`.
fn two_names() -> Vec<u8> {
    let image = changed(
        &mke2fs(&["-b", "1024"], "4M"),
        "mkdir a\nmkdir b\nmkdir c\nmkdir high\nmkdir a/d\nln a/d b/d\n\
         sif a/d links_count 3\nsif b links_count 3\nsif high links_count 3\nssv state 0\n",
    );
    let listed = debugfs(&image, "ls -p /b").1;
    assert!(listed.contains("/d/"), "{listed}");
    image
}

#[test]
fn a_second_name_that_is_moved_stays_when_the_first_one_is_removed() {
    for read_first in [false, true] {
        let mounted = mount(two_names());
        let fs = &mounted.fs;
        let [a, b, c] = ["a", "b", "c"].map(|name| find(fs, Ino::ROOT, name).unwrap());
        let twin = find(fs, a, "d").unwrap();
        assert_eq!(find(fs, b, "d"), Ok(twin));
        if read_first {
            fs.rmdir(&root(), Ino::ROOT, b"high").unwrap();
        }
        (fs.rename(
            &root(),
            Name::new(b, b"d"),
            Name::new(c, b"e"),
            vfs::RenameFlags::empty(),
        ))
        .unwrap();
        fs.rmdir(&root(), a, b"d").unwrap();
        assert_eq!(find(fs, c, "e"), Ok(twin), "{read_first}");
        assert_eq!(fs.getattr(&root(), twin).unwrap().nlink, 2, "{read_first}");
        fs.rmdir(&root(), c, b"e").unwrap();
        assert_eq!(find(fs, c, "e"), Err(Errno::NOENT));
        let said = output_of_e2fsck(&mounted.close());
        assert!(!said.contains("deleted/unused"), "{said}");
    }
}

#[test]
fn either_name_can_be_removed_first() {
    for (first, second) in [("a", "b"), ("b", "a")] {
        let mounted = mount(two_names());
        let fs = &mounted.fs;
        let [first, second] = [first, second].map(|name| find(fs, Ino::ROOT, name).unwrap());
        let twin = find(fs, first, "d").unwrap();
        fs.rmdir(&root(), first, b"d").unwrap();
        assert_eq!(find(fs, second, "d"), Ok(twin));
        assert_eq!(blockfs::Format::parent(fs.format(), twin).unwrap(), second);
        fs.rmdir(&root(), second, b"d").unwrap();
        let said = output_of_e2fsck(&mounted.close());
        assert!(!said.contains("deleted/unused"), "{said}");
    }
}

/// A second name moves, during the reading of the names, to a directory that was read already.
#[test]
fn names_that_are_moved_while_they_are_read_are_found() {
    // Removals of directories in `high` read the names; others move `b` around meanwhile.
    for _ in 0..20 {
        let mounted = mount(two_names());
        let fs = &mounted.fs;
        let [a, b, c] = ["a", "b", "c"].map(|name| find(fs, Ino::ROOT, name).unwrap());
        let twin = find(fs, a, "d").unwrap();
        std::thread::scope(|threads| {
            threads.spawn(|| fs.rmdir(&root(), Ino::ROOT, b"high").unwrap());
            threads.spawn(|| {
                let flags = vfs::RenameFlags::empty();
                for _ in 0..10 {
                    fs.rename(
                        &root(),
                        Name::new(Ino::ROOT, b"b"),
                        Name::new(c, b"b"),
                        flags,
                    )
                    .unwrap();
                    fs.rename(
                        &root(),
                        Name::new(c, b"b"),
                        Name::new(Ino::ROOT, b"b"),
                        flags,
                    )
                    .unwrap();
                }
                fs.rename(
                    &root(),
                    Name::new(Ino::ROOT, b"b"),
                    Name::new(c, b"b"),
                    flags,
                )
                .unwrap();
            });
        });
        fs.rmdir(&root(), a, b"d").unwrap();
        assert_eq!(find(fs, b, "d"), Ok(twin));
        fs.rmdir(&root(), b, b"d").unwrap();
        let said = output_of_e2fsck(&mounted.close());
        assert!(!said.contains("deleted/unused"), "{said}");
    }
}

/// A rename takes a link for the new name before it removes the old one.
#[test]
fn a_file_with_the_most_links_can_be_renamed() {
    let image = changed(
        &mke2fs(&["-b", "1024"], "4M"),
        "mkdir d\nmkdir to\nwrite /dev/null f\nsif f links_count 32000\nsif d links_count 32000\n",
    );
    let mounted = mount(image);
    let fs = &mounted.fs;
    let to = find(fs, Ino::ROOT, "to").unwrap();
    for name in [b"f", b"d"] {
        let flags = vfs::RenameFlags::empty();
        fs.rename(
            &root(),
            Name::new(Ino::ROOT, name),
            Name::new(to, b"new"),
            flags,
        )
        .unwrap();
        let moved = find(fs, to, "new").unwrap();
        assert_eq!(fs.getattr(&root(), moved).unwrap().nlink, 32_000);
        let linked = fs.link(&root(), moved, to, b"more").map(drop);
        assert!(linked.is_err(), "{linked:?}");
        fs.rename(
            &root(),
            Name::new(to, b"new"),
            Name::new(Ino::ROOT, name),
            flags,
        )
        .unwrap();
    }
}
