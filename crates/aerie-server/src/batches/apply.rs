//! Applies batches.

use super::parts::{Authority, Parts};
use super::refusal::{Refusal, Stop};
use super::seeded::{Bug, hit};
use super::shape;
use aerie_objects::{Error, Reserve, Store, Transaction};
use aerie_proto::batch::{FileOp, Operation, Storage, operations};
use medium::Pmem;

/// The answer to one operation: its number, if it could be read, and the reason if it was refused.
pub type Answer = (Option<u32>, Result<(), Refusal>);

/// Checks the operations of a batch in their order, and makes those durable that it accepts. An
/// operation is accepted or refused as a whole, as a change of what those before it have left. A crash
/// leaves a prefix of the accepted ones.
///
/// `batch` must be memory that no client can change. `reserve` is what the client has reserved; what
/// the accepted operations use is taken from it.
///
/// # Errors
/// The store has failed: it must be opened again.
pub fn apply<P: Pmem>(
    store: &Store<P>,
    reserve: &mut Reserve,
    authority: &dyn Authority,
    batch: &[u8],
) -> Result<Vec<Answer>, Error> {
    apply_by(shape::check, store, reserve, authority, batch)
}

/// A check of the parts of an operation.
pub(crate) type Shape = fn(&FileOp<'_>, &[Storage<'_>]) -> Result<(), Stop>;

/// [`apply`] with another check of shapes, for tests of the rules below it.
pub(crate) fn apply_by<P: Pmem>(
    shape: Shape,
    store: &Store<P>,
    reserve: &mut Reserve,
    authority: &dyn Authority,
    batch: &[u8],
) -> Result<Vec<Answer>, Error> {
    let mut answers = Vec::new();
    let mut tx = store.begin()?;
    let mut is_empty = true;
    for operation in operations(batch) {
        let operation = match operation {
            Ok(operation) => operation,
            Err((number, why)) => {
                answers.push((number, Err(why.into())));
                continue;
            }
        };
        let mut answer = one(shape, &mut tx, reserve, authority, &operation)?;
        if answer == Err(Refusal::TooLarge) && !is_empty {
            // With a log of its own it may fit.
            tx.commit()?;
            tx = store.begin()?;
            answer = one(shape, &mut tx, reserve, authority, &operation)?;
        }
        is_empty &= answer.is_err();
        answers.push((Some(operation.number), answer));
    }
    tx.commit()?;
    Ok(answers)
}

/// Applies one operation, or nothing of it.
fn one<P: Pmem>(
    shape: Shape,
    tx: &mut Transaction<'_, P>,
    reserve: &mut Reserve,
    authority: &dyn Authority,
    operation: &Operation<'_>,
) -> Result<Result<(), Refusal>, Error> {
    let mark = tx.mark();
    let mut parts = Parts::new(tx, reserve, authority);
    let mut stop = match all(shape, &mut parts, operation) {
        Ok(()) => None,
        Err(Stop::Failed(error)) => return Err(error),
        Err(Stop::Refused(refusal)) => Some(refusal),
    };
    if stop.is_none() && !parts.fits() {
        stop = Some(Refusal::TooLarge);
    }
    match stop {
        None => Ok(Ok(())),
        Some(refusal) => {
            parts.put_back();
            if !hit(Bug::RefusedNotUndone) {
                tx.roll_back(mark);
            }
            Ok(Err(refusal))
        }
    }
}

fn all<P: Pmem>(
    shape: Shape,
    parts: &mut Parts<'_, '_, P>,
    operation: &Operation<'_>,
) -> Result<(), Stop> {
    let storage = operation.storage().collect::<Result<Vec<_>, _>>()?;
    shape(&operation.op, &storage)?;
    storage.into_iter().try_for_each(|op| parts.step(op))?;
    parts.end()
}
