//! HS_NAMESPACE: the parts of its XML for people.

use crate::namespace::{NamespaceError, with_root};
use handle_proto::data::kind::HS_NAMESPACE;
use handle_proto::{Value, fold};
use roxmltree::Node;

/// The parts of a prefix's namespace for people. They do not affect resolution.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notice {
    /// The e-mail address of the contact.
    pub contact: Option<String>,
    /// Usually `active` or `inactive`; a missing status means active.
    pub status: Option<String>,
    /// The message to show if the prefix is not active.
    pub message: Option<String>,
}

impl Notice {
    fn parse(xml: &[u8]) -> Result<Self, NamespaceError> {
        with_root(xml, |root| {
            let text = |name: &str| {
                let is_named = |node: &Node<'_, '_>| node.is_element() && node.tag_name().name() == name;
                let text = root.children().find(is_named)?.text()?.trim();
                (!text.is_empty()).then(|| text.to_owned())
            };
            Ok(Self { contact: text("contact"), status: text("status"), message: text("statusmsg") })
        })
    }

    /// The notice of a record: that of the valid namespace with the lowest index.
    #[must_use]
    pub fn of_record<'v>(values: impl Iterator<Item = Value<'v>>) -> Option<Self> {
        let mut values: Vec<_> = values.filter(|value| fold::eq(value.kind, HS_NAMESPACE)).collect();
        values.sort_by_key(|value| value.index);
        values.iter().find_map(|value| Self::parse(value.data).ok())
    }

    /// Adds the parts that `outer` has and this one lacks.
    #[must_use]
    pub fn or(self, outer: Self) -> Self {
        Self {
            contact: self.contact.or(outer.contact),
            status: self.status.or(outer.status),
            message: self.message.or(outer.message),
        }
    }

    /// Whether the prefix is active.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.status.as_deref().is_none_or(|status| status == "active")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(xml: &str) -> Notice {
        Notice::parse(xml.as_bytes()).unwrap()
    }

    #[test]
    fn contact_and_status_are_read() {
        let inner = notice(
            "<namespace><contact> a@b.example </contact><status>inactive</status><template delimiter='@'/>\
             <statusmsg>Moved &amp; gone.</statusmsg><contact>second</contact></namespace>",
        );
        let some = |text: &str| Some(text.to_owned());
        let expected =
            Notice { contact: some("a@b.example"), status: some("inactive"), message: some("Moved & gone.") };
        assert_eq!(inner, expected);
        assert!(!inner.is_active());
        for xml in [
            "<n/>",
            "<n><status/></n>",
            "<n><status>active</status></n>",
            "<n><x><status>no</status></x></n>",
        ] {
            assert!(notice(xml).is_active(), "{xml}");
        }
        // Missing parts come from the outer namespace.
        let outer = notice("<n><contact>root@example</contact><status>active</status></n>");
        assert_eq!(inner.clone().or(outer.clone()), inner);
        assert_eq!(notice("<n/>").or(outer.clone()), outer);
    }

    #[test]
    fn the_valid_notice_with_the_lowest_index_counts() {
        let values = [
            Value::new(9, b"HS_NAMESPACE", b"<n><contact>nine</contact></n>"),
            Value::new(2, b"HS_NAMESPACE", b"<n>"),
            Value::new(3, b"HS_NAMESPACE", b""),
            Value::new(5, b"hs_namespace", b"<n><contact>five</contact></n>"),
            Value::new(1, b"URL", b"<n><contact>one</contact></n>"),
        ];
        assert_eq!(Notice::of_record(values.into_iter()).unwrap().contact.as_deref(), Some("five"));
        assert_eq!(Notice::of_record([].into_iter()), None);
    }
}
