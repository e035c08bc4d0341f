//! The write-before rules: why one change must be durable before another.
//!
//! Every fence, every flush of a device, every durable write and every edge between patches
//! names a rule. Traces record them; drawings and violation reports print them.

use serde::Serialize;
use std::fmt;

/// Declares the rules, each with the consequence of breaking it, the label of drawings, and the
/// name of reports.
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
    /// Never write a pointer to a structure before the structure itself (soft updates, rule 1).
    /// Otherwise a crash leaves a pointer to garbage.
    InitialiseBeforePoint, "init", "initialise-before-point";
    /// Never reuse a resource before all pointers to it are removed (rule 2). Otherwise a crash
    /// leaves two owners, or old contents in place of new ones.
    NullifyBeforeReuse, "nullify", "nullify-before-reuse";
    /// Never remove the last pointer to a live structure before the new one is written (rule
    /// 3). Otherwise a crash loses a file.
    LinkBeforeUnlink, "link", "link-before-unlink";
    /// Never write home what is not yet in the log. Otherwise a crash leaves half a transaction
    /// that cannot be replayed.
    LogBeforeHome, "log", "log-before-home";
    /// Never commit before everything that the commit covers. Otherwise a crash replays or
    /// shows garbage.
    DataBeforeCommit, "commit", "data-before-commit";
    /// Never reclaim log space before its contents are home. Otherwise a crash loses committed
    /// changes.
    HomeBeforeReclaim, "home", "home-before-reclaim";
    /// Changes of one group (a patchgroup, or a program's stores before its own fence) before
    /// those of the next. Otherwise the program's own order is lost.
    GroupAfterGroup, "group", "group-after-group";
    /// The older of two changes to the same bytes first. Otherwise the older may win.
    Overlap, "overlap", "overlap";
    /// Never overwrite in place before a complete copy is elsewhere. Otherwise a torn write
    /// leaves neither the old nor the new contents.
    CopyBeforeOverwrite, "copy", "copy-before-overwrite";
    /// Never return before the promised changes are durable. Otherwise a crash undoes an
    /// acknowledged call.
    DurableBeforeReturn, "return", "durable-before-return";
    /// Never let other calls use a change that a crash may still undo. Otherwise something
    /// durable depends on something lost.
    DurableBeforeUse, "use", "durable-before-use";
    /// Write back the befores of patches before the patches. Each edge between them has a rule
    /// of its own, and depends on this one.
    PatchOrder, "patch", "patch-order";
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
