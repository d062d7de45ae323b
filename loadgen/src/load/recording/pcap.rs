//! Captures in the classic libpcap format, as written by tcpdump, and the packets of both formats.
//!
//! - Both byte orders, and times in micro- or nanoseconds.
//! - Ethernet and Linux "any" devices (two versions), with VLAN tags; loopback and raw IP.
//! - IPv4 and IPv6 without extension headers. IP fragments are skipped, because no request needs
//!   them.
//! - Only complete resolution requests to one UDP port; everything else is counted as skipped.

use handle_proto::limit::UDP_MESSAGE_LEN_MAX;

use super::cursor::FileCursor;
use super::{RecordedRequest, Recording, pcapng};
use crate::load::question::GeneratedQuestion;

/// The bytes that identify a format.
pub(super) const MAGIC_LEN: u64 = 4;

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

/// Reads all requests to `port`, in either format. A capture that ends within a packet is read up
/// to there.
///
/// # Errors
///
/// If it is not a capture, or from an unsupported kind of device.
pub fn read(bytes: &[u8], port: u16) -> Result<Recording, String> {
    let mut recording = Recording::default();
    if bytes.starts_with(&pcapng::MAGIC) {
        let skipped = pcapng::packets(bytes, |at_ns, link, packet| {
            // Some of several devices may be supported and others not.
            let ip = link_layer(link).and_then(|ip_of| ip_of(packet));
            take(&mut recording, at_ns, ip, port);
        })?;
        recording.skipped += skipped;
        return Ok(recording);
    }
    let (mut packets, unit_ns) = begin(bytes).ok_or("not a capture")?;
    // After the version, the zone, the precision of the clock, and the maximum packet length.
    let link =
        packets.bytes(16).and_then(|_| packets.word()).ok_or("it ends within the file header")? & 0x0fff_ffff;
    let ip_of = link_layer(link).ok_or_else(|| format!("unsupported kind of device {link}"))?;
    while let Some((at_ns, packet)) = packet(&mut packets, unit_ns) {
        take(&mut recording, at_ns, ip_of(packet), port);
    }
    Ok(recording)
}

/// Adds the request in an IP packet, if there is one.
fn take(recording: &mut Recording, at_ns: i64, ip: Option<&[u8]>, port: u16) {
    let payload = ip.and_then(|ip| udp_payload(ip, port));
    match payload.filter(|payload| is_request(payload)) {
        Some(payload) if recording.requests.len() < Recording::REQUESTS_MAX => {
            recording.requests.push(RecordedRequest { at_ns, content: payload.to_vec() });
        }
        _ => recording.skipped += 1,
    }
}

/// Whether it is a complete request. Requests in several datagrams are left out, because their
/// fragments share an id.
fn is_request(payload: &[u8]) -> bool {
    payload.len() <= UDP_MESSAGE_LEN_MAX && GeneratedQuestion::of_message(payload).is_some()
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

/// The payload of a UDP packet to `port`.
fn udp_payload(ip: &[u8], port: u16) -> Option<&[u8]> {
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
    (u16_at(udp, 2)? == port).then(|| udp.get(8..len)).flatten()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_be_bytes)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::load::workload::{RequestChoice, RequestSampler};
    use crate::random::RandomGenerator;

    fn request(name: &[u8]) -> Vec<u8> {
        let mut sampler = RequestSampler::new(1, 1);
        sampler.offer(name);
        let mut room = [0; UDP_MESSAGE_LEN_MAX];
        let len = sampler.finish(0).unwrap().write_request(RequestChoice::default(), 77, &mut room);
        room[..len].to_vec()
    }

    fn be(number: usize) -> [u8; 2] {
        u16::try_from(number).unwrap().to_be_bytes()
    }

    fn udp(payload: &[u8], port: u16) -> Vec<u8> {
        [&[0x30, 0x39], &port.to_be_bytes(), &be(payload.len() + 8), &[0, 0], payload].concat()
    }

    fn v4(payload: &[u8]) -> Vec<u8> {
        let udp = udp(payload, 2641);
        [
            &[0x45, 0][..],
            &be(20 + udp.len()),
            &[0, 0, 0x40, 0, 64, 17, 0, 0],
            &[127, 0, 0, 1, 127, 0, 0, 1],
            &udp,
        ]
        .concat()
    }

    fn v6(payload: &[u8]) -> Vec<u8> {
        let udp = udp(payload, 2641);
        [&[0x60, 0, 0, 0][..], &be(udp.len()), &[17, 64], &[0; 32], &udp].concat()
    }

    /// A capture of packets a millisecond apart.
    pub(crate) fn capture(is_big: bool, magic_ns: bool, link: u32, packets: &[Vec<u8>]) -> Vec<u8> {
        let word = |word: u32| if is_big { word.to_be_bytes() } else { word.to_le_bytes() };
        let mut file = word(if magic_ns { 0xa1b2_3c4d } else { 0xa1b2_c3d4 }).to_vec();
        file.extend([word(0x0002_0004), word(0), word(0), word(65_535), word(link)].concat());
        for (i, packet) in (0..).zip(packets) {
            let (len, unit) = (u32::try_from(packet.len()).unwrap(), if magic_ns { 1_000_000 } else { 1000 });
            file.extend([word(1_700_000_000), word(i * unit), word(len), word(len)].concat());
            file.extend(packet);
        }
        file
    }

    #[test]
    fn finds_requests_behind_every_kind_of_device() {
        let message = request(b"10.1045/may99-payette");
        for ip in [v4(&message), v6(&message)] {
            let version = if ip[0] == 0x45 { [8, 0] } else { [0x86, 0xdd] };
            for (link, head) in [
                (0, vec![2, 0, 0, 0]),
                (1, [&[0; 12][..], &version].concat()),
                (1, [&[0; 12][..], &[0x81, 0, 0, 5], &version].concat()),
                (101, vec![]),
                (1, [&[0; 12][..], &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6], &version].concat()),
                (113, [&[0; 14][..], &version].concat()),
                (113, [&[0; 14][..], &[0x81, 0, 0, 5], &version].concat()),
                (276, vec![0; 20]),
            ] {
                let packet = [&head[..], &ip].concat();
                for (is_big, magic_ns) in [(false, false), (true, false), (false, true), (true, true)] {
                    let file = capture(is_big, magic_ns, link, &[packet.clone(), packet.clone()]);
                    let recording = read(&file, 2641).unwrap();
                    assert_eq!((recording.requests.len(), recording.skipped), (2, 0), "device {link}");
                    assert_eq!(recording.requests[1].content, message);
                    assert_eq!(recording.requests[1].at_ns - recording.requests[0].at_ns, 1_000_000);
                }
            }
        }
    }

    #[test]
    fn skips_what_is_no_request() {
        let message = request(b"10.1/a");
        let mut answer = message.clone();
        answer[27] = 1;
        let mut part = v4(&message);
        part[6] = 0x20;
        let mut tcp = v4(&message);
        tcp[9] = 6;
        let packets = [v4(&answer), part, tcp, v4(b"noise"), vec![], vec![0x45], v4(&message)];
        let recording = read(&capture(false, false, 101, &packets), 2641).unwrap();
        assert_eq!((recording.requests.len(), recording.skipped), (1, 6));
        assert_eq!(read(&capture(false, false, 101, &packets), 53).unwrap().requests.len(), 0);
    }

    #[test]
    fn both_formats_hold_the_same_requests() {
        let packets = [v4(&request(b"10.1/a")), v4(b"noise"), v6(&request(b"10.1/b"))];
        let classic = read(&capture(false, false, 101, &packets), 2641).unwrap();
        assert_eq!((classic.requests.len(), classic.skipped), (2, 1));
        let newer = pcapng::tests::capture_of(101, &packets);
        assert!(is_capture(&newer));
        assert_eq!(read(&newer, 2641), Ok(classic));
        let unknown = read(&pcapng::tests::capture_of(999, &packets), 2641).unwrap();
        assert_eq!((unknown.requests.len(), unknown.skipped), (0, 3));
    }

    #[test]
    fn says_what_it_cannot_read() {
        assert!(read(&pcapng::MAGIC, 1).unwrap_err().contains("ends within"));
        assert!(read(b"\xd4\xc3\xb2\xa1", 1).unwrap_err().contains("ends within"));
        assert!(read(b"\xd4\xc3\xb2", 1).unwrap_err().contains("not a capture"));
        assert!(read(&capture(true, true, 999, &[]), 1).unwrap_err().contains("999"));
    }

    #[test]
    fn any_bytes_and_any_cut_are_no_panic() {
        let file = capture(false, false, 1, &[[&[0; 12][..], &[8, 0], &v4(&request(b"10.1/a"))].concat()]);
        for len in 0..file.len() {
            let _ = read(&file[..len], 2641);
        }
        let mut random = RandomGenerator::new(5, 0);
        for _ in 0..20_000 {
            let mut bytes = file.clone();
            for _ in 0..3 {
                let at = usize::try_from(random.below(bytes.len() as u64)).unwrap();
                bytes[at] = u8::try_from(random.below(256)).unwrap();
            }
            let _ = read(&bytes, 2641);
        }
    }
}
