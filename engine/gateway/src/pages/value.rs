//! The values of a record, with what their data mean.

use super::{Messages, PageFrame, fill};
use crate::location::handle_url;
use crate::redirect::redirect_target;
use data_encoding::HEXUPPER;
use handle_client::reference;
use handle_console::pages::dates::{self, DateView};
use handle_console::pages::facts::{KeyView, SiteView, mail_url};
use handle_proto::data::{self, Admin, AdminPermissions, Data, PredefinedType, kind};
use handle_proto::printable::{Printable, is_unprintable};
use handle_proto::wire::list::Reference;
use handle_proto::{Handle, Permissions, Value};

/// Most characters of text, and bytes of other data, that a page shows of one value.
const TEXT_LEN_MAX: usize = 16 << 10;
const BYTES_LEN_MAX: usize = 512;

/// One row of the table of values.
pub(super) struct ValueView {
    pub(super) index: i32,
    /// The type, and the page that explains it.
    pub(super) kind: HandleLink,
    pub(super) data: DataView,
    pub(super) ttl: String,
    pub(super) changed: Option<DateView>,
    pub(super) readers: &'static str,
    pub(super) writers: &'static str,
    pub(super) permissions: String,
    pub(super) references: Vec<HandleLink>,
}

/// A handle, or the name of a type, with the path of its page.
pub(super) struct HandleLink {
    pub(super) text: String,
    /// Empty if there is no page.
    pub(super) path: String,
}

/// The data of a value.
pub(super) enum DataView {
    Link { href: String, text: String },
    Handle(HandleLink),
    Text { text: String, is_short: bool },
    Admin { key: HandleLink, is_any_key: bool, rights: Vec<&'static str>, has_all: bool },
    Group(Vec<HandleLink>),
    Key(KeyView),
    Secret(String),
    Site(SiteView),
    Bytes { hex: String, len: String, is_short: bool },
    Empty,
}

/// A handle as text that leads back to it, with everything escaped that is not printable.
pub(super) fn reference_text(handle: Handle<'_>) -> String {
    match str::from_utf8(handle.0) {
        Ok(text) if !text.contains(is_unprintable) => reference::canonical(text),
        _ => handle_url(handle, "hdl:"),
    }
}

/// The text for the field of the form: the name itself if it is what it looks like.
pub(super) fn field_text(handle: Handle<'_>) -> String {
    match str::from_utf8(handle.0) {
        Ok(text) if !text.contains(is_unprintable) => text.to_owned(),
        _ => handle_url(handle, "hdl:"),
    }
}

/// The link to the record of a handle.
pub(super) fn link(handle: &[u8], frame: &PageFrame<'_>) -> HandleLink {
    let path = format!("{}?noredirect", handle_url(Handle(handle), frame.root()));
    HandleLink { text: Printable(Handle(handle)).to_string(), path }
}

fn reference_link(reference: &Reference<'_>, frame: &PageFrame<'_>) -> HandleLink {
    let HandleLink { text, path } = link(reference.handle, frame);
    match reference.index {
        0 => HandleLink { text, path },
        index => HandleLink { text: format!("{index}:{text}"), path },
    }
}

/// The type of a value. Types that are handles themselves, as `10320/loc`, lead to their records,
/// and predefined types to those that explain them.
fn kind_link(name: &[u8], frame: &PageFrame<'_>) -> HandleLink {
    let text = Printable(Handle(name)).to_string();
    if name.contains(&b'/') {
        return link(name, frame);
    }
    match PredefinedType::find(name).is_some_and(|predefined| predefined.is_explained) {
        true => HandleLink { text, path: link(&[b"0.TYPE/", name].concat(), frame).path },
        false => HandleLink { text, path: String::new() },
    }
}

impl ValueView {
    pub(super) fn new(value: &Value<'_>, frame: &PageFrame<'_>, schemes: &[String]) -> Self {
        let texts = frame.texts();
        let who = |public: Permissions, administrators: Permissions| {
            if value.permissions.has(public) {
                texts.everyone
            } else if value.permissions.has(administrators) {
                texts.administrators
            } else {
                texts.nobody
            }
        };
        let changed = (value.timestamp != 0).then(|| dates::date(value.timestamp.cast_signed(), texts));
        Self {
            index: value.index,
            kind: kind_link(value.kind, frame),
            data: DataView::new(value, frame, schemes),
            ttl: dates::ttl(value.ttl, texts),
            changed,
            readers: who(Permissions::PUBLIC_READ, Permissions::ADMIN_READ),
            writers: who(Permissions::PUBLIC_WRITE, Permissions::ADMIN_WRITE),
            permissions: value.permissions.to_string(),
            references: value.references.iter().map(|reference| reference_link(&reference, frame)).collect(),
        }
    }
}

impl DataView {
    fn new(value: &Value<'_>, frame: &PageFrame<'_>, schemes: &[String]) -> Self {
        if value.data.is_empty() {
            return Self::Empty;
        }
        let texts = frame.texts();
        match Data::decode(value.kind, value.data) {
            Data::Admin(admin) => Self::admin(&admin, frame),
            Data::Vlist(group) => {
                Self::Group(group.0.iter().map(|member| reference_link(&member, frame)).collect())
            }
            Data::Site(site) => Self::Site(SiteView::new(&site, texts)),
            Data::PublicKey(key) => Self::Key(KeyView::new(&key)),
            Data::SecretKey(secret) => Self::Secret(fill(texts.secret, secret.0.len())),
            Data::Service(handle) | Data::Alias(handle) => Self::Handle(link(handle.0.trim_ascii(), frame)),
            _ => Self::opaque(value, texts, schemes),
        }
    }

    fn admin(admin: &Admin<'_>, frame: &PageFrame<'_>) -> Self {
        let named = AdminPermissions::KNOWN.into_iter().zip(frame.texts().rights);
        let rights =
            named.filter(|((right, _), _)| admin.permissions.has(*right)).map(|(_, text)| text).collect();
        Self::Admin {
            key: reference_link(&admin.reference, frame),
            is_any_key: admin.reference.index == 0,
            rights,
            has_all: admin.permissions.has(AdminPermissions::ALL),
        }
    }

    /// Text, or bytes.
    fn opaque(value: &Value<'_>, texts: &Messages, schemes: &[String]) -> Self {
        let Some(text) = data::text(value.data) else {
            let shown = &value.data[..value.data.len().min(BYTES_LEN_MAX)];
            let is_short = shown.len() < value.data.len();
            let len = fill(texts.bytes, value.data.len());
            return Self::Bytes { hex: HEXUPPER.encode(shown), len, is_short };
        };
        let href = if value.is_a(kind::URL) {
            redirect_target(text, b"", schemes).map(String::from)
        } else if value.is_a(kind::EMAIL) {
            mail_url(text)
        } else {
            None
        };
        if let Some(href) = href {
            return Self::Link { href, text: Printable(text.trim()).to_string() };
        }
        let shown = text.char_indices().nth(TEXT_LEN_MAX).map_or(text, |(at, _)| &text[..at]);
        Self::Text { text: shown.to_owned(), is_short: shown.len() < text.len() }
    }
}
