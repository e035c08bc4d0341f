//! Starting and stopping the service.

use super::image::Image;
use super::pump::Pump;
use super::{Limits, Service};
use crate::protected::Protected;
use medium::{EffectiveDurability, Pmem};
use pxfs::Pxfs;
use rustix::fs::{FileType, Mode, OFlags};
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Why a service does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Another process serves at the socket.
    #[error("cannot serve at {0}: another service is there")]
    InUse(PathBuf),
    /// The path of the socket is something else.
    #[error("cannot serve at {0}: it exists, and is not a socket")]
    NotASocket(PathBuf),
    /// An error of the system.
    #[error("cannot serve at {path}: {what}: {error}")]
    System {
        /// The path of the socket.
        path: PathBuf,
        /// The step that failed.
        what: &'static str,
        /// The error.
        error: io::Error,
    },
}

/// The description of a service, for users and programs.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Description {
    /// The path of the socket.
    pub socket: PathBuf,
    /// Bytes of the store.
    pub store_bytes: u64,
    /// The lease of clients, in seconds.
    pub lease_seconds: f64,
    /// Most connections.
    pub clients: usize,
    /// Most connections of one user.
    pub clients_per_user: usize,
}

/// A service that runs until it is stopped or dropped.
pub struct Serving {
    description: Description,
    stop: Box<dyn Fn() + Send + Sync>,
    pump: Option<JoinHandle<()>>,
}

/// Serves a file system to clients that connect to a Unix socket. `image` is a descriptor for reading and
/// writing of the file that contains it, and the durability of its memory. Every user may connect whom the mode of
/// the socket's directory permits it.
///
/// # Errors
/// [`ServeError`]. A socket that a killed service has left is replaced.
pub fn serve<P: Pmem + 'static>(
    fs: Pxfs<P>,
    (image, durability): (&File, EffectiveDurability),
    socket: &Path,
    limits: Limits,
) -> Result<Serving, ServeError> {
    let image = Image::new(image, durability);
    let image = image.map_err(|e| failed(socket, "open the image again", e.into()))?;
    serve_image(fs, image, socket, limits)
}

/// Serves the file system in a protected store, as [`serve`] does.
///
/// # Errors
/// [`ServeError`].
pub fn serve_protected<P: Pmem + 'static>(
    fs: Pxfs<P>,
    store: &Protected,
    socket: &Path,
    limits: Limits,
) -> Result<Serving, ServeError> {
    let server = store.server().map_err(io::Error::other);
    let server = server.map_err(|e| failed(socket, "serve the classes", e))?;
    let image = Image::protected(server, store.durability());
    serve_image(fs, image, socket, limits)
}

fn failed(path: &Path, what: &'static str, error: io::Error) -> ServeError {
    ServeError::System {
        path: path.to_owned(),
        what,
        error,
    }
}

fn serve_image<P: Pmem + 'static>(
    fs: Pxfs<P>,
    image: Image,
    socket: &Path,
    limits: Limits,
) -> Result<Serving, ServeError> {
    let listener = listen(socket)?;
    let description = Description {
        socket: socket.to_owned(),
        store_bytes: fs.superblock().bytes,
        lease_seconds: limits.lease.as_secs_f64(),
        clients: limits.clients,
        clients_per_user: limits.per_user,
    };
    let service = Service::start(fs, image, limits);
    let service = service.map_err(|e| failed(socket, "start the threads", e.into()))?;
    let pump = Pump::new(Arc::clone(&service), listener);
    let pump = std::thread::spawn(move || pump.run());
    Ok(Serving {
        description,
        stop: Box::new(move || service.stop()),
        pump: Some(pump),
    })
}

impl Serving {
    /// The path of the socket.
    pub fn socket(&self) -> &Path {
        &self.description.socket
    }

    /// The description.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// Ends all sessions and removes the socket. The file system is then closed. Unshipped changes of
    /// clients are lost.
    pub fn stop(self) {}

    /// Whether the service still runs.
    pub fn is_running(&self) -> bool {
        self.pump.as_ref().is_some_and(|pump| !pump.is_finished())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // First: another service may start here as soon as this one does not listen.
        let _ = std::fs::remove_file(&self.description.socket);
        (self.stop)();
        if let Some(pump) = self.pump.take() {
            let _ = pump.join();
        }
        self.stop = Box::new(|| ()); // it had the file system
    }
}

/// Lets all users connect to a socket. A user who may write to its directory may have put a link into its place.
fn allow_all(path: &Path) -> io::Result<()> {
    let named = rustix::fs::open(
        path,
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let is_socket = FileType::from_raw_mode(rustix::fs::fstat(&named)?.st_mode) == FileType::Socket;
    if !is_socket {
        return Err(io::Error::other("something else has taken its place"));
    }
    let same = format!("/proc/self/fd/{}", named.as_raw_fd());
    std::fs::set_permissions(same, Permissions::from_mode(0o666))
}

/// Listens at the path.
fn listen(path: &Path) -> Result<UnixListener, ServeError> {
    let failed = |what, error| failed(path, what, error);
    if let Ok(found) = path.symlink_metadata() {
        if !found.file_type().is_socket() {
            return Err(ServeError::NotASocket(path.to_owned()));
        }
        match UnixStream::connect(path) {
            Ok(_) => return Err(ServeError::InUse(path.to_owned())),
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).map_err(|e| failed("remove the old socket", e))?;
            }
            Err(e) => return Err(failed("connect to the old socket", e)),
        }
    }
    let listener = UnixListener::bind(path).map_err(|e| failed("make the socket", e))?;
    allow_all(path).map_err(|e| failed("set the mode of the socket", e))?;
    let listening = listener.set_nonblocking(true);
    listening.map_err(|e| failed("prepare the socket", e))?;
    Ok(listener)
}
