use super::*;
use crate::ManualClock;

const BLOCK_USIZE: usize = BLOCK as usize;

/// A model whose clock ticks at each reading, so that every change shows in a time.
fn model() -> ModelFs {
    ModelFs::new(ModelOptions {
        clock: Arc::new(ManualClock::new(Timestamp(1_000), 1)),
        ..ModelOptions::default()
    })
}

fn small(capacity_bytes: u64) -> ModelFs {
    ModelFs::new(ModelOptions {
        capacity_bytes,
        ..ModelOptions::default()
    })
}

fn root() -> Ctx {
    Ctx::root()
}

fn make(fs: &ModelFs, name: &str) -> Ino {
    let attr = fs.create(&root(), Ino::ROOT, name.as_bytes(), 0o644);
    attr.unwrap().ino
}

fn make_dir(fs: &ModelFs, dir: Ino, name: &str) -> Ino {
    fs.mkdir(&root(), dir, name.as_bytes(), 0o755).unwrap().ino
}

fn attr(fs: &ModelFs, ino: Ino) -> Attr {
    fs.getattr(&root(), ino).unwrap()
}

fn rename(fs: &ModelFs, from: (Ino, &str), to: (Ino, &str), flags: RenameFlags) -> Result<()> {
    let (name, new_name) = (from.1.as_bytes(), to.1.as_bytes());
    fs.rename(&root(), from.0, name, to.0, new_name, flags)
}

fn names(fs: &ModelFs, dir: Ino) -> Vec<String> {
    let mut names = Vec::new();
    let mut sink = |entry: &DirEntry<'_>| {
        names.push(String::from_utf8(entry.name.to_vec()).unwrap());
        true
    };
    fs.readdir(&root(), dir, Cookie(0), &mut sink).unwrap();
    names
}

fn contents(fs: &ModelFs, ino: Ino) -> Vec<u8> {
    let mut buf = vec![1; attr(fs, ino).size as usize + 10];
    let len = fs.read(&root(), ino, 0, &mut buf).unwrap();
    buf.truncate(len);
    buf
}

fn clean(fs: &ModelFs) {
    assert_eq!(fs.audit(), []);
}

#[test]
fn names_are_made_found_listed_and_removed() {
    let fs = model();
    let file = make(&fs, "f");
    let dir = make_dir(&fs, Ino::ROOT, "d");
    assert_eq!(names(&fs, Ino::ROOT), [".", "..", "f", "d"]);
    assert_eq!(fs.lookup(&root(), Ino::ROOT, b"f").unwrap().ino, file);
    assert_eq!(attr(&fs, Ino::ROOT).nlink, 3);
    assert_eq!(attr(&fs, dir).nlink, 2);
    let exists = fs.create(&root(), Ino::ROOT, b"f", 0o644);
    assert_eq!(exists, Err(Errno::EXIST));
    let within = fs.create(&root(), file, b"x", 0o644);
    assert_eq!(within, Err(Errno::NOTDIR));
    let remove = |name: &[u8]| fs.unlink(&root(), Ino::ROOT, name);
    assert_eq!(remove(b"d"), Err(Errno::ISDIR));
    assert_eq!(remove(b"none"), Err(Errno::NOENT));
    assert_eq!(fs.rmdir(&root(), Ino::ROOT, b"f"), Err(Errno::NOTDIR));
    assert_eq!(remove(b"f"), Ok(()));
    make_dir(&fs, dir, "sub");
    let rmdir = || fs.rmdir(&root(), Ino::ROOT, b"d");
    assert_eq!(rmdir(), Err(Errno::NOTEMPTY));
    fs.rmdir(&root(), dir, b"sub").unwrap();
    assert_eq!(rmdir(), Ok(()));
    assert_eq!(attr(&fs, Ino::ROOT).nlink, 2);
    assert_eq!(names(&fs, Ino::ROOT), [".", ".."]);
    clean(&fs);
}
