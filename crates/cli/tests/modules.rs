//! The order of modules: in no crate do they use each other in a cycle. Where the documentation of a
//! crate states an order, under `# Modules`, no module uses one that comes later in the list.
//!
//! A use is a path. Calls of methods are not seen.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The directories of the crates.
fn crates() -> Vec<PathBuf> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let entries = fs::read_dir(crates).unwrap();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.join("src/lib.rs").exists());
    found.sort();
    found
}

/// The modules in the documentation of a crate, lowest first. Empty if it states no order.
fn documented(lib: &str) -> Vec<&str> {
    let list = lib.split("//! # Modules").nth(1).unwrap_or("");
    let lines = list.lines().skip(1).take_while(|line| {
        let text = line.strip_prefix("//!");
        text.is_some_and(|text| !text.starts_with(" # "))
    });
    let items = lines.filter_map(|line| line.strip_prefix("//! - ")?.split_once(':'));
    let names = items.flat_map(|(names, _)| names.split(", "));
    names.map(|name| name.trim_matches('`')).collect()
}

/// All code of a module, which is a file or a directory, without its tests and comments.
fn code(path: &Path) -> String {
    if path.is_dir() {
        let files = fs::read_dir(path).unwrap();
        let paths = files.map(|file| file.unwrap().path());
        return paths
            .filter(|path| path.file_stem().is_none_or(|name| name != "tests"))
            .map(|path| code(&path))
            .collect();
    }
    let text = fs::read_to_string(path).unwrap();
    let text = text.split("#[cfg(test)]").next().unwrap_or("");
    let lines = text.lines().map(|line| line.split("//").next().unwrap());
    lines.map(|line| format!("{line}\n")).collect()
}

/// The names of a braced list, or the one name, at the start of a path's rest. Inner braces are
/// those of the names before them.
fn names(rest: &str) -> Vec<&str> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let name = |text: &str| text.find(|c| !is_name(c)).unwrap_or(text.len());
    let Some(list) = rest.strip_prefix('{') else {
        return vec![&rest[..name(rest)]];
    };
    let mut depth = 0;
    let mut found = Vec::new();
    let mut begins = true;
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => begins = true,
            _ if begins && is_name(c) => {
                found.push(&list[at..at + name(&list[at..])]);
                begins = false;
            }
            _ => {}
        }
    }
    found
}

/// The modules of a crate's `lib.rs`, and the module of each name that it exports again.
fn modules(lib: &str) -> (Vec<&str>, BTreeMap<&str, &str>) {
    let lines = lib.lines().map(|line| {
        let line = line.trim_start_matches("pub(crate) ");
        line.trim_start_matches("pub ")
    });
    let declared = lines.filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
    let declared: Vec<&str> = declared.collect();
    let mut exported = BTreeMap::new();
    for text in lib.split("pub use ").skip(1) {
        let text = text.strip_prefix("crate::").unwrap_or(text);
        if let Some((module, rest)) = text.split_once("::")
            && declared.contains(&module)
        {
            exported.extend(names(rest).into_iter().map(|name| (name, module)));
        }
    }
    (declared, exported)
}

/// The modules that each module of a crate uses.
type Uses = BTreeMap<String, BTreeSet<String>>;

fn uses(path: &Path) -> Uses {
    let src = path.join("src");
    let lib = fs::read_to_string(src.join("lib.rs")).unwrap();
    let (declared, exported) = modules(&lib);
    let used_by = |name: &str| {
        let places = [src.join(name).with_extension("rs"), src.join(name)];
        let code: String = places
            .iter()
            .filter(|p| p.exists())
            .map(|p| code(p))
            .collect();
        let code = code.replace("$crate::", ""); // macros for other crates
        let paths = code.split("crate::").skip(1);
        let found = paths.flat_map(names).collect::<Vec<_>>();
        let modules = found
            .iter()
            .map(|used| exported.get(used).copied().unwrap_or(used));
        modules
            .filter(|used| *used != name && declared.contains(used))
            .map(str::to_owned)
            .collect()
    };
    declared
        .iter()
        .map(|name| ((*name).to_owned(), used_by(name)))
        .collect()
}

/// The modules that use each other in a cycle, and those that use them.
fn in_cycles(uses: &Uses) -> BTreeSet<&str> {
    let mut left: BTreeSet<&str> = uses.keys().map(String::as_str).collect();
    loop {
        let waits = |name: &&str| uses[*name].iter().any(|used| left.contains(used.as_str()));
        let still: BTreeSet<&str> = left.iter().copied().filter(waits).collect();
        if still.len() == left.len() {
            return left;
        }
        left = still;
    }
}

/// The uses of a crate that its list of modules forbids, and the modules that the list lacks.
fn upward(path: &Path) -> Vec<String> {
    let lib = fs::read_to_string(path.join("src/lib.rs")).unwrap();
    let order = documented(&lib);
    let mut wrong = Vec::new();
    for (name, used) in uses(path).iter().filter(|_| !order.is_empty()) {
        match order.iter().position(|one| one == name) {
            None => wrong.push(format!("{}: the list lacks `{name}`", path.display())),
            Some(place) => {
                let later = &order[place + 1..];
                let later = used.iter().filter(|used| later.contains(&used.as_str()));
                wrong.extend(
                    later.map(|used| format!("{}: `{name}` uses `{used}`", path.display())),
                );
            }
        }
    }
    wrong
}

#[test]
fn no_modules_of_a_crate_use_each_other_in_a_cycle() {
    for path in crates() {
        let uses = uses(&path);
        let cycles = in_cycles(&uses);
        assert!(cycles.is_empty(), "{}: {cycles:?}", path.display());
    }
}

#[test]
fn no_module_uses_a_later_one_of_its_list() {
    let crates = crates();
    let wrong: Vec<String> = crates.iter().flat_map(|path| upward(path)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let has_order = |path: &&PathBuf| {
        let lib = fs::read_to_string(path.join("src/lib.rs")).unwrap();
        !documented(&lib).is_empty()
    };
    assert!(crates.iter().filter(has_order).count() > 1);
}

#[test]
fn upward_uses_and_cycles_are_found() {
    assert_eq!(names("a::b;"), ["a"]);
    assert_eq!(names("{a::{b, c}, D, e};"), ["a", "D", "e"]);
    assert_eq!(names("{\n    a,\n    b as c,\n};"), ["a", "b"]);
    let lib = "//! # Modules\n//! - `a`, `b`: low.\n//! - `c`: high.\n//!\n//! # Next\n//! - `d`: x\n\
        mod a;\npub mod b;\nmod c;\npub use c::{D, E};\n";
    assert_eq!(documented(lib), ["a", "b", "c"]);
    let (declared, exported) = modules(lib);
    assert_eq!(declared, ["a", "b", "c"]);
    assert_eq!(exported["E"], "c");
    let used = |all: &[&str]| -> BTreeSet<String> { all.iter().map(|u| (*u).into()).collect() };
    let mut uses = Uses::from([("a".into(), used(&[])), ("b".into(), used(&["a", "c"]))]);
    uses.insert("c".into(), used(&["a"]));
    assert!(in_cycles(&uses).is_empty());
    uses.insert("c".into(), used(&["b"]));
    assert_eq!(in_cycles(&uses), BTreeSet::from(["b", "c"]));
}
