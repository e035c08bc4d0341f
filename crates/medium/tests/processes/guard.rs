//! Stray stores into a guarded mapping, in each kind of thread. Each kills the process that makes it, after loads
//! and stores of the mapping itself have worked there.

use super::{Image, child};
use medium::{MapOptions, MappedPmem, Pmem, Rule, SharedBytes};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::mpsc::channel;

const SIGSEGV: i32 = 11;
/// The word that the stray store would change.
const AT: u64 = 8192;

fn guarded() -> MapOptions {
    MapOptions {
        guarded: true,
        ..MapOptions::default()
    }
}

/// The mapping of the process, and its file.
static MAPPED: OnceLock<(MappedPmem, String)> = OnceLock::new();

fn map(file: &Path) {
    let mapped = MappedPmem::open(file, &guarded()).unwrap();
    let name = file.to_str().unwrap().to_owned();
    assert!(MAPPED.set((mapped, name)).is_ok());
}

/// Lines of `/proc/self/maps` about the file with these rights: first addresses.
fn mappings(name: &str, rights: &str) -> Vec<u64> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let of_file = |line: &&str| line.ends_with(name) && line.contains(rights);
    let start = |line: &str| u64::from_str_radix(line.split_once('-').unwrap().0, 16).unwrap();
    maps.lines().filter(of_file).map(start).collect()
}

/// Uses the mapping as its owner may, then stores to it as no one may.
fn stray() {
    let (pm, name) = MAPPED.get().unwrap();
    pm.store_word(AT, 7);
    pm.store_nt(AT + 64, &[9; 4096]);
    pm.flush(AT, 4096);
    pm.fence(Rule::DurableBeforeReturn).unwrap();
    assert_eq!(pm.load(AT), Ok(7));
    assert!(pm.shared_bytes(AT + 64, 4096).unwrap() == [9; 4096]);
    let [at] = mappings(name, " rw-s ")[..] else {
        panic!("more than one mapping for stores");
    };
    println!("stores");
    let at = (at + AT) as *mut u64;
    // SAFETY: none: this is the mistake that the guard is for. It should kill the process.
    unsafe { at.write_volatile(8) };
    println!("survived");
}

pub(crate) fn in_this_thread(file: &Path) {
    map(file);
    stray();
}

pub(crate) fn in_a_newer_thread(file: &Path) {
    map(file);
    std::thread::spawn(stray).join().unwrap();
}

pub(crate) fn in_an_older_thread(file: &Path) {
    let (begin, begins) = channel();
    let older = std::thread::spawn(move || begins.recv().map(|()| stray()).unwrap());
    map(file);
    begin.send(()).unwrap();
    older.join().unwrap();
}

pub(crate) fn in_a_handler(file: &Path) {
    extern "C" fn handle(_: i32) {
        stray();
    }
    map(file);
    // SAFETY: the handler runs in `raise`, where its calls do no harm.
    unsafe {
        libc::signal(libc::SIGUSR1, handle as *const () as usize);
        libc::raise(libc::SIGUSR1);
    }
}

/// A handler leaves the thread's own rights as they were.
pub(crate) fn after_a_handler(file: &Path) {
    extern "C" fn handle(_: i32) {
        let (pm, _) = MAPPED.get().unwrap();
        pm.store_word(AT, pm.load(AT).unwrap() + 1);
    }
    map(file);
    // SAFETY: the handler stores to the mapping, which any code may do.
    unsafe {
        libc::signal(libc::SIGUSR1, handle as *const () as usize);
        libc::raise(libc::SIGUSR1);
    }
    assert_eq!(MAPPED.get().unwrap().0.load(AT), Ok(1));
    stray();
}

pub(crate) fn in_a_forked_child(file: &Path) {
    map(file);
    // SAFETY: this process has one thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        stray();
        std::process::exit(0);
    }
    let mut status = 0;
    // SAFETY: the place of the result is valid.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert!(libc::WIFSIGNALED(status), "{status}");
    // SAFETY: ends this process in the same way; the standard library's handler would return.
    unsafe {
        libc::signal(libc::WTERMSIG(status), libc::SIG_DFL);
        libc::raise(libc::WTERMSIG(status));
    }
}

/// A store by a pointer that the program has got.
pub(crate) fn to_a_lent_value(file: &Path) {
    map(file);
    let (pm, _) = MAPPED.get().unwrap();
    let lent: SharedBytes<'_> = pm.shared_bytes(AT, 8).unwrap();
    println!("stores");
    // SAFETY: none, as above.
    unsafe { lent.as_ptr().cast_mut().write_volatile(8) };
    println!("survived");
}

const ROLES: [&str; 7] = [
    "stray-in-this-thread",
    "stray-in-a-newer-thread",
    "stray-in-an-older-thread",
    "stray-in-a-handler",
    "stray-after-a-handler",
    "stray-in-a-forked-child",
    "stray-to-a-lent-value",
];

/// Whether this machine has protection keys; the test is skipped otherwise.
fn is_possible(image: &Image) -> bool {
    let is_guarded = MappedPmem::open(image.path(), &guarded())
        .unwrap()
        .is_guarded();
    if !is_guarded {
        skip::test("the processor or the kernel has no protection keys");
    }
    is_guarded
}

pub(crate) fn stray_stores_kill() {
    for role in ROLES {
        let image = Image::new();
        if !is_possible(&image) {
            return;
        }
        let out = child(role, &image.path()).wait_with_output().unwrap();
        assert_eq!(out.status.signal(), Some(SIGSEGV), "{role}: {out:?}");
        assert_eq!(out.stdout, b"stores\n", "{role}");
        let pm = MappedPmem::open(image.path(), &MapOptions::default()).unwrap();
        let stored = if role.contains("lent") { 0 } else { 7 };
        assert_eq!(pm.load(AT), Ok(stored), "{role}");
    }
}

/// A store to a mapping without a guard, as a check of the test above.
pub(crate) fn without_a_guard(file: &Path) {
    let mapped = MappedPmem::open(file, &MapOptions::default()).unwrap();
    assert!(!mapped.is_guarded());
    let name = file.to_str().unwrap().to_owned();
    assert!(MAPPED.set((mapped, name)).is_ok());
    stray();
}

pub(crate) fn stray_stores_without_a_guard_destroy_the_store() {
    let image = Image::new();
    let out = child("stray-without-a-guard", &image.path());
    let out = out.wait_with_output().unwrap();
    assert!(out.status.success(), "{out:?}");
    let pm = MappedPmem::open(image.path(), &MapOptions::default()).unwrap();
    assert_eq!(pm.load(AT), Ok(8));
}
