//! Opening a datapath where `io_uring` does not work. The test lowers a limit of the whole process,
//! so it is alone in this file.

use std::fs::File;
use std::os::fd::AsRawFd as _;

use handle_net::{DatapathChoice, DatapathKind, SocketOptions, bind, open_on};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn without_uring_auto_falls_back_and_gives_the_reason() {
    let sockets = [(); 2].map(|()| bind(&SocketOptions::new(([127, 0, 0, 1], 0).into())).unwrap());
    // One file may be opened, the waker that every path has, so that no ring can be opened.
    let next = u64::try_from(File::open("/dev/null").unwrap().as_raw_fd()).unwrap();
    let allow = |files: u64| {
        let limit = Rlimit { current: Some(next + files), ..getrlimit(Resource::Nofile) };
        setrlimit(Resource::Nofile, limit).unwrap();
    };
    allow(1);

    let [first, second] = sockets;
    let opened = open_on(first, DatapathChoice::Auto, &SocketOptions::default()).unwrap();
    assert_eq!(opened.path.kind(), DatapathKind::Portable);
    assert!(opened.reason.starts_with("portable: io_uring_setup failed: "), "{}", opened.reason);
    assert!(opened.reason.contains("ulimit -n"), "{}", opened.reason);

    allow(2);
    let error = open_on(second, DatapathChoice::Uring, &SocketOptions::default()).unwrap_err();
    assert!(error.to_string().starts_with("io_uring_setup failed: "), "{error}");
}
