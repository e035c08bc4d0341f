use super::*;
use crate::{Run, Source};
use oracle::{ModelFs, ModelOptions};
use parking_lot::Mutex;

fn recorder(dir: &Path, prepare: impl FnOnce(&dyn FileSystem)) -> Recorder {
    let model = Arc::new(ModelFs::new(ModelOptions::default()));
    prepare(&*model);
    let header = Header::new(Source::Mount, "a test");
    Recorder::new(model, &dir.join("run"), header).unwrap()
}

/// The tree after all calls of a run.
fn replayed(run: &Run) -> Tree {
    let mut tree = Tree::default();
    for entry in &run.entries {
        tree.apply(&entry.call, &run.data).unwrap();
    }
    tree
}

fn read(fs: &dyn FileSystem) -> Tree {
    let mut next = 1000;
    let read = Tree::read(fs, &mut |_| {
        next += 1;
        Node(next)
    });
    read.unwrap()
}

#[test]
fn the_calls_of_a_run_make_the_same_tree() {
    let dir = tempfile::tempdir().unwrap();
    let cx = Ctx::root();
    let recorder = recorder(dir.path(), |fs| {
        let old = fs.create(&cx, Ino::ROOT, b"old", 0o600).unwrap();
        fs.write(&cx, old.ino, 5000, b"before the run").unwrap();
    });
    let fs: &dyn FileSystem = &recorder;
    let old = fs.lookup(&cx, Ino::ROOT, b"old").unwrap().ino;
    let sub = fs.mkdir(&cx, Ino::ROOT, b"sub", 0o755).unwrap().ino;
    fs.write(&cx, old, 3, b"in the run").unwrap();
    fs.rename(
        &cx,
        Name::new(Ino::ROOT, b"old"),
        Name::new(sub, b"new"),
        RenameFlags::empty(),
    )
    .unwrap();
    fs.link(&cx, old, Ino::ROOT, b"again").unwrap();
    fs.fsync(&cx, old, true).unwrap();
    let zero = Fallocate::ZeroRange { keep_size: false };
    fs.fallocate(&cx, old, zero, 4000, 9000).unwrap();
    fs.symlink(&cx, sub, b"link", b"target").unwrap();
    let nameless = fs.tmpfile(&cx, sub, 0o600).unwrap().ino;
    fs.write(&cx, nameless, 0, b"late name").unwrap();
    fs.link(&cx, nameless, sub, b"named").unwrap();
    fs.setxattr(&cx, sub, b"user.a", b"1", XattrMode::Set)
        .unwrap();
    fs.truncate(&cx, nameless, 4).unwrap();
    let gone = fs.create(&cx, sub, b"gone", 0o600).unwrap();
    fs.unlink(&cx, sub, b"gone").unwrap();
    fs.forget(gone.ino, 1);
    assert_eq!(fs.unlink(&cx, sub, b"gone"), Err(Errno::NOENT));
    recorder.end().unwrap();

    let run = Run::load(&dir.path().join("run")).unwrap();
    assert!(run.header.setup > 0);
    let expected = read(fs);
    assert_eq!(replayed(&run).differences(&expected), []);
    assert_eq!(replayed(&run).hash(), expected.hash());
    let texts: Vec<&str> = run.entries.iter().map(|e| &*e.text).collect();
    assert!(texts.contains(&"rename('old', 'sub/new')"), "{texts:?}");
    assert!(texts.contains(&"fdatasync('sub/new')"), "{texts:?}");
}

#[test]
fn a_run_without_its_last_bytes_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let cx = Ctx::root();
    let recorder = recorder(dir.path(), |_| ());
    let file = recorder.create(&cx, Ino::ROOT, b"f", 0o600).unwrap().ino;
    FileSystem::write(&recorder, &cx, file, 0, b"one").unwrap();
    FileSystem::write(&recorder, &cx, file, 3, b"two").unwrap();
    recorder.end().unwrap();
    let run = dir.path().join("run");
    let whole = Run::load(&run).unwrap();
    let data = std::fs::read(run.join("data")).unwrap();
    std::fs::write(run.join("data"), &data[..4]).unwrap();
    assert_eq!(
        Run::load(&run).unwrap().entries.len(),
        whole.entries.len() - 1
    );
    std::fs::write(run.join("data"), data).unwrap();
    let calls = std::fs::read(run.join("calls.jsonl")).unwrap();
    std::fs::write(run.join("calls.jsonl"), &calls[..calls.len() - 3]).unwrap();
    assert_eq!(
        Run::load(&run).unwrap().entries.len(),
        whole.entries.len() - 1
    );
    std::fs::write(run.join("calls.jsonl"), "{}\n").unwrap();
    let error = Run::load(&run).unwrap_err().to_string();
    assert!(error.contains("calls.jsonl: line 1"), "{error}");
}

#[test]
fn output_is_recorded_and_passed_on_before_a_write_returns() {
    let dir = tempfile::tempdir().unwrap();
    let cx = Ctx::root();
    let recorder = Arc::new(recorder(dir.path(), |_| ()));
    let passed = Arc::new(Mutex::new(Vec::<u8>::new()));
    let to = Arc::clone(&passed);
    let pass_on: PassOn = Box::new(move |bytes| to.lock().extend(bytes));
    let fs = WithOutput::new(Arc::clone(&recorder), (0, 0), pass_on);
    let fs: &dyn FileSystem = &fs;
    let output = || fs.lookup(&cx, Ino::ROOT, OUTPUT_NAME.as_bytes()).unwrap();
    fs.open(&cx, output().ino, OpenFlags::WRITE).unwrap();
    assert_eq!(fs.write(&cx, output().ino, 0, b"done\n"), Ok(5));
    assert_eq!(*passed.lock(), b"done\n");
    fs.mkdir(&cx, Ino::ROOT, b"later", 0o755).unwrap();
    fs.release(output().ino);
    recorder.end().unwrap();
    let run = Run::load(&dir.path().join("run")).unwrap();
    let [first, later] = &run.entries[run.header.setup..] else {
        panic!("{:?}", run.entries)
    };
    let Call::Output { data } = first.call else {
        panic!("{first:?}")
    };
    assert_eq!(run.bytes(data), b"done\n");
    assert!(matches!(later.call, Call::Make { .. }));
}
