//! The layout of types as text: programs with the same text for a root can share it.

use crate::Persist;
use crate::hash::Seed;
use std::any::TypeId;

/// The function by which a type adds itself to a description.
type Describe = fn(&mut Layouts);

/// A description, to which types add themselves.
#[derive(Debug, Default)]
pub struct Layouts {
    text: String,
    /// Structures that are or are being described: they may point to each other.
    seen: Vec<TypeId>,
}

impl Layouts {
    /// The layout of a type and of all types that its pointers lead to.
    pub fn of<T: Persist>() -> Self {
        let mut layouts = Self::default();
        T::describe(&mut layouts);
        layouts
    }

    /// A number that differs for layouts that differ. It is stored with the roots.
    pub fn hash(&self) -> u64 {
        Seed::new(0).hash(self.text.as_bytes())
    }

    /// The description as text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Adds a type that its name describes.
    pub fn word(&mut self, name: &str) {
        self.text.push_str(name);
        self.text.push(' ');
    }

    /// Adds a structure of named fields.
    pub fn structure<T: Persist>(&mut self, name: &str, fields: &[(&str, Describe)]) {
        let this = TypeId::of::<T>();
        if let Some(n) = self.seen.iter().position(|seen| *seen == this) {
            // Other structures may have the same name.
            self.word(&format!("{name}#{n}"));
            return;
        }
        self.seen.push(this);
        self.word(&format!("{name} {{"));
        for ((name, describe), offset) in fields.iter().zip(T::OFFSETS) {
            self.word(&format!("{offset} {name}:"));
            describe(self);
        }
        self.word(&format!("{} }}", T::SIZE));
    }

    /// Adds a type whose values are names.
    pub fn variants(&mut self, name: &str, variants: &[&str]) {
        self.word(&format!("{name} {{ {} }}", variants.join(" | ")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_with_the_same_checksum_differ() {
        let [one, other] = ["ccaoacux", "wcjifoae"].map(|name| {
            let mut layouts = Layouts::default();
            layouts.word(name);
            layouts
        });
        let checksum = |layouts: &Layouts| crc32c::crc32c(layouts.text.as_bytes());
        assert_eq!(checksum(&one), checksum(&other));
        assert_ne!(one.hash(), other.hash());
    }

    mod one {
        #[derive(crate::Persist)]
        pub(super) struct Same {
            pub number: u64,
        }
    }

    mod other {
        #[derive(crate::Persist)]
        pub(super) struct Same {
            pub flag: bool,
        }
    }

    mod renamed {
        #[derive(crate::Persist)]
        #[persist(name = "Same")]
        pub(super) struct Other {
            pub number: u64,
        }
    }

    #[test]
    fn a_renamed_type_keeps_its_layout() {
        let [old, new] = [Layouts::of::<one::Same>(), Layouts::of::<renamed::Other>()];
        assert_eq!(old.text(), new.text());
    }

    #[test]
    fn types_with_equal_names_are_distinguished() {
        let text = |last: Describe| {
            let each: [Describe; 3] = [one::Same::describe, other::Same::describe, last];
            let mut layouts = Layouts::default();
            each.into_iter().for_each(|describe| describe(&mut layouts));
            layouts.text
        };
        assert_ne!(text(one::Same::describe), text(other::Same::describe));
    }
}
