//! Images and mounts that clean up after themselves.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Every engine in whose mounts files can be made.
pub(crate) const ENGINES: [&str; 5] = ["bpfs", "soupfs", "pxfs", "ext2", "model"];

/// Long enough for anything that is going to happen at all.
const PATIENCE: Duration = Duration::from_secs(60);

/// The program, ready for arguments.
pub(crate) fn selvedge() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_selvedge"));
    command.stdin(Stdio::null());
    command
}

/// Runs the program and returns what it said; panics unless it exits with `code`.
pub(crate) fn run(code: i32, args: &[&str]) -> Output {
    finish(code, selvedge().args(args))
}

/// As [`run`], for a command that is set up already.
pub(crate) fn finish(code: i32, command: &mut Command) -> Output {
    let output = command.output().expect("the program starts");
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{command:?}: {said}");
    output
}

/// The standard output of a command.
pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The standard error of a command.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Waits for `done`; panics if it does not come.
pub(crate) fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Runs a test, named by its path, in a process of its own. A child that another test makes has all
/// open files of this process until it runs its program, and the patchgroups that it has engaged.
pub(crate) fn alone(name: &str, test: impl FnOnce()) {
    const ALONE: &str = "SELVEDGE_TEST_ALONE";
    if env::var_os(ALONE).is_some() {
        return test();
    }
    let mut own = Command::new(env::current_exe().unwrap());
    // Without capture the reason of a failure is on standard error.
    let own = own.args(["--exact", "--nocapture", name]).env(ALONE, "1");
    let output = finish(0, own);
    assert!(
        stdout(&output).contains("1 passed"),
        "there is no test {name}"
    );
}

/// A directory with an image and a mount point in it.
pub(crate) struct Fixture {
    scratch: TempDir,
}

impl Fixture {
    /// An empty one.
    pub(crate) fn new() -> Self {
        let place = Self {
            scratch: tempfile::tempdir().expect("a temporary directory"),
        };
        std::fs::create_dir(place.dir()).expect("a mount point");
        // Other users must get at the mount point.
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(place.scratch.path(), everybody).expect("chmod");
        place
    }

    /// One with a BPFS image.
    pub(crate) fn with_image() -> Self {
        let place = Self::new();
        run(0, &["mkfs", "--size", "64M", place.image_str()]);
        place
    }

    /// A path in the directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Where the image is, or will be.
    pub(crate) fn image(&self) -> PathBuf {
        self.path("image")
    }

    /// The same, as an argument. Leaks a few bytes, for shorter tests.
    pub(crate) fn image_str(&self) -> &'static str {
        self.image()
            .to_str()
            .expect("a plain path")
            .to_owned()
            .leak()
    }

    /// The mount point.
    pub(crate) fn dir(&self) -> PathBuf {
        self.path("mnt")
    }

    /// The same, as an argument.
    pub(crate) fn dir_str(&self) -> &'static str {
        self.dir().to_str().expect("a plain path").to_owned().leak()
    }

    /// Mounts the image, with further arguments.
    pub(crate) fn mount(&self, args: &[&str]) {
        let first = ["mount", self.image_str(), self.dir_str()];
        run(0, &[&first, args].concat());
    }

    /// Starts a server in the foreground and waits until it is mounted. The file system is
    /// open when the first call has an answer.
    pub(crate) fn serve(&self, args: &[&str]) -> Server {
        let server = Server {
            child: selvedge()
                .args(["mount", "--foreground", self.image_str(), self.dir_str()])
                .args(args)
                .stdout(Stdio::piped())
                .spawn()
                .expect("the server starts"),
        };
        wait_for("the mount", || self.is_mounted());
        server
    }

    /// Unmounts, and waits until the image is free. A process that another test starts
    /// holds our files until it runs its program, so the mount may be busy for a moment.
    pub(crate) fn umount(&self) {
        let mut elsewhere = false;
        wait_for("the unmount", || {
            let output = selvedge().args(["umount", self.dir_str()]).output();
            let output = output.expect("the program starts");
            let busy = stderr(&output).contains("busy");
            assert!(busy || output.status.success(), "{}", stderr(&output));
            // A mount namespace that another test makes has our mount for a moment.
            elsewhere = stdout(&output).contains("is still");
            !busy
        });
        if elsewhere {
            let image = fs::File::open(self.image()).expect("the image");
            wait_for("the end of the server", || image.try_lock().is_ok());
        }
    }

    /// Whether something is mounted on the mount point.
    pub(crate) fn is_mounted(&self) -> bool {
        let table = std::fs::read_to_string("/proc/self/mountinfo").expect("the mount table");
        let dir = self.dir_str();
        table.lines().any(|l| l.split(' ').nth(4) == Some(dir))
    }

    /// The checker must find nothing.
    pub(crate) fn fsck(&self) {
        run(0, &["fsck", "-n", self.image_str()]);
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        while self.is_mounted() {
            let lazy = selvedge()
                .args(["umount", "--lazy", self.dir_str()])
                .status();
            if !lazy.is_ok_and(|s| s.success()) {
                break;
            }
        }
    }
}

/// A server in the foreground; killed when dropped.
pub(crate) struct Server {
    child: Child,
}

impl Server {
    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args(["-s", name, &self.pid().to_string()])
            .status();
        assert!(status.expect("kill").success());
    }

    /// Stops it until the result is dropped. Users of its mount wait meanwhile.
    pub(crate) fn pause(&self) -> Paused<'_> {
        self.signal("STOP");
        Paused(self)
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("wait").is_some()
    }

    /// Waits for its end; returns its exit code, if it has one.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        let mut status = None;
        wait_for("the end of the server", || {
            status = self.child.try_wait().expect("wait");
            status.is_some()
        });
        status.and_then(|s| s.code())
    }
}

/// A server that is stopped.
pub(crate) struct Paused<'a>(&'a Server);

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.0.signal("CONT");
    }
}

impl From<Child> for Server {
    fn from(child: Child) -> Self {
        Self { child }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a test on a fresh mount of every engine, for all users; then the checker.
pub(crate) fn on_each_engine(test: impl Fn(&Path)) {
    on_engines(&ENGINES, test);
}

/// As [`on_each_engine`], on some of them.
pub(crate) fn on_engines(engines: &[&str], test: impl Fn(&Path)) {
    on_mounts(engines, "allow_other", test);
}

/// As [`on_engines`], with these mount options.
pub(crate) fn on_mounts(engines: &[&str], options: &str, test: impl Fn(&Path)) {
    for &engine in engines {
        let place = Fixture::with_image();
        let again = ["mkfs", "--force", "--type", engine, place.image_str()];
        match engine {
            // Of these blocks the largest files are as large as the tests want.
            "ext2" => drop(run(0, &[&again[..], &["--block-size", "4096"]].concat())),
            "soupfs" | "pxfs" => drop(run(0, &again)),
            _ => {}
        }
        place.mount(&["--type", engine, "-o", options]);
        if engine == "ext2" {
            fs::remove_dir(place.dir().join("lost+found")).expect("it is empty");
        }
        test(&place.dir());
        place.umount();
        place.fsck();
    }
}
