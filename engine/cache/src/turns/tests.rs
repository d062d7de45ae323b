use super::*;
use std::time::Duration;
use tokio::time::timeout;

const TURNS: usize = 16;
/// Permits of one source and of one prefix.
const SHARE: usize = 2;

fn turns() -> QuestionTurns {
    let exempt = SourceList::parse(&["203.0.113.0/24".to_owned()]).unwrap();
    QuestionTurns::new(TURNS, TURNS / SHARE, exempt)
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(test);
}

fn client(n: u8) -> Option<RequestOrigin> {
    Some(RequestOrigin::connection([10, n, 0, 1].into()))
}

/// The turn, if it comes at once.
async fn now(turns: &QuestionTurns, origin: Option<RequestOrigin>, prefix: u8) -> Option<QuestionTurn> {
    timeout(Duration::ZERO, turns.take(origin, vec![prefix])).await.ok()
}

#[test]
fn a_source_and_a_prefix_have_their_share_and_no_more() {
    run(async {
        let turns = turns();
        let mut held = Vec::new();
        for n in 0..SHARE {
            held.push(now(&turns, client(1), u8::try_from(n).unwrap()).await.expect("a share"));
        }
        assert!(now(&turns, client(1), 9).await.is_none(), "the source has its share");
        assert!(now(&turns, client(2), 9).await.is_some());
        held.clear();
        for n in 0..SHARE {
            held.push(now(&turns, client(u8::try_from(n).unwrap()), 1).await.expect("a share"));
        }
        assert!(now(&turns, client(7), 1).await.is_none(), "the prefix has its share");
        assert!(now(&turns, client(7), 2).await.is_some());
        held.pop();
        assert!(now(&turns, client(7), 1).await.is_some(), "a place is free again");
        held.clear();
        assert!(lock(&turns.by_source.used).is_empty() && lock(&turns.by_prefix.used).is_empty());
    });
}

#[test]
fn exempt_sources_and_renewals_have_all_turns_and_nobody_has_more() {
    run(async {
        for origin in [None, Some(RequestOrigin::connection([203, 0, 113, 7].into()))] {
            let turns = turns();
            let mut held = Vec::new();
            for n in 0..TURNS {
                held.push(now(&turns, origin, u8::try_from(n).unwrap()).await.expect("a turn"));
            }
            assert!(now(&turns, origin, 99).await.is_none());
        }
    });
}

#[test]
fn a_source_with_few_questions_is_next_whoever_came_before() {
    run(async {
        let turns = Arc::new(turns());
        let mut held = Vec::new();
        for n in 0..8 {
            for _ in 0..SHARE {
                held.push(now(&turns, client(n), n).await.expect("a turn"));
            }
        }
        let order = Arc::new(Mutex::new(Vec::new()));
        // The sources that have turns already wait first.
        for n in [20, 21, 22, 23, 30] {
            let (turns, order) = (Arc::clone(&turns), Arc::clone(&order));
            let source = if n == 30 { 30 } else { 20 };
            let _waits = tokio::spawn(async move {
                let turn = turns.take(client(source), vec![n]).await;
                order.lock().unwrap().push(n);
                tokio::time::sleep(Duration::from_millis(2)).await;
                drop(turn);
            });
            tokio::task::yield_now().await;
        }
        drop(held.pop());
        while order.lock().unwrap().len() < 5 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let order = order.lock().unwrap().clone();
        assert!(order.iter().position(|&n| n == 30).unwrap() <= 1, "{order:?}");
    });
}

#[test]
fn who_gives_up_leaves_nothing_behind() {
    run(async {
        let turns = turns();
        let mut held = Vec::new();
        for n in 0..TURNS {
            held.push(now(&turns, None, u8::try_from(n).unwrap()).await.expect("a turn"));
        }
        for n in 0..3 * SWEPT_LEN_MIN {
            let source =
                Some(RequestOrigin::connection(Ipv4Addr::from_bits(u32::try_from(n).unwrap() << 8).into()));
            assert!(now(&turns, source, 99).await.is_none());
            assert!(lock(&turns.queue.state).waiting.len() <= SWEPT_LEN_MIN);
        }
        held.clear();
        assert_eq!(lock(&turns.queue.state).free, TURNS);
        assert!(now(&turns, client(1), 1).await.is_some());
        assert!(lock(&turns.by_source.used).is_empty() && lock(&turns.by_prefix.used).is_empty());
    });
}
