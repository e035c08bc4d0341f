//! Resolves the paths in calls.

use super::process::{Location, Target};
use super::state::State;
use crate::{Kind, Node, Place};
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// Most symbolic links in one path, as in Linux.
const LINKS_MAX: usize = 40;

/// Most bytes of a name, as in Linux.
const NAME_MAX: usize = 255;

/// Most bytes of the target of a symbolic link, as in Linux.
pub(super) const TARGET_MAX: usize = 4095;

/// Most bytes of a path outside of the run.
const PATH_MAX: usize = 16 << 10;

/// The object at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    At(Location),
    /// A free name in a directory of the run.
    Free(Place),
    /// A descriptor of the process (`/proc/self/fd/3`).
    Descriptor(i32),
    /// A path through a name that is not in the run.
    Lost,
}

/// The object at a path, and the name of it in the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) found: Found,
    /// The last name on the way, if its directory is in the run.
    pub(super) place: Option<Place>,
}

impl Spot {
    /// The inode, if it is in the run.
    pub(super) fn node(&self) -> Option<Node> {
        match self.found {
            Found::At(Location::Inside(node)) => Some(node),
            _ => None,
        }
    }
}

struct Walk {
    at: Location,
    place: Option<Place>,
    /// Names that are left, the next one last.
    left: Vec<Vec<u8>>,
}

/// The result of one step.
enum Step {
    More,
    Link(Vec<u8>),
    End(Found),
}

impl State {
    /// Resolves a path of the present process. `follow`: also a symbolic link at its end.
    pub(super) fn walk(&self, base: Location, path: &[u8], follow: bool) -> Spot {
        let follow = follow || path.ends_with(b"/");
        let mut walk = Walk {
            at: self.start(base, path),
            place: None,
            left: names(path),
        };
        let mut links = 0;
        let found = loop {
            let Some(name) = walk.left.pop() else {
                break Found::At(walk.at);
            };
            let is_link_followed = follow || !walk.left.is_empty();
            match self.step(&mut walk, &name, is_link_followed) {
                Step::More => {}
                Step::End(found) => break found,
                Step::Link(_) if links == LINKS_MAX => break Found::Lost,
                Step::Link(target) => {
                    links += 1;
                    walk.at = self.start(walk.at, &target);
                    walk.left.extend(names(&target));
                    walk.place = None;
                }
            }
        };
        Spot {
            found,
            place: walk.place,
        }
    }

    fn start(&self, base: Location, path: &[u8]) -> Location {
        match path.first() {
            Some(b'/') if self.root == b"/" => Location::Inside(Node::ROOT),
            Some(b'/') => Location::Outside(Vec::new()),
            _ => base,
        }
    }

    fn step(&self, walk: &mut Walk, name: &[u8], follow: bool) -> Step {
        match walk.at.clone() {
            Location::Inside(dir) => self.step_inside(walk, dir, name, follow),
            Location::Outside(path) => self.step_outside(walk, path, name, follow),
        }
    }

    fn step_inside(&self, walk: &mut Walk, dir: Node, name: &[u8], follow: bool) -> Step {
        if name == b".." {
            walk.place = None;
            walk.at = match self.parents.get(&dir) {
                Some(parent) => Location::Inside(*parent),
                None if dir == Node::ROOT && self.root != b"/" => {
                    Location::Outside(parent_of(&self.root).to_vec())
                }
                None => Location::Inside(Node::ROOT),
            };
            return Step::More;
        }
        if name.len() > NAME_MAX {
            return Step::End(Found::Lost);
        }
        let place = Place::new(dir, name);
        let Some(node) = self.tree.lookup(&place) else {
            return Step::End(match walk.left.is_empty() {
                true => {
                    walk.place = Some(place.clone());
                    Found::Free(place)
                }
                false => Found::Lost,
            });
        };
        if let Some(Kind::Symlink(target)) = self.tree.get(node).map(|inode| &inode.kind)
            && follow
        {
            return Step::Link(target.0.clone());
        }
        walk.place = Some(place);
        walk.at = Location::Inside(node);
        Step::More
    }

    fn step_outside(&self, walk: &mut Walk, mut path: Vec<u8>, name: &[u8], follow: bool) -> Step {
        walk.place = None;
        if name == b".." {
            walk.at = Location::Outside(parent_of(&path).to_vec());
            return Step::More;
        }
        if path.len() + name.len() > PATH_MAX {
            return Step::End(Found::Lost);
        }
        if path != b"/" {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        if path == self.root {
            walk.at = Location::Inside(Node::ROOT);
            return Step::More;
        }
        if let Some(fd) = descriptor(&path, self.pid)
            && follow
        {
            if walk.left.is_empty() {
                return Step::End(Found::Descriptor(fd));
            }
            let open = self.process().and_then(|process| process.open(fd));
            return match open.as_deref().map(|open| &open.target) {
                Some(Target::At(location)) => {
                    walk.at = location.clone();
                    Step::More
                }
                _ => Step::End(Found::Lost),
            };
        }
        // The links of the traced process are not those of this one.
        let is_own = matches!(&path[..], b"/proc/self" | b"/proc/thread-self");
        if follow
            && !is_own
            && let Ok(target) = std::fs::read_link(Path::new(OsStr::from_bytes(&path)))
        {
            walk.at = Location::Outside(parent_of(&path).to_vec());
            return Step::Link(target.into_os_string().into_vec());
        }
        walk.at = Location::Outside(path);
        Step::More
    }
}

/// The names in a path, the first one last.
fn names(path: &[u8]) -> Vec<Vec<u8>> {
    let parts = path.split(|byte| *byte == b'/').rev();
    parts
        .filter(|part| !part.is_empty() && *part != b".")
        .map(<[u8]>::to_vec)
        .collect()
}

fn parent_of(path: &[u8]) -> &[u8] {
    let slash = path.iter().rposition(|byte| *byte == b'/');
    &path[..slash.unwrap_or(0)]
}

/// The number in `/proc/self/fd/3` and `/dev/fd/3`.
fn descriptor(path: &[u8], pid: u32) -> Option<i32> {
    match path {
        b"/dev/stdin" => return Some(0),
        b"/dev/stdout" => return Some(1),
        b"/dev/stderr" => return Some(2),
        _ => {}
    }
    let own = format!("/proc/{pid}/fd/");
    let prefixes: [&[u8]; 4] = [
        b"/proc/self/fd/",
        b"/proc/thread-self/fd/",
        b"/dev/fd/",
        own.as_bytes(),
    ];
    let mut numbers = prefixes
        .iter()
        .filter_map(|prefix| path.strip_prefix(*prefix));
    std::str::from_utf8(numbers.next()?).ok()?.parse().ok()
}
