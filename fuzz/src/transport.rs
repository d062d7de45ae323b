//! Messages in streams and in datagrams.

use crate::container::datagrams;
use crate::generator::Generator;
use arbitrary::{Arbitrary, Unstructured};
use handle_proto::limit::{MESSAGE_LEN_MAX, UDP_DATA_LEN_MAX};
use handle_proto::wire::Envelope;
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::fragment::cut;
use handle_proto::wire::reassembly::{FragmentRefusal, Reassembly, ReassemblyLimits, ReassemblyOutcome};
use handle_proto::wire::stream::{Stream, StreamFront, split};
use handle_proto::{DecodeError, Version};
use std::collections::BTreeMap;

/// The messages of a stream, and its error, do not depend on how it is split.
///
/// Input: the bytes of a stream.
pub fn stream(bytes: &[u8]) {
    for message_len_max in [MESSAGE_LEN_MAX, 1000] {
        let plain = read_plainly(bytes, message_len_max);
        assert_eq!(in_pieces(bytes, message_len_max, |left| left), plain);
        assert_eq!(in_pieces(bytes, message_len_max, |_| 1), plain);
        for (seed, len_max) in [(1, 7), (2, 60), (3, 1500)] {
            let mut generator = Generator::new(seed + bytes.len() as u64);
            assert_eq!(in_pieces(bytes, message_len_max, |_| 1 + generator.below(len_max)), plain);
        }
    }
}

/// The messages of a stream, how it ends, and the bytes left over.
type StreamRead = (Vec<Vec<u8>>, Option<DecodeError>, Vec<u8>);

fn read_plainly(mut bytes: &[u8], message_len_max: u32) -> StreamRead {
    let mut messages = Vec::new();
    loop {
        match split(bytes, message_len_max) {
            Ok(StreamFront::Message(message, after)) => {
                messages.push(message.to_vec());
                bytes = after;
            }
            Ok(StreamFront::Needs(needed)) => {
                assert!(needed > 0);
                return (messages, None, bytes.to_vec());
            }
            Err(error) => return (messages, Some(error), Vec::new()),
        }
    }
}

fn in_pieces(bytes: &[u8], message_len_max: u32, mut piece_len: impl FnMut(usize) -> usize) -> StreamRead {
    let (mut stream, mut messages, mut at) = (Stream::new(message_len_max), Vec::new(), 0);
    while at < bytes.len() {
        let mut piece = &bytes[at..];
        piece = &piece[..piece_len(piece.len()).min(piece.len())];
        at += piece.len();
        while !piece.is_empty() {
            let needed = stream.needs();
            assert!(needed > 0);
            match stream.feed(piece) {
                Ok((taken, message)) => {
                    assert!(taken > 0 && (message.is_none() || taken >= needed));
                    messages.extend(message.map(<[u8]>::to_vec));
                    piece = &piece[taken..];
                }
                Err(error) => return (messages, Some(error), Vec::new()),
            }
        }
    }
    assert_eq!(stream.finish().is_ok(), stream.pending().is_empty());
    (messages, None, stream.pending().to_vec())
}

const LIMITS: ReassemblyLimits =
    ReassemblyLimits { messages_max: 6, messages_per_sender_max: 3, bytes_max: 20_000, age_ms_max: 5_000 };

/// Any datagrams in any order are reassembled like by a plain model, a map of fragments. No limit
/// is exceeded, and every fragment is counted.
///
/// Input: datagrams, see `docs/fuzzing.md`. The two low bits of the choice byte are the sender, the
/// others the seconds since the last datagram.
pub fn reassembly(bytes: &[u8]) {
    let (mut table, mut plain) = (Reassembly::new(LIMITS), ReassemblyModel::default());
    let mut now_ms = 0;
    let mut refused_count = 0;
    for (choice, datagram) in datagrams(bytes) {
        now_ms += u64::from(choice >> 2) * 1000;
        let sender = choice & 3;
        let accepted = table.accept(sender, datagram, now_ms);
        refused_count += u64::from(accepted.is_err());
        assert_eq!(accepted, plain.accept(sender, datagram, now_ms));
        assert_eq!((table.len(), table.is_empty()), (plain.pending.len(), plain.pending.is_empty()));
        assert!(plain.pending.len() <= LIMITS.messages_max && plain.bytes() <= LIMITS.bytes_max);
        assert_eq!(table.next_expiry_ms().is_some(), !table.is_empty());
    }
    let counts = table.counts();
    assert_eq!(counts.refused_malformed + counts.refused_full, refused_count);
    table.expire(now_ms + LIMITS.age_ms_max);
    assert!(table.is_empty());
    assert_eq!(table.counts().expired, plain.expired_count + plain.pending.len() as u64);
}

/// A plain model of reassembly: each message is a map from number to data.
#[derive(Default)]
struct ReassemblyModel {
    pending: BTreeMap<(u8, i32), PlainMessage>,
    begun: u64,
    expired_count: u64,
}

struct PlainMessage {
    envelope: Envelope,
    since_ms: u64,
    number: u64,
    parts: BTreeMap<u32, Vec<u8>>,
}

impl ReassemblyModel {
    /// Removes the oldest message of the senders that `is_selected` returns.
    fn displace(&mut self, is_selected: impl Fn(u8) -> bool) {
        let selected = self.pending.iter().filter(|((of, _), _)| is_selected(*of));
        let oldest = selected.min_by_key(|(_, message)| message.number).map(|(key, _)| *key);
        self.pending.remove(&oldest.expect("a sender over its limit has a message"));
    }

    fn bytes(&self) -> usize {
        self.pending.values().map(|message| message.envelope.message_len as usize).sum()
    }

    fn accept<'a>(
        &mut self,
        sender: u8,
        datagram: &'a [u8],
        now_ms: u64,
    ) -> Result<ReassemblyOutcome<'a>, FragmentRefusal> {
        let (envelope, data) = Envelope::split(datagram).map_err(FragmentRefusal::Unreadable)?;
        if !envelope.flags.has(EnvelopeFlags::TRUNCATED) {
            return Ok(ReassemblyOutcome::Whole(datagram));
        }
        let fragment = cut(&envelope).nth(envelope.sequence as usize).ok_or(FragmentRefusal::Misfit)?;
        if fragment.range.len() != data.len() {
            return Err(FragmentRefusal::Misfit);
        }
        let fragments_count = cut(&envelope).len();
        if fragments_count == 1 {
            return Ok(ReassemblyOutcome::Whole(datagram));
        }
        let before = self.pending.len();
        self.pending.retain(|_, message| now_ms < message.since_ms + LIMITS.age_ms_max);
        self.expired_count += (before - self.pending.len()) as u64;
        let flags = EnvelopeFlags(envelope.flags.0 & !EnvelopeFlags::TRUNCATED.0);
        let whole = Envelope { flags, sequence: 0, ..envelope };
        let key = (sender, envelope.request_id);
        if !self.pending.contains_key(&key) {
            let len = envelope.message_len as usize;
            if len > LIMITS.bytes_max {
                return Err(FragmentRefusal::NoCapacity);
            }
            while self.pending.keys().filter(|(of, _)| *of == sender).count()
                >= LIMITS.messages_per_sender_max
            {
                self.displace(|of| of == sender);
            }
            while self.pending.len() >= LIMITS.messages_max || self.bytes() + len > LIMITS.bytes_max {
                self.displace(|_| true);
            }
            let (since_ms, number) = (now_ms, self.begun);
            let message = PlainMessage { envelope: whole, since_ms, number, parts: BTreeMap::new() };
            self.pending.insert(key, message);
            self.begun += 1;
        }
        let message = self.pending.get_mut(&key).expect("the message was just inserted");
        if message.envelope != whole {
            return Err(FragmentRefusal::Contradiction);
        }
        message.parts.entry(envelope.sequence).or_insert_with(|| data.to_vec());
        if message.parts.len() < fragments_count {
            return Ok(ReassemblyOutcome::Incomplete);
        }
        let message = self.pending.remove(&key).expect("the message was found before");
        let mut bytes = message.envelope.to_bytes().to_vec();
        message.parts.values().for_each(|part| bytes.extend_from_slice(part));
        Ok(ReassemblyOutcome::Complete(bytes))
    }
}

/// Operations on the fragments of a few messages.
#[derive(Arbitrary, Debug)]
struct Delivery {
    messages: [FragmentSpec; 3],
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
struct FragmentSpec {
    session_id: i32,
    minor: u8,
    message_len: u32,
}

#[derive(Arbitrary, Debug)]
enum Step {
    /// A fragment of one of the messages arrives, perhaps repeatedly.
    Fragment { of: u8, number: u16 },
    /// Another fragment arrives from another sender.
    Garbage { message_len: u16, number: u8, request_id: i8 },
    /// Another sender sends arbitrary bytes.
    Noise(Vec<u8>),
}

const STEPS_MAX: usize = 400;
/// Most messages have a few fragments, so that plans run fast; one in eight has many.
const SENT_LEN_MAX: [u32; 8] = [40_000, 3000, 3000, 3000, 3000, 3000, 3000, 3000];
/// The sender of foreign fragments and noise.
const OTHER_SENDER: u8 = 9;

/// Fragments of messages, reordered, repeated and mixed with foreign fragments and noise, give the
/// original messages, each exactly when its last fragment arrives.
///
/// Input: any bytes, parsed as a plan by the crate `arbitrary`.
pub fn fragments(bytes: &[u8]) {
    let Ok(delivery) = Delivery::arbitrary_take_rest(Unstructured::new(bytes)) else { return };
    let sent: Vec<Vec<Vec<u8>>> = (0..).zip(&delivery.messages).map(|(n, sent)| sent.datagrams(n)).collect();
    let whole: Vec<Vec<u8>> = sent
        .iter()
        .map(|datagrams| {
            let mut bytes = datagrams[0][..Envelope::LEN].to_vec();
            bytes[2] &= !EnvelopeFlags::TRUNCATED.0;
            datagrams.iter().for_each(|datagram| bytes.extend_from_slice(&datagram[Envelope::LEN..]));
            bytes
        })
        .collect();
    let mut table = Reassembly::new(ReassemblyLimits {
        messages_max: 6,
        messages_per_sender_max: 3,
        bytes_max: 6 * MESSAGE_LEN_MAX as usize,
        age_ms_max: 1,
    });
    let mut missing: Vec<Vec<bool>> = sent.iter().map(|datagrams| vec![true; datagrams.len()]).collect();
    let mut arrive = |of: usize, number: usize| {
        let datagram = &sent[of][number];
        let accepted = table.accept(1, datagram, 0);
        missing[of][number] = false;
        if missing[of].contains(&true) {
            assert_eq!(accepted, Ok(ReassemblyOutcome::Incomplete));
            return;
        }
        match accepted {
            Ok(ReassemblyOutcome::Complete(bytes)) => assert_eq!(bytes, whole[of]),
            Ok(ReassemblyOutcome::Whole(bytes)) => assert_eq!((bytes, sent[of].len()), (&whole[of][..], 1)),
            other => panic!("all fragments have arrived: {other:?}"),
        }
        // From here on its fragments belong to a new message with the same id.
        missing[of].fill(true);
        assert!(table.len() <= 6);
    };
    let mut noise = Vec::new();
    for step in delivery.steps.into_iter().take(STEPS_MAX) {
        match step {
            Step::Fragment { of, number } => {
                let of = usize::from(of) % sent.len();
                arrive(of, usize::from(number) % sent[of].len());
            }
            Step::Garbage { message_len, number, request_id } => {
                let garbage = FragmentSpec { session_id: 0, minor: 11, message_len: message_len.into() };
                let datagrams = garbage.datagrams(request_id.into());
                noise.push(datagrams[usize::from(number) % datagrams.len()].clone());
            }
            Step::Noise(bytes) => noise.push(bytes),
        }
    }
    // The same again, mixed with the others, which may be refused but change nothing for this
    // sender.
    let mut among_others = Reassembly::new(ReassemblyLimits {
        messages_max: 6,
        messages_per_sender_max: 3,
        bytes_max: 6 * MESSAGE_LEN_MAX as usize,
        age_ms_max: 1,
    });
    let mut others = noise.iter().cycle().take(4 * noise.len());
    for (of, datagrams) in sent.iter().enumerate() {
        for (number, datagram) in datagrams.iter().enumerate().rev() {
            if let Some(other) = others.next() {
                let _ = among_others.accept(OTHER_SENDER, other, 0);
            }
            let accepted = among_others.accept(1, datagram, 0);
            match accepted {
                Ok(ReassemblyOutcome::Incomplete) => assert_ne!(number, 0),
                Ok(ReassemblyOutcome::Complete(bytes)) => assert_eq!((bytes, number), (whole[of].clone(), 0)),
                Ok(ReassemblyOutcome::Whole(bytes)) => assert_eq!(bytes, &whole[of][..]),
                Err(refusal) => panic!("{refusal:?}"),
            }
        }
    }
}

impl FragmentSpec {
    fn datagrams(&self, request_id: i32) -> Vec<Vec<u8>> {
        let message_len_max = SENT_LEN_MAX[self.message_len as usize >> 3 & 7];
        let envelope = Envelope {
            version: Version::new(2, self.minor),
            flags: EnvelopeFlags::default(),
            suggested: Version::CURRENT,
            session_id: self.session_id,
            request_id,
            sequence: 0,
            message_len: self.message_len % message_len_max,
        };
        let data: Vec<u8> = (0..=250).cycle().take(envelope.message_len as usize).collect();
        let datagram = |range: core::ops::Range<usize>, head: &[u8]| [head, &data[range]].concat();
        let datagrams: Vec<_> =
            cut(&envelope).map(|fragment| datagram(fragment.range, &fragment.envelope)).collect();
        assert!(datagrams.iter().all(|datagram| datagram.len() <= Envelope::LEN + UDP_DATA_LEN_MAX));
        datagrams
    }
}
