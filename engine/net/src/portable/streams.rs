//! Connections over `epoll`, in safe code.
//!
//! The `epoll` file is level-triggered and reports what is ready. The path polls it when no
//! datagram is ready, and every so often under constant load. It does not watch the datagram
//! socket.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags, acceptfrom_with, recv};

use crate::options::StreamOptions;
use crate::streams::{
    ACCEPT_PAUSE, EVENTS_MAX, Listener, RawEvent, StreamBatch, StreamConnections, StreamInbox, canonical,
};

/// Bit that marks the numbers of listeners.
const LISTENER: u64 = 1 << 32;
/// Value of `watched` for a registered connection.
const REGISTERED: u8 = 1;
const INPUT: u8 = 2;
const WRITABLE: u8 = 4;

pub(crate) struct PortableStreams {
    connections: StreamConnections,
    listeners: Vec<Listener>,
    events: Vec<RawEvent>,
    ready: Vec<epoll::Event>,
    buffers: Vec<u8>,
    receive_len: usize,
    epoll: OwnedFd,
}

impl PortableStreams {
    pub(crate) fn new(options: &StreamOptions) -> io::Result<Self> {
        Ok(Self {
            connections: StreamConnections::new(options.connections_max, false),
            listeners: Vec::new(),
            events: Vec::with_capacity(EVENTS_MAX),
            ready: Vec::with_capacity(EVENTS_MAX),
            buffers: vec![0; options.receive_len * options.receive_buffers.next_power_of_two()],
            receive_len: options.receive_len,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        })
    }

    pub(crate) fn listen(&mut self, socket: TcpListener) {
        self.listeners.push(Listener::new(socket));
    }

    pub(crate) fn stop_listening(&mut self) {
        for listener in &mut self.listeners {
            if let (true, Some(socket)) = (listener.watched, &listener.socket) {
                // Closing the socket is not enough if another process has it too.
                let _ = epoll::delete(&self.epoll, socket);
            }
            listener.watched = false;
            listener.close();
        }
    }

    pub(crate) fn batch(&mut self) -> StreamBatch<'_> {
        let inbox = StreamInbox { events: &self.events, memory: &self.buffers };
        StreamBatch { inbox, connections: &mut self.connections }
    }

    /// Drops the events of the last batch, and updates what the kernel watches.
    pub(crate) fn prepare(&mut self) -> io::Result<()> {
        self.events.clear();
        while let Some(at) = self.connections.next_changed() {
            self.watch(at)?;
        }
        for (i, listener) in self.listeners.iter_mut().enumerate() {
            if listener.wants_watch()
                && let Some(socket) = &listener.socket
            {
                let data = epoll::EventData::new_u64(LISTENER | i as u64);
                epoll::add(&self.epoll, socket, data, epoll::EventFlags::IN)?;
                listener.watched = true;
            }
        }
        Ok(())
    }

    fn watch(&mut self, at: u32) -> io::Result<()> {
        let slot = self.connections.at_mut(at);
        let Some(socket) = &slot.socket else { return Ok(()) };
        let wanted = slot.poll_interest();
        let (mut watched, mut flags) = (REGISTERED, epoll::EventFlags::empty());
        if wanted.input {
            watched |= INPUT;
            flags |= epoll::EventFlags::IN;
        }
        if wanted.writable {
            watched |= WRITABLE;
            flags |= epoll::EventFlags::OUT;
        }
        let data = epoll::EventData::new_u64(at.into());
        if slot.watched == 0 {
            epoll::add(&self.epoll, socket, data, flags)?;
        } else if slot.watched != watched {
            epoll::modify(&self.epoll, socket, data, flags)?;
        }
        slot.watched = watched;
        Ok(())
    }

    /// Takes the events that are ready, without waiting.
    pub(crate) fn poll(&mut self) -> io::Result<()> {
        self.ready.clear();
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        match epoll::wait(&self.epoll, spare_capacity(&mut self.ready), Some(&zero)) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let mut buffers_used = 0;
        for i in 0..self.ready.len() {
            let epoll::Event { flags, data } = self.ready[i];
            let Ok(at) = u32::try_from(data.u64()) else {
                self.accept(usize::try_from(data.u64() & !LISTENER).unwrap_or(usize::MAX));
                continue;
            };
            if flags.contains(epoll::EventFlags::OUT) {
                let event = self.connections.became_writable(at);
                self.events.extend(event);
            }
            let has_input = epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
            if flags.intersects(has_input) {
                buffers_used += usize::from(self.receive(at, buffers_used * self.receive_len));
            }
        }
        Ok(())
    }

    /// Accepts connections, as many as fit into a batch.
    fn accept(&mut self, i: usize) {
        let Some(listener) = self.listeners.get_mut(i) else { return };
        while self.events.len() < EVENTS_MAX
            && let Some(socket) = &listener.socket
        {
            match acceptfrom_with(socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok((accepted, peer)) => {
                    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok()).map(canonical);
                    self.events.extend(self.connections.opened(accepted, peer));
                }
                Err(Errno::AGAIN) => return,
                Err(error) => {
                    if Listener::is_lasting(error) {
                        let _ = epoll::delete(&self.epoll, socket);
                        listener.pause();
                        return;
                    }
                }
            }
        }
    }

    /// Receives from `at` into the buffer at `start`, if one is left. Returns whether the buffer is
    /// used.
    fn receive(&mut self, at: u32, start: usize) -> bool {
        let Some(buffer) = self.buffers.get_mut(start..start + self.receive_len) else { return false };
        let slot = self.connections.at_mut(at);
        let Some(socket) = slot.socket.as_ref() else { return false };
        if slot.watched & INPUT == 0 {
            // Only an error is reported unrequested, so the connection is broken.
            self.events.extend(self.connections.broke(at));
            return false;
        }
        let event = match recv(socket, buffer, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => self.connections.ended(at),
            Ok((_, len)) => self.connections.received(at, start, len),
            Err(Errno::AGAIN | Errno::INTR) => None,
            Err(_) => self.connections.broke(at),
        };
        self.events.extend(event);
        matches!(event, Some(RawEvent::Received { .. }))
    }

    /// The longest time until the next batch: `timeout`, or less if a listener is paused, because
    /// nothing else wakes the path for it.
    pub(crate) fn timeout(&self, timeout: Duration) -> Duration {
        match self.listeners.iter().any(Listener::is_paused) {
            true => timeout.min(ACCEPT_PAUSE),
            false => timeout,
        }
    }

    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }
}

impl AsFd for PortableStreams {
    /// Readable when an event is ready.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
