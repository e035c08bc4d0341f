//! Servers whose directory shows another mount than theirs: signals unmount what is their own.

use crate::fixture::{Fixture, finish, run};
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A file system in memory over whatever is at a directory. Unmounted when dropped.
struct Cover(PathBuf);

impl Cover {
    fn over(dir: PathBuf) -> Self {
        let mut mount = Command::new("mount");
        finish(0, mount.args(["-t", "tmpfs", "tmpfs"]).arg(&dir));
        Self(dir)
    }

    fn remove(&self) -> bool {
        let mut umount = Command::new("umount");
        let umount = umount.args(["--internal-only", "--lazy"]).arg(&self.0);
        umount.stderr(Stdio::null()).status().unwrap().success()
    }
}

impl Drop for Cover {
    fn drop(&mut self) {
        self.remove();
    }
}

fn second_image(place: &Fixture) -> PathBuf {
    let image = place.path("second");
    run(0, &["mkfs", "--size", "16M", image.to_str().unwrap()]);
    image
}

#[test]
fn a_signal_leaves_the_mount_that_covers_the_servers_own() {
    for engine in ["bpfs", "soupfs", "pxfs", "ext2"] {
        let place = Fixture::new();
        let image = place.image_str();
        run(0, &["mkfs", "--type", engine, "--size", "16M", image]);
        let mut server = place.serve(&[]);
        fs::write(place.dir().join("own"), "text").unwrap();
        let cover = Cover::over(place.dir());
        fs::write(place.dir().join("other"), "text").unwrap();
        server.signal("TERM");
        assert_eq!(server.wait(), Some(0));
        assert_eq!(fs::read(place.dir().join("other")).unwrap(), b"text");
        assert!(cover.remove());
        // The mount below answers nobody.
        run(0, &["umount", place.dir_str()]);
        place.mount(&[]);
        assert_eq!(fs::read(place.dir().join("own")).unwrap(), b"text");
        place.umount();
    }
}

#[test]
fn a_signal_after_a_lazy_unmount_leaves_the_next_mount_there() {
    let place = Fixture::with_image();
    let mut server = place.serve(&[]);
    let mut open = File::create(place.dir().join("open")).unwrap();
    run(0, &["umount", "--lazy", place.dir_str()]);
    let second = second_image(&place);
    run(0, &["mount", second.to_str().unwrap(), place.dir_str()]);
    fs::write(place.dir().join("other"), "text").unwrap();
    open.write_all(b"text").unwrap();
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    assert_eq!(fs::read(place.dir().join("other")).unwrap(), b"text");
    place.umount();
    drop(open);
    place.mount(&[]);
    assert_eq!(fs::read(place.dir().join("open")).unwrap(), b"text");
    place.umount();
    place.fsck();
}
