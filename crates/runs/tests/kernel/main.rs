//! The models of kernel file systems allow what the kernel leaves.
//!
//! Small scripts run on the kernel's own ext4, XFS and Btrfs. Each is on a loop device over a file of
//! a recorded mount, so that every write to the device and every flush of it is known. After a crash
//! a device has all writes before its last flush, and any of the later ones, a page at a time. The
//! kernel mounts such images and recovers them. Each tree that it shows must be one that the model
//! allows for the same calls.
//!
//! The scripts are run once and on one version of the kernel. So the test can find that a model is
//! wrong, and cannot prove that it is right.

mod device;
mod kernel;
mod script;
mod states;

use kernel::{BTRFS, EXT4_JOURNAL, EXT4_ORDERED, Kernel, XFS};
use runs::model::{Legal, Model, Modelled};
use runs::{Node, Run, Tree};
use script::{SCRIPTS, Script};
use states::{Crashed, crashes};
use std::collections::{BTreeSet, HashMap};

/// Most images of a script that are mounted.
const IMAGES: usize = 14;

/// Trees that a model allows, by number of returned calls.
struct Allowed<'a> {
    modelled: Modelled<'a>,
    sets: HashMap<usize, BTreeSet<String>>,
}

impl<'a> Allowed<'a> {
    fn new(run: &'a Run, model: Model) -> Self {
        Self {
            modelled: Modelled::new(run, model).unwrap(),
            sets: HashMap::new(),
        }
    }

    fn at(&mut self, returned: usize) -> &BTreeSet<String> {
        self.sets.entry(returned).or_insert_with(|| {
            // The effects of a request of durability are there together before it returns.
            let entry = self.modelled.run.entries.get(returned);
            let is_sync = entry.is_some_and(|entry| !entry.call.is_change());
            let mut found = BTreeSet::new();
            for moment in returned..=returned + usize::from(is_sync) {
                let legal = Legal::new(&self.modelled, moment);
                assert!(legal.is_exhaustive(), "the script has too many states");
                let states = legal.states(1);
                found.extend(states.map(|(_, present)| text(&self.modelled.tree(&present))));
            }
            found
        })
    }
}

/// Paths, contents and links of a tree as text. Owners and times are left aside.
fn text(tree: &Tree) -> String {
    let mut first: HashMap<Node, Vec<u8>> = HashMap::new();
    let mut lines = Vec::new();
    for (path, node) in tree.paths() {
        let name = String::from_utf8_lossy(&path).into_owned();
        if name == "lost+found" {
            continue;
        }
        if let Some(other) = first.get(&node) {
            lines.push(format!("{name} is {}", String::from_utf8_lossy(other)));
            continue;
        }
        first.insert(node, path);
        let inode = tree.get(node).unwrap();
        lines.push(match inode.kind {
            runs::Kind::Directory => format!("{name}/"),
            _ => format!("{name}={}", contents(&inode.contents)),
        });
    }
    lines.join(" ")
}

/// Bytes with runs of one byte counted.
fn contents(contents: &runs::Contents) -> String {
    let bytes = contents.bytes(16 << 20).unwrap();
    let runs = bytes.chunk_by(|a, b| a == b);
    let parts = runs.map(|run| match (run[0].escape_ascii(), run.len()) {
        (byte, 1..4) => byte.to_string().repeat(run.len()),
        (byte, len) => format!("({byte}*{len})"),
    });
    parts.collect()
}

/// The states of a script that the kernel leaves and the model does not allow, as text.
fn violations(kernel: &Kernel, script: &Script, model: Model) -> Vec<String> {
    let (run, device) = script.run(kernel);
    let mut allowed = Allowed::new(&run, model);
    let (mut found, mut seen) = (Vec::new(), BTreeSet::new());
    let crashes = crashes(&device, IMAGES);
    let images = crashes.len();
    for Crashed { image, returned } in crashes {
        let state = text(&kernel.recover(&image));
        if !allowed.at(returned).contains(&state) {
            let call = run.entries.get(returned).map_or("(the end)", |e| &e.text);
            let returned = returned - run.header.setup;
            found.push(format!("after {returned} calls, before {call}: {state}"));
        }
        seen.insert(state);
    }
    let end = run.entries.len();
    let all: BTreeSet<&String> = (run.header.setup..=end)
        .filter_map(|n| allowed.sets.get(&n))
        .flatten()
        .collect();
    eprintln!(
        "{} {}: {images} images, {} trees, {} allowed",
        kernel.name,
        script.name,
        seen.len(),
        all.len()
    );
    found.sort_unstable();
    found.dedup();
    found
}

/// Runs all scripts on a kernel file system.
fn judge(kernel: &Kernel) {
    if let Some(missing) = kernel.missing() {
        return skip::test(&missing);
    }
    let mut found = Vec::new();
    for script in SCRIPTS {
        let of_script = violations(kernel, script, kernel.model);
        found.extend(
            of_script
                .into_iter()
                .map(|v| format!("{}: {v}", script.name)),
        );
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn ext4_leaves_what_its_model_allows() {
    judge(&EXT4_ORDERED);
}

#[test]
fn ext4_with_data_in_the_journal_leaves_what_its_model_allows() {
    judge(&EXT4_JOURNAL);
}

#[test]
fn xfs_leaves_what_its_model_allows() {
    judge(&XFS);
}

#[test]
fn btrfs_leaves_what_its_model_allows() {
    judge(&BTRFS);
}

/// Each file system breaks the model of a stricter one.
#[test]
fn a_model_that_is_too_strict_is_found() {
    for (kernel, model) in [
        (&EXT4_ORDERED, Model::Ext4Journal),
        (&EXT4_JOURNAL, Model::AtReturn),
    ] {
        if let Some(missing) = kernel.missing() {
            skip::test(&missing);
            continue;
        }
        let found = SCRIPTS
            .iter()
            .map(|script| violations(kernel, script, model));
        assert!(found.flatten().next().is_some(), "{}", kernel.name);
    }
}
