//! The crates depend on each other as ARCHITECTURE.md says, and in no other way.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The dependencies of each crate, by package name.
type Arrows = BTreeMap<String, BTreeSet<String>>;

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.join("../..").canonicalize().unwrap()
}

/// The dependencies in Cargo's metadata. Those of tests do not count.
fn real() -> Arrows {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args([
        "metadata",
        "--no-deps",
        "--format-version",
        "1",
        "--offline",
    ]);
    let output = cargo.current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let name = |value: &Value| value["name"].as_str().unwrap().to_owned();
    let ours: BTreeSet<String> = packages.iter().map(name).collect();
    let uses = |package: &Value| {
        let all = package["dependencies"].as_array().unwrap().iter();
        let normal = all.filter(|dependency| dependency["kind"].is_null());
        normal
            .map(name)
            .filter(|name| ours.contains(name))
            .collect()
    };
    packages
        .iter()
        .map(|package| (name(package), uses(package)))
        .collect()
}

/// The rows of the table, in its order.
fn told() -> Vec<(String, BTreeSet<String>)> {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| `selvedge"));
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, _directory, _contents, uses] = cells[..] else {
            panic!("four columns: {line}");
        };
        let uses = uses.split(", ").filter(|word| !word.is_empty());
        let uses = uses.map(|word| format!("selvedge-{word}")).collect();
        (name.trim_matches('`').to_owned(), uses)
    };
    rows.map(row).collect()
}

#[test]
fn every_arrow_is_in_the_table() {
    let told: Arrows = told().into_iter().collect();
    assert_eq!(told, real());
}

/// So no two crates can come to need each other.
#[test]
fn arrows_of_the_table_run_upward_on_the_page() {
    let mut above = BTreeSet::new();
    for (name, uses) in told() {
        assert!(uses.is_subset(&above), "{name} uses what stands below it");
        above.insert(name);
    }
    assert!(above.len() > 10);
}
