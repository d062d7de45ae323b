//! The questions under way: which requests wait for each, and which are overtaken by a purge.
//!
//! A purge removes what was known before it, so the answer of a question that was under way must
//! not be stored after it. The purge therefore takes such questions out of the table first: they go
//! on for the requests that wait; later requests start a new question.

use handle_proto::fold;
use handle_worker::cache::{MissingRecord, Resolution};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a question is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QuestionKey {
    /// The key of the handle.
    pub(crate) name: Vec<u8>,
    /// Whether the answer must be that of a primary site.
    pub(crate) is_authoritative: bool,
    /// Number of servers that the requests for it have passed through. A request that this cache
    /// has caused, because caches ask each other, has a higher number than the question that waits
    /// for it. If it waited for that question, neither would ever be answered.
    pub(crate) recursion_count: u8,
}

/// What a purge removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PurgeScope<'n> {
    /// A handle, in any spelling.
    Handle(&'n [u8]),
    /// All handles that begin with this prefix and slash.
    Prefix(&'n [u8]),
    /// Everything.
    All,
}

impl<'n> PurgeScope<'n> {
    /// The scope that an operator names: a handle, or a prefix with a slash.
    pub(crate) fn named(name: &'n [u8]) -> Self {
        match name.split_last() {
            Some((b'/', prefix)) if !prefix.contains(&b'/') => Self::Prefix(name),
            _ => Self::Handle(name),
        }
    }

    /// Whether the entry of `key` is removed.
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        match self {
            Self::Handle(handle) => fold::eq(key, handle),
            Self::Prefix(prefix) => fold::starts_with(key, prefix),
            Self::All => true,
        }
    }
}

/// A question under way.
#[derive(Debug, Default)]
pub(crate) struct OpenQuestion(Mutex<WaitingRequests>);

/// The requests that wait for a question.
#[derive(Debug, Default)]
struct WaitingRequests {
    requests: Vec<MissingRecord>,
    /// Once no server has answered soon: what is shown meanwhile.
    stale: Option<Resolution>,
}

impl OpenQuestion {
    fn waiting(&self) -> MutexGuard<'_, WaitingRequests> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows `stale` to the requests that come from now on, and returns the requests that have
    /// waited.
    pub(crate) fn show_stale(&self, stale: &Resolution) -> Vec<MissingRecord> {
        let mut waiting = self.waiting();
        waiting.stale = Some(stale.clone());
        std::mem::take(&mut waiting.requests)
    }

    /// Lets `missing` wait; what is shown instead is returned with it.
    fn join(&self, missing: MissingRecord) -> Option<(MissingRecord, Resolution)> {
        let mut waiting = self.waiting();
        match waiting.stale.clone() {
            Some(stale) => Some((missing, stale)),
            None => {
                waiting.requests.push(missing);
                None
            }
        }
    }
}

/// The outcome of a request whose record is not in the cache.
#[derive(Debug)]
pub(crate) enum QuestionRole {
    /// It has to be asked about.
    Ask(Arc<OpenQuestion>),
    /// It waits for a question that is under way.
    Waits,
    /// This is shown to it.
    Show(MissingRecord, Resolution),
}

/// The questions under way.
#[derive(Debug, Default)]
pub(crate) struct OpenQuestions(Mutex<QuestionTable>);

#[derive(Debug, Default)]
struct QuestionTable {
    questions: HashMap<QuestionKey, Arc<OpenQuestion>>,
    /// Number of purges so far.
    purges: u64,
    /// What was purged, until the entries of an earlier process are restored.
    purged: Option<PurgedNames>,
}

/// What was purged while entries are restored.
#[derive(Debug, Default)]
struct PurgedNames {
    /// Whether nothing is restored any more.
    is_all: bool,
    /// Handles, folded.
    handles: HashSet<Vec<u8>>,
    /// Prefixes with their slash, folded.
    prefixes: HashSet<Vec<u8>>,
}

/// Most names of [`PurgedNames`]. After one more, nothing is restored any more.
const PURGED_NAMES_MAX: usize = 65_536;

impl PurgedNames {
    fn add(&mut self, scope: PurgeScope<'_>) {
        match scope {
            PurgeScope::Handle(name) => drop(self.handles.insert(fold::folded(name))),
            PurgeScope::Prefix(name) => drop(self.prefixes.insert(fold::folded(name))),
            PurgeScope::All => self.is_all = true,
        }
        self.is_all |= self.handles.len() + self.prefixes.len() > PURGED_NAMES_MAX;
    }

    fn has(&self, key: &[u8]) -> bool {
        if self.is_all || (self.handles.is_empty() && self.prefixes.is_empty()) {
            return self.is_all;
        }
        let key = fold::folded(key);
        let slash = key.iter().position(|&byte| byte == b'/');
        let prefix = slash.map(|at| &key[..=at]);
        self.handles.contains(&key) || prefix.is_some_and(|prefix| self.prefixes.contains(prefix))
    }
}

impl QuestionTable {
    /// Removes a question. Returns false if a purge has overtaken it.
    fn remove(&mut self, key: &QuestionKey, question: &Arc<OpenQuestion>) -> bool {
        let is_current = self.questions.get(key).is_some_and(|known| Arc::ptr_eq(known, question));
        if is_current {
            self.questions.remove(key);
        }
        is_current
    }
}

impl OpenQuestions {
    /// No questions. With `restores`, entries of an earlier process will be restored.
    pub(crate) fn new(restores: bool) -> Self {
        let purged = restores.then(PurgedNames::default);
        Self(Mutex::new(QuestionTable { purged, ..QuestionTable::default() }))
    }

    fn table(&self) -> MutexGuard<'_, QuestionTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets `missing` wait for the question of `key`. If none is under way, `known` may have been
    /// answered meanwhile.
    pub(crate) fn join(
        &self,
        key: &QuestionKey,
        missing: MissingRecord,
        known: impl FnOnce() -> Option<Resolution>,
    ) -> QuestionRole {
        let mut table = self.table();
        if let Some(question) = table.questions.get(key) {
            return match question.join(missing) {
                Some((missing, stale)) => QuestionRole::Show(missing, stale),
                None => QuestionRole::Waits,
            };
        }
        if let Some(known) = known() {
            return QuestionRole::Show(missing, known);
        }
        let question = Arc::new(OpenQuestion::default());
        question.waiting().requests.push(missing);
        table.questions.insert(key.clone(), Arc::clone(&question));
        QuestionRole::Ask(question)
    }

    /// Begins a question for which no request waits yet; `None` if it is under way.
    pub(crate) fn begin(&self, key: &QuestionKey) -> Option<Arc<OpenQuestion>> {
        let mut table = self.table();
        if table.questions.contains_key(key) {
            return None;
        }
        let question = Arc::new(OpenQuestion::default());
        table.questions.insert(key.clone(), Arc::clone(&question));
        Some(question)
    }

    /// Ends a question with an answer: calls `store`, unless a purge has overtaken it, and returns
    /// the requests that wait. A purge begins before `store` or after it.
    pub(crate) fn end(
        &self,
        key: &QuestionKey,
        question: &Arc<OpenQuestion>,
        store: impl FnOnce(),
    ) -> Vec<MissingRecord> {
        let mut table = self.table();
        if table.remove(key, question) {
            store();
            // The answer of a primary site is newer than others that are under way.
            if key.is_authoritative {
                table.questions.retain(|other, _| other.name != key.name);
            }
        }
        drop(table);
        std::mem::take(&mut question.waiting().requests)
    }

    /// Ends a question without an answer, and returns those who wait. Nothing happens if it has
    /// ended already.
    pub(crate) fn fail(&self, key: &QuestionKey, question: &Arc<OpenQuestion>) -> Vec<MissingRecord> {
        self.table().remove(key, question);
        std::mem::take(&mut question.waiting().requests)
    }

    /// Takes the questions about names in `scope` out of the table, and counts a purge. Entries are
    /// removed after it.
    pub(crate) fn purge(&self, scope: PurgeScope<'_>, is_in: impl Fn(&[u8]) -> bool) {
        let mut table = self.table();
        table.questions.retain(|key, _| !is_in(&key.name));
        table.purges += 1;
        table.purged.iter_mut().for_each(|purged| purged.add(scope));
    }

    /// Takes questions out of the table, by their names: what they are about has changed.
    pub(crate) fn overtake(&self, is_changed: impl Fn(&[u8]) -> bool) {
        self.table().questions.retain(|key, _| !is_changed(&key.name));
    }

    /// Forgets all questions. The requests that wait are told that no server has answered.
    pub(crate) fn abandon(&self) {
        let questions = std::mem::take(&mut self.table().questions);
        drop(questions);
    }

    /// Number of purges so far.
    pub(crate) fn purges(&self) -> u64 {
        self.table().purges
    }

    /// Calls `store` for an entry that is restored, unless it was purged since the start of the
    /// process.
    pub(crate) fn unless_purged(&self, key: &[u8], store: impl FnOnce() -> bool) -> bool {
        let table = self.table();
        table.purged.as_ref().is_some_and(|purged| !purged.has(key)) && store()
    }

    /// Forgets what was purged: all entries are restored.
    pub(crate) fn end_restore(&self) {
        self.table().purged = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> QuestionKey {
        QuestionKey { name: name.as_bytes().to_vec(), is_authoritative: false, recursion_count: 0 }
    }

    #[test]
    fn a_question_that_a_purge_has_overtaken_stores_nothing_and_a_new_one_does() {
        let scopes = [
            (PurgeScope::Handle(b"abc/x"), true),
            (PurgeScope::Handle(b"abc/xy"), false),
            (PurgeScope::Prefix(b"abc/"), true),
            (PurgeScope::Prefix(b"abcd/"), false),
            (PurgeScope::All, true),
        ];
        for (scope, is_overtaken) in scopes {
            let (questions, key, mut stored) = (OpenQuestions::default(), key("ABC/x"), vec![]);
            let old = questions.begin(&key).unwrap();
            assert!(questions.begin(&key).is_none());
            questions.purge(scope, |name| scope.has(name));
            let new = questions.begin(&key);
            assert_eq!(new.is_some(), is_overtaken, "{scope:?}");
            questions.end(&key, &old, || stored.push("old"));
            if let Some(new) = new {
                questions.end(&key, &new, || stored.push("new"));
            }
            assert_eq!(stored, [if is_overtaken { "new" } else { "old" }], "{scope:?}");
            assert!(questions.begin(&key).is_some(), "both have ended");
        }
    }

    #[test]
    fn an_authoritative_answer_is_not_replaced_by_one_that_was_asked_for_before() {
        let (questions, ordinary, mut stored) = (OpenQuestions::default(), key("10.1/x"), vec![]);
        let authoritative = QuestionKey { is_authoritative: true, ..ordinary.clone() };
        let [old, other] = [&ordinary, &key("10.1/y")].map(|key| questions.begin(key).unwrap());
        let new = questions.begin(&authoritative).unwrap();
        questions.end(&authoritative, &new, || stored.push("primary"));
        questions.end(&ordinary, &old, || stored.push("older"));
        questions.end(&key("10.1/y"), &other, || stored.push("another name"));
        assert_eq!(stored, ["primary", "another name"]);
    }

    #[test]
    fn a_failed_question_for_a_primary_site_takes_no_other_out_of_the_table() {
        let (questions, ordinary, mut stored) = (OpenQuestions::default(), key("10.1/x"), vec![]);
        let authoritative = QuestionKey { is_authoritative: true, ..ordinary.clone() };
        let old = questions.begin(&ordinary).unwrap();
        let failing = questions.begin(&authoritative).unwrap();
        questions.fail(&authoritative, &failing);
        assert!(questions.begin(&authoritative).is_some(), "it has ended");
        questions.end(&ordinary, &old, || stored.push("kept"));
        assert_eq!(stored, ["kept"]);
    }

    #[test]
    fn what_an_operator_names_is_a_handle_or_a_prefix() {
        assert_eq!(PurgeScope::named(b"10.1/"), PurgeScope::Prefix(b"10.1/"));
        for handle in [&b"10.1/x"[..], b"10.1/x/", b"10.1", b""] {
            assert_eq!(PurgeScope::named(handle), PurgeScope::Handle(handle));
        }
    }

    #[test]
    fn what_was_purged_is_not_restored_and_everything_else_is() {
        let questions = OpenQuestions::new(true);
        let restored = |key: &str| questions.unless_purged(key.as_bytes(), || true);
        assert!(restored("10.1/x"));
        let purge = |scope| questions.purge(scope, |_| false);
        purge(PurgeScope::Handle(b"10.1/X"));
        purge(PurgeScope::Prefix(b"abc/"));
        for (key, expected) in [("10.1/x", false), ("10.1/xy", true), ("ABC/1", false), ("ABCD/1", true)] {
            assert_eq!(restored(key), expected, "{key}");
        }
        purge(PurgeScope::All);
        assert!(!restored("10.1/xy"));
        assert_eq!(questions.purges(), 3);
        questions.end_restore();
        assert!(!restored("10.1/z"), "the restore has ended");
    }

    #[test]
    fn names_that_were_purged_are_bounded() {
        let mut purged = PurgedNames::default();
        (0..PURGED_NAMES_MAX).for_each(|n| purged.add(PurgeScope::Handle(format!("10.1/{n}").as_bytes())));
        assert!(!purged.has(b"10.2/x"));
        purged.add(PurgeScope::Handle(b"10.3/x"));
        assert!(purged.has(b"10.2/x"));
    }
}
