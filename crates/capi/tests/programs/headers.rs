//! The headers by themselves: they compile, and define names with the prefix only.

use crate::workshop::{Recipe, Workshop};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The headers are C11 and C++17. `selvedge.h` leaves the short names to the program.
#[test]
fn the_headers_stand_alone() {
    for (source, flags) in [
        ("header.c", &["-std=c11", "-pedantic"][..]),
        ("header.c", &["-std=gnu11"]),
        ("header.cc", &["-std=c++17", "-pedantic"]),
        ("header.cc", &["-std=c++20"]),
        ("short.c", &["-std=c11", "-pedantic"]),
        ("short.cc", &["-std=c++17", "-pedantic"]),
        ("short.cc", &["-std=c++20"]),
        ("structures.cc", &["-std=c++17", "-pedantic"]),
        ("structures.cc", &["-std=c++20", "-pedantic"]),
        ("files.cc", &["-std=c++17", "-pedantic"]),
    ] {
        let workshop = Workshop::new();
        let recipe = Recipe {
            flags,
            ..Recipe::new(source)
        };
        let program = workshop.compile("header", &recipe);
        workshop.run(&program, &[]);
    }
}

/// Words of the languages, and types of the standard headers, in declarations.
const KNOWN: &str = "__asm__ __attribute__ char const extern int int64_t long noexcept off_t size_t ssize_t \
                     static struct typedef unsigned void";

/// The system headers that the headers include.
const SYSTEM: &str = "#include <fcntl.h>\n#include <stddef.h>\n#include <stdint.h>\n#include <string.h>\n\
                      #include <sys/mman.h>\n#include <sys/stat.h>\n#include <sys/types.h>\n";

/// The source text after the preprocessor.
fn preprocessed(language: &str, options: &[&str], source: &str) -> String {
    let workshop = Workshop::new();
    let file = workshop.path("source");
    std::fs::write(&file, source).unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let mut gcc = Command::new("gcc");
    gcc.args(["-fgnu-tm", "-E", "-x", language]).args(options);
    gcc.arg("-I").arg(include).arg(file);
    let output = gcc.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// The macros that are defined at the end of a source text.
fn macros(language: &str, source: &str) -> BTreeSet<String> {
    let text = preprocessed(language, &["-dM"], source);
    let names = text.lines().filter_map(|line| {
        let rest = line.strip_prefix("#define ")?;
        rest.split([' ', '(']).next().map(str::to_owned)
    });
    names.collect()
}

/// The lines from our headers, without those of the system's.
fn of_selvedge(text: &str) -> String {
    let mut is_ours = false;
    let mut ours = String::new();
    for line in text.lines() {
        if let Some(marker) = line.strip_prefix("# ") {
            is_ours = marker.contains("/include/selvedge");
        } else if is_ours {
            ours.push_str(line);
            ours.push('\n');
        }
    }
    ours
}

/// The words outside of parentheses, braces and strings: the words of declarations, without
/// arguments and attributes.
fn declared(text: &str) -> BTreeSet<String> {
    let text = text.replace("extern \"C\" {", "");
    let (mut depth, mut is_string) = (0_i32, false);
    let outside = text.chars().map(|c| match c {
        '"' => {
            is_string = !is_string;
            ' '
        }
        _ if is_string => ' ',
        '(' | '{' => {
            depth += 1;
            ' '
        }
        ')' | '}' => {
            // The brace at the end of `extern "C"` has no counted partner.
            depth = (depth - 1).max(0);
            ' '
        }
        _ if depth > 0 => ' ',
        c if c.is_alphanumeric() || c == '_' => c,
        _ => ' ',
    });
    let outside: String = outside.collect();
    let words = outside.split_whitespace().map(str::to_owned);
    words.collect()
}

#[test]
fn every_name_of_the_headers_has_the_prefix() {
    for language in ["c", "c++"] {
        let theirs = macros(language, SYSTEM);
        let of_memory = "selvedge_pmalloc selvedge_tx_strlen selvedge_keep selvedge_log";
        let of_files = "selvedge_store selvedge_file_open selvedge_kv_put";
        for (header, expected) in [
            ("selvedge.h", of_memory),
            ("selvedge/structures.h", of_memory),
            ("selvedge/files.h", of_files),
        ] {
            let source = format!("{SYSTEM}#include <{header}>\n");
            let taken: Vec<_> = macros(language, &source)
                .difference(&theirs)
                .filter(|name| !name.starts_with("SELVEDGE_") && !name.starts_with("selvedge_"))
                .cloned()
                .collect();
            assert_eq!(taken, [] as [&str; 0], "macros of {header}, {language}");
            let declared = declared(&of_selvedge(&preprocessed(language, &[], &source)));
            for name in expected.split(' ') {
                assert!(declared.contains(name), "{name} is not found in {header}");
            }
            let is_known = |name: &str| KNOWN.split_whitespace().any(|known| known == name);
            let taken: Vec<_> = declared
                .iter()
                .filter(|name| !name.starts_with("selvedge_") && !is_known(name))
                .collect();
            assert_eq!(taken, [] as [&str; 0], "names of {header}, {language}");
        }
    }
}

/// The search of the test above finds names without the prefix.
#[test]
fn the_short_names_have_no_prefix() {
    let source = format!("{SYSTEM}#include <selvedge/short.h>\n");
    let taken = macros("c", &source);
    assert!(taken.contains("patomic") && taken.contains("store") && taken.contains("log_open"));
    let declared = declared(&of_selvedge(&preprocessed("c", &[], &source)));
    assert!(declared.contains("flush") && declared.contains("fence"));
}
