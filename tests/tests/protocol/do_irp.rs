//! Messages of DO-IRP 3.0 are answered in 2.11, byte for byte as `do_irp.jsonl` says, over UDP and
//! TCP.
//!
//! DO-IRP 3.0 has five bits for the suggested major version, where deployed servers have two. Two
//! are read and written: they hold the 3 of a message of today, and the others are ignored and sent
//! as 0.

use data_encoding::HEXLOWER;
use handle_proto::Version;
use handle_proto::wire::Envelope;
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_tests::client::{exchange, exchange_over_tcp};
use handle_tests::test_server;
use handle_tests::vectors::{self, VectorSource};
use handle_worker::config::Datapath;

/// The time until which an answer holds, in its header. It depends on when the answer was made.
const EXPIRATION: std::ops::Range<usize> = 36..40;

#[test]
fn messages_of_3_0_have_the_answers_of_the_vectors() {
    let server = test_server::serve("main", Datapath::Auto);
    let lines = VectorSource::Own.lines("do_irp.jsonl");
    assert_eq!(lines.len(), 8);
    let mut wrong = Vec::new();
    for line in lines {
        let (request, mut expected) =
            (vectors::hex(&line["request_hex"]), vectors::hex(&line["response_hex"]));
        for over in ["UDP", "TCP"] {
            let answered = match over {
                "UDP" => exchange(server.address(), &request),
                _ => exchange_over_tcp(server.address(), &request),
            };
            let mut answer = answered.unwrap_or_default();
            for bytes in [&mut answer, &mut expected] {
                if let Some(time) = bytes.get_mut(EXPIRATION) {
                    time.fill(0);
                }
            }
            if answer != expected {
                wrong.push(format!("{} over {over}: {}", line["name"], HEXLOWER.encode(&answer)));
            }
        }
    }
    assert!(wrong.is_empty(), "other answers:\n{}", wrong.join("\n"));
}

/// What the lines of the vectors are about: which version is suggested, and which one answers.
#[test]
fn the_suggested_major_is_the_lower_two_of_five_bits() {
    for line in VectorSource::Own.lines("do_irp.jsonl") {
        let (request, answer) = (vectors::hex(&line["request_hex"]), vectors::hex(&line["response_hex"]));
        let of = |bytes: &[u8]| Envelope::split(bytes).expect("an envelope").0;
        let (request_envelope, answer_envelope) = (of(&request), of(&answer));
        assert_eq!(request_envelope.suggested.major, request[2] & 0b11, "{}", line["name"]);
        assert_eq!(request_envelope.answer_version(), Version::CURRENT, "{}", line["name"]);
        assert_eq!(answer_envelope.version, Version::CURRENT, "{}", line["name"]);
        assert_eq!(answer_envelope.flags, EnvelopeFlags::default(), "{}", line["name"]);
        assert_eq!(answer[2] & 0b0001_1100, 0, "{}: bits that 2.11 does not have are 0", line["name"]);
    }
}
