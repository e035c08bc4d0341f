//! The cost of a transaction beyond that of the memory itself: an empty one and one of one
//! word, beside one line that is streamed and fenced, which no durable commit can avoid.
//!
//! The kinds take turns in batches, so that what else the machine does strikes all of them,
//! and a batch is over when all its stores have left the processor.

use super::Options;
use super::ground;
use crate::error::{Context, Result};
use crate::stats;
use medium::{LINE_BYTES, Pmem, Rule, WORD_BYTES};
use mnemosyne::memory::Layout;
use mnemosyne::tx::{Interrupted, Stop};
use serde::Serialize;
use std::convert::Infallible;
use std::time::Instant;

/// Calls that are timed together.
const BATCH: u32 = 64;

/// The words that are written to, and the lines that are streamed to.
const REGION_BYTES: u64 = 4 << 20;

/// One kind of commit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The name of the kind.
    pub what: &'static str,
    /// Nanoseconds of a commit: the median of batches.
    pub ns_median: f64,
    /// Nanoseconds of a commit: the mean, truncation included.
    pub ns_mean: f64,
}

/// One line, streamed and fenced.
pub(super) const LINE: &str = "stream a line, fence";
const WORD: &str = "store a word anywhere, flush, fence";
const EMPTY: &str = "empty transaction";
/// A transaction that writes a word.
pub(super) const ONE_WORD: &str = "transaction of one word";

type Step<'a> = Box<dyn FnMut() -> Result<()> + 'a>;

/// Measures the kinds of commit.
pub(super) fn measure(options: &Options) -> Result<Vec<Row>> {
    let layout = Layout::default();
    let bytes = layout.bytes() + 2 * REGION_BYTES + ground::SPARE_BYTES;
    let pm = ground::map(&options.dir, bytes)?;
    let bare = ground::map(&options.dir, REGION_BYTES)?;
    let store = ground::make(pm, &layout, &ground::options())?;
    let (mut empty, mut session) = (store.session(), store.session());
    let region = session.run(|tx| Ok::<_, Stop<Infallible>>(tx.alloc(REGION_BYTES)?));
    let region = region.what(|| "allocating".into())?;
    let random = std::cell::RefCell::new(fastrand::Rng::with_seed(3));
    let anywhere = || random.borrow_mut().u64(..REGION_BYTES / WORD_BYTES) * WORD_BYTES;
    let mut line = 0;
    let fence = || {
        bare.fence(Rule::DurableBeforeReturn)
            .what(|| "storing to memory".into())
    };
    let mut steps: [(&str, Step<'_>); 4] = [
        (
            LINE,
            Box::new(|| {
                bare.store_nt(line % REGION_BYTES, &[1; LINE_BYTES as usize]);
                line += LINE_BYTES;
                fence()
            }),
        ),
        (
            WORD,
            Box::new(|| {
                let at = anywhere();
                bare.store_word(at, at);
                bare.flush(at, WORD_BYTES);
                fence()
            }),
        ),
        (
            EMPTY,
            Box::new(|| {
                let done = empty.run(|_| Ok::<_, Stop<Infallible>>(()));
                done.what(|| "an empty transaction".into())
            }),
        ),
        (
            ONE_WORD,
            Box::new(|| {
                let at = region + anywhere();
                let done =
                    session.run(|tx| tx.store(at, at).map_err(|why: Interrupted| why.into()));
                done.what(|| "a transaction".into())
            }),
        ),
    ];
    let mut samples = [const { Vec::new() }; 4];
    for round in 0..=options.batches {
        for ((_, step), samples) in steps.iter_mut().zip(&mut samples) {
            let start = Instant::now();
            (0..BATCH).try_for_each(|_| step())?;
            super::drain();
            // The first round warms up.
            if round > 0 {
                samples.push(start.elapsed().as_nanos() as f64 / f64::from(BATCH));
            }
        }
    }
    let row = |((what, _), samples): (&(&'static str, Step<'_>), &mut Vec<f64>)| Row {
        what,
        ns_mean: samples.iter().sum::<f64>() / samples.len() as f64,
        ns_median: stats::median(samples).unwrap_or_default(),
    };
    Ok(steps.iter().zip(&mut samples).map(row).collect())
}
