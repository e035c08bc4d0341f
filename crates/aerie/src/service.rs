//! The service of an image, and mounts of its clients.

use crate::directory;
use crate::facts::{NAME, about, probe};
use aerie_client::Client;
use aerie_server::{Limits, Serving};
use clap::Args;
use engine::memory::{MapArgs, Region, at_start};
use engine::{Error, MountRequest, Opened, Prepared, Result, Service, ServiceRequest};
use medium::{EffectiveDurability, MapOptions, Pmem};
use pxfs::Pxfs;
use serde_json::{Map, Value, json};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use vfs::{Atime, FileSystem, ReadOnly, SystemClock};

/// Options of `serve`.
#[derive(Args)]
pub(crate) struct ServeArgs {
    /// Seconds after which the locks of a client that does not answer are given to others
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    lease: u64,
    #[command(flatten)]
    map: MapArgs,
}

/// Starts the service of an image.
pub(crate) fn serve(request: &ServiceRequest, args: &ServeArgs) -> Result<Service> {
    let path = at_start(NAME, &request.image)?;
    if path.is_dir() {
        return serve_directory(request, args);
    }
    let memory = args.map.map(path, false)?;
    let effective = memory.durability();
    let mut facts = about(&probe(path, &memory)?);
    let (region, note) = args.map.region(memory, None)?;
    let limits = Limits {
        lease: Duration::from_secs(args.lease),
        ..Limits::default()
    };
    let serving = match region {
        Region::Plain(memory) => start(*memory, (path, effective), &request.socket, limits),
        Region::Wrapped(memory) => start(memory, (path, effective), &request.socket, limits),
    }?;
    facts.insert("lease_seconds".into(), json!(args.lease));
    let mut service = described(serving, path, effective, facts);
    service.notes.extend(note);
    Ok(service)
}

/// Starts the service of a protected store.
fn serve_directory(request: &ServiceRequest, args: &ServeArgs) -> Result<Service> {
    let path = &request.image.path;
    if args.map.simulates() {
        let why = "a protected store cannot be slower than it is; leave out --emulate-latency";
        return Err(Error::about(path, why));
    }
    let store = Arc::new(directory::open(path, &args.map.options(false))?);
    let (memory, effective) = (store.memory(), store.durability());
    let mut facts = about(&probe(path, &memory)?);
    facts.insert("lease_seconds".into(), json!(args.lease));
    facts.insert("protected".into(), json!(true));
    let clock = Arc::new(SystemClock);
    let fs = Pxfs::open_protected(memory, store.clone(), clock, Atime::Never);
    let fs = fs.map_err(|e| Error::about(path, e))?;
    let limits = Limits {
        lease: Duration::from_secs(args.lease),
        ..Limits::default()
    };
    let serving = aerie_server::serve_protected(fs, &store, &request.socket, limits);
    let serving = serving.map_err(|e| Error::about(&request.socket, e))?;
    Ok(described(serving, path, effective, facts))
}

/// A service that runs.
fn described(
    serving: Serving,
    path: &Path,
    effective: EffectiveDurability,
    mut facts: Map<String, Value>,
) -> Service {
    let socket = serving.socket().display();
    let notes = vec![
        format!("{} is served at {socket}", path.display()),
        // Clients ship their changes later.
        format!("durability: {effective}: {}", effective.survived()),
    ];
    facts.insert("socket".into(), json!(serving.socket()));
    facts.insert("durability".into(), json!(effective.to_string()));
    Service {
        about: facts,
        notes,
        stop: Box::new(move || {
            serving.stop();
            Ok(())
        }),
    }
}

fn start<P: Pmem + 'static>(
    memory: P,
    (path, durability): (&Path, EffectiveDurability),
    socket: &Path,
    limits: Limits,
) -> Result<Serving> {
    let image = File::options().read(true).write(true).open(path);
    let image = image.map_err(|e| Error::about(path, e))?;
    let fs = Pxfs::open(Arc::new(memory), Arc::new(SystemClock), Atime::Never);
    let fs = fs.map_err(|e| Error::about(path, e))?;
    aerie_server::serve(fs, (&image, durability), socket, limits)
        .map_err(|e| Error::about(socket, e))
}

/// A mount of a client. Others can change the file system meanwhile.
pub(crate) fn mount(request: &MountRequest) -> Result<Prepared> {
    request.without_sync(NAME)?;
    let path = request.image.path.clone();
    let read_only = request.read_only;
    // No code of others runs in this process, which a guard would stop from storing.
    let options = aerie_client::Options {
        map: MapOptions::default(),
        ..aerie_client::Options::default()
    };
    let client = Client::connect(&path, &options);
    let client = client.map_err(|e| Error::about(&path, e))?;
    Ok(Prepared {
        source: path.display().to_string(),
        draws: false,
        shared: true,
        open: Box::new(move || Ok(opened(client, read_only, &path))),
    })
}

fn opened(client: Client, read_only: bool, path: &Path) -> Opened {
    let durability = client.durability();
    let notes = vec![
        "type: pxfs, a client of a service".to_owned(),
        format!(
            "durability: {durability}, after an fsync, or after 1 s: {}",
            durability.survived()
        ),
    ];
    let facts = [("type", json!(NAME)), ("socket", json!(path))];
    let named = |(name, value): (&str, Value)| (name.to_owned(), value);
    let fs: Arc<dyn FileSystem> = match read_only {
        true => Arc::new(ReadOnly(client)),
        false => Arc::new(client),
    };
    let served = Arc::clone(&fs);
    Opened {
        fs,
        durability: Some(durability),
        about: facts.into_iter().map(named).collect::<Map<_, _>>(),
        stats: None,
        notes,
        close: Box::new(move || served.sync().map_err(|errno| errno.to_string())),
        draw: None,
    }
}
