//! Checkers for pointers to durable memory.

use std::path::Path;
use std::process::Command;

/// The messages of a checker for `pointers.c`.
fn said(checker: &str, options: &[&str]) -> String {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(checker)
        .arg("-I")
        .arg(here.join("include"))
        .args(options)
        .arg(here.join("tests/c/pointers.c"))
        .output()
        .unwrap_or_else(|e| panic!("{checker}: {e}"));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn sparse_warns_of_mixed_pointers() {
    assert_eq!(said("sparse", &[]), "");
    let mixed = said("sparse", &["-DMIXED"]);
    assert!(mixed.contains("different address spaces"), "{mixed}");
}

#[test]
fn clang_warns_of_mixed_pointers() {
    if Command::new("clang").arg("--version").output().is_err() {
        return skip::test("clang is not installed");
    }
    assert_eq!(said("clang", &["-fsyntax-only"]), "");
    let mixed = said("clang", &["-fsyntax-only", "-DMIXED"]);
    assert!(mixed.contains("address space"), "{mixed}");
    let made = said("clang", &["-c", "-o", "/dev/null"]);
    assert!(made.contains("SELVEDGE_ATOMIC needs gcc"), "{made}");
}
