//! Plain stores, which nothing flushes, before an orderly end: the sync of the directory makes them durable.

use crate::disk::{DISK_BYTES, Disk, Process};
use crate::marks::{count_of, mark_of, text};
use crate::whole::{Step, Using, Whole};
use crash::program::{Memory, Program};
use medium::{Durability, MapOptions, Pmem};
use mnemosyne::memory::{Directory, DirectoryOptions, MemoryError, RegionKind};
use mnemosyne::tx::Truncation;
use std::sync::Arc;
use wordlog::Kind;

const PLACE: &str = "/memory";
/// The slot of a region, and the offset of a word there that no transaction writes.
const SLOT: u64 = 2;
const OFFSET: u64 = 128;

/// A mark with the number of ends.
const ENDED: u64 = 1;

/// Processes of one boot. Each stores its number, and ends.
pub struct Plain {
    /// Number of the processes. There is no note of the boot: with one, a crash before the end loses all.
    pub processes: usize,
}

type Use = Using<Directory<Process>>;

fn open_in(process: Process) -> Result<Use, MemoryError> {
    let whole = Whole {
        kind: Kind::TornBit,
        truncation: Truncation::Lazy,
        log_lines: 30,
        steps: &[],
    };
    let options = DirectoryOptions {
        bytes: 1 << 20,
        layout: whole.layout(),
        map: MapOptions {
            durability: Durability::Msync,
            ..MapOptions::default()
        },
        ..DirectoryOptions::default()
    };
    let directory = Directory::open_in(process, PLACE, &options)?;
    Using::open(&whole, directory)
}

/// The address of the word, once its region is there.
fn place(using: &Use) -> Result<Option<u64>, String> {
    let regions = using.store.regions().map_err(text)?;
    let mut programs = regions.iter().filter(|one| one.kind == RegionKind::Program);
    Ok(programs.next().map(|region| region.start + OFFSET))
}

impl Plain {
    fn live(&self, process: Process, number: usize) -> Result<(), String> {
        let mut using = open_in(process).map_err(text)?;
        if number == 0 {
            using.step(Step::Map { slot: SLOT }, 9, &|| {})?;
        }
        let place = place(&using)?.ok_or("a process finds no region")?;
        let directory = using.store.backing();
        directory.arena().store_word(place, number as u64 + 1);
        directory.sync().map_err(text)
    }
}

impl Program for Plain {
    type Opened = Use;

    fn bytes(&self) -> u64 {
        DISK_BYTES
    }

    fn format(&self, _pm: Memory) -> Result<(), String> {
        Ok(())
    }

    fn run(&self, pm: Memory, mark: &dyn Fn(u64)) -> Result<(), String> {
        let disk = Disk::mount(pm)?;
        for number in 0..self.processes {
            self.live(disk.process(usize::MAX), number)?;
            mark(mark_of(ENDED, number + 1));
        }
        Ok(())
    }

    fn open(&self, pm: Memory) -> Result<Use, String> {
        let process = Disk::mount(pm)?.process(usize::MAX);
        open_in(process).map_err(text)
    }

    fn check(&self, using: &mut Use, marks: &[u64]) -> Result<u64, String> {
        let arena = Arc::clone(using.store.backing().arena());
        let found = match place(using)? {
            Some(place) => arena.load(place).map_err(text)?,
            None => 0,
        };
        let ended = count_of(marks, ENDED) as u64;
        match (ended..=ended + 1).contains(&found) {
            true => Ok(found),
            false => Err(format!(
                "{ended} processes have ended, and the last store is {found}"
            )),
        }
    }

    fn go_on(&self, _using: Use) -> Result<(), String> {
        Ok(())
    }
}
