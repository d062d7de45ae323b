//! The values that a setting allows.

use crate::identity::identities;
use crate::log;
use handle_auth::source::SourceList;
use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// The allowed values of a setting of type `T`.
pub trait AllowedValues<T> {
    /// Checks a value.
    ///
    /// # Errors
    /// The rest of a sentence that begins with the name of the setting.
    fn check(&self, value: &T) -> Result<(), String>;

    /// The bounds of a number.
    fn bounds(&self) -> Option<SettingBounds> {
        None
    }

    /// What is allowed, in words; empty if [`bounds`](Self::bounds) say it.
    fn words(&self) -> String {
        String::new()
    }
}

/// The bounds of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettingBounds {
    /// The smallest number.
    pub least: u64,
    /// The largest number.
    pub most: u64,
    /// Whether 0 is allowed although it is less than `least`.
    pub or_zero: bool,
}

impl SettingBounds {
    fn check(self, value: u64) -> Result<(), String> {
        let is_within = (self.least..=self.most).contains(&value) || self.or_zero && value == 0;
        if is_within { Ok(()) } else { Err(format!("is {value}: it must be {self}")) }
    }
}

impl fmt::Display for SettingBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let zero = if self.or_zero { "0, or " } else { "" };
        write!(f, "{zero}from {} to {}", self.least, self.most)
    }
}

/// A number without a sign.
pub trait SettingNumber: Copy {
    /// The same number in 64 bits.
    fn to_u64(self) -> u64;
}

macro_rules! numbers {
    ($($number:ty)*) => {
        $(impl SettingNumber for $number {
            fn to_u64(self) -> u64 {
                self as u64
            }
        })*
    };
}

numbers!(u8 u16 u32 u64 usize);

impl<N: SettingNumber> AllowedValues<N> for RangeInclusive<N> {
    fn check(&self, value: &N) -> Result<(), String> {
        AllowedValues::<N>::bounds(self).map_or(Ok(()), |bounds| bounds.check(value.to_u64()))
    }

    fn bounds(&self) -> Option<SettingBounds> {
        Some(SettingBounds { least: self.start().to_u64(), most: self.end().to_u64(), or_zero: false })
    }
}

/// A range, or zero.
#[derive(Clone, Debug)]
pub struct RangeOrZero<N>(RangeInclusive<N>);

/// Allows zero besides the numbers of `range`.
pub const fn or_zero<N>(range: RangeInclusive<N>) -> RangeOrZero<N> {
    RangeOrZero(range)
}

impl<N: SettingNumber> AllowedValues<N> for RangeOrZero<N> {
    fn check(&self, value: &N) -> Result<(), String> {
        AllowedValues::<N>::bounds(self).map_or(Ok(()), |bounds| bounds.check(value.to_u64()))
    }

    fn bounds(&self) -> Option<SettingBounds> {
        Some(SettingBounds { least: self.0.start().to_u64(), most: self.0.end().to_u64(), or_zero: true })
    }
}

/// Allowed values that are not numbers.
#[derive(Clone, Copy, Debug)]
pub struct SettingRule<T> {
    /// What is allowed, in words.
    pub words: &'static str,
    /// Checks a value; the error is the rest of a sentence that begins with the name of the
    /// setting.
    pub check: fn(&T) -> Result<(), String>,
}

impl<T> AllowedValues<T> for SettingRule<T> {
    fn check(&self, value: &T) -> Result<(), String> {
        (self.check)(value)
    }

    fn words(&self) -> String {
        self.words.to_owned()
    }
}

/// Addresses and networks, as a limit by source exempts them.
pub const NETWORKS: SettingRule<Vec<String>> = SettingRule {
    words: "addresses and networks, at most 1024",
    check: |texts| {
        let most = SourceList::LEN_MAX;
        if texts.len() > most {
            return Err(format!("has {} entries: it may have {most}", texts.len()));
        }
        let parsed = SourceList::parse(texts).map(|_| ());
        parsed.map_err(|text| format!("has {text:?}: not a network (write an address, or ADDRESS/BITS)"))
    },
};

/// Identities, as [`identities`] reads them.
pub const IDENTITIES: SettingRule<Vec<String>> = SettingRule {
    words: "`index:handle`",
    check: |texts| identities(texts).map(|_| ()).map_err(|error| error.to_string()),
};

/// The filter of the log.
pub const LOG_FILTER: SettingRule<String> =
    SettingRule { words: "levels", check: |filter| log::check(filter) };

/// A path that must be set.
pub const PATH: SettingRule<PathBuf> = SettingRule {
    words: "",
    check: |path| match path.as_os_str().is_empty() {
        true => Err("is not set: name the file".to_owned()),
        false => Ok(()),
    },
};

/// Addresses to listen on.
pub const LISTEN: SettingRule<Vec<SocketAddr>> = SettingRule {
    words: "at least one",
    check: |listen| match listen.is_empty() {
        true => Err("is empty: name at least one address, as \"[::]:2641\"".to_owned()),
        false => Ok(()),
    },
};
