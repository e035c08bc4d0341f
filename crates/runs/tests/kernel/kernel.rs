//! File systems of the kernel.

use runs::Tree;
use runs::model::Model;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

/// The directory for images and recordings: one in memory.
pub const SCRATCH: &str = "/dev/shm";

/// A file system of the kernel, and its model.
pub struct Kernel {
    pub name: &'static str,
    pub model: Model,
    /// Type for mount(8).
    kind: &'static str,
    /// Options for mount(8).
    options: &'static str,
    mkfs: &'static [&'static str],
    /// Bytes of an image.
    bytes: u64,
}

const MKFS_EXT4: &[&str] = &[
    "mkfs.ext4",
    "-q",
    "-b4096",
    "-Jsize=4",
    "-Elazy_itable_init=0,lazy_journal_init=0",
];

pub const EXT4_ORDERED: Kernel = Kernel {
    name: "ext4, data=ordered",
    model: Model::Ext4Ordered,
    kind: "ext4",
    options: "data=ordered,commit=1",
    mkfs: MKFS_EXT4,
    bytes: 16 << 20,
};

pub const EXT4_JOURNAL: Kernel = Kernel {
    name: "ext4, data=journal",
    model: Model::Ext4Journal,
    options: "data=journal,commit=1",
    ..EXT4_ORDERED
};

pub const XFS: Kernel = Kernel {
    name: "xfs",
    model: Model::Xfs,
    kind: "xfs",
    options: "defaults",
    mkfs: &["mkfs.xfs", "-q"],
    bytes: 300 << 20,
};

pub const BTRFS: Kernel = Kernel {
    name: "btrfs",
    model: Model::Btrfs,
    kind: "btrfs",
    options: "commit=1",
    mkfs: &["mkfs.btrfs", "-q"],
    bytes: 128 << 20,
};

/// Runs a command, which must succeed. Returns its output.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

impl Kernel {
    /// The reason why the machine cannot run it.
    pub fn missing(&self) -> Option<String> {
        let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
        let is_known = known.lines().any(|line| line.trim() == self.kind);
        let there = |name: &str| {
            let mut dirs = ["/usr/sbin", "/sbin", "/usr/bin"].into_iter();
            dirs.any(|dir| Path::new(dir).join(name).exists())
        };
        match () {
            () if !rustix::process::geteuid().is_root() => Some("needs root".into()),
            () if !is_known => Some(format!("this kernel has no {}", self.kind)),
            () if !there(self.mkfs[0]) => Some(format!("no {} here", self.mkfs[0])),
            () if !there("losetup") => Some("no losetup here".into()),
            () if !Path::new("/dev/loop-control").exists() => Some("no loop devices here".into()),
            () if !Path::new("/dev/fuse").exists() => Some("no /dev/fuse here".into()),
            () => None,
        }
    }

    /// A new image in a directory.
    pub fn make(&self, dir: &Path) -> PathBuf {
        let image = dir.join("image");
        let file = fs::File::create_new(&image).unwrap();
        file.set_len(self.bytes).unwrap();
        run(Command::new(self.mkfs[0]).args(&self.mkfs[1..]).arg(&image));
        image
    }

    /// Mounts a block device, or the image in a file.
    pub fn mount(&self, device: &Path, dir: &Path) -> Mounted {
        let is_image = device.is_file();
        let options = format!("{}{}", self.options, if is_image { ",loop" } else { "" });
        let mut mount = Command::new("mount");
        mount.args(["-t", self.kind, "-o", &options]);
        run(mount.arg(device).arg(dir));
        Mounted(dir.to_owned())
    }

    /// The tree that the kernel shows after it has recovered an image, which is the only file of a
    /// tree.
    pub fn recover(&self, image: &Tree) -> Tree {
        let place = tempfile::tempdir_in(SCRATCH).unwrap();
        let [files, dir] = ["files", "mount"].map(|name| place.path().join(name));
        fs::create_dir(&files).unwrap();
        fs::create_dir(&dir).unwrap();
        image.write_to(&files).unwrap();
        let mounted = self.mount(&files.join("image"), &dir);
        let tree = Tree::read_dir(&dir, &mut 2).unwrap();
        drop(mounted);
        tree
    }
}

/// A mount, until it is dropped.
pub struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        // A process that another thread starts has a copy of open files for a moment.
        for _ in 0..50 {
            let done = Command::new("umount").arg("-q").arg(&self.0).output();
            if done.is_ok_and(|output| output.status.success()) {
                return;
            }
            sleep(Duration::from_millis(20));
        }
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
