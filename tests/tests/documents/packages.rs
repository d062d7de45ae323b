//! The manifests of packages name every program, files that exist, and scripts that a shell reads.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use crate::commands::PROGRAMS;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The directory of each crate with a package, and its settings for cargo-deb.
fn packages() -> BTreeMap<PathBuf, toml::Table> {
    let workspace: toml::Table = read("Cargo.toml").parse().unwrap();
    let members = workspace["workspace"]["members"].as_array().unwrap();
    let settings = members.iter().filter_map(|member| {
        let directory = PathBuf::from(member.as_str().unwrap());
        let manifest: toml::Table = read(&format!("{}/Cargo.toml", directory.display())).parse().unwrap();
        Some((directory, manifest["package"].get("metadata")?.get("deb")?.as_table()?.clone()))
    });
    settings.collect()
}

/// Source and destination of every asset.
fn assets(settings: &toml::Table) -> Vec<(&str, &str)> {
    let assets = settings["assets"].as_array().unwrap().iter().map(|asset| asset.as_array().unwrap());
    assets.map(|asset| (asset[0].as_str().unwrap(), asset[1].as_str().unwrap())).collect()
}

/// Where the unit of a program is, if it has one.
fn unit_of(program: &str) -> PathBuf {
    root().join(format!("docs/operations/{program}.service"))
}

#[test]
fn every_program_is_in_one_package_with_manual_completions_and_unit() {
    let packages = packages();
    assert_eq!(packages.len(), PROGRAMS.len() + 1, "a package for each program, and handle-common");
    for &(program, _) in &*PROGRAMS {
        let binary = format!("target/release/{program}");
        let with_binary: Vec<_> = packages
            .values()
            .filter(|settings| assets(settings).iter().any(|(source, _)| *source == binary))
            .collect();
        let [settings] = with_binary[..] else { panic!("{program} is in {} packages", with_binary.len()) };
        let sources: Vec<&str> = assets(settings).iter().map(|(source, _)| *source).collect();
        let has = |end: &str| sources.iter().any(|source| source.ends_with(end));
        assert!(has(&format!("/{program}*.1")) || has(&format!("/{program}*.8")), "{program}: manual");
        for completions in
            [format!("/completions/{program}"), format!("/_{program}"), format!("/{program}.fish")]
        {
            assert!(has(&completions), "{program}: {completions}");
        }
        let is_service = unit_of(program).exists();
        let unit = format!("docs/operations/{program}.service");
        assert_eq!(has(&unit), is_service, "{program}: unit");
        if is_service {
            // Its maintainer scripts find the unit by the name of the package.
            assert_eq!(settings["name"].as_str(), Some(program));
            assert!(settings["depends"].as_str().unwrap().contains("handle-common"), "{program}");
            assert!(
                settings["maintainer-scripts"].as_str().unwrap().ends_with("debian/service"),
                "{program}"
            );
        }
    }
}

/// systemd gives such a directory, with all that is in it, to the user of the unit that starts.
#[test]
fn no_two_units_have_the_same_directory_and_the_group_reads_those_of_sets() {
    let mut units_of = BTreeMap::<(String, String), Vec<&str>>::new();
    let units = PROGRAMS.iter().filter(|(program, _)| unit_of(program).exists());
    for &(program, _) in units {
        let text = std::fs::read_to_string(unit_of(program)).unwrap();
        let setting = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        for place in ["StateDirectory", "RuntimeDirectory", "LogsDirectory"] {
            for name in setting(place).unwrap_or_default().split(' ').filter(|name| !name.is_empty()) {
                units_of.entry((place.to_owned(), name.to_owned())).or_default().push(program);
            }
        }
        if ["handle-admin", "handle-fetch"].contains(&program) {
            assert_eq!(setting("Group"), Some("handle-sets"), "{program}");
            assert_eq!(setting("StateDirectoryMode"), Some("0750"), "{program}");
            let (_, set) = text.split_once("irectory = \"/var/lib/").unwrap();
            let (parent, _) = set.split_once("/snapshot\"").unwrap();
            let own = setting("StateDirectory").unwrap().split(' ').any(|name| name == parent);
            assert!(own, "{program}: /var/lib/{parent} is a directory of the unit");
        }
    }
    assert!(units_of.len() > 10, "{units_of:?}");
    assert!(units_of.values().all(|units| units.len() == 1), "{units_of:?}");
}

#[test]
fn packages_name_files_that_exist_and_are_documented() {
    let (page, script) = (read("docs/install.md"), read(".ci/release"));
    for (directory, settings) in packages() {
        let name = settings["name"].as_str().unwrap();
        assert!(page.contains(&format!("`{name}`")), "docs/install.md describes {name}");
        for (source, _) in assets(&settings) {
            // What `.ci/release` makes.
            if source.contains("target/") {
                continue;
            }
            let path = directory.join(source);
            let place = path.parent().unwrap().display();
            let exists = match source.split_once('*') {
                Some((_, end)) => std::fs::read_dir(root().join(path.parent().unwrap()))
                    .unwrap()
                    .any(|entry| entry.unwrap().file_name().to_string_lossy().ends_with(end)),
                None => root().join(&path).is_file(),
            };
            assert!(exists, "{name}: {source} in {place}");
        }
        for file in [settings["changelog"].as_str().unwrap(), settings["license-file"][0].as_str().unwrap()] {
            assert!(root().join(&directory).join(file).is_file(), "{name}: {file}");
        }
        let manifest: toml::Table = read(&format!("{}/Cargo.toml", directory.display())).parse().unwrap();
        let package = manifest["package"]["name"].as_str().unwrap();
        assert!(script.contains(package), ".ci/release packages {package}");
    }
    let workspace: toml::Table = read("Cargo.toml").parse().unwrap();
    let version = workspace["workspace"]["package"]["version"].as_str().unwrap();
    assert!(read("packaging/debian/changelog").starts_with(&format!("handled ({version}-1) ")));
    for manifest in ["compose.yaml", "kubernetes.yaml", "kubernetes-init.yaml"] {
        let manifest = &format!("packaging/{manifest}");
        assert!(read(manifest).contains(&format!("image: handled:{version}\n")), "{manifest}");
    }
}

#[test]
fn scripts_of_packages_and_releases_are_read_by_their_shell() {
    let mut scripts = vec![PathBuf::from(".ci/release"), PathBuf::from("packaging/test-packages")];
    scripts.push(PathBuf::from("packaging/image/build"));
    for directory in ["packaging/debian/common", "packaging/debian/service"] {
        let entries = std::fs::read_dir(root().join(directory)).unwrap();
        scripts.extend(entries.map(|entry| Path::new(directory).join(entry.unwrap().file_name())));
    }
    assert!(scripts.len() >= 8, "{scripts:?}");
    for script in scripts {
        let first = read(script.to_str().unwrap());
        let shell = if first.starts_with("#!/bin/sh\n") { "sh" } else { "bash" };
        let status = Command::new(shell).arg("-n").arg(root().join(&script)).status().unwrap();
        assert!(status.success(), "{}", script.display());
    }
}
