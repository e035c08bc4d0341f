//! The write-before rules: why one change must be durable before another.
//!
//! Every fence, every flush of a device and every edge between patches names one where it is
//! made. Traces record them; drawings and violation reports print them.

use serde::Serialize;
use std::fmt;

/// Declares the rules: each with what breaks without it, the label of drawings, and the name
/// of reports.
macro_rules! rules {
    ($($(#[$doc:meta])* $rule:ident, $label:literal, $name:literal;)+) => {
        /// The reason why something must be durable before something else.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Rule {
            $($(#[$doc])* $rule,)+
        }

        impl Rule {
            /// Every rule, in the order of their numbers (`rule as usize`).
            pub const ALL: &[Self] = &[$(Self::$rule),+];

            /// The short form that drawings use.
            pub fn label(self) -> &'static str {
                match self {
                    $(Self::$rule => $label,)+
                }
            }

            /// The form that reports use.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$rule => $name,)+
                }
            }
        }
    };
}

rules! {
    /// Never write a pointer to a structure before the structure itself (soft updates,
    /// rule 1). Without it a crash leaves a pointer to garbage.
    InitialiseBeforePoint, "init", "initialise-before-point";
    /// Never reuse a resource before all pointers to it are gone (rule 2). Without it a
    /// crash leaves two owners, or old contents where new ones are looked for.
    NullifyBeforeReuse, "nullify", "nullify-before-reuse";
    /// Never drop the last pointer to something live before the new one is there (rule
    /// 3). Without it a crash loses a file.
    LinkBeforeUnlink, "link", "link-before-unlink";
    /// Never write home what the log does not yet hold. Without it a crash leaves half
    /// a transaction that cannot be replayed.
    LogBeforeHome, "log", "log-before-home";
    /// Never commit before all that the commit vouches for. Without it a crash replays
    /// or shows garbage.
    DataBeforeCommit, "commit", "data-before-commit";
    /// Never give log space back before what it protects is home. Without it a crash
    /// loses what was committed.
    HomeBeforeReclaim, "home", "home-before-reclaim";
    /// Changes of one group (a patchgroup, or what a program stored before a fence of its
    /// own) before those of the next. Without it the program's own order is lost.
    GroupAfterGroup, "group", "group-after-group";
    /// Both change the same bytes: the older first. Without it the older may win.
    Overlap, "overlap", "overlap";
    /// Never overwrite in place before a whole copy is elsewhere. Without it a torn write
    /// leaves neither the old nor the new.
    CopyBeforeOverwrite, "copy", "copy-before-overwrite";
    /// Never return before what the call promises is durable. Without it a crash takes back
    /// what was acknowledged.
    DurableBeforeReturn, "return", "durable-before-return";
    /// Never let others see, and build on, what a crash may still take back. Without it
    /// something durable depends on something lost.
    DurableBeforeUse, "use", "durable-before-use";
    /// Write back the befores of patches before the patches. Each edge between them has a
    /// rule of its own; without this one none of them is obeyed.
    PatchOrder, "patch", "patch-order";
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
