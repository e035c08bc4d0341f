//! Runs replayed on SoupFS, whose changes stay in memory until a round or an `fsync`.

use crash::observe::Observed;
use runs::checker::{Checker, CheckerKind};
use runs::explore::{Explorer, Options, Report, Subject};
use runs::{Call, Entry, Header, Kind, Node, Place, Run, Source};
use soupfs::{Mode, SoupSystem};
use std::time::Duration;

const NAME: &str = "soupfs";

/// A run under construction. All names are in the root.
struct Calls(Run);

impl Calls {
    fn new() -> Self {
        Self(Run::new(Header::new(Source::Mount, "a test")))
    }

    fn add(&mut self, call: Call, text: &str) {
        self.0.entries.push(Entry::new(call, text));
    }

    fn create(&mut self, node: u64, name: &str) {
        let call = Call::Make {
            node: Node(node),
            at: Some(at(name)),
            kind: Kind::File,
            perm: 0o644,
            uid: 0,
            gid: 0,
        };
        self.add(call, &format!("create {name}"));
    }

    fn write(&mut self, node: u64, off: u64, data: &[u8]) {
        let data = self.0.keep(data);
        let node = Node(node);
        self.add(Call::Write { node, off, data }, &format!("write {node}"));
    }

    fn fsync(&mut self, node: u64) {
        let call = Call::Sync {
            node: Node(node),
            data_only: false,
            range: None,
        };
        self.add(call, &format!("fsync {node}"));
    }

    fn rename(&mut self, from: &str, to: &str, exchange: bool) {
        let call = Call::Rename {
            from: at(from),
            to: at(to),
            exchange,
        };
        self.add(call, &format!("rename {from} {to}"));
    }

    fn say(&mut self, text: &str) {
        let data = self.0.keep(text.as_bytes());
        self.add(Call::Output { data }, "say");
    }

    fn end_setup(&mut self) {
        self.0.header.setup = self.0.entries.len();
    }
}

fn at(name: &str) -> Place {
    Place::new(Node::ROOT, name.as_bytes())
}

fn options(check: &str) -> Options {
    Options {
        checker: Checker {
            kind: CheckerKind::Command(check.to_owned()),
            timeout: Duration::from_secs(10),
            memory_bytes: 1 << 30,
        },
        limit: 300,
        jobs: 2,
        seed: 1,
        max_failures: 10,
        order: false,
        scratch: std::env::temp_dir(),
    }
}

fn explored(run: &Run, mode: Mode, options: &Options) -> Report {
    let system = SoupSystem::with_room(mode, run.data.len() as u64, 8);
    let subject = Subject::Engine(NAME, Observed::Memory(&system));
    let explorer = Explorer::new(run, options);
    let report = explorer.explore(&[subject], &|_, _| {}).unwrap();
    // The id of a state leads to the same state.
    for failure in &report.failures {
        let state = explorer.state(&failure.id, &[subject]).unwrap();
        let mut end = explorer.tree_after(run.entries.len()).unwrap();
        if let Some(newest) = &failure.after {
            end = explorer.tree_after(newest.number + 1).unwrap();
        }
        let differences = state.tree.unwrap().differences(&end);
        let shown = differences.len().min(failure.differences.len());
        assert_eq!(differences[..shown], failure.differences[..]);
    }
    report
}

fn failed(run: &Run, mode: Mode, check: &str) -> u64 {
    let report = explored(run, mode, &options(check));
    assert_eq!(report.models[0].refused, None);
    assert!(report.models[0].judged > 1);
    report.models[0].failed
}

/// A file `f` is replaced. `synced`: the new contents are, before.
fn replaced(synced: bool) -> Run {
    let mut calls = Calls::new();
    calls.create(2, "f");
    calls.write(2, 0, b"old");
    calls.end_setup();
    calls.create(3, "t");
    calls.write(3, 0, b"new");
    if synced {
        calls.fsync(3);
    }
    calls.rename("t", "f", false);
    calls.0
}

const OLD_OR_NEW: &str = "grep -qE '^(old|new)$' {dir}/f || { echo f is damaged; exit 1; }";

#[test]
fn a_replacement_that_is_not_synced_can_be_empty() {
    // A round between the creation and the write shows an empty file under the new name.
    assert!(failed(&replaced(false), Mode::InPlace, OLD_OR_NEW) > 0);
    assert_eq!(failed(&replaced(true), Mode::InPlace, OLD_OR_NEW), 0);
}

#[test]
fn a_change_survives_its_fsync_and_not_its_return() {
    let stored = |synced: bool| {
        let mut calls = Calls::new();
        calls.create(2, "f");
        calls.write(2, 0, b"text");
        if synced {
            calls.fsync(2);
        }
        calls.say("stored");
        calls.0
    };
    let check = "grep -q stored $SELVEDGE_OUTPUT || exit 0; \
                 grep -q text {dir}/f || { echo lost; exit 1; }";
    assert!(failed(&stored(false), Mode::InPlace, check) > 0);
    // The name is durable, too: no other call is needed.
    assert_eq!(failed(&stored(true), Mode::InPlace, check), 0);
}

#[test]
fn a_log_is_not_ordered_before_the_data_without_fsync() {
    let logged = |synced: bool| {
        let mut calls = Calls::new();
        calls.create(2, "log");
        calls.create(3, "data");
        calls.write(3, 0, b"1111111");
        calls.end_setup();
        calls.write(2, 0, b"was 1111111");
        if synced {
            calls.fsync(2);
        }
        calls.write(3, 0, b"2222222");
        calls.0
    };
    let check = "grep -q 1111111 {dir}/data || grep -q 'was 1111111' {dir}/log || \
                 { echo not logged; exit 1; }";
    for mode in Mode::ALL {
        assert!(failed(&logged(false), mode, check) > 0);
        assert_eq!(failed(&logged(true), mode, check), 0);
    }
}

#[test]
fn a_block_is_overwritten_as_a_whole_in_mode_atomic_only() {
    let mut calls = Calls::new();
    calls.create(2, "f");
    calls.write(2, 0, &[b'a'; 64]);
    calls.end_setup();
    calls.write(2, 0, &[b'b'; 64]);
    let check = "grep -qE '^(a{64}|b{64})$' {dir}/f || { echo torn; exit 1; }";
    assert!(failed(&calls.0, Mode::InPlace, check) > 0);
    assert_eq!(failed(&calls.0, Mode::Atomic, check), 0);
}

#[test]
fn a_run_that_soupfs_refuses_is_reported() {
    let mut calls = Calls::new();
    calls.create(2, "f");
    calls.create(3, "g");
    calls.rename("f", "g", true);
    let refused = |run: &Run, options: &Options| {
        let report = explored(run, Mode::InPlace, options);
        report.models[0].refused.clone().unwrap_or_default()
    };
    let why = refused(&calls.0, &options("true"));
    assert!(why.starts_with("call 2: rename f g: "), "{why}");
    let in_order = Options {
        order: true,
        ..options("true")
    };
    let why = refused(&replaced(true), &in_order);
    assert!(why.contains("keeps no order"), "{why}");
}
