//! Each way out that the checker gives is followed: it helps, and has only the stated losses.

use crate::damage::*;
use crate::image::*;
use mnemosyne::memory::{BASE_ROOT, Backing, Finding, Loss, check, repair};
use std::collections::BTreeMap;
use std::path::Path;
use wordlog::Kind;

/// Identifies a finding.
fn key(finding: &Finding) -> (&'static str, &str, u64) {
    (finding.invariant, &finding.file, finding.offset)
}

fn is_for_repair(finding: &Finding) -> bool {
    finding.way_out.contains("heap repair")
}

/// Repairs the directory and returns the losses. Everything else is intact, and the remaining
/// findings have other ways out.
fn repair_and_look(path: &Path, found: &[Finding]) -> Vec<Loss> {
    let losses = repair(path, true).unwrap();
    let left = check(path).unwrap();
    let expected = found.iter().filter(|finding| !is_for_repair(finding));
    let expected: Vec<_> = expected.map(key).collect();
    assert_eq!(left.findings.iter().map(key).collect::<Vec<_>>(), expected);
    let is_named = |what: &str| losses.iter().any(|loss| loss.what.contains(what));
    let memory = open_directory(path).unwrap();
    assert_eq!(memory.regions().unwrap().len(), 3);
    run(&mut memory.session(), |tx| {
        assert_eq!(tx.root("one")?.is_none(), is_named("root 0"), "{losses:?}");
        assert_eq!(tx.root("two")?.is_none(), is_named("root 1"), "{losses:?}");
        if let Some((_, small)) = tx.root("one")? {
            assert!(tx.is_block(small)?);
        }
        Ok(())
    });
    losses
}

/// A repair has losses exactly where a finding advises it.
fn follow(files: &Files) {
    let dir = written(files);
    let found = check(dir.path()).unwrap().findings;
    match found.iter().any(is_for_repair) {
        true => {
            let losses = repair_and_look(dir.path(), &found);
            for finding in found.iter().filter(|finding| is_for_repair(finding)) {
                let is_lost = |loss: &Loss| loss.invariant == finding.invariant;
                assert!(losses.iter().any(is_lost), "{finding}: {losses:?}");
            }
        }
        false => {
            if let Ok(losses) = repair(dir.path(), true) {
                assert!(losses.is_empty(), "{found:?}: {losses:?}");
            }
            assert!(contents(dir.path()) == *files, "something was changed");
        }
    }
}

fn cases() -> Vec<Case> {
    let mut cases = system_cases();
    cases.extend(log_cases());
    cases.extend(region_cases());
    cases
}

#[test]
fn repair_is_advised_if_and_only_if_it_helps() {
    let sound = sound();
    let mut advised = BTreeMap::<_, u64>::new();
    for case in cases() {
        let mut files = sound.clone();
        (case.change)(&mut files);
        println!("{}", case.invariant);
        follow(&files);
        let found = check(written(&files).path()).unwrap().findings;
        let repairs = found.iter().filter(|finding| is_for_repair(finding));
        repairs.for_each(|finding| *advised.entry(finding.invariant).or_default() += 1);
    }
    println!("{advised:?}");
    let invariants: Vec<_> = advised.into_keys().collect();
    assert_eq!(invariants, ["M10", "M11", "M13", "M16", "M6"]);
}

/// A repair that is rejected gives up nothing, even if it could.
#[test]
fn a_rejected_repair_gives_up_nothing() {
    let sound = sound();
    let beyond: [fn(&mut Files); 5] = [
        |f| name_root(f, 1, BASE_ROOT.as_bytes()),
        |f| set(f, SYSTEM, TABLE, 0x204),
        |f| set(f, SYSTEM, log_start(1), 0),
        |f| set(f, HEAP_FILE, descriptor(0), 3),
        |f| set(f, HEAP_FILE, descriptor(2), sealed(2 | 1 << 8)),
    ];
    let changes: [fn(&mut Files); 3] = [
        damage_record,
        |f| point_root(f, 0, 1 << 29),
        |f| set(f, HEAP_FILE, descriptor(0) + 8, 1 << 63),
    ];
    for beyond in beyond {
        for change in changes {
            let mut files = sound.clone();
            change(&mut files);
            beyond(&mut files);
            let found = check(written(&files).path()).unwrap().findings;
            assert!(!found.iter().any(is_for_repair), "{found:#?}");
            follow(&files);
        }
    }
}

#[test]
fn one_repair_covers_several_kinds_of_damage() {
    let mut files = sound();
    set(&mut files, HEAP_FILE, descriptor(0) + 8, 1 << 63);
    name_root(&mut files, 1, b"one");
    damage_record(&mut files);
    let dir = written(&files);
    let found = check(dir.path()).unwrap().findings;
    let losses = repair_and_look(dir.path(), &found);
    let invariants: Vec<_> = losses.iter().map(|loss| loss.invariant).collect();
    assert_eq!(invariants, ["M10", "M13", "M6"]);
}

/// Ways out: a file is moved away or put back, or a log is made anew.
#[test]
fn other_ways_out_help() {
    let sound = sound();
    for case in cases() {
        let mut files = sound.clone();
        (case.change)(&mut files);
        let dir = written(&files);
        let found = check(dir.path()).unwrap().findings;
        for finding in &found {
            let path = dir.path().join(&finding.file);
            let way = finding.way_out;
            if way.contains("move the file away") {
                std::fs::remove_file(path).unwrap();
            } else if way.contains("put the file back") {
                std::fs::write(path, &sound[&finding.file]).unwrap();
            } else if way.contains("make the log anew") || way.contains("make it anew") {
                let memory = open_directory(dir.path()).unwrap();
                let start = region(&memory, LOG).start;
                wordlog::format(memory.backing().pmem(), start, 4096, Kind::Base).unwrap();
            } else if !way.starts_with("restore") {
                continue;
            } else {
                for (name, bytes) in &sound {
                    std::fs::write(dir.path().join(name), bytes).unwrap();
                }
            }
            let left = check(dir.path()).unwrap().findings;
            let is_same = |other: &Finding| key(other) == key(finding);
            assert!(!left.iter().any(is_same), "{left:?}");
        }
    }
}
