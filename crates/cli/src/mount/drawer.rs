//! The thread that draws what is not durable yet.

use crate::mount::serve::Draw;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

/// Draws on a thread of its own, so that other signals are answered meanwhile: finding the names
/// of the blocks takes long on a large file system.
pub(crate) struct Drawer(SyncSender<()>);

impl Drawer {
    /// Starts the thread.
    pub(crate) fn new(draw: Draw) -> Self {
        // One request may wait: the drawing under way may lack the latest changes.
        let (requests, waiting) = sync_channel(1);
        thread::spawn(move || {
            for () in waiting {
                if let Err(e) = draw() {
                    tracing::error!("{e}");
                }
            }
        });
        Self(requests)
    }

    /// Requests a drawing, and returns at once. A drawing that another request waits for serves
    /// this request too.
    pub(crate) fn request(&self) {
        let _ = self.0.try_send(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_request_returns_while_a_drawing_is_under_way() {
        let (started, starts) = channel();
        let (finish, finished) = channel();
        let drawer = Drawer::new(Box::new(move || {
            started.send(()).map_err(|e| e.to_string())?;
            finished.recv().map_err(|e| e.to_string())
        }));
        drawer.request();
        starts.recv().unwrap();
        for _ in 0..3 {
            drawer.request();
        }
        finish.send(()).unwrap();
        starts.recv().unwrap();
        drop(drawer);
        finish.send(()).unwrap();
        assert!(starts.recv().is_err(), "one drawing for the other requests");
    }
}
