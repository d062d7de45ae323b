//! A large file that a thread of its own writes.

use super::storage::Storage;
use std::io::{self, Seek, SeekFrom, Write};
use std::string::String;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::vec::Vec;

/// Bytes that may wait to be synced.
const UNSYNCED_LEN_MAX: usize = 8 << 20;
/// Writes that may wait for the thread. Those of a layer have 64 KiB each.
const WAITING_MAX: usize = 64;

/// A large file that a thread of its own writes, so that its owner does not wait for the disk.
///
/// It is synced while it is written, so that other processes that sync never wait for more than a
/// few mebibytes of it, and the sync at its end is short. An error is returned by a later call, at
/// the latest by [`flush`](Write::flush).
#[derive(Debug)]
pub struct SteadyFile<S: Storage> {
    /// `None` after an error.
    steps: Option<SyncSender<FileStep>>,
    positions: Receiver<u64>,
    thread: Option<JoinHandle<io::Result<S::File>>>,
}

/// A task of the thread.
#[derive(Debug)]
enum FileStep {
    Write(Vec<u8>),
    /// Answered with the new position.
    Seek(SeekFrom),
    /// Answered with 0.
    Flush,
}

impl<S: Storage> SteadyFile<S> {
    pub(super) fn start(storage: Arc<S>, file: S::File) -> io::Result<Self> {
        let (steps, waiting) = sync_channel(WAITING_MAX);
        let (sender, positions) = channel();
        let write = move || write_steps(&*storage, file, &waiting, &sender);
        let thread = std::thread::Builder::new().name(String::from("write")).spawn(write)?;
        Ok(Self { steps: Some(steps), positions, thread: Some(thread) })
    }

    /// Waits until all is written, and returns the file.
    ///
    /// # Errors
    /// When the file could not be written.
    pub fn into_inner(mut self) -> io::Result<S::File> {
        self.join()
    }

    fn join(&mut self) -> io::Result<S::File> {
        self.steps = None;
        let ended = self.thread.take().ok_or_else(|| io::Error::other("an earlier write has failed"))?;
        ended.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    fn send(&mut self, step: FileStep) -> io::Result<()> {
        match self.steps.as_ref().map(|steps| steps.send(step)) {
            Some(Ok(())) => Ok(()),
            _ => Err(self.error()),
        }
    }

    /// Sends a step, and waits until it and all before it are done.
    fn ask(&mut self, step: FileStep) -> io::Result<u64> {
        self.send(step)?;
        self.positions.recv().map_err(|_| self.error())
    }

    /// Why the thread has ended.
    fn error(&mut self) -> io::Error {
        self.join().err().unwrap_or_else(|| io::ErrorKind::BrokenPipe.into())
    }
}

impl<S: Storage> Write for SteadyFile<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send(FileStep::Write(bytes.into()))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.ask(FileStep::Flush).map(drop)
    }
}

impl<S: Storage> Seek for SteadyFile<S> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.ask(FileStep::Seek(to))
    }
}

impl<S: Storage> Drop for SteadyFile<S> {
    fn drop(&mut self) {
        // No process writes to the file once its owner may remove it.
        if self.thread.is_some() {
            let _ = self.join();
        }
    }
}

/// Takes all steps, and returns the file.
fn write_steps<S: Storage>(
    storage: &S,
    mut file: S::File,
    steps: &Receiver<FileStep>,
    positions: &Sender<u64>,
) -> io::Result<S::File> {
    let mut unsynced_len = 0;
    for step in steps {
        let position = match step {
            FileStep::Write(bytes) => {
                file.write_all(&bytes)?;
                unsynced_len += bytes.len();
                if unsynced_len >= UNSYNCED_LEN_MAX {
                    file.flush()?;
                    storage.sync(&file)?;
                    unsynced_len = 0;
                }
                continue;
            }
            FileStep::Seek(to) => file.seek(to)?,
            FileStep::Flush => file.flush().map(|()| 0)?,
        };
        // The owner waits for it.
        let _ = positions.send(position);
    }
    Ok(file)
}
