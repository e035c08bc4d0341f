//! Typed persistent data, and programs that must not compile.

use medium::{MemoryPmem, Pmem};
use mnemosyne::memory::{DurableMemory, Flat, Layout, Options, Session, Tx};
use mnemosyne::tx::{Interrupted, Space, Stop, TxError};
use persist::{Array, Layouts, Persist, Ptr, RootError, TypedSession, TypedTx};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Compiles each of the programs in `compiled/refused`, which must fail with a given message.
/// It is a part of the compiler's words, which change with its versions.
#[test]
fn unsound_programs_do_not_compile() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compiled");
    let compiler = Compiler::that_accepts(&dir.join("accepted.rs"));
    let mut programs = 0;
    for program in std::fs::read_dir(dir.join("refused")).unwrap() {
        let program = program.unwrap().path();
        let said = compiler.compile(&program).unwrap_err();
        let text = std::fs::read_to_string(&program).unwrap();
        let expected = text
            .lines()
            .filter_map(|line| line.strip_prefix("// says: "));
        assert!(expected.clone().count() > 0, "{}", program.display());
        for expected in expected {
            assert!(said.contains(expected), "{}: {said}", program.display());
        }
        programs += 1;
    }
    assert!(programs > 5);
}

/// All pairs of an element of both.
fn pairs<'a>(
    these: &'a [PathBuf],
    those: &'a [PathBuf],
) -> impl Iterator<Item = (&'a PathBuf, &'a PathBuf)> {
    let with_all = move |this| those.iter().map(move |that| (this, that));
    these.iter().flat_map(with_all)
}

/// A compiler with these libraries.
struct Compiler {
    persist: PathBuf,
    mnemosyne: PathBuf,
    medium: PathBuf,
}

impl Compiler {
    /// A compiler that accepts this program. The directory of the tests has the libraries with
    /// which they were built, but also others.
    fn that_accepts(program: &Path) -> Self {
        let test = std::env::current_exe().unwrap();
        let built = |name: &str| {
            let files = std::fs::read_dir(test.parent().unwrap()).unwrap();
            let files = files.map(|file| file.unwrap().path());
            let prefix = format!("lib{name}-");
            let is_it = |path: &PathBuf| {
                let file = path.file_name().and_then(|file| file.to_str());
                file.is_some_and(|file| file.starts_with(&prefix) && file.ends_with(".rlib"))
            };
            let mut files: Vec<_> = files.filter(is_it).collect();
            files.sort_by_key(|path| path.metadata().unwrap().modified().unwrap());
            files.reverse();
            files
        };
        let (mediums, memories) = (built("medium"), built("mnemosyne"));
        let mut said = String::new();
        for persist in built("persist") {
            for (medium, mnemosyne) in pairs(&mediums, &memories) {
                let compiler = Self {
                    persist: persist.clone(),
                    mnemosyne: mnemosyne.clone(),
                    medium: medium.clone(),
                };
                match compiler.compile(program) {
                    Ok(()) => return compiler,
                    Err(why) => said = why,
                }
            }
        }
        panic!("{} does not compile: {said}", program.display());
    }

    /// Compiles a program. The error is the compiler's output.
    fn compile(&self, program: &Path) -> Result<(), String> {
        let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
        let libraries = self.mnemosyne.parent().unwrap().display();
        let done = Command::new(rustc)
            .args(["--edition", "2024", "--emit", "metadata", "--out-dir"])
            .arg(std::env::temp_dir())
            .arg(format!("-Ldependency={libraries}"))
            .arg(format!("--extern=persist={}", self.persist.display()))
            .arg(format!("--extern=mnemosyne={}", self.mnemosyne.display()))
            .arg(format!("--extern=medium={}", self.medium.display()))
            .arg(program)
            .output()
            .unwrap();
        match done.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&done.stderr).into_owned()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Persist)]
enum State {
    Queued,
    Sent,
}

#[derive(Debug, Clone, Copy, PartialEq, Persist)]
struct Mail {
    state: State,
    urgent: bool,
    size: u16,
    to: [u8; 5],
    weight: f64,
    next: Option<Ptr<Mail>>,
}

#[derive(Debug, PartialEq, Persist)]
struct Queue {
    first: Option<Ptr<Mail>>,
    count: u64,
    buckets: Array<Option<Ptr<Mail>>>,
}

#[derive(Debug, PartialEq, Persist)]
struct Pair(u8, u32);

type Memory = Flat<Arc<MemoryPmem>>;

fn formatted() -> Arc<MemoryPmem> {
    let layout = Layout {
        slots: 8,
        roots: 4,
        granule: 8192,
        logs: 2,
        log_bytes: 16 << 10,
        ..Layout::default()
    };
    let pm = Arc::new(MemoryPmem::new(1 << 20));
    layout.format(&pm).unwrap();
    pm
}

fn opened(pm: &Arc<MemoryPmem>) -> Session<Memory> {
    let options = Options {
        heap_growth: 64 << 10,
        ..Options::default()
    };
    let memory = DurableMemory::open(Flat(pm.clone()), pm.clone(), options).unwrap();
    memory.session()
}

fn queue(session: &mut Session<Memory>) -> Ptr<Queue> {
    let made = session.root("mail", |tx| {
        Ok(Queue {
            first: None,
            count: 0,
            buckets: tx.create_array(&None, 7)?,
        })
    });
    made.unwrap()
}

fn mail(n: u16) -> Mail {
    Mail {
        state: State::Queued,
        urgent: n.is_multiple_of(2),
        size: n,
        to: [n as u8; 5],
        weight: n.into(),
        next: None,
    }
}

fn push<S: Space>(tx: &mut Tx<'_, S>, queue: Ptr<Queue>, mail: Mail) -> Result<(), Interrupted> {
    let next = tx.get(queue.at(Queue::FIRST))?;
    let first = tx.create(&Mail { next, ..mail })?;
    tx.set(queue.at(Queue::FIRST), &Some(first))?;
    let count = tx.get(queue.at(Queue::COUNT))?;
    tx.set(queue.at(Queue::COUNT), &(count + 1))
}

#[test]
fn a_list_survives_a_restart() {
    let pm = formatted();
    let mut session = opened(&pm);
    let root = queue(&mut session);
    for n in 0..20 {
        let pushed = session.run(|tx| Ok::<_, Stop<Infallible>>(push(tx, root, mail(n))?));
        pushed.unwrap();
    }
    drop(session);
    let mut session = opened(&pm);
    assert_eq!(queue(&mut session), root);
    let found = session.run(|tx| {
        let queue = tx.get(root)?;
        assert_eq!((queue.count, queue.buckets.len()), (20, 7));
        assert_eq!(tx.get(queue.buckets.get(6).unwrap())?, None);
        assert_eq!(queue.buckets.get(7), None);
        let mut found = vec![];
        let mut next = queue.first;
        while let Some(ptr) = next {
            let mut mail = tx.get(ptr)?;
            next = mail.next.take();
            found.push(mail);
            tx.set(ptr.at(Mail::STATE), &State::Sent)?;
            assert_eq!(tx.get(ptr.at(Mail::STATE))?, State::Sent);
            tx.delete(ptr)?;
        }
        tx.set(root.at(Queue::FIRST), &None)?;
        Ok::<_, Stop<Infallible>>(found)
    });
    let expected: Vec<_> = (0..20).rev().map(mail).collect();
    assert_eq!(found.unwrap(), expected);
}

#[test]
fn large_arrays_are_filled() {
    let pm = formatted();
    let mut session = opened(&pm);
    let array = session.run(|tx| Ok::<_, Stop<Infallible>>(tx.create_array(&Pair(3, 4), 20_000)?));
    let array = array.unwrap();
    let checked = session.run(|tx| {
        for n in [0, 1, 8191, 8192, 19_999] {
            assert_eq!(tx.get(array.get(n).unwrap())?, Pair(3, 4));
        }
        tx.delete_array(array)?;
        tx.delete_array(Array::<Pair>::EMPTY)?;
        Ok::<_, Stop<Infallible>>(())
    });
    checked.unwrap();
    let too_large = session.run(|tx| Ok::<_, Stop<Infallible>>(tx.create_array(&0_u64, 1 << 61)?));
    assert!(matches!(too_large, Err(TxError::Heap(_))));
}

/// A possible later version of [`Queue`].
mod later {
    use super::*;

    #[derive(Persist)]
    pub struct Mail {
        state: State,
        urgent: bool,
        size: u32,
    }

    #[derive(Persist)]
    pub struct Queue {
        first: Option<Ptr<Mail>>,
        count: u64,
        buckets: Array<Option<Ptr<Mail>>>,
    }
}

/// A dangling root is an error when it is opened, and not only at the first access.
#[test]
fn a_dangling_root_is_refused() {
    let pm = formatted();
    let mut session = opened(&pm);
    let number = session.root("number", |_| Ok(1_u64)).unwrap();
    session
        .run(|tx| Ok::<_, Stop<()>>(tx.free(number.off())?))
        .unwrap();
    let refused = session.root("number", |_| Ok(1_u64));
    assert!(
        matches!(&refused, Err(TxError::Cancelled(RootError::NotThere { name, .. })) if name == "number"),
        "{refused:?}"
    );
}

#[test]
fn a_root_of_another_layout_is_refused() {
    let pm = formatted();
    let mut session = opened(&pm);
    queue(&mut session);
    // The difference is in the target of a pointer.
    let other = session.root::<later::Queue>("mail", |_| panic!("it is there"));
    assert!(
        matches!(&other, Err(TxError::Cancelled(RootError::OtherLayout { name, .. })) if name == "mail"),
        "{other:?}"
    );
    for name in ["", &"x".repeat(200)] {
        let unnamed = session.root(name, |_| Ok(1_u64));
        let refused = matches!(unnamed, Err(TxError::Cancelled(RootError::NoRoom { .. })));
        assert!(refused, "{unnamed:?}");
    }
}

#[test]
fn bytes_that_are_not_a_value_are_rejected() {
    let pm = formatted();
    let mut session = opened(&pm);
    let root = queue(&mut session);
    let pushed = session.run(|tx| Ok::<_, Stop<Infallible>>(push(tx, root, mail(1))?));
    pushed.unwrap();
    let first = session.run(|tx| Ok::<_, Stop<Infallible>>(tx.get(root.at(Queue::FIRST))?));
    let first = first.unwrap().unwrap();
    pm.store(first.off(), &[9]);
    let found = session.run(|tx| Ok::<_, Stop<Infallible>>(tx.get(first)?));
    let off = first.off();
    assert!(
        matches!(found, Err(TxError::NoValue { off: at, .. }) if at == off),
        "{found:?}"
    );
    assert_eq!(Ptr::<u64>::new(0), None);
    assert_eq!(Ptr::<u64>::new(12), None);
}

#[test]
fn layouts_describe_fields_and_pointers() {
    let layouts = Layouts::of::<Queue>();
    assert_eq!(
        layouts.text(),
        "Queue { 0 first: option ptr Mail { 0 state: State { Queued | Sent } 4 urgent: bool \
         6 size: u16 8 to: [5] u8 16 weight: f64 24 next: option ptr Mail#1 32 } 8 count: u64 \
         16 buckets: array option ptr Mail#1 32 } "
    );
    // A field's constant hides the trait's.
    let of_mail = (<Mail as Persist>::SIZE, Mail::ALIGN);
    assert_eq!((of_mail, Pair::SIZE, Pair::ALIGN), ((32, 8), 8, 4));
}
