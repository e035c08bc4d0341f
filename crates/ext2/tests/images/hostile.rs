//! Checks of damaged images end soon and without a panic, and find a defect.

use ext2::{MkfsOptions, check, mkfs, probe};
use medium::block::{Geometry, MemoryDevice};

fn image() -> Vec<u8> {
    let device = MemoryDevice::new(Geometry {
        block_bytes: 512,
        blocks: 1024,
    });
    mkfs(&device, &MkfsOptions::for_size(512 << 10)).unwrap();
    device.bytes()
}

fn look(bytes: Vec<u8>) -> usize {
    let device = MemoryDevice::from_bytes(512, bytes);
    let _ = probe(&device);
    check(&device).findings.len()
}

#[test]
fn random_bytes_are_damage() {
    let mut random = fastrand::Rng::with_seed(1);
    for len in [0, 512, 1024, 2048, 4096, 65_536] {
        let mut bytes = vec![0; len];
        random.fill(&mut bytes);
        assert!(look(bytes) > 0);
    }
}

#[test]
fn random_bytes_after_a_sound_superblock_are_damage() {
    let mut random = fastrand::Rng::with_seed(2);
    let sound = image();
    for from in [2048, 3072, 4096, 5 * 1024, 16 * 1024] {
        let mut bytes = sound.clone();
        random.fill(&mut bytes[from..]);
        assert!(look(bytes) > 0, "from {from}");
    }
}

#[test]
fn checks_of_changed_images_end() {
    let mut random = fastrand::Rng::with_seed(3);
    let sound = image();
    for _ in 0..3000 {
        let mut bytes = sound.clone();
        for _ in 0..random.usize(1..8) {
            // Mostly in the tables.
            let at = 1024 + random.usize(0..30_000);
            bytes[at] = [0, 0xff, random.u8(..)][random.usize(0..3)];
        }
        look(bytes);
    }
}

#[test]
fn a_tree_that_contains_itself_is_damage() {
    // Every pointer of an indirect block leads to the block itself, three levels deep.
    let mut bytes = image();
    let table = u32::from_le_bytes(bytes[2056..2060].try_into().unwrap()) as usize * 1024;
    let inode = table + 11 * 256; // inode 12
    let block = 400usize;
    bytes[inode..inode + 2].copy_from_slice(&0o100_644u16.to_le_bytes());
    bytes[inode + 26] = 1;
    for slot in 0..15 {
        let at = inode + 40 + 4 * slot;
        bytes[at..at + 4].copy_from_slice(&(block as u32).to_le_bytes());
    }
    for word in 0..256 {
        let at = block * 1024 + 4 * word;
        bytes[at..at + 4].copy_from_slice(&(block as u32).to_le_bytes());
    }
    let report = check(&MemoryDevice::from_bytes(512, bytes));
    assert!(report.findings.iter().any(|f| f.invariant == "E7"));
}
