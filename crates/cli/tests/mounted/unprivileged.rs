//! Mounts of users without the super-user's rights, through `fusermount3`.

use crate::fixture::{Fixture, finish, run};
use std::fs;
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::process::Command;

const NOBODY: u32 = 65534;

/// Mounts `$2` on `$3` and unmounts it, in a mount namespace where `/dev/fuse` is open to all,
/// as it is on most systems.
const AS_NOBODY: &str = r#"
    set -e
    mknod --mode=666 "$1" c 10 229
    mount --bind "$1" /dev/fuse
    exec setpriv --reuid=65534 --regid=65534 --clear-groups sh -ec '
        "$0" mount "$1" "$2"
        trap "$0 umount --lazy $2" EXIT
        echo text > "$2/file"
        trap - EXIT
        "$0" umount "$2"
        "$0" fsck -n "$1"
    ' "$0" "$2" "$3"
"#;

#[test]
fn a_path_may_hold_any_character_that_separates_options() {
    for name in ["image", "a,b.img", r"a\b.img", r"ro,c\,d e.img", r"f\"] {
        let place = Fixture::new();
        let image: PathBuf = place.path(name);
        run(0, &["mkfs", "--size", "64M", image.to_str().unwrap()]);
        // The root of the file system belongs to its maker.
        run(0, &["mount", image.to_str().unwrap(), place.dir_str()]);
        chown(place.dir(), Some(NOBODY), Some(NOBODY)).unwrap();
        place.umount();
        let owned = [&image, &place.dir()].map(|path| chown(path, Some(NOBODY), Some(NOBODY)));
        owned.into_iter().for_each(Result::unwrap);
        let mut shell = Command::new("unshare");
        shell.args([
            "--mount",
            "sh",
            "-c",
            AS_NOBODY,
            env!("CARGO_BIN_EXE_selvedge"),
        ]);
        shell.arg(place.path("fuse")).arg(&image).arg(place.dir());
        finish(0, &mut shell);
        // The file is there: this is the image that was mounted.
        run(0, &["mount", image.to_str().unwrap(), place.dir_str()]);
        assert_eq!(fs::read(place.dir().join("file")).unwrap(), b"text\n");
        place.umount();
    }
}
