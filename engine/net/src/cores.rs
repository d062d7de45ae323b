//! The processor cores that a thread may run on.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Keeps the calling thread on one core, counted from 0.
///
/// # Errors
///
/// `InvalidInput` if the core does not exist, or this process may not run on it.
pub fn pin_to_core(core: usize) -> io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        let message =
            format!("cannot pin to core {core}: the highest core number is {}", CpuSet::MAX_CPU - 1);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let mut cores = CpuSet::new();
    cores.set(core);
    Ok(sched_setaffinity(None, &cores)?)
}

/// The cores that the calling thread may run on, counted from 0, in ascending order.
///
/// In a container they need not start at 0.
///
/// # Errors
///
/// Errors of the kernel.
pub fn usable_cores() -> io::Result<Vec<usize>> {
    let allowed = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_usable_cores_can_be_pinned_to() {
        let cores = usable_cores().unwrap();
        assert!(!cores.is_empty());
        // Each core is tried in a thread of its own, so that the pinning ends with it.
        for core in cores {
            let left = std::thread::spawn(move || pin_to_core(core).and_then(|()| usable_cores()));
            assert_eq!(left.join().unwrap().unwrap(), [core]);
        }
    }
}
