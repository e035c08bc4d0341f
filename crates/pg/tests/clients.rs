//! The libraries for C and Python agree with the protocol, and are installed whole.

use pg::protocol;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// The name and the requests, as the programs in C and Python print them.
fn expected() -> String {
    let requests = [
        protocol::DEPEND,
        protocol::ENGAGE,
        protocol::DISENGAGE,
        protocol::SYNC,
        protocol::BARRIER,
        protocol::ORDER,
    ];
    let numbers = requests.map(|request| request.to_string());
    format!("{} {}\n", protocol::NAME, numbers.join(" "))
}

/// A file of the project.
fn file(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join(name)
}

fn read(name: &str) -> String {
    fs::read_to_string(file(name)).unwrap()
}

/// The standard output of a command, which must succeed without any message.
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let is_quiet = output.status.success() && errors.is_empty();
    assert!(is_quiet, "{command:?}: {}\n{errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// A compiler that accepts no warning.
fn strict(compiler: &str, standard: &str) -> Command {
    let mut command = Command::new(compiler);
    command.args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-O2", standard]);
    command.arg("-I").arg(file("crates/pg/include"));
    command
}

/// Compiles the library.
fn library(dir: &TempDir) -> PathBuf {
    let object = dir.path().join("patchgroup.o");
    let mut gcc = strict("gcc", "-std=c99");
    gcc.arg("-c").arg(file("crates/pg/c/patchgroup.c"));
    output(gcc.arg("-o").arg(&object));
    object
}

/// Compiles a program in C or C++ with the library.
fn program(dir: &TempDir, source: &str, standard: &str) -> PathBuf {
    let compiler = match source.ends_with(".cc") {
        true => "g++",
        false => "gcc",
    };
    let program = dir.path().join("program");
    let mut command = strict(compiler, standard);
    command.arg(file(source)).arg(library(dir));
    output(command.arg("-o").arg(&program));
    program
}

#[test]
fn the_header_has_the_numbers_of_the_protocol() {
    let dir = tempfile::tempdir().unwrap();
    let numbers = program(&dir, "crates/pg/tests/c/numbers.c", "-std=c99");
    assert_eq!(output(&mut Command::new(numbers)), expected());
}

#[test]
fn calls_from_cxx_outside_of_a_mount_fail() {
    for standard in ["-std=c++11", "-std=c++20"] {
        let dir = tempfile::tempdir().unwrap();
        let errors = program(&dir, "crates/pg/tests/c/errors.cc", standard);
        output(Command::new(errors).arg(dir.path()));
    }
}

/// It runs in the tests of the program `selvedge`, which have a mount.
#[test]
fn the_example_compiles_without_warnings() {
    let dir = tempfile::tempdir().unwrap();
    program(&dir, "examples/c/file_mail.c", "-std=gnu11");
}

#[test]
fn make_installs_the_library_and_a_page_for_each_call() {
    let dir = tempfile::tempdir().unwrap();
    let (built, root) = (dir.path().join("built"), dir.path().join("root"));
    let make = |target: &str| {
        let mut make = Command::new("make");
        make.args(["--silent", target, "PREFIX=/usr", "-C"]);
        make.arg(file(""))
            .arg(format!("TARGET={}", built.display()));
        make.arg(format!("DESTDIR={}", root.display()));
        for name in ["MAKEFLAGS", "MAKELEVEL", "MFLAGS", "CFLAGS", "LDFLAGS"] {
            make.env_remove(name);
        }
        output(&mut make);
    };
    make("install-pg");
    let usr = root.join("usr");
    let numbers = dir.path().join("numbers");
    let mut gcc = Command::new("gcc");
    gcc.arg(file("crates/pg/tests/c/numbers.c"));
    gcc.arg("-I").arg(usr.join("include"));
    gcc.arg("-L").arg(usr.join("lib")).arg("-lselvedge-pg");
    output(gcc.arg("-o").arg(&numbers));
    let found = output(Command::new(&numbers).env("LD_LIBRARY_PATH", usr.join("lib")));
    assert_eq!(found, expected());
    let package = fs::read_to_string(usr.join("lib/pkgconfig/selvedge-pg.pc")).unwrap();
    let version = format!("Version: {}\n", env!("CARGO_PKG_VERSION"));
    assert!(
        package.contains(&version) && !package.contains('@'),
        "{package}"
    );
    assert!(usr.join("lib/libselvedge-pg.a").exists());
    let main = fs::read_to_string(usr.join("share/man/man3/pg_create.3")).unwrap();
    for call in calls() {
        let page = fs::read_to_string(usr.join(format!("share/man/man3/{call}.3"))).unwrap();
        assert!(page == main || page == ".so man3/pg_create.3\n", "{page}");
        assert!(
            main.contains(&format!("{call}(")),
            "{call} is not in the manual"
        );
    }
    make("uninstall");
    let left = Command::new("find")
        .arg(&root)
        .args(["!", "-type", "d"])
        .output();
    assert_eq!(left.unwrap().stdout, b"");
}

/// The functions that the header declares.
fn calls() -> Vec<String> {
    let header = read("crates/pg/include/selvedge/patchgroup.h");
    let declared = header.lines().filter(|line| line.ends_with(");"));
    let calls = declared.filter_map(|line| {
        let name = line.strip_prefix("int ").or(line.strip_prefix("pg_t "))?;
        Some(name.split('(').next()?.to_owned())
    });
    let calls: Vec<_> = calls.collect();
    assert_eq!(calls.len(), 8, "{calls:?}");
    calls
}

#[test]
fn the_python_package_has_the_numbers_of_the_protocol_and_the_version() {
    if Command::new("python3").arg("--version").output().is_err() {
        return skip::test("python3 is not installed");
    }
    let print = "from selvedge import patchgroup as pg; \
                 print(pg.NAME, pg.DEPEND, pg.ENGAGE, pg.DISENGAGE, pg.SYNC, pg.BARRIER, pg.ORDER)";
    let mut python = Command::new("python3");
    python.args(["-B", "-c", print]).current_dir(file("python"));
    assert_eq!(output(&mut python), expected());
    let version = format!("version = \"{}\"\n", env!("CARGO_PKG_VERSION"));
    assert!(read("python/pyproject.toml").contains(&version));
}
