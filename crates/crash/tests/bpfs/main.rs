//! BPFS under the explorer.

mod system;

use bpfs::Mode;
use crash::{Model, Options, Outcome, explore};
use system::BpfsSystem;

fn run(mode: Mode, options: &Options) -> Outcome {
    let outcome = explore(&BpfsSystem(mode), options, &|_| {}).expect("BPFS can be set up");
    let first = outcome.failures.first();
    eprintln!(
        "{}/{}: {} states ({} distinct) in {:.2} s, {:.0}/s, {} points, {} capped, {} audited, {} looked, {} full",
        outcome.system,
        outcome.model,
        outcome.states_explored,
        outcome.states_distinct,
        outcome.seconds,
        outcome.states_per_second,
        outcome.points,
        outcome.capped_points,
        outcome.audited,
        outcome.stores_checked,
        outcome.no_space
    );
    for f in &outcome.failures {
        eprintln!("{f}\nshrunk:\n{}", f.shrunk);
    }
    let _ = first;
    outcome
}

#[test]
fn every_single_operation_in_every_mode() {
    for mode in Mode::ALL {
        for model in Model::ALL {
            let options = Options {
                ops: 1,
                model,
                ..Options::default()
            };
            run(mode, &options);
        }
    }
}
