//! The promise of a mount.

use patch::stack::{Mode, Stack};
use vfs::{Atomicity, Durability, Guarantees, Ordering};

/// Returns the promise of a mount with this stack.
pub fn guarantees(stack: &Stack) -> Guarantees {
    let mode = stack.mode();
    let plain = Guarantees {
        name: format!("{} (mode={mode})", stack.format()),
        durable: Durability::AtFsync,
        metadata_atomic: Atomicity::None,
        data_atomic: Atomicity::None,
        metadata_ordered: Ordering::None,
        data_ordered: Ordering::None,
        times_atomic: false,
        notes: Vec::new(),
    };
    let journal = Guarantees {
        metadata_atomic: Atomicity::Call,
        metadata_ordered: Ordering::Global,
        times_atomic: true,
        ..plain.clone()
    };
    let note = |text: &str| vec![text.to_string()];
    match mode {
        Mode::Async => Guarantees {
            durable: Durability::None,
            notes: note("After a crash it may be damaged beyond use: run fsck."),
            ..plain
        },
        Mode::SoftUpdates => Guarantees {
            data_atomic: Atomicity::Block,
            notes: note(
                "After a crash blocks and inodes may be marked as used that are not, link \
                 counts too high and free counts wrong, and a directory that was being renamed \
                 may have both names; nothing else, and fsck need not run.",
            ),
            ..plain
        },
        Mode::JournalMetadata => Guarantees {
            notes: note(
                "After a crash files written lately may hold what their blocks held before.",
            ),
            ..journal
        },
        Mode::JournalOrdered => Guarantees {
            data_atomic: Atomicity::Block,
            ..journal
        },
        Mode::Journal => Guarantees {
            data_atomic: Atomicity::Block,
            data_ordered: Ordering::Global,
            notes: note("Calls that write more than fits a transaction are several."),
            ..journal
        },
    }
}
