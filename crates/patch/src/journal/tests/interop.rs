//! Other readers and writers of the format: e2fsck replays our log, and we replay logs of
//! debugfs and the kernel. Needs e2fsprogs.

use super::super::format::MAGIC;
use super::*;
use crate::{Change, Content, Store};
use medium::block::MemoryDevice;
use std::path::Path;
use std::process::Command;

fn run(program: &str, args: &[&str], image: &Path) -> String {
    let output = Command::new(program).args(args).arg(image).output();
    let output = output.expect("e2fsprogs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    // e2fsck exits with 1 if it has replayed the journal.
    let code = output.status.code();
    assert!(code.is_some_and(|c| c <= 1), "{program}: {text}{errors}");
    text
}

/// A file with a file system of mke2fs, and the place of its journal.
struct Image {
    _dir: tempfile::TempDir,
    path: std::path::PathBuf,
    place: LogBlocks,
    block_bytes: usize,
}

impl Image {
    fn new(kind: &str, block_bytes: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        std::fs::write(&path, vec![0; 16 << 20]).unwrap();
        let journal = format!("size={}", block_bytes / 1024);
        let size = block_bytes.to_string();
        let args = ["-q", "-F", "-t", kind, "-b", &size, "-J", &journal];
        run("mke2fs", &args, &path);
        let inode = run("debugfs", &["-R", "stat <8>"], &path);
        let list = inode.split_once("BLOCKS:\n");
        let list = list.or_else(|| inode.split_once("EXTENTS:\n")).unwrap().1;
        let list = list.lines().next().unwrap();
        let runs = list.split(", ").filter_map(|part| {
            // "(12-1023):536-1547"; an indirect block has no number before it.
            let (file, disk) = part.split_once("):")?;
            let data = file
                .trim_start_matches('(')
                .starts_with(|c: char| c.is_ascii_digit());
            let mut ends = disk.split('-').map(|n| n.parse::<u64>().unwrap());
            let first = ends.next()?;
            let last = ends.next().unwrap_or(first);
            data.then_some((Lba(first), last - first + 1))
        });
        Self {
            path,
            place: LogBlocks::new(runs),
            _dir: dir,
            block_bytes,
        }
    }

    fn device(&self) -> MemoryDevice {
        MemoryDevice::from_bytes(self.block_bytes as u32, std::fs::read(&self.path).unwrap())
    }

    /// The images after e2fsck's replay and after ours.
    fn replays(&self) -> (Vec<u8>, Vec<u8>) {
        let device = self.device();
        assert!(super::super::needs_recovery(&device, &self.place).unwrap());
        let found = super::super::replay(&device, &device, &self.place).unwrap();
        assert!(found.transactions > 0);
        run("e2fsck", &["-y", "-E", "journal_only"], &self.path);
        (std::fs::read(&self.path).unwrap(), device.bytes())
    }

    /// Compares images, without the journal and block groups' first superblock's block.
    fn compare(&self, (theirs, ours): (Vec<u8>, Vec<u8>)) {
        let blocks = theirs
            .chunks(self.block_bytes)
            .zip(ours.chunks(self.block_bytes));
        let journal: Vec<Lba> = (0..self.place.blocks())
            .map(|n| self.place.lba(n as u32))
            .collect();
        for (n, (theirs, ours)) in blocks.enumerate() {
            let holds_super = n == 1024 / self.block_bytes;
            if !journal.contains(&Lba(n as u64)) && !holds_super {
                assert!(theirs == ours, "block {n}");
            }
        }
    }
}

fn journal_on(image: &Image, device: &Arc<MemoryDevice>) -> Journal {
    let boxed: Box<dyn BlockDevice> = Box::new(device.clone());
    let options = CacheOptions {
        interval: None,
        ..CacheOptions::default()
    };
    let volume = Arc::new(Cache::new(vec![boxed], options)).store(0);
    let options = JournalOptions {
        interval: None,
        mode: Mode::Full,
        ..JournalOptions::default()
    };
    Journal::open(
        Arc::new(volume.clone()),
        Arc::new(volume),
        image.place.clone(),
        options,
    )
    .unwrap()
}

/// Free blocks of the images.
const FREE: std::ops::Range<u64> = 3000..4000;

fn write_much(journal: &Journal, block_bytes: usize, flag_at: usize) {
    let put = |op: &crate::Op, lba: u64, at: usize, bytes: &[u8]| {
        let at = at as u32;
        let change = Change::Bytes { at, bytes };
        let done = journal.change(op, Lba(lba), Content::Data, change, &[]);
        done.unwrap();
    };
    let (super_lba, super_at) = (1024 / block_bytes, 1024 % block_bytes);
    let op = journal.begin(1, crate::Caller::SYSTEM).unwrap();
    // The flag `needs_recovery`, which a file system sets at mount.
    put(&op, super_lba as u64, super_at + flag_at, &[6]);
    journal.end(op);
    journal.commit().unwrap();
    for round in 1..=30u8 {
        let op = journal.begin(100, crate::Caller::SYSTEM).unwrap();
        for n in 0..99 {
            let mut bytes = vec![round; block_bytes];
            if n % 7 == 0 {
                bytes[..4].copy_from_slice(&MAGIC.to_be_bytes());
            }
            put(
                &op,
                FREE.start + (u64::from(round) * 37 + n) % 500,
                0,
                &bytes,
            );
        }
        if round % 5 == 0 {
            let lba = Lba(FREE.start + u64::from(round));
            journal.freed(&op, lba, &[], false).unwrap();
        }
        let label = format!("round {round:02}");
        put(&op, super_lba as u64, super_at + 0x78, label.as_bytes());
        journal.end(op);
        journal.commit().unwrap();
    }
    journal.sync_all().unwrap();
}

#[test]
fn e2fsck_replays_our_log() {
    for block_bytes in [1024, 2048, 4096] {
        let image = Image::new("ext3", block_bytes);
        let device = Arc::new(image.device());
        let journal = journal_on(&image, &device);
        // The flag must be durable before the log.
        write_much(&journal, block_bytes, 0x60);
        assert!(journal.stats().revoked > 0 && journal.stats().tails > 1);
        let mut bytes = device.bytes();
        bytes[1024 + 0x60] = 6;
        std::fs::write(&image.path, bytes).unwrap();
        let (theirs, ours) = image.replays();
        for bytes in [&theirs, &ours] {
            assert_eq!(&bytes[1024 + 0x78..][..8], b"round 30");
        }
        image.compare((theirs, ours));
        run("e2fsck", &["-fn"], &image.path);
    }
}

/// Unmounts when it is dropped.
struct Mounted<'p>(&'p Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        // A child that another test has just forked may hold a file there until its exec.
        for _ in 0..100 {
            let unmounted = Command::new("umount").arg(self.0).status();
            if unmounted.is_ok_and(|status| status.success()) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    }
}

/// Whether the kernel serves ext3 to us: needs root and a loop device.
fn can_mount() -> bool {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let root = rustix::process::geteuid().is_root();
    root && known.contains("\text3") && Path::new("/dev/loop-control").exists()
}

#[test]
fn the_kernel_replays_our_log_and_we_its_log() {
    if !can_mount() {
        return skip::test("needs root, a loop device and the kernel's ext3");
    }
    let image = Image::new("ext3", 4096);
    let device = Arc::new(image.device());
    write_much(&journal_on(&image, &device), 4096, 0x60);
    let mut bytes = device.bytes();
    bytes[1024 + 0x60] = 6;
    std::fs::write(&image.path, &bytes).unwrap();
    super::super::replay(&device, &device, &image.place).unwrap();
    let ours = device.bytes();
    let at = image.path.with_extension("at");
    std::fs::create_dir(&at).unwrap();
    let mut mount = Command::new("mount");
    mount.args(["-o", "loop", "-t", "ext3"]).arg(&image.path);
    assert!(mount.arg(&at).status().unwrap().success());
    let crashed = {
        let _mounted = Mounted(&at);
        std::fs::write(at.join("file"), vec![7; 300_000]).unwrap();
        let file = std::fs::File::open(at.join("file")).unwrap();
        file.sync_all().unwrap();
        // As after a crash: the logged blocks are not home yet.
        std::fs::read(&image.path).unwrap()
    };
    let kernel = std::fs::read(&image.path).unwrap();
    let range = FREE.start as usize * 4096..(FREE.start as usize + 500) * 4096;
    let replayed = kernel[range.clone()]
        .chunks(4096)
        .zip(ours[range].chunks(4096));
    // The new file may have taken some of the free blocks.
    let same = replayed.filter(|(kernel, ours)| kernel == ours).count();
    assert!(same > 400, "{same} of 500 blocks");
    std::fs::write(&image.path, crashed).unwrap();
    let (theirs, ours) = image.replays();
    image.compare((theirs, ours.clone()));
    std::fs::write(&image.path, ours).unwrap();
    let text = run("debugfs", &["-R", "stat file"], &image.path);
    assert!(text.contains("Size: 300000"), "{text}");
}

#[test]
fn e2fsck_accepts_a_log_that_was_emptied() {
    let image = Image::new("ext3", 1024);
    let device = Arc::new(image.device());
    let journal = journal_on(&image, &device);
    write_much(&journal, 1024, 0x60);
    journal.checkpoint().unwrap();
    let mut bytes = device.bytes();
    bytes[1024 + 0x60] = 2;
    std::fs::write(&image.path, bytes).unwrap();
    let text = run("e2fsck", &["-fn"], &image.path);
    assert!(!text.contains("ournal"), "{text}");
}

#[test]
fn we_replay_a_log_of_debugfs() {
    for (kind, block_bytes) in [
        ("ext3", 1024),
        ("ext4", 1024),
        ("ext3", 4096),
        ("ext4", 4096),
    ] {
        // With 64-bit tags and checksums (v3).
        let checksums = if kind == "ext4" { "-c" } else { "" };
        let image = Image::new(kind, block_bytes);
        let data = image.path.with_extension("data");
        let mut bytes: Vec<u8> = (0..block_bytes * 40).map(|i| (i / 7) as u8).collect();
        bytes[..4].copy_from_slice(&MAGIC.to_be_bytes());
        std::fs::write(&data, bytes).unwrap();
        let script = image.path.with_extension("script");
        let file = data.display();
        let lines = format!(
            "jo {checksums}\njw -b 3000-3039 {file}\njw -b 3020-3059 {file}\n\
             jw -r 3030-3034\njw -b 3034 {file}\njc\n"
        );
        std::fs::write(&script, lines).unwrap();
        let script = script.display().to_string();
        run("debugfs", &["-w", "-f", &script], &image.path);
        let (theirs, ours) = image.replays();
        assert_eq!(
            ours[3034 * block_bytes + 20],
            20 / 7,
            "logged after the revoke"
        );
        assert_eq!(ours[3031 * block_bytes + 20], 0, "revoked");
        image.compare((theirs, ours));
    }
}
