//! A DSpace, which answers for its handles to the plugin of its handle server:
//! `GET {url}/resolve/{handle}`, where the slash of the handle is not encoded, with a JSON array of
//! URLs, `null` or status 400, and `GET {url}/listhandles/{prefix}` with an array of handles.

use super::{HttpClient, SEGMENT, body_of, reason};
use crate::config::SourceConfig;
use crate::error::SourceError;
use crate::guarded::SourceAnswer;
use crate::listing::{ListedSource, PageEnd, PageItem, SingleItem, SourcePage, UnfitItem};
use crate::stop::PullStop;
use handle_proto::data::kind;
use handle_proto::{Handle, Value, Values, fold};
use handle_store::{RecordBuf, check_record};
use percent_encoding::{AsciiSet, percent_encode};
use reqwest::StatusCode;
use std::time::Duration;
use tokio::runtime::Handle as RuntimeHandle;

/// The slash of a handle stays one of the path.
const PATH: &AsciiSet = &SEGMENT.remove(b'/');
/// Most bytes of a list of handles, which a DSpace sends at once: some two million handles.
const LIST_LEN_MAX: usize = 64 << 20;

/// The URLs of a handle as its record, or that there is no such handle.
pub(super) async fn ask(client: &HttpClient, key: &[u8], bytes_max: usize) -> SourceAnswer {
    // Such segments would lead to another path.
    if key.split(|&byte| byte == b'/').any(|segment| [&b""[..], b".", b".."].contains(&segment)) {
        return Ok(None);
    }
    let url = format!("{}/resolve/{}", client.url, percent_encode(key, PATH));
    match get(client, &url, bytes_max).await? {
        Some(body) => read_urls(&body, key),
        None => Ok(None),
    }
}

/// The body of an answer; `None` if the DSpace knows nothing.
async fn get(client: &HttpClient, url: &str, bytes_max: usize) -> Result<Option<Vec<u8>>, SourceError> {
    let answer = client.client.get(url).send().await;
    let answer = answer.map_err(|error| SourceError::Unreachable(reason(&error)))?;
    match answer.status() {
        StatusCode::OK => body_of(answer, bytes_max).await.map(Some),
        StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::GONE => Ok(None),
        status => Err(SourceError::Refused(format!("status {status}"))),
    }
}

/// An array of texts, or `null`.
fn read_texts(body: &[u8]) -> Result<Vec<String>, SourceError> {
    let texts: Option<Vec<String>> =
        serde_json::from_slice(body).map_err(|error| SourceError::Invalid(error.to_string()))?;
    Ok(texts.unwrap_or_default())
}

/// The record of `key`: a URL value for each of the URLs, from index 1.
fn read_urls(body: &[u8], key: &[u8]) -> SourceAnswer {
    let urls = read_texts(body)?;
    if urls.is_empty() {
        return Ok(None);
    }
    let mut storage = Vec::new();
    let values = (1..).zip(&urls).map(|(index, url)| Value::new(index, kind::URL, url.as_bytes()));
    let values = Values::build(values, &mut storage);
    check_record(key, values.iter()).map_err(|unfit| SourceError::Invalid(unfit.to_string()))?;
    Ok(Some(RecordBuf::unlogged(values)))
}

/// All handles of a DSpace, each with its record.
#[derive(Debug)]
pub(crate) struct DspacePages {
    client: HttpClient,
    prefixes: Vec<String>,
    folds: bool,
    /// Time for one answer.
    step: Duration,
    bytes_max: usize,
    stop: PullStop,
    runtime: RuntimeHandle,
}

impl DspacePages {
    /// The DSpace of `config`. No request is made.
    ///
    /// # Errors
    /// When a file cannot be used, with its setting.
    pub(crate) fn open(
        config: &SourceConfig,
        folds: bool,
        stop: PullStop,
        runtime: RuntimeHandle,
    ) -> Result<Self, String> {
        Ok(Self {
            client: HttpClient::open(config)?,
            prefixes: config.prefixes.clone(),
            folds,
            step: config.step(),
            bytes_max: config.answer_bytes,
            stop,
            runtime,
        })
    }

    /// The handles of a prefix.
    fn handles(&self, prefix: &str) -> Result<Vec<String>, SourceError> {
        let url = format!("{}/listhandles/{}", self.client.url, percent_encode(prefix.as_bytes(), SEGMENT));
        let asked = self.stop.wait(self.step, get(&self.client, &url, LIST_LEN_MAX));
        // An error and an empty list would both delete all copies.
        let body = self.runtime.block_on(asked)??;
        read_texts(&body.ok_or_else(|| SourceError::Refused(format!("no list of {prefix}")))?)
    }
}

impl ListedSource for DspacePages {
    fn list<'s>(&'s mut self, _after: Option<&str>) -> Result<Box<dyn SourcePage + 's>, SourceError> {
        let mut handles = Vec::new();
        for prefix in &self.prefixes {
            let below = |handle: &String| {
                Handle(handle.as_bytes()).naming_authority().eq_ignore_ascii_case(prefix.as_bytes())
            };
            // It lists what begins with the text, also handles of longer prefixes.
            handles.extend(self.handles(prefix)?.into_iter().filter(below));
        }
        handles.reverse();
        Ok(Box::new(DspacePage { source: self, handles }))
    }

    fn changes<'s>(&'s mut self, _since: Option<&str>) -> Result<Box<dyn SourcePage + 's>, SourceError> {
        Ok(Box::new(SingleItem(PageItem::NoChanges)))
    }
}

/// The handles of a DSpace whose records have not been asked for yet, the next one last.
#[derive(Debug)]
struct DspacePage<'s> {
    source: &'s DspacePages,
    handles: Vec<String>,
}

impl SourcePage for DspacePage<'_> {
    fn next_item(&mut self) -> Result<PageItem, SourceError> {
        let Some(handle) = self.handles.pop() else {
            return Ok(PageItem::End(PageEnd { cursor: None, has_more: false }));
        };
        let DspacePages { client, step, bytes_max, stop, runtime, folds, .. } = self.source;
        let asked = stop.wait(*step, ask(client, handle.as_bytes(), *bytes_max));
        let key = if *folds { fold::folded(handle.as_bytes()).to_vec() } else { handle.clone().into_bytes() };
        Ok(match runtime.block_on(asked)? {
            Ok(Some(record)) => PageItem::Record(key, record),
            Ok(None) => PageItem::Absent(key),
            Err(SourceError::Invalid(why)) => PageItem::Unfit(UnfitItem { handle: Some(key), why }),
            Err(error) => return Err(error),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::HttpSource;
    use super::super::tests::{reply, serve};
    use super::*;
    use crate::RecordSource as _;
    use crate::config::SourceKind;
    use std::net::TcpStream;
    use tokio::runtime::Runtime;
    use tokio::sync::watch;

    /// A DSpace with two items, of which one has been removed, and one of a longer prefix.
    fn answer(path: &str, stream: &mut TcpStream) {
        match path {
            "/server/resolve/20.500.1/7" => {
                reply(stream, "200 OK", r#"["https://dspace.example/handle/20.500.1/7"]"#)
            }
            "/server/resolve/20.500.1/a%20b" => reply(stream, "200 OK", r#"["https://dspace.example/x"]"#),
            "/server/resolve/20.500.1/8" => reply(stream, "200 OK", "null"),
            "/server/resolve/20.500.1/9" => reply(stream, "200 OK", "[1]"),
            "/server/listhandles/20.500.1" => {
                reply(stream, "200 OK", r#"["20.500.1/7","20.500.1/8","20.500.12/1"]"#);
            }
            "/server/listhandles/20.500.3" => reply(stream, "400 Bad Request", ""),
            _ => reply(stream, "400 Bad Request", ""),
        }
    }

    fn opened(prefix: &str) -> (SourceConfig, Runtime, super::super::tests::ServedRequests) {
        let (address, served) = serve(answer);
        let config = SourceConfig {
            kind: SourceKind::Dspace,
            url: format!("http://{address}/server"),
            prefixes: vec![prefix.to_owned()],
            ..SourceConfig::default()
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        (config, runtime.unwrap(), served)
    }

    #[test]
    fn a_dspace_resolves_its_handles_in_its_own_form() {
        let (config, runtime, served) = opened("20.500.1");
        let source = HttpSource::open(&config, true, runtime.handle().clone()).unwrap();
        let urls = |handle: &str| -> Result<Option<Vec<String>>, SourceError> {
            let record = source.record(handle.as_bytes())?;
            let text = |data: &[u8]| String::from_utf8(data.to_vec()).unwrap();
            Ok(record.map(|record| record.view().values.iter().map(|value| text(value.data)).collect()))
        };
        let one = |url: &str| Some(vec![url.to_owned()]);
        assert_eq!(urls("20.500.1/7").unwrap(), one("https://dspace.example/handle/20.500.1/7"));
        assert_eq!(urls("20.500.1/a b").unwrap(), one("https://dspace.example/x"));
        assert_eq!(urls("20.500.1/8").unwrap(), None);
        assert_eq!(urls("20.500.1/none").unwrap(), None);
        assert!(matches!(urls("20.500.1/9"), Err(SourceError::Invalid(_))));
        for outside in ["20.500.1/../listhandles/20.500.1", "20.500.1//7", "20.500.1/./7"] {
            assert_eq!(urls(outside).unwrap(), None, "{outside}");
        }
        let next = || served.heads.recv_timeout(Duration::from_millis(200)).ok();
        assert_eq!(std::iter::from_fn(next).count(), 5, "a path that leads elsewhere is not asked for");
    }

    #[test]
    fn all_handles_of_a_dspace_are_listed_with_their_records() {
        let (config, runtime, _served) = opened("20.500.1");
        let stop = watch::Sender::new(false);
        let open =
            |config| DspacePages::open(config, true, PullStop(stop.subscribe()), runtime.handle().clone());
        let mut pages = open(&config).unwrap();
        assert_eq!(pages.changes(None).unwrap().next_item(), Ok(PageItem::NoChanges));
        let mut page = pages.list(None).unwrap();
        assert!(matches!(page.next_item(), Ok(PageItem::Record(handle, _)) if handle == b"20.500.1/7"));
        assert_eq!(page.next_item(), Ok(PageItem::Absent(b"20.500.1/8".to_vec())));
        assert_eq!(page.next_item(), Ok(PageItem::End(PageEnd { cursor: None, has_more: false })));
        // A refusal is not an empty list, which would delete all copies.
        let refusing = SourceConfig { prefixes: vec!["20.500.3".to_owned()], ..config.clone() };
        let mut pages = open(&refusing).unwrap();
        assert!(matches!(pages.list(None).map(drop), Err(SourceError::Refused(_))));
    }
}
