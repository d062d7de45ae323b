//! Values computed for handles that are not stored: the templates in force and the values they are
//! computed from.
//!
//! - [`TemplatesConfig`]: the settings.
//! - [`SetTemplates`]: the namespaces of one published set, compiled by the thread that loads it,
//!   when the set goes live. A worker asks it whether the values of a handle that is not stored
//!   [may be computed](SetTemplates); only then does the request take the slow path.
//! - [`SetTemplates::compute`]: computes the values, on a slow path thread.
//!
//! The namespace of a prefix is the HS_NAMESPACE value of the prefix record if the set has that
//! record, otherwise that of the configuration. Only records stored in this set are consulted.

use handle_daemon::settings;
use handle_daemon::settings::SettingRule;
use handle_proto::name::{PREFIX_RECORDS, ROOT};
use handle_proto::{Handle, Value, fold};
use handle_resolver::{AnswerContext, MayCompute, RefusalReason};
use handle_snapshot::map::MappedFile;
use handle_snapshot::{CorruptRecord, EncodedRecord, RecordSet, hash_key};
use handle_template::limit::CompileBudget;
use handle_template::{BuildOutcome, Chain, Namespace, Parts, ReferencedTemplates, Templates};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

settings! {
    /// Values computed for handles that are not stored ([templates.md](../templates.md)).
    pub struct TemplatesConfig {
        /// Set this when no values are to be computed: with `false`, handles that are not stored do
        /// not exist, whatever templates there are.
        live enabled: bool = true;
        /// Set this when prefixes have templates without a prefix record in the set: the namespace
        /// of prefixes whose record is not there, or has none.
        live namespace: Option<String> = None, NAMESPACE;
        /// Set this when namespaces define no delimiter: the one between base and extension.
        live delimiter: Option<String> = None, DELIMITER;
        /// Set this when administrators of prefixes must not define templates: only `namespace` and
        /// `delimiter` are used, and namespaces in prefix records ignored.
        live override_prefixes: bool = false;
    } constants {
        /// Most prefixes with a namespace of their own: their compiled patterns stay in memory, and
        /// all are compiled when a set goes live. Prefixes beyond it have no templates.
        namespaces: usize = 1024;
    }
}

const NAMESPACE: SettingRule<Option<String>> = SettingRule {
    words: "XML of a namespace",
    check: |namespace| {
        let Some(xml) = namespace else { return Ok(()) };
        let parsed =
            Namespace::parse(xml.as_bytes(), true).map_err(|error| format!("is invalid: {error}"))?;
        match parsed.invalid_patterns().first() {
            Some(pattern) => Err(format!("is invalid: {pattern}")),
            None => Ok(()),
        }
    },
};

const DELIMITER: SettingRule<Option<String>> = SettingRule {
    words: "1 to 255 bytes",
    check: |delimiter| match delimiter.as_ref().map_or(1, String::len) {
        1..=255 => Ok(()),
        _ => Err("must have 1 to 255 bytes".to_owned()),
    },
};

/// Maximum length in bytes of a prefix with a namespace of its own.
const PREFIX_LEN_MAX: usize = 255;

/// The prefixes whose handles `handle-admin` may find at a source of records, if they are not in
/// the set.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SourcePrefixes(HashSet<Box<[u8]>>);

impl SourcePrefixes {
    /// Holds `prefixes`, without `0.NA/`.
    #[must_use]
    pub fn new(prefixes: &[String]) -> Self {
        Self(prefixes.iter().map(|prefix| fold::folded(prefix.as_bytes()).into()).collect())
    }

    /// Whether a source may have `handle`. Does not allocate, because workers call it.
    #[must_use]
    pub fn has(&self, handle: &[u8]) -> bool {
        let prefix = Handle(handle).naming_authority();
        let mut folded = [0; PREFIX_LEN_MAX];
        let Some(folded) = folded.get_mut(..prefix.len()).filter(|_| !self.0.is_empty()) else {
            return false;
        };
        folded.copy_from_slice(prefix);
        fold::fold(folded);
        self.0.contains(&*folded)
    }
}

/// What is known about handles that are not stored in one published set.
#[derive(Debug)]
pub struct MissingHandles {
    /// The templates that compute their values, if there are any.
    pub templates: Option<SetTemplates>,
    /// The prefixes of sources of records.
    pub sources: Arc<SourcePrefixes>,
}

/// A handle of a source goes the way of one with computed values, and is forwarded on it.
impl MayCompute for MissingHandles {
    fn base_of<'h>(&self, handle: &'h [u8]) -> Option<&'h [u8]> {
        match self.sources.has(handle) {
            true => Some(handle),
            false => self.templates.as_ref()?.base_of(handle),
        }
    }
}

/// The templates for the handles of one published set.
#[derive(Debug)]
pub struct SetTemplates {
    configured: Option<Namespace>,
    delimiter: Option<String>,
    root: Option<Namespace>,
    /// Namespaces by folded prefix.
    by_prefix: HashMap<Box<[u8]>, Namespace>,
    folds: bool,
}

impl SetTemplates {
    /// The templates that apply to `records`; `None` when there are none.
    #[must_use]
    pub fn of(records: &RecordSet<'_, MappedFile>, config: &TemplatesConfig) -> Option<Self> {
        if !config.enabled {
            return None;
        }
        let folds = records.folds();
        let namespace_of = |handle: &[u8]| {
            let record = find(records, handle).ok()??;
            let public = record.values_in_order().map_while(Result::ok).filter(Value::is_public);
            Namespace::of_record(public, folds, &mut CompileBudget::default())
        };
        let (mut root, mut by_prefix) = (None, HashMap::new());
        if !config.override_prefixes {
            root = namespace_of(ROOT);
            for prefix in records.homed_table().into_iter().flatten() {
                if prefix.len() > PREFIX_LEN_MAX {
                    continue;
                }
                let Some(namespace) = namespace_of(&[PREFIX_RECORDS, prefix].concat()) else { continue };
                for invalid in namespace.invalid_patterns() {
                    let prefix = String::from_utf8_lossy(prefix);
                    tracing::warn!(%prefix, %invalid, "templates of a prefix cannot be applied");
                }
                if by_prefix.len() == config.namespaces {
                    tracing::warn!(
                        namespaces = config.namespaces,
                        "more prefixes have a namespace of their own than are kept; the others have no templates"
                    );
                    break;
                }
                by_prefix.insert(prefix.into(), namespace);
            }
        }
        let parse = |xml: &String| Namespace::parse(xml.as_bytes(), folds).ok();
        let this = Self {
            configured: config.namespace.as_ref().and_then(parse),
            delimiter: config.delimiter.clone(),
            root,
            by_prefix,
            folds,
        };
        let namespaces = this.by_prefix.values().chain(&this.configured).chain(&this.root);
        let has_delimiter = this.delimiter.is_some()
            || namespaces.into_iter().any(|namespace| namespace.delimiter().is_some());
        has_delimiter.then_some(this)
    }

    /// The namespaces that apply to `handle`, except that of its base.
    fn chain(&self, handle: &[u8]) -> Chain<'_> {
        let prefix = Handle(handle).naming_authority();
        let mut folded = [0; PREFIX_LEN_MAX];
        let own = folded.get_mut(..prefix.len()).filter(|_| !self.by_prefix.is_empty()).and_then(|folded| {
            folded.copy_from_slice(prefix);
            fold::fold(folded);
            self.by_prefix.get(&*folded)
        });
        let mut chain = Chain::new();
        self.root.iter().chain(own.or(self.configured.as_ref())).for_each(|template| chain.push(template));
        chain
    }

    /// Base and extension of `handle`, if templates may apply to it. Does not allocate, because
    /// workers call it.
    fn parts<'h>(&self, chain: &Chain<'_>, handle: &'h [u8]) -> Option<Parts<'h>> {
        let delimiter = chain.delimiter().or(self.delimiter.as_deref())?;
        Parts::of(handle, delimiter.as_bytes())
    }

    /// Computes the values of `handle`, which is not stored.
    ///
    /// # Errors
    /// When the templates cannot be applied, or the base cannot be read.
    pub fn compute(
        &self,
        context: &AnswerContext<'_, MappedFile>,
        handle: &[u8],
    ) -> Result<BuildOutcome, RefusalReason> {
        let mut chain = self.chain(handle);
        let Some(parts) = self.parts(&chain, handle) else { return Ok(BuildOutcome::NotFound) };
        let records = context.records();
        let damaged = |_| RefusalReason::DamagedRecord;
        let values = match find(records, parts.base).map_err(damaged)? {
            None if chain.is_empty() => return Ok(BuildOutcome::NotFound),
            None => Vec::new(),
            Some(base) => base
                .values_in_order()
                .collect::<Result<Vec<_>, _>>()
                .map_err(|_| RefusalReason::DamagedRecord)?,
        };
        let public = values.iter().copied().filter(Value::is_public);
        let mut budget = CompileBudget::default();
        let own = Namespace::of_record(public, self.folds, &mut budget);
        own.iter().for_each(|namespace| chain.push(namespace));
        let stored = StoredReferences { records, folds: self.folds };
        chain.build(&parts, &values, &stored, &mut budget).map_err(|error| {
            tracing::debug!(handle = %String::from_utf8_lossy(handle), %error, "templates cannot be applied");
            RefusalReason::TemplateFailed
        })
    }
}

impl MayCompute for SetTemplates {
    fn base_of<'h>(&self, handle: &'h [u8]) -> Option<&'h [u8]> {
        self.parts(&self.chain(handle), handle).map(|parts| parts.base)
    }
}

/// The stored record of `handle`, whether its prefix is homed here or not.
fn find<'a>(
    records: &RecordSet<'a, MappedFile>,
    handle: &[u8],
) -> Result<Option<EncodedRecord<'a>>, CorruptRecord> {
    let mut key = Handle(handle).looked_up();
    if records.folds() {
        fold::fold(&mut key);
    }
    records.find(hash_key(records.seed(), &key), &key)
}

/// Resolves references to public values of this set.
struct StoredReferences<'s> {
    records: &'s RecordSet<'s, MappedFile>,
    folds: bool,
}

impl Templates for StoredReferences<'_> {
    fn at(&self, handle: &[u8], index: i32, budget: &mut CompileBudget) -> Option<ReferencedTemplates> {
        let record = find(self.records, handle).ok()??;
        let mut public = record.values_in_order().map_while(Result::ok).filter(Value::is_public);
        let value = public.find(|value| value.index == index)?;
        Some(ReferencedTemplates::parse(value.data, self.folds, budget).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_of_sources_are_known_by_their_prefix() {
        let sources = SourcePrefixes::new(&["10.1/x".to_owned(), "10.a".to_owned(), "0.NA".to_owned()]);
        for (handle, is_at_source) in [
            (&b"10.A/x"[..], true),
            (b"10.a/", true),
            (b"0.na/10.1", true),
            (b"10.b/x", false),
            (b"10.1/x", false),
            // A name without a slash is that of a prefix.
            (b"10.b", true),
        ] {
            assert_eq!(sources.has(handle), is_at_source, "{}", Handle(handle));
        }
        assert!(!sources.has(&[&[b'1'; PREFIX_LEN_MAX + 1][..], b"/x"].concat()));
        assert!(!SourcePrefixes::default().has(b"/x"));
    }
}
