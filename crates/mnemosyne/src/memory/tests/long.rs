//! Transactions that are longer than a log.

use super::*;

/// Words of the block that long transactions write as a whole.
const LONG: u64 = 1000;

/// Formats memory with a block of zeros, and logs that hold a tenth of a transaction that writes
/// it.
fn with_long_block(log_kind: Kind, bytes: u64) -> (MemoryPmem, u64) {
    let pm = MemoryPmem::new(bytes);
    let layout = Layout {
        slots: 6,
        roots: 2,
        granule: 8192,
        logs: 2,
        log_bytes: 1024,
        log_kind,
    };
    layout.format(&pm).unwrap();
    let memory = open_small(&pm);
    let block = memory.session().run(|tx| {
        let block = tx.alloc(LONG * 8)?;
        tx.fill(block, &[0; LONG as usize * 8])?;
        assert!(tx.set_root("long", 1, block)?);
        Ok::<_, Stop<Infallible>>(block)
    });
    drop(memory);
    (pm, block.unwrap())
}

fn open_small<P: Pmem + Clone>(pm: P) -> DurableMemory<Flat<P>> {
    let options = Options {
        tx: tx::Options {
            locks: 64,
            ..tx::Options::default()
        },
        heap_growth: 32 << 10,
    };
    DurableMemory::open(Flat(pm.clone()), pm, options).unwrap()
}

fn write_long<S: Space>(tx: &mut Tx<'_, S>, block: u64, with: u64) -> Result<(), Interrupted> {
    (0..LONG).try_for_each(|n| tx.store(tx.address(block + n * 8), with + n))
}

/// The value that a long transaction stored, which must have stored all or nothing.
fn read_long<P: Pmem>(pm: &P, block: u64) -> u64 {
    let word = |n: u64| pm.load(block + n * 8).unwrap().wrapping_sub(n);
    let first = word(0);
    let is_zero = first == 0 && pm.load(block + 8).unwrap() == 0;
    match is_zero {
        true => (0..LONG).for_each(|n| assert_eq!(pm.load(block + n * 8).unwrap(), 0)),
        false => (0..LONG).for_each(|n| assert_eq!(word(n), first)),
    }
    first
}

/// The power fails after each number of fences.
#[test]
fn a_long_transaction_is_whole_after_every_power_cut() {
    for (kind, model) in [
        (Kind::TornBit, PersistModel::Words),
        (Kind::TornBit, PersistModel::Lines),
        (Kind::Base, PersistModel::Words),
        (Kind::Base, PersistModel::Lines),
    ] {
        let (mut replayed, mut fences) = (0, 1);
        loop {
            let (pm, block) = with_long_block(kind, BYTES);
            let power = PowerCut::new(pm);
            // Recovery has its own fences.
            let mut session = open_small(&power).session();
            power.cut_after(CutAfter::Fences(fences), fences, model);
            let done = session.run(|tx| Ok::<_, Stop<Infallible>>(write_long(tx, block, 7)?));
            drop(session);
            let was_cut = power.outcome().is_some();
            let pm = power.into_inner();
            let was_stored = is_stored(&pm, block);
            let memory = open_small(&pm);
            let found = read_long(&pm, block);
            assert!(
                found == 7 || found == 0 && done.is_err(),
                "{fences}: {done:?}"
            );
            replayed += u64::from(found == 7 && !was_stored);
            let segments = memory.heap().segments();
            let blocks: Vec<_> = segments
                .iter()
                .map(|one| one.blocks(&pm).unwrap())
                .collect();
            assert_eq!(blocks.concat().len(), 1, "{fences}");
            if !was_cut {
                break;
            }
            fences += 1;
        }
        assert!(
            replayed > 0,
            "{kind:?}, {model}: no crash left an overflow to be replayed"
        );
    }
}

/// Whether all words of a long transaction are stored at their addresses.
fn is_stored(pm: &MemoryPmem, block: u64) -> bool {
    (0..LONG).all(|n| pm.load(block + n * 8).unwrap() == 7 + n)
}

#[test]
fn a_long_transaction_without_room_fails_and_leaves_nothing() {
    let (pm, block) = with_long_block(Kind::TornBit, 128 << 10);
    let memory = open_small(&pm);
    let mut session = memory.session();
    let mut blocks = Vec::new();
    let full = loop {
        match session.run(|tx| Ok::<_, Stop<Infallible>>(tx.alloc(8192)?)) {
            Ok(block) => blocks.push(block),
            Err(full) => break full,
        }
    };
    assert!(matches!(full, TxError::Heap(HeapError::NoSpace { .. })));
    let refused = session.run(|tx| Ok::<_, Stop<Infallible>>(write_long(tx, block, 7)?));
    let why = refused.unwrap_err();
    assert!(
        matches!(why, TxError::Heap(HeapError::NoSpace { .. })),
        "{why}"
    );
    assert!(why.to_string().contains("more than a log holds"), "{why}");
    assert_eq!(read_long(&pm, block), 0);
    // A transaction that fails cannot use the pages that it frees itself.
    let refused = session.run(|tx| {
        tx.free(blocks[0])?;
        Ok::<_, Stop<Infallible>>(write_long(tx, block, 7)?)
    });
    assert!(refused.is_err(), "{refused:?}");
    // Short transactions still commit. With some room the long one does.
    for at in &blocks[..2] {
        let freed = session.run(|tx| Ok::<_, Stop<Infallible>>(tx.free(*at)?));
        freed.unwrap();
    }
    let done = session.run(|tx| Ok::<_, Stop<Infallible>>(write_long(tx, block, 7)?));
    done.unwrap();
    assert_eq!(read_long(&pm, block), 7);
}

// --- and in a heap whose free pages are not contiguous ----------------------------------

/// The bytes and words of a page of the heap.
const PAGE: u64 = 8192;
const PAGE_WORDS: u64 = PAGE / 8;

/// Opens memory whose heap grows to all the room there is.
fn open_growing<P: Pmem + Clone>(pm: P) -> DurableMemory<Flat<P>> {
    let options = Options {
        tx: tx::Options {
            locks: 1 << 16,
            ..tx::Options::default()
        },
        heap_growth: 1 << 40,
    };
    DurableMemory::open(Flat(pm.clone()), pm, options).unwrap()
}

/// Formats memory whose heap is full, except for every other page. Returns the full pages, which
/// are zeros.
fn with_every_other_page_free(
    bytes: u64,
    log_bytes: u64,
    log_kind: Kind,
) -> (MemoryPmem, Vec<u64>) {
    let pm = MemoryPmem::new(bytes);
    let layout = Layout {
        slots: 64,
        roots: 2,
        granule: PAGE,
        logs: 2,
        log_bytes,
        log_kind,
    };
    layout.format(&pm).unwrap();
    let memory = open_growing(&pm);
    let (mut session, mut blocks) = (memory.session(), Vec::new());
    let full = loop {
        let block = session.run(|tx| {
            let block = tx.alloc(PAGE)?;
            tx.fill(block, &[0; PAGE as usize])?;
            Ok::<_, Stop<Infallible>>(block)
        });
        match block {
            Ok(block) => blocks.push(block),
            Err(full) => break full,
        }
    };
    assert!(matches!(full, TxError::Heap(HeapError::NoSpace { .. })));
    blocks.sort_unstable();
    for block in blocks.iter().step_by(2) {
        let freed = session.run(|tx| Ok::<_, Stop<Infallible>>(tx.free(*block)?));
        freed.unwrap();
    }
    drop(session);
    drop(memory);
    (pm, blocks.into_iter().skip(1).step_by(2).collect())
}

fn write_pages<P: Pmem + Clone>(
    session: &mut Session<Flat<P>>,
    pages: &[u64],
) -> Result<(), TxError<Infallible>> {
    session.run(|tx| {
        for page in pages {
            for n in 0..PAGE_WORDS {
                tx.store(tx.address(page + n * 8), page + n)?;
            }
        }
        Ok::<_, Stop<Infallible>>(())
    })
}

/// Whether all pages were written; if not, none was.
fn are_written(pm: &MemoryPmem, pages: &[u64]) -> bool {
    let mut written = 0;
    for page in pages {
        let word = |n| pm.load(page + n * 8).unwrap();
        let whole = (0..PAGE_WORDS).all(|n| word(n) == page + n);
        assert!(whole || (0..PAGE_WORDS).all(|n| word(n) == 0), "{page:#x}");
        written += usize::from(whole);
    }
    assert!(written == 0 || written == pages.len(), "{written}");
    written > 0
}

#[test]
fn a_long_transaction_uses_pages_that_are_not_contiguous() {
    // 2 MiB are free in 256 pages, and a log of 2 KiB can name 36 parts.
    let (pm, pages) = with_every_other_page_free(5 << 20, 2048, Kind::TornBit);
    let mut session = open_growing(&pm).session();
    for _ in 0..3 {
        write_pages(&mut session, &pages[..20]).unwrap();
    }
    assert!(are_written(&pm, &pages[..20]));
    let why = write_pages(&mut session, &pages[20..120]).unwrap_err();
    assert!(why.to_string().contains("parts"), "{why}");
    assert!(!are_written(&pm, &pages[20..]));
}

#[test]
fn a_transaction_of_tens_of_mebibytes_uses_pages_that_are_not_contiguous() {
    let (pm, pages) = with_every_other_page_free(64 << 20, 256 << 10, Kind::TornBit);
    let pages = &pages[..3000];
    write_pages(&mut open_growing(&pm).session(), pages).unwrap();
    assert!(are_written(&pm, pages));
}

/// All parts are durable before the record that names them, and recovery finds them.
#[test]
fn an_overflow_of_several_parts_is_whole_after_every_power_cut() {
    for (kind, model) in [
        (Kind::TornBit, PersistModel::Lines),
        (Kind::Base, PersistModel::Words),
    ] {
        let (mut replayed, mut fences) = (0, 1);
        loop {
            let (pm, pages) = with_every_other_page_free(512 << 10, 2048, kind);
            let pages = &pages[..6];
            let power = PowerCut::new(pm);
            let mut session = open_growing(&power).session();
            power.cut_after(CutAfter::Fences(fences), fences, model);
            let done = write_pages(&mut session, pages);
            drop(session);
            let was_cut = power.outcome().is_some();
            let pm = power.into_inner();
            let word = pages[5] + PAGE - 8;
            let was_stored = pm.load(word).unwrap() != 0;
            drop(open_growing(&pm));
            let written = are_written(&pm, pages);
            assert!(written || done.is_err(), "{fences}: {done:?}");
            replayed += u64::from(written && !was_stored);
            if !was_cut {
                done.unwrap();
                break;
            }
            fences += 1;
        }
        assert!(replayed > 0, "{kind:?}, {model}: nothing was replayed");
    }
}

#[test]
fn pages_of_overflows_are_used_again() {
    let (pm, block) = with_long_block(Kind::Base, BYTES);
    let memory = open_small(&pm);
    let mut session = memory.session();
    let regions = |memory: &DurableMemory<_>| memory.regions().unwrap().len();
    for n in 1..100 {
        let done = session.run(|tx| {
            write_long(tx, block, n)?;
            match n % 5 {
                0 => Err(Stop::Cancel(())),
                _ => Ok(()),
            }
        });
        assert_eq!(done.is_err(), n % 5 == 0, "{done:?}");
        assert_eq!(read_long(&pm, block), n - u64::from(n % 5 == 0));
    }
    assert_eq!(regions(&memory), 1, "the heap has grown");
}

#[test]
fn threads_commit_long_transactions() {
    let (pm, block) = with_long_block(Kind::TornBit, 4 << 20);
    let pm = Arc::new(pm);
    let memory = open_small(pm.clone());
    memory.truncate_in_background();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut session = memory.session();
                for _ in 0..20 {
                    let added = session.run(|tx| {
                        let now = tx.load(block)?;
                        Ok::<_, Stop<Infallible>>(write_long(tx, block, now + 1)?)
                    });
                    added.unwrap();
                }
            });
        }
    });
    assert_eq!(read_long(&pm, block), 60);
    drop(memory);
    drop(open_small(pm.clone()));
    assert_eq!(read_long(&pm, block), 60);
}
