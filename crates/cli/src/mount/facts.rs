//! Facts about a mount, as extended attributes of its root that are in no list, so
//! that nothing copies them.

use fuse::STATS_XATTR;
use medium::EffectiveDurability;
use rustix::fs::getxattr;
use rustix::io::Errno;
use serde_json::{Map, Value};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The durability in force, as one word.
pub(crate) const DURABILITY: &str = "selvedge.durability";

/// A JSON object: what `info` shows of an image, and `threads` if their number was given.
pub(crate) const INFO: &str = "selvedge.info";

/// Whether the power of a mount that simulates it is on: see [`power`].
pub(crate) const POWER: &str = "selvedge.power";

/// The value of [`POWER`].
pub(crate) fn power(is_cut: bool) -> &'static str {
    if is_cut { "cut" } else { "on" }
}

/// A JSON object: the server and its image, see [`server::about`](super::server::about).
pub(crate) const SERVER: &str = "selvedge.server";

/// A JSON object: the patchgroups that exist now ([`groups::GroupInfo`]), at most
/// [`MOST_LISTED`], and their `total`.
pub(crate) const GROUPS: &str = "selvedge.groups";

/// Most groups in [`GROUPS`]: the kernel limits the value to 64 KiB.
pub(crate) const MOST_LISTED: usize = 128;

/// Number of calls that failed with `EIO`, as a decimal number.
pub(crate) const IO_ERRORS: &str = "selvedge.io_errors";

/// Number of calls of a mount that failed with `EIO`; at least 1 if the answer is not a number.
pub(crate) fn io_errors(dir: &Path) -> u64 {
    let mut value = [0; 20];
    match getxattr(dir, IO_ERRORS, &mut value[..]) {
        Ok(len) => {
            let text = std::str::from_utf8(&value[..len]).ok();
            text.and_then(|text| text.parse().ok()).unwrap_or(0)
        }
        Err(Errno::IO) => 1,
        Err(_) => 0,
    }
}

/// Whether this is a mount whose simulated power was cut.
pub(crate) fn is_cut(dir: &Path) -> bool {
    read(dir, POWER).is_some_and(|value| value == power(true).as_bytes())
}

/// The durability in force in a mount of ours, if it reports one.
pub(crate) fn durability(dir: &Path) -> Option<EffectiveDurability> {
    use EffectiveDurability::{Dax, Msync, Process};
    let value = read(dir, DURABILITY)?;
    let mut known = [Dax, Process, Msync].into_iter();
    known.find(|d| d.to_string().as_bytes() == value)
}

/// The other facts of a mount of ours; empty if it reports none.
pub(crate) fn info(dir: &Path) -> Map<String, Value> {
    let value = read(dir, INFO).unwrap_or_default();
    serde_json::from_slice(&value).unwrap_or_default()
}

/// The server of a mount of ours; empty if it reports none.
pub(crate) fn server(dir: &Path) -> Map<String, Value> {
    let value = read(dir, SERVER).unwrap_or_default();
    serde_json::from_slice(&value).unwrap_or_default()
}

/// Whether the server of a mount has ended.
pub(crate) fn is_dead(dir: &Path) -> bool {
    getxattr(dir, SERVER, &mut [0; 0][..]) == Err(Errno::NOTCONN)
}

/// The counters of a mount of ours, if it has any.
pub(crate) fn stats(dir: &Path) -> Option<Value> {
    serde_json::from_slice(&read(dir, STATS_XATTR)?).ok()
}

/// The patchgroups of a mount of ours.
pub(crate) fn groups(root: &Path) -> Option<Value> {
    serde_json::from_slice(&read(root, GROUPS)?).ok()
}

/// The root of the mount that a directory or file is in, by its absolute path.
pub(crate) fn root_of(path: &Path) -> Option<PathBuf> {
    let path = path.canonicalize().ok()?;
    let device = |path: &Path| path.metadata().ok().map(|found| found.dev());
    let own = device(&path)?;
    let inside = path.ancestors().take_while(|at| device(at) == Some(own));
    inside.last().map(Path::to_owned)
}

fn read(dir: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 1 << 16];
    let len = getxattr(dir, name, &mut value[..]).ok()?;
    value.truncate(len);
    Some(value)
}
