//! Conversations of hostile clients: those of a corpus, mutated at random here, and by libFuzzer in
//! `tools/fuzz`. The service ends each without a panic, the image is whole afterwards, and a client without
//! rights has neither changed nor read what another user has.
//!
//! An input is a byte for the [`Class`] of the client, and messages with [`BETWEEN`] between them. So a change
//! of a message leaves the others as they are. The first byte of a message is a [`Kind`]; numbers of messages
//! and sessions are added here.

mod run;
mod seeds;

pub(crate) use run::converse;

use crate::bounds::bound;
use std::path::Path;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("conversations_of_the_corpus_do_no_harm", replayed),
    ("mutated_conversations_do_no_harm", mutated),
    ("operations_of_the_seeds_are_accepted", seeds::accepted),
];

/// Bytes between the messages of an input.
const BETWEEN: &[u8] = b"\xffnext";

/// Kinds of messages of an input.
#[derive(Clone, Copy)]
enum Kind {
    /// The bytes are a whole message.
    Raw,
    /// They are one to the lock service.
    Lock,
    /// They are operations.
    Batch,
    /// They are a call.
    Call,
    /// They are numbers of pages and headers.
    Reserve,
}

const KINDS: [Kind; 5] = [
    Kind::Raw,
    Kind::Lock,
    Kind::Batch,
    Kind::Call,
    Kind::Reserve,
];

/// The inputs that libFuzzer has found, as far as each reaches code that no other one does.
fn corpus() -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/service/fuzz/corpus");
    let entries = std::fs::read_dir(dir).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let read = |path: &std::path::PathBuf| std::fs::read(path).unwrap();
    paths.iter().map(read).collect()
}

/// Writes the first inputs, with which libFuzzer begins.
pub(crate) fn write_seeds(dir: &Path) {
    for (n, seed) in seeds::all().iter().enumerate() {
        std::fs::write(dir.join(n.to_string()), seed).unwrap();
    }
}

fn replayed() {
    let corpus = corpus();
    assert!(!corpus.is_empty());
    corpus.iter().for_each(|input| drop(converse(input)));
}

fn mutated() {
    let mut corpus = corpus();
    corpus.extend(seeds::all());
    let mut rng = fastrand::Rng::with_seed(1);
    for _ in 0..bound(300, 30_000) {
        converse(&mutation(&corpus, &mut rng));
    }
}

fn messages(input: &[u8]) -> Vec<Vec<u8>> {
    let mut messages = vec![Vec::new()];
    let mut rest = input;
    while let Some((byte, next)) = rest.split_first() {
        match rest.strip_prefix(BETWEEN) {
            Some(next) => {
                messages.push(Vec::new());
                rest = next;
            }
            None => {
                messages.last_mut().unwrap().push(*byte);
                rest = next;
            }
        }
    }
    messages
}

/// An input with messages of another one, and with changed messages.
fn mutation(corpus: &[Vec<u8>], rng: &mut fastrand::Rng) -> Vec<u8> {
    let pick = |rng: &mut fastrand::Rng| messages(&corpus[rng.usize(..corpus.len())]);
    let (mut all, others) = (pick(rng), pick(rng));
    for _ in 0..rng.usize(1..5) {
        let at = rng.usize(..all.len());
        match rng.u32(..5) {
            0 => all.insert(at, others[rng.usize(..others.len())].clone()),
            1 if all.len() > 1 => drop(all.remove(at)),
            _ => damage(&mut all[at], rng),
        }
    }
    all.join(BETWEEN)
}

fn damage(message: &mut Vec<u8>, rng: &mut fastrand::Rng) {
    if message.is_empty() {
        return message.push(rng.u8(..));
    }
    let at = rng.usize(..message.len());
    let to = rng.usize(at..message.len());
    match rng.u32(..6) {
        0 => message[at] = rng.u8(..),
        1 => message[at] ^= 1 << rng.u32(..8),
        2 => message[at] = [0, 1, 0x7f, 0x80, 0xff][rng.usize(..5)],
        3 => message.insert(at, rng.u8(..)),
        4 => drop(message.drain(at..to)),
        _ => message.extend_from_within(at..to),
    }
}
