//! Helpers of the tests of datapaths.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../../../../tests/src/needs.rs"]
#[expect(unreachable_pub, reason = "shared with the tests of the whole tree")]
mod needs;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use handle_net::{Datagram, Datapath, DatapathChoice, SocketOptions, open};

pub(crate) use needs::{TestNeed, has};

pub(crate) const SOON: Duration = Duration::from_secs(5);
pub(crate) const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
pub(crate) const LOOPBACK_V6: SocketAddr = SocketAddr::new(std::net::IpAddr::V6(Ipv6Addr::LOCALHOST), 0);

/// Runs each test for each datapath that opens on this system.
macro_rules! on_both_paths {
    ($($promise:ident),* $(,)?) => {
        mod portable {
            $(#[test] fn $promise() { super::$promise(handle_net::DatapathChoice::Portable) })*
        }
        mod uring {
            $(#[test] fn $promise() {
                match handle_net::open(handle_net::DatapathChoice::Uring, &handle_net::SocketOptions::new(crate::common::LOOPBACK)) {
                    Ok(_) => super::$promise(handle_net::DatapathChoice::Uring),
                    Err(_) => assert!(!crate::common::has(crate::common::TestNeed::IoUring, false)),
                }
            })*
        }
    };
}

pub(crate) fn path(choice: DatapathChoice, options: &SocketOptions) -> Box<dyn Datapath> {
    open(choice, options).unwrap().path
}

/// Waits until `count` datagrams were received, and passes each to `each`.
pub(crate) fn receive(path: &mut dyn Datapath, count: usize, mut each: impl FnMut(Datagram<'_>)) {
    let end = Instant::now() + SOON;
    let mut received = 0;
    while received < count {
        assert!(Instant::now() < end, "received {received} of {count}");
        for datagram in path.wait(Duration::from_millis(100)).unwrap().inbox.iter() {
            received += datagram.segments().count();
            each(datagram);
        }
    }
}

pub(crate) fn copy(buffer: &mut [u8], bytes: &[u8]) -> usize {
    buffer[..bytes.len()].copy_from_slice(bytes);
    bytes.len()
}
