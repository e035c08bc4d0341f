//! Transactions that are longer than a log.

use super::*;

/// Words of the block that long transactions write as a whole.
const LONG: u64 = 1000;

/// Memory with logs that hold a tenth of such a transaction, and with that block, of zeros.
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

/// What a long transaction stored, as a whole.
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

/// Whichever store or fence is the last one before the power fails.
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
            // Recovery has fences of its own.
            let mut session = open_small(&power).session();
            power.cut_after(CutAfter::Fences(fences), fences, model);
            let done = session.run(|tx| Ok::<_, Stop<Infallible>>(write_long(tx, block, 7)?));
            drop(session);
            let was_cut = power.outcome().is_some();
            let pm = power.into_inner();
            let in_place = read_in_part(&pm, block);
            let memory = open_small(&pm);
            let found = read_long(&pm, block);
            assert!(
                found == 7 || found == 0 && done.is_err(),
                "{fences}: {done:?}"
            );
            replayed += u64::from(found == 7 && !in_place);
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

/// Whether a long transaction is in place.
fn read_in_part(pm: &MemoryPmem, block: u64) -> bool {
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
    // As a part of what fails: of the pages that it frees it can have none.
    let refused = session.run(|tx| {
        tx.free(blocks[0])?;
        Ok::<_, Stop<Infallible>>(write_long(tx, block, 7)?)
    });
    assert!(refused.is_err(), "{refused:?}");
    // Short ones go on, and with some room the long one does.
    for at in &blocks[..2] {
        let freed = session.run(|tx| Ok::<_, Stop<Infallible>>(tx.free(*at)?));
        freed.unwrap();
    }
    let done = session.run(|tx| Ok::<_, Stop<Infallible>>(write_long(tx, block, 7)?));
    done.unwrap();
    assert_eq!(read_long(&pm, block), 7);
}

// --- and in a heap whose free pages are apart ------------------------------------------

/// A page of the heap, and its words.
const PAGE: u64 = 8192;
const PAGE_WORDS: u64 = PAGE / 8;

/// With a heap that takes all there is.
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

/// Memory whose heap is full, and every other page of it free again. Where the others are, which
/// are zeros.
fn with_free_pages_apart(bytes: u64, log_bytes: u64, log_kind: Kind) -> (MemoryPmem, Vec<u64>) {
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

/// Whether all was written; if not, nothing was.
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
fn a_long_transaction_takes_free_pages_that_are_apart() {
    // Of 2 MiB in 256 free pages, and of 2 KiB logs that name 36 parts.
    let (pm, pages) = with_free_pages_apart(5 << 20, 2048, Kind::TornBit);
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
fn a_transaction_of_tens_of_mebibytes_takes_free_pages_that_are_apart() {
    let (pm, pages) = with_free_pages_apart(64 << 20, 256 << 10, Kind::TornBit);
    let pages = &pages[..3000];
    write_pages(&mut open_growing(&pm).session(), pages).unwrap();
    assert!(are_written(&pm, pages));
}

/// All parts are durable before the record that names them, and recovery finds them.
#[test]
fn parts_that_are_apart_are_whole_after_every_power_cut() {
    for (kind, model) in [
        (Kind::TornBit, PersistModel::Lines),
        (Kind::Base, PersistModel::Words),
    ] {
        let (mut replayed, mut fences) = (0, 1);
        loop {
            let (pm, pages) = with_free_pages_apart(512 << 10, 2048, kind);
            let pages = &pages[..6];
            let power = PowerCut::new(pm);
            let mut session = open_growing(&power).session();
            power.cut_after(CutAfter::Fences(fences), fences, model);
            let done = write_pages(&mut session, pages);
            drop(session);
            let was_cut = power.outcome().is_some();
            let pm = power.into_inner();
            let word = pages[5] + PAGE - 8;
            let in_place = pm.load(word).unwrap() != 0;
            drop(open_growing(&pm));
            let written = are_written(&pm, pages);
            assert!(written || done.is_err(), "{fences}: {done:?}");
            replayed += u64::from(written && !in_place);
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
