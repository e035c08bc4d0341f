//! A heap that grows, and regions that cannot be made.

use super::*;

/// A transaction needs more room than is left, block by block. The blocks that it gives back when
/// it fails are not enough for it.
#[test]
fn a_transaction_of_many_blocks_makes_the_heap_grow() {
    let pm = std::sync::Arc::new(MemoryPmem::new(BYTES));
    let layout = Layout {
        slots: 12,
        roots: 3,
        granule: 8192,
        logs: 1,
        log_bytes: 8 << 10,
        log_kind: Kind::TornBit,
    };
    layout.format(&pm).unwrap();
    let options = Options {
        heap_growth: 32 << 10,
        ..Options::default()
    };
    let mut session = DurableMemory::open(Flat(pm.clone()), pm, options)
        .unwrap()
        .session();
    for (blocks, bytes) in [(10, 5000), (40, 1000), (3, 12_000)] {
        let made = session.run(|tx| {
            let blocks = (0..blocks).map(|_| tx.alloc(bytes));
            Ok::<_, Stop<Infallible>>(blocks.collect::<Result<Vec<_>, _>>()?)
        });
        let made = made.unwrap();
        let freed = session.run(|tx| {
            made.iter().try_for_each(|off| tx.free(*off))?;
            Ok::<_, Stop<Infallible>>(())
        });
        freed.unwrap();
    }
    let too_many = session.run(|tx| {
        (0..100).try_for_each(|_| tx.alloc(8000).map(drop))?;
        Ok::<_, Stop<Infallible>>(())
    });
    assert!(
        matches!(too_many, Err(TxError::Heap(HeapError::NoSpace { .. }))),
        "{too_many:?}"
    );
}

/// Memory that was never used: regions need no zeroing, and untouched pages take no memory.
#[derive(Clone)]
struct Untouched(Arc<MemoryPmem>);

impl Backing for Untouched {
    type Pmem = Arc<MemoryPmem>;

    fn pmem(&self) -> &Self::Pmem {
        &self.0
    }

    fn create(&self, _region: &Region) -> Result<(), BackingError> {
        Ok(())
    }

    fn open(&self, region: &Region) -> Result<bool, BackingError> {
        Flat(self.0.clone()).open(region)
    }

    fn remove(&self, _region: &Region) -> Result<(), BackingError> {
        Ok(())
    }
}

#[test]
fn blocks_may_be_larger_than_4_gib() {
    const BLOCK_BYTES: u64 = (4 << 30) + 4096;
    let ends = |at| [at, at + (4 << 30), at + BLOCK_BYTES - WORD_BYTES];
    let layout = Layout::default();
    // Only a few of its pages are touched.
    let pm = Arc::new(MemoryPmem::new(layout.bytes() + BLOCK_BYTES + (64 << 20)));
    layout.format(&pm).unwrap();
    let options = Options {
        heap_growth: 8 << 20,
        ..Options::default()
    };
    let open = || DurableMemory::open(Untouched(pm.clone()), pm.clone(), options.clone()).unwrap();
    let make = |tx: &mut Tx<'_, Arc<MemoryPmem>>| {
        let small = tx.alloc(64)?;
        let at = tx.alloc(BLOCK_BYTES)?;
        ends(at)
            .into_iter()
            .try_for_each(|end| tx.store(end, end))?;
        tx.set_root("block", 1, at)?;
        tx.free(small)?;
        Ok::<_, Stop<Infallible>>(at)
    };
    let at = open().session().run(make).unwrap();
    let mut session = open().session();
    let found = session.run(|tx| {
        let found: Vec<_> = ends(at).into_iter().map(|end| tx.load(end)).collect();
        tx.free(at)?;
        Ok::<_, Stop<Infallible>>(found.into_iter().collect::<Result<Vec<_>, _>>()?)
    });
    assert_eq!(found.unwrap(), ends(at));
    // There is no room for two.
    let again = session.run(make).unwrap();
    let second = session.run(|tx| Ok::<_, Stop<Infallible>>(tx.alloc(BLOCK_BYTES)?));
    assert_eq!(again, at);
    assert!(
        matches!(second, Err(TxError::Heap(HeapError::NoSpace { .. }))),
        "{second:?}"
    );
}

#[test]
fn a_region_that_cannot_be_linked_does_not_exist() {
    let mut rng = Rng::with_seed(1);
    let pm = made(&mut rng);
    let memory = DurableMemory::open(Flat(&pm), &pm, options(&mut rng)).unwrap();
    for _ in 0..2 * SLOTS {
        let made = memory.map(RegionKind::Program, 4096, 0, |tx, _| tx.store(BYTES, 1));
        assert!(matches!(made, Err(MemoryError::Refused(_))), "{made:?}");
    }
    memory
        .map(RegionKind::Program, 4096, 0, |_, _| Ok(()))
        .unwrap();
}

// --- transactions longer than a log ---------------------------------------------------
