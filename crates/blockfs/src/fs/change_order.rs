//! Order between sets of changes, by the layer [`patch::Groups`].

use super::refusal::report;
use super::{BlockFs, not_stored};
use crate::{Format, FormatError};
use patch::{Groups, Store};
use std::sync::Arc;
use vfs::{ChangeOrder, Result, SetId};

impl<F: Format> BlockFs<F> {
    fn groups(&self) -> &Groups<Arc<dyn Store>> {
        let groups = self.options.groups.as_ref();
        groups.expect("`FileSystem::change_order` returns none without the layer")
    }
}

impl<F: Format> ChangeOrder for BlockFs<F> {
    fn create(&self) -> SetId {
        SetId(self.groups().create())
    }

    fn remove(&self, set: SetId) {
        self.groups().remove(set.0);
    }

    fn depend(&self, after: SetId, before: SetId) {
        self.groups().depend(after.0, before.0);
    }

    fn barrier(&self, set: SetId) -> Result<()> {
        let ordered = self.groups().barrier(set.0).map_err(FormatError::from);
        ordered.map_err(|e| not_stored(report(&e)))
    }

    fn sync(&self, set: SetId) -> Result<()> {
        let synced = self.groups().sync(set.0).map_err(FormatError::from);
        synced.map_err(|e| not_stored(report(&e)))
    }

    fn pending(&self, set: SetId) -> usize {
        self.groups().pending(set.0)
    }
}
