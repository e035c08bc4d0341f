//! The list of inodes without names that were open.

use super::Checker;
use crate::bytes;
use crate::format::Inode;
use medium::block::BlockDevice;
use std::mem::size_of;
use zerocopy::FromBytes;

impl<D: BlockDevice + ?Sized> Checker<'_, D> {
    /// Follows the list, at most once around.
    pub(super) fn orphan_list(&mut self) {
        let mut ino = self.ground.sup.last_orphan.get();
        while ino != 0 {
            if ino < self.ground.first_ino || ino > self.ground.inodes {
                self.corrupt("E19", format_args!("orphan list: there is no inode {ino}"));
                return;
            }
            if !self.orphans.add(u64::from(ino - 1)) {
                self.corrupt("E19", format_args!("orphan list: inode {ino} comes twice"));
                return;
            }
            self.leak("E26", format_args!("inode {ino} is on the orphan list"));
            let Some(inode) = self.read_inode(ino) else {
                return;
            };
            if inode.mode.get() == 0 {
                // The inode is cleared already. The rest of the list is lost, and leaks.
                return;
            }
            ino = inode.dtime.get();
        }
    }

    fn read_inode(&mut self, ino: u32) -> Option<Inode> {
        let (group, index) = (
            (ino - 1) / self.ground.inodes_per_group,
            (ino - 1) % self.ground.inodes_per_group,
        );
        let table = self.ground.groups[group as usize].inode_table.get();
        let at = u64::from(table) * u64::from(self.ground.block)
            + u64::from(index) * u64::from(self.ground.inode_bytes);
        let mut buf = [0; size_of::<Inode>()];
        let read = bytes::read(self.device, at, &mut buf);
        super::readable(&mut self.report, read).then_some(())?;
        Inode::read_from_bytes(&buf).ok()
    }
}
