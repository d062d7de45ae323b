//! Settings of the index of public values.

use handle_daemon::settings;
use handle_daemon::settings::SettingRule;
use handle_store::{INDEX_TYPE_LEN_MAX, SearchBounds, is_index_type};

/// Most types with an index.
const TYPES_MAX: usize = 16;
/// Bytes of handles at which an answer ends.
const FOUND_BYTES: usize = 256 << 10;

const _: () = assert!(INDEX_TYPE_LEN_MAX == 64 && TYPES_MAX == 16, "as the rule says");

/// The types of an index.
const INDEX_TYPES: SettingRule<Vec<String>> = SettingRule {
    words: "at most 16 types, of 1 to 64 visible characters of ASCII",
    check: |types| {
        if types.len() > TYPES_MAX {
            return Err(format!("has {} types: it may have {TYPES_MAX}", types.len()));
        }
        for (at, kind) in types.iter().enumerate() {
            if !is_index_type(kind) {
                return Err(format!("has {kind:?}: a type has 1 to 64 visible characters of ASCII"));
            }
            if types[..at].iter().any(|other| other.eq_ignore_ascii_case(kind)) {
                return Err(format!("has {kind:?} twice"));
            }
        }
        Ok(())
    },
};

settings! {
    /// Finding handles by their values
    /// ([administration.md](../administration.md#finding-handles-by-their-values)).
    pub struct IndexConfig {
        /// Set this when handles are to be found by their values: types whose public values are
        /// indexed, in any case, as `["URL"]`. The index of an added type is built while the server
        /// runs; that of a removed one is dropped.
        restart types: Vec<String> = Vec::new(), INDEX_TYPES;
        /// Set this when the list of handles is no secret: everybody may search all. Otherwise
        /// callers authenticate, and find handles under prefixes whose handles they may list.
        live open: bool = false;
        /// Set this when answers should have more handles, or fewer: most in one.
        live results: usize = 1000, 1..=10_000;
    } constants {
        /// Records that one step of the build reads, in one commit, for which changes wait some
        /// ten milliseconds.
        step_records: usize = 2000;
        /// Indexed values that are looked at for one answer, in some ten milliseconds; the next
        /// answer goes on from there.
        values: usize = 10_000;
        /// Prefixes whose rights are looked up for one answer. Each takes a decision of its own.
        prefixes: usize = 100;
    }
}

impl IndexConfig {
    /// The bounds of an answer with at most `handles` handles.
    #[must_use]
    pub fn bounds(&self, handles: usize) -> SearchBounds {
        SearchBounds { handles: handles.clamp(1, self.results), bytes: FOUND_BYTES, rows: self.values }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_daemon::settings::SettingSection as _;

    #[test]
    fn types_that_cannot_be_indexed_are_refused() {
        let check = |types: &[&str]| {
            let types = types.iter().map(|&kind| kind.to_owned()).collect();
            IndexConfig { types, ..IndexConfig::default() }.check_within("index").map_err(|it| it.to_string())
        };
        let (longest, longer) = ("x".repeat(64), "x".repeat(65));
        assert_eq!(check(&["URL", "10320/loc", &longest]), Ok(()));
        for (types, part) in [
            (&["URL", "url"][..], "has \"url\" twice"),
            (&[""], "1 to 64 visible"),
            (&[&longer], "1 to 64 visible"),
            (&["a b"], "1 to 64 visible"),
            (&["x"; 17], "17 types: it may have 16"),
        ] {
            let error = check(types).unwrap_err();
            assert!(error.contains("index.types") && error.contains(part), "{error}");
        }
    }

    #[test]
    fn an_answer_has_the_handles_that_are_asked_for_up_to_the_bound() {
        let config = IndexConfig { results: 10, ..IndexConfig::default() };
        assert_eq!([0, 1, 10, 11].map(|handles| config.bounds(handles).handles), [1, 1, 10, 10]);
    }
}
