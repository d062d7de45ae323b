//! Passes bound sockets from one process to the next over a UNIX socket.

use super::error::OfferError;
use rustix::cmsg_space;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketType, recvmsg, sendmsg, sockopt,
};
use serde::{Deserialize, Serialize};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Most descriptors in one message; the kernel takes at most 253.
const IN_MESSAGE_MAX: usize = 64;

/// What a socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SocketKind {
    /// Datagrams.
    Udp,
    /// A listener for connections of clients.
    Tcp,
    /// The listener of metrics and health.
    Http,
}

/// A socket as it is announced before its descriptor is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct SocketAnnouncement {
    /// What it is for.
    pub kind: SocketKind,
    /// The address that the socket is bound to.
    pub address: SocketAddr,
}

/// Sends the descriptors, in order.
pub(super) fn send(stream: &UnixStream, descriptors: &[BorrowedFd<'_>]) -> std::io::Result<()> {
    for descriptors in descriptors.chunks(IN_MESSAGE_MAX) {
        let mut buffer = [MaybeUninit::uninit(); cmsg_space!(ScmRights(IN_MESSAGE_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut buffer);
        let fits = control.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(fits, "there is room for a whole message");
        // Descriptors can only be sent along with at least one byte.
        sendmsg(stream, &[IoSlice::new(b"s")], &mut control, SendFlags::NOSIGNAL)?;
    }
    Ok(())
}

/// Receives the announced sockets, and checks that each descriptor matches its announcement.
pub(super) fn receive(
    stream: &UnixStream,
    announced: &[SocketAnnouncement],
) -> Result<Vec<OwnedFd>, OfferError> {
    let descriptors = receive_all(stream, announced.len())?;
    for (descriptor, announced) in descriptors.iter().zip(announced) {
        check(descriptor, announced)?;
    }
    Ok(descriptors)
}

/// Receives `count` descriptors.
pub(super) fn receive_all(stream: &UnixStream, count: usize) -> Result<Vec<OwnedFd>, OfferError> {
    let mut descriptors = Vec::with_capacity(count.min(1 << 16));
    while descriptors.len() < count {
        let mut buffer = [MaybeUninit::uninit(); cmsg_space!(ScmRights(IN_MESSAGE_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut buffer);
        let mut byte = [0];
        let parts = &mut [IoSliceMut::new(&mut byte)];
        let received = recvmsg(stream, parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        if received.bytes != 1 {
            return Err(OfferError::Closed);
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(OfferError::TooManyFiles);
        }
        let received_before = descriptors.len();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        if descriptors.len() == received_before {
            return Err(OfferError::SocketCount);
        }
    }
    match descriptors.len() == count {
        true => Ok(descriptors),
        false => Err(OfferError::SocketCount),
    }
}

/// Whether a descriptor is the socket that was announced.
fn check(descriptor: &OwnedFd, announced: &SocketAnnouncement) -> Result<(), OfferError> {
    let address = match (announced.kind, sockopt::socket_type(descriptor)?) {
        (SocketKind::Udp, SocketType::DGRAM) => UdpSocket::from(descriptor.try_clone()?).local_addr()?,
        (SocketKind::Tcp | SocketKind::Http, SocketType::STREAM) => {
            TcpListener::from(descriptor.try_clone()?).local_addr()?
        }
        (kind, found) => return Err(OfferError::OtherType(announced.address, kind, found)),
    };
    if address == announced.address {
        Ok(())
    } else {
        Err(OfferError::OtherAddress(announced.address, address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd as _;

    #[test]
    fn more_sockets_than_fit_in_a_message_come_over_in_order() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let sockets: Vec<UdpSocket> = (0..150).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        let announced: Vec<SocketAnnouncement> = sockets
            .iter()
            .map(|socket| SocketAnnouncement { kind: SocketKind::Udp, address: socket.local_addr().unwrap() })
            .collect();
        let descriptors: Vec<BorrowedFd<'_>> = sockets.iter().map(|socket| socket.as_fd()).collect();
        send(&ours, &descriptors).unwrap();
        // `receive` compares the addresses.
        assert_eq!(receive(&theirs, &announced).unwrap().len(), 150);
    }

    #[test]
    fn what_is_not_as_announced_is_refused() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = "127.0.0.1:1".parse().unwrap();
        for (announced, descriptor, why) in [
            (SocketAnnouncement { kind: SocketKind::Tcp, address }, socket.as_fd(), "not a Tcp socket"),
            (SocketAnnouncement { kind: SocketKind::Udp, address }, listener.as_fd(), "not a Udp socket"),
            (SocketAnnouncement { kind: SocketKind::Udp, address: other }, socket.as_fd(), "is bound to"),
        ] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            send(&ours, &[descriptor]).unwrap();
            let error = receive(&theirs, &[announced]).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
            let is_named = match error {
                OfferError::OtherType(at, kind, _) => at == address && kind == announced.kind,
                OfferError::OtherAddress(at, found) => at == other && found == address,
                _ => false,
            };
            assert!(is_named, "{why}");
        }
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(ours);
        let announced = [SocketAnnouncement { kind: SocketKind::Udp, address }];
        assert!(receive(&theirs, &announced).unwrap_err().to_string().contains("closed the connection"));
    }

    /// A message with these many descriptors of one socket, sent at once.
    fn send_at_once(stream: &UnixStream, descriptor: BorrowedFd<'_>, count: usize) {
        let descriptors = vec![descriptor; count];
        let mut buffer = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2 * IN_MESSAGE_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut buffer);
        assert!(count == 0 || control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        sendmsg(stream, &[IoSlice::new(b"s")], &mut control, SendFlags::NOSIGNAL).unwrap();
    }

    #[test]
    fn another_number_of_sockets_than_announced_is_refused() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let announced = SocketAnnouncement { kind: SocketKind::Udp, address: socket.local_addr().unwrap() };
        let received = |announced_count: usize, sent_count: usize| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            send_at_once(&ours, socket.as_fd(), sent_count);
            drop(ours);
            receive(&theirs, &vec![announced; announced_count])
        };
        assert_eq!(received(2, 2).unwrap().len(), 2);
        assert!(matches!(received(1, 0), Err(OfferError::SocketCount)), "a message without any");
        assert!(matches!(received(2, 3), Err(OfferError::SocketCount)), "one too many");
        assert!(matches!(received(3, 2), Err(OfferError::Closed)), "one is missing");
    }

    /// The kernel leaves out what a process may not open any more, and what there is no capacity
    /// for, and reports both alike.
    #[test]
    fn sockets_that_the_kernel_has_left_out_are_noticed() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let announced = SocketAnnouncement { kind: SocketKind::Udp, address: socket.local_addr().unwrap() };
        let (ours, theirs) = UnixStream::pair().unwrap();
        send_at_once(&ours, socket.as_fd(), 2 * IN_MESSAGE_MAX);
        // As many as arrive, so that their number is as announced.
        let error = receive(&theirs, &[announced; IN_MESSAGE_MAX]).unwrap_err();
        assert!(matches!(error, OfferError::TooManyFiles), "{error}");
        assert!(error.to_string().contains("ulimit -n"), "{error}");
    }
}
