//! The order of modules that the documentation of the crate states: no module uses one above it.

use std::fs;
use std::path::Path;

/// The modules in the documentation of the crate, lowest first.
fn documented(lib: &str) -> Vec<&str> {
    let list = lib.split("//! # Modules").nth(1).expect("the list");
    let lines = list.lines().filter_map(|line| line.strip_prefix("//! - "));
    let names = lines.filter_map(|line| line.split_once(':'));
    names
        .flat_map(|(names, _)| names.split(", "))
        .map(|name| name.trim_matches('`'))
        .collect()
}

/// All code of a module, which is a file or a directory, without its tests.
fn code(path: &Path) -> String {
    if path.is_dir() {
        let files = fs::read_dir(path).expect("a directory");
        return files
            .map(|file| code(&file.expect("an entry").path()))
            .collect();
    }
    let text = fs::read_to_string(path).expect("a source file");
    text.split("#[cfg(test)]").next().unwrap_or("").to_owned()
}

#[test]
fn no_module_uses_one_above_it() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let lib = fs::read_to_string(src.join("lib.rs")).expect("lib.rs");
    let order = documented(&lib);
    let declared = lib.lines().filter_map(|line| {
        let line = line.trim_start_matches("pub ");
        line.strip_prefix("mod ")?.strip_suffix(';')
    });
    for name in declared {
        let place = order.iter().position(|n| *n == name);
        let place = place.unwrap_or_else(|| panic!("the list lacks `{name}`"));
        let file = src.join(name).with_extension("rs");
        let directory = src.join(name);
        let code = code(if file.exists() { &file } else { &directory });
        for above in &order[place + 1..] {
            let uses = [format!("crate::{above}::"), format!("crate::{above};")];
            let found = uses.iter().any(|path| code.contains(path.as_str()));
            assert!(!found, "`{name}` uses `{above}`, which is above it");
        }
    }
}
