//! Lists of a message, which have a bounded length: elements take up to 8 times the memory of their bytes.

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use std::fmt;
use std::marker::PhantomData;

/// Most elements of a list. A user has at most as many groups.
pub const LIST_MAX: usize = 1 << 16;

/// Decodes a list.
pub(crate) fn bounded<'de, D, T>(decoder: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    decoder.deserialize_seq(Bounded(PhantomData))
}

struct Bounded<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Bounded<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {LIST_MAX} elements")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<T>, A::Error> {
        let mut list = Vec::new();
        while let Some(element) = elements.next_element()? {
            if list.len() == LIST_MAX {
                return Err(A::Error::invalid_length(LIST_MAX + 1, &self));
            }
            list.push(element);
        }
        Ok(list)
    }
}
