use super::*;
use crate::{MkfsOptions, mkfs};
use blockfs::mount::{Devices, MountOptions, mount};
use medium::block::{Geometry, MemoryDevice};
use patch::stack::{Mode, Stack};
use vfs::{Ctx, FileSystem, Ino, ManualClock, Timestamp};

const BLOCK: u32 = 1024;
const BLOCKS: u64 = 8192;

fn image() -> Arc<MemoryDevice> {
    let geometry = Geometry {
        block_bytes: BLOCK,
        blocks: BLOCKS,
    };
    let device = Arc::new(MemoryDevice::new(geometry));
    let options = MkfsOptions {
        uuid: [7; 16],
        ..MkfsOptions::for_size(geometry.bytes())
    };
    mkfs(&*device, &options).unwrap();
    device
}

fn stack(mode: Mode) -> Stack {
    let mut stack = Stack::new("ext2", mode);
    stack.set_cache(|cache| cache.interval = None);
    stack
}

fn open(
    stack: &Stack,
    disk: &Arc<MemoryDevice>,
    log: Option<&Arc<MemoryDevice>>,
    read_only: bool,
) -> Result<Mounted, MountError> {
    let devices = Devices {
        disk: disk.clone(),
        log: log.map(|log| log.clone() as Arc<dyn BlockDevice>),
    };
    let options = MountOptions {
        read_only,
        ..MountOptions::default()
    };
    mount(stack, devices, &options)
}

fn write(mounted: &Mounted, name: &[u8], data: &[u8]) {
    let fs = mounted.file_system();
    let cx = Ctx::root();
    let file = fs.create(&cx, Ino::ROOT, name, 0o644).unwrap().ino;
    assert_eq!(fs.write(&cx, file, 0, data), Ok(data.len()));
    fs.fsync(&cx, file, false).unwrap();
    fs.fsyncdir(&cx, Ino::ROOT, false).unwrap();
    fs.forget(file, 1);
}

fn read(mounted: &Mounted, name: &[u8]) -> Vec<u8> {
    let fs = mounted.file_system();
    let cx = Ctx::root();
    let file = fs.lookup(&cx, Ino::ROOT, name).unwrap();
    let mut data = vec![0; file.size as usize];
    assert_eq!(fs.read(&cx, file.ino, 0, &mut data), Ok(data.len()));
    fs.forget(file.ino, 1);
    data
}

fn assert_clean(disk: &MemoryDevice, mode: Mode) {
    let image = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&image, disk.bytes()).unwrap();
    let e2fsck = std::process::Command::new("e2fsck")
        .arg("-fn")
        .arg(image.path())
        .output();
    let e2fsck = e2fsck.unwrap();
    let said = String::from_utf8_lossy(&e2fsck.stdout);
    assert!(e2fsck.status.success(), "{mode}: {said}");
}

fn incompat(disk: &Arc<MemoryDevice>) -> u32 {
    log::superblock(&**disk).unwrap().incompat.get()
}

#[test]
fn every_mode_keeps_files_and_leaves_a_clean_image() {
    for mode in Mode::ALL {
        let disk = image();
        let mounted = open(&stack(mode), &disk, None, false).unwrap();
        let journaled = mounted.journal().is_some();
        let recover = incompat(&disk) & Incompat::RECOVER.bits() != 0;
        assert_eq!(recover, journaled, "{mode}");
        write(&mounted, b"a", &[1; 50_000]);
        mounted.close().unwrap();
        drop(mounted);
        assert_eq!(incompat(&disk) & Incompat::RECOVER.bits(), 0, "{mode}");
        assert_clean(&disk, mode);
        // Each mode reads the image of each other.
        let mounted = open(&stack(Mode::SoftUpdates), &disk, None, true).unwrap();
        assert!(read(&mounted, b"a") == [1; 50_000], "{mode}");
    }
}

#[test]
fn synced_files_survive_a_crash() {
    for mode in Mode::ALL.into_iter().filter(|mode| *mode != Mode::Async) {
        let disk = image();
        let mounted = open(&stack(mode), &disk, None, false).unwrap();
        write(&mounted, b"a", &[1; 5000]);
        drop(mounted);
        let mounted = open(&stack(mode), &disk, None, false).unwrap();
        assert!(read(&mounted, b"a") == [1; 5000], "{mode}");
        mounted.close().unwrap();
    }
}

#[test]
fn a_journal_is_replayed_whatever_the_mode_of_the_next_mount() {
    let disk = image();
    let mounted = open(&stack(Mode::Journal), &disk, None, false).unwrap();
    write(&mounted, b"a", b"hello");
    drop(mounted);
    // A read-only mount shows the same, and changes nothing.
    let before = disk.bytes();
    let mounted = open(&stack(Mode::SoftUpdates), &disk, None, true).unwrap();
    assert_eq!(read(&mounted, b"a"), b"hello");
    mounted.close().unwrap();
    assert!(disk.bytes() == before);
    let mounted = open(&stack(Mode::SoftUpdates), &disk, None, false).unwrap();
    assert_eq!(read(&mounted, b"a"), b"hello");
    mounted.close().unwrap();
    assert_eq!(incompat(&disk) & Incompat::RECOVER.bits(), 0);
}

#[test]
fn external_logs_belong_to_one_image() {
    let (disk, other) = (image(), image());
    log::change_superblock(&*other, |sup| sup.uuid = [8; 16]).unwrap();
    let log = Arc::new(MemoryDevice::new(Geometry {
        block_bytes: BLOCK,
        blocks: 1024,
    }));
    let external: Stack =
        "uhfs > ext2 > journal(full, external=/log) > cache(interval=never) > disk"
            .parse()
            .unwrap();
    let mounted = open(&external, &disk, Some(&log), false).unwrap();
    write(&mounted, b"a", b"hello");
    drop(mounted);
    let refused = open(&stack(Mode::SoftUpdates), &disk, None, false).err();
    assert!(
        matches!(refused, Some(MountError::LogElsewhere)),
        "{refused:?}"
    );
    let refused = open(&external, &other, Some(&log), false).err();
    assert!(
        matches!(refused, Some(MountError::ExternalLog { .. })),
        "{refused:?}"
    );
    let mounted = open(&external, &disk, Some(&log), false).unwrap();
    assert_eq!(read(&mounted, b"a"), b"hello");
    mounted.close().unwrap();
    drop(mounted);
    open(&stack(Mode::SoftUpdates), &disk, None, false).unwrap();
}

#[test]
fn a_device_with_other_contents_is_refused_as_a_log() {
    let (disk, other) = (image(), image());
    let external: Stack = "uhfs > ext2 > journal(full, external=/x) > cache > disk"
        .parse()
        .unwrap();
    let before = other.bytes();
    let refused = open(&external, &disk, Some(&other), false).err();
    assert!(
        matches!(refused, Some(MountError::ExternalLog { .. })),
        "{refused:?}"
    );
    assert!(before == other.bytes());
}

#[test]
fn a_journal_that_cannot_be_made_names_the_reason() {
    let disk = image();
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(Timestamp(0), 0));
    let refused = Ext2::add_journal(&(disk as Arc<dyn BlockDevice>), Some(100_000), clock);
    let said = refused.unwrap_err().to_string();
    assert!(said.contains("100000 blocks does not fit"), "{said}");

    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), image().bytes()).unwrap();
    let path = file.path().display();
    let stack: Stack = format!("uhfs > ext2 > journal(full, external={path}) > cache > disk")
        .parse()
        .unwrap();
    let refused = Devices::open::<Ext2>(file.path(), &stack, false).err();
    let said = refused.unwrap().to_string();
    assert!(said.contains("is the image itself"), "{said}");
}

/// A mount with the layer `verify` finds no violation, whichever layer keeps the order.
#[test]
fn each_mode_passes_verification() {
    for above in [
        "",
        "journal(full) >",
        "journal(ordered) >",
        "journal(metadata) >",
    ] {
        let stack = format!(
            "uhfs > ext2 > {above} verify(every=7) > cache(4M, interval=never, wave=5) > disk"
        );
        let disk = image();
        let mounted = open(&stack.parse().unwrap(), &disk, None, false).unwrap();
        let fs = mounted.file_system();
        let cx = Ctx::root();
        for round in 0..60_u32 {
            let (old, new) = (format!("f{}", round % 7), format!("f{}", (round + 3) % 7));
            let _ = fs.unlink(&cx, Ino::ROOT, old.as_bytes());
            write(
                &mounted,
                old.as_bytes(),
                &vec![round as u8; 900 * (round as usize % 9)],
            );
            let (old, new) = (old.as_bytes(), new.as_bytes());
            let [old, new] = [old, new].map(|name| vfs::Name::new(Ino::ROOT, name));
            fs.rename(&cx, old, new, vfs::RenameFlags::empty()).unwrap();
            mounted.cache().write_some().unwrap();
        }
        mounted.close().unwrap();
        assert_clean(&disk, stack.parse::<Stack>().unwrap().mode());
    }
}

/// Puts a table into the first sector, with a partition for each start and length in sectors.
fn put_mbr(disk: &mut [u8], partitions: &[(u32, u32)]) {
    for (index, (start, len)) in partitions.iter().enumerate() {
        let entry = &mut disk[446 + 16 * index..][..16];
        entry[4] = 0x83;
        entry[8..12].copy_from_slice(&start.to_le_bytes());
        entry[12..].copy_from_slice(&len.to_le_bytes());
    }
    disk[510..512].copy_from_slice(&[0x55, 0xAA]);
}

#[test]
fn a_file_system_and_its_log_on_partitions_of_one_file() {
    let sectors = BLOCKS as u32 * BLOCK / 512;
    // A multiple of 1,024 bytes and of no more.
    let first = 2050;
    let log = first + sectors;
    let mut disk = vec![0; (log + 4096) as usize * 512];
    put_mbr(&mut disk, &[(first, sectors), (log, 4096)]);
    let image = image().bytes();
    disk[first as usize * 512..][..image.len()].copy_from_slice(&image);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &disk).unwrap();
    let stack: Stack = "uhfs > ext2 > journal(full, log=1) > cache(interval=never) > \
                        [partition(1) > disk, partition(2) > disk]"
        .parse()
        .unwrap();
    let mounted = || {
        let devices = Devices::open::<Ext2>(file.path(), &stack, false).unwrap();
        mount(&stack, devices, &MountOptions::default()).unwrap()
    };
    let crashed = mounted();
    write(&crashed, b"file", b"in the log");
    drop(crashed);
    let log_bytes = std::fs::read(file.path()).unwrap()[log as usize * 512..].to_vec();
    assert!(log_bytes.windows(10).any(|w| w == b"in the log"));
    let again = mounted();
    assert_eq!(read(&again, b"file"), b"in the log");
    again.close().unwrap();
    let after = std::fs::read(file.path()).unwrap();
    let around = |bytes: &[u8]| bytes[..first as usize * 512].to_vec();
    assert_eq!(around(&after), around(&disk), "nothing left the partitions");
    let home = &after[first as usize * 512..log as usize * 512];
    let home = MemoryDevice::from_bytes(BLOCK, home.to_vec());
    assert_eq!(crate::check(&home).worst(), None);
}

#[test]
fn a_device_that_nothing_uses_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), image().bytes()).unwrap();
    let other = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(other.path(), image().bytes()).unwrap();
    let path = other.path().display();
    let stack = format!("uhfs > ext2 > cache > [disk, disk({path})]");
    let opened = Devices::open::<Ext2>(file.path(), &stack.parse().unwrap(), false);
    assert!(matches!(opened, Err(MountError::Unused(1))));
}

#[test]
fn a_drawing_names_blocks_of_every_use() {
    for mode in Mode::ALL {
        let disk = image();
        let mounted = open(&stack(mode), &disk, None, false).unwrap();
        let (fs, cx) = (mounted.file_system(), Ctx::root());
        write(&mounted, b"removed", &[1; 5000]);
        let file = fs.create(&cx, Ino::ROOT, b"file", 0o644).unwrap().ino;
        // Blocks 12 and later need an indirect block.
        fs.write(&cx, file, 0, &[1; 20 * BLOCK as usize]).unwrap();
        let attribute = (b"user.a".as_slice(), [7; 500].as_slice());
        fs.setxattr(&cx, file, attribute.0, attribute.1, vfs::XattrMode::Set)
            .unwrap();
        fs.unlink(&cx, Ino::ROOT, b"removed").unwrap();
        if let Some(journal) = mounted.journal() {
            journal.commit().unwrap();
        }
        let drawing = mounted.drawing();
        let unnamed: Vec<_> = drawing.blocks.iter().filter(|b| b.name.is_none()).collect();
        assert!(unnamed.is_empty(), "{mode}: {unnamed:?}");
        let names: Vec<_> = drawing
            .blocks
            .iter()
            .flat_map(|b| b.name.as_deref())
            .collect();
        let expected = ["file /file indirect block", "file /file attributes"];
        let log = mounted.journal().map(|_| "log");
        for name in expected.iter().chain(&log) {
            assert!(names.contains(name), "{mode}: {name}: {names:?}");
        }
    }
}
