//! Batch files, site bundles, and exports of other servers.

use handle_formats::batch::{BatchBlock, BatchReader, InvalidBlock};
use handle_formats::bundle::{BundleLimits, SiteBundle, archive};
use handle_formats::dct::DctSettings;
use handle_formats::dump::{Dump, Item};
use handle_formats::export::{self, Export};
use handle_formats::input::{InputForm, InputReader, InputStream};
use serde_json::Value as Json;
use std::collections::VecDeque;
use std::io::{BufReader, Read};

/// Blocks do not depend on how the input is split, have valid line numbers, and have values that
/// decode. The reader of all forms reads the same bytes, whatever form they have.
pub fn batch_file(bytes: &[u8]) {
    assert_eq!(entries(bytes, 1), entries(bytes, usize::MAX), "byte by byte");
    let whole = blocks(bytes, 1 << 16);
    assert_eq!(blocks(bytes, 1), whole, "byte by byte");
    let lines = bytes.split(|&byte| byte == b'\n').count() as u64;
    let mut last = 0;
    for block in &whole {
        let line = block.as_ref().map_or_else(|invalid| invalid.line, |block| block.line);
        assert!((last..=lines).contains(&line), "line {line} after line {last}, of {lines}");
        last = line;
    }
}

/// The entries of an input that arrives in pieces of at most `len` bytes.
fn entries(bytes: &[u8], len: usize) -> Option<Vec<String>> {
    let pieces = bytes.chunks(len.clamp(1, bytes.len().max(1))).map(<[u8]>::to_vec);
    let mut stream = InputStream::new(PieceReader(pieces.collect())).ok()?;
    let form = InputForm::recognise(&mut stream).ok()??;
    let mut reader = InputReader::new(stream, form).ok()?;
    let mut found = Vec::new();
    while let Some((position, entry)) = reader.next().ok()? {
        found.push(format!("{position}: {entry:?}"));
    }
    Some(found)
}

/// Gives one piece with each read.
struct PieceReader(VecDeque<Vec<u8>>);

impl Read for PieceReader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let Some(mut piece) = self.0.pop_front() else { return Ok(0) };
        let len = piece.len().min(buffer.len());
        buffer[..len].copy_from_slice(&piece[..len]);
        if len < piece.len() {
            self.0.push_front(piece.split_off(len));
        }
        Ok(len)
    }
}

fn blocks(bytes: &[u8], capacity: usize) -> Vec<Result<BatchBlock, InvalidBlock>> {
    let blocks = BatchReader::new(BufReader::with_capacity(capacity, bytes));
    blocks.map(|block| block.expect("reading from memory does not fail")).collect()
}

/// An archive is within its limits, or refused. What it contains can be archived and read again.
pub fn site_bundle(bytes: &[u8]) {
    let limits = BundleLimits { entries: 8, unpacked_bytes: 64 << 10 };
    let Ok(bundle) = SiteBundle::read(bytes, limits) else { return };
    let SiteBundle { site, administrator_key, contact } = &bundle;
    assert!(site.as_bytes().len() <= limits.unpacked_bytes);
    let mut encoded = Vec::new();
    site.view().encode(&mut encoded);
    assert_eq!(encoded, site.as_bytes());
    let again = archive(site.as_bytes(), administrator_key, contact).expect("short entries");
    // Numbers and escapes can be longer in their only form than they were.
    let generous = BundleLimits { unpacked_bytes: 4 * limits.unpacked_bytes, ..limits };
    assert_eq!(SiteBundle::read(&again, generous).as_ref(), Ok(&bundle));
    let exact = BundleLimits { entries: 3, unpacked_bytes: 0 };
    assert!(SiteBundle::read(&again, exact).is_err(), "the limit is ignored");
}

/// Settings are parsed, or rejected with a valid line number. The result contains nothing that is
/// not in the text, and does not depend on what follows it.
pub fn settings(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match DctSettings::parse(&text) {
        Ok(settings) => {
            let texts = settings.texts("a").into_iter().chain(settings.text("b"));
            let texts_len = texts.map(str::len).sum::<usize>();
            assert!(texts_len <= text.len(), "{texts_len} bytes of text");
            assert_eq!(DctSettings::parse(&format!("{text} }} = (")), Ok(settings.clone()));
            assert!(settings.truth("a").is_none() || settings.text("a").is_some());
        }
        Err(error) => assert!((1..=text.matches('\n').count() + 1).contains(&error.line), "{error}"),
    }
}

/// Records do not depend on how the input is split, and every JSON text of this shape is accepted.
pub fn json_export(bytes: &[u8]) {
    let whole = items(bytes, 1 << 16);
    assert_eq!(items(bytes, 1), whole, "byte by byte");
    let Ok(Json::Object(object)) = serde_json::from_slice(bytes) else { return };
    let prefixes = object.get("homedPrefixes").map_or(Some(0), |list| strings(list).map(|list| list.len()));
    let records = object.get("handleRecords").map_or(Some(0), |records| Some(records.as_object()?.len()));
    // A tree handles duplicate members and escaped names differently.
    let is_plain = ["homedPrefixes", "handleRecords"].into_iter().all(|name| {
        let count = bytes.windows(name.len()).filter(|window| *window == name.as_bytes()).count();
        count == usize::from(object.contains_key(name))
    });
    if let (Some(prefixes), Some(records), true) = (prefixes, records, is_plain) {
        let found = whole.expect("a valid export can be read");
        // Records with the same name are several here, but one in a tree.
        assert!(found.len() >= prefixes + records, "{} items, {prefixes} and {records}", found.len());
    }
}

fn strings(json: &Json) -> Option<&Vec<Json>> {
    json.as_array().filter(|list| list.iter().all(Json::is_string))
}

fn items(bytes: &[u8], capacity: usize) -> Option<Vec<String>> {
    let mut export = Export::new(BufReader::with_capacity(capacity, bytes));
    let mut items = Vec::new();
    while let Some(item) = export.next().ok()? {
        items.push(match item {
            export::Item::Homed(prefix) => prefix,
            export::Item::Record(text) => text.to_owned(),
        });
    }
    Some(items)
}

/// Records do not depend on how the input is split, and their values decode.
pub fn sql_dump(bytes: &[u8]) {
    let whole = rows(bytes, 1 << 16);
    assert_eq!(rows(bytes, 1), whole, "byte by byte");
    for item in whole.into_iter().flatten() {
        if let Item::Record(_, values) = item {
            assert!(!values.is_empty(), "a record has a value");
            assert!(values.iter().all(|value| value.view().encoded_len() == value.as_bytes().len()));
        }
    }
}

fn rows(bytes: &[u8], capacity: usize) -> Option<Vec<Item>> {
    let mut dump = Dump::new(BufReader::with_capacity(capacity, bytes));
    let mut items = Vec::new();
    while let Some(item) = dump.next().ok()? {
        items.push(item);
    }
    Some(items)
}
