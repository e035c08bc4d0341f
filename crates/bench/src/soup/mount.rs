//! A mount after a power failure, and the first call after it.

use super::{Options, Row};
use crate::Engine;
use crate::error::{Context, Result};
use engine::{Scratch, ScratchOptions};
use medium::{MapOptions, MappedPmem, PersistModel, PowerCut, Reserve};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tracing::subscriber::NoSubscriber;
use vfs::{Ctx, FileSystem, Ino};

/// The names of the rows.
pub(super) const MOUNT: &str = "mount after a crash";
pub(super) const FIRST: &str = "first create after it";

/// Files in one directory.
const PER_DIRECTORY: u64 = 1000;
/// Bytes of a file.
const FILE: [u8; 1024] = [7; 1024];
/// Mounts that are timed; the least time counts.
const MOUNTS: u32 = 5;

/// Times the mount of an image with many files, in a process that has not used it since its boot.
pub(super) fn measure(engine: Engine, options: &Options) -> Result<Vec<Row>> {
    let what = || "an image of many files".to_owned();
    let home = tempfile::Builder::new()
        .prefix("selvedge-bench-")
        .tempdir_in(&options.dir)
        .what(what)?;
    let path = home.path().join("image");
    medium::create_file(&path, options.image_bytes, Reserve::Sparse).what(what)?;
    let mut least = [f64::INFINITY; 2];
    for n in 0..MOUNTS {
        crash(engine, &path, if n == 0 { options.files } else { 0 })?;
        let begun = Instant::now();
        let scratch = Scratch::Mapped(mapped(&path)?.into());
        let boot = ScratchOptions {
            boot: Some(2 * u128::from(n) + 2),
            ..ScratchOptions::default()
        };
        let fs = engine.reopen(scratch, &boot)?;
        let mount = begun.elapsed().as_nanos() as f64;
        let begun = Instant::now();
        let made = fs.create(
            &Ctx::root(),
            Ino::ROOT,
            format!("new-{n}").as_bytes(),
            0o644,
        );
        let first = begun.elapsed().as_nanos() as f64;
        fs.forget(made.what(what)?.ino, 1);
        least = [least[0].min(mount), least[1].min(first)];
    }
    let rows = [MOUNT, FIRST].into_iter().zip(least);
    Ok(rows
        .map(|(op, ns)| Row::mean(&engine.to_string(), op, ns))
        .collect())
}

fn mapped(path: &Path) -> Result<MappedPmem> {
    let options = MapOptions {
        force_flush: true,
        ..MapOptions::default()
    };
    MappedPmem::open(path, &options).what(|| format!("mapping {}", path.display()))
}

/// Adds files, and cuts the power. The first call makes the file system.
fn crash(engine: Engine, path: &Path, files: u64) -> Result<()> {
    let what = || "an image of many files".to_owned();
    let power = Arc::new(PowerCut::new(Arc::new(mapped(path)?)));
    let options = ScratchOptions {
        boot: Some(1),
        ..ScratchOptions::default()
    };
    let scratch = Scratch::Any(power.clone());
    let fs = match files {
        0 => engine.reopen(scratch, &options)?,
        _ => engine.fresh_on(scratch, &options)?,
    };
    fill(&*fs, files).and_then(|()| fs.sync()).what(what)?;
    power.cut(1, PersistModel::Words).what(what)?;
    // It has no power to write the rest, and reports that.
    tracing::subscriber::with_default(NoSubscriber::default(), || drop(fs));
    Ok(())
}

fn fill(fs: &dyn FileSystem, files: u64) -> vfs::Result<()> {
    let cx = Ctx::root();
    for first in (0..files).step_by(PER_DIRECTORY as usize) {
        let dir = fs.mkdir(&cx, Ino::ROOT, format!("d{first}").as_bytes(), 0o755)?;
        for n in first..files.min(first + PER_DIRECTORY) {
            let made = fs.create(&cx, dir.ino, format!("f{n}").as_bytes(), 0o644)?;
            fs.write(&cx, made.ino, 0, &FILE)?;
            fs.forget(made.ino, 1);
        }
        fs.forget(dir.ino, 1);
        fs.sync()?;
    }
    Ok(())
}
