//! A service of Aerie in threads of this process, over flushed memory in `/dev/shm`, and its clients.

use crate::error::{Context, Result};
use crate::images;
use aerie_client::{Client, Options};
use aerie_server::{Limits, Protected, Serving, serve, serve_protected};
use medium::{EffectiveDurability, Latency, LatencyModel, MapOptions, Pmem};
use pxfs::{MkfsOptions, Pxfs};
use std::borrow::Borrow;
use std::fs::File;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use vfs::{Atime, SystemClock};

/// A service of an image. Dropping it ends the service and removes the image.
pub(crate) struct Service {
    /// Declared before the directory, so that the service ends first.
    serving: Serving,
    _home: TempDir,
}

impl Service {
    /// Serves a new, empty file system.
    pub(crate) fn start(image_bytes: u64, latency: Option<LatencyModel>) -> Result<Self> {
        let what = || "starting a service".to_owned();
        let home = home()?;
        let path = home.path().join("image");
        let memory = images::flushing_file(&path, image_bytes)?;
        let image = File::options().read(true).write(true).open(&path);
        let image = image.what(what)?;
        let socket = home.path().join("socket");
        let serving = match latency {
            None => begin(memory, &image, &socket)?,
            Some(model) => begin(Latency::new(memory, model), &image, &socket)?,
        };
        Ok(Self {
            serving,
            _home: home,
        })
    }

    /// Serves a new, empty file system in an image.
    pub(crate) fn start_image(image_bytes: u64) -> Result<Self> {
        Self::start(image_bytes, None)
    }

    /// Serves a new, empty file system in a protected store.
    pub(crate) fn start_protected(bytes: u64) -> Result<Self> {
        let what = || "starting a service of a protected store".to_owned();
        let home = home()?;
        let options = MapOptions {
            force_flush: true,
            ..MapOptions::default()
        };
        let store = Protected::create(&home.path().join("store"), bytes, &options);
        let store = Arc::new(store.what(what)?);
        let memory = store.memory();
        pxfs::mkfs(&memory, &MkfsOptions::default()).what(what)?;
        let clock = Arc::new(SystemClock);
        let fs = Pxfs::open_protected(memory, store.clone(), clock, Atime::Never).what(what)?;
        let socket = home.path().join("socket");
        let serving = serve_protected(fs, &store, &socket, Limits::default()).what(what)?;
        Ok(Self {
            serving,
            _home: home,
        })
    }

    /// The socket at which clients connect.
    pub(crate) fn socket(&self) -> &Path {
        self.serving.socket()
    }

    /// Connects a client that flushes what it stores.
    pub(crate) fn client(service: Arc<Self>, options: &Options) -> Result<Connected> {
        let map = MapOptions {
            force_flush: true,
            ..options.map
        };
        let options = Options { map, ..*options };
        let client = Client::connect(service.socket(), &options);
        Ok(Connected {
            client: client.what(|| "connecting a client".into())?,
            _service: service,
        })
    }
}

/// A directory for a store and its socket.
fn home() -> Result<TempDir> {
    let mut dir = tempfile::Builder::new();
    dir.prefix("selvedge-bench-")
        .tempdir_in("/dev/shm")
        .what(|| "making a directory for a service".into())
}

fn begin<P: Pmem + 'static>(memory: P, image: &File, socket: &Path) -> Result<Serving> {
    let what = || "making a file system".to_owned();
    let memory = Arc::new(memory);
    pxfs::mkfs(&memory, &MkfsOptions::default()).what(what)?;
    let fs = Pxfs::open(memory, Arc::new(SystemClock), Atime::Never).what(what)?;
    let image = (image, EffectiveDurability::Process);
    serve(fs, image, socket, Limits::default()).what(|| "starting a service".into())
}

/// A client of a service that lives as long.
pub(crate) struct Connected {
    client: Client,
    _service: Arc<Service>,
}

impl Borrow<Client> for Connected {
    fn borrow(&self) -> &Client {
        &self.client
    }
}

impl Deref for Connected {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}
