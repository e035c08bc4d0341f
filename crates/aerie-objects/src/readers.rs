//! Sets of users who may read a page.

/// The users who may read, besides the service and the super-user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Readers {
    /// All users.
    Everyone,
    /// A user, the members of a group, or both; without either, nobody.
    These {
        /// User id.
        user: Option<u32>,
        /// Group id.
        group: Option<u32>,
    },
}

impl Readers {
    /// No user.
    pub const NOBODY: Self = Self::These {
        user: None,
        group: None,
    };

    /// A user.
    pub fn user(user: u32) -> Self {
        let (user, group) = (Some(user), None);
        Self::These { user, group }
    }

    /// A user, and the members of a group.
    pub fn user_and_group(user: u32, group: u32) -> Self {
        let (user, group) = (Some(user), Some(group));
        Self::These { user, group }
    }

    /// Users who are in both sets: all of them, except for users of one set who are in the group of the
    /// other one.
    #[must_use]
    pub fn meet(self, other: Self) -> Self {
        match (self, other) {
            (Self::Everyone, other) => other,
            (one, Self::Everyone) => one,
            (
                Self::These { user, group },
                Self::These {
                    user: other_user,
                    group: other_group,
                },
            ) => Self::These {
                user: user.filter(|_| user == other_user),
                group: group.filter(|_| group == other_group),
            },
        }
    }

    /// Whether a user with these groups is among them.
    pub fn has(self, user: u32, groups: &[u32]) -> bool {
        match self {
            Self::Everyone => true,
            Self::These { user: one, group } => {
                one == Some(user) || group.is_some_and(|group| groups.contains(&group))
            }
        }
    }

    /// Whether all of these users are in the other set.
    pub fn is_within(self, other: Self) -> bool {
        self.meet(other) == self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meet_is_the_greatest_set_within_both() {
        let (everyone, nobody) = (Readers::Everyone, Readers::NOBODY);
        let of = |user, group| Readers::These { user, group };
        let all = [
            everyone,
            nobody,
            of(Some(1), None),
            of(Some(2), None),
            of(None, Some(1)),
            of(None, Some(2)),
            of(Some(1), Some(1)),
            of(Some(1), Some(2)),
            of(Some(2), Some(1)),
        ];
        for a in all {
            assert!(nobody.is_within(a) && a.is_within(everyone) && a.is_within(a));
            for b in all {
                let meet = a.meet(b);
                assert_eq!(meet, b.meet(a));
                assert!(meet.is_within(a) && meet.is_within(b));
                let mut within_both = all.iter().filter(|c| c.is_within(a) && c.is_within(b));
                assert!(within_both.all(|c| c.is_within(meet)));
                assert_eq!(a.is_within(b) && b.is_within(a), a == b);
            }
        }
        assert_eq!(
            Readers::user_and_group(1, 2).meet(Readers::user(1)),
            Readers::user(1)
        );
        assert_eq!(Readers::user(1).meet(of(None, Some(1))), nobody);
    }
}
