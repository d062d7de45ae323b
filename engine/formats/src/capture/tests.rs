use super::*;

fn be(number: usize) -> [u8; 2] {
    u16::try_from(number).unwrap().to_be_bytes()
}

fn udp(payload: &[u8], port: u16) -> Vec<u8> {
    [&[0x30, 0x39], &port.to_be_bytes(), &be(payload.len() + 8), &[0, 0], payload].concat()
}

fn v4(payload: &[u8]) -> Vec<u8> {
    let udp = udp(payload, 2641);
    [&[0x45, 0][..], &be(20 + udp.len()), &[0, 0, 0x40, 0, 64, 17, 0, 0], &[127, 0, 0, 1, 127, 0, 0, 1], &udp]
        .concat()
}

fn v6(payload: &[u8]) -> Vec<u8> {
    let udp = udp(payload, 2641);
    [&[0x60, 0, 0, 0][..], &be(udp.len()), &[17, 64], &[0; 32], &udp].concat()
}

/// A capture of packets a millisecond apart.
fn capture(is_big: bool, magic_ns: bool, link: u32, packets: &[Vec<u8>]) -> Vec<u8> {
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

/// The datagrams to the port of the handle protocol, and the number of skipped packets.
fn read(file: &[u8]) -> (Vec<(i64, &[u8])>, u64) {
    let mut found = Vec::new();
    let rest = datagrams(file, |datagram| {
        assert_eq!(datagram.port, 2641);
        found.push((datagram.at_ns, datagram.payload));
    });
    (found, rest.unwrap().skipped)
}

#[test]
fn datagrams_are_found_behind_every_kind_of_device() {
    let message = b"message".as_slice();
    for ip in [v4(message), v6(message)] {
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
                let (found, skipped) = read(&file);
                assert_eq!((found.len(), skipped), (2, 0), "device {link}");
                assert_eq!(found[1], (found[0].0 + 1_000_000, message));
            }
        }
    }
}

#[test]
fn other_packets_are_skipped() {
    let mut part = v4(b"message");
    part[6] = 0x20;
    let mut tcp = v4(b"message");
    tcp[9] = 6;
    let packets = [part, tcp, vec![], vec![0x45], v4(b"message")];
    let file = capture(false, false, 101, &packets);
    let (found, skipped) = read(&file);
    assert_eq!((found.len(), skipped), (1, 4));
}

#[test]
fn both_formats_hold_the_same_datagrams() {
    let packets = [v4(b"first"), vec![0x45], v6(b"second")];
    let (classic, newer) = (capture(false, false, 101, &packets), pcapng::tests::capture_of(101, &packets));
    assert!(is_capture(&classic) && is_capture(&newer));
    assert_eq!(read(&newer), read(&classic));
    assert_eq!(read(&pcapng::tests::capture_of(999, &packets)), (vec![], 3));
}

#[test]
fn what_is_not_a_capture_is_an_error_and_a_cut_one_is_known() {
    let error = |file: &[u8]| datagrams(file, |_| ()).unwrap_err();
    assert!(error(&pcapng::MAGIC).contains("ends within"));
    assert!(error(b"\xd4\xc3\xb2\xa1").contains("ends within"));
    assert!(error(b"\xd4\xc3\xb2").contains("not a capture"));
    assert!(error(&capture(true, true, 999, &[])).contains("999"));
    let packets = [v4(b"first"), v4(b"second")];
    let (classic, newer) = (capture(false, false, 101, &packets), pcapng::tests::capture_of(101, &packets));
    for file in [classic, newer] {
        let is_cut = |len: usize| datagrams(&file[..len], |_| ()).unwrap().is_cut;
        assert!(!is_cut(file.len()));
        assert!((file.len() - 40..file.len()).all(is_cut));
    }
}
