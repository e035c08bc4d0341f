//! The kinds of structures, with the operations that the calls need.

use crate::space::Machine;
use mnemosyne::memory::Tx;
use mnemosyne::tx::Interrupted;
pub(super) use persist::structures::Journal;
use persist::structures::{BTree, Bytes, HashMap, Queue, Vector};
use persist::{Persist, Ptr};

pub(super) type Table = HashMap<Bytes, Bytes>;
pub(super) type Tree = BTree<Bytes, Bytes>;
pub(super) type Strings = Vector<Bytes>;
pub(super) type Waiting = Queue<Bytes>;

/// The result of a step of a transaction.
pub(super) type Step<T> = Result<T, Interrupted>;

/// A structure of any kind.
pub(super) trait Structure: Persist + Default {
    /// The name of the kind in messages.
    const NAME: &'static str;
    /// The description of a valid part, for messages about damage.
    const SOUND: &'static str;

    fn count(made: Ptr<Self>, tx: &mut Tx<'_, Machine>) -> Step<u64>;

    fn clear(made: Ptr<Self>, tx: &mut Tx<'_, Machine>) -> Step<()>;

    fn clear_some(made: Ptr<Self>, tx: &mut Tx<'_, Machine>, most: u64) -> Step<bool>;
}

macro_rules! structures {
    ($($type:ty: $name:literal, $count:expr;)*) => {$(
        impl Structure for $type {
            const NAME: &'static str = $name;
            const SOUND: &'static str = concat!("part of a sound ", $name);

            fn count(made: Ptr<Self>, tx: &mut Tx<'_, Machine>) -> Step<u64> {
                $count(made, tx)
            }

            fn clear(made: Ptr<Self>, tx: &mut Tx<'_, Machine>) -> Step<()> {
                made.clear(tx)
            }

            fn clear_some(made: Ptr<Self>, tx: &mut Tx<'_, Machine>, most: u64) -> Step<bool> {
                made.clear_some(tx, most)
            }
        }
    )*};
}

structures! {
    Table: "hash table", Ptr::<Table>::len;
    Tree: "B+ tree", Ptr::<Tree>::len;
    Strings: "vector", Ptr::<Strings>::len;
    Waiting: "queue", Ptr::<Waiting>::len;
    Journal: "journal", |made: Ptr<Journal>, tx: &mut Tx<'_, Machine>| {
        made.numbers(tx).map(|numbers| numbers.end - numbers.start)
    };
}

/// A structure with keys.
pub(super) trait Keyed: Structure {
    fn put(made: Ptr<Self>, tx: &mut Tx<'_, Machine>, key: &[u8], value: &[u8]) -> Step<()>;

    fn get(made: Ptr<Self>, tx: &mut Tx<'_, Machine>, key: &[u8]) -> Step<Option<Vec<u8>>>;

    fn remove(made: Ptr<Self>, tx: &mut Tx<'_, Machine>, key: &[u8]) -> Step<bool>;
}

macro_rules! keyed {
    ($($type:ty)*) => {$(
        impl Keyed for $type {
            fn put(
                made: Ptr<Self>,
                tx: &mut Tx<'_, Machine>,
                key: &[u8],
                value: &[u8],
            ) -> Step<()> {
                made.insert(tx, key, value).map(drop)
            }

            fn get(
                made: Ptr<Self>,
                tx: &mut Tx<'_, Machine>,
                key: &[u8],
            ) -> Step<Option<Vec<u8>>> {
                made.get(tx, key)
            }

            fn remove(made: Ptr<Self>, tx: &mut Tx<'_, Machine>, key: &[u8]) -> Step<bool> {
                Ok(made.remove(tx, key)?.is_some())
            }
        }
    )*};
}

keyed!(Table Tree);
