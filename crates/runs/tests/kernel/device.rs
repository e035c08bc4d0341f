//! A block device whose writes and flushes are recorded.

use crate::kernel::{Kernel, SCRATCH, run};
use fuse::{Mount, MountOptions, Unmounter};
use oracle::{ModelFs, ModelOptions};
use runs::{Header, Recorder, Run, Source, Tree};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use tempfile::TempDir;
use vfs::{Ctx, FileSystem, Ino};

/// A loop device over a file of a recorded mount.
pub struct Device {
    place: TempDir,
    recorder: Arc<Recorder>,
    unmounter: Unmounter,
    server: Option<JoinHandle<()>>,
    node: String,
}

impl Device {
    /// A device with a new file system.
    pub fn new(kernel: &Kernel) -> Self {
        let place = tempfile::tempdir_in(SCRATCH).unwrap();
        let [made, dir] = ["made", "device"].map(|name| place.path().join(name));
        fs::create_dir(&made).unwrap();
        fs::create_dir(&dir).unwrap();
        kernel.make(&made);
        let model = ModelFs::new(ModelOptions::default());
        copy(&Tree::read_dir(&made, &mut 2).unwrap(), &model);
        let header = Header::new(Source::Mount, kernel.name);
        let recorder = Recorder::new(Arc::new(model), &place.path().join("run"), header);
        let recorder = Arc::new(recorder.unwrap());
        let options = MountOptions {
            source: "recorded".into(),
            ..MountOptions::default()
        };
        let mount = Mount::new(&dir, &options).unwrap();
        let unmounter = mount.unmounter();
        let served: Arc<dyn FileSystem> = Arc::<Recorder>::clone(&recorder);
        let server = thread::spawn(move || mount.serve(served, Vec::new()).unwrap());
        let mut device = Self {
            place,
            recorder,
            unmounter,
            server: Some(server),
            node: String::new(),
        };
        let mut losetup = Command::new("losetup");
        losetup.args(["--find", "--show"]).arg(dir.join("image"));
        device.node = run(&mut losetup);
        device
    }

    /// The device node.
    pub fn node(&self) -> &Path {
        Path::new(&self.node)
    }

    /// A directory for a mount of the device.
    pub fn mount_point(&self) -> PathBuf {
        let dir = self.place.path().join("mount");
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    /// Records a number between the writes.
    pub fn mark(&self, number: usize) {
        let text = number.to_string();
        self.recorder.output(&Ctx::root(), text.as_bytes()).unwrap();
    }

    /// The writes, flushes and marks.
    pub fn recorded(self) -> Run {
        self.recorder.end().unwrap();
        Run::load(&self.place.path().join("run")).unwrap()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if !self.node.is_empty() {
            let _ = Command::new("losetup").args(["-d", &self.node]).status();
        }
        // The kernel releases the file of a loop device after the command has returned.
        for _ in 0..100 {
            if self.unmounter.unmount().is_ok() {
                break;
            }
            thread::sleep(std::time::Duration::from_millis(20));
        }
        let _ = self.unmounter.detach();
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

/// Copies the files of a directory.
fn copy(from: &Tree, to: &dyn FileSystem) {
    let cx = Ctx::root();
    for (name, node) in from.paths() {
        let contents = &from.get(node).unwrap().contents;
        let file = to.create(&cx, Ino::ROOT, &name, 0o600).unwrap().ino;
        for (off, bytes) in contents.pages() {
            to.write(&cx, file, off, bytes).unwrap();
        }
        to.truncate(&cx, file, contents.size()).unwrap();
        to.forget(file, 1);
    }
}
