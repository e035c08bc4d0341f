//! Compiles and runs programs, each with durable memory of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

/// The kind of the library with which a program is linked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    Static,
    Shared,
}

/// A directory for programs and their durable memory.
pub struct Workshop {
    dir: TempDir,
}

/// The source of a program, and the options to compile it.
#[derive(Clone)]
pub struct Recipe<'a> {
    /// A file in `tests/c`.
    pub source: &'a str,
    pub flags: &'a [&'a str],
    pub link: Link,
    /// Whether persistent variables get pages of their own.
    pub script: bool,
    pub libraries: &'a [&'a str],
}

impl<'a> Recipe<'a> {
    pub fn new(source: &'a str) -> Self {
        Self {
            source,
            flags: &["-O2"],
            link: Link::Shared,
            script: true,
            libraries: &[],
        }
    }
}

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn compiler(recipe: &Recipe<'_>) -> &'static str {
    match recipe.source.ends_with(".cc") {
        true => "g++",
        false => "gcc",
    }
}

/// The directory with the libraries that were built with this test.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let beside = test.parent().unwrap().to_owned();
    assert!(
        beside.join("libselvedge.a").exists(),
        "no library in {}",
        beside.display()
    );
    beside
}

impl Workshop {
    pub fn new() -> Self {
        // In memory if possible: durability is not tested here.
        let shm = Path::new("/dev/shm");
        let dir = match shm.is_dir() {
            true => tempfile::tempdir_in(shm),
            false => tempfile::tempdir(),
        };
        let dir = dir.unwrap();
        let soname = dir.path().join("libselvedge.so.0");
        std::os::unix::fs::symlink(libraries().join("libselvedge.so"), soname).unwrap();
        Self { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The directory of durable memory.
    pub fn memory(&self) -> PathBuf {
        self.path("memory")
    }

    /// Compiles a program under the name `name`.
    pub fn compile(&self, name: &str, recipe: &Recipe<'_>) -> PathBuf {
        self.try_compile(name, recipe)
            .unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    pub fn try_compile(&self, name: &str, recipe: &Recipe<'_>) -> Result<PathBuf, String> {
        let object = self.try_object(name, recipe)?;
        let include = here().join("include");
        let program = self.path(name);
        let mut link = Command::new(compiler(recipe));
        link.arg("-pthread")
            .args(recipe.flags)
            .arg(&object)
            .args(recipe.libraries);
        if recipe.script {
            link.arg(format!("-Wl,-T,{}", include.join("selvedge.ld").display()));
        }
        match recipe.link {
            // As `Libs.private` in selvedge.pc.
            Link::Static => link.arg(libraries().join("libselvedge.a")).arg("-lm"),
            Link::Shared => link
                .arg(libraries().join("libselvedge.so"))
                .arg(format!("-Wl,-rpath,{}", self.dir.path().display())),
        };
        link.arg("-o").arg(&program);
        done(&mut link)?;
        Ok(program)
    }

    /// Compiles the object file that [`compile`](Self::compile) links.
    pub fn try_object(&self, name: &str, recipe: &Recipe<'_>) -> Result<PathBuf, String> {
        let source = here().join("tests/c").join(recipe.source);
        let object = self.path(&format!("{name}.o"));
        let mut compile = Command::new(compiler(recipe));
        compile.args([
            "-Wall",
            "-Wextra",
            "-Wno-clobbered",
            "-Werror",
            "-g",
            "-pthread",
            "-fgnu-tm",
            "-c",
        ]);
        compile
            .arg("-I")
            .arg(here().join("include"))
            .args(recipe.flags);
        compile.arg(&source).arg("-o").arg(&object);
        done(&mut compile)?;
        Ok(object)
    }

    /// A command that runs the program with the workshop's memory.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("SELVEDGE_REGION_PATH", self.memory());
        // Freed memory is overwritten, so that a read after a free returns wrong bytes.
        command.env("MALLOC_PERTURB_", "165");
        for name in [
            "BASE",
            "BYTES",
            "LOG_BYTES",
            "ACCEPT_LOSS",
            "DURABILITY",
            "FORCE_FLUSH",
            "STATICS",
            "STATICS_NAME",
            "POOL_PATH",
            "POOL_BYTES",
            "SIMULATE_POWER_CUT",
        ] {
            command.env_remove(format!("SELVEDGE_{name}"));
        }
        command
    }

    /// Runs a program that must succeed. Returns its output.
    pub fn run(&self, program: &Path, arguments: &[&str]) -> String {
        let output = self.command(program).args(arguments).output().unwrap();
        said(&output, program)
    }

    /// Runs a program that the library must end. Returns its message.
    pub fn fail(&self, program: &Path, arguments: &[&str]) -> String {
        let output = self.command(program).args(arguments).output().unwrap();
        error_of(&output)
    }

    /// Starts a program and leaves it running.
    pub fn start(&self, program: &Path, arguments: &[&str]) -> Child {
        let mut command = self.command(program);
        command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command.spawn().unwrap()
    }
}

/// Runs a program with either library, twice: the second run finds the data of the first.
pub fn try_both_libraries(source: &str) {
    for (link, level) in [(Link::Static, "-O0"), (Link::Shared, "-O2")] {
        let workshop = Workshop::new();
        let recipe = Recipe {
            flags: &[level],
            link,
            ..Recipe::new(source)
        };
        let program = workshop.compile("program", &recipe);
        workshop.run(&program, &[]);
        workshop.run(&program, &[]);
    }
}

/// The path of an example.
pub fn example(name: &str) -> String {
    let path = here().join("../../examples/c").join(name);
    path.to_str().unwrap().to_owned()
}

/// The output of a program, which must have succeeded.
pub fn said(output: &Output, program: &Path) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{}: {}\n{}{}",
        program.display(),
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// The message, one line, of a program that the library has ended.
pub fn error_of(output: &Output) -> String {
    use std::os::unix::process::ExitStatusExt;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.signal(), Some(libc_sigabrt()), "{text}");
    let line = text
        .strip_prefix("selvedge: ")
        .and_then(|line| line.strip_suffix('\n'));
    let line = line.unwrap_or_else(|| panic!("not a message of the library: {text:?}"));
    assert!(!line.contains('\n'), "{line:?}");
    line.to_owned()
}

fn libc_sigabrt() -> i32 {
    6
}

fn done(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}
