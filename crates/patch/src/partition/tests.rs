//! Tables made by hand, damaged tables, and tables of sfdisk and sgdisk.

use super::*;
use medium::block::{Geometry, MemoryDevice, Write};
use proptest::prelude::*;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;

const SECTOR: usize = 512;
const SECTORS: u64 = 2048;

fn disk(bytes: &[u8]) -> MemoryDevice {
    MemoryDevice::from_bytes(1024, bytes.to_vec())
}

fn entry(kind: u8, start: u32, len: u32) -> [u8; 16] {
    let mut entry = [0; 16];
    entry[4] = kind;
    entry[8..12].copy_from_slice(&start.to_le_bytes());
    entry[12..].copy_from_slice(&len.to_le_bytes());
    entry
}

fn put_record(image: &mut [u8], sector: usize, entries: &[[u8; 16]]) {
    let record = &mut image[sector * SECTOR..][..SECTOR];
    for (index, entry) in entries.iter().enumerate() {
        record[446 + 16 * index..][..16].copy_from_slice(entry);
    }
    record[510..].copy_from_slice(&[0x55, 0xAA]);
}

/// Partitions 1 (16 to 64), 3 (64 to 128), and the logical ones 5 and 6.
fn mbr() -> Vec<u8> {
    let mut image = vec![0; SECTORS as usize * SECTOR];
    let entries = [
        entry(0x83, 16, 48),
        entry(0x05, 512, 1024),
        entry(0x83, 64, 64),
    ];
    put_record(&mut image, 0, &entries);
    put_record(
        &mut image,
        512,
        &[entry(0x83, 2, 98), entry(0x05, 200, 100)],
    );
    put_record(&mut image, 712, &[entry(0x83, 4, 96)]);
    image
}

/// Partitions 1 (64 to 128) and 3 (256 to 512), with a backup.
fn gpt() -> Vec<u8> {
    let mut image = vec![0; SECTORS as usize * SECTOR];
    put_record(&mut image, 0, &[entry(0xEE, 1, SECTORS as u32 - 1)]);
    let mut table = vec![0; 128 * 128];
    for (number, first, last) in [(1, 64u64, 127u64), (3, 256, 511)] {
        let entry = &mut table[128 * (number - 1)..][..128];
        entry[0] = 7;
        entry[32..40].copy_from_slice(&first.to_le_bytes());
        entry[40..48].copy_from_slice(&last.to_le_bytes());
    }
    for (at, entries) in [(1, 2), (SECTORS - 1, SECTORS - 33)] {
        let mut header = vec![0; 92];
        header[..8].copy_from_slice(SIGNATURE);
        header[12..16].copy_from_slice(&92u32.to_le_bytes());
        let fields = [(24, at), (40, 34), (48, SECTORS - 34), (72, entries)];
        for (offset, value) in fields {
            header[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
        }
        header[80..84].copy_from_slice(&128u32.to_le_bytes());
        header[84..88].copy_from_slice(&128u32.to_le_bytes());
        header[88..92].copy_from_slice(&crc32fast::hash(&table).to_le_bytes());
        let crc = crc32fast::hash(&header);
        header[16..20].copy_from_slice(&crc.to_le_bytes());
        image[at as usize * SECTOR..][..92].copy_from_slice(&header);
        image[entries as usize * SECTOR..][..table.len()].copy_from_slice(&table);
    }
    image
}

const SIGNATURE: &[u8] = b"EFI PART";

/// Numbers, and first sectors and lengths in sectors.
fn found(image: &[u8]) -> Vec<(u32, u64, u64)> {
    let sectors = |bytes| bytes / SECTOR as u64;
    let all = partitions(&disk(image), 512).unwrap();
    all.iter()
        .map(|p| (p.number, sectors(p.start), sectors(p.len_bytes)))
        .collect()
}

#[test]
fn primary_and_logical_partitions_have_the_numbers_of_linux() {
    let expected = [(1, 16, 48), (3, 64, 64), (5, 514, 98), (6, 716, 96)];
    assert_eq!(found(&mbr()), expected);
    assert_eq!(found(&gpt()), [(1, 64, 64), (3, 256, 256)]);
}

#[test]
fn a_damaged_gpt_gives_way_to_its_backup_and_two_damaged_ones_are_an_error() {
    for at in [SECTOR + 40, 2 * SECTOR + 32] {
        let mut image = gpt();
        image[at] ^= 1;
        assert_eq!(found(&image), [(1, 64, 64), (3, 256, 256)], "{at}");
        image[(SECTORS as usize - 1) * SECTOR + 40] ^= 1;
        let error = partitions(&disk(&image), 512).unwrap_err().to_string();
        assert!(error.contains("wrong checksum"), "{error}");
        assert!(error.contains("backup header"), "{error}");
    }
}

#[test]
fn invalid_tables_are_refused_with_the_reason() {
    let failed = |image: &[u8], number| find(&disk(image), 512, number).unwrap_err().to_string();
    let plain = vec![0; SECTORS as usize * SECTOR];
    assert!(failed(&plain, 1).contains("no partition table"));
    assert!(failed(&mbr(), 2).contains("there is no partition 2; the table has 1, 3, 5, 6"));
    let mut beyond = mbr();
    put_record(&mut beyond, 0, &[entry(0x83, 16, u32::MAX)]);
    assert!(failed(&beyond, 1).contains("partition 1 ends beyond the device"));
    let mut overlap = mbr();
    put_record(&mut overlap, 0, &[entry(0x83, 16, 49)]);
    assert!(failed(&overlap, 1).contains("partitions 1 and 3 overlap"));
    let mut endless = mbr();
    put_record(
        &mut endless,
        712,
        &[entry(0x83, 4, 96), entry(0x05, 0, 100)],
    );
    assert!(failed(&endless, 5).contains("has no end"));
    let mut outside = mbr();
    put_record(&mut outside, 712, &[entry(0x83, 4, 1000)]);
    assert!(failed(&outside, 1).contains("partition 6 ends beyond the extended"));
    let mut cut = mbr();
    cut[712 * SECTOR + 510] = 0;
    assert!(failed(&cut, 1).contains("sector 712 should have the record"));
    let mut misaligned = mbr();
    put_record(&mut misaligned, 0, &[entry(0x83, 15, 2)]);
    let error = PartitionDevice::open(disk(&misaligned), 512, 1)
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("offset=7680"), "{error}");
}

#[test]
fn no_access_leaves_the_partition() {
    let below = Arc::new(disk(&mbr()));
    let device = PartitionDevice::open(below.clone(), 512, 3).unwrap();
    let geometry = Geometry {
        block_bytes: 1024,
        blocks: 32,
    };
    assert_eq!(device.geometry(), geometry);
    let write = |tag, lba| Write {
        tag,
        lba: Lba(lba),
        data: Arc::new(Buffer::from_slice(&[9; 1024])),
        durable: None,
    };
    device.submit(
        [0, 31, 32, u64::MAX]
            .into_iter()
            .zip(1..)
            .map(|(lba, tag)| write(tag, lba))
            .collect(),
    );
    let mut done = device.reap(4);
    done.sort_by_key(|end| end.tag);
    let ok: Vec<bool> = done.iter().map(|end| end.result.is_ok()).collect();
    assert_eq!(ok, [true, true, false, false]);
    let bytes = below.bytes();
    let written: Vec<usize> = (0..SECTORS as usize / 2)
        .filter(|b| bytes[b * 1024] == 9)
        .collect();
    assert_eq!(written, [32, 63], "the partition's first and last block");
    let mut buf = vec![0; 2048];
    assert!(device.read(Lba(30), &mut buf).is_ok() && buf[1024] == 9);
    assert!(device.read(Lba(31), &mut buf).is_err());
    assert!(device.discard(Lba(31), 2).is_err() && device.discard(Lba(31), 1).is_ok());
}

/// Runs a program of util-linux or gdisk on an image, if it is installed.
fn run(image: &std::path::Path, program: &str, args: &[&str], input: &str) -> bool {
    let mut command = Command::new(program);
    command
        .args(args)
        .arg(image)
        .stdin(Stdio::piped())
        .stdout(Stdio::null());
    let Ok(mut child) = command.spawn() else {
        skip::test(&format!("needs {program}"));
        return false;
    };
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    assert!(child.wait().unwrap().success(), "{program}");
    true
}

#[test]
fn tables_of_other_programs_are_read() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(64 << 20).unwrap();
    let all = || found(&std::fs::read(file.path()).unwrap());
    let mbr =
        "label: dos\n2048,4096,83\n8192,32768,5\n40960,1024,83\n10240,2048,83\n14336,1024,83\n";
    if run(file.path(), "sfdisk", &["-q"], mbr) {
        let expected = [
            (1, 2048, 4096),
            (3, 40960, 1024),
            (5, 10240, 2048),
            (6, 14336, 1024),
        ];
        assert_eq!(all(), expected);
    }
    let gpt = "label: gpt\n2048,4096\n8192,1024\n";
    if run(file.path(), "sfdisk", &["-q"], gpt) {
        assert_eq!(all(), [(1, 2048, 4096), (2, 8192, 1024)]);
    }
    let args = ["-Z", "-o", "-n", "1:2048:4095", "-n", "7:4096:8191"];
    if run(file.path(), "sgdisk", &args[1..], "") {
        assert_eq!(all(), [(1, 2048, 2048), (7, 4096, 4096)]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// No partition exceeds the device, whatever the table.
    #[test]
    fn damaged_tables_give_a_partition_or_an_error(
        is_gpt in any::<bool>(),
        damage in prop::collection::vec((0..3usize, 0..2 * SECTOR, any::<u8>()), 0..20),
        resum in any::<bool>(),
        number in 0..8u32,
    ) {
        let mut image = if is_gpt { gpt() } else { mbr() };
        for (place, offset, byte) in damage {
            let sector = if is_gpt { [0, 1, SECTORS as usize - 2] } else { [0, 512, 712] }[place];
            image[sector * SECTOR + offset] = byte;
        }
        if is_gpt && resum {
            let header = &mut image[SECTOR..][..92];
            header[16..20].fill(0);
            let crc = crc32fast::hash(header);
            header[16..20].copy_from_slice(&crc.to_le_bytes());
        }
        if let Ok(device) = PartitionDevice::open(disk(&image), 512, number) {
            let geometry = device.geometry();
            prop_assert!(geometry.bytes() <= SECTORS * SECTOR as u64);
            let mut buf = vec![0; 1024];
            if geometry.blocks > 0 {
                prop_assert!(device.read(Lba(geometry.blocks - 1), &mut buf).is_ok());
            }
        }
    }
}
