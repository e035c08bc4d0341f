//! An image, its service, and clients.

use crate::CLIENT;
use aerie_client::{Client, Options};
use aerie_server::{Limits, ServeError, Serving, serve};
use medium::{EffectiveDurability, MapOptions, MappedPmem, Reserve, create_file};
use pxfs::Pxfs;
use std::fs::{File, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use vfs::{Atime, Attr, Clock, Ctx, FileSystem, Ino, OpenFlags, SystemClock};

const IMAGE: u64 = 16 << 20;
/// The user of a client that keeps that of the test.
pub(crate) const OWN: &str = "own";
/// The lease in tests that wait for its end.
pub(crate) const SHORT: Duration = Duration::from_millis(1500);
/// The work of a client in a process of its own.
pub(crate) type Role = fn(&World);

/// A directory with an image and a socket.
pub(crate) struct World {
    path: PathBuf,
    /// The lock of the root collection; 0 in a process of a client.
    pub(crate) root: u64,
    _dir: Option<tempfile::TempDir>,
}

impl World {
    /// With an empty file system.
    pub(crate) fn new() -> Self {
        Self::of_bytes(IMAGE)
    }

    /// With a copy of an image, whose root collection has this lock.
    pub(crate) fn of_image(image: &[u8], root: u64) -> Self {
        let world = Self {
            root,
            ..Self::empty()
        };
        std::fs::write(world.image(), image).unwrap();
        world
    }

    /// With an empty file system of that size.
    pub(crate) fn of_bytes(bytes: u64) -> Self {
        let mut world = Self::empty();
        create_file(world.image(), bytes, Reserve::Sparse).unwrap();
        world.set_mode(0o600);
        let memory = world.memory(false);
        let options = pxfs::MkfsOptions {
            logs: Some(4),
            ..pxfs::MkfsOptions::default()
        };
        pxfs::mkfs(&memory, &options).unwrap();
        let superblock = aerie_objects::Superblock::load(&*memory).unwrap();
        world.root = superblock.root.to_bits();
        world
    }

    /// With an empty directory, in which no store is made.
    pub(crate) fn empty() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        Self {
            path: dir.path().to_owned(),
            root: 0,
            _dir: Some(dir),
        }
    }

    pub(crate) fn at(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            root: 0,
            _dir: None,
        }
    }

    pub(crate) fn image(&self) -> PathBuf {
        self.path.join("image")
    }

    pub(crate) fn set_mode(&self, mode: u32) {
        std::fs::set_permissions(self.image(), Permissions::from_mode(mode)).unwrap();
    }

    /// A protected store.
    pub(crate) fn store(&self) -> PathBuf {
        self.path.join("store")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path.join("socket")
    }

    fn memory(&self, read_only: bool) -> Arc<MappedPmem> {
        let options = MapOptions {
            read_only,
            ..MapOptions::default()
        };
        Arc::new(MappedPmem::open(self.image(), &options).unwrap())
    }

    /// The file system, without a service.
    pub(crate) fn open(&self) -> Pxfs<Arc<MappedPmem>> {
        self.open_with(Arc::new(SystemClock))
    }

    fn open_with(&self, clock: Arc<dyn Clock>) -> Pxfs<Arc<MappedPmem>> {
        Pxfs::open(self.memory(false), clock, Atime::Never).unwrap()
    }

    pub(crate) fn serve(&self, limits: Limits) -> Serving {
        self.serve_at(&self.socket(), limits).unwrap()
    }

    pub(crate) fn serve_at(&self, socket: &Path, limits: Limits) -> Result<Serving, ServeError> {
        let image = File::options().read(true).write(true).open(self.image());
        let image = (&image.unwrap(), EffectiveDurability::Process);
        serve(self.open(), image, socket, limits)
    }

    /// With a clock of the service, which reads it for each operation.
    pub(crate) fn serve_with(&self, limits: Limits, clock: Arc<dyn Clock>) -> Serving {
        let image = File::options().read(true).write(true).open(self.image());
        let image = (&image.unwrap(), EffectiveDurability::Process);
        serve(self.open_with(clock), image, &self.socket(), limits).unwrap()
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.socket(), &Options::default()).unwrap()
    }

    /// A client that ships only when it must.
    pub(crate) fn lazy_client(&self) -> Client {
        let options = Options {
            period: Duration::from_secs(3600),
            ..Options::default()
        };
        Client::connect(&self.socket(), &options).unwrap()
    }

    /// Starts a client in a process of its own.
    pub(crate) fn process(&self, role: &str, user: &str) -> Talk {
        Talk::start(role, user, &self.path)
    }

    /// Checks the image, which nobody serves. Returns the number of free pages.
    pub(crate) fn check(&self) -> u64 {
        let memory = self.memory(true);
        let report = pxfs::check(&memory);
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
        aerie_objects::free_pages(&*memory).unwrap()
    }
}

/// A client in a process, which takes turns with the test.
pub(crate) struct Talk {
    pub(crate) child: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Talk {
    fn start(role: &str, user: &str, dir: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([CLIENT, role, user])
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Self { child, said }
    }

    /// Waits until the client has ended its turn.
    pub(crate) fn wait(&mut self) {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        assert_eq!(line, "your turn\n");
    }

    /// Ends the turn of the test.
    pub(crate) fn go_on(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    pub(crate) fn end(mut self) {
        assert!(self.child.wait().unwrap().success());
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Ends the turn of a client, and waits for the next.
pub(crate) fn take_turns() {
    println!("your turn");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// Makes a file with contents.
pub(crate) fn make(fs: &dyn FileSystem, dir: Ino, name: &str, contents: &[u8]) -> Attr {
    let cx = &Ctx::root();
    let made = fs.create(cx, dir, name.as_bytes(), 0o644).unwrap();
    fs.open(cx, made.ino, OpenFlags::WRITE).unwrap();
    assert_eq!(fs.write(cx, made.ino, 0, contents), Ok(contents.len()));
    fs.release(made.ino);
    made
}

/// The contents of a file.
pub(crate) fn contents(fs: &dyn FileSystem, dir: Ino, name: &str) -> vfs::Result<Vec<u8>> {
    let cx = &Ctx::root();
    let found = fs.lookup(cx, dir, name.as_bytes())?;
    let mut buf = vec![0; found.size as usize];
    fs.open(cx, found.ino, OpenFlags::READ)?;
    let read = fs.read(cx, found.ino, 0, &mut buf);
    fs.release(found.ino);
    fs.forget(found.ino, 1);
    assert_eq!(read?, buf.len());
    Ok(buf)
}
