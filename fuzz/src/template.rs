//! Namespaces, and the values that their templates compute.

use handle_proto::{Permissions, Value};
use handle_template::limit::{BUILT_LEN_MAX, CompileBudget, VALUES_MAX};
use handle_template::{
    BuildError, BuildOutcome, Chain, Namespace, Notice, Parts, ReferencedTemplates, Templates,
};
use std::collections::BTreeSet;

/// Every reference leads to the same text, except to `missing`.
struct SingleText<'t>(&'t [u8]);

impl Templates for SingleText<'_> {
    fn at(&self, handle: &[u8], _: i32, budget: &mut CompileBudget) -> Option<ReferencedTemplates> {
        let read = || ReferencedTemplates::parse(self.0, true, budget).unwrap_or_default();
        (handle != b"missing").then(read)
    }
}

/// What everybody may read of the values that a namespace makes, or whether there is none, does not
/// depend on data that not everybody may read.
fn publishes_no_other_data(xml: &[u8], extension: &[u8], referenced: &[u8]) {
    let Ok(namespace) = Namespace::parse(xml, true) else { return };
    let handle = [b"1234/abc@", extension].concat();
    let Some(parts) = Parts::of(&handle, b"@") else { return };
    let mut chain = Chain::new();
    chain.push(&namespace);
    let public_of = |data: &[u8]| {
        let private = |index, kind| Value { permissions: Permissions(0x0c), ..Value::new(index, kind, data) };
        let base = [private(1, b"URL"), Value::new(2, b"URL", b"u"), private(300, b"HS_SECKEY")];
        let built = chain.build(&parts, &base, &SingleText(referenced), &mut CompileBudget::default())?;
        let BuildOutcome::Values { bytes, count } = built else { return Ok(None) };
        let (mut rest, mut public) = (bytes.as_slice(), Vec::new());
        for _ in 0..count {
            let (value, after) = Value::split(rest).expect("a value");
            match value.is_public() {
                true => value.encode(&mut public),
                // Where it is, and its type, may be known.
                false => Value { data: b"", ..value }.encode(&mut public),
            }
            rest = after;
        }
        Ok::<_, BuildError>(Some(public))
    };
    assert_eq!(public_of(b"secret"), public_of(b"http://example.org/other"), "data that is not public shows");
}

/// Templates end within their limits, are deterministic, and give values that decode and have
/// distinct indexes.
///
/// Input: the XML of a namespace, an extension, and the XML that references lead to, with a zero
/// byte between them.
pub fn template(bytes: &[u8]) {
    let mut parts = bytes.splitn(3, |&byte| byte == 0);
    let [xml, extension, referenced] = std::array::from_fn(|_| parts.next().unwrap_or_default());
    let data = [&b"http://example.org/1"[..], b"a@example.org", b"\xff\x00"];
    let base = [
        Value::new(1, b"URL", data[0]),
        Value::new(2, b"EMAIL", data[1]),
        Value::new(7, b"\xc3\xbc", data[2]),
    ];
    publishes_no_other_data(xml, extension, referenced);
    for folds in [false, true] {
        let Ok(namespace) = Namespace::parse(xml, folds) else { return };
        let notice = Notice::of_record(std::iter::once(Value::new(1, b"HS_NAMESPACE", xml)));
        assert!(notice.is_some(), "the namespace parses, but not its notice");
        let delimiter = namespace.delimiter().filter(|delimiter| !delimiter.is_empty()).unwrap_or("@");
        let handle = [b"1234/abc", delimiter.as_bytes(), extension].concat();
        let Some(parts) = Parts::of(&handle, delimiter.as_bytes()) else {
            panic!("the delimiter is in the handle");
        };
        let joined = [parts.base, delimiter.as_bytes(), parts.extension].concat();
        assert_eq!(joined, handle, "the joined parts differ from the handle");
        let mut chain = Chain::new();
        chain.push(&namespace);
        let built = chain.build(&parts, &base, &SingleText(referenced), &mut CompileBudget::default());
        assert_eq!(
            chain.build(&parts, &base, &SingleText(referenced), &mut CompileBudget::default()),
            built,
            "the same arguments give another result"
        );
        let Ok(BuildOutcome::Values { bytes, count }) = built else { continue };
        assert!(count <= VALUES_MAX && bytes.len() <= 2 * BUILT_LEN_MAX);
        let (mut rest, mut indexes) = (bytes.as_slice(), BTreeSet::new());
        for _ in 0..count {
            let (value, after) = Value::split(rest).expect("a value");
            assert!(indexes.insert(value.index), "index {} is given twice", value.index);
            rest = after;
        }
        assert!(rest.is_empty());
        if !namespace.has_templates() {
            let mut same = Vec::new();
            base.iter().for_each(|value| value.encode(&mut same));
            assert_eq!(bytes, same, "without templates the values of the base change");
        }
    }
}
