//! The answers to a batch.

use super::{Host, Speculation, State, chosen};
use aerie_objects::ObjectId;
use aerie_proto::ops::{Answers, Batch, Op, Refused, operations};
use hashbrown::HashSet;
use medium::Pmem;
use vfs::Errno;

impl<P: Pmem, H: Host> Speculation<P, H> {
    /// Takes the answers to a batch, whose operations have told of these objects. If some were refused, returns the
    /// pages that they have chosen, which are still reserved.
    pub(super) fn take_answers(
        &self,
        state: &mut State,
        (batch, told): (&Batch, &[ObjectId]),
        answers: &Answers,
    ) -> Option<HashSet<u64>> {
        if answers.refused.is_empty() && answers.count >= batch.count() {
            return None;
        }
        let mut left = HashSet::new();
        self.paths_change();
        let mut refused = answers.refused.iter().peekable();
        let mut told = told.iter().peekable();
        for (number, operation) in (0..).zip(operations(batch.bytes())) {
            let Ok(operation) = operation else { break };
            let told = told.next_if(|_| self.tells(&operation.op));
            let not_run = (number >= answers.count).then(|| not_run(number));
            let refusal = refused.next_if(|refused| refused.number == number);
            if let Some(refusal) = refusal.or(not_run.as_ref()) {
                left.extend(chosen(&operation.op).1);
                told.into_iter()
                    .for_each(|object| self.untell(state, *object));
                take_refused(state, &operation.op, refusal);
            }
        }
        left.iter().for_each(|page| state.reserve.put_page(*page));
        Some(left)
    }

    /// Whether an operation of this client was recorded with [`tell_by_operation`](Self::tell_by_operation).
    fn tells(&self, op: &Op<'_>) -> bool {
        match op {
            Op::Tmpfile { object, .. } => object.is_some(),
            Op::Remove { holds, .. } | Op::Rename { holds, .. } => *holds,
            Op::Link { .. } => !self.is_trusted,
            Op::Hold { .. } | Op::Open { .. } | Op::Look { .. } => true,
            _ => false,
        }
    }
}

/// The refusal of an operation after the end of what the service has run.
fn not_run(number: u32) -> Refused {
    Refused {
        number,
        errno: Errno::IO.raw_os_error(),
        why: "too many operations before it were refused".to_owned(),
    }
}

/// Notes a refusal, for the next call that waits for one.
fn take_refused(state: &mut State, op: &Op<'_>, refusal: &Refused) {
    // No call waits for these.
    if !matches!(op, Op::Access { .. } | Op::Release { .. }) {
        tracing::warn!("the service has refused {op:?}: {}", refusal.why);
        state.refusal.get_or_insert_with(|| refusal.clone());
    }
}
