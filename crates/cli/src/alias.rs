//! The names under which `mkfs`, `fsck` and `mount` look for us: `mkfs.selvedge`,
//! `fsck.fuse.selvedge`, `mount.fuse.selvedge`, `mkfs.bpfs` and so on. A link of such a
//! name is the subcommand, with its conventional arguments.

use std::ffi::OsString;
use std::path::Path;

/// The arguments with the subcommand that the program's name stands for put in.
pub(crate) fn expand(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut args = args.into_iter();
    let Some(program) = args.next() else {
        return vec!["selvedge".into()];
    };
    let mut expanded = vec!["selvedge".into()];
    let subcommand = subcommand(&program);
    let is_mount_helper = subcommand.first().is_some_and(|word| word == "mount");
    expanded.extend(subcommand);
    let first = expanded.len();
    expanded.extend(args.map(|arg| match arg.to_str() {
        // `selvedge mount -f` keeps the server in the foreground, as with all FUSE servers.
        Some("-f") if is_mount_helper => "--fake".into(),
        _ => arg,
    }));
    // mount(8) prints nothing on success, unless it is asked to.
    if is_mount_helper && !expanded[first..].iter().any(|arg| arg == "-v") {
        expanded.push("--quiet".into());
    }
    expanded
}

fn subcommand(program: &OsString) -> Vec<OsString> {
    let name = Path::new(program).file_name().and_then(|n| n.to_str());
    let Some((command, fs_type)) = name.and_then(|n| n.split_once('.')) else {
        return Vec::new();
    };
    if !["mkfs", "fsck", "mount", "umount"].contains(&command) {
        return Vec::new();
    }
    let mut words = vec![command.into()];
    let engine = fs_type.strip_prefix("fuse.").unwrap_or(fs_type);
    let mut names = engines::with_images().map(|engine| engine.name());
    // Other types leave the choice to the image.
    if matches!(command, "mkfs" | "mount") && names.any(|name| name == engine) {
        words.extend(["--type".into(), engine.into()]);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(from: &[&str], to: &[&str]) {
        let expanded = expand(from.iter().map(OsString::from));
        assert_eq!(expanded, to);
    }

    #[test]
    fn names_of_helpers_select_the_command() {
        check(&["selvedge", "info", "x"], &["selvedge", "info", "x"]);
        check(
            &["/sbin/mkfs.bpfs", "x"],
            &["selvedge", "mkfs", "--type", "bpfs", "x"],
        );
        check(&["mkfs.selvedge", "x"], &["selvedge", "mkfs", "x"]);
        check(
            &["/sbin/mount.fuse.selvedge", "a", "b", "-o", "ro"],
            &["selvedge", "mount", "a", "b", "-o", "ro", "--quiet"],
        );
        check(
            &["/sbin/mount.fuse.selvedge", "a", "b", "-v"],
            &["selvedge", "mount", "a", "b", "-v"],
        );
        check(
            &["mount.selvedge", "a", "b", "-f"],
            &["selvedge", "mount", "a", "b", "--fake", "--quiet"],
        );
        check(
            &["selvedge", "mount", "a", "b", "-f"],
            &["selvedge", "mount", "a", "b", "-f"],
        );
        check(
            &["fsck.fuse.selvedge", "-a", "x"],
            &["selvedge", "fsck", "-a", "x"],
        );
        check(&["./selvedge.old", "info"], &["selvedge", "info"]);
        check(&[], &["selvedge"]);
    }
}
