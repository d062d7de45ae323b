//! Objects in a directory, and what S3 does with them.

use super::{BucketConditions, BucketRequest};
use bytes::Bytes;
use http::{HeaderMap, Method};
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;
use percent_encoding::percent_decode_str;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Directory of files that are not objects yet.
const UPLOADS: &str = ".uploads";
/// Objects in one answer to a listing. Few, so that tests need several.
const PAGE_LEN: usize = 5;

/// An answer.
#[derive(Debug)]
pub(super) struct StorageReply {
    pub(super) status: u16,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Bytes,
}

impl StorageReply {
    fn new(status: u16, body: impl Into<Bytes>) -> Self {
        Self { status, headers: Vec::new(), body: body.into() }
    }

    /// An error, as S3 describes it.
    pub(super) fn error(status: u16, code: &str) -> Self {
        Self::new(status, format!("<Error><Code>{code}</Code><Message>in a test</Message></Error>"))
    }

    fn with(mut self, name: &'static str, value: String) -> Self {
        self.headers.push((name, value));
        self
    }
}

/// Objects in a directory.
#[derive(Debug)]
pub(super) struct BucketStorage {
    root: PathBuf,
    conditions: BucketConditions,
    /// Held while conditions are checked.
    writing: Mutex<()>,
    files_count: AtomicU64,
}

/// The entity tag of a file: another one for each file that was renamed to this name.
fn tag_of(file: &Metadata) -> String {
    format!("\"{:x}-{:x}-{:x}-{:x}\"", file.ino(), file.mtime(), file.mtime_nsec(), file.len())
}

/// The pairs of a query.
fn pairs(query: &str) -> BTreeMap<String, String> {
    url::form_urlencoded::parse(query.as_bytes()).into_owned().collect()
}

impl BucketStorage {
    pub(super) fn new(root: &Path, conditions: BucketConditions) -> Self {
        std::fs::create_dir_all(root.join(UPLOADS)).expect("a directory");
        let started = Timestamp::now().as_microsecond().unsigned_abs();
        Self {
            root: root.to_owned(),
            conditions,
            writing: Mutex::new(()),
            files_count: AtomicU64::new(started),
        }
    }

    /// Answers a request.
    pub(super) fn answer(&self, request: &BucketRequest, headers: &HeaderMap, body: &Bytes) -> StorageReply {
        let path = percent_decode_str(&request.path).decode_utf8_lossy();
        let name = path.trim_start_matches('/');
        if name.split('/').any(|part| part == ".." || part == UPLOADS) {
            return StorageReply::error(400, "InvalidURI");
        }
        let (path, query) = (self.root.join(name), pairs(&request.query));
        let upload = query.get("uploadId").map(|id| self.root.join(UPLOADS).join(id));
        let answered = match (&request.method, upload) {
            (&Method::GET, None) if query.contains_key("list-type") => self.list(name, &query),
            (&Method::GET, None) => read(&path, headers),
            (&Method::HEAD, None) => look(&path),
            (&Method::PUT, None) => self.write(&path, headers, body),
            (&Method::DELETE, None) => remove(&path),
            (&Method::POST, None) if query.contains_key("uploads") => self.begin_upload(),
            (&Method::PUT, Some(upload)) => self.write_part(&upload, &query, body),
            (&Method::POST, Some(upload)) => self.finish_upload(&upload, &path),
            (&Method::DELETE, Some(upload)) => {
                std::fs::remove_dir_all(upload).map(|()| StorageReply::new(204, ""))
            }
            _ => Ok(StorageReply::error(501, "NotImplemented")),
        };
        answered.unwrap_or_else(|error| match error.kind() {
            ErrorKind::NotFound => StorageReply::error(404, "NoSuchKey"),
            _ => StorageReply::error(500, "InternalError"),
        })
    }

    /// Writes a file that is not an object yet.
    fn write_hidden(&self, bytes: &[u8]) -> io::Result<PathBuf> {
        let number = self.files_count.fetch_add(1, Ordering::Relaxed);
        let path = self.root.join(UPLOADS).join(format!("object-{}-{number}", std::process::id()));
        let mut file = File::create(&path)?;
        file.write_all(bytes)?;
        Ok(path)
    }

    fn write(&self, path: &Path, headers: &HeaderMap, body: &Bytes) -> io::Result<StorageReply> {
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let hidden = self.write_hidden(body)?;
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let now = std::fs::metadata(path).ok().map(|file| tag_of(&file));
        let if_none_match = header("if-none-match").filter(|_| self.conditions != BucketConditions::Neither);
        let if_match = header("if-match").filter(|_| self.conditions == BucketConditions::Both);
        let refused = match (&now, if_none_match, if_match) {
            (Some(_), Some(_), _) => Some(412),
            (None, _, Some(_)) => Some(404),
            (Some(tag), _, Some(wanted)) if tag != wanted => Some(412),
            _ => None,
        };
        if let Some(status) = refused {
            std::fs::remove_file(hidden)?;
            return Ok(StorageReply::error(status, "PreconditionFailed"));
        }
        Ok(StorageReply::new(200, "").with("etag", publish(&hidden, path)?))
    }

    fn begin_upload(&self) -> io::Result<StorageReply> {
        let id = format!("upload-{}", self.files_count.fetch_add(1, Ordering::Relaxed));
        std::fs::create_dir(self.root.join(UPLOADS).join(&id))?;
        let body = format!(
            "<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
        );
        Ok(StorageReply::new(200, body))
    }

    fn write_part(
        &self,
        upload: &Path,
        query: &BTreeMap<String, String>,
        body: &Bytes,
    ) -> io::Result<StorageReply> {
        let number: u32 = query.get("partNumber").and_then(|text| text.parse().ok()).unwrap_or_default();
        let hidden = self.write_hidden(body)?;
        Ok(StorageReply::new(200, "").with("etag", publish(&hidden, &upload.join(format!("{number:05}")))?))
    }

    fn finish_upload(&self, upload: &Path, path: &Path) -> io::Result<StorageReply> {
        let mut parts =
            std::fs::read_dir(upload)?.map(|part| Ok(part?.path())).collect::<io::Result<Vec<_>>>()?;
        parts.sort();
        let hidden = self.write_hidden(b"")?;
        let mut file = File::create(&hidden)?;
        for part in parts {
            io::copy(&mut File::open(part)?, &mut file)?;
        }
        let tag = publish(&hidden, path)?;
        std::fs::remove_dir_all(upload)?;
        let body =
            format!("<CompleteMultipartUploadResult><ETag>{tag}</ETag></CompleteMultipartUploadResult>");
        Ok(StorageReply::new(200, body))
    }

    /// The objects directly below a prefix that ends with a slash.
    fn list(&self, bucket: &str, query: &BTreeMap<String, String>) -> io::Result<StorageReply> {
        let empty = String::new();
        let (prefix, from) =
            (query.get("prefix").unwrap_or(&empty), query.get("continuation-token").unwrap_or(&empty));
        let mut rows = BTreeMap::new();
        let entries = match std::fs::read_dir(self.root.join(bucket).join(prefix)) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            entries => Some(entries?),
        };
        for entry in entries.into_iter().flatten() {
            let entry = entry?;
            let (name, metadata) = (entry.file_name().to_string_lossy().into_owned(), entry.metadata()?);
            if metadata.is_file() && name > *from {
                rows.insert(name, metadata);
            }
        }
        let is_truncated = rows.len() > PAGE_LEN;
        let mut body = format!("<ListBucketResult><IsTruncated>{is_truncated}</IsTruncated>");
        for (name, metadata) in rows.iter().take(PAGE_LEN) {
            let modified = Timestamp::from_second(metadata.mtime()).map_err(io::Error::other)?;
            let (tag, len) = (tag_of(metadata), metadata.len());
            let _ = write!(
                body,
                "<Contents><Key>{prefix}{name}</Key><LastModified>{modified}</LastModified>\
                 <ETag>{tag}</ETag><Size>{len}</Size></Contents>"
            );
        }
        if let Some(last) = rows.keys().nth(PAGE_LEN - 1).filter(|_| is_truncated) {
            let _ = write!(body, "<NextContinuationToken>{last}</NextContinuationToken>");
        }
        body.push_str("</ListBucketResult>");
        Ok(StorageReply::new(200, body))
    }
}

/// Gives a file the name of an object, and returns its tag.
fn publish(hidden: &Path, path: &Path) -> io::Result<String> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let tag = tag_of(&std::fs::metadata(hidden)?);
    std::fs::rename(hidden, path)?;
    Ok(tag)
}

fn remove(path: &Path) -> io::Result<StorageReply> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(StorageReply::new(204, "")),
    }
}

/// The headers that describe an object.
fn described(reply: StorageReply, metadata: &Metadata) -> io::Result<StorageReply> {
    let modified = Timestamp::from_second(metadata.mtime()).map_err(io::Error::other)?;
    let modified = DateTimePrinter::new().timestamp_to_rfc9110_string(&modified).map_err(io::Error::other)?;
    Ok(reply.with("etag", tag_of(metadata)).with("last-modified", modified))
}

fn look(path: &Path) -> io::Result<StorageReply> {
    let metadata = std::fs::metadata(path)?;
    let len = metadata.len().to_string();
    described(StorageReply::new(200, "").with("content-length", len), &metadata)
}

fn read(path: &Path, headers: &HeaderMap) -> io::Result<StorageReply> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    let tag = tag_of(&metadata);
    if header("if-none-match") == Some(&tag) {
        return described(StorageReply::new(304, ""), &metadata);
    }
    if header("if-match").is_some_and(|wanted| wanted != tag) {
        return Ok(StorageReply::error(412, "PreconditionFailed"));
    }
    let len = metadata.len();
    let range = header("range").and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let Some((from, to)) = range else {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        return described(StorageReply::new(200, bytes), &metadata);
    };
    let from: u64 = from.parse().map_err(io::Error::other)?;
    let end = to.parse::<u64>().map_or(len, |last| len.min(last.saturating_add(1)));
    if from >= end {
        return Ok(StorageReply::error(416, "InvalidRange"));
    }
    let mut bytes = vec![0; usize::try_from(end - from).map_err(io::Error::other)?];
    file.seek(SeekFrom::Start(from))?;
    file.read_exact(&mut bytes)?;
    let reply =
        StorageReply::new(206, bytes).with("content-range", format!("bytes {from}-{}/{len}", end - 1));
    described(reply, &metadata)
}
