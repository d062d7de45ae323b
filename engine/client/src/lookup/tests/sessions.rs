//! Tests of sessions in lookups: one proof to each server is enough to read private values.

use super::*;
use crate::lookup::world::later;
use handle_proto::OpCode;
use handle_proto::data::site::{Interface, InterfaceKind};
use handle_proto::wire::{Envelope, Message};

/// The world of [`world`], with a record at one site that is not public, and the options of a
/// client that may read it.
fn private_world() -> (SimulatedWorld, Arc<Client>, LookupOptions) {
    let (mut world, client) = world();
    let hidden =
        ValueBuf::from(&Value { permissions: Permissions::ADMIN_READ, ..Value::new(3, b"X", b"hidden") });
    for handle in ["10.A/P", "10.A/Q"] {
        world.record(1, handle, vec![value(1, b"URL", b"shown"), hidden.clone()]);
    }
    world.services[1].secret = Some(b"open sesame".to_vec());
    world.sessions.agree = true;
    let key = IdentityKey::Secret(b"open sesame".to_vec().into());
    let identity = Arc::new(ClientIdentity { handle: b"10.a/adm".to_vec(), index: 300, key });
    let mut site = signing_site(&[21]).edit();
    site.servers[0].interfaces.push(Interface::new(InterfaceKind::QUERY, InterfaceProtocol::HTTP, 8000));
    let target = LookupTarget::Sites(vec![Arc::new(site.build())]);
    let options = LookupOptions {
        identity: Some(identity),
        session_timeout_s: Some(60),
        target,
        ..LookupOptions::default()
    };
    (world, client, options)
}

fn private(handle: &str, certified: bool) -> Question {
    let wants = AnswerWants { certified, public_only: false, ..AnswerWants::default() };
    Question { wants, ..Question::all(handle.as_bytes()) }
}

/// Asks a question. Returns the outcome and the events of sessions.
fn ask_with_events(
    world: &mut SimulatedWorld,
    client: &Arc<Client>,
    question: &Question,
    options: &LookupOptions,
) -> (Vec<String>, Vec<&'static str>) {
    let answer = ask(world, client, question, options).unwrap();
    (data(&answer), std::mem::take(&mut world.sessions.events))
}

const ALL: [&str; 2] = ["shown", "hidden"];

#[test]
fn an_identity_is_proven_once_and_then_by_the_session() {
    for (certified, encrypt, protocol) in [
        (false, false, InterfaceProtocol::UDP),
        (true, false, InterfaceProtocol::UDP),
        (true, true, InterfaceProtocol::TCP),
        (false, true, InterfaceProtocol::HTTP),
    ] {
        let (mut world, _, options) = private_world();
        world.sessions.encrypt = encrypt;
        let mut client = Client::new(Root::default());
        client.preferences.protocols = vec![protocol];
        let client = Arc::new(client);
        let first = ask_with_events(&mut world, &client, &private("10.a/p", certified), &options);
        assert_eq!(first, (ALL.map(str::to_owned).to_vec(), vec!["set up", "challenged", "authenticated"]));
        assert_eq!(client.sessions.count(), 1);
        let sent_count = world.sent_count;
        for handle in ["10.a/q", "10.a/p"] {
            let next = ask_with_events(&mut world, &client, &private(handle, certified), &options);
            assert_eq!(next, (ALL.map(str::to_owned).to_vec(), vec!["known"]), "{protocol:?}");
        }
        assert_eq!(world.sent_count, sent_count + 2, "one request each");
    }
}

#[test]
fn public_questions_and_other_identities_do_not_use_the_session() {
    let (mut world, client, options) = private_world();
    ask_with_events(&mut world, &client, &private("10.a/p", false), &options);
    let public = ask_with_events(&mut world, &client, &Question::all(b"10.a/q"), &options);
    assert_eq!(public, (vec!["shown".to_owned()], vec![]));
    // The same name with another key.
    let key = IdentityKey::Secret(b"open barley".to_vec().into());
    let other = Arc::new(ClientIdentity { handle: b"10.a/adm".to_vec(), index: 300, key });
    let options = LookupOptions { identity: Some(other), ..options };
    for handle in ["10.a/p", "10.a/q"] {
        let error = ask(&mut world, &client, &private(handle, false), &options);
        assert_eq!(error.unwrap_err(), LookupError::Challenge("it repeats its challenge"));
    }
    assert_eq!(client.sessions.count(), 1, "a session in which nothing was proved is not kept");
    let setups = world.sessions.events.iter().filter(|event| **event == "set up").count();
    assert_eq!(setups, 1, "nor is another one set up so soon");
}

#[test]
fn a_refused_identity_keeps_its_session() {
    for code in [400, 401, 403].map(ResponseCode) {
        let (mut world, client, options) = private_world();
        world.services[1].denies = Some(code);
        let expected: [(_, &[_]); 2] =
            [("10.a/p", &["set up", "challenged", "authenticated"]), ("10.a/q", &["known"])];
        for (handle, events) in expected {
            let answer = ask(&mut world, &client, &private(handle, false), &options).unwrap();
            assert_eq!((answer.code, std::mem::take(&mut world.sessions.events).as_slice()), (code, events));
        }
    }
}

#[test]
fn an_expired_session_is_set_up_again() {
    let (mut world, client, options) = private_world();
    ask_with_events(&mut world, &client, &private("10.a/p", true), &options);
    world.sessions.forget();
    let again = ask_with_events(&mut world, &client, &private("10.a/p", true), &options);
    assert_eq!(again.0, ALL);
    assert_eq!(again.1, ["unknown", "set up", "challenged", "authenticated"]);
    assert_eq!(client.sessions.count(), 1);
    // A server that has dropped the session, and refuses new ones, answers without one.
    world.sessions.forget();
    world.sessions.agree = false;
    let without = ask_with_events(&mut world, &client, &private("10.a/p", true), &options);
    assert_eq!(
        (without.0.as_slice(), without.1.as_slice()),
        (&ALL.map(str::to_owned)[..], &["unknown", "refused"][..])
    );
    assert_eq!(client.sessions.count(), 0);
}

#[test]
fn a_reused_session_number_is_retried_once() {
    for (certified, encrypt) in [(true, false), (false, true), (true, true)] {
        let (mut world, client, options) = private_world();
        world.sessions.encrypt = encrypt;
        ask_with_events(&mut world, &client, &private("10.a/p", certified), &options);
        world.sessions.restart();
        let again = ask_with_events(&mut world, &client, &private("10.a/p", certified), &options);
        assert_eq!(again.0, ALL);
        assert_eq!(again.1, ["another", "set up", "challenged", "authenticated"], "{certified}, {encrypt}");
        let next = ask_with_events(&mut world, &client, &private("10.a/q", certified), &options);
        assert_eq!(next, (ALL.map(str::to_owned).to_vec(), vec!["known"]));
    }
}

#[test]
fn an_undecodable_decrypted_answer_ends_the_session() {
    let (mut world, client, options) = private_world();
    world.sessions.encrypt = true;
    ask_with_events(&mut world, &client, &private("10.a/p", true), &options);
    world.sessions.restart_garbled();
    let again = ask_with_events(&mut world, &client, &private("10.a/p", true), &options);
    assert_eq!(again.0, ALL);
    assert_eq!(again.1, ["another", "set up", "challenged", "authenticated"]);
    let next = ask_with_events(&mut world, &client, &private("10.a/q", true), &options);
    assert_eq!(next, (ALL.map(str::to_owned).to_vec(), vec!["known"]));
}

#[test]
fn a_session_is_terminated_at_its_server_once() {
    let (mut world, client, options) = private_world();
    ask_with_events(&mut world, &client, &private("10.a/p", true), &options);
    let endings = client.sessions.end(&mut dice(3), BEGIN);
    let [mut ending] = <[_; 1]>::try_from(endings).unwrap();
    assert_eq!(client.sessions.count(), 0);
    assert!(client.sessions.end(&mut dice(3), BEGIN).is_empty());
    let transmit = ending.poll_transmit(BEGIN).unwrap();
    let (envelope, rest) = Envelope::split(&transmit.datagrams[0]).unwrap();
    let message = Message::decode(rest).unwrap();
    assert_eq!((message.header.op_code, message.body), (OpCode::SESSION_TERMINATE, &b"\0\0\0\x01/"[..]));
    assert_eq!(world.sessions.refuse(&envelope, &message), None, "it is one of the session");
}

#[test]
fn without_sessions_every_request_is_challenged() {
    // The server refuses; it has no key; sessions are disabled.
    let (mut world, client, options) = private_world();
    world.sessions.agree = false;
    assert_eq!(
        ask_with_events(&mut world, &client, &private("10.a/p", false), &options),
        (ALL.map(str::to_owned).to_vec(), vec!["refused"])
    );
    // The server is not asked for a session again so soon.
    world.sessions.agree = true;
    assert_eq!(
        ask_with_events(&mut world, &client, &private("10.a/p", false), &options),
        (ALL.map(str::to_owned).to_vec(), vec![])
    );
    let keyless = LookupTarget::Sites(vec![Arc::new(crate::testing::site_at(21))]);
    for options in [
        LookupOptions { target: keyless, ..options.clone() },
        LookupOptions { session_timeout_s: None, ..options },
    ] {
        assert_eq!(
            ask_with_events(&mut world, &client, &private("10.a/p", false), &options),
            (ALL.map(str::to_owned).to_vec(), vec![])
        );
    }
    assert_eq!(client.sessions.count(), 0);
}

#[test]
fn repeated_messages_have_new_counters() {
    let (mut world, client, options) = private_world();
    ask_with_events(&mut world, &client, &private("10.a/p", true), &options);
    let question = private("10.a/q", true);
    let mut lookup = Lookup::new(Arc::clone(&client), question, options, dice(5), BEGIN);
    let (number, first) = lookup.poll_transmit(BEGIN).unwrap();
    let late = later(BEGIN, BEGIN.ms + 500);
    lookup.handle_timeout(late);
    let (_, second) = lookup.poll_transmit(late).unwrap();
    assert_ne!(first.datagrams, second.datagrams);
    // The server accepts both, because neither is a replay; a copy of one is.
    let replies = [&first, &second, &second].map(|transmit| world.message(transmit, late));
    assert_eq!(world.sessions.events, ["known", "known", "repeated"]);
    lookup.handle_datagram(late, number, &replies[1]);
    assert_eq!(data(&lookup.take_outcome().unwrap().unwrap()), ALL);
}

#[test]
fn changed_and_replayed_answers_in_a_session_are_refused() {
    let (mut world, client, options) = private_world();
    ask_with_events(&mut world, &client, &private("10.a/p", true), &options);
    let begin = || {
        let mut lookup =
            Lookup::new(Arc::clone(&client), private("10.a/q", true), options.clone(), dice(5), BEGIN);
        let transmit = lookup.poll_transmit(BEGIN).unwrap();
        (lookup, transmit)
    };
    let (mut lookup, (number, transmit)) = begin();
    let good = world.message(&transmit, BEGIN);
    lookup.handle_datagram(BEGIN, number, &good);
    assert!(lookup.take_outcome().is_some_and(|outcome| outcome.is_ok()));
    let mut changed = good.clone();
    changed[Envelope::LEN + 19] ^= 1;
    // The same random numbers give the same request, so only the counter shows that the answer
    // belongs to the first.
    for bad in [good, changed] {
        assert_eq!(client.sessions.count(), 1);
        let (mut lookup, (number, _)) = begin();
        lookup.handle_datagram(BEGIN, number, &bad);
        assert!(!lookup.is_under_way(number) && lookup.take_outcome().is_none(), "it is not believed");
        assert_eq!(client.sessions.count(), 0);
        // The server is asked again, and gets a new session for the identity.
        assert_eq!(data(&world.run(&mut lookup, BEGIN).0.unwrap()), ALL);
    }
}

#[test]
fn session_set_ups_count_as_requests() {
    for requests_max in 1..=4 {
        let (mut world, _, options) = private_world();
        let mut client = Client::new(Root::default());
        client.limits.requests_max = requests_max;
        let mut lookup = Lookup::new(Arc::new(client), private("10.a/p", false), options, dice(1), BEGIN);
        let (outcome, _) = world.run(&mut lookup, BEGIN);
        // Question, session, question in the session, and the answer to its challenge; without a
        // session one answer fewer.
        let expected = (requests_max == 2).then_some(LookupError::TooManyRequests);
        assert_eq!(outcome.err(), expected, "{requests_max}");
        assert!(lookup.requests_count() <= requests_max + 1, "{requests_max}: {}", lookup.requests_count());
    }
}

#[test]
fn steps_report_session_set_ups() {
    for (agree, text) in [(true, "a session is set up"), (false, "no session: continuing")] {
        let (mut world, client, options) = private_world();
        world.sessions.agree = agree;
        let options = LookupOptions { trace: true, ..options };
        let mut lookup = Lookup::new(client, private("10.a/p", false), options, dice(1), BEGIN);
        world.run(&mut lookup, BEGIN).0.unwrap();
        assert!(lookup.events().iter().any(|event| event.to_string().contains(text)), "{text}");
    }
}
