//! The bytes of a new file system do not change between versions of the program. The images are
//! large and mostly empty, so their hashes are kept.

use ext2::{MkfsOptions, check, mkfs, probe};
use medium::block::{Geometry, MemoryDevice};
use vfs::Timestamp;
use xxhash_rust::xxh3::xxh3_64;

fn image(options: MkfsOptions) -> Vec<u8> {
    let device = MemoryDevice::new(Geometry {
        block_bytes: 512,
        blocks: 20_000,
    });
    mkfs(&device, &options).unwrap();
    assert_eq!(check(&device).findings, []);
    probe(&device).unwrap();
    device.bytes()
}

#[test]
fn mkfs_makes_the_same_bytes() {
    let options = MkfsOptions {
        label: *b"golden\0\0\0\0\0\0\0\0\0\0",
        uuid: *b"0123456789abcdef",
        now: Timestamp::from_parts(1_700_000_000, 123_456_789),
        ..MkfsOptions::for_size(10_240_000)
    };
    assert_eq!(xxh3_64(&image(options.clone())), 9_489_795_251_353_140_686);
    assert_eq!(
        xxh3_64(&image(options.revision_0())),
        15_340_989_316_729_128_236
    );
}
