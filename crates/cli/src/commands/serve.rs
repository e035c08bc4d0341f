//! `selvedge serve`: a service through which programs use an image.

use crate::failure::{Failure, Outcome};
use crate::types::{EngineArgs, OfServe, of_image};
use crate::{image, output};
use engine::{Image, ServiceRequest};
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::path::PathBuf;
use std::process::ExitCode;

/// Let programs use an image directly, through a service
///
/// Programs connect to the socket. They read the memory themselves, and the service checks and applies
/// their changes. `selvedge mount SOCKET DIR` mounts the files, too. Runs in the foreground until
/// SIGTERM or SIGINT, and leaves an image in good order.
///
/// With the environment variable NOTIFY_SOCKET it reports to systemd when it is ready.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The image, or the directory of a protected store
    #[arg(value_name = "PATH")]
    image: PathBuf,
    /// The socket to make, at which programs connect; who may use it is decided by the
    /// permissions of its directory and of the image
    #[arg(long, value_name = "SOCKET")]
    socket: PathBuf,
    /// Print facts about the service in JSON when it is ready
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    options: EngineArgs<OfServe>,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(&self) -> Outcome {
        let engine = of_image(&self.image, 0)?;
        let options = self.options.of(engine).map_err(Failure::new)?;
        // Caught from before the start on, so that the socket is removed in any case.
        let signals = Signals::new([SIGTERM, SIGINT, SIGHUP]);
        let mut signals = signals.map_err(Failure::new)?;
        let request = ServiceRequest {
            image: Image::whole(&self.image),
            socket: self.socket.clone(),
        };
        let service = image::patiently(&self.image, || engine.serve(&request, &options));
        let service = service.map_err(Failure::new)?;
        let told = match self.json {
            true => format!("{}\n", Value::Object(service.about)),
            false => service
                .notes
                .iter()
                .map(|note| format!("{note}\n"))
                .collect(),
        };
        output::print(&told)?;
        // Without systemd there is nobody to tell.
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        let signal = signals.forever().next();
        tracing::info!("ends by signal {}", signal.unwrap_or(SIGTERM));
        (service.stop)().map_err(|why| Failure::about(&self.image, why))?;
        Ok(ExitCode::SUCCESS)
    }
}
