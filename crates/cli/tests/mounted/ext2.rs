//! ext2: its modes and stacks, what fsync keeps, foreign images, wrong requests.

use crate::fixture::{Fixture, alone, finish, run, selvedge, stderr, stdout, wait_for};
use ext2::fsck::{Verdict, verdict};
use rustix::fs::statvfs;
use rustix::io::Errno;
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;

const MODES: [&str; 5] = [
    "async",
    "softupdates",
    "journal-metadata",
    "journal-ordered",
    "journal",
];

fn image(options: &[&str]) -> Fixture {
    let place = Fixture::new();
    let mkfs = ["mkfs", "--type", "ext2", "--size", "16M", place.image_str()];
    run(0, &[&mkfs, options].concat());
    place
}

fn info(place: &Fixture) -> Value {
    let json = run(0, &["info", "--json", place.image_str()]);
    serde_json::from_str(&stdout(&json)).unwrap()
}

/// The message of a refused `mount`.
fn refusal(place: &Fixture, args: &[&str]) -> String {
    let mount = ["mount", place.image_str(), place.dir_str()];
    let refused = run(32, &[&mount, args].concat());
    assert!(!place.is_mounted());
    stderr(&refused)
}

fn sync(path: &Path) -> std::io::Result<()> {
    File::open(path)?.sync_all()
}

fn errno(result: std::io::Result<()>) -> Option<i32> {
    result.err().and_then(|e| e.raw_os_error())
}

#[test]
fn an_image_goes_through_all_modes() {
    let place = image(&[]);
    for (i, mode) in MODES.into_iter().enumerate() {
        place.mount(&["-o", &format!("mode={mode}")]);
        let told = info(&place);
        assert_eq!(told["mode"], mode);
        let stack = told["stack"].as_str().unwrap();
        assert!(stack.starts_with("uhfs > ext2 > "), "{stack}");
        assert_eq!(stack.contains("journal("), mode.contains("journal"));
        assert_eq!(told["guarantees"]["name"], format!("ext2 (mode={mode})"));
        for (j, earlier) in MODES[..i].iter().enumerate() {
            let text = fs::read(place.dir().join(earlier).join("file")).unwrap();
            assert_eq!(text, vec![j as u8; 300_000]);
        }
        fs::create_dir(place.dir().join(mode)).unwrap();
        fs::write(place.dir().join(mode).join("file"), [i as u8; 300_000]).unwrap();
        place.umount();
        assert_eq!(verdict(&place.image()).unwrap(), Verdict::Clean, "{mode}");
        place.fsck();
    }
}

#[test]
fn fsynced_files_survive_a_killed_server() {
    for mode in &MODES[1..] {
        let place = image(&["--journal"]);
        let mut server = place.serve(&["-o", &format!("mode={mode}")]);
        let dir = place.dir().join("dir");
        fs::create_dir(&dir).unwrap();
        for i in 0..50 {
            fs::write(dir.join(i.to_string()), vec![i; 9_000]).unwrap();
        }
        for path in [&dir.join("7"), &dir, &place.dir()] {
            sync(path).unwrap();
        }
        fs::rename(dir.join("8"), dir.join("9")).unwrap();
        server.signal("KILL");
        assert_eq!(server.wait(), None);
        run(0, &["umount", "--lazy", place.dir_str()]);

        let journaled = mode.contains("journal");
        if journaled {
            reads_as_replayed(&place, &dir.join("7"));
        }
        place.mount(&["-o", &format!("mode={mode}")]);
        assert_eq!(fs::read(dir.join("7")).unwrap(), [7; 9_000]);
        fs::write(dir.join("new"), "new").unwrap();
        place.umount();
        let worst = if journaled {
            Verdict::Clean
        } else {
            Verdict::Leaks
        };
        assert!(verdict(&place.image()).unwrap() <= worst, "{mode}");
    }
}

/// A journal is replayed in memory for those who only read.
fn reads_as_replayed(place: &Fixture, fsynced: &Path) {
    let before = fs::read(place.image()).unwrap();
    let checked = run(0, &["fsck", "-n", place.image_str()]);
    assert!(stdout(&checked).contains("replayed by the next mount"));
    place.mount(&["-o", "ro"]);
    assert_eq!(fs::read(fsynced).unwrap(), [7; 9_000]);
    place.umount();
    assert!(fs::read(place.image()).unwrap() == before);
}

/// As `fsck -a` does at boot, before the mount of fstab(5).
#[test]
fn the_fsck_of_a_boot_accepts_an_image_after_a_crash() {
    for mode in ["softupdates", "journal"] {
        let place = image(&["--journal"]);
        let options = format!("mode={mode},commit=3600");
        let mut server = place.serve(&["-o", &options]);
        let dir = place.dir().join("dir");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("file"), "text").unwrap();
        for path in [&dir.join("file"), &dir, &place.dir()] {
            sync(path).unwrap();
        }
        server.signal("KILL");
        assert_eq!(server.wait(), None);
        run(0, &["umount", "--lazy", place.dir_str()]);

        let journaled = mode == "journal";
        if !journaled {
            // A file that was not synced had these blocks.
            let lost = ["-w", "-R", "setb 9000 3", place.image_str()];
            finish(0, Command::new("debugfs").args(lost));
            let leaks = stdout(&run(4, &["fsck", "-n", place.image_str()]));
            let line = leaks.lines().find(|line| line.contains("E20: ")).unwrap();
            assert!(
                line.contains("not in use: block ") && line.contains('-'),
                "{line}"
            );
            assert!(!leaks.contains("violation"), "{leaks}");
            assert_eq!(leaks.lines().count(), 2, "{leaks}");
        }
        let preen = run(i32::from(journaled), &["fsck", "-a", place.image_str()]);
        assert_eq!(stdout(&preen).contains("was replayed"), journaled);
        run(0, &["fsck", "-p", place.image_str()]);
        place.mount(&["-o", &options]);
        assert_eq!(fs::read(dir.join("file")).unwrap(), b"text");
        place.umount();
    }
}

#[test]
fn synced_files_survive_a_killed_server() {
    let place = image(&[]);
    let mut server = place.serve(&["-o", "commit=3600"]);
    let dir = place.dir().join("dir");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("file"), [7; 9_000]).unwrap();
    run(0, &["sync", dir.join("file").to_str().unwrap()]);
    fs::write(dir.join("later"), "").unwrap();
    // A mount that is read-only by now has changes to lose.
    let remount = |options| {
        let (image, dir) = (place.image_str(), place.dir_str());
        run(0, &["mount", image, dir, "-o", options])
    };
    remount("remount,ro");
    run(0, &["sync", place.dir_str()]);
    remount("remount,rw");
    fs::write(dir.join("too late"), "").unwrap();
    server.signal("KILL");
    assert_eq!(server.wait(), None);
    run(0, &["umount", "--lazy", place.dir_str()]);
    let said = stderr(&run(1, &["sync", "/dev/shm"]));
    assert!(said.contains("use sync(1)"), "{said}");

    place.mount(&["-o", "ro"]);
    assert_eq!(fs::read(dir.join("file")).unwrap(), [7; 9_000]);
    assert!(dir.join("later").exists());
    assert!(!dir.join("too late").exists(), "the test shows nothing");
    run(0, &["sync", place.dir_str()]);
    place.umount();
}

#[test]
fn a_device_that_fails_makes_it_read_only() {
    for mode in &MODES[1..] {
        let place = image(&[]);
        place.mount(&["-o", &format!("mode={mode}")]);
        let file = place.dir().join("file");
        fs::write(&file, "text").unwrap();
        sync(&file).unwrap();
        // Writes and flushes of a file that was cut short fail.
        let open = File::options().write(true).open(place.image()).unwrap();
        open.set_len(8192).unwrap();
        fs::write(&file, "more").unwrap();
        assert_eq!(errno(sync(&file)), Some(Errno::IO.raw_os_error()), "{mode}");
        let new = fs::write(place.dir().join("new"), "");
        assert_eq!(errno(new), Some(Errno::ROFS.raw_os_error()), "{mode}");
        let said = stderr(&run(1, &["sync", place.dir_str()]));
        assert!(said.contains("cannot sync"), "{said}");
        let failed = run(1, &["umount", place.dir_str()]);
        let said = stderr(&failed);
        assert!(said.contains("failed while it was mounted"), "{said}");
    }
}

#[test]
fn a_read_only_mount_is_unmounted_without_complaint() {
    let place = image(&[]);
    place.mount(&[]);
    fs::write(place.dir().join("file"), "text").unwrap();
    place.umount();
    let before = fs::read(place.image()).unwrap();
    place.mount(&["-o", "ro"]);
    assert_eq!(fs::read(place.dir().join("file")).unwrap(), b"text");
    let refused = fs::write(place.dir().join("new"), "");
    assert_eq!(errno(refused), Some(Errno::ROFS.raw_os_error()));
    place.umount();
    assert!(fs::read(place.image()).unwrap() == before);
}

/// A partition of a disk image; 63 sectors are not a multiple of a block.
#[test]
fn an_image_inside_an_image() {
    const START: usize = 63 * 512;
    let place = image(&[]);
    let inside = fs::read(place.image()).unwrap();
    let around = [0xaa; START];
    fs::write(place.image(), [&around[..], &inside, &around].concat()).unwrap();
    run(8, &["fsck", "-n", place.image_str()]);
    for text in ["first", "second"] {
        place.mount(&["-o", &format!("mode=journal,offset={START}")]);
        let file = place.dir().join(text);
        fs::write(&file, text).unwrap();
        sync(&file).unwrap();
        place.umount();
    }
    let offset = ["--offset", &START.to_string(), place.image_str()];
    run(0, &[&["fsck", "-n"], &offset[..]].concat());
    let told = stdout(&run(0, &[&["info"], &offset[..]].concat()));
    assert!(told.contains("ext2"), "{told}");
    let whole = fs::read(place.image()).unwrap();
    let (inside, behind) = whole[START..].split_at(inside.len());
    assert!(whole[..START] == around && behind == around);
    let taken_out = place.path("taken out");
    fs::write(&taken_out, inside).unwrap();
    assert_eq!(verdict(&taken_out).unwrap(), Verdict::Clean);
    let refused = refusal(&place, &["-o", "offset=1M"]);
    assert!(
        refused.contains("no known file system at byte 1048576"),
        "{refused}"
    );
}

/// A loop device; it is removed when dropped.
struct ReadOnlyLoop(String);

impl ReadOnlyLoop {
    fn new(place: &Fixture) -> Self {
        let mut losetup = Command::new("losetup");
        losetup
            .args(["--find", "--show", "--read-only"])
            .arg(place.image());
        Self(stdout(&finish(0, &mut losetup)).trim().to_owned())
    }
}

impl Drop for ReadOnlyLoop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).output();
    }
}

#[test]
fn a_read_only_device_takes_read_only_mounts_that_read_its_journal() {
    let place = image(&["--journal"]);
    let mut server = place.serve(&["-o", "mode=journal,commit=3600"]);
    let file = place.dir().join("file");
    fs::write(&file, "text").unwrap();
    sync(&file).unwrap();
    sync(&place.dir()).unwrap();
    server.signal("KILL");
    assert_eq!(server.wait(), None);
    run(0, &["umount", "--lazy", place.dir_str()]);
    let device = ReadOnlyLoop::new(&place);
    let refused = stderr(&run(32, &["mount", &device.0, place.dir_str()]));
    assert!(refused.contains("is read-only"), "{refused}");
    run(0, &["mount", &device.0, place.dir_str(), "-o", "ro"]);
    assert_eq!(fs::read(&file).unwrap(), b"text");
    place.umount();
}

#[test]
fn block_sizes_that_help_are_named() {
    let place = Fixture::new();
    let mkfs = ["mkfs", "--type", "ext2", "--size", "16M", "-b", "3000"];
    let refused = stderr(&run(2, &[&mkfs[..], &[place.image_str()]].concat()));
    assert!(refused.contains("1024, 2048 or 4096"), "{refused}");
}

#[test]
fn a_log_of_its_own() {
    let place = image(&[]);
    let log = place.path("log");
    let stack = |log: &Path| {
        let log = log.display();
        format!("uhfs > ext2 > journal(full, external={log}) > cache > disk")
    };
    let empty = |path: &Path| File::create(path).unwrap().set_len(8 << 20).unwrap();
    empty(&log);
    let mut server = place.serve(&["--stack", &stack(&log)]);
    let file = place.dir().join("file");
    fs::write(&file, "text").unwrap();
    sync(&file).unwrap();
    sync(&place.dir()).unwrap();
    server.signal("KILL");
    assert_eq!(server.wait(), None);
    run(0, &["umount", "--lazy", place.dir_str()]);

    // A check needs the log, and can replay it.
    let blind = stderr(&run(8, &["fsck", "-p", place.image_str()]));
    assert!(blind.contains("fsck with -j PATH"), "{blind}");
    let before = fs::read(place.image()).unwrap();
    run(
        0,
        &["fsck", "-n", "-j", log.to_str().unwrap(), place.image_str()],
    );
    assert!(fs::read(place.image()).unwrap() == before);
    let saved = fs::read(&log).unwrap();
    run(
        1,
        &["fsck", "-p", "-j", log.to_str().unwrap(), place.image_str()],
    );
    run(0, &["fsck", "-p", place.image_str()]);
    assert_eq!(verdict(&place.image()).unwrap(), Verdict::Clean);
    fs::write(place.image(), before).unwrap();
    fs::write(&log, saved).unwrap();

    // It is lost without its log, so it is not mounted without.
    let other = place.path("other");
    empty(&other);
    for args in [
        &[][..],
        &["-o", "mode=journal"],
        &["--stack", &stack(&other)],
    ] {
        refusal(&place, args);
    }
    place.mount(&["--stack", &stack(&log)]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "text");
    place.umount();
    assert_eq!(verdict(&place.image()).unwrap(), Verdict::Clean);
    let alien = image(&[]);
    let refused = refusal(&alien, &["--stack", &stack(&log)]);
    assert!(
        refused.contains("the log of another file system"),
        "{refused}"
    );
}

#[test]
fn a_check_that_finds_nothing_clears_the_mark_of_errors() {
    let place = image(&[]);
    let debugfs = |command| {
        let mut debugfs = Command::new("debugfs");
        debugfs.args(["-w", "-R", command]).arg(place.image());
        finish(0, &mut debugfs);
    };
    debugfs("ssv state 3");
    let marked = |place: &Fixture| {
        let device =
            medium::block::MemoryDevice::from_bytes(1024, fs::read(place.image()).unwrap());
        ext2::probe(&device).unwrap().errors
    };
    run(0, &["fsck", "-n", place.image_str()]);
    assert!(marked(&place));
    let cleared = stdout(&run(0, &["fsck", "-p", place.image_str()]));
    assert!(cleared.contains("was cleared"), "{cleared}");
    assert!(!marked(&place));
    // It stays if there are errors.
    debugfs("ssv state 3");
    debugfs("freeb 1");
    run(4, &["fsck", "-p", place.image_str()]);
    assert!(marked(&place));
}

#[test]
fn a_check_that_finds_nothing_clears_the_mark_of_an_unclean_unmount() {
    let clean = |place: &Fixture| {
        let image = fs::read(place.image()).unwrap();
        let device = medium::block::MemoryDevice::from_bytes(1024, image);
        ext2::probe(&device).unwrap().clean
    };
    let mount_and_kill = |place: &Fixture, mode: &str, name: Option<&str>| {
        let mut server = place.serve(&["-o", &format!("mode={mode},commit=3600")]);
        // Waits until the file system is open.
        fs::metadata(place.dir()).unwrap();
        if let Some(name) = name {
            let file = place.dir().join(name);
            fs::write(&file, "text").unwrap();
            sync(&file).unwrap();
        }
        server.signal("KILL");
        assert_eq!(server.wait(), None);
        run(0, &["umount", "--lazy", place.dir_str()]);
    };
    let place = image(&["--journal"]);
    // With a journal the mark is never set: a replay is all that is needed.
    mount_and_kill(&place, "journal", Some("file"));
    let said = stdout(&run(1, &["fsck", "-p", place.image_str()]));
    assert!(!said.contains("not unmounted was cleared"), "{said}");
    assert!(clean(&place));
    mount_and_kill(&place, "softupdates", None);
    assert!(!clean(&place));
    let said = stdout(&run(0, &["fsck", "-p", place.image_str()]));
    assert!(said.contains("not unmounted was cleared"), "{said}");
    assert!(clean(&place));
    let mut e2fsck = Command::new("e2fsck");
    finish(0, e2fsck.args(["-f", "-n"]).arg(place.image()));
    place.mount(&[]);
    assert_eq!(fs::read(place.dir().join("file")).unwrap(), b"text");
    place.umount();
    assert!(clean(&place));
    // It stays where there are leaks, which the next mount has to count: this one's bitmaps
    // are durable, and the counts of what is free are not.
    mount_and_kill(&place, "softupdates", Some("other"));
    run(4, &["fsck", "-n", place.image_str()]);
    run(0, &["fsck", "-p", place.image_str()]);
    assert!(!clean(&place));
}

#[test]
fn a_removed_file_that_filled_the_image_is_free_space() {
    let name = "ext2::a_removed_file_that_filled_the_image_is_free_space";
    alone(name, || {
        for mode in ["softupdates", "journal-ordered"] {
            let place = image(&["--journal"]);
            place.mount(&["-o", &format!("mode={mode}")]);
            let free = || {
                let counts = statvfs(place.dir()).unwrap();
                (counts.f_bfree, counts.f_bavail, counts.f_ffree)
            };
            let before = free();
            for _ in 0..10 {
                let path = place.dir().join("file");
                let mut file = File::create(&path).unwrap();
                let full = std::iter::repeat_with(|| file.write_all(&[7; 1 << 16]));
                let full = full.take(1 << 10).find_map(Result::err);
                assert_eq!(
                    full.unwrap().raw_os_error(),
                    Some(Errno::NOSPC.raw_os_error())
                );
                drop(file);
                fs::remove_file(&path).unwrap();
                assert_eq!(free(), before);
            }
            place.umount();
            place.fsck();
        }
    });
}

/// The thread that answers `statfs` may be ahead of the one that has read that the kernel has
/// dropped the file. While the file is open, it counts as used.
#[test]
fn the_space_of_a_removed_file_is_free_in_the_next_statfs() {
    let name = "ext2::the_space_of_a_removed_file_is_free_in_the_next_statfs";
    alone(name, || {
        for mode in ["softupdates", "journal-ordered"] {
            let place = image(&[]);
            place.mount(&["-o", &format!("mode={mode},threads=4")]);
            let free = || {
                let counts = statvfs(place.dir()).unwrap();
                (counts.f_bfree, counts.f_ffree)
            };
            let (before, path) = (free(), place.dir().join("file"));
            let late: Vec<u32> = (0..100u32)
                .filter(|_| {
                    fs::write(&path, [7; 1 << 18]).unwrap();
                    fs::remove_file(&path).unwrap();
                    free() != before
                })
                .collect();
            assert_eq!(late, Vec::<u32>::new(), "{mode}");

            let open = File::create(&path).unwrap();
            (&open).write_all(&[7; 1 << 18]).unwrap();
            fs::remove_file(&path).unwrap();
            for _ in 0..10 {
                assert!(free().0 < before.0 && free().1 < before.1, "{mode}");
            }
            drop(open);
            assert_eq!(free(), before, "{mode}");
            place.umount();
            place.fsck();
        }
    });
}

#[test]
fn a_damaged_inode_is_listed_by_its_name() {
    let place = image(&[]);
    place.mount(&[]);
    let path = |name: &str| place.dir().join(name);
    for name in ["a", "b", "c"] {
        fs::write(path(name), name).unwrap();
    }
    place.umount();
    let damage = ["-w", "-R", "sif /b mode 0"];
    finish(0, Command::new("debugfs").args(damage).arg(place.image()));
    place.mount(&[]);
    let entries = fs::read_dir(place.dir()).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["a", "b", "c", "lost+found"]);
    let uclean = Some(Errno::UCLEAN.raw_os_error());
    assert_eq!(errno(fs::metadata(path("b")).map(drop)), uclean);
    for name in ["a", "c"] {
        assert_eq!(fs::read_to_string(path(name)).unwrap(), name);
    }
}

#[test]
fn images_of_mke2fs_mount_and_stay_clean() {
    let images: [&[&str]; 5] = [
        &["-b", "1024", "-r", "0"],
        &["-b", "2048", "-I", "128"],
        &["-b", "4096", "-O", "^filetype,^resize_inode"],
        &["-b", "1024", "-j"],
        &["-b", "4096", "-j", "-J", "size=4"],
    ];
    for options in images {
        let place = Fixture::new();
        let mke2fs = |options: &[&str]| {
            let mut mke2fs = Command::new("mke2fs");
            mke2fs.args(["-q", "-F", "-t", "ext2"]).args(options);
            finish(0, mke2fs.arg(place.image()).arg("20001k"));
        };
        mke2fs(options);
        for mode in ["softupdates", "journal"] {
            if options.contains(&"-r") && mode == "journal" {
                let refused = refusal(&place, &["-o", "mode=journal"]);
                assert!(refused.contains("revision 0"), "{refused}");
                continue;
            }
            place.mount(&["-o", &format!("mode={mode}")]);
            fs::write(place.dir().join(mode), [1; 100_000]).unwrap();
            place.umount();
            let found = verdict(&place.image()).unwrap();
            assert_eq!(found, Verdict::Clean, "{options:?} {mode}");
            place.fsck();
        }
        mke2fs(&["-O", "quota"]);
        let refused = refusal(&place, &[]);
        assert!(refused.contains("quota; mount it with -o ro"), "{refused}");
        mke2fs(&["-O", "extent"]);
        let refused = refusal(&place, &["-o", "ro"]);
        assert!(refused.contains("unknown features: extent"), "{refused}");
    }
}

#[test]
fn wrong_requests_are_named() {
    let place = image(&[]);
    for (args, expected) in [
        (["-o", "mode=sp"], "softupdates"),
        (["-o", "sync"], "durable at fsync only"),
        (
            ["-o", "durability=msync"],
            "is for bpfs, soupfs, pxfs, not for ext2",
        ),
        (["-o", "cache=1K"], "at least 4M"),
        (["--stack", "ext2"], "a stack reads"),
        (["--stack", "uhfs > ext3 > cache > disk"], "'ext3'"),
        (
            ["--stack", "uhfs > ext2 > journal(half) > cache > disk"],
            "'half'",
        ),
    ] {
        let said = refusal(&place, &args);
        assert!(said.contains(expected), "{args:?}: {said}");
    }
    let dump = run(1, &["dump", place.image_str()]);
    assert!(stderr(&dump).contains("debugfs"));
    let small = place.path("small");
    let mkfs = |size| {
        let mut mkfs = selvedge();
        mkfs.args(["mkfs", "--type", "ext2", "--size", size])
            .arg(&small);
        mkfs
    };
    let refused = finish(1, &mut mkfs("8K"));
    assert!(stderr(&refused).contains("an ext2 file system needs"));
    assert!(!small.exists());
    finish(0, &mut mkfs("64K"));
}

#[test]
fn a_signal_draws_what_is_not_durable() {
    let place = image(&[]);
    let server = place.serve(&["--stack", "uhfs > ext2 > cache(8M, interval=never) > disk"]);
    fs::write(place.dir().join("file"), "text").unwrap();
    server.signal("USR2");
    let picture = place.path("image.graph.svg");
    wait_for("the picture", || {
        fs::read_to_string(&picture).is_ok_and(|svg| svg.contains("</svg>"))
    });
    assert!(fs::read_to_string(&picture).unwrap().contains("bitmap"));
    place.umount();
}
