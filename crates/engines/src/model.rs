//! The in-memory model as an engine: the oracle of the tests, and what the file-system trait
//! costs without any persistence.

use clap::ArgMatches;
use engine::{
    Close, Engine, Interposer, MountRequest, Opened, Prepared, Result, Scratch, ScratchKind,
    ScratchOptions,
};
use oracle::{ModelFs, ModelOptions};
use serde_json::Map;
use std::sync::Arc;
use vfs::{FileSystem, Guarantees};

/// The engine.
pub struct ModelEngine;

impl Engine for ModelEngine {
    fn name(&self) -> &'static str {
        "model"
    }

    fn about(&self) -> &'static str {
        "the model, in memory: nothing outlives the mount"
    }

    fn guarantees(&self) -> Result<Vec<Guarantees>> {
        Ok(vec![ModelFs::default().guarantees()])
    }

    fn mount(
        &self,
        request: &MountRequest,
        _options: &ArgMatches,
        between: Option<&mut dyn Interposer>,
    ) -> Result<Prepared> {
        if between.is_some() {
            return Err(self.lacks("medium whose power could be cut"));
        }
        let options = ModelOptions {
            atime: request.atime,
            ..ModelOptions::default()
        };
        Ok(Prepared {
            source: "none".into(),
            draws: false,
            shared: false,
            open: Box::new(|| Ok(opened(ModelFs::new(options)))),
        })
    }

    fn scratch(&self) -> Option<ScratchKind> {
        Some(ScratchKind::Own)
    }

    fn fresh(&self, scratch: Scratch, options: &ScratchOptions<'_>) -> Result<Arc<dyn FileSystem>> {
        match scratch {
            Scratch::Own => Ok(Arc::new(ModelFs::new(ModelOptions {
                clock: options.clock.clone(),
                atime: options.atime,
                ..ModelOptions::default()
            }))),
            Scratch::Mapped(_) | Scratch::Shared(_) | Scratch::Any(_) => Err(self.lacks("medium")),
        }
    }
}

fn opened(fs: ModelFs) -> Opened {
    let fs: Arc<dyn FileSystem> = Arc::new(fs);
    let served = Arc::clone(&fs);
    let close: Close = Box::new(move || served.sync().map_err(|e| e.to_string()));
    Opened {
        fs,
        durability: None,
        about: Map::from_iter([("type".into(), "model".into())]),
        stats: None,
        notes: vec!["durability: none: everything is in memory, and gone at the unmount".into()],
        close,
        draw: None,
    }
}
