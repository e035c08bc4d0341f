//! Scripts: text, generation, runs and shrinking.

use super::generate::Tree;
use super::*;
use crate::{ModelFs, ModelOptions, Snapshot};
use proptest::prelude::*;
use vfs::{Atime, Errno, FileSystem, Ino, Timestamp};

fn parse(text: &str) -> Script {
    text.parse().unwrap()
}

/// Runs `script` on a fresh model; returns it with the results.
fn run_fresh(script: &Script) -> (ModelFs, State, Vec<vfs::Result<()>>) {
    // Taking a snapshot must not move times.
    let fs = ModelFs::new(ModelOptions {
        atime: Atime::Never,
        ..ModelOptions::default()
    });
    let mut state = State::default();
    let results = run(&fs, &mut state, script);
    (fs, state, results)
}

#[test]
fn comments_and_empty_lines_are_skipped() {
    let script = parse("# a comment\n\n  create f 644 # another\nunlink f\n");
    assert_eq!(script.to_string(), "create f 644\nunlink f\n");
}

#[test]
fn bad_lines_are_named() {
    let error = |text: &str| text.parse::<Script>().unwrap_err().to_string();
    assert_eq!(
        error("sync\nfrobnicate f"),
        "line 2: `frobnicate` is not an operation"
    );
    assert_eq!(
        error("create f"),
        "line 1: a word is missing; the form is: create PATH MODE"
    );
    assert_eq!(
        error("create f 9"),
        "line 1: `9` is not an octal number; the form is: create PATH MODE"
    );
    for (line, what) in [
        ("write f 0 x 1", "`x` is not a number"),
        ("rename a b over", "unexpected word `over`"),
        ("unlink a b", "`b` is one word too many"),
    ] {
        let error = error(line);
        let expected = format!("line 1: {what}; the form is: ");
        assert!(error.starts_with(&expected), "{error}");
    }
}

#[test]
fn the_setup_succeeds_and_most_operations_change_it() {
    let (fs, _, results) = run_fresh(&generate::setup());
    assert_eq!(results, vec![Ok(()); 8]);
    let before = Snapshot::take(&fs).unwrap();
    assert_eq!(before.len(), 6);
    let ops = generate::all_ops();
    assert!((50..=70).contains(&ops.len()), "{}", ops.len());
    let mut changing = 0;
    for (index, op) in ops.iter().enumerate() {
        assert!(!ops[..index].contains(op), "twice: {op}");
        let fs = fs.fork();
        let result = run_op(&fs, &mut State::default(), op);
        let after = Snapshot::take(&fs).unwrap();
        let same = after == before;
        assert!(result.is_ok() || same, "{op} failed and changed something");
        changing += usize::from(!same);
        assert_eq!(fs.audit(), [], "{op}");
    }
    assert!(changing >= 45, "{changing}");
}

#[test]
fn every_operation_on_names_can_succeed() {
    each_operation_can_succeed(Tree::Names);
    each_operation_can_succeed(Tree::Large);
}

/// Asserts that each operation succeeds at once, or after one or two others.
fn each_operation_can_succeed(tree: Tree) {
    let setup = tree.setup();
    let (fs, _, results) = run_fresh(&setup);
    assert!(!setup.ops.is_empty());
    assert_eq!(results, vec![Ok(()); setup.ops.len()]);
    let ops = tree.ops();
    assert!(!ops.is_empty());
    let works = |fs: &ModelFs, op: &Op| run_op(fs, &mut State::default(), op).is_ok();
    let first: Vec<bool> = ops.iter().map(|op| works(&fs.fork(), op)).collect();
    for (index, op) in ops.iter().enumerate() {
        assert!(!ops[..index].contains(op), "twice: {op}");
        let after = |fs: &ModelFs, before: &Op| {
            let fs = fs.fork();
            works(&fs, before) && works(&fs, op)
        };
        let after_two = |before: &Op| {
            let fs = fs.fork();
            works(&fs, before) && ops.iter().any(|next| after(&fs, next))
        };
        let after_one = || ops.iter().any(|before| after(&fs, before));
        let useful = first[index] || after_one() || ops.iter().any(after_two);
        assert!(useful, "no operation makes `{op}` possible");
    }
}

#[test]
fn sequences_are_numbered() {
    let ops = generate::all_ops().len() as u64;
    assert_eq!(generate::count(2), ops * ops);
    assert_eq!(generate::sequences(1).count() as u64, ops);
    let second = generate::sequences(2).nth(ops as usize).unwrap();
    assert_eq!(second, generate::sequence(2, ops));
    assert_eq!(
        second.ops[0].clone().with_seed(0),
        generate::all_ops()[1].clone().with_seed(0)
    );
    assert_eq!(
        second.ops[1].clone().with_seed(0),
        generate::all_ops()[0].clone().with_seed(0)
    );
}

#[test]
fn random_scripts_repeat_mostly_work_and_leak_nothing() {
    let mut worked = 0;
    for seed in 0..20 {
        let script = generate::random(seed, 200);
        assert_eq!(script, generate::random(seed, 200));
        assert_eq!(parse(&script.to_string()), script);
        let (fs, mut state, results) = run_fresh(&generate::setup().then(&script));
        worked += results.iter().filter(|result| result.is_ok()).count();
        assert_eq!(fs.audit(), [], "seed {seed}");
        Snapshot::take(&fs).unwrap();
        state.close_all(&fs);
        // An inode with a reference but no name is a lost reference.
        let mut inos = std::collections::HashSet::new();
        reachable(&fs, Ino::ROOT, &mut inos);
        assert_eq!(fs.inodes(), inos.len(), "seed {seed}");
    }
    assert!(worked > 20 * 200 / 3, "{worked}");
}

fn reachable(fs: &ModelFs, dir: Ino, inos: &mut std::collections::HashSet<Ino>) {
    inos.insert(dir);
    let mut dirs = Vec::new();
    let mut sink = |entry: &vfs::DirEntry<'_>| {
        if !matches!(entry.name, b"." | b"..") {
            inos.insert(entry.ino);
            if entry.kind == FileType::Directory {
                dirs.push(entry.ino);
            }
        }
        true
    };
    let cx = vfs::Ctx::root();
    fs.readdir(&cx, dir, vfs::Cookie(0), &mut sink).unwrap();
    for dir in dirs {
        reachable(fs, dir, inos);
    }
}

#[test]
fn handles_keep_unlinked_files() {
    let script = parse(
        "create f 644\nopen 0 f\nunlink f\nappend @0 8 1\nlink @0 g\nclose 0\nfsync @0\n\
         open 0 g\ntmpfile 1 / 600\nopen 1 /\nappend @1 3 1\nlink @1 h\nclose 1",
    );
    let (fs, _, results) = run_fresh(&script);
    let failed: Vec<_> = results.iter().filter_map(|r| r.err()).collect();
    // Linking an unlinked file, the closed handle, no `g`, and a handle in use.
    let expected = [Errno::NOENT, Errno::BADF, Errno::NOENT, Errno::BUSY];
    assert_eq!(failed, expected);
    let snapshot = Snapshot::take(&fs).unwrap();
    assert_eq!(snapshot.len(), 2);
    assert_eq!(snapshot.get(b"/h").unwrap().0.size, 3);
    assert_eq!(fs.inodes(), 2);
}

#[test]
fn paths_that_name_nothing_are_invalid() {
    let script = parse("create / 644\nunlink @0\nunlink @x/f\nunlink none/f");
    let (_, _, results) = run_fresh(&script);
    let expected = [Errno::INVAL, Errno::INVAL, Errno::INVAL, Errno::NOENT];
    assert_eq!(results, expected.map(Err));
}

#[test]
fn patterns_have_no_zeros_and_depend_on_offset_and_seed() {
    let bytes = |seed, off| {
        let mut buf = [0; 64];
        fill(seed, off, &mut buf);
        buf
    };
    assert_eq!(bytes(1, 3)[..61], bytes(1, 0)[3..]);
    assert!(bytes(1, 0).iter().all(|&byte| byte != 0));
    assert_ne!(bytes(1, 0)[..8], bytes(1, 8)[..8]);
    assert_ne!(bytes(1, 0)[..8], bytes(2, 0)[..8]);
}

#[test]
fn shrinking_keeps_the_operations_that_the_failure_needs() {
    let script = generate::random(7, 100).then(&parse("create x 644\nunlink x"));
    let mut fails = |script: &Script| {
        let text = script.to_string();
        text.find("create x")
            .is_some_and(|at| text[at..].contains("unlink x"))
    };
    let shrunk = shrink(&script, &mut fails);
    assert_eq!(shrunk.to_string(), "create x 644\nunlink x\n");
    let fine = parse("sync");
    assert_eq!(shrink(&fine, &mut |_| false), fine);
}

fn path() -> impl Strategy<Value = String> {
    "(@[0-9]/)?[a-zA-Z.][a-zA-Z0-9._-]{0,8}(/[a-z]{1,3}){0,2}"
}

fn time() -> impl Strategy<Value = Option<SetTime>> {
    prop_oneof![
        Just(None),
        Just(Some(SetTime::Now)),
        any::<i64>().prop_map(|at| Some(SetTime::At(Timestamp(at)))),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let random = (any::<u64>(), 0..30usize)
        .prop_map(|(seed, at)| generate::random(seed, at + 1).ops.swap_remove(at));
    let mode = 0..=0o7777u32;
    let devices = prop_oneof![Just(FileType::CharDevice), Just(FileType::BlockDevice)];
    prop_oneof![
        random,
        (path(), devices, mode.clone(), any::<u32>()).prop_map(|(path, kind, mode, rdev)| {
            Op::Mknod {
                path,
                kind,
                mode,
                rdev,
            }
        }),
        (path(), any::<u64>(), any::<u32>(), any::<u32>()).prop_map(|(path, off, len, seed)| {
            Op::Write {
                path,
                off,
                len,
                seed,
            }
        }),
        (path(), any::<Option<u32>>(), any::<Option<u32>>())
            .prop_map(|(path, uid, gid)| Op::Chown { path, uid, gid }),
        (path(), time(), time()).prop_map(|(path, atime, mtime)| Op::Utimens {
            path,
            atime,
            mtime
        }),
        (any::<u32>(), path(), mode).prop_map(|(handle, dir, mode)| Op::Tmpfile {
            handle,
            dir,
            mode
        }),
        (path(), path()).prop_map(|(target, path)| Op::Symlink { target, path }),
    ]
}

proptest! {
    #[test]
    fn what_is_printed_reads_back(ops in prop::collection::vec(op(), 0..20)) {
        let script = Script { ops };
        prop_assert_eq!(parse(&script.to_string()), script);
    }

    #[test]
    fn each_operation_has_a_form(op in op()) {
        let op = op.to_string();
        let words: Vec<&str> = op.split_whitespace().collect();
        let mut forms = GRAMMAR.lines().map(|form| form.split_whitespace());
        prop_assert!(
            forms.any(|mut form| form.next() == Some(words[0]) && form.count() == words.len() - 1),
            "{}", op
        );
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[a-z0-9@/# \n-]{0,80}") {
        let _ = text.parse::<Script>();
    }
}
