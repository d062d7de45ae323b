//! `handle-admin` with few file descriptors, and strangers who hold them; and a pipe in place of a
//! file, for which `handle-fetch` must not wait.

use handle_tests::daemon::ask;
use handle_tests::process::{RunningProcess, program, succeed, until};
use handle_tests::service_directory::InitialisedService;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The same command, with at most so many file descriptors.
fn limited(command: &Command, descriptors: u32) -> Command {
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("ulimit -n {descriptors}; exec \"$@\""), "sh"]);
    limited.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    let set = |(name, value): (&std::ffi::OsStr, Option<&std::ffi::OsStr>)| {
        Some((name.to_owned(), value?.to_owned()))
    };
    limited.envs(command.get_envs().filter_map(set));
    limited
}

#[test]
fn idle_strangers_do_not_keep_handle_admin_from_serving() {
    let mut service = InitialisedService::make();
    let command = limited(&service.admin_command(), 64);
    service.start_admin_as(command);
    let strangers: Vec<_> = (0..120).map(|_| TcpStream::connect(service.administration).unwrap()).collect();
    std::thread::sleep(Duration::from_millis(500));
    let control = service.path("site/run/handle-admin.sock");
    for number in 0..3 {
        let since = Instant::now();
        let name = format!("10.1045/{number}");
        succeed(service.hdl_as_admin(["handle", "create", &name, "1:URL=https://example.org/"]));
        assert!(ask(&control, "status")["pid"].is_number(), "the control socket answers");
        assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
    }
    drop(strangers);
}

#[test]
fn handle_fetch_stops_while_a_pipe_is_in_place_of_the_set() {
    let directory = tempfile::tempdir().unwrap();
    let (store, control) = (directory.path().join("store"), directory.path().join("control"));
    std::fs::create_dir(&store).unwrap();
    for name in ["SET", "MANIFEST", "CURRENT"] {
        assert!(Command::new("mkfifo").arg(store.join(name)).status().unwrap().success());
    }
    let mut fetch = Command::new(program("handle-fetch", "handle-fetch"));
    fetch.arg(format!("file://{}", store.display())).arg(directory.path().join("set"));
    fetch.args(["--allow-root", "--control"]).arg(&control).stdin(Stdio::null()).stderr(Stdio::null());
    let mut fetch = RunningProcess::start(fetch);
    until("an attempt fails", || ask(&control, "status")["last_error"].is_string());
    let since = Instant::now();
    fetch.signal("TERM");
    assert_eq!(fetch.wait(), Some(0));
    assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
}
