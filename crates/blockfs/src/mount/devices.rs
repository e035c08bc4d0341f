//! The files and devices that a stack stands on.

use super::{MountError, Mountable};
use medium::block::BlockDevice;
use patch::stack::{Image, LogLocation, Stack};
use std::path::Path;
use std::sync::Arc;

/// The devices of a file system.
#[derive(Clone)]
pub struct Devices {
    /// The image.
    pub disk: Arc<dyn BlockDevice>,
    /// The external log, if the stack has one. It has the same block size.
    pub log: Option<Arc<dyn BlockDevice>>,
}

impl Devices {
    /// Opens the image at `path`, and the log that the stack names.
    ///
    /// # Errors
    /// [`MountError`].
    pub fn open<F: Mountable>(
        path: &Path,
        stack: &Stack,
        read_only: bool,
    ) -> Result<Self, MountError> {
        F::check_stack(stack)?;
        if let Some(LogLocation::External(log)) = stack.journal().map(|journal| &journal.log)
            && log
                .canonicalize()
                .is_ok_and(|log| path.canonicalize().ok() == Some(log))
        {
            return Err(MountError::ExternalLog {
                device: log.display().to_string(),
                what: "is the image itself; use journal(..., internal)",
            });
        }
        let open = |block_bytes| stack.home_device(&mut Image::new(path, block_bytes, true));
        let block_bytes = F::block_size(&open)?;
        let devices = stack.devices(&mut Image::new(path, block_bytes, read_only))?;
        let number = stack.log_device().map(usize::from);
        let is_unused = |index: &usize| *index > 0 && Some(*index) != number;
        if let Some(unused) = (0..devices.len()).find(is_unused) {
            return Err(MountError::Unused(unused));
        }
        Ok(Self {
            disk: devices[0].clone(),
            log: number.map(|number| devices[number].clone()),
        })
    }
}
