//! A store with a manager, and clients in processes of their own.

use crate::CLIENT;
use medium::{MapOptions, MappedPmem};
use scm::files::{Part, Share};
use scm::{
    AccessList, Client, Credentials, Directory, Geometry, Identity, Limits, Partition, Rights, Run,
    ScmError, Server, Store,
};
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

pub(crate) const PAGE: u64 = scm::PAGE_BYTES;
/// The owner of all that tests share, by user and by group.
pub(crate) const OWNER: u32 = 40_001;
pub(crate) const GROUP: u32 = 40_002;
pub(crate) const STRANGER: u32 = 40_003;

/// The credentials of a client that keeps those of the test.
pub(crate) const OWN: &str = "own";
/// The work of a client in a directory.
pub(crate) type Role = fn(&World);

/// A directory that all users may enter, with a store and the socket of its manager.
pub(crate) struct World(pub(crate) PathBuf);

impl World {
    pub(crate) fn socket(&self) -> PathBuf {
        self.0.join("socket")
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.0.join("store")
    }

    pub(crate) fn class_file(&self, identity: Identity) -> PathBuf {
        self.store()
            .join(format!("class-00000000-{:08x}", identity.raw()))
    }

    pub(crate) fn connect(&self) -> Arc<Client> {
        Client::connect(self.socket()).unwrap()
    }

    pub(crate) fn class(&self, identity: Identity) -> Result<(Share, bool), ScmError> {
        self.connect().share(0, Part::Class(identity))
    }
}

/// The extents of tests are of three groups: 1 belongs to `OWNER` and others may read it; 2 is
/// for `OWNER`; 3 is for the members of `GROUP`.
pub(crate) fn identity(group: u32) -> Identity {
    Identity::new(group, Rights::BOTH).unwrap()
}

/// A manager that serves a store in `world`.
pub(crate) struct Manager {
    pub(crate) server: Server,
    pub(crate) pages: Partition<Directory>,
    pub(crate) world: World,
    pub(crate) _dir: tempfile::TempDir,
}

impl Manager {
    pub(crate) fn new(limits: Limits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        let world = World(dir.path().to_owned());
        let geometry = Geometry {
            pages: 64,
            slots: 16,
            only: None,
        };
        let files = Directory::create(world.store(), &geometry, &MapOptions::default()).unwrap();
        let store = Store::open(files).unwrap();
        for (group, mode) in [(1, 0o604), (2, 0o600), (3, 0o060), (4, 0o004)] {
            let list = AccessList::of_mode(OWNER, GROUP, mode);
            store.set_list(group, list).unwrap();
        }
        store
            .create_partition("p", 64, Credentials::own().uid, 4)
            .unwrap();
        store
            .set_list(4, AccessList::of_mode(OWNER, GROUP, 0o444))
            .unwrap();
        let pages = store.partition("p", &Credentials::own()).unwrap();
        for group in 1..=3 {
            let run = run(u64::from(group) * 8, 4);
            pages.create_extent(run, identity(group)).unwrap();
        }
        let server = Server::start(store, world.socket(), limits).unwrap();
        Self {
            server,
            pages,
            world,
            _dir: dir,
        }
    }

    /// For a test that needs clients of other users.
    pub(crate) fn as_root() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip::test("needs root, for clients of other users");
            return None;
        }
        Some(Self::new(Limits::default()))
    }

    /// Starts a client.
    pub(crate) fn client(&self, role: &str, credentials: &[u32]) -> Talk {
        let credentials: Vec<String> = credentials.iter().map(u32::to_string).collect();
        Talk::start(role, &credentials.join(","), &self.world.0)
    }

    /// Runs a client to its end.
    pub(crate) fn run(&self, role: &str, credentials: &[u32]) {
        self.client(role, credentials).end();
    }
}

/// A client that takes turns with the test.
pub(crate) struct Talk {
    pub(crate) child: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Talk {
    pub(crate) fn start(role: &str, credentials: &str, dir: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([CLIENT, role, credentials])
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
}

/// Ends the turn of a client, and waits for the next.
pub(crate) fn take_turns() {
    println!("your turn");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

pub(crate) fn run(first: u64, pages: u64) -> Run {
    Run { first, pages }
}

pub(crate) fn writable(descriptor: OwnedFd) -> Result<MappedPmem, medium::OpenError> {
    MappedPmem::map_descriptor(descriptor, "it", &MapOptions::default())
}
