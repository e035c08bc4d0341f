//! Roots with a type.

use crate::tx::TypedTx;
use crate::{Layouts, Persist, Ptr};
use mnemosyne::memory::{Backing, ROOT_NAME_MAX, Session, Tx};
use mnemosyne::tx::{Interrupted, Space, Stop, TxError};

/// The reasons why a root is unavailable.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// The root has another type.
    #[error("root {name:?} is not a {wanted}: it was made by a program with another layout")]
    OtherLayout {
        /// Its name.
        name: String,
        /// The requested type.
        wanted: String,
    },
    /// The root is damaged.
    #[error(
        "root {name:?} is damaged: it names offset {off:#x}, where no block is allocated; see \
         `selvedge heap check`"
    )]
    NotThere {
        /// Its name.
        name: String,
        /// The offset to which it points.
        off: u64,
    },
    /// The name is not valid, or there are too many roots.
    #[error("root {name:?}: a name has 1 to {ROOT_NAME_MAX} bytes, or there are too many roots")]
    NoRoom {
        /// The name.
        name: String,
    },
}

/// Typed roots, for the sessions of [`mnemosyne::memory`].
pub trait TypedSession {
    /// The memory of the session.
    type Space: Space;

    /// The root with this name. If there is none yet, `make` makes it in one transaction.
    ///
    /// # Errors
    /// [`TxError::Cancelled`] of [`RootError`]: it is of another type, or cannot be named.
    fn root<T: Persist>(
        &mut self,
        name: &str,
        make: impl FnMut(&mut Tx<'_, Self::Space>) -> Result<T, Interrupted>,
    ) -> Result<Ptr<T>, TxError<RootError>>;
}

impl<B: Backing, S: Space<Pmem = B::Pmem>> TypedSession for Session<B, S> {
    type Space = S;

    fn root<T: Persist>(
        &mut self,
        name: &str,
        mut make: impl FnMut(&mut Tx<'_, S>) -> Result<T, Interrupted>,
    ) -> Result<Ptr<T>, TxError<RootError>> {
        let layout = Layouts::of::<T>().hash();
        let other = || RootError::OtherLayout {
            name: name.to_owned(),
            wanted: std::any::type_name::<T>().to_owned(),
        };
        self.run(|tx| match tx.root(name)? {
            Some((found, off)) if found == layout => match tx.is_block(off)? {
                true => Ptr::new(off).ok_or_else(|| Stop::Cancel(other())),
                false => Err(Stop::Cancel(RootError::NotThere {
                    name: name.to_owned(),
                    off,
                })),
            },
            Some(_) => Err(Stop::Cancel(other())),
            None => {
                let value = make(tx)?;
                let made = tx.create(&value)?;
                match tx.set_root(name, layout, made.off())? {
                    true => Ok(made),
                    false => Err(Stop::Cancel(RootError::NoRoom {
                        name: name.to_owned(),
                    })),
                }
            }
        })
    }
}
