//! The same scripts on ext2 and on the model. After each call the result, the visible state, the
//! free counts and the patch graph are compared. Then follow a clean unmount, a check by e2fsck,
//! and the state after another mount.

use super::fixture::{self, Mounted, device, e2fsck, mke2fs, mount_with};

use oracle::ModelFs;
use oracle::script::{Op, Script, State, generate, run_op, shrink};
use oracle::snapshot::Snapshot;
use vfs::{Ctx, Errno, FileSystem, Ino, RenameFlags};

/// An image without `lost+found`, which the model does not have.
fn empty_image(args: &[&str], size: &str) -> Vec<u8> {
    let mounted = fixture::mount(mke2fs(args, size));
    mounted
        .fs
        .rmdir(&Ctx::root(), Ino::ROOT, b"lost+found")
        .unwrap();
    let image = mounted.close();
    assert_eq!(e2fsck(&image), None);
    image
}

/// Whether a call exceeds the abilities of the format, or of a store without atomic operations.
fn is_beyond(op: &Op, got: vfs::Result<()>) -> bool {
    match op {
        Op::Rename { flags, .. } => flags.contains(RenameFlags::EXCHANGE),
        Op::SetXattr { .. } => got == Err(Errno::NOSPC),
        _ => false,
    }
}

fn compare(mounted: &Mounted, model: &ModelFs, at: usize) -> Option<String> {
    if let Err(what) = mounted.cache.verify() {
        return Some(format!("graph after op {at}: {what}"));
    }
    let here = match Snapshot::take(&mounted.fs) {
        Ok(snapshot) => snapshot,
        Err(e) => return Some(format!("after op {at}: {e}")),
    };
    let there = Snapshot::take(model).unwrap();
    if !here.is_same_except_times(&there) {
        return Some(format!("after op {at}: {:#?}", here.diff(&there)));
    }
    let audit = mounted.fs.audit();
    (!audit.is_empty()).then(|| format!("audit after op {at}: {audit:#?}"))
}

/// Runs a script on both; the first difference, if any.
fn difference(image: &[u8], dirty_limit: usize, script: &Script) -> Option<String> {
    let mounted = mount_with(device(image.to_vec()), dirty_limit);
    let model = ModelFs::new(oracle::ModelOptions::default());
    let (mut here, mut there) = (State::default(), State::default());
    for (at, op) in script.ops.iter().enumerate() {
        let got = run_op(&mounted.fs, &mut here, op);
        if is_beyond(op, got) {
            continue;
        }
        let want = run_op(&model, &mut there, op);
        if got != want {
            return Some(format!("op {at}: {got:?}, the model {want:?}"));
        }
        if let Some(what) = compare(&mounted, &model, at) {
            return Some(what);
        }
        if at % 5 == 3 {
            mounted.cache.write_some().unwrap();
        }
    }
    here.close_all(&mounted.fs);
    there.close_all(&model);
    let device = mounted.device.clone();
    let image = mounted.close();
    if let Some(what) = e2fsck(&image) {
        return Some(what);
    }
    compare(&mount_with(device, dirty_limit), &model, script.ops.len())
}

fn must_agree(image: &[u8], dirty_limit: usize, script: &Script) {
    if let Some(what) = difference(image, dirty_limit, script) {
        let fails = |s: &Script| difference(image, dirty_limit, s).is_some();
        let small = shrink(script, &mut |s| fails(s));
        let why = difference(image, dirty_limit, &small).unwrap_or(what);
        panic!("{why}\nscript:\n{small}");
    }
}

/// Options of mke2fs for the images.
const KINDS: [&[&str]; 6] = [
    &["-b", "1024", "-I", "128"],
    &["-b", "1024", "-I", "256"],
    &["-b", "2048", "-I", "256"],
    &["-b", "4096", "-I", "256"],
    &[
        "-b",
        "4096",
        "-I",
        "128",
        "-O",
        "^filetype,^resize_inode,^sparse_super,^large_file,^ext_attr",
    ],
    &["-b", "1024", "-g", "1024", "-N", "512"],
];

#[test]
fn each_call_agrees_with_the_model() {
    for kind in KINDS {
        let image = empty_image(kind, "4M");
        for index in 0..generate::count(1) {
            let script = generate::setup().then(&generate::sequence(1, index));
            must_agree(&image, 1024, &script);
        }
    }
}

#[test]
fn random_scripts_agree_with_the_model() {
    for (number, kind) in KINDS.iter().enumerate() {
        let image = empty_image(kind, "16M");
        for seed in 0..6 {
            let seed = seed + 100 * number as u64;
            must_agree(
                &image,
                800,
                &generate::setup().then(&generate::random(seed, 150)),
            );
        }
    }
}
