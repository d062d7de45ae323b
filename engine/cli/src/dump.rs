//! Extracts messages from hex, dumps of common tools, and captures.

use anyhow::{bail, ensure};
use data_encoding::HEXLOWER_PERMISSIVE;
use handle_formats::capture;

/// The datagrams in `input`, without the headers of IP and UDP.
pub(crate) fn datagrams(input: &[u8]) -> anyhow::Result<Vec<Vec<u8>>> {
    if capture::is_capture(input) {
        return captured_datagrams(input);
    }
    let text_of = |_| anyhow::anyhow!("the input is neither text nor a capture (pcap or pcapng)");
    let packets = text(std::str::from_utf8(input).map_err(text_of)?)?;
    Ok(packets.iter().map(|packet| payload(packet).to_vec()).collect())
}

/// The UDP datagrams of a capture, to any port.
fn captured_datagrams(input: &[u8]) -> anyhow::Result<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    let rest = capture::datagrams(input, |datagram| found.push(datagram.payload.to_vec()));
    let rest = rest.map_err(|what| anyhow::anyhow!("cannot read the capture: {what}"))?;
    ensure!(!rest.is_cut, "the capture ends inside a packet, after {} datagrams", found.len());
    ensure!(!found.is_empty(), "no UDP datagram in the capture");
    Ok(found)
}

/// The packets in a text: hex, with or without offsets before it and characters after it. An empty
/// line or a line that is not hex, as `tcpdump -x` prints between packets, ends a packet.
fn text(text: &str) -> anyhow::Result<Vec<Vec<u8>>> {
    let mut packets = Vec::new();
    let mut packet = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if is_end_offset(line, packet.len()) {
            packets.push(std::mem::take(&mut packet));
            continue;
        }
        match bytes_of(line) {
            Ok(bytes) if !bytes.is_empty() => packet.extend(bytes),
            // Text between packets is common, also as the first line.
            Ok(_) => packets.push(std::mem::take(&mut packet)),
            Err(odd) => {
                // Text that looks like hex but is not must be reported.
                ensure!(!odd.starts_with("0x"), "line {}: {odd:?} is not hex", at + 1);
                packets.push(std::mem::take(&mut packet));
            }
        }
    }
    packets.push(packet);
    packets.retain(|packet| !packet.is_empty());
    if packets.is_empty() && !text.trim().is_empty() {
        bail!("no hex in the input");
    }
    Ok(packets)
}

/// Whether the line is the last line of `hexdump`: only the offset after the `len` bytes before it.
fn is_end_offset(line: &str, len: usize) -> bool {
    let line = line.trim();
    len > 0 && matches!(line.len(), 7 | 8) && usize::from_str_radix(line, 16) == Ok(len)
}

/// The bytes of a line, or the text of a line that is not hex.
fn bytes_of(line: &str) -> Result<Vec<u8>, &str> {
    // `hexdump -C` puts the characters between bars; `xxd` and `tcpdump -X` put them after two
    // spaces.
    let line = line.trim().split('|').next().unwrap_or_default().trim_end();
    let (line, has_offset) = match line.split_once(':') {
        Some((offset, rest)) if is_hex(offset.trim_start_matches("0x")) => (rest.trim_start(), true),
        _ => (line, false),
    };
    let line = if has_offset { line.split("  ").next().unwrap_or_default() } else { line };
    let mut words: Vec<&str> = line.split_whitespace().filter(|word| *word != "#").collect();
    // `hexdump` prints offsets without a colon: eight digits before words of two.
    if words.len() > 1 && words[0].len() >= 7 && words[1..].iter().all(|word| word.len() == 2) {
        words.remove(0);
    }
    let digits: String = words.concat();
    HEXLOWER_PERMISSIVE.decode(digits.as_bytes()).map_err(|_| line)
}

fn is_hex(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// What follows the IP and UDP headers, if there are any. A message begins with its version, 2.
fn payload(packet: &[u8]) -> &[u8] {
    const UDP: u8 = 17;
    const UDP_LEN: usize = 8;
    let ip_len = match packet.first() {
        Some(first) if first >> 4 == 4 && packet.get(9) == Some(&UDP) => usize::from(first & 0x0f) * 4,
        Some(first) if first >> 4 == 6 && packet.get(6) == Some(&UDP) => 40,
        _ => return packet,
    };
    let Some((udp, data)) = packet.get(ip_len..).and_then(<[u8]>::split_first_chunk::<UDP_LEN>) else {
        return packet;
    };
    // Short Ethernet frames have padding after the datagram.
    let len = usize::from(u16::from_be_bytes([udp[4], udp[5]])).saturating_sub(UDP_LEN);
    data.get(..len).unwrap_or(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; 20] = [2, 11, 2, 11, 0, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0x3b];

    #[test]
    fn reads_hex_in_every_dress() {
        for text in [
            "020b020b 00000000 01020304 00000000 0000003b",
            "020B020B000000000102030400000000\n0000003b\n",
            // xxd
            "00000000: 020b 020b 0000 0000 0102 0304 0000 0000  ................\n00000010: 0000 003b                                ...;\n",
            // hexdump -C
            "00000000  02 0b 02 0b 00 00 00 00  01 02 03 04 00 00 00 00  |................|\n00000010  00 00 00 3b                                       |...;|\n00000014\n",
            // tcpdump -x, with IP and UDP in front
            "12:00:00.000000 IP 127.0.0.1.1 > 127.0.0.1.2641: UDP, length 20\n\t0x0000:  4500 0030 0000 4000 4011 0000 7f00 0001\n\t0x0010:  7f00 0001 0001 0a51 001c 0000 020b 020b\n\t0x0020:  0000 0000 0102 0304 0000 0000 0000 003b\n",
        ] {
            let datagrams = datagrams(text.as_bytes()).unwrap();
            assert_eq!(datagrams.first().map(Vec::as_slice), Some(&BYTES[..]), "{text}");
        }
    }

    #[test]
    fn reads_pcap_files_and_refuses_cut_ones() {
        let mut packet = [&[0; 12][..], &[8, 0]].concat();
        packet.extend([0x45, 0, 0, 48, 0, 0, 0x40, 0, 0x40, 17, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1]);
        packet.extend([0, 1, 0x0a, 0x51, 0, 28, 0, 0]);
        packet.extend(BYTES);
        packet.extend([0; 6]);
        let len = u8::try_from(packet.len()).unwrap();
        let mut file =
            vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0];
        file.extend([0, 0, 0, 0, 0, 0, 0, 0, len, 0, 0, 0, len, 0, 0, 0]);
        file.extend(&packet);
        assert_eq!(datagrams(&file).unwrap(), [BYTES.to_vec()]);
        for len in 5..file.len() {
            assert!(datagrams(&file[..len]).is_err(), "cut to {len}");
        }
    }

    #[test]
    fn says_what_is_not_hex() {
        assert!(datagrams(b"nothing here").unwrap_err().to_string().contains("no hex"));
        assert!(datagrams(b"0x0000: zzzz").is_err());
        assert!(datagrams(&[0xff, 0xfe]).is_err());
        assert_eq!(datagrams(b"").unwrap(), Vec::<Vec<u8>>::new());
    }
}
