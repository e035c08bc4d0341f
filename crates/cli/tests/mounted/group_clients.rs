//! Programs in C and Python that order their changes by patchgroups.

use crate::fixture::{Fixture, alone, finish, run, stderr};
use pg::Group;
use rustix::io::Errno;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file of the project.
fn project(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join(name)
}

/// Runs a test on a file system that keeps order; then the checker.
fn on_ordered_mount(test: impl Fn(&Fixture)) {
    let place = Fixture::new();
    let ext2 = ["--type", "ext2", "--size", "64M", "--journal"];
    run(0, &[&["mkfs"], &ext2[..], &[place.image_str()]].concat());
    place.mount(&["-o", "mode=journal"]);
    test(&place);
    place.umount();
    place.fsck();
}

#[test]
fn the_python_package_orders_changes() {
    if Command::new("python3").arg("--version").output().is_err() {
        return skip::test("python3 is not installed");
    }
    on_ordered_mount(|place| {
        let mut python = Command::new("python3");
        // No compiled files are left in the project.
        python.args(["-B", "-W", "error", "-m", "unittest", "discover", "tests"]);
        python.current_dir(project("python"));
        python.env("SELVEDGE_PG_DIR", place.dir());
        python.env("SELVEDGE", env!("CARGO_BIN_EXE_selvedge"));
        let report = stderr(&finish(0, &mut python));
        let last = report.lines().next_back();
        // It says how many were skipped, if any were.
        assert_eq!(last, Some("OK"), "{report}");
        assert!(!report.contains("Ran 0 tests"), "{report}");
    });
}

#[test]
fn the_c_example_moves_messages() {
    on_ordered_mount(|place| {
        let program = place.path("file_mail");
        let mut gcc = Command::new("gcc");
        gcc.args(["-Wall", "-Wextra", "-Werror", "-O2"]);
        gcc.arg("-I").arg(project("crates/pg/include"));
        gcc.arg(project("examples/c/file_mail.c"));
        gcc.arg(project("crates/pg/c/patchgroup.c"));
        finish(0, gcc.arg("-o").arg(&program));
        let [from, to] = ["inbox", "archive"].map(|name| place.dir().join(name));
        for part in ["new", "tmp"] {
            fs::create_dir_all(from.join(part)).unwrap();
            fs::create_dir_all(to.join(part)).unwrap();
        }
        for name in ["1", "2", "3"] {
            fs::write(from.join("new").join(name), format!("message {name}\n")).unwrap();
        }
        let moves = |names: &[&str]| {
            let mut command = Command::new(&program);
            command.arg(&from).arg(&to).args(names);
            command
        };
        finish(0, &mut moves(&["1", "2"]));
        for name in ["1", "2"] {
            assert!(!from.join("new").join(name).exists());
            let text = fs::read_to_string(to.join("new").join(name)).unwrap();
            let from = from.display();
            assert_eq!(text, format!("X-Filed-From: {from}\nmessage {name}\n"));
        }
        assert!(from.join("new/3").exists());
        // A message that cannot be copied stays, and so do all others.
        let error = stderr(&finish(1, &mut moves(&["3", "4"])));
        assert_eq!(error, "file_mail: 4: No such file or directory\n");
        assert!(from.join("new/3").exists() && !to.join("new/3").exists());
    });
}

/// Each mount counts its groups from 1.
#[test]
fn a_group_of_another_mount_is_refused() {
    alone("group_clients::a_group_of_another_mount_is_refused", || {
        on_ordered_mount(|one| {
            on_ordered_mount(|other| {
                let [first, second] = [(); 2].map(|()| Group::new(one.dir()).unwrap());
                let foreign = Group::new(other.dir()).unwrap();
                assert_eq!(foreign.number().unwrap(), first.number().unwrap());
                let error = second.depend(&foreign).unwrap_err();
                assert_eq!(error.raw_os_error(), Some(Errno::BADF.raw_os_error()));
                // It sealed no group of the same number.
                drop(first.engage().unwrap());
            });
        });
    });
}
