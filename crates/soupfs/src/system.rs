//! SoupFS for harnesses: the explorer and the tests.

use crate::alloc::reserved_pages;
use crate::format::{MIN_PAGES, PAGE};
use crate::pressure::Portion;
use crate::sharing::{Sharing, Threads};
use crate::{MkfsOptions, Mode, MountOptions, SoupFs, Timer, check, mkfs};
use medium::{Pmem, Rule};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;
use vfs::check::Report;
use vfs::{Atime, Clock, FileSystem, Still, System};

/// SoupFS, by default on the smallest image. Its free memory is not zeroed.
#[derive(Debug, Clone, Copy, Default)]
pub struct SoupSystem {
    /// The way in which file contents are overwritten.
    pub mode: Mode,
    /// Each call is persistent when it returns.
    pub sync: bool,
    /// Persisters that share each round, however small. 0 is one, too.
    pub persisters: usize,
    /// Whether each persister has a thread, for power cuts: there a fence covers the flushes of its own
    /// thread. Recordings have those of all threads as one.
    pub has_threads: bool,
    /// Whether each round takes only one inode or name, if others can follow.
    pub in_portions: bool,
    /// Pages of the image beyond those of the smallest one.
    pub more_pages: u64,
}

/// Most pages beyond the smallest image: 16 GiB.
const MAX_MORE: u64 = 4 << 20;

impl SoupSystem {
    /// A system with room for that many bytes of data and that many inodes.
    pub fn with_room(mode: Mode, bytes: u64, inodes: u64) -> Self {
        // Replaced data stay until the next round. Each inode may have a table or a page of attributes,
        // and a last page of data that is not full.
        let data = bytes.div_ceil(PAGE).saturating_mul(2);
        let more_pages = data.saturating_add(inodes.saturating_mul(4)).min(MAX_MORE);
        Self {
            mode,
            more_pages,
            ..Self::default()
        }
    }

    fn pages(self) -> u64 {
        MIN_PAGES + self.more_pages
    }

    fn opened(
        self,
        pm: Arc<dyn Pmem>,
        clock: Arc<dyn Clock>,
        boot: Option<u128>,
    ) -> Result<Arc<SoupFs<Arc<dyn Pmem>>>, String> {
        let options = MountOptions {
            read_only: false,
            atime: Atime::Never,
            clock,
            bound_s: None,
            sync: self.sync,
            boot,
            mode: self.mode,
            persisters: NonZeroUsize::MIN,
        };
        let threads = match self.has_threads {
            true => Threads::InTurn,
            false => Threads::Own,
        };
        let sharing = Sharing::in_turn(self.persisters, threads);
        let portion = match self.in_portions {
            true => Portion::LEAST,
            false => Portion::OF_MOUNT,
        };
        let fs = SoupFs::open_with(pm, options, sharing, portion).map_err(|e| e.to_string())?;
        Ok(Arc::new(fs))
    }
}

impl System<dyn Pmem> for SoupSystem {
    fn id(&self) -> String {
        let sync = if self.sync { "-sync" } else { "" };
        let persisters = match self.persisters {
            0 | 1 => String::new(),
            several => format!("-by-{several}"),
        };
        let portions = if self.in_portions { "-portions" } else { "" };
        format!("soupfs-{}{sync}{persisters}{portions}", self.mode)
    }

    fn image_bytes(&self) -> u64 {
        self.pages() * PAGE
    }

    fn format(&self, pm: &dyn Pmem) -> Result<(), String> {
        mkfs(pm, &MkfsOptions::default()).map_err(|e| e.to_string())?;
        // Old dentries of the epochs to come, with links to themselves.
        let (first, mut line) = (reserved_pages(self.pages()) * PAGE, [0_u8; 64]);
        let end = self.image_bytes().min(first + MIN_PAGES * PAGE);
        for at in (first..end).step_by(64) {
            let words = [
                at / 64,
                at / 64,
                at / 64,
                2 + at / 64 % 3,
                0x41,
                0x4141,
                0,
                0,
            ];
            for (word, bytes) in words.into_iter().zip(line.chunks_mut(8)) {
                bytes.copy_from_slice(&u64::to_le_bytes(word));
            }
            pm.store_nt(at, &line);
        }
        pm.fence(Rule::DurableBeforeUse).map_err(|e| e.to_string())
    }

    fn open(
        &self,
        pm: Arc<dyn Pmem>,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn FileSystem>, String> {
        Ok(self.opened(pm, clock, None)?)
    }

    fn has_cache(&self) -> bool {
        true
    }

    fn open_still(
        &self,
        pm: Arc<dyn Pmem>,
        clock: Arc<dyn Clock>,
        wave: usize,
    ) -> Result<Still, String> {
        Ok(still(self.opened(pm, clock, None)?, wave))
    }

    fn open_in_boot(
        &self,
        pm: Arc<dyn Pmem>,
        clock: Arc<dyn Clock>,
        wave: usize,
        boot: u128,
    ) -> Result<Still, String> {
        Ok(still(self.opened(pm, clock, Some(boot))?, wave))
    }

    fn check(&self, pm: &dyn Pmem) -> Report {
        check(pm)
    }
}

impl<P: Pmem> SoupFs<P> {
    /// Runs the persister of a mount without one on this thread, in the time of `timer`.
    pub fn persist_by(&self, timer: &dyn Timer, bound: Duration) {
        self.core.run_rounds(bound, timer);
    }
}

/// Rounds of the persister run on request.
fn still(fs: Arc<SoupFs<Arc<dyn Pmem>>>, wave: usize) -> Still {
    let (some, drawn) = (Arc::clone(&fs), Arc::clone(&fs));
    let failed = |e: crate::error::Fault| e.errno().to_string();
    Still {
        fs,
        write_some: Box::new(move || some.core.persist_some(wave, &mut |_| 0).map_err(failed)),
        write_drawn: Box::new(move |draw| drawn.core.persist_some(1, draw).map_err(failed)),
    }
}
