//! Secrets in files: read only if no other user can read them, and written so that no other user
//! can.

use crate::keyfile::{self, KeyFileError};
use handle_proto::data::PrivateKeyBuf;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Most bytes of a file with a secret; a private key of 4096 bits takes 5,000.
pub const FILE_LEN_MAX: u64 = 65_536;

/// Why a secret could not be read or written, with the path, for the operator.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// A system call failed.
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The mode of the file permits access by group or others.
    Permissions {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It is not an ordinary file, is empty, or is longer than [`FILE_LEN_MAX`].
    NotASecret {
        /// The file.
        path: PathBuf,
    },
    /// The key in it cannot be used.
    KeyFile {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: KeyFileError,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, error } => write!(f, "{}: {error}", path.display()),
            Self::Permissions { path, mode } => {
                let path = path.display();
                write!(f, "{path}: permissions too open (mode {mode:04o}): run chmod 600 {path}")
            }
            Self::NotASecret { path } => {
                write!(f, "{}: empty, longer than {FILE_LEN_MAX} bytes, or not a file", path.display())
            }
            Self::KeyFile { path, error } => write!(f, "{}: {error}", path.display()),
        }
    }
}

/// Without a source, because the text includes it already.
impl std::error::Error for OpenError {}

/// Reads the private key in a file, native or PEM, plain or encrypted under `passphrase`.
///
/// # Errors
/// When users other than the owner may use the file, or [`keyfile::decode`] fails.
pub fn open_key_file(path: &Path, passphrase: Option<&[u8]>) -> Result<PrivateKeyBuf, OpenError> {
    let bytes = open_secret_file(path)?;
    keyfile::decode(&bytes, passphrase).map_err(|error| OpenError::KeyFile { path: path.to_owned(), error })
}

/// Reads a secret, which is the whole content of the file (`replsec.bin`).
///
/// # Errors
/// When users other than the owner may use the file, or it is empty, too long, or not an ordinary
/// file.
pub fn open_secret_file(path: &Path) -> Result<Zeroizing<Vec<u8>>, OpenError> {
    let failed = |error| OpenError::Io { path: path.to_owned(), error };
    let file = File::open(path).map_err(failed)?;
    // Metadata of the open file, which cannot be replaced any more.
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() || metadata.len() > FILE_LEN_MAX {
        return Err(OpenError::NotASecret { path: path.to_owned() });
    }
    if metadata.mode() & 0o077 != 0 {
        return Err(OpenError::Permissions { path: path.to_owned(), mode: metadata.mode() & 0o7777 });
    }
    // Allocated at once, because growing would leave copies behind that are not cleared.
    let mut bytes = Zeroizing::new(Vec::with_capacity(1 + usize::try_from(FILE_LEN_MAX).unwrap_or(0)));
    file.take(FILE_LEN_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.is_empty() || bytes.len() as u64 > FILE_LEN_MAX {
        return Err(OpenError::NotASecret { path: path.to_owned() });
    }
    Ok(bytes)
}

/// Reads a secret that a person writes into a file, such as a password: the content without the
/// line end that editors and `echo` put after it.
///
/// # Errors
/// As [`open_secret_file`]; also if nothing else is in the file.
pub fn open_text_secret(path: &Path) -> Result<Zeroizing<Vec<u8>>, OpenError> {
    let mut secret = open_secret_file(path)?;
    strip_line_end(&mut secret);
    match secret.is_empty() {
        true => Err(OpenError::NotASecret { path: path.to_owned() }),
        false => Ok(secret),
    }
}

/// Removes one line end, `\n` or `\r\n`.
fn strip_line_end(secret: &mut Vec<u8>) {
    if secret.last() == Some(&b'\n') {
        secret.pop();
        if secret.last() == Some(&b'\r') {
            secret.pop();
        }
    }
}

/// Writes a secret to a new file that only its owner may use, and syncs it and its name.
///
/// # Errors
/// When the file exists, or a system call fails.
pub fn create_secret_file(path: &Path, secret: &[u8]) -> Result<(), OpenError> {
    write_new(path, secret)?;
    sync_directory_of(path)
}

fn sync_directory_of(path: &Path) -> Result<(), OpenError> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or_else(|| Path::new("."));
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(|error| OpenError::Io { path: directory.to_owned(), error })
}

fn write_new(path: &Path, secret: &[u8]) -> Result<(), OpenError> {
    let failed = |error| OpenError::Io { path: path.to_owned(), error };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    file.write_all(secret).and_then(|()| file.sync_all()).map_err(failed)
}

/// Replaces a file that only its owner may use. Readers, also after a crash, find the old or the
/// new secret, never a part of one.
///
/// # Errors
/// When a system call fails.
pub fn replace_secret_file(path: &Path, secret: &[u8]) -> Result<(), OpenError> {
    let failed = |path: &Path, error| OpenError::Io { path: path.to_owned(), error };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let new = path.with_file_name(format!(".{name}.new"));
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(&new, error)),
        // Left by a process that was killed.
        _ => {}
    }
    write_new(&new, secret)?;
    std::fs::rename(&new, path).map_err(|error| failed(path, error))?;
    sync_directory_of(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::private_record;
    use handle_proto::data::PrivateKey;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    fn with_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn one_line_end_after_a_secret_does_not_count() {
        for (text, secret) in [
            ("a", "a"),
            ("a\n", "a"),
            ("a\r\n", "a"),
            ("a\n\n", "a\n"),
            ("a\r", "a\r"),
            ("\n", ""),
            (" a ", " a "),
        ] {
            let mut bytes = text.as_bytes().to_vec();
            strip_line_end(&mut bytes);
            assert_eq!(bytes, secret.as_bytes(), "{text:?}");
        }
    }

    #[test]
    fn a_secret_that_others_may_use_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("replsec.bin");
        create_secret_file(&path, b"secret").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        for mode in [0o600, 0o400, 0o700] {
            with_mode(&path, mode);
            assert_eq!(**open_secret_file(&path).unwrap(), *b"secret", "{mode:o}");
        }
        for mode in [0o640, 0o604, 0o660, 0o620, 0o610, 0o644, 0o777, 0o601] {
            with_mode(&path, mode);
            let error = open_secret_file(&path).unwrap_err();
            assert!(matches!(error, OpenError::Permissions { .. }), "{mode:o}: {error}");
            assert!(error.to_string().contains(&format!("(mode 0{mode:o}): run chmod 600 /")), "{error}");
        }
        assert!(matches!(create_secret_file(&path, b"again"), Err(OpenError::Io { .. })));
    }

    #[test]
    fn a_secret_is_replaced_as_a_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        for secret in [&b"first"[..], b"second"] {
            // As after a crash.
            create_secret_file(&directory.path().join(".secret.new"), b"partial").unwrap();
            replace_secret_file(&path, secret).unwrap();
            assert_eq!(**open_secret_file(&path).unwrap(), *secret);
            assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        }
        let error = replace_secret_file(&directory.path().join("no/secret"), b"x").unwrap_err();
        assert!(error.to_string().contains("No such file"), "{error}");
    }

    #[test]
    fn only_ordinary_files_of_some_length_are_secrets() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        for (len, is_secret) in [(0, false), (1, true), (65_536, true), (65_537, false)] {
            create_secret_file(&path, &vec![7; len]).unwrap();
            assert_eq!(open_secret_file(&path).is_ok(), is_secret, "{len} bytes");
            fs::remove_file(&path).unwrap();
        }
        with_mode(directory.path(), 0o700);
        assert!(matches!(open_secret_file(directory.path()), Err(OpenError::NotASecret { .. })));
        assert!(matches!(open_secret_file(&path), Err(OpenError::Io { .. })));
    }

    #[test]
    fn errors_of_key_files_name_the_path_and_the_cause() {
        let directory = tempfile::tempdir().unwrap();
        let record = private_record("admin_dsa");
        let key = PrivateKey::decode(&record).unwrap();
        let path = directory.path().join("privkey.bin");
        create_secret_file(&path, &keyfile::plain(&key)).unwrap();
        assert_eq!(open_key_file(&path, None).unwrap().as_bytes(), record);
        fs::write(&path, b"\0\0\0\0ciphertext").unwrap();
        let error = open_key_file(&path, Some(b"pass phrase")).unwrap_err().to_string();
        assert!(error.contains("privkey.bin: the key is encrypted with single DES (type 0)"), "{error}");
    }
}
