//! Services of images, and mounts of their clients.

use crate::fixture::{Fixture, Server, finish, run, selvedge, stderr, stdout, wait_for};
use crate::run::library;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::thread;

/// An image of PXFS and its service.
pub(crate) fn served(args: &[&str]) -> (Fixture, Server) {
    let place = Fixture::new();
    run(
        0,
        &["mkfs", "--type", "pxfs", "--size", "64M", place.image_str()],
    );
    let server = serve(&place, args);
    (place, server)
}

pub(crate) fn socket(place: &Fixture) -> &'static str {
    place.path("socket").to_str().unwrap().to_owned().leak()
}

pub(crate) fn serve(place: &Fixture, args: &[&str]) -> Server {
    let mut command = selvedge();
    command.args(["serve", place.image_str(), "--socket", socket(place)]);
    let child = command.args(args).stdout(Stdio::null()).spawn().unwrap();
    // A server that was killed has left its socket.
    wait_for("the socket", || UnixStream::connect(socket(place)).is_ok());
    child.into()
}

/// Ends the service in good order.
pub(crate) fn end(place: &Fixture, mut server: Server) {
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    assert!(!place.path("socket").exists());
    place.fsck();
}

/// The lookup of each finds no name, and one of them makes it.
#[test]
fn two_mounts_that_open_a_new_file_at_once_get_the_same() {
    let (place, server) = served(&[]);
    let second = Fixture::new();
    run(0, &["mount", socket(&place), place.dir_str()]);
    run(0, &["mount", socket(&place), second.dir_str()]);
    let start = Barrier::new(2);
    thread::scope(|scope| {
        for dir in [place.dir(), second.dir()] {
            let start = &start;
            scope.spawn(move || {
                for i in 0..200 {
                    start.wait();
                    let mut file = File::options();
                    let file = file.append(true).create(true).open(dir.join(i.to_string()));
                    file.unwrap().write_all(b"line\n").unwrap();
                }
            });
        }
    });
    for i in 0..200 {
        let lines = fs::read(place.dir().join(i.to_string())).unwrap();
        assert_eq!(lines, b"line\nline\n");
    }
    place.umount();
    second.umount();
    end(&place, server);
}

#[test]
fn two_mounts_of_a_service_see_each_others_changes_at_once() {
    let (place, server) = served(&[]);
    let second = Fixture::new();
    run(0, &["mount", socket(&place), place.dir_str()]);
    run(0, &["mount", socket(&place), second.dir_str()]);
    for i in 0..20 {
        let (here, there) = match i % 2 {
            0 => (place.dir(), second.dir()),
            _ => (second.dir(), place.dir()),
        };
        let name = i.to_string();
        assert!(!there.join(&name).exists());
        fs::write(here.join(&name), &name).unwrap();
        assert_eq!(fs::read_to_string(there.join(&name)).unwrap(), name);
        fs::write(there.join(&name), "longer than before").unwrap();
        assert_eq!(fs::metadata(here.join(&name)).unwrap().size(), 18);
        fs::rename(here.join(&name), there.join("moved")).unwrap_err(); // two file systems
        fs::rename(here.join(&name), here.join("moved")).unwrap();
        assert_eq!(
            fs::read_to_string(there.join("moved")).unwrap(),
            "longer than before"
        );
        fs::remove_file(there.join("moved")).unwrap();
        assert_eq!(fs::read_dir(here).unwrap().count(), 0);
    }
    fs::write(place.dir().join("kept"), "text").unwrap();
    place.umount();
    second.umount();
    end(&place, server);
    place.mount(&["-o", "ro"]);
    assert_eq!(
        fs::read_to_string(place.dir().join("kept")).unwrap(),
        "text"
    );
}

#[test]
fn a_service_that_was_killed_starts_again() {
    let (place, mut server) = served(&[]);
    run(0, &["mount", socket(&place), place.dir_str()]);
    fs::write(place.dir().join("synced"), "text").unwrap();
    fs::File::open(place.dir().join("synced"))
        .unwrap()
        .sync_all()
        .unwrap();
    server.signal("KILL");
    server.wait();
    // The calls of the client fail, and nothing hangs.
    assert!(
        fs::write(place.dir().join("late"), "").is_err()
            || fs::File::open(place.dir())
                .and_then(|dir| dir.sync_all())
                .is_err()
    );
    let mut command = selvedge();
    command.args(["run", "--store", socket(&place), "--at", place.dir_str()]);
    command.arg("--library").arg(library()).args(["--", "true"]);
    let refused = command.output().unwrap();
    assert!(stderr(&refused).contains("unmount it first"), "{refused:?}");
    run(0, &["umount", "--lazy", place.dir_str()]);
    let server = serve(&place, &["--lease", "1"]);
    let again = Fixture::new();
    run(0, &["mount", socket(&place), again.dir_str()]);
    assert_eq!(
        fs::read_to_string(again.dir().join("synced")).unwrap(),
        "text"
    );
    again.umount();
    end(&place, server);
}

#[test]
fn what_cannot_be_served_is_refused() {
    let (place, server) = served(&[]);
    let refused = selvedge()
        .args(["serve", place.image_str(), "--socket", "other"])
        .output()
        .unwrap();
    assert!(
        !refused.status.success() && stderr(&refused).contains("in use"),
        "{refused:?}"
    );
    let mount = selvedge()
        .args(["mount", place.image_str(), place.dir_str()])
        .output()
        .unwrap();
    assert!(
        stderr(&mount).contains("in use"),
        "{}{}",
        stdout(&mount),
        stderr(&mount)
    );
    end(&place, server);
    let bpfs = Fixture::with_image();
    let refused = run(1, &["serve", bpfs.image_str(), "--socket", socket(&bpfs)]);
    assert!(stderr(&refused).contains("bpfs"), "{}", stderr(&refused));
}

/// A directory in place of an image.
#[test]
fn a_protected_store_is_served_and_checked() {
    let place = Fixture::new();
    let store = place.image_str();
    let make = ["mkfs", "--type", "pxfs", "--protect", store];
    let refused = run(1, &make);
    assert!(stderr(&refused).contains("--size"), "{}", stderr(&refused));
    let made = run(0, &[&make[..], &["--size", "16M"]].concat());
    assert!(stdout(&made).contains("protected"), "{}", stdout(&made));
    run(1, &[&make[..], &["--size", "16M"]].concat());
    let info = run(0, &["info", store]);
    assert!(stdout(&info).contains("pxfs"), "{}", stdout(&info));
    let refused = run(32, &["mount", store, place.dir_str()]);
    assert!(stderr(&refused).contains("serve"), "{}", stderr(&refused));
    let server = serve(&place, &[]);
    run(0, &["mount", socket(&place), place.dir_str()]);
    fs::write(place.dir().join("file"), "text").unwrap();
    assert!(stderr(&run(8, &["fsck", store])).contains("in use"));
    place.umount();
    end(&place, server);
    let server = serve(&place, &[]);
    run(0, &["mount", socket(&place), place.dir_str()]);
    let kept = fs::read_to_string(place.dir().join("file"));
    assert_eq!(kept.unwrap(), "text");
    place.umount();
    end(&place, server);
}

#[test]
fn the_unit_of_systemd_is_valid() {
    let Ok(version) = Command::new("systemd-analyze").arg("--version").output() else {
        return skip::test("systemd-analyze is not installed");
    };
    assert!(version.status.success());
    let units = tempfile::tempdir().unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_selvedge"));
    let mut make = Command::new("make");
    make.args(["-C", concat!(env!("CARGO_MANIFEST_DIR"), "/../..")]);
    make.args(["--no-print-directory", "install-unit"]);
    make.arg(format!("UNITDIR={}", units.path().display()));
    make.arg(format!("BINDIR={}", program.parent().unwrap().display()));
    finish(0, &mut make);
    let unit = units.path().join("selvedge-serve@.service");
    let mut verify = Command::new("systemd-analyze");
    // An unknown directive is a warning.
    let output = finish(0, verify.args(["verify", "--man=no"]).arg(unit));
    assert_eq!(stderr(&output), "");
}

/// The service drops the bits as the kernel of the mount has asked.
#[test]
fn a_write_through_a_client_drops_set_id_bits() {
    let (place, server) = served(&[]);
    run(
        0,
        &[
            "mount",
            "-o",
            "allow_other",
            socket(&place),
            place.dir_str(),
        ],
    );
    let file = place.dir().join("program");
    fs::write(&file, "text").unwrap();
    let mode = |bits| std::os::unix::fs::PermissionsExt::from_mode(bits);
    fs::set_permissions(&file, mode(0o6777)).unwrap();
    let write = "echo more >>\"$1\"";
    let mut user = Command::new("setpriv");
    user.args(["--reuid", "1000", "--regid", "1000", "--clear-groups"]);
    finish(0, user.args(["sh", "-c", write, "sh"]).arg(&file));
    run(0, &["sync", place.dir_str()]);
    place.umount();
    end(&place, server);
    place.mount(&["-o", "ro"]);
    let found = fs::metadata(&file).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&found) & 0o7777, 0o777);
}
