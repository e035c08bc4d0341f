//! Why one change must be durable before another.

/// The reason for an edge. Every edge names one where it is made; graph drawings and
/// violation reports print it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// Never write a pointer to a structure before the structure itself (soft updates,
    /// rule 1). Without it a crash leaves a pointer to garbage.
    InitialiseBeforePoint,
    /// Never reuse a resource before all pointers to it are gone (rule 2). Without it a
    /// crash leaves two owners.
    NullifyBeforeReuse,
    /// Never drop the last pointer to something live before the new one is there (rule
    /// 3). Without it a crash loses a file.
    LinkBeforeUnlink,
    /// Never write home what the log does not yet hold. Without it a crash leaves half
    /// a transaction that cannot be replayed.
    LogBeforeHome,
    /// Never commit before all that the commit vouches for. Without it a crash replays
    /// garbage.
    DataBeforeCommit,
    /// Never give log space back before what it protects is home. Without it a crash
    /// loses what was committed.
    HomeBeforeReclaim,
    /// Changes of one patchgroup before those of the next.
    GroupAfterGroup,
    /// Both change the same bytes: the older first.
    Overlap,
}

impl Rule {
    pub(crate) const ALL: [Self; 8] = [
        Self::InitialiseBeforePoint,
        Self::NullifyBeforeReuse,
        Self::LinkBeforeUnlink,
        Self::LogBeforeHome,
        Self::DataBeforeCommit,
        Self::HomeBeforeReclaim,
        Self::GroupAfterGroup,
        Self::Overlap,
    ];

    /// The short form that drawings use.
    pub fn label(self) -> &'static str {
        match self {
            Self::InitialiseBeforePoint => "init",
            Self::NullifyBeforeReuse => "nullify",
            Self::LinkBeforeUnlink => "link",
            Self::LogBeforeHome => "log",
            Self::DataBeforeCommit => "commit",
            Self::HomeBeforeReclaim => "home",
            Self::GroupAfterGroup => "group",
            Self::Overlap => "overlap",
        }
    }
}

/// `ALL` is in the order of the numbers.
const _: () = {
    let mut n = 0;
    while n < Rule::ALL.len() {
        assert!(Rule::ALL[n] as usize == n);
        n += 1;
    }
};
