use super::*;
use crate::listing::PageEnd;
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// Writes the number of each question and its start to the standard error and answers it.
const SCRIPT: &str = r#"
number() { echo "$1" | sed 's/^{"id":\([0-9]*\).*/\1/'; }
record() { echo "{\"id\":$1,\"handle\":\"10.1/$2\",\"values\":[{\"index\":1,\"type\":\"URL\",\"data\":\"x\"}]}"; }
while read line; do
    id=$(number "$line")
    case "$line" in
        *'"list":true}') record $id a; record $id b; echo "{\"id\":$id,\"cursor\":\"2\",\"more\":true}" ;;
        *'"after":"2"}') record $id $$; echo "{\"id\":$id,\"more\":false}" ;;
        *'"changes":true}') echo "{\"id\":$id,\"responseCode\":5}" ;;
        *'"since":"old"}') echo "{\"id\":$id,\"expired\":true}" ;;
        *'"after":"other"}') record 77 a ;;
        *'"after":"noise"}') echo nonsense ;;
        *'"after":"floods"}') yes | tr -d '\n' ;;
        *'"after":"ends"}') exit 3 ;;
        *'"after":"refused"}') echo "{\"id\":$id,\"responseCode\":2,\"message\":\"no disk\"}" ;;
    esac
done"#;

fn start(step_ms: u32) -> (ProgramPages, watch::Sender<bool>, Runtime) {
    let command = ["/bin/sh", "-c", SCRIPT].map(str::to_owned).to_vec();
    let config =
        SourceConfig { command, answer_bytes: 1024, timeout_ms: step_ms / 15, ..SourceConfig::default() };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let stop = watch::Sender::new(false);
    let pages = ProgramPages::new(&config, PullStop(stop.subscribe()), runtime.handle().clone());
    (pages, stop, runtime)
}

/// The handle of the record that the second page has, which is the number of the process.
fn second_page(pages: &mut ProgramPages) -> Vec<u8> {
    let mut page = pages.list(Some("2")).unwrap();
    let PageItem::Record(handle, _) = page.next_item().unwrap() else { panic!("a record") };
    assert_eq!(page.next_item(), Ok(PageItem::End(PageEnd { cursor: None, has_more: false })));
    handle
}

#[test]
fn a_program_lists_its_records_page_by_page() {
    let (mut pages, _stop, _runtime) = start(20_000);
    let mut page = pages.list(None).unwrap();
    for expected in [&b"10.1/a"[..], b"10.1/b"] {
        let PageItem::Record(handle, record) = page.next_item().unwrap() else { panic!("a record") };
        assert_eq!((&handle[..], record.view().values.len()), (expected, 1));
    }
    let end = PageEnd { cursor: Some("2".to_owned()), has_more: true };
    assert_eq!(page.next_item(), Ok(PageItem::End(end)));
    drop(page);
    let first = second_page(&mut pages);
    assert_eq!(pages.changes(None).unwrap().next_item(), Ok(PageItem::NoChanges));
    assert_eq!(pages.changes(Some("old")).unwrap().next_item(), Ok(PageItem::Expired));
    assert_eq!(second_page(&mut pages), first, "it is still running");
}

#[test]
fn a_program_that_breaks_the_contract_is_started_again() {
    let (mut pages, _stop, _runtime) = start(20_000);
    let mut before = second_page(&mut pages);
    for (since, expected) in [
        ("other", "a line about the question 77"),
        ("noise", "breaks the contract"),
        ("ends", "exit status: 3"),
        ("refused", "no disk"),
    ] {
        let error = pages.list(Some(since)).unwrap().next_item().unwrap_err().to_string();
        assert!(error.contains(expected), "{since}: {error}");
        let after = second_page(&mut pages);
        assert_ne!(after, before, "{since}");
        before = after;
    }
    // A page that is not read to its end.
    assert!(matches!(pages.list(None).unwrap().next_item(), Ok(PageItem::Record(..))));
    assert_ne!(second_page(&mut pages), before);
}

#[test]
fn waiting_for_a_program_ends() {
    let (mut pages, _stop, _runtime) = start(100);
    for since in ["hangs", "floods"] {
        assert_eq!(pages.list(Some(since)).unwrap().next_item(), Err(SourceError::Late), "{since}");
    }
    let (mut pages, stop, _runtime) = start(600_000);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| pages.list(Some("hangs")).and_then(|mut page| page.next_item()));
        stop.send_replace(true);
        assert_eq!(waiting.join().unwrap(), Err(SourceError::Stopped));
    });
}
