//! The thread that accepts connections, sends what clients did not take at once, and watches leases.

use super::Service;
use aerie_proto::messages::{Down, encode};
use medium::Pmem;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::ErrorKind;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// The time without new connections after one could not be accepted.
const PAUSE: Duration = Duration::from_millis(50);

/// The state of the thread.
pub(super) struct Pump<P: Pmem + 'static> {
    service: Arc<Service<P>>,
    listener: UnixListener,
    threads: Vec<JoinHandle<()>>,
    is_paused: bool,
}

impl<P: Pmem + 'static> Pump<P> {
    pub(super) fn new(service: Arc<Service<P>>, listener: UnixListener) -> Self {
        Self {
            service,
            listener,
            threads: Vec::new(),
            is_paused: false,
        }
    }

    /// Runs until the service stops. All threads of connections have then ended.
    pub(super) fn run(mut self) {
        while !self.service.is_stopping() {
            let connects = match self.wait() {
                Ok(connects) => connects,
                Err(Errno::INTR | Errno::AGAIN | Errno::NOMEM) => continue,
                Err(e) => {
                    tracing::error!("the service stops: {e}");
                    break;
                }
            };
            let service = &self.service;
            service.with_locks(|locks| locks.tick(service.now()));
            service.end_sessions();
            self.threads.retain(|thread| !thread.is_finished());
            self.is_paused = false;
            if connects {
                self.accept();
            }
        }
        drop(self.listener);
        let connections = self.service.connections.lock();
        let all: Vec<_> = connections.all.values().cloned().collect();
        drop(connections);
        for connection in all {
            let reason = Down::Bye("the service was stopped".to_owned());
            connection.outbox.send(&reason);
            connection.outbox.abandon();
        }
        for thread in self.threads {
            let _ = thread.join();
        }
        self.service.stop_clerk();
    }

    /// Waits for something to do, and sends what can be sent. Returns whether there are connections.
    fn wait(&self) -> Result<bool, Errno> {
        let service = &self.service;
        let connections = service.connections.lock();
        let all: Vec<_> = connections.all.values().cloned().collect();
        drop(connections);
        let connects = match self.is_paused {
            true => PollFlags::empty(),
            false => PollFlags::IN,
        };
        let mut fds = vec![
            PollFd::new(&service.wake, PollFlags::IN),
            PollFd::new(&self.listener, connects),
        ];
        let waiting = all
            .iter()
            .filter_map(|connection| connection.outbox.waiting());
        fds.extend(waiting.map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::OUT)));
        let most = service.limits.lease / 4;
        let most = if self.is_paused {
            PAUSE.min(most)
        } else {
            most
        };
        let most = Timespec::try_from(most).map_err(|_| Errno::INVAL)?;
        poll(&mut fds, Some(&most))?;
        let connects = !fds[1].revents().is_empty();
        let _ = rustix::io::read(&service.wake, &mut [0; 8]);
        for connection in all {
            connection.outbox.flush();
        }
        Ok(connects)
    }

    fn accept(&mut self) {
        let socket = match self.listener.accept() {
            Ok((socket, _)) => socket,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return,
            Err(e) => {
                tracing::warn!("cannot accept a connection: {e}");
                self.is_paused = true;
                return;
            }
        };
        let refusing = socket.try_clone();
        let (connection, queues) = match self.service.connect(socket) {
            Ok(connected) => connected,
            Err(why) => return refusing.map_or((), |socket| refuse(&socket, why)),
        };
        let service = Arc::clone(&self.service);
        let served = Arc::clone(&connection);
        let thread = std::thread::Builder::new().name("aerie-client".to_owned());
        match thread.spawn(move || service.attend(&served, queues)) {
            Ok(thread) => self.threads.push(thread),
            Err(e) => {
                tracing::warn!("cannot serve a connection: {e}");
                let mut connections = self.service.connections.lock();
                connections.all.remove(&connection.id);
            }
        }
    }
}

/// Sends a reason, if the socket takes it at once.
fn refuse(socket: &UnixStream, why: String) {
    if let Ok(frame) = encode(&Down::Bye(why)) {
        let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
        let _ = rustix::net::send(socket, &frame, flags);
    }
}
