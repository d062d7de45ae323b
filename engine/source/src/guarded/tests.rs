use super::*;
use handle_proto::Values;
use std::sync::mpsc::{Receiver, Sender, channel};

/// A source that answers when it is asked to.
#[derive(Debug)]
struct ScriptedSource {
    asked: Sender<Vec<u8>>,
    answers: Mutex<Receiver<SourceAnswer>>,
}

impl RecordSource for ScriptedSource {
    fn record(&self, key: &[u8]) -> SourceAnswer {
        self.asked.send(key.to_vec()).unwrap();
        lock(&self.answers).recv().unwrap()
    }
}

fn scripted(config: &SourceConfig) -> (GuardedSource, Receiver<Vec<u8>>, Sender<SourceAnswer>) {
    let ((asked, questions), (answers, received)) = (channel(), channel());
    let source = ScriptedSource { asked, answers: Mutex::new(received) };
    (GuardedSource::new(config, Box::new(source)), questions, answers)
}

fn found() -> SourceAnswer {
    Ok(Some(RecordBuf::unlogged(Values::EMPTY)))
}

fn uncached() -> SourceConfig {
    SourceConfig { name: "told".to_owned(), cache_s: 0, ..SourceConfig::default() }
}

#[test]
fn one_request_beyond_the_limit_is_busy() {
    for outstanding in [1, 3] {
        let (source, questions, answers) = scripted(&SourceConfig { outstanding, ..uncached() });
        std::thread::scope(|scope| {
            for at in 0..outstanding {
                let source = &source;
                scope.spawn(move || assert_eq!(source.record(format!("10.1/{at}").as_bytes()), found()));
                questions.recv().unwrap();
            }
            assert_eq!(source.outstanding(), outstanding);
            assert_eq!(source.record(b"10.1/MORE"), Err(SourceError::Busy));
            for _ in 0..outstanding {
                answers.send(found()).unwrap();
            }
        });
        assert_eq!((source.outstanding(), source.counts().of("busy")), (0, 1));
        answers.send(Ok(None)).unwrap();
        assert_eq!(source.record(b"10.1/MORE"), Ok(None));
        assert_eq!(source.counts().of("found"), outstanding as u64);
    }
}

#[test]
fn who_asks_the_same_waits_for_one_answer() {
    let (source, questions, answers) = scripted(&SourceConfig { outstanding: 4, ..uncached() });
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| source.record(b"10.1/A"))).collect();
        questions.recv().unwrap();
        // Those that join hold the flight besides the table and the thread that asks.
        while lock(&source.flights).get(&b"10.1/A"[..]).is_none_or(|flight| Arc::strong_count(flight) < 5) {
            std::thread::yield_now();
        }
        assert_eq!(source.record(b"10.1/A"), Err(SourceError::Busy), "those who wait take places");
        answers.send(found()).unwrap();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), found());
        }
    });
    assert!(questions.try_recv().is_err(), "it was asked once");
    assert_eq!(source.counts().of("found"), 4);
}

#[test]
fn silence_in_a_row_pauses_and_other_failures_do_not() {
    let config = SourceConfig { failures: 2, pause_ms: 3_600_000, ..uncached() };
    let (source, _questions, answers) = scripted(&config);
    for error in
        [SourceError::Invalid(String::new()), SourceError::TooLong, SourceError::Refused(String::new())]
    {
        for _ in 0..3 {
            answers.send(Err(error.clone())).unwrap();
            assert_eq!(source.record(b"10.1/A"), Err(error.clone()));
        }
        assert!(!source.is_paused(), "{error}");
    }
    for error in [SourceError::Late, SourceError::Unreachable("refused".to_owned())] {
        answers.send(Err(error.clone())).unwrap();
        assert_eq!(source.record(b"10.1/A"), Err(error));
    }
    assert!(source.is_paused());
    assert_eq!(source.record(b"10.1/A"), Err(SourceError::Paused));
    assert_eq!(["late", "unreachable", "paused", "invalid"].map(|of| source.counts().of(of)), [1, 1, 1, 3]);
}

#[test]
fn a_cached_answer_asks_nobody() {
    let (source, questions, answers) = scripted(&SourceConfig { cache_s: 3600, ..uncached() });
    for (key, answer) in [(&b"10.1/A"[..], found()), (b"10.1/B", Ok(None))] {
        answers.send(answer.clone()).unwrap();
        assert_eq!(source.record(key), answer);
        assert_eq!(source.record(key), answer);
    }
    answers.send(Err(SourceError::Late)).unwrap();
    answers.send(found()).unwrap();
    assert_eq!(source.record(b"10.1/C"), Err(SourceError::Late));
    assert_eq!(source.record(b"10.1/C"), found(), "failures are not kept");
    assert_eq!(questions.try_iter().count(), 4);
    assert!(source.cache_bytes() > 0);
    assert_eq!(source.counts().of("cached"), 2);
}

#[test]
fn a_source_that_panics_leaves_nobody_waiting() {
    let (source, questions, answers) = scripted(&uncached());
    drop(answers);
    std::thread::scope(|scope| {
        assert!(scope.spawn(|| source.record(b"10.1/A")).join().is_err());
    });
    assert_eq!(questions.try_iter().count(), 1);
    assert!(lock(&source.flights).is_empty());
    assert_eq!(source.outstanding(), 0);
}
