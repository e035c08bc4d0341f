//! `selvedge crash record`: records what a program does.

use crate::commands::umount;
use crate::failure::{Failure, Outcome};
use crate::mount::table;
use crate::output::{self, count};
use crate::types::Type;
use engine::values::listed;
use runs::{OUTPUT_NAME, Run};
use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Longest time that a mount may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Record what a program does to its files, for `crash explore`
///
/// Mounts a new file system, and runs the program in it. The working directory of the program is
/// the mount; in its arguments, {dir} stands for that directory. All of its children are recorded,
/// too. Its standard output is part of the run.
///
/// The exit status is that of the program.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The new directory for the run
    #[arg(long, short = 'o', value_name = "RUN")]
    out: PathBuf,
    /// The type of the file system under the recording. The run can be explored on all others
    #[arg(
        long = "type",
        short = 't',
        value_name = "TYPE",
        default_value = engines::default().name(),
        value_parser = listed::<Type>(engines::all().iter().map(|e| e.name()))
    )]
    fs_type: Type,
    /// Its mode
    #[arg(long, value_name = "MODE")]
    mode: Option<String>,
    /// Its size
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    size: String,
    /// Use this image, with all that it contains, and not a new one
    #[arg(long, value_name = "PATH", conflicts_with = "size")]
    image: Option<PathBuf>,
    /// Mount here, and not on a directory for temporary files; with --strace: the directory with
    /// the files of the program
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Mount nothing, and trace the program by strace(1) on the file system that it uses
    ///
    /// Without --dir it runs in a new, empty directory. The report names effects that a trace cannot
    /// show, such as stores to shared mappings.
    #[arg(long, conflicts_with_all = ["fs_type", "mode", "size", "image"])]
    strace: bool,
    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Args {
    pub(super) fn run(&self) -> Outcome {
        let scratch = scratch()?;
        if self.strace {
            return self.trace(scratch.path());
        }
        let image = self.image(scratch.path())?;
        let dir = match &self.dir {
            Some(dir) => dir.clone(),
            None => {
                let dir = scratch.path().join("mnt");
                std::fs::create_dir(&dir).map_err(|e| Failure::about(&dir, e))?;
                dir
            }
        };
        let dir = dir.canonicalize().map_err(|e| Failure::about(&dir, e))?;
        let server = self.mount(&image, &dir)?;
        let ended = self.run_in(&dir);
        unmount(&dir, server)?;
        let ended = ended?;
        let words: Vec<_> = self
            .command
            .iter()
            .map(|word| word.to_string_lossy())
            .collect();
        Run::describe(&self.out, &words.join(" ")).map_err(Failure::new)?;
        let run = Run::load(&self.out).map_err(Failure::new)?;
        self.conclude(&run);
        Ok(code_of(ended))
    }

    /// Prints the result. Standard output is the program's.
    fn conclude(&self, run: &Run) {
        let calls = (run.entries.len() - run.header.setup) as u64;
        let (out, calls) = (self.out.display(), count(calls, "call"));
        output::complain(&Failure::new(format_args!("{out}: {calls} recorded")));
        for unseen in &run.header.unseen {
            output::complain(&Failure::new(format_args!("{out}: not seen: {unseen}")));
        }
    }

    /// Records by strace.
    fn trace(&self, scratch: &Path) -> Outcome {
        let dir = self.dir.clone().unwrap_or_else(|| scratch.join("files"));
        std::fs::create_dir_all(&dir).map_err(|e| Failure::about(&dir, e))?;
        let words = self.command.iter().map(|word| with_dir(word, &dir));
        let command: Vec<OsString> = words.collect();
        let recorded = runs::strace::record_with(&command, &dir, &self.out, &mut |strace| {
            strace.current_dir(&dir);
        });
        let (run, ended) = recorded.map_err(Failure::new)?;
        self.conclude(&run);
        Ok(code_of(ended))
    }

    /// The image to mount; a new one unless one is named.
    fn image(&self, scratch: &Path) -> Result<PathBuf, Failure> {
        if let Some(image) = &self.image {
            return Ok(image.clone());
        }
        let image = scratch.join("image");
        if !self.fs_type.uses_image() {
            return Ok("none".into());
        }
        let mut mkfs = ourselves()?;
        mkfs.arg("mkfs")
            .args(["--type", &format!("{:?}", self.fs_type)]);
        mkfs.args(["--size", &self.size]).arg(&image);
        let made = mkfs.stdout(Stdio::null()).status().map_err(Failure::new)?;
        match made.success() {
            true => Ok(image),
            false => Err(Failure::new(
                "the file system for the recording was not made",
            )),
        }
    }

    fn mount(&self, image: &Path, dir: &Path) -> Result<Child, Failure> {
        let mut mount = ourselves()?;
        mount.args([
            "mount",
            "--foreground",
            "--quiet",
            "--record-output",
            "--record",
        ]);
        mount.arg(&self.out);
        mount.args(["--type", &format!("{:?}", self.fs_type)]);
        if let Some(mode) = &self.mode {
            mount.args(["-o", &format!("mode={mode}")]);
        }
        let mut server = mount.arg(image).arg(dir).spawn().map_err(Failure::new)?;
        let begun = Instant::now();
        while !is_served(dir) {
            if server.try_wait().map_err(Failure::new)?.is_some() {
                return Err(Failure::new(
                    "the file system for the recording was not mounted",
                ));
            }
            if begun.elapsed() > PATIENCE {
                let _ = server.kill();
                return Err(Failure::about(dir, "the mount takes too long"));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    /// Runs the program, and records its output.
    fn run_in(&self, dir: &Path) -> Result<ExitStatus, Failure> {
        let [program, arguments @ ..] = self.command.as_slice() else {
            return Err(Failure::new("a command is needed"));
        };
        let arguments = arguments.iter().map(|word| with_dir(word, dir));
        // The output is recorded when a write to it returns: a pipe would have it later.
        let output = dir.join(OUTPUT_NAME);
        let opened = OpenOptions::new().append(true).open(&output);
        let opened = opened.map_err(|e| Failure::about(&output, e))?;
        let mut child = Command::new(program)
            .args(arguments)
            .current_dir(dir)
            .stdout(opened)
            .spawn()
            .map_err(|e| Failure::about(Path::new(program), e))?;
        let ended = child.wait().map_err(Failure::new);
        // Children that go on write to it, too.
        while is_open(&output) {
            thread::sleep(Duration::from_millis(20));
        }
        ended
    }
}

/// Whether a process has a file open.
fn is_open(file: &Path) -> bool {
    let entries = |dir: PathBuf| std::fs::read_dir(dir).into_iter().flatten().flatten();
    let is_number = |name: OsString| name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
    let mut processes = entries("/proc".into()).filter(|entry| is_number(entry.file_name()));
    processes.any(|process| {
        let mut descriptors = entries(process.path().join("fd"));
        descriptors.any(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == file))
    })
}

/// Whether the recording of a mount has begun.
fn is_served(dir: &Path) -> bool {
    let entry = table::find(dir).ok().flatten();
    entry.is_some_and(|entry| entry.fs_type == table::OURS) && std::fs::metadata(dir).is_ok()
}

fn unmount(dir: &Path, mut server: Child) -> Result<(), Failure> {
    let unmounted = umount::unmount(dir);
    if unmounted.is_err() {
        // The server unmounts, and writes the recording.
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_child(&server),
            rustix::process::Signal::TERM,
        );
    }
    let ended = server.wait().map_err(Failure::new)?;
    unmounted?;
    match ended.success() {
        true => Ok(()),
        false => Err(Failure::new("the recording has failed")),
    }
}

/// A directory for the image and the mount, in memory if possible.
fn scratch() -> Result<tempfile::TempDir, Failure> {
    let memory = Path::new("/dev/shm");
    let mut builder = tempfile::Builder::new();
    builder.prefix("selvedge-record-");
    let made = builder.tempdir_in(memory).or_else(|_| builder.tempdir());
    made.map_err(Failure::new)
}

fn ourselves() -> Result<Command, Failure> {
    let program = std::env::current_exe().map_err(Failure::new)?;
    Ok(Command::new(program))
}

fn with_dir(word: &OsStr, dir: &Path) -> OsString {
    match (word.to_str(), dir.to_str()) {
        (Some(word), Some(dir)) => word.replace("{dir}", dir).into(),
        _ => word.to_owned(),
    }
}

/// The exit code, as a shell has it.
fn code_of(status: ExitStatus) -> ExitCode {
    let signal = || status.signal().map_or(1, |signal| 128 + signal);
    let code = status.code().unwrap_or_else(signal);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
