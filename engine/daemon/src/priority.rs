//! Threads that let others go first.

/// Lets everything else go before the calling thread: with `idle` whatever else wants the core
/// (SCHED_IDLE), else as much as `nice` says, from 0 to 19.
///
/// # Errors
/// What the kernel says where it does not do it; the thread then runs as before.
pub fn stand_back(idle: bool, nice: u8) -> Result<(), String> {
    use thread_priority::{NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy};
    if !idle {
        // On Linux this is about the calling thread alone.
        return match rustix::process::setpriority_process(None, nice.into()) {
            Ok(()) => Ok(()),
            Err(error) => Err(error.to_string()),
        };
    }
    let idle = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
    let thread = thread_priority::thread_native_id();
    thread_priority::set_thread_priority_and_policy(thread, ThreadPriority::Min, idle)
        .map_err(|error| error.to_string())
}
