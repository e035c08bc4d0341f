//! The library that `selvedge run` loads into programs. Each process is a client of the service at the
//! socket that names the store.

use aerie_client::{Client, Options};
use std::sync::Arc;
use vfs::FileSystem;

struct Service;

static SERVICE: Service = Service;

impl run::Backend for Service {
    fn connect(&self, store: &str) -> Result<Arc<dyn FileSystem>, String> {
        match Client::connect(store.as_ref(), &Options::of_environment()) {
            Ok(client) => Ok(Arc::new(client)),
            Err(error) => Err(error.to_string()),
        }
    }
}

run::preload!(SERVICE);
