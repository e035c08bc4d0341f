//! `disk`: a file or device.

use super::option::{Opt, changed, choose};
use crate::stack::ValueError;
use crate::stack::kind::{Build, BuildError, Device, Image, Kind};
use medium::block::{DeviceOptions, Direct, FileDevice, Io};
use std::path::PathBuf;

/// Options of the layer `disk`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskLayer {
    /// Path of the file or device, with a `/` in it; `None`: the mounted one.
    pub path: Option<PathBuf>,
    /// The options with which it is opened.
    pub options: DeviceOptions,
}

const IO: &[(&str, Io)] = &[
    ("auto", Io::Auto),
    ("uring", Io::Uring),
    ("pwrite", Io::Pwrite),
];
const DIRECT: &[(&str, Direct)] = &[
    ("auto", Direct::Auto),
    ("on", Direct::On),
    ("off", Direct::Off),
];
const UNSAFE: &str = "unsafe-no-flush";

impl Kind for DiskLayer {
    const NAME: &'static str = "disk";
    const ABOUT: &'static str = "the file or device that is mounted, or another one";
    const OPTIONS: &'static [Opt<Self>] = &[
        Opt {
            form: "PATH",
            help: "another file or device than the one that is mounted; with a '/'",
            is_required: false,
            set: |disk, path| {
                if !path.contains('/') {
                    return Err(ValueError::new("a path has a '/', as in ./NAME"));
                }
                disk.path = Some(path.into());
                Ok(())
            },
            get: |disk| Some(disk.path.as_ref()?.to_string_lossy().into_owned()),
        },
        Opt {
            form: "io=auto|uring|pwrite",
            help: "by io_uring or by pwritev2",
            is_required: false,
            set: |disk, text| choose(text, IO).map(|io| disk.options.io = io),
            get: |disk| changed(&disk.options.io, &Io::Auto, IO),
        },
        Opt {
            form: "direct=auto|on|off",
            help: "whether to go around the page cache",
            is_required: false,
            set: |disk, text| choose(text, DIRECT).map(|direct| disk.options.direct = direct),
            get: |disk| changed(&disk.options.direct, &Direct::Auto, DIRECT),
        },
        Opt {
            form: UNSAFE,
            help: "use it also if it cannot flush: a crash can leave anything",
            is_required: false,
            set: |disk, text| match text {
                UNSAFE => {
                    disk.options.unsafe_no_flush = true;
                    Ok(())
                }
                _ => Err(ValueError::new(format_args!("'{UNSAFE}' is needed"))),
            },
            get: |disk| disk.options.unsafe_no_flush.then(|| UNSAFE.into()),
        },
    ];
    const BUILD: Build<Self> = Build::Device(Self::build);
}

impl DiskLayer {
    fn build(&self, image: &mut Image<'_>) -> Result<Device, BuildError> {
        let options = DeviceOptions {
            read_only: image.read_only,
            ..self.options
        };
        let path = self.path.clone().unwrap_or_else(|| image.path.into());
        image.device(&path, |path, block_bytes| {
            FileDevice::open(path, block_bytes, &options)
        })
    }
}
