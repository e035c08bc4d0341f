//! Pointers to durable memory are of a kind of their own, to those who look at kinds.

use std::path::Path;
use std::process::Command;

/// What a checker says to `pointers.c`.
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
fn sparse_tells_pointers_apart() {
    assert_eq!(said("sparse", &[]), "");
    let mixed = said("sparse", &["-DMIXED"]);
    assert!(mixed.contains("different address spaces"), "{mixed}");
}

#[test]
fn clang_tells_pointers_apart() {
    if Command::new("clang").arg("--version").output().is_err() {
        return skip::test("clang is not installed");
    }
    assert_eq!(said("clang", &["-fsyntax-only"]), "");
    let mixed = said("clang", &["-fsyntax-only", "-DMIXED"]);
    assert!(mixed.contains("address space"), "{mixed}");
    let made = said("clang", &["-c", "-o", "/dev/null"]);
    assert!(made.contains("SELVEDGE_ATOMIC needs gcc"), "{made}");
}
