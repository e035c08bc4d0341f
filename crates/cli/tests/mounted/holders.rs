//! Images that somebody else uses: the kernel, by a loop device, or a process, by a lock.
//! Needs loop devices, and fails without.

use crate::fixture::{Fixture, Server, finish, run, selvedge, stderr, stdout, wait_for};
use rustix::fs::{major, minor};
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A loop device over the image of a place. Detached when dropped.
struct Loop {
    device: PathBuf,
    mounted: Option<PathBuf>,
}

impl Loop {
    fn over(place: &Fixture) -> Self {
        let mut losetup = Command::new("losetup");
        losetup.args(["--find", "--show"]).arg(place.image());
        let device = stdout(&finish(0, &mut losetup));
        Self {
            device: device.trim_end().into(),
            mounted: None,
        }
    }

    /// Has the kernel mount it.
    fn mount(&mut self, dir: PathBuf) {
        fs::create_dir(&dir).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["--internal-only", "--types", "ext2"]);
        finish(0, mount.arg(&self.device).arg(&dir));
        self.mounted = Some(dir);
    }

    fn name(&self) -> &str {
        self.device.to_str().unwrap()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Some(dir) = &self.mounted {
            let _ = Command::new("umount").arg(dir).status();
        }
        let _ = Command::new("losetup")
            .arg("--detach")
            .arg(&self.device)
            .status();
    }
}

fn ext2() -> Fixture {
    let place = Fixture::new();
    let image = place.image_str();
    run(0, &["mkfs", "--type", "ext2", "--size", "16M", image]);
    place
}

/// Exits with `code`, says all of `words`, and changes nothing.
fn refused(place: &Fixture, code: i32, args: &[&str], words: &[&str]) {
    let before = fs::read(place.image()).unwrap();
    let said = stderr(&run(code, args));
    for word in words {
        assert!(said.contains(word), "{args:?}: {word}: {said}");
    }
    assert!(before == fs::read(place.image()).unwrap(), "{args:?}");
}

#[test]
fn an_image_under_a_loop_device_is_not_written() {
    let (place, bpfs) = (ext2(), Fixture::with_image());
    for place in [&place, &bpfs] {
        let image = place.image_str();
        let shown = Loop::over(place);
        let way_out = format!("losetup -d {}", shown.name());
        refused(place, 32, &["mount", image, place.dir_str()], &[&way_out]);
        refused(place, 1, &["mkfs", image], &[&way_out]);
        refused(place, 1, &["mkfs", "-t", "ext2", image], &[&way_out]);
        // While nobody writes to it, reading does no harm.
        place.fsck();
        run(0, &["info", image]);
        place.mount(&["-o", "ro"]);
        place.umount();
    }
    let (image, dir) = (place.image_str(), place.dir_str());
    let mut shown = Loop::over(&place);
    shown.mount(place.path("kernel"));
    let place_of_it = place.path("kernel");
    let words = [shown.name(), place_of_it.to_str().unwrap()];
    refused(&place, 32, &["mount", image, dir], &words);
    refused(&place, 32, &["mount", image, dir, "-o", "ro"], &words);
    refused(&place, 1, &["mkfs", "--force", image], &words);
    refused(
        &place,
        1,
        &["mkfs", "--force", "--size", "8M", image],
        &words,
    );
    refused(&place, 8, &["fsck", image], &words);
    refused(&place, 1, &["mkfs", "--force", shown.name()], &words[1..]);
    drop(shown);
    place.mount(&[]);
    place.umount();
}

#[test]
fn mkfs_with_force_overwrites_an_image_under_an_idle_loop_device() {
    let place = ext2();
    let _shown = Loop::over(&place);
    let image = place.image_str();
    run(0, &["mkfs", "--force", image]);
    run(0, &["mkfs", "--force", "-t", "ext2", image]);
    place.fsck();
}

#[test]
fn a_loop_device_over_an_image_that_a_server_has_is_refused() {
    for place in [ext2(), Fixture::with_image()] {
        let server = place.serve(&[]);
        let other = place.path("other");
        fs::create_dir(&other).unwrap();
        let other = other.to_str().unwrap();
        let shown = Loop::over(&place);
        let holder = format!("in use by process {}", server.pid());
        for (code, args) in [
            (32, &["mount", shown.name(), other][..]),
            (32, &["mount", shown.name(), other, "-o", "ro"]),
            (1, &["mkfs", "--force", shown.name()]),
            (1, &["mkfs", "--force", "-t", "ext2", shown.name()]),
            (8, &["fsck", shown.name()]),
        ] {
            let said = stderr(&run(code, args));
            assert!(said.contains(&holder), "{args:?}: {said}");
        }
        place.umount();
        // The other way round: the device is the image, and its file is taken.
        finish(0, selvedge().args(["mount", shown.name(), place.dir_str()]));
        let said = stderr(&run(32, &["mount", place.image_str(), other]));
        assert!(said.contains("(selvedge)"), "{said}");
        place.umount();
        place.fsck();
    }
}

#[test]
fn a_pipe_is_not_an_image() {
    let place = Fixture::new();
    finish(0, Command::new("mkfifo").arg(place.image()));
    for args in [
        &["mount", place.image_str(), place.dir_str()][..],
        &["mkfs", place.image_str()],
        &["fsck", place.image_str()],
        &["info", place.image_str()],
    ] {
        let refused = selvedge().args(args).output().unwrap();
        assert!(!refused.status.success());
        assert!(stderr(&refused).contains("is a pipe"), "{refused:?}");
    }
}

/// A process of another user that locks the image, which it may only read.
fn locker(place: &Fixture, how: &str) -> Server {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.args(["flock", "--no-fork", how]).arg(place.image());
    locks(command.args(["sh", "-c", "echo; exec sleep 600"]))
}

/// Starts a process that writes a line when it has its lock.
fn locks(command: &mut Command) -> Server {
    let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut process = started.unwrap();
    let said = process.stdout.take().unwrap().read(&mut [0]).unwrap();
    assert_eq!(said, 1, "{command:?} has no lock");
    process.into()
}

fn other_dir(place: &Fixture) -> &'static str {
    let other = place.path("other");
    fs::create_dir(&other).unwrap();
    other.to_str().unwrap().to_owned().leak()
}

#[test]
fn a_reader_without_rights_does_not_stop_the_super_user() {
    for place in [ext2(), Fixture::with_image()] {
        let _reader = locker(&place, "--shared");
        let server = place.serve(&[]);
        fs::write(place.dir().join("file"), "text").unwrap();
        // The lock that the two share keeps others out.
        let (image, other) = (place.image_str(), other_dir(&place));
        let holder = format!("in use by process {}", server.pid());
        for (code, args) in [
            (32, &["mount", image, other][..]),
            (32, &["mount", image, other, "-o", "ro"]),
            (1, &["mkfs", "--force", image]),
            (8, &["fsck", image]),
        ] {
            let said = stderr(&run(code, args));
            assert!(said.contains(&holder), "{args:?}: {said}");
        }
        place.umount();
        place.fsck();
    }
}

#[test]
fn umount_returns_after_the_end_of_the_server() {
    for place in [ext2(), Fixture::with_image()] {
        let mut server = place.serve(&["-o", "fsname=name"]);
        fs::write(place.dir().join("file"), vec![1; 8 << 20]).unwrap();
        place.umount();
        assert!(server.has_ended());
        place.fsck();
    }
}

#[test]
fn umount_does_not_wait_for_locks_of_others() {
    let place = Fixture::with_image();
    let other = place.path("other");
    fs::write(&other, "").unwrap();
    let mut flock = Command::new("flock");
    let script = ["sh", "-c", "echo; exec sleep 600"];
    flock
        .args(["--no-fork", "--exclusive"])
        .arg(&other)
        .args(script);
    let _locked = locks(&mut flock);
    let source = format!("fsname={}", other.display());
    place.mount(&["-o", &source]);
    // This one gets its lock when the server ends.
    let mut flock = Command::new("flock");
    flock.args(["--no-fork", "--exclusive"]).arg(place.image());
    let next = flock.args(["sleep", "600"]).spawn().unwrap();
    let next = Server::from(next);
    let waits = format!("-> FLOCK  ADVISORY  WRITE {} ", next.pid());
    wait_for("the lock's queue", || {
        fs::read_to_string("/proc/locks").unwrap().contains(&waits)
    });
    place.umount();
}

/// Runs the program beside a shell of which `/proc` shows descriptor 9 as `fdinfo`.
const BESIDE_A_LIAR: &str = r#"mount --bind "$1" /proc/$$/fdinfo; shift; "$@"; exit $?"#;

#[test]
fn processes_are_searched_only_if_somebody_has_a_lock() {
    let place = Fixture::with_image();
    let (stat, liar) = (fs::metadata(place.image()).unwrap(), place.path("liar"));
    let (dev, ino) = (stat.dev(), stat.ino());
    let id = format!("{:02x}:{:02x}:{ino}", major(dev), minor(dev));
    fs::create_dir(&liar).unwrap();
    let lock = format!("flags:\t02\nlock:\t1: FLOCK ADVISORY READ 1 {id} 0 EOF\n");
    fs::write(liar.join("9"), lock).unwrap();
    let beside = |code, args: &[&str]| {
        let mut shell = Command::new("unshare");
        shell.args(["--mount", "sh", "-c", BESIDE_A_LIAR, "sh"]);
        let program = env!("CARGO_BIN_EXE_selvedge");
        finish(code, shell.arg(&liar).arg(program).args(args))
    };
    let image = place.image_str();
    beside(0, &["info", image]);
    beside(0, &["fsck", "-n", image]);
    // The test can show something: with a lock, the shell is taken for a writer.
    let _reader = locker(&place, "--shared");
    let said = stderr(&beside(1, &["info", image]));
    assert!(said.contains("(sh)"), "{said}");
}

#[test]
fn errors_name_the_process_that_locks_an_image() {
    let place = Fixture::with_image();
    let mount = |expected: &str| {
        let said = stderr(&run(32, &["mount", place.image_str(), place.dir_str()]));
        assert!(said.contains(expected), "{expected}: {said}");
    };
    let writer = locker(&place, "--exclusive");
    mount(&format!("in use by process {} (sleep)", writer.pid()));
    drop(writer);
    // The lock outlives the process that took it.
    let mut shell = Command::new("sh");
    let script = "exec 9<\"$0\"; flock --shared 9; echo; exec sleep 600";
    let holder = locks(shell.args(["-c", script]).arg(place.image()));
    mount(&format!("in use by process {} (sleep)", holder.pid()));
    // So do the readers of the super-user, whose mounts are not changed underneath.
    drop(holder);
    let reader = place.serve(&["-o", "ro"]);
    let other = other_dir(&place);
    let said = stderr(&run(32, &["mount", place.image_str(), other]));
    let expected = format!("in use by process {} (selvedge)", reader.pid());
    assert!(said.contains(&expected), "{said}");
}
