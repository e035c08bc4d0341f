//! A count of elements that threads can change without conflicts.
//!
//! While the count is one word, all changes conflict. Once spread, it is a word for each of
//! some stripes, on lines of their own, and each change takes one of them.

use super::element;
use crate::{Persist, Ptr, TypedTx};
use mnemosyne::heap::HeapError;
use mnemosyne::memory::Tx;
use mnemosyne::tx::{Interrupted, Space};

#[derive(Debug, Persist)]
pub(super) struct Counter {
    /// The part of the count that is in no stripe.
    base: u64,
    stripes: Option<Ptr<Stripe>>,
}

#[derive(Debug, Persist)]
struct Stripe {
    count: u64,
    /// Padding to the end of the line.
    rest: [u64; 7],
}

const STRIPES: u64 = 8;

impl Counter {
    pub(super) const ZERO: Self = Self {
        base: 0,
        stripes: None,
    };
}

impl Ptr<Counter> {
    /// The word that counts elements with this hash, and the number of such words.
    fn word<S: Space>(self, tx: &mut Tx<'_, S>, hash: u64) -> Result<(Ptr<u64>, u64), Interrupted> {
        Ok(match tx.get(self.at(Counter::STRIPES))? {
            None => (self.at(Counter::BASE), 1),
            Some(stripes) => {
                let stripe: Ptr<Stripe> = element(stripes.off(), hash % STRIPES)?;
                (stripe.at(Stripe::COUNT), STRIPES)
            }
        })
    }

    /// Adds `more`, which may be negative.
    pub(super) fn add<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        hash: u64,
        more: i64,
    ) -> Result<(), Interrupted> {
        let (word, _) = self.word(tx, hash)?;
        let count = tx.get(word)?;
        // Each word wraps; the sum does not.
        tx.set(word, &count.wrapping_add_signed(more))
    }

    /// An estimate of the count, from the word for this hash.
    pub(super) fn estimate<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        hash: u64,
    ) -> Result<u64, Interrupted> {
        let (word, of) = self.word(tx, hash)?;
        let count = tx.get(word)? as i64;
        Ok((count.max(0) as u64).saturating_mul(of))
    }

    /// The count.
    pub(super) fn total<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<u64, Interrupted> {
        let counter = tx.get(self)?;
        let mut total = counter.base;
        if let Some(stripes) = counter.stripes {
            for n in 0..STRIPES {
                let stripe: Ptr<Stripe> = element(stripes.off(), n)?;
                total = total.wrapping_add(tx.get(stripe.at(Stripe::COUNT))?);
            }
        }
        Ok(total)
    }

    /// Spreads the counter, if it is one word.
    pub(super) fn spread<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<(), Interrupted> {
        let counter = tx.get(self)?;
        if counter.stripes.is_some() {
            return Ok(());
        }
        // Evenly, because estimates use single stripes.
        let stripe = Stripe {
            count: counter.base / STRIPES,
            rest: [0; 7],
        };
        let off = tx.create_array(&stripe, STRIPES)?.get(0).map(Ptr::off);
        let wrong = HeapError::NotAllocated { off: self.off() };
        let stripes = off.and_then(Ptr::new).ok_or(wrong)?;
        tx.set(
            self,
            &Counter {
                base: counter.base % STRIPES,
                stripes: Some(stripes),
            },
        )
    }

    /// The counter's block.
    pub(super) fn block<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<Option<u64>, Interrupted> {
        Ok(tx.get(self.at(Counter::STRIPES))?.map(Ptr::off))
    }

    /// Sets the count to zero, and frees the block.
    pub(super) fn clear<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<(), Interrupted> {
        if let Some(off) = self.block(tx)? {
            tx.free(off)?;
        }
        tx.set(self, &Counter::ZERO)
    }
}
