//! The requests of a capture: complete resolution requests to one UDP port. Everything else is
//! counted as skipped.

use handle_formats::capture::datagrams;
use handle_proto::limit::UDP_MESSAGE_LEN_MAX;

use super::{RecordedRequest, Recording};
use crate::load::question::GeneratedQuestion;

/// Reads all requests to `port`. A capture that ends within a packet is read up to there.
///
/// # Errors
///
/// If it is not a capture, or from an unsupported kind of device.
pub fn read(bytes: &[u8], port: u16) -> Result<Recording, String> {
    let mut recording = Recording::default();
    let rest = datagrams(bytes, |datagram| {
        let is_taken = datagram.port == port && is_request(datagram.payload);
        if is_taken && recording.requests.len() < Recording::REQUESTS_MAX {
            let content = datagram.payload.to_vec();
            recording.requests.push(RecordedRequest { at_ns: datagram.at_ns, content });
        } else {
            recording.skipped += 1;
        }
    })?;
    recording.skipped += rest.skipped;
    Ok(recording)
}

/// Whether it is a complete request. Requests in several datagrams are left out, because their
/// fragments share an id.
fn is_request(payload: &[u8]) -> bool {
    payload.len() <= UDP_MESSAGE_LEN_MAX && GeneratedQuestion::of_message(payload).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::workload::{RequestChoice, RequestSampler};
    use crate::random::RandomGenerator;

    fn request(name: &[u8]) -> Vec<u8> {
        let mut sampler = RequestSampler::new(1, 1);
        sampler.offer(name);
        let mut buffer = [0; UDP_MESSAGE_LEN_MAX];
        let len = sampler.finish(0).unwrap().write_request(RequestChoice::default(), 77, &mut buffer);
        buffer[..len].to_vec()
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

    /// A capture of IP packets.
    fn capture(packets: &[Vec<u8>]) -> Vec<u8> {
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
        let mut file = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 101]);
        for packet in packets {
            let len = u32::try_from(packet.len()).unwrap();
            file.extend(words(&[1_700_000_000, 0, len, len]));
            file.extend(packet);
        }
        file
    }

    #[test]
    fn skips_packets_that_are_not_requests() {
        let message = request(b"10.1/a");
        let mut answer = message.clone();
        answer[27] = 1;
        let mut part = v4(&message);
        part[6] = 0x20;
        let mut tcp = v4(&message);
        tcp[9] = 6;
        let packets = [v4(&answer), part, tcp, v4(b"noise"), vec![], vec![0x45], v4(&message)];
        let recording = read(&capture(&packets), 2641).unwrap();
        assert_eq!((recording.requests.len(), recording.skipped), (1, 6));
        assert_eq!(read(&capture(&packets), 53).unwrap().requests.len(), 0);
    }

    #[test]
    fn arbitrary_and_truncated_bytes_do_not_panic() {
        let file = capture(&[v4(&request(b"10.1/a"))]);
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
