//! Small durable memory with a structure of each kind, and their offsets.

use medium::{LINE_BYTES, MemoryPmem, Pmem, Rule};
use mnemosyne::memory::{
    Backing, DurableMemory, Flat, Layout, Options, Region, RegionKind, Session,
};
use mnemosyne::statics::{Table, Variable, tag};
use mnemosyne::tx::{self, Stop};
use std::convert::Infallible;
use wordlog::Kind;

/// The length of the memory in bytes.
pub const LEN: u64 = 256 << 10;
pub const SLOTS: u64 = 8;
pub const ROOTS: u64 = 4;
pub const LOG_BYTES: u64 = 4096;
pub const LOGS: u64 = 2;

/// Offsets in the system region.
pub const TABLE: u64 = 4096;
pub const ROOT: u64 = TABLE + SLOTS * LINE_BYTES;
pub const AREA: u64 = 8192;

/// Slots of the regions.
pub const HEAP: u64 = 0;
pub const LOG: u64 = 1;
pub const STATICS: u64 = 2;

/// Sizes of a small block and of a large one.
pub const SMALL_BYTES: u64 = 64;
pub const LARGE_PAGES: u64 = 3;

pub fn log_start(log: u64) -> u64 {
    AREA + LINE_BYTES + log * LOG_BYTES
}

/// A word whose top bit makes the number of ones even.
pub fn sealed(word: u64) -> u64 {
    word | u64::from(word.count_ones()) << 63
}

/// The checksum of a slot of the region table, whose first words are `line`.
pub fn slot_checksum(slot: u64, line: &[u8]) -> u64 {
    crc32c::crc32c_append(crc32c::crc32c(&slot.to_le_bytes()), line).into()
}

pub fn layout(granule: u64) -> Layout {
    Layout {
        slots: SLOTS,
        roots: ROOTS,
        granule,
        logs: LOGS,
        log_bytes: LOG_BYTES,
        log_kind: Kind::TornBit,
    }
}

pub fn options() -> Options {
    Options {
        tx: tx::Options {
            locks: 64,
            ..tx::Options::default()
        },
        heap_growth: 64 << 10,
    }
}

pub fn open<P: Pmem + Clone>(
    pm: P,
) -> Result<DurableMemory<Flat<P>>, mnemosyne::memory::MemoryError> {
    DurableMemory::open(Flat(pm.clone()), pm, options())
}

/// Memory with structures of each kind and with records in its logs.
pub fn made() -> MemoryPmem {
    let pm = MemoryPmem::new(LEN);
    layout(8192).format(&pm).unwrap();
    fill(&open(&pm).unwrap());
    // Opening has emptied the logs.
    leave_records(&open(&pm).unwrap());
    pm
}

pub fn copy(pm: &MemoryPmem) -> MemoryPmem {
    let mut bytes = vec![0; pm.len() as usize];
    pm.read(0, &mut bytes).unwrap();
    let copy = MemoryPmem::new(pm.len());
    copy.store(0, &bytes);
    copy
}

/// Makes blocks, roots, a program's log and variables.
pub fn fill<B: Backing>(memory: &DurableMemory<B>) {
    let mut session = memory.session();
    run(&mut session, |tx| {
        let small = tx.alloc(SMALL_BYTES)?;
        let large = tx.alloc(LARGE_PAGES * 8192)?;
        for word in 0..8 {
            tx.store(small + word * 8, 0)?;
        }
        tx.store(small, large)?;
        tx.store(large, small)?;
        assert!(tx.set_root("one", 7, small)?);
        assert!(tx.set_root("two", 8, large)?);
        Ok(())
    });
    let freed = run(&mut session, |tx| tx.alloc(100));
    run(&mut session, |tx| tx.free(freed));
    memory
        .map(RegionKind::Program, 8192, 0, |_, _| Ok(()))
        .unwrap();
    let mut table = Table {
        program: "program".into(),
        generation: 1,
        data: 0,
        section: 4096,
        variables: [("counter".to_owned(), Variable { start: 0, len: 8 })].into(),
    };
    let encoded = table.encode().unwrap();
    let pm = memory.backing().pmem();
    let statics = memory.map(RegionKind::Static, 8192, tag("program"), |_, start| {
        pm.store_nt(start, &encoded);
        Ok(pm.fence(Rule::DurableBeforeReturn)?)
    });
    statics.unwrap();
    let region = region(memory, LOG);
    wordlog::format(pm, region.start, 4096, Kind::Base).unwrap();
    let mut words = vec![];
    let (mut log, _) = wordlog::Unrecovered::open(pm.clone(), region.start)
        .unwrap()
        .keep()
        .unwrap();
    for len in [5_u64, 8, 30] {
        words.clear();
        words.push(len);
        words.resize(1 + len.div_ceil(8) as usize, 0x1234);
        log.append(&words).unwrap();
        log.flush().unwrap();
    }
}

/// Leaves a few records in each log, of words of the first root's block.
pub fn leave_records<B: Backing>(memory: &DurableMemory<B>) {
    let mut sessions = [memory.session(), memory.session()];
    for round in 1..4 {
        for session in &mut sessions {
            run(session, |tx| {
                let (_, at) = tx.root("one")?.unwrap();
                tx.store(at + 16, round)?;
                tx.store(at + 24, round)
            });
        }
    }
}

pub fn region<B: Backing>(memory: &DurableMemory<B>, slot: u64) -> Region {
    let regions = memory.regions().unwrap();
    *regions.iter().find(|region| region.slot == slot).unwrap()
}

pub fn run<B: Backing, T>(
    session: &mut Session<B>,
    mut body: impl FnMut(&mut mnemosyne::memory::Tx<'_, B::Pmem>) -> Result<T, tx::Interrupted>,
) -> T {
    let done = session.run(|tx| Ok::<_, Stop<Infallible>>(body(tx)?));
    done.unwrap()
}
