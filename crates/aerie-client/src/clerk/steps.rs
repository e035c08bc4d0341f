//! The uses of objects that a thread needs.

use super::state::{State, Step};
use super::{Host, Scope, Want};
use crate::seeded::{Bug, hit};
use aerie_proto::locks::Mode;
use std::time::Duration;

impl State {
    /// The uses of all objects of the paths, in their order. All uses of one object have the same mode, so
    /// that none has to be raised. With a time, hierarchical locks are as wide as they can be.
    pub(super) fn steps(
        &self,
        wants: &[Want<'_>],
        host: &impl Host,
        wide: Option<Duration>,
    ) -> Vec<Step> {
        let mut steps = Vec::with_capacity(wants.iter().map(|want| want.path.len()).sum());
        for want in wants {
            let (start, last) = (steps.len(), want.path.len() - 1);
            let tree = match (want.scope, wide) {
                (Scope::Within(at), _) => Some(at),
                (_, Some(now)) => self.quiet_place(want.path, now),
                _ => None,
            };
            for (at, lock) in want.path.iter().copied().enumerate() {
                let own = Mode::explicit(want.access);
                let mode = match want.scope {
                    _ if at < last => Mode::intent(want.access),
                    Scope::Tree => Mode::tree(want.access),
                    Scope::Members => own.join(Mode::intent(want.access)),
                    Scope::Object | Scope::Within(_) => own,
                };
                let ask = match tree == Some(at) {
                    true => mode.join(Mode::tree(want.access)),
                    false => mode,
                };
                steps.push(Step {
                    lock,
                    mode,
                    ask,
                    start,
                    count_before: hit(Bug::CountNotReread).then(|| host.membership_count(lock)),
                });
            }
        }
        if wants.len() > 1 {
            unite(&mut steps);
        }
        steps
    }
}

fn unite(steps: &mut [Step]) {
    for at in 0..steps.len() {
        let same = steps.iter().filter(|step| step.lock == steps[at].lock);
        let (mode, ask) = same.fold((Mode::NONE, Mode::NONE), |(mode, ask), step| {
            (mode.join(step.mode), ask.join(step.ask))
        });
        (steps[at].mode, steps[at].ask) = (mode, ask);
    }
}
