//! A FUSE server in a process of its own, on a mount point of its own.

use crate::Engine;
use crate::detached::{is_installed, run};
use crate::error::{Context, Error, Result};
use medium::Reserve;
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The longest time in which a server mounts, or ends.
const PATIENCE: Duration = Duration::from_secs(20);

/// Directory of the example sources in Debian's libfuse3-dev.
const EXAMPLES: &str = "/usr/share/doc/libfuse3-dev/examples";

/// The features that libfuse's build finds on Linux and its examples need.
const FEATURES: [&str; 6] = [
    "UTIMENSAT",
    "SETXATTR",
    "POSIX_FALLOCATE",
    "FDATASYNC",
    "FSTATAT",
    "COPY_FILE_RANGE",
];

/// The served file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Served {
    /// One of our engines.
    Engine(Engine),
    /// libfuse's example, over a directory on tmpfs: `passthrough` or `passthrough_ll`.
    Passthrough(&'static str),
}

impl Served {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Engine(engine) => engine.to_string(),
            Self::Passthrough(example) => example.into(),
        }
    }
}

/// A mounted file system. Dropping it unmounts and ends the server.
pub(crate) struct Server {
    child: Child,
    mount_point: PathBuf,
    /// The directory to work in: below the mount point.
    pub dir: PathBuf,
}

impl Server {
    /// Mounts below `scratch`, a directory on tmpfs, with an image of this size. The server
    /// inherits the CPUs of this thread.
    pub(crate) fn start(
        served: Served,
        program: &Path,
        scratch: &Path,
        image_bytes: u64,
    ) -> Result<Self> {
        let name = served.name().replace(':', "-");
        let mount_point = scratch.join(format!("{name}.mount"));
        fs::create_dir_all(&mount_point).what(|| "making a mount point".into())?;
        let mut dir = mount_point.clone();
        let mut command = match served {
            Served::Engine(engine) => {
                let mut command = Command::new(program);
                command.args(["mount", "--foreground", "--type", engine.name()]);
                if let Some(mode) = engine.mode() {
                    command.arg("-o").arg(format!("mode={mode}"));
                }
                if engine.has_medium() {
                    let image = scratch.join(format!("{name}.image"));
                    format(program, engine, &image, image_bytes)?;
                    command.arg(image);
                } else {
                    command.arg("none");
                }
                command
            }
            Served::Passthrough(example) => {
                let below = scratch.join(format!("{name}.below"));
                fs::create_dir_all(&below).what(|| "making a directory".into())?;
                let mut command = Command::new(compiled(example, scratch)?);
                command.arg("-f");
                if example == "passthrough_ll" {
                    command.arg("-o").arg(format!("source={}", below.display()));
                } else if let Ok(below) = below.strip_prefix("/") {
                    // It shows the whole tree from the root on.
                    dir = mount_point.join(below);
                }
                command
            }
        };
        let mut server = Self::of(command.arg(&mount_point), &name, &mount_point)?;
        server.dir = dir;
        Ok(server)
    }

    /// Runs a server that mounts on `dir` and stays in the foreground.
    pub(crate) fn of(command: &mut Command, name: &str, dir: &Path) -> Result<Self> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let child = command.spawn().what(|| format!("starting {name}"))?;
        let mut server = Self {
            child,
            mount_point: dir.to_owned(),
            dir: dir.to_owned(),
        };
        server.wait_until_mounted(name)?;
        Ok(server)
    }

    /// The mount point becomes another device.
    fn wait_until_mounted(&mut self, name: &str) -> Result<()> {
        let failed = |why: String| Error::Program {
            program: name.to_owned(),
            why,
        };
        let device = |path: &Path| fs::metadata(path).map(|m| m.dev()).ok();
        let below = self.mount_point.parent().and_then(device);
        let start = Instant::now();
        while device(&self.mount_point).is_none_or(|dev| Some(dev) == below) {
            if let Ok(Some(status)) = self.child.try_wait() {
                let mut message = String::new();
                if let Some(stderr) = &mut self.child.stderr {
                    // Without a message the status must do.
                    let _ = stderr.read_to_string(&mut message);
                }
                let first = message.lines().next().unwrap_or_default();
                return Err(failed(format!("{status}: {first}")));
            }
            if start.elapsed() > PATIENCE {
                return Err(failed("does not mount".into()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Makes all changes durable. FUSE does not pass syncfs(2) on to a server.
    pub(crate) fn sync(&self) -> Result<()> {
        let mut said = [0; fuse::SYNCED.len()];
        let asked = rustix::fs::getxattr(&self.dir, fuse::SYNC_XATTR, &mut said[..]);
        asked.map(drop).what(|| "sync of a mount".into())
    }

    /// CPU time that the server has used, in user mode and in the kernel, in seconds.
    pub(crate) fn cpu_seconds(&self) -> (f64, f64) {
        let path = format!("/proc/{}/stat", self.child.id());
        let stat = fs::read_to_string(path).unwrap_or_default();
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let (user, system) = cpu_ticks(&stat).unwrap_or_default();
        (user as f64 / ticks, system as f64 / ticks)
    }
}

/// utime and stime of `/proc/PID/stat`: fields 14 and 15. The second field, the program's
/// name, may hold anything, and ends at the last parenthesis.
fn cpu_ticks(stat: &str) -> Option<(u64, u64)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

impl Drop for Server {
    fn drop(&mut self) {
        // Best effort on all sides: what fails here has been measured already.
        let unmount = |program: &str, args: &[&str]| {
            run(Command::new(program).args(args).arg(&self.mount_point)).is_ok()
        };
        let _ = unmount("umount", &[])
            || unmount("fusermount3", &["-u"])
            || unmount("umount", &["--lazy"]);
        let start = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if start.elapsed() > PATIENCE {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Makes a fresh file system, its file preallocated: a device's pages are there, too.
fn format(program: &Path, engine: Engine, image: &Path, bytes: u64) -> Result<()> {
    medium::create_file(image, bytes, Reserve::Whole).what(|| "making an image".into())?;
    run(Command::new(program)
        .args(["mkfs", "--type", engine.name(), "--force"])
        .arg(image))
}

/// Whether libfuse's examples can be compiled here.
pub(crate) fn can_compile_examples() -> bool {
    Path::new(EXAMPLES).join("passthrough_ll.c").is_file()
        && is_installed("cc")
        && is_installed("pkg-config")
}

/// Compiles one of libfuse's examples, once.
fn compiled(example: &str, scratch: &Path) -> Result<PathBuf> {
    let program = scratch.join(example);
    if program.is_file() {
        return Ok(program);
    }
    let flags = Command::new("pkg-config")
        .args(["--cflags", "--libs", "fuse3"])
        .output()
        .what(|| "pkg-config".into())?;
    let flags = String::from_utf8_lossy(&flags.stdout).into_owned();
    let source = Path::new(EXAMPLES).join(format!("{example}.c"));
    run(Command::new("cc")
        .args(["-O2", "-w"])
        .args(FEATURES.map(|feature| format!("-DHAVE_{feature}")))
        .arg("-o")
        .args([&program, &source])
        .args(flags.split_whitespace()))?;
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_found_after_any_name() {
        let stat = "17 (a ) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15";
        assert_eq!(cpu_ticks(stat), Some((11, 12)));
        assert_eq!(cpu_ticks("17 (x) S"), None);
        assert_eq!(cpu_ticks(""), None);
    }

    #[test]
    fn the_error_of_an_ended_server_has_its_exit_status() {
        let scratch = tempfile::tempdir().unwrap();
        let model = Served::Engine(Engine::baseline());
        let error = Server::start(model, Path::new("/bin/false"), scratch.path(), 1 << 20)
            .err()
            .unwrap();
        assert!(error.to_string().contains("exit status"), "{error}");
    }
}
