//! Captures of network traffic: the UDP datagrams in files of tcpdump, Wireshark and the like.
//!
//! - The classic libpcap format in both byte orders, with times in micro- or nanoseconds, and the
//!   pcapng format.
//! - Ethernet and Linux "any" devices (two versions), with VLAN tags; loopback and raw IP.
//! - IPv4 and IPv6 without extension headers. IP fragments are skipped, because no request needs
//!   them.

mod cursor;
mod pcapng;
#[cfg(test)]
mod tests;

use cursor::FileCursor;

/// Number of bytes that identify a format.
pub const MAGIC_LEN: u64 = 4;

/// A UDP datagram of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapturedDatagram<'b> {
    /// Nanoseconds since 1970.
    pub at_ns: i64,
    /// The port that it was sent to.
    pub port: u16,
    /// Its content.
    pub payload: &'b [u8],
}

/// What a capture has besides datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureRest {
    /// Number of packets that are not a whole UDP datagram, have no time, or are of an unsupported
    /// device.
    pub skipped: u64,
    /// Whether the file ends within a packet.
    pub is_cut: bool,
}

/// Whether a file begins like a capture in either format.
#[must_use]
pub fn is_capture(bytes: &[u8]) -> bool {
    begin(bytes).is_some() || bytes.starts_with(&pcapng::MAGIC)
}

/// A capture after its first four bytes, and the nanoseconds per unit of its sub-second times.
fn begin(bytes: &[u8]) -> Option<(FileCursor<'_>, i64)> {
    let (magic, rest) = bytes.split_first_chunk()?;
    let (is_big, unit_ns) = match magic {
        [0xa1, 0xb2, 0xc3, 0xd4] => (true, 1000),
        [0xd4, 0xc3, 0xb2, 0xa1] => (false, 1000),
        [0xa1, 0xb2, 0x3c, 0x4d] => (true, 1),
        [0x4d, 0x3c, 0xb2, 0xa1] => (false, 1),
        _ => return None,
    };
    Some((FileCursor { rest, is_big }, unit_ns))
}

/// Passes the datagrams of a capture to `each`, in their order. A capture that ends within a packet
/// is read up to there.
///
/// # Errors
///
/// If it is not a capture, or from an unsupported kind of device.
pub fn datagrams<'b>(
    bytes: &'b [u8],
    mut each: impl FnMut(CapturedDatagram<'b>),
) -> Result<CaptureRest, String> {
    let mut skipped = 0;
    let mut take = |at_ns, ip: Option<&'b [u8]>| match ip.and_then(udp_payload) {
        Some((port, payload)) => each(CapturedDatagram { at_ns, port, payload }),
        None => skipped += 1,
    };
    if bytes.starts_with(&pcapng::MAGIC) {
        let rest = pcapng::packets(bytes, |at_ns, link, packet| {
            // Some of several devices may be supported and others not.
            take(at_ns, link_layer(link).and_then(|ip_of| ip_of(packet)));
        })?;
        return Ok(CaptureRest { skipped: skipped + rest.skipped, ..rest });
    }
    let (mut packets, unit_ns) = begin(bytes).ok_or("not a capture")?;
    // After the version, the zone, the precision of the clock, and the maximum packet length.
    let link =
        packets.bytes(16).and_then(|_| packets.word()).ok_or("it ends within the file header")? & 0x0fff_ffff;
    let ip_of = link_layer(link).ok_or_else(|| format!("unsupported kind of device {link}"))?;
    loop {
        let is_end = packets.rest.is_empty();
        match packet(&mut packets, unit_ns) {
            Some((at_ns, packet)) => take(at_ns, ip_of(packet)),
            None => return Ok(CaptureRest { skipped, is_cut: !is_end }),
        }
    }
}

/// The next packet, with its time.
fn packet<'b>(packets: &mut FileCursor<'b>, unit_ns: i64) -> Option<(i64, &'b [u8])> {
    let (seconds, fraction) = (packets.word()?, packets.word()?);
    // The captured and the original length.
    let (len, _) = (packets.word()?, packets.word()?);
    let at_ns = i64::from(seconds) * 1_000_000_000 + i64::from(fraction) * unit_ns;
    Some((at_ns, packets.bytes_of(len)?))
}

type IpOf = fn(&[u8]) -> Option<&[u8]>;

/// The function that finds the IP packet in frames of kind `link`.
fn link_layer(link: u32) -> Option<IpOf> {
    Some(match link {
        0 | 108 => |packet| packet.get(4..),
        1 => |packet| after_tags(packet, 12),
        12 | 14 | 101 | 228 | 229 => |packet| Some(packet),
        113 => |packet| after_tags(packet, 14),
        276 => |packet| packet.get(20..),
        _ => return None,
    })
}

/// The IP packet after the type field at `at`, which VLAN tags may precede.
fn after_tags(packet: &[u8], mut at: usize) -> Option<&[u8]> {
    // At most two tags.
    for _ in 0..3 {
        match *packet.get(at..)?.first_chunk::<2>()? {
            [0x81, 0x00] | [0x88, 0xa8] => at += 4,
            [0x08, 0x00] | [0x86, 0xdd] => return packet.get(at + 2..),
            _ => return None,
        }
    }
    None
}

/// The destination port and the payload of a UDP packet.
fn udp_payload(ip: &[u8]) -> Option<(u16, &[u8])> {
    const UDP: u8 = 17;
    let udp = match ip.first()? >> 4 {
        4 => {
            let head_len = usize::from(ip[0] & 15) * 4;
            let (total, fragment) = (u16_at(ip, 2)?, u16_at(ip, 6)?);
            let is_whole = fragment & 0x3fff == 0;
            (*ip.get(9)? == UDP && is_whole).then(|| ip.get(head_len..usize::from(total))).flatten()?
        }
        6 => {
            let len = usize::from(u16_at(ip, 4)?);
            (*ip.get(6)? == UDP).then(|| ip.get(40..40 + len)).flatten()?
        }
        _ => return None,
    };
    let len = usize::from(u16_at(udp, 4)?);
    Some((u16_at(udp, 2)?, udp.get(8..len)?))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_be_bytes)
}
