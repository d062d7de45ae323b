//! Bytes that were valid once: mutations of messages, and a server whose answers are mutated.

use crate::forger::{TRUE_DATA, answer};
use handle_proto::wire::{Body, Envelope, Message, Request};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Changes up to three places of `message`.
pub fn mutate(random: &mut StdRng, message: &mut Vec<u8>) {
    for _ in 0..random.random_range(0..4) {
        if message.is_empty() {
            break;
        }
        let at = random.random_range(0..message.len());
        match random.random_range(0..5) {
            0 => message[at] = random.random(),
            1 => message[at] ^= 1 << random.random_range(0..8),
            2 => message.truncate(at),
            3 => message.insert(at, random.random()),
            // Extreme lengths and counts.
            _ => {
                let edge: u32 = [0, 1, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff][random.random_range(0..5)];
                let end = (at + 4).min(message.len());
                message[at..end].copy_from_slice(&edge.to_be_bytes()[..end - at]);
            }
        }
    }
}

/// A server with one record for every handle, whose answers over UDP are mutated; it ends when it
/// is dropped.
#[derive(Debug)]
pub struct MutatorServer {
    /// Its address.
    pub address: SocketAddr,
    state: Arc<MutatorState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct MutatorState {
    /// The answers about each handle.
    sent: Mutex<HashMap<Vec<u8>, Vec<Vec<u8>>>>,
    count: AtomicU64,
    ends: AtomicBool,
}

impl MutatorState {
    fn sent(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Vec<Vec<u8>>>> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, socket: &UdpSocket, mut random: StdRng) {
        let mut buffer = [0; 2048];
        while !self.ends.load(Ordering::Relaxed) {
            let Ok((len, from)) = socket.recv_from(&mut buffer) else { continue };
            let request = &buffer[..len];
            let (Some(handle), Some(mut answer)) =
                (handle_of(request), answer(request, TRUE_DATA, |_, _| {}))
            else {
                continue;
            };
            mutate(&mut random, &mut answer);
            // Before it is sent, so that whoever has it finds it here.
            self.sent().entry(handle).or_default().push(answer.clone());
            self.count.fetch_add(1, Ordering::Relaxed);
            let _ = socket.send_to(&answer, from);
        }
    }
}

fn handle_of(request: &[u8]) -> Option<Vec<u8>> {
    let (envelope, rest) = Envelope::split(request).ok()?;
    match Message::decode(rest).ok()?.decode_body(envelope.version) {
        Ok(Body::Request(Request::Resolution(query))) => Some(query.handle.to_vec()),
        _ => None,
    }
}

impl MutatorServer {
    /// Starts a server whose mutations follow from `seed`.
    ///
    /// # Panics
    /// When there is no port.
    #[must_use]
    pub fn start(seed: u64) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
        let address = socket.local_addr().expect("an address");
        let state = Arc::new(MutatorState::default());
        let thread = std::thread::spawn({
            let state = Arc::clone(&state);
            move || state.run(&socket, StdRng::seed_from_u64(seed))
        });
        Self { address, state, thread: Some(thread) }
    }

    /// The number of answers so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.state.count.load(Ordering::Relaxed)
    }

    /// The answers about `handle` so far.
    #[must_use]
    pub fn answers(&self, handle: &[u8]) -> Vec<Vec<u8>> {
        self.state.sent().get(handle).cloned().unwrap_or_default()
    }
}

impl Drop for MutatorServer {
    fn drop(&mut self) {
        self.state.ends.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
