//! A client makes what it stores as durable as the service does.

use aerie_client::{Client, Options};
use aerie_server::{Limits, Serving, serve};
use medium::{Durability, EffectiveDurability, MapOptions, MappedPmem, Reserve, create_file};
use pxfs::Pxfs;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use vfs::{Atime, Ctx, FileSystem, Ino, SystemClock};

const IMAGE: u64 = 16 << 20;
const CONTENTS: usize = 4 << 20;

pub(crate) const TESTS: &[(&str, fn())] = &[(
    "a_client_writes_back_what_it_stores",
    a_client_writes_back_what_it_stores,
)];

fn service(image: &Path, socket: &Path, durability: Durability) -> Serving {
    create_file(image, IMAGE, Reserve::Sparse).unwrap();
    let options = MapOptions {
        durability,
        ..MapOptions::default()
    };
    let memory = Arc::new(MappedPmem::open(image, &options).unwrap());
    let durability = memory.durability();
    pxfs::mkfs(&memory, &pxfs::MkfsOptions::default()).unwrap();
    let fs = Pxfs::open(memory, Arc::new(SystemClock), Atime::Never).unwrap();
    let file = File::options().read(true).write(true).open(image).unwrap();
    serve(fs, (&file, durability), socket, Limits::default()).unwrap()
}

/// Bytes of an image that this process has stored, and that the kernel has not written to the file since.
fn dirty_bytes(image: &Path) -> usize {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut is_ours, mut kilobytes) = (false, 0);
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("Shared_Dirty:" | "Private_Dirty:"), Some(count)) if is_ours => {
                kilobytes += count.parse::<usize>().unwrap();
            }
            (Some(first), _) if !first.ends_with(':') => {
                is_ours = line.ends_with(&image.display().to_string());
            }
            _ => {}
        }
    }
    kilobytes << 10
}

/// Contents in whole pages, which go around the caches, and in parts of pages; a value; and an overwrite.
fn store(client: &Client) {
    let cx = Ctx::root();
    let file = client.create(&cx, Ino::ROOT, b"file", 0o644).unwrap();
    for at in (0..CONTENTS).step_by(100_000) {
        client
            .write(&cx, file.ino, at as u64, &[1; 100_000])
            .unwrap();
    }
    client.fsync(&cx, file.ino, false).unwrap();
    client.write(&cx, file.ino, 5000, &[2; 50_000]).unwrap();
    client.fsync(&cx, file.ino, false).unwrap();
}

/// With `msync` an fsync leaves nothing to the kernel's own write-back. With `process` it does, so that this test sees
/// the difference.
fn a_client_writes_back_what_it_stores() {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    if medium::is_in_memory(place.path()).unwrap() {
        return skip::test("the target directory is in memory, and nothing there is written back");
    }
    for (durability, in_force) in [
        (Durability::Process, EffectiveDurability::Process),
        (Durability::Msync, EffectiveDurability::Msync),
    ] {
        let image = place.path().join(durability.to_string());
        let socket = place.path().join("socket");
        let service = service(&image, &socket, durability);
        let client = Client::connect(&socket, &Options::default()).unwrap();
        assert_eq!(client.durability(), in_force);
        store(&client);
        let dirty = dirty_bytes(&image);
        match in_force {
            EffectiveDurability::Msync => assert!(dirty < CONTENTS / 8, "{dirty} bytes"),
            _ => assert!(dirty >= CONTENTS, "{dirty} bytes"),
        }
        client.close().unwrap();
        service.stop();
    }
}
