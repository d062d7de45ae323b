//! Files that an operator writes, as text.

use anyhow::{Context as _, ensure};
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use toml::Table;

/// Longest text that is read, in bytes: a site record of ten thousand servers.
const TEXT_LEN_MAX: u64 = 16 << 20;

/// Reads the text at `path`; `what` says what it should be, as in "the site record".
///
/// # Errors
/// One sentence with the path, when it cannot be read, is longer than 16 MiB, or is no UTF-8.
pub fn read(path: &Path, what: &str) -> anyhow::Result<String> {
    let mut text = String::new();
    let opened = File::open(path).and_then(|file| file.take(TEXT_LEN_MAX + 1).read_to_string(&mut text));
    opened.with_context(|| format!("cannot read {what} {}", path.display()))?;
    ensure!(
        text.len() as u64 <= TEXT_LEN_MAX,
        "{what} {} is longer than {TEXT_LEN_MAX} bytes",
        path.display()
    );
    Ok(text)
}

/// What may stand in the file that both processes read (`shared`).
pub const SHARED: [&str; 5] = ["administrators", "server_id", "server_key", "sessions", "site"];

/// Reads a configuration, and gives the directory that paths in it are relative to. Settings of the file that it names
/// as `shared` count as if they stood in it; paths among them are relative to the same directory.
///
/// # Errors
/// Those of [`read`], the line that is not understood, or a setting that stands in both files.
pub fn configuration<C: DeserializeOwned>(path: &Path) -> anyhow::Result<(C, &Path)> {
    let directory = path.parent().unwrap_or(Path::new(""));
    let text = read(path, "the configuration")?;
    let whose = || format!("in the configuration {}", path.display());
    let config = toml::from_str(&text).with_context(whose)?;
    let mut table: Table = text.parse().with_context(whose)?;
    let Some(shared) = table.get("shared").and_then(toml::Value::as_str) else {
        return Ok((config, directory));
    };
    let shared_path = directory.join(shared);
    let text = read(&shared_path, "the shared configuration")?;
    let whose = || format!("in the shared configuration {}", shared_path.display());
    // As a configuration of its own first, so that an error names its line.
    toml::from_str::<C>(&text).with_context(whose)?;
    for (name, value) in text.parse::<Table>().with_context(whose)? {
        ensure!(
            SHARED.contains(&name.as_str()),
            "`{name}` is set in {}: only {} are shared, other settings belong to one process",
            shared_path.display(),
            SHARED.join(", ")
        );
        ensure!(
            !table.contains_key(&name),
            "`{name}` is set in {} and in {}: remove it from one of them",
            path.display(),
            shared_path.display()
        );
        table.insert(name, value);
    }
    let config = table.try_into().with_context(whose)?;
    Ok((config, directory))
}

/// A sentence about which settings of the configuration at `path` both processes share, for those who check it.
///
/// # Errors
/// Those of [`configuration`].
pub fn explain_shared(path: &Path) -> anyhow::Result<String> {
    let directory = path.parent().unwrap_or(Path::new(""));
    let table: Table = read(path, "the configuration")?.parse()?;
    let names = |table: &Table| -> Vec<String> {
        table.keys().filter(|name| SHARED.contains(&name.as_str())).cloned().collect()
    };
    let own = match names(&table) {
        own if own.is_empty() => String::new(),
        own => format!("; its own: {}", own.join(", ")),
    };
    Ok(match table.get("shared").and_then(toml::Value::as_str) {
        Some(shared) => {
            let shared = directory.join(shared);
            let table: Table = read(&shared, "the shared configuration")?.parse()?;
            format!(
                "shared with the other process, in {}: {}{own}",
                shared.display(),
                names(&table).join(", ")
            )
        }
        None => format!("no settings are shared with the other process (`shared` is not set){own}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_may_be_as_long_as_the_limit_and_not_longer() {
        let path = std::env::temp_dir().join(format!("handle-text-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        file.set_len(TEXT_LEN_MAX).unwrap();
        assert_eq!(read(&path, "it").unwrap().len() as u64, TEXT_LEN_MAX);
        file.set_len(TEXT_LEN_MAX + 1).unwrap();
        let error = read(&path, "it").unwrap_err().to_string();
        assert!(error.contains("longer than"), "{error}");
        std::fs::remove_file(&path).unwrap();
        let error = read(&path, "it").unwrap_err().to_string();
        assert!(error.starts_with("cannot read it "), "{error}");
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(default, deny_unknown_fields)]
    #[derive(Default)]
    struct SampleConfig {
        shared: Option<std::path::PathBuf>,
        site: Option<String>,
        administrators: crate::administrators::AdministratorsConfig,
        threads: usize,
    }

    #[test]
    fn a_shared_file_counts_as_if_it_stood_in_the_configuration() {
        let directory = std::env::temp_dir().join(format!("handle-shared-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let (path, shared) = (directory.join("config.toml"), directory.join("service.toml"));
        let with = |own: &str, text: &str| {
            std::fs::write(&path, format!("shared = \"service.toml\"\n{own}")).unwrap();
            std::fs::write(&shared, text).unwrap();
            configuration::<SampleConfig>(&path).map_err(|error| format!("{error:#}"))
        };
        let text = "site = \"site.json\"\n[administrators]\nserver = [\"300:10.1/a\"]\n";
        let (config, at) = with("threads = 3\n", text).unwrap();
        assert_eq!((at, config.threads, config.site.as_deref()), (&*directory, 3, Some("site.json")));
        assert_eq!(config.administrators.server, ["300:10.1/a"]);
        assert_eq!(config.shared.as_deref(), Some(Path::new("service.toml")));
        let explained = explain_shared(&path).unwrap();
        assert!(explained.ends_with("service.toml: administrators, site"), "{explained}");
        for (own, text, expected) in [
            ("site = \"a\"\n", "site = \"b\"\n", "`site` is set in"),
            ("", "threads = 3\n", "only administrators, server_id, server_key, sessions, site are shared"),
            ("", "\n[administrators]\nserver_reads_all = true\n", "server_full_access"),
            ("", "shared = \"other.toml\"\n", "`shared` is set in"),
            ("thread = 3\n", "", "thread"),
        ] {
            let error = with(own, text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        with("", "").unwrap();
        std::fs::remove_file(&shared).unwrap();
        assert!(configuration::<SampleConfig>(&path).unwrap_err().to_string().contains("service.toml"));
        std::fs::write(&path, "site = \"a\"\n").unwrap();
        assert_eq!(configuration::<SampleConfig>(&path).unwrap().0.site.as_deref(), Some("a"));
        assert!(explain_shared(&path).unwrap().ends_with("its own: site"));
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
