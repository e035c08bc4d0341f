//! A client makes what it stores as durable as the service does.

use aerie_client::{Client, Kv, Options};
use aerie_server::{Limits, Serving, serve};
use medium::{Durability, EffectiveDurability, MapOptions, MappedPmem, Reserve, create_file};
use pxfs::Pxfs;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use vfs::{Atime, Ctx, FileSystem, Ino, SystemClock};

const IMAGE: u64 = 16 << 20;
const CONTENTS: usize = 1 << 20;
/// Most bytes that the service may leave: its changes of objects, which a log has.
const MOST: usize = CONTENTS / 2;

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

/// A way to store contents of [`CONTENTS`] bytes or more, each with its sync.
type Step = (&'static str, fn(&Client) -> vfs::Result<()>);

const STEPS: &[Step] = &[
    ("whole pages, around the caches", |client| {
        let cx = Ctx::root();
        let file = client.create(&cx, Ino::ROOT, b"file", 0o644)?;
        client.write(&cx, file.ino, 0, &vec![1; CONTENTS])?;
        client.fsync(&cx, file.ino, false)
    }),
    ("an overwrite", |client| {
        let cx = Ctx::root();
        let file = client.lookup(&cx, Ino::ROOT, b"file")?;
        client.write(&cx, file.ino, 0, &vec![2; CONTENTS])?;
        client.fsync(&cx, file.ino, false)
    }),
    ("parts of pages", |client| {
        let cx = Ctx::root();
        for n in 0..CONTENTS / 4096 {
            let name = format!("small{n}");
            let file = client.create(&cx, Ino::ROOT, name.as_bytes(), 0o644)?;
            client.write(&cx, file.ino, 0, &[3; 1000])?;
        }
        client.sync()
    }),
];

fn store_value(client: Arc<Client>) {
    let values = Kv::create(client, b"values").unwrap();
    values.put(b"key", &vec![4; CONTENTS + 100]).unwrap();
    values.sync().unwrap();
}

/// With `msync` a sync leaves nothing of contents to the kernel's own write-back. With `process` it leaves all, so that
/// this test sees the difference.
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
        let client = Arc::new(Client::connect(&socket, &Options::default()).unwrap());
        assert_eq!(client.durability(), in_force);
        let check = |step: &str| {
            let dirty = dirty_bytes(&image);
            match in_force {
                EffectiveDurability::Msync => assert!(dirty < MOST, "{step}: {dirty} bytes"),
                _ => assert!(dirty >= CONTENTS, "{step}: {dirty} bytes"),
            }
        };
        for (step, store) in STEPS {
            store(&client).unwrap();
            check(step);
        }
        store_value(Arc::clone(&client));
        check("a value");
        drop(client);
        service.stop();
    }
}
