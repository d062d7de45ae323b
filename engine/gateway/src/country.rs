//! The country of an address, from a file in the format of MaxMind (GeoLite2 and others).

use maxminddb::{PathElement, Reader};
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Maximum length of the file. Country databases have about 10 MB.
const FILE_LEN_MAX: u64 = 1 << 30;

/// Countries by address.
pub struct CountryDatabase {
    reader: Reader<Vec<u8>>,
}

/// Why a file cannot be used.
#[derive(Debug)]
pub struct CountryError {
    path: PathBuf,
    reason: CountryErrorReason,
}

#[derive(Debug)]
enum CountryErrorReason {
    Unreadable(io::Error),
    TooLong,
    Invalid(String),
}

impl fmt::Display for CountryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.reason {
            CountryErrorReason::Unreadable(error) => {
                write!(f, "`country_database`: cannot read {path}: {error}")
            }
            CountryErrorReason::TooLong => {
                write!(f, "`country_database`: {path} is longer than {FILE_LEN_MAX} bytes")
            }
            CountryErrorReason::Invalid(why) => {
                write!(f, "`country_database`: {path} is damaged or not a MaxMind database: {why}")
            }
        }
    }
}

impl std::error::Error for CountryError {}

impl fmt::Debug for CountryDatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountryDatabase").finish_non_exhaustive()
    }
}

impl CountryDatabase {
    /// Reads and verifies a file. It is read as a whole, so that it can be replaced in place.
    ///
    /// # Errors
    /// One sentence with the likely cause.
    pub fn open(path: &Path) -> Result<Self, CountryError> {
        let refused = |reason| CountryError { path: path.to_owned(), reason };
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|file| file.take(FILE_LEN_MAX + 1).read_to_end(&mut bytes))
            .map_err(|error| refused(CountryErrorReason::Unreadable(error)))?;
        if bytes.len() as u64 > FILE_LEN_MAX {
            return Err(refused(CountryErrorReason::TooLong));
        }
        let invalid =
            |error: maxminddb::MaxMindDbError| refused(CountryErrorReason::Invalid(error.to_string()));
        let reader = Reader::from_source(bytes).map_err(invalid)?;
        reader.verify().map_err(invalid)?;
        Ok(Self { reader })
    }

    /// The country of an address, as two letters of ISO 3166; `None` if it is unknown.
    #[must_use]
    pub fn country(&self, address: IpAddr) -> Option<String> {
        // The country of the network, or else that in which it is registered.
        let found = self.reader.lookup(address.to_canonical()).ok()?;
        ["country", "registered_country"].into_iter().find_map(|name| {
            let path = [PathElement::Key(name), PathElement::Key("iso_code")];
            found.decode_path::<String>(&path).ok().flatten()
        })
    }
}
