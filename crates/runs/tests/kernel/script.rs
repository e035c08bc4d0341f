//! Scripts of calls that run on the kernel and become a run.

use crate::device::Device;
use crate::kernel::Kernel;
use runs::{Call, Entry, Header, Kind, Node, Place, Run, Source, Tree};
use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate, syncfs};
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// A script of calls, one in each line. `=` ends the setup.
///
/// `flush f` has the kernel begin to write the data of a file, and `idle` waits until it has
/// committed by itself. Neither is a call of the run, since neither promises anything.
pub struct Script {
    pub name: &'static str,
    text: &'static str,
}

const fn script(name: &'static str, text: &'static str) -> Script {
    Script { name, text }
}

pub const SCRIPTS: &[Script] = &[
    script(
        "replace",
        "create f; write f old; =; create t; write t new; rename t f; create g; fsync g",
    ),
    script(
        "replace synchronised",
        "create f; write f old; =; create t; write t new; fsync t; rename t f; close f; fsync .",
    ),
    script(
        "replace and directory",
        "mkdir d; create f; write f old; =; create t; write t new; rename t f; fsync d; mkdir d/d; \
         fsync d",
    ),
    script(
        "new name",
        "create g; =; create t; write t new; rename t f; fsync g; write g x; fsync g; flush f; \
         fsync g",
    ),
    script(
        "append",
        "create f; write f aaaa; create g; =; write f bbb; write g x; fsync g; write f cccc; flush f; \
         write g y; fsync g; fsync f",
    ),
    script(
        "overwrite",
        "create f; fill f 0 12288 a; create g; =; at f 0 A; at f 4096 B; flush f; write g x; fsync g; \
         at f 8192 C; fdatasync f",
    ),
    script(
        "grow",
        "create f; create g; =; fill f 0 4096 a; fill f 4096 4096 b; write g x; fsync g; flush f; \
         write g y; fsync g; fill f 8192 100 c; fdatasync f",
    ),
    script(
        "mail",
        "mkdir new; mkdir tmp; =; create tmp/m; write tmp/m text; fsync tmp/m; link tmp/m new/m; \
         unlink tmp/m; fsync new",
    ),
    script(
        "mail unsynchronised",
        "mkdir new; mkdir tmp; create g; =; create tmp/m; write tmp/m text; link tmp/m new/m; \
         unlink tmp/m; write g x; fsync g; flush new/m; fsync tmp",
    ),
    script(
        "cut",
        "create f; write f old; create g; =; cut f 0; write f new; close f; write g x; fsync g; sync",
    ),
    script(
        "cut and grow",
        "create f; fill f 0 8192 a; create g; =; cut f 100; write f xyz; fsync f; cut f 5000; \
         at f 4990 q; flush f; write g x; fsync g",
    ),
    script(
        "two files",
        "create a; create b; =; write a 1; write b 2; fsync b; write a 3; fsync a; write b 4",
    ),
    script(
        "holes",
        "create f; create g; =; at f 8192 x; flush f; write g x; fsync g; at f 0 y; write g y; \
         fsync g",
    ),
    script(
        "names again",
        "create f; write f old; =; unlink f; create f; write f new; fsync f; create g; write g x; \
         unlink g; mkdir g; fsync g",
    ),
    script(
        "directories",
        "mkdir d; create d/f; write d/f old; mkdir c; =; rename d c/e; create c/e/g; write c/e/g text; \
         fsync c/e/g; unlink c/e/f; rename c/e/g g; rmdir c/e; sync",
    ),
    script(
        "links",
        "create f; write f old; mkdir d; =; link f d/f; write f new; fsync f; unlink f; fsync d; \
         rename d/f f; create d/h; fsync d/h",
    ),
    script(
        "idle",
        "create f; write f old; =; create t; write t new; idle; rename t f; write f more; idle",
    ),
    script(
        "append pages",
        "create f; create g; =; fill f 0 4096 a; flush f; fill f 4096 4096 b; flush f; write g x; \
         fsync g; fill f 6000 4096 c; flush f; write g y; fsync g",
    ),
    script(
        "link reused",
        "mkdir d; create d/a; write d/a 1; =; link d/a d/b; unlink d/a; create d/a; write d/a 2; \
         fsync d/a; fsync d/b",
    ),
    script(
        "hole",
        "create f; fill f 0 12288 a; create g; =; hole f 1000 6000; flush f; write g x; fsync g; \
         at f 5000 z; fdatasync f",
    ),
    script(
        "rename directory",
        "mkdir a; create a/f; write a/f 1; create g; =; rename a b; create b/h; write b/f 2; \
         fsync b/f; mkdir a; create a/k; fsync a/k; write g x; fsync g",
    ),
    script(
        "two replaces",
        "create a; write a 1; create b; write b 2; create g; =; create t; write t 3; rename t a; \
         create t; write t 4; fsync t; rename t b; write g x; fsync g",
    ),
];

impl Script {
    /// Runs the script. Returns its calls, and the record of the device: each mark is a number of
    /// calls that had returned.
    pub fn run(&self, kernel: &Kernel) -> (Run, Run) {
        let device = Device::new(kernel);
        let root = device.mount_point();
        let mounted = kernel.mount(device.node(), &root);
        let mut player = Player {
            run: Run::new(Header::new(Source::Mount, self.name)),
            tree: Tree::default(),
            root,
            files: HashMap::new(),
            next: 2,
        };
        let mut is_setup = true;
        for line in self.text.split(';').map(str::trim) {
            if line == "=" {
                player.sync();
                player.run.header.setup = player.run.entries.len();
                is_setup = false;
            } else {
                if !is_setup {
                    device.mark(player.run.entries.len());
                }
                player.line(line);
            }
        }
        device.mark(player.run.entries.len());
        // The last moment ends here; what follows is the unmount.
        device.mark(player.run.entries.len());
        player.files.clear();
        let run = player.run;
        drop(mounted);
        (run, device.recorded())
    }
}

struct Player {
    run: Run,
    tree: Tree,
    root: PathBuf,
    files: HashMap<Node, File>,
    next: u64,
}

impl Player {
    fn line(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let call = match words[..] {
            ["flush", name] => {
                fadvise(self.file(name), 0, None, Advice::DontNeed).unwrap();
                return;
            }
            ["idle"] => return sleep(Duration::from_millis(1300)),
            ["create", name] => {
                let mut options = OpenOptions::new();
                options.read(true).write(true).create_new(true);
                let file = options.open(self.root.join(name)).unwrap();
                self.files.insert(Node(self.next), file);
                self.make(name, Kind::File)
            }
            ["mkdir", name] => {
                fs::create_dir(self.root.join(name)).unwrap();
                self.make(name, Kind::Directory)
            }
            ["write", name, text] => {
                let off = self.file(name).metadata().unwrap().len();
                self.write(name, off, text.as_bytes())
            }
            ["at", name, off, text] => self.write(name, off.parse().unwrap(), text.as_bytes()),
            ["fill", name, off, len, text] => {
                let bytes = text.repeat(len.parse().unwrap());
                self.write(name, off.parse().unwrap(), bytes.as_bytes())
            }
            ["cut", name, size] => {
                let size = size.parse().unwrap();
                self.file(name).set_len(size).unwrap();
                let node = self.node(name);
                Call::SetSize { node, size }
            }
            ["hole", name, off, len] => {
                let (off, len) = (off.parse().unwrap(), len.parse().unwrap());
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(self.file(name), flags, off, len).unwrap();
                let node = self.node(name);
                Call::Zero { node, off, len }
            }
            ["close", name] => {
                let node = self.node(name);
                self.files.remove(&node);
                Call::Close { node }
            }
            ["sync"] => {
                self.sync();
                Call::SyncAll
            }
            [verb @ ("fsync" | "fdatasync"), name] => self.fsync(name, verb == "fdatasync"),
            _ => self.names(&words),
        };
        self.tree.apply(&call, &self.run.data).unwrap();
        self.run.entries.push(Entry::new(call, line));
    }

    /// A call that changes names only.
    fn names(&self, words: &[&str]) -> Call {
        let path = |name: &str| self.root.join(name);
        match *words {
            ["rename", from, to] => {
                fs::rename(path(from), path(to)).unwrap();
                Call::Rename {
                    from: self.place(from),
                    to: self.place(to),
                    exchange: false,
                }
            }
            ["link", from, to] => {
                fs::hard_link(path(from), path(to)).unwrap();
                Call::Link {
                    node: self.node(from),
                    at: self.place(to),
                }
            }
            ["unlink", name] => {
                fs::remove_file(path(name)).unwrap();
                let at = self.place(name);
                Call::Remove { at }
            }
            ["rmdir", name] => {
                fs::remove_dir(path(name)).unwrap();
                let at = self.place(name);
                Call::Remove { at }
            }
            _ => panic!("{words:?}"),
        }
    }

    fn node(&self, path: &str) -> Node {
        self.tree.resolve(path.as_bytes()).unwrap()
    }

    fn place(&self, path: &str) -> Place {
        let (dir, name) = path.rsplit_once('/').unwrap_or((".", path));
        Place::new(self.node(dir), name.as_bytes())
    }

    /// The open file of a name. It stays open until `close`.
    fn file(&mut self, name: &str) -> &File {
        let (node, path) = (self.node(name), self.root.join(name));
        self.files.entry(node).or_insert_with(|| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).open(path).unwrap()
        })
    }

    fn make(&mut self, name: &str, kind: Kind) -> Call {
        self.next += 1;
        Call::Make {
            node: Node(self.next - 1),
            at: Some(self.place(name)),
            kind,
            perm: 0o644,
            uid: 0,
            gid: 0,
        }
    }

    fn write(&mut self, name: &str, off: u64, bytes: &[u8]) -> Call {
        self.file(name).write_all_at(bytes, off).unwrap();
        Call::Write {
            node: self.node(name),
            off,
            data: self.run.keep(bytes),
        }
    }

    fn fsync(&mut self, name: &str, data_only: bool) -> Call {
        let path: &Path = &self.root.join(name);
        let node = self.node(name);
        match (path.is_dir(), data_only) {
            (true, _) => File::open(path).unwrap().sync_all(),
            (false, true) => self.file(name).sync_data(),
            (false, false) => self.file(name).sync_all(),
        }
        .unwrap();
        Call::Sync {
            node,
            data_only,
            range: None,
        }
    }

    fn sync(&self) {
        syncfs(File::open(&self.root).unwrap()).unwrap();
    }
}
