//! What happens where `io_uring` does not work. It lowers a limit of the whole process, so it is alone.

use handle_net::{Choice, Kind, Options, bind, open_on};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn without_uring_auto_falls_back_and_says_why() {
    let sockets = [(); 2].map(|()| bind(&Options::new(([127, 0, 0, 1], 0).into())).unwrap());
    // No file may be opened any more, so also no ring.
    let limit = Rlimit { current: Some(0), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).unwrap();

    let [first, second] = sockets;
    let opened = open_on(first, Choice::Auto, &Options::default()).unwrap();
    assert_eq!(opened.path.kind(), Kind::Portable);
    assert!(opened.reason.starts_with("portable: io_uring_setup failed: "), "{}", opened.reason);
    assert!(opened.reason.contains("ulimit -n"), "{}", opened.reason);

    let error = open_on(second, Choice::Uring, &Options::default()).unwrap_err();
    assert!(error.to_string().starts_with("io_uring_setup failed: "), "{error}");
}
