//! Settings: each is one line of one table, and everything else about it is made from that line.
//!
//! [`settings!`](crate::settings!) declares a section of a configuration. A line has the kind of
//! the setting, its name, type and default, and where needed its allowed values. The doc comment
//! above it is the description on the page in `docs/operations`. From these lines come
//!
//! - the struct, its `Default`, and how TOML is read into it and written from it;
//! - [`SettingSection::check`]: whether each value is allowed;
//! - [`SettingSection::resolve`]: paths relative to the directory of the configuration;
//! - [`SettingSection::tables`]: what the pages, the tests of bounds and a reload are made from.
//!
//! ```
//! use handle_daemon::settings::{DAY_MS, SettingSection as _};
//!
//! handle_daemon::settings! {
//!     /// Limits on connections.
//!     pub struct TcpConfig {
//!         /// Connections at a time.
//!         live connections: usize = 4096, 1..=1 << 20;
//!         /// Of these, from one source.
//!         live connections_per_source <= connections: usize = 512, 1..=1 << 20;
//!         /// How long a connection may be open without a request.
//!         live idle_ms: u32 = 300_000, 1..=DAY_MS;
//!         /// Connections that wait to be accepted.
//!         restart backlog: u32 = 1024, 1..=1 << 16;
//!     }
//! }
//!
//! handle_daemon::settings! {
//!     /// Configuration of a process.
//!     pub struct Config of process on port 2641 {
//!         section tcp: TcpConfig;
//!     }
//! }
//!
//! let config: Config = toml::from_str("[tcp]\nidle_ms = 0").unwrap();
//! let error = config.check().unwrap_err().to_string();
//! assert_eq!(error, "`tcp.idle_ms` is 0: it must be from 1 to 86400000");
//!
//! let config: Config = toml::from_str("[tcp]\nconnections = 8").unwrap();
//! let error = config.check().unwrap_err().to_string();
//! assert_eq!(error, "`tcp.connections_per_source` is 512: it must be at most `tcp.connections`, which is 8");
//! ```
//!
//! The kinds of lines:
//!
//! - `live`: a reload applies a new value. The process reads it from the settings in force.
//! - `restart`: a new value needs a new process.
//! - `section`: a nested table, declared by another `settings!`. In an `Option`, it may be missing;
//!   in a `Vec`, there may be several.
//! - `live_section`: the same, where a reload applies all settings of the section.
//!
//! What a line may have further:
//!
//! - `name <= other`: the value may not exceed that of another number in the section.
//! - After the default, the allowed values: a range, a range [`or_zero`], or a [`SettingRule`].
//! - `struct Name where rule`: a function that checks settings that depend on each other.
//! - `struct Name of process on port 2641`: puts the settings that every process has in front.
//! - `struct Name of process without port`: the same for a process that answers no requests.
//! - `constants { ... }` after the section: fields that no configuration can set, each with its
//!   value and the reason for it. The tests of a crate may choose another value.

pub mod file;
mod nearest;
pub mod reload;
mod rules;

pub use nearest::UnknownSetting;
pub use rules::{
    AllowedValues, IDENTITIES, LISTEN, LOG_FILTER, NETWORKS, PATH, RangeOrZero, SettingBounds, SettingNumber,
    SettingRule, or_zero,
};

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use toml::Value;

/// One day in milliseconds: the longest time that most settings allow.
pub const DAY_MS: u32 = 86_400_000;

/// A section of a configuration, or the whole. [`settings!`](crate::settings!) implements it.
pub trait SettingSection: Clone + Default + Serialize + DeserializeOwned {
    /// The settings of this section and of those within it; `section` is its dotted name, empty for
    /// the whole configuration.
    fn tables(section: &str) -> Vec<SettingTable>;

    /// Resolves relative paths against `directory`.
    fn resolve(&mut self, directory: &Path);

    /// Checks everything that can be checked without opening anything; `section` is as for
    /// [`tables`](Self::tables).
    ///
    /// # Errors
    /// Names the setting and its allowed values.
    fn check_within(&self, section: &str) -> Result<(), SettingError>;

    /// Takes the constants of `other`, which no configuration can set.
    fn copy_constants(&mut self, other: &Self);

    /// Checks a whole configuration.
    ///
    /// # Errors
    /// Those of [`check_within`](Self::check_within).
    fn check(&self) -> Result<(), SettingError> {
        self.check_within("")
    }
}

/// A section that may be missing.
impl<S: SettingSection> SettingSection for Option<S> {
    fn tables(section: &str) -> Vec<SettingTable> {
        S::tables(section)
    }

    fn resolve(&mut self, directory: &Path) {
        self.iter_mut().for_each(|section| section.resolve(directory));
    }

    fn copy_constants(&mut self, other: &Self) {
        self.iter_mut().zip(other).for_each(|(section, other)| section.copy_constants(other));
    }

    fn check_within(&self, section: &str) -> Result<(), SettingError> {
        self.as_ref().map_or(Ok(()), |this| this.check_within(section))
    }
}

/// A list of sections, each a table `[[section]]`. In errors they have numbers, from 0.
impl<S: SettingSection> SettingSection for Vec<S> {
    fn tables(section: &str) -> Vec<SettingTable> {
        let mut tables = S::tables(section);
        tables.iter_mut().for_each(|table| table.is_list = true);
        tables
    }

    fn resolve(&mut self, directory: &Path) {
        self.iter_mut().for_each(|section| section.resolve(directory));
    }

    fn copy_constants(&mut self, other: &Self) {
        self.iter_mut().zip(other).for_each(|(section, other)| section.copy_constants(other));
    }

    fn check_within(&self, section: &str) -> Result<(), SettingError> {
        self.iter().enumerate().try_for_each(|(at, this)| this.check_within(&format!("{section}[{at}]")))
    }
}

/// The settings of one section.
#[derive(Clone, Debug)]
pub struct SettingTable {
    /// The dotted name of the section; empty for the top of the configuration.
    pub section: String,
    /// Whether a configuration may have several tables of this name.
    pub is_list: bool,
    /// What the section is for: the lines of its doc comment.
    pub about: &'static [&'static str],
    /// The settings, in the order of their declaration.
    pub rows: Vec<SettingRow>,
}

/// A setting.
#[derive(Clone, Debug)]
pub struct SettingRow {
    /// Its dotted name.
    pub name: String,
    /// Its type, or the unit of its number.
    pub type_name: String,
    /// Its default, if it has one.
    pub default: Option<Value>,
    /// The bounds of its number.
    pub bounds: Option<SettingBounds>,
    /// The dotted name of the setting that it may not exceed.
    pub at_most: Option<String>,
    /// What is allowed, in words; empty if every value of the type is.
    pub allowed: String,
    /// Whether a reload applies it.
    pub is_live: bool,
    /// What it does: the lines of its doc comment.
    pub what: &'static [&'static str],
}

impl SettingRow {
    /// The row of a setting with the default `default`.
    #[must_use]
    pub fn new<T: SettingType>(
        section: &str,
        name: &str,
        is_live: bool,
        default: &T,
        what: &'static [&'static str],
    ) -> Self {
        Self {
            name: full_name(section, name),
            type_name: unit(name).filter(|_| T::IS_NUMBER).map_or_else(T::type_name, str::to_owned),
            default: Value::try_from(default).ok(),
            bounds: None,
            at_most: None,
            allowed: String::new(),
            is_live,
            what,
        }
    }

    /// Adds the allowed values.
    pub fn allow<T>(&mut self, allowed: impl AllowedValues<T>) {
        (self.bounds, self.allowed) = (allowed.bounds(), allowed.words());
    }
}

/// The unit that the name of a number ends in.
fn unit(name: &str) -> Option<&'static str> {
    let name = name.trim_end_matches("_max").trim_end_matches("_min");
    let units = [
        ("bytes_per_s", "bytes per second"),
        ("per_s", "number per second"),
        ("per_second", "number per second"),
        ("_ms", "milliseconds"),
        ("_s", "seconds"),
        ("_days", "days"),
        ("_bytes", "bytes"),
        ("_len", "bytes"),
        ("_bits", "bits"),
    ];
    units.into_iter().find(|(end, _)| name.ends_with(end)).map(|(_, unit)| unit)
}

/// The dotted name of a setting or section in `section`.
#[must_use]
pub fn full_name(section: &str, name: &str) -> String {
    if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") }
}

/// Checks the value of a setting.
///
/// # Errors
/// When it is not allowed.
pub fn check_value<T>(
    section: &str,
    name: &str,
    value: &T,
    allowed: impl AllowedValues<T>,
) -> Result<(), SettingError> {
    let why = allowed.check(value);
    why.map_err(|why| SettingError::Value { name: full_name(section, name), why })
}

/// Checks that a number does not exceed another one.
///
/// # Errors
/// When it does.
pub fn check_order<T: SettingNumber>(
    section: &str,
    name: &str,
    value: T,
    other: &str,
    most: T,
) -> Result<(), SettingError> {
    let (value, most) = (value.to_u64(), most.to_u64());
    if value <= most {
        return Ok(());
    }
    let why = format!("is {value}: it must be at most `{}`, which is {most}", full_name(section, other));
    Err(SettingError::Value { name: full_name(section, name), why })
}

/// Why a configuration is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingError {
    /// A value is not allowed.
    Value {
        /// The dotted name of the setting.
        name: String,
        /// The rest of the sentence that begins with the name.
        why: String,
    },
    /// Settings contradict each other: a sentence that names them.
    Together(String),
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value { name, why } => write!(f, "`{name}` {why}"),
            Self::Together(sentence) => f.write_str(sentence),
        }
    }
}

impl std::error::Error for SettingError {}

/// A type that a setting can have. A type of text with few values names them in `type_name`, as
/// serde does: "`auto`, `on`, `off`".
pub trait SettingType: Serialize {
    /// Whether its name can end in a unit.
    const IS_NUMBER: bool = false;

    /// Its name on the pages.
    fn type_name() -> String;

    /// Resolves a relative path against `directory`.
    fn resolve(&mut self, _directory: &Path) {}
}

macro_rules! setting_types {
    ($($type:ty: $name:literal, $is_number:literal;)*) => {
        $(impl SettingType for $type {
            const IS_NUMBER: bool = $is_number;

            fn type_name() -> String {
                $name.to_owned()
            }
        })*
    };
}

setting_types! {
    bool: "boolean", false;
    i32: "number", true;
    u8: "number", true;
    u16: "number", true;
    u32: "number", true;
    u64: "number", true;
    usize: "number", true;
    String: "text", false;
    SocketAddr: "address", false;
}

impl SettingType for PathBuf {
    fn type_name() -> String {
        "path".to_owned()
    }

    fn resolve(&mut self, directory: &Path) {
        // An empty path is not set.
        if !self.as_os_str().is_empty() {
            *self = directory.join(&*self);
        }
    }
}

impl<T: SettingType> SettingType for Option<T> {
    const IS_NUMBER: bool = T::IS_NUMBER;

    fn type_name() -> String {
        T::type_name()
    }

    fn resolve(&mut self, directory: &Path) {
        self.iter_mut().for_each(|value| value.resolve(directory));
    }
}

impl<T: SettingType> SettingType for Vec<T> {
    fn type_name() -> String {
        format!("list: {}", T::type_name())
    }

    fn resolve(&mut self, directory: &Path) {
        self.iter_mut().for_each(|value| value.resolve(directory));
    }
}

/// Declares a section of a configuration; the documentation of
/// [the module](mod@crate::settings) describes the form.
#[macro_export]
macro_rules! settings {
    (
        $(#[doc = $about:literal])*
        $visibility:vis struct $section:ident of process on port $port:literal $(where $rule:path)? {
            $($lines:tt)*
        } $($constants:tt)*
    ) => {
        $crate::settings! {
            $(#[doc = $about])*
            $visibility struct $section of process without port $(where $rule)? {
                /// Set this when several processes have settings in common: the file with these,
                /// which apply as if they were set here
                /// ([settings.md](settings.md#settings-that-both-processes-read)).
                restart shared: Option<std::path::PathBuf> = None;
                /// Set this when the process has to serve other addresses or another port. `[::]`
                /// includes IPv4.
                restart listen: Vec<std::net::SocketAddr> =
                    vec![std::net::SocketAddr::from(([0u16; 8], $port))], $crate::settings::LISTEN;
                $($lines)*
            } $($constants)*
        }
    };
    (
        $(#[doc = $about:literal])*
        $visibility:vis struct $section:ident of process without port $(where $rule:path)? {
            $($lines:tt)*
        } $($constants:tt)*
    ) => {
        $crate::settings! {
            $(#[doc = $about])*
            $visibility struct $section $(where $rule)? {
                /// Set this when `hdl control` has to reach the process: the UNIX socket for it;
                /// none if not set.
                restart control: Option<std::path::PathBuf> = None;
                /// Set this when the process is started as root: the user to switch to once ports
                /// are bound, as a name or `uid:gid`.
                restart user: Option<String> = None;
                /// Set this when the process has to keep running as root, without `user`.
                restart allow_root: bool = false;
                /// Set this when the log shows too much or too little: `error`, `warn`, `info`,
                /// `debug` or `trace`, and `module=level` for single modules.
                live log: String = "info".to_owned(), $crate::settings::LOG_FILTER;
                $($lines)*
            } $($constants)*
        }
    };
    (
        $(#[doc = $about:literal])*
        $visibility:vis struct $section:ident $(where $rule:path)? {
            $(
                $(#[doc = $what:literal])*
                $kind:ident $name:ident $(<= $other:ident)?: $type:ty $(= $default:expr $(, $allowed:expr)?)?;
            )*
        } $(constants {
            $($(#[doc = $reason:literal])* $constant:ident: $constant_type:ty = $value:expr;)*
        })?
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
        #[serde(default, deny_unknown_fields)]
        #[allow(missing_docs, reason = "a nested section is documented at its own declaration")]
        $visibility struct $section {
            $($(#[doc = $what])* pub $name: $type,)*
            $($($(#[doc = $reason])* #[serde(skip)] pub $constant: $constant_type,)*)?
        }

        impl Default for $section {
            fn default() -> Self {
                Self {
                    $($name: $crate::settings!(@default $($default)?),)*
                    $($($constant: $value,)*)?
                }
            }
        }

        impl $crate::settings::SettingSection for $section {
            fn tables(section: &str) -> Vec<$crate::settings::SettingTable> {
                let default = Self::default();
                let (mut rows, mut nested) = (Vec::new(), Vec::new());
                $($crate::settings! {
                    @table $kind (section, default, rows, nested) $name: $type,
                    [$($other)?] [$($($allowed)?)?] [$($what),*]
                })*
                let section = section.to_owned();
                nested.insert(0, $crate::settings::SettingTable {
                    section, is_list: false, about: &[$($about),*], rows,
                });
                nested
            }

            fn resolve(&mut self, directory: &std::path::Path) {
                let this = self;
                $($crate::settings!(@resolve $kind this.$name, directory);)*
            }

            #[allow(unused_variables, reason = "not every section has constants")]
            fn copy_constants(&mut self, other: &Self) {
                let this = self;
                $($crate::settings!(@copy_constants $kind this.$name, other.$name);)*
                $($(this.$constant.clone_from(&other.$constant);)*)?
            }

            #[allow(unused_variables, reason = "not every setting has allowed values")]
            fn check_within(&self, section: &str) -> Result<(), $crate::settings::SettingError> {
                let this = self;
                $($crate::settings! {
                    @check $kind (section, this) $name [$($other)?] [$($($allowed)?)?]
                })*
                $($rule(this)?;)?
                Ok(())
            }
        }
    };

    (@default) => { Default::default() };
    (@default $default:expr) => { $default };

    (@table section ($section:ident, $default:ident, $rows:ident, $nested:ident) $name:ident: $type:ty, $($rest:tt)*) => {
        let within = $crate::settings::full_name($section, stringify!($name));
        $nested.extend(<$type as $crate::settings::SettingSection>::tables(&within));
    };
    (@table live_section ($section:ident, $default:ident, $rows:ident, $nested:ident) $name:ident: $type:ty, $($rest:tt)*) => {
        let within = $crate::settings::full_name($section, stringify!($name));
        let mut tables = <$type as $crate::settings::SettingSection>::tables(&within);
        tables.iter_mut().flat_map(|table| &mut table.rows).for_each(|row| row.is_live = true);
        $nested.extend(tables);
    };
    (
        @table $kind:ident ($section:ident, $default:ident, $rows:ident, $nested:ident) $name:ident: $type:ty,
        [$($other:ident)?] [$($allowed:expr)?] [$($what:literal),*]
    ) => {
        #[allow(unused_mut, reason = "not every setting has allowed values")]
        let mut row = $crate::settings::SettingRow::new(
            $section, stringify!($name), $crate::settings!(@is_live $kind), &$default.$name, &[$($what),*],
        );
        $(row.allow::<$type>($allowed);)?
        $(row.at_most = Some($crate::settings::full_name($section, stringify!($other)));)?
        $rows.push(row);
    };

    (@is_live live) => { true };
    (@is_live restart) => { false };

    (@resolve section $this:ident.$name:ident, $directory:ident) => {
        $crate::settings::SettingSection::resolve(&mut $this.$name, $directory);
    };
    (@resolve live_section $this:ident.$name:ident, $directory:ident) => {
        $crate::settings::SettingSection::resolve(&mut $this.$name, $directory);
    };
    (@resolve $kind:ident $this:ident.$name:ident, $directory:ident) => {
        $crate::settings::SettingType::resolve(&mut $this.$name, $directory);
    };

    (@copy_constants section $this:ident.$name:ident, $other:ident.$_:ident) => {
        $crate::settings::SettingSection::copy_constants(&mut $this.$name, &$other.$name);
    };
    (@copy_constants live_section $this:ident.$name:ident, $other:ident.$_:ident) => {
        $crate::settings::SettingSection::copy_constants(&mut $this.$name, &$other.$name);
    };
    (@copy_constants $kind:ident $this:ident.$name:ident, $other:ident.$_:ident) => {};

    (@check section ($section:ident, $this:ident) $name:ident [] []) => {
        let within = $crate::settings::full_name($section, stringify!($name));
        $crate::settings::SettingSection::check_within(&$this.$name, &within)?;
    };
    (@check live_section ($section:ident, $this:ident) $name:ident [] []) => {
        $crate::settings!(@check section ($section, $this) $name [] []);
    };
    (@check $kind:ident ($section:ident, $this:ident) $name:ident [$($other:ident)?] [$($allowed:expr)?]) => {
        $($crate::settings::check_value($section, stringify!($name), &$this.$name, $allowed)?;)?
        $($crate::settings::check_order(
            $section, stringify!($name), $this.$name, stringify!($other), $this.$other,
        )?;)?
    };
}
