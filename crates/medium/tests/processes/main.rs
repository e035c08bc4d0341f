//! Errors that name another process with the same file, and signals that end a process.
//!
//! Each test starts this program again, as the process under test ([`Child`]). The harness is
//! therefore not the standard one.

mod guard;

use libtest_mimic::{Arguments, Trial};
use medium::{Arena, MapOptions, MappedPmem, OpenError, Reserve, create_file};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command, ExitCode, Stdio};

const LEN: u64 = Arena::GRANULE_BYTES;

/// Mappings that a process may have.
const MAPPINGS: usize = 2048;

/// Files that a process must be able to open for them, with some to spare.
const FILES: u64 = MAPPINGS as u64 + 100;

/// The first argument of a child; its role and a file follow.
const CHILD: &str = "child";

/// The work of a child on the file.
type Child = fn(&Path);

const CHILDREN: [(&str, Child); 12] = [
    ("hold", hold),
    ("hold-in-arena", hold_in_arena),
    ("raise-sigbus", raise_sigbus),
    ("map-until-refused", map_until_refused),
    ("stray-in-this-thread", guard::in_this_thread),
    ("stray-in-a-newer-thread", guard::in_a_newer_thread),
    ("stray-in-an-older-thread", guard::in_an_older_thread),
    ("stray-in-a-handler", guard::in_a_handler),
    ("stray-after-a-handler", guard::after_a_handler),
    ("stray-in-a-forked-child", guard::in_a_forked_child),
    ("stray-to-a-lent-value", guard::to_a_lent_value),
    ("stray-without-a-guard", guard::without_a_guard),
];

const TESTS: [(&str, fn()); 6] = [
    (
        "the_error_names_the_holder_and_its_death_frees_the_file",
        the_error_names_the_holder_and_its_death_frees_the_file,
    ),
    (
        "the_error_of_an_arena_names_the_process_that_has_the_file",
        the_error_of_an_arena_names_the_process_that_has_the_file,
    ),
    (
        "a_sigbus_outside_watched_mappings_kills",
        a_sigbus_outside_watched_mappings_kills,
    ),
    (
        "too_many_mappings_are_an_error",
        too_many_mappings_are_an_error,
    ),
    ("stray_stores_kill", guard::stray_stores_kill),
    (
        "stray_stores_without_a_guard_destroy_the_store",
        guard::stray_stores_without_a_guard_destroy_the_store,
    ),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, first, role, file] = &arguments[..]
        && first == CHILD
    {
        let child = CHILDREN.iter().find(|(name, _)| name == role);
        let (_, act) = child.expect("a role of a child");
        act(Path::new(file));
        return ExitCode::SUCCESS;
    }
    let trial = |(name, test): (&str, fn())| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    let tests = TESTS.map(trial).into();
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

/// Starts this program as a child with this role.
fn child(role: &str, file: &Path) -> process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args([CHILD, role])
        .arg(file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Starts a child that holds the file; it does when this returns.
fn holder(role: &str, file: &Path) -> process::Child {
    let mut holder = child(role, file);
    let mut said = BufReader::new(holder.stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "held");
    holder
}

fn say_held_and_wait() {
    println!("held");
    // Until the parent kills us or exits.
    let _ = std::io::stdin().read_line(&mut String::new());
}

struct Image {
    dir: tempfile::TempDir,
}

impl Image {
    fn new() -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let image = Self { dir };
        create_file(image.path(), LEN, Reserve::Sparse).unwrap();
        image
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("image")
    }
}

fn any() -> MapOptions {
    MapOptions::default()
}

fn hold(file: &Path) {
    let _held = MappedPmem::open(file, &any()).unwrap();
    say_held_and_wait();
}

fn the_error_names_the_holder_and_its_death_frees_the_file() {
    let image = Image::new();
    let mut holder = holder("hold", &image.path());
    let error = MappedPmem::open(image.path(), &any()).err().unwrap();
    let OpenError::InUse { holder: named, .. } = &error else {
        panic!("{error}");
    };
    let named = named.as_ref().expect("the system names the holder");
    assert_eq!(named.pid, holder.id());
    let text = format!("process {} (", holder.id());
    assert!(error.to_string().contains(&text), "{error}");
    holder.kill().unwrap();
    holder.wait().unwrap();
    MappedPmem::open(image.path(), &any()).unwrap();
}

fn hold_in_arena(file: &Path) {
    let arena = Arena::reserve(None, LEN).unwrap();
    arena.map(0, file, &any()).unwrap();
    say_held_and_wait();
}

fn the_error_of_an_arena_names_the_process_that_has_the_file() {
    let image = Image::new();
    let mut holder = holder("hold-in-arena", &image.path());
    let arena = Arena::reserve(None, LEN).unwrap();
    let error = arena.map(0, image.path(), &any()).unwrap_err();
    let named = format!("is in use by process {} (", holder.id());
    assert!(error.to_string().contains(&named), "{error}");
    holder.kill().unwrap();
    holder.wait().unwrap();
    arena.map(0, image.path(), &any()).unwrap();
}

/// Installs the crate's handler, and touches a lost page of a mapping that is not the crate's.
fn raise_sigbus(file: &Path) {
    let _installed = MappedPmem::open(file, &any()).unwrap();
    let other = File::create_new(file.with_extension("other")).unwrap();
    other.set_len(4096).unwrap();
    // SAFETY: a new private mapping of a file that nobody else has.
    let page = unsafe {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        mmap(
            std::ptr::null_mut(),
            4096,
            ProtFlags::READ,
            MapFlags::PRIVATE,
            &other,
            0,
        )
        .unwrap()
    };
    other.set_len(0).unwrap();
    // SAFETY: the page is mapped. The file lost it, so that the load kills this process,
    // which is what the parent waits for.
    let byte = unsafe { page.cast::<u8>().read_volatile() };
    println!("read {byte}");
}

fn a_sigbus_outside_watched_mappings_kills() {
    let image = Image::new();
    let child = child("raise-sigbus", &image.path());
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.signal(), Some(7), "{out:?}");
}

fn map_until_refused(file: &Path) {
    // Each mapping has a file open.
    let limit = Rlimit {
        current: Some(FILES),
        maximum: getrlimit(Resource::Nofile).maximum,
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    let options = MapOptions {
        read_only: true,
        ..MapOptions::default()
    };
    let mut open = Vec::new();
    let error = loop {
        match MappedPmem::open(file, &options) {
            Ok(pm) => open.push(pm),
            Err(e) => break e,
        }
    };
    assert_eq!(open.len(), MAPPINGS);
    assert!(matches!(error, OpenError::TooMany { .. }), "{error}");
    open.pop();
    MappedPmem::open(file, &options).unwrap();
}

fn too_many_mappings_are_an_error() {
    let most = getrlimit(Resource::Nofile).maximum;
    if most.is_some_and(|most| most < FILES) {
        return skip::test("a process may not open 2148 files");
    }
    let image = Image::new();
    let child = child("map-until-refused", &image.path());
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{out:?}");
}
