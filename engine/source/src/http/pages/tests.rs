use super::super::tests::{reply, serve};
use super::*;
use crate::listing::PageEnd;
use std::io::Write as _;
use std::net::SocketAddr;
use tokio::runtime::Runtime;
use tokio::sync::watch;

const VALUES: &str = r#""values":[{"index":1,"type":"URL","data":"x"}]"#;

struct OpenedPages {
    pages: HttpPages,
    stop: watch::Sender<bool>,
    _runtime: Runtime,
}

fn open(address: SocketAddr, step_ms: u32) -> OpenedPages {
    let config = SourceConfig {
        url: format!("http://{address}/records/"),
        answer_bytes: 1024,
        timeout_ms: step_ms / 15,
        ..SourceConfig::default()
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let stop = watch::Sender::new(false);
    let watched = PullStop(stop.subscribe());
    let pages = HttpPages::open(&config, watched, runtime.handle().clone()).unwrap();
    OpenedPages { pages, stop, _runtime: runtime }
}

/// The items of a page, and how it ended.
fn items(page: Result<Box<dyn SourcePage + '_>, SourceError>) -> (Vec<PageItem>, Option<SourceError>) {
    let (mut page, mut items) = match page {
        Ok(page) => (page, Vec::new()),
        Err(error) => return (Vec::new(), Some(error)),
    };
    loop {
        match page.next_item() {
            Ok(item) => {
                let is_last =
                    !matches!(item, PageItem::Record(..) | PageItem::Absent(_) | PageItem::Unfit(_));
                items.push(item);
                if is_last {
                    return (items, None);
                }
            }
            Err(error) => return (items, Some(error)),
        }
    }
}

#[test]
fn pages_are_lines_up_to_the_one_that_ends_them() {
    let (address, served) = serve(|path, stream| match path {
        "/records/list" => {
            let record = |handle: &str| format!("{{\"handle\":\"{handle}\",{VALUES}}}");
            let long = format!("{{\"handle\":\"10.1/long\",{VALUES},\"note\":\"{}\"}}", "x".repeat(2000));
            let end = r#"{"cursor":"a b","more":true}"#;
            let lines = [&record("10.1/a")[..], "", &long, &record("10.1/b"), end].join("\n");
            // In small pieces, without an end of the last line.
            let _ = write!(stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            for piece in lines.as_bytes().chunks(7) {
                let _ = write!(stream, "{:x}\r\n", piece.len());
                let _ = stream.write_all(&[piece, b"\r\n"].concat());
            }
            let _ = write!(stream, "0\r\n\r\n");
        }
        "/records/changes" => reply(stream, "200 OK", "{\"cursor\":\"1\",\"more\":false}\n"),
        path if path.ends_with("since=old") => reply(stream, "410 Gone", ""),
        _ => reply(stream, "404 Not Found", ""),
    });
    let mut opened = open(address, 20_000);
    let (listed, error) = items(opened.pages.list(None));
    let [PageItem::Record(a, _), PageItem::Unfit(unfit), PageItem::Record(b, _), PageItem::End(end)] =
        &listed[..]
    else {
        panic!("{listed:?}, {error:?}")
    };
    assert_eq!(
        (&a[..], unfit.handle.as_deref(), &b[..]),
        (&b"10.1/a"[..], Some(&b"10.1/long"[..]), &b"10.1/b"[..])
    );
    assert_eq!(*end, PageEnd { cursor: Some("a b".to_owned()), has_more: true });
    assert_eq!(served.heads.recv().unwrap()[0], "GET /records/list HTTP/1.1");
    let (_, error) = items(opened.pages.list(Some("a b/&")));
    assert_eq!(error, Some(SourceError::Refused("status 404 Not Found".to_owned())), "a listing is there");
    assert_eq!(served.heads.recv().unwrap()[0], "GET /records/list?after=a%20b%2F%26 HTTP/1.1");
    let end = PageEnd { cursor: Some("1".to_owned()), has_more: false };
    assert_eq!(items(opened.pages.changes(None)), (vec![PageItem::End(end)], None));
    assert_eq!(items(opened.pages.changes(Some("old"))), (vec![PageItem::Expired], None));
    assert_eq!(items(opened.pages.changes(Some("7"))), (vec![PageItem::NoChanges], None));
}

#[test]
fn pages_that_break_off_or_hang_are_no_pages() {
    let (address, _served) = serve(|path, stream| {
        let record = format!("{{\"handle\":\"10.1/a\",{VALUES}}}\n");
        match path.rsplit('=').next().unwrap() {
            // Complete as HTTP, and yet not to the end.
            "short" => reply(stream, "200 OK", &record),
            "cut" => {
                let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{record}{{\"han");
                let _ = stream.shutdown(std::net::Shutdown::Both);
            }
            "noise" => reply(stream, "200 OK", &format!("{record}<html>\n")),
            "failed" => reply(stream, "500 Internal Server Error", &record),
            "floods" => {
                let _ = write!(stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
                while write!(stream, "400\r\n{}\r\n", " ".repeat(1024)).is_ok() {}
            }
            "hangs" => drop(write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{record}")),
            _ => {}
        }
    });
    let mut opened = open(address, 300);
    for (since, count, expected) in [
        ("short", 1, "broke off"),
        ("cut", 1, "cannot be reached"),
        ("noise", 1, "breaks the contract"),
        ("failed", 0, "status 500"),
        ("hangs", 1, "no answer within"),
        ("silent", 0, "no answer within"),
        ("floods", 0, "no answer within"),
    ] {
        let (items, error) = items(opened.pages.list(Some(since)));
        let error = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(items.len() == count && error.contains(expected), "{since}: {items:?} {error}");
    }
    // Who waits is woken when the process stops.
    let mut opened = open(address, 600_000);
    std::thread::scope(|scope| {
        let OpenedPages { pages, stop, .. } = &mut opened;
        let waiting = scope.spawn(|| items(pages.list(Some("hangs"))).1);
        stop.send_replace(true);
        assert_eq!(waiting.join().unwrap(), Some(SourceError::Stopped));
    });
}
