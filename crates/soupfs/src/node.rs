//! The latest view of an inode, in memory.

use crate::change::{Changes, Mark, Marks};
use crate::format::{Inode, Line, MAX_HEIGHT, PAGE, Page, Root, mode_word, pair};
use crate::seeded::{Bug, hit};
use crate::staged::StagedBlocks;
use crate::sync::RwLock;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use crate::view::View;
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use vfs::{Attr, FileFlags, FileType, Ino, SIZE_MAX, Timestamp};

/// An inode in memory.
pub(crate) struct Node {
    pub ino: Ino,
    pub is_dir: bool,
    /// The number of the directory of the last lookup, or 0.
    via: AtomicU64,
    /// Whether it is in the list of dirty nodes.
    pub is_listed: AtomicBool,
    pub state: RwLock<State>,
}

// The bound of `pressure` counts on it. The locks of the test `interleaved` are larger.
#[cfg(not(test))]
const _: () = assert!(size_of::<Node>() <= 1024);

impl Node {
    pub(crate) fn new(ino: Ino, state: State) -> Arc<Self> {
        Arc::new(Self {
            ino,
            is_dir: state.is_dir(),
            via: AtomicU64::new(0),
            is_listed: AtomicBool::new(false),
            state: RwLock::new(state),
        })
    }

    /// Records the directory in which the node was found.
    pub(crate) fn found_in(&self, dir: Ino) {
        self.via.store(dir.0, Relaxed);
    }

    /// Forgets the directory of a [`found_in`](Self::found_in), which was removed.
    pub(crate) fn lose_via(&self, dir: Ino) {
        let _ = self.via.compare_exchange(dir.0, 0, Relaxed, Relaxed);
    }

    /// The directory of the last [`found_in`](Self::found_in).
    pub(crate) fn via(&self) -> Option<Ino> {
        Some(Ino(self.via.load(Relaxed))).filter(|dir| dir.0 > 0)
    }
}

/// The latest attributes and contents.
pub(crate) struct State {
    pub kind: FileType,
    pub perm: u32,
    pub generation: u16,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    /// The parent of a directory.
    pub parent: Ino,
    pub rdev: u32,
    /// Page of the extended attributes.
    pub xattr: Option<Page>,
    /// The one on the medium, or that a persister is about to store.
    pub stored_xattr: Option<Page>,
    /// Pages of contents, tree and attributes, as the last round has taken them.
    pub pages: u32,
    /// First line of the target of a symbolic link.
    pub target: Option<Line>,
    pub file: File,
    pub view: View,
    pub changes: Changes<Node>,
    /// The change that names a new directory.
    pub naming: Option<Arc<Mark>>,
    /// The removals of its names.
    pub removals: Marks,
    /// The time of change when it still had a name, if it has none.
    pub named_ctime: Option<Timestamp>,
    /// New dentries of the inode, and their changes.
    pub names: SmallVec<[(Line, Arc<Mark>); 1]>,
    /// Whether the inode is on the medium.
    pub is_stored: bool,
    /// Links that the medium counts.
    pub stored_links: u32,
    /// Whether the attributes differ from those on the medium.
    pub is_dirty: bool,
    /// Whether `link` may give it a first name (`O_TMPFILE`).
    pub is_nameable: bool,
    /// Its memory was given back.
    pub is_dead: bool,
}

/// The latest contents of a file: the tree on the medium, below the edits. It takes no memory for
/// edits until they are changed.
#[derive(Default)]
pub(crate) struct File {
    /// The root on the medium; 0 if the inode is not stored.
    pub root: u64,
    edits: Option<Box<Edits>>,
}

/// The latest contents of a file that differ from the tree on the medium.
#[derive(Default)]
pub(crate) struct Edits {
    pub staged: StagedBlocks,
    /// Pages for the nodes that the tree gets with the staged blocks, so that a round needs no others.
    pub nodes: Vec<Page>,
    /// Blocks from here on are not those of the tree.
    pub cut: Option<u64>,
    /// The same, of a cut that a persister is about to make.
    pub taken_cut: Option<u64>,
    /// The same, of a file that a crash may have left with blocks past its end.
    pub bound: Option<u64>,
    /// The least size since the last round of a persister, if it was cut.
    pub cut_size: Option<u64>,
    /// Blocks of the tree, and staged ones that a persister has taken, with new bytes.
    pub dirty: BTreeSet<u64>,
    /// Pages of [`State::pages`] that the latest view has lost, by cuts, holes and copies.
    pub lost_pages: u64,
}

static NO_EDITS: Edits = Edits {
    staged: StagedBlocks::new(),
    nodes: Vec::new(),
    cut: None,
    taken_cut: None,
    bound: None,
    cut_size: None,
    dirty: BTreeSet::new(),
    lost_pages: 0,
};

impl Deref for File {
    type Target = Edits;

    fn deref(&self) -> &Edits {
        self.edits.as_deref().unwrap_or(&NO_EDITS)
    }
}

impl DerefMut for File {
    fn deref_mut(&mut self) -> &mut Edits {
        self.edits.get_or_insert_default()
    }
}

impl File {
    /// The contents of a stored file. `bound`: as in [`Edits`].
    fn stored(root: u64, bound: Option<u64>) -> Self {
        let edits = bound.map(|_| {
            Box::new(Edits {
                bound,
                ..Edits::default()
            })
        });
        Self { root, edits }
    }

    pub(crate) fn root(&self) -> Root {
        Root(self.root)
    }

    /// Whether the latest view has nothing of the tree at a block.
    pub(crate) fn is_cut(&self, block: u64) -> bool {
        [self.cut, self.taken_cut, self.bound]
            .iter()
            .flatten()
            .any(|cut| block >= *cut)
    }

    /// Whether a persister has nothing to do.
    pub(crate) fn is_clean(&self) -> bool {
        self.staged.is_empty()
            && self.nodes.is_empty()
            && self.cut.is_none()
            && self.dirty.is_empty()
    }

    /// Pages that a round would flush.
    pub(crate) fn dirty_pages(&self) -> usize {
        self.staged.own_pages() as usize + self.dirty.len()
    }

    /// Most nodes that the tree gets when a round links what is staged, and `block`.
    pub(crate) fn nodes_with(&self, block: u64) -> u64 {
        let root = Some(self.root()).filter(|root| root.page().is_some());
        let last = self.staged.last().map_or(block, |last| last.max(block));
        let least = Root::height_for(last).unwrap_or(MAX_HEIGHT);
        let height = root.map_or(least, |root| root.height().max(least));
        // The tree grows at its root, unless it is made anew.
        let kept = root.filter(|_| !self.is_cut(0));
        let raised = height - kept.map_or(0, Root::height);
        // A path to each node of the lowest level begins below the root.
        let below = self.staged.leaves_with(block) * u64::from(height.saturating_sub(1));
        u64::from(raised) + below
    }

    /// Gives back the memory of edits that are made.
    pub(crate) fn settle(&mut self) {
        let cuts = [self.taken_cut, self.bound, self.cut_size];
        if self.is_clean() && cuts == [None; 3] {
            self.edits = None;
        }
    }
}

impl State {
    /// The state of a stored inode. `None` if it is damaged.
    pub(crate) fn stored(inode: &Inode, line: Line, is_after_crash: bool) -> Option<Self> {
        let kind = inode.kind()?;
        let word = inode.0;
        let is_dir = kind == FileType::Directory;
        let (is_file, is_link) = (kind == FileType::Regular, kind == FileType::Symlink);
        if is_file && (word[2] > SIZE_MAX || Root(word[3]).height() > MAX_HEIGHT) {
            return None;
        }
        Some(Self {
            kind,
            perm: inode.mode() & 0o7777,
            generation: inode.generation(),
            links: inode.links(),
            uid: inode.uid(),
            gid: inode.gid(),
            size: if is_dir { PAGE } else { word[2] },
            atime: Timestamp(word[5] as i64),
            mtime: Timestamp(word[6] as i64),
            ctime: Timestamp(word[7] as i64),
            parent: Ino(if is_dir { word[2] } else { 0 }),
            rdev: if is_dir || is_file || is_link {
                0
            } else {
                word[3] as u32
            },
            xattr: inode.xattr(),
            stored_xattr: inode.xattr(),
            pages: inode.pages(),
            target: is_link.then_some(Line(word[3])),
            file: File::stored(
                if is_file { word[3] } else { 0 },
                (is_file && is_after_crash).then_some(word[2].div_ceil(PAGE)),
            ),
            view: View::stored(is_dir.then_some(line.word(crate::format::inode::ROOT))),
            changes: Changes::default(),
            naming: None,
            removals: Marks::new(),
            named_ctime: None,
            names: SmallVec::new(),
            is_stored: true,
            stored_links: inode.links(),
            is_dirty: false,
            is_nameable: false,
            is_dead: false,
        })
    }

    /// The changes that make the new names.
    pub(crate) fn new_names(&self) -> impl Iterator<Item = Arc<Mark>> {
        let waits = self.names.iter().filter(|(_, mark)| !mark.is_done());
        waits.map(|(_, mark)| {
            mark.set_awaited();
            Arc::clone(mark)
        })
    }

    /// The changes before a removal of one name: all other new names of the inode. A directory also
    /// loses its names in their order, since it has one parent; and all that was moved out of it has
    /// left it.
    pub(crate) fn before_removal(&self, removed: Line) -> Marks {
        let others = self.names.iter().filter(|(line, _)| *line != removed);
        let others = others.filter(|_| !hit(Bug::RemovalBeforeOthers));
        let waits = others.filter(|(_, mark)| !mark.is_done());
        let waits = waits.map(|(_, mark)| mark);
        let last = self.removals.last().filter(|_| self.is_dir());
        let last = last.filter(|mark| !mark.is_done());
        waits
            .chain(last)
            .chain(
                self.changes
                    .marks()
                    .filter(|_| !hit(Bug::RemovalBeforeMoves)),
            )
            .map(|mark| {
                mark.set_awaited();
                Arc::clone(mark)
            })
            .collect()
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.kind == FileType::Directory
    }

    /// Whether it is a file that no crash shows any more: it has no name, and its removals are persistent.
    pub(crate) fn is_gone(&self) -> bool {
        let are_persistent = || self.removals.iter().all(|mark| mark.is_done());
        self.links == 0 && (hit(Bug::GoneEarly) || are_persistent())
    }

    pub(crate) fn attr(&self, ino: Ino) -> Attr {
        Attr {
            ino,
            generation: u64::from(self.generation),
            kind: self.kind,
            perm: self.perm,
            nlink: self.links,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size: self.size,
            blocks: self.pages_now() * (PAGE / 512),
            blksize: PAGE as u32,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            flags: FileFlags::empty(),
        }
    }

    /// Pages of contents, tree and attributes in the latest view. Nodes of a tree that grows are those
    /// of the last round.
    fn pages_now(&self) -> u64 {
        let all = u64::from(self.pages) + self.file.staged.own_pages();
        all.saturating_sub(self.file.lost_pages)
    }

    pub(crate) fn mode_word(&self, perm: u32, links: u32) -> u64 {
        mode_word(self.kind.mode_bits() | perm, self.generation, links)
    }

    /// The words of the inode when it is stored first, with these links, size and root.
    pub(crate) fn words(&self, links: u32, size: u64, root: u64) -> [u64; 8] {
        let (size, root) = match self.kind {
            FileType::Directory => (self.parent.0, 0),
            FileType::Symlink => (size, self.target.map_or(0, |line| line.0)),
            FileType::Regular => (size, root),
            FileType::Fifo | FileType::Socket | FileType::CharDevice | FileType::BlockDevice => {
                (0, u64::from(self.rdev))
            }
        };
        [
            self.mode_word(self.perm, links),
            pair(self.uid, self.gid),
            size,
            root,
            self.pages_word(),
            self.atime.0 as u64,
            self.mtime.0 as u64,
            self.named_ctime.unwrap_or(self.ctime).0 as u64,
        ]
    }

    pub(crate) fn pages_word(&self) -> u64 {
        pair(self.xattr.map_or(0, |page| page.0 as u32), self.pages)
    }
}
