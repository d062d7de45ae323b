//! What a worker does in a session takes no memory: looking it up, checking a MAC, making one.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use allocation_counter::measure;
use handle_auth::session::SessionKey;
use handle_auth::source::RequestOrigin;
use handle_proto::code::Cipher;
use handle_proto::wire::{Envelope, Header, Message, MessageBuf};
use handle_proto::{OpCode, OpFlags, Version};
use handle_session::traffic::{check, decrypt, encrypt, seal};
use handle_session::{LiveSession as _, NewSession, SessionTable, SessionsConfig};

/// Messages in each measurement.
const COUNT: usize = 16;

fn table(version: Version) -> (SessionTable, i32) {
    let table = SessionTable::new(SessionsConfig::default().limits());
    let key = SessionKey::new(Cipher::AES, vec![7; 32]).unwrap();
    let origin = RequestOrigin::connection([192, 0, 2, 1].into());
    let new = NewSession { key, version, claim: None, timeout_s: 100, origin };
    let session = table.open(new, || 5, |_| false, 0).unwrap();
    let id = session.keys().id;
    (table, id)
}

fn message(id: i32, version: Version) -> Vec<u8> {
    let envelope = Envelope { version, session_id: id, ..Envelope::request(9) };
    let header = Header::request(OpCode::RESOLUTION, OpFlags::PLAIN_REQUEST, 0);
    MessageBuf::new(&envelope, &header, |out| out.extend_from_slice(&[b'x'; 200])).unsigned().unwrap()
}

#[test]
fn the_way_of_a_mac_allocates_nothing() {
    for minor in [4, 5, 7, 8, 11] {
        let version = Version::new(2, minor);
        let ((here, id), (there, _)) = (table(version), table(version));
        let client = there.find(id, 0).unwrap();
        let plain = message(id, version);
        let mut requests: Vec<Vec<u8>> = vec![plain.clone(); COUNT];
        requests.iter_mut().for_each(|message| seal(&*client, message).unwrap());
        // With capacity for the MAC, as a worker has for every answer.
        let mut answer = Vec::with_capacity(plain.len() + 96);
        let mut accepted = 0;
        let taken = measure(|| {
            for message in &requests {
                let session = here.find(id, 0).unwrap();
                let (envelope, rest) = Envelope::split(message).unwrap();
                let proven = check(&*session, &envelope, &Message::decode(rest).unwrap(), 0);
                accepted += usize::from(proven == Ok(true));
                answer.clear();
                answer.extend_from_slice(&plain);
                seal(&*session, &mut answer).unwrap();
            }
        });
        assert_eq!(accepted, COUNT, "2.{minor}");
        assert!(answer.len() > plain.len(), "2.{minor}");
        assert_eq!(taken.count_total, 0, "2.{minor}: {taken:?}");
        // What is counted does count: decryption is for the slow path.
        let mut hidden = plain.clone();
        encrypt(&*client, &[9; 16], &mut hidden);
        let (mut envelope, rest) = Envelope::split(&hidden).unwrap();
        let taken = measure(|| assert!(decrypt(&*client, &mut envelope, rest).is_some()));
        assert!(taken.count_total > 0, "2.{minor}");
    }
}
