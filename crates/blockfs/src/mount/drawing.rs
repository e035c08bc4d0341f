//! Drawings of the patch graph of a mount.

use super::{Mountable, Mounted};
use medium::block::Lba;
use patch::draw::{Drawing, DrawnBlock};

impl<F: Mountable> Mounted<F> {
    /// Draws the changes that are not durable, with the names of their blocks.
    ///
    /// The names are found after the graph, while calls go on. A block that was freed and used
    /// again in between has the name of its new use.
    pub fn drawing(&self) -> Drawing {
        let mut drawing = self.cache.draw();
        drawing.name_blocks(|device, lba| match Lba(lba) {
            lba if self.is_log_block(device, lba) => Some("log".into()),
            lba if device == 0 => self.fs.format().describe(lba),
            _ => None,
        });
        let mut unnamed: Vec<&mut DrawnBlock> = drawing.blocks.iter_mut().collect();
        unnamed.retain(|block| block.device == 0 && block.name.is_none());
        let mut labels = self
            .fs
            .label_blocks(unnamed.iter().map(|block| Lba(block.lba)));
        for block in unnamed {
            block.name = labels.remove(&Lba(block.lba));
        }
        drawing
    }

    fn is_log_block(&self, device: u8, lba: Lba) -> bool {
        let log = self.log.as_ref();
        log.is_some_and(|(number, place)| *number == device && place.contains(lba))
    }
}
